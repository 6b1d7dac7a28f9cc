"""Graphs node by node, and an executor of plan bytes that knows nothing of how the plan was made.

The executor computes whole operators in numpy and keeps a tile's box of the result, on buffers full of NaN: an element comes out NaN
exactly if something that it depends on was not there yet. So it is an element-level check of the tile graph that shares no code with the
region maps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy_kernels import NUMPY_KERNELS, Array, in_levels

from aspen_mp.planner.ir.graph import Graph, Node, Tensor
from aspen_mp.planner.ops.table import params
from aspen_mp.planner.plan.plan import Plan
from aspen_mp.shm.tables import DTYPES, KERNEL_BY_CODE, NUMPY_BY_CODE, OP, OPERAND, PLAN_HEADER, SPACES, TILE


def _view(node: Node, x: Array) -> Array:
    out = node.output.shape
    match node.op:
        case "view.reshape":
            return x.reshape(out)
        case "view.transpose":
            return x.transpose(node.attrs["perm"])
        case "view.expand":
            return np.broadcast_to(x, out)
    index = [s + np.arange(d) * step for s, step, d in zip(node.attrs["starts"], node.attrs["steps"], out, strict=True)]
    return x[np.ix_(*index)]


def evaluate(graph: Graph, feeds: Sequence[Array]) -> list[Array]:
    """The graph's outputs, node by node."""
    values: dict[Tensor, Array] = dict(zip(graph.inputs, feeds, strict=True))

    def get(t: Tensor | None) -> Array | None:
        if t is None:
            return None
        return t.value() if t.is_const else values[t]

    for node in graph.nodes:
        inputs = [get(t) for t in node.inputs]
        if node.op.startswith("view."):
            y = _view(node, inputs[0])
        elif node.op == "concat":
            y = np.concatenate(inputs, axis=node.attrs["axis"])
        else:
            y = in_levels(node.op, params(node), NUMPY_KERNELS[node.op](node.output.shape, params(node), *inputs), node.output.dtype)
        for t, found in zip(node.outputs, y if isinstance(y, tuple) else (y,), strict=True):
            values[t] = np.asarray(found, dtype=t.dtype)
    return [get(t) for t in graph.outputs]


def _filled(nbytes: int) -> bytearray:
    return bytearray(np.full(-(-nbytes // 4), np.nan, np.float32).tobytes())


class PlanExecutor:
    """Runs the bytes of a plan segment on NaN-filled memory, one tile at a time."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.segment = bytes(plan.segment())
        self.header = np.frombuffer(self.segment, PLAN_HEADER, 1)[0]
        h = self.header
        self.ops = np.frombuffer(self.segment, OP, h["n_ops"], int(h["ops"]))
        self.operands = np.frombuffer(self.segment, OPERAND, h["n_operands"], int(h["operands"]))
        self.params = np.frombuffer(self.segment, np.int64, h["n_params"], int(h["params"]))
        self.tiles = np.frombuffer(self.segment, TILE, h["n_tiles"], int(h["tiles"]))
        self.children = np.frombuffer(self.segment, np.uint32, h["n_children"], int(h["children"]))
        self.missing = np.frombuffer(self.segment, np.uint32, h["n_tiles"], int(h["parent_counts"])).copy()
        self.initial = np.frombuffer(self.segment, np.uint32, h["n_initial"], int(h["initial"]))
        directory, size = plan.default_directory()
        weights = bytearray(size)
        for item in plan.weights:
            at = directory[item.key][1]
            item.write(memoryview(weights)[at : at + item.nbytes])
        arena, request = _filled(int(h["arena_bytes"])), _filled(int(h["request_bytes"]))
        self.spaces = {SPACES["ARENA"]: arena, SPACES["REQUEST"]: request, SPACES["PLAN"]: self.segment, SPACES["WEIGHTS"]: weights}

    def array(self, operand: Any) -> Array | None:
        if operand["dtype"] == DTYPES["NONE"]:
            return None
        rank = int(operand["rank"])
        dtype = NUMPY_BY_CODE[int(operand["dtype"])]
        dims = tuple(operand["dims"][:rank].tolist())
        strides = tuple(s * dtype.itemsize for s in operand["strides"][:rank].tolist())
        # One flat array and as_strided: np.ndarray refuses negative strides that start inside the buffer.
        flat = np.frombuffer(self.spaces[int(operand["space"])], np.uint8)
        start = flat[int(operand["offset"]) :][:0].view(dtype)
        return np.lib.stride_tricks.as_strided(start, dims, strides)

    def io(self, info: Any) -> Array:
        request = self.spaces[SPACES["REQUEST"]]
        return np.frombuffer(request, info.dtype, int(np.prod(info.shape)), info.offset).reshape(info.shape)

    def tile(self, t: int) -> None:
        tile = self.tiles[t]
        op = self.ops[tile["op"]]
        kernel = KERNEL_BY_CODE[int(op["kernel"])].name
        if kernel in ("JOIN", "END"):
            return
        first = int(op["operand"])
        out, *more = (self.array(self.operands[first + i]) for i in range(op["n_outputs"]))
        inputs = [self.array(self.operands[first + 1 + len(more) + i]) for i in range(op["n_inputs"])]
        p = self.params[int(op["param"]) : int(op["param"]) + int(op["n_params"])].tolist()
        found = in_levels(kernel, p, NUMPY_KERNELS[kernel](out.shape, p, *inputs), out.dtype)
        whole, *others = (np.asarray(y) for y in (found if isinstance(found, tuple) else (found,)))
        box = tuple(slice(lo, hi) for lo, hi in zip(tile["lo"].tolist(), tile["hi"].tolist(), strict=True))[: out.ndim]
        out[box] = whole[box]
        for one, y in zip(more, others, strict=True):
            where = box if one.shape == out.shape else ...
            one[where] = y[where]

    def run(self, feeds: Sequence[Array], order: str = "fifo", seed: int = 0) -> list[Array]:
        """Executes every tile in a legal order; all must become ready, END last."""
        for info, x in zip(self.plan.inputs, feeds, strict=True):
            self.io(info)[...] = x
        rng = np.random.default_rng(seed)
        missing = self.missing.tolist()
        ready = self.initial.tolist()
        done: list[int] = []
        with np.errstate(all="ignore"):
            while ready:
                k = {"fifo": 0, "lifo": len(ready) - 1, "random": int(rng.integers(len(ready)))}[order]
                t = ready.pop(k)
                self.tile(t)
                done.append(t)
                begin = int(self.tiles[t]["children"])
                for c in self.children[begin : begin + int(self.tiles[t]["n_children"])].tolist():
                    missing[c] -= 1
                    assert missing[c] >= 0
                    if missing[c] == 0:
                        ready.append(c)
        assert sorted(done) == list(range(len(self.tiles))), "a tile never became ready"
        assert done[-1] == self.header["end_tile"]
        return [self.io(info).copy() for info in self.plan.outputs]
