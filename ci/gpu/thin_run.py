"""Launch kernels of thinned files on a machine with a Hopper GPU, and compare their results.

    python3 ci/gpu/thin_run.py DIR [--out FILE]

DIR comes from `thin_prepare.py`. Needs torch 2.11 with CUDA 13 and nothing of smwheel. Everything is done twice, with
CUDA_MODULE_LOADING LAZY and EAGER, in fresh processes. Ends with 0 only if every check was made and passed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

BF16_LIMIT = 1e-2


def launch(library: str, units: int) -> list[tuple[int, int]]:
    """Return error and result of each unit's kernel."""
    import torch  # noqa: PLC0415  # brings libcudart.so.13 for libraries that link it

    torch.cuda.init()
    loaded = ctypes.CDLL(library)
    found = []
    for number in range(units):
        result = ctypes.c_int(0)
        error = getattr(loaded, f"probe_u{number}")(ctypes.byref(result))
        # The constant that each unit adds shows that its own data was loaded, too.
        found.append((error, result.value - number if error == 0 else 0))
    return found


def kernels(root: str) -> dict[str, float]:
    """Return the relative error of each kernel against torch; largest difference by largest value."""
    sys.path.insert(0, root)
    import sgl_kernel  # noqa: PLC0415
    import torch  # noqa: PLC0415

    torch.manual_seed(0)
    assert sgl_kernel.common_ops.__file__.startswith(root), sgl_kernel.common_ops.__file__  # noqa: S101
    found = {}

    def error(got: torch.Tensor, want: torch.Tensor) -> float:
        got, want = got.float(), want.float()
        return ((got - want).abs().max() / want.abs().max()).item() if torch.isfinite(got).all() else float("inf")

    x = torch.randn(64, 4096, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(4096, device="cuda", dtype=torch.bfloat16)
    norm = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6) * w.float()
    found["rmsnorm"] = error(sgl_kernel.rmsnorm(x, w, 1e-6), norm)

    first, second = x.float().chunk(2, dim=-1)
    found["silu_and_mul"] = error(sgl_kernel.silu_and_mul(x), torch.nn.functional.silu(first) * second)

    m, n, k = 128, 512, 1024
    scale_a = torch.rand(m, device="cuda") * 0.01 + 0.001
    scale_b = torch.rand(n, device="cuda") * 0.01 + 0.001

    def scaled(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a.double() @ b.double()).float() * scale_a.view(-1, 1) * scale_b.view(1, -1)

    a8 = torch.randint(-127, 128, (m, k), device="cuda", dtype=torch.int8)
    b8 = torch.randint(-127, 128, (n, k), device="cuda", dtype=torch.int8).t()
    found["int8_scaled_mm"] = error(sgl_kernel.int8_scaled_mm(a8, b8, scale_a, scale_b, torch.bfloat16), scaled(a8, b8))

    af = torch.randn(m, k, device="cuda").clamp(-448, 448).to(torch.float8_e4m3fn)
    bf = torch.randn(n, k, device="cuda").clamp(-448, 448).to(torch.float8_e4m3fn).t()
    found["fp8_scaled_mm"] = error(sgl_kernel.fp8_scaled_mm(af, bf, scale_a, scale_b, torch.bfloat16), scaled(af, bf))

    quantised = torch.empty_like(x, dtype=torch.float8_e4m3fn)
    scales = torch.empty(x.shape[0], 1, device="cuda", dtype=torch.float32)
    sgl_kernel.sgl_per_token_quant_fp8(x, quantised, scales)
    want_scales = x.float().abs().amax(-1, keepdim=True) / 448
    found["per-token fp8: scales"] = error(scales, want_scales)
    # By torch's own rounding; one step of fp8 where a tie was rounded the other way is 1/16 of the value.
    want = (x.float() / want_scales).clamp(-448, 448).to(torch.float8_e4m3fn).float()
    differing = (quantised.float() != want).float().mean().item()
    found["per-token fp8: values that differ"] = differing
    found["per-token fp8: dequantised"] = error(quantised.float() * scales, want * want_scales)
    torch.cuda.synchronize()
    return found


def fresh(mode: str, *arguments: str) -> object:
    """Run this file in a fresh process with a way of loading modules; return what it printed, or its error."""
    environment = {**os.environ, "CUDA_MODULE_LOADING": mode}
    command = [sys.executable, __file__, *arguments]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = run.stdout.strip().splitlines()
    if run.returncode or not lines:
        return f"exit status {run.returncode}: {run.stderr.strip()[-1500:]}"
    return json.loads(lines[-1])


def check(directory: Path) -> dict[str, object]:
    """Make every check; the result's `passed` says whether all did."""
    expected = json.loads((directory / "expected.json").read_text())
    failed: list[str] = []
    launches: dict[str, object] = {}
    numerics: dict[str, object] = {}
    for mode in ("LAZY", "EAGER"):
        for name, wanted in expected.items():
            for file in (f"{name}.so", f"{name}-thinned.so"):
                got = fresh(mode, "--launch", str((directory / file).resolve()), str(len(wanted["outcomes"])))
                launches[f"{file} {mode}"] = got
                if got != wanted["outcomes"]:
                    failed.append(f"{file} {mode} ({wanted['method']}): {got}, not {wanted['outcomes']}")
        with tempfile.TemporaryDirectory() as root:
            (wheel,) = directory.glob("*.whl")
            zipfile.ZipFile(wheel).extractall(root)
            found = fresh(mode, "--kernels", root)
        numerics[mode] = found
        if not isinstance(found, dict) or len(found) < 7:
            failed.append(f"kernels {mode}: {found}")
        else:
            failed += [f"{name} {mode}: error {value}" for name, value in found.items() if not value <= BF16_LIMIT]
    return {"passed": not failed, "failed": failed, "launches": launches, "numerics": numerics}


def main() -> int:
    """Run; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", nargs="?", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--launch", nargs=2, metavar=("LIBRARY", "UNITS"))
    parser.add_argument("--kernels", metavar="ROOT")
    options = parser.parse_args()
    if options.launch:
        print(json.dumps(launch(options.launch[0], int(options.launch[1]))))
        return 0
    if options.kernels:
        print(json.dumps(kernels(options.kernels)))
        return 0
    result = check(options.directory)
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text)
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
