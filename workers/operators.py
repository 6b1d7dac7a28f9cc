"""Operators of our own in place of those of `onnx.reference` that are wrong or missing, and the evaluator that uses them everywhere: in the
graph, in bodies of Loop, Scan and If, and in functions."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from aspen_mp.workers import loops, recurrent


class _Recurrent(OpRun):
    def _run(self, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        op = type(self).__name__
        return recurrent.run(op, *inputs, **attributes)[: 3 if op == "LSTM" else 2]


class LSTM(_Recurrent):
    pass


class GRU(_Recurrent):
    pass


class RNN(_Recurrent):
    pass


class _WithBody(OpRun):
    def need_context(self) -> bool:
        """Bodies read outer values."""
        return True

    def _called(self, attributes: dict[str, Any]) -> loops.Body:
        return loops.Body(attributes["body"], attributes.get("context"), attributes.get("attributes"))


class Loop(_WithBody):
    def _run(self, trips: Any = None, condition: Any = None, *carried: Any, **attributes: Any) -> tuple[Any, ...]:
        return loops.loop(self._called(attributes), trips, condition, carried, self.run_params["opsets"])


class Scan(_WithBody):
    def _run(self, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        opsets = self.run_params["opsets"]
        if opsets.get("", 9) < 9:
            return loops.scan_of_batches(self._called(attributes), inputs[0], inputs[1:], attributes)
        return loops.scan(self._called(attributes), inputs, attributes, opsets)


class GlobalLpPool(OpRun):
    def _run(self, x: Any, p: float | None = None) -> tuple[Any, ...]:
        order = 2.0 if p is None else float(p)
        wide = np.abs(x.astype(np.float64))
        return (((wide**order).sum(axis=tuple(range(2, x.ndim)), keepdims=True) ** (1 / order)).astype(x.dtype),)


OPERATORS: list[type[OpRun]] = [LSTM, GRU, RNN, Loop, Scan, GlobalLpPool]


class Evaluator(ReferenceEvaluator):
    """ONNX's evaluator with our operators; it makes others of its own class for bodies and functions."""

    def __init__(self, proto: Any, *args: Any, **kwargs: Any) -> None:
        kwargs["new_ops"] = OPERATORS
        super().__init__(_with_names(proto), *args, **kwargs)


def _with_names(proto: Any) -> Any:
    """The model, graph or function with names for outputs that have none. ONNX's evaluator stores such a result under the empty name, and
    hands it to whatever misses an input afterwards."""
    if not any("" in node.output for node in _nodes(proto)):
        return proto
    copy = type(proto)()
    copy.CopyFrom(proto)
    for k, node in enumerate(_nodes(copy)):
        node.output[:] = [name or f"\0unused.{k}.{i}" for i, name in enumerate(node.output)]
    return copy


def _nodes(proto: Any) -> Any:
    return proto.graph.node if isinstance(proto, ModelProto) else getattr(proto, "node", ())
