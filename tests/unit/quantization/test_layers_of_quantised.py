"""Errors of layers: those of a quantised network beside the arithmetic of its numbers in numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import quantised_models
from onnx import numpy_helper

pytest.importorskip("onnxruntime")

from aspen_mp.errors import RequestError
from aspen_mp.quantization import layers, quantizer
from aspen_mp.quantization.quantizer import Options, Quantizer


def quantised(model: onnx.ModelProto, folder: Path, keep: tuple[str, ...] = (), **options: object) -> tuple[Quantizer, Path]:
    onnx.save(model, folder / "model.onnx")
    made = Quantizer(folder / "model.onnx", folder, Options(**options), lambda: iter(quantised_models.samples(model)), prepare=True)
    made.write(folder / "quantised.onnx", made.kept(keep))
    return made, folder / "quantised.onnx"


@pytest.mark.parametrize("activations", ["u8", "s8"])
@pytest.mark.parametrize("per_channel", [True, False])
def test_a_product_loses_what_its_rounded_factors_lose(tmp_path: Path, activations: str, per_channel: bool) -> None:
    model = quantised_models.mlp()
    made, file = quantised(model, tmp_path, activations=activations, per_channel=per_channel)
    (x,) = (sample["x"] for sample in quantised_models.samples(model, 1, seed=9))
    found = {layer.name: layer for layer in layers.errors(made.prepared, file, [{"x": x}])}
    stored = {t.name: numpy_helper.to_array(t) for t in onnx.load(file).graph.initializer}
    weights = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in onnx.load(made.prepared).graph.initializer}

    def rounded(value: np.ndarray, name: str) -> np.ndarray:
        scale, zero = stored[f"{name}_scale"].astype(np.float64), stored[f"{name}_zero_point"].astype(np.float64)
        low, high = np.iinfo(stored[f"{name}_zero_point"].dtype).min, np.iinfo(stored[f"{name}_zero_point"].dtype).max
        return (np.clip(np.rint(value / scale) + zero, low, high) - zero) * scale

    (first,) = (name for name, value in weights.items() if value.shape == (16, 32))
    (layer,) = (each for name, each in found.items() if name.startswith("first"))
    assert layer.before == ()
    node = next(node for node in onnx.load(made.prepared).graph.node if node.name == layer.name)
    whole = x.astype(np.float64) @ weights[first] + sum(weights[name] for name in node.input[2:])
    factor = stored[f"{first}_quantized"] * stored[f"{first}_scale"].astype(np.float64)
    product = rounded(x, "x") @ factor + sum(weights[name] for name in node.input[2:])
    if node.output[0].endswith("hb"):  # the product and its bias are one node, whose output is rounded together with ReLU
        whole, product = np.maximum(whole, 0), rounded(product, "r")
    else:
        product = rounded(product, node.output[0])
    assert layer.error == pytest.approx(np.linalg.norm(product - whole) / np.linalg.norm(whole), rel=0.02)


@pytest.mark.parametrize("network", quantised_models.NETWORKS)
def test_layers_are_those_that_read_rounded_values(tmp_path: Path, network: str) -> None:
    model = quantised_models.NETWORKS[network]()
    made, file = quantised(model, tmp_path)
    found = layers.errors(made.prepared, file, quantised_models.samples(model, 2))
    assert {layer.name for layer in found} == set(quantizer.layers_of(onnx.load(file)))
    assert [layer.error for layer in found] == sorted((layer.error for layer in found), reverse=True)
    if network == "masked_attention":
        assert found[0].op == "Softmax"
        assert found[0].error > 0.3
        assert found[0].before == ("mask",)
    assert all(layer.error < 0.1 for layer in found if layer.op != "Softmax")


def test_kept_layers_are_not_quantised(tmp_path: Path) -> None:
    made, file = quantised(quantised_models.masked_attention(), tmp_path, keep=("softmax", "Add"))
    there = quantised_models.rounded(onnx.load(file))
    assert not {"mask", "residual"} & there  # what Softmax gives is rounded for the product that reads it
    assert {"query", "scores", "mixed"} <= there
    with pytest.raises(RequestError, match=r"neither a node nor an operator 'Sofmax'\. Did you mean 'softmax'"):
        made.kept(["Sofmax"])


def test_nodes_without_a_name_get_one(tmp_path: Path) -> None:
    model = quantised_models.masked_attention()
    for node in model.graph.node:
        node.name = ""
    made, file = quantised(model, tmp_path)
    names = [node.name for node in made.model.graph.node]
    assert all(names)
    assert len(set(names)) == len(names)
    assert quantizer.layers_of(onnx.load(file))
