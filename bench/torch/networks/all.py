"""All networks, by name."""

from __future__ import annotations

import importlib.util

from aspen_mp.bench.torch.networks import own, timm, torchvision, transformers
from aspen_mp.bench.torch.networks.network import TorchNetwork

NETWORKS = {network.name: network for module in (torchvision, timm, transformers, own) for network in module.NETWORKS}


def installed(network: TorchNetwork) -> bool:
    """Return whether the network's package can be imported."""
    return importlib.util.find_spec(network.package) is not None
