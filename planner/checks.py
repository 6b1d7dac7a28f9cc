"""Do the operands and parameters of an op fit its kernel? Kernels trust a plan in this: what passes here cannot make one leave its
operands.

Each rule sees the shapes and dtypes of output and inputs and the i64 parameters, as written down in ``workers/kernels/kernel.h``, and
raises `Misfit` naming what does not fit.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite, prod

from aspen_mp.planner.nbits import packed_shape, whole_groups
from aspen_mp.planner.pairs import packed_shape as packed_pairs
from aspen_mp.planner.params import GRU_FORMS, GUARDS, image_scratch, left_factors, packed_bytes, roi_scratch
from aspen_mp.planner.winograd import BLOCKS, blocks_of
from aspen_mp.shm.tables import BINARY, DTYPES, PAD_MODES, REDUCE, TERNARY, UNARY

Shape = tuple[int, ...]
F32, F64, I8, U8 = DTYPES["F32"], DTYPES["F64"], DTYPES["I8"], DTYPES["U8"]
I32, U32, I64, BOOL = DTYPES["I32"], DTYPES["U32"], DTYPES["I64"], DTYPES["BOOL"]
_NUMBERS = {DTYPES[name] for name in ("F32", "F64", "I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64")}
_LEVELS = {DTYPES[name] for name in ("I8", "U8", "I16", "U16")}
UNITS = 16
"""Of a panel of recurrent weights."""
LSTM_GATES, GRU_GATES = 4, 3
WIDEST_WINDOW = 64
"""Rows and columns that a window of PWDW may span or move by: it keeps so many in scratch memory."""
LIMIT = 1 << 31
"""Sizes, strides and paddings of windows stay below this, so that their products with dimensions fit 64 bits."""

LONGEST_IMAGE = 1 << 30
"""So many pixels along an axis are too many for those that read images between their pixels."""
MOST_POINTS, MOST_LISTS = 1 << 10, 1 << 24
"""Of a cell of ROIALIGN along an axis; bytes of its lists of pixels."""
MOST_COPIED = 1 << 34
"""Bytes of scratch memory that ICONV and BCONV take for an image, by far: numbers of bytes stay numbers."""
MOST_ROWS = 14
"""Pixels of a line that BCONV takes together, and copies at least."""


class Misfit(Exception):
    """(what, value, bound): the part of an op that its kernel does not allow."""


@dataclass(frozen=True, slots=True)
class Arg:
    """An operand as a kernel sees it."""

    dtype: int
    shape: Shape
    dense: bool
    """Contiguous and row-major."""


@dataclass(frozen=True, slots=True)
class Call:
    """An op. ``inputs`` has an entry for each input, None where it is absent. ``more``: outputs behind the first."""

    out: Arg
    inputs: Sequence[Arg | None]
    params: Sequence[int]
    more: Sequence[Arg] = ()

    def input(self, i: int) -> Arg:
        x = self.inputs[i] if i < len(self.inputs) else None
        if x is None:
            raise Misfit(f"input {i}", "absent", "required")
        return x

    def optional(self, i: int) -> Arg | None:
        return self.inputs[i] if i < len(self.inputs) else None


def check_call(kernel: str, call: Call) -> None:
    """Raises `Misfit` unless a call of `kernel` with these operands stays within them."""
    rule = _RULES.get(kernel)
    if rule is not None:
        rule(call)


def _need(ok: bool, what: str, value: object, bound: object) -> None:
    if not ok:
        raise Misfit(what, value, bound)


def _range(call: Call, i: int, name: str, lo: int, hi: int) -> int:
    value = call.params[i]
    _need(lo <= value < hi, name, value, f"{lo} … {hi - 1}")
    return value


def _shape(arg: Arg | None, shape: Sequence[int], what: str) -> None:
    if arg is not None:
        _need(arg.shape == tuple(shape), what, arg.shape, tuple(shape))


def _all_f32(call: Call) -> None:
    for k, arg in enumerate([call.out, *call.more, *call.inputs]):
        _need(arg is None or arg.dtype == F32, f"dtype of operand {k}", arg and arg.dtype, F32)


def _f32(arg: Arg | None, what: str) -> None:
    _need(arg is None or arg.dtype == F32, f"dtype of {what}", arg and arg.dtype, F32)


def _act(call: Call, i: int) -> None:
    _range(call, i, "activation", 0, len(UNARY))


def _rank(arg: Arg, rank: int, what: str) -> None:
    _need(len(arg.shape) == rank, f"rank of {what}", len(arg.shape), rank)


def _elementwise(n: int, opcodes: int | None) -> Callable[[Call], None]:
    def rule(call: Call) -> None:
        if opcodes is not None:
            _range(call, 0, "opcode", 0, opcodes)
        for i in range(n):
            _shape(call.input(i), call.out.shape, f"shape of input {i}")

    return rule


def _binary(call: Call) -> None:
    _elementwise(2, len(BINARY))(call)
    _act(call, 1)


def _ternary(call: Call) -> None:
    _elementwise(3, len(TERNARY))(call)
    _act(call, 1)


def _levels_of(call: Call, stored: int) -> None:
    """Scale and zero point beside whole numbers of this dtype."""
    for i in range(2):
        _shape(call.input(i), call.out.shape, f"shape of input {i}")
    zero = call.optional(2)
    _shape(zero, call.out.shape, "shape of input 2")
    _need(call.input(1).dtype == F32, "dtype of input 1", call.input(1).dtype, F32)
    _need(zero is None or zero.dtype == stored, "dtype of input 2", zero and zero.dtype, stored)


def _quantize(call: Call) -> None:
    _range(call, 0, "times", 0, 2)
    _need(call.input(0).dtype in (F32, I32), "dtype of input 0", call.input(0).dtype, (F32, I32))
    _need(call.out.dtype in _LEVELS, "dtype of the output", call.out.dtype, sorted(_LEVELS))
    _levels_of(call, call.out.dtype)


def _dequantize(call: Call) -> None:
    x = call.input(0)
    _need(call.out.dtype == F32, "dtype of the output", call.out.dtype, F32)
    _need(x.dtype in _LEVELS | {I32}, "dtype of input 0", x.dtype, sorted(_LEVELS | {I32}))
    _levels_of(call, x.dtype)


def _extremes(call: Call) -> None:
    _all_f32(call)
    x = call.input(0)
    axis = _range(call, 0, "axis", 0, len(x.shape))
    _rank(call.out, 2, "the output")
    blocks = call.out.shape[0]
    _shape(call.out, (blocks, 2), "shape of the output")
    _need(1 <= blocks <= x.shape[axis], "blocks of the output", blocks, f"1 … {x.shape[axis]}")
    _need(blocks * x.shape[axis] < 1 << 62, "blocks of the output", blocks, "64 bits")


def _levels(call: Call) -> None:
    x, zero = call.input(0), call.more[0] if call.more else None
    _need(zero is not None and zero.dtype == DTYPES["U8"], "dtype of the second output", zero and zero.dtype, DTYPES["U8"])
    for what, arg in (("the output", call.out), ("input 0", x)):
        _need(arg.dtype == F32, f"dtype of {what}", arg.dtype, F32)
    for what, one in (("the output", call.out), ("the second output", zero)):
        _need(one is not None and prod(one.shape) == 1, f"shape of {what}", one and one.shape, "one element")
    _rank(x, 2, "input 0")
    _shape(x, (x.shape[0], 2), "shape of input 0")


def _scale(call: Call, first: int, channels: int) -> None:
    """Two inputs of a matrix kernel from number `first` on: scale and shift, both or neither."""
    scale, shift = call.optional(first), call.optional(first + 1)
    _need((scale is None) == (shift is None), f"input {first + 1}", shift and "present", f"present if and only if input {first} is")
    for i, arg in ((first, scale), (first + 1, shift)):
        _shape(arg, (channels,), f"shape of input {i}")
        _need(arg is None or arg.dense, f"strides of input {i}", "not contiguous", "contiguous")


def _same_dtype(call: Call) -> None:
    _elementwise(1, None)(call)
    _need(call.input(0).dtype == call.out.dtype, "dtype of input 0", call.input(0).dtype, call.out.dtype)


def _gemm(call: Call) -> None:
    _all_f32(call)
    out, a, b = call.out.shape, call.input(0), call.input(1)
    packed = _range(call, 0, "packed_b", 0, 3)
    _act(call, 2)
    _range(call, 5, "residual_last", 0, 3)
    _need(len(out) >= 2, "rank of the output", len(out), "at least 2")
    _need(len(a.shape) == len(out), "rank of input 0", len(a.shape), len(out))
    depth = a.shape[-1]
    _shape(a, (*out[:-1], depth), "shape of input 0")
    if packed:
        _shape(b, (-(-out[-1] // 32), depth, 32), "shape of input 1")
        _need(b.dense, "strides of input 1", "not contiguous", "a packed weight")
    else:
        _shape(b, (*out[:-2], depth, out[-1]), "shape of input 1")
    _shape(call.optional(2), out, "shape of input 2")
    _shape(call.optional(3), out, "shape of input 3")
    _scale(call, 4, out[-1])
    _left(call, a.shape, packed > 0)


def _left(call: Call, shape: Shape, may: bool) -> None:
    """Strassen's left factors of input 0, of the given shape: packed weights of 32 or 16 bits `may` go with them."""
    left = call.optional(6)
    if left is not None:
        _need(may and shape[-1] % 2 == 0, "input 6", left.shape, "absent without packed weights and an even number of terms")
        _shape(left, left_factors(shape), "shape of input 6")
        _need(left.dense, "strides of input 6", "not contiguous", "contiguous")


def _ngemm(call: Call) -> None:
    out, a, b = call.out.shape, call.input(0), call.input(1)
    _need(b.dtype == U8, "dtype of input 1", b.dtype, U8)
    _f32(call.out, "the output")
    for i in (0, 2, 3, 4, 5, 6):
        _f32(call.optional(i), f"input {i}")
    _act(call, 1)
    _range(call, 4, "residual_last", 0, 3)
    bits, block, zeros = _range(call, 5, "bits", 4, 17), _range(call, 6, "block", 1, LIMIT), _range(call, 7, "zeros", 0, 2)
    _need(bits in (4, 8, 16), "bits", bits, (4, 8, 16))
    _need(bits != 16 or not zeros, "zeros", zeros, 0)
    _range(call, 8, "zero", 0, 2 if bits == 16 else 1 << bits)
    _need(len(out) >= 2, "rank of the output", len(out), "at least 2")
    _rank(a, len(out), "input 0")
    depth = a.shape[-1]
    _need(whole_groups(depth, bits, block), "block", block, f"whole words of {32 // bits} terms")
    _shape(a, (*out[:-1], depth), "shape of input 0")
    _shape(b, packed_shape(depth, out[-1], bits, block, bool(zeros)), "shape of input 1")
    _need(b.dense, "strides of input 1", "not contiguous", "a packed weight")
    _shape(call.optional(2), out, "shape of input 2")
    _shape(call.optional(3), out, "shape of input 3")
    _scale(call, 4, out[-1])
    _left(call, a.shape, bits == 16)


def _bytes(call: Call, last: int) -> None:
    """What the products of bytes share: dtypes, and the parameters from `last` on, activation, residual_last, scale and zero."""
    out, a, b = call.out, call.input(0), call.input(1)
    _range(call, 0, "zeros", 0, 2)
    _act(call, last)
    _range(call, last + 3, "residual_last", 0, 3)
    _range(call, last + 5, "zero", -LIMIT, LIMIT)
    _need(out.dtype in (F32, I32, I8, U8), "dtype of the output", out.dtype, (F32, I32, I8, U8))
    _need(a.dtype in (I8, U8), "dtype of input 0", a.dtype, (I8, U8))
    _need(b.dtype == I8, "dtype of input 1", b.dtype, I8)
    _need(b.dense, "strides of input 1", "not contiguous", "a packed weight")
    for i in range(2, 6):
        arg = call.optional(i)
        wanted = a.dtype if i == 5 else F32
        _need(arg is None or arg.dtype == wanted, f"dtype of input {i}", arg and arg.dtype, wanted)
        _need(arg is None or i == 5 or out.dtype != I32, f"input {i}", "present", "absent where the output is the sums")
    _need(out.dtype != I32 or call.params[last] == UNARY["IDENTITY"], "activation", call.params[last], "none where the output is the sums")


def _igemm(call: Call) -> None:
    out, a, b = call.out.shape, call.input(0), call.input(1)
    _bytes(call, 1)
    _need(len(out) >= 2, "rank of the output", len(out), "at least 2")
    _rank(a, len(out), "input 0")
    depth = a.shape[-1]
    _shape(a, (*out[:-1], depth), "shape of input 0")
    _shape(b, packed_bytes(depth, out[-1]), "shape of input 1")
    for i in range(2, 6):
        _shape(call.optional(i), out, f"shape of input {i}")


def _iconv(call: Call) -> None:
    out, x, w = call.out, call.input(0), call.input(1)
    _bytes(call, 9)
    _rank(out, 4, "the output")
    _rank(x, 4, "input 0")
    kh, kw = _window(call, 1, 2)
    _range(call, 12, "residual_last", 0, 2)
    _need(x.shape[0] == out.shape[0], "batch of input 0", x.shape[0], out.shape[0])
    _shape(w, packed_bytes(x.shape[1], out.shape[1], kh * kw), "shape of input 1")
    _shape(call.optional(2), out.shape[1:2], "shape of input 2")
    for i in (3, 4):
        _shape(call.optional(i), out.shape, f"shape of input {i}")
    zero = call.optional(5)
    _need(zero is None or prod(zero.shape) == 1, "shape of input 5", zero and zero.shape, "one element")
    copied = image_scratch(x.shape[1], (out.shape[2], out.shape[3]), (kh, kw), call.params[3:5], call.params[5:7])
    _need(copied < MOST_COPIED, "window", copied, f"less than {MOST_COPIED}: a tile copies what it looks at")


def _pairs(call: Call, depth: int, columns: int, taps: int = 1) -> None:
    """The operands of products of pairs, as far as they are alike for matrices and images."""
    w = call.input(1)
    _need(w.dtype == U32, "dtype of input 1", w.dtype, U32)
    _shape(w, packed_pairs(depth, columns, taps), "shape of input 1")
    _need(w.dense, "strides of input 1", "not contiguous", "a packed weight")
    _f32(call.out, "the output")
    for i in (0, 2, 3, 4, 5):
        _f32(call.optional(i), f"input {i}")


def _bgemm(call: Call) -> None:
    out, a = call.out.shape, call.input(0)
    _act(call, 1)
    _range(call, 4, "residual_last", 0, 3)
    _need(len(out) >= 2, "rank of the output", len(out), "at least 2")
    _rank(a, len(out), "input 0")
    _shape(a, (*out[:-1], a.shape[-1]), "shape of input 0")
    _pairs(call, a.shape[-1], out[-1])
    _shape(call.optional(2), out, "shape of input 2")
    _shape(call.optional(3), out, "shape of input 3")
    _scale(call, 4, out[-1])


def _bconv(call: Call) -> None:
    out, x = call.out, call.input(0)
    _rank(out, 4, "the output")
    _rank(x, 4, "input 0")
    kh, kw = _window(call, 0, 2)
    _act(call, 8)
    _range(call, 11, "residual_last", 0, 2)
    _need(x.shape[0] == out.shape[0], "batch of input 0", x.shape[0], out.shape[0])
    _pairs(call, x.shape[1], out.shape[1], kh * kw)
    _shape(call.optional(2), out.shape[1:2], "shape of input 2")
    _shape(call.optional(3), out.shape, "shape of input 3")
    _scale(call, 4, out.shape[1])
    copied = image_scratch(2 * x.shape[1], (1, MOST_ROWS), (kh, kw), call.params[2:4], call.params[4:6])
    _need(copied < MOST_COPIED, "window", copied, f"less than {MOST_COPIED}: a tile copies what it looks at")


def _strassen(call: Call) -> None:
    _all_f32(call)
    a = call.input(0)
    _need(len(a.shape) >= 2, "rank of input 0", len(a.shape), "at least 2")
    _need(a.shape[-1] % 2 == 0, "shape of input 0", a.shape, "an even number of terms")
    _shape(call.out, left_factors(a.shape), "shape of the output")
    _need(call.out.dense, "strides of the output", "not contiguous", "contiguous")


def _window(call: Call, first: int, pads: int) -> tuple[int, int]:
    for k in range(6):
        _range(call, first + k, ("kernel", "kernel", "stride", "stride", "dilation", "dilation")[k], 1, LIMIT)
    for k in range(pads):
        _range(call, first + 6 + k, "pad", 0, LIMIT)
    return call.params[first], call.params[first + 1]


def _depth(call: Call, first: int) -> int:
    """Kernels of a convolution's window along the axis of depth, which images do not have. Output and input have the same rank."""
    out, x = call.out, call.input(0)
    _need(len(out.shape) in (4, 5), "rank of the output", len(out.shape), "4 or 5")
    _rank(x, len(out.shape), "input 0")
    window = [_range(call, first + k, ("kernel", "stride", "dilation", "pad")[k], k < 3, LIMIT) for k in range(4)]
    _need(len(out.shape) == 5 or window == [1, 1, 1, 0], "depth of the window", window, [1, 1, 1, 0])
    return window[0]


def _conv(call: Call) -> None:
    _all_f32(call)
    out, x, w = call.out, call.input(0), call.input(1)
    planes = _depth(call, 16)
    groups = _range(call, 0, "groups", 1, LIMIT)
    kh, kw = _window(call, 1, 2)
    _act(call, 9)
    _range(call, 12, "residual_last", 0, 2)
    _need(x.shape[0] == out.shape[0], "batch of input 0", x.shape[0], out.shape[0])
    _need(x.shape[1] % groups == 0 and out.shape[1] % groups == 0, "groups", groups, (x.shape[1], out.shape[1]))
    _shape(w, (groups, -(-(out.shape[1] // groups) // 32), planes * kh * kw * (x.shape[1] // groups), 32), "shape of input 1")
    _need(w.dense, "strides of input 1", "not contiguous", "a packed weight")
    _shape(call.optional(2), out.shape[1:2], "shape of input 2")
    _shape(call.optional(3), out.shape, "shape of input 3")
    _scale(call, 4, out.shape[1])
    _scale(call, 6, x.shape[1])
    _need(planes == 1 or call.optional(6) is None, "input 6", "present", "absent where the window is deep")
    _act(call, 13)


def _wino(call: Call) -> None:
    _all_f32(call)
    out, x = call.out, call.input(0)
    planes = _depth(call, 17)
    for i, name in ((0, "groups"), (5, "dilation"), (6, "dilation")):
        _range(call, i, name, 1, 2)
    kernel, strides, block = (call.params[1], call.params[2]), (call.params[3], call.params[4]), call.params[16]
    _need(kernel in {b[:2] for b in BLOCKS}, "kernel", kernel, "one that runs in blocks")
    _need(strides[0] == strides[1] and (*kernel, strides[0]) in BLOCKS, "stride", strides, "one that runs in blocks")
    for i in (7, 8):
        _range(call, i, "pad", 0, LIMIT)
    _act(call, 9)
    _range(call, 12, "residual_last", 0, 2)
    _need(block in BLOCKS[*kernel, strides[0]], "block", block, BLOCKS[*kernel, strides[0]])
    _need(x.shape[0] == out.shape[0], "batch of input 0", x.shape[0], out.shape[0])
    w = call.input(1)
    _shape(w, (-(-out.shape[1] // 32), blocks_of(kernel, strides, block).weights, planes * x.shape[1], 32), "shape of input 1")
    _need(w.dense, "strides of input 1", "not contiguous", "a packed weight")
    _shape(call.optional(2), out.shape[1:2], "shape of input 2")
    _shape(call.optional(3), out.shape, "shape of input 3")
    _scale(call, 4, out.shape[1])


def _dwconv(call: Call) -> None:
    _all_f32(call)
    out, x, w = call.out, call.input(0), call.input(1)
    planes = _depth(call, 16)
    kh, kw = _window(call, 1, 2)
    _act(call, 9)
    _range(call, 12, "residual_last", 0, 2)
    _need(x.shape[0] == out.shape[0], "batch of input 0", x.shape[0], out.shape[0])
    _need(x.shape[1] > 0 and out.shape[1] % x.shape[1] == 0, "channels of input 0", x.shape[1], f"a part of {out.shape[1]}")
    _need(call.params[0] == x.shape[1], "groups", call.params[0], x.shape[1])
    _shape(w, (planes * kh * kw, out.shape[1]), "shape of input 1")
    _need(w.dense, "strides of input 1", "not contiguous", "a packed weight")
    _shape(call.optional(2), out.shape[1:2], "shape of input 2")
    _shape(call.optional(3), out.shape, "shape of input 3")
    _scale(call, 4, out.shape[1])


def _pwdw(call: Call) -> None:
    _all_f32(call)
    out, x, w, d = call.out, call.input(0), call.input(1), call.input(3)
    _rank(out, 4, "the output")
    _rank(x, 4, "input 0")
    _act(call, 0)
    kh, kw = _window(call, 3, 2)
    _act(call, 11)
    for k in range(2):
        span = max((call.params[3 + k] - 1) * call.params[7 + k] + 1, call.params[5 + k])
        _need(span <= WIDEST_WINDOW, "window", span, f"at most {WIDEST_WINDOW}")
    _need(x.shape[0] == out.shape[0], "batch of input 0", x.shape[0], out.shape[0])
    _shape(w, (1, -(-out.shape[1] // 32), x.shape[1], 32), "shape of input 1")
    _shape(d, (kh * kw, out.shape[1]), "shape of input 3")
    for i, arg in ((1, w), (3, d)):
        _need(arg.dense, f"strides of input {i}", "not contiguous", "a packed weight")
    for i in (2, 4):
        _shape(call.optional(i), out.shape[1:2], f"shape of input {i}")


def _pool(call: Call) -> None:
    out, x = call.out, call.input(0)
    _rank(out, 4, "the output")
    _rank(x, 4, "input 0")
    _range(call, 0, "mode", 0, 2)
    _window(call, 1, 4)
    _need(x.shape[:2] == out.shape[:2], "batch and channels of input 0", x.shape[:2], out.shape[:2])
    _need(x.dtype == out.dtype, "dtype of input 0", x.dtype, out.dtype)


def _pad(call: Call) -> None:
    out, x, value = call.out.shape, call.input(0), call.optional(1)
    mode = _range(call, 0, "mode", 0, len(PAD_MODES))
    _need(len(x.shape) == len(out), "rank of input 0", len(x.shape), len(out))
    _range(call, 1, "rank", len(out), len(out) + 1)
    for k in range(len(out)):
        _range(call, 2 + k, "begin", -LIMIT, LIMIT)
    _need(x.dtype == call.out.dtype, "dtype of input 0", x.dtype, call.out.dtype)
    if value is not None:
        _need(prod(value.shape) >= 1, "shape of input 1", value.shape, "one element")
        _need(value.dtype == call.out.dtype, "dtype of input 1", value.dtype, call.out.dtype)
    _need(mode == PAD_MODES["CONSTANT"] or 0 not in x.shape or 0 in out, "shape of input 0", x.shape, "not empty")


def _reduce(call: Call) -> None:
    out, x = call.out.shape, call.input(0).shape
    _range(call, 0, "opcode", 0, len(REDUCE))
    mask = _range(call, 1, "axes", 0, 1 << len(out))
    _shape(call.out, [1 if mask >> k & 1 else d for k, d in enumerate(x)], "shape of the output")
    _need(len(x) == len(out), "rank of input 0", len(x), len(out))


def _argreduce(call: Call) -> None:
    x = call.input(0).shape
    axis = _range(call, 1, "axis", 0, max(len(x), 1))
    _range(call, 0, "mode", 0, 2)
    _need(call.out.dtype == I64, "dtype of the output", call.out.dtype, I64)
    _shape(call.out, [1 if k == axis else d for k, d in enumerate(x)], "shape of the output")


def _along(axis_param: int) -> Callable[[Call], None]:
    def rule(call: Call) -> None:
        _shape(call.input(0), call.out.shape, "shape of input 0")
        _range(call, axis_param, "axis", 0, max(len(call.out.shape), 1))

    return rule


def _softmax(call: Call) -> None:
    _all_f32(call)
    _along(0)(call)


def _norm(call: Call) -> None:
    _all_f32(call)
    _along(0)(call)
    _range(call, 1, "mode", 0, 2)
    _shape(call.optional(1), call.out.shape, "shape of input 1")
    _shape(call.optional(2), call.out.shape, "shape of input 2")


def _blocks_and_groups(moments: Arg, x: Arg, what: str) -> None:
    """Moments [N, blocks, groups, 2] of x [N, C, spatial axes]: no block is empty."""
    _need(moments.dtype == F64, f"dtype of {what}", moments.dtype, F64)
    _rank(moments, 4, what)
    _need(len(x.shape) >= 3, "rank of input 0", len(x.shape), "at least 3")
    _, blocks, groups, _ = moments.shape
    _shape(moments, (x.shape[0], blocks, groups, 2), f"shape of {what}")
    _need(1 <= blocks <= prod(x.shape[2:]), f"blocks of {what}", blocks, f"1 … {prod(x.shape[2:])}")
    _need(blocks * prod(x.shape[2:]) < 1 << 62, f"blocks of {what}", blocks, "64 bits")
    _need(groups >= 1 and x.shape[1] % groups == 0, f"groups of {what}", groups, f"a divisor of {x.shape[1]}")


def _moments(call: Call) -> None:
    x = call.input(0)
    _need(x.dtype == F32, "dtype of input 0", x.dtype, F32)
    _blocks_and_groups(call.out, x, "the output")


def _standardize(call: Call) -> None:
    out, x, moments = call.out, call.input(0), call.input(1)
    for what, arg in (
        ("the output", out),
        ("input 0", x),
        ("input 2", call.optional(2)),
        ("input 3", call.optional(3)),
        ("input 4", call.optional(4)),
    ):
        _need(arg is None or arg.dtype == F32, f"dtype of {what}", arg and arg.dtype, F32)
    _shape(x, out.shape, "shape of input 0")
    _shape(call.optional(4), out.shape, "shape of input 4")
    _blocks_and_groups(moments, x, "input 1")
    for i in (2, 3):
        arg = call.optional(i)
        _need(arg is None or arg.shape in ((1, out.shape[1]), out.shape[:2]), f"shape of input {i}", arg and arg.shape, out.shape[:2])
    _act(call, 1)


def _lrn(call: Call) -> None:
    _all_f32(call)
    _shape(call.input(0), call.out.shape, "shape of input 0")
    _need(len(call.out.shape) >= 2, "rank of the output", len(call.out.shape), "at least 2")
    _range(call, 0, "size", 1, LIMIT)


def _gather(call: Call) -> None:
    x, index = call.input(0), call.input(1)
    axis = _range(call, 0, "axis", 0, max(len(x.shape), 1))
    _need(len(x.shape) >= 1, "rank of input 0", 0, "at least 1")
    _need(index.dtype in (I32, I64), "dtype of input 1", index.dtype, (I32, I64))
    _need(x.dtype == call.out.dtype, "dtype of input 0", x.dtype, call.out.dtype)
    _shape(call.out, (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]), "shape of the output")


def _gather_elements(call: Call) -> None:
    x, index = call.input(0), call.input(1)
    axis = _range(call, 0, "axis", 0, max(len(x.shape), 1))
    _need(index.dtype in (I32, I64), "dtype of input 1", index.dtype, (I32, I64))
    _need(x.dtype == call.out.dtype, "dtype of input 0", x.dtype, call.out.dtype)
    _need(len(x.shape) == len(index.shape) and len(x.shape) >= 1, "rank of input 1", len(index.shape), len(x.shape))
    _shape(call.out, index.shape, "shape of the output")
    fits = all(i <= d for k, (i, d) in enumerate(zip(index.shape, x.shape, strict=True)) if k != axis)
    _need(fits, "shape of input 1", index.shape, x.shape)


def _topk(call: Call) -> None:
    x, out = call.input(0), call.out
    axis = _range(call, 0, "axis", 0, max(len(out.shape), 1))
    _need(len(x.shape) == len(out.shape) and len(out.shape) >= 1, "rank of input 0", len(x.shape), len(out.shape))
    _need(x.dtype in _NUMBERS or x.dtype in (DTYPES["F16"], DTYPES["BF16"]), "dtype of input 0", x.dtype, "a number")
    _need(out.dtype == I64, "dtype of the output", out.dtype, I64)
    _need(out.shape[axis] <= x.shape[axis], "length of the output", out.shape[axis], x.shape[axis])
    _shape(x, (*out.shape[:axis], x.shape[axis], *out.shape[axis + 1 :]), "shape of input 0")


def _index(call: Call) -> None:
    index = call.input(0)
    count = _range(call, 0, "number of axes", 1, 9)
    _need(index.dtype in (I32, I64), "dtype of input 0", index.dtype, (I32, I64))
    _need(call.out.dtype == I64, "dtype of the output", call.out.dtype, I64)
    _shape(index, (*call.out.shape, count), "shape of input 0")
    _need(min(call.params[1 : 1 + count]) >= 0, "dimension", min(call.params[1 : 1 + count]), "not negative")
    _need(prod(call.params[1 : 1 + count]) < 1 << 62, "number of places", call.params[1 : 1 + count], "64 bits")


def _scatter(call: Call) -> None:
    x, index, updates = call.input(0), call.input(1), call.input(2)
    axis = _range(call, 0, "axis", 0, max(len(x.shape), 1))
    reduction = _range(call, 1, "reduction", 0, 5)
    _need(index.dtype in (I32, I64), "dtype of input 1", index.dtype, (I32, I64))
    _need(x.dtype == updates.dtype == call.out.dtype, "dtype of inputs 0 and 2", (x.dtype, updates.dtype), call.out.dtype)
    _need(reduction == 0 or x.dtype in _NUMBERS, "dtype of input 0", x.dtype, "a number")
    _shape(call.out, x.shape, "shape of the output")
    _need(len(x.shape) == len(index.shape) and len(x.shape) >= 1, "rank of input 1", len(index.shape), len(x.shape))
    _shape(updates, index.shape, "shape of input 2")
    fits = all(i <= d for k, (i, d) in enumerate(zip(index.shape, x.shape, strict=True)) if k != axis)
    _need(fits, "shape of input 1", index.shape, x.shape)


def _resize(call: Call) -> None:
    out, x = call.out, call.input(0)
    _need(len(x.shape) == len(out.shape), "rank of input 0", len(x.shape), len(out.shape))
    _need(x.dtype == out.dtype, "dtype of input 0", x.dtype, out.dtype)
    _need(0 not in x.shape or 0 in out.shape, "shape of input 0", x.shape, "not empty")
    for k, n in ((0, 3), (1, 5), (2, 4)):
        _range(call, k, "mode", 0, n)
    for k in range(len(out.shape)):
        scale = struct.unpack("<d", struct.pack("<q", call.params[4 + k]))[0]
        _need(isfinite(scale) and scale > 0, "scale", scale, "positive and finite")


def _image(arg: Arg, what: str) -> None:
    """Pixels are counted in single precision."""
    _need(all(1 <= d < LONGEST_IMAGE for d in arg.shape[2:]), f"shape of {what}", arg.shape, f"axes of 1 … {LONGEST_IMAGE - 1} pixels")


def _gridsample(call: Call) -> None:
    _all_f32(call)
    out, x, grid = call.out, call.input(0), call.input(1)
    _need(len(x.shape) in (4, 5), "rank of input 0", len(x.shape), "4 or 5")
    _need(len(out.shape) == len(x.shape), "rank of the output", len(out.shape), len(x.shape))
    _need(x.shape[:2] == out.shape[:2], "batch and channels of input 0", x.shape[:2], out.shape[:2])
    _shape(grid, (out.shape[0], *out.shape[2:], len(x.shape) - 2), "shape of input 1")
    _image(x, "input 0")
    for k, name in enumerate(("mode", "padding")):
        _range(call, k, name, 0, 3)
    _range(call, 2, "align_corners", 0, 2)


def _roialign(call: Call) -> None:
    out, x, rois, batches = call.out, call.input(0), call.input(1), call.input(2)
    for name, arg, dtype in (("the output", out, F32), ("input 0", x, F32), ("input 1", rois, F32), ("input 2", batches, I64)):
        _need(arg.dtype == dtype, f"dtype of {name}", arg.dtype, dtype)
    _rank(out, 4, "the output")
    _rank(x, 4, "input 0")
    _need(x.shape[1] == out.shape[1], "channels of input 0", x.shape[1], out.shape[1])
    _shape(rois, (out.shape[0], 4), "shape of input 1")
    _shape(batches, (out.shape[0],), "shape of input 2")
    _image(x, "input 0")
    mode = _range(call, 0, "mode", 0, 2)
    ratio = _range(call, 1, "points of a cell", 0, MOST_POINTS + 1)
    scale = struct.unpack("<d", struct.pack("<q", call.params[2]))[0]
    _need(isfinite(scale), "scale", scale, "finite")
    _range(call, 3, "half_pixel", 0, 2)
    room = roi_scratch(out.shape, x.shape, "max" if mode else "avg", ratio)
    _need(room <= MOST_LISTS, "lists of pixels", room, f"at most {MOST_LISTS} bytes")


def _deform(call: Call) -> None:
    _all_f32(call)
    out, x, offsets = call.out, call.input(0), call.input(1)
    _rank(out, 4, "the output")
    _rank(x, 4, "input 0")
    _image(x, "input 0")
    groups, parts = _range(call, 0, "groups", 1, LIMIT), _range(call, 1, "parts", 1, LIMIT)
    kh, kw = _window(call, 2, 2)
    _need(x.shape[1] > 0 and x.shape[1] % groups == 0 and x.shape[1] % parts == 0, "groups", (groups, parts), f"divisors of {x.shape[1]}")
    _shape(out, (x.shape[0], kh * kw * x.shape[1], *out.shape[2:]), "shape of the output")
    _shape(offsets, (x.shape[0], 2 * parts * kh * kw, *out.shape[2:]), "shape of input 1")
    _shape(call.optional(2), (x.shape[0], parts * kh * kw, *out.shape[2:]), "shape of input 2")


def _attention(call: Call) -> None:
    out, q, k, v, mask = call.out.shape, call.input(0), call.input(1), call.input(2), call.optional(3)
    for name, arg in (("the output", call.out), ("input 0", q), ("input 1", k), ("input 2", v)):
        _need(arg.dtype == F32, f"dtype of {name}", arg.dtype, F32)
    _need(mask is None or mask.dtype in (F32, BOOL), "dtype of input 3", mask and mask.dtype, (F32, BOOL))
    _need(len(out) >= 2, "rank of the output", len(out), "at least 2")
    _need(len(q.shape) == len(out) == len(k.shape), "rank of inputs 0 and 1", (len(q.shape), len(k.shape)), len(out))
    depth, keys = q.shape[-1], k.shape[-2]
    _shape(q, (*out[:-1], depth), "shape of input 0")
    _shape(k, (*out[:-2], keys, depth), "shape of input 1")
    _shape(v, (*out[:-2], keys, out[-1]), "shape of input 2")
    _shape(mask, (*out[:-1], keys), "shape of input 3")
    _range(call, 1, "causal", 0, 2)
    _range(call, 2, "offset", -LIMIT, LIMIT)
    _range(call, 5, "guard", 0, len(GUARDS))
    _range(call, 6, "mask_first", 0, 2)


def _recurrent(gates: int) -> Callable[[Call], None]:
    def rule(call: Call) -> None:
        _all_f32(call)
        _rank(call.out, 4, "the output")
        steps, one, rows, hidden = call.out.shape
        p, w, h, more = call.input(0), call.input(1), call.optional(2), call.optional(3)
        _need(one == 1, "directions of the output", one, 1)
        _rank(p, 3, "input 0")
        _shape(p, (p.shape[0], rows, gates * hidden), "shape of input 0")
        first = _range(call, 0, "first", 0, LIMIT)
        _range(call, 1, "reverse", 0, 2)
        form = _range(call, 2, "option", 0, 4 if gates == GRU_GATES else 2)
        half = form >= GRU_FORMS["gates"]
        if half:
            _need(steps == (2 if form == GRU_FORMS["gates"] else 1), "shape of the output", call.out.shape, "those of half a step")
        last = first + (1 if half else steps)
        _need(last <= p.shape[0], "steps of input 0", p.shape[0], f"at least {last}")
        packed = (gates - 1 if form == GRU_FORMS["gates"] else 1) if half else gates
        _shape(w, (-(-hidden // UNITS), hidden, packed, UNITS), "shape of input 1")
        _need(w.dense, "strides of input 1", "not contiguous", "a packed weight")
        if h is not None:
            _rank(h, 4, "input 2")
            _need(h.shape[0] > 0, "steps of input 2", 0, "at least 1")
            _shape(h, (h.shape[0], 1, rows, hidden), "shape of input 2")
        if gates == LSTM_GATES:
            for arg, what in ((more, "input 3"), (call.more[0] if call.more else None, "the second output")):
                _shape(arg, (1, 1, rows, hidden), f"shape of {what}")
        elif form == GRU_FORMS["output"]:
            _shape(call.input(3), (2, 1, rows, hidden), "shape of input 3")
        else:
            _shape(more, (hidden,), "shape of input 3")

    return rule


_RULES: dict[str, Callable[[Call], None]] = {
    "GEMM": _gemm,
    "NGEMM": _ngemm,
    "IGEMM": _igemm,
    "ICONV": _iconv,
    "BGEMM": _bgemm,
    "BCONV": _bconv,
    "STRASSEN": _strassen,
    "CONV": _conv,
    "DWCONV": _dwconv,
    "PWDW": _pwdw,
    "WINO": _wino,
    "POOL": _pool,
    "UNARY": _elementwise(1, len(UNARY)),
    "BINARY": _binary,
    "TERNARY": _ternary,
    "CAST": _elementwise(1, None),
    "COPY": _same_dtype,
    "QUANTIZE": _quantize,
    "DEQUANTIZE": _dequantize,
    "EXTREMES": _extremes,
    "LEVELS": _levels,
    "PAD": _pad,
    "REDUCE": _reduce,
    "ARGREDUCE": _argreduce,
    "SOFTMAX": _softmax,
    "NORM": _norm,
    "MOMENTS": _moments,
    "STANDARDIZE": _standardize,
    "LRN": _lrn,
    "GATHER": _gather,
    "GATHER_ELEMENTS": _gather_elements,
    "RESIZE": _resize,
    "GRIDSAMPLE": _gridsample,
    "ROIALIGN": _roialign,
    "DEFORM": _deform,
    "CUMSUM": _along(0),
    "TOPK": _topk,
    "INDEX": _index,
    "SCATTER": _scatter,
    "ATTENTION": _attention,
    "LSTM": _recurrent(LSTM_GATES),
    "GRU": _recurrent(GRU_GATES),
    "RNN": _recurrent(1),
}
