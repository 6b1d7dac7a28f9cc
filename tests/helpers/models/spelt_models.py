"""Good models to spell in other ways: small networks of many kinds, and every operator of onnx's own tests among others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from spellings import NEWEST_ML

from aspen_mp.bench import conformance
from aspen_mp.planner.frontends.evaluate import RANDOM

N = helper.make_node
F32, I64, STR = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING


@dataclass(frozen=True, slots=True)
class Good:
    """A model, inputs for it, and what it gives with them by a reference; None: onnxruntime says."""

    model: ModelProto
    feeds: dict[str, Any]
    want: list[Any] | None = None
    rtol: float = 1e-4
    atol: float = 1e-5


def info(name: str, shape: Any, kind: int = F32) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: Sequence[NodeProto],
    inputs: dict[str, np.ndarray],
    outputs: Sequence[ValueInfoProto],
    constants: dict[str, Any] | None = None,
    opset: int = 17,
    others: dict[str, int] | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
) -> Good:
    kinds = {name: STR if x.dtype == object else helper.np_dtype_to_tensor_dtype(x.dtype) for name, x in inputs.items()}
    graph = helper.make_graph(
        nodes,
        "good",
        [info(name, x.shape, kinds[name]) for name, x in inputs.items()],
        outputs,
        [numpy_helper.from_array(np.asarray(x), name) for name, x in (constants or {}).items()],
    )
    imports = [helper.make_opsetid(domain, version) for domain, version in {"": opset, **(others or {})}.items()]
    return Good(helper.make_model(graph, opset_imports=imports, ir_version=9, functions=functions), inputs)


def draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def layers() -> Good:
    nodes = [
        N("MatMul", ["x", "w"], ["h"], name="first"),
        N("Add", ["h", "b"], ["i"], name="bias"),
        N("Relu", ["i"], ["j"]),
        N("MatMul", ["j", "v"], ["k"], name="second"),
        N("Add", ["k", "x"], ["l"]),
        N("LayerNormalization", ["l", "scale"], ["y"], axis=-1),
    ]
    constants = {"w": draw(1, 8, 40), "b": draw(2, 40), "v": draw(3, 40, 8), "scale": draw(4, 8)}
    return model(nodes, {"x": draw(0, 5, 8)}, [info("y", [5, 8])], constants)


def image() -> Good:
    nodes = [
        N("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        N("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"]),
        N("Relu", ["n"], ["r"]),
        N("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        N("GlobalAveragePool", ["p"], ["g"]),
        N("Flatten", ["g"], ["f"]),
        N("Gemm", ["f", "d", "e"], ["z"], transB=1),
        N("Softmax", ["z"], ["y"]),
    ]
    per = {name: draw(k, 6) for k, name in enumerate("sbm")} | {"v": np.abs(draw(9, 6)) + 1}
    return model(
        nodes, {"x": draw(0, 1, 3, 8, 8)}, [info("y", [1, 4])], {"w": draw(5, 6, 3, 3, 3), "d": draw(6, 4, 6), "e": draw(7, 4), **per}
    )


def shapes() -> Good:
    nodes = [
        N("Shape", ["x"], ["shape"]),
        N("Gather", ["shape", "first"], ["batch"], axis=0),
        N("Concat", ["batch", "rest"], ["target"], axis=0),
        N("Reshape", ["x", "target"], ["heads"]),
        N("Transpose", ["heads"], ["turned"], perm=[0, 2, 1, 3]),
        N("Slice", ["turned", "begin", "end", "axes"], ["part"]),
        N("ReduceSum", ["part", "over"], ["y"], keepdims=0),
    ]
    constants = {
        name: np.array(v, np.int64) for name, v in {"first": [0], "rest": [4, 2, 3], "begin": [1], "end": [4], "axes": [2]}.items()
    }
    return model(nodes, {"x": draw(0, 2, 24)}, [info("y", [2, 2, 3])], constants | {"over": np.array([2], np.int64)})


def quantised() -> Good:
    nodes = [
        N("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        N("DequantizeLinear", ["xq", "xs", "xz"], ["xf"]),
        N("DequantizeLinear", ["w", "ws", "wz"], ["wf"], axis=1),
        N("MatMul", ["xf", "wf"], ["h"]),
        N("QuantizeLinear", ["h", "ys", "yz"], ["yq"]),
        N("DequantizeLinear", ["yq", "ys", "yz"], ["y"]),
    ]
    rng = np.random.default_rng(3)
    constants = {
        "xs": np.float32(0.02),
        "xz": np.uint8(120),
        "w": rng.integers(-127, 128, (16, 8)).astype(np.int8),
        "ws": np.full(8, 0.01, np.float32),
        "wz": np.zeros(8, np.int8),
        "ys": np.float32(0.05),
        "yz": np.uint8(128),
    }
    return model(nodes, {"x": draw(0, 4, 16)}, [info("y", [4, 8])], constants)


def behind_data() -> Good:
    """Shapes that depend on values."""
    nodes = [
        N("Greater", ["x", "zero"], ["where"]),
        N("NonZero", ["where"], ["places"]),
        N("Transpose", ["places"], ["rows"]),
        N("GatherND", ["x", "rows"], ["picked"]),
        N("Mul", ["picked", "two"], ["y"]),
        N("Unique", ["i"], ["values", "", "", "counts"]),
    ]
    outputs = [info("y", None), info("values", None, I64), info("counts", None, I64)]
    feeds = {"x": draw(0, 3, 5), "i": np.array([3, 1, 3, 2], np.int64)}
    return model(nodes, feeds, outputs, {"zero": np.float32(0), "two": np.float32(2)})


def loop() -> Good:
    body = helper.make_graph(
        [
            N("Constant", [], ["half"], value=numpy_helper.from_array(np.full(3, 0.5, np.float32))),
            N("Mul", ["state", "half"], ["smaller"]),
            N("Add", ["smaller", "x"], ["next"]),
            N("Identity", ["on"], ["still"]),
            N("ReduceSum", ["next"], ["sum"], keepdims=0),
        ],
        "body",
        [info("step", [], I64), info("on", [], TensorProto.BOOL), info("state", [3])],
        [info("still", [], TensorProto.BOOL), info("next", [3]), info("sum", [])],
    )
    nodes = [N("Identity", ["x"], ["begin"]), N("Loop", ["times", "", "begin"], ["last", "sums"], body=body), N("Neg", ["last"], ["y"])]
    return model(nodes, {"x": draw(0, 3), "times": np.array(4, np.int64)}, [info("y", [3]), info("sums", [None])])


def branch() -> Good:
    """A branch that data decide, with a branch in it."""
    inner = helper.make_graph([N("Neg", ["h"], ["in.t"]), N("Exp", ["in.t"], ["in.u"])], "inner", [], [info("in.u", [4])])
    other = helper.make_graph([N("Abs", ["h"], ["in.e"])], "other", [], [info("in.e", [4])])
    then = helper.make_graph(
        [N("Add", ["h", "k"], ["t"]), N("If", ["deep"], ["d"], then_branch=inner, else_branch=other), N("Mul", ["t", "d"], ["u"])],
        "then",
        [],
        [info("u", [4])],
        [numpy_helper.from_array(draw(8, 4), "k")],
    )
    orelse = helper.make_graph([N("Relu", ["x"], ["e"])], "else", [], [info("e", [4])])
    nodes = [
        N("Mul", ["x", "x"], ["h"]),
        N("ReduceSum", ["x"], ["s"], keepdims=0),
        N("Greater", ["s", "zero"], ["c"]),
        N("Less", ["s", "zero"], ["deep"]),
        N("If", ["c"], ["y"], then_branch=then, else_branch=orelse),
    ]
    return model(nodes, {"x": np.abs(draw(0, 4))}, [info("y", [4])], {"zero": np.float32(0)})


def strings() -> Good:
    nodes = [
        N("LabelEncoder", ["s"], ["code"], domain="ai.onnx.ml", keys_strings=["a", "b"], values_floats=[1.5, 2.5], default_float=-1.0),
        N("Mul", ["code", "two"], ["y"]),
        N("Constant", [], ["names"], value_strings=["p", "q"]),
        N("Identity", ["s"], ["again"]),
    ]
    outputs = [info("y", [3]), info("names", [2], STR), info("again", [3], STR), info("classes", [2], STR)]
    feeds = {"s": np.array(["b", "a", "z"], object)}
    return model(nodes, feeds, outputs, {"two": np.float32(2), "classes": np.array(["u", "v"], object)}, 21, {"ai.onnx.ml": NEWEST_ML})


def contributed() -> Good:
    """Operators of onnxruntime's own."""
    nodes = [
        N("FusedMatMul", ["x", "w"], ["h"], domain="com.microsoft", alpha=0.5, transB=1),
        N("BiasGelu", ["h", "b"], ["g"], domain="com.microsoft"),
        N("SkipLayerNormalization", ["g", "h", "s", "t"], ["n"], domain="com.microsoft", epsilon=1e-5),
        N("Relu", ["n"], ["y"]),
    ]
    constants = {"w": draw(1, 8, 8), "b": draw(2, 8), "s": draw(3, 8), "t": draw(4, 8)}
    return model(nodes, {"x": draw(0, 2, 3, 8)}, [info("y", [2, 3, 8])], constants, others={"com.microsoft": 1})


def functions() -> Good:
    """Functions that call functions, with attributes that are handed on, a branch, and names that the model has too."""
    opset = helper.make_opsetid("", 17)
    local = helper.make_opsetid("local", 1)
    leaky = N("LeakyRelu", ["x"], ["y"])
    leaky.attribute.append(onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope"))
    inner = helper.make_function("local", "Inner", ["x"], ["y"], [leaky], [opset], ["slope"])
    call = N("Inner", ["h"], ["z"], domain="local")
    call.attribute.append(onnx.AttributeProto(name="slope", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope"))
    then = helper.make_graph([N("Neg", ["z"], ["x"])], "then", [], [info("x", None)])
    orelse = helper.make_graph([N("Identity", ["a"], ["x"])], "else", [], [info("x", None)])
    outer = helper.make_function(
        "local",
        "Outer",
        ["a", "c"],
        ["y"],
        [N("Mul", ["a", "a"], ["h"]), call, N("If", ["c"], ["y"], then_branch=then, else_branch=orelse)],
        [opset, local],
        ["slope"],
    )
    nodes = [
        N("ReduceMax", ["x"], ["m"], keepdims=0),
        N("Greater", ["m", "zero"], ["c"]),
        N("Outer", ["x", "c"], ["h"], domain="local", slope=0.5),
        N("Outer", ["h", "c"], ["y"], domain="local", slope=0.25),
    ]
    return model(nodes, {"x": draw(0, 4)}, [info("y", [4])], {"zero": np.float32(0)}, others={"local": 1}, functions=[inner, outer])


NETWORKS: dict[str, Callable[[], Good]] = {
    build.__name__: build for build in (layers, image, shapes, quantised, behind_data, loop, branch, strings, contributed, functions)
}


# ---------------------------------------------------------------------------------------------------------- every operator

_LONGEST = 4096


def _plain(value: Any) -> bool:
    return isinstance(value, np.ndarray)


@lru_cache(maxsize=1)
def operators() -> dict[str, Callable[[], Good]]:
    """One test of onnx's own an operator, among those that the table of the conformance tests has as passed."""
    _, table = conformance.read_table(conformance.table_path())
    found: dict[str, Callable[[], Good]] = {}
    for case in conformance.cases()[0]:
        if case.kind == "node" and table.get(case.name) == "":
            proto = case.make()
            last = proto.graph.node[-1]
            if last.op_type not in found and last.op_type not in RANDOM | {"Dropout"} and proto.ByteSize() < 20000:
                found[last.op_type] = lambda case=case: _among_others(case)
    return found


def _among_others(case: conformance.Case) -> Good:
    """The test's model with a node in front of its first input and behind its first output, where those are tensors, and its other inputs
    as constants, where they are small tensors."""
    proto = ModelProto()
    proto.CopyFrom(case.make())
    inputs, outputs = next(iter(case.data(proto)))
    graph = proto.graph
    if all(o.domain for o in proto.opset_import):
        proto.opset_import.append(helper.make_opsetid("", 17))
    values = {i.name: np.asarray(x) if isinstance(x, np.generic) else x for i, x in zip(graph.input, inputs, strict=False) if x is not None}
    for at in reversed(range(1, len(graph.input))):
        name = graph.input[at].name
        x = values.get(name)
        if _plain(x) and x.dtype != object and x.nbytes < _LONGEST and len(values) > 1:
            graph.initializer.append(numpy_helper.from_array(values.pop(name), name))
            del graph.input[at]
    if graph.input and _plain(values.get(graph.input[0].name)) and graph.input[0].type.HasField("tensor_type"):
        _before(graph, graph.input[0].name)
    if graph.output[0].type.HasField("tensor_type"):
        _behind(graph, graph.output[0].name)
    return Good(proto, values, outputs, case.rtol, case.atol)


def _before(graph: onnx.GraphProto, name: str) -> None:
    for node in graph.node:
        for k, read in enumerate(node.input):
            if read == name:
                node.input[k] = "in.front"
    nodes = [N("Identity", [name], ["in.front"]), *graph.node]
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _behind(graph: onnx.GraphProto, name: str) -> None:
    if any(name in node.input for node in graph.node):
        return
    for node in graph.node:
        for k, given in enumerate(node.output):
            if given == name:
                node.output[k] = "from.behind"
    graph.node.append(N("Identity", ["from.behind"], [name]))


def all_good() -> Iterator[tuple[str, Callable[[], Good]]]:
    yield from NETWORKS.items()
    yield from operators().items()
