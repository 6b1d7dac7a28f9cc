"""Running requests: results, checks of inputs, futures, asyncio, time-outs, cancelling, priorities."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import threading
import time

import numpy as np
import pytest
import small_models
from process_tools import wait_until, without_workers

import aspen_mp
from aspen_mp.client.requests import stage
from aspen_mp.client.requests._fast_path import address
from aspen_mp.client.requests.memory import DataMemory, Span
from aspen_mp.errors import RequestCancelled, RequestError, RequestTimeout

WATCHDOG_S = 60.0


def x_of(batch: int = 4, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((batch, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def mlp(shared_runtime):
    proto = small_models.mlp()
    return shared_runtime.load(proto), proto


@pytest.fixture(scope="module")
def chain(shared_runtime):
    """A request of this takes long enough to be met while it runs."""
    return shared_runtime.load(small_models.conv_chain(24, 64, 64))


def chain_input() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(0).standard_normal((1, 64, 64, 64)).astype(np.float32)}


def test_run(mlp):
    model, proto = mlp
    x = x_of()
    out = model.run({"x": x})
    assert list(out) == ["y"]
    np.testing.assert_allclose(out["y"], small_models.mlp_reference(proto, x), rtol=1e-4, atol=1e-4)
    assert out["y"].flags.owndata
    assert model.run({"x": x})["y"].tobytes() == out["y"].tobytes()


def test_large_outputs_are_lent(shared_runtime):
    """They lie in shared memory that is not used again before they, and all views of them, have gone."""
    model = shared_runtime.load(small_models.mlp("n", width=16))
    rows = stage.LEND_BYTES // 32
    feeds = [{"x": np.random.default_rng(k).standard_normal((rows, 16)).astype(np.float32)} for k in range(5)]
    kept, expected, parts = [], [], []
    for f in feeds:  # more than are lent at a time: the others are copies
        y = model.run(f)["y"]
        kept.append(y)
        expected.append(y.tobytes())
        parts.append(y[5:9, 1:].T)
    assert [isinstance(y.base, stage._Lent) for y in kept] == [True] * stage.MAX_LENT + [False] * (5 - stage.MAX_LENT)
    assert [y.tobytes() for y in kept] == expected
    first = kept[0]
    first += 1  # an output is its owner's
    assert model.run(feeds[0])["y"].tobytes() == expected[0]
    pieces = [p.tobytes() for p in parts]
    del kept, first, y
    for f in feeds:
        model.run(f)
    assert [p.tobytes() for p in parts] == pieces
    del parts
    gc.collect()
    futures = [model.submit(f) for f in feeds]
    assert [f.result()["y"].tobytes() for f in futures] == expected
    del futures
    gc.collect()
    assert isinstance(model.run(feeds[0])["y"].base, stage._Lent)


def test_outputs_that_are_large_together_are_lent_together(shared_runtime):
    """One region for all outputs of a request, back when the last one has gone; small ones are copied."""
    model = shared_runtime.load(small_models.two_inputs())
    rows = stage.LEND_BYTES // 2 // 12 + 1

    def run(seed):
        x = np.random.default_rng(seed).standard_normal((rows, 3)).astype(np.float32)
        found = model.run({"a": x, "b": np.ones(3, np.float32)})
        assert np.array_equal(found["sum"], x + 1)
        assert np.array_equal(found["scaled"], x * 2)
        return found

    first, second = run(1), run(2)
    for found in (first, second):
        assert isinstance(found["sum"].base, stage._Lent)
        assert found["sum"].base is found["scaled"].base
    kept = {name: array.copy() for name, array in first.items()}
    part = first["sum"][5:]
    at = address(first["sum"])
    del first["scaled"], first["sum"]
    third = run(3)  # a copy: two regions are lent
    assert not isinstance(third["sum"].base, stage._Lent)
    assert np.array_equal(part, kept["sum"][5:])
    del part
    assert address(run(4)["sum"]) == at
    few = model.run({"a": np.zeros((stage.LEND_EACH // 24, 3), np.float32), "b": np.ones(3, np.float32)})
    assert few["sum"].base is None


def test_lent_outputs_outlive_the_runtime():
    with aspen_mp.Runtime(workers=1) as rt:
        y = rt.load(small_models.mlp("n", width=16)).run({"x": np.ones((stage.LEND_BYTES // 32, 16), np.float32)})["y"]
        assert isinstance(y.base, stage._Lent)
        first = y[0].copy()
    assert (y == first).all()


def test_signature(mlp):
    model, _ = mlp
    assert [(i.name, i.shape, i.dtype) for i in model.inputs] == [("x", (4, 16), np.dtype(np.float32))]
    assert [(o.name, o.shape, o.dtype) for o in model.outputs] == [("y", (4, 8), np.dtype(np.float32))]


def test_symbolic_shapes_are_planned_as_they_come(shared_runtime):
    model = shared_runtime.load(small_models.two_inputs())
    assert model.inputs[0].shape == ("n", 3)
    b = np.ones(3, np.float32)
    for n in (1, 5, 1, 300, 5):
        a = np.random.default_rng(n).standard_normal((n, 3)).astype(np.float32)
        out = model.run({"a": a, "b": b})
        np.testing.assert_array_equal(out["sum"], a + b)
        np.testing.assert_array_equal(out["scaled"], a * 2)
    out = model.run({"a": a, "b": b}, ["scaled"])
    assert list(out) == ["scaled"]
    model.unload()


def test_initializers_that_are_inputs_can_be_fed(shared_runtime):
    """One that is given is no constant of that request's plan, also where its value decides shapes; the next one has the default again."""
    model = shared_runtime.load(small_models.with_defaults())
    assert [(i.name, i.optional) for i in model.inputs] == [("x", False), ("scale", True), ("shape", True)]
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    three, rows = np.array(3, np.float32), np.array([3, 4])
    for _ in range(2):
        np.testing.assert_array_equal(model.run({"x": x})["y"], x.reshape(4, 3) * 2)
        np.testing.assert_array_equal(model.run({"x": x, "scale": three})["y"], x.reshape(4, 3) * 3)
        np.testing.assert_array_equal(model.submit({"x": x, "shape": rows}).result(60)["y"], x.reshape(3, 4) * 2)
        np.testing.assert_array_equal(model.run({"shape": np.array([1, 12]), "x": x, "scale": three})["y"], x.reshape(1, 12) * 3)
    np.testing.assert_array_equal(model.run(x)["y"], x.reshape(4, 3) * 2)
    np.testing.assert_array_equal(model.run({"x": x, "scale": three.reshape(1)})["y"], x.reshape(4, 3) * 3)
    np.testing.assert_array_equal(model.run({"x": x, "scale": three.reshape(1, 1)})["y"], x.reshape(4, 3) * 3)
    with pytest.raises(RequestError, match=r"input 'scale' must have shape \[\], not \(2,\)"):
        model.run({"x": x, "scale": np.repeat(three, 2)})
    with pytest.raises(RequestError, match=r"no input 'z'\. It has x and 2 optional"):
        model.run({"x": x, "z": x})
    model.unload()


def test_initializers_of_old_models_are_constants(shared_runtime):
    """Before IR version 4 each of them had to be an input."""
    proto = small_models.with_defaults()
    proto.ir_version = 3
    model = shared_runtime.load(proto)
    assert [i.name for i in model.inputs] == ["x"]
    model.unload()


def test_weights_are_packed_once(shared_runtime):
    model = shared_runtime.load(small_models.mlp("n", width=4096))
    model.run({"x": x_of(1)})
    before = shared_runtime.status()["memory"]["weights"]
    model.run({"x": x_of(3)})
    assert shared_runtime.status()["memory"]["weights"] == before
    model.unload()


def test_memory_order_does_not_matter(mlp):
    model, _ = mlp
    x = x_of()
    expected = model.run({"x": x})["y"]
    for view in (np.asfortranarray(x), np.repeat(x, 2, axis=0)[::2], x[:, ::-1].copy()[:, ::-1]):
        np.testing.assert_array_equal(model.run({"x": view})["y"], expected)
    np.testing.assert_array_equal(model.run({"x": x.tolist()})["y"], expected)


BAD = {
    "missing": ({}, "input 'x' is missing"),
    "surplus": ({"x": x_of(), "z": x_of()}, r"no input 'z'\. It has x"),
    "dtype": ({"x": x_of().astype(np.float64)}, "input 'x' must be float32, not float64"),
    "byte order": ({"x": x_of().astype(">f4")}, "input 'x' must be float32, not >f4"),
    "rank": ({"x": x_of()[0]}, r"input 'x' must have shape \[4, 16\], not \(16,\)"),
    "shape": ({"x": x_of(5)}, r"input 'x' must have shape \[4, 16\], not \(5, 16\)"),
    "objects": ({"x": x_of().astype(object)}, "input 'x' must be float32, not object"),
    "no array": ({"x": "text"}, "input 'x' is float32, got a str"),
    "none": ({"x": None}, "input 'x'"),
}


@pytest.mark.parametrize(("feeds", "message"), BAD.values(), ids=BAD.keys())
def test_bad_feeds(mlp, feeds, message):
    model, _ = mlp
    with pytest.raises(RequestError, match=f"model 'mlp'.*{message}"):
        model.run(feeds)
    with pytest.raises(RequestError):
        model.submit(feeds)
    model.run({"x": x_of()})


def test_bad_arguments(mlp):
    model, _ = mlp
    with pytest.raises(RequestError, match=r"no output 'q'\. It has y"):
        model.run({"x": x_of()}, ["q"])
    with pytest.raises(RequestError, match="priority 'urgent'"):
        model.run({"x": x_of()}, priority="urgent")


def test_failure_inside_names_model_and_node(shared_runtime):
    model = shared_runtime.load(small_models.gather())
    good = np.array([0, 3, -1])
    np.testing.assert_array_equal(model.run({"i": good})["y"][:, 0], [0, 6, 6])
    with pytest.raises(RequestError, match=r"model 'gather': .*lookup"):
        model.run({"i": np.array([0, 4, 1])})
    future = model.submit({"i": np.array([-5, 0, 0])})
    with pytest.raises(RequestError, match="lookup"):
        future.result(30)
    np.testing.assert_array_equal(model.run({"i": good})["y"][:, 0], [0, 6, 6])
    model.unload()


def test_many_futures(mlp):
    """More than slots, more than instances: the rest waits its turn. Inputs may be changed right after submit."""
    model, proto = mlp
    x = np.empty((4, 16), np.float32)
    futures = []
    for i in range(600):
        x[...] = i
        futures.append(model.submit({"x": x}))
    for i, future in enumerate(futures):
        expected = small_models.mlp_reference(proto, np.full((4, 16), i, np.float32))
        np.testing.assert_allclose(future.result(60)["y"], expected, rtol=1e-4, atol=1e-3)


def test_threads(mlp):
    model, _ = mlp
    inputs = [x_of(seed=i) for i in range(8)]
    expected = [model.run({"x": x})["y"] for x in inputs]

    def work(i: int) -> bool:
        return all(np.array_equal(model.run({"x": inputs[i]})["y"], expected[i]) for _ in range(50))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


@pytest.mark.parametrize("stream", [False, True])
def test_an_event_loop_goes_on_while_shared_memory_is_made(runtime, monkeypatch, stream):
    """It is made only after another task of the loop has had its turn: in the loop's own thread that would never come."""
    model = runtime.load(small_models.mlp())
    feeds = {"x": np.ones((4, 16), np.float32)}
    expected = model.run(feeds)["y"]
    make, turn = DataMemory.allocate, threading.Event()

    def allocate(memory: DataMemory, nbytes: int) -> Span:
        assert turn.wait(WATCHDOG_S)
        return make(memory, nbytes)

    async def ask() -> np.ndarray:
        if stream:
            (results,) = [results async for results in model.map_async([feeds])]
            return results["y"]
        x = feeds["x"].copy()
        task = asyncio.create_task(model.run_async({"x": x}))
        await asyncio.sleep(0)  # it has taken its input by now
        x[...] = 0
        return (await task)["y"]

    async def both() -> np.ndarray:
        y, _ = await asyncio.gather(ask(), _soon(turn))
        return y

    monkeypatch.setattr(DataMemory, "has", lambda memory, nbytes: turn.is_set())
    monkeypatch.setattr(DataMemory, "allocate", allocate)
    model._tree.single({"x": feeds["x"]})._free.clear()
    np.testing.assert_array_equal(asyncio.run(both()), expected)


async def _soon(event: threading.Event) -> None:
    for _ in range(5):
        await asyncio.sleep(0)
    event.set()


def test_asyncio(mlp):
    model, _ = mlp
    x = x_of()
    expected = model.run({"x": x})["y"]

    async def several():
        return await asyncio.gather(*(model.run_async({"x": x}) for _ in range(20)))

    for out in asyncio.run(several()):
        np.testing.assert_array_equal(out["y"], expected)


def test_cancelling_a_task_cancels_the_request(chain):
    async def start_and_cancel():
        task = asyncio.create_task(chain.run_async(chain_input()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(start_and_cancel())
    chain.run(chain_input())


def test_timeout_cancels(chain, shared_runtime):
    expected = chain.run(chain_input())["y"]
    with without_workers(shared_runtime):
        for timeout in (0.0, 1e-4, 1e-3):
            with pytest.raises(RequestTimeout, match="model 'chain'"):
                chain.run(chain_input(), timeout=timeout)
    for timeout in (0.0, 1e-4, 1e-3):
        with contextlib.suppress(RequestTimeout):  # a program that waits for a processor meanwhile gets the result
            np.testing.assert_array_equal(chain.run(chain_input(), timeout=timeout)["y"], expected)
    np.testing.assert_array_equal(chain.run(chain_input(), timeout=60)["y"], expected)


def test_cancel_futures(runtime):
    chain = runtime.load(small_models.conv_chain(24, 64, 64))
    expected = chain.run(chain_input())["y"]
    runtime.scale(0)  # or all could be done before they are cancelled
    futures = [chain.submit(chain_input()) for _ in range(20)]
    cancelled = [future.cancel() for future in futures[::2]]
    assert [future.cancel() for future in futures[::2]] == cancelled  # once more makes no difference
    runtime.scale(2)
    for future, was in zip(futures[::2], cancelled, strict=True):
        if was:
            with pytest.raises(concurrent.futures.CancelledError):
                future.result(60)
    assert any(cancelled)
    for future in futures[1::2]:
        np.testing.assert_array_equal(future.result(60)["y"], expected)
    done = futures[1]
    assert not done.cancel()


def test_callbacks_and_wait(mlp):
    model, _ = mlp
    called = threading.Event()
    future = model.submit({"x": x_of()})
    future.add_done_callback(lambda f: called.set())
    done, _ = concurrent.futures.wait([future, model.submit({"x": x_of()})], timeout=60)
    assert len(done) == 2
    assert called.wait(60)


def test_priorities_all_finish(chain):
    futures = [chain.submit(chain_input(), priority=p) for p in ("low", "normal", "high") * 4]
    results = [f.result(60)["y"].tobytes() for f in futures]
    assert len(set(results)) == 1


def test_value_bound_shapes(shared_runtime):
    model = shared_runtime.load(small_models.reshape_by_input())
    x = np.arange(12, dtype=np.float32)
    for shape in ([3, 4], [4, 3], [2, -1], [3, 4]):
        out = model.run({"x": x, "shape": np.array(shape)})
        np.testing.assert_array_equal(out["y"], x.reshape(shape) + 1)
    with pytest.raises(aspen_mp.errors.AspenError, match="reshape"):
        model.run({"x": x, "shape": np.array([5, 5])})
    np.testing.assert_array_equal(model.submit({"x": x, "shape": np.array([6, 2])}).result(60)["y"], x.reshape(6, 2) + 1)
    model.unload()


def test_shapes_that_depend_on_data(shared_runtime):
    model = shared_runtime.load(small_models.nonzero())
    for values in ([0, 1, 0, 2], [0, 0, 0, 0], [1, 2, 3, 4], np.arange(5000) % 3):
        x = np.array(values, np.float32)
        np.testing.assert_array_equal(model.run({"x": x})["y"], x[x != 0] * 2)
        np.testing.assert_array_equal(model.submit({"x": x}).result(60)["y"], x[x != 0] * 2)
    model.unload()


def test_strings(shared_runtime):
    model = shared_runtime.load(small_models.strings())
    for n in (1, 3, 2000):
        a = np.array([f"a{i}" for i in range(n)], object)
        b = np.array([f"ä{i}" * 3 for i in range(n)], object)
        assert model.run({"a": a, "b": b})["y"].tolist() == [p + q for p, q in zip(a, b, strict=True)]
    model.unload()


def test_cancelling_a_request_of_several_stages(shared_runtime):
    model = shared_runtime.load(small_models.nonzero())
    futures = [model.submit({"x": np.ones(100, np.float32)}) for _ in range(10)]
    for future in futures[::2]:
        future.cancel()
    for future in futures[1::2]:
        assert future.result(60)["y"].shape == (100,)
    for future in futures[::2]:
        if future.cancelled():
            with pytest.raises(concurrent.futures.CancelledError):
                future.result()
    model.unload()


def test_unloaded_models_refuse(shared_runtime):
    model = shared_runtime.load(small_models.mlp(seed=5))
    model.run({"x": x_of()})
    model.unload()
    model.unload()
    with pytest.raises(RequestError, match="has been unloaded"):
        model.run({"x": x_of()})


def test_error_classes():
    assert issubclass(RequestTimeout, TimeoutError)
    assert issubclass(RequestCancelled, RequestError)


def test_forgotten_models_are_given_back(shared_runtime):
    """A result is there before the thread that delivered it has let go of its request, and so of the model."""
    before = {model["id"] for model in shared_runtime.status()["models"]}
    futures = [shared_runtime.load(small_models.mlp(seed=i)).submit({"x": x_of()}) for i in range(3)]
    assert all(f.result(60)["y"].shape == (4, 8) for f in futures)
    del futures
    wait_until(lambda: {model["id"] for model in shared_runtime.status()["models"]} <= before, "forgotten models to be given back")


def test_unloading_with_requests_in_flight(shared_runtime):
    """Those that have begun end well, the others with an error that says why; nothing hangs."""
    model = shared_runtime.load(small_models.conv_chain(8, 32, 32))
    x = {"x": np.ones((1, 32, 32, 32), np.float32)}
    expected = model.run(x)["y"].tobytes()
    futures = [model.submit(x) for _ in range(300)]
    model.unload()
    outcomes = [future.exception(60) for future in futures]
    assert all(e is None or (isinstance(e, RequestError) and "unloaded" in str(e)) for e in outcomes)
    assert all(f.result()["y"].tobytes() == expected for f, e in zip(futures, outcomes, strict=True) if e is None)
    dynamic = shared_runtime.load(small_models.nonzero())
    futures = [dynamic.submit({"x": np.ones(10, np.float32)}) for _ in range(100)]
    dynamic.unload()
    assert all(e is None or isinstance(e, aspen_mp.errors.AspenError) for e in (f.exception(60) for f in futures))


def test_unloading_waits_for_requests_that_nobody_has_begun():
    """Asynchronous ones, one with a shape that is planned first, and one that another thread waits for."""
    proto = small_models.mlp(batch="n", seed=6)
    with aspen_mp.Runtime(workers=1) as runtime:
        model = runtime.load(proto)
        model.run({"x": x_of()})
        runtime.scale(0)
        futures = [model.submit({"x": x_of(seed=k)}) for k in range(5)]
        futures.append(model.submit({"x": x_of(3)}))
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waited = pool.submit(model.run, {"x": x_of(seed=7)})
            deadline = time.monotonic() + WATCHDOG_S
            while model._requests.begun < 7:
                assert time.monotonic() < deadline
                time.sleep(0.001)
            model.unload()
            with pytest.raises(RequestError, match="has been unloaded"):
                model.submit({"x": x_of()})
            runtime.scale(1)
            results = [future.result(60)["y"] for future in [*futures, waited]]
        inputs = [*(x_of(seed=k) for k in range(5)), x_of(3), x_of(seed=7)]
        for x, y in zip(inputs, results, strict=True):
            np.testing.assert_allclose(y, small_models.mlp_reference(proto, x), rtol=1e-4, atol=1e-4)
        assert not runtime.status()["models"], "the last of them has given the model back"
