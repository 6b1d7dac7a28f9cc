"""Several client processes on one runtime that `aspen-mp launch` has started.

Each client connects by name and loads the model as if it were alone: it gets the one that is there. In production the runtime is a service
of its own and the clients are a server's worker processes; here one program does both.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from multiprocessing import get_context
from typing import Any

import numpy as np

import aspen_mp


def serve(name: str, model: str, number: int, requests: int) -> dict[str, Any]:
    """One client's work."""
    with aspen_mp.connect(name) as runtime:
        loaded = runtime.load(model)
        info = loaded.inputs[0]
        shape = [d if isinstance(d, int) else 1 for d in info.shape or ()]
        random = np.random.default_rng(number)
        given = (random.standard_normal(shape).astype(info.dtype) for _ in range(requests))
        done = sum(1 for _ in loaded.map(given))
        return {"client": number, "pid": os.getpid(), "requests": done}


def launch(name: str, workers: int | None, model: str) -> None:
    """As from a shell: ``aspen-mp launch --detach --name NAME MODEL``."""
    command = [sys.executable, "-P", "-m", "aspen_mp.cli", "launch", "--detach", "--name", name, "--json", model]
    subprocess.run([*command, *(["--workers", str(workers)] if workers else [])], check=True, stdout=subprocess.DEVNULL)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Several client processes share one launched runtime.")
    parser.add_argument("--model", default="zoo:mobilenet_v2", help="An ONNX file, or zoo:NAME.")
    parser.add_argument("--name", default=f"example-{os.getpid()}", help="The name of the runtime.")
    parser.add_argument("--clients", type=int, default=4, help="Number of client processes (default: 4).")
    parser.add_argument("--requests", type=int, default=50, help="Number of requests of each client (default: 50).")
    parser.add_argument("--workers", type=int, default=None, help="Number of workers (default: one for each core).")
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")
    asked = parser.parse_args(arguments)
    launch(asked.name, asked.workers, asked.model)
    with aspen_mp.connect(asked.name) as runtime:
        try:
            with get_context("spawn").Pool(asked.clients) as pool:
                work = [(asked.name, asked.model, k, asked.requests) for k in range(asked.clients)]
                served = pool.starmap(serve, work, chunksize=1)
            status = runtime.status()
        finally:
            runtime.stop()
    models = [{"name": model["name"], "weight_bytes": model["weight_bytes"]} for model in status["models"]]
    report = {"served": served, "models": models, "requests": status["scheduler"]["served"]}
    if asked.json:
        print(json.dumps(report))
        return
    for one in served:
        print(f"client {one['client']} (process {one['pid']}): {one['requests']} requests")
    for model in models:
        print(f"{model['name']}: {model['weight_bytes'] / 2**20:.0f} MiB of weights, once for all of them")


if __name__ == "__main__":
    main()
