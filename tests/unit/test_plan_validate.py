"""Damaged plans are refused with a PlanError, and planted faults of the planner are noticed."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import msgpack
import numpy as np
import pytest
from plan_tools import GraphBuilder, PlanExecutor, evaluate
from test_plan_graphs import (
    attention,
    blocks,
    dense_block,
    fitting_levels,
    images_of_bytes,
    inverted_residuals,
    odd_outputs,
    products_of_bits,
    products_of_bytes,
    products_of_pairs,
    random_grids,
    residual_block,
    sevens,
)

from aspen_mp.planner import build, memory, planfile, planhead
from aspen_mp.planner.build import PlanOptions, build_plan
from aspen_mp.planner.ir import Graph, Tensor
from aspen_mp.planner.plan import Plan
from aspen_mp.planner.validate import validate
from aspen_mp.shm.errors import PlanError
from aspen_mp.shm.tables import DTYPES, KERNELS, OP, OPERAND, PLAN_HEADER, SLOPE, SPACES, TILE


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
        self.slopes = self.array("slopes", SLOPE, h["n_slopes"][0])

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


def cycle(b: Bytes) -> None:
    """The last tile of a path gets the first one as its child, in both lists."""
    up, down = b.edge()
    b.children[b.tiles["children"][down]] = up
    order = np.repeat(np.arange(len(b.tiles)), b.tiles["n_children"])
    by_child = np.lexsort((order, b.children))
    b.parents[:] = order[by_child]
    counts = np.bincount(b.children, minlength=len(b.tiles))
    b.parent_counts[:], b.parent_begin[1:] = counts, np.cumsum(counts)


def moved(b: Bytes) -> None:
    """An output lies on the op's own input."""
    k = b.op("UNARY")
    first = int(b.ops["operand"][k])
    b.operands["offset"][first] = b.operands["offset"][first + 1]


def swapped_boxes(b: Bytes) -> None:
    b.tiles["hi"][1], b.tiles["lo"][1] = b.tiles["hi"][0].copy(), b.tiles["lo"][0].copy()


DAMAGE: list[tuple[str, Callable[[Bytes], None]]] = [
    ("magic", set_header("magic", 1)),
    ("layout", set_header("layout", 7)),
    ("role", set_header("role", 1)),
    ("version", set_header("version", 2)),
    ("bytes", set_header("bytes", 1 << 40)),
    ("n_tiles", set_header("n_tiles", 0)),
    ("header.", set_header("n_tiles", 0xFFFFFFFF)),
    ("header.", set_header("n_children", 0xFFFFFFFF)),
    ("header.", set_header("n_ops", 0xFFFFFFFF)),
    ("header.ops", set_header("ops", 8)),
    ("header.ops", set_header("ops", 0xFFFFFFFFFFFFFFC0)),
    ("header.tiles", set_header("tiles", 3)),
    ("header.blobs", set_header("blobs_bytes", 0xFFFFFFFFFFFFFFFF)),
    ("header.", set_header("operands", 320)),
    ("n_weights", set_header("n_weights", 9)),
    ("weights_bytes", set_header("n_weights", 0)),
    ("end_tile", set_header("end_tile", 0)),
    ("arena_counters", set_header("arena_counters", 0)),
    ("arena_next", set_header("arena_next", 64)),
    ("arena_bytes", set_header("arena_bytes", 128)),
    ("arena_bytes", set_header("arena_bytes", 1 << 60)),
    ("operands", set_header("request_bytes", 0)),
    ("header.slopes", set_header("n_slopes", 1)),
    ("least", set_header("least", 1)),
    ("header.slopes", set_header("slopes", 8)),
    ("header.slopes", set_header("n_slopes", 1 << 60)),
    ("space", field("operands", "space", 77)),
    ("dtype", field("operands", "dtype", 200)),
    ("rank", field("operands", "rank", 9)),
    ("flags", field("operands", "flags", 1)),
    ("dims", field("operands", "dims", -1)),
    ("operands[0]", field("operands", "dims", 1 << 39)),
    ("strides", field("operands", "strides", 0)),
    ("operands[0]", field("operands", "strides", 1 << 62)),
    ("operands[0].offset", field("operands", "offset", -64)),
    ("operands[0].offset", field("operands", "offset", (1 << 63) - 64)),
    ("must be a multiple", operand("CONV", 0, "offset", 833)),
    ("lies in the arena", operand("CONV", 0, "space", SPACES["WEIGHTS"])),
    ("kernel", field("ops", "kernel", 99)),
    ("ops[0].n_outputs", field("ops", "n_outputs", 2)),
    ("n_inputs", field("ops", "n_inputs", 200)),
    ("n_params", field("ops", "n_params", 1)),
    ("ops[0].operand", field("ops", "operand", 0xFFFFFFFF)),
    ("ops[].operand", field("ops", "operand", 1)),
    ("param", field("ops", "param", 0xFFFFFFF0)),
    ("name", field("ops", "name", 0xFFFFFFFF)),
    ("blob", field("ops", "blob_bytes", 5)),
    ("cost_ns", field("ops", "cost_ns", np.nan)),
    ("groups", param("CONV", 0, 0)),
    ("kernel", param("CONV", 1, 1 << 40)),
    ("stride", param("CONV", 3, 0)),
    ("activation", param("CONV", 9, 1000)),
    ("shape of input 1", param("CONV", 1, 5)),
    ("packed_b", param("GEMM", 0, 3)),
    ("axes", param("REDUCE", 1, 1 << 20)),
    ("opcode", param("UNARY", 0, -1)),
    ("required", operand("CONV", 2, "dtype", 0)),
    ("writes what it reads", moved),
    ("tiles[0].op", field("tiles", "op", 0xFFFF)),
    ("depth", field("tiles", "depth", 21)),
    ("depth", field("tiles", "depth", 20)),
    ("flags", field("tiles", "flags", 1)),
    ("children", field("tiles", "children", 0xFFFFFFFF)),
    ("n_children", field("tiles", "n_children", 17)),
    ("grid", field("tiles", "hi", 9999)),
    ("grid", field("tiles", "lo", 9999)),
    ("grid", swapped_boxes),
    ("ordered by op", field("tiles", "op", 0, at=-1)),
    ("children[0]", field("children", slice(None), 0xFFFFFFFF)),
    ("parents", field("parents", slice(None), 0)),
    ("parent_counts", field("parent_counts", slice(None), 3)),
    ("parent_begin", field("parent_begin", slice(None), 3)),
    ("initial", field("initial", slice(None), 5)),
    ("cycle", cycle),
]


@pytest.mark.parametrize(("name", "damage"), DAMAGE, ids=[f"{k}-{n}" for k, (n, _) in enumerate(DAMAGE)])
def test_damage_is_refused(name: str, damage: Callable[[Bytes], None]) -> None:
    b = Bytes(make().segment())
    validate(b.raw)
    damage(b)
    with pytest.raises(PlanError, match=r"^plan ") as error:
        validate(b.raw)
    assert name in str(error.value)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("shape of input 1", param("GEMM", 0, 0)),
        ("shape of input 6", operand("GEMM", 7, "dims", [[2, 4, 7 * 48, 0, 0, 0, 0, 0]])),
        ("dtype of operand 7", operand("GEMM", 7, "dtype", DTYPES["I32"])),
        ("strides of input 6", operand("GEMM", 7, "strides", [[4 * 7 * 16, 7 * 16, 0, 0, 0, 0, 0, 0]])),
        ("strides of the output", operand("STRASSEN", 0, "strides", [[4 * 7 * 16, 1, 4, 0, 0, 0, 0, 0]])),
        ("an even number", operand("STRASSEN", 1, "dims", [[2, 7, 23, 0, 0, 0, 0, 0]])),
        ("shape of the output", operand("STRASSEN", 1, "dims", [[2, 5, 24, 0, 0, 0, 0, 0]])),
    ],
)
def test_damaged_left_factors(name: str, damage: Callable[[Bytes], None]) -> None:
    b = Bytes(make(sevens).segment())
    validate(b.raw)
    damage(b)
    with pytest.raises(PlanError, match=name):
        validate(b.raw)


def of_sums(i: int, name: str, value: Any) -> Callable[[Bytes], None]:
    """A field of operand i of the product that gives its sums themselves."""

    def damage(b: Bytes) -> None:
        products = np.flatnonzero(b.ops["kernel"] == KERNELS["IGEMM"].code)
        (k,) = [k for k in products if b.operands["dtype"][b.ops["operand"][k]] == DTYPES["I32"]]
        if name == "activation":
            b.params[int(b.ops["param"][k]) + 1] = value
        else:
            b.operands[int(b.ops["operand"][k]) + i :][:1][name] = value

    return damage


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("zeros", param("IGEMM", 0, 2)),
        ("zeros", param("IGEMM", 0, -1)),
        ("activation", param("IGEMM", 1, 1000)),
        ("residual_last", param("IGEMM", 4, 3)),
        ("dtype of the output", operand("IGEMM", 0, "dtype", DTYPES["U32"])),
        ("dtype of input 0", operand("IGEMM", 1, "dtype", DTYPES["BOOL"])),
        ("shape of input 0", operand("IGEMM", 1, "dims", [[2, 6, 24, 0, 0, 0, 0, 0]])),
        ("shape of input 1", operand("IGEMM", 1, "dims", [[2, 7, 20, 0, 0, 0, 0, 0]])),
        ("rank of input 0", operand("IGEMM", 1, "rank", 2)),
        ("dtype of input 1", operand("IGEMM", 2, "dtype", DTYPES["U8"])),
        ("shape of input 1", operand("IGEMM", 2, "dims", [[2, 9, 32, 4, 0, 0, 0, 0]])),
        ("shape of input 1", operand("IGEMM", 2, "dims", [[1, 9, 32, 4, 0, 0, 0, 0]])),
        ("strides of input 1", operand("IGEMM", 2, "strides", [[9 * 128, 0, 4, 1, 0, 0, 0, 0]])),
        ("shape of input 2", operand("IGEMM", 3, "dims", [[2, 7, 79, 0, 0, 0, 0, 0]])),
        ("dtype of input 2", operand("IGEMM", 3, "dtype", DTYPES["I32"])),
        ("shape of input 4", operand("IGEMM", 5, "dims", [[1, 1, 80, 0, 0, 0, 0, 0]])),
        ("dtype of input 4", operand("IGEMM", 5, "dtype", DTYPES["I32"])),
        ("shape of input 5", operand("IGEMM", 6, "dims", [[2, 7, 1, 0, 0, 0, 0, 0]])),
        ("dtype of input 5", operand("IGEMM", 6, "dtype", DTYPES["I8"])),
        ("required", operand("IGEMM", 2, "dtype", 0)),
        ("input 2", operand("IGEMM", 0, "dtype", DTYPES["I32"])),
        ("activation", of_sums(0, "activation", 1)),
        ("dtype of input 0", of_sums(1, "dtype", DTYPES["BOOL"])),
    ],
)
def test_damaged_products_of_bytes(name: str, damage: Callable[[Bytes], None]) -> None:
    b = Bytes(make(products_of_bytes).segment())
    validate(b.raw)
    damage(b)
    with pytest.raises(PlanError, match=name):
        validate(b.raw)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("activation", param("NGEMM", 1, 1000)),
        ("residual_last", param("NGEMM", 4, 3)),
        ("bits", param("NGEMM", 5, 3)),
        ("bits", param("NGEMM", 5, 5)),
        ("shape of input 1", param("NGEMM", 5, 8)),
        ("bits", param("NGEMM", 5, 1 << 40)),
        ("block", param("NGEMM", 6, 0)),
        ("block", param("NGEMM", 6, -8)),
        ("block", param("NGEMM", 6, 12)),
        ("block", param("NGEMM", 6, 1 << 40)),
        ("shape of input 1", param("NGEMM", 6, 16)),
        ("zeros", param("NGEMM", 7, 2)),
        ("shape of input 1", param("NGEMM", 7, 0)),
        ("zero", param("NGEMM", 8, 16)),
        ("zero", param("NGEMM", 8, -1)),
        ("dtype of the output", operand("NGEMM", 0, "dtype", DTYPES["I32"])),
        ("dtype of input 0", operand("NGEMM", 1, "dtype", DTYPES["I32"])),
        ("shape of input 0", operand("NGEMM", 1, "dims", [[2, 6, 24, 0, 0, 0, 0, 0]])),
        ("shape of input 1", operand("NGEMM", 1, "dims", [[2, 7, 15, 0, 0, 0, 0, 0]])),
        ("rank of input 0", operand("NGEMM", 1, "rank", 2)),
        ("dtype of input 1", operand("NGEMM", 2, "dtype", DTYPES["I8"])),
        ("shape of input 1", operand("NGEMM", 2, "dims", [[2, 864, 0, 0, 0, 0, 0, 0]])),
        ("shape of input 1", operand("NGEMM", 2, "dims", [[3, 860, 0, 0, 0, 0, 0, 0]])),
        ("strides of input 1", operand("NGEMM", 2, "strides", [[863, 1, 0, 0, 0, 0, 0, 0]])),
        ("shape of input 2", operand("NGEMM", 3, "dims", [[2, 7, 79, 0, 0, 0, 0, 0]])),
        ("dtype of input 2", operand("NGEMM", 3, "dtype", DTYPES["I32"])),
        ("required", operand("NGEMM", 2, "dtype", 0)),
    ],
)
def test_damaged_products_of_bits(name: str, damage: Callable[[Bytes], None]) -> None:
    b = Bytes(make(products_of_bits).segment())
    validate(b.raw)
    damage(b)
    with pytest.raises(PlanError, match=name):
        validate(b.raw)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("zeros", param("ICONV", 0, 2)),
        ("kernel", param("ICONV", 1, 0)),
        ("shape of input 1", param("ICONV", 1, 2)),
        ("shape of input 1", param("ICONV", 2, 5)),
        ("stride", param("ICONV", 3, 0)),
        ("stride", param("ICONV", 4, -1)),
        ("dilation", param("ICONV", 5, 0)),
        ("dilation", param("ICONV", 6, 1 << 40)),
        ("window", param("ICONV", 3, 1 << 30)),
        ("window", param("ICONV", 4, 1 << 30)),
        ("pad", param("ICONV", 7, -1)),
        ("pad", param("ICONV", 8, -1)),
        ("activation", param("ICONV", 9, 1000)),
        ("residual_last", param("ICONV", 12, 2)),
        ("zero", param("ICONV", 14, 1 << 62)),
        ("zero", param("ICONV", 14, -(1 << 62))),
        ("dtype of the output", operand("ICONV", 0, "dtype", DTYPES["U32"])),
        ("rank of the output", operand("ICONV", 0, "rank", 3)),
        ("dtype of input 0", operand("ICONV", 1, "dtype", DTYPES["BOOL"])),
        ("rank of input 0", operand("ICONV", 1, "rank", 3)),
        ("batch of input 0", operand("ICONV", 1, "dims", [[1, 3, 9, 8, 0, 0, 0, 0]])),
        ("shape of input 1", operand("ICONV", 1, "dims", [[2, 5, 5, 8, 0, 0, 0, 0]])),
        ("dtype of input 1", operand("ICONV", 2, "dtype", DTYPES["U8"])),
        ("shape of input 1", operand("ICONV", 2, "dims", [[1, 12, 32, 4, 0, 0, 0, 0]])),
        ("strides of input 1", operand("ICONV", 2, "strides", [[12 * 128, 0, 4, 1, 0, 0, 0, 0]])),
        ("shape of input 2", operand("ICONV", 3, "dims", [[39, 0, 0, 0, 0, 0, 0, 0]])),
        ("dtype of input 2", operand("ICONV", 3, "dtype", DTYPES["I32"])),
        ("shape of input 4", operand("ICONV", 5, "dims", [[1, 40, 1, 1, 0, 0, 0, 0]])),
        ("dtype of input 4", operand("ICONV", 5, "dtype", DTYPES["I32"])),
        ("shape of input 5", operand("ICONV", 6, "dims", [[0, 0, 0, 0, 0, 0, 0, 0]])),
        ("dtype of input 5", operand("ICONV", 6, "dtype", DTYPES["I8"])),
        ("required", operand("ICONV", 2, "dtype", 0)),
        ("input 2", operand("ICONV", 0, "dtype", DTYPES["I32"])),
    ],
)
def test_damaged_convolutions_of_bytes(name: str, damage: Callable[[Bytes], None]) -> None:
    b = Bytes(make(images_of_bytes).segment())
    validate(b.raw)
    damage(b)
    with pytest.raises(PlanError, match=name):
        validate(b.raw)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("activation", param("BGEMM", 1, 1000)),
        ("residual_last", param("BGEMM", 4, 3)),
        ("dtype of the output", operand("BGEMM", 0, "dtype", DTYPES["I32"])),
        ("dtype of input 0", operand("BGEMM", 1, "dtype", DTYPES["I32"])),
        ("shape of input 0", operand("BGEMM", 1, "dims", [[2, 19, 40, 0, 0, 0, 0, 0]])),
        ("shape of input 1", operand("BGEMM", 1, "dims", [[2, 20, 38, 0, 0, 0, 0, 0]])),
        ("rank of input 0", operand("BGEMM", 1, "rank", 2)),
        ("dtype of input 1", operand("BGEMM", 2, "dtype", DTYPES["F32"])),
        ("shape of input 1", operand("BGEMM", 2, "dims", [[2, 19, 32, 0, 0, 0, 0, 0]])),
        ("shape of input 1", operand("BGEMM", 2, "dims", [[1, 20, 32, 0, 0, 0, 0, 0]])),
        ("strides of input 1", operand("BGEMM", 2, "strides", [[640, 1, 20, 0, 0, 0, 0, 0]])),
        ("shape of input 2", operand("BGEMM", 3, "dims", [[2, 20, 32, 0, 0, 0, 0, 0]])),
        ("dtype of input 2", operand("BGEMM", 3, "dtype", DTYPES["I32"])),
        ("required", operand("BGEMM", 2, "dtype", 0)),
        ("kernel", param("BCONV", 0, 0)),
        ("shape of input 1", param("BCONV", 1, 2)),
        ("stride", param("BCONV", 2, 0)),
        ("stride", param("BCONV", 3, -1)),
        ("dilation", param("BCONV", 4, 0)),
        ("dilation", param("BCONV", 5, 1 << 40)),
        ("window", param("BCONV", 3, 1 << 30)),
        ("window", param("BCONV", 4, 1 << 30)),
        ("pad", param("BCONV", 6, -1)),
        ("pad", param("BCONV", 7, -1)),
        ("activation", param("BCONV", 8, 1000)),
        ("residual_last", param("BCONV", 11, 2)),
        ("dtype of the output", operand("BCONV", 0, "dtype", DTYPES["U32"])),
        ("rank of the output", operand("BCONV", 0, "rank", 3)),
        ("dtype of input 0", operand("BCONV", 1, "dtype", DTYPES["BOOL"])),
        ("rank of input 0", operand("BCONV", 1, "rank", 3)),
        ("batch of input 0", operand("BCONV", 1, "dims", [[1, 17, 9, 8, 0, 0, 0, 0]])),
        ("shape of input 1", operand("BCONV", 1, "dims", [[2, 19, 9, 8, 0, 0, 0, 0]])),
        ("dtype of input 1", operand("BCONV", 2, "dtype", DTYPES["U8"])),
        ("shape of input 1", operand("BCONV", 2, "dims", [[1, 81, 32, 0, 0, 0, 0, 0]])),
        ("strides of input 1", operand("BCONV", 2, "strides", [[81 * 32, 1, 81, 0, 0, 0, 0, 0]])),
        ("shape of input 2", operand("BCONV", 3, "dims", [[39, 0, 0, 0, 0, 0, 0, 0]])),
        ("dtype of input 2", operand("BCONV", 3, "dtype", DTYPES["I32"])),
        ("required", operand("BCONV", 2, "dtype", 0)),
    ],
)
def test_damaged_products_of_pairs(name: str, damage: Callable[[Bytes], None]) -> None:
    b = Bytes(make(products_of_pairs).segment())
    validate(b.raw)
    damage(b)
    with pytest.raises(PlanError, match=name):
        validate(b.raw)


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("block", 16, 5),
        ("shape of input 1", 16, 2),
        ("groups", 0, 2),
        ("kernel", 2, 5),
        ("stride", 4, 2),
        ("dilation", 5, 0),
        ("pad", 7, -1),
    ],
)
def test_damaged_winograd(name: str, place: int, value: int) -> None:
    b = Bytes(make(blocks).segment())
    validate(b.raw)
    param("WINO", place, value)(b)
    with pytest.raises(PlanError, match=name):
        validate(b.raw)


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [("activation", 0, 99), ("shape of input 3", 3, 2), ("window", 5, 100), ("window", 7, 1000), ("pad", 9, -1), ("activation", 11, -1)],
)
def test_damaged_inverted_residual(name: str, place: int, value: int) -> None:
    b = Bytes(make(inverted_residuals).segment())
    validate(b.raw)
    param("PWDW", place, value)(b)
    with pytest.raises(PlanError, match=name):
        validate(b.raw)


def recurrent_layer(b: GraphBuilder) -> Graph:
    """A run of an LSTM with all inputs."""
    p, h, c = b.input(5, 2, 80), b.input(1, 1, 2, 20), b.input(1, 1, 2, 20)
    packed = b.const(2, 20, 4, 16, weight=True)
    y = b.node("LSTM", [p, packed, h, c], (3, 1, 2, 20), first=0, reverse=False, begins=True)
    assert y.producer is not None
    y.producer.outputs.append(Tensor("c", c.shape, c.dtype, producer=y.producer))
    return b.graph(b.unary(y), b.unary(y.producer.outputs[1]))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("n_outputs", lambda b: b.ops["n_outputs"].__setitem__(b.op("LSTM"), 1)),
        ("steps of input 0", param("LSTM", 0, 3)),
        ("first", param("LSTM", 0, -1)),
        ("reverse", param("LSTM", 1, 2)),
        ("option", param("LSTM", 2, 2)),
        ("shape of the second output", operand("LSTM", 1, "dims", [[1, 1, 2, 19, 0, 0, 0, 0]])),
        ("shape of input 0", operand("LSTM", 2, "dims", [[5, 2, 79, 0, 0, 0, 0, 0]])),
        ("shape of input 1", operand("LSTM", 3, "dims", [[1, 20, 4, 16, 0, 0, 0, 0]])),
        ("strides of input 1", operand("LSTM", 3, "strides", [[0, 64, 16, 1, 0, 0, 0, 0]])),
        ("shape of input 2", operand("LSTM", 4, "dims", [[1, 1, 1, 20, 0, 0, 0, 0]])),
        ("shape of input 3", operand("LSTM", 5, "dims", [[1, 1, 2, 19, 0, 0, 0, 0]])),
    ],
)
def test_damaged_recurrent_layer(name: str, damage: Callable[[Bytes], None]) -> None:
    b = Bytes(make(recurrent_layer).segment())
    validate(b.raw)
    damage(b)
    with pytest.raises(PlanError, match=name):
        validate(b.raw)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("times", param("QUANTIZE", 0, 2)),
        ("dtype of the output", operand("QUANTIZE", 0, "dtype", DTYPES["BOOL"])),
        ("dtype of input 0", operand("QUANTIZE", 1, "dtype", DTYPES["U8"])),
        ("dtype of input 1", operand("QUANTIZE", 2, "dtype", DTYPES["U8"])),
        ("dtype of input 2", operand("QUANTIZE", 3, "dtype", DTYPES["I8"])),
        ("shape of input 1", operand("QUANTIZE", 2, "dims", [[1, 32, 7, 8, 0, 0, 0, 0]])),
        ("shape of input 2", operand("QUANTIZE", 3, "dims", [[1, 1, 7, 9, 0, 0, 0, 0]])),
        ("dtype of input 0", operand("DEQUANTIZE", 1, "dtype", DTYPES["BOOL"])),
        ("dtype of input 1", operand("DEQUANTIZE", 2, "dtype", DTYPES["U8"])),
        ("dtype of input 2", operand("DEQUANTIZE", 3, "dtype", DTYPES["I8"])),
        ("shape of input 0", operand("DEQUANTIZE", 1, "dims", [[1, 32, 7, 8, 0, 0, 0, 0]])),
        ("axis", param("EXTREMES", 0, 4)),
        ("axis", param("EXTREMES", 0, -1)),
        ("blocks of the output", param("EXTREMES", 0, 0)),
        ("dtype of operand 1", operand("EXTREMES", 1, "dtype", DTYPES["I32"])),
        ("shape of the output", operand("EXTREMES", 0, "dims", [[5, 1, 0, 0, 0, 0, 0, 0]])),
        ("n_outputs", lambda b: b.ops["n_outputs"].__setitem__(b.op("LEVELS"), 1)),
        ("dtype of the second output", operand("LEVELS", 1, "dtype", DTYPES["I8"])),
        ("dtype of input 0", operand("LEVELS", 2, "dtype", DTYPES["I32"])),
        ("shape of input 0", operand("LEVELS", 2, "dims", [[5, 1, 0, 0, 0, 0, 0, 0]])),
        ("rank of input 0", operand("LEVELS", 2, "rank", 1)),
    ],
)
def test_damaged_levels(name: str, damage: Callable[[Bytes], None]) -> None:
    b = Bytes(make(fitting_levels).segment())
    validate(b.raw)
    damage(b)
    with pytest.raises(PlanError, match=name):
        validate(b.raw)


def test_cut_short() -> None:
    raw = bytes(make().segment())
    for n in [0, 1, 100, PLAN_HEADER.itemsize, len(raw) - 1]:
        with pytest.raises(PlanError):
            validate(raw[:n])
    validate(raw + bytes(4096))


@pytest.mark.parametrize(
    "graph",
    [
        residual_block,
        attention,
        dense_block,
        odd_outputs,
        blocks,
        inverted_residuals,
        products_of_bytes,
        images_of_bytes,
        products_of_bits,
        products_of_pairs,
    ],
)
def test_random_bytes(graph: Callable[[GraphBuilder], Any]) -> None:
    """Whatever is written anywhere, validate() returns or raises PlanError."""
    raw = make(graph).segment()
    rng = np.random.default_rng(7)
    refused = 0
    for _ in range(400):
        bad = bytearray(raw)
        at = int(rng.integers(len(bad)))
        width = int(rng.choice([1, 4, 8]))
        bad[at : at + width] = rng.choice([b"\xff", b"\0", b"\x80", rng.bytes(1)]) * len(bad[at : at + width])
        if bad == raw:
            continue
        try:
            validate(bad)
        except PlanError:
            refused += 1
    assert refused > 40


@pytest.mark.parametrize("graph", [residual_block, attention, dense_block])
def test_missing_anti_dependencies_are_refused(graph: Callable[[GraphBuilder], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_previous", lambda lives: {id(life): [] for life in lives})
    monkeypatch.setattr(memory, "MARGIN", 0)
    found: list[list[memory.Tenant]] = []
    monkeypatch.setattr(build, "tenants", lambda storage: found.append(memory.tenants(storage)) or found[-1])
    for seed in range(1, 6):
        plan = make(graph, seed)
        recycled = any(a.buffer.offset < b.end and b.buffer.offset < a.end for a, b in combinations(found[-1], 2))
        if recycled:
            with pytest.raises(PlanError, match="may overwrite"):
                validate(plan.segment())


def test_missing_anti_dependencies_give_wrong_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """The executor's orders are hard enough to show it."""
    monkeypatch.setattr(memory, "_previous", lambda lives: {id(life): [] for life in lives})
    monkeypatch.setattr(memory, "MARGIN", 0)
    assert _some_run_differs()


def test_missing_edges_give_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    original = build.EdgeBuilder.graph

    def forgetful(*args: Any) -> Any:
        graph = original(*args)
        parents, children = graph.edges()
        keep = np.arange(len(parents)) % 3 > 0
        graph.parents, graph.children = [parents[keep]], [children[keep]]
        return graph

    monkeypatch.setattr(build.EdgeBuilder, "graph", forgetful)
    assert _some_run_differs()


def _some_run_differs() -> bool:
    graph = residual_block(GraphBuilder())
    feeds = [np.random.default_rng(0).integers(-3, 4, t.shape).astype(np.float32) for t in graph.inputs]
    want = evaluate(graph, feeds)
    for seed in range(1, 6):
        plan = build_plan(graph, workers=2, options=PlanOptions(grids=random_grids(seed)))
        for order in ("lifo", "random"):
            got = PlanExecutor(plan).run(feeds, order, seed)
            if not all(np.allclose(y, w, rtol=1e-4, atol=1e-4) for y, w in zip(got, want, strict=True)):
                return True
    return False


# ------------------------------------------------------------------------------------------------------------ .aspen files


def test_file_round_trip(tmp_path: Any) -> None:
    plan = make(odd_outputs, metadata={"model": "abc", "shapes": {"in0": [2, 6]}})
    planfile.save(plan, tmp_path / "p.aspen")
    again = planfile.load((tmp_path / "p.aspen").read_bytes(), {w.key: w.write for w in plan.weights})
    assert bytes(again.segment()) == bytes(plan.segment())
    assert again.metadata == plan.metadata
    assert (again.inputs, again.outputs, again.info) == (plan.inputs, plan.outputs, plan.info)
    again.place_weights({w.key: (2, 64 + 64 * k) for k, w in enumerate(again.weights)})
    assert again.header()["n_weights"] == 3
    lonely = planfile.load(planfile.dump(plan))
    with pytest.raises(PlanError, match="not given"):
        lonely.weights[0].write(memoryview(bytearray(lonely.weights[0].nbytes)))


def test_every_flipped_byte_of_a_file_is_refused() -> None:
    data = planfile.dump(make(odd_outputs))
    rng = np.random.default_rng(3)
    for at in [*range(64), *rng.integers(0, len(data), 200).tolist()]:
        bad = bytearray(data)
        bad[at] ^= 1 << int(rng.integers(8))
        with pytest.raises(PlanError):
            planfile.load(bad)
    for n in (0, 7, 48, 100, len(data) - 1):
        with pytest.raises(PlanError):
            planfile.load(data[:n])
    with pytest.raises(PlanError):
        planfile.load(data + b"\0")


def resealed(data: bytes, header: Any, body: bytes | None = None) -> bytes:
    """A file with another header and a checksum that fits."""
    size = struct.unpack_from("<I", data, 12)[0]
    packed = header if isinstance(header, bytes) else msgpack.packb(header)
    return planhead.join(packed, data[-(-(planhead.PREFIX.size + size) // 64) * 64 :] if body is None else body)


def header_of(data: bytes) -> dict[str, Any]:
    size = struct.unpack_from("<I", data, 12)[0]
    return msgpack.unpackb(data[planhead.PREFIX.size : planhead.PREFIX.size + size])


def test_forged_headers_are_refused() -> None:
    data = planfile.dump(make(odd_outputs))
    good = header_of(data)
    planfile.load(resealed(data, good))
    nested: Any = []
    for _ in range(2000):
        nested = [nested]
    forged: list[Any] = [
        [],
        {},
        good | {"extra": 1},
        good | {"layout": 1},
        good | {"name": 5},
        good | {"segment_bytes": -1},
        good | {"segment_bytes": 1 << 60},
        good | {"weight_uses": -1},
        good | {"weight_uses": good["weight_uses"] + 1},
        good | {"inputs": [["x", "float32", [2, -6], 0, 48]]},
        good | {"inputs": [["x", "float32", [2, 6], 1 << 40, 48]]},
        good | {"inputs": [["x", "float32", [2, 6], 0, 47]]},
        good | {"inputs": [["x", "no", [2, 6], 0, 48]]},
        good | {"inputs": [[1]]},
        good | {"weights": [["a", 1]]},
        good | {"weights": [*good["weights"][:-1], good["weights"][0]]},
        good | {"weights": [[k, 1] for k, _ in good["weights"]]},
        good | {"info": [1]},
        *(good | {"activation_bytes": nbytes} for nbytes in (1 << 50, 1 << 63, -1, -(1 << 62))),
        b"\xdd\xff\xff\xff\xff",
        b"\xc1",
        b"\x82\xa1a\x01\xa1a\x02",
        b"\x81" * 5000,
        msgpack.packb(good) + b"\0",
    ]
    for header in forged:
        with pytest.raises(PlanError):
            planfile.load(resealed(data, header))


def test_weights_stay_in_their_items() -> None:
    plan = make(residual_block)
    plan.weight_uses[0, 2] = 1 << 30
    with pytest.raises(PlanError, match="weight_uses"):
        planfile.load(planfile.dump(plan))
    plan = make(residual_block)
    plan.weight_uses = plan.weight_uses[1:]
    with pytest.raises(PlanError, match="weight_uses"):
        planfile.load(planfile.dump(plan))


def test_placing_weights() -> None:
    plan = make(residual_block)
    with pytest.raises(PlanError, match="no place"):
        plan.place_weights({})
    directory = dict.fromkeys((w.key for w in plan.weights), (9, 64))
    with pytest.raises(PlanError, match="segment"):
        plan.place_weights(directory)
