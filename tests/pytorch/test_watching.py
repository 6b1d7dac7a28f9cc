"""The elements of constants that each call looks at."""

from __future__ import annotations

import gc
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: pip install 'aspen-mp[torch]'")

from aspen_mp.torch import watching  # noqa: E402


@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (9,), (64, 64), (5, 1, 7, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.bool])
def test_changes_of_a_third_are_seen(shape: tuple[int, ...], dtype: Any) -> None:
    tensor = torch.ones(shape, dtype=dtype)
    watched = watching.watch((None, tensor), [1])
    assert watched.holds((None, tensor))
    flat, length = tensor.data.view(-1), -(-tensor.numel() // 3)
    for start in range(tensor.numel() - length + 1):
        flat[start : start + length] = 0
        assert not watched.holds((None, tensor)), start
        assert watched.changed((None, tensor)) == [1]
        flat[start : start + length] = 1
        assert watched.holds((None, tensor))


def test_elements_of_any_layout_lie_in_the_tensor() -> None:
    base = torch.zeros(8, 10, 6, dtype=torch.float64)
    for tensor in (base[2:5, ::3, 1:4], base.permute(2, 0, 1), base[0, 0].expand(4, 6), base[:, :0]):
        places = {int(sum(i * s for i, s in zip(index, tensor.stride(), strict=True))) * 8 for index in _indices(tensor.shape)}
        assert set(watching.offsets(tensor)) <= places


def _indices(shape: Any) -> list[tuple[int, ...]]:
    return [tuple(index) for index in torch.cartesian_prod(*(torch.arange(n) for n in shape)).reshape(-1, len(shape)).tolist()]


def test_what_pytorch_counts_is_seen() -> None:
    tensor, other = torch.ones(20), torch.ones(20)
    watched = watching.watch((tensor, other), [0, 1])
    assert not watched.holds((other, tensor))
    assert watched.changed((other, tensor)) == []
    assert not watched.holds((tensor,))
    tensor[7] = 2
    assert not watched.holds((tensor, other))
    assert watched.changed((tensor, other)) == [0]
    other.data = torch.ones(20)
    assert watched.changed((tensor, other)) == [0, 1]


def test_a_tensor_may_go() -> None:
    tensor = torch.ones(1 << 20)
    watched = watching.watch((tensor,), [0])
    del tensor
    gc.collect()
    assert not watched.holds((torch.zeros(3),))
