"""Stages: what of a model can be planned with what is known so far.

Most models are one static stage: from the input shapes everything follows. Where the shape of a value depends on data (NonZero, loops,
non-maximum suppression …) or a value is no plain tensor (strings, sequences, optionals), the graph is cut:

- a *static* stage holds every node whose shapes follow from what is known; it becomes a plan of tiles;
- a *dynamic* stage holds nodes whose results only running them can tell; it becomes one opaque tile, results are serialised values;
- where a shape depends on the *value* of a small tensor that the caller holds (an input, a result of an earlier stage), the stage asks for
  that value (`Stage.needs`) and is planned again with it.

Stage k is derived from the model and the bindings of stages 0 … k alone, so that whoever plans keeps no state between stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import onnx

from aspen_mp.planner.frontends import check, tensors
from aspen_mp.planner.frontends.bind import Binder, Binding, Blocked, Item
from aspen_mp.planner.frontends.onnx import Model, ValueInfo, value_info
from aspen_mp.planner.ir import Graph, Node, Shape, Tensor
from aspen_mp.planner.lower import has_rule
from aspen_mp.planner.lower.opaque import build
from aspen_mp.shm.errors import RequestError, UnsupportedModelError

_FEW = 64  # elements of a value that may be asked for although it is not read directly
_LEAST_CAPACITY, _MOST_CAPACITY = 1 << 16, 1 << 24
_DATA_DEPENDENT = {"NonZero", "Unique", "NonMaxSuppression", "Compress", "Loop"}


@dataclass(frozen=True, slots=True)
class Value:
    """An input or output of a stage. `shape` is None where only running the stage tells it; `final`: an output of the model."""

    name: str
    dtype: np.dtype[Any]
    shape: Shape | None
    kind: str = "tensor"
    final: bool = False


@dataclass(slots=True)
class Stage:
    """One stage. `graph`: at ONNX level for a static stage, the opaque node for a dynamic one; empty while `needs` names values.

    `outputs` fit `graph.outputs` one to one. `more`: stages follow.
    """

    kind: str
    graph: Graph
    outputs: list[Value]
    needs: list[str] = field(default_factory=list)
    more: bool = False


def derive(model: Model, bindings: Sequence[Mapping[str, Binding]], capacities: Mapping[str, int] | None = None) -> Stage:
    """Stage ``len(bindings) - 1`` of a model. `bindings[k]`: what is known of the inputs of stage k, for stage 0 those of the model.

    `capacities`: bytes for serialised results, where the guess was too small. RequestError: a binding does not fit the model.
    """
    state = _Stages(model, dict(capacities or {}))
    state.bind_inputs(bindings[0])
    stage = state.next()
    for known in bindings[1:]:
        if stage.needs or not stage.more:
            raise RequestError(f"model {model.graph.name!r} has no stage {len(bindings) - 1} for these bindings")
        state.bind_results(stage, known)
        stage = state.next()
    return stage


class _Stages:
    def __init__(self, model: Model, capacities: dict[str, int]) -> None:
        self.model = model
        self.capacities = capacities
        self.binder = Binder(model, has_rule)
        self.delivered: set[str] = set()
        self.inputs: dict[str, Tensor] = {}  # values from outside the stage, without a value of their own
        self._types: dict[str, onnx.TypeProto] | None = None

    # ------------------------------------------------------------------------------------------------------- bindings

    def bind_inputs(self, known: Mapping[str, Binding]) -> None:
        for info in self.model.signature.inputs:
            binding = known.get(info.name)
            if binding is None:
                if any(info.name in entry.names for entry in self.binder.pending) or info.name in self.binder.outputs:
                    raise UnsupportedModelError(f"input {info.name!r} has no binding: its dimensions {info.shape} are still unbound")
                continue
            fits(info, binding)
            self._bind(info.name, binding, info.kind)
        overridable = self.model.signature.overridable
        for info in overridable:  # one that is given is no constant of this plan
            if (binding := known.get(info.name)) is not None:
                fits(info, binding)
                self._bind(info.name, binding, info.kind)
        unknown = set(known) - {i.name for i in (*self.model.signature.inputs, *overridable)}
        if unknown:
            raise RequestError(f"model {self.model.graph.name!r} has no input {', '.join(map(repr, sorted(unknown)))}")

    def bind_results(self, stage: Stage, known: Mapping[str, Binding]) -> None:
        """Makes what is known now an input of the next stage."""
        for name, tensor in list(self.binder.env.items()):
            if not tensor.is_const:
                self.binder.env[name] = self.inputs[name] = Tensor(name, tensor.shape, tensor.dtype)
        for value in stage.outputs:
            binding = known.get(value.name)
            if binding is not None:
                self._bind(value.name, binding, value.kind)
            elif value.shape is None and any(value.name in entry.names for entry in self.binder.pending):
                raise RequestError(f"no binding for {value.name!r}, a result of the stage before")
        for name, binding in known.items():
            if name in self.inputs and binding.value is not None:
                self._bind(name, binding, "tensor")

    def _bind(self, name: str, binding: Binding, kind: str) -> None:
        self.inputs.pop(name, None)
        if binding.value is not None and tensors.is_plain(binding.dtype):
            value = np.ascontiguousarray(binding.value).reshape(binding.value.shape)
            self.binder.env[name] = Tensor(name, value.shape, value.dtype, data=value)
            return
        shape = binding.shape
        if kind != "tensor" or not tensors.is_plain(binding.dtype) or shape is None:
            held = _serialised_bytes(binding)
            capacity = max(self.capacities.get(name, 0), 1 << max(held - 1, _LEAST_CAPACITY - 1).bit_length())
            self.binder.env[name] = self.inputs[name] = Tensor(name, (capacity,), tensors.OBJECT)
            return
        self.binder.env[name] = self.inputs[name] = Tensor(name, tuple(shape), binding.dtype)

    # --------------------------------------------------------------------------------------------------------- stages

    def next(self) -> Stage:
        nodes, blocked = self.binder.advance()
        needs = self._needs(blocked)
        if needs:
            return Stage("static", Graph(self.model.graph.name, [], [], []), [], needs, True)
        outputs = self._outputs()
        if nodes or outputs or not self.binder.pending:
            tensors_out = [self.binder.env[v.name] for v in outputs]
            graph = Graph(self.model.graph.name, list(self.inputs.values()), tensors_out, nodes)
            return Stage("static", graph, outputs, [], bool(self.binder.pending))
        return self._dynamic([entry for entry, _ in blocked])

    def _needs(self, blocked: Sequence[tuple[Item, Blocked]]) -> list[str]:
        """Values that the caller holds and that would let blocked nodes be planned."""
        needs: dict[str, None] = {}
        for _, reason in blocked:
            for name in reason.values:
                if name in self.inputs:
                    needs.setdefault(name)
                else:
                    for root in self._roots(self.binder.env[name]):
                        needs.setdefault(root)
        return list(needs)

    def _roots(self, tensor: Tensor) -> list[str]:
        """The stage inputs that a value follows from, if all are few integers; else none."""
        roots: dict[str, None] = {}
        stack, seen = [tensor], {tensor}
        while stack:
            current = stack.pop()
            if current.producer is None:
                if current.is_const:
                    continue
                if current.size > _FEW or current.dtype.kind not in "iub":
                    return []
                roots.setdefault(current.name)
                continue
            for other in current.producer.inputs:
                if other is not None and other not in seen:
                    seen.add(other)
                    stack.append(other)
        return list(roots)

    def _outputs(self) -> list[Value]:
        """Known values that the model gives, or that later stages read and this one computes."""
        wanted: dict[str, bool] = {}
        for name in self.binder.outputs:
            if name not in self.delivered and self.binder.known(name) is not None:
                wanted[name] = True
        for entry in self.binder.pending:
            for name in entry.names:
                tensor = self.binder.env.get(name)
                if name and tensor is not None and not tensor.is_const and tensor.producer is not None:
                    wanted.setdefault(name, False)
        values = []
        for name, final in wanted.items():
            tensor = self.binder.env[name]
            if tensor.dtype == tensors.OBJECT or not tensors.is_plain(tensor.dtype):
                continue
            values.append(Value(name, tensor.dtype, tensor.shape, "tensor", final))
            if final:
                self.delivered.add(name)
        return values

    # --------------------------------------------------------------------------------------------------- dynamic stages

    def _dynamic(self, frontier: list[Item]) -> Stage:
        cluster, produced = self._cluster(frontier)
        chosen = set(map(id, cluster))
        self.binder.pending = [entry for entry in self.binder.pending if id(entry) not in chosen]
        later = {name for entry in self.binder.pending for name in entry.names}
        outputs = []
        for name in produced:
            final = name in self.binder.outputs
            if final or name in later:
                outputs.append(self._value(name, final))
        return self._opaque(cluster, outputs)

    def _opaque(self, cluster: list[Item], outputs: list[Value]) -> Stage:
        feeds: dict[str, Tensor] = {}
        inner = {name for entry in cluster for name in entry.outputs}
        for entry in cluster:
            for name in entry.names:
                if name and name not in inner:
                    feeds[name] = self.binder.env[name]
        opsets = cluster[0].opsets
        blob, operands = build(
            [e.proto for e in cluster], feeds, {v.name: None for v in outputs}, opsets, self.model.proto.functions, self.model.store
        )
        guess = 1 << (8 * sum(t.nbytes for t in operands)).bit_length()
        capacity = min(max(guess, _LEAST_CAPACITY), _MOST_CAPACITY)
        results = [Tensor(v.name, (max(self.capacities.get(v.name, 0), capacity),), tensors.OBJECT) for v in outputs]
        node = Node("OPAQUE", cluster[0].proto.name or cluster[0].outputs[0], list(operands), results, {"model": blob})
        node.onnx_op = ", ".join(dict.fromkeys(e.proto.op_type for e in cluster))
        for tensor in results:
            tensor.producer = node
        inputs = [t for t in dict.fromkeys(operands) if not t.is_const]
        self.delivered.update(v.name for v in outputs if v.final)
        return Stage("dynamic", Graph(self.model.graph.name, inputs, results, [node]), outputs, [], bool(self.binder.pending))

    def _cluster(self, frontier: list[Item]) -> tuple[list[Item], list[str]]:
        """The blocked nodes, and those after them that no static stage could run either. One set of opset versions a cluster."""
        first = frontier[0]
        chosen = {id(e) for e in frontier if e.opsets == first.opsets}
        cluster, produced = [], {}
        for entry in self.binder.pending:
            inside = id(entry) in chosen
            if not inside and entry.opsets == first.opsets and self._hopeless(entry):
                inside = all(not n or n in produced or self.binder.known(n) is not None for n in entry.names)
            if inside:
                cluster.append(entry)
                produced.update(dict.fromkeys(entry.outputs))
        return cluster, list(produced)

    def _hopeless(self, entry: Item) -> bool:
        if entry.proto.op_type in _DATA_DEPENDENT and not entry.proto.domain:
            return True
        types = self._model_types()
        return any(name in types and not _plain(types[name]) for name in (*entry.names, *entry.outputs))

    def _model_types(self) -> dict[str, onnx.TypeProto]:
        if self._types is None:
            graph = check.infer(self.model.light).graph
            self._types = {v.name: v.type for v in (*graph.value_info, *graph.output, *graph.input)}
        return self._types

    def _value(self, name: str, final: bool) -> Value:
        proto = self._model_types().get(name)
        if proto is None or proto.WhichOneof("value") is None:
            return Value(name, tensors.OBJECT, None, "other", final)
        info = value_info(name, proto)
        return Value(name, info.dtype, None, info.kind, final)


def _plain(proto: onnx.TypeProto) -> bool:
    if proto.WhichOneof("value") not in {"tensor_type", None}:
        return False
    return proto.tensor_type.elem_type == 0 or tensors.is_plain(tensors.numpy_dtype(proto.tensor_type.elem_type))


def _serialised_bytes(binding: Binding) -> int:
    """At least what the serialised value takes, where that is known."""
    if binding.shape is None:
        return 0
    if binding.dtype == tensors.OBJECT:
        return binding.shape[0] if len(binding.shape) == 1 else 0
    return prod(binding.shape) * binding.dtype.itemsize + 4096


def fits(info: ValueInfo, binding: Binding) -> None:
    """Raises RequestError where a binding contradicts the model's declaration of an input."""
    if info.kind != "tensor":
        return
    if binding.dtype != info.dtype:
        raise RequestError(f"input {info.name!r} is {binding.dtype}, the model takes {info.dtype}")
    if binding.shape is None or info.shape is None:
        return
    same = len(binding.shape) == len(info.shape)
    if not same or any(isinstance(want, int) and want != got for want, got in zip(info.shape, binding.shape, strict=True)):
        raise RequestError(f"input {info.name!r} has shape {list(binding.shape)}, the model takes {list(info.shape)}")
