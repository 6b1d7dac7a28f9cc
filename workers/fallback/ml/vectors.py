"""Support vector machines and linear models: SVMClassifier, SVMRegressor, LinearClassifier, LinearRegressor. Everything is float32, as the
standard's outputs are; sums over support vectors are in double."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from aspen_mp.workers.fallback.ml import scores
from aspen_mp.workers.fallback.ml.attributes import Array, Attributes, labels, rows

_F = np.float32
_SURE: Final = _F(1e-7)
_BLOCK: Final = 1 << 22
"""Elements of a block of differences between rows and support vectors."""


def _table(x: Array, columns: int) -> Array:
    table = rows(x).astype(_F, copy=False)
    if table.shape[1] != columns:
        raise ValueError(f"rows have {table.shape[1]} columns, and the model has {columns}")
    return table


class _Kernel:
    """The kernel function between rows and vectors [vectors, columns]."""

    def __init__(self, a: Attributes, vectors: Array, linear: bool) -> None:
        self.kind = "LINEAR" if linear else a.word("kernel_type", "LINEAR")
        if self.kind not in {"LINEAR", "POLY", "RBF", "SIGMOID"}:
            raise ValueError(f"no kernel_type is called {self.kind!r}; there are LINEAR, POLY, RBF, SIGMOID")
        numbers = a.floats("kernel_params")
        if numbers.size not in {0, 3}:
            raise ValueError(f"kernel_params has {numbers.size} numbers, not gamma, coef0 and degree")
        self.gamma, self.offset, self.degree = map(_F, numbers if numbers.size else (0, 0, 0))
        self.vectors = vectors

    def __call__(self, table: Array) -> Array:
        """[rows, vectors]"""
        if self.kind == "RBF":
            return self._distances(table)
        product: Array = table @ self.vectors.T
        if self.kind == "LINEAR":
            return product
        product = self.gamma * product + self.offset
        return np.asarray(np.power(product, self.degree) if self.kind == "POLY" else np.tanh(product))

    def _distances(self, table: Array) -> Array:
        """From the differences themselves: squares that cancel would lose what is small."""
        out = np.empty((len(table), len(self.vectors)), _F)
        step = max(1, _BLOCK // max(self.vectors.size, 1))
        for at in range(0, len(table), step):
            apart = table[at : at + step, None, :] - self.vectors
            np.einsum("rvc,rvc->rv", apart, apart, out=out[at : at + step])
        return np.asarray(np.exp(-self.gamma * out))


def _matrix(name: str, values: Array, height: int) -> Array:
    """A list as [height, …]."""
    if height <= 0 or values.size % height:
        raise ValueError(f"{name} has {values.size} numbers, which are not {height} rows")
    return values.reshape(height, -1)


def svm_regressor(a: Attributes) -> Callable[[Array], Array]:
    """SVMRegressor: [rows, 1]. There is no post transform, as in onnxruntime."""
    count, coefficients, rho = a.integer("n_supports", 0), a.floats("coefficients"), a.floats("rho")
    if not coefficients.size or not rho.size:
        raise ValueError("coefficients or rho is missing")
    vectors = _matrix("support_vectors", a.floats("support_vectors"), count) if count > 0 else coefficients[None]
    if count > 0 and coefficients.size != count:
        raise ValueError(f"there are {coefficients.size} coefficients for {count} support vectors")
    kernel = _Kernel(a, vectors, linear=count <= 0)
    one_class = bool(a.integer("one_class", 0))

    def run(x: Array) -> Array:
        found = kernel(_table(x, vectors.shape[1])).astype(np.float64)
        out = (found @ coefficients[:, None].astype(np.float64) if count > 0 else found) + rho[0]
        return np.where(out > 0, _F(1), _F(-1)) if one_class else out.astype(_F)

    return run


def svm_classifier(a: Attributes) -> Callable[[Array], tuple[Array, Array]]:
    """SVMClassifier: labels [rows] and scores; probabilities [rows, classes] where the model has them, else the margins of all pairs."""
    names = labels(a, "classlabels_ints")
    classes, counts = len(names), a.ints("vectors_per_class")
    coefficients, rho = a.floats("coefficients"), a.floats("rho")
    if not classes or not coefficients.size or not rho.size:
        raise ValueError("class labels, coefficients or rho are missing")
    transform = scores.checked(a.word("post_transform", "NONE"))
    positive = bool((coefficients >= 0).all())
    if counts.sum() > 0:
        machine = _Machine(a, names, coefficients, rho, counts)
        return lambda x: machine(x, transform)
    weights = _matrix("coefficients", coefficients, classes)
    kernel = _Kernel(a, weights, linear=True)

    def run(x: Array) -> tuple[Array, Array]:
        out = kernel(_table(x, weights.shape[1])) + rho[0]
        which = out.argmax(-1)
        if classes == 2:
            most = out.max(-1)
            which = np.where(most >= _F(0.5) if positive else most > 0, 1, which)
        return names[which], _written(out, transform)

    return run


def _written(out: Array, transform: str) -> Array:
    """For a single score, only PROBIT is a transform."""
    return scores.transformed(out, transform) if out.shape[1] > 1 or transform == "PROBIT" else out.astype(_F)


class _Machine:
    """A classifier of support vectors: one decision for each pair of classes."""

    def __init__(self, a: Attributes, names: Array, coefficients: Array, rho: Array, counts: Array) -> None:
        self.names, self.rho = names, rho
        n, total = len(names), int(counts.sum())
        pairs = n * (n - 1) // 2
        if len(counts) != n or counts.min() < 0:
            raise ValueError(f"vectors_per_class {counts.tolist()} does not fit {n} classes")
        if coefficients.size < (n - 1) * total or rho.size < pairs:
            raise ValueError(f"{coefficients.size} coefficients and {rho.size} rho do not fit {n} classes of {total} support vectors")
        self.kernel = _Kernel(a, _matrix("support_vectors", a.floats("support_vectors"), total), linear=False)
        self.coefficients = coefficients[: (n - 1) * total].reshape(n - 1, total).astype(np.float64)
        self.ends = np.cumsum(counts)
        self.left, self.right = np.triu_indices(n, 1)
        self.a, self.b = a.floats("prob_a"), a.floats("prob_b")
        if self.a.size != self.b.size or 0 < self.a.size < pairs:
            raise ValueError(f"{self.a.size} prob_a and {self.b.size} prob_b do not fit {pairs} pairs of classes")

    def __call__(self, x: Array, transform: str) -> tuple[Array, Array]:
        margins = self._margins(_table(x, self.kernel.vectors.shape[1]))
        votes = np.zeros((len(margins), len(self.names)), np.int64)
        for k, (i, j) in enumerate(zip(self.left, self.right, strict=True)):
            won = margins[:, k] > 0
            votes[:, i] += won
            votes[:, j] += ~won
        found = self.names[votes.argmax(-1)]
        out = margins.astype(_F)
        if self.a.size:
            return found, _written(self._probabilities(out), transform)
        if len(self.names) > 2:
            return found, scores.transformed(out, transform)
        if len(self.names) < 2:  # no pair
            return found, np.zeros((len(out), 2), _F)
        return found, scores.paired(out[:, 0], transform, complement=transform != "NONE")

    def _margins(self, table: Array) -> Array:
        """[rows, pairs], double: what the vectors of both classes of a pair say against the other class."""
        values = self.kernel(table).astype(np.float64)
        parts, begin = [], 0
        for end in self.ends.tolist():
            parts.append(values[:, begin:end] @ self.coefficients[:, begin:end].T)
            begin = end
        said = np.stack(parts, 1) if parts else np.zeros((len(table), 0, 0))
        i, j = self.left, self.right
        return said[:, i, j - 1] + said[:, j, i] + self.rho[: len(i)]

    def _probabilities(self, margins: Array) -> Array:
        """The probabilities of all classes, from those of pairs."""
        n, pairs = len(self.names), len(self.left)
        near = 1 - scores.logistic(margins * self.a[:pairs] + self.b[:pairs])
        near = np.clip(near, _SURE, 1 - _SURE)
        between = np.zeros((len(margins), n, n), _F)
        between[:, self.left, self.right], between[:, self.right, self.left] = near, 1 - near
        return coupled(between)


def coupled(between: Array) -> Array:
    """Probabilities [rows, classes] from those of pairs, [rows, i, j] of class i rather than j. This is the second method of Wu, Lin and
    Weng (2004), with libsvm's steps and stopping rule. Results are those of the last step."""
    many, n, _ = between.shape
    q = -between.transpose(0, 2, 1) * between
    k = np.arange(n)
    q[:, k, k] = (between**2).sum(1)
    p = np.full((many, n), 1 / _F(n), _F)
    close, live = _F(0.005) / _F(n), np.arange(many)
    for _ in range(100):
        m, now = q[live], p[live]
        qp = (m @ now[:, :, None])[:, :, 0]
        pqp = (now * qp).sum(-1)
        going = np.abs(qp - pqp[:, None]).max(-1) >= close
        live = live[going]
        if not live.size:
            break
        m, now, qp, pqp = m[going], now[going], qp[going], pqp[going]
        for t in range(n):
            step = (pqp - qp[:, t]) / m[:, t, t]
            now[:, t] += step
            scale = 1 + step
            pqp = (pqp + step * (step * m[:, t, t] + 2 * qp[:, t])) / scale / scale
            qp = (qp + step[:, None] * m[:, t]) / scale[:, None]
            now /= scale[:, None]
        p[live] = now
    return p


def linear_regressor(a: Attributes) -> Callable[[Array], Array]:
    """LinearRegressor: [rows, targets]."""
    targets, intercepts = a.integer("targets", 1), a.floats("intercepts")
    weights = _matrix("coefficients", a.floats("coefficients"), targets)
    offset: Any = intercepts if intercepts.size == targets else _F(0)
    transform = scores.checked(a.word("post_transform", "NONE"))
    return lambda x: _written(_table(x, weights.shape[1]) @ weights.T + offset, transform)


def linear_classifier(a: Attributes) -> Callable[[Array], tuple[Array, Array]]:
    """LinearClassifier: labels [rows] and scores [rows, classes]. One row of coefficients for two classes is the second one's."""
    names, intercepts, coefficients = labels(a, "classlabels_ints"), a.floats("intercepts"), a.floats("coefficients")
    classes = intercepts.size or max(len(names), 1)
    weights = _matrix("coefficients", coefficients, classes)
    offset: Any = intercepts if intercepts.size else _F(0)
    transform = scores.checked(a.word("post_transform", "NONE"))
    if classes > 1 and len(names) < classes:
        raise ValueError(f"there are {len(names)} class labels for {classes} classes")
    both: Array = names if len(names) == 2 else np.array(["0", "1"], object) if names.dtype == object else np.arange(2)

    def run(x: Array) -> tuple[Array, Array]:
        out = _table(x, weights.shape[1]) @ weights.T + offset
        if classes > 1:
            return names[out.argmax(-1)], scores.transformed(out, transform)
        found = both[(out[:, 0] > 0).astype(int)]
        if len(names) != 2:
            return found, _written(out, transform)
        return found, scores.paired(out[:, 0], transform, complement=True)

    return run
