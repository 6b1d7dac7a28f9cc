"""Binding a model to input shapes: constant propagation and shape inference in one forward pass over the nodes.

Every value is either known (shape and dtype, perhaps the value itself) or not known yet. A node whose inputs are known is given to ONNX's
shape inference together with the values of its small constant inputs; nodes with constant inputs alone are computed, so that chains of
Shape, Gather, Concat … that exporters write end as constants before Reshape asks for them. Functions and branches with a known condition
are inlined on the way. A node whose output shapes stay unknown is *blocked*: the stages (`aspen_mp.planner.stages`) decide what that means.

Constants carry a ``weight_key`` if and only if they follow from the model alone, whatever the input shapes are.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from math import prod
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx
from onnx import FunctionProto, NodeProto, TensorProto, helper, numpy_helper, shape_inference

from aspen_mp.planner.frontends import contrib, functions, legacy, own_shapes, plain_shapes, scalars, tensors
from aspen_mp.planner.frontends.check import CHECKED, domain_of, inference_opset, name_of, schema, taking_bfloat16
from aspen_mp.planner.frontends.check import operands as check_operands
from aspen_mp.planner.frontends.classical import labels, maps, result_types
from aspen_mp.planner.frontends.evaluate import LOOPING, RANDOM, VIEWS, NotComputed, attributes, evaluate, left_to_workers, quick
from aspen_mp.planner.frontends.onnx import FunctionKey, Model
from aspen_mp.planner.ir.graph import Node, Shape, Source, Stored, Tensor
from aspen_mp.planner.job import progress
from aspen_mp.planner.layout.packing import low_bit
from aspen_mp.shm.errors import ModelInvalidError, ResourceLimitError, UnsupportedModelError

SMALL = 64 * 1024
"""Constants of up to so many bytes are computed at once."""

PLAN_CONSTANT = 1 << 20
"""Larger values that depend on the input shapes are computed by the plan, not stored in it."""

_REPEATING = {"ConstantOfShape", "Expand", "Tile"}
_MOST_REPEATED = 4 << 20
_F32 = np.dtype(np.float32)
_COMPARED = 256  # so many bytes of the model's constants are compared
_HINT = 8192  # values of more bytes never decide shapes
_OPAQUE_FUNCTIONS = RANDOM | {"SequenceMap", "Range"}  # have bodies, but run better as they are

_BY_LARGE_VALUES = own_shapes.NAMES | {"Range"}
"""Operators of whose inputs more is looked at than shapes and the values that ONNX's inference is given."""

_SHAPED_AS_INPUT = {"GroupNormalization"}  # no shape inference in onnx

Types = dict[str, tuple[np.dtype[Any], Shape]]
"""Dtype and shape of outputs, by name."""

VALUE_INPUTS: dict[str, tuple[int, ...]] = {
    "Reshape": (1,),
    "Expand": (1,),
    "Tile": (1,),
    "Slice": (1, 2, 3, 4),
    "Pad": (1, 3),
    "Resize": (2, 3),
    "Upsample": (1,),
    "Squeeze": (1,),
    "Unsqueeze": (1,),
    "ConstantOfShape": (0,),
    "Range": (0, 1, 2),
    "OneHot": (1,),
    "TopK": (1,),
    "Split": (1,),
    "SplitToSequence": (1,),
    "CenterCropPad": (1,),
    "AffineGrid": (1,),
    "Col2Im": (1, 2),
    "DFT": (1, 2),
    "STFT": (1, 3),
    "BlackmanWindow": (0,),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "MaxUnpool": (2,),
    "If": (0,),
    **{f"Reduce{kind}": (1,) for kind in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp")},
}
"""Inputs whose values decide output shapes (or, for If, which nodes there are)."""


@dataclass(frozen=True, slots=True)
class Binding:
    """What is known of a value: dtype (object for strings, sequences, optionals; then the shape is None, or the number of bytes that the
    serialised value has), shape, and the value where it is given."""

    dtype: np.dtype[Any]
    shape: Shape | None
    value: npt.NDArray[Any] | None = None


@dataclass(eq=False, slots=True)
class Item(Source):
    """A node of the flattened model. `names`: its inputs in order, "" where missing, then the outer values that its sub-graphs read.
    `op`, `domain`, `gives` (its outputs, "" where missing): of `proto`, which makes them anew whenever they are read. `inlined`: it came
    while shapes were being bound, which may bring others under its names for other shapes."""

    op: str
    domain: str
    gives: tuple[str, ...]
    nested: bool = False
    attrs: dict[str, Any] = field(default_factory=dict)
    inlined: bool = False
    _given: dict[str, Any] | None = None

    def given(self) -> dict[str, Any]:
        """Its attributes; the caller's own dictionary."""
        if self._given is None:
            self._given = attributes(self.proto)
        return dict(self._given)

    @property
    def outputs(self) -> list[str]:
        return [name for name in self.gives if name]


class Enclosed(Protocol):
    """`planner.enclosed`: nodes whose shapes data decide, as one node whose results have shapes that are known."""

    gone: set[int]
    """Nodes that have become a part of one, by id."""

    def expect(self, entries: Iterable[Item]) -> None: ...

    def begin(self, entry: Item) -> None: ...

    def go_on(self, entry: Item) -> Node | None: ...


@dataclass(frozen=True, slots=True)
class Blocked:
    """Why a node cannot be planned yet: values that would decide it, or none if only running it can tell."""

    values: tuple[str, ...] = ()


def item(proto: NodeProto, opsets: dict[str, int]) -> Item:
    names, nested = tuple(proto.input), False
    if proto.attribute:
        nested = any(a.HasField("g") or a.graphs for a in proto.attribute)
        if nested:
            names += tuple(functions.captured(proto))
    return Item(proto, opsets, names, proto.op_type, domain_of(proto), tuple(proto.output), nested)


@dataclass(frozen=True, slots=True)
class _Typed:
    """What is known of nodes that are alike: dtype and shape of each output, None where nobody reads it. `void`: they have no elements;
    `plain`: workers can hold them."""

    outputs: tuple[tuple[np.dtype[Any], Shape] | None, ...]
    void: bool
    plain: bool

    def by_name(self, entry: Item) -> Types:
        return {name: typed for name, typed in zip(entry.gives, self.outputs, strict=True) if typed is not None}


class Binder:
    """Walks a model's nodes as far as they can be known. `lowered(domain, op)` says which operators are to be kept although ONNX defines
    them by functions."""

    def __init__(self, model: Model, lowered: Callable[[str, str], bool]) -> None:
        self.model = model
        self.lowered = lowered
        self.env: dict[str, Tensor] = {}
        self._count = 0
        self.constants: dict[str, TensorProto] = dict(model.initializers)
        self._of_branches: set[str] = set()
        self.outputs = [o.name for o in model.graph.output]
        self.pending: list[Item] = self._live(list(self._flatten(model.graph.node, model.opsets, 0)))
        self._limit = 4 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self._hints: dict[int, tuple[Tensor, TensorProto]] = {}
        self._of_model: dict[str, TensorProto] = {}  # hints for constants of the model, by their keys
        self._inferred: dict[tuple[Any, ...], _Typed | None] = {}
        self._plain: dict[tuple[np.dtype[Any], Shape], _Typed] = {}
        self._used = set(self.outputs)
        for entry in self.pending:
            self._used.update(entry.names)
        # Of integers that are known: what follows from lengths that the model leaves open, ranges, and what counts on from such a length.
        self._open = any(not isinstance(d, int) for info in model.signature.inputs for d in info.shape or ())
        self._lengths: set[str] = set()
        self._ranges: set[str] = set()
        self._places: set[str] = set()

    def behind(self) -> Binder:
        """A copy with tensors of its own: what is no constant is an input to it."""
        copy = Binder.__new__(Binder)
        copy.model, copy.lowered, copy._count, copy._limit = self.model, self.lowered, self._count, self._limit
        copy.constants, copy.outputs, copy.pending = dict(self.constants), self.outputs, list(self.pending)
        copy._of_branches, copy._plain = set(self._of_branches), {}
        copy._hints, copy._of_model, copy._inferred, copy._used = {}, self._of_model, self._inferred, set(self._used)
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
        """Without the nodes that no output needs."""
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
        """Goes through the pending nodes once: (nodes that are known now, ready but blocked nodes). What remains stays in `pending`.
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
        """As `_visit`. What Python raises over a node's attributes and constants is most likely the model's fault."""
        try:
            return self._visit(entry)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise ModelInvalidError(f"{name_of(entry.proto)} cannot be understood: {type(error).__name__}: {error}") from error

    def _visit(self, entry: Item) -> Node | list[Item] | Blocked:
        """A known node, nothing (its outputs are constants now), what it is replaced by, or why it is blocked."""
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
            if op in scalars.INPUTS and (flat := scalars.flattened(proto, inputs)) is not None:
                return self._inlined(flat, entry.opsets)
        elif domain == contrib.DOMAIN and op not in result_types.LEFT:
            return self._own(entry, inputs)
        elif domain == result_types.DOMAIN and (of_places := labels.named(proto, attrs, inputs)) is not None:
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
        typed = self._types(entry, inputs)
        if typed is None:
            return self._why(entry, inputs)
        if domain == "" and op in CHECKED and (first := typed.outputs[0]) is not None:
            check_operands(proto, inputs, first[1], attrs)
        if typed.void:
            for name, (dtype, shape) in typed.by_name(entry).items():  # nothing to compute
                self.env[name] = Tensor(name, shape, dtype, data=np.empty(shape, dtype))
            return []
        if constant and self._folded(entry, inputs, typed):
            return []
        return self._node(entry, inputs, typed) if typed.plain else Blocked()

    def _folded(self, entry: Item, inputs: list[Tensor | None], typed: _Typed) -> bool:
        """Whether the outputs of a node with constant inputs have become constants."""
        types = typed.by_name(entry)
        kinds = [t.dtype.kind for t in inputs[:1] if t is not None]
        if (
            entry.domain not in {result_types.DOMAIN, result_types.ONNXRUNTIME}  # onnx.reference's own are others
            and not left_to_workers(entry.proto, entry.opsets.get("", 1), "i" in kinds or "u" in kinds)
            and not self._placed(entry, types)
            and (typed.plain or types.keys().isdisjoint(self.outputs))
            and self._fold(entry, inputs, types)
        ):
            self._note_lengths(entry, types)
            return True
        return False

    def _own(self, entry: Item, inputs: list[Tensor | None]) -> list[Item] | Blocked:
        """What an operator of onnxruntime's stands for; without what this stage has already, or is constant."""
        unknown = tuple(name for name in contrib.needs(entry.proto) if not self.env[name].is_const)
        if unknown:
            return Blocked(unknown)
        nodes, constants = contrib.plain(entry.proto, inputs)
        self.env.update({name: tensor for name, tensor in constants.items() if name not in self.env})
        return self._inlined([n for n in nodes if not all(map(self._here, n.output))], {**entry.opsets, "": contrib.OPSET})

    def _here(self, name: str) -> bool:
        tensor = self.env.get(name)
        return tensor is not None and (tensor.is_const or tensor.producer is not None)

    def _node(self, entry: Item, inputs: list[Tensor | None], typed: _Typed) -> Node:
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
        """What is now known to follow from lengths."""
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
                types = [_type(t.dtype, t.shape).SerializeToString() if t is not None else b"" for t in inputs]
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

    # ---------------------------------------------------------------------------------------------------- what is known

    def _types(self, entry: Item, inputs: list[Tensor | None]) -> _Typed | None:
        """`_infer`, checked, once for nodes that are alike in all that it looks at; None where an output is unknown."""
        if entry.op in plain_shapes.NAMES and not entry.domain and len(entry.gives) == 1:
            plain = plain_shapes.typed(entry.op, inputs, entry.attrs)
            if plain is not None:
                if plain not in self._plain:
                    self._check_sizes(entry, {entry.gives[0]: plain})
                    self._plain[plain] = _Typed((plain,), 0 in plain[1], True)
                return self._plain[plain]
        if entry.nested or entry.op in _BY_LARGE_VALUES or entry.domain:
            return self._typed(entry, inputs)
        key = (
            *(entry.op, tuple(entry.opsets.items()), tuple([a.SerializeToString() for a in entry.proto.attribute]) if entry.attrs else ()),
            tuple([name in self._used for name in entry.gives]),
            tuple([None if t is None else (t.dtype, t.shape, _told(t) if _decides(t) else None) for t in inputs]),
        )
        if key not in self._inferred:
            self._inferred[key] = self._typed(entry, inputs)
        return self._inferred[key]

    def _typed(self, entry: Item, inputs: list[Tensor | None]) -> _Typed | None:
        types = self._infer(entry, inputs)
        if types is None:
            return None
        self._check_sizes(entry, types)
        plain = all(tensors.is_plain(dtype) for dtype, _ in types.values())
        void = plain and all(0 in shape for _, shape in types.values())
        return _Typed(tuple([types.get(name) for name in entry.gives]), void, plain)

    def _infer(self, entry: Item, inputs: list[Tensor | None]) -> Types | None:
        """Dtype and shape of each output, or None where any is unknown."""
        proto, domain = entry.proto, domain_of(entry.proto)
        version = entry.opsets.get(domain, 1)
        if domain in {result_types.DOMAIN, result_types.ONNXRUNTIME}:
            said = result_types.types(domain, proto.op_type, entry.attrs, inputs)
            if said is not None or domain == result_types.ONNXRUNTIME:
                return None if said is None else {n: typed for n, typed in zip(proto.output, said, strict=False) if n in self._used}
        found = schema(proto.op_type, version, domain)
        if found is None:
            raise UnsupportedModelError(f"{name_of(proto)}: no operator {proto.op_type} in opset {version} of domain {domain!r}")
        if domain == "" and any(t is not None and t.dtype == tensors.BFLOAT16 for t in inputs):
            found = taking_bfloat16(proto.op_type, version) or found
        if domain == "" and (later := inference_opset(proto, version)) != version:
            found = schema(proto.op_type, later, "") or found
        if proto.op_type == "STFT" and not any(a.name == "onesided" for a in proto.attribute):
            # ONNX's inference takes a missing attribute for 0, its definition for 1.
            proto = _with_attribute(proto, "onesided", 1)
        if domain == "":
            if proto.op_type == "Range":
                self._check_range(entry, inputs)
            shape = own_shapes.shape(proto, inputs, entry.attrs, version)
            if shape is not None:
                return self._of_shape(entry, inputs, shape)
        if proto.op_type in _SHAPED_AS_INPUT and domain == "" and inputs[0] is not None:
            return {proto.output[0]: (inputs[0].dtype, inputs[0].shape)}
        types, hints = {}, {}
        for name, tensor in zip(entry.names, inputs, strict=True):
            if tensor is not None:
                if tensor.shape is None:
                    return None
                types[name] = _type(tensor.dtype, tensor.shape)
                if _decides(tensor):
                    hints[name] = self._hint(name, tensor)
        if proto.op_type == "Pad" and domain == "" and len(inputs) > 3 and inputs[3] is not None and entry.names[3] in hints:
            axes = inputs[3].value().astype(np.int64)  # ONNX's inference reads no others
            hints[entry.names[3]] = numpy_helper.from_array(axes, entry.names[3])
        opsets = [tensors.opset_id(d, v) for d, v in entry.opsets.items()]
        try:
            result = shape_inference.infer_node_outputs(found, proto, types, hints, {}, opsets, self.model.proto.ir_version)
        except (shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError, ValueError, IndexError) as error:
            if not found.has_type_and_shape_inference_function or entry.nested:
                return None
            shapes = ", ".join(f"{n!r} {list(t.shape)}" for n, t in zip(entry.names, inputs, strict=True) if t is not None)
            raise ModelInvalidError(f"{name_of(proto)} does not take inputs {shapes}: {' '.join(str(error).split())}") from None
        if proto.op_type == "Attention" and domain == "":
            result.update(_presents(entry, inputs))
        return self._outputs(entry, result)

    def _check_range(self, entry: Item, inputs: list[Tensor | None]) -> None:
        """ONNX's inference gives such a range no elements, where others refuse it: a model that gets here by mistake should not go on."""
        values = [t.value() for t in inputs if t is not None and t.is_const and t.size == 1]
        if len(values) == 3 and (values[2] == 0 or not all(np.isfinite(v) for v in values)):
            start, limit, delta = (v.item() for v in values)
            raise ModelInvalidError(f"{name_of(entry.proto)} cannot go from {start} to {limit} in steps of {delta}")

    def _of_shape(self, entry: Item, inputs: list[Tensor | None], shape: Shape) -> Types:
        """Of a node whose result has the type of its first input."""
        first = next(t for t in inputs if t is not None)
        return {entry.gives[0]: (first.dtype, shape)}

    def _outputs(self, entry: Item, result: dict[str, onnx.TypeProto]) -> Types | None:
        out = {}
        for name in entry.proto.output:
            if name not in self._used:
                continue
            proto = result.get(name)
            if proto is None or not proto.HasField("tensor_type") or not proto.tensor_type.HasField("shape"):
                return None
            shape = []
            for dim in proto.tensor_type.shape.dim:
                if not dim.HasField("dim_value"):
                    return None
                if dim.dim_value < 0:
                    raise ModelInvalidError(f"{name_of(entry.proto)}: output {name!r} would have the negative dimension {dim.dim_value}")
                shape.append(dim.dim_value)
            out[name] = (tensors.numpy_dtype(proto.tensor_type.elem_type), tuple(shape))
        return out

    def _hint(self, name: str, tensor: Tensor) -> TensorProto:
        key = tensor.weight_key
        hint = self._of_model.get(key) if key is not None else self._hints.get(id(tensor), (tensor, None))[1]
        if hint is None:
            hint = numpy_helper.from_array(np.ascontiguousarray(tensor.value()).reshape(tensor.shape), name)
            if key is not None:
                self._of_model[key] = hint
            else:
                self._hints[id(tensor)] = (tensor, hint)
        return hint

    def _why(self, entry: Item, inputs: list[Tensor | None]) -> Blocked:
        positions = VALUE_INPUTS.get(entry.proto.op_type, ()) if domain_of(entry.proto) == "" else ()
        if entry.proto.op_type == "Resize" and entry.opsets.get("", 1) < 11:
            positions = (1,)
        values = []
        for k in positions:
            tensor = inputs[k] if k < len(entry.proto.input) else None
            if tensor is not None and not tensor.is_const and tensors.is_plain(tensor.dtype) and tensor.nbytes <= _HINT:
                values.append(entry.names[k])
        return Blocked(tuple(dict.fromkeys(values)))

    def _check_sizes(self, entry: Item, types: Types) -> None:
        for name, (dtype, shape) in types.items():
            nbytes = prod(shape) * max(dtype.itemsize, 1)
            if nbytes > self._limit:
                raise ResourceLimitError(
                    f"{name_of(entry.proto)}: output {name!r} of shape {list(shape)} needs {nbytes} bytes; "
                    f"the limit is {self._limit}, four times this machine's memory"
                )

    # ---------------------------------------------------------------------------------------------------- constants

    def _fold(self, entry: Item, inputs: list[Tensor | None], types: Types) -> bool:
        """Turns the outputs of a node with constant inputs into constants, at once or (large weights) on demand. False: leave it a node."""
        present = [t for t in inputs if t is not None]
        of_model = all(t.weight_key is not None for t in present)
        large = max(prod(shape) * dtype.itemsize for dtype, shape in types.values()) if types else 0
        sources = max((t.nbytes for t in present), default=0)
        plain = all(tensors.is_plain(dtype) for dtype, _ in types.values())
        view = entry.proto.op_type in VIEWS and domain_of(entry.proto) == "" and present[0].data is not None
        key = self._key(entry, present) if of_model else None
        loops = entry.proto.op_type in LOOPING
        fast = quick(entry.proto, entry.opsets.get("", 1)) and not loops
        slow = not fast and (sources > PLAN_CONSTANT or loops)
        stored = _stored(entry, inputs)
        if large <= SMALL and sources <= SMALL:
            pass
        elif not plain:
            return False
        elif of_model:
            if entry.proto.op_type in _REPEATING and large > max(_MOST_REPEATED, 4 * sources):
                return False  # repetition is a view for kernels, but would fill the weights with copies
            if not view:
                self._fold_later(entry, inputs, types, key, stored)
                return True
        elif slow or large > (SMALL if any(t.weight_key is not None and t.nbytes > SMALL for t in present) else PLAN_CONSTANT):
            return False
        try:
            values = evaluate(entry.proto, entry.opsets, [t.value() if t is not None else None for t in inputs[: len(entry.proto.input)]])
        except NotComputed:
            return False
        if any(not isinstance(v, np.ndarray | np.generic) for n, v in zip(entry.proto.output, values, strict=False) if n in types):
            return False
        for k, (name, value) in enumerate(zip(entry.proto.output, values, strict=False)):
            if name in types:
                dtype, shape = types[name]
                array = np.asarray(value)
                if array.shape != shape and not fast:
                    return False
                if array.shape != shape:
                    raise ModelInvalidError(f"{name_of(entry.proto)}: constant {name!r} has shape {list(array.shape)}, not {list(shape)}")
                array = array if dtype in {array.dtype, tensors.OBJECT} else array.astype(dtype)
                self.env[name] = Tensor(name, shape, dtype, data=array, weight_key=None if key is None else f"{key}.{k}", stored=stored)
        return True

    def _fold_later(
        self,
        entry: Item,
        inputs: list[Tensor | None],
        types: Types,
        key: str | None,
        stored: Stored | None,
    ) -> None:
        for k, name in enumerate(entry.proto.output):
            if name in types:
                dtype, shape = types[name]
                pack = partial(_compute, entry, inputs, k)
                self.env[name] = Tensor(name, shape, dtype, weight_key=f"{key}.{k}", pack=pack, stored=stored)

    def _key(self, entry: Item, inputs: list[Tensor]) -> str:
        digest = hashlib.sha256()
        digest.update(f"{entry.proto.domain}.{entry.proto.op_type}.{entry.opsets}.{list(entry.proto.input)}".encode())
        for attribute in sorted(entry.proto.attribute, key=lambda a: a.name):
            digest.update(attribute.SerializeToString(deterministic=True))
        for tensor in inputs:
            digest.update(f"\0{tensor.weight_key}".encode())
        return f"folded:{digest.hexdigest()[:32]}"


def _decides(tensor: Tensor) -> bool:
    """Whether shape inference is given the tensor's value."""
    data = tensor.data
    return data is not None and data.nbytes <= _HINT and data.size < 1024 and tensor.dtype != tensors.OBJECT


def _digest(value: npt.NDArray[Any]) -> str:
    """Tells constants apart that have the same name for different shapes of inputs."""
    of_objects = value.dtype == tensors.OBJECT
    data = repr(value.tolist()).encode() if of_objects else np.ascontiguousarray(value).view(np.uint8).data if value.size else b""
    return hashlib.sha256(f"{value.dtype}{value.shape}".encode() + hashlib.sha256(data).digest()).hexdigest()[:32]


def _told(tensor: Tensor) -> object:
    """A value that shape inference is given: the same for equal small ones, or for the same constant of the model."""
    assert tensor.data is not None
    return tensor.data.tobytes() if tensor.weight_key is None or tensor.nbytes <= _COMPARED else tensor.weight_key


def _stored(entry: Item, inputs: list[Tensor | None]) -> Stored | None:
    """What DequantizeLinear makes a constant of, perhaps transposed."""
    if domain_of(entry.proto) != "" or entry.proto.op_type not in {"DequantizeLinear", "Transpose"}:
        return None
    if entry.proto.op_type == "Transpose":
        before = inputs[0].stored if inputs[0] is not None else None
        return None if before is None else low_bit.transposed(before, tuple(entry.attrs.get("perm", (1, 0))))
    values, scale = inputs[:2]
    if values is None or scale is None:
        return None
    axis = int(entry.attrs.get("axis", 1))
    zero = inputs[2] if len(inputs) > 2 else None
    return Stored(values, scale, zero, axis % max(len(values.shape), 1), int(entry.attrs.get("block_size", 0)))


def _presents(entry: Item, inputs: list[Tensor | None]) -> dict[str, onnx.TypeProto]:
    """Keys and values that Attention gives where there are no past ones: ONNX's inference does not know their shapes."""
    found = {}
    for k, name in enumerate(entry.proto.output[1:3], 1):
        x, past = inputs[k], inputs[k + 3] if len(inputs) > k + 3 else None
        if name and x is not None and past is None:
            heads = int(entry.attrs.get("kv_num_heads", 1))
            flat = len(x.shape) == 3
            shape = (x.shape[0], heads, x.shape[1], x.shape[2] // heads) if flat else x.shape
            found[name] = _type(x.dtype, shape)
    return found


def _compute(entry: Item, inputs: list[Tensor | None], position: int, out: npt.NDArray[Any]) -> None:
    values = evaluate(entry.proto, entry.opsets, [t.value() if t is not None else None for t in inputs[: len(entry.proto.input)]])
    out[...] = values[position]


def _read(model: Model, proto: TensorProto, out: npt.NDArray[Any]) -> None:
    out[...] = model.constant(proto)


def _with_attribute(proto: NodeProto, name: str, value: int) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(proto)
    copy.attribute.append(helper.make_attribute(name, value))
    return copy


@lru_cache(maxsize=8192)
def _type(dtype: np.dtype[Any], shape: Shape) -> onnx.TypeProto:
    return helper.make_tensor_type_proto(tensors.elem_type(dtype), shape)
