"""Plans for a shape bucket give at every length the bits of a plan for that length alone: tile by tile, in any legal order, on memory
full of NaN."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from kernel_runner import WeightStore, nan_filled
from onnx import TensorProto, helper, numpy_helper
from plan_requests import plan_request

from aspen_mp.bench import models
from aspen_mp.planner import api
from aspen_mp.planner.cost import algorithms
from aspen_mp.planner.job.request import PlanRequest
from aspen_mp.planner.plan.plan import Plan
from aspen_mp.planner.plan.shape_bucket import NoBucket, ShapeBucket
from aspen_mp.shm.extents import word
from aspen_mp.workers._dse import PlanRunner

Array = np.ndarray[Any, np.dtype[Any]]
Shapes = Callable[[int], Mapping[str, tuple[int, ...]]]
ORDERS = ("fifo", "lifo", "random")


def aligned_nan(nbytes: int) -> Array:
    memory = nan_filled(nbytes + 64)
    return memory[-memory.ctypes.data % 64 :][:nbytes]


class Runs:
    """A plan with memory of its own, run by the workers' code."""

    def __init__(self, plan: Plan, store: WeightStore) -> None:
        store.place(plan)
        self.plan = plan
        self.segment = bytes(plan.segment())
        header = plan.header()
        self.arena, self.request = (aligned_nan(int(header[name])) for name in ("arena_bytes", "request_bytes"))
        weights = []
        for segment in store.segments:
            memory = aligned_nan(len(segment))
            memory[:] = np.frombuffer(segment, np.uint8)
            weights.append(memory)
        self.runner = PlanRunner(self.segment, weights, self.arena, self.request, extent=word(plan.most))

    def run(self, feeds: Mapping[str, Array], shapes: Sequence[tuple[int, ...]], order: str, extent: int = 0) -> list[Array]:
        for memory in (self.arena, self.request):
            whole = memory[: len(memory) // 4 * 4].view(np.float32)
            whole[...] = np.nan
        for info in self.plan.inputs:
            raw = np.frombuffer(feeds[info.name].tobytes(), np.uint8)
            self.request[info.offset : info.offset + len(raw)] = raw
        self.runner.move(extent)
        assert self.runner.run(order, extent) == 0
        outputs = []
        for info, shape in zip(self.plan.outputs, shapes, strict=True):
            n = int(np.prod(shape)) * np.dtype(info.dtype).itemsize
            outputs.append(self.request[info.offset : info.offset + n].view(info.dtype).reshape(shape).copy())
        return outputs


def feeds_of(shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, Any], seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    feeds = {}
    for name, shape in shapes.items():
        if np.dtype(dtypes[name]).kind == "f":
            feeds[name] = rng.standard_normal(shape).astype(dtypes[name])
        else:
            feeds[name] = (rng.integers(0, 50, shape) if name in {"ids", "input_ids"} else np.ones(shape)).astype(dtypes[name])
    return feeds


def check(
    model: onnx.ModelProto,
    shapes: Shapes,
    least: int,
    most: int,
    extents: Sequence[int],
    workers: int = 2,
    request: PlanRequest = api.PLAIN,
    rtol: float = 0.0,
) -> None:
    """`rtol`: how far results may be apart from those of a plan that knows nothing of the bucket. 0: they have the same bits, as those of a
    plan for one length of the bucket always have."""
    opened = api.load(model.SerializeToString())
    dtypes = {v.name: v.dtype for v in opened.signature.inputs}
    longest, shorter = shapes(most), shapes(most - 1)
    per = {name: tuple(a - b for a, b in zip(longest[name], shorter[name], strict=True)) for name in longest}

    def bound(extent: int) -> dict[str, api.Binding]:
        return {name: api.Binding(dtypes[name], shape, None) for name, shape in shapes(extent).items()}

    bucket = ShapeBucket.of_length(least, most, per)
    found = api.plan_bucket(opened, [bound(most)], bucket, workers=workers, request=request)
    assert found.plan is not None
    store = WeightStore()
    bucketed = Runs(found.plan, store)
    for k, extent in enumerate(extents):
        alone = api.plan_stage(opened, [bound(extent)], workers=workers, request=request).plan
        within = api.plan_within(opened, [bound(most)], bucket, (extent,), workers=workers, request=request).plan if rtol else alone
        assert alone is not None
        assert within is not None
        feeds = feeds_of(shapes(extent), dtypes, extent)
        sizes = [info.shape for info in alone.outputs]
        want = Runs(alone, store).run(feeds, sizes, "fifo")
        got = bucketed.run(feeds, sizes, ORDERS[k % 3], extent)
        same = want if within is alone else Runs(within, store).run(feeds, sizes, "fifo")
        for info, y, w, z in zip(alone.outputs, got, want, same, strict=True):
            where = f"{model.graph.name}: {info.name!r} at {extent} of {least} … {most}"
            assert np.allclose(y, w, rtol, rtol), where
            assert np.array_equal(y, z, equal_nan=False), where


def tokens(batch: int = 1) -> Callable[[onnx.ModelProto], Shapes]:
    return lambda model: lambda extent: {value.name: (batch, extent) for value in model.graph.input}


TEXTS = [("bert_base", "f32"), ("gpt2", "f32"), ("smollm2_135m", "f32"), ("smollm2_135m", "f16"), ("smollm2_135m", "int4")]


@pytest.mark.parametrize(("name", "dtype"), TEXTS)
@pytest.mark.parametrize(("least", "most"), [(24, 31), (48, 63), (2, 7)])
def test_text(name: str, dtype: str, least: int, most: int) -> None:
    model = models.build(name, symbolic=True, dtype=dtype, **models.miniature(name))
    check(model, tokens()(model), least, most, [most, least, (least + most) // 2, most - 1, most])


@pytest.mark.parametrize("name", ["bert_base", "smollm2_135m"])
def test_text_of_rounded_factors(name: str) -> None:
    model = models.build(name, symbolic=True, **models.miniature(name))
    check(model, tokens()(model), 24, 31, [31, 24, 27], request=plan_request(bf16=True))


def test_text_in_batches() -> None:
    model = models.build("bert_base", symbolic=True, **models.miniature("bert_base"))
    check(model, tokens(3)(model), 24, 31, [24, 27, 30])


def test_batches_of_text_and_of_images() -> None:
    model = models.build("bert_base", symbolic=True, **models.miniature("bert_base"))
    check(model, lambda extent: {value.name: (extent, 9) for value in model.graph.input}, 4, 7, [4, 7, 5, 6])
    images = models.build("mobilenet_v2", symbolic=True, **models.miniature("mobilenet_v2"))
    (x,) = images.graph.input
    sides = tuple(d.dim_value for d in x.type.tensor_type.shape.dim[1:])
    check(images, lambda extent: {x.name: (extent, *sides)}, 2, 3, [2, 3])


def test_convolutions_are_computed_alike_at_all_batches() -> None:
    """Images so small that the weights' memory decides on Winograd's blocks: alone, batches would be computed with several."""
    rng = np.random.default_rng(4)
    weights = [numpy_helper.from_array(rng.standard_normal((64, 64, 3, 3)).astype(np.float32) / 24, f"w{k}") for k in range(3)]
    nodes = [helper.make_node("Conv", [f"x{k}", f"w{k}"], [f"x{k + 1}"], pads=[1] * 4, strides=[1 + k % 2] * 2) for k in range(3)]
    info = lambda name, *dims: helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)  # noqa: E731
    graph = helper.make_graph(nodes, "small images", [info("x0", "n", 64, 8, 8)], [info("x3", "n", 64, 4, 4)], weights)
    opset = [helper.make_opsetid("", 18)]
    blocks = {algorithms.block_for((n, 64, 4, 4), (n, 64, 4, 4)) for n in (2, 8, 31)}
    assert len(blocks) > 1
    check(helper.make_model(graph, opset_imports=opset, ir_version=9), lambda n: {"x0": (n, 64, 8, 8)}, 2, 31, [31, 2, 8, 30], rtol=2e-5)


def decoder(*, last: bool = False, heads: int = 2, size: int = 16) -> onnx.ModelProto:
    """A step of attention with a cache of keys and values. `last`: of all new tokens, the last one's logits alone."""
    rng = np.random.default_rng(3)
    width = heads * size

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((rng.standard_normal(shape) / width**0.5).astype(np.float32), name)

    def ints(name: str, *values: int) -> onnx.TensorProto:
        return numpy_helper.from_array(np.array(values, np.int64), name)

    weights = [weight("table", 50, width), *(weight(n, width, width) for n in ("wq", "wk", "wv", "wo")), weight("head", width, 50)]
    weights += [ints("split", 1, -1, heads, size), ints("flat", 1, -1, width), ints("end", -1)]
    node = helper.make_node
    nodes = [node("Gather", ["table", "ids"], ["x"])]
    for n in "qkv":
        nodes += [node("MatMul", ["x", f"w{n}"], [f"{n}0"]), node("Reshape", [f"{n}0", "split"], [f"{n}1"])]
        nodes += [node("Transpose", [f"{n}1"], [f"{n}2"], perm=[0, 2, 1, 3])]
    nodes += [node("Concat", [f"past_{n}", f"{n}2"], [f"present_{n}"], axis=2) for n in "kv"]
    nodes += [node("Transpose", ["present_k"], ["kt"], perm=[0, 1, 3, 2]), node("MatMul", ["q2", "kt"], ["s0"])]
    nodes += [node("Softmax", ["s0"], ["s1"], axis=-1), node("MatMul", ["s1", "present_v"], ["c0"])]
    nodes += [node("Transpose", ["c0"], ["c1"], perm=[0, 2, 1, 3]), node("Reshape", ["c1", "flat"], ["c2"])]
    nodes += [node("MatMul", ["c2", "wo"], ["y0"]), node("Add", ["x", "y0"], ["y1"])]
    if last:
        nodes += [node("Gather", ["y1", "end"], ["y2"], axis=1)]
    nodes += [node("MatMul", ["y2" if last else "y1", "head"], ["logits"])]
    cache = [1, heads, "past", size]
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, "new"])]
    inputs += [helper.make_tensor_value_info(f"past_{n}", TensorProto.FLOAT, cache) for n in "kv"]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("logits", "present_k", "present_v")]
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("new", [1, 3])
def test_decoder_with_a_growing_cache(new: int) -> None:
    cache = lambda extent: (1, 2, extent, 16)  # noqa: E731
    shapes: Shapes = lambda extent: {"ids": (1, new), "past_k": cache(extent), "past_v": cache(extent)}  # noqa: E731
    check(decoder(), shapes, 16, 23, [16, 17, 20, 23])


@pytest.mark.parametrize(("least", "most"), [(16, 23), (130, 500)])
def test_places_that_count_on_from_the_cache(least: int, most: int) -> None:
    """Of a step's token nothing is known but how long the cache is: its angles are computed, not constants of one length."""
    options = models.miniature("smollm2_135m")
    model = models.build("smollm2_135m", symbolic=True, cache=True, **options)
    caches = {i.name: tuple(d.dim_value for d in i.type.tensor_type.shape.dim) for i in model.graph.input if "past" in i.name}

    def shapes(extent: int) -> dict[str, tuple[int, ...]]:
        past = {name: (1, heads, extent, size) for name, (_, heads, _, size) in caches.items()}
        return {"input_ids": (1, 1), "attention_mask": (1, extent + 1), **past}

    check(model, shapes, least, most, [least, most, (least + most) // 2])


@pytest.mark.parametrize(("least", "most"), [(8, 15), (16, 31), (130, 191)])
@pytest.mark.parametrize("folded", [False, True])
def test_distances_from_the_last_token(least: int, most: int, folded: bool) -> None:
    """As T5 has them: constants that are the ends of those for the longest length. `folded`: the biases that are looked up by distance are
    constants of that kind, too."""
    rng = np.random.default_rng(7)
    node, ints = helper.make_node, lambda name, *values: numpy_helper.from_array(np.array(values, np.int64), name)
    constants = [ints("one", 1), ints("step", 1), ints("farthest", 9), ints("axis", 2), ints("none")]
    constants.append(numpy_helper.from_array(rng.standard_normal((10, 2)).astype(np.float32), "biases"))
    nodes = [node("Shape", ["past"], ["s"]), node("Gather", ["s", "axis"], ["n"]), node("Add", ["n", "one"], ["all"])]
    nodes += [node("Reshape", [name, "none"], [f"{name}_"]) for name in ("all", "step", "zero", "n")]
    constants.append(ints("zero", 0))
    nodes += [node("Range", ["zero_", "all_", "step_"], ["places"]), node("Sub", ["n_", "places"], ["distances"])]
    nodes += [node("Min", ["distances", "farthest"], ["buckets"])]
    if folded:
        nodes += [node("Gather", ["biases", "buckets"], ["rows"])]
    else:
        nodes += [node("MatMul", ["choice", "biases"], ["own"]), node("Gather", ["own", "buckets"], ["rows"])]
    nodes += [node("Transpose", ["rows"], ["bias"], perm=[1, 0]), node("Add", ["scores", "bias"], ["biased"])]
    nodes += [node("Softmax", ["biased"], ["y"], axis=-1)]
    info = lambda name, *dims: helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)  # noqa: E731
    inputs = [info("past", 1, 2, "past", 4), info("scores", 2, "all")] + ([] if folded else [info("choice", 10, 10)])
    graph = helper.make_graph(nodes, "distances", inputs, [info("y", 2, "all")], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)

    def shapes(extent: int) -> dict[str, tuple[int, ...]]:
        return {"past": (1, 2, extent, 4), "scores": (2, extent + 1), **({} if folded else {"choice": (10, 10)})}

    check(model, shapes, least, most, [most, least, (least + most) // 2, most - 1])


def test_embeddings_of_places_that_count_on() -> None:
    """As GPT-2 has them: a row of a table, from the length of the cache."""
    rng = np.random.default_rng(5)
    node, ints = helper.make_node, lambda name, *values: numpy_helper.from_array(np.array(values, np.int64), name)
    floats = [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in (("rows", (64, 8)), ("w", (8, 8)))]
    nodes = [node("Shape", ["past"], ["s"]), node("Gather", ["s", "one"], ["p"]), node("Add", ["p", "ones"], ["t"])]
    nodes += [node("Squeeze", ["p"], ["p0"]), node("Squeeze", ["t"], ["t0"]), node("Range", ["p0", "t0", "step"], ["at"])]
    nodes += [node("Gather", ["rows", "at"], ["e"]), node("MatMul", ["e", "w"], ["q"]), node("Concat", ["past", "q"], ["all"], axis=0)]
    nodes += [node("Transpose", ["all"], ["k"], perm=[1, 0]), node("MatMul", ["q", "k"], ["y"])]
    scalar = numpy_helper.from_array(np.array(1, np.int64), "step")
    graph = helper.make_graph(
        nodes,
        "places",
        [helper.make_tensor_value_info("past", TensorProto.FLOAT, ["p", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None), helper.make_tensor_value_info("all", TensorProto.FLOAT, None)],
        [*floats, ints("one", 0), ints("ones", 1), scalar],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    check(model, lambda extent: {"past": (extent, 8)}, 16, 23, [16, 23, 20])


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_sequences_of_any_length(op: str, gates: int) -> None:
    """Two layers in both directions, whose runs of steps grow with the sequence."""
    rng, hidden = np.random.default_rng(5), 64
    weights, nodes, last, size = [], [], "x", 12
    for layer in range(2):
        for name, shape in (("w", (2, gates * hidden, size)), ("r", (2, gates * hidden, hidden)), ("b", (2, 2 * gates * hidden))):
            values = rng.standard_normal(shape) / np.sqrt(hidden)
            weights.append(numpy_helper.from_array(values.astype(np.float32), f"{name}{layer}"))
        inputs = [last, f"w{layer}", f"r{layer}", f"b{layer}"]
        nodes.append(helper.make_node(op, inputs, [f"y{layer}", f"h{layer}"], direction="bidirectional", hidden_size=hidden))
        nodes.append(helper.make_node("Transpose", [f"y{layer}"], [f"t{layer}"], perm=[0, 2, 1, 3]))
        nodes.append(helper.make_node("Reshape", [f"t{layer}", "rows"], [f"o{layer}"]))
        last, size = f"o{layer}", 2 * hidden
    weights.append(numpy_helper.from_array(np.array([0, 0, -1], np.int64), "rows"))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["steps", 3, 12])
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("o1", "h1")]
    graph = helper.make_graph(nodes, op, [x], outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    check(model, lambda extent: {"x": (extent, 3, 12)}, 32, 200, [32, 33, 200, 101, 77, 64], rtol=2e-6)


def test_a_cache_of_any_length() -> None:
    cache = lambda extent: (1, 2, extent, 16)  # noqa: E731
    shapes: Shapes = lambda extent: {"ids": (1, 1), "past_k": cache(extent), "past_v": cache(extent)}  # noqa: E731
    check(decoder(), shapes, 128, 1023, [128, 1023, 600, 129, 999])


def test_rows_that_are_counted_from_the_end() -> None:
    """The last token is in the last tile where the text is longest, and in another one else."""
    shapes: Shapes = lambda extent: {"ids": (1, extent), "past_k": (1, 2, 3, 16), "past_v": (1, 2, 3, 16)}  # noqa: E731
    check(decoder(last=True), shapes, 64, 95, [64, 70, 94, 79], workers=8)


@pytest.mark.parametrize(
    ("width", "cached", "whole", "one_for_all"), [(2048, 4, True, True), (8, 4, True, False), (2048, 1 << 16, False, False)]
)
def test_large_classes_are_for_what_hardly_has_the_length(width: int, cached: int, whole: bool, one_for_all: bool) -> None:
    """A product of one row and its weights, and a sum over a cache (`whole`) or its last column: what has the length may take little of the
    time at the shortest, and not hold too much more at the longest."""
    weights = np.random.default_rng(0).standard_normal((width, width)).astype(np.float32)
    ends = [numpy_helper.from_array(np.array([n]), name) for name, n in (("minus", -1), ("far", 1 << 40), ("one", 1))]
    last = helper.make_node("Slice", ["cache", "minus", "far", "one"], ["found"])  # axis 1
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("ReduceSum", ["cache"], ["found"], keepdims=1) if whole else last,
    ]
    graph = helper.make_graph(
        nodes,
        "step",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, width]),
            helper.make_tensor_value_info("cache", TensorProto.FLOAT, [cached, "past"]),
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, None]) for name in ("y", "found")],
        [numpy_helper.from_array(weights, "w"), *ends],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    bound = {"x": api.Binding(np.dtype(np.float32), (1, width), None), "cache": api.Binding(np.dtype(np.float32), (cached, 1023), None)}
    bucket = ShapeBucket.of_length(128, 1023, {"x": (0, 0), "cache": (0, 1)})
    assert api.plan_bucket(model, [bound], bucket, workers=2).plan is not None
    if one_for_all:
        assert api.plan_bucket(model, [bound], bucket, workers=2, demand="even").plan is not None
    else:
        with pytest.raises(NoBucket):
            api.plan_bucket(model, [bound], bucket, workers=2, demand="even")


def wide_layer(mask: bool) -> onnx.ModelProto:
    """A layer that Strassen's algorithm computes for many tokens and not for few, over embeddings of places. `mask`: scores of all tokens
    with all, times a mask of tokens that is read by the places of each text and token, as PyTorch's transformers do."""
    rng = np.random.default_rng(2)
    node, ints = helper.make_node, lambda name, *values: numpy_helper.from_array(np.array(values, np.int64), name)
    floats = [("table", (600, 512)), ("w", (512, 512)), ("kinds", (2, 512))]
    constants = [numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name) for name, shape in floats]
    constants += [
        ints("zero", 0),
        ints("one", 1),
        ints("two", 2),
        ints("back", -1),
        ints("flat"),
        ints("sides", 1, 2, 3),
        ints("ends", 0, 1, 2),
    ]
    nodes = [node("Shape", ["x"], ["b1"], start=0, end=1), node("Shape", ["x"], ["n1"], start=1, end=2)]
    for name in ("zero", "one", "b1", "n1"):
        nodes += [node("Reshape", [name, "flat"], [f"{name}_"])]
    nodes += [node("Range", ["zero_", "n1_", "one_"], ["at"]), node("Gather", ["table", "at"], ["places"])]
    nodes += [node("Mul", ["at", "zero"], ["kind"]), node("Gather", ["kinds", "kind"], ["of_kind"])]
    nodes += [node("Add", ["x", "places"], ["x1"]), node("Add", ["x1", "of_kind"], ["x2"]), node("MatMul", ["x2", "w"], ["y"])]
    if mask:
        nodes += [node("Range", ["zero_", "b1_", "one_"], ["texts"]), node("Concat", ["b1", "one", "one", "n1"], ["all"], axis=0)]
        nodes += [node("Unsqueeze", ["texts", "sides"], ["i"]), node("Expand", ["i", "all"], ["i1"])]
        nodes += [
            node("Expand", ["at", "all"], ["j1"]),
            node("Unsqueeze", ["i1", "back"], ["i2"]),
            node("Unsqueeze", ["j1", "back"], ["j2"]),
        ]
        nodes += [node("Concat", ["i2", "j2"], ["ij"], axis=-1), node("GatherND", ["m", "ij"], ["picked"])]
        nodes += [node("Concat", ["b1", "one", "n1", "n1"], ["square"], axis=0), node("Expand", ["picked", "square"], ["whole"])]
        nodes += [
            node("Transpose", ["x"], ["xt"], perm=[0, 2, 1]),
            node("MatMul", ["x", "xt"], ["s"]),
            node("Unsqueeze", ["s", "one"], ["s1"]),
        ]
        nodes += [node("Mul", ["whole", "s1"], ["scores"]), node("Softmax", ["scores"], ["shares"], axis=-1)]
        nodes += [node("ReduceMax", ["shares", "back"], ["z"], keepdims=0)]
    info = lambda name, *dims: helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)  # noqa: E731
    masked = [info("m", "b", "n")] if mask else []
    outputs = [info("y", "b", "n", 512), *([info("z", "b", 1, "n")] if mask else [])]
    graph = helper.make_graph(nodes, "layer", [info("x", "b", "n", 512), *masked], outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize(("batch", "least", "most"), [(1, 2, 511), (1, 32, 511), (2, 32, 511), (3, 32, 255), (2, 2, 31)])
def test_algorithms_by_length(batch: int, least: int, most: int) -> None:
    """A plan for few rows and many: each length is computed as it would be by itself."""
    shapes: Shapes = lambda extent: {"x": (batch, extent, 512)}  # noqa: E731
    check(wide_layer(mask=False), shapes, least, most, [most, least, least + 1, 47 if most > 48 else 23, 48 if most > 48 else 24])


@pytest.mark.parametrize(("batch", "least", "most"), [(1, 8, 63), (2, 32, 63)])
def test_squares_of_the_length(batch: int, least: int, most: int) -> None:
    """A batch of matrices of all tokens with all: their distance grows with the square of the length."""
    shapes: Shapes = lambda extent: {"x": (batch, extent, 512), "m": (batch, extent)}  # noqa: E731
    check(wide_layer(mask=True), shapes, least, most, [most, least, least + 1, 47, most - 1])


OF_PLACES = {
    "causal": "GreaterOrEqual row column -> seen; Where seen scores hidden -> scores",
    "window": "Sub column row -> apart; Abs apart -> far; Less far near -> seen; Where seen scores hidden -> scores",
    "linear bias": "Sub column row -> apart; Cast apart -> apart_f; Mul apart_f slope -> bias; Add scores bias -> scores",
    "learned bias": "Sub column row -> apart; Abs apart -> far; Min far near -> at; Gather table at -> bias; Add scores bias -> scores",
    "biases in logarithms": "Sub column row -> apart; Abs apart -> far; Add far one -> off; Cast off -> off_f; Log off_f -> log; "
    "Mul log eight -> class; Floor class -> class; Clip class zero_f limit -> class; Mul class slope -> bias; Add scores bias -> scores",
}
"""What decoders and encoders make of a length alone, for scores of all tokens with all: nodes as "operator inputs -> output"."""
ANGLES = (
    "Cast row -> at; MatMul at speeds -> angles; Cos angles -> cos; Sin angles -> sin; Mul x cos -> xc; Mul x sin -> xs; Add xc xs -> x"
)
LEARNED = "Gather places range -> place; Add x place -> x"


def of_places(kinds: Sequence[str], width: int = 16) -> onnx.ModelProto:
    """A layer of attention with these kinds of `OF_PLACES`, "angles" and "learned places"."""
    rng = np.random.default_rng(len(kinds))
    shapes = {"table": (40,), "speeds": (1, width), "places": (600, width)}
    floats = {name: rng.standard_normal(shape) for name, shape in shapes.items()} | {"eight": 8.0, "slope": 0.125, "hidden": -1e9}
    floats |= {"zero_f": 0.0, "limit": 31.0}
    constants = [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in floats.items()]
    ints = {"zero": 0, "one": 1, "near": 31, "first": [0], "last": [1]}
    constants += [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in ints.items()]
    text = ["Shape x0 -> shape; Gather shape one -> n; Range zero n one -> range; Identity x0 -> x"]
    text += ["Unsqueeze range last -> row; Unsqueeze range first -> column"]
    text += [ANGLES] * ("angles" in kinds) + [LEARNED] * ("learned places" in kinds)
    text += ["Transpose x -> xt; MatMul x xt -> scores", *(OF_PLACES[kind] for kind in kinds if kind in OF_PLACES)]
    text += ["Softmax scores -> shares; MatMul shares x -> y"]
    nodes, latest = [], dict[str, str]()
    for k, line in enumerate("; ".join(text).split("; ")):
        op, *names, _, output = line.split()
        given = [latest.get(name, name) for name in names]
        latest[output] = f"{output}_{k}"
        options: dict[str, Any] = {"Cast": {"to": TensorProto.FLOAT}, "Transpose": {"perm": [0, 2, 1]}}.get(op, {})
        nodes.append(helper.make_node(op, given, [latest[output]], **options))
    info = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", "n", width])  # noqa: E731
    graph = helper.make_graph(nodes, " and ".join(kinds), [info("x0")], [info(latest["y"])], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("least", "most"), [(2, 31), (32, 511)])
def test_what_follows_from_places_is_folded_at_all_lengths_or_at_none(seed: int, least: int, most: int) -> None:
    """Values of all tokens with all are small enough for a constant at most lengths of a bucket, and too large at the longest."""
    drawn = np.random.default_rng(seed)
    kinds = [str(kind) for kind in drawn.permutation([*OF_PLACES, "angles", "learned places"])[: drawn.integers(1, 4)]]
    shapes: Shapes = lambda extent: {"x0": (2, extent, 16)}  # noqa: E731
    check(of_places(kinds), shapes, least, most, [most, least, (least + most) // 2, least + 1], rtol=1e-5)
