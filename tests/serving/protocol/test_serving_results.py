"""Requests for results that no machine has the memory for: a typed error over HTTP and gRPC, and the server goes on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import serving_tools as tools
from onnx import TensorProto, helper

EXTENTS = [2**31, 2**40, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**70]


def expanding() -> onnx.ModelProto:
    infos = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["a", "b"]), helper.make_tensor_value_info("s", TensorProto.INT64, [2])]
    graph = helper.make_graph([helper.make_node("Expand", ["x", "s"], ["y"])], "g", infos, [helper.make_tensor_value_info("y", 1, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tools.Server]:
    pytest.importorskip("grpc", reason="gRPC is an extra")
    folder: Path = tmp_path_factory.mktemp("models")
    tools.save(folder, "expand", 1, expanding())
    with tools.serving(folder, folder, "--grpc-port", "0") as found:
        yield found


def tensors(shape: list[int], values: list[int]) -> list[dict[str, object]]:
    return [
        {"name": "x", "shape": shape, "datatype": "FP32", "data": [1.0]},
        {"name": "s", "shape": [2], "datatype": "INT64", "data": values},
    ]


def test_http(server: tools.Server) -> None:
    drawn = random.Random(0)
    with tools.client(server.address) as client:
        for _ in range(12):
            large = [drawn.choice(EXTENTS), drawn.choice([1, *EXTENTS])]
            asked = {"inputs": tensors([1, 1], [min(each, 2**63 - 1) for each in large])}
            assert client.ask("/v2/models/expand/infer", asked)[0] in {400, 413}, large
            status, _, said = client.ask("/v2/models/expand/infer", {"inputs": tensors(large, [1, 1])})
            assert status in {400, 413}, said
        done = client.infer("expand", {"x": np.ones((1, 1), np.float32), "s": np.array([2, 3])})
        assert done["y"].shape == (2, 3)


def test_grpc(server: tools.Server) -> None:
    grpc = pytest.importorskip("grpc")
    from test_serving_grpc import Caller, schema

    codes = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED}
    drawn = random.Random(1)
    with grpc.insecure_channel(server.grpc_address) as channel:
        call = Caller(channel)
        for _ in range(12):
            large = [min(drawn.choice(EXTENTS), 2**63 - 1), min(drawn.choice([1, *EXTENTS]), 2**63 - 1)]
            for shape, values in (([1, 1], large), (large, [1, 1])):
                request = schema.message("ModelInferRequest")(model_name="expand")
                request.inputs.add(name="x", datatype="FP32", shape=shape).contents.fp32_contents.append(1)
                request.inputs.add(name="s", datatype="INT64", shape=[2]).contents.int64_contents.extend(values)
                with pytest.raises(grpc.RpcError) as raised:
                    call("ModelInfer", request)
                assert raised.value.code() in codes, raised.value
