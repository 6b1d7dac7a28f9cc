"""Plans whose bytes can be written to, and ways of damaging them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from graphs_by_hand import GraphBuilder
from small_graphs import random_grids, residual_block

from aspen_mp.planner.build import PlanOptions, build_plan
from aspen_mp.planner.plan.plan import Plan
from aspen_mp.shm.tables import KERNELS, NUMBER, OP, OPERAND, PLAN_HEADER, TILE, VALUE


def make(graph: Callable[[GraphBuilder], Any] = residual_block, seed: int = 1, **options: Any) -> Plan:
    return build_plan(graph(GraphBuilder()), workers=2, options=PlanOptions(grids=random_grids(seed), **options))


@dataclass
class Bytes:
    """A plan segment that can be written to."""

    raw: bytearray

    def __post_init__(self) -> None:
        h = self.header = np.frombuffer(self.raw, PLAN_HEADER, 1)
        u32 = np.dtype(np.uint32)
        self.ops = self.array("ops", OP, h["n_ops"][0])
        self.operands = self.array("operands", OPERAND, h["n_operands"][0])
        self.params = self.array("params", np.dtype(np.int64), h["n_params"][0])
        self.tiles = self.array("tiles", TILE, h["n_tiles"][0])
        self.children = self.array("children", u32, h["n_children"][0])
        self.parents = self.array("parents", u32, h["n_children"][0])
        self.parent_counts = self.array("parent_counts", u32, h["n_tiles"][0])
        self.parent_begin = self.array("parent_begin", u32, h["n_tiles"][0] + 1)
        self.initial = self.array("initial", u32, h["n_initial"][0])
        self.values = self.array("values", VALUE, h["n_values"][0])
        self.numbers = self.array("numbers", NUMBER, h["n_numbers"][0])

    def array(self, name: str, dtype: Any, count: Any) -> Any:
        return np.frombuffer(self.raw, dtype, int(count), int(self.header[name][0]))

    def op(self, kernel: str) -> int:
        return int(np.flatnonzero(self.ops["kernel"] == KERNELS[kernel].code)[0])

    def operand(self, kernel: str, i: int) -> Any:
        return self.operands[int(self.ops["operand"][self.op(kernel)]) + i :][:1]

    def edge(self) -> tuple[int, int]:
        """Two tiles, the second a child of the first, that have other parents, and whose child has too."""
        for t in range(len(self.tiles)):
            child = int(self.children[self.tiles["children"][t]])
            if self.tiles["n_children"][child] and self.parent_counts[t]:
                grandchild = int(self.children[self.tiles["children"][child]])
                if self.parent_counts[grandchild] > 1:
                    return t, child
        raise AssertionError("no such edge")


def set_header(name: str, value: Any) -> Callable[[Bytes], None]:
    def damage(b: Bytes) -> None:
        b.header[name] = value

    return damage


def field(array: str, name: str, value: Any, at: int = 0) -> Callable[[Bytes], None]:
    def damage(b: Bytes) -> None:
        getattr(b, array)[name][at] = value

    return damage


def operand(kernel: str, i: int, name: str, value: Any) -> Callable[[Bytes], None]:
    def damage(b: Bytes) -> None:
        b.operand(kernel, i)[name] = value

    return damage


def param(kernel: str, i: int, value: int) -> Callable[[Bytes], None]:
    def damage(b: Bytes) -> None:
        b.params[int(b.ops["param"][b.op(kernel)]) + i] = value

    return damage
