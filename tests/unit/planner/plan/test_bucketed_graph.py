"""One plan for a shape bucket gives at each of them, bit for bit, what a plan for that length gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from bucketed_plans import GRAPHS, Make, Runner, bucketed, expected, feeds_of, graph_at, keys, places, single, tokens
from graphs_by_hand import GraphBuilder
from hypothesis import given
from hypothesis import strategies as st

from aspen_mp.planner.ir.graph import Graph
from aspen_mp.planner.plan import extents, plan_file
from aspen_mp.planner.plan.plan import Plan
from aspen_mp.planner.plan.validate import validate
from aspen_mp.shm import extents as words
from aspen_mp.shm.errors import PlanError
from aspen_mp.shm.tables import DTYPE_BYTES, DTYPES, KERNELS, LIMITS, NUMBER, NUMBER_TABLES, SPACES, VALUE, VALUE_KINDS
from aspen_mp.workers._dse import PlanRunner


@pytest.mark.parametrize(("make", "least", "most", "barriers"), GRAPHS, ids=[g[0].__name__ for g in GRAPHS])
def test_every_extent_gives_what_its_own_plan_gives(make: Make, least: int, most: int, barriers: bool) -> None:
    """In any order of extents, so nothing of the one before is left."""
    rng = np.random.default_rng(3)
    order = [most, least, *rng.permutation(np.arange(least, most + 1)).tolist(), least, least, most]
    wanted: dict[int, Any] = {}
    for seed in (1, 2):
        plan = bucketed(make, least, most, seed, barriers)
        validate(plan.segment())
        runner = Runner(plan)
        for k, extent in enumerate(order):
            graph = graph_at(make, extent)
            feeds = feeds_of(graph, extent)
            if extent not in wanted:
                wanted[extent] = expected(make, extent, feeds)
            got = runner.run(extent, graph, feeds, ("fifo", "lifo", "random")[k % 3], k)
            assert got == wanted[extent], f"extent {extent}, tiles {seed}"


def test_requests_of_other_extents_are_refused() -> None:
    runner = Runner(bucketed(keys, 3, 8)).runner
    for extent in (0, 2, 9, 1 << 31):
        with pytest.raises(PlanError, match=rf"the extents \[{extent}\] are not in \[\(3, 8\)\]"):
            runner.move(extent)
    with pytest.raises(PlanError, match=r"the extents \[5\] are not in \[\]"):
        Runner(single(keys, 5)).runner.move(5)


def test_a_plan_at_an_extent() -> None:
    plan = bucketed(places, 3, 9, barriers=True)
    kept = plan.operands.copy(), plan.params.copy(), plan.tiles.copy()
    for extent in range(3, 10):
        operands, params, tiles = extents.at(plan, (extent,))
        other = single(places, extent)
        for name in ("dims", "strides"):
            assert (operands[name] == other.operands[name]).all()
        assert (params == other.params).all()
        outputs = operands[plan.ops["operand"][tiles["op"]]][plan.ops["n_outputs"][tiles["op"]] > 0]
        hi = tiles["hi"][: len(outputs), :2]
        assert (hi <= outputs["dims"][:, :2]).all()
        assert (tiles["lo"] <= tiles["hi"]).all()
        cells = np.prod((tiles["hi"] - tiles["lo"])[: len(outputs), :2].astype(np.int64), axis=1)
        of_op = np.bincount(tiles["op"][: len(outputs)], cells, len(plan.ops))
        for k, op in enumerate(plan.ops):
            if op["n_outputs"]:
                assert of_op[k] == operands["dims"][op["operand"]][:2].prod(), "tiles are all of the output"
    for was, array in zip(kept, (plan.operands, plan.params, plan.tiles), strict=True):
        assert (was == array).all()


def test_tiles_beyond_the_extent_run_no_kernel() -> None:
    """They ask for no scratch either, and write nothing."""
    plan = bucketed(tokens, 1, 9)
    runner = Runner(plan)
    empty = 0
    for extent in (1, 5, 8):
        tiles = extents.at(plan, (extent,))[2]
        runner.runner.move(extent)
        for t in np.flatnonzero((tiles["lo"] == tiles["hi"]).any(axis=1)).tolist():
            before = runner.arena.tobytes(), runner.request.tobytes()
            assert runner.runner.run_tile(t) == 0
            assert runner.runner.scratch_bytes(t) == 0
            assert (runner.arena.tobytes(), runner.request.tobytes()) == before
            empty += 1
    assert empty > 20


def test_a_file_keeps_what_follows_from_extents() -> None:
    plan = bucketed(tokens, 2, 7)
    again = plan_file.load(plan_file.dump(plan), {w.key: w.write for w in plan.weights})
    assert (again.least, again.most) == ((2,), (7,))
    assert (again.numbers == plan.numbers).all()
    assert bytes(again.segment()) == bytes(plan.segment())
    graph = graph_at(tokens, 4)
    feeds = feeds_of(graph)
    assert Runner(again).run(4, graph, feeds) == expected(tokens, 4, feeds)


# ---- damage

AXES = LIMITS["rank"]


def operand(plan: Plan, kernel: str, place: int) -> int:
    """The number of an operand of the first op of a kernel."""
    return int(plan.ops["operand"][np.flatnonzero(plan.ops["kernel"] == KERNELS[kernel].code)[0]]) + place


def row(plan: Plan, table: str, index: int) -> Any:
    """What a number follows from; it is made where there is none."""
    found = (plan.numbers["table"] == NUMBER_TABLES[table]) & (plan.numbers["index"] == index)
    if not found.any():
        plan.numbers = np.append(plan.numbers, np.array([(NUMBER_TABLES[table], 0, index, 0)], NUMBER))
        return plan.numbers[-1:]
    at = int(np.flatnonzero(found)[0])
    return plan.numbers[at : at + 1]


def slope(table: str, index: int, per: int) -> Callable[[Plan], None]:
    def damage(plan: Plan) -> None:
        row(plan, table, index)["per"] = per

    return damage


def shapeless(plan: Plan) -> None:
    plan.least = plan.most = ()


def extents_of(least: int, most: int) -> Callable[[Plan], None]:
    def damage(plan: Plan) -> None:
        plan.least, plan.most = (least,), (most,)

    return damage


def field(name: str, value: int) -> Callable[[Plan], None]:
    def damage(plan: Plan) -> None:
        plan.numbers[name][0] = value

    return damage


def absent(plan: Plan) -> None:
    row(plan, "OFFSET", int(np.flatnonzero(plan.operands["dtype"] == DTYPES["NONE"])[0]))


def before_its_space(plan: Plan) -> None:
    slope("OFFSET", operand(plan, "SOFTMAX", 0), 1 << 20)(plan)


def into_counters(plan: Plan) -> None:
    at = operand(plan, "SOFTMAX", 0)
    assert plan.operands["space"][at] == SPACES["ARENA"]
    slope("OFFSET", at, (int(plan.operands["offset"][at]) - 64) // 32 * 4)(plan)


DANGEROUS: list[tuple[str, Callable[[Plan], None]]] = [
    ("header.least", extents_of(0, 9)),
    ("header.least", extents_of(10, 9)),
    ("header.least", extents_of(1, 1 << 31)),
    ("header.n_numbers", shapeless),
    ("numbers[0].table", field("table", 5)),
    ("numbers[0].value", field("value", 1)),
    ("numbers[0].index", field("index", 1 << 31)),
    ("numbers[0].per", field("per", -1)),
    ("numbers[0].per", field("per", 2)),
    ("numbers[0].per", field("per", 1 << 62)),
    (".index", slope("OFFSET", 1 << 20, 4)),
    (".index", slope("PARAM", 1 << 20, 4)),
    (".per", slope("PARAM", 0, -(1 << 63))),
    (".per", slope("OFFSET", 0, -4)),
    (".index", absent),
    (".per", before_its_space),
    (".offset", into_counters),
]


@pytest.mark.parametrize(("name", "damage"), DANGEROUS, ids=[f"{k}-{n}" for k, (n, _) in enumerate(DANGEROUS)])
def test_workers_refuse_numbers_that_lead_out_of_memory(name: str, damage: Callable[[Plan], None]) -> None:
    """Whoever has validated the plan or has not."""
    plan = bucketed(tokens, 1, 9)
    damage(plan)
    with pytest.raises(PlanError, match=r"^plan ") as error:
        validate(plan.segment())
    assert name in str(error.value)
    with pytest.raises(PlanError) as refused:
        Runner(plan)
    assert not str(refused.value).startswith("the extents")


def twice(plan: Plan) -> None:
    plan.numbers = np.append(plan.numbers, plan.numbers[:1])


def of_a_weight(plan: Plan) -> None:
    at = operand(plan, "GEMM", 2)
    assert plan.operands["space"][at] >= SPACES["WEIGHTS"]
    row(plan, "STRIDE", AXES * at)


def input_that_stays(plan: Plan) -> None:
    slope("DIM", AXES * operand(plan, "NORM", 1) + 1, 0)(plan)


def param_that_moves(plan: Plan) -> None:
    slope("PARAM", int(plan.ops["param"][np.flatnonzero(plan.ops["kernel"] == KERNELS["UNARY"].code)[0]]), 20)(plan)


def over(behind: int) -> Callable[[Plan], None]:
    """At the shortest extent NORM's output lies so many times its distance from its input before where it is at the longest."""

    def damage(plan: Plan) -> None:
        out = operand(plan, "NORM", 0)
        apart = int(plan.operands["offset"][out] - plan.operands["offset"][out + 1])
        slope("OFFSET", out, behind * apart // (plan.most[0] - plan.least[0]))(plan)

    return damage


def odd_offset(plan: Plan) -> None:
    slope("OFFSET", operand(plan, "NORM", 0), 1)(plan)


WRONG: list[tuple[str, Callable[[Plan], None]]] = [
    ("a number follows from one value", twice),
    ("has rank 3", slope("DIM", 3, 0)),
    ("is a weight", of_a_weight),
    ("numbers[0].per", field("per", 1 << 40)),
    ("(at extents [1])", input_that_stays),
    ("opcode", param_that_moves),
    ("writes what it reads, but outputs lie apart from inputs (at extents [1])", over(1)),
    ("ops[7] may overwrite what ops[5] still uses", over(2)),
    ("must be a multiple of 4 (at extents [2])", odd_offset),
]


@pytest.mark.parametrize(("name", "damage"), WRONG, ids=[f"{k}-{n}" for k, (n, _) in enumerate(WRONG)])
def test_wrong_numbers_are_refused(name: str, damage: Callable[[Plan], None]) -> None:
    plan = bucketed(tokens, 1, 9)
    damage(plan)
    with pytest.raises(PlanError, match=r"^plan ") as error:
        validate(plan.segment())
    assert name in str(error.value)


def opaque(b: GraphBuilder, n: int) -> Graph:
    """A tile in Python between others, over n columns that others have turned."""
    y = b.transpose(b.unary(b.input(3, n), "ABS"), 1, 0)
    return b.graph(b.unary(b.node("OPAQUE", [y, b.input(n, 2)], (n, 5), model=b"model"), "NEG"))


def test_opaque_tiles_see_operands_at_the_extent() -> None:
    plan, seen = bucketed(opaque, 1, 9), []
    validate(plan.segment())

    def both(blob: bytes, outputs: Any, inputs: Any) -> None:
        seen.append((bytes(blob), [x.shape for x in (*outputs, *inputs)]))
        outputs[0][...] = np.concatenate(inputs, 1)

    runner = Runner(plan, opaque=both)
    for extent in (9, 1, 4, 8, 1, 9):
        graph = graph_at(opaque, extent)
        x, y = feeds_of(graph, extent)
        (got,) = runner.run(extent, graph, [x, y])
        assert seen.pop() == (b"model", [(extent, 5), (extent, 3), (extent, 2)])
        assert got == (-np.concatenate([np.abs(x).T, y], 1)).tobytes()


def reach(operands: Any) -> tuple[Any, Any]:
    """First and one past the last byte that each operand touches; 0 and 0: none."""
    axis = np.arange(AXES) < operands["rank"][:, None]
    steps = np.where(axis, (operands["dims"] - 1) * operands["strides"], 0)
    item = np.array([DTYPE_BYTES[d] for d in operands["dtype"].tolist()])
    some = (operands["dtype"] != DTYPES["NONE"]) & (np.where(axis, operands["dims"], 1) > 0).all(axis=1)
    low = operands["offset"] + np.minimum(steps, 0).sum(axis=1) * item
    high = operands["offset"] + (np.maximum(steps, 0).sum(axis=1) + 1) * item
    return np.where(some, low, 0), np.where(some, high, 0)


def test_what_workers_accept_stays_in_memory_at_every_extent() -> None:
    """They look at the two ends alone: whatever operands are and follow from, nothing between the two reaches further."""
    rng = np.random.default_rng(5)
    base = bucketed(places, 5, 9, barriers=True)
    sizes = {SPACES[space]: int(base.header()[name]) for space, name in (("ARENA", "arena_bytes"), ("REQUEST", "request_bytes"))}
    written = base.ops["operand"][base.ops["n_outputs"] > 0]
    inputs = np.setdiff1d(np.flatnonzero(base.operands["space"] <= SPACES["REQUEST"]), written)
    accepted = 0
    for case in range(4000):
        plan = replace(base, operands=base.operands.copy(), numbers=base.numbers.copy())
        at = int(rng.choice(inputs))
        one = plan.operands[at : at + 1]
        one["dims"][0, :2] = rng.integers(0, 13, 2)
        one["strides"][0, :2] = rng.integers(-8, 13, 2)
        one["offset"] = 4 * int(rng.integers(0, 400))
        for axis in range(2):
            slope("DIM", AXES * at + axis, int(rng.choice([0, 1, 2])))(plan)
            slope("STRIDE", AXES * at + axis, int(rng.choice([0, 0, 0, 1, 2])))(plan)
        slope("OFFSET", at, 4 * int(rng.integers(0, 20)))(plan)
        try:
            Runner(plan)
        except PlanError:
            continue
        accepted += 1
        for extent in range(5, 10):
            operands, _, _ = extents.at(plan, (extent,))
            low, high = reach(operands)
            size = np.array([sizes.get(space, 1 << 40) for space in operands["space"].tolist()])
            assert (operands["dims"] >= 0).all(), f"case {case}, extent {extent}"
            assert (low >= 0).all(), f"case {case}, extent {extent}"
            assert (high <= size).all(), f"case {case}, extent {extent}"
    assert accepted > 100


def with_values(plan: Plan) -> Plan:
    """Three values that nothing follows from."""
    kinds = VALUE_KINDS
    rows = [(kinds["FLOOR"], 0, 0, 0, 1, 1, 2), (kinds["PRODUCT"], 0, 1, 0, 0, 0, 1), (kinds["SUM"], 1, 2, 0, 1, 1, 1)]
    plan.values = np.array(rows, VALUE)
    return plan


@pytest.mark.parametrize(
    ("at", "name", "value"),
    [
        (0, "kind", 3),
        (0, "u", 1),
        (1, "v", 2),
        (2, "u", 9),
        (0, "a", -1),
        (0, "a", 1 << 62),
        (0, "b", -9),
        (0, "b", (1 << 63) - 1),
        (0, "c", 0),
        (0, "c", -1),
        (2, "a", -1),
        (2, "b", -1),
        (2, "b", 1 << 62),
    ],
)
def test_values_that_fall_or_lead_nowhere_are_refused(at: int, name: str, value: int) -> None:
    plan = with_values(bucketed(tokens, 1, 9))
    validate(plan.segment())
    Runner(plan)
    plan.values[name][at] = value
    with pytest.raises(PlanError, match=rf"^plan values\[{at}\]"):
        validate(plan.segment())
    with pytest.raises(PlanError, match="a value is none, negative or too large"):
        Runner(plan)


@pytest.mark.parametrize(("least", "most"), [((1, 1, 1), (9, 9, 1024)), ((1, 1), (9, 1 << 16)), ((1, 5), (9, 4)), ((1, 0), (9, 4))])
def test_extents_have_room_in_their_word(least: tuple[int, ...], most: tuple[int, ...]) -> None:
    plan = bucketed(tokens, 1, 9)
    plan.least, plan.most = least, most
    with pytest.raises(PlanError, match="extents lie within"):
        validate(plan.segment())
    with pytest.raises(PlanError, match="no range of extents"):
        PlanRunner(plan.segment(), [], np.zeros(0, np.uint8), np.zeros(0, np.uint8))


@given(st.lists(st.integers(1, 1023), min_size=1, max_size=3))
def test_a_word_says_its_extents(found: list[int]) -> None:
    assert words.extents_of(words.word(found), len(found)) == tuple(found)
    assert all(extent <= room for extent, room in zip(found, words.room(len(found)), strict=True))


def test_strides_that_change_go_upwards() -> None:
    """Times a dimension that changes too, others would lead further down between the ends than at them."""
    plan = bucketed(places, 5, 9, barriers=True)
    at = int(np.flatnonzero(plan.operands["strides"][:, 0] < 0)[0])
    slope("STRIDE", AXES * at, 1)(plan)
    with pytest.raises(PlanError, match=r"the number would be -10 at extents \[5\]"):
        validate(plan.segment())
    with pytest.raises(PlanError, match="stride is negative"):
        Runner(plan)
