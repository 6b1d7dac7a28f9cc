"""Wrong arguments: an error in the caller that names the argument, and a runtime that goes on as if nothing had been said."""

from __future__ import annotations

import gc
import os
import pickle
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import small_models
from process_tools import without_workers

import aspen_mp
from aspen_mp.control.wire import protocol
from aspen_mp.errors import ProtocolError, RequestError, RequestTimeout, ResourceLimitError

X = np.ones((4, 16), np.float32)
MLP = small_models.mlp("n")
WATCHDOG_S = 60.0


@pytest.fixture(scope="module")
def mlp(shared_runtime: aspen_mp.Runtime) -> aspen_mp.Model:
    return shared_runtime.load(MLP)


@pytest.fixture(autouse=True)
def unharmed(request: pytest.FixtureRequest) -> Iterator[None]:
    """The connection, its model and its workers are what they were."""
    if "shared_runtime" not in request.fixturenames and "mlp" not in request.fixturenames:
        yield
        return
    runtime, model = request.getfixturevalue("shared_runtime"), request.getfixturevalue("mlp")
    before = [worker["pid"] for worker in runtime.workers]
    yield
    assert model.run({"x": X})["y"].shape == (4, 8)
    assert [worker["pid"] for worker in runtime.workers] == before
    deadline = time.monotonic() + WATCHDOG_S
    while len(runtime.status()["models"]) > 1:  # others go when their last requests have ended
        assert time.monotonic() < deadline
        time.sleep(0.01)


LOAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"name": 3}, TypeError, r"name must be a string, not 3 \(int\)"),
    ({"name": "x" * 100_000}, ValueError, "name must have at most 4096 characters, not 100000"),
    ({"name": "\udcff"}, ValueError, "name must be Unicode text"),
    ({"instances": 2.0}, TypeError, r"instances must be an integer, 1 to 32, not 2.0 \(float\)"),
    ({"instances": True}, TypeError, "instances must be an integer"),
    ({"instances": 33}, ValueError, "instances must be 1 to 32, not 33"),
    ({"winograd": "no"}, TypeError, r"winograd must be True or False, not 'no' \(str\)"),
    ({"winograd": 1}, TypeError, "winograd must be True or False"),
    ({"stacks": None}, TypeError, "stacks must be True or False, not None"),
    ({"planning": "quick"}, TypeError, "planning must be an aspen_mp.planner.job.options.Planning, not 'quick'"),
    ({"progress": 3}, TypeError, "progress must be a function"),
    ({"input_shapes": [(2, 16)]}, TypeError, r"input_shapes must be a dict \{input name: shape\}, not \[\(2, 16\)\] \(list\)"),
    ({"input_shapes": {"x": 4}}, TypeError, r"input_shapes\['x'\] must be a shape such as \(1, 3\), not 4"),
    ({"input_shapes": {"x": ("n", 16)}}, TypeError, r"a dimension of input_shapes\['x'\] must be an integer"),
    ({"input_shapes": {"x": (-2, 16)}}, ValueError, r"a dimension of input_shapes\['x'\] must be at least 0, not -2"),
    ({"input_shapes": {"x": (1 << 70, 16)}}, ValueError, "cannot have shape"),
    ({"input_shapes": {"nosuch": (2, 16)}}, RequestError, r"no input 'nosuch'\. It has x"),
]


@pytest.mark.parametrize(("options", "error", "message"), LOAD)
def test_options_of_load(shared_runtime: aspen_mp.Runtime, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        shared_runtime.load(MLP, **options)


def test_a_progress_that_fails_ends_the_call_alone(shared_runtime: aspen_mp.Runtime) -> None:
    with pytest.raises(TypeError, match="positional arguments"):
        shared_runtime.load(MLP, progress=lambda: None)  # type: ignore[misc, arg-type]
    deadline = time.monotonic() + WATCHDOG_S
    while len(shared_runtime.status()["models"]) > 1:  # it is given back as soon as it has been loaded
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_numbers_of_numpy_are_numbers(shared_runtime: aspen_mp.Runtime) -> None:
    shapes = {"x": np.array([4, 16])}
    model = shared_runtime.load(MLP, instances=np.int32(1), winograd=np.bool_(False), input_shapes=shapes, name=np.str_("of numpy"))
    assert model.instances == 1
    assert model.run({"x": X}, timeout=np.float32(WATCHDOG_S))["y"].shape == (4, 8)
    model.unload()
    cpu = np.int64(min(os.sched_getaffinity(0)))
    with aspen_mp.Runtime(workers=np.int64(1), cores=np.array([cpu]), max_workers=np.uint8(2)) as runtime:
        assert [worker["cpu"] for worker in runtime.workers] == [cpu]
        assert runtime.add_workers(np.int64(1), cores=[cpu]) == 2
        assert runtime.scale(np.int64(1)) == 1


@pytest.mark.parametrize("model", [MLP.graph, 5, None, [MLP]])
def test_what_is_no_model(shared_runtime: aspen_mp.Runtime, model: Any) -> None:
    with pytest.raises(
        TypeError, match=rf"a model must be a path, bytes, an onnx.ModelProto or 'zoo:NAME', not an? {type(model).__name__}"
    ):
        shared_runtime.load(model)


def test_networks_that_are_not_there(shared_runtime: aspen_mp.Runtime) -> None:
    with pytest.raises(FileNotFoundError, match=r"the zoo has no 'nosuch'\. It has .*resnet50"):
        shared_runtime.load("zoo:nosuch")
    with pytest.raises(FileNotFoundError, match="there is no model file"):
        shared_runtime.load("nosuch.onnx")


def test_a_name_in_the_model_may_be_long(shared_runtime: aspen_mp.Runtime) -> None:
    proto = small_models.mlp()
    proto.graph.name = "x" * 100_000
    model = shared_runtime.load(proto)
    assert model.run({"x": X})["y"].shape == (4, 8)
    model.unload()


WORKERS: list[tuple[Callable[[aspen_mp.Runtime], object], type[Exception], str]] = [
    (lambda rt: rt.add_workers(1.5), TypeError, r"n must be an integer, 0 to 256, not 1.5 \(float\)"),  # type: ignore[arg-type]
    (lambda rt: rt.add_workers("1"), TypeError, "n must be an integer"),  # type: ignore[arg-type]
    (lambda rt: rt.add_workers(True), TypeError, "n must be an integer"),
    (lambda rt: rt.add_workers(-1), ValueError, "n must be 0 to 256, not -1"),
    (lambda rt: rt.add_workers(cores="0"), TypeError, "cores must be a list of CPU numbers"),  # type: ignore[arg-type]
    (lambda rt: rt.add_workers(cores=[]), ValueError, "cores must name 1 to 256 CPUs, not 0"),
    (lambda rt: rt.add_workers(cores=[1 << 70]), ValueError, "a CPU of cores must be 0 to 65535"),
    (lambda rt: rt.remove_workers(-1), ValueError, "n must be 0 to 256, not -1"),
    (lambda rt: rt.remove_workers(1.5), TypeError, "n must be an integer"),  # type: ignore[arg-type]
    (lambda rt: rt.scale(1000), ValueError, "total must be 0 to 256, not 1000"),
    (lambda rt: rt.scale(2.5), TypeError, "total must be an integer"),  # type: ignore[arg-type]
    (lambda rt: rt.scale(-1), ValueError, "total must be 0 to 256, not -1"),
    (lambda rt: rt.trace(records=-1), ValueError, "records must be 0 to"),
]


@pytest.mark.parametrize(("ask", "error", "message"), WORKERS)
def test_numbers_of_workers(
    shared_runtime: aspen_mp.Runtime, ask: Callable[[aspen_mp.Runtime], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ask(shared_runtime)


def test_no_worker_more_is_no_worker_more(shared_runtime: aspen_mp.Runtime) -> None:
    assert shared_runtime.add_workers(0) == shared_runtime.remove_workers(0) == 2


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"workers": 2.5}, TypeError, "workers must be an integer"),
        ({"workers": "2"}, TypeError, "workers must be an integer"),
        ({"workers": True}, TypeError, "workers must be an integer"),
        ({"workers": 257}, ValueError, "workers must be 1 to 256, not 257"),
        ({"cores": []}, ValueError, "cores must name 1 to 256 CPUs, not 0"),
        ({"cores": "0"}, TypeError, "cores must be a list of CPU numbers"),
        ({"cores": 3}, TypeError, "cores must be a list of CPU numbers"),
        ({"cores": [0.5]}, TypeError, "a CPU of cores must be an integer"),
        ({"cores": [-1]}, ValueError, "a CPU of cores must be 0 to 65535"),
        ({"max_workers": 1.5}, TypeError, "max_workers must be an integer"),
        ({"name": 3}, TypeError, "must be a string"),
    ],
)
def test_runtimes_that_do_not_start(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        aspen_mp.Runtime(**options)


def test_connect() -> None:
    with pytest.raises(TypeError, match="must be a string"):
        aspen_mp.connect(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="timeout must be a number of seconds"):
        aspen_mp.connect("nobody", timeout="a")  # type: ignore[arg-type]


# ---- requests


def test_the_array_alone(mlp: aspen_mp.Model, shared_runtime: aspen_mp.Runtime) -> None:
    import asyncio

    expected = mlp.run({"x": X})["y"]
    for y in (mlp.run(X), mlp.submit(X).result(WATCHDOG_S), asyncio.run(mlp.run_async(X))):
        np.testing.assert_array_equal(y["y"], expected)
    two = shared_runtime.load(small_models.two_inputs())
    with pytest.raises(TypeError, match=r"model 'two': feeds must be a dict \{'a': array, 'b': array\}, not an ndarray"):
        two.run(X)
    two.unload()


@pytest.mark.parametrize("feeds", [None, [X], "x", 3])
def test_feeds_that_are_none(mlp: aspen_mp.Model, feeds: Any) -> None:
    for use in (mlp.run, mlp.submit):
        with pytest.raises(TypeError, match=r"feeds must be a dict \{'x': array\} or that array alone, not a"):
            use(feeds)


def test_names_of_outputs(mlp: aspen_mp.Model, shared_runtime: aspen_mp.Runtime) -> None:
    for _ in range(2):
        assert list(mlp.run(X, "y")) == ["y"]
        assert list(mlp.run(X, (name for name in ["y"]))) == ["y"]  # type: ignore[arg-type]
    assert list(mlp.submit(X, "y").result(WATCHDOG_S)) == ["y"]
    with pytest.raises(TypeError, match="outputs must be a list of names, not 3"):
        mlp.run(X, 3)  # type: ignore[arg-type]
    two = shared_runtime.load(small_models.two_inputs())
    assert list(two.run({"a": np.ones((1, 3), np.float32), "b": np.ones(3, np.float32)}, "scaled")) == ["scaled"]
    with pytest.raises(RequestError, match=r"no output 's'\. It has sum, scaled"):
        two.run({}, "s")
    two.unload()
    with aspen_mp.InferenceSession(MLP.SerializeToString(), runtime=shared_runtime) as session:
        assert [y.shape for y in session.run("y", {"x": X})] == [(4, 8)]


@pytest.mark.parametrize(
    ("timeout", "error", "message"),
    [
        ("a", TypeError, "not 'a'"),
        (True, TypeError, "bool"),
        (float("nan"), ValueError, "not nan"),
        (-1, ValueError, "at least 0 seconds, not -1"),
    ],
)
def test_timeouts(mlp: aspen_mp.Model, timeout: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"timeout must be .*{message}"):
        mlp.run({"x": X}, timeout=timeout)
    with pytest.raises(error, match=f"timeout must be .*{message}"):
        mlp.map([X], timeout=timeout)


def test_timeouts_without_end(mlp: aspen_mp.Model) -> None:
    for timeout in (float("inf"), 1e300, 10**12):
        assert mlp.run({"x": X}, timeout=timeout)["y"].shape == (4, 8)


def test_a_timeout_of_map_names_the_model(runtime: aspen_mp.Runtime) -> None:
    model = runtime.load(small_models.conv_chain(12, 48, 48))
    x = np.ones((1, 48, 48, 48), np.float32)
    with without_workers(runtime), pytest.raises(RequestTimeout, match="model 'chain': the request did not finish within 0 s"):
        list(model.map([x] * 4, timeout=0))
    model.unload()


def test_priorities_and_concurrency(mlp: aspen_mp.Model) -> None:
    with pytest.raises(RequestError, match=r"priority \[\] is unknown"):
        mlp.run(X, priority=[])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"concurrency must be an integer, at least 1, not 1\.5"):
        mlp.map([X], concurrency=1.5)  # type: ignore[arg-type]


def test_shapes_of_buffers(mlp: aspen_mp.Model) -> None:
    for prepare in (mlp.input_buffers, mlp.prepare):
        with pytest.raises(ValueError, match=r"a dimension of shapes\['x'\] must be at least 0, not -4"):
            prepare({"x": (-4, 16)})
        with pytest.raises(TypeError, match="shapes must be a dict"):
            prepare([(4, 16)])  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="cannot have shape"):
            prepare({"x": (1 << 63, 16)})
        with pytest.raises(ResourceLimitError, match=f"needs {1 << 67} bytes"):
            prepare({"x": (1 << 61, 16)})


# ---- what the client does not see to, the planner process does


def test_wrong_fields_are_answered(shared_runtime: aspen_mp.Runtime) -> None:
    session = shared_runtime._session
    for _ in range(300):  # more than may wait for their answers
        with pytest.raises(ProtocolError, match=r"malformed message: .*\$\[2\]"):
            session.control.call(lambda number: protocol.Resize(number, -1), protocol.Done)
    with pytest.raises(ProtocolError, match="malformed message"):
        session.control.call(lambda number: protocol.Load(number, "/x", "x" * 5000), protocol.Loaded)
    with pytest.raises(ProtocolError, match="malformed message"):
        session.control.call(lambda number: protocol.Unload(number, "m"), protocol.Done)  # type: ignore[arg-type]


# ---- how long a runtime lives


def _model(**options: Any) -> aspen_mp.Model:
    return aspen_mp.Runtime(workers=1, **options).load(MLP)


def _ended(pid: int) -> bool:
    deadline = time.monotonic() + WATCHDOG_S
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.005)
    return not os.path.exists(f"/proc/{pid}")


@pytest.mark.parametrize("retry", [False, True])
def test_a_model_keeps_its_runtime(retry: bool) -> None:
    model = _model(retry=retry)
    gc.collect()
    pid = int(model._link.session().welcome.pid)
    assert model.run(X)["y"].shape == (4, 8)
    gc.disable()  # no cycle of references: it ends at once
    try:
        del model
        assert not os.path.exists(f"/proc/{pid}")
    finally:
        gc.enable()


def test_a_model_keeps_a_connection(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with aspen_mp.Runtime(workers=1, name="kept") as runtime:
        model = aspen_mp.connect("kept").load(MLP)
        gc.collect()
        assert model.run(X)["y"].shape == (4, 8)
        del model
        gc.collect()
        deadline = time.monotonic() + WATCHDOG_S
        while len(runtime.status()["clients"]) > 1:
            assert time.monotonic() < deadline


def test_a_request_in_flight_keeps_its_runtime() -> None:
    model = _model()
    pid = int(model._link.session().welcome.pid)
    future = model.submit(X)
    del model
    assert future.result(WATCHDOG_S)["y"].shape == (4, 8)
    del future
    assert _ended(pid)
    model = _model()
    pid = int(model._link.session().welcome.pid)
    model.submit(X)
    del model  # nobody waits: the thread that ends the request ends the runtime
    assert _ended(pid)


def test_a_runtime_that_was_closed_is_closed() -> None:
    with aspen_mp.Runtime(workers=1) as runtime:
        model, pid = runtime.load(MLP), runtime.pid
    assert not os.path.exists(f"/proc/{pid}")
    with pytest.raises(aspen_mp.errors.RuntimeLost, match="closed"):
        model.run(X)


def test_an_unpickled_runtime_that_is_forgotten_takes_no_model_along(shared_runtime: aspen_mp.Runtime, mlp: aspen_mp.Model) -> None:
    again, model = pickle.loads(pickle.dumps((shared_runtime, mlp)))
    other = again.load(MLP)
    del again
    gc.collect()
    assert model.run(X)["y"].tobytes() == other.run(X)["y"].tobytes() == mlp.run(X)["y"].tobytes()
    model.unload()
    other.unload()
