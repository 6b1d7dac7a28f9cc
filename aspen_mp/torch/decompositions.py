"""Which operators PyTorch takes apart before they come here, and which stay whole because a kernel or an ONNX operator computes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import torch

from aspen_mp.torch.builder import HALVES
from aspen_mp.torch.layers import encoder

KEPT: Final = [
    "gelu",
    "hardswish",
    "hardsigmoid",
    "silu",
    "mish",
    "elu",
    "celu",
    "leaky_relu",
    "_prelu_kernel",
    "softplus",
    "hardtanh",
    "glu",
    "_softmax",
    "_log_softmax",
    "_safe_softmax",
    "native_layer_norm",
    "native_group_norm",
    "_native_batch_norm_legit_no_training",
    "_scaled_dot_product_flash_attention_for_cpu",
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
    "grid_sampler_2d",
    "pixel_shuffle",
    "pixel_unshuffle",
    "addmm",
    "addmv",
    "baddbmm",
    "addcmul",
    "addcdiv",
    "lerp",
    "sum",
    "std",
    "var",
    "var_mean",
    "std_mean",
    "_adaptive_avg_pool2d",
    "avg_pool2d",
    "avg_pool3d",
    "max_pool2d_with_indices",
    "stack",
    "split",
    "split_with_sizes",
    "unbind",
    "roll",
    "tril",
    "triu",
    "index_add",
    "index_copy",
    "masked_fill",
    "clamp_min",
    "clamp_max",
    "rsub",
    "unfold",
    "im2col",
    "nan_to_num",
    "logsumexp",
    "eye",
    "reflection_pad1d",
    "reflection_pad2d",
    "replication_pad1d",
    "replication_pad2d",
    "select_scatter",
    "slice_scatter",
    "floor_divide",
    "new_full",
    "new_zeros",
    "new_ones",
    "new_empty",
    "zeros_like",
    "ones_like",
    "full_like",
    "empty_like",
    "isinf",
    "linalg_vector_norm",
    "embedding",
    "logical_not",
    "all",
    "any",
    "detach",
    "t",
    "transpose",
    "select",
    "threshold",
    "rsqrt",
    "index_select",
    "trunc",
    "frac",
    "arange",
    "linspace",
    "diagonal",
    "expand_copy",
]
"""Operators with rules of their own, though PyTorch could express them by simpler ones."""
LEFT: Final = ["unfold_backward"]
"""Operators without rules that stay whole all the same: PyTorch takes them apart into a thousand others. `torch.istft` calls them."""
ROUNDED: Final = ["xlogy", "special_xlogy", "special_xlog1py"]
"""Operators whose integers become the halves beside them. PyTorch's decompositions take them to float32, which has other numbers."""


@cache
def table() -> dict[Any, Callable[..., Any]]:
    """PyTorch's decompositions into core operators, without `KEPT`, and our own."""
    from torch._decomp import core_aten_decompositions

    kept = {*KEPT, *LEFT}
    found: dict[Any, Callable[..., Any]] = {
        operator: function for operator, function in core_aten_decompositions().items() if _name(operator) not in kept
    }
    for name in KEPT:
        if "upsample" in name:
            packet = getattr(torch.ops.aten, name)
            found[packet.vec] = _by_size(packet.default)
    found |= {operator: _rounded(function) for operator, function in found.items() if _name(operator) in ROUNDED}
    found[torch.ops.aten._transformer_encoder_layer_fwd.default] = encoder.encoder_layer
    found[torch.ops.aten._native_multi_head_attention.default] = encoder.multi_head_attention
    return found


def _name(operator: Any) -> str:
    """The name without the overload; with its name space where that is not aten."""
    return str(operator._schema.name).removeprefix("aten::")


def _rounded(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition of two operands. Integers beside halves become halves first."""

    def rounded(*operands: Any, **options: Any) -> Any:
        dtype = torch.result_type(*operands)
        halves = [x.to(dtype) if dtype in HALVES and isinstance(x, torch.Tensor) else x for x in operands]
        return function(*halves, **options)

    return rounded


def _by_size(operator: Any) -> Callable[..., Any]:
    """The overload of a resizing operator that takes sizes or scales, as the one that takes sizes. `torch.export` leaves it whole."""
    from torch._decomp.decompositions import upsample_compute_output_size

    def resized(x: torch.Tensor, output_size: Any, *corners_scales: Any) -> torch.Tensor:
        *corners, scales = corners_scales
        size = upsample_compute_output_size(x.size(), output_size, scales)
        return operator(x, size, *corners, *(scales or [None] * len(size)))

    return resized
