"""Whatever comes in on the control socket: it is refused with a word, costs its sender alone, and the runtime goes on.

The socket is a user's own, so this is about programs that are broken or of another version rather than about attackers; the rules are the
same. Every test ends with a request of a client that behaves (`town`), and finds the planner process as it was.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import small_models
from guests import HELLO, LAYOUT, WATCHDOG_S, Guest, descriptors, frame, packed
from process_tools import asleep, wait_until

import aspen_mp
from aspen_mp.control.wire import connection, listener, protocol, run_directory
from aspen_mp.control.wire.listener import Listener
from aspen_mp.errors import ResourceLimitError

LONG = os.environ.get("ASPEN_MP_TIER") == "long"
NAME = "hostile"
X = {"x": np.ones((4, 16), np.float32)}


@pytest.fixture(scope="module")
def shared_runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[aspen_mp.Runtime]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("run")))
        with aspen_mp.Runtime(workers=1, name=NAME) as runtime:
            yield runtime


@pytest.fixture(scope="module")
def good(shared_runtime: aspen_mp.Runtime) -> Callable[[], None]:
    model = shared_runtime.load(small_models.mlp())
    expected = model.run(X)["y"].tobytes()

    def check() -> None:
        assert model.run(X)["y"].tobytes() == expected

    return check


@pytest.fixture(autouse=True)
def town(shared_runtime: aspen_mp.Runtime, good: Callable[[], None]) -> Iterator[aspen_mp.Runtime]:
    """The runtime under attack. Afterwards: it answers, and has the clients, models and descriptors that it had."""
    pid, before = shared_runtime.pid, descriptors(shared_runtime.pid)
    yield shared_runtime
    good()
    deadline = time.monotonic() + WATCHDOG_S
    while descriptors(pid) > before or len(shared_runtime.status()["clients"]) > 1:
        assert time.monotonic() < deadline, f"{descriptors(pid)} descriptors, {before} before"
        time.sleep(0.01)
    assert shared_runtime.pid == pid
    assert len(shared_runtime.status()["models"]) == 1


# ------------------------------------------------------------------------------------------------------- not a client yet

UNWELCOME = {
    "http": (b"GET / HTTP/1.1\r\n\r\n", "not an aspen-mp frame"),
    "zeros": (bytes(4096), "not an aspen-mp frame"),
    "oversize": (frame(b"")[:-8] + (protocol.MAX_FRAME + 1).to_bytes(4, "little") + b"\0\0\x41\x4d", "over the limit"),
    "4 GiB": (b"\xff\xff\xff\xff\0\0\x41\x4d", "over the limit"),
    "too many announced": (packed(HELLO, 5), "over the limit"),
    "announced, not sent": (packed(HELLO, 2), "2 descriptors, 0 came"),
    "no msgpack": (frame(b"\xc1"), "malformed"),
    "cut short": (frame(msgspec.msgpack.encode(HELLO)[:-3]), "malformed"),
    "array of 4 billion": (frame(b"\xdd\xff\xff\xff\xff"), "malformed"),
    "string of 4 billion": (frame(b"\x92\xa6Status\xdb\xff\xff\xff\xff"), "malformed"),
    "nested": (frame(b"\x91" * 500_000), "malformed"),
    "map": (packed({"type": "Hello", "version": 2}), "malformed"),
    "duplicate keys": (frame(b"\x82\xa1a\x01\xa1a\x02"), "malformed"),
    "other build": (packed(["Hello", protocol.VERSION, "0" * 16, "0.0"]), "Use one build"),
    "other version": (packed(["Hello", 99, LAYOUT, "9.9"]), "Use one build"),
    "not greeted": (packed(["Status", 1]), "before Hello"),
    "greeted twice": (packed(HELLO) * 2, "Hello twice"),
}


@pytest.mark.parametrize("case", UNWELCOME)
def test_unwelcome(case: str) -> None:
    data, reason = UNWELCOME[case]
    with Guest(NAME, greet=False) as guest:
        guest.send(data)
        failed = guest.refused()
        assert failed.error == "ProtocolError"
        assert reason in failed.text


def test_cut_short_at_every_byte(town: aspen_mp.Runtime) -> None:
    whole = packed(HELLO) + packed(["Status", 7])
    for n in range(len(whole)):
        with Guest(NAME, greet=False) as guest:
            guest.send(whole[:n])


def test_bytes_one_by_one() -> None:
    """Slow is not wrong: what is complete in time counts."""
    with Guest(NAME, greet=False) as guest:
        for byte in packed(HELLO) + packed(["Status", 7]):
            guest.send(bytes([byte]))
        assert isinstance(guest.answer(), protocol.Welcome)
        assert isinstance(guest.answer(), protocol.StatusReply)


def test_silence_and_dribble_are_ended() -> None:
    """A handshake, and a frame once begun, must end within 5 s, however the bytes come; whoever completes frames has no such limit."""
    with Guest(NAME, greet=False) as silent, Guest(NAME, greet=False) as slow, Guest(NAME) as stuck, Guest(NAME) as busy:
        stuck.send(packed(["Status", 1])[:-1])
        begun = time.monotonic()
        piece, last = 0, b""
        while time.monotonic() - begun < protocol.HANDSHAKE_S + 1.5:
            slow.send(frame(bytes(5000))[piece : piece + 1])
            piece += 1
            # Always one frame begun and not complete, as of a client whose frames come faster than they are read.
            whole = packed(["Status", piece])
            busy.send(last + whole[:-1])
            last = whole[-1:]
            time.sleep(0.02)
        busy.send(last)
        assert "no handshake" in silent.refused().text
        assert "no handshake" in slow.refused().text
        assert "begun and not completed" in stuck.refused().text
        assert [busy.answer().id for _ in range(piece)] == list(range(1, piece + 1))


def test_other_users() -> None:
    """Nobody else gets in: not by name (the folder is private), not by address."""
    refused: list[protocol.Failed] = []
    told = SimpleNamespace(send=refused.append)
    stub = SimpleNamespace(_connections={}, _rest=None, _make_room=None)
    stub._adopt = lambda sock: SimpleNamespace(refuse=told.send)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listener, "peer", lambda sock: (1, os.getuid() + 1, 1))
        Listener._accept(stub, SimpleNamespace(accept=lambda: (None, None)))  # type: ignore[arg-type]
    assert f"belongs to user {os.getuid()}, not to user {os.getuid() + 1}" in str(refused[0])


@pytest.mark.parametrize("way", ["name", "address"])
def test_another_user_indeed(town: aspen_mp.Runtime, way: str) -> None:
    if os.getuid():
        return  # only root can become somebody else; the test above holds for others
    address = town._session.welcome.address
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = "nothing"
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            run_directory.check_peer = lambda *_: None  # a client that does not mind
            with Guest(NAME if way == "name" else address, greet=False) as guest:
                guest.send(packed(HELLO))
                said = guest.refused().text
        except BaseException as error:
            said = type(error).__name__
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    assert said in {"PermissionError", "ProtocolError"} if way == "name" else "not to user 65534" in said


# ------------------------------------------------------------------------------------------------------------ descriptors


@pytest.fixture
def null() -> Iterator[int]:
    fd = os.open("/dev/null", os.O_RDONLY)
    yield fd
    os.close(fd)


def test_descriptor_floods(null: int) -> None:
    """More than a message has, with nothing, with half a frame, frame after frame: refused, and closed at the other end."""
    floods: list[list[tuple[bytes, int]]] = [
        [(packed(["Status", 1]), 253)],
        [(packed(["Status", 1]), 3)],
        [(b"\0", 60)] * 10,
        [(packed(["Load", 1, "", "m", {"instances": 1}], 1), 2)],
        [(packed(["Load", 1, "", "m", {"instances": 1}], 4), 4)] * 5,
        [(frame(bytes(900_000))[:1], 4), (b"\0", 4), (b"\0", 4)],
    ]
    for flood in floods:
        with Guest(NAME) as guest:
            for data, n in flood:
                if not guest.send(data, [null] * n):
                    break
            guest.send(packed(["Status", 9]))
            assert all(
                isinstance(m, protocol.Failed | protocol.StatusReply) for m in (guest.rest() if len(flood) != 5 else [guest.answer()])
            )


def test_load_of_strange_descriptors(town: aspen_mp.Runtime, null: int) -> None:
    """A model is a regular file; what cannot be mapped, or would keep its reader waiting, is none."""
    pipe, other = os.pipe()
    folder = os.open("/", os.O_RDONLY)
    empty = os.memfd_create("empty")
    write_only = os.open(f"/proc/self/fd/{empty}", os.O_WRONLY)
    os.ftruncate(empty, 4096)
    with Guest(NAME) as guest:
        for fd, what in (
            (null, "a device"),
            (pipe, "a pipe"),
            (folder, "a directory"),
            (guest.sock.fileno(), "a socket"),
            (write_only, ""),
        ):
            failed = guest.ask("Load", 5, "", "odd", {"instances": 1}, fds=[fd])
            assert isinstance(failed, protocol.Failed)
            assert failed.error == "ModelParseError", failed
            assert what in failed.text
    for fd in (pipe, other, folder, empty, write_only):
        os.close(fd)


def test_more_connections_than_places(town: aspen_mp.Runtime) -> None:
    """Those that never say who they are make room for those that do."""
    silent = [Guest(NAME, greet=False) for _ in range(400)]
    with aspen_mp.connect(NAME) as other:
        assert other.status()["runtime"]["pid"] == town.pid
    assert sum(bool(guest.rest()) for guest in silent[:100]) == 100
    for guest in silent:
        guest.close()


def test_more_clients_than_places(town: aspen_mp.Runtime) -> None:
    clients = [Guest(NAME) for _ in range(254)]
    with pytest.raises(ResourceLimitError, match="255 clients are connected"):
        aspen_mp.connect(NAME)
    clients.pop().close()
    deadline = time.monotonic() + WATCHDOG_S
    while len(town.status()["clients"]) > 254:
        assert time.monotonic() < deadline
    with aspen_mp.connect(NAME):
        pass
    for client in clients:
        client.close()


def test_no_descriptors_left(town: aspen_mp.Runtime, good: Callable[[], None]) -> None:
    """The planner process runs out of descriptors: whoever needs one is told so, and it accepts again when it has some."""
    old = resource.prlimit(town.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(town.pid, resource.RLIMIT_NOFILE, (descriptors(town.pid) + 2, old[1]))
    with ExitStack() as stack:
        stack.callback(resource.prlimit, town.pid, resource.RLIMIT_NOFILE, old)
        silent = [stack.enter_context(Guest(NAME, greet=False)) for _ in range(20)]
        with pytest.raises(ResourceLimitError, match=r"descriptors|open files"):
            town.load(small_models.conv_chain(2, 16, 16))
        good()
        # It asks again at times for what it cannot have, and sleeps in between.
        wait_until(lambda: all(asleep(town.pid) for _ in range(20)), "the planner process to sleep")
        resource.prlimit(town.pid, resource.RLIMIT_NOFILE, old)
        for guest in silent:
            guest.send(packed(HELLO))
        assert all(isinstance(guest.answer(), protocol.Welcome | protocol.Failed) for guest in silent)


# --------------------------------------------------------------------------------------------------------- messages of clients

NASTY = [None, True, -1, 0, 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 62, (1 << 64) - 1, 1.5, float("nan"), "", "x" * 5000, "\0", "\ud7ff"]
NASTY += [b"", b"\xff" * 100, [], [[]], [None], [-1], [1 << 62] * 64, [0] * 65, {}, {"a": 1}, [["x", "float32", [1], None]]]
MESSAGES: dict[str, list[Any]] = {
    "Load": [1, "/nowhere", "m", {"instances": 1}, 1.0],
    "Adopt": [2, 99],
    "Lend": [2, 99],
    "MakePlan": [3, 1, [[["x", "float32", [4, 16], None]]], []],
    "Unload": [4, 99],
    "Data": [5, 4096],
    "DropData": [6, 77],
    "Explain": [7, 1, 1, 0],
    "Resize": [8, 0, 0, -1, []],
    "Status": [9],
}


@pytest.mark.parametrize("name", MESSAGES)
def test_wrong_fields(town: aspen_mp.Runtime, name: str) -> None:
    """Every field of every message with values of other types and sizes: an answer, or the end of the connection with a reason."""
    with ExitStack() as stack:
        guest = stack.enter_context(Guest(NAME))
        for position in range(len(MESSAGES[name]) + 1):
            for nasty in NASTY:
                fields = [*MESSAGES[name][:position], nasty, *MESSAGES[name][position + 1 :]]
                if name == "Resize" and (nasty in (1, [0] * 65) or (position == 3 and nasty == 0)):
                    continue  # that would be a wish to be granted
                if name == "Data" and position == 1 and nasty in (1 << 31, (1 << 32) - 1, 1 << 32):
                    continue  # and so would that, with the machine's memory
                answer = guest.ask(name, *fields)
                assert answer is not None, f"{name} {fields}: hung up without a word"
                if isinstance(answer, protocol.Failed) and answer.id == 0 and fields[0] != 0:
                    assert answer.error == "ProtocolError", f"{name} {fields}: {answer}"
                    guest.close()
                    guest = stack.enter_context(Guest(NAME))
                elif isinstance(answer, protocol.Failed):
                    assert "internal error" not in answer.text, f"{name} {fields}: {answer}"
                else:
                    assert not isinstance(answer, protocol.Welcome), f"{name} {fields}: {answer}"


STRANGE_PLANS: dict[str, tuple[Any, Any, str]] = {
    "surplus input": ([[["x", "float32", [4, 16], None], ["z", "float32", [1], None]]], [], "RequestError"),
    "no bindings": ([[]], [], "UnsupportedModelError"),
    "no type": ([[["x", "float33", [4, 16], None]]], [], "RequestError"),
    "wrong type": ([[["x", "float64", [4, 16], None]]], [], "RequestError"),
    "object": ([[["x", "object", [4, 16], None]]], [], "RequestError"),
    "wrong shape": ([[["x", "float32", [4, 17], None]]], [], "RequestError"),
    "huge shape": ([[["x", "float32", [(1 << 62) - 1, (1 << 62) - 1], None]]], [], "RequestError"),
    "short value": ([[["x", "float32", [4, 16], b"123"]]], [], "RequestError"),
    "long value": ([[["x", "float32", [4, 16], bytes(4 * 65)]]], [], "RequestError"),
    "a stage that is not there": ([[["x", "float32", [4, 16], None]]] * 2, [], "RequestError"),
    "many stages": ([[["x", "float32", [4, 16], None]]] + [[]] * 9999, [], "RequestError"),
    "name twice": ([[["x", "float32", [4, 17], None], ["x", "float32", [4, 16], None]]], [], "RequestError"),
}


def test_strange_plans() -> None:
    """All in one test, because the descriptors of a planning child stay with the planner process for as long as it is kept."""
    for case, (stages, capacities, error) in STRANGE_PLANS.items():
        with Guest(NAME) as guest:
            memory = os.memfd_create("model")
            os.write(memory, small_models.mlp().SerializeToString())
            loaded = guest.ask("Load", 1, "", "mine", {"instances": 1}, fds=[memory])
            os.close(memory)
            assert isinstance(loaded, protocol.Loaded)
            answer = guest.ask("MakePlan", 2, loaded.model, stages, capacities)
            assert isinstance(answer, protocol.Failed), (case, answer)
            assert answer.error == error, (case, answer)
            assert isinstance(guest.ask("MakePlan", 3, loaded.model, [[["x", "float32", [4, 16], None]]], []), protocol.Planned), case


def test_capacities_beyond_memory(town: aspen_mp.Runtime) -> None:
    with Guest(NAME) as guest:
        memory = os.memfd_create("model")
        os.write(memory, small_models.nonzero().SerializeToString())
        loaded = guest.ask("Load", 1, "", "mine", {"instances": 1}, fds=[memory])
        os.close(memory)
        answer = guest.ask("MakePlan", 2, loaded.model, [[["x", "float32", [1 << 40], None]]], [])
        assert isinstance(answer, protocol.Failed)
        assert answer.error == "ResourceLimitError", answer
        answer = guest.ask("MakePlan", 3, loaded.model, [[["x", "float32", [9], None]]], [["c", (1 << 62) - 1]])
        assert isinstance(answer, protocol.Failed)
        assert answer.error == "ResourceLimitError", answer
        assert isinstance(guest.ask("MakePlan", 4, loaded.model, [[["x", "float32", [9], None]]], []), protocol.Planned)


def test_more_questions_than_may_wait(town: aspen_mp.Runtime) -> None:
    """A client that asks for plan after plan is stopped before its questions fill the planner process's memory."""
    with Guest(NAME) as guest:
        memory = os.memfd_create("model")
        os.write(memory, small_models.mlp("n").SerializeToString())
        loaded = guest.ask("Load", 1, "", "mine", {"instances": 1}, fds=[memory])
        os.close(memory)
        n = connection.MAX_UNANSWERED + 50
        shapes = [packed(["MakePlan", k + 2, loaded.model, [[["x", "float32", [k + 1, 17], None]]], []]) for k in range(n)]
        guest.send(b"".join(shapes))
        answers: dict[int, protocol.Failed] = {}
        while len(answers) < n:
            answer = guest.answer()
            assert isinstance(answer, protocol.Failed | protocol.Progress), answer
            if isinstance(answer, protocol.Failed):
                answers[answer.id] = answer
        assert {a.error for a in answers.values()} == {"RequestError", "ResourceLimitError"}
        assert isinstance(guest.ask("MakePlan", 1000, loaded.model, [[["x", "float32", [4, 16], None]]], []), protocol.Planned)


def test_others_things(town: aspen_mp.Runtime) -> None:
    """Models, data segments and plans of others are not there."""
    model = town.status()["models"][0]["id"]
    plan = town.status()["models"][0]["plans"][0]["plan"]
    with Guest(NAME) as guest:
        for question in (["MakePlan", 1, model, MESSAGES["MakePlan"][2], []], ["Unload", 1, model], ["DropData", 1, 1], ["DropData", 1, 0]):
            answer = guest.ask(*question)
            assert isinstance(answer, protocol.Failed)
            assert answer.error == "RequestError"
            assert "not loaded" in answer.text or "does not exist" in answer.text
        assert {guest.ask("Explain", 2, plan, generation, 0).text for generation in range(1, 10)} == {"op 0"}
        assert isinstance(guest.ask("Adopt", 3, model), protocol.Loaded)  # to use a model together is what a runtime is for
        planned = guest.ask("MakePlan", 4, model, MESSAGES["MakePlan"][2], [])
        assert planned.plan == plan
        assert planned.generation < 10
        assert guest.ask("Explain", 5, plan, planned.generation, 0).text != "op 0"
        assert guest.ask("Explain", 6, plan, planned.generation + 1, 0).text == "op 0"


def test_answers_that_nobody_reads(town: aspen_mp.Runtime, good: Callable[[], None]) -> None:
    """A client that asks and does not listen is dropped; nobody waits for it."""
    with Guest(NAME) as guest:
        guest.sock.settimeout(1)
        question = packed(["Status", 1]) * 200
        try:
            for _ in range(1000):
                if not guest.send(question):
                    break
        except TimeoutError:
            pass  # the planner process has stopped reading, or is busy answering: it must not be for ever
        good()
        guest.sock.settimeout(WATCHDOG_S)


# ------------------------------------------------------------------------------------------------------------------- random


def mutated(rng: np.random.Generator) -> bytes:
    """A few messages, some as they should be, others damaged as bytes or as values."""
    out = b""
    for _ in range(int(rng.integers(1, 5))):
        name = str(rng.choice([m for m in MESSAGES if m != "Resize"]))
        fields = [name, *MESSAGES[name]]
        kind = rng.random()
        if kind < 0.4:
            fields[int(rng.integers(len(fields)))] = NASTY[int(rng.integers(len(NASTY)))]
        elif kind < 0.5:
            fields = fields[: int(rng.integers(len(fields)))] + [0] * int(rng.integers(3))
        data = bytearray(packed(fields, int(rng.choice([0, 0, 0, 1, 4, 9]))))
        if rng.random() < 0.4:
            for _ in range(int(rng.integers(1, 4))):
                data[int(rng.integers(len(data)))] = int(rng.integers(256))
        out += bytes(data[: int(rng.integers(len(data)))]) if rng.random() < 0.1 else bytes(data)
    return out


@pytest.mark.parametrize("seed", range(40 if LONG else 2))
def test_random_frames(town: aspen_mp.Runtime, good: Callable[[], None], seed: int, null: int) -> None:
    rng = np.random.default_rng(seed)
    for k in range(150):
        with Guest(NAME, greet=bool(rng.random() < 0.8)) as guest:
            fds = [null] * int(rng.integers(1, 5)) if rng.random() < 0.2 else []
            guest.send(mutated(rng), fds)
            if rng.random() < 0.5:
                guest.sock.shutdown(1)
                found = guest.rest()
                wrong = [m for m in found if isinstance(m, protocol.Failed) and "internal error" in m.text]
                assert not wrong, f"seed {seed}, {k}: {wrong}"
        if k % 50 == 0:
            good()


def test_the_socket_of_a_name_is_private(town: aspen_mp.Runtime) -> None:
    folder = run_directory.path()
    assert os.stat(folder).st_mode & 0o777 == 0o700
    assert os.stat(f"{folder}/{NAME}.sock").st_mode & 0o777 == 0o600
