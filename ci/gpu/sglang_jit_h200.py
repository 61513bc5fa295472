"""Launch the sglang-jit modules of one wheel on this machine's GPU, where neither SGLang nor a network is.

    python ci/gpu/sglang_jit_h200.py CARRIED OUT [--at-least 12]

CARRIED holds the sglang-jit-cache wheel for this GPU and apache-tvm-ffi's wheel for this Python; OUT gets
`sglang-jit.json`. The GPU machine has torch (any with the CUDA major of the wheel): the modules do not link it.
What that proves is the kernels; that the plugin finds them needs SGLang and its own torch (check.py beside the
recipe). Exits 0 only if at least that many modules were launched and all agreed with torch.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

SMOKE = Path(__file__).resolve().parents[2] / "recipes/sglang-jit/smoke.py"


def main() -> int:
    """Unpack, launch, keep the answer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("carried", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--at-least", default="12")
    options = parser.parse_args()
    (wheel,) = options.carried.glob("sglang_jit_cache_*.whl")
    (tvm_ffi,) = options.carried.glob("apache_tvm_ffi-*.whl")
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder)
        for archive in (wheel, tvm_ffi):
            with zipfile.ZipFile(archive) as opened:
                opened.extractall(site)
        (store,) = site.glob("sglang_jit_cache_*/store")
        # tvm-ffi would otherwise compile a bridge to torch at its first import.
        environment = os.environ | {"PYTHONPATH": str(site), "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1"}
        done = subprocess.run(
            [sys.executable, str(SMOKE), "--store", str(store), "--at-least", options.at_least],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "sglang-jit.json").write_text(done.stdout, encoding="utf-8")
    print(done.stdout)
    print(f"wheel {wheel.name}: exit {done.returncode}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
