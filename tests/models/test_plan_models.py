"""Whole networks as plans, tile by tile with the real kernels: right in every legal order, and the same bits however they are cut."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import onnxruntime
import pytest

from aspen_mp.bench import models
from aspen_mp.planner import api
from aspen_mp.planner.build import PlanOptions
from aspen_mp.planner.plan.plan import Plan
from aspen_mp.planner.plan.validate import validate
from aspen_mp.workers._dse import PlanRunner

NETWORKS = {"squeezenet1_1": {}, "resnet18": {}, "densenet121": {}, "mobilenet_v2": {}, "tcn": {}, "bert_base": {"seq": 16}}


def pages(nbytes: int, fill: Any = np.nan) -> Any:
    """Page-aligned memory full of a float."""
    memory = np.frombuffer(mmap.mmap(-1, max(nbytes, 1)), np.uint8)
    memory[: nbytes // 4 * 4].view(np.float32)[:] = fill
    return memory


class Runner:
    """Plans of one model, on memory full of NaN. Weights are packed once: every plan of a model uses the same."""

    def __init__(self) -> None:
        self.directory: dict[str, tuple[int, int]] = {}
        self.weights = pages(0)

    def _pack(self, plan: Plan) -> None:
        directory, size = plan.default_directory()
        if not self.directory:
            self.directory, self.weights = directory, pages(size)
            for item in plan.weights:
                at = directory[item.key][1]
                item.write(memoryview(self.weights)[at : at + item.nbytes])
        assert directory == self.directory

    def run(self, plan: Plan, feeds: dict[str, Any], order: str, seed: int = 0) -> dict[str, Any]:
        self._pack(plan)
        segment = pages(plan.nbytes)
        plan.write(memoryview(segment))
        validate(memoryview(segment))
        header = plan.header()
        arena, request = pages(int(header["arena_bytes"])), pages(int(header["request_bytes"]))

        def io(info: Any) -> Any:
            return np.frombuffer(request, info.dtype, int(np.prod(info.shape)), info.offset).reshape(info.shape)

        for info in plan.inputs:
            io(info)[...] = feeds[info.name]
        runner = PlanRunner(segment, [self.weights], arena, request)
        assert runner.run(order, seed) == 0
        return {info.name: io(info).copy() for info in plan.outputs}


def planned(model: Any, feeds: dict[str, Any], workers: int, **options: Any) -> Plan:
    bindings = {name: api.Binding(x.dtype, x.shape, None) for name, x in feeds.items()}
    result = api.plan_stage(model, [bindings], workers=workers, build=PlanOptions(**options))
    assert result.kind == "static"
    assert not result.more
    assert result.plan is not None
    return result.plan


@pytest.mark.parametrize("name", NETWORKS)
def test_network(name: str) -> None:
    model = models.build(name, **NETWORKS[name])
    feeds = models.inputs(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    want = dict(zip(names, session.run(None, feeds), strict=True))
    runner = Runner()
    first: dict[str, Any] | None = None
    for workers, order, reuse in [(2, "fifo", True), (2, "lifo", True), (1, "random", False), (13, "random", True)]:
        got = runner.run(planned(model, feeds, workers, reuse_memory=reuse), feeds, order, workers)
        for key, value in want.items():
            np.testing.assert_allclose(got[key], value, rtol=1e-3, atol=1e-4 * max(1.0, float(np.abs(value).max())))
        first = first or got
        for key, value in first.items():
            assert got[key].tobytes() == value.tobytes(), f"{key}: other bits for {workers} workers, {order}"
