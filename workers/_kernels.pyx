# cython: language_level=3
"""Kernels called one tile at a time from Python: for tests, kernel benchmarks, and small bodies of loops. Else workers call them from C."""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

import numpy as np

from aspen_mp.shm.tables import CODE_BY_NUMPY, KERNEL_BY_CODE, KERNELS, NUMBERS
from aspen_mp.workers import _isa

cdef extern from "kernel.h" nogil:
    enum:
        ASPEN_MAX_RANK, ASPEN_N_KERNELS
    cdef enum aspen_isa:
        pass
    ctypedef struct aspen_arg:
        char *ptr
        const int64_t *dims
        const int64_t *strides
        uint8_t dtype
        uint8_t rank
    ctypedef struct aspen_call:
        const aspen_arg *args
        uint32_t n_inputs
        const int64_t *params
        int64_t lo[8]
        int64_t hi[8]
        void *scratch
        size_t scratch_bytes
        int apart, again, part
    ctypedef int (*aspen_kernel_fn)(const aspen_call *)
    const aspen_kernel_fn *aspen_kernels_for(aspen_isa)
    size_t aspen_kernel_scratch(uint32_t, const aspen_call *)
    double aspen_probe_flops(aspen_isa, int64_t)
    void aspen_probe_read(aspen_isa, const float *, int64_t, int64_t)
    int aspen_probe_flush(const char *, int64_t)

cdef extern from "atomics.h" nogil:
    uint64_t aspen_now_ns()

cnp.import_array()

cdef enum:
    MAX_ARGS = 101
    MAX_PARAMS = 4096

cdef struct Frame:
    aspen_call call
    aspen_arg args[MAX_ARGS]
    int64_t dims[MAX_ARGS][8]
    int64_t strides[MAX_ARGS][8]
    int64_t params[MAX_PARAMS]

cdef int _selected = -1


cdef int _default() except -1:
    global _selected
    if _selected < 0:
        _selected = _isa.find()
    return _selected


def isas():
    return _isa.names()


def select(name=None):
    global _selected
    _selected = _isa.find(name)
    return selected()


def selected():
    return _isa.name_of(_default())


def kernels(isa=None):
    cdef int which = _default() if isa is None else _isa.find(isa)
    return [KERNEL_BY_CODE[i].name for i in range(ASPEN_N_KERNELS) if aspen_kernels_for(<aspen_isa>which)[i] != NULL]


cdef int _outputs(row, params) except -1:
    """How many outputs a call has: as many as the kernel, or as the steps of its program."""
    if row.n_outputs != NUMBERS["ANY_OUTPUTS"]:
        return max(row.n_outputs, 1)
    return max(sum([made >= 0 for made in params[1 + NUMBERS["STACK_OUTPUT"]::NUMBERS["STACK_WORDS"]]]), 1)


cdef object _fill(Frame *f, kernel, args, params, lo, hi):
    """Fill a frame; returns the kernel's row of the table."""
    if kernel not in KERNELS:
        raise ValueError(f"unknown kernel {kernel!r}")
    row = KERNELS[kernel]
    cdef int outputs = _outputs(row, params)
    if not row.min_inputs <= len(args) - outputs <= row.max_inputs or len(args) > MAX_ARGS:
        raise ValueError(f"{kernel}: {len(args) - outputs} inputs, expected {row.min_inputs} to {row.max_inputs}")
    if row.n_params not in (len(params), NUMBERS["ANY_PARAMS"]) or len(params) > MAX_PARAMS:
        raise ValueError(f"{kernel}: {len(params)} parameters, expected {row.n_params}")
    if args[0] is None or len(lo) != args[0].ndim or len(hi) != args[0].ndim:
        raise ValueError(f"{kernel}: the box needs one bound for each axis of the output")
    memset(f, 0, sizeof(Frame))
    cdef int i, k
    cdef double d
    cdef size_t address
    for i in range(len(args)):
        a = args[i]
        f.args[i].dims = f.dims[i]
        f.args[i].strides = f.strides[i]
        if a is None:
            continue
        if a.ndim > ASPEN_MAX_RANK:
            raise ValueError(f"{kernel}: an argument has {a.ndim} axes, at most {ASPEN_MAX_RANK} are possible")
        if a.dtype not in CODE_BY_NUMPY:
            raise ValueError(f"{kernel}: no kernel works on dtype {a.dtype}")
        if any(s % a.itemsize for s in a.strides):
            raise ValueError(f"{kernel}: strides {a.strides} are no multiples of the item size {a.itemsize}")
        if i < outputs and not a.flags.writeable:
            raise ValueError(f"{kernel}: the output is read-only")
        address = a.__array_interface__["data"][0]
        f.args[i].ptr = <char *>address
        f.args[i].dtype = CODE_BY_NUMPY[a.dtype]
        f.args[i].rank = a.ndim
        for k in range(a.ndim):
            f.dims[i][k] = a.shape[k]
            f.strides[i][k] = a.strides[k] // a.itemsize
    for i in range(len(params)):
        if isinstance(params[i], float):
            d = params[i]
            memcpy(&f.params[i], &d, sizeof(double))
        else:
            f.params[i] = int(params[i])
    for k in range(args[0].ndim):
        if not 0 <= lo[k] <= hi[k] <= args[0].shape[k]:
            raise ValueError(f"{kernel}: box [{lo[k]}, {hi[k]}) leaves axis {k} of length {args[0].shape[k]}")
        f.call.lo[k] = lo[k]
        f.call.hi[k] = hi[k]
    f.call.args = f.args
    f.call.n_inputs = len(args) - outputs
    f.call.params = f.params
    return row


def scratch(kernel, args, params, lo, hi):
    cdef Frame f
    row = _fill(&f, kernel, args, params, lo, hi)
    return aspen_kernel_scratch(row.code, &f.call)


cdef char *_scratch(Frame *f, size_t nbytes, kernel) except? NULL:
    """Gives a call scratch memory, which the caller frees; NULL where it needs none."""
    if not nbytes:
        return NULL
    cdef char *memory = <char *>malloc(nbytes + 64)
    if memory == NULL:
        raise MemoryError(f"{kernel}: {nbytes} bytes of scratch")
    f.call.scratch = memory + (64 - <size_t>memory % 64) % 64
    f.call.scratch_bytes = nbytes
    return memory


def call(kernel, args, params, lo, hi, isa=None, scratch_bytes=None, apart=False, part=False):
    cdef Frame f
    cdef int which = _default() if isa is None else _isa.find(isa)
    row = _fill(&f, kernel, args, params, lo, hi)
    cdef aspen_kernel_fn fn = aspen_kernels_for(<aspen_isa>which)[<int>row.code]
    if fn == NULL:
        raise ValueError(f"{kernel} is not a kernel that can be called")
    cdef char *memory = _scratch(&f, aspen_kernel_scratch(row.code, &f.call) if scratch_bytes is None else scratch_bytes, kernel)
    cdef int error
    f.call.apart = bool(apart)
    f.call.part = bool(part)
    with nogil:
        error = fn(&f.call)
    free(memory)
    return error


def time_tiles(kernel, args, params, const int64_t[:, :, ::1] boxes, rounds=1, isa=None):
    cdef Frame f
    cdef int which = _default() if isa is None else _isa.find(isa)
    cdef int rank = args[0].ndim, error = 0, axis
    cdef Py_ssize_t i, n = boxes.shape[0]
    cdef int64_t r, turns = rounds
    cdef uint64_t begin, spent = 0
    cdef size_t nbytes = 0
    cdef char *memory
    row = None
    for i in range(n):
        row = _fill(&f, kernel, args, params, list(boxes[i, 0]), list(boxes[i, 1]))
        nbytes = max(nbytes, aspen_kernel_scratch(row.code, &f.call))
    if row is None:
        raise ValueError("no tiles")
    cdef aspen_kernel_fn fn = aspen_kernels_for(<aspen_isa>which)[<int>row.code]
    if fn == NULL:
        raise ValueError(f"{kernel} is not a kernel that can be called")
    memory = _scratch(&f, nbytes, kernel)
    with nogil:
        begin = aspen_now_ns()
        for r in range(turns):
            for i in range(n):
                for axis in range(rank):
                    f.call.lo[axis] = boxes[i, 0, axis]
                    f.call.hi[axis] = boxes[i, 1, axis]
                f.call.again = i > 0
                error = error | fn(&f.call)
        spent = aspen_now_ns() - begin
    free(memory)
    if error:
        raise RuntimeError(f"{kernel}: error {error}")
    return spent


def peak(turns, isa=None):
    cdef int which = _default() if isa is None else _isa.find(isa)
    cdef int64_t n = turns
    cdef double flops
    cdef uint64_t begin
    with nogil:
        begin = aspen_now_ns()
        flops = aspen_probe_flops(<aspen_isa>which, n)
        begin = aspen_now_ns() - begin
    return flops / max(begin, <uint64_t>1)


def read_rate(const float[::1] data, rounds, isa=None):
    cdef int which = _default() if isa is None else _isa.find(isa)
    cdef int64_t turns = rounds
    cdef uint64_t begin
    with nogil:
        begin = aspen_now_ns()
        aspen_probe_read(<aspen_isa>which, &data[0], data.shape[0], turns)
        begin = aspen_now_ns() - begin
    return 4.0 * data.shape[0] * turns / max(begin, <uint64_t>1)


def flush(const uint8_t[::1] data):
    cdef int done
    with nogil:
        done = aspen_probe_flush(<const char *>&data[0], data.shape[0]) if data.shape[0] else 1
    return done != 0


cdef class Bound:
    cdef Frame f
    cdef aspen_kernel_fn fn
    cdef char *memory
    cdef int n_inputs, rank, out_type
    cdef cnp.npy_intp out_dims[8]
    cdef cnp.npy_intp dims[MAX_ARGS][8]
    cdef cnp.npy_intp strides[MAX_ARGS][8]
    cdef int ranks[MAX_ARGS]
    cdef int types[MAX_ARGS]
    cdef object rest

    def __init__(self, kernel, out, inputs, seen, params, rest):
        cdef int i, k
        cdef size_t nbytes
        shape = out.shape or (1,)
        row = _fill(&self.f, kernel, [out.reshape(shape), *seen], params, [0] * len(shape), shape)
        self.fn = aspen_kernels_for(<aspen_isa>_default())[<int>row.code]
        if self.fn == NULL:
            raise ValueError(f"{kernel} is not a kernel that can be called")
        nbytes = aspen_kernel_scratch(row.code, &self.f.call)
        self.memory = <char *>malloc(nbytes + 64)
        if self.memory == NULL:
            raise MemoryError(f"{kernel}: {nbytes} bytes of scratch")
        self.f.call.scratch = self.memory + (64 - <size_t>self.memory % 64) % 64
        self.f.call.scratch_bytes = nbytes
        self.n_inputs, self.rank, self.out_type, self.rest = len(inputs), out.ndim, out.dtype.num, rest
        for k in range(out.ndim):
            self.out_dims[k] = out.shape[k]
        for i in range(self.n_inputs):
            x = inputs[i]
            self.ranks[i], self.types[i] = x.ndim, x.dtype.num
            for k in range(x.ndim):
                self.dims[i][k], self.strides[i][k] = x.shape[k], x.strides[k]

    def __dealloc__(self):
        free(self.memory)

    def __call__(self, *arrays):
        cdef cnp.ndarray x, out
        cdef int i, k
        if len(arrays) != self.n_inputs:
            return self.rest(*arrays)
        for i in range(self.n_inputs):
            if type(arrays[i]) is not np.ndarray:
                return self.rest(*arrays)
            x = <cnp.ndarray>arrays[i]
            if (cnp.PyArray_TYPE(x) != self.types[i] or cnp.PyArray_NDIM(x) != self.ranks[i]
                    or not cnp.PyArray_ISALIGNED(x) or cnp.PyArray_ISBYTESWAPPED(x)):
                return self.rest(*arrays)
            for k in range(self.ranks[i]):
                if cnp.PyArray_DIM(x, k) != self.dims[i][k] or cnp.PyArray_STRIDE(x, k) != self.strides[i][k]:
                    return self.rest(*arrays)
            self.f.args[1 + i].ptr = <char *>cnp.PyArray_DATA(x)
        out = cnp.PyArray_SimpleNew(self.rank, self.out_dims, self.out_type)
        self.f.args[0].ptr = <char *>cnp.PyArray_DATA(out)
        if self.fn(&self.f.call):
            return self.rest(*arrays)
        return out
