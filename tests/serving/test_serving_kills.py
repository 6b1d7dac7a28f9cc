"""Front ends, workers and clients that are killed in turn, under load: all that is lost are connections of the front ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import serving_tools as tools
import small_models

import aspen_mp

KILLS = 1000 if os.environ.get("ASPEN_MP_TIER") == "long" else 9
CLIENT = """
import http.client, sys

host, body = sys.argv[1], sys.argv[2].encode()
connection = http.client.HTTPConnection(host)
while True:
    try:
        connection.request("POST", "/v2/models/mlp/infer", body)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200
    except (ConnectionError, http.client.HTTPException):
        connection.close()
        continue
    print("answered", flush=True)
"""


def kill_front_end(server: tools.Server, before: int) -> None:
    server.front_ends()[0].kill()
    server.wait_for("is replaced", before + 1)


def kill_worker(runtime: aspen_mp.Runtime) -> None:
    running = [each["pid"] for each in runtime.status()["workers"] if each["process"] == "running"]
    if running:
        os.kill(running[0], signal.SIGKILL)


def kill_client(server: tools.Server, body: str) -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", CLIENT, server.address, body], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "answered\n"
        child.kill()


def test_whatever_is_killed_the_others_go_on(tmp_path: Path) -> None:
    tools.save(tmp_path, "mlp", 1, small_models.mlp("n"))
    feeds = tools.mlp_feeds()
    wants = tools.mlp_wants(feeds)

    def check(client: tools.Client) -> None:
        np.testing.assert_allclose(client.infer("mlp", feeds)["y"], wants, rtol=1e-4, atol=1e-5)

    with tools.serving(tmp_path, tmp_path, "--http-workers", "2", workers=2) as server, aspen_mp.connect(server.said["runtime"]) as runtime:
        clients = [tools.Retrying(server.address, check) for _ in range(4)]
        own = tools.Retrying(server.address, check)
        body = json.dumps({"inputs": [{"name": "x", "shape": [3, 16], "datatype": "FP32", "data": feeds["x"].ravel().tolist()}]})
        lost = front_ends = 0
        with tools.load(len(clients), lambda k: clients[k]()) as counts:
            for kill in range(KILLS):
                if kill % 3 == 0:
                    kill_front_end(server, front_ends)
                    front_ends += 1
                elif kill % 3 == 1:
                    kill_worker(runtime)
                else:
                    kill_client(server, body)
                goals = [count + 2 for count in counts]
                while any(count < goal for count, goal in zip(counts, goals, strict=True)):
                    own()
                    counts.check()
                now = sum(each.lost for each in (*clients, own))
                assert now == lost or kill % 3 == 0
                lost = now
        assert lost <= (len(clients) + 1) * front_ends
        assert runtime.status()["recovery"]["worker_deaths"] >= KILLS // 3 // 2
        for each in (*clients, own):
            each.client.close()
        with tools.client(server.address) as client:
            assert client.ask("/v2/health/ready")[2] == {"ready": True}
        assert server.stop() == 0
