"""Sets of real units to measure schedules with: packed once from a plan, then built anywhere that has nvcc.

    python benchmarks/governor_set.py pack BUNDLE.tar.xz       # needs the network; smwheel makes the plan

The bundle holds what the compilers read (sources, headers), ninja, and `units.json`: each unit's command, with
`{root}` for where the bundle is unpacked and `{cuda}` for the toolkit, and what it cost when it was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "src"))

from smwheel.governor.bound import lower_bound  # noqa: E402  # found through the line above, without an installation
from smwheel.governor.ledger import Build, Ledger  # noqa: E402
from smwheel.governor.limits import GIB, MIB, measure  # noqa: E402
from smwheel.governor.prediction import PRIOR, Prediction, Source  # noqa: E402
from smwheel.governor.session import Governor  # noqa: E402

ATTENTION = "dtype_q_bf16_dtype_kv_bf16_dtype_o_bf16"
HEADS = "head_dim_qk_128_head_dim_vo_128_posenc_0_use_swa_False_use_logits_cap_False"
MODULES = (
    *("fp4_gemm_cutlass_sm120", "gemm_sm120", "norm", "rope", "page", "sampling", "topk", "cascade", "quantization"),
    "silu_and_mul",
    f"single_decode_with_kv_cache_{ATTENTION}_{HEADS}",
    f"batch_decode_with_kv_cache_{ATTENTION}_dtype_idx_i32_{HEADS}",
    f"single_prefill_with_kv_cache_{ATTENTION}_{HEADS}_f16qk_False",
    f"batch_prefill_with_kv_cache_{ATTENTION}_dtype_idx_i32_{HEADS}_f16qk_False",
)
PLAN = ["plan", "flashinfer", "--arch", "120", "--stack", "torch2.11-cu130", "--json"]

# Half heavy, half light work, about 370 CPU seconds; two heavy ones do not fit into 7 GiB together.
SMALL = (
    "fp4_gemm_cutlass_sm120/fp4_gemm_cutlass___nv_bfloat16_128_128_128",
    "gemm_sm120/gemm_groupwise_e4m3_bf16_majortrue_sm120",
    "gemm_sm120/group_gemm_fp8_groupwise_e4m3_bf16_majortrue_sm120",
    *("norm/norm", "norm/flashinfer_norm_binding", "rope/rope", "rope/flashinfer_rope_binding", "page/page"),
    *("page/flashinfer_page_binding", "sampling/renorm", "sampling/flashinfer_sampling_binding"),
    *("cascade/cascade", "cascade/flashinfer_cascade_binding", "quantization/quantization"),
    *("quantization/flashinfer_quantization_binding", "silu_and_mul/silu_and_mul", "topk/topk"),
)
SMALL_LIMIT = 7 * GIB
HEAVY = 2 * GIB
UPSTREAM_BYTES_A_JOB = 8 * GIB
BUILD = Build("benchmark", "1", "120a", "nvcc")


@dataclass(frozen=True)
class Unit:
    """One unit of the bundle; `cpu` seconds and `peak` bytes as measured before, 0 for a link."""

    id: str
    command: list[str]
    inputs: list[str]
    output: str
    cpu: float
    peak: int


def pack(bundle: Path) -> None:
    """Plan the modules, and pack what their units read."""
    from smwheel.governor.ledger import predict_from_rows, read_costs_tsv  # noqa: PLC0415
    from smwheel.governor.prediction import MARGIN  # noqa: PLC0415
    from smwheel.paths import cache_dir, data_dir  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="smwheel-pack-") as work:
        program = [str(Path(sys.executable).parent / "smwheel"), *PLAN, "--modules", ",".join(MODULES), "--work", work]
        plan = json.loads(subprocess.run(program, check=True, capture_output=True).stdout)["plans"][0]
        rows = read_costs_tsv(data_dir() / "recipes" / "flashinfer" / "costs.tsv")
        tree = _tree(cache_dir() / "trees", plan["version"])
        environment = next((cache_dir() / "environments").glob(f"*-{plan['requirements'][:16]}"))
        ffi = next(environment.glob("lib/python*/site-packages/tvm_ffi"))
        places = {
            "/srv/smwheel/cuda": "{cuda}",
            "/srv/smwheel/tree": "{root}/tree",
            "/srv/smwheel/work": "{root}/work",
            f"/srv/smwheel/env/{ffi.relative_to(environment)}": "{root}/tvm_ffi",
        }
        units = []
        for one in plan["units"]:
            name = f"{one['module']}/{Path(one['source']).name}"
            said = predict_from_rows(rows, version=plan["version"], names=[name], family=one["family"], arch="120a")
            link = one["kind"] == "link"
            cost = (0.0, 0) if link else (said.seconds, int(said.peak_bytes / MARGIN[said.source]))
            placed = [_placed(word, places) for word in one["command"]]
            inputs = [_placed(word, places) for word in one["inputs"]]
            units.append(Unit(one["id"], placed, inputs, _placed(one["output"], places), *cost))
        (Path(work) / "units.json").write_text(json.dumps([asdict(unit) for unit in units]))
        bundle.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(bundle, "w:xz") as archive:
            archive.add(Path(work) / "units.json", "units.json")
            archive.add(_ninja(), "ninja")
            archive.add(ffi / "include", "tvm_ffi/include")
            for part in ("include", "csrc", "3rdparty/cutlass/include", "3rdparty/cutlass/tools/util/include"):
                archive.add(tree / part, f"tree/{part}")
            archive.add(tree / "3rdparty/spdlog/include", "tree/3rdparty/spdlog/include")
            for path in sorted({place for unit in units for place in unit.command if "/generated/" in place}):
                inside = Path(path.removeprefix("{root}/work/"))
                archive.add(Path(plan["work"]) / inside.parent, f"work/{inside.parent}")
    print(f"{bundle}: {bundle.stat().st_size / MIB:.1f} MiB, {len(units)} units")


def _placed(text: str, places: dict[str, str]) -> str:
    for real, place in places.items():
        text = text.replace(real, place)
    return text


def _tree(trees: Path, version: str) -> Path:
    for tree in sorted(trees.iterdir()):
        information = tree / "PKG-INFO"
        if information.is_file() and f"\nVersion: {version}\n" in information.read_text(errors="replace"):
            return tree
    sys.exit(f"no unpacked tree of version {version} in {trees}")


def _ninja() -> Path:
    return Path(sys.executable).parent / "ninja"


def unpack(bundle: Path, root: Path) -> list[Unit]:
    """Unpack a bundle; return its units."""
    with tarfile.open(bundle) as archive:
        archive.extractall(root, filter="data")
    return [Unit(**unit) for unit in json.loads((root / "units.json").read_text())]


def subset(units: list[Unit], names: tuple[str, ...]) -> list[Unit]:
    """Return the named compilations of a set, without links."""
    found = [unit for unit in units if unit.id.removesuffix(".cuda.o") in names]
    if len(found) != len(names):
        sys.exit(f"the bundle lacks units: {set(names) - {unit.id.removesuffix('.cuda.o') for unit in found}}")
    return found


def quarter(units: list[Unit]) -> list[Unit]:
    """Return all light compilations of a set and each fifth heavy one: the same mix, in a quarter of the time."""
    heavy = [unit for unit in units if unit.peak >= HEAVY]
    return [unit for unit in units if 0 < unit.peak < HEAVY] + heavy[::5]


def write_ninja(units: list[Unit], root: Path, cuda: Path, prefix: dict[str, list[str]]) -> Path:
    """Write the build file, with what stands before each unit's command; objects go below `root`."""
    lines = ["rule unit", "  command = $run"]
    for unit in units:
        words = [word.replace("{root}", str(root)).replace("{cuda}", str(cuda)) for word in unit.command]
        inputs = " ".join(place.replace("{root}", str(root)) for place in unit.inputs)
        output = unit.output.replace("{root}", str(root))
        Path(output).parent.mkdir(parents=True, exist_ok=True)
        lines.append(f"build {output}: unit {inputs}")
        lines.append(f"  run = {shlex.join([*prefix.get(unit.id, []), *words]).replace('$', '$$')}")
    path = root / "build.ninja"
    path.write_text("\n".join(lines) + "\n")
    return path


def build(
    units: list[Unit], root: Path, *, cuda: Path, mode: str, limit: int, window: float, ledger: Path | None
) -> dict[str, Any]:
    """Build the units one way, for `window` seconds at most; return what came of it.

    Modes: `cold` (the governor, knowing nothing), `warm` (the governor, from what was measured before), `ninja`
    (its default, cores + 2), `formula` (upstream's: a job for each 8 GiB).
    """
    limits = measure(limit)
    began = time.monotonic()
    result: dict[str, Any] = {"mode": mode, "limit_mib": limit // MIB, "cpus": limits.cpus}
    if mode in ("cold", "warm"):
        governor = Governor(
            limits,
            {unit.id: _known(unit, mode, ledger) for unit in units},
            root,
            families={unit.id: unit.id.split("/")[0] for unit in units},
            ledger=ledger,
            build=BUILD,
        )
        with governor:
            prefix = {unit.id: governor.launcher_command(unit.id) for unit in units}
            code = _run_ninja(root, write_ninja(units, root, cuda, prefix), governor.ninja_jobs, window)
            wall = time.monotonic() - began
        assert governor.summary is not None
        result |= {"jobs": governor.ninja_jobs, "budget_mib": governor.budget // MIB}
        result |= {"governor": governor.summary.as_json(), "kills": governor.summary.kills}
    else:
        jobs = limits.cpus + 2 if mode == "ninja" else max(1, limit // UPSTREAM_BYTES_A_JOB)
        code = _run_ninja(root, write_ninja(units, root, cuda, {}), jobs, window)
        wall = time.monotonic() - began
        result["jobs"] = jobs
    done = _finished(units, root)
    bound = lower_bound([(unit.peak, unit.cpu) for unit in units], budget=limits.budget, cores=limits.cpus)
    return result | {
        "code": code,
        "wall_s": round(wall, 1),
        "done": len(done),
        "units": len(units),
        "cpu_done_s": round(sum(unit.cpu for unit in done), 1),
        "cpu_all_s": round(sum(unit.cpu for unit in units), 1),
        "table_bound_s": round(bound.seconds, 1),
    }


def _known(unit: Unit, mode: str, ledger: Path | None) -> Prediction:
    if mode == "warm" and ledger is not None and ledger.is_file():
        return Ledger(ledger).predict(*_key(unit))
    if mode == "warm" and unit.peak:
        return Prediction.of(unit.peak, unit.cpu, Source.SAME)
    return PRIOR


def _key(unit: Unit) -> tuple[str, str, str, str, str, str, str]:
    return (BUILD.recipe, BUILD.version, unit.id, unit.id.split("/")[0], BUILD.arch, BUILD.toolkit, BUILD.flags)


def _run_ninja(root: Path, file: Path, jobs: int, window: float) -> int | None:
    """Run ninja; return its exit code, None if the window closed before it ended."""
    with (root / "ninja.log").open("wb") as log:
        process = subprocess.Popen(
            [root / "ninja", "-C", root, "-f", file, f"-j{jobs}"], stdout=log, stderr=log, start_new_session=True
        )
        try:
            return process.wait(window)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)
            process.wait()
            return None


def _finished(units: list[Unit], root: Path) -> list[Unit]:
    log = root / ".ninja_log"
    outputs = {line.split("\t")[3] for line in log.read_text().splitlines()[1:]} if log.is_file() else set()
    return [unit for unit in units if unit.output.replace("{root}", str(root)) in outputs]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("action", choices=["pack"])
    parser.add_argument("bundle", type=Path)
    pack(parser.parse_args().bundle)
