"""A stack from an environment, and what is decided for each package there: already fine, thin, or compile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from environments import Place, kernels
from test_doctor_healthy import PUBLIC, with_flashinfer

from smwheel import recipe, stack
from smwheel.arch import Arch
from smwheel.builder import Wish, build_all, plan_all
from smwheel.errors import UsageError
from smwheel.pipeline import Options
from smwheel.plan import resolve
from smwheel.progress import Reporter

if TYPE_CHECKING:
    from pathlib import Path

GPU = Arch.parse("120")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "env")


def wish(place: Place) -> Wish:
    found = stack.load(f"from:{place.root}")
    return Wish(tuple(found.built_by_default), GPU, found)


def test_versions_are_those_of_the_environment(place: Place) -> None:
    with_flashinfer(place)
    place.install("sglang", "0.5.23", requires=["sglang-kernel==0.4.10", "flashinfer_python[cu13]==0.7.2"])
    found = stack.load(f"from:{place.root}")
    assert (found.torch, found.cuda, found.name) == ("2.14.1", "13.0", f"from:{place.root}")
    assert found.recipes == {"sgl-kernel": "0.4.10", "flashinfer": "0.7.2", "sglang-jit": "0.5.23"}
    assert found.built_by_default == ["sgl-kernel", "flashinfer"]


def test_what_fits_is_left_alone(place: Place, tmp_path: Path) -> None:
    with_flashinfer(place)
    place.install("sglang-kernel", "0.4.10", kernels("0.4.10", *PUBLIC), requires=["torch==2.14.1"])
    reasons = {name: wish(place).already_fine(name) for name in ("sgl-kernel", "flashinfer")}
    assert reasons == {
        "sgl-kernel": "sglang-kernel 0.4.10 is installed, holds sm_120a, and fits torch 2.14.1",
        "flashinfer": "flashinfer-jit-cache-sm120f 0.7.2+cu130.sm120f.core.p1a2b3c4d is installed, holds sm_120f, and "
        "fits torch 2.14.1",
    }
    options = Options(work=tmp_path / "work", wheelhouse=tmp_path / "house")
    result = build_all(wish(place), options, Reporter())
    assert (result.entries, result.failures, result.fine) == ([], {}, reasons)
    assert "sgl-kernel: nothing to make: sglang-kernel 0.4.10 is installed" in result.as_text()
    report = plan_all(wish(place), options, Reporter())[0]
    assert report.as_json()["already_fine"] == reasons["sgl-kernel"]
    assert "decision   nothing to make" in report.as_text()


def test_what_is_missing_or_made_for_another_gpu_is_made(place: Place) -> None:
    place.torch().install("sglang-kernel", "0.4.10", kernels("0.4.10", "80", "90a"), requires=["torch==2.14.1"])
    assert wish(place).already_fine("sgl-kernel") == ""
    assert wish(place).resolve("sgl-kernel").strategy == "thin"


def test_the_right_code_for_another_torch_is_not_fine(place: Place) -> None:
    place.torch().install("sglang-kernel", "0.4.10", kernels("0.4.5", "120a"), requires=["torch==2.14.1"])
    assert wish(place).already_fine("sgl-kernel") == ""


def test_a_strategy_by_name_is_carried_out_in_any_case(place: Place) -> None:
    place.torch().install("sglang-kernel", "0.4.10", kernels("0.4.10", *PUBLIC), requires=["torch==2.14.1"])
    found = stack.load(f"from:{place.root}")
    assert Wish(("sgl-kernel",), GPU, found, strategy="thin").already_fine("sgl-kernel") == ""


def test_the_version_made_for_the_torch_that_is_there(place: Place) -> None:
    place.torch().install("sgl-kernel", "0.3.21", kernels("0.3.21", "120a"))
    found = stack.load(f"from:{place.root}")
    assert found.recipes == {"sgl-kernel": "0.4.10"}
    assert found.notes == ("sgl-kernel 0.4.10 instead of 0.3.21: it is the one made for torch 2.14.1",)


def test_no_published_wheel_fits_the_torch_that_is_there(place: Place) -> None:
    place.torch("2.10.0", "12.8").install("sgl-kernel", "0.3.21", kernels("0.3.21", "120a"))
    found = stack.load(f"from:{place.root}")
    assert found.recipes == {"sgl-kernel": "0.3.21"}
    package = recipe.load("sgl-kernel")
    if "compile" in package.version("0.3.21").strategies:
        decision = resolve(package, found, GPU)
        assert decision.strategy == "compile"
        assert "torch 2.10.0 lacks 2 names that it asks for" in decision.why_strategy
    else:
        with pytest.raises(UsageError, match=r"torch 2\.10\.0 lacks 2 names .* cannot compile it"):
            resolve(package, found, GPU)


def test_a_version_that_no_recipe_knows(place: Place) -> None:
    place.torch().install("sglang-kernel", "0.4.10", kernels("0.4.10", "120a"))
    place.install("flashinfer-python", "0.5.0", {"flashinfer/__init__.py": b""})
    found = stack.load(f"from:{place.root}")
    assert found.recipes == {"sgl-kernel": "0.4.10"}
    assert found.notes == ("flashinfer 0.5.0 is wanted there, and the recipe knows 0.7.2, 0.6.4",)


def test_environments_that_give_no_stack(place: Place, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such directory"):
        stack.load(f"from:{tmp_path / 'missing'}")
    with pytest.raises(UsageError, match="no Python interpreter"):
        stack.load(f"from:{place.root}")
    place.install("six", "1.0")
    with pytest.raises(UsageError, match="has no torch"):
        stack.load(f"from:{Place(tmp_path / 'second').torch('2.13.0', '').remove('torch/*.py').root}")
    with pytest.raises(UsageError, match="without CUDA"):
        stack.load(f"from:{Place(tmp_path / 'third').torch('2.13.0', '').root}")
    with pytest.raises(UsageError, match="nothing that wheels could be made for"):
        stack.load(f"from:{Place(tmp_path / 'fourth').torch().root}")
