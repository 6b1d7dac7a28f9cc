"""Damaged plans are refused with a PlanError, and planted faults of the planner are noticed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from graphs_by_hand import GraphBuilder
from plan_damage import Bytes, field, make, operand, param, set_header
from plan_executor import PlanExecutor, evaluate
from small_graphs import (
    attention,
    blocks,
    dense_block,
    images_of_bytes,
    inverted_residuals,
    odd_outputs,
    products_of_bits,
    products_of_bytes,
    products_of_pairs,
    random_grids,
    residual_block,
)

from aspen_mp.planner import build
from aspen_mp.planner.build import PlanOptions, build_plan
from aspen_mp.planner.plan import memory
from aspen_mp.planner.plan.validate import validate
from aspen_mp.shm.errors import PlanError
from aspen_mp.shm.tables import PLAN_HEADER, SPACES


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
    ("header.numbers", set_header("n_numbers", 1)),
    ("least", set_header("n_extents", 1)),
    ("header.numbers", set_header("numbers", 8)),
    ("header.values", set_header("n_values", (1 << 32) - 1)),
    ("space", field("operands", "space", 77)),
    ("dtype", field("operands", "dtype", 200)),
    ("rank", field("operands", "rank", 9)),
    ("flags", field("operands", "flags", 1)),
    ("dims", field("operands", "dims", -1)),
    ("operands[0]", field("operands", "dims", 1 << 39)),
    ("strides", field("operands", "strides", 0)),
    ("operands[0]", field("operands", "strides", 1 << 62)),
    ("reaches beyond", operand("CONV", 1, "strides", [[1 << 62, 144, 12, 1, 0, 0, 0, 0]])),
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
