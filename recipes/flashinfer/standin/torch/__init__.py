"""A stand-in for torch: just enough to import FlashInfer and run its generators.

The generators want torch for data types and for one ABI flag, not for tensors; this package saves the download
of gigabytes. It computes nothing. Names that it does not know exist as placeholders, so that annotations, base
classes and decorators work; calling a placeholder raises. That the specs and commands made with it equal those
made with the real torch is tested (`tests/integration/test_flashinfer_standin.py`).
"""

from __future__ import annotations

import sys

from torch._placeholder import Finder, dtype, getattr_for

sys.meta_path.append(Finder())

from torch import _C, cuda, library, utils, version  # noqa: E402  # the finder must be there first

__version__ = version.__version__

_ITEM_SIZES = {
    "bool": 1,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1,
    "complex64": 8,
    "complex128": 16,
}
globals().update({name: dtype(name, size) for name, size in _ITEM_SIZES.items()})
half, float, double = (globals()[name] for name in ("float16", "float32", "float64"))  # noqa: A001
short, int, long = (globals()[name] for name in ("int16", "int32", "int64"))  # noqa: A001


_LARGEST = {
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
    "float32": 3.4028234663852886e38,
    "float64": 1.7976931348623157e308,
    "float8_e4m3fn": 448.0,
    "float8_e5m2": 57344.0,
}


class finfo:  # noqa: N801  # torch's own spelling
    """The largest finite value of a floating-point type, and its negative."""

    def __init__(self, of: dtype) -> None:
        self.max = _LARGEST[of.name]
        self.min = -self.max


class Tensor:
    """A constant that some module makes when it is imported and no generator reads."""


def tensor(_data: object, **_options: object) -> Tensor:
    """Return an empty constant."""
    return Tensor()


def compile(function: object = None, **_options: object) -> object:  # noqa: A001
    """Return the function as it is: nothing is compiled."""
    return function if function is not None else lambda later: later


def _decorator_factory(*_args: object, **_options: object) -> object:
    """Return a decorator that leaves the function as it is."""
    return lambda function: function


no_grad = inference_mode = _decorator_factory


def is_tensor(_value: object) -> bool:
    """Return False: there are no tensors."""
    return False


__getattr__ = getattr_for(__name__)
__all__ = ["_C", "__version__", "compile", "cuda", "dtype", "is_tensor", "library", "utils", "version"]
