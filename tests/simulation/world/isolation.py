"""Variables of modules that each process has for itself.

All simulated processes share one interpreter, so they share its modules. A variable that changes while they run must be a process's
own, so it is exchanged whenever another process runs.
"""

from __future__ import annotations

import copy
import importlib
import itertools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from simulation.world.processes import Process


def _lock(kind: str) -> Callable[[], Any]:
    def make() -> Any:
        from aspen_mp.system import threads

        return getattr(threads, kind)()

    return make


def _descriptors() -> Any:
    from aspen_mp.serving.access.descriptors import Descriptors

    return Descriptors()


class WeakSet(weakref.WeakSet[Any]):
    """As that of the standard library, but in the order in which things came: that of addresses differs from run to run."""

    def __init__(self, data: Any = None) -> None:
        super().__init__()
        self.data = Ordered()  # type: ignore[assignment]
        for each in data or ():
            self.add(each)


class Ordered(dict[Any, None]):
    """A dictionary with the methods of a set that `WeakSet` needs."""

    def add(self, key: Any) -> None:
        self[key] = None

    def discard(self, key: Any) -> None:
        self.pop(key, None)

    def remove(self, key: Any) -> None:
        del self[key]

    def copy(self) -> Ordered:
        return Ordered(self)


OWN: Final[list[tuple[str, str, Callable[[], Any] | None]]] = [
    ("aspen_mp.client.link", "_links", WeakSet),
    ("aspen_mp.client.link", "_by_address", weakref.WeakValueDictionary),
    ("aspen_mp.client.link", "_by_address_lock", _lock("Lock")),
    *[("aspen_mp.client.deadlines:deadlines", name, None) for name in ("_times", "_late", "_thread", "_changed", "_numbers")],
    ("aspen_mp.client.runtime", "_live", WeakSet),
    ("aspen_mp.client.requests.zero_copy", "_files", weakref.WeakKeyDictionary),
    ("aspen_mp.client.requests.stage", "_numbers", lambda: itertools.count(1)),
    ("aspen_mp.client.requests.stage", "_regions", _lock("RLock")),
    ("aspen_mp.client.requests.stage", "_stages", WeakSet),
    ("aspen_mp.control.wire.child_reaper", "_zombies", list),
    ("aspen_mp.workers.process", "_limit", int),
    ("aspen_mp.workers.fallback.interrupt", "_unwanted", None),
    ("aspen_mp.planner.job.progress", "_told", None),
    ("aspen_mp.planner.cost.op_cost", "_in_use", None),
    ("aspen_mp.compat.default_runtime", "_runtime", None),
    ("aspen_mp.compat.default_runtime", "_owner", None),
]
"""Module, variable, and what makes its value in a process that has just started. None: the value of the imported module."""

OWN_OF_CLASSES: Final[list[tuple[str, str, str, Callable[[], Any] | None]]] = [
    ("aspen_mp.serving.access.connections", "LimitedConnection", "limits", None),
    ("aspen_mp.serving.access.connections", "LimitedConnection", "_scratch", lambda: memoryview(bytearray(256 << 10))),
    ("aspen_mp.serving.access.ending", "EndingConnection", "ending", bool),
    ("aspen_mp.serving.access.ending", "EndingConnection", "limits", None),
    ("aspen_mp.serving.access.ending", "EndingConnection", "all_gone", lambda: None),
    ("aspen_mp.serving.access.ending", "EndingConnection", "shaking", weakref.WeakSet),
    ("aspen_mp.serving.access.unread", "Unread", "owing", dict),
]
"""Module, class or object, attribute, and what makes its value. They are exchanged where servers are simulated."""

ANEW: Final = {"_links", "_by_address", "_by_address_lock", "_live", "_files", "_regions", "_stages"}
"""Variables that are empty in a forked child, which is none of a client's here."""


def _place(where: str, name: str, make: Callable[[], Any] | None) -> tuple[dict[str, Any], str, Callable[[], Any]]:
    """The dictionary in which a variable lies: a module's, or of an object in it. An object's begin as in a new one."""
    module, _, thing = where.partition(":")
    values = importlib.import_module(module).__dict__
    if thing:
        owner = values[thing]
        return owner.__dict__, name, make or (lambda: type(owner)().__dict__[name])
    initial = values[name]
    return values, name, make or (lambda: initial)


class Globals:
    """Exchanges the variables of `OWN`."""

    def __init__(self) -> None:
        self._places = [_place(*entry) for entry in OWN]
        self._attributes: list[tuple[Any, str, Callable[[], Any]]] = []

    def serve(self) -> None:
        """Exchange the variables of servers, too."""
        self._places.append(_place("aspen_mp.serving.access.descriptors", "OWN", _descriptors))
        for module, name, attribute, make in OWN_OF_CLASSES:
            owner = getattr(importlib.import_module(module), name)
            initial = getattr(owner, attribute, None)
            self._attributes.append((owner, attribute, make or (lambda initial=initial: initial)))  # type: ignore[misc]

    def _swap_attributes(self, before: Process | None, after: Process) -> None:
        if before is not None and before.alive:
            before.attributes = [getattr(owner, name) for owner, name, _ in self._attributes]
        values = after.attributes or [make() for _, _, make in self._attributes]
        for (owner, name, _), value in zip(self._attributes, values, strict=True):
            setattr(owner, name, value)

    def swap(self, before: Process | None, after: Process) -> None:
        if self._attributes:
            self._swap_attributes(before, after)
        if before is not None and before.alive:
            before.globals = {k: place[name] for k, (place, name, _) in enumerate(self._places)}
        values = after.globals
        for k, (place, name, make) in enumerate(self._places):
            place[name] = values[k] if k in values else make()

    def fork(self, parent: Process, child: Process) -> None:
        """A child begins with copies."""
        for k, (place, name, make) in enumerate(self._places):
            value = place[name]
            child.globals[k] = make() if name in ANEW else copy.copy(value) if isinstance(value, list) else value
