"""Looks at the end of a history whether what lies on disk is served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from simulation.serving.http import Connection, Outcome, request
from simulation.serving.visitors import Infer

if TYPE_CHECKING:
    from simulation.serving.story import ServeStory

SETTLE_S: Final = 45.0


class Inspector:
    """A visitor that knows what has to be served."""

    def __init__(self, story: ServeStory) -> None:
        self.story = story

    def live(self) -> None:
        from aspen_mp.system import clock

        self._until_up()
        clock.sleep(SETTLE_S)
        disk = self.story.maintainer.disk
        for name in self.story.models:
            there = sorted(version for each, version in disk.now if each == name)
            if self.story.settings.repository:
                self._load(name, bool(there) or name in disk.misconfigured)
            elif not self.story.settings.watch:
                continue
            if name not in disk.misconfigured:
                self._check(name, there)

    def _ask(self, data: bytes) -> Outcome:
        connection = Connection(self.story.world)
        outcome = connection.ask(data)
        connection.close()
        return outcome

    def _until_up(self) -> None:
        from aspen_mp.system import clock

        for _ in range(600):
            outcome = self._ask(request("GET", "/v2/health/ready", {}, b""))
            if outcome.status == 200:
                return
            clock.sleep(0.5)
        self.story.wrong(f"the server is not ready in quiet: {outcome.how} {outcome.status} {outcome.body[:200]!r}")

    def _load(self, name: str, there: bool) -> None:
        outcome = self._ask(request("POST", f"/v2/repository/models/{name}/load", {}, b""))
        if outcome.status not in ({200, 400} if there else {404, 400}):
            self.story.wrong(
                f"load of {name}, of which {'something' if there else 'nothing'} is there: {outcome.status} {outcome.body[:200]!r}"
            )

    def _check(self, name: str, there: list[int]) -> None:
        """The newest version that is right has to answer."""
        for k in range(2 * self.story.settings.front_ends):
            infer = Infer(name, 11 + k, k % 4)
            outcome = self._ask(infer.data)
            self.story.judge.infer("inspector", infer, outcome)
            if not there:
                if outcome.status in {200, 500} and self._is_known_loss(name):
                    continue
                if outcome.status not in {404, 503}:
                    self.story.wrong(f"{name} is not there, and was answered with {outcome.status}")
                continue
            if outcome.status == 500 and self._is_known_loss(name):
                continue
            if outcome.status != 200:
                self.story.wrong(f"{name} has versions {there} and was answered with {outcome.how} {outcome.status} {outcome.body[:300]!r}")
                continue
            document, results = infer.results(outcome)
            content = self.story.maintainer.disk.now[name, there[-1]]
            number = self.story.judge._number(infer, results)
            if content is None or number != content.number:
                if int(document["model_version"]) > there[-1] and self._is_known_loss(name):
                    continue  # the file of a newer one is no model: what it was before goes on
                self.story.wrong(
                    f"{name} has versions {there}, the newest {content}, and {number} of {document['model_version']} has answered"
                )

    def _is_known_loss(self, name: str) -> bool:
        """Whether the maintainer has spoiled a file of this model, whose earlier contents go on."""
        return name in self.story.maintainer.spoiled
