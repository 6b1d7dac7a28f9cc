/* GEMM: out[…, M, N] = act(alpha A[…, M, K] B[…, K, N] + bias + residual).
 *
 * Loops: leading axes that B depends on; panels of ASPEN_NR columns; blocks of rows. So a panel of weights is read from memory once a tile
 * and then stays in L2. Leading axes that B does not depend on count as rows. A is read in place whatever its
 * strides: a block walks few rows at once and needs no packing. A raw B is copied panel by panel into scratch, or read in place where
 * rows are too few to pay for the copy. With left factors, strassen.c.
 *
 * A few columns of many rows: narrow.h.
 *
 * QNBITGEMM: the same with weights of a few bits (low_bit.h), in the same loops. For few rows they become floats in registers, as they come
 * from memory; for more, panel by panel in scratch.
 */
#include "gemm/narrow.h"
#include "gemm/low_bit.h"

#define IN_PLACE_ROWS (2 * MM_ROWS) /* up to here a raw B with unit column stride is read in place */

#ifdef ISA_PORTABLE
size_t aspen_scratch_gemm(const aspen_call *c) {
  const aspen_arg *a = &c->args[1];
  if (c->n_inputs > 6 && c->args[7].dtype) return aspen_scratch_strassen(a->dims[a->rank - 1], 0);
  return c->params[0] ? 0 : (size_t)a->dims[a->rank - 1] * ASPEN_NR * sizeof(float);
}
size_t aspen_scratch_qnbitgemm(const aspen_call *c) {
  const aspen_arg *a = &c->args[1];
  if (c->n_inputs > 6 && c->args[7].dtype) return aspen_scratch_strassen(a->dims[a->rank - 1], 1);
  return (size_t)a->dims[a->rank - 1] * ASPEN_NR * sizeof(float);
}
#endif

/* The rows of a tile: a mixed-radix counter over the row axes, innermost last, with the offset of each operand in elements. */
enum { ROW_A, ROW_OUT, ROW_BIAS, ROW_RESIDUAL, ROW_OPERANDS };
typedef struct row_walk {
  int axes;
  int64_t extent[ASPEN_MAX_RANK], index[ASPEN_MAX_RANK], stride[ROW_OPERANDS][ASPEN_MAX_RANK], at[ROW_OPERANDS];
} row_walk;

INLINE void row_next(row_walk *w) {
  for (int i = w->axes - 1; i >= 0; i--) {
    for (int o = 0; o < ROW_OPERANDS; o++) w->at[o] += w->stride[o][i];
    if (++w->index[i] < w->extent[i]) return;
    for (int o = 0; o < ROW_OPERANDS; o++) w->at[o] -= w->stride[o][i] * w->extent[i];
    w->index[i] = 0;
  }
}

/* Fewer axes for the same rows: those of one row go, those that lie one behind the other for every operand become one. */
static void merge_axes(row_walk *w) {
  int kept = 0;
  for (int i = 0; i < w->axes; i++) {
    if (w->extent[i] == 1) continue;
    int joins = kept > 0;
    for (int o = 0; o < ROW_OPERANDS && joins; o++) joins = w->stride[o][kept - 1] == w->stride[o][i] * w->extent[i];
    if (joins) w->extent[kept - 1] *= w->extent[i];
    else w->extent[kept++] = w->extent[i];
    for (int o = 0; o < ROW_OPERANDS; o++) w->stride[o][kept - 1] = w->stride[o][i];
  }
  w->axes = kept;
}

/* The pointers of the next `block->rows` rows. Most often all rows of a tile are equally far apart: then nothing is counted, because a
 * block of few terms would wait for it. */
INLINE void next_rows(row_walk *walk, const float *const base[ROW_OPERANDS], int64_t first, const float **a, mm_rows *block) {
  if (walk->axes <= 1) {
    int64_t step[ROW_OPERANDS], at[ROW_OPERANDS];
    for (int o = 0; o < ROW_OPERANDS; o++) step[o] = walk->axes ? walk->stride[o][0] : 0, at[o] = first * step[o];
    for (int r = 0; r < block->rows; r++) {
      a[r] = base[ROW_A] + at[ROW_A] + r * step[ROW_A];
      block->out[r] = (float *)base[ROW_OUT] + at[ROW_OUT] + r * step[ROW_OUT];
    }
    if (base[ROW_BIAS])
      for (int r = 0; r < block->rows; r++) block->bias[r] = base[ROW_BIAS] + at[ROW_BIAS] + r * step[ROW_BIAS];
    if (base[ROW_RESIDUAL])
      for (int r = 0; r < block->rows; r++) block->residual[r] = base[ROW_RESIDUAL] + at[ROW_RESIDUAL] + r * step[ROW_RESIDUAL];
    return;
  }
  for (int r = 0; r < block->rows; r++, row_next(walk)) {
    a[r] = base[ROW_A] + walk->at[ROW_A];
    block->out[r] = (float *)base[ROW_OUT] + walk->at[ROW_OUT];
    if (base[ROW_BIAS]) block->bias[r] = base[ROW_BIAS] + walk->at[ROW_BIAS];
    if (base[ROW_RESIDUAL]) block->residual[r] = base[ROW_RESIDUAL] + walk->at[ROW_RESIDUAL];
  }
}

/* Columns [first, last) of rows that lie evenly, if they are few enough. Returns whether they were. */
static int few_columns(const mm_job *job, const row_walk *walk, int64_t rows, const float *const base[ROW_OPERANDS], const float *b,
                       int64_t column, int64_t first, int64_t last) {
  const int64_t a_step = walk->axes == 1 ? walk->stride[ROW_A][0] : 0, out_step = walk->axes == 1 ? walk->stride[ROW_OUT][0] : 0;
  if (!narrow(job, rows, a_step, base[ROW_RESIDUAL], last - first)) return 0;
  const float *const bias = base[ROW_BIAS] ? base[ROW_BIAS] + first : NULL;
  const float *const scale = job->scale ? job->scale + first : NULL, *const shift = job->scale ? job->shift + first : NULL;
  float *const out = (float *)base[ROW_OUT] + first;
  b += first - column;
  switch (last - first) {
#define COLUMNS(N) \
  case N: narrow_columns(N, job, rows, base[ROW_A], a_step, b, bias, scale, shift, out, out_step); break;
    COLUMNS(1) COLUMNS(2) COLUMNS(3) COLUMNS(4) COLUMNS(5) COLUMNS(6) COLUMNS(7) COLUMNS(8)
#undef COLUMNS
  default: break;
  }
  return 1;
}

/* All blocks of rows times columns [first, last), which start at panel column `column` in b. The walk ends where it began. follows: the
 * panel that comes next lies behind this one. streamed: all of B comes from memory. */
static void all_rows(const mm_job *job, row_walk *walk, int64_t rows, const float *const base[ROW_OPERANDS], const float *b, int follows,
                     int streamed, int64_t column, int64_t first, int64_t last) {
  if (few_columns(job, walk, rows, base, b, column, first, last)) return;
  const int64_t a_step = walk->axes == 1 ? walk->stride[ROW_A][0] : 0;
  const int even = a_step && job->a_stride == 1 && job->b_stride == ASPEN_NR;
  const int64_t blocks = even ? mm_even_blocks(rows, a_step) : mm_blocks(rows);
  /* While the blocks of rows pass over a panel, the next one comes from memory, a share with each block. */
  const char *next = (const char *)(b + (last - column + ASPEN_NR - 1) / ASPEN_NR * job->b_panel);
  const int64_t step = ((int64_t)sizeof(float) * ASPEN_NR + blocks - 1) / blocks; /* rounded up: what is left out would be waited for */
  const float *a[MM_EVEN_ROWS];
  mm_rows block = {.taps = 1, .a = a, .a_step = a_step, .next_step = step, .stream = streamed && blocks == 1};
  for (int64_t i = 0, row = 0; i < blocks; i++, row += block.rows) {
    block.rows = (int)(mm_cut(rows, blocks, i + 1) - row);
    block.next = follows && blocks > 1 ? next + i * step * job->k : NULL;
    next_rows(walk, base, row, a, &block);
    FN(mm_block)(job, &block, b, column, first, last);
  }
}

/* A call without its B. `params` begin with f64 alpha, ACT(3), residual_last. */
typedef struct product {
  const aspen_arg *operands[ROW_OPERANDS];
  int first_row_axis; /* of the leading axes those before it are batches of B; the others are rows */
  int64_t rows;
  row_walk walk;
  mm_job job;
} product;

static const aspen_arg absent;

/* Fills in all fields. B has no axes from `first_row_axis` on but its last two, or only axes of extent 1 or stride 0. */
static int open_product(product *p, const aspen_call *c, const int64_t *params, int first_row_axis) {
  const aspen_arg *out = &c->args[0], *a = &c->args[1];
  const aspen_arg *bias = c->n_inputs > 2 && c->args[3].dtype ? &c->args[3] : &absent;
  const aspen_arg *residual = c->n_inputs > 3 && c->args[4].dtype ? &c->args[4] : &absent;
  const int rank = out->rank, m_axis = rank - 2, n_axis = rank - 1;
  if ((bias->dtype && bias->rank != rank) || (residual->dtype && residual->rank != rank)) return ASPEN_KERNEL_BAD_ARGUMENT;
  const int64_t k_end = a->dims[n_axis];
  double alpha;
  memcpy(&alpha, params, sizeof alpha);
  mm_job *job = &p->job;
  *job = (mm_job){.k = k_end, .a_stride = a->strides[n_axis], .b_stride = ASPEN_NR, .b_panel = k_end * ASPEN_NR,
                  .out_stride = out->strides[n_axis], .bias_stride = bias->dtype ? bias->strides[n_axis] : 1,
                  .residual_stride = residual->dtype ? residual->strides[n_axis] : 1, .alpha = (float)alpha, .one_bias = 1};
  job->scaled = job->alpha != 1.0f;
  if (epilogue_scale(c, 4, out->dims[n_axis], &job->scale, &job->shift)) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (FN(mm_prepare)(job, params + 1)) return ASPEN_KERNEL_BAD_ARGUMENT;
  job->epilogue.past = (uint8_t)stores_past(c, n_axis);

  p->operands[ROW_A] = a, p->operands[ROW_OUT] = out, p->operands[ROW_BIAS] = bias, p->operands[ROW_RESIDUAL] = residual;
  p->first_row_axis = first_row_axis;
  p->rows = 1;
  row_walk *walk = &p->walk;
  *walk = (row_walk){.axes = m_axis + 1 - first_row_axis};
  for (int i = 0; i < walk->axes; i++) {
    const int axis = first_row_axis + i;
    walk->extent[i] = c->hi[axis] - c->lo[axis];
    p->rows *= walk->extent[i];
    job->one_bias &= walk->extent[i] == 1 || !bias->dtype || bias->strides[axis] == 0;
    for (int o = 0; o < ROW_OPERANDS; o++) walk->stride[o][i] = p->operands[o]->dtype ? p->operands[o]->strides[axis] : 0;
  }
  merge_axes(walk);
  return 0;
}

/* Where the first row of a batch begins. */
static void base_of(const product *p, const aspen_call *c, const int64_t *batch, const float *base[ROW_OPERANDS]) {
  for (int o = 0; o < ROW_OPERANDS; o++) {
    const float *at = (const float *)p->operands[o]->ptr;
    for (int i = 0; at && i < c->args[0].rank - 1; i++)
      at += p->operands[o]->strides[i] * (c->lo[i] + (i < p->first_row_axis ? batch[i] : 0));
    base[o] = at;
  }
}

static int is_empty(const aspen_call *c) {
  for (int i = 0; i < c->args[0].rank; i++)
    if (c->lo[i] >= c->hi[i]) return 1;
  return 0;
}

static int gemm(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *a = &c->args[1], *b = &c->args[2];
  const int rank = out->rank, m_axis = rank - 2, n_axis = rank - 1;
  const int packed = c->params[0] != 0;
  if (rank < 2 || a->rank != rank || b->rank != (packed ? 3 : rank)) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (out->dtype != ASPEN_DT_F32 || a->dtype != ASPEN_DT_F32 || b->dtype != ASPEN_DT_F32) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (is_empty(c)) return 0;

  /* Trailing leading axes that B does not depend on are rows. */
  int first_row_axis = m_axis;
  while (first_row_axis > 0 && (packed || b->strides[first_row_axis - 1] == 0)) first_row_axis--;
  product p;
  if (open_product(&p, c, c->params + 1, first_row_axis)) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (c->n_inputs > 6 && c->args[7].dtype && out->dims[m_axis] >= c->params[6])
    return packed ? FN(mm_strassen)(c, &p.job, NULL) : ASPEN_KERNEL_BAD_ARGUMENT;
  const int64_t k_end = p.job.k, rows = p.rows;
  if (!packed && c->scratch_bytes < (size_t)k_end * ASPEN_NR * sizeof(float)) return ASPEN_KERNEL_SCRATCH;

  const int panels = mm_panels(rows < MM_ROWS ? rows : MM_ROWS);
  const int64_t n_lo = c->lo[n_axis], n_hi = c->hi[n_axis];
  int64_t batch[ASPEN_MAX_RANK] = {0};
  for (;;) {
    const float *base[ROW_OPERANDS], *bp = (const float *)b->ptr;
    base_of(&p, c, batch, base);
    if (packed) {
      for (int64_t n = n_lo; n < n_hi;) { /* panels start at multiples of ASPEN_NR, the box need not */
        const int64_t column = n / ASPEN_NR * ASPEN_NR, end = column + panels * ASPEN_NR, last = end < n_hi ? end : n_hi;
        all_rows(&p.job, &p.walk, rows, base, bp + column / ASPEN_NR * p.job.b_panel, 1, c->params[0] == 2, column, n, last);
        n = last;
      }
    } else {
      const int64_t k_stride = b->strides[m_axis], n_stride = b->strides[n_axis];
      for (int i = 0; i < first_row_axis; i++) bp += b->strides[i] * (c->lo[i] + batch[i]);
      int64_t n = n_lo;
      if (n_stride == 1 && rows <= IN_PLACE_ROWS) {
        p.job.b_stride = k_stride;
        p.job.b_panel = ASPEN_NR;
        for (; n + ASPEN_NR <= n_hi;) {
          int64_t last = n + panels * ASPEN_NR;
          if (last > n_hi) last = n + (n_hi - n) / ASPEN_NR * ASPEN_NR; /* whole panels only: nothing beyond B may be read */
          all_rows(&p.job, &p.walk, rows, base, bp + n, 0, 0, n, n, last);
          n = last;
        }
        p.job.b_stride = ASPEN_NR;
      }
      for (; n < n_hi; n += ASPEN_NR) {
        const int64_t last = n + ASPEN_NR < n_hi ? n + ASPEN_NR : n_hi;
        FN(mm_pack)(c->scratch, bp + n * n_stride, k_stride, n_stride, k_end, last - n);
        all_rows(&p.job, &p.walk, rows, base, c->scratch, 0, 0, n, n, last);
      }
    }
    int axis = first_row_axis - 1;
    for (; axis >= 0; axis--) {
      if (++batch[axis] < c->hi[axis] - c->lo[axis]) break;
      batch[axis] = 0;
    }
    if (axis < 0) return 0;
  }
}

int FN(gemm)(const aspen_call *c) {
  const int error = gemm(c);
  stores_done(c);
  return error;
}

/* Few rows times columns [n_lo, n_hi) of weights of a few bits. Rows whose terms are not contiguous are copied to `copy` first. */
static void few_rows(product *p, const nbits *w, const char *weights, const float *const base[ROW_OPERANDS], int64_t n_lo, int64_t n_hi,
                     float *copy) {
  float sums[NBITS_MOST * ASPEN_NR] __attribute__((aligned(64)));
  const float *a[MM_EVEN_ROWS];
  const int64_t blocks = (p->rows + NBITS_ROWS - 1) / NBITS_ROWS, stride = p->job.a_stride;
  const int most = nbits_panels(w, p->rows);
  mm_rows block = {.taps = 1, .a = a};
  for (int64_t n = n_lo; n < n_hi;) {
    const int64_t first = n / ASPEN_NR * ASPEN_NR, left = (n_hi - first + ASPEN_NR - 1) / ASPEN_NR, panels = left < most ? left : most;
    for (int64_t i = 0, row = 0; i < blocks; i++, row += block.rows) {
      block.rows = (int)(mm_cut(p->rows, blocks, i + 1) - row);
      next_rows(&p->walk, base, row, a, &block);
      for (int r = 0; r < block.rows && stride != 1; r++) {
        float *to = copy + (row + r) * w->k;
        for (int64_t k = 0; k < w->k && n == n_lo; k++) to[k] = a[r][k * stride];
        a[r] = to;
      }
      FN(nbits_few)(w, block.rows, a, weights + first / ASPEN_NR * w->panel, (int)panels, sums);
      for (int k = 0; k < panels; k++) {
        const int64_t column = first + k * ASPEN_NR, last = column + ASPEN_NR < n_hi ? column + ASPEN_NR : n_hi;
        FN(mm_finish)(&p->job, &block, sums + k * block.rows * ASPEN_NR, column, column < n ? n : column, last);
      }
    }
    n = first + panels * ASPEN_NR;
  }
}

_Static_assert(NBITS_FEW <= ASPEN_NR, "copies of rows fit the scratch memory of a panel");

static int qnbitgemm(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *a = &c->args[1], *b = &c->args[2];
  const int rank = out->rank, n_axis = rank - 1;
  if (rank < 2 || a->rank != rank || out->dtype != ASPEN_DT_F32 || a->dtype != ASPEN_DT_F32) return ASPEN_KERNEL_BAD_ARGUMENT;
  nbits w;
  product p;
  if (FN(nbits_open)(&w, c->params + 5, a->dims[n_axis], b, out->dims[n_axis])) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (is_empty(c)) return 0;
  if (open_product(&p, c, c->params, 0)) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (c->n_inputs > 6 && c->args[7].dtype) return w.bits == 16 ? FN(mm_strassen)(c, &p.job, &w) : ASPEN_KERNEL_BAD_ARGUMENT;
  const float *base[ROW_OPERANDS];
  const int64_t none[ASPEN_MAX_RANK] = {0}, n_hi = c->hi[n_axis];
  base_of(&p, c, none, base);
  if (c->scratch_bytes < (size_t)w.k * ASPEN_NR * sizeof(float)) return ASPEN_KERNEL_SCRATCH;
  if (p.rows <= NBITS_FEW) {
    few_rows(&p, &w, b->ptr, base, c->lo[n_axis], n_hi, c->scratch);
    return 0;
  }
  for (int64_t n = c->lo[n_axis]; n < n_hi;) {
    const int64_t column = n / ASPEN_NR * ASPEN_NR, last = column + ASPEN_NR < n_hi ? column + ASPEN_NR : n_hi;
    FN(nbits_unpack)(&w, b->ptr + column / ASPEN_NR * w.panel, c->scratch);
    all_rows(&p.job, &p.walk, p.rows, base, c->scratch, 0, 0, column, n, last);
    n = last;
  }
  return 0;
}

int FN(qnbitgemm)(const aspen_call *c) {
  const int error = qnbitgemm(c);
  stores_done(c);
  return error;
}
