"""What `bench serve` makes of its measurements, and its client process."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from aspen_mp.bench.serve.client import Job, Load, arrivals
from aspen_mp.bench.serve.picture import plot
from aspen_mp.bench.serve.result import Served, ServeResult, Setting, percentile

REQUEST = b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"


def result() -> ServeResult:
    served = [
        Served(Setting("aspen-mp", "http", 1), [10.0, 11.0], [3.0, 5.0], [4.0, 6.0], [4.0, 6.0], direct_ms=[2.5, 4.0]),
        Served(Setting("aspen-mp", "http", 16), [30.0, 20.0], [3.0, 5.0], [5.0, 10.0], [4.0, 6.0]),
        Served(Setting("onnxruntime, 1 process", "http", 16), [15.0, 20.0], [3.0, 5.0], [20.0, 20.0], [4.0, 6.0]),
        Served(Setting("onnxruntime, 2 processes", "http", 16), [1.0, 2.0], [3.0, 5.0], [50.0, 50.0], [4.0, 6.0]),
    ]
    return ServeResult("net", [0, 1], 1, 600, served, {"aspen-mp": 1 << 20})


def test_ratios_are_of_rounds_side_by_side_and_of_the_faster_peer() -> None:
    found = result()
    one, many, *_ = found.served
    assert found.added_ms(one) == 0.75
    assert found.added_ms(many) is None
    assert found.beside(one) is None
    assert found.beside(many) == (1.5, 0.375)
    assert found.verdict == (
        "net: http, 1 at a time: the server adds 0.75 ms to a request; "
        "http, 16 at a time: 1.50 of the throughput of onnxruntime, 1 process, and 0.38 of its p99"
    )


def test_percentiles() -> None:
    assert percentile([0.003, 0.001, 0.002], 0.5) == 2.0
    assert percentile([0.001] * 99 + [1.0], 0.99) == 1000.0
    assert percentile([], 0.5) == 0.0


def test_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot(result(), tmp_path / "serve.png")
    assert (tmp_path / "serve.png").stat().st_size


@pytest.mark.parametrize("rate", [None, 200.0])
@pytest.mark.parametrize("status", [200, 429])
def test_a_client_counts_answers_and_failures(rate: float | None, status: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        asked: list[bytes] = []

        def answer(connection: socket.socket) -> None:
            with connection:
                while data := connection.recv(1 << 16):
                    asked.append(data)
                    connection.sendall(b"HTTP/1.1 %d Said\r\nContent-Length: 3\r\n" % status)
                    connection.sendall(b"\r\nyes")

        def accept() -> None:
            for _ in range(3):
                threading.Thread(target=answer, args=(listening.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        job = Job(3, rate, time.monotonic(), 0.1)
        done = Load(f"127.0.0.1:{listening.getsockname()[1]}", REQUEST, job).run()
    assert b"".join(asked) == REQUEST * len(asked)
    assert len(done.latencies_s) == (len(asked) if status == 200 else 0)
    assert len(done.failed) == (0 if status == 200 else len(asked))
    assert len(asked) == len(arrivals(job)) if rate else len(asked) >= 3
