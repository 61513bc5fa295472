"""Stand-in for the published `flashmla_ops` (FlashMLA), which holds no machine code for this wheel's GPU.

It declares the same operators, so that what imports or looks for them finds what it finds in the published wheel.
Calling one fails there too, with "no kernel image is available for execution on the device"; here it says why.
"""

import torch

REASON = (
    "sgl_kernel.flashmla_ops (FlashMLA) holds no machine code for the GPU that this wheel is made for: "
    "it is published for sm_90a and for data-centre Blackwell. Choose another backend for this operation."
)

# As registered by flashmla_ops.abi3.so of the published wheel, version 0.4.10.
SCHEMAS = (
    (
        "get_mla_decoding_metadata(Tensor seqlens_k, int num_q_tokens_per_head_k, int h_k, int? h_q, bool "
        "is_fp8_kvcache, int? topk) -> Tensor[]"
    ),
    ("get_mla_decoding_metadata_dense_fp8(Tensor seqlens_k, int num_heads_per_head_k, int num_heads_k) -> Tensor[]"),
    (
        "fwd_kvcache_mla(Tensor q, Tensor kv_cache, int head_size_v, Tensor seqlens_k, Tensor "
        "block_table, float softmax_scale, bool is_causal, Tensor tile_scheduler_metadata, Tensor "
        "num_splits, bool is_fp8, Tensor? indices, Tensor? attn_sink, Tensor? extra_k_cache, Tensor? "
        "extra_indices_in_kvcache, Tensor? topk_length, Tensor? extra_topk_length) -> Tensor[]"
    ),
    (
        "dense_prefill_fwd(Tensor workspace_buffer, Tensor q, Tensor k, Tensor v, Tensor "
        "cumulative_seqlen_q, Tensor cumulative_seqlen_kv, Tensor o, Tensor lse, int mask_mode_code, "
        "float softmax_scale, int max_seqlen_q, int max_seqlen_kv, bool is_varlen) -> ()"
    ),
    (
        "sparse_decode_fwd(Tensor q, Tensor kv, Tensor indices, Tensor? topk_length, Tensor? attn_sink, "
        "Tensor? tile_scheduler_metadata, Tensor? num_splits, Tensor? extra_kv, Tensor? extra_indices, "
        "Tensor? extra_topk_length, int d_v, float sm_scale, str? kv_format=None) -> (Tensor, Tensor, "
        "Tensor?, Tensor?)"
    ),
    (
        "dense_decode_fwd(Tensor q, Tensor kcache, int head_size_v, Tensor seqlens_k, Tensor block_table, "
        "float softmax_scale, bool is_causal, Tensor? tile_scheduler_metadata, Tensor? num_splits) -> "
        "(Tensor, Tensor, Tensor?, Tensor?)"
    ),
    (
        "sparse_prefill_fwd(Tensor q, Tensor kv, Tensor indices, float sm_scale, int d_v, Tensor? "
        "attn_sink=None, Tensor? topk_length=None) -> Tensor[]"
    ),
    (
        "fwd_kvcache_mla_fp8(Tensor q, Tensor kcache, int head_size_v, Tensor seqlens_k, Tensor "
        "block_table, float softmax_scale, bool is_causal, Tensor tile_scheduler_metadata, Tensor "
        "num_splits, Tensor? descale_q, Tensor? descale_k) -> Tensor[]"
    ),
    (
        "flash_mla_mega_prefill(Tensor q, Tensor kv, Tensor indices, Tensor positions, Tensor "
        "cos_sin_cache, float sm_scale, int n_wv_group, Tensor? attn_sink=None, Tensor? topk_length=None) "
        "-> Tensor[]"
    ),
    (
        "flash_mla_mega_decode(Tensor q, Tensor kv, Tensor indices, Tensor positions, Tensor "
        "cos_sin_cache, float sm_scale, int n_wv_group, Tensor? attn_sink=None, Tensor? topk_length=None, "
        "Tensor? extra_kv=None, Tensor? extra_indices=None, Tensor? extra_topk_length=None) -> Tensor[]"
    ),
    "flash_mla_mega_permute_q(Tensor weight, Tensor scale, int heads) -> Tensor[]",
    "flash_mla_mega_permute_wo(Tensor weight, Tensor scale) -> Tensor[]",
)


def _refusing(name):
    def refuse(*_args, **_kwargs):
        raise RuntimeError(f"sgl_kernel::{name}: {REASON}")

    return refuse


# Kept for as long as the module lives: when it goes, so do the operators.
_library = torch.library.Library("sgl_kernel", "FRAGMENT")
for _schema in SCHEMAS:
    _name = _schema.partition("(")[0]
    _library.define(_schema)
    _library.impl(_name, _refusing(_name), "CUDA")
