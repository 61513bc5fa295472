# ruff: noqa: N999  # torch has a module of this name
"""The one flag that FlashInfer's generators read: all torch since 2.7 is built with the C++11 ABI."""

from torch._placeholder import getattr_for

_GLIBCXX_USE_CXX11_ABI = True
__getattr__ = getattr_for(__name__)
