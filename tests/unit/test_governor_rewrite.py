"""What the launcher makes of nvcc's command lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from smwheel.arch import Arch
from smwheel.governor.client.rewrite import PolicyError, compiled_codes, rewrite
from smwheel.governor.policy import Addition, LaunchPolicy

ARCH_120A = "-gencode=arch=compute_120a,code=sm_120a"
POLICY = LaunchPolicy.for_arch(Arch.parse("120a")).as_json()


def run(*arguments: str, policy: dict[str, Any] = POLICY, unit: str = "m/u.cu", strict: bool = True) -> list[str]:
    return rewrite(["nvcc", *arguments], policy, unit, strict=strict)[0][1:]


def test_a_good_command_only_gets_its_temporary_names() -> None:
    command = [ARCH_120A, "-O3", "-c", "u.cu", "-o", "u.o"]
    assert run(*command) == [*command, "-objtemp"]
    assert run(*command, "-objtemp") == [*command, "-objtemp"]


@pytest.mark.parametrize(
    "foreign",
    [
        ["-gencode=arch=compute_90a,code=sm_90a"],
        ["-gencode", "arch=compute_90a,code=sm_90a"],
        ["--generate-code=arch=compute_80,code=[sm_80,compute_80]"],
        ["--generate-code", 'arch=compute_100a,code=\\"sm_100a\\"'],
        ["-gencode=code=sm_89,arch=compute_89"],
        ["-gencode=arch=compute_90,code=compute_90"],
        ["-gencode=arch=compute_121a,code=sm_121a"],
        ["-arch=sm_75"],
        ["-arch", "native"],
        ["--gpu-architecture=all-major"],
    ],
)
def test_what_the_target_cannot_load_is_dropped_never_converted(foreign: list[str]) -> None:
    changed, changes = rewrite(["nvcc", *foreign, ARCH_120A, "-c", "u.cu"], POLICY, "u")
    assert changed == ["nvcc", ARCH_120A, "-c", "u.cu", "-objtemp"]
    assert any("is not for sm_120a" in change["why"] for change in changes if "drop" in change)
    with pytest.raises(PolicyError, match="nothing is left to compile for sm_120a") as caught:
        run(*foreign, "-c", "u.cu")
    assert "To do:" in str(caught.value)


def test_beside_the_targets_own_code_no_other_is_kept() -> None:
    policy = LaunchPolicy.for_arch(Arch.parse("90a"), ptx=True).as_json()
    own, plain = "-gencode=arch=compute_90a,code=[sm_90a,compute_90a]", "-gencode=arch=compute_90,code=sm_90"
    done, changes = rewrite(["nvcc", plain, own, "-c", "u.cu"], policy, "u")
    assert done == ["nvcc", own, "-c", "u.cu", "-objtemp"]
    assert changes[0]["drop"] == plain
    alone, _ = rewrite(["nvcc", plain, "-c", "u.cu"], policy, "u")
    assert plain in alone


@pytest.mark.parametrize(
    ("command", "codes"),
    [
        ("nvcc -gencode arch=compute_90,code=[sm_90,compute_90] --generate-code=arch=compute_120a,code=sm_120a -c u.cu",
         ["sm_90", "compute_90", "sm_120a"]),
        ("nvcc --generate-code=arch=compute_90a,code=[sm_90a] -gencode=arch=compute_90a,code=sm_90a -c u.cu",
         ["sm_90a"]),
        ("nvcc -arch=sm_90 -c u.cu", ["sm_90"]),
        ("nvcc -c u.cu", []),
        ("nvcc -gencode=arch=compute_90,code=sm_90 a.o b.o -o x.so", []),
        ("nvcc -gencode=arch=compute_90,code=sm_90 -E u.cu", []),
        ("nvcc -gencode=arch=compute_90,code=sm_90 -c u.cpp", []),
    ],
)  # fmt: skip
def test_what_a_command_compiles_device_code_for(command: str, codes: list[str]) -> None:
    assert compiled_codes(command.split()) == codes


def test_part_of_a_list_of_codes_is_kept() -> None:
    changed, changes = rewrite(
        ["nvcc", "--generate-code=arch=compute_120a,code=[compute_120a,sm_120a]", "-c", "u.cu"], POLICY, "u"
    )
    assert changed[1] == ARCH_120A
    assert changes[0] == {
        "drop": "-gencode=arch=compute_120a,code=compute_120a",
        "why": "compute_120a is not for sm_120a",
    }


def test_ptx_stays_where_the_plan_wants_it() -> None:
    flag = "-gencode=arch=compute_120a,code=[compute_120a,sm_120a]"
    policy = LaunchPolicy.for_arch(Arch.parse("120a"), ptx=True).as_json()
    assert run(flag, "-c", "u.cu", policy=policy)[0] == flag


@pytest.mark.parametrize("code", ["120", "120f", "120a"])
def test_all_that_loads_on_the_target_stays(code: str) -> None:
    flag = f"-gencode=arch=compute_{code},code=sm_{code}"
    assert run(flag, "-c", "u.cu")[0] == flag


def test_a_command_without_architecture_is_refused_in_a_unit_and_left_in_a_trial() -> None:
    with pytest.raises(PolicyError, match="names no architecture"):
        run("-c", "u.cu", "-o", "u.o")
    with pytest.raises(PolicyError, match="names no architecture"):
        run("-dlink", "a.o", "-o", "b.o")
    assert run("-c", "u.cu", strict=False) == ["-c", "u.cu", "-objtemp"]
    assert run("-c", "host.cpp", "-o", "u.o") == ["-c", "host.cpp", "-o", "u.o", "-objtemp"]
    assert run("-shared", "a.o", "-o", "m.so") == ["-shared", "a.o", "-o", "m.so"]


def test_the_recipe_adds_an_architecture_to_the_link_that_names_none() -> None:
    add = (Addition("nvshmem/*", ("link", "device-link"), "arch=compute_120a,code=sm_120a"),)
    policy = LaunchPolicy.for_arch(Arch.parse("120a"), add=add).as_json()
    assert run("-shared", "a.o", "-o", "n.so", policy=policy, unit="nvshmem/n.so") == [
        *("-shared", "a.o", "-o", "n.so"),
        ARCH_120A,
    ]
    assert run("-shared", "a.o", "-o", "m.so", policy=policy, unit="norm/m.so") == ["-shared", "a.o", "-o", "m.so"]


@pytest.mark.parametrize("threads", [["-t", "8"], ["-t8"], ["-t=8"], ["--threads", "4"], ["--threads=0"]])
def test_one_thread_a_unit(threads: list[str]) -> None:
    assert run(ARCH_120A, *threads, "-c", "u.cu") == [ARCH_120A, "--threads=1", "-c", "u.cu", "-objtemp"]


@pytest.mark.parametrize("split", [["--split-compile=0"], ["-split-compile", "4"], ["--split-compile-extended=2"]])
def test_no_split_compilation(split: list[str]) -> None:
    assert run(ARCH_120A, *split, "-c", "u.cu") == [ARCH_120A, "-c", "u.cu", "-objtemp"]


def test_what_belongs_to_another_tool_is_left_alone() -> None:
    command = [ARCH_120A, "-Xcompiler", "-t", "-Xptxas", "-arch=sm_90", "-o", "-gencode", "-c", "u.cu"]
    assert run(*command) == [*command, "-objtemp"]


def test_nvccs_environment_is_judged_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-gencode=arch=compute_75,code=sm_75 --threads 0")
    monkeypatch.setenv("NVCC_PREPEND_FLAGS", "-lineinfo")
    assert run(ARCH_120A, "-c", "u.cu") == ["-lineinfo", ARCH_120A, "-c", "u.cu", "--threads=1", "-objtemp"]


def test_a_file_of_options_is_judged_too(tmp_path: Path) -> None:
    harmless, foreign = tmp_path / "a.rsp", tmp_path / "b.rsp"
    harmless.write_text("-I/include -DX=1")
    foreign.write_text('-gencode=arch=compute_90,code=sm_90 "-DNAME=a b"')
    changed = run(ARCH_120A, "--options-file", str(harmless), "-optf", str(foreign), "-c", "u.cu")
    assert changed == [ARCH_120A, "--options-file", str(harmless), "-DNAME=a b", "-c", "u.cu", "-objtemp"]
