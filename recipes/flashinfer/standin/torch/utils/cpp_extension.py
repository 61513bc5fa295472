"""The two questions about the host compiler that FlashInfer asks torch."""

from __future__ import annotations

import os
import subprocess

from torch._placeholder import getattr_for

CUDA_HOME = None


def get_cxx_compiler() -> str:
    """Return the C++ compiler's name: $CXX or c++."""
    return os.environ.get("CXX", "c++")


def check_compiler_is_gcc(compiler: str) -> bool:
    """Return whether the compiler says that it is GCC."""
    try:
        answer = subprocess.run([compiler, "-v"], capture_output=True, text=True, check=False)
    except OSError:
        return False
    return "gcc version" in answer.stderr


__getattr__ = getattr_for(__name__)
