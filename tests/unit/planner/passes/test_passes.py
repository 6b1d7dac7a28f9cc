"""Passes: the same numbers as without them, and the kernels that each is there to leave."""

from __future__ import annotations

import numpy as np
import pytest
from net_tools import Net, check, lowered, ops


def test_batchnorm_into_convolution() -> None:
    net = Net(x=(2, 3, 8, 8))
    y = net("Conv", "x", net.weight(40, 3, 3, 3), net.weight(40))
    y = net("BatchNormalization", y, net.weight(40), net.weight(40), net.weight(40), net.weight(40, positive=True))
    y = net("Mul", y, net.weight(1, 40, 1, 1))
    y = net("Add", y, net.weight(40, 1, 1))
    nodes = check(net, net("Relu", y))
    assert ops(nodes) == ["CONV"]
    assert nodes[0].attrs["act"][0] == "RELU"
    weights, bias = nodes[0].inputs[1], nodes[0].inputs[2]
    assert weights is not None
    assert bias is not None
    assert weights.weight_key is not None
    assert bias.weight_key is not None


def test_batchnorm_into_gemm() -> None:
    net = Net(x=(4, 6))
    y = net("Gemm", "x", net.weight(40, 6), net.weight(40), transB=1, alpha=0.5, beta=2.0)
    y = net("BatchNormalization", y, net.weight(40), net.weight(40), net.weight(40), net.weight(40, positive=True))
    assert ops(check(net, y)) == ["GEMM"]


def test_batchnorm_alone() -> None:
    net = Net(x=(2, 3, 4, 4))
    y = net("BatchNormalization", "x", net.weight(3), net.weight(3), net.weight(3), net.weight(3, positive=True))
    assert ops(check(net, y)) == ["TERNARY"]


def test_convolution_with_two_readers_is_left() -> None:
    net = Net(x=(1, 3, 6, 6))
    y = net("Conv", "x", net.weight(4, 3, 1, 1))
    z = net("BatchNormalization", y, net.weight(4), net.weight(4), net.weight(4), net.weight(4, positive=True))
    assert ops(check(net, net("Sigmoid", y), z)) == ["CONV", "TERNARY", "UNARY"]


def test_residual_block() -> None:
    net = Net(x=(1, 8, 6, 6))
    y = net("Relu", net("Conv", "x", net.weight(8, 8, 3, 3), net.weight(8), pads=[1] * 4))
    y = net("Conv", y, net.weight(8, 8, 3, 3), net.weight(8), pads=[1] * 4)
    nodes = check(net, net("Relu", net("Add", y, "x")))
    assert ops(nodes) == ["CONV", "CONV"]
    assert nodes[1].inputs[3] is not None


def test_of_two_products_the_later_takes_the_earlier() -> None:
    net = Net(x=(1, 8, 6, 6), z=(1, 8, 6, 6))
    left, right = (net("Conv", image, net.weight(8, 8, 1, 1), net.weight(8)) for image in "xz")
    nodes = check(net, net("Relu", net("Add", right, left)))
    assert ops(nodes) == ["CONV", "CONV"]
    assert nodes[1].inputs[3] is nodes[0].output


def test_a_value_added_to_itself_is_no_residual() -> None:
    net = Net(x=(4, 6))
    y = net("MatMul", "x", net.weight(6, 6))
    assert ops(check(net, net("Add", y, y))) == ["GEMM", "BINARY"]


def test_residual_after_the_activation() -> None:
    """As in YOLOv3: leaky(conv) + x. What follows the sum stays outside."""
    net = Net(x=(1, 8, 6, 6), z=(4, 6))
    y = net("LeakyRelu", net("Conv", "x", net.weight(8, 8, 3, 3), net.weight(8), pads=[1] * 4))
    (node,) = check(net, net("Add", y, "x"))
    assert node.op == "CONV"
    assert node.attrs["residual_last"]
    y = net("Relu", net("MatMul", "z", net.weight(6, 6)))
    assert ops(check(net, net("Tanh", net("Add", y, "z")))) == ["GEMM", "UNARY"]


def test_scale_after_the_activation() -> None:
    """A normalisation that follows the activation, as in networks for speech, cannot be folded into the weights."""
    net = Net(x=(1, 8, 6, 6))
    y = net("Relu", net("Conv", "x", net.weight(40, 8, 3, 3), net.weight(40), pads=[1] * 4))
    y = net("BatchNormalization", y, net.weight(40), net.weight(40), net.weight(40), net.weight(40, positive=True))
    z = net("Conv", "x", net.weight(40, 8, 1, 1))
    (first, second) = check(net, net("Add", y, z))
    assert first.inputs[4] is not None
    assert first.inputs[5] is not None
    assert second.inputs[3] is first.output


def test_scale_then_residual() -> None:
    net = Net(x=(3, 40), z=(3, 8))
    y = net("Sigmoid", net("MatMul", "z", net.weight(8, 40)))
    for op, constant in (("Mul", net.weight(40)), ("Div", net.weight(1, positive=True))):
        (node,) = check(net, net("Add", net(op, y, constant), "x"))
        assert node.attrs["residual_last"]
        assert len(node.inputs) == 6


@pytest.mark.parametrize("gelu", [False, True])
def test_gated_products(gelu: bool) -> None:
    """SwiGLU and GeGLU: the product that comes later multiplies with the earlier one, activated, while its tile is in registers."""
    net = Net(x=(3, 40), opset=20)
    gate, up = (net("MatMul", "x", net.weight(40, 64, scale=0.2)) for _ in range(2))
    gate = net("Gelu", gate) if gelu else net("Mul", gate, net("Sigmoid", gate))
    down = net("MatMul", net("Mul", gate, up), net.weight(64, 40, scale=0.2))
    nodes = check(net, net("Add", down, "x"))
    assert ops(nodes) == ["GEMM", "GEMM", "GEMM"]
    assert [n.attrs.get("gated", False) for n in nodes] == [False, True, False]


def test_what_follows_a_gate_stays_outside() -> None:
    net = Net(x=(3, 40), y=(3, 64))
    gated = net("Mul", net("Relu", net("MatMul", "x", net.weight(40, 64))), "y")
    (first, second) = check(net, net("Add", gated, "y"))
    assert (first.op, first.attrs["gated"], second.op) == ("GEMM", True, "BINARY")
    gated = net("Mul", net("MatMul", "x", net.weight(40, 64)), "y")
    (first, second) = check(net, net("Sub", "y", gated))
    assert (first.op, first.attrs["gated"], second.op) == ("GEMM", True, "BINARY")


def test_scale_and_activation_are_one_pass() -> None:
    """DenseNet's normalisation of a concatenation."""
    net = Net(x=(2, 3, 4, 4))
    y = net("BatchNormalization", "x", net.weight(3), net.weight(3), net.weight(3), net.weight(3, positive=True))
    (node,) = check(net, net("Relu", y))
    assert (node.op, node.attrs["act"][0]) == ("TERNARY", "RELU")


@pytest.mark.parametrize("first", [False, True])
def test_a_product_and_its_sum_are_one_pass(first: bool) -> None:
    net = Net(x=(2, 3, 4, 4), z=(2, 3, 4, 4))
    product = net("Mul", "x", net.weight(3, 1, 1))
    (node,) = check(net, net("Relu", net("Add", *((product, "z") if first else ("z", product)))))
    assert node.op == "TERNARY"
    assert (node.attrs["opcode"], node.attrs["act"][0]) == ("FMA", "RELU")


def test_a_product_stays_that_is_read_twice_widened_or_behind_a_function() -> None:
    net = Net(x=(2, 3, 4, 4), z=(2, 3, 4, 4), narrow=(1, 3, 1, 1))
    product = net("Mul", "x", net.weight(3, 1, 1))
    assert ops(check(net, net("Add", product, "z"), product)) == ["BINARY", "BINARY"]
    assert ops(check(net, net("Add", product, product))) == ["BINARY", "BINARY"]
    assert ops(check(net, net("Add", net("Mul", "narrow", net.weight(3, 1, 1)), "z"))) == ["BINARY", "BINARY"]
    assert ops(check(net, net("Add", net("Relu", product), "z"))) == ["BINARY", "BINARY"]


def test_normalisation_before_a_convolution() -> None:
    """DenseNet: read by 1×1 convolutions alone it becomes their prologue."""
    net = Net(x=(1, 40, 6, 6))
    y = net("BatchNormalization", "x", net.weight(40), net.weight(40), net.weight(40), net.weight(40, positive=True))
    y = net("Relu", y)
    (node,) = check(net, net("Relu", net("Conv", y, net.weight(32, 40, 1, 1), net.weight(32))))
    assert node.attrs["in_act"][0] == "RELU"
    assert [t is not None for t in node.inputs] == [True, True, True, False, False, False, True, True]
    both = [net("Conv", y, net.weight(32, 40, k, k)) for k in (1, 3)]
    assert ops(check(net, *both)) == ["TERNARY", "CONV", "CONV"]


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 2)])
def test_pointwise_before_depthwise(kernel: int, stride: int) -> None:
    """An inverted residual: its wide tensor is never written."""
    net = Net(x=(2, 8, 9, 10))
    y = net("Relu", net("Conv", "x", net.weight(40, 8, 1, 1), net.weight(40)))
    y = net("Conv", y, net.weight(40, 1, kernel, kernel), net.weight(40), group=40, strides=[stride] * 2, pads=[kernel // 2] * 4)
    nodes = check(net, net("Conv", net("HardSwish", y), net.weight(8, 40, 1, 1)))
    assert ops(nodes) == ["PWDW", "CONV"]
    assert [nodes[0].attrs[key][0] for key in ("in_act", "act")] == ["RELU", "HARD_SWISH"]


@pytest.mark.parametrize("repeats", [2, 3, 8])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_channels_for_several(repeats: int, axes: int) -> None:
    """A channel multiplier: depthwise with all that joins a convolution, but not behind a pointwise one as a kernel with it."""
    net = Net(x=(2, 4, 6, 9, 8)[: 2 + axes])
    wide = net("Relu", net("Conv", "x", net.weight(20, 4, *[1] * axes)))
    same = {"group": 20, "strides": [2] * axes, "pads": [1] * 2 * axes}
    outputs = 20 * repeats
    y = net("Conv", wide, net.weight(outputs, 1, *[3] * axes), net.weight(outputs), **same)
    more = net("Conv", net("Sigmoid", wide), net.weight(outputs, 1, *[1] * axes), group=20, strides=[2] * axes)
    y = net("BatchNormalization", y, *[net.weight(outputs) for _ in range(3)], net.weight(outputs, positive=True))
    nodes = check(net, net("Relu", net("Add", y, more)))
    assert sorted(ops(nodes)) == ["CONV", "DWCONV", "DWCONV", "UNARY"]
    assert nodes[-1].attrs["act"][0] == "RELU"


def test_channels_for_many_stay() -> None:
    net = Net(x=(1, 3, 9, 8))
    assert ops(check(net, net("Conv", "x", net.weight(96, 1, 3, 3), group=3))) == ["CONV"]


def test_pointwise_before_channels_for_several_stays() -> None:
    net = Net(x=(1, 8, 9, 8))
    wide = net("Conv", "x", net.weight(40, 8, 1, 1))
    assert ops(check(net, net("Conv", wide, net.weight(80, 1, 3, 3), group=40))) == ["CONV", "DWCONV"]


def test_pointwise_that_others_read_too_stays() -> None:
    net = Net(x=(1, 8, 6, 6))
    wide = net("Conv", "x", net.weight(40, 8, 1, 1))
    deep = net("Conv", wide, net.weight(40, 1, 3, 3), group=40, pads=[1] * 4)
    assert ops(check(net, deep, net("Relu", wide)))[-1] != "PWDW"
    for attrs in ({"strides": [2, 2]}, {"pads": [1] * 4}):
        wide = net("Conv", "x", net.weight(40, 8, 1, 1), **attrs)
        assert "PWDW" not in ops(check(net, net("Conv", wide, net.weight(40, 1, 3, 3), group=40)))
    sum_ = net("Add", net("Conv", "x", net.weight(8, 8, 1, 1)), "x")
    assert "PWDW" not in ops(check(net, net("Conv", sum_, net.weight(8, 1, 3, 3), group=8)))


def test_activation_of_a_choice_stays_outside() -> None:
    net = Net(x=(2, 3))
    y = net("Where", net("Greater", "x", net.weight(3)), "x", net.weight(3))
    assert ops(check(net, net("Relu", y))) == ["BINARY", "TERNARY", "UNARY"]


@pytest.mark.parametrize("rows", [1, 4, 40])
def test_attention(rows: int) -> None:
    """Projections with biases, scores with scale and mask, residual: nothing but products, ATTENTION and NORM remains."""
    net = Net(x=(2, rows, 32), mask=(2, 1, 1, rows))

    def project(source: str) -> str:
        y = net("Add", net("MatMul", source, net.weight(32, 32, scale=0.2)), net.weight(32))
        return net("Transpose", net("Reshape", y, net.constant([2, rows, 4, 8])), perm=[0, 2, 1, 3])

    q, k, v = (project("x") for _ in range(3))
    scores = net("Div", net("MatMul", q, net("Transpose", k, perm=[0, 1, 3, 2])), net.number(8**0.5))
    weights = net("Softmax", net("Add", scores, "mask"), axis=-1)
    y = net("Reshape", net("Transpose", net("MatMul", weights, v), perm=[0, 2, 1, 3]), net.constant([2, rows, 32]))
    y = net("Add", net("Add", net("MatMul", y, net.weight(32, 32, scale=0.2)), net.weight(32)), "x")
    nodes = check(net, net("LayerNormalization", y, net.weight(32), net.weight(32)))
    assert sorted(ops(nodes)) == ["ATTENTION", "GEMM", "GEMM", "NORM"]


def test_scales_of_both_operands() -> None:
    net = Net(q=(2, 5, 8), k=(2, 7, 8))
    q, k = net("Mul", "q", net.number(0.3)), net("Mul", net.number(0.5), net("Transpose", "k", perm=[0, 2, 1]))
    nodes = check(net, net("Mul", net("MatMul", q, k), net.number(4.0)))
    assert ops(nodes) == ["GEMM"]
    assert nodes[0].attrs["alpha"] == pytest.approx(0.6)


POWERS = {1: [], -1: ["RECIPROCAL"], 2: ["SQUARE"], 0.5: ["SQRT"], -0.5: ["SQRT", "RECIPROCAL"], 0.3: ["POW"]}


@pytest.mark.parametrize(("exponent", "kernels"), POWERS.items())
def test_powers(exponent: float, kernels: list[str]) -> None:
    net = Net(x=(4, 50))
    found = [n.attrs["opcode"] for n in check(net, net("Neg", net("Pow", net("Exp", "x"), net.number(exponent))), reference=True)]
    assert [f for f in found if f not in {"EXP", "NEG"}] == kernels


def test_equal_nodes_are_one() -> None:
    net = Net(x=(4, 5))
    assert len([n for n in check(net, net("Sub", net("Exp", "x"), net("Mul", net("Exp", "x"), "x"))) if n.op == "UNARY"]) == 1


def test_neutral_elements_vanish() -> None:
    net = Net(x=(4, 5))
    y = net("Div", net("Mul", net("Add", "x", net.constant(np.zeros(5, np.float32))), net.number(1)), net.number(1))
    assert ops(check(net, net("Exp", y))) == ["UNARY"]


def test_outputs_of_their_own() -> None:
    """An output that is an input, a constant, or a value given twice is a copy."""
    net = Net(x=(4, 5))
    y = net("Exp", "x")
    nodes = check(net, net("Identity", "x"), y, net("Identity", y), net("Identity", net.weight(3)))
    assert sorted(ops(nodes)) == ["COPY", "COPY", "COPY", "UNARY"]


def test_weight_keys_do_not_depend_on_shapes() -> None:
    net = Net(x=(1, 3, 8, 8))
    y = net("Conv", "x", net.weight(40, 3, 3, 3), net.weight(40))
    y = net("BatchNormalization", y, net.weight(40), net.weight(40), net.weight(40), net.weight(40, positive=True))
    y = net("Gemm", net("Flatten", net("GlobalAveragePool", y)), net.weight(10, 40), net.weight(10), transB=1)
    keys = []
    for n in (1, 2):
        model = net.model(y)
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
        graph = lowered(model, {"x": np.zeros((n, 3, 8, 8), np.float32)})
        constants = [t for node in graph.nodes for t in node.inputs if t is not None and t.is_const]
        keys.append([(t.weight_key, t.shape) for t in constants])
        assert all(t.weight_key for t in constants)
    assert keys[0] == keys[1]
