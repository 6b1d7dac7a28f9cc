/* QGEMM, QMATMUL: products of matrices of bytes, summed exactly; out = act(factor S + bias + residual), also as bytes, or S itself.
 *
 * Loops: panels of ASPEN_NR columns, blocks of rows (int8.h). Rows are read in place where they are unsigned, lie evenly, and are whole
 * groups of four. Else the tile copies its rows to scratch memory first.
 */
#include "bytes/int8.h"

#define SPARE 64 /* bytes behind a copied row where rows would compete for the same sets of L1 */

/* A row of the tile. Pointers are those of column 0. */
typedef struct row_place {
  const uint8_t *a;
  char *out;
  const float *bias, *factor;
  const void *residual;
  uint32_t zero, rest; /* see int8_rows */
} row_place;

INLINE int64_t copied_row(int64_t k) {
  const int64_t bytes = (int8_groups(k) * INT8_GROUP + 63) / 64 * 64;
  return bytes % MM_SET_BYTES ? bytes : bytes + SPARE;
}

#ifdef ISA_PORTABLE
size_t aspen_scratch_qgemm(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *a = &c->args[1];
  size_t rows = 1;
  for (int i = 0; i + 1 < out->rank; i++) rows *= (size_t)(c->hi[i] - c->lo[i]);
  return rows * (sizeof(row_place) + (size_t)copied_row(a->dims[a->rank - 1])) + 64;
}
#endif

/* Rows [row, row + n) of the tile times columns [first, last) of the panel at `column`. */
static void block(const int8_job *job, const row_place *places, int n, const char *panel, int32_t *sums, const char *next, int64_t next_step,
                  int64_t column, int64_t first, int64_t last) {
  int8_rows rows = {.terms = {.rows = n, .taps = 1, .runs = &places->a, .next = next, .next_step = next_step}, .sums = sums};
  for (int r = 0; r < n; r++) {
    const row_place *p = places + r;
    rows.out[r] = p->out, rows.bias[r] = p->bias, rows.residual[r] = p->residual, rows.factor[r] = p->factor;
    rows.zero[r] = p->zero, rows.rest[r] = p->rest;
  }
  FN(int8_block)(job, &rows, panel, column, first, last);
}

int FN(qgemm)(const aspen_call *c) {
  enum { A, OUT, BIAS, RESIDUAL, FACTOR, ZERO, OPERANDS };
  const aspen_arg none = {0};
  const aspen_arg *out = &c->args[0], *a = &c->args[1], *b = &c->args[2], *operands[OPERANDS] = {a, out, &none, &none, &none, &none};
  for (uint32_t i = 2; i < c->n_inputs; i++)
    if (c->args[1 + i].dtype) operands[i] = &c->args[1 + i];
  const int rank = out->rank, n_axis = rank - 1, size = out->dtype == ASPEN_DT_F32 || out->dtype == ASPEN_DT_I32 ? 4 : 1;
  if (rank < 2 || a->rank != rank || b->rank != 4 || b->dtype != ASPEN_DT_I8 || (a->dtype != ASPEN_DT_I8 && a->dtype != ASPEN_DT_U8))
    return ASPEN_KERNEL_BAD_ARGUMENT;
  for (int i = BIAS; i < OPERANDS; i++)
    if (operands[i]->dtype && (operands[i]->rank != rank || (i == ZERO && operands[i]->dtype != a->dtype))) return ASPEN_KERNEL_BAD_ARGUMENT;
  int64_t rows = 1;
  for (int i = 0; i < rank; i++) {
    if (c->lo[i] >= c->hi[i]) return 0;
    if (i < n_axis) rows *= c->hi[i] - c->lo[i];
  }

  const int64_t k = a->dims[n_axis], groups = int8_groups(k), k_stride = a->strides[n_axis], copied = copied_row(k);
  const uint8_t flip = a->dtype == ASPEN_DT_I8 ? 0x80 : 0;
  if (c->scratch_bytes < (size_t)rows * (sizeof(row_place) + (size_t)copied) + 64) return ASPEN_KERNEL_SCRATCH;
  row_place *const places = c->scratch;
  uint8_t *copy = (uint8_t *)c->scratch + ((size_t)rows * sizeof(row_place) + 63) / 64 * 64;
  const aspen_arg *factor = operands[FACTOR], *zero = operands[ZERO], *bias = operands[BIAS], *residual = operands[RESIDUAL];
  int8_job job;
  if (FN(int8_open)(&job, out, bias, residual, factor, n_axis, c->params[0], c->params + 1)) return ASPEN_KERNEL_BAD_ARGUMENT;
  job.groups = groups;

  /* Where each row is. */
  int64_t index[ASPEN_MAX_RANK], at[OPERANDS] = {0};
  for (int i = 0; i < n_axis; i++) {
    index[i] = c->lo[i];
    job.finish.one_bias &= c->hi[i] - c->lo[i] == 1 || !bias->dtype || bias->strides[i] == 0;
    for (int o = 0; o < OPERANDS; o++)
      if (operands[o]->dtype) at[o] += operands[o]->strides[i] * c->lo[i];
  }
  int in_place = flip == 0 && k_stride == 1 && k % INT8_GROUP == 0;
  const uint8_t *const bytes = (const uint8_t *)a->ptr;
  for (int64_t r = 0; r < rows; r++) {
    row_place *p = &places[r];
    *p = (row_place){.a = bytes + at[A], .out = out->ptr + size * at[OUT],
                     .bias = bias->dtype ? (const float *)bias->ptr + at[BIAS] : NULL,
                     .residual = residual->dtype ? residual->ptr + at[RESIDUAL] * (residual->dtype == ASPEN_DT_F32 ? 4 : 1) : NULL,
                     .factor = factor->dtype ? (const float *)factor->ptr + at[FACTOR] : NULL,
                     .zero = (zero->dtype ? (uint8_t)zero->ptr[at[ZERO]] : 0) ^ flip};
    in_place &= r < 2 || p->a - p[-1].a == places[1].a - places[0].a;
    for (int i = n_axis - 1; i >= 0; i--) {
      for (int o = 0; o < OPERANDS; o++)
        if (operands[o]->dtype) at[o] += operands[o]->strides[i];
      if (++index[i] < c->hi[i]) break;
      for (int o = 0; o < OPERANDS; o++)
        if (operands[o]->dtype) at[o] -= operands[o]->strides[i] * (c->hi[i] - c->lo[i]);
      index[i] = c->lo[i];
    }
  }
  job.a_step = rows > 1 ? places[1].a - places[0].a : 0;
  if (in_place && rows > 2 && job.a_step % MM_SET_BYTES == 0 && job.a_step) in_place = 0;
  if (!in_place) job.a_step = copied;
  for (int64_t r = 0; r < rows && (!in_place || job.zeros); r++) {
    row_place *p = &places[r];
    if (!in_place) {
      int8_copy(copy + r * copied, p->a, k_stride, k, flip);
      memset(copy + r * copied + k, 0, (size_t)(groups * INT8_GROUP - k));
      p->a = copy + r * copied;
    }
    if (job.zeros) {
      uint32_t sum = 0;
      for (int64_t i = 0; i < k; i++) sum += p->a[i];
      p->rest = sum - (uint32_t)k * p->zero;
    }
  }

  job.panel = INT8_HEADER + groups * INT8_PANEL_GROUP;
  const int64_t blocks = (rows + job.most - 1) / job.most, n_hi = c->hi[n_axis];
  const int64_t share = blocks > 1 ? job.panel / blocks / 64 * 64 : 0; /* of the next panel, which each block brings nearer */
  int32_t sums[AMX_STRIP * ASPEN_NR] __attribute__((aligned(64))), *made = NULL;
  for (int64_t n = c->lo[n_axis]; n < n_hi;) { /* panels start at multiples of ASPEN_NR, the box need not */
    const int64_t column = n / ASPEN_NR * ASPEN_NR, last = column + ASPEN_NR < n_hi ? column + ASPEN_NR : n_hi;
    const char *panel = b->ptr + column / ASPEN_NR * job.panel;
    for (int64_t i = 0, row = 0; i < blocks; i++) {
      const int64_t end = mm_cut(rows, blocks, i + 1);
      const char *next = blocks > 1 ? panel + job.panel + i * share : NULL;
      const int strip = job.amx ? amx_strip(rows, blocks, i) : 0;
      if (strip) FN(int8_strip)(&job, strip, places[row].a, panel, made = sums);
      block(&job, places + row, (int)(end - row), panel, made, next, share / (groups ? groups : 1), column, n, last);
      if (made) made += (end - row) * ASPEN_NR;
      row = end;
    }
    n = last;
  }
  amx_done(job.amx);
  return 0;
}

/* Calls QGEMM for each index of the leading axes. */
int FN(qmatmul)(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *a = &c->args[1], *b = &c->args[2];
  const int rank = out->rank, leading = rank - 2;
  if (rank < 2 || a->rank != rank || b->rank != rank + 1 || c->n_inputs > 6 || b->dtype != ASPEN_DT_I8) return ASPEN_KERNEL_BAD_ARGUMENT;
  const int64_t groups = ASPEN_BYTES_HEADER + int8_groups(a->dims[rank - 1]), bytes = groups * INT8_PANEL_GROUP, panels = b->dims[leading];
  if (b->dims[rank - 1] != groups || b->dims[rank] != INT8_PANEL_GROUP || b->strides[rank] != 1 || b->strides[rank - 1] != INT8_PANEL_GROUP ||
      (panels > 1 && b->strides[leading] != bytes))
    return ASPEN_KERNEL_BAD_ARGUMENT;
  const int64_t dims[4] = {panels, groups, ASPEN_NR, INT8_GROUP}, strides[4] = {bytes, INT8_PANEL_GROUP, INT8_GROUP, 1};
  aspen_arg args[7];
  aspen_call one = *c;
  one.args = args;
  memcpy(args, c->args, (c->n_inputs + 1) * sizeof *args);
  args[2] = (aspen_arg){.dims = dims, .strides = strides, .dtype = ASPEN_DT_I8, .rank = 4};
  for (int i = 0; i < leading; i++) {
    if (c->lo[i] >= c->hi[i]) return ASPEN_KERNEL_OK;
    one.hi[i] = one.lo[i] + 1;
  }
  for (;;) {
    args[2].ptr = b->ptr;
    for (int i = 0; i < leading; i++) args[2].ptr += one.lo[i] * b->strides[i];
    const int error = FN(qgemm)(&one);
    if (error) return error;
    int i = leading - 1;
    for (; i >= 0; i--) {
      one.lo[i]++, one.hi[i]++;
      if (one.lo[i] < c->hi[i]) break;
      one.lo[i] = c->lo[i], one.hi[i] = c->lo[i] + 1;
    }
    if (i < 0) return ASPEN_KERNEL_OK;
  }
}
