"""BGEMM and BCONV with the sums of AMX have the bits of its instruction in a known order, on every ISA."""

from __future__ import annotations

import hashlib

import amx_tools
import numpy as np
import pytest
import test_bconv
import test_bgemm
from byte_tools import TWIN, elsewhere
from kernel_tools import ACTIVATIONS, ISAS, layout, run, same_bits
from pair_tools import SWITCH
from test_conv import Geometry, channels_last

DEPTHS = [1, 2, 3, 31, 32, 33, 34, 64, 65, 66, 130, 511, 514, 1030]
WIDE = (1.0, 1e-20, 1e19, 1e-38, 1e-41)
"""Sizes of factors: products are denormal, or infinite, in part."""


def drawn(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Values of many sizes, so that every order of summation has bits of its own, some of them denormal."""
    values = rng.standard_normal(shape) * rng.choice(WIDE, shape, p=(0.9, 0.025, 0.025, 0.025, 0.025))
    return values.astype(np.float32)


@pytest.mark.parametrize("depth", DEPTHS)
def test_products_have_the_bits_of_the_instruction(depth):
    rng = np.random.default_rng(depth)
    m, n = int(rng.integers(1, 70)), int(rng.integers(1, 70))
    a, w = drawn(rng, (m, depth)), drawn(rng, (depth, n))
    wanted = amx_tools.sums(amx_tools.pairs_of(a)[:, np.newaxis], amx_tools.pairs_of(np.ascontiguousarray(w.T))[:, np.newaxis])
    for isa in ISAS:
        assert same_bits(run("BGEMM", layout(rng, (m, n)), [a, test_bgemm.pack(w)], test_bgemm.AMX, isa=isa), wanted)


@pytest.mark.parametrize(
    ("channels", "geometry"),
    [
        (1, Geometry((1, 1))),
        (70, Geometry((1, 1), (2, 1))),
        (3, Geometry((7, 7), (2, 2), before=(3, 3), after=(3, 3))),
        (17, Geometry((3, 3), before=(1, 0), after=(0, 1))),
        (37, Geometry((3, 2), (1, 1), (2, 1))),
        (21, Geometry((2, 3), (1, 2), (1, 3))),
        (512, Geometry((2, 2))),  # taps of a row of the window are apart
    ],
)
def test_convolutions_have_the_bits_of_the_instruction(channels, geometry):
    rng = np.random.default_rng(channels)
    outputs, image = int(rng.integers(1, 50)), (9, 11)
    x, w = drawn(rng, (2, channels, *image)), drawn(rng, (outputs, channels, *geometry.kernel))
    shape = (2, outputs, *geometry.out(image))
    taps = np.stack([amx_tools.pairs_of(tap) for tap in windows(x, geometry)], axis=1)  # [pixels, taps, pairs, 2]
    weights = amx_tools.pairs_of(np.moveaxis(w, 1, -1))
    joined = geometry.dilation[1] == 1 and channels % 512 != 0
    runs = geometry.kernel[0] if joined else taps.shape[1]
    sums = amx_tools.sums(taps.reshape(len(taps), runs, -1, 2), weights.reshape(outputs, runs, -1, 2))
    wanted = np.moveaxis(sums.reshape(2, *shape[2:], outputs), -1, 1)
    p = test_bconv.params(geometry, amx=True)
    for isa in ISAS:
        for plain in (True, False):
            found = run("BCONV", layout(rng, shape), [channels_last(rng, x, plain), test_bconv.pack(w)], p, isa=isa)
            assert same_bits(found, np.ascontiguousarray(wanted))


def windows(x: np.ndarray, g: Geometry) -> list[np.ndarray]:
    """Return what each tap sees, in order: [N * OH * OW, C]."""
    padded = np.pad(x, ((0, 0), (0, 0), (g.before[0], g.after[0]), (g.before[1], g.after[1])))
    rows, columns = g.out(x.shape[2:])
    found = []
    for i in range(g.kernel[0]):
        for j in range(g.kernel[1]):
            down = i * g.dilation[0] + g.stride[0] * np.arange(rows)
            across = j * g.dilation[1] + g.stride[1] * np.arange(columns)
            seen = padded[:, :, down][:, :, :, across]
            found.append(np.ascontiguousarray(seen.transpose(0, 2, 3, 1)).reshape(-1, x.shape[1]))
    return found


def digests() -> str:
    """Return a line for each ISA: a digest of results over many shapes, with epilogues."""
    lines = []
    for isa in ISAS:
        rng, state = np.random.default_rng(5), hashlib.sha256()
        for m, k, n in ((1, 130, 70), (40, 64, 33), (33, 37, 100), (75, 1100, 40)):
            a, w, residual = drawn(rng, (m, k)), drawn(rng, (k, n)), drawn(rng, (m, n))
            state.update(run("BGEMM", np.empty((m, n), np.float32), [a, test_bgemm.pack(w)], test_bgemm.AMX, isa=isa))
            p = [0.5, *ACTIVATIONS["RELU"], 1, 1]
            state.update(run("BGEMM", np.empty((m, n), np.float32), [a, test_bgemm.pack(w), None, residual], p, isa=isa))
        g = Geometry((3, 3), (2, 1), (1, 1), (1, 1), (1, 1))
        x, w = drawn(rng, (1, 50, 9, 11)), test_bconv.pack(drawn(rng, (40, 50, 3, 3)))
        state.update(run("BCONV", np.empty((1, 40, *g.out((9, 11))), np.float32), [x, w], test_bconv.params(g, amx=True), isa=isa))
        lines.append(f"{isa} {state.hexdigest()}")
    return "\n".join(lines)


@pytest.mark.parametrize(("switch", "value"), [TWIN, (SWITCH, "off")])
def test_workers_without_the_instructions_have_the_same_bits(tmp_path, switch, value):
    """A plan is for all workers, whatever their processes may use."""
    done = elsewhere(tmp_path, "-c", "import test_amx_sums; print(test_amx_sums.digests())", switch=switch, value=value)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == digests().split()
