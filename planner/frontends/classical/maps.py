"""Sequences of maps that nobody but the caller reads: ZipMap makes them of a classifier's scores. Plans give the scores, as a table whose
columns are in the order of the maps' keys, and clients make the maps of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from onnx import GraphProto, NodeProto, helper

from aspen_mp.planner.frontends import functions
from aspen_mp.planner.frontends.classical.result_types import DOMAIN
from aspen_mp.planner.frontends.evaluate import attributes
from aspen_mp.planner.ir.graph import Tensor

OP: Final = "ZipMap"


def keys(graph: GraphProto) -> dict[str, tuple[int | str, ...]]:
    """The keys of maps in the order in which maps have them, by the names of such outputs."""
    zips = [node for node in graph.node if node.domain == DOMAIN and node.op_type == OP]
    if not zips:
        return {}
    read = {name for node in graph.node for name in (*node.input, *functions.captured(node))}
    wanted = {output.name for output in graph.output} - read
    columns = {node.output[0]: _columns(attributes(node)) for node in zips if wanted.issuperset(node.output)}
    return {name: tuple(found) for name, found in columns.items() if found is not None}


def table(node: NodeProto, attrs: dict[str, Any], inputs: Sequence[Tensor | None]) -> tuple[NodeProto, Tensor] | None:
    """The node that gives the table in place of a ZipMap, and the numbers of columns that it picks. None: the scores are not rows of
    numbers, one for each label."""
    columns, x = _columns(attrs), inputs[0]
    labels = len(attrs.get("classlabels_int64s") or attrs.get("classlabels_strings") or [])
    if columns is None or x is None or x.dtype.kind not in "fiub" or len(x.shape) != 2 or x.shape[1] != labels:
        return None
    picked = list(columns.values())
    which = Tensor(f"{node.output[0]}.columns", (len(picked),), np.dtype(np.int64), data=np.array(picked, np.int64))
    if picked == list(range(labels)):
        return helper.make_node("Identity", [node.input[0]], [node.output[0]], name=node.name), which
    return helper.make_node("Gather", [node.input[0], which.name], [node.output[0]], name=node.name, axis=1), which


def _columns(attrs: dict[str, Any]) -> dict[int | str, int] | None:
    """The column of the scores for each key, in the order of keys, which is that of onnxruntime's maps. The last of equal labels counts.
    None: there is not one list of labels, or they are not texts."""
    words, numbers = attrs.get("classlabels_strings"), attrs.get("classlabels_int64s")
    if bool(words) == bool(numbers):
        return None
    try:
        named = [word.decode() for word in words] if words else list(numbers or ())
    except UnicodeDecodeError:
        return None
    places = {key: k for k, key in enumerate(named)}
    return {key: places[key] for key in sorted(places, key=lambda key: key.encode() if isinstance(key, str) else key)}
