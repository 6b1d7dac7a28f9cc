"""Distances between all rows of two tables, as converters of nearest neighbours write them."""

from __future__ import annotations

from typing import Final

from aspen_mp.planner.frontends.contrib.body import Body, Rule


def _cdist(b: Body) -> list[str]:
    """(a [m, columns], b [n, columns]) → [m, n]: |a|² + |b|² - 2ab, which rounding may bring below 0."""
    x, y, metric = b.name(0), b.name(1), b.get("metric", b"sqeuclidean")
    if metric not in {b"sqeuclidean", b"euclidean"}:
        raise b.unknown(f"has the metric {metric.decode(errors='replace')!r}", "use euclidean or sqeuclidean")
    if b.shape(0, 2)[1] != b.shape(1, 2)[1]:
        raise b.invalid(f"compares rows of {b.shape(0, 2)[1]} columns with rows of {b.shape(1, 2)[1]}")
    own, other = (b.emit("ReduceSumSquare", v, b.ints(1), keepdims=1) for v in (x, y))
    squares = b.emit("Add", own, b.emit("Transpose", other))
    product = b.emit("MatMul", x, b.emit("Transpose", y))
    twice = b.emit("Add", product, product)
    apart = b.emit("Relu", b.emit("Sub", squares, twice))
    return [apart if metric == b"sqeuclidean" else b.emit("Sqrt", apart)]


RULES: Final[dict[str, Rule]] = {"CDist": _cdist}
