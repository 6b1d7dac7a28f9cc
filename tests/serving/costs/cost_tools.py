"""A loop whose time does not pass by itself, and bodies of requests without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from aspen_mp.client.signature import ValueInfo
from aspen_mp.serving.limits import Limits
from aspen_mp.serving.protocol import inference
from aspen_mp.serving.protocol.body import Body, Budget

T = TypeVar("T")


class Clock(asyncio.SelectorEventLoop):
    """Time passes only where everybody waits for it, and then at once."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled and not self._selector.select(0):  # type: ignore[attr-defined]
            self.now = max(self.now, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


def run(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work` on a loop with such a clock."""
    loop = Clock()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


def read(
    head: bytes, tail: bytes | None, inputs: Sequence[ValueInfo], limits: Limits, *, said: int | None = None, ends: bool = True
) -> inference.Call:
    """The call that a body is read as. `tail`: what follows the JSON, if its length is said; `said`: the length of the whole, if it is."""

    async def work() -> inference.Call:
        pieces = [{"type": "http.request", "body": part, "more_body": True} for part in (head, tail or b"") if part]
        if ends and pieces:
            pieces[-1]["more_body"] = False

        async def receive() -> Any:
            return pieces.pop(0) if pieces else {"type": "http.disconnect"}

        headers = {} if said is None else {b"content-length": b"%d" % said}
        with Body(receive, headers, limits, Budget(limits.pending)) as body:
            return await inference.read(body, None if tail is None else len(head), inputs)

    return asyncio.run(work())
