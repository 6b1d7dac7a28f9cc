"""Acts of users with streams of frames and with requests whose inputs arrive in pieces."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from simulation import models

if TYPE_CHECKING:
    from simulation.story import Story
    from simulation.users import Script, User
    from simulation.world.processes import Process

SHARE: Final = 0.25
"""The share of histories in which users have streams. All others are as if there were none."""
BEFORE: Final = 0.3
"""How often such an act comes before each of a user's other ones."""
KINDS: Final = ("stream", "stream", "begin")
"""The acts, as often as they stand here."""
BACK_S: Final = 300.0
"""Virtual seconds that users wait after their last act, at most, until no region is in use."""
TOL: Final = 0.5
"""A tolerance that no difference of whole numbers is within."""

Maker = Callable[[], Any]


def put_in(seed: int, scripts: list[Script], always: bool) -> bool:
    """Put acts with streams into the scripts of some histories. Return whether this is one of them."""
    from simulation.users import Act

    chance = random.Random(seed * 1_000_003 + 18)
    if chance.random() >= SHARE and not always:
        return False
    for script in scripts:
        acts = []
        for act in script.acts:
            if chance.random() < BEFORE:
                numbers = tuple(int(chance.random() * (1 << 30)) for _ in range(2))
                acts.append(Act(KINDS[int(chance.random() * len(KINDS))], numbers))
            acts.append(act)
        script.acts = acts
    return True


# ---- memory


@dataclass(frozen=True, slots=True, eq=False)
class _Open:
    """A stream, or a request whose inputs arrive. It has `_stage` and `_region` while it holds memory."""

    process: Process
    what: Any
    whole: bool


class OpenStreams:
    """All that hold memory from request to request, in all processes of a history."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._open: list[_Open] = []
        self._garbage = random.Random(story.options.seed)
        from aspen_mp.control.pool import recovery

        rebuild = recovery.Recovery._rebuild

        def rebuilt(own: Any, buffers: Any) -> None:
            restart = own._restart
            if restart:
                self._scribble(under_way=True)
            rebuild(own, buffers)
            if restart:
                self._scribble(under_way=False)

        recovery.Recovery._rebuild = rebuilt  # type: ignore[method-assign]

    @contextmanager
    def holding(self, what: Any, whole: bool) -> Iterator[None]:
        """`whole`: nothing in its memory counts after a fault while none of its requests is under way."""
        opened = _Open(self._story.world.here, what, whole)
        self._open.append(opened)
        try:
            yield
        finally:
            self._open.remove(opened)

    def _scribble(self, *, under_way: bool) -> None:
        """A worker has died of a fault, and has written where nobody may count on memory any more. Frames that are under way lose their
        activations while the world stands still. Idle streams lose everything, once they can see the fault."""
        planner = self._story.world.here.pid
        for each in list(self._open):
            stage, region = getattr(each.what, "_stage", None), getattr(each.what, "_region", None)
            if not each.process.alive or stage is None or region is None or stage._session.control.server_pid != planner:
                continue
            has_seen = each.whole and each.what._faults == stage.faults()
            idle = each.whole and not each.what._turn.locked() and each.what._region is region
            if idle == under_way or (idle and has_seen):
                continue
            counts = stage.planned.outputs[-1]
            begin = 0 if idle else counts.offset + counts.nbytes
            n = stage.planned.region - begin
            region.span.buffer[region.span.offset + begin : region.span.offset + begin + n] = self._garbage.randbytes(n)
            self._story.history.sometimes("garbage in a stream's memory" if idle else "garbage in a frame's memory")


class Regions:
    """Regions that one user's streams have used."""

    def __init__(self) -> None:
        self._seen: list[tuple[Any, Any]] = []

    def see(self, what: Any) -> None:
        stage, region = what._stage, what._region
        if stage is not None and region is not None and not any(region is each for _, each in self._seen):
            self._seen.append((stage._session, region))

    def look(self, user: User) -> None:
        """All of them must come back, once no request is under way."""
        from aspen_mp.system import clock

        last = clock.monotonic() + BACK_S
        while held := [region for session, region in self._seen if region.holds and session.control.lost is None]:
            if clock.monotonic() > last:
                user.story.wrong(f"{user.script.name}: {len(held)} regions of streams have not come back")
                return
            clock.sleep(1.0)


# ---- frames


def is_late(error: BaseException) -> bool:
    from aspen_mp import errors

    return isinstance(error, errors.RequestTimeout | errors.DeadlineMissed)


class Film:
    """One stream, the frame that was given last, and the next ones."""

    def __init__(self, user: User, known: models.Known, model: Any, chance: random.Random) -> None:
        self._user = user
        self._known = known
        self._chance = chance
        self._tol = chance.random() < 0.25
        how: dict[str, Any] = {"same_bits": chance.choice([None, True, False])}
        self._bounded = chance.random() < 0.3
        if self._bounded:
            how["memory"] = int(2048 * 100 ** chance.random())
        if self._tol:
            how["tol"] = TOL
            how["refresh"] = chance.choice([0, 2, 3])
        self.stream = model.stream(**how)
        self._size = 0
        self._frame: models.Arrays = {}
        self._cut()

    def _cut(self) -> None:
        """Another picture, and perhaps of another size."""
        if self._chance.random() < 0.5:
            self._size = self._chance.choice(self._known.lengths)
        self._frame = self._known.feeds(self._chance.randrange(1000), self._size or self._known.lengths[0])

    def _next(self) -> tuple[models.Arrays, Any]:
        """The next frame, and what users say of it: None, or what may have changed."""
        chance = self._chance
        if chance.random() < 0.12:
            self._cut()
            return self._frame, None
        other = self._known.feeds(chance.randrange(1000), self._size or self._known.lengths[0])
        frame, boxes = dict(self._frame), {}
        for name, before in self._frame.items():
            if chance.random() < 0.2:
                continue
            box = self._box(before.shape)
            frame[name] = before.copy()
            frame[name][box] = other[name][box]
            boxes[name] = box
        self._frame = frame
        return frame, self._said(boxes)

    def _box(self, shape: tuple[int, ...]) -> tuple[slice, ...]:
        ends = [sorted((self._chance.randrange(n), 1 + self._chance.randrange(n))) for n in shape]
        return tuple(slice(low, max(low + 1, high)) for low, high in ends)

    def _said(self, boxes: dict[str, tuple[slice, ...]]) -> Any:
        how = self._chance.random()
        if how < 0.4:
            return None
        said: dict[str, Any] = {}
        for name, box in boxes.items():
            if self._chance.random() < 0.5:
                said[name] = np.zeros(self._frame[name].shape, bool)
                said[name][box] = True
            else:
                said[name] = [[[each.start for each in box], [each.stop for each in box]]]
                if self._chance.random() < 0.3:
                    more = self._box(self._frame[name].shape)
                    said[name].append([[each.start for each in more], [each.stop for each in more]])
        return said

    # ---- giving them

    def step(self) -> None:
        """One frame, or some at a time, or something that goes wrong. A fault may come before it."""
        from aspen_mp.system import clock

        if "faults" in self._user.story.weather.kinds and self._chance.random() < 0.3:
            clock.sleep(1e-3 * 1000 ** self._chance.random())
        at = self._chance.random()
        if at < 0.5:
            self._one()
        elif at < 0.75:
            self._some()
        elif at < 0.83:
            self._late()
        elif at < 0.9:
            self._wrong()
        elif at < 0.95:
            self.stream.reset()
        else:
            self._refused()
        self._user.regions.see(self.stream)

    def _answer(self, frame: models.Arrays, ask: Maker, may_fail: Callable[[BaseException], bool] = lambda error: False) -> None:
        """Ask for a frame's result. An error is judged, and the stream goes on."""
        try:
            results = ask()
        except BaseException as error:
            if not may_fail(error):
                self._bear(error)
            return
        self._user._check(self._known, frame, results)
        last = self.stream.last
        if last is not None and last.error:
            self._user.story.wrong(f"{self._user.script.name}: a whole frame differs by {last.error}")

    def _bear(self, error: BaseException) -> None:
        """Have an error judged, unless memory is too little for a frame of this size."""
        from aspen_mp import errors

        if not (self._bounded and isinstance(error, errors.ResourceLimitError) and "its limit is" in str(error)):
            self._user.bear(error)

    def _one(self) -> None:
        frame, said = self._next()
        copy = self._chance.random() < 0.7 or "faults" in self._user.story.weather.kinds  # which may write to views
        self._answer(frame, lambda: self.stream.run(frame, said, copy=copy))

    def _some(self) -> None:
        """Frames that wait for their turn, some of which are cancelled."""
        from aspen_mp.system import clock

        asked: list[tuple[models.Arrays, Any, bool]] = []
        for _ in range(self._chance.randrange(1, 5)):
            frame, said = self._next()
            copy = self._chance.random() < 0.5
            try:
                asked.append((frame, self.stream.submit(frame, said, copy=copy), self._chance.random() < 0.25))
            except BaseException as error:
                self._bear(error)
        if self._chance.random() < 0.5:
            clock.sleep(1e-6 * 1000 ** self._chance.random())
        for _, future, cancelled in asked:
            if cancelled:
                future.cancel()
        for frame, future, cancelled in asked:
            self._answer(frame, future.result, self._user.story.is_cancel if cancelled else lambda error: False)

    def _late(self) -> None:
        frame, said = self._next()
        seconds = 1e-5 * 2000 ** self._chance.random()
        how = {"timeout": seconds} if self._chance.random() < 0.5 else {"deadline_ms": 1e3 * seconds}
        waits = self._chance.random() < 0.5

        def ask() -> Any:
            return self.stream.run(frame, said, **how) if waits else self.stream.submit(frame, said, **how).result()

        self._answer(frame, ask, is_late)

    def _wrong(self) -> None:
        """A frame that an operator refuses. The frame after it has none of its numbers."""
        from aspen_mp import errors

        if self._known.name != "lookup":
            return self._one()
        right, _ = self._next()
        frame = {name: array.copy() for name, array in right.items()}
        frame["i"][self._chance.randrange(frame["i"].size)] = models.ROWS_OF_TABLE + 3
        try:
            self.stream.run(frame)
        except BaseException as error:
            if not isinstance(error, errors.RequestError):
                self._bear(error)
        else:
            self._user.story.wrong(f"{self._user.script.name}: a frame with a wrong number has a result")
        where = np.flatnonzero(frame["i"] != right["i"])
        said = {"i": [[[int(where[0])], [int(where[0]) + 1]]]}
        return self._answer(right, lambda: self.stream.run(right, said))

    def _refused(self) -> None:
        """A frame whose arguments are wrong. Then the next one differs by more than is said of it."""
        from aspen_mp import errors

        frame, _ = self._next()
        name = next(iter(frame))
        try:
            self.stream.run(frame, {name: np.ones((1, 1, 1, 1, 1), bool)} if self._chance.random() < 0.5 else {"no such input": []})
        except errors.RequestError:
            return
        except BaseException as error:
            self._bear(error)


def film(user: User, which: int, number: int) -> None:
    """Some frames of one or two streams of a model."""
    known, model = user.streamed(which)
    chance = random.Random(number)
    films = [Film(user, known, model, chance) for _ in range(chance.choice([1, 1, 2]))]
    try:
        with user.story.open_streams.holding(films[0].stream, True), user.story.open_streams.holding(films[-1].stream, True):
            for _ in range(chance.randrange(4, 16)):
                chance.choice(films).step()
    finally:
        for each in films:
            each.stream.close()


# ---- pieces


def _pieces(array: Any, chance: random.Random) -> list[tuple[int, int, int]]:
    """Rows in which an input is written: axis, first and last."""
    axes = [axis for axis, extent in enumerate(array.shape) if extent > 1] or [0]
    axis = chance.choice(axes)
    cuts = sorted({0, array.shape[axis], *(chance.randrange(1 + array.shape[axis]) for _ in range(chance.randrange(8)))})
    found = [(axis, first, last) for first, last in itertools.pairwise(cuts)]
    if chance.random() < 0.3:
        chance.shuffle(found)
    return found


class Reader:
    """A thread that takes rows of the output as they come."""

    def __init__(self, request: Any, name: str) -> None:
        from aspen_mp.system import threads

        self.rows: list[tuple[int, Any]] = []
        self.error: BaseException | None = None
        self._request, self._name = request, name
        self._thread: Any = threads.Thread(target=self._read, name="reader")
        try:
            self._thread.start()
        except RuntimeError:  # no thread is to be had
            self._thread = None

    def _read(self) -> None:
        try:
            for first, rows in self._request.rows(self._name):
                self.rows.append((first, rows.copy()))
        except BaseException as error:
            self.error = error

    def end(self, results: models.Arrays | None) -> str:
        """Wait for its end. Return what is wrong with the rows, beside those of `results`."""
        if self._thread is None:
            return ""
        self._thread.join()
        if results is None:
            return ""
        if self.error is not None:
            return f"rows end with {type(self.error).__name__}: {self.error}"
        whole, at = results[self._name], self.rows[0][1].shape
        differ = [axis for axis, extent in enumerate(whole.shape) if extent != at[axis]]
        axis = differ[0] if differ else 0
        firsts = [first for first, _ in self.rows]
        lengths = [rows.shape[axis] for _, rows in self.rows]
        if firsts != [sum(lengths[:k]) for k in range(len(lengths))]:
            return f"rows begin at {firsts} and have the lengths {lengths}"
        got = np.concatenate([rows for _, rows in self.rows], axis)
        return "" if np.array_equal(got, whole) else "rows differ from the result"


def arrive(user: User, which: int, number: int) -> None:
    """A request whose inputs arrive in pieces, with a writer that may leave before its end."""
    known, model = user.streamed(which)
    chance = random.Random(number)
    feeds = known.feeds(chance.randrange(1000), chance.choice(known.lengths))
    wrong = known.name == "lookup" and chance.random() < 0.2
    if wrong:
        feeds = {"i": feeds["i"].copy()}
        feeds["i"][chance.randrange(feeds["i"].size)] = -models.ROWS_OF_TABLE - 3
    late = chance.random() < 0.15
    how = {"timeout": 1e-5 * 5000 ** chance.random()} if late else {}
    try:
        _write(user, known, model.begin({name: array.shape for name, array in feeds.items()}, **how), feeds, chance, wrong=wrong)
    except BaseException as error:
        if not (late and is_late(error)):
            raise


def _write(user: User, known: models.Known, request: Any, feeds: models.Arrays, chance: random.Random, *, wrong: bool) -> None:
    from aspen_mp import errors
    from aspen_mp.system import clock

    pieces = [(name, *piece) for name, array in feeds.items() for piece in _pieces(array, chance)]
    if chance.random() < 0.5:
        pieces.sort(key=lambda piece: piece[2])
    leaves = chance.randrange(len(pieces) + 1) if chance.random() < 0.25 else -1
    cancels, slow = chance.random() < 0.3, chance.random() < 0.4
    forgets = leaves >= 0 and chance.random() < 0.3  # instead of leaving a block
    reader, results = None, None
    name = next(iter(known.answer(known.feeds(0, known.lengths[0]))))
    try:
        with user.story.open_streams.holding(request, False), nullcontext() if forgets else request:
            if not forgets and chance.random() < 0.4:
                reader = Reader(request, name)
            for k, (one, axis, first, last) in enumerate(pieces):
                user.regions.see(request)
                if k == leaves:
                    if cancels and not forgets:
                        request.cancel()
                    return
                place = (*(slice(None),) * axis, slice(first, last))
                request.write(one, feeds[one][place], at=first, axis=axis)
                if slow:
                    clock.sleep(1e-6 * 1000 ** chance.random())
            try:
                results = request.result()
            except errors.RequestError as error:
                if not wrong or isinstance(error, errors.RequestTimeout | errors.DeadlineMissed):
                    raise
                return
            if wrong:
                user.story.wrong(f"{user.script.name}: a request with a wrong number has a result")
                return
            user._check(known, feeds, results)
    finally:
        if reader is not None and (text := reader.end(results)):
            user.story.wrong(f"{user.script.name}: {known.name}: {text}")
