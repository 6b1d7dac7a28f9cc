"""Stages: shapes that depend on values, on data, and values that are no tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from kernel_graphs import bind, run_model
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from aspen_mp.planner import api, stages
from aspen_mp.shm.errors import RequestError

N = helper.make_node
F, I64, BOOL, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING


def model(
    nodes: list[onnx.NodeProto], inputs: dict[str, Any], outputs: dict[str, int], constants: dict[str, Any] | None = None
) -> onnx.ModelProto:
    infos = [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in inputs.items()]
    results = [helper.make_tensor_value_info(n, kind, None) for n, kind in outputs.items()]
    tensors = [numpy_helper.from_array(np.asarray(v), n) for n, v in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", infos, results, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def kinds(proto: onnx.ModelProto, feeds: dict[str, Any]) -> list[str]:
    """Kinds of the stages, after checking the results against the reference."""
    opened = api.load(proto)
    want = ReferenceEvaluator(proto).run(None, feeds)
    for got, expected in zip(run_model(opened, feeds), want, strict=True):
        assert np.array_equal(got, expected) if expected.dtype.kind in "OU" else np.allclose(got, expected, atol=1e-6)
    bindings = [bind(feeds)]
    found = []
    held = dict(feeds)
    while True:
        stage = stages.derive(opened, bindings)
        if stage.needs:
            bindings[-1].update(bind({n: held[n] for n in stage.needs}, stage.needs))
            continue
        found.append(stage.kind)
        if not stage.more:
            return found
        names = [v.name for v in stage.outputs]
        again = model_outputs(proto, names)
        held.update(zip(names, ReferenceEvaluator(again).run(None, feeds), strict=True))
        bindings.append(bind({n: held[n] for n in names}))


def model_outputs(proto: onnx.ModelProto, names: list[str]) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    del copy.graph.output[:]
    copy.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names)
    return copy


X = np.random.default_rng(2).standard_normal((3, 4)).astype(np.float32)


def test_static() -> None:
    assert kinds(model([N("Relu", ["x"], ["y"])], {"x": (F, ["n", 4])}, {"y": F}), {"x": X}) == ["static"]


def test_shape_arithmetic_is_constant() -> None:
    nodes = [
        N("Shape", ["x"], ["s"]),
        N("Gather", ["s", "zero"], ["n"]),
        N("Unsqueeze", ["n", "first"], ["n1"]),
        N("Concat", ["n1", "rest"], ["target"], axis=0),
        N("Reshape", ["x", "target"], ["y"]),
    ]
    constants = {"zero": np.array(0), "first": np.array([0]), "rest": np.array([2, 2])}
    proto = model(nodes, {"x": (F, ["n", 4])}, {"y": F}, constants)
    opened = api.load(proto)
    stage = stages.derive(opened, [bind({"x": X})])
    assert [n.op for n in stage.graph.nodes] == ["Reshape"]
    assert kinds(proto, {"x": X}) == ["static"]


def test_value_of_an_input() -> None:
    proto = model([N("Reshape", ["x", "s"], ["y"])], {"x": (F, ["n", 4]), "s": (I64, [2])}, {"y": F})
    opened = api.load(proto)
    feeds = {"x": X, "s": np.array([6, 2])}
    assert stages.derive(opened, [bind(feeds)]).needs == ["s"]
    stage = stages.derive(opened, [bind(feeds, ["s"])])
    assert stage.outputs[0].shape == (6, 2)
    assert [t.name for t in stage.graph.inputs] == ["x"]
    assert kinds(proto, feeds) == ["static"]


def test_value_that_an_input_leads_to() -> None:
    """The shape is computed from a small integer input: its value is asked for, there is no second stage."""
    nodes = [N("Mul", ["k", "two"], ["k2"]), N("Concat", ["k2", "rest"], ["s"], axis=0), N("Reshape", ["x", "s"], ["y"])]
    proto = model(nodes, {"x": (F, ["n", 4]), "k": (I64, [1])}, {"y": F}, {"two": np.array([2]), "rest": np.array([-1])})
    feeds = {"x": X, "k": np.array([3])}
    assert stages.derive(api.load(proto), [bind(feeds)]).needs == ["k"]
    assert kinds(proto, feeds) == ["static"]


def test_value_computed_from_data() -> None:
    """The shape follows from data: the model is cut there, and the value bound in between."""
    nodes = [
        N("Relu", ["x"], ["r"]),
        N("ArgMax", ["r"], ["a"], axis=0, keepdims=0),
        N("ReduceMin", ["a"], ["m"], keepdims=1),
        N("Abs", ["m"], ["b"]),
        N("Add", ["b", "one"], ["s"]),
        N("Expand", ["v", "s"], ["y"]),
        N("Exp", ["y"], ["z"]),
    ]
    proto = model(nodes, {"x": (F, ["n", 4])}, {"z": F, "r": F}, {"one": np.array([1]), "v": np.array([2], np.float32)})
    assert kinds(proto, {"x": X}) == ["static", "static"]


def test_data_dependent_shape() -> None:
    nodes = [
        N("Relu", ["x"], ["r"]),
        N("NonZero", ["r"], ["i"]),
        N("Transpose", ["i"], ["t"]),
        N("Cast", ["t"], ["f"], to=F),
        N("Neg", ["f"], ["y"]),
    ]
    assert kinds(model(nodes, {"x": (F, ["n", 4])}, {"y": F, "r": F}), {"x": X}) == ["static", "dynamic", "static"]


def test_condition_decides_the_branch() -> None:
    then = helper.make_graph([N("Exp", ["x"], ["a"])], "then", [], [helper.make_tensor_value_info("a", F, None)])
    other = helper.make_graph([N("ReduceSum", ["x"], ["b"], keepdims=0)], "else", [], [helper.make_tensor_value_info("b", F, None)])
    nodes = [N("If", ["c"], ["y"], then_branch=then, else_branch=other)]
    proto = model(nodes, {"x": (F, [2, 2]), "c": (BOOL, [])}, {"y": F})
    for choice in (True, False):
        feeds = {"x": np.eye(2, dtype=np.float32), "c": np.array(choice)}
        opened = api.load(proto)
        assert stages.derive(opened, [bind(feeds)]).needs == ["c"]
        stage = stages.derive(opened, [bind(feeds, ["c"])])
        assert [n.op for n in stage.graph.nodes] == (["Exp"] if choice else ["ReduceSum"])


def test_branches_of_one_shape_run_as_they_are() -> None:
    then = helper.make_graph([N("Exp", ["x"], ["a"])], "then", [], [helper.make_tensor_value_info("a", F, [2, 2])])
    other = helper.make_graph([N("Neg", ["x"], ["b"])], "else", [], [helper.make_tensor_value_info("b", F, [2, 2])])
    nodes = [N("If", ["c"], ["y"], then_branch=then, else_branch=other)]
    proto = model(nodes, {"x": (F, [2, 2]), "c": (BOOL, [])}, {"y": F})
    counts: dict[str, int] = {}
    feeds = {"x": np.eye(2, dtype=np.float32), "c": np.array(False)}
    assert np.array_equal(run_model(api.load(proto), feeds, counts=counts)[0], -feeds["x"])
    assert counts["OPAQUE"] == 1


def test_strings() -> None:
    nodes = [N("StringNormalizer", ["s"], ["n"], case_change_action="UPPER"), N("Relu", ["x"], ["y"])]
    proto = model(nodes, {"s": (STRING, [2]), "x": (F, ["n", 4])}, {"n": STRING, "y": F})
    assert kinds(proto, {"s": np.array(["a", "b"], object), "x": X}) == ["static", "dynamic"]


def test_sequences_stay_in_one_dynamic_stage() -> None:
    nodes = [
        N("Exp", ["x"], ["e"]),
        N("SplitToSequence", ["e"], ["q"], axis=0, keepdims=0),
        N("SequenceAt", ["q", "one"], ["a"]),
        N("Relu", ["a"], ["y"]),
    ]
    proto = model(nodes, {"x": (F, ["n", 4])}, {"y": F}, {"one": np.array(1)})
    assert kinds(proto, {"x": X}) == ["static", "dynamic", "static"]


def test_repetition_is_no_weight() -> None:
    """A large constant that repeats a small one stays a view: no plan or weight segment holds its copies."""
    nodes = [
        N("Expand", ["one", "s"], ["big"]),
        N("ConstantOfShape", ["s"], ["zero"]),
        N("Add", ["big", "zero"], ["h"]),
        N("Add", ["h", "x"], ["y"]),
    ]
    proto = model(nodes, {"x": (F, [1, 1])}, {"y": F}, {"one": np.array([[1.5]], np.float32), "s": np.array([2048, 1024])})
    planned = api.plan_stage(proto, [bind({"x": np.zeros((1, 1), np.float32)})], workers=2)
    assert planned.plan is not None
    assert planned.plan.weights_bytes + len(planned.plan.consts) < 4096


def test_too_many_bindings() -> None:
    proto = model([N("Relu", ["x"], ["y"])], {"x": (F, ["n", 4])}, {"y": F})
    with pytest.raises(RequestError, match="no stage"):
        stages.derive(api.load(proto), [bind({"x": X}), {}])


def test_plans_of_all_stages() -> None:
    """`plan_stage` plans each stage, and only reads what the plan needs."""
    nodes = [N("Relu", ["x"], ["r"]), N("NonZero", ["r"], ["i"]), N("Transpose", ["i"], ["t"]), N("Neg", ["r"], ["y"])]
    proto = model(nodes, {"x": (F, ["n", 4]), "unused": (F, [5])}, {"t": I64, "y": F})
    feeds = {"x": X, "unused": np.zeros(5, np.float32)}
    first = api.plan_stage(proto, [bind(feeds)], workers=2)
    assert first.kind == "static"
    assert [v.name for v in first.inputs] == ["x"]
    assert {v.name: v.final for v in first.outputs} == {"y": True, "r": False}
    second = api.plan_stage(proto, [bind(feeds), {}], workers=2)
    assert second.kind == "dynamic"
    assert second.more
    assert second.plan is not None
    assert [v.dtype for v in second.plan.outputs] == ["object"]
    third = api.plan_stage(proto, [bind(feeds), {}, bind({"i": np.zeros((2, 7), np.int64)})], workers=2)
    assert third.outputs[0].shape == (7, 2)
    assert not third.more


def test_capacities() -> None:
    nodes = [N("NonZero", ["x"], ["i"])]
    proto = model(nodes, {"x": (F, ["n", 4])}, {"i": I64})
    options = api.Options(capacities={"i": 1 << 25})
    planned = api.plan_stage(proto, [bind({"x": X})], workers=2, options=options)
    assert planned.plan is not None
    assert planned.plan.outputs[0].nbytes == 1 << 25
