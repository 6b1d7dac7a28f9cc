"""Starting, naming, connecting, loading, resizing, closing."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import threading
import time

import folders
import numpy as np
import onnx
import pytest
import small_models
from process_tools import wait_until, wait_until_idle

import aspen_mp
from aspen_mp.control.wire import protocol, run_directory
from aspen_mp.errors import (
    AspenError,
    ConfigError,
    ModelInvalidError,
    ModelParseError,
    ProtocolError,
    RequestError,
    ResourceLimitError,
    RuntimeLost,
)

X = np.ones((4, 16), np.float32)


@pytest.fixture
def own_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "aspen-mp"


def test_import_is_light():
    code = "import aspen_mp, sys; print(*[m for m in ('numpy', 'onnx', 'typer', 'rich', 'msgspec', 'socket') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip() == ""


def test_close_is_idempotent_and_final():
    runtime = aspen_mp.Runtime(workers=1)
    model = runtime.load(small_models.mlp())
    model.run({"x": X})
    runtime.close()
    runtime.close()
    assert runtime.closed
    for use in (lambda: model.run({"x": X}), lambda: model.submit({"x": X}), runtime.status, lambda: runtime.load(small_models.mlp())):
        with pytest.raises(RuntimeLost, match="closed"):
            use()
    model.unload()


def test_close_with_requests_in_flight():
    runtime = aspen_mp.Runtime(workers=1)
    model = runtime.load(small_models.conv_chain(24, 64, 64))
    x = {"x": np.ones((1, 64, 64, 64), np.float32)}
    model.run(x)
    futures = [model.submit(x) for _ in range(20)]
    runtime.close()
    assert all(isinstance(f.exception(60), RuntimeLost | None) for f in futures)
    assert isinstance(futures[-1].exception(60), RuntimeLost)


def test_forgotten_runtime_is_collected():
    runtime = aspen_mp.Runtime(workers=1)
    runtime.load(small_models.mlp()).submit({"x": X}).result(60)
    pid = runtime.pid
    del runtime
    gc.collect()
    assert not os.path.exists(f"/proc/{pid}")


def test_workers_and_status(runtime):
    workers = runtime.workers
    assert len(workers) == 2
    for worker in workers:
        assert worker["state"] == "running"
        assert os.sched_getaffinity(worker["pid"]) == {worker["cpu"]}
    status = runtime.status()
    assert status["runtime"]["pid"] == runtime.pid
    assert [c["pid"] for c in status["clients"]] == [os.getpid()]
    model = runtime.load(small_models.mlp(), name="named")
    model.run({"x": X})
    status = runtime.status()
    assert [(m["name"], m["state"], len(m["plans"])) for m in status["models"]] == [("named", "loaded", 1)]
    assert status["memory"]["arena"]["segments"] == 2
    model.unload()
    assert runtime.status()["models"] == []
    held = {"arena", "plan", "weights", "data"}  # until the worker of the last request has left it, after its answer
    wait_until(lambda: not held & runtime.status()["memory"].keys(), "an unloaded model keeps memory")


def test_explicit_cores():
    cpu = min(os.sched_getaffinity(0))
    with aspen_mp.Runtime(cores=[cpu]) as runtime:
        assert [w["cpu"] for w in runtime.workers] == [cpu]
    with pytest.raises(ResourceLimitError, match="CPU 4000 cannot be used"):
        aspen_mp.Runtime(cores=[4000])


def test_bad_arguments():
    with pytest.raises(ValueError, match="workers"):
        aspen_mp.Runtime(workers=0)
    with pytest.raises(ConfigError, match="nowhere"):
        aspen_mp.Runtime(profile="nowhere")
    with pytest.raises(ValueError, match="not a runtime name"):
        aspen_mp.Runtime(name="../x")
    with pytest.raises(ResourceLimitError, match="max_workers"):
        aspen_mp.Runtime(workers=3, max_workers=2)


def test_workers_account_for_their_time():
    """Kernels, scheduling, search and sleep are counted apart; nobody is busy for longer than there was time."""
    with aspen_mp.Runtime(workers=2) as runtime:
        model = runtime.load(small_models.mlp())
        begin, before = time.perf_counter_ns(), runtime.workers
        for _ in range(50):
            model.run({"x": X})
        after, wall = runtime.workers, time.perf_counter_ns() - begin
        total = dict.fromkeys(("kernel_ns", "schedule_ns", "search_ns", "sleep_ns"), 0)
        for old, new in zip(before, after, strict=True):
            spent = {kind: new[kind] - old[kind] for kind in total}
            assert min(spent.values()) >= 0
            assert spent["kernel_ns"] + spent["schedule_ns"] <= wall + wall // 100  # two clocks
            assert new["busy_s"] == pytest.approx((new["kernel_ns"] + new["schedule_ns"]) / 1e9)
            assert 0 <= new["overhead"] <= 1
            total = {kind: total[kind] + spent[kind] for kind in total}
        assert total["kernel_ns"] > 0
        assert total["schedule_ns"] > 0


def test_workers_join_and_leave_under_load(runtime):
    model = runtime.load(small_models.conv_chain(8, 32, 32))
    x = {"x": np.ones((1, 32, 32, 32), np.float32)}
    expected = model.run(x)["y"].tobytes()
    stop = threading.Event()
    bad: list[bytes] = []

    def work() -> None:
        while not stop.is_set():
            y = model.run(x)["y"].tobytes()
            if y != expected:
                bad.append(y)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(3):
            assert runtime.add_workers(2) == 4
            assert runtime.remove_workers(3) == 1
            assert runtime.scale(2) == 2
            model.run(x)
    finally:
        stop.set()
        thread.join()
    assert not bad
    with pytest.raises(RequestError, match="3 workers to remove, but there are 2"):
        runtime.remove_workers(3)
    with pytest.raises(ResourceLimitError, match="max_workers"):
        runtime.add_workers(200)
    assert runtime.scale(1) == 1
    assert model.run(x)["y"].tobytes() == expected


# ---- loading


def test_load_from_path_bytes_and_proto(runtime, tmp_path):
    proto = small_models.mlp()
    path = tmp_path / "mlp.onnx"
    onnx.save(proto, path)
    steps = []
    models = [
        runtime.load(str(path), progress=lambda *step: steps.append(step)),
        runtime.load(path),
        runtime.load(proto.SerializeToString()),
        runtime.load(proto),
    ]
    results = {model.run({"x": X})["y"].tobytes() for model in models}
    assert len(results) == 1
    assert {step for step, _, _ in steps} >= {"reading", "planning"}
    # the same file with the same options is one model, and so are the same bytes
    assert len(runtime.status()["models"]) == 2
    models[0].unload()
    assert models[1].run({"x": X})["y"].tobytes() in results


def test_file_that_changes_is_noticed(runtime, tmp_path):
    path = tmp_path / "mlp.onnx"
    onnx.save(small_models.mlp("n", seed=1), path)
    model = runtime.load(path)
    before = model.run({"x": X})["y"]
    onnx.save(small_models.mlp("n", seed=2), path)
    np.testing.assert_array_equal(model.run({"x": X})["y"], before)
    again = runtime.load(path)
    assert not np.array_equal(again.run({"x": X})["y"], before)


def test_input_shapes_are_planned_at_load(runtime):
    model = runtime.load(small_models.two_inputs(), input_shapes={"a": (7, 3)})
    assert len(runtime.status()["models"][0]["plans"]) == 1
    model.run({"a": np.ones((7, 3), np.float32), "b": np.ones(3, np.float32)})
    assert len(runtime.status()["models"][0]["plans"]) == 1
    with pytest.raises(RequestError, match="no input 'q'"):
        runtime.load(small_models.two_inputs(), input_shapes={"a": (7, 3), "q": (1,)})
    assert len(runtime.status()["models"]) == 1


def test_bad_models(runtime, tmp_path):
    with pytest.raises(FileNotFoundError):
        runtime.load(tmp_path / "nothing.onnx")
    with pytest.raises(ModelParseError, match="empty"):
        runtime.load(b"")
    with pytest.raises(ModelParseError):
        runtime.load(os.urandom(1000))
    with pytest.raises(ModelParseError):
        runtime.load(tmp_path)
    cut = small_models.mlp().SerializeToString()[:-100]
    with pytest.raises((ModelParseError, ModelInvalidError)):
        runtime.load(cut)
    with pytest.raises(TypeError, match="a model must be"):
        runtime.load(5)
    with pytest.raises(ValueError, match="precision"):
        runtime.load(small_models.mlp(), precision="f8")
    assert runtime.status()["models"] == []
    runtime.load(small_models.mlp()).run({"x": X})


# ---- named runtimes


def test_connect(own_directory):
    with aspen_mp.Runtime(workers=1, name="shared") as runtime:
        model = runtime.load(small_models.mlp())
        expected = model.run({"x": X})["y"]
        with aspen_mp.connect("shared") as other:
            assert other.pid == runtime.pid
            assert other.name == "shared"
            shared = other.load(small_models.mlp())
            np.testing.assert_array_equal(shared.run({"x": X})["y"], expected)
            assert [(m["clients"], len(m["plans"])) for m in runtime.status()["models"]] == [(2, 1)]
            assert len(runtime.status()["clients"]) == 2
        with pytest.raises(AspenError, match="running already"):
            aspen_mp.Runtime(workers=1, name="shared")
        np.testing.assert_array_equal(model.run({"x": X})["y"], expected)
    assert list(own_directory.iterdir()) == []
    with pytest.raises(AspenError, match="no runtime named 'shared'"):
        aspen_mp.connect("shared")


def test_stop_by_another_client(own_directory):
    with aspen_mp.Runtime(workers=1, name="s") as runtime:
        aspen_mp.connect("s").stop()
        runtime.wait()
        with pytest.raises(RuntimeLost):
            runtime.status()


def test_a_client_that_goes_leaves_nothing_behind(own_directory):
    code = """
import os, sys
sys.path.insert(0, sys.argv[1])
import folders
import numpy as np, aspen_mp, small_models
rt = aspen_mp.connect("c")
model = rt.load(small_models.conv_chain(24, 64, 64))
x = {"x": np.ones((1, 64, 64, 64), np.float32)}
model.run(x)
futures = [model.submit(x) for _ in range(50)]
os.kill(os.getpid(), 9)
"""
    with aspen_mp.Runtime(workers=1, name="c") as runtime:
        model = runtime.load(small_models.mlp())
        model.run({"x": X})
        before = runtime.status()["memory"]
        for _ in range(3):
            subprocess.run([sys.executable, "-c", code, folders.TESTS], check=False)
            model.run({"x": X})
        for _ in range(2000):
            status = runtime.status()
            if status["memory"] == before and len(status["clients"]) == 1:
                break
        assert status["memory"] == before
        assert len(status["models"]) == 1
        model.run({"x": X})


def test_uninvited_guests(own_directory):
    """Garbage, wrong versions and silence on the socket of a runtime: refused, and nobody else notices."""
    with aspen_mp.Runtime(workers=1, name="g") as runtime:
        model = runtime.load(small_models.mlp())
        good = protocol.Hello(protocol.VERSION, "0" * 16, "0.0.0")
        for data, reason in (
            (b"GET / HTTP/1.1\r\n\r\n", "not an aspen-mp frame"),
            (protocol.encode(good), "Use one build"),
            (protocol.encode(protocol.Status(1)), "before Hello"),
            (protocol.encode(protocol.Hello(99, "", "")), "Use one build"),
        ):
            with run_directory.connect("g") as sock:
                sock.sendall(data)
                receiver = protocol.client_receiver()
                messages = []
                while receiver.read(sock):
                    messages += [m for m, _ in receiver.messages()]
                assert [type(m) for m in messages] == [protocol.Failed]
                assert messages[0].error == "ProtocolError"
                assert reason in messages[0].text
        silent = [run_directory.connect("g") for _ in range(20)]
        silent[0].sendall(protocol.encode(good)[:5])
        silent[1].shutdown(socket.SHUT_WR)
        model.run({"x": X})
        assert len(runtime.status()["clients"]) == 1
        for sock in silent:
            sock.close()


def test_silence_is_ended(own_directory, monkeypatch):
    with aspen_mp.Runtime(workers=1, name="q"), run_directory.connect("q") as sock:
        sock.settimeout(60)
        sock.sendall(b"\0")
        receiver = protocol.client_receiver()
        messages = []
        while receiver.read(sock):
            messages += [m for m, _ in receiver.messages()]
        assert "no handshake" in messages[0].text


def test_others_models_and_memory_are_out_of_reach(own_directory):
    with aspen_mp.Runtime(workers=1, name="o") as runtime, aspen_mp.connect("o") as other:
        model = runtime.load(small_models.mlp())
        control = other._session.control
        binds = [[protocol.Bind("x", "float32", [4, 16], None)]]
        with pytest.raises(RequestError, match="not loaded"):
            control.call(lambda n: protocol.MakePlan(n, model.number, binds, []), protocol.Planned)
        with pytest.raises(RequestError, match="not loaded"):
            control.call(lambda n: protocol.Unload(n, model.number), protocol.Done)
        with pytest.raises(RequestError, match="does not exist"):
            control.call(lambda n: protocol.DropData(n, 1), protocol.Done)
        with pytest.raises(ResourceLimitError, match="shared memory"):
            control.call(lambda n: protocol.Data(n, 1 << 50), protocol.DataReady)
        assert model.run({"x": X})


def test_descriptors_that_a_message_does_not_want_are_closed(own_directory):
    with aspen_mp.Runtime(workers=1, name="d") as runtime:
        before = len(os.listdir(f"/proc/{runtime.pid}/fd"))
        null = os.open("/dev/null", os.O_RDONLY)
        for _ in range(10):
            with pytest.raises(RequestError, match="absolute path or one descriptor"):
                runtime._session.control.call(lambda n: protocol.Load(n, "/nowhere", ""), protocol.Loaded, fds=(null,))
            with pytest.raises(AspenError):
                runtime._session.control.call(lambda n: protocol.Load(n, "", ""), protocol.Loaded, fds=(null,))
            with pytest.raises(ModelParseError, match="nowhere"):
                runtime._session.control.call(lambda n: protocol.Load(n, "/nowhere", ""), protocol.Loaded)
        os.close(null)
        deadline = time.monotonic() + 20
        while len(os.listdir(f"/proc/{runtime.pid}/fd")) > before:  # of children that are being reaped
            assert time.monotonic() < deadline


def test_protocol_error_class():
    assert issubclass(ProtocolError, AspenError)


def test_unknown_instruction_set(monkeypatch):
    monkeypatch.setenv("ASPEN_MP_ISA", "sse1")
    with pytest.raises(AspenError, match="sse1"):
        aspen_mp.Runtime(workers=1)


def test_idle_runtime_uses_no_cpu(runtime):
    """Workers park and the planner process waits: none of them has a turn while nothing is asked."""
    model = runtime.load(small_models.mlp())
    model.submit({"x": X}).result(60)
    wait_until_idle([runtime.pid, *[w["pid"] for w in runtime.workers]])


@pytest.mark.parametrize(
    "before",
    [
        "for stream in (0, 1, 2): os.close(stream)",  # as daemons do
        "os.makedirs('gone'); os.chdir('gone'); os.rmdir('../gone'); sys.path.insert(0, '')",
        "os.environ['PYTHONWARNINGS'] = 'error'",
    ],
    ids=["closed streams", "removed working directory", "warnings are errors"],
)
def test_an_unusual_process_has_a_runtime(tmp_path, before):
    """Also with a planning child and what it folds: the square root of a negative variance is NaN, and no line on standard error."""
    model = tmp_path / "model.onnx"
    onnx.save(small_models.negative_variance(), model)
    code = f"""
import os, sys
import numpy as np
said = os.dup(1)
{before}
import aspen_mp
with aspen_mp.Runtime(workers=1) as runtime:
    y = runtime.load({str(model)!r}).run(np.ones((1, 2, 4, 4), np.float32))["y"]
os.write(said, repr(np.isnan(y).all(axis=(0, 2, 3)).tolist()).encode())
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[False, True]", "")
