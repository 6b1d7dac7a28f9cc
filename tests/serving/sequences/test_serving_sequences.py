"""Sequences of a server: frames that follow each other, over JSON, bytes and gRPC; ids, limits, versions and processes that go."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import frame_models
import numpy as np
import psutil
import pytest
import serving_tools as tools

import aspen_mp

FRAMES = frame_models.frames(6)
LAZY = "sequences = { tol = 1e6, refresh = 0 }\n"
"""Nothing but the first frame of a sequence runs: its result shows which sequence answers."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tools.Server]:
    folder = tmp_path_factory.mktemp("models")
    tools.save(folder, "exact", 1, frame_models.pictures())
    tools.save(folder, "lazy", 1, frame_models.pictures(), LAZY)
    tools.save(folder, "batched", 1, tools.constant(1.0), "batching = { max_batch = 8, max_delay_ms = 1000.0 }\n")
    with tools.serving(folder, folder, "--client-sequences", "3", "--max-sequences", "3", "--allow-repository") as found:
        yield found


@pytest.fixture(scope="module")
def wants() -> list[np.ndarray]:
    with aspen_mp.Runtime(workers=1) as runtime:
        model = runtime.load(frame_models.pictures())
        return [model.run(frame)["y"] for frame in FRAMES]


def sent(
    client: tools.Client, model: str, frame: np.ndarray, number: Any, *, binary: bool = False, **more: Any
) -> tuple[int, np.ndarray | str]:
    """Status, and the output or the message of the error."""
    tensor: dict[str, Any] = {"name": "x", "shape": frame.shape, "datatype": "FP32"}
    if binary:
        tensor["parameters"] = {"binary_data_size": frame.nbytes}
    else:
        tensor["data"] = frame.ravel().tolist()
    parameters = {"sequence_id": number, **{f"sequence_{key}": value for key, value in more.items()}}
    head = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
    headers = {"inference-header-content-length": str(len(head))} if binary else {}
    status, _, said = client.ask(f"/v2/models/{model}/infer", head + frame.tobytes() if binary else head, headers, "POST")
    if status != 200:
        return status, said["error"]
    (output,) = said["outputs"]
    return status, np.array(output["data"], np.float32).reshape(output["shape"])


def check(found: tuple[int, np.ndarray | str], want: np.ndarray) -> None:
    assert found[0] == 200, found
    np.testing.assert_allclose(found[1], want, rtol=1e-4, atol=1e-4)


def open_sequences(client: tools.Client, model: str) -> int:
    pytest.importorskip("prometheus_client")
    _, _, text = client.ask("/metrics")
    found = re.search(rf'^aspen_mp_serve_sequences{{model="{model}",version="1"}} (\d+)$', text.decode(), re.MULTILINE)
    assert found is not None, text
    return int(found[1])


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("number", [7, (1 << 64) - 1, "camera 1"])
def test_frames_have_the_results_of_whole_requests(
    server: tools.Server, wants: list[np.ndarray], number: int | str, *, binary: bool
) -> None:
    with tools.client(server.address) as client:
        for k, frame in enumerate(FRAMES):
            flags = {"start": k == 0, "end": k == len(FRAMES) - 1}
            check(sent(client, "exact", frame, number, binary=binary, **flags), wants[k])
        assert open_sequences(client, "exact") == 0


def test_a_sequence_is_one_stream(server: tools.Server, wants: list[np.ndarray]) -> None:
    """Ids are told apart by their type as well, and a start begins anew."""
    with tools.client(server.address) as client:
        check(sent(client, "lazy", FRAMES[0], 1, start=True), wants[0])
        check(sent(client, "lazy", FRAMES[5], "1", start=True), wants[5])
        assert open_sequences(client, "lazy") == 2
        check(sent(client, "lazy", FRAMES[5], 1), wants[0])
        check(sent(client, "lazy", FRAMES[0], "1"), wants[5])
        check(sent(client, "lazy", FRAMES[3], 1, start=True), wants[3])
        check(sent(client, "lazy", FRAMES[1], 1), wants[3])
        check(sent(client, "lazy", FRAMES[2], 0), wants[2])  # not of a sequence
        assert open_sequences(client, "lazy") == 2
        check(sent(client, "lazy", FRAMES[1], 1, end=True), wants[3])
        check(sent(client, "lazy", FRAMES[1], "1", end=True), wants[5])
        assert open_sequences(client, "lazy") == 0


def test_what_is_not_open_is_refused(server: tools.Server, wants: list[np.ndarray]) -> None:
    with tools.client(server.address) as client:
        for flags in ({}, {"end": True}, {"start": False}):
            status, text = sent(client, "exact", FRAMES[0], 5, **flags)
            assert status == 400
            assert "sequence 5 is not open: its first request must say sequence_start" in text
        check(sent(client, "exact", FRAMES[0], 5, start=True, end=True), wants[0])
        assert sent(client, "exact", FRAMES[0], 5)[0] == 400
        assert sent(client, "exact", FRAMES[0], None, start=True)[0] == 400
        assert sent(client, "exact", FRAMES[0], 0, end=True)[0] == 400
        for number in (-1, 1 << 64, 10**4000, 1.5, [1], {"a": 1}, True, "x" * 129):
            assert sent(client, "exact", FRAMES[0], number, start=True)[0] == 400, number
        assert sent(client, "exact", FRAMES[0], 5, start="yes")[0] == 400


def test_an_error_ends_no_sequence(server: tools.Server, wants: list[np.ndarray]) -> None:
    with tools.client(server.address) as client:
        check(sent(client, "exact", FRAMES[0], 9, start=True), wants[0])
        assert sent(client, "exact", FRAMES[0][..., :-1], 9)[0] == 400
        check(sent(client, "exact", FRAMES[1], 9, end=True), wants[1])


def test_no_more_sequences_than_the_limit(server: tools.Server) -> None:
    with tools.client(server.address) as client:
        for number in (1, 2, 3):
            assert sent(client, "exact", FRAMES[0], number, start=True)[0] == 200
        status, text = sent(client, "lazy", FRAMES[0], 4, start=True)
        assert (status, "--max-sequences" in text) == (429, True)
        assert sent(client, "exact", FRAMES[0], 2, start=True)[0] == 200  # takes its own place
        for number in (1, 2, 3):
            assert sent(client, "exact", FRAMES[0], number, end=True)[0] == 200
        assert sent(client, "lazy", FRAMES[0], 4, start=True, end=True)[0] == 200


def test_frames_are_not_batched(server: tools.Server) -> None:
    with tools.client(server.address) as client:
        x = np.zeros((1, 4), np.float32)
        check(sent(client, "batched", x, 1, start=True), x + 1)
        check(sent(client, "batched", x + 1, 1, end=True), x + 2)


def test_unloading_ends_sequences(server: tools.Server, wants: list[np.ndarray]) -> None:
    with tools.client(server.address) as client:
        check(sent(client, "lazy", FRAMES[0], 1, start=True), wants[0])
        assert client.ask("/v2/repository/models/lazy/unload", {})[0] == 200
        assert client.ask("/v2/repository/models/lazy/load", {})[0] == 200
        assert sent(client, "lazy", FRAMES[0], 1)[0] == 400
        assert open_sequences(client, "lazy") == 0
        check(sent(client, "lazy", FRAMES[1], 1, start=True, end=True), wants[1])


def test_a_new_version_begins_without_sequences(tmp_path: Path, wants: list[np.ndarray]) -> None:
    tools.save(tmp_path, "m", 1, frame_models.pictures(), LAZY)
    with tools.serving(tmp_path, tmp_path, "--watch") as server, tools.client(server.address) as client:
        check(sent(client, "m", FRAMES[0], 1, start=True), wants[0])
        check(sent(client, "m", FRAMES[1], 1), wants[0])
        tools.save(tmp_path, "m", 2, frame_models.pictures())
        server.wait_for("version 2 of model 'm' is loaded")
        client.ask("/v2/models/m/versions/2/ready")
        while client.ask("/v2/models/m/versions/2/ready")[0] != 200:
            pass  # the front end loads it, too
        assert sent(client, "m", FRAMES[1], 1)[0] == 400
        check(sent(client, "m", FRAMES[1], 1, start=True, end=True), wants[1])
        assert server.stop() == 0


def test_sequences_end_with_their_front_end(tmp_path: Path, wants: list[np.ndarray]) -> None:
    tools.save(tmp_path, "m", 1, frame_models.pictures(), LAZY)
    with tools.serving(tmp_path, tmp_path) as server:
        with tools.client(server.address) as client:
            check(sent(client, "m", FRAMES[0], 1, start=True), wants[0])
            assert open_sequences(client, "m") == 1
            server.front_ends()[0].kill()
        with tools.client(server.address) as client:
            assert sent(client, "m", FRAMES[0], 1)[0] == 400
            assert open_sequences(client, "m") == 0
            check(sent(client, "m", FRAMES[2], 1, start=True), wants[2])
        assert server.stop() == 0  # with an open sequence


def test_sequences_outlive_the_runtime(tmp_path: Path, wants: list[np.ndarray]) -> None:
    """The first frame after the loss runs whole."""
    tools.save(tmp_path, "m", 1, frame_models.pictures(), LAZY)
    with tools.serving(tmp_path, tmp_path) as server, tools.client(server.address) as client:
        check(sent(client, "m", FRAMES[0], 1, start=True), wants[0])
        (planner,) = [each for each in psutil.Process(server.process.pid).children() if each not in server.front_ends()]
        planner.kill()
        while (found := sent(client, "m", FRAMES[3], 1))[0] == 503:
            pass
        if np.allclose(found[1], wants[0], rtol=1e-4, atol=1e-4):  # the frame was there before the loss
            server.wait_for("the runtime was lost")
            while (found := sent(client, "m", FRAMES[3], 1))[0] == 503:
                pass
        check(found, wants[3])
        assert server.stop() == 0


def test_a_sequence_that_is_not_used_ends(tmp_path: Path, wants: list[np.ndarray]) -> None:
    tools.save(tmp_path, "m", 1, frame_models.pictures(), LAZY)
    with tools.serving(tmp_path, tmp_path, "--sequence-timeout", "0.2") as server, tools.client(server.address) as client:
        check(sent(client, "m", FRAMES[0], 1, start=True), wants[0])
        while open_sequences(client, "m"):
            pass
        status, text = sent(client, "m", FRAMES[0], 1)
        assert (status, "for 0.2 s" in text) == (400, True)


def test_a_server_without_sequences(tmp_path: Path) -> None:
    tools.save(tmp_path, "m", 1, tools.constant(1.0))
    with tools.serving(tmp_path, tmp_path, "--max-sequences", "0") as server, tools.client(server.address) as client:
        assert sent(client, "m", np.zeros((1, 4), np.float32), 1, start=True)[0] == 429
