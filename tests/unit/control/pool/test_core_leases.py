"""Leases of cores: held while a worker runs there, seen by others, gone with their holder."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from aspen_mp.control.pool.core_leases import Leases
from aspen_mp.workers.topology import Core, Topology


def test_what_one_holds_the_other_sees(tmp_path: Path) -> None:
    one, other = Leases(str(tmp_path / "cores")), Leases(str(tmp_path / "cores"))
    assert one.hold(3)
    assert one.hold(3)  # a second worker of its own
    assert one.hold(5)
    assert one.others() == []
    assert other.others() == [3, 5]
    assert not other.hold(5)
    assert other.hold(7)
    assert one.others() == [7]
    one.drop(3)
    assert other.others() == [3, 5]
    one.drop(3)
    assert other.others() == [5]
    other.drop(5)
    assert other.others() == [5]
    one.close()
    assert other.others() == []
    other.close()


def test_a_shared_core_is_had_when_the_other_has_gone(tmp_path: Path) -> None:
    one, other = Leases(str(tmp_path / "cores")), Leases(str(tmp_path / "cores"))
    assert one.hold(2)
    assert not other.hold(2)
    assert (one.shared, other.shared) == ([], [2])
    assert other.retry() == []
    one.drop(2)
    assert other.retry() == [2]
    assert other.shared == []
    assert one.others() == [2]
    assert not one.hold(2)
    one.drop(2)
    assert one.shared == []
    one.close()
    other.close()


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    ours = Leases(str(tmp_path / "cores"))
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        Leases(str(tmp_path / "cores")).hold(1)
        os.write(write, b"!")
        signal.pause()
    os.read(read, 1)
    assert ours.others() == [1]
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert ours.others() == []
    ours.close()
    os.close(read)
    os.close(write)


def test_a_folder_that_is_not_to_be_trusted_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    for where in ("", str(tmp_path / "link"), str(tmp_path / "open"), str(tmp_path / "none" / "deeper")):
        leases = Leases(where)
        assert leases.hold(0)
        assert leases.others() == []
        leases.drop(0)
        leases.close()
    assert not any((tmp_path / "real").iterdir())


def test_taken_cores_come_last() -> None:
    cores = tuple(Core(cpu=k, package=0, node=0, siblings=(k,), l2=k, l3=0, rank=0, core_class="uniform", speed=1.0) for k in range(4))
    machine = Topology(cores=cores, quota=None, online=4)
    assert machine.select() == [0, 1, 2, 3]
    assert machine.select(taken=[0, 2]) == [1, 3]
    assert machine.select(3, taken=[0, 2]) == [1, 3, 0]
    assert machine.select(taken=[0, 1, 2, 3]) == [0, 1, 2, 3]
    assert machine.select(cores=[2], taken=[2]) == [2]
