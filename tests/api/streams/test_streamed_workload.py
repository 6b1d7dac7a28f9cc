"""Workloads whose requests are frames of a stream: outputs of whole requests, order, what is refused."""

from __future__ import annotations

import threading
from typing import Any

import frame_models
import numpy as np
import pytest
from onnx import TensorProto, helper

import aspen_mp
from aspen_mp.errors import RequestError


def negative() -> Any:
    """z = -y, beside or behind `frame_models.pictures`."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4, frame_models.SIDE, frame_models.SIDE]) for name in ("y", "z")]
    graph = helper.make_graph([helper.make_node("Neg", ["y"], ["z"])], "negative", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_frames_have_the_results_of_whole_requests_in_order(shared_runtime: aspen_mp.Runtime, objective: str) -> None:
    """The array of a frame is used again for the next one."""
    frames, found, works = frame_models.frames(12), [], []
    buffer = np.empty_like(frames[0])

    def feeds() -> Any:
        for frame in frames:
            buffer[...] = frame
            yield {"x": buffer}

    def take(results: Any) -> None:
        found.append(results["z"].copy())
        works.append(workload.status()[0]["frame"]["work"])

    with shared_runtime.workload(objective=objective) as workload:
        detector = workload.add(frame_models.pictures(), name="detector", feeds=feeds(), stream=True)
        workload.add(negative(), name="behind", after=detector, on_result=take)
        workload.start()
        assert workload.wait(60)
        assert workload.status()[0]["results"] == len(frames)
    whole = shared_runtime.load(frame_models.pictures())
    for got, frame in zip(found, frames, strict=True):
        np.testing.assert_allclose(got, -whole.run(frame)["y"], rtol=1e-4, atol=1e-4)
    whole.unload()
    assert min(works) < 0.5
    assert shared_runtime.status()["models"] == [] or all("detector" not in model["name"] for model in shared_runtime.status()["models"])


def test_threads_that_run_frames_take_turns(shared_runtime: aspen_mp.Runtime) -> None:
    frames = frame_models.frames(8)
    with shared_runtime.workload() as workload:
        camera = workload.add(frame_models.pictures(), name="camera", stream={"same_bits": False})
        workload.load()
        assert workload.status()[0]["frame"] is None
        got: dict[int, Any] = {}

        def work(k: int) -> None:
            for number in range(k, len(frames), 2):
                got[number] = workload.run(camera, {"x": frames[number]})["camera.y"]

        threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    whole = shared_runtime.load(frame_models.pictures())
    for number, frame in enumerate(frames):
        np.testing.assert_allclose(got[number], whole.run(frame)["y"], rtol=1e-4, atol=1e-4)
    whole.unload()


def test_tolerance_reaches_the_stream(shared_runtime: aspen_mp.Runtime) -> None:
    with shared_runtime.workload() as workload:
        camera = workload.add(frame_models.pictures(), name="camera", stream={"tol": {"x": 1e6}, "refresh": 3})
        works = []
        for frame in frame_models.frames(4):
            workload.run(camera, {"x": frame})
            works.append(workload.status()[0]["frame"]["work"])
        assert works == [1, 0, 0, 1]
        assert workload.status()[0]["frame"]["error"] > 0


def test_pipelines_with_and_without_a_stream_run_together_by_a_schedule() -> None:
    """Both have the same network."""
    frames = frame_models.frames(30)
    with aspen_mp.Runtime(workers=2) as runtime, runtime.workload(schedule=True) as workload:
        for name in ("left", "right"):
            feeds = [{"x": frame} for frame in frames]
            workload.add(frame_models.pictures(), name=name, feeds=feeds, stream=name == "left")
        workload.start()
        assert workload.wait(60)
        assert [each["results"] for each in workload.status()] == [len(frames)] * 2


def test_what_cannot_be_meant_is_refused(shared_runtime: aspen_mp.Runtime) -> None:
    with shared_runtime.workload() as workload:
        with pytest.raises(ValueError, match="'toll'"):
            workload.add(frame_models.pictures(), name="a", stream={"toll": 1})
        with pytest.raises(ValueError, match="tol"):
            workload.add(frame_models.pictures(), name="a", stream={"tol": -1})
        with pytest.raises(TypeError, match="True, False or a dict"):
            workload.add(frame_models.pictures(), name="a", stream=3)  # type: ignore[arg-type]
        source = workload.add(frame_models.pictures(), name="a", stream={"tol": {"nosuch": 1.0}})
        with pytest.raises(ValueError, match="stream belong"):
            workload.add(negative(), name="b", after=source, stream=True)
        with pytest.raises(RequestError, match="nosuch"):
            workload.run(source, {"x": frame_models.frames(1)[0]})
