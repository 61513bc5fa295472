"""A container image that holds nothing but wheels of one architecture, written without any container engine.

For `RUN --mount=type=bind,from=<image>,target=/wheels pip install --no-index --find-links /wheels …`: the wheels are
installed without ever being a layer of the image that serves.

The file is a tar archive that is an OCI image layout (image-spec 1.0, `image-layout.md`) and also has the
`manifest.json` that `docker load` reads in releases before 25. The same wheels give the same bytes: the layer is not
compressed (wheels are), and every member has the same owner, mode and time.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smwheel.arch import Arch
from smwheel.errors import UsageError, VerifyError
from smwheel.pipeline import EPOCH
from smwheel.sources.store import file_digest
from smwheel.wheelhouse import Entry, Wheelhouse, pin_files

_CREATED = "1980-01-01T00:00:00Z"
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"


@dataclass(frozen=True)
class WheelsImage:
    """An image file: where it lies, its tag, the digest of its manifest, its size in bytes, and the wheels inside."""

    path: Path
    tag: str
    digest: str
    size: int
    wheels: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the object that `image --json` prints."""
        return vars(self) | {"path": str(self.path), "wheels": list(self.wheels)}


def write_image(wheelhouse: Wheelhouse, arch: Arch | None, output: Path, tag: str) -> WheelsImage:
    """Write the newest wheels of an architecture, with their pins, as an image; it appears whole or not at all.

    Raises:
        UsageError: the wheelhouse has no wheel for it, or wheels of several and none is named.
        VerifyError: a wheel is not the one that was checked when it came into the wheelhouse.
    """
    entries = chosen(wheelhouse, arch)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".image-") as scratch:
        layer, new = Path(scratch) / "layer.tar", Path(scratch) / "image.tar"
        _write_layer(layer, wheelhouse, entries)
        layer_digest = file_digest(layer)
        config = _json({
            "created": _CREATED,
            "architecture": _machine(entries),
            "os": "linux",
            "config": {"Labels": {"smwheel.wheels": " ".join(entry.file for entry in entries)}},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
        })  # fmt: skip
        manifest = _json({
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _described(_CONFIG, config),
            "layers": [{"mediaType": _LAYER, "digest": f"sha256:{layer_digest}", "size": layer.stat().st_size}],
        })  # fmt: skip
        index = _described(_MANIFEST, manifest) | {"annotations": {"org.opencontainers.image.ref.name": tag}}
        blob = f"blobs/sha256/{layer_digest}"
        loaded = [{"Config": _blob(config), "RepoTags": [tag], "Layers": [blob]}]
        with tarfile.open(new, "w", format=tarfile.PAX_FORMAT) as archive:
            _add(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
            _add(archive, "index.json", _json({"schemaVersion": 2, "manifests": [index]}))
            _add(archive, "manifest.json", _json(loaded))
            _add(archive, _blob(config), config)
            _add(archive, _blob(manifest), manifest)
            _add(archive, blob, layer)
        new.replace(output)
    files = tuple(entry.file for entry in entries)
    return WheelsImage(output, tag, f"sha256:{hashlib.sha256(manifest).hexdigest()}", output.stat().st_size, files)


def chosen(wheelhouse: Wheelhouse, arch: Arch | None) -> list[Entry]:
    """Return the newest entry of each distribution that is for this architecture, sorted by file name.

    Raises:
        UsageError: there is none, or there are wheels of several architectures and none is named.
    """
    entries = wheelhouse.entries()
    numbers = sorted({Arch.parse(entry.arch).number for entry in entries})
    if arch is None and len(numbers) > 1:
        raise UsageError(
            "the wheelhouse holds wheels of several architectures",
            where=str(wheelhouse.root),
            cure=f"choose one: --arch {' or '.join(map(str, numbers))}",
        )
    fitting = [entry for entry in entries if arch is None or Arch.parse(entry.arch).number == arch.number]
    if not fitting:
        raise UsageError(
            f"the wheelhouse holds no wheel{f' for {arch.sm}' if arch else ''}",
            where=str(wheelhouse.root),
            cure="build some first: smwheel build",
        )
    return sorted({entry.distribution: entry for entry in fitting}.values(), key=lambda entry: entry.file)


def _write_layer(path: Path, wheelhouse: Wheelhouse, entries: list[Entry]) -> None:
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for name, text in sorted(pin_files(entries).items()):
            _add(archive, name, text.encode())
        for entry in entries:
            wheel = wheelhouse.root / entry.file
            if file_digest(wheel) != entry.sha256:
                raise VerifyError("is not the wheel that was checked", where=str(wheel), cure="build it again")
            _add(archive, entry.file, wheel)


def _add(archive: tarfile.TarFile, name: str, content: bytes | Path) -> None:
    member = tarfile.TarInfo(name)
    member.mode, member.mtime = 0o644, int(EPOCH)
    if isinstance(content, Path):
        member.size = os.stat(content).st_size  # noqa: PTH116 - says what it is
        with content.open("rb") as file:
            archive.addfile(member, file)
        return
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def _machine(entries: list[Entry]) -> str:
    """Return the processor that the wheels are for; `amd64` if they are for any."""
    tags = {entry.file.removesuffix(".whl").rpartition("-")[2] for entry in entries}
    found = {image for machine, image in _MACHINES.items() if any(tag.endswith(machine) for tag in tags)}
    if len(found) > 1:
        raise UsageError("the wheels are for several processors", cure="keep one wheelhouse for each")
    return next(iter(found), "amd64")


def _described(media: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": media, "digest": f"sha256:{hashlib.sha256(content).hexdigest()}", "size": len(content)}


def _blob(content: bytes) -> str:
    return f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
