"""In which order the elements of results lie, by who reads them."""

from __future__ import annotations

import numpy as np
import pytest
from graphs_by_hand import GraphBuilder
from small_graphs import image_as_tokens

from aspen_mp.planner.ir.graph import Graph, Node
from aspen_mp.planner.layout.storage import Storage, assign_storage


def layouts(graph: Graph) -> tuple[Storage, list[tuple[Node, tuple[int, ...]]]]:
    """Of element-wise sums: strides of their results."""
    storage = assign_storage(graph)
    return storage, [(node, storage.refs[node.output].strides) for node in storage.steps if node.op == "BINARY"]


def test_rows_of_products_lie_side_by_side() -> None:
    """Through views too: the sum of images has its channels last, the sum of it and of rows is row-major. Nothing is copied for it."""
    storage, (image, moved, _) = layouts(image_as_tokens(GraphBuilder()))
    assert image[1][1] == 1
    assert moved[1][-1] == 1
    for node in storage.steps:
        if node.op == "GEMM" and (rows := node.inputs[0]) is not None:
            assert storage.refs[rows].strides[-1] == 1
    assert all(node.op != "COPY" for node in storage.steps)


@pytest.mark.parametrize("read", ["as it is", "as columns", "by a convolution"])
def test_others_lie_as_what_they_are_made_of(read: str) -> None:
    b = GraphBuilder()
    x = b.binary(b.input(1, 18, 6, 7), b.input(1, 18, 6, 7))
    readers = {
        "as it is": lambda: b.unary(x),
        "as columns": lambda: b.linear(b.reshape(x, 1, 18, 42), 5),  # the axis that is summed over lies side by side already
        "by a convolution": lambda: b.conv(x, 8),
    }
    _, [(_, strides)] = layouts(b.graph(readers[read](), b.reduce(x, (1,))))
    assert strides == ((756, 1, 126, 18) if read == "by a convolution" else (756, 42, 7, 1))


def test_products_that_read_different_rows() -> None:
    """One of them reads columns, whatever the order."""
    b = GraphBuilder()
    x = b.binary(b.input(12, 20), b.input(12, 20))
    _, [(_, strides)] = layouts(b.graph(b.linear(b.transpose(x, 1, 0), 5), b.linear(x, 5)))
    assert strides == (20, 1)


@pytest.mark.parametrize("read", ["rows", "columns"])
def test_rows_of_bytes_lie_side_by_side(read: str) -> None:
    """What products of bytes read is made in their order, whoever makes it."""
    b = GraphBuilder()
    y = b.whole(b.input(1, 18, 42), np.int8)
    x = b.transpose(y, 0, 2, 1) if read == "columns" else y
    storage = assign_storage(b.graph(b.by_bytes(x, 34, columns=False)))
    assert storage.refs[x].strides[-1] == 1
    assert all(node.op != "COPY" for node in storage.steps)


@pytest.mark.parametrize("mode", ["max", "average"])
def test_maxima_lie_as_their_neighbours(mode: str) -> None:
    """Between the ends of a graph nothing changes the layout; beside a convolution channels are last. Averages always have them last."""
    window = {"kernel": (3, 3), "strides": (1, 1), "dilations": (1, 1), "pads": (1,) * 4, "count_include_pad": False}
    copies = []
    for beside in (False, True):
        b = GraphBuilder()
        x = b.input(1, 18, 6, 7)
        y = b.node("POOL", [x], x.shape, mode=mode, **window)
        storage = assign_storage(b.graph(b.conv(y, 8) if beside else y))
        copies.append(sum(node.op == "COPY" for node in storage.steps))
        if beside:
            assert storage.refs[y].strides[1] == 1
    assert copies == ([0, 2] if mode == "max" else [2, 2])
