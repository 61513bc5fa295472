"""A small good wheel of GPU code for sm_120a, and changed copies of it for each thing that can be wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpufiles import region_for
from sofiles import make_so

from smwheel.arch import Arch
from smwheel.recipe import LoaderRule
from smwheel.verify import Expectations, Problem, Status, verify_wheel
from smwheel.wheels.wheelfile import write_wheel

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TAG = "cp310-abi3-manylinux_2_28_x86_64"
OPS = "ops/sm100/common_ops.abi3.so"
# A name that libc10.so of torch 2.14.1 exports, and one that only older releases have.
TORCH_NAME = "_ZNK3c105Error4whatEv"
OLD_TORCH_NAME = "_ZN3c104impl3cow23materialize_cow_storageERNS_11StorageImplE"

GOOD = Expectations(
    arch=Arch.parse("120a"),
    cuda="13.0",
    torch="2.14.1",
    recipe="ops",
    version="1.0",
    files=("ops/*",),
    required=("ops/*/common_ops.*",),
    loader=LoaderRule(pattern="common_ops.*", directories={"90": "ops/sm90", "*": "ops/sm100"}),
)


def ops(directory: Path, *codes: str, name: str = "common_ops.abi3.so", **changes: Any) -> Path:
    """A library with code for `codes` (`120a` if none) that uses torch as it should."""
    directory.mkdir(parents=True, exist_ok=True)
    made: dict[str, Any] = {
        "asks": [TORCH_NAME, "PyModule_Create2"],
        "needed": ["libtorch.so", "libc10.so", "libcudart.so.13", "libcuda.so.1"],
        "versions": {"GLIBC_2.14": "libc.so.6"},
        "fatbin": region_for(*(codes or ("120a",))),
    }
    return make_so(directory / name, **(made | changes))


def wheel(directory: Path, files: Sequence[tuple[str, Path | bytes]] = (), **changes: Any) -> Path:
    """A wheel of these files (the good library if none) that is right in everything else."""
    named = dict(files) or {OPS: ops(directory / "so")}
    made: dict[str, Any] = {
        "distribution": "ops",
        "version": "1.0+cu130.sm120a",
        "tags": [TAG],
        "files": ({"ops/__init__.py": b"import torch\n"} | named).items(),
        "headers": [("Requires-Dist", "torch==2.14.*")],
    }
    return write_wheel(directory / "wheels", **(made | changes))


def problems(path: Path, code: str, expect: Expectations = GOOD) -> list[Problem]:
    """Make all checks and return what the check `code` found; it fails if and only if it found something."""
    result = next(one for one in verify_wheel(path, expect).results if one.code == code)
    assert (result.status is Status.FAILED) == bool(result.problems), result
    return list(result.problems)


def failures(path: Path, expect: Expectations = GOOD) -> dict[str, str]:
    """Return the failed checks, by code, with their first problem as text."""
    verdict = verify_wheel(path, expect)
    return {one.code: str(one.problems[0]) for one in verdict.having(Status.FAILED)}
