"""Faults of servers that histories have to find, as of `simulation.planted`."""

from __future__ import annotations

from typing import Final

from simulation.planted import Planted

SERVING: Final = "aspen_mp.serving"
FAULTS: Final[dict[str, Planted]] = {
    "first-result": Planted(
        "aspen_mp.client.session",
        "    unheard = False\n",
        "    seen, unheard = channel.completions(), False\n",
        "a result that comes before its resolver's thread runs is told to nobody",
        "the first request of a front end could wait for ever",
    ),
    "unread-bodies": Planted(
        f"{SERVING}.access.connections",
        "        if not self._in_message or self.transport.is_closing():\n",
        "        if True:\n",
        "a connection closes while its client still sends",
        "clients lost the answer to a request that was refused early",
    ),
    "heads-behind-bodies": Planted(
        f"{SERVING}.access.connections",
        " and (not self._begun or (self._begun == 1 and not before)):",
        ":",
        "bytes before a request count as bytes of its headers",
        "a request that followed a large body was answered with 431",
    ),
    "failed-for-good": Planted(
        f"{SERVING}.keeper",
        "            if isinstance(error, OSError) or lacks(error):\n",
        "            if False:\n",
        "a version that could not be loaded for want of descriptors is given up",
        "the same",
    ),
    "news-of-the-unready": Planted(
        f"{SERVING}.supervisor",
        "        for each in self._front_ends:\n            each.channel.send(catalogue)\n",
        "        for each in self._front_ends:\n            if each.applied:\n                each.channel.send(catalogue)\n",
        "front ends that start miss a catalogue",
    ),
    "gave-up-early": Planted(
        f"{SERVING}.supervisor",
        "            if self._stillborn >= MOST_STILLBORN and not any(each.applied for each in self._front_ends):\n",
        "            if self._stillborn:\n",
        "a server ends with a front end that ends before it serves",
        "a server went down with a front end that served, if another one was killed eight times before it served",
    ),
    "unloaded-in-use": Planted(
        f"{SERVING}.shelf",
        "        if self._retired and not self._leases:\n",
        "        if self._retired:\n",
        "a version is unloaded while requests use it",
    ),
    "rows-of-others": Planted(
        f"{SERVING}.batching",
        "            at = end\n",
        "",
        "requests of a batch get rows of the first one",
    ),
    "one-fails-all": Planted(
        f"{SERVING}.batching",
        "            if isinstance(error, QueueFull | TimeoutError):\n",
        "            if True:\n",
        "a bad request fails the others of its batch",
    ),
    "same-path": Planted(
        f"{SERVING}.shelf",
        "            if known is not None and known.served == served:\n",
        "            if known is not None:\n",
        "a version with new contents is not loaded by front ends that have the old ones",
    ),
    "unwatched": Planted(
        f"{SERVING}.supervisor",
        "            watched = self._follow()",
        "            watched = self._number > 0 or self._follow()",
        "new folders are not watched",
    ),
    "absent-for-ever": Planted(
        f"{SERVING}.supervisor",
        "            self._present.set()\n            self._tell_all()\n",
        "            self._present.set()\n",
        "front ends are not told that the runtime is there again",
    ),
    "all-succeed": Planted(
        f"{SERVING}.telemetry.ledger",
        "            row.add(outcome(error))\n",
        "            row.add(Field.SUCCESS)\n",
        "requests that failed count as successful",
    ),
}
"""By name. `simulation.planted` says what the fields are."""
