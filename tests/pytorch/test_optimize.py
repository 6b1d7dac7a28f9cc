"""`optimize` keeps a module what it was, and `explain` says what runs where."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: pip install 'aspen-mp[torch]'")
from torch import nn  # noqa: E402

import aspen_mp  # noqa: E402
from aspen_mp.torch import backend, compiled, optimized  # noqa: E402


@pytest.fixture(scope="module")
def runtime() -> Iterator[Any]:
    with aspen_mp.Runtime(workers=2) as runtime:
        yield runtime


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    backend._warned.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each call that a runtime runs."""
    calls, call = [], compiled.Compiled.__call__
    monkeypatch.setattr(compiled.Compiled, "__call__", lambda *given: (calls.append(1), call(*given))[1])
    return calls


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.second = nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 4)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x: Any, scale: float = 1.0) -> Any:
        return torch.softmax(self.second(self.drop(torch.relu(self.first(x)))) * scale + self.shift, -1)


def net() -> Net:
    torch.manual_seed(5)
    return Net().eval()


def test_optimized_module_gives_the_same(runtime: Any) -> None:
    module, x = net(), torch.randn(3, 6)
    want = module(x).detach()
    assert aspen_mp.optimize(module, runtime=runtime) is module
    got = module(x)
    torch.testing.assert_close(got, want)
    assert got.requires_grad
    assert any(model["name"] == "Net" for model in runtime.status()["models"])
    torch.testing.assert_close(module(x, scale=2.0), net()(x, scale=2.0).detach())


def test_state_and_submodules_stay(runtime: Any) -> None:
    module = net()
    names, state = [name for name, _ in module.named_modules()], module.state_dict()
    aspen_mp.optimize(module, runtime=runtime)
    module(torch.randn(3, 6))
    assert [name for name, _ in module.named_modules()] == names
    assert list(module.state_dict()) == list(state)
    assert module.first.weight.requires_grad


def test_hooks_run(runtime: Any) -> None:
    module, x, seen = net(), torch.randn(3, 6), []
    module.register_forward_hook(lambda module, args, result: result + 1)
    module.first.register_forward_hook(lambda module, args, result: seen.append(tuple(result.shape)))
    want = module(x).detach()
    aspen_mp.optimize(module, runtime=runtime)
    torch.testing.assert_close(module(x), want)
    assert seen == [(3, 8)] * 2


def test_training_is_pytorchs(runtime: Any) -> None:
    module, x = aspen_mp.optimize(net(), runtime=runtime), torch.randn(3, 6)
    before = module(x)
    module.train()
    module(x).log().sum().backward()
    assert module.first.weight.grad is not None
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.sub_(parameter.grad)
    module.eval()
    after = module(x)
    assert not torch.allclose(before, after)
    other = net()
    other.load_state_dict(module.state_dict())
    torch.testing.assert_close(after, other(x).detach())


def test_inputs_that_need_gradients_are_pytorchs(runtime: Any) -> None:
    module, x = aspen_mp.optimize(net(), runtime=runtime), torch.randn(3, 6, requires_grad=True)
    with pytest.warns(UserWarning, match="gradients"):
        module(x).log().sum().backward()
    assert x.grad is not None


def test_copies_and_pickles_are_optimized(runtime: Any) -> None:
    module, x = net(), torch.randn(3, 6)
    want = module(x).detach()
    aspen_mp.optimize(module)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert other.forward.module is other
        assert other.first is not module.first
    del module.forward
    torch.testing.assert_close(module(x).detach(), want)


def test_two_modules_of_one_content_share_their_weights(runtime: Any) -> None:
    one, other, x = aspen_mp.optimize(net(), runtime=runtime), aspen_mp.optimize(net(), runtime=runtime), torch.randn(3, 6)
    torch.testing.assert_close(one(x), other(x))
    assert len([model for model in runtime.status()["models"] if model["name"] == "Net"]) == 1


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(TypeError, match="function"):
        aspen_mp.optimize(lambda x: x)  # type: ignore[type-var]


def test_explain_names_what_stays_and_why() -> None:
    class Partly(nn.Module):
        def forward(self, x: Any) -> Any:
            y = torch.relu(x) + 1
            if y.sum() > 100:
                y = y * 2
            return torch.special.digamma(y)

    found = aspen_mp.explain(Partly().eval(), torch.randn(3, 4))
    where = {row.operator: row for row in found.rows}
    assert where["relu.default"].where == "aspen_mp"
    assert where["relu.default"].source.rpartition(":")[0] == __file__
    assert where["digamma.default"].where == "PyTorch"
    assert "digits" in where["digamma.default"].why
    assert found.graphs == 2
    assert found.breaks
    assert "digamma.default" in str(found)


def test_each_module_has_graphs_of_its_own(runtime: Any, ran: list[int]) -> None:
    """Modules of one class share their code. PyTorch's limit of graphs is for one module, and is that of users for their own modules."""
    limit, modules = (
        torch._dynamo.config.recompile_limit,
        [nn.Sequential(*[nn.Linear(4, 4) for _ in range(n)]).eval() for n in range(3, 15)],
    )
    for module in modules:
        aspen_mp.optimize(module, runtime=runtime)(torch.ones(2, 4))
    assert len(ran) == len(modules)
    assert torch._dynamo.config.recompile_limit == limit


@pytest.mark.parametrize("limit", ["one module's", "the process's"])
def test_a_limit_of_graphs_warns_once(runtime: Any, ran: list[int], monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    class Tagged(nn.Module):
        def forward(self, x: Any, tag: str) -> Any:
            return (x.relu() * 2 + 1).sin() if tag else x

    monkeypatch.setattr(optimized, "MOST_VARIANTS", 10 if limit == "one module's" else 64)
    process = torch._dynamo.config.patch(accumulated_recompile_limit=64 if limit == "one module's" else 10)
    module, x = aspen_mp.optimize(Tagged().eval(), runtime=runtime), torch.ones(2, 2)
    with process, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(1, 14):
            torch.testing.assert_close(module(x, "x" * n), (x.relu() * 2 + 1).sin())
    assert len(ran) == 10
    assert ["Tagged 10 times" in str(warning.message) for warning in caught if "eager PyTorch" in str(warning.message)] == [True]


def test_released_weights_are_views_of_the_runtimes(runtime: Any) -> None:
    modules, x = [net(), net()], torch.randn(3, 6)
    want = modules[0](x).detach()
    for module in modules:
        aspen_mp.optimize(module, runtime=runtime, release=True)
        before = module.first.weight.data_ptr()
        torch.testing.assert_close(module(x), want)
        assert module.first.weight.data_ptr() != before
        assert module.first.weight.data_ptr() % 64 == 0
        assert torch.equal(module.first.weight, net().first.weight)
    places = [inode(module.first.weight.data_ptr()) for module in modules]
    assert places[0] == places[1] != "0"
    with torch.no_grad():
        modules[0].first.weight.zero_()
    assert not torch.allclose(modules[0](x), want)
    torch.testing.assert_close(modules[1](x), want)
    modules[1].train()
    modules[1](x).log().sum().backward()


def inode(address: int) -> str:
    """Of the file that is mapped there."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, _, _, _, number, *_ = line.split()
            begin, end = (int(part, 16) for part in span.split("-"))
            if begin <= address < end:
                return number
    return "0"


def test_transformed_calls_stay_with_pytorch(runtime: Any) -> None:
    """`torch.func` and forward-mode differentiation see every operator."""
    module = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).eval()
    ours = aspen_mp.optimize(copy.deepcopy(module), runtime=runtime)
    x, parameters = torch.randn(4, 8), {name: value.detach() for name, value in module.named_parameters()}

    def gradients(m: Any) -> Any:
        return torch.func.grad(lambda given: torch.func.functional_call(m, given, (x,)).sum())(parameters)

    def tangent(m: Any) -> Any:
        with torch.autograd.forward_ad.dual_level():
            return torch.autograd.forward_ad.unpack_dual(m(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)))).tangent

    with torch.no_grad():
        torch.testing.assert_close(ours(x), module(x))
    torch.testing.assert_close(gradients(ours), gradients(module))
    torch.testing.assert_close(torch.func.vmap(ours)(x), torch.func.vmap(module)(x))
    torch.testing.assert_close(tangent(ours), tangent(module))
