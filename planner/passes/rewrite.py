"""Shared by rewrites: readers of tensors, and replacing a node in place while nodes that it no longer needs disappear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy.typing as npt

from aspen_mp.planner.cost import tile_cost
from aspen_mp.planner.ir.graph import VIEW_OPS, Graph, Node, Shape, Tensor
from aspen_mp.planner.job import reasons
from aspen_mp.planner.job.reasons import Reason, Tried
from aspen_mp.planner.ops.params import NO_ACT


class Rewriter:
    """A graph with use counts. Rewrites happen at the last node of a pattern, so that the order stays topological. Where a pass finds
    nothing to look at closer, it works out nothing else."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.kept = set(graph.outputs)
        self.dead: set[int] = set()
        self._before: dict[int, list[Node]] = {}
        self._views: dict[Tensor, list[Node]] | None = None
        self._killed: list[Node] | None = [] if reasons.asked() else None

    @cached_property
    def uses(self) -> dict[Tensor, int]:
        """How many node inputs read each tensor."""
        counts: dict[Tensor, int] = {}
        for node in self.graph.nodes:
            for tensor in node.inputs:
                if tensor is not None:
                    counts[tensor] = counts.get(tensor, 0) + 1
        return counts

    @cached_property
    def producer(self) -> dict[Tensor, Node]:
        """For every result, the node that gives it."""
        return self.graph.producers()

    @cached_property
    def _order(self) -> dict[int, int]:
        return {id(node): k for k, node in enumerate(self.graph.nodes)}

    def live(self) -> list[Node]:
        """The nodes at the start of a pass; those that have died since are to be skipped by `alive`."""
        return list(self.graph.nodes)

    def alive(self, node: Node) -> bool:
        return id(node) not in self.dead

    def order(self, node: Node) -> int:
        """The node's place in the graph as it was at the start of the pass."""
        return self._order.get(id(node), 0)

    def made_by(self, tensor: Tensor | None, *ops: str) -> Node | None:
        """The node of one of these kernels that computes `tensor`, if any."""
        node = self.producer.get(tensor) if tensor is not None else None
        return node if node is not None and (not ops or node.op in ops) else None

    def only_use(self, tensor: Tensor) -> bool:
        """Whether exactly one node input reads the tensor, and the graph does not give it."""
        return self.uses.get(tensor, 0) == 1 and tensor not in self.kept

    def replace(self, node: Node, op: str, inputs: Sequence[Tensor | None], attrs: dict[str, Any], label: str | None = None) -> None:
        """Makes `node` another operation with the same output; nodes that only it had read die."""
        uses, old = self.uses, list(node.inputs)
        before = replace(node) if self._killed is not None else node
        node.op, node.inputs, node.attrs = op, list(inputs), attrs
        while node.inputs and node.inputs[-1] is None:
            node.inputs.pop()
        if label is not None:
            node.onnx_op = label
        for tensor in node.inputs:
            if tensor is not None:
                uses[tensor] = uses.get(tensor, 0) + 1
        for tensor in old:
            self._release(tensor)
        if self._killed is not None:
            if self._killed or op != before.op:
                reasons.tell(partial(_fusion, before, node, self._killed))
            self._killed = []

    def adopt(self, node: Node, others: Sequence[Node]) -> None:
        """The results of the others become further outputs of `node`, in their order; they die. Their readers come behind `node`."""
        for other in others:
            node.outputs.append(other.output)
            other.output.producer = node
            self.producer[other.output] = node
            self._kill(other)

    def insert(self, before: Node, op: str, inputs: Sequence[Tensor | None], shape: Shape, attrs: dict[str, Any]) -> Tensor:
        """A new node in front of `before`."""
        uses = self.uses
        out = Tensor(f"{before.output.name}~{len(self.producer)}", shape, inputs[0].dtype if inputs[0] is not None else before.output.dtype)
        node = Node(op, before.name, list(inputs), [out], attrs, before.onnx_op)
        out.producer = node
        self.producer[out] = node
        self._before.setdefault(id(before), []).append(node)
        for tensor in inputs:
            if tensor is not None:
                uses[tensor] = uses.get(tensor, 0) + 1
        return out

    def skip_view(self, node: Node) -> None:
        """Lets reshapes of a reshape's result read that reshape's input."""
        source = node.inputs[0]
        assert source is not None
        for other in self._reshapes().get(node.output, ()):
            if id(other) not in self.dead and other.op == "view.reshape" and other.inputs[0] is node.output:
                self.replace(other, "view.reshape", [source], other.attrs)

    def _reshapes(self) -> dict[Tensor, list[Node]]:
        """The reshapes that read each tensor, as they were when somebody first asked: no pass that asks adds others."""
        if self._views is None:
            self._views = {}
            for node in self.graph.nodes:
                if node.op == "view.reshape" and (tensor := node.inputs[0]) is not None:
                    self._views.setdefault(tensor, []).append(node)
        return self._views

    def finish(self) -> None:
        if not self.dead and not self._before:
            return
        nodes: list[Node] = []
        for node in self.graph.nodes:
            nodes += self._before.get(id(node), ())
            nodes.append(node)
        self.graph.nodes = [n for n in nodes if id(n) not in self.dead]

    def _release(self, tensor: Tensor | None) -> None:
        if tensor is None:
            return
        self.uses[tensor] -= 1
        if self.uses[tensor] or (producer := self.producer.get(tensor)) is None:
            return
        if self.kept.isdisjoint(producer.outputs) and not any(map(self.uses.get, producer.outputs)):
            self._kill(producer)

    def _kill(self, node: Node) -> None:
        if id(node) in self.dead:
            return
        self.dead.add(id(node))
        if self._killed is not None:
            self._killed.append(node)
        for tensor in node.inputs:
            self._release(tensor)


def _fusion(before: Node, node: Node, killed: Sequence[Node]) -> Reason:
    """Why `before` has become `node`. `killed`: nodes that nobody needs any more."""
    apart = [*killed, before]
    rule = "each would write a result of its own" if killed else "another op computes the same"
    tried = (Tried(", ".join(each.op for each in apart), rule, sum(map(_ms, apart))),)
    absorbed = tuple([each.name for each in killed])
    return Reason("fusion", node.op, f"pass: {reasons.step()}", _ms(node), "one core", tried, absorbed, node.name)


def _ms(node: Node) -> float:
    """The time of a node on one core."""
    return 0.0 if node.op in VIEW_OPS or node.op == "concat" else tile_cost.whole_ns(node) * 1e-6


def reshaped_constant(tensor: Tensor, shape: Shape) -> Tensor:
    """The same constant in another shape."""
    key = None if tensor.weight_key is None else f"{tensor.weight_key}|shape{list(shape)}"
    if tensor.data is not None:
        return Tensor(f"{tensor.name}|shape", shape, tensor.dtype, data=tensor.data.reshape(shape), weight_key=key)
    return Tensor(f"{tensor.name}|shape", shape, tensor.dtype, weight_key=key, pack=partial(_write_reshaped, tensor))


def _write_reshaped(tensor: Tensor, out: npt.NDArray[Any]) -> None:
    tensor.write(out.reshape(tensor.shape))


def scalar_of(tensor: Tensor | None) -> float | None:
    """The value of a constant of one element."""
    if tensor is None or not tensor.is_const or tensor.size != 1 or tensor.dtype.kind == "O":
        return None
    return float(tensor.value().reshape(()))


def no_act(node: Node) -> bool:
    return bool(node.attrs.get("act", NO_ACT) == NO_ACT)
