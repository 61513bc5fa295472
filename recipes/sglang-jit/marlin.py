"""Four-bit weights in the layouts that GPTQ, AWQ and Marlin use, made with torch, and the cases that need them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from cases import BF16, Pair, blank, case, randn

GROUP = 128
# vLLM's and SGLang's number of the type "unsigned 4 bits, stored value minus 8": exponent 0 in bits 0-7, mantissa 4
# in 8-15, sign in 16, bias 8 in 17-48, finite-only in 49, NaN representation 1 in 50-57.
UINT4B8 = 4 << 8 | 8 << 17 | 1 << 50
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def gptq_packed(q: torch.Tensor) -> torch.Tensor:
    """Return values 0…15 [K, N] packed eight to a word along K: [K / 8, N] int32."""
    words = torch.zeros(q.shape[0] // 8, q.shape[1], dtype=torch.int64, device=q.device)
    for place in range(8):
        words |= q[place::8].to(torch.int64) << (4 * place)
    return _as_int32(words)


def awq_packed(q: torch.Tensor) -> torch.Tensor:
    """Return values 0…15 [K, N] packed eight to a word along N in AWQ's order: [K, N / 8] int32."""
    words = torch.zeros(q.shape[0], q.shape[1] // 8, dtype=torch.int64, device=q.device)
    for place, column in enumerate(AWQ_ORDER):
        words |= q[:, column::8].to(torch.int64) << (4 * place)
    return _as_int32(words)


def _as_int32(words: torch.Tensor) -> torch.Tensor:
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


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


@case("awq_dequantize")
def awq_dequantize(module: Any, _: list[str]) -> Iterator[Pair]:
    """AWQ weights with zero points, to bf16."""
    q, scales, _exact = weights(256, 512)
    zeros = torch.randint(0, 16, (256 // GROUP, 512), device="cuda")
    out = blank(256, 512, dtype=BF16)
    module.awq_dequantize(out, awq_packed(q), scales, awq_packed(zeros))
    exact = (q - zeros.repeat_interleave(GROUP, dim=0)).float() * scales.float().repeat_interleave(GROUP, dim=0)
    yield Pair("weights", out, exact, 1e-2)


def repacked(modules: dict[str, Any], q: torch.Tensor) -> torch.Tensor:
    """Return values 0…15 [K, N] in Marlin's layout, by the repacking kernel."""
    k, n = q.shape
    out = blank(k // 16, n * 2, dtype=torch.int32)
    modules["gptq_marlin_repack"].gptq_marlin_repack(gptq_packed(q), empty(torch.int32), out, k, n, 4)
    return out


def repack_agrees(modules: dict[str, Any]) -> Iterator[Pair]:
    """GPTQ's and AWQ's repacking make the same of the same weights."""
    q, _, _ = weights(256, 512)
    out = blank(16, 1024, dtype=torch.int32)
    modules["awq_marlin_repack"].awq_marlin_repack(out, awq_packed(q), 256, 512, 4)
    # Words are compared by halves: float32, in which pairs are compared, holds 24 bits.
    expected = repacked(modules, q)
    yield Pair("low halves", out & 0xFFFF, expected & 0xFFFF)
    yield Pair("high halves", out >> 16, expected >> 16)


def dense(modules: dict[str, Any]) -> Iterator[Pair]:
    """Repacked weights multiplied by Marlin, for one token and for many."""
    k, n = 512, 768
    q, scales, exact = weights(k, n)
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    for tokens in (1, 40):
        a, c = randn(tokens, k), blank(tokens, n, dtype=BF16)
        scratch = torch.empty(processors * 64 * 256, device="cuda", dtype=torch.float32)
        locks = torch.zeros(processors * 4, device="cuda", dtype=torch.int32)
        modules["gptq_marlin"].gptq_marlin_gemm(
            a, repacked(modules, q), permuted_scales(scales),
            *(empty(BF16), empty(torch.int32), empty(torch.int32), empty(torch.int32)),
            *(c, scratch, empty(BF16), locks, UINT4B8, True, False, True, False),
        )  # fmt: skip
        yield Pair(f"{tokens} tokens", c, a.float() @ exact, 1e-2)


# Cases of several modules at once: what each needs.
TOGETHER = {
    "marlin repacking": (("gptq_marlin_repack", "awq_marlin_repack"), repack_agrees),
    "marlin GEMM": (("gptq_marlin_repack", "gptq_marlin"), dense),
}
