"""Calls split by rows: what is proved of graphs, and that few plans give what PyTorch gives where rows and lengths both change."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: pip install 'aspen-mp[torch]'")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import aspen_mp  # noqa: E402
from aspen_mp.torch import backend  # noqa: E402
from aspen_mp.torch.compiled import Compiled  # noqa: E402
from aspen_mp.torch.splitting import POLICY, History  # noqa: E402

WIDTH = 16


@pytest.fixture(scope="module")
def runtime() -> Iterator[Any]:
    with aspen_mp.Runtime(workers=2) as runtime:
        yield runtime


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Compiled]:
    """All graphs that are compiled in this test."""
    found: list[Compiled] = []
    init = Compiled.__init__

    def noted(self: Compiled, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        found.append(self)

    monkeypatch.setattr(Compiled, "__init__", noted)
    return found


@pytest.fixture
def compiled(runtime: Any) -> Iterator[Any]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield lambda module: torch.compile(
            module, backend=backend.aspen_mp, dynamic=True, options={"runtime": runtime, "min_block_size": 1}
        )
    torch._dynamo.reset()
    gc.collect()


class Encoder(nn.Module):
    """One layer of a text encoder, with a mask of tokens. It gives a row for each text, one for each token, and positions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.embed, self.places, self.norm = nn.Embedding(50, WIDTH), nn.Embedding(512, WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens: Any, kept: Any) -> Any:
        n, length = tokens.shape
        places = torch.arange(length)
        x = self.norm(self.embed(tokens) + self.places(places))
        q, k, v = (part.view(n, length, 2, WIDTH // 2).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        mask = kept[torch.arange(n)[:, None, None, None], places[None, None, None, :]]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        y = x + self.out(y.transpose(1, 2).reshape(n, length, WIDTH))
        return y.mean(1), y.reshape(n * length, WIDTH), places


def call(n: int, length: int) -> tuple[Any, Any]:
    kept = torch.rand(n, length) < 0.7
    kept[:, 0] = True
    return torch.randint(0, 50, (n, length)), kept


def test_few_plans_serve_rows_and_lengths_that_change(runtime: Any, compiled: Any, graphs: list[Compiled]) -> None:
    module = Encoder().eval()
    run, seeded = compiled(module), random.Random(11)
    sizes = [(10, 40), *((seeded.randint(2, 9), seeded.randint(5, 120)) for _ in range(30))]
    for n, length in sizes:
        given = call(n, length)
        torch.testing.assert_close(run(*given), module(*given), rtol=2e-5, atol=1e-5)
    assert [graph._rows is not None for graph in graphs] == [True]
    plans = runtime.status()["models"][-1]["plans"]
    served = [(plan["inputs"], plan["ranges"]) for plan in plans]
    assert len(plans) <= 3, f"{served} for {sizes}"


@pytest.mark.parametrize("length_first", [False, True])
def test_parts_are_joined_wherever_rows_are(compiled: Any, graphs: list[Compiled], length_first: bool) -> None:
    def moved(x: Any) -> Any:
        y = torch.tanh(x @ torch.ones(WIDTH, WIDTH))
        return (y.transpose(0, 1).contiguous() if length_first else y), y.sum(1), y.flatten(0, 1)

    run = compiled(moved)
    for n, length in ((5, 7), (7, 9), (4, 12), (9, 3)):
        x = torch.randn(length, n, WIDTH).transpose(0, 1) if length_first else torch.randn(n, length, WIDTH)
        torch.testing.assert_close(run(x), moved(x), rtol=2e-5, atol=1e-5)
    assert all(graph._rows is not None for graph in graphs)


def test_images(compiled: Any, graphs: list[Compiled]) -> None:
    torch.manual_seed(2)
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)).eval()
    run = compiled(module)
    for n, side in ((5, 12), (4, 17), (7, 21)):
        x = torch.randn(n, 3, side, side).to(memory_format=torch.channels_last)
        torch.testing.assert_close(run(x), module(x), rtol=2e-5, atol=1e-5)
    assert graphs[0]._rows is not None


MIXING = {
    "softmax over rows": lambda x: x.softmax(0),
    "mean over rows": lambda x: x - x.mean(0),
    "rows times rows": lambda x: x @ x.transpose(0, 1),
    "rows in turn": lambda x: x.flip(0) + 1,
    "sums so far": lambda x: x.cumsum(0) * 2,
    "the row's number": lambda x: x + torch.arange(x.shape[0])[:, None],
    "how many rows": lambda x: x * x.shape[0],
    "another row": lambda x: torch.cat([x[1:], x[:1]]),
    "rows named by values": lambda x: x[x[:, 0].long().clamp(0, 1)],
    "rows behind another axis": lambda x: x.t().reshape(-1, 4) + 1,
    "rows beside rows": lambda x: torch.cat([x, x]).reshape(2, -1).sum(0),
}


@pytest.mark.parametrize("kind", MIXING)
def test_graphs_that_mix_rows_run_whole(compiled: Any, graphs: list[Compiled], kind: str) -> None:
    mixed = MIXING[kind]
    run = compiled(mixed)
    for n, length in ((4, 8), (6, 12), (5, 16), (3, 20)):
        x = torch.randn(n, length)
        torch.testing.assert_close(run(x), mixed(x), rtol=2e-5, atol=1e-5)
    assert not any(graph._rows for graph in graphs)


def test_calls_are_whole_while_one_size_changes() -> None:
    lengths, batches = History(), History()
    assert not any(lengths.split(7, length) for length in range(2, 90))
    assert not any(batches.split(batch, 64) for batch in range(2, 90))


def test_batches_that_come_often_stay_whole() -> None:
    """A data set in batches of 32 has a smaller one at its end."""
    history, draw = History(), np.random.default_rng(1)
    for _ in range(20):
        assert not any(history.split(32, int(length)) for length in draw.integers(5, 200, 25))
        assert history.split(7, 31)


def test_what_is_no_more_than_a_part_is_not_split() -> None:
    history = History()
    for batch in range(POLICY.rows + 6, 0, -1):
        assert history.split(batch, 100 + batch) == (POLICY.rows < batch < POLICY.rows + 6)


def test_parts_are_larger_where_batches_are() -> None:
    small, large = History(), History()
    for length in (20, 30, 40):
        small.split(3 + length // 10, length)
        large.split(30 + length // 10, length)
    assert (small.rows, large.rows) == (POLICY.rows, POLICY.more_rows)


def test_batches_smaller_than_a_part_and_many_parts(compiled: Any, graphs: list[Compiled]) -> None:
    module = nn.Sequential(nn.Linear(WIDTH, 24), nn.GELU(), nn.Linear(24, WIDTH)).eval()
    run = compiled(module)
    for n, length in ((40, 7), (35, 9), (2, 11), (3, 5), (4, 8), ((POLICY.in_flight + 3) * POLICY.more_rows + 1, 6)):
        x = torch.randn(n, length, WIDTH)
        torch.testing.assert_close(run(x), module(x), rtol=2e-5, atol=1e-5)
    (graph,) = graphs
    assert graph._history.rows == POLICY.more_rows


def test_parts_wait_where_the_queue_is_short() -> None:
    torch._dynamo.reset()
    module = nn.Sequential(nn.Linear(WIDTH, 24), nn.GELU(), nn.Linear(24, WIDTH)).eval()
    with aspen_mp.Runtime(workers=1, max_queued=2) as runtime, torch.no_grad():
        run = torch.compile(module, backend=backend.aspen_mp, dynamic=True, options={"runtime": runtime, "min_block_size": 1})
        for n, length in ((5, 7), (12, 9), (21, 11)):
            x = torch.randn(n, length, WIDTH)
            torch.testing.assert_close(run(x), module(x), rtol=2e-5, atol=1e-5)
    torch._dynamo.reset()


# ---- networks in which constants follow from the length

HEADS = 2


def causal(scores: Any, n: int) -> Any:
    return scores.masked_fill(torch.ones(n, n, dtype=torch.bool).tril().logical_not(), -1e9)


def linear_bias(scores: Any, n: int) -> Any:
    places = torch.arange(n)
    return scores + (places[None, :] - places[:, None]).abs() * torch.tensor([-0.5, -0.125])[:, None, None]


def classes_of_distances(scores: Any, n: int) -> Any:
    places = torch.arange(n)
    apart = (places[None, :] - places[:, None]).abs()
    large = 8 + (torch.log(apart.float().clamp(min=8) / 8 + 1e-3) * 4).long()
    return scores + torch.where(apart < 8, apart, large.clamp(max=31)).float() * 0.0625


def rotated(x: Any) -> Any:
    n, half = x.shape[-2], x.shape[-1] // 2
    angles = torch.arange(n).float()[:, None] * 10000.0 ** (-torch.arange(half).float() / half)
    turned = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * torch.cat([angles.cos()] * 2, -1) + turned * torch.cat([angles.sin()] * 2, -1)


class OfPlaces(nn.Module):
    """A layer of attention that makes some of these of its length."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        drawn = random.Random(seed)
        torch.manual_seed(seed)
        self.biases = drawn.sample([causal, linear_bias, classes_of_distances], drawn.randint(1, 2))
        self.rotates, self.places = drawn.random() < 0.5, nn.Embedding(512, WIDTH) if drawn.random() < 0.5 else None
        self.embed, self.qkv, self.out = nn.Embedding(50, WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens: Any) -> Any:
        batch, n = tokens.shape
        x = self.embed(tokens)
        if self.places is not None:
            x = x + self.places(torch.arange(n))
        q, k, v = (part.view(batch, n, HEADS, WIDTH // HEADS).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if self.rotates:
            q, k = rotated(q), rotated(k)
        scores = q @ k.transpose(-1, -2) / 3
        for bias in self.biases:
            scores = bias(scores, n)
        return x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, n, WIDTH))


@pytest.mark.parametrize("seed", range(6))
def test_few_plans_serve_lengths_that_constants_follow_from(runtime: Any, compiled: Any, seed: int) -> None:
    module, drawn = OfPlaces(seed).eval(), random.Random(seed)
    run = compiled(module)
    for n, length in [(25, 40), *((drawn.randint(2, 24), drawn.randint(5, 200)) for _ in range(25))]:
        tokens = torch.randint(0, 50, (n, length))
        torch.testing.assert_close(run(tokens), module(tokens), rtol=5e-5, atol=2e-5)
    plans = runtime.status()["models"][-1]["plans"]
    assert len(plans) <= 3, [(plan["inputs"], plan["ranges"]) for plan in plans]
