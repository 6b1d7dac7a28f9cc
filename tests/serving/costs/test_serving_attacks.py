"""A hundred attacks at once, while four clients work: these get right answers, health is answered, and memory stays within its limit."""

from __future__ import annotations

import contextlib
import functools
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import psutil
import pytest
import serving_tools as tools
import small_models

pytest.importorskip("grpc", reason="gRPC is an extra: pip install 'aspen-mp[grpc]'")
pytest.importorskip("google.protobuf", reason="gRPC is an extra: pip install 'aspen-mp[grpc]'")

import raw_http2

from aspen_mp.serving.grpc import schema

AT_ONCE = 100
MEMORY = 1 << 30
MIB = 1 << 20
NBYTES = 240 * MIB
HEAD = json.dumps(
    {"inputs": [{"name": "x", "shape": [NBYTES // 64, 16], "datatype": "FP32", "parameters": {"binary_data_size": NBYTES}}]}
).encode()
"""Of a request with as many bytes as a server takes."""
REFUSALS = {400, 408, 413, 429, 503}


def strings() -> onnx.ModelProto:
    """t = s, strings."""
    helper = onnx.helper
    infos = [helper.make_tensor_value_info(name, onnx.TensorProto.STRING, ["n"]) for name in "st"]
    graph = helper.make_graph([helper.make_node("Identity", ["s"], ["t"])], "strings", infos[:1], infos[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@functools.cache
def zeros(nbytes: int) -> bytes:
    return bytes(nbytes)


@functools.cache
def ones(n: int) -> bytes:
    data = b",".join([b"1"] * n)
    return b'{"inputs":[{"name":"x","shape":[%d,16],"datatype":"FP32","data":[%b]}],"parameters":{"binary_data_output":true}}' % (
        n // 16,
        data,
    )


@functools.cache
def junk(n: int) -> bytes:
    return b'{"inputs":[],"junk":[%b]}' % b",".join([b"[]"] * n)


class Attacks:
    """What strangers do. Each returns the status that it was answered with, or 0 where the connection has ended."""

    def __init__(self, server: tools.Server, over: threading.Event) -> None:
        self._host, port = server.address.split(":")
        self._port = int(port)
        self._grpc = server.grpc_address
        self._over = over

    @contextlib.contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        with socket.create_connection((self._host, self._port), 4 * tools.WATCHDOG_S) as sock:
            yield sock

    def _status(self, sock: socket.socket) -> int:
        """Of the first answer; all is read."""
        said = b""
        with contextlib.suppress(ConnectionError):
            while part := sock.recv(1 << 16):
                said = said or part
        return int(said[9:12] or 0)

    def _post(self, model: str, *parts: bytes, said: int | None = None, head: int | None = None) -> int:
        with self._connected() as sock:
            self._begin(sock, model, sum(map(len, parts)) if said is None else said, head)
            with contextlib.suppress(ConnectionError):
                for part in parts:
                    sock.sendall(part)
            return self._status(sock)

    def _begin(self, sock: socket.socket, model: str, length: int, head: int | None = None) -> None:
        more = "" if head is None else f"Inference-Header-Content-Length: {head}\r\n"
        line = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n{more}\r\n"
        sock.sendall(line.encode())

    def _binary(self, model: str, name: str, n: int, size: int, data: bytes) -> int:
        tensor = {"name": name, "shape": [n], "datatype": "BYTES", "parameters": {"binary_data_size": size}}
        head = json.dumps({"inputs": [tensor]}).encode()
        return self._post(model, head, data, head=len(head))

    def announced_sizes(self) -> int:
        return self._binary("mlp", "z", 1, 3221225472, b"")

    def sizes_beyond_memory(self) -> int:
        return self._binary("strings", "s", 1, 1 << 40, b"")

    def strings_for_no_input(self) -> int:
        return self._binary("mlp", "z", 16 * MIB, 64 * MIB, zeros(64 * MIB))

    def too_many_strings(self) -> int:
        return self._binary("strings", "s", 16 * MIB, 64 * MIB, zeros(64 * MIB))

    def many_strings(self) -> int:
        return self._binary("strings", "s", MIB, 4 * MIB, zeros(4 * MIB))

    def numbers(self) -> int:
        return self._post("mlp", ones(15 * MIB // 16 * 16))

    def lists_of_nothing(self) -> int:
        return self._post("mlp", junk(10 * MIB))

    def a_body_that_does_not_come(self) -> int:
        return self._post("mlp", HEAD, said=len(HEAD) + NBYTES, head=len(HEAD))

    def a_body_that_comes_slowly(self) -> int:
        with self._connected() as sock:
            self._begin(sock, "mlp", len(HEAD) + NBYTES, len(HEAD))
            sock.sendall(HEAD)
            sock.settimeout(0.5)
            for _ in range(500):
                try:
                    sock.sendall(zeros(50))
                    return int((sock.recv(1 << 12) + b" " * 12)[9:12].strip() or 0)
                except TimeoutError:
                    continue
                except ConnectionError:
                    break
            return 0

    def headers_that_do_not_end(self) -> int:
        with self._connected() as sock:
            sock.sendall(b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost:")
            return self._status(sock)

    def pieces_without_end(self) -> int:
        with self._connected() as sock:
            sock.sendall(b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                for _ in range(300):
                    sock.sendall(b"100000\r\n" + zeros(MIB) + b"\r\n")
            return self._status(sock)

    def answers_that_nobody_reads(self) -> int:
        tensor = b'{"inputs":[{"name":"x","shape":[20000,16],"datatype":"FP32","parameters":{"binary_data_size":1280000}}]}'
        head = b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nInference-Header-Content-Length: %d\r\n\r\n"
        whole = head % (len(tensor) + 1280000, len(tensor)) + tensor + zeros(1280000)
        with self._connected() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            with contextlib.suppress(ConnectionError):
                for _ in range(1000):  # nothing is read: the server stops reading, and ends the connection
                    sock.sendall(whole)
            return 0

    def answers_over_grpc_that_nobody_reads(self) -> int:
        request = schema.ModelInferRequest(model_name="mlp", inputs=[{"name": "x", "shape": [20000, 16], "datatype": "FP32"}])
        request.raw_input_contents.append(zeros(1280000))
        raw = raw_http2.Raw(self._grpc, window=0)
        try:
            raw.begin(1, "ModelInfer")
            with contextlib.suppress(OSError):  # the window for what it sends ends, too
                raw.sock.settimeout(1)
                raw.message(1, request.SerializeToString()[:60000], said=1280000, last=False)
            self._over.wait(tools.WATCHDOG_S)
        finally:
            raw.close()
        return 0

    def garbage_over_grpc(self) -> int:
        raw = raw_http2.Raw(self._grpc)
        raw.begin(1, "ModelInfer")
        raw.message(1, b"\xff" * 100)
        raw.until(raw_http2.HEADERS, 1)
        raw.close()
        return 0

    def all(self) -> list[Callable[[], int]]:
        return [getattr(self, name) for name in vars(Attacks) if not name.startswith("_") and name != "all"]


def test_others_do_not_notice(tmp_path: Any) -> None:
    tools.save(tmp_path, "mlp", 1, small_models.mlp("n"))
    tools.save(tmp_path, "strings", 1, strings())
    feeds = tools.mlp_feeds()
    wanted = tools.mlp_wants(feeds)
    over = threading.Event()
    with tools.serving(tmp_path, tmp_path, "--grpc-port", "0") as server, contextlib.ExitStack() as stack:
        (front_end,) = server.front_ends()
        clients = [stack.enter_context(tools.client(server.address)) for _ in range(4)]
        most = 0

        def once(k: int) -> None:
            nonlocal most
            if k < 4:
                np.testing.assert_allclose(clients[k].infer("mlp", feeds)["y"], wanted, rtol=1e-4, atol=1e-5)
                return
            with tools.client(server.address) as new:
                assert new.ask(f"/v2/health/{'live' if k == 4 else 'ready'}")[0] == 200
            most = max(most, front_end.memory_info().rss)

        with tools.load(6, once) as counts:
            counts.wait(10)
            attacks = Attacks(server, over).all()
            statuses: dict[str, set[int]] = {attack.__name__: set() for attack in attacks}

            def attack(k: int) -> None:
                chosen = attacks[k % len(attacks)]
                statuses[chosen.__name__].add(chosen())

            threads = [threading.Thread(target=attack, args=(k,)) for k in range(AT_ONCE)]
            for thread in threads:
                thread.start()
            counts.wait(10)
            over.set()
            for thread in threads:
                thread.join(5 * tools.WATCHDOG_S)
            assert not any(thread.is_alive() for thread in threads)
            counts.wait(10)
        assert most <= MEMORY
        assert {status for found in statuses.values() for status in found} <= {0, 200, *REFUSALS}, statuses
        for name in ("announced_sizes", "sizes_beyond_memory", "strings_for_no_input"):
            assert statuses[name] <= {400}, statuses
        for name in ("a_body_that_does_not_come", "a_body_that_comes_slowly", "headers_that_do_not_end"):
            assert statuses[name] <= {0, 408}, statuses
        assert [each.pid for each in server.front_ends()] == [front_end.pid]
        assert psutil.pid_exists(front_end.pid)
        assert "Traceback" not in "".join(server.log), "".join(server.log)
