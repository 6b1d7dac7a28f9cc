/* From the sums of a block, in registers, to the output: shared by micro-kernels of mm.h and bf16.h. Lines that it reads and writes are
 * listed, so that they can be fetched one by one while the products are summed.
 *
 * halves: a constant, whether the kernel knows outputs and residuals that are stored as bf16. Kernels of f32 say 0, and have no code for
 * that.
 */
#ifndef ASPEN_MM_HOME_H
#define ASPEN_MM_HOME_H
#include "gemm/mm.h"
#include "vector/half_lanes.h"

#define PANEL_VECTORS (ASPEN_NR / VL)
#define LINE (16 / VL) /* vectors of a cache line */
#define AHEAD (16 / LINE) /* lines of output, and as many of residual, that are fetched while the products are summed */

/* t[0 … n) += p[0 … n) at a stride */
static void add_row(float *t, const float *p, int64_t stride, int64_t n) {
  if (stride == 1) {
    int64_t i = 0;
    for (; i + VL <= n; i += VL) vstore(t + i, vload(t + i) + vload(p + i));
    if (i < n) vstore_part(t + i, vload_part(t + i, n - i) + vload_part(p + i, n - i), n - i);
  } else {
    for (int64_t i = 0; i < n; i++) t[i] += p[i * stride];
  }
}

/* The same of values that are stored as bf16; gated: they are multiplied with. */
static void join_halves(float *t, const uint16_t *p, int64_t stride, int64_t n, int gated) {
  for (int64_t i = 0; i < n; i++) {
    const float x = bf16_to_f32(p[i * stride]);
    t[i] = gated ? t[i] * x : t[i] + x;
  }
}

/* t[0 … n) *= p[0 … n) at a stride */
static void multiply_row(float *t, const float *p, int64_t stride, int64_t n) {
  for (int64_t i = 0; i < n; i++) t[i] *= p[i * stride];
}

/* t[i] = t[i] * scale[i] + shift[i] */
static void scale_row(float *t, const float *scale, const float *shift, int64_t n) {
  for (int64_t i = 0; i < n; i += VL)
    vstore_part(t + i, vfma(vload_part(t + i, n - i), vload_part(scale + i, n - i), vload_part(shift + i, n - i)), n - i);
}

/* The residual of row r, n columns from `column` on. */
INLINE void join_residual(const int halves, const mm_job *job, const mm_rows *rows, int r, float *t, int64_t column, int64_t n) {
  const int64_t stride = job->residual_stride, at = column * stride;
  const int gated = job->epilogue.residual_last && job->epilogue.gated;
  if (halves && job->half_residual)
    join_halves(t, (const uint16_t *)rows->residual[r] + at, stride, n, gated);
  else
    (gated ? multiply_row : add_row)(t, rows->residual[r] + at, stride, n);
}

/* n columns of row r from `column` on go home. */
INLINE void store_row(const int halves, const mm_job *job, const mm_rows *rows, int r, const float *t, int64_t column, int64_t n) {
  if (halves && job->half_out) {
    uint16_t *out = (uint16_t *)rows->out[r] + column * job->out_stride;
    for (int64_t i = 0; i < n; i++) out[i * job->out_stride] = bf16_stored(t[i]);
    return;
  }
  float *out = rows->out[r] + column * job->out_stride;
  if (job->out_stride == 1) {
    int64_t i = 0;
    for (; i + VL <= n; i += VL) vstore(out + i, vload(t + i));
    if (i < n) vstore_part(out + i, vload_part(t + i, n - i), n - i);
  } else {
    for (int64_t i = 0; i < n; i++) out[i * job->out_stride] = t[i];
  }
}

/* Epilogue where `direct` does not hold, or the block begins before the box: sums[rows][width], its first column is `column`. */
static __attribute__((noinline)) void finish(const int halves, const mm_job *job, const mm_rows *rows, float *sums, int64_t width,
                                             int64_t column, int64_t first, int64_t last) {
  const epilogue *e = &job->epilogue;
  const int64_t skip = first > column ? first - column : 0;
  const int64_t n = (last < column + width ? last - column : width) - skip;
  column += skip;
  for (int r = 0; r < rows->rows; r++) {
    float *t = sums + r * width + skip;
    if (job->scaled)
      for (int64_t i = 0; i < n; i++) t[i] *= job->alpha;
    if (rows->bias[0]) add_row(t, rows->bias[job->one_bias ? 0 : r] + column * job->bias_stride, job->bias_stride, n);
    if (rows->residual[0] && !e->residual_last) join_residual(halves, job, rows, r, t, column, n);
  }
  FN(act)(e->act, e->a, e->b, sums, sums, rows->rows * width);
  for (int r = 0; r < rows->rows; r++) {
    float *t = sums + r * width + skip;
    if (job->scale) scale_row(t, job->scale + column, job->shift + column, n);
    if (rows->residual[0] && e->residual_last) join_residual(halves, job, rows, r, t, column, n);
    store_row(halves, job, rows, r, t, column, n);
  }
}

/* Vector v of columns of an operand of the epilogue; `left` columns remain, perhaps none. */
INLINE vf columns_of(const float *p, const int whole, int64_t left) { return whole ? vload(p) : left > 0 ? vload_part(p, left) : vzero(); }

/* Vector v of columns of row r of the residual. half: it is stored as bf16. */
INLINE vf residual_of(const int half, const int whole, const mm_rows *rows, int r, int64_t at, int64_t left) {
  if (!half) return columns_of(rows->residual[r] + at, whole, left);
  const uint16_t *p = (const uint16_t *)rows->residual[r] + at;
  return whole ? vload_halves(p) : left > 0 ? vload_halves_part(p, left) : vzero();
}

INLINE void add_residual(const int R, const int V, const int whole, const int half, const mm_rows *rows, vf *sum, int64_t column, int64_t last) {
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) sum[r * V + v] += residual_of(half, whole, rows, r, column + v * VL, last - column - v * VL);
}

INLINE void multiply_residual(const int R, const int V, const int whole, const int half, const mm_rows *rows, vf *sum, int64_t column,
                              int64_t last) {
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) sum[r * V + v] *= residual_of(half, whole, rows, r, column + v * VL, last - column - v * VL);
}

/* The residual, which is added or, at the end, perhaps multiplied with. */
INLINE void residual_joins(const int halves, const int R, const int V, const int whole, const mm_job *job, const mm_rows *rows, vf *sum,
                           int64_t column, int64_t last) {
  const int gated = job->epilogue.residual_last && job->epilogue.gated;
  if (halves && job->half_residual) {
    if (gated) multiply_residual(R, V, whole, 1, rows, sum, column, last);
    else add_residual(R, V, whole, 1, rows, sum, column, last);
  } else if (gated)
    multiply_residual(R, V, whole, 0, rows, sum, column, last);
  else
    add_residual(R, V, whole, 0, rows, sum, column, last);
}

/* alpha, bias and an early residual. whole: every column of the block belongs to the box. Decisions stand outside of loops: a block may be
 * as little as 16 terms deep. */
INLINE void before_act(const int halves, const int R, const int V, const int whole, const mm_job *job, const mm_rows *rows, vf *sum,
                       int64_t column, int64_t last) {
  if (job->scaled) {
    const vf alpha = vset1(job->alpha);
#pragma GCC unroll 64
    for (int i = 0; i < R * V; i++) sum[i] *= alpha;
  }
  if (rows->bias[0] && job->one_bias)
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) {
      const vf bias = columns_of(rows->bias[0] + column + v * VL, whole, last - column - v * VL);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) sum[r * V + v] += bias;
    }
  else if (rows->bias[0])
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) sum[r * V + v] += columns_of(rows->bias[r] + column + v * VL, whole, last - column - v * VL);
  if (rows->residual[0] && !job->epilogue.residual_last) residual_joins(halves, R, V, whole, job, rows, sum, column, last);
}

/* Home, in whole lines or not. */
INLINE void store_sums(const int R, const int V, const int whole, const int past, const mm_rows *rows, const vf *sum, int64_t column, int64_t last) {
  float *out[MM_EVEN_ROWS]; /* read before the first store: a store might change anything, for all the compiler knows */
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) out[r] = rows->out[r] + column;
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int v = 0; v < V; v++)
      if (whole)
        vstore_to(past, out[r] + v * VL, sum[r * V + v]);
      else if (last - column - v * VL > 0)
        vstore_part(out[r] + v * VL, sum[r * V + v], last - column - v * VL);
}

/* The same, rounded. with: by the processor's instruction. */
INLINE void store_halves(const int with, const int R, const int V, const int whole, const mm_rows *rows, const vf *sum, int64_t column,
                         int64_t last) {
  uint16_t *out[MM_EVEN_ROWS];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) out[r] = (uint16_t *)rows->out[r] + column;
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int v = 0; v < V; v++)
      if (whole)
        vstore_halves(with, out[r] + v * VL, sum[r * V + v]);
      else if (last - column - v * VL > 0)
        vstore_halves_part(with, out[r] + v * VL, sum[r * V + v], last - column - v * VL);
}

/* Scale, shift, a late residual, and home. */
INLINE void after_act(const int halves, const int with, const int R, const int V, const int whole, const mm_job *job, const mm_rows *rows,
                      vf *sum, int64_t column, int64_t last) {
  if (job->scale)
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) {
      const int64_t at = column + v * VL, left = last - at;
      const vf scale = columns_of(job->scale + at, whole, left), shift = columns_of(job->shift + at, whole, left);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) sum[r * V + v] = vfma(sum[r * V + v], scale, shift);
    }
  if (rows->residual[0] && job->epilogue.residual_last) residual_joins(halves, R, V, whole, job, rows, sum, column, last);
  if (halves && job->half_out) store_halves(with, R, V, whole, rows, sum, column, last);
  else if (STORES_LINES(V) && whole && stores_begin(job->epilogue.past, rows->out[0] + column)) store_sums(R, V, 1, 1, rows, sum, column, last);
  else store_sums(R, V, whole, 0, rows, sum, column, last);
}

/* Lists the `n` lines that R rows of V vectors go to, over and over, and those of their residual. Without one, the second list is the first
 * from its middle on. Lines that are stored past the caches are not fetched: where there is nothing to fetch, `none` is listed, and for
 * writing these very lists. */
INLINE void lines_to_come(const int halves, const int R, const int V, const int n, const mm_job *job, const mm_rows *rows, int64_t column,
                          const char *none, const char **out, const char **beside) {
  const int across = (V + LINE - 1) / LINE, all = R * across, fetched = job->direct && !job->epilogue.past;
  const int64_t word = sizeof(float), out_item = halves && job->half_out ? 2 : word, beside_item = halves && job->half_residual ? 2 : word;
#pragma GCC unroll 32
  for (int i = 0; i < n; i++) {
    const int r = i / across % R, v = i % across * LINE, later = (i + all / 2) % all;
    const int64_t at = column + v * VL;
    out[i] = fetched ? (const char *)rows->out[r] + at * out_item : (const char *)out;
    beside[i] = job->direct && rows->residual[0] ? (const char *)rows->residual[r] + at * beside_item
                : fetched ? (const char *)rows->out[later / across] + (column + later % across * LINE * VL) * out_item
                          : none;
  }
}

/* The sums of a block, through the epilogue. with: see vstore_halves. */
INLINE void home(const int halves, const int with, const int R, const int V, const mm_job *job, const mm_rows *rows, vf *sum, int64_t column,
                 int64_t first, int64_t last) {
  if (job->direct && first <= column) {
    const int whole = column + V * VL <= last;
    if (whole)
      before_act(halves, R, V, 1, job, rows, sum, column, last);
    else
      before_act(halves, R, V, 0, job, rows, sum, column, last);
    epilogue_act(&job->epilogue, sum, R * V);
    if (whole)
      after_act(halves, with, R, V, 1, job, rows, sum, column, last);
    else
      after_act(halves, with, R, V, 0, job, rows, sum, column, last);
  } else {
    float sums[R * V * VL] __attribute__((aligned(64)));
#pragma GCC unroll 64
    for (int i = 0; i < R * V; i++) vstore(sums + i * VL, sum[i]);
    finish(halves, job, rows, sums, V * VL, column, first, last);
  }
}

#endif
