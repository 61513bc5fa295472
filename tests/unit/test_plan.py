"""Resolving recipe × architecture × stack, fingerprints and version labels."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from smwheel import recipe, stack
from smwheel.arch import Arch, known
from smwheel.errors import ArchError, UsageError
from smwheel.plan import Host, Module, Plan, Unit, resolve, wheel_version

FLASHINFER = recipe.load("flashinfer")
DEFAULT = stack.load("sglang-0.5.23")
TORCH211 = stack.load("torch2.11-cu130")
CUDA128 = stack.load("torch2.10-cu128")


def test_120_is_what_the_recipe_says_by_version_and_cuda() -> None:
    assert resolve(FLASHINFER, DEFAULT, Arch.parse("120")).arch.code == "120f"
    assert resolve(FLASHINFER, TORCH211, Arch.parse("120")).arch.code == "120a"
    assert resolve(FLASHINFER, CUDA128, Arch.parse("120")).arch.code == "120a"


def test_120a_by_name_is_done_with_a_warning_of_what_is_not_found() -> None:
    resolution = resolve(FLASHINFER, DEFAULT, Arch.parse("120a"))
    assert resolution.arch.code == "120a"
    assert "fp4_quantization_120f" in resolution.warning


def test_120f_on_cuda_128_is_refused() -> None:
    with pytest.raises(ArchError, match=r"sm_120f needs CUDA 12\.9"):
        resolve(FLASHINFER, CUDA128, Arch.parse("120f"))


def test_an_architecture_the_package_has_nothing_for() -> None:
    with pytest.raises(ArchError) as caught:
        resolve(FLASHINFER, DEFAULT, Arch.parse("75"))
    assert "120" in caught.value.cure


def test_profiles() -> None:
    assert resolve(FLASHINFER, DEFAULT, Arch.parse("120")).profile == "core"
    assert resolve(FLASHINFER, DEFAULT, Arch.parse("120"), profile="full").profile == "full"
    assert resolve(FLASHINFER, DEFAULT, Arch.parse("120"), modules=("norm",)).profile == "custom"
    with pytest.raises(UsageError, match="no profile 'ful'"):
        resolve(FLASHINFER, DEFAULT, Arch.parse("120"), profile="ful")
    with pytest.raises(UsageError, match="goes with neither"):
        resolve(FLASHINFER, DEFAULT, Arch.parse("120"), profile="core", modules=("norm",))


def test_two_ways_to_choose_modules_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        resolve(FLASHINFER, DEFAULT, Arch.parse("120"), modules=("norm",), modules_from=tmp_path)
    with pytest.raises(UsageError, match="no file or directory") as caught:
        resolve(FLASHINFER, DEFAULT, Arch.parse("120"), modules_from=tmp_path / "no.log")
    assert "log" in caught.value.cure


def test_a_strategy_the_package_does_not_have() -> None:
    with pytest.raises(UsageError, match="strategy thin"):
        resolve(FLASHINFER, DEFAULT, Arch.parse("120"), strategy="thin")


def test_a_stack_without_the_recipe() -> None:
    with pytest.raises(UsageError, match="says no version of flashinfer"):
        resolve(FLASHINFER, stack.load("sglang-0.5.9"), Arch.parse("120"))


def make_plan(**changes: object) -> Plan:
    unit = Unit("m/a.o", "m", "m", "cuda", "a.cu", "", ("nvcc", "-c", "a.cu"), (), "/w/m/a.o")
    plan = Plan(
        resolution=resolve(FLASHINFER, DEFAULT, Arch.parse("120")),
        toolchain={"version": "13.0.88", "origin": "provisioned", "digest": "t"},
        environment="e",
        tree="t",
        generator="g",
        host=Host("gcc 12", "glibc 2.36", "", "fixed"),
        modules=(Module("m", "m", "/w/m/m.so", ("m/a.o",)),),
        units=(unit,),
        excluded=(),
        missing=(),
        notes=(),
    )
    return replace(plan, **changes)  # type: ignore[arg-type]


def test_the_fingerprint_covers_what_decides_the_bytes_and_nothing_else() -> None:
    plan = make_plan()
    assert plan.fingerprint == make_plan().fingerprint
    unit = plan.units[0]
    changed = [
        make_plan(tree="other"),
        make_plan(generator="other"),
        make_plan(environment="other"),
        make_plan(host=Host("gcc 13", "glibc 2.36", "", "fixed")),
        make_plan(host=Host("gcc 12", "glibc 2.36", "sha256:1", "fixed")),
        make_plan(toolchain=plan.toolchain | {"digest": "u"}),
        make_plan(units=(replace(unit, command=("nvcc", "-O3", "-c", "a.cu")),)),
        make_plan(resolution=resolve(FLASHINFER, DEFAULT, Arch.parse("120"), profile="full")),
    ]
    assert len({each.fingerprint for each in [plan, *changed]}) == len(changed) + 1
    assert make_plan(notes=("said",)).fingerprint == plan.fingerprint


LABELS = st.builds(
    lambda cuda, arch, profile, fingerprint: (cuda, arch, profile, fingerprint),
    st.sampled_from(["cu128", "cu129", "cu130", "cu132"]),
    st.sampled_from(known()),
    st.sampled_from(["core", "moe", "full", "custom", "thin", ""]),
    st.text("0123456789abcdef", min_size=64, max_size=64),
)


def label(cuda: str, arch: Arch, profile: str, fingerprint: str) -> str:
    return wheel_version("0.7.2", cuda=cuda, arch=arch, profile=profile, fingerprint=fingerprint)


@given(LABELS)
def test_a_label_is_a_harmless_version(parts: tuple[str, Arch, str, str]) -> None:
    version = Version(label(*parts))
    assert str(version) == label(*parts), "the file name, METADATA and the label are one text"
    assert version in SpecifierSet("==0.7.2")
    assert version in SpecifierSet(">=0.7.2")
    assert version > Version("0.7.2")
    assert version < Version("0.7.2.post1")
    assert version < Version("0.7.3.dev0")
    assert all(not part.isdigit() for part in (version.local or "").split("."))


@given(LABELS, LABELS)
def test_two_plans_never_share_a_label(one: tuple[str, Arch, str, str], two: tuple[str, Arch, str, str]) -> None:
    same = (one[0], one[1], one[2], one[3][:8]) == (two[0], two[1], two[2], two[3][:8])
    assert (label(*one) == label(*two)) is same


@pytest.mark.parametrize("profile", ["Core", "a_b", "1st", "a.b", "a b"])
def test_a_profile_name_that_is_no_label(profile: str) -> None:
    with pytest.raises(UsageError):
        label("cu130", Arch.parse("120f"), profile, "0" * 64)
