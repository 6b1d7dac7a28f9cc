"""A network on one engine in a process of its own, and the parent's handle on it."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from aspen_mp.bench.peers.process import EngineProcess
from aspen_mp.bench.peers.seat import Turn
from aspen_mp.bench.torch import engines

if TYPE_CHECKING:
    from aspen_mp.bench.torch.networks.network import Size


@dataclass(slots=True)
class TorchSeat(EngineProcess):
    """Parent's handle on the process of an engine with one network."""

    @classmethod
    def start(cls, engine: str, network: str, size: Size, folder: Path, cores: list[int], runtime: str | None = None) -> TorchSeat:
        """Start the process and wait until it has the first result, which it writes to `folder`/ENGINE.npz. Caches are below `folder`, too.

        `runtime`: a named runtime of aspen-mp's to use, instead of one of its own. SeatError says why the engine cannot run the network.
        """
        module = __spec__.name if __spec__ else __name__
        arguments = [engine, network, size, str(folder), ",".join(map(str, cores)), runtime or ""]
        return cls.launch(module, engine, engine, cores, arguments)

    def turn(self, seconds: float, runs: int, beside: Callable[[], float] = float) -> Turn:
        """Call it once to warm up, then at least `runs` times and `seconds` long. `beside`: see `watched`."""
        reply, foreign = self.watched(beside, seconds=seconds, runs=runs)
        return Turn(reply["times"], foreign)


def child(engine: str, network: str, size: Size, folder: Path, cores: list[int], runtime: str | None, requests: IO[str], say: Any) -> None:
    """Runs the engine's process until the request pipe closes. `say`: takes what is told to the parent."""
    warnings.simplefilter("ignore")
    logging.disable()
    engines.pin(cores)
    engines.use_caches(folder / engine)
    try:
        import torch

        from aspen_mp.bench.torch.networks.all import NETWORKS
        from aspen_mp.bench.torch.networks.network import call
        from aspen_mp.bench.torch.networks.reference import arrays

        torch.set_num_threads(len(cores))
        module, inputs = NETWORKS[network].module(size), NETWORKS[network].inputs(size)
        with torch.no_grad():
            begin = time.perf_counter()
            prepared = engines.ENGINES[engine].prepare(module, runtime, folder / engine)
            outputs = call(prepared, inputs)
            first = time.perf_counter() - begin
            np.savez(folder / f"{engine}.npz", *arrays(outputs))
            del outputs
            say(first_s=first, version=engines.ENGINES[engine].version, parameters=sum(p.numel() for p in module.parameters()))
            for line in requests:
                order = json.loads(line)
                say(times=_times(lambda: call(prepared, inputs), order["seconds"], order["runs"]))
    except Exception as error:
        say(error=f"{type(error).__name__}: {error}".partition("\n\n")[0])


def _times(run: Callable[[], object], seconds: float, runs: int) -> list[float]:
    run()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < runs or time.perf_counter() < end:
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return times


def main() -> None:
    engine, network, size, folder, cores, runtime, request, reply = sys.argv[1:]
    with os.fdopen(int(request)) as requests, os.fdopen(int(reply), "w") as replies:

        def say(**message: Any) -> None:
            replies.write(json.dumps(message) + "\n")
            replies.flush()

        numbers = [int(core) for core in cores.split(",")]
        child(engine, network, size, Path(folder), numbers, runtime or None, requests, say)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
