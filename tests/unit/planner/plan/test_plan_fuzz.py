"""Plans with a few fields changed at random: validate() refuses them, or executing them harms nobody."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from bucketed_plans import GRAPHS, Make, bucketed
from graphs_by_hand import GraphBuilder
from guard_pages import guarded
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as hs
from small_graphs import (
    attention,
    concat_shapes,
    depthwise,
    products_of_bits,
    products_of_pairs,
    random_grids,
    residual_block,
    sequence_ops,
)
from test_depth_first import _stacked, always, graphs

from aspen_mp.planner.build import PlanOptions, build_plan
from aspen_mp.planner.ir.graph import Graph
from aspen_mp.planner.plan.plan import Plan
from aspen_mp.planner.plan.validate import validate
from aspen_mp.shm.errors import PlanError
from aspen_mp.shm.tables import KERNELS, NUMBER, NUMBER_TABLES, OP, OPERAND, PLAN_HEADER, TILE
from aspen_mp.workers import _kernels
from aspen_mp.workers._dse import PlanRunner

CASES = 150
STACKS = 400 if os.environ.get("ASPEN_MP_TIER") == "long" else 10
"""Graphs of stacks, each of them changed a third as often."""

__all__ = ["always"]


def mutate(raw: bytearray, rng: np.random.Generator) -> str:
    """Changes one or two numbers that decide what a kernel touches, to values close to the old ones or to extremes."""
    header = np.frombuffer(raw, PLAN_HEADER, 1)[0]
    done = []
    for _ in range(int(rng.integers(1, 3))):
        kind = str(rng.choice(["operand", "param", "kernel", "box", "dtype", "rank"]))
        if header["n_numbers"] and rng.random() < 0.6:
            kind = "number"
        value = int(rng.choice([-1, 1, 2, -2, 32, 1 << 20, 1 << 31, -(1 << 31), 1 << 40, 1 << 62]))
        if kind == "param":
            target = np.frombuffer(raw, np.int64, header["n_params"], int(header["params"]))
            k = int(rng.integers(len(target)))
            old = int(target[k])
            target[k] = np.clip(old + value, -(1 << 63), (1 << 63) - 1) if rng.random() < 0.7 else value
        elif kind == "box":
            tiles = np.frombuffer(raw, TILE, header["n_tiles"], int(header["tiles"]))
            k = int(rng.integers(len(tiles)))
            side = tiles[str(rng.choice(["lo", "hi"]))]
            axis = int(rng.integers(6))
            side[k, axis] = (int(side[k, axis]) + value) % (1 << 32)
        elif kind == "kernel":
            ops = np.frombuffer(raw, OP, header["n_ops"], int(header["ops"]))
            k = int(rng.integers(len(ops)))
            same = [x.code for x in KERNELS.values() if x.n_params == ops["n_params"][k]]
            ops["kernel"][k] = int(rng.choice(same or [0]))
        elif kind == "number":
            numbers = np.frombuffer(raw, NUMBER, header["n_numbers"], int(header["numbers"]))
            k = int(rng.integers(len(numbers)))
            one = numbers[k : k + 1]
            name = str(rng.choice(["table", "index", "per", "value"]))
            if name == "per":
                one["per"] = int(one["per"][0]) + int(np.clip(value, -64, 64)) if rng.random() < 0.8 else value
            elif name == "value":
                one["value"] = int(rng.integers(2))
            elif name == "table":
                one["table"] = int(rng.integers(len(NUMBER_TABLES) + 1))
            else:
                one["index"] = int(rng.integers(header["n_operands"] * 8)) if rng.random() < 0.8 else value % (1 << 32)
        else:
            operands = np.frombuffer(raw, OPERAND, header["n_operands"], int(header["operands"]))
            k = int(rng.integers(len(operands)))
            name = {"operand": str(rng.choice(["dims", "strides", "offset"]))}.get(kind, kind)
            if name in ("dims", "strides"):
                operands[name][k, int(rng.integers(4))] += value
            elif name == "offset":
                operands[name][k] += 4 * (value % 64)
            else:
                operands[name][k] = int(rng.integers(1, 14 if name == "dtype" else 9))
        done.append(f"{kind}[{k}] {value}")
    return ", ".join(done)


def mutate_program(raw: bytearray, rng: np.random.Generator, kernel: str = "STACK") -> str:
    """Changes some words of a program: near their old values, to another word of it, or to extremes."""
    header = np.frombuffer(raw, PLAN_HEADER, 1)[0]
    ops = np.frombuffer(raw, OP, header["n_ops"], int(header["ops"]))
    stack = rng.choice(ops[ops["kernel"] == KERNELS[kernel].code])
    params = np.frombuffer(raw, np.int64, header["n_params"], int(header["params"]))
    program = params[int(stack["param"]) :][: int(stack["n_params"])]
    done = []
    for _ in range(int(rng.integers(1, 4))):
        k = int(rng.integers(len(program)))
        old = int(program[k])
        near, other = old + int(rng.choice([-16, -2, -1, 1, 2, 16])), int(rng.choice(program))
        far = int(rng.choice([0, -1, -2, 1 << 12, 1 << 28, 1 << 31, -(1 << 31), 1 << 40, -(1 << 63)]))
        value = (near, near, other, far)[int(rng.integers(4))]
        program[k] = value = max(-(1 << 63), min(value, (1 << 63) - 1))
        done.append(f"word {k}: {old} → {value}")
    return ", ".join(done)


def execute(raw: bytearray, weights: Any, isas: Sequence[str]) -> None:
    header = np.frombuffer(raw, PLAN_HEADER, 1)[0]
    segment = guarded(len(raw))
    segment[: len(raw)] = np.frombuffer(raw, np.uint8)
    arena, request = guarded(int(header["arena_bytes"])), guarded(int(header["request_bytes"]))
    if header["n_parts"]:  # changed boxes, some of them garbage
        request[:] = np.random.default_rng(1).choice(np.array([0, 1, 2, 3, 255], np.uint8), len(request), p=[0.9, 0.04, 0.03, 0.02, 0.01])
    least, most = int(header["least"]), int(header["most"])
    for isa in isas:
        runner = PlanRunner(segment, [weights] if header["n_weights"] else [], arena, request, isa=isa, extent=most)
        for extent in sorted({*range(least, most + 1, 3), least, most}):
            runner.move(extent)
            runner.run("fifo")


def survives(raw: bytearray, weights: Any, isas: Sequence[str] = _kernels.isas()[:1]) -> bool:
    """Executes the plan in a child process; False if a signal killed it."""
    pid = os.fork()
    if pid == 0:
        code = 0
        try:
            signal.alarm(20)
            execute(raw, weights, isas)
        except PlanError:
            code = 1
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return os.WIFEXITED(status)


def packed(plan: Plan) -> Any:
    directory, size = plan.default_directory()
    weights = guarded(size)
    for item in plan.weights:
        at = directory[item.key][1]
        item.write(memoryview(weights)[at : at + item.nbytes])
    return weights


def harmless(plan: Plan) -> None:
    assert executed(plan, mutate, CASES) > 0


def executed(plan: Plan, change: Callable[[bytearray, np.random.Generator], str], cases: int, seed: int = 11, **how: Any) -> int:
    """How many of so many changed plans are accepted. Each of these is executed, and harms nobody."""
    good, weights = plan.segment(), packed(plan)
    assert survives(good, weights, **how)
    rng = np.random.default_rng(seed)
    accepted = 0
    for case in range(cases):
        raw = bytearray(good)
        what = change(raw, rng)
        try:
            validate(raw)
        except PlanError:
            continue
        accepted += 1
        assert survives(raw, weights, **how), f"case {case}: {what}"
    return accepted


@pytest.mark.parametrize("graph", [residual_block, attention, depthwise, concat_shapes, sequence_ops, products_of_bits, products_of_pairs])
def test_changed_plans_do_no_harm(graph: Callable[[GraphBuilder], Any]) -> None:
    harmless(build_plan(graph(GraphBuilder()), workers=2, options=PlanOptions(grids=random_grids(1))))


@pytest.mark.usefixtures("always")
@settings(max_examples=STACKS, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(graphs(), hs.integers(0, 1000))
def test_changed_programs_do_no_harm(graph: Graph, seed: int) -> None:
    """Of stacks at random, on every instruction set."""
    graph = _stacked(graph)
    assume(graph.has("STACK"))
    plan = build_plan(graph, workers=2, options=PlanOptions(grids=random_grids(seed)))
    executed(plan, mutate_program, CASES // 3, seed, isas=_kernels.isas())


@pytest.mark.parametrize("graph", [residual_block, attention, concat_shapes])
def test_changed_programs_of_reach_do_no_harm(graph: Callable[[GraphBuilder], Any]) -> None:
    plan = build_plan(graph(GraphBuilder()), workers=2, options=PlanOptions(grids=random_grids(1), stream="bits"))
    assert executed(plan, partial(mutate_program, kernel="REACH"), 2 * CASES) > 0
    harmless(plan)


@pytest.mark.parametrize(("make", "least", "most", "barriers"), GRAPHS, ids=[g[0].__name__ for g in GRAPHS])
def test_changed_numbers_do_no_harm(make: Make, least: int, most: int, barriers: bool) -> None:
    harmless(bucketed(make, least, most, barriers=barriers))
