"""Statistics: every request of a model is counted once, however it ends, whichever front end answers it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import serving_tools as tools
import small_models

from aspen_mp.errors import DeadlineMissed, PoisonTile, QueueFull, RequestError, RuntimeLost
from aspen_mp.serving.protocol.body import Disconnected
from aspen_mp.serving.protocol.statuses import Refused
from aspen_mp.serving.telemetry import ledger
from aspen_mp.serving.telemetry.ledger import Field, Ledger


@pytest.mark.parametrize(
    ("error", "field"),
    [
        (QueueFull("full"), Field.REJECTED),
        (DeadlineMissed("late"), Field.REJECTED),
        (Refused(429, "bytes"), Field.REJECTED),
        (Disconnected(), Field.CANCELED),
        (asyncio.CancelledError(), Field.CANCELED),
        (PoisonTile("crashed"), Field.BACKEND),
        (ZeroDivisionError(), Field.BACKEND),
        (RequestError("no"), Field.OTHER),
        (Refused(413, "large"), Field.OTHER),
        (RuntimeLost("gone"), Field.OTHER),
    ],
)
def test_failures_have_reasons(error: BaseException, field: Field) -> None:
    book = Ledger()
    row = book.row("m", 1, in_batches=False)
    counted = row.begins()
    counted.__enter__()
    assert book.totals("m", 1)[Field.PENDING] == 1
    counted.__exit__(type(error), error, None)
    totals = book.totals("m", 1)
    assert (totals[field], totals.failed, totals[Field.SUCCESS], totals[Field.PENDING]) == (1, 1, 0, 0)
    assert totals[Field.FAIL_NS] > 0


def test_parts_add_up_and_outlive_their_front_ends() -> None:
    fd = ledger.make(2)
    try:
        books = [Ledger(fd, part) for part in range(2)]
        for n, book in enumerate(books, 1):
            row = book.row("m", 7, in_batches=True)
            for _ in range(n):
                with row.begins():
                    row.executed(3, 10)
        lost = books[0].row("m", 7, in_batches=True).begins()
        lost.__enter__()
        assert books[1].totals("m", 7)[Field.PENDING] == 1
        again = Ledger(fd, 0)  # in the place of the first
        with again.row("m", 7, in_batches=True).begins():
            again.row("m", 7, in_batches=True).executed(4, 5)
        totals = books[1].totals("m", 7)
    finally:
        os.close(fd)
    assert (totals[Field.SUCCESS], totals[Field.OTHER], totals[Field.PENDING]) == (4, 1, 0)
    assert (totals[Field.EXECUTIONS], totals[Field.ROWS]) == (4, 13)
    assert totals.batches == {3: (3, 30), 4: (1, 5)}
    assert books[0].totals("m", 8).values == [0] * len(Field)


def test_a_ledger_that_is_full_counts_no_more() -> None:
    book = Ledger()
    for version in range(ledger.MOST_ROWS + 3):
        book.row("m", version, in_batches=False).add(Field.SUCCESS)
    assert book.totals("m", ledger.MOST_ROWS - 1)[Field.SUCCESS] == 1
    assert book.totals("m", ledger.MOST_ROWS)[Field.SUCCESS] == 0
    row = book.row("m", 0, in_batches=True)
    for size in range(1, ledger.MOST_SIZES + 10):
        row.executed(size, 1)
    totals = book.totals("m", 0)
    assert len(totals.batches) == ledger.MOST_SIZES
    assert totals[Field.EXECUTIONS] == ledger.MOST_SIZES + 9


# ---- a server

MIX = 240


def stats(client: tools.Client, model: str = "mlp") -> dict[str, Any]:
    return client.ask(f"/v2/models/{model}/stats")[2]["model_stats"][0]


def body(rows: int = 1, columns: int = 16, **parameters: Any) -> dict[str, Any]:
    data = [0.5] * (rows * columns)
    return {"inputs": [{"name": "x", "shape": [rows, columns], "datatype": "FP32", "data": data}], "parameters": parameters}


def leave(server: tools.Server) -> None:
    """A request whose client goes as soon as it is sent."""
    sent = json.dumps(body()).encode()
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port))) as sock:
        sock.sendall(b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(sent) + sent)


def ask(server: tools.Server, k: int) -> str:
    """One request of the mix, and how it ended for its client."""
    if k % 6 == 5:
        leave(server)
        return "left"
    kind = [body(1 + k % 3), body(2, 17), body(timeout=1), body(), {"inputs": []}][k % 6]
    with tools.client(server.address) as client:
        return str(client.ask("/v2/models/mlp/infer", kind)[0])


@pytest.mark.parametrize("batching", ["", "batching = { max_batch = 4, max_delay_ms = 5 }"])
def test_all_requests_of_a_mix_are_counted_once(tmp_path: Path, batching: str) -> None:
    tools.save(tmp_path, "mlp", 1, small_models.mlp("n"), batching)
    arguments = ("--http-workers", "2", "--max-queued", "2", "--metrics-names", "triton")
    with tools.serving(tmp_path, tmp_path, *arguments) as server:
        with ThreadPoolExecutor(16) as pool:
            ends = list(pool.map(lambda k: ask(server, k), range(MIX)))
        with tools.client(server.address) as client:
            while sum(stats(client)["inference_stats"][key]["count"] for key in ("success", "fail")) < MIX:
                pass  # some that left are still on their way
            found = stats(client)
            text = client.ask("/metrics")[2].decode() if metrics_there() else ""
    counted = {key: value["count"] for key, value in found["inference_stats"].items()}
    told = {end: ends.count(end) for end in set(ends)}
    assert counted["success"] + counted["fail"] == MIX
    assert told["200"] <= counted["success"] <= told["200"] + told["left"]  # one that left too late has succeeded
    assert counted["compute_output"] == counted["success"]
    assert counted["success"] <= counted["compute_input"] <= MIX
    assert sum(each["compute_infer"]["count"] for each in found["batch_stats"]) == found["execution_count"]
    sizes = {each["batch_size"]: each["compute_infer"]["count"] for each in found["batch_stats"]}
    assert sum(size * count for size, count in sizes.items()) == found["inference_count"]
    if batching:
        assert set(sizes) <= {1, 2, 3, 4}
        assert found["execution_count"] <= counted["success"] + counted["fail"]
    else:
        assert set(sizes) == {1}
        assert found["execution_count"] >= counted["success"]
    assert all(found["inference_stats"][key]["ns"] > 0 for key in ("success", "fail", "compute_input", "compute_output"))
    if text:
        failures = [int(line.split()[-1]) for line in text.splitlines() if line.startswith("nv_inference_request_failure{")]
        assert sum(failures) == counted["fail"]
        reasons = dict(zip(("REJECTED", "CANCELED", "BACKEND", "OTHER"), failures, strict=True))
        assert reasons["OTHER"] == told["400"]
        refused = told.get("429", 0) + told.get("504", 0)
        assert refused <= reasons["REJECTED"] <= refused + told["left"]
        assert reasons["BACKEND"] == 0


def metrics_there() -> bool:
    try:
        import prometheus_client  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True


def test_joined_requests_are_as_many_as_were_sent(tmp_path: Path) -> None:
    tools.save(tmp_path, "mlp", 1, small_models.mlp("n"), "batching = { max_batch = 4, max_delay_ms = 1000 }")

    def once(k: int) -> None:
        with tools.client(server.address) as client:
            assert client.ask("/v2/models/mlp/infer", body())[0] == 200

    with tools.serving(tmp_path, tmp_path) as server:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(once, range(8)))
        with tools.client(server.address) as client:
            found = stats(client)
    assert found["inference_stats"]["success"]["count"] == found["inference_count"] == 8
    assert found["execution_count"] == 2
    assert [(each["batch_size"], each["compute_infer"]["count"]) for each in found["batch_stats"]] == [(4, 2)]
    assert found["last_inference"] > 0


def test_counts_outlive_front_ends_and_versions(tmp_path: Path) -> None:
    tools.save(tmp_path, "mlp", 1, small_models.mlp("n"))
    with tools.serving(tmp_path, tmp_path, "--allow-repository") as server:
        with tools.client(server.address) as client:
            for _ in range(3):
                client.infer("mlp", tools.mlp_feeds())
        (front_end,) = server.front_ends()
        front_end.kill()
        server.wait_for("is replaced")
        with tools.client(server.address) as client:
            client.infer("mlp", tools.mlp_feeds())
            assert stats(client)["inference_stats"]["success"]["count"] == 4
            assert client.ask("/v2/repository/models/mlp/unload", {})[0] == 200
            assert client.ask("/v2/repository/models/mlp/load", {})[0] == 200
            client.infer("mlp", tools.mlp_feeds())
            assert stats(client)["inference_stats"]["success"]["count"] == 5


def test_grpc_counts_as_http_does(tmp_path: Path) -> None:
    grpc = pytest.importorskip("grpc")
    from aspen_mp.serving.grpc import schema

    tools.save(tmp_path, "mlp", 1, small_models.mlp("n"))
    x = np.ones((2, 16), np.float32)
    tensor = {"name": "x", "datatype": "FP32", "shape": x.shape}
    request = schema.message("ModelInferRequest")(model_name="mlp", inputs=[tensor], raw_input_contents=[x.tobytes()])
    wrong = schema.message("ModelInferRequest")(model_name="mlp", inputs=[tensor], raw_input_contents=[b""])
    with tools.serving(tmp_path, tmp_path, "--grpc-port", "0") as server, grpc.insecure_channel(server.grpc_address) as channel:

        def call(method: str, sent: Any, kind: Any) -> Any:
            return channel.unary_unary(f"/{schema.SERVICE}/{method}", type(sent).SerializeToString, kind.FromString)(sent)

        call("ModelInfer", request, schema.ModelInferResponse)
        with pytest.raises(grpc.RpcError):
            call("ModelInfer", wrong, schema.ModelInferResponse)
        (found,) = call("ModelStatistics", schema.message("ModelStatisticsRequest")(), schema.ModelStatisticsResponse).model_stats
    assert (found.inference_stats.success.count, found.inference_stats.fail.count) == (1, 1)
    assert (found.inference_stats.compute_input.count, found.inference_stats.compute_output.count) == (1, 1)
    assert [(each.batch_size, each.compute_infer.count) for each in found.batch_stats] == [(1, 1)]
