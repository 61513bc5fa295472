"""Ask SGLang for every module that is claimed to be prebuilt, the way a server does, and say which it finds.

    ENV/bin/python check.py [--gpu 12.0] [SET…]

Runs in the environment that serves, after SGLang loaded its plugins, with compiling forbidden. Without SETs the
modules of the installed stores are asked for; a SET is the name of a shipped set or the path of a set file.
Where no GPU is, torch answers as one of the wanted capability: that proves lookup, content and loading, and no
kernel. Prints one JSON document; exits 0 only if something was asked for and all of it was found.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import sys
import time
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import fakegpu
from plugin import identity, store

HERE = Path(__file__).resolve().parent


def wanted(sets: list[str]) -> list[dict[str, Any]]:
    """Return the requests of set files, or of the installed stores if none is named."""
    if sets:
        paths = [Path(name) if "/" in name else HERE / "sets" / f"{name}.json" for name in sets]
        return [spec for path in paths for spec in json.loads(path.read_text(encoding="utf-8"))["specs"]]
    found = []
    for point in entry_points(group="sglang.srt.plugins"):
        package = store.package_directory(point.module)
        index = package / "store/index.json" if package else None
        if index and index.is_file():
            document = json.loads(index.read_text(encoding="utf-8"))
            found += [entry["request"] | {"gpus": [document["capability"]]} for entry in document["modules"].values()]
    return found


def ask(spec: dict[str, Any]) -> str:
    """Ask SGLang's own `load_jit` for one module; return why it is not there, or an empty string."""
    compile_package = importlib.import_module("sglang.kernels.jit.utils.compile")
    target_flags = importlib.import_module("sglang.kernels.jit.utils.arch").get_default_target_flags()
    roots = {name: store.package_directory(package) for name, package in store.ROOT_PACKAGES.items()}
    toolkit = importlib.import_module("sglang.kernels.jit.utils.compile.toolchain").cuda_home()
    places = {name: path for name, path in roots.items() if path} | {"toolkit": Path(toolkit)}
    fields = {name: identity.resolved(spec.get(name, []), places) for name in identity.FIELDS}
    try:
        module = compile_package.load_jit(
            *fields["module_args"],
            cpp_files=list(fields["cpp_files"]),
            cuda_files=list(fields["cuda_files"]),
            cpp_wrappers=[tuple(pair) for pair in fields["cpp_wrappers"]],
            cuda_wrappers=[tuple(pair) for pair in fields["cuda_wrappers"]],
            extra_cflags=list(fields["cflags"][len(compile_package.DEFAULT_CFLAGS) :]),
            extra_cuda_cflags=list(fields["cuda_cflags"][len(target_flags) :]),
            extra_ldflags=list(fields["ldflags"]),
            extra_include_paths=[
                str(path)
                for path in identity.resolved(spec.get("include_paths", []), places)
                if path not in compile_package.DEFAULT_INCLUDE
            ],
            header_only=spec.get("header_only", True),
        )
        for export, _ in (*fields["cpp_wrappers"], *fields["cuda_wrappers"]):
            getattr(module, export)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is the answer
        return str(error).splitlines()[0]
    return ""


def main() -> int:
    """Ask for everything and print the answer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpu", default="", help="compute capability to stand in for where no GPU is")
    parser.add_argument("sets", nargs="*")
    options = parser.parse_args()
    os.environ["SGLANG_CRASH_ON_JIT_COMPILE"] = "1"
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(message)s")
    specs = wanted(options.sets)
    torch = importlib.import_module("torch")
    real = torch.cuda.is_available()
    if real:
        capability = "{}.{}".format(*torch.cuda.get_device_capability())
    else:
        capability = options.gpu or next((gpu for spec in specs for gpu in spec.get("gpus", [])), "12.0")
        fakegpu.install(fakegpu.BOARD_OF[capability])
    importlib.import_module("sglang.srt.plugins").load_plugins()
    modules = []
    for spec in specs:
        if capability in spec.get("gpus", [capability]):
            start = time.perf_counter()
            problem = ask(spec)
            took = round((time.perf_counter() - start) * 1000, 1)
            modules.append({"module": "_".join(spec["module_args"]), "problem": problem, "milliseconds": took})
    missed = [entry for entry in modules if entry["problem"]]
    answer = {
        "capability": capability,
        "gpu": torch.cuda.get_device_name() if real else "none: torch answers as one",
        "asked": len(modules),
        "found": len(modules) - len(missed),
        "modules": modules,
    }
    print(json.dumps(answer, indent=1))
    return 0 if modules and not missed else 1


if __name__ == "__main__":
    sys.exit(main())
