"""A front end's models: those served now, leases on them, and those unloaded once nobody uses them."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy.typing as npt

import aspen_mp
from aspen_mp.serving.arriving import Arrivals
from aspen_mp.serving.batching import Batcher
from aspen_mp.serving.buffers import Buffers, Rooms
from aspen_mp.serving.channel import Catalogue, Served, Unserved
from aspen_mp.serving.limits import Limits
from aspen_mp.serving.protocol import datatypes
from aspen_mp.serving.protocol.inference import Call
from aspen_mp.serving.protocol.statuses import Refused
from aspen_mp.serving.repository.disk import Config
from aspen_mp.serving.sequences import Places, Sequences
from aspen_mp.serving.telemetry import steps
from aspen_mp.serving.telemetry.ledger import Ledger, Row, Totals
from aspen_mp.serving.text import embedder as text
from aspen_mp.serving.text.embedder import Embedder
from aspen_mp.shm.errors import AspenError, UnsupportedModelError
from aspen_mp.shm.words import nearest
from aspen_mp.system import clock

Results = Mapping[str, npt.NDArray[Any]]


def load(runtime: aspen_mp.Runtime, name: str, version: int, path: str, config: Config) -> aspen_mp.Model:
    """A version as supervisor and front ends load it alike, so that they hold the same model. Errors are those of `Runtime.load`."""
    model = runtime.load(
        path,
        name=f"{name}/{version}",
        instances=config.instances,
        input_shapes=config.shapes,
        precision=config.precision,
        objective=config.objective,
        share=config.share,
    )
    for info in (*model.inputs, *model.outputs):
        if info.kind not in {"tensor", "string"} or datatypes.name_of(info.dtype) is None:
            model.unload()
            raise UnsupportedModelError(
                f"model {name!r}: {info.name!r} is {info.type or info.dtype}, for which the Open Inference Protocol has no name. Cast it "
                "in the model, or call the model through aspen_mp.connect"
            )
    return model


def find_embedder(model: aspen_mp.Model, path: str, config: Config) -> Embedder | str:
    """Return the maker of embeddings with a model, or why there is none. After an error, those of `text.find`, the model is unloaded."""
    try:
        return text.find(path, config.embeddings, model.inputs, model.outputs)
    except BaseException:
        model.unload()
        raise


class Shelved:
    """A version in service. Whoever uses it holds a `lease`; once it is retired, the last one unloads it. `counts`: of its requests."""

    def __init__(self, served: Served, model: aspen_mp.Model, embedder: Embedder | str, counts: Row, places: Places) -> None:
        self.served = served
        self.counts = counts
        self.model = model
        self.embedder = embedder
        """The maker of embeddings with the model, or why there is none."""
        self._leases = 0
        self._retired = False
        batching = served.config.batching
        self._batcher = None if batching is None else Batcher(model, batching, counts)
        self._buffers = Buffers(model)
        on = served.config.pieces and batching is None
        self.arrivals = Arrivals(model, counts, served.config.priority) if on else None
        self.sequences = Sequences(model, served.config.sequences.arguments, places, counts)

    @contextlib.contextmanager
    def lease(self) -> Iterator[Shelved]:
        """Keeps the version loaded until the end of the block."""
        self._leases += 1
        try:
            yield self
        finally:
            self._leases -= 1
            self._unload_if_unused()

    def rooms(self) -> Rooms:
        """Where the inputs of a request are read into."""
        return self._buffers.rooms()

    def retire(self) -> None:
        """It is served no more. Called on the event loop, as all of this."""
        self._retired = True
        self.sequences.close()
        self._unload_if_unused()

    def _unload_if_unused(self) -> None:
        if self._retired and not self._leases:
            self._buffers.close()
            if self.arrivals is not None:
                self.arrivals.close()
            self.sequences.when_closed(lambda: asyncio.get_running_loop().run_in_executor(None, _unload, self.model))

    async def run(self, call: Call) -> Results:
        """The results of a request. Errors are those of `Model.run_async`."""
        config = self.served.config
        priority = call.priority or config.priority
        deadline_ms = call.deadline_ms or config.deadline_ms
        if self._batcher is not None and self._batcher.takes(call):
            return await self._batcher.run(call, priority, deadline_ms)
        if (trace := steps.CURRENT.get()) is not None:
            trace.enter(steps.RUN, **steps.of_batch(_rows(call)))
        began = clock.monotonic_ns()
        feed = call.feed
        results: Results | None
        if call.frame is not None:
            results = await self.sequences.run(call, priority, deadline_ms)
        elif feed is None or (results := await feed.results(deadline_ms)) is None:
            results = await self.model.run_async(call.feeds, call.outputs, priority=priority, deadline_ms=deadline_ms, copy=False)
            if feed is not None:
                feed.took(clock.monotonic_ns() - began)
        elif trace is not None:
            trace.note(**steps.IN_PIECES)
        self.counts.executed(_rows(call), clock.monotonic_ns() - began)
        return results


def _rows(call: Call) -> int:
    """The first extent of a request's first input."""
    first = next(iter(call.feeds.values()), None)
    return first.shape[0] if first is not None and first.ndim else 1


def _unload(model: aspen_mp.Model) -> None:
    with contextlib.suppress(AspenError):
        model.unload()


def _shelved(runtime: aspen_mp.Runtime, served: Served, counts: Row, places: Places) -> Shelved:
    model = load(runtime, served.name, served.version, served.path, served.config)
    return Shelved(served, model, find_embedder(model, served.path, served.config), counts, places)


class Supervised(Protocol):
    """A front end's requests to the supervisor."""

    async def change(self, model: str, *, load: bool) -> None:
        """Load or unload a model of the repository, in all front ends. Refused where that is not done."""


class Shelf:
    """The models of a front end, as the last catalogue says.

    Attributes:
        absent: Why requests are not served now; empty if they are.
        closing: Whether the server stops: it is not ready any more, and connections end with their answers.
        change: Is set at the next change of the models in service, or of their readiness. Take it before you look.
    """

    def __init__(self, runtime: aspen_mp.Runtime, ledger: Ledger, places: Places | None = None) -> None:
        """`places`: room for sequences. None: as many as `Limits` has by default."""
        self.runtime = runtime
        self._ledger = ledger
        self._places = places or Places(Limits())
        self.absent = "the server starts"
        self.closing = False
        self.change = asyncio.Event()
        self._catalogue = Catalogue(number=0, served=[], unserved=[])
        self._shelved: dict[str, dict[int, Shelved]] = {}

    async def apply(self, catalogue: Catalogue) -> dict[str, str]:
        """Serves the models of a catalogue. Returns {model: reason} for those that could not be loaded; the versions before them stay
        then."""
        failed: dict[str, str] = {}
        wanted: dict[str, list[Served]] = {}
        for served in catalogue.served:
            wanted.setdefault(served.name, []).append(served)
        for name, versions in wanted.items():
            try:
                await self._replace(name, versions)
            except Exception as error:
                print(f"aspen-mp serve: model {name!r} was not loaded by a front end: {error}", file=sys.stderr, flush=True)
                failed[name] = str(error)
        for name in self._shelved.keys() - wanted.keys():
            for shelved in self._shelved.pop(name).values():
                shelved.retire()
        self._catalogue = catalogue
        self.absent = catalogue.absent
        self.closing |= catalogue.draining
        self.tell()
        return failed

    def tell(self) -> None:
        """Wake those who wait for a change."""
        before, self.change = self.change, asyncio.Event()
        before.set()

    async def _replace(self, name: str, versions: list[Served]) -> None:
        """New versions are loaded before old ones are retired: there is no moment without one."""
        before = self._shelved.get(name, {})
        after: dict[int, Shelved] = {}
        for served in versions:
            known = before.get(served.version)
            if known is not None and known.served == served:
                after[served.version] = known
                continue
            counts = self._ledger.row(name, served.version, in_batches=served.config.batching is not None)
            try:
                after[served.version] = await asyncio.to_thread(_shelved, self.runtime, served, counts, self._places)
            except BaseException:
                for version, shelved in after.items():
                    if before.get(version) is not shelved:
                        shelved.retire()
                raise
        self._shelved[name] = after
        for version, shelved in before.items():
            if after.get(version) is not shelved:
                shelved.retire()

    def close_sequences(self) -> None:
        """End all sequences of all versions: no request comes any more."""
        for each in self.all:
            each.sequences.close()

    def refuse_if_absent(self) -> None:
        """Refused (503) where requests are not served now."""
        if self.absent:
            raise Refused(503, f"requests are not served now: {self.absent}", 1)

    def find(self, name: str, version: str | None = None) -> Shelved:
        """The version of a model, the newest where none is asked for. Refused: 404 where there is none, 503 where it failed."""
        versions = self._shelved.get(name)
        if not versions:
            reasons = [each.reason for each in self._catalogue.unserved if each.name == name]
            if reasons:
                raise Refused(503, f"model {name!r} is not served: {reasons[0]}", 5)
            meant = nearest(name, self._shelved)
            hint = f" (is {meant!r} meant?)" if meant else ""
            raise Refused(404, f"there is no model {name[:200]!r}{hint}. GET /v2/health/ready says what is not ready")
        if version is None:
            return versions[max(versions)]
        found = versions.get(int(version)) if version.isascii() and version.isdecimal() and len(version) < 20 else None
        if found is None:
            there = ", ".join(map(str, sorted(versions)))
            raise Refused(404, f"model {name!r} has no version {version[:40]!r}. Served is {there}")
        return found

    def versions(self, name: str) -> list[str]:
        """The versions of a model that are served, the oldest first."""
        return [str(version) for version in sorted(self._shelved.get(name, {}))]

    def totals(self, shelved: Shelved) -> Totals:
        """The counts of a version by all front ends."""
        return self._ledger.totals(shelved.served.name, shelved.served.version)

    @property
    def all(self) -> list[Shelved]:
        """Every version in service."""
        return [shelved for versions in self._shelved.values() for shelved in versions.values()]

    @property
    def unserved(self) -> list[Unserved]:
        """Every version that is known and not served."""
        return self._catalogue.unserved
