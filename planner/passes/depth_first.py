"""Depth-first stacks: layers that do not mix channels become one op, whose rows roll through all of them (BrainSlug: Weber et al., 2018).

The paper's terms: a stack is a maximal run of such layers (3.2); it is cut into sequences whose data fit a cache (4.1). A STACK op is one
sequence. Here a run is any part of the graph that leads to one layer. Results that other nodes read, too, are further outputs if those
nodes come behind that layer. A sequence ends where the rows that are alive outgrow a core's own cache. Results have the same bits as layer
by layer.
"""

from __future__ import annotations

from functools import partial
from math import ceil, inf, prod
from typing import Final

from aspen_mp.planner.cost import op_cost, tile_cost
from aspen_mp.planner.ir.graph import Graph, Node, Tensor
from aspen_mp.planner.job import reasons
from aspen_mp.planner.job.reasons import Reason, Tried
from aspen_mp.planner.ops.stacks import (
    ABSENT,
    MOST_INPUTS,
    MOST_OUTPUTS,
    MOST_PIXELS,
    MOST_STEPS,
    NO_OUTPUT,
    STEPS,
    WINDOWS,
    StackStep,
    live_bytes,
)
from aspen_mp.planner.passes.rewrite import Rewriter
from aspen_mp.shm.tables import KERNELS, NUMBERS

MOST_READ: Final = KERNELS["STACK"].max_inputs
MOST_IMAGES: Final = NUMBERS["STACK_IMAGES"]
Readers = dict[Tensor, list[tuple[Node, int]]]


def fuse_stacks(graph: Graph, most_steps: int | None = None) -> None:
    """Fuses stacks from the last layer of each backwards. `most_steps`: of a sequence."""
    if not graph.has(*WINDOWS):
        return
    rewriter = Rewriter(graph)
    readers = graph.consumers()
    for node in reversed(rewriter.live()):
        if not rewriter.alive(node) or not _fits(node):
            continue
        members = _members(rewriter, node, readers, min(most_steps or MOST_STEPS, MOST_STEPS))
        if len(members) > 1 and any(member.op in WINDOWS for member in members):
            _replace(rewriter, node, members, readers)
    rewriter.finish()


def _fits(node: Node) -> bool:
    """Whether a step can be this: an image of floats made of images of as many channels, pixel by pixel or window by window."""
    if node.op not in STEPS or len(node.inputs) > MOST_INPUTS:
        return False
    out, x = node.output, node.inputs[0]
    if any(t is not None and t.dtype != "float32" for t in (out, *node.inputs)):
        return False
    if len(out.shape) != 4 or not 2 <= prod(out.shape[2:]) < MOST_PIXELS:
        return False
    if node.op == "DWCONV":
        return x is not None and x.shape[1] == out.shape[1] and len(x.shape) == 4
    if node.op == "POOL":
        return x is not None and x.shape[:2] == out.shape[:2]
    return True


def _members(rewriter: Rewriter, last: Node, readers: Readers, most: int) -> list[Node]:
    """The steps of a stack of at most `most` that ends with `last`, in the order of the graph. They are the most that fit. If their rows
    outgrow the cache, they are the last of sequences of about the same length."""
    found = _largest(rewriter, last, readers, most, inf)
    live, own = live_bytes(_program(found, [last.output])[0]), op_cost.rates().own
    return found if live <= own else _largest(rewriter, last, readers, most, live / ceil(live / own))


def _largest(rewriter: Rewriter, last: Node, readers: Readers, most: int, most_bytes: float) -> list[Node]:
    members = {id(last): last}
    refused: set[int] = set()
    while len(members) < most:
        found = _next(rewriter, last, members, refused, readers)
        if found is None:
            break
        longer = sorted([*members.values(), found], key=rewriter.order)
        program, read = _program(longer, _results(rewriter, last, longer, readers))
        images = sum(len(x.shape) == 4 and prod(x.shape[2:]) > 1 for x in read)
        if live_bytes(program) > most_bytes or len(read) > MOST_READ or images > MOST_IMAGES:
            refused.add(id(found))
        else:
            members[id(found)] = found
    return sorted(members.values(), key=rewriter.order)


def _next(rewriter: Rewriter, last: Node, members: dict[int, Node], refused: set[int], readers: Readers) -> Node | None:
    """The node to add: it makes something that members read, and fits. A node that members alone read goes before one whose result becomes
    an output."""
    results = _results(rewriter, last, list(members.values()), readers)
    shared = None
    for member in members.values():
        for x in member.inputs:
            maker = rewriter.made_by(x, *STEPS)
            if maker is None or id(maker) in members or id(maker) in refused or not rewriter.alive(maker) or not _fits(maker):
                continue
            outside = [reader for reader in _readers(rewriter, maker, readers) if id(reader) not in members]
            if not outside and maker.output not in rewriter.kept:
                return maker
            same = maker.output.shape == last.output.shape and len(results) < MOST_OUTPUTS
            if same and all(rewriter.order(reader) > rewriter.order(last) for reader in outside):
                shared = shared or maker
    return shared


def _readers(rewriter: Rewriter, node: Node, readers: Readers) -> list[Node]:
    return [reader for reader, _ in readers.get(node.output, ()) if rewriter.alive(reader)]


def _results(rewriter: Rewriter, last: Node, members: list[Node], readers: Readers) -> list[Tensor]:
    """The outputs of a stack of these: the result of `last`, and results that are graph outputs or that others read."""
    inside = {id(member) for member in members}
    more = [
        member.output
        for member in members
        if member is not last
        and (member.output in rewriter.kept or any(id(reader) not in inside for reader in _readers(rewriter, member, readers)))
    ]
    return [last.output, *more]


def _program(members: list[Node], results: list[Tensor]) -> tuple[tuple[StackStep, ...], list[Tensor]]:
    """The program of these nodes, and its inputs."""
    made = {member.output: k for k, member in enumerate(members)}
    outputs = {t: k for k, t in enumerate(results)}
    read: dict[Tensor, int] = {}
    steps = []
    for member in members:
        refs = []
        for x in member.inputs:
            if x is None:
                refs.append(ABSENT)
            elif x in made:
                refs.append(-2 - made[x])
            else:
                refs.append(read.setdefault(x, len(read)))
        shapes = tuple([() if x is None else x.shape for x in member.inputs])
        output = outputs.get(member.output, NO_OUTPUT)
        steps.append(StackStep(member.op, tuple(member.attrs.items()), tuple(refs), shapes, member.output.shape, output))
    return tuple(steps), list(read)


def _replace(rewriter: Rewriter, node: Node, members: list[Node], readers: Readers) -> None:
    """Makes the last member the stack, if that is worth it."""
    results = _results(rewriter, node, members, readers)
    program, read = _program(members, results)
    stack = Node("STACK", node.name, list(read), results, {"program": program})
    gains = worth(stack, members)
    reasons.tell(partial(_stacked, stack, members, gains))
    if gains:
        rewriter.replace(node, "STACK", read, stack.attrs, " + ".join(member.onnx_op for member in members))
        rewriter.adopt(node, [member for member in members if member.output in results[1:]])
        for i, x in enumerate(read):
            readers.setdefault(x, []).append((node, i))


def _stacked(stack: Node, members: list[Node], gains: bool) -> Reason:
    apart, together = sum(map(tile_cost.whole_ns, members)) * 1e-6, tile_cost.whole_ns(stack) * 1e-6
    names = tuple([member.name for member in members])
    one, each = f"one stack of {len(members)} steps", "layer by layer"
    if gains:
        return Reason("stack", one, "least time", together, "one core", (Tried(each, "it takes longer", apart),), names, stack.name)
    rule = "it takes longer" if len(stack.outputs) < len(members) else "it would write every result all the same"
    return Reason("stack", each, "least time", apart, "one core", (Tried(one, rule, together),), (), stack.name)


def worth(stack: Node, members: list[Node]) -> bool:
    """Whether the stack takes less time by the cost model than layer by layer, and spares a result. A stack that outputs all of them gains
    nothing."""
    return len(stack.outputs) < len(members) and tile_cost.whole_ns(stack) < sum(map(tile_cost.whole_ns, members))
