"""Triton's routes for memory by name: status, register, unregister."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec
from starlette.requests import Request

from aspen_mp.serving.limits import Limits
from aspen_mp.serving.memory.named import Named, NamedMemory
from aspen_mp.serving.protocol.body import DOCUMENT, Body, Budget
from aspen_mp.serving.protocol.statuses import Refused
from aspen_mp.shm.errors import RequestError


class Sharer(Protocol):
    """A front end's requests to the supervisor."""

    async def share(self, *, add: Named | None = None, remove: str | None = None) -> None:
        """Adds a region to all front ends, or removes one of this name; "" removes all. Refused where that is not done."""


class NamedRoutes:
    """Clients' requests over HTTP, and over gRPC with the same methods. Documents are those of Triton."""

    def __init__(self, memory: NamedMemory, sharer: Sharer, limits: Limits) -> None:
        self.memory = memory
        self._sharer = sharer
        self._limits = limits
        self._budget = Budget(limits.pending)

    def status(self, name: str | None) -> list[dict[str, Any]]:
        """The regions; only that of `name`, if it is given. Refused (404) if there is none."""
        if name and name not in self.memory.all:
            raise Refused(404, f"there is no region {name[:200]!r} of shared memory")
        return [msgspec.to_builtins(each) for each in self.memory.all.values() if not name or each.name == name]

    async def register(self, name: str, document: object) -> None:
        """Registers a region with `key`, `offset` and `byte_size` of a document. RequestError, Refused."""
        try:
            named = msgspec.convert({**document, "name": name} if isinstance(document, dict) else document, Named)
        except msgspec.ValidationError as error:
            raise RequestError(f"region {name[:200]!r}: {error}. It needs key, offset and byte_size") from None
        self.memory.check(named)
        await self._sharer.share(add=named)

    async def unregister(self, name: str | None) -> None:
        """Forgets a region, or all. It is not an error if there is none."""
        await self._sharer.share(remove=name or "")

    # ---- over HTTP

    async def answer_status(self, request: Request) -> list[dict[str, Any]]:
        return self.status(request.path_params.get("name"))

    async def answer_register(self, request: Request) -> dict[str, Any]:
        with Body(request.receive, dict(request.scope["headers"]), self._limits, self._budget) as body:
            text = await body.read_text(None, DOCUMENT)
            try:
                document = msgspec.json.decode(text)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise RequestError(f"the request is not JSON: {error}") from None
            await self.register(request.path_params["name"], document)
        return {}

    async def answer_unregister(self, request: Request) -> dict[str, Any]:
        await self.unregister(request.path_params.get("name"))
        return {}
