"""The choice of layers that stay in floats: the fewest of an order, in few attempts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aspen_mp.quantization.keeping import conspicuous, least, order
from aspen_mp.quantization.layers import Layer


@given(st.integers(0, 60), st.data())
def test_the_fewest_that_are_enough_are_kept(n: int, data: st.DataObject) -> None:
    groups = [(f"layer {k}",) for k in range(n)]
    needed = data.draw(st.integers(0, n + 1))  # one more than there are: nothing helps
    asked = []

    def error_with(names: tuple[str, ...]) -> float:
        asked.append(names)
        return 0.0 if len(names) >= needed else 1.0

    found = least(groups, error_with, 0.5)
    assert len(found) == min(needed, n)
    assert len(asked) <= 2 * math.log2(max(n, 2)) + 3
    assert len(set(asked)) == len(asked), "nothing is tried twice"


def test_a_layer_comes_with_the_one_that_spoils_it() -> None:
    found = [Layer("softmax", "Softmax", 0.7, ("mask",)), Layer("product", "MatMul", 0.02, ("mask",)), Layer("mask", "Add", 0.01, ())]
    assert order(found) == [("softmax", "mask"), ("product",), ("mask",)]
    assert conspicuous(found) == ["softmax", "mask"]
    assert order([Layer("exact", "Reshape", 0.0, ())]) == []


@pytest.mark.parametrize("count", [0, 1, 5])
def test_layers_that_are_all_alike_do_not_stand_out(count: int) -> None:
    assert conspicuous([Layer(str(k), "Conv", 0.2, ()) for k in range(count)]) == []
