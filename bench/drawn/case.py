"""A drawn model of one operator, and what is fed to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper

Rng = np.random.Generator
F, D, I64, I32, S = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64, TensorProto.INT32, TensorProto.STRING
ELEMENTS: Final = {
    np.dtype(np.float32): F,
    np.dtype(np.float64): D,
    np.dtype(np.int64): I64,
    np.dtype(np.int32): I32,
    np.dtype(np.uint32): TensorProto.UINT32,
    np.dtype(object): S,
}
NUMBERS: Final = ("float32", "float64", "int64", "int32")


@dataclass
class Case:
    """A node, what is fed to it, and the types of its outputs (an element type, or a TypeProto)."""

    op: str
    feeds: dict[str, Any]
    outputs: list[Any]
    attributes: dict[str, Any]
    version: int = 3
    domain: str = "ai.onnx.ml"
    tolerance: float = 2e-5

    def model(self) -> onnx.ModelProto:
        names = [f"y{k}" for k in range(len(self.outputs))]
        known = self.op == "StringNormalizer"  # whose inference wants to see the shape
        shapes = {n: list(x.shape) if known else [None] * x.ndim for n, x in self.feeds.items()}
        inputs = [helper.make_tensor_value_info(n, ELEMENTS[x.dtype], shapes[n]) for n, x in self.feeds.items()]
        outputs = [
            helper.make_tensor_value_info(n, kind, None) if isinstance(kind, int) else helper.make_value_info(n, kind)
            for n, kind in zip(names, self.outputs, strict=True)
        ]
        node = helper.make_node(self.op, list(self.feeds), names, "node", domain=self.domain, **self.attributes)
        opsets = {"": 17, "ai.onnx.ml": self.version, "com.microsoft": 1}
        imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
        return helper.make_model(helper.make_graph([node], "g", inputs, outputs), opset_imports=imports, ir_version=8)


def floats(values: Any) -> list[float]:
    return np.asarray(values, np.float32).reshape(-1).tolist()


def table(rng: Rng, columns: int, dtype: str, rows: int | None = None) -> Any:
    """Samples; now and then a vector, which is one of them."""
    x = rng.standard_normal((int(rng.integers(1, 9)) if rows is None else rows, columns)) * 3
    if rows is None and rng.random() < 0.1:
        x = x[0]
    return (np.round(x) if dtype.startswith("int") else x).astype(dtype)
