"""Moving a segment into huge pages changes nothing that its users see."""

from __future__ import annotations

import ctypes
import os

import numpy as np

from aspen_mp.shm.segments import Segment, huge_pages

HUGE = 2 << 20


def address(segment: Segment) -> int:
    return np.frombuffer(segment.buf, np.uint8).__array_interface__["data"][0]


def test_contents_stay() -> None:
    with Segment.create("weights", 4 * HUGE + 12345) as segment:
        data = np.frombuffer(segment.buf, np.uint8)[4096:]
        data[:] = np.random.default_rng(1).integers(0, 255, data.size, np.uint8)
        before = data.copy()
        with Segment.from_fd(os.dup(segment.fd), "weights", writable=False) as other:
            seen = np.frombuffer(other.buf, np.uint8)[4096:]
            assert huge_pages(segment.fd) % HUGE == 0
            assert (seen == before).all()
            data[-1] ^= 1
            assert seen[-1] == data[-1]
            del seen
        del data


def test_long_segments_lie_where_huge_pages_can() -> None:
    for nbytes in (4096, HUGE - 4096, HUGE, HUGE + 4096, 5 * HUGE):
        with Segment.create("arena", nbytes) as segment:
            assert segment.nbytes < HUGE or address(segment) % HUGE == 0
            ctypes.memset(address(segment) + segment.nbytes - 1, 7, 1)


def test_what_is_no_segment_is_left_alone() -> None:
    read, write = os.pipe()
    try:
        assert huge_pages(read) == 0
    finally:
        os.close(read)
        os.close(write)
