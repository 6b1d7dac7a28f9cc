/* Micro-kernels of products of bytes, and the steps after their sums: see int8.h. */
#include "bytes/int8.h"
#include "bytes/byte_levels.h"

#define SUMS 32              /* vectors of sums in a micro-kernel, at most */
#define AHEAD 4096           /* bytes of a panel that are fetched ahead of the reading */

/* Most rows of a block, with the instruction and without it: their sums stay in registers. */
#if VL == 16
#define ROWS_WITH MM_EVEN_ROWS
#define ROWS_WITHOUT 10
#elif VL == 8
#define ROWS_WITH 6
#define ROWS_WITHOUT 4
#else
#define ROWS_WITH 0
#define ROWS_WITHOUT 4
#endif
#define LARGEST_SCALE 1e30f /* within this and its reciprocal quotients are found by multiplication */


INLINE vi less(vi a, vi b, vi c) { return (vi)((vu)a - (vu)b * (vu)c); } /* a - b * c */

/* A group of terms of R rows, three to a pointer (more pointers find no registers), times V vectors of columns. with: the instruction is
 * there. */
INLINE void group(const int R, const int V, const int with, const uint8_t *const *base, int64_t step, int64_t at, const int8_t *b, vi *sum) {
  const vi w[VECTORS] = {viload((const int32_t *)b), V > 1 ? viload((const int32_t *)b + VL) : viset1(0)};
  const halves both[VECTORS] = {signed_halves(w[0]), signed_halves(w[1])};
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) {
    int32_t four;
    memcpy(&four, base[r / 3] + (r % 3) * step + at, sizeof four);
    const vi x = viset1(four);
    if (with) {
#pragma GCC unroll 2
      for (int v = 0; v < V; v++) sum[r * V + v] = dots(sum[r * V + v], x, w[v]);
    } else {
      const halves y = unsigned_halves(x);
#pragma GCC unroll 2
      for (int v = 0; v < V; v++) sum[r * V + v] = pairs(pairs(sum[r * V + v], y.even, both[v].even), y.odd, both[v].odd);
    }
  }
}

/* The rows of a block times V vectors of columns: sums[R][ASPEN_NR]. S: the groups of terms that have sums of their own, where rows are too
 * few to keep the multipliers busy. */
INLINE void multiply(const int R, const int V, const int S, const int with, const int8_job *job, const int8_terms *terms, const int8_t *b,
                     int32_t *sums) {
  vi sum[SUMS];
#pragma GCC unroll 64
  for (int i = 0; i < S * R * V; i++) sum[i] = (vi)vzero();
  const int64_t step = job->a_step, groups = job->groups, next_step = terms->next ? terms->next_step : INT8_PANEL_GROUP;
  const char *next = terms->next ? terms->next : (const char *)b + AHEAD;
  for (int t = 0; t < terms->taps; t++) {
    const uint8_t *base[(MM_MAX_ROWS + 2) / 3];
#pragma GCC unroll 8
    for (int r = 0; r < R; r += 3) base[r / 3] = terms->runs[t] + r * step;
    int64_t g = 0;
    for (; g + S <= groups; g += S)
#pragma GCC unroll 4
      for (int s = 0; s < S; s++, b += INT8_PANEL_GROUP, next += next_step) {
        __builtin_prefetch(next, 0, 2);
        if (S > 1) __builtin_prefetch(next + next_step / 2, 0, 2);
        group(R, V, with, base, step, (g + s) * INT8_GROUP, b, sum + s * R * V);
      }
    if (S > 1)
      for (; g < groups; g++, b += INT8_PANEL_GROUP, next += next_step) group(R, V, with, base, step, g * INT8_GROUP, b, sum);
  }
#pragma GCC unroll 4
  for (int s = 1; s < S; s++)
#pragma GCC unroll 32
    for (int i = 0; i < R * V; i++) sum[i] = plus(sum[i], sum[s * R * V + i]);
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 2
    for (int v = 0; v < V; v++) vistore(sums + r * ASPEN_NR + v * VL, sum[r * V + v]);
}

typedef void multiply_fn(const int8_job *, const int8_terms *, const int8_t *, int32_t *);
#define MULTIPLY(R, V, S, WITH)                                                                                                    \
  static void multiply_##WITH##_##V##_##R(const int8_job *job, const int8_terms *terms, const int8_t *b, int32_t *sums) {          \
    multiply(R, V, S, WITH, job, terms, b, sums);                                                                                  \
  }
#if VL == 16
MULTIPLY(1, 2, 4, 1) MULTIPLY(2, 2, 4, 1) MULTIPLY(3, 2, 4, 1) MULTIPLY(4, 2, 2, 1) MULTIPLY(5, 2, 2, 1) MULTIPLY(6, 2, 2, 1) MULTIPLY(7, 2, 1, 1)
MULTIPLY(8, 2, 1, 1) MULTIPLY(9, 2, 1, 1) MULTIPLY(10, 2, 1, 1) MULTIPLY(11, 2, 1, 1) MULTIPLY(12, 2, 1, 1) MULTIPLY(13, 2, 1, 1)
MULTIPLY(14, 2, 1, 1)
MULTIPLY(1, 1, 4, 1) MULTIPLY(2, 1, 4, 1) MULTIPLY(3, 1, 4, 1) MULTIPLY(4, 1, 2, 1) MULTIPLY(5, 1, 2, 1) MULTIPLY(6, 1, 2, 1) MULTIPLY(7, 1, 2, 1)
MULTIPLY(8, 1, 1, 1) MULTIPLY(9, 1, 1, 1) MULTIPLY(10, 1, 1, 1) MULTIPLY(11, 1, 1, 1) MULTIPLY(12, 1, 1, 1) MULTIPLY(13, 1, 1, 1)
MULTIPLY(14, 1, 1, 1)
MULTIPLY(1, 2, 2, 0) MULTIPLY(2, 2, 2, 0) MULTIPLY(3, 2, 2, 0) MULTIPLY(4, 2, 1, 0) MULTIPLY(5, 2, 1, 0) MULTIPLY(6, 2, 1, 0) MULTIPLY(7, 2, 1, 0)
MULTIPLY(8, 2, 1, 0) MULTIPLY(9, 2, 1, 0) MULTIPLY(10, 2, 1, 0)
static multiply_fn *const multiply_with[] = {multiply_1_2_1,  multiply_1_2_2,  multiply_1_2_3,  multiply_1_2_4, multiply_1_2_5,
                                             multiply_1_2_6,  multiply_1_2_7,  multiply_1_2_8,  multiply_1_2_9, multiply_1_2_10,
                                             multiply_1_2_11, multiply_1_2_12, multiply_1_2_13, multiply_1_2_14};
static multiply_fn *const multiply_half[] = {multiply_1_1_1,  multiply_1_1_2,  multiply_1_1_3,  multiply_1_1_4, multiply_1_1_5,
                                             multiply_1_1_6,  multiply_1_1_7,  multiply_1_1_8,  multiply_1_1_9, multiply_1_1_10,
                                             multiply_1_1_11, multiply_1_1_12, multiply_1_1_13, multiply_1_1_14};
static multiply_fn *const multiply_without[] = {multiply_0_2_1, multiply_0_2_2, multiply_0_2_3, multiply_0_2_4, multiply_0_2_5,
                                                multiply_0_2_6, multiply_0_2_7, multiply_0_2_8, multiply_0_2_9, multiply_0_2_10};
#else
#if VL == 8
MULTIPLY(1, 2, 4, 1) MULTIPLY(2, 2, 2, 1) MULTIPLY(3, 2, 2, 1) MULTIPLY(4, 2, 1, 1) MULTIPLY(5, 2, 1, 1) MULTIPLY(6, 2, 1, 1)
static multiply_fn *const multiply_with[] = {multiply_1_2_1, multiply_1_2_2, multiply_1_2_3, multiply_1_2_4, multiply_1_2_5, multiply_1_2_6};
#endif
MULTIPLY(1, 2, 1, 0) MULTIPLY(2, 2, 1, 0) MULTIPLY(3, 2, 1, 0) MULTIPLY(4, 2, 1, 0)
static multiply_fn *const multiply_without[] = {multiply_0_2_1, multiply_0_2_2, multiply_0_2_3, multiply_0_2_4};
#endif

void FN(int8_sums)(const int8_job *job, const int8_terms *terms, const char *panel, int at, int columns, int32_t *sums) {
  multiply_fn *const *by_rows = multiply_without;
#if ROWS_WITH
  if (job->with) by_rows = multiply_with;
#endif
#if VL == 16
  if (job->with && columns <= VL) by_rows = multiply_half;
#endif
  by_rows[terms->rows - 1](job, terms, (const int8_t *)panel + INT8_HEADER + at * INT8_GROUP, sums + at);
}

/* Zero points off WIDTH sums of row r, and the factor on them. */
INLINE void settle(const int8_job *job, const int8_rows *rows, int r, const int32_t *header, int64_t column, int64_t last, int32_t *sums) {
  const vi zero = viset1((int32_t)rows->zero[r]), rest = viset1((int32_t)rows->rest[r]);
#pragma GCC unroll 2
  for (int v = 0; v < VECTORS; v++) {
    vi s = less(plus(viload(sums + v * VL), viload(header + 2 * ASPEN_NR + v * VL)), zero, viload(header + v * VL));
    if (job->zeros) s = less(s, rest, viload(header + ASPEN_NR + v * VL));
    if (job->dtype == ASPEN_DT_I32) {
      vistore(sums + v * VL, s);
      continue;
    }
    vf y = vfromi(s);
    if (job->scaled) {
      const int64_t at = column + v * VL, left = last - at;
      const float *f = rows->factor[r];
      y *= job->factor_stride == 0   ? vset1(*f)
           : left <= 0               ? vzero()
           : job->factor_stride == 1 ? vload_part(f + at, left)
                                     : vload_strided(f + at * job->factor_stride, job->factor_stride, left);
    }
    vstore((float *)sums + v * VL, y);
  }
}

/* The registers for a quotient by a step between levels. */
typedef struct divisor {
  vf step, inverse, most;
} divisor;
INLINE divisor divisor_of(float step, float reciprocal) { return (divisor){vset1(step), vset1(reciprocal), vset1(step) * vset1(FAR_LEVEL)}; }

/* x / step, rounded as it should be, wherever that is no further from 0 than FAR_LEVEL; beyond, as far at least. Two steps of Newton's make
 * the product with the reciprocal the quotient, in less time than a division. x is cut off first, or infinity would become NaN. */
INLINE vf quotient(const divisor *by, const int divide, vf x) {
  if (divide) return x / by->step;
  x = vmin(by->most, vmax(-by->most, x));
  vf q = x * by->inverse;
  q = vfma(vfma(-q, by->step, x), by->inverse, q);
  return vfma(vfma(-q, by->step, x), by->inverse, q);
}

/* How values become bytes: not at all; by quotients, with a division or without; or quickly (quick_levels). */
enum { VALUES, QUICK, BYTES, DIVIDED };
enum { ALONE, EARLY, LATE, GATED }; /* whether and how a residual joins */

/* Operands that most rows have in common. `offset`: of sums. */
typedef struct along {
  vi offset[VECTORS];
  vf factor[VECTORS], bias[VECTORS];
} along;

INLINE void begin_row(const int8_job *job, const int8_rows *rows, int r, const int32_t *header, int64_t column, along *with) {
  if (r > 0 && rows->alike) return;
  if (r == 0 || rows->zero[r] != rows->zero[r - 1]) {
    const vi zero = viset1((int32_t)rows->zero[r]);
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; v++) with->offset[v] = less(viload(header + 2 * ASPEN_NR + v * VL), zero, viload(header + v * VL));
  }
  const float *factor = rows->factor[r], *bias = rows->bias[r];
  if (job->scaled && (r == 0 || factor != rows->factor[r - 1]))
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; v++) with->factor[v] = job->factor_stride ? vload(factor + column + v * VL) : vset1(*factor);
  if (rows->bias[0] && (r == 0 || bias != rows->bias[r - 1]))
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; v++) with->bias[v] = vload(bias + column + v * VL);
}

/* The value of a row in each of WIDTH columns. */
INLINE void values_of_row(const int8_job *job, const int8_rows *rows, int r, const int32_t *header, int64_t column, const int32_t *sums,
                          const along *with, const int levelled, const int joins, vf *y) {
  const epilogue *e = &job->finish.epilogue;
#pragma GCC unroll 2
  for (int v = 0; v < VECTORS; v++) {
    vi s = plus(viload(sums + r * ASPEN_NR + v * VL), with->offset[v]);
    if (job->zeros) s = less(s, viset1((int32_t)rows->rest[r]), viload(header + ASPEN_NR + v * VL));
    y[v] = vfromi(s);
  }
  if (job->scaled)
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; v++) y[v] *= with->factor[v];
  if (rows->bias[0])
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; v++) y[v] += with->bias[v];
  const float *residual = joins ? (const float *)rows->residual[r] + column : NULL;
  if (joins == EARLY)
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; v++) y[v] += vload(residual + v * VL);
  if (levelled) { /* as act_fake_quantize has it */
    const divisor by_step = divisor_of(e->a, job->level_reciprocal);
    const range round_to = range_of(0, e->b);
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; v++) y[v] = by_step.step * vmin(round_to.highest, vmax(vround(quotient(&by_step, 0, y[v])), round_to.lowest));
  } else if (e->kind != EPILOGUE_NONE) {
    epilogue_act(e, y, VECTORS);
  }
  if (joins == LATE)
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; v++) y[v] += vload(residual + v * VL);
  if (joins == GATED)
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; v++) y[v] *= vload(residual + v * VL);
}

/* Everything behind the sums of WIDTH columns from `column` on, all of the box, where all that goes with them lies side by side. Values
 * that are the same for all rows are read first: for all the compiler knows, a byte that is stored might change anything. */
INLINE void straight(const int8_job *shared, const int8_rows *rows, const int32_t *header, int64_t column, const int32_t *sums, const int how,
                     const int levelled, const int joins) {
  const int8_job own = *shared, *job = &own;
  const int n = rows->terms.rows;
  const divisor by = divisor_of(job->scale, job->reciprocal);
  const range to = range_of(job->zero, job->lowest);
  const quick quickly = quick_of(job);
  along with = {0};
  vf y[VECTORS];
  if (how == QUICK) {
    for (int r = 0; r < n; r += 2) {
      vi q[2 * VECTORS];
      const int below = r + 1 < n ? r + 1 : r;
      begin_row(job, rows, r, header, column, &with);
      values_of_row(job, rows, r, header, column, sums, &with, levelled, joins, y);
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; v++) q[v] = q[VECTORS + v] = quick_quotient(&quickly, y[v]);
      if (below != r) {
        begin_row(job, rows, below, header, column, &with);
        values_of_row(job, rows, below, header, column, sums, &with, levelled, joins, y);
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++) q[VECTORS + v] = quick_quotient(&quickly, y[v]);
      }
      quick_levels(&quickly, job->dtype == ASPEN_DT_I8, q, (uint8_t *)rows->out[r] + column, (uint8_t *)rows->out[below] + column);
    }
    return;
  }
  for (int r = 0; r < n; r++) {
    begin_row(job, rows, r, header, column, &with);
    values_of_row(job, rows, r, header, column, sums, &with, levelled, joins, y);
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; v++) {
      if (how == VALUES) vstore((float *)rows->out[r] + column + v * VL, y[v]);
      else store_levels((uint8_t *)rows->out[r] + column + v * VL, level_of(&to, quotient(&by, how == DIVIDED, y[v])));
    }
  }
}

typedef void straight_fn(const int8_job *, const int8_rows *, const int32_t *, int64_t, const int32_t *);
#define STRAIGHT(NAME, HOW, LEVELLED, JOINS)                                                                                       \
  static void straight_##NAME(const int8_job *job, const int8_rows *rows, const int32_t *header, int64_t column, const int32_t *sums) { \
    straight(job, rows, header, column, sums, HOW, LEVELLED, JOINS);                                                               \
  }
#define STRAIGHT_EACH(NAME, LEVELLED, JOINS)                                                                                       \
  STRAIGHT(NAME##_values, VALUES, LEVELLED, JOINS)                                                                                 \
  STRAIGHT(NAME##_quick, QUICK, LEVELLED, JOINS)                                                                                   \
  STRAIGHT(NAME##_bytes, BYTES, LEVELLED, JOINS)                                                                                   \
  STRAIGHT(NAME##_divided, DIVIDED, LEVELLED, JOINS)
STRAIGHT_EACH(alone, 0, ALONE)
STRAIGHT_EACH(early, 0, EARLY)
STRAIGHT_EACH(late, 0, LATE)
STRAIGHT_EACH(gated, 0, GATED)
STRAIGHT_EACH(levelled_alone, 1, ALONE)
STRAIGHT_EACH(levelled_early, 1, EARLY)
STRAIGHT_EACH(levelled_late, 1, LATE)
STRAIGHT_EACH(levelled_gated, 1, GATED)
#define STRAIGHT_LIST(NAME) {straight_##NAME##_values, straight_##NAME##_quick, straight_##NAME##_bytes, straight_##NAME##_divided}
static straight_fn *const straights[2][4][4] = {
    {STRAIGHT_LIST(alone), STRAIGHT_LIST(early), STRAIGHT_LIST(late), STRAIGHT_LIST(gated)},
    {STRAIGHT_LIST(levelled_alone), STRAIGHT_LIST(levelled_early), STRAIGHT_LIST(levelled_late), STRAIGHT_LIST(levelled_gated)},
};

INLINE straight_fn *straight_for(const int8_job *job, const int8_rows *rows) {
  const epilogue *e = &job->finish.epilogue;
  const int joins = !rows->residual[0] ? ALONE : !e->residual_last ? EARLY : e->gated ? GATED : LATE;
  return straights[job->levelled][joins][job->dtype == ASPEN_DT_F32 ? VALUES : job->quick ? QUICK : job->divide ? DIVIDED : BYTES];
}

/* Columns [first, last) of n rows of values[ASPEN_NR], which begin at `column`, as bytes. */
static void store_bytes(const int8_job *job, const int8_rows *rows, const float *values, int64_t column, int64_t first, int64_t last) {
  const int64_t stride = job->finish.out_stride;
  const divisor by = divisor_of(job->scale, job->reciprocal);
  const range to = range_of(job->zero, job->lowest);
  for (int r = 0; r < rows->terms.rows; r++) {
    uint8_t row[ASPEN_NR];
    for (int i = 0; i < ASPEN_NR; i += VL) {
      const vf q = quotient(&by, 1, vload(values + r * ASPEN_NR + i));
      store_levels(row + i, level_of(&to, q));
    }
    uint8_t *out = (uint8_t *)rows->out[r];
    if (stride == 1) memcpy(out + first, row + first - column, (size_t)(last - first));
    else
      for (int64_t j = first; j < last; j++) out[j * stride] = row[j - column];
  }
}

/* The epilogue of a block's sums. For bytes the values come first, into the buffer of the sums. */
static void finish(const int8_job *job, const int8_rows *rows, float *sums, int64_t column, int64_t first, int64_t last) {
  const int bytes = job->dtype != ASPEN_DT_F32;
  float values[MM_MAX_ROWS * ASPEN_NR] __attribute__((aligned(64)));
  mm_job to_values;
  const mm_job *how = &job->finish;
  if (bytes) {
    to_values = job->finish;
    to_values.out_stride = 1;
    to_values.direct = to_values.bias_stride == 1 && to_values.residual_stride == 1;
    how = &to_values;
  }
  for (int r = 0; r < rows->terms.rows; r += MM_ROWS) {
    mm_rows to = {.rows = rows->terms.rows - r < MM_ROWS ? rows->terms.rows - r : MM_ROWS};
    for (int i = 0; i < to.rows; i++) {
      to.out[i] = bytes ? values + (r + i) * ASPEN_NR - column : (float *)rows->out[r + i];
      to.bias[i] = rows->bias[r + i], to.residual[i] = rows->residual[r + i];
    }
    FN(mm_finish)(how, &to, sums + r * ASPEN_NR, column, first, last);
  }
  if (bytes) store_bytes(job, rows, values, column, first, last);
}

void FN(int8_strip)(int8_job *job, int rows, const uint8_t *a, const char *panel, int32_t *sums) {
  const amx_terms terms = {job->groups, {job->runs[0], job->runs[1]}, {job->run_step[0], job->run_step[1]}, job->a_step};
  amx_sums_as(job->amx, AMX_BYTES, &terms, &job->use, rows, (const char *)a, panel + INT8_HEADER, sums);
}

/* Operands and output of a panel that the box cuts, with zeros beside them, so that it is finished in whole vectors as others are. */
typedef struct cut_panel {
  float factor[MM_MAX_ROWS][ASPEN_NR], bias[MM_MAX_ROWS][ASPEN_NR], residual[MM_MAX_ROWS][ASPEN_NR];
  char out[MM_MAX_ROWS][ASPEN_NR * 4];
} cut_panel;

/* Row r of an operand, of n columns from column `at` of its panel on: copied, unless the row before has the same. NULL stays NULL. */
INLINE void keep_row(const float **rows, float (*kept)[ASPEN_NR], int r, const float *before, int64_t column, int64_t at, int64_t n) {
  const float *row = rows[r];
  if (!row) return;
  if (r > 0 && row == before) {
    rows[r] = rows[r - 1];
    return;
  }
  memset(kept[r], 0, sizeof kept[r]);
  memcpy(kept[r] + at, row + column + at, (size_t)n * sizeof(float));
  rows[r] = kept[r] - column;
}

static void finish_cut(const int8_job *job, const int8_rows *rows, const int32_t *header, int64_t column, int64_t first, int64_t last,
                       const int32_t *sums) {
  cut_panel own __attribute__((aligned(64)));
  int8_rows whole = *rows;
  const int64_t size = job->dtype == ASPEN_DT_F32 ? 4 : 1, at = first - column, n = last - first;
  for (int r = 0; r < rows->terms.rows; r++) {
    const int before = r > 0 ? r - 1 : 0;
    if (job->scaled && job->factor_stride) keep_row(whole.factor, own.factor, r, rows->factor[before], column, at, n);
    if (rows->bias[0]) keep_row(whole.bias, own.bias, r, rows->bias[before], column, at, n);
    if (rows->residual[0]) keep_row((const float **)whole.residual, own.residual, r, rows->residual[before], column, at, n);
    whole.out[r] = own.out[r] - column * size;
  }
  straight_fn *f = straight_for(job, rows);
  for (int64_t v = at / WIDTH * WIDTH; v < last - column; v += WIDTH) f(job, &whole, header + v, column + v, sums + v);
  for (int r = 0; r < rows->terms.rows; r++) memcpy(rows->out[r] + first * size, own.out[r] + at * size, (size_t)(n * size));
}

/* Rows of bytes as a residual's values: of columns [first, last). */
static void widen_residual(const int8_job *job, const int8_rows *rows, int64_t column, int64_t first, int64_t last, float (*values)[ASPEN_NR]) {
  for (int r = 0; r < rows->terms.rows; r++) {
    const char *from = rows->residual[r];
    if (job->residual_stride == 1 && last - first == ASPEN_NR) {
      for (int64_t j = 0; j < ASPEN_NR; j += VL)
        vstore(values[r] + j, job->residual_type == ASPEN_DT_I8 ? residuals_of(job, SIGNED, from + first + j) : residuals_of(job, UNSIGNED, from + first + j));
      continue;
    }
    for (int64_t j = first; j < last; j++) {
      const char byte = from[j * job->residual_stride];
      const int32_t level = job->residual_type == ASPEN_DT_I8 ? (int8_t)byte : (uint8_t)byte;
      values[r][j - column] = (float)(level - job->residual_zero) * job->residual_scale;
    }
  }
}

static void block(const int8_job *job, const int8_rows *rows, const char *panel, int64_t column, int64_t first, int64_t last) {
  int32_t made[MM_MAX_ROWS * ASPEN_NR] __attribute__((aligned(64))), *const sums = rows->sums ? rows->sums : made;
  const int n = rows->terms.rows, side_by_side = job->finish.direct && job->factor_stride <= 1 && job->factor_stride >= 0 && job->dtype != ASPEN_DT_I32;
  int left = 0; /* there are columns whose epilogue is to come */
  for (int at = 0; at < ASPEN_NR; at += WIDTH) {
    if (column + at >= last || column + at + WIDTH <= first) continue;
    const int32_t *header = (const int32_t *)panel + at;
    if (!rows->sums) FN(int8_sums)(job, &rows->terms, panel, at, (int)(last - column - at), sums);
    if (side_by_side && column >= first && column + ASPEN_NR <= last) {
      straight_for(job, rows)(job, rows, header, column + at, sums + at);
      continue;
    }
    left = 1;
    for (int r = 0; r < n && !side_by_side; r++) settle(job, rows, r, header, column + at, last, sums + r * ASPEN_NR + at);
  }
  if (!left) return;
  if (side_by_side) {
    finish_cut(job, rows, (const int32_t *)panel, column, first, last, sums);
    return;
  }
  if (job->dtype != ASPEN_DT_I32) {
    finish(job, rows, (float *)sums, column, first, last);
    return;
  }
  const int64_t stride = job->finish.out_stride;
  for (int r = 0; r < n; r++)
    for (int64_t j = first; j < last; j++) ((int32_t *)rows->out[r])[j * stride] = sums[r * ASPEN_NR + j - column];
}

void FN(int8_block)(const int8_job *job, const int8_rows *rows, const char *panel, int64_t column, int64_t first, int64_t last) {
  if (!rows->residual[0] || job->residual_type == ASPEN_DT_F32) {
    block(job, rows, panel, column, first, last);
    return;
  }
  float values[MM_MAX_ROWS][ASPEN_NR] __attribute__((aligned(64))) = {{0}};
  int8_rows wide = *rows;
  widen_residual(job, rows, column, first, last, values);
  for (int r = 0; r < rows->terms.rows; r++) wide.residual[r] = values[r] - column;
  block(job, &wide, panel, column, first, last);
}

/* Whether quotients by `scale` are found by multiplication: portable builds' vfma rounds twice. */
INLINE int invertible(float scale) { return VL > 4 && scale > 1 / LARGEST_SCALE && scale < LARGEST_SCALE; }

/* Whether bytes limit values at least as much as their activation does. */
static int within_bytes(const int8_job *job) {
  const epilogue *e = &job->finish.epilogue;
  if ((e->kind != EPILOGUE_RELU && e->kind != EPILOGUE_CLIP) || !invertible(job->scale)) return 0;
  const float low = e->kind == EPILOGUE_RELU ? 0 : e->a, high = e->kind == EPILOGUE_RELU ? job->scale * FAR_LEVEL : e->b;
  return (vround(vset1(low / job->scale)) + vset1(job->zero))[0] <= job->lowest &&
         (vround(vset1(high / job->scale)) + vset1(job->zero))[0] >= job->lowest + 255;
}

void FN(int8_scale)(int8_job *job, uint8_t dtype, double scale, int64_t zero) {
  job->dtype = dtype, job->scale = (float)scale;
  job->reciprocal = 1.0f / job->scale;
  job->reciprocal_rest = (float)(1.0 / job->scale - job->reciprocal);
  job->zero = (float)zero;
  job->lowest = dtype == ASPEN_DT_I8 ? -128.0f : 0.0f;
  job->divide = !invertible(job->scale);
  job->unit = job->scale == 1.0f;
  job->quick = !job->divide && (job->unit || quick_scale(job->scale)) && zero >= -QUICK_ZERO && zero <= QUICK_ZERO;
}

int FN(int8_open)(int8_job *job, const aspen_arg *out, const aspen_arg *bias, const aspen_arg *residual, const aspen_arg *factor, int axis,
                  int64_t zeros, const int64_t *last) {
  double scale;
  memcpy(&scale, last + 4, sizeof scale);
  *job = (int8_job){.dtype = out->dtype, .scaled = factor->dtype != 0, .zeros = zeros != 0,
                    .factor_stride = factor->dtype ? factor->strides[axis] : 0, .with = (uint8_t)aspen_isa_vnni(OWN_ISA),
                    .amx = aspen_isa_amx(OWN_ISA, 0), .runs = {1, 1}};
  if (out->dtype != ASPEN_DT_F32 && out->dtype != ASPEN_DT_I32 && out->dtype != ASPEN_DT_I8 && out->dtype != ASPEN_DT_U8)
    return ASPEN_KERNEL_BAD_ARGUMENT;
  const aspen_arg *operands[] = {bias, residual, factor};
  for (int i = 0; i < 3; i++) {
    const int known = operands[i]->dtype == ASPEN_DT_F32 || (operands[i] == residual && (residual->dtype == ASPEN_DT_I8 || residual->dtype == ASPEN_DT_U8));
    if (operands[i]->dtype && (!known || out->dtype == ASPEN_DT_I32)) return ASPEN_KERNEL_BAD_ARGUMENT;
  }
  double residual_scale;
  memcpy(&residual_scale, last + 6, sizeof residual_scale);
  job->residual_scale = (float)residual_scale, job->residual_zero = (int32_t)last[7];
  job->residual_type = (uint8_t)residual->dtype, job->residual_stride = residual->dtype ? residual->strides[axis] : 1;
  job->most = job->amx ? MM_ROWS : job->with ? ROWS_WITH : ROWS_WITHOUT;
  FN(int8_scale)(job, out->dtype, scale, last[5]);
  job->finish = (mm_job){.out_stride = out->strides[axis], .bias_stride = bias->dtype ? bias->strides[bias->rank > 1 ? axis : 0] : 1,
                         .residual_stride = residual->dtype == ASPEN_DT_F32 ? residual->strides[axis] : 1, .alpha = 1.0f, .one_bias = 1};
  const int error = FN(mm_prepare)(&job->finish, last);
  const epilogue *e = &job->finish.epilogue;
  job->levelled = e->kind == EPILOGUE_FAKE_QUANTIZE && invertible(e->a) && e->b > -FAR_LEVEL / 2 && e->b < FAR_LEVEL / 2;
  job->level_reciprocal = 1.0f / e->a;
  const int last_of_all = !residual->dtype || !e->residual_last;
  if ((out->dtype == ASPEN_DT_I8 || out->dtype == ASPEN_DT_U8) && last_of_all && within_bytes(job)) job->finish.epilogue.kind = EPILOGUE_NONE;
  return error;
}
