"""What a planning child does for the plan cache: it knows the model by the digest of its contents, takes packed weights from the cache, and
has what it has made written into it by a process of its own (`cache_process`)."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from aspen_mp.control.planning import plan_cache
from aspen_mp.control.planning.cache_process import Kept, WriterProcess
from aspen_mp.control.planning.plan_cache import Cache, WeightFile
from aspen_mp.control.wire import file_stamp
from aspen_mp.system import clock, descriptors, filesystem, processes, threads

PART = 16 << 20
"""Bytes of a file that one thread digests at a time. The digest of a file depends on it."""
PIECE = 256 << 10
"""Bytes that are read at once: the digest finds them in the cache of its core."""
MOST_THREADS = 8

if TYPE_CHECKING:
    from aspen_mp.control.planning.planner_child import Inspected, PlanStage, StagePlanned
    from aspen_mp.planner.job.request import PlanRequest
    from aspen_mp.planner.plan.plan import Plan


def file_digest(fd: int) -> bytes:
    """Digest of a file's bytes and size: SHA-256 of the digests of its parts, which threads compute at the same time."""
    import hashlib

    size = descriptors.fstat(fd).st_size
    parts = _part_digests(fd, range(0, size, PART))
    return hashlib.sha256(b"".join([f"aspen-mp file {size}\n".encode(), *parts])).digest()


def _part_digests(fd: int, starts: Sequence[int]) -> list[bytes]:
    """Of the parts that begin there. Where no threads can be had, this one computes all."""
    most = min(len(processes.sched_getaffinity(0)), MOST_THREADS, len(starts))
    if most > 1:
        from concurrent.futures import ThreadPoolExecutor

        with suppress(RuntimeError), ThreadPoolExecutor(most, "aspen-mp digest") as pool:
            return list(pool.map(partial(_part_digest, fd), starts))
    return [_part_digest(fd, start) for start in starts]


def _part_digest(fd: int, start: int) -> bytes:
    """SHA-256 of the part of a file that begins at `start`."""
    import hashlib

    digest, piece = hashlib.sha256(), bytearray(PIECE)
    view = memoryview(piece)
    at, end = start, start + PART
    while at < end and (count := descriptors.preadv(fd, [view[: end - at]], at)):
        digest.update(view[:count])
        at += count
    return digest.digest()


class Contents:
    """The files that a model consists of, their stamps, and the digest of what is in them, computed while the model is being planned."""

    def __init__(self, paths: Sequence[str]) -> None:
        """`paths`: the model file, then its external data. OSError where one is gone."""
        self.files = [plan_cache.File(path, file_stamp.of_change(filesystem.stat(path))) for path in paths]
        self._begun = clock.time_ns()
        self._digest = b""
        self._thread = threads.Thread(target=self._compute, name="aspen-mp digest", daemon=True)
        self._started = False
        with suppress(RuntimeError):  # no thread can be had: it is computed when it is asked for
            self._thread.start()
            self._started = True

    def _compute(self) -> None:
        digests = []
        with suppress(OSError):
            for file in self.files:
                fd = descriptors.open(file.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                try:
                    digests.append(file_digest(fd))
                finally:
                    descriptors.close(fd)
            self._digest = digests[0] if len(digests) == 1 else plan_cache.digest_of(digests)

    def digest(self) -> bytes:
        """Waits for it. Empty if a file could not be read, or may have changed meanwhile."""
        if self._started:
            self._thread.join()
        else:
            self._compute()
        with suppress(OSError):
            settled = all(max(file.stamp[3:]) + plan_cache.SETTLED_NS < self._begun for file in self.files)
            if settled and all(file_stamp.of_change(filesystem.stat(file.path)) == file.stamp for file in self.files):
                return self._digest
        return b""


class CacheWriter:
    """`request`: what the model was loaded with; `digest`: of its contents, empty where it is not known yet; `files`: what its weight
    segments so far are called in the cache, by number."""

    def __init__(self, plans: Cache, request: PlanRequest, digest: bytes, files: Mapping[int, WeightFile]) -> None:
        self._cache = plans
        self._request = request
        self._digest = digest
        self._files = dict(files)
        self._contents: Contents | None = None
        self._found: Inspected | None = None
        self._fds: dict[int, int] = {}
        self._last: tuple[PlanStage, Plan, StagePlanned] | None = None
        self._writer: WriterProcess | None = None
        self._told = False

    def begin(self) -> None:
        """Start the writing process, while this one is still small."""
        if self._writer is None:
            self._writer = WriterProcess.start(self._cache)

    def close(self) -> None:
        """Nothing more comes."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def read(self, paths: Sequence[str]) -> None:
        """The model has been read from these files."""
        with suppress(OSError):
            self._contents = Contents(paths)

    def inspected(self, found: Inspected) -> None:
        self._found = found
        self._digest = found.digest or self._digest

    def weights(self, number: int, nbytes: int, places: list[tuple[str, int]]) -> tuple[int, int]:
        """A descriptor of weight segment `number` in the cache and its size, if it is there; (-1, 0): it has to be packed."""
        if not self._digest and self._contents is not None:
            self._digest = self._contents.digest()
        if not self._digest:
            return -1, 0
        nbytes = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        file = WeightFile(plan_cache.weights_id(self._cache.build, self._digest, self._request.weights_key, places), nbytes, places)
        self._files[number] = file
        fd = self._cache.weights(file)
        return (fd, nbytes) if fd >= 0 else (-1, 0)

    def packed(self, number: int, fd: int) -> None:
        """Weight segment `number` was not in the cache and has been packed; `fd` stays the caller's."""
        if number in self._files:
            self._fds[number] = descriptors.dup(fd)

    def planned(self, message: PlanStage, plan: Plan, answer: StagePlanned) -> StagePlanned:
        """The answer, with what the planning process has to know of the cache. `write` keeps the plan."""
        if not self._digest and self._contents is not None:
            self._digest = self._contents.digest()
        if not self._digest:
            return answer
        new = {number for _, number, _ in answer.packed}
        files = [(number, file) for number, file in self._files.items() if number in new]
        answer = msgspec.structs.replace(answer, digest=self._digest, files=files)
        if all(number in self._files for number in answer.weights):
            self._last = message, plan, answer
        return answer

    def write(self) -> None:
        """Hands the last plan and its weights to the writing process. Called before the answer is sent: with it the runtime may end, and
        this process with the runtime."""
        last, self._last = self._last, None
        if last is None or self._writer is None:
            return
        message, plan, answer = last
        known = None if self._told else self._known()
        fds = dict(list(self._fds.items())[: WriterProcess.MOST_FILES])
        kept = Kept(*self._file_of(message, plan, answer), [self._files[number] for number in fds], known)
        if self._writer.keep(kept, list(fds.values())):
            self._told = self._told or known is not None
            for number, fd in fds.items():
                descriptors.close(fd)
                del self._fds[number]

    def _file_of(self, message: PlanStage, plan: Plan, answer: StagePlanned) -> tuple[str, bytes]:
        """The plan's key, and its file."""
        from aspen_mp.planner.plan import plan_file

        arena_bytes, files = int(plan.arena_layout()["arena_bytes"]), [self._files[number] for number in answer.weights]
        key = message.key(self._cache.build, self._digest, self._request.cache_key)
        note = plan_cache.Note(
            *(key, answer.region, answer.inputs, answer.outputs, answer.last, answer.dynamic, arena_bytes, files),
            *(self._digest, message.rates, len(message.speeds), message.search, answer.served_bucket, answer.work_ns),
        )
        plan.metadata["cache"] = msgspec.msgpack.encode(note)
        return key, plan_file.dump(plan)

    def _known(self) -> plan_cache.Known | None:
        """What the cache remembers of a model that was read from files; None of another, or where the files have changed meanwhile."""
        found, contents = self._found, self._contents
        if found is None or contents is None or contents.digest() != self._digest:
            return None
        return plan_cache.Known(self._cache.build, contents.files, self._digest, found.name, found.inputs, found.outputs)
