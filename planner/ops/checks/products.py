"""Products of matrices."""

from __future__ import annotations

from aspen_mp.planner.ops.checks.call import (
    BOOL,
    F32,
    F64,
    I8,
    I32,
    LIMIT,
    U8,
    U32,
    Call,
    Rule,
    Shape,
    activation,
    all_f32,
    all_of,
    in_range,
    is_f32,
    need,
    ranked,
    scaled,
    shaped,
)
from aspen_mp.planner.ops.packing.bf16 import packed_shape as packed_pairs
from aspen_mp.planner.ops.packing.low_bit import packed_shape, whole_groups
from aspen_mp.planner.ops.params import GUARDS, TERMS, left_factors, packed_bytes
from aspen_mp.shm.tables import UNARY


def _gemm(call: Call) -> None:
    all_f32(call)
    out, a, b = call.out.shape, call.input(0), call.input(1)
    packed = in_range(call, 0, "packed_b", 0, 3)
    activation(call, 2)
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


def _qnbitgemm(call: Call) -> None:
    out, a, b = call.out.shape, call.input(0), call.input(1)
    need(b.dtype == U8, "dtype of input 1", b.dtype, U8)
    is_f32(call.out, "the output")
    for i in (0, 2, 3, 4, 5, 6):
        is_f32(call.optional(i), f"input {i}")
    activation(call, 1)
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
    """What the products of bytes share: dtypes, and the parameters from `last` on, activation, residual_last, scale and zero."""
    out, a, b = call.out, call.input(0), call.input(1)
    in_range(call, 0, "zeros", 0, 2)
    activation(call, last)
    in_range(call, last + 3, "residual_last", 0, 3)
    in_range(call, last + 5, "zero", -LIMIT, LIMIT)
    need(out.dtype in (F32, I32, I8, U8), "dtype of the output", out.dtype, (F32, I32, I8, U8))
    need(a.dtype in (I8, U8), "dtype of input 0", a.dtype, (I8, U8))
    need(b.dtype == I8, "dtype of input 1", b.dtype, I8)
    need(b.dense, "strides of input 1", "not contiguous", "a packed weight")
    for i in range(2, 6):
        arg = call.optional(i)
        wanted = a.dtype if i == 5 else F32
        need(arg is None or arg.dtype == wanted, f"dtype of input {i}", arg and arg.dtype, wanted)
        need(arg is None or i == 5 or out.dtype != I32, f"input {i}", "present", "absent where the output is the sums")
    need(out.dtype != I32 or call.params[last] == UNARY["IDENTITY"], "activation", call.params[last], "none where the output is the sums")


def _qgemm(call: Call) -> None:
    out, a, b = call.out.shape, call.input(0), call.input(1)
    bytes_and_scales(call, 1)
    need(len(out) >= 2, "rank of the output", len(out), "at least 2")
    ranked(a, len(out), "input 0")
    depth = a.shape[-1]
    shaped(a, (*out[:-1], depth), "shape of input 0")
    shaped(b, packed_bytes(depth, out[-1]), "shape of input 1")
    for i in range(2, 6):
        shaped(call.optional(i), out, f"shape of input {i}")


def pairs(call: Call, depth: int, columns: int, taps: int = 1) -> None:
    """The operands of products of pairs, as far as they are alike for matrices and images."""
    w = call.input(1)
    need(w.dtype == U32, "dtype of input 1", w.dtype, U32)
    shaped(w, packed_pairs(depth, columns, taps), "shape of input 1")
    need(w.dense, "strides of input 1", "not contiguous", "a packed weight")
    is_f32(call.out, "the output")
    for i in (0, *range(2, 8)):
        is_f32(call.optional(i), f"input {i}")


def _bgemm(call: Call) -> None:
    out, a = call.out.shape, call.input(0)
    activation(call, 1)
    in_range(call, 4, "residual_last", 0, 3)
    need(len(out) >= 2, "rank of the output", len(out), "at least 2")
    ranked(a, len(out), "input 0")
    shaped(a, (*out[:-1], a.shape[-1]), "shape of input 0")
    pairs(call, a.shape[-1], out[-1])
    shaped(call.optional(2), out, "shape of input 2")
    shaped(call.optional(3), out, "shape of input 3")
    scaled(call, 4, out[-1])


def _dgemm(call: Call) -> None:
    all_of(call, F64)
    out, a, b = call.out.shape, call.input(0), call.input(1)
    activation(call, 1)
    in_range(call, 4, "term", 0, len(TERMS))
    need(len(out) >= 2, "rank of the output", len(out), "at least 2")
    ranked(a, len(out), "input 0")
    shaped(a, (*out[:-1], a.shape[-1]), "shape of input 0")
    shaped(b, (*out[:-2], a.shape[-1], out[-1]), "shape of input 1")
    shaped(call.optional(2), out, "shape of input 2")


def _strassen(call: Call) -> None:
    all_f32(call)
    a = call.input(0)
    need(len(a.shape) >= 2, "rank of input 0", len(a.shape), "at least 2")
    need(a.shape[-1] % 2 == 0, "shape of input 0", a.shape, "an even number of terms")
    shaped(call.out, left_factors(a.shape), "shape of the output")
    need(call.out.dense, "strides of the output", "not contiguous", "contiguous")


def _attention(call: Call) -> None:
    out, q, k, v, mask = call.out.shape, call.input(0), call.input(1), call.input(2), call.optional(3)
    for name, arg in (("the output", call.out), ("input 0", q), ("input 1", k), ("input 2", v)):
        need(arg.dtype == F32, f"dtype of {name}", arg.dtype, F32)
    need(mask is None or mask.dtype in (F32, BOOL), "dtype of input 3", mask and mask.dtype, (F32, BOOL))
    need(len(out) >= 2, "rank of the output", len(out), "at least 2")
    need(len(q.shape) == len(out) == len(k.shape), "rank of inputs 0 and 1", (len(q.shape), len(k.shape)), len(out))
    depth, keys = q.shape[-1], k.shape[-2]
    shaped(q, (*out[:-1], depth), "shape of input 0")
    shaped(k, (*out[:-2], keys, depth), "shape of input 1")
    shaped(v, (*out[:-2], keys, out[-1]), "shape of input 2")
    shaped(mask, (*out[:-1], keys), "shape of input 3")
    in_range(call, 1, "causal", 0, 2)
    in_range(call, 2, "offset", -LIMIT, LIMIT)
    in_range(call, 5, "guard", 0, len(GUARDS))
    in_range(call, 6, "mask_first", 0, 2)


RULES: dict[str, Rule] = {
    "GEMM": _gemm,
    "QNBITGEMM": _qnbitgemm,
    "QGEMM": _qgemm,
    "BGEMM": _bgemm,
    "DGEMM": _dgemm,
    "STRASSEN": _strassen,
    "ATTENTION": _attention,
}
