"""Names of tiles, read from a copy of their plan."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from aspen_mp.shm.bindings import _tables
from aspen_mp.shm.errors import PlanError
from aspen_mp.shm.tables import KERNEL_BY_CODE, OP, OPERAND, PLAN_HEADER, TILE

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Op:
    """`name`: "node name (op type)"; `kind`: the op type of the model, or the kernel where the model has none. `rank`: of the output."""

    name: str
    kind: str
    kernel: str
    layer: int
    tiles: int
    rank: int
    flops: float
    cost_ns: float


class PlanNames:
    """Ops and tiles of one plan. `number[t]` is tile t's number among its op's, from 0. Only the model is known of a plan without
    `data`."""

    def __init__(self, data: bytes, model: str) -> None:
        self.model = model
        self.ops: list[Op] = []
        self.tiles: Array = np.zeros(0, TILE)
        self.children: Array = np.zeros(0, np.uint32)
        self.number: Array = np.zeros(0, np.int64)
        self.end_tile = -1
        if data:
            self._read(data)

    def _read(self, data: bytes) -> None:
        try:
            header = np.frombuffer(data, PLAN_HEADER, 1)[0]
            if header["layout"] != _tables.LAYOUT_HASH:
                raise PlanError(f"the plan of {self.model!r} was made by another build of aspen-mp. Trace with the build that runs")
            ops = np.frombuffer(data, OP, int(header["n_ops"]), int(header["ops"]))
            operands = np.frombuffer(data, OPERAND, int(header["n_operands"]), int(header["operands"]))
            self.tiles = np.frombuffer(data, TILE, int(header["n_tiles"]), int(header["tiles"]))
            self.children = np.frombuffer(data, np.uint32, int(header["n_children"]), int(header["children"]))
        except ValueError as error:
            raise PlanError(f"the plan of {self.model!r} is truncated: {error}") from None
        self.end_tile = int(header["end_tile"])
        count = np.bincount(self.tiles["op"], minlength=len(ops))
        blobs = int(header["blobs"])
        for op, n in zip(ops, count, strict=True):
            begin = blobs + int(op["name"])
            name = data[begin : begin + int(op["name_bytes"])].decode("utf-8", "replace")
            kernel = KERNEL_BY_CODE[int(op["kernel"])].name
            rank = int(operands[op["operand"]]["rank"]) if op["n_outputs"] else 0
            self.ops.append(
                Op(name or kernel, _kind(name) or kernel, kernel, int(op["layer"]), int(n), rank, float(op["flops"]), float(op["cost_ns"]))
            )
        order = np.argsort(self.tiles["op"], kind="stable")
        begins = np.concatenate([[0], np.cumsum(count)[:-1]])
        self.number = np.empty(len(self.tiles), np.int64)
        self.number[order] = np.arange(len(self.tiles)) - np.repeat(begins, count)

    def __len__(self) -> int:
        return len(self.tiles)

    def box(self, tile: int) -> str:
        """The part of the op's output that a tile makes: "0:1, 64:128, 0:7, 0:7"; axes that no tile cuts and that are 1 long included."""
        row = self.tiles[tile]
        rank = min(self.ops[int(row["op"])].rank, len(row["lo"]))
        return ", ".join(f"{lo}:{hi}" for lo, hi in zip(row["lo"][:rank].tolist(), row["hi"][:rank].tolist(), strict=True))

    def elements(self, tile: int) -> int:
        """How many elements that is, of the axes that can be cut."""
        row = self.tiles[tile]
        return math.prod(max(0, hi - lo) for lo, hi in zip(row["lo"].tolist(), row["hi"].tolist(), strict=True))


def _kind(name: str) -> str:
    """The op type in "node name (op type)"."""
    if not name.endswith(")"):
        return ""
    return name[name.rfind("(") + 1 : -1]
