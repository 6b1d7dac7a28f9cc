"""Functions of one argument that exporters spell out in elementary operators: GELU, SiLU, Mish, hard-swish and their like.

One row a spelling (patterns: `match.py`). Nodes are looked at in order, so that a row may build on the functions of others: Mish on a
softplus, hard-swish on a clip. At least one kernel must disappear.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, pi, sqrt

from aspen_mp.planner.ir.graph import Graph, Node
from aspen_mp.planner.passes.patterns.match import AnyOf, Call, Match, Matcher, Number, Operand, Pattern, Product, Row, Table, spares
from aspen_mp.planner.passes.rewrite import Rewriter

X = Operand("x")


def function(opcode: str, argument: Pattern, *given: Number) -> Call:
    return Call("UNARY", opcode, (argument,), given=given)


def either(opcode: str, first: Pattern, second: Pattern) -> Call:
    return Call("BINARY", opcode, (first, second), either=True)


def times(factor: float | str, *over: Pattern, under: tuple[Pattern, ...] = ()) -> Product:
    constant = Number(name=factor) if isinstance(factor, str) else Number(factor, near=True)
    return Product(over, under, constant)


def plus(number: float | str, pattern: Pattern) -> Call:
    return either("ADD", Number(name=number) if isinstance(number, str) else Number(number, near=True), pattern)


def half_of_one_plus(curve: Pattern) -> dict[str, Pattern]:
    """x · ½ (1 + curve), in all associations."""
    return {
        "half outside": times(0.5, plus(1.0, curve), X),
        "halves inside": times(1.0, plus(0.5, times(0.5, curve)), X),
        "multiplied out": times(0.5, either("ADD", X, times(1.0, curve, X))),
        "two terms": either("ADD", times(0.5, X), times(0.5, curve, X)),
    }


ERF = function("ERF", times(sqrt(0.5), X))
CUBIC = AnyOf(
    (
        times(sqrt(2 / pi), either("ADD", X, times(0.044715, X, X, X))),
        times(sqrt(2 / pi), plus(1.0, times(0.044715, X, X)), X),
        either("ADD", times(sqrt(2 / pi), X), times(sqrt(2 / pi) * 0.044715, X, X, X)),
        times(1.0, plus(sqrt(2 / pi), times(sqrt(2 / pi) * 0.044715, X, X)), X),
    )
)
"""√(2/π) (x + 0.044715 x³), also with the constants moved about."""
CUBIC_TWICE = AnyOf(
    (
        times(2 * sqrt(2 / pi), either("ADD", X, times(0.044715, X, X, X))),
        times(2 * sqrt(2 / pi), plus(1.0, times(0.044715, X, X)), X),
        times(2.0, CUBIC),
    )
)
EXP_OF_MINUS = function("EXP", times("-a", X))
RELU_OF = AnyOf((function("RELU", X), either("MAX", Number(0.0), X)))
POSITIVE = AnyOf(
    (
        Call("BINARY", "GREATER", (X, Number(0.0))),
        Call("BINARY", "GREATER_EQUAL", (X, Number(0.0))),
        Call("BINARY", "LESS", (Number(0.0), X)),
        Call("BINARY", "LESS_EQUAL", (Number(0.0), X)),
    )
)
EXP_MINUS_1 = AnyOf((Call("BINARY", "SUB", (function("EXP", X), Number(1.0))), plus(-1.0, function("EXP", X))))


@dataclass(frozen=True, slots=True)
class Function:
    """A function of x; a and b are numbers, or names of numbers of the pattern. `minus`: a is taken with the opposite sign."""

    opcode: str
    a: float | str = 0.0
    b: float | str = 0.0
    minus: bool = False


def _rows() -> dict[str, Row[Function]]:
    rows: dict[str, Row[Function]] = {}
    for how, pattern in half_of_one_plus(ERF).items():
        rows[f"GELU, error function, {how}"] = Row(pattern, Function("GELU_ERF"))
    for how, pattern in half_of_one_plus(function("TANH", CUBIC)).items():
        rows[f"GELU, hyperbolic tangent, {how}"] = Row(pattern, Function("GELU_TANH"))
    complement = Call("BINARY", "SUB", (Number(1.0), function("ERF", times(-sqrt(0.5), X))))
    return rows | {
        "GELU, complementary error function (JAX)": Row(times(0.5, complement, X), Function("GELU_ERF")),
        "GELU, logistic": Row(times(1.0, function("SIGMOID", CUBIC_TWICE), X), Function("GELU_TANH")),
        "sigmoid": Row(times(1.0, under=(plus(1.0, EXP_OF_MINUS),)), Function("SIGMOID"), lambda n: n["-a"] == -1.0),
        "swish": Row(times(1.0, function("SIGMOID", times("a", X)), X), Function("SWISH", "a")),
        "swish, quotient": Row(times(1.0, X, under=(plus(1.0, EXP_OF_MINUS),)), Function("SWISH", "-a", minus=True)),
        "softplus": Row(function("LOG", plus(1.0, function("EXP", X))), Function("SOFTPLUS")),
        "softplus, that cannot overflow": Row(
            either("ADD", function("SOFTPLUS", times(-1.0, function("ABS", X))), RELU_OF), Function("SOFTPLUS")
        ),
        "softplus, linear where it is": Row(  # PyTorch: x > 20
            Call("TERNARY", "WHERE", (Call("BINARY", "GREATER", (X, Number(name="from"))), X, function("SOFTPLUS", X))),
            Function("SOFTPLUS"),
            lambda n: n["from"] >= 15.0,
        ),
        "softsign": Row(times(1.0, X, under=(plus(1.0, function("ABS", X)),)), Function("SOFTSIGN")),
        "mish": Row(times(1.0, function("TANH", function("SOFTPLUS", X)), X), Function("MISH")),
        # -- piecewise linear
        "relu": Row(either("MAX", Number(0.0), X), Function("RELU")),
        "clip below": Row(either("MAX", Number(name="low"), X), Function("CLIP", "low", inf), lambda n: n["low"] == n["low"]),
        "clip above": Row(either("MIN", Number(name="high"), X), Function("CLIP", -inf, "high"), lambda n: n["high"] == n["high"]),
        "clip twice": Row(
            function("CLIP", function("CLIP", X, Number(name="low"), Number(inf)), Number(-inf), Number(name="high")),
            Function("CLIP", "low", "high"),
        ),
        "clip twice, above first": Row(
            function("CLIP", function("CLIP", X, Number(-inf), Number(name="high")), Number(name="low"), Number(inf)),
            Function("CLIP", "low", "high"),
            lambda n: n["low"] <= n["high"],
        ),
        "relu, clipped": Row(
            function("CLIP", function("RELU", X), Number(name="low"), Number(name="high")),
            Function("CLIP", 0.0, "high"),
            lambda n: n["low"] <= 0.0 <= n["high"],
        ),
        "relu of what is clipped above": Row(
            function("RELU", function("CLIP", X, Number(-inf), Number(name="high"))),
            Function("CLIP", 0.0, "high"),
            lambda n: n["high"] >= 0.0,
        ),
        "hard sigmoid": Row(function("CLIP", plus("b", times("a", X)), Number(0.0), Number(1.0)), Function("HARD_SIGMOID", "a", "b")),
        "hard sigmoid, sixths": Row(
            times(1 / 6, function("CLIP", plus(3.0, X), Number(0.0), Number(6.0))), Function("HARD_SIGMOID", 1 / 6, 0.5)
        ),
        "hard swish": Row(
            times(1.0, function("HARD_SIGMOID", X, Number(1 / 6, near=True), Number(0.5, near=True)), X), Function("HARD_SWISH")
        ),
        "hard swish, sixths": Row(times(1 / 6, function("CLIP", plus(3.0, X), Number(0.0), Number(6.0)), X), Function("HARD_SWISH")),
        "leaky relu, maximum": Row(
            either("MAX", times("slope", X), X), Function("LEAKY_RELU", "slope"), lambda n: 0.0 <= n["slope"] <= 1.0
        ),
        "leaky relu, difference": Row(  # Keras
            Call("BINARY", "SUB", (RELU_OF, times("slope", function("RELU", times(-1.0, X))))), Function("LEAKY_RELU", "slope")
        ),
        "leaky relu, choice": Row(Call("TERNARY", "WHERE", (POSITIVE, X, times("slope", X))), Function("LEAKY_RELU", "slope")),
        "leaky relu, one slope for all": Row(Call("BINARY", "PRELU", (X, Number(name="slope"))), Function("LEAKY_RELU", "slope")),
        "elu, choice": Row(Call("TERNARY", "WHERE", (POSITIVE, X, times("slope", EXP_MINUS_1))), Function("ELU", "slope")),
        "square": Row(Call("BINARY", "MUL", (X, X)), Function("SQUARE")),
    }


ACTIVATIONS = Table(_rows())


def fuse_activations(graph: Graph) -> None:
    rewriter = Rewriter(graph)

    def replace(node: Node, meaning: Function, m: Match) -> bool:
        x = m.tensors["x"]
        if x.shape != node.output.shape or x.dtype != node.output.dtype or (len(m.nodes) > 1 and not spares(rewriter, m.nodes)):
            return False
        a, b = (m.numbers[n] if isinstance(n, str) else n for n in (meaning.a, meaning.b))
        attrs = {"opcode": meaning.opcode, "a": -a if meaning.minus else a, "b": b}
        rewriter.replace(node, "UNARY", [x], attrs, meaning.opcode.title().replace("_", ""))
        return True

    ACTIVATIONS.rewrite(Matcher(rewriter, rounding=True), replace)
    rewriter.finish()
