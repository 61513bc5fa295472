"""Ask FlashInfer for every module of the installed jit-cache wheels, and load what it finds, with compiling forbidden.

    ENV/bin/python check.py --gpu 12.0 [--arch 12.0f]

Where no GPU is, FlashInfer takes the architecture from its own variable. A module that wants the driver library is
found but cannot be loaded where there is no driver; that is said of it and is no failure. Speaks
docs/check-protocol.md.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

DRIVER = "libcuda.so.1"


def modules() -> dict[str, Path]:
    """Return the modules that the installed wheels hold: name → file."""
    import flashinfer_jit_cache  # noqa: PLC0415  # only after the environment is set

    if hasattr(flashinfer_jit_cache, "get_jit_cache_providers"):
        return {
            name: provider.jit_cache_dir / name / f"{name}.so"
            for provider in flashinfer_jit_cache.get_jit_cache_providers()
            for name in provider.modules
        }
    root = Path(flashinfer_jit_cache.get_jit_cache_dir())
    return {path.parent.name: path for path in root.glob("*/*.so")}


def ask(name: str, path: Path) -> dict[str, str]:
    """Ask FlashInfer for one module as its own functions do; `problem` is empty if it found and loaded this file."""
    import tvm_ffi  # noqa: PLC0415
    from flashinfer.jit import core  # noqa: PLC0415

    kind = getattr(core, "JitSpecNvcc", core.JitSpec)
    spec = kind(name, [], None, None, None, None)
    if not spec.is_aot:
        return {"module": name, "problem": "FlashInfer does not find it as compiled ahead of time"}
    if Path(spec.aot_path).resolve() != path.resolve():
        return {"module": name, "problem": f"FlashInfer takes {spec.aot_path} instead"}
    try:
        tvm_ffi.load_module(str(spec.aot_path))
    except Exception as error:  # noqa: BLE001  # whatever it is, it is the answer
        if DRIVER in str(error):
            return {"module": name, "problem": "", "not_loaded": f"wants {DRIVER}"}
        # The loader's own words come last: "libcudart.so.13: cannot open shared object file".
        return {"module": name, "problem": " ".join(str(error).split())[-300:]}
    return {"module": name, "problem": ""}


def main() -> int:
    """Ask for everything and print the answer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpu", required=True, help="compute capability, e.g. 12.0")
    parser.add_argument("--arch", default="", help="what FLASHINFER_CUDA_ARCH_LIST is set to; default: as --gpu")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ |= {
            "FLASHINFER_CUDA_ARCH_LIST": options.arch or options.gpu,
            "FLASHINFER_DISABLE_JIT": "1",
            "FLASHINFER_WORKSPACE_BASE": scratch,
            "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1",
        }
        held = modules()
        answers: list[dict[str, Any]] = [ask(name, path) for name, path in sorted(held.items())]
        absent = ask("smwheel_no_such_module", Path())
    found = sum(not answer["problem"] for answer in answers)
    print(
        json.dumps({
            "asked": len(answers),
            "found": found,
            "loaded": sum(not answer["problem"] and "not_loaded" not in answer for answer in answers),
            "absent_is_told": bool(absent["problem"]),
            "modules": answers,
        })
    )  # fmt: skip
    return 0 if answers and found == len(answers) and absent["problem"] else 1


if __name__ == "__main__":
    sys.exit(main())
