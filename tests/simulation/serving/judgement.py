"""Judges what visitors got: each complete request is answered once and rightly, or the trouble of its history explains why not."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from simulation.serving.http import Outcome
from simulation.serving.servers import Life
from simulation.serving.visitors import Infer

if TYPE_CHECKING:
    from simulation.serving.story import ServeStory

MS: Final = 1_000_000
S: Final = 1000 * MS
LAST_S: Final = 0.9
"""Requests on idle connections are answered for so long after the end has begun; the server keeps them for a second."""
SLOW_S: Final = 10.0
"""How long a body may come at a low rate."""
BOUND_S: Final = 200.0
"""No visitor waits longer."""


class Judge:
    """Attributes:
    succeeded: How many requests of each version were answered with results.
    unknown: How many may have been, without their visitors seeing it, of each model.
    statuses: How often each status was seen.
    """

    def __init__(self, story: ServeStory) -> None:
        self.story = story
        self.succeeded: list[tuple[int, tuple[str, int]]] = []
        self.unknown: list[tuple[int, str]] = []
        self.statuses: Counter[str] = Counter()

    # ---- requests for inference

    def infer(self, who: str, infer: Infer, outcome: Outcome, *, slow: bool = False) -> None:
        """Judge the outcome of an inference."""
        self._count(who, f"infer {infer.name}", outcome)
        if outcome.how != "answered":
            self.unknown.append((outcome.connected or outcome.ended, infer.name))
            self._unanswered(who, infer.name, outcome, slow=slow)
        elif outcome.status == 200:
            self._right(who, infer, outcome)
        elif not self._is_explained(infer, outcome, slow=slow):
            self._wrong(
                who, f"infer {infer.name} was answered with {outcome.status} {outcome.body[:300]!r}, which nothing explains", outcome
            )

    def _right(self, who: str, infer: Infer, outcome: Outcome) -> None:
        """The numbers are those of a version that was served at some moment between request and answer."""
        try:
            document, results = infer.results(outcome)
        except (ValueError, KeyError) as error:
            self._wrong(who, f"infer {infer.name}: the answer cannot be read ({error!r}): {outcome.body[:200]!r}", outcome)
            return
        version = int(document["model_version"])
        self.succeeded.append((outcome.connected, (infer.name, version)))
        self.story.answered()
        if document["model_name"] != infer.name or (infer.version and version != infer.version) or document.get("id", "") != infer.id:
            self._wrong(who, f"infer {infer.name}/{infer.version or 'newest'}: another request's answer: {outcome.body[:200]!r}", outcome)
            return
        number = self._number(infer, results)
        content = self.story.maintainer.disk.contents.get(number)
        if infer.spoiled or content is None or (content.name, content.version) != (infer.name, version):
            self._wrong(who, f"infer {infer.name}/{version}: wrong numbers, those of {content}", outcome)
            return
        wanted = infer.kind.answer(infer.feeds, number)
        if results.keys() != wanted.keys() or any(not np.array_equal(results[name], wanted[name]) for name in wanted):
            self._wrong(who, f"infer {infer.name}/{version}: {results} is not {wanted}", outcome)
        elif not self._was_served(content, outcome):
            self._wrong(who, f"infer {infer.name}/{version}: answered by {content}, which was served no more", outcome)

    @staticmethod
    def _number(infer: Infer, results: dict[str, Any]) -> int:
        """What the model's file adds to its results."""
        without = infer.kind.answer(infer.feeds, 0) if not infer.spoiled else {}
        for name, array in without.items():
            if name in results and results[name].size and array.size:
                return round(float(results[name].flat[0] - array.flat[0]))
        return -1

    def _was_served(self, content: Any, outcome: Outcome) -> bool:
        if content.since > outcome.ended:
            return False
        for life in self._lives(outcome):
            for told in life.window(outcome.began, outcome.ended):
                stamp = told.served.get((content.name, content.version))
                if stamp is not None and content.until >= life.scanned.get((content.name, content.version, stamp), 0):
                    return True
            if content.name in life.failed_loads:
                return True
        return False

    def _is_explained(self, infer: Infer, outcome: Outcome, *, slow: bool) -> bool:
        rates, status = self.story.reasons, outcome.status
        if status == 400:
            return infer.spoiled
        if status == 404:
            return self._was_absent(infer, outcome)
        if status == 503:
            return (
                self._stopped_late(outcome)
                or self._was_unserved(infer, outcome)
                or "kill-planner" in rates
                or "stop-process" in rates
                or "scarce" in rates
            )
        if status == 504:
            return bool(infer.timeout_us)
        if status == 429:
            return self.story.settings.queued < 100
        if status == 408:
            small = "small-buffers" in rates and outcome.sent - outcome.connected >= SLOW_S * S  # on a machine that plans meanwhile
            return small or "stop-anyone" in rates or (slow and "stop-process" in rates)  # the former stops visitors, too
        if status == 500 and b"has changed since" in outcome.body:  # a file that was replaced in its place cannot be planned any more
            contents = self.story.maintainer.disk.contents.values()
            return any(each.name == infer.name and each.until <= outcome.ended for each in contents)
        if status == 500:
            return "kill-worker" in rates or "scarce" in rates
        return False

    def _stopped_late(self, outcome: Outcome) -> bool:
        """Whether a server's grace period was over."""
        return any(life.refused + int(self.story.settings.grace_s * S) <= outcome.ended for life in self._lives(outcome))

    def _stops_early(self, outcome: Outcome) -> bool:
        """Whether a server was told to end, and its grace period was not over."""
        grace = int(self.story.settings.grace_s * S)
        return any(life.term <= outcome.ended < life.refused + grace for life in self._lives(outcome))

    def _was_absent(self, infer: Infer, outcome: Outcome) -> bool:
        """Whether the version was not served at some moment."""
        for life in self._lives(outcome):
            if infer.name in life.failed_loads:
                return True
            for told in life.window(outcome.began, outcome.ended):
                versions = {version for name, version in told.served if name == infer.name}
                if not versions or (infer.version and infer.version not in versions):
                    return True
        return False

    def _was_unserved(self, infer: Infer, outcome: Outcome) -> bool:
        for life in self._lives(outcome):
            for told in life.window(outcome.began, outcome.ended):
                if told.absent or (infer.name in told.unserved and not any(name == infer.name for name, _ in told.served)):
                    return True
            if infer.name in life.failed_loads:
                return True
        return False

    # ---- all others

    def other(self, who: str, method: str, path: str, outcome: Outcome, statuses: set[int] | None = None) -> None:
        """Judge the outcome of another request, which may have `statuses` beside those that any may have."""
        self._count(who, f"{method} {path}", outcome)
        if outcome.how != "answered":
            self._unanswered(who, "", outcome)
            return
        rates, status = self.story.reasons, outcome.status
        allowed = {200} if statuses is None else set(statuses)
        if "/models/" in path and not path.endswith("load"):
            allowed |= {404, 503}
        if path.endswith(("/load", "/unload")):
            allowed |= {503} if self._stops_early(outcome) else set()
        slow = rates - {"delays", "partial", "small-buffers", "kill-client"}
        if self._stopped_late(outcome) and (slow or not path.endswith("load")):  # loads are refused as soon as the end begins
            allowed.add(503)
        if path.startswith("/v2/health/ready"):
            allowed.add(503)
        if path.endswith(("/load", "/unload")):
            allowed |= {400, 404}
        if "scarce" in rates or "kill-planner" in rates:
            allowed |= {500, 503}
        if status not in allowed:
            self._wrong(who, f"{method} {path} was answered with {status} {outcome.body[:300]!r}", outcome)
        elif path != "/metrics":
            try:
                document = json.loads(outcome.body)
            except ValueError:
                self._wrong(who, f"{method} {path}: not JSON: {outcome.body[:200]!r}", outcome)
                return
            if status >= 400 and path != "/v2/health/ready" and not (isinstance(document, dict) and document.get("error")):
                self._wrong(who, f"{method} {path}: {status} without its error: {outcome.body[:200]!r}", outcome)

    # ---- connections that end

    def _unanswered(self, who: str, name: str, outcome: Outcome, *, slow: bool = False) -> None:
        del name
        if outcome.how == "left":
            return
        if outcome.how == "late":
            self._wrong(who, "no answer came in time", outcome)
        elif outcome.how == "refused":
            if not self._could_refuse(outcome):
                self._wrong(who, "the connection was refused, although a server listened", outcome)
        elif not self._could_cut(outcome, slow=slow):
            self._wrong(who, f"the connection was {outcome.how}, which nothing explains", outcome)

    def _lives(self, outcome: Outcome) -> list[Life]:
        """Servers that may have had to do with a request."""
        return [life for life in self.story.servers.lives if life.listens <= outcome.ended and life.ended >= outcome.began]

    def _could_refuse(self, outcome: Outcome) -> bool:
        return not any(
            life.listens <= outcome.began and min(life.refused, life.ended, life.fails) > outcome.ended for life in self.story.servers.lives
        )

    def _could_cut(self, outcome: Outcome, *, slow: bool) -> bool:
        rates = self.story.reasons
        since = outcome.connected
        for life in self.story.servers.lives:
            if since <= life.ended and life.fails <= outcome.ended + S:
                return True
            if life.lost and since <= life.ended <= outcome.ended + S:
                return True
            if any(since <= died <= outcome.ended + S for died in life.deaths):
                return True
            if life.term <= outcome.ended and any(died <= outcome.ended for died in life.deaths):
                return True  # one that died shortly before the end is not replaced: nobody takes what waits for it
            if not life.ready and life.term <= outcome.ended and life.listens <= since <= life.ended:
                return True  # it was told to end before it served anybody
            if life.refused <= outcome.ended and life.listens <= since <= life.ended:
                return not self._is_owed(life, outcome)
        return outcome.idle_s > 60 or (slow and "stop-process" in rates)

    def _is_owed(self, life: Life, outcome: Outcome) -> bool:
        """Whether a server that ends has to answer: the request was sent before, or soon after, on a connection that was there before."""
        soon = life.refused + int(LAST_S * S)
        if "stop-process" in self.story.reasons:
            soon = life.refused
        return (
            outcome.connected < life.refused
            and 0 < outcome.sent < soon
            and outcome.ended < life.refused + int(self.story.settings.grace_s * S)
        )

    # ---- the sums

    def check_counts(self) -> None:
        """The ledger has what visitors saw."""
        for life in self.story.servers.lives:
            if life.counts is None or life.deaths or self.story.visitors_lost:
                continue
            seen = Counter(version for at, version in self.succeeded if life.listens <= at <= life.ended)
            unknown = Counter(name for at, name in self.unknown if life.listens <= at <= life.ended + S)
            counted = Counter({version: counts[0] for version, counts in life.counts.items()})
            for name in sorted({name for name, _ in [*seen, *counted]}):
                more = sum(max(0, counted[version] - seen[version]) for version in {*seen, *counted} if version[0] == name)
                less = [version for version in seen if version[0] == name and counted[version] < seen[version]]
                if less or more > unknown[name]:
                    self.story.wrong(f"the ledger counts {counted}, and visitors saw {seen}; of {unknown} they know nothing")
            if pending := {version: counts for version, counts in life.counts.items() if counts[2]}:
                self.story.wrong(f"requests are pending after the end: {pending}")

    def _count(self, who: str, what: str, outcome: Outcome) -> None:
        seen = str(outcome.status) if outcome.how == "answered" else outcome.how
        self.statuses[seen] += 1
        self.story.history.note(f"{who} {what}", seen)
        self.story.history.sometimes(f"a visitor saw {seen}")
        if outcome.ended - outcome.began > BOUND_S * S and outcome.how != "late":
            self._wrong(who, f"{what} took {(outcome.ended - outcome.began) / S:.1f} s", outcome)

    def _wrong(self, who: str, text: str, outcome: Outcome) -> None:
        start = 1000 * S
        times = {name: (getattr(outcome, name) - start) / S for name in ("began", "connected", "first", "sent", "ended")}
        self.story.wrong(f"{who}: {text}\n  {outcome.how} {times} idle {outcome.idle_s:.3f} s")
