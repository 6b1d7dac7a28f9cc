"""Operators of onnxruntime's own with drawn attributes, shapes and types, beside onnxruntime; and the table of all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from contrib_tools import small
from drawn_models import Array, Case, floats, here, maybe, same, there
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as registry
from onnxruntime.quantization import QuantType, quantize_dynamic

from aspen_mp.planner.frontends import contrib
from aspen_mp.planner.frontends.contrib.absent import ABSENT, NO_CPU, why_absent

DOMAIN = "com.microsoft"
FLOAT, UINT8, INT8 = TensorProto.FLOAT, TensorProto.UINT8, TensorProto.INT8
F32 = np.float32


def own(op: str, inputs: list[Any], attributes: dict[str, Any] | None = None, types: Any = (FLOAT,), constants: Any = ()) -> Case:
    return Case(op, inputs, attributes or {}, types, 17, constants, DOMAIN)


def agree(case: Case, tolerance: float = 1e-4, steps: int = 0) -> None:
    same(case, here(case), there(case), tolerance, steps)


# --------------------------------------------------------------------------------------------------------------- the table


def test_every_operator_has_a_rule_or_a_reason() -> None:
    """Of onnxruntime's own registry, version by version."""
    schemas = {s.name for s in registry.get_all_operator_schema() if s.domain == DOMAIN}
    on_cpus = {k.op_name for k in registry.get_all_opkernel_def() if k.domain == DOMAIN and "CPU" in k.provider}
    assert not contrib.NAMES & set(ABSENT)
    assert schemas <= contrib.NAMES | contrib.LEFT | set(ABSENT), "an operator has neither a rule nor a reason"
    assert set(ABSENT) <= schemas, "a reason is given for what onnxruntime does not have"
    assert not NO_CPU & on_cpus, "onnxruntime has these for CPUs"


@pytest.mark.parametrize("op", ["BeamSearch", "PagedAttention", "MatMulFpQ4", "NoSuchThing"])
def test_reasons_are_sentences(op: str) -> None:
    assert f"node 'it' ({op}) {why_absent(op)}".count(":") == 1


# ---------------------------------------------------------------------------------------------------------------- products


@pytest.mark.parametrize("number", range(16))
@pytest.mark.parametrize("op", ["FusedMatMul", "TransposeMatMul"])
def test_products_of_turned_batches(op: str, number: int) -> None:
    """Every combination of turned matrices and batches that stand between rows and columns."""
    rng = np.random.default_rng([number, 1])
    turned, batched = [number & 1, number & 2], [number & 4, number & 8]
    batch = rng.integers(1, 4, 1 if op == "TransposeMatMul" else int(rng.integers(1, 3))).tolist()
    rows, inner, columns = rng.integers(1, 7, 3).tolist()
    shapes = []
    for (r, c), swap, apart in zip(((rows, inner), (inner, columns)), turned, batched, strict=True):
        shape = [*batch, c, r] if swap else [*batch, r, c]
        shapes.append([shape[-2], *shape[:-2], shape[-1]] if apart and op == "FusedMatMul" else shape)
    attributes: dict[str, Any] = {"transA": int(turned[0] > 0), "transB": int(turned[1] > 0), "alpha": float(rng.uniform(0.2, 2))}
    if op == "FusedMatMul":
        attributes |= {"transBatchA": int(batched[0] > 0), "transBatchB": int(batched[1] > 0)}
    agree(own(op, [floats(rng, *s) for s in shapes], attributes, constants=maybe(rng, 1)))


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("seed", range(6))
def test_codes_of_four_bits(kind: int, seed: int) -> None:
    """MatMulBnb4; onnxruntime has it for weights that are turned alone."""
    rng = np.random.default_rng([seed, 2])
    size = int(rng.choice([16, 32]))
    depth, width = size * int(rng.integers(1, 4)), int(rng.integers(1, 6)) * 2
    codes = rng.integers(0, 256, depth * width // 2).astype(np.uint8)
    largest = np.abs(floats(rng, depth * width // size))
    attributes = {"N": width, "K": depth, "block_size": size, "quant_type": kind}
    turned = own("MatMulBnb4", [floats(rng, 3, depth), codes, largest], attributes, constants=(1, 2))
    agree(turned)
    straight = own("MatMulBnb4", [np.eye(width, dtype=F32), codes, largest], {**attributes, "transB": 0}, constants=(1, 2))
    (weights,) = here(straight)
    same(turned, [turned.inputs[0] @ weights.T], there(turned))


# -------------------------------------------------------------------------------------------------------------- quantised


def parameter(rng: np.random.Generator, dtype: Any = np.uint8) -> list[Array]:
    return [np.array(rng.uniform(0.01, 0.1), F32), np.array(rng.integers(0, 100), dtype)]


@pytest.mark.parametrize("seed", range(8))
def test_quantised_choice(seed: int) -> None:
    """QLinearWhere, of shapes that are broadcast."""
    rng = np.random.default_rng([seed, 3])
    dtype, kind = (np.uint8, UINT8) if seed % 2 else (np.int8, INT8)
    full = rng.integers(1, 5, 3).tolist()
    shapes = [[d if rng.random() < 0.7 else 1 for d in full] for _ in range(3)]
    inputs = [
        rng.random(shapes[0]) < 0.5,
        small(dtype, *shapes[1]),
        *parameter(rng, dtype),
        small(dtype, *shapes[2]),
        *parameter(rng, dtype),
    ]
    agree(own("QLinearWhere", [*inputs, *parameter(rng, dtype)], types=[kind], constants=(2, 3, 5, 6, 7, 8)), steps=1)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("op", ["QLinearConv", "QLinearAveragePool", "QLinearGlobalAveragePool", "NhwcMaxPool"])
def test_channels_last(op: str, seed: int) -> None:
    rng = np.random.default_rng([seed, 4])
    channels, pictures = int(rng.integers(1, 4)), rng.integers(4, 8, 2).tolist()
    x = small(np.uint8, 2, *pictures, channels)
    window = {"kernel_shape": [2, 3], "pads": rng.integers(0, 2, 4).tolist(), "strides": rng.integers(1, 3, 2).tolist()}
    if op == "NhwcMaxPool":
        case = own(op, [x], window, [UINT8])
    elif op == "QLinearConv":
        weights = [small(np.uint8, 3, channels, 2, 3), np.array(0.01, F32), np.array(128, np.uint8)]
        bias = rng.integers(-99, 99, 3).astype(np.int32)
        inputs = [x, *parameter(rng), *weights, *parameter(rng), bias]
        case = own(op, inputs, {**window, "channels_last": 1}, [UINT8], range(1, 9))
    else:
        attributes = {"channels_last": 1, **(window if op == "QLinearAveragePool" else {})}
        case = own(op, [x, *parameter(rng), *parameter(rng)], attributes, [UINT8], range(1, 5))
    agree(case, steps=1)


@pytest.mark.parametrize("opset", [12, 13])
@pytest.mark.parametrize("axis", [-1, 0, 1, 2])
def test_quantised_softmax(opset: int, axis: int) -> None:
    """Before opset 13 of all axes from one on."""
    scales = [np.array(0.05, F32), np.array(100, np.uint8), np.array(1 / 256, F32), np.array(0, np.uint8)]
    case = own("QLinearSoftmax", [small(np.uint8, 2, 3, 4), *scales], {"axis": axis, "opset": opset}, [UINT8], range(1, 5))
    agree(case, steps=1)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("per_channel", [False, True])
def test_quantised_lstm(tmp_path: Any, direction: str, per_channel: bool) -> None:
    """A model of onnxruntime's tool computes what a float LSTM with the same rounded weights does.

    onnxruntime's own kernel also rounds activations, and on some processors its results are far from either.
    """
    count, hidden, width = 2 if direction == "bidirectional" else 1, 8, 6
    weights = {"w": (count, 4 * hidden, width), "r": (count, 4 * hidden, hidden), "b": (count, 8 * hidden)}
    rng = np.random.default_rng([per_channel, len(direction)])
    floats = {name: (rng.standard_normal(shape) * 0.3).astype(F32) for name, shape in weights.items()}
    path = tmp_path / "q.onnx"
    quantize_dynamic(lstm(floats, direction), path, weight_type=QuantType.QInt8, per_channel=per_channel)
    stored = {value.name: numpy_helper.to_array(value) for value in onnx.load(path).graph.initializer}
    for name in "wr":  # stored as [directions, input, gates]; one scale for each gate, or one for all
        scale, zero = (stored[f"{name}_{what}"].reshape(count, 1, -1) for what in ("scale", "zero_point"))
        rounded = (stored[f"{name}_quantized"].astype(F32) - zero) * scale
        floats[name] = np.ascontiguousarray(rounded.transpose(0, 2, 1), F32)
    x = rng.standard_normal((5, 2, width)).astype(F32)
    want = onnxruntime.InferenceSession(lstm(floats, direction).SerializeToString()).run(None, {"x": x})
    from kernel_graphs import run_model

    from aspen_mp.planner import api

    counts: dict[str, int] = {}
    got = run_model(api.load(path.read_bytes()), {"x": x}, counts=counts)
    assert "OPAQUE" not in counts
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def lstm(weights: dict[str, Any], direction: str) -> onnx.ModelProto:
    """A model of one LSTM with these weights `w`, `r` and `b`, over 5 steps of a batch of 2."""
    stored = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    hidden, width = weights["w"].shape[1] // 4, weights["w"].shape[2]
    node = helper.make_node("LSTM", ["x", "w", "r", "b"], ["y", "h", "c"], hidden_size=hidden, direction=direction)
    outs = [helper.make_tensor_value_info(n, FLOAT, None) for n in "yhc"]
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", FLOAT, [5, 2, width])], outs, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


# -------------------------------------------------------------------------------------------------------- caches, states


def grouped(rng: np.random.Generator, quantised: str) -> tuple[Case, list[int]]:
    """GroupQueryAttention, and the last place of each text. The cache grows, or has room for more; then the total length lies anywhere
    between the longest text's and the room."""
    batch, rows = (int(rng.integers(1, 4)), 1) if rng.random() < 0.6 else (1, int(rng.integers(2, 4)))
    own_heads, d = int(rng.integers(1, 3)), 8 * int(rng.integers(1, 3))
    heads = own_heads * int(rng.integers(1, 3))
    lasts = [int(v) + rows - 1 for v in rng.integers(1, 6, batch)]
    room, total = max(lasts) + 1 - rows, max(lasts) + 1
    if rng.random() < 0.6:
        room = total + int(rng.integers(0, 4))
        total = int(rng.integers(total, room + 1))
    attributes: dict[str, Any] = {"num_heads": heads, "kv_num_heads": own_heads}
    attributes |= {"local_window_size": int(rng.integers(1, 5))} if rng.random() < 0.3 else {}
    attributes |= {"softcap": 5.0} if rng.random() < 0.3 else {}
    news = [floats(rng, batch, rows, h * d) for h in (heads, own_heads, own_heads)]
    rest: list[Any] = [None] * 7
    if d == 16 and rng.random() < 0.5:
        attributes |= {"do_rotary": 1, "rotary_interleaved": int(rng.integers(0, 2))}
        rest[:2] = [floats(rng, 32, d // 2) for _ in range(2)]
    pasts, types = [floats(rng, batch, own_heads, room, d) for _ in range(2)], [FLOAT] * 3
    if quantised:
        per, bits = quantised.split("-")
        scales = np.abs(floats(rng, 2, 1 if per == "PER_TENSOR" else own_heads * d)) * F32(0.02) + F32(0.01)
        rest[5:] = list(scales * F32(1 if bits == "8" else 10))
        pasts = [small(np.int8, *x.shape) if bits == "8" else small(np.uint8, *x.shape[:-1], d // 2) for x in pasts]
        types = [FLOAT, *[INT8 if bits == "8" else UINT8] * 2]
        attributes |= {"k_quant_type": per, "v_quant_type": per, "kv_cache_bit_width": int(bits)}
    while rest and rest[-1] is None:
        rest.pop()
    inputs = [*news, *pasts, np.array(lasts, np.int32), np.array([total], np.int32), *rest]
    return own("GroupQueryAttention", inputs, attributes, types, maybe(rng, 6)), lasts


@pytest.mark.parametrize("seed", range(14))
@pytest.mark.parametrize("quantised", ["", "PER_TENSOR-8", "PER_CHANNEL-8", "PER_TENSOR-4", "PER_CHANNEL-4"])
def test_grouped_attention(quantised: str, seed: int) -> None:
    """Of the caches what lies behind the last key of a text is nobody's."""
    case, lasts = grouped(np.random.default_rng([seed, 5]), quantised)
    counts: dict[str, int] = {}
    got, want = here(case, counts), there(case, optimize=False)
    assert "OPAQUE" not in counts
    valid = [[x[i, :, : last + 1] for i, last in enumerate(lasts)] for x in (*got[1:], *want[1:])]
    assert [x.shape for x in got] == [x.shape for x in want], str(case)
    same(case, got[:1], want[:1])
    for mine, theirs in zip(valid[:2], valid[2:], strict=True):
        same(case, mine, theirs, steps=1 if quantised.endswith("8") else 0)


def test_several_tokens_of_several_texts() -> None:
    """Which onnxruntime refuses: each text is what it is alone."""
    rng = np.random.default_rng(11)
    lasts, total, room = [3, 6], 7, 9
    inputs = [floats(rng, 2, 2, 16), floats(rng, 2, 2, 8), floats(rng, 2, 2, 8), floats(rng, 2, 1, room, 8), floats(rng, 2, 1, room, 8)]
    numbers = [np.array(lasts, np.int32), np.array([total], np.int32)]
    attributes = {"num_heads": 2, "kv_num_heads": 1, "local_window_size": 4}
    both = here(own("GroupQueryAttention", [*inputs, *numbers], attributes, [FLOAT] * 3))
    for k, last in enumerate(lasts):
        alone = own(
            "GroupQueryAttention", [*(x[k : k + 1] for x in inputs), np.array([last], np.int32), numbers[1]], attributes, [FLOAT] * 3
        )
        want = there(alone, optimize=False)
        same(alone, [both[0][k : k + 1], both[1][k : k + 1, :, : last + 1]], [want[0], want[1][:, :, : last + 1]])


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize(("queries", "keys"), [(2, 2), (4, 2), (2, 4)])
@pytest.mark.parametrize("past", [False, True])
def test_linear_attention(rule: str, queries: int, keys: int, past: bool) -> None:
    rng = np.random.default_rng([queries, keys, past, len(rule)])
    batch, tokens, d, wide = 2, int(rng.integers(1, 5)), 3, 4
    inputs: list[Any] = [floats(rng, batch, tokens, queries * d), floats(rng, batch, tokens, keys * d) * F32(0.5)]
    inputs += [floats(rng, batch, tokens, keys * wide), floats(rng, batch, keys, d, wide) if past else None]
    inputs.append(-np.abs(floats(rng, batch, tokens, keys * (d if rng.random() < 0.5 else 1))) if "gated" in rule else None)
    inputs.append(rng.random((batch, tokens, keys)).astype(F32) if "delta" in rule else None)
    while inputs[-1] is None:
        inputs.pop()
    attributes = {"update_rule": rule, "q_num_heads": queries, "kv_num_heads": keys}
    attributes |= {"scale": 0.3} if rng.random() < 0.5 else {}
    agree(own("LinearAttention", inputs, attributes, [FLOAT] * 2))


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("past", [False, True])
def test_causal_convolution(width: int, activation: str, past: bool) -> None:
    rng = np.random.default_rng([width, past])
    state = floats(rng, 2, 3, width - 1) if past and width > 1 else None
    inputs = [floats(rng, 2, 3, int(rng.integers(1, 6))), floats(rng, 3, 1, width), floats(rng, 3), state]
    agree(own("CausalConvWithState", inputs, {"activation": activation}, [FLOAT] * 2))


# ---------------------------------------------------------------------------------------------------------------- experts


def experts(rng: np.random.Generator, kind: str, fusion: int) -> tuple[list[Any], dict[str, Any]]:
    """Inputs of MoE, with or without biases, of matrices or batches of them."""
    count, tokens, width, inner = int(rng.integers(2, 6)), int(rng.integers(1, 5)), 8, 6
    rows = inner * (2 if fusion else 1)
    x = floats(rng, tokens, width) if rng.random() < 0.5 else floats(rng, 1, tokens, width)
    inputs: list[Any] = [x, floats(rng, tokens, count), floats(rng, count, rows, width), floats(rng, count, rows)]
    inputs += [floats(rng, count, width, inner), floats(rng, count, width)]
    if rng.random() < 0.3:
        inputs[3] = inputs[5] = None
    attributes = {"k": int(rng.integers(1, count + 1)), "activation_type": kind, "swiglu_fusion": fusion}
    attributes["normalize_routing_weights"] = int(rng.integers(0, 2))
    if kind == "swiglu" and rng.random() < 0.5:
        attributes |= {"swiglu_limit": 1.0, "activation_alpha": 1.702, "activation_beta": 1.0}
    return inputs[: 5 if inputs[5] is None else 6], attributes


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("kind", "fusion"), [("relu", 0), ("silu", 0), ("gelu", 0), ("identity", 0), ("swiglu", 1)])
def test_experts(kind: str, fusion: int, seed: int) -> None:
    inputs, attributes = experts(np.random.default_rng([seed, 7]), kind, fusion)
    case = own("MoE", inputs, attributes, constants=range(2, len(inputs)))
    counts: dict[str, int] = {}
    same(case, here(case, counts), there(case))
    assert "OPAQUE" not in counts


@pytest.mark.parametrize("third", [False, True])
def test_layouts_of_gated_experts(third: bool) -> None:
    """What onnxruntime has for other devices alone: halves one behind the other, or in a product of their own, are those in turn."""
    inputs, attributes = experts(np.random.default_rng(12), "swiglu", 1)
    inputs[3:] = [floats(np.random.default_rng(1), *inputs[2].shape[:2]), inputs[4]]
    turns = own("MoE", inputs, attributes, constants=(2, 3, 4))
    halves = [np.concatenate([x[:, ::2], x[:, 1::2]], 1) for x in inputs[2:4]]
    other = [*inputs[:2], *halves, inputs[4]]
    if third:
        (w1, w3), (b1, b3) = (np.split(x, 2, 1) for x in halves)
        other = [*inputs[:2], w1, b1, inputs[4], None, w3, b3]
    case = own("MoE", other, {**attributes, "swiglu_fusion": 0 if third else 2}, constants=(2, 3, 4, 6, 7))
    same(case, here(case), there(turns))


def packed(rng: np.random.Generator, shape: tuple[int, ...], bits: int) -> Array:
    """Numbers of so many bits, the first in the lowest ones of a byte; the last axis filled up to whole bytes."""
    each = 8 // bits
    numbers = np.zeros((*shape[:-1], -(-shape[-1] // each) * each), np.int64)
    numbers[..., : shape[-1]] = rng.integers(0, 1 << bits, shape)
    return np.sum([numbers[..., k::each] << (bits * k) for k in range(each)], 0).astype(np.uint8)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("block", [0, 16])
def test_quantised_experts(bits: int, block: int, seed: int) -> None:
    """onnxruntime rounds what goes into products with weights of 8 bits in blocks."""
    rng = np.random.default_rng([seed, bits, block])
    count, width, fusion = 4, 32, seed % 2
    inputs: list[Any] = [floats(rng, 3, width), floats(rng, 3, count)]
    zeros: list[Any] = []
    for rows in (width * (1 + fusion), width):
        scales = np.abs(floats(rng, count, rows, *([width // block] if block else []))) * F32(0.1) + F32(0.02)
        inputs += [packed(rng, (count, rows, width), bits), scales, floats(rng, count, rows) if rng.random() < 0.5 else None]
        zeros.append(packed(rng, scales.shape, bits))
    if rng.random() < 0.5:
        inputs += [None, None, None, *zeros]
        inputs += [None, np.abs(floats(rng, 3, count))] if rng.random() < 0.5 else []
    attributes = {"k": 2, "activation_type": "swiglu" if fusion else "relu", "swiglu_fusion": fusion, "expert_weight_bits": bits}
    attributes |= {"normalize_routing_weights": int(rng.integers(0, 2)), **({"block_size": block} if block else {})}
    while inputs[-1] is None:
        inputs.pop()
    case = own("QMoE", inputs, attributes, constants=range(2, 14))
    got, want = here(case)[0], there(case)[0]
    assert np.abs(got - want).max() < (0.05 if bits == 8 and block else 1e-3) * np.abs(want).max(), str(case)


# ------------------------------------------------------------------------------------------------------- other spellings

X = np.random.default_rng(8).standard_normal((2, 3, 4, 5)).astype(F32)
GRID = np.random.default_rng(9).uniform(-1.2, 1.2, (2, 3, 3, 2)).astype(F32)
SPELLINGS: dict[str, Callable[[np.random.Generator], Case]] = {
    "upper": lambda g: own("Trilu", [X, np.array(int(g.integers(-3, 4)))], {"upper": int(g.integers(0, 2))}, constants=maybe(g, 1)),
    "range": lambda g: own("Range", [np.array(0.5, F32), np.array(4, F32), np.array(0.7, F32)][: 2 + int(g.integers(0, 2))]),
    "axis": lambda g: own("ExpandDims", [X, np.array(int(g.integers(-5, 5)), np.int32)], constants=maybe(g, 1)),
    "places": lambda g: own("GatherND", [X, np.array([[0, 1], [1, 2]], np.int32 if g.random() < 0.5 else np.int64)]),
    "unique": lambda g: own("Unique", [g.integers(0, 4, 9).astype(F32)], types=[FLOAT, TensorProto.INT64, TensorProto.INT64]),
    "pads": lambda g: own(
        "Pad", [X, g.integers(0, 2, (1, 8))], {"mode": ["constant", "edge", "reflect"][g.integers(3)]}, constants=maybe(g, 1)
    ),
    "cut": lambda g: own("Pad", [X, np.array([0, 0, 1, 2, 0, 1, -1, 0]), np.array([3], F32)], constants=maybe(g, 1, 2)),
    "grid": lambda g: own("GridSample", [X, GRID], {"mode": ["bilinear", "nearest", "bicubic"][g.integers(3)], "align_corners": 1}),
    "windows": lambda g: own("UnfoldTensor", [X], {"size": 2, "step": int(g.integers(1, 3)), "dim": int(g.integers(-4, 4))}),
    "dynamic": lambda g: own("ConvTransposeWithDynamicPads", [X, floats(g, 3, 2, 2, 3), g.integers(0, 2, 4)], {"strides": [2, 1]}),
    "products": lambda g: own("MatMulInteger16", [small(np.int16, 2, 3) // 8, small(np.int16, 3, 2) // 8], types=[TensorProto.INT32]),
    "silu": lambda g: own("ScaledSiLU", [X, np.array(1.5, F32)][: 1 + int(g.integers(0, 2))], {"alpha": 0.5}),
    "gated-sum": lambda g: own("GatedAdd", [X, X[::-1].copy(), X[..., :1]]),
    "gated-norm": lambda g: own(
        "GatedRMSNorm", [floats(g, 2, 3, 8), floats(g, 4), floats(g, 2, 3, 8)], {"activation": ["silu", "sigmoid"][g.integers(2)]}
    ),
    "gate": lambda g: own("LinearAttentionGate", [floats(g, 2, 3, 4), floats(g, 4), floats(g, 4), floats(g, 2, 3, 4)], types=[FLOAT] * 2),
    "same": lambda g: own("SampleOp", [X]),
}


@pytest.mark.parametrize("name", SPELLINGS)
@pytest.mark.parametrize("seed", range(3))
def test_other_spellings(name: str, seed: int) -> None:
    agree(SPELLINGS[name](np.random.default_rng([seed, 6])))
