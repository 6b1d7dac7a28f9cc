"""Random users of a runtime: what they do is drawn from the seed before they begin, so that a failing history can be made shorter."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from simulation import models, streams

if TYPE_CHECKING:
    from simulation.story import Story

ACTIONS: Final = {
    "run": 30,
    "burst": 10,
    "map": 4,
    "often": 3,
    "timeout": 3,
    "deadline": 3,
    "priority": 5,
    "load": 8,
    "unload": 5,
    "broken": 1,
    "status": 3,
    "scale": 2,
    "think": 12,
    "dues": 4,
    "sizes": 4,
    "threads": 3,
    "workload": 1,
    "reconnect": 3,
    "prepare": 2,
}
"""The acts of users, and how often each comes."""


@dataclass(slots=True)
class Act:
    """One thing that a user does. `numbers`: what chance decides about it."""

    what: str
    numbers: tuple[int, ...]


@dataclass(slots=True)
class Script:
    """A user's life."""

    name: str
    retry: bool
    acts: list[Act] = field(default_factory=list)


def draw(seed: int, users: int, acts: int) -> list[Script]:
    """The scripts of a history."""
    chance = random.Random(seed * 1_000_003 + 17)
    weights = {what: weight * (0.2 + 1.8 * chance.random()) * (chance.random() > 0.15) for what, weight in ACTIONS.items()}
    weights["run"] = max(weights["run"], 1.0)
    kinds, sums, total = list(weights), [], 0.0
    for what in kinds:
        total += weights[what]
        sums.append(total)
    scripts = []
    for k in range(users):
        script = Script(f"user-{k + 1}", chance.random() < 0.6)
        for _ in range(1 + int(acts * (0.5 + chance.random()))):
            at = chance.random() * total
            what = next(kind for kind, upto in zip(kinds, sums, strict=True) if at < upto)
            script.acts.append(Act(what, tuple(int(chance.random() * (1 << 30)) for _ in range(6))))
        scripts.append(script)
    return scripts


class User:
    """Lives one script in its process."""

    def __init__(self, story: Story, script: Script) -> None:
        self.story = story
        self.script = script
        self.runtime: Any = None
        self.loaded: list[tuple[models.Known, Any]] = []
        self.of_streams: dict[str, Any] = {}
        self.regions = streams.Regions()
        self.act = Act("begin", ())

    def live(self) -> None:
        for act in self.script.acts:
            self.act = act
            self.story.begins(self.script.name, act)
            try:
                self.runtime = self.runtime or self.story.connect(self.script)
                getattr(self, f"do_{act.what}")(*act.numbers)
            except BaseException as error:
                self.story.judge(self.script, act, error)
                self._after(error)
            else:
                self.story.done(self.script.name, act)
        self.regions.look(self)
        self._let_go()

    def _after(self, error: BaseException) -> None:
        """A runtime that was lost takes its models along, unless handles find the next one."""
        from aspen_mp import errors

        if isinstance(error, errors.RuntimeLost) and (not self.script.retry or self.runtime is None or self.runtime.closed):
            self._let_go()

    def bear(self, error: BaseException) -> None:
        """An error of a part of an act, which goes on unless its handles are of no use any more."""
        from aspen_mp import errors

        if isinstance(error, errors.RuntimeLost) and not self.script.retry:
            raise error
        self.story.judge_part(self.script, self.act, error)

    def _let_go(self) -> None:
        self.loaded.clear()
        self.of_streams.clear()
        runtime, self.runtime = self.runtime, None
        if runtime is not None:
            runtime.close()

    # ---- what they do

    def _model(self, which: int) -> tuple[models.Known, Any]:
        if not self.loaded:
            self._load(which)
        return self.loaded[which % len(self.loaded)]

    def _load(self, which: int) -> None:
        known = models.known()[which % len(models.known())]
        self.loaded.append((known, self.runtime.load(known.data, name=known.name)))

    def _draw(self, known: models.Known, number: int) -> models.Arrays:
        return known.feeds(number % 1000, known.lengths[number % len(known.lengths)])

    def _check(self, known: models.Known, feeds: models.Arrays, got: models.Arrays) -> None:
        self.story.answered()
        for name, wanted in known.answer(feeds).items():
            if not np.array_equal(got[name], wanted):
                self.story.wrong(f"{self.script.name}: {known.name} answers {got[name].tolist()!r} instead of {wanted.tolist()!r}")

    def _run(self, which: int, number: int, **how: Any) -> None:
        known, model = self._model(which)
        feeds = self._draw(known, number)
        self._check(known, feeds, model.run(feeds, **how))

    def do_run(self, which: int, number: int, *_: int) -> None:
        self._run(which, number)

    def do_priority(self, which: int, number: int, level: int, *_: int) -> None:
        self._run(which, number, priority=("high", "normal", "low")[level % 3] if level % 3 < 3 else None)

    def do_timeout(self, which: int, number: int, ms: int, *_: int) -> None:
        self._run(which, number, timeout=(ms % 2000 + 1) / 1e5)

    def do_deadline(self, which: int, number: int, ms: int, *_: int) -> None:
        self._run(which, number, deadline_ms=(ms % 2000 + 1) / 100)

    def do_burst(self, which: int, number: int, many: int, cancel: int, *_: int) -> None:
        known, model = self._model(which)
        asked = []
        for k in range(many % 12 + 1):
            feeds = self._draw(known, number + k * 7)
            asked.append((feeds, model.submit(feeds)))
        cancelled = {k for k in range(len(asked)) if (cancel >> k) % 4 == 0 and cancel % 3 == 0}
        for k in cancelled:
            asked[k][1].cancel()
        errors = []
        for k, (feeds, future) in enumerate(asked):
            try:
                self._check(known, feeds, future.result())
            except BaseException as error:
                if k not in cancelled or not self.story.is_cancel(error):
                    errors.append(error)
        if errors:
            raise errors[0]

    def do_dues(self, which: int, number: int, many: int, ms: int, *_: int) -> None:
        """Futures of requests with deadlines, some of which cannot be met."""
        from aspen_mp import errors

        known, model = self._model(which)
        asked = []
        for k in range(many % 6 + 1):
            feeds = self._draw(known, number + k * 11)
            asked.append((feeds, model.submit(feeds, deadline_ms=0.01 * 100_000 ** ((ms >> k) % 1000 / 1000))))
        failures = []
        for feeds, future in asked:
            try:
                self._check(known, feeds, future.result())
            except errors.DeadlineMissed:
                pass
            except BaseException as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def do_sizes(self, which: int, number: int, many: int, spread: int, window: int, *_: int) -> None:
        """Many new sizes: plans for ranges of them are made, some of them before anybody asks."""
        known, model = self._model(which)
        if len(known.lengths) < 2:
            return self._run(which, number)
        asked: list[Any] = []
        for k in range(8 + many % 24):
            n = 1 + (number + k * (spread % 13 + 1)) % (72 if k % 4 else 2)
            feeds = known.feeds((number + k) % 1000, n)
            asked.append((feeds, model.submit(feeds)))
            while len(asked) > window % 5:
                feeds, future = asked.pop(0)
                self._check(known, feeds, future.result())
        for feeds, future in asked:
            self._check(known, feeds, future.result())
        return None

    def do_often(self, which: int, number: int, many: int, *_: int) -> None:
        """The same shapes until they count as frequent: a better plan is made for them in the background."""
        known, model = self._model(which)
        for k in range(66 + many % 20):
            feeds = known.feeds((number + k) % 1000, known.lengths[number % len(known.lengths)])
            self._check(known, feeds, model.run(feeds))

    def do_map(self, which: int, number: int, many: int, *_: int) -> None:
        known, model = self._model(which)
        feeds = [self._draw(known, number + k) for k in range(many % 20 + 1)]
        got = list(model.map(iter(feeds)))
        if len(got) != len(feeds):
            self.story.wrong(f"{self.script.name}: map gave {len(got)} results for {len(feeds)}")
        for asked, answer in zip(feeds, got, strict=False):
            self._check(known, asked, answer)

    def do_load(self, which: int, *_: int) -> None:
        if len(self.loaded) < 6:
            self._load(which)

    def do_unload(self, which: int, *_: int) -> None:
        if self.loaded:
            _, model = self.loaded.pop(which % len(self.loaded))
            model.unload()

    def do_broken(self, *_: int) -> None:
        self.runtime.load(models.BROKEN)

    def do_prepare(self, which: int, number: int, *_: int) -> None:
        known, model = self._model(which)
        model.prepare({name: array.shape for name, array in self._draw(known, number).items()})

    def do_status(self, *_: int) -> None:
        self.runtime.status()

    def do_scale(self, to: int, *_: int) -> None:
        self.runtime.scale(to % 4 + 1)

    def do_think(self, ms: int, *_: int) -> None:
        from aspen_mp.system import clock

        clock.sleep(0.001 * 60_000 ** (ms / (1 << 30)))

    def do_threads(self, which: int, number: int, many: int, *_: int) -> None:
        from aspen_mp.system import threads

        known, model = self._model(which)
        errors: list[BaseException] = []

        def work(k: int) -> None:
            try:
                for j in range(3):
                    feeds = self._draw(known, number + k * 31 + j)
                    self._check(known, feeds, model.run(feeds))
            except BaseException as error:
                errors.append(error)

        running = [threads.Thread(target=work, args=(k,), name=f"thread {k}") for k in range(many % 3 + 2)]
        started = []
        try:
            for thread in running:
                thread.start()
                started.append(thread)
        finally:
            for thread in started:
                thread.join()
        if errors:
            raise errors[0]

    def do_workload(self, which: int, number: int, ms: int, *_: int) -> None:
        known, _model = self._model(which)
        got: list[Any] = []
        with self.runtime.workload() as work:
            work.add(known.data, feeds=lambda: self._draw(known, number), every_ms=ms % 20 + 1, on_result=got.append)
            work.start()
            work.wait(0.1)

    def streamed(self, which: int) -> tuple[models.Known, Any]:
        """A model of streams, which is loaded at its first use."""
        known = models.streamed()[which % len(models.streamed())]
        if known.name not in self.of_streams:
            self.of_streams[known.name] = self.runtime.load(known.data, name=known.name)
        return known, self.of_streams[known.name]

    def do_stream(self, which: int, number: int) -> None:
        streams.film(self, which, number)

    def do_begin(self, which: int, number: int) -> None:
        streams.arrive(self, which, number)

    def do_reconnect(self, *_: int) -> None:
        self._let_go()
