"""Levels of cores: taken while a worker runs there, counted by others, gone with their holder."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from aspen_mp.control.pool.core_leases import FILE, LEVELS, Leases
from aspen_mp.workers.topology import PhysicalCore, Topology


def test_what_one_holds_the_other_sees(tmp_path: Path) -> None:
    one, other = Leases(str(tmp_path / "cores")), Leases(str(tmp_path / "cores"))
    assert [one.hold(3), one.hold(3), one.hold(5)] == [0, 1, 0]
    assert one.others() == []
    assert other.others() == [3, 3, 5]
    assert [other.hold(5), other.hold(7)] == [1, 0]
    assert one.others() == [5, 7]
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
    one, other, third = (Leases(str(tmp_path / "cores")) for _ in range(3))
    assert [one.hold(2), other.hold(2), third.hold(2)] == [0, 1, 2]
    assert (one.shared, other.shared, third.ahead) == ([], [2], {2: 2})
    assert other.retry() == []
    one.drop(2)
    assert third.retry() == [2]  # it takes the place of the first: the second is not ahead of it any more
    assert third.ahead == {}
    assert (other.retry(), other.shared) == ([], [2])
    third.close()
    assert (other.retry(), other.shared) == ([2], [])
    assert one.others() == [2]
    one.close()
    other.close()


class Reference:
    """The same by dictionaries: who holds which levels of which core."""

    def __init__(self) -> None:
        self.levels: dict[tuple[int, int], int] = {}

    def lowest(self, cpu: int, below: int = 1 << 30) -> int | None:
        return next((k for k in range(min(below, 99)) if (cpu, k) not in self.levels), None)

    def of(self, who: int, cpu: int) -> list[int]:
        return sorted(k for (c, k), owner in self.levels.items() if c == cpu and owner == who)

    def retry(self, who: int) -> None:
        for cpu in {c for c, _ in self.levels}:
            for level in reversed(self.of(who, cpu)):
                own = self.of(who, cpu)
                lower = self.lowest(cpu, level) if own != list(range(len(own))) else None
                if lower is not None:
                    self.levels[cpu, lower] = self.levels.pop((cpu, level))


@pytest.mark.parametrize("seed", range(20))
def test_any_sequence_against_dictionaries(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    reference = Reference()
    with ExitStack() as stack:
        runtimes = [stack.enter_context(closing(Leases(str(tmp_path / "cores")))) for _ in range(4)]
        for _ in range(150):
            who, cpu = rng.randrange(4), rng.randrange(3)
            own = reference.of(who, cpu)
            step = rng.choice(("hold", "hold", "drop", "retry"))
            if step == "hold":
                level = reference.lowest(cpu)
                assert runtimes[who].hold(cpu) == level, f"seed {seed}"
                assert level is not None
                reference.levels[cpu, level] = who
            elif step == "drop" and own:
                runtimes[who].drop(cpu)
                del reference.levels[cpu, own[-1]]
            elif step == "retry":
                runtimes[who].retry()
                reference.retry(who)
            for k, leases in enumerate(runtimes):
                assert leases.others() == sorted(c for (c, _), owner in reference.levels.items() if owner != k), f"seed {seed}"
                ahead = {c: held[-1] + 1 - len(held) for c in range(3) if (held := reference.of(k, c))}
                assert leases.ahead == {c: n for c, n in ahead.items() if n}, f"seed {seed}"


def _holder(where: str, cpu: int, barrier: object, levels: object) -> None:
    leases = Leases(where)
    barrier.wait()  # type: ignore[attr-defined]
    levels.put(leases.hold(cpu))  # type: ignore[attr-defined]
    signal.pause()


def test_those_that_come_at_the_same_instant_get_different_levels_and_kills_free_them(tmp_path: Path) -> None:
    there = multiprocessing.get_context("fork")
    barrier, levels = there.Barrier(6), there.SimpleQueue()
    processes = [there.Process(target=_holder, args=(str(tmp_path / "cores"), 1, barrier, levels)) for _ in range(6)]
    for process in processes:
        process.start()
    with closing(Leases(str(tmp_path / "cores"))) as ours:
        assert sorted(levels.get() for _ in processes) == list(range(6))
        assert ours.others() == [1] * 6
        for left, process in zip(range(5, -1, -1), processes, strict=True):
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            assert ours.others() == [1] * left
        assert ours.hold(1) == 0


def test_a_removed_file_is_made_again(tmp_path: Path) -> None:
    """Cleaners of /tmp remove it. Who holds levels takes them in the new one at the next look."""
    with closing(Leases(str(tmp_path))) as old, closing(Leases(str(tmp_path))) as new:
        assert [old.hold(0), old.hold(0), new.hold(0)] == [0, 1, 2]
        (tmp_path / FILE).unlink()
        assert new.others() == []
        assert old.others() == [0]
        assert new.others() == [0, 0]
        with closing(Leases(str(tmp_path))) as third:
            assert Counter(third.others()) == {0: 3}


def test_everybody_may_lock_the_file(tmp_path: Path) -> None:
    mask = os.umask(0o077)
    try:
        Leases(str(tmp_path / "cores")).close()
    finally:
        os.umask(mask)
    assert (tmp_path / "cores" / FILE).stat().st_mode & 0o777 == 0o666
    assert (tmp_path / "cores").stat().st_mode & 0o7777 == 0o1777


def test_more_workers_than_levels(tmp_path: Path) -> None:
    with closing(Leases(str(tmp_path))) as one, closing(Leases(str(tmp_path))) as other:
        assert [one.hold(0) for _ in range(LEVELS + 2)] == list(range(LEVELS + 2))
        assert other.hold(0) == LEVELS
        assert len(other.others()) == LEVELS
        for _ in range(LEVELS + 2):
            one.drop(0)
        assert other.others() == []
        assert other.retry() == [0]


def test_a_folder_that_is_not_to_be_trusted_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / FILE)
    for where in ("", *(str(tmp_path / name) for name in ("link", "open", "pipe")), str(tmp_path / "none" / "deeper")):
        leases = Leases(where)
        assert [leases.hold(0), leases.hold(0)] == [0, 1]
        assert leases.others() == []
        leases.drop(0)
        leases.close()
    assert not any((tmp_path / "real").iterdir())


def machine(n: int) -> Topology:
    cores = tuple(
        PhysicalCore(cpu=k, package=0, node=0, siblings=(k,), l2=k, l3=0, rank=0, core_class="uniform", speed=1.0) for k in range(n)
    )
    return Topology(cores=cores, quota=None, online=n)


def test_taken_cores_come_last() -> None:
    assert machine(4).select() == [0, 1, 2, 3]
    assert machine(4).select(taken=[0, 2]) == [1, 3]
    assert machine(4).select(3, taken=[0, 2]) == [1, 3, 0]
    assert machine(4).select(taken=[0, 1, 2, 3]) == [0, 1, 2, 3]
    assert machine(4).select(cores=[2], taken=[2]) == [2]


def test_the_least_taken_core_is_the_first() -> None:
    assert machine(2).select(1, taken=[0, 1, 0]) == [1]
    assert machine(3).select(4, taken=[0, 0, 1]) == [2, 1, 2, 0]
    assert machine(3).select(taken=[0, 0, 1, 2]) == [1, 2, 0]
