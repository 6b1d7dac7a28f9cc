"""kill -9 of everything at once, at any moment: nothing is left, and nothing stands in the way of the next start.

What there is, is a runtime with a name, its workers, zygote and planning children, processes that write into the plan cache, and clients.
It is all killed while it starts, while models are loaded, and while requests run; then it is all started again under the same name.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import folders
import numpy as np
import onnx
import pytest
import small_models
from process_tools import WATCHDOG_S, wait_until

import aspen_mp
from aspen_mp.control.pool.core_leases import Leases
from aspen_mp.control.wire import run_directory

ROUNDS = 200 if os.environ.get("ASPEN_MP_TIER") == "long" else 6
NAME = "doomed"

CLIENT = """
import sys
sys.path.insert(0, sys.argv[1])
import folders
import numpy as np, aspen_mp, small_models
runtime = aspen_mp.connect("doomed")
model = runtime.load(small_models.conv_chain(12, 48, 48))
x = {"x": np.ones((1, 48, 48, 48), np.float32)}
print("loaded", flush=True)
while True:
    futures = [model.submit(x) for _ in range(4)]
    runtime.load(small_models.mlp("n", seed=int.from_bytes(__import__("os").urandom(2), "big"))).run({"x": np.ones((3, 16), np.float32)})
    [f.result() for f in futures]
"""


def stat_of(pid: int) -> tuple[int, str]:
    """(parent, state)"""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(words[1]), words[0]


def below(root: int) -> set[int]:
    """Every process under `root` that has not ended, but may be a zombie."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry)] = stat_of(int(entry))[0]
    found: set[int] = set()
    more = {root}
    while more:
        more = {pid for pid, above in parents.items() if above in more} - found
        found |= more
    return found


def reap(pid: int) -> bool:
    """Whether it is gone; its exit status is collected if it is ours by now."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    return not Path(f"/proc/{pid}").exists()


@pytest.fixture
def adopting() -> Iterator[None]:
    """Whatever loses its parent becomes this process's child, so that nothing gets out of sight."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER
    yield
    libc.prctl(36, 0, 0, 0, 0)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("ASPEN_MP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ASPEN_MP_LEASES", str(tmp_path / "leases"))
    onnx.save(small_models.conv_chain(6, 24, 24), tmp_path / "chain.onnx")
    return tmp_path


def segments() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith(f"aspen-{os.getuid()}-")}


def launch(place: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "aspen_mp.cli", "launch", "--name", NAME, "--workers", "2", "--log", "off", str(place / "chain.onnx")]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=place)


def start_client() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", CLIENT, folders.TESTS], stdout=subprocess.PIPE)


def is_up() -> bool:
    """A socket file is no sign of life: the dead leave theirs."""
    return run_directory.names().get(NAME, False) and _answers()


def _answers() -> bool:
    try:
        run_directory.connect(NAME).close()
    except aspen_mp.errors.AspenError:
        return False
    return True


def kill_everything(known: set[int], rng: random.Random) -> None:
    """Until nothing starts anything any more."""
    victims: set[int] = set()
    while doomed := [pid for pid in below(os.getpid()) - known - victims if Path(f"/proc/{pid}").exists()]:
        rng.shuffle(doomed)
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        victims |= set(doomed)
    wait_until(lambda: not [pid for pid in victims if not reap(pid)], "the killed to be gone")


def test_nothing_is_left_and_nothing_is_in_the_way(adopting: None, place: Path) -> None:
    rng = random.Random(os.environ.get("ASPEN_MP_SEED", "11"))
    before, known = segments(), below(os.getpid())
    with contextlib.closing(Leases(str(place / "leases"))) as leases:
        for number in range(ROUNDS):
            phase = number % 3
            processes = [launch(place)]
            try:
                if phase:
                    wait_until(is_up, f"round {number}: the runtime to start")
                    processes += [start_client() for _ in range(2)]
                if phase == 2:
                    for client in processes[1:]:
                        assert client.stdout is not None
                        assert client.stdout.readline() == b"loaded\n"
                time.sleep(rng.random() * (0.5, 0.8, 0.2)[phase])
            finally:
                kill_everything(known, rng)
                for process in processes:
                    process.wait(WATCHDOG_S)
                    if process.stdout is not None:
                        process.stdout.close()
            assert segments() == before, f"round {number}"
            assert below(os.getpid()) == known, f"round {number}"
            assert not run_directory.names().get(NAME, False), f"round {number}: somebody holds the name"
            assert leases.others() == [], f"round {number}: somebody holds a core"
    # After all that the name is free, the cores are free, and the plan cache is whole.
    x = {"x": np.random.default_rng(0).standard_normal((1, 24, 24, 24)).astype(np.float32)}
    with aspen_mp.Runtime(workers=2, name=NAME) as runtime:
        got = runtime.load(str(place / "chain.onnx")).run(x)["y"].tobytes()
        assert "core-shared" not in {event["event"] for event in runtime.status()["events"]} or len(os.sched_getaffinity(0)) < 2
        with aspen_mp.connect(NAME) as again:
            assert again.load(str(place / "chain.onnx")).run(x)["y"].tobytes() == got
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASPEN_MP_CACHE", "off")
        with aspen_mp.Runtime(workers=1) as fresh:
            assert fresh.load(str(place / "chain.onnx")).run(x)["y"].tobytes() == got
    wait_until(lambda: below(os.getpid()) == known or not [reap(pid) for pid in below(os.getpid()) - known], "the last ones")
