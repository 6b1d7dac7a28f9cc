"""Products of matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from aspen_mp.planner.ir.graph import Node, Shape
from aspen_mp.planner.ops.boxes import Boxes, Region, broadcast, whole
from aspen_mp.planner.ops.call import (
    F32,
    F64,
    I8,
    I32,
    LIMIT,
    U8,
    U32,
    Call,
    all_f32,
    all_of,
    has_function,
    in_range,
    is_f32,
    is_float,
    need,
    ranked,
    scaled,
    shaped,
)
from aspen_mp.planner.ops.packing.bf16 import packed_shape as packed_bf16
from aspen_mp.planner.ops.packing.low_bit import packed_shape, whole_groups
from aspen_mp.planner.ops.params import Param, activation, choice, integer, noted, real, reserved
from aspen_mp.planner.ops.spec import PLAIN_NS, Cost, Input, Kind, OpSpec, Seen, TileModel, each, inputs
from aspen_mp.shm.tables import NUMBERS, UNARY

TERMS = {"product": 0, "square": 1, "absolute": 2}
BYTES_GROUP, BYTES_HEADER = NUMBERS["BYTES_GROUP"], NUMBERS["BYTES_HEADER"]
"""Terms of a column that lie side by side in packed bytes; groups in front of each panel: the columns' sums, zero points and constants."""


def packed_bytes(depth: int, columns: int, taps: int = 1) -> tuple[int, int, int, int]:
    """The shape of packed bytes of [depth, columns], or of `taps` taps of them."""
    return (-(-columns // 32), BYTES_HEADER + taps * -(-depth // BYTES_GROUP), 32, BYTES_GROUP)


def run_time_panels(depth: int, columns: int) -> tuple[int, int, int]:
    """The shape of a matrix of bytes [depth, columns] that QPACK packs: panels, groups of terms, bytes of a group."""
    panels, groups, width, item = packed_bytes(depth, columns)
    return panels, groups, width * item


def left_factors(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of STRASSEN's result for A[…, M, K]: seven factors of each pair of rows, of half the terms. There is one more value, and as
    many as it takes to an uneven number of cache lines."""
    return (*shape[:-2], -(-shape[-2] // 2), 7 * 16 * (shape[-1] // 2 // 16 + 1 | 1))


STRASSEN_PART = NUMBERS["SEVEN_PART"]
"""Terms of a half, at most, that Strassen's products take at a time."""


def strassen_scratch(terms: int, halves: bool = False) -> int:
    """Bytes that GEMM takes for Strassen's products. They are right factors of a part of the terms, and where there are several parts, the
    sums so far of some pairs of rows. With weights of 16 bits (`halves`) QNBITGEMM takes those of a part as floats, too, and those of a
    panel."""
    half = terms // 2
    parts = max(-(-half // STRASSEN_PART), 1)
    longest = half if parts == 1 else -(-half // (16 * parts)) * 16
    floats = 4 * longest + terms if halves else 0
    return 4 * 32 * (5 * longest + (7 * NUMBERS["SEVEN_PAIRS"] if parts > 1 else 0) + floats)


RESIDUAL_NS = 0.18
"""An element of the output of a matrix kernel, where a residual is added to it."""
UNPACKED, UNPACKED_HALVES = 0.6, 0.4
"""The time of making a float of a weight of a few bits, and (an estimate) of one of 16, in rows."""
DOUBLE_TERM_NS = 0.06
"""A multiply-add of DGEMM."""


def by_strassen(node: Node) -> bool:
    """Whether a product takes left factors of Strassen's."""
    return node.op in ("GEMM", "QNBITGEMM") and len(node.inputs) > 6


def _gemm_flops(node: Node) -> float:
    a = node.inputs[0]
    return 2.0 * (7 / 8 if by_strassen(node) else 1.0) * node.output.size * a.shape[-1] if a is not None else 0.0


def _gemm_region(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    if i == 1 and (node.op == "QNBITGEMM" or node.attrs.get("packed_b", False)):
        out_lo, out_hi = whole(shape, len(lo))
        first, last = lo[:, -1] // 32, (hi[:, -1] + 31) // 32
        if len(node.inputs) > 6:  # of a pair of panels both are read
            first, last = first // 2 * 2, np.minimum((last + 1) // 2 * 2, shape[0])
        out_lo[:, 0], out_hi[:, 0] = first, last
        return out_lo, out_hi
    if i == 6:
        out_lo, out_hi = lo.copy(), hi.copy()
        out_lo[:, -2], out_hi[:, -2] = lo[:, -2] // 2, (hi[:, -2] + 1) // 2
        out_lo[:, -1], out_hi[:, -1] = 0, shape[-1]
        return out_lo, out_hi
    out_lo, out_hi = broadcast(shape, lo, hi)
    if i == 0:
        out_lo[:, -1], out_hi[:, -1] = 0, shape[-1]
    elif i == 1:
        out_lo[:, -2], out_hi[:, -2] = 0, shape[-2]
    return out_lo, out_hi


def _qgemm_region(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    if i == 1:
        out_lo, out_hi = whole(shape, len(lo))
        out_lo[:, 0], out_hi[:, 0] = lo[:, -1] // 32, (hi[:, -1] + 31) // 32
        return out_lo, out_hi
    out_lo, out_hi = broadcast(shape, lo, hi)
    if i == 0:
        out_lo[:, -1], out_hi[:, -1] = 0, shape[-1]
    return out_lo, out_hi


def _qmatmul_region(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    if i == 1:
        out_lo, out_hi = whole(shape, len(lo))
        leading = len(shape) - 3
        out_lo[:, :leading], out_hi[:, :leading] = lo[:, :leading], hi[:, :leading]
        out_lo[:, leading], out_hi[:, leading] = lo[:, -1] // 32, (hi[:, -1] + 31) // 32
        return out_lo, out_hi
    out_lo, out_hi = broadcast(shape, lo, hi)
    if i == 0:
        out_lo[:, -1], out_hi[:, -1] = 0, shape[-1]
    return out_lo, out_hi


def _qpack_region(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    out_lo, out_hi = whole(shape, len(lo))
    if i == 0:
        leading = len(shape) - 2
        out_lo[:, :leading], out_hi[:, :leading] = lo[:, :leading], hi[:, :leading]
        out_lo[:, -1], out_hi[:, -1] = 32 * lo[:, leading], np.minimum(32 * hi[:, leading], shape[-1])
    return out_lo, out_hi


def _strassen_region(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    lo, hi = lo.copy(), hi.copy()
    lo[:, -2], hi[:, -2] = 2 * lo[:, -2], np.minimum(2 * hi[:, -2], shape[-2])
    lo[:, -1], hi[:, -1] = 0, shape[-1]
    return lo, hi


def _gemm_checks(call: Call) -> None:
    all_f32(call)
    out, a, b = call.out.shape, call.input(0), call.input(1)
    packed = in_range(call, 0, "packed_b", 0, 3)
    has_function(call, 2)
    in_range(call, 5, "residual_last", 0, 3)
    need(len(out) >= 2, "rank of the output", len(out), "at least 2")
    need(len(a.shape) == len(out), "rank of input 0", len(a.shape), len(out))
    depth = a.shape[-1]
    shaped(a, (*out[:-1], depth), "shape of input 0")
    if packed:
        shaped(b, (-(-out[-1] // 32), depth, 32), "shape of input 1")
        need(b.dense, "strides of input 1", "not contiguous", "a packed weight")
    else:
        shaped(b, (*out[:-2], depth, out[-1]), "shape of input 1")
    shaped(call.optional(2), out, "shape of input 2")
    shaped(call.optional(3), out, "shape of input 3")
    scaled(call, 4, out[-1])
    _left(call, a.shape, packed > 0)


def _left(call: Call, shape: Shape, may: bool) -> None:
    """Strassen's left factors of input 0, of the given shape: packed weights of 32 or 16 bits `may` go with them."""
    left = call.optional(6)
    if left is not None:
        need(may and shape[-1] % 2 == 0, "input 6", left.shape, "absent without packed weights and an even number of terms")
        shaped(left, left_factors(shape), "shape of input 6")
        need(left.dense, "strides of input 6", "not contiguous", "contiguous")


def _qnbitgemm_checks(call: Call) -> None:
    out, a, b = call.out.shape, call.input(0), call.input(1)
    need(b.dtype == U8, "dtype of input 1", b.dtype, U8)
    is_f32(call.out, "the output")
    for i in (0, 2, 3, 4, 5, 6):
        is_f32(call.optional(i), f"input {i}")
    has_function(call, 1)
    in_range(call, 4, "residual_last", 0, 3)
    bits, block, zeros = in_range(call, 5, "bits", 4, 17), in_range(call, 6, "block", 1, LIMIT), in_range(call, 7, "zeros", 0, 2)
    need(bits in (4, 8, 16), "bits", bits, (4, 8, 16))
    need(bits != 16 or not zeros, "zeros", zeros, 0)
    in_range(call, 8, "zero", 0, 2 if bits == 16 else 1 << bits)
    need(len(out) >= 2, "rank of the output", len(out), "at least 2")
    ranked(a, len(out), "input 0")
    depth = a.shape[-1]
    need(whole_groups(depth, bits, block), "block", block, f"whole words of {32 // bits} terms")
    shaped(a, (*out[:-1], depth), "shape of input 0")
    shaped(b, packed_shape(depth, out[-1], bits, block, bool(zeros)), "shape of input 1")
    need(b.dense, "strides of input 1", "not contiguous", "a packed weight")
    shaped(call.optional(2), out, "shape of input 2")
    shaped(call.optional(3), out, "shape of input 3")
    scaled(call, 4, out[-1])
    _left(call, a.shape, bits == 16)


def bytes_and_scales(call: Call, last: int) -> None:
    """Checks that all products of bytes share: dtypes, and the parameters from `last` on, activation, residual_last, and those of bytes."""
    out, a, b = call.out, call.input(0), call.input(1)
    has_function(call, last)
    in_range(call, last + 3, "residual_last", 0, 3)
    in_range(call, last + 5, "zero", -LIMIT, LIMIT)
    in_range(call, last + 7, "residual_zero", -LIMIT, LIMIT)
    need(out.dtype in (F32, I32, I8, U8), "dtype of the output", out.dtype, (F32, I32, I8, U8))
    need(a.dtype in (I8, U8), "dtype of input 0", a.dtype, (I8, U8))
    need(b.dtype == I8, "dtype of input 1", b.dtype, I8)
    need(b.dense, "strides of input 1", "not contiguous", "a packed weight")
    for i in range(2, 6):
        arg = call.optional(i)
        wanted = (a.dtype,) if i == 5 else (F32, I8, U8) if i == 3 else (F32,)
        need(arg is None or arg.dtype in wanted, f"dtype of input {i}", arg and arg.dtype, wanted)
        need(arg is None or i == 5 or out.dtype != I32, f"input {i}", "present", "absent where the output is the sums")
    need(out.dtype != I32 or call.params[last] == UNARY["IDENTITY"], "activation", call.params[last], "none where the output is the sums")


def _matrices_of_bytes(call: Call, panels: Callable[[int, int], Sequence[int]]) -> None:
    """Checks that products of matrices of bytes share. `panels`: the shape of B, of its terms and columns."""
    out, a, b = call.out.shape, call.input(0), call.input(1)
    in_range(call, 0, "zeros", 0, 2)
    bytes_and_scales(call, 1)
    need(len(out) >= 2, "rank of the output", len(out), "at least 2")
    ranked(a, len(out), "input 0")
    depth = a.shape[-1]
    shaped(a, (*out[:-1], depth), "shape of input 0")
    shaped(b, tuple(panels(depth, out[-1])), "shape of input 1")
    for i in range(2, 6):
        shaped(call.optional(i), out, f"shape of input {i}")


def _qgemm_checks(call: Call) -> None:
    _matrices_of_bytes(call, packed_bytes)


def _qmatmul_checks(call: Call) -> None:
    _matrices_of_bytes(call, lambda depth, columns: (*call.out.shape[:-2], *run_time_panels(depth, columns)))


def _qpack_checks(call: Call) -> None:
    out, b, zero = call.out, call.input(0), call.optional(1)
    need(b.dtype in (I8, U8), "dtype of input 0", b.dtype, (I8, U8))
    need(len(b.shape) >= 2, "rank of input 0", len(b.shape), "at least 2")
    need(out.dtype == I8, "dtype of the output", out.dtype, I8)
    shaped(out, (*b.shape[:-2], *run_time_panels(*b.shape[-2:])), "shape of the output")
    need(out.dense, "strides of the output", "not contiguous", "contiguous")
    if zero is not None:
        need(zero.dtype == b.dtype, "dtype of input 1", zero.dtype, b.dtype)
        shaped(zero, (1,), "shape of input 1")


def bf16_operands(call: Call, depth: int, columns: int, taps: int = 1) -> None:
    """The operands of products of bf16, as far as they are alike for matrices and images."""
    w = call.input(1)
    need(w.dtype == U32, "dtype of input 1", w.dtype, U32)
    shaped(w, packed_bf16(depth, columns, taps), "shape of input 1")
    need(w.dense, "strides of input 1", "not contiguous", "a packed weight")
    is_float(call.out, "the output")
    for i in (0, 3):
        is_float(call.optional(i), f"input {i}")
    for i in (2, *range(4, 8)):
        is_f32(call.optional(i), f"input {i}")


def _bgemm_checks(call: Call) -> None:
    out, a = call.out.shape, call.input(0)
    has_function(call, 1)
    in_range(call, 4, "residual_last", 0, 3)
    in_range(call, 5, "amx", 0, 2)
    need(len(out) >= 2, "rank of the output", len(out), "at least 2")
    ranked(a, len(out), "input 0")
    shaped(a, (*out[:-1], a.shape[-1]), "shape of input 0")
    bf16_operands(call, a.shape[-1], out[-1])
    shaped(call.optional(2), out, "shape of input 2")
    shaped(call.optional(3), out, "shape of input 3")
    scaled(call, 4, out[-1])


def _dgemm_checks(call: Call) -> None:
    all_of(call, F64)
    out, a, b = call.out.shape, call.input(0), call.input(1)
    has_function(call, 1)
    in_range(call, 4, "term", 0, len(TERMS))
    need(len(out) >= 2, "rank of the output", len(out), "at least 2")
    ranked(a, len(out), "input 0")
    shaped(a, (*out[:-1], a.shape[-1]), "shape of input 0")
    shaped(b, (*out[:-2], a.shape[-1], out[-1]), "shape of input 1")
    shaped(call.optional(2), out, "shape of input 2")


def _strassen_checks(call: Call) -> None:
    all_f32(call)
    a = call.input(0)
    need(len(a.shape) >= 2, "rank of input 0", len(a.shape), "at least 2")
    need(a.shape[-1] % 2 == 0, "shape of input 0", a.shape, "an even number of terms")
    shaped(call.out, left_factors(a.shape), "shape of the output")
    need(call.out.dense, "strides of the output", "not contiguous", "contiguous")


def _terms(node: Node) -> int:
    a = node.inputs[0]
    return a.shape[-1] if a is not None else 0


def _gemm_scratch(node: Node) -> int:
    """Where weights are packed floats, only Strassen's algorithm takes any."""
    if by_strassen(node):
        return strassen_scratch(_terms(node), node.op == "QNBITGEMM")
    return 0 if node.attrs.get("packed_b", False) else 128 * _terms(node)


A = Input("a", "[…, M, K]", seen=Seen.MATRICES)
PANELS = "[panels, K, 32]"
BIAS = Input("bias", "added to the sums", True, Seen.OUTPUT)
RESIDUAL = Input("residual", "added behind the bias, or at the end", True, Seen.OUTPUT)
SCALE, SHIFT = Input("scale", "[N], behind the activation", True), Input("shift", "[N], with the scale", True)
LEFT = Input("left", "STRASSEN of A", True)
ALPHA = real("alpha", "a factor of the sums")
ACT = activation("act", "behind bias and residual: act(alpha * sums + bias + residual) * scale + shift")
AMX = integer("amx", "whether sums have the order of AMX's instructions", default=0)
LAST = Param(
    "residual_last",
    "whether the residual is added at the end instead, absent: False; with `gated` (of matrices alone) the end is a product with it",
    1,
    lambda a: (2 if a.get("gated", False) else int(a.get("residual_last", False)),),
)
ZEROS = integer("zeros", "whether the weights have zero points")
IN_BYTES = (
    real("scale", "of bytes of output", 1.0),
    integer("zero", "of bytes of output", 0),
    real("residual_scale", "of a residual of bytes, whose values are (byte - zero) * scale", 1.0),
    integer("residual_zero", "of a residual of bytes", 0),
)
BYTES = "act(factor * sums + bias + residual) in f32; as bytes, that over the scale and rounded, plus the zero point; or the sums in i32"
_COST = Cost(_gemm_flops, tiles=TileModel.PRODUCT, residual_ns=RESIDUAL_NS, hides=True)

_QGEMM = OpSpec(
    name="QGEMM",
    inputs=(
        replace(A, about="[…, M, K], bytes"),
        Input("weights", "see `packed_bytes`", packed=True),
        BIAS,
        RESIDUAL,
        Input("factor", "of the sums", True, Seen.OUTPUT),
        Input("zero", "of A, one a row", True, Seen.OUTPUT),
    ),
    params=(ZEROS, replace(ACT, about=BYTES), LAST, *IN_BYTES),
    region=_qgemm_region,
    checks=_qgemm_checks,
    kind=Kind.PRODUCT,
    batch_rank=3,
    cost=replace(_COST, item=1),
)
SPECS = (
    OpSpec(
        name="GEMM",
        inputs=(A, Input("weights", f"[…, K, N], or {PANELS}", seen=Seen.MATRICES, packed="packed_b"), BIAS, RESIDUAL, SCALE, SHIFT, LEFT),
        params=(
            Param("packed_b", "whether B is packed; 2 if `streamed`", 1, lambda a: (int(a["packed_b"]) + int(a.get("streamed", False)),)),
            ALPHA,
            ACT,
            LAST,
            integer("least_rows", "of the output, below which the left factors are not used; where there are none, or always: 0", 0),
            reserved(1),
            noted("streamed", "whether the kernel fetches packed weights further ahead than the hardware does"),
            noted("exact", "whether sums are of integers, which Strassen's algorithm, whose sums are larger, could round"),
        ),
        region=_gemm_region,
        checks=_gemm_checks,
        kind=Kind.PRODUCT,
        batch_rank=3,
        cost=replace(_COST, scratch=_gemm_scratch),
    ),
    OpSpec(
        name="QNBITGEMM",
        inputs=(A, Input("weights", "see `low_bit.packed_shape`", packed=True), BIAS, RESIDUAL, SCALE, SHIFT, LEFT),
        params=(
            ALPHA,
            ACT,
            LAST,
            integer("bits", "of a weight: 4, 8 or 16"),
            integer("block", "terms of a column that share a scale"),
            integer("zeros", "whether blocks have zero points"),
            integer("zero", "zero point of all, where blocks have none; of 16 bits: whether they are bf16"),
        ),
        region=_gemm_region,
        checks=_qnbitgemm_checks,
        kind=Kind.PRODUCT,
        batch_rank=3,
        cost=replace(_COST, unpacked=lambda node: UNPACKED_HALVES if node.attrs["bits"] == 16 else UNPACKED, scratch=_gemm_scratch),
    ),
    _QGEMM,
    replace(
        _QGEMM,
        name="QMATMUL",
        inputs=(_QGEMM.inputs[0], Input("b", "QPACK of […, K, N]"), *_QGEMM.inputs[2:]),
        region=_qmatmul_region,
        checks=_qmatmul_checks,
    ),
    OpSpec(
        name="QPACK",
        inputs=(Input("b", "[…, K, N], bytes, of which the output has panels"), Input("zero", "[1], of all columns", True)),
        params=(noted("granules", "columns of a panel, and terms of a group"),),
        region=_qpack_region,
        checks=_qpack_checks,
        whole_axes=lambda node: frozenset({len(node.output.shape) - 2, len(node.output.shape) - 1}),
        batch_rank=3,
        cost=Cost(inputs, each(0.15)),
    ),
    OpSpec(
        name="BGEMM",
        inputs=(
            replace(A, halves=True),
            Input("weights", "see `bf16.packed_shape`; A and B are rounded to bf16", packed=True),
            BIAS,
            replace(RESIDUAL, halves=True),
            SCALE,
            SHIFT,
        ),
        params=(ALPHA, ACT, LAST, AMX),
        region=_qgemm_region,
        checks=_bgemm_checks,
        kind=Kind.PRODUCT,
        batch_rank=3,
        halves=True,
        cost=replace(_COST, item=2),
    ),
    OpSpec(
        name="DGEMM",
        inputs=(A, Input("b", "[…, K, N], f64", seen=Seen.MATRICES), BIAS),
        params=(ALPHA, ACT, choice("term", TERMS, "of which the sums are: products, or distances", "product")),
        region=_gemm_region,
        checks=_dgemm_checks,
        cost=Cost(
            _gemm_flops,
            ns=lambda node, flops: flops * DOUBLE_TERM_NS / 2 + node.output.size * PLAIN_NS,
            scratch=lambda node: 256 * _terms(node),
        ),
    ),
    OpSpec(
        name="STRASSEN",
        inputs=(Input("a", "[…, M, K], of which the output has left factors of pairs of rows"),),
        region=_strassen_region,
        checks=_strassen_checks,
        whole_axes=lambda node: frozenset({len(node.output.shape) - 1}),
        batch_rank=3,
        cost=Cost(element_ns=each(0.12)),
    ),
)
