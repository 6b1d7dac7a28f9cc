"""Region maps against what really is read: every input element is disturbed in turn, and the outputs that change must lie in boxes whose
region holds the element. Exact where the map promises to be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from graphs_by_hand import GraphBuilder
from numpy_kernels import NUMPY_KERNELS
from onnx import helper
from onnx.reference import ReferenceEvaluator

from aspen_mp.planner.ir.graph import Node, Tensor
from aspen_mp.planner.lower.builder import Builder
from aspen_mp.planner.ops.attention import GROUP
from aspen_mp.planner.ops.packing import bf16, byte_taps, winograd
from aspen_mp.planner.ops.params import NO_ACT
from aspen_mp.planner.ops.products import run_time_panels
from aspen_mp.planner.ops.recurrent import GRU_FORMS
from aspen_mp.planner.ops.table import input_region, params
from aspen_mp.shm.tables import KERNELS, UNARY
from aspen_mp.workers import _kernels

F32 = np.dtype(np.float32)


def onnx_function(op: str, n: int, **attrs: Any) -> Callable[..., np.ndarray]:
    names = [f"i{k}" for k in range(n)]
    node = helper.make_node(op, names, ["o"], **attrs)
    infos = [helper.make_tensor_value_info(name, 1, None) for name in names]
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("o", 1, None)])
    session = ReferenceEvaluator(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))
    return lambda *xs: np.asarray(session.run(None, dict(zip(names, xs, strict=True)))[0])


def kernel_node(op: str, inputs: Sequence[np.ndarray], shape: tuple[int, ...], attrs: dict[str, Any]) -> Node:
    tensors: list[Tensor | None] = [Tensor(f"i{k}", x.shape, x.dtype) for k, x in enumerate(inputs)]
    return Node(op, op, tensors, [Tensor("o", shape, F32)], attrs)


def boxes(rng: np.random.Generator, shape: tuple[int, ...], n: int) -> tuple[np.ndarray, np.ndarray]:
    lo = np.array([[rng.integers(0, d) for d in shape] for _ in range(n)], np.int64).reshape(n, len(shape))
    hi = np.array([[rng.integers(a + 1, d + 1) for a, d in zip(row, shape, strict=True)] for row in lo], np.int64).reshape(n, len(shape))
    lo[0], hi[0] = 0, shape
    return lo, hi


def check(
    op: str,
    function: Callable[..., np.ndarray],
    inputs: Sequence[np.ndarray],
    attrs: dict[str, Any],
    exact: bool,
    which: Sequence[int] = (0,),
    by: float = 1000,
) -> None:
    rng = np.random.default_rng(sum(map(ord, op + repr(attrs))))
    base = function(*inputs)
    node = kernel_node(op, inputs, base.shape, attrs)
    lo, hi = boxes(rng, base.shape, 40)
    for i in which:
        x = inputs[i]
        reads = np.zeros((x.size, *base.shape), bool)
        for k in range(x.size):
            disturbed = x.copy()
            disturbed.reshape(-1)[k] += by
            reads[k] = function(*inputs[:i], disturbed, *inputs[i + 1 :]) != base
        got_lo, got_hi = input_region(node, i, lo, hi)
        assert got_lo.shape == got_hi.shape == (len(lo), x.ndim)
        assert (got_lo >= 0).all() or (got_hi <= got_lo).any()
        assert (got_hi <= np.array(x.shape)).all()
        for n in range(len(lo)):
            box = tuple(slice(a, b) for a, b in zip(lo[n], hi[n], strict=True))
            used = np.argwhere(reads[(slice(None), *box)].reshape(x.size, -1).any(axis=1).reshape(x.shape))
            message = f"{op} {attrs} input {i} box {lo[n]}..{hi[n]} got {got_lo[n]}..{got_hi[n]}"
            if len(used) == 0:
                assert not exact or (got_hi[n] <= got_lo[n]).any(), message
                continue
            want_lo, want_hi = used.min(axis=0), used.max(axis=0) + 1
            assert (got_lo[n] <= want_lo).all(), message
            assert (got_hi[n] >= want_hi).all(), message
            if exact:
                assert (got_lo[n] == want_lo).all(), message
                assert (got_hi[n] == want_hi).all(), message


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).permutation(int(np.prod(shape))).reshape(shape).astype(F32)


@pytest.mark.parametrize(
    ("source", "target", "exact"),
    [
        ((6, 4), (2, 3, 4), True),
        ((2, 3, 4), (6, 4), True),
        ((2, 12), (2, 3, 4), True),
        ((2, 3, 4), (24,), True),
        ((24,), (2, 3, 4), True),
        ((4, 6), (8, 3), True),
        ((2, 3, 8), (2, 6, 2, 2), True),
        ((4, 6), (6, 4), False),
        ((3, 5, 2), (2, 5, 3), False),
        ((1, 6, 1), (2, 1, 3), True),
        ((5,), (1, 5, 1), True),
        ((1, 1), (), True),
        ((), (1, 1), True),
        ((2, 2, 3, 3), (2, 2, 9), True),
        ((12, 4), (3, 2, 8), True),
    ],
)
def test_reshape(source: tuple[int, ...], target: tuple[int, ...], exact: bool) -> None:
    check("view.reshape", lambda x: x.reshape(target), [values(*source)], {}, exact)


def test_transpose() -> None:
    check("view.transpose", lambda x: x.transpose(2, 0, 1), [values(2, 3, 4)], {"perm": (2, 0, 1)}, True)


def test_slice() -> None:
    check("view.slice", lambda x: x[1:, ::-2], [values(3, 7)], {"starts": (1, 6), "steps": (1, -2)}, True)


def test_expand() -> None:
    check("view.expand", lambda x: np.broadcast_to(x, (2, 3, 4)), [values(3, 1)], {}, True)


def test_concat() -> None:
    xs = [values(2, 3), values(2, 1), values(2, 4)]
    check("concat", lambda *x: np.concatenate(x, 1), xs, {"axis": 1}, True, (0, 1, 2))


def test_elementwise() -> None:
    check("BINARY", lambda a, b: a + b, [values(2, 3, 4), values(1, 3, 1)], {"opcode": "ADD"}, True, (0, 1))


def test_gemm() -> None:
    xs = [np.abs(values(2, 3, 4)) + 1, np.abs(values(1, 4, 5)) + 1, values(1, 1, 5), values(2, 3, 5)]
    check("GEMM", lambda a, b, c, d: a @ b + c + d, xs, {"packed_b": False}, True, (0, 1, 2, 3))


def test_gemm_of_doubles() -> None:
    xs = [np.abs(values(2, 3, 4)) + 1, np.abs(values(1, 4, 5)) + 1, values(1, 1, 5)]
    check("DGEMM", lambda a, b, c: a @ b + c, [x.astype(np.float64) for x in xs], {}, True, (0, 1, 2))


def test_attention() -> None:
    """Causal masking with -inf reads no key beyond what the group of the last row may see; a finite fill may need all keys."""
    node = kernel_node("ATTENTION", [values(2, 1, 9, 4), values(1, 3, 40, 4), values(1, 3, 40, 5), values(1, 1, 9, 40)], (2, 3, 9, 5), {})
    lo, hi = np.array([[0, 1, 2, 1]]), np.array([[2, 3, 5, 4]])
    for causal, fill, keys in ((False, -np.inf, 40), (True, -1e9, 40), (True, -np.inf, 5 + GROUP + 7)):
        node.attrs.update(causal=causal, fill=fill, offset=7)
        found = [tuple(x.tolist()[0] for x in input_region(node, i, lo, hi)) for i in range(4)]
        assert found[0] == ([0, 0, 2, 0], [2, 1, 5, 4])
        assert found[1] == ([0, 1, 0, 0], [1, 3, keys, 4])
        assert found[2] == ([0, 1, 0, 1], [1, 3, keys, 4])
        assert found[3] == ([0, 0, 2, 0], [1, 1, 5, 40])


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize(
    ("op", "option", "steps"), [("LSTM", 0, 1), ("LSTM", 0, 3), ("GRU", 0, 1), ("GRU", 1, 1), ("GRU", 1, 3), ("RNN", 0, 3)]
)
def test_recurrent(op: str, option: int, steps: int, reverse: int) -> None:
    """The kernels themselves; what is read for the cell state counts as read for step 0 of Y, whose tiles write it."""
    hidden, first, rng = 17, 1, np.random.default_rng(2)
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    shape = (steps, 1, 2, hidden)
    p = rng.standard_normal((first + steps + 1, 2, gates * hidden), dtype=np.float32)
    r = rng.standard_normal((2, hidden, {2: 2, 3: 1}.get(option, gates), 16), dtype=np.float32)
    h, c = rng.standard_normal((2, 1, 2, hidden), dtype=np.float32), rng.standard_normal((1, 1, 2, hidden), dtype=np.float32)
    of_form = [[], [rng.standard_normal(hidden, dtype=np.float32)], [], [h[:, :, :, ::-1].copy()]]
    more = {"LSTM": [c], "GRU": of_form[option], "RNN": []}[op]
    names = {"LSTM": {}, "GRU": {"form": list(GRU_FORMS)[option]}, "RNN": {"relu": False}}[op]

    def function(*inputs: np.ndarray) -> np.ndarray:
        outs = [np.zeros(shape, np.float32), np.zeros((1, *shape[1:]), np.float32)][: KERNELS[op].n_outputs]
        assert _kernels.call(op, [*outs, *inputs], [first, reverse, option], [0] * 4, shape) == 0
        y = outs[0].astype(np.float64)
        y[:1] += sum(1e3 * out for out in outs[1:])
        return y

    inputs = [p * np.float32(0.1), r * np.float32(0.1), h * np.float32(0.1), *more]
    check(op, function, inputs, {"first": first, "reverse": bool(reverse), **names}, False, range(len(inputs)), by=0.5)


def test_gemm_packed() -> None:
    node = kernel_node("GEMM", [values(4, 8), values(3, 8, 32)], (4, 80), {"packed_b": True})
    lo, hi = input_region(node, 1, np.array([[0, 0], [1, 33]]), np.array([[4, 32], [2, 80]]))
    assert lo.tolist() == [[0, 0, 0], [1, 0, 0]]
    assert hi.tolist() == [[1, 8, 32], [3, 8, 32]]


def test_gemm_in_pairs() -> None:
    """Strassen's products read the left factors of both rows of a pair, and both of two panels, as far as there are two."""
    inputs = [values(2, 7, 8), values(3, 8, 32), values(1, 1, 80), values(2, 7, 80), values(80), values(80), values(2, 4, 112)]
    node = kernel_node("GEMM", inputs, (2, 7, 80), {"packed_b": True})
    lo, hi = np.array([[0, 3, 40], [1, 6, 64], [0, 0, 0]]), np.array([[1, 5, 50], [2, 7, 80], [2, 1, 1]])
    found = {i: [x.tolist() for x in input_region(node, i, lo, hi)] for i in (0, 1, 3, 6)}
    assert found[0] == [[[0, 3, 0], [1, 6, 0], [0, 0, 0]], [[1, 5, 8], [2, 7, 8], [2, 1, 8]]]
    assert found[1] == [[[0, 0, 0], [2, 0, 0], [0, 0, 0]], [[2, 8, 32], [3, 8, 32], [2, 8, 32]]]
    assert found[3] == [lo.tolist(), hi.tolist()]
    assert found[6] == [[[0, 1, 0], [1, 3, 0], [0, 0, 0]], [[1, 3, 112], [2, 4, 112], [2, 1, 112]]]


def test_products_of_bits() -> None:
    """The kernel itself. A byte of a panel may be terms that there are not."""
    b, shape = GraphBuilder(6), (2, 3, 40)
    out = b.by_bits(b.input(2, 3, 5), 40, residual=b.input(2, 3, 40))
    assert out.producer is not None
    node = out.producer
    inputs = [values(2, 3, 5), *[t.value() for t in node.inputs[1:3] if t is not None], values(2, 3, 40)]

    def function(*given: np.ndarray) -> np.ndarray:
        result = np.zeros(shape, F32)
        seen = [x if i < 2 else np.broadcast_to(x, shape) for i, x in enumerate(given)]
        assert _kernels.call("QNBITGEMM", [result, *seen], params(kernel_node("QNBITGEMM", given, shape, node.attrs)), [0] * 3, shape) == 0
        return result

    check("QNBITGEMM", function, inputs, node.attrs, True, (2, 3), by=3)
    check("QNBITGEMM", function, inputs, node.attrs, False, (0, 1), by=1)


def test_products_of_pairs() -> None:
    """The kernel itself. Of a panel all terms are read, and no zeros behind the last column."""
    shape, w = (2, 3, 40), Tensor("w", (2, 5, 32), F32, data=values(2, 5, 32))
    inputs = [values(2, 3, 5), bf16.packed(w).value(), values(1, 1, 40), values(2, 3, 40), np.abs(values(40)) + 1, values(40)]
    attrs = {"alpha": 1.0, "act": NO_ACT}

    def function(*given: np.ndarray) -> np.ndarray:
        node, out = kernel_node("BGEMM", given, shape, attrs), np.zeros(shape, F32)
        seen = [np.broadcast_to(x, shape) if i in (2, 3) else x for i, x in enumerate(given)]
        assert _kernels.call("BGEMM", [out, *seen], params(node), [0] * 3, shape) == 0
        return out

    check("BGEMM", function, inputs, attrs, True, (0, 2, 3), by=3)
    node = kernel_node("BGEMM", inputs, shape, attrs)
    lo, hi = np.array([[0, 0, 31], [1, 2, 32]]), np.array([[1, 3, 32], [2, 3, 33]])
    assert [x.tolist() for x in input_region(node, 1, lo, hi)] == [[[0, 0, 0], [1, 0, 0]], [[1, 3, 32], [2, 3, 32]]]


def test_products_of_batches_of_bytes() -> None:
    """QPACK and QMATMUL by the kernels themselves."""
    rng, shape = np.random.default_rng(7), (2, 3, 40)
    b, zero = rng.integers(1, 50, (2, 5, 40)).astype(np.uint8), np.array([3], np.uint8)

    def packed(*given: np.ndarray) -> np.ndarray:
        out = np.zeros((2, *run_time_panels(5, 40)), np.int8)
        assert _kernels.call("QPACK", [out, *given], [], [0] * 4, out.shape) == 0
        return out

    lo, hi = input_region(
        kernel_node("QPACK", [b, zero], packed(b, zero).shape, {}), 0, np.array([[0, 1, 0, 0]]), np.array([[1, 2, 5, 128]])
    )
    assert (lo.tolist(), hi.tolist()) == ([[0, 0, 32]], [[1, 5, 40]])
    inputs = [rng.integers(100, 200, (2, 3, 5)).astype(np.uint8), packed(b, zero), values(1, 1, 40), values(2, 3, 40), values(1, 3, 1) + 1]
    attrs = {"zeros": True, "act": NO_ACT}

    def function(*given: np.ndarray) -> np.ndarray:
        node, out = kernel_node("QMATMUL", given, shape, attrs), np.zeros(shape, F32)
        seen = [x if i < 2 else np.broadcast_to(x, shape) for i, x in enumerate(given)]
        assert _kernels.call("QMATMUL", [out, *seen], params(node), [0] * 3, shape) == 0
        return out

    check("QMATMUL", function, inputs, attrs, True, (0, 2, 3, 4), by=3)
    lo, hi = input_region(kernel_node("QMATMUL", inputs, shape, attrs), 1, np.array([[0, 0, 31]]), np.array([[1, 3, 32]]))
    assert (lo.tolist(), hi.tolist()) == ([[0, 0, 0, 0]], [[1, 1, 5, 128]])


@pytest.mark.parametrize("kernel", [(3, 2), (1, 1)])
@pytest.mark.parametrize(
    ("stride", "dilation", "pads"), [((1, 1), (1, 1), (1, 1)), ((2, 1), (1, 2), (0, 2)), ((3, 2), (1, 1), (2, 0)), ((1, 1), (2, 1), (4, 3))]
)
def test_convolutions_of_pairs(kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int], pads: tuple[int, int]) -> None:
    """The kernel itself, as above. Padding is no input."""
    image = (7, 6)
    size = tuple((d + 2 * p - (k - 1) * e - 1) // s + 1 for d, p, k, e, s in zip(image, pads, kernel, dilation, stride, strict=True))
    shape, taps = (2, 40, *size), kernel[0] * kernel[1]
    w = bf16.packed(Tensor("w", (1, 2, 3 * taps, 32), F32, data=values(1, 2, 3 * taps, 32)), taps).value()
    inputs = [values(2, 3, *image), w, values(40), values(2, 40, *size), np.abs(values(40)) + 1, values(40)]
    inputs += [np.abs(values(3)) + 1, values(3)]
    attrs = {"act": NO_ACT, "kernel": kernel, "strides": stride, "dilations": dilation, "pads": pads}

    def function(*given: np.ndarray) -> np.ndarray:
        node, out = kernel_node("BCONV", given, shape, attrs), np.zeros(shape, F32)
        seen = [np.broadcast_to(x, shape) if i == 3 else x for i, x in enumerate(given)]
        assert _kernels.call("BCONV", [out, *seen], params(node), [0] * 4, shape) == 0
        return out

    exact = dilation == (1, 1) and stride != (3, 2) and kernel != (1, 1)
    check("BCONV", function, inputs, attrs, exact, (0,), by=3)
    check("BCONV", function, inputs, attrs, True, (2, 3), by=3)
    check("BCONV", function, inputs, attrs, False, (4, 5, 6, 7), by=3)
    node = kernel_node("BCONV", inputs, shape, attrs)
    lo, hi = np.array([[0, 31, 0, 0], [1, 32, 0, 0]]), np.array([[2, 33, 1, 1], [2, 40, *size]])
    rows = w.shape[1]
    assert [x.tolist() for x in input_region(node, 1, lo, hi)] == [[[0, 0, 0], [1, 0, 0]], [[2, rows, 32], [2, rows, 32]]]


def test_products_of_bytes() -> None:
    """The kernel itself. Terms and headers of a panel are read whole, and no zeros behind the last column."""
    rng, shape = np.random.default_rng(6), (2, 3, 40)
    w = Tensor("w", (5, 40), np.dtype(np.int8), data=rng.integers(1, 50, (5, 40)).astype(np.int8))
    points = Tensor("y", (40,), np.dtype(np.int8), data=rng.integers(-50, 0, 40).astype(np.int8))
    packed, zeros = Builder().packed_bytes(w, points)
    inputs = [rng.integers(100, 200, (2, 3, 5)).astype(np.uint8), packed.value(), values(1, 1, 40), values(2, 3, 40), values(1, 3, 1) + 1]
    inputs.append(np.array([[[3], [5], [7]]], np.uint8))
    attrs = {"zeros": zeros, "act": NO_ACT}

    def function(*given: np.ndarray) -> np.ndarray:
        node, out = kernel_node("QGEMM", given, shape, attrs), np.zeros(shape, F32)
        seen = [x if i < 2 else np.broadcast_to(x, shape) for i, x in enumerate(given)]
        assert _kernels.call("QGEMM", [out, *seen], params(node), [0] * 3, shape) == 0
        return out

    check("QGEMM", function, inputs, attrs, True, (0, 2, 3, 4, 5), by=3)
    check("QGEMM", function, inputs, attrs, False, (1,), by=1)
    lo, hi = input_region(
        kernel_node("QGEMM", inputs, shape, attrs), 1, np.array([[0, 0, 31], [1, 2, 32]]), np.array([[1, 3, 32], [2, 3, 33]])
    )
    assert lo.tolist() == [[0, 0, 0, 0], [1, 0, 0, 0]]
    assert hi.tolist() == [[1, 5, 32, 4], [2, 5, 32, 4]]


@pytest.mark.parametrize("kernel", [(3, 2), (1, 1)])
@pytest.mark.parametrize(
    ("stride", "dilation", "pads"), [((1, 1), (1, 1), (1, 1)), ((2, 1), (1, 2), (0, 2)), ((3, 2), (1, 1), (2, 0)), ((1, 1), (2, 1), (4, 3))]
)
def test_convolutions_of_bytes(kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int], pads: tuple[int, int]) -> None:
    """The kernel itself, as test_products_of_bytes. Padding is no input."""
    rng = np.random.default_rng(6)
    image = (7, 6)
    size = tuple((d + 2 * p - (k - 1) * e - 1) // s + 1 for d, p, k, e, s in zip(image, pads, kernel, dilation, stride, strict=True))
    shape = (2, 40, *size)
    w = Tensor("w", (40, 3, *kernel), np.dtype(np.int8), data=rng.integers(1, 20, (40, 3, *kernel)).astype(np.int8))
    points = Tensor("y", (40,), np.dtype(np.int8), data=rng.integers(-50, 0, 40).astype(np.int8))
    packed, zeros = Builder().packed_bytes(w, points)
    inputs = [rng.integers(100, 200, (2, 3, *image)).astype(np.uint8), packed.value(), values(40), values(2, 40, *size)]
    inputs += [values(1, 40, 1, 1) + 1, np.array([3], np.uint8)]
    attrs = {"zeros": zeros, "act": NO_ACT, "kernel": kernel, "strides": stride, "dilations": dilation, "pads": pads}

    def function(*given: np.ndarray) -> np.ndarray:
        node, out = kernel_node("QCONV", given, shape, attrs), np.zeros(shape, F32)
        seen = [np.broadcast_to(x, shape) if i in (3, 4) else x for i, x in enumerate(given)]
        assert _kernels.call("QCONV", [out, *seen], params(node), [0] * 4, shape) == 0
        return out

    exact = dilation == (1, 1) and stride != (3, 2) and kernel != (1, 1)
    check("QCONV", function, inputs, attrs, exact, (0,), by=3)
    check("QCONV", function, [*inputs[:3], values(1, 1, *size[:1], 1), *inputs[4:]], attrs, True, (2, 3), by=3)
    check("QCONV", function, inputs, attrs, False, (4,), by=3)  # of sums that are 0 no factor shows
    node = kernel_node("QCONV", inputs, shape, attrs)
    lo, hi = np.array([[0, 31, 0, 0], [1, 32, 0, 0]]), np.array([[2, 33, 1, 1], [2, 40, *size]])
    rows = packed.shape[1]
    assert [x.tolist() for x in input_region(node, 1, lo, hi)] == [[[0, 0, 0, 0], [1, 0, 0, 0]], [[2, rows, 32, 4], [2, rows, 32, 4]]]
    assert [x.tolist() for x in input_region(node, 3, lo, hi)] == [lo.tolist(), hi.tolist()]
    assert [x.tolist() for x in input_region(node, 5, lo, hi)] == [[[0]] * 2, [[1]] * 2]


@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize(
    ("stride", "dilation", "pads"), [((1, 1), (1, 1), (1, 1)), ((2, 1), (1, 2), (0, 2)), ((3, 2), (1, 1), (2, 0)), ((1, 1), (2, 1), (4, 3))]
)
def test_depthwise_convolutions_of_bytes(repeats: int, stride: tuple[int, int], dilation: tuple[int, int], pads: tuple[int, int]) -> None:
    """The kernel itself, as test_products_of_bytes. Padding is no input."""
    rng = np.random.default_rng(6)
    image, kernel, outputs = (7, 6), (3, 2), 12 * repeats
    size = tuple((d + 2 * p - (k - 1) * e - 1) // s + 1 for d, p, k, e, s in zip(image, pads, kernel, dilation, stride, strict=True))
    shape = (2, outputs, *size)
    w = Tensor("w", (outputs, 1, *kernel), np.dtype(np.int8), data=rng.integers(1, 20, (outputs, 1, *kernel)).astype(np.int8))
    packed, parts = byte_taps.packed(w, None)
    inputs = [rng.integers(100, 200, (2, 12, *image)).astype(np.uint8), packed.value(), values(outputs), values(2, outputs, *size)]
    inputs += [values(1, outputs, 1, 1) + 1, np.array([3], np.uint8)]
    attrs = {"parts": parts, "act": NO_ACT, "kernel": kernel, "strides": stride, "dilations": dilation, "pads": pads}

    def function(*given: np.ndarray) -> np.ndarray:
        node, out = kernel_node("QDWCONV", given, shape, attrs), np.zeros(shape, F32)
        seen = [np.broadcast_to(x, shape) if i in (3, 4) else x for i, x in enumerate(given)]
        assert _kernels.call("QDWCONV", [out, *seen], params(node), [0] * 4, shape) == 0
        return out

    check("QDWCONV", function, inputs, attrs, dilation == (1, 1) and stride != (3, 2), (0,), by=3)
    check("QDWCONV", function, [*inputs[:3], values(1, 1, *size[:1], 1), *inputs[4:]], attrs, True, (2, 3), by=3)
    check("QDWCONV", function, inputs, attrs, False, (4,), by=3)  # of sums that are 0 no factor shows


def test_left_factors() -> None:
    node = kernel_node("STRASSEN", [values(2, 7, 8)], (2, 4, 112), {})
    lo, hi = input_region(node, 0, np.array([[0, 1, 0], [1, 3, 0]]), np.array([[1, 3, 112], [2, 4, 112]]))
    assert lo.tolist() == [[0, 2, 0], [1, 6, 0]]
    assert hi.tolist() == [[1, 6, 8], [2, 7, 8]]


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    ("stride", "dilation", "pads"), [((1, 1), (1, 1), (1, 1, 1, 1)), ((2, 1), (1, 2), (0, 2, 1, 1)), ((3, 2), (1, 1), (2, 0, 0, 0))]
)
def test_conv(groups: int, stride: tuple[int, int], dilation: tuple[int, int], pads: tuple[int, int, int, int]) -> None:
    x, w, b = values(2, 4, 6, 5) + 1, values(4, 4 // groups, 3, 2) + 1, values(4)
    attrs = {"groups": groups, "kernel": (3, 2), "strides": stride, "dilations": dilation, "pads": pads[:2]}
    function = onnx_function("Conv", 3, group=groups, strides=stride, dilations=dilation, pads=pads)
    exact = dilation == (1, 1) and stride != (3, 2)
    check("CONV", function, [x, w, b], attrs, exact, (0,))
    check("CONV", function, [x, w, b], attrs, True, (2,))


@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize(("stride", "dilation", "pads"), [((1, 1), (1, 1), (1, 1, 1, 1)), ((2, 1), (1, 2), (0, 2, 1, 1))])
def test_depthwise(repeats: int, stride: tuple[int, int], dilation: tuple[int, int], pads: tuple[int, int, int, int]) -> None:
    outputs = 5 * repeats
    x, w, b = values(2, 5, 6, 5) + 1, values(6, outputs) + 1, values(outputs)
    conv = onnx_function("Conv", 3, group=5, strides=stride, dilations=dilation, pads=pads)

    def function(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
        return conv(x, w.T.reshape(outputs, 1, 3, 2), b)

    attrs = {"groups": 5, "kernel": (3, 2), "strides": stride, "dilations": dilation, "pads": pads[:2]}
    check("DWCONV", function, [x, w, b], attrs, dilation == (1, 1), (0,))
    check("DWCONV", function, [x, w, b], attrs, False, (1,))
    check("DWCONV", function, [x, w, b], attrs, True, (2,))


@pytest.mark.parametrize(("stride", "dilation", "pads"), [((1, 1), (1, 1), (1, 1, 1, 1)), ((2, 1), (1, 2), (0, 2, 1, 1))])
def test_pointwise_and_depthwise(stride: tuple[int, int], dilation: tuple[int, int], pads: tuple[int, int, int, int]) -> None:
    first = onnx_function("Conv", 2)
    second = onnx_function("Conv", 2, group=33, strides=stride, dilations=dilation, pads=pads)
    x, w, d, b = values(1, 2, 6, 5) + 1, values(33, 2, 1, 1) + 1, values(33, 1, 3, 2) + 1, values(33)

    def function(x: np.ndarray, w: np.ndarray, b: np.ndarray, d: np.ndarray, late: np.ndarray) -> np.ndarray:
        return np.asarray(second(first(x, w) + b[:, None, None], d) + late[:, None, None])

    attrs = {"kernel": (3, 2), "strides": stride, "dilations": dilation, "pads": pads[:2]}
    check("PWDW", function, [x, w, b, d, b], attrs, dilation == (1, 1), (0,))
    check("PWDW", function, [x, w, b, d, b], attrs, True, (4,))
    node = kernel_node("PWDW", [x, w, b, d, b], (1, 40, 4, 4), attrs)
    boxes = np.array([[0, 0, 0, 0], [0, 32, 0, 0]]), np.array([[1, 33, 1, 1], [1, 40, 4, 4]])
    lo, hi = input_region(node, 1, *boxes)
    assert lo[:, 1].tolist() == [0, 1]
    assert hi[:, 1].tolist() == [2, 2]
    lo, hi = input_region(node, 3, *boxes)
    assert lo[:, 1].tolist() == [0, 32]
    assert hi[:, 1].tolist() == [33, 40]


@pytest.mark.parametrize(("kind", "block"), [(kind, block) for kind, blocks in winograd.BLOCKS.items() for block in blocks])
@pytest.mark.parametrize("pads", [(1, 1, 1, 1), (0, 2, 1, 0), (2, 0, 0, 3)])
def test_winograd(kind: tuple[int, int, int], block: int, pads: tuple[int, int, int, int]) -> None:
    """A value is missing in all of a block if it is missing anywhere in the block's input."""
    kernel, strides = kind[:2], (kind[2], kind[2])
    x, w = values(2, 2, 9, 7), values(33, 2, *kernel)
    u = np.empty(winograd.packed_shape(w.shape, block, strides), np.float32)
    winograd.pack(block, w.astype(np.float32), u, strides)
    shape = (2, 33, *((d + pads[i] + pads[i + 2] - kernel[i]) // kind[2] + 1 for i, d in enumerate((9, 7))))
    attrs = {"groups": 1, "kernel": kernel, "strides": strides, "dilations": (1, 1), "pads": pads[:2], "act": NO_ACT, "block": block}
    node = kernel_node("WINO", [x, u], shape, attrs)
    p = params(node)
    lo, hi = boxes(np.random.default_rng(0), shape, 25)
    got_lo, got_hi = input_region(node, 0, lo, hi)
    reads = np.zeros((x.size, *shape), bool)
    for k in range(x.size):
        holed = x.astype(np.float64)
        holed.reshape(-1)[k] = np.nan
        reads[k] = np.isnan(NUMPY_KERNELS["WINO"](shape, p, holed, u))
    for n in range(len(lo)):
        box = tuple(slice(a, b) for a, b in zip(lo[n], hi[n], strict=True))
        used = np.argwhere(reads[(slice(None), *box)].reshape(x.size, -1).any(axis=1).reshape(x.shape))
        if not len(used):  # a box that sees nothing but padding
            assert (got_lo[n] >= got_hi[n]).any()
            continue
        assert (got_lo[n] == used.min(axis=0)).all()
        assert (got_hi[n] == used.max(axis=0) + 1).all()
    lo, hi = input_region(node, 1, np.array([[0, 0, 0, 0], [0, 32, 0, 0]]), np.array([[1, 20, 4, 4], [2, 33, 1, 1]]))
    assert lo.tolist() == [[0, 0, 0, 0], [1, 0, 0, 0]]
    assert hi.tolist() == [[1, *u.shape[1:]], [2, *u.shape[1:]]]


def test_conv_weights() -> None:
    node = Node("CONV", "c", [None, Tensor("w", (2, 2, 9, 32), F32)], [Tensor("o", (1, 80, 4, 4), F32)], {"groups": 2})
    lo, hi = input_region(
        node, 1, np.array([[0, 0, 0, 0], [0, 36, 0, 0], [0, 40, 0, 0]]), np.array([[1, 32, 1, 1], [1, 80, 1, 1], [1, 80, 1, 1]])
    )
    assert lo[:, :2].tolist() == [[0, 0], [0, 0], [1, 0]]
    assert hi[:, :2].tolist() == [[1, 1], [2, 2], [2, 2]]


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_pool(op: str) -> None:
    attrs = {"kernel": (3, 2), "strides": (2, 1), "dilations": (1, 1), "pads": (1, 0, 1, 1)}
    function = onnx_function(op, 1, kernel_shape=(3, 2), strides=(2, 1), pads=(1, 0, 1, 1))
    check("POOL", function, [values(1, 2, 7, 5)], attrs, True)


def test_reductions() -> None:
    x = values(3, 4, 5)
    check("REDUCE", lambda a: a.sum(axis=(0, 2), keepdims=True), [x], {"axes": (0, 2)}, True)
    check("SOFTMAX", lambda a: np.cumsum(a, 1) * 0 + a.sum(axis=1, keepdims=True), [x], {"axis": 1}, True)
    check("NORM", lambda a: a * 0 + a.sum(axis=(1, 2), keepdims=True), [x], {"axis": 1}, True)
    check("ARGREDUCE", lambda a: a.sum(axis=2, keepdims=True), [x], {"axis": 2}, True)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("parts", [1, 2, 3, 5, 9])
def test_extremes(axis: int, parts: int) -> None:
    """The sum in the place of the greatest: what lies between is read, too."""
    x = values(3, 4, 5)

    def function(a: np.ndarray) -> np.ndarray:
        cuts = [b * a.shape[axis] // parts for b in range(parts + 1)]
        sums = [a.take(range(begin, end), axis).sum() for begin, end in pairwise(cuts)]
        return np.repeat(np.array(sums)[:, None], 2, 1)

    check("MINMAX", function, [x], {"axis": axis}, True)


@pytest.mark.parametrize(("blocks", "groups"), [(1, 2), (3, 1), (4, 4), (12, 2)])
def test_images(blocks: int, groups: int) -> None:
    """The kernels themselves. Blocks of pixels need not be whole rows: the hull of their pixels is read."""
    x, scale = values(2, 4, 3, 4), values(2, 4) + 1
    n, _, height, width = x.shape

    def moments(a: np.ndarray) -> np.ndarray:
        out = np.zeros((n, blocks, groups, 2))
        assert _kernels.call("MOMENTS", [out, a], [], [0] * 4, out.shape) == 0
        return out + out[..., ::-1]  # a mean may stay while the squares change

    def standardize(a: np.ndarray, m: np.ndarray, s: np.ndarray, b: np.ndarray, r: np.ndarray) -> np.ndarray:
        out = np.zeros_like(a)
        p = [1e-5, UNARY["IDENTITY"], 0.0, 0.0]
        assert _kernels.call("STANDARDIZE", [out, a, m, s, b, r], p, [0] * 4, out.shape) == 0
        return out

    check("MOMENTS", moments, [x], {}, width * height % blocks == 0 and (width * height // blocks) % width == 0)
    m = np.random.default_rng(0).uniform(1, 2, (n, blocks, groups, 2))
    check("STANDARDIZE", standardize, [x, m, scale, scale[:1], x], {"eps": 1e-5, "act": NO_ACT}, True, (0, 1, 2, 3, 4))


@pytest.mark.parametrize("size", [1, 3, 4])
def test_lrn(size: int) -> None:
    # Far disturbed values must show in every neighbour: linear stand-in for the sum of squares.
    def function(x: np.ndarray) -> np.ndarray:
        out = np.zeros_like(x)
        for c in range(x.shape[1]):
            out[:, c] = x[:, max(0, c - (size - 1) // 2) : min(x.shape[1], c + size // 2 + 1)].sum(axis=1)
        return out

    check("LRN", function, [values(1, 7, 2, 1)], {"size": size}, True)


@pytest.mark.parametrize(("exclusive", "reverse"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_cumsum(exclusive: int, reverse: int) -> None:
    function = onnx_function("CumSum", 2, exclusive=exclusive, reverse=reverse)
    axis = np.array(1, np.int64)
    check("CUMSUM", lambda x: function(x, axis), [values(2, 5)], {"axis": 1, "exclusive": exclusive, "reverse": reverse}, True)


def real(op: str, shape: tuple[int, ...], attrs: dict[str, Any]) -> Callable[..., np.ndarray]:
    """The kernel itself, over a whole output."""

    def function(*inputs: np.ndarray) -> np.ndarray:
        node, out = kernel_node(op, inputs, shape, attrs), np.zeros(shape, F32)
        assert _kernels.call(op, [out, *inputs], params(node), [0] * len(shape), shape) == 0
        return out

    return function


@pytest.mark.parametrize("axes", [2, 3])
def test_grids(axes: int) -> None:
    image, points = (3, 4, 2)[:axes], (2, 3, 2)[:axes]
    grid = np.random.default_rng(4).uniform(-0.9, 0.9, (2, *points, axes)).astype(F32)
    attrs = {"mode": "linear", "padding": "zeros", "align_corners": True}
    function = real("GRIDSAMPLE", (2, 3, *points), attrs)
    check("GRIDSAMPLE", function, [values(2, 3, *image), grid], attrs, False)
    check("GRIDSAMPLE", function, [values(2, 3, *image), grid], attrs, True, (1,), by=0.5)


@pytest.mark.parametrize("known", [False, True])
def test_regions_of_images(known: bool) -> None:
    x, rois, batches = values(3, 2, 4, 5), np.array([[0, 0, 3, 3], [1, 1, 4, 2], [0, 1, 5, 4]], F32), np.array([2, 0, 1])
    attrs = {"mode": "avg", "ratio": 2, "scale": 1.0, "half_pixel": True}
    function = real("ROIALIGN", (3, 2, 2, 2), attrs)
    check("ROIALIGN", lambda x, rois: function(x, rois, batches), [x, rois], attrs, False, (1,), by=1.5)
    node = kernel_node("ROIALIGN", [x, rois, batches], (3, 2, 2, 2), attrs)
    if known:
        node.inputs[2] = Tensor("b", batches.shape, batches.dtype, data=batches)
    lo, hi = np.array([[0, 0, 0, 0], [1, 1, 0, 1], [1, 0, 0, 0]]), np.array([[1, 2, 2, 2], [2, 2, 1, 2], [3, 1, 2, 2]])
    got_lo, got_hi = input_region(node, 0, lo, hi)
    assert got_lo.tolist() == [[[0, 2][known], 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    assert got_hi.tolist() == [[3, 2, 4, 5], [[3, 1][known], 2, 4, 5], [[3, 2][known], 1, 4, 5]]
    assert [a.tolist() for a in input_region(node, 2, lo, hi)] == [[[0], [1], [1]], [[1], [2], [3]]]


@pytest.mark.parametrize(("channels", "groups", "parts"), [(4, 1, 1), (6, 2, 3), (6, 3, 1)])
def test_what_taps_read(channels: int, groups: int, parts: int) -> None:
    rng = np.random.default_rng(channels)
    attrs = {"groups": groups, "parts": parts, "kernel": (1, 2), "strides": (1, 1), "dilations": (1, 1), "pads": (0, 0)}
    offsets, mask = (rng.uniform(0.2, 0.8, (2, k * parts, 2, 2)).astype(F32) for k in (4, 2))
    function = real("DEFORM", (2, 2 * channels, 2, 2), attrs)
    check("DEFORM", function, [values(2, channels, 3, 4), offsets, mask], attrs, False, (0, 1, 2), by=0.3)


def test_choices() -> None:
    x = values(3, 5, 2)
    check("TOPK", lambda a: a[:, :2] * 0 + a.sum(axis=1, keepdims=True), [x], {"axis": 1, "largest": True}, True)
    check("INDEX", lambda i: i.sum(axis=-1), [np.arange(12).reshape(3, 2, 2)], {"dims": (7, 8)}, True)
    updates, indices = values(2, 4, 2), np.zeros((2, 4, 2), np.int64)

    def function(a: np.ndarray, i: np.ndarray, u: np.ndarray) -> np.ndarray:
        out = a.copy()
        out[:2] += (i + u).sum(axis=1, keepdims=True)
        return out

    check("SCATTER", function, [x, indices, updates], {"axis": 1, "reduction": "add"}, False, (0, 1, 2))


@pytest.mark.parametrize("index", [np.array(2), np.array([3, 1, -1]), np.array([[0, 2], [1, 1]])])
def test_gather(index: np.ndarray) -> None:
    node = Node("GATHER", "g", [Tensor("x", (2, 4, 3), F32), Tensor("i", index.shape, index.dtype, data=index)], [], {"axis": 1})
    shape = (2, *index.shape, 3)
    node.outputs.append(Tensor("o", shape, F32))
    source = np.arange(24).reshape(2, 4, 3)
    picked = np.take(source, index, axis=1)
    lo, hi = boxes(np.random.default_rng(1), shape, 30)
    got_lo, got_hi = input_region(node, 0, lo, hi)
    for n in range(len(lo)):
        used = np.argwhere(np.isin(source, picked[tuple(slice(a, b) for a, b in zip(lo[n], hi[n], strict=True))]))
        assert (got_lo[n] <= used.min(axis=0)).all()
        assert (got_hi[n] >= used.max(axis=0) + 1).all()
        if index.ndim < 2:
            assert (got_lo[n] == used.min(axis=0)).all()
            assert (got_hi[n] == used.max(axis=0) + 1).all()
    lo1, hi1 = input_region(node, 1, lo, hi)
    assert lo1.tolist() == lo[:, 1 : 1 + index.ndim].tolist()
    assert hi1.tolist() == hi[:, 1 : 1 + index.ndim].tolist()


@pytest.mark.parametrize(("mode", "exact"), [("constant", True), ("edge", True), ("reflect", True), ("wrap", False)])
@pytest.mark.parametrize("pads", [(1, 2, 2, 3), (0, -1, 3, -2), (3, 3, 3, 3), (0, 0, 1, 0)])
def test_pad(mode: str, exact: bool, pads: tuple[int, ...]) -> None:
    if min(pads) < 0 and mode != "constant":
        pads = tuple(abs(p) for p in pads)

    def function(x: np.ndarray) -> np.ndarray:
        out = np.pad(x, [(max(pads[0], 0), max(pads[2], 0)), (max(pads[1], 0), max(pads[3], 0))], mode=mode)  # type: ignore[call-overload]
        return out[max(-pads[0], 0) :, max(-pads[1], 0) : out.shape[1] - max(-pads[3], 0)]

    check("PAD", function, [values(4, 5)], {"mode": mode.upper(), "begin": pads[:2]}, exact)


def _with(function: Callable[..., np.ndarray], given: Sequence[np.ndarray], x: np.ndarray) -> np.ndarray:
    return function(x, *given)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinate", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric"])
@pytest.mark.parametrize("sizes", [(8, 10), (6, 3), (1, 7)])
def test_resize(mode: str, coordinate: str, sizes: tuple[int, int]) -> None:
    x = values(4, 5)
    for nearest in ("round_prefer_floor", "floor", "ceil", "round_prefer_ceil") if mode == "nearest" else ("floor",):
        function = onnx_function("Resize", 4, mode=mode, coordinate_transformation_mode=coordinate, nearest_mode=nearest)
        scales = tuple(o / i for o, i in zip(sizes, x.shape, strict=True))
        attrs = {"mode": mode, "coordinate": coordinate, "nearest": nearest, "scales": scales, "cubic_coeff_a": -0.75, "exclude_outside": 0}
        given = [np.array([], F32), np.array([], F32), np.array(sizes, np.int64)]
        check("RESIZE", partial(_with, function, given), [x], attrs, False)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("scales", [(0.6, 0.7), (0.9, 2.3), (1.3, 0.35)])
def test_resize_by_lengths_that_are_not_rounded(mode: str, scales: tuple[float, float]) -> None:
    """As ONNX's reference aligns corners: lengths by these scales are no whole numbers."""
    x = values(8, 9)
    function = onnx_function("Resize", 3, mode=mode, coordinate_transformation_mode="align_corners", nearest_mode="floor")
    attrs = {"mode": mode, "coordinate": "align_fractional_corners", "nearest": "floor", "scales": scales}
    given = [np.array([], F32), np.array(scales, F32)]
    check("RESIZE", partial(_with, function, given), [x], {**attrs, "cubic_coeff_a": -0.75, "exclude_outside": 0}, False)


def test_doubling_nearest_is_exact() -> None:
    attrs = {
        "mode": "nearest",
        "coordinate": "asymmetric",
        "nearest": "floor",
        "scales": (2.0, 2.0),
        "cubic_coeff_a": -0.75,
        "exclude_outside": 0,
    }
    check("RESIZE", lambda x: x.repeat(2, 0).repeat(2, 1), [values(3, 4)], attrs, True)


def test_rows_of_learned_models() -> None:
    """A row of the same row; of vectors by panels, of scores by columns where each is transformed for itself, of tables all."""
    lo, hi = np.array([[1, 0], [0, 33], [2, 31]]), np.array([[3, 1], [4, 40], [3, 33]])
    rbf = kernel_node("RBF", [values(4, 5), values(2, 5, 32)], (4, 40), {"gamma": 1.0})
    assert [a.tolist() for a in input_region(rbf, 0, lo, hi)] == [[[1, 0], [0, 0], [2, 0]], [[3, 5], [4, 5], [3, 5]]]
    assert [a[:, 0].tolist() for a in input_region(rbf, 1, lo, hi)] == [[0, 1, 0], [1, 2, 2]]
    for transform, first in (("LOGISTIC", [0, 33, 31]), ("SOFTMAX", [0, 0, 0])):
        scores = kernel_node("SCORES", [values(4, 40)], (4, 40), {"transform": transform, "second": ""})
        assert input_region(scores, 0, lo, hi)[0][:, 1].tolist() == first
    attrs = {"aggregate": "SUM", "flags": False, "most": 1, "steps": 1}
    trees = kernel_node("TREES", [values(4, 5), np.zeros((6, 4), np.int32), np.zeros((2, 4), np.int32)], (4, 40), attrs)
    assert input_region(trees, 0, lo, hi)[1].tolist() == [[3, 5], [4, 5], [3, 5]]
    assert input_region(trees, 1, lo, hi)[1].tolist() == [[6, 4]] * 3


def test_opaque_reads_everything() -> None:
    node = kernel_node("OPAQUE", [values(2, 3)], (5,), {})
    lo, hi = input_region(node, 0, np.array([[1]]), np.array([[2]]))
    assert lo.tolist() == [[0, 0]]
    assert hi.tolist() == [[2, 3]]
