"""Runs the bytes of a plan segment with the real kernels, one tile at a time in any legal order, on memory full of NaN.

No process, no queue: what differs from the expected result here is wrong in the plan or in a kernel, not in the engine that schedules
tiles.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Any

import numpy as np

from aspen_mp.planner.plan.plan import SEGMENT_FIRST, Plan, aligned
from aspen_mp.shm.tables import DTYPES, KERNEL_BY_CODE, NUMPY_BY_CODE, OP, OPERAND, PLAN_HEADER, SPACES, TILE
from aspen_mp.workers import _kernels
from aspen_mp.workers.fallback.opaque_tile import Opaque

Array = np.ndarray[Any, np.dtype[Any]]
ORDERS = ("fifo", "lifo", "random", "rank")


def nan_filled(nbytes: int) -> Array:
    """Bytes that are NaN as float32 and float64, and far out of range as indices."""
    return np.full(-(-nbytes // 4) + 1, np.nan, np.float32).view(np.uint8)


class WeightStore:
    """Packed weights of one model, shared by its plans: what a plan has in addition goes to a segment of its own."""

    def __init__(self) -> None:
        self.directory: dict[str, tuple[int, int]] = {}
        self.segments: list[bytearray] = []

    def place(self, plan: Plan) -> None:
        new = [item for item in plan.weights if item.key not in self.directory]
        if new:
            size = SEGMENT_FIRST + sum(aligned(item.nbytes) for item in new)
            self.segments.append(bytearray(size))
            at = SEGMENT_FIRST
            for item in new:
                item.write(memoryview(self.segments[-1])[at : at + item.nbytes])
                self.directory[item.key] = len(self.segments) - 1, at
                at += aligned(item.nbytes)
        plan.place_weights(self.directory)


class KernelRunner:
    """A plan with memory of its own; `run` may be called again and again."""

    def __init__(self, plan: Plan, store: WeightStore | None = None) -> None:
        self.plan = plan
        self.isa: str | None = None
        store = store or WeightStore()
        store.place(plan)
        segment = plan.segment()
        h = np.frombuffer(segment, PLAN_HEADER, 1)[0]
        self.ops = np.frombuffer(segment, OP, h["n_ops"], int(h["ops"]))
        self.operands = np.frombuffer(segment, OPERAND, h["n_operands"], int(h["operands"]))
        self.params = np.frombuffer(segment, np.int64, h["n_params"], int(h["params"]))
        self.tiles = np.frombuffer(segment, TILE, h["n_tiles"], int(h["tiles"]))
        self.children = np.frombuffer(segment, np.uint32, h["n_children"], int(h["children"]))
        self.parents = np.frombuffer(segment, np.uint32, h["n_tiles"], int(h["parent_counts"]))
        self.initial = np.frombuffer(segment, np.uint32, h["n_initial"], int(h["initial"]))
        self.blobs = memoryview(segment)[int(h["blobs"]) : int(h["blobs"]) + int(h["blobs_bytes"])]
        self.end = int(h["end_tile"])
        self.sizes = int(h["arena_bytes"]), int(h["request_bytes"])
        self.fixed = {SPACES["PLAN"]: np.frombuffer(segment, np.uint8)}
        for i, weights in enumerate(store.segments):
            self.fixed[SPACES["WEIGHTS"] + i] = np.frombuffer(weights, np.uint8)
        self.spaces: dict[int, Array] = {}

    def array(self, operand: Any) -> Array | None:
        if operand["dtype"] == DTYPES["NONE"]:
            return None
        rank = int(operand["rank"])
        dtype = NUMPY_BY_CODE[int(operand["dtype"])]
        dims = tuple(operand["dims"][:rank].tolist())
        strides = tuple(s * dtype.itemsize for s in operand["strides"][:rank].tolist())
        start = self.spaces[int(operand["space"])][int(operand["offset"]) :][:0].view(dtype)
        return np.lib.stride_tricks.as_strided(start, dims, strides)

    def text(self, offset: Any, nbytes: Any) -> bytes:
        return bytes(self.blobs[int(offset) : int(offset) + int(nbytes)])

    def prepare(self) -> None:
        """Fresh memory, and the arguments of every op."""
        arena, request = self.sizes
        self.spaces = {**self.fixed, SPACES["ARENA"]: nan_filled(arena), SPACES["REQUEST"]: nan_filled(request)}
        self.calls: list[tuple[str, list[Array | None], list[int], Any]] = []
        for op in self.ops:
            kernel = KERNEL_BY_CODE[int(op["kernel"])].name
            first, count = int(op["operand"]), int(op["n_outputs"]) + int(op["n_inputs"])
            args = [self.array(operand) for operand in self.operands[first : first + count]] if kernel not in ("JOIN", "END") else []
            params = self.params[int(op["param"]) : int(op["param"]) + int(op["n_params"])].tolist()
            self.calls.append((kernel, args, params, op))

    def tile(self, t: int) -> None:
        tile = self.tiles[t]
        kernel, args, params, op = self.calls[int(tile["op"])]
        if kernel in ("JOIN", "END"):
            return
        if kernel == "OPAQUE":
            outputs = int(op["n_outputs"])
            results = Opaque(self.text(op["blob"], op["blob_bytes"])).run(args[outputs:])
            for target, result in zip(args[:outputs], results, strict=True):
                if target is not None:
                    target[...] = result
            return
        out = args[0]
        assert out is not None
        boxed = min(out.ndim, len(tile["lo"]))  # axes beyond those of a tile's box are whole
        lo = [*tile["lo"][:boxed].tolist(), *([0] * (out.ndim - boxed))]
        hi = [*tile["hi"][:boxed].tolist(), *out.shape[boxed:]]
        status = _kernels.call(kernel, args, params, lo, hi, self.isa)
        assert status == 0, f"{self.text(op['name'], op['name_bytes']).decode()}: kernel error {status}"

    def io(self, info: Any) -> Array:
        request = self.spaces[SPACES["REQUEST"]]
        count = int(np.prod(info.shape))
        return request[info.offset : info.offset + count * np.dtype(info.dtype).itemsize].view(info.dtype).reshape(info.shape)

    def run(self, feeds: Mapping[str, Array], order: str = "fifo", seed: int = 0, isa: str | None = None) -> list[Array]:
        """Outputs after executing every tile in an order of `ORDERS` ("rank": always the ready tile of lowest rank)."""
        self.isa = isa
        self.prepare()
        for info in self.plan.inputs:
            self.io(info)[...] = feeds[info.name]
        rng = np.random.default_rng(seed)
        missing = self.parents.tolist()
        ranks = self.tiles["rank"].tolist()
        ready: list[tuple[int, int]] = [(ranks[t], t) for t in self.initial.tolist()]
        heapq.heapify(ready)
        done, last = 0, -1
        while ready:
            if order == "rank":
                t = heapq.heappop(ready)[1]
            else:
                t = ready.pop({"fifo": 0, "lifo": -1, "random": int(rng.integers(len(ready)))}[order])[1]
            self.tile(t)
            done, last = done + 1, t
            begin = int(self.tiles[t]["children"])
            for child in self.children[begin : begin + int(self.tiles[t]["n_children"])].tolist():
                missing[child] -= 1
                assert missing[child] >= 0, f"tile {child} was counted down too often"
                if missing[child] == 0:
                    if order == "rank":
                        heapq.heappush(ready, (ranks[child], child))
                    else:
                        ready.append((ranks[child], child))
        assert done == len(self.tiles), f"{len(self.tiles) - done} tiles never became ready"
        assert last == self.end
        return [self.io(info).copy() for info in self.plan.outputs]
