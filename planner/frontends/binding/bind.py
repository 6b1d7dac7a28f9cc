"""Binding a model to input shapes: constant propagation and shape inference in one forward pass over the nodes.

Every value is either known (shape and dtype, perhaps the value itself) or not known yet. A node whose inputs are known is given to ONNX's
shape inference together with the values of its small constant inputs. Nodes with constant inputs alone are computed. So chains of Shape,
Gather, Concat … that exporters write end as constants before Reshape asks for them. Functions and branches with a known condition are
inlined on the way. A node whose output shapes stay unknown is *blocked*: the stages (`aspen_mp.planner.stages`) decide what that means.

Constants carry a ``weight_key`` if and only if they follow from the model alone, whatever the input shapes are.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from onnx import FunctionProto, NodeProto, TensorProto

from aspen_mp.planner.frontends import contrib, functions, legacy, scalars, tensors
from aspen_mp.planner.frontends.binding.folding import BucketFolding, folded
from aspen_mp.planner.frontends.binding.inference import Inference, Typed, type_proto, unknown_values
from aspen_mp.planner.frontends.binding.items import Blocked, Item, Types, item
from aspen_mp.planner.frontends.check import CHECKED, domain_of, name_of, schema
from aspen_mp.planner.frontends.check import operands as check_operands
from aspen_mp.planner.frontends.classical import labels, maps, result_types
from aspen_mp.planner.frontends.evaluate import RANDOM, left_to_workers
from aspen_mp.planner.frontends.onnx import FunctionKey, OnnxModel
from aspen_mp.planner.ir.graph import Node, Shape, Tensor
from aspen_mp.planner.job import progress
from aspen_mp.shm.errors import ModelInvalidError

_F32 = np.dtype(np.float32)
_OPAQUE_FUNCTIONS = RANDOM | {"SequenceMap", "Range"}  # have bodies, but run better as they are


@dataclass(frozen=True, slots=True)
class Binding:
    """The facts about a value: dtype, shape, and the value where it is given. Strings, sequences and optionals have dtype object. Their
    shape is None, or the number of bytes of the serialised value."""

    dtype: np.dtype[Any]
    shape: Shape | None
    value: npt.NDArray[Any] | None = None


class Enclosed(Protocol):
    """The interface of `enclosed` for binding. Nodes whose shapes data decide become one node whose results have known shapes."""

    gone: set[int]
    """Nodes that have become a part of one, by id."""

    def expect(self, entries: Iterable[Item]) -> None: ...

    def begin(self, entry: Item) -> None: ...

    def go_on(self, entry: Item) -> Node | None: ...


class Binder:
    """Walks a model's nodes as far as they can be known. `lowered(domain, op)` says which operators are to be kept although ONNX defines
    them by functions; `bucket`, as of `folding.folded`, what becomes a constant."""

    def __init__(self, model: OnnxModel, lowered: Callable[[str, str], bool]) -> None:
        self.model = model
        self.lowered = lowered
        self.bucket: BucketFolding | None = None
        self.env: dict[str, Tensor] = {}
        self._count = 0
        self.constants: dict[str, TensorProto] = dict(model.initializers)
        self._of_branches: set[str] = set()
        self.outputs = [o.name for o in model.graph.output]
        self.pending: list[Item] = self._live(list(self._flatten(model.graph.node, model.opsets, 0)))
        self._used = set(self.outputs)
        for entry in self.pending:
            self._used.update(entry.names)
        self._inference = Inference(model, self._used)
        # Names of known integers: those that follow from lengths that the model leaves open, ranges, and those that count on from such a
        # length.
        self._open = any(not isinstance(d, int) for info in model.signature.inputs for d in info.shape or ())
        self._lengths: set[str] = set()
        self._ranges: set[str] = set()
        self._places: set[str] = set()

    def fork(self) -> Binder:
        """A copy with tensors of its own: values that are not constants become its inputs."""
        copy = Binder.__new__(Binder)
        copy.model, copy.lowered, copy.bucket, copy._count = self.model, self.lowered, self.bucket, self._count
        copy.constants, copy.outputs, copy.pending = dict(self.constants), self.outputs, list(self.pending)
        copy._of_branches, copy._used = set(self._of_branches), set(self._used)
        copy._inference = self._inference.fork(copy._used)
        copy._open = self._open
        copy._lengths, copy._ranges, copy._places = set(self._lengths), set(self._ranges), set(self._places)
        copy.env = {n: Tensor(n, t.shape, t.dtype, t.data, None, t.weight_key, t.pack, t.stored, t.placed) for n, t in self.env.items()}
        return copy

    # ------------------------------------------------------------------------------------------------------ preparation

    def _flatten(self, nodes: Iterable[NodeProto], opsets: dict[str, int], depth: int) -> Iterator[Item]:
        known = self.model.functions
        for node in nodes:
            key: FunctionKey = (domain_of(node), node.op_type, node.overload) if known else ("", "", "")
            function = known.get(key)
            if function is None:
                yield item(node, opsets)
                continue
            if depth > functions.MOST_DEEP:
                raise ModelInvalidError(f"{name_of(node)}: functions call each other more than {functions.MOST_DEEP} deep")
            yield from self._flatten(self._call(function, node), self._versions(function, opsets), depth + 1)

    def _call(self, function: FunctionProto, node: NodeProto) -> list[NodeProto]:
        self._count += 1
        return functions.call(function, node, f"{node.name or node.op_type}.{self._count}")

    def _versions(self, function: FunctionProto, opsets: dict[str, int]) -> dict[str, int]:
        own = {o.domain: o.version for o in function.opset_import}
        return {**opsets, **own}

    def _live(self, items: list[Item]) -> list[Item]:
        """The items without the nodes that no output needs."""
        needed = set(self.outputs)
        kept = []
        for entry in reversed(items):
            if not needed.isdisjoint(entry.gives):
                needed.update(entry.names)
                kept.append(entry)
        kept.reverse()
        return kept

    # -------------------------------------------------------------------------------------------------------- the walk

    def known(self, name: str) -> Tensor | None:
        """The tensor of that name, if it is known yet."""
        tensor = self.env.get(name)
        if tensor is None and (proto := self.constants.get(name)) is not None:
            key = name if name not in self._of_branches else f"{name}:{_digest(self.model.constant(proto))}"
            tensor = self.env[name] = self._constant(name, proto, key)
        return tensor

    def read_constants(self) -> None:
        """Makes tensors of those that pending nodes read."""
        for entry in self.pending:
            for name in entry.names:
                self.known(name)

    def _constant(self, name: str, proto: TensorProto, key: str) -> Tensor:
        if self.model.store.in_memory(proto):
            # The protobuf library copies a tensor's bytes whenever they are read: only when they are wanted.
            pack = partial(_read, self.model, proto)
            return Tensor(name, tensors.shape_of(proto), tensors.dtype_of(proto), weight_key=key, pack=pack)
        value = self.model.constant(proto)
        return Tensor(name, value.shape, value.dtype, data=value, weight_key=key)

    def ready(self, entry: Item) -> bool:
        missing = [name for name in entry.names if name not in self.env]
        return not missing or all(not name or self.known(name) is not None for name in missing)

    def advance(self, enclosed: Enclosed | None = None) -> tuple[list[Node], list[tuple[Item, Blocked]]]:
        """Goes through the pending nodes once: (nodes that are known now, ready but blocked nodes). Other nodes stay in `pending`.
        `enclosed`: is told of blocked nodes and of those behind them, and makes nodes of some."""
        nodes: list[Node] = []
        blocked: list[tuple[Item, Blocked]] = []
        rest: list[Item] = []
        queue = deque(self.pending)
        if enclosed is not None:
            enclosed.expect(queue)
        while queue:
            if not len(queue) % progress.EVERY:
                progress.at("shapes", max(len(self.pending) - len(queue), 0), len(self.pending))
            entry = queue.popleft()
            if not self.ready(entry):
                rest.append(entry)
                if enclosed is not None and (node := enclosed.go_on(entry)) is not None:
                    nodes.append(node)
                continue
            result = self._visited(entry)
            if isinstance(result, Node):
                nodes.append(result)
            elif isinstance(result, Blocked):
                blocked.append((entry, result))
                rest.append(entry)
                if enclosed is not None and not result.values:
                    enclosed.begin(entry)
            elif result:
                queue.extendleft(reversed(result))
                if enclosed is not None:
                    enclosed.expect(result)
        gone = enclosed.gone if enclosed is not None else ()
        self.pending = [entry for entry in rest if id(entry) not in gone]
        return nodes, [(entry, why) for entry, why in blocked if id(entry) not in gone]

    def _visited(self, entry: Item) -> Node | list[Item] | Blocked:
        """Visits an entry by `_visit`. An exception of Python over a node's attributes and constants is most likely the model's fault."""
        try:
            return self._visit(entry)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise ModelInvalidError(f"{name_of(entry.proto)} cannot be understood: {type(error).__name__}: {error}") from error

    def _visit(self, entry: Item) -> Node | list[Item] | Blocked:
        """A known node, nothing (its outputs are constants now), its replacement, or why it is blocked."""
        proto, op, domain = entry.proto, entry.op, entry.domain
        inputs = [self.env[name] if name else None for name in entry.names]
        entry.attrs = attrs = entry.given() if proto.attribute else {}
        if domain == "":
            if op == "Constant":
                return self._constant_node(entry, attrs)
            if op in {"Shape", "Size"} and inputs[0] is not None and tensors.is_plain(inputs[0].dtype):
                return self._shape(entry, inputs[0], attrs)
            if op == "If":
                branch = self._branch(entry, inputs[0])
                if branch is not None:
                    return branch
                if contrib.within(proto):
                    return Blocked((entry.names[0],))
            modern = legacy.modern(proto, op, entry.opsets.get("", legacy.MODERN), inputs)
            if modern is not None:
                return self._inlined(modern, {**entry.opsets, "": legacy.MODERN})
            if op in contrib.OF_ANY_FLOAT and inputs[0] is not None and inputs[0].dtype != _F32:
                return self._own(entry, inputs)
            if op in scalars.INPUTS and (flat := scalars.flattened(proto, inputs)) is not None:
                return self._inlined(flat, entry.opsets)
        elif domain == contrib.DOMAIN and op not in result_types.LEFT:
            return self._own(entry, inputs)
        elif domain == result_types.DOMAIN and (of_places := labels.named(proto, attrs)) is not None:
            nodes, names = of_places
            self.env[names.name] = names
            return self._inlined(nodes, entry.opsets if "" in entry.opsets else {**entry.opsets, "": labels.OPSET})
        if op == maps.OP and domain == result_types.DOMAIN and proto.output[0] in self.model.maps:
            of_columns = maps.table(proto, attrs, inputs)
            if of_columns is not None:
                node, columns = of_columns
                self.env[columns.name] = columns
                return self._inlined([node], entry.opsets if "" in entry.opsets else {**entry.opsets, "": labels.OPSET})
        expanded = self._expand(entry, inputs)
        if expanded is not None:
            return expanded
        constant = not entry.nested
        for t in inputs:
            if t is not None and not t.is_const:
                constant = False
                if not tensors.is_plain(t.dtype):
                    return Blocked()
        typed = self._inference.types(entry, inputs)
        if typed is None:
            return Blocked(unknown_values(entry, inputs))
        if domain == "" and op in CHECKED and (first := typed.outputs[0]) is not None:
            check_operands(proto, inputs, first[1], attrs)
        if typed.void:
            for name, (dtype, shape) in typed.by_name(entry).items():  # nothing to compute
                self.env[name] = Tensor(name, shape, dtype, data=np.empty(shape, dtype))
            return []
        if constant and self._folded(entry, inputs, typed):
            return []
        return self._node(entry, inputs, typed) if typed.plain else Blocked()

    def _folded(self, entry: Item, inputs: list[Tensor | None], typed: Typed) -> bool:
        """Whether the outputs of a node with constant inputs have become constants."""
        types = typed.by_name(entry)
        kinds = [t.dtype.kind for t in inputs[:1] if t is not None]
        if (
            entry.domain not in {result_types.DOMAIN, result_types.ONNXRUNTIME}  # onnx.reference's own are others
            and not left_to_workers(entry.proto, entry.opsets.get("", 1), "i" in kinds or "u" in kinds)
            and not self._placed(entry, types)
            and (typed.plain or types.keys().isdisjoint(self.outputs))
            and (constants := folded(entry, inputs, types, self.bucket)) is not None
        ):
            self.env.update({tensor.name: tensor for tensor in constants})
            self._note_lengths(entry, types)
            return True
        return False

    def _own(self, entry: Item, inputs: list[Tensor | None]) -> list[Item] | Blocked:
        """The nodes that an operator of onnxruntime's stands for, without those that this stage has already or that are constant."""
        unknown = tuple(name for name in contrib.needs(entry.proto) if not self.env[name].is_const)
        if unknown:
            return Blocked(unknown)
        nodes, constants = contrib.plain(entry.proto, inputs)
        self.env.update({name: tensor for name, tensor in constants.items() if name not in self.env})
        return self._inlined([n for n in nodes if not all(map(self._here, n.output))], {**entry.opsets, "": contrib.OPSET})

    def _here(self, name: str) -> bool:
        tensor = self.env.get(name)
        return tensor is not None and (tensor.is_const or tensor.producer is not None)

    def _node(self, entry: Item, inputs: list[Tensor | None], typed: Typed) -> Node:
        op = entry.op if not entry.domain else f"{entry.proto.domain}.{entry.op}"
        outputs = [
            Tensor("", (), _F32) if one is None else Tensor(name, one[1], one[0])
            for name, one in zip(entry.gives, typed.outputs, strict=True)
        ]
        node = Node(op, entry.proto.name or entry.gives[0], inputs, outputs, entry.attrs, op, entry)
        for tensor in outputs:
            tensor.producer = node
            if tensor.name:
                self.env[tensor.name] = tensor
        return node

    def _constant_node(self, entry: Item, attrs: dict[str, Any]) -> list[Item]:
        name = entry.proto.output[0]
        value: Any = None
        if "value" in attrs:
            value = self.model.constant(attrs["value"])
        elif "value_float" in attrs or "value_floats" in attrs:
            value = np.array(attrs.get("value_float", attrs.get("value_floats")), np.float32)
        elif "value_int" in attrs or "value_ints" in attrs:
            value = np.array(attrs.get("value_int", attrs.get("value_ints")), np.int64)
        elif "value_string" in attrs:
            value = np.array(attrs["value_string"], object)
        else:
            value = np.array([v.decode() for v in attrs["value_strings"]], object)
        key = f"constant:{name}" if not entry.inlined else f"constant:{name}:{_digest(value)}"
        self.env[name] = Tensor(name, value.shape, value.dtype, data=value, weight_key=key)
        return []

    def _shape(self, entry: Item, tensor: Tensor, attrs: dict[str, Any]) -> list[Item]:
        name = entry.proto.output[0]
        if entry.proto.op_type == "Size":
            value = np.array(tensor.size, np.int64)
        else:
            start, end = attrs.get("start", 0), attrs.get("end", len(tensor.shape))
            value = np.array(tensor.shape[start:end] if end != 0 or "end" in attrs else tensor.shape[start:], np.int64)
        self.env[name] = Tensor(name, value.shape, value.dtype, data=value)
        if self._open and not tensor.is_const:
            self._lengths.add(name)
        return []

    def _placed(self, entry: Item, types: Types) -> bool:
        """Whether a node makes something else than integers of places that count on from a length: angles of a decoder's next token, or its
        embedding. As a constant it would be another at each length; computed, one plan serves them all."""
        return not self._places.isdisjoint(entry.names) and any(dtype.kind not in "iub" for dtype, _ in types.values())

    def _note_lengths(self, entry: Item, types: Types) -> None:
        """Notes the results that follow from lengths."""
        names = {name for name in entry.names if name}
        op, own = entry.proto.op_type, [name for name, (dtype, _) in types.items() if dtype.kind in "iu"]
        lengths, ranges, places = (not known.isdisjoint(names) for known in (self._lengths, self._ranges, self._places))
        if op == "Range":
            ranges, places = True, entry.names[0] in self._lengths
        elif op in {"Add", "Sub"} and ranges:
            places = places or any(name in self._lengths and name not in self._ranges for name in names)
        for there, known in ((lengths, self._lengths), (ranges, self._ranges), (places, self._places)):
            if there:
                known.update(own)
        for name in own:
            self.env[name].placed = name in self._places

    def _branch(self, entry: Item, condition: Tensor | None) -> list[Item] | None:
        if condition is None or not condition.is_const or condition.size != 1:
            return None
        which = "then_branch" if bool(condition.value().reshape(())) else "else_branch"
        self._count += 1
        nodes, constants = functions.branch(entry.attrs[which], entry.proto, f"{entry.proto.name or 'If'}.{self._count}")
        self.constants.update(constants)
        self._of_branches.update(constants)
        return self._inlined(nodes, entry.opsets)

    def _inlined(self, nodes: list[NodeProto], opsets: dict[str, int]) -> list[Item]:
        items = list(self._flatten(nodes, opsets, 0))
        for entry in items:
            entry.inlined = True
            self._used.update(entry.names)
        return items

    def _expand(self, entry: Item, inputs: list[Tensor | None]) -> list[Item] | None:
        """The body of an operator that ONNX defines by a function and that has no kernel, else None."""
        proto, domain = entry.proto, entry.domain
        if entry.nested or entry.op in _OPAQUE_FUNCTIONS or self.lowered(domain, entry.op):
            return None
        version = entry.opsets.get(domain, 1)
        found: Any = schema(entry.op, version, domain)
        if found is None or not (found.has_function or found.has_context_dependent_function):
            return None
        if any(t is not None and not tensors.is_plain(t.dtype) for t in inputs):
            return None
        try:
            if found.has_function:
                body = found.get_function_with_opset_version(version)
            else:
                types = [type_proto(t.dtype, t.shape).SerializeToString() if t is not None else b"" for t in inputs]
                body = found.get_context_dependent_function_with_opset_version(version, proto.SerializeToString(), types)
        except (RuntimeError, TypeError, ValueError):
            return None
        if not body:
            return None
        function = body if isinstance(body, FunctionProto) else FunctionProto.FromString(body)
        given = {a.name for a in proto.attribute}
        defaults = [a.default_value for a in found.attributes.values() if a.default_value.name and a.name not in given]
        if defaults:
            copy = NodeProto()
            copy.CopyFrom(proto)
            copy.attribute.extend(defaults)
            proto = copy
        return self._inlined(self._call(function, proto), self._versions(function, entry.opsets))


def _digest(value: npt.NDArray[Any]) -> str:
    """Tells constants apart that have the same name for different shapes of inputs."""
    of_objects = value.dtype == tensors.OBJECT
    data = repr(value.tolist()).encode() if of_objects else np.ascontiguousarray(value).view(np.uint8).data if value.size else b""
    return hashlib.sha256(f"{value.dtype}{value.shape}".encode() + hashlib.sha256(data).digest()).hexdigest()[:32]


def _read(model: OnnxModel, proto: TensorProto, out: npt.NDArray[Any]) -> None:
    out[...] = model.constant(proto)
