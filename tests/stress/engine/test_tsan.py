"""ThreadSanitizer proves every ordering that tiles rely on, with the scheduler's loops as threads; and finds it when one is taken away."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import pytest
from folders import ROOT

SOURCE = Path(__file__).with_name("dse_threads.c")
WATCHDOG = 150


def build(target: Path, *defines: str) -> Path:
    include = [f"-I{ROOT / d}" for d in ("shm/protocol", "workers", "workers/kernels")]
    flags = ["-std=gnu11", "-fsanitize=thread", "-O1", "-g", "-pthread", "-DASPEN_LAYOUT_HASH=1", *(f"-D{d}" for d in defines)]
    subprocess.run([os.environ.get("CC", "cc"), *flags, *include, str(SOURCE), "-o", str(target)], check=True)
    return target


def run(program: Path, seed: int, requests: int, options: str = "") -> tuple[int, str]:
    def once(*prefix: str) -> tuple[int, str]:
        done = subprocess.run(
            [*prefix, str(program), str(seed), str(requests)],
            env={**os.environ, "TSAN_OPTIONS": options},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=WATCHDOG,
            check=False,
        )
        return done.returncode, done.stdout

    code, output = once()
    if "unexpected memory mapping" in output:  # more bits of address randomisation than this ThreadSanitizer's shadow memory allows for
        code, output = once("setarch", platform.machine(), "-R")
    return code, output


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("tsan") / "dse_threads")


@pytest.mark.parametrize("seed", range(40 if os.environ.get("ASPEN_MP_TIER") == "long" else 3))
def test_no_race(clean: Path, seed: int) -> None:
    code, output = run(clean, seed, 250)
    assert "WARNING: ThreadSanitizer" not in output, output
    assert code == 0, output
    assert "fine" in output, output


@pytest.fixture(scope="module")
def one_node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("tsan") / "one_node", "GRAPH_NODES=1")


@pytest.mark.parametrize("seed", range(3))
def test_requests_of_one_node(one_node: Path, seed: int) -> None:
    """What a kernel kept in scratch of one request is not found by the next one's, though nothing runs between them."""
    code, output = run(one_node, seed, 1000)
    assert code == 0, output
    assert "fine" in output, output


@pytest.mark.parametrize("fault", ["PLANT_RELAXED", "PLANT_LATE", "PLANT_REUSE", "PLANT_AGAIN"])
def test_a_planted_fault_is_found(tmp_path: Path, fault: str) -> None:
    """Count-downs that order nothing; outputs written after the count-down; buffers taken over before their readers are done; what was kept
    in scratch taken for another request's."""
    program = build(tmp_path / "faulty", fault)
    code, output = run(program, 1, 250, "halt_on_error=1")
    assert code in (1, 66), output
    assert "WRONG: a wrong answer" in output or "ThreadSanitizer: data race" in output, output
    if fault == "PLANT_RELAXED":  # the processor may well hide this one: ThreadSanitizer does not
        assert "ThreadSanitizer: data race" in output, output
