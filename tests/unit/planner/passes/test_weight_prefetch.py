"""Which products are told that their weights come from memory."""

from __future__ import annotations

import numpy as np
import pytest
from net_tools import Net, lowered

from aspen_mp.planner.passes import weight_prefetch


@pytest.mark.parametrize(("cached", "streamed"), [(3 * 4096, True), (4 * 4096, False)])
def test_weights_that_no_cache_keeps(monkeypatch: pytest.MonkeyPatch, cached: float, streamed: bool) -> None:
    """4 KiB of weights each; the second product's are counted once, the last one's are no constant."""
    monkeypatch.setattr(weight_prefetch, "cached_weights", lambda: cached)
    net = Net(x=(2, 32), y=(32, 32))
    w, v, u, t = (net.weight(32, 32) for _ in range(4))
    out = "x"
    for weight in (w, v, u, t, v, "y"):
        out = net("Tanh", net("MatMul", out, weight))
    graph = lowered(net.model(out), {"x": np.zeros((2, 32), np.float32), "y": np.zeros((32, 32), np.float32)})
    products = [node for node in graph.nodes if node.op == "GEMM"]
    assert [node.attrs["packed_b"] for node in products] == [True] * 5 + [False]
    assert [node.attrs.get("streamed", False) for node in products] == [streamed] * 5 + [False]
