"""Operators of onnxruntime's own (com.microsoft), as its optimizer and its quantisation tools write them, said in ONNX's operators.

Quantised ones become the operator between DequantizeLinear and QuantizeLinear, which is what they are defined by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper

from aspen_mp.planner.frontends.functions import subgraphs
from aspen_mp.planner.ir import Tensor
from aspen_mp.shm.errors import UnsupportedModelError

DOMAIN: Final = "com.microsoft"
OPSET: Final = 23
"""Of what `plain` gives."""

MISPLACED: Final = frozenset({"SimplifiedLayerNormalization", "LayerNormalization"})
"""Operators that onnxruntime writes into ONNX's own domain, also for opsets that do not have them."""

_NORMALISED = 17  # ONNX has LayerNormalization from this opset on
_ADVICE = "load the model as it was before onnxruntime's optimizer or quantisation tools wrote it"
_LAYOUT = "is made for the machine that onnxruntime optimized it on: save it with ORT_ENABLE_EXTENDED at most, or load the original model"
_QUANTISED = "; quantise with QuantFormat.QDQ"


def place(proto: ModelProto) -> None:
    """Puts operators that are onnxruntime's into its domain: those that the model's opset of ONNX's own domain does not have."""
    version = next((o.version for o in proto.opset_import if o.domain in {"", "ai.onnx"}), 1)
    absent = MISPLACED if version < _NORMALISED else MISPLACED - {"LayerNormalization"}
    placed = sum(_place(nodes, absent) for nodes in (proto.graph.node, *(f.node for f in proto.functions)))
    if placed and all(o.domain != DOMAIN for o in proto.opset_import):
        proto.opset_import.append(helper.make_opsetid(DOMAIN, 1))


def _place(nodes: Iterable[NodeProto], absent: frozenset[str]) -> int:
    count = 0
    for node in nodes:
        if node.op_type in absent and node.domain in {"", "ai.onnx"}:
            node.domain = DOMAIN
            count += 1
        count += sum(_place(graph.node, absent) for graph in subgraphs(node))
    return count


def why_not(node: NodeProto, nested: bool) -> str:
    """Why a node of onnxruntime's domains cannot be run, and what to do; empty where it can."""
    if node.domain != DOMAIN:
        return _LAYOUT
    if node.op_type not in _RULES:
        quantised = _QUANTISED if node.op_type.startswith("Q") else ""
        return f"is an operator of onnxruntime's own that is not known here: {_ADVICE}{quantised}"
    if nested:
        return f"is an operator of onnxruntime's own, in a sub-graph, where it cannot be run: {_ADVICE}"
    given = {a.name for a in node.attribute if a.i or a.f or a.s or a.ints}
    unknown = given & _UNKNOWN.get(node.op_type, set())
    if unknown:
        return f"has the attribute {', '.join(sorted(unknown))}, which is not known here: {_ADVICE}"
    if node.op_type == "Attention" and any(node.input[4:]):
        return f"has past keys or a bias on its scores, which is not known here: {_ADVICE}"
    if node.op_type in {"FusedConv", "FusedGemm"}:
        kind = next((a.s.decode(errors="replace") for a in node.attribute if a.name == "activation"), "")
        return "" if kind in {"", "Clip", *_ACTIVATIONS} else f"has the activation {kind!r}, which is not known here: {_ADVICE}"
    return ""


def plain(node: NodeProto, inputs: Sequence[Tensor | None]) -> list[NodeProto]:
    """The nodes that a node of the domain stands for. `inputs` are known, maybe by shape alone."""
    body = _Body(node, inputs)
    results = _RULES[node.op_type](body)
    for name, result in zip(node.output, results, strict=False):
        if name:
            body.emit("Identity", result, out=name)
    missing = [name for k, name in enumerate(node.output) if name and (k >= len(results) or not results[k])]
    if missing:
        raise body.unknown(f"gives {', '.join(map(repr, missing))}")
    return body.nodes


class _Body:
    """Takes down the nodes that stand for one."""

    def __init__(self, node: NodeProto, inputs: Sequence[Tensor | None]) -> None:
        self.node = node
        self.inputs = inputs
        self.nodes: list[NodeProto] = []
        self.attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}

    def unknown(self, what: str) -> UnsupportedModelError:
        return UnsupportedModelError(f"node {self.node.name or self.node.output[0]!r} ({self.node.op_type}) {what}: {_ADVICE}")

    def name(self, k: int) -> str:
        """Of input k, empty where it is missing."""
        return self.node.input[k] if k < len(self.node.input) else ""

    def tensor(self, k: int) -> Tensor:
        found = self.inputs[k] if k < len(self.node.input) else None
        if found is None:
            raise self.unknown(f"lacks its input {k}")
        return found

    def get(self, name: str, default: Any) -> Any:
        return self.attributes.get(name, default)

    def emit(self, op: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        out = out or f"{self.node.output[0]}\0{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [out], name=f"{self.node.name or self.node.output[0]}/{op}", **attributes))
        return out

    def constant(self, value: Any) -> str:
        """Named after its value: equal names are equal constants, whatever the shapes of inputs."""
        array = np.asarray(value)
        out = f"{self.node.output[0]}\0{array.dtype} {array.tolist()}"
        if all(out not in n.output for n in self.nodes):
            self.nodes.append(helper.make_node("Constant", [], [out], name=out, value=numpy_helper.from_array(array)))
        return out

    def number(self, value: float) -> str:
        """Of the type of input 0."""
        return self.constant(np.asarray(value).astype(self.tensor(0).dtype))

    def plus(self, x: str, y: str) -> str:
        return self.emit("Add", x, y) if y else x

    def kept(self, names: Iterable[str]) -> dict[str, Any]:
        return {name: self.attributes[name] for name in names if name in self.attributes}

    def real(self, k: int, axis: int | None = None) -> str:
        """Inputs k, k + 1 and k + 2, dequantised."""
        scale = self.inputs[k + 1]
        along: dict[str, Any] = {"axis": axis} if axis is not None and scale is not None and scale.size > 1 else {}
        return self.emit("DequantizeLinear", *_given(self.name(k), self.name(k + 1), self.name(k + 2)), **along)

    def quantised(self, x: str, k: int) -> str:
        """x by the scale and zero point that are inputs k and k + 1."""
        return self.emit("QuantizeLinear", *_given(x, self.name(k), self.name(k + 1)))


def _given(*names: str) -> list[str]:
    return list(names[: max(k for k, name in enumerate(names) if name) + 1])


# ---------------------------------------------------------------------------------------------------- products, activations


def _fused_matmul(b: _Body) -> list[str]:
    names = []
    for k, letter in enumerate("AB"):
        rank, name = len(b.tensor(k).shape), b.name(k)
        if b.get(f"trans{letter}", 0) and rank > 1:
            name = b.emit("Transpose", name, perm=[*range(rank - 2), rank - 1, rank - 2])
        names.append(name)
    product, alpha = b.emit("MatMul", *names), b.get("alpha", 1.0)
    return [product if alpha == 1 else b.emit("Mul", product, b.number(alpha))]


_ACTIVATIONS: Final = {"Relu": (), "Tanh": (), "Sigmoid": (), "LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}
"""What may follow a fused product → its attributes, in order."""


def _activated(b: _Body, x: str, parameters: Sequence[float]) -> str:
    kind = b.get("activation", b"").decode()
    if kind == "Clip":
        return b.emit("Clip", x, *map(b.number, parameters))
    attributes: dict[str, Any] = dict(zip(_ACTIVATIONS.get(kind, ()), parameters, strict=False))
    return b.emit(kind, x, **attributes) if kind else x


def _fused_conv(b: _Body) -> list[str]:
    attributes = b.kept(("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"))
    y = b.emit("Conv", *_given(*map(b.name, range(3))), **attributes)
    return [_activated(b, b.plus(y, b.name(3)), b.get("activation_params", []))]


def _fused_gemm(b: _Body) -> list[str]:
    y = b.emit("Gemm", *_given(*map(b.name, range(3))), **b.kept(("alpha", "beta", "transA", "transB")))
    given = [b.attributes[name] for name in ("activation_alpha", "activation_beta") if name in b.attributes]
    return [_activated(b, y, given)]


def _gelu(b: _Body) -> list[str]:
    return [b.emit("Gelu", b.plus(b.name(0), b.name(1)))]


def _fast_gelu(b: _Body) -> list[str]:
    return [b.emit("Gelu", b.plus(b.name(0), b.name(1)), approximate="tanh")]


def _quick_gelu(b: _Body) -> list[str]:
    gate = b.emit("Sigmoid", b.emit("Mul", b.name(0), b.number(b.get("alpha", 1.702))))
    return [b.emit("Mul", b.name(0), gate)]


# ---------------------------------------------------------------------------------------------------- norms, attention


def _norm(b: _Body, x: str, scale: str, bias: str | None, eps: float) -> str:
    """By root mean square alone where there is no `bias` (None); one that is missing is empty."""
    if bias is None:
        return b.emit("RMSNormalization", x, scale, axis=b.get("axis", -1), epsilon=eps)
    return b.emit("LayerNormalization", *_given(x, scale, bias), axis=b.get("axis", -1), epsilon=eps)


def _layer_norm(b: _Body) -> list[str]:
    return [_norm(b, b.name(0), b.name(1), b.name(2), b.get("epsilon", 1e-5))]


def _simple_norm(b: _Body) -> list[str]:
    return [_norm(b, b.name(0), b.name(1), None, b.get("epsilon", 1e-5))]


def _skip_norm(b: _Body) -> list[str]:
    whole = b.plus(b.emit("Add", b.name(0), b.name(1)), b.name(4))
    return [_norm(b, whole, b.name(2), b.name(3), b.get("epsilon", 1e-12)), "", "", whole]


def _skip_simple_norm(b: _Body) -> list[str]:
    whole = b.plus(b.emit("Add", b.name(0), b.name(1)), b.name(3))
    return [_norm(b, whole, b.name(2), None, b.get("epsilon", 1e-12)), "", "", whole]


def _attention(b: _Body) -> list[str]:
    projected = b.plus(b.emit("MatMul", b.name(0), b.name(1)), b.name(2))
    width = b.tensor(1).shape[1]
    sizes = [int(n) for n in b.get("qkv_hidden_sizes", None) or [width // 3] * 3]
    parts = [f"{b.node.output[0]}\0{letter}" for letter in "qkv"]
    split = helper.make_node("Split", [projected, b.constant(np.array(sizes))], parts, name=f"{b.node.name}/Split", axis=2)
    b.nodes.append(split)
    heads = b.get("num_heads", 1)
    options: dict[str, Any] = {"q_num_heads": heads, "kv_num_heads": heads, "is_causal": b.get("unidirectional", 0)}
    if b.get("scale", 0.0):
        options["scale"] = b.get("scale", 0.0)
    mask = ""
    if b.name(3):
        if len(b.tensor(3).shape) != 2:
            raise b.unknown("has a mask that is not one number for each token")
        seen = b.emit("Cast", b.name(3), to=9)  # bool
        mask = b.emit("Unsqueeze", seen, b.constant(np.array([1, 2])))
    return [b.emit("Attention", *_given(*parts, mask), **options)]


# ---------------------------------------------------------------------------------------------------- quantised


def _between(op: str, *attributes: str) -> Callable[[_Body], list[str]]:
    """The operator of one real input between both conversions: (x, scale, zero, scale, zero)."""

    def rule(b: _Body) -> list[str]:
        return [b.quantised(b.emit(op, b.real(0), **b.kept(attributes)), 3)]

    return rule


def _arithmetic(op: str) -> Callable[[_Body], list[str]]:
    def rule(b: _Body) -> list[str]:
        return [b.quantised(b.emit(op, b.real(0), b.real(3)), 6)]

    return rule


def _quantised_concat(b: _Body) -> list[str]:
    parts = [b.real(k) for k in range(2, len(b.node.input), 3)]
    return [b.quantised(b.emit("Concat", *parts, axis=b.get("axis", 1)), 0)]


def _quantised_gemm(b: _Body) -> list[str]:
    """The bias is of 32 bits, its scale that of the product."""
    transposed = b.get("transB", 0)
    inputs = [b.real(0), b.real(3, axis=0 if transposed else 1)]
    if b.name(6):
        scale = b.emit("Mul", b.name(1), b.name(4))
        inputs.append(b.emit("Mul", b.emit("Cast", b.name(6), to=1), scale))  # float32
    y = b.emit("Gemm", *inputs, **b.kept(("alpha", "transA", "transB")))
    return [b.quantised(y, 7) if b.name(7) else y]


def _integer_product(b: _Body) -> list[str]:
    """(a, b, scale, scale, zero, zero, bias)."""
    reals = []
    for k in (0, 1):
        scale, rank = b.tensor(k + 2), len(b.tensor(k).shape)
        along: dict[str, Any] = {"axis": rank - 1} if scale.size > 1 else {}
        reals.append(b.emit("DequantizeLinear", *_given(b.name(k), b.name(k + 2), b.name(k + 4)), **along))
    return [b.plus(b.emit("MatMul", *reals), b.name(6))]


def _quantize(b: _Body) -> list[str]:
    return [b.emit("QuantizeLinear", *_given(*map(b.name, range(3))), axis=b.get("axis", 1))]


def _dequantize(b: _Body) -> list[str]:
    return [b.emit("DequantizeLinear", *_given(*map(b.name, range(3))), axis=b.get("axis", 1))]


def _quantised_softmax(b: _Body) -> list[str]:
    """Of the opset in an attribute; before 13 all axes from `axis` on are one."""
    rank, axis = len(b.tensor(0).shape), b.get("axis", -1)
    if b.get("opset", 13) < 13 and axis not in {-1, rank - 1}:
        raise b.unknown(f"is of opset {b.get('opset', 13)}, over several axes")
    return [b.quantised(b.emit("Softmax", b.real(0), axis=axis), 3)]


_POOL = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")
_RULES: Final[dict[str, Callable[[_Body], list[str]]]] = {
    "Attention": _attention,
    "BiasGelu": _gelu,
    "DequantizeLinear": _dequantize,
    "FastGelu": _fast_gelu,
    "FusedConv": _fused_conv,
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _fused_matmul,
    "Gelu": _gelu,
    "LayerNormalization": _layer_norm,
    "MatMulIntegerToFloat": _integer_product,
    "QGemm": _quantised_gemm,
    "QLinearAdd": _arithmetic("Add"),
    "QLinearAveragePool": _between("AveragePool", *_POOL),
    "QLinearConcat": _quantised_concat,
    "QLinearGlobalAveragePool": _between("GlobalAveragePool"),
    "QLinearLeakyRelu": _between("LeakyRelu", "alpha"),
    "QLinearMul": _arithmetic("Mul"),
    "QLinearSigmoid": _between("Sigmoid"),
    "QLinearSoftmax": _quantised_softmax,
    "QuantizeLinear": _quantize,
    "QuickGelu": _quick_gelu,
    "SimplifiedLayerNormalization": _simple_norm,
    "SkipLayerNormalization": _skip_norm,
    "SkipSimplifiedLayerNormalization": _skip_simple_norm,
}
_UNKNOWN: Final = {
    "Attention": {"do_rotary", "past_present_share_buffer", "rotary_embedding_dim"},
    "FusedMatMul": {"transBatchA", "transBatchB"},
    "QLinearAveragePool": {"channels_last"},
    "QLinearGlobalAveragePool": {"channels_last"},
}
"""Attributes that change what an operator does in ways that have no rule here."""
