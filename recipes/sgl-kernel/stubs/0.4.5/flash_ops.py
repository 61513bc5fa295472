"""Stand-in for the published `flash_ops` (FlashAttention 3), which holds no machine code for this wheel's GPU.

It declares the same operators, so that what imports or looks for them finds what it finds in the published wheel.
Calling one fails there too, with "no kernel image is available for execution on the device"; here it says why.
"""

import torch

REASON = (
    "sgl_kernel.flash_ops (FlashAttention 3) holds no machine code for the GPU that this wheel is made for: "
    "it is published for sm_80, sm_86 and sm_90a. Choose another backend for this operation."
)

# As registered by flash_ops.abi3.so of the published wheel, version 0.4.5.
SCHEMAS = (
    (
        "fwd(Tensor q, Tensor k, Tensor v, Tensor? k_new, Tensor? v_new, Tensor? q_v, Tensor(a!)? out, "
        "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? cu_seqlens_k_new, Tensor? seqused_q, Tensor? "
        "seqused_k, int? max_seqlen_q, int? max_seqlen_k, Tensor? page_table, Tensor? kv_batch_idx, "
        "Tensor? leftpad_k, Tensor? rotary_cos, Tensor? rotary_sin, Tensor? seqlens_rotary, Tensor? "
        "q_descale, Tensor? k_descale, Tensor? v_descale, float? softmax_scale, bool is_causal, int "
        "window_size_left, int window_size_right, int attention_chunk, float softcap, bool "
        "is_rotary_interleaved, Tensor? scheduler_metadata, int num_splits, bool? pack_gqa, int "
        "sm_margin, Tensor? sinks, Tensor? sparse_mask_fine, bool only_qv) -> (Tensor(a!), Tensor, "
        "Tensor, Tensor)"
    ),
    (
        "get_scheduler_metadata(int batch_size, int max_seqlen_q, int max_seqlen_k, int num_heads, int "
        "num_heads_k, int headdim, int headdim_v, ScalarType qkv_dtype, Tensor seqused_k, Tensor? "
        "cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? cu_seqlens_k_new, Tensor? seqused_q, Tensor? "
        "leftpad_k, int? page_size, int max_seqlen_k_new=0, bool is_causal=False, int "
        "window_size_left=-1, int window_size_right=-1, int attention_chunk=0, bool has_softcap=False, "
        "int num_splits=0, bool? pack_gqa=None, int sm_margin=0) -> Tensor"
    ),
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
