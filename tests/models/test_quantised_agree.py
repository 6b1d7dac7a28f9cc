"""Networks whose weights a tool has made bytes: as near to the network in floats as onnxruntime's run of them, in any legal order, with the
same bits for any tiling."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from kernel_runner import KernelRunner, WeightStore
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime.quantization import QuantType, quantize_dynamic
from test_plans_agree import RUNS, planned

from aspen_mp.bench import models
from aspen_mp.bench.agreement import LIMIT, digest_of, error_of, reference

Array = np.ndarray[Any, np.dtype[Any]]
FURTHER = 1.15
"""How much further from the network in floats a result may be than onnxruntime's: values that two runtimes round to other levels add up."""
KINDS = [(QuantType.QInt8, False), (QuantType.QInt8, True), (QuantType.QUInt8, False), (QuantType.QUInt8, True)]
NAMES = ["i8", "i8-columns", "u8", "u8-columns"]


def quantised(model: onnx.ModelProto, folder: Path, kind: QuantType, columns: bool) -> onnx.ModelProto:
    quantize_dynamic(model, folder / "q.onnx", weight_type=kind, per_channel=columns, reduce_range=False)
    return onnx.load(folder / "q.onnx")


def check(model: onnx.ModelProto, feeds: Mapping[str, Array], want: list[Array], most: float, products: int) -> None:
    """Results of plans, run tile by tile, are no further from `want` than `most`. `products`: of bytes, at least so many."""
    data, store = model.SerializeToString(), WeightStore()
    digests: dict[str, str] = {}
    runners: dict[int, KernelRunner] = {}
    for seed, (workers, order, isa) in enumerate(RUNS):
        if workers not in runners:
            stage = planned(data, feeds, workers)
            assert not stage.opaque
            assert [row.kernel for row in stage.plan.info].count("IGEMM") >= products
            runners[workers] = KernelRunner(stage.plan, store)
        found = dict(zip((i.name for i in runners[workers].plan.outputs), runners[workers].run(feeds, order, seed, isa), strict=True))
        outputs = [found[value.name] for value in model.graph.output]
        assert error_of(outputs, want) <= most, f"planned for {workers}, {order}, {isa}"
        digest = digest_of(outputs)
        assert digest == digests.setdefault(isa, digest), f"other bits when planned for {workers}, {order}, {isa}"


@pytest.mark.parametrize(("kind", "columns"), KINDS, ids=NAMES)
@pytest.mark.parametrize("name", ["bert_base", "gpt2", "vit_b_16"])
def test_network(name: str, kind: QuantType, columns: bool, tmp_path: Path) -> None:
    model = models.build(name, batch=2, seq=37, **models.miniature(name))
    feeds = models.inputs(model)
    want = reference(model.SerializeToString(), feeds)
    smaller = quantised(model, tmp_path, kind, columns)
    theirs = error_of(reference(smaller.SerializeToString(), feeds), want)
    products = [node.op_type for node in smaller.graph.node].count("MatMulInteger")
    assert products
    check(smaller, feeds, want, FURTHER * theirs, products)


@pytest.mark.parametrize(("kind", "columns"), KINDS, ids=NAMES)
@pytest.mark.parametrize("shape", [(1, 300), (5, 300), (2, 3, 33, 64)], ids=str)
def test_layer(shape: tuple[int, ...], kind: QuantType, columns: bool, tmp_path: Path) -> None:
    """One product: the definition's result, but for how factors are rounded."""
    rng = np.random.default_rng(9)
    w, b = rng.standard_normal((shape[-1], 70), dtype=np.float32), rng.standard_normal(70, dtype=np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", shape), ("y", (*shape[:-1], 70))))
    graph = helper.make_graph(nodes, "layer", [x], [y], [numpy_helper.from_array(w, "w"), numpy_helper.from_array(b, "b")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    smaller = quantised(model, tmp_path, kind, columns)
    feeds = {"x": rng.standard_normal(shape, dtype=np.float32)}
    want = ReferenceEvaluator(smaller).run(None, feeds)
    check(smaller, feeds, list(want), LIMIT, 1)
    (plain,) = reference(model.SerializeToString(), feeds)
    theirs = error_of(reference(smaller.SerializeToString(), feeds), [plain])
    check(smaller, feeds, [plain], FURTHER * theirs, 1)
