"""`/metrics` under both kinds of names."""

from __future__ import annotations

from pathlib import Path

import pytest
import serving_tools as tools
import small_models

pytest.importorskip("prometheus_client")
REQUESTS = 12


def values(client: tools.Client) -> dict[str, float]:
    status, headers, text = client.ask("/metrics")
    assert (status, headers["content-type"].partition(";")[0]) == (200, "text/plain")
    lines = [line for line in text.decode().splitlines() if line.startswith("nv_")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_names_of_triton_have_totals_of_all_front_ends(tmp_path: Path) -> None:
    tools.save(tmp_path, "mlp", 3, small_models.mlp("n"))
    with tools.serving(tmp_path, tmp_path, "--metrics-names", "triton", "--http-workers", "3") as server:
        for _ in range(REQUESTS):
            with tools.client(server.address) as client:
                before = values(client)
                client.infer("mlp", tools.mlp_feeds())
                assert client.ask("/v2/models/mlp/infer", {"inputs": []})[0] == 400
        who = '{model="mlp",version="3"}'
        for _ in range(6):
            with tools.client(server.address) as client:
                found = values(client)
                assert found.keys() == before.keys()
                for name in ("request_success", "count", "exec_count"):
                    assert found[f"nv_inference_{name}{who}"] == before[f"nv_inference_{name}{who}"] + 1 >= REQUESTS
                for name in ("request_duration_us", "queue_duration_us", "compute_infer_duration_us"):
                    assert found[f"nv_inference_{name}{who}"] > 0
                assert found[f"nv_inference_pending_request_count{who}"] == 0
                assert found['nv_inference_request_failure{model="mlp",version="3",reason="BACKEND"}'] == 0


def test_they_are_not_there_unless_asked_for(tmp_path: Path) -> None:
    tools.save(tmp_path, "mlp", 1, small_models.mlp("n"))
    with tools.serving(tmp_path, tmp_path) as server, tools.client(server.address) as client:
        assert values(client) == {}
        assert "aspen_mp_requests_total" in client.ask("/metrics")[2].decode()
