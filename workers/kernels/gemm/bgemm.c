/* BGEMM: products of matrices that are rounded to bf16, summed in f32. Left factors, output and residual may be stored as bf16.
 *
 * A block of rows is rounded into scratch memory in pairs of terms, evenly. A tile that has the rows of the one before, and other columns,
 * finds them there. Loops: blocks of rows (bounded: weights are read again for each), panels of ASPEN_NR columns, rows of the micro-kernel
 * (bf16.h).
 */
#include "gemm/bf16.h"

#define COPY_BYTES (1 << 20)                 /* of a block of rows, about */
#define FEWEST_ROWS (8 * (int64_t)MM_MAX_ROWS) /* of a block, however long */

/* A row of the tile. Pointers are those of column 0, of values of their operands' types. */
typedef struct row_place {
  const void *a;
  float *out;
  const float *bias, *residual;
} row_place;

/* The rows, [axis], of the block that is in scratch. */
typedef struct cached {
  const char *a;
  int64_t lo[ASPEN_MAX_RANK], hi[ASPEN_MAX_RANK];
} cached;
#define CACHED_BYTES 192 /* at the beginning of scratch */
_Static_assert(sizeof(cached) <= CACHED_BYTES, "");

INLINE int64_t block_rows(int64_t rows, int64_t step) {
  const int64_t fit = COPY_BYTES / (step * 4), most = fit > FEWEST_ROWS ? fit : FEWEST_ROWS;
  return rows < most ? rows : most;
}

static size_t scratch_of(int64_t rows, int64_t terms) {
  const int64_t step = bf16_step(terms), block = block_rows(rows, step);
  return CACHED_BYTES + (size_t)(block * (step * 4 + (int64_t)sizeof(row_place))) + 64;
}

#ifdef ISA_PORTABLE
size_t aspen_scratch_bgemm(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *a = &c->args[1];
  int64_t rows = 1;
  for (int i = 0; i + 1 < out->rank; i++) rows *= c->hi[i] - c->lo[i];
  return scratch_of(rows, a->dims[a->rank - 1]);
}
#endif

enum { A, OUT, BIAS, RESIDUAL, OPERANDS };

/* The rows of a tile, one after the other: where each operand has the next. */
typedef struct row_walk {
  const aspen_call *c;
  const aspen_arg *operands[OPERANDS];
  int64_t index[ASPEN_MAX_RANK], at[OPERANDS], item[OPERANDS]; /* bytes of an element */
} row_walk;

static void walk_open(row_walk *w) {
  for (int o = 0; o < OPERANDS; o++) {
    w->at[o] = 0;
    w->item[o] = w->operands[o] ? bf16_item(w->operands[o]) : 0;
  }
  for (int i = 0; i + 1 < w->operands[OUT]->rank; i++) {
    w->index[i] = w->c->lo[i];
    for (int o = 0; o < OPERANDS; o++)
      if (w->operands[o]) w->at[o] += w->operands[o]->strides[i] * w->c->lo[i];
  }
}

INLINE float *place_of(const row_walk *w, int o) {
  return w->operands[o] ? (float *)(w->operands[o]->ptr + w->at[o] * w->item[o]) : NULL;
}

/* Where the next n rows are. */
static void walk_on(row_walk *w, row_place *places, int64_t n) {
  for (int64_t r = 0; r < n; r++) {
    places[r] = (row_place){place_of(w, A), place_of(w, OUT), place_of(w, BIAS), place_of(w, RESIDUAL)};
    for (int i = w->operands[OUT]->rank - 2; i >= 0; i--) {
      for (int o = 0; o < OPERANDS; o++)
        if (w->operands[o]) w->at[o] += w->operands[o]->strides[i];
      if (++w->index[i] < w->c->hi[i]) break;
      for (int o = 0; o < OPERANDS; o++)
        if (w->operands[o]) w->at[o] -= w->operands[o]->strides[i] * (w->c->hi[i] - w->c->lo[i]);
      w->index[i] = w->c->lo[i];
    }
  }
}

/* All columns of the box, of a block of rows. */
static void multiply_block(const aspen_call *c, bf16_job *job, const row_place *places, const uint32_t *copy, int64_t rows) {
  const aspen_arg *b = &c->args[2];
  const int n_axis = c->args[0].rank - 1;
  const int64_t blocks = (rows + job->most - 1) / job->most, n_hi = c->hi[n_axis];
  const int64_t share = blocks > 1 ? job->panel * 4 / blocks : 0; /* of the next panel, which each block brings nearer */
  float sums[AMX_STRIP * ASPEN_NR] __attribute__((aligned(64))), *made = NULL;
  for (int64_t n = c->lo[n_axis]; n < n_hi;) { /* panels start at multiples of ASPEN_NR, the box need not */
    const int64_t column = n / ASPEN_NR * ASPEN_NR, last = column + ASPEN_NR < n_hi ? column + ASPEN_NR : n_hi;
    const uint32_t *panel = (const uint32_t *)b->ptr + column / ASPEN_NR * job->panel;
    for (int64_t i = 0, row = 0; i < blocks; i++) {
      mm_rows block; /* what is not read is not set */
      block.rows = (int)(mm_cut(rows, blocks, i + 1) - row);
      block.next = share ? (const char *)(panel + job->panel) + i * share : NULL;
      block.next_step = share / (job->pairs ? job->pairs : 1) + 1;
      for (int r = 0; r < block.rows; r++) {
        const row_place *p = places + row + r;
        block.out[r] = p->out, block.bias[r] = p->bias, block.residual[r] = p->residual;
      }
      const int strip = job->amx ? amx_strip(rows, blocks, i) : 0;
      if (strip) FN(bf16_strip)(job, strip, copy + row * job->a_step, panel, made = sums);
      FN(bf16_block)(job, &block, copy + row * job->a_step, panel, made, column, n, last);
      if (made) made += block.rows * ASPEN_NR;
      row += block.rows;
    }
    n = last;
  }
}

int FN(bgemm)(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *a = &c->args[1], *b = &c->args[2];
  const aspen_arg *bias = c->n_inputs > 2 && c->args[3].dtype ? &c->args[3] : NULL;
  const aspen_arg *residual = c->n_inputs > 3 && c->args[4].dtype ? &c->args[4] : NULL;
  const int rank = out->rank, n_axis = rank - 1;
  if (rank < 2 || a->rank != rank || b->rank != 3 || (bias && bias->rank != rank) || (residual && residual->rank != rank))
    return ASPEN_KERNEL_BAD_ARGUMENT;
  if (!bf16_or_f32(out) || !bf16_or_f32(a) || (residual && !bf16_or_f32(residual)) || b->dtype != ASPEN_DT_U32) return ASPEN_KERNEL_BAD_ARGUMENT;
  int64_t rows = 1;
  int one_bias = 1;
  for (int i = 0; i < rank; i++) {
    if (c->lo[i] >= c->hi[i]) return 0;
    if (i == n_axis) break;
    rows *= c->hi[i] - c->lo[i];
    one_bias &= c->hi[i] - c->lo[i] == 1 || !bias || bias->strides[i] == 0;
  }
  const int64_t terms = a->dims[n_axis];
  bf16_job job = {.finish = {.out_stride = out->strides[n_axis], .bias_stride = bias ? bias->strides[n_axis] : 1,
                              .residual_stride = residual ? residual->strides[n_axis] : 1, .alpha = (float)aspen_param_f(c, 0),
                              .one_bias = (uint8_t)one_bias,
                              .half_out = bf16_item(out) == 2, .half_residual = residual && bf16_item(residual) == 2},
                   .pairs = bf16_pairs(terms), .runs = {1, 1}, .a_step = bf16_step(terms), .panel = bf16_pairs(terms) * ASPEN_NR};
  job.finish.scaled = job.finish.alpha != 1.0f;
  FN(bf16_open)(&job, c->params[5]);
  if (FN(mm_prepare)(&job.finish, c->params + 1) || epilogue_scale(c, 4, out->dims[n_axis], &job.finish.scale, &job.finish.shift))
    return ASPEN_KERNEL_BAD_ARGUMENT;
  job.finish.epilogue.past = (uint8_t)(!job.finish.half_out && stores_past(c, n_axis));
  if (c->scratch_bytes < scratch_of(rows, terms)) return ASPEN_KERNEL_SCRATCH;

  const int64_t most = block_rows(rows, job.a_step);
  cached *const m = c->scratch;
  uint32_t *const copy = (uint32_t *)((char *)c->scratch + CACHED_BYTES);
  row_place *const places = (row_place *)((char *)copy + (most * job.a_step * 4 + 63) / 64 * 64);
  cached wanted = {.a = a->ptr};
  for (int i = 0; i < n_axis; i++) wanted.lo[i] = c->lo[i], wanted.hi[i] = c->hi[i];
  const int there = c->again && rows <= most && !memcmp(m, &wanted, sizeof wanted);
  row_walk walk = {.c = c, .operands = {a, out, bias, residual}};
  walk_open(&walk);
  for (int64_t done = 0, n; done < rows; done += n) {
    n = rows - done < most ? rows - done : most;
    walk_on(&walk, places, n);
    if (!there)
      for (int64_t r = 0; r < n; r++) FN(bf16_row)(&job, copy + r * job.a_step, places[r].a, a->dtype, a->strides[n_axis], terms);
    multiply_block(c, &job, places, copy, n);
  }
  if (rows <= most) *m = wanted;
  else *m = (cached){0};
  amx_done(job.amx);
  stores_done(c);
  return 0;
}
