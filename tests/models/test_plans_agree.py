"""Plans of every network, run tile by tile with the real kernels: onnxruntime's results in any legal order, and the same bits for any
tiling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from kernel_runner import KernelRunner, WeightStore

from aspen_mp.bench import models
from aspen_mp.bench.agreement import LIMIT, digest_of, error_of, reference
from aspen_mp.planner.api import PLAIN, Binding, PlanRequest, plan_stage
from aspen_mp.workers import _kernels

Array = np.ndarray[Any, np.dtype[Any]]
ISAS = _kernels.isas()
# (workers that the plan is for, order of execution, instruction set)
RUNS = [(1, "fifo", ISAS[0]), (2, "lifo", ISAS[0]), (4, "rank", ISAS[0]), *((2, "random", isa) for isa in ISAS)]


def planned(data: bytes, feeds: Mapping[str, Array], workers: int, request: PlanRequest = PLAIN) -> Any:
    bindings = [{name: Binding(value.dtype, value.shape, None) for name, value in feeds.items()}]
    stage = plan_stage(data, bindings, workers=workers, request=request)
    assert stage.plan is not None
    assert not stage.more
    return stage


def check(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> None:
    data = model.SerializeToString()
    expected = reference(data, feeds)
    digests: dict[str, str] = {}
    runners: dict[int, KernelRunner] = {}
    store = WeightStore()
    for seed, (workers, order, isa) in enumerate(RUNS):
        if workers not in runners:
            stage = planned(data, feeds, workers)
            assert not stage.opaque, "every op of these networks has kernels"
            runners[workers] = KernelRunner(stage.plan, store)
        runner = runners[workers]
        found = dict(zip((info.name for info in runner.plan.outputs), runner.run(feeds, order, seed, isa), strict=True))
        outputs = [found[value.name] for value in model.graph.output]
        assert error_of(outputs, expected) <= LIMIT, f"{model.graph.name}, planned for {workers}, {order}, {isa}"
        digest = digest_of(outputs)
        assert digest == digests.setdefault(isa, digest), f"{model.graph.name}: other bits when planned for {workers}, {order}, {isa}"


@pytest.mark.parametrize("name", models.names(extra=True))
def test_network(name: str) -> None:
    model = models.build(name, batch=2, seq=37, **models.miniature(name))
    check(model, models.inputs(model))


SPELLINGS: list[tuple[str, dict[str, Any]]] = [
    ("resnet50", {"bn": "fold", "pool": "mean"}),
    ("resnet18", {"opset": 13, "seed": 3}),
    ("densenet121", {"bn": "fold", "opset": 21}),
    ("inception_v3", {"bn": "fold", "aux": True, "image": 299}),
    ("yolov3", {"decode": True, "classes": 5}),
    ("mobilenet_v2", {"image": (75, 93), "bn": "fold"}),
    ("unet", {"image": (48, 80), "depth": 3}),
    ("unet", {"transposed": True}),
    ("aspen32", {"layers": 4, "channels": 24, "image": (33, 17), "relu": False}),
    ("bert_base", {"attention": "sdpa"}),
    ("bert_base", {"norm": "decomposed", "gelu": "tanh", "opset": 14}),
    ("bert_base", {"gelu": "op", "opset": 20, "pooler": False}),
    ("gpt2", {"attention": "sdpa", "head": False}),
    ("gpt2", {"norm": "decomposed", "opset": 18}),
    ("gpt2", {"gelu": "op", "opset": 22}),
    ("tcn", {"levels": 8, "kernel": 5, "features": 3}),
]


@pytest.mark.parametrize(("name", "options"), SPELLINGS)
def test_spelling(name: str, options: dict[str, Any]) -> None:
    model = models.build(name, batch=2, seq=21, **{**models.miniature(name), **options})
    check(model, models.inputs(model))


@pytest.mark.parametrize("name", ["resnet18", "yolov3", "bert_base", "gpt2", "smollm2_135m", "vit_b_16", "tcn"])
@pytest.mark.parametrize(("batch", "seq"), [(1, 5), (4, 33)])
def test_symbolic_dimensions(name: str, batch: int, seq: int) -> None:
    """One model with open batch and sequence, bound to different sizes."""
    model = models.build(name, symbolic=True, **models.miniature(name))
    check(model, models.inputs(model, batch=batch, seq=seq))
