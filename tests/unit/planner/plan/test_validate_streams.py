"""Plans that keep activations for the next request: damage to what only they have is refused, by the planner and by workers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from graphs_by_hand import GraphBuilder
from plan_damage import Bytes, field, make, operand, param, set_header
from small_graphs import GRAPHS, attention, residual_block

from aspen_mp.planner.ops.streams.reach import LINE
from aspen_mp.planner.plan.validate import validate
from aspen_mp.shm.errors import PlanError, ResourceLimitError
from aspen_mp.shm.tables import DTYPES, KERNELS, SPACES
from aspen_mp.workers._dse import PlanRunner

FIRST_STEP = 4 + 1 + 4
"""Word of the first step in the program of a model with one input, which has four axes."""


def damaged(damage: Callable[[Bytes], None], graph: Any = residual_block, stream: str = "bits") -> Bytes:
    b = Bytes(make(graph, stream=stream).segment())
    validate(b.raw)
    damage(b)
    return b


def more(name: str, by: int) -> Callable[[Bytes], None]:
    """A field of the header that is larger by a number, or smaller."""

    def damage(b: Bytes) -> None:
        b.header[name] = (int(b.header[name][0]) + by) % (1 << (8 * b.header[name].itemsize))

    return damage


def another_reach(b: Bytes) -> None:
    k = b.op("UNARY")
    reach = b.ops[0]
    for name in ("kernel", "operand", "n_outputs", "n_inputs", "param", "n_params"):
        b.ops[name][k] = reach[name]


def moved(kernel: str, to: Callable[[Bytes], tuple[str, int]]) -> Callable[[Bytes], None]:
    """The last op of a kernel writes somewhere else, and those that read it read there."""

    def damage(b: Bytes) -> None:
        k = np.flatnonzero(b.ops["kernel"] == KERNELS[kernel].code)[-1]
        old = b.operands[int(b.ops["operand"][k])]
        same = (b.operands["offset"] == old["offset"]) & (b.operands["space"] == old["space"])
        space, offset = to(b)
        b.operands["space"][same], b.operands["offset"][same] = SPACES[space], offset

    return damage


def first_activation(b: Bytes) -> tuple[str, int]:
    return "REQUEST", int(b.operand("CONV", 0)["offset"][0])


def parts(b: Bytes) -> tuple[str, int]:
    return "ARENA", int(b.header["arena_parts"][0])


def kept_line(b: Bytes) -> tuple[str, int]:
    return "REQUEST", int(b.header["request_kept"][0])


def end_of_line(b: Bytes) -> tuple[str, int]:
    return "REQUEST", int(b.header["request_kept"][0]) + LINE - 8


DAMAGE: list[tuple[str, Callable[[Bytes], None]]] = [
    *(("header.n_parts", damage) for damage in (set_header("n_parts", 0), more("n_parts", 1), more("n_parts", -1))),
    ("header.n_parts", set_header("n_parts", 0xFFFFFFFF)),
    *(("header.arena_parts", damage) for damage in (set_header("arena_parts", 0), more("arena_parts", 64), more("arena_parts", 1))),
    ("header.arena_parts", set_header("arena_parts", 1 << 60)),
    *(("header.request_kept", damage) for damage in (set_header("request_kept", 0), more("request_kept", 4), more("request_kept", -LINE))),
    ("header.request_kept", set_header("request_kept", 1 << 60)),
    ("ops[0].n_outputs", field("ops", "kernel", KERNELS["COPY"].code)),
    ("ops[].operand", another_reach),
    ("whose tile waits for nothing", field("initial", slice(None), 5)),
    ("operands[0].space", operand("REACH", 0, "space", SPACES["REQUEST"])),
    ("operands", operand("REACH", 2, "space", SPACES["ARENA"])),
    ("dtype of the output", operand("REACH", 0, "dtype", DTYPES["I32"])),
    ("shape of the output", operand("REACH", 0, "dims", [[3, 12, 0, 0, 0, 0, 0, 0]])),
    ("shape of output 1", operand("REACH", 1, "dims", [[1, 3, 0, 0, 0, 0, 0, 0]])),
    ("dtype of output 1", operand("REACH", 1, "dtype", DTYPES["I64"])),
    ("dtype of input 0", operand("REACH", 2, "dtype", DTYPES["F32"])),
    ("input 0", operand("REACH", 2, "dims", [[1, 400, 0, 0, 0, 0, 0, 0]])),
    ("a rank", param("REACH", 0, 2)),
    ("which outputs are kept", param("REACH", 0, 0)),
    ("a number of inputs", param("REACH", 0, -1)),
    ("a number of inputs", param("REACH", 0, 1 << 40)),
    ("a number of marks", param("REACH", 1, -1)),
    ("a number of marks", param("REACH", 1, 65)),
    ("params", param("REACH", 2, 1)),
    ("a number of steps", param("REACH", 2, -1)),
    ("a number of outputs", param("REACH", 3, -1)),
    ("shape of output 1", param("REACH", 3, 0)),
    ("a rank", param("REACH", 4, 9)),
    ("words of the step", param("REACH", FIRST_STEP, 5)),
    ("words of a step", param("REACH", FIRST_STEP, 0)),
    ("a rank", param("REACH", FIRST_STEP + 1, -1)),
    ("a length", param("REACH", FIRST_STEP + 2, -1)),
    ("which outputs are kept", param("REACH", FIRST_STEP + 7, 3)),
    ("cells of an axis", param("REACH", FIRST_STEP + 8, -1)),
    ("cells of an axis", param("REACH", FIRST_STEP + 8, 1 << 40)),
    ("a grain", param("REACH", FIRST_STEP + 9, 0)),
    ("a distance of tiles", param("REACH", FIRST_STEP + 10, -1)),
    ("a distance of tiles", param("REACH", FIRST_STEP + 10, 1 << 40)),
    ("cut", param("REACH", FIRST_STEP + 11, 1)),
    ("may overwrite", moved("CONV", first_activation)),
    ("may overwrite", moved("CONV", lambda b: ("REQUEST", 0))),
    ("may overwrite", moved("CONV", parts)),
    ("may overwrite", moved("GEMM", kept_line)),
    ("may overwrite", moved("GEMM", end_of_line)),
]


@pytest.mark.parametrize("stream", ["bits", "values"])
@pytest.mark.parametrize(("name", "damage"), DAMAGE, ids=[f"{k}-{n}" for k, (n, _) in enumerate(DAMAGE)])
def test_damage_is_refused(name: str, damage: Callable[[Bytes], None], stream: str) -> None:
    b = damaged(damage, stream=stream)
    with pytest.raises(PlanError, match=r"^plan ") as error:
        validate(b.raw)
    assert name in str(error.value)


@pytest.mark.parametrize("graph", [*GRAPHS, lambda b: chain(b)], ids=lambda f: f.__name__)
@pytest.mark.parametrize("stream", ["bits", "values", "near"])
def test_good_plans_are_accepted(graph: Any, stream: str) -> None:
    good = make(graph, 1, stream=stream).segment()
    validate(good)
    for share in (0.8, 0.5):
        most = int(share * Bytes(bytearray(good)).header["request_bytes"][0])
        with contextlib.suppress(ResourceLimitError):
            validate(make(graph, 1, stream=stream, stream_bytes=most).segment())


def chain(b: GraphBuilder) -> Any:
    """Convolutions between which there are thresholds."""
    x = b.input(1, 32, 40, 24)
    y = b.conv(b.conv(x, 32), 32)
    return b.graph(b.conv(b.conv(b.unary(y), 32, residual=y), 32))


def last(b: Bytes, kernel: str) -> int:
    return int(np.flatnonzero(b.ops["kernel"] == KERNELS[kernel].code)[-1])


def of_last(kernel: str, i: int, name: str, value: Any) -> Callable[[Bytes], None]:
    def damage(b: Bytes) -> None:
        b.operands[name][int(b.ops["operand"][last(b, kernel)]) + i] = value

    return damage


def on_what_was_seen(b: Bytes) -> tuple[str, int]:
    return "REQUEST", int(b.operand("REFRESH", 0)["offset"][0])


def waits_for_another(b: Bytes) -> None:
    """A tile of REFRESH no longer waits for the REACH before it."""
    tile = int(np.flatnonzero(b.tiles["op"] == b.op("REFRESH"))[0])
    at = int(b.parent_begin[tile])
    count = int(b.parent_counts[tile])
    second = np.flatnonzero(b.ops["kernel"] == KERNELS["REACH"].code)[1]
    reach = int(np.flatnonzero(b.tiles["op"] == second)[0])
    assert reach in b.parents[at : at + count]
    first = b.tiles[reach]
    mine = slice(int(first["children"]), int(first["children"] + first["n_children"]))
    b.children[mine] = np.where(b.children[mine] == tile, tile + 1, b.children[mine])


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("rows of parts", lambda b: of_last("REACH", 0, "offset", b.operand("REACH", 0)["offset"][0])(b)),
        ("shape of the output", of_last("REACH", 0, "dims", [1, 12, 0, 0, 0, 0, 0, 0])),
        ("input 1", of_last("REACH", 3, "dtype", DTYPES["F32"])),
        ("input 1", of_last("REACH", 3, "dims", [1, 9, 9, 0, 0, 0, 0, 0])),
        ("side", param("MOVED", 0, 0)),
        ("side", param("REFRESH", 0, 1 << 40)),
        ("shape of the output", param("MOVED", 0, 7)),
        ("shape of input 1", param("REFRESH", 0, 7)),
        ("dtype of the output", of_last("MOVED", 0, "dtype", DTYPES["F32"])),
        ("shape of output 2", of_last("MOVED", 2, "dims", [1, 9, 1, 0, 0, 0, 0, 0])),
        ("shape of input 1", of_last("MOVED", 4, "dims", [1, 32, 9, 9, 0, 0, 0, 0])),
        ("shape of input 2", of_last("MOVED", 5, "dims", [0, 513, 0, 0, 0, 0, 0, 0])),
        ("dtype of input 2", of_last("REFRESH", 3, "dtype", DTYPES["F32"])),
        ("may overwrite", moved("CONV", on_what_was_seen)),
        ("children", waits_for_another),
    ],
)
def test_damage_to_thresholds_is_refused(name: str, damage: Callable[[Bytes], None]) -> None:
    b = damaged(damage, chain, "near")
    with pytest.raises(PlanError, match=r"^plan ") as error:
        validate(b.raw)
    assert name in str(error.value)


@pytest.mark.parametrize("to", [first_activation, parts, kept_line], ids=lambda f: f.__name__)
def test_streams_with_a_limit_of_memory(to: Callable[[Bytes], tuple[str, int]]) -> None:
    """Activations in the arena use memory again, as in any plan. What is kept does not, nor do parts of tiles."""
    b = Bytes(make(residual_block, stream="bits", stream_bytes=40000).segment())
    arena = b.operands["space"] == SPACES["ARENA"]
    assert arena[3:].any(), "all activations are kept"
    validate(b.raw)
    at = "REQUEST", int(b.operand("REACH", 1)["offset"][0])
    moved("GEMM", (lambda _: at) if to is first_activation else to)(b)
    with pytest.raises(PlanError, match="may overwrite"):
        validate(b.raw)


@pytest.mark.parametrize("name", ["n_parts", "arena_parts", "request_kept"])
def test_plans_without_streams_have_none_of_it(name: str) -> None:
    b = Bytes(make(residual_block).segment())
    b.header[name] = 64
    with pytest.raises(PlanError, match=f"header.{name}"):
        validate(b.raw)


@pytest.mark.parametrize("graph", [residual_block, attention])
def test_every_word_of_a_program(graph: Any) -> None:
    """Each word in turn is another one: validate() returns or raises PlanError."""
    good = make(graph, stream="bits").segment()
    b = Bytes(bytearray(good))
    n = int(b.ops["n_params"][0])
    rng, refused = np.random.default_rng(3), 0
    for k in rng.permutation(n)[:300]:
        b = Bytes(bytearray(good))
        program = b.params[int(b.ops["param"][0]) :][:n]
        old = int(program[k])
        program[k] = rng.choice([old - 1, old + 1, -1, 0, 1 << 31, -(1 << 62), int(rng.choice(program))])
        try:
            validate(b.raw)
        except PlanError:
            refused += 1
    assert refused > 100


def attached(b: Bytes) -> PlanRunner:
    h = b.header[0]
    sizes = [*(int(n) for n in h["weights_bytes"][: int(h["n_weights"])]), int(h["arena_bytes"]), int(h["request_bytes"])]
    *weights, arena, request = [_lines(n) for n in sizes]
    return PlanRunner(bytes(b.raw), weights, arena, request)


def _lines(n: int) -> Any:
    found = np.zeros(n + 64, np.uint8)
    return found[-found.ctypes.data % 64 :][:n]


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("parts of tiles", set_header("n_parts", 0xFFFFFFFF)),
        ("parts of tiles", more("arena_parts", 1)),
        ("parts of tiles", set_header("arena_parts", 1 << 60)),
        ("parts of tiles", set_header("arena_parts", (1 << 64) - 64)),
        ("parts of tiles", set_header("arena_parts", 64)),
        ("parts of tiles", more("arena_parts", 1 << 16)),
        ("a word of the request", more("request_kept", 2)),
        ("a word of the request", set_header("request_kept", 1 << 40)),
        ("a word of the request", set_header("request_kept", (1 << 64) - 4)),
    ],
)
def test_workers_refuse_what_would_leave_their_memory(name: str, damage: Callable[[Bytes], None]) -> None:
    """Without validate(), as where another process is at fault."""
    attached(damaged(lambda b: None))
    with pytest.raises(PlanError, match=name):
        attached(damaged(damage))
