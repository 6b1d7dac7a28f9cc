"""The plan cache's files: whole or not there, known by what they were made from, within their limit."""

from __future__ import annotations

import os
import select
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgpack
import msgspec
import pytest

from aspen_mp.control.planning import cache_process, cache_writer, plan_cache
from aspen_mp.control.planning.shape_buckets import Range, WantedBucket
from aspen_mp.control.wire import file_stamp
from aspen_mp.control.wire.protocol import Bind, Capacity, Slot, ValueInfo
from aspen_mp.planner.plan import plan_head
from aspen_mp.shm.bindings import _tables

SEGMENT = bytes(range(256)) * 10
WEIGHTS = plan_cache.WeightFile("0123456789abcdef" * 2, 8192, [("w", 64)])
SLOT = Slot("x", "float32", [2, 3], 0, 24)


def plan_file(layout: int = _tables.LAYOUT_HASH) -> bytes:
    note = plan_cache.Note("key", 64, [SLOT], [SLOT], True, False, 4096, [WEIGHTS], b"m", "", 2)
    metadata = {"cache": msgspec.msgpack.encode(note)}
    return plan_head.join(msgpack.packb({"layout": layout, "segment_bytes": len(SEGMENT), "metadata": metadata}), SEGMENT + bytes(48))


@pytest.fixture
def store(tmp_path: Path) -> plan_cache.Cache:
    return plan_cache.Cache(str(tmp_path / "cache"), 1 << 20)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"model")
    return path


def fill(store: plan_cache.Cache, model: Path) -> None:
    memory = os.memfd_create("weights")
    os.write(memory, bytes(64) + b"w" * (WEIGHTS.nbytes - 64))
    store.put_weights(WEIGHTS, memory)
    os.close(memory)
    store.put_plan("key", plan_file())
    info = [ValueInfo("x", "float32", [1, "n"])]
    store.put_model(
        plan_cache.Known(store.build, [plan_cache.File(str(model), file_stamp.of_change(model.stat()))], b"digest", "m", info, info)
    )


def read(store: plan_cache.Cache, model: Path, kind: str) -> object:
    if kind == "models":
        return store.model(str(model), file_stamp.of_change(model.stat()))
    if kind == "plans":
        return store.plan("key")
    fd = store.weights(WEIGHTS)
    if fd < 0:
        return None
    data = os.pread(fd, WEIGHTS.nbytes, 0)
    os.close(fd)
    return data[64:-8]  # between what the file says of itself


def test_a_digest_tells_contents_apart_in_every_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_writer, "PART", 1000)
    monkeypatch.setattr(cache_writer, "PIECE", 300)
    path = tmp_path / "file"

    def digest(data: bytes) -> bytes:
        path.write_bytes(data)
        with path.open("rb") as file:
            file.seek(7)  # the position does not matter
            return cache_writer.file_digest(file.fileno())

    whole = bytes(place * place // 7 % 251 for place in range(3500))
    others = [b"", whole[:1000], whole[:2000], whole[:-1], whole + b"\0", whole[1000:2000] + whole[:1000] + whole[2000:]]
    others += [whole[:at] + b"\xff" + whole[at + 1 :] for at in (0, 299, 300, 999, 1000, 2999, 3000, len(whole) - 1)]
    assert digest(whole) == digest(whole)
    assert len({digest(whole), *map(digest, others)}) == 1 + len(others)
    expected = digest(whole)

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert digest(whole) == expected


def test_what_is_put_in_comes_out(store: plan_cache.Cache, model: Path) -> None:
    assert [read(store, model, kind) for kind in ("models", "plans", "weights")] == [None] * 3
    for _ in range(2):  # a second time changes nothing
        fill(store, model)
        known = store.model(str(model), file_stamp.of_change(model.stat()))
        assert known is not None
        assert (known.digest, known.inputs[0].shape) == (b"digest", [1, "n"])
        entry = store.plan("key")
        assert entry is not None
        assert bytes(entry.segment) == SEGMENT
        assert entry.note.weights == [WEIGHTS]
        assert read(store, model, "weights") == b"w" * (WEIGHTS.nbytes - 72)
        assert sorted(Path(name).parent.name for name, _ in store.files()) == ["models", "plans", "weights"]


def test_the_plan_of_another_model(store: plan_cache.Cache) -> None:
    """A file under a name that is not its own is removed, not used."""
    store.put_plan("key", plan_file())
    store.put_plan("other", plan_file())
    assert store.plan("other") is None
    assert store.plan("other") is None
    assert store.plan("key") is not None


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def keeps_times(damage: Callable[[Path], object]) -> Callable[[Path], object]:
    """As a disk does it that loses a bit."""

    def unseen(path: Path) -> None:
        before = path.stat()
        damage(path)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    return unseen


def link(path: Path) -> None:
    path.rename(path.with_suffix(".other"))
    path.symlink_to(path.with_suffix(".other"))


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("kind", ["models", "plans", "weights"])
@pytest.mark.parametrize(
    "damage",
    [
        flip,
        link,
        pipe,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(os.urandom(WEIGHTS.nbytes)),
        lambda path: os.truncate(path, path.stat().st_size // 2),
        lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    ],
    ids=["flipped", "link", "pipe", "empty", "foreign", "truncated", "longer"],
)
def test_damage_is_noticed_and_removed(
    kind: str, damage: Callable[[Path], object], store: plan_cache.Cache, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(store, model)
    (name,) = [Path(name) for name, _ in store.files() if Path(name).parent.name == kind]
    damage(name)
    assert read(store, model, kind) is None
    if damage is not link or kind != "weights":
        assert "is ignored and removed" in capsys.readouterr().err
        assert not name.exists()
    fill(store, model)
    assert read(store, model, kind) is not None


@pytest.mark.parametrize("at", [0, 40, 64, WEIGHTS.nbytes // 2, WEIGHTS.nbytes - 1])
def test_weights_are_read_once_in_each_boot(
    at: int, store: plan_cache.Cache, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever byte of the file another boot finds changed, whatever its times say. In the boot in which it was written it is not read."""
    reads = []
    digest_of = plan_cache._digest_of
    monkeypatch.setattr(plan_cache, "_digest_of", lambda *file: reads.append(file) or digest_of(*file))
    fill(store, model)
    assert len(reads) == 1
    for boot in ("", "a", "a", "b"):
        if boot:
            monkeypatch.setattr(plan_cache, "_boot", lambda boot=boot: boot)
        later = plan_cache.Cache(str(Path(store.files()[0][0]).parent.parent), 1 << 20)
        before = len(reads)
        doubtful = later.doubtful(WEIGHTS)
        assert read(later, model, "weights") == b"w" * (WEIGHTS.nbytes - 72)
        assert len(reads) == before + doubtful
        assert not later.doubtful(WEIGHTS)
    assert len(reads) == 3
    (name,) = [Path(name) for name, _ in store.files() if Path(name).parent.name == "weights"]

    def one_bit(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[at] ^= 4
        path.write_bytes(data)

    keeps_times(one_bit)(name)
    monkeypatch.setattr(plan_cache, "_boot", lambda: "c")
    later = plan_cache.Cache(str(name.parent.parent), 1 << 20)
    assert later.weights(WEIGHTS) == -1
    assert "checksum" in capsys.readouterr().err
    assert not name.exists()


def test_a_copied_cache_is_read_again(store: plan_cache.Cache, model: Path) -> None:
    fill(store, model)
    (name,) = [Path(name) for name, _ in store.files() if Path(name).parent.name == "weights"]
    other = name.with_suffix(".copy")
    shutil.copy2(name, other)
    other.rename(name)
    assert store.doubtful(WEIGHTS)
    assert read(store, model, "weights") == b"w" * (WEIGHTS.nbytes - 72)
    assert not store.doubtful(WEIGHTS)


def test_times_that_cannot_be_set(store: plan_cache.Cache, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that this user can only read: each process remembers what it has read."""
    fill(store, model)

    def refuse(*args: object, **named: object) -> None:
        raise PermissionError

    monkeypatch.setattr("aspen_mp.system.filesystem.utime", refuse)
    monkeypatch.setattr(plan_cache, "_boot", lambda: "another")
    later = plan_cache.Cache(str(Path(store.files()[0][0]).parent.parent), 1 << 20)
    assert later.doubtful(WEIGHTS)
    assert read(later, model, "weights") is not None
    assert not later.doubtful(WEIGHTS)


def test_another_builds_files_are_not_used(store: plan_cache.Cache, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(store, model)
    store.put_plan("key", plan_file(layout=1))
    assert store.plan("key") is None
    assert "layout" in capsys.readouterr().err
    store.build = "another"
    assert store.model(str(model), file_stamp.of_change(model.stat())) is None
    assert capsys.readouterr().err == ""


def test_touched_models_are_read_again(store: plan_cache.Cache, model: Path) -> None:
    fill(store, model)
    os.utime(model, (1, 1))
    assert store.model(str(model), file_stamp.of_change(model.stat())) is None
    data = model.with_name("m.data")
    data.write_bytes(b"data")
    files = [plan_cache.File(str(path), file_stamp.of_change(path.stat())) for path in (model, data)]
    store.put_model(plan_cache.Known(store.build, files, b"digest", "m", [], []))
    assert store.model(str(model), files[0].stamp) is not None
    data.write_bytes(b"atad")
    assert store.model(str(model), files[0].stamp) is None
    data.unlink()
    assert store.model(str(model), files[0].stamp) is None


def test_keys_tell_everything_apart() -> None:
    base = {
        "build": "b",
        "digest": b"d",
        "options": ("f32", True),
        "stages": [[Bind("x", "float32", [1, 2], None)]],
        "capacities": [],
        "speeds": [1.0, 1.0],
        "rates": "",
        "within": None,
    }
    others = {
        "build": "c",
        "digest": b"e",
        "options": ("f32", False),
        "stages": [[Bind("x", "float32", [1, 2], b"value")]],
        "capacities": [Capacity("y", 8)],
        "speeds": [1.0, 0.5],
        "rates": "c",
        "within": WantedBucket(((0, 1),), (2,), (Range((2,), (31,)),)),
    }
    keys = {plan_cache.plan_key(**base)} | {plan_cache.plan_key(**{**base, name: value}) for name, value in others.items()}
    assert len(keys) == len(base) + 1
    assert plan_cache.plan_key(**base) in keys


def test_limit_and_what_writers_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = plan_cache.Cache(str(tmp_path), 1000)
    for k in range(5):
        store.put_plan(f"p{k}", bytes(300))
        os.utime(tmp_path / "plans" / f"p{k}.aspen", ns=(k * 10**9, 10**9))
    for name in ("fresh.0123.tmp", "sealed.0123.tmp"):
        (tmp_path / "weights" / name).write_bytes(bytes(10))
    os.utime(tmp_path / "weights" / "sealed.0123.tmp", ns=(time.time_ns(), 0))  # as a weight file just before it gets its name

    def left(kind: str) -> list[str]:
        return sorted(p.name for p in (tmp_path / kind).iterdir())

    store.trim()
    assert left("plans") == ["p2.aspen", "p3.aspen", "p4.aspen"]
    assert left("weights") == ["fresh.0123.tmp", "sealed.0123.tmp"]
    now = time.time_ns()
    monkeypatch.setattr("aspen_mp.system.clock.time_ns", lambda: now + 2 * 3600 * 10**9)
    store.trim(coming=500)
    assert left("plans") == ["p4.aspen"]
    assert left("weights") == []
    assert not store.room(1001)
    assert store.room(1000)


def test_a_warning_that_nobody_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever read standard error has gone."""
    store = plan_cache.Cache(str(tmp_path), 1 << 20)
    file = tmp_path / "plans" / "x.aspen"
    file.write_bytes(b"junk")
    read, write = os.pipe()
    os.close(read)
    with suppress(BrokenPipeError), open(write, "w", buffering=1) as nobody:
        monkeypatch.setattr("sys.stderr", nobody)
        found = store.plan("x")
        assert found is None
        monkeypatch.undo()
    assert not file.exists()


def kept(number: int) -> cache_process.Kept:
    return cache_process.Kept(f"key{number}", plan_file(), [], None)


@pytest.fixture
def writer(store: plan_cache.Cache) -> Iterator[cache_process.WriterProcess]:
    found = cache_process.WriterProcess.start(store)
    assert found is not None
    yield found
    found.close()
    os.kill(found.pid, signal.SIGCONT)
    assert os.waitstatus_to_exitcode(os.waitpid(found.pid, 0)[1]) == 0


def test_nothing_waits_for_the_writing_process(store: plan_cache.Cache, writer: cache_process.WriterProcess) -> None:
    """However slowly it gets on. What there is no room for is planned again some day; all else is written when its maker has ended."""
    os.kill(writer.pid, signal.SIGSTOP)
    number = 0
    while writer.keep(kept(number), []):
        number += 1
    assert number > 50
    os.kill(writer.pid, signal.SIGCONT)
    writer.close()
    os.waitid(os.P_PID, writer.pid, os.WEXITED | os.WNOWAIT)
    assert sorted(Path(name).stem for name, _ in store.files()) == sorted(f"key{k}" for k in range(number))


def test_what_cannot_be_written_is_told(
    store: plan_cache.Cache, writer: cache_process.WriterProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the process that uses the runtime's streams, and once. The next plan is written all the same."""
    folder = tmp_path / "cache" / "plans"
    folder.rename(folder.with_suffix(".away"))
    assert writer.keep(kept(1), [])
    select.select([writer], [], [])
    folder.with_suffix(".away").rename(folder)
    assert writer.keep(kept(2), [])
    writer.close()
    os.waitid(os.P_PID, writer.pid, os.WEXITED | os.WNOWAIT)
    assert "No such file or directory" in capsys.readouterr().err
    assert [Path(name).stem for name, _ in store.files()] == ["key2"]


def unusable(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str, bool]:
    """A folder that cannot be a plan cache, part of the reason, and whether what lies there can be read all the same."""
    path = tmp_path / "cache"
    if kind in {"file", "below a file"}:
        path.touch()
        return (path, "not a folder", False) if kind == "file" else (path / "sub", "", False)
    plan_cache.Cache(str(path), 1 << 20)
    if kind == "others write":
        path.chmod(0o777)
        return path, "others can write", False
    if kind == "of another user":
        monkeypatch.setattr("aspen_mp.system.processes.getuid", lambda: path.stat().st_uid + 1)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "nothing"))  # a folder of runtimes would be another user's as well
        return path, f"belongs to user {path.stat().st_uid}", False
    if kind == "full":
        space = os.statvfs(path)
        monkeypatch.setattr("aspen_mp.system.filesystem.statvfs", lambda _: os.statvfs_result([*space[:4], 1, *space[5:]]))
        return path, "the disk is full", True
    access = os.access
    # The mode of a folder would not do: root may do anything.
    monkeypatch.setattr("aspen_mp.system.filesystem.access", lambda where, mode: not mode & os.W_OK and access(where, mode))
    return path, "read and written", True


@pytest.mark.parametrize("kind", ["file", "below a file", "others write", "of another user", "full", "not writable"])
def test_folders_that_cannot_be_used(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """The reason is said once, by this process and all that it forks; `aspen-mp doctor` says it, too."""
    path, why, readable = unusable(tmp_path, kind, monkeypatch)
    found = plan_cache.Cache.open(str(path), 1 << 20)
    assert (found is not None) == readable
    for _ in range(3):
        pid = os.fork()
        if not pid:
            if found is not None:
                found.warn_once("a later write fails")
                found.room(1 << 12)
            os._exit(0)
        os.waitpid(pid, 0)
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1
    assert str(path) in said[0]
    assert why in said[0]
    assert "ASPEN_MP_CACHE" in said[0]
    assert plan_cache.trouble(str(path))
    monkeypatch.setenv("ASPEN_MP_CACHE", str(path))
    from aspen_mp.tools import doctor

    findings = [each["text"] for each in doctor.examine()["findings"] if "plan cache" in each["text"]]
    assert len(findings) == 1
    assert str(path) in findings[0]


def test_a_folder_that_is_not_there_yet(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path / "a", tmp_path / "b" / "c" / "d"):
        assert not plan_cache.trouble(str(path))
        assert plan_cache.Cache.open(str(path), 1 << 20) is not None
        assert not plan_cache.trouble(str(path))
    assert not capfd.readouterr().err
