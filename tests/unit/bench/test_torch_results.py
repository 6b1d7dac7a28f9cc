"""PyTorch networks: the judge finds every kind of wrong result, and tables and pictures are what results say. Needs no PyTorch."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from aspen_mp.bench.peers.rounds import OURS
from aspen_mp.bench.render import torch as pages
from aspen_mp.bench.render.published import Published
from aspen_mp.bench.torch import picture
from aspen_mp.bench.torch.judge import judge
from aspen_mp.bench.torch.result import EngineResult, NetworkResult, TorchResult, geometric_mean
from aspen_mp.bench.torch.several import unmapped
from aspen_mp.shm.bindings._mapping import Memfd

Array = Any


def outputs(seed: int = 5) -> tuple[list[Array], list[Array]]:
    """What PyTorch says and what is exact: a tensor of floats, and one of whole numbers."""
    random = np.random.default_rng(seed)
    exact = random.standard_normal((4, 30))
    return [exact.astype(np.float32), np.arange(6)], [exact, np.arange(6)]


def test_rounding_is_right() -> None:
    eager, exact = outputs()
    ours = [eager[0] * np.float32(1 + 1e-6), eager[1]]
    verdict = judge(ours, eager, exact)
    assert verdict.right
    assert verdict.cosine > 0.999999
    assert 5e-7 < verdict.error < 2e-6


def planted(change: Callable[[list[Array]], object]) -> str:
    eager, exact = outputs()
    ours = [array.copy() for array in eager]
    changed = change(ours)
    return judge(changed if isinstance(changed, list) else ours, eager, exact).why


WRONG: dict[str, Callable[[list[Array]], object]] = {
    "The error is": lambda ours: ours[0].__imul__(np.float32(1.01)),
    "the cosine": lambda ours: ours[0].__setitem__(slice(None), ours[0][::-1].copy()),
    "NaN are at other places": lambda ours: ours[0].__setitem__((1, 2), np.nan),
    "1 of 6 whole numbers": lambda ours: ours[1].__setitem__(3, 9),
    "is float64 of": lambda ours: [ours[0].astype(np.float64), ours[1]],
    "of [30, 4]": lambda ours: [ours[0].T, ours[1]],
    "There are 1 outputs": lambda ours: ours[:1],
}


@pytest.mark.parametrize(("message", "change"), WRONG.items(), ids=WRONG)
def test_what_is_wrong_is_said(message: str, change: Callable[[list[Array]], object]) -> None:
    assert message.lower() in planted(change).lower()


def test_one_wrong_row_among_many_is_found() -> None:
    eager, exact = outputs()
    ours = [eager[0].copy(), eager[1]]
    ours[0][2, 7] += 0.1
    assert not judge(ours, eager, exact).right


def test_infinities_where_pytorch_has_them_are_right() -> None:
    eager, exact = outputs()
    for array in (eager[0], exact[0]):
        array[0, 0], array[1, 1] = np.inf, np.nan
    assert judge([array.copy() for array in eager], eager, exact).right


def test_halves_are_judged_as_halves() -> None:
    _, exact = outputs()
    eager = [exact[0].astype(np.float16)]
    ours = [(exact[0] * 1.004).astype(np.float16)]
    assert judge(ours, eager, exact[:1], "float16").right
    assert not judge(ours, eager, exact[:1]).right


def test_nothing_is_right() -> None:
    empty = [np.zeros((0, 3), np.float32)]
    assert judge(empty, empty, [np.zeros((0, 3))]).right


# ---- results


def engine(name: str, ms: float, ratio: float | None, **more: Any) -> EngineResult:
    return EngineResult(name, "1", "as it is", 2.0, 1.0, ms, ms, [ms], ratio, **more)


def result() -> TorchResult:
    first = [engine(OURS, 2.0, None, memory={1: 2**20, 4: 2**22}), engine("eager", 4.0, 0.5), engine("inductor", 1.0, 2.0)]
    second = [engine(OURS, 3.0, None), engine("eager", 3.0 / 0.72, 0.72)]
    third = [engine(OURS, 3.0, None, wrong="Output 0: it is not."), engine("eager", 1.0, 3.0)]
    networks = [
        NetworkResult(name, "family", "small", 10**6, [0, 1], 5, 0, 0, engines, {})
        for name, engines in (("own/a", first), ("own/b", second), ("own/c", third))
    ]
    return TorchResult(networks)


def test_means_are_of_what_is_right() -> None:
    found = result()
    assert found.engines == [OURS, "eager", "inductor"]
    assert geometric_mean(found.ratios("eager")) == pytest.approx(0.6)
    assert "0.600 of eager's time over 2 networks, slower on 0" in found.verdict
    assert "2.000 of inductor's time over 1 networks, slower on 1" in found.verdict
    assert "wrong: own/c" in found.verdict


def test_several_processes_are_compared_with_one() -> None:
    alone = engine(OURS, 1.0, None, memory={1: 900})
    assert alone.together == ""
    several = engine(OURS, 1.0, None, memory={1: 900, 4: 1900}, floor={1: 400, 4: 1300}, calls_per_s={1: [2.0, 4.0], 4: [2.0, 3.0]})
    assert several.together == (
        "4 processes have 2.11 of the memory, 1.20 of what lies above PyTorch's own, and 0.875 of the calls a second of 1"
    )


def test_files_in_memory_that_nobody_has_mapped_count() -> None:
    file = Memfd("test-unmapped")
    before = unmapped([os.getpid()])
    os.write(file.fd, bytes(4 << 20))
    assert unmapped([os.getpid()]) == before + (4 << 20)
    with mmap.mmap(file.fd, 4 << 20, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=mmap.PROT_READ):
        assert unmapped([os.getpid()]) < before + (1 << 20)
    file.close()


def test_the_page_has_every_number() -> None:
    text = pages.torch(cast("Published", SimpleNamespace(record=SimpleNamespace(result=result()))))
    assert "| `own/a` | 2.00 | 4.00 | 1.00 | 0.50 | 2.00 |" in text
    assert "| `own/c` | 3.00* | 1.00 | – | 3.00 | – |" in text
    assert "| eager | 2 | 0.600 | 0.72 | 0 |" in text
    assert "| `own/a` | aspen-mp | 1 | 4 |" in text
    assert "| `own/b` | 2.00, 1.00 | 2.00, 1.00 | – |" in text


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture.plot(result(), tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000
