"""Random graphs, random tilings, random orders: the executed plan gives what node-by-node evaluation gives."""

from __future__ import annotations

import numpy as np
from graphs_by_hand import GraphBuilder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as hs
from plan_executor import PlanExecutor, evaluate
from small_graphs import random_grids

from aspen_mp.planner.build import PlanOptions, build_plan
from aspen_mp.planner.ir.graph import Graph, Tensor
from aspen_mp.planner.job.options import Experiment
from aspen_mp.planner.ops.packing.winograd import BLOCKS
from aspen_mp.planner.plan.validate import validate


def _images(b: GraphBuilder, pick: hs.DrawFn, pool: list[Tensor]) -> Tensor:
    x = pick(hs.sampled_from(pool))
    same = [t for t in pool if t.shape == x.shape]
    sized = [t for t in pool if t.shape[0] == x.shape[0] and t.shape[2:] == x.shape[2:]]
    kind = pick(
        hs.sampled_from(
            [
                *("conv", "conv1", "wino", "residual", "bytes", "grouped", "dw", "pool", "relu", "add", "concat", "concat", "slice"),
                *("gate", "pad"),
            ]
        )
    )
    match kind:
        case "conv":
            return b.conv(x, pick(hs.sampled_from([2, 3, 33])), stride=pick(hs.sampled_from([1, 2])))
        case "conv1":
            return b.conv(x, pick(hs.integers(1, 5)), kernel=1)
        case "wino":
            rows, columns, stride = pick(hs.sampled_from(sorted(BLOCKS)))
            sides = BLOCKS[rows, columns, stride]
            pads = (rows // 2, columns // 2) * 2
            return b.wino(x, pick(hs.sampled_from([2, 3, 33])), pick(hs.sampled_from(sides)), pads, kernel=(rows, columns), stride=stride)
        case "residual":
            return b.conv(pick(hs.sampled_from(sized)), x.shape[1], residual=x)
        case "bytes":
            of = np.uint8 if pick(hs.booleans()) else np.int8
            zero = b.reshape(b.whole(b.reduce(x, (0, 1, 2, 3)), of), 1) if pick(hs.booleans()) else None
            one = pick(hs.booleans())
            given, kernel, columns = b.whole(pick(hs.sampled_from(sized)), of), (1, 1) if one else (3, 3), pick(hs.booleans())
            if pick(hs.booleans()):
                depthwise = x.shape[1] % given.shape[1] == 0 and pick(hs.booleans())
                return b.conv_bytes(given, x.shape[1], kernel, residual=x, zero=zero, columns=columns, depthwise=depthwise)
            small = b.conv_bytes(given, pick(hs.sampled_from([2, 4, 33])), kernel, zero=zero, columns=columns, dtype=np.uint8)
            return b.conv_bytes(small, pick(hs.sampled_from([2, 4, 33])), stride=pick(hs.sampled_from([1, 2])), columns=columns)
        case "grouped" if x.shape[1] % 2 == 0:
            return b.conv(x, 4, groups=2)
        case "dw":
            return b.stack(x, 33, 3, 2) if pick(hs.booleans()) else b.dwconv(x)
        case "pool" if min(x.shape[2:]) >= 2:
            return b.pool(x, mode=pick(hs.sampled_from(["max", "average"])))
        case "add":
            return b.binary(x, pick(hs.sampled_from(same)))
        case "concat":
            return b.concat([x, *pick(hs.lists(hs.sampled_from(sized), min_size=1, max_size=3))], 1)
        case "slice" if x.shape[1] >= 2:
            half = x.shape[1] // 2
            return b.slice(x, (0, pick(hs.sampled_from([0, half])), 0, 0), (1,) * 4, (x.shape[0], half, *x.shape[2:]))
        case "gate":
            return b.binary(x, b.reduce(x, (2, 3)), "MUL")
        case "pad":
            return b.pad(x, (0, 0, 1, 0), (0, 0, 0, 1))
    return b.unary(x)


def _tokens(b: GraphBuilder, pick: hs.DrawFn, pool: list[Tensor]) -> Tensor:
    x = pick(hs.sampled_from(pool))
    same = [t for t in pool if t.shape == x.shape]
    n, s, d = x.shape
    kind = pick(
        hs.sampled_from(
            [
                "linear",
                "strassen_products",
                "bytes",
                "add",
                "softmax",
                "norm",
                "heads",
                "concat",
                "swap",
                "split",
                "gather",
                "cumsum",
                "self",
                "flip",
            ]
        )
    )
    match kind:
        case "linear":
            return b.linear(x, pick(hs.sampled_from([2, 4, 36])))
        case "strassen_products" if d % 2 == 0:
            return b.by_strassen(x, pick(hs.sampled_from([4, 36, 70])))
        case "bytes":
            unsigned, own, total = pick(hs.booleans()), pick(hs.booleans()), pick(hs.booleans())
            zero = b.whole(b.reduce(x, (2,)), np.uint8 if unsigned else np.int8) if own else None
            left = b.whole(x, np.uint8 if unsigned else np.int8)
            return b.by_bytes(left, d, x if total else None, zero, pick(hs.booleans()))
        case "add":
            return b.binary(x, pick(hs.sampled_from(same)), "SUB")
        case "softmax":
            return b.softmax(x, pick(hs.integers(0, 2)))
        case "norm":
            return b.norm(x)
        case "heads" if d % 2 == 0:
            heads = b.transpose(b.reshape(x, n, s, 2, d // 2), 0, 2, 1, 3)
            scores = b.softmax(b.matmul(heads, b.transpose(heads, 0, 1, 3, 2)))
            return b.reshape(b.transpose(b.matmul(scores, heads), 0, 2, 1, 3), n, s, d)
        case "concat":
            return b.concat([x, pick(hs.sampled_from(same))], pick(hs.integers(1, 2)))
        case "swap":
            return b.transpose(x, 0, 2, 1)
        case "split" if s % 2 == 0:
            return b.reshape(x, n, s // 2, d * 2)
        case "gather":
            return b.gather(x, pick(hs.lists(hs.integers(-s, s - 1), min_size=1, max_size=4)), 1)
        case "cumsum":
            return b.cumsum(x, 1)
        case "self":
            return b.matmul(x, b.transpose(x, 0, 2, 1))
        case "flip":
            return b.slice(x, (0, s - 1, 0), (1, -1, 1), (n, s, d))
    return b.unary(x, "TANH")


@hs.composite
def graphs(draw: hs.DrawFn, most: int = 2) -> Graph:
    """`most`: images or sequences in a batch."""
    b = GraphBuilder(draw(hs.integers(0, 100)))
    images = draw(hs.booleans())
    shape = (draw(hs.integers(1, most)), draw(hs.integers(1, 4)), draw(hs.integers(2, 7)), draw(hs.integers(2, 7)))
    pool = [b.input(*(shape if images else shape[:3]))]
    for _ in range(draw(hs.integers(1, 9))):
        y = (_images if images else _tokens)(b, draw, pool)
        if y.size <= 6000:
            pool.append(y)
    outputs = draw(hs.lists(hs.sampled_from(pool), min_size=1, max_size=3))
    if draw(hs.booleans()):
        t = outputs[0]
        outputs[0] = b.reshape(t, t.shape[0], t.size // t.shape[0])
    return b.graph(*outputs)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(
    graphs(),
    hs.integers(0, 1000),
    hs.sampled_from(["fifo", "lifo", "random"]),
    hs.booleans(),
    hs.builds(Experiment, tiles=hs.sampled_from([None, 1, 5, 64]), barriers=hs.booleans()),
)
def test_random_graphs(graph: Graph, seed: int, order: str, reuse: bool, planning: Experiment) -> None:
    rng = np.random.default_rng(seed)
    feeds = [rng.integers(-2, 3, t.shape).astype(np.float32) for t in graph.inputs]
    options = PlanOptions(reuse_memory=reuse, grids=random_grids(seed) if seed % 4 else None)
    plan = build_plan(graph, workers=2, options=options, planning=planning)
    validate(plan.segment())
    with np.errstate(all="ignore"):
        want = evaluate(graph, feeds)
    for y, w in zip(PlanExecutor(plan).run(feeds, order, seed), want, strict=True):
        np.testing.assert_allclose(y, w, rtol=1e-3, atol=1e-3)
