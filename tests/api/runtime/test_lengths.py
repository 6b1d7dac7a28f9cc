"""Inputs of ever new lengths: a few plans for shape buckets serve them, with the bits of plans of their own, and lengths that come often
get a plan of their own."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import small_models

import aspen_mp
from aspen_mp.bench import models
from aspen_mp.bench.agreement import LIMIT, error_of, reference
from aspen_mp.client.requests import stage, stage_tree
from aspen_mp.errors import AspenError
from aspen_mp.planner.job.bucket_policy import POLICY

WATCHDOG_S = 60.0


@pytest.fixture(scope="module")
def text() -> onnx.ModelProto:
    model = models.build("bert_base", symbolic=True, **models.miniature("bert_base"))
    reference(model.SerializeToString(), tokens(3))  # onnxruntime keeps files of its own open from its first session on
    return model


def tokens(n: int, batch: int = 1) -> dict[str, npt.NDArray[np.int64]]:
    ids = np.random.default_rng(n).integers(0, 50, (batch, n))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


def plans(runtime: aspen_mp.Runtime) -> list[dict[str, Any]]:
    return [plan for model in runtime.status()["models"] for plan in model["plans"]]


def used(runtime: aspen_mp.Runtime) -> list[dict[str, Any]]:
    """Plans but for those beside others that nobody has come to."""
    return [plan for plan in plans(runtime) if plan["served"]]


def buckets(runtime: aspen_mp.Runtime) -> list[list[int]]:
    """Of plans in use. How large they are depends on what a machine takes for longer texts."""
    return [plan["ranges"] for plan in used(runtime) if plan["ranges"]]


def wait_for(what: Callable[[], object]) -> None:
    end = time.monotonic() + WATCHDOG_S
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_many_lengths_few_plans(runtime: aspen_mp.Runtime, text: onnx.ModelProto) -> None:
    model, data = runtime.load(text), text.SerializeToString()
    for n in (33, 40, 39, 34, 47, 46, 41, 33, 36):
        feeds = tokens(n)
        found = model.run(feeds)
        assert error_of([found[v.name] for v in text.graph.output], reference(data, feeds)) <= LIMIT
        assert found["last_hidden_state"].shape[1] == n
    (((least, most),),) = buckets(runtime)
    assert least <= 32
    assert most >= 47
    assert len(used(runtime)) == 2  # and that of the first length


def test_buckets_beside_those_that_are_used_are_there_before_they_are_asked_for(runtime: aspen_mp.Runtime, text: onnx.ModelProto) -> None:
    model, data = runtime.load(text), text.SerializeToString()
    model.run(tokens(9))

    def found() -> list[dict[str, Any]]:
        for n in range(33, 44):
            model.run(tokens(n))
        return [plan for plan in plans(runtime) if plan["ranges"] and not plan["served"]]

    for n in (33, 34, 41, 40, 35, 43, 39, 42, 36):
        model.run(tokens(n))
    wait_for(found)
    other = found()[0]
    n = max(other["ranges"][0][0], 2)
    feeds = tokens(n)
    result = model.run(feeds)
    assert error_of([result[v.name] for v in text.graph.output], reference(data, feeds)) <= LIMIT
    wait_for(lambda: other["plan"] in [plan["plan"] for plan in used(runtime)])


def test_the_planner_process_hears_of_few_lengths(
    runtime: aspen_mp.Runtime, text: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = runtime.load(text)
    model.run(tokens(9))
    model.run(tokens(33))
    asked = []
    ask = stage_tree.StageTree._ask

    def listen(*args: Any, **how: Any) -> Any:
        asked.append(how.get("beside", False))
        return ask(*args, **how)

    monkeypatch.setattr(stage_tree.StageTree, "_ask", listen)
    for n in range(34, 34 + POLICY.told_every + 1):
        assert model.run(tokens(n))["last_hidden_state"].shape[1] == n
    assert asked == [True]


def test_new_lengths_and_waits_are_counted(runtime: aspen_mp.Runtime, text: onnx.ModelProto) -> None:
    model = runtime.load(text, name="counted")

    def counts() -> tuple[int, int, float]:
        found = runtime.status()["requests"]["counted"]
        return found["derived"], found["waited"], found["waited_s"]

    model.run(tokens(9))
    model.run(tokens(33))
    derived, waited, seconds = counts()
    assert (derived, waited) == (0, 2)
    assert seconds > 0
    for n in range(34, 34 + POLICY.told_every + 2):
        model.run(tokens(n))
        model.run(tokens(n))
    model.submit(tokens(50)).result(WATCHDOG_S)
    assert counts() == (POLICY.told_every + 3, 2, seconds)
    (described,) = [found for found in runtime.status()["models"] if found["name"] == "counted"]
    made = described["made"]
    assert made["one_shape"] + made["range"] + made["cached"] >= len(described["plans"]) >= 2
    with pytest.raises(AspenError):
        model.run(tokens(10**4))
    assert counts()[:2] == (POLICY.told_every + 3, 3)


class Held:
    """Requests of several texts at once wait for their plan until the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate = threading.Event()
        ask = stage_tree.StageTree._ask

        def held(tree: stage_tree.StageTree, node: Any, *args: Any, **how: Any) -> Any:
            assert node.binds[0][0].shape[0] == 1 or self.gate.wait(WATCHDOG_S)
            return ask(tree, node, *args, **how)

        monkeypatch.setattr(stage_tree.StageTree, "_ask", held)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_stream_goes_on_while_a_plan_is_made(
    runtime: aspen_mp.Runtime, text: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, asynchronous: bool
) -> None:
    """The plan comes when the last text has been taken, far more than are in flight otherwise."""
    model, held = runtime.load(text), Held(monkeypatch)
    model.run(tokens(9))
    model.run(tokens(33))
    few = 2 * model.instances
    shapes = [(1, 35), (2, 40), *((1, 33 + k) for k in range(3 * few)), (2, 41)]

    def texts() -> Iterator[dict[str, npt.NDArray[np.int64]]]:
        for batch, n in shapes:
            yield tokens(n, batch)
        held.gate.set()

    async def results() -> list[Any]:
        return [result async for result in model.map_async(texts())]

    found = asyncio.run(results()) if asynchronous else list(model.map(texts()))
    assert [result["last_hidden_state"].shape[:2] for result in found] == shapes


def test_lengths_of_a_known_range_need_no_driver(runtime: aspen_mp.Runtime, text: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    """All threads that drive requests wait for a plan; other new lengths run."""
    monkeypatch.setattr(stage_tree, "MAX_DRIVERS", 1)
    model, held = runtime.load(text), Held(monkeypatch)
    model.run(tokens(9))
    model.run(tokens(33))
    waiting = [model.submit(tokens(40, 2)) for _ in range(2)]
    assert all(future.planning for future in waiting)
    for n in (35, 36):
        assert model.submit(tokens(n)).result(WATCHDOG_S)["last_hidden_state"].shape[1] == n
    assert asyncio.run(model.run_async(tokens(37)))["last_hidden_state"].shape[1] == 37
    assert not any(future.done() for future in waiting)
    held.gate.set()
    assert all(future.result(WATCHDOG_S) for future in waiting)
    assert not any(future.planning for future in waiting)


def test_the_bits_of_a_plan_of_its_own(runtime: aspen_mp.Runtime, text: onnx.ModelProto) -> None:
    model = runtime.load(text)
    model.run(tokens(9))
    shared = {n: model.run(tokens(n)) for n in (40, 33, 47)}
    assert len(buckets(runtime)) == 1
    alone = runtime.load(text.SerializeToString(), name="alone", instances=1)
    for n, want in shared.items():
        alone.prepare({name: value.shape for name, value in tokens(n).items()})
        found = alone.run(tokens(n))
        assert any(not plan["ranges"] and plan["inputs"]["input_ids"] == [1, n] for plan in plans(runtime))
        for name in want:
            assert np.array_equal(found[name], want[name])


def test_lengths_at_the_same_time(runtime: aspen_mp.Runtime, text: onnx.ModelProto) -> None:
    """Two instances of one plan run at different lengths, and one after another length."""
    model = runtime.load(text)
    model.run(tokens(9))
    order = list(range(32, 48)) * 4
    want = {n: model.run(tokens(n)) for n in range(32, 48)}
    with ThreadPoolExecutor(6) as pool:
        for n, found in zip(order, pool.map(lambda n: model.run(tokens(n)), order), strict=True):
            assert np.array_equal(found["last_hidden_state"], want[n]["last_hidden_state"])
    futures = [(n, model.submit(tokens(n))) for n in order]
    for n, future in futures:
        assert np.array_equal(future.result(WATCHDOG_S)["last_hidden_state"], want[n]["last_hidden_state"])
    assert len(used(runtime)) == 2


def test_batches_have_ranges_of_their_own(runtime: aspen_mp.Runtime, text: onnx.ModelProto) -> None:
    model, data = runtime.load(text), text.SerializeToString()
    for batch in (1, 2):
        for n in (35, 40, 33, 37):
            feeds = tokens(n, batch)
            found = model.run(feeds)
            assert error_of([found[v.name] for v in text.graph.output], reference(data, feeds)) <= LIMIT
    assert len(buckets(runtime)) == 2


def test_a_length_that_comes_often_gets_a_plan_of_its_own(
    runtime: aspen_mp.Runtime, text: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "ASK_AFTER", 4)
    monkeypatch.setattr(stage, "ASK_SELDOM", 8)
    model = runtime.load(text)
    model.run(tokens(9))
    want = model.run(tokens(40))["last_hidden_state"]

    def own() -> bool:
        for _ in range(10):
            assert np.array_equal(model.run(tokens(40))["last_hidden_state"], want)
        return any(not plan["ranges"] and plan["inputs"]["input_ids"] == [1, 40] and plan["served"] for plan in plans(runtime))

    wait_for(own)
    (mine,) = [plan for plan in plans(runtime) if plan["inputs"]["input_ids"] == [1, 40]]
    assert mine["searched"]
    assert np.array_equal(model.submit(tokens(40)).result(WATCHDOG_S)["last_hidden_state"], want)


def test_a_length_that_the_model_does_not_take_costs_the_others_nothing(runtime: aspen_mp.Runtime, text: onnx.ModelProto) -> None:
    """The longest of a range has no positions: those that have are served all the same, one by one or by less of the range."""
    data = text.SerializeToString()
    most = next(int(t.dims[0]) for t in text.graph.initializer if "position_embeddings" in t.name)
    loaded = runtime.load(text)
    loaded.run(tokens(9))
    feeds = tokens(most)
    found = loaded.run(feeds)
    assert error_of([found[v.name] for v in text.graph.output], reference(data, feeds)) <= LIMIT
    with pytest.raises(AspenError):
        loaded.run(tokens(most + 1))
    found = loaded.run(tokens(most - 1))
    assert found["last_hidden_state"].shape[1] == most - 1


def test_shapes_that_differ_by_more_than_a_length(runtime: aspen_mp.Runtime) -> None:
    proto = small_models.two_inputs()
    model = runtime.load(proto)
    for n in (3, 40, 45, 64, 33):
        a = np.random.default_rng(n).standard_normal((n, 3)).astype(np.float32)
        found = model.run({"a": a, "b": np.ones(3, np.float32)})
        assert np.array_equal(found["sum"], a + 1)
        assert np.array_equal(found["scaled"], a * 2)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("ASPEN_MP_CACHE", str(tmp_path / "cache"))
    yield tmp_path / "cache"
    wait_for(lambda: not list((tmp_path / "cache").glob("*/*.tmp")))


def test_buckets_are_in_the_plan_cache(folder: Path, text: onnx.ModelProto) -> None:
    data = text.SerializeToString()
    results = []
    for _ in range(2):
        with aspen_mp.Runtime(workers=2) as runtime:
            model = runtime.load(data)
            model.run(tokens(9))
            results.append([model.run(tokens(n))["last_hidden_state"] for n in (40, 35, 47)])
            found = {str(plan["ranges"]): plan["cached"] for plan in plans(runtime)}
            wait_for(lambda: len(list((folder / "plans").glob("*.aspen"))) >= 2)
    assert len(found) == 2
    assert all(found.values())
    for one, two in zip(*results, strict=True):
        assert np.array_equal(one, two)


def test_plans_of_ranges_that_go_are_made_again(runtime: aspen_mp.Runtime, text: onnx.ModelProto) -> None:
    """When workers come, plans are made for more of them while requests of all lengths run."""
    model = runtime.load(text)
    model.run(tokens(9))
    want = {n: model.run(tokens(n))["last_hidden_state"] for n in range(32, 48)}
    stop = threading.Event()
    wrong: list[int] = []

    def ask() -> None:
        while not stop.is_set():
            for n, expected in want.items():
                if not np.array_equal(model.run(tokens(n))["last_hidden_state"], expected):
                    wrong.append(n)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        runtime.scale(1)
        time.sleep(0.5)
        runtime.scale(3)
        wait_for(lambda: any(event["event"] == "replanned" for event in runtime.status()["events"]))
        time.sleep(0.5)
    finally:
        stop.set()
        thread.join()
    assert not wrong


def test_two_plans_besides_the_first_for_all_lengths_of_texts(runtime: aspen_mp.Runtime, text: onnx.ModelProto) -> None:
    model, data = runtime.load(text), text.SerializeToString()
    for n in (97, 33, 1, 250, 16, 131, 17, 256, 64, 23, 199, 47, 32, 101, 2, 61):
        feeds = tokens(n)
        found = model.run(feeds)
        assert error_of([found[v.name] for v in text.graph.output], reference(data, feeds)) <= LIMIT
    alone = [plan for plan in used(runtime) if not plan["ranges"]]
    assert len(alone) == 2  # of the first length, and of one token, which may be broadcast
    assert len(buckets(runtime)) <= 2


def test_batch_and_length_change_at_once(runtime: aspen_mp.Runtime, text: onnx.ModelProto) -> None:
    model, data = runtime.load(text), text.SerializeToString()
    for batch, n in ((2, 97), (4, 33), (2, 250), (4, 131), (2, 47), (4, 199), (2, 61), (4, 35)):
        feeds = tokens(n, batch)
        found = model.run(feeds)
        assert error_of([found[v.name] for v in text.graph.output], reference(data, feeds)) <= LIMIT
    assert len(used(runtime)) <= 5  # the first, and four ranges of lengths, each for both batches


@pytest.fixture(scope="module")
def pictures() -> onnx.ModelProto:
    """A network that takes pictures of any size."""
    model = models.build("resnet18", symbolic=True, **models.miniature("resnet18"))
    for dim, side in zip(model.graph.input[0].type.tensor_type.shape.dim[2:], ("height", "width"), strict=True):
        dim.dim_param = side
    reference(model.SerializeToString(), {model.graph.input[0].name: picture(64, 64)})
    return model


def picture(height: int, width: int, batch: int = 1) -> npt.NDArray[np.float32]:
    return np.random.default_rng(height * width).standard_normal((batch, 3, height, width)).astype(np.float32)


def test_pictures_of_ever_new_sizes_share_a_plan(runtime: aspen_mp.Runtime, pictures: onnx.ModelProto) -> None:
    model, data = runtime.load(pictures), pictures.SerializeToString()
    name = pictures.graph.input[0].name
    for sides in ((80, 61), (101, 97), (160, 41), (63, 158), (42, 43), (77, 160), (159, 159), (120, 88)):
        feeds = {name: picture(*sides)}
        found = model.run(feeds)
        assert error_of([found[v.name] for v in pictures.graph.output], reference(data, feeds)) <= LIMIT
    assert sorted(plan["ranges"] for plan in used(runtime)) == [[], [[40, 160], [40, 160]]]


def test_pictures_of_several_sizes_at_once(runtime: aspen_mp.Runtime, pictures: onnx.ModelProto) -> None:
    """Instances of one plan run at different sizes; a worker that is killed takes nothing with it."""
    model = runtime.load(pictures, instances=3)
    name = pictures.graph.input[0].name
    model.run({name: picture(50, 70)})
    sides = [(48, 64), (90, 41), (100, 131), (60, 60), (41, 160)]
    wanted = [next(iter(model.run({name: picture(*side)}).values())) for side in sides]
    with ThreadPoolExecutor(5) as pool:
        for _ in range(6):
            found = list(pool.map(lambda side: next(iter(model.run({name: picture(*side)}).values())), sides))
            os.kill(runtime.status()["workers"][0]["pid"], signal.SIGKILL)
            for one, other in zip(found, wanted, strict=True):
                assert np.array_equal(one, other)


def test_a_model_that_has_a_plan_for_each_size_says_why(runtime: aspen_mp.Runtime) -> None:
    """Half of a remainder lies before the picture."""
    pool = onnx.helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[4, 4], strides=[4, 4], auto_pad="SAME_UPPER")
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 3, "h", "w"]) for name in "xy"]
    graph = onnx.helper.make_graph([pool], "same", values[:1], values[1:])
    opsets = [onnx.helper.make_opsetid("", 17)]
    model = runtime.load(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9))
    for sides in ((50, 60), (70, 90), (44, 101)):
        assert model.run({"x": picture(*sides)})["y"].shape == (1, 3, -(-sides[0] // 4), -(-sides[1] // 4))
    reasons = [event["why"] for event in runtime.status()["events"] if event["event"] == "one-shape"]
    assert reasons
    assert all("POOL" in reason for reason in reasons)
