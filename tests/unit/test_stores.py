"""Which stores a worker's tiles take, by what it has measured (workers/kernels/stores.h), compiled with the system's compiler."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import pytest

KERNELS = Path(__file__).parents[2] / "workers" / "kernels"
SOURCE = Path(__file__).with_name("stores.c")
WIDE = ["-mavx2", "-mfma", "-mf16c"] if platform.machine() == "x86_64" else []


@pytest.mark.parametrize("flags", [[], WIDE], ids=["portable", "wide"])
def test_stores_go_where_they_were_faster(tmp_path: Path, flags: list[str]) -> None:
    program = tmp_path / "stores"
    options = ["-std=gnu11", "-O1", "-Wall", "-Wno-unused", "-Werror", f"-DASPEN_ISA={'avx2' if flags else 'portable'}", *flags]
    subprocess.run([os.environ.get("CC", "cc"), *options, f"-I{KERNELS}", str(SOURCE), "-o", str(program)], check=True)
    failed = subprocess.run([str(program)], check=False).returncode
    assert failed == 0, f"the check in line {failed} of {SOURCE.name}"
