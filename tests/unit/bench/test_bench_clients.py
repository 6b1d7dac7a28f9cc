"""What `bench clients` counts as packed weights."""

import mmap
import os
from pathlib import Path

import pytest

from aspen_mp.bench import clients

SIZE = 1 << 20


@pytest.mark.parametrize("folder", ["weights", "plans"])
def test_weights_of_a_plan_cache_are_weights(tmp_path: Path, folder: str) -> None:
    """The pages of a cached file in the place of a segment count, those of other files do not."""
    file = tmp_path / folder / ("0123456789" * 4)
    file.parent.mkdir()
    file.write_bytes(bytes(SIZE))
    before = clients.weights_pss([os.getpid()])
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), SIZE, prot=mmap.PROT_READ) as mapped:
        assert sum(mapped[::4096]) == 0  # every page is read
        assert clients.weights_pss([os.getpid()]) - before == (SIZE if folder == "weights" else 0)
