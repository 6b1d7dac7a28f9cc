"""Kernels of ai.onnx.ml. What the tables of TREES and DUELS say is bounded by the kernels themselves, where it is used."""

from __future__ import annotations

import struct
from math import isnan

from aspen_mp.planner.ops.checks.call import F32, F64, I32, I64, Call, Rule, all_f32, in_range, need, ranked, shaped

MOST_STEPS = 1 << 21
"""Of a walk from the root of a tree."""
WORDS = {4: F32, 6: F64}
"""Words of a node of TREES, and the type of its threshold and weight."""
PANEL = 32
MOST_CLASSES = 1 << 12


def _trees(call: Call) -> None:
    out, x, nodes, trees = call.out, call.input(0), call.input(1), call.input(2)
    for arg, what in ((out, "the output"), (x, "input 0"), (nodes, "input 1"), (trees, "input 2")):
        ranked(arg, 2, what)
    need(out.dtype in (F32, F64), "dtype of the output", out.dtype, (F32, F64))
    need(x.dtype in (F32, F64, I32, I64), "dtype of input 0", x.dtype, (F32, F64, I32, I64))
    need(x.shape[0] == out.shape[0] and 1 <= x.shape[1] < 1 << 29, "shape of input 0", x.shape, "as many rows as the output")
    need(1 <= out.shape[1] < 1 << 31, "shape of the output", out.shape, "at least one column")
    need(nodes.dtype == I32 and trees.dtype == I32, "dtype of inputs 1 and 2", (nodes.dtype, trees.dtype), I32)
    need(1 <= nodes.shape[0] < 1 << 31 and nodes.shape[1] in WORDS, "shape of input 1", nodes.shape, "nodes of 4 or 6 words")
    need(trees.shape[0] >= 1 and trees.shape[1] == 4, "shape of input 2", trees.shape, "trees of 4 words")
    own = WORDS[nodes.shape[1]]
    for i, rows in ((3, None), (4, out.shape[1])):
        given = call.optional(i)
        if given is not None:
            ranked(given, 1, f"input {i}")
            need(given.dtype == own, f"dtype of input {i}", given.dtype, own)
            need(rows is None or given.shape[0] == rows, f"shape of input {i}", given.shape, rows)
    for i in range(1, 5):
        table = call.optional(i)
        need(table is None or table.dense, f"strides of input {i}", "not contiguous", "contiguous")
    in_range(call, 0, "aggregate", 0, 4)
    in_range(call, 1, "flags", 0, 3)
    in_range(call, 2, "steps", 0, MOST_STEPS)


def _scores(call: Call) -> None:
    out, s = call.out, call.input(0)
    ranked(out, 2, "the output")
    need(out.dtype == F32, "dtype of the output", out.dtype, F32)
    need(s.dtype in (F32, F64), "dtype of input 0", s.dtype, (F32, F64))
    in_range(call, 0, "transform", 0, 5)
    if in_range(call, 1, "second", 0, 3):
        need(out.shape[1] == 2, "shape of the output", out.shape, "two columns")
        shaped(s, (out.shape[0], 1), "shape of input 0")
    else:
        shaped(s, out.shape, "shape of input 0")


def _labels(call: Call) -> None:
    out, s, table = call.out, call.input(0), call.input(1)
    ranked(out, 1, "the output")
    ranked(s, 2, "input 0")
    ranked(table, 1, "input 1")
    need(out.dtype == I64 and table.dtype == I64, "dtype of output and input 1", (out.dtype, table.dtype), I64)
    need(s.dtype in (F32, F64), "dtype of input 0", s.dtype, (F32, F64))
    need(s.shape[0] == out.shape[0] and s.shape[1] >= 1, "shape of input 0", s.shape, "as many rows as the output")
    mode, n = in_range(call, 0, "mode", 0, 3), table.shape[0]
    columns = {0: n, 1: s.shape[1], 2: n * (n - 1) // 2}[mode]
    need(s.shape[1] == columns, "columns of input 0", s.shape[1], columns)
    need(1 <= n <= MOST_CLASSES if mode == 2 else n >= 1, "shape of input 1", table.shape, f"at most {MOST_CLASSES}")
    if mode == 1:
        need(n == 2, "shape of input 1", table.shape, 2)
        in_range(call, 1, "column", 0, s.shape[1])
        threshold = struct.unpack("<d", struct.pack("<q", call.params[2]))[0]
        need(not isnan(threshold), "threshold", threshold, "a number")


def _rbf(call: Call) -> None:
    all_f32(call)
    out, x, w = call.out, call.input(0), call.input(1)
    ranked(out, 2, "the output")
    ranked(x, 2, "input 0")
    need(x.shape[0] == out.shape[0], "rows of input 0", x.shape[0], out.shape[0])
    shaped(w, (-(-out.shape[1] // PANEL), x.shape[1], PANEL), "shape of input 1")
    need(w.dense, "strides of input 1", "not contiguous", "a packed weight")


def _pairs(classes: int) -> int:
    return classes * (classes - 1) // 2


def _duels(call: Call) -> None:
    out, k, coef, starts, rho = call.out, *(call.input(i) for i in range(4))
    ranked(out, 2, "the output")
    ranked(k, 2, "input 0")
    ranked(starts, 1, "input 2")
    for arg, what in ((out, "the output"), (k, "input 0"), (coef, "input 1"), (rho, "input 3")):
        need(arg.dtype == F32, f"dtype of {what}", arg.dtype, F32)
    need(starts.dtype == I64, "dtype of input 2", starts.dtype, I64)
    classes = starts.shape[0] - 1
    need(2 <= classes <= MOST_CLASSES, "shape of input 2", starts.shape, f"one more than 2 … {MOST_CLASSES} classes")
    need(out.shape == (k.shape[0], _pairs(classes)), "shape of the output", out.shape, (k.shape[0], _pairs(classes)))
    shaped(coef, (classes - 1, k.shape[1]), "shape of input 1")
    shaped(rho, (_pairs(classes),), "shape of input 3")


def _couple(call: Call) -> None:
    all_f32(call)
    out, s = call.out, call.input(0)
    ranked(out, 2, "the output")
    need(2 <= out.shape[1] <= MOST_CLASSES, "classes", out.shape[1], f"2 … {MOST_CLASSES}")
    pairs = _pairs(out.shape[1])
    shaped(s, (out.shape[0], pairs), "shape of input 0")
    for i in (1, 2):
        shaped(call.input(i), (pairs,), f"shape of input {i}")


RULES: dict[str, Rule] = {
    "TREES": _trees,
    "SCORES": _scores,
    "LABELS": _labels,
    "RBF": _rbf,
    "DUELS": _duels,
    "COUPLE": _couple,
}
