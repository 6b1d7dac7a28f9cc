"""Processes of a server that die, stop, or lose their clients."""

from __future__ import annotations

import json
import os
import signal
import socket
import tempfile
import threading
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
import serving_tools as tools
import small_models

from aspen_mp.serving.repository import scratch
from aspen_mp.serving.supervisor import MOST_STILLBORN

KILLS = 100 if os.environ.get("ASPEN_MP_TIER") == "long" else 4


@pytest.fixture
def models(tmp_path: Path) -> Path:
    tools.save(tmp_path, "mlp", 1, small_models.mlp("n"))
    tools.save(tmp_path, "chain", 1, small_models.conv_chain(24, 64, 64))
    return tmp_path


def check(client: tools.Client) -> None:
    feeds = tools.mlp_feeds()
    np.testing.assert_allclose(client.infer("mlp", feeds)["y"], tools.mlp_wants(feeds), rtol=1e-4, atol=1e-5)


def test_front_ends_are_killed_and_replaced(models: Path) -> None:
    with tools.serving(models, models, "--http-workers", "2") as server:
        clients = [tools.Retrying(server.address, check) for _ in range(4)]
        with tools.load(len(clients), lambda k: clients[k]()) as counts:
            for kill in range(1, KILLS + 1):
                server.front_ends()[0].kill()
                server.wait_for("is replaced", kill)
                before = sum(counts)
                while sum(counts) == before:  # a server whose front ends all die before they serve gives up
                    counts.check()
        for each in clients:
            each.client.close()
        assert all(counts)
        assert sum(each.lost for each in clients) <= len(clients) * KILLS
        with tools.client(server.address) as client:
            check(client)
            assert client.ask("/v2/health/ready")[0] == 200
        assert server.stop() == 0


def test_the_planner_process_is_killed(models: Path) -> None:
    with tools.serving(models, models, "--http-workers", "2") as server:
        with tools.client(server.address) as client:
            check(client)
            (planner,) = [each for each in psutil.Process(server.process.pid).children() if each not in server.front_ends()]
            planner.kill()
            server.wait_for("the runtime was lost")
            seen = set()
            while True:
                status, headers, said = client.ask("/v2/models/mlp/infer", mlp_request())
                seen.add(status)
                if status == 200:
                    break
                assert status == 503, said
                assert headers["retry-after"]
            check(client)
            while client.ask("/v2/health/ready")[0] != 200:
                pass
        assert server.stop() == 0


def test_front_ends_that_never_serve_do_not_end_one_that_does(models: Path) -> None:
    with tools.serving(models, models, "--http-workers", "2") as server, tools.client(server.address) as client:
        for n in range(1, MOST_STILLBORN + 3):
            while len(front_ends := server.front_ends()) < 2:
                pass
            front_ends[-1].kill()
            server.wait_for("is replaced", n)
            check(client)  # connected to the oldest, from the first time on
        assert server.stop() == 0


def mlp_request() -> dict[str, object]:
    x = tools.mlp_feeds()["x"]
    return {"inputs": [{"name": "x", "shape": x.shape, "datatype": "FP32", "data": x.ravel().tolist()}]}


def test_sigterm_finishes_what_is_in_flight(models: Path) -> None:
    x = np.random.default_rng(0).standard_normal((1, 64, 64, 64)).astype(np.float32)
    with tools.serving(models, models, "--drain", "4") as server:
        clients = [tools.Client(server.address) for _ in range(4)]
        results: list[dict[str, np.ndarray]] = []
        threads = [threading.Thread(target=lambda each=each: results.append(each.infer("chain", {"x": x}))) for each in clients]
        for thread in threads:
            thread.start()
        server.process.send_signal(signal.SIGTERM)
        with tools.client(server.address) as client:
            while client.ask("/v2/health/ready")[0] != 503:
                pass
            status, headers, _ = client.ask("/v2/models/mlp/infer", mlp_request())  # still answered
            assert status == 200
            assert headers["connection"] == "close"
        for thread in threads:
            thread.join(tools.WATCHDOG_S)
        assert len(results) == len(clients)
        assert server.process.wait(tools.WATCHDOG_S) == 0
        for each in clients:
            each.close()


def test_a_killed_server_leaves_nothing(models: Path) -> None:
    with tools.serving(models, models, "--http-workers", "2") as server:
        processes = psutil.Process(server.process.pid).children(recursive=True)
        assert len(processes) > 3
        server.process.kill()
        _, alive = psutil.wait_procs(processes, tools.WATCHDOG_S)
        assert not alive


def test_a_killed_server_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of a model without a file, killed, and the next start: what is in use stays, and links are not followed."""
    for variable in ("TMPDIR", "XDG_RUNTIME_DIR"):
        (tmp_path / variable).mkdir(mode=0o700)
        monkeypatch.setenv(variable, str(tmp_path / variable))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").touch()
    (tmp_path / "TMPDIR" / f"{scratch.PREFIX}link").symlink_to(tmp_path / "elsewhere")
    with tools.serving(tmp_path, "zoo:mobilenet_v2") as server:
        processes = psutil.Process(server.process.pid).children(recursive=True)
        server.process.kill()
        _, alive = psutil.wait_procs(processes, tools.WATCHDOG_S)
        assert not alive
    assert len(list((tmp_path / "TMPDIR").glob(f"{scratch.PREFIX}*"))) == 2
    with scratch.folder() as used:
        assert len(scratch.clean()) == 1
        assert used.is_dir()
    assert not scratch.clean()
    assert (tmp_path / "elsewhere" / "kept").exists()
    assert {each.name for each in (tmp_path / "TMPDIR").iterdir()} == {f"{scratch.PREFIX}link"}


def test_a_client_that_goes_takes_its_request_with_it(models: Path) -> None:
    head = json.dumps(
        {"inputs": [{"name": "x", "shape": [1, 64, 64, 64], "datatype": "FP32", "parameters": {"binary_data_size": 1 << 20}}]}
    ).encode()
    text = f"POST /v2/models/chain/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {len(head) + (1 << 20)}\r\n"
    text += f"Inference-Header-Content-Length: {len(head)}\r\n\r\n"
    with tools.serving(models, models) as server:
        host, port = server.address.split(":")
        for _ in range(20):
            with socket.create_connection((host, int(port))) as sock:
                sock.sendall(text.encode() + head + bytes(1 << 20))
        with tools.client(server.address) as client:

            def stats() -> dict[str, dict[str, int]]:
                return client.ask("/v2/models/chain/stats")[2]["model_stats"][0]["inference_stats"]

            while stats()["fail"]["count"] + stats()["success"]["count"] < 20:
                pass
            assert stats()["fail"]["count"]
            check(client)


def test_a_unix_socket(models: Path) -> None:
    path = models / "socket"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with tools.serving(models, models, "--unix-socket", path) as server:
        assert server.said["at"][1] == f"unix:{path}"
        with tools.client(str(path)) as client:
            check(client)
        with pytest.raises(AssertionError, match="another server listens"):
            tools.Server(models, "--unix-socket", path, folder=models)
        assert server.stop() == 0
    assert not path.exists()


def test_a_runtime_that_others_started(models: Path) -> None:
    import aspen_mp

    with aspen_mp.Runtime(workers=1, name="served") as runtime:
        with tools.serving(models, models, "--name", "served", workers=None) as server, tools.client(server.address) as client:
            assert server.said["runtime"] == "served"
            check(client)
            assert {model["name"] for model in runtime.status()["models"]} == {"mlp/1", "chain/1"}
            assert server.stop() == 0
        assert runtime.workers
    with pytest.raises(AssertionError, match="served"):
        tools.Server(models, "--name", "served", workers=None, folder=models)


def infer_until(client: tools.Client, wanted: int) -> None:
    """Until a request has this status."""
    while client.ask("/v2/models/mlp/infer", mlp_request())[0] != wanted:
        pass


def test_the_next_runtime_of_the_name(models: Path) -> None:
    import aspen_mp

    first = aspen_mp.Runtime(workers=1, name="comes-and-goes")
    with tools.serving(models, models, "--name", "comes-and-goes", workers=None) as server, tools.client(server.address) as client:
        check(client)
        first.close()
        infer_until(client, 503)
        assert client.ask("/v2/health/ready")[0] == 503
        with aspen_mp.Runtime(workers=1, name="comes-and-goes"):
            infer_until(client, 200)
            check(client)
        infer_until(client, 503)
        assert server.stop() == 0  # although it waits for another one


def test_too_many_requests(models: Path) -> None:
    x = np.random.default_rng(0).standard_normal((1, 64, 64, 64)).astype(np.float32)
    tensor = {"name": "x", "shape": x.shape, "datatype": "FP32", "parameters": {"binary_data_size": x.nbytes}}
    text = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    with tools.serving(models, models, "--max-queued", "1") as server:
        clients = [tools.Client(server.address) for _ in range(8)]
        seen: set[int] = set()

        def once(k: int) -> None:
            status, answered, said = clients[k].ask("/v2/models/chain/infer", text + x.tobytes(), headers)
            assert status == 200 or (status == 429 and answered["retry-after"] and said["error"])
            seen.add(status)

        with tools.load(len(clients), once) as counts, counts.changed:
            assert counts.changed.wait_for(lambda: seen == {200, 429} or counts.errors, tools.WATCHDOG_S)
        for each in clients:
            each.close()


def test_one_copy_of_the_weights(tmp_path: Path) -> None:
    onnx.save(small_models.projection(1, 1024, 4096), tmp_path / "large.onnx")
    with tools.serving(tmp_path, tmp_path / "large.onnx", "--http-workers", "3") as server, tools.client(server.address) as client:
        metrics = client.ask("/metrics")[2].decode()
        (line,) = [line for line in metrics.splitlines() if line.startswith("aspen_mp_model_weight_bytes{")]
        assert float(line.split()[-1]) < 2 * 4 * 1024 * 4096
        (line,) = [line for line in metrics.splitlines() if line.startswith("aspen_mp_model_clients{")]
        assert float(line.split()[-1]) == 4


def test_the_access_log(models: Path) -> None:
    with tools.serving(models, models, "--access-log") as server, tools.client(server.address) as client:
        check(client)
        server.wait_for('"path"')
        (line,) = [json.loads(line) for line in server.log if line.startswith("{")]
        assert (line["method"], line["path"], line["status"]) == ("POST", "/v2/models/mlp/infer", 200)
