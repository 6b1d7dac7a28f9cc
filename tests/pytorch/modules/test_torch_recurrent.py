"""LSTM, GRU and RNN of `torch.nn`: whole layers in a runtime give what eager PyTorch gives."""

from __future__ import annotations

import copy
import gc
import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: pip install 'aspen-mp[torch]'")
from torch import nn  # noqa: E402
from torch.nn.utils import rnn  # noqa: E402

import aspen_mp  # noqa: E402
from aspen_mp.torch import compiled  # noqa: E402

KINDS = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN, "relu": lambda *args, **options: nn.RNN(*args, nonlinearity="relu", **options)}


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


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each call that a runtime runs."""
    calls, call = [], compiled.Compiled.__call__
    monkeypatch.setattr(compiled.Compiled, "__call__", lambda *given: (call(*given), calls.append(1))[0])
    return calls


class Tagger(nn.Module):
    """A recurrent layer among others."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 6)
        self.layer = KINDS[kind](6, 5, batch_first=True, **options)
        self.head = nn.LazyLinear(3)

    def forward(self, ids: Any) -> Any:
        y, _ = self.layer(self.embed(ids))
        return self.head(y).softmax(-1)


def same(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    for a, b in zip(torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(want), strict=True):
        assert a.stride() == b.stride() or 1 in a.shape


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", KINDS)
def test_layers(runtime: Any, ran: list[int], kind: str, seed: int) -> None:
    draw = random.Random(f"{kind}{seed}")
    torch.manual_seed(seed)
    layers, two, first, bias = draw.choice([1, 1, 2, 3]), draw.random() < 0.5, draw.random() < 0.5, draw.random() < 0.7
    size, hidden, length, batch = draw.randint(1, 20), draw.randint(1, 20), draw.randint(1, 9), draw.randint(1, 5)
    module = KINDS[kind](size, hidden, layers, bidirectional=two, batch_first=first, bias=bias).eval()
    unbatched = draw.random() < 0.25
    x = torch.randn(length, size) if unbatched else torch.randn(batch, length, size) if first else torch.randn(length, batch, size)
    states = [torch.randn([layers * (1 + two), *([] if unbatched else [batch]), hidden]) for _ in range(2)]
    ours = aspen_mp.optimize(copy.deepcopy(module), runtime=runtime)
    with torch.no_grad():
        for given in ((x,), (x, tuple(states) if kind == "LSTM" else states[0])):
            same(ours(*given), module(*given))
    assert len(ran) == 2


@pytest.mark.parametrize(("kind", "two"), itertools.product(KINDS, [False, True]))
def test_lengths_share_a_graph(runtime: Any, ran: list[int], kind: str, two: bool) -> None:
    module = Tagger(kind, bidirectional=two, num_layers=2).eval()
    with torch.no_grad():
        module(torch.zeros(1, 1, dtype=torch.int64))
        ours = aspen_mp.optimize(copy.deepcopy(module), runtime=runtime)
        for n, (batch, length) in enumerate([(1, 4), (1, 7), (1, 2), (2, 7), (3, 5), (1, 1), (1, 30)]):
            ids = torch.randint(0, 20, (batch, length))
            same(ours(ids), module(ids))
            assert len(ran) == n + 1
        assert len(runtime.status()["models"]) <= 4


@pytest.mark.parametrize("kind", KINDS)
def test_gradients(runtime: Any, ran: list[int], kind: str) -> None:
    module = Tagger(kind, num_layers=2).eval()
    ids = torch.randint(0, 20, (2, 5))
    module(ids)
    ours = aspen_mp.optimize(copy.deepcopy(module), runtime=runtime)
    for each in (module, ours):
        each(ids).square().sum().backward()
    assert ran
    for want, got in zip(module.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_change(runtime: Any, kind: str) -> None:
    module = Tagger(kind).eval()
    ids = torch.randint(0, 20, (2, 5))
    with torch.no_grad():
        module(ids)
        aspen_mp.optimize(module, runtime=runtime)
        for _ in range(5):
            for parameter in module.parameters():
                parameter.add_(0.1)
            plain = copy.deepcopy(module)
            del plain.forward
            same(module(ids), plain(ids))


STAY = {
    "projections": (lambda: nn.LSTM(6, 5, proj_size=3), torch.randn(4, 2, 6)),
    "float64": (lambda: nn.GRU(6, 5).double(), torch.randn(4, 2, 6, dtype=torch.float64)),
    "bfloat16": (lambda: nn.LSTM(6, 5).bfloat16(), torch.randn(4, 2, 6, dtype=torch.bfloat16)),
    "no sequences": (lambda: nn.RNN(6, 5), torch.randn(4, 0, 6)),
}


@pytest.mark.parametrize("name", STAY)
def test_layers_that_stay_with_pytorch(runtime: Any, ran: list[int], name: str) -> None:
    make, x = STAY[name]
    module = nn.Sequential(nn.Hardtanh(), make()).eval()
    with torch.no_grad():
        found = aspen_mp.explain(module, x)
        assert {row.where for row in found.rows if "aspen_mp." in row.operator} == {"PyTorch"}
        same(aspen_mp.optimize(copy.deepcopy(module), runtime=runtime)(x), module(x))


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_of_a_part_in_training_mode(runtime: Any, kind: str) -> None:
    module = nn.Sequential(nn.Hardtanh(), KINDS[kind](6, 5, 2, dropout=1.0)).eval()
    module[1].train()
    ours, x = aspen_mp.optimize(copy.deepcopy(module), runtime=runtime), torch.randn(4, 2, 6)
    with torch.no_grad():
        same(ours(x), module(x))
    for each in (module, ours):
        each(x)[0].square().sum().backward()
    for want, got in zip(module.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad, rtol=1e-4, atol=1e-6)


def test_packed_sequences(runtime: Any) -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(6, 5, bidirectional=True)

        def forward(self, x: Any, lengths: Any) -> Any:
            y, (h, _) = self.layer(rnn.pack_padded_sequence(x * 2 + 1, lengths, enforce_sorted=False))
            return rnn.pad_packed_sequence(y)[0].relu() * 3 - 1, h

    module, x, lengths = Packed().eval(), torch.randn(5, 3, 6), torch.tensor([3, 5, 1])
    with torch.no_grad():
        same(aspen_mp.optimize(copy.deepcopy(module), runtime=runtime)(x, lengths), module(x, lengths))


@pytest.mark.parametrize("kind", KINDS)
def test_files(runtime: Any, tmp_path: Any, kind: str) -> None:
    """A file takes sequences of all lengths."""
    module = Tagger(kind, bidirectional=True).eval()
    with torch.no_grad():
        module(torch.zeros(1, 1, dtype=torch.int64))
        path = tmp_path / "tagger.onnx"
        examples = {"ids": torch.randint(0, 20, (2, 5))}
        aspen_mp.torch.compile_ahead(module, examples, path, dynamic={"ids": {0: "batch", 1: "length"}})
        for batch, length in ((1, 3), (4, 8)):
            ids = torch.randint(0, 20, (batch, length))
            same(torch.from_numpy(runtime.load(path).run({"ids": ids.numpy()})["output"]), module(ids))


def test_settings_of_pytorchs_stay(runtime: Any) -> None:
    aspen_mp.optimize(nn.GRU(6, 5).eval(), runtime=runtime)(torch.randn(4, 2, 6))
    assert not torch._dynamo.config.allow_rnn


@pytest.mark.by_work
def test_work_decides(runtime: Any, ran: list[int]) -> None:
    for hidden, length, large in ((16, 3, False), (64, 50, True)):
        module = aspen_mp.optimize(nn.GRU(hidden, hidden).eval(), runtime=runtime)
        for _ in range(2):
            ran.clear()
            with torch.no_grad():
                module(torch.randn(length, 1, hidden))
        assert bool(ran) == large
