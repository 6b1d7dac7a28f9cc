"""Memory by name, as Triton has it: off unless allowed, with a prefix, over HTTP and gRPC."""

from __future__ import annotations

import contextlib
import importlib
import os
import uuid
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import serving_tools as tools

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


def infer(client: tools.Client, region: str, offset: int = 0) -> tuple[int, Any]:
    def place(at: int) -> dict[str, Any]:
        return {"shared_memory_region": region, "shared_memory_offset": at, "shared_memory_byte_size": 32}

    inputs = [{"name": "x", "shape": [2, 4], "datatype": "FP32", "parameters": place(offset)}]
    status, _, said = client.ask("/v2/models/c/infer", {"inputs": inputs, "outputs": [{"name": "y", "parameters": place(1024)}]})
    return status, said


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
