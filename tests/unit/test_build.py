"""The way from a plan to wheels, on a small package of shell and gcc units."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections import Counter
from pathlib import Path

import pytest
from demo_build import GENERATOR, build, counted, make_demo

from smwheel.build.sandbox import BUILD_ID, kill_survivors, namespaces_unusable
from smwheel.errors import BuildError, LockedError, OutOfMemoryError, VerifyError, VerifyIncompleteError
from smwheel.locks import locked


def test_a_plan_becomes_wheels_with_evidence(tmp_path: Path) -> None:
    (entry,) = build(tmp_path)
    wheel = tmp_path / "wheelhouse" / entry.file
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        plan = archive.read(next(name for name in names if name.endswith(".dist-info/plan.json"))).decode()
    assert {"demo/one.so", "demo/two.so", "demo/__init__.py"} <= set(names)
    assert entry.fingerprint in plan
    assert str(tmp_path) not in plan or namespaces_unusable()
    evidence = tmp_path / "wheelhouse" / "evidence" / entry.file.removesuffix(".whl")
    assert {"entry.json", "plan.json", "build.json", "modules.json", "compile.log"} <= {
        path.name for path in evidence.iterdir()
    }
    assert sorted(counted(tmp_path)) == ["one_a", "one_b", "two_a", "two_b"]


def test_an_unchanged_plan_compiles_nothing(tmp_path: Path) -> None:
    first = build(tmp_path)
    assert build(tmp_path) == first
    assert len(counted(tmp_path)) == 4


def test_a_lost_wheel_is_packed_again_without_compiling(tmp_path: Path) -> None:
    (entry,) = build(tmp_path)
    wheel = tmp_path / "wheelhouse" / entry.file
    before = wheel.read_bytes()
    wheel.unlink()
    build(tmp_path)
    assert wheel.read_bytes() == before
    assert len(counted(tmp_path)) == 4


@pytest.mark.skipif(bool(namespaces_unusable()), reason="this kernel allows no namespaces, so paths cannot be fixed")
def test_two_directories_make_the_same_bytes(tmp_path: Path) -> None:
    (one,) = build(tmp_path / "here")
    (two,) = build(tmp_path / "somewhere" / "else")
    assert (one.file, one.sha256) == (two.file, two.sha256)


def start(root: Path, linger: str) -> subprocess.Popen[bytes]:
    (root / "wheelhouse").mkdir(parents=True, exist_ok=True)
    here = Path(__file__).parent
    return subprocess.Popen(
        [sys.executable, str(here / "demo_build.py"), str(root), linger],
        env=os.environ | {"PYTHONPATH": str(here)},
        stderr=subprocess.DEVNULL,
    )


def wait_for(condition: object, what: str) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if condition():  # type: ignore[operator]
            return
        time.sleep(0.02)
    pytest.fail(f"waited 30 s for {what}")


def logged(root: Path) -> int:
    path = root / "work" / ".ninja_log"
    return sum(1 for line in path.read_text().splitlines() if line.endswith(tuple("0123456789abcdef"))
               and not line.startswith("#")) if path.exists() else 0  # fmt: skip


def survivors(root: Path) -> list[str]:
    marker = f"{BUILD_ID}={(root / 'work').name}".encode()
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and marker in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_bytes().decode())
        except OSError:
            continue
    return found


KILL_POINTS = {
    "before anything is finished": ("30", lambda root: len(counted(root)) >= 1),
    "right after an object appears": ("30", lambda root: any((root / "work").glob("*.o"))),
    "after a unit was recorded": ("0.4", lambda root: logged(root) >= 2),
}


@pytest.mark.parametrize("point", KILL_POINTS)
def test_a_killed_build_goes_on_where_it_was(tmp_path: Path, point: str) -> None:
    linger, reached = KILL_POINTS[point]
    process = start(tmp_path, linger)
    wait_for(lambda: reached(tmp_path), point)
    process.send_signal(signal.SIGKILL)
    process.wait()
    recorded, started = logged(tmp_path), Counter(counted(tmp_path))

    build(tmp_path)

    assert survivors(tmp_path) == []
    final = Counter(counted(tmp_path))
    repeated = sum(final.values()) - 4
    in_flight = sum(started.values()) - recorded
    assert set(final) == {"one_a", "one_b", "two_a", "two_b"}
    assert repeated <= max(in_flight, 0), "a recorded unit ran again"
    if point == "after a unit was recorded":
        assert recorded >= 2


def test_what_a_killed_build_left_behind_is_ended(tmp_path: Path) -> None:
    orphan = subprocess.Popen(["sleep", "60"], env={BUILD_ID: f"demo-{os.getpid()}"})
    assert kill_survivors(f"demo-{os.getpid()}") == 1
    assert orphan.wait(timeout=10) == -signal.SIGKILL
    assert kill_survivors(f"demo-{os.getpid()}") == 0


def test_a_failing_unit_is_named_with_its_own_last_lines(tmp_path: Path) -> None:
    broken = GENERATOR.replace("{source}/{part}.c -o", "{source}/missing_{part}.c -o")
    broken = broken.replace("sleep $(cat {work}/linger)", "test -f {output}")
    with pytest.raises(BuildError) as caught:
        build(tmp_path, generator=broken)
    text = str(caught.value)
    assert re.search(r"unit (one|two)/[ab]: failed", text)
    assert "missing_" in text
    assert "No such file" in text
    assert "compile.log" in caught.value.cure


def test_a_unit_that_was_killed_for_memory_alone_is_no_plain_failure(tmp_path: Path) -> None:
    said = "smwheel: one/a: killed for memory although it ran alone: this unit needed more than 0.7 GiB"
    dying = GENERATOR.replace("sleep $(cat {work}/linger)", f"echo '{said}'; exit 137")
    with pytest.raises(OutOfMemoryError, match=r"needed more than 0\.7 GiB") as caught:
        build(tmp_path, generator=dying)
    assert "--memory" in caught.value.cure


def test_a_failed_build_keeps_what_was_finished(tmp_path: Path) -> None:
    broken = GENERATOR.replace('["gcc", "-shared", f"{work}/{name}_a.o"', '["gcc", "-shared", f"{work}/{name}_c.o"')
    with pytest.raises(BuildError):
        build(tmp_path, generator=broken)
    build(tmp_path)
    assert max(Counter(counted(tmp_path)).values()) == 1


def test_two_builds_of_one_tree_at_once(tmp_path: Path) -> None:
    prepared = make_demo(tmp_path)
    with locked(prepared.site.work / "lock"):
        process = start(tmp_path, "0")
        assert process.wait(timeout=60) != 0
    with locked(prepared.site.work / "lock"), pytest.raises(LockedError, match=str(os.getpid())):
        build(tmp_path)


def test_the_lock_of_a_killed_build_is_no_obstacle(tmp_path: Path) -> None:
    process = start(tmp_path, "30")
    wait_for(lambda: counted(tmp_path), "a unit to start")
    process.kill()
    process.wait()
    assert (tmp_path / "work" / "lock").exists()
    assert build(tmp_path)


def test_a_library_without_the_planned_code_never_reaches_the_wheelhouse(tmp_path: Path) -> None:
    text = make_demo(tmp_path).plan.resolution.recipe.directory / "recipe.toml"
    strict = text.read_text().replace('no_device_code = ["*.so"]', "")
    with pytest.raises(VerifyError, match="no GPU code, and sm_120f was planned"):
        build(tmp_path, recipe_text=strict)
    assert not list((tmp_path / "wheelhouse").glob("*.whl"))


@pytest.mark.parametrize(
    ("find", "replace", "message"),
    [
        ("request = json", "raise ValueError('the tree is odd')\nrequest = json", "the tree is odd"),
        ('"protocol": 1, "modules"', '"protocol": 2, "modules"', "breaks the protocol"),
        ('"id": f"{name}/{part}"', '"id": "same"', "twice"),
        ('"units": [*ids, f"{name}/so"]', '"units": [*ids]', "does not make its library"),
        ('"inputs": [f"{work}/{name}_a.o"', '"inputs": ["/nowhere.o"', "which no unit makes"),
        ('"command": ["sh", "-c", script]', '"command": ["sh", "-c", "true\\ntrue"]', "holds a line break"),
    ],
)  # fmt: skip
def test_a_generator_that_breaks_the_protocol(tmp_path: Path, find: str, replace: str, message: str) -> None:
    assert find in GENERATOR
    with pytest.raises(BuildError, match=message):
        build(tmp_path, generator=GENERATOR.replace(find, replace))


def test_compilers_reach_no_network_and_write_nothing_but_their_work(tmp_path: Path) -> None:
    if namespaces_unusable():
        pytest.skip("this kernel allows no namespaces")
    spy = GENERATOR.replace(
        "sleep $(cat {work}/linger)", "cat /proc/net/route > {work}/route; touch {source}/spoilt; true"
    )
    build(tmp_path, generator=spy)
    assert len((tmp_path / "work" / "route").read_text().splitlines()) <= 1, "there is a route out"
    assert not (tmp_path / "tree" / "spoilt").exists()


def test_a_plan_of_which_only_a_part_was_made_is_not_unchanged(tmp_path: Path) -> None:
    text = make_demo(tmp_path).plan.resolution.recipe.directory / "recipe.toml"
    asking = text.read_text().replace('requirements = "requirements.txt"', 'requirements = "r.txt"\ncheck_here = ["."]')
    asking = asking.replace('[versions."1.0"]\n', '[versions."1.0"]\ncheck = "check.py"\n')
    script = tmp_path / "recipe" / "check.py"
    answer = '{{"asked": 1, "found": {found}, "modules": [{{"module": "one", "problem": "{problem}"}}]}}'
    script.write_text(f"print('{answer.format(found=0, problem='libcudart.so.13: cannot open')}')")
    for _ in range(2):
        with pytest.raises(VerifyError, match=r"one: libcudart\.so\.13: cannot open"):
            build(tmp_path, recipe_text=asking)
    assert not list((tmp_path / "wheelhouse").glob("*.whl"))
    script.write_text("raise RuntimeError('no flashinfer here')")
    with pytest.raises(VerifyIncompleteError, match="no flashinfer here"):
        build(tmp_path, recipe_text=asking)
    script.write_text(f"print('{answer.format(found=1, problem='')}')")
    assert build(tmp_path, recipe_text=asking)
    assert max(Counter(counted(tmp_path)).values()) == 1
