"""Make what `thin_run.py` needs on a machine with a Hopper GPU: small, so that it can be carried there.

    python ci/gpu/thin_prepare.py --wheel sglang_kernel-0.4.5-….whl --output DIR

DIR then holds the wheel thinned to 90, and small libraries compiled here by nvcc, each as linked and as thinned. Of
the wheel, FlashAttention is left out (212 MB), and what the loader opens on other GPUs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from dataclasses import replace
from pathlib import Path

from smwheel import recipe
from smwheel.arch import Arch
from smwheel.wheels import rules
from smwheel.wheels.cut import thin_file
from smwheel.wheels.thin import thin_wheel

GPU = Arch.parse("90")

# Each kernel says which code ran: 800, 900, 901 for sm_90a, …
KERNEL = """
#include <cuda_runtime.h>
#ifndef __CUDA_ARCH__
#define WHICH 0
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WHICH 901
#else
#define WHICH __CUDA_ARCH__
#endif
__constant__ int offset_{name} = {number};
__device__ int table_{name}[{words}] = {{{number}}};
__global__ void kernel_{name}(int *out) {{ *out = WHICH + offset_{name} + table_{name}[0] - {number}; }}
extern "C" int probe_{name}(int *result) {{
    int *place = nullptr;
    cudaError_t error = cudaMalloc(&place, sizeof(int));
    if (error == cudaSuccess) {{
        kernel_{name}<<<1, 1>>>(place);
        error = cudaGetLastError();
    }}
    if (error == cudaSuccess) error = cudaDeviceSynchronize();
    if (error == cudaSuccess) error = cudaMemcpy(result, place, sizeof(int), cudaMemcpyDeviceToHost);
    if (place) cudaFree(place);
    cudaGetLastError();
    return (int)error;
}}
"""

ALL = ("80", "90", "90a", "120a")
OTHERS = ("80", "120a")
# Library → (architectures of each of its units, flags, expected error or code of each unit on a GPU 9.0).
LIBRARIES: dict[str, tuple[list[tuple[str, ...]], list[str], list[tuple[int, int]]]] = {
    "static": ([ALL, ALL], [], [(0, 901), (0, 901)]),
    "shared": ([ALL, ALL], ["-cudart", "shared"], [(0, 901), (0, 901)]),
    "plain90": ([("80", "90", "120a")], [], [(0, 900)]),
    # 209: no kernel image is available for execution on the device.
    "empty": ([ALL, ("120a",)], [], [(0, 901), (209, 0)]),
    "compressed": ([ALL, ALL], ["--compress-mode=size"], [(0, 901), (0, 901)]),
    "rdc": ([ALL, ALL], ["-rdc=true"], [(0, 901), (0, 901)]),
    "rdc-shared": ([ALL, ALL], ["-rdc=true", "-cudart", "shared"], [(0, 901), (0, 901)]),
    "gold": ([ALL, ALL], ["-Xcompiler", "-fuse-ld=gold"], [(0, 901), (0, 901)]),
    "one-segment": ([ALL, ALL], ["-Xlinker", "-z", "-Xlinker", "noseparate-code"], [(0, 901), (0, 901)]),
}


def build(name: str, directory: Path) -> Path:
    """Compile and link one library."""
    units, flags, _ = LIBRARIES[name]
    work = directory / "work"
    work.mkdir(parents=True, exist_ok=True)
    objects = []
    for number, archs in enumerate(units):
        source = work / f"{name}{number}.cu"
        source.write_text(KERNEL.format(name=f"u{number}", number=number, words=4096))
        gencode = [Arch.parse(code).gencode for code in archs]
        target = source.with_suffix(".o")
        subprocess.run(["nvcc", "-c", "-O1", "-Xcompiler", "-fPIC", *gencode, *flags, "-o", target, source], check=True)
        objects.append(target)
    result = directory / f"{name}.so"
    # Linked by nvcc, every library gets a device-link step, which makes code for its own default unless it is told
    # the architectures; torch's extensions are linked by the host's compiler, and have none.
    link = [Arch.parse(code).gencode for code in ALL] if "-rdc=true" in flags else ["-nodlink"]
    subprocess.run(["nvcc", "-shared", *link, *flags, "-o", result, *objects], check=True)
    return result


def main() -> None:
    """Make everything, and `expected.json` that says what must come out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    expected = {}
    for name, (_, _, outcomes) in LIBRARIES.items():
        original = build(name, options.output)
        thinned = options.output / f"{name}-thinned.so"
        thinned.unlink(missing_ok=True)
        outcome = thin_file(original, thinned, GPU)
        expected[name] = {
            "method": outcome.method,
            "reason": outcome.reason,
            "sizes": [outcome.before, outcome.after],
            "outcomes": outcomes,
        }
        print(f"{name:<12} {outcome.method} {outcome.before} -> {outcome.after} {outcome.reason}")
    found = rules.recipe_of(options.wheel)
    base = rules.rules_for(*found, GPU) if found else rules.rules_for(recipe.load("sgl-kernel"), "0.4.5", GPU)
    drop = {**base.drop, "*/flash_ops.*": "too large to carry", "*/sm100/*": "not opened on the machine of the test"}
    report = thin_wheel(options.wheel, options.output, GPU, rules=replace(base, drop=drop))
    for file in report.files:
        print(f"{file.name}: {file.action} {file.before} -> {file.after}")
    (options.output / "expected.json").write_text(json.dumps(expected, indent=1))
    subprocess.run(["rm", "-rf", options.output / "work"], check=True)


if __name__ == "__main__":
    main()
