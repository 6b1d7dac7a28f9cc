"""Weights in files of the plan cache are told from those in memory, also when the file has lost its name. Those that were cut are
refused."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aspen_mp.control.memory import weight_files
from aspen_mp.control.memory.segments import Borrowed
from aspen_mp.control.models.plan_states import BuiltPlan
from aspen_mp.control.models.publishing import Publisher
from aspen_mp.control.planning.planner_child import StagePlanned
from aspen_mp.shm.errors import PlanError
from aspen_mp.shm.segments import Segment


@pytest.mark.parametrize("named", [True, False])
def test_a_file_of_the_cache(tmp_path: Path, named: bool) -> None:
    page = bytearray(os.sysconf("SC_PAGE_SIZE"))
    page[weight_files.DIGEST_AT : weight_files.DIGEST_END] = b"d" * (weight_files.DIGEST_END - weight_files.DIGEST_AT)
    file = tmp_path / "weights"
    file.write_bytes(page)
    fd = os.open(file, os.O_RDONLY)
    try:
        if not named:
            file.unlink()
        assert weight_files.is_file(fd)
    finally:
        os.close(fd)


@pytest.mark.parametrize("memfd", [True, None])
def test_a_segment_in_memory(memfd: bool | None) -> None:
    with Segment.create("weights", 1 << 14, memfd=memfd) as segment:
        assert not weight_files.is_file(segment.fd)


def weights_file(folder: Path, pages: int) -> int:
    """A file of weights, open."""
    page = os.sysconf("SC_PAGE_SIZE")
    file = folder / "weights"
    file.write_bytes(bytes(weight_files.DIGEST_AT).ljust(weight_files.DIGEST_END, b"d").ljust(pages * page, b"w"))
    return os.open(file, os.O_RDWR)


@pytest.mark.parametrize("left", [0, 1, weight_files.DIGEST_AT, 4095, 4096, 8191, 12287])
def test_a_file_that_is_cut_after_it_was_opened(tmp_path: Path, left: int) -> None:
    """However much of it is left, and whenever that happens before workers have it: it is refused, and nothing is kept."""
    fd = weights_file(tmp_path, 3)
    nbytes = os.fstat(fd).st_size
    try:
        assert weight_files.whole("m", "weights", nbytes, fd) == nbytes
        os.ftruncate(fd, left)
        with pytest.raises(PlanError, match=f"model 'm': a segment of weights has {left} bytes instead of {nbytes}"):
            weight_files.whole("m", "weights", nbytes, fd)
        before = len(os.listdir("/proc/self/fd"))
        if left < weight_files.DIGEST_END:
            with pytest.raises(PlanError, match="cut"):
                weight_files.is_file(fd)
        if left < os.sysconf("SC_PAGE_SIZE"):
            with pytest.raises(PlanError, match="cut"):
                weight_files.borrowed(fd, nbytes)
            assert len(os.listdir("/proc/self/fd")) == before
    finally:
        os.close(fd)


class Table:
    """A control table that counts what is added."""

    plans = 0

    def add_plan(self, *_: object, **__: object) -> tuple[int, int]:
        self.plans += 1
        return 1, 1


@pytest.mark.parametrize("left", [0, 100, 4096, 8192, None])
@pytest.mark.parametrize("role", ["weights", "arena"])
def test_no_plan_is_published_with_a_file_that_was_cut(tmp_path: Path, role: str, left: int | None) -> None:
    """A plan from the cache has been checked before: that its files are still whole has to be seen when it is published."""
    fd = weights_file(tmp_path, 3)
    nbytes = os.fstat(fd).st_size
    if left is not None:
        os.ftruncate(fd, left)
    added: list[str] = []
    dropped: list[int] = []
    changes: list[None] = []

    class Segments:
        def add(self, role: str, nbytes: int, fd: int, owner: str, pieces: tuple[Borrowed, ...] = ()) -> int:
            added.append(role)
            for each in (fd, *(piece.fd for piece in pieces)):
                os.close(each)
            return len(added)

        drop = staticmethod(dropped.append)

    table: Any = Table()
    resources: Any = SimpleNamespace(table=table, segments=Segments())
    publisher = Publisher(resources, SimpleNamespace(add=lambda plan: None), lambda: changes.append(None), lambda number, model: None)  # type: ignore[arg-type]
    model: Any = SimpleNamespace(name="m", id=1, share=1.0, weight_segments=[], weights={}, files={}, digest=b"")
    plan: Any = SimpleNamespace(model=model, job=SimpleNamespace(speeds=[1.0]))
    result = StagePlanned(0, [], [], [], True, False, [0] if role == "weights" else [], [])
    built = BuiltPlan(result, [(role, nbytes, fd)], Segment.create("plan", 1 << 14))
    if left is None:
        publisher.publish(plan, built)
        assert (table.plans, added, dropped) == (1, [role, "plan"], [])
        return
    with pytest.raises(PlanError, match=f"model 'm': a segment of {role} has {left} bytes instead of {nbytes}"):
        publisher.publish(plan, built)
    assert (table.plans, len(changes), len(added)) == (0, 1, len(dropped))
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)
