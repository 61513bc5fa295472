"""The launcher and the broker's process, with programs of the system in the compiler's place."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from smwheel.arch import Arch
from smwheel.errors import BuildError, ToolchainError
from smwheel.governor import session
from smwheel.governor.limits import measure
from smwheel.governor.policy import LaunchPolicy
from smwheel.governor.session import Governor
from smwheel.governor.survivors import end_survivors, find_survivors
from smwheel.governor.trace import read_events

pytestmark = pytest.mark.integration


@pytest.fixture
def governor(tmp_path: Path) -> Iterator[Governor]:
    with Governor(measure(), {}, tmp_path, policy=LaunchPolicy.for_arch(Arch.parse("120a"))) as started:
        yield started


def launch(governor: Governor, script: str, *arguments: str, unit: str = "u", **options: Any) -> subprocess.Popen[str]:
    command = [*governor.launcher_command(unit), "sh", "-c", script, "sh", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def events(governor: Governor, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_events(governor.events_path) if event["event"] == kind]


def eventually(condition: Callable[[], Any], seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.02)


def test_arguments_streams_and_exit_code_pass_through(governor: Governor) -> None:
    script = 'cat; printf "<%s>" "$@"; echo oops >&2; exit 7'
    process = launch(governor, script, "a b", "", "$c*", stdin=subprocess.PIPE)
    assert process.communicate("from stdin") == ("from stdin<a b><><$c*>", "oops\n")
    assert process.returncode == 7


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGTERM])
def test_a_compiler_that_dies_of_a_signal(governor: Governor, number: int) -> None:
    process = launch(governor, f"kill -{number} $$")
    process.communicate()
    assert process.returncode == -number


def test_signals_reach_the_compiler(governor: Governor, tmp_path: Path) -> None:
    process = launch(governor, f"trap 'echo caught; exit 3' TERM; touch {tmp_path}/up; while :; do sleep 0.05; done")
    eventually((tmp_path / "up").exists)
    process.terminate()
    assert process.communicate()[0] == "caught\n"
    assert process.returncode == 3


def test_a_unit_that_waits_can_be_stopped(tmp_path: Path) -> None:
    with Governor(measure(jobs=1), {}, tmp_path) as governor:
        first = launch(governor, "sleep 60")
        eventually(lambda: events(governor, "started"))
        second = launch(governor, "true", unit="second")
        eventually(lambda: len(events(governor, "waiting")) == 2)
        second.terminate()
        assert second.wait(20) == -signal.SIGTERM
        eventually(lambda: [event["unit"] for event in events(governor, "lost")] == ["second"])
        first.terminate()
        assert first.wait(20) == -signal.SIGTERM


def test_the_peak_is_that_of_the_largest_descendant(governor: Governor) -> None:
    inner = f"{sys.executable} -c 'x = bytearray(300 << 20)'"
    assert launch(governor, f"sh -c {json.dumps(inner)}; {sys.executable} -c 'x = bytearray(100 << 20)'").wait() == 0
    assert 300 < events(governor, "finished")[0]["peak"] >> 20 < 340


def test_a_killed_run_is_not_seen(governor: Governor, tmp_path: Path) -> None:
    """The first run says something and dies as nvcc does when its stage is killed; the second is well."""
    mark = tmp_path / "ran"
    script = (
        f"test -e {mark} && echo fine >&2 && exit 0; touch {mark}; echo \"'cicc' died due to signal 9\" >&2; exit 1"
    )
    process = launch(governor, script)
    assert process.communicate() == ("", "fine\n")
    assert process.returncode == 0
    assert len(events(governor, "killed")) == 1
    assert events(governor, "started")[1]["alone"]


def test_one_that_is_killed_alone_fails_with_its_name(governor: Governor) -> None:
    process = launch(governor, "kill -9 $$", unit="lib/heavy.cu")
    assert "lib/heavy.cu: killed for memory although it ran alone" in process.communicate()[1]
    assert process.returncode == -signal.SIGKILL


def test_a_compiler_within_a_compiler_is_admitted_once(tmp_path: Path) -> None:
    with Governor(measure(jobs=1), {}, tmp_path) as governor:
        inner = " ".join([*governor.launcher_command("inner"), "echo", "in"])
        assert launch(governor, inner).communicate()[0] == "in\n"
        assert [event["unit"] for event in events(governor, "waiting")] == ["u"]


def test_no_more_than_jobs_run_at_once(tmp_path: Path) -> None:
    with Governor(measure(jobs=1), {}, tmp_path) as governor:
        started = [launch(governor, "sleep 0.05", unit=f"u{n}") for n in range(5)]
        assert [process.wait() for process in started] == [0] * 5
        running = most = 0
        for event in read_events(governor.events_path):
            running += {"started": 1, "finished": -1}.get(event["event"], 0)
            most = max(most, running)
        assert most == 1


def test_without_the_broker_units_go_on_one_at_a_time_and_say_so(governor: Governor, tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = f"echo in >> {log}; sleep 0.2; echo out >> {log}"
    first = launch(governor, script, unit="first")
    eventually(log.exists)
    os.kill(events(governor, "open")[0]["pid"], signal.SIGKILL)
    later = [launch(governor, script, unit=f"later{n}") for n in range(3)]
    for process in (first, *later):
        assert "the broker is gone" in process.communicate()[1]
        assert process.returncode == 0
    assert log.read_text().split() == ["in", "out"] * 4
    assert not governor.alive


def test_when_a_launcher_is_killed_its_compiler_dies_and_its_room_is_free(tmp_path: Path) -> None:
    with Governor(measure(jobs=1), {}, tmp_path) as governor:
        process = launch(governor, f"sleep 300 & echo $! > {tmp_path}/pid; wait")
        eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
        process.kill()
        process.wait()
        grandchild = int((tmp_path / "pid").read_text())
        eventually(lambda: not alive(grandchild))
        assert launch(governor, "true", unit="next").wait(20) == 0


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


PROGRAM = """
import subprocess, sys, time
from pathlib import Path
from smwheel.governor.limits import measure
from smwheel.governor.session import Governor
work = Path(sys.argv[1])
with Governor(measure(jobs=1), {}, work, build_id="doomed") as governor:
    for name in ("running", "waiting"):
        script = f"touch {work}/{name}; sleep 300; true"
        subprocess.Popen([*governor.launcher_command(name), "sh", "-c", script])
        time.sleep(0.3)
    time.sleep(300)
"""


def test_when_the_program_is_killed_nothing_goes_on(tmp_path: Path) -> None:
    program = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)])
    eventually((tmp_path / "running").exists)
    assert find_survivors("doomed")
    program.kill()
    program.wait()
    eventually(lambda: not find_survivors("doomed"))
    assert not (tmp_path / "waiting").exists()


def test_launchers_in_a_process_namespace_of_their_own(governor: Governor, tmp_path: Path) -> None:
    """Numbers of processes mean something else there; the death of a launcher must still free its compiler's room."""
    inside = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this kernel or container does not allow process namespaces")
    command = [*governor.launcher_command("u"), "sh", "-c", "echo in; exec sleep 300"]
    script = f"{shlex.join(command)} & sleep 1; kill -9 $!; sleep 0.5; pgrep -x sleep | wc -l"
    done = subprocess.run([*inside, "sh", "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["in", "0"]
    eventually(lambda: events(governor, "lost"))
    assert find_survivors(governor.build_id) == []


def test_survivors_are_found_by_their_mark_and_ended() -> None:
    survivor = subprocess.Popen(["sleep", "300"], env={**os.environ, "SMWHEEL_BUILD": "lost", "SMWHEEL_UNIT": "3"})
    eventually(lambda: survivor.pid in find_survivors("lost"))
    assert find_survivors("lost", unit="4") == []
    assert survivor.pid in end_survivors("lost", unit="3")
    assert survivor.wait(20) == -signal.SIGKILL


def test_ninja_builds_through_the_launcher(governor: Governor, tmp_path: Path) -> None:
    ninja = shutil.which("ninja", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert ninja
    lines = ["rule cc", f"  command = {governor.launcher_line} sh -c 'echo $out > $out' -o $out $in"]
    for number in range(40):
        (tmp_path / f"u{number}.c").touch()
        lines.append(f"build u{number}.o: cc u{number}.c")
    (tmp_path / "build.ninja").write_text("\n".join(lines) + "\n")
    done = subprocess.run([ninja, "-C", str(tmp_path), f"-j{governor.ninja_jobs}"], capture_output=True, check=False)
    assert done.returncode == 0, done.stdout
    assert {event["unit"] for event in events(governor, "finished")} == {f"u{number}.o" for number in range(40)}


@pytest.fixture
def toolkit(tmp_path: Path) -> Path:
    """A toolkit whose nvcc prints its arguments."""
    real = tmp_path / "real"
    for directory in ("bin", "include", "nvvm/bin"):
        (real / directory).mkdir(parents=True)
    (real / "bin" / "ptxas").touch()
    nvcc = real / "bin" / "nvcc"
    nvcc.write_text('#!/bin/sh\necho "$@"\n')
    nvcc.chmod(0o755)
    return real


def test_a_wrapped_toolkit_brings_the_policy_everywhere(governor: Governor, toolkit: Path) -> None:
    variables = governor.environment(cuda_home=toolkit)
    shim = Path(variables["CUDA_HOME"])
    assert (shim / "include").resolve() == toolkit / "include"
    assert (shim / "bin" / "ptxas").resolve() == toolkit / "bin" / "ptxas"
    flags = ["-gencode=arch=compute_90a,code=sm_90a", "-gencode=arch=compute_120a,code=sm_120a"]
    done = subprocess.run(
        [variables["CUDACXX"], *flags, "-c", "norm.cu", "-o", "norm.o"],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [flags[1], "-c", "norm.cu", "-o", "norm.o", "-objtemp"]
    record = json.loads(governor.rewrites_path.read_text())
    assert record["unit"] == "norm.o"
    assert record["changes"][0] == {"drop": flags[0], "why": "sm_90a is not for sm_120a"}
    version = subprocess.run([variables["CUDACXX"], "--version"], capture_output=True, text=True, check=True)
    assert version.stdout == "--version\n"
    assert len(events(governor, "waiting")) == 1


def test_a_unit_with_nothing_left_is_refused_before_it_waits(governor: Governor, toolkit: Path) -> None:
    command = [str(toolkit / "bin" / "nvcc"), "-gencode=arch=compute_90a,code=sm_90a", "-c", "hopper.cu"]
    done = subprocess.run(
        [*governor.launcher_command("m/hopper.cu"), *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "m/hopper.cu: nothing is left to compile for sm_120a" in done.stderr
    assert json.loads(governor.rewrites_path.read_text())["refused"].startswith("nothing is left")
    assert events(governor, "waiting") == []


def test_host_compilers_are_wrapped_too(governor: Governor, tmp_path: Path) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho compiled\n")
    compiler.chmod(0o755)
    variables = governor.environment(cxx=compiler)
    done = subprocess.run([variables["CXX"], "-c", "a.cpp", "-o", "a.o"], capture_output=True, text=True, check=True)
    assert done.stdout == "compiled\n"
    assert events(governor, "finished")[0]["unit"] == "a.o"


def test_what_is_no_toolkit_is_refused(governor: Governor, tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="no bin/nvcc"):
        governor.shim_cuda_home(tmp_path, tmp_path / "shim")


def test_a_long_work_directory_is_no_obstacle(tmp_path: Path) -> None:
    with Governor(measure(), {}, tmp_path / ("x" * 120)) as governor:
        assert launch(governor, "echo fine").communicate()[0] == "fine\n"


def test_a_broker_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "learner_to_json", lambda *_: {})
    with pytest.raises(BuildError, match="the broker did not start: KeyError"), Governor(measure(), {}, tmp_path):
        pass


def test_events_reach_the_callback_and_the_trace_is_written(tmp_path: Path) -> None:
    heard: list[dict[str, Any]] = []
    with Governor(measure(), {}, tmp_path, on_event=heard.append) as governor:
        launch(governor, "true").wait()
    kinds = [event["event"] for event in heard]
    assert [kind for kind in kinds if kind != "memory"] == ["open", "waiting", "started", "finished", "closed"]
    trace = json.loads((governor.directory / "trace.json").read_text())
    assert [item["name"] for item in trace if item["ph"] == "X"] == ["u"]
    assert json.loads((governor.directory / "summary.json").read_text())["units"] == 1
    assert governor.summary is not None
    assert governor.summary.kills == 0
