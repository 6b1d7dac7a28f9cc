"""Convolutions and pooling."""

from __future__ import annotations

from math import prod

from aspen_mp.planner.ops.checks.call import LIMIT, Call, Rule, activation, all_f32, in_range, need, ranked, scaled, shaped
from aspen_mp.planner.ops.checks.products import bytes_and_scales, pairs
from aspen_mp.planner.ops.packing.winograd import BLOCKS, blocks_of
from aspen_mp.planner.ops.params import image_scratch, packed_bytes

WIDEST_WINDOW = 64
"""Rows and columns that a window of PWDW may span or move by: it keeps so many in scratch memory."""
MOST_COPIED = 1 << 34
"""Bytes of scratch memory that QCONV and BCONV take for an image, by far: numbers of bytes stay numbers."""
MOST_ROWS = 14
"""Pixels of a line that BCONV takes together, and copies at least."""


def window(call: Call, first: int, pads: int) -> tuple[int, int]:
    """Sides of a window whose kernel, strides, dilations and so many paddings are the parameters from `first` on."""
    for k in range(6):
        in_range(call, first + k, ("kernel", "kernel", "stride", "stride", "dilation", "dilation")[k], 1, LIMIT)
    for k in range(pads):
        in_range(call, first + 6 + k, "pad", 0, LIMIT)
    return call.params[first], call.params[first + 1]


def _depth(call: Call, first: int) -> int:
    """Kernels of a convolution's window along the axis of depth, which images do not have. Output and input have the same rank."""
    out, x = call.out, call.input(0)
    need(len(out.shape) in (4, 5), "rank of the output", len(out.shape), "4 or 5")
    ranked(x, len(out.shape), "input 0")
    window = [in_range(call, first + k, ("kernel", "stride", "dilation", "pad")[k], k < 3, LIMIT) for k in range(4)]
    need(len(out.shape) == 5 or window == [1, 1, 1, 0], "depth of the window", window, [1, 1, 1, 0])
    return window[0]


def _qconv(call: Call) -> None:
    out, x, w = call.out, call.input(0), call.input(1)
    bytes_and_scales(call, 9)
    ranked(out, 4, "the output")
    ranked(x, 4, "input 0")
    kh, kw = window(call, 1, 2)
    in_range(call, 12, "residual_last", 0, 2)
    need(x.shape[0] == out.shape[0], "batch of input 0", x.shape[0], out.shape[0])
    shaped(w, packed_bytes(x.shape[1], out.shape[1], kh * kw), "shape of input 1")
    shaped(call.optional(2), out.shape[1:2], "shape of input 2")
    for i in (3, 4):
        shaped(call.optional(i), out.shape, f"shape of input {i}")
    zero = call.optional(5)
    need(zero is None or prod(zero.shape) == 1, "shape of input 5", zero and zero.shape, "one element")
    copied = image_scratch(x.shape[1], (out.shape[2], out.shape[3]), (kh, kw), call.params[3:5], call.params[5:7])
    need(copied < MOST_COPIED, "window", copied, f"less than {MOST_COPIED}: a tile copies what it looks at")


def _bconv(call: Call) -> None:
    out, x = call.out, call.input(0)
    ranked(out, 4, "the output")
    ranked(x, 4, "input 0")
    kh, kw = window(call, 0, 2)
    activation(call, 8)
    in_range(call, 11, "residual_last", 0, 2)
    activation(call, 12)
    need(x.shape[0] == out.shape[0], "batch of input 0", x.shape[0], out.shape[0])
    pairs(call, x.shape[1], out.shape[1], kh * kw)
    shaped(call.optional(2), out.shape[1:2], "shape of input 2")
    shaped(call.optional(3), out.shape, "shape of input 3")
    scaled(call, 4, out.shape[1])
    scaled(call, 6, x.shape[1])
    copied = image_scratch(2 * x.shape[1], (1, MOST_ROWS), (kh, kw), call.params[2:4], call.params[4:6])
    need(copied < MOST_COPIED, "window", copied, f"less than {MOST_COPIED}: a tile copies what it looks at")


def _conv(call: Call) -> None:
    all_f32(call)
    out, x, w = call.out, call.input(0), call.input(1)
    planes = _depth(call, 16)
    groups = in_range(call, 0, "groups", 1, LIMIT)
    kh, kw = window(call, 1, 2)
    activation(call, 9)
    in_range(call, 12, "residual_last", 0, 2)
    need(x.shape[0] == out.shape[0], "batch of input 0", x.shape[0], out.shape[0])
    need(x.shape[1] % groups == 0 and out.shape[1] % groups == 0, "groups", groups, (x.shape[1], out.shape[1]))
    shaped(w, (groups, -(-(out.shape[1] // groups) // 32), planes * kh * kw * (x.shape[1] // groups), 32), "shape of input 1")
    need(w.dense, "strides of input 1", "not contiguous", "a packed weight")
    shaped(call.optional(2), out.shape[1:2], "shape of input 2")
    shaped(call.optional(3), out.shape, "shape of input 3")
    scaled(call, 4, out.shape[1])
    scaled(call, 6, x.shape[1])
    need(planes == 1 or call.optional(6) is None, "input 6", "present", "absent where the window is deep")
    activation(call, 13)


def _wino(call: Call) -> None:
    all_f32(call)
    out, x = call.out, call.input(0)
    planes = _depth(call, 17)
    for i, name in ((0, "groups"), (5, "dilation"), (6, "dilation")):
        in_range(call, i, name, 1, 2)
    kernel, strides, block = (call.params[1], call.params[2]), (call.params[3], call.params[4]), call.params[16]
    need(kernel in {b[:2] for b in BLOCKS}, "kernel", kernel, "one that runs in blocks")
    need(strides[0] == strides[1] and (*kernel, strides[0]) in BLOCKS, "stride", strides, "one that runs in blocks")
    for i in (7, 8):
        in_range(call, i, "pad", 0, LIMIT)
    activation(call, 9)
    in_range(call, 12, "residual_last", 0, 2)
    need(block in BLOCKS[*kernel, strides[0]], "block", block, BLOCKS[*kernel, strides[0]])
    need(x.shape[0] == out.shape[0], "batch of input 0", x.shape[0], out.shape[0])
    w = call.input(1)
    shaped(w, (-(-out.shape[1] // 32), blocks_of(kernel, strides, block).weights, planes * x.shape[1], 32), "shape of input 1")
    need(w.dense, "strides of input 1", "not contiguous", "a packed weight")
    shaped(call.optional(2), out.shape[1:2], "shape of input 2")
    shaped(call.optional(3), out.shape, "shape of input 3")
    scaled(call, 4, out.shape[1])


def _dwconv(call: Call) -> None:
    all_f32(call)
    out, x, w = call.out, call.input(0), call.input(1)
    planes = _depth(call, 16)
    kh, kw = window(call, 1, 2)
    activation(call, 9)
    in_range(call, 12, "residual_last", 0, 2)
    need(x.shape[0] == out.shape[0], "batch of input 0", x.shape[0], out.shape[0])
    need(x.shape[1] > 0 and out.shape[1] % x.shape[1] == 0, "channels of input 0", x.shape[1], f"a part of {out.shape[1]}")
    need(call.params[0] == x.shape[1], "groups", call.params[0], x.shape[1])
    shaped(w, (planes * kh * kw, out.shape[1]), "shape of input 1")
    need(w.dense, "strides of input 1", "not contiguous", "a packed weight")
    shaped(call.optional(2), out.shape[1:2], "shape of input 2")
    shaped(call.optional(3), out.shape, "shape of input 3")
    scaled(call, 4, out.shape[1])


def _pwdw(call: Call) -> None:
    all_f32(call)
    out, x, w, d = call.out, call.input(0), call.input(1), call.input(3)
    ranked(out, 4, "the output")
    ranked(x, 4, "input 0")
    activation(call, 0)
    kh, kw = window(call, 3, 2)
    activation(call, 11)
    for k in range(2):
        span = max((call.params[3 + k] - 1) * call.params[7 + k] + 1, call.params[5 + k])
        need(span <= WIDEST_WINDOW, "window", span, f"at most {WIDEST_WINDOW}")
    need(x.shape[0] == out.shape[0], "batch of input 0", x.shape[0], out.shape[0])
    shaped(w, (1, -(-out.shape[1] // 32), x.shape[1], 32), "shape of input 1")
    shaped(d, (kh * kw, out.shape[1]), "shape of input 3")
    for i, arg in ((1, w), (3, d)):
        need(arg.dense, f"strides of input {i}", "not contiguous", "a packed weight")
    for i in (2, 4):
        shaped(call.optional(i), out.shape[1:2], f"shape of input {i}")


def _pool(call: Call) -> None:
    out, x = call.out, call.input(0)
    ranked(out, 4, "the output")
    ranked(x, 4, "input 0")
    in_range(call, 0, "mode", 0, 2)
    window(call, 1, 4)
    need(x.shape[:2] == out.shape[:2], "batch and channels of input 0", x.shape[:2], out.shape[:2])
    need(x.dtype == out.dtype, "dtype of input 0", x.dtype, out.dtype)


RULES: dict[str, Rule] = {
    "QCONV": _qconv,
    "BCONV": _bconv,
    "CONV": _conv,
    "DWCONV": _dwconv,
    "PWDW": _pwdw,
    "WINO": _wino,
    "POOL": _pool,
}
