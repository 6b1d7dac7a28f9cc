"""Networks of torchvision, timm, transformers and our own, small and with random weights, beside the same module in float64."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

import torch_checks

from aspen_mp.bench.torch.networks.all import NETWORKS, installed
from aspen_mp.bench.torch.networks.network import TorchNetwork


def test_the_list_is_long() -> None:
    assert len({network.family for network in NETWORKS.values()}) >= 60
    assert len(NETWORKS) >= 150


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_network(network: TorchNetwork) -> None:
    if not installed(network):
        pytest.skip(f"needs {network.package}: pip install aspen-mp[nets]")
    with torch_checks.fresh():
        torch_checks.agrees(network.module(), network.inputs())
