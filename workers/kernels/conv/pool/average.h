/* Averages of windows that overlap, for POOL: neighbours share their sums.
 *
 * A window is summed by columns, then across them. Windows one pixel apart go in pairs, an even one and the next, of rows as of columns. A
 * pair adds up the elements that both windows see, in ascending order; then each window adds the others that it sees. So an average of K x
 * K takes about K additions, not K * K. The order of additions follows from the window's place alone. Nothing is subtracted: elements that
 * a window does not see leave no trace in it.
 *
 * -0 stands for elements outside the image: no sum changes by it. The compiler may exchange the operands of an addition, and so choose
 * among two NaNs. So averages that are NaN are made the same one. The fastest loop only looks for them, in a product of all sums: where it
 * is not finite, the windows are done again.
 */
#ifndef ASPEN_POOL_AVERAGE_H
#define ASPEN_POOL_AVERAGE_H
#include "conv/pool/rows.h"

enum {
  AVERAGE_STRIP = 64,    /* windows of a row that are summed at a time; even */
  AVERAGE_COLUMNS = 192, /* columns that they and the widest windows see */
};

typedef struct pool {
  window rows, columns;
  const aspen_arg *out, *x;
  int average;
  int64_t pad_bottom, pad_right;
  int count_pads;
  pool_end end;
} pool;

/* Taps of a window that count: inside the image, or inside image and pads. */
static int64_t counted(const window *w, int64_t o, int64_t pad_after, int count_pads) {
  int64_t from, to;
  window padded = *w;
  if (count_pads) padded.in += w->pad + pad_after, padded.pad = 0;
  window_taps(&padded, o, &from, &to);
  return to - from;
}

/* ---- from sum to average ---- */

/* A sum is multiplied with the reciprocal of its number where the float nearest to that is right to 2^-25. Then the product is off by half
 * an ulp before it is rounded, and by an ulp in all, at most. Other sums are divided. */
typedef struct mean {
  float by, count; /* by: 0 where sums are divided */
} mean;

/* Where nothing counts, no tap was added and the sum is zero. */
INLINE mean mean_of(int64_t count) {
  const double by = count ? (float)(1.0 / (double)count) : 1, off = by * (double)count - 1;
  return (mean){!count || (off <= 0x1p-25 && off >= -0x1p-25) ? (float)by : 0, (float)count};
}

/* Adding zero makes -0 zero. */
INLINE vf mean_apply(mean m, vf sum) {
  if (m.by != 0) return vfma(sum, vset1(m.by), vzero());
  return sum / vset1(m.count) + vzero();
}

/* ---- rows ---- */

/* One or two rows of windows. `shared`: the `n` rows of pixels that all of them see, `down` apart. `own`: the row that each sees besides,
 * or NULL. `out`: where the averages go, or NULL if nobody wants them. `counted`: how many rows count. */
typedef struct average_rows {
  const float *shared, *own[2];
  int64_t n, down;
  float *out[2];
  int64_t counted[2];
} average_rows;

/* Along them: windows [lo, hi), which see columns [from, to) of the image. */
typedef struct average_line {
  const pool *p;
  int64_t lo, hi, from, to;
  int64_t step, out_step, x_channel, out_channel;
} average_line;

INLINE int in_pairs(const window *w) { return w->stride == 1 && w->dilation == 1; }

/* Row `o` of windows, or the pair that begins with it, as far as rows [lo, hi) are wanted. x, out: the first pixels of images. */
static average_rows average_rows_at(const pool *p, const float *x, float *out, int64_t o, int64_t lo, int64_t hi) {
  const window *w = &p->rows;
  const int64_t row = p->x->strides[2], out_row = p->out->strides[2], top = window_start(w, o);
  average_rows r = {.down = w->dilation * row};
  int64_t first, last;
  if (in_pairs(w)) {
    const int64_t own[2] = {top, top + w->kernel};
    for (int k = 0; k < 2; k++) {
      if (o + k < lo || o + k >= hi) continue;
      r.out[k] = out + (o + k) * out_row;
      r.counted[k] = counted(w, o + k, p->pad_bottom, p->count_pads);
      if (own[k] >= 0 && own[k] < w->in) r.own[k] = x + own[k] * row;
    }
    first = max64(top + 1, 0), last = min64(top + w->kernel, w->in);
    r.n = max64(last - first, 0);
  } else {
    r.out[0] = out + o * out_row;
    r.counted[0] = counted(w, o, p->pad_bottom, p->count_pads);
    window_taps(w, o, &first, &last);
    r.n = last - first;
    first = top + first * w->dilation;
  }
  r.shared = r.n ? x + first * row : x;
  return r;
}

/* ---- windows of 3 x 3: sums of columns stay in registers ---- */

static const float average_nothing[VL] __attribute__((aligned(64))) = {[0 ... VL - 1] = -0.0f};

/* Reciprocals of the numbers of pixels that a window of 3 x 3 can have. */
static const float average_ninths[10] = {1, 1, (float)(1.0 / 2), (float)(1.0 / 3), (float)(1.0 / 4), 0,
                                         (float)(1.0 / 6), 0, 0, (float)(1.0 / 9)};

/* A row of pixels, or -0 all along. */
typedef struct average_row {
  const float *at;
  int64_t step;
} average_row;

INLINE average_row average_row_at(const float *row, int64_t step) {
  return row ? (average_row){row, step} : (average_row){average_nothing, 0};
}

INLINE vf average_end(const pool_end *end, const pool_vector *v, vf y, const int plain, const int careful) {
  if (careful) y = vsel(visnan(y), vset1(__builtin_nanf("")), y);
  if (plain) return y;
  if (v->scaled) y = vfma(y, v->scale, v->shift);
  epilogue_act(&end->act, &y, 1);
  return y;
}

#define AVERAGE_OUT(TO, Y) \
  do { \
    const vf y_ = average_end(end, v, Y, plain, careful); \
    if (whole) \
      vstore(TO, y_); \
    else \
      vstore_part(TO, y_, v->left); \
  } while (0)

/* Sums of column I of pixels, for the upper and the lower row of windows. */
#define AVERAGE_COLUMN(I, UPPER, LOWER) \
  do { \
    const vf m_ = pool_load(a.at + (I) * a.step, whole, v->left) + pool_load(b.at + (I) * b.step, whole, v->left); \
    UPPER = m_ + pool_load(top.at + (I) * top.step, whole, v->left); \
    LOWER = m_ + pool_load(bottom.at + (I) * bottom.step, whole, v->left); \
    if (!careful) product = vfma(UPPER, LOWER, product); \
  } while (0)

/* One vector of channels, of rows of which one is wanted at least. Returns whether a sum was not finite. */
INLINE int average_three(const average_rows *r, const average_line *l, const pool_vector *v, const int whole, const int plain,
                         const int careful) {
  const window *w = &l->p->columns;
  const pool_end *end = &l->p->end;
  const average_row rows[4] = {average_row_at(r->own[0], l->step), average_row_at(r->n > 0 ? r->shared : NULL, l->step),
                               average_row_at(r->n > 1 ? r->shared + r->down : NULL, l->step), average_row_at(r->own[1], l->step)};
  float nowhere[VL], *const out[2] = {r->out[0] ? r->out[0] : nowhere, r->out[1] ? r->out[1] : nowhere};
  const int64_t out_step[2] = {r->out[0] ? l->out_step : 0, r->out[1] ? l->out_step : 0};
  /* pairs of windows whose columns are all there */
  const int64_t left = l->from + w->pad, inside = max64(l->lo + l->lo % 2, left + left % 2), outside = min64(l->hi - 1, l->to + w->pad - 3);
  vf product = vzero();
  int64_t x = l->lo - l->lo % 2;
  while (x < l->hi) {
    average_row top = rows[0], a = rows[1], b = rows[2], bottom = rows[3];
    const int64_t first = x - w->pad;
    if (x >= inside && x < outside) {
      const vf upper = vset1(average_ninths[3 * r->counted[0]]), lower = vset1(average_ninths[3 * r->counted[1]]);
      float *to = out[0] + x * out_step[0], *below = out[1] + x * out_step[1];
      vf u0, u1, u2, u3, l0, l1, l2, l3;
      top.at += first * top.step, a.at += first * a.step, b.at += first * b.step, bottom.at += first * bottom.step;
      AVERAGE_COLUMN(0, u0, l0);
      AVERAGE_COLUMN(1, u1, l1);
      for (; x < outside; x += 2) {
        top.at += 2 * top.step, a.at += 2 * a.step, b.at += 2 * b.step, bottom.at += 2 * bottom.step;
        AVERAGE_COLUMN(0, u2, l2);
        AVERAGE_COLUMN(1, u3, l3);
        const vf u = u1 + u2, d = l1 + l2;
        AVERAGE_OUT(to, vfma(u + u0, upper, vzero()));
        AVERAGE_OUT(to + out_step[0], vfma(u + u3, upper, vzero()));
        AVERAGE_OUT(below, vfma(d + l0, lower, vzero()));
        AVERAGE_OUT(below + out_step[1], vfma(d + l3, lower, vzero()));
        to += 2 * out_step[0], below += 2 * out_step[1];
        u0 = u2, u1 = u3, l0 = l2, l1 = l3;
      }
      continue;
    }
    vf column[2][4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
      column[0][i] = column[1][i] = vset1(-0.0f);
      if (first + i >= l->from && first + i < l->to) AVERAGE_COLUMN(first + i, column[0][i], column[1][i]);
    }
    for (int k = 0; k < 2; k++) {
      if (x + k < l->lo || x + k >= l->hi) continue;
      const int64_t taps = counted(w, x + k, l->p->pad_right, l->p->count_pads);
#pragma GCC unroll 2
      for (int i = 0; i < 2; i++) {
        const vf sum = column[i][1] + column[i][2] + column[i][k ? 3 : 0];
        AVERAGE_OUT(out[i] + (x + k) * out_step[i], vfma(sum, vset1(average_ninths[taps * r->counted[i]]), vzero()));
      }
    }
    x += 2;
  }
  return !careful && vm_any(visnan(product - product));
}
#undef AVERAGE_COLUMN
#undef AVERAGE_OUT

#define AVERAGE_THREE(NAME, WHOLE, PLAIN, CAREFUL) \
  static int NAME(const average_rows *r, const average_line *l, const pool_vector *v) { \
    return average_three(r, l, v, WHOLE, PLAIN, CAREFUL); \
  }
AVERAGE_THREE(average_three_plain, 1, 1, 0)
AVERAGE_THREE(average_three_whole, 1, 0, 0)
AVERAGE_THREE(average_three_careful, 0, 0, 1)
#undef AVERAGE_THREE

/* ---- other windows: sums of columns first, in a buffer ---- */

INLINE vf average_load(const average_line *l, const float *at, const int whole, int left) {
  return whole ? vload(at) : l->x_channel == 1 ? vload_part(at, left) : vload_strided(at, l->x_channel, left);
}

/* Sums of N columns from the image's `at` on, for both rows of windows. */
INLINE void average_columns(const average_rows *r, const average_line *l, const pool_vector *v, int64_t at, float *upper, float *lower,
                            const int N, const int whole) {
  float *const to[2] = {upper, lower};
  vf sum[4];
#pragma GCC unroll 4
  for (int i = 0; i < N; i++) sum[i] = vset1(-0.0f);
  const float *from = r->shared + at * l->step;
  for (int64_t j = 0; j < r->n; j++, from += r->down)
#pragma GCC unroll 4
    for (int i = 0; i < N; i++) sum[i] += average_load(l, from + i * l->step, whole, v->left);
#pragma GCC unroll 2
  for (int q = 0; q < 2; q++)
#pragma GCC unroll 4
    for (int i = 0; i < N; i++) {
      vf all = sum[i];
      if (r->own[q]) all += average_load(l, r->own[q] + (at + i) * l->step, whole, v->left);
      if (r->out[q]) vstore(to[q] + i * VL, all);
    }
}

INLINE void average_store(const average_line *l, const pool_vector *v, float *to, vf sum, mean by, const int whole) {
  const vf y = average_end(&l->p->end, v, mean_apply(by, sum), 0, 1);
  if (whole)
    vstore(to, y);
  else
    vstore_strided(to, l->out_channel, y, v->left);
}

/* Averages of up to AVERAGE_STRIP windows, from number `x` on as far as they are wanted, one vector of channels. x: even where windows go
 * in pairs. means: of both rows. */
INLINE void average_strip(const average_rows *r, const average_line *l, const pool_vector *v, int64_t x, const mean *means,
                          const int whole) {
  const window *w = &l->p->columns;
  const int64_t first = window_start(w, x), end = min64(x + AVERAGE_STRIP, l->hi), k = w->kernel, pairs = in_pairs(w);
  const int64_t count = (end + pairs - x - 1) * w->stride + (k - 1) * w->dilation + 1;
  const int64_t from = min64(max64(l->from - first, 0), count), to = max64(min64(l->to - first, count), from); /* columns that are there */
  float column[2][AVERAGE_COLUMNS * VL] __attribute__((aligned(64)));
  int64_t i = 0;
  for (; i < from; i++) vstore(column[0] + i * VL, vset1(-0.0f)), vstore(column[1] + i * VL, vset1(-0.0f));
  for (; i + 4 <= to; i += 4) average_columns(r, l, v, first + i, column[0] + i * VL, column[1] + i * VL, 4, whole);
  for (; i < to; i++) average_columns(r, l, v, first + i, column[0] + i * VL, column[1] + i * VL, 1, whole);
  for (; i < count; i++) vstore(column[0] + i * VL, vset1(-0.0f)), vstore(column[1] + i * VL, vset1(-0.0f));
  for (int q = 0; q < 2; q++) {
    if (!r->out[q]) continue;
    const float *at = column[q];
    const mean *by = means + q * AVERAGE_STRIP;
    float *out = r->out[q] + x * l->out_step;
    for (i = 0; i < end - x; i += 1 + pairs, at += (1 + pairs) * w->stride * VL) {
      vf sum = vload(at + (pairs && k > 1) * VL);
      for (int64_t j = 1; j < k - pairs; j++) sum += vload(at + (pairs + j * w->dilation) * VL);
      vf left = sum, right = sum;
      if (pairs && k > 1) left += vload(at), right += vload(at + k * VL);
      if (pairs && k == 1) right = vload(at + VL);
      if (x + i >= l->lo) average_store(l, v, out + i * l->out_step, left, by[i], whole);
      if (pairs && i + 1 < end - x) average_store(l, v, out + (i + 1) * l->out_step, right, by[i + 1], whole);
    }
  }
}

static void average_strip_whole(const average_rows *r, const average_line *l, const pool_vector *v, int64_t x, const mean *means) {
  average_strip(r, l, v, x, means, 1);
}
static void average_strip_part(const average_rows *r, const average_line *l, const pool_vector *v, int64_t x, const mean *means) {
  average_strip(r, l, v, x, means, 0);
}

/* ---- a tile ---- */

/* Is it worth to share sums? By the loads and stores of a window, all numbers twice as large. Windows of common sizes have loops of their
 * own, others take as long as some more loads. */
static int average_shares(const pool *p) {
  const window *r = &p->rows, *w = &p->columns;
  if (!p->average || p->out->dims[2] * p->out->dims[3] < 2) return 0;
  if ((AVERAGE_STRIP - 1) * w->stride + (w->kernel - 1) * w->dilation + 2 > AVERAGE_COLUMNS) return 0;
  const int common = r->kernel == w->kernel && (r->kernel == 2 || r->kernel == 3) && r->dilation == 1 && w->dilation == 1;
  if (common && r->kernel == 3 && r->stride == 1 && w->stride == 1) return 1;
  const int64_t columns = in_pairs(r) ? r->kernel : 2 * r->kernel, across = in_pairs(w) ? w->kernel : 2 * w->kernel;
  return w->stride * (columns + 2) + across + 2 < 2 * r->kernel * w->kernel + (common ? 0 : 12);
}

/* The vectors of `n` channels of rows of windows. */
static void average_channels(const average_rows *rows, const average_line *l, int three, int64_t n) {
  const pool_end *end = &l->p->end;
  const int plain = !end->scale && end->act.kind == EPILOGUE_NONE, unit = l->x_channel == 1 && l->out_channel == 1;
  mean means[2 * AVERAGE_STRIP];
  for (int64_t x = in_pairs(&l->p->columns) ? l->lo - l->lo % 2 : l->lo; x < l->hi; x += AVERAGE_STRIP) {
    for (int64_t i = 0; !three && i < AVERAGE_STRIP && x + i < l->hi; i++) {
      const int64_t taps = counted(&l->p->columns, x + i, l->p->pad_right, l->p->count_pads);
      for (int q = 0; q < 2; q++) means[q * AVERAGE_STRIP + i] = mean_of(rows->counted[q] * taps);
    }
    for (int64_t c = 0; c < n; c += VL) {
      average_rows at = *rows;
      at.shared += c * l->x_channel;
      for (int q = 0; q < 2; q++) {
        if (at.own[q]) at.own[q] += c * l->x_channel;
        if (at.out[q]) at.out[q] += c * l->out_channel;
      }
      const int whole = unit && n - c >= VL;
      pool_vector v = {.scaled = end->scale != NULL, .left = (int)min64(n - c, VL)};
      if (v.scaled) v.scale = vload_part(end->scale + c, v.left), v.shift = vload_part(end->shift + c, v.left);
      if (!three)
        (whole ? average_strip_whole : average_strip_part)(&at, l, &v, x, means);
      else if (!whole || (plain ? average_three_plain : average_three_whole)(&at, l, &v))
        average_three_careful(&at, l, &v);
    }
    if (three) return;
  }
}

static void average_run(const pool *p, const aspen_call *c) {
  const window *w = &p->columns;
  const int64_t *xs = p->x->strides, *os = p->out->strides;
  const int64_t from = max64(window_start(w, c->lo[3]), 0), last = window_start(w, c->hi[3] - 1) + (w->kernel - 1) * w->dilation;
  const int64_t to = min64(last + 1, w->in);
  const average_line line = {p, c->lo[3], c->hi[3], from, to, xs[3], os[3], xs[1], os[1]};
  const int three = p->rows.kernel == 3 && w->kernel == 3 && in_pairs(&p->rows) && in_pairs(w) && xs[1] == 1 && os[1] == 1;
  const int64_t rows = in_pairs(&p->rows) ? 2 : 1;
  for (int64_t n = c->lo[0]; n < c->hi[0]; n++) {
    const float *x = (const float *)p->x->ptr + n * xs[0] + c->lo[1] * xs[1];
    float *out = (float *)p->out->ptr + n * os[0] + c->lo[1] * os[1];
    for (int64_t o = c->lo[2] - c->lo[2] % rows; o < c->hi[2]; o += rows) {
      const average_rows at = average_rows_at(p, x, out, o, c->lo[2], c->hi[2]);
      average_channels(&at, &line, three, c->hi[1] - c->lo[1]);
    }
  }
}

#endif
