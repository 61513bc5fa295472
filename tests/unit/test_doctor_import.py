"""The real import in a child process: its innermost error, and the finding that explains it."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

import jsonschema
import pytest
from environments import NO_GPU, Place, codes, kernels, machine, shared
from gpufiles import region_for
from test_doctor_healthy import PUBLIC

from smwheel.doctor import Report, examine
from smwheel.doctor.environment import Environment
from smwheel.doctor.importing import MEANINGS
from smwheel.doctor.page import page

DOCS = Path(__file__).parents[2] / "docs"

# As loaders that try several files do: the cause is only a line in the text.
SWALLOWED = """
import torch
raise ImportError('''
CRITICAL: Could not load any library!
Attempted: sm100/
Error details:
- ImportError: {error}
- ModuleNotFoundError: No module named 'common_ops'
''')
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "env", python=sys.version_info[:2])


def tried(place: Place, init: str, on: object = None) -> Report:
    """Try the import with this Python, after writing the package's `__init__`."""
    (place.site / "sgl_kernel/__init__.py").write_text(init)
    launcher = place.root / "python"
    launcher.write_text(f'#!/bin/sh\nPYTHONPATH={place.site} exec {sys.executable} "$@"\n')
    launcher.chmod(0o755)
    environment = Environment(place.root, launcher, place.python, (place.site,))
    return examine(on or machine(), environment, imports=True)  # type: ignore[arg-type]  # a machine, as examine says


def test_an_import_that_works_is_fine(place: Place) -> None:
    place.torch().install("sglang-kernel", "0.4.10", kernels("0.4.10", *PUBLIC))
    report = tried(place, "import torch\n")
    # The file was changed by this test, and that is seen.
    assert codes(report) == ["D205"]
    assert "`import sgl_kernel` works (sglang-kernel 0.4.10)" in report.fine


def test_the_innermost_error_is_found_in_the_text_of_the_outer_one(place: Place) -> None:
    place.torch().install("sglang-kernel", "0.4.10", kernels("0.4.10", *PUBLIC))
    error = "libcuda.so.1: cannot open shared object file: No such file or directory"
    report = tried(place, SWALLOWED.format(error=error), NO_GPU)
    said = report.findings[-1]
    assert said.code == "D701"
    assert f"the innermost error is: ImportError: {error}." in said.sentence
    assert said.why.startswith("The NVIDIA driver brings that library, and there is none here")
    assert "Python shows it as 'ImportError: CRITICAL: Could not load any library!'" in said.why


def test_a_finding_that_explains_the_error_gives_its_cure(place: Place) -> None:
    missing = shared("", needed=["libnuma.so.1"], fatbin=region_for("120a"))
    place.torch().install("sglang-kernel", "0.4.10", {"sgl_kernel/sm100/common_ops.abi3.so": missing})
    report = tried(place, SWALLOWED.format(error="libnuma.so.1: cannot open shared object file: No such file"))
    by_code = {one.code: one for one in report.findings}
    assert by_code["D701"].why.startswith("That is what D403 says: ")
    assert by_code["D701"].cure == by_code["D403"].cure


def test_a_process_that_dies_is_told(place: Place) -> None:
    place.torch().install("sglang-kernel", "0.4.10", kernels("0.4.10", *PUBLIC))
    report = tried(place, "import os, sys\nprint('gone', file=sys.stderr)\nos._exit(3)\n")
    assert "the process ended without an answer: gone" in report.findings[-1].sentence


@pytest.mark.parametrize(
    ("error", "codes"),
    [
        ("ImportError: /x.so: undefined symbol: _ZN3c1013MessageLoggerC1EPKcii", ("D501", "D502")),
        ("ImportError: libnvrtc.so.12: cannot open shared object file", ("D401", "D403", "D202")),
        ("ImportError: libcuda.so.1: cannot open shared object file", ("D102", "D403")),
        ("ImportError: libc10.so: cannot open shared object file", ("D201", "D202", "D503")),
        ("ImportError: libnuma.so.1: cannot open shared object file", ("D403",)),
        ("ModuleNotFoundError: No module named 'triton'", ("D203",)),
    ],
)
def test_what_errors_mean(error: str, codes: tuple[str, ...]) -> None:
    assert next(one.codes for one in MEANINGS if one.pattern.search(error)) == codes


def test_without_a_python_it_is_said_that_nothing_was_tried(place: Place) -> None:
    environment = Environment(place.root, None, None, (place.site,))
    assert "the import: the environment has no Python that runs" in examine(NO_GPU, environment, imports=True).unseen


# the command


def doctor(*arguments: str, status: int, **environment: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", "from smwheel.cli import main; main()", "doctor", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", **environment},
    )
    assert run.returncode == status, run.stdout + run.stderr
    return run.stdout


def test_command_and_schema(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False)
    place = Place.__new__(Place)
    place.root, place.python = tmp_path / "env", sys.version_info[:2]
    place.site = next((tmp_path / "env").glob("lib/python3*/site-packages"))
    place.torch("2.10.0", "12.8").install("sgl-kernel", "0.3.21", kernels("0.3.21", "120a"))
    said = json.loads(doctor("--env", str(place.root), "--arch", "120", "--json", status=19))
    jsonschema.validate(said, json.loads((DOCS / "doctor.schema.json").read_text()))
    assert said["findings"][0]["code"] == "D501"
    assert said["sentence"] == said["findings"][0]["sentence"]
    assert said["environment"]["packages"][0]["libraries"][0]["architectures"] == ["120a"]
    text = doctor(status=19, VIRTUAL_ENV=str(place.root))
    assert "1. sgl-kernel 0.3.21 cannot be loaded: it was built for torch 2.9.1" in text
    assert "to do" in text
    assert "Could not be looked at:" in text


def test_command_in_an_environment_without_faults(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False)
    said = json.loads(doctor("--python", str(tmp_path / "env/bin/python"), "--json", status=0))
    jsonschema.validate(said, json.loads((DOCS / "doctor.schema.json").read_text()))
    assert said["findings"] == []


def test_an_interpreter_by_its_bare_name(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False)
    said = json.loads(doctor("--python", "python3", "--json", status=0, PATH=f"{tmp_path}/env/bin:/usr/bin"))
    assert said["environment"]["path"] == str(tmp_path / "env")


def test_command_line_that_makes_no_sense(tmp_path: Path) -> None:
    doctor("--python", str(tmp_path / "python"), status=2)
    doctor("--python", "no-such-python", status=2)
    doctor("--arch", "90", "--arch", "120", status=2)
    doctor("--arch", "77", status=4)
    doctor("--env", "a", "--python", "b", status=2)
    doctor("--wheel", str(tmp_path / "missing.whl"), status=2)


def test_the_guide_lists_every_finding() -> None:
    text = (DOCS / "doctor.md").read_text()
    assert page(text) == text
    assert "| D501 |" in text
