"""Kernels of ai.onnx.ml: a row of the output comes of the same row of the input, and of whole tables. The kernels themselves bound the
content of the tables of TREES and DUELS, where it is used."""

from __future__ import annotations

import struct
from math import isnan

from aspen_mp.planner.ir.graph import Node, Shape
from aspen_mp.planner.ops.boxes import Boxes, Region, whole
from aspen_mp.planner.ops.call import F32, F64, I32, I64, Call, all_f32, in_range, need, ranked, shaped
from aspen_mp.planner.ops.elementwise import FUNCTION_NS
from aspen_mp.planner.ops.packing import PANEL
from aspen_mp.planner.ops.params import choice, integer, noted, real
from aspen_mp.planner.ops.spec import PLAIN_NS, Cost, Input, OpSpec, each, inputs, last_of

TRANSFORMS = {"NONE": 0, "LOGISTIC": 1, "SOFTMAX": 2, "SOFTMAX_ZERO": 3, "PROBIT": 4}
AGGREGATES = {"SUM": 0, "AVERAGE": 1, "MIN": 2, "MAX": 3}
SECOND_SCORES = {"": 0, "1 - s": 1, "-s": 2}
LABEL_MODES = {"greatest": 0, "above": 1, "votes": 2}

TREE_STEP_NS = 0.8
"""A step of a row from one node of TREES to the next."""
RBF_TERM_NS, DUEL_TERM_NS = 0.06, 1.0
"""A difference that RBF squares, and a product that DUELS adds."""


def _trees_ns(node: Node, steps: float) -> float:
    """A row takes each tree down to a leaf; few rows wait for the memory that nodes lie in, many find them in a cache."""
    return steps * TREE_STEP_NS + node.output.size * PLAIN_NS


def _inputs_terms(node: Node) -> float:
    """Two operations for each element of the output and of an input's row."""
    x = node.inputs[0]
    return 2.0 * node.output.size * (x.shape[-1] if x is not None else 1)


def _rows_region(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    out_lo, out_hi = whole(shape, len(lo))
    if i == 0:
        out_lo[:, 0], out_hi[:, 0] = lo[:, 0], hi[:, 0]
    return out_lo, out_hi


def _scores_region(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    """Without a transform over all classes, one column of each."""
    out_lo, out_hi = _rows_region(node, i, shape, lo, hi)
    if not node.attrs["second"] and not node.attrs["transform"].startswith("SOFTMAX"):
        out_lo[:, 1], out_hi[:, 1] = lo[:, 1], hi[:, 1]
    return out_lo, out_hi


def _rbf_region(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    out_lo, out_hi = _rows_region(node, i, shape, lo, hi)
    if i == 1:
        out_lo[:, 0], out_hi[:, 0] = lo[:, 1] // shape[2], -(-hi[:, 1] // shape[2])
    return out_lo, out_hi


MOST_STEPS = 1 << 21
"""Most steps of a walk from the root of a tree."""
WORDS = {4: F32, 6: F64}
"""Words of a node of TREES, and the type of its threshold and weight."""
MOST_CLASSES = 1 << 12


def _trees_checks(call: Call) -> None:
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


def _scores_checks(call: Call) -> None:
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


def _labels_checks(call: Call) -> None:
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


def _rbf_checks(call: Call) -> None:
    all_f32(call)
    out, x, w = call.out, call.input(0), call.input(1)
    ranked(out, 2, "the output")
    ranked(x, 2, "input 0")
    need(x.shape[0] == out.shape[0], "rows of input 0", x.shape[0], out.shape[0])
    shaped(w, (-(-out.shape[1] // PANEL), x.shape[1], PANEL), "shape of input 1")
    need(w.dense, "strides of input 1", "not contiguous", "a packed weight")


def _pairs(classes: int) -> int:
    return classes * (classes - 1) // 2


def _duels_checks(call: Call) -> None:
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


def _couple_checks(call: Call) -> None:
    all_f32(call)
    out, s = call.out, call.input(0)
    ranked(out, 2, "the output")
    need(2 <= out.shape[1] <= MOST_CLASSES, "classes", out.shape[1], f"2 … {MOST_CLASSES}")
    pairs = _pairs(out.shape[1])
    shaped(s, (out.shape[0], pairs), "shape of input 0")
    for i in (1, 2):
        shaped(call.input(i), (pairs,), f"shape of input {i}")


def _trees_scratch(node: Node) -> int:
    x = node.inputs[0]
    assert x is not None
    return 64 * 8 * (x.shape[1] + node.output.shape[1])


def _labels_scratch(node: Node) -> int:
    table = node.inputs[1]
    return 4 * table.size if table is not None else 0


ROWS = last_of(1)
"""All of a row is made at once."""
S = Input("s", "[N, C]: scores")

SPECS = (
    OpSpec(
        name="TREES",
        inputs=(
            Input("x", "[N, F]"),
            Input("nodes", "see `tree_tables.Packed`, as the next three"),
            Input("trees"),
            Input("weights", optional=True),
            Input("base", "[C]", True),
        ),
        params=(
            choice("aggregate", AGGREGATES, "what becomes of the weights of all trees"),
            integer("flags", "whether some node has one"),
            integer("most", "steps from a root to a leaf, at most"),
            noted("steps", "that a row takes through all trees, on average"),
        ),
        region=_rows_region,
        checks=_trees_checks,
        whole_axes=ROWS,
        cost=Cost(lambda node: float(node.output.shape[0] * node.attrs["steps"]), ns=_trees_ns, scratch=_trees_scratch),
    ),
    OpSpec(
        name="SCORES",
        inputs=(S,),
        params=(
            choice("transform", TRANSFORMS, "of ai.onnx.ml"),
            choice("second", SECOND_SCORES, "how two scores are made of one; empty: they are not"),
        ),
        region=_scores_region,
        checks=_scores_checks,
        whole_axes=ROWS,
        cost=Cost(element_ns=each(1.5), scratch=lambda node: 8 * max(1024, node.output.shape[1])),
    ),
    OpSpec(
        name="LABELS",
        inputs=(S, Input("labels", "i64")),
        params=(
            choice("mode", LABEL_MODES, "by the greatest score, by a column above the threshold, by votes of pairs of classes"),
            integer("column", "see mode"),
            real("threshold", "see mode"),
        ),
        region=_rows_region,
        checks=_labels_checks,
        cost=Cost(inputs, each(1.0), scratch=_labels_scratch),
    ),
    OpSpec(
        name="RBF",
        inputs=(Input("x", "[N, F]"), Input("vectors", "see `Builder.packed_panels`")),
        params=(real("gamma", "of exp(-gamma |x - vector|^2)"),),
        region=_rbf_region,
        checks=_rbf_checks,
        cost=Cost(_inputs_terms, ns=lambda node, flops: flops * RBF_TERM_NS / 2 + node.output.size * FUNCTION_NS["EXP"]),
    ),
    OpSpec(
        name="DUELS",
        inputs=(
            Input("k", "[N, vectors]"),
            Input("coefficients", "[C - 1, vectors]"),
            Input("starts", "[C + 1], i64: which vectors a class has"),
            Input("rho", "[pairs of classes]"),
        ),
        region=_rows_region,
        checks=_duels_checks,
        cost=Cost(lambda node: 2.0 * inputs(node), ns=lambda node, flops: flops / 2 * DUEL_TERM_NS),
    ),
    OpSpec(
        name="COUPLE",
        inputs=(Input("s", "[N, pairs of classes]: scores"), Input("a", "[pairs]"), Input("b", "[pairs]")),
        region=_rows_region,
        checks=_couple_checks,
        whole_axes=ROWS,
        cost=Cost(
            lambda node: float(node.output.size * node.output.shape[1]),
            each(20.0),
            scratch=lambda node: 4 * node.output.shape[1] * (node.output.shape[1] + 2),
        ),
    ),
)
