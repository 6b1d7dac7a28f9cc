"""A planning child plans one size of a model after the other: what it keeps changes no plan, and arenas are reserved meanwhile."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import folders
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from aspen_mp.bench import models
from aspen_mp.control.memory import arenas_ahead
from aspen_mp.control.memory.arenas_ahead import Ahead
from aspen_mp.planner import api, stages
from aspen_mp.planner.build import PlanOptions
from aspen_mp.planner.passes import pipeline
from aspen_mp.planner.plan.plan import Plan
from aspen_mp.shm.errors import ResourceLimitError
from aspen_mp.shm.segments import Segment

SIZES = [(96, 128), (64, 64), (160, 96), (128, 96)]

FRESH = """
import sys
sys.path.insert(0, sys.argv[1])
import folders
import test_planning_of_sizes as here
h, w = map(int, sys.argv[3:])
print(here.digest(here.plan_of(here.api.load(sys.argv[2]), here.stages.Derived(), h, w)))
"""


def plan_of(model: api.OnnxModel, derived: stages.Derived, height: int, width: int, options: PlanOptions | None = None) -> Plan:
    (image,) = model.signature.inputs
    bound = {image.name: api.Binding(np.dtype(np.float32), (1, 3, height, width))}
    plan = api.plan_stage(model, [bound], workers=2, build=options, derived=derived).plan
    assert plan is not None
    return plan


def digest(plan: Plan) -> str:
    """Of all that is written: the plan, and the weights that it needs."""
    found = hashlib.sha256(plan.segment())
    for item in plan.weights:
        packed = bytearray(item.nbytes)
        item.write(memoryview(packed))
        found.update(item.key.encode())
        found.update(packed)
    return found.hexdigest()


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sizes") / "detector.onnx"
    onnx.save(models.build("text_detector", sides="open"), path)
    return path


def test_plans_do_not_depend_on_the_sizes_before(detector: Path) -> None:
    model, derived = api.load(str(detector)), stages.Derived()
    found = {size: digest(plan_of(model, derived, *size)) for size in SIZES}
    for size in reversed(SIZES):
        assert digest(plan_of(model, derived, *size)) == found[size]
    height, width = SIZES[-1]
    command = [sys.executable, "-c", FRESH, folders.TESTS, str(detector), str(height), str(width)]
    fresh = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    assert fresh == found[SIZES[-1]]


def test_weights_are_looked_at_once_for_all_sizes(detector: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = list[tuple[int, ...]]()
    plain = pipeline.accuracy.layer_of
    monkeypatch.setattr(pipeline.accuracy, "layer_of", lambda w: (looked.append(w.shape), plain(w))[1])
    model, derived = api.load(str(detector)), stages.Derived()
    for size in SIZES:
        plan_of(model, derived, *size)
    once = len(looked)
    assert once
    for size in reversed(SIZES):
        plan_of(model, derived, *size)
    assert len(looked) == once


def test_the_arena_is_about_as_large_as_said_before(detector: Path) -> None:
    model, derived = api.load(str(detector)), stages.Derived()
    for size in SIZES:
        said = list[int]()
        plan = plan_of(model, derived, *size, PlanOptions(sized=said.append))
        (least,) = said
        assert 0.9 < least / plan.arena_layout()["arena_bytes"] < 1.1


def of_a_branch(value: float, *, node: bool) -> onnx.GraphProto:
    """x w, with a weight that has the same name whatever its value."""
    w = numpy_helper.from_array(np.full((64, 64), value, np.float32), "w")
    nodes = [helper.make_node("Constant", [], ["w"], value=w)] if node else []
    nodes.append(helper.make_node("MatMul", ["x", "w"], ["o"]))
    out = helper.make_tensor_value_info("o", TensorProto.FLOAT, ["n", 64])
    return helper.make_graph(nodes, "branch", [], [out], [] if node else [w])


@pytest.mark.parametrize("node", [False, True])
def test_weights_of_branches_that_sizes_choose_are_told_apart(node: bool) -> None:
    """What has been packed is found by its key when another size is planned."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"], end=1),
        helper.make_node("Greater", ["shape", "four"], ["many"]),
        helper.make_node("If", ["many"], ["y"], then_branch=of_a_branch(1.0, node=node), else_branch=of_a_branch(2.0, node=node)),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 64]) for name in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(np.array([4], np.int64), "four")])
    model = api.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    derived, packed = stages.Derived(), dict[str, bytes]()
    for rows in (3, 8, 4, 5):
        bound = {"x": api.Binding(np.dtype(np.float32), (rows, 64))}
        plan = api.plan_stage(model, [bound], workers=2, derived=derived).plan
        assert plan is not None
        for item in plan.weights:
            written = bytearray(item.nbytes)
            item.write(memoryview(written))
            assert packed.setdefault(item.key, bytes(written)) == written
    assert len(packed) == 2


# ---- arenas


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_an_arena_made_ahead_is_taken_once() -> None:
    before, one = descriptors(), Ahead()
    one.begin(100_000)
    made = one.take(90_000)
    assert made is not None
    assert made.nbytes >= 100_000
    assert bytes(made.buf[64:]) == bytes(made.nbytes - 64)
    assert one.take(1) is None
    made.close()
    assert descriptors() == before


def test_an_arena_too_small_or_not_wanted_goes() -> None:
    before, one = descriptors(), Ahead()
    one.begin(8192)
    assert one.take(1 << 20) is None
    one.begin(8192)
    one.begin(1 << 20)
    one.close()
    one.close()
    assert descriptors() == before


def test_an_arena_for_which_there_is_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who wants it finds that out by making it."""

    def refuse(role: str, nbytes: int) -> Segment:
        raise ResourceLimitError("none left")

    monkeypatch.setattr(arenas_ahead.Segment, "create", refuse)
    one = Ahead()
    one.begin(8192)
    assert one.take(1) is None
