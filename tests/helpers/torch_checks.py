"""Modules through `torch.compile(backend="aspen_mp")` beside PyTorch and float64.

Tests import this after `pytest.importorskip("torch")`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from aspen_mp.bench.torch.judge import judge
from aspen_mp.bench.torch.networks.network import Inputs, call
from aspen_mp.bench.torch.networks.reference import arrays, exact
from aspen_mp.compat import default_runtime

BACKEND = "aspen_mp"


@contextmanager
def fresh() -> Iterator[None]:
    """Nothing that Dynamo has compiled before or compiles here counts elsewhere; one thread of PyTorch's is enough."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch._dynamo.reset()
    try:
        yield
    finally:
        torch._dynamo.reset()
        torch.set_num_threads(threads)


def loaded() -> int:
    """How many models the process's own runtime has: what runs there and not in PyTorch."""
    return len(default_runtime.runtime().status()["models"])


def compiled(module: Callable[..., Any], **options: Any) -> Any:
    return torch.compile(module, backend=BACKEND, **options)


def agrees(module: torch.nn.Module, inputs: Inputs, precision: str = "float32", **options: Any) -> Any:
    """Compile a module and compare two calls of it with PyTorch's own and float64. Return the compiled module."""
    ours = compiled(module, **options)
    with torch.no_grad():
        eager = arrays(call(module, inputs))
        reference = exact(copy.deepcopy(module), inputs)
        for _ in range(2):
            verdict = judge(arrays(call(ours, inputs)), eager, reference, precision)
            assert verdict.right, verdict.why
    return ours


def same(ours: Any, theirs: Any, tolerance: float = 1e-5) -> None:
    """Compare nested outputs: tensors within `tolerance` of the largest number, all else equal."""
    a, shape_a = torch.utils._pytree.tree_flatten(ours)
    b, shape_b = torch.utils._pytree.tree_flatten(theirs)
    assert shape_a == shape_b
    for mine, expected in zip(a, b, strict=True):
        if not isinstance(expected, torch.Tensor):
            assert mine == expected
            continue
        assert mine.dtype == expected.dtype
        assert mine.shape == expected.shape
        x, y = (tensor.detach().double().numpy() for tensor in (mine, expected))
        scale = float(np.abs(y[np.isfinite(y)]).max(initial=0.0)) or 1.0
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * scale)
