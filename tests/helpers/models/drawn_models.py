"""Models of one operator with drawn inputs and attributes, run here and in onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from kernel_graphs import run_model
from onnx import TensorProto, helper, numpy_helper

from aspen_mp.planner import api

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass
class Case:
    """A node of `op`. `inputs`: values in order, None where one is missing; those at `constants` are initializers. `types` has those of its
    results."""

    op: str
    inputs: Sequence[Any]
    attributes: dict[str, Any] = field(default_factory=dict)
    types: Sequence[int] = (TensorProto.FLOAT,)
    opset: int = 17
    constants: Sequence[int] = ()
    domain: str = ""

    def __str__(self) -> str:
        shown = [None if x is None else (x.tolist() if x.size <= 8 else x.shape) for x in self.inputs]
        return f"{self.op}-{self.opset} {shown} {self.attributes} constants {list(self.constants)}"

    def model(self) -> tuple[onnx.ModelProto, dict[str, Array]]:
        """The model and what to feed it."""
        names = [f"i{k}" if x is not None else "" for k, x in enumerate(self.inputs)]
        outs = [f"o{k}" for k in range(len(self.types))]
        node = helper.make_node(self.op, names, outs, name="it", domain=self.domain, **self.attributes)
        given = [(k, n, x) for k, (n, x) in enumerate(zip(names, self.inputs, strict=True)) if x is not None]
        feeds = {n: x for k, n, x in given if k not in self.constants}
        infos = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in feeds.items()]
        stored = [numpy_helper.from_array(x, n) for k, n, x in given if k in self.constants]
        results = [helper.make_tensor_value_info(n, t, None) for n, t in zip(outs, self.types, strict=True)]
        graph = helper.make_graph([node], "g", infos, results, stored)
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10), feeds


def here(case: Case, counts: dict[str, int] | None = None) -> list[Array]:
    proto, feeds = case.model()
    return run_model(api.load(proto), feeds, counts=counts)


def there(case: Case, optimize: bool = True) -> list[Array]:
    """What onnxruntime gives."""
    proto, feeds = case.model()
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    found: list[Array] = onnxruntime.InferenceSession(proto.SerializeToString(), options).run(None, feeds)
    return found


def same(case: Case, got: Sequence[Array], want: Sequence[Array], tolerance: float = 1e-4, steps: int = 0) -> None:
    """Types and shapes alike, floats within a tolerance of the largest, integers within so many steps."""
    for a, b in zip(got, want, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), f"{case}: {a.shape} {a.dtype}, not {b.shape} {b.dtype}"
        if b.dtype.kind == "f":
            largest = np.abs(b[np.isfinite(b)]).max(initial=1.0)
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * largest, err_msg=str(case))
        elif steps:
            assert np.abs(a.astype(np.int64) - b.astype(np.int64)).max(initial=0) <= steps, str(case)
        else:
            np.testing.assert_array_equal(a, b, err_msg=str(case))


def floats(rng: np.random.Generator, *shape: int) -> Array:
    return np.asarray(rng.standard_normal(shape), np.float32)


def maybe(rng: np.random.Generator, *positions: int, chance: float = 0.5) -> Sequence[int]:
    """These inputs as constants, or not."""
    return positions if rng.random() < chance else ()
