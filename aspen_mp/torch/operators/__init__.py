"""Rules for ATen operators, a file for each family. Importing this package fills `registry.RULES`."""

from aspen_mp.torch.operators import (
    activations,
    attention,
    comparisons,
    convolutions,
    creation,
    elementwise,
    indexing,
    norms,
    products,
    recurrent,
    reductions,
    views,
)

__all__ = [
    "activations",
    "attention",
    "comparisons",
    "convolutions",
    "creation",
    "elementwise",
    "indexing",
    "norms",
    "products",
    "recurrent",
    "reductions",
    "views",
]
