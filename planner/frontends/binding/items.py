"""Nodes of a model as binding goes through them: flattened, with facts that are asked for again and again worked out once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import NodeProto

from aspen_mp.planner.frontends import functions
from aspen_mp.planner.frontends.check import domain_of
from aspen_mp.planner.frontends.evaluate import attributes
from aspen_mp.planner.ir.graph import Origin, Shape

Types = dict[str, tuple[np.dtype[Any], Shape]]
"""Dtype and shape of outputs, by name."""


@dataclass(eq=False, slots=True)
class Item(Origin):
    """A node of the flattened model. `names`: its inputs in order, "" where missing, then the outer values that its sub-graphs read.
    `op`, `domain`, `gives` (its outputs, "" where missing): of `proto`, which makes them anew whenever they are read. `inlined`: it came
    while shapes were being bound, which may bring others under its names for other shapes."""

    op: str
    domain: str
    gives: tuple[str, ...]
    nested: bool = False
    attrs: dict[str, Any] = field(default_factory=dict)
    inlined: bool = False
    _given: dict[str, Any] | None = None

    def given(self) -> dict[str, Any]:
        """Its attributes; the caller's own dictionary."""
        if self._given is None:
            self._given = attributes(self.proto)
        return dict(self._given)

    @property
    def outputs(self) -> list[str]:
        return [name for name in self.gives if name]


def item(proto: NodeProto, opsets: dict[str, int]) -> Item:
    names, nested = tuple(proto.input), False
    if proto.attribute:
        nested = any(a.HasField("g") or a.graphs for a in proto.attribute)
        if nested:
            names += tuple(functions.captured(proto))
    return Item(proto, opsets, names, proto.op_type, domain_of(proto), tuple(proto.output), nested)


@dataclass(frozen=True, slots=True)
class Blocked:
    """Why a node cannot be planned yet: values that would decide it, or none if only running it can tell."""

    values: tuple[str, ...] = ()
