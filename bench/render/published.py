"""The records that are published: `bench/results/MACHINE/NAME.json`, each with the type of its benchmark's result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aspen_mp.bench import churn, clients, elastic, errors, prediction, storm
from aspen_mp.bench.coexecution.contention import ContentionResult
from aspen_mp.bench.coexecution.coplans import CoplansResult
from aspen_mp.bench.coexecution.deadlines import DeadlinesResult
from aspen_mp.bench.coexecution.dynamic import DynamicResult
from aspen_mp.bench.coexecution.priority import PriorityResult
from aspen_mp.bench.coexecution.together import TogetherResult
from aspen_mp.bench.figures.compare import Comparison
from aspen_mp.bench.figures.hetero import HeteroResult
from aspen_mp.bench.figures.lengths import LengthsResult
from aspen_mp.bench.figures.scaling import ScalingResult
from aspen_mp.bench.figures.sizes import SizesResult
from aspen_mp.bench.figures.stacks import StacksResult
from aspen_mp.bench.peers.report import PeersResult
from aspen_mp.bench.ray.result import RayResult
from aspen_mp.bench.records import record
from aspen_mp.bench.records.record import Record
from aspen_mp.bench.serve.result import ServeResult
from aspen_mp.bench.streams import cameras, frames
from aspen_mp.bench.torch.result import TorchResult
from aspen_mp.cli.documents import schema

RESULTS: dict[str, Any] = {
    "peers": PeersResult,
    "defaults": PeersResult,
    "scaling": list[ScalingResult],
    "hetero": list[HeteroResult],
    "lengths": list[LengthsResult],
    "sizes": list[SizesResult],
    "barriers": list[Comparison],
    "order": list[Comparison],
    "tiles": list[Comparison],
    "synthetic": list[Comparison],
    "stacks": StacksResult,
    "together": TogetherResult,
    "priority": PriorityResult,
    "deadlines": DeadlinesResult,
    "dynamic": DynamicResult,
    "contention": ContentionResult,
    "coplans": CoplansResult,
    "torch": TorchResult,
    "ray": RayResult,
    "serve": ServeResult,
    "elastic": elastic.Run,
    "storm": storm.Storm,
    "churn": churn.Churn,
    "clients": clients.ClientsResult,
    "stream": list[frames.StreamResult],
    "cameras": list[cameras.CamerasResult],
    "agreement": list[errors.Row],
    "prediction": list[prediction.Row],
}
"""The type of each benchmark's record."""


@dataclass(frozen=True, slots=True)
class Published:
    """A record and its file. `folder` names the machine's folder."""

    file: Path
    record: Record[Any]

    @property
    def folder(self) -> str:
        return self.file.parent.name

    @property
    def link(self) -> str:
        """The file, seen from the root of the repository."""
        return f"bench/results/{self.folder}/{self.file.name}"


def read(folder: Path) -> list[Published]:
    """All records below `bench/results`, machines with most cores first. ValueError names a file that does not belong there."""
    found = []
    for file in sorted(folder.glob("*/*.json")):
        benchmark = json.loads(file.read_text("utf-8")).get("benchmark")
        if benchmark not in RESULTS:
            raise ValueError(f"{file}: no benchmark {benchmark!r} publishes records. These do: {', '.join(RESULTS)}")
        known = record.load(file, RESULTS[benchmark])
        if known.machine.slug != file.parent.name:
            raise ValueError(f"{file}: the record is of the machine {known.machine.slug}. Move it to that folder")
        if known.disturbed:
            raise ValueError(f"{file}: the run was disturbed ({known.disturbed[0]}). Measure again with: {known.command}")
        found.append(Published(file, known))
    return sorted(found, key=lambda item: (-item.record.machine.cores, item.folder, item.file.name))


def schemas() -> dict[str, str]:
    """Return the text of the JSON schema of each benchmark's records, by the name of its file."""
    title = "a record of aspen-mp bench"
    return {f"{name}.json": schema.text(Record[kind], f"{title} {name}").decode() for name, kind in RESULTS.items()}  # type: ignore[valid-type]


def of(published: Iterable[Published], *benchmarks: str) -> list[Published]:
    """Those of some benchmarks, in the given order of benchmarks for each machine."""
    chosen = [item for item in published if item.record.benchmark in benchmarks]
    return sorted(chosen, key=lambda item: (-item.record.machine.cores, item.folder, benchmarks.index(item.record.benchmark)))


def digest(published: Sequence[Published]) -> str:
    """SHA-256 of the files, which says whether a picture made from them is out of date."""
    return hashlib.sha256(b"".join(item.file.read_bytes() for item in published)).hexdigest()
