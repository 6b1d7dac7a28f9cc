"""Results that share memory in eager PyTorch share it when they come from a runtime: a write to one reaches the others."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: pip install 'aspen-mp[torch]'")

import aspen_mp  # noqa: E402
from aspen_mp.torch import backend  # noqa: E402

VIEWS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda h: h,
    "view": lambda h: h.view(-1, 8),
    "reshape": lambda h: h.reshape(h.shape[0], 48),
    "flatten": lambda h: h.flatten(),
    "transpose": lambda h: h.transpose(0, 2),
    "permute": lambda h: h.permute(1, 2, 0),
    "mT": lambda h: h.mT,
    "movedim": lambda h: h.movedim(0, -1),
    "select": lambda h: h[1],
    "last": lambda h: h[:, -1],
    "slice": lambda h: h[:, 1:5],
    "steps": lambda h: h[:, ::2, 1::3],
    "narrow": lambda h: h.narrow(2, 3, 4),
    "unsqueeze": lambda h: h[:, None],
    "squeeze": lambda h: h[:1].squeeze(0),
    "expand": lambda h: h[:1].expand(3, 6, 8),
    "diagonal": lambda h: h.diagonal(0, 1, 2),
    "unfold": lambda h: h.unfold(2, 3, 2),
    "split": lambda h: h.split(2, 1)[1],
    "chunk": lambda h: h.chunk(3, 1)[2],
    "unbind": lambda h: h.unbind(1)[3],
    "detach": lambda h: h.detach(),
    "as_strided": lambda h: h.as_strided((3, 5), (8, 1), 16),
    "unflatten": lambda h: h.unflatten(2, (2, 4)),
    "clone": lambda h: h.clone(),
    "sum": lambda h: h + 0,
    "transposed copy": lambda h: h.transpose(1, 2).contiguous(),
}
WRITES: dict[str, Callable[[Any], Any]] = {
    "add_": lambda t: t.add_(10),
    "mul_": lambda t: t.mul_(-3),
    "zero_": lambda t: t.zero_(),
    "fill_": lambda t: t.fill_(7),
    "copy_": lambda t: t.copy_(torch.arange(t.numel(), dtype=t.dtype).reshape(t.shape)),
    "relu_": lambda t: t.sub_(1).relu_(),
    "part": lambda t: t[..., :1].add_(5),
    "out=": lambda t: torch.mul(t.clone(), 2, out=t),
    "clamp_": lambda t: t.clamp_(0, 1),
    "bernoulli_": lambda t: t.bernoulli_(1.0),
}


def computed(x: Any) -> Any:
    return torch.relu(x * 2 + 1) - x


def partly_computed(x: Any) -> Any:
    """With an operator that no runtime computes."""
    return torch.special.bessel_j1(torch.relu(x * 2 + 1)) - x


def in_channels_last(x: Any) -> Any:
    return (torch.relu(x * 2 + 1) - x).transpose(0, 2).contiguous().transpose(0, 2)


@pytest.fixture(scope="module")
def runtime() -> Iterator[Any]:
    with aspen_mp.Runtime(workers=2) as runtime:
        yield runtime


@pytest.fixture
def compiled(runtime: Any) -> Iterator[Any]:
    torch._dynamo.reset()

    def compiled(function: Any, **options: Any) -> Any:
        return torch.compile(function, backend=backend.aspen_mp, options={"runtime": runtime, "min_block_size": 1}, **options)

    with torch.no_grad():
        yield compiled
    torch._dynamo.reset()
    gc.collect()


def written(results: Any, place: int, write: Callable[[Any], Any]) -> Any:
    """All results after a write to one of them; the class of the error where there is one."""
    try:
        write(results[place])
    except RuntimeError as error:
        return type(error)
    return [result.clone() for result in results]


def compare(run: Any, eager: Any, x: Any) -> int:
    """Every write to every result. Returns how many pairs of results were compared."""
    compared = 0
    for place in range(len(eager(x))):
        for name, write in WRITES.items():
            given = x.clone()
            want = written(eager(x), place, write)
            got = written(run(given), place, write)
            assert torch.equal(given, x)
            if isinstance(want, type):
                assert got is want, (place, name)
                continue
            for k, (a, b) in enumerate(zip(got, want, strict=True)):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5, msg=f"{name} to result {place}, seen in result {k}")
                compared += 1
    return compared


@pytest.mark.parametrize("source", [computed, partly_computed, in_channels_last])
@pytest.mark.parametrize("dynamic", [False, True])
def test_writes_reach_the_results_that_share_memory(compiled: Any, source: Any, dynamic: bool) -> None:
    views = {name: view for name, view in VIEWS.items() if source is not in_channels_last or name not in {"view", "as_strided"}}

    def results(x: Any) -> Any:
        h = source(x)
        return [view(h) for view in views.values()]

    run = compiled(results, dynamic=dynamic)
    torch.manual_seed(1)
    assert compare(run, results, torch.randn(4, 6, 8)) > 5000
    if dynamic:
        x = torch.randn(5, 6, 8)
        got, want = run(x), results(x)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
            assert a.shape == b.shape
        for results_of in (got, want):
            results_of[0].zero_()
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_shared_results_have_the_strides_of_eager(compiled: Any) -> None:
    def results(x: Any) -> Any:
        h = computed(x)
        return [view(h) for view in VIEWS.values()]

    x = torch.randn(4, 6, 8)
    for got, want in zip(compiled(results)(x), results(x), strict=True):
        assert (got.stride(), got.storage_offset()) == (want.stride(), want.storage_offset())


@pytest.mark.parametrize("view", ["select", "slice", "transpose", "expand", "split", "view", "clone"])
@pytest.mark.parametrize("write", ["add_", "copy_", "part"])
def test_writes_across_a_graph_break(compiled: Any, view: str, write: str) -> None:
    def function(x: Any) -> Any:
        h = computed(x)
        part = VIEWS[view](h)
        torch._dynamo.graph_break()
        WRITES[write](h)
        return part * 2 + 1, h.sum()

    x = torch.randn(4, 6, 8)
    for got, want in zip(compiled(function)(x), function(x), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("view", ["select", "slice", "transpose", "view", "clone"])
def test_two_views_without_what_they_are_of(compiled: Any, view: str) -> None:
    def function(x: Any) -> Any:
        h = computed(x)
        return VIEWS[view](h), h.flatten()[:40]

    run = compiled(function)
    assert compare(run, function, torch.randn(4, 6, 8)) > 20


def test_results_of_calls_share_nothing(compiled: Any) -> None:
    def function(x: Any) -> Any:
        h = computed(x)
        return h, h[0]

    run, x = compiled(function), torch.randn(4, 6, 8)
    first, second = run(x), run(x)
    first[0].zero_()
    assert torch.equal(second[1], function(x)[1])
