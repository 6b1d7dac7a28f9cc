"""Who keeps the folder of models: adds versions, replaces, removes and breaks them while visitors ask."""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from simulation.serving.contents import kinds
from simulation.users import Act

if TYPE_CHECKING:
    from simulation.serving.story import ServeStory

ACTIONS: Final = {
    "publish": 6,
    "copy": 5,
    "replace": 5,
    "swap": 4,
    "spoil": 2,
    "withdraw": 4,
    "drop": 1,
    "configure": 4,
    "misconfigure": 2,
    "think": 14,
}
MOST_VERSION: Final = 4


@dataclass(slots=True)
class Content:
    """A file of a model. `until`: when it had gone from its place."""

    number: int
    name: str
    version: int
    since: int
    until: int = 1 << 62


@dataclass(slots=True)
class Disk:
    """What is in the folder, and what was.

    Attributes:
        contents: By the number that each file adds to its results.
        broken: Versions whose present file is no model.
        misconfigured: Models whose configuration cannot be read.
    """

    contents: dict[int, Content] = field(default_factory=dict)
    now: dict[tuple[str, int], Content | None] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    misconfigured: set[str] = field(default_factory=set)


def draw(seed: int, acts: int) -> list[Act]:
    """What a maintainer does in a history."""
    chance = random.Random(seed * 1_000_003 + 29)
    weights = {what: weight * (0.2 + 1.8 * chance.random()) * (chance.random() > 0.2) for what, weight in ACTIONS.items()}
    weights["think"] = max(weights["think"], 4.0)
    names = list(weights)
    found = []
    for _ in range(acts):
        (what,) = chance.choices(names, [weights[name] for name in names])
        found.append(Act(what, tuple(int(chance.random() * (1 << 30)) for _ in range(4))))
    return found


class Maintainer:
    """Changes the folder `root`."""

    def __init__(self, story: ServeStory, root: Path, acts: list[Act]) -> None:
        self.story = story
        self.root = root
        self.acts = acts
        self.disk = Disk()
        self.spoiled: set[str] = set()
        self._last = 100

    def begin(self, models: list[str]) -> None:
        """The folder at the beginning, before anybody runs."""
        self.root.mkdir(exist_ok=True)
        for name in models:
            (self.root / name / "1").mkdir(parents=True)
            (self.root / name / "1" / "model.onnx").write_bytes(self._new(name, 1))
            self._date(self.root / name / "1" / "model.onnx")
            self.disk.versions[name] = 1

    def live(self) -> None:
        for act in self.acts:
            self.story.history.note(f"maintainer {act.what}")
            getattr(self, f"do_{act.what}")(*act.numbers)

    # ---- what has changed

    def _new(self, name: str, version: int) -> bytes:
        self._last += 1
        content = Content(self._last, name, version, self.story.world.scheduler.now)
        self.disk.contents[self._last] = content
        self._gone(name, version)
        self.disk.now[name, version] = content
        return kinds()[name].file(self._last)

    def _gone(self, name: str, version: int) -> None:
        content = self.disk.now.pop((name, version), None)
        if content is not None:
            content.until = self.story.world.scheduler.now

    def _notify(self, folder: Path, event: str) -> None:
        from aspen_mp.system import watches

        self.story.folders.changed(folder, getattr(watches, event))

    def _pause(self, most_ms: int) -> None:
        from aspen_mp.system import clock

        clock.sleep((1 + self.story.choices.below(most_ms)) / 1e3)

    def _name(self, which: int) -> str:
        names = sorted(kinds())
        return names[which % len(names)]

    def _present(self, which: int) -> tuple[str, int] | None:
        there = sorted(self.disk.now)
        return there[which % len(there)] if there else None

    def _folder(self, name: str) -> Path:
        folder = self.root / name
        if not folder.exists():
            folder.mkdir()
            self._notify(self.root, "CREATED")
            self.disk.versions.setdefault(name, 1)
            self._pause(3)
        return folder

    # ---- acts

    def do_publish(self, which: int, version: int, *_: int) -> None:
        """A new version appears at once."""
        name, version = self._name(which), 1 + version % MOST_VERSION
        place = self._folder(name) / str(version)
        if place.exists():
            return
        made = self.root / name / f".{version}"
        made.mkdir(exist_ok=True)
        data = self._new(name, version)
        (made / "model.onnx").write_bytes(data)
        self._date(made / "model.onnx")
        made.rename(place)
        self._notify(place.parent, "MOVED_TO")

    def do_copy(self, which: int, version: int, *_: int) -> None:
        """A new version is copied, so that half of it is there for a while."""
        name, version = self._name(which), 1 + version % MOST_VERSION
        place = self._folder(name) / str(version)
        if place.exists():
            return
        place.mkdir()
        self._notify(place.parent, "CREATED")
        self._pause(20)
        self._write(place / "model.onnx", self._new(name, version))

    def _date(self, path: Path) -> None:
        """Files have times of the world."""
        at = self.story.world.scheduler.now
        os.utime(path, ns=(at, at))

    def _write(self, path: Path, data: bytes) -> None:
        existed = path.exists()
        with open(path, "wb", buffering=0) as file:
            if not existed:
                self._notify(path.parent, "CREATED")
            file.write(data[: len(data) // 2])
            self._date(path)
            self._pause(20)
            file.write(data[len(data) // 2 :])
            self._pause(2)
        self._date(path)
        self._notify(path.parent, "CLOSED_AFTER_WRITING")

    def do_replace(self, which: int, *_: int) -> None:
        """The file of a version is written anew in its place."""
        if (found := self._present(which)) is not None:
            path = self.root / found[0] / str(found[1]) / "model.onnx"
            self._write(path, self._new(*found))

    def do_swap(self, which: int, *_: int) -> None:
        """The file of a version is replaced by another one."""
        if (found := self._present(which)) is not None:
            folder = self.root / found[0] / str(found[1])
            data = self._new(*found)
            made = self.root / f".{found[0]}"
            made.write_bytes(data)
            self._date(made)
            made.rename(folder / "model.onnx")
            self._notify(folder, "MOVED_TO")

    def do_spoil(self, which: int, *_: int) -> None:
        """The file of a version becomes one that is no model."""
        if (found := self._present(which)) is not None:
            self._gone(*found)
            self.spoiled.add(found[0])
            self._write(self.root / found[0] / str(found[1]) / "model.onnx", b"no model" * 3)

    def do_withdraw(self, which: int, *_: int) -> None:
        """A version goes."""
        found = self._present(which)
        if found is None or sum(name == found[0] for name, _ in self.disk.now) < 2:
            return
        folder = self.root / found[0] / str(found[1])
        (folder / "model.onnx").unlink()
        self._gone(*found)
        self._notify(folder, "DELETED")
        self._pause(3)
        folder.rmdir()
        self._notify(folder.parent, "DELETED")

    def do_drop(self, which: int, *_: int) -> None:
        """A model goes."""
        name = self._name(which)
        folder = self.root / name
        if not folder.exists():
            return
        for each in [each for each in self.disk.now if each[0] == name]:
            self._gone(*each)
        self.disk.misconfigured.discard(name)
        self.disk.versions.pop(name, None)
        moved = self.root / f".gone-{name}-{self._last}"
        folder.rename(moved)
        self._notify(self.root, "MOVED_FROM")
        shutil.rmtree(moved)

    def do_configure(self, which: int, kind: int, batch: int, versions: int) -> None:
        """A model gets another configuration."""
        name = self._name(which)
        if not (self.root / name).exists():
            return
        lines = [f"versions = {1 + versions % 2}"]
        if kind % 3 == 0:
            lines.append(f"priority = {['high', 'low'][batch % 2]!r}")
        if kind % 2 == 0:
            lines += ["[batching]", f"max_batch = {[2, 4, 16][batch % 3]}", f"max_delay_ms = {[0, 1, 30][versions % 3]}"]
        self.disk.misconfigured.discard(name)
        self.disk.versions[name] = 1 + versions % 2
        self._config(name, "\n".join(lines) + "\n")

    def do_misconfigure(self, which: int, *_: int) -> None:
        name = self._name(which)
        if (self.root / name).exists():
            self.disk.misconfigured.add(name)
            self._config(name, "versions = 'two'\n")

    def _config(self, name: str, text: str) -> None:
        made = self.root / f".{name}.toml"
        made.write_text(text)
        self._date(made)
        made.rename(self.root / name / "config.toml")
        self._notify(self.root / name, "MOVED_TO")

    def do_think(self, ms: int, *_: int) -> None:
        self._pause(ms % 3000 + 1)
