"""The ONNX front-end: file, bytes or ModelProto → a checked `OnnxModel` and its signature.

An `OnnxModel` keeps the structure as a ModelProto without long tensors (`wire.strip`), and the tensors' bytes as views of the file. So a
model of gigabytes is opened, checked and inferred in milliseconds. Everything wrong with a model is reported here as a typed error:
ModelParseError, ModelInvalidError, UnsupportedModelError, ExternalDataError, ResourceLimitError.
"""

from __future__ import annotations

import mmap
import os
import stat
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import FunctionProto, GraphProto, ModelProto, TensorProto

from aspen_mp.planner.frontends import check, light, tensors
from aspen_mp.planner.frontends.classical import maps, result_types, words
from aspen_mp.planner.frontends.external import Folder, real_path, release
from aspen_mp.planner.frontends.normal import normalise
from aspen_mp.planner.frontends.normal.constants import make_ends_dense
from aspen_mp.planner.frontends.wire import INLINE_LIMIT, MAX_NODES, nests_too_deeply, reference, strip
from aspen_mp.planner.job import progress
from aspen_mp.shm.errors import ModelInvalidError, ModelParseError, ResourceLimitError, UnsupportedModelError

if TYPE_CHECKING:
    from aspen_mp.planner.cost.accuracy import Layer

ModelLike = str | os.PathLike[str] | bytes | bytearray | memoryview | ModelProto
FunctionKey = tuple[str, str, str]

MAX_FILE = 2**31 - 1
_OTHER_FILES = {
    b"version https://git-lfs.github.com/": "a pointer of Git LFS, which stands in for the file; `git lfs pull` fetches the file itself",
    b"<": "a web page or another kind of XML",
}
"""Files that users give in place of models, by their first bytes. No ModelProto begins with these: as fields they are of kinds that do not
exist."""


@dataclass(frozen=True, slots=True)
class ValueInfo:
    """One input or output of a model. `shape`: a number or a symbol per axis, None where even the rank is unknown. `dtype`: object for
    strings, sequences and optionals (`kind` says which: "tensor", "string", "sequence", "optional", "other"). `type`: the whole type in
    ONNX's spelling, "tensor(float)" or "seq(map(int64,tensor(float)))"; empty where the model does not say and nothing is inferred. `keys`:
    of an output that is a sequence of maps, for which plans give the table of values (`maps`). For strings these are the words whose places
    plans take and give (`words`)."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str, ...] | None
    kind: str = "tensor"
    type: str = ""
    keys: tuple[int | str, ...] = ()


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs and outputs of a model, in the model's order. `overridable`: initializers that are inputs too, whose values may be
    given."""

    inputs: tuple[ValueInfo, ...]
    outputs: tuple[ValueInfo, ...]
    overridable: tuple[ValueInfo, ...] = ()


class OnnxModel:
    """A checked ONNX model. `proto` holds no long tensors; `store` finds their bytes. `buffer`: the source of the parser. `spelt`: where it
    has numbers for strings (`words`), the model that has the strings. `layers`: facts about weights, by their keys, whatever the input
    shapes are."""

    def __init__(
        self, proto: ModelProto, store: tensors.Store, buffer: memoryview | None = None, spelt: tuple[OnnxModel, words.Lists] | None = None
    ) -> None:
        self._buffer = buffer
        self.spelt: OnnxModel | None = None if spelt is None else spelt[0]
        self._words: words.Lists = {} if spelt is None else spelt[1]
        self.proto = proto
        self.store = store
        self.opsets: dict[str, int] = {o.domain: o.version for o in proto.opset_import}
        self.layers: dict[str, Layer] = {}
        self.sparse: frozenset[str] = frozenset()
        """Inputs and outputs that the model declares as sparse tensors, and that are dense here."""
        self.functions: dict[FunctionKey, FunctionProto] = {(f.domain, f.name, f.overload): f for f in proto.functions}

    @property
    def graph(self) -> GraphProto:
        return self.proto.graph

    @property
    def files(self) -> list[str]:
        """Files that hold data of this model besides its own; all of them once it has been loaded, because loading checks every tensor."""
        return self.store.folder.files

    def release(self) -> None:
        """Lets go of the pages of mapped files that have been read: until the next use the model takes hardly any memory."""
        if self._buffer is not None:
            release(self._buffer)
        self.store.folder.release()

    @cached_property
    def initializers(self) -> dict[str, TensorProto]:
        return {t.name: t for t in self.graph.initializer}

    @cached_property
    def signature(self) -> Signature:
        """Inputs and outputs; symbols name unknown dimensions, made up from name and axis where the model has none."""
        if self.spelt is not None:
            said = self.spelt.signature
            ends = [tuple(replace(v, keys=self._words.get(v.name, v.keys)) for v in values) for values in (said.inputs, said.outputs)]
            return Signature(ends[0], ends[1], said.overridable)
        inferred = check.infer(self.light, outputs=True)
        inputs = [i for i in self.graph.input if i.name not in self.initializers]
        defaults = [i for i in self.graph.input if i.name in self.initializers]
        types = {o.name: o.type for o in inferred.graph.output}
        outputs = [(o.name, types.get(o.name, o.type)) for o in self.graph.output]
        return Signature(
            tuple(self._info(i.name, i.type) for i in inputs),
            tuple(replace(self._info(name, kind), keys=self.maps.get(name, ())) for name, kind in outputs),
            tuple(self._info(i.name, i.type) for i in defaults),
        )

    def _info(self, name: str, kind: onnx.TypeProto) -> ValueInfo:
        info = value_info(name, kind)
        return replace(info, type=f"sparse_{info.type}") if name in self.sparse else info

    @cached_property
    def maps(self) -> dict[str, tuple[int | str, ...]]:
        """See `maps.keys`."""
        return maps.keys(self.graph) if result_types.DOMAIN in self.opsets else {}

    @cached_property
    def light(self) -> ModelProto:
        """See `light.of`."""
        return light.of(self.proto)

    def constant(self, tensor: TensorProto) -> np.ndarray[Any, Any]:
        """The value of a constant of this model."""
        return self.store.array(tensor)


def load(source: ModelLike, *, folder: str | None = None) -> OnnxModel:
    """Opens and checks a model given as path, bytes or ModelProto. `folder`: where external data lie when `source` is not a path.

    A file is mapped, not read; it must not change while the model is in use.
    """
    try:
        progress.at("reading")
        model = _open(source, folder)
        progress.at("checking", 0, 3)
        check.structure(model.proto, model.store, model.functions)
        progress.at("checking", 1, 3)
        check.onnx_rules(model.light)
        progress.at("checking", 2, 3)
        _ = model.signature
        if (found := words.coded(model.proto)) is not None:
            model = OnnxModel(found[0], model.store, model._buffer, (model, found[1]))
    except UnicodeDecodeError as error:
        raise ModelParseError(f"not an ONNX model: a name is not valid UTF-8 ({error})") from None
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # fields that contradict each other in a way nobody has met yet
        raise ModelInvalidError(f"the model cannot be understood: {type(error).__name__}: {error}") from error
    return model


def _open(source: ModelLike, folder: str | None) -> OnnxModel:
    if isinstance(source, ModelProto):
        proto, spans = _strip_proto(source)
        return _normal(proto, tensors.Store(list(spans), Folder(folder)))
    real: str | None = None
    is_file = isinstance(source, str | os.PathLike)
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        folder = str(path.parent) if folder is None else folder
        buffer, real = _map(path)
    else:
        buffer = memoryview(source)
    if buffer.nbytes == 0:
        raise ModelParseError("not an ONNX model: it is empty")
    for beginning, what in _OTHER_FILES.items():
        if bytes(buffer.cast("B")[: len(beginning)]) == beginning:
            raise ModelParseError(f"not an ONNX model: {what}")
    if is_file and buffer.nbytes > MAX_FILE:
        raise ModelParseError(
            f"not an ONNX model: {buffer.nbytes} bytes; ONNX files have at most 2 GiB. Save larger models with external data"
        )
    buffer = buffer.cast("B")
    stripped = strip(buffer, MAX_NODES)
    try:
        proto = ModelProto.FromString(stripped.model)
    except DecodeError as error:
        if "alloc failed" in str(error):
            raise MemoryError(f"too little memory to parse {len(stripped.model)} bytes of the model's structure") from None
        why = "sub-graphs are nested too deeply" if nests_too_deeply(stripped.model) else error
        raise ModelParseError(f"not an ONNX model: {why}") from None
    if not proto.HasField("graph") or not proto.opset_import:
        raise ModelParseError("not an ONNX model: it has no graph or no opset")
    return _normal(proto, tensors.Store([buffer[at : at + n] for at, n in stripped.spans], Folder(folder, real)), buffer)


def _normal(proto: ModelProto, store: tensors.Store, buffer: memoryview | None = None) -> OnnxModel:
    check.texts(proto)
    sparse = make_ends_dense(proto)
    normalise(proto, store)
    model = OnnxModel(proto, store, buffer)
    model.sparse = sparse
    return model


def _map(path: Path) -> tuple[memoryview, str]:
    """A file's bytes, and the folder that the file lies in when links have been followed. Whatever else has the name (a pipe would keep us
    waiting for its writer) is refused."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                raise ModelParseError(f"cannot read {str(path)!r}: it is not a file")
            real = os.path.dirname(real_path(fd))
            if info.st_size == 0:
                return memoryview(b""), real
            return memoryview(mmap.mmap(fd, info.st_size, access=mmap.ACCESS_READ)), real
        finally:
            os.close(fd)
    except (OSError, ValueError) as error:
        raise ModelParseError(f"cannot read {str(path)!r}: {getattr(error, 'strerror', None) or error}") from None


def _strip_proto(source: ModelProto) -> tuple[ModelProto, list[TensorProto]]:
    """The same as wire.strip for a model that is parsed already: long tensors are referred to, not copied."""
    if len(source.graph.node) > MAX_NODES:
        raise ResourceLimitError(f"the model has {len(source.graph.node)} nodes, more than {MAX_NODES}")
    spans: list[TensorProto] = []
    proto = ModelProto(ir_version=source.ir_version, opset_import=source.opset_import, functions=source.functions)
    graph, old = proto.graph, source.graph
    graph.name = old.name
    for field in ("input", "output", "value_info", "sparse_initializer", "quantization_annotation"):
        getattr(graph, field).extend(getattr(old, field))
    for tensor in old.initializer:
        _reference_or_copy(tensor, graph.initializer.add(), spans)
    for node in old.node:
        new = graph.node.add()
        if node.op_type == "Constant" and len(node.attribute) == 1 and node.attribute[0].HasField("t"):
            new.op_type, new.name, new.domain = node.op_type, node.name, node.domain
            new.input.extend(node.input)
            new.output.extend(node.output)
            attribute = new.attribute.add(name=node.attribute[0].name, type=node.attribute[0].type)
            _reference_or_copy(node.attribute[0].t, attribute.t, spans)
        else:
            new.CopyFrom(node)
    return proto, spans


def _reference_or_copy(tensor: TensorProto, new: TensorProto, spans: list[TensorProto]) -> None:
    if tensor.HasField("raw_data") and 4 * prod(tensor.dims) > INLINE_LIMIT:
        new.MergeFromString(reference(len(spans)))
        new.name, new.data_type = tensor.name, tensor.data_type
        new.dims.extend(tensor.dims)
        spans.append(tensor)
    else:
        new.CopyFrom(tensor)


def value_info(name: str, proto: onnx.TypeProto) -> ValueInfo:
    """A ValueInfo from ONNX's type; unknown dimensions get the symbol of the model, else ``name.axis``."""
    kind = proto.WhichOneof("value")
    if kind != "tensor_type":
        label = {"sequence_type": "sequence", "optional_type": "optional"}.get(kind or "", "other")
        return ValueInfo(name, tensors.OBJECT, None, label, spelled(proto))
    try:
        dtype = tensors.numpy_dtype(proto.tensor_type.elem_type)
    except (KeyError, TypeError, ValueError):
        raise UnsupportedModelError(f"tensor {name!r}: unknown element type {proto.tensor_type.elem_type}") from None
    shape: tuple[int | str, ...] | None = None
    if proto.tensor_type.HasField("shape"):
        shape = tuple(
            d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else d.dim_param or f"{name}.{axis}"
            for axis, d in enumerate(proto.tensor_type.shape.dim)
        )
    return ValueInfo(name, dtype, shape, "string" if proto.tensor_type.elem_type == TensorProto.STRING else "tensor", spelled(proto))


def spelled(proto: onnx.TypeProto) -> str:
    """A type in ONNX's spelling; its unknown parts are left out."""
    kind = proto.WhichOneof("value")
    if kind == "tensor_type":
        return f"tensor({_element(proto.tensor_type.elem_type)})"
    if kind == "sparse_tensor_type":
        return f"sparse_tensor({_element(proto.sparse_tensor_type.elem_type)})"
    if kind == "sequence_type":
        return f"seq({spelled(proto.sequence_type.elem_type)})"
    if kind == "optional_type":
        return f"optional({spelled(proto.optional_type.elem_type)})"
    if kind == "map_type":
        return f"map({_element(proto.map_type.key_type)},{spelled(proto.map_type.value_type)})"
    return ""


def _element(number: int) -> str:
    return TensorProto.DataType.Name(number).lower() if number and number in TensorProto.DataType.values() else ""
