"""Strings that a model only moves, compares, looks up or hands to its caller, as numbers: places in a list of words.

Kernels have no strings, and an operator that reads one runs in Python, in a stage of its own. Most models do not read them: encoders look
them up in lists (OneHotEncoder, LabelEncoder, CategoryMapper), and classifiers name a class. The words among such strings that can make a
difference are known beforehand. So a client gives an input's strings as places in the list of these words, every other string as the place
behind the last. It makes strings of an output's places. In between Gather does the work of encoders.

Values that meet (Concat, Equal …) are kin: they share a list, and all of them are numbers, or none is. They are not where any of them is
read by something else, or comes from something else. They are not, either, where a caller's strings come out again, which need not be words
of the list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from aspen_mp.planner.frontends import functions
from aspen_mp.planner.frontends.check import domain_of
from aspen_mp.planner.frontends.classical import labels
from aspen_mp.planner.frontends.classical.result_types import DOMAIN
from aspen_mp.planner.frontends.evaluate import attributes

MOST_WORDS: Final = 1 << 16
MOST_BYTES: Final = 1 << 20
"""Most bytes of a list: every handle of the model has one."""
MOST_CELLS: Final = 1 << 18
"""Most cells of a table with a row for each word; larger ones are compared with the numbers of categories instead."""
_MOVES: Final = dict.fromkeys(
    ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Expand", "Gather", "GatherElements", "Split"), (0,)
)
_TOGETHER: Final = {"Where": (1, 2), "Equal": (0, 1)}
_ENCODERS: Final = {"LabelEncoder": "keys", "OneHotEncoder": "cats", "CategoryMapper": "cats"}
"""Operators that look strings up, and the beginning of the names of their lists."""
_KINDS: Final = ("strings", "int64s", "floats", "tensor")

Texts = list[str]
Lists = dict[str, tuple[str, ...]]


@dataclass(eq=False, slots=True)
class _Kin:
    """Values that share a list of words. `given`: some are inputs of the model; `final`: some are outputs."""

    words: dict[str, int] = field(default_factory=dict)
    given: bool = False
    final: bool = False
    spoilt: bool = False
    joined: _Kin | None = None

    def eldest(self) -> _Kin:
        kin = self
        while kin.joined is not None:
            kin = kin.joined
        return kin

    def learn(self, texts: Texts | None) -> None:
        if texts is None:
            self.spoilt = True
        for text in texts or ():
            self.words.setdefault(text, len(self.words))

    def join(self, other: _Kin) -> None:
        if other is self:
            return
        other.joined = self
        self.learn(list(other.words))
        self.given, self.final = self.given or other.given, self.final or other.final
        self.spoilt = self.spoilt or other.spoilt

    def is_list(self) -> bool:
        """Whether places in the list say all that there is to these strings."""
        size = sum(map(len, self.words))
        unknown = self.given and self.final
        return bool(self.words) and not self.spoilt and not unknown and len(self.words) <= MOST_WORDS and size <= MOST_BYTES

    def codes(self, texts: Iterable[str]) -> npt.NDArray[np.int64]:
        return np.array([self.words[text] for text in texts], np.int64)


def coded(proto: ModelProto) -> tuple[ModelProto, Lists] | None:
    """The model with numbers for strings, and the words of its inputs and outputs by name; None where it has no such strings."""
    if all(o.domain != DOMAIN for o in proto.opset_import):
        return None
    kin = {name: one.eldest() for name, one in _kin(proto.graph).items()}
    lists = {name: one for name, one in kin.items() if one.is_list()}
    graph = proto.graph
    ends = {value.name: tuple(lists[value.name].words) for value in (*graph.input, *graph.output) if value.name in lists}
    if not ends:
        return None
    return _Writer(proto, lists).model(), ends


def _decoded(texts: Iterable[Any]) -> Texts | None:
    try:
        return [text.decode() if isinstance(text, bytes) else str(text) for text in texts]
    except UnicodeDecodeError:
        return None


def _constant(tensor: TensorProto) -> Texts | None:
    return _decoded(tensor.string_data)


# ---------------------------------------------------------------------------------------------------------------------------- kin


def _kin(graph: GraphProto) -> dict[str, _Kin]:
    """The strings of a graph that come from its inputs, constants and encoders, through nodes that only move them."""
    found: dict[str, _Kin] = {}
    defaults = {tensor.name for tensor in graph.initializer}
    for value in graph.input:
        if value.type.tensor_type.elem_type == TensorProto.STRING:
            found[value.name] = _Kin(given=True, spoilt=value.name in defaults)
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.STRING and tensor.name not in found:
            found[tensor.name] = _Kin()
            found[tensor.name].learn(_constant(tensor))
    sources = set(found)
    for node in graph.node:
        _read(node, found)
        if (names := _named(node)) is not None:
            found[node.output[0]] = _Kin()
            found[node.output[0]].learn(names)
    for value in graph.output:
        if value.name in found:
            kin = found[value.name].eldest()
            kin.final, kin.spoilt = True, kin.spoilt or value.name in sources
    return found


def _read(node: NodeProto, found: dict[str, _Kin]) -> None:
    """Notes what a node does with strings that it reads."""
    for name in functions.captured(node):
        if name in found:
            found[name].eldest().spoilt = True
    read = [k for k, name in enumerate(node.input) if name in found]
    if not read:
        return
    kin = found[node.input[read[0]]].eldest()
    for k in read[1:]:
        kin.join(found[node.input[k]].eldest())
    places = _places(node)
    if places is None:
        texts = _looked_up(node) if read == [0] else None
        kin.learn(texts)
        return
    if read != list(places):
        kin.spoilt = True  # strings of another origin meet these, or strings are where numbers belong
    if node.op_type != "Equal":
        found.update(dict.fromkeys(filter(None, node.output), kin))


def _places(node: NodeProto) -> tuple[int, ...] | None:
    """The inputs that are the strings, of a node that moves or compares."""
    domain = domain_of(node)
    if domain == DOMAIN and node.op_type == "ArrayFeatureExtractor":
        return (0,)
    if domain:
        return None
    return tuple(range(len(node.input))) if node.op_type == "Concat" else _MOVES.get(node.op_type) or _TOGETHER.get(node.op_type)


def _looked_up(node: NodeProto) -> Texts | None:
    """The strings that an encoder knows; None: it is none, or none of strings."""
    if domain_of(node) != DOMAIN or node.op_type not in _ENCODERS:
        return None
    attrs = attributes(node)
    if node.op_type == "CategoryMapper":
        return _decoded(attrs.get("cats_strings", ())) if len(attrs.get("cats_strings", ())) == len(attrs.get("cats_int64s", ())) else None
    texts = _list(attrs, _ENCODERS[node.op_type])
    return texts if node.op_type != "LabelEncoder" or texts is None or _count(attrs, "values") == len(texts) else None


def _named(node: NodeProto) -> Texts | None:
    """The strings that a node's first output is made of."""
    if domain_of(node) != DOMAIN or not node.output or not node.output[0]:
        return None
    if node.op_type == "LabelEncoder":
        attrs = attributes(node)
        values = _list(attrs, "values")
        if values is None or _kinds(attrs, "keys") != 1 or _count(attrs, "keys") != len(values):
            return None
        return [*values, str(_default(attrs, np.array(values, object)))]
    if any(a.name == "classlabels_strings" for a in node.attribute):
        return labels.names(node, attributes(node))
    return None


def _kinds(attrs: dict[str, Any], what: str) -> int:
    return sum(f"{what}_{kind}" in attrs for kind in _KINDS)


def _count(attrs: dict[str, Any], what: str) -> int:
    """The length of a list, if it is the only one of that name."""
    found = [attrs[name] for kind in _KINDS if (name := f"{what}_{kind}") in attrs]
    if len(found) != 1:
        return -1
    return prod(found[0].dims) if isinstance(found[0], TensorProto) else len(found[0])


def _list(attrs: dict[str, Any], what: str) -> Texts | None:
    """A list of strings among the attributes, if it is the only one of that name."""
    tensor = attrs.get(f"{what}_tensor")
    if _kinds(attrs, what) != 1 or (tensor is not None and tensor.data_type != TensorProto.STRING):
        return None
    texts = attrs.get(f"{what}_strings") if tensor is None else tensor.string_data
    return _decoded(texts) if texts else None


def _default(attrs: dict[str, Any], values: npt.NDArray[Any]) -> Any:
    """LabelEncoder's value for all other strings."""
    tensor = attrs.get("default_tensor")
    if tensor is not None and tensor.data_type != TensorProto.UNDEFINED and len(given := numpy_helper.to_array(tensor).reshape(-1)):
        return given[0].decode() if isinstance(given[0], bytes) else given[0]
    if values.dtype == object:
        return attrs.get("default_string", "_Unused")
    if values.dtype == np.float32:
        return attrs.get("default_float", -0.0)
    if values.dtype == np.int64:
        return attrs.get("default_int64", -1)
    return -0.0 if values.dtype.kind == "f" else -1


# ------------------------------------------------------------------------------------------------------------------- the model


class _Writer:
    """Writes the model anew. `lists`: of values that are numbers now."""

    def __init__(self, proto: ModelProto, lists: dict[str, _Kin]) -> None:
        self._lists = lists
        self._proto = ModelProto()
        self._proto.CopyFrom(proto)
        self._graph = self._proto.graph
        self._constants: dict[str, TensorProto] = {t.name: t for t in proto.graph.initializer if t.name in lists}
        self._written: dict[str, str] = {}
        self._names = {t.name for t in (*proto.graph.initializer, *proto.graph.input)}
        self._names |= {name for node in proto.graph.node for name in node.output}

    def model(self) -> ModelProto:
        graph = self._graph
        nodes = [new for node in graph.node for new in self._node(node)]
        del graph.node[:]
        graph.node.extend(nodes)
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.name in self._lists:
                value.type.tensor_type.elem_type = TensorProto.INT64
        if all(o.domain for o in self._proto.opset_import):
            self._proto.opset_import.append(helper.make_opsetid("", labels.OPSET))
        return self._proto

    def _new(self, name: str) -> str:
        """A name that nothing has."""
        while name in self._names:
            name += "'"
        self._names.add(name)
        return name

    def _table(self, name: str, values: npt.NDArray[Any]) -> str:
        name = self._new(name)
        if values.dtype == object:
            texts = [str(v).encode() for v in values.reshape(-1)]
            self._graph.initializer.append(TensorProto(name=name, data_type=TensorProto.STRING, dims=values.shape, string_data=texts))
        else:
            self._graph.initializer.append(numpy_helper.from_array(values, name))
        return name

    def _node(self, node: NodeProto) -> Iterator[NodeProto]:
        inside = [name for name in node.input if name in self._lists]
        named = node.output[0] if domain_of(node) == DOMAIN and node.output and node.output[0] in self._lists else ""
        if not inside and not named:
            yield node
        elif _places(node) is not None:
            for k, name in enumerate(node.input):
                if name in self._constants:
                    node.input[k] = self._codes(name)
            yield node
        elif node.op_type == "LabelEncoder":
            yield self._label_encoder(node)
        elif node.op_type == "CategoryMapper":
            attrs = attributes(node)
            table = np.full(len(self._lists[node.input[0]].words) + 1, attrs.get("default_int64", -1), np.int64)
            table[self._lists[node.input[0]].codes(_looked_up(node) or [])] = attrs["cats_int64s"]
            yield self._taken(node, table)
        elif node.op_type == "OneHotEncoder":
            yield from self._one_hot(node)
        else:
            yield labels.numbered(node, self._lists[named].codes(labels.names(node, attributes(node)) or []).tolist())

    def _codes(self, name: str) -> str:
        """A constant as places."""
        if name not in self._written:
            tensor = self._constants[name]
            codes = self._lists[name].codes(_constant(tensor) or []).reshape(tuple(tensor.dims))
            self._written[name] = self._table(f"{name}.codes", codes)
        return self._written[name]

    def _taken(self, node: NodeProto, table: npt.NDArray[Any], of: str = "", to: str = "") -> NodeProto:
        """The node that gives the table's entries at the places that the node reads."""
        to, name = to or node.output[0], node.name
        if len(table) == len(self._lists[node.input[0]].words) or of:
            name = f"{name or node.output[0]}, {node.op_type} with zeros=0"  # it fails where a string is of no category
        return helper.make_node("Gather", [self._table(f"{to}.table", table), of or node.input[0]], [to], name=name, axis=0)

    def _label_encoder(self, node: NodeProto) -> NodeProto:
        attrs, words = attributes(node), self._lists.get(node.input[0])
        texts, names = _list(attrs, "values"), self._lists.get(node.output[0])
        values = _numbers(attrs, "values") if texts is None else np.array(texts, object)
        default = _default(attrs, values)
        if names is not None:
            values, default = names.codes(texts or []), names.words[str(default)]
        if words is None:  # of numbers
            kept = [a for a in node.attribute if a.name.startswith("keys")]
            encoder = helper.make_node(node.op_type, node.input, node.output, name=node.name, domain=node.domain)
            encoder.attribute.extend(kept)
            encoder.attribute.append(helper.make_attribute("values_int64s", values.tolist()))
            encoder.attribute.append(helper.make_attribute("default_int64", int(default)))
            return encoder
        table = np.full(len(words.words) + 1, default, values.dtype)
        keys = words.codes(_list(attrs, "keys") or [])
        table[keys[::-1]] = values[::-1]  # of equal keys the first one counts
        return self._taken(node, table)

    def _one_hot(self, node: NodeProto) -> Iterator[NodeProto]:
        attrs, words = attributes(node), self._lists[node.input[0]]
        known = words.codes(_list(attrs, "cats") or [])
        count, rows, strict = len(known), len(words.words), not attrs.get("zeros", 1)
        place = np.full(rows + 1, count, np.int64)
        place[known] = np.arange(count)
        if (rows + 1) * count <= MOST_CELLS and (not strict or (place[:rows] < count).all()):
            hot = (place[:, None] == np.arange(count)).astype(np.float32)
            yield self._taken(node, hot[:rows] if strict else hot)  # the place behind the last is invalid then
            return
        places, which, same = (self._new(f"{node.output[0]}.{part}") for part in ("places", "which", "same"))
        yield self._taken(node, place[:, None], to=places)
        if strict:
            yield self._taken(node, np.arange(count), of=places, to=which)
        numbers = self._table(f"{node.output[0]}.numbers", np.arange(count))
        yield helper.make_node("Equal", [which if strict else places, numbers], [same], name=node.name)
        yield helper.make_node("Cast", [same], [node.output[0]], name=node.name, to=TensorProto.FLOAT)


def _numbers(attrs: dict[str, Any], what: str) -> npt.NDArray[Any]:
    if f"{what}_tensor" in attrs:
        return numpy_helper.to_array(attrs[f"{what}_tensor"]).reshape(-1)
    ints: Sequence[int] | None = attrs.get(f"{what}_int64s")
    return np.array(attrs.get(f"{what}_floats") or [], np.float32) if ints is None else np.array(ints, np.int64)
