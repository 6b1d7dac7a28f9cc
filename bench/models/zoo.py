"""The list of networks and the functions that build and describe them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import onnx

from .bert import bert
from .classic import FIRES, VGG, alexnet, aspen, squeezenet, vgg, vgg_classifier
from .detector import text_detector
from .draws import draw
from .extra import convnext_tiny, efficientnet_b0, mobilenet_v2, tcn, unet, vit
from .few_bits import OPSET, in_int4
from .gpt2 import gpt2
from .half_precision import in_f16
from .inception import inception_v3
from .llama import llama
from .net import BATCH, SEQ, Array, ArrayWeights, Dim, NoWeights, RandomWeights, Weights, signature
from .quantized import CALIBRATED, in_int8
from .residual import DENSENET, RESNET, densenet, resnet
from .stacks import depthwise_chain, inception_pools, pool_blocks, poolformer, sppf
from .synthetic.phases import phases
from .text import TextOptions
from .vision import ImageOptions
from .yolo import yolov3

DTYPES = ("f32", "f16", "int8", "int8_dynamic", "int4")


@dataclass(frozen=True, slots=True)
class Entry:
    """One network: its builder `(name, options, weights, **own options)`, its kind of options, and their published values."""

    make: Callable[..., onnx.ModelProto]
    options: type[ImageOptions] | type[TextOptions]
    defaults: Mapping[str, Any]
    extra: bool = False
    mini: Mapping[str, Any] = field(default_factory=lambda: {"image": 64})


def _entries() -> dict[str, Entry]:
    tokens = {"layers": 2, "hidden": 64, "heads": 4, "vocab": 101}
    table = {"alexnet": Entry(alexnet, ImageOptions, {}, mini={"image": 79})}
    table |= {name + suffix: Entry(vgg, ImageOptions, {}, mini={"image": 32}) for name in VGG for suffix in ("", "_bn")}
    table |= {name: Entry(resnet, ImageOptions, {}) for name in RESNET}
    table |= {name: Entry(squeezenet, ImageOptions, {}) for name in FIRES}
    table |= {name: Entry(densenet, ImageOptions, {}) for name in DENSENET}
    table["inception_v3"] = Entry(inception_v3, ImageOptions, {"image": (299, 299)}, mini={"image": 107})
    table["yolov3"] = Entry(yolov3, ImageOptions, {"image": (416, 416), "classes": 80}, mini={"image": (64, 96)})
    table["bert_base"] = Entry(bert, TextOptions, {}, mini=tokens)
    table["bert_large"] = Entry(bert, TextOptions, {}, mini={**tokens, "layers": 3, "hidden": 96, "heads": 6})
    table["gpt2"] = Entry(gpt2, TextOptions, {}, mini=tokens)
    table["aspen32"] = Entry(aspen, ImageOptions, {"image": (64, 64)}, mini={"image": 16, "channels": 32})
    table["mobilenet_v2"] = Entry(mobilenet_v2, ImageOptions, {}, extra=True)
    table["efficientnet_b0"] = Entry(efficientnet_b0, ImageOptions, {}, extra=True)
    table["convnext_tiny"] = Entry(convnext_tiny, ImageOptions, {}, extra=True, mini={"image": 64, "channels": 16})
    table["vit_b_16"] = Entry(vit, ImageOptions, {}, extra=True, mini={"image": 64, "layers": 2, "hidden": 64, "heads": 4})
    table["smollm2_135m"] = Entry(llama, TextOptions, {}, extra=True, mini={**tokens, "inner": 96, "kv_heads": 2})
    table["unet"] = Entry(unet, ImageOptions, {"image": (256, 256), "classes": 21}, extra=True, mini={"image": 64, "width": 8})
    table["text_detector"] = Entry(text_detector, ImageOptions, {"image": (640, 640)}, extra=True, mini={"image": 64})
    table["tcn"] = Entry(tcn, TextOptions, {}, extra=True, mini={})
    table["vgg_classifier"] = Entry(vgg_classifier, ImageOptions, {}, extra=True, mini={"side": 1, "hidden": 96})
    table["phases"] = Entry(phases, ImageOptions, {}, extra=True, mini={"order": "cwlm", "size": 64})
    table["pool_blocks"] = Entry(pool_blocks, ImageOptions, {}, extra=True, mini={"image": 20, "channels": 24, "blocks": 3})
    table["sppf"] = Entry(sppf, ImageOptions, {"image": (20, 20)}, extra=True, mini={"image": (11, 13), "channels": 24})
    table["poolformer"] = Entry(poolformer, ImageOptions, {"image": (56, 56)}, extra=True, mini={"image": 14, "channels": 24, "layers": 3})
    table["inception_pools"] = Entry(inception_pools, ImageOptions, {"image": (35, 35)}, extra=True, mini={"image": 35, "channels": 12})
    chain = {"image": 14, "channels": 24, "layers": 3}
    table["depthwise_chain"] = Entry(depthwise_chain, ImageOptions, {"image": (56, 56)}, extra=True, mini=chain)
    return table


ENTRIES = _entries()


def names(*, extra: bool = False) -> list[str]:
    """Names of the zoo's networks; with `extra` also those that only tests use."""
    return [name for name, entry in ENTRIES.items() if extra or not entry.extra]


def miniature(name: str) -> dict[str, Any]:
    """Options with which `build` makes a small version of a network, of the same structure: for tests in seconds."""
    return dict(entry_of(name).mini)


def entry_of(name: str) -> Entry:
    if name not in ENTRIES:
        raise KeyError(f"the zoo has no network {name!r}. It has {', '.join(ENTRIES)}")
    return ENTRIES[name]


def build(
    name: str,
    *,
    batch: int = 1,
    seq: int = 128,
    symbolic: bool = False,
    seed: int = 0,
    weights: Mapping[str, Array] | None = None,
    dtype: str = "f32",
    **options: Any,
) -> onnx.ModelProto:
    """A network of the zoo as an ONNX model.

    `batch`, `seq`: sizes (images ignore `seq`). `symbolic`: leave the batch and the sequence length open, as dimensions "batch" and
    "sequence" (and those of a cache, "past" and "total"). `seed`: of the random weights; the same seed and parameter name give the same
    values, whatever the other options. `weights`: values by parameter name instead (a checkpoint in PyTorch's layout). `dtype`: "f32";
    "f16": weights and everything between inputs and outputs in half precision. "int8", "int8_dynamic": quantised by onnxruntime's tools,
    for these sizes (`quantized.in_int8`). "int4": weights of products in 4 bits (`few_bits.in_int4`), in opset 21. `options`: fields of
    `ImageOptions` (image, classes, bn, pool, opset) or `TextOptions` (attention, norm, gelu, opset), and the network's own. Those are
    `layers`, `channels` of aspen32, `blocks` of pool_blocks, `order` of phases, `aux` of inception_v3, `decode`, `backbone` of yolov3.
    Others are `head` of gpt2, `pooler` of bert_*, `ops`, `cache` and `past` of smollm2_135m. `image` is a side or (height, width).

    Raises KeyError for an unknown network and TypeError or ValueError for options it does not have or cannot take, or quantised without
    onnxruntime.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r}: it must be one of {', '.join(DTYPES)}")
    if dtype == "int4":
        options.setdefault("opset", OPSET)
    source: Weights = RandomWeights(seed) if weights is None else ArrayWeights(weights)
    model = _build(name, source, batch=batch, seq=seq, symbolic=symbolic, **options)
    if dtype in {"f16", "int4"}:
        return in_f16(model) if dtype == "f16" else in_int4(model)
    if dtype == "int8":
        return in_int8(model, [draw(model, seed=seed) for seed in range(CALIBRATED)])
    return in_int8(model, []) if dtype == "int8_dynamic" else model


def structure(name: str, *, batch: int = 1, seq: int = 128, symbolic: bool = False, dtype: str = "f32", **options: Any) -> onnx.ModelProto:
    """The model of `build` without the parameters' values: quick, for signatures and counts only, which `dtype` does not change."""
    return _build(name, NoWeights(), batch=batch, seq=seq, symbolic=symbolic, **options)


def _build(name: str, weights: Weights, *, batch: int, seq: int, symbolic: bool, **options: Any) -> onnx.ModelProto:
    entry = entry_of(name)
    for key, value in (("batch", batch), ("seq", seq)):
        if value < 1:
            raise ValueError(f"{key}={value}: must be at least 1")
    common: dict[str, Any] = {"batch": BATCH if symbolic else batch}
    if entry.options is TextOptions:
        common["seq"] = SEQ if symbolic else seq
    merged = {**entry.defaults, **options}
    if isinstance(merged.get("image"), int):
        merged["image"] = (merged["image"], merged["image"])
    common |= {field.name: merged.pop(field.name) for field in fields(entry.options) if field.name in merged}
    return entry.make(name, entry.options(**common), weights, **merged)


def inputs(model: str | onnx.ModelProto, *, seed: int = 0, batch: int = 1, seq: int = 128, **options: Any) -> dict[str, Array]:
    """Arrays for every input of a zoo network, given by name (with `build`'s options) or as the model that `build` returned.

    `batch`, `seq` and, of a network with a cache, `past` (default 0) fill symbolic dimensions and, for a name, are those of `build`. The
    same seed gives the same arrays.
    """
    proto = structure(model, batch=batch, seq=seq, **options) if isinstance(model, str) else model
    return draw(proto, seed=seed, batch=batch, seq=seq, past=options.get("past", 0))


@dataclass(frozen=True, slots=True)
class Description:
    """A description of a network. `parameters`: trainable ones. `macs`: multiply-accumulates of convolutions and matrix products (None
    where a dimension is symbolic). `inputs`, `outputs`: (name, shape, dtype)."""

    name: str
    parameters: int
    macs: int | None
    nodes: int
    ops: dict[str, int]
    inputs: list[tuple[str, tuple[Dim, ...], str]]
    outputs: list[tuple[str, tuple[Dim, ...], str]]


def describe(model: str | onnx.ModelProto, **options: Any) -> Description:
    """Describes a network by name (with `build`'s options; no weights are made) or a model that `build` returned."""
    proto = structure(model, **options) if isinstance(model, str) else model
    notes = {prop.key: prop.value for prop in proto.metadata_props}
    ops: dict[str, int] = {}
    for node in proto.graph.node:
        ops[node.op_type] = ops.get(node.op_type, 0) + 1
    return Description(
        name=proto.graph.name,
        parameters=int(notes["zoo.parameters"]),
        macs=int(notes["zoo.macs"]) if "zoo.macs" in notes else None,
        nodes=len(proto.graph.node),
        ops=dict(sorted(ops.items())),
        inputs=[signature(value) for value in proto.graph.input],
        outputs=[signature(value) for value in proto.graph.output],
    )
