"""`tritonclient` as its users have it, over HTTP: blocking, with futures, and for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import serving_tools as tools
import small_models

http = pytest.importorskip("tritonclient.http", reason="needs the package tritonclient[http]")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tools.Server]:
    folder = tmp_path_factory.mktemp("models")
    tools.save(folder, "mlp", 1, small_models.mlp("n"))
    with tools.serving(folder, folder, "--allow-repository") as found:
        with http.InferenceServerClient(found.address) as client:
            client.is_server_live()  # its event loop, which the first client makes, stays with the process
        yield found


def inputs(module: Any, feeds: dict[str, np.ndarray], binary: bool = True) -> list[Any]:
    found = module.InferInput("x", list(feeds["x"].shape), "FP32")
    found.set_data_from_numpy(feeds["x"], binary_data=binary)
    return [found]


@pytest.mark.parametrize("binary_in", [False, True])
@pytest.mark.parametrize("binary_out", [False, True])
def test_blocking(server: tools.Server, binary_in: bool, binary_out: bool) -> None:
    with http.InferenceServerClient(server.address) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("mlp", "1")
        assert client.get_model_metadata("mlp")["platform"] == "onnx_onnxv1"
        feeds = tools.mlp_feeds()
        outputs = [http.InferRequestedOutput("y", binary_data=binary_out)]
        result = client.infer("mlp", inputs(http, feeds, binary_in), outputs=outputs, request_id="7", priority=1, timeout=30_000_000)
        assert result.get_response()["id"] == "7"
        np.testing.assert_allclose(result.as_numpy("y"), tools.mlp_wants(feeds), rtol=1e-4, atol=1e-5)


def test_futures(server: tools.Server) -> None:
    with http.InferenceServerClient(server.address, concurrency=8) as client:
        many = [tools.mlp_feeds(rows=1 + k % 3, seed=k) for k in range(32)]
        waiting = [client.async_infer("mlp", inputs(http, feeds)) for feeds in many]
        for feeds, each in zip(many, waiting, strict=True):
            np.testing.assert_allclose(each.get_result().as_numpy("y"), tools.mlp_wants(feeds), rtol=1e-4, atol=1e-5)


def test_errors_are_its_own(server: tools.Server) -> None:
    from tritonclient.utils import InferenceServerException

    with http.InferenceServerClient(server.address) as client:
        with pytest.raises(InferenceServerException, match="no model 'none'") as raised:
            client.infer("none", inputs(http, tools.mlp_feeds()))
        assert raised.value.status() == "404"
        with pytest.raises(InferenceServerException, match="does not unpack"):
            client.infer("mlp", inputs(http, tools.mlp_feeds()), request_compression_algorithm="gzip")


def test_repository(server: tools.Server) -> None:
    with http.InferenceServerClient(server.address) as client:
        assert client.get_model_repository_index() == [{"name": "mlp", "version": "1", "state": "READY", "reason": ""}]
        client.unload_model("mlp")
        assert not client.is_model_ready("mlp")
        assert client.get_model_repository_index()[0]["state"] == "UNAVAILABLE"
        client.load_model("mlp")
        assert client.is_model_ready("mlp")
        client.infer("mlp", inputs(http, tools.mlp_feeds()))
        assert client.get_inference_statistics("mlp")["model_stats"][0]["name"] == "mlp"


def test_configuration_and_statistics(server: tools.Server) -> None:
    with http.InferenceServerClient(server.address) as client:
        config = client.get_model_config("mlp")
        assert (config["backend"], config["input"][0]["dims"], config["input"][0]["data_type"]) == ("aspen-mp", [-1, 16], "TYPE_FP32")
        assert config["instance_group"][0]["kind"] == "KIND_CPU"
        before = client.get_inference_statistics("mlp", "1")["model_stats"][0]
        client.infer("mlp", inputs(http, tools.mlp_feeds()))
        after = client.get_inference_statistics()["model_stats"][0]
        assert after["inference_count"] == before["inference_count"] + 1
        assert after["inference_stats"]["success"]["ns"] > before["inference_stats"]["success"]["ns"]


def test_asyncio(server: tools.Server, tmp_path: Path) -> None:
    aio = pytest.importorskip("tritonclient.http.aio")

    async def work() -> None:
        async with aio.InferenceServerClient(server.address) as client:
            assert await client.is_server_ready()
            many = [tools.mlp_feeds(seed=k) for k in range(16)]
            results = await asyncio.gather(*(client.infer("mlp", inputs(aio, feeds)) for feeds in many))
            for feeds, result in zip(many, results, strict=True):
                np.testing.assert_allclose(result.as_numpy("y"), tools.mlp_wants(feeds), rtol=1e-4, atol=1e-5)

    asyncio.run(work())


def test_sequences(server: tools.Server) -> None:
    from tritonclient.utils import InferenceServerException

    with http.InferenceServerClient(server.address) as client:
        for number in (3, "camera"):
            for k in range(4):
                feeds = tools.mlp_feeds(seed=k // 2)
                result = client.infer("mlp", inputs(http, feeds), sequence_id=number, sequence_start=k == 0, sequence_end=k == 3)
                np.testing.assert_allclose(result.as_numpy("y"), tools.mlp_wants(feeds), rtol=1e-4, atol=1e-5)
            with pytest.raises(InferenceServerException, match="is not open"):
                client.infer("mlp", inputs(http, feeds), sequence_id=number)
