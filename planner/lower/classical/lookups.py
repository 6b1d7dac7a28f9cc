"""LabelEncoder and OneHotEncoder of whole numbers: tables over the range of their keys. Those of strings are numbers already
(`planner/frontends/classical/words.py`)."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, numpy_helper

from aspen_mp.planner.ir.graph import Node, Tensor
from aspen_mp.planner.lower.builder import BOOL, F32, I32, I64, Builder, NoKernel
from aspen_mp.planner.lower.classical.ensembles import NUMBERS, of_model
from aspen_mp.planner.lower.elementwise import data
from aspen_mp.planner.lower.registry import rule

MOST: Final = 1 << 16
"""Entries of a table by key; keys that lie further apart are looked up in Python."""
MOST_CELLS: Final = 1 << 18
"""Most cells of a table with a row for each key."""
_KINDS: Final = ("strings", "int64s", "floats", "tensor")


def _taken(b: Builder, x: Tensor, keys: npt.NDArray[np.int64], values: npt.NDArray[Any], other: npt.NDArray[Any]) -> Tensor:
    """values[k] where x is keys[k], of equal keys the last one, and `other` elsewhere."""
    least, most = int(keys.min()), int(keys.max())
    if most - least >= MOST or least == np.iinfo(np.int64).min or most == np.iinfo(np.int64).max:
        raise NoKernel(f"keys reach too far: from {least} to {most}")
    table = np.repeat(other[None], most - least + 3, axis=0)  # the ends stand for all that lies beyond
    table[keys - least + 1] = values
    at = b.ternary("CLAMP", x, b.constant(least - 1, I64), b.constant(most + 1, I64))
    at = b.binary("SUB", at, b.constant(least - 1, I64))
    return b.emit("GATHER", [of_model("table", table), at], (*x.shape, *table.shape[1:]), table.dtype, axis=0)


def _list(node: Node, what: str) -> npt.NDArray[Any] | None:
    """Numbers among the attributes, given once."""
    given = [kind for kind in _KINDS if f"{what}_{kind}" in node.attrs]
    if len(given) != 1 or given[0] == "strings":
        return None
    value = node.attrs[f"{what}_{given[0]}"]
    if given[0] == "tensor":
        return numpy_helper.to_array(value).reshape(-1) if value.data_type != TensorProto.STRING else None
    return np.array(value, np.int64 if given[0] == "int64s" else np.float32)


def _default(node: Node, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    tensor = node.attrs.get("default_tensor")
    if tensor is not None and tensor.data_type != TensorProto.UNDEFINED and len(given := numpy_helper.to_array(tensor).reshape(-1)):
        return np.asarray(given[0]).astype(dtype)
    name = {"float32": "default_float", "int64": "default_int64"}.get(dtype.name, "")
    return np.array(node.attrs.get(name, -0.0 if dtype.kind == "f" else -1), dtype)


@rule("ai.onnx.ml.LabelEncoder")
def _label_encoder(b: Builder, node: Node) -> Tensor:
    x, keys, values = data(node), _list(node, "keys"), _list(node, "values")
    if x.dtype != I64 or x.size == 0 or keys is None or values is None or keys.dtype != I64 or len(keys) != len(values) or not len(keys):
        raise NoKernel(f"keys, values or {x.dtype} inputs are not whole numbers")
    return _taken(b, x, keys[::-1], values[::-1], _default(node, values.dtype))  # of equal keys the first one counts


@rule("ai.onnx.ml.OneHotEncoder")
def _one_hot(b: Builder, node: Node) -> Tensor:
    x, keys = data(node), np.array(node.attrs.get("cats_int64s") or [], np.int64)
    if x.dtype not in (*NUMBERS, I32) or x.size == 0 or not len(keys) or node.attrs.get("cats_strings"):
        raise NoKernel(f"categories or {x.dtype} inputs are not whole numbers")
    count, strict = len(keys), not node.attrs.get("zeros", 1)
    if count > MOST_CELLS or (strict and count * count > MOST_CELLS):
        raise NoKernel(f"no kernel takes {count} categories")
    x = b.cast(x, I64)
    if strict:  # the place behind the last has no row
        place = _taken(b, x, keys, np.arange(count), np.array(count))
        return b.emit("GATHER", [of_model("rows", np.eye(count, dtype=np.float32)), place], (*x.shape, count), F32, axis=0)
    if (int(keys.max()) - int(keys.min()) + 3) * count <= MOST_CELLS:
        rows = np.zeros((count, count), np.float32)
        rows[np.arange(count), np.arange(count)] = 1
        return _taken(b, x, keys, rows, np.zeros(count, np.float32))
    place = b.reshape(_taken(b, x, keys, np.arange(count), np.array(count)), (*x.shape, 1))
    return b.cast(b.binary("EQUAL", place, of_model("numbers", np.arange(count)), BOOL), F32)
