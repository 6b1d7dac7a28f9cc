"""`ASPEN_MP_AMX` reaches planner and workers: whole networks by the twin of AMX. Products of bytes keep their bits. Those of bf16 stay
near the network in f32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import aspen_mp
from aspen_mp.bench import models
from aspen_mp.bench.agreement import error_of
from aspen_mp.control.planning.local_rates import fast_pairs

SWITCH = "ASPEN_MP_AMX"
NEAR = 5e-2
"""Rounding of factors to 8 bits of mantissa, as a share of the largest output."""
Array = np.ndarray[Any, np.dtype[Any]]


class Bytes:
    """A network of products of bytes, layer by layer: values are i8 or u8, and each product's result becomes bytes again."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.rng, self.shape = np.random.default_rng(3), shape
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.value = self._add("QuantizeLinear", "x", self._constant(np.float32(0.02)), self._constant(np.uint8(119)))

    def _constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def _add(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attrs))
        return name

    def product(self, op: str, *shape: int, **attrs: Any) -> None:
        """A product with i8 weights of a scale for each column, a bias, and relu."""
        axis = len(shape) - 1 if op == "MatMul" else 0
        scales = self.rng.uniform(1e-3, 2e-3, shape[axis]).astype(np.float32)
        scale, zero = self._constant(scales), self._constant(np.zeros(shape[axis], np.int8))
        weights = self._constant(self.rng.integers(-127, 128, shape).astype(np.int8))
        x = self._add("DequantizeLinear", self.value, self._constant(np.float32(0.02)), self._constant(np.uint8(119)))
        w = self._add("DequantizeLinear", weights, scale, zero, axis=axis)
        bias = self.rng.standard_normal(shape[axis]).astype(np.float32)
        if op == "MatMul":
            y = self._add("Add", self._add("MatMul", x, w), self._constant(bias))
        else:
            y = self._add("Conv", x, w, self._constant(bias), **attrs)
        self.value = self._add("QuantizeLinear", self._add("Relu", y), self._constant(np.float32(0.02)), self._constant(np.uint8(119)))

    def model(self) -> onnx.ModelProto:
        y = self._add("DequantizeLinear", self.value, self._constant(np.float32(0.02)), self._constant(np.uint8(119)))
        given, made = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", self.shape), (y, None)))
        graph = helper.make_graph(self.nodes, "bytes", [given], [made], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


def perceptron() -> onnx.ModelProto:
    net = Bytes((37, 130))
    for terms, columns in ((130, 515), (515, 70), (70, 10)):
        net.product("MatMul", terms, columns)
    return net.model()


def convolutions() -> onnx.ModelProto:
    net = Bytes((2, 3, 21, 23))
    net.product("Conv", 40, 3, 3, 3, strides=[2, 2], pads=[1, 1, 1, 1])
    net.product("Conv", 70, 40, 1, 1)
    net.product("Conv", 33, 70, 3, 3, dilations=[2, 2])
    return net.model()


def results(model: onnx.ModelProto, workers: int = 2, **options: Any) -> list[Array]:
    rng = np.random.default_rng(0)
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    feeds = models.inputs(model) if len(model.graph.input) > 1 else {model.graph.input[0].name: rng.standard_normal(shape, np.float32)}
    with aspen_mp.Runtime(workers=workers) as runtime:
        found = runtime.load(model, **options).run(feeds)
    return [found[value.name] for value in model.graph.output]


@pytest.mark.parametrize("build", [perceptron, convolutions])
def test_products_of_bytes_keep_their_bits(build: Callable[[], onnx.ModelProto], monkeypatch: pytest.MonkeyPatch) -> None:
    model = build()
    wanted = results(model)[0]
    assert len(np.unique(wanted)) > 50
    for value in ("twin", "on", "off"):
        monkeypatch.setenv(SWITCH, value)
        assert results(model)[0].tobytes() == wanted.tobytes()


def test_transformer_in_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.build("bert_base", batch=1, seq=19, **models.miniature("bert_base"))
    exact, rounded = results(model), results(model, precision="bf16")
    monkeypatch.setenv(SWITCH, "twin")
    assert [x.tobytes() for x in results(model)] == [x.tobytes() for x in exact], "plans in f32 are as they were"
    found = results(model, precision="bf16")
    assert 1e-5 < error_of(found, exact) <= NEAR
    assert [x.tobytes() for x in found] != [x.tobytes() for x in rounded], "the order of sums is another"
    assert [x.tobytes() for x in found] == [x.tobytes() for x in results(model, workers=1, precision="bf16")]
    assert fast_pairs() or [x.tobytes() for x in rounded] == [x.tobytes() for x in exact]
