"""Requests that are run together give what they give alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import serving_tools as tools
import small_models

import aspen_mp
from aspen_mp.errors import RequestError
from aspen_mp.serving.batching import Batcher
from aspen_mp.serving.protocol.inference import Call
from aspen_mp.serving.repository.disk import Batching
from aspen_mp.serving.telemetry.ledger import Ledger, Row


@pytest.fixture(scope="module")
def shared_runtime() -> Iterator[aspen_mp.Runtime]:
    with aspen_mp.Runtime(workers=1) as runtime:
        yield runtime


def counts() -> Row:
    return Ledger().row("mlp", 1, in_batches=True)


def call(feeds: dict[str, np.ndarray], outputs: list[str] | None = None) -> Call:
    return Call("", feeds, outputs, {}, False, None, None)


def run(batcher: Batcher, calls: list[Call]) -> list[Any]:
    async def work() -> list[Any]:
        return await asyncio.gather(*(batcher.run(each, "normal", None) for each in calls), return_exceptions=True)

    return asyncio.run(work())


def test_results_are_those_of_single_requests(shared_runtime: aspen_mp.Runtime) -> None:
    model = shared_runtime.load(small_models.mlp("n"))
    batcher = Batcher(model, Batching(max_batch=8, max_delay_ms=50), counts())
    before = model.transfers.requests
    calls = [call(tools.mlp_feeds(rows=1 + k % 3, seed=k)) for k in range(12)]
    assert all(batcher.takes(each) for each in calls)
    results = run(batcher, calls)
    assert model.transfers.requests - before < len(calls)
    for each, result in zip(calls, results, strict=True):
        np.testing.assert_array_equal(result["y"], model.run(each.feeds)["y"])


def test_other_outputs_are_other_batches(shared_runtime: aspen_mp.Runtime) -> None:
    model = shared_runtime.load(small_models.mlp("n"))
    batcher = Batcher(model, Batching(max_batch=8, max_delay_ms=5), counts())
    feeds = tools.mlp_feeds()
    alone, named = run(batcher, [call(feeds), call(feeds, ["y"])])
    np.testing.assert_array_equal(alone["y"], named["y"])


def test_what_is_not_joined(shared_runtime: aspen_mp.Runtime) -> None:
    batching = Batching(max_batch=4)
    batcher = Batcher(shared_runtime.load(small_models.mlp("n")), batching, counts())
    assert not batcher.takes(call(tools.mlp_feeds(rows=4)))
    assert not batcher.takes(call({}))
    urgent = call(tools.mlp_feeds())
    urgent.deadline_ms = 5
    assert not batcher.takes(urgent)
    fixed = Batcher(shared_runtime.load(small_models.mlp(1)), batching, counts())
    assert not fixed.takes(call(tools.mlp_feeds(rows=1)))
    mixed = Batcher(shared_runtime.load(small_models.two_inputs()), batching, counts())  # an input without rows
    assert not mixed.takes(call({"a": np.ones((1, 3), np.float32), "b": np.ones(3, np.float32)}))


def test_a_bad_request_fails_alone(shared_runtime: aspen_mp.Runtime) -> None:
    batcher = Batcher(shared_runtime.load(small_models.mlp("n")), Batching(max_batch=8, max_delay_ms=5), counts())
    bad = call({"x": np.ones((1, 17), np.float32)})
    good, wrong = run(batcher, [call(tools.mlp_feeds()), bad])
    assert isinstance(wrong, RequestError)
    assert good["y"].shape == (3, 8)


def test_a_request_that_nobody_waits_for_any_more(shared_runtime: aspen_mp.Runtime) -> None:
    batcher = Batcher(shared_runtime.load(small_models.mlp("n")), Batching(max_batch=8, max_delay_ms=20), counts())

    async def work() -> Any:
        gone = asyncio.ensure_future(batcher.run(call(tools.mlp_feeds(seed=1)), "normal", None))
        stays = asyncio.ensure_future(batcher.run(call(tools.mlp_feeds(seed=2)), "normal", None))
        await asyncio.sleep(0)
        gone.cancel()
        return await stays

    feeds = tools.mlp_feeds(seed=2)
    np.testing.assert_allclose(asyncio.run(work())["y"], tools.mlp_wants(feeds), rtol=1e-4, atol=1e-5)


def test_over_http(tmp_path: Path) -> None:
    tools.save(tmp_path, "mlp", 1, small_models.mlp("n"), "batching = {max_batch = 8, max_delay_ms = 5.0}")
    with tools.serving(tmp_path, tmp_path) as server:
        clients = [tools.Client(server.address) for _ in range(6)]
        feeds = [tools.mlp_feeds(rows=1 + k % 2, seed=k) for k in range(len(clients))]

        def once(k: int) -> None:
            np.testing.assert_allclose(clients[k].infer("mlp", feeds[k])["y"], tools.mlp_wants(feeds[k]), rtol=1e-4, atol=1e-5)

        with tools.load(len(clients), once) as counts, tools.client(server.address) as own:
            while own.ask("/v2/models/mlp/stats")[2]["model_stats"][0]["inference_stats"]["success"]["count"] < 20:
                pass
        assert all(counts)
        for each in clients:
            each.close()
