"""Four-bit weights in the layouts that GPTQ, AWQ and Marlin use, made with torch, and the cases that need them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from cases import BF16, Pair, blank, case, ints, randn

GROUP = 128
# vLLM's and SGLang's number of the type "unsigned 4 bits, stored value minus 8": exponent 0 in bits 0-7, mantissa 4
# in 8-15, sign in 16, bias 8 in 17-48, finite-only in 49, NaN representation 1 in 50-57.
UINT4B8 = 4 << 8 | 8 << 17 | 1 << 50
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def packed(q: torch.Tensor, order: tuple[int, ...] = tuple(range(8))) -> torch.Tensor:
    """Return values 0…15 [rows, columns] packed eight to a word along the columns: [rows, columns / 8] int32."""
    words = torch.zeros(q.shape[0], q.shape[1] // 8, dtype=torch.int64, device=q.device)
    for place, column in enumerate(order):
        words |= q[:, column::8].to(torch.int64) << (4 * place)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def gptq_packed(q: torch.Tensor) -> torch.Tensor:
    """Return values 0…15 [K, N] packed eight to a word along K: [K / 8, N] int32."""
    return packed(q.T.contiguous()).T.contiguous()


def marlin_packed(q: torch.Tensor) -> torch.Tensor:
    """Return values 0…15 [K, N] in Marlin's layout: [K / 16, 2 N] int32.

    Tiles of 16 x 16 follow each other along N. Of four tiles (1,024 values), thread t of a warp has for each tile
    the rows 2 (t mod 4) + {0, 1, 8, 9} of the columns t / 4 and t / 4 + 8: the fragments of one tensor-core step.
    """
    k, n = q.shape
    order = [
        16 * (2 * (thread % 4) + row) + thread // 4 + 8 * half + 256 * tile
        for thread in range(32)
        for tile in range(4)
        for half in range(2)
        for row in (0, 1, 8, 9)
    ]
    eights = torch.tensor(order, device=q.device).view(-1, 8)[:, list(AWQ_ORDER)].flatten()
    tiles = q.reshape(k // 16, 16, n // 16, 16).permute(0, 2, 1, 3).reshape(-1, 1024)
    return packed(tiles[:, eights].reshape(k // 16, n * 16))


def permuted_scales(scales: torch.Tensor) -> torch.Tensor:
    """Return group scales [K / GROUP, N] in the order in which Marlin's threads read them."""
    order = [row + 8 * column for row in range(8) for column in range(8)]
    return scales.reshape(-1, 64)[:, order].reshape(scales.shape).contiguous()


def weights(k: int, n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return random values 0…15 [K, N], group scales, and the weights that they stand for, in float32."""
    q = torch.randint(0, 16, (k, n), device="cuda")
    scales = (torch.rand(k // GROUP, n, device="cuda") * 0.02 + 0.005).to(BF16)
    return q, scales, (q.float() - 8) * scales.float().repeat_interleave(GROUP, dim=0)


def empty(dtype: torch.dtype) -> torch.Tensor:
    """Return the tensor that stands for an argument that is not given."""
    return torch.empty(0, device="cuda", dtype=dtype)


def processors() -> int:
    """Return how many multiprocessors the GPU has: locks and scratch space follow it."""
    return torch.cuda.get_device_properties(0).multi_processor_count


def same_words(got: torch.Tensor, expected: torch.Tensor) -> Iterator[Pair]:
    """Compare 32-bit words by halves: pairs are compared in float32, which holds 24 bits."""
    yield Pair("low halves", got & 0xFFFF, expected & 0xFFFF)
    yield Pair("high halves", got >> 16, expected >> 16)


@case("awq_dequantize")
def awq_dequantize(module: Any, _: list[str]) -> Iterator[Pair]:
    """AWQ weights with zero points, to bf16."""
    q, scales, _exact = weights(256, 512)
    zeros = torch.randint(0, 16, (256 // GROUP, 512), device="cuda")
    out = blank(256, 512)
    module.awq_dequantize(out, packed(q, AWQ_ORDER), scales, packed(zeros, AWQ_ORDER))
    exact = (q - zeros.repeat_interleave(GROUP, dim=0)).float() * scales.float().repeat_interleave(GROUP, dim=0)
    yield Pair("weights", out, exact, 1e-2)


@case("gptq_marlin_repack")
def gptq_marlin_repack(module: Any, _: list[str]) -> Iterator[Pair]:
    """GPTQ's layout to Marlin's."""
    q, _, _ = weights(256, 512)
    out = blank(16, 1024, dtype=torch.int32)
    module.gptq_marlin_repack(gptq_packed(q), empty(torch.int32), out, 256, 512, 4)
    yield from same_words(out, marlin_packed(q))


@case("awq_marlin_repack")
def awq_marlin_repack(module: Any, _: list[str]) -> Iterator[Pair]:
    """AWQ's layout to Marlin's."""
    q, _, _ = weights(256, 512)
    out = blank(16, 1024, dtype=torch.int32)
    module.awq_marlin_repack(out, packed(q, AWQ_ORDER), 256, 512, 4)
    yield from same_words(out, marlin_packed(q))


@case("gptq_marlin")
def gptq_marlin(module: Any, _: list[str]) -> Iterator[Pair]:
    """Four-bit weights times one token, and times many."""
    k, n = 512, 768
    q, scales, exact = weights(k, n)
    for tokens in (1, 40):
        a, c = randn(tokens, k), blank(tokens, n)
        scratch = torch.empty(processors() * 64 * 256, device="cuda", dtype=torch.float32)
        locks = torch.zeros(processors() * 4, device="cuda", dtype=torch.int32)
        module.gptq_marlin_gemm(
            *(a, marlin_packed(q), permuted_scales(scales)),
            *(empty(BF16), empty(torch.int32), empty(torch.int32), empty(torch.int32)),  # global scale, zeros, order
            *(c, scratch, empty(BF16), locks, UINT4B8),
            *(True, False, True, False),  # whole K, no atomics, sums in float32, whole zero points
        )
        yield Pair(f"{tokens} tokens", c, a.float() @ exact, 1e-2)


@case("moe_wna16_marlin")
def moe_wna16_marlin(module: Any, marker: list[str]) -> Iterator[Pair]:
    """Tokens times the four-bit weights of their experts; the second GEMM's variant also weighs the routes."""
    experts, tokens, topk, block, k, n = 4, 21, 2, 8, 256, 512
    weigh = marker[5] == "true"
    made = [weights(k, n) for _ in range(experts)]
    routes = torch.stack([torch.randperm(experts)[:topk] for _ in range(tokens)]).flatten().tolist()
    order, owners = [], []
    for expert in range(experts):
        run = [route for route, owner in enumerate(routes) if owner == expert]
        blocks = -(-len(run) // block)
        order += run + [len(routes)] * (blocks * block - len(run))
        owners += [expert] * blocks
    a, c, shares = randn(tokens, k), blank(len(routes), n), torch.rand(tokens, topk, device="cuda")
    scratch = torch.empty(processors() * 8 * block * 256, device="cuda", dtype=torch.float32)
    module.moe_wna16_marlin_gemm(
        *(a, c, torch.stack([marlin_packed(q) for q, _, _ in made]), empty(BF16)),
        torch.stack([permuted_scales(scales) for _, scales, _ in made]),
        *(empty(BF16), empty(BF16), empty(torch.int32), empty(torch.int32)),  # global scale, zeros, order
        torch.zeros(processors() * 4, device="cuda", dtype=torch.int32),
        *(ints(order, dtype=torch.int32), ints(owners, dtype=torch.int32), ints([len(order), 0], dtype=torch.int32)),
        *(shares, empty(BF16), scratch, block, topk, weigh, False, UINT4B8, tokens, n, k),
        *(False, False, True, False, k // GROUP, GROUP),  # no order, no bias, whole K, no zeros
        *(False, True, False),  # no atomics, sums in float32, whole zero points
    )
    exact = torch.stack([a[route // topk].float() @ made[owner][2] for route, owner in enumerate(routes)])
    yield Pair("routes", c, exact * shares.view(-1, 1) if weigh else exact, 1e-2)
