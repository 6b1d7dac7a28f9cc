"""`stacks=` of load() reaches the planner, is part of a model's identity, and keeps the bits."""

from __future__ import annotations

import json
from pathlib import Path

import aspen_mp
from aspen_mp.bench import models
from aspen_mp.planner.job.options import Experiment

BLOCKS = 3


def test_on_and_off(tmp_path: Path) -> None:
    net = models.build("pool_blocks", channels=64, image=64, blocks=BLOCKS)  # of a size at which every machine gains by stacks
    x = models.inputs(net)
    found, layers, loaded = set(), [], []
    with aspen_mp.Runtime(workers=2) as runtime:
        for k, how in enumerate(({}, {"stacks": False}, {"planning": Experiment(stack_steps=2)})):
            loaded.append(runtime.load(net, **how))
            with runtime.trace(tmp_path / f"{k}.json"):
                found.add(loaded[-1].run(x)["output"].tobytes())
            events = json.loads((tmp_path / f"{k}.json").read_text())["traceEvents"]
            layers.append({event["name"] for event in events if "MaxPool" in event["name"]})
        assert len(runtime.status()["models"]) == len(loaded), "each is a model of its own"
    assert len(found) == 1
    assert [len(names) for names in layers] == [1, BLOCKS, -(-BLOCKS // 2)]
