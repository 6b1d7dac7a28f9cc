"""Shape lists of the kernel benchmark: what is written is read back, the files of the package are sound, and every line runs."""

from __future__ import annotations

import platform
from pathlib import Path

import numpy as np
import pytest

from aspen_mp.bench import models
from aspen_mp.bench.kernels import measure, report, shapes
from aspen_mp.bench.peers.cases import Case
from aspen_mp.shm.tables import KERNELS
from aspen_mp.tools.core_limits import SIZES, CoreLimits
from aspen_mp.workers import _kernels

NETWORKS = {"resnet50", "vgg16", "bert_base", "bert_large", "gpt2", "mobilenet_v2", "yolov3"}


def small(network: str) -> Case:
    return Case(network, seq=16, options=models.miniature(network))


def test_files_of_the_package() -> None:
    assert set(shapes.names()) >= NETWORKS
    for name in shapes.names():
        calls = shapes.read(name)
        assert calls
        for call in calls:
            assert call.kernel in KERNELS
            assert call.times >= 1
            assert call.operands[0] is not None
            assert len(call.tile) == len(call.operands[0].dims)
            assert len(call.params) == KERNELS[call.kernel].n_params, f"{name}: {call.name}: write the lists again (aspen-mp bench shapes)"
            assert shapes.parse(str(call)) == call


@pytest.mark.parametrize("network", ["resnet18", "bert_base", "mobilenet_v2"])
def test_written_and_measured(network: str, tmp_path: Path) -> None:
    calls = shapes.generate(small(network))
    assert shapes.write(small(network), tmp_path) == tmp_path / f"{network}.txt"
    assert shapes.read(network, tmp_path) == calls
    assert shapes.names(tmp_path) == [network]
    assert {"GEMM"} <= {call.kernel for call in calls}
    limits = CoreLimits("portable", 10.0, dict.fromkeys(SIZES, 10.0))
    evicted: list[int] = []
    for isa in _kernels.isas():
        timings = [measure.measure(call, isa, 0.0, lambda arrays: evicted.append(len(arrays))) for call in calls]
        assert all(t.warm >= t.best > 0 for t in timings)
        assert all((t.cold is not None) == any(o is not None and o.weight for o in t.call.operands) for t in timings)
    assert evicted
    assert min(evicted) > 0
    document = report.document([(network, limits, timings)])
    assert len(document["calls"]) == len(calls)
    assert document["calls"][0]["of_peak"] > 0


def test_tiles_cover_the_output_once() -> None:
    call = shapes.parse("1 UNARY f32:5x7/7,1 f32:5x7/7,1 tile=2x7 flops=35 bytes=280 params=1,0,0 name=x")
    seen = np.zeros((5, 7), int)
    for (a, b), (c, d) in measure.tiles(call):
        seen[a:c, b:d] += 1
    assert (seen == 1).all()


@pytest.mark.parametrize(
    "line", ["", "1 GEMM", "x GEMM f32:1/1 tile=1 flops=1 bytes=1 params= name=", "1 GEMM f32:1x2/1 tile=1 flops=1 bytes=1 params= name="]
)
def test_lines_that_are_none(line: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        shapes.parse(line)


def test_limits_of_the_core() -> None:
    for isa in _kernels.isas():
        assert _kernels.peak(1000, isa) > 0
        assert _kernels.read_rate(np.ones(4096, np.float32), 10, isa) > 0


def test_put_out_of_the_caches() -> None:
    data = np.arange(251, dtype=np.uint8)
    assert _kernels.flush(data) == _kernels.flush(data[:0]) == (platform.machine() == "x86_64")
    assert (data == np.arange(251)).all()
    call = shapes.parse("1 GEMM f32:4x32/32,1 f32:4x8/8,1 w:1x8x32/256,32,1 tile=4x32 flops=2048 bytes=0 params= name=x")
    arrays = [measure._array(operand, np.random.default_rng(0)) for operand in call.operands if operand is not None]
    before = [a.copy() for a in arrays]
    measure.evictor()(arrays)
    assert all((a == b).all() for a, b in zip(arrays, before, strict=True))
