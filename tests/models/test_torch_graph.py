"""The PyTorch form of a network, which the comparison with PyTorch runs, computes what the ONNX graph says."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

from aspen_mp.bench import models

torch = pytest.importorskip("torch", reason="PyTorch is an optional peer")

CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ("squeezenet1_1", "densenet121", "yolov3", "gpt2", "mobilenet_v2", "vit_b_16", "unet", "tcn")),
    *((name, {}) for name in ("efficientnet_b0", "convnext_tiny")),
    ("bert_base", {"norm": "decomposed"}),
    ("bert_base", {"attention": "sdpa"}),
    ("gpt2", {"symbolic": True}),
]


@pytest.mark.parametrize(("network", "options"), CASES)
def test_torch_graph_computes_the_same(network: str, options: dict[str, Any]) -> None:
    from aspen_mp.bench.peers import torch_graph

    model = models.build(network, **models.miniature(network), **options)
    feeds = models.inputs(model)
    want = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
    if options.get("symbolic"):
        with pytest.raises(NotImplementedError):
            torch_graph.convert(model)
        return
    with torch.inference_mode():
        got = torch_graph.convert(model)(*(torch.from_numpy(feeds[value.name]) for value in model.graph.input))
    for a, b in zip(want, got, strict=True):
        np.testing.assert_allclose(b.numpy(), a, rtol=0, atol=2e-5 * float(np.abs(a).max()))


def test_what_it_cannot_convert_is_named() -> None:
    from aspen_mp.bench.peers import torch_graph

    model = models.build("tcn", **models.miniature("tcn"))
    model.graph.node[0].op_type = "NonMaxSuppression"
    with pytest.raises(NotImplementedError, match="NonMaxSuppression"):
        torch_graph.convert(model)
