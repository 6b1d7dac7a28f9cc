"""A crew in a process of its own, which does nothing until it is given an order (`traffic.Order`)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import msgspec

from aspen_mp.bench.coexecution import crew, traffic
from aspen_mp.bench.coexecution.traffic import Order, Run
from aspen_mp.bench.peers.process import EngineProcess
from aspen_mp.bench.peers.seat import read


class Start(msgspec.Struct, kw_only=True):
    """The start message of a process. `networks`: model file and .npz file of inputs, each."""

    engine: str
    networks: list[tuple[str, str]]
    cores: list[int]
    options: dict[str, Any]


@dataclass(slots=True)
class Performance:
    """The result of an order. `foreign`: how busy the cores were with anything else meanwhile, in cores."""

    runs: list[Run] = field(default_factory=list)
    foreign: float = 0.0

    @property
    def spans_ms(self) -> list[float]:
        """How long each run took (`traffic.makespan_ms`)."""
        return [traffic.makespan_ms(run) for run in self.runs]

    def ms(self, network: int) -> list[float]:
        """How long each request to a network took."""
        return [answer.ms for run in self.runs for act in run for answer in act if answer.network == network]


class CrewSeat(EngineProcess):
    """Parent's handle on the process of a crew."""

    @classmethod
    def start(
        cls, engine: str, networks: Sequence[tuple[Path, Path]], cores: Sequence[int], options: Mapping[str, Any], label: str
    ) -> CrewSeat:
        """Start the process, and wait until it has loaded the networks and run each once."""
        files = [(str(model), str(feeds)) for model, feeds in networks]
        told = Start(engine=engine, networks=files, cores=list(cores), options=dict(options))
        return cls.launch("aspen_mp.bench.coexecution.seat", engine, label, list(cores), [msgspec.json.encode(told).decode()])

    def perform(self, order: Order) -> Performance:
        """Carry out an order."""
        reply, foreign = self.watched(order=msgspec.to_builtins(order))
        return Performance(msgspec.convert(reply["runs"], list[Run]), foreign)


def child(told: Start, requests: IO[str], replies: IO[str]) -> None:
    """Runs the process until the request pipe closes."""

    def reply(**message: Any) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    try:
        members = crew.load(told.engine, [(model, read(feeds)) for model, feeds in told.networks], told.cores, told.options)
    except Exception as error:
        reply(error=f"{type(error).__name__}: {error}")
        return
    try:
        reply(settings=members.settings)
        for line in requests:
            order = msgspec.convert(json.loads(line)["order"], Order)
            reply(runs=msgspec.to_builtins(traffic.play(members.call, order, members.presence)))
    except Exception as error:
        reply(error=f"{type(error).__name__}: {error}")
    finally:
        members.close()


def main() -> None:
    told, request, reply = sys.argv[1:]
    # Nobody reads a reply any more where the parent was interrupted.
    with suppress(BrokenPipeError), os.fdopen(int(request)) as requests, os.fdopen(int(reply), "w") as replies:
        child(msgspec.json.decode(told, type=Start), requests, replies)


if __name__ == "__main__":
    main()
