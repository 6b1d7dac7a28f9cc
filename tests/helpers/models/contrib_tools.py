"""Models of one operator of onnxruntime's own, run here and there."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from kernel_graphs import run_model
from onnx import helper, numpy_helper
from peer_tools import exact_sums

from aspen_mp.planner import api

RNG = np.random.default_rng(23)


def array(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def small(dtype: Any, *shape: int) -> np.ndarray:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max, shape).astype(dtype)


def info(name: str, x: np.ndarray) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)


def model(op: str, feeds: dict[str, np.ndarray], inputs: list[str], constants: dict[str, np.ndarray], outputs: Any, **more: Any) -> Any:
    """`outputs`: {name: dtype}; those without a name are left out by the node."""
    domain, version = more.pop("domain", "com.microsoft"), more.pop("version", 17)
    node = helper.make_node(op, inputs, list(outputs), name="it", domain=domain, **more)
    found = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(np.dtype(t)), None) for n, t in outputs.items() if n.strip()]
    for k, name in enumerate(node.output):
        node.output[k] = name.strip()
    stored = [numpy_helper.from_array(np.asarray(x), n) for n, x in constants.items()]
    graph = helper.make_graph([node], "g", [info(n, x) for n, x in feeds.items()], found, stored)
    imports = [helper.make_opsetid("", version), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def case(label: str, op: str, inputs: str, constants: dict[str, Any] | None = None, outputs: Any = None, **more: Any) -> Any:
    return pytest.param(op, inputs.split(" "), constants or {}, outputs or {"y": np.float32}, more, id=label)


def compared(op: str, inputs: list[str], constants: dict[str, Any], outputs: Any, more: dict[str, Any], feeds: dict[str, Any]) -> Any:
    feeds = {name: x for name, x in feeds.items() if name in inputs}
    constants = {name: x for name, x in constants.items() if name in inputs}
    proto = model(op, feeds, inputs, constants, outputs, **more)
    return run_model(api.load(proto), feeds), onnxruntime.InferenceSession(proto.SerializeToString(), exact_sums()).run(None, feeds)


def both(
    op: str, names: list[str], feeds: dict[str, Any], constants: dict[str, Any], outputs: list[str], *, alone: bool = False, **attrs: Any
) -> Any:
    """The results of a node here and in onnxruntime; `names`: all its inputs, in order; those that have no value are left out. `alone`: the
    model, not run."""
    inputs = [name if name in feeds or name in constants else "" for name in names]
    while not inputs[-1]:
        inputs.pop()
    wanted: Any = dict.fromkeys(outputs, np.float32)
    used = {name: x for name, x in constants.items() if name in inputs}
    proto = model(op, feeds, inputs, used, wanted, **attrs)
    if alone:
        return proto
    options = exact_sums()
    if not any(np.asarray(x).dtype == np.int8 for x in used.values()):
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    counts: dict[str, int] = {}
    got = run_model(api.load(proto), feeds, counts=counts)
    assert "OPAQUE" not in counts
    return got, onnxruntime.InferenceSession(proto.SerializeToString(), options).run(None, feeds)
