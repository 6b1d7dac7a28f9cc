"""Constant propagation: nodes whose inputs are all constants become constants, at once or when their values are asked for."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.frontends import tensors
from aspen_mp.planner.frontends.binding.items import Item, Types
from aspen_mp.planner.frontends.check import domain_of, name_of
from aspen_mp.planner.frontends.evaluate import LOOPING, VIEWS, NotComputed, evaluate, quick
from aspen_mp.planner.ir.graph import Stored, Tensor
from aspen_mp.planner.ops.packing import low_bit
from aspen_mp.shm.errors import ModelInvalidError

SMALL = 64 * 1024
"""Constants of at most this many bytes are computed at once."""

PLAN_CONSTANT = 1 << 20
"""Larger values that depend on the input shapes are computed by the plan, not stored in it."""

_REPEATING = {"ConstantOfShape", "Expand", "Tile"}
_MOST_REPEATED = 4 << 20
_LOOKUPS = {"Gather", "GatherElements", "GatherND"}


@dataclass(slots=True)
class BucketFolding:
    """Decisions by size at the longest extent of a shape bucket, which is bound first. They hold at every extent. Shorter values may be
    small enough for a constant, such as a mask of all tokens with all tokens, and the graph would be another.

    `longest`: whether that extent is being bound. `stay`: the first outputs of nodes that stay, although their inputs are constants.
    `apart`: of those whose values are too large to be moved by a tile in Python (`stages`)."""

    longest: bool = True
    stay: set[str] = field(default_factory=set)
    apart: set[str] = field(default_factory=set)

    def is_small(self, name: str, small: bool) -> bool:
        """Whether a value counts as small that is `small` at this extent."""
        if self.longest and not small:
            self.apart.add(name)
        return small if self.longest else name not in self.apart


def folded(entry: Item, inputs: list[Tensor | None], types: Types, bucket: BucketFolding | None = None) -> list[Tensor] | None:
    """The outputs of a node with constant inputs as constants, computed at once or (large weights) on demand. None: it stays a node.
    `bucket`: of a graph for a shape bucket. No parts of weights are constants there where input shapes say which parts, however small."""
    if bucket is None:
        return _folded(entry, inputs, types, lookups=True)
    if not bucket.longest and entry.gives[0] in bucket.stay:
        return None
    found = _folded(entry, inputs, types, lookups=False)
    if found is None and bucket.longest:
        bucket.stay.add(entry.gives[0])
    return found


def _folded(entry: Item, inputs: list[Tensor | None], types: Types, lookups: bool) -> list[Tensor] | None:
    present = [t for t in inputs if t is not None]
    of_model = all(t.weight_key is not None for t in present)
    large = max(prod(shape) * dtype.itemsize for dtype, shape in types.values()) if types else 0
    sources = max((t.nbytes for t in present), default=0)
    plain = all(tensors.is_plain(dtype) for dtype, _ in types.values())
    view = entry.proto.op_type in VIEWS and domain_of(entry.proto) == "" and present[0].data is not None
    key = _key(entry, present) if of_model else None
    loops = entry.proto.op_type in LOOPING
    fast = quick(entry.proto, entry.opsets.get("", 1)) and not loops
    slow = not fast and (sources > PLAN_CONSTANT or loops)
    stored = _stored(entry, inputs)
    if not lookups and not of_model and _looks_up(entry, present):
        return None
    if large <= SMALL and sources <= SMALL:
        pass
    elif not plain:
        return None
    elif of_model:
        if entry.proto.op_type in _REPEATING and large > max(_MOST_REPEATED, 4 * sources):
            return None  # repetition is a view for kernels, but would fill the weights with copies
        if not view:
            return _later(entry, inputs, types, key, stored)
    elif slow or large > _most_computed(present, lookups):
        return None
    try:
        values = evaluate(entry.proto, entry.opsets, [t.value() if t is not None else None for t in inputs[: len(entry.proto.input)]])
    except NotComputed:
        return None
    if any(not isinstance(v, np.ndarray | np.generic) for n, v in zip(entry.proto.output, values, strict=False) if n in types):
        return None
    found = []
    for k, (name, value) in enumerate(zip(entry.proto.output, values, strict=False)):
        if name in types:
            dtype, shape = types[name]
            array = np.asarray(value)
            if array.shape != shape and not fast:
                return None
            if array.shape != shape:
                raise ModelInvalidError(f"{name_of(entry.proto)}: constant {name!r} has shape {list(array.shape)}, not {list(shape)}")
            array = array if dtype in {array.dtype, tensors.OBJECT} else array.astype(dtype)
            found.append(Tensor(name, shape, dtype, data=array, weight_key=None if key is None else f"{key}.{k}", stored=stored))
    return found


def _looks_up(entry: Item, present: list[Tensor]) -> bool:
    """Whether a node reads some rows of a weight, such as embeddings of places."""
    return entry.proto.op_type in _LOOKUPS and present[0].weight_key is not None and present[0].dtype.kind == "f"


def _most_computed(present: list[Tensor], lookups: bool) -> int:
    """Bytes of a value that depends on input shapes, at most, for a constant of the plan."""
    if any(t.weight_key is not None and t.nbytes > SMALL for t in present):
        return SMALL if lookups else 0
    return PLAN_CONSTANT


def _later(entry: Item, inputs: list[Tensor | None], types: Types, key: str | None, stored: Stored | None) -> list[Tensor]:
    found = []
    for k, name in enumerate(entry.proto.output):
        if name in types:
            dtype, shape = types[name]
            pack = partial(_compute, entry, inputs, k)
            found.append(Tensor(name, shape, dtype, weight_key=f"{key}.{k}", pack=pack, stored=stored))
    return found


def _key(entry: Item, inputs: list[Tensor]) -> str:
    digest = hashlib.sha256()
    digest.update(f"{entry.proto.domain}.{entry.proto.op_type}.{entry.opsets}.{list(entry.proto.input)}".encode())
    for attribute in sorted(entry.proto.attribute, key=lambda a: a.name):
        digest.update(attribute.SerializeToString(deterministic=True))
    for tensor in inputs:
        digest.update(f"\0{tensor.weight_key}".encode())
    return f"folded:{digest.hexdigest()[:32]}"


def _stored(entry: Item, inputs: list[Tensor | None]) -> Stored | None:
    """The stored integers and scales of a constant that DequantizeLinear makes, perhaps transposed."""
    if domain_of(entry.proto) != "" or entry.proto.op_type not in {"DequantizeLinear", "Transpose"}:
        return None
    if entry.proto.op_type == "Transpose":
        before = inputs[0].stored if inputs[0] is not None else None
        return None if before is None else low_bit.transposed(before, tuple(entry.attrs.get("perm", (1, 0))))
    values, scale = inputs[:2]
    if values is None or scale is None:
        return None
    axis = int(entry.attrs.get("axis", 1))
    zero = inputs[2] if len(inputs) > 2 else None
    return Stored(values, scale, zero, axis % max(len(values.shape), 1), int(entry.attrs.get("block_size", 0)))


def _compute(entry: Item, inputs: list[Tensor | None], position: int, out: npt.NDArray[Any]) -> None:
    values = evaluate(entry.proto, entry.opsets, [t.value() if t is not None else None for t in inputs[: len(entry.proto.input)]])
    out[...] = values[position]
