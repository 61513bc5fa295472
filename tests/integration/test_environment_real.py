"""The build environment, really made by this machine's venv and pip, from wheels that the test makes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from smwheel.environment import BuildEnvironment, make
from smwheel.errors import BuildEnvironmentError, HashMismatchError, NetworkError

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _only_our_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "foreign"))  # what the caller's shell says must not get in


def wheel(folder: Path, name: str = "demo", version: str = "1.0") -> str:
    """Make a wheel and return its line of a requirements file."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": "",
        f"{name}/data.txt": "x",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in files.items():
            archive.writestr(member, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{member},,\n" for member in [*files, f"{info}/RECORD"]))
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


def lock(folder: Path, *lines: str) -> Path:
    path = folder / "demo.txt"
    path.write_text("".join(lines))
    return path


def run(environment: BuildEnvironment, code: str) -> str:
    return subprocess.run([environment.python, "-c", code], capture_output=True, text=True, check=True).stdout


def test_an_environment_is_made_reused_repaired_and_made_anew(tmp_path: Path) -> None:
    extra = tmp_path / "extra"
    (extra / "standin").mkdir(parents=True)
    (extra / "standin/__init__.py").write_text("value = 1\n")
    requirements = lock(tmp_path, wheel(tmp_path))
    said: list[str] = []

    def build(**options: object) -> BuildEnvironment:
        said.clear()
        return make(
            requirements_file=requirements,
            cache_root=tmp_path / "cache",
            extra_paths=[extra],
            progress=said.append,
            **options,  # type: ignore[arg-type]
        )

    first = build()
    assert said == ["making the build environment (1 packages)"]
    assert run(first, "import demo, standin; print(standin.value)") == "1\n"

    # Nothing changed: it is there, and no network is needed.
    assert build(offline=True) == first
    assert said == []

    # A file of a package is lost: seen, refused offline, repaired with a network.
    lost = next(first.root.glob("lib/python*/site-packages/demo/data.txt"))
    lost.unlink()
    with pytest.raises(NetworkError, match=r"demo lost demo/data\.txt"):
        build(offline=True)
    assert build() == first
    assert lost.exists()

    # Killed before the end: made anew.
    (first.root / ".complete").unlink()
    with pytest.raises(NetworkError, match="never finished"):
        build(offline=True)

    # The stand-in changes: another environment.
    (extra / "standin/__init__.py").write_text("value = 2\n")
    second = build()
    assert second.root != first.root
    assert run(second, "import standin; print(standin.value)") == "2\n"


def test_a_wheel_with_other_bytes_is_a_hash_mismatch(tmp_path: Path) -> None:
    line = wheel(tmp_path)
    digest = line.strip()[-64:]
    requirements = lock(tmp_path, line.replace(digest, "a" * 64))
    with pytest.raises(HashMismatchError) as caught:
        make(requirements_file=requirements, cache_root=tmp_path / "cache")
    assert digest in caught.value.message
    assert "a" * 64 in caught.value.message


def test_a_wheel_that_is_nowhere_and_an_extra_that_collides_are_said(tmp_path: Path) -> None:
    line = wheel(tmp_path)
    with pytest.raises(BuildEnvironmentError, match=r"demo==2\.0"):
        make(requirements_file=lock(tmp_path, line.replace("1.0", "2.0", 1)), cache_root=tmp_path / "cache")
    (tmp_path / "extra/demo").mkdir(parents=True)
    with pytest.raises(BuildEnvironmentError, match="demo is installed already"):
        make(
            requirements_file=lock(tmp_path, line),
            cache_root=tmp_path / "cache",
            extra_paths=[tmp_path / "extra"],
        )


def test_it_works_with_smwheel_in_an_environment_of_its_own(tmp_path: Path) -> None:
    """The environment hangs on the base Python, so it survives the one that smwheel runs in."""
    environment = make(requirements_file=lock(tmp_path, wheel(tmp_path)), cache_root=tmp_path / "cache")
    home = Path(run(environment, "import sys; print(sys.base_prefix)").strip())
    assert home == Path(sys.base_prefix)
    assert not os.path.realpath(environment.python).startswith(sys.prefix + os.sep) or sys.prefix == sys.base_prefix
