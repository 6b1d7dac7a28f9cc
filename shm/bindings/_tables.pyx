# cython: language_level=3
"""The shared layout and opcode lists, as Python sees them: made from layout.h, numbers.h and opcodes.h at build time, never written twice."""

cdef extern from *:
    """
    #include "layout.h"
    #include "numbers.h"
    struct aspen_field { const char *name; const char *type; size_t offset; size_t bytes; long count; };
    #define ASPEN_ROW(T, t, n, c) { #n, #t, offsetof(struct T, n), sizeof(((struct T *)0)->n), c },
    #define F(t, n, c) ASPEN_ROW(aspen_plan_header, t, n, c)
    static const struct aspen_field aspen_fields_header[] = { ASPEN_PLAN_HEADER_FIELDS(F) {0} };
    #undef F
    #define F(t, n, c) ASPEN_ROW(aspen_op, t, n, c)
    static const struct aspen_field aspen_fields_op[] = { ASPEN_OP_FIELDS(F) {0} };
    #undef F
    #define F(t, n, c) ASPEN_ROW(aspen_operand, t, n, c)
    static const struct aspen_field aspen_fields_operand[] = { ASPEN_OPERAND_FIELDS(F) {0} };
    #undef F
    #define F(t, n, c) ASPEN_ROW(aspen_tile, t, n, c)
    static const struct aspen_field aspen_fields_tile[] = { ASPEN_TILE_FIELDS(F) {0} };
    #undef F
    #define F(t, n, c) ASPEN_ROW(aspen_value, t, n, c)
    static const struct aspen_field aspen_fields_value[] = { ASPEN_VALUE_FIELDS(F) {0} };
    #undef F
    #define F(t, n, c) ASPEN_ROW(aspen_number, t, n, c)
    static const struct aspen_field aspen_fields_number[] = { ASPEN_NUMBER_FIELDS(F) {0} };
    #undef F
    #define F(t, n, c) ASPEN_ROW(aspen_trace_record, t, n, c)
    static const struct aspen_field aspen_fields_record[] = { ASPEN_TRACE_RECORD_FIELDS(F) {0} };
    #undef F
    #define F(t, n, c) ASPEN_ROW(aspen_trace_ring, t, n, c)
    static const struct aspen_field aspen_fields_ring[] = { ASPEN_TRACE_RING_FIELDS(F) {0} };
    #undef F
    struct aspen_name { const char *name; long code; long a, b, c; const char *s; long d; };
    #define X(n, c, b, s) { #n, c, b, 0, 0, s, 0 },
    static const struct aspen_name aspen_list_dtypes[] = { ASPEN_DTYPES(X) {0} };
    #undef X
    #define X(n, c) { #n, c, 0, 0, 0, "", 0 },
    static const struct aspen_name aspen_list_spaces[] = { ASPEN_SPACES(X) {0} };
    static const struct aspen_name aspen_list_unary[] = { ASPEN_UNARY(X) {0} };
    static const struct aspen_name aspen_list_binary[] = { ASPEN_BINARY(X) {0} };
    static const struct aspen_name aspen_list_ternary[] = { ASPEN_TERNARY(X) {0} };
    static const struct aspen_name aspen_list_reduce[] = { ASPEN_REDUCE(X) {0} };
    static const struct aspen_name aspen_list_pad[] = { ASPEN_PAD_MODES(X) {0} };
    static const struct aspen_name aspen_list_value_kinds[] = { ASPEN_VALUE_KINDS(X) {0} };
    static const struct aspen_name aspen_list_number_tables[] = { ASPEN_NUMBER_TABLES(X) {0} };
    static const struct aspen_name aspen_list_whats[] = { ASPEN_TRACE_WHATS(X) {0} };
    static const struct aspen_name aspen_list_cames[] = { ASPEN_TRACE_CAMES(X) {0} };
    #undef X
    #define X(n) { #n, ASPEN_##n, 0, 0, 0, "", 0 },
    static const struct aspen_name aspen_list_numbers[] = { ASPEN_NUMBERS(X) {0} };
    #undef X
    #define X(n, c, lo, hi, p, o) { #n, c, lo, hi, p, "", o },
    static const struct aspen_name aspen_list_kernels[] = { ASPEN_KERNELS(X) {0} };
    #undef X
    static const unsigned long long aspen_layout_hash = ASPEN_LAYOUT_HASH;
    """
    cdef struct aspen_field:
        const char *name
        const char *type
        size_t offset
        size_t bytes
        long count
    cdef struct aspen_name:
        const char *name
        long code
        long a, b, c
        const char *s
        long d
    const aspen_field aspen_fields_header[]
    const aspen_field aspen_fields_op[]
    const aspen_field aspen_fields_operand[]
    const aspen_field aspen_fields_tile[]
    const aspen_field aspen_fields_value[]
    const aspen_field aspen_fields_number[]
    const aspen_field aspen_fields_record[]
    const aspen_field aspen_fields_ring[]
    const aspen_name aspen_list_dtypes[]
    const aspen_name aspen_list_spaces[]
    const aspen_name aspen_list_kernels[]
    const aspen_name aspen_list_numbers[]
    const aspen_name aspen_list_unary[]
    const aspen_name aspen_list_binary[]
    const aspen_name aspen_list_ternary[]
    const aspen_name aspen_list_reduce[]
    const aspen_name aspen_list_pad[]
    const aspen_name aspen_list_value_kinds[]
    const aspen_name aspen_list_number_tables[]
    const aspen_name aspen_list_whats[]
    const aspen_name aspen_list_cames[]
    const unsigned long long aspen_layout_hash
    enum:
        ASPEN_MAX_WORKERS, ASPEN_LANES, ASPEN_CLASSES, ASPEN_DEPTHS, ASPEN_MAX_PLANS, ASPEN_MAX_INSTANCES, ASPEN_MAX_CLIENTS
        ASPEN_ROLE_CONTROL, ASPEN_ROLE_DOORBELL, ASPEN_ROLE_CLIENT, ASPEN_ROLE_DATA, ASPEN_ROLE_PLAN, ASPEN_ROLE_WEIGHTS, ASPEN_ROLE_ARENA
        ASPEN_ROLE_TRACE, ASPEN_TRACE_SKIPPED, ASPEN_TRACE_CUT
        ASPEN_SLOTS, ASPEN_MAX_WEIGHTS, ASPEN_MAX_OPERANDS, ASPEN_TILE_AXES, ASPEN_RANK, ASPEN_FANOUT


cdef object _fields(const aspen_field *f):
    rows = []
    cdef int i = 0
    while f[i].name != NULL:
        rows.append((f[i].name.decode(), f[i].type.decode(), f[i].offset, f[i].bytes, f[i].count))
        i += 1
    return tuple(rows)


cdef object _codes(const aspen_name *f):
    rows = {}
    cdef int i = 0
    while f[i].name != NULL:
        rows[f[i].name.decode()] = f[i].code
        i += 1
    return rows


cdef object _rows(const aspen_name *f):
    rows = []
    cdef int i = 0
    while f[i].name != NULL:
        rows.append((f[i].name.decode(), f[i].code, f[i].a, f[i].b, f[i].c, f[i].s.decode(), f[i].d))
        i += 1
    return tuple(rows)


FIELDS = {"plan_header": _fields(aspen_fields_header), "op": _fields(aspen_fields_op),
          "operand": _fields(aspen_fields_operand), "tile": _fields(aspen_fields_tile),
          "value": _fields(aspen_fields_value), "number": _fields(aspen_fields_number),
          "trace_record": _fields(aspen_fields_record), "trace_ring": _fields(aspen_fields_ring)}
DTYPE_ROWS = _rows(aspen_list_dtypes)
KERNEL_ROWS = _rows(aspen_list_kernels)
NUMBERS = _codes(aspen_list_numbers)
SPACES = _codes(aspen_list_spaces)
UNARY = _codes(aspen_list_unary)
BINARY = _codes(aspen_list_binary)
TERNARY = _codes(aspen_list_ternary)
REDUCE = _codes(aspen_list_reduce)
PAD_MODES = _codes(aspen_list_pad)
VALUE_KINDS = _codes(aspen_list_value_kinds)
NUMBER_TABLES = _codes(aspen_list_number_tables)
ROLES = {"control": ASPEN_ROLE_CONTROL, "doorbell": ASPEN_ROLE_DOORBELL, "client": ASPEN_ROLE_CLIENT, "data": ASPEN_ROLE_DATA,
         "plan": ASPEN_ROLE_PLAN, "weights": ASPEN_ROLE_WEIGHTS, "arena": ASPEN_ROLE_ARENA, "trace": ASPEN_ROLE_TRACE}
TRACE_WHATS = _codes(aspen_list_whats)
TRACE_CAMES = _codes(aspen_list_cames)
TRACE_SKIPPED = int(ASPEN_TRACE_SKIPPED)
TRACE_CUT = int(ASPEN_TRACE_CUT)
LAYOUT_HASH = int(aspen_layout_hash)
LIMITS = {"workers": ASPEN_MAX_WORKERS, "lanes": ASPEN_LANES, "classes": ASPEN_CLASSES, "depths": ASPEN_DEPTHS, "plans": ASPEN_MAX_PLANS,
          "instances": ASPEN_MAX_INSTANCES, "clients": ASPEN_MAX_CLIENTS, "slots": ASPEN_SLOTS, "weights": ASPEN_MAX_WEIGHTS,
          "operands": ASPEN_MAX_OPERANDS, "tile_axes": ASPEN_TILE_AXES, "rank": ASPEN_RANK, "fanout": ASPEN_FANOUT}
