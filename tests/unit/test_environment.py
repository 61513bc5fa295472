"""The build environment: what counts as locked, what a difference is, what pip's failures mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from smwheel.environment import difference, explain, make, read_locked
from smwheel.errors import BuildEnvironmentError, HashMismatchError, NetworkError, SystemNeedError

DIGEST = "a" * 64
OTHER = "b" * 64


def write(folder: Path, text: str) -> Path:
    path = folder / "demo.txt"
    path.write_text(text)
    return path


def test_locked_versions_are_read(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        f"# made by a tool\n--only-binary :all:\nNinja==1.13.0 \\\n    --hash=sha256:{DIGEST} \\\n"
        f"    --hash=sha256:{OTHER}\n    # via demo\n"
        f'colorama==0.4 ; sys_platform == "win32" --hash=sha256:{DIGEST}\n'
        f"apache_tvm_ffi==0.1.9 --hash=sha256:{DIGEST}  # why\n",
    )
    assert read_locked(path) == {"ninja": "1.13.0", "apache-tvm-ffi": "0.1.9"}


@pytest.mark.parametrize(
    "line",
    [
        "ninja==1.13",
        f"ninja>=1.13 --hash=sha256:{DIGEST}",
        f"ninja==1.* --hash=sha256:{DIGEST}",
        f"ninja --hash=sha256:{DIGEST}",
        "-r other.txt",
        "ninja==1.13 --hash=md5:abc",
    ],
)
def test_what_is_not_locked_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(BuildEnvironmentError, match=r"not pinned|no requirement") as caught:
        read_locked(write(tmp_path, line + "\n"))
    assert caught.value.where.endswith("demo.txt")


def test_a_requirements_file_that_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(BuildEnvironmentError, match="No such file"):
        read_locked(tmp_path / "none.txt")


@pytest.mark.parametrize(
    ("installed", "problem"),
    [
        ({"ninja": ["1.13.0", []], "pip": ["23.0", []]}, ""),
        ({}, "ninja is not installed"),
        ({"ninja": ["1.12.0", []]}, "ninja is 1.12.0, locked is 1.13.0"),
        ({"ninja": ["1.13.0", ["ninja/__init__.py"]]}, "ninja lost ninja/__init__.py"),
        ({"ninja": ["1.13.0", []], "torch": ["2.0", []]}, "torch is installed and not locked"),
    ],
)
def test_an_environment_is_exactly_what_is_locked(installed: dict[str, list[object]], problem: str) -> None:
    assert difference(installed, {"ninja": "1.13.0"}) == problem


MISMATCH = f"""\
ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you have updated the package
versions, please update the hashes.
    demo==1.0 from file:///somewhere/demo-1.0-py3-none-any.whl (from -r demo.txt (line 1)):
        Expected sha256 {DIGEST}
             Got        {OTHER}
"""


def test_pips_failures_keep_their_kind() -> None:
    error = explain(MISMATCH, Path("demo.txt"))
    assert isinstance(error, HashMismatchError)
    assert error.message == f"demo==1.0: sha256 is {OTHER}, locked is {DIGEST}"
    unreachable = "WARNING: Retrying (Retry(total=0)) after connection broken\nERROR: No matching distribution found"
    assert isinstance(explain(unreachable, Path("demo.txt")), NetworkError)
    refused = "WARNING: Retrying (Retry(total=0)) after connection broken by 'Refused(111)': /simple\nERROR: No match"
    assert explain(refused, Path("demo.txt")).message == "packages cannot be fetched: Refused(111)"
    error = explain("ERROR: Could not find a version that satisfies demo==9", Path("demo.txt"))
    assert isinstance(error, BuildEnvironmentError)
    assert "demo==9" in error.message


def fake_python(folder: Path, venv: str) -> Path:
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nif [ "$1" = -c ]; then echo 3.11.2 /usr x86_64; exit 0; fi\n{venv}\n')
    path.chmod(0o755)
    return path


def test_a_python_without_venv_names_the_package(tmp_path: Path) -> None:
    python = fake_python(
        tmp_path, "echo 'The virtual environment was not created because ensurepip is not available.'; exit 1"
    )
    requirements = write(tmp_path, f"demo==1.0 --hash=sha256:{DIGEST}\n")
    with pytest.raises(SystemNeedError) as caught:
        make(requirements_file=requirements, python=python, cache_root=tmp_path / "cache")
    assert caught.value.cure == "apt-get install python3-venv"


def test_a_python_that_does_not_run_is_said(tmp_path: Path) -> None:
    requirements = write(tmp_path, f"demo==1.0 --hash=sha256:{DIGEST}\n")
    with pytest.raises(BuildEnvironmentError, match="does not run"):
        make(requirements_file=requirements, python=tmp_path / "python9", cache_root=tmp_path)


def test_offline_names_the_command(tmp_path: Path) -> None:
    requirements = write(tmp_path, f"demo==1.0 --hash=sha256:{DIGEST}\n")
    with pytest.raises(NetworkError, match="it is not there") as caught:
        make(requirements_file=requirements, cache_root=tmp_path, offline=True)
    assert "smwheel fetch" in caught.value.cure
    assert caught.value.where == str(requirements)
