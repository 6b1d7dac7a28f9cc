"""The end of a server loses no request that was sent before SIGTERM: drawn clients whose requests wait, and servers under load."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import serving_tools as tools
from serving_tools import WATCHDOG_S

import aspen_mp
from aspen_mp.serving.access.ending import refuse

LONG = os.environ.get("ASPEN_MP_TIER") == "long"
QUEUED = 40 if LONG else 4
SERVERS = 100 if LONG else 4
TRIALS = 1000 if LONG else 20
CLIENTS = 8
BODY = json.dumps({"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}).encode()
REQUEST = b"POST /v2/models/add/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)


class Sender:
    """A client at the level of its socket. `sent`: whether the kernel has taken the whole of its last request."""

    def __init__(self, server: tools.Server, path: str, secret: ssl.SSLContext | None = None) -> None:
        host, port = server.address.rsplit(":", 1)
        self._address = path or (host, int(port))
        self._secret = secret
        self.sent = False

    def connect(self) -> None:
        sock = socket.socket(socket.AF_UNIX if isinstance(self._address, str) else socket.AF_INET)
        sock.settimeout(WATCHDOG_S)
        sock.connect(self._address)
        self.sock = sock if self._secret is None else self._secret.wrap_socket(sock)

    def send(self) -> None:
        self.sent = False
        self.sock.sendall(REQUEST)
        self.sent = True

    def answer(self) -> tuple[int, bool]:
        """Status of the answer, which is right, and whether the connection ends with it."""
        answer = http.client.HTTPResponse(self.sock)
        answer.begin()
        said = json.loads(answer.read())
        assert answer.status != 200 or said["outputs"][0]["data"] == [3, 4, 5, 6], said
        return answer.status, answer.will_close

    def close(self) -> None:
        if hasattr(self, "sock"):
            self.sock.close()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tools.save(tmp_path, "add", 1, tools.constant(2.0))
    return tmp_path


@contextlib.contextmanager
def busy(n: int = 2) -> Iterator[None]:
    """Processes that take processors."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        yield
    finally:
        for each in others:
            each.kill()
            each.wait()


def certificate(folder: Path) -> list[str]:
    pem, key = folder / "own.pem", folder / "own.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"]
    subprocess.run([*command, "-subj", "/CN=a", "-keyout", key, "-out", pem], check=True, capture_output=True)
    return ["--certificate", str(pem), "--key", str(key)]


@pytest.mark.parametrize("seed", range(QUEUED))
def test_requests_in_queues_are_answered(seed: int, model: Path) -> None:
    """Front ends stand still while clients connect and send, so that connections wait to be accepted and bytes to be read."""
    drawn = random.Random(seed)
    encrypted = seed % 4 == 3
    more = ["--http-workers", str(1 + seed % 2), "--unix-socket", str(model / "socket"), *(certificate(model) if encrypted else [])]
    secret = ssl._create_unverified_context() if encrypted else None
    with tools.serving(model, model, *more) as server, contextlib.ExitStack() as stack:
        senders = [Sender(server, drawn.choice(["", str(model / "socket")]), secret) for _ in range(drawn.randint(4, 60))]
        for each in senders:
            stack.callback(each.close)
        known = [each for each in senders if each._secret is not None or drawn.random() < 0.5]  # a handshake needs the other side
        for each in known:
            each.connect()
            if drawn.random() < 0.7:
                each.send()
                assert each.answer() == (200, False)
        for process in server.front_ends():
            process.suspend()
        for each in senders:
            if each not in known:
                each.connect()
            each.send()
        server.process.send_signal(signal.SIGTERM)
        if drawn.random() < 0.5:  # else front ends go on before the supervisor has told them
            while (model / "socket").exists():
                pass
        for process in server.front_ends():
            process.resume()
        for k, each in enumerate(senders):
            assert each.answer() == (200, True), (k, len(senders), each in known)
            each.close()
        assert server.process.wait(WATCHDOG_S) == 0
        with pytest.raises(ConnectionRefusedError):
            Sender(server, "").connect()
        assert not (model / "socket").exists()


def trial(model: Path, name: str, seed: int) -> tuple[int, list[str]]:
    """Clients that send again and again, and SIGTERM at a drawn moment. How many requests were on their way then, and what was lost."""
    drawn = random.Random(seed)
    path = model / f"socket-{seed}"
    with tools.serving(
        model, model, "--name", name, "--http-workers", str(1 + seed % 2), "--unix-socket", str(path), workers=None
    ) as server:
        lock, over = threading.Lock(), threading.Event()
        lost: list[str] = []
        before: set[Sender] = set()
        senders = [Sender(server, drawn.choice(["", str(path)])) for _ in range(CLIENTS)]
        after = drawn.randint(0, 3)
        counts = itertools.count()
        enough = threading.Event()

        def work(sender: Sender, anew: bool) -> None:
            close = True
            while not over.is_set():
                try:
                    if close or anew:
                        sender.close()
                        sender.connect()
                    sender.send()
                    status, close = sender.answer()
                    assert status == 200, status
                    if next(counts) >= after * CLIENTS:
                        enough.set()
                except (OSError, http.client.HTTPException) as error:
                    with lock:
                        if sender in before:
                            lost.append(repr(error))
                    return
                with lock:
                    before.discard(sender)
                    sender.sent = False

        threads = [threading.Thread(target=work, args=(each, drawn.random() < 0.5)) for each in senders]
        for thread in threads:
            thread.start()
        if after:
            assert enough.wait(WATCHDOG_S)
        with lock:
            before |= {each for each in senders if each.sent}
            on_their_way = len(before)
            server.process.send_signal(signal.SIGTERM)
        over.set()
        for thread in threads:
            thread.join(WATCHDOG_S)
        for each in senders:
            each.close()
        assert server.process.wait(WATCHDOG_S) == 0
        return on_their_way, lost


def test_nothing_sent_before_sigterm_is_lost_under_load(model: Path) -> None:
    with busy(), aspen_mp.Runtime(workers=1, name="outlives-its-servers") as runtime:
        found = [trial(model, runtime.name, seed) for seed in range(SERVERS)]
    assert not [each for each in found if each[1]]
    assert sum(n for n, _ in found)


def test_front_ends_by_themselves_lose_nothing_under_load() -> None:
    with busy():
        command = [sys.executable, Path(__file__).with_name("ending_trials.py"), str(TRIALS)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    sent, lost = map(int, said.splitlines()[-1].split())
    assert sent
    assert not lost, said


def test_a_listener_that_refuses_keeps_what_it_has(tmp_path: Path) -> None:
    for family, address in ((socket.AF_INET, ("127.0.0.1", 0)), (socket.AF_INET6, ("::1", 0)), (socket.AF_UNIX, str(tmp_path / "s"))):
        with socket.socket(family) as listener, socket.socket(family) as early, socket.socket(family) as late:
            listener.bind(address)
            listener.listen()
            where = listener.getsockname()
            early.connect(where)
            early.sendall(b"before")
            refuse(listener)
            late.setblocking(False)
            code = late.connect_ex(where)
            assert code != 0
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.recv(6) == b"before"
                early.sendall(b"after")
                assert accepted.recv(5) == b"after"
                accepted.sendall(b"answer")
                assert early.recv(6) == b"answer"
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.accept()


def test_an_idle_connection_may_send_once_more(model: Path) -> None:
    """SIGTERM meets a connection between two requests: the next one is answered, and the connection ends."""
    with tools.serving(model, model) as server, contextlib.ExitStack() as stack:
        sender, idle = (stack.enter_context(contextlib.closing(Sender(server, ""))) for _ in range(2))
        idle.connect()
        sender.connect()
        sender.send()
        assert sender.answer() == (200, False)
        server.process.send_signal(signal.SIGTERM)
        sender.send()
        assert sender.answer() == (200, True)
        assert idle.sock.recv(1) == b""
        assert server.process.wait(WATCHDOG_S) == 0
