"""Epilogues: what follows a product element by element moves into its kernel, where the tile is still in registers.

Parts move in the order of the kernels' own arithmetic: alpha (a constant factor), bias, residual, activation, scale and shift by channel. A
residual may also come at the very end, where a GEMM can multiply with it, too. Only where the product has no other reader. Element-wise
sums and scalings take an activation too.
"""

from __future__ import annotations

from collections.abc import Set
from math import isfinite

import numpy as np

from aspen_mp.planner.ir.graph import Graph, Node, Shape, Tensor
from aspen_mp.planner.job import reasons
from aspen_mp.planner.job.reasons import Reason, Tried
from aspen_mp.planner.passes.rewrite import Rewriter, no_act, reshaped_constant, scalar_of
from aspen_mp.shm.tables import UNARY

_MATRICES = ("GEMM", "QNBITGEMM", "QGEMM", "QMATMUL")
_FLOATS = ("GEMM", "QNBITGEMM")
_SCALED = (*_FLOATS, "CONV", "WINO", "DWCONV")
"""Ops whose inputs 4 and 5 are scale and shift."""
_PRODUCTS = (*_SCALED, "QGEMM", "QMATMUL", "QCONV", "QDWCONV")
_MOVES = ("view.reshape", "view.transpose", "view.slice", "COPY")
_ANGLES = {f"{a}{f}{h}" for a in ("", "A") for f in ("SIN", "COS", "TAN") for h in ("", "H")} - {"TANH"}
ACTIVATIONS = frozenset(UNARY) - {"IDENTITY", "NOT", "BIT_NOT", "ISNAN", "ISINF"} - _ANGLES
"""Functions that every kernel's epilogue has."""


def sink_reshapes(graph: Graph) -> None:
    """f(reshape(product)) → reshape(f(product)), so that f can become the product's epilogue. The same holds for any op that only moves
    elements (pixels that a transposed convolution has computed as channels), where f has one argument."""
    rewriter = Rewriter(graph)
    sunk: set[Tensor] = set()  # results of functions that follow a product already
    for node in rewriter.live():
        if not rewriter.alive(node) or node.op not in {"UNARY", "BINARY"} or node.output.dtype != "float32":
            continue
        if node.op == "UNARY":
            inner = _sink_through(rewriter, node, sunk)
            if inner is not None:
                sunk.add(inner)
            continue
        for k, tensor in enumerate(node.inputs):
            view = rewriter.made_by(tensor, "view.reshape")
            if view is None or tensor is None or not rewriter.only_use(tensor) or tensor.shape != node.output.shape:
                continue
            source = view.inputs[0]
            if source is None or not rewriter.only_use(source):
                continue
            if source not in sunk and rewriter.made_by(source, *_PRODUCTS) is None:
                continue
            inner = _sink(rewriter, node, k, source)
            if inner is not None:
                sunk.add(inner)
                break
    rewriter.finish()


def _sink_through(rewriter: Rewriter, node: Node, sunk: Set[Tensor]) -> Tensor | None:
    moves: list[Node] = []
    source = node.inputs[0]
    while source is not None and rewriter.only_use(source) and (move := rewriter.made_by(source, *_MOVES)) is not None:
        moves.append(move)
        source = move.inputs[0]
    if not moves or source is None or not rewriter.only_use(source) or source.size > 2 * node.output.size:  # most of it is not wanted
        return None
    if source not in sunk and rewriter.made_by(source, *_PRODUCTS) is None:
        return None
    inner = moved = rewriter.insert(node, "UNARY", [source], source.shape, dict(node.attrs))
    for move in reversed(moves[1:]):
        moved = rewriter.insert(node, move.op, [moved], move.output.shape, dict(move.attrs))
    rewriter.replace(node, moves[0].op, [moved], dict(moves[0].attrs))
    return inner


def _sink(rewriter: Rewriter, node: Node, k: int, source: Tensor) -> Tensor | None:
    inputs: list[Tensor | None] = [source]
    if node.op == "BINARY":
        other = node.inputs[1 - k]
        assert other is not None
        shape = reshaped_operand(other.shape, node.output.shape, source.shape)
        if shape is None:
            return None
        if other.is_const:
            other = reshaped_constant(other, shape)
        elif shape != other.shape:
            other = rewriter.insert(node, "view.reshape", [other], shape, {})
        inputs = [source, other] if k == 0 else [other, source]
    inner = rewriter.insert(node, node.op, inputs, source.shape, dict(node.attrs))
    rewriter.replace(node, "view.reshape", [inner], {})
    return inner


def reshaped_operand(operand: Shape, whole: Shape, target: Shape) -> Shape | None:
    """The shape in which a broadcast operand of a tensor `whole` goes with the same tensor reshaped to `target`, if there is one."""
    if operand == whole:
        return target
    if all(d == 1 for d in operand):
        return (1,) * len(target)
    wide = [axis for axis, d in enumerate(whole) if d != 1]
    if [whole[a] for a in wide] == [d for d in target if d != 1]:  # only axes of dimension 1 come or go
        kept = iter(wide)
        return tuple(1 if d == 1 else operand[next(kept)] for d in target)
    if whole[-1:] == target[-1:] and all(d == 1 for d in operand[:-1]):
        return (1,) * (len(target) - 1) + operand[-1:]
    return None


def fuse_scales(graph: Graph) -> None:
    """Constant factors on a GEMM's result, or on what it multiplies, become its alpha."""
    rewriter = Rewriter(graph)
    for node in rewriter.live():
        if not rewriter.alive(node):
            continue
        if node.op == "BINARY":
            _scale_after(rewriter, node)
        elif node.op in _FLOATS:
            for k in (0, 1):
                _scale_before(rewriter, node, k)
    rewriter.finish()


def _factor(node: Node) -> tuple[int, float] | None:
    """(number of the scaled input, factor) of a product or quotient with a constant."""
    if node.op != "BINARY" or node.attrs["opcode"] not in {"MUL", "DIV"} or not no_act(node) or node.output.dtype != "float32":
        return None
    divide = node.attrs["opcode"] == "DIV"
    for k in (0,) if divide else (0, 1):
        value, x = scalar_of(node.inputs[1 - k]), node.inputs[k]
        if value is not None and x is not None and x.shape == node.output.shape and not (divide and value == 0.0):
            factor = 1.0 / value if divide else value
            if isfinite(factor):
                return k, factor
    return None


def _scale_after(rewriter: Rewriter, node: Node) -> None:
    found = _factor(node)
    if found is None:
        return
    product = rewriter.made_by(node.inputs[found[0]], *_FLOATS)
    if product is None or not rewriter.only_use(product.output) or len(product.inputs) > 2 or not no_act(product):
        return
    _absorb(rewriter, node, product, list(product.inputs), alpha=product.attrs["alpha"] * found[1])


def _scale_before(rewriter: Rewriter, node: Node, k: int) -> None:
    """Follows views from the operand up to a scaling; the chain must have no other reader."""
    tensor = node.inputs[k]
    chain: list[Node] = []
    while tensor is not None and rewriter.only_use(tensor):
        maker = rewriter.made_by(tensor)
        if maker is None:
            return
        found = _factor(maker)
        if found is not None:
            source = maker.inputs[found[0]]
            assert source is not None
            if chain:
                rewriter.replace(chain[-1], chain[-1].op, [source], chain[-1].attrs)
            else:
                inputs = list(node.inputs)
                inputs[k] = source
                rewriter.replace(node, node.op, inputs, node.attrs)
            node.attrs = {**node.attrs, "alpha": node.attrs["alpha"] * found[1]}
            return
        if maker.op not in {"view.reshape", "view.transpose"}:
            return
        chain.append(maker)
        tensor = maker.inputs[0]


def fuse_epilogues(graph: Graph) -> None:
    """Bias, residual, activation, scale and shift. One walk: each node sees its product with everything before already absorbed."""
    rewriter = Rewriter(graph)
    activated = {node.inputs[0] for node in graph.nodes if node.op == "UNARY" and node.attrs["opcode"] in ACTIVATIONS}
    for node in rewriter.live():
        if not rewriter.alive(node) or node.output.dtype != "float32":
            continue
        if node.op == "BINARY" and node.attrs["opcode"] == "ADD" and no_act(node):
            _add(rewriter, node)
        elif node.op == "UNARY" and node.attrs["opcode"] in ACTIVATIONS:
            _activate(rewriter, node)
        elif node.op in {"BINARY", "TERNARY"} and no_act(node) and not (node.output in activated and rewriter.only_use(node.output)):
            _scale(rewriter, node)  # otherwise it takes the activation itself: one pass too, and perhaps the next convolution's prologue
            if node.op == "BINARY" and node.attrs["opcode"] == "MUL":
                _gate(rewriter, node)
    rewriter.finish()


def _add(rewriter: Rewriter, node: Node) -> None:
    """x + y, where one of them is a product with a free place for the other. The later of two products takes the earlier."""
    candidates = []
    for k in (0, 1):
        product = rewriter.made_by(node.inputs[k], *_PRODUCTS, "STANDARDIZE")
        other = node.inputs[1 - k]
        if product is None or other is None or other is node.inputs[k] or not rewriter.only_use(product.output):
            continue
        if product.output.shape == node.output.shape:
            candidates.append((rewriter.order(product), product, other))
    for _, product, other in sorted(candidates, key=lambda c: -c[0]):
        inputs = _padded(product)
        if product.op == "STANDARDIZE":
            if no_act(product) and inputs[4] is None and other.shape == node.output.shape:
                _absorb(rewriter, node, product, [*inputs[:4], other])
                return
            continue
        if inputs[3] is not None:
            continue
        late = not _sums_only(product)
        place = _residual(product, other) if late else _place(product, inputs, other)
        if place is not None:
            inputs[place] = other if place == 3 or product.op in _MATRICES else reshaped_constant(other, (other.size,))
            _absorb(rewriter, node, product, inputs, **({"residual_last": True} if late else {}))
            return


def _gate(rewriter: Rewriter, node: Node) -> None:
    """x * y, where one of them is a product of matrices with a free place for the other: the gates of SwiGLU and its like. The later
    product takes the earlier."""
    candidates = []
    for k in (0, 1):
        product, other = rewriter.made_by(node.inputs[k], *_MATRICES), node.inputs[1 - k]
        if product is None or other is None or other is node.inputs[k] or other.is_const or not rewriter.only_use(product.output):
            continue
        if product.output.shape == node.output.shape and len(other.shape) == len(node.output.shape) and _padded(product)[3] is None:
            candidates.append((rewriter.order(product), product, other))
    if candidates:
        _, product, other = max(candidates, key=lambda c: c[0])
        inputs = _padded(product)
        inputs[3] = other
        _absorb(rewriter, node, product, inputs, residual_last=True, gated=True)


def _padded(product: Node) -> list[Tensor | None]:
    return [*product.inputs, *[None] * (6 - len(product.inputs))]


def _sums_only(product: Node) -> bool:
    """Has nothing been absorbed that comes after the sum?"""
    scaled = product.op in _SCALED and len(product.inputs) > 4
    return no_act(product) and not scaled and not product.attrs.get("gated", False)


def _residual(product: Node, other: Tensor) -> int | None:
    """3 for a residual, None where it does not fit."""
    return 3 if product.op in _MATRICES or other.shape == product.output.shape else None


def _place(product: Node, inputs: list[Tensor | None], other: Tensor) -> int | None:
    """2 for a bias, 3 for a residual, None where neither fits. A residual after a bias, never before."""
    if product.op in _MATRICES:
        return 2 if inputs[2] is None and other.is_const else 3
    channels = tuple(d if axis == 1 else 1 for axis, d in enumerate(product.output.shape))
    if inputs[2] is None and other.is_const and other.shape == channels:
        return 2
    return _residual(product, other)


def _activate(rewriter: Rewriter, node: Node) -> None:
    x = node.inputs[0]
    product = rewriter.made_by(x, *_PRODUCTS, "BINARY", "TERNARY", "STANDARDIZE")
    if product is None or x is None:
        return
    rules = {
        "others read what the function is of": not rewriter.only_use(x),
        "the op before has a function already": not no_act(product),
        f"the op before computes {product.output.dtype}": product.output.dtype != "float32",
        "the op before only chooses elements": product.op == "TERNARY" and product.attrs["opcode"] == "WHERE",
        "the op before scales its sums, or adds to them after that": product.op in _PRODUCTS and not _sums_only(product),
    }
    if refused := next((rule for rule, holds in rules.items() if holds), ""):
        tried = (Tried(f"{product.op} with the function", refused),)
        reasons.tell(lambda: Reason("fusion", "an op of its own", refused, tried=tried, node=node.name))
        return
    act = (node.attrs["opcode"], float(node.attrs["a"]), float(node.attrs["b"]))
    _absorb(rewriter, node, product, list(product.inputs), act=act)


def _scale(rewriter: Rewriter, node: Node) -> None:
    """product * constant, product / constant, product * constant + constant, by channel or altogether."""
    opcode = node.attrs["opcode"]
    if opcode not in {"MUL", "DIV", "FMA"}:
        return
    for k in (0, 1) if opcode == "MUL" else (0,):
        product = rewriter.made_by(node.inputs[k], *_SCALED)
        if product is None or not rewriter.only_use(product.output) or product.output.shape != node.output.shape:
            continue
        inputs = _padded(product)
        if inputs[4] is not None or product.attrs.get("residual_last", False):
            continue
        channels = node.output.shape[-1 if product.op in _FLOATS else 1]
        axis = len(node.output.shape) - 1 if product.op in _FLOATS else 1
        constants = [by_channel(t, axis, channels) for i, t in enumerate(node.inputs) if i != k]
        scale = constants[0]
        if scale is None or (opcode == "FMA" and constants[1] is None):
            continue
        if opcode == "DIV":
            scale = _reciprocal(scale)
        inputs[4] = scale
        inputs[5] = constants[1] if opcode == "FMA" else Tensor("0", (channels,), scale.dtype, data=np.zeros(channels, np.float32))
        _absorb(rewriter, node, product, inputs)
        return


def by_channel(tensor: Tensor | None, axis: int, channels: int) -> Tensor | None:
    """A constant that varies along `axis` alone, as a vector of all channels; None if it does not."""
    if tensor is None or not tensor.is_const or tensor.size not in {1, channels}:
        return None
    if any(d != 1 for a, d in enumerate(tensor.shape) if a != axis):
        return None
    if tensor.size == channels:
        return reshaped_constant(tensor, (channels,))
    # The number of channels may follow from the input shapes, where they are tokens: then this is not a weight of the model.
    return Tensor(f"{tensor.name}|{channels}", (channels,), tensor.dtype, data=np.full(channels, tensor.value().reshape(()), np.float32))


def _reciprocal(tensor: Tensor) -> Tensor:
    with np.errstate(divide="ignore"):
        value = (1.0 / tensor.value().astype(np.float64)).astype(np.float32)
    key = tensor.weight_key and f"{tensor.weight_key}|reciprocal"
    return Tensor(f"{tensor.name}|reciprocal", tensor.shape, tensor.dtype, data=value, weight_key=key)


def _absorb(rewriter: Rewriter, node: Node, product: Node, inputs: list[Tensor | None], **attrs: object) -> None:
    """`node` becomes the product with other attributes, at its own place in the order."""
    label = f"{product.onnx_op} + {node.onnx_op}"
    name = product.name
    rewriter.replace(node, product.op, inputs, {**product.attrs, **attrs}, label)
    node.name = name
