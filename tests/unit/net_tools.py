"""Small ONNX models for tests of passes: written node by node, run with and without fusion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from kernel_graphs import bind, run_model
from onnx import TensorProto, helper, numpy_helper

from aspen_mp.planner import api, stages
from aspen_mp.planner.ir import Graph, Node

N = helper.make_node
Array = np.ndarray[Any, Any]


class Net:
    """A model under construction: constants by value, nodes by function."""

    def __init__(self, *, opset: int = 17, bools: Sequence[str] = (), **inputs: tuple[int, ...]) -> None:
        self.rng = np.random.default_rng(11)
        self.opset = opset
        self.inputs = inputs
        self.bools = bools
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[TensorProto] = []

    def weight(self, *shape: int, scale: float = 1.0, positive: bool = False) -> str:
        value = (self.rng.standard_normal(shape) * scale).astype(np.float32)
        return self.constant(np.abs(value) + np.float32(0.5) if positive else value)

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def number(self, value: float) -> str:
        return self.constant(np.float32(value))

    def __call__(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(N(op, list(inputs), [name], name=f"{op}{len(self.nodes)}", **attrs))
        return name

    def model(self, *outputs: str) -> onnx.ModelProto:
        types = {n: TensorProto.BOOL if n in self.bools else TensorProto.FLOAT for n in self.inputs}
        infos = [helper.make_tensor_value_info(n, types[n], s) for n, s in self.inputs.items()]
        results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
        graph = helper.make_graph(self.nodes, "net", infos, results, self.constants)
        imports = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=imports, ir_version=helper.find_min_ir_version_for(imports))


def lowered(model: onnx.ModelProto, feeds: dict[str, Array]) -> Graph:
    opened = api.load(model)
    stage = stages.derive(opened, [bind(feeds)])
    return api.lowered(stage.graph, opened, [v.name for v in stage.outputs], api.Options())


def check(net: Net, *outputs: str, scale: float = 1.0) -> list[Node]:
    """The kernels that remain (views left out), after comparing results with and without passes."""
    model = net.model(*outputs)
    feeds = {n: (net.rng.standard_normal(s) * scale).astype(np.float32) for n, s in net.inputs.items()}
    feeds.update({n: net.rng.random(net.inputs[n]) < 0.7 for n in net.bools})
    opened = api.load(model)
    plain, fused = run_model(opened, feeds, api.Options(fuse=False)), run_model(opened, feeds)
    for want, got in zip(plain, fused, strict=True):
        assert np.abs(got - want).max() <= 1e-5 * max(np.abs(want).max(), 1.0)
    return [n for n in lowered(model, feeds).nodes if not n.op.startswith("view.")]


def ops(nodes: list[Node]) -> list[str]:
    return [n.op for n in nodes]
