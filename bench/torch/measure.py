"""Networks on each engine: first calls, rounds in which engines take turns, results beside float64."""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from aspen_mp.bench.peers.rounds import OURS, Schedule, take_turns
from aspen_mp.bench.peers.seat import SeatError, Turn
from aspen_mp.bench.torch.engines import ENGINES
from aspen_mp.bench.torch.judge import Array, judge
from aspen_mp.bench.torch.result import EngineResult, NetworkResult
from aspen_mp.bench.torch.seat import TorchSeat
from aspen_mp.control.wire import python

if TYPE_CHECKING:
    from aspen_mp.bench.torch.networks.network import Size, TorchNetwork

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Case:
    """The case of the network in rounds."""

    label: str


def measure(network: TorchNetwork, size: Size, engines: Sequence[str], cores: list[int], schedule: Schedule, say: Say) -> NetworkResult:
    """Measure a network on each of `engines`, each with a thread or a worker on each of `cores`. An engine that fails is left out."""
    failed: dict[str, str] = {}
    cold: dict[str, float] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aspen-mp-torch-")))
        say(f"{network.name}: in float64")
        refer(network.name, size, folder)
        seats: list[TorchSeat] = []
        for engine in engines:
            try:
                say(f"{network.name}: first call of {engine}")
                cold[engine] = _first(engine, network.name, size, folder, cores)
                say(f"{network.name}: {engine} in a second process")
                seats.append(TorchSeat.start(engine, network.name, size, folder, cores))
                stack.callback(seats[-1].close)
            except SeatError as error:
                failed[engine] = str(error)
        os.sync()  # what compilers wrote would go to disk during the first rounds, by threads of the kernel's
        turns, rejected, disturbed = take_turns(_Case(network.name), seats, failed, schedule, say)
        found = [_result(seat, cold[seat.engine], [r[seat.engine] for r in turns]) for seat in seats if turns and seat.engine in turns[0]]
        _compare(found, turns)
        for result in found:
            _judge(result, folder)
        parameters = int(seats[0].info["parameters"]) if seats else 0
    return NetworkResult(network.name, network.family, size, parameters, cores, len(turns), rejected, disturbed, found, failed)


def refer(network: str, size: Size, folder: Path) -> None:
    """Write PyTorch's outputs and those in float64 to `folder`, by a process that ends: weights in float64 are large."""
    command = python.command("aspen_mp.bench.torch.networks.reference", network, size, str(folder))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{network}: PyTorch itself does not run it.\n{done.stderr}")


def _first(engine: str, network: str, size: Size, folder: Path, cores: list[int]) -> float:
    """Seconds of the first call, with caches that are empty."""
    seat = TorchSeat.start(engine, network, size, folder, cores)
    seat.close()
    return float(seat.info["first_s"])


def _result(seat: TorchSeat, cold: float, turns: Sequence[Turn]) -> EngineResult:
    medians = [1e3 * statistics.median(turn.seconds) for turn in turns]
    fastest = 1e3 * min(min(turn.seconds) for turn in turns)
    settings = ENGINES[seat.engine].settings
    return EngineResult(
        seat.engine, seat.info["version"], settings, cold, seat.info["first_s"], statistics.median(medians), fastest, medians
    )


def _compare(results: Sequence[EngineResult], turns: Sequence[dict[str, Turn]]) -> None:
    """Fill in ratios where ours was measured too."""
    for result in results:
        if ENGINES[result.engine].package != ENGINES[OURS].package and all(OURS in turn for turn in turns):
            pairs = [(turn[OURS].seconds, turn[result.engine].seconds) for turn in turns]
            result.ratio = statistics.median(statistics.median(ours) / statistics.median(theirs) for ours, theirs in pairs)


def _judge(result: EngineResult, folder: Path) -> None:
    ours, eager, exact = (_read(folder / f"{name}.npz") for name in (result.engine, "reference", "exact"))
    verdict = judge(ours, eager, exact)
    result.cosine, result.error, result.eager_error, result.wrong = verdict.cosine, verdict.error, verdict.eager_error, verdict.why


def _read(file: Path) -> list[Array]:
    with np.load(file) as archive:
        return [archive[name] for name in archive.files]
