"""Networks of PyTorch's own modules: recurrent ones, a U-Net as diffusion models have, and others that no package above holds."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import nn

from aspen_mp.bench.torch.networks.network import Inputs, Size, TorchNetwork

PACKAGE = "torch"


class Recurrent(nn.Module):
    """A tagger of texts: an embedding, two recurrent layers in both directions, and classes of each token."""

    def __init__(self, kind: type[Any], width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(97, width)
        self.recurrent = kind(width, width, num_layers=2, bidirectional=True, batch_first=True)
        self.classes = nn.Linear(2 * width, 9)

    def forward(self, ids: torch.Tensor) -> Any:
        states, _ = self.recurrent(self.embedding(ids))
        return self.classes(states)


class _Block(nn.Module):
    """A residual block that knows the step of the diffusion."""

    def __init__(self, inner: int, outer: int, time: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(4, inner), nn.SiLU(), nn.Conv2d(inner, outer, 3, padding=1))
        self.time = nn.Linear(time, outer)
        self.second = nn.Sequential(nn.GroupNorm(4, outer), nn.SiLU(), nn.Conv2d(outer, outer, 3, padding=1))
        self.skip = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, image: torch.Tensor, time: torch.Tensor) -> Any:
        hidden = self.first(image) + self.time(time)[:, :, None, None]
        return self.second(hidden) + self.skip(image)


class _Attention(nn.Module):
    """Attention between the places of an image."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)

    def forward(self, image: torch.Tensor) -> Any:
        places = self.norm(image).flatten(2).transpose(1, 2)
        found, _ = self.attention(places, places, places, need_weights=False)
        return image + found.transpose(1, 2).reshape(image.shape)


class Diffusion(nn.Module):
    """A U-Net of residual blocks with attention at the bottom, and sines of the step."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, 4 * width))
        self.stem = nn.Conv2d(4, width, 3, padding=1)
        self.down = nn.ModuleList([_Block(width, width, 4 * width), _Block(width, 2 * width, 4 * width)])
        self.halve = nn.ModuleList([nn.Conv2d(width, width, 3, 2, 1), nn.Conv2d(2 * width, 2 * width, 3, 2, 1)])
        self.middle = nn.ModuleList([_Block(2 * width, 2 * width, 4 * width), _Block(2 * width, 2 * width, 4 * width)])
        self.attention = _Attention(2 * width)
        self.up = nn.ModuleList([_Block(4 * width, 2 * width, 4 * width), _Block(3 * width, width, 4 * width)])
        self.head = nn.Sequential(nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, 4, 3, padding=1))

    def forward(self, image: torch.Tensor, step: torch.Tensor) -> Any:
        half = self.width // 2
        rates = torch.exp(torch.arange(half, device=image.device) * (-math.log(10000) / half)).to(image.dtype)
        angles = step[:, None] * rates
        time = self.time(torch.cat([angles.sin(), angles.cos()], dim=1))
        hidden, kept = self.stem(image), []
        for block, halve in zip(self.down, self.halve, strict=True):
            hidden = block(hidden, time)
            kept.append(hidden)
            hidden = halve(hidden)
        hidden = self.middle[1](self.attention(self.middle[0](hidden, time)), time)
        for block in self.up:
            hidden = nn.functional.interpolate(hidden, scale_factor=2.0, mode="nearest")
            hidden = block(torch.cat([hidden, kept.pop()], dim=1), time)
        return self.head(hidden)


class Ranking(nn.Module):
    """A network that ranks articles, as DLRM: tables of categories, their products in pairs, and dense layers."""

    def __init__(self, width: int, rows: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.EmbeddingBag(rows, width, mode="sum") for _ in range(4)])
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(width + 10, 64), nn.ReLU(), nn.Linear(64, 1), nn.Sigmoid())
        self.register_buffer("pairs", torch.tril_indices(5, 5, -1))

    def forward(self, dense: torch.Tensor, categories: torch.Tensor) -> Any:
        bottom = self.bottom(dense)
        found = torch.stack([bottom, *(table(categories[:, k]) for k, table in enumerate(self.tables))], dim=1)
        products = torch.bmm(found, found.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([bottom, products], dim=1))


class Temporal(nn.Module):
    """Dilated convolutions along time, with gates and weights that are normalised when they are used."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Conv1d(8, width, 1)
        convolutions = [nn.Conv1d(width, 2 * width, 3, dilation=2**k, padding=2**k) for k in range(4)]
        self.layers = nn.ModuleList([nn.utils.parametrizations.weight_norm(layer) for layer in convolutions])
        self.head = nn.ConvTranspose1d(width, 4, 4, stride=2, padding=1)

    def forward(self, signal: torch.Tensor) -> Any:
        hidden = self.stem(signal)
        for layer in self.layers:
            gate, value = layer(hidden).chunk(2, dim=1)
            hidden = hidden + torch.sigmoid(gate) * torch.tanh(value)
        return self.head(hidden)


def _text(size: Size) -> Inputs:
    return (torch.randint(0, 97, (1, 9 if size == "small" else 64)),)


def _diffusion(size: Size) -> Inputs:
    side = 16 if size == "small" else 64
    return torch.randn(1, 4, side, side), torch.tensor([37.0])


def _ranking(size: Size) -> Inputs:
    batch = 4 if size == "small" else 128
    return torch.randn(batch, 13), torch.randint(0, 100, (batch, 4, 6))


def _signal(size: Size) -> Inputs:
    return (torch.randn(1, 8, 40 if size == "small" else 4000),)


def _sequence(size: Size) -> Inputs:
    length, width = (10, 32) if size == "small" else (128, 512)
    return torch.randn(1, length, width), torch.randn(1, length // 2, width)


def _transformer(size: Size) -> nn.Module:
    width, layers = (32, 2) if size == "small" else (512, 6)
    return nn.Transformer(width, 4 if size == "small" else 8, layers, layers, 4 * width, batch_first=True)


def _volume(size: Size) -> Inputs:
    side = 12 if size == "small" else 32
    return (torch.randn(1, 2, side, side, side),)


def _volumes(size: Size) -> nn.Module:
    width = 8 if size == "small" else 32
    return nn.Sequential(
        nn.Conv3d(2, width, 3, padding=1), nn.InstanceNorm3d(width, affine=True), nn.LeakyReLU(), nn.MaxPool3d(2),
        nn.Conv3d(width, 2 * width, 3, padding=1), nn.BatchNorm3d(2 * width), nn.PReLU(), nn.AvgPool3d(2),
        nn.ConvTranspose3d(2 * width, 4, 2, stride=2),
    )  # fmt: skip


def _perceptron(size: Size) -> nn.Module:
    width = 64 if size == "small" else 1024
    return nn.Sequential(nn.Linear(32, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, width), nn.Mish(), nn.Linear(width, 10))


def _rows(size: Size) -> Inputs:
    return (torch.randn(5 if size == "small" else 64, 32),)


def _wide(kind: type[Any], small: int, full: int, size: Size) -> nn.Module:
    built: nn.Module = kind(small if size == "small" else full)
    return built


def _recurrent(kind: type[Any], size: Size) -> nn.Module:
    return Recurrent(kind, 16 if size == "small" else 256)


NETWORKS = [
    TorchNetwork("own/lstm", "recurrent", PACKAGE, partial(_recurrent, nn.LSTM), _text),
    TorchNetwork("own/gru", "recurrent", PACKAGE, partial(_recurrent, nn.GRU), _text),
    TorchNetwork("own/rnn", "recurrent", PACKAGE, partial(_recurrent, nn.RNN), _text),
    TorchNetwork("own/diffusion-unet", "unet", PACKAGE, partial(_wide, Diffusion, 16, 64), _diffusion),
    TorchNetwork("own/ranking", "dlrm", PACKAGE, lambda size: Ranking(8 if size == "small" else 64, 100), _ranking),
    TorchNetwork("own/temporal", "tcn", PACKAGE, partial(_wide, Temporal, 16, 64), _signal),
    TorchNetwork("own/transformer", "transformer", PACKAGE, _transformer, _sequence),
    TorchNetwork("own/volumes", "volumes", PACKAGE, _volumes, _volume),
    TorchNetwork("own/perceptron", "perceptron", PACKAGE, _perceptron, _rows),
]
"""All of them."""
