"""Outputs of a network, as arrays: in its own precision, and of the same module in float64."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from aspen_mp.bench.torch.networks.network import Inputs, call


def arrays(outputs: Any) -> list[NDArray[Any]]:
    """Return every tensor among outputs, in the order in which PyTorch counts them, as arrays; bfloat16 becomes float32."""
    leaves = torch.utils._pytree.tree_leaves(outputs)
    return [_array(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    tensor = tensor.detach()
    return np.array((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy())


def exact(module: torch.nn.Module, inputs: Inputs) -> list[NDArray[Any]]:
    """Return what a copy of the module says in float64."""
    with torch.no_grad():
        return arrays(call(copy.deepcopy(module).double(), _doubled(inputs)))


def _doubled(inputs: Inputs) -> Inputs:
    if isinstance(inputs, Mapping):
        return {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in inputs.items()}
    return [tensor.double() if tensor.is_floating_point() else tensor for tensor in inputs]


def main() -> None:
    """Write what a network says, `reference.npz` and in float64 `exact.npz`. Arguments: its name, its size, a folder."""
    name, size, folder = sys.argv[1:]
    from aspen_mp.bench.torch.networks.all import NETWORKS

    module, inputs = NETWORKS[name].module(size), NETWORKS[name].inputs(size)
    with torch.no_grad():
        np.savez(Path(folder) / "reference.npz", *arrays(call(module, inputs)))
    np.savez(Path(folder) / "exact.npz", *exact(module, inputs))


if __name__ == "__main__":
    main()
