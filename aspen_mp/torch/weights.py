"""Loading an imported graph: constants are written once, straight from PyTorch's memory into the file in memory that the planner maps.

The file is a ModelProto like any other. In protobuf's wire format a message may come in pieces, which are merged: the first piece is the
graph without its large constants, and each constant is a piece of its own, whose data are never copied into a protobuf object.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from aspen_mp.planner.frontends.wire import varint
from aspen_mp.shm.bindings._mapping import Memfd
from aspen_mp.shm.errors import AspenError
from aspen_mp.torch.builder import ONNX_TYPES

if TYPE_CHECKING:
    from aspen_mp import Model, Runtime
    from aspen_mp.torch.importer import Imported

_GRAPH: Final = b"\x3a"
"""Key of ModelProto's field `graph`, a message."""
_INITIALIZER: Final = b"\x2a"
"""Key of GraphProto's field `initializer`, a message."""
_DIMS, _DATA_TYPE, _NAME, _RAW_DATA, _DOC = b"\x0a", b"\x10", b"\x42", b"\x4a", b"\x62"
"""Keys of TensorProto's fields; `dims` are packed. `doc_string` is where bytes go that fill up."""
_ALIGN: Final = 64
_SEALS: Final = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_views: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""Memory of tensors that are views of a file that a runtime holds, by its address."""


def load(runtime: Runtime, imported: Imported, tensors: Mapping[str, Any], release: bool = False, **options: Any) -> Model:
    """Loads the model.

    Args:
        runtime: Where it is loaded.
        imported: The graph.
        tensors: Its constants by name, on the CPU.
        release: Whether those tensors become views of the file that the runtime holds, and their own memory is freed.
        options: As of `Runtime.load`.
    """
    file = Memfd("aspen-torch")
    places: dict[str, int] = {}
    for piece in written(imported, tensors, places):
        _write(file.fd, piece)
    fcntl.fcntl(file.fd, fcntl.F_ADD_SEALS, _SEALS)
    model = runtime.load(file, **options)
    if file.fd >= 0:  # kept, to load the model again if the runtime is lost
        _share(model, file)
    if release:
        _release(
            model, {name: (tensor, places[name]) for name, tensor in tensors.items() if tensor.untyped_storage().data_ptr() not in _views}
        )
    return model


def _share(model: Model, file: Memfd) -> None:
    """The descriptor leads to the runtime's file, which has the same contents, so that this process does not hold one of its own. Where
    that cannot be, it goes on holding it."""
    with suppress(AspenError, OSError):
        fd = model.lend()
        try:
            os.dup2(fd, file.fd, inheritable=False)
        finally:
            os.close(fd)


def _release(model: Model, tensors: Mapping[str, tuple[Any, int]]) -> None:
    """Tensors become views of the runtime's file, which all processes share that have loaded the same. Pages are copied when they are
    written to."""
    if not tensors:
        return
    fd = model.lend()
    try:
        pages = mmap.mmap(fd, 0, access=mmap.ACCESS_COPY)
    finally:
        os.close(fd)
    for tensor, place in tensors.values():
        if tensor.numel():
            flat = torch.from_numpy(np.frombuffer(pages, np.uint8, tensor.numel() * tensor.element_size(), place))
            tensor.data = flat.view(tensor.dtype).view(tensor.shape)
            memory = tensor.untyped_storage()
            _views[memory.data_ptr()] = memory


def written(imported: Imported, tensors: Mapping[str, Any], places: dict[str, int]) -> Iterator[bytes | memoryview]:
    """The model's bytes. `places` gets the place of each tensor's data."""
    first = imported.proto.SerializeToString()
    yield first
    at = len(first)
    for name, tensor in tensors.items():
        data = bytes_of(tensor)
        dims = b"".join(map(varint, tensor.shape))
        label = name.encode()
        head = b"".join(
            [
                *(_DIMS, varint(len(dims)), dims),
                *(_DATA_TYPE, varint(ONNX_TYPES[tensor.dtype])),
                *(_NAME, varint(len(label)), label),
                *(_RAW_DATA, varint(data.nbytes)),
            ]
        )
        start = _start(head, data.nbytes, at)
        places[name] = at + len(start)
        at = places[name] + data.nbytes
        yield start
        yield data


def _start(head: bytes, nbytes: int, at: int) -> bytes:
    """All of a constant's piece before its data, which then begin at a multiple of `_ALIGN` bytes where the piece begins at `at`."""
    for fill in range(2 * _ALIGN):
        full = (_DOC + varint(fill) + b" " * fill if fill else b"") + head
        inner = _INITIALIZER + varint(len(full) + nbytes) + full
        start = _GRAPH + varint(len(inner) + nbytes) + inner
        if (at + len(start)) % _ALIGN == 0:
            return start
    return start


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
