"""Streams that stop changes which have become small inside the network."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import aspen_mp

CHANNELS = 32
SHAPE = (1, CHANNELS, 64, 96)
LAYERS = 8
NO_DIFFERENCE = 1e-30
"""A share of a range that is less than any difference."""


def network(branches: bool = False) -> onnx.ModelProto:
    """Convolutions behind each other whose far taps count little. `branches`: with residual sums, and the first ones concatenated at the
    end, as in a U-Net."""
    rng = np.random.default_rng(5)
    nodes, stored, x = [], [], "x"
    for k in range(LAYERS):
        weights = (rng.standard_normal((CHANNELS, CHANNELS, 5, 5)) * np.array([0.05, 0.2, 1, 0.2, 0.05])[:, None] / 28).astype(np.float32)
        stored.append(numpy_helper.from_array(weights, f"w{k}"))
        nodes.append(helper.make_node("Conv", [x, f"w{k}"], [f"c{k}"], pads=[2] * 4))
        nodes.append(helper.make_node("Tanh", [f"c{k}"], [f"t{k}"]))
        if branches and k % 2:
            nodes.append(helper.make_node("Add", [f"t{k}", f"t{k - 1}"], [f"a{k}"]))
        x = f"a{k}" if branches and k % 2 else f"t{k}"
    if branches:
        nodes.append(helper.make_node("Concat", ["t0", "a3", x], ["y"], axis=1))
    else:
        nodes.append(helper.make_node("Neg", [x], ["y"]))
    info = [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", *info, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture(params=[False, True], ids=["chain", "branches"])
def model(request: pytest.FixtureRequest, shared_runtime: aspen_mp.Runtime) -> Iterator[aspen_mp.Model]:
    loaded = shared_runtime.load(network(request.param))
    yield loaded
    loaded.unload()


def image(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)


def off(near: dict[str, np.ndarray], whole: dict[str, np.ndarray]) -> float:
    """The largest difference by the range of the output."""
    return max(float(np.abs(near[name] - want).max() / np.ptp(want)) for name, want in whole.items())


def test_less_runs_and_results_are_near(model: aspen_mp.Model) -> None:
    x = image()
    with model.stream(same_bits=False) as all_of_it, model.stream(layer_tol=0.01) as stream:
        for one in (all_of_it, stream):
            one.run({"x": x})
        for k in range(4):
            x[:, :, 10 * k : 10 * k + 4, 20:24] += 0.5
            all_of_it.run({"x": x})
            near = stream.run({"x": x})
            assert stream.last is not None
            assert all_of_it.last is not None
            assert 0 < stream.last.work < 0.8 * all_of_it.last.work
            assert off(near, model.run({"x": x})) < 0.05


def test_small_changes_do_not_add_up(model: aspen_mp.Model) -> None:
    """Each frame differs by less than the tolerance from the one before, and after many frames by much more from the first."""
    x = image()
    with model.stream(layer_tol=0.02) as stream:
        stream.run({"x": x})
        for _ in range(40):
            x[:, :, 20:30, 30:40] += 0.02
            near = stream.run({"x": x})
        assert off(near, model.run({"x": x})) < 0.1
        first = model.run({"x": image()})
        assert off(near, first) > 0.12


def test_every_difference_counts_where_the_tolerance_is_tiny(model: aspen_mp.Model) -> None:
    """Whatever changed, however often: what runs is all that depends on it."""
    rng, x = np.random.default_rng(1), image()
    with model.stream(layer_tol=NO_DIFFERENCE) as stream, model.stream(layer_tol=NO_DIFFERENCE, memory=10 << 20) as small:
        for k in range(30):
            lo = [int(rng.integers(0, n)) for n in SHAPE]
            box = tuple(slice(a, a + int(rng.integers(1, 12))) for a in lo)
            x[box] = rng.standard_normal(x[box].shape)
            whole = model.run({"x": x})
            changed = None if k % 2 else [(tuple(s.start for s in box), tuple(s.stop for s in box))]
            for one in (stream, small):
                assert off(one.run({"x": x}, changed), whole) < 1e-5, k


def test_refresh_tells_the_error(model: aspen_mp.Model) -> None:
    x = image()
    with model.stream(layer_tol=0.02, refresh=3) as stream:
        for k in range(7):
            x[:, :, 5 * k : 5 * k + 9, 20:40] += 0.01 + 0.1 * k
            got = stream.run({"x": x})
        assert stream.last is not None
        assert stream.last.error is not None
        assert 0 < stream.last.error < 0.1
        assert off(got, model.run({"x": x})) < 1e-5


def test_results_are_the_caller_s(model: aspen_mp.Model) -> None:
    """Memory of results is used again only when nobody refers to it, also through views of views, and may be written to."""
    x = image()
    with model.stream(layer_tol=0.01) as stream:
        held = []
        for k in range(8):
            x[:, :, k] += 1
            got = stream.run({"x": x})["y"]
            want = got.copy()
            held.append((got[0, 3:].reshape(-1)[::2] if k % 2 else got, want[0, 3:].reshape(-1)[::2] if k % 2 else want))
            if k % 3 == 2:
                held.pop(0)
                other = stream.run({"x": x})["y"]
                other[...] = 77
            for found, right in held:
                np.testing.assert_array_equal(found, right)


def test_both_wishes_do_not_go_together(model: aspen_mp.Model) -> None:
    with pytest.raises(ValueError, match="does not go with same_bits=True"):
        model.stream(layer_tol=0.01, same_bits=True)
    for wrong in (-1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="layer_tol must be"):
            model.stream(layer_tol=wrong)
