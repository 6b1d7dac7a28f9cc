# cython: language_level=3, boundscheck=False
"""The distributed scheduling engine for Python (engine/loop.h), and a runner of single tiles. Documentation of names: _dse.pyi."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from aspen_mp.shm.errors import PlanError, ProtocolError
from aspen_mp.shm.bindings._control import DOORBELL_BYTES, ROLES, check_magic
from aspen_mp.shm.segments import CLIENTS_WRITE
from aspen_mp.workers import _isa

cdef extern from "engine/loop.h" nogil:
    enum:
        ASPEN_MAX_SEGMENTS, ASPEN_MAX_PLANS, ASPEN_MAX_INSTANCES, ASPEN_MAX_WORKERS, ASPEN_MAX_WEIGHTS, ASPEN_RANK, ASPEN_LINE
        ASPEN_SEGMENT_LIVE, ASPEN_PLAN_LIVE, ASPEN_PLAN_DRAINING, ASPEN_ROLE_TRACE, ASPEN_ROLE_ARENA, ASPEN_ROLE_PLAN, ASPEN_ROLE_WEIGHTS
        ASPEN_REASON_OPAQUE, ASPEN_REASON_ATTACH, ASPEN_REASON_DRAINED, ASPEN_REASON_LEAVE, ASPEN_REASON_STOP
        ASPEN_SPACE_ARENA, ASPEN_SPACE_REQUEST, ASPEN_SPACE_PLAN, ASPEN_SPACE_WEIGHTS, ASPEN_DT_NONE, ASPEN_DT_OBJECT, ASPEN_K_OPAQUE
        ASPEN_E_OPAQUE_FAILED, ASPEN_E_BAD_ARGUMENT, ASPEN_WORKER_RUNNING
    cdef enum aspen_isa:
        pass
    ctypedef int (*aspen_kernel_fn)(const void *)
    const aspen_kernel_fn *aspen_kernels_for(aspen_isa)
    struct aspen_signals:
        uint32_t epoch, attach_seq, n_rows, trace
    struct aspen_worker:
        uint32_t state
        uint64_t opaque
    struct aspen_plan:
        uint32_t state, generation, segment, n_weights, n_instances
        uint32_t weights[8]
        uint32_t instance[32]
    struct aspen_instance:
        uint32_t plan, arena
    struct aspen_segment:
        uint32_t state, role, seq
        uint64_t bytes
    struct aspen_control:
        aspen_signals signals
        aspen_worker worker[256]
        aspen_plan plan[1024]
        aspen_instance instance[4096]
        aspen_segment segment[8192]
    struct aspen_doorbell:
        pass
    int aspen_extents_fit(uint32_t, uint32_t, const uint32_t *, const uint32_t *)
    uint32_t aspen_extent(uint32_t, uint32_t, uint32_t)
    struct aspen_plan_header:
        uint64_t bytes, arena_bytes, request_bytes
        uint32_t n_tiles, n_weights, n_ops
        uint32_t n_extents
        uint32_t least[3]
        uint32_t most[3]
        uint64_t weights_bytes[8]
    struct aspen_op:
        uint32_t operand, name, name_bytes, blob, blob_bytes, kernel
        unsigned short n_outputs, n_inputs
    struct aspen_operand:
        uint8_t space, dtype, rank
        int64_t offset
        int64_t dims[8]
        int64_t strides[8]
    struct aspen_tile:
        uint32_t op, children
        unsigned short n_children
    struct aspen_mapping:
        char *base
        uint64_t bytes
        uint32_t role
    struct aspen_plan_view:
        uint32_t generation, n_tiles, n_initial, n_extents
        const aspen_plan_header *header
        const aspen_tile *tiles
        const uint32_t *children
        const uint32_t *parent_counts
        const uint32_t *initial
    struct aspen_instance_view:
        const aspen_plan_view *plan
        char *request
    struct aspen_exec_plan:
        aspen_plan_view view
        const aspen_operand *operands
        const aspen_op *ops
        const char *blobs
        size_t scratch_bytes
    struct aspen_exec_instance:
        aspen_instance_view view
    struct aspen_bases:
        char *at[11]
    struct aspen_recorder:
        void *ring
    struct aspen_station:
        aspen_control *control
        uint32_t row
        aspen_recorder trace
    struct aspen_dse:
        int told
        aspen_station s
        uint64_t opaque
        void *scratch
        size_t scratch_bytes
    int aspen_magic_check(const void *, uint64_t, uint32_t)
    aspen_exec_plan *aspen_exec_plan_new(const char *, uint64_t, uint32_t, const aspen_kernel_fn *, const char **)
    void aspen_exec_plan_free(aspen_exec_plan *)
    aspen_exec_instance *aspen_exec_instance_new(aspen_exec_plan *, const aspen_bases *)
    void aspen_exec_instance_free(aspen_exec_instance *)
    size_t aspen_plan_scratch(aspen_exec_instance *)
    size_t aspen_tile_scratch(const aspen_exec_instance *, uint32_t)
    void aspen_exec_move(aspen_exec_instance *, char *, uint32_t, uint32_t)
    int aspen_exec_tile(const aspen_exec_instance *, uint32_t, int, void *, size_t)
    aspen_operand aspen_exec_operand(const aspen_exec_instance *, uint32_t)
    uint64_t *aspen_exec_next(const aspen_exec_instance *)
    void aspen_dse_init(aspen_dse *, aspen_control *, aspen_doorbell *, uint32_t, const aspen_mapping *, aspen_plan_view **, aspen_instance_view **,
                        uint64_t **)
    void aspen_dse_attached(aspen_dse *, uint32_t)
    void aspen_dse_join(aspen_dse *)
    int aspen_dse_run(aspen_dse *)
    int aspen_dse_unwanted(const aspen_dse *)
    int aspen_dse_complete_opaque(aspen_dse *, uint64_t, uint32_t, uint64_t, const char *, uint32_t)
    int aspen_recorder_open(aspen_recorder *, char *, uint64_t, uint32_t)
    uint32_t aspen_load_acquire(uint32_t *)
    uint64_t ASPEN_ITEM_TILE(uint64_t)
    uint64_t ASPEN_ITEM_INSTANCE(uint64_t)

cdef extern from "stdlib.h" nogil:
    int posix_memalign(void **, size_t, size_t)

cdef extern from "<sys/mman.h>" nogil:
    int madvise(void *, size_t, int)

cdef enum:
    HUGE = 2 << 20
    MADV_HUGEPAGE = 14  # Linux


cdef void *_scratch(size_t nbytes) except NULL:
    """Memory for kernels, to be freed. In huge pages: transforms write to as many places at a time as blocks have products, more than a core
    knows the small pages of."""
    cdef void *memory = NULL
    cdef size_t page = HUGE if nbytes >= <size_t>(HUGE // 8) else 4096
    nbytes = (nbytes + 64 + page - 1) // page * page
    if posix_memalign(&memory, page, nbytes):
        raise MemoryError(f"{nbytes} bytes of scratch memory for kernels")
    if page == HUGE:
        madvise(memory, nbytes, MADV_HUGEPAGE)  # or not: it is as right in small ones
    return memory

_WRITABLE = ("arena", "data", "client", "trace")


cdef class _Buffer:
    """A buffer held until release(), with the object that it came from."""
    cdef Py_buffer view
    cdef bint held
    cdef public object owner

    def __cinit__(self, owner, bint writable):
        PyObject_GetBuffer(owner, &self.view, PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
        self.held = True
        self.owner = owner

    cdef void release(self):
        if self.held:
            self.held = False
            PyBuffer_Release(&self.view)
            self.owner = None

    def __dealloc__(self):
        self.release()


cdef object np = None  # numpy, and its dtypes by code: imported when an opaque tile first needs them, so that workers start fast
cdef dict NUMPY_BY_CODE = {}


cdef int _need_numpy() except -1:
    global np, NUMPY_BY_CODE
    if np is None:
        import numpy
        from aspen_mp.shm import tables
        np, NUMPY_BY_CODE = numpy, tables.NUMPY_BY_CODE
    return 0


cdef object _array(const aspen_operand *o, buf, int64_t first, bint writable):
    """An operand as an array over `buf`, whose byte `first` + offset is its logical element (0, 0, …). None: no operand; OBJECT: a memoryview."""
    if o.dtype == ASPEN_DT_NONE:
        return None
    dtype = np.dtype(np.uint8) if o.dtype == ASPEN_DT_OBJECT else NUMPY_BY_CODE[o.dtype]
    shape = [o.dims[i] for i in range(o.rank)]
    strides = [o.strides[i] * dtype.itemsize for i in range(o.rank)]
    if 0 in shape:
        return np.empty(shape, dtype)
    array = np.ndarray(shape, dtype, buffer=buf, offset=first + o.offset, strides=strides)
    if not writable:
        array.flags.writeable = False
    return array.data if o.dtype == ASPEN_DT_OBJECT else array


cdef object _own(operand):
    """A copy of an operand that its client may be writing to now: numpy checks an index and reads it once more to use it."""
    if isinstance(operand, memoryview):
        used = int.from_bytes(bytes(operand[8:16]), "little")  # of a serialised value (values.py), which decode() checks in the copy
        return memoryview(bytes(operand[:used]))
    return None if operand is None else np.array(operand, order="C")


cdef object _call(const aspen_exec_instance *e, uint32_t tile, list buffers, int64_t request):
    """(op, blob, outputs, inputs) of an opaque tile; buffers by space; the REQUEST space begins at byte `request` of its buffer."""
    cdef const aspen_exec_plan *p = <const aspen_exec_plan *>e.view.plan
    cdef uint32_t op = p.view.tiles[tile].op
    cdef const aspen_op *o = &p.ops[op]
    cdef aspen_operand x
    cdef int i
    _need_numpy()
    arrays = []
    for i in range(o.n_outputs + o.n_inputs):
        x = aspen_exec_operand(e, o.operand + i)
        buf = buffers[x.space] if x.dtype != ASPEN_DT_NONE else None
        operand = _array(&x, buf, request if x.space == ASPEN_SPACE_REQUEST else 0, i < o.n_outputs)
        arrays.append(_own(operand) if x.space == ASPEN_SPACE_REQUEST and i >= o.n_outputs else operand)
    blob = PyBytes_FromStringAndSize(p.blobs + o.blob, o.blob_bytes)
    return op, blob, arrays[:o.n_outputs], arrays[o.n_outputs:]


cdef str _op_name(const aspen_exec_plan *p, uint32_t tile):
    cdef const aspen_op *o = &p.ops[p.view.tiles[tile].op]
    return PyBytes_FromStringAndSize(p.blobs + o.name, o.name_bytes).decode("utf-8", "replace")


cdef class Engine:
    cdef aspen_dse *d
    cdef aspen_control *c
    cdef aspen_mapping *segment
    cdef aspen_plan_view **plan
    cdef aspen_instance_view **instance
    cdef uint64_t **next
    cdef const aspen_kernel_fn *kernels
    cdef int _isa
    cdef bint joined
    cdef _Buffer _control_buf, _bell_buf
    cdef dict _buffers

    def __cinit__(self):
        self.d = <aspen_dse *>calloc(1, sizeof(aspen_dse))
        self.segment = <aspen_mapping *>calloc(ASPEN_MAX_SEGMENTS, sizeof(aspen_mapping))
        self.plan = <aspen_plan_view **>calloc(ASPEN_MAX_PLANS, sizeof(void *))
        self.instance = <aspen_instance_view **>calloc(ASPEN_MAX_INSTANCES, sizeof(void *))
        self.next = <uint64_t **>calloc(ASPEN_MAX_INSTANCES, sizeof(void *))
        self._buffers = {}
        if not (self.d and self.segment and self.plan and self.instance and self.next):
            raise MemoryError()

    def __init__(self, control, doorbell, row, isa=None, told=-1):
        check_magic(control, "control")
        self._control_buf = _Buffer(control, True)
        self._bell_buf = _Buffer(doorbell, True)
        if self._bell_buf.view.len < DOORBELL_BYTES:
            raise ProtocolError(f"a doorbell page of {self._bell_buf.view.len} bytes, not {DOORBELL_BYTES}")
        self.c = <aspen_control *>self._control_buf.view.buf
        if not 0 <= row < self.c.signals.n_rows:
            raise ValueError(f"row {row} is not in 0 … {self.c.signals.n_rows - 1}")
        self._isa = _isa.find(isa)
        self.kernels = aspen_kernels_for(<aspen_isa>self._isa)
        aspen_dse_init(self.d, self.c, <aspen_doorbell *>self._bell_buf.view.buf, row, self.segment, self.plan, self.instance, self.next)
        self.d.told = told

    def __dealloc__(self):
        self._free()
        free(self.d)
        free(self.segment)
        free(self.plan)
        free(self.instance)
        free(self.next)

    cdef void _free(self):
        cdef int i
        if self.instance:
            for i in range(ASPEN_MAX_INSTANCES):
                self._drop_instance(i)
        if self.plan:
            for i in range(ASPEN_MAX_PLANS):
                aspen_exec_plan_free(<aspen_exec_plan *>self.plan[i])
                self.plan[i] = NULL
        if self.d:
            free(self.d.scratch)
            self.d.scratch = NULL
            self.d.scratch_bytes = 0

    cdef void _drop_instance(self, int i):
        aspen_exec_instance_free(<aspen_exec_instance *>self.instance[i])
        self.instance[i] = NULL
        self.next[i] = NULL

    @property
    def row(self):
        return self.d.s.row

    @property
    def isa(self):
        return _isa.name_of(self._isa)

    # -------------------------------------------------------------------------------------------- mapping

    def map(self, segment, role, buf):
        cdef uint32_t s = segment
        cdef _Buffer b
        if not 0 < segment < ASPEN_MAX_SEGMENTS:
            raise ValueError(f"segment {segment} is not in 1 … {ASPEN_MAX_SEGMENTS - 1}")
        if role not in CLIENTS_WRITE:
            check_magic(buf, role)
        if s in self._buffers:
            self.unmap(s)
        b = _Buffer(buf, role in _WRITABLE)
        if <uint64_t>b.view.len < self.c.segment[s].bytes or self.c.segment[s].role != ROLES[role]:
            raise ProtocolError(f"segment {segment}: a {role} segment of {b.view.len} bytes was sent, the control table says otherwise "
                                f"(role {self.c.segment[s].role}, {self.c.segment[s].bytes} bytes)")
        self._buffers[s] = b
        self.segment[s].bytes = self.c.segment[s].bytes
        self.segment[s].role = ROLES[role]
        self.segment[s].base = <char *>b.view.buf

    def unmap(self, segment):
        cdef _Buffer b = self._buffers.pop(segment, None)
        if b is None:
            return
        self._forget(<uint32_t>segment)
        if self.segment[<uint32_t>segment].role == ASPEN_ROLE_TRACE:
            self.d.s.trace.ring = NULL
        self.segment[<uint32_t>segment].base = NULL
        b.release()

    cdef _forget(self, uint32_t segment):
        """Drops the plans and instances that live in a segment."""
        cdef int i
        cdef char *lo = self.segment[segment].base
        cdef char *hi = lo + self.segment[segment].bytes
        for i in range(ASPEN_MAX_INSTANCES):
            if self.instance[i] != NULL and (lo <= <char *>self.next[i] < hi or lo <= <char *>self.instance[i].plan.header < hi):
                self._drop_instance(i)
        for i in range(ASPEN_MAX_PLANS):
            if self.plan[i] != NULL and lo <= <char *>self.plan[i].header < hi:
                self._drop_plan(i)

    cdef _drop_plan(self, int plan):
        cdef int i
        for i in range(ASPEN_MAX_INSTANCES):
            if self.instance[i] != NULL and self.instance[i].plan == self.plan[plan]:
                self._drop_instance(i)
        aspen_exec_plan_free(<aspen_exec_plan *>self.plan[plan])
        self.plan[plan] = NULL

    def mapped(self):
        return sorted(self._buffers)

    def stale(self):
        return [s for s in sorted(self._buffers) if self.c.segment[<uint32_t>s].state != ASPEN_SEGMENT_LIVE]

    def missing(self, seq):
        cdef uint32_t i
        cdef uint32_t upto = seq
        return [i for i in range(1, <uint32_t>ASPEN_MAX_SEGMENTS)
                if self.c.segment[i].state == ASPEN_SEGMENT_LIVE and <int>(self.c.segment[i].seq - upto) <= 0 and self.segment[i].base == NULL]

    def attached(self, seq):
        cdef uint32_t k
        cdef aspen_plan *p
        lacking = self.missing(seq)
        if lacking:
            raise ProtocolError(f"segments {lacking} were announced by {seq}, but are not mapped")
        for s in self.stale():
            self.unmap(s)
        for k in range(1, <uint32_t>ASPEN_MAX_PLANS):
            p = &self.c.plan[k]
            live = aspen_load_acquire(&p.state) in (ASPEN_PLAN_LIVE, ASPEN_PLAN_DRAINING)
            if self.plan[k] != NULL and (not live or self.plan[k].generation != p.generation or not self._whole(p)):
                self._drop_plan(k)
            if live and self.plan[k] == NULL and p.segment in self._buffers:
                self._prepare(k)
        self._trace(aspen_load_acquire(&self.c.signals.trace))
        aspen_dse_attached(self.d, seq)

    cdef bint _whole(self, const aspen_plan *p):
        """Is each of its instances where it was? One whose arena was replaced went with the old one."""
        cdef uint32_t i
        for i in range(p.n_instances):
            if self.instance[p.instance[i]] == NULL:
                return False
        return True
    cdef void _trace(self, uint32_t segment):
        """Begins or ends recording. A segment that is not mapped yet is announced by a later number."""
        cdef bint there = 0 < segment < ASPEN_MAX_SEGMENTS and self.segment[segment].role == ASPEN_ROLE_TRACE
        if not there or self.segment[segment].base == NULL:
            self.d.s.trace.ring = NULL
        elif self.d.s.trace.ring == NULL:
            aspen_recorder_open(&self.d.s.trace, self.segment[segment].base, self.segment[segment].bytes, self.d.s.row)

    cdef _prepare(self, uint32_t k):
        """Makes a plan and its instances ready. Its segments were all sent before it was announced."""
        cdef aspen_plan *p = &self.c.plan[k]
        cdef const char *why = NULL
        cdef aspen_exec_plan *e
        cdef aspen_exec_instance *x
        cdef aspen_bases bases
        cdef uint32_t i, id, used
        cdef size_t need
        e = aspen_exec_plan_new(self.segment[p.segment].base, self.segment[p.segment].bytes, p.generation, self.kernels, &why)
        if e == NULL:
            raise PlanError(f"plan {k}: {why.decode()}")
        used = e.view.header.n_weights
        if used > p.n_weights:
            aspen_exec_plan_free(e)
            raise PlanError(f"plan {k}: it uses {used} weight segments, {p.n_weights} were announced")
        self.plan[k] = &e.view
        for i in range(11):
            bases.at[i] = NULL
        bases.at[<int>ASPEN_SPACE_PLAN] = self.segment[p.segment].base
        try:
            for i in range(p.n_weights):
                bases.at[<int>ASPEN_SPACE_WEIGHTS + i] = self._base(p.weights[i], "weights", e.view.header.weights_bytes[i])
            for i in range(p.n_instances):
                id = p.instance[i]
                bases.at[<int>ASPEN_SPACE_ARENA] = self._base(self.c.instance[id].arena, "arena", e.view.header.arena_bytes)
                x = aspen_exec_instance_new(e, &bases)
                if x == NULL:
                    raise MemoryError(f"plan {k}: no memory for the arguments of its kernels")
                self._drop_instance(id)
                self.instance[id] = &x.view
                self.next[id] = aspen_exec_next(x)
                if i == 0:
                    e.scratch_bytes = aspen_plan_scratch(x)
            self._reserve(e.scratch_bytes)
        except BaseException:
            self._drop_plan(k)
            raise

    cdef char *_base(self, uint32_t segment, role, uint64_t nbytes) except? NULL:
        if self.segment[segment].base == NULL or self.segment[segment].role != ROLES[role] or self.segment[segment].bytes < nbytes:
            raise PlanError(f"segment {segment} is no mapped {role} segment of at least {nbytes} bytes")
        return self.segment[segment].base

    cdef _reserve(self, size_t nbytes):
        cdef void *memory
        if nbytes <= self.d.scratch_bytes:
            return
        memory = _scratch(nbytes)
        free(self.d.scratch)
        self.d.scratch = memory
        self.d.scratch_bytes = nbytes

    # -------------------------------------------------------------------------------------------- running

    def join(self):
        if not self.joined:
            self.joined = True
            with nogil:
                aspen_dse_join(self.d)

    def run(self):
        cdef int reason
        cdef uint64_t item
        self.join()
        with nogil:
            reason = aspen_dse_run(self.d)
        if reason == ASPEN_REASON_OPAQUE:
            item = self.d.opaque
            return "opaque", ASPEN_ITEM_INSTANCE(item), ASPEN_ITEM_TILE(item)
        if reason == ASPEN_REASON_ATTACH:
            return "attach", aspen_load_acquire(&self.c.signals.attach_seq), 0
        return {ASPEN_REASON_DRAINED: "drained", ASPEN_REASON_LEAVE: "leave", ASPEN_REASON_STOP: "stop"}[reason], 0, 0

    cdef aspen_exec_instance *_at(self, instance, tile) except NULL:
        if self.d.opaque == 0 or ASPEN_ITEM_INSTANCE(self.d.opaque) != instance or ASPEN_ITEM_TILE(self.d.opaque) != tile:
            raise ValueError(f"tile {tile} of instance {instance} is not the one that run() returned")
        return <aspen_exec_instance *>self.instance[<uint32_t>instance]

    def operands(self, instance, tile):
        cdef aspen_exec_instance *e = self._at(instance, tile)
        cdef const aspen_exec_plan *p = <const aspen_exec_plan *>e.view.plan
        cdef aspen_plan *entry = &self.c.plan[self.c.instance[<uint32_t>instance].plan]
        cdef uint32_t i, data = 0
        cdef _Buffer b
        buffers = [None] * 11
        buffers[<int>ASPEN_SPACE_ARENA] = (<_Buffer>self._buffers[self.c.instance[<uint32_t>instance].arena]).owner
        buffers[<int>ASPEN_SPACE_PLAN] = (<_Buffer>self._buffers[entry.segment]).owner
        for i in range(entry.n_weights):
            buffers[<int>ASPEN_SPACE_WEIGHTS + i] = (<_Buffer>self._buffers[entry.weights[i]]).owner
        cdef int64_t request = 0
        for s, held in self._buffers.items():
            b = <_Buffer>held
            if <char *>b.view.buf <= e.view.request < <char *>b.view.buf + b.view.len:
                buffers[<int>ASPEN_SPACE_REQUEST] = b.owner
                request = e.view.request - <char *>b.view.buf
        op, blob, outputs, inputs = _call(e, tile, buffers, request)
        return op, memoryview(blob), outputs, inputs

    def name(self, instance, tile):
        return _op_name(<const aspen_exec_plan *>self._at(instance, tile).view.plan, tile)

    def unwanted(self):
        return bool(aspen_dse_unwanted(self.d))

    def finish(self, instance, tile, error=0, needed=0, message=""):
        self._at(instance, tile)
        cdef bytes text = message.encode("utf-8", "replace")
        cdef uint64_t item = self.d.opaque
        cdef uint32_t code = error, n = len(text)
        cdef uint64_t nbytes = needed
        cdef const char *chars = text
        with nogil:
            aspen_dse_complete_opaque(self.d, item, code, nbytes, chars, n)

    def close(self):
        self._free()
        for s in list(self._buffers):
            self.unmap(s)


cdef class PlanRunner:
    cdef aspen_exec_plan *p
    cdef aspen_exec_instance *e
    cdef void *scratch
    cdef char *_request
    cdef list _held, _buffers
    cdef object _opaque, _base_plan

    def __init__(self, plan, weights, arena, request, isa=None, opaque=None, extent=0):
        cdef const char *why = NULL
        cdef aspen_bases bases
        cdef const aspen_plan_header *h
        cdef _Buffer b
        cdef int i
        self._opaque = opaque
        # Plans are mapped at page boundaries; bytes objects are not. A copy is aligned, and read-only by nobody else having it.
        source = _Buffer(plan, False)
        _need_numpy()
        copy = np.empty(source.view.len + ASPEN_LINE, np.uint8)
        copy = copy[-copy.ctypes.data % ASPEN_LINE:][:source.view.len]
        b = _Buffer(copy, True)
        memcpy(b.view.buf, (<_Buffer>source).view.buf, source.view.len)
        self._held = [b]
        self._buffers = [None] * 11
        self._buffers[<int>ASPEN_SPACE_PLAN] = copy
        for i in range(11):
            bases.at[i] = NULL
        bases.at[<int>ASPEN_SPACE_PLAN] = <char *>b.view.buf
        self.p = aspen_exec_plan_new(<const char *>b.view.buf, b.view.len, 1, aspen_kernels_for(<aspen_isa><int>_isa.find(isa)), &why)
        if self.p == NULL:
            raise PlanError(why.decode())
        h = self.p.view.header
        if len(weights) < h.n_weights:
            raise PlanError(f"the plan uses {h.n_weights} weight segments, {len(weights)} were given")
        bases.at[<int>ASPEN_SPACE_ARENA] = self._take(arena, True, ASPEN_SPACE_ARENA, h.arena_bytes, "arena")
        bases.at[<int>ASPEN_SPACE_REQUEST] = self._take(request, True, ASPEN_SPACE_REQUEST, h.request_bytes, "request")
        self._request = bases.at[<int>ASPEN_SPACE_REQUEST]
        for i in range(<int>h.n_weights):
            bases.at[<int>ASPEN_SPACE_WEIGHTS + i] = self._take(weights[i], False, <int>ASPEN_SPACE_WEIGHTS + i, h.weights_bytes[i], f"weights[{i}]")
        self.e = aspen_exec_instance_new(self.p, &bases)
        if self.e == NULL:
            raise MemoryError()
        self.p.scratch_bytes = aspen_plan_scratch(self.e)
        self.scratch = _scratch(self.p.scratch_bytes)
        self.move(extent)

    def __dealloc__(self):
        aspen_exec_instance_free(self.e)
        aspen_exec_plan_free(self.p)
        free(self.scratch)

    def move(self, extent):
        cdef const aspen_plan_header *h = self.p.view.header
        cdef uint32_t word = extent & 0xffffffff
        if word != extent or not aspen_extents_fit(word, h.n_extents, h.least, h.most):
            ends = [(h.least[k], h.most[k]) for k in range(h.n_extents)]
            raise PlanError(f"the extents {[aspen_extent(word, h.n_extents, k) for k in range(max(h.n_extents, 1))]} are not in {ends}")
        aspen_exec_move(self.e, self._request, 1, word)

    cdef char *_take(self, buf, bint writable, int space, uint64_t nbytes, name) except? NULL:
        cdef _Buffer b = _Buffer(buf, writable)
        if <uint64_t>b.view.len < nbytes:
            raise PlanError(f"{name} has {b.view.len} bytes, the plan needs {nbytes}")
        if <size_t>b.view.buf % ASPEN_LINE:
            raise PlanError(f"{name} does not begin at a multiple of {ASPEN_LINE} bytes")
        self._held.append(b)
        self._buffers[space] = np.frombuffer(buf, np.uint8) if b.view.len else None
        return <char *>b.view.buf

    cdef uint32_t _tile(self, tile) except? 0xffffffff:
        if not 0 <= tile < self.p.view.n_tiles:
            raise IndexError(f"tile {tile} is not in 0 … {self.p.view.n_tiles - 1}")
        return tile

    @property
    def n_tiles(self):
        return self.p.view.n_tiles

    def run_tile(self, tile, again=False):
        cdef uint32_t t = self._tile(tile)
        cdef int error, goes_on = again
        if self.p.ops[self.p.view.tiles[t].op].kernel == ASPEN_K_OPAQUE:
            if self._opaque is None:
                return ASPEN_E_OPAQUE_FAILED
            _, blob, outputs, inputs = _call(self.e, t, self._buffers, 0)
            self._opaque(blob, outputs, inputs)
            return 0
        with nogil:
            error = aspen_exec_tile(self.e, t, goes_on, self.scratch, self.p.scratch_bytes)
        return error

    def run(self, order="fifo", seed=0):
        if order not in ("fifo", "lifo", "random"):
            raise ValueError(f"unknown order {order!r}: expected fifo, lifo or random")
        cdef uint32_t i, child, t
        cdef int error
        rng = np.random.default_rng(seed)
        missing = [self.p.view.parent_counts[i] for i in range(self.p.view.n_tiles)]
        ready = [self.p.view.initial[i] for i in range(self.p.view.n_initial)]
        head = done = 0
        while head < len(ready):
            if order == "fifo":
                t = ready[head]
                head += 1
            else:
                if order == "random":
                    k = int(rng.integers(len(ready)))
                    ready[k], ready[-1] = ready[-1], ready[k]
                t = ready.pop()
            error = self.run_tile(t)
            if error:
                return error
            done += 1
            for i in range(self.p.view.tiles[t].n_children):
                child = self.p.view.children[self.p.view.tiles[t].children + i]
                missing[child] -= 1
                if missing[child] == 0:
                    ready.append(child)
        if done != self.p.view.n_tiles:
            raise PlanError(f"only {done} of {self.p.view.n_tiles} tiles became ready")
        return 0

    def scratch_bytes(self, tile):
        return aspen_tile_scratch(self.e, self._tile(tile))

    def name(self, tile):
        return _op_name(self.p, self._tile(tile))
