"""Several networks as one model, which one plan runs without a barrier between them (HaX-CoNN, section 5.1, scenarios 2 to 4).

A file `NAME.networks` is JSON. It names the networks, their models and the inputs of each of them:

    {"networks": {"detect": {"model": "detector.onnx"},
                  "track":  {"model": "tracker.onnx", "inputs": {"boxes": "detect.boxes"}},
                  "mask":   {"model": "segmenter.onnx", "beside": "detect"}}}

`detect.boxes` is an output of another network: its tiles feed those of `track`, and nothing is copied. An input of another network can be
named as well: then both read the same bytes. `after` and `beside` name a network whose outputs or inputs are read under the same names, or
the only one by the only one. Every other input is an input of the whole, `NETWORK.INPUT`; every output is one, `NETWORK.OUTPUT`.

Each network becomes a function of the model, with the versions of operators that its own file says. Its constants become initializers of
the whole. They stay where they are: views of the networks' files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
import onnx
from onnx import FunctionProto, ModelProto, TensorProto, ValueInfoProto

from aspen_mp.planner.frontends import onnx as single
from aspen_mp.planner.frontends import tensors
from aspen_mp.planner.frontends.check import all_nodes, domain_of
from aspen_mp.planner.frontends.external import Folder
from aspen_mp.planner.frontends.functions import subgraphs
from aspen_mp.planner.frontends.onnx import ModelLike, OnnxModel, Signature, ValueInfo
from aspen_mp.planner.frontends.wire import REFERENCE, reference
from aspen_mp.shm.errors import ModelInvalidError, ModelParseError, ResourceLimitError, UnsupportedModelError
from aspen_mp.shm.words import nearest

SUFFIX: Final = ".networks"
MOST: Final = 32
"""Networks of a file."""
_MOST_BYTES: Final = 1 << 20
_DOMAIN: Final = "aspen_mp.networks"


class NetworkEntry(msgspec.Struct, forbid_unknown_fields=True):
    """`model`: the path of an .onnx file, relative to the file that names it. `inputs`: NETWORK.TENSOR for inputs that come from elsewhere.
    `after`: a network whose outputs it reads; `beside`: one whose inputs it reads, too."""

    model: str
    after: str = ""
    beside: str = ""
    inputs: dict[str, str] = {}


class Networks(msgspec.Struct, forbid_unknown_fields=True):
    """The content of a .networks file, by the names of the networks."""

    networks: dict[str, NetworkEntry]


def load(source: ModelLike, *, folder: str | None = None) -> OnnxModel:
    """Opens and checks a model given as a path, bytes or a ModelProto. A path that ends in `.networks` gives several as one.

    `folder`: where external data lie when `source` is not a path. Raises the errors of `frontends.onnx.load`. For networks it also raises
        ModelInvalidError where they do not fit each other, and UnsupportedModelError for strings or maps as inputs or outputs.
    """
    if not isinstance(source, str | os.PathLike) or not os.fspath(source).endswith(SUFFIX):
        return single.load(source, folder=folder)
    path = os.fspath(source)
    wanted = _read(path)
    return _joined(path, wanted, {name: _opened(name, where) for name, where in _paths(path, wanted).items()})


def members(path: str) -> dict[str, str]:
    """The paths of the models that a .networks file joins, by the networks' names. Raises the errors of `load` for the file itself."""
    return _paths(path, _read(path))


def _paths(path: str, wanted: Networks) -> dict[str, str]:
    return {name: os.path.join(os.path.dirname(path), network.model) for name, network in wanted.networks.items()}


def _read(path: str) -> Networks:
    try:
        with open(path, "rb") as file:
            text = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ModelParseError(f"cannot read {path!r}: {error.strerror}") from None
    if len(text) > _MOST_BYTES:
        raise ResourceLimitError(f"{path!r} has more than {_MOST_BYTES} bytes, too many for a file that names networks")
    try:
        wanted = msgspec.json.decode(text, type=Networks)
    except msgspec.MsgspecError as error:
        raise ModelParseError(f"{path!r} does not say which networks to join: {error}") from None
    if not 1 <= len(wanted.networks) <= MOST:
        raise ModelInvalidError(f"{path!r} names {len(wanted.networks)} networks, and from 1 to {MOST} can be joined")
    for name in wanted.networks:
        if not name.isidentifier():
            raise ModelInvalidError(f"{path!r}: network {name!r} needs a name of letters, digits and underscores")
    return wanted


def _opened(name: str, path: str) -> OnnxModel:
    model = single.load(path)
    if model.spelt is not None or model.maps or any(v.kind != "tensor" for v in (*model.signature.inputs, *model.signature.outputs)):
        raise UnsupportedModelError(
            f"network {name!r}: it takes or gives strings, sequences or maps, which networks that run as one cannot. Load it by itself"
        )
    return model


# ---- what reads what


@dataclass(slots=True)
class _Wiring:
    """`source`: the tensor of the whole that each input of each network is. `order`: networks, each behind those whose outputs it reads."""

    source: dict[tuple[str, str], str] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)


def _wire(path: str, wanted: Networks, opened: dict[str, OnnxModel]) -> _Wiring:
    wiring = _Wiring()
    taken = {name: {v.name: v for v in model.signature.inputs} for name, model in opened.items()}
    given = {name: {v.name: v for v in model.signature.outputs} for name, model in opened.items()}
    links = {
        name: {
            **_by_name(path, name, network, "beside", taken[name], taken),
            **_by_name(path, name, network, "after", taken[name], given),
            **network.inputs,
        }
        for name, network in wanted.networks.items()
    }
    for name, network in wanted.networks.items():
        for own in network.inputs:
            if own not in taken[name]:
                raise ModelInvalidError(f"{path!r}: network {name!r} has no input {own!r}.{_hint(own, taken[name])}")

    def end(name: str, own: str, met: tuple[tuple[str, str], ...]) -> str:
        """The final source of an input of a network."""
        link = links[name].get(own)
        if link is None:
            return f"{name}.{own}"
        where = f"{path!r}: input {own!r} of network {name!r}"
        if (name, own) in met:
            raise ModelInvalidError(f"{where} is an input of itself, through others")
        other, _, tensor = link.partition(".")
        if other not in opened:
            raise ModelInvalidError(f"{where} is {link!r}, and there is no network {other!r}.{_hint(other, opened)}")
        found = given[other].get(tensor) or taken[other].get(tensor)
        if found is None:
            raise ModelInvalidError(f"{where} is {link!r}, which is not a tensor.{_hint(tensor, (*given[other], *taken[other]))}")
        _fit(where, link, taken[name][own], found)
        return link if tensor in given[other] else end(other, tensor, (*met, (name, own)))

    for name in opened:
        for own in taken[name]:
            wiring.source[name, own] = end(name, own, ())
    producers = {
        name: {source.partition(".")[0] for (reader, _), source in wiring.source.items() if reader == name and _given(source, given)}
        for name in opened
    }
    while len(wiring.order) < len(opened):
        ready = [name for name in opened if name not in wiring.order and producers[name] <= set(wiring.order)]
        if not ready:
            left = ", ".join(repr(name) for name in opened if name not in wiring.order)
            raise ModelInvalidError(f"{path!r}: networks {left} wait for each other's outputs")
        wiring.order += ready
    return wiring


def _by_name(
    path: str, name: str, network: NetworkEntry, relation: str, mine: dict[str, ValueInfo], theirs_of: dict[str, dict[str, ValueInfo]]
) -> dict[str, str]:
    """The tensors that a network reads of the one that it is `relation` ("after" or "beside"). They match by name, or are the only tensors
    of both."""
    other = network.after if relation == "after" else network.beside
    if not other:
        return {}
    where = f"{path!r}: network {name!r} is {relation} {other!r}"
    if other not in theirs_of or other == name:
        raise ModelInvalidError(f"{where}, and there is no such other network.{_hint(other, [n for n in theirs_of if n != name])}")
    theirs = theirs_of[other]
    links = {own: f"{other}.{own}" for own in mine if own in theirs}
    if not links and len(mine) == len(theirs) == 1:
        links = {own: f"{other}.{tensor}" for own, tensor in zip(mine, theirs, strict=True)}
    if not links and not network.inputs:
        kind = "outputs" if relation == "after" else "inputs"
        raise ModelInvalidError(
            f"{where}, but none of its inputs {', '.join(map(repr, mine))} is called as one of the {kind} "
            f"{', '.join(map(repr, theirs))}. Say which in `inputs`"
        )
    return links


def _given(source: str, given: dict[str, dict[str, ValueInfo]]) -> bool:
    name, _, tensor = source.partition(".")
    return tensor in given[name]


def _hint(name: str, known: Any) -> str:
    near = nearest(name, list(known))
    return f" Did you mean {near!r}?" if near else f" There are: {', '.join(map(repr, known))}"


def _fit(where: str, link: str, reads: ValueInfo, found: ValueInfo) -> None:
    if reads.dtype != found.dtype:
        raise ModelInvalidError(f"{where} has elements of type {reads.dtype}, and {link!r} of type {found.dtype}")
    if reads.shape is None or found.shape is None:
        return
    pairs = zip(reads.shape, found.shape, strict=False)
    if len(reads.shape) != len(found.shape) or any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs):
        raise ModelInvalidError(f"{where} has shape {list(reads.shape)}, and {link!r} has {list(found.shape)}")


# ---- one model


class _Folders(Folder):
    """The files of all networks."""

    def __init__(self, paths: list[str], opened: list[OnnxModel]) -> None:
        super().__init__(None)
        self._paths = paths
        self._opened = opened

    @property
    def files(self) -> list[str]:
        """Paths of the networks' models and of the data files that have been opened."""
        return [*self._paths, *(file for model in self._opened for file in model.files)]

    def release(self) -> None:
        """Lets go of the pages of all of them that have been read."""
        for model in self._opened:
            model.release()


class _Joined(OnnxModel):
    """Networks as one model. Its signature is made of theirs."""

    def __init__(self, proto: ModelProto, store: tensors.Store, signature: Signature) -> None:
        super().__init__(proto, store)
        self.signature = signature  # a cached property of the class


def _joined(path: str, wanted: Networks, opened: dict[str, OnnxModel]) -> OnnxModel:
    wiring = _wire(path, wanted, opened)
    spans: list[memoryview | TensorProto] = []
    proto = ModelProto(ir_version=onnx.IR_VERSION)
    proto.graph.name = os.path.basename(path).removesuffix(SUFFIX)
    proto.opset_import.append(tensors.opset_id(_DOMAIN, 1))
    proto.opset_import.append(tensors.opset_id("", onnx.defs.onnx_opset_version()))
    symbols = _symbols(wiring, opened)
    for name in wiring.order:
        _add(proto, name, opened[name], wiring, spans)
    inputs: list[ValueInfo] = []
    outputs: list[ValueInfo] = []
    for name, model in opened.items():
        declared = {v.name: v for v in model.graph.input}
        for info in model.signature.inputs:
            whole = f"{name}.{info.name}"
            if wiring.source[name, info.name] == whole:
                inputs.append(_named(whole, info, symbols[name]))
                proto.graph.input.append(_value(whole, declared[info.name], symbols[name]))
        declared = {v.name: v for v in model.graph.output}
        for info in model.signature.outputs:
            whole = f"{name}.{info.name}"
            outputs.append(_named(whole, info, symbols[name]))
            proto.graph.output.append(_value(whole, declared[info.name], symbols[name]))
    store = tensors.Store(spans, _Folders(list(_paths(path, wanted).values()), list(opened.values())))
    return _Joined(proto, store, Signature(tuple(inputs), tuple(outputs)))


def _symbols(wiring: _Wiring, opened: dict[str, OnnxModel]) -> dict[str, dict[str, int | str]]:
    """The names that symbols of each network have in the whole. Symbols of shared inputs, and of inputs from another network, are the
    other's, or its numbers. An output taken from another network may come from a third, so names are looked up as often as there are
    networks."""
    found: dict[str, dict[str, int | str]] = {}
    known: dict[str, ValueInfo] = {}
    for _ in opened:
        for name in wiring.order:
            model = opened[name]
            mine = found[name] = {}
            for info in model.signature.inputs:
                source = wiring.source[name, info.name]
                other = known.get(source) if source != f"{name}.{info.name}" else None
                if other is not None and other.shape is not None and info.shape is not None:
                    mine.update((a, b) for a, b in zip(info.shape, other.shape, strict=True) if isinstance(a, str))
            for info in (*model.signature.inputs, *model.signature.outputs):
                mine.update((d, f"{name}.{d}") for d in info.shape or () if isinstance(d, str) and d not in mine)
                known[f"{name}.{info.name}"] = _named(f"{name}.{info.name}", info, mine)
    return found


def _named(name: str, info: ValueInfo, symbols: dict[str, int | str]) -> ValueInfo:
    shape = None if info.shape is None else tuple(symbols.get(d, d) if isinstance(d, str) else d for d in info.shape)
    return replace(info, name=name, shape=shape)


def _value(name: str, value: ValueInfoProto, symbols: dict[str, int | str]) -> ValueInfoProto:
    copy = ValueInfoProto()
    copy.CopyFrom(value)
    copy.name = name
    for dim in copy.type.tensor_type.shape.dim:
        if dim.dim_param:
            known = symbols.get(dim.dim_param, dim.dim_param)
            if isinstance(known, int):
                dim.dim_value = known
            else:
                dim.dim_param = known
    return copy


def _add(proto: ModelProto, name: str, model: OnnxModel, wiring: _Wiring, spans: list[memoryview | TensorProto]) -> None:
    """Adds a network: a function with its nodes, a node that calls it, and its constants."""
    first = len(spans)
    spans.extend(model.store.spans)
    graph = model.graph
    reads = [v.name for v in model.signature.inputs]
    constants = list(model.initializers)
    function = FunctionProto(domain=_DOMAIN, name=name)
    function.input.extend([*reads, *constants])
    function.output.extend(v.name for v in model.signature.outputs)
    function.node.extend(graph.node)
    function.opset_import.extend(model.proto.opset_import)
    functions = [function]
    for own in model.proto.functions:
        functions.append(FunctionProto())
        functions[-1].CopyFrom(own)
        functions[-1].domain = _domain(name, own.domain)
    moved = _moved(first, model, spans)
    for each in functions:
        _settle(each, name, model, moved)
    proto.functions.extend(functions)
    for key, tensor in model.initializers.items():
        copy = proto.graph.initializer.add()
        copy.CopyFrom(tensor)
        copy.name = f"{name}.{key}"
        moved(copy)
    call = proto.graph.node.add(op_type=name, domain=_DOMAIN, name=name)
    call.input.extend([wiring.source[name, own] for own in reads] + [f"{name}.{key}" for key in constants])
    call.output.extend(f"{name}.{v.name}" for v in model.signature.outputs)


def _domain(name: str, domain: str) -> str:
    """The domain of a network's own functions, which others may have under the same names."""
    return f"{_DOMAIN}.{name}.{domain}"


def _settle(function: FunctionProto, name: str, model: OnnxModel, moved: Callable[[TensorProto], None]) -> None:
    """Calls of the network's own functions find them, and constants find their data."""
    called = False
    for node in all_nodes(function.node):
        if (domain_of(node), node.op_type, node.overload) in model.functions:
            node.domain = _domain(name, node.domain)
            called = True
        for attribute in node.attribute:
            for tensor in _tensors(attribute):
                moved(tensor)
            for graph in subgraphs(node):
                for tensor in graph.initializer:
                    moved(tensor)
    if called:
        for domain in sorted({key[0] for key in model.functions}):
            function.opset_import.append(tensors.opset_id(_domain(name, domain), 1))


def _tensors(attribute: onnx.AttributeProto) -> Iterator[TensorProto]:
    if attribute.HasField("t"):
        yield attribute.t
    yield from attribute.tensors


def _moved(first: int, model: OnnxModel, spans: list[memoryview | TensorProto]) -> Callable[[TensorProto], None]:
    """Makes a tensor's data those of a span of the whole: the network's spans are those from `first` on, data in files come behind."""

    def move(tensor: TensorProto) -> None:
        if tensor.data_location != TensorProto.EXTERNAL:
            return
        entries = tensors.entries_of(tensor)
        if entries.get("location") == REFERENCE:
            number = first + int(entries["span"])
        else:
            number = len(spans)
            spans.append(model.store.folder.view(tensor.name, entries))
        del tensor.external_data[:]
        tensor.MergeFromString(reference(number))

    return move
