"""Launch the prebuilt kernels on this machine's GPU and compare each with torch.

    ENV/bin/python smoke.py [--store DIRECTORY] [--at-least N]

The environment needs torch with CUDA and apache-tvm-ffi; SGLang is not asked, so a store can be proven on a GPU
where the server's own versions are not installed. Without --store the installed sglang-jit-cache packages are
taken. Prints one JSON document; exits 0 only if at least N modules were launched and all agreed with torch.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import cases
import marlin  # noqa: F401  # its cases register themselves
import torch
import tvm_ffi
from plugin import identity, store


def stores(given: Path | None) -> list[Path]:
    """Return the directories of the stores to launch."""
    if given is not None:
        return [given]
    packages = [store.package_directory(point.module) for point in entry_points(group="sglang.srt.plugins")]
    found = [package / "store" for package in packages if package is not None]
    return [path for path in found if (path / "index.json").is_file()]


def load(directory: Path) -> list[tuple[list[str], Any]]:
    """Return the marker arguments and the loaded module of every library of a store for this GPU."""
    index = json.loads((directory / "index.json").read_text(encoding="utf-8"))
    capability = "{}.{}".format(*torch.cuda.get_device_capability())
    if index["capability"] != capability:
        return []
    loaded = []
    for entry in index["modules"].values():
        library = directory / entry["library"]
        if identity.digest(library) != entry["sha256"]:
            raise SystemExit(f"{library} is not the file that was built")
        loaded.append((entry["request"]["module_args"], tvm_ffi.load_module(str(library))))
    return loaded


def outcome(name: str, pairs: Iterator[cases.Pair]) -> dict[str, Any]:
    """Run one case; return what was compared, how far apart, and what went wrong."""
    compared: dict[str, float] = {}
    problem = ""
    try:
        for pair in pairs:
            torch.cuda.synchronize()
            compared[pair.what] = pair.error
            if pair.error > pair.relative:
                problem = problem or f"{pair.what}: apart by {pair.error:.2g}, allowed is {pair.relative:.2g}"
    except Exception as error:  # noqa: BLE001  # whatever it is, it is the answer
        problem = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    if not compared and not problem:
        problem = "nothing was compared"
    return {"module": name, "problem": problem, "compared": {k: float(f"{v:.3g}") for k, v in compared.items()}}


def run(loaded: list[tuple[list[str], Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Run the case of every module; return the outcomes, and the modules that no case launches."""
    results, without = [], []
    for marker, module in loaded:
        name = "_".join(marker)
        if marker[0] not in cases.CASES:
            without.append(name)
            continue
        torch.manual_seed(0)
        results.append(outcome(name, cases.CASES[marker[0]](module, marker)))
    return results, without


def main() -> int:
    """Launch and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", type=Path)
    parser.add_argument("--at-least", type=int, default=1)
    options = parser.parse_args()
    loaded = [entry for directory in stores(options.store) for entry in load(directory)]
    results, without = run(loaded)
    failed = [entry for entry in results if entry["problem"]]
    launched = len(loaded) - len(without)
    answer = {
        "gpu": torch.cuda.get_device_name(),
        "capability": "{}.{}".format(*torch.cuda.get_device_capability()),
        "torch": torch.__version__,
        "modules": len(loaded),
        "launched": launched,
        "failed": len(failed),
        "no_case": without,
        "results": results,
    }
    print(json.dumps(answer, indent=1))
    return 0 if launched >= options.at_least and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
