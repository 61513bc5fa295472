"""What only the system can give: found, or missing with the command that brings it."""

from __future__ import annotations

from pathlib import Path

import pytest

from smwheel.errors import SystemNeedError
from smwheel.system import glibc_version, install_command, require_compiler, require_disk


def test_the_compiler_of_this_machine_is_found() -> None:
    compiler = require_compiler()
    assert compiler.cxx.is_absolute()
    assert compiler.version[0].isdigit()
    assert "linux" in compiler.target


def test_no_compiler_names_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(SystemNeedError, match="there is no gcc") as caught:
        require_compiler()
    assert caught.value.cure == "apt-get install gcc g++"


def test_a_compiler_that_cxx_names_must_exist_and_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "g++-99")
    with pytest.raises(SystemNeedError, match=r"no g\+\+-99 \(\$CXX names it\)"):
        require_compiler()
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\necho \"cannot execute 'cc1plus'\" >&2; exit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(SystemNeedError, match="cc1plus"):
        require_compiler()


def test_too_little_disk_names_both_figures(tmp_path: Path) -> None:
    require_disk(tmp_path / "not/yet/there", 1)
    with pytest.raises(SystemNeedError, match=r"1000000\.0 GB of disk are needed") as caught:
        require_disk(tmp_path / "not/yet/there", 10**15)
    assert caught.value.where == str(tmp_path)


def test_the_c_library_has_a_version() -> None:
    assert glibc_version().startswith("2.")


def test_another_c_library_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.confstr", lambda name: None)
    with pytest.raises(SystemNeedError, match="not glibc"):
        glibc_version()


def test_the_command_fits_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/dnf" if name == "dnf" else None)
    assert install_command(apt="a", dnf="d") == "dnf install d"
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert install_command(apt="a", dnf="d") == "apt-get install a"
