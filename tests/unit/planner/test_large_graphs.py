"""Graphs of very many nodes: what is worked out once for steps that are alike, and what takes the place of what would grow by the square.
None of it changes a plan but where it is said."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from plan_requests import plan_request

from aspen_mp.bench import models
from aspen_mp.planner import api, build
from aspen_mp.planner.cost import tile_cost
from aspen_mp.planner.frontends.binding import inference
from aspen_mp.planner.job.options import AUTOMATIC
from aspen_mp.planner.layout import alike
from aspen_mp.planner.layout.storage import ARENA, Buffer, Storage
from aspen_mp.planner.layout.strides import Run
from aspen_mp.planner.ops import verify
from aspen_mp.planner.plan import memory, plan_file, validate
from aspen_mp.planner.plan.memory import MARGIN, Tenant, assign_offsets
from aspen_mp.planner.tiling import edges, policy, search
from aspen_mp.shm.errors import ModelInvalidError, ResourceLimitError


@pytest.mark.parametrize("network", ["resnet18", "densenet121", "squeezenet1_1", "bert_base", "gpt2", "smollm2_135m", "unet", "tcn"])
def test_steps_that_are_alike_change_no_plan(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.build(network, **models.miniature(network))
    bindings = [{name: api.Binding(x.dtype, x.shape, None) for name, x in models.inputs(model).items()}]

    def planned() -> bytes:
        plan = api.plan_stage(model, bindings, workers=2, request=plan_request(planning=AUTOMATIC)).plan
        assert plan is not None
        return plan_file.dump(plan)

    shared = planned()

    def each(storage: Storage) -> list[int]:
        return list(range(len(storage.steps)))

    for module in (alike, build, policy, search):
        monkeypatch.setattr(module, "kinds", each)
    assert planned() == shared


@pytest.mark.parametrize("seed", range(12))
def test_places_found_in_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No two buffers that live at the same time share a byte, and equal ones that follow each other take the same memory."""
    rng = random.Random(seed)
    print("seed", seed)
    monkeypatch.setattr(memory, "MANY_BUFFERS", 0)
    lives = []
    for first in range(rng.randrange(1, 120)):
        sizes = (rng.choice([0, 1, 64, 640, rng.randrange(1, 5000)]) for _ in range(rng.randrange(3)))
        lives += [
            Tenant(Buffer(ARENA, size, "b"), [first], [first + rng.randrange(rng.choice([2, 40])) for _ in range(rng.randrange(3))])
            for size in sizes
        ]
    total = assign_offsets(lives)
    for k, a in enumerate(lives):
        assert a.buffer.offset >= 0
        assert a.end <= total
        for b in lives[:k]:
            if a.buffer.nbytes and b.buffer.nbytes and a.first <= b.last + MARGIN and b.first <= a.last + MARGIN:
                assert a.end <= b.buffer.offset or b.end <= a.buffer.offset
    chain = [Tenant(Buffer(ARENA, 4096, "b"), [k], [k + 1]) for k in range(100)]
    assert assign_offsets(chain) == (2 + MARGIN) * 4096


def chain(nodes: int) -> bytes:
    made = [helper.make_node("Relu", [f"t{k}"], [f"t{k + 1}"]) for k in range(nodes)]
    made = [helper.make_node("Sigmoid" if k % 2 else "Tanh", list(n.input), list(n.output)) for k, n in enumerate(made)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 64]) for name in ("t0", f"t{nodes}")]
    graph = helper.make_graph(made, "chain", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def test_plan_of_many_buffers_and_tiles_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ways of very large graphs, on a small one; the validator goes by the exact sets all the same."""
    monkeypatch.setattr(memory, "MANY_BUFFERS", 16)
    monkeypatch.setattr(memory, "EXACT_TILES", 16)
    bindings = [{"t0": api.Binding(np.dtype(np.float32), (1, 64), None)}]
    plan = api.plan_stage(chain(300), bindings, workers=2).plan
    assert plan is not None
    assert plan.activation_bytes <= 8 * 256
    validate.validate(plan.segment())


def repeating(seed: int, times: int) -> bytes:
    """A drawn layer, so many times."""
    rng = random.Random(seed)
    layer = [(rng.choice(["Add", "Mul", "Tanh", "Transpose", "MatMul", "Softmax"]), rng.randrange(1, 4)) for _ in range(12)]
    nodes, known = [], ["x"]
    for op, back in layer * times:
        two = [known[-1], known[-min(back, len(known))]]
        inputs = two if op in ("Add", "Mul") else [known[-1], "w"] if op == "MatMul" else [known[-1]]
        nodes.append(helper.make_node(op, inputs, [f"t{len(nodes)}"]))
        known.append(f"t{len(nodes) - 1}")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [16, 16]) for name in ("x", known[-1])]
    weights = helper.make_tensor("w", TensorProto.FLOAT, [16, 16], np.ones(256, np.float32))
    graph = helper.make_graph(nodes, "repeating", ends[:1], ends[1:], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


@pytest.mark.parametrize("seed", range(4))
def test_what_repeats_is_worked_out_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a layer is there: what takes long of a node is done for one of those that are alike."""
    print("seed", seed)
    counts: Counter[str] = Counter()

    def counted(where: Any, name: str) -> None:
        function = getattr(where, name)

        def call(*args: Any, **how: Any) -> Any:
            counts[name] += 1
            return function(*args, **how)

        monkeypatch.setattr(where, name, call)

    for where, name in (
        *((inference.shape_inference, "infer_node_outputs"), (verify, "fits"), (edges, "_connect"), (build._Writer, "_forms")),
        *((tile_cost, "tile_costs"), (build, "kernel_params"), (validate, "_check_call")),
    ):
        counted(where, name)

    def work(times: int) -> Counter[str]:
        counts.clear()
        plan = api.plan_stage(repeating(seed, times), [{"x": api.Binding(np.dtype(np.float32), (16, 16), None)}], workers=2).plan
        assert plan is not None
        validate.validate(plan.segment())
        return Counter(counts)

    few, many = work(4), work(24)
    assert set(few) == set(many)
    assert all(many[name] <= few[name] + 4 for name in many), (few, many)


@pytest.mark.parametrize("seed", range(8))
def test_accesses_near_a_run(seed: int) -> None:
    """What the validator finds near a run is what a look at all accesses finds."""
    rng = random.Random(seed)
    print("seed", seed)
    live = validate._Live()
    kept: list[tuple[int, Run]] = []
    for op in range(200):
        low, length = rng.randrange(4000), rng.choice([1, 4, 64, rng.randrange(1, 3000)])
        run = Run(low, low + length - 1, ((length, 1),)) if rng.random() < 0.7 else Run(low, low + 2 * length, ((length, 2), (1, 1)))
        found = sorted(live.near(run), key=lambda one: one[0])
        assert found == [(k, old) for k, old in kept if old.low <= run.high and old.high >= run.low]
        if rng.random() < 0.5:
            live.overwritten(run)
            inside = [old for _, old in kept if (run.low <= old.low and old.high <= run.high if run.gapless else old == run)]
            kept = [(k, old) for k, old in kept if old not in inside]
        live.add(op, run)
        kept.append((op, run))


def doubling(depth: int, last: str) -> bytes:
    """A function that calls another twice, which calls another twice …"""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    names = [*(f"F{k}" for k in range(depth)), last]
    functions = []
    for name, inner in pairwise(names):
        domain = "f" if inner.startswith("F") else ""
        calls = [helper.make_node(inner, [a], [b], domain=domain) for a, b in (("x", "m"), ("m", "y"))]
        functions.append(helper.make_function("f", name, ["x"], ["y"], calls, opsets))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("F0", ["x"], ["y"], "start", domain="f")], "doubling", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=8).SerializeToString()


@pytest.mark.parametrize("depth", [18, 40, 64])
def test_functions_that_become_too_many_nodes(depth: int) -> None:
    with pytest.raises(ResourceLimitError, match=r"'start' \(F0\).*more than 200000 nodes"):
        api.load(doubling(depth, "Relu"))


@pytest.mark.parametrize("depth", [3, 1])
def test_functions_in_a_circle(depth: int) -> None:
    with pytest.raises(ModelInvalidError, match=r"functions of a model must not call themselves: f\.F0 → .*f\.F0"):
        api.load(doubling(depth, "F0"))


def test_functions_too_deep() -> None:
    with pytest.raises(ModelInvalidError, match=r"'start' \(F0\).*in a circle, or more than 64 deep"):
        api.load(doubling(90, "Relu"))


def test_functions_that_become_few_nodes() -> None:
    assert api.load(doubling(8, "Relu")).signature.outputs[0].shape == (4,)
