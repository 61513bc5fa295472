"""Whose a shared library is, by its SONAME: the C library's, torch's, CUDA's, the driver's, or the system's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

Owner = Literal["libc", "torch", "cuda", "driver", "other"]

# What every system that a manylinux tag allows brings: the C library, the compiler's run time, the C++ library.
_LIBC = re.compile(
    r"(libc|libm|libmvec|libdl|librt|libpthread|libutil|libanl|libresolv|libnsl|libgcc_s|libstdc\+\+|libatomic"
    r"|ld-linux-x86-64|ld-linux-aarch64)\.so\.\d+"
)
_TORCH = re.compile(r"lib(torch\w*|c10\w*|shm)\.so")
_DRIVER = re.compile(r"lib(cuda|nvidia-ml|nvidia-ptxjitcompiler|cudadebugger)\.so\.\d+")
# Libraries of the CUDA toolkit and of NVIDIA's packages beside it.
_CUDA = re.compile(
    r"lib(cudart|cublas|cublasLt|nvblas|nvrtc|nvrtc-builtins|nvJitLink|cufft|curand|cusparse|cusparseLt|cusolver"
    r"|cusolverMg|cufile|cupti|nvToolsExt|cudnn\w*|nccl|nvshmem_host|nvfatbin)\.so\.\d+"
)
# Of these the number in the name is the CUDA major; others (cuFFT, cuSPARSE, …) count for themselves.
_NUMBERED_BY_CUDA = re.compile(r"lib(?:cudart|cublas|cublasLt|nvrtc|nvrtc-builtins|nvJitLink)\.so\.(\d+)")


def owner(soname: str) -> Owner:
    """Return whose library it is."""
    for name, pattern in (("libc", _LIBC), ("torch", _TORCH), ("cuda", _CUDA), ("driver", _DRIVER)):
        if pattern.fullmatch(soname):
            return name  # type: ignore[return-value]  # one of the literals above
    return "other"


def cuda_majors(sonames: Iterable[str]) -> set[int]:
    """Return the CUDA majors that libraries of these names belong to."""
    return {int(match[1]) for name in sonames if (match := _NUMBERED_BY_CUDA.fullmatch(name))}
