"""The C parts under AddressSanitizer and UndefinedBehaviorSanitizer: the scheduler's headers as threads, and kernels on exact memory.

`kernel_replay.c` runs kernel calls whose every operand has a block of its own, no longer than the operand reaches: a load or store one byte
beside it is reported. This is the quick part; `make sanitize` builds all of the package this way and runs the tests of kernels and plans
and two fuzzers on it.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from folders import ROOT, TESTS

from aspen_mp.shm.tables import CODE_BY_NUMPY, KERNELS, UNARY
from aspen_mp.workers import _kernels

pytestmark = pytest.mark.xdist_group("sanitizers")  # compiled once, which takes minutes
CC = os.environ.get("CC", "cc")
FLAGS = "-std=gnu11 -g1 -w -fno-omit-frame-pointer -ffp-contract=off -fno-math-errno -DASPEN_LAYOUT_HASH=1"
SANITIZED = "-O1 -fsanitize=address,undefined -fno-sanitize-recover=all --param=asan-instrumentation-with-call-threshold=0"
"""Checks of addresses are calls: they find the same, and compile in half the time."""
INCLUDE = [f"-I{ROOT / folder}" for folder in ("shm/protocol", "workers", "workers/kernels")]
ISA_FLAGS = {
    "portable": [],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": ["-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq", "-mavx2", "-mfma", "-mf16c", "-mprefer-vector-width=512"],
}
ISA = _kernels.isas()[0]
WRAPPING = {"reduce", "scan", "scatter"}  # integer arithmetic wraps there (workers/kernels/CMakeLists.txt)
FAMILIES = ["gather", "copy", "pad", "pool", "resize", "scan", "dwconv", "act", "functions", "topk", "scatter", "gridsample"]
FAMILIES += ["roialign", "deform", "trees", "scores", "svm", "dgemm", "unary", "softmax", "qdwconv", "int8", "int8_levels"]
FAMILIES += ["bdwconv", "mm", "isa"]
"""Those that compute most addresses and take little time to compile; all of them: `make sanitize`."""
SCRATCH = ["dwconv", "topk", "roialign", "act", "functions", "trees", "scores", "svm", "dgemm", "unary", "qdwconv", "int8", "mm"]
SCRATCH += ["int8_levels", "bdwconv"]
"""Which ask for scratch in the portable build, and what those call there. Nothing but their sizes is used, so they are not instrumented."""
WATCHDOG_S = 120
ROUNDS = 400 if os.environ.get("ASPEN_MP_TIER") == "long" else 12


def build(target: Path, *arguments: object, how: str = SANITIZED) -> None:
    done = subprocess.run(
        [CC, *FLAGS.split(), *how.split(), *INCLUDE, *map(str, arguments), "-o", str(target)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def run(program: Path, *arguments: object, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, "ASAN_OPTIONS": "detect_leaks=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
    return subprocess.run([str(program), *map(str, arguments)], input=data, capture_output=True, env=env, timeout=WATCHDOG_S, check=False)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scheduler and kernels, compiled side by side."""
    folder = tmp_path_factory.mktemp("sanitized")

    def kernels(family: str, isa: str = ISA, how: str = SANITIZED) -> None:
        wraps = ["-fwrapv"] if family in WRAPPING else []
        build(
            folder / f"{family}.{isa}.o",
            "-c",
            *ISA_FLAGS[isa],
            *wraps,
            f"-DASPEN_ISA={isa}",
            next((ROOT / "workers/kernels").rglob(f"{family}.c")),
            how=how,
        )

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        jobs = [pool.submit(build, folder / "dse_threads", "-pthread", TESTS / "stress/engine/dse_threads.c")]
        jobs += [pool.submit(kernels, family) for family in FAMILIES]
        jobs += [pool.submit(kernels, family, "portable", "-O0") for family in SCRATCH if ISA != "portable"]
        for job in jobs:
            job.result()
    build(folder / "replay", f"-DASPEN_ISA={ISA}", Path(__file__).with_name("kernel_replay.c"), *folder.glob("*.o"), "-lm")
    return folder


@pytest.mark.parametrize("seed", range(2))
def test_scheduler(built: Path, seed: int) -> None:
    done = run(built / "dse_threads", seed, 250)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()


# ---------------------------------------------------------------------------------------------------------------- kernels


def span(array: Any) -> tuple[int, bytes]:
    """Where element (0, 0, …) lies in the bytes that an array reaches, and those bytes."""
    low = sum((n - 1) * s for n, s in zip(array.shape, array.strides, strict=True) if s < 0)
    high = sum((n - 1) * s for n, s in zip(array.shape, array.strides, strict=True) if s > 0) + array.itemsize
    if not array.size:
        return 0, b""
    flat = np.lib.stride_tricks.as_strided(array, (1,), (array.itemsize,))
    start = flat.__array_interface__["data"][0] + low
    return -low, ctypes.string_at(start, high - low)


def record(kernel: str, args: Sequence[Any], params: Sequence[int | float], lo: Sequence[int], hi: Sequence[int]) -> bytes:
    """A call as `kernel_replay.c` reads it."""
    out = struct.pack("<IIII", KERNELS[kernel].code, len(args), len(params), len(lo))
    out += b"".join(struct.pack("<d", p) if isinstance(p, float) else struct.pack("<q", p) for p in params)
    out += b"".join(struct.pack("<qq", a, b) for a, b in zip(lo, hi, strict=True))
    for a in args:
        if a is None:
            out += struct.pack("<IIqq", 0, 0, 0, 0)
            continue
        first, data = span(a)
        out += struct.pack("<IIqq", CODE_BY_NUMPY[a.dtype], a.ndim, first, len(data))
        out += b"".join(struct.pack("<qq", n, s // a.itemsize) for n, s in zip(a.shape, a.strides, strict=True)) + data
    return struct.pack("<I", len(out)) + out


def calls(rng: np.random.Generator) -> Iterator[tuple[str, list[Any], list[int | float]]]:
    """Calls of odd shapes and layouts, the output first."""

    def odd(*shape: int, dtype: Any = np.float32) -> Any:
        """A view with steps, reversals and gaps, of axes in any order."""
        steps = rng.choice([1, 1, 1, 2], len(shape))
        order = rng.permutation(len(shape))
        memory = rng.integers(0, 5, [int(shape[k] * steps[k] + rng.integers(0, 2)) for k in order]).astype(dtype)
        view = memory.transpose(np.argsort(order))
        for axis, (length, step) in enumerate(zip(shape, steps.tolist(), strict=True)):
            part = slice(0, length * step, step) if rng.random() < 0.8 else slice(length * step - 1, None, -step)
            view = view[(slice(None),) * axis + (part,)][(slice(None),) * axis + (slice(0, length),)]
        return view

    def zeros(kernel: str, given: list[int | float]) -> list[int | float]:
        return given + [0] * (KERNELS[kernel].n_params - len(given))

    n, c, h, w = (int(rng.integers(1, 4)), int(rng.choice([1, 3, 7, 16, 17, 33])), int(rng.integers(1, 12)), int(rng.integers(1, 21)))
    types = [np.float32, np.int8, np.uint8, np.int16, np.int64, np.float64]
    kind = types[int(rng.integers(len(types)))]
    yield "COPY", [odd(n, c, h, w, dtype=kind), odd(n, c, h, w, dtype=kind)], []
    x = odd(n, c, h, w, dtype=kind)
    for axis in range(4):
        index = rng.integers(-x.shape[axis], x.shape[axis], (2, 3)).astype([np.int32, np.int64][axis % 2])
        yield "GATHER", [odd(*x.shape[:axis], 2, 3, *x.shape[axis + 1 :], dtype=kind), x, index], zeros("GATHER", [axis])
        index = rng.integers(-x.shape[axis], x.shape[axis], x.shape).astype(np.int64)
        yield "GATHER_ELEMENTS", [odd(*x.shape, dtype=kind), x, index], zeros("GATHER_ELEMENTS", [axis])
        yield "SCATTER", [odd(*x.shape, dtype=kind), x, index, odd(*x.shape, dtype=kind)], [axis, int(rng.integers(5))]
        k = int(rng.integers(1, x.shape[axis] + 1))
        yield "TOPK", [odd(*x.shape[:axis], k, *x.shape[axis + 1 :], dtype=np.int64), x], [axis, int(rng.integers(2))]
        places = np.stack([rng.integers(-d, d, (2, 3)) for d in x.shape], -1)
        yield "INDEX", [odd(2, 3, dtype=np.int64), places], zeros("INDEX", [4, *x.shape])
        begin = [int(v) for v in rng.integers(-1, 3, 4)]
        grown = [max(1, d + 2 * b) for d, b in zip(x.shape, begin, strict=True)]
        yield "PAD", [odd(*grown, dtype=kind), x, np.array(3).astype(kind)], zeros("PAD", [0, 4, *begin])
        f = odd(n, c, h, w)
        yield "CUMSUM", [odd(n, c, h, w), f], [axis, int(rng.integers(2)), int(rng.integers(2))]
    f = odd(n, c, h, w)
    kh, kw, sh, sw = (int(v) for v in rng.integers(1, 4, 4))
    pad = [int(rng.integers(0, kh)), int(rng.integers(0, kw)), int(rng.integers(0, kh)), int(rng.integers(0, kw))]
    oh, ow = (h + pad[0] + pad[2] - kh) // sh + 1, (w + pad[1] + pad[3] - kw) // sw + 1
    if oh > 0 and ow > 0:
        for mode in range(2):
            yield "POOL", [odd(n, c, oh, ow), f], zeros("POOL", [mode, kh, kw, sh, sw, 1, 1, *pad])
        weights = np.ascontiguousarray(rng.integers(-2, 3, (kh * kw, c)).astype(np.float32))
        bias = np.ascontiguousarray(rng.integers(-2, 3, c).astype(np.float32))
        window = [c, kh, kw, sh, sw, 1, 1, pad[0], pad[1]]
        yield "DWCONV", [odd(n, c, oh, ow), f, weights, bias], zeros("DWCONV", [*window])
        bytes_of = rng.integers(0, 256, (n, h, w, c)).astype(np.uint8).transpose(0, 3, 1, 2)
        panels = rng.integers(-9, 9, (-(-c // 32), 3 + -(-kh // 4) * kw, 32, 4)).astype(np.int8)
        for to in (np.zeros((n, oh, ow, c), np.uint8).transpose(0, 3, 1, 2), odd(n, c, oh, ow)):
            yield "QDWCONV", [to, bytes_of, panels, bias, None, None, np.ones(1, np.uint8)], [1, *window[1:], 0, 0, 0, 0, 1.5, 3, 1.0, 0]
        times = int(rng.integers(1, 4))
        last = np.ascontiguousarray(rng.integers(-2, 3, (n, h, w, c)).astype(np.float32)).transpose(0, 3, 1, 2)
        target = np.zeros((n, oh, ow, times * c), np.float32).transpose(0, 3, 1, 2)
        weights = np.ascontiguousarray(rng.integers(-2, 3, (kh * kw, times * c)).astype(np.float32))
        yield "DWCONV", [target, last, weights], zeros("DWCONV", [*window])
        size, before = [int(v) for v in rng.integers(5, 12, 2)], [int(v) for v in rng.integers(0, 13, 2)]
        rows, columns = (max(side + 2 * b - k, 0) // sh + 1 for side, b, k in zip((h + 11, w + 11), before, size, strict=True))
        last = np.ascontiguousarray(rng.integers(-2, 3, (n, h + 11, w + 11, c)).astype(np.float32)).transpose(0, 3, 1, 2)
        target = np.zeros((n, rows, columns, c), np.float32).transpose(0, 3, 1, 2)
        weights = np.ascontiguousarray(rng.integers(-2, 3, (size[0] * size[1], c)).astype(np.float32))
        yield "DWCONV", [target, last, weights], zeros("DWCONV", [c, *size, sh, sh, 1, 1, *before])
    d, kd, front = (int(v) for v in rng.integers(1, 5, 3))
    od = d + 2 * (front - 1) - kd + 1
    if oh > 0 and ow > 0 and od > 0:
        weights = np.ascontiguousarray(rng.integers(-2, 3, (kd * kh * kw, c)).astype(np.float32))
        window = [c, kh, kw, sh, sw, 1, 1, pad[0], pad[1], *[0] * 7, kd, 1, 1, front - 1]
        yield "DWCONV", [odd(n, c, od, oh, ow), odd(n, c, d, h, w), weights], window
    grid = rng.uniform(-2, 2, (n, 3, 5, 2)).astype(np.float32)
    grid[0, 0, 0] = rng.choice([np.nan, np.inf, -np.inf, 3e38], 2)
    last = np.ascontiguousarray(rng.integers(-2, 3, (n, h, w, c)).astype(np.float32)).transpose(0, 3, 1, 2)
    for image, target in ((f, odd(n, c, 3, 5)), (last, odd(n, c, 3, 5)), (last, np.zeros((n, 3, 5, c), np.float32).transpose(0, 3, 1, 2))):
        for mode in range(3):
            yield "GRIDSAMPLE", [target, image, grid], [mode, int(rng.integers(3)), int(rng.integers(2))]
    rois = rng.uniform(-3, max(h, w) + 3, (4, 4)).astype(np.float32)
    rois[0] = rng.choice([np.nan, np.inf, -np.inf, 3e38], 4)
    for image in (f, last):
        for target in (odd(4, c, 3, 2), np.zeros((4, 3, 2, c), np.float32).transpose(0, 3, 1, 2)):
            yield "ROIALIGN", [target, image, rois, rng.integers(0, n, 4)], [int(rng.integers(2)), int(rng.integers(3)), 1.0, 1]
    offsets = rng.uniform(-4, 4, (n, 12, 3, 5)).astype(np.float32)
    offsets[0, 0, 0, 0] = rng.choice([np.nan, np.inf, 3e38])
    for image in (f, last):
        yield "DEFORM", [odd(n, 6 * c, 3, 5), image, offsets, odd(n, 6, 3, 5)], [1, 1, 2, 3, *rng.integers(1, 4, 4).tolist(), 1, 1]
    for words, kind in ((4, np.float32), (6, np.float64)):  # tables that say anything
        table = rng.integers(-(2**31), 2**31, (int(rng.integers(1, 9)), words)).astype(np.int32)
        trees = np.where(rng.random((5, 4)) < 0.5, rng.integers(0, 4, (5, 4)), rng.integers(-(2**31), 2**31, (5, 4))).astype(np.int32)
        operands = [odd(11, 3), odd(11, 4, dtype=kind), table, trees, rng.standard_normal(7).astype(kind)]
        yield "TREES", operands, [int(rng.integers(4)), int(rng.integers(2)), 9]
    yield "SCORES", [odd(9, 5), odd(9, 5)], [int(rng.integers(5)), 0]
    yield "LABELS", [odd(9, dtype=np.int64), odd(9, 6), odd(4, dtype=np.int64)], [2, 0, 0.0]
    doubles = [odd(*shape, dtype=np.float64) for shape in ((2, 13, 35), (2, 13, 9), (2, 9, 35), (2, 13, 35))]
    yield "DGEMM", doubles, [0.5, UNARY["SIGMOID"], 0.0, 0.0, int(rng.integers(3))]
    yield "DGEMM", [odd(13, 3, dtype=np.float64), odd(13, 9, dtype=np.float64), np.ones((9, 3))], [1.0, 0, 0.0, 0.0, 0]
    for log in range(2):
        yield "SOFTMAX", [odd(5, 700, dtype=np.float64), odd(5, 700, dtype=np.float64)], [log, log]
    yield "RBF", [odd(7, 40), odd(7, 5), np.ones((2, 5, 32), np.float32)], [0.5]
    yield "DUELS", [odd(5, 3), odd(5, 6), odd(2, 6), rng.integers(-9, 9, 4), odd(3)], []
    yield "COUPLE", [odd(5, 3), odd(5, 3), odd(3), odd(3)], []
    for mode in range(3):
        scale = [1.0, 1.0, float(rng.choice([0.4, 1.7, 2.0])), float(rng.choice([0.5, 3.0]))]
        grown = [n, c, max(1, int(h * scale[2])), max(1, int(w * scale[3]))]
        yield "RESIZE", [odd(*grown), f], zeros("RESIZE", [mode, 0, 0, -0.75, *scale, 1.0, 1.0, 1.0, 1.0])


def test_kernels(built: Path) -> None:
    """Whole outputs, and a box somewhere in them, on memory that ends where the operands do; the bits are those of the normal build."""
    rng = np.random.default_rng(5)
    stream: list[bytes] = []
    expected: list[tuple[int, bytes, str]] = []
    for _ in range(ROUNDS):
        for kernel, args, params in calls(rng):
            out = args[0]
            lo = [int(rng.integers(0, d)) for d in out.shape]
            hi = [int(rng.integers(a + 1, d + 1)) for a, d in zip(lo, out.shape, strict=True)]
            for box in (([0] * out.ndim, list(out.shape)), (lo, hi)):
                stream.append(record(kernel, args, params, *box))
                status = _kernels.call(kernel, args, params, *box, ISA)
                about = [None if a is None else (a.shape, a.strides, a.dtype.name) for a in args]
                expected.append((status, out.tobytes(), f"{kernel} {about} {params} {box}"))
    done = run(built / "replay", data=b"".join(stream))
    at = 0
    for status, data, what in expected:
        assert len(done.stdout) >= at + 4, f"{what}: {done.stderr.decode()[-6000:]}"
        assert struct.unpack_from("<i", done.stdout, at)[0] == status, what
        assert done.stdout[at + 4 : at + 4 + len(data)] == data, f"{what}: other bits than the normal build's"
        at += 4 + len(data)
    assert at == len(done.stdout)
    assert done.returncode == 0, done.stderr.decode()[-6000:]


def test_a_planted_fault_is_found(built: Path, tmp_path: Path) -> None:
    """An operand that is one element too short."""
    a = np.arange(7, dtype=np.float32)
    short = bytearray(record("COPY", [np.zeros(7, np.float32), a], [], [0], [7]))
    length, last = struct.unpack_from("<I", short)[0], short.index(a.tobytes()) - 24
    struct.pack_into("<q", short, last, 24)
    del short[-4:]
    struct.pack_into("<I", short, 0, length - 4)
    done = run(built / "replay", data=bytes(short))
    assert done.returncode != 0
    assert b"heap-buffer-overflow" in done.stderr
