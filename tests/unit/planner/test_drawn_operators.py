"""Operators whose shapes, or whose values at the edge, others and ONNX's own library have been wrong about, with drawn attributes, shapes
and types: beside onnxruntime, or numpy where onnxruntime does not do what ONNX's text says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from drawn_models import Array, Case, floats, here, maybe, same, there
from kernel_graphs import run_model
from onnx import TensorProto, helper, numpy_helper

from aspen_mp.planner import api
from aspen_mp.planner.frontends import equations
from aspen_mp.shm.errors import ModelInvalidError


def drawn(seed: int, family: int) -> np.random.Generator:
    return np.random.default_rng([seed, family])


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def choice(rng: np.random.Generator, options: Any) -> Any:
    return options[int(rng.integers(len(options)))]


# ------------------------------------------------------------------------------------------------------------------ Einsum


def einsum(rng: np.random.Generator) -> Case:
    """One to three operands, axes of length 1 for longer ones, ellipses, results in any order or left out."""
    length = {c: int(rng.integers(2, 5)) for c in "abcd"}
    hidden = [int(rng.integers(1, 4)) for _ in range(2)]
    with_ellipsis = rng.random() < 0.3
    terms, operands = [], []
    for _ in range(int(rng.integers(1, 4))):
        term = [str(c) for c in rng.permutation(list(length))[: int(rng.integers(1, 4))]]
        shape = [1 if rng.random() < 0.3 else length[c] for c in term]
        if with_ellipsis:
            place, many = int(rng.integers(len(term) + 1)), int(rng.integers(3))
            shape[place:place] = [1 if rng.random() < 0.3 else d for d in hidden[2 - many :]]
            term.insert(place, "...")
        terms.append("".join(term))
        operands.append(floats(rng, *shape))
    equation = ",".join(terms)
    if rng.random() < 0.8:
        used = sorted(set(equation) - set(".,"))
        result = [str(c) for c in rng.permutation(used)[: int(rng.integers(len(used) + 1))]]
        result += ["..."] if with_ellipsis else []
        equation += f"->{''.join(result)}"
    return Case("Einsum", operands, {"equation": equation}, constants=maybe(rng, 1) if len(operands) > 1 else ())


@pytest.mark.parametrize("seed", range(24))
def test_einsum(seed: int) -> None:
    case = einsum(drawn(seed, 0))
    want = np.einsum(case.attributes["equation"], *(x.astype(np.float64) for x in case.inputs))
    same(case, here(case), [np.asarray(want, np.float32)])


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [("ab,ab->ab", [(3, 2), (3, 4)]), ("ab->abc", [(3, 2)]), ("ab,c", [(3, 2)]), ("abc->a", [(3, 2)])],
)
def test_einsum_that_does_not_fit_names_the_node(equation: str, shapes: list[tuple[int, ...]]) -> None:
    case = Case("Einsum", [np.zeros(s, np.float32) for s in shapes], {"equation": equation})
    with pytest.raises(ModelInvalidError, match=r"Einsum"):
        here(case)


def test_letters_of_equations() -> None:
    assert equations.parse("...ij, jk", [4, 2]) == (["ΗΘij", "jk"], "ΗΘik")
    assert equations.sizes(["ab", "bc"], [(1, 3), (3, 5)]) == {"a": 1, "b": 3, "c": 5}


# ---------------------------------------------------------------------------------------------------- transposed convolution


def transposed(rng: np.random.Generator) -> Case:
    """Paddings that follow from the output, `output_padding` among them; no output longer than what there is to put into it."""
    n, groups = int(rng.integers(1, 3)), int(rng.integers(1, 3))
    per_group, made = int(rng.integers(1, 3)), int(rng.integers(1, 3))
    spatial, strides, dilations = (rng.integers(1, most, n).tolist() for most in (6, 4, 3))
    extra = [int(rng.integers(0, s)) for s in strides]
    kernel = [int(rng.integers(-(-(s - 1 - e) // d) + 1, 5)) for s, d, e in zip(strides, dilations, extra, strict=True)]
    kernel = [max(k, 1) for k in kernel]
    attributes = {"strides": strides, "dilations": dilations, "group": groups, "output_padding": extra}
    if rng.random() < 0.3:
        full = [s * (x - 1) + e + (k - 1) * d + 1 for s, x, e, k, d in zip(strides, spatial, extra, kernel, dilations, strict=True)]
        attributes["output_shape"] = [
            int(max(f - rng.integers(0, 3), s * (x - 1) + 1, 1)) for f, s, x in zip(full, strides, spatial, strict=True)
        ]
        attributes["output_shape"] = [min(o, f) for o, f in zip(attributes["output_shape"], full, strict=True)]
    else:
        attributes["auto_pad"] = choice(rng, ["SAME_UPPER", "SAME_LOWER"])
    inputs = [floats(rng, 2, groups * per_group, *spatial), floats(rng, groups * per_group, made, *kernel)]
    return Case("ConvTranspose", inputs, attributes, constants=maybe(rng, 1))


@pytest.mark.parametrize("seed", range(24))
def test_transposed_convolution(seed: int) -> None:
    case = transposed(drawn(seed, 1))
    same(case, here(case), there(case))


# --------------------------------------------------------------------------------------------------------------------- Pad


def padded(rng: np.random.Generator) -> Case:
    """Some sides are cut off, others padded, from what is left."""
    mode = choice(rng, ["reflect", "edge", "wrap", "constant"])
    shape = rng.integers(3, 7, int(rng.integers(1, 4))).tolist()
    before, after = (rng.integers(-1, 2, len(shape)) for _ in range(2))
    before[0] = -1
    after[-1] = 1
    dtype = choice(rng, [np.float32, np.int64, np.float64, np.uint8])
    x = rng.integers(0, 100, shape).astype(dtype)
    types = [helper.np_dtype_to_tensor_dtype(np.dtype(dtype))]
    return Case("Pad", [x, ints(*before, *after)], {"mode": mode}, types, 19, maybe(rng, 1))


@pytest.mark.parametrize("seed", range(20))
def test_pad_with_sides_below_zero(seed: int) -> None:
    case = padded(drawn(seed, 2))
    same(case, here(case), there(case))


# ------------------------------------------------------------------------------------------------------------------- Range


@pytest.mark.parametrize("seed", range(20))
def test_range_near_a_whole_length(seed: int) -> None:
    """Limits that are a whole number of steps away, but for rounding; given and constant, as scalars and as vectors of one."""
    rng = drawn(seed, 3)
    dtype = np.dtype(choice(rng, [np.float32, np.float32, np.float64, np.int32, np.int64, np.int16]))
    if dtype.kind == "f":
        start, step = (
            np.array(round(float(rng.uniform(-3, 3)), 1), dtype),
            np.array(choice(rng, [0.1, 0.2, 0.3, 1, 0.7, -0.1, -0.3]), dtype),
        )
    else:
        start, step = np.array(rng.integers(-5, 5), dtype), np.array(choice(rng, [1, 2, 3, -1, -2]), dtype)
    limit = np.asarray(start + step * dtype.type(rng.integers(1, 30)), dtype)
    values = [v.reshape(1) if rng.random() < 0.3 else v for v in (start, limit, step)]
    types = [helper.np_dtype_to_tensor_dtype(dtype)]
    given = Case("Range", values, types=types, constants=maybe(rng, 0, 1, 2))
    scalars = Case("Range", [v.reshape(()) for v in values], types=types)
    same(given, here(given), there(scalars))


# ------------------------------------------------------------------------------------------------------- reductions of scalars

REDUCTIONS = ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"]


@pytest.mark.parametrize("kind", REDUCTIONS)
@pytest.mark.parametrize("constant", [False, True])
def test_reduction_of_a_scalar(kind: str, constant: bool) -> None:
    """Over its last axis, or its first, which it has not; the axes known before, or with the request."""
    for axes in (ints(-1), ints(0)):
        case = Case(f"Reduce{kind}", [np.array(3.5, np.float32), axes], {"keepdims": 0}, opset=18, constants=(1,) if constant else ())
        function = {"L1": abs, "SumSquare": np.square, "LogSum": np.log}.get(kind, lambda v: v)
        same(case, here(case), [np.asarray(function(np.float32(3.5)), np.float32)])


# -------------------------------------------------------------------------------------------------- axes counted from the end


@pytest.mark.parametrize("opset", [7, 9, 10])
@pytest.mark.parametrize(
    ("op", "axes"), [("Unsqueeze", [-1]), ("Unsqueeze", [0, -2]), ("Unsqueeze", [-5]), ("Squeeze", [-2]), ("Squeeze", [-2, 0])]
)
def test_axes_from_the_end_before_they_were_allowed(op: str, axes: list[int], opset: int) -> None:
    x = np.arange(12, dtype=np.float32).reshape(1, 3, 1, 4)
    case = Case(op, [x], {"axes": axes}, opset=opset)
    want = np.expand_dims(x, tuple(axes)) if op == "Unsqueeze" else np.squeeze(x, tuple(axes))
    same(case, here(case), [want])


def test_what_follows_from_such_shapes_is_not_refused() -> None:
    """ONNX's inference gives such an Unsqueeze, and an Einsum of axes of length 1, another shape: a Concat behind it does not fit."""
    nodes = [
        helper.make_node("Unsqueeze", ["x"], ["a"], axes=[-1]),
        helper.make_node("Concat", ["a", "b"], ["y"], axis=2),
        helper.make_node("Einsum", ["u", "v"], ["w"], equation="ab,ab->ab"),
        helper.make_node("Concat", ["w", "v"], ["z"], axis=0),
    ]
    shapes = {"x": (2, 3), "b": (2, 3, 1), "u": (3, 1), "v": (3, 4)}
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    outs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "yz"]
    for opset, used, wanted in ((9, nodes[:2], outs[:1]), (17, nodes[2:], outs[1:])):
        read = {name for node in used for name in node.input}
        graph = helper.make_graph(used, "g", [i for i in infos if i.name in read], wanted)
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
        feeds = {n: np.ones(s, np.float32) for n, s in shapes.items() if n in read}
        (y,) = run_model(api.load(proto), feeds)
        assert y.shape == ((2, 3, 2) if opset == 9 else (6, 4))


# ------------------------------------------------------------------------------------------------------------------ Resize


def resized(rng: np.random.Generator) -> Case:
    """By scales with one digit, whose products with lengths are seldom whole numbers."""
    opset, mode = choice(rng, [10, 11, 13, 18]), choice(rng, ["nearest", "linear", "cubic"])
    mode = "linear" if opset == 10 and mode == "cubic" else mode
    spatial = rng.integers(2, 12, 2 if mode == "cubic" else int(rng.integers(1, 4))).tolist()
    scales = np.array([1, 1, *(round(float(v), 1) for v in rng.uniform(0.3, 3, len(spatial)))], np.float32)
    x = floats(rng, 1, 2, *spatial)
    if opset == 10:
        return Case("Resize", [x, scales], {"mode": mode}, opset=opset, constants=maybe(rng, 1))
    coordinates = choice(rng, ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"])
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinates}
    if mode == "nearest":
        attributes["nearest_mode"] = choice(rng, ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
    if opset == 11:
        return Case("Resize", [x, np.zeros(0, np.float32), scales], attributes, opset=opset, constants=(1, *maybe(rng, 2)))
    return Case("Resize", [x, None, scales], attributes, opset=opset, constants=maybe(rng, 2))


@pytest.mark.parametrize("seed", range(30))
def test_resize_by_fractions(seed: int) -> None:
    rng = drawn(seed, 5)
    case = resized(rng)
    want = there(case)
    while want[0].shape == case.inputs[0].shape:  # which onnxruntime copies, whatever the scales are
        case = resized(rng)
        want = there(case)
    same(case, here(case), want)


# ------------------------------------------------------------------------------------------------------------- quantisation


def levels(rng: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[Array, Array]:
    """A scale and a zero point, or those of each column."""
    size = () if rng.random() < 0.5 else shape[-1:]
    scale = np.asarray(rng.uniform(0.05, 0.5, size), np.float32)
    return scale, np.asarray(rng.integers(0, 50, size)).astype(dtype)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shape", ["alone", "pair", "behind-product"])
def test_what_is_no_number_becomes_the_lowest_level(dtype: Any, seed: int, shape: str) -> None:
    """QuantizeLinear alone, with DequantizeLinear behind it, and behind a product whose epilogue it is."""
    rng = drawn(seed, 6)
    x = floats(rng, 6, 8)
    x.reshape(-1)[rng.permutation(x.size)[:3]] = [np.nan, np.inf, -np.inf]
    scale, zero = levels(rng, np.dtype(dtype), x.shape)
    nodes, read = [], "x"
    if shape == "behind-product":
        x[0] = np.nan_to_num(x[0])
        nodes, read = [helper.make_node("Mul", ["x", "m"], ["t"])], "t"
    nodes.append(helper.make_node("QuantizeLinear", [read, "s", "z"], ["q"], axis=1))
    if shape != "alone":
        nodes.append(helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], axis=1))
    out, kind = ("q", helper.np_dtype_to_tensor_dtype(np.dtype(dtype))) if shape == "alone" else ("d", TensorProto.FLOAT)
    constants = [numpy_helper.from_array(v, n) for n, v in {"s": scale, "z": zero, "m": np.full(8, 0.5, np.float32)}.items()]
    infos = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)]
    graph = helper.make_graph(nodes, "g", infos, [helper.make_tensor_value_info(out, kind, None)], constants)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    info = np.iinfo(dtype)
    with np.errstate(invalid="ignore"):
        steps = np.rint((x * np.float32(0.5) if shape == "behind-product" else x) / scale) + zero.astype(np.float32)
    steps = np.clip(np.where(np.isnan(steps), info.min, steps), info.min, info.max)
    want = steps.astype(dtype) if shape == "alone" else (steps - zero.astype(np.float32)) * scale
    (got,) = run_model(api.load(proto), {"x": x})
    np.testing.assert_allclose(got, want, rtol=1e-6, err_msg=f"seed {seed}")


# --------------------------------------------------------------------------------------------------- vectors of one for scalars

F1, I1 = (lambda v: np.array([v], np.float32)), (lambda v: np.array([v], np.int64))
X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
SIGNAL = X.reshape(1, 12, 1)
BOXES = np.array([[[0, 0, 1, 1], [0, 0, 1, 0.9], [2, 2, 3, 3]]], np.float32)
VECTORS: list[tuple[str, list[Any], list[Any], dict[str, Any], int, tuple[int, ...]]] = [
    ("Clip", [X], [F1(-1), F1(1)], {}, 13, (1,)),
    ("Pad", [X, ints(1, 0, 0, 1)], [F1(5)], {}, 13, (1,)),
    ("Pad", [X, ints(1, 0, 0, 1)], [F1(5)], {}, 18, (1,)),
    ("Dropout", [X], [F1(0.5)], {}, 13, (1,)),
    ("Dropout", [X], [F1(0.5), np.array([False])], {}, 13, (1,)),
    ("CumSum", [X], [I1(1)], {}, 14, (1,)),
    ("OneHot", [ints(0, 2)], [I1(3), np.array([0, 1], np.float32)], {}, 11, (1,)),
    ("Trilu", [X], [I1(1)], {}, 14, (1,)),
    ("DFT", [SIGNAL], [I1(12)], {}, 17, (1,)),
    ("DFT", [SIGNAL], [I1(12), I1(1)], {}, 20, (1,)),
    ("STFT", [SIGNAL], [I1(2), None, I1(4)], {}, 17, (1,)),
    ("MelWeightMatrix", [], [I1(4), I1(8), I1(16000), F1(0), F1(8000)], {}, 17, (1,)),
    ("HannWindow", [], [I1(6)], {}, 17, (1,)),
    ("QuantizeLinear", [X], [F1(0.1), np.array([3], np.uint8)], {}, 13, (2,)),
    ("DequantizeLinear", [np.arange(6, dtype=np.uint8)], [F1(0.1), np.array([3], np.uint8)], {}, 13, (1,)),
    ("NonMaxSuppression", [BOXES, np.array([[[0.9, 0.8, 0.7]]], np.float32)], [I1(2), F1(0.5), F1(0.1)], {}, 11, (7,)),
]


@pytest.mark.parametrize(
    ("op", "inputs", "numbers", "attributes", "opset", "types"), VECTORS, ids=lambda v: v if isinstance(v, str) else None
)
@pytest.mark.parametrize("constant", [False, True])
def test_vectors_of_one_for_scalars(op: str, inputs: Any, numbers: Any, attributes: Any, opset: int, types: Any, constant: bool) -> None:
    """The same as scalars give, whose right value other tests tell."""
    at = range(len(inputs), len(inputs) + len(numbers)) if constant else ()
    keep = op in {"OneHot", "QuantizeLinear", "DequantizeLinear"}
    scalars = [v if v is None or (keep and v.size > 1) else v.reshape(()) for v in numbers]
    cases = [Case(op, [*inputs, *values], attributes, types, opset, at) for values in (numbers, scalars)]
    same(cases[0], *map(here, cases))


# ----------------------------------------------------------------------------------------------------------- random numbers

DRAWN: dict[str, Callable[[Array], bool]] = {
    "RandomUniformLike": lambda y: bool(((y >= 0) & (y < 1)).all()),
    "RandomNormalLike": lambda y: bool(np.isfinite(y).all()),
    "Bernoulli": lambda y: bool(np.isin(y, [0, 1]).all()),
}


@pytest.mark.parametrize("op", DRAWN)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("shape", [(), (0,), (3, 5)])
def test_random_like(op: str, dtype: Any, shape: tuple[int, ...]) -> None:
    """Scalars too; a seed draws the same numbers again."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    case = Case(op, [np.full(shape, 0.5, dtype)], {"seed": 7.0}, [kind])
    (y,), (again,) = here(case), here(case)
    assert (y.shape, y.dtype) == (shape, np.dtype(dtype))
    assert DRAWN[op](y)
    np.testing.assert_array_equal(y, again)


@pytest.mark.parametrize("dtype", [TensorProto.INT32, TensorProto.INT64])
def test_multinomial(dtype: int) -> None:
    """As often as the probabilities say."""
    chances = np.array([[0.1, 0.6, 0.3], [0.0, 0.5, 0.5]])
    with np.errstate(divide="ignore"):
        case = Case("Multinomial", [np.log(chances).astype(np.float32)], {"sample_size": 20000, "seed": 3.0, "dtype": dtype}, [dtype])
    (y,) = here(case)
    assert (y.shape, y.dtype) == ((2, 20000), helper.tensor_dtype_to_np_dtype(dtype))
    found = np.stack([np.bincount(row, minlength=3) for row in y]) / 20000
    np.testing.assert_allclose(found, chances, atol=0.02)


def test_range_without_an_end_is_refused() -> None:
    for values in ((0.0, 1.0, 0.0), (0.0, np.inf, 1.0), (np.nan, 1.0, 1.0)):
        case = Case("Range", [np.array(v, np.float32) for v in values], constants=(0, 1, 2))
        with pytest.raises(ModelInvalidError, match="Range"):
            here(case)
