"""FlashInfer's generator on the real source trees: counts, commands, the stand-in for torch, and what serving asks."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import flashinfer_tools as tools
import pytest

from smwheel.arch import Arch

pytestmark = pytest.mark.integration

ASK = Path(__file__).parents[1] / "fixtures" / "flashinfer" / "ask_wrappers.py"


def kinds(answer: dict[str, Any]) -> Counter[str]:
    return Counter(unit["kind"] for unit in answer["units"])


def full(version: str, code: str, work: Path, **changes: Any) -> dict[str, Any]:
    return tools.ask(tools.request(version, code, work, **changes), tools.locked_python(version))


def profile(version: str, name: str) -> dict[str, Any]:
    return tools.flashinfer().version(version).profiles[name].model_dump()


def names(answer: dict[str, Any]) -> set[str]:
    return {module["name"] for module in answer["modules"]}


def test_full_of_0_6_4_holds_what_serves_sm120(tmp_path: Path) -> None:
    """642 modules and 2,637 units are upstream's list without 5 foreign modules; nvshmem needs its own package.

    Two modules of core, of 10 units each, are not on that list.
    """
    answer = full("0.6.4", "120a", tmp_path)
    assert len(answer["modules"]) == 642 - 1 + 2
    assert kinds(answer) == {"cuda": 2620 - 1 + 20, "cxx": 17, "link": 643}
    assert {module["name"].rpartition("_")[2] for module in answer["excluded"]} == {"sm90", "nvshmem", "gen"}
    assert answer["missing"] == []
    assert names(full("0.6.4", "120a", tmp_path, profile=profile("0.6.4", "core"))) <= names(answer)


def test_full_of_0_7_2_holds_what_serves_sm120(tmp_path: Path) -> None:
    """Upstream's list is 566 modules without foreign ones; six of moe are not on it."""
    answer = full("0.7.2", "120f", tmp_path)
    assert len(answer["modules"]) == 566 - 2 + 6
    assert kinds(answer) == {"cuda": 2341 - 2 + 35, "cxx": 32, "link": 570}
    assert {module["name"] for module in answer["excluded"]} == {"dcp_lse_reduce", "fmha_cudnn_gen"}
    flags = Counter(word for unit in answer["units"] for word in unit["command"] if word.startswith("-gencode"))
    assert flags == {Arch.parse("120f").gencode: 2372, Arch.parse("120a").gencode: 2}
    moe = names(full("0.7.2", "120f", tmp_path, profile=profile("0.7.2", "moe")))
    assert len(moe) == 30
    assert moe <= names(answer)


def test_a_generated_module_less_changes_the_count(tmp_path: Path) -> None:
    """Counts come from upstream's own functions: one that makes nothing is missed."""
    options = tools.flashinfer().version("0.6.4").generator
    stubs = [{"call": "flashinfer.aot:gen_topk_module", "module": "norm"}]
    answer = full("0.6.4", "120a", tmp_path, options=options | {"stubs": stubs}, modules=["topk", "rope"])
    assert [module["name"] for module in answer["modules"]] == ["rope"]
    assert answer["missing"] == ["topk"]


def test_commands_are_those_that_ninja_would_run(tmp_path: Path) -> None:
    """But for the directory of Python's headers, which is left out."""
    names = ["norm", "fused_moe_120", "cake_sampling_*", "xqa_mla_*_16_*", "cudnn_frost_*"]
    answer = full("0.7.2", "120f", tmp_path, modules=names)
    assert answer["missing"] == []
    for module in answer["modules"]:
        file = tmp_path / "cached_ops" / module["name"] / "build.ninja"
        listed = subprocess.run(["ninja", "-f", file, "-t", "commands"], capture_output=True, text=True, check=True)
        expected = [without_python(shlex.split(line)) for line in listed.stdout.splitlines()]
        made = [unit["command"] for unit in answer["units"] if unit["module"] == module["name"]]
        assert sorted(expected) == sorted(made)


def without_python(command: list[str]) -> list[str]:
    pairs = [index for index, word in enumerate(command) if "include/python3" in word]
    return [word for index, word in enumerate(command) if index not in pairs and index + 1 not in pairs]


@pytest.mark.parametrize(("version", "code"), [("0.7.2", "120a"), ("0.7.2", "90a"), ("0.6.4", "120a")])
def test_every_name_of_the_profiles_can_be_made(tmp_path: Path, version: str, code: str) -> None:
    """`moe` holds `core`; the names that no list of upstream's holds are made from the name alone."""
    answer = full(version, code, tmp_path, profile=tools.profile(version, "moe"))
    assert answer["missing"] == []
    assert answer["excluded"] == []
    single = full(version, code, tmp_path, modules=["single_*_bf16_*_128_*"])
    assert {module["family"] for module in single["modules"]} == {"single_prefill", "single_decode"}


@pytest.mark.parametrize(("version", "code"), [("0.7.2", "120f"), ("0.7.2", "90a"), ("0.6.4", "120a")])
def test_the_stand_in_makes_what_the_real_torch_makes(tmp_path: Path, version: str, code: str) -> None:
    """The same specs, commands and generated sources, but for the environment's own path."""
    work = tmp_path / "work"
    results = []
    for python, torch in ((tools.locked_python(version), "standin"), (tools.torch_python(version), "installed")):
        options = tools.flashinfer().version(version).generator | {"torch": torch}
        answer = tools.ask(tools.request(version, code, work, options=options), python)
        text = json.dumps(answer).replace(str(python.parents[1]), "ENV")
        sources = {
            str(path): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in work.rglob("*")
            if path.suffix in (".cu", ".cpp", ".cuh", ".h", ".inc") and path.is_file()
        }
        results.append((text, sources))
        shutil.rmtree(work)
    assert results[0][0] == results[1][0]
    assert results[0][1] == results[1][1]
    assert len(results[0][1]) > 100


@pytest.mark.parametrize(
    ("version", "code", "capability"),
    [("0.7.2", "120f", "12.0"), ("0.7.2", "90a", "9.0"), ("0.6.4", "120a", "12.0"), ("0.6.4", "90a", "9.0")],
)
def test_core_holds_what_public_calls_ask_for(tmp_path: Path, version: str, code: str, capability: str) -> None:
    answer = full(version, code, tmp_path / "work", profile=tools.profile(version, "core"))
    held = {module["name"] for module in answer["modules"]}
    home = str(toolkit_home())
    done = subprocess.run(
        [tools.torch_python(version), ASK, capability, "13.0"],
        env={
            "PATH": f"{home}/bin:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "PYTHONPATH": str(tools.tree(version)),
            "PYTHONDONTWRITEBYTECODE": "1",
            "CUDA_HOME": home,
            "CUDA_PATH": home,
            "FLASHINFER_CUDA_ARCH_LIST": Arch.parse(code).dotted,
            "FLASHINFER_WORKSPACE_BASE": str(tmp_path),
            "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    said = json.loads(done.stdout)
    assert said["failed"] == {}
    assert len(said["asked"]) >= 40
    for call, names in said["asked"].items():
        assert set(names) <= held, call


def toolkit_home() -> Path:
    return tools.toolkit().home
