"""Make the shipped sets: what models.toml asks for on every board of fakegpu.py.

    python make_sets.py ENV/bin/python [DIRECTORY]

Runs propose.py in that environment, once a board, and writes `sets/*.json`. Requests that are the same on all
GPUs carry no `gpus`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import fakegpu

HERE = Path(__file__).resolve().parent
SUMMARIES = {
    "base": "asked for by every model: positions, activations, norms",
    "gqa-bf16": "grouped-query attention in bf16: stores of K and V, rotary embedding, norms of Q and K",
    "mla": "latent attention of Kimi and DeepSeek: stores, concatenations, router",
    "int4-marlin": "four-bit weights (GPTQ, AWQ, compressed-tensors) through Marlin, dense and experts",
    "fp8": "FP8 weights: activation quantization and, on 12.0, the block-scaled GEMM",
    "eagle3": "EAGLE-3 speculation: the draft tree and acceptance",
}


def main(python: str, directory: str = str(HERE / "sets")) -> None:
    """Write every set file."""
    models = tomllib.loads((HERE / "models.toml").read_text(encoding="utf-8"))["model"]
    version, unbuildable = "", []
    sets: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in SUMMARIES}
    for board in fakegpu.BOARDS:
        answer = ask(python, {"models": models, "board": board})
        version, unbuildable = answer["sglang"], answer["excluded"]
        for model, proposals in zip(models, answer["proposals"], strict=True):
            for proposal in proposals:
                if proposal["set"] in model["sets"]:
                    merge(sets[model.get("into", proposal["set"])], proposal)
    for name, specs in sets.items():
        document = {
            "set": name,
            "summary": SUMMARIES[name],
            "sglang": version,
            "excluded": unbuildable if name == "base" else [],
            "specs": sorted(specs.values(), key=lambda spec: spec["module_args"]),
        }
        path = Path(directory) / f"{name}.json"
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def ask(python: str, request: dict[str, Any]) -> dict[str, Any]:
    """Run propose.py in another environment and return its answer."""
    with tempfile.TemporaryDirectory() as folder:
        question, answer = Path(folder) / "request.json", Path(folder) / "response.json"
        question.write_text(json.dumps(request), encoding="utf-8")
        subprocess.run([python, str(HERE / "propose.py"), str(question), str(answer)], check=True)
        result: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        return result


def merge(specs: dict[str, dict[str, Any]], proposal: dict[str, Any]) -> None:
    """Add a request to a set; one that is already there gains this GPU, and loses the list when it holds all."""
    spec = proposal["request"] | {"why": proposal["why"]}
    gpus = spec.pop("gpus")
    key = json.dumps(spec, sort_keys=True)
    known = specs.setdefault(key, spec | {"gpus": []})
    every = {capability for capability, _ in fakegpu.BOARDS.values()}
    if "gpus" in known:
        known["gpus"] = sorted({*known["gpus"], *gpus})
        if set(known["gpus"]) == every:
            del known["gpus"]


if __name__ == "__main__":
    main(*sys.argv[1:])
