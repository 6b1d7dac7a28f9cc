"""`tritonclient` as its users have it, over gRPC: blocking, with callbacks, streams, and for asyncio."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
import serving_tools as tools
import small_models

triton = pytest.importorskip("tritonclient.grpc", reason="needs the package tritonclient[grpc]")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tools.Server]:
    folder = tmp_path_factory.mktemp("models")
    tools.save(folder, "mlp", 1, small_models.mlp("n"))
    with tools.serving(folder, folder, "--allow-repository", "--grpc-port", "0") as found:
        with triton.InferenceServerClient(found.grpc_address) as client:
            client.is_server_live()  # gRPC's own threads and descriptors, which the first channel makes, stay with the process
        yield found


def inputs(feeds: dict[str, np.ndarray]) -> list[Any]:
    found = triton.InferInput("x", list(feeds["x"].shape), "FP32")
    found.set_data_from_numpy(feeds["x"])
    return [found]


def check(result: Any, feeds: dict[str, np.ndarray]) -> None:
    np.testing.assert_allclose(result.as_numpy("y"), tools.mlp_wants(feeds), rtol=1e-4, atol=1e-5)


def test_blocking(server: tools.Server) -> None:
    with triton.InferenceServerClient(server.grpc_address) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("mlp", "1")
        assert "binary_tensor_data" in client.get_server_metadata(as_json=True)["extensions"]
        assert client.get_model_metadata("mlp").platform == "onnx_onnxv1"
        feeds = tools.mlp_feeds()
        outputs = [triton.InferRequestedOutput("y")]
        result = client.infer(
            "mlp", inputs(feeds), outputs=outputs, request_id="7", priority=1, timeout=30_000_000, client_timeout=tools.WATCHDOG_S
        )
        assert result.get_response().id == "7"
        check(result, feeds)


def test_callbacks(server: tools.Server) -> None:
    many = [tools.mlp_feeds(rows=1 + k % 3, seed=k) for k in range(32)]
    done: queue.Queue[tuple[int, Any, Any]] = queue.Queue()
    with triton.InferenceServerClient(server.grpc_address) as client:
        for k, feeds in enumerate(many):
            client.async_infer("mlp", inputs(feeds), lambda result, error, k=k: done.put((k, result, error)))
        for _ in many:
            k, result, error = done.get(timeout=tools.WATCHDOG_S)
            assert error is None
            check(result, many[k])


@pytest.mark.parametrize("final", [False, True])
def test_streams(server: tools.Server, final: bool) -> None:
    many = [tools.mlp_feeds(seed=k) for k in range(16)]
    done: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with triton.InferenceServerClient(server.grpc_address) as client:
        client.start_stream(lambda result, error: done.put((result, error)))
        for k, feeds in enumerate(many):
            client.async_stream_infer("mlp", inputs(feeds), request_id=str(k), enable_empty_final_response=final)
        client.async_stream_infer("none", inputs(many[0]))
        for k, feeds in enumerate(many):
            result, error = done.get(timeout=tools.WATCHDOG_S)
            assert error is None
            assert result.get_response().id == str(k)
            assert result.get_response().parameters["triton_final_response"].bool_param
            check(result, feeds)
        assert "no model 'none'" in str(done.get(timeout=tools.WATCHDOG_S)[1])
        client.stop_stream()


def test_errors_are_its_own(server: tools.Server) -> None:
    from tritonclient.utils import InferenceServerException

    with triton.InferenceServerClient(server.grpc_address) as client:
        with pytest.raises(InferenceServerException, match="no model 'none'") as raised:
            client.infer("none", inputs(tools.mlp_feeds()))
        assert raised.value.status() == "StatusCode.NOT_FOUND"
        with pytest.raises(InferenceServerException) as raised:
            client.infer("mlp", inputs(tools.mlp_feeds()), compression_algorithm="gzip")
        assert raised.value.status() == "StatusCode.UNIMPLEMENTED"


def test_repository(server: tools.Server) -> None:
    with triton.InferenceServerClient(server.grpc_address) as client:
        (model,) = client.get_model_repository_index().models
        assert (model.name, model.version, model.state) == ("mlp", "1", "READY")
        client.unload_model("mlp")
        assert not client.is_model_ready("mlp")
        client.load_model("mlp")
        assert client.is_model_ready("mlp")
        check(client.infer("mlp", inputs(tools.mlp_feeds())), tools.mlp_feeds())


def test_configuration_and_statistics(server: tools.Server) -> None:
    with triton.InferenceServerClient(server.grpc_address) as client:
        config = client.get_model_config("mlp").config
        assert (config.backend, list(config.input[0].dims), config.input[0].data_type) == ("aspen-mp", [-1, 16], 11)
        assert config.version_policy.latest.num_versions == 1
        assert client.get_model_config("mlp", "1", as_json=True)["config"]["output"][0]["name"] == "y"
        before = client.get_inference_statistics("mlp", "1").model_stats[0]
        client.infer("mlp", inputs(tools.mlp_feeds()))
        after = client.get_inference_statistics().model_stats[0]
        assert after.inference_count == before.inference_count + 1
        assert after.inference_stats.success.ns > before.inference_stats.success.ns


def test_asyncio(server: tools.Server) -> None:
    aio = pytest.importorskip("tritonclient.grpc.aio")
    many = [tools.mlp_feeds(seed=k) for k in range(16)]

    async def requests() -> AsyncIterator[dict[str, Any]]:
        for feeds in many:
            yield {"model_name": "mlp", "inputs": inputs(feeds)}

    async def work() -> None:
        async with aio.InferenceServerClient(server.grpc_address) as client:
            assert await client.is_server_ready()
            results = await asyncio.gather(*(client.infer("mlp", inputs(feeds)) for feeds in many))
            for feeds, result in zip(many, results, strict=True):
                check(result, feeds)
            streamed = [each async for each in client.stream_infer(requests())]
            for feeds, (result, error) in zip(many, streamed, strict=True):
                assert error is None
                check(result, feeds)

    asyncio.run(work())


def test_sequences(server: tools.Server) -> None:
    done: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with triton.InferenceServerClient(server.grpc_address) as client:
        client.start_stream(lambda result, error: done.put((result, error)))
        for number in (3, "camera"):
            for k in range(4):
                client.async_stream_infer(
                    "mlp", inputs(tools.mlp_feeds(seed=k // 2)), sequence_id=number, sequence_start=k == 0, sequence_end=k == 3
                )
            for k in range(4):
                result, error = done.get(timeout=tools.WATCHDOG_S)
                assert error is None
                check(result, tools.mlp_feeds(seed=k // 2))
        client.async_stream_infer("mlp", inputs(tools.mlp_feeds()), sequence_id=3)
        assert "is not open" in str(done.get(timeout=tools.WATCHDOG_S)[1])
        client.stop_stream()
        result = client.infer("mlp", inputs(tools.mlp_feeds()), sequence_id=4, sequence_start=True, sequence_end=True)
        check(result, tools.mlp_feeds())
