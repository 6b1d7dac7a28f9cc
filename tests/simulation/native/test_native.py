"""The simulation's modules: real workers and clients as greenlets give right answers, and a seed the same history, whoever is killed."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from typing import Any

import pytest
from folders import TESTS

pytest.importorskip("greenlet")

NATIVE = "simulation.native"
NOT_BUILT, FAULT = 3, 70
PRELUDE = f"""
import ctypes, os
import numpy as np
from {NATIVE} import modules
modules.enable()
from {NATIVE} import _hooks
from aspen_mp.shm.bindings import _control
from aspen_mp.shm.bindings._mapping import Mapping, Memfd, reserve

def address(buffer):
    return np.frombuffer(buffer, np.uint8).ctypes.data
"""


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In another process, because this one may have the ordinary modules."""
    return subprocess.run([sys.executable, *arguments], cwd=TESTS, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    done = python("-m", f"{NATIVE}.build")
    if done.returncode == NOT_BUILT:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stderr


def trial(first: int, last: int, *more: str) -> list[dict[str, Any]]:
    done = python("-m", f"{NATIVE}.trial", str(first), str(last), *more)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def program(code: str) -> subprocess.CompletedProcess[str]:
    return python("-c", PRELUDE + textwrap.dedent(code))


def fine(code: str) -> None:
    done = program(code)
    assert (done.returncode, done.stderr) == (0, "")


def test_histories() -> None:
    """Each request is answered rightly, wherever processes pause or are killed. A seed gives the same history alone and after others."""
    found = trial(0, 199)
    assert [each["seed"] for each in found] == list(range(200))
    assert not [each for each in found if "wrong" in each]
    assert trial(0, 199) == found
    assert trial(77, 78) == found[77:79]
    assert len({each["digest"] for each in found}) == len(found)
    killed = [each for each in found if each.get("kills")]
    assert sum(each["continued"] for each in killed) > len(killed)


def test_a_death_without_recovery_is_noticed() -> None:
    """Else nobody would know whether the trial kills workers where it matters."""
    found = trial(1, 19, "unrecovered")
    wrong = [each["seed"] for each in found if "wrong" in each]
    assert len(wrong) > 4
    assert all(seed % 2 for seed in wrong)


def test_places() -> None:
    """A word has the same place in all mappings of its file, and none where nothing is mapped."""
    fine("""
        memory, other = Memfd("one"), Memfd("other")
        reserve(memory.fd, 1 << 16), reserve(other.fd, 1 << 16)
        maps = [Mapping(memory.fd, 1 << 16, True), Mapping(memory.fd, 1 << 16, True), Mapping(other.fd, 1 << 16, True)]
        one, two, three = map(address, maps)
        assert one != two and _hooks.place(one + 52) == _hooks.place(two + 52)
        assert _hooks.place(one)[:2] == (os.fstat(memory.fd).st_dev, os.fstat(memory.fd).st_ino)
        assert _hooks.place(one + 52)[2] == 52 and _hooks.place(one + 52)[:2] != _hooks.place(three + 52)[:2]
        maps[0].borrow(4096, other.fd, 8192, 8192)  # pages 1 and 2 are those from 2 on of the other file
        assert [_hooks.place(one + 4096 * k + 8) for k in (0, 1, 2, 3)] == [
            _hooks.place(two + 8), _hooks.place(three + 8200), _hooks.place(three + 12296), _hooks.place(two + 12296)]
        assert _hooks.word(two) == 0
        maps[1].close()
        assert _hooks.place(two + 8) == (0, 0, two + 8) and _hooks.place(one + 8)[2] == 8
        _hooks.vacate(one + 8192, 4096)
        assert _hooks.place(one + 8200)[0] == 0 and _hooks.place(one + 12296)[2] == 12296 and _hooks.place(one + 4104)[2] == 8200
        maps[0].close()
        assert all(_hooks.place(one + 4096 * k)[0] == 0 for k in range(16))
    """)


def test_descriptors_may_have_other_numbers() -> None:
    fine("""
        real, closed = {}, []
        def make(name, flags):
            real[5000 + len(real)] = os.memfd_create(name, flags)
            return 4999 + len(real)
        _hooks.install(memory_make=make, memory_close=closed.append, descriptor=lambda number: real.get(number, number))
        memory = Memfd("name")
        assert memory.fd == 5000
        reserve(memory.fd, 8192)
        mapping = Mapping(memory.fd, 8192, True)
        memoryview(mapping)[5] = 7
        assert os.pread(real[5000], 1, 5) == b"\\7"
        assert _hooks.place(address(mapping) + 4)[1:] == (os.fstat(real[5000]).st_ino, 4)
        memory.close()
        assert closed == [5000]
        _hooks.install(memory_make=lambda name, flags: -24)
        try:
            Memfd("name")
        except OSError as error:
            assert error.errno == 24
        else:
            raise AssertionError
    """)


def test_time_passes_only_when_it_is_told_to() -> None:
    fine("""
        from aspen_mp.shm.bindings import _tally
        _hooks.set_now(12345678901)
        assert {_tally.now(), _hooks.now(), *_control.clock()} == {12345678901}
        buffers = [bytearray(n + 64) for n in (_control.CONTROL_BYTES, _control.DOORBELL_BYTES)]
        for buffer, role in zip(buffers, ("control", "doorbell")):
            _control.write_magic(buffer, role)
        table = _control.ControlTable(*buffers, create=True)  # it measures a clock, and would wait for ever
        pauses = []
        _hooks.install(pause=lambda held: pauses.append((held, _hooks.left())))
        _hooks.budget(2)
        table.set_stealing(True)
        assert pauses == [(True, 0)]
    """)


@pytest.mark.parametrize("hook", ["pause", "futex_wake"])
def test_an_exception_in_a_hook_ends_the_process(hook: str) -> None:
    done = program(f"""
        buffers = [bytearray(n + 64) for n in (_control.CONTROL_BYTES, _control.DOORBELL_BYTES)]
        for buffer, role in zip(buffers, ("control", "doorbell")):
            _control.write_magic(buffer, role)
        table = _control.ControlTable(*buffers, create=True)
        _hooks.install({hook}=lambda *arguments: 1 / 0)
        _hooks.budget(1)
        table.stop()
        print("not reached")
    """)
    assert (done.returncode, done.stdout) == (FAULT, "")
    assert f"a simulation's {hook} has failed" in done.stderr
    assert "ZeroDivisionError" in done.stderr


def test_ordinary_modules_come_too_late_or_not_at_all() -> None:
    done = python("-c", f"import aspen_mp\nfrom {NATIVE} import modules\nmodules.enable()")
    assert "RuntimeError: aspen_mp has been imported already" in done.stderr
    fine("""
        from simulation.native import build
        import importlib
        for module in build.MODULES:
            assert importlib.import_module(module.name).__file__ == str(build.place(module))
        from aspen_mp.shm import tables
        assert tables.LAYOUT_HASH == int(build.layout_hash(), 16)
    """)
