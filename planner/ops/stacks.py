"""Stacks: layers that do not mix channels, run together by rows (BrainSlug: Weber et al., 2018, sections 3.2 and 4.1).

A stack is a program of steps, each an op of its own, of which only those that make an output write to memory. Regions, checks and costs of
the stack follow from its steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from aspen_mp.planner.ir.graph import Node, Shape, Tensor
from aspen_mp.planner.ops import convolutions, elementwise
from aspen_mp.planner.ops.boxes import Boxes, Region
from aspen_mp.planner.ops.call import F32, Arg, Call, Misfit, all_f32, need, ranked
from aspen_mp.planner.ops.params import Attrs, Param
from aspen_mp.planner.ops.spec import Cost, Input, Layout, OpSpec, TileModel
from aspen_mp.shm.tables import KERNEL_BY_CODE, KERNELS, NUMBERS

MOST_STEPS: Final = NUMBERS["STACK_STEPS"]
MOST_INPUTS: Final = NUMBERS["STACK_REFS"]
MOST_OUTPUTS: Final = NUMBERS["STACK_OUTPUTS"]
CHANNELS: Final = NUMBERS["STACK_CHANNELS"]
"""Channels that run through a program at a time."""
_WORDS: Final = NUMBERS["STACK_WORDS"]
_OUTPUT: Final = NUMBERS["STACK_OUTPUT"]
_HEAD: Final = _OUTPUT + 1
"""Words of a step before its inputs."""
_MOST_READ: Final = KERNELS["STACK"].max_inputs
_SPECS: Final = {
    spec.name: spec for spec in (*convolutions.SPECS, *elementwise.SPECS) if spec.name in {"POOL", "DWCONV", "UNARY", "BINARY", "TERNARY"}
}
STEPS: Final = frozenset(_SPECS)
"""Kernels that steps call."""
WINDOWS: Final = frozenset({"POOL", "DWCONV"})
ABSENT: Final = -1
NO_OUTPUT: Final = -1
MOST_PIXELS: Final = 1 << 27
"""Most pixels of the image that a step makes: scratch memory holds some of its rows."""
_WIDEST_WINDOW: Final = 1 << 15


@dataclass(frozen=True, slots=True)
class StackStep:
    """A call of a kernel. `inputs`: k, input k of the stack; -1, absent; -2 - j, the result of step j. `shapes`: of the inputs; () where
    one is absent. `shape`: of its result. `output`: which output of the stack that is, or `NO_OUTPUT`."""

    op: str
    attrs: tuple[tuple[str, Any], ...]
    inputs: tuple[int, ...]
    shapes: tuple[Shape, ...]
    shape: Shape
    output: int = NO_OUTPUT


@lru_cache(maxsize=4096)
def node_of(step: StackStep) -> Node:
    """The step as a node of its own, with tensors that stand for its inputs and its result."""
    inputs = [Tensor("", shape, np.dtype(np.float32)) if shape else None for shape in step.shapes]
    return Node(step.op, "", list(inputs), [Tensor("", step.shape, np.dtype(np.float32))], dict(step.attrs))


def layers(node: Node) -> list[Node]:
    """The layers that a stack runs (`spec.STACKS`), each as a node of its own. A slice of the batch has the layers of the whole batch."""
    if node.op == "STACK":
        return [node_of(step) for step in node.attrs["program"]]
    x, w, bias, depthwise, depthwise_bias = (*node.inputs, None, None)[:5]
    assert x is not None
    wide = Tensor("", (*node.output.shape[:2], *x.shape[2:]), np.dtype(np.float32))
    pointwise = {"groups": 1, "kernel": (1, 1), "strides": (1, 1), "dilations": (1, 1), "pads": (0, 0), "act": node.attrs["in_act"]}
    own = {key: node.attrs[key] for key in ("kernel", "strides", "dilations", "pads", "act")} | {"groups": wide.shape[1]}
    return [
        Node("CONV", node.name, [x, w, bias], [wide], pointwise),
        Node("DWCONV", node.name, [wide, depthwise, depthwise_bias], [node.output], own),
    ]


def regions(program: Sequence[StackStep], lo: Boxes, hi: Boxes) -> tuple[list[Region], dict[int, Region]]:
    """The regions that each step has to make for boxes of the outputs, and those needed of each input: hulls over its readers."""
    made: list[Region | None] = [None if step.output == NO_OUTPUT else (lo, hi) for step in program]
    needed: dict[int, Region] = {}
    for k in reversed(range(len(program))):
        own = made[k]
        if own is None:
            continue
        step, node = program[k], node_of(program[k])
        for i, (ref, shape) in enumerate(zip(step.inputs, step.shapes, strict=True)):
            if ref == ABSENT:
                continue
            found = _SPECS[step.op].region(node, i, shape, *own)
            if ref >= 0:
                needed[ref] = _hull(needed.get(ref), found)
            else:
                made[-2 - ref] = _hull(made[-2 - ref], found)
    return [region if region is not None else (np.zeros_like(lo), np.zeros_like(hi)) for region in made], needed


def _hull(a: Region | None, b: Region) -> Region:
    return b if a is None else (np.minimum(a[0], b[0]), np.maximum(a[1], b[1]))


def _region(node: Node, i: int, shape: Shape, lo: Boxes, hi: Boxes) -> Region:
    return regions(node.attrs["program"], lo, hi)[1][i]


def _words(attrs: Attrs) -> list[int]:
    program: tuple[StackStep, ...] = attrs["program"]
    words = [len(program)]
    for step in program:
        params = [word for param in _SPECS[step.op].params for word in param.of(dict(step.attrs))]
        refs = [*step.inputs, *[ABSENT] * (MOST_INPUTS - len(step.inputs))]
        row = [KERNELS[step.op].code, len(step.inputs), step.shape[2], step.shape[3], step.output, *refs, *params]
        words += row + [0] * (_WORDS - len(row))
    return words


def _checks(call: Call) -> None:
    """Every step by the checks of its own kernel, with the shapes that the program gives it."""
    all_f32(call)
    ranked(call.out, 4, "the output")
    need(len(call.params) > 0, "parameters", len(call.params), "one or more")
    count = call.params[0]
    need(0 < count <= MOST_STEPS, "steps", count, f"1 … {MOST_STEPS}")
    need(len(call.params) == 1 + count * _WORDS, "parameters", len(call.params), 1 + count * _WORDS)
    outputs = [word for word in call.params[1 + _OUTPUT :: _WORDS] if word != NO_OUTPUT]
    need(sorted(outputs) == list(range(1 + len(call.more))), "outputs of steps", outputs, f"0 … {len(call.more)}, each once")
    need(len(outputs) <= MOST_OUTPUTS, "outputs", len(outputs), f"1 … {MOST_OUTPUTS}")
    for i, more in enumerate(call.more):
        need(more.shape == call.out.shape, f"shape of output {1 + i}", more.shape, call.out.shape)
    made: list[Arg] = []
    for k in range(count):
        made.append(_check_step(call, k, call.params[1 + k * _WORDS : 1 + (k + 1) * _WORDS], made))


def _check_step(call: Call, k: int, words: Sequence[int], made: Sequence[Arg]) -> Arg:
    code, n_inputs, height, width, output = words[:_HEAD]
    kernel = KERNEL_BY_CODE.get(code)
    need(kernel is not None and kernel.name in STEPS, f"kernel of step {k}", code, "one that steps call")
    assert kernel is not None
    most = min(kernel.max_inputs, MOST_INPUTS)
    need(kernel.min_inputs <= n_inputs <= most, f"inputs of step {k}", n_inputs, f"{kernel.min_inputs} … {most}")
    need(
        height >= 0 and width >= 0 and height * width < MOST_PIXELS,
        f"image of step {k}",
        (height, width),
        f"less than {MOST_PIXELS} pixels",
    )
    params = words[_HEAD + MOST_INPUTS : _HEAD + MOST_INPUTS + kernel.n_params]
    out = Arg(F32, (*call.out.shape[:2], height, width), True)
    need(output == NO_OUTPUT or out.shape == call.out.shape, f"shape of step {k}", out.shape, call.out.shape)
    inputs: list[Arg | None] = []
    for ref in words[_HEAD : _HEAD + n_inputs]:
        need(-1 - len(made) <= ref < len(call.inputs), f"input of step {k}", ref, f"{-1 - len(made)} … {len(call.inputs) - 1}")
        x = made[-2 - ref] if ref < ABSENT else None if ref == ABSENT else call.inputs[ref]
        inputs.append(_broadcast(x, out) if x is not None and ref >= 0 and kernel.name not in WINDOWS else x)
    if kernel.name in WINDOWS:
        need(max(params[1:9]) < _WIDEST_WINDOW, f"window of step {k}", max(params[1:9]), f"less than {_WIDEST_WINDOW}")
        need(inputs[0] is None or inputs[0].shape[:2] == out.shape[:2], f"channels of step {k}", inputs[0], out.shape[:2])
    try:
        spec = _SPECS[kernel.name]
        assert spec.checks is not None
        spec.checks(Call(out, inputs, params))
    except Misfit as misfit:
        what, value, bound = misfit.args
        raise Misfit(f"step {k}, {what}", value, bound) from None
    return out


def _broadcast(x: Arg, out: Arg) -> Arg:
    """The operand as kernels of elements see it."""
    fits = len(x.shape) == 4 and all(d in (1, w) for d, w in zip(x.shape, out.shape, strict=False))
    return x._replace(shape=out.shape, dense=False) if fits else x


def step_ns(step: StackStep) -> float:
    """Arithmetic of a step: its kernel's time with all data at hand."""
    node, cost = node_of(step), _SPECS[step.op].cost
    work = cost.flops(node)
    return work * (cost.element_ns(node) + elementwise.activation_ns(node)) if cost.ns is None else cost.ns(node, work)


def _flops(node: Node) -> float:
    return float(sum(_SPECS[step.op].cost.flops(node_of(step)) for step in node.attrs["program"]))


def live_bytes(program: Sequence[StackStep]) -> float:
    """Bytes of scratch that a program takes at least, about: the rows that the windows behind a step see, and as many again, of each."""
    total = 0.0
    for k, step in enumerate(program[:-1]):
        spans = [convolutions.window_span(node_of(p), 0) for p in program[k + 1 :] if -2 - k in p.inputs[:1] and p.op in WINDOWS]
        rows = min(step.shape[2], max(spans, default=1) + ROWS_TOGETHER)
        total += 4.0 * CHANNELS * step.shape[3] * rows
    return total


ROWS_TOGETHER: Final = 3
"""Rows that a step makes at a time besides those that are still needed, about, where rows are long."""

SPECS = (
    OpSpec(
        name="STACK",
        inputs=(Input("x", "[N, C, H, W]"), *(Input(f"read {k}", "what steps read besides", True) for k in range(1, _MOST_READ))),
        params=(Param("program", "steps, see `StackStep`", 0, _words),),
        outputs=0,
        region=_region,
        checks=_checks,
        layout=Layout.SPREADS,
        whole_axes=lambda node: frozenset({3}),
        batch_rank=1,
        cost=Cost(_flops, tiles=TileModel.ROLLING),
    ),
)
