"""Loop and Scan of workers: what iterations give, no iterations, missing inputs, bodies in bodies, outer values; and GlobalLpPool."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from kernel_graphs import run_model
from onnx import TensorProto, helper

from aspen_mp.planner import api
from aspen_mp.planner.frontends.runnable import UNRUNNABLE
from aspen_mp.planner.lower import has_rule
from aspen_mp.shm.errors import RequestError, UnsupportedModelError
from aspen_mp.workers.fallback.loops import Body, loop
from aspen_mp.workers.fallback.opaque_tile import Opaque
from aspen_mp.workers.fallback.operators import OPERATORS, Evaluator

N = helper.make_node
F, INT, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def V(name: str, kind: int, shape: list[Any] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def info(name: str, x: np.ndarray) -> onnx.ValueInfoProto:
    return V(name, helper.np_dtype_to_tensor_dtype(x.dtype), list(x.shape))


def model(nodes: list[Any], feeds: dict[str, Any], outputs: list[Any], opset: int = 17, **kwargs: Any) -> onnx.ModelProto:
    functions = kwargs.pop("functions", [])
    graph = helper.make_graph(nodes, "outer", [info(n, x) for n, x in feeds.items()], outputs, **kwargs)
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(f.domain, 1) for f in functions)]
    return helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=8)


def both(proto: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    """What the planner and workers make of a model, after a comparison with onnxruntime."""
    got = run_model(api.load(proto), feeds)
    for g, want in zip(got, onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds), strict=True):
        assert (g.shape, g.dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(g, want, rtol=1e-5)
    return got


def doubling(shape: list[Any] | None) -> onnx.GraphProto:
    """s = 2 s + e, given out in every iteration; e is an outer value."""
    nodes = [N("Identity", ["c"], ["c2"]), N("Add", ["s", "s"], ["t"]), N("Add", ["t", "e"], ["s2"]), N("Identity", ["s2"], ["o"])]
    return helper.make_graph(
        nodes, "body", [V("i", INT, []), V("c", B, []), V("s", F, shape)], [V("c2", B, []), V("s2", F, shape), V("o", F, shape)]
    )


X = np.arange(6, dtype=np.float32).reshape(2, 3)
E = np.full((2, 3), 0.5, np.float32)


@pytest.mark.parametrize("trips", [0, 1, 3])
@pytest.mark.parametrize("given", [["n", "c"], ["n", ""], ["n1", "c1"]])
@pytest.mark.parametrize("declared", [[2, 3], ["a", "b"], None])
def test_iterations_are_stacked(trips: int, given: list[str], declared: list[Any] | None) -> None:
    flags = {"n": np.array(trips), "n1": np.array([trips]), "c": np.array(True), "c1": np.array([True])}
    feeds = {n: x for n, x in {**flags, "x": X, "e": E}.items() if n in {*given, "x", "e"}}
    proto = model([N("Loop", [*given, "x"], ["y", "z"], body=doubling(declared))], feeds, [V("y", F), V("z", F)])
    if given == ["n1", "c1"] or (trips == 0 and declared != [2, 3]):
        # onnxruntime does not take vectors where the body has scalars, and knows no more of a body that never runs than what is declared.
        y, z = run_model(api.load(proto), feeds)
    else:
        y, z = both(proto, feeds)
        assert z.shape == (trips, 2, 3)
    states = [X]
    for _ in range(trips):
        states.append(2 * states[-1] + E)
    np.testing.assert_array_equal(y, states[-1])
    np.testing.assert_array_equal(z, np.array(states[1:], np.float32).reshape(trips, *z.shape[1:]))
    assert (z.ndim, z.dtype) == (3, np.float32)


def test_scalars() -> None:
    nodes = [N("Less", ["i", "four"], ["c2"]), N("Mul", ["i", "i"], ["o"])]
    body = helper.make_graph(nodes, "body", [V("i", INT, []), V("c", B, [])], [V("c2", B, []), V("o", INT, [])])
    feeds = {"four": np.array(3)}
    (y,) = both(model([N("Loop", ["", ""], ["y"], body=body)], feeds, [V("y", INT)]), feeds)
    assert y.tolist() == [0, 1, 4, 9]


def test_the_condition_ends_it() -> None:
    nodes = [N("Add", ["s", "s"], ["s2"]), N("ReduceMax", ["s2"], ["m"], keepdims=0), N("Less", ["m", "most"], ["c2"])]
    body = helper.make_graph(nodes, "body", [V("i", INT, []), V("c", B, []), V("s", F)], [V("c2", B, []), V("s2", F)])
    for begin in (True, False):
        feeds = {"c": np.array(begin), "x": X, "most": np.array(100, np.float32)}
        both(model([N("Loop", ["", "c", "x"], ["y"], body=body)], feeds, [V("y", F)]), feeds)


def collecting(variant: str) -> onnx.GraphProto:
    """s = s and rows that depend on the round, one behind the other."""
    rows = [N("Cast", ["i"], ["f"], to=F), N("Add", ["e", "f"], ["row"])]
    joined = {"behind": ["s", "row", "e"], "before": ["row", "s"], "twice": ["s", "s"]}.get(variant, ["s", "row"])
    nodes = [*rows, N("Concat", joined, ["s2"], axis=-1 if variant == "last axis" else 0), N("Identity", ["c"], ["c2"])]
    outputs = [V("c2", B, []), V("s2", F, [None, None])]
    if variant == "made is read":
        nodes.append(N("ReduceSum", ["s2"], ["o"], keepdims=0))
        outputs.append(V("o", F, []))
    elif variant == "given is read":
        nodes.append(N("ReduceSum", ["s"], ["o"], keepdims=0))
        outputs.append(V("o", F, []))
    elif variant == "made is scanned":
        nodes[2] = N("Concat", joined, ["t"], axis=0)
        nodes += [N("Identity", ["t"], ["s2"]), N("ReduceSum", ["t"], ["o"], keepdims=0)]
        outputs.append(V("o", F, []))
    elif variant == "a branch reads it":
        branches = [helper.make_graph([N(op, ["s"], ["b"], keepdims=0)], op, [], [V("b", F)]) for op in ("ReduceSum", "ReduceMax")]
        nodes.append(N("If", ["c"], ["o"], then_branch=branches[0], else_branch=branches[1]))
        outputs.append(V("o", F, []))
    return helper.make_graph(nodes, "body", [V("i", INT, []), V("c", B, []), V("s", F, [None, None])], outputs)


GROW = {"plain": 0, "behind": 0, "last axis": -1}
READ = ("made is read", "given is read", "made is scanned", "a branch reads it")


@pytest.mark.parametrize("variant", [*GROW, "before", "twice", *READ])
@pytest.mark.parametrize("trips", [0, 1, 4])
def test_what_grows(variant: str, trips: int) -> None:
    """It is joined once, where nobody can tell the difference."""
    body = collecting(variant)
    assert Body(Evaluator(body, opsets={"": 17}), None, None).grows(0) == GROW.get(variant)
    feeds = {"n": np.array(trips), "x": X, "e": E}
    scanned = ["z"] if variant in READ else []
    outputs = [V("y", F, [None, None]), *(V(name, F, [None]) for name in scanned)]
    found = both(model([N("Loop", ["n", "", "x"], ["y", *scanned], body=body)], feeds, outputs), feeds)
    if variant == "plain":
        assert found[0].shape == (2 + 2 * trips, 3)


def test_bodies_that_do_not_fit_grow_nothing() -> None:
    """What is carried beyond the body's inputs or outputs is told of when the body is called."""
    body = Body(Evaluator(collecting("plain"), opsets={"": 17}), {"e": E}, None)
    assert body.grows(1) is None
    with pytest.raises(ValueError, match="the body has 3 inputs, but 4 values are given"):
        loop(body, np.array(1), None, [X, X], {"": 17})


def test_rounds_see_nothing_of_what_grows() -> None:
    """So none copies what those before it have made."""
    body = Body(Evaluator(collecting("plain"), opsets={"": 17}), {"e": E}, None)
    seen = []

    class Seen(Body):
        def __init__(self) -> None:
            self.__dict__.update(vars(body))

        def __call__(self, *values: Any) -> list[Any]:
            seen.append(values[2].shape)
            return body(*values)

    (y,) = loop(Seen(), np.array(3), None, [X], {"": 17})
    assert seen == [(0, 3)] * 3
    np.testing.assert_array_equal(y, np.concatenate([X, E, E + 1, E + 2]))


def test_loop_in_a_loop() -> None:
    """The inner body reads a value of the outer body and one of the graph."""
    nodes = [N("Add", ["t", "j"], ["u"]), N("Add", ["u", "offset"], ["t2"]), N("Identity", ["d"], ["d2"]), N("Mul", ["t2", "i"], ["p"])]
    given, made = [V("j", INT, []), V("d", B, []), V("t", INT, [])], [V("d2", B, []), V("t2", INT, []), V("p", INT, [])]
    inner = helper.make_graph(nodes, "inner", given, made)
    nodes = [N("Loop", ["i", "", "s"], ["s2", "row"], body=inner), N("ReduceSum", ["row"], ["o"], keepdims=0), N("Identity", ["c"], ["c2"])]
    outer = helper.make_graph(
        nodes, "body", [V("i", INT, []), V("c", B, []), V("s", INT, [])], [V("c2", B, []), V("s2", INT, []), V("o", INT, [])]
    )
    feeds = {"n": np.array(4), "x": np.array(2), "offset": np.array(10)}
    y, z = both(model([N("Loop", ["n", "", "x"], ["y", "z"], body=outer)], feeds, [V("y", INT), V("z", INT)]), feeds)
    assert y == 2 + 6 * 10 + (0 + 0 + 1 + 0 + 1 + 2)
    assert z.shape == (4,)


def test_a_body_in_a_branch_with_a_layer_in_it() -> None:
    """Everything that is ours is so in branches, bodies and functions, too."""
    rng = np.random.default_rng(0)
    w = {n: rng.standard_normal(s, dtype=np.float32) for n, s in {"W": (1, 12, 3), "R": (1, 12, 4), "x": (5, 2, 3)}.items()}
    feeds = {**w, "lens": np.array([5, 2], np.int32), "yes": np.array(True), "n": np.array(2)}
    nodes = [N("GRU", ["x", "W", "R", "", "lens"], ["", "h"], hidden_size=4, clip=0.5), N("Identity", ["c"], ["c2"])]
    body = helper.make_graph(nodes, "body", [V("i", INT, []), V("c", B, [])], [V("c2", B, []), V("h", F, [1, 2, 4])])
    then = helper.make_graph([N("Loop", ["n", ""], ["hs"], body=body)], "then", [], [V("hs", F, [None, 1, 2, 4])])
    other = helper.make_graph([N("Unsqueeze", ["W", "axis"], ["u"])], "else", [], [V("u", F)])
    axis = onnx.numpy_helper.from_array(np.array([0]), "axis")
    proto = model([N("If", ["yes"], ["y"], then_branch=then, else_branch=other)], feeds, [V("y", F)], initializer=[axis])
    assert both(proto, feeds)[0].shape == (2, 1, 2, 4)


def test_an_output_without_a_name_is_no_ones_input() -> None:
    """Two layers, of which the first gives its last state alone and the second has no bias, in a body and in a function."""
    rng = np.random.default_rng(0)
    w = {n: rng.standard_normal(s, dtype=np.float32) for n, s in {"W": (1, 3, 3), "R": (1, 3, 3), "x": (3, 1, 3)}.items()}

    def layers(h: str, g: str) -> list[onnx.NodeProto]:
        return [N("RNN", ["x", "W", "R"], ["", h], hidden_size=3), N("RNN", [h, "W", "R", "", ""], ["", g], hidden_size=3)]

    nodes = [*layers("h", "g"), N("Identity", ["c"], ["c2"])]
    body = helper.make_graph(nodes, "body", [V("i", INT, []), V("c", B, [])], [V("c2", B, []), V("g", F)])
    opset = helper.make_opsetid("", 17)
    loop = helper.make_node("Loop", ["n", ""], ["z"], body=body)
    function = helper.make_function("own", "Both", ["x", "W", "R", "n"], ["k", "z"], [*layers("j", "k"), loop], [opset])
    call = helper.make_node("Both", ["x", "W", "R", "n"], ["k0", "z0"], domain="own")
    nodes = [call, N("Identity", ["d"], ["d2"])]
    outer = helper.make_graph(nodes, "outer", [V("o", INT, []), V("d", B, [])], [V("d2", B, []), V("z0", F)])
    feeds = w | {"n": np.array(2)}
    proto = model([N("Loop", ["n", ""], ["y"], body=outer)], feeds, [V("y", F)], functions=[function])
    assert both(proto, feeds)[0].shape == (2, 2, 1, 1, 3)


def test_a_bodys_constant_may_have_an_outer_name() -> None:
    body = doubling([2, 3])
    body.initializer.append(onnx.numpy_helper.from_array(10 * E, "e"))
    feeds = {"n": np.array(1), "x": X, "e": E}
    y, _ = Opaque(model([N("Loop", ["n", "", "x"], ["y", "z"], body=body)], feeds, [V("y", F), V("z", F)])).run(list(feeds.values()))
    np.testing.assert_array_equal(y, 2 * X + 10 * E)


@pytest.mark.parametrize("case", ["condition", "trips", "shapes"])
def test_what_cannot_be_run_says_so_once(case: str) -> None:
    feeds = {
        "n": np.array([1, 2] if case == "trips" else 2),
        "c": np.array([True, True][: 2 if case == "condition" else 1]),
        "x": X,
        "e": E,
    }
    body = doubling(None)
    if case == "shapes":
        body.node[3].CopyFrom(N("Slice", ["s2", "zero", "i1"], ["o"]))
        body.node.insert(3, N("Reshape", ["i", "one"], ["i1"]))
    constants = [onnx.numpy_helper.from_array(np.array([k]), n) for k, n in enumerate(["zero", "one"])]
    proto = model([N("Loop", ["n", "c", "x"], ["y", "z"], body=body)], feeds, [V("y", F), V("z", F)], initializer=constants)
    with pytest.raises(RequestError, match=r"^y \(Loop\) failed: .*(condition|trip count|same shape)"):
        Opaque(proto, "y (Loop)").run(list(feeds.values()))


def test_a_failure_inside_names_what_failed() -> None:
    feeds = {"n": np.array(1), "x": X, "e": E[:, :2]}
    proto = model([N("Loop", ["n", "", "x"], ["y", "z"], body=doubling(None))], feeds, [V("y", F), V("z", F)])
    with pytest.raises(RequestError, match=r"^y \(Loop\) \(Add\) failed: "):
        Opaque(proto, "y (Loop)").run(list(feeds.values()))


SCAN = helper.make_graph(
    [N("Add", ["s", "e"], ["s2"]), N("Mul", ["s2", "e"], ["o"])],
    "body",
    [V("s", F, [3]), V("e", F, [3])],
    [V("s2", F, [3]), V("o", F, [3])],
)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("backward", [0, 1])
@pytest.mark.parametrize("out_axis", [0, 1, -1])
@pytest.mark.parametrize("out_backward", [0, 1])
def test_scan(axis: int, backward: int, out_axis: int, out_backward: int) -> None:
    x = np.random.default_rng(1).standard_normal((4, 3) if axis == 0 else (3, 4), dtype=np.float32)
    feeds = {"i": np.ones(3, np.float32), "x": x}
    options = {"scan_input_axes": [axis], "scan_input_directions": [backward]}
    options |= {"scan_output_axes": [out_axis], "scan_output_directions": [out_backward]}
    both(model([N("Scan", ["i", "x"], ["y", "z"], num_scan_inputs=1, body=SCAN, **options)], feeds, [V("y", F), V("z", F)]), feeds)


def test_scan_of_nothing() -> None:
    feeds = {"i": np.ones(3, np.float32), "x": np.zeros((0, 3), np.float32)}
    proto = model([N("Scan", ["i", "x"], ["y", "z"], num_scan_inputs=1, body=SCAN, scan_output_axes=[1])], feeds, [V("y", F), V("z", F)])
    y, z = Opaque(proto).run(list(feeds.values()))
    assert y.tolist() == [1, 1, 1]
    assert (z.shape, z.dtype) == ((3, 0), np.float32)


def test_scan_of_lengths_that_differ() -> None:
    feeds = {"x": np.zeros((4, 3), np.float32), "z": np.zeros((3, 3), np.float32)}
    body = helper.make_graph([N("Add", ["a", "b"], ["o"])], "body", [V("a", F, [3]), V("b", F, [3])], [V("o", F, [3])])
    proto = model([N("Scan", ["x", "z"], ["y"], num_scan_inputs=2, body=body)], feeds, [V("y", F)])
    with pytest.raises(RequestError, match=r"lengths \[3, 4\]"):
        Opaque(proto).run(list(feeds.values()))


def test_scan_of_batches() -> None:
    """Opset 8: the batch comes first, sequences have lengths of their own."""
    rng = np.random.default_rng(2)
    feeds = {
        "l": np.array([4, 2]),
        "i": rng.standard_normal((2, 3), dtype=np.float32),
        "x": rng.standard_normal((2, 4, 3), dtype=np.float32),
    }
    proto = model([N("Scan", ["l", "i", "x"], ["y", "z"], num_scan_inputs=1, body=SCAN)], feeds, [V("y", F), V("z", F)], opset=8)
    y, z = Opaque(proto).run(list(feeds.values()))
    for row, length in enumerate(feeds["l"]):
        states = feeds["i"][row] + np.cumsum(feeds["x"][row, :length], axis=0)
        np.testing.assert_allclose(y[row], states[-1], rtol=1e-5)
        np.testing.assert_allclose(z[row, :length], states * feeds["x"][row, :length], rtol=1e-5, atol=1e-6)
    assert not z[1, 2:].any()


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 2, 6), (2, 2, 1, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_global_lp_pool(p: int, shape: tuple[int, ...], dtype: Any) -> None:
    x = np.random.default_rng(3).standard_normal(shape).astype(dtype)
    proto = model([N("GlobalLpPool", ["x"], ["y"], p=p)], {"x": x}, [V("y", helper.np_dtype_to_tensor_dtype(x.dtype))])
    (y,) = run_model(api.load(proto), {"x": x})
    constant = model(list(proto.graph.node), {}, list(proto.graph.output), initializer=[onnx.numpy_helper.from_array(x, "x")])
    np.testing.assert_array_equal(run_model(api.load(constant), {})[0], y)
    want = (np.abs(x.astype(np.float64)) ** p).sum(axis=tuple(range(2, x.ndim)), keepdims=True) ** (1 / p)
    assert y.dtype == dtype
    np.testing.assert_allclose(y, want, rtol=2e-3 if dtype == np.float16 else 1e-5)


def test_what_no_one_implements_is_refused_when_loaded() -> None:
    node = N("Gradient", ["x"], ["y"], name="slope", domain="ai.onnx.preview.training", xs=["x"], y="x")
    proto = model([node], {"x": X}, [V("y", TensorProto.FLOAT)])
    with pytest.raises(UnsupportedModelError, match=r"'slope' \(Gradient\) has no implementation here: export the model for inference"):
        api.load(proto)


def test_the_list_of_what_no_one_implements_is_complete() -> None:
    """Of the latest definitions: those without a rule, a function, an operator of ours and one of onnx.reference."""
    from onnx.reference.ops import load_op
    from onnx.reference.ops.aionnx_preview_training import load_op as load_training
    from onnx.reference.ops.aionnxml import load_op as load_ml

    loaders = {"": load_op, "ai.onnx.ml": load_ml, "ai.onnx.preview.training": load_training}
    ours = {(op.op_domain, op.__name__) for op in OPERATORS}
    missing = set()
    for schema in onnx.defs.get_all_schemas():
        key = schema.domain, schema.name
        defined = schema.deprecated or schema.has_function or schema.has_context_dependent_function
        if key in ours or defined or has_rule(*key) or schema.domain not in loaders:
            continue
        try:
            loaders[schema.domain](schema.domain, schema.name, schema.since_version)
        except (NotImplementedError, RuntimeError):
            missing.add(key)
    assert missing <= set(UNRUNNABLE)
    assert not set(UNRUNNABLE) & ours
