"""Memory that clients share: descriptors, places, limits, and processes that die."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import serving_tools as tools
import small_models
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aspen_mp.errors import RequestError
from aspen_mp.serving.memory.client import Client, Memory

LONG = os.environ.get("ASPEN_MP_TIER") == "long"
KILLS = 100 if LONG else 4
EXAMPLES = 1000 if LONG else 60
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    tools.save(folder, "mlp", 1, small_models.mlp("n"))
    tools.save(folder, "c", 1, tools.constant(1))
    return folder


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[tools.Server]:
    with tools.serving(models, models, "--unix-socket", models / "s", "--max-body", "1", "--http-workers", "2") as found:
        yield found


@pytest.fixture
def path(server: tools.Server, models: Path) -> Path:
    return models / "s"


def check(client: Client, memory: Memory, seed: int = 0) -> None:
    memory.clear()
    feeds = tools.mlp_feeds(seed=seed)
    x, y = memory.array((3, 16), np.float32), memory.array((8, 64), np.float32)
    x[...] = feeds["x"]
    y[...] = np.nan
    wants = tools.mlp_wants(feeds)
    found = client.infer("mlp", {"x": x}, {"y": y})["y"]
    assert found.shape == wants.shape
    assert np.shares_memory(found, y)
    np.testing.assert_allclose(found, wants, rtol=1e-4, atol=1e-5)


def test_a_request_and_its_result_lie_in_memory(path: Path) -> None:
    with Memory(1 << 16) as memory, Client(path, memory) as client:
        for seed in range(20):
            check(client, memory, seed)
        x, y = memory.array((2, 4), np.float32), memory.array((2, 4), np.float32)
        x[...] = 5
        assert (client.infer("c", {"x": x}, {"y": y}, version=1)["y"] == 6).all()
        with pytest.raises(RequestError, match="room"):
            client.infer("c", {"x": x}, {"y": y[:1]})
        with pytest.raises(RequestError, match="no model 'none'"):
            client.infer("none", {"x": x}, {"y": y})
        with pytest.raises(RequestError, match=r"Memory\.array"):
            client.infer("c", {"x": np.zeros((2, 4), np.float32)}, {"y": y})
        check(client, memory)


def test_many_clients_at_once(path: Path) -> None:
    memories = [Memory(1 << 16) for _ in range(6)]
    clients = [Client(path, memory) for memory in memories]
    with tools.load(len(clients), lambda k: check(clients[k], memories[k], k)) as counts:
        while min(counts) < 20:
            pass
    for each in (*clients, *memories):
        each.close()


def memfd(nbytes: int = 4096, seals: int = SEALS) -> int:
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, nbytes)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def greet(path: Path, names: Any, fds: list[int], data: bytes | None = None) -> tuple[socket.socket, dict[str, Any]]:
    """A connection after its first message, and the answer to it."""
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(tools.WATCHDOG_S)
    sock.connect(f"{path}.memory")
    text = json.dumps({"regions": names}).encode() if data is None else data
    socket.send_fds(sock, [struct.pack("<I", len(text)) + text], fds)
    length = sock.recv(4, socket.MSG_WAITALL)
    return sock, json.loads(sock.recv(struct.unpack("<I", length)[0], socket.MSG_WAITALL)) if length else {}


def ended(sock: socket.socket) -> bool:
    """Whether nothing more comes; waits for that."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:  # the server has not read everything
        return True


OWN = re.compile(r"anon_inode:|/memfd:aspen-(?!mp-client)|/dev/shm/")
"""What front ends open for themselves, once or for many requests."""


def open_files(server: tools.Server) -> int:
    """How many descriptors front ends have that clients have caused."""
    found = 0
    for front_end in server.front_ends():
        for entry in os.scandir(f"/proc/{front_end.pid}/fd"):
            with contextlib.suppress(FileNotFoundError):  # it has been closed
                found += OWN.match(os.readlink(entry.path)) is None
    return found


def test_descriptors_that_are_refused(server: tools.Server, path: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(4096))
    ends = os.pipe()
    unsealed = [memfd(seals=SEALS & ~each) for each in (fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_GROW, fcntl.F_SEAL_SEAL)]
    file, good, null = os.open(tmp_path / "file", os.O_RDWR), memfd(), os.open("/dev/zero", os.O_RDWR)
    before = open_files(server)
    cases: list[tuple[Any, list[int], str]] = [
        *((["a"], [each], "change its size") for each in unsealed),
        *((["a"], [each], "not a file in memory") for each in (file, ends[0], null)),
        (["a", "b"], [good, file], "region 'b' is not a file"),
        (["a", "a"], [good, good], "same name"),
        (["a"], [], "0 descriptors"),
        ([], [good], "do not name|does not name"),
        (["a"], [good, good], "2 descriptors"),
        (["a"] * 17, [good] * 16, "name regions"),
        ([str(k) for k in range(16)], [good] * 60, "16 regions"),
        (7, [], "name regions"),
    ]
    for names, fds, wanted in cases:
        sock, said = greet(path, names, fds)
        with sock:
            assert re.search(wanted, said["error"]), (names, said)
            assert ended(sock)
    for fd in (*unsealed, *ends, file, good, null):
        os.close(fd)
    until_open_files_are(server, before)


def until_open_files_are(server: tools.Server, before: int) -> None:
    while open_files(server) > before:
        server.process.poll()


def place(region: Any, offset: Any, size: Any) -> dict[str, Any]:
    said = {"shared_memory_region": region, "shared_memory_offset": offset, "shared_memory_byte_size": size}
    return {key: value for key, value in said.items() if value is not None}


class Raw(tools.Client):
    """A connection that has shared descriptors, and says what the test wants."""

    def __init__(self, path: Path, regions: dict[str, int]) -> None:
        super().__init__("none:0")
        self._connection.sock, said = greet(path, list(regions), list(regions.values()))
        assert "error" not in said, said
        self.sizes = said["sizes"]

    def add_one(self, x: dict[str, Any], y: dict[str, Any] | None, shape: tuple[int, ...] = (2, 4)) -> tuple[int, Any]:
        """Status and answer of a request to y = x + 1."""
        inputs = [{"name": "x", "shape": shape, "datatype": "FP32", "parameters": x}]
        status, _, said = self.ask("/v2/models/c/infer", {"inputs": inputs, "outputs": [{"name": "y", "parameters": y or {}}]})
        return status, said


@pytest.fixture
def raw(path: Path) -> Iterator[Raw]:
    fds = {"a": memfd(4096), "fixed": memfd(4096, SEALS | fcntl.F_SEAL_WRITE)}
    found = Raw(path, fds)
    for fd in fds.values():
        os.close(fd)
    yield found
    found.close()


def test_places_that_are_refused(raw: Raw) -> None:
    assert raw.sizes == [4096, 4096]
    good = place("a", 64, 32)
    assert raw.add_one(place("fixed", None, 32), good)[0] == 200
    assert raw.add_one(place("fixed", 4064, 32), None)[1]["outputs"][0]["data"] == [1.0] * 8
    cases = [
        (place("b", 0, 32), good, "no region 'b'"),
        (good, place("b", 0, 32), "no region 'b'"),
        (good, place("fixed", 0, 32), "cannot be written to"),
        (place("a", 4065, 32), good, "do not lie"),
        (good, place("a", 4065, 32), "do not lie"),
        (place("a", (1 << 48) - 1, 32), good, "do not lie"),
        (place("a", 1 << 64, 32), good, "does not fit"),
        (place("a", -32, 32), good, "does not fit"),
        (place("a", 0, None), good, "without shared_memory_byte_size"),
        (place("a", 0, 31), good, "needs 32 bytes"),
        (good, place("a", 0, 1 << 47), "do not lie"),
        ({**good, "binary_data_size": 32}, good, "Give one of them"),
        (good, place("a", 0, 31), "Give it more room"),
        (place(7, 0, 32), good, "does not fit"),
    ]
    for x, y, wanted in cases:
        status, said = raw.add_one(x, y)
        assert status == 400, (x, y, said)
        assert wanted in said["error"], (x, y, said)
    assert raw.add_one(good, good)[0] == 200


NUMBERS = st.sampled_from([0, 1, 31, 32, 33, 4064, 4096, 4097, 1 << 31, 1 << 47, 1 << 63, 1 << 70, -1]) | st.integers() | st.none()
PLACES = st.builds(place, st.sampled_from(["a", "a", "a", "fixed", "b", "", None, 3]), NUMBERS, NUMBERS)


@given(x=PLACES, y=PLACES, rows=st.sampled_from([0, 1, 2, 2, 2, 1 << 40]))
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_drawn_places(raw: Raw, x: dict[str, Any], y: dict[str, Any], rows: int) -> None:
    status, said = raw.add_one(x, y, (rows, 4))
    assert status in {200, 400, 413}, said


@given(data=st.binary(max_size=40) | st.builds(lambda names: json.dumps({"regions": names}).encode(), st.lists(st.text(max_size=3))))
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_drawn_first_messages(path: Path, data: bytes) -> None:
    fd = memfd()
    try:
        sock, said = greet(path, None, [fd], data)
        with sock:
            assert said.get("error") or said["sizes"] == [4096]
    finally:
        os.close(fd)


def test_first_messages_that_end_or_are_too_long(server: tools.Server, path: Path) -> None:
    before = open_files(server)
    for data in (b"", b"\x05", b"\x05\0\0\0{", b"\xff\xff\xff\xff", b"GET /v2 HTTP/1.1\r\n\r\n"):
        fd = memfd()
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(f"{path}.memory")
            if data:
                socket.send_fds(sock, [data], [fd])
            sock.shutdown(socket.SHUT_WR)
            sock.settimeout(tools.WATCHDOG_S)
            while not ended(sock):
                pass
        os.close(fd)
    until_open_files_are(server, before)


def test_regions_are_those_of_their_connection(server: tools.Server, path: Path, raw: Raw) -> None:
    before = open_files(server)
    fd = memfd()
    mine = Raw(path, {"mine": fd})
    os.close(fd)
    assert mine.add_one(place("mine", 0, 32), place("mine", 32, 32))[0] == 200
    assert mine.add_one(place("a", 0, 32), None)[0] == 400
    assert raw.add_one(place("mine", 0, 32), None)[0] == 400
    for address in (server.address, str(path)):
        with tools.client(address) as other:
            x = {"name": "x", "shape": [2, 4], "datatype": "FP32", "parameters": place("mine", 0, 32)}
            status, _, said = other.ask("/v2/models/c/infer", {"inputs": [x]})
            assert (status, "no region 'mine'" in said["error"]) == (400, True)
    mine.close()
    until_open_files_are(server, before)


def test_too_many_bytes(path: Path) -> None:
    fd = memfd(4 << 20)
    big = Raw(path, {"a": fd})
    os.close(fd)
    rows = (2 << 20) // 16
    status, said = big.add_one(place("a", 0, 2 << 20), place("a", 2 << 20, 2 << 20), (rows, 4))
    assert status == 413, said
    assert big.add_one(place("a", 0, 1 << 47), None)[0] == 413
    big.close()


def test_strings_and_truths(tmp_path: Path) -> None:
    onnx = tools.onnx
    helper = onnx.helper
    infos = [helper.make_tensor_value_info(name, kind, [3]) for name, kind in (("s", 8), ("b", 9), ("t", 8), ("c", 9))]
    nodes = [helper.make_node("Identity", ["s"], ["t"]), helper.make_node("Not", ["b"], ["c"])]
    graph = helper.make_graph(nodes, "both", infos[:2], infos[2:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), tmp_path / "both.onnx")
    packed = b"".join(struct.pack("<I", len(each)) + each for each in (b"", b"two", "drei\u00df".encode()))
    fd = memfd()
    os.pwrite(fd, packed, 0)
    os.pwrite(fd, bytes([0, 1, 7]), 100)
    with tools.serving(tmp_path, tmp_path / "both.onnx", "--unix-socket", tmp_path / "s"):
        client = Raw(tmp_path / "s", {"a": fd})
        inputs = [
            {"name": "s", "shape": [3], "datatype": "BYTES", "parameters": place("a", 0, len(packed))},
            {"name": "b", "shape": [3], "datatype": "BOOL", "parameters": place("a", 100, 3)},
        ]
        outputs = [{"name": "t", "parameters": place("a", 200, 100)}, {"name": "c", "parameters": place("a", 300, 3)}]
        status, _, said = client.ask("/v2/models/both/infer", {"inputs": inputs, "outputs": outputs})
        assert status == 200, said
        assert said["outputs"][0]["parameters"] == place("a", 200, len(packed))
        client.close()
    assert os.pread(fd, len(packed), 200) == packed
    assert os.pread(fd, 3, 300) == bytes([1, 0, 0])
    os.close(fd)


def test_memory_that_changes_during_requests(server: tools.Server, path: Path) -> None:
    """Results are of no use then, and nobody else notices."""
    over = threading.Event()
    with Memory(1 << 16) as wild, Memory(1 << 16) as calm, Client(path, wild) as writes, Client(path, calm) as client:
        x, y = wild.array((16, 4), np.float32), wild.array((16, 4), np.float32)

        def scribble() -> None:
            while not over.is_set():
                wild._bytes[...] = np.random.default_rng().integers(0, 256)

        thread = threading.Thread(target=scribble)
        thread.start()
        try:
            for k in range(50):
                writes.infer("c", {"x": x}, {"y": y})
                check(client, calm, k)
        finally:
            over.set()
            thread.join()
    assert len(server.front_ends()) == 2


CHILD = """
import sys
import numpy as np
from aspen_mp.serving.memory.client import Client, Memory

with Memory(1 << 16) as memory, Client(sys.argv[1], memory) as client:
    x, y = memory.array((16, 4), np.float32), memory.array((16, 4), np.float32)
    while True:
        x[...] = 1
        y[...] = 0
        assert (client.infer("c", {"x": x}, {"y": y})["y"] == 2).all()
        print("answered", flush=True)
"""


def test_clients_are_killed(server: tools.Server, path: Path) -> None:
    before = open_files(server)
    with Memory(1 << 16) as memory, Client(path, memory) as other:
        for kill in range(KILLS):
            child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True)
            assert child.stdout is not None
            assert child.stdout.readline() == "answered\n"
            check(other, memory, kill)
            child.send_signal(signal.SIGKILL)
            child.wait(tools.WATCHDOG_S)
            child.stdout.close()
    until_open_files_are(server, before)


def test_front_ends_are_killed(models: Path) -> None:
    with tools.serving(models, models, "--unix-socket", models / "killed", "--http-workers", "2") as server:
        kill_front_ends(server, models / "killed")


def kill_front_ends(server: tools.Server, path: Path) -> None:
    memories = [Memory(1 << 16) for _ in range(4)]
    clients = [Client(path, memory) for memory in memories]
    answered = [0] * len(clients)

    def once(k: int) -> None:
        with contextlib.suppress(ConnectionError):  # of the second front end, too
            check(clients[k], memories[k], k)
            answered[k] += 1

    with tools.load(len(clients), once) as counts:
        for kill in range(1, KILLS + 1):
            server.front_ends()[0].kill()
            server.wait_for("is replaced", kill)
            before = sum(answered)
            while sum(answered) == before:  # a server whose front ends all die before they serve gives up
                counts.check()
    for client, memory in zip(clients, memories, strict=True):
        check(client, memory)
        client.close()
        memory.close()
    assert all(psutil.pid_exists(each.pid) for each in server.front_ends())
