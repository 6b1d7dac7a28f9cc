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
from aspen_mp.planner.ir.likeness import form
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
    proto = model(nodes, {"x": (F, ["n", 4])}, {"y": F, "r": F})
    assert kinds(proto, {"x": X}) == ["static"]
    stage = stages.derive(api.load(proto), [bind({"x": X})])
    assert [(v.name, v.shape) for v in stage.outputs] == [("r", (3, 4)), ("y", None)]
    assert [n.op for n in stage.graph.nodes] == ["Relu", "OPAQUE"]


def test_what_is_worth_a_plan_has_a_stage_of_its_own() -> None:
    """Small operators run with the node whose result depends on data, a product behind them does not; what it is filled with, which
    follows from shapes alone, is a constant of its stage and not passed on."""
    nodes = [
        N("Relu", ["x"], ["r"]),
        N("NonZero", ["r"], ["i"]),
        N("Transpose", ["i"], ["t"]),
        N("Cast", ["t"], ["f"], to=F),
        N("Neg", ["f"], ["g"]),
        N("MatMul", ["g", "w"], ["m"]),
        N("Shape", ["g"], ["s"]),
        N("ConstantOfShape", ["s"], ["z"]),
        N("Concat", ["z", "g"], ["zg"], axis=0),
        N("MatMul", ["z", "w"], ["zw"]),
        N("Add", ["m", "zw"], ["y"]),
    ]
    proto = model(nodes, {"x": (F, ["n", 4])}, {"y": F, "zg": F}, {"w": np.ones((2, 3), np.float32)})
    assert kinds(proto, {"x": X}) == ["static", "static"]
    stage = stages.derive(api.load(proto), [bind({"x": X})])
    assert [(v.name, v.final) for v in stage.outputs] == [("g", False), ("zg", True)]


def test_a_dynamic_stage_that_reads_much_takes_nothing_along() -> None:
    nodes = [N("NonZero", ["x"], ["i"]), N("Neg", ["i"], ["y"])]
    proto = model(nodes, {"x": (F, ["n"])}, {"y": I64})
    few, many = np.ones(8, np.float32), np.ones(1 << 21, np.float32)
    assert [[v.name for v in stages.derive(api.load(proto), [bind({"x": x})]).outputs] for x in (few, many)] == [["y"], ["i"]]


def test_branches_of_small_operators_run_with_what_decides_them() -> None:
    """As torchvision exports its suppression of boxes: nothing is done where there are none."""
    empty = helper.make_graph([N("Identity", ["f"], ["a"])], "then", [], [helper.make_tensor_value_info("a", F, None)])
    some = helper.make_graph([N("Mul", ["f", "f"], ["b"])], "else", [], [helper.make_tensor_value_info("b", F, None)])
    nodes = [
        N("NonZero", ["x"], ["i"]),
        N("Cast", ["i"], ["f"], to=F),
        N("Size", ["f"], ["n"]),
        N("Equal", ["n", "none"], ["c"]),
        N("If", ["c"], ["y"], then_branch=empty, else_branch=some),
    ]
    proto = model(nodes, {"x": (F, ["n", 4])}, {"y": F}, {"none": np.array(0)})
    for x in (X, np.zeros((3, 4), np.float32)):
        assert kinds(proto, {"x": x}) == ["dynamic"]


def test_more_nodes_than_a_tile_has_operands_are_several_stages() -> None:
    nodes = [N("Relu", [f"x{k}"], [f"r{k}"]) for k in range(300)]
    nodes += [N("NonZero", [f"r{k}"], [f"i{k}"]) for k in range(300)]
    nodes += [N("Concat", [f"i{k}" for k in range(300)], ["y"], axis=1)]
    proto = model(nodes, {f"x{k}": (F, [3]) for k in range(300)}, {"y": I64})
    feeds = {f"x{k}": np.arange(k, k + 3, dtype=np.float32) for k in range(300)}
    opened = api.load(proto)
    first = api.plan_stage(opened, [bind(feeds)], workers=1)
    assert first.more
    assert np.array_equal(run_model(opened, feeds)[0], ReferenceEvaluator(proto).run(None, feeds)[0])


def test_many_slices_of_one_value_are_cut_by_the_tile_that_reads_them() -> None:
    """As detectors with an output for each class do."""
    nodes = []
    for k in range(300):
        nodes += [
            N("Gather", ["r", f"k{k}"], [f"s{k}"], axis=1),
            N("Greater", [f"s{k}", "least"], [f"m{k}"]),
            N("NonZero", [f"m{k}"], [f"i{k}"]),
        ]
    nodes = [N("Relu", ["x"], ["r"]), *nodes, N("Concat", [f"i{k}" for k in range(300)], ["y"], axis=1)]
    constants = {f"k{k}": np.array(k) for k in range(300)}
    proto = model(nodes, {"x": (F, ["n", 300])}, {"y": I64}, {**constants, "least": np.array(0.5, np.float32)})
    feeds = {"x": np.random.default_rng(3).standard_normal((4, 300)).astype(np.float32)}
    stage = stages.derive(api.load(proto), [bind(feeds)])
    assert [n.op for n in stage.graph.nodes] == ["Relu", "OPAQUE"]
    assert kinds(proto, feeds) == ["static"]


def test_stages_are_the_same_with_what_is_known_of_those_in_front() -> None:
    nodes = [N("NonZero", ["x"], ["i"]), N("Cast", ["i"], ["f"], to=F), N("MatMul", ["w", "f"], ["y"])]
    proto = model(nodes, {"x": (F, ["n", 4])}, {"y": F}, {"w": np.ones((3, 2), np.float32)})
    opened, known = api.load(proto), stages.Derived()
    for count in (5, 7, 5):
        bindings = [bind({"x": X}), bind({"f": np.zeros((2, count), np.float32)})]
        for n in (1, 2):
            fresh = stages.derive(opened, bindings[:n])
            found = stages.derive(opened, bindings[:n], derived=known)
            assert [(v.name, v.shape) for v in fresh.outputs] == [(v.name, v.shape) for v in found.outputs]
            assert [n.op for n in fresh.graph.nodes] == [n.op for n in found.graph.nodes]
            assert (fresh.kind, fresh.more) == (found.kind, found.more)
    with pytest.raises(RequestError, match="no stage"):
        stages.derive(opened, [*bindings, {}], derived=known)
    with pytest.raises(RequestError, match="no stage 20001"):  # asked for by a client that means no good
        stages.derive(opened, [*bindings, *[{}] * 20_000], derived=known)


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
    assert kinds(proto, {"s": np.array(["a", "b"], object), "x": X}) == ["static"]


def test_sequences_stay_in_one_dynamic_stage() -> None:
    nodes = [
        N("Exp", ["x"], ["e"]),
        N("SplitToSequence", ["e"], ["q"], axis=0, keepdims=0),
        N("SequenceAt", ["q", "one"], ["a"]),
        N("Relu", ["a"], ["y"]),
    ]
    proto = model(nodes, {"x": (F, ["n", 4])}, {"y": F}, {"one": np.array(1)})
    assert kinds(proto, {"x": X}) == ["static"]


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
    nodes = [
        N("Relu", ["x"], ["r"]),
        N("NonZero", ["r"], ["i"]),
        N("Cast", ["i"], ["f"], to=F),
        N("Transpose", ["f"], ["p"]),
        N("MatMul", ["p", "w"], ["t"]),
        N("Neg", ["r"], ["y"]),
    ]
    proto = model(nodes, {"x": (F, ["n", 4]), "unused": (F, [5])}, {"t": F, "y": F}, {"w": np.ones((2, 3), np.float32)})
    feeds = {"x": X, "unused": np.zeros(5, np.float32)}
    first = api.plan_stage(proto, [bind(feeds)], workers=2)
    assert first.kind == "static"
    assert [v.name for v in first.inputs] == ["x"]
    assert {v.name: v.final for v in first.outputs} == {"y": True, "p": False}
    assert first.more
    assert first.plan is not None
    assert [v.dtype for v in first.plan.outputs] == ["float32", "object"]
    assert first.opaque == [("i", "NonZero, Cast, Transpose", "results depend on data")]
    second = api.plan_stage(proto, [bind(feeds), bind({"p": np.zeros((7, 2), np.float32)})], workers=2)
    assert second.outputs[0].shape == (7, 3)
    assert not second.more


def test_capacities() -> None:
    nodes = [N("NonZero", ["x"], ["i"])]
    proto = model(nodes, {"x": (F, ["n", 4])}, {"i": I64})
    planned = api.plan_stage(proto, [bind({"x": X})], workers=2, capacities={"i": 1 << 25})
    assert planned.plan is not None
    assert planned.plan.outputs[0].nbytes == 1 << 25


def test_stages_are_alike_where_nothing_that_they_read_changes() -> None:
    """Behind a NonZero, the length of what it has looked at does not matter, unless something of it is read."""
    nodes = [
        N("NonZero", ["x"], ["i"]),
        N("Transpose", ["i"], ["t"]),
        N("Cast", ["t"], ["f"], to=F),
        N("MatMul", ["f", "w"], ["m"]),
        N("Shape", ["x"], ["s"]),
        N("Gather", ["s", "zero"], ["n"]),
        N("Cast", ["n"], ["c"], to=F),
        N("Add", ["m", "c"], ["y"]),
    ]
    constants = {"w": np.ones((2, 3), np.float32), "zero": np.array(0)}
    free = api.load(model([*nodes[:3], N("MatMul", ["f", "w"], ["y"])], {"x": (F, ["n", 4])}, {"y": F}, {"w": constants["w"]}))
    bound = api.load(model(nodes, {"x": (F, ["n", 4])}, {"y": F}, constants))

    def found(opened: Any, rows: int, count: int) -> Any:
        binding = api.Binding(np.dtype(np.float32), (count, 2), None)
        return form(stages.derive(opened, [{"x": api.Binding(np.dtype(np.float32), (rows, 4), None)}, {"f": binding}]).graph)

    assert found(free, 5, 3) == found(free, 50, 3)
    assert found(free, 5, 3) != found(free, 5, 4)
    assert found(bound, 5, 3) == found(bound, 5, 3)
    assert found(bound, 5, 3) != found(bound, 50, 3)  # a constant that follows from the length
    assert len(found(bound, 5, 3)[0]) == len(found(bound, 50, 3)[0])
