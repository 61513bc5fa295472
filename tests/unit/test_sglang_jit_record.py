"""The recipe's own eyes: what it records inside SGLang, and what it proposes from a model's configuration."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

RECIPE = Path(__file__).parents[2] / "recipes/sglang-jit"
OWN = ("propose", "make_sets", "record", "fakegpu", "plugin")
KIMI = {
    "text_config": {
        "hidden_size": 7168,
        "num_attention_heads": 64,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "q_lora_rank": 1536,
        "n_routed_experts": 384,
        "vocab_size": 163840,
        "quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized"},
    }
}
QWEN = {
    "model_type": "qwen3",
    "hidden_size": 5120,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "torch_dtype": "bfloat16",
}
SGLANG = {
    "sglang/kernels/jit/include/a.cuh": "",
    "sglang/kernels/jit/utils/arch.py": (
        "from types import SimpleNamespace\ndef get_jit_cuda_arch(): return SimpleNamespace(major=12, minor=0)\n"
    ),
    "sglang/kernels/jit/utils/compile/toolchain.py": "def cuda_home(): return '/opt/cuda'\n",
    "sglang/kernels/jit/utils/compile/cache.py": (
        "def compute_build_key(spec, *, build_file): return 'key of ' + build_file\n"
    ),
}
ASKING = """
import json, sys
sys.path.insert(0, {recipe!r})
import record
sys.path.remove({recipe!r})
if {early}: import sglang.kernels.jit.utils.compile.cache
seen = []
record.install(seen.append)
from types import SimpleNamespace
from sglang.kernels.jit.utils.compile import cache
kernels = cache.__file__.split("/utils/")[0]
spec = SimpleNamespace(module_args=("k", "64"), cpp_files=(), cuda_files=(kernels + "/csrc/k.cuh",), cpp_wrappers=(),
    cuda_wrappers=(("run", "K<64>::run"),), cflags=("-O3",), cuda_cflags=("-DSGL_CUDA_ARCH=1200",),
    ldflags=("-L/opt/cuda/lib64/stubs", "-lcuda"), include_paths=(kernels + "/include", "/home/me/x"), header_only=True)
print(json.dumps([seen, cache.compute_build_key(spec, build_file="it"), seen]))
"""


@pytest.fixture
def own() -> Iterator[dict[str, Any]]:
    sys.path.insert(0, str(RECIPE))
    try:
        yield {name: importlib.import_module(name) for name in ("propose", "make_sets")}
    finally:
        sys.path.remove(str(RECIPE))
        for name in [name for name in sys.modules if name.split(".")[0] in OWN]:
            del sys.modules[name]


@pytest.mark.parametrize("early", [False, True], ids=["before SGLang is imported", "after"])
def test_a_request_is_seen_as_set_files_hold_it_and_answered_as_ever(tmp_path: Path, early: bool) -> None:
    for path, text in SGLANG.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "sglang/kernels/jit/__init__.py").write_text("")
    code = ASKING.format(recipe=str(RECIPE), early=early)
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (request,), key, _ = json.loads(done.stdout)
    assert key == "key of it"
    assert request == {
        "module_args": ["k", "64"],
        "cuda_files": ["<kernels>/csrc/k.cuh"],
        "cuda_wrappers": [["run", "K<64>::run"]],
        "cflags": ["-O3"],
        "cuda_cflags": ["-DSGL_CUDA_ARCH=<arch>"],
        "ldflags": ["-L<toolkit>/lib64/stubs", "-lcuda"],
        "include_paths": ["<kernels>/include"],
        "gpus": ["12.0"],
    }


def test_a_latent_attention_model_is_understood(own: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own["propose"], "router_split", lambda *_: 3)
    found = own["propose"].quantities(KIMI, [8], 188)
    assert (found["nope_bytes"], found["rope_bytes"], found["fused_a_width"]) == (1024, 128, 2112)
    assert (found["num_experts"], found["router_split"], found["sampling_vector"]) == (384, 3, 4)
    true = own["propose"].facts(KIMI, found, [8], "EAGLE3")
    assert {"mla", "moe", "int4", "eagle3", "router_fits", "q_lora"} <= true
    assert not {"gqa", "fp8", "heads_128", "qk_norm"} & true


def test_grouped_query_rows_follow_the_tensor_parallel_size(own: dict[str, Any]) -> None:
    propose = own["propose"]
    assert propose.quantities(QWEN, [1, 2, 4, 8], 188)["kv_row_bytes"] == [256, 512, 1024, 2048]
    assert propose.quantities(QWEN, [16], 188)["kv_row_bytes"] == [256]  # a KV head is never split
    assert {"gqa", "qk_norm"} <= propose.facts(QWEN, propose.quantities(QWEN, [1], 188), [1], "")


def test_an_ask_is_every_combination_but_what_moves_together(own: dict[str, Any]) -> None:
    found = {"rows": [256, 512]}
    ask = {"args": ["rows", "rows", [0, 1]], "together": [0, 1]}
    assert own["propose"].arguments(ask, found) == [(256, 256, 0), (256, 256, 1), (512, 512, 0), (512, 512, 1)]


def test_every_ask_is_well_formed(own: dict[str, Any]) -> None:
    known = tomllib.loads((RECIPE / "asks.toml").read_text())
    quantities = {"dtype", "hidden_size", "world_sizes", "sampling_vector", "nope_bytes", "rope_bytes", "rope_dim"}
    quantities |= {"fused_a_width", "head_dim", "is_neox", "kv_row_bytes", "num_experts", "router_split"}
    types = {"int32", "int64", "float32", "bfloat16", "float8_e4m3fn"}
    for ask in known["ask"]:
        assert ask["set"] in own["make_sets"].SUMMARIES
        assert ask["call"].startswith("sglang.kernels.ops.")
        assert ask["why"]
        words = [word for argument in ask["args"] for word in (argument if isinstance(argument, list) else [argument])]
        assert {word for word in words if isinstance(word, str)} <= quantities | types, ask["call"]


def test_a_request_of_every_gpu_carries_no_list(own: dict[str, Any]) -> None:
    specs: dict[str, Any] = {}
    for gpu in ("12.0", "9.0"):
        own["make_sets"].merge(specs, {"why": "w", "request": {"module_args": ["k"], "gpus": [gpu]}})
    own["make_sets"].merge(specs, {"why": "w", "request": {"module_args": ["only"], "gpus": ["12.0"]}})
    assert list(specs.values()) == [
        {"module_args": ["k"], "why": "w"},
        {"module_args": ["only"], "why": "w", "gpus": ["12.0"]},
    ]
