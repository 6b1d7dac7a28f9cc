"""Embeddings under load while front ends and workers are killed: no answer is wrong, and only connections of killed front ends are lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import serving_tools as tools
import text_models

import aspen_mp

KILLS = 500 if os.environ.get("ASPEN_MP_TIER") == "long" else 8
TEXTS = 24
"""Of a request: several groups, so that some of a request have been run when its front end dies."""


@pytest.mark.parametrize("config", ["", "batching = { max_batch = 16, max_delay_ms = 1.0 }\n"], ids=["alone", "batched"])
def test_vectors_are_right_or_their_connection_is_lost(tmp_path: Path, config: str) -> None:
    model = text_models.encoder()
    text_models.save(tmp_path, "encoder", model, config=config)
    texts = [text_models.texts(TEXTS, seed) for seed in range(4)]
    wants = [np.stack([text_models.mean(model, text) for text in each]) for each in texts]

    def ask(k: int, client: tools.Client) -> None:
        status, _, said = client.ask("/v1/embeddings", {"model": "encoder", "input": texts[k]})
        assert status == 200, said
        assert [each["index"] for each in said["data"]] == list(range(TEXTS))
        found = np.array([each["embedding"] for each in said["data"]], np.float32)
        np.testing.assert_allclose(found, wants[k], rtol=1e-4, atol=1e-5)

    with tools.serving(tmp_path, tmp_path, "--http-workers", "2", workers=2) as server, aspen_mp.connect(server.said["runtime"]) as runtime:
        clients = [tools.Retrying(server.address, lambda client, k=k: ask(k, client)) for k in range(len(texts))]  # type: ignore[misc]
        lost = front_ends = 0
        with tools.load(len(clients), lambda k: clients[k]()) as counts:
            for kill in range(KILLS):
                if kill % 2 == 0:
                    server.front_ends()[0].kill()
                    front_ends += 1
                    server.wait_for("is replaced", front_ends)
                else:
                    running = [each["pid"] for each in runtime.status()["workers"] if each["process"] == "running"]
                    if running:
                        os.kill(running[0], signal.SIGKILL)
                counts.wait(2)
                now = sum(each.lost for each in clients)
                assert now == lost or kill % 2 == 0  # a worker's death loses nothing
                lost = now
        assert lost <= len(clients) * front_ends
        for each in clients:
            each.client.close()
        with tools.client(server.address) as client:
            ask(0, client)
            found = client.ask("/v2/models/encoder/stats")[2]["model_stats"][0]["inference_stats"]
        assert found["success"]["count"] >= sum(counts) - lost
        assert found["fail"]["count"] <= lost  # what was in flight in the front ends that were killed
        assert server.stop() == 0
