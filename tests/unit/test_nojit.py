"""A command without compilers: every way of asking for one is seen, named, and fails the check."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from smwheel.build.sandbox import namespaces_unusable
from smwheel.errors import RecipeError, UsageError, VerifyError, VerifyIncompleteError
from smwheel.smoke import nojit
from smwheel.smoke.nojit import Attribution, NoJit, Outcome

needs_namespaces = pytest.mark.skipif(bool(namespaces_unusable(network=True)), reason="no namespaces here")
KNOWN = NoJit(
    environment={"DEMO_JIT": "0"},
    attributions=[
        Attribution(asks="in_the_demo", name="the demo package", cure="set DEMO_JIT=0"),
        Attribution(says="demo: no toolkit", name="the demo package finds no toolkit", cure="uninstall it"),
    ],
)


def run(code: str, knowledge: NoJit = KNOWN, **environment: str) -> Outcome:
    return nojit.run([sys.executable, "-c", code], knowledge, environment=os.environ | environment)


@needs_namespaces
def test_a_command_that_compiles_nothing_passes() -> None:
    outcome = run("import os; print(os.environ['DEMO_JIT'], os.environ.get('CUDA_HOME'))", CUDA_HOME="/cuda")
    assert outcome.status == 0
    assert outcome.last_lines == ("0 None",)
    assert not outcome.attempts
    outcome.raise_for_attempts()


@needs_namespaces
def test_a_request_from_python_is_seen_with_the_code_that_made_it() -> None:
    outcome = run(
        "import subprocess\n"
        "def in_the_demo():\n"
        "    try: subprocess.run(['nvcc', '-c', 'kernel.cu'])\n"
        "    except FileNotFoundError: pass\n"
        "in_the_demo()\n"
    )
    (attempt,) = outcome.compiles
    assert attempt.command == "nvcc -c kernel.cu"
    assert attempt.asked_by == "<string>:3 in_the_demo"
    assert (attempt.name, attempt.cure) == ("the demo package", "set DEMO_JIT=0")
    with pytest.raises(VerifyError, match="the demo package asks for a compiler") as caught:
        outcome.raise_for_attempts()
    assert caught.value.cure == "set DEMO_JIT=0"


@needs_namespaces
@pytest.mark.parametrize(
    "code",
    [
        "import os; os.system('gcc -c a.c')",
        "import os; os.posix_spawn('/usr/bin/gcc', ['gcc', '-c', 'a.c'], {})",
        "import os\nif os.fork() == 0: os.execv('/usr/bin/gcc', ['gcc', '-c', 'a.c'])\nos.wait()",
        "import subprocess; subprocess.run('exec /usr/bin/gcc -c a.c', shell=True)",
        "import subprocess; subprocess.run(['sh', '-c', 'x=cc; /usr/bin/g$x -c a.c'], executable='/bin/sh')",
        "import subprocess; subprocess.run(['sh', '-c', 'x=cc; g$x -c a.c'], executable='/bin/sh')",
    ],
    ids=["system", "posix_spawn", "exec", "shell", "by path from machine code", "by name from machine code"],
)
def test_every_way_of_starting_a_compiler_is_seen(code: str) -> None:
    outcome = run(code)
    assert len(outcome.compiles) == 1
    assert "gcc" in outcome.compiles[0].command


@needs_namespaces
def test_children_are_watched_too() -> None:
    inner = "import subprocess; subprocess.run(['/usr/bin/gcc', '-c', 'a.c'])"
    outcome = run(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])")
    assert [attempt.seen_by for attempt in outcome.compiles] == ["audit"]


@needs_namespaces
def test_a_question_for_the_version_is_listed_and_no_compile() -> None:
    outcome = run("import subprocess; subprocess.run(['/usr/bin/gcc', '--version'])")
    assert not outcome.compiles
    assert [attempt.probe for attempt in outcome.attempts] == [True]
    assert "1 questions for a compiler's version" in outcome.as_text()
    outcome.raise_for_attempts()


@needs_namespaces
def test_pythons_own_search_for_a_library_is_no_compile() -> None:
    outcome = run("from ctypes.util import find_library; find_library('no-such-library-of-ours')")
    assert not outcome.compiles


@needs_namespaces
def test_frames_of_a_package_in_the_output_are_no_failure() -> None:
    outcome = run("print('in_the_demo.py:3: UserWarning')")
    assert not outcome.failures
    outcome.raise_for_attempts()


@needs_namespaces
def test_nothing_is_left_of_compilers_and_toolkits() -> None:
    outcome = run(
        "import json, os, shutil\n"
        "print(json.dumps([shutil.which('gcc'), os.path.exists('/usr/local/cuda'), os.path.isdir('/usr/local/lib')]))"
    )
    assert json.loads(outcome.last_lines[-1]) == [None, False, True]


@needs_namespaces
def test_a_known_failure_in_the_output_is_named() -> None:
    outcome = run("raise SystemExit('demo: no toolkit')")
    assert [failure.name for failure in outcome.failures] == ["the demo package finds no toolkit"]
    with pytest.raises(VerifyError, match="finds no toolkit"):
        outcome.raise_for_attempts()


@needs_namespaces
def test_another_failure_is_told_by_its_last_line() -> None:
    with pytest.raises(VerifyError, match="ended with status 1: out of luck"):
        run("raise SystemExit('out of luck')").raise_for_attempts()


def test_without_namespaces_nothing_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nojit, "namespaces_unusable", lambda **_: "this kernel does not allow them")
    with pytest.raises(VerifyIncompleteError, match="cannot be hidden: this kernel does not allow them"):
        run("pass")


@needs_namespaces
def test_a_process_that_cannot_be_watched_proves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise RuntimeError('no hook')\n")
    genuine = nojit.inject.injected

    def injected(*arguments: object, **options: object) -> dict[str, str]:
        return genuine(*arguments, **options) | {"SMWHEEL_INJECT": str(broken)}  # type: ignore[arg-type]

    monkeypatch.setattr(nojit.inject, "injected", injected)
    with pytest.raises(VerifyIncompleteError, match="could not be watched: RuntimeError: no hook"):
        run("pass")


@needs_namespaces
def test_the_environments_own_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.demo_value = 7\n")
    outcome = run("print(demo_value)", PYTHONPATH=str(tmp_path))
    assert outcome.last_lines == ("7",)


def test_a_program_that_does_not_exist_is_a_usage_error() -> None:
    with pytest.raises((UsageError, VerifyIncompleteError)):
        nojit.run(["no-such-program-of-ours"], KNOWN)


def test_the_shipped_knowledge_is_well_formed_and_names_deepgemm() -> None:
    knowledge = nojit.load("sglang-jit")
    assert knowledge.environment["SGLANG_ENABLE_JIT_DEEPGEMM"] == "0"
    said = (
        '  File "/venv/lib/python3.12/site-packages/deep_gemm/cuda_helpers.py", line 20, in find_cuda_home\n'
        "    assert cuda_home is not None\nAssertionError\n"
    )
    outcome = nojit.known_failures(said, knowledge.attributions)
    assert "SGLANG_ENABLE_JIT_DEEPGEMM=0" in outcome[0].cure


def test_a_recipe_without_knowledge_or_with_a_wrong_pattern_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no nojit"):
        nojit.load("flashinfer")
    path = tmp_path / "nojit.toml"
    path.write_text('[[attributions]]\nasks = "("\nname = "a"\ncure = "b"\n')
    with pytest.raises(RecipeError, match="is no regular expression"):
        nojit.read_toml(path, NoJit)
