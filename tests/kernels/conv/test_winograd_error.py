"""What Winograd's algorithm adds to a layer's error: the planner's estimate, beside WINO and direct f32 sums against float64."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_tools import ISAS, run
from test_winograd import KINDS, Kind, channels_last, convolve, params, transformed

from aspen_mp.planner.cost import accuracy
from aspen_mp.planner.ops.packing import winograd

INPUTS = ("noise", "behind a Relu", "activations", "smooth")
LIKENESS = {"noise": 0.0, "behind a Relu": 0.0, "activations": 0.5, "smooth": 0.9}
WEIGHTS = ("noise", "edges", "blurred", "trained")


def direct(x: np.ndarray, w: np.ndarray, pads: tuple[int, int, int, int], stride: int) -> np.ndarray:
    """A convolution whose sums are rounded to f32 after each term, taps first, then channels, as the direct kernels do."""
    top, left, bottom, right = pads
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right))).astype(np.float64)
    kh, kw = w.shape[2:]
    oh, ow = (padded.shape[2] - kh) // stride + 1, (padded.shape[3] - kw) // stride + 1
    out = np.zeros((x.shape[0], w.shape[0], oh, ow), np.float32)
    for i in range(kh):
        for j in range(kw):
            part = padded[:, :, i : i + (oh - 1) * stride + 1 : stride, j : j + (ow - 1) * stride + 1 : stride]
            for c in range(x.shape[1]):
                out = (out + part[:, c : c + 1] * w[None, :, c, i, j, None, None].astype(np.float64)).astype(np.float32)
    return out


def drawn_input(rng: np.random.Generator, kind: str, channels: int, size: int) -> np.ndarray:
    x = rng.standard_normal((1, channels, size, size))
    if kind == "behind a Relu":
        x = np.maximum(x, 0)
    elif kind == "activations":
        x = np.maximum(x + rng.standard_normal((1, channels, 1, 1)), 0)
    elif kind == "smooth":
        x = rng.standard_normal((1, channels, 1, 1)) + 0.3 * x
    return x.astype(np.float32)


def drawn_weights(rng: np.random.Generator, kind: str, outputs: int, channels: int, rows: int, columns: int) -> np.ndarray:
    w = rng.standard_normal((outputs, channels, rows, columns))
    if kind == "edges":
        w -= w.mean((2, 3), keepdims=True)
    elif kind == "blurred":
        w += 2 * rng.standard_normal((outputs, channels, 1, 1))
    elif kind == "trained":  # most of the energy in some filters, and in the middle of each
        w *= rng.lognormal(0, 1, (outputs, channels, 1, 1))
        w[:, :, rows // 2, columns // 2] *= 3
    return w.astype(np.float32)


def factors(kind: Kind, x: np.ndarray, w: np.ndarray, isa: str, likeness: float = 0.0) -> tuple[float, float]:
    """Measured and estimated: the error of WINO over that of direct sums, root mean squares."""
    pads = (kind.rows // 2, kind.columns // 2) * 2
    wanted = convolve(x, w, pads, kind.stride)
    rng = np.random.default_rng(0)
    x_last, out = (channels_last(rng, v, True) for v in (x, np.empty(wanted.shape, np.float32)))
    got = run("WINO", out, [x_last, transformed(w, kind)], params(kind, pads, "IDENTITY"), isa=isa)
    ours, theirs = (np.sqrt(((y - wanted) ** 2).mean()) for y in (got, direct(x, w, pads, kind.stride)))
    return float(ours / theirs), accuracy.block_factor(accuracy.layer_of(w), kind.strides, kind.m, likeness)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("channels", [16, 150])
def test_estimate_bounds_what_is_measured(kind: Kind, channels: int) -> None:
    """What is measured is at most half as much again where pixels have nothing in common, and two and a half times as much where they do:
    the direct error of the few values that matter there varies. For noise the estimate holds from below, too."""
    seed = channels
    for number, (inputs, weights) in enumerate((i, w) for i in INPUTS for w in WEIGHTS):
        if channels > 100 and weights not in {"noise", WEIGHTS[(1 + INPUTS.index(inputs)) % len(WEIGHTS)]}:
            continue
        rng = np.random.default_rng([seed, number])
        x = drawn_input(rng, inputs, channels, 14)
        w = drawn_weights(rng, weights, 8, channels, kind.rows, kind.columns)
        measured, estimated = factors(kind, x, w, ISAS[0], LIKENESS[inputs])
        case = f"{inputs}, weights {weights}, seed {[seed, number]}: measured {measured:.2f}, estimated {estimated:.2f}"
        assert measured <= (2.5 if LIKENESS[inputs] else 1.5) * estimated, case
        if inputs == weights == "noise":
            assert estimated / 1.6 <= measured, case


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", [Kind(3, 3, 1, 4), Kind(1, 7, 1, 4), Kind(7, 1, 1, 6)], ids=str)
def test_every_instruction_set_has_the_same_error(isa: str, kind: Kind) -> None:
    """The parts that long sums consist of are those of the estimate: without them the factor would be twice as large."""
    rng = np.random.default_rng(3)
    x, w = drawn_input(rng, "noise", 400, 12), drawn_weights(rng, "noise", 8, 400, kind.rows, kind.columns)
    measured, estimated = factors(kind, x, w, isa)
    assert measured <= 1.3 * estimated


def test_larger_blocks_and_fewer_channels_have_larger_factors() -> None:
    rng = np.random.default_rng(5)
    for (rows, columns, stride), sides in winograd.BLOCKS.items():
        for channels in (16, 64, 256):
            layer = accuracy.layer_of(drawn_weights(rng, "noise", 16, channels, rows, columns))
            compared = sides if stride == 1 else (2, 4)  # three and two points along the even inputs are alike
            found = [accuracy.block_factor(layer, (stride, stride), m) for m in sides if m in compared]
            assert found == sorted(found)
    layers = [accuracy.layer_of(drawn_weights(rng, "noise", 16, c, 3, 3)) for c in (16, 64, 256, 1024)]
    found = [accuracy.block_factor(layer, (1, 1), 4) for layer in layers]
    assert found == sorted(found, reverse=True)


def test_size_of_weights_does_not_matter() -> None:
    w = drawn_weights(np.random.default_rng(6), "trained", 40, 24, 3, 3)
    one, other = (accuracy.block_factor(accuracy.layer_of(w * np.float32(scale)), (1, 1), 6) for scale in (1, 2.0**-60))
    assert one == pytest.approx(other, rel=1e-6)


def test_weights_that_are_not_numbers_count_as_noise() -> None:
    zeros, broken = np.zeros((4, 8, 3, 3), np.float32), np.full((4, 8, 3, 3), np.nan, np.float32)
    noise = accuracy.block_factor(accuracy.Layer(np.eye(9) / 9, 8, (3, 3)), (1, 1), 4)
    for w in (zeros, broken):
        assert accuracy.block_factor(accuracy.layer_of(w), (1, 1), 4) == pytest.approx(noise)
