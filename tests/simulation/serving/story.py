"""One history of servers: a supervisor with its front ends and runtime, visitors, a maintainer of the models, and trouble."""

from __future__ import annotations

import random
from typing import Any, Final

from simulation import story, weather
from simulation.serving import maintainer, visitors
from simulation.serving.contents import kinds
from simulation.serving.http import Connection, request
from simulation.serving.judgement import Judge
from simulation.serving.servers import FOREVER, Servers, Settings, observe_shelves
from simulation.world import serving
from simulation.world.history import History

RATES: Final = {
    "delays": (0.02, 0.5),
    "partial": (0.02, 0.5),
    "scarce": (0.0005, 0.01),
    "kill-worker": (0.00002, 0.002),
    "kill-planner": (0.00001, 0.0005),
    "kill-client": (0.00002, 0.001),
    "kill-front_end": (0.00001, 0.001),
    "kill-supervisor": (0.00001, 0.0003),
    "kill-zygote": (0.001, 0.02),
    "stop-process": (0.00002, 0.001),
    "preempt": (0.02, 0.5),
    "small-buffers": (0.1, 1.0),
    "spurious": (0.01, 0.3),
}
WEATHER: Final = ("kill-anyone", "stop-anyone", "end-planner", "cores", "memory", "cache", "clock")
"""Kinds of events that come to servers. Their run directory stays: nobody looks for their runtimes by name."""
MEANS: Final = {
    "kill-anyone": {"kill-worker", "kill-planner", "kill-client"},
    "stop-anyone": {"stop-process"},
    "end-planner": {"kill-planner"},
    "memory": {"scarce"},
    "no-threads": {"scarce"},
}
"""What events and troubles explain as others do."""
NO_THREADS: Final = 0.01, 0.2
"""Rates of `no-threads`, as of `RATES`."""
SETTLE_S: Final = 40.0
"""How long after the last change everything may take to be served."""
START_S: Final = 1.0
"""When a server that has ended is started again."""


class ServeStory(story.Story):
    """A history of servers. Attributes beside those of `Story`:

    models: Names that visitors ask for.
    visitors_lost: Whether one was killed: what it saw nobody knows.
    """

    def __init__(self, options: story.Options, history: History) -> None:
        super().__init__(options, history)
        self.world.globals.serve()
        self.folders = serving.install(self.world, self.alive)
        chance = random.Random(options.seed * 1_000_003 + 31)
        self.settings = Settings(
            front_ends=chance.choice([1, 1, 2, 3]),
            workers=chance.choice([1, 2, 3]),
            watch=chance.random() < 0.8,
            repository=chance.random() < 0.6,
            access_log=chance.random() < 0.3,
            grace_s=chance.choice([5.0, 20.0]),
            drain_s=chance.choice([0.0, 0.0, 0.5, 3.0]),
            queued=chance.choice([2, 1024, 1024]),
        )
        self.models = sorted(kinds())
        self.visitors_lost = False
        self.judge = Judge(self)
        root = self.world.folder / "models"
        self.maintainer = maintainer.Maintainer(self, root, maintainer.draw(options.seed, options.acts))
        self.maintainer.begin(chance.sample(self.models, 3))
        self.servers = Servers(self, root, self.settings)
        observe_shelves(self)
        self.scripts = visitors.draw(options.seed, options.users, options.acts)
        if options.most is not None:
            self._shorten(options.most)
        self._terms = [chance.uniform(0.3, 25.0) for _ in range(chance.choice([0, 0, 1, 1, 2]))]
        self._restarts = True

    def _draw_trouble(self) -> None:
        choices = self.choices
        choices.slice_ns = (300, choices.pick([1_000, 5_000, 20_000]))
        for kind, (low, high) in RATES.items():
            wanted, share = choices.chance(0.3), choices.uniform()
            if wanted and self.options.trouble and kind not in self.options.without:
                choices.trouble.rates[kind] = low * (high / low) ** share

    def _draw_weather(self) -> weather.Weather:
        chance, options = random.Random(self.options.seed * 1_000_003 + 47), self.options
        fair = chance.random() < 0.6  # the others show what must hold where nothing is in the way
        if not fair and chance.random() < 0.2 and options.trouble and "no-threads" not in options.without:
            low, high = NO_THREADS
            self.choices.trouble.rates["no-threads"] = low * (high / low) ** chance.random()
        kinds = tuple(kind for kind in WEATHER if not fair and chance.random() < 0.2 and options.trouble and kind not in options.without)
        return weather.Weather(self.world, kinds, 0.1 * 40 ** chance.random())

    @property
    def reasons(self) -> set[str]:
        """Kinds of trouble that explain what visitors see."""
        given = {*self.choices.trouble.rates, *self.weather.kinds}
        return given.union(*(MEANS.get(kind, set()) for kind in given))

    # ---- processes

    def alive(self, process: Any, main: Any) -> None:
        """Run the main function of a server's process. Some errors end it with a status, as an error ends a Python."""
        from aspen_mp import errors

        try:
            main()
        except (errors.AspenError, OSError, RuntimeError) as error:
            rates = self.reasons
            kind = type(error).__name__
            text = f"{kind}: {error}"
            if not ("scarce" in rates or ("kill-planner" in rates and isinstance(error, errors.RuntimeLost | errors.RuntimeNotFound))):
                self.world.crashed(process, "its main thread", error)
            self.history.note(f"{process.name} fails", text.splitlines()[0][:200])
            raise SystemExit(1) from None

    def done(self, name: str, act: Any) -> None:
        self.busy.pop(name, None)

    def server_ended(self, life: Any) -> None:
        if self._restarts:
            self.world.scheduler.later(int(START_S * 1e9), lambda: self._restarts and self.servers.start())

    def _visitor(self, script: Any) -> Any:
        process = self.world.start("client", lambda: visitors.Visitor(self, script).live())
        process.at_end.append(self._visitor_ended)
        return process

    def _visitor_ended(self, process: Any) -> None:
        self.visitors_lost |= bool(process.status)

    def _call_late(self) -> None:
        """A visitor whose connection is there before the end of a server, and which asks for a load soon after it."""
        from aspen_mp.system import clock

        connection = Connection(self.world)
        for pause_s, method, path in ((0.4, "GET", "/v2/health/live"), (0.0, "POST", f"/v2/repository/models/{self.models[0]}/load")):
            self.judge.other("late", method, path, connection.ask(request(method, path, {}, b"")))
            clock.sleep(pause_s)
        connection.close()

    def _inspect(self) -> None:
        """At the end, what lies on disk is served."""
        from simulation.serving.inspection import Inspector

        Inspector(self).live()

    # ---- the history

    def run(self) -> None:
        world, scheduler = self.world, self.world.scheduler
        self.servers.start()
        for script in self.scripts:
            self.living.append(self._visitor(script))
        self.living.append(world.start("maintainer", self.maintainer.live))
        for after_s in self._terms:
            scheduler.later(int(after_s * 1e9), lambda: self.choices.quiet or self.servers.term())
            if self.settings.repository:
                scheduler.later(int((after_s - 0.2) * 1e9), lambda: self.living.append(world.start("client", self._call_late)))
        self.weather.begin()
        scheduler.run(self.options.steps, until=self._over)
        self._quieten()
        if self._rest("visitors do not come to an end", story.BOUND_S):
            self._check_end()

    def _quieten(self) -> None:
        self.choices.quiet = True
        self.weather.stop()
        for process in list(self.world.processes.values()):
            process.go_on()

    def _rest(self, what: str, seconds: float) -> bool:
        """Run until the living have ended. Return whether all is well."""
        horizon = self.world.scheduler.now + int(seconds * 1e9)
        if not self._over() and not self.world.scheduler.run(20 * self.options.steps, until=self._over, horizon=horizon):
            self._stuck(what)
        return not self.failed

    def _check_end(self) -> None:
        world, scheduler = self.world, self.world.scheduler
        if not self._is_up():
            scheduler.run(20 * self.options.steps, until=self._is_up, horizon=scheduler.now + int(story.REST_S * 1e9))
        self.living = [world.start("client", self._inspect)]
        if not self._rest("what lies on disk is not served", 10 * SETTLE_S):
            return
        self._restarts = False
        self.servers.term()
        horizon = scheduler.now + int(story.REST_S * 1e9)
        scheduler.run(20 * self.options.steps, until=lambda: bool(self.failed), horizon=horizon)
        left = [process for process in world.processes.values() if process.alive]
        if left and not self.failed:
            self._stuck(f"{', '.join(process.name for process in left)} live on after the server was told to end")
        if not self.failed and self.servers.process.status:
            self.wrong(f"the server ended with wait status {self.servers.process.status}")
        if not self.failed:
            self.judge.check_counts()
            self._look_for_remains()

    def _is_up(self) -> bool:
        """Whether a server runs that was not told to end."""
        return bool(self.servers.process.alive) and self.servers.life.term == FOREVER

    def _look_for_remains(self) -> None:
        super()._look_for_remains()
        if left := sorted(path.name for path in (self.world.folder / "tmp").iterdir()):
            self.wrong(f"temporary files remain: {left}")
