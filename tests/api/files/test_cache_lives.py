"""Programs that end right after their requests leave a whole cache: whatever they had planned, the next one finds."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
import small_models
from process_tools import WATCHDOG_S, wait_until

import aspen_mp
from aspen_mp.control.planning import plan_cache
from aspen_mp.errors import AspenError

X = np.random.default_rng(5).standard_normal((2048, 16)).astype(np.float32)
WIDTH = 384
PROGRAM = """
import os, sys
import numpy as np
import aspen_mp
x = np.load(sys.argv[2])
model = aspen_mp.Runtime(workers=1).load(sys.argv[1])
for rows in sys.argv[3:]:
    model.run({"x": x[: int(rows)]})
os.write(1, b"answered")
os._exit(0)
"""
Life = Callable[[Path, list[int]], None]


def close(path: Path, rows: list[int]) -> None:
    with aspen_mp.Runtime(workers=1) as runtime:
        model = runtime.load(path)
        for n in rows:
            model.run({"x": X[:n]})


def kill(path: Path, rows: list[int]) -> None:
    runtime = aspen_mp.Runtime(workers=1)
    model = runtime.load(path)
    for n in rows:
        model.run({"x": X[:n]})
    os.kill(runtime.pid, signal.SIGKILL)
    with suppress(AspenError):
        runtime.close()


def leave(path: Path, rows: list[int]) -> None:
    """Ends without closing anything. Its output ends with it: what stays behind holds nobody's streams."""
    np.save(path.with_suffix(".npy"), X)
    program = [sys.executable, "-c", PROGRAM, str(path), str(path.with_suffix(".npy")), *map(str, rows)]
    read, write = os.pipe()
    stopped: list[psutil.Process] = []
    process = subprocess.Popen(program, stdout=write, stderr=write)
    os.close(write)
    try:
        assert os.read(read, 100) == b"answered"
        stopped = stop(writers(Path(os.environ["ASPEN_MP_CACHE"])))
        assert select.select([read], [], [], WATCHDOG_S)[0], "a process that is left has the program's streams"
        assert os.read(read, 100) == b""
        assert process.wait() == 0
    finally:
        os.close(read)
        process.kill()
        process.wait()
        for each in stopped:
            with suppress(psutil.NoSuchProcess):
                each.resume()


def stop(processes: list[psutil.Process]) -> list[psutil.Process]:
    stopped = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.suspend()
            stopped.append(process)
    return stopped


def ours(folder: Path) -> list[psutil.Process]:
    """Processes of runtimes that use this cache."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.name().startswith("aspen-") and process.environ().get("ASPEN_MP_CACHE") == str(folder):
                found.append(process)
    return found


def writers(folder: Path) -> list[psutil.Process]:
    found = []
    for process in ours(folder):
        with suppress(psutil.NoSuchProcess):
            if process.name() == "aspen-cache":
                found.append(process)
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASPEN_MP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    onnx.save(small_models.mlp("n", width=WIDTH), path)
    wait_until(lambda: time.time_ns() > path.stat().st_ctime_ns + 2 * plan_cache.SETTLED_NS, "the file to settle")
    return path


def files(folder: Path) -> dict[str, int]:
    return {f"{each.parent.name}/{each.name}": each.stat().st_ino for each in folder.glob("*/*")}


def check_whole(folder: Path) -> None:
    """Every file that has its name is as it was written. Interrupted ones have another name."""
    cache = plan_cache.Cache(str(folder), 1 << 30)
    for name in files(folder):
        kind, _, rest = name.partition("/")
        if kind != "plans" or rest.endswith(".tmp"):
            continue
        entry = cache.plan(rest.removesuffix(".aspen"))
        assert entry is not None
        for file in entry.note.weights:
            fd = os.open(cache.path_of(file), os.O_RDONLY)
            held = os.pread(fd, plan_cache.DIGEST_END - plan_cache.DIGEST_AT, plan_cache.DIGEST_AT)
            assert plan_cache._digest_of(fd, file.nbytes) == held
            os.close(fd)


def check_found(path: Path, rows: list[int], expected: dict[int, bytes], *, cached: bool = True) -> None:
    """A runtime makes these requests without planning anything. Its results are those of a runtime without a cache."""
    with aspen_mp.Runtime(workers=1) as runtime:
        model = runtime.load(path)
        for n in rows:
            assert model.run({"x": X[:n]})["y"].tobytes() == expected[n]
        plans = runtime.status()["models"][0]["plans"]
        assert not cached or all(plan["cached"] for plan in plans), plans


@pytest.fixture(scope="module")
def expected() -> dict[int, bytes]:
    """Results without a cache, each shape's by a plan of a model's own."""
    model = small_models.mlp("n", width=WIDTH)
    with aspen_mp.Runtime(workers=1) as runtime, pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASPEN_MP_CACHE", "off")
        return {n: runtime.load(model).run({"x": X[:n]})["y"].tobytes() for n in ROWS}


ROWS = (1, 2, 3, 5, 16, 40, 100, 300, 700, 1500)


@pytest.mark.parametrize("life", [close, kill, leave])
@pytest.mark.parametrize("seed", range(3))
def test_a_short_life_leaves_a_whole_cache(seed: int, life: Life, path: Path, folder: Path, expected: dict[int, bytes]) -> None:
    choose = random.Random(f"{seed} {life.__name__}")
    rows = choose.choices(ROWS, k=choose.randint(1, 8))
    life(path, rows)
    wait_until(lambda: not ours(folder), "the processes of the runtime to end")
    there = files(folder)
    assert not [name for name in there if name.endswith(".tmp")]
    check_whole(folder)
    check_found(path, rows, expected)
    wait_until(lambda: not ours(folder), "the processes of the runtime to end")
    assert files(folder) == there


@pytest.mark.parametrize("seed", range(4))
def test_a_writer_that_is_killed_leaves_no_half_file(seed: int, path: Path, folder: Path, expected: dict[int, bytes]) -> None:
    """Whenever it is: the next runtimes answer, and keep what is missing."""
    choose = random.Random(seed)
    rows = choose.choices(ROWS, k=6)
    with aspen_mp.Runtime(workers=1) as runtime:
        model = runtime.load(path)
        for place, n in enumerate(rows):
            model.run({"x": X[:n]})
            if place == seed:
                for process in writers(folder):
                    process.kill()
    wait_until(lambda: not ours(folder), "the processes of the runtime to end")
    check_whole(folder)
    check_found(path, rows, expected, cached=False)
    wait_until(lambda: not ours(folder), "the processes of the runtime to end")
    check_whole(folder)
    check_found(path, rows, expected)
