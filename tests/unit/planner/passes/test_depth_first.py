"""Stacks: which layers become one, and that they give the bits of layer by layer, whatever the tiles."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from graphs_by_hand import GraphBuilder
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as hs
from kernel_runner import KernelRunner
from plan_executor import PlanExecutor, evaluate
from small_graphs import random_grids

from aspen_mp.planner.build import PlanOptions, build_plan
from aspen_mp.planner.cost import tile_cost
from aspen_mp.planner.ir.graph import Graph, Tensor
from aspen_mp.planner.layout.storage import assign_storage
from aspen_mp.planner.ops import verify
from aspen_mp.planner.ops.call import F32, Arg, Call, Misfit
from aspen_mp.planner.ops.params import NO_ACT
from aspen_mp.planner.ops.table import check_call, params
from aspen_mp.planner.passes import depth_first, pools
from aspen_mp.planner.plan.validate import validate
from aspen_mp.shm.tables import KERNELS
from aspen_mp.workers import _kernels

ACTS = [NO_ACT, ("RELU", 0.0, 0.0), ("CLIP", -1.0, 2.0), ("SIGMOID", 0.0, 0.0)]


def _windowed(b: GraphBuilder, pick: hs.DrawFn, x: Tensor, mode: str) -> Tensor:
    kernel, strides, dilations, pads, after, sides = [], [], [], [], [], []
    ceil = mode != "DWCONV" and pick(hs.booleans())
    for d in x.shape[2:]:
        k, dilation = pick(hs.sampled_from([1, 2, 3, 3, 5])), pick(hs.sampled_from([1, 1, 1, 2]))
        span = (k - 1) * dilation + 1
        pad = pick(hs.integers(0, span - 1)) if span > 1 else 0
        assume(d + 2 * pad >= span)
        stride = pick(hs.sampled_from([1, 1, 2, 3]))
        kernel.append(k), strides.append(stride), dilations.append(dilation), pads.append(pad)
        after.append(pick(hs.integers(0, pad)) if mode != "DWCONV" else pad)
        assume(d + pad + after[-1] >= span)
        side = (d + pad + after[-1] - span + (stride - 1 if ceil else 0)) // stride + 1
        sides.append(side if (side - 1) * stride < d + pad else side - 1)
    n, c = x.shape[:2]
    window: dict[str, Any] = {"kernel": tuple(kernel), "strides": tuple(strides), "dilations": tuple(dilations)}
    if mode == "DWCONV":
        w, bias = b.const(kernel[0] * kernel[1], c, weight=True), b.const(c, weight=True) if pick(hs.booleans()) else None
        attrs = {"groups": c, **window, "pads": tuple(pads), "act": pick(hs.sampled_from(ACTS))}
        return b.node("DWCONV", [x, w, bias], (n, c, *sides), **attrs)
    return b.node("POOL", [x], (n, c, *sides), mode=mode, **window, pads=(*pads, *after), count_include_pad=pick(hs.booleans()))


def _layer(b: GraphBuilder, pick: hs.DrawFn, pool: list[Tensor], gate: Tensor) -> Tensor:
    x = pick(hs.sampled_from(pool[-3:]))
    match pick(hs.sampled_from(["max", "max", "average", "average", "DWCONV", "unary", "add", "scale", "gate"])):
        case "unary":
            return b.unary(x)
        case "add":
            return b.binary(x, pick(hs.sampled_from([t for t in pool if t.shape == x.shape])))
        case "scale":
            channels = (1, x.shape[1], 1, 1)
            opcode = pick(hs.sampled_from(["ADD", "MUL"]))
            return b.node("BINARY", [x, b.const(*channels)], x.shape, opcode=opcode, act=pick(hs.sampled_from(ACTS)))
        case "gate":
            return b.binary(x, gate, "MUL")
        case mode:
            return _windowed(b, pick, x, mode)


@hs.composite
def graphs(draw: hs.DrawFn) -> Graph:
    b = GraphBuilder(draw(hs.integers(0, 100)))
    width = draw(hs.one_of(hs.integers(2, 12), hs.integers(200, 300)))  # of wide images few rows are made at a time
    pool = [b.input(draw(hs.integers(1, 2)), draw(hs.sampled_from([1, 3, 16, 17, 33])), draw(hs.integers(2, 30)), width)]
    gate = b.input(*pool[0].shape[:2], 1, 1)
    for _ in range(draw(hs.integers(2, 9))):
        pool.append(_layer(b, draw, pool, gate))
    ends = {pool[-1], draw(hs.sampled_from(pool[1:]))}
    same = [t for t in pool[-6:] if t.shape == pool[-1].shape]
    if draw(hs.booleans()) and len(same) > 1:  # what a stack makes, side by side
        ends.add(b.concat(same, 1))
    return b.graph(*ends)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stacks, whether they are worth it or not."""
    monkeypatch.setattr(depth_first, "worth", lambda stack, members: True)


def _stacked(graph: Graph) -> Graph:
    """The graph itself, changed."""
    pools.fuse_pools(graph)
    verify.verify(graph, "fuse_pools", kernel_level=True)
    depth_first.fuse_stacks(graph)
    verify.verify(graph, "fuse_stacks", kernel_level=True)
    return graph


@pytest.mark.usefixtures("always")
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(graphs(), hs.integers(0, 1000), hs.booleans())
def test_bits_of_layer_by_layer(graph: Graph, seed: int, special: bool) -> None:
    stacked = _stacked(copy.deepcopy(graph))
    rng = np.random.default_rng(seed)
    feeds = [
        rng.integers(-2, 3, t.shape).astype(np.float32) if special else rng.standard_normal(t.shape).astype(np.float32)
        for t in graph.inputs
    ]
    if seed % 3 == 0:
        feeds[0].reshape(-1)[rng.integers(0, feeds[0].size, 2)] = np.nan
    named = {t.name: x for t, x in zip(graph.inputs, feeds, strict=True)}
    plain, plan = (
        build_plan(graph, workers=2),
        build_plan(stacked, workers=2, options=PlanOptions(grids=random_grids(seed) if seed % 4 else None)),
    )
    validate(plan.segment())
    for isa in _kernels.isas():
        want, found = KernelRunner(plain).run(named, isa=isa), KernelRunner(plan).run(named, "random", seed, isa=isa)
        for y, w in zip(found, want, strict=True):
            np.testing.assert_array_equal(y, w)


@pytest.mark.usefixtures("always")
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(graphs(), hs.integers(0, 1000))
def test_tiles_wait_for_all_that_they_read(graph: Graph, seed: int) -> None:
    stacked = _stacked(copy.deepcopy(graph))
    rng = np.random.default_rng(seed)
    feeds = [rng.standard_normal(t.shape).astype(np.float32) for t in graph.inputs]
    plan = build_plan(stacked, workers=2, options=PlanOptions(grids=random_grids(seed)))
    with np.errstate(all="ignore"):
        want = evaluate(graph, feeds)
    for y, w in zip(PlanExecutor(plan).run(feeds, "random", seed), want, strict=True):
        np.testing.assert_allclose(y, w, rtol=1e-3, atol=1e-3)


def _blocks(count: int, shape: tuple[int, ...]) -> Graph:
    b = GraphBuilder(0)
    x = b.input(*shape)
    for _ in range(count):
        window = {"kernel": (3, 3), "strides": (1, 1), "dilations": (1, 1), "pads": (1,) * 4, "count_include_pad": False}
        x = b.node("POOL", [x], shape, mode="max", **window)
        x = b.node("BINARY", [x, b.const(1, shape[1], 1, 1)], shape, opcode="MUL", act=("RELU", 0.0, 0.0))
    return b.graph(x)


def test_sequences_fit_a_cache() -> None:
    """The stacked layers of the paper's figure 10."""
    graph = _stacked(_blocks(40, (1, 64, 224, 224)))
    assert {node.op for node in graph.nodes} == {"STACK"}
    assert 2 <= len(graph.nodes) <= 8
    assert sum(len(node.attrs["program"]) for node in graph.nodes) == 40
    small = _stacked(_blocks(40, (1, 64, 14, 14)))
    assert [len(node.attrs["program"]) for node in small.nodes] == [40]


def _pyramid(shape: tuple[int, ...], beside: bool = False) -> Graph:
    """Three maxima one behind the other, side by side with what they come from (SPPF); maybe something reads the first one at once."""
    b = GraphBuilder(0)
    found = [b.input(*shape)]
    ends = []
    for k in range(3):
        window = {"kernel": (5, 5), "strides": (1, 1), "dilations": (1, 1), "pads": (2,) * 4, "count_include_pad": False}
        found.append(b.node("POOL", [found[-1]], shape, mode="max", **window))
        if beside and k == 0:
            ends.append(b.conv(found[-1], 3))
    return b.graph(b.concat(found, 1), *ends)


@pytest.mark.usefixtures("always")
def test_all_that_others_read_is_an_output() -> None:
    """Written where a concat wants it: only the image itself is copied."""
    graph = _stacked(_pyramid((2, 40, 13, 11)))
    assert [(node.op, len(node.outputs)) for node in graph.nodes] == [("STACK", 3), ("concat", 1)]
    assert [node.op for node in assign_storage(graph).steps] == ["STACK", "COPY"]


@pytest.mark.usefixtures("always")
def test_what_is_read_before_the_last_layer_is_no_output() -> None:
    graph = _stacked(_pyramid((2, 40, 13, 11), beside=True))
    assert [(node.op, len(node.outputs)) for node in graph.nodes] == [("POOL", 1), ("CONV", 1), ("STACK", 2), ("concat", 1)]


def _with_images(count: int) -> Graph:
    b = GraphBuilder(0)
    x, *others = (b.input(1, 17, 9, 8) for _ in range(count))
    for other in others:
        window = {"kernel": (3, 3), "strides": (1, 1), "dilations": (1, 1), "pads": (1,) * 4, "count_include_pad": False}
        x = b.binary(b.node("POOL", [x], x.shape, mode="max", **window), other)
    return b.graph(x)


@pytest.mark.usefixtures("always")
def test_many_images_are_read_by_several_stacks() -> None:
    """As many as a kernel can copy, whatever their layout."""
    plain, graph = _with_images(41), _stacked(_with_images(41))
    assert len(graph.nodes) > 1
    assert all(node.op == "STACK" for node in graph.nodes)
    rng = np.random.default_rng(0)
    feeds = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in plain.inputs}
    want, found = (KernelRunner(build_plan(each, workers=2)).run(feeds) for each in (plain, graph))
    np.testing.assert_array_equal(found[0], want[0])


def test_only_where_it_is_predicted_to_gain() -> None:
    graph = _stacked(_blocks(3, (1, 64, 56, 56)))
    [stack] = graph.nodes
    plain = _blocks(3, (1, 64, 56, 56))
    assert tile_cost.whole_ns(stack) < sum(map(tile_cost.whole_ns, plain.nodes))


def _call(graph: Graph) -> tuple[Call, list[int]]:
    [node] = graph.nodes
    args = [None if t is None else Arg(F32, t.shape, True) for t in node.inputs]
    return Call(Arg(F32, node.output.shape, True), args, []), params(node)


@pytest.mark.usefixtures("always")
def test_the_validator_reads_programs() -> None:
    """A word that is changed leaves a program whose steps fit each other, or is refused."""
    call, words = _call(_stacked(_blocks(3, (2, 20, 9, 9))))
    check_call("STACK", call._replace(params=words))
    step = 1 + (len(words) - 1) // 3  # where the second one begins
    wrong = {
        0: (0, 2, 4, 1 << 40),
        step: (KERNELS["GEMM"].code, KERNELS["STACK"].code, 999, -1),
        step + 1: (0, 7, 1 << 40),
        step + 2: (-1, 1 << 30),
        step + 4: (0, 1, 1 << 40, -2),
        step + 5: (-3, len(call.inputs), 1, -1),
        step + 12: (0, 1 << 20),
    }
    for at, values in wrong.items():
        for value in values:
            with pytest.raises(Misfit):
                check_call("STACK", call._replace(params=[*words[:at], value, *words[at + 1 :]]))
    for end in (1, len(words) - 1):
        with pytest.raises(Misfit):
            check_call("STACK", call._replace(params=words[:end]))
