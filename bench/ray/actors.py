"""Actors of `measure.py`: each runs a model on batches of rows."""

from __future__ import annotations

import os
from typing import Any

from aspen_mp.bench.own_session import own_session
from aspen_mp.ray import Predictor


class Ours:
    """A model on the runtime of the node."""

    def __init__(self, model: str, cores: list[int]) -> None:
        self._predictor = Predictor(model, workers=len(cores), runtime_options={"cores": cores})

    def about(self) -> tuple[int, int]:
        """This process, and the planner process of its runtime."""
        return os.getpid(), self._predictor._runtime.pid

    def run(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The outputs of all rows."""
        result: dict[str, Any] = self._predictor(batch)
        return result

    def close(self) -> None:
        """Stop using the runtime."""
        self._predictor.close()


class OnnxRuntime:
    """With a session of its own, and a thread for each core, as servers have it that know nothing of each other."""

    def __init__(self, model: str, cores: list[int]) -> None:
        self._session = own_session(model, cores)
        self._names = [output.name for output in self._session.get_outputs()]

    def about(self) -> tuple[int, int]:
        """This process; it has no other one."""
        return os.getpid(), 0

    def run(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The outputs of all rows."""
        return dict(zip(self._names, self._session.run(None, batch), strict=True))


ENGINES = {"aspen-mp": Ours, "onnxruntime": OnnxRuntime}
