/* Maxima of K x K windows that are one pixel apart, for POOL: neighbours share them.
 *
 * Two rows of windows, an even one and the one below it, share the maximum of the K - 1 rows of pixels that both see; neighbours in a row share
 * the maxima of columns. So a maximum takes about K comparisons, not K * K. Which rows are a pair, and the order of comparisons, follow from
 * the window's place alone: of equal zeros of both signs every tile chooses the same.
 *
 * vmax forgets a NaN in its first operand. So pixels are looked at for NaNs on the way (a sum of products of all is none if one is), and rows
 * that may have one are done again with vmax_nan, in the same order.
 */
#ifndef ASPEN_POOL_ROWS_H
#define ASPEN_POOL_ROWS_H
#include "vector/epilogue.h"
#include "conv/window.h"

enum { POOL_STRIP = 96, POOL_WIDEST = 33 }; /* pixels whose columns are compared at once; the widest window */

/* What becomes of a window's value: act(value * scale + shift). */
typedef struct pool_end {
  epilogue act;
  const float *scale, *shift; /* of the tile's first channel, or NULL */
} pool_end;

/* Of the window rows of a pair: row k of pixels below the first window's topmost. Those outside the image are NULL. */
typedef struct pool_pair {
  const float *row[POOL_WIDEST + 1];
  float *out[2]; /* NULL: not wanted */
} pool_pair;

/* Along a row. */
typedef struct pool_line {
  int64_t k, in, pad;    /* window, pixels of a row, pad on the left */
  int64_t lo, hi;        /* windows; each sees at least one pixel */
  int64_t step, out_step; /* elements from a pixel to the next */
} pool_line;

/* Scale, shift and activation of one vector of channels. */
typedef struct pool_vector {
  vf scale, shift;
  int scaled, left;
} pool_vector;

INLINE vf pool_load(const float *p, const int whole, int left) { return whole ? vload(p) : vload_part(p, left); }
INLINE vf pool_max(vf a, vf b, const int careful) { return careful ? vmax_nan(a, b) : vmax(a, b); }

INLINE void pool_store(const pool_end *end, const pool_vector *v, float *to, vf y, const int whole, const int careful) {
  if (careful) y = vsel(visnan(y), vset1(__builtin_nanf("")), y);
  if (v->scaled) y = vfma(y, v->scale, v->shift);
  epilogue_act(&end->act, &y, 1);
  if (whole)
    vstore(to, y);
  else
    vstore_part(to, y, v->left);
}

/* Maxima of a column of pixels, of both windows of a pair. `first`, `last`: rows that both see, of which there is one at least. */
INLINE void pool_column(const pool_pair *p, const int k, int first, int last, int64_t at, const pool_vector *v, const int whole,
                        const int careful, vm *unordered, vf column[2]) {
  vf shared = pool_load(p->row[first] + at, whole, v->left);
  if (!careful) *unordered = vm_or(*unordered, visnan(shared));
  int i = first + 1;
  for (; i + 1 <= last; i += 2) {
    const vf a = pool_load(p->row[i] + at, whole, v->left), b = pool_load(p->row[i + 1] + at, whole, v->left);
    if (!careful) *unordered = vm_or(*unordered, vunordered(a, b));
    shared = pool_max(pool_max(shared, a, careful), b, careful);
  }
  vf top = shared, bottom = shared;
  if (p->row[0]) top = pool_load(p->row[0] + at, whole, v->left);
  if (p->row[k]) bottom = pool_load(p->row[k] + at, whole, v->left);
  if (i <= last) {
    const vf a = pool_load(p->row[i] + at, whole, v->left);
    if (!careful) *unordered = vm_or(*unordered, visnan(a));
    shared = pool_max(shared, a, careful);
  }
  if (!careful) *unordered = vm_or(*unordered, vunordered(top, bottom));
  column[0] = pool_max(shared, top, careful);
  column[1] = pool_max(shared, bottom, careful);
}

/* Rows of a pair of windows of three, where each is: in the place of one that is not there another that the window sees. */
typedef struct pool_rows {
  const float *top, *a, *b, *bottom;
} pool_rows;

INLINE vf pool_across(vf before, vf here, vf next, const int careful) { return pool_max(before, pool_max(here, next, careful), careful); }

/* The column of pixels at `at`: its maxima for the upper and the lower window. */
#define POOL_COLUMN(AT, UPPER, LOWER)                                                                                              \
  do {                                                                                                                             \
    const vf a_ = pool_load(a + (AT), whole, left), b_ = pool_load(b + (AT), whole, left);                                         \
    const vf top_ = pool_load(top + (AT), whole, left), bottom_ = pool_load(bottom + (AT), whole, left);                           \
    const vf m_ = pool_max(a_, b_, careful);                                                                                       \
    if (!careful) seen = vfma(a_, b_, seen), beside = vfma(top_, bottom_, beside);                                                 \
    UPPER = pool_max(m_, top_, careful);                                                                                           \
    LOWER = pool_max(m_, bottom_, careful);                                                                                        \
  } while (0)
#define POOL_OUT(TO, BEFORE, HERE, NEXT)                                                                                           \
  if (both || TO) {                                                                                                                \
    vf y_ = pool_across(BEFORE, HERE, NEXT, careful);                                                                              \
    if (careful) y_ = vsel(visnan(y_), vset1(__builtin_nanf("")), y_);                                                             \
    if (scaled) y_ = vfma(y_, scale, shift);                                                                                       \
    epilogue_act(&act, &y_, 1);                                                                                                    \
    if (whole)                                                                                                                     \
      vstore(TO, y_);                                                                                                              \
    else                                                                                                                           \
      vstore_part(TO, y_, left);                                                                                                   \
    TO += out_step;                                                                                                                \
  }

/* Windows of three columns: their maxima stay in registers. `both`: both rows are wanted. */
INLINE vm pool_three(pool_rows rows, float *out[2], const pool_line *l, const epilogue act, const pool_vector *v, const int both, const int scaled,
                     const int whole, const int careful) {
  vf seen = vzero(), beside = vzero(); /* NaN if anything is */
  const float *const top = rows.top, *const a = rows.a, *const b = rows.b, *const bottom = rows.bottom;
  const int64_t step = l->step, out_step = l->out_step, centre = l->lo - l->pad + 1, end = l->hi, inside = min64(end, l->in + l->pad - 2);
  const int left = v->left;
  const vf scale = v->scale, shift = v->shift;
  float *upper = out[0] ? out[0] + l->lo * out_step : NULL, *lower = out[1] ? out[1] + l->lo * out_step : NULL;
  vf u0, u1, u2, l0, l1, l2;
  POOL_COLUMN(centre * step, u1, l1);
  u0 = u1, l0 = l1;
  if (centre > 0) POOL_COLUMN((centre - 1) * step, u0, l0);
  int64_t at = (centre + 1) * step, x = l->lo;
  for (; x < inside; x++, at += step) {
    POOL_COLUMN(at, u2, l2);
    POOL_OUT(upper, u0, u1, u2)
    POOL_OUT(lower, l0, l1, l2)
    u0 = u1, u1 = u2, l0 = l1, l1 = l2;
  }
  if (x < end) {
    POOL_OUT(upper, u0, u1, u1)
    POOL_OUT(lower, l0, l1, l1)
  }
  return visnan(seen + beside);
}
#undef POOL_COLUMN
#undef POOL_OUT

/* Windows of any width: maxima of columns first, in a buffer. */
INLINE vm pool_wide(const pool_pair *p, const int k, int first, int last, const pool_line *l, const pool_end *end, const pool_vector *v,
                    const int whole, const int careful) {
  vm unordered = vunordered(vzero(), vzero());
  float column[2][(POOL_STRIP + POOL_WIDEST) * VL] __attribute__((aligned(64)));
  for (int64_t lo = l->lo; lo < l->hi; lo += POOL_STRIP) {
    const int64_t hi = min64(lo + POOL_STRIP, l->hi), from = max64(lo - l->pad, 0), to = min64(hi - 1 - l->pad + k, l->in);
    for (int64_t x = from; x < to; x++) {
      vf found[2];
      pool_column(p, k, first, last, x * l->step, v, whole, careful, &unordered, found);
      for (int r = 0; r < 2; r++) vstore(column[r] + (x - from) * VL, found[r]);
    }
    for (int r = 0; r < 2; r++)
      for (int64_t x = lo; p->out[r] && x < hi; x++) {
        const int64_t a = max64(x - l->pad, 0), b = min64(x - l->pad + k, l->in);
        vf y = vload(column[r] + (a - from) * VL);
        for (int64_t i = a + 1; i < b; i++) y = pool_max(y, vload(column[r] + (i - from) * VL), careful);
        pool_store(end, v, p->out[r] + x * l->out_step, y, whole, careful);
      }
  }
  return unordered;
}

/* Windows of K columns of one vector of channels, with an activation that the compiler knows. */
INLINE vm pool_windows(const pool_pair *p, int first, int last, const pool_line *l, const pool_end *end, const pool_vector *v, const int kind,
                       const int whole, const int careful) {
  pool_end known = *end;
  known.act.kind = (uint8_t)kind;
  if (l->k != 3) return pool_wide(p, (int)l->k, first, last, l, &known, v, whole, careful);
  pool_rows rows = {p->row[0], p->row[first], p->row[last], p->row[3]};
  if (!rows.top) rows.top = rows.a;
  if (!rows.bottom) rows.bottom = rows.b;
  float *out[2] = {p->out[0], p->out[1]};
  if (out[0] && out[1] && v->scaled) return pool_three(rows, out, l, known.act, v, 1, 1, whole, careful);
  if (out[0] && out[1]) return pool_three(rows, out, l, known.act, v, 1, 0, whole, careful);
  return pool_three(rows, out, l, known.act, v, 0, v->scaled, whole, careful);
}

#define POOL_WINDOWS(NAME, KIND)                                                                                                   \
  static vm NAME(const pool_pair *p, int first, int last, const pool_line *l, const pool_end *end, const pool_vector *v, int whole) { \
    return whole ? pool_windows(p, first, last, l, end, v, KIND, 1, 0) : pool_windows(p, first, last, l, end, v, KIND, 0, 0);       \
  }
POOL_WINDOWS(pool_plain, EPILOGUE_NONE)
POOL_WINDOWS(pool_relu, EPILOGUE_RELU)
POOL_WINDOWS(pool_other, end->act.kind)

/* Where there is a NaN. */
static void pool_careful(const pool_pair *p, int first, int last, const pool_line *l, const pool_end *end, const pool_vector *v) {
  pool_windows(p, first, last, l, end, v, end->act.kind, 0, 1);
}

/* Both rows of windows, n channels. */
static void pool_pair_run(const pool_pair *p, const pool_line *l, const pool_end *end, int64_t n) {
  const int kind = end->act.kind;
  int first = 1, last = (int)l->k - 1;
  while (!p->row[first]) first++;
  while (!p->row[last]) last--;
  for (int64_t c = 0; c < n; c += VL) {
    pool_pair at = *p;
    for (int i = 0; i <= l->k; i++)
      if (at.row[i]) at.row[i] += c;
    for (int r = 0; r < 2; r++)
      if (at.out[r]) at.out[r] += c;
    const int whole = n - c >= VL;
    pool_vector v = {.scaled = end->scale != NULL, .left = (int)min64(n - c, VL)};
    if (v.scaled) v.scale = pool_load(end->scale + c, whole, v.left), v.shift = pool_load(end->shift + c, whole, v.left);
    const vm unordered = (kind == EPILOGUE_NONE ? pool_plain : kind == EPILOGUE_RELU ? pool_relu : pool_other)(&at, first, last, l, end, &v, whole);
    if (vm_any(unordered)) pool_careful(&at, first, last, l, end, &v);
  }
}

#endif
