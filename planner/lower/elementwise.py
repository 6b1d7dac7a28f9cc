"""Element-wise operators: one argument, two, many, choice, conversion."""

from __future__ import annotations

from functools import partial

import numpy as np

from aspen_mp.planner.frontends.tensors import is_plain, numpy_dtype
from aspen_mp.planner.ir.graph import Node, Tensor
from aspen_mp.planner.lower.builder import BOOL, Builder, NoKernel, ints, scalar
from aspen_mp.planner.lower.registry import RULES, rule
from aspen_mp.planner.lower.signs import Sign, sign_of

_FLOATS = "fV"  # numpy kinds of float dtypes (bfloat16 is a V)

_UNARY = {
    "Abs": "ABS",
    "Neg": "NEG",
    "Sign": "SIGN",
    "Relu": "RELU",
    "BitwiseNot": "BIT_NOT",
}
_UNARY_FLOAT = {
    "Exp": "EXP",
    "Log": "LOG",
    "Sqrt": "SQRT",
    "Reciprocal": "RECIPROCAL",
    "Sigmoid": "SIGMOID",
    "Tanh": "TANH",
    "Erf": "ERF",
    "HardSwish": "HARD_SWISH",
    "Softplus": "SOFTPLUS",
    "Softsign": "SOFTSIGN",
    "Mish": "MISH",
    "Ceil": "CEIL",
    "Floor": "FLOOR",
    "Round": "ROUND",
    "Sin": "SIN",
    "Cos": "COS",
    "Tan": "TAN",
    "Asin": "ASIN",
    "Acos": "ACOS",
    "Atan": "ATAN",
    "Sinh": "SINH",
    "Cosh": "COSH",
    "Asinh": "ASINH",
    "Acosh": "ACOSH",
    "Atanh": "ATANH",
}
# operator → (opcode, attribute and default of a, of b)
_UNARY_WITH: dict[str, tuple[str, tuple[str, float] | None, tuple[str, float] | None]] = {
    "LeakyRelu": ("LEAKY_RELU", ("alpha", 0.01), None),
    "Elu": ("ELU", ("alpha", 1.0), None),
    "Selu": ("SELU", ("alpha", 1.67326319217681884765625), ("gamma", 1.05070102214813232421875)),
    "Celu": ("CELU", ("alpha", 1.0), None),
    "Swish": ("SWISH", ("alpha", 1.0), None),
    "HardSigmoid": ("HARD_SIGMOID", ("alpha", 0.2), ("beta", 0.5)),
    "ThresholdedRelu": ("THRESHOLDED_RELU", ("alpha", 1.0), None),
    "Shrink": ("SHRINK", ("lambd", 0.5), ("bias", 0.0)),
}
_BINARY = {"Add": "ADD", "Sub": "SUB", "Mul": "MUL", "Div": "DIV"}
_COMPARE = {"Equal": "EQUAL", "Less": "LESS", "LessOrEqual": "LESS_EQUAL", "Greater": "GREATER", "GreaterOrEqual": "GREATER_EQUAL"}
_LOGICAL = {"And": "AND", "Or": "OR", "Xor": "XOR"}
_BITWISE = {"BitwiseAnd": "BIT_AND", "BitwiseOr": "BIT_OR", "BitwiseXor": "BIT_XOR"}


def data(node: Node, i: int = 0) -> Tensor:
    tensor = node.inputs[i] if i < len(node.inputs) else None
    if tensor is None:
        raise NoKernel(f"input {i} is missing")
    return tensor


def optional(node: Node, i: int) -> Tensor | None:
    return node.inputs[i] if i < len(node.inputs) else None


def is_float(tensor: Tensor) -> bool:
    return tensor.dtype.kind == "f" or tensor.dtype.name == "bfloat16"


def _unary(opcode: str, b: Builder, node: Node) -> Tensor:
    x = data(node)
    if x.dtype == BOOL or x.dtype.kind == "c":
        raise NoKernel(f"no kernel computes {x.dtype}")
    return b.unary(opcode, x)


def _unary_float(opcode: str, b: Builder, node: Node) -> Tensor:
    x = data(node)
    if not is_float(x):
        raise NoKernel(f"no kernel computes {x.dtype}")
    return b.unary(opcode, x)


def _unary_with(op: str, b: Builder, node: Node) -> Tensor:
    opcode, first, second = _UNARY_WITH[op]
    x = data(node)
    if not is_float(x):
        raise NoKernel(f"no kernel computes {x.dtype}")
    p = float(node.attrs.get(*first)) if first else 0.0
    q = float(node.attrs.get(*second)) if second else 0.0
    return b.unary(opcode, x, p, q)


for _op, _code in _UNARY.items():
    RULES[_op] = partial(_unary, _code)
for _op, _code in _UNARY_FLOAT.items():
    RULES[_op] = partial(_unary_float, _code)
for _op in _UNARY_WITH:
    RULES[_op] = partial(_unary_with, _op)


@rule("Not")
def _not(b: Builder, node: Node) -> Tensor:
    return b.unary("NOT", data(node))


@rule("IsNaN")
def _is_nan(b: Builder, node: Node) -> Tensor:
    return b.unary("ISNAN", data(node), dtype=BOOL)


@rule("IsInf")
def _is_inf(b: Builder, node: Node) -> Tensor:
    return b.unary(
        "ISINF", data(node), float(node.attrs.get("detect_negative", 1)), float(node.attrs.get("detect_positive", 1)), dtype=BOOL
    )


@rule("Gelu")
def _gelu(b: Builder, node: Node) -> Tensor:
    return b.unary("GELU_TANH" if node.attrs.get("approximate", "none") == "tanh" else "GELU_ERF", data(node))


@rule("Identity")
def _identity(b: Builder, node: Node) -> Tensor:
    return data(node)


@rule("Dropout")
def _dropout(b: Builder, node: Node) -> list[Tensor]:
    training = optional(node, 2)
    if training is not None and (not training.is_const or bool(training.value().reshape(()))):
        raise NoKernel("no kernel computes dropout in training")
    x = data(node)
    if len(node.outputs) < 2 or not node.outputs[1].name:
        return [x]
    kept = node.source is None or node.source.version >= 12  # before, nothing says what the mask holds; onnxruntime has zeros
    mask = np.full((1,) * len(x.shape), kept, node.outputs[1].dtype)
    return [x, b.expand(b.constant(mask), x.shape)]


@rule("Clip")
def _clip(b: Builder, node: Node) -> Tensor:
    x, low, high = data(node), optional(node, 1), optional(node, 2)
    if node.source is not None and node.source.version < 11:
        return b.unary("CLIP", x, float(node.attrs.get("min", -np.inf)), float(node.attrs.get("max", np.inf)))
    if x.dtype.itemsize < 8 or is_float(x):
        a = -np.inf if low is None else scalar(low)
        c = np.inf if high is None else scalar(high)
        if a is not None and c is not None:
            return b.unary("CLIP", x, float(a), float(c))
    lowest: object = -np.inf if is_float(x) else np.iinfo(x.dtype).min
    highest: object = np.inf if is_float(x) else np.iinfo(x.dtype).max
    low = b.constant(np.asarray(lowest).astype(x.dtype)) if low is None else low
    high = b.constant(np.asarray(highest).astype(x.dtype)) if high is None else high
    return b.ternary("CLAMP", x, b.reshape(low, ()), b.reshape(high, ()))


def _binary(opcode: str, b: Builder, node: Node) -> Tensor:
    x, y = data(node), data(node, 1)
    if x.dtype == BOOL or x.dtype.kind == "c":
        raise NoKernel(f"no kernel computes {x.dtype}")
    if opcode == "PRELU" and len(y.shape) > len(x.shape):
        raise NoKernel("the slope has more axes than the data")
    return b.binary(opcode, x, y)


def _compare(opcode: str, b: Builder, node: Node) -> Tensor:
    x, y = data(node), data(node, 1)
    return b.binary(opcode, x, y, BOOL)


def _bits(opcode: str, b: Builder, node: Node) -> Tensor:
    x, y = data(node), data(node, 1)
    return b.binary(opcode, x, y)


for _op, _code in _BINARY.items():
    RULES[_op] = partial(_binary, _code)
for _op, _code in _COMPARE.items():
    RULES[_op] = partial(_compare, _code)
for _op, _code in (_LOGICAL | _BITWISE).items():
    RULES[_op] = partial(_bits, _code)


@rule("PRelu")
def _prelu(b: Builder, node: Node) -> Tensor:
    return b.binary("PRELU", data(node), data(node, 1))


@rule("BitShift")
def _shift(b: Builder, node: Node) -> Tensor:
    return b.binary("SHIFT_LEFT" if node.attrs["direction"] == "LEFT" else "SHIFT_RIGHT", data(node), data(node, 1))


@rule("Mod")
def _mod(b: Builder, node: Node) -> Tensor:
    return b.binary("FMOD" if node.attrs.get("fmod", 0) else "MOD", data(node), data(node, 1))


@rule("Pow")
def _pow(b: Builder, node: Node) -> Tensor:
    x, y = data(node), data(node, 1)
    exponent = scalar(y)
    if exponent == 2.0 and len(y.shape) <= len(x.shape):
        return b.unary("SQUARE", x)
    if exponent in {1.0, -1.0} and is_float(x) and len(y.shape) <= len(x.shape):
        return x if exponent > 0 else b.unary("RECIPROCAL", x)
    if exponent in {0.5, -0.5} and is_float(x) and len(y.shape) <= len(x.shape) and sign_of(x) is Sign.PLUS:
        root = b.unary("SQRT", x)
        return root if exponent > 0 else b.unary("RECIPROCAL", root)
    if x.dtype != y.dtype:
        if not is_float(x) and is_float(y):
            raise NoKernel("an integer is raised to a fractional power")
        y = b.cast(y, x.dtype)
    return b.binary("POW", x, y)


@rule("Sum", "Min", "Max", "Mean")
def _variadic(b: Builder, node: Node) -> Tensor:
    opcode = {"Sum": "ADD", "Mean": "ADD", "Min": "MIN", "Max": "MAX"}[node.op]
    tensors = [data(node, i) for i in range(len(node.inputs))]
    out = tensors[0]
    for tensor in tensors[1:]:
        out = b.binary(opcode, out, tensor)
    if node.op == "Mean" and len(tensors) > 1:
        out = b.binary("DIV", out, b.constant(np.array(len(tensors), out.dtype)))
    return out


@rule("Where")
def _where(b: Builder, node: Node) -> Tensor:
    return b.ternary("WHERE", data(node), data(node, 1), data(node, 2))


@rule("Cast", "CastLike")
def _cast(b: Builder, node: Node) -> Tensor:
    to = node.output.dtype if node.op == "CastLike" else numpy_dtype(node.attrs["to"])
    if not is_plain(to):
        raise NoKernel(f"no kernel computes {to}")
    return b.cast(data(node), to, bool(node.attrs.get("saturate", 1)))


@rule("Trilu")
def _trilu(b: Builder, node: Node) -> Tensor:
    x = data(node)
    k = ints(node.inputs[1])[0] if optional(node, 1) is not None else 0
    ones = np.ones(x.shape[-2:], bool)
    mask = np.triu(ones, k) if node.attrs.get("upper", 1) else np.tril(ones, k)
    return b.ternary("WHERE", b.constant(mask), x, b.constant(np.zeros((), x.dtype)))
