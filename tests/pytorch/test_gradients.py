"""Optimized modules in evaluation mode have eager PyTorch's gradients."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: pip install 'aspen-mp[torch]'")
from torch import nn  # noqa: E402

import aspen_mp  # noqa: E402
from aspen_mp.torch import backend  # noqa: E402


@pytest.fixture(scope="module")
def runtime() -> Iterator[Any]:
    with aspen_mp.Runtime(workers=1) as runtime:
        yield runtime


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    backend._warned.clear()
    yield
    torch._dynamo.reset()


Body = Callable[[Any, Any], Any]


class Net(nn.Module):
    """Layers around a `forward` that a test gives."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)
        self.steps = nn.LSTM(6, 8, batch_first=True)
        self.register_buffer("count", torch.zeros(1))
        self.body = body

    def forward(self, x: Any) -> Any:
        return self.body(self, x)


def net(body: Body) -> Net:
    torch.manual_seed(5)
    module = Net(body).eval().double()  # so that rounding tells nothing
    module.norm.running_var.uniform_(0.5, 2.0)
    return module


def hidden(module: Any, x: Any) -> Any:
    return torch.tanh(module.norm(module.first(x))) * 2 + 0.5


def broken(module: Any, x: Any) -> Any:
    h = hidden(module, x)
    torch._dynamo.graph_break()
    return torch.sigmoid(module.second(h)) * 3


def partly(module: Any, x: Any) -> Any:
    """An operator in the middle stays with PyTorch."""
    return torch.sigmoid(module.second(torch.special.digamma(hidden(module, x) + 4))) * 3


def counted(module: Any, x: Any) -> Any:
    module.count.add_(1)
    return module.second(hidden(module, x)) * module.count


RUN: dict[str, Body] = {
    "one": lambda m, x: torch.softmax(m.second(hidden(m, x)), -1),
    "several": lambda m, x: (m.second(hidden(m, x)), hidden(m, x).exp(), x.sum(1)),
    "mapping": lambda m, x: {"y": m.second(hidden(m, x)), "best": hidden(m, x).argmax(1), "mask": hidden(m, x) > 0},
    "transposed": lambda m, x: (m.second(hidden(m, x)) + 1).t(),
    "detached": lambda m, x: m.second(hidden(m, x).detach()) * 2 + 1,
    "weights as results": lambda m, x: (m.first.weight.exp() * 2 + 1, m.second(hidden(m, x))),
    "attention": lambda m, x: nn.functional.scaled_dot_product_attention(*m.first(x).view(1, -1, 2, 4).expand(3, -1, -1, -1)) * 2 + 1,
    "recurrent": lambda m, x: m.second(m.steps(x.expand(2, -1, -1).cumsum(0))[0]).exp(),
    "tied": lambda m, x: torch.tanh(m.first(m.first(x)[:, :6]) * 2) * 3,
    "broken": broken,
    "partly": partly,
}
"""Graphs that the runtime runs, also where parameters need gradients."""
STAY: dict[str, Body] = {
    "views": lambda m, x: hidden(m, x).split([2, 6], 1),
    "an argument": lambda m, x: (m.second(hidden(m, x)), x[:2]),
    "random": lambda m, x: m.second(hidden(m, x)) * torch.rand(4),
    "counted": counted,
}
"""Graphs that autograd would not take as one function."""


def differentiable(results: Any) -> list[Any]:
    leaves = torch.utils._pytree.tree_leaves(results)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]


def both(body: Body, runtime: Any) -> tuple[Net, Net]:
    module = net(body)
    return module, aspen_mp.optimize(copy.deepcopy(module), runtime=runtime)


def seeded(module: Any, x: Any) -> Any:
    torch.manual_seed(3)
    return module(x)


@pytest.mark.parametrize("name", [*RUN, *STAY])
def test_gradients_are_eagers(runtime: Any, calls: list[int], name: str) -> None:
    module, ours = both({**RUN, **STAY}[name], runtime)
    for rows in (5, 3, 7):  # the second and third with sizes that vary
        x = torch.randn(rows, 6, dtype=torch.float64)
        wants, gots = seeded(module, x), seeded(ours, x)
        assert [leaf.requires_grad for leaf in torch.utils._pytree.tree_leaves(gots)] == [
            leaf.requires_grad for leaf in torch.utils._pytree.tree_leaves(wants)
        ]
        torch.testing.assert_close(gots, wants)
        for results in (wants, gots):
            sum(leaf.sin().sum() for leaf in differentiable(results)).backward()
        for want, got in zip(module.parameters(), ours.parameters(), strict=True):
            torch.testing.assert_close(got.grad, want.grad)
    assert bool(calls) == (name in RUN)


@pytest.mark.parametrize("name", [name for name in RUN if name != "attention"])  # PyTorch has no second gradient of that
def test_second_gradients_are_eagers(runtime: Any, name: str) -> None:
    found = []
    for module in both(RUN[name], runtime):
        total = sum(leaf.sin().sum() for leaf in differentiable(module(torch.ones(4, 6, dtype=torch.float64))))
        first = torch.autograd.grad(total, list(module.parameters()), create_graph=True, allow_unused=True)
        penalty = sum(gradient.pow(2).sum() for gradient in first if gradient is not None)
        found.append((first, torch.autograd.grad(penalty, list(module.parameters()), allow_unused=True)))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize(("name", "write"), list(itertools.product([*RUN, *STAY], ["mul_", "zero_", "exp_"])))
def test_results_can_be_written_to(runtime: Any, name: str, write: str) -> None:
    """With eager's results and gradients, or its error."""
    outcomes: list[Any] = []
    for module in both({**RUN, **STAY}[name], runtime):
        results = seeded(module, torch.ones(4, 6, dtype=torch.float64))
        try:
            for leaf in differentiable(results):
                getattr(leaf, write)(*([3.0] if write == "mul_" else []))
            sum(leaf.sin().sum() for leaf in differentiable(results)).backward()
            outcomes.append([results, [parameter.grad for parameter in module.parameters()]])
        except RuntimeError as error:
            outcomes.append(type(error))
    # Eager PyTorch may keep a result for its gradient, and then refuses the write; ours keeps none.
    if outcomes[0] is not RuntimeError:
        torch.testing.assert_close(outcomes[1], outcomes[0])


def test_training_in_evaluation_mode(runtime: Any, calls: list[int]) -> None:
    """Fine-tuning with frozen statistics: each step changes the weights, and the runtime follows."""
    modules = both(RUN["one"], runtime)
    x, labels = torch.randn(16, 6, dtype=torch.float64), torch.randint(0, 4, (16,))
    losses: list[list[float]] = []
    for module in modules:
        optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
        losses.append([])
        for _ in range(6):
            optimizer.zero_grad()
            loss = nn.functional.nll_loss(module(x).log(), labels)
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    torch.testing.assert_close(losses[1], losses[0])
    assert losses[1][-1] < losses[1][0]
    assert len(calls) == 6


def test_frozen_parts_get_none(runtime: Any) -> None:
    modules = both(RUN["one"], runtime)
    for module in modules:
        module.first.requires_grad_(False)
        module(torch.ones(4, 6, dtype=torch.float64)).sin().sum().backward()
    assert modules[1].first.weight.grad is None
    torch.testing.assert_close(modules[1].second.weight.grad, modules[0].second.weight.grad)


def test_weights_changed_before_the_gradient_raise(runtime: Any) -> None:
    for module in both(RUN["one"], runtime):
        result = module(torch.ones(4, 6, dtype=torch.float64)).sin().sum()
        with torch.no_grad():
            module.second.weight.add_(1)
        with pytest.raises(RuntimeError, match="inplace"):
            result.backward()


def test_frozen_modules_have_no_gradients(runtime: Any, calls: list[int]) -> None:
    module = both(RUN["one"], runtime)[1].requires_grad_(False)
    assert not module(torch.ones(4, 6, dtype=torch.float64)).requires_grad
    assert calls


def test_one_warning_where_pytorch_has_to_run_a_graph(runtime: Any) -> None:
    module = both(STAY["counted"], runtime)[1]
    with pytest.warns(UserWarning, match="no_grad"):
        module(torch.ones(4, 6, dtype=torch.float64))
