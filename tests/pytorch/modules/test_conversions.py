"""Modules that are converted, moved or loaded after their first call: results follow, and PyTorch's ways to do so go on working."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: pip install 'aspen-mp[torch]'")
from torch import nn  # noqa: E402

import aspen_mp  # noqa: E402
from aspen_mp.shm.errors import UnsupportedModelError  # noqa: E402
from aspen_mp.torch import compiled  # noqa: E402


@pytest.fixture(scope="module")
def runtime() -> Iterator[Any]:
    with aspen_mp.Runtime(workers=2) as runtime:
        yield runtime


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    gc.collect()


def net() -> Any:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4)).eval()


def others(module: Any) -> dict[str, Any]:
    """Other values for its tensors."""
    return {name: (torch.rand(tensor.shape) + 0.1).to(tensor.dtype) for name, tensor in module.state_dict().items()}


def swap(module: Any) -> None:
    for part in module.modules():
        for tensor in part.parameters(recurse=False):
            torch.utils.swap_tensors(tensor, nn.Parameter(torch.rand_like(tensor)))
        for tensor in part.buffers(recurse=False):
            torch.utils.swap_tensors(tensor, torch.ones_like(tensor))


def set_data(module: Any) -> None:
    for parameter in module.parameters():
        parameter.data = torch.rand_like(parameter)


def replace(module: Any) -> None:
    module[0].weight = nn.Parameter(torch.rand(4, 4))
    module[3] = nn.Linear(4, 4)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "swap_tensors": swap,
    "half": lambda m: m.half(),
    "half and back": lambda m: m.half().float(),
    "bfloat16": lambda m: m.to(torch.bfloat16),
    "double": lambda m: m.double(),
    "memory format": lambda m: m.to(memory_format=torch.channels_last),
    "share_memory": lambda m: m.share_memory(),
    "requires_grad_": lambda m: m.requires_grad_(False),
    "load": lambda m: m.load_state_dict(others(m)),
    "assign": lambda m: m.load_state_dict(others(m), assign=True),
    "to_empty": lambda m: m.to_empty(device="cpu").load_state_dict(others(m)),
    "meta and back": lambda m: m.to("meta").to_empty(device="cpu").load_state_dict(others(m)),
    "set data": set_data,
    "replace": replace,
    "parametrize": lambda m: nn.utils.parametrizations.weight_norm(m[0]),
}


@pytest.mark.parametrize("release", [False, True], ids=["", "release"])
@pytest.mark.parametrize("swapping", [False, True], ids=["", "swapping"])
@pytest.mark.parametrize("name", CHANGES)
def test_results_follow(runtime: Any, monkeypatch: pytest.MonkeyPatch, name: str, swapping: bool, release: bool) -> None:
    monkeypatch.setattr(torch.__future__, "_swap_module_params_on_conversion", swapping)
    module, x = aspen_mp.optimize(net(), runtime=runtime, release=release), torch.randn(3, 4)
    module(x)
    CHANGES[name](module)
    plain = copy.deepcopy(module)
    del plain.forward
    x = x.to(plain[0].weight.dtype)
    calls, call = [], compiled.Compiled.__call__
    monkeypatch.setattr(compiled.Compiled, "__call__", lambda *given: (calls.append(1), call(*given))[1])
    for _ in range(2):
        torch.testing.assert_close(module(x), plain(x).detach(), rtol=2e-2 if x.dtype.itemsize == 2 else 1e-5, atol=2e-2)
    assert len(calls) == 2


@pytest.mark.parametrize("place", ["0.weight", "1.running_mean", "3.bias"])
def test_tensors_without_values_are_named(place: str) -> None:
    module = net()
    owner, _, name = place.partition(".")
    for group in (module[int(owner)]._parameters, module[int(owner)]._buffers):
        if name in group:
            group[name] = group[name].to("meta")
    with pytest.raises(UnsupportedModelError, match=place):
        aspen_mp.optimize(module)


def test_calls_without_values_are_pytorchs(runtime: Any) -> None:
    module = aspen_mp.optimize(net(), runtime=runtime)
    module(torch.ones(3, 4))
    module.to("meta")
    assert module(torch.ones(3, 4, device="meta")).is_meta
    assert aspen_mp.explain(module, torch.ones(3, 4, device="meta")).rows
