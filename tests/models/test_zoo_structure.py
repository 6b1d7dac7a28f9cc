"""The zoo's networks are the published ones: parameter counts, arithmetic, layer shapes; and their different spellings mean the same."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import shape_inference

from aspen_mp.bench import models
from aspen_mp.bench.models.zoo import ENTRIES, structure

PARAMETERS = {  # trainable parameters as torchvision, Hugging Face and the Darknet weight file have them
    "alexnet": 61_100_840,
    "vgg11": 132_863_336,
    "vgg11_bn": 132_868_840,
    "vgg13": 133_047_848,
    "vgg13_bn": 133_053_736,
    "vgg16": 138_357_544,
    "vgg16_bn": 138_365_992,
    "vgg19": 143_667_240,
    "vgg19_bn": 143_678_248,
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "squeezenet1_0": 1_248_424,
    "squeezenet1_1": 1_235_496,
    "densenet121": 7_978_856,
    "densenet161": 28_681_000,
    "densenet169": 14_149_480,
    "densenet201": 20_013_928,
    "inception_v3": 23_834_568,
    "yolov3": 61_949_149,
    "bert_base": 109_482_240,
    "bert_large": 335_141_888,
    "gpt2": 124_439_808,
    "aspen32": 32 * (128 * 128 * 9 + 128),
    "mobilenet_v2": 3_504_872,
    "efficientnet_b0": 5_288_548,
    "convnext_tiny": 28_589_128,
    "vit_b_16": 86_567_656,
    "smollm2_135m": 134_515_008,
    "vgg_classifier": 123_642_856,
}
GMACS = {  # convolutions and matrix products at the usual size, batch 1, 128 tokens
    "alexnet": 0.714,
    "vgg16": 15.470,
    "resnet18": 1.814,
    "resnet50": 4.089,
    "resnet101": 7.801,
    "squeezenet1_1": 0.349,
    "densenet121": 2.834,
    "inception_v3": 5.713,
    "efficientnet_b0": 0.386,
    "convnext_tiny": 4.456,
    "yolov3": 32.932,
    "bert_base": 11.174,
    "bert_large": 39.461,
}
FAMILIES = (
    *("resnet18", "squeezenet1_1", "densenet121", "yolov3", "bert_base", "gpt2"),
    *("aspen32", "mobilenet_v2", "efficientnet_b0", "convnext_tiny", "vit_b_16", "smollm2_135m", "unet", "tcn"),
)
small = models.miniature


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, feeds)


def agree(a: list[np.ndarray], b: list[np.ndarray]) -> None:
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-4 * float(np.abs(y).max()))


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_counts_are_the_published_ones(name: str) -> None:
    model = structure(name)
    count = sum(
        math.prod(t.dims)
        for t in model.graph.initializer
        if t.data_type == onnx.TensorProto.FLOAT and not t.name.startswith("const_") and "running_" not in t.name
    )
    assert count == PARAMETERS[name]
    assert models.describe(model).parameters == PARAMETERS[name]


def test_counts_of_variants() -> None:
    assert models.describe("inception_v3", aux=True).parameters == 27_161_264
    yolo = structure("yolov3")
    floats = sum(math.prod(t.dims) for t in yolo.graph.initializer if t.data_type == onnx.TensorProto.FLOAT and "const" not in t.name)
    assert floats == 62_001_757  # what yolov3.weights holds, running statistics included
    heads = [t.name for t in yolo.graph.initializer if list(t.dims) == [255]]
    assert heads == ["module_list.81.conv.bias", "module_list.93.conv.bias", "module_list.105.conv.bias"]
    assert models.describe("vgg16_bn", bn="fold").parameters == PARAMETERS["vgg16_bn"]


@pytest.mark.parametrize("name", GMACS)
def test_arithmetic(name: str) -> None:
    macs = models.describe(name).macs
    assert macs is not None
    assert macs / 1e9 == pytest.approx(GMACS[name], abs=6e-4)
    assert models.describe(name, batch=3).macs == 3 * macs


def test_a_detector_takes_pictures_of_any_size() -> None:
    model = models.build("text_detector", sides="open", scale=0.35)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for height, width in ((32, 96), (64, 32)):
        (y,) = session.run(None, {"input": np.zeros((1, 3, height, width), np.float32)})
        assert y.shape == (1, 1, height, width)
    with pytest.raises(ValueError, match="multiples of 32"):
        models.build("text_detector", image=100)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("pool_blocks", (1, 64, 224, 224)),
        ("sppf", (1, 1024, 20, 20)),
        ("poolformer", (1, 96, 56, 56)),
        ("inception_pools", (1, 2048, 8, 8)),
        ("depthwise_chain", (1, 256, 56, 56)),
    ],
)
def test_layers_that_keep_channels_apart(name: str, shape: tuple[int, ...]) -> None:
    """Nothing mixes channels: a change in one channel of the input changes no output but those that come of it."""
    assert models.describe(name).outputs == [("output", shape, "float32")]
    model = models.build(name, **small(name))
    feeds = models.inputs(model)
    channels = feeds["input"].shape[1]
    (before,) = run(model, feeds)
    feeds["input"][:, 3] += 1.0
    (after,) = run(model, feeds)
    changed = {int(c) % channels for c in np.unique(np.nonzero(before != after)[1])}
    assert changed == {3}


def test_names() -> None:
    assert len(models.names()) == 26
    assert set(models.names()) < set(models.names(extra=True)) == set(ENTRIES)


@pytest.mark.parametrize(("name", "symbolic"), [(n, False) for n in models.names(extra=True)] + [(n, True) for n in FAMILIES])
def test_valid_and_finite(name: str, symbolic: bool) -> None:
    """The checker and strict shape inference accept every network; onnxruntime gives finite outputs of the declared shape."""
    model = models.build(name, batch=2, seq=24, symbolic=symbolic, **small(name))
    onnx.checker.check_model(model, full_check=True)
    shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    assert (models.describe(model).macs is None) == symbolic
    outputs = run(model, models.inputs(model, batch=2, seq=24))
    for value, output in zip(model.graph.output, outputs, strict=True):
        dims = [d.dim_value or {"batch": 2, "sequence": 24}[d.dim_param] for d in value.type.tensor_type.shape.dim]
        assert list(output.shape) == dims
        assert np.isfinite(output).all()
        assert 0.05 < output.std() < 100
    for output in outputs:
        assert not np.array_equal(output[0], output[1])
    if symbolic:
        agree(run(models.build(name, batch=2, seq=24, **small(name)), models.inputs(model, batch=2, seq=24)), outputs)


IMAGE_SPELLINGS = [
    ("resnet18", {"bn": "fold"}),
    ("resnet50", {"bn": "fold", "pool": "mean"}),
    ("resnet18", {"opset": 13}),
    ("resnet18", {"opset": 21, "pool": "mean"}),
    ("vgg11_bn", {"bn": "fold"}),
    ("densenet121", {"bn": "fold"}),
    ("mobilenet_v2", {"bn": "fold", "pool": "mean"}),
    ("efficientnet_b0", {"bn": "fold"}),
    ("convnext_tiny", {"opset": 20}),
    ("inception_v3", {"bn": "fold"}),
    ("yolov3", {"bn": "fold"}),
]
TEXT_SPELLINGS = [
    ("bert_base", {"attention": "sdpa"}),
    ("bert_base", {"norm": "decomposed", "opset": 14}),
    ("bert_base", {"gelu": "op", "opset": 20}),
    ("bert_base", {"opset": 22}),
    ("gpt2", {"attention": "sdpa"}),
    ("gpt2", {"norm": "decomposed", "opset": 13}),
    ("gpt2", {"gelu": "op", "opset": 20}),
    ("gpt2", {"norm": "decomposed", "opset": 18}),
    ("smollm2_135m", {"ops": "op", "opset": 23}),
    ("smollm2_135m", {"attention": "sdpa", "opset": 20}),
]


@pytest.mark.parametrize(("name", "options"), IMAGE_SPELLINGS + TEXT_SPELLINGS)
def test_spellings_mean_the_same(name: str, options: dict[str, Any]) -> None:
    plain = models.build(name, seq=24, **small(name))
    other = models.build(name, seq=24, **small(name), **options)
    onnx.checker.check_model(other, full_check=True)
    feeds = models.inputs(plain)
    agree(run(other, feeds), run(plain, feeds))


def test_variants_run() -> None:
    for name, options in (
        ("yolov3", {"image": 64, "decode": True, "classes": 4}),
        ("inception_v3", {"image": 299, "aux": True}),
        ("unet", {"image": 64, "width": 8, "transposed": True}),
        ("aspen32", {"layers": 3, "channels": 16, "image": (24, 40), "relu": False}),
        ("gpt2", {**small("gpt2"), "head": False}),
        ("bert_base", {**small("bert_base"), "pooler": False}),
    ):
        model = models.build(name, batch=2, seq=17, **options)
        onnx.checker.check_model(model, full_check=True)
        assert all(np.isfinite(y).all() for y in run(model, models.inputs(model)))


@pytest.mark.parametrize("name", FAMILIES)
def test_half_precision(name: str) -> None:
    """Weights in f16, inputs and outputs in f32; about the same results."""
    plain, half = (models.build(name, seq=24, dtype=dtype, **small(name)) for dtype in ("f32", "f16"))
    onnx.checker.check_model(half, full_check=True)
    assert models.describe(half).inputs == models.describe(plain).inputs
    assert models.describe(half).outputs == models.describe(plain).outputs
    assert not [t.name for t in half.graph.initializer if t.data_type == onnx.TensorProto.FLOAT and np.prod(t.dims) > 8]
    feeds = models.inputs(half)
    for narrow, wide in zip(run(half, feeds), run(plain, feeds), strict=True):
        assert narrow.dtype == wide.dtype
        assert np.abs(narrow - wide).max() <= 2e-2 * np.abs(wide).max()


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("sizes", [(1, 0, 7), (1, 23, 1), (2, 19, 5)])
def test_a_cache_is_valid(sizes: tuple[int, int, int], symbolic: bool) -> None:
    batch, past, seq = sizes
    options = {**small("smollm2_135m"), "cache": True, "past": past, "symbolic": symbolic}
    model = models.build("smollm2_135m", batch=batch, seq=seq, **options)
    onnx.checker.check_model(model, full_check=True)
    shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    found = models.describe(model)
    assert found.parameters == models.describe("smollm2_135m", **small("smollm2_135m")).parameters
    assert (found.macs is None) == symbolic
    dims = {"batch": batch, "sequence": seq, "past": past, "total": past + seq}
    feeds = models.inputs(model, batch=batch, seq=seq, past=past)
    for name, shape, dtype in found.inputs:
        assert feeds[name].shape == tuple(dims.get(d, d) for d in shape)
        assert feeds[name].dtype == dtype
    assert [name for name, _, _ in found.inputs[:4]] == ["input_ids", "attention_mask", "past_key_values.0.key", "past_key_values.0.value"]
    assert [name for name, _, _ in found.outputs[:3]] == ["logits", "present.0.key", "present.0.value"]
    outputs = run(model, feeds)
    for (name, shape, _), output in zip(found.outputs, outputs, strict=True):
        assert output.shape == tuple(dims.get(d, d) for d in shape), name
        assert np.isfinite(output).all()
    for (name, _, _), output in zip(found.inputs[2:], outputs[1:], strict=True):
        np.testing.assert_array_equal(output[:, :, :past], feeds[name])


@pytest.mark.parametrize("symbolic", [False, True])
def test_steps_with_a_cache_say_what_the_whole_text_does(symbolic: bool) -> None:
    """A prompt of texts that begin at different places, some tokens, and one: against all at once, without a cache where nothing is
    masked."""
    batch, parts = 2, (6, 3, 1, 1)
    options = {**small("smollm2_135m"), "symbolic": symbolic}
    whole = models.build("smollm2_135m", batch=batch, seq=sum(parts), **options)
    ids = models.inputs(whole, batch=batch, seq=sum(parts))["input_ids"]
    want = run(whole, {"input_ids": ids})[0]
    for first in (0, 2):  # where the second text begins
        mask = np.ones_like(ids)
        mask[1, :first] = 0
        at_once = models.build("smollm2_135m", batch=batch, seq=sum(parts), cache=True, **options)
        empty = {name: value for name, value in models.inputs(at_once, batch=batch, seq=sum(parts)).items() if name.startswith("past")}
        everything = run(at_once, {"input_ids": ids, "attention_mask": mask, **empty})
        agree(everything[:1] if first == 0 else [everything[0][:1]], [want] if first == 0 else [want[:1]])
        caches, past, logits = empty, 0, []
        for new in parts:
            step = models.build("smollm2_135m", batch=batch, seq=new, cache=True, past=past, **options)
            found = run(step, {"input_ids": ids[:, past : past + new], "attention_mask": mask[:, : past + new], **caches})
            logits.append(found[0])
            caches, past = dict(zip(caches, found[1:], strict=True)), past + new
        got = np.concatenate(logits, axis=1)
        agree([got[:1], got[1:, first:]], [everything[0][:1], everything[0][1:, first:]])
        agree([value[:, :, first:] for value in caches.values()], [value[:, :, first:] for value in everything[1:]])
    assert np.abs(everything[0][1, first:] - want[1, first:]).max() > 1e-2, "the mask is looked at"


def test_seeds() -> None:
    one, same, other = (models.build("squeezenet1_1", seed=seed).SerializeToString(deterministic=True) for seed in (1, 1, 2))
    assert one == same
    assert one != other
    feeds = models.inputs("bert_base", batch=3, seq=40, seed=5)
    again = models.inputs("bert_base", batch=3, seq=40, seed=5)
    assert all(np.array_equal(feeds[key], again[key]) for key in feeds)


def test_inputs() -> None:
    feeds = models.inputs("bert_base", batch=3, seq=40)
    assert feeds["input_ids"].dtype == np.int64
    assert feeds["input_ids"].shape == (3, 40)
    assert ((feeds["input_ids"] >= 0) & (feeds["input_ids"] < 30522)).all()
    lengths = feeds["attention_mask"].sum(axis=1)
    assert len(set(lengths)) == 3
    assert ((lengths > 0) & (lengths < 40)).all()
    assert set(np.unique(feeds["token_type_ids"])) == {0, 1}
    image = models.inputs("resnet50", batch=2)["input"]
    assert image.dtype == np.float32
    assert image.shape == (2, 3, 224, 224)
    assert -3 < image.min() < image.max() < 3


def test_wrong_use_is_named() -> None:
    with pytest.raises(KeyError, match="resnet51"):
        models.build("resnet51")
    with pytest.raises(ValueError, match="batch=0"):
        models.build("resnet18", batch=0)
    with pytest.raises(TypeError, match="tokens"):
        models.build("resnet18", tokens=3)
    with pytest.raises(ValueError, match="multiples of 32"):
        models.build("yolov3", image=100)
    with pytest.raises(ValueError, match="too small"):
        structure("inception_v3", image=32)
    with pytest.raises(ValueError, match="positions"):
        structure("bert_base", seq=513)
    with pytest.raises(ValueError, match="opset"):
        structure("bert_base", opset=16)
    with pytest.raises(ValueError, match="no ONNX form"):
        structure("vgg11", image=288)
    with pytest.raises(ValueError, match="needs ops='spelled'"):
        structure("smollm2_135m", cache=True, ops="op", opset=23)
    with pytest.raises(ValueError, match="past=4"):
        structure("smollm2_135m", past=4)
    with pytest.raises(ValueError, match="past=-1"):
        structure("smollm2_135m", cache=True, past=-1)
    with pytest.raises(KeyError, match=r"features\.0\.weight"):
        models.build("alexnet", weights={})
