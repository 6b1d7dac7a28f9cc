"""IOBinding: inputs and outputs that are named once and used by many runs."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from aspen_mp.compat.onnxruntime.errors import InvalidArgument, Unavailable
from aspen_mp.compat.onnxruntime.values import elements
from aspen_mp.compat.onnxruntime.values.devices import on_cpu
from aspen_mp.compat.onnxruntime.values.ort_value import OrtValue, OrtValueVector, plain


def at(pointer: int, shape: Sequence[int], element_type: Any) -> npt.NDArray[Any]:
    """An array over memory of the caller's, who keeps it. `element_type`: a numpy type, or a number of TensorProto.DataType."""
    dtype = elements.dtype(element_type)
    if dtype.hasobject or dtype.kind in "US":
        raise Unavailable("strings have no memory that can be bound: bind an array by bind_cpu_input")
    shape = tuple(int(n) for n in shape)
    nbytes = prod(shape) * dtype.itemsize
    if not nbytes:
        return np.empty(shape, dtype)
    memory: Any = (ctypes.c_char * nbytes).from_address(pointer)
    made: npt.NDArray[Any] = np.frombuffer(memory, dtype, prod(shape)).reshape(shape)
    return made


class IOBinding:
    """Made by `InferenceSession.io_binding`.

    Inputs are read when a run begins: what is written into their arrays in between counts. An array of an OrtValue that was made by
    `ortvalue_from_shape_and_type` is read in place where it is large. An output that was bound by its name alone is not copied. One that
    was bound to an OrtValue is not copied either, as long as nobody has asked for that value's array or address. One bound to an address
    is.
    """

    def __init__(self, session: Any) -> None:
        """`session`: an InferenceSession."""
        self._session = session
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, OrtValue | None] = {}
        self._results: list[OrtValue] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: npt.NDArray[Any]) -> None:
        if not isinstance(arr_on_cpu, np.ndarray):
            raise TypeError(f"bind_cpu_input takes a numpy array, not a {type(arr_on_cpu).__name__}")
        self._inputs[self._input(name)] = arr_on_cpu

    def bind_input(self, name: str, device_type: Any, *more: Any, **named: Any) -> None:
        """``(name, device_type, device_id, element_type, shape, buffer_ptr)``; or with an OrtDevice, and without the number. An array in
        the device's place is bound as it is."""
        if isinstance(device_type, np.ndarray):
            self._inputs[self._input(name)] = device_type
            return
        self._inputs[self._input(name)] = _memory(device_type, more, named)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        self._inputs[self._input(name)] = ortvalue

    def bind_output(self, name: str, device_type: Any = "cpu", *more: Any, **named: Any) -> None:
        """Wherever the result lies; or ``(name, device_type, device_id, element_type, shape, buffer_ptr)`` for memory of the caller's."""
        given = _given(device_type, more, named)
        on_cpu(device_type, given.get("device_id", 0))
        here = given.get("buffer_ptr") is not None
        self._outputs[self._output(name)] = OrtValue(_memory(device_type, more, named)) if here else None

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        self._outputs[self._output(name)] = ortvalue

    def synchronize_inputs(self) -> None:
        """Does nothing: there is one device."""

    def synchronize_outputs(self) -> None:
        """Does nothing: a run returns when its outputs are there."""

    def get_outputs(self) -> OrtValueVector:
        """OrtValues of the outputs of the last run, in the order in which they were bound."""
        return OrtValueVector(self._results)

    def get_outputs_as_ortvaluevector(self) -> OrtValueVector:
        return OrtValueVector(self._results)

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Arrays of them. They are not copied: they lie in the CPU's memory."""
        return [plain(value) for value in self._results]

    def clear_binding_inputs(self) -> None:
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        self._outputs.clear()
        self._results = []

    def _input(self, name: str) -> str:
        return self._known(name, [*self._session.get_inputs(), *self._session.get_overridable_initializers()], "input")

    def _output(self, name: str) -> str:
        return self._known(name, self._session.get_outputs(), "output")

    def _known(self, name: str, there: Sequence[Any], what: str) -> str:
        names = [value.name for value in there]
        if name not in names:
            raise InvalidArgument(f"the model has no {what} {name!r}. It has {', '.join(names)}")
        return name

    def _run(self, options: Any) -> None:
        """One run of the session."""
        names = list(self._outputs)
        results = self._session._run({name: plain(value) for name, value in self._inputs.items()}, names, options) if names else []
        made = []
        for name, result in zip(names, results, strict=True):
            target = self._outputs[name]
            if target is None:
                made.append(OrtValue(result, self._session._type_of(name)))
            else:
                target._take(result)
                made.append(target)
        self._results = made

    @property
    def _iobinding(self) -> IOBinding:
        return self


SessionIOBinding = IOBinding
"""The name in onnxruntime's lower layer."""


def _given(device: Any, more: Sequence[Any], named: dict[str, Any]) -> dict[str, Any]:
    """Arguments behind the device's by name. An OrtDevice has its number already."""
    order = ("device_id", "element_type", "shape", "buffer_ptr") if isinstance(device, str) else ("element_type", "shape", "buffer_ptr")
    if len(more) > len(order) or named.keys() - {"device_id", *order}:
        raise TypeError(
            f"after the device come {', '.join(order)}. {len(more)} were given by position, by name {', '.join(named) or 'none'}"
        )
    return {**dict(zip(order, more, strict=False)), **named}


def _memory(device: Any, more: Sequence[Any], named: dict[str, Any]) -> npt.NDArray[Any]:
    given = _given(device, more, named)
    missing = [key for key in ("element_type", "shape", "buffer_ptr") if given.get(key) is None]
    if missing:
        raise TypeError(f"memory is bound with element_type, shape and buffer_ptr. Give {', '.join(missing)}, too")
    on_cpu(device, given.get("device_id", 0))
    return at(given["buffer_ptr"], given["shape"], given["element_type"])
