"""Say which modules SGLang would ask for, from a model's configuration and without a GPU.

    ENV/bin/python propose.py REQUEST.json RESPONSE.json

The environment needs SGLang's own requirements for importing its kernels, with torch of any build. The answer
is a proposal: it knows the call sites of `asks.toml`, not what a server's flags and batches lead to.
Request: `model` (path of a config.json), `tensor_parallel`, `speculative` (e.g. EAGLE3, or empty) and `board`;
or `models` (entries as in models.toml) and `board`.
"""

from __future__ import annotations

import importlib
import itertools
import json
import math
import sys
import tomllib
from pathlib import Path
from typing import Any

import fakegpu
import record

HERE = Path(__file__).resolve().parent
QK_NORM_MODELS = ("qwen3", "qwen3_moe")
INT4_METHODS = ("gptq", "awq", "gptq_marlin", "awq_marlin")


class _SeenError(Exception):
    """Raised instead of looking a module up: the request is all that is wanted."""


def quantities(config: dict[str, Any], tensor_parallel: list[int], multiprocessors: int) -> dict[str, Any]:
    """Return what the arguments of asks.toml are made of, from a model's config.json.

    A quantity that the model does not have is absent; one that depends on the tensor-parallel size is a list.
    """
    config = config.get("text_config", config) | {}
    found: dict[str, Any] = {
        "dtype": config.get("torch_dtype") or config.get("dtype") or "bfloat16",
        "hidden_size": config["hidden_size"],
        "world_sizes": [size for size in tensor_parallel if size > 1],
        "sampling_vector": math.gcd(4, config["vocab_size"]),
    }
    heads = config["num_attention_heads"]
    if "kv_lora_rank" in config:
        found |= {
            "nope_bytes": config["kv_lora_rank"] * 2,
            "rope_bytes": config["qk_rope_head_dim"] * 2,
            "rope_dim": config["qk_rope_head_dim"],
            "fused_a_width": (config.get("q_lora_rank") or 0) + config["kv_lora_rank"] + config["qk_rope_head_dim"],
        }
    else:
        head_dim = config.get("head_dim") or config["hidden_size"] // heads
        kv_heads = config.get("num_key_value_heads", heads)
        found |= {
            "head_dim": head_dim,
            "rope_dim": int(head_dim * config.get("partial_rotary_factor", 1.0)),
            "is_neox": True,
            "kv_row_bytes": sorted({max(kv_heads // size, 1) * head_dim * 2 for size in tensor_parallel}),
        }
    experts = config.get("n_routed_experts") or config.get("num_experts") or config.get("num_local_experts")
    if experts:
        found["num_experts"] = experts
        if split := router_split(experts, config["hidden_size"], multiprocessors):
            found["router_split"] = split
    return found


def router_split(experts: int, hidden_size: int, multiprocessors: int) -> int:
    """Return the split of SGLang's small router GEMM for up to 16 tokens; 0 where it does not apply."""
    module = importlib.import_module("sglang.kernels.ops.gemm.tiny_gemm")
    if not module.can_use_tiny_gemm(experts, hidden_size, max_m=16) or hidden_size <= experts:
        return 0
    assert module._get_num_sm() == multiprocessors  # noqa: S101, SLF001  # the board that was asked for
    return int(module._default_n_gemm_n_split(experts, hidden_size, 16))  # noqa: SLF001


def facts(config: dict[str, Any], found: dict[str, Any], tensor_parallel: list[int], speculative: str) -> set[str]:
    """Return the facts that the `when` of asks.toml names."""
    config = config.get("text_config", config)
    quantization = config.get("quantization_config") or {}
    method = str(quantization.get("quant_method", "")).lower()
    packed = method == "compressed-tensors" and quantization.get("format") == "pack-quantized"
    int4, fp8 = method in INT4_METHODS or packed, method == "fp8"
    heads = {config["num_attention_heads"] // size for size in tensor_parallel}
    truths = {
        "mla": "kv_lora_rank" in config,
        "gqa": "kv_lora_rank" not in config,
        "rope": config.get("rope_theta", 1) is not None,
        "qk_norm": config.get("model_type") in QK_NORM_MODELS,
        "moe": "num_experts" in found,
        "router_fits": "router_split" in found,
        "heads_128": 128 in heads,
        "q_lora": bool(config.get("q_lora_rank")),
        "bf16_weights": not fp8,
        "int4": int4,
        "fp8": fp8,
        "eagle3": speculative.upper() in ("EAGLE", "EAGLE3"),
    }
    return {name for name, true in truths.items() if true}


def arguments(ask: dict[str, Any], found: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return the argument lists of one ask: every combination, but `together` positions move as one."""
    choices = [_values(argument, found) for argument in ask["args"]]
    together = ask.get("together", [])
    return [
        combination
        for combination in itertools.product(*choices)
        if len({combination[position] for position in together}) <= 1
    ]


def _values(argument: Any, found: dict[str, Any]) -> list[Any]:
    value = found.get(argument, argument) if isinstance(argument, str) else argument
    return [_typed(item) for item in (value if isinstance(value, list) else [value])]


def _typed(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return getattr(importlib.import_module("torch"), value)


def propose(model: dict[str, Any], asks: list[dict[str, Any]], board: str) -> list[dict[str, Any]]:
    """Return the requests of one model on one board, each with its set and the reason it is asked for."""
    capability, multiprocessors = fakegpu.BOARDS[board]
    sizes = model["tensor_parallel"]
    found = quantities(model["config"], sizes, multiprocessors)
    true = facts(model["config"], found, sizes, model.get("speculative", ""))
    requests: list[dict[str, Any]] = []
    for ask in asks:
        if true.issuperset(ask.get("when", [])) and capability in ask.get("gpus", [capability]):
            module, function = ask["call"].split(":")
            factory = getattr(importlib.import_module(module), function)
            for values in arguments(ask, found):
                requests += [{"set": ask["set"], "why": ask["why"], "request": spec} for spec in seen(factory, values)]
    return requests


def seen(factory: Any, values: tuple[Any, ...]) -> list[dict[str, Any]]:
    """Return the requests that a call of one factory makes; nothing is looked up or compiled."""
    cache = importlib.import_module("sglang.kernels.jit.utils.compile.cache")
    collected: list[dict[str, Any]] = []

    def stop(spec: Any, **_: Any) -> str:
        collected.append(record.describe(spec))
        raise _SeenError

    original, cache.compute_build_key = cache.compute_build_key, stop
    try:
        factory(*values)
    except _SeenError:
        pass
    finally:
        cache.compute_build_key = original
    return collected


def main(request_path: str, response_path: str) -> None:
    """Answer one request file."""
    request = json.loads(Path(request_path).read_text(encoding="utf-8"))
    fakegpu.install(request["board"])
    known = tomllib.loads((HERE / "asks.toml").read_text(encoding="utf-8"))
    answer: dict[str, Any] = {
        "sglang": importlib.import_module("sglang.version").__version__,
        "excluded": known["unbuildable"],
    }
    if "models" in request:
        answer["proposals"] = [propose(model, known["ask"], request["board"]) for model in request["models"]]
    else:
        model = {
            "config": json.loads(Path(request["model"]).read_text(encoding="utf-8")),
            "tensor_parallel": [request["tensor_parallel"]],
            "speculative": request["speculative"],
        }
        proposals = propose(model, known["ask"], request["board"])
        answer["specs"] = [entry["request"] | {"why": entry["why"]} for entry in proposals]
    Path(response_path).write_text(json.dumps(answer, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
