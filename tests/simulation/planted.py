"""Faults that histories have to find: each is a change of a product's source, made while the module is imported.

`python -m tests.simulation --plant NAME --minutes 10` looks for one. The list says which were really there once.
"""

# ruff: noqa: E501
from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Planted:
    """A fault. `old` stands once in the module's source. `was`: what was really wrong before; empty: this was never there. `streams`: users need streams to find it."""

    module: str
    old: str
    new: str
    what: str
    was: str = ""
    streams: bool = False


CONTROL: Final = "aspen_mp.control"
CLIENT: Final = "aspen_mp.client"
FAULTS: Final[dict[str, Planted]] = {
    "heard-before-whole": Planted(
        f"{CONTROL}.wire.client",
        "                    self.server_pid = message.pid\n",
        "                    self.server_pid = message.pid\n                    self.listen()\n                    self.listen = lambda: None\n",
        "a client's reading thread starts before its session is whole",
        "a client whose runtime ended while it connected lost its reading thread",
    ),
    "number-of-another-runtime": Planted(
        f"{CLIENT}.residence",
        "            self.own = self._new_tree(place)\n",
        "            self.own = self._new_tree(way.session())\n            self.address = way.address\n",
        "a model's number is used in the runtime that came after the one that gave it",
        "requests of a model that was loaded just before its runtime was lost failed, or met another model",
    ),
    "cancelled-at-the-end": Planted(
        f"{CONTROL}.models.model_store",
        "            ended = RuntimeLost(",
        "            ended = AspenError(",
        "loads that the end of a runtime cuts off fail instead of going to the next runtime",
        "handles with retry got the error 'loading was cancelled'",
    ),
    "child-lacks-descriptors": Planted(
        f"{CONTROL}.planning.planner_child",
        "                    if not is_scarce(error):\n                        raise\n                    answer",
        "                    raise\n                    answer",
        "a planning child that lacks descriptors says 'internal error'",
        "the same",
    ),
    "thread-of-deadlines": Planted(
        f"{CLIENT}.deadlines",
        "                start_thread(thread)\n                self._thread = thread\n",
        "                self._thread = thread\n                thread.start()\n",
        "once no thread for deadlines could be had, none is ever started",
        "the same",
    ),
    "pool-without-threads": Planted(
        f"{CLIENT}.requests.stage_tree",
        "            submit(self._drivers, drive)\n",
        "            self._drivers.submit(drive)\n",
        "where a pool can have no thread, users get a bare RuntimeError",
        "the same",
    ),
    "run-folder-in-between": Planted(
        f"{CONTROL}.wire.run_directory",
        "        with suppress(FileNotFoundError):  # somebody, a cleaner of temporary files say, removed it in between: it is made again\n            return _open(where)\n",
        "        return _open(where)\n",
        "a run directory that is removed between two calls fails a launch",
        "the same",
    ),
    "listener-never-rests-well": Planted(
        f"{CONTROL}.wire.listener",
        "        self._loop.later(REST_S, again)\n",
        "",
        "after a shortage of descriptors nobody is accepted any more",
    ),
    "answers-stay-behind": Planted(
        f"{CONTROL}.wire.connection",
        "            self._loop.watch_writable(self._sock.fileno(), self._flush)\n            return\n",
        "            return\n",
        "an answer that does not fit into the socket at once stays there",
    ),
    "calls-after-the-loss": Planted(
        f"{CONTROL}.wire.client",
        "        for call in calls:\n            call.answer = fresh(lost)\n            call.done.set()\n",
        "",
        "calls that wait when the runtime is lost wait for ever",
    ),
    "part-of-a-frame": Planted(
        f"{CONTROL}.wire.protocol",
        "            if len(self._bytes) < end:\n                break\n",
        "            if len(self._bytes) < end - 1:\n                break\n",
        "a frame that lacks its last byte counts as whole",
    ),
    "reaped-never": Planted(
        f"{CONTROL}.wire.event_loop",
        "            self.later(SCARCE_S, lambda: self.reap(pid, then))\n            return\n",
        "            return\n",
        "a child whose end could not be watched for want of a descriptor is never reaped",
    ),
    "dead-are-not-replaced": Planted(
        f"{CONTROL}.pool.recovery",
        "        if delay:\n            self.loop.later(delay, self._start)\n        else:\n            self._start()\n",
        "",
        "workers that died are not replaced",
    ),
    "twins-waiters": Planted(
        f"{CONTROL}.models.plan_states",
        "                return M.GONE, (HandOver(event.other), Drop())\n",
        "                return M.GONE, (Drop(),)\n",
        "who waits for a model that is the same as a loaded one is forgotten",
    ),
    "memory-of-who-left": Planted(
        f"{CONTROL}.models.model_store",
        "        if not model.users and not model.waiting:\n            self.send(model, Left())\n",
        "        pass\n",
        "models that nobody uses any more stay loaded",
    ),
    "lost-wakes": Planted(
        "simulation.world.native",
        "        while asleep and woken < n:\n",
        "        while asleep and woken < n and world.choices.uniform() > 0.05:\n",
        "the kernel loses wake-ups of sleepers on futexes",
    ),
    "quiet-never": Planted(
        f"{CLIENT}.link",
        "        if not any(handle.in_flight for handle in handles):\n            session.quiet()\n",
        "        pass\n",
        "a runtime that stops is not told that its clients are quiet, so that it always waits for its grace period",
    ),
    "frames-overtaken": Planted(
        f"{CLIENT}.streams.model_stream",
        "        if self._queued:  # frames that were given before\n",
        "        if self._queued and copy:\n",
        "a frame whose outputs are views overtakes those that wait, so that changes of a cancelled one are lost",
        "the same",
        streams=True,
    ),
    "faults-unseen": Planted(
        f"{CLIENT}.streams.model_stream",
        "        was_valid, self._valid = self._valid and faults == self._faults, False\n",
        "        was_valid, self._valid = self._valid, False\n",
        "a stream counts on memory to which a worker that died of a fault may have written",
        streams=True,
    ),
    "cancelled-frames-count": Planted(
        f"{CLIENT}.streams.model_stream",
        "                if future.done():  # cancelled: the region has nothing of it\n                    self._invalidate()\n",
        "                if future.done():\n                    pass\n",
        "a stream takes a frame that was cancelled before its turn for the one before the next",
        streams=True,
    ),
}
"""By name, in the order in which they are tried."""


MARKS: Final = "<!-- planted faults -->", "<!-- end of planted faults -->"
FOUND: Final = Path(__file__).parent / "found.json"
"""How each was found last: by which seed, after how many histories."""


def printed(document: str) -> str:
    """The document with the table of faults between its marks."""
    found = json.loads(FOUND.read_text(encoding="utf-8"))
    rows = ["| fault | where | was there | histories |", "|---|---|---|---:|"]
    from simulation.serving import planted as serving

    for name, fault in {**FAULTS, **serving.FAULTS}.items():
        rows.append(
            f"| {fault.what} | `{fault.module.removeprefix('aspen_mp.')}` | {'yes' if fault.was else ''} | {found.get(name, {}).get('histories', '')} |"
        )
    before, _, rest = document.partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    return f"{before}{MARKS[0]}\n{chr(10).join(rows)}\n{MARKS[1]}{after}"


class _Loader(SourceFileLoader):
    """Loads a module from its changed source."""

    def __init__(self, name: str, path: str, fault: Planted) -> None:
        super().__init__(name, path)
        self._fault = fault

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        text = self.get_data(path).decode()
        if text.count(self._fault.old) != 1:
            raise RuntimeError(f"{path} does not hold the source that the planted fault replaces, or more than once")
        return self.source_to_code(text.replace(self._fault.old, self._fault.new).encode(), path)


class _Finder:
    def __init__(self, fault: Planted) -> None:
        self._fault = fault

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._fault.module:
            return None
        found = PathFinder.find_spec(name, path)
        for finder in sys.meta_path:
            if found is None and finder is not self and hasattr(finder, "find_spec"):
                found = finder.find_spec(name, path, target)
        if found is None or found.origin is None:
            raise RuntimeError(f"{name} is not a module of Python source")
        return importlib.util.spec_from_file_location(name, found.origin, loader=_Loader(name, found.origin, self._fault))


def plant(name: str) -> None:
    """Have the fault in the product from now on. Before anything of it is imported."""
    from simulation.serving import planted as serving

    fault = {**FAULTS, **serving.FAULTS}[name]
    if fault.module in sys.modules:
        raise RuntimeError(f"{fault.module} has been imported already")
    finder: Any = _Finder(fault)
    sys.meta_path.insert(0, finder)
