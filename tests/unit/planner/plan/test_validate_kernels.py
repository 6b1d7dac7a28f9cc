"""Ops whose operands or parameters do not fit their kernels are refused with a PlanError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from graphs_by_hand import GraphBuilder
from plan_damage import Bytes, make, operand, param
from small_graphs import (
    blocks,
    depthwise_bytes,
    fitting_levels,
    images_of_bytes,
    inverted_residuals,
    products_of_batches_of_bytes,
    products_of_bits,
    products_of_bytes,
    products_of_pairs,
    strassen_products,
)

from aspen_mp.planner.ir.graph import Graph, Tensor
from aspen_mp.planner.plan.validate import validate
from aspen_mp.shm.errors import PlanError
from aspen_mp.shm.tables import DTYPES, KERNELS


def assert_refused(graph: Callable[[GraphBuilder], Any], damage: Callable[[Bytes], None], name: str) -> None:
    """A plan of the graph is good, and with this damage refused by a message with this in it."""
    b = Bytes(make(graph).segment())
    validate(b.raw)
    damage(b)
    with pytest.raises(PlanError, match=name):
        validate(b.raw)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("shape of input 1", param("GEMM", 0, 0)),
        ("shape of input 6", operand("GEMM", 7, "dims", [[2, 4, 7 * 48, 0, 0, 0, 0, 0]])),
        ("dtype of operand 7", operand("GEMM", 7, "dtype", DTYPES["I32"])),
        ("strides of input 6", operand("GEMM", 7, "strides", [[4 * 7 * 16, 7 * 16, 0, 0, 0, 0, 0, 0]])),
        ("strides of the output", operand("STRASSEN", 0, "strides", [[4 * 7 * 16, 1, 4, 0, 0, 0, 0, 0]])),
        ("an even number", operand("STRASSEN", 1, "dims", [[2, 7, 23, 0, 0, 0, 0, 0]])),
        ("shape of the output", operand("STRASSEN", 1, "dims", [[2, 5, 24, 0, 0, 0, 0, 0]])),
    ],
)
def test_damaged_left_factors(name: str, damage: Callable[[Bytes], None]) -> None:
    assert_refused(strassen_products, damage, name)


def of_sums(i: int, name: str, value: Any) -> Callable[[Bytes], None]:
    """A field of operand i of the product that gives its sums themselves."""

    def damage(b: Bytes) -> None:
        products = np.flatnonzero(b.ops["kernel"] == KERNELS["QGEMM"].code)
        (k,) = [k for k in products if b.operands["dtype"][b.ops["operand"][k]] == DTYPES["I32"]]
        if name == "activation":
            b.params[int(b.ops["param"][k]) + 1] = value
        else:
            b.operands[int(b.ops["operand"][k]) + i :][:1][name] = value

    return damage


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("zeros", param("QGEMM", 0, 2)),
        ("zeros", param("QGEMM", 0, -1)),
        ("activation", param("QGEMM", 1, 1000)),
        ("residual_last", param("QGEMM", 4, 3)),
        ("dtype of the output", operand("QGEMM", 0, "dtype", DTYPES["U32"])),
        ("dtype of input 0", operand("QGEMM", 1, "dtype", DTYPES["BOOL"])),
        ("shape of input 0", operand("QGEMM", 1, "dims", [[2, 6, 24, 0, 0, 0, 0, 0]])),
        ("shape of input 1", operand("QGEMM", 1, "dims", [[2, 7, 20, 0, 0, 0, 0, 0]])),
        ("rank of input 0", operand("QGEMM", 1, "rank", 2)),
        ("dtype of input 1", operand("QGEMM", 2, "dtype", DTYPES["U8"])),
        ("shape of input 1", operand("QGEMM", 2, "dims", [[2, 9, 32, 4, 0, 0, 0, 0]])),
        ("shape of input 1", operand("QGEMM", 2, "dims", [[1, 9, 32, 4, 0, 0, 0, 0]])),
        ("strides of input 1", operand("QGEMM", 2, "strides", [[9 * 128, 0, 4, 1, 0, 0, 0, 0]])),
        ("shape of input 2", operand("QGEMM", 3, "dims", [[2, 7, 79, 0, 0, 0, 0, 0]])),
        ("dtype of input 2", operand("QGEMM", 3, "dtype", DTYPES["I32"])),
        ("shape of input 4", operand("QGEMM", 5, "dims", [[1, 1, 80, 0, 0, 0, 0, 0]])),
        ("dtype of input 4", operand("QGEMM", 5, "dtype", DTYPES["I32"])),
        ("shape of input 5", operand("QGEMM", 6, "dims", [[2, 7, 1, 0, 0, 0, 0, 0]])),
        ("dtype of input 5", operand("QGEMM", 6, "dtype", DTYPES["I8"])),
        ("required", operand("QGEMM", 2, "dtype", 0)),
        ("input 2", operand("QGEMM", 0, "dtype", DTYPES["I32"])),
        ("activation", of_sums(0, "activation", 1)),
        ("dtype of input 0", of_sums(1, "dtype", DTYPES["BOOL"])),
    ],
)
def test_damaged_products_of_bytes(name: str, damage: Callable[[Bytes], None]) -> None:
    assert_refused(products_of_bytes, damage, name)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("zeros", param("QMATMUL", 0, 2)),
        ("activation", param("QMATMUL", 1, 1000)),
        ("dtype of input 1", operand("QMATMUL", 2, "dtype", DTYPES["U8"])),
        ("strides of input 1", operand("QMATMUL", 2, "strides", [[3072, 1024, 0, 0, 1, 0, 0, 0]])),
        ("shape of input 0", operand("QMATMUL", 1, "dims", [[2, 3, 6, 20, 0, 0, 0, 0]])),
        ("dtype of input 0", operand("QPACK", 1, "dtype", DTYPES["BOOL"])),
        ("shape of the output", operand("QPACK", 1, "dims", [[2, 3, 24, 7, 0, 0, 0, 0]])),
        ("dtype of the output", operand("QPACK", 0, "dtype", DTYPES["U8"])),
    ],
)
def test_damaged_products_of_batches_of_bytes(name: str, damage: Callable[[Bytes], None]) -> None:
    assert_refused(products_of_batches_of_bytes, damage, name)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("activation", param("QNBITGEMM", 1, 1000)),
        ("residual_last", param("QNBITGEMM", 4, 3)),
        ("bits", param("QNBITGEMM", 5, 3)),
        ("bits", param("QNBITGEMM", 5, 5)),
        ("shape of input 1", param("QNBITGEMM", 5, 8)),
        ("bits", param("QNBITGEMM", 5, 1 << 40)),
        ("block", param("QNBITGEMM", 6, 0)),
        ("block", param("QNBITGEMM", 6, -8)),
        ("block", param("QNBITGEMM", 6, 12)),
        ("block", param("QNBITGEMM", 6, 1 << 40)),
        ("shape of input 1", param("QNBITGEMM", 6, 16)),
        ("zeros", param("QNBITGEMM", 7, 2)),
        ("shape of input 1", param("QNBITGEMM", 7, 0)),
        ("zero", param("QNBITGEMM", 8, 16)),
        ("zero", param("QNBITGEMM", 8, -1)),
        ("dtype of the output", operand("QNBITGEMM", 0, "dtype", DTYPES["I32"])),
        ("dtype of input 0", operand("QNBITGEMM", 1, "dtype", DTYPES["I32"])),
        ("shape of input 0", operand("QNBITGEMM", 1, "dims", [[2, 6, 24, 0, 0, 0, 0, 0]])),
        ("shape of input 1", operand("QNBITGEMM", 1, "dims", [[2, 7, 15, 0, 0, 0, 0, 0]])),
        ("rank of input 0", operand("QNBITGEMM", 1, "rank", 2)),
        ("dtype of input 1", operand("QNBITGEMM", 2, "dtype", DTYPES["I8"])),
        ("shape of input 1", operand("QNBITGEMM", 2, "dims", [[2, 864, 0, 0, 0, 0, 0, 0]])),
        ("shape of input 1", operand("QNBITGEMM", 2, "dims", [[3, 860, 0, 0, 0, 0, 0, 0]])),
        ("strides of input 1", operand("QNBITGEMM", 2, "strides", [[863, 1, 0, 0, 0, 0, 0, 0]])),
        ("shape of input 2", operand("QNBITGEMM", 3, "dims", [[2, 7, 79, 0, 0, 0, 0, 0]])),
        ("dtype of input 2", operand("QNBITGEMM", 3, "dtype", DTYPES["I32"])),
        ("required", operand("QNBITGEMM", 2, "dtype", 0)),
    ],
)
def test_damaged_products_of_bits(name: str, damage: Callable[[Bytes], None]) -> None:
    assert_refused(products_of_bits, damage, name)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("zeros", param("QCONV", 0, 2)),
        ("kernel", param("QCONV", 1, 0)),
        ("shape of input 1", param("QCONV", 1, 2)),
        ("shape of input 1", param("QCONV", 2, 5)),
        ("stride", param("QCONV", 3, 0)),
        ("stride", param("QCONV", 4, -1)),
        ("dilation", param("QCONV", 5, 0)),
        ("dilation", param("QCONV", 6, 1 << 40)),
        ("window", param("QCONV", 3, 1 << 30)),
        ("window", param("QCONV", 4, 1 << 30)),
        ("pad", param("QCONV", 7, -1)),
        ("pad", param("QCONV", 8, -1)),
        ("activation", param("QCONV", 9, 1000)),
        ("residual_last", param("QCONV", 12, 2)),
        ("zero", param("QCONV", 14, 1 << 62)),
        ("zero", param("QCONV", 14, -(1 << 62))),
        ("dtype of the output", operand("QCONV", 0, "dtype", DTYPES["U32"])),
        ("rank of the output", operand("QCONV", 0, "rank", 3)),
        ("dtype of input 0", operand("QCONV", 1, "dtype", DTYPES["BOOL"])),
        ("rank of input 0", operand("QCONV", 1, "rank", 3)),
        ("batch of input 0", operand("QCONV", 1, "dims", [[1, 3, 9, 8, 0, 0, 0, 0]])),
        ("shape of input 1", operand("QCONV", 1, "dims", [[2, 5, 5, 8, 0, 0, 0, 0]])),
        ("dtype of input 1", operand("QCONV", 2, "dtype", DTYPES["U8"])),
        ("shape of input 1", operand("QCONV", 2, "dims", [[1, 12, 32, 4, 0, 0, 0, 0]])),
        ("strides of input 1", operand("QCONV", 2, "strides", [[12 * 128, 0, 4, 1, 0, 0, 0, 0]])),
        ("shape of input 2", operand("QCONV", 3, "dims", [[39, 0, 0, 0, 0, 0, 0, 0]])),
        ("dtype of input 2", operand("QCONV", 3, "dtype", DTYPES["I32"])),
        ("shape of input 4", operand("QCONV", 5, "dims", [[1, 40, 1, 1, 0, 0, 0, 0]])),
        ("dtype of input 4", operand("QCONV", 5, "dtype", DTYPES["I32"])),
        ("shape of input 5", operand("QCONV", 6, "dims", [[0, 0, 0, 0, 0, 0, 0, 0]])),
        ("dtype of input 5", operand("QCONV", 6, "dtype", DTYPES["I8"])),
        ("required", operand("QCONV", 2, "dtype", 0)),
        ("input 2", operand("QCONV", 0, "dtype", DTYPES["I32"])),
    ],
)
def test_damaged_convolutions_of_bytes(name: str, damage: Callable[[Bytes], None]) -> None:
    assert_refused(images_of_bytes, damage, name)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("parts", param("QDWCONV", 0, 0)),
        ("parts", param("QDWCONV", 0, 4)),
        ("shape of input 1", param("QDWCONV", 0, 2)),
        ("kernel", param("QDWCONV", 1, 0)),
        ("shape of input 1", param("QDWCONV", 1, 4)),
        ("shape of input 1", param("QDWCONV", 2, 5)),
        ("stride", param("QDWCONV", 3, 0)),
        ("dilation", param("QDWCONV", 6, 1 << 40)),
        ("window", param("QDWCONV", 4, 1 << 30)),
        ("window", param("QDWCONV", 6, 1 << 30)),
        ("pad", param("QDWCONV", 7, -1)),
        ("activation", param("QDWCONV", 9, 1000)),
        ("residual_last", param("QDWCONV", 12, 2)),
        ("zero", param("QDWCONV", 14, 1 << 62)),
        ("dtype of the output", operand("QDWCONV", 0, "dtype", DTYPES["BOOL"])),
        ("rank of the output", operand("QDWCONV", 0, "rank", 3)),
        ("dtype of input 0", operand("QDWCONV", 1, "dtype", DTYPES["BOOL"])),
        ("rank of input 0", operand("QDWCONV", 1, "rank", 3)),
        ("batch of input 0", operand("QDWCONV", 1, "dims", [[1, 40, 9, 8, 0, 0, 0, 0]])),
        ("channels of input 0", operand("QDWCONV", 1, "dims", [[2, 39, 9, 8, 0, 0, 0, 0]])),
        ("dtype of input 1", operand("QDWCONV", 2, "dtype", DTYPES["U8"])),
        ("shape of input 1", operand("QDWCONV", 2, "dims", [[1, 9, 32, 4, 0, 0, 0, 0]])),
        ("strides of input 1", operand("QDWCONV", 2, "strides", [[9 * 128, 0, 4, 1, 0, 0, 0, 0]])),
        ("shape of input 2", operand("QDWCONV", 3, "dims", [[39, 0, 0, 0, 0, 0, 0, 0]])),
        ("dtype of input 4", operand("QDWCONV", 5, "dtype", DTYPES["I32"])),
        ("shape of input 5", operand("QDWCONV", 6, "dims", [[0, 0, 0, 0, 0, 0, 0, 0]])),
        ("dtype of input 5", operand("QDWCONV", 6, "dtype", DTYPES["I8"])),
        ("required", operand("QDWCONV", 2, "dtype", 0)),
    ],
)
def test_damaged_depthwise_convolutions_of_bytes(name: str, damage: Callable[[Bytes], None]) -> None:
    assert_refused(depthwise_bytes, damage, name)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("activation", param("BGEMM", 1, 1000)),
        ("residual_last", param("BGEMM", 4, 3)),
        ("amx", param("BGEMM", 5, 2)),
        ("dtype of the output", operand("BGEMM", 0, "dtype", DTYPES["I32"])),
        ("dtype of input 0", operand("BGEMM", 1, "dtype", DTYPES["I32"])),
        ("shape of input 0", operand("BGEMM", 1, "dims", [[2, 19, 40, 0, 0, 0, 0, 0]])),
        ("shape of input 1", operand("BGEMM", 1, "dims", [[2, 20, 38, 0, 0, 0, 0, 0]])),
        ("rank of input 0", operand("BGEMM", 1, "rank", 2)),
        ("dtype of input 1", operand("BGEMM", 2, "dtype", DTYPES["F32"])),
        ("shape of input 1", operand("BGEMM", 2, "dims", [[2, 19, 32, 0, 0, 0, 0, 0]])),
        ("shape of input 1", operand("BGEMM", 2, "dims", [[1, 20, 32, 0, 0, 0, 0, 0]])),
        ("strides of input 1", operand("BGEMM", 2, "strides", [[640, 1, 20, 0, 0, 0, 0, 0]])),
        ("shape of input 2", operand("BGEMM", 3, "dims", [[2, 20, 32, 0, 0, 0, 0, 0]])),
        ("dtype of input 2", operand("BGEMM", 3, "dtype", DTYPES["I32"])),
        ("required", operand("BGEMM", 2, "dtype", 0)),
        ("kernel", param("BCONV", 0, 0)),
        ("shape of input 1", param("BCONV", 1, 2)),
        ("stride", param("BCONV", 2, 0)),
        ("stride", param("BCONV", 3, -1)),
        ("dilation", param("BCONV", 4, 0)),
        ("dilation", param("BCONV", 5, 1 << 40)),
        ("window", param("BCONV", 3, 1 << 30)),
        ("window", param("BCONV", 4, 1 << 30)),
        ("pad", param("BCONV", 6, -1)),
        ("pad", param("BCONV", 7, -1)),
        ("activation", param("BCONV", 8, 1000)),
        ("residual_last", param("BCONV", 11, 2)),
        ("activation", param("BCONV", 12, 1000)),
        ("amx", param("BCONV", 15, -1)),
        ("dtype of the output", operand("BCONV", 0, "dtype", DTYPES["U32"])),
        ("rank of the output", operand("BCONV", 0, "rank", 3)),
        ("dtype of input 0", operand("BCONV", 1, "dtype", DTYPES["BOOL"])),
        ("rank of input 0", operand("BCONV", 1, "rank", 3)),
        ("batch of input 0", operand("BCONV", 1, "dims", [[1, 17, 9, 8, 0, 0, 0, 0]])),
        ("shape of input 1", operand("BCONV", 1, "dims", [[2, 19, 9, 8, 0, 0, 0, 0]])),
        ("dtype of input 1", operand("BCONV", 2, "dtype", DTYPES["U8"])),
        ("shape of input 1", operand("BCONV", 2, "dims", [[1, 81, 32, 0, 0, 0, 0, 0]])),
        ("strides of input 1", operand("BCONV", 2, "strides", [[81 * 32, 1, 81, 0, 0, 0, 0, 0]])),
        ("shape of input 2", operand("BCONV", 3, "dims", [[39, 0, 0, 0, 0, 0, 0, 0]])),
        ("dtype of input 2", operand("BCONV", 3, "dtype", DTYPES["I32"])),
        ("required", operand("BCONV", 2, "dtype", 0)),
    ],
)
def test_damaged_products_of_pairs(name: str, damage: Callable[[Bytes], None]) -> None:
    assert_refused(products_of_pairs, damage, name)


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("block", 16, 5),
        ("shape of input 1", 16, 2),
        ("groups", 0, 2),
        ("kernel", 2, 5),
        ("stride", 4, 2),
        ("dilation", 5, 0),
        ("pad", 7, -1),
    ],
)
def test_damaged_winograd(name: str, place: int, value: int) -> None:
    assert_refused(blocks, param("WINO", place, value), name)


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [("activation", 0, 99), ("shape of input 3", 3, 2), ("window", 5, 100), ("window", 7, 1000), ("pad", 9, -1), ("activation", 11, -1)],
)
def test_damaged_inverted_residual(name: str, place: int, value: int) -> None:
    assert_refused(inverted_residuals, param("PWDW", place, value), name)


def recurrent_layer(b: GraphBuilder) -> Graph:
    """A run of an LSTM with all inputs."""
    p, h, c = b.input(5, 2, 80), b.input(1, 1, 2, 20), b.input(1, 1, 2, 20)
    packed = b.const(2, 20, 4, 16, weight=True)
    y = b.node("LSTM", [p, packed, h, c], (3, 1, 2, 20), first=0, reverse=False, begins=True)
    assert y.producer is not None
    y.producer.outputs.append(Tensor("c", c.shape, c.dtype, producer=y.producer))
    return b.graph(b.unary(y), b.unary(y.producer.outputs[1]))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("n_outputs", lambda b: b.ops["n_outputs"].__setitem__(b.op("LSTM"), 1)),
        ("steps of input 0", param("LSTM", 0, 3)),
        ("first", param("LSTM", 0, -1)),
        ("reverse", param("LSTM", 1, 2)),
        ("option", param("LSTM", 2, 2)),
        ("shape of the second output", operand("LSTM", 1, "dims", [[1, 1, 2, 19, 0, 0, 0, 0]])),
        ("shape of input 0", operand("LSTM", 2, "dims", [[5, 2, 79, 0, 0, 0, 0, 0]])),
        ("shape of input 1", operand("LSTM", 3, "dims", [[1, 20, 4, 16, 0, 0, 0, 0]])),
        ("strides of input 1", operand("LSTM", 3, "strides", [[0, 64, 16, 1, 0, 0, 0, 0]])),
        ("shape of input 2", operand("LSTM", 4, "dims", [[1, 1, 1, 20, 0, 0, 0, 0]])),
        ("shape of input 3", operand("LSTM", 5, "dims", [[1, 1, 2, 19, 0, 0, 0, 0]])),
    ],
)
def test_damaged_recurrent_layer(name: str, damage: Callable[[Bytes], None]) -> None:
    assert_refused(recurrent_layer, damage, name)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("times", param("QUANTIZE", 0, 2)),
        ("dtype of the output", operand("QUANTIZE", 0, "dtype", DTYPES["BOOL"])),
        ("dtype of input 0", operand("QUANTIZE", 1, "dtype", DTYPES["U8"])),
        ("dtype of input 1", operand("QUANTIZE", 2, "dtype", DTYPES["U8"])),
        ("dtype of input 2", operand("QUANTIZE", 3, "dtype", DTYPES["I8"])),
        ("shape of input 1", operand("QUANTIZE", 2, "dims", [[1, 32, 7, 8, 0, 0, 0, 0]])),
        ("shape of input 2", operand("QUANTIZE", 3, "dims", [[1, 1, 7, 9, 0, 0, 0, 0]])),
        ("dtype of input 0", operand("DEQUANTIZE", 1, "dtype", DTYPES["BOOL"])),
        ("dtype of input 1", operand("DEQUANTIZE", 2, "dtype", DTYPES["U8"])),
        ("dtype of input 2", operand("DEQUANTIZE", 3, "dtype", DTYPES["I8"])),
        ("shape of input 0", operand("DEQUANTIZE", 1, "dims", [[1, 32, 7, 8, 0, 0, 0, 0]])),
        ("axis", param("MINMAX", 0, 4)),
        ("axis", param("MINMAX", 0, -1)),
        ("blocks of the output", operand("MINMAX", 0, "dims", [[0, 2, 0, 0, 0, 0, 0, 0]])),
        ("dtype of operand 1", operand("MINMAX", 1, "dtype", DTYPES["I32"])),
        ("shape of the output", operand("MINMAX", 0, "dims", [[5, 1, 0, 0, 0, 0, 0, 0]])),
        ("n_outputs", lambda b: b.ops["n_outputs"].__setitem__(b.op("QPARAMS"), 1)),
        ("dtype of the second output", operand("QPARAMS", 1, "dtype", DTYPES["I8"])),
        ("dtype of input 0", operand("QPARAMS", 2, "dtype", DTYPES["I32"])),
        ("shape of input 0", operand("QPARAMS", 2, "dims", [[5, 1, 0, 0, 0, 0, 0, 0]])),
        ("rank of input 0", operand("QPARAMS", 2, "rank", 1)),
    ],
)
def test_damaged_levels(name: str, damage: Callable[[Bytes], None]) -> None:
    assert_refused(fitting_levels, damage, name)
