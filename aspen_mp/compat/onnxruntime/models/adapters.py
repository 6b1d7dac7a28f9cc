"""LoRA adapters: files of tensors that stand in for a model's initializers while a request runs.

The files are onnxruntime's (FlatBuffers of the kind ``TORT``). A model takes an adapter's tensors where the initializers of their names are
inputs, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

import numpy as np

from aspen_mp.client import arguments
from aspen_mp.compat.onnxruntime.errors import Unavailable
from aspen_mp.compat.onnxruntime.models.flatbuffers import BrokenBuffer, Table, Writer, identifier
from aspen_mp.compat.onnxruntime.values import elements
from aspen_mp.compat.onnxruntime.values.ort_value import OrtValue

_LETTERS: Final = b"TORT"
_VERSION: Final = 1
_TYPES: Final = frozenset({*range(1, 8), 10, 11, 12, 13, *range(16, 21)})
"""Numbers in TensorProto.DataType of the types that a parameter may have."""
_PARAMETERS: Final = 3  # the fields before it are the versions of format, adapter and model
_NAME, _DIMS, _TYPE, _DATA = range(4)


@dataclass(slots=True)
class _Content:
    format_version: int = _VERSION
    adapter_version: int = 0
    model_version: int = 0
    parameters: dict[str, OrtValue] = field(default_factory=dict)


def _read(path: str | os.PathLike[str]) -> _Content:
    """The content of a file. Unavailable, a RuntimeError, where it is not an adapter."""
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            data = memoryview(file.read())
    except (OSError, ValueError) as error:
        raise Unavailable(f"cannot read the adapter {name!r}: {getattr(error, 'strerror', None) or error}") from None
    if identifier(data) != _LETTERS:
        raise Unavailable(f"{name!r} does not appear to be a valid lora parameter format")
    try:
        root = Table.root(data)
        parameters = dict(map(_parameter, root.tables(_PARAMETERS)))
        return _Content(root.number(0), root.number(1), root.number(2), parameters)
    except ValueError as error:  # BrokenBuffer, or what numpy says of shapes and names of strings
        raise Unavailable(f"{name!r} fails lora adapter format verification: {error}") from None


def _parameter(table: Table) -> tuple[str, OrtValue]:
    name = str(table.vector(_NAME, 1), "utf-8")
    if table.number(_TYPE) not in _TYPES:
        raise BrokenBuffer(f"parameter {name!r} has the element type {table.number(_TYPE)}, which adapters do not have")
    dtype, data = elements.dtype(table.number(_TYPE)), table.vector(_DATA, 1)
    shape = np.frombuffer(table.vector(_DIMS, 8), "<i8").tolist()
    if min(shape, default=0) < 0 or prod(shape) * dtype.itemsize != len(data):
        raise BrokenBuffer(f"parameter {name!r} has {len(data)} bytes, which do not fit shape {shape} of {dtype}")
    return name, OrtValue(np.frombuffer(data, np.uint8).view(dtype).reshape(shape))


class AdapterFormat:
    """The content of an adapter's file: parameters by name, and versions.

    Args:
        adapter: Another `AdapterFormat`, whose content this one shares. None: an empty one.
    """

    def __init__(self, adapter: AdapterFormat | None = None) -> None:
        self._content: _Content = _Content() if adapter is None else adapter._content

    @staticmethod
    def read_adapter(file_path: str | os.PathLike[str]) -> AdapterFormat:
        """Return the content of a file. Unavailable, a RuntimeError, where it is not an adapter."""
        made = AdapterFormat()
        made._content = _read(file_path)
        return made

    def export_adapter(self, file_path: str | os.PathLike[str]) -> None:
        """Writes a file that onnxruntime reads, too."""
        content = self._content
        out = Writer(_LETTERS)
        places = out.table(0, [content.format_version, content.adapter_version, content.model_version, None])
        count = len(content.parameters)
        begin = out.vector(places[_PARAMETERS], count, bytes(4 * count))
        for k, (name, value) in enumerate(content.parameters.items()):
            array = np.ascontiguousarray(value.numpy())
            fields = out.table(begin + 4 * k, [None, None, value.element_type(), None])
            out.string(fields[_NAME], name)
            out.vector(fields[_DIMS], len(value.shape()), np.array(value.shape(), "<i8").tobytes(), 8)
            out.vector(fields[_DATA], array.nbytes, array.reshape(-1).view(np.uint8).data, 8)
        with open(file_path, "wb") as file:
            file.write(out.data)

    def get_format_version(self) -> int:
        return self._content.format_version

    def set_adapter_version(self, adapter_version: int) -> None:
        self._content.adapter_version = arguments.whole("adapter_version", adapter_version, -(1 << 31), (1 << 31) - 1)

    def get_adapter_version(self) -> int:
        return self._content.adapter_version

    def set_model_version(self, model_version: int) -> None:
        self._content.model_version = arguments.whole("model_version", model_version, -(1 << 31), (1 << 31) - 1)

    def get_model_version(self) -> int:
        return self._content.model_version

    def set_parameters(self, params: Mapping[str, OrtValue]) -> None:
        """Replaces the parameters."""
        wrong = [name for name, value in params.items() if not isinstance(value, OrtValue)]
        if wrong:
            raise AttributeError(f"the parameter {wrong[0]!r} must be an OrtValue, not a {type(params[wrong[0]]).__name__}")
        self._content.parameters = {arguments.text("name", name): value for name, value in params.items()}

    def get_parameters(self) -> dict[str, OrtValue]:
        """Return {name: value}."""
        return dict(self._content.parameters)


class LoraAdapter:
    """An adapter for `RunOptions.add_active_adapter`. It is empty until `Load`."""

    def __init__(self) -> None:
        self._parameters: dict[str, OrtValue] = {}

    def Load(self, file_path: str | os.PathLike[str]) -> None:
        """Reads a file. Unavailable, a RuntimeError, where it is not an adapter."""
        self._parameters = _read(file_path).parameters


def applied(feeds: Mapping[str, Any], adapters: Iterable[LoraAdapter]) -> dict[str, Any]:
    """The inputs of a request with those of its adapters: the first adapter that has a name counts, then what was given."""
    result = dict(feeds)
    for adapter in reversed(list(adapters)):
        result.update((name, value._value) for name, value in adapter._parameters.items())
    return result
