"""The networks of torchvision, one of each family, and its networks for segmentation."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from aspen_mp.bench.torch.networks.network import Size, TorchNetwork, image

PACKAGE = "torchvision"
CLASSES = 10
"""Classes of a small network."""


def _models() -> Any:
    return importlib.import_module("torchvision.models")


def _published(name: str, small: Mapping[str, Any], size: Size) -> torch.nn.Module:
    options = {"num_classes": CLASSES, **small} if size == "small" else {}
    make = getattr(_models(), name, None) or getattr(_models().segmentation, name)
    segmentation = {"weights_backbone": None} if not hasattr(_models(), name) else {}
    unlearnt = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    built: torch.nn.Module = make(weights=None, **segmentation, **unlearnt, **options)
    return built


def _of_class(small: Callable[[Any], torch.nn.Module], name: str, size: Size) -> torch.nn.Module:
    """A network that is made narrow where the published function takes no widths."""
    return small(_models()) if size == "small" else _published(name, {}, size)


def _vgg(models: Any) -> torch.nn.Module:
    vgg = models.vgg
    network: torch.nn.Module = vgg.VGG(vgg.make_layers([8, "M", 16, "M", 32, 32, "M", 32, 32, "M"], batch_norm=True), init_weights=False)
    network.classifier = torch.nn.Sequential(
        torch.nn.Linear(32 * 7 * 7, 64), torch.nn.ReLU(), torch.nn.Dropout(), torch.nn.Linear(64, CLASSES)
    )
    return network


def _alexnet(models: Any) -> torch.nn.Module:
    network: torch.nn.Module = models.AlexNet(num_classes=CLASSES)
    network.classifier[1] = torch.nn.Linear(256 * 6 * 6, 64)
    network.classifier[4] = torch.nn.Linear(64, 32)
    network.classifier[6] = torch.nn.Linear(32, CLASSES)
    return network


def _swin(models: Any, version: int) -> torch.nn.Module:
    parts = models.swin_transformer
    more = {"block": parts.SwinTransformerBlockV2, "downsample_layer": parts.PatchMergingV2} if version == 2 else {}
    built: torch.nn.Module = parts.SwinTransformer(
        patch_size=[4, 4], embed_dim=24, depths=[2, 2], num_heads=[2, 4], window_size=[4, 4], num_classes=CLASSES, **more
    )
    return built


_MODEST: dict[str, Callable[[Any], torch.nn.Module]] = {
    "alexnet": _alexnet,
    "vgg16": _vgg,
    "resnet18": lambda models: models.ResNet(models.resnet.BasicBlock, [1, 1, 1, 1], num_classes=CLASSES),
    "resnet50": lambda models: models.ResNet(models.resnet.Bottleneck, [1, 1, 1, 1], num_classes=CLASSES),
    "resnext50_32x4d": lambda models: models.ResNet(
        models.resnet.Bottleneck, [1, 1, 1, 1], groups=32, width_per_group=4, num_classes=CLASSES
    ),
    "wide_resnet50_2": lambda models: models.ResNet(models.resnet.Bottleneck, [1, 1, 1, 1], width_per_group=128, num_classes=CLASSES),
    "densenet121": lambda models: models.DenseNet(8, (2, 2, 2, 2), 16, num_classes=CLASSES),
    "vit_b_16": lambda models: models.VisionTransformer(64, 16, 2, 4, 64, 128, num_classes=CLASSES),
    "swin_t": partial(_swin, version=1),
    "swin_v2_t": partial(_swin, version=2),
    "maxvit_t": lambda models: models.MaxVit(
        input_size=(64, 64),
        stem_channels=16,
        partition_size=2,
        block_channels=[16, 32],
        block_layers=[1, 1],
        head_dim=8,
        stochastic_depth_prob=0.0,
        num_classes=CLASSES,
    ),
}
_SMALL: dict[str, tuple[int, int, Mapping[str, Any]]] = {
    "squeezenet1_1": (64, 224, {}),
    "inception_v3": (107, 299, {"aux_logits": False}),
    "googlenet": (64, 224, {"aux_logits": False}),
    "shufflenet_v2_x0_5": (64, 224, {}),
    "mobilenet_v2": (64, 224, {"width_mult": 0.25}),
    "mobilenet_v3_small": (64, 224, {"width_mult": 0.5}),
    "mnasnet0_5": (64, 224, {}),
    "efficientnet_b0": (64, 224, {}),
    "efficientnet_v2_s": (64, 224, {}),
    "regnet_x_400mf": (64, 224, {}),
    "regnet_y_400mf": (64, 224, {}),
    "convnext_tiny": (64, 224, {}),
    "fcn_resnet50": (65, 224, {}),
    "deeplabv3_mobilenet_v3_large": (65, 224, {}),
    "lraspp_mobilenet_v3_large": (64, 224, {}),
}
_SIDES = {"alexnet": 79}
_CLOSE = {"inception_v3": "inception", "googlenet": "inception"}


def _family(name: str) -> str:
    return _CLOSE.get(name, name.partition("_")[0].rstrip("0123456789"))


NETWORKS = [
    *(TorchNetwork(f"torchvision/{name}", _family(name), PACKAGE, partial(_of_class, make, name), image(_SIDES.get(name, 64)))
      for name, make in _MODEST.items()),
    *(TorchNetwork(f"torchvision/{name}", _family(name), PACKAGE, partial(_published, name, small), image(side, full))
      for name, (side, full, small) in _SMALL.items()),
]  # fmt: skip
"""All of them."""
