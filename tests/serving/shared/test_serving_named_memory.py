"""Memory by name, as Triton has it: off unless allowed, with a prefix, over HTTP and gRPC."""

from __future__ import annotations

import contextlib
import importlib
import os
import struct
import threading
import uuid
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import serving_tools as tools
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

EXAMPLES = 1000 if os.environ.get("ASPEN_MP_TIER") == "long" else 60
SHM = Path("/dev/shm")
PREFIX = f"named-{uuid.uuid4().hex[:12]}-"
FRONT_ENDS = 3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tools.Server]:
    folder = tmp_path_factory.mktemp("models")
    tools.save(folder, "c", 1, tools.constant(1))
    with tools.serving(
        folder, folder, "--allow-named-shm", PREFIX, "--http-workers", str(FRONT_ENDS), "--grpc-port", "0", "--max-body", "1"
    ) as found:
        resource_tracker.ensure_running()  # of multiprocessing.shared_memory, as what the first client makes: it stays with the process
        for kind, address in (("http", found.address), ("grpc", found.grpc_address)):
            with contextlib.suppress(ImportError), importlib.import_module(f"tritonclient.{kind}").InferenceServerClient(address) as client:
                client.is_server_live()
        yield found


@pytest.fixture
def memory() -> Iterator[Path]:
    """A file with two arrays: input at 0, output at 1024."""
    path = SHM / f"{PREFIX}file"
    path.write_bytes(np.full(8, 5, np.float32).tobytes().ljust(4096, b"\0"))
    yield path
    path.unlink(missing_ok=True)


def register(client: tools.Client, name: str, key: Any, size: Any = 4096, offset: Any = 0) -> tuple[int, Any]:
    document = {"key": key, "offset": offset, "byte_size": size}
    status, _, said = client.ask(f"/v2/systemsharedmemory/region/{name}/register", document)
    return status, said


def forget(client: tools.Client) -> None:
    assert client.ask("/v2/systemsharedmemory/unregister", {})[0] == 200


def place(region: Any, offset: Any, size: Any = 32) -> dict[str, Any]:
    said = {"shared_memory_region": region, "shared_memory_offset": offset, "shared_memory_byte_size": size}
    return {key: value for key, value in said.items() if value is not None}


def add_one(client: tools.Client, x: dict[str, Any], y: dict[str, Any], shape: tuple[int, ...] = (2, 4)) -> tuple[int, Any]:
    """Status and answer of a request to y = x + 1."""
    inputs = [{"name": "x", "shape": shape, "datatype": "FP32", "parameters": x}]
    status, _, said = client.ask("/v2/models/c/infer", {"inputs": inputs, "outputs": [{"name": "y", "parameters": y}]})
    return status, said


def infer(client: tools.Client, region: str, offset: int = 0) -> tuple[int, Any]:
    return add_one(client, place(region, offset), place(region, 1024))


def test_all_front_ends_know_a_region(tmp_path: Path, memory: Path) -> None:
    tools.save(tmp_path, "c", 1, tools.constant(1))
    with tools.serving(tmp_path, tmp_path, "--allow-named-shm", PREFIX, "--http-workers", str(FRONT_ENDS)) as server:
        register_and_forget(server, memory)


def register_and_forget(server: tools.Server, memory: Path) -> None:
    with tools.client(server.address) as client:
        assert register(client, "r", f"/{memory.name}")[0] == 200
    for _ in range(4 * FRONT_ENDS):
        with tools.client(server.address) as client:
            (said,) = client.ask("/v2/systemsharedmemory/region/r/status")[2]
            assert said == {"name": "r", "key": f"/{memory.name}", "offset": 0, "byte_size": 4096}
            assert infer(client, "r")[0] == 200
    assert (np.frombuffer(memory.read_bytes()[1024:1056], np.float32) == 6).all()
    server.front_ends()[0].kill()
    server.wait_for("is replaced")
    with tools.client(server.address) as client:
        assert client.ask("/v2/systemsharedmemory/region/r/unregister", {})[0] == 200
    for _ in range(4 * FRONT_ENDS):
        with tools.client(server.address) as client:
            assert client.ask("/v2/systemsharedmemory/status")[2] == []
            assert client.ask("/v2/systemsharedmemory/region/r/status")[0] == 404
            assert infer(client, "r")[0] == 400


def test_keys_that_are_refused(server: tools.Server, memory: Path) -> None:
    link, folder = SHM / f"{PREFIX}link", SHM / f"{PREFIX}folder"
    pipe = SHM / f"{PREFIX}pipe"
    link.symlink_to("/etc/passwd")
    folder.mkdir()
    os.mkfifo(pipe)
    other = SHM / f"x{PREFIX}other"
    other.write_bytes(bytes(4096))
    try:
        with tools.client(server.address) as client:
            for key in (
                *(f"/{each.name}" for each in (link, folder, pipe, other)),
                *(
                    f"/{PREFIX}none",
                    f"/{PREFIX}/../{other.name}",
                    f"{PREFIX}../x",
                    "",
                    "/",
                    "..",
                    "//",
                    f"//{memory.name}",
                    7,
                    None,
                    "a\0b",
                ),
                f"/{PREFIX}\0",
                f"/{PREFIX}\ud800",
                f"/{PREFIX}{'x' * 250}",
            ):
                status, said = register(client, "r", key, 8)
                assert status == 400, (key, said)
            for size, offset in ((4097, 0), (1, 4096), (1 << 63, 0), (0, 4097), (-1, 0), (8, -8), ((1 << 64) - 8, 16), ("8", 0)):
                assert register(client, "r", memory.name, size, offset)[0] == 400, (size, offset)
            assert client.ask("/v2/systemsharedmemory/region/r/register", b"{")[0] == 400
            assert client.ask("/v2/systemsharedmemory/region/r/register", [1])[0] == 400
            assert client.ask("/v2/systemsharedmemory/status")[2] == []
            assert register(client, "r", memory.name)[0] == 200
            assert register(client, "r", memory.name)[0] == 400
            forget(client)
    finally:
        for each in (link, pipe, other):
            each.unlink()
        folder.rmdir()


def test_files_that_shrink(server: tools.Server, memory: Path) -> None:
    with tools.client(server.address) as client:
        assert register(client, "r", memory.name)[0] == 200
        assert register(client, "part", memory.name, 2048, 2048)[0] == 200
        assert infer(client, "r", 4064)[0] == 200
        assert infer(client, "part", 2048 - 31)[0] == 400
        os.truncate(memory, 100)
        status, said = infer(client, "r")
        assert (status, "become shorter" in said["error"]) == (400, True)  # the output
        os.truncate(memory, 10)
        status, said = infer(client, "r")
        assert (status, "become shorter" in said["error"]) == (400, True)
        assert memory.stat().st_size == 10
        forget(client)


@pytest.fixture
def known(server: tools.Server, memory: Path) -> Iterator[tools.Client]:
    """A client; region `a` is all of the memory."""
    with tools.client(server.address) as client:
        assert register(client, "a", memory.name)[0] == 200
        yield client
        forget(client)


def test_places_that_are_refused(known: tools.Client) -> None:
    good = place("a", 64)
    assert add_one(known, place("a", None), {})[1]["outputs"][0]["data"] == [6.0] * 8
    cases = [
        (place("b", 0), good, "no region 'b'"),
        (good, place("b", 0), "no region 'b'"),
        (place("a", 4065), good, "do not lie"),
        (good, place("a", 4065), "do not lie"),
        (place("a", (1 << 48) - 1), good, "do not lie"),
        (place("a", 1 << 64), good, "does not fit"),
        (place("a", -32), good, "does not fit"),
        (place("a", 0, None), good, "without shared_memory_byte_size"),
        (place("a", 0, 31), good, "needs 32 bytes"),
        (good, place("a", 0, 1 << 47), "do not lie"),
        ({**good, "binary_data_size": 32}, good, "Give one of them"),
        (good, place("a", 0, 31), "Give it more room"),
        (place(7, 0), good, "does not fit"),
    ]
    for x, y, wanted in cases:
        status, said = add_one(known, x, y)
        assert status == 400, (x, y, said)
        assert wanted in said["error"], (x, y, said)
    assert add_one(known, place("a", 0, 1 << 47), {})[0] == 413
    assert add_one(known, good, good)[0] == 200


NUMBERS = st.sampled_from([0, 1, 31, 32, 33, 4064, 4096, 4097, 1 << 31, 1 << 47, 1 << 63, 1 << 70, -1]) | st.integers() | st.none()
PLACES = st.builds(place, st.sampled_from(["a", "a", "a", "b", "", None, 3]), NUMBERS, NUMBERS)


@given(x=PLACES, y=PLACES, rows=st.sampled_from([0, 1, 2, 2, 2, 1 << 40]))
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_drawn_places(known: tools.Client, x: dict[str, Any], y: dict[str, Any], rows: int) -> None:
    status, said = add_one(known, x, y, (rows, 4))
    assert status in {200, 400, 413}, said


def test_memory_that_changes_during_requests(server: tools.Server, known: tools.Client, memory: Path) -> None:
    """Results are of no use then, and nobody else notices."""
    over = threading.Event()

    def scribble() -> None:
        with memory.open("r+b", buffering=0) as file:
            while not over.is_set():
                file.seek(0)
                file.write(os.urandom(2048))

    thread = threading.Thread(target=scribble)
    thread.start()
    try:
        for _ in range(50):
            assert infer(known, "a")[0] == 200
    finally:
        over.set()
        thread.join()
    assert len(server.front_ends()) == FRONT_ENDS


def test_strings_and_truths(tmp_path: Path, memory: Path) -> None:
    onnx = tools.onnx
    helper = onnx.helper
    infos = [helper.make_tensor_value_info(name, kind, [3]) for name, kind in (("s", 8), ("b", 9), ("t", 8), ("c", 9))]
    nodes = [helper.make_node("Identity", ["s"], ["t"]), helper.make_node("Not", ["b"], ["c"])]
    graph = helper.make_graph(nodes, "both", infos[:2], infos[2:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), tmp_path / "both.onnx")
    packed = b"".join(struct.pack("<I", len(each)) + each for each in (b"", b"two", "drei\u00df".encode()))
    memory.write_bytes(packed.ljust(100, b"\0") + bytes([0, 1, 7]).ljust(3996, b"\0"))
    with tools.serving(tmp_path, tmp_path / "both.onnx", "--allow-named-shm", PREFIX) as server, tools.client(server.address) as client:
        assert register(client, "a", memory.name)[0] == 200
        inputs = [
            {"name": "s", "shape": [3], "datatype": "BYTES", "parameters": place("a", 0, len(packed))},
            {"name": "b", "shape": [3], "datatype": "BOOL", "parameters": place("a", 100, 3)},
        ]
        outputs = [{"name": "t", "parameters": place("a", 200, 100)}, {"name": "c", "parameters": place("a", 300, 3)}]
        status, _, said = client.ask("/v2/models/both/infer", {"inputs": inputs, "outputs": outputs})
        assert status == 200, said
        assert said["outputs"][0]["parameters"] == place("a", 200, len(packed))
    assert memory.read_bytes()[200 : 200 + len(packed)] == packed
    assert memory.read_bytes()[300:303] == bytes([1, 0, 0])


def test_it_is_off_unless_allowed(tmp_path: Path, memory: Path) -> None:
    tools.save(tmp_path, "c", 1, tools.constant(1))
    with tools.serving(tmp_path, tmp_path) as server, tools.client(server.address) as client:
        assert register(client, "r", memory.name)[0] == 404
        assert client.ask("/v2/systemsharedmemory/status")[0] == 404
        assert infer(client, "r")[0] == 400
        assert "system_shared_memory" not in client.ask("/v2")[2]["extensions"]


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_tritonclient(server: tools.Server, kind: str) -> None:
    triton = pytest.importorskip(f"tritonclient.{kind}", reason="needs the package tritonclient")
    shm = pytest.importorskip("tritonclient.utils.shared_memory")
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    handle = shm.create_shared_memory_region("both", f"/{PREFIX}triton", 1024)
    try:
        with triton.InferenceServerClient(server.address if kind == "http" else server.grpc_address) as client:
            client.register_system_shared_memory("both", f"/{PREFIX}triton", 1024)
            said = client.get_system_shared_memory_status("both")
            assert (said[0]["byte_size"] if kind == "http" else said.regions["both"].byte_size) == 1024
            shm.set_shared_memory_region(handle, [x])
            given = triton.InferInput("x", [2, 4], "FP32")
            given.set_shared_memory("both", x.nbytes)
            wanted = triton.InferRequestedOutput("y")
            wanted.set_shared_memory("both", x.nbytes, offset=512)
            result = client.infer("c", [given], outputs=[wanted])
            assert result.get_output("y") is not None
            np.testing.assert_array_equal(shm.get_contents_as_numpy(handle, np.float32, [2, 4], 512), x + 1)
            client.unregister_system_shared_memory("both")
            with pytest.raises(Exception, match="no region 'both'"):
                client.infer("c", [given], outputs=[wanted])
            client.unregister_system_shared_memory()
    finally:
        shm.destroy_shared_memory_region(handle)
