"""Attributes of one node as numpy arrays and Python values, with the defaults that an operator gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import AttributeProto, NodeProto, TensorProto, numpy_helper

Array = npt.NDArray[Any]


class Attributes:
    """The attributes of a node. `linked`: values of attributes that refer to those of the function that the node stands in."""

    def __init__(self, node: NodeProto, linked: Mapping[str, Any] | None = None) -> None:
        self.node = node
        self._linked = {name: value for name, value in (linked or {}).items() if value is not None}
        self._own: dict[str, AttributeProto] = {a.name: a for a in node.attribute if not a.ref_attr_name}

    def __contains__(self, name: str) -> bool:
        return name in self._own or name in self._linked

    def floats(self, name: str) -> Array:
        """A list of numbers, float32; empty where there is none."""
        return np.array(self._linked.get(name, ()) if name not in self._own else self._own[name].floats, np.float32)

    def ints(self, name: str) -> Array:
        """A list of integers, int64; empty where there is none."""
        return np.array(self._linked.get(name, ()) if name not in self._own else self._own[name].ints, np.int64)

    def strings(self, name: str) -> list[str | bytes]:
        """A list of strings; empty where there is none."""
        if name in self._own:
            return [text(s) for s in self._own[name].strings]
        return [text(s) for s in self._linked.get(name, ())]

    def tensor(self, name: str) -> Array | None:
        """A tensor as a vector, strings as an array of objects; None where there is none."""
        proto = self._own[name].t if name in self._own else self._linked.get(name)
        if not isinstance(proto, TensorProto) or proto.data_type == TensorProto.UNDEFINED:
            return None
        array = numpy_helper.to_array(proto).reshape(-1)
        return strings([text(s) for s in array.tolist()]) if array.dtype.kind in "OUST" else array

    def integer(self, name: str, default: int) -> int:
        return int(self._own[name].i if name in self._own else self._linked.get(name, default))

    def number(self, name: str, default: float) -> float:
        return float(self._own[name].f if name in self._own else self._linked.get(name, default))

    def word(self, name: str, default: str) -> str:
        """A string of ASCII: the name of an option."""
        value = text(self._own[name].s if name in self._own else self._linked.get(name, default))
        return value if isinstance(value, str) else repr(value)

    def string(self, name: str, default: str) -> str | bytes:
        return text(self._own[name].s if name in self._own else self._linked.get(name, default))


def text(value: str | bytes) -> str | bytes:
    """A string; the bytes themselves where they are not UTF-8, as everywhere in this project."""
    if isinstance(value, str):
        return value
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        return bytes(value)


def strings(values: list[Any]) -> Array:
    """Strings as a vector of dtype object."""
    out = np.empty(len(values), object)
    out[:] = values
    return out


def rows(x: Array) -> Array:
    """A table of samples: a vector is one row of it."""
    if x.ndim == 0:
        raise ValueError("the input is a scalar; rows of columns are expected")
    return x.reshape(1, -1) if x.ndim == 1 else x.reshape(len(x), -1)


def labels(a: Attributes, ints: str) -> Array:
    """The classes of a classifier, in order: int64, or strings as objects. `ints`: what its list of integers is called."""
    words = a.strings("classlabels_strings")
    return strings(words) if words else a.ints(ints)
