"""A request whose runtime is lost is submitted again by a thread. Where none can be had it fails, once, and others go on."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from aspen_mp.client.future import RequestFuture
from aspen_mp.client.requests.submission import Submission, _Request
from aspen_mp.client.restart import Reviver
from aspen_mp.errors import ResourceLimitError, RuntimeLost
from aspen_mp.shm.bindings import _tally
from aspen_mp.shm.bindings._channel import Urgency

WATCHDOG_S = 60.0


class Ways(Reviver):
    """A way to a next runtime that nobody goes."""

    def again(self, lost: object, until: float | None = None) -> Any:
        raise RuntimeLost("there is none")


class Handle(Submission):
    """A model's handle without a runtime. `submitted`: what was submitted again."""

    def __init__(self, reviver: Reviver) -> None:
        self.name, self.submitted, self.settled = "m", list[dict[str, Any]](), 0
        self._link = SimpleNamespace(later=reviver.later, settled=self._settle, session=lambda: None, stopping=None)  # type: ignore[assignment]
        self._residence = SimpleNamespace(goes_on=lambda error, losses: True, own=None)  # type: ignore[assignment]
        self._requests, self._counting, self._parked = _tally.Requests(), threading.Lock(), set()

    def _settle(self) -> None:
        self.settled += 1

    def _submit(self, request: _Request, arrays: dict[str, Any], copied: bool = False) -> None:
        self.submitted.append(arrays)
        request.future.finish({})
        request.future.settle()

    def __del__(self) -> None:
        """There is nothing to give back."""

    def asked(self) -> _Request:
        """A request under way."""
        future = RequestFuture()
        future.began = self._requests.begins()
        future.answered, future.ended, future.left = self._answered, self._over, self._park
        return _Request(None, Urgency(0), future, True)


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    return monkeypatch


@pytest.mark.parametrize("number", [1, 3])
def test_requests_fail_where_no_thread_can_be_had(no_threads: pytest.MonkeyPatch, number: int) -> None:
    reviver = Ways()
    handle = Handle(reviver)
    requests = [handle.asked() for _ in range(number)]
    for request in requests:  # as the resolver does it: what it has told of must not raise
        assert handle._lost(request, RuntimeLost("gone"), {"x": 1})
    for request in requests:
        with pytest.raises(ResourceLimitError, match="cannot start a thread"):
            request.future.result(0)
    assert (handle._parked, handle._requests.begun, handle.submitted) == (set(), 0, [])
    no_threads.undo()  # now there is one: nothing of before is left in its queue
    last = handle.asked()
    assert handle._lost(last, RuntimeLost("gone"), {"x": 2})
    assert last.future.result(WATCHDOG_S) == {}
    ran = threading.Event()
    assert reviver.later(ran.set)
    assert ran.wait(WATCHDOG_S)
    assert handle.submitted == [{"x": 2}]
    reviver.close()
    assert not reviver.later(ran.clear)
    assert handle._requests.begun == 0


def test_what_a_thread_can_do_is_done_where_a_second_one_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that is there takes it."""
    reviver = Ways()
    handle = Handle(reviver)
    first = handle.asked()
    assert handle._lost(first, RuntimeLost("gone"), {"x": 1})
    assert first.future.result(WATCHDOG_S) == {}

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    again = handle.asked()
    assert handle._lost(again, RuntimeLost("gone"), {"x": 2})
    assert again.future.result(WATCHDOG_S) == {}
    reviver.close()
    assert handle.submitted == [{"x": 1}, {"x": 2}]
