"""A network as PyTorch code with random weights, in two sizes, and its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

Size = Literal["small", "full"]
Inputs = Sequence[torch.Tensor] | Mapping[str, torch.Tensor]
Make = Callable[[Size], torch.nn.Module]
Draw = Callable[[Size], Inputs]

SEED = 48


@dataclass(frozen=True, slots=True)
class TorchNetwork:
    """A network. `package`: what must be installed to build it. `family`: what its variants have in common. `make`: builds the module,
    `small` for a test of seconds or `full` as published. `draw`: inputs of that size, by position or by name."""

    name: str
    family: str
    package: str
    make: Make
    draw: Draw

    def module(self, size: Size = "small") -> torch.nn.Module:
        """Return the module for inference, with the same random weights each time."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            module = self.make(size).eval()
            enliven(module)
        return module

    def inputs(self, size: Size = "small") -> Inputs:
        """Return inputs, the same each time."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            return self.draw(size)


def call(module: Callable[..., Any], inputs: Inputs) -> Any:
    """Return what the module says of the inputs."""
    return module(**inputs) if isinstance(inputs, Mapping) else module(*inputs)


def enliven(module: torch.nn.Module) -> None:
    """Draw every value that is the same all over a parameter or a running statistic.

    Networks start with scales of zero or 1e-6 and biases of zero, so that whole blocks would change nothing and no test would see them.
    """
    with torch.no_grad():
        for parameter in module.parameters():
            if not parameter.is_floating_point() or parameter.numel() < 2:
                continue
            if (first := parameter.flatten()[0]) != (parameter.max()) or first != parameter.min():
                continue
            if float(first) == 0:
                parameter.uniform_(-0.1, 0.1)
            else:
                parameter.uniform_(0.5, 1.5)
        for name, buffer in module.named_buffers():
            if name.endswith("running_mean"):
                buffer.uniform_(-0.1, 0.1)
            elif name.endswith("running_var"):
                buffer.uniform_(0.5, 1.5)


def image(small: int | tuple[int, int], full: int | tuple[int, int] = 224, channels: int = 3, batch: int = 1) -> Draw:
    """Return what draws one image: of `small` or `full` pixels a side, or rows and columns."""

    def draw(size: Size) -> Inputs:
        side = small if size == "small" else full
        rows, columns = side if isinstance(side, tuple) else (side, side)
        return (torch.randn(batch, channels, rows, columns),)

    return draw


def tokens(small: int = 12, full: int = 128, vocabulary: int = 96, mask: bool = True, **more: torch.Tensor) -> Draw:
    """Return what draws a text: `input_ids` below `vocabulary`, and an `attention_mask` of ones if wanted."""

    def draw(size: Size) -> Inputs:
        length = small if size == "small" else full
        given = {"input_ids": torch.randint(3, vocabulary, (1, length))}
        if mask:
            given["attention_mask"] = torch.ones(1, length, dtype=torch.int64)
        return given | more

    return draw
