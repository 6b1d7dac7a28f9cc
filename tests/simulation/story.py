"""One history: a runtime with its name, users that connect to it, trouble, and then quiet, in which everything has to come to rest."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from simulation import judge, marks, streams, users, weather
from simulation.native import _hooks
from simulation.world.choices import Choices
from simulation.world.descriptions import EventFd, Listener
from simulation.world.history import History
from simulation.world.install import install
from simulation.world.scheduler import Waiters
from simulation.world.world import World

NAME: Final = "sim"
RATES: Final = {
    "delays": (0.02, 0.5),
    "partial": (0.02, 0.5),
    "scarce": (0.0005, 0.02),
    "no-threads": (0.02, 0.5),
    "kill-worker": (0.00002, 0.002),
    "kill-planner": (0.00001, 0.0005),
    "kill-client": (0.00002, 0.001),
    "kill-plan": (0.0005, 0.02),
    "kill-zygote": (0.001, 0.02),
    "kill-cache": (0.001, 0.05),
    "stop-process": (0.00002, 0.001),
    "preempt": (0.02, 0.5),
    "small-buffers": (0.1, 1.0),
    "spurious": (0.01, 0.3),
}
"""How often each kind of trouble comes, at least and at most, as a share of the moments at which it could."""
BOUND_S: Final = 600.0
"""The longest that one thing that a user does may take, in virtual seconds."""
MAPPED: Final = 3
"""Segments that a worker has mapped while nobody but the host is connected."""
CALM_S: Final = 3.0
"""The same where there is no trouble, beside the time in which planning children ran.

One child plans for all users, one plan after the other. A slice of it takes up to 50 us times its slowness, which chance draws up to
10 000 (`Story.__init__`). So a plan takes seconds, and an act may wait for several. Only slices count: while a wake-up is lost, none runs.
"""
MISSED_S: Final = 60.0
"""Who waits for a runtime must have found one that has been there for so long."""
REST_S: Final = 120.0
"""How long after the users' last act everything may take to end."""


@dataclass(slots=True)
class Options:
    """The options of a history. `without`: kinds of trouble that are left out; `most`: of each user's acts.
    `streams`: users have streams in any case."""

    seed: int
    steps: int = 100_000
    users: int = 3
    acts: int = 12
    without: tuple[str, ...] = ()
    most: int | None = None
    streams: bool = False
    trouble: bool = True
    trace: bool = False
    extra: dict[str, Any] = field(default_factory=dict)


class Story:
    """Attributes:
    failed: Why the history is wrong; empty where it is right.
    """

    def __init__(self, options: Options, history: History) -> None:
        self.options = options
        self.history = history
        self.choices = Choices(options.seed)
        self._draw_trouble()
        self.world = World(self.choices, history, _hooks.set_now)
        self.world.slowness["plan"] = self.choices.pick((1, 30, 1_000, 10_000))
        install(self.world)
        marks.observe(self.world)
        self.judgement = judge.Judge(self.world)
        self.open_streams = streams.OpenStreams(self)
        self.scripts = users.draw(options.seed, options.users, options.acts)
        self.streamed = streams.put_in(options.seed, self.scripts, options.streams)
        self.weather = self._draw_weather()
        if options.most is not None:
            self._shorten(options.most)
        self.answers = 0
        self.errors: dict[str, int] = {}
        self.busy: dict[str, tuple[users.Act, int, int]] = {}
        self.ended = False
        self._end = Waiters(self.world.scheduler)
        self.host: Any = None
        self.told = -1
        self.living: list[Any] = []

    @property
    def failed(self) -> list[str]:
        return self.world.violations

    def _draw_trouble(self) -> None:
        choices = self.choices
        choices.slice_ns = (300, choices.pick([1_000, 5_000, 50_000]))
        for kind, (low, high) in RATES.items():
            wanted, share = choices.chance(0.4), choices.uniform()
            if wanted and self.options.trouble and kind not in self.options.without:
                choices.trouble.rates[kind] = low * (high / low) ** share

    def _draw_weather(self) -> weather.Weather:
        choices = self.choices
        kinds = tuple(kind for kind in weather.KINDS if choices.chance(0.35) and self.options.trouble and kind not in self.options.without)
        mean_s = 0.05 * 40 ** choices.uniform()
        if self.streamed and choices.chance(0.4) and self.options.trouble and "faults" not in self.options.without:
            kinds += ("faults",)
        return weather.Weather(self.world, kinds, mean_s)

    def _shorten(self, most: int) -> None:
        for script in self.scripts:
            script.acts = script.acts[:most]

    # ---- for users

    def connect(self, script: users.Script) -> Any:
        import aspen_mp
        from aspen_mp import errors

        last = self.world.scheduler.now + int(BOUND_S / 2 * 1e9)
        while True:
            try:
                return aspen_mp.connect(NAME, retry=script.retry, wait_s=120.0, timeout=120.0)
            except errors.RuntimeNotFound:
                self._look_for_missed(script)
                if self.world.scheduler.now > last:
                    raise
                self.world.scheduler.pause(100_000_000)

    def _look_for_missed(self, script: users.Script) -> None:
        """A user has waited for a runtime, and has found none."""
        for planner in self.world.alive("planner"):
            listening = [each.since for each in planner.table.values() if isinstance(each, Listener) and not each.closed]
            there = self.world.scheduler.now - min(listening, default=self.world.scheduler.now)
            if there > MISSED_S * 1e9 and not (planner.stopped or planner.terminated):
                self.world.violation(f"{script.name} has not found {planner.name}, which has been there for {there / 1e9:.0f} s")

    def begins(self, name: str, act: users.Act) -> None:
        self.busy[name] = act, self.world.scheduler.now, self._planned_ns()
        self.history.note(f"{name} {act.what}")

    def done(self, name: str, act: users.Act) -> None:
        _, since, planned = self.busy.pop(name)
        took = (self.world.scheduler.now - since) / 1e9
        planning = (self._planned_ns() - planned) / 1e9
        calm = not self.choices.trouble.rates and not self.weather.kinds
        if calm and act.what not in {"think", "workload"} and took > CALM_S + planning:
            self.world.violation(f"{name}: {act.what} took {took:.3f} s, {planning:.3f} s of it planning, although nothing was in the way")

    def _planned_ns(self) -> int:
        """How long planning children have run so far."""
        return sum(process.cpu_ns for process in self.world.processes.values() if process.kind == "plan")

    def answered(self) -> None:
        self.answers += 1

    def wrong(self, text: str) -> None:
        self.world.violation(text)

    def is_cancel(self, error: BaseException) -> bool:
        from concurrent.futures import CancelledError

        from aspen_mp import errors

        return isinstance(error, errors.RequestCancelled | CancelledError)

    def judge(self, script: users.Script, act: users.Act, error: BaseException) -> None:
        """An error has reached a user: is it one that this trouble explains?"""
        self.busy.pop(script.name, None)
        self.judge_part(script, act, error)

    def judge_part(self, script: users.Script, act: users.Act, error: BaseException) -> None:
        """The same where the act goes on."""
        kind = type(error).__name__
        self.errors[kind] = self.errors.get(kind, 0) + 1
        if "has not come back" in str(error):
            self._look_for_missed(script)
        self.history.note(f"{script.name} {act.what} fails", f"{kind}: {error}".splitlines()[0][:100])
        if not self._explained(script, act, error):
            import traceback

            text = "".join(traceback.format_exception(error))
            self.world.violation(f"{script.name}: {act.what} failed with {kind}: {error}, which nothing explains\n{text}")

    def _explained(self, script: users.Script, act: users.Act, error: BaseException) -> bool:
        from aspen_mp import errors
        from aspen_mp.control.wire.protocol import HANDSHAKE_S

        rates = {*self.choices.trouble.rates, *self.weather.kinds}
        rates |= {"scarce"} if "no-threads" in rates else set()
        planner_goes = bool(rates & {"kill-planner", "kill-anyone", "end-planner", "stop-anyone"})
        if act.what == "timeout" and isinstance(error, errors.RequestTimeout):
            return True
        if act.what == "deadline" and isinstance(error, errors.DeadlineMissed | errors.RequestTimeout):
            return True
        if act.what == "threads" and isinstance(error, RuntimeError):  # the user's own thread could not be had
            return "scarce" in rates
        if act.what == "broken" and isinstance(error, errors.ModelParseError):
            return True
        if isinstance(error, errors.ProtocolError) and f"within {HANDSHAKE_S:g} s" in str(error):  # somebody stood still for so long
            return bool(rates & {"stop-process", "stop-anyone"})
        if script.name == "host" and isinstance(error, errors.ResourceLimitError) and "cores" in rates:  # a core went at that moment
            return True
        if isinstance(error, errors.ResourceLimitError):
            return bool(rates & {"scarce", "kill-plan", "kill-anyone", "memory"})
        if isinstance(error, errors.PlanError) and "its file has been cut" in str(error):
            return "cache" in rates
        if isinstance(error, errors.PlanError):
            return bool(rates & {"kill-plan", "kill-anyone"})
        if isinstance(error, errors.RuntimeLost | errors.RuntimeNotFound):
            return planner_goes or "scarce" in rates or "stop-process" in rates
        if isinstance(error, OSError) and not isinstance(error, TimeoutError):
            return "scarce" in rates
        if isinstance(error, errors.PoisonTile):
            return bool(rates & {"kill-worker", "kill-anyone", "faults"})
        if script.name == "host":
            return "scarce" in rates
        return False

    # ---- the history

    def _host(self) -> None:
        """As `aspen-mp launch`: starts the runtime, and again whenever it is lost, until it is told to end."""
        import aspen_mp
        from aspen_mp.system import descriptors

        while not self.ended:
            try:
                runtime = aspen_mp.Runtime(workers=1 + self.choices.below(4), name=NAME, retry=True, log="off")
            except BaseException as error:
                if not self._explained(users.Script("host", True), users.Act("start", ()), error):
                    raise
                self.world.scheduler.pause(500_000_000)
                continue
            self.told = self.world.here.add(EventFd(self.world, 0))
            while not self.ended:
                try:
                    runtime.wait(self.told)
                    if not self.ended:
                        runtime.revive()
                except BaseException as error:
                    if not self._explained(users.Script("host", True), users.Act("revive", ()), error):
                        raise
                    break
            runtime.close()
            descriptors.close(self.told)

    def run(self) -> None:
        """Run the history. `failed` says what was wrong."""
        world, scheduler = self.world, self.world.scheduler
        self.host = world.start("host", self._host)
        for script in self.scripts:
            self.living.append(world.start("client", lambda script=script: users.User(self, script).live()))
        self.weather.begin()
        scheduler.run(self.options.steps, until=self._over)
        self.choices.quiet = True
        self.weather.stop()
        for process in list(world.processes.values()):
            if process.kind != "worker":  # which its runtime has to end
                process.go_on()
        horizon = scheduler.now + int(BOUND_S * 1e9)
        if not self._over() and not scheduler.run(10 * self.options.steps, until=self._over, horizon=horizon):
            self._stuck("users do not come to an end")
        for look in (self._look_whether_it_serves, self._look_at_rest, self._finish):
            if not self.failed:
                look()

    def _over(self) -> bool:
        return bool(self.failed) or not any(process.alive for process in self.living)

    def _look_whether_it_serves(self) -> None:
        """Trouble is over: one more user comes, and nothing may go wrong for it."""
        world, scheduler = self.world, self.world.scheduler
        last = world.start("client", self._use)
        scheduler.run(10 * self.options.steps, until=lambda: not last.alive, horizon=scheduler.now + int(BOUND_S * 1e9))
        if last.alive:
            self._stuck("a user who comes when trouble is over is not served")

    def _use(self) -> None:
        user = users.User(self, users.Script("last user", True))
        user.runtime = self.connect(user.script)
        for which in range(2):
            user.do_load(which)
            user.do_run(which, 5)
        user.do_status()
        user.runtime.close()

    def _look_at_rest(self) -> None:
        """All users have gone, and nobody disturbs the runtime: it holds what it held before they came."""
        world, scheduler = self.world, self.world.scheduler
        scheduler.run(self.options.steps, until=lambda: bool(self.failed), horizon=scheduler.now + int(REST_S * 1e9))
        for planner in world.alive("planner"):
            alive = [child for child in planner.children.values() if child.alive]
            if dead := [child.name for child in planner.children.values() if not child.alive]:
                world.violation(f"{planner.name} has not reaped {', '.join(dead)}")
            kinds = Counter(description.kind for description in planner.table.values())
            wanted = {"real": 7, "eventfd": 1, "listener": 2, "socket": len(alive) + 3, "pidfd": len(alive) + 1}
            if kinds != wanted:
                world.violation(f"{planner.name} holds {dict(kinds)} when its users have gone, not {wanted}")
            mapped = {child.name: world.native.mapped(child) for child in alive if child.kind == "worker"}
            if len(set(mapped.values())) > 1 or set(mapped.values()) - {MAPPED}:
                world.violation(f"workers have mapped {mapped} segments when users have gone, not {MAPPED} each")

    def _finish(self) -> None:
        world, scheduler = self.world, self.world.scheduler
        self.ended = True
        told = self.host.table.get(self.told)
        if told is not None:
            told.add(1)
        horizon = scheduler.now + int(REST_S * 1e9)
        scheduler.run(10 * self.options.steps, until=lambda: bool(self.failed), horizon=horizon)
        left = [process for process in world.processes.values() if process.alive]
        if left and not self.failed:
            self._stuck(f"{', '.join(process.name for process in left)} live on after all users and the runtime have ended")
        if not self.failed:
            self._look_for_remains()

    def _look_for_remains(self) -> None:
        world = self.world
        if world.real:
            world.violation(f"descriptors {sorted(world.real)} of the real system are open after the end of all processes")
        if world.names:
            world.violation(f"somebody listens after the end of all: {sorted(map(str, world.names))}")
        if world.native.mapped_bytes():
            world.violation(f"{world.native.mapped_bytes()} bytes are mapped after the end of all")

    def _stuck(self, what: str) -> None:
        lines = [what]
        for name, (act, since, _) in self.busy.items():
            lines.append(f"  {name}: {act.what} for {(self.world.scheduler.now - since) / 1e9:.3f} s")
        for process in self.world.processes.values():
            if process.alive:
                tasks = ", ".join(f"{task.name}: {task.state} {task.waits}" for task in process.tasks.values())
                lines.append(f"  {process}{' (stopped)' if process.stopped else ''}: {tasks}")
        self.world.violation("\n".join(lines))
