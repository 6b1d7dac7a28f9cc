"""Sums of convolutions of the same image become one convolution. Such blocks were trained with branches, and exported so (RepVGG,
MobileOne, FastViT; Ding et al., "RepVGG: Making VGG-style ConvNets Great Again", CVPR 2021, section 3.3). A branch may also be a
BatchNormalization of the image, a window of one element. It may be the image itself, beside a convolution of each channel alone. At ONNX
level, where weights are not packed yet.

Branches whose windows do not lie in one another stay apart where one window around both would cost more than they do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.ir.graph import Graph, Node, Shape, Tensor
from aspen_mp.planner.job import reasons
from aspen_mp.planner.job.reasons import Reason, Tried
from aspen_mp.planner.lower.builder import NoKernel
from aspen_mp.planner.lower.products import window
from aspen_mp.planner.passes.batchnorm import batch_norm, fold_affine

_F32 = np.dtype(np.float32)


@dataclass(frozen=True, slots=True)
class _Branch:
    """``weights``: [outputs, inputs of a group, window …]. ``begin``, ``end``: pads. ``bias_key``: of the bias where that
    comes from the model, "" where there is none."""

    x: Tensor
    label: str
    weights: Tensor
    bias: npt.NDArray[np.float64] | None
    bias_key: str | None
    groups: int
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]

    @property
    def kernel(self) -> Shape:
        return self.weights.shape[2:]


@dataclass(frozen=True, slots=True)
class _Window:
    """One that holds those of two branches."""

    groups: int
    kernel: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]


def merge_branches(graph: Graph) -> None:
    """Again and again, because a scale or shift of a sum joins its weights, and the sum may be a branch of another."""
    while graph.has("Conv") and _merge(graph):
        fold_affine(graph)


def _merge(graph: Graph) -> bool:
    uses, producer = graph.uses(), graph.producers()
    dead: set[int] = set()
    for node in graph.nodes:
        if node.op not in {"Add", "Sub"} or len(node.inputs) != 2 or any(t is None or t.shape != node.output.shape for t in node.inputs):
            continue
        for of in _pairs([t for t in node.inputs if t is not None], producer, uses):
            around = _around(*of)
            if around is not None:
                branches = [producer[t] for t, branch in zip(node.inputs, of, strict=True) if t is not None and t is not branch.x]
                dead.update(map(id, branches))
                reasons.tell(partial(_reason, node.name, [branch.name for branch in branches]))
                _become(node, of, around)
                break
    graph.nodes = [n for n in graph.nodes if id(n) not in dead]
    return bool(dead)


def _reason(name: str, branches: Sequence[str]) -> Reason:
    tried = (Tried("a convolution for each branch", "each would read the image"),)
    return Reason("fusion", "one convolution", "sums of convolutions of one image", tried=tried, absorbed=tuple(branches), node=name)


def _pairs(tensors: Sequence[Tensor], producer: dict[Tensor, Node], uses: dict[Tensor, int]) -> list[tuple[_Branch, _Branch]]:
    """The two tensors as branches of the same image, in each possible way. One is a convolution; the other is a convolution, the normalised
    image, or the image."""
    convolutions = [_convolution(producer[t]) if t in producer and uses[t] == 1 else None for t in tensors]
    found = []
    for k in (0, 1):
        one, tensor = convolutions[k], tensors[1 - k]
        if one is None or one.x.dtype != _F32:
            continue
        other = convolutions[1 - k]
        if other is None and (tensor is not one.x or one.weights.shape[1] == 1):  # a residual beside many products keeps its last bits
            other = _itself(tensor, producer.get(tensor) if uses[tensor] == 1 else None, one.x)
        if other is not None and other.x is one.x:
            found.append((other, one) if k else (one, other))
    return found


def _convolution(node: Node) -> _Branch | None:
    if node.op != "Conv" or node.output.dtype != _F32:
        return None
    x, weights, bias = node.inputs[0], node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
    if x is None or weights is None or not weights.is_const or (bias is not None and not bias.is_const) or x.size == 0:
        return None
    try:
        strides, dilations, begin, end = window(node, weights.shape[2:], x.shape[2:])
    except NoKernel:
        return None
    if node.attrs.get("auto_pad", "NOTSET") not in {"NOTSET", "VALID"} and set(strides) != {1}:
        return None  # where its window lies depends on the image's size
    vector = None if bias is None else bias.value().astype(np.float64)
    key = "" if bias is None else bias.weight_key
    groups = int(node.attrs.get("group", 1))
    return _Branch(x, node.onnx_op, weights, vector, key, groups, tuple(strides), tuple(dilations), tuple(begin), tuple(end))


def _itself(tensor: Tensor, node: Node | None, x: Tensor) -> _Branch | None:
    """The image or its normalisation, each channel as a group of its own."""
    channels, axes = x.shape[1], len(x.shape) - 2
    factor, offset, label = np.ones(channels), None, ""
    key: str | None = f"ones{channels}"
    if tensor is not x:
        constants = batch_norm(node) if node is not None and node.op == "BatchNormalization" and node.inputs[0] is x else None
        if node is None or constants is None:
            return None
        factor, offset, key = constants
        label = node.onnx_op
    shape = (channels, *[1] * (axes + 1))
    weights = Tensor(f"{tensor.name}|itself", shape, _F32, data=factor.astype(np.float32).reshape(shape), weight_key=key)
    one, zero = (1,) * axes, (0,) * axes
    return _Branch(x, label, weights, offset, "" if offset is None else key, channels, one, one, zero, zero)


def _around(a: _Branch, b: _Branch) -> _Window | None:
    """The window that the sum of both needs; None where there is none, or it costs more than both."""
    if a.strides != b.strides or max(a.groups, b.groups) % min(a.groups, b.groups):
        return None
    kernel, dilations, begin, end = [], [], [], []
    for axis in range(len(a.kernel)):
        steps = {d for k, d in ((a.kernel[axis], a.dilations[axis]), (b.kernel[axis], b.dilations[axis])) if k > 1}
        if len(steps) > 1:
            return None
        apart = abs(a.begin[axis] - b.begin[axis])
        step = steps.pop() if steps else max(apart, 1)
        if apart % step:
            return None
        # From the first element of the image that the output's first sees, to the last.
        first = max(a.begin[axis], b.begin[axis])
        last, pad = max(((v.kernel[axis] - 1) * step - v.begin[axis], v.end[axis]) for v in (a, b))
        kernel.append((last + first) // step + 1)
        dilations.append(step)
        begin.append(first)
        end.append(pad)
    groups = min(a.groups, b.groups)
    if prod(kernel) * a.x.shape[1] // groups > prod(a.weights.shape[1:]) + prod(b.weights.shape[1:]):
        return None
    return _Window(groups, tuple(kernel), tuple(dilations), tuple(begin), tuple(end))


def _become(node: Node, of: tuple[_Branch, _Branch], around: _Window) -> None:
    """Turns the sum `node` into a convolution."""
    x, shape, minus = of[0].x, node.output.shape, node.op == "Sub"
    keys = [f"{v.weights.weight_key}@{v.groups}{v.kernel}{v.begin}" for v in of if v.weights.weight_key is not None]
    key = f"{node.op}:{keys}{around}" if len(keys) == 2 else None
    pack = partial(_write, tuple((v.weights, v.groups, v.begin) for v in of), around, minus)
    weights = Tensor(
        f"{node.output.name}|branches", (shape[1], x.shape[1] // around.groups, *around.kernel), _F32, weight_key=key, pack=pack
    )
    inputs: list[Tensor | None] = [x, weights]
    if any(v.bias is not None for v in of):
        first, second = (np.zeros(shape[1]) if v.bias is None else v.bias for v in of)
        data = (first - second if minus else first + second).astype(np.float32)
        bias_key = None if any(v.bias_key is None for v in of) else f"{node.op}:{[v.bias_key for v in of]}"
        inputs.append(Tensor(f"{node.output.name}|bias", (shape[1],), _F32, data=data, weight_key=bias_key))
    node.onnx_op = " + ".join([*(v.label for v in of if v.label), node.onnx_op])
    node.op, node.inputs = "Conv", inputs
    node.attrs = {
        "group": around.groups,
        "kernel_shape": list(around.kernel),
        "strides": list(of[0].strides),
        "dilations": list(around.dilations),
        "pads": [*around.begin, *around.end],
    }


def _write(of: Sequence[tuple[Tensor, int, tuple[int, ...]]], around: _Window, minus: bool, out: npt.NDArray[Any]) -> None:
    """Weights of branches, each where it lies in the window around both, and among the inputs of the larger groups."""
    out[...] = 0
    for k, (weights, groups, begin) in enumerate(of):
        value = weights.value()
        starts = [(wide - own) // step for wide, own, step in zip(around.begin, begin, around.dilations, strict=True)]
        place = tuple(slice(at, at + n) for at, n in zip(starts, value.shape[2:], strict=True))
        outputs, inputs, joined = value.shape[0] // groups, value.shape[1], groups // around.groups
        for group in range(groups if joined > 1 else 1):
            rows = slice(group * outputs, (group + 1) * outputs) if joined > 1 else slice(None)
            columns = slice(group % joined * inputs, (group % joined + 1) * inputs)
            part = out[(rows, columns, *place)]
            np.add(part, -value[rows] if k and minus else value[rows], out=part)
