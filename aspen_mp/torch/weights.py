"""Loading an imported graph: constants are written once, straight from PyTorch's memory into the file in memory that the planner maps.

The file is a ModelProto like any other. In protobuf's wire format a message may come in pieces, which are merged: the first piece is the
graph without its large constants, and each constant is a piece of its own, whose data are never copied into a protobuf object.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

from aspen_mp.shm.bindings._mapping import Memfd
from aspen_mp.torch.builder import ONNX_TYPES

if TYPE_CHECKING:
    from aspen_mp import Model, Runtime
    from aspen_mp.torch.importer import Imported

_GRAPH: Final = b"\x3a"
"""Key of ModelProto's field `graph`, a message."""
_INITIALIZER: Final = b"\x2a"
"""Key of GraphProto's field `initializer`, a message."""
_DIMS, _DATA_TYPE, _NAME, _RAW_DATA = b"\x0a", b"\x10", b"\x42", b"\x4a"
"""Keys of TensorProto's fields; `dims` are packed."""


def load(runtime: Runtime, imported: Imported, tensors: Mapping[str, Any], **options: Any) -> Model:
    """Loads the model.

    Args:
        runtime: Where it is loaded.
        imported: The graph.
        tensors: Its constants by name, on the CPU.
        options: As of `Runtime.load`.
    """
    file = Memfd("aspen-torch")
    for piece in written(imported, tensors):
        _write(file.fd, piece)
    return runtime.load(file, **options)


def written(imported: Imported, tensors: Mapping[str, Any]) -> Iterator[bytes | memoryview]:
    """The model's bytes."""
    yield imported.proto.SerializeToString()
    for name, tensor in tensors.items():
        data = bytes_of(tensor)
        dims = b"".join(map(_varint, tensor.shape))
        label = name.encode()
        head = b"".join(
            [
                *(_DIMS, _varint(len(dims)), dims),
                *(_DATA_TYPE, _varint(ONNX_TYPES[tensor.dtype])),
                *(_NAME, _varint(len(label)), label),
                *(_RAW_DATA, _varint(data.nbytes)),
            ]
        )
        inner = _INITIALIZER + _varint(len(head) + data.nbytes) + head
        yield _GRAPH + _varint(len(inner) + data.nbytes) + inner
        yield data


def bytes_of(tensor: Any) -> memoryview:
    """The elements of a tensor in their order; no copy where they lie so."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if not plain.numel():
        return memoryview(b"")
    return memoryview(plain.reshape(-1).view(torch.uint8).numpy())


def _write(fd: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
