"""A runtime has ended, and somebody else listens where its handles lead: nothing reaches him, and nothing of his is believed."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import small_models

import aspen_mp
from aspen_mp.control.wire import identity, protocol, run_directory
from aspen_mp.control.wire.identity import Address
from aspen_mp.errors import AspenError, ProtocolError, RuntimeLost

WATCHDOG_S = 60.0
NOBODY = 65534
X = {"x": np.ones((4, 16), np.float32)}


def welcome(address: Address, proof: str = "") -> bytes:
    return protocol.encode(protocol.Welcome("", str(address), os.getpid(), 1, "forged", proof))


@contextlib.contextmanager
def forger(address: Address, *, uid: int | None = None, answer: bytes = b"") -> Iterator[Callable[[], bytes]]:
    """Another process, of the user `uid` if given, takes the name, answers whoever comes with `answer`, and tells what he said. What the
    block is given waits for that: for one client, who has to have come and gone."""
    ready, tell = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        heard = b"the forger failed"
        try:
            if uid is not None:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind("\0" + address.socket)
                listener.listen()
                listener.settimeout(WATCHDOG_S)
                os.write(ready[1], b"!")
                client, _ = listener.accept()
                with client:
                    client.settimeout(WATCHDOG_S)
                    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                        client.sendall(answer)
                    heard = b""
                    with contextlib.suppress(ConnectionResetError):
                        while part := client.recv(4096):
                            heard += part
        finally:
            os.write(tell[1], heard)
            os._exit(0)
    try:
        for fd in (ready[1], tell[1]):
            os.close(fd)
        assert os.read(ready[0], 1) == b"!"

        def heard() -> bytes:
            parts = b""
            while part := os.read(tell[0], 4096):
                parts += part
            return parts

        yield heard
    finally:
        for fd in (ready[0], tell[0]):
            os.close(fd)
        os.waitpid(pid, 0)


def orphans() -> tuple[Address, bytes]:
    """The address of a runtime that has ended, and pickled handles of it and of a model."""
    with aspen_mp.Runtime(workers=1) as runtime:
        model = runtime.load(small_models.mlp())
        return Address.parse(runtime._link.address), pickle.dumps((runtime, model))


def uses(kept: bytes) -> list[Callable[[], object]]:
    runtime, model = pickle.loads(kept)
    return [lambda: model.run(X), lambda: model.submit(X).result(WATCHDOG_S), runtime.status, lambda: runtime.load(small_models.mlp())]


@pytest.mark.parametrize("use", range(4))
def test_another_user(use: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root with two real users. Whoever is not root cannot make a process of another user's: he is told that he is another one himself,
    so that the socket is a stranger's to him."""
    address, kept = orphans()
    uid = NOBODY if os.getuid() == 0 else None
    with forger(address, uid=uid, answer=welcome(address)) as heard:
        if uid is None:
            monkeypatch.setattr("aspen_mp.system.processes.geteuid", lambda: NOBODY)
        with pytest.raises(ProtocolError, match=f"belongs to user {uid if uid is not None else os.getuid()}"):
            uses(kept)[use]()
        assert heard() == b""


def test_another_process_of_the_same_user() -> None:
    address, kept = orphans()
    with forger(address, answer=welcome(address)) as heard:
        with pytest.raises(RuntimeLost, match="has taken its name"):
            uses(kept)[0]()
        assert heard() == b""


@pytest.mark.parametrize("proof", ["", "00" * 16, "of another challenge"])
def test_one_whose_start_is_not_known_has_to_know_the_secret(monkeypatch: pytest.MonkeyPatch, proof: str) -> None:
    address, kept = orphans()
    if proof == "of another challenge":
        proof = identity.proof(address.secret, identity.challenge())
    monkeypatch.setattr(identity, "start_time", lambda pid: 0)
    with forger(address, answer=welcome(address, proof)) as heard:
        with pytest.raises(RuntimeLost, match="does not know the secret"):
            uses(kept)[0]()
        said = heard()
    assert address.secret.encode() not in said
    assert len(list(_messages(said))) == 1  # the greeting, and not a word more


def _messages(data: bytes) -> Iterator[protocol.Message]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data)
        receiver = protocol.server_receiver()
        receiver.read(ours)
        for message, _ in receiver.messages():
            yield message


def test_a_forked_child() -> None:
    """It has the handle by fork, and meets the forger when it uses it first."""
    with aspen_mp.Runtime(workers=1) as runtime:
        model, address = runtime.load(small_models.mlp()), Address.parse(runtime._link.address)
        go, said = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            os.read(go[0], 1)
            result = b"no error"
            try:
                model.run(X)
            except AspenError as error:
                result = str(error).encode()
            os.write(said[1], result)
            os._exit(0)
    with forger(address, answer=welcome(address)) as heard:
        os.write(go[1], b"!")
        assert b"has taken its name" in os.read(said[0], 4096)
        assert heard() == b""
    os.waitpid(pid, 0)
    for fd in (*go, *said):
        os.close(fd)


def test_the_socket_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder is this user's alone; a socket in it that is not his is not believed either."""
    with aspen_mp.Runtime(workers=1, name="test-forged-name"):
        monkeypatch.setattr("aspen_mp.system.processes.geteuid", lambda: os.getuid() + 1)
        with pytest.raises(ProtocolError, match=f"belongs to user {os.getuid()}"):
            aspen_mp.connect("test-forged-name")
        monkeypatch.undo()
        aspen_mp.connect("test-forged-name").close()


def test_handles_still_lead_to_their_runtime() -> None:
    with aspen_mp.Runtime(workers=1) as runtime:
        model = runtime.load(small_models.mlp())
        expected = model.run(X)["y"].tobytes()
        _, again = pickle.loads(pickle.dumps((runtime, model)))
        results: list[bytes] = []
        threads = [threading.Thread(target=lambda: results.append(again.run(X)["y"].tobytes())) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WATCHDOG_S)
        assert results == [expected] * 4


def test_addresses_are_written_and_read(monkeypatch: pytest.MonkeyPatch) -> None:
    listener, address = run_directory.listen_unnamed()
    listener.close()
    assert Address.parse(str(address)) == address
    assert address.started == identity.start_time(os.getpid()) > 0
    assert address.secret not in repr(address)
    assert identity.start_time(2**22 + 1) == 0
