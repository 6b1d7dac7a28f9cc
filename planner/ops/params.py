"""Kernel-level nodes → the i64 parameters of a kernel call.

This table is the contract between lowering and the plan; what the parameters mean to a kernel is said in ``workers/kernels/kernel.h``.

===================  ==============================================================================================================
op                   attrs
===================  ==============================================================================================================
``GEMM``             ``packed_b``, ``streamed``?, ``alpha``, ``act``, ``residual_last``?, ``gated``?, ``exact``? (of integers: not by
                     Strassen's algorithm, whose sums are larger). Inputs A, B, bias?, residual?, scale? [N], shift? [N], left?: what
                     STRASSEN makes of A
``QGEMM``            ``zeros`` (whether B has zero points), ``act``, ``residual_last``?, ``gated``?, ``scale``?, ``zero``?. Inputs A,
                     bytes, B (packed, see `Builder.packed_bytes`), bias?, residual?, factor?, zero? (of A, one a row), what comes
                     behind B broadcast to the output. act(factor * sums + bias + residual) in f32; as bytes, that over ``scale``
                     and rounded, plus ``zero``; or the sums themselves in i32
``QCONV``            ``kernel``, ``strides``, ``dilations``, ``pads`` (top, left), and all of ``QGEMM`` but ``gated``. Inputs X (bytes),
                     W (packed), bias? [OC], residual?, factor? (broadcast to the output), zero? (one of all)
``QNBITGEMM``            ``bits``, ``block``, ``zeros``, ``zero`` (`low_bit.Form`), and of ``GEMM`` ``alpha``, ``act``, ``residual_last``?,
                     ``gated``?. Inputs A, B (packed, see `low_bit.packed_shape`), bias?, residual?, scale? [N], shift? [N]
``BGEMM``            of ``GEMM`` ``alpha``, ``act``, ``residual_last``?, ``gated``?. Inputs A, B (packed, see `bf16.packed_shape`), bias?,
                     residual?, scale? [N], shift? [N]; A and B rounded to bf16
``BCONV``            ``kernel``, ``strides``, ``dilations``, ``pads`` (top, left), ``act``, ``residual_last``?, ``in_act``?. Inputs of
                     ``CONV``, W packed (see `bf16.packed_shape`); X, behind what stands in front of it, and W rounded to bf16
``DGEMM``            ``alpha``, ``act``, ``term`` (`TERMS`: of products, or of distances). Inputs A, B, bias?, f64
``STRASSEN``         nothing: left factors of pairs of rows
``CONV, DWCONV``     ``groups``, ``kernel`` (KH, KW), ``strides`` (h, w), ``dilations`` (h, w), ``pads`` (top, left), ``act``,
                     ``residual_last``?, ``in_act``?, ``exact``? (of integers: not rounded to bf16); over three axes ``depth``
                     (kernel, stride, dilation, pad in front).
                     Inputs X, W (packed), bias? [OC], residual?, scale? [OC], shift? [OC];
                     CONV also in_scale? [C], in_shift? [C]: X stands for in_act(X * in_scale + in_shift).
                     DWCONV: groups are the channels of X, OC a multiple of them
``WINO``             those of ``CONV`` and ``block`` (side of a block of outputs, see `winograd.BLOCKS`); W transformed by
                     `aspen_mp.planner.ops.packing.winograd`
``PWDW``             ``in_act`` (between), and of the depthwise half: ``kernel``, ``strides``, ``dilations``, ``pads``, ``act``.
                     Inputs X, W (packed), bias? [E], D (packed), bias? [E]
``POOL``             ``mode`` ("max", "average"), ``kernel``, ``strides``, ``dilations``, ``pads`` (top, left, bottom, right),
                     ``count_include_pad``
``UNARY``            ``opcode`` (a name of ASPEN_UNARY), ``a``, ``b``
``BINARY``           ``opcode`` (ASPEN_BINARY), ``act``
``TERNARY``          ``opcode`` (ASPEN_TERNARY), ``act``
``CAST``             ``saturate``
``COPY``             –
``QUANTIZE``         ``times`` (the scale is multiplied with, not divided by). Inputs X, scale, zero?
``DEQUANTIZE``       nothing. Inputs X, scale, zero?
``MINMAX``         ``axis``. Output [blocks, 2]: least and greatest of each block of indices along it
``QPARAMS``           nothing. Input: what MINMAX makes of a tensor; two outputs: scale and zero point, of one element each
``PAD``              ``mode`` (ASPEN_PAD_MODES), ``begin`` (per axis, negative crops)
``REDUCE``           ``opcode`` (ASPEN_REDUCE), ``axes`` (non-negative)
``ARGREDUCE``        ``mode`` ("max", "min"), ``axis``, ``select_last``
``SOFTMAX``          ``axis``, ``log``
``NORM``             ``axis``, ``mode`` ("layer", "rms"), ``eps``
``MOMENTS``          nothing. Output [N, blocks, groups, 2]: mean and squared deviations of each group of channels in each block of pixels
``STANDARDIZE``      ``eps``, ``act``. Inputs X, what MOMENTS makes of it, scale? [1 or N, C], shift? [1 or N, C], residual?
``LRN``              ``size``, ``alpha``, ``beta``, ``bias``
``GATHER``           ``axis``
``GATHER_ELEMENTS``  ``axis``
``TOPK``             ``axis``, ``largest``. Output: where the best elements are
``INDEX``            ``dims``: of a tensor's first axes, of which the output is places
``SCATTER``          ``axis``, ``reduction`` (ONNX's names). Inputs X, indices, updates
``RESIZE``           ``mode``, ``coordinate``, ``nearest`` (ONNX's names), ``cubic_coeff_a``, ``scales`` (per axis), ``exclude_outside``
``GRIDSAMPLE``       ``mode``, ``padding`` (`GRID_MODES`, `GRID_PADDINGS`), ``align_corners``. Inputs X, grid
``ROIALIGN``         ``mode`` (`ROI_MODES`), ``ratio``, ``scale``, ``half_pixel``. Inputs X, regions, which image each is of
``DEFORM``           ``groups``, ``parts``, ``kernel``, ``strides``, ``dilations``, ``pads`` (top, left). Inputs X, offsets, mask?
``TREES``            ``aggregate`` (`AGGREGATES`), ``flags``, ``most``, ``steps`` (for the cost), see `tree_tables.Packed`. Inputs X [N, F],
                     nodes, trees, weights?, base? [C]
``SCORES``           ``transform`` (`TRANSFORMS`), ``second`` ("", "1 - s" or "-s": how two scores are made of one)
``LABELS``           ``mode`` (`LABEL_MODES`), ``column``, ``threshold``. Inputs scores, labels
``RBF``              ``gamma``. Inputs X, vectors (packed, see `Builder.packed_panels`)
``DUELS, COUPLE``    nothing. Inputs K, coefficients, starts, rho; scores of pairs, a, b
``CUMSUM``           ``axis``, ``exclusive``, ``reverse``
``ATTENTION``        ``scale``, ``causal``, ``offset``, ``fill``, ``softcap`` (0: none), ``guard`` ("none", "nan", "unseen"),
                     ``mask_first``. Inputs Q, K, V, mask?
``LSTM``             ``first``, ``reverse``. Inputs P, R (packed), h?, c?; two outputs: Y, c
``GRU``              ``first``, ``reverse``, ``form`` (of `GRU_FORMS`). Inputs P, R (packed), h?, rb? [H] ("reset last") or gates ("output")
``RNN``              ``first``, ``reverse``, ``relu``. Inputs P, R (packed), h?
``OPAQUE``           ``model``: a serialised ModelProto whose graph inputs and outputs are the node's, in order (missing optional
                     inputs have no graph input; ``node.inputs`` holds no ``None``)
===================  ==============================================================================================================

``act`` is a triple (name of ASPEN_UNARY, a, b). Axes are non-negative. Matrix kernels compute
act(product + bias + residual) * scale + shift; with ``residual_last`` (absent: False) the residual is added at the end instead,
and with ``gated`` (GEMM, QNBITGEMM, BGEMM and QGEMM alone) the end is a product with it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from aspen_mp.planner.ir.graph import Node
from aspen_mp.shm.tables import BINARY, PAD_MODES, REDUCE, TERNARY, UNARY

Act = tuple[str, float, float]
NO_ACT: Act = ("IDENTITY", 0.0, 0.0)

POOL_MODES = {"max": 0, "average": 1}
NORM_MODES = {"layer": 0, "rms": 1}
SCATTER_REDUCTIONS = {"none": 0, "add": 1, "mul": 2, "min": 3, "max": 4}
GRU_FORMS = {"reset first": 0, "reset last": 1, "gates": 2, "output": 3}
"""Without and with linear_before_reset; a step of the first in two halves."""
GUARDS = {"none": 0, "nan": 1, "unseen": 2}
GRID_MODES = {"linear": 0, "nearest": 1, "cubic": 2}
GRID_PADDINGS = {"zeros": 0, "border": 1, "reflection": 2}
TRANSFORMS = {"NONE": 0, "LOGISTIC": 1, "SOFTMAX": 2, "SOFTMAX_ZERO": 3, "PROBIT": 4}
TERMS = {"product": 0, "square": 1, "absolute": 2}
AGGREGATES = {"SUM": 0, "AVERAGE": 1, "MIN": 2, "MAX": 3}
SECOND_SCORES = {"": 0, "1 - s": 1, "-s": 2}
LABEL_MODES = {"greatest": 0, "above": 1, "votes": 2}
ROI_MODES = {"avg": 0, "max": 1}
RESIZE_MODES = {"nearest": 0, "linear": 1, "cubic": 2}
RESIZE_COORDINATES = {"half_pixel": 0, "asymmetric": 1, "align_corners": 2, "pytorch_half_pixel": 3, "half_pixel_symmetric": 4}
RESIZE_COORDINATES |= {"align_fractional_corners": 5}
"""ONNX's names; the last one is align_corners with a length that is the product of the old one and the scale, before it is rounded."""
RESIZE_NEAREST = {"round_prefer_floor": 0, "round_prefer_ceil": 1, "floor": 2, "ceil": 3}


def bits(value: float) -> int:
    """The bits of a double as a signed 64-bit integer."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _act(act: Act) -> list[int]:
    name, a, b = act
    return [UNARY[name], bits(a), bits(b)]


def _last(a: dict[str, Any]) -> int:
    return 2 if a.get("gated", False) else int(a.get("residual_last", False))


def _gemm(a: dict[str, Any]) -> list[int]:
    packed = int(a["packed_b"]) + int(a.get("streamed", False))
    return [packed, bits(a["alpha"]), *_act(a["act"]), _last(a), 0, 0]


def _qnbitgemm(a: dict[str, Any]) -> list[int]:
    return [bits(a["alpha"]), *_act(a["act"]), _last(a), a["bits"], a["block"], int(a["zeros"]), a["zero"]]


def _to_bytes(a: dict[str, Any]) -> list[int]:
    return [*_act(a["act"]), _last(a), bits(a.get("scale", 1.0)), int(a.get("zero", 0))]


BYTES_GROUP, BYTES_HEADER = 4, 3
"""Terms of a column that lie side by side in packed bytes; groups in front of each panel: the columns' sums, zero points and constants."""


def packed_bytes(depth: int, columns: int, taps: int = 1) -> tuple[int, int, int, int]:
    """The shape of packed bytes of [depth, columns], or of so many taps of them."""
    return (-(-columns // 32), BYTES_HEADER + taps * -(-depth // BYTES_GROUP), 32, BYTES_GROUP)


def image_scratch(channels: int, box: tuple[int, int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> int:
    """Bytes that QCONV takes for rows and columns of output: the pixels that they look at, a number for each of them, a pointer for each
    tap."""
    pixels = prod((n - 1) * s + (k - 1) * d + 1 for n, k, s, d in zip(box, kernel, strides, dilations, strict=True))
    return pixels * -(-channels // BYTES_GROUP) * BYTES_GROUP + 4 * prod(box) + 8 * prod(kernel) + 192


def bytes_scratch(rows: int, depth: int) -> int:
    """Bytes that QGEMM takes for so many rows: where each is, and copies of them, which do not lie a multiple of 4096 bytes apart."""
    row = -(-depth // 64) * 64
    return rows * (48 + row + (64 if row % 4096 == 0 else 0)) + 64


def left_factors(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of what STRASSEN makes of A[…, M, K]: seven factors of each pair of rows, of half the terms, one more value, and as many as
    it takes to an uneven number of cache lines."""
    return (*shape[:-2], -(-shape[-2] // 2), 7 * 16 * (shape[-1] // 2 // 16 + 1 | 1))


SEVEN_PART = 192
"""Terms of a half, at most, that Strassen's products take at a time."""


def seven_scratch(terms: int, halves: bool = False) -> int:
    """Bytes that GEMM takes for Strassen's products: right factors of a part of the terms, and where there are several parts, what 128
    pairs of rows have so far. With weights of 16 bits (`halves`) QNBITGEMM takes those of a part as floats, too, and those of a panel."""
    half = terms // 2
    parts = max(-(-half // SEVEN_PART), 1)
    longest = half if parts == 1 else -(-half // (16 * parts)) * 16
    floats = 4 * longest + terms if halves else 0
    return 4 * 32 * (5 * longest + (7 * 128 if parts > 1 else 0) + floats)


def _window(a: dict[str, Any]) -> list[int]:
    return [*a["kernel"], *a["strides"], *a["dilations"], *a["pads"]]


def _conv(a: dict[str, Any]) -> list[int]:
    return [a["groups"], *_convolution(a)]


def _convolution(a: dict[str, Any]) -> list[int]:
    return [*_window(a), *_act(a["act"]), int(a.get("residual_last", False)), *_act(a.get("in_act", NO_ACT))]


def depth(a: dict[str, Any]) -> tuple[int, int, int, int]:
    """The axis of depth of a convolution's window: kernel, stride, dilation, pad in front. That of an image is one deep."""
    found: tuple[int, int, int, int] = a.get("depth", (1, 1, 1, 0))
    return found


def _pwdw(a: dict[str, Any]) -> list[int]:
    return [*_act(a["in_act"]), *a["kernel"], *a["strides"], *a["dilations"], *a["pads"], *_act(a["act"])]


def _pool(a: dict[str, Any]) -> list[int]:
    return [POOL_MODES[a["mode"]], *a["kernel"], *a["strides"], *a["dilations"], *a["pads"], int(a["count_include_pad"])]


def _pad(a: dict[str, Any]) -> list[int]:
    begin = list(a["begin"])
    return [PAD_MODES[a["mode"]], len(begin), *begin, *[0] * (8 - len(begin))]


def _resize(a: dict[str, Any]) -> list[int]:
    scales = [bits(s) for s in a["scales"]] + [bits(1.0)] * (8 - len(a["scales"]))
    head = [RESIZE_MODES[a["mode"]], RESIZE_COORDINATES[a["coordinate"]], RESIZE_NEAREST[a["nearest"]], bits(a["cubic_coeff_a"])]
    return [*head, *scales, int(a["exclude_outside"]), *[0] * 7]


def roi_scratch(shape: Sequence[int], image: Sequence[int], mode: str, ratio: int) -> int:
    """Bytes that ROIALIGN takes for lists of pixels of an output [R, C, OH, OW] of images [N, C, H, W]."""
    total = 64
    for cells, pixels in zip(shape[2:], image[2:], strict=True):
        room = min(2 * ratio or pixels, pixels) if mode == "avg" else 2 * (ratio or 2 * (pixels + 3))
        total += cells * room * 16 + -(-cells * 5 // 64) * 64
    return total


def _attention(a: dict[str, Any]) -> list[int]:
    head = [bits(a["scale"]), int(a["causal"]), a["offset"], bits(a["fill"]), bits(a["softcap"])]
    return [*head, GUARDS[a["guard"]], int(a["mask_first"]), 0]


_PARAMS: dict[str, Callable[[dict[str, Any]], list[int]]] = {
    "GEMM": _gemm,
    "QNBITGEMM": _qnbitgemm,
    "BGEMM": lambda a: [bits(a["alpha"]), *_act(a["act"]), _last(a)],
    "BCONV": _convolution,
    "QGEMM": lambda a: [int(a["zeros"]), *_to_bytes(a)],
    "QCONV": lambda a: [int(a["zeros"]), *_window(a), *_to_bytes(a)],
    "DGEMM": lambda a: [bits(a["alpha"]), *_act(a["act"]), TERMS[a.get("term", "product")]],
    "STRASSEN": lambda a: [],
    "CONV": lambda a: [*_conv(a), *depth(a)],
    "WINO": lambda a: [*_conv(a), a["block"], *depth(a)],
    "DWCONV": lambda a: [*_conv(a), *depth(a)],
    "PWDW": _pwdw,
    "POOL": _pool,
    "UNARY": lambda a: [UNARY[a["opcode"]], bits(a["a"]), bits(a["b"])],
    "BINARY": lambda a: [BINARY[a["opcode"]], *_act(a["act"])],
    "TERNARY": lambda a: [TERNARY[a["opcode"]], *_act(a["act"])],
    "CAST": lambda a: [int(a["saturate"])],
    "COPY": lambda a: [],
    "QUANTIZE": lambda a: [int(a["times"])],
    "DEQUANTIZE": lambda a: [],
    "MINMAX": lambda a: [a["axis"]],
    "QPARAMS": lambda a: [],
    "PAD": _pad,
    "REDUCE": lambda a: [REDUCE[a["opcode"]], sum(1 << axis for axis in a["axes"])],
    "ARGREDUCE": lambda a: [0 if a["mode"] == "max" else 1, a["axis"], int(a["select_last"]), 0],
    "SOFTMAX": lambda a: [a["axis"], int(a["log"])],
    "NORM": lambda a: [a["axis"], NORM_MODES[a["mode"]], bits(a["eps"])],
    "MOMENTS": lambda a: [],
    "STANDARDIZE": lambda a: [bits(a["eps"]), *_act(a["act"])],
    "LRN": lambda a: [a["size"], bits(a["alpha"]), bits(a["beta"]), bits(a["bias"])],
    "GATHER": lambda a: [a["axis"]],
    "GATHER_ELEMENTS": lambda a: [a["axis"]],
    "TOPK": lambda a: [a["axis"], int(a["largest"])],
    "INDEX": lambda a: [len(a["dims"]), *a["dims"], *[0] * (8 - len(a["dims"]))],
    "SCATTER": lambda a: [a["axis"], SCATTER_REDUCTIONS[a["reduction"]]],
    "CUMSUM": lambda a: [a["axis"], int(a["exclusive"]), int(a["reverse"])],
    "GRIDSAMPLE": lambda a: [GRID_MODES[a["mode"]], GRID_PADDINGS[a["padding"]], int(a["align_corners"])],
    "ROIALIGN": lambda a: [ROI_MODES[a["mode"]], a["ratio"], bits(a["scale"]), int(a["half_pixel"])],
    "DEFORM": lambda a: [a["groups"], a["parts"], *a["kernel"], *a["strides"], *a["dilations"], *a["pads"]],
    "TREES": lambda a: [AGGREGATES[a["aggregate"]], a["flags"], a["most"]],
    "SCORES": lambda a: [TRANSFORMS[a["transform"]], SECOND_SCORES[a["second"]]],
    "LABELS": lambda a: [LABEL_MODES[a["mode"]], a["column"], bits(a["threshold"])],
    "RBF": lambda a: [bits(a["gamma"])],
    "DUELS": lambda a: [],
    "COUPLE": lambda a: [],
    "RESIZE": _resize,
    "ATTENTION": _attention,
    "LSTM": lambda a: [a["first"], int(a["reverse"]), 0],
    "GRU": lambda a: [a["first"], int(a["reverse"]), GRU_FORMS[a["form"]]],
    "RNN": lambda a: [a["first"], int(a["reverse"]), int(a["relu"])],
    "OPAQUE": lambda a: [],
}


def params(node: Node) -> list[int]:
    """The parameters of a kernel-level node, as many as its kernel has."""
    return _PARAMS[node.op](node.attrs)
