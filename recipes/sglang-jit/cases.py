"""One launch of each kernel family against torch: what the kernel gives, what torch gives, how far apart they may be.

A case gets the loaded module and the marker arguments of the request it was built for (sizes, data types), makes
random inputs from a fixed seed, and yields pairs. Signatures are those of SGLang 0.5.23's Python callers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

BF16 = torch.bfloat16
FP8 = torch.float8_e4m3fn
EPS = 1e-6


@dataclass(frozen=True)
class Pair:
    """A kernel's result and torch's; `relative` bounds their distance by torch's largest value, 0 asks for equality."""

    what: str
    got: torch.Tensor
    expected: torch.Tensor
    relative: float = 0.0

    @property
    def error(self) -> float:
        """The largest difference, as a share of the largest expected value; infinite where one is not a number."""
        got, expected = self.got.float(), self.expected.float()
        if got.shape != expected.shape or not bool(torch.isfinite(got).all()):
            return float("inf")
        scale = max(float(expected.abs().max()), 1e-20)
        return float((got - expected).abs().max()) / scale


Case = Callable[[Any, list[str]], Iterator[Pair]]
CASES: dict[str, Case] = {}


def case(*families: str) -> Callable[[Case], Case]:
    """Register a case for kernel families: the first marker argument of their requests."""

    def register(function: Case) -> Case:
        CASES.update(dict.fromkeys(families, function))
        return function

    return register


def randn(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    """Return normal random values on the GPU."""
    return torch.randn(shape, device="cuda", dtype=torch.float32).to(dtype)


def blank(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    """Return an output that no kernel has written: not a number, or -7."""
    return torch.full(shape, float("nan") if dtype.is_floating_point else -7, device="cuda", dtype=dtype)


def ints(*values: Any, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Return whole numbers on the GPU."""
    return torch.tensor(*values, device="cuda", dtype=dtype)


def normalised(x: torch.Tensor) -> torch.Tensor:
    """Return x over its root mean square, in float32."""
    wide = x.float()
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)


def rope_cache(length: int, width: int) -> torch.Tensor:
    """Return cosines, then sines, of the rotary angles: [length, width], float32."""
    frequencies = 1.0 / 10000 ** (torch.arange(0, width, 2, device="cuda").float() / width)
    angles = torch.arange(length, device="cuda").float()[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def rotated(x: torch.Tensor, cache: torch.Tensor, positions: torch.Tensor, *, neox: bool) -> torch.Tensor:
    """Return x [tokens, heads, width] with every head rotated by its token's angles."""
    half = x.shape[-1] // 2
    cos, sin = (part[:, None] for part in cache[positions].split(half, dim=-1))
    wide = x.float()
    first, second = (wide[..., :half], wide[..., half:]) if neox else (wide[..., ::2], wide[..., 1::2])
    turned = first * cos - second * sin, second * cos + first * sin
    if neox:
        return torch.cat(turned, dim=-1).to(x.dtype)
    return torch.stack(turned, dim=-1).flatten(-2).to(x.dtype)


@case("clamp_position")
def clamp_position(module: Any, marker: list[str]) -> Iterator[Pair]:
    """Positions of a decode batch."""
    dtype = {"int64_t": torch.int64, "int32_t": torch.int32}[marker[1]]
    lengths = ints([0, 1, 2, 4096, 131072], dtype=dtype)
    out = blank(5, dtype=dtype)
    module.clamp_position(out, lengths)
    yield Pair("positions", out, (lengths - 1).clamp(min=0))


@case("activation")
def activation(module: Any, _: list[str]) -> Iterator[Pair]:
    """Gated activations."""
    x = randn(37, 2 * 4096)
    gate, up = x.float().chunk(2, dim=-1)
    exact = {
        "silu": functional.silu(gate),
        "gelu": functional.gelu(gate),
        "gelu_tanh": functional.gelu(gate, approximate="tanh"),
    }
    for name, value in exact.items():
        out = blank(37, 4096, dtype=BF16)
        module.run_activation(x, out, name)
        yield Pair(name, out, value * up, 1e-2)


@case("rmsnorm_hf")
def rmsnorm_hf(module: Any, marker: list[str]) -> Iterator[Pair]:
    """RMSNorm rounded before the weight."""
    size = int(marker[1])
    x, weight = randn(19, size), randn(size)
    out = blank(19, size)
    module.rmsnorm_hf(x, weight, out, EPS)
    yield Pair("norm", out, normalised(x).to(BF16) * weight, 1e-2)


@case("fused_add_rmsnorm")
def fused_add_rmsnorm(module: Any, _: list[str]) -> Iterator[Pair]:
    """Residual add and RMSNorm, in place."""
    x, residual, weight = randn(19, 4096), randn(19, 4096), randn(4096)
    total = x.float() + residual.float()
    expected = normalised(total).to(BF16) * weight
    module.fused_add_rmsnorm(x, residual, weight, EPS)
    yield Pair("norm", x, expected, 2e-2)
    yield Pair("residual", residual, total, 1e-2)


@case("qknorm")
def qknorm(module: Any, marker: list[str]) -> Iterator[Pair]:
    """RMSNorm of Q and K heads, in place."""
    width = int(marker[1])
    q, k, q_weight, k_weight = randn(23, 32, width), randn(23, 8, width), randn(width), randn(width)
    exact = normalised(q) * q_weight.float(), normalised(k) * k_weight.float()
    module.qknorm(q, k, q_weight, k_weight, EPS)
    yield Pair("q", q, exact[0], 1e-2)
    yield Pair("k", k, exact[1], 1e-2)


@case("rotary_embedding")
def rotary_embedding(module: Any, _: list[str]) -> Iterator[Pair]:
    """Rotary embedding of other head sizes, both layouts, in place."""
    positions, cache = ints([0, 3, 7, 500, 1023]), rope_cache(1024, 96)
    for neox in (True, False):
        q, k = randn(5, 4, 96), randn(5, 2, 96)
        table = cache.to(BF16)
        exact = [rotated(x, table.float(), positions, neox=neox) for x in (q, k)]
        module.rotary_embedding(positions, q, k, 96, table, neox)
        yield Pair(f"q, neox {neox}", q, exact[0], 2e-2)
        yield Pair(f"k, neox {neox}", k, exact[1], 2e-2)


@case("fused_rope")
def fused_rope(module: Any, marker: list[str]) -> Iterator[Pair]:
    """Rotary embedding in place, alone and with the store of K and V."""
    neox, width = marker[1] == "true", int(marker[2])
    positions, cache = ints([0, 3, 7, 500, 1023]), rope_cache(1024, width)
    q, k, v = randn(5, 8, width), randn(5, 2, width), randn(5, 2, width)
    exact = [rotated(x, cache, positions, neox=neox) for x in (q, k)]
    stored_q, stored_k = q.clone(), k.clone()
    module.run_rope(q, k, cache, positions)
    yield Pair("q", q, exact[0], 1e-2)
    yield Pair("k", k, exact[1], 1e-2)
    k_cache, v_cache = (torch.zeros(16, 2 * width, device="cuda", dtype=BF16) for _ in range(2))
    slots = ints([3, 1, 15, 8, 2])
    module.run_rope_store(stored_q, stored_k, v, k_cache, v_cache, cache, positions, slots)
    yield Pair("stored k", k_cache[slots], exact[1].flatten(1), 1e-2)
    yield Pair("stored v", v_cache[slots], v.flatten(1))


@case("kvcache")
def kvcache(module: Any, marker: list[str]) -> Iterator[Pair]:
    """Store of K and V rows; slot 0 is padding and skipped."""
    k_width, v_width = int(marker[1]) // 2, int(marker[2]) // 2
    k, v, slots = randn(6, k_width), randn(6, v_width), ints([5, 0, 9, 2, 31, 7])
    k_cache = torch.zeros(32, k_width, device="cuda", dtype=BF16)
    v_cache = torch.zeros(32, v_width, device="cuda", dtype=BF16)
    module.store_cache(k, v, k_cache, v_cache, slots, 32, 0)
    for name, rows, stored in (("k", k, k_cache), ("v", v, v_cache)):
        expected = torch.zeros_like(stored)
        expected[slots] = rows
        expected[0] = 0
        yield Pair(name, stored, expected)


@case("set_mla_kv_buffer_1024_128")
def set_mla_kv_buffer(module: Any, _: list[str]) -> Iterator[Pair]:
    """Store of the latent K and its rotary part."""
    nope, rope, slots = randn(5, 512), randn(5, 64), ints([4, 1, 15, 8, 2])
    stored = torch.zeros(16, 576, device="cuda", dtype=BF16)
    module.set_mla_kv_buffer(stored, slots, nope, rope, 4, 0)
    yield Pair("rows", stored[slots], torch.cat([nope, rope], dim=-1))


@case("set_mla_kv_concat_q_1024_128")
def set_mla_kv_concat_q(module: Any, _: list[str]) -> Iterator[Pair]:
    """Store as above, and concatenate Q, in one launch."""
    nope, rope, slots = randn(5, 512), randn(5, 64), ints([4, 1, 15, 8, 2])
    q_nope, q_rope = randn(5, 16, 512), randn(5, 16, 64)
    stored = torch.zeros(16, 576, device="cuda", dtype=BF16)
    q = blank(5, 16, 576)
    module.set_mla_kv_concat_q(stored, slots, nope, rope, q_nope, q_rope, q, 4)
    yield Pair("rows", stored[slots], torch.cat([nope, rope], dim=-1))
    yield Pair("q", q, torch.cat([q_nope, q_rope], dim=-1))


@case("concat_mla_absorb_q")
def concat_mla_absorb_q(module: Any, _: list[str]) -> Iterator[Pair]:
    """Absorbed Q."""
    a, b = randn(7, 16, 512), randn(7, 16, 64)
    out = blank(7, 16, 576)
    module.concat_mla_absorb_q(a, b, out)
    yield Pair("q", out, torch.cat([a, b], dim=-1))


@case("concat_mla_k")
def concat_mla_k(module: Any, _: list[str]) -> Iterator[Pair]:
    """K of 128 heads, with one rotary part for all."""
    nope, rope = randn(7, 128, 128), randn(7, 1, 64)
    out = blank(7, 128, 192)
    module.concat_mla_k(out, nope, rope)
    yield Pair("k", out, torch.cat([nope, rope.expand(7, 128, 64)], dim=-1))


@case("tiny_n_gemm")
def tiny_n_gemm(module: Any, marker: list[str]) -> Iterator[Pair]:
    """Router logits of few tokens, in float32."""
    n, k = int(marker[1]), int(marker[2])
    x, weight = randn(9, k), randn(n, k)
    out = blank(9, n, dtype=torch.float32)
    module.run(x, weight, out)
    yield Pair("logits", out, x.float() @ weight.float().T, 1e-3)


@case("dsv3_fused_a_gemm")
def dsv3_fused_a_gemm(module: Any, marker: list[str]) -> Iterator[Pair]:
    """Latent projections of few tokens."""
    k, n = int(marker[1]), int(marker[2])
    x, weight = randn(9, k), randn(n, k)
    out = blank(9, n)
    module.dsv3_fused_a_gemm(x, weight.T, out)
    yield Pair("projection", out, x.float() @ weight.float().T, 1e-2)


@case("dpsk_v4_mask_topk")
def mask_topk(module: Any, _: list[str]) -> Iterator[Pair]:
    """Expert ids of padding rows become -1."""
    ids = ints(torch.randint(0, 384, (9, 8)).tolist(), dtype=torch.int32)
    expected = ids.clone()
    expected[6:] = -1
    module.run(ids, ints([6], dtype=torch.int32))
    yield Pair("ids", ids, expected)


@case("moe_align_block_size")
def moe_align(module: Any, _: list[str]) -> Iterator[Pair]:
    """Tokens sorted by expert, each expert's run padded to whole blocks."""
    experts, topk, block = 16, 4, 8
    ids = torch.stack([torch.randperm(experts)[:topk] for _ in range(33)]).to("cuda", torch.int32)
    room = (ids.numel() + (experts + 1) * (block - 1) + 3) // 4 * 4
    order, block_experts = (torch.full((room,), -7, device="cuda", dtype=torch.int32) for _ in range(2))
    padded, sums = ints([0, 0], dtype=torch.int32), torch.zeros(experts + 2, device="cuda", dtype=torch.int32)
    module.moe_align_block_size(ids, experts + 1, block, order, block_experts, padded, sums, True)
    runs, owners = [], []
    for expert in range(experts):
        run = (ids.flatten() == expert).nonzero().flatten().tolist()
        blocks = -(-len(run) // block)
        runs += sorted(run) + [ids.numel()] * (blocks * block - len(run))
        owners += [expert] * blocks
    yield Pair("padded tokens", padded[:1], ints([len(runs)]))
    yield Pair("experts of blocks", block_experts[: len(owners)], ints(owners))
    groups = order[: len(runs)].view(-1, block).sort(dim=-1).values
    yield Pair("tokens of blocks", _by_expert(groups, owners), _by_expert(ints(runs).view(-1, block), owners))


def _by_expert(groups: torch.Tensor, owners: list[int]) -> torch.Tensor:
    """Return the tokens of each expert in order: within one, the kernel's order is free."""
    owner = ints(owners)
    parts = [groups[owner == expert].flatten().sort().values for expert in sorted(set(owners))]
    return torch.cat(parts)


@case("moe_align_single_token")
def moe_align_single_token(module: Any, _: list[str]) -> Iterator[Pair]:
    """Alignment of one token: its experts in order, a block each."""
    ids = ints([[9, 2, 30, 17]], dtype=torch.int32)
    order, owners = blank(32, dtype=torch.int32), blank(4, dtype=torch.int32)
    padded = ints([-1, -1], dtype=torch.int32)
    module.run(ids, order, owners, padded, 8)
    yield Pair("experts", owners, ints([2, 9, 17, 30]))
    yield Pair("tokens", order.view(4, 8)[:, 0], ints([1, 0, 3, 2]))
    yield Pair("padding", order.view(4, 8)[:, 1:], ints([[4] * 7] * 4))
    yield Pair("padded tokens", padded[:1], ints([32]))


@case("per_token_group_quant")
def per_token_group_quant(module: Any, marker: list[str]) -> Iterator[Pair]:
    """FP8 with one scale per 128 values, scales by row or by column."""
    by_row = marker[5] == "true"
    x = randn(24, 1024)
    out = blank(24, 1024, dtype=FP8)
    scales = blank(*((24, 8) if by_row else (8, 24)), dtype=torch.float32)
    scales = scales if by_row else scales.T
    module.per_token_group_quant(x, out, scales)
    yield Pair("scales", scales, x.float().view(24, 8, 128).abs().amax(-1) / 448, 1e-2)
    yield Pair("values", out.float().view(24, 8, 128) * scales[..., None], x.view(24, 8, 128), 7e-2)


@case("per_tensor_quant_fp8")
def per_tensor_quant(module: Any, marker: list[str]) -> Iterator[Pair]:
    """FP8 with one scale, found or given."""
    x = randn(64, 512)
    given = float(x.abs().max()) / 448
    scale = torch.tensor([given if marker[1] == "true" else 0.0], device="cuda")
    out = blank(64, 512, dtype=FP8)
    module.per_tensor_quant_fp8(x.view(-1), out.view(-1), scale)
    yield Pair("scale", scale, torch.tensor([given], device="cuda"), 1e-3)
    yield Pair("values", out.float() * scale, x, 7e-2)


@case("speculative_tree")
def tree(module: Any, _: list[str]) -> Iterator[Pair]:
    """Verification: of a tree of four drafts the target takes a path of two."""
    # 0 → {1, 2}, 2 → {3}: token 2 and then 3 are what the target says.
    candidates, target = ints([[10, 11, 12, 13]]), ints([[12, 0, 13, 14]])
    index = ints([[0, 1, 2, 3]])
    following, sibling = ints([[1, -1, 3, -1]]), ints([[-1, 2, -1, -1]])
    predicts = torch.full((4,), -1, device="cuda", dtype=torch.int32)
    accepted = torch.full((1, 4), -1, device="cuda", dtype=torch.int32)
    count = torch.zeros(1, device="cuda", dtype=torch.int32)
    module.verify_tree_greedy(predicts, accepted, count, candidates, index, following, sibling, target)
    yield Pair("accepted", accepted, ints([[0, 2, 3, -1]]))
    yield Pair("count", count, ints([2]))
    yield Pair("predicted", predicts[[0, 2, 3]], ints([12, 13, 14]))
