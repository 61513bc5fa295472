"""Compile the sglang-jit modules on a GPU machine with the recipe's own commands, and launch each against torch.

    .venv/bin/python ci/gpu/sglang_jit_h200.py prepare FOLDER [--arch 90]     # here
    python3 ci/gpu/sglang_jit_h200.py run FOLDER OUT [--at-least 12]          # there

`prepare` asks the generator for the units of every shipped set and puts them, SGLang's kernel sources and
apache-tvm-ffi's wheel for the other machine's Python into FOLDER (about 10 MB). `run` needs nvcc, a C++ compiler and
torch of any build there, and no network: the units differ from a build's in the toolkit's path alone. OUT gets
`sglang-jit.json`. That proves the kernels; that the plugin finds them needs SGLang (check.py beside the recipe).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SMOKE = ROOT / "recipes/sglang-jit/smoke.py"
LEFT_OUT = ("speculative_sampling",)  # wants FlashInfer's headers (hundreds of MB), and no case launches it
TVM_FFI = "apache-tvm-ffi==0.1.11"


def prepare(folder: Path, arch: str, python: str) -> None:
    """Write units.json, the generated and SGLang's own sources, and tvm-ffi's wheel into `folder`."""
    from smwheel import stack  # noqa: PLC0415  # not on the GPU machine
    from smwheel.arch import Arch  # noqa: PLC0415
    from smwheel.builder import Wish  # noqa: PLC0415
    from smwheel.pipeline import Options, make_site  # noqa: PLC0415
    from smwheel.progress import Reporter  # noqa: PLC0415

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    wish = Wish(("sglang-jit",), Arch.parse(arch), stack.load("sglang-0.5.23"), profile="full")
    with tempfile.TemporaryDirectory() as scratch:
        site = make_site(wish.resolve("sglang-jit"), Options(work=Path(scratch)), Reporter())
        answer = site.generator().modules(site.request())
        cuda, work = site.sandbox.inside(site.toolchain.home), site.sandbox.inside(site.work)
        modules = [module for module in answer.modules if module.family not in LEFT_OUT]
        kept = {module.name for module in modules}
        for name in kept:
            shutil.copytree(site.work / "modules" / name, folder / "modules" / name)
        units = [
            {
                "id": unit.id,
                "command": [word.replace(cuda, "<cuda>") for word in unit.command],
                "inputs": [path.removeprefix(f"{work}/") for path in unit.inputs],
            }
            for unit in answer.units
            if unit.module in kept
        ]
        kernels = site.tree.path / "sglang/kernels/jit"
        for part in ("csrc", "include"):
            shutil.copytree(kernels / part, folder / "anchors/kernels" / part)
    content = {
        "capability": Arch.parse(arch).capability,
        "modules": [{"name": m.name, "library": m.units[-1], "marker": _marker(m.name)} for m in modules],
        "units": units,
    }
    (folder / "units.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*pip, "--python-version", python, "--dest", str(folder), TVM_FFI], check=True)
    print(f"{len(modules)} modules, {len(units)} units in {folder}")


def _marker(name: str) -> list[str]:
    """Return the marker arguments of the module of this name, from the shipped sets."""
    for path in sorted((ROOT / "recipes/sglang-jit/sets").glob("*.json")):
        for spec in json.loads(path.read_text(encoding="utf-8"))["specs"]:
            if "_".join(spec["module_args"]) == name.rsplit("-", 1)[0]:
                return [str(argument) for argument in spec["module_args"]]
    raise SystemExit(f"no set holds {name}")


def run(folder: Path, out: Path, at_least: str) -> int:
    """Compile, launch, keep the answer; return the exit status."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    cuda = Path(nvcc).resolve().parents[1]
    content = json.loads((folder / "units.json").read_text(encoding="utf-8"))
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        shutil.copytree(folder / "modules", work / "modules")
        (work / "anchors").mkdir()
        (work / "anchors/kernels").symlink_to((folder / "anchors/kernels").resolve())
        (wheel,) = folder.glob("apache_tvm_ffi-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(work / "site")
        (work / "anchors/tvm_ffi").symlink_to(work / "site/tvm_ffi")
        begun = time.monotonic()
        failed = compile_all(content["units"], work, cuda)
        took = time.monotonic() - begun
        store = make_store(content, work)
        # tvm-ffi would otherwise compile a bridge to torch at its first import.
        environment = os.environ | {"PYTHONPATH": str(work / "site"), "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1"}
        done = subprocess.run(
            [sys.executable, str(SMOKE), "--store", str(store), "--at-least", at_least],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    version = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
    answer = {"nvcc": version, "compile_seconds": round(took, 1), "not_compiled": failed}
    answer |= json.loads(done.stdout or '{"problem": "smoke.py printed nothing"}')
    (out / "sglang-jit.json").write_text(json.dumps(answer, indent=1), encoding="utf-8")
    print(json.dumps(answer, indent=1))
    return done.returncode or bool(failed)


def compile_all(units: list[dict[str, Any]], work: Path, cuda: Path) -> dict[str, str]:
    """Run all units, objects before libraries, on all cores; return those that failed with their last line."""
    failed: dict[str, str] = {}

    def make(unit: dict[str, Any]) -> None:
        if any(path in failed for path in unit["inputs"]):
            return
        command = [word.replace("<cuda>", str(cuda)) for word in unit["command"]]
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            failed[unit["id"]] = (done.stderr.strip().splitlines() or ["no message"])[-1]

    for links in (False, True):
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(make, (unit for unit in units if bool(unit["inputs"]) == links)))
    return failed


def make_store(content: dict[str, Any], work: Path) -> Path:
    """Write an index of what was compiled, as a wheel's store has one, and return its directory."""
    modules = {}
    for module in content["modules"]:
        library = work / module["library"]
        if library.is_file():
            sha256 = hashlib.sha256(library.read_bytes()).hexdigest()
            request = {"module_args": module["marker"]}
            modules[module["name"]] = {"library": module["library"], "sha256": sha256, "request": request}
    index = {"capability": content["capability"], "modules": modules}
    (work / "index.json").write_text(json.dumps(index), encoding="utf-8")
    return work


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    preparing = commands.add_parser("prepare")
    preparing.add_argument("folder", type=Path)
    preparing.add_argument("--arch", default="90")
    preparing.add_argument("--python", default="3.12", help="Python version of the GPU machine")
    running = commands.add_parser("run")
    running.add_argument("folder", type=Path)
    running.add_argument("out", type=Path)
    running.add_argument("--at-least", default="12")
    options = parser.parse_args()
    if options.command == "prepare":
        prepare(options.folder, options.arch, options.python)
        return 0
    return run(options.folder, options.out, options.at_least)


if __name__ == "__main__":
    sys.exit(main())
