# cython: language_level=3, boundscheck=False
"""A client's submission channel. Documentation of names: _channel.pyi."""

from collections import namedtuple

from cpython.exc cimport PyErr_CheckSignals, PyErr_SetFromErrno
from libc.stdint cimport uint32_t, uint64_t

from aspen_mp.shm.bindings._control cimport Mapped
from aspen_mp.shm.bindings._tally cimport Tally

from aspen_mp.shm.errors import RequestError, ResourceLimitError, RuntimeLost

cdef extern from "submit.h" nogil:
    enum:
        ASPEN_SLOTS, ASPEN_NONE, ASPEN_MESSAGE, ASPEN_CLASSES, ASPEN_SLOT_SUBMITTED, ASPEN_SLOT_RUNNING, ASPEN_SLOT_DONE, ASPEN_SLOT_FREE, INT_MAX
    struct aspen_doorbell:
        uint32_t event
    struct aspen_slot:
        uint32_t word, error, op, message_bytes
        uint64_t needed, submitted_ns, started_ns, finished_ns
        char message[256]
    struct aspen_client_segment:
        uint32_t client, closed, faults, completions, waiters
        aspen_slot slot[256]
    struct aspen_request:
        uint32_t plan, generation, data, class_, extent, runs_on
        uint64_t offset, span_ns
    uint64_t aspen_now_ns()
    uint32_t aspen_load_acquire(uint32_t *)
    uint32_t aspen_load_seq(uint32_t *)
    void aspen_store_seq(uint32_t *, uint32_t)
    uint32_t aspen_swap_seq(uint32_t *, uint32_t)
    uint32_t aspen_add_seq(uint32_t *, uint32_t)
    int aspen_futex_wake(uint32_t *, uint32_t)
    uint32_t ASPEN_SLOT_STATE(uint32_t)
    uint32_t ASPEN_SLOT_SEQUENCE(uint32_t)
    uint32_t aspen_submit(aspen_client_segment *, aspen_doorbell *, uint32_t, const aspen_request *)
    uint64_t aspen_hopeless(aspen_client_segment *, const aspen_request *)
    uint32_t aspen_decline(aspen_client_segment *, aspen_doorbell *, uint32_t, const aspen_request *, uint64_t)
    void aspen_cancel(aspen_client_segment *, aspen_doorbell *, uint32_t, uint32_t)
    void aspen_watch_slot(aspen_slot *, uint64_t)
    int aspen_wait_slot(aspen_slot *, uint32_t, uint64_t)
    int aspen_wait_any(aspen_client_segment *, uint32_t, uint64_t)
    void aspen_release(aspen_client_segment *, uint32_t)
    void aspen_ring_as(aspen_client_segment *, aspen_doorbell *)

cdef extern from "system/descriptors.h" nogil:
    int aspen_event_make()
    void aspen_event_tell(int)
    void aspen_event_drain(int)
    void aspen_event_close(int)

cdef enum:
    UNHEARD_NS = 50_000_000  # an event loop that does not look for this long after it was told is busy, or runs no more
    SHORT_NS = 10_000  # a request is watched, for twice the time that the last one took, where that was no longer
    BELLS = 257  # one for each slot, the last one for whoever waits for any
    SLICE_NS = 250_000_000  # how long a wait sleeps before it looks at signals, and at whether its ring was heard
Result = namedtuple("Result", "error op needed message submitted_ns started_ns finished_ns")
Result.__module__ = __name__
FINE = Result(0, -1, 0, "", 0, 0, 0)


cdef double _seconds() noexcept:
    """The time of `time.monotonic`."""
    return aspen_now_ns() / 1e9


cdef class Urgency:
    cdef readonly int level
    cdef readonly uint64_t due_ns, span_ns
    cdef readonly bint runs_on

    def __init__(self, level, span_ns=0, runs_on=False):
        if not 0 <= level < ASPEN_CLASSES:
            raise RequestError(f"priority {level} is not in 0 … {ASPEN_CLASSES - 1}")
        self.level = level
        self.span_ns = span_ns
        self.runs_on = runs_on
        self.due_ns = aspen_now_ns() + self.span_ns if self.span_ns else 0

    @property
    def drops(self):
        return self.due_ns != 0 and not self.runs_on

    def left(self):
        cdef uint64_t now = aspen_now_ns()
        return (self.due_ns - now) / 1e9 if self.due_ns > now else 0.0

    cdef void ask(self, aspen_request *r) noexcept:
        """Writes the request to a slot; the deadline counts from now."""
        cdef uint64_t now
        r.class_ = self.level
        r.span_ns = r.runs_on = 0
        if self.due_ns:
            now = aspen_now_ns()
            r.span_ns = self.due_ns - now if self.due_ns > now else 1
            r.runs_on = self.runs_on


cdef class ClientChannel:
    cdef Mapped _client_buf, _bell_buf
    cdef aspen_client_segment *c
    cdef aspen_doorbell *bell
    cdef list _free
    cdef bint _lost
    cdef Tally _tally
    cdef uint64_t _watch_ns
    cdef int _event
    cdef uint32_t _loop_waits, _others_wait, _told

    def __cinit__(self):
        self._event = -1

    def __init__(self, client, doorbell, Tally tally=None):
        self._tally = tally
        self._others_wait = 1
        self._client_buf = Mapped(client, "client", sizeof(aspen_client_segment))
        self._bell_buf = Mapped(doorbell, "doorbell", sizeof(aspen_doorbell), False)  # other clients may have written anything there
        self.c = <aspen_client_segment *>self._client_buf.view.buf
        self.bell = <aspen_doorbell *>self._bell_buf.view.buf
        self._free = [i for i in range(ASPEN_SLOTS - 1, -1, -1)
                      if ASPEN_SLOT_STATE(aspen_load_acquire(&self.c.slot[<uint32_t>i].word)) == ASPEN_SLOT_FREE]

    @property
    def client(self):
        return self.c.client

    @property
    def in_flight(self):
        return ASPEN_SLOTS - len(self._free)

    @property
    def capacity(self):
        return ASPEN_SLOTS

    @property
    def closed(self):
        return self._lost or aspen_load_acquire(&self.c.closed) != 0

    def lost(self):
        cdef uint32_t i
        self._lost = True
        aspen_add_seq(&self.c.completions, 1)
        aspen_futex_wake(&self.c.completions, INT_MAX)
        for i in range(<uint32_t>ASPEN_SLOTS):
            aspen_futex_wake(&self.c.slot[i].word, INT_MAX)

    def offer(self, plan, generation, data, offset, urgency=1, list taken=None, extent=0):
        cdef aspen_request r
        if type(urgency) is not Urgency:
            urgency = Urgency(urgency)
        (<Urgency>urgency).ask(&r)
        r.plan = plan
        r.generation = generation
        r.data = data
        r.offset = offset
        r.extent = extent
        if self.closed:
            raise RuntimeLost("the runtime has gone: nothing can be submitted any more")
        cdef uint32_t slot
        try:
            slot = self._free.pop()
        except IndexError:
            return -1
        cdef uint32_t sequence
        cdef uint64_t takes = 0
        if r.span_ns > 1:  # else it has passed: that is what the answer is to say
            takes = aspen_hopeless(self.c, &r)
        if takes:
            sequence = aspen_decline(self.c, self.bell, slot, &r, takes)
        else:
            sequence = aspen_submit(self.c, self.bell, slot, &r)
        ticket = sequence * ASPEN_SLOTS + slot
        if taken is not None:
            taken.append(ticket)
        return ticket

    def hand_over(self, waiting, dict published, queue):
        ticket = -1
        if not queue:
            ticket = self.offer(waiting.plan, waiting.generation, waiting.data, waiting.offset, waiting.urgency, None, waiting.extent)
        if ticket < 0:
            queue.append(waiting)
        else:
            waiting.ticket = ticket
            published[ticket] = waiting
        waiting.handed_over = True

    def submit(self, plan, generation, data, offset, urgency=1, extent=0):
        ticket = self.offer(plan, generation, data, offset, urgency, None, extent)
        if ticket < 0:
            raise ResourceLimitError(f"{ASPEN_SLOTS} requests are in flight already: wait for some before submitting more")
        return ticket

    cdef aspen_slot *_slot(self, ticket, uint32_t *word) except NULL:
        """The ticket's slot and its word now; RequestError when the ticket is not valid any more."""
        cdef aspen_slot *slot = &self.c.slot[<uint32_t>(ticket % ASPEN_SLOTS)]
        word[0] = aspen_load_acquire(&slot.word)
        if ASPEN_SLOT_SEQUENCE(word[0]) != ticket // ASPEN_SLOTS or ASPEN_SLOT_STATE(word[0]) == ASPEN_SLOT_FREE:
            raise RequestError(f"request {ticket} is unknown or was released")
        return slot

    cdef object _result(self, aspen_slot *s):
        cdef uint32_t n = s.message_bytes if s.message_bytes < ASPEN_MESSAGE else ASPEN_MESSAGE
        message = s.message[:n].decode("utf-8", "replace") if s.error else ""
        return Result(s.error, -1 if s.op == <uint32_t>ASPEN_NONE else s.op, s.needed, message, s.submitted_ns, s.started_ns, s.finished_ns)

    def take(self, ticket):
        cdef uint32_t word
        cdef aspen_slot *slot = self._slot(ticket, &word)
        if ASPEN_SLOT_STATE(word) != ASPEN_SLOT_DONE:
            return None
        result = self._result(slot) if slot.error else FINE
        self._give(ticket)
        return result

    def state(self, ticket):
        cdef uint32_t word
        self._slot(ticket, &word)
        return {ASPEN_SLOT_RUNNING: "running", ASPEN_SLOT_DONE: "done"}.get(ASPEN_SLOT_STATE(word), "submitted")

    cdef aspen_slot *_sleep(self, ticket, timeout) except? NULL:
        """The ticket's slot when it is done; NULL after `timeout` seconds."""
        cdef uint32_t word
        cdef uint64_t ns
        cdef aspen_slot *slot
        deadline = None if timeout is None else _seconds() + timeout
        while True:
            slot = self._slot(ticket, &word)
            if ASPEN_SLOT_STATE(word) == ASPEN_SLOT_DONE:
                return slot
            if self.closed:
                raise RuntimeLost("the runtime has gone while this request was in flight")
            ns = self._slice(deadline)
            if ns == 0:
                return NULL
            if self._watch_ns:
                with nogil:
                    aspen_watch_slot(slot, self._watch_ns)
                self._watch_ns = 0
                continue
            with nogil:
                aspen_wait_slot(slot, word, ns)
            PyErr_CheckSignals()
            if ASPEN_SLOT_STATE(aspen_load_acquire(&slot.word)) == ASPEN_SLOT_SUBMITTED:
                self.ring()

    def wait(self, ticket, timeout=None):
        cdef aspen_slot *slot = self._sleep(ticket, timeout)
        return None if slot == NULL else self._result(slot)

    def finish(self, ticket, timeout=None):
        cdef aspen_slot *slot = self._sleep(ticket, timeout)
        if slot == NULL:
            return None
        result = self._result(slot) if slot.error else FINE
        self._give(ticket)
        return result

    @property
    def running(self):
        cdef uint32_t i, n = 0
        for i in range(<uint32_t>ASPEN_SLOTS):
            n += ASPEN_SLOT_STATE(aspen_load_acquire(&self.c.slot[i].word)) == ASPEN_SLOT_RUNNING
        return n

    cdef int _give(self, ticket) except -1:
        cdef uint64_t took
        cdef aspen_slot *s = &self.c.slot[<uint32_t>(ticket % ASPEN_SLOTS)]
        if self._tally is not None and s.started_ns >= s.submitted_ns and not self._lost:
            self._tally.add(0, s.started_ns - s.submitted_ns)
        took = s.finished_ns - s.submitted_ns if s.finished_ns > s.submitted_ns else 0
        self._watch_ns = 2 * took if took <= SHORT_NS else 0
        aspen_release(self.c, ticket % ASPEN_SLOTS)
        self._free.append(ticket % ASPEN_SLOTS)
        return 0

    cdef uint64_t _slice(self, deadline) except? 0:
        if deadline is None:
            return SLICE_NS
        left = int((deadline - _seconds()) * 1e9)
        return 0 if left <= 0 else min(left, SLICE_NS)

    def completions(self):
        return aspen_load_acquire(&self.c.completions)

    def faults(self):
        return aspen_load_acquire(&self.c.faults)

    def event(self):
        if self._event < 0:
            self._event = aspen_event_make()
            if self._event < 0:
                PyErr_SetFromErrno(OSError)
        return self._event

    def close_event(self):
        if self._event >= 0:
            aspen_event_close(self._event)
            self._event = -1

    def __dealloc__(self):
        if self._event >= 0:
            aspen_event_close(self._event)

    def expect(self, loop=None, others=None):
        if loop is not None:
            aspen_store_seq(&self._loop_waits, bool(loop) and self._event >= 0)
        if others is not None:
            aspen_store_seq(&self._others_wait, bool(others))

    def heard(self):
        aspen_event_drain(self._event)  # with the GIL: who closes it has it, too
        aspen_store_seq(&self._told, 0)

    cdef void _tell(self) noexcept nogil:
        if aspen_swap_seq(&self._told, 1) == 0:
            aspen_event_tell(self._event)

    cdef bint _attend(self, uint32_t *seen) noexcept nogil:
        """As `attend`, for `SLICE_NS` at most; whether the loop has not looked."""
        cdef uint32_t now
        cdef uint64_t at = aspen_now_ns()
        cdef uint64_t told_at = at, until = at + SLICE_NS
        while True:
            now = aspen_load_seq(&self.c.completions)
            if now != seen[0]:
                seen[0] = now
                if aspen_load_seq(&self._loop_waits):
                    if not aspen_load_seq(&self._told):
                        told_at = aspen_now_ns()
                    self._tell()
                if aspen_load_seq(&self._others_wait):
                    return False
            if self._lost or aspen_load_acquire(&self.c.closed):
                return False
            at = aspen_now_ns()
            if aspen_load_seq(&self._told) and at - told_at >= UNHEARD_NS:
                aspen_store_seq(&self._told, 0)
                return True
            if at >= until:
                return False
            aspen_wait_any(self.c, seen[0], UNHEARD_NS if aspen_load_seq(&self._told) else until - at)

    def attend(self, seen):
        cdef uint32_t now = seen
        cdef bint unheard
        with nogil:
            unheard = self._attend(&now)
        if now == <uint32_t>seen and self._unclaimed():
            self.ring()
        return now, unheard

    cdef bint _unclaimed(self) noexcept nogil:
        cdef uint32_t i
        for i in range(<uint32_t>ASPEN_SLOTS):
            if ASPEN_SLOT_STATE(aspen_load_acquire(&self.c.slot[i].word)) == ASPEN_SLOT_SUBMITTED:
                return True
        return False

    def wake(self):
        aspen_add_seq(&self.c.completions, 1)
        aspen_futex_wake(&self.c.completions, INT_MAX)

    def cancel(self, ticket):
        cdef uint32_t word
        self._slot(ticket, &word)
        if ASPEN_SLOT_STATE(word) != ASPEN_SLOT_DONE:
            aspen_cancel(self.c, self.bell, ticket % ASPEN_SLOTS, ticket // ASPEN_SLOTS)

    def release(self, ticket):
        cdef uint32_t word
        self._slot(ticket, &word)
        if ASPEN_SLOT_STATE(word) != ASPEN_SLOT_DONE and not self.closed:
            raise RequestError(f"request {ticket} is still in flight: wait for it, or cancel it and wait")
        self._give(ticket)

    def ring(self):
        aspen_ring_as(self.c, self.bell)


cdef class GreenletChannel(ClientChannel):
    cdef object _start, _readable
    cdef bint _tolled
    cdef int _bells[BELLS]
    cdef uint32_t _awaited[BELLS]

    def __cinit__(self):
        cdef int i
        for i in range(BELLS):
            self._bells[i] = -1

    def __init__(self, client, doorbell, tally, start, readable):
        ClientChannel.__init__(self, client, doorbell, tally)
        self._start, self._readable = start, readable

    def __dealloc__(self):
        cdef int i
        for i in range(BELLS):
            if self._bells[i] >= 0:
                aspen_event_close(self._bells[i])

    def event(self):
        raise OSError("event loops do not watch channels beside greenlets")

    cdef void _toll(self) noexcept nogil:
        """Writes to the bells of those whose wait is over, until the runtime is lost."""
        cdef uint32_t seen, i
        cdef bint over
        while True:
            seen = aspen_load_seq(&self.c.completions)  # before the slots: what ends after that is seen in the next turn
            over = self._lost or aspen_load_acquire(&self.c.closed)
            for i in range(<uint32_t>BELLS):
                if not aspen_load_seq(&self._awaited[i]):
                    continue
                if over or i == <uint32_t>ASPEN_SLOTS or ASPEN_SLOT_STATE(aspen_load_acquire(&self.c.slot[i].word)) == ASPEN_SLOT_DONE:
                    aspen_store_seq(&self._awaited[i], 0)
                    aspen_event_tell(self._bells[i])
            if over:
                return
            aspen_wait_any(self.c, seen, SLICE_NS)
            if aspen_load_seq(&self.c.completions) == seen and self._unclaimed():
                aspen_ring_as(self.c, self.bell)

    def toll(self):
        with nogil:
            self._toll()

    cdef int _bell(self, uint32_t i) except -1:
        """The descriptor that tells who waits for a slot; a native thread writes to it."""
        if self._bells[i] < 0:
            self._bells[i] = aspen_event_make()
            if self._bells[i] < 0:
                raise ResourceLimitError("this process has too few descriptors to wait for a request. Raise `ulimit -n`")
        if not self._tolled:
            self._tolled = True
            try:
                self._start(self.toll, ())
            except RuntimeError as error:
                self._tolled = False
                raise ResourceLimitError(f"this process cannot start a thread ({error}). Raise its limit of processes (ulimit -u)") from None
        aspen_event_drain(self._bells[i])  # of an earlier wait
        return self._bells[i]

    def finish(self, ticket, timeout=None):
        cdef uint32_t i = ticket % ASPEN_SLOTS
        deadline = None if timeout is None else _seconds() + timeout
        while True:
            bell = self._bell(i)
            aspen_store_seq(&self._awaited[i], 1)  # before the look: what ends after that rings the bell
            result = self.take(ticket)
            if result is not None:
                return result
            if self.closed:
                raise RuntimeLost("the runtime has gone while this request was in flight")
            left = None if deadline is None else deadline - _seconds()
            if left is not None and left <= 0:
                return None
            self._readable((bell,), left)

    def attend(self, seen):
        bell = self._bell(ASPEN_SLOTS)
        aspen_store_seq(&self._awaited[<uint32_t>ASPEN_SLOTS], 1)
        if self.completions() == seen and not self.closed:
            self._readable((bell,), SLICE_NS / 1e9)
        return self.completions(), False
