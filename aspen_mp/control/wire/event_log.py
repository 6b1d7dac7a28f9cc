"""Events of a runtime, each once: a structured line on the planner process's standard error, and the latest for `status`.

2026-11-20T17:40:00.123Z aspen-mp[default] worker-died worker=1 pid=4711 cpu=1 why="ended by SIGKILL"
"""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Literal

from aspen_mp.shm.scarcity import reason
from aspen_mp.system import clock

KEPT: Final = 64
SCARCE_SAID_S: Final = 10.0
"""Seconds before the same shortage is logged again."""
Level = Literal["info", "warning", "off"]


class EventLog:
    """`level`: which events are written; all are kept."""

    def __init__(self, runtime: str, level: Level) -> None:
        self._runtime = runtime or "private"
        self._level = level
        self._latest: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._listeners: list[Callable[[str, dict[str, Any]], None]] = []

    def listen(self, told: Callable[[str, dict[str, Any]], None]) -> None:
        """`told(event, facts)` is called with each event from now on."""
        self._listeners.append(told)

    def info(self, event: str, **facts: Any) -> None:
        """Something that was asked for, or is of no consequence."""
        self._note("info", event, facts)

    def warning(self, event: str, **facts: Any) -> None:
        """Something that nobody asked for."""
        self._note("warning", event, facts)

    def note(self, event: str, **facts: Any) -> None:
        """An event that `status` shows and nobody has to read as it happens: kept, never written."""
        self._keep("info", event, facts)

    def latest(self) -> list[dict[str, Any]]:
        """The newest events, oldest first: time (seconds since 1970), level, event, and its facts."""
        return list(self._latest)

    def _keep(self, level: Literal["info", "warning"], event: str, facts: dict[str, Any]) -> float:
        now = clock.time()
        self._latest.append({"time": now, "level": level, "event": event, **facts})
        for told in self._listeners:
            told(event, facts)
        return now

    def _note(self, level: Literal["info", "warning"], event: str, facts: dict[str, Any]) -> None:
        now = self._keep(level, event, facts)
        if self._level == "off" or (level == "info" and self._level == "warning"):
            return
        when = clock.strftime("%Y-%m-%dT%H:%M:%S", clock.gmtime(now)) + f".{int(now % 1 * 1000):03}Z"
        words = [f"{key}={_written(value)}" for key, value in facts.items()]
        with suppress(OSError, ValueError):  # nobody listens any more
            sys.stderr.write(" ".join([when, f"aspen-mp[{self._runtime}]", event, *words]) + "\n")
            sys.stderr.flush()


class ShortageLog:
    """Logs what is scarce, and says the same again only where `SCARCE_SAID_S` have passed without it."""

    def __init__(self, event_log: EventLog) -> None:
        self._event_log = event_log
        self._said_at: dict[str, float] = {}

    def note(self, error: BaseException) -> None:
        """Something could not be done now, and is done later."""
        why, now = reason(error), clock.monotonic()
        if now - self._said_at.get(why, -SCARCE_SAID_S) >= SCARCE_SAID_S:
            self._event_log.warning("planner-lacks", why=why)
        self._said_at = {why: now}


def _written(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return text if text and not set(text) & set(' "=\n\t') else json.dumps(text)
