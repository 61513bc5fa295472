"""Strategy `auto`: from the facts of published wheels that lie beside the recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from packaging.version import Version

from smwheel import recipe, stack
from smwheel.arch import Arch
from smwheel.errors import RecipeError, UsageError
from smwheel.plan import resolve
from smwheel.strategy import Ground, decide
from smwheel.wheels import published, torchsymbols

if TYPE_CHECKING:
    from pathlib import Path

    from smwheel.recipe import Recipe, Strategy

SGL = recipe.load("sgl-kernel")
GPU = Arch.parse("120a")


def with_strategies(version: str, *strategies: Strategy, **changes: object) -> Recipe:
    data = SGL.version(version).model_copy(update={"strategies": list(strategies), **changes})
    return SGL.model_copy(update={"versions": {**SGL.versions, version: data}})


def test_a_wheel_that_fits_its_torch_is_cut_down() -> None:
    for name, torch in (("sglang-0.5.23", "2.14.1"), ("sglang-0.5.9", "2.9.1"), ("torch2.11-cu130", "2.11.0")):
        made = resolve(SGL, stack.load(name), Arch.parse("120"))
        assert made.strategy == "thin"
        assert made.why_strategy == (
            f"the published wheel holds sm_120a, and torch {torch} has every name that it asks for"
        )


def test_the_right_machine_code_for_another_torch_is_compiled() -> None:
    """0.3.21 holds sm_120a and pins nothing, and torch 2.10 still lacks two names that it asks for."""
    package = with_strategies("0.3.21", "thin", "compile")
    decision = decide(package, "0.3.21", Ground("2.10.0", Version("12.8")), GPU)
    assert decision.strategy == "compile"
    assert decision.why == (
        "the published wheel holds sm_120a, but torch 2.10.0 lacks 2 names that it asks for (c10::MessageLogger, "
        "c10::cuda::c10_cuda_check_implementation): it was built for torch 2.9.1"
    )


def test_where_it_cannot_be_compiled_the_other_version_is_named() -> None:
    package = with_strategies("0.3.21", "thin")
    with pytest.raises(UsageError, match=r"torch 2\.10\.0 lacks 2 names .* this recipe cannot compile it") as caught:
        decide(package, "0.3.21", Ground("2.10.0", Version("12.8")), GPU)
    assert caught.value.cure == "use the torch that it was built for: 2.9.1"
    with pytest.raises(UsageError, match="needs CUDA 12, not 13") as caught:
        decide(package, "0.3.21", Ground("2.14.1", Version("13.0")), GPU)
    assert caught.value.cure == "take sgl-kernel 0.4.10, which was built for torch 2.14.1"


def test_an_architecture_that_is_not_in_the_wheel() -> None:
    package = with_strategies("0.4.10", "thin", "compile")
    decision = decide(package, "0.4.10", Ground("2.14.1", Version("13.0")), Arch.parse("121a"))
    assert decision.why == "the published wheel holds no code for sm_121a"


def test_a_torch_that_nothing_is_known_of() -> None:
    package = with_strategies("0.4.10", "thin", "compile")
    later = decide(package, "0.4.10", Ground("2.14.9", Version("13.0")), GPU)
    assert (later.strategy, later.why) == ("thin", "the published wheel holds sm_120a, and was built for torch 2.14.1")
    other = decide(package, "0.4.10", Ground("2.12.0", Version("13.0")), GPU)
    assert other.strategy == "compile"
    assert "to know them: ci/make-torch-symbols 2.12.0" in other.why


def test_names_read_from_the_torch_itself_decide() -> None:
    package = with_strategies("0.4.10", "thin", "compile")
    symbols = torchsymbols.load("2.11.0", "13")
    assert decide(package, "0.4.10", Ground("2.14.1", Version("13.0"), symbols), GPU).strategy == "compile"


def test_without_recorded_facts_the_recipes_word_decides() -> None:
    thin = SGL.version("0.4.10").thin
    assert thin is not None
    package = with_strategies("0.4.10", "thin", "compile", thin=thin.model_copy(update={"published": ""}))
    assert decide(package, "0.4.10", Ground("2.14.1", Version("13.0")), GPU).strategy == "thin"
    assert decide(package, "0.4.10", Ground("2.11.0", Version("13.0")), GPU).strategy == "compile"


def test_stubbed_libraries_do_not_count() -> None:
    """flash_ops holds nothing for sm_120 and is replaced: what it asks of torch does not matter there."""
    thin = SGL.version("0.4.10").thin
    assert thin is not None
    facts = published.read(SGL.directory / thin.published)
    flash = next(library for library in facts.libraries if "flash_ops" in library.name)
    assert flash.serves(Arch.parse("90"))
    assert not flash.serves(GPU)
    assert flash.asks


def test_facts_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no facts of a published wheel") as caught:
        published.read(tmp_path / "missing.json")
    assert "ci/make-published-facts" in caught.value.cure
    (tmp_path / "wrong.json").write_text('{"file": "x"}')
    with pytest.raises(RecipeError, match="no facts of a published wheel"):
        published.read(tmp_path / "wrong.json")


@pytest.mark.parametrize(
    ("mangled", "plain"),
    [
        ("_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib", "c10::cuda::c10_cuda_check_implementation"),
        ("_ZNK2at10TensorBase14const_data_ptrIiLi0EEEPKT_v", "at::TensorBase::const_data_ptr"),
        ("_ZTVN5torch7LibraryE", "torch::Library"),
        ("plain_c_name", "plain_c_name"),
    ],
)
def test_names_as_people_read_them(mangled: str, plain: str) -> None:
    assert torchsymbols.readable(mangled) == plain
