"""Reserving shared memory in huge pages where there are any: length, space and zeros are the same either way."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

import numpy as np
import pytest

from aspen_mp.shm.bindings._mapping import Mapping, free_huge, reserve
from aspen_mp.shm.segments import Segment

HUGE = 2 << 20


def address(segment: Segment) -> int:
    return np.frombuffer(segment.buf, np.uint8).__array_interface__["data"][0]


@pytest.mark.parametrize("nbytes", [4096, HUGE - 4096, HUGE, 3 * HUGE + 8192])
def test_all_of_the_space_is_there_and_zero(nbytes: int) -> None:
    fd = os.memfd_create("reserved")
    try:
        huge = reserve(fd, nbytes)
        assert huge % HUGE == 0
        assert huge <= nbytes
        info = os.fstat(fd)
        assert info.st_size == nbytes
        assert info.st_blocks * 512 >= nbytes
        mapping = Mapping(fd, nbytes, True)
        data = np.frombuffer(mapping, np.uint8)
        assert not data.any()
        data[-1] = 5
        assert os.pread(fd, 1, nbytes - 1) == b"\5"
    finally:
        os.close(fd)


def test_what_is_free_in_huge_pages(tmp_path: Path) -> None:
    """Of 4 KiB pages: blocks of order 9 are huge pages, those of order 10 two of them."""
    file = tmp_path / "buddyinfo"
    zone = "Node {}, zone {:>8} {}\n"
    small = [7, 6, 5, 4, 3, 2, 1, 1, 9]
    rows = [(0, "DMA", [*small, 1, 3]), (0, "Normal", [*small, 10, 20]), (1, "Normal", [*small, 0, 1])]
    file.write_text("".join(zone.format(node, name, " ".join(map(str, counts))) for node, name, counts in rows))
    if os.sysconf("SC_PAGE_SIZE") == 4096:
        assert free_huge(str(file)) == (1 + 6 + 10 + 40 + 2) * HUGE
    for text in ("", "Node 0, zone", "nonsense\n", "Node 0, zone Normal x y\n"):
        file.write_text(text)
        assert free_huge(str(file)) == 0
    assert free_huge(str(tmp_path / "missing")) == 0
    assert free_huge() >= 0


def test_what_has_no_length_is_an_error() -> None:
    read, write = os.pipe()
    try:
        with pytest.raises(OSError, match="Invalid argument") as caught:
            reserve(read, HUGE)
        assert caught.value.errno == errno.EINVAL
    finally:
        os.close(read)
        os.close(write)


def test_long_segments_lie_where_huge_pages_can() -> None:
    for nbytes in (4096, HUGE - 4096, HUGE, HUGE + 4096, 5 * HUGE):
        with Segment.create("arena", nbytes) as segment:
            assert segment.nbytes < HUGE or address(segment) % HUGE == 0
            ctypes.memset(address(segment) + segment.nbytes - 1, 7, 1)
