"""The command: one history by its seed, or many."""

from __future__ import annotations

import argparse
import gc
import importlib
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any


def _again() -> None:
    """Hashes must not differ from run to run: start once more with a fixed seed for them."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.environ["ASPEN_MP_CHECK"] = "on"  # planner processes check every step of their plans
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])


def _story(options: Any, history: Any) -> Any:
    if options.extra.get("kind") == "serve":
        from simulation.serving.story import ServeStory

        return ServeStory(options, history)
    from simulation.story import Story

    return Story(options, history)


def one(options: Any, trace: bool) -> dict[str, Any]:
    """Run a history in this process, which is of no use afterwards."""
    from simulation.world.history import History

    gc.disable()
    if options.extra.get("hang_s"):
        import faulthandler

        faulthandler.dump_traceback_later(options.extra["hang_s"], exit=True)
    history = History(tell=print if trace else None)
    story = _story(options, history)
    if options.extra.get("slices"):
        story.world.scheduler.on_slice = lambda task: print("   ", story.world.scheduler.now, task, task.waits)
    began = time.monotonic()
    story.run()
    took = time.monotonic() - began
    scheduler = story.world.scheduler
    return {
        "seed": options.seed,
        "digest": history.digest,
        "steps": scheduler.steps,
        "virtual_s": (scheduler.now - 10**12) / 1e9,
        "wall_s": took,
        "answers": story.answers,
        "errors": story.errors,
        "trouble": [*sorted(story.choices.trouble.rates), *story.weather.kinds],
        "failed": story.failed,
        "folder": str(story.world.folder),
        "marks": dict(history.marks),
    }


PRELOADED = (
    *("numpy", "onnx", "aspen_mp", "aspen_mp.client.runtime", "aspen_mp.client.model", "aspen_mp.client.workload"),
    *("aspen_mp.client.streams.model_stream", "aspen_mp.client.streams.arriving_request"),
    *("aspen_mp.control.boot", "aspen_mp.control.process.main", "aspen_mp.control.planning.child_main", "aspen_mp.workers.main"),
    *("aspen_mp.workers.zygote", "aspen_mp.workers.fallback.opaque_tile", "simulation.story"),
)
"""Imported once for all histories, each of which runs in a process of its own."""


PRELOADED_OF_SERVERS = (
    "uvicorn.server",
    "aspen_mp.serving.supervisor",
    "aspen_mp.serving.http",
    "aspen_mp.tools.metrics",
    "simulation.serving.story",
)


def preload(plant: str = "", kind: str = "runtime") -> None:
    from simulation import planted
    from simulation.native import modules

    modules.enable()
    if plant:
        planted.plant(plant)
    for name in PRELOADED + (PRELOADED_OF_SERVERS if kind == "serve" else ()):
        importlib.import_module(name)
    from aspen_mp.control.planning.preload import PLANNER

    for name in PLANNER:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def forked(options: Any, trace: bool) -> tuple[int, int]:
    """Begin a history in a process of its own: its pid, and a descriptor to read what was found from."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    os.close(reader)
    try:
        found = one(options, trace)
        shutil.rmtree(found["folder"], ignore_errors=True)
    except BaseException as error:
        import traceback

        found = {"seed": options.seed, "failed": [f"the simulation itself failed: {error!r}\n{traceback.format_exc()}"]}
    with open(writer, "wb", buffering=0, closefd=False) as out:
        data = json.dumps(found).encode()
        while data:
            data = data[out.write(data) :]
    sys.stdout.flush()
    os._exit(0)


def alone(options: Any) -> dict[str, Any]:
    """Run one history in a process of its own, to its end."""
    return next(many([options], 1, 300.0))


def many(histories: Iterable[Any], jobs: int, most_s: float) -> Iterator[dict[str, Any]]:
    """Run histories, some at a time. Yield what was found, in the order in which they end."""
    waiting = iter(histories)
    running: dict[int, tuple[int, Any, bytearray, float]] = {}
    poll = select.poll()
    ended = False
    while True:
        while not ended and len(running) < jobs:
            options = next(waiting, None)
            if options is None:
                ended = True
                break
            pid, reader = forked(options, False)
            running[reader] = pid, options, bytearray(), time.monotonic()
            poll.register(reader, select.POLLIN | select.POLLHUP)
        if not running:
            return
        for reader, _ in poll.poll(1000):
            pid, options, data, _ = running[reader]
            if piece := os.read(reader, 1 << 20):
                data += piece
                continue
            yield _ended(poll, running, reader)
        for reader, (pid, _, _, began) in list(running.items()):
            if time.monotonic() - began > most_s:
                os.kill(pid, signal.SIGABRT)
                yield _ended(poll, running, reader, f"no end after {most_s:g} s of real time")


def _ended(poll: Any, running: dict[int, Any], reader: int, why: str = "") -> dict[str, Any]:
    pid, options, data, _ = running.pop(reader)
    poll.unregister(reader)
    os.close(reader)
    status = os.waitpid(pid, 0)[1]
    if data and not why:
        return json.loads(data)  # type: ignore[no-any-return]
    return {"seed": options.seed, "failed": [why or f"the process of the history ended with wait status {status}"]}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="Run simulated histories, each by its seed.")
    number, flag = parser.add_argument, partial(parser.add_argument, action="store_true")
    number("--kind", choices=["runtime", "serve"], default="runtime", help="What a history is of.")
    number("--seed", type=int, default=1, help="The first history.")
    number("--seeds", default="", help="The histories to run, instead of several in a row, separated by commas.")
    number("--count", type=int, default=1, help="How many histories to run.")
    number("--minutes", type=float, default=0.0, help="How long to run histories, instead of a number of them.")
    number("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="Histories that run at the same time.")
    number("--steps", type=int, default=100_000, help="The longest time of trouble, in slices of processes.")
    number("--users", type=int, default=3, help="Users of a history.")
    number("--acts", type=int, default=12, help="Acts of each user, on average.")
    number("--most", type=int, help="The most acts of each user.")
    number("--without", default="", help="Kinds of trouble to leave out, separated by commas.")
    number("--plant", default="", help="A fault of planted.py to look for. The first history that fails because of it ends the search.")
    number("--hang-s", type=float, default=0.0, help="Seconds after which the present lines of Python are printed.")
    flag("--streams", help="Have users with streams in all histories.")
    flag("--calm", help="Leave out all trouble.")
    flag("--trace", help="Print what happens.")
    flag("--slices", help="Print which thread runs when.")
    flag("--twice", help="Run each history twice. Both have to be the same.")
    flag("--digests", help="Print the digest of each history.")
    flag("--shrink", help="Look for a shorter history that fails in the same way.")
    flag("--marks", help="Print the rare things that were reached, and how often.")
    flag("--table", help="Write the table of planted faults into the documentation.")
    return parser


def main() -> int:
    given = _parser().parse_args()
    _again()
    if given.plant:
        from simulation import planted
        from simulation.serving import planted as serving

        given.kind = "serve" if given.plant in serving.FAULTS else "runtime"
        given.streams |= given.kind == "runtime" and planted.FAULTS[given.plant].streams
    if given.table:
        from simulation import planted

        page = Path(__file__).resolve().parents[2] / "docs" / "protocol" / "simulation.md"
        page.write_text(planted.printed(page.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    preload(given.plant, given.kind)
    from simulation.story import Options

    def options(seed: int) -> Options:
        return Options(
            seed=seed,
            steps=given.steps,
            users=given.users,
            acts=given.acts,
            without=tuple(filter(None, given.without.split(","))),
            trouble=not given.calm,
            most=given.most,
            streams=given.streams,
            extra={"hang_s": given.hang_s, "slices": given.slices, "kind": given.kind},
        )

    if given.shrink:
        from simulation import shrink

        found = shrink.shortest(options(given.seed), alone, lambda text: print(text, flush=True))
        print(shrink.command(found))
        return 0
    if given.count == 1 and not given.minutes and not given.seeds:
        found = one(options(given.seed), given.trace)
        print({key: value for key, value in found.items() if key != "failed"})
        for text in found["failed"]:
            print("FAILED", text)
        sys.stdout.flush()
        shutil.rmtree(found["folder"], ignore_errors=True)
        os._exit(1 if found["failed"] else 0)
    return _night(given, options)


def _passes(command: str) -> bool:
    """Whether a history is right without the planted fault."""
    done = subprocess.run([sys.executable, *command.split()[1:]], capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{command} fails without the planted fault, too", flush=True)
    return not done.returncode


def _night(given: Any, options: Any) -> int:
    from simulation import shrink

    began = time.monotonic()
    seeds: Iterable[int] = itertools.count(given.seed) if given.minutes else range(given.seed, given.seed + given.count)
    if given.seeds:
        seeds = [int(seed) for seed in given.seeds.split(",")]

    def histories() -> Iterator[Any]:
        for seed in seeds:
            if given.minutes and time.monotonic() - began > given.minutes * 60:
                return
            yield options(seed)
            if given.twice:
                yield options(seed)

    totals: Counter[str] = Counter()
    marks: Counter[str] = Counter()
    digests: dict[int, str] = {}
    failed = 0
    for found in many(histories(), given.jobs, 300.0):
        totals["histories"] += 1
        for name in ("steps", "virtual_s", "wall_s", "answers"):
            totals[name] += found.get(name, 0)  # type: ignore[assignment]
        if given.twice and digests.setdefault(found["seed"], found.get("digest")) != found.get("digest"):
            print(f"seed {found['seed']}: two runs differ")
        marks.update(found.get("marks", {}))
        if given.digests:
            print(f"{found['seed']} {found.get('digest')}", flush=True)
        if found["failed"]:
            failed += 1
            print(f"seed {found['seed']}: {found['failed'][0].splitlines()[0][:300]}", flush=True)
            print(f"    {shrink.command(options(found['seed']), given.kind)}", flush=True)
            if given.plant and _passes(shrink.command(options(found["seed"]), given.kind)):
                print(f"{given.plant}: found by history {totals['histories']} (seed {found['seed']})", flush=True)
                os._exit(0)
    if given.marks:
        from simulation.marks import EXPECTED

        print("".join(f"not reached: {mark}\n" for mark in EXPECTED if not marks[mark]), end="")
        print("\n".join(f"{number:8} {mark}" for mark, number in sorted(marks.items())))
    print(f"{dict(totals)}, {failed} failed, {time.monotonic() - began:.1f} s")
    return 1 if failed else 0
