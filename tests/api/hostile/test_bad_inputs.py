"""Bad inputs given to a living runtime: each gets its error, names what it is about, and the same runtime goes on.

Where each kind of bad input is tried (paths below `tests`):

ModelParseError, ModelInvalidError, UnsupportedModelError, ExternalDataError
    `test_models` here, with the table of `helpers/models/bad_models.py`; the same through the planner alone in
    `unit/planner/frontends/test_frontend.py`
ResourceLimitError
    the same table; `test_a_model_that_needs_more_memory_than_there_is`, `test_full_shared_memory`, `test_a_small_dev_shm` here; a planning
    process without memory in `crash/kills/test_planning_children.py`
PlanError
    `test_damaged_plans_are_not_used` here; every field of plans in `unit/planner/plan/test_validate.py`, what kernels check of them in
    `test_validate_kernels.py` there, of plan files in `test_plan_file.py`, at random in `stress/fuzz/test_fuzz.py`
RequestError
    `test_requests` and `test_cancelling_another_s_request` here, `api/runtime/test_requests.py`
ProtocolError, or refused
    `test_hostile_frames.py` here, `unit/control/wire/test_protocol.py`; nonsense in shared memory in `test_hostile_memory.py`
"""

from __future__ import annotations

import mmap
import os
import resource
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import folders
import numpy as np
import onnx
import pytest
import small_models
from bad_models import BAD, N, constant, given, model, value
from guests import Guest
from slots import FIRST_SLOT, SLOT_BYTES

import aspen_mp
from aspen_mp.errors import RequestError, ResourceLimitError, UnsupportedModelError
from aspen_mp.shm.bindings import _channel

X = {"x": np.ones((4, 16), np.float32)}
WATCHDOG_S = 60.0
CANCEL_MASK, CANCEL = 160, 40
"""Where a client segment (`shm/protocol/layout.h`) has the bits of cancelled slots, and a slot the sequence to cancel."""


@pytest.fixture(scope="module")
def good(shared_runtime: aspen_mp.Runtime) -> Callable[[], None]:
    answered = shared_runtime.load(small_models.mlp())
    expected = answered.run(X)["y"].tobytes()

    def check() -> None:
        assert answered.run(X)["y"].tobytes() == expected

    return check


@pytest.fixture(autouse=True)
def unharmed(shared_runtime: aspen_mp.Runtime, good: Callable[[], None]) -> Iterator[None]:
    """After each bad input the runtime answers a good request, with the workers that it had, and has kept nothing."""
    pids = [w["pid"] for w in shared_runtime.workers]
    yield
    good()
    status = shared_runtime.status()
    assert [m["name"] for m in status["models"]] == ["mlp"]
    assert [w["pid"] for w in shared_runtime.workers] == pids
    assert status["recovery"]["worker_deaths"] == 0


def load_and_run(runtime: aspen_mp.Runtime, source: Any) -> None:
    loaded = runtime.load(source)
    try:
        loaded.run({i.name: np.zeros([d if isinstance(d, int) else 1 for d in i.shape or ()], i.dtype) for i in loaded.inputs})
    finally:
        loaded.unload()


@pytest.mark.parametrize("case", BAD)
def test_models(shared_runtime: aspen_mp.Runtime, tmp_path: Path, case: str) -> None:
    bad = BAD[case]
    with pytest.raises(bad.error) as caught:
        load_and_run(shared_runtime, given(bad, tmp_path))
    assert type(caught.value) is bad.error
    text = str(caught.value)
    assert not [name for name in ("model '", *bad.names) if name not in text], text


def test_a_dimension_still_unbound(shared_runtime: aspen_mp.Runtime) -> None:
    with pytest.raises((UnsupportedModelError, RequestError), match="'b'"):
        shared_runtime.load(small_models.two_inputs(), input_shapes={"a": (7, 3)}).run({"a": np.ones((7, 3), np.float32)})


# ------------------------------------------------------------------------------------------------------------------ limits


def test_a_model_that_needs_more_memory_than_there_is(shared_runtime: aspen_mp.Runtime) -> None:
    """Activations and results: the message says how much is needed, how much there is, and what to do."""
    huge = 3 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # four times the memory is refused before anything is planned
    nodes = [N("Expand", ["x", "s"], ["big"], name="spread"), N("Sin", ["big"], ["t"]), N("ReduceSum", ["t"], ["y"], keepdims=0)]
    inner = model(nodes, [constant("s", [huge // 4])], [value("x", [1])])
    outer = model([N("Expand", ["x", "s"], ["y"], name="spread")], [constant("s", [huge // 4])], [value("x", [1])])
    for proto in (inner, outer):
        with pytest.raises(ResourceLimitError, match=r"(needed|needs).*(limit|GiB)"):
            load_and_run(shared_runtime, proto.SerializeToString())


def test_full_shared_memory(shared_runtime: aspen_mp.Runtime, good: Callable[[], None]) -> None:
    """No segment can be had: typed, at once, and better again when there is room."""
    old = resource.prlimit(shared_runtime.pid, resource.RLIMIT_FSIZE)
    x = {"x": np.ones((1, 64, 64, 64), np.float32)}
    resource.prlimit(shared_runtime.pid, resource.RLIMIT_FSIZE, (1 << 20, old[1]))
    try:
        with pytest.raises(ResourceLimitError, match=r"not enough shared memory for the .* segment: .* needed.*shm-size"):
            shared_runtime.load(small_models.conv_chain(8, 64, 64)).run(x)
        good()
    finally:
        resource.prlimit(shared_runtime.pid, resource.RLIMIT_FSIZE, old)
    loaded = shared_runtime.load(small_models.conv_chain(8, 64, 64))
    loaded.run(x)
    loaded.unload()


SMALL_SHM = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, MS_PRIVATE, MS_REC = 0x20000, 1 << 18, 1 << 14
if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_PRIVATE | MS_REC, None):
    print("no name space of its own"); sys.exit(0)
if libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=256k"):
    print("no name space of its own"); sys.exit(0)
sys.path[:0] = sys.argv[1:]
import folders
import numpy as np, aspen_mp, small_models
with aspen_mp.Runtime(workers=1) as runtime:
    model = runtime.load(small_models.mlp("n", width=4096))
    y = model.run({"x": np.ones((500, 16), np.float32)})["y"]
    assert y.shape == (500, 8) and np.isfinite(y).all()
    print("fine", os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize)
"""


def test_a_small_dev_shm() -> None:
    """As in a container with Docker's 64 MB, smaller still: memory that no mount limits takes its place."""
    done = subprocess.run([sys.executable, "-c", SMALL_SHM, folders.TESTS], capture_output=True, text=True, timeout=WATCHDOG_S, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() in (["fine", "262144"], ["no", "name", "space", "of", "its", "own"]), done.stdout


# ------------------------------------------------------------------------------------------------------------------- plans


def test_damaged_plans_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan in the cache that is cut short, altered, of another build or of another model is made again."""
    monkeypatch.setenv("ASPEN_MP_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "mlp.onnx"
    onnx.save(small_models.mlp(), path)
    os.utime(path, (1e9, 1e9))

    def run() -> bytes:
        with aspen_mp.Runtime(workers=1) as runtime:
            return bytes(runtime.load(path).run(X)["y"].tobytes())

    def files() -> list[Path]:
        return [p for p in (tmp_path / "cache").rglob("*") if p.is_file() and p.read_bytes()[:8] == b"ASPENPLN"]

    expected = run()
    deadline = time.monotonic() + WATCHDOG_S
    while not files():
        assert time.monotonic() < deadline, "the plan was not written to the cache"
        time.sleep(0.01)
    plan = files()[0]
    whole = plan.read_bytes()
    for damaged in (b"", whole[:40], whole[:-1], whole[:200] + b"\xff" * 8 + whole[208:], b"X" + whole[1:], whole[:8] + b"\2" + whole[9:]):
        plan.write_bytes(damaged)
        assert run() == expected


# ---------------------------------------------------------------------------------------------------------------- requests


F32, INTS = np.ones((2, 3), np.float32), onnx.TensorProto.INT64
OPEN: dict[str, tuple[onnx.NodeProto, dict[str, np.ndarray]]] = {
    "inner extents differ": (N("MatMul", ["x", "z"], ["y"]), {"x": F32, "z": F32}),
    "no extent is 1": (N("Add", ["x", "z"], ["y"]), {"x": F32, "z": np.ones(2, np.float32)}),
    "other rows beside each other": (N("Concat", ["x", "z"], ["y"], axis=1), {"x": F32, "z": np.ones((3, 3), np.float32)}),
    "channels": (N("Conv", ["x", "z"], ["y"]), {"x": np.ones((1, 4, 8, 8), np.float32), "z": np.ones((4, 3, 3, 3), np.float32)}),
    "another number of elements": (N("Reshape", ["x", "s"], ["y"]), {"x": F32, "s": np.array([4, 2])}),
    "no axis": (N("Squeeze", ["x", "s"], ["y"]), {"x": F32, "s": np.array([5])}),
    "too few repeats": (N("Tile", ["x", "s"], ["y"]), {"x": F32, "s": np.array([5])}),
    "parts that are no whole": (N("Split", ["x", "s"], ["y", "more"]), {"x": F32, "s": np.array([0, 0])}),
    "negative extent": (N("ConstantOfShape", ["s"], ["y"]), {"s": np.array([-5])}),
    "steps of nothing": (N("Range", ["s", "t", "s"], ["y"]), {"s": np.array(0), "t": np.array(3)}),
}
"""Nodes that take inputs of any shape, and what they refuse: shapes, and values that decide shapes."""


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("case", OPEN)
def test_what_only_a_request_shows(shared_runtime: aspen_mp.Runtime, case: str, behind: bool) -> None:
    """The model is valid, and the error is the request's, however it is asked. `behind`: the node that refuses comes after others."""
    node, feeds = OPEN[case]
    inner, first = onnx.NodeProto.FromString(node.SerializeToString()), node.input[0]
    if behind:
        inner.input[:] = ["r" if name == first else name for name in node.input]
    kinds = {name: INTS if array.dtype == np.int64 else onnx.TensorProto.FLOAT for name, array in feeds.items()}
    inputs = [value(name, [None] * array.ndim, kinds[name]) for name, array in feeds.items()]
    output = value("y", None, INTS if node.op_type == "Range" else onnx.TensorProto.FLOAT)
    nodes = [N("Neg", [first], ["n"]), N("Neg", ["n"], ["r"])] if behind else []
    loaded = shared_runtime.load(model([*nodes, inner], inputs=inputs, outputs=[output]), name="open")
    asking: list[Callable[[], Any]] = [lambda: loaded.run(feeds), lambda: loaded.submit(feeds).result(), lambda: list(loaded.map([feeds]))]
    for ask in asking:
        with pytest.raises(RequestError, match=rf"model 'open'.*{node.op_type}") as caught:
            ask()
        assert type(caught.value) is RequestError
    loaded.unload()


def test_requests(shared_runtime: aspen_mp.Runtime) -> None:
    """What does not fit the model, and what is nobody's or another's to say. The connection survives all of it."""
    loaded = shared_runtime.load(small_models.mlp(seed=3), name="target")
    x = X["x"]
    bad: dict[str, dict[str, Any]] = {
        "dtype": {"x": x.astype(np.float64)},
        "shape": {"x": x[:3]},
        "rank": {"x": x[0]},
        "objects": {"x": x.astype(object)},
        "strings": {"x": np.full((4, 16), "a")},
        "structured": {"x": np.zeros((4, 16), [("a", "f4")])},
        "dates": {"x": np.zeros((4, 16), "M8[s]")},
        "ragged": {"x": [[1.0], [1.0, 2.0]]},
        "missing": {},
        "surplus": {"x": x, "z": x},
        "no name": {1: x},  # type: ignore[dict-item]
    }
    for case, feeds in bad.items():
        for use in (loaded.run, loaded.submit):
            with pytest.raises(RequestError, match="model 'target'") as caught:
                use(feeds)
            assert type(caught.value) is RequestError, case
    strided = np.asfortranarray(np.repeat(x, 2, axis=1))[:, ::2]
    np.testing.assert_array_equal(loaded.run({"x": strided})["y"], loaded.run(X)["y"])
    channel = shared_runtime._session.channel
    for ticket in (-1, 1 << 20, (1 << 63) - 1):
        with pytest.raises((RequestError, ValueError, OverflowError)):
            channel.state(ticket)
    loaded.unload()
    with pytest.raises(RequestError, match="unloaded"):
        loaded.run(X)


def test_cancelling_another_s_request(shared_runtime: aspen_mp.Runtime) -> None:
    """A client's cancellations reach its own slots alone: another's request with the same slot and sequence runs on."""
    chain = shared_runtime.load(small_models.conv_chain(12, 48, 48))
    x = {"x": np.ones((1, 48, 48, 48), np.float32)}
    expected = chain.run(x)["y"].tobytes()
    with Guest(shared_runtime._session.welcome.address) as other:
        own, bell = (mmap.mmap(fd, os.fstat(fd).st_size) for fd in other.fds[:2])
        channel = _channel.ClientChannel(own, bell)
        futures = [chain.submit(x) for _ in range(8)]
        for _ in range(20):
            for slot in range(256):
                struct.pack_into("<I", own, FIRST_SLOT + slot * SLOT_BYTES + CANCEL, slot % 8 + 1)  # the sequence that it means
                own[CANCEL_MASK + slot // 8] = 0xFF
            channel.ring()
        assert [f.result(WATCHDOG_S)["y"].tobytes() for f in futures] == [expected] * 8
        del channel
    chain.unload()
