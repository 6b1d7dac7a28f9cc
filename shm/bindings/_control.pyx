# cython: language_level=3, boundscheck=False
"""The control segment as the planner process sees it. Documentation of names: _control.pyi."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from libc.stdint cimport uint32_t, uint64_t

from aspen_mp.shm.errors import ProtocolError, ResourceLimitError

cdef extern from *:
    """
    #include "recover.h"
    #include "table.h"
    #include "trace.h"
    struct aspen_code { const char *name; long code; };
    #define X(n, c) { #n, c },
    static const struct aspen_code aspen_error_list[] = { ASPEN_ERRORS(X) {0} };
    #undef X
    """
    struct aspen_code:
        const char *name
        long code
    const aspen_code aspen_error_list[]

cdef extern from "table.h" nogil:
    enum:
        ASPEN_MAX_WORKERS, ASPEN_MAX_INSTANCES, ASPEN_MAX_PLANS, ASPEN_MAX_CLIENTS, ASPEN_MAX_SEGMENTS, ASPEN_SLOTS, ASPEN_MAX_WEIGHTS
        ASPEN_PLAN_INSTANCES, ASPEN_CLIENT_DATA, ASPEN_DATA_FIRST, ASPEN_PAGE, ASPEN_MAX_BORROWED, ASPEN_NONE, ASPEN_DEPTHS
        ASPEN_HINT_DOMAINS, ASPEN_HINT_MOST_SHIFT, ASPEN_HINT_MOST, ASPEN_HINT_MEMORY, ASPEN_HINT_YIELDS
        ASPEN_SEGMENT_LIVE, ASPEN_PLAN_FREE, ASPEN_PLAN_LIVE, ASPEN_PLAN_DRAINING, ASPEN_CLIENT_LIVE, ASPEN_CLIENT_DYING
        ASPEN_WORKER_NONE, ASPEN_WORKER_RUNNING, ASPEN_WORKER_DEAD, ASPEN_INSTANCE_FREE, ASPEN_INSTANCE_CLAIMED, ASPEN_INSTANCE_RUNNING, ASPEN_INSTANCE_DONE
    struct aspen_magic:
        pass
    struct aspen_signals:
        uint32_t epoch, attach_seq, stop, n_rows, spin_ns, steal, policy, seed, trace
        uint64_t tick_ns_q32
    struct aspen_idle_counts "aspen_idle":
        uint32_t sleepers, spinners
    struct aspen_worker:
        uint32_t pid, cpu, core_class, cache, node, state, command, pace, parked, attached, idle, domain
        uint64_t start_time, current, heartbeat, paced_ns, expected_ns, held_ticks, lent_ticks
        uint64_t tiles, steals, pushes, kernel_ticks, schedule_ticks, search_ticks, sleep_ticks, parks, opaque, claims, ends, wakes, follows, faults, failed, cancelled
    struct aspen_row:
        uint32_t lock, open
        uint32_t waiting
        uint64_t first
    struct aspen_plan:
        uint32_t state, generation, segment, n_weights, n_instances, model, share, memory
        uint64_t core_ns, alone_ns, refused, expired
        uint32_t instance[32]
    struct aspen_instance:
        uint64_t word, served, beside, fault, queued_ns, ran_ns, missed
        uint32_t plan, arena, client, at_work
    struct aspen_client:
        uint32_t state, segment
        uint32_t data[64]
    struct aspen_segment:
        uint32_t state, role
        uint64_t bytes
    struct aspen_hint_row:
        uint32_t word[21]
    struct aspen_hint_tables "aspen_hints":
        uint32_t version, tokens, counted
        uint32_t holders[16]
        aspen_hint_row table[2][1024]
    struct aspen_control:
        aspen_hint_tables hints
        aspen_signals signals
        aspen_idle_counts idle
        aspen_worker worker[256]
        aspen_row row[256]
        aspen_instance instance[4096]
        aspen_plan plan[1024]
        aspen_client client[256]
        aspen_segment segment[8192]
    struct aspen_data_head:
        uint32_t torn
    struct aspen_doorbell:
        uint32_t event
    struct aspen_client_segment:
        uint64_t pending[4]
    struct aspen_trace_ring:
        uint64_t written
    struct aspen_trace_segment:
        uint32_t n_rings, capacity
        aspen_trace_ring ring[256]

    uint64_t aspen_trace_bytes(uint32_t, uint32_t)
    uint64_t aspen_ticks()
    uint64_t aspen_now_ns()
    uint32_t aspen_load_acquire(uint32_t *)
    uint64_t aspen_load_word "aspen_load_acquire"(uint64_t *)
    uint64_t aspen_stat_load(uint64_t *)
    uint32_t aspen_stat_load32 "aspen_stat_load"(uint32_t *)
    void aspen_store_seq(uint32_t *, uint32_t)
    void aspen_stat_store(uint32_t *, uint32_t)
    uint32_t ASPEN_ITEM_TILE(uint64_t)
    uint32_t ASPEN_ITEM_INSTANCE(uint64_t)

    int aspen_magic_check(const aspen_magic *, uint64_t, uint32_t)
    void aspen_magic_write(aspen_magic *, uint64_t, uint32_t)
    void aspen_table_create(aspen_control *, uint32_t, uint32_t, uint32_t)
    void aspen_wake_all(aspen_doorbell *)
    uint32_t aspen_publish(aspen_control *, aspen_doorbell *)
    uint32_t aspen_add_segment(aspen_control *, uint32_t, uint64_t)
    void aspen_drop_segment(aspen_control *, uint32_t)
    uint32_t aspen_add_plan(aspen_control *, uint32_t, const uint32_t *, uint32_t, const uint32_t *, uint32_t)
    aspen_hint_row *aspen_hints_next(aspen_control *)
    void aspen_hints_publish(aspen_control *, uint32_t)
    void aspen_plan_terms(aspen_control *, uint32_t, uint32_t, uint32_t, uint64_t, uint32_t)
    void aspen_drop_plan(aspen_control *, aspen_doorbell *, uint32_t)
    uint32_t aspen_collect_plan(aspen_control *, uint32_t, uint32_t *)
    uint32_t aspen_add_client(aspen_control *, uint32_t, aspen_client_segment *)
    uint32_t aspen_add_data(aspen_control *, uint32_t, uint32_t)
    uint32_t aspen_drop_data(aspen_control *, uint32_t, uint32_t)
    void aspen_drop_client(aspen_control *, aspen_doorbell *, uint32_t)
    uint32_t aspen_replace_arena(aspen_control *, uint32_t, uint32_t)
    int aspen_in_use(const aspen_control *, uint32_t, uint32_t)
    uint32_t aspen_collect_client(aspen_control *, uint32_t, uint32_t *)
    void aspen_worker_reset(aspen_control *, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t)
    void aspen_worker_gone(aspen_control *, uint32_t, int)
    int aspen_worker_due(const aspen_control *, const aspen_doorbell *, uint32_t)
    void aspen_worker_command(aspen_control *, aspen_doorbell *, uint32_t, uint32_t)

cdef extern from "recover.h" nogil:
    struct aspen_mapping:
        char *base
        uint64_t bytes
        uint32_t role
    struct aspen_user:
        const aspen_signals *signals
        uint64_t *const *next
    struct aspen_station:
        aspen_control *control
        aspen_doorbell *bell
        aspen_user user
        const aspen_mapping *segment
    struct aspen_recovery:
        aspen_station station
        uint64_t **next
        uint32_t continued, restarted, completed, resubmitted
    uint32_t aspen_epoch_begin(aspen_control *, aspen_doorbell *)
    int aspen_epoch_late(const aspen_control *, uint32_t)
    void aspen_epoch_end(aspen_control *)
    void aspen_recover(aspen_recovery *, int)
    uint32_t aspen_unwanted(const aspen_control *, const aspen_instance *, const aspen_client_segment *)
    int aspen_cas_word "aspen_cas_seq"(uint64_t *, uint64_t, uint64_t)

CONTROL_BYTES = sizeof(aspen_control)
DOORBELL_BYTES = 4096
CLIENT_BYTES = sizeof(aspen_client_segment)
CLIENT_PENDING = <size_t>&(<aspen_client_segment *>0).pending[0]
SLOTS = ASPEN_SLOTS
MAX_PLANS = ASPEN_MAX_PLANS - 1
MAX_INSTANCES = ASPEN_MAX_INSTANCES - 1
DATA_FIRST = ASPEN_DATA_FIRST
PAGE = ASPEN_PAGE
MAX_BORROWED = ASPEN_MAX_BORROWED
ROLES = {"control": 1, "doorbell": 2, "client": 3, "data": 4, "plan": 5, "weights": 6, "arena": 7, "trace": 8}
TRACE_RINGS = <size_t>&(<aspen_trace_segment *>0).ring[0]
TRACE_RECORDS = sizeof(aspen_trace_segment)
MODEL_COUNTS = ("requests", "queue_s", "run_s", "missed", "refused", "expired")
MOST_PAST = 1024  # models whose counts outlive their plans
PRIORITIES = {"high": 0, "normal": 1, "low": 2}
_ROLE_NAMES = {number: name for name, number in ROLES.items()}
_POLICIES = {"fifo": 0, "lifo": 1, "random": 2}
_COMMANDS = {"none": 0, "leave": 1, "stop": 2}
_WORKER_STATES = ("none", "joining", "running", "leaving", "dead")
_IDLE = ("busy", "looking", "parked")
_INSTANCE_STATES = ("none", "free", "claimed", "running", "done")


cdef dict _errors():
    cdef int i = 0
    table = {}
    while aspen_error_list[i].name != NULL:
        table[aspen_error_list[i].name.decode()] = aspen_error_list[i].code
        i += 1
    return table


ERRORS = _errors()
ERROR_NAMES = {number: name for name, number in ERRORS.items()}


cdef uint32_t _role(role) except 0:
    if role not in ROLES:
        raise ValueError(f"unknown segment role {role!r}: expected one of {', '.join(ROLES)}")
    return ROLES[role]


def _hint(hint):
    """A word of three numbers: a bit for each domain, the most workers (0: as many as like), whether it yields."""
    domains, most, yields = hint
    if not (0 <= domains <= ASPEN_HINT_DOMAINS and 0 <= most <= ASPEN_HINT_MOST):
        raise ValueError(f"a hint for domains {domains:#x} and {most} workers: expected 16 bits, and 0 to {ASPEN_HINT_MOST}")
    return domains | most << ASPEN_HINT_MOST_SHIFT | (ASPEN_HINT_YIELDS if yields else 0)


def write_magic(buf, role):
    cdef Py_buffer view
    cdef uint32_t number = _role(role)
    PyObject_GetBuffer(buf, &view, PyBUF_WRITABLE)
    try:
        if <size_t>view.len < sizeof(aspen_magic):
            raise ValueError(f"{view.len} bytes cannot hold a segment's header")
        aspen_magic_write(<aspen_magic *>view.buf, view.len, number)
    finally:
        PyBuffer_Release(&view)


cdef int _check(const void *buf, Py_ssize_t nbytes, role) except -1:
    cdef int wrong = aspen_magic_check(<const aspen_magic *>buf, nbytes, _role(role))
    if wrong == 1:
        raise ProtocolError(f"expected a {role} segment, found memory without aspen-mp's magic ({nbytes} bytes)")
    if wrong == 2:
        raise ProtocolError(f"the {role} segment was written by another build of aspen-mp (its layout differs): restart the runtime and its "
                            "clients with the same version")
    if wrong == 3:
        raise ProtocolError(f"expected a {role} segment, found one of another role")
    if wrong:
        raise ProtocolError(f"the {role} segment is shorter ({nbytes} bytes) than its header says")
    return 0


def check_magic(buf, role):
    cdef Py_buffer view
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        _check(view.buf, view.len, role)
    finally:
        PyBuffer_Release(&view)


def role_of(buf):
    cdef Py_buffer view
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        if <size_t>view.len >= sizeof(aspen_magic):
            for name, number in ROLES.items():
                if aspen_magic_check(<const aspen_magic *>view.buf, view.len, number) in (0, 4):  # 4: the rest of it is not here
                    return name
        return ""
    finally:
        PyBuffer_Release(&view)


def torn(buf):
    cdef Py_buffer view
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        return aspen_load_acquire(&(<aspen_data_head *>view.buf).torn) != 0
    finally:
        PyBuffer_Release(&view)


def clock():
    cdef uint64_t before = aspen_now_ns(), ticks = aspen_ticks(), after = aspen_now_ns()
    return ticks, (before + after) // 2


def trace_bytes(rings, capacity):
    return aspen_trace_bytes(rings, capacity)


def trace_format(buf, rings, capacity):
    cdef Mapped mapped = Mapped(buf, "trace", aspen_trace_bytes(rings, capacity))
    if not 0 < rings <= ASPEN_MAX_WORKERS or capacity < 1 or capacity & (capacity - 1):
        raise ValueError(f"a trace of {rings} rings of {capacity} records: expected 1 to {ASPEN_MAX_WORKERS}, and a power of two")
    cdef aspen_trace_segment *g = <aspen_trace_segment *>mapped.view.buf
    g.n_rings = rings
    g.capacity = capacity


cdef class Mapped:
    """A buffer held for as long as this object lives."""

    def __cinit__(self, buf, role, size_t nbytes, bint check=True):
        PyObject_GetBuffer(buf, &self.view, PyBUF_WRITABLE)
        self.held = True
        if check:
            _check(self.view.buf, self.view.len, role)
        if <size_t>self.view.len < nbytes:
            raise ProtocolError(f"a {role} segment of {self.view.len} bytes, expected {nbytes}")

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)


cdef class ControlTable:
    cdef Mapped _control_buf, _bell_buf
    cdef aspen_control *c
    cdef aspen_doorbell *bell
    cdef set _dying_plans, _dying_clients, _dying_data
    cdef object _served  # by plans that are no more
    cdef dict _past  # by model: what its plans that are no more have counted

    def __init__(self, control, doorbell, *, create=False, max_workers=ASPEN_MAX_WORKERS, spin_us=100, preempt_us=1000):
        if not 1 <= max_workers <= ASPEN_MAX_WORKERS:
            raise ResourceLimitError(f"max_workers must be 1 to {ASPEN_MAX_WORKERS}, not {max_workers}")
        self._control_buf = Mapped(control, "control", sizeof(aspen_control))
        self._bell_buf = Mapped(doorbell, "doorbell", sizeof(aspen_doorbell))
        self.c = <aspen_control *>self._control_buf.view.buf
        self.bell = <aspen_doorbell *>self._bell_buf.view.buf
        self._dying_plans, self._dying_clients, self._dying_data = set(), set(), set()
        self._served = 0
        self._past = {}
        if create:
            aspen_table_create(self.c, max_workers, spin_us * 1000, preempt_us * 1000)

    cdef uint32_t _segment(self, number, roles) except 0:
        if not 0 < number < ASPEN_MAX_SEGMENTS or self.c.segment[<uint32_t>number].state != ASPEN_SEGMENT_LIVE:
            raise ValueError(f"segment {number} does not exist")
        if _ROLE_NAMES.get(self.c.segment[<uint32_t>number].role) not in roles:
            raise ValueError(f"segment {number} is a {_ROLE_NAMES.get(self.c.segment[<uint32_t>number].role)} segment, expected {' or '.join(roles)}")
        return number

    cdef uint32_t _row(self, row) except? 0xffffffff:
        if not 0 <= row < self.c.signals.n_rows:
            raise ValueError(f"row {row} is not in 0 … {self.c.signals.n_rows - 1}")
        return row

    cdef uint32_t _client(self, client) except 0:
        if not 0 < client < ASPEN_MAX_CLIENTS or self.c.client[<uint32_t>client].state != ASPEN_CLIENT_LIVE:
            raise ValueError(f"client {client} does not exist")
        return client

    # -------------------------------------------------------------------------------------------- segments, plans, clients

    def add_segment(self, role, nbytes):
        cdef uint32_t number = aspen_add_segment(self.c, _role(role), nbytes)
        if not number:
            raise ResourceLimitError(f"the runtime has {ASPEN_MAX_SEGMENTS - 1} segments already: unload models or close clients")
        return number

    def drop_segment(self, segment):
        aspen_drop_segment(self.c, self._segment(segment, ROLES))

    def segments(self):
        return [(i, _ROLE_NAMES[self.c.segment[i].role], self.c.segment[i].bytes)
                for i in range(1, ASPEN_MAX_SEGMENTS) if self.c.segment[i].state == ASPEN_SEGMENT_LIVE]

    def set_tokens(self, tokens):
        aspen_stat_store(&self.c.hints.tokens, min(max(tokens, 0), ASPEN_MAX_WORKERS))

    def set_hints(self, plans, domains=()):
        cdef aspen_hint_row *rows = aspen_hints_next(self.c)
        cdef uint32_t plan, depth, memory
        for plan in range(1, ASPEN_MAX_PLANS):
            if self.c.plan[plan].state != ASPEN_PLAN_LIVE:
                continue
            words, memory = plans.get(plan, ()), self.c.plan[plan].memory
            for depth in range(ASPEN_DEPTHS):
                word = _hint(words[depth]) if depth < len(words) else 0
                aspen_stat_store(&rows[plan].word[depth], word | (ASPEN_HINT_MEMORY if memory >> depth & 1 else 0))
        for row, domain in enumerate(domains):
            aspen_stat_store(&self.c.worker[self._row(row)].domain, 1 << domain if 0 <= domain < 16 else 0)
        aspen_hints_publish(self.c, any(hint[1] for words in plans.values() for hint in words))
        return self.c.hints.version

    def hints(self):
        cdef uint32_t plan, k, table = self.c.hints.version & 1
        live = [plan for plan in range(1, ASPEN_MAX_PLANS) if self.c.plan[plan].state == ASPEN_PLAN_LIVE]
        return {
            "version": self.c.hints.version, "tokens": self.c.hints.tokens, "holders": [self.c.hints.holders[k] for k in range(16)],
            "at_work": sum(aspen_stat_load32(&self.c.instance[k].at_work) for k in range(ASPEN_MAX_INSTANCES)),
            "words": {plan: [aspen_stat_load32(&self.c.hints.table[table][plan].word[k]) for k in range(ASPEN_DEPTHS)] for plan in live},
        }

    def add_client(self, segment, buf):
        cdef Mapped mapped = Mapped(buf, "client", sizeof(aspen_client_segment))
        cdef uint32_t client = aspen_add_client(self.c, self._segment(segment, ("client",)), <aspen_client_segment *>mapped.view.buf)
        if not client:
            raise ResourceLimitError(f"the runtime has {ASPEN_MAX_CLIENTS - 1} clients already")
        return client

    def drop_client(self, client):
        aspen_drop_client(self.c, self.bell, self._client(client))
        self._dying_clients.add(client)

    def add_data(self, client, segment):
        cdef uint32_t index = aspen_add_data(self.c, self._client(client), self._segment(segment, ("data",)))
        if not index:
            raise ResourceLimitError(f"client {client} has {ASPEN_CLIENT_DATA} data segments already: use fewer, larger ones")
        return index - 1

    def drop_data(self, client, index):
        cdef uint32_t k = self._client(client)
        if not 0 <= index < ASPEN_CLIENT_DATA or not self.c.client[k].data[<uint32_t>index]:
            raise ValueError(f"client {client} has no data segment {index}")
        self._dying_data.add(aspen_drop_data(self.c, k, index))

    def add_plan(self, segment, weights, arenas, *, model=0, share=1.0, work_ns=0.0, memory=0):
        cdef uint32_t w[ASPEN_MAX_WEIGHTS]
        cdef uint32_t a[ASPEN_PLAN_INSTANCES]
        if len(weights) > ASPEN_MAX_WEIGHTS:
            raise ResourceLimitError(f"a plan may use {ASPEN_MAX_WEIGHTS} weight segments, not {len(weights)}")
        if not 1 <= len(arenas) <= ASPEN_PLAN_INSTANCES:
            raise ResourceLimitError(f"a plan may have 1 to {ASPEN_PLAN_INSTANCES} instances, not {len(arenas)}")
        for i, s in enumerate(weights):
            w[<int>i] = self._segment(s, ("weights",))
        for i, s in enumerate(arenas):
            a[<int>i] = self._segment(s, ("arena",))
        cdef uint32_t plan = aspen_add_plan(self.c, self._segment(segment, ("plan",)), w, len(weights), a, len(arenas))
        if not plan:
            raise ResourceLimitError(f"the runtime's tables are full ({ASPEN_MAX_PLANS - 1} plans, {ASPEN_MAX_INSTANCES - 1} instances): unload models")
        aspen_plan_terms(self.c, plan, model, max(1, round(share * 1024)), <uint64_t>min(max(work_ns, 0.0), 1e18), memory)
        return plan, self.c.plan[plan].generation

    cdef list _counted(self, uint32_t plan):
        """The numbers of MODEL_COUNTS."""
        cdef aspen_plan *p = &self.c.plan[plan]
        cdef aspen_instance *i
        cdef uint64_t served = 0, queued = 0, ran = 0, missed = 0
        cdef uint32_t k
        for k in range(p.n_instances):
            i = &self.c.instance[p.instance[k]]
            served += aspen_stat_load(&i.served)
            queued += aspen_stat_load(&i.queued_ns)
            ran += aspen_stat_load(&i.ran_ns)
            missed += aspen_stat_load(&i.missed)
        return [served, queued / 1e9, ran / 1e9, missed, aspen_stat_load(&p.refused), aspen_stat_load(&p.expired)]

    def model_counts(self):
        found = {model: list(counts) for model, counts in self._past.items()}
        for plan in self.plans():
            model = self.c.plan[<uint32_t>plan].model
            found[model] = [a + b for a, b in zip(found.get(model, [0] * 6), self._counted(plan))]
        return {model: dict(zip(MODEL_COUNTS, counts)) for model, counts in found.items()}

    def plans(self):
        return [i for i in range(1, ASPEN_MAX_PLANS) if self.c.plan[i].state != ASPEN_PLAN_FREE]

    def plan(self, plan):
        if not 0 < plan < ASPEN_MAX_PLANS or self.c.plan[<uint32_t>plan].state == ASPEN_PLAN_FREE:
            raise ValueError(f"plan {plan} does not exist")
        cdef aspen_plan *p = &self.c.plan[<uint32_t>plan]
        instances = [p.instance[i] for i in range(p.n_instances)]
        return {"generation": p.generation, "segment": p.segment, "draining": p.state == ASPEN_PLAN_DRAINING, "instances": instances,
                "served": sum(aspen_stat_load(&self.c.instance[<uint32_t>i].served) for i in instances),
                "beside": sum(aspen_stat_load(&self.c.instance[<uint32_t>i].beside) for i in instances)}

    def drop_plan(self, plan):
        if not 0 < plan < ASPEN_MAX_PLANS or self.c.plan[<uint32_t>plan].state != ASPEN_PLAN_LIVE:
            raise ValueError(f"plan {plan} does not exist")
        aspen_drop_plan(self.c, self.bell, plan)
        self._dying_plans.add(plan)

    def collect(self):
        cdef uint32_t out[128]
        cdef uint32_t n, i
        gone = []
        for plan in sorted(self._dying_plans):
            n = aspen_collect_plan(self.c, plan, out)
            if n:
                model = self.c.plan[<uint32_t>plan].model
                self._past[model] = [a + b for a, b in zip(self._past.get(model, [0] * 6), self._counted(plan))]
                if len(self._past) > MOST_PAST:
                    del self._past[next(iter(self._past))]
                self._dying_plans.discard(plan)
                self._served += sum(aspen_stat_load(&self.c.instance[self.c.plan[<uint32_t>plan].instance[k]].served)
                                    for k in range(self.c.plan[<uint32_t>plan].n_instances))
                gone.extend([out[i] for i in range(n)])
        for client in sorted(self._dying_clients):
            n = aspen_collect_client(self.c, client, out)
            if n:
                self._dying_clients.discard(client)
                gone.extend([out[i] for i in range(n)])
        for segment in sorted(self._dying_data):
            if not aspen_in_use(self.c, 0, segment):
                self._dying_data.discard(segment)
                aspen_drop_segment(self.c, segment)
                gone.append(segment)
        return gone

    def publish(self):
        return aspen_publish(self.c, self.bell)

    # -------------------------------------------------------------------------------------------- workers

    def worker_reset(self, row, *, pid=0, start_time=0, cpu=None, core_class=0, cache=0, node=0):
        cdef uint32_t r = self._row(row)
        aspen_worker_reset(self.c, r, <uint32_t>ASPEN_NONE if cpu is None else <uint32_t>cpu, core_class, cache, node)
        self.worker_started(row, pid, start_time)

    def worker_started(self, row, pid, start_time):
        cdef aspen_worker *w = &self.c.worker[self._row(row)]
        w.start_time = start_time
        aspen_stat_store(&w.pid, pid)

    def worker_gone(self, row, *, died=False):
        aspen_worker_gone(self.c, self._row(row), died)

    def worker_command(self, row, command):
        if command not in _COMMANDS:
            raise ValueError(f"unknown command {command!r}: expected one of {', '.join(_COMMANDS)}")
        aspen_worker_command(self.c, self.bell, self._row(row), _COMMANDS[command])

    def stop(self):
        aspen_store_seq(&self.c.signals.stop, 1)
        aspen_wake_all(self.bell)

    cdef object _ns(self, uint64_t *ticks):
        return (<object>aspen_stat_load(ticks) * self.c.signals.tick_ns_q32) >> 32

    def workers(self):
        cdef aspen_worker *w
        cdef uint64_t current
        rows = []
        for r in range(self.c.signals.n_rows):
            w = &self.c.worker[<uint32_t>r]
            state = aspen_load_acquire(&w.state)
            if state == ASPEN_WORKER_NONE:
                continue
            current = aspen_stat_load(&w.current)
            rows.append({
                "row": r, "pid": w.pid, "start_time": w.start_time, "cpu": None if w.cpu == <uint32_t>ASPEN_NONE else w.cpu,
                "core_class": w.core_class, "cache": w.cache, "node": w.node, "state": _WORKER_STATES[state],
                "command": {v: k for k, v in _COMMANDS.items()}.get(w.command, "?"), "attached": aspen_load_acquire(&w.attached),
                "heartbeat": aspen_stat_load(&w.heartbeat), "idle": _IDLE[aspen_stat_load32(&w.idle) % 3],
                "current": (ASPEN_ITEM_INSTANCE(current), ASPEN_ITEM_TILE(current)) if current else None,
                "tiles": aspen_stat_load(&w.tiles), "steals": aspen_stat_load(&w.steals), "pushes": aspen_stat_load(&w.pushes),
                "follows": aspen_stat_load(&w.follows), "kernel_ns": self._ns(&w.kernel_ticks), "schedule_ns": self._ns(&w.schedule_ticks),
                "search_ns": self._ns(&w.search_ticks), "sleep_ns": self._ns(&w.sleep_ticks),
                "held_ns": self._ns(&w.held_ticks), "lent_ns": self._ns(&w.lent_ticks), "parks": aspen_stat_load(&w.parks),
                "opaque": aspen_stat_load(&w.opaque), "claims": aspen_stat_load(&w.claims), "ends": aspen_stat_load(&w.ends),
                "wakes": aspen_stat_load(&w.wakes), "faults": aspen_stat_load(&w.faults),
                "failed": aspen_stat_load(&w.failed), "cancelled": aspen_stat_load(&w.cancelled),
                "pace": aspen_stat_load32(&w.pace) / 1024 or None,
                "queued": aspen_stat_load32(&self.c.row[<uint32_t>r].waiting),
            })
        return rows

    def paces(self):
        """For each worker that runs: row, pid, CPU (None: not pinned), and nanoseconds in kernels, and those that plans expect of them, so
        far."""
        cdef aspen_worker *w
        found = []
        for r in range(self.c.signals.n_rows):
            w = &self.c.worker[<uint32_t>r]
            if aspen_load_acquire(&w.state) == ASPEN_WORKER_RUNNING:
                cpu = None if w.cpu == <uint32_t>ASPEN_NONE else w.cpu
                found.append((r, w.pid, cpu, aspen_stat_load(&w.paced_ns), aspen_stat_load(&w.expected_ns)))
        return found

    def status(self):
        cdef uint32_t i
        instances = dict.fromkeys(_INSTANCE_STATES[1:], 0)
        served = self._served
        for i in range(1, <uint32_t>ASPEN_MAX_INSTANCES):
            state = aspen_load_word(&self.c.instance[i].word) & 0xffffffff
            if state:
                instances[_INSTANCE_STATES[state]] += 1
                served += aspen_stat_load(&self.c.instance[i].served)
        segments = {}
        for _, role, nbytes in self.segments():
            segments[role] = segments.get(role, 0) + nbytes
        return {
            "epoch": self.c.signals.epoch, "attach_seq": self.c.signals.attach_seq, "max_workers": self.c.signals.n_rows,
            "workers": sum(self.c.worker[i].state not in (ASPEN_WORKER_NONE, ASPEN_WORKER_DEAD) for i in range(self.c.signals.n_rows)),
            "sleepers": aspen_load_acquire(&self.c.idle.sleepers), "spinners": aspen_load_acquire(&self.c.idle.spinners),
            "queued": sum(aspen_stat_load32(&self.c.row[<uint32_t>r].waiting) for r in range(self.c.signals.n_rows)),
            "trace": self.c.signals.trace != 0,
            "ready_rows": [r for r in range(self.c.signals.n_rows) if aspen_load_word(&self.c.row[<uint32_t>r].first)],
            "plans": sum(self.c.plan[i].state == ASPEN_PLAN_LIVE for i in range(1, ASPEN_MAX_PLANS)),
            "draining": sum(self.c.plan[i].state == ASPEN_PLAN_DRAINING for i in range(1, ASPEN_MAX_PLANS)),
            "instances": instances, "served": served,
            "clients": sum(self.c.client[i].state == ASPEN_CLIENT_LIVE for i in range(1, ASPEN_MAX_CLIENTS)),
            "segments": segments,
        }

    def set_trace(self, segment):
        aspen_store_seq(&self.c.signals.trace, self._segment(segment, ("trace",)) if segment else 0)

    def set_policy(self, policy, seed=0):
        if policy not in _POLICIES:
            raise ValueError(f"unknown policy {policy!r}: expected one of {', '.join(_POLICIES)}")
        self.c.signals.seed = seed & 0xffffffff
        aspen_store_seq(&self.c.signals.policy, _POLICIES[policy])

    def set_stealing(self, on):
        aspen_store_seq(&self.c.signals.steal, 1 if on else 0)
        aspen_wake_all(self.bell)

    # -------------------------------------------------------------------------------------------- epoch

    def epoch_begin(self):
        cdef uint32_t epoch = aspen_load_acquire(&self.c.signals.epoch)
        if epoch & 1:
            raise RuntimeError(f"epoch {epoch} has begun already")
        return aspen_epoch_begin(self.c, self.bell)

    def epoch_stopped(self):
        return [r for r in range(self.c.signals.n_rows) if aspen_epoch_late(self.c, r)]

    def recovery_segments(self, *, restart=False):
        cdef uint32_t i, least = ASPEN_INSTANCE_FREE if restart else ASPEN_INSTANCE_CLAIMED
        wanted = set()
        for i in range(1, <uint32_t>ASPEN_MAX_INSTANCES):
            if least <= (self.c.instance[i].word & 0xffffffff) <= ASPEN_INSTANCE_DONE:
                wanted |= {self.c.instance[i].arena, self.c.plan[self.c.instance[i].plan].segment}
        for i in range(1, <uint32_t>ASPEN_MAX_CLIENTS):
            if self.c.client[i].state:
                wanted.add(self.c.client[i].segment)
        return sorted(wanted)

    def current(self, row):
        cdef uint64_t item = aspen_stat_load(&self.c.worker[self._row(row)].current)
        cdef uint64_t word
        if not item:
            return None
        word = aspen_load_word(&self.c.instance[ASPEN_ITEM_INSTANCE(item)].word)
        if (word >> 32) & 0xffff != item >> 48:
            return None
        return ASPEN_ITEM_INSTANCE(item), ASPEN_ITEM_TILE(item), word >> 32

    def unwanted(self, instance, generation, client):
        cdef aspen_instance *i = &self.c.instance[<uint32_t>instance]
        cdef const unsigned char[::1] view
        cdef const aspen_client_segment *c = NULL
        cdef uint32_t error
        if client is not None:
            view = client
            if view.shape[0] < <Py_ssize_t>sizeof(aspen_client_segment):
                raise ValueError("that is no client's segment")
            c = <const aspen_client_segment *>&view[0]
        error = aspen_unwanted(self.c, i, c)
        return error != 0 and aspen_load_word(&i.word) == (<uint64_t><uint32_t>generation << 32 | ASPEN_INSTANCE_RUNNING)

    def pulse(self, row):
        cdef aspen_worker *w = &self.c.worker[self._row(row)]
        mapped = aspen_load_acquire(&w.attached) == aspen_load_acquire(&self.c.signals.attach_seq)
        return aspen_stat_load(&w.heartbeat), aspen_stat_load(&w.current), aspen_stat_load32(&w.idle), mapped

    def due(self, row):
        return bool(aspen_worker_due(self.c, self.bell, self._row(row)))

    def wake_all(self):
        aspen_wake_all(self.bell)

    def fail(self, instance, generation, error, op):
        cdef aspen_instance *i = &self.c.instance[<uint32_t>instance]
        cdef uint64_t fault = <uint64_t><uint32_t>error | <uint64_t><uint32_t>op << 32
        if aspen_load_word(&i.word) >> 32 == generation:
            aspen_cas_word(&i.fault, 0, fault)

    def instance(self, number):
        cdef aspen_instance *i = &self.c.instance[<uint32_t>number]
        cdef uint64_t word = aspen_load_word(&i.word)
        return {"state": _INSTANCE_STATES[word & 0xffffffff], "generation": word >> 32, "plan": i.plan, "client": i.client, "arena": i.arena,
                "client_segment": self.c.client[i.client % ASPEN_MAX_CLIENTS].segment}

    def replace_arena(self, instance, segment):
        cdef uint32_t number = self._segment(segment, ("arena",)), i = instance
        if not self.c.signals.epoch & 1:
            raise RuntimeError("the world has not been stopped")
        if not 0 < instance < ASPEN_MAX_INSTANCES or self.c.segment[number].bytes < self.c.segment[self.c.instance[i].arena].bytes:
            raise ValueError(f"segment {segment} cannot take the place of instance {instance}'s arena")
        return aspen_replace_arena(self.c, i, number)

    def recover(self, buffers, *, restart=False):
        cdef aspen_recovery r
        cdef aspen_mapping *table
        cdef Py_buffer *views
        cdef int held = 0, again = bool(restart)
        if not aspen_load_acquire(&self.c.signals.epoch) & 1:
            raise RuntimeError("the world has not been stopped")
        table = <aspen_mapping *>calloc(ASPEN_MAX_SEGMENTS, sizeof(aspen_mapping))
        views = <Py_buffer *>calloc(len(buffers) + 1, sizeof(Py_buffer))
        memset(&r, 0, sizeof(r))
        r.next = <uint64_t **>calloc(ASPEN_MAX_INSTANCES, sizeof(void *))
        try:
            if table == NULL or views == NULL or r.next == NULL:
                raise MemoryError()
            for segment, buf in buffers.items():
                PyObject_GetBuffer(buf, &views[held], PyBUF_WRITABLE if _ROLE_NAMES[self.c.segment[<uint32_t>segment].role] != "plan" else PyBUF_SIMPLE)
                table[<uint32_t>segment].base = <char *>views[held].buf
                table[<uint32_t>segment].bytes = views[held].len
                table[<uint32_t>segment].role = self.c.segment[<uint32_t>segment].role
                held += 1
            r.station.control, r.station.bell, r.station.segment = self.c, self.bell, table
            r.station.user.signals, r.station.user.next = &self.c.signals, r.next
            with nogil:
                aspen_recover(&r, again)
        finally:
            while held:
                held -= 1
                PyBuffer_Release(&views[held])
            free(table)
            free(views)
            free(r.next)
        return {"continued": r.continued, "restarted": r.restarted, "completed": r.completed, "resubmitted": r.resubmitted}

    def epoch_end(self):
        cdef uint32_t epoch = aspen_load_acquire(&self.c.signals.epoch)
        if not epoch & 1:
            raise RuntimeError(f"no epoch has begun ({epoch})")
        aspen_epoch_end(self.c)
