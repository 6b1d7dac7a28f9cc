"""The supervisor's models: which versions are served. A new one is loaded and warmed up here before any front end hears of it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import aspen_mp
from aspen_mp.client.signature import ValueInfo
from aspen_mp.serving.channel import Served, Unserved
from aspen_mp.serving.repository.disk import Config, Contents, Found, lacks, scan
from aspen_mp.serving.shelf import find_embedder, load
from aspen_mp.shm.errors import AspenError, PoisonTile, RequestError, RuntimeLost


class Keeper:
    """Models of repositories, and models that are files by themselves.

    Attributes:
        served: Every version in service.
        unserved: Every other one that is newer than those, or whose model has none in service, with the reason.
        lacks: Whether a version, or the look at a repository, failed for want of memory, descriptors or processes: it may succeed later.
    """

    def __init__(self, runtime: aspen_mp.Runtime, repositories: Sequence[Path], files: Sequence[Found]) -> None:
        self._runtime = runtime
        self._repositories = repositories
        self._files = files
        self._held: dict[Found, aspen_mp.Model] = {}
        self._failed: dict[Found, str] = {}
        self._given_up: dict[str, str] = {}
        self._noticed: set[str] = set()
        self._said: dict[Found, str] = {}
        self.lacks = False
        self.served: list[Served] = []
        self.unserved: list[Unserved] = []

    async def revive(self) -> None:
        """Loads everything again in the runtime that came after one that was lost. Models that cannot be loaded are forgotten: `settle`
        takes what is on disk now. RuntimeLost where the runtime has gone again."""
        for found, model in list(self._held.items()):
            while True:
                before = await asyncio.to_thread(lambda: self._runtime.pid)
                try:
                    await asyncio.to_thread(model.revive)
                except AspenError as error:
                    if before != await asyncio.to_thread(lambda: self._runtime.pid):
                        continue  # that is why
                    _say(f"version {found.version} of model {found.name!r} cannot be loaded again: {error}")
                    self._held.pop(found, None)
                break

    async def settle(self) -> list[aspen_mp.Model]:
        """Brings the models in service in line with the disk. Returns models to unload once no front end uses them any more.

        RuntimeLost where the runtime has gone meanwhile; then the old models are still said to be served.
        """
        contents = await asyncio.to_thread(self._contents)
        for text in contents.unread:
            if text not in self._noticed:
                _say(text)
        self._noticed = set(contents.unread)
        self.lacks = contents.lacks
        served: list[Found] = []
        unserved = [Unserved(name=name, version=0, reason=reason) for name, reason in contents.broken.items()]
        served += [found for found in self._held if found.name in contents.broken]  # a bad configuration ends nothing
        for name, versions in contents.versions.items():
            if name in self._given_up:
                unserved.append(Unserved(name=name, version=0, reason=self._given_up[name]))
                continue
            chosen, bad = await self._choose(versions)
            served += chosen
            unserved += bad
        self._failed = {found: why for found, why in self._failed.items() if found in contents.versions.get(found.name, ())}
        self._said = {found: why for found, why in self._said.items() if found in contents.versions.get(found.name, ())}
        self.served = [_served(found) for found in served]
        self.unserved = unserved
        return [self._held.pop(found) for found in self._held.keys() - set(served)]

    def _contents(self) -> Contents:
        """The content of the disk. A repository that cannot be read now keeps its models in service."""
        together = Contents()
        for root in self._repositories:
            try:
                found = scan(root)
            except (OSError, MemoryError) as error:
                held = [each.name for each in self._held if Path(each.path).is_relative_to(root)]
                text = f"repository {root} cannot be read: {error}"
                found = Contents(broken=dict.fromkeys(held, str(error)), unread=[text], lacks=lacks(error))
            for name, versions in found.versions.items():
                if together.versions.setdefault(name, versions) is not versions:
                    together.broken[name] = f"model {name!r} is in {root}, too. Give one of them another name"
            together.broken |= found.broken
            together.unread += found.unread
            together.lacks |= found.lacks
        for file in self._files:
            together.versions[file.name] = [file]
        for name in together.broken:
            together.versions.pop(name, None)
        return together

    async def _choose(self, versions: Sequence[Found]) -> tuple[list[Found], list[Unserved]]:
        """The newest versions that work, as many as are wanted, and those before which others are served instead."""
        chosen: list[Found] = []
        bad: list[Unserved] = []
        for found in versions:
            if len(chosen) == found.config.versions:
                break
            why = self._failed.get(found) or await self._hold(found)
            if why:
                bad.append(Unserved(name=found.name, version=found.version, reason=why))
            else:
                chosen.append(found)
        for each in bad:  # the same version with earlier contents goes on where the new ones fail
            before = next((held for held in self._held if (held.name, held.version) == (each.name, each.version)), None)
            if before is not None and len(chosen) < versions[0].config.versions:
                chosen.append(before)
        return chosen, bad

    async def _hold(self, found: Found) -> str:
        """Loads a version unless it is loaded. Returns why it cannot be, or nothing."""
        if found in self._held:
            return ""
        try:
            self._held[found] = await asyncio.to_thread(_load, self._runtime, found)
        except RuntimeLost:
            raise
        except Exception as error:
            why = str(error) if isinstance(error, AspenError) else f"{type(error).__name__}: {error}"
            if isinstance(error, OSError) or lacks(error):
                self.lacks = True
            else:
                self._failed[found] = why
            if self._said.get(found) != why:
                self._said[found] = why
                _say(f"version {found.version} of model {found.name!r} is not served: {error}")
            return why
        self._said.pop(found, None)
        _say(f"version {found.version} of model {found.name!r} is loaded")
        return ""

    def bring(self, name: str) -> None:
        """A client wants a model loaded: a load that failed before is tried again."""
        self._given_up.pop(name, None)
        self._failed = {found: why for found, why in self._failed.items() if found.name != name}

    def give_up(self, name: str) -> None:
        """A client wants a model unloaded."""
        self._given_up[name] = "unloaded by a client; POST /v2/repository/models/NAME/load brings it back"


def _served(found: Found) -> Served:
    return Served(name=found.name, version=found.version, path=found.path, stamp=found.stamp, config=found.config)


def _load(runtime: aspen_mp.Runtime, found: Found) -> aspen_mp.Model:
    """Loaded, and run once where its shapes are known, so that the first request of a client is not the first of all."""
    model = load(runtime, found.name, found.version, found.path, found.config)
    embedder = find_embedder(model, found.path, found.config)
    feeds = _zeros(model.inputs, found.config) or (None if isinstance(embedder, str) else embedder.example())
    if feeds is not None:
        try:
            model.prepare({name: value.shape for name, value in feeds.items()})
            model.run(feeds)
        except PoisonTile:
            model.unload()
            raise
        except RequestError:
            pass  # an operator may refuse zeros, and no other inputs are known
    return model


def _zeros(inputs: Sequence[ValueInfo], config: Config) -> dict[str, Any] | None:
    """Inputs to warm up with; None where a shape is not known."""
    feeds: dict[str, Any] = {}
    for info in inputs:
        if info.optional:
            continue
        shape = (config.shapes or {}).get(info.name, info.shape)
        if shape is None or info.kind != "tensor" or not all(isinstance(dim, int) for dim in shape):
            return None
        feeds[info.name] = np.zeros(shape, info.dtype)
    return feeds


def unload(models: Sequence[aspen_mp.Model]) -> None:
    """Gives models back, as far as their runtime is still there."""
    for model in models:
        with contextlib.suppress(AspenError):
            model.unload()


def _say(text: str) -> None:
    print(f"aspen-mp serve: {text}", file=sys.stderr, flush=True)
