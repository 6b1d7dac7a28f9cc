"""Puts the simulated world in the place of the system's rooms."""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from types import ModuleType
from typing import Any

from simulation.world import isolation, rooms, sockets, threads
from simulation.world.native import Native
from simulation.world.world import World


def environment(folder: Path) -> dict[str, str]:
    """The environment of all simulated processes."""
    return {
        "XDG_RUNTIME_DIR": str(folder / "run"),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "HOME": str(folder),
        "ASPEN_MP_LEASES": str(folder / "leases"),
        "ASPEN_MP_ISA": "portable",
    }


def machine(folder: Path, cpus: int) -> Path:
    """The made-up /proc and /sys of a machine with `cpus` equal cores."""
    root = folder / "machine"

    def put(path: str, text: object) -> None:
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    put("sys/devices/system/cpu/online", f"0-{cpus - 1}")
    for cpu in range(cpus):
        where = f"sys/devices/system/cpu/cpu{cpu}"
        put(f"{where}/topology/physical_package_id", 0)
        put(f"{where}/topology/core_cpus_list", cpu)
        for index, (level, kind, shared) in enumerate([(1, "Instruction", cpu), (2, "Unified", cpu), (3, "Unified", f"0-{cpus - 1}")]):
            put(f"{where}/cache/index{index}/level", level)
            put(f"{where}/cache/index{index}/type", kind)
            put(f"{where}/cache/index{index}/shared_cpu_list", shared)
    return root


def _replace(module: ModuleType, names: dict[str, Any]) -> None:
    for name, value in names.items():
        setattr(module, name, value)


def install(world: World) -> None:
    """Replace the names of all rooms. The rest of this process belongs to the world."""
    weakref.WeakSet = isolation.WeakSet  # type: ignore[misc]
    (world.folder / "run").mkdir(mode=0o700, exist_ok=True)
    os.environ.update(environment(world.folder))
    from aspen_mp.system import clock, descriptors, filesystem, processes, randomness, signals, watches
    from aspen_mp.system import sockets as own_sockets
    from aspen_mp.system import threads as own_threads

    _replace(clock, rooms.clock(world))
    _replace(descriptors, rooms.descriptors(world))
    _replace(filesystem, rooms.filesystem(world))
    _replace(processes, {name: value for name, value in rooms.processes(world).items() if name != "_begin"})
    _replace(signals, rooms.signals(world))
    _replace(watches, rooms.watches(world))
    _replace(randomness, rooms.randomness(world))
    _replace(own_threads, threads.make(world))
    _replace(own_sockets, sockets.make(world))
    # Executors and futures of the standard library wait by `threading`: theirs is the world's, too.
    import concurrent.futures._base as futures
    import concurrent.futures.thread as pools

    names = threads.make(world)
    made = ModuleType("threading")
    _replace(made, names)
    made.local = __import__("threading").local  # type: ignore[attr-defined]
    made._register_atexit = lambda *_: None  # type: ignore[attr-defined]
    futures.threading = made  # type: ignore[attr-defined]
    pools.threading = made  # type: ignore[attr-defined]
    pools._global_shutdown_lock = names["Lock"]()  # type: ignore[attr-defined]
    pools.queue = ModuleType("queue")  # type: ignore[attr-defined]
    _replace(pools.queue, {"SimpleQueue": names["SimpleQueue"], "Empty": __import__("queue").Empty})
    from aspen_mp.control.planning import plan_cache

    plan_cache.build = lambda: "simulated"  # else names in the cache would tell of the files of this installation
    pools._worker = worker  # type: ignore[assignment]
    from aspen_mp.workers import process, topology

    _replace(process, rooms.worker_process(world))
    topology.ROOT = str(machine(world.folder, world.cpus))
    guard(world)
    world.globals = isolation.Globals()
    native = Native(world)
    world.native = native
    world.scheduler.before = native.before


def worker(executor: Any, queue: Any, *_: Any) -> None:
    """The work of a thread of an executor, in the same steps for all versions of Python. `executor`: a weak reference."""
    while True:
        item = queue.get(block=True)
        if item is not None:
            item.run()
            del item
            if (there := executor()) is not None:
                there._idle_semaphore.release()
            del there
            continue
        there = executor()
        if there is None or there._shutdown:
            queue.put(None)
            return
        del there


def guard(world: World) -> None:
    """Tell whoever closes a descriptor of the world behind its back."""
    import os as real
    import traceback

    close = real.close

    def checked(number: int) -> None:
        if number in world.real:
            world.violation(f"descriptor {number} was closed past the world\n{''.join(traceback.format_stack())}")
        close(number)

    from simulation.world import descriptions

    descriptions.close_real = close  # type: ignore[assignment]
    real.close = checked
