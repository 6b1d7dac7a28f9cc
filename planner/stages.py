"""Stages: the parts of a model that can be planned with the values known so far.

Most models are one static stage: from the input shapes everything follows. The graph is cut where a shape depends on data (NonZero, loops,
non-maximum suppression …), or a value is not a plain tensor (strings, sequences, optionals):

- a *static* stage holds every node whose shapes follow from known values; it becomes a plan of tiles;
- a *dynamic* stage holds nodes whose results only running them can tell; it becomes one opaque tile, results are serialised values. Where
  it reads results of a static stage, both are one stage and one plan;
- small operators behind those nodes belong to the same tile (`LIGHT`): results of some detections are then computed without a plan for
  their number. Only operators that are worth a plan (convolutions, products, regions of interest) have one, for a range of numbers if
  possible (`planner.api.plan_bucket`);
- where the results have known shapes again, as those of experts that are added up, nothing is cut. Such nodes are opaque tiles of an
  ordinary stage (`planner/frontends/binding/enclosed.py`);
- where a shape depends on the *value* of a small tensor that the caller holds (an input, an earlier result), the stage asks for it. It is
  planned again with that value (`StageGraph.needs`).

Stage k is derived from the model and the bindings of stages 0 … k alone, so that whoever plans keeps no state between stages.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import onnx

from aspen_mp.planner.frontends import check, tensors
from aspen_mp.planner.frontends.binding.bind import Binder, Binding
from aspen_mp.planner.frontends.binding.enclosed import Enclosed
from aspen_mp.planner.frontends.binding.folding import BucketFolding
from aspen_mp.planner.frontends.binding.items import Blocked, Item, item
from aspen_mp.planner.frontends.functions import subgraphs
from aspen_mp.planner.frontends.onnx import OnnxModel, ValueInfo, value_info
from aspen_mp.planner.ir.graph import Graph, Node, Shape, Tensor
from aspen_mp.planner.lower import has_rule
from aspen_mp.planner.lower.opaque import build, embedded
from aspen_mp.planner.ops.spec import OPAQUE
from aspen_mp.shm.errors import ModelInvalidError, RequestError, UnsupportedModelError
from aspen_mp.shm.tables import LIMITS
from aspen_mp.workers.fallback.numpy_operators import NAMES

_FEW = 64  # elements of a value that may be asked for although it is not read directly
_LEAST_CAPACITY, _MOST_CAPACITY = 1 << 16, 1 << 24
_DATA_DEPENDENT = {"NonZero", "Unique", "NonMaxSuppression", "Compress", "Loop"}
_SHAPE_ONLY = frozenset({"Shape", "Size"})
# Operators that copy or compare: kernels have them too, but where nothing else reads the result it goes into the tile that does
# (`_movable`).
_MOVES = {"Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Slice", "Gather", "GatherElements", "GatherND", "Concat"}
_MOVES |= {"Expand", "Cast", "Split", "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "And", "Or", "Xor", "Not"}
LIGHT = NAMES - {"Resize", "NonZero", "Compress", "MatMul", "Gemm"}
"""Operators that numpy does in a few microseconds where there are few elements, with results whose shapes can be told before."""
_LIGHT_BYTES = 4 << 20
"""Most bytes of known values that a light operator reads; a dynamic stage that reads more does not take such operators along."""
_MOVED_BYTES = 1 << 18
"""Known values of at most this many bytes are moved within the dynamic tile if nothing else reads the result, not by tiles in front."""
_MOST_OPERANDS = LIMITS["operands"]
_KEPT_STATES = 8
_NAMED = 8  # operators of a dynamic tile in messages


@dataclass(frozen=True, slots=True)
class Value:
    """An input or output of a stage. `shape` is None where only running the stage tells it; `final`: an output of the model."""

    name: str
    dtype: np.dtype[Any]
    shape: Shape | None
    kind: str = "tensor"
    final: bool = False


@dataclass(slots=True)
class StageGraph:
    """One stage. `graph`: at ONNX level for a static stage, the opaque node for a dynamic one; empty while `needs` names values. A static
    stage may end with an opaque node, whose results have no shape.

    `outputs` fit `graph.outputs` one to one. `more`: stages follow.
    """

    kind: str
    graph: Graph
    outputs: list[Value]
    needs: list[str] = field(default_factory=list)
    more: bool = False


class Derived:
    """Where stages that have been derived lead to, for those behind them: a memory that changes no result. It belongs to one model."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Any, ...], tuple[_Stages, StageGraph]] = OrderedDict()
        self._constants: _Stages | None = None
        self._plain = True

    def find(self, key: tuple[Any, ...]) -> tuple[int, _Stages, StageGraph] | None:
        """The longest beginning of a key that is known, as the number of its stages, and the rest behind it."""
        for known in sorted(self._kept, key=len, reverse=True):  # a few, however many stages a client asks for
            if known == key[: len(known)]:
                self._kept.move_to_end(known)
                state, stage = self._kept[known]
                return len(known) - 1, state.fork(), stage
        return None

    def begin(self, model: OnnxModel, capacities: Mapping[str, int], bound: Collection[str]) -> _Stages:
        """A model of whose inputs nothing is known. Facts that follow from its constants alone are worked out once; not where one of
        `bound` has a constant for a default."""
        if self._plain and bound and not any(info.name in bound for info in model.signature.overridable):
            if self._constants is None:
                found = _Stages(model, {})
                self._plain = found.binder.advance() == ([], [])
                found.binder.read_constants()
                self._constants = found
            if self._plain:
                begun = self._constants.fork()
                begun.capacities = dict(capacities)
                return begun
        return _Stages(model, dict(capacities))

    def note(self, key: tuple[Any, ...], state: _Stages, stage: StageGraph) -> None:
        self._kept[key] = state.fork(), StageGraph(stage.kind, Graph("", [], [], []), stage.outputs, [], stage.more)
        while len(self._kept) > _KEPT_STATES:
            self._kept.popitem(last=False)


def derive(
    model: OnnxModel,
    bindings: Sequence[Mapping[str, Binding]],
    capacities: Mapping[str, int] | None = None,
    derived: Derived | None = None,
    bucket: BucketFolding | None = None,
) -> StageGraph:
    """Stage ``len(bindings) - 1`` of a model. `bindings[k]`: facts about the inputs of stage k, for stage 0 those of the model.

    `capacities`: bytes for serialised results, where the guess was too small. `derived`: of stages in front, so that they need not be
    derived again. `bucket`: as of `folding.folded`, for the last of these stages; those in front give what their own plans do.
    RequestError: a binding does not fit the model.
    """
    derived = Derived() if derived is None else derived
    if model.spelt is not None and _of_strings(model, bindings[0]):
        model, derived = model.spelt, Derived()
    room = tuple(sorted((capacities or {}).items()))
    key = (room, *map(_key, bindings))
    found = derived.find(key[:-1])
    if found is None:
        done, state = 1, derived.begin(model, capacities or {}, bindings[0])
        state.binder.bucket = bucket if done == len(bindings) else None
        state.bind_inputs(bindings[0])
        stage = state.next()
    else:
        done, state, stage = found
    while True:
        if done < len(bindings) and (stage.needs or not stage.more):
            raise RequestError(f"model {model.graph.name!r} has no stage {len(bindings) - 1} for these bindings")
        if stage.more and not stage.needs and (bucket is None or done < len(bindings)):
            derived.note(key[: done + 1], state, stage)
        if done == len(bindings):
            return stage
        state.bind_results(stage, bindings[done])
        done += 1
        state.binder.bucket = bucket if done == len(bindings) else None
        stage = state.next()


def _of_strings(model: OnnxModel, known: Mapping[str, Binding]) -> bool:
    """Whether an input that may be given as numbers is given as strings."""
    names = [info.name for info in model.signature.inputs if info.keys]
    return any(name in known and known[name].dtype == tensors.OBJECT for name in names)


def _key(known: Mapping[str, Binding]) -> tuple[Any, ...]:
    """Equal only where bindings are; values that are not tensors never are."""
    return tuple((name, str(b.dtype), b.shape, _value_key(b)) for name, b in sorted(known.items()))


def _value_key(binding: Binding) -> object:
    if binding.value is None:
        return None
    return binding.value.tobytes() if binding.dtype != tensors.OBJECT else object()


class _Stages:
    def __init__(self, model: OnnxModel, capacities: dict[str, int]) -> None:
        self.model = model
        self.capacities = capacities
        self.binder = Binder(model, has_rule)
        self.delivered: set[str] = set()
        self.inputs: dict[str, Tensor] = {}  # values from outside the stage, without a value of their own
        self._types: dict[str, onnx.TypeProto] | None = None

    def fork(self) -> _Stages:
        """A copy, with tensors of its own, for the stages that follow: graphs of this one may be changed."""
        copy = _Stages.__new__(_Stages)
        copy.model, copy.capacities, copy._types = self.model, self.capacities, self._types
        copy.delivered, copy.inputs = set(self.delivered), {}
        copy.binder = self.binder.fork()
        return copy

    # ------------------------------------------------------------------------------------------------------- bindings

    def bind_inputs(self, known: Mapping[str, Binding]) -> None:
        for info in self.model.signature.inputs:
            binding = known.get(info.name)
            if binding is None:
                if any(info.name in entry.names for entry in self.binder.pending) or info.name in self.binder.outputs:
                    raise UnsupportedModelError(f"input {info.name!r} has no binding: its dimensions {info.shape} are still unbound")
                continue
            fits(info, binding)
            self._bind(info.name, binding, "tensor" if self.model.spelt is not None and info.keys else info.kind)
        overridable = self.model.signature.overridable
        for info in overridable:  # one that is given is not a constant of this plan
            if (binding := known.get(info.name)) is not None:
                fits(info, binding)
                self._bind(info.name, binding, info.kind)
        unknown = set(known) - {i.name for i in (*self.model.signature.inputs, *overridable)}
        if unknown:
            raise RequestError(f"model {self.model.graph.name!r} has no input {', '.join(map(repr, sorted(unknown)))}")

    def bind_results(self, stage: StageGraph, known: Mapping[str, Binding]) -> None:
        """Makes a value that is known now an input of the next stage."""
        for name, tensor in list(self.binder.env.items()):
            if not tensor.is_const:
                self.binder.env[name] = self.inputs[name] = Tensor(name, tensor.shape, tensor.dtype)
        for value in stage.outputs:
            binding = known.get(value.name)
            if binding is not None:  # where shape inference knows nothing of a value, the result itself says whether it is a tensor
                self._bind(value.name, binding, "tensor" if value.kind == "unknown" else value.kind)
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

    def next(self) -> StageGraph:
        nodes, blocked = self.binder.advance(Enclosed(self.binder.outputs, self.binder.known, self._is_light, self._enclosed))
        needs = self._needs(blocked)
        if needs:
            return StageGraph("static", Graph(self.model.graph.name, [], [], []), [], needs, True)
        hopeless = [entry for entry, reason in blocked if not reason.values]
        held = self._held()
        if not hopeless:
            outputs = self._outputs()
            if nodes or outputs or held or not self.binder.pending:
                return self._static(nodes, outputs, held)
            hopeless = [entry for entry, _ in blocked]
        if not hopeless:
            raise self._stuck()
        cluster, results = self._dynamic(hopeless)
        inside, nodes = self._moved(cluster, nodes)
        outputs = self._outputs()
        node = self._opaque([*inside, *cluster], results)
        self.delivered.update(v.name for v in results if v.final)
        if nodes or outputs or held:
            stage = self._static(nodes, outputs, [*held, (node, results)])
        else:
            inputs = [t for t in dict.fromkeys(node.inputs) if t is not None and not t.is_const]
            stage = StageGraph(
                "dynamic", Graph(self.model.graph.name, inputs, node.outputs, [node]), results, [], bool(self.binder.pending)
            )
        return stage

    def _static(self, nodes: list[Node], outputs: list[Value], opaque: Sequence[tuple[Node, list[Value]]]) -> StageGraph:
        """A stage of `nodes`, which give `outputs`, and of opaque nodes behind them with their results."""
        given = [*(self.binder.env[v.name] for v in outputs), *(t for node, _ in opaque for t in node.outputs)]
        graph = Graph(self.model.graph.name, list(self.inputs.values()), given, [*nodes, *(node for node, _ in opaque)])
        return StageGraph("static", graph, [*outputs, *(v for _, values in opaque for v in values)], [], bool(self.binder.pending))

    def _held(self) -> list[tuple[Node, list[Value]]]:
        """Outputs of the model that no kernel can copy and no node computes: constants and inputs that are strings, sequences and so on. A
        node without operators hands each of them on."""
        found = []
        for name in dict.fromkeys(self.binder.outputs):
            tensor = self.binder.known(name) if name not in self.delivered else None
            if tensor is not None and not tensors.is_plain(tensor.dtype):
                value = self._value(name, True)
                found.append((self._opaque([], [value]), [value]))
                self.delivered.add(name)
        return found

    def _stuck(self) -> ModelInvalidError:
        """Nodes that wait, and nothing that they could wait for."""
        entry = self.binder.pending[0]
        names = ", ".join(repr(name) for name in entry.names if name and self.binder.known(name) is None)
        return ModelInvalidError(f"{check.name_of(entry.proto)} waits for {names}, which no node that can run gives")

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

    def _enclosed(self, members: list[Item], results: list[Tensor]) -> Node | None:
        """The opaque node for a group of nodes whose results have known shapes (`enclosed`), if it can take all operands."""
        if self._operands(members) + len(results) > _MOST_OPERANDS:
            return None
        self.binder.env.update({tensor.name: tensor for tensor in results})
        return self._opaque(members, results)

    def _dynamic(self, frontier: list[Item]) -> tuple[list[Item], list[Value]]:
        """Blocked nodes and those that run with them, and their results. They pend no longer."""
        others: list[Item] = []
        cluster, outside, delivered = self._cluster(frontier, others)
        while len(frontier) > 1 and self._operands(cluster) + len(delivered) > _MOST_OPERANDS:  # the others follow in a stage of their own
            half = len(frontier) // 2
            frontier, others = frontier[:half], frontier[half:] + others
            cluster, outside, delivered = self._cluster(frontier, others)
        self.binder.pending = outside
        final = set(self.binder.outputs)
        return cluster, [self._value(name, name in final) for name in delivered]

    def _operands(self, cluster: list[Item]) -> int:
        """The least number of its operands: several values moved with it may have one source."""
        inner = {name for entry in cluster for name in entry.outputs}
        read = {name for entry in cluster for name in entry.names if name and name not in inner}
        return len({self._source(self.binder.env[name]) for name in read})

    def _source(self, tensor: Tensor) -> Tensor | None:
        """The value of a stage that `_moved` would leave to be read instead of this one, if nothing else made of it is read. None for a
        value without operands."""
        while (node := tensor.producer) is not None and self._movable(node):
            others = [t for t in node.inputs if t is not None and not embedded(t)]
            if len(others) != 1:
                break
            tensor = others[0]
        return None if embedded(tensor) else tensor

    def _moved(self, cluster: list[Item], nodes: list[Node]) -> tuple[list[Item], list[Node]]:
        """Known nodes that only move or compare a little of what the cluster alone reads, to run with it; and the others."""
        inside = {name for entry in cluster for name in entry.names}
        outside = {name for entry in self.binder.pending for name in entry.names} | set(self.binder.outputs)
        read = {self.binder.env[name] for name in outside if name in self.binder.env}
        moved: list[Item] = []
        kept: list[Node] = []
        for node in reversed(nodes):
            mine = [t for t in node.outputs if t.name]
            wanted = all(t not in read for t in mine) and any(self.binder.env.get(t.name) is t and t.name in inside for t in mine)
            if wanted and node.source is not None and self._movable(node) and node.source.opsets == cluster[0].opsets:
                moved.append(item(node.source.proto, node.source.opsets))
                inside.update(node.source.names)
                continue
            kept.append(node)
            read.update(t for t in node.inputs if t is not None)
        return moved[::-1], kept[::-1]

    def _movable(self, node: Node) -> bool:
        small = all(t.nbytes <= _MOVED_BYTES for t in node.outputs) and all(t.dtype != tensors.OBJECT for t in node.outputs)
        if self.binder.bucket is not None:
            small = self.binder.bucket.is_small(node.outputs[0].name, small)
        return node.source is not None and not node.source.proto.domain and node.op in _MOVES and small

    def _opaque(self, cluster: list[Item], outputs: Sequence[Value | Tensor]) -> Node:
        """A node that executes a cluster. `outputs`: tensors, which it is the producer of, or values that are serialised."""
        feeds: dict[str, Tensor] = {}
        inner = {name for entry in cluster for name in entry.outputs}
        for name in (name for entry in cluster for name in entry.names) if cluster else (v.name for v in outputs):
            if name and name not in inner:
                tensor = self.binder.known(name)
                assert tensor is not None
                feeds[name] = tensor
        opsets = cluster[0].opsets if cluster else self.model.opsets
        known = self._model_types()
        types = {name: known[name] for name in inner if name in known and known[name].WhichOneof("value") is not None}
        wanted = {v.name: v if isinstance(v, Tensor) else None for v in outputs}
        blob, operands = build([e.proto for e in cluster], feeds, wanted, opsets, self.model.proto.functions, self.model.store, types)
        guess = 1 << (8 * sum(t.nbytes for t in operands)).bit_length()
        capacity = min(max(guess, _LEAST_CAPACITY), _MOST_CAPACITY // len(outputs))
        room = [(max(self.capacities.get(v.name, 0), capacity),) for v in outputs]
        results = [v if isinstance(v, Tensor) else Tensor(v.name, r, tensors.OBJECT) for v, r in zip(outputs, room, strict=True)]
        name = (cluster[0].proto.name or cluster[0].outputs[0]) if cluster else outputs[0].name
        node = Node(OPAQUE, name, list(operands), results, {"model": blob})
        node.onnx_op = _few(list(dict.fromkeys(e.proto.op_type for e in cluster))) or "Identity"
        for tensor in results:
            tensor.producer = node
        return node

    def _cluster(self, frontier: list[Item], others: list[Item]) -> tuple[list[Item], list[Item], list[str]]:
        """The blocked nodes but for `others`, and those after them that no static stage could run either, or need not. One set of opset
        versions a cluster. It also returns the rest, and its results that the rest or the caller reads."""
        waiting = set(map(id, others))
        first = frontier[0]
        frontier = [entry for entry in frontier if entry.opsets == first.opsets]
        chosen = set(map(id, frontier))
        few = sum(self.binder.env[name].nbytes for name in {n for entry in frontier for n in entry.names if n}) <= _LIGHT_BYTES
        cluster: list[Item] = []
        produced: dict[str, bool] = {}  # and whether it follows from shapes alone
        for entry in self.binder.pending:
            inside = id(entry) in chosen
            if (
                not inside
                and id(entry) not in waiting
                and entry.opsets == first.opsets
                and (self._hopeless(entry) or (few and self._is_light(entry)))
            ):
                inside = all(not n or n in produced or self.binder.known(n) is not None for n in entry.names)
            if inside:
                cluster.append(entry)
                names = [name for name in entry.names if name and name not in produced]
                of_shapes = self._is_light(entry) and all(produced.get(name, True) for name in entry.names)
                of_shapes = of_shapes and all(self.binder.env[name].is_const for name in names)
                produced.update(dict.fromkeys(entry.outputs, of_shapes or entry.proto.op_type in _SHAPE_ONLY))
        return self._divided(cluster, produced)

    def _divided(self, cluster: list[Item], produced: dict[str, bool]) -> tuple[list[Item], list[Item], list[str]]:
        """(wanted nodes of a cluster, nodes that run later, results that pass from one to the other or to the caller). Results that follow
        from shapes alone are not passed on. To whoever knows the shapes they are constants, and tensors filled with them may be large."""
        own = set(map(id, cluster))
        final = {name for name in self.binder.outputs if name in produced}
        later = {name for entry in self.binder.pending if id(entry) not in own for name in entry.names}
        again = set()
        for entry in reversed(cluster):
            if all(produced[name] for name in entry.outputs) and not later.isdisjoint(entry.outputs) and final.isdisjoint(entry.outputs):
                again.add(id(entry))
                later.update(entry.names)
        constant = {name for entry in cluster if id(entry) in again for name in entry.outputs}
        delivered = [name for name in produced if name in final or (name in later and name not in constant)]
        wanted, live = [], set(delivered)
        for entry in reversed(cluster):
            if not live.isdisjoint(entry.outputs):
                wanted.append(entry)
                live.update(entry.names)
        outside = [entry for entry in self.binder.pending if id(entry) not in own or id(entry) in again]
        return wanted[::-1], outside, delivered

    def _is_light(self, entry: Item) -> bool:
        """Whether numpy does it in no time, if the unknown operands are as small as the known ones."""
        if not _light(entry.proto):
            return False
        known = [tensor for name in entry.names if name and (tensor := self.binder.known(name)) is not None]
        return all(tensor.nbytes <= _LIGHT_BYTES for tensor in known)

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
            return Value(name, tensors.OBJECT, None, "unknown", final)
        info = value_info(name, proto)
        return Value(name, info.dtype, None, info.kind, final)


def _light(proto: onnx.NodeProto) -> bool:
    if proto.domain:
        return False
    if proto.op_type == "If":
        return all(_light(node) or node.op_type in _DATA_DEPENDENT - {"Loop"} for graph in subgraphs(proto) for node in graph.node)
    return proto.op_type in LIGHT


def _few(ops: list[str]) -> str:
    return ", ".join(ops) if len(ops) <= _NAMED else f"{', '.join(ops[:_NAMED])} and {len(ops) - _NAMED} more"


def _plain(proto: onnx.TypeProto) -> bool:
    if proto.WhichOneof("value") not in {"tensor_type", None}:
        return False
    return proto.tensor_type.elem_type == 0 or tensors.is_plain(tensors.numpy_dtype(proto.tensor_type.elem_type))


def _serialised_bytes(binding: Binding) -> int:
    """A least size of the serialised value, where that is known."""
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
