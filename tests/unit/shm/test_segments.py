"""A segment is memory without a name: nobody can guess it, and nothing stays of it, whatever is killed and when."""

from __future__ import annotations

import errno
import itertools
import os
import random
import signal
import time
from typing import NoReturn

import pytest

from aspen_mp.shm.bindings import _control
from aspen_mp.shm.errors import ResourceLimitError
from aspen_mp.shm.segments import Segment
from aspen_mp.system import descriptors

pytestmark = pytest.mark.xdist_group("names in /dev/shm")


def names() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith(f"aspen-{os.getuid()}-")}


def refuse(monkeypatch: pytest.MonkeyPatch, number: int) -> list[str]:
    """Files without names fail with this error. What is opened so is listed."""
    real, asked = descriptors.open, list[str]()

    def open_(path: str, flags: int, *args: object, **named: object) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            asked.append(path)
            raise OSError(number, os.strerror(number))
        return real(path, flags, *args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(descriptors, "open", open_)
    return asked


def check(segment: Segment, name: str) -> None:
    """It is memory of its own, for nobody else, and goes to no child."""
    with segment:
        assert not segment.is_memfd
        assert os.readlink(f"/proc/self/fd/{segment.fd}").startswith(f"/dev/shm/{name}")
        assert not os.get_inheritable(segment.fd)
        info = os.fstat(segment.fd)
        assert (info.st_mode & 0o777, info.st_nlink, info.st_size) == (0o600, 0, segment.nbytes)
        assert info.st_blocks * 512 >= segment.nbytes  # reserved
        segment.buf[-1] = 7
        with Segment.from_fd(os.dup(segment.fd), "arena", writable=False) as other:
            assert other.buf[-1] == 7


def test_segments_have_no_name() -> None:
    check(Segment.create("arena", 3 * 4096, memfd=False), "#")


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL])
def test_file_systems_without_nameless_files(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    before, asked = names(), refuse(monkeypatch, number)
    check(Segment.create("arena", 3 * 4096, memfd=False), f"aspen-{os.getuid()}-")
    assert asked == ["/dev/shm"]
    assert names() <= before


def test_no_descriptor_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    before = names()
    refuse(monkeypatch, errno.EMFILE)
    with pytest.raises(ResourceLimitError, match="no descriptor for the arena segment"):
        Segment.create("arena", 4096, memfd=False)
    assert names() <= before


def create_forever() -> NoReturn:
    try:
        for _ in itertools.count():
            Segment.create("arena", 4096, memfd=False).close()
    finally:
        os._exit(1)


def test_nothing_stays_of_who_is_killed_in_between() -> None:
    rng, before = random.Random(5), names()
    for _ in range(100):
        pid = os.fork()
        if pid == 0:
            create_forever()
        time.sleep(rng.random() * 0.003)
        os.kill(pid, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert names() <= before


def test_what_a_segment_is_stands_at_its_beginning() -> None:
    with Segment.create("weights", 3 * 4096) as segment:
        assert _control.role_of(segment.buf) == "weights"
        assert _control.role_of(bytes(segment.buf[: _control.DATA_FIRST])) == "weights"
    assert _control.role_of(bytes(4096)) == ""
    assert _control.role_of(b"aspen") == ""
