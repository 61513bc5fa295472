"""Feed the fat-binary parser mutated files: each must give regions or MalformedError, soon and in little memory.

    python ci/fuzz_fatbin.py [--inputs 1000000] [--seed 1]

Ends with 1 and the input's seed if anything else comes out. The tests run a few thousand of these.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "unit"))

import gpufiles

from smwheel.errors import MalformedError
from smwheel.wheels import fatbin

SLOW_SECONDS = 1.0


def seeds() -> list[bytes]:
    """Return the valid files that mutations start from: small, so that most of their bytes matter."""
    ptx = gpufiles.entry("90", b".version 8.5\n" * 8, kind=gpufiles.PTX, compress="zstd", header_size=104)
    cubin = gpufiles.entry("120a", b"cubin" * 20, compress="lz4", header_size=120)
    ir = gpufiles.entry("120", b"ir" * 10, kind=gpufiles.LTOIR, flags=0x18000)
    plain = gpufiles.region_for("80", "90a", "120f")
    mixed = gpufiles.region(ptx, cubin, ir)
    return [plain, mixed, gpufiles.elf_with(plain, mixed), gpufiles.elf_with(mixed, relocatable=plain)]


def main() -> int:
    """Run; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    start = time.monotonic()
    outcomes: Counter[str] = Counter()
    files = seeds()
    for number in range(options.inputs):
        seed = options.seed * 1_000_000_007 + number
        source = random.Random(seed)  # noqa: S311
        data = gpufiles.mutate(source, source.choice(files))
        before = time.process_time()
        try:
            for region in fatbin.read_regions(data, where="mutated"):
                for entry in region.entries:
                    fatbin.read_payload(data, entry, where="mutated")
            outcomes["read"] += 1
        except MalformedError as error:
            outcomes[error.message.partition(" of ")[0].partition(":")[0][:40].strip("0123456789 ")] += 1
        except BaseException as error:  # noqa: BLE001
            print(f"seed {seed}: {type(error).__name__}: {error}")
            return 1
        if time.process_time() - before > SLOW_SECONDS:
            print(f"seed {seed}: took {time.process_time() - before:.1f} s")
            return 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{options.inputs} inputs in {time.monotonic() - start:.0f} s, at most {peak} MiB of memory")
    print(f"{outcomes['read']} read, {options.inputs - outcomes['read']} refused, {len(outcomes) - 1} reasons")
    return 0


if __name__ == "__main__":
    sys.exit(main())
