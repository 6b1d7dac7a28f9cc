"""Types and shapes that operators of `ai.onnx.ml` give, and those of onnxruntime's on strings that workers run as they are.

ONNX infers none for half of the domain (Scaler, Normalizer, Imputer …), and others than onnxruntime's for some (margins of SVMClassifier,
vectors as samples). So here are all types that follow from attributes and the first input's shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np

from aspen_mp.planner.frontends import tensors
from aspen_mp.planner.ir.graph import Shape, Tensor

DOMAIN: Final = "ai.onnx.ml"
ONNXRUNTIME: Final = "com.microsoft"
LEFT: Final = frozenset({"MurmurHash3", "Tokenizer"})
"""Operators of onnxruntime's domain that workers run as they are."""

Typed = tuple[np.dtype[Any], Shape]
Attrs = Mapping[str, Any]
Rule = Callable[[Attrs, Sequence[Tensor | None]], list[Typed] | None]

_FLOAT: Final = np.dtype(np.float32)
_INT: Final = np.dtype(np.int64)


def types(domain: str, op: str, attrs: Attrs, inputs: Sequence[Tensor | None]) -> list[Typed] | None:
    """The type and shape of each output, strings as OBJECT; None where they are not known. ValueError where the input's rank is
    impossible."""
    rule = _RULES.get((domain, op))
    return rule(attrs, inputs) if rule is not None and inputs and inputs[0] is not None else None


def _x(inputs: Sequence[Tensor | None]) -> Tensor:
    assert inputs[0] is not None
    return inputs[0]


def _rows(x: Tensor) -> int:
    if not x.shape:
        raise ValueError(f"{x.name!r} is a scalar, where rows of columns are expected")
    return 1 if len(x.shape) == 1 else x.shape[0]


def _same(dtype: np.dtype[Any] | None) -> Rule:
    """The shape of the input; `dtype` None: its type, too."""
    return lambda attrs, inputs: [(dtype or _x(inputs).dtype, _x(inputs).shape)]


def _columns(count: Callable[[Attrs], int], dtype: np.dtype[Any] | None = _FLOAT) -> Rule:
    """[rows, columns]"""

    def rule(attrs: Attrs, inputs: Sequence[Tensor | None]) -> list[Typed]:
        x, columns = _x(inputs), count(attrs)
        if columns < 1:
            raise ValueError(f"its result would have {columns} columns")
        return [(dtype or x.dtype, (_rows(x), columns))]

    return rule


def _classes(attrs: Attrs, ints: str) -> tuple[np.dtype[Any], int]:
    words = attrs.get("classlabels_strings")
    return (tensors.OBJECT, len(words)) if words else (_INT, len(attrs.get(ints, ())))


def _classified(ints: str, scores: Callable[[Attrs, int], int]) -> Rule:
    """Labels [rows] and scores [rows, columns]."""

    def rule(attrs: Attrs, inputs: Sequence[Tensor | None]) -> list[Typed]:
        dtype, count = _classes(attrs, ints)
        rows = _rows(_x(inputs))
        return [(dtype, (rows,)), (_FLOAT, (rows, scores(attrs, count)))]

    return rule


def _margins(attrs: Attrs, classes: int) -> int:
    """The number of margins: support vectors without probabilities have one for each pair of classes."""
    if not sum(attrs.get("vectors_per_class", ())) or attrs.get("prob_a"):
        return classes
    return 2 if classes <= 2 else classes * (classes - 1) // 2


def _linear(attrs: Attrs, classes: int) -> int:
    given = len(attrs.get("intercepts", ())) or max(classes, 1)
    return 2 if given == 1 and classes == 2 else given


def _mapped(attrs: Attrs, inputs: Sequence[Tensor | None]) -> list[Typed]:
    """Strings to integers, or back."""
    x = _x(inputs)
    return [(_INT if x.dtype == tensors.OBJECT else tensors.OBJECT, x.shape)]


def _encoded(attrs: Attrs, inputs: Sequence[Tensor | None]) -> list[Typed]:
    """The values of a table: by its list, or by the tensor; before version 2 there is neither."""
    shape = _x(inputs).shape
    if "values_tensor" in attrs:
        return [(tensors.numpy_dtype(attrs["values_tensor"].data_type), shape)]
    lists = {"values_strings": tensors.OBJECT, "values_int64s": _INT, "values_floats": _FLOAT}
    found = next((dtype for name, dtype in lists.items() if name in attrs), None)
    return _mapped(attrs, inputs) if found is None else [(found, shape)]


def _one_hot(attrs: Attrs, inputs: Sequence[Tensor | None]) -> list[Typed]:
    count = len(attrs.get("cats_int64s", ())) or len(attrs.get("cats_strings", ()))
    return [(_FLOAT, (*_x(inputs).shape, count))]


def _picked(attrs: Attrs, inputs: Sequence[Tensor | None]) -> list[Typed] | None:
    x, which = _x(inputs), inputs[1] if len(inputs) > 1 else None
    if which is None:
        return None
    _rows(x)
    lead = (1,) if len(x.shape) == 1 else x.shape[:-1]
    return [(x.dtype, (*lead, prod(which.shape)))]


def _hashed(attrs: Attrs, inputs: Sequence[Tensor | None]) -> list[Typed]:
    return [(np.dtype(np.uint32 if attrs.get("positive", 1) else np.int32), _x(inputs).shape)]


_RULES: Final[dict[tuple[str, str], Rule]] = {
    **{
        (DOMAIN, op): rule
        for op, rule in {
            "ArrayFeatureExtractor": _picked,
            "Binarizer": _same(None),
            "CategoryMapper": _mapped,
            "FeatureVectorizer": _columns(lambda a: sum(a.get("inputdimensions", ()))),
            "Imputer": _same(None),
            "LabelEncoder": _encoded,
            "LinearClassifier": _classified("classlabels_ints", _linear),
            "LinearRegressor": _columns(lambda a: a.get("targets", 1)),
            "Normalizer": _same(_FLOAT),
            "OneHotEncoder": _one_hot,
            "SVMClassifier": _classified("classlabels_ints", _margins),
            "SVMRegressor": _columns(lambda a: 1),
            "Scaler": _same(_FLOAT),
            "TreeEnsemble": _columns(lambda a: a.get("n_targets", 1), None),
            "TreeEnsembleClassifier": _classified("classlabels_int64s", lambda a, n: n),
            "TreeEnsembleRegressor": _columns(lambda a: a.get("n_targets", 1)),
        }.items()
    },
    (ONNXRUNTIME, "MurmurHash3"): _hashed,
}
