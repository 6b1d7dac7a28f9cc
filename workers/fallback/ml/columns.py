"""Operators on columns of numbers: Scaler, Normalizer, Imputer, Binarizer, FeatureVectorizer, ArrayFeatureExtractor."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aspen_mp.workers.fallback.ml.attributes import Array, Attributes, rows

_F = np.float32


def _stride(x: Array) -> int:
    """How many columns there are, by which parameters repeat."""
    if x.ndim == 0:
        raise ValueError("the input is a scalar; rows of columns are expected")
    return int(x.shape[0] if x.ndim == 1 else x.shape[1])


def _fitting(name: str, values: Array, x: Array) -> Array:
    """Parameters beside the elements of x: one for all, or one for each column."""
    if values.size == 1:
        return values.reshape(())
    if values.size != _stride(x):
        raise ValueError(f"{name} has {values.size} numbers for rows of {_stride(x)} columns")
    # Columns are counted in the order of memory, as onnxruntime counts them.
    return values if x.ndim < 3 else np.resize(values, x.size).reshape(x.shape)


def scaler(a: Attributes) -> Callable[[Array], Array]:
    """Scaler: (x - offset) * scale in float32, of doubles in double."""
    offset, scale = a.floats("offset"), a.floats("scale")
    if offset.size != scale.size or not scale.size:
        raise ValueError(f"scale has {scale.size} numbers and offset {offset.size}; both must have one, or one for each column")

    def run(x: Array) -> Array:
        wide = x if x.dtype == np.float64 else x.astype(_F, copy=False)
        return ((wide - _fitting("offset", offset, x)) * _fitting("scale", scale, x)).astype(_F)

    return run


def normalizer(a: Attributes) -> Callable[[Array], Array]:
    """Normalizer: each row by its largest element, the sum of its magnitudes, or its length; rows whose norm is 0 stay as they are."""
    norm = a.word("norm", "MAX")
    if norm not in {"MAX", "L1", "L2"}:
        raise ValueError(f"no norm is called {norm!r}; there are MAX, L1, L2")

    def run(x: Array) -> Array:
        if not x.size:
            return x.astype(_F)
        table = rows(x)
        value = table.astype(_F)
        if norm == "MAX":
            by = value.max(-1, keepdims=True)
        elif norm == "L1":
            by = np.abs(value).sum(-1, keepdims=True)
        else:
            squares = (table * table).astype(_F)
            by = squares.sum(-1, keepdims=True)
            value = np.where(by != 0, np.copysign(np.sqrt(squares / np.where(by == 0, 1, by)), value), value)
            return value.reshape(x.shape)
        return (value / np.where(by == 0, _F(1), by)).reshape(x.shape)

    return run


def imputer(a: Attributes) -> Callable[[Array], Array]:
    """Imputer: one value, or NaN, becomes another, or one of each column."""
    floats, ints = a.floats("imputed_value_floats"), a.ints("imputed_value_int64s")
    if bool(floats.size) == bool(ints.size):
        raise ValueError("one of imputed_value_floats and imputed_value_int64s must be given, not both")
    old_float, old_int = np.float32(a.number("replaced_value_float", 0.0)), a.integer("replaced_value_int64", 0)

    def run(x: Array) -> Array:
        whole = x.dtype.kind in "iu"
        new = ints if whole else floats
        if not new.size:
            raise ValueError(f"there are no imputed values for {x.dtype}")
        gone = x == old_int if whole else np.isnan(x) if np.isnan(old_float) else x == old_float
        by = new if new.size == _stride(x) else new[:1]
        return np.where(gone, _fitting("imputed values", by, x), x).astype(x.dtype)

    return run


def binarizer(a: Attributes) -> Callable[[Array], Array]:
    """Binarizer: 1 above the threshold, else 0. NaN is refused, as by onnxruntime."""
    threshold = np.float32(a.number("threshold", 0.0))

    def run(x: Array) -> Array:
        if x.dtype.kind == "f" and np.isnan(x).any():
            raise ValueError("the input holds NaN, which is neither above the threshold nor below")
        return (x > threshold).astype(x.dtype)

    return run


def feature_vectorizer(a: Attributes) -> Callable[..., Array]:
    """FeatureVectorizer: tables side by side as float32, each cut off or filled up with zeros to its number of columns."""
    widths = a.ints("inputdimensions")

    def run(*tables: Array) -> Array:
        if len(tables) != len(widths):
            raise ValueError(f"there are {len(tables)} inputs, but inputdimensions names {len(widths)}")
        found = [rows(x) for x in tables]
        out = np.zeros((len(found[0]), int(widths.sum())), _F)
        at = 0
        for table, width in zip(found, widths.tolist(), strict=True):
            if len(table) != len(out):
                raise ValueError(f"inputs differ in their rows: {len(out)} and {len(table)}")
            used = min(width, table.shape[1])
            out[:, at : at + used] = table[:, :used]
            at += width
        return out

    return run


def array_feature_extractor(a: Attributes) -> Callable[[Array, Array], Array]:
    """ArrayFeatureExtractor: some columns (of the last axis); of a vector [1, columns]."""

    def run(x: Array, which: Array) -> Array:
        places = which.reshape(-1)
        if not places.size:
            raise ValueError("no columns are asked for")
        if x.ndim == 0 or places.min() < 0 or places.max() >= x.shape[-1]:
            raise IndexError(f"columns {places.min()} to {places.max()} are asked of an input of shape {list(x.shape)}")
        picked = np.take(x, places, -1)
        return picked.reshape(1, -1) if x.ndim == 1 else picked

    return run
