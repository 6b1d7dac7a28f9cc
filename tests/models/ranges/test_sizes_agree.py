"""One plan for pictures of any size gives for each the bits of a plan for that size alone: in any legal order, on memory full of NaN."""

from __future__ import annotations

import os

import numpy as np
import onnx.parser
import pytest
from kernel_runner import WeightStore
from sized_models import SMALLEST, drawn
from test_buckets_agree import ORDERS, Runs, feeds_of

from aspen_mp.bench import models
from aspen_mp.planner import api
from aspen_mp.planner.plan.bucketed_graph import BucketedGraph
from aspen_mp.planner.plan.shape_bucket import NoBucket, ShapeBucket
from aspen_mp.planner.plan.validate import validate
from aspen_mp.shm.extents import word

GRAPHS = 1000 if os.environ.get("ASPEN_MP_TIER") == "long" else 60
SIZES = 4
Size = tuple[int, ...]


PICTURE = (1, 3)


def bound(model: api.OnnxModel, shape: Size) -> dict[str, api.Binding]:
    (x,) = model.signature.inputs
    return {x.name: api.Binding(np.dtype(np.float32), shape, None)}


def agree(
    model: api.OnnxModel, least: Size, most: Size, sizes: list[Size], workers: int = 2, unit: int = 1, fixed: Size = PICTURE
) -> list[str]:
    """The sizes at which a plan for all of them differs, in units. `fixed`: the first axes of the input."""
    (x,) = model.signature.inputs
    largest = bound(model, (*fixed, most[0] * unit, most[1] * unit))
    bucket = ShapeBucket(least, most, {x.name: (*(((0, 0),) * len(fixed)), (unit, 0), (0, unit))})
    plan = api.plan_bucket(model, [largest], bucket, workers=workers).plan
    assert plan is not None
    store = WeightStore()
    runs = Runs(plan, store)
    validate(plan.segment())
    wrong = []
    for k, size in enumerate(sizes):
        own = api.plan_within(model, [largest], bucket, size, workers=workers).plan
        assert own is not None
        feeds = feeds_of({x.name: (*fixed, size[0] * unit, size[1] * unit)}, {x.name: np.float32}, k)
        shapes = [info.shape for info in own.outputs]
        want = Runs(own, store).run(feeds, shapes, "fifo")
        order = ORDERS[k % len(ORDERS)]
        got = runs.run(feeds, shapes, order, word(size))
        if not all(np.array_equal(a, b) for a, b in zip(want, got, strict=True)):
            wrong.append(f"{size} {order}")
    return wrong


def sizes_of(seed: int, least: Size, most: Size, count: int) -> list[Size]:
    """Corners, then sizes anywhere."""
    rng = np.random.default_rng(seed)
    found = [least, (least[0], most[1]), (most[0], least[1])]
    found += [(int(h), int(w)) for h, w in rng.integers(least, np.array(most) + 1, (max(count - 3, 1), 2))]
    return [found[k] for k in rng.permutation(len(found))[:count]]


@pytest.mark.parametrize("seed", range(GRAPHS))
def test_drawn_networks(seed: int) -> None:
    """Nothing is refused that has a plan at each size: such networks are all the same whatever the size is."""
    rng = np.random.default_rng(seed)
    step = int(rng.choice([1, 8]))  # round numbers have more in common
    least = tuple(side // step * step for side in rng.integers(SMALLEST, 40, 2).tolist())
    most = tuple(int(side * rng.uniform(1.5, 4)) // step * step for side in least)
    model = api.load(drawn(seed).SerializeToString())
    assert not agree(model, least, most, sizes_of(seed, least, most, SIZES), workers=int(rng.choice([1, 2, 8])))


def any_size(name: str) -> api.OnnxModel:
    model = models.build(name, symbolic=True, **models.miniature(name))
    (x,) = model.graph.input
    for dim, side in zip(x.type.tensor_type.shape.dim[2:], ("height", "width"), strict=True):
        dim.dim_param = side
    return api.load(model.SerializeToString())


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "efficientnet_b0", "convnext_tiny"])
def test_networks_of_pictures(name: str) -> None:
    assert not agree(any_size(name), (64, 64), (191, 160), [(64, 160), (101, 77), (190, 159), (64, 64), (191, 160)])


@pytest.mark.parametrize("name", ["unet", "text_detector"])
def test_networks_that_take_multiples(name: str) -> None:
    """What is enlarged twice meets what has been halved: other sides do not fit."""
    assert not agree(any_size(name), (2, 2), (6, 5), [(2, 5), (6, 2), (3, 4), (5, 5)], unit=32)


def test_without_what_else_tiles_wait_for_results_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: rows of pixels and resized pictures are read here and there, which edges of the largest size do not say."""
    monkeypatch.setattr(BucketedGraph, "cover", lambda self, graph, grids: None)
    for seed in range(GRAPHS):
        network = drawn(seed)
        if any(node.op_type in {"LayerNormalization", "Resize"} for node in network.graph.node):
            model = api.load(network.SerializeToString())
            if agree(model, (30, 30), (120, 110), sizes_of(seed, (30, 30), (120, 110), 6), workers=8):
                return
    pytest.fail("no network misses an edge")


def numbered(order: str) -> api.OnnxModel:
    """Elements of texts [b, s], looked up by numbers that the model makes of its lengths."""
    numbers = {
        "rows": "numbers = Add(j, r)",
        "ends": "back = Sub(last, j) numbers = Add(back, r)",
        "columns": "across = Mul(j, b) numbers = Add(across, i1)",
        "distances": "apart = Sub(j, i1) numbers = Abs(apart)",
    }[order]
    text = f"""
        <ir_version: 9, opset_import: ["" : 17]>
        texts (float[b0, s0] x) => (float[b1, s1] y)
        <int64 none = {{0}}, int64 step = {{1}}, int64[1] all = {{-1}}, int64[2] column = {{-1, 1}}>
        {{
            shape = Shape(x)
            first, second = Split<axis = 0>(shape)
            b = Squeeze(first)
            s = Squeeze(second)
            i = Range(none, b, step)
            j = Range(none, s, step)
            i1 = Reshape(i, column)
            r = Mul(i1, s)
            last = Sub(s, step)
            {numbers}
            flat = Reshape(x, all)
            looked = Gather<axis = 0>(flat, numbers)
            y = Add(looked, x)
        }}
    """
    return api.load(onnx.parser.parse_model(text).SerializeToString())


@pytest.mark.parametrize("order", ["rows", "ends", "columns", "distances"])
def test_constants_of_two_lengths(order: str) -> None:
    """Numbers of all elements in their order, and of each along an axis, have a plan; others may be refused."""
    try:
        assert not agree(numbered(order), (2, 40), (9, 70), [(2, 40), (9, 41), (2, 70), (5, 55), (9, 70), (4, 64)], fixed=())
    except NoBucket:
        assert order not in {"rows", "distances"}


def test_what_goes_up_and_down_has_no_plan() -> None:
    """Padding to the same size: half of a remainder lies in front."""
    from onnx import TensorProto, helper

    pool = helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[4, 4], strides=[4, 4], auto_pad="SAME_UPPER")
    inputs, outputs = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [1, 3, "h", "w"]), ("y", None)))
    graph = helper.make_graph([pool], "same", [inputs], [outputs])
    model = api.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString())
    with pytest.raises(NoBucket):
        agree(model, (30, 30), (60, 60), [(30, 30)])
