"""What tests of products of bytes share: values, wrapping sums, bytes that are written, and the same tests without the processor's
instruction."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import folders
import numpy as np
from kernel_tools import filled

from aspen_mp.shm.tables import UNARY
from aspen_mp.workers import _kernels

Array = np.ndarray[Any, np.dtype[Any]]
SWITCH = "ASPEN_MP_VNNI"
TWIN = ("ASPEN_MP_AMX", "twin")
WITHOUT = os.environ.get(SWITCH) == "off" or os.environ.get(TWIN[0]) == TWIN[1]
BAD_ARGUMENT, SCRATCH = 2, 3
BYTES = [np.int8, np.uint8]
ODD_SCALES = [0.0, -0.0, -1.0, -0.3, np.inf, -np.inf, np.nan, 1e-45, 3e-42, 1e-38, 1e-31, 1e-30, 2e-30, 9e29, 1e30, 2e30, 3.4e38]
EDGES = [np.inf, -np.inf, np.nan, 3.4e38, -3.4e38, 1e-45, -1e-45, 1e-38, 0.0, -0.0, 1e30, -1e30]


def drawn(rng: np.random.Generator, shape: tuple[int, ...] | list[int], dtype: type) -> Array:
    """Bytes of any size, or the largest and smallest alone."""
    info = np.iinfo(dtype)
    if rng.random() < 0.3:
        return rng.choice(np.array([info.min, info.max], dtype), shape)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


def wrapped(total: Array) -> Array:
    """Modulo 2^32, as int32."""
    return total.astype(np.uint64).astype(np.uint32).view(np.int32)


def scale_of(rng: np.random.Generator, values: Array, kind: str) -> float:
    """Of bytes for these values, as a kernel holds it. "fit": most levels are within the type; "ties": a power of 2 of that size, so that
    whole numbers lie between two levels; "odd": one that no tool writes."""
    if kind == "odd":
        return float(np.float32(rng.choice(ODD_SCALES)))
    finite = np.abs(values[np.isfinite(values)])
    size = float(finite.max(initial=0.0)) / float(rng.choice([20, 120, 400])) or 1.0
    return float(np.float32(2.0 ** np.round(np.log2(size)) if kind == "ties" else min(max(size, 1e-44), 1e38)))


def quantised(values: Array, scale: float, zero: int, dtype: type, isa: str) -> Array:
    """What QUANTIZE makes of floats."""
    out = np.empty(values.shape, dtype)
    each = [np.broadcast_to(np.array(v, t), values.shape) for v, t in ((scale, np.float32), (zero, dtype))]
    assert _kernels.call("QUANTIZE", [out, values, *each], [0], [0] * out.ndim, out.shape, isa) == 0
    return out


def stored(rng: np.random.Generator, shape: Sequence[int], dtype: type, plain: bool = True) -> tuple[Array, tuple[float, int], Array]:
    """A residual of bytes, its scale and zero point, and the values that it stands for."""
    info = np.iinfo(dtype)
    levels = filled(rng, rng.integers(info.min, info.max + 1, tuple(shape)).astype(dtype), plain)
    scale, zero = np.float32(rng.choice([1.0, 0.013, 3e-5, 700.0])), int(rng.integers(info.min, info.max + 1))
    return levels, (float(scale), zero), (levels.astype(np.int32) - zero).astype(np.float32) * scale


def check_refused(kernel: Callable[..., int], x: Array, panels: Array, params: list[int | float]) -> None:
    """What a convolution of bytes does not serve is an error, never a wrong answer. `kernel(out, *inputs, p=params)` returns its status.
    `x`: u8 [2, C, 4, 5]. `panels`: weights of one pixel for six channels of output."""
    whole, single = np.empty((2, 6, 4, 5), np.int32), np.empty((2, 6, 4, 5), np.float32)
    bias, extra, zero = np.ones(6, np.float32), np.ones_like(single), np.ones(1, np.uint8)
    assert kernel(whole, x, panels) == kernel(single, x, panels, bias, extra, extra, zero) == 0
    for to in BYTES:
        assert kernel(whole.astype(to), x, panels, bias, extra, extra, zero) == 0
    for to in (np.float64, np.uint32, np.int16):
        assert kernel(whole.astype(to), x, panels) == BAD_ARGUMENT
    for to in (np.float32, np.int16):
        assert kernel(whole, x.astype(to), panels) == BAD_ARGUMENT
    assert kernel(whole, x, panels.view(np.uint8)) == BAD_ARGUMENT
    assert kernel(whole, x, panels[0]) == BAD_ARGUMENT
    assert kernel(whole, x[0], panels) == BAD_ARGUMENT
    assert kernel(whole[0], x, panels) == BAD_ARGUMENT
    for place, operand in enumerate((bias, extra, extra)):
        before = [None] * place
        assert kernel(whole, x, panels, *before, operand) == BAD_ARGUMENT, "sums themselves take nothing"
        assert kernel(single, x, panels, *before, operand.astype(np.float64)) == BAD_ARGUMENT
        assert kernel(single, x, panels, *before, operand[None]) == BAD_ARGUMENT
    for point in (np.ones(1, np.float32), np.ones(1, np.int8)):
        assert kernel(single, x, panels, None, None, None, point) == BAD_ARGUMENT
    for opcode in (len(UNARY), -1):
        other = [*params[:9], opcode, *params[10:]]
        assert kernel(single, x, panels, p=other) == BAD_ARGUMENT


def elsewhere(folder: Path, *command: str, switch: str = SWITCH, value: str = "off") -> subprocess.CompletedProcess[str]:
    """In a process that asks for the instruction anew, and is told that there is none. `switch`: the variable that says so, by `value`."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    path = [*folders.FOLDERS, *filter(None, [env.get("PYTHONPATH")])]
    env |= {switch: value, "PYTHONPATH": os.pathsep.join(path)}
    like_us = ["-S", "-P"] if sys.flags.no_site else []  # as `make sanitize` starts it
    return subprocess.run([sys.executable, *like_us, *command], env=env, capture_output=True, text=True, check=False, cwd=folder)


def check_digests(folder: Path, module: str, ours: str, switch: str = SWITCH, value: str = "off") -> None:
    """`digests` of a module has the same results without the instruction. Lines: ISA, whether it has the instruction, digest."""
    done = elsewhere(folder, "-c", f"import {module}; print({module}.digests())", switch=switch, value=value)
    assert done.returncode == 0, done.stderr
    without = [line.split() for line in done.stdout.splitlines()]
    assert [(isa, digest) for isa, _, digest in without] == [(isa, digest) for isa, _, digest in map(str.split, ours.splitlines())]
    assert value != "off" or all(instruction == "False" for _, instruction, _ in without)


def check_without(folder: Path, file: str, switch: str = SWITCH, value: str = "off", has: Callable[[str], bool] | None = None) -> None:
    """The other tests of a file. `has`: whether an instruction set has the instruction. Those that lack it compute here as they do there,
    so their tests are not run again."""
    isas = _kernels.isas()
    lack = [isa for isa in isas if has is not None and not has(isa)]
    other = " and ".join(f"not {word}" for word in ("without", "twin", *(lack if len(lack) < len(isas) else ())))
    done = elsewhere(folder, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", other, file, switch=switch, value=value)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
