"""How exporters write activation functions: each spelling becomes one kernel, with the numbers that ONNX defines."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from net_tools import Net, check, ops

from aspen_mp.planner.ir.graph import Node

ROOT = float(np.sqrt(2 / np.pi))
Write = Callable[[Net, str], str]


def erf(n: Net, x: str, how: str = "div") -> str:
    return n("Erf", n("Div", x, n.number(2**0.5)) if how == "div" else n("Mul", n.number(0.5**0.5), x))


def cube(n: Net, x: str, how: str) -> str:
    if how == "pow":
        return n("Pow", x, n.number(3))
    return n("Mul", n("Mul", x, x), x) if how == "left" else n("Mul", x, n("Pow", x, n.number(2)))


def inner(n: Net, x: str, how: str = "pow") -> str:
    return n("Add", x, n("Mul", n.number(0.044715), cube(n, x, how)))


def tanh(n: Net, x: str, how: str = "pow") -> str:
    return n("Tanh", n("Mul", n.number(ROOT), inner(n, x, how)))


def one_plus(n: Net, curve: str) -> str:
    return n("Add", curve, n.number(1))


ASSOCIATIONS: dict[str, Callable[[Net, str, str], str]] = {
    "(x (1 + c)) / 2": lambda n, x, c: n("Mul", n("Mul", x, one_plus(n, c)), n.number(0.5)),
    "(x / 2) (1 + c)": lambda n, x, c: n("Mul", n("Mul", x, n.number(0.5)), one_plus(n, c)),
    "x ((1 + c) / 2)": lambda n, x, c: n("Mul", x, n("Mul", one_plus(n, c), n.number(0.5))),
    "((1 + c) / 2) x, a quotient": lambda n, x, c: n("Mul", n("Div", one_plus(n, c), n.number(2)), x),
    "x (1 / 2 + c / 2)": lambda n, x, c: n("Mul", x, n("Add", n.number(0.5), n("Mul", n.number(0.5), c))),
    "(x + x c) / 2": lambda n, x, c: n("Mul", n("Add", x, n("Mul", x, c)), n.number(0.5)),
    "x / 2 + (x / 2) c": lambda n, x, c: n("Add", n("Mul", n.number(0.5), x), n("Mul", n("Mul", x, n.number(0.5)), c)),
}


def hard(n: Net, x: str, how: str) -> str:
    """clip(x + 3, 0, 6)"""
    y = n("Add", x, n.number(3))
    if how == "clip":
        return n("Clip", y, n.number(0), n.number(6))
    if how == "min of max":
        return n("Min", n("Max", y, n.number(0)), n.number(6))
    if how == "max of min":
        return n("Max", n.number(0), n("Min", n.number(6), y))
    return n("Min", n("Relu", y), n.number(6))


def exp_minus(n: Net, x: str) -> str:
    return n("Add", n.number(1), n("Exp", n("Neg", x)))


def softplus(n: Net, x: str) -> str:
    return n("Log", n("Add", n("Exp", x), n.number(1)))


SPELLINGS: dict[str, tuple[str, Write]] = {
    "gelu: PyTorch with a product": ("GELU_ERF", lambda n, x: ASSOCIATIONS["(x (1 + c)) / 2"](n, x, erf(n, x, "mul"))),
    "gelu: JAX, complementary": (
        "GELU_ERF",
        lambda n, x: n("Mul", n("Mul", n.number(0.5), x), n("Sub", n.number(1), n("Erf", n("Mul", n("Neg", x), n.number(0.5**0.5))))),
    ),
    "gelu: operator": ("GELU_ERF", lambda n, x: n("Gelu", x)),
    "gelu: four digits": ("GELU_ERF", lambda n, x: ASSOCIATIONS["x ((1 + c) / 2)"](n, x, n("Erf", n("Div", x, n.number(1.4142))))),
    "gelu tanh: products from the left": ("GELU_TANH", lambda n, x: ASSOCIATIONS["x ((1 + c) / 2)"](n, x, tanh(n, x, "left"))),
    "gelu tanh: product with a square": ("GELU_TANH", lambda n, x: ASSOCIATIONS["x ((1 + c) / 2)"](n, x, tanh(n, x, "right"))),
    "gelu tanh: factored": (
        "GELU_TANH",
        lambda n, x: ASSOCIATIONS["(x / 2) (1 + c)"](
            n, x, n("Tanh", n("Mul", n("Mul", x, n.number(ROOT)), n("Add", n.number(1), n("Mul", n("Mul", x, n.number(0.044715)), x))))
        ),
    ),
    "gelu tanh: constants joined": (
        "GELU_TANH",
        lambda n, x: ASSOCIATIONS["(x / 2) (1 + c)"](
            n, x, n("Tanh", n("Mul", x, n("Add", n("Mul", n("Mul", x, x), n.number(ROOT * 0.044715)), n.number(ROOT))))
        ),
    ),
    "gelu tanh: operator": ("GELU_TANH", lambda n, x: n("Gelu", x, approximate="tanh")),
    "gelu tanh: by the sigmoid": ("GELU_TANH", lambda n, x: n("Mul", x, n("Sigmoid", n("Mul", n.number(2 * ROOT), inner(n, x))))),
    "quick gelu": ("SWISH", lambda n, x: n("Mul", x, n("Sigmoid", n("Mul", n.number(1.702), x)))),
    "silu: PyTorch": ("SWISH", lambda n, x: n("Mul", x, n("Sigmoid", x))),
    "silu: sigmoid first": ("SWISH", lambda n, x: n("Mul", n("Sigmoid", x), x)),
    "silu: quotient": ("SWISH", lambda n, x: n("Div", x, exp_minus(n, x))),
    "silu: reciprocal": ("SWISH", lambda n, x: n("Mul", x, n("Reciprocal", exp_minus(n, x)))),
    "silu: operator": ("SWISH", lambda n, x: n("Swish", x)),
    "sigmoid: quotient": ("SIGMOID", lambda n, x: n("Div", n.number(1), exp_minus(n, x))),
    "sigmoid: reciprocal": ("SIGMOID", lambda n, x: n("Reciprocal", exp_minus(n, x))),
    "hard swish: operator": ("HARD_SWISH", lambda n, x: n("HardSwish", x)),
    "hard swish: PyTorch": ("HARD_SWISH", lambda n, x: n("Mul", x, n("HardSigmoid", x, alpha=1 / 6, beta=0.5))),
    "hard swish: dynamo": ("HARD_SWISH", lambda n, x: n("Div", n("Mul", x, hard(n, x, "clip")), n.number(6))),
    "hard swish: Keras": ("HARD_SWISH", lambda n, x: n("Mul", x, n("Mul", hard(n, x, "relu"), n.number(1 / 6)))),
    "hard swish: minimum of maximum": ("HARD_SWISH", lambda n, x: n("Mul", n("Div", hard(n, x, "min of max"), n.number(6)), x)),
    "hard sigmoid: Keras": (
        "HARD_SIGMOID",
        lambda n, x: n("Clip", n("Add", n("Mul", x, n.number(0.2)), n.number(0.5)), n.number(0), n.number(1)),
    ),
    "hard sigmoid: sixths": ("HARD_SIGMOID", lambda n, x: n("Div", hard(n, x, "clip"), n.number(6))),
    "mish: PyTorch": ("MISH", lambda n, x: n("Mul", x, n("Tanh", n("Softplus", x)))),
    "mish: spelled out": ("MISH", lambda n, x: n("Mul", n("Tanh", softplus(n, x)), x)),
    "mish: operator": ("MISH", lambda n, x: n("Mish", x)),
    "softplus": ("SOFTPLUS", softplus),
    "softplus: without overflow": (
        "SOFTPLUS",
        lambda n, x: n("Add", n("Relu", x), n("Log", n("Add", n("Exp", n("Neg", n("Abs", x))), n.number(1)))),
    ),
    "softplus: dynamo": ("SOFTPLUS", lambda n, x: n("Where", n("Greater", x, n.number(20)), x, softplus(n, x))),
    "softsign": ("SOFTSIGN", lambda n, x: n("Div", x, n("Add", n("Abs", x), n.number(1)))),
    "relu: maximum": ("RELU", lambda n, x: n("Max", x, n.number(0))),
    "relu6: minimum of maximum": ("CLIP", lambda n, x: n("Min", n("Max", x, n.number(0)), n.number(6))),
    "relu6: maximum of minimum": ("CLIP", lambda n, x: n("Max", n("Min", x, n.number(6)), n.number(-1))),
    "relu6: minimum of relu": ("CLIP", lambda n, x: n("Min", n.number(6), n("Relu", x))),
    "relu6: relu of minimum": ("CLIP", lambda n, x: n("Relu", n("Min", n.number(6), x))),
    "leaky relu: maximum": ("LEAKY_RELU", lambda n, x: n("Max", x, n("Mul", n.number(0.1), x))),
    "leaky relu: choice": ("LEAKY_RELU", lambda n, x: n("Where", n("Greater", x, n.number(0)), x, n("Mul", x, n.number(0.01)))),
    "leaky relu: Keras": (
        "LEAKY_RELU",
        lambda n, x: n("Sub", n("Relu", x), n("Mul", n.number(0.3), n("Relu", n("Neg", x)))),
    ),
    "leaky relu: one slope": ("LEAKY_RELU", lambda n, x: n("PRelu", x, n.constant(np.array([0.25], n.dtype)))),
    "elu: choice": (
        "ELU",
        lambda n, x: n("Where", n("Greater", x, n.number(0)), x, n("Mul", n("Sub", n("Exp", x), n.number(1)), n.number(0.7))),
    ),
    "square": ("SQUARE", lambda n, x: n("Mul", x, x)),
}
for _how, _write in ASSOCIATIONS.items():
    SPELLINGS[f"gelu: {_how}"] = ("GELU_ERF", lambda n, x, write=_write: write(n, x, erf(n, x)))  # type: ignore[misc]
    SPELLINGS[f"gelu tanh: {_how}"] = ("GELU_TANH", lambda n, x, write=_write: write(n, x, tanh(n, x)))  # type: ignore[misc]


def functions(nodes: Sequence[Node]) -> list[str]:
    """Functions of one argument, by themselves or as epilogues."""
    found = [n.attrs["opcode"] if n.op == "UNARY" else n.attrs["act"][0] for n in nodes if n.op == "UNARY" or "act" in n.attrs]
    return [f for f in found if f != "IDENTITY"]


OPSETS = {"gelu: operator": 20, "gelu tanh: operator": 20, "silu: operator": 24, "mish: operator": 18}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spelling(name: str) -> None:
    net = Net(x=(4, 50), opset=OPSETS.get(name, 17))
    opcode, write = SPELLINGS[name]
    nodes = check(net, write(net, "x"), scale=3.0, tolerance=3e-5, reference=True)
    assert [n.attrs.get("opcode") for n in nodes] == [opcode]


@pytest.mark.parametrize("name", ["gelu: (x (1 + c)) / 2", "gelu tanh: products from the left", "silu: PyTorch", "hard swish: Keras"])
@pytest.mark.parametrize("argument", ["product", "scaled", "negative"])
def test_argument_that_is_a_product(name: str, argument: str) -> None:
    """The argument is not taken apart."""
    net = Net(x=(4, 50), z=(4, 50))
    opcode, write = SPELLINGS[name]
    x = net("Neg", "x") if argument == "negative" else net("Mul", "x", "z" if argument == "product" else net.number(0.5))
    nodes = check(net, write(net, x), reference=True)
    assert functions(nodes) == ["NEG", opcode] if argument == "negative" else [opcode]


@pytest.mark.parametrize("name", ["sigmoid: quotient", "softplus", "hard sigmoid: sixths"])
def test_argument_with_one_reader(name: str) -> None:
    net = Net(x=(4, 50), z=(4, 50))
    opcode, write = SPELLINGS[name]
    nodes = check(net, write(net, net("Mul", "x", "z")), reference=True)
    assert functions(nodes) == [opcode]


@pytest.mark.parametrize("name", ["gelu: (x (1 + c)) / 2", "gelu tanh: x ((1 + c) / 2)", "silu: PyTorch", "hard swish: dynamo"])
def test_half_precision(name: str) -> None:
    net = Net(x=(4, 50), dtype=np.float16)
    opcode, write = SPELLINGS[name]
    nodes = check(net, write(net, "x"), tolerance=4e-3)
    assert [n.op for n in nodes] == ["CAST", "UNARY", "CAST"]
    assert functions(nodes) == [opcode]


def test_gated_linear_unit() -> None:
    net = Net(x=(4, 50), z=(4, 50))
    nodes = check(net, net("Mul", net("Mul", "x", net("Sigmoid", "x")), "z"), reference=True)
    assert [n.attrs["opcode"] for n in nodes] == ["SWISH", "MUL"]


def test_becomes_an_epilogue() -> None:
    net = Net(x=(4, 50))
    y = net("Add", net("MatMul", "x", net.weight(50, 30)), net.weight(30))
    nodes = check(net, ASSOCIATIONS["(x / 2) (1 + c)"](net, y, erf(net, y)))
    assert ops(nodes) == ["GEMM"]
    assert functions(nodes) == ["GELU_ERF"]


NEAR_MISSES: dict[str, Write] = {
    "another divisor": lambda n, x: ASSOCIATIONS["(x (1 + c)) / 2"](n, x, n("Erf", n("Div", x, n.number(1.3)))),
    "another offset": lambda n, x: n("Mul", n("Mul", x, n("Add", erf(n, x), n.number(1.01))), n.number(0.5)),
    "an offset that is nearly 1": lambda n, x: n("Mul", n("Mul", x, n("Add", erf(n, x), n.number(1.0004))), n.number(0.5)),
    "a factor that is nearly a half": lambda n, x: n("Mul", n("Mul", x, one_plus(n, erf(n, x))), n.number(0.4999)),
    "hard swish with nearly 3": lambda n, x: n(
        "Div", n("Mul", x, n("Clip", n("Add", x, n.number(3.001)), n.number(0), n.number(6))), n.number(6)
    ),
    "another half": lambda n, x: n("Mul", n("Mul", x, one_plus(n, erf(n, x))), n.number(0.49)),
    "another argument": lambda n, x: n("Mul", n("Mul", "z", one_plus(n, erf(n, x))), n.number(0.5)),
    "tanh with another cubic": lambda n, x: ASSOCIATIONS["x ((1 + c) / 2)"](
        n, x, n("Tanh", n("Mul", n.number(ROOT), n("Add", x, n("Mul", n.number(0.05), cube(n, x, "pow")))))
    ),
    "tanh with a square": lambda n, x: ASSOCIATIONS["x ((1 + c) / 2)"](
        n, x, n("Tanh", n("Mul", n.number(ROOT), n("Add", x, n("Mul", n.number(0.044715), n("Mul", x, x)))))
    ),
    "gate of another tensor": lambda n, x: n("Mul", x, n("Sigmoid", "z")),
    "hard swish by fifths": lambda n, x: n("Div", n("Mul", x, hard(n, x, "clip")), n.number(5)),
    "maximum with a steeper line": lambda n, x: n("Max", x, n("Mul", n.number(1.5), x)),
    "choice by another tensor": lambda n, x: n("Where", n("Greater", "z", n.number(0)), x, n("Mul", x, n.number(0.01))),
    "softplus linear too soon": lambda n, x: n("Where", n("Greater", x, n.number(1)), x, softplus(n, x)),
    "mish of another tensor": lambda n, x: n("Mul", "z", n("Tanh", n("Softplus", x))),
}
WRONG = {"GELU_ERF", "GELU_TANH", "SWISH", "HARD_SIGMOID", "HARD_SWISH", "MISH", "LEAKY_RELU"}
SEVERAL = ["gelu: (x (1 + c)) / 2", "gelu tanh: (x / 2) (1 + c)", "silu: PyTorch", "hard swish: dynamo", "softplus: without overflow"]


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_miss(name: str) -> None:
    net = Net(x=(4, 50), z=(4, 50))
    nodes = check(net, NEAR_MISSES[name](net, "x"), "z", scale=3.0, tolerance=3e-5, reference=True)
    assert not set(functions(nodes)) & WRONG


def test_steeper_sigmoid() -> None:
    net = Net(x=(4, 50))
    y = net("Div", net.number(1), net("Add", net.number(1), net("Exp", net("Mul", "x", net.number(-1.0004)))))
    assert "SIGMOID" not in functions(check(net, y, reference=True))


@pytest.mark.parametrize("name", SEVERAL)
def test_every_value_is_an_output(name: str) -> None:
    """Nothing can be spared, so nothing is rewritten."""
    net = Net(x=(4, 50))
    SPELLINGS[name][1](net, "x")
    results = [n.output[0] for n in net.nodes]
    assert SPELLINGS[name][0] not in {n.attrs.get("opcode") for n in check(net, *results, reference=True)}


@pytest.mark.parametrize("name", SEVERAL)
def test_one_value_is_an_output(name: str) -> None:
    """Numbers are right, whatever is rewritten."""
    probe = Net(x=(4, 50))
    SPELLINGS[name][1](probe, "x")
    for k in range(len(probe.nodes) - 1):
        net = Net(x=(4, 50))
        y = SPELLINGS[name][1](net, "x")
        check(net, y, net.nodes[k].output[0], reference=True)


def test_broadcast_argument_is_left() -> None:
    net = Net(x=(1, 50), z=(4, 50))
    y = net("Mul", net("Mul", "x", net("Sigmoid", "x")), "z")
    assert [n.attrs["opcode"] for n in check(net, y, reference=True)] == ["SWISH", "MUL"]
