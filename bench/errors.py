"""Rounding errors of whole networks against float64: ours at each level of `accuracy`, ours by direct sums, and onnxruntime's.

This is `aspen-mp bench agreement`. Networks have the zoo's weights, and those that PyTorch gives new layers. With the latter the errors of
a layer pass through other layers than with weights that keep every layer's output at the same size.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from aspen_mp.bench import models
from aspen_mp.bench.agreement import reference
from aspen_mp.planner.job.options import ACCURACIES

if TYPE_CHECKING:
    import onnx

    from aspen_mp import Runtime

Array = NDArray[Any]
Weights = Literal["zoo", "pytorch"]
WEIGHTS: Final[tuple[Weights, ...]] = ("zoo", "pytorch")
TIMEOUT_S = 600.0  # a watchdog, not a measure


@dataclass(frozen=True, slots=True)
class Row:
    """Largest errors of a network's outputs, as shares of the largest output. `levels`: ours, by level of accuracy."""

    network: str
    weights: str
    onnxruntime: float
    direct: float
    levels: dict[str, float]

    def factor(self, level: str) -> float:
        """The error that the level adds: its error beside that of direct sums."""
        return self.levels[level] / max(self.direct, float(np.finfo(np.float64).tiny))


def networks() -> list[str]:
    """The zoo's networks that have convolutions."""
    return [name for name in models.names(extra=True) if models.describe(name).ops.get("Conv", 0) > 1]


def pytorch_default(model: onnx.ModelProto, seed: int = 0) -> onnx.ModelProto:
    """The model with the weights of freshly made PyTorch layers, drawn anew: uniform within ±1/√terms, biases too; batch normalisations
    that change nothing. Changes `model`."""
    from onnx import numpy_helper

    rng = np.random.default_rng(seed)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}

    def fill(name: str, make: Callable[[tuple[int, ...]], Array]) -> None:
        if name in stored:
            shape = tuple(stored[name].dims)
            stored[name].CopyFrom(numpy_helper.from_array(make(shape).astype(np.float32), name))

    for node in model.graph.node:
        if node.op_type in {"Conv", "Gemm"} and node.input[1] in stored:
            dims = stored[node.input[1]].dims
            terms = int(np.prod(dims[1:]))
            limit = terms**-0.5
            for name in node.input[1:3]:
                fill(name, lambda shape, limit=limit: rng.uniform(-limit, limit, shape))  # type: ignore[misc]
        elif node.op_type == "BatchNormalization":
            for name, value in zip(node.input[1:5], (1, 0, 0, 1), strict=True):
                fill(name, lambda shape, value=value: np.full(shape, value))  # type: ignore[misc]
    return model


def error_from(values: Sequence[Array], exact: Sequence[Array]) -> float:
    """The largest difference, as a share of the output's largest magnitude, of the worst output."""
    worst = 0.0
    for x, y in zip(values, exact, strict=True):
        scale = max(float(np.abs(y).max(initial=0)), float(np.finfo(np.float64).tiny))
        worst = max(worst, float(np.abs(x.astype(np.float64) - y).max(initial=0)) / scale)
    return worst


def row_of(network: str, weights: Weights, runtime: Runtime, build: Mapping[str, Any] | None = None) -> Row:
    """One network's errors. `build`: options of `models.build`."""
    from aspen_mp import Planning
    from aspen_mp.tools import float64

    model = models.build(network, **(build or {}))
    feeds = models.inputs(model)
    if weights == "pytorch":
        model = pytorch_default(model)
    exact = float64.evaluate(model, feeds, [output.name for output in model.graph.output])
    data = model.SerializeToString()
    del model

    def ours(**how: Any) -> float:
        loaded = runtime.load(data, name=network, planning=Planning(search="none"), **how)  # tiles do not show in the bits
        try:
            return error_from(list(loaded.run(dict(feeds), timeout=TIMEOUT_S).values()), exact)
        finally:
            loaded.unload()

    levels: dict[str, float] = {level: ours(accuracy=level) for level in ACCURACIES}
    return Row(network, weights, error_from(reference(data, feeds), exact), ours(winograd=False), levels)


def rows(names: Sequence[str], runtime: Runtime, weights: Sequence[Weights] = WEIGHTS) -> Iterator[Row]:
    """Rows of all `names`, one after the other, with each kind of weights."""
    for name in names:
        for kind in weights:
            yield row_of(name, kind, runtime)
            gc.collect()  # evaluators are in cycles with their nodes, and each holds all weights as doubles
