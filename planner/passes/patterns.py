"""Functions that exporters spell out in elementary operators: LayerNorm, RMSNorm, GELU (erf and tanh), SiLU, Mish, hard-swish.

Matched among kernels, where spellings have already become few: powers of 2 are SQUARE, all ranks agree, casts that do nothing are gone.
Products are looked at as sets of factors, so that the order and nesting in which an exporter multiplies does not matter.
"""

from __future__ import annotations

from math import pi, sqrt

from aspen_mp.planner.ir import Graph, Node, Shape, Tensor
from aspen_mp.planner.params import NO_ACT
from aspen_mp.planner.passes.rewrite import Rewriter, close, no_act, scalar_of


def fuse_norms(graph: Graph) -> None:
    """(x - mean) / sqrt(mean((x - mean)²) + eps), with or without scale and bias, and x / sqrt(mean(x²) + eps) become NORM."""
    rewriter = Rewriter(graph)
    for node in rewriter.live():
        if rewriter.alive(node) and node.op == "BINARY" and node.output.dtype == "float32" and no_act(node):
            _norm(rewriter, node)
    for node in rewriter.live():
        if rewriter.alive(node) and node.op == "BINARY" and no_act(node):
            _scale_and_bias(rewriter, node)
    rewriter.finish()


def _norm(rewriter: Rewriter, node: Node) -> None:
    """`node` divides by a deviation, or multiplies with the reciprocal of one."""
    if node.attrs["opcode"] == "DIV":
        pairs = [(node.inputs[0], node.inputs[1])]
    elif node.attrs["opcode"] == "MUL":
        pairs = []
        for k in (0, 1):
            pairs.append((node.inputs[1 - k], _inverse_of(rewriter, node.inputs[k])))
    else:
        return
    for centred, deviation in pairs:
        if centred is None or deviation is None or centred.shape != node.output.shape:
            continue
        found = _deviation(rewriter, deviation)
        if found is None:
            continue
        squared, axis, eps = found
        if not _same_square(rewriter, squared, centred):
            continue
        x = _centred(rewriter, centred, axis)
        if x is not None:
            rewriter.replace(node, "NORM", [x], {"axis": axis, "mode": "layer", "eps": eps}, "LayerNormalization")
        else:
            rewriter.replace(node, "NORM", [centred], {"axis": axis, "mode": "rms", "eps": eps}, "RMSNormalization")
        return


def _inverse_of(rewriter: Rewriter, tensor: Tensor | None) -> Tensor | None:
    """d if the tensor is 1 / d, as an operator or a quotient."""
    node = rewriter.made_by(tensor, "UNARY", "BINARY")
    if node is None or not no_act(node):
        return None
    if node.op == "UNARY":
        return node.inputs[0] if node.attrs["opcode"] == "RECIPROCAL" else None
    return node.inputs[1] if node.attrs["opcode"] == "DIV" and scalar_of(node.inputs[0]) == 1.0 else None


def _deviation(rewriter: Rewriter, tensor: Tensor) -> tuple[Tensor, int, float] | None:
    """(v, axis, eps) if the tensor is sqrt(mean(v over axis … last) + eps)."""
    root = rewriter.made_by(tensor, "UNARY")
    if root is None or root.attrs["opcode"] != "SQRT":
        return None
    total = rewriter.made_by(root.inputs[0], "BINARY")
    if total is None or total.attrs["opcode"] != "ADD" or not no_act(total):
        return None
    for k in (0, 1):
        eps = scalar_of(total.inputs[1 - k])
        mean = rewriter.made_by(total.inputs[k], "REDUCE")
        axis = _trailing(mean)
        if eps is not None and mean is not None and axis is not None and mean.inputs[0] is not None:
            return mean.inputs[0], axis, eps
    return None


def _trailing(mean: Node | None) -> int | None:
    """The first axis of a mean over all axes from it on."""
    if mean is None or mean.attrs["opcode"] != "MEAN" or mean.output.dtype != "float32":
        return None
    axes, rank = mean.attrs["axes"], len(mean.output.shape)
    return axes[0] if axes and tuple(axes) == tuple(range(axes[0], rank)) else None


def _same_square(rewriter: Rewriter, squared: Tensor, centred: Tensor) -> bool:
    """Whether squared = centred², which may have been computed a second time from the same difference."""
    node = rewriter.made_by(squared)
    if node is None:
        return False
    square = node.op == "UNARY" and node.attrs["opcode"] == "SQUARE"
    if not square and not (node.op == "BINARY" and node.attrs["opcode"] == "MUL" and no_act(node) and node.inputs[0] is node.inputs[1]):
        return False
    base = node.inputs[0]
    if base is centred:
        return True
    first, second = rewriter.made_by(base, "BINARY"), rewriter.made_by(centred, "BINARY")
    return (
        first is not None
        and second is not None
        and first.attrs["opcode"] == second.attrs["opcode"] == "SUB"
        and no_act(first)
        and no_act(second)
        and first.inputs == second.inputs
    )


def _centred(rewriter: Rewriter, tensor: Tensor, axis: int) -> Tensor | None:
    """x if the tensor is x - mean(x over axis … last)."""
    difference = rewriter.made_by(tensor, "BINARY")
    if difference is None or difference.attrs["opcode"] != "SUB" or not no_act(difference):
        return None
    mean = rewriter.made_by(difference.inputs[1], "REDUCE")
    if mean is None or _trailing(mean) != axis or mean.inputs[0] is not difference.inputs[0]:
        return None
    return difference.inputs[0]


def _scale_and_bias(rewriter: Rewriter, node: Node) -> None:
    """norm(x) * scale (+ bias): free places of NORM."""
    opcode = node.attrs["opcode"]
    if opcode not in {"MUL", "ADD"}:
        return
    for k in (0, 1):
        norm, other = rewriter.made_by(node.inputs[k], "NORM"), node.inputs[1 - k]
        if norm is None or other is None or not other.is_const or not rewriter.only_use(norm.output):
            continue
        if node.output.shape != norm.output.shape:
            continue
        inputs = list(norm.inputs) + [None] * (3 - len(norm.inputs))
        place = 1 if opcode == "MUL" else 2
        if inputs[place] is not None or (place == 1 and inputs[2] is not None):
            continue
        inputs[place] = other
        rewriter.replace(node, "NORM", inputs, norm.attrs, norm.onnx_op)
        return


# ------------------------------------------------------------------------------------------------------------ activations


def fuse_activations(graph: Graph) -> None:
    """Products that are x · g(x) for a known g become one function."""
    rewriter = Rewriter(graph)
    for node in reversed(rewriter.live()):  # the last product of a chain first: it has all factors
        if rewriter.alive(node) and node.op == "BINARY" and node.output.dtype == "float32" and no_act(node):
            _activation(rewriter, node)
    rewriter.finish()


class _Product:
    """A product as constant × tensors."""

    def __init__(self, rewriter: Rewriter, tensor: Tensor, shape: Shape) -> None:
        self.constant = 1.0
        self.factors: list[Tensor] = []
        self._collect(rewriter, tensor, shape, True)

    def _collect(self, rewriter: Rewriter, tensor: Tensor, shape: Shape, top: bool) -> None:
        node = rewriter.made_by(tensor, "BINARY", "UNARY")
        value = scalar_of(tensor)
        if value is not None:
            self.constant *= value
        elif node is not None and node.op == "BINARY" and no_act(node) and tensor.shape == shape and (top or rewriter.only_use(tensor)):
            first, second = node.inputs
            assert first is not None
            assert second is not None
            divisor = scalar_of(second)
            if node.attrs["opcode"] == "MUL":
                self._collect(rewriter, first, shape, False)
                self._collect(rewriter, second, shape, False)
            elif node.attrs["opcode"] == "DIV" and divisor is not None and divisor != 0.0:
                self.constant /= divisor
                self._collect(rewriter, first, shape, False)
            else:
                self.factors.append(tensor)
        elif node is not None and node.op == "UNARY" and node.attrs["opcode"] == "SQUARE" and rewriter.only_use(tensor) and not top:
            assert node.inputs[0] is not None
            self.factors += [node.inputs[0]] * 2
        else:
            self.factors.append(tensor)


def _activation(rewriter: Rewriter, node: Node) -> None:
    if node.attrs["opcode"] not in {"MUL", "DIV"}:
        return
    product = _Product(rewriter, node.output, node.output.shape)
    if len(product.factors) != 2:
        return
    for x, gate in (product.factors, reversed(product.factors)):
        if x.shape != node.output.shape or gate.shape != node.output.shape:
            continue
        found = _gate(rewriter, x, gate, product.constant)
        if found is not None:
            opcode, a = found
            rewriter.replace(node, "UNARY", [x], {"opcode": opcode, "a": a, "b": 0.0}, opcode.title().replace("_", ""))
            return


def _gate(rewriter: Rewriter, x: Tensor, gate: Tensor, constant: float) -> tuple[str, float] | None:
    """(function, its a) that equals constant · x · gate."""
    node = rewriter.made_by(gate)
    if node is None:
        return None
    if node.op == "UNARY" and close(constant, 1.0):
        inner = node.inputs[0]
        opcode = node.attrs["opcode"]
        if opcode == "SIGMOID" and inner is not None:
            argument = _Product(rewriter, inner, inner.shape) if inner is not x else None
            if argument is None:
                return "SWISH", 1.0
            return ("SWISH", argument.constant) if argument.factors == [x] else None
        if opcode == "HARD_SIGMOID" and inner is x and close(node.attrs["a"], 1 / 6) and close(node.attrs["b"], 0.5):
            return "HARD_SWISH", 0.0
        if opcode == "TANH":
            softplus = rewriter.made_by(inner, "UNARY")
            if softplus is not None and softplus.attrs["opcode"] == "SOFTPLUS" and softplus.inputs[0] is x:
                return "MISH", 0.0
        return None
    if node.op != "BINARY" or node.attrs["opcode"] != "ADD" or not no_act(node):
        return None
    for k in (0, 1):
        one, curve = scalar_of(node.inputs[1 - k]), rewriter.made_by(node.inputs[k], "UNARY")
        if curve is None or curve.inputs[0] is None:
            continue
        if close(one, 1.0) and close(constant, 0.5):
            return _gelu(rewriter, x, curve)
        if close(one, 0.5) and close(constant, 1.0):
            return None
    return None


def _gelu(rewriter: Rewriter, x: Tensor, curve: Node) -> tuple[str, float] | None:
    argument = curve.inputs[0]
    assert argument is not None
    inner = _Product(rewriter, argument, argument.shape)
    if curve.attrs["opcode"] == "ERF":
        return ("GELU_ERF", 0.0) if close(inner.constant, 1 / sqrt(2)) and inner.factors == [x] else None
    if curve.attrs["opcode"] != "TANH" or not close(inner.constant, sqrt(2 / pi)):
        return None
    if len(inner.factors) == 1:  # x + 0.044715 x³
        return ("GELU_TANH", 0.0) if _plus(rewriter, inner.factors[0], x, 3) else None
    for k in range(len(inner.factors)):  # x (1 + 0.044715 x²)
        if inner.factors[k] is x and len(inner.factors) == 2 and _plus(rewriter, inner.factors[1 - k], None, 2, x):
            return "GELU_TANH", 0.0
    return None


def _plus(rewriter: Rewriter, tensor: Tensor, term: Tensor | None, power: int, x: Tensor | None = None) -> bool:
    """Whether the tensor is term + 0.044715 · x^power; term None stands for 1, x defaults to term."""
    x = term if x is None else x
    total = rewriter.made_by(tensor, "BINARY")
    if total is None or total.attrs["opcode"] != "ADD" or not no_act(total):
        return False
    for k in (0, 1):
        first, rest = total.inputs[k], total.inputs[1 - k]
        if rest is None or not (first is term if term is not None else close(scalar_of(first), 1.0)):
            continue
        product = _Product(rewriter, rest, rest.shape)
        if close(product.constant, 0.044715) and x is not None and _power(rewriter, product.factors, x) == power:
            return True
    return False


def _power(rewriter: Rewriter, factors: list[Tensor], x: Tensor) -> int:
    """n if the product of the factors is x^n, else 0."""
    total = 0
    for factor in factors:
        if factor is x:
            total += 1
            continue
        node = rewriter.made_by(factor, "BINARY", "UNARY")
        if node is None or node.inputs[0] is not x:
            return 0
        if node.op == "UNARY" and node.attrs["opcode"] == "SQUARE":
            total += 2
        elif (
            node.op == "BINARY"
            and node.attrs["opcode"] == "POW"
            and scalar_of(node.inputs[1]) in {2.0, 3.0}
            and node.attrs["act"] == NO_ACT
        ):
            total += int(scalar_of(node.inputs[1]) or 0)
        else:
            return 0
    return total
