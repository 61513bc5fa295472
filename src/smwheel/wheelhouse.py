"""The wheelhouse: finished wheels, each with its evidence beside it, and what pip and uv need to take them.

    wheelhouse/
      <wheel>.whl
      requirements.txt   exact versions with sha256, for an installation that can take nothing else
      constraints.txt    exact versions, so that later installations do not undo it
      uv.toml            the same for uv
      evidence/<wheel>/  entry.json, plan.json, verdict.json, logs: everything that varies between builds
      evidence/plans/    which wheels each finished plan made

A wheel appears by one atomic rename, after its evidence.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from smwheel.sources.store import file_digest


@dataclass(frozen=True)
class Entry:
    """One wheel of the wheelhouse and what is known of it."""

    file: str
    sha256: str
    size: int
    distribution: str
    version: str
    recipe: str
    arch: str
    stack: str
    profile: str
    fingerprint: str
    level: str
    """How far the wheel is proven: static, imported, launched on another architecture, launched on this one, served;
    `published` for a wheel that is upstream's own, unchanged."""
    made: str
    """ISO 8601 time in UTC."""
    holds: dict[str, int] = field(default_factory=dict)
    """Architecture of the machine code → number of cubins in the whole wheel."""


class Wheelhouse:
    """A directory of finished wheels."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def entries(self) -> list[Entry]:
        """Return what is there, oldest first; a wheel that is gone or has another size does not count."""
        found = []
        for path in sorted(self.root.glob("evidence/*/entry.json")):
            try:
                entry = Entry(**json.loads(path.read_text(encoding="utf-8")))
            except (ValueError, TypeError):
                continue  # damaged, or of another version of smwheel: its wheel is made again
            wheel = self.root / entry.file
            if wheel.is_file() and wheel.stat().st_size == entry.size:
                found.append(entry)
        return sorted(found, key=lambda entry: entry.made)

    def made_from(self, fingerprint: str) -> list[Entry]:
        """Return the wheels of the plan with this fingerprint; nothing if they are not all there, byte for byte."""
        path = self._plan(fingerprint)
        if not path.is_file():
            return []
        try:
            files = [str(file) for file in json.loads(path.read_text(encoding="utf-8"))["wheels"]]
        except (ValueError, TypeError, KeyError):
            return []
        by_file = {entry.file: entry for entry in self.entries()}
        made = [by_file[file] for file in files if file in by_file]
        whole = len(made) == len(files) and all(file_digest(self.root / each.file) == each.sha256 for each in made)
        return made if whole else []

    def complete(self, fingerprint: str, entries: list[Entry]) -> None:
        """Record that these are all the wheels of a plan."""
        path = self._plan(fingerprint)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._write(str(path.relative_to(self.root)), json.dumps({"wheels": [entry.file for entry in entries]}) + "\n")

    def _plan(self, fingerprint: str) -> Path:
        return self.root / "evidence" / "plans" / f"{fingerprint}.json"

    def add(self, wheel: Path, entry: Entry, evidence: dict[str, Any], logs: list[Path]) -> Path:
        """Move a checked wheel in, its evidence first; return where it lies now.

        `evidence` is file name → JSON value. The wheel must lie on any file system; it is copied when it must be.
        """
        folder = self.root / "evidence" / wheel.name.removesuffix(".whl")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".new-") as scratch:
            staged = Path(scratch) / "evidence"
            staged.mkdir()
            for name, value in ({"entry.json": asdict(entry)} | evidence).items():
                text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
                (staged / name).write_text(text + "\n", encoding="utf-8")
            for log in logs:
                if log.is_file():
                    shutil.copyfile(log, staged / log.name)
            copied = Path(scratch) / wheel.name
            shutil.copyfile(wheel, copied)
            old = Path(scratch) / "old"
            if folder.exists():
                folder.rename(old)
            staged.rename(folder)
            os.replace(copied, self.root / wheel.name)  # noqa: PTH105 - says what it is
        return self.root / wheel.name

    def write_pins(self, entries: list[Entry]) -> None:
        """Write requirements.txt, constraints.txt and uv.toml for these wheels."""
        for name, text in pin_files(entries).items():
            self._write(name, text)

    def _write(self, name: str, text: str) -> None:
        path = self.root / name
        temporary = path.with_name(f".{path.name}.new")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)


def describe(wheel: Path) -> dict[str, Any]:
    """Return file name, sha256 and size in bytes of a wheel, as an entry holds them."""
    return {"file": wheel.name, "sha256": file_digest(wheel), "size": wheel.stat().st_size}


def pin_files(entries: list[Entry]) -> dict[str, str]:
    """Return requirements.txt, constraints.txt and uv.toml for these wheels: file name → text."""
    chosen = sorted({entry.distribution: entry for entry in entries}.values(), key=lambda e: e.distribution)
    head = "# Made by smwheel: " + ", ".join(sorted({f"{e.recipe} for {e.arch}" for e in chosen})) + "\n"
    install = "# pip install --no-index --no-deps --find-links . --require-hashes -r requirements.txt\n"
    requirements = [f"{e.distribution}=={e.version} --hash=sha256:{e.sha256}" for e in chosen]
    constraints = [f"{e.distribution}=={e.version}" for e in chosen]
    sources = [f'{e.distribution} = {{ path = "{e.file}" }}' for e in chosen]
    overrides = ", ".join(f'"{e.distribution}=={e.version}"' for e in chosen)
    uv = ["# For pyproject.toml; paths are relative to this directory.", "[tool.uv]",
          f"override-dependencies = [{overrides}]", "", "[tool.uv.sources]", *sources]  # fmt: skip
    return {
        "requirements.txt": head + install + "\n".join(requirements) + "\n",
        "constraints.txt": head + "\n".join(constraints) + "\n",
        "uv.toml": head + "\n".join(uv) + "\n",
    }
