"""Weights in files of the plan cache are told from those in memory, also when the file has lost its name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aspen_mp.control.memory import weight_files
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
