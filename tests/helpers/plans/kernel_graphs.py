"""Runs kernel-level graphs without plans or workers: every node over its whole output with the real kernels, views in numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from aspen_mp.planner import api, stages
from aspen_mp.planner.frontends.binding.bind import Binding
from aspen_mp.planner.frontends.onnx import OnnxModel, ValueInfo
from aspen_mp.planner.ir.graph import Graph, Node, Tensor
from aspen_mp.planner.job.request import PlanRequest
from aspen_mp.planner.ops import verify
from aspen_mp.planner.ops.table import ELEMENTWISE, params
from aspen_mp.shm import values
from aspen_mp.workers import _kernels
from aspen_mp.workers.fallback import opaque_tile

Array = np.ndarray[Any, np.dtype[Any]]
verify.ENABLED = True


def run_graph(graph: Graph, feeds: Mapping[str, Any]) -> list[Any]:
    """The graph's outputs, in order."""
    known: dict[Tensor, Any] = {t: feeds[t.name] for t in graph.inputs}

    def value(t: Tensor | None) -> Any:
        if t is None:
            return None
        if t not in known:
            known[t] = t.value()
        return known[t]

    for node in graph.nodes:
        results = run_node(node, [value(t) for t in node.inputs])
        for t, x in zip(node.outputs, results, strict=True):
            planned = not t.name or t.dtype == object or not isinstance(x, np.ndarray) or x.shape == t.shape
            assert planned, f"{node.onnx_op} {node.name!r} gives shape {x.shape}, the plan expects {t.shape}"
        known.update(zip(node.outputs, results, strict=True))
    return [value(t) for t in graph.outputs]


def run_node(
    node: Node, inputs: Sequence[Any], outs: list[Any] | None = None, boxes: Sequence[tuple[list[int], list[int]]] | None = None
) -> list[Any]:
    """A node's outputs. `boxes`: only these parts of them are computed, into `outs`."""
    if node.op == "OPAQUE":
        return list(opaque_tile.Opaque(node.attrs["model"], node.name).run(inputs))
    shape, x, a = node.output.shape, inputs[0], node.attrs
    if node.op == "view.reshape":
        return [x.reshape(shape)]
    if node.op == "view.transpose":
        return [x.transpose(a["perm"])]
    if node.op == "view.expand":
        return [np.broadcast_to(x, shape)]
    if node.op == "view.slice":
        index = [s + t * np.arange(d) for s, t, d in zip(a["starts"], a["steps"], shape, strict=True)]
        return [x[np.ix_(*index)]]
    if node.op == "concat":
        return [np.concatenate(inputs, a["axis"])]
    outs = [np.full(t.shape, 99, t.dtype) for t in node.outputs] if outs is None else outs
    args = [None if v is None else np.broadcast_to(v, _target(node, i, v.shape)) for i, v in enumerate(inputs)]
    if node.op in {
        "CONV",
        "WINO",
        "DWCONV",
        "PWDW",
        "QNBITGEMM",
        "QGEMM",
        "QCONV",
        "QDWCONV",
        "BGEMM",
        "BCONV",
    }:  # the plan's storage puts a copy before packed weights that are no run of memory
        args[1] = np.ascontiguousarray(args[1])
    for lo, hi in [([0] * len(shape), shape)] if boxes is None else boxes:
        error = _kernels.call(node.op, [*outs, *args], params(node), lo, hi)
        given = [(v.shape, v.dtype) for v in args if v is not None]
        assert error == 0, f"{node.op} {node.name!r} of {node.onnx_op}: kernel error {error}; {given} → {shape}"
    return outs


def _target(node: Node, i: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The dimensions that the operand has in a plan: axes of 1 that are broadcast have the output's."""
    out = node.output.shape
    if node.op in ELEMENTWISE or (node.op in {"CONV", "BCONV", "WINO", "DWCONV"} and i == 3) or (node.op == "NORM" and i > 0):
        return out
    if node.op == "GEMM" and i in {0, 1} and not (i == 1 and node.attrs["packed_b"]):
        return (*out[:-2], *shape[-2:])
    if (
        (node.op in {"GEMM", "QNBITGEMM", "BGEMM"} and i in {2, 3})
        or (node.op in {"QGEMM", "QMATMUL"} and i in {2, 3, 4, 5})
        or (node.op in {"QCONV", "QDWCONV"} and i in {3, 4})
    ):
        return out
    if node.op == "DGEMM":
        return (*out[:-2], *shape[-2:]) if i < 2 else out
    if node.op in {"QNBITGEMM", "QGEMM", "BGEMM", "QMATMUL"} and i == 0:
        return (*out[:-2], *shape[-2:])
    if node.op == "ATTENTION":
        k = node.inputs[1]
        assert k is not None
        return (*out[:-2], *shape[-2:]) if i < 3 else (*out[:-1], k.shape[-2])
    return shape


def bind(feeds: Mapping[str, Any], by_value: Sequence[str] = ()) -> dict[str, Binding]:
    """Bindings of the shapes (and some values) of `feeds`."""
    out = {}
    for name, x in feeds.items():
        if isinstance(x, np.ndarray) and x.dtype.kind not in "OUS":
            out[name] = Binding(x.dtype, x.shape, x if name in by_value else None)
        else:
            out[name] = Binding(np.dtype(object), None)
    return out


def _told(info: ValueInfo, value: Any) -> Any:
    """An output as clients give it."""
    if not info.keys or not isinstance(value, np.ndarray) or value.dtype == object:
        return value
    return values.told(np.array(info.keys, object) if info.kind == "string" else list(info.keys), value)


def run_model(
    model: OnnxModel, feeds: Mapping[str, Any], request: PlanRequest = api.PLAIN, counts: dict[str, int] | None = None
) -> list[Any]:
    """All stages of a model, the way a client drives them. `counts` collects how often each kernel occurs."""
    held: dict[str, Any] = dict(feeds)
    for info in model.signature.inputs:
        if info.keys:
            held[info.name] = values.places({str(word): k for k, word in enumerate(info.keys)}, held[info.name])
    bindings = [bind(held)]
    final: dict[str, Any] = {}
    for _ in range(20):
        stage = stages.derive(model, bindings)
        if stage.needs:
            known = bindings[-1]
            assert any(n not in known or known[n].value is None for n in stage.needs), f"asks again for {stage.needs}"
            for name in stage.needs:
                known[name] = Binding(held[name].dtype, held[name].shape, held[name])
            continue
        names = [v.name for v in stage.outputs]
        if stage.kind == "static":
            graph = api.lowered(stage.graph, model, names, request)
            results = run_graph(graph, held)
        else:
            graph = stage.graph
            results = run_graph(graph, {t.name: held[t.name] for t in graph.inputs})
        if counts is not None:
            for node in graph.nodes:
                counts[node.op] = counts.get(node.op, 0) + 1
        for v, result in zip(stage.outputs, results, strict=True):
            held[v.name] = result
            if v.final:
                final[v.name] = result
        if not stage.more:
            return [_told(o, final[o.name]) for o in model.signature.outputs]
        bindings.append(bind({n: held[n] for n in names}))
    raise AssertionError("too many stages")
