"""The arguments that a runtime is started with."""

from __future__ import annotations

import msgspec

from aspen_mp.control.wire.event_log import Level


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`name` empty: the runtime is reachable by its starter alone, and ends with it. `restarts`: how often its starter has lost it before.
    `grace_s`: how long SIGTERM gives to what is in flight. `max_queued`: requests of a client that may wait; 0: any number."""

    name: str = ""
    workers: int | None = None
    cores: list[int] | None = None
    max_workers: int | None = None
    classes: list[str] | None = None
    smt: bool = False
    spin_us: int = 100
    preempt_ms: float = 1.0
    stealing: bool = True
    order: str = "fifo"
    cache: str = ""
    cache_bytes: int = 0
    leases: str = ""
    patience_s: float = 120.0
    planning_bytes: int = 0
    plans_bytes: int = 0
    replan: bool = True
    cancel_grace_s: float = 1.0
    restarts: int = 0
    grace_s: float = 30.0
    max_queued: int = 0
    log: Level = "warning"
