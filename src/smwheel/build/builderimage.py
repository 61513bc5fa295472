"""The image that builds run in: a base, what the recipe needs of the system, and the packages that smwheel needs.

It is made once of `docker/sm<number>.Dockerfile` for a base and a set of packages, and found again by its tag. The
program itself is not taken from it but mounted, so that a newer smwheel needs no newer image.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from smwheel.arch import Arch
from smwheel.build.engine import Engine, Image
from smwheel.errors import ContainerError
from smwheel.paths import cache_dir, data_dir
from smwheel.plan import digest
from smwheel.progress import Reporter, size
from smwheel.recipe import load, names
from smwheel.sources.settings import IndexSettings, pip_settings
from smwheel.sources.store import file_digest

DEFAULT_BASE = "quay.io/pypa/manylinux_2_28_x86_64"
LOCAL_BASE = "smwheel-base:bookworm"
"""What `ci/make-base-image` makes, for where no image can be pulled."""

BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
"""Where distributions keep the certificates that they trust: Debian and Ubuntu, then Fedora and its kin."""


def builder_image(engine: Engine, base: Image, arch: Arch, reporter: Reporter) -> Image:
    """Return the builder image on a base, making it if the engine does not have it.

    Raises:
        ContainerError: there is no Dockerfile for this architecture, or making it failed.
    """
    dockerfile = data_dir() / "docker" / f"sm{arch.number}.Dockerfile"
    if not dockerfile.is_file():
        known = ", ".join(sorted(path.name.partition(".")[0] for path in dockerfile.parent.glob("sm*.Dockerfile")))
        raise ContainerError(
            f"there is no builder image for {arch.sm}", where=str(dockerfile.parent), cure=f"there is one for {known}"
        )
    tag = f"smwheel-builder:{dockerfile.name.partition('.')[0]}-{_key(base, dockerfile)[:12]}"
    if image := engine.image(tag):
        return image
    reporter.stage("image", f"making {tag} on {base.digest} ({size(base.size)})")
    local = f"smwheel-base-used:{base.id.removeprefix('sha256:')[:12]}"
    engine.call("tag", base.id, local)  # BuildKit takes no id in FROM, and asks a registry for a digest
    with tempfile.TemporaryDirectory() as scratch:
        arguments = ["--file", str(dockerfile), "--tag", tag, "--build-arg", f"BASE_IMAGE={local}"]
        arguments += ["--network", "host", *_secrets(Path(scratch)), str(data_dir())]
        engine.build(arguments, cache_dir() / "images" / f"{tag.partition(':')[2]}.log", where=f"image {tag}")
    image = engine.image(tag)
    if image is None:
        raise ContainerError("the engine made it and does not have it", where=f"image {tag}", cure="run it again")
    return image


def pip_configuration(settings: IndexSettings, *, local: bool) -> str:
    """Return a pip.conf with these settings; with `local`, places on this machine's disk too."""
    keys = {
        "index-url": [place for place in settings.indexes[:1] if local or not _folder(place)],
        "extra-index-url": [place for place in settings.indexes[1:] if local or not _folder(place)],
        "find-links": [place for place in settings.find_links if local or not _folder(place)],
        "trusted-host": list(settings.trusted_hosts),
        "proxy": [settings.proxy] if settings.proxy else [],
        "timeout": [str(settings.timeout)],
        "no-index": [] if settings.indexes else ["true"],
    }
    return "[global]\n" + "".join(f"{key} = {' '.join(values)}\n" for key, values in keys.items() if values)


def local_places(settings: IndexSettings) -> list[Path]:
    """Return the directories of this machine in which pip finds packages.

    The pages of an index lead to files beside it (`../../files/…`), so it is the directory that holds the index.
    """
    indexes = [path.parent for place in settings.indexes if (path := _folder(place)) and path.is_dir()]
    folders = [path for place in settings.find_links if (path := _folder(place)) and path.is_dir()]
    return sorted({*indexes, *folders})


def certificates(settings: IndexSettings) -> Path | None:
    """Return the file of certificates that this machine trusts, if there is one."""
    named = (settings.cert, os.environ.get("SSL_CERT_FILE", ""), *BUNDLES)
    return next((Path(name) for name in named if name and Path(name).is_file()), None)


def _folder(place: str) -> Path | None:
    if place.startswith("file:"):
        return Path(url2pathname(urlsplit(place).path))
    return None if "://" in place else Path(place).expanduser().absolute()


def _key(base: Image, dockerfile: Path) -> str:
    """Return a digest of all that decides what is in a builder image."""
    decide = [dockerfile, dockerfile.parent / "install-builder", data_dir() / "ci/requirements/run.txt"]
    versions = [version for name in names() for version in load(name).versions.values()]
    needs = sorted({f"{need.apt} {need.dnf}" for version in versions for need in version.system})
    return digest([base.id, needs, *(file_digest(path) for path in decide)])


def _secrets(scratch: Path) -> list[str]:
    """Return the options that let pip work while the image is made, with nothing of it kept in the image."""
    settings = pip_settings()
    configuration = scratch / "pip.conf"
    configuration.write_text(pip_configuration(settings, local=False), encoding="utf-8")
    arguments = ["--secret", f"id=pip,src={configuration}"]
    if trusted := certificates(settings):
        arguments += ["--secret", f"id=ca,src={trusted}"]
    return arguments
