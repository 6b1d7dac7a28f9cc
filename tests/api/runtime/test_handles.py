"""Handles of runtimes and models in other processes: pickled ones connect when they are used."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import pickle
import socket
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker

import numpy as np
import pytest
import small_models

import aspen_mp
from aspen_mp.control.wire import run_directory
from aspen_mp.control.wire.identity import Address
from aspen_mp.errors import RequestError, RuntimeLost

WATCHDOG_S = 60.0
X = {"x": np.ones((4, 16), np.float32)}


def run(model: aspen_mp.Model) -> tuple[int, bytes, str]:
    return os.getpid(), model.run(X)["y"].tobytes(), model.name


def scale(runtime: aspen_mp.Runtime) -> int:
    runtime.add_workers(1)
    return runtime.load(small_models.mlp(seed=3)).run(X)["y"].size


@pytest.fixture
def helpers_of_multiprocessing() -> Iterator[None]:
    """Its processes that would stay until this one ends."""
    yield
    forkserver._forkserver._stop()
    resource_tracker._resource_tracker._stop()


@pytest.mark.usefixtures("helpers_of_multiprocessing")
@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_a_pool_of_processes_shares_one_model(method: str) -> None:
    with aspen_mp.Runtime(workers=1) as runtime:
        model = runtime.load(small_models.mlp(), name="shared")
        expected = model.run(X)["y"].tobytes()
        context = multiprocessing.get_context(method)
        with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
            results = [future.result(WATCHDOG_S) for future in [pool.submit(run, model) for _ in range(6)]]
            assert pool.submit(scale, runtime).result(WATCHDOG_S) == model.run(X)["y"].size
        assert {(y, name) for _, y, name in results} == {(expected, "shared")}
        assert os.getpid() not in {pid for pid, _, _ in results}
        assert len(runtime.workers) == 2
        assert len(runtime.status()["models"]) == 1


def test_in_the_same_process() -> None:
    with aspen_mp.Runtime(workers=1) as runtime:
        model = runtime.load(small_models.mlp())
        again = pickle.loads(pickle.dumps(model))
        model.unload()  # held by the other handle alone? not before that has been used
        with pytest.raises(RequestError, match="no longer loaded"):
            again.run(X)
        model = runtime.load(small_models.mlp())
        again = pickle.loads(pickle.dumps(model))
        expected = again.run(X)["y"]
        model.unload()
        np.testing.assert_array_equal(again.run(X)["y"], expected)
        with pytest.raises(RequestError, match="unloaded"):
            pickle.dumps(model)
        other = pickle.loads(pickle.dumps(runtime))
        assert other.pid == runtime.pid
        assert other.load(small_models.mlp()).run(X)["y"].shape == expected.shape
        again.unload()
        other.close()
        with pytest.raises(RuntimeLost, match="closed"):
            other.status()
        assert runtime.status()["runtime"]["ready"]


def test_after_the_runtime_s_end() -> None:
    with aspen_mp.Runtime(workers=1) as runtime:
        kept = pickle.dumps((runtime, runtime.load(small_models.mlp())))
    late, model = pickle.loads(kept)
    for use in (late.status, lambda: model.run(X)):
        with pytest.raises(RuntimeLost, match="has ended"):
            use()


def test_the_way_in_is_for_the_same_user_and_the_same_build() -> None:
    with aspen_mp.Runtime(workers=1) as runtime:
        address = Address.parse(runtime._link.address)
        sock = run_directory.connect_to(address)
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        sock.settimeout(WATCHDOG_S)
        while sock.recv(4096):  # the refusal, then the end
            pass
        sock.close()
        assert runtime.status()["runtime"]["ready"]
    with pytest.raises(OSError, match="refused"), socket.socket(socket.AF_UNIX) as late:
        late.connect("\0" + address.socket)
