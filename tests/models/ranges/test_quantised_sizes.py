"""Networks that a tool has quantised: one plan for inputs of any size gives for each the bits of a plan of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from sized_models import SMALLEST, drawn
from test_buckets_agree import check, tokens
from test_quantised_agree import Samples, quantised
from test_sizes_agree import agree, sizes_of

from aspen_mp.bench import models
from aspen_mp.planner import api

FORMS = {"pairs": QuantFormat.QDQ, "operators": QuantFormat.QOperator}


@pytest.mark.parametrize("form", [*FORMS, "dynamic"])
@pytest.mark.parametrize("seed", range(8))
def test_drawn_quantised_networks(form: str, seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng([seed, 3])
    plain, smaller = tmp_path / "m.onnx", tmp_path / "q.onnx"
    model = drawn(seed)
    onnx.save(model, plain)
    if form == "dynamic":
        quantize_dynamic(plain, smaller, weight_type=QuantType.QUInt8, op_types_to_quantize=["MatMul", "Gemm", "Conv"])
    else:
        samples = Samples(model.graph.input[0].name, (1, 3, 48, 48))
        quantize_static(plain, smaller, samples, quant_format=FORMS[form], per_channel=bool(seed % 2))
    least = tuple(int(side) for side in rng.integers(SMALLEST, 40, 2))
    most = tuple(int(side * rng.uniform(1.5, 3)) for side in least)
    assert not agree(api.load(smaller.read_bytes()), least, most, sizes_of(seed, least, most, 4))


@pytest.mark.parametrize("columns", [False, True], ids=["one", "columns"])
@pytest.mark.parametrize(("least", "most"), [(2, 7), (24, 31), (16, 120)])
@pytest.mark.parametrize("name", ["bert_base", "gpt2"])
def test_text_quantised_while_it_runs(name: str, least: int, most: int, columns: bool, tmp_path: Path) -> None:
    model = models.build(name, symbolic=True, **models.miniature(name))
    smaller = quantised(model, tmp_path, QuantType.QInt8, columns)
    check(smaller, tokens()(smaller), least, most, [most, least, (least + most) // 2])


class Once(CalibrationDataReader):
    """One example."""

    def __init__(self, feeds: dict[str, np.ndarray]) -> None:
        self.left = [feeds]

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self.left.pop() if self.left else None


@pytest.mark.parametrize(("least", "most"), [(2, 7), (24, 31), (16, 120)])
@pytest.mark.parametrize("name", ["bert_base", "gpt2"])
def test_text_quantised_statically(name: str, least: int, most: int, tmp_path: Path) -> None:
    """Products of queries and keys are of bytes, which are packed for each request."""
    model = models.build(name, symbolic=True, **models.miniature(name))
    example = models.inputs(models.build(name, batch=1, seq=40, **models.miniature(name)))
    onnx.save(model, tmp_path / "m.onnx")
    quantize_static(tmp_path / "m.onnx", tmp_path / "q.onnx", Once(example), per_channel=True)
    smaller = onnx.load(tmp_path / "q.onnx")
    check(smaller, tokens()(smaller), least, most, [most, least, (least + most) // 2])
