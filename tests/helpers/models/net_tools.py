"""Small ONNX models for tests of passes: written node by node, run with and without fusion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from kernel_graphs import bind, run_model
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from plan_requests import plan_request

from aspen_mp.planner import api, stages
from aspen_mp.planner.ir.graph import Graph, Node

N = helper.make_node
Array = np.ndarray[Any, Any]


class Net:
    """A model under construction: constants by value, nodes by function."""

    def __init__(self, *, opset: int = 17, bools: Sequence[str] = (), dtype: Any = np.float32, **inputs: tuple[int, ...]) -> None:
        self.rng = np.random.default_rng(11)
        self.opset = opset
        self.inputs = inputs
        self.bools = bools
        self.dtype = np.dtype(dtype)  # of inputs, outputs, weights and numbers
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[TensorProto] = []

    def weight(self, *shape: int, scale: float = 1.0, positive: bool = False) -> str:
        value = (self.rng.standard_normal(shape) * scale).astype(self.dtype)
        return self.constant(np.abs(value) + self.dtype.type(0.5) if positive else value)

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def number(self, value: float) -> str:
        return self.constant(self.dtype.type(value))

    def __call__(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(N(op, list(inputs), [name], name=f"{op}{len(self.nodes)}", **attrs))
        return name

    def model(self, *outputs: str) -> onnx.ModelProto:
        own = helper.np_dtype_to_tensor_dtype(self.dtype)
        types = {n: TensorProto.BOOL if n in self.bools else own for n in self.inputs}
        infos = [helper.make_tensor_value_info(n, types[n], s) for n, s in self.inputs.items()]
        results = [helper.make_tensor_value_info(n, own, None) for n in outputs]
        graph = helper.make_graph(self.nodes, "net", infos, results, self.constants)
        imports = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=imports, ir_version=helper.find_min_ir_version_for(imports))


def lowered(model: onnx.ModelProto, feeds: dict[str, Array]) -> Graph:
    opened = api.load(model)
    stage = stages.derive(opened, [bind(feeds)])
    return api.lowered(stage.graph, opened, [v.name for v in stage.outputs], plan_request())


def check(net: Net, *outputs: str, scale: float = 1.0, tolerance: float = 1e-5, reference: bool = False) -> list[Node]:
    """The kernels that remain (views left out), after comparing results with and without passes, or with ONNX's own evaluator.
    `tolerance`: of the output's largest magnitude."""
    model = net.model(*outputs)
    feeds = {n: (net.rng.standard_normal(s) * scale).astype(net.dtype) for n, s in net.inputs.items()}
    feeds.update({n: net.rng.random(net.inputs[n]) < 0.7 for n in net.bools})
    opened = api.load(model)
    plain = ReferenceEvaluator(model).run(None, feeds) if reference else run_model(opened, feeds, plan_request(fuse=False))
    for want, got in zip(plain, run_model(opened, feeds), strict=True):
        assert got.dtype == want.dtype
        assert np.abs(got.astype(np.float64) - want).max() <= tolerance * max(np.abs(want).max(), 1.0)
    return [n for n in lowered(model, feeds).nodes if not n.op.startswith("view.")]


def ops(nodes: list[Node]) -> list[str]:
    return [n.op for n in nodes]
