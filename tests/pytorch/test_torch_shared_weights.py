"""Processes of one runtime share one copy of a module's weights."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: pip install 'aspen-mp[torch]'")

import aspen_mp  # noqa: E402

PROGRAM = """
import sys, torch, aspen_mp
torch.manual_seed(2)
module = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8)).eval()
x = torch.randn(3, 64)
with torch.no_grad():
    want = module(x)
aspen_mp.optimize(module, runtime=sys.argv[1], release=True, min_block_size=1)
torch.testing.assert_close(module(x), want)
address = module[0].weight.data_ptr()
for line in open("/proc/self/maps"):
    span, _, _, device, number, *_ = line.split()
    begin, end = (int(part, 16) for part in span.split("-"))
    if begin <= address < end:
        print(device, number, flush=True)
sys.stdin.read()
"""


def test_released_weights_lie_in_one_file_for_all_processes() -> None:
    name = f"torch-processes-{os.getpid()}"
    with aspen_mp.Runtime(workers=1, name=name) as runtime:
        command = [sys.executable, "-c", PROGRAM, name]
        processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        try:
            places = [process.stdout.readline().strip() for process in processes if process.stdout]
            models = runtime.status()["models"]
        finally:
            for process in processes:
                process.communicate(timeout=60)
        assert [process.returncode for process in processes] == [0, 0]
        assert places[0] == places[1] != ""
        assert not places[0].endswith(" 0"), "memory of a process's own"
        assert len(models) == 1
