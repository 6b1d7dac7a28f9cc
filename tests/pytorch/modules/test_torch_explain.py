"""`explain` says of every kind of module what `optimize` does with it: the operators that it names are those that a runtime runs."""

from __future__ import annotations

import dataclasses
import gc
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: pip install 'aspen-mp[torch]'")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import aspen_mp  # noqa: E402
from aspen_mp.shm.errors import PlanError, UnsupportedModelError  # noqa: E402
from aspen_mp.torch import compiled, explanation, registry, weights  # noqa: E402


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


class Net(nn.Module):
    """A linear layer and a function that calls it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(4))
        self.function = function

    def forward(self, *args: Any, **keywords: Any) -> Any:
        return self.function(self, *args, **keywords)


@dataclasses.dataclass
class Pair:
    first: Any
    second: Any


def prints(m: Any, x: Any) -> Any:
    y = m.linear(x).relu() * 2
    print(end="")
    return y.sigmoid() + 1


def without_gradients(m: Any, x: Any) -> Any:
    with torch.inference_mode():
        return m.linear(x).relu() + 1


def cast(m: Any, x: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return m.linear(x).relu() + 1


def perceptron() -> Any:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))


def optimized_within() -> Any:
    module = nn.Sequential(perceptron(), perceptron())
    aspen_mp.optimize(module[0])
    return module


def optimized_twice() -> Any:
    return aspen_mp.optimize(optimized_within())


def replaced() -> Any:
    module = perceptron()
    module.forward = lambda x: module[0](x).sigmoid() * 2  # type: ignore[method-assign]
    return module


def hooked() -> Any:
    module = perceptron()
    module.register_forward_pre_hook(lambda _, args: (args[0] * 2,))
    module[0].register_forward_hook(lambda _, args, result: result + 1)
    return module


X = torch.arange(12.0).reshape(3, 4) - 5
FORMS: dict[str, tuple[Callable[[], Any], tuple[Any, ...], dict[str, Any]]] = {
    "perceptron": (perceptron, (X,), {}),
    "a branch on data": (lambda: Net(lambda m, x: (m.linear(x).relu() * 2).sin() if x.sum() > 0 else m.linear(x)), (X.abs(),), {}),
    "a break in the middle": (lambda: Net(prints), (X,), {}),
    "cut": (lambda: Net(lambda m, x: torch.special.digamma(m.linear(x).relu() * 2 + 1).relu().mul(3).sum(0)), (X,), {}),
    "cut into small blocks": (lambda: Net(lambda m, x: torch.special.digamma(torch.special.digamma(m.linear(x)).relu()) + 1), (X,), {}),
    "PyTorch's operators alone": (lambda: Net(lambda m, x: torch.special.digamma(x)), (X,), {}),
    "results that share memory": (lambda: Net(lambda m, x: (y := m.linear(x).relu() + 1, y[0], y.T)), (X,), {}),
    "indices from data": (lambda: Net(lambda m, x: m.linear(x)[torch.nonzero(x[:, 0] > 0)[:, 0]].relu() * 2), (X,), {}),
    "a mask from data": (lambda: Net(lambda m, x: m.linear(x)[x > 0].relu() * 2 + 1), (X,), {}),
    "a size from data": (lambda: Net(lambda m, x: torch.arange(int(x.max())) * 2 + m.linear(x).sum()), (X,), {}),
    "dataclasses": (lambda: Net(lambda m, pair: Pair(m.linear(pair.first) + pair.second, pair.second * 2)), (Pair(X, X),), {}),
    "dicts": (lambda: Net(lambda m, given: {"y": m.linear(given["a"]).relu() * given["b"]}), ({"a": X, "b": X},), {}),
    "keywords": (lambda: Net(lambda m, *, x, n=3: m.linear(x).relu() * n + n), (), {"x": X, "n": 5}),
    "a buffer that changes": (lambda: Net(lambda m, x: x.relu() * 2 + m.count.add_(1)), (X,), {}),
    "nothing": (nn.Identity, (X,), {}),
    "None": (lambda: Net(lambda m, x: None), (X,), {}),
    "optimized": (lambda: aspen_mp.optimize(perceptron()), (X,), {}),
    "optimized within": (optimized_within, (X,), {}),
    "optimized within and without": (optimized_twice, (X,), {}),
    "a forward of its own": (replaced, (X,), {}),
    "hooks": (hooked, (X,), {}),
    "in training mode": (lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 4)).train(), (X,), {}),
    "partly in training mode": (lambda: nn.Sequential(perceptron(), nn.Dropout()).eval().append(nn.BatchNorm1d(4)), (X,), {}),
    "inference mode": (lambda: Net(without_gradients), (X,), {}),
    "autocast": (lambda: Net(cast), (X,), {}),
    "float64": (lambda: perceptron().double(), (X.double(),), {}),
    "halves": (lambda: perceptron().half(), (X.half(),), {}),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.Linear(4, 4)), (X,), {}),
    "a parametrization": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), (X,), {}),
    "an encoder layer": (lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), (torch.ones(2, 3, 16),), {}),
    "random numbers": (lambda: Net(lambda m, x: F.dropout(m.linear(x).relu() + 1, training=True)), (X,), {}),
    "complex numbers": (lambda: Net(lambda m, x: torch.fft.fft(m.linear(x).relu() + 1).abs().sin()), (X,), {}),
    "a condition": (lambda: Net(lambda m, x: torch.cond(x.sum() > 0, torch.relu, torch.sin, (m.linear(x),)) + 1), (X,), {}),
    "a type that the planner refuses": (lambda: Net(lambda m, x: (x * 2 + 1, torch.isnan(x * 3))), (X.long(),), {}),
    "disabled": (lambda: Net(torch._dynamo.disable(lambda m, x: m.linear(x).relu() + 1)), (X,), {}),
}


def ran(monkeypatch: pytest.MonkeyPatch, module: Any, args: Any, keywords: Any) -> Counter[str]:
    """The operators that a runtime runs at the second call: by the first, refused graphs have gone to PyTorch."""
    found: Counter[str] = Counter()
    call = compiled.Compiled.__call__

    def counted(self: Any, *given: Any) -> Any:
        results = call(self, *given)
        found.update(
            explanation.operator_name(node.target)
            for node in self.graph.nodes
            if node.op == "call_function" and node.target is not explanation.operator.getitem and explanation._gives_tensors(node)
        )
        return results

    with torch.no_grad():
        module(*args, **keywords)
        with monkeypatch.context() as patch:
            patch.setattr(compiled.Compiled, "__call__", counted)
            module(*args, **keywords)
    return found


def ours(found: Any) -> Counter[str]:
    return Counter(row.operator for row in found.rows if row.where == "aspen_mp")


@pytest.mark.parametrize("name", FORMS)
def test_rows_are_what_a_runtime_runs(runtime: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    make, args, keywords = FORMS[name]
    torch.manual_seed(1)
    module = make() if "training" in name else make().eval()
    modes = [part.training for part in module.modules()]
    found = aspen_mp.explain(module, *args, **keywords)
    assert [part.training for part in module.modules()] == modes
    assert found.training == modes[0]
    assert all(bool(row.why) == (row.where == "PyTorch") for row in found.rows)
    assert str(found)
    aspen_mp.optimize(module.eval() if found.training else module, runtime=runtime)
    assert ours(found) == ran(monkeypatch, module, args, keywords), str(found)


@pytest.mark.parametrize("size", [1, 3, 6])
def test_blocks_are_as_large_as_options_say(runtime: Any, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    module = Net(lambda m, x: torch.special.digamma(m.linear(x).relu() * 2 + 1).sin()).eval()
    aspen_mp.optimize(module, runtime=runtime, min_block_size=size)
    assert ours(aspen_mp.explain(module, X)) == ran(monkeypatch, module, (X,), {})


@pytest.mark.parametrize("name", ["dynamic", "static"])
def test_models_with_caches(runtime: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    transformers = pytest.importorskip("transformers")
    module = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=30, n_embd=16, n_layer=1, n_head=2)).eval()

    def cache() -> Any:
        return transformers.StaticCache(config=module.config, max_cache_len=8) if name == "static" else transformers.DynamicCache()

    ids = torch.tensor([[3, 4, 5]])
    found = aspen_mp.explain(module, ids, past_key_values=cache())
    aspen_mp.optimize(module, runtime=runtime)
    module(ids, past_key_values=cache())
    assert ours(found)
    assert ours(aspen_mp.explain(module, ids, past_key_values=cache())) == ours(found)
    assert aspen_mp.explain(module.generate, ids, max_new_tokens=3, do_sample=False, pad_token_id=0).graphs > 1


def test_what_is_no_module() -> None:
    for function in (lambda x: x.relu() * 2 + 1, perceptron(), perceptron().forward, torch.compile(perceptron(), backend="aspen_mp")):
        with torch.no_grad():
            assert ours(aspen_mp.explain(function, X))
    assert aspen_mp.explain(torch.relu, X).rows[0].where == "PyTorch"


def test_a_fault_of_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("a fault")

    monkeypatch.setitem(registry.RULES, "relu.default", fault)
    found = aspen_mp.explain(perceptron(), X)
    whys = [row.why for row in found.rows]
    assert any("ZeroDivisionError: a fault" in why for why in whys)
    assert all(whys)


def test_graphs_that_were_compiled_stay(runtime: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = aspen_mp.optimize(perceptron().eval(), runtime=runtime)
    loads, load = [], weights.load
    monkeypatch.setattr(weights, "load", lambda *args, **options: (loads.append(1), load(*args, **options))[1])
    module(X)
    for _ in range(12):
        assert aspen_mp.explain(module, X).rows
        module(X)
    assert len(loads) == 1


def test_torchscript_is_refused() -> None:
    for module in (torch.jit.script(perceptron()), torch.jit.trace(perceptron(), (X,))):
        for call in (lambda m=module: aspen_mp.optimize(m), lambda m=module: aspen_mp.explain(m, X)):
            with pytest.raises(UnsupportedModelError, match="TorchScript"):
                call()


def test_a_graph_that_cannot_be_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Says so without a plan, if the planner refuses the model when it reads it."""
    from aspen_mp.planner.frontends import onnx

    def refused(*_: Any) -> Any:
        raise PlanError("there is a reason")

    monkeypatch.setattr(onnx, "load", refused)
    assert {row.why for row in aspen_mp.explain(perceptron(), X).rows} == {"PlanError: there is a reason"}
