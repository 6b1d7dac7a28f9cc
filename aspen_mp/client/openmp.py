"""Undoes for a runtime what an OpenMP library of this process did to the calling thread.

With ``OMP_PROC_BIND`` the library binds the thread that loads it to one CPU. A process that such a thread starts would inherit that CPU as
the only one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from aspen_mp.system import filesystem, processes

_BINDS = ("OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
_LIBRARIES = ("libgomp", "libiomp5", "libomp")


@contextmanager
def unbound() -> Iterator[None]:
    """Within, the calling thread may run on all CPUs that the OpenMP libraries of this process deal out, if one of them has bound it."""
    bound = processes.sched_getaffinity(0)
    places = _places() if any(name in os.environ for name in _BINDS) else []
    if bound not in places:  # not bound, or by somebody else, who meant it
        yield
        return
    processes.sched_setaffinity(0, set().union(*places))
    try:
        yield
    finally:
        processes.sched_setaffinity(0, bound)


def _places() -> list[set[int]]:
    """The places of OpenMP libraries that are loaded (OpenMP 4.5, section 3.2.23), each a set of CPUs."""
    import ctypes

    found: list[set[int]] = []
    for path in _loaded():
        library = ctypes.CDLL(path)
        for place in range(library.omp_get_num_places()):
            cpus = (ctypes.c_int * library.omp_get_place_num_procs(place))()
            library.omp_get_place_proc_ids(place, cpus)
            found.append(set(cpus))
    return found


def _loaded() -> set[str]:
    with filesystem.open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        paths = {line.split(maxsplit=5)[-1].rstrip("\n") for line in maps if "/" in line}
    return {path for path in paths if os.path.basename(path).startswith(_LIBRARIES)}
