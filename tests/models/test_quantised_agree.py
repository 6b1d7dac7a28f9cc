"""Networks whose weights a tool has made bytes: as near to the network in floats as onnxruntime's run of them, in any legal order, with the
same bits for any tiling."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from kernel_runner import KernelRunner, WeightStore
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from test_plans_agree import RUNS, planned

from aspen_mp.bench import models
from aspen_mp.bench.agreement import LIMIT, digest_of, error_of, reference

Array = np.ndarray[Any, np.dtype[Any]]
FURTHER = 1.15
"""How much further from the network in floats a result may be than onnxruntime's: values that two runtimes round to other levels add up."""
KINDS = [(QuantType.QInt8, False), (QuantType.QInt8, True), (QuantType.QUInt8, False), (QuantType.QUInt8, True)]
NAMES = ["i8", "i8-columns", "u8", "u8-columns"]


def quantised(model: onnx.ModelProto, folder: Path, kind: QuantType, columns: bool) -> onnx.ModelProto:
    quantize_dynamic(model, folder / "q.onnx", weight_type=kind, per_channel=columns, reduce_range=False)
    return onnx.load(folder / "q.onnx")


def check(
    model: onnx.ModelProto,
    feeds: Mapping[str, Array],
    want: list[Array],
    most: float,
    products: int,
    kernels: Sequence[str] = ("QGEMM",),
    measure: Callable[[Sequence[Array], Sequence[Array]], float] = error_of,
) -> None:
    """Results of plans, run tile by tile, are no further from `want` than `most`. `products`: of bytes by `kernels`, at least so many."""
    data, store = model.SerializeToString(), WeightStore()
    digests: dict[str, str] = {}
    runners: dict[int, KernelRunner] = {}
    for seed, (workers, order, isa) in enumerate(RUNS):
        if workers not in runners:
            stage = planned(data, feeds, workers)
            assert not stage.opaque
            assert sum(row.kernel in kernels for row in stage.plan.info) >= products
            runners[workers] = KernelRunner(stage.plan, store)
        found = dict(zip((i.name for i in runners[workers].plan.outputs), runners[workers].run(feeds, order, seed, isa), strict=True))
        outputs = [found[value.name] for value in model.graph.output]
        assert measure(outputs, want) <= most, f"planned for {workers}, {order}, {isa}"
        digest = digest_of(outputs)
        assert digest == digests.setdefault(isa, digest), f"other bits when planned for {workers}, {order}, {isa}"


@pytest.mark.parametrize(("kind", "columns"), KINDS, ids=NAMES)
@pytest.mark.parametrize("name", ["bert_base", "gpt2", "vit_b_16"])
def test_network(name: str, kind: QuantType, columns: bool, tmp_path: Path) -> None:
    model = models.build(name, batch=2, seq=37, **models.miniature(name))
    feeds = models.inputs(model)
    want = reference(model.SerializeToString(), feeds)
    smaller = quantised(model, tmp_path, kind, columns)
    theirs = error_of(reference(smaller.SerializeToString(), feeds), want)
    products = [node.op_type for node in smaller.graph.node].count("MatMulInteger")
    assert products
    check(smaller, feeds, want, FURTHER * theirs, products)


@pytest.mark.parametrize(("kind", "columns"), KINDS, ids=NAMES)
@pytest.mark.parametrize("shape", [(1, 300), (5, 300), (2, 3, 33, 64)], ids=str)
def test_layer(shape: tuple[int, ...], kind: QuantType, columns: bool, tmp_path: Path) -> None:
    """One product: the definition's result, but for how factors are rounded."""
    rng = np.random.default_rng(9)
    w, b = rng.standard_normal((shape[-1], 70), dtype=np.float32), rng.standard_normal(70, dtype=np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", shape), ("y", (*shape[:-1], 70))))
    graph = helper.make_graph(nodes, "layer", [x], [y], [numpy_helper.from_array(w, "w"), numpy_helper.from_array(b, "b")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    smaller = quantised(model, tmp_path, kind, columns)
    feeds = {"x": rng.standard_normal(shape, dtype=np.float32)}
    want = ReferenceEvaluator(smaller).run(None, feeds)
    check(smaller, feeds, list(want), LIMIT, 1)
    (plain,) = reference(model.SerializeToString(), feeds)
    theirs = error_of(reference(smaller.SerializeToString(), feeds), [plain])
    check(smaller, feeds, [plain], FURTHER * theirs, 1)


# ---------------------------------------------------------------------------------------------------------------- quantised statically


def distance(ours: Sequence[Array], theirs: Sequence[Array]) -> float:
    """The root of the mean square: where every layer rounds to levels, the worst element is one of chance."""
    assert all(x.shape == y.shape and x.dtype == y.dtype for x, y in zip(ours, theirs, strict=True))
    return max(float(np.sqrt(np.square(x.astype(np.float64) - y).mean())) for x, y in zip(ours, theirs, strict=True))


class Samples(CalibrationDataReader):
    """A few inputs, to find out what values there are."""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        rng = np.random.default_rng(2)
        self.left = [{name: rng.standard_normal(shape, dtype=np.float32)} for _ in range(4)]

    def get_next(self) -> dict[str, Array] | None:
        return self.left.pop() if self.left else None


class Layers:
    """A model under construction."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.rng = np.random.default_rng(5)
        self.shape = shape
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[TensorProto] = []

    def weight(self, *shape: int, terms: int = 1) -> str:
        name = f"w{len(self.weights)}"
        value = self.rng.standard_normal(shape, dtype=np.float32) / np.float32(terms**0.5)
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def constant(self, value: Any) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(value), f"w{len(self.weights)}"))
        return self.weights[-1].name

    def __call__(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=f"n{len(self.nodes)}", **attrs))
        return name

    def conv(self, x: str, inputs: int, outputs: int, kernel: int, stride: int = 1, group: int = 1) -> str:
        w = self.weight(outputs, inputs // group, kernel, kernel, terms=inputs // group * kernel * kernel)
        more = {} if group == 1 else {"group": group}
        return self("Conv", x, w, self.weight(outputs), pads=[kernel // 2] * 4, strides=[stride] * 2, **more)

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        return self("Add", self("MatMul", x, self.weight(inputs, outputs, terms=inputs)), self.weight(outputs))

    def model(self, output: str) -> onnx.ModelProto:
        info = helper.make_tensor_value_info
        ends = [info("x", TensorProto.FLOAT, self.shape)], [info(output, TensorProto.FLOAT, None)]
        graph = helper.make_graph(self.nodes, "layers", *ends, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def convolutions() -> onnx.ModelProto:
    b = Layers((2, 3, 21, 19))
    x = b("Relu", b.conv("x", 3, 17, 5, stride=2))
    x = b("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    y = b.conv(b("Relu", b.conv(b("Relu", b.conv(x, 17, 8, 1)), 8, 40, 3)), 40, 17, 1)
    x = b("Relu", b("Add", x, y))
    x = b("Relu", b.conv(x, 17, 36, 3, stride=2))
    x = b("Flatten", b("GlobalAveragePool", x))
    return b.model(b("Gemm", x, b.weight(10, 36, terms=36), b.weight(10), transB=1))


def inverted_residuals() -> onnx.ModelProto:
    """MobileNetV2 and MnasNet in small: blocks that expand, convolve channels by themselves, and project."""
    b = Layers((2, 3, 25, 22))

    def block(x: str, inputs: int, wide: int, outputs: int, size: int, stride: int) -> str:
        y = relu6(b.conv(x, inputs, wide, 1))
        y = relu6(b.conv(y, wide, wide, size, stride, wide))
        y = b.conv(y, wide, outputs, 1)
        return b("Add", x, y) if inputs == outputs and stride == 1 else y

    def relu6(x: str) -> str:
        return b("Clip", x, b.constant(np.float32(0)), b.constant(np.float32(6)))

    x = relu6(b.conv("x", 3, 17, 3, stride=2))
    for shape in ((17, 17, 12, 3, 1), (12, 70, 24, 3, 2), (24, 144, 24, 5, 1), (24, 40, 24, 3, 1), (24, 96, 33, 5, 2)):
        x = block(x, *shape)
    x = b("Flatten", b("GlobalAveragePool", relu6(b.conv(x, 33, 64, 1))))
    return b.model(b("Gemm", x, b.weight(10, 64, terms=64), b.weight(10), transB=1))


def transformer() -> onnx.ModelProto:
    b, width, heads = Layers((2, 13, 48)), 48, 4

    def norm(x: str) -> str:
        return b("LayerNormalization", x, b.constant(np.ones(width, np.float32)), b.weight(width, terms=100), axis=-1)

    def head(x: str, perm: list[int]) -> str:
        split = b("Reshape", b.linear(x, width, width), b.constant(np.array([0, 0, heads, width // heads])))
        return b("Transpose", split, perm=perm)

    x = norm("x")
    q, k, v = (head(x, perm) for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
    scores = b("Softmax", b("Mul", b("MatMul", q, k), b.constant(np.float32((width // heads) ** -0.5))), axis=-1)
    seen = b("Reshape", b("Transpose", b("MatMul", scores, v), perm=[0, 2, 1, 3]), b.constant(np.array([0, 0, width])))
    x = b("Add", "x", b.linear(seen, width, width))
    y = b.linear(norm(x), width, 2 * width)
    y = b("Mul", y, b("Sigmoid", y))
    return b.model(b("Add", x, b.linear(y, 2 * width, width)))


@pytest.mark.parametrize("columns", [False, True], ids=["one", "columns"])
@pytest.mark.parametrize("stored", [QuantType.QInt8, QuantType.QUInt8], ids=["i8", "u8"])
@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator], ids=["pairs", "operators"])
@pytest.mark.parametrize(
    ("make", "products"),
    [(convolutions, 6), (transformer, 6), (inverted_residuals, 17)],
    ids=["convolutions", "transformer", "inverted-residuals"],
)
def test_static(
    make: Callable[[], onnx.ModelProto], products: int, form: QuantFormat, stored: QuantType, columns: bool, tmp_path: Path
) -> None:
    model = make()
    onnx.save(model, tmp_path / "m.onnx")
    shape = tuple(d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim)
    options = {"quant_format": form, "per_channel": columns, "activation_type": QuantType.QUInt8, "weight_type": stored}
    quantize_static(tmp_path / "m.onnx", tmp_path / "q.onnx", Samples("x", shape), **options)
    smaller = onnx.load(tmp_path / "q.onnx")
    feeds = {"x": np.random.default_rng(8).standard_normal(shape, dtype=np.float32)}
    want = reference(model.SerializeToString(), feeds)
    found = reference(smaller.SerializeToString(), feeds)
    assert 0 < error_of(found, want) < 0.2
    check(smaller, feeds, want, FURTHER * distance(found, want), products, ("QGEMM", "QCONV", "QDWCONV"), distance)


def as_floats(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with what DequantizeLinear makes of constants as floats."""
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in plain.graph.initializer}
    for node in [n for n in plain.graph.node if n.op_type == "DequantizeLinear"]:
        graph = helper.make_graph([node], "weight", [], [helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None)])
        graph.initializer.extend(t for t in plain.graph.initializer if t.name in node.input)
        single = helper.make_model(graph, opset_imports=plain.opset_import, ir_version=plain.ir_version)
        (value,) = ReferenceEvaluator(single).run(None, {})
        plain.graph.initializer.append(numpy_helper.from_array(value, node.output[0]))
        plain.graph.node.remove(node)
    left = [t for t in plain.graph.initializer if values.get(t.name, np.empty(0)).dtype.name != "int4"]
    del plain.graph.initializer[:]
    plain.graph.initializer.extend(left)
    return plain


@pytest.mark.parametrize(("seq", "options"), [(1, {"cache": True, "past": 21}), (5, {}), (37, {})], ids=["step", "few", "many"])
def test_decoder_in_four_bits(seq: int, options: dict[str, Any]) -> None:
    """As near to the network with the same weights as floats as any other network."""
    model = models.build("smollm2_135m", batch=2, seq=seq, dtype="int4", **models.miniature("smollm2_135m"), **options)
    feeds = models.inputs(model)
    want = reference(as_floats(model).SerializeToString(), feeds)
    products = sum(node.op_type == "DequantizeLinear" for node in model.graph.node)
    assert products == 2 * 7 + 1
    check(model, feeds, want, LIMIT, 2 * 5 + 1, ("QNBITGEMM",))
