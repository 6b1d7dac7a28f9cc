"""What a model takes and gives, and whether what users give fits it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aspen_mp.control.wire import protocol
from aspen_mp.shm import values
from aspen_mp.shm.errors import RequestError, TooLarge
from aspen_mp.shm.words import a, nearest

_MOST_EXTENT: Final = (1 << 63) - 1
"""Largest extent of an axis in ONNX."""


@dataclass(frozen=True, slots=True)
class ValueInfo:
    """An input or output of a model.

    Attributes:
        name: Its name.
        shape: A dimension is an int, a symbol, or None where nothing is known of it. The shape is None for a value of unknown rank and
            for what is no tensor.
        dtype: numpy's dtype; object for strings and for values that are no tensors.
        kind: "tensor", "string", "sequence", "optional" or "other".
        optional: Whether it is an input that has a default value in the model, which is an initializer that is a graph input. Requests
            that give such an input get plans of their own.
        type: The whole type in ONNX's spelling, such as "tensor(float)" or "seq(map(int64,tensor(float)))"; empty where it is not known.
    """

    name: str
    shape: tuple[int | str | None, ...] | None
    dtype: np.dtype[Any]
    kind: str = "tensor"
    optional: bool = False
    type: str = ""

    @classmethod
    def from_message(cls, info: protocol.ValueInfo) -> ValueInfo:
        shape = None if info.shape is None else tuple(None if d in {"", -1} else d for d in info.shape)
        dtype = (
            np.dtype(object)
            if info.dtype in {"object", "string"} or info.kind not in {"tensor", "string"}
            else values.dtype_by_name(info.dtype)
        )
        return cls(info.name, shape, dtype, info.kind, info.optional, info.type)


class Signature:
    """Names, dtypes and shapes of a model's inputs and outputs. Errors name the model and the tensor; `model` is what messages call it."""

    def __init__(self, model: str, loaded: protocol.Loaded) -> None:
        self.model = model
        self.inputs = [ValueInfo.from_message(info) for info in loaded.inputs]
        self.outputs = [ValueInfo.from_message(info) for info in loaded.outputs]
        self.output_names = [info.name for info in self.outputs]
        self.codes = {info.name: {str(word): k for k, word in enumerate(info.keys)} for info in loaded.inputs if info.keys}
        self.keys: dict[str, values.Keys] = {
            info.name: np.array(info.keys, object) if info.kind == "string" else info.keys for info in loaded.outputs if info.keys
        }
        self._input_names = {info.name for info in self.inputs}
        self.fixed = all(info.shape is not None and all(isinstance(extent, int) for extent in info.shape) for info in self.inputs)

    def known_inputs(self) -> str:
        """For messages: names of inputs, and how many more there are whose initializers may be overridden."""
        needed = ", ".join(sorted(info.name for info in self.inputs if not info.optional))
        more = sum(info.optional for info in self.inputs)
        return f"{needed} and {more} optional" if more else needed

    def named(self, feeds: Any) -> Mapping[str, Any]:
        """What `run` and `submit` were given, by name."""
        if isinstance(feeds, Mapping):
            return feeds
        needed = [info.name for info in self.inputs if not info.optional]
        if len(needed) == 1 and hasattr(feeds, "__array__"):
            return {needed[0]: feeds}
        names = ", ".join(f"{name!r}: array" for name in needed)
        alone = " or that array alone" if len(needed) == 1 else ""
        raise TypeError(f"model {self.model!r}: feeds must be a dict {{{names}}}{alone}, not {a(type(feeds).__name__)}")

    def item(self, item: Any) -> Mapping[str, Any]:
        """The same of an item of a stream."""
        if isinstance(item, Mapping):
            return item
        needed = [info.name for info in self.inputs if not info.optional]
        if len(needed) != 1:
            raise RequestError(
                f"model {self.model!r} needs {', '.join(map(repr, needed)) or 'no input'}. Each item must be a dict {{input: array}}"
            )
        return {needed[0]: item}

    def blanks(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        """Arrays of these shapes. Shape and dtype are all that planning reads of them; no memory stands behind them."""
        arrays: dict[str, Any] = {}
        for info in self.inputs:
            if info.name in shapes:
                shape = shapes[info.name]
                try:
                    arrays[info.name] = np.broadcast_to(np.zeros((), info.dtype), shape)
                except (ValueError, OverflowError):
                    if max(shape) > _MOST_EXTENT:
                        raise ValueError(f"model {self.model!r}: input {info.name!r} cannot have shape {shape}") from None
                    needed = math.prod(shape) * info.dtype.itemsize
                    raise TooLarge(f"model {self.model!r}: input {info.name!r} of shape {shape} needs {needed} bytes") from None
            elif not info.optional:
                self.check_names(shapes)
                raise RequestError(f"model {self.model!r}: no shape is given for input {info.name!r}. Give one for each input")
        self.check_names(shapes)
        return arrays

    def check_names(self, names: Iterable[str]) -> None:
        """RequestError where one of these is no input of the model; the message names that one and the input that it is most like."""
        for name in names:
            if name not in self._input_names:
                meant = nearest(str(name), self._input_names)
                advice = "" if meant is None else f" (is {meant!r} meant?)"
                raise RequestError(f"model {self.model!r} has no input {name!r}{advice}. It has {self.known_inputs()}")

    def check(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The feeds in the model's order, as arrays of the right dtype and shape, strings of `codes` as their places;
        RequestError otherwise."""
        result: dict[str, Any] = {}
        used = 0
        for info in self.inputs:
            value = feeds.get(info.name)
            if value is None and info.name not in feeds:
                if not info.optional:
                    self.check_names(feeds)  # a misspelt one says more
                    raise RequestError(f"model {self.model!r}: input {info.name!r} is missing. The model needs {self.known_inputs()}")
                continue
            used += 1
            result[info.name] = self._tensor(info, value) if info.kind in {"tensor", "string"} else value
            if info.name in self.codes:
                result[info.name] = values.places(self.codes[info.name], result[info.name])
        if used != len(feeds):
            self.check_names(feeds)
        return result

    def _tensor(self, info: ValueInfo, value: Any) -> npt.NDArray[Any]:
        where = f"model {self.model!r}: input {info.name!r}"
        if isinstance(value, np.ndarray):
            array = value
            if info.dtype.hasobject and array.dtype.kind in "US":
                array = array.astype(object)
            if array.dtype != info.dtype or not array.dtype.isnative:
                raise RequestError(f"{where} must be {info.dtype}, not {array.dtype}. Convert it with .astype")
        else:
            try:
                array = np.asarray(value, dtype=info.dtype)
            except (TypeError, ValueError, OverflowError) as error:
                raise RequestError(f"{where} is {info.dtype}, got {a(type(value).__name__)} that cannot be converted: {error}") from None
        declared = info.shape
        if declared is not None:
            if not declared and array.size == 1:
                return array.reshape(())  # callers give vectors of one element where a scalar is declared
            if len(declared) != array.ndim:
                raise RequestError(f"{where} must have shape {_shape_text(declared)}, not {array.shape}")
            for want, have in zip(declared, array.shape, strict=True):
                if want.__class__ is int and want != have:
                    raise RequestError(f"{where} must have shape {_shape_text(declared)}, not {array.shape}")
        return array

    def wanted(self, outputs: Iterable[str] | None) -> list[str] | None:
        """The names of outputs that were asked for, checked; one alone may be given as it is."""
        if outputs is None:
            return None
        if not isinstance(outputs, Iterable):
            raise TypeError(f"model {self.model!r}: outputs must be a list of names, not {outputs!r} ({type(outputs).__name__})")
        names = [outputs] if isinstance(outputs, str) else list(outputs)
        for name in names:
            if name not in self.output_names:
                meant = nearest(str(name), self.output_names)
                advice = "" if meant is None else f" (is {meant!r} meant?)"
                raise RequestError(f"model {self.model!r} has no output {name!r}{advice}. It has {', '.join(self.output_names)}")
        return names


def fixed_shapes(inputs: Iterable[ValueInfo]) -> dict[str, tuple[int, ...]] | None:
    """Return the shape of each input that is not optional; None where a dimension is open, or an input is not a tensor of numbers."""
    found: dict[str, tuple[int, ...]] = {}
    for info in inputs:
        if info.optional:
            continue
        if info.kind != "tensor" or info.dtype.hasobject or info.shape is None:
            return None
        found[info.name] = tuple(dim for dim in info.shape if isinstance(dim, int))
        if len(found[info.name]) < len(info.shape):
            return None
    return found


def _shape_text(shape: Sequence[int | str | None]) -> str:
    return "[" + ", ".join("?" if d is None else str(d) for d in shape) + "]"
