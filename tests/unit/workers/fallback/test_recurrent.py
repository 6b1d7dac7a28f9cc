"""LSTM, GRU and RNN of workers beside onnxruntime's, over drawn shapes and attributes, and what onnxruntime does not have."""

from __future__ import annotations

import contextlib
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as hs
from kernel_graphs import run_model
from onnx import helper

from aspen_mp.planner import api
from aspen_mp.planner.frontends.runnable import PARAMETERS
from aspen_mp.shm.errors import ModelInvalidError, RequestError, UnsupportedModelError
from aspen_mp.workers.fallback import recurrent
from aspen_mp.workers.fallback.opaque_tile import Opaque

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
FUNCTIONS = {"LSTM": 3, "GRU": 2, "RNN": 1}
NAMES = {
    "LSTM": ["X", "W", "R", "B", "lens", "h0", "c0", "P"],
    "GRU": ["X", "W", "R", "B", "lens", "h0"],
    "RNN": ["X", "W", "R", "B", "lens", "h0"],
}
BOUNDED = ["Tanh", "Sigmoid", "HardSigmoid", "Softsign"]
"""Activations that cannot make an LSTM's state grow without bound, where errors of rounding would, too."""


def model(op: str, feeds: dict[str, Any], opset: int = 14, outputs: list[str] | None = None, **attributes: Any) -> onnx.ModelProto:
    outputs = outputs or ["Y", "Yh", "Yc"][: 3 if op == "LSTM" else 2]
    dtype = helper.np_dtype_to_tensor_dtype(feeds["X"].dtype)
    names = [name if name in feeds else "" for name in NAMES[op]]
    node = helper.make_node(op, names, outputs, name="layer", hidden_size=feeds["R"].shape[2], **attributes)
    infos = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in feeds.items()]
    results = [helper.make_tensor_value_info(n, dtype, None) for n in outputs if n]
    graph = helper.make_graph([node], "recurrent", infos, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def tensors(op: str, steps: int, batch: int, size: int, hidden: int, directions: int, seed: int, optional: set[str]) -> dict[str, Any]:
    rng, gates = np.random.default_rng(seed), GATES[op] * hidden
    shapes = {
        "X": (steps, batch, size),
        "W": (directions, gates, size),
        "R": (directions, gates, hidden),
        "B": (directions, 2 * gates),
        "h0": (directions, batch, hidden),
        "c0": (directions, batch, hidden),
        "P": (directions, 3 * hidden),
    }
    wanted = [n for n in NAMES[op] if n in {"X", "W", "R"} | optional]
    return {
        n: rng.integers(0, steps + 1, batch).astype(np.int32) if n == "lens" else rng.standard_normal(shapes[n], dtype=np.float32)
        for n in wanted
    }


def run(proto: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    return Opaque(proto).run(list(feeds.values()))


@hs.composite
def layers(draw: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """(operator, inputs, attributes)."""
    op = draw(hs.sampled_from(["LSTM", "GRU", "RNN"]))
    direction = draw(hs.sampled_from(["forward", "reverse", "bidirectional"]))
    directions = 1 + (direction == "bidirectional")
    sizes = [draw(hs.integers(1, most)) for most in (6, 4, 5, 5)]
    optional = draw(hs.sets(hs.sampled_from(NAMES[op][3:])))
    feeds = tensors(op, *sizes, directions, draw(hs.integers(0, 1000)), optional)
    attributes: dict[str, Any] = {"direction": direction}
    if draw(hs.booleans()):
        attributes["clip"] = draw(hs.sampled_from([0.1, 0.5, 3.0]))
    if draw(hs.booleans()):
        n = FUNCTIONS[op] * directions
        attributes["activations"] = [draw(hs.sampled_from(BOUNDED)) for _ in range(n)]
        takers = attributes["activations"].count("HardSigmoid")
        if takers and draw(hs.booleans()):
            for which in ("alpha", "beta"):
                attributes[f"activation_{which}"] = [draw(hs.sampled_from([0.1, 0.3, 0.6])) for _ in range(draw(hs.integers(1, takers)))]
    if op == "LSTM":
        attributes["input_forget"] = draw(hs.sampled_from([0, 1]))
    if op == "GRU":
        attributes["linear_before_reset"] = draw(hs.sampled_from([0, 1]))
    return op, feeds, attributes


@given(layers())
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
def test_as_onnxruntime(layer: tuple[str, dict[str, Any], dict[str, Any]]) -> None:
    op, feeds, attributes = layer
    proto = model(op, feeds, **attributes)
    want = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
    for got, expected in zip(run(proto, feeds), want, strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("name", PARAMETERS)
def test_every_activation(op: str, name: str) -> None:
    """With both parameters; onnxruntime's defaults are not all ONNX's."""
    feeds = tensors(op, 3, 2, 3, 2, 1, 1, {"B"})
    feeds = {n: x * np.float32(0.3) for n, x in feeds.items()}
    n = FUNCTIONS[op]
    given = {f"activation_{which}": [value] * n for which, value in (("alpha", 0.7), ("beta", 0.4)) if which[0] in PARAMETERS[name]}
    proto = model(op, feeds, activations=[name] * n, **given)
    want = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
    for got, expected in zip(run(proto, feeds), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_parameters_have_the_defaults_of_onnx() -> None:
    x = np.array([-2.0, 0.0, 0.5, 2.0])
    for name, want in {
        "Affine": x,
        "Elu": [np.expm1(-2), 0, 0.5, 2],
        "HardSigmoid": [0.1, 0.5, 0.6, 0.9],
        "LeakyRelu": [-0.02, 0, 0.5, 2],
        "ThresholdedRelu": [0, 0, 0, 2],
    }.items():
        feeds = {"X": x.reshape(1, 4, 1), "W": np.ones((1, 1, 1)), "R": np.zeros((1, 1, 1))}
        _, last = run(model("RNN", feeds, activations=[name]), feeds)
        np.testing.assert_allclose(last.reshape(-1), want, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_batch_first(op: str, direction: str) -> None:
    feeds = tensors(op, 5, 3, 4, 2, 1 + (direction == "bidirectional"), 3, {"B", "lens", "h0", "c0", "P"})
    plain = run(model(op, feeds, direction=direction), feeds)
    turned = {n: np.ascontiguousarray(x.swapaxes(0, 1)) if n in {"X", "h0", "c0"} else x for n, x in feeds.items()}
    y, *states = run(model(op, turned, direction=direction, layout=1), turned)
    np.testing.assert_array_equal(y, plain[0].transpose(2, 0, 1, 3))
    for state, want in zip(states, plain[1:], strict=True):
        np.testing.assert_array_equal(state, want.swapaxes(0, 1))


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize(("dtype", "error"), [(np.float64, 1e-5), (np.float16, 2e-3), (ml_dtypes.bfloat16, 2e-2)])
def test_other_types(op: str, dtype: Any, error: float) -> None:
    feeds = tensors(op, 4, 2, 3, 3, 1, 5, {"B", "lens", "h0", "c0", "P"})
    other = {n: x if n == "lens" else x.astype(dtype) for n, x in feeds.items()}
    exact = {n: x if n == "lens" else x.astype(np.float64) for n, x in other.items()}
    for got, want in zip(run(model(op, other, 22), other), run(model(op, exact, 22), exact), strict=True):
        assert got.dtype == dtype
        np.testing.assert_allclose(got.astype(np.float64), want, atol=error)


def test_behind_the_end_of_a_sequence() -> None:
    feeds = tensors("LSTM", 5, 2, 3, 4, 2, 7, {"B"}) | {"lens": np.array([5, 3], np.int32)}
    y, h, _ = run(model("LSTM", feeds, direction="bidirectional"), feeds)
    assert not y[3:, :, 1].any()
    np.testing.assert_array_equal(h[0], [y[4, 0, 0], y[2, 0, 1]])
    np.testing.assert_array_equal(h[1], y[0, 1])
    short = feeds | {"X": feeds["X"][:3, 1:], "lens": np.array([3], np.int32)}
    alone, *_ = run(model("LSTM", short, direction="bidirectional"), short)
    np.testing.assert_allclose(y[:3, :, 1:], alone, atol=1e-6)


@pytest.mark.parametrize(("op", "outputs"), [("LSTM", ["", "", "c"]), ("LSTM", ["y"]), ("GRU", ["", "h"])])
@pytest.mark.parametrize("constant", [False, True])
def test_missing_outputs_through_the_planner(op: str, outputs: list[str], constant: bool) -> None:
    """Also where every input is a constant, which must not be computed by another implementation."""
    feeds = tensors(op, 4, 2, 3, 3, 1, 9, {"lens", "h0"})
    whole = run(model(op, feeds, clip=0.4), feeds)
    proto = model(op, feeds, outputs=outputs, clip=0.4)
    if constant:
        proto.graph.initializer.extend(onnx.numpy_helper.from_array(x, n) for n, x in feeds.items())
        del proto.graph.input[:]
    (got,) = run_model(api.load(proto), {} if constant else feeds)
    np.testing.assert_array_equal(got, whole[next(k for k, name in enumerate(outputs) if name)])


@pytest.mark.parametrize(
    ("op", "attributes", "words"),
    [
        ("RNN", {"activations": ["Swish"]}, "'Swish'.*Use some of Affine"),
        ("LSTM", {"activations": ["Tanh"]}, "1 activations where 3 belong"),
        ("GRU", {"activations": ["Sigmoid", "Tanh"], "direction": "bidirectional"}, "2 activations where 4 belong"),
        ("RNN", {"activations": ["ScaledTanh"], "activation_alpha": [1.0]}, "give it its activation_beta"),
        ("LSTM", {"direction": "sideways"}, "'sideways', not one of forward"),
        ("GRU", {"layout": 2}, "layout 2"),
    ],
)
def test_refused_when_loaded(op: str, attributes: dict[str, Any], words: str) -> None:
    feeds = tensors(op, 2, 1, 1, 1, 1 + (attributes.get("direction") == "bidirectional"), 0, set())
    with pytest.raises(UnsupportedModelError, match=f"'layer' \\({op}\\) .*{words}"):
        api.load(model(op, feeds, **attributes))
    with pytest.raises(RequestError):  # whatever comes here in another way
        run(model(op, feeds, **attributes), feeds)


@pytest.mark.parametrize("name", ["activations", "direction", "layout", "activation_alpha", "clip"])
def test_attributes_of_a_wrong_type(name: str) -> None:
    feeds = tensors("RNN", 2, 1, 1, 1, 1, 0, set())
    for value in (1.5, [1.5], "x", ["x"], 7, [7]):
        with contextlib.suppress(ModelInvalidError, UnsupportedModelError):
            api.load(model("RNN", feeds, **{name: value}))


def test_activations_are_those_of_workers() -> None:
    assert {name.lower() for name in PARAMETERS} == recurrent.ACTIVATIONS


@pytest.mark.parametrize(("name", "value"), [("lens", [1, 3]), ("lens", [-1, 2]), ("lens", [2]), ("h0", [[[1.0]]])])
def test_inputs_that_do_not_fit(name: str, value: Any) -> None:
    feeds = tensors("GRU", 2, 2, 1, 1, 1, 0, set()) | {name: np.array(value, np.int32 if name == "lens" else np.float32)}
    with pytest.raises(RequestError, match=r"sequence_lens|initial state"):
        run(model("GRU", feeds), feeds)
