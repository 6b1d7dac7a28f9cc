"""Networks whose products round their factors to bf16: near onnxruntime's results in f32, in any legal order, with the same bits for any
tiling. On every instruction set: without an instruction for pairs the kernels are there, too."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_runner import KernelRunner, WeightStore
from plan_requests import plan_request
from test_plans_agree import RUNS, planned

from aspen_mp.bench import models
from aspen_mp.bench.agreement import digest_of, error_of, reference

NEAR = 5e-2
"""Of the largest output: factors have 8 bits of mantissa."""
NETWORKS = ["resnet50", "vgg11_bn", "densenet121", "mobilenet_v2", "inception_v3", "unet", "bert_base", "gpt2", "smollm2_135m", "vit_b_16"]
BY_AMX = ["resnet50", "bert_base"]
"""Those whose sums have the order of AMX's instructions, too, which its twin computes slowly."""


@pytest.mark.parametrize(("name", "amx"), [*((name, False) for name in NETWORKS), *((name, True) for name in BY_AMX)])
def test_network(name: str, amx: bool) -> None:
    model = models.build(name, batch=2, seq=37, **models.miniature(name))
    feeds, data, store = models.inputs(model), model.SerializeToString(), WeightStore()
    expected = reference(data, feeds)
    digests: dict[str, str] = {}
    runners: dict[int, KernelRunner] = {}
    for seed, (workers, order, isa) in enumerate(RUNS):
        if workers not in runners:
            stage = planned(data, feeds, workers, plan_request(bf16=True, amx=amx))
            assert {"BGEMM", "BCONV"} & {row.kernel for row in stage.plan.info}
            runners[workers] = KernelRunner(stage.plan, store)
        found = dict(zip((info.name for info in runners[workers].plan.outputs), runners[workers].run(feeds, order, seed, isa), strict=True))
        outputs = [found[value.name] for value in model.graph.output]
        assert 1e-5 < error_of(outputs, expected) <= NEAR, f"planned for {workers}, {order}, {isa}"
        digest = digest_of(outputs)
        assert digest == digests.setdefault(isa, digest), f"other bits when planned for {workers}, {order}, {isa}"


def test_exact_and_rounded_weights_lie_beside_each_other() -> None:
    """Plans of one model in both precisions share a store of weights, and do not take each other's."""
    model = models.build("bert_base", batch=1, seq=9, **models.miniature("bert_base"))
    feeds, data, store = models.inputs(model), model.SerializeToString(), WeightStore()
    expected = reference(data, feeds)
    for bf16, least, most in ((False, 0.0, 1e-4), (True, 1e-5, NEAR), (False, 0.0, 1e-4)):
        plan = planned(data, feeds, 1, plan_request(bf16=bf16)).plan
        found = dict(zip((info.name for info in plan.outputs), KernelRunner(plan, store).run(feeds, "fifo", 0), strict=True))
        assert least <= error_of([np.asarray(found[v.name]) for v in model.graph.output], expected) <= most
