"""Linear models, support vector machines and the preparation of their features (ai.onnx.ml): by products, element-wise kernels and those of
`svm.c`.

Everything but Imputer and Binarizer is computed in f32 and gives f32, whatever numbers come in, as ONNX has it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from aspen_mp.planner.ir.graph import Node, Tensor
from aspen_mp.planner.lower.builder import BOOL, F32, F64, I64, Builder, NoKernel
from aspen_mp.planner.lower.classical.ensembles import NUMBERS, labels, of_model, rows_of, scores, text
from aspen_mp.planner.lower.elementwise import data
from aspen_mp.planner.lower.registry import rule
from aspen_mp.planner.ops.params import NO_ACT, Act
from aspen_mp.shm.errors import ModelInvalidError

_SVM_PARAMS = 3
"""Parameters of a kernel: gamma, coef0, degree."""


def _floats(node: Node, name: str) -> npt.NDArray[Any]:
    return np.array(node.attrs.get(name) or [], np.float32)


def _ints(node: Node, name: str) -> npt.NDArray[np.int64]:
    return np.array(node.attrs.get(name) or [], np.int64)


def _matrix(node: Node, name: str, rows: int, columns: int) -> npt.NDArray[Any]:
    """An attribute that has a row for each target, class or vector; more than that does not count."""
    values = _floats(node, name)
    if len(values) < rows * columns:
        raise ModelInvalidError(f"node {node.name!r} ({node.onnx_op}): {name} has {len(values)} entries, not {rows} x {columns}")
    return values[: rows * columns].reshape(rows, columns)


def _product(b: Builder, x: Tensor, w: npt.NDArray[Any], c: npt.NDArray[Any] | None, alpha: float = 1.0, act: Act = NO_ACT) -> Tensor:
    """act(alpha * x wᵀ + c) for rows w."""
    bias = None if c is None or not c.any() else of_model("bias", c.reshape(1, -1))
    return b.gemm(b.cast(x, F32), of_model("coefficients", w.T), bias, alpha=alpha, act=act)


@rule("ai.onnx.ml.LinearRegressor")
def _linear_regressor(b: Builder, node: Node) -> Tensor:
    x, targets = rows_of(b, node), int(node.attrs.get("targets", 1))
    intercepts, transform = _floats(node, "intercepts"), text(node, "post_transform", "NONE")
    if len(intercepts) not in (0, targets):
        raise NoKernel(f"there are {len(intercepts)} intercepts for {targets} targets")
    if transform != "NONE":
        raise NoKernel(f"no kernel has the transform {transform}")
    return _product(b, x, _matrix(node, "coefficients", targets, x.shape[1]), intercepts if len(intercepts) else None)


@rule("ai.onnx.ml.LinearClassifier")
def _linear_classifier(b: Builder, node: Node) -> list[Tensor]:
    x, intercepts, table = rows_of(b, node), _floats(node, "intercepts"), _ints(node, "classlabels_ints")
    count = len(intercepts)
    if node.attrs.get("classlabels_strings") or count == 0 or (count > 1 and len(table) < count):
        raise NoKernel("labels are strings, or not as many as scores")
    s = _product(b, x, _matrix(node, "coefficients", count, x.shape[1]), intercepts)
    transform = text(node, "post_transform", "NONE")
    if count == 1:
        two = len(table) == 2
        label = labels(b, s, table if two else np.array([0, 1], np.int64), "above", 0, 0.0)
        if not two and transform != "NONE":
            raise NoKernel("no kernel transforms a single score")
        return [label, scores(b, s, transform, "1 - s" if two else "")]
    return [labels(b, s, table[:count], "greatest"), scores(b, s, transform)]


# ---------------------------------------------------------------------------------------------------------------- support vector machines


def _kernel(b: Builder, node: Node, x: Tensor, vectors: npt.NDArray[Any], c: float = 0.0, kind: str = "") -> Tensor:
    """The kernel function of rows and vectors [N, V]. `c`: the addend of the product of a linear one."""
    params = _floats(node, "kernel_params")
    gamma, coef0, degree = (float(v) for v in (params if len(params) == _SVM_PARAMS else np.zeros(_SVM_PARAMS)))
    kind = kind or text(node, "kernel_type", "LINEAR")
    if kind == "RBF":
        w = b.packed_panels(of_model("vectors", vectors.T))
        return b.emit("RBF", [b.cast(x, F32), w], (x.shape[0], len(vectors)), F32, gamma=gamma)
    if kind == "LINEAR":
        return _product(b, x, vectors, None if c == 0.0 else np.full(len(vectors), c, np.float32))
    if kind not in ("POLY", "SIGMOID"):
        raise NoKernel(f"there is no kernel function {kind}")
    act: Act = ("TANH", 0.0, 0.0) if kind == "SIGMOID" else NO_ACT
    k = _product(b, x, vectors, np.full(len(vectors), coef0, np.float32), gamma, act)
    if kind == "SIGMOID" or degree == 1:
        return k
    if degree == 2:
        return b.unary("SQUARE", k)
    if degree == 3:
        return b.binary("MUL", b.unary("SQUARE", k), k)
    return b.binary("POW", k, b.constant(np.full((1, 1), degree, np.float32)))


def _vectors(node: Node, x: Tensor, count: int) -> npt.NDArray[Any]:
    vectors = _floats(node, "support_vectors")
    if len(vectors) != count * x.shape[1]:
        raise NoKernel(f"support vectors have {len(vectors) // max(count, 1)} features and rows {x.shape[1]}")
    return vectors.reshape(count, x.shape[1])


@rule("ai.onnx.ml.SVMRegressor")
def _svm_regressor(b: Builder, node: Node) -> Tensor:
    x, count, rho = rows_of(b, node), int(node.attrs.get("n_supports", 0)), _floats(node, "rho")
    if text(node, "post_transform", "NONE") != "NONE" or len(rho) < 1:
        raise NoKernel("there is a transform, or no rho")
    if count > 0:
        k = _kernel(b, node, x, _vectors(node, x, count))
        y = _product(b, k, _matrix(node, "coefficients", 1, count), rho[:1])
    else:
        y = _kernel(b, node, x, _matrix(node, "coefficients", 1, x.shape[1]), float(rho[0]), "LINEAR")
    if not node.attrs.get("one_class", 0):
        return y
    above = b.binary("GREATER", y, b.constant(np.zeros((1, 1), np.float32)), BOOL)
    one = b.constant(np.ones((1, 1), np.float32))
    return b.ternary("WHERE", above, one, b.constant(np.full((1, 1), -1, np.float32)))


@rule("ai.onnx.ml.SVMClassifier")
def _svm_classifier(b: Builder, node: Node) -> list[Tensor]:
    x, table, rho = rows_of(b, node), _ints(node, "classlabels_ints"), _floats(node, "rho")
    per_class, transform = _ints(node, "vectors_per_class"), text(node, "post_transform", "NONE")
    a, c, classes = _floats(node, "prob_a"), _floats(node, "prob_b"), len(table)
    pairs, count = classes * (classes - 1) // 2, int(per_class.sum())
    if node.attrs.get("classlabels_strings") or classes < 2 or count == 0 or len(per_class) != classes or (per_class < 0).any():
        raise NoKernel("labels are strings, or there are no support vectors")
    if len(rho) < pairs or len(a) != len(c) or 0 < len(a) < pairs:
        raise ModelInvalidError(
            f"node {node.name!r} ({node.onnx_op}): rho, prob_a or prob_b have too few entries for {pairs} pairs of classes"
        )
    k = _kernel(b, node, x, _vectors(node, x, count))
    starts = np.r_[0, np.cumsum(per_class)]
    operands = [
        of_model("coefficients", _matrix(node, "coefficients", classes - 1, count)),
        b.constant(starts, I64),
        of_model("rho", rho[:pairs]),
    ]
    s = b.emit("DUELS", [k, *operands], (x.shape[0], pairs), F32)
    label = labels(b, s, table, "votes")
    if len(a):
        if transform != "NONE":
            raise NoKernel(f"no kernel has the transform {transform} of probabilities")
        return [label, b.emit("COUPLE", [s, of_model("a", a[:pairs]), of_model("b", c[:pairs])], (x.shape[0], classes), F32)]
    if classes > 2:
        return [label, scores(b, s, transform)]
    return [label, scores(b, s, transform, "-s" if transform == "NONE" else "1 - s")]


# ---------------------------------------------------------------------------------------------------------------------------- features


def _by_feature(b: Builder, node: Node, name: str, x: Tensor, dtype: np.dtype[Any]) -> Tensor:
    """An attribute of one value, or one a feature, beside x."""
    values = _floats(node, name)
    if len(values) not in (1, x.shape[-1]):
        raise NoKernel(f"{name} has {len(values)} values for {x.shape[-1]} features")
    return of_model(name, values.astype(dtype).reshape((1,) * (len(x.shape) - 1) + (-1,)))


@rule("ai.onnx.ml.Scaler")
def _scaler(b: Builder, node: Node) -> Tensor:
    x = data(node)
    if x.dtype not in NUMBERS or len(x.shape) not in (1, 2) or x.size == 0:
        raise NoKernel(f"no kernel takes {x.dtype} with {len(x.shape)} axes")
    own = F64 if x.dtype == F64 else F32
    x = b.cast(x, own)
    centred = b.binary("SUB", x, _by_feature(b, node, "offset", x, own))
    return b.cast(b.binary("MUL", centred, _by_feature(b, node, "scale", x, own)), F32)


@rule("ai.onnx.ml.ArrayFeatureExtractor")
def _array_feature_extractor(b: Builder, node: Node) -> Tensor:
    x, places = rows_of(b, node), data(node, 1)
    if places.size == 0:
        raise NoKernel("a tensor is empty")
    return b.emit("GATHER", [x, b.reshape(places, (places.size,))], (x.shape[0], places.size), x.dtype, axis=1)


@rule("ai.onnx.ml.Imputer")
def _imputer(b: Builder, node: Node) -> Tensor:
    x = data(node)
    whole = x.dtype.kind == "i"
    if x.dtype not in NUMBERS or len(x.shape) not in (1, 2) or x.size == 0:
        raise NoKernel(f"no kernel takes {x.dtype} with {len(x.shape)} axes")
    values = _ints(node, "imputed_value_int64s") if whole else _floats(node, "imputed_value_floats")
    if len(values) not in (1, x.shape[-1]):
        raise NoKernel(f"there are {len(values)} imputed values for {x.shape[-1]} features")
    given = node.attrs.get("replaced_value_int64" if whole else "replaced_value_float", 0)
    if not whole and np.isnan(given):
        bad = b.unary("ISNAN", x, dtype=BOOL)
    else:
        bad = b.binary("EQUAL", x, b.constant(np.full((1,) * len(x.shape), given), x.dtype), BOOL)
    shaped = values.astype(x.dtype).reshape((1,) * (len(x.shape) - 1) + (-1,))
    return b.ternary("WHERE", bad, of_model("imputed", shaped), x)


@rule("ai.onnx.ml.Binarizer")
def _binarizer(b: Builder, node: Node) -> Tensor:
    x = data(node)
    if x.dtype != F32:
        raise NoKernel(f"no kernel computes {x.dtype}")
    threshold = b.constant(np.full((1,) * len(x.shape), node.attrs.get("threshold", 0.0), np.float32))
    return b.cast(b.binary("GREATER", x, threshold, BOOL), F32)


@rule("ai.onnx.ml.Normalizer")
def _normalizer(b: Builder, node: Node) -> Tensor:
    """Rows over their norm; rows whose norm is 0 stay as they are."""
    x, norm = data(node), text(node, "norm", "MAX")
    if x.dtype not in NUMBERS or len(x.shape) not in (1, 2) or x.size == 0:
        raise NoKernel(f"no kernel takes {x.dtype} with {len(x.shape)} axes")
    opcode = {"MAX": "MAX", "L1": "L1", "L2": "L2"}.get(norm)
    if opcode is None or x.shape[-1] == 1:
        raise NoKernel(f"no kernel has the norm {norm} of {x.shape[-1]} features")
    x = b.cast(x, F32)
    size = b.reduce(opcode, x, (len(x.shape) - 1,))
    rank = (1,) * len(x.shape)
    nothing = b.binary("EQUAL", size, b.constant(np.zeros(rank, np.float32)), BOOL)
    return b.binary("DIV", x, b.ternary("WHERE", nothing, b.constant(np.ones(rank, np.float32)), size))
