"""Lowering, passes and stages against ONNX's own node tests: each model is lowered and run kernel by kernel, as it stands and once more
with all inputs but the first as constants, which is how weights reach the packing rules."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from kernel_graphs import run_model
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from aspen_mp.planner import api
from aspen_mp.planner.ir.graph import Tensor
from aspen_mp.planner.lower.builder import Builder
from aspen_mp.planner.lower.signs import Sign, sign_of

ELSEWHERE = {
    r"bernoulli": "random",
    r"image_decoder": "needs Pillow",
    r"if_opt": "onnx.reference wraps an optional sequence once more",
}
"""Cases whose difference is not the planner's, and why."""

ROUNDING = {"float16": 2e-3, "bfloat16": 2e-2}  # relative; kernels round once where the reference rounds after each step


@lru_cache(maxsize=1)
def cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case import node

        found = node.collect_testcases(None)
    return [c for c in found if c.model is not None and c.data_sets and not any(re.search(p, c.name) for p in ELSEWHERE)]


def array(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def difference(got: Any, want: Any, rtol: float, atol: float) -> str:
    """Empty, or what differs."""
    if isinstance(want, list):
        if len(got) != len(want):
            return f"{len(got)} elements, not {len(want)}"
        return next((d for g, w in zip(got, want, strict=True) if (d := difference(g, w, rtol, atol))), "")
    if want is None:
        return "" if got is None else "a value, not none"
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape:
        return f"shape {got.shape}, not {want.shape}"
    if want.dtype.kind in "OUS":
        return "" if (got == want).all() else "other strings"
    if got.dtype != want.dtype:
        return f"dtype {got.dtype}, not {want.dtype}"
    if want.dtype.kind in "iub":
        return "" if np.array_equal(got, want) else f"{got.reshape(-1)[:6]}, not {want.reshape(-1)[:6]}"
    rtol = max(rtol, ROUNDING.get(want.dtype.name, 0.0))
    if want.dtype.kind != "c":
        got, want = got.astype(np.float64), want.astype(np.float64)
    finite = np.abs(want[np.isfinite(want)])
    atol = max(atol, 1e-6, rtol * float(finite.max()) * 1e-2 if finite.size else 0.0, rtol if rtol >= 2e-3 else 0.0)
    return "" if np.allclose(got, want, rtol=rtol, atol=atol, equal_nan=True) else f"error {np.nanmax(np.abs(got - want))}"


def failures(run: Any) -> Iterator[str]:
    for case in cases():
        for inputs, outputs in case.data_sets:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    wrong = run(case, [array(x) for x in inputs], [array(x) for x in outputs])
            except Exception as error:
                wrong = f"{type(error).__name__}: {error}"
            if wrong:
                yield f"{case.name}: {wrong[:300]}"


def compare(model: onnx.ModelProto, feeds: dict[str, Any], wanted: list[Any], case: Any) -> str:
    got = run_model(api.load(model), feeds)
    return "; ".join(d for g, w in zip(got, wanted, strict=True) if (d := difference(g, w, case.rtol, case.atol)))


def test_node_models() -> None:
    def run(case: Any, inputs: list[Any], outputs: list[Any]) -> str:
        return compare(case.model, dict(zip([i.name for i in case.model.graph.input], inputs, strict=True)), outputs, case)

    wrong = list(failures(run))
    assert not wrong, "\n".join(wrong)


def test_node_models_with_constants() -> None:
    def run(case: Any, inputs: list[Any], outputs: list[Any]) -> str:
        plain = [isinstance(x, np.ndarray) and x.dtype.kind not in "OUS" for x in inputs]
        if len(inputs) < 2 or not all(plain[1:]):
            return ""
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        names = [i.name for i in model.graph.input]
        model.graph.initializer.extend(numpy_helper.from_array(x, n) for n, x in zip(names[1:], inputs[1:], strict=True))
        del model.graph.input[1:]
        model.ir_version = max(model.ir_version, 4)
        return compare(model, {names[0]: inputs[0]}, outputs, case)

    wrong = list(failures(run))
    assert not wrong, "\n".join(wrong)


def single(
    op: str, inputs: dict[str, np.ndarray], dtype: Any = np.float32, constants: tuple[str, ...] = (), opset: int = 21, **attrs: Any
) -> onnx.ModelProto:
    """A model of one node whose inputs are named and whose output has `dtype`; inputs in `constants` are initializers."""
    kinds = {n: helper.np_dtype_to_tensor_dtype(x.dtype) for n, x in inputs.items()}
    infos = [helper.make_tensor_value_info(n, kinds[n], x.shape) for n, x in inputs.items() if n not in constants]
    result = helper.make_tensor_value_info("out", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), None)
    node = helper.make_node(op, list(inputs), ["out"], **attrs)
    graph = helper.make_graph([node], op, infos, [result], [numpy_helper.from_array(inputs[n], n) for n in constants])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def check(
    op: str,
    inputs: dict[str, np.ndarray],
    constants: tuple[str, ...] = (),
    kernels: set[str] | None = None,
    rounding: float = 1e-5,
    **attrs: Any,
) -> None:
    model = single(op, inputs, constants=constants, **attrs)
    feeds = {n: x for n, x in inputs.items() if n not in constants}
    want = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
    counts: dict[str, int] = {}
    got = run_model(api.load(model), feeds, counts=counts)
    assert not difference(got[0], want[0], rounding, rounding)
    assert "OPAQUE" not in counts
    assert kernels is None or kernels <= set(counts)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    "equation", ["bij,bjk->bik", "ij,jk", "bhid,bhjd->bhij", "...ij,...jk->...ik", "bid,jd->bij", "bi,bi->b", "i,j->ij", "ijk,k->ji"]
)
def test_einsum(equation: str) -> None:
    sizes = {"b": 2, "h": 3, "i": 4, "j": 5, "k": 6, "d": 7}
    terms = equation.split("->", maxsplit=1)[0].split(",")
    shapes = [tuple(sizes[c] for c in t.replace("...", "bh")) for t in terms]
    check("Einsum", {f"x{k}": normal(*s) for k, s in enumerate(shapes)}, kernels={"GEMM"}, equation=equation)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(
    "attrs",
    [
        {},
        {"strides": [2, 3]},
        {"strides": [2, 2], "pads": [1, 0, 1, 2], "output_padding": [1, 1]},
        {"dilations": [2, 1]},
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    ],
)
def test_transposed_convolution(groups: int, attrs: dict[str, Any]) -> None:
    inputs = {"x": normal(2, 4, 5, 6), "w": normal(4, 8 // groups if groups < 4 else 1, 3, 2), "b": normal(8 if groups < 4 else 4)}
    check("ConvTranspose", inputs, ("w", "b"), group=groups, **attrs)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    ("kernel", "stride", "pads", "extra"),
    [(4, 2, 1, 0), (2, 2, 0, 0), (3, 2, 1, 1), (2, 3, 0, 1), (5, 3, 4, 2), (2, 2, 0, 1), (3, 1, 1, 0)],
)
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_transposed_convolution_over_axes(axes: int, groups: int, kernel: int, stride: int, pads: int, extra: int) -> None:
    """Strides that divide the kernel and others, pads before all windows, outputs that no window reaches."""
    inputs = {"x": normal(2, 4, *(4, 5, 3)[:axes]), "w": normal(4, 3, *[kernel] * axes), "b": normal(3 * groups)}
    attrs = {"strides": [stride] * axes, "pads": [pads] * 2 * axes, "output_padding": [extra] * axes}
    check("ConvTranspose", inputs, ("w", "b"), group=groups, **attrs)


VOLUMES: list[tuple[tuple[int, int, int], dict[str, Any]]] = [
    ((3, 3, 3), {"pads": [1] * 6}),
    ((3, 3, 3), {"pads": [1, 0, 2, 0, 1, 1], "strides": [2, 1, 2]}),
    ((2, 3, 1), {"dilations": [3, 2, 1], "pads": [1, 2, 0, 0, 1, 0]}),
    ((1, 3, 3), {"pads": [0, 1, 1, 0, 1, 1], "strides": [2, 1, 1]}),
    ((3, 1, 1), {"pads": [1, 0, 0, 1, 0, 0]}),
    ((3, 2, 2), {"pads": [1, 0, 0, 1, 1, 1]}),
    ((1, 1, 3), {"pads": [0, 0, 1, 0, 0, 1], "strides": [1, 1, 2]}),
    ((1, 1, 1), {}),
    ((1, 1, 1), {"strides": [2, 2, 2]}),
    ((3, 2, 2), {"auto_pad": "SAME_UPPER", "strides": [1, 2, 2]}),
    ((3, 2, 2), {"auto_pad": "SAME_LOWER"}),
]


@pytest.mark.parametrize(("kernel", "attrs"), VOLUMES)
@pytest.mark.parametrize(("channels", "outputs", "groups"), [(3, 5, 1), (16, 32, 1), (8, 8, 8), (8, 16, 4)])
@pytest.mark.parametrize("const", [True, False])
def test_convolution_over_three_axes(
    channels: int, outputs: int, groups: int, kernel: tuple[int, int, int], attrs: dict[str, Any], const: bool
) -> None:
    inputs = {"x": normal(2, channels, 5, 6, 7), "w": normal(outputs, channels // groups, *kernel), "b": normal(outputs)}
    check("Conv", inputs, ("w", "b") if const else (), rounding=1e-3, group=groups, **attrs)  # blocks of Winograd's round more


@pytest.mark.parametrize(("kernel", "attrs"), VOLUMES)
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
def test_pooling_over_three_axes(op: str, kernel: tuple[int, int, int], attrs: dict[str, Any]) -> None:
    if op == "LpPool":
        attrs = {**attrs, "p": 1}
    check(op, {"x": normal(2, 3, 8, 6, 7)}, kernels={"POOL"} if max(kernel) > 1 else None, kernel_shape=list(kernel), **attrs)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_padding_where_the_window_is_flat(axis: int) -> None:
    """Zeros behind the last element of an axis along which the window sees one: bias alone."""
    pads, kernel = [0] * 6, [1, 1, 1]
    pads[3 + axis] = 2
    kernel[axis - 1] = 3
    inputs = {"x": normal(2, 3, 4, 5, 6), "w": normal(4, 3, *kernel), "b": normal(4)}
    check("Conv", inputs, ("w", "b"), pads=pads)


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("ceil", [0, 1])
def test_averages_at_the_border(ceil: int, count: int) -> None:
    attrs = {"kernel_shape": [3, 2, 3], "strides": [2, 2, 3], "pads": [1, 0, 1, 1, 1, 1], "ceil_mode": ceil, "count_include_pad": count}
    check("AveragePool", {"x": normal(1, 2, 6, 7, 8)}, kernels={"POOL"}, **attrs)


def test_indices_of_maxima_over_three_axes() -> None:
    node = helper.make_node("MaxPool", ["x"], ["y", "i"], kernel_shape=[2, 2, 2])
    infos = [helper.make_tensor_value_info(n, t, None) for n, t in (("y", 1), ("i", 7))]
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", 1, (1, 2, 4, 4, 4))], infos)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    feeds = {"x": normal(1, 2, 4, 4, 4)}
    wanted = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
    for got, want in zip(run_model(api.load(model), feeds), wanted, strict=True):
        assert not difference(got, want, 1e-6, 0)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
@pytest.mark.parametrize("strides", [[1, 1], [2, 3]])
def test_convolution_pads(auto_pad: str, strides: list[int]) -> None:
    check("Conv", {"x": normal(1, 3, 7, 8), "w": normal(5, 3, 3, 2)}, ("w",), kernels={"CONV"}, auto_pad=auto_pad, strides=strides)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ((4,), (4,)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((2, 3, 4), (4, 5)),
        ((2, 3, 4), (2, 4, 5)),
        ((2, 1, 3, 4), (5, 4, 6)),
        ((40, 4), (3, 4, 2)),
    ],
)
@pytest.mark.parametrize("constants", [(), ("y",), ("x",)])
def test_matmul_ranks(x: tuple[int, ...], y: tuple[int, ...], constants: tuple[str, ...]) -> None:
    check("MatMul", {"x": normal(*x), "y": normal(*y)}, constants, {"GEMM"})


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
def test_quantisation(dtype: Any) -> None:
    scale = np.array([0.1, 0.25, 0.5], np.float32)
    zero = np.array([3, 0, 7], dtype)
    x = normal(2, 3, 4) * 20
    model = single("QuantizeLinear", {"x": x, "s": scale, "z": zero}, dtype, ("s", "z"), axis=1)
    want = ReferenceEvaluator(model).run(None, {"x": x})[0]
    got = run_model(api.load(model), {"x": x})[0]
    assert not difference(got, want, 0, 0)
    back = single("DequantizeLinear", {"q": got, "s": scale, "z": zero}, constants=("s", "z"), axis=1)
    counts: dict[str, int] = {}
    again = run_model(api.load(back), {"q": got}, counts=counts)[0]
    assert not difference(again, ReferenceEvaluator(back).run(None, {"q": got})[0], 1e-6, 1e-6)
    assert "OPAQUE" not in counts


@pytest.mark.parametrize("exponent", [0.5, -0.5])
def test_powers_of_a_half_are_no_roots(exponent: float) -> None:
    """Of -0 and -∞ the power is +0 and +∞, or the other way round."""
    x = np.array([-0.0, 0.0, -np.inf, np.inf, 4.0, -4.0, np.nan, 0.25] * 3, np.float32)
    model = single("Pow", {"x": x, "y": np.float32(exponent)}, constants=("y",))
    (got,) = run_model(api.load(model), {"x": x})
    want = [0.0, 0.0, np.inf, np.inf, 2.0, np.nan, np.nan, 0.5] if exponent > 0 else [np.inf, np.inf, 0.0, 0.0, 0.5, np.nan, np.nan, 2.0]
    assert not difference(got, np.array(want * 3, np.float32), 1e-6, 0)
    assert not np.signbit(got[~np.isnan(got)]).any()


@pytest.mark.parametrize(
    "attrs",
    [
        *({"scale": x} for x in (0.0, np.inf, -np.inf, np.nan)),
        *({"softcap": x} for x in (2.0, -1.0, np.inf, -np.inf, np.nan)),
        *({"is_causal": x} for x in (-1, 2**53)),
        {"is_causal": 1, "scale": np.inf},
    ],
    ids=str,
)
def test_attention_attributes(attrs: dict[str, Any]) -> None:
    """A scale of 0 is one, what is no positive cap caps nothing, and what is not finite gives what the definition gives."""
    inputs = {name: normal(2, 3, length, 8) for name, length in (("q", 4), ("k", 5), ("v", 6))}
    inputs["v"] = inputs["v"][:, :, :5]
    model = single("Attention", inputs, opset=23, **attrs)
    with np.errstate(all="ignore"):
        (want,) = ReferenceEvaluator(model).run(None, inputs)
        (got,) = run_model(api.load(model), inputs)
    assert not difference(got, want, 1e-5, 1e-5)


@pytest.mark.parametrize("flat", [False, True])
def test_attention_gives_keys_and_values_that_have_no_past(flat: bool) -> None:
    """Whose shapes ONNX's inference does not know."""
    inputs = {name: normal(2, 3, 4, 8) for name in ("q", "k", "v")}
    attrs: dict[str, Any] = {"q_num_heads": 3, "kv_num_heads": 3} if flat else {}
    feeds = {name: x.transpose(0, 2, 1, 3).reshape(2, 4, 24) if flat else x for name, x in inputs.items()}
    node = helper.make_node("Attention", list(feeds), ["y", "present_k", "present_v"], **attrs)
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, x.shape) for name, x in feeds.items()]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in node.output]
    graph = helper.make_graph([node], "presents", infos, outputs)
    counts: dict[str, int] = {}
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])
    _, keys, values = run_model(api.load(model), feeds, counts=counts)
    assert np.array_equal(keys, inputs["k"])
    assert np.array_equal(values, inputs["v"])
    assert "OPAQUE" not in counts


X = Tensor("x", (3, 4), np.dtype(np.float32))


@pytest.mark.parametrize(
    ("make", "sign"),
    [
        (lambda b: X, Sign.ANY),
        (lambda b: b.unary("SQUARE", X), Sign.PLUS),
        (lambda b: b.binary("MUL", X, X), Sign.PLUS),
        (lambda b: b.binary("MUL", X, b.unary("ABS", X)), Sign.ANY),
        (lambda b: b.unary("RELU", X), Sign.NOT_BELOW),
        (lambda b: b.binary("ADD", b.unary("RELU", X), b.constant(np.float32(1e-5))), Sign.PLUS),
        (lambda b: b.binary("ADD", X, b.constant(np.float32(1e-5))), Sign.ANY),
        (lambda b: b.binary("MUL", b.unary("RELU", X), b.constant(np.float32(2))), Sign.NOT_BELOW),
        (lambda b: b.binary("MUL", b.unary("SQUARE", X), b.constant(np.float32(-2))), Sign.ANY),
        (lambda b: b.binary("MAX", X, b.constant(np.float32(0))), Sign.NOT_BELOW),
        (lambda b: b.binary("MAX", X, b.constant(np.float32(-1))), Sign.ANY),
        (lambda b: b.binary("DIV", b.unary("SQUARE", X), b.unary("RELU", X)), Sign.ANY),
        (lambda b: b.binary("DIV", b.unary("RELU", X), b.unary("EXP", X)), Sign.NOT_BELOW),
        (lambda b: b.unary("SQRT", X), Sign.NOT_BELOW),
        (lambda b: b.unary("RECIPROCAL", b.unary("RELU", X)), Sign.ANY),
        (lambda b: b.reduce("MEAN", b.unary("SQUARE", X), [1]), Sign.PLUS),
        (lambda b: b.reduce("MAX", b.unary("SQUARE", X), [1]), Sign.ANY),
        (lambda b: b.reshape(b.unary("SQUARE", X), (4, 3)), Sign.PLUS),
        (lambda b: b.constant(np.float32([0.0, -0.0])), Sign.NOT_BELOW),
        (lambda b: b.constant(np.int64([1, 2])), Sign.ANY),
    ],
)
def test_signs(make: Callable[[Builder], Tensor], sign: Sign) -> None:
    assert sign_of(make(Builder())) is sign


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("kernel", [[1, 1, 1], [3, 1, 1], [1, 1, 3]])
def test_padded_ends_of_flat_windows(kernel: list[int], axis: int) -> None:
    """Windows of one element see zeros behind the last element, too."""
    pads = [0] * 6
    pads[3 + axis] = 1
    check("Conv", {"x": normal(2, 3, 4, 3, 5), "w": normal(4, 3, *kernel)}, ("w",), pads=pads)
