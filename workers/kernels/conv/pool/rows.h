/* Maxima of K x K windows that are one pixel apart, for POOL: neighbours share them.
 *
 * Two rows of windows, an even one and the one below it, share the maximum of the K - 1 rows of pixels that both see. Neighbours in a row
 * share the maxima of columns. So a maximum takes about K comparisons, not K * K. The pairs of rows and the order of comparisons follow
 * from the window's place alone. So every tile chooses the same of two equal zeros of both signs.
 *
 * vmax forgets a NaN in its first operand. So pixels are checked for NaNs on the way (a sum of products of all is NaN if one is). Rows that
 * may have one are done again with vmax_nan, in the same order.
 */
#ifndef ASPEN_POOL_ROWS_H
#define ASPEN_POOL_ROWS_H
#include "vector/epilogue.h"
#include "conv/window.h"

enum { POOL_STRIP = 96, POOL_WIDEST = 33 }; /* pixels whose columns are compared at once; the widest window */

/* The end of a window's value: act(value * scale + shift). */
typedef struct pool_end {
  epilogue act;
  const float *scale, *shift; /* of the tile's first channel, or NULL */
} pool_end;

/* Where row r of an image lies, of which rows maybe lie in a ring. */
INLINE int64_t pool_row(int64_t r, uint32_t ring) { return ring ? (int64_t)((uint32_t)r % ring) : r; }

/* The window rows of a pair: row k of pixels below the first window's topmost. Those outside the image are NULL. */
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

/* Maxima of a column of pixels, of both windows of a pair. `first`, `last`: rows that both see, at least one. */
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
  if (i <= last) {
    const vf a = pool_load(p->row[i] + at, whole, v->left);
    if (!careful) *unordered = vm_or(*unordered, visnan(a));
    shared = pool_max(shared, a, careful);
  }
  vf top = shared, bottom = shared;
  if (p->row[0]) top = pool_load(p->row[0] + at, whole, v->left);
  if (p->row[k]) bottom = pool_load(p->row[k] + at, whole, v->left);
  if (!careful) *unordered = vm_or(*unordered, vunordered(top, bottom));
  column[0] = pool_max(shared, top, careful);
  column[1] = pool_max(shared, bottom, careful);
}

/* Rows of a pair of windows of three and where they go. A missing one is replaced by another that changes nothing. A row outside the image
 * is replaced by a row that the window sees anyway, a window that is not wanted by the other one. */
typedef struct pool_rows {
  const float *row[4];
  float *out[2];
  epilogue act;
  vf scale, shift;
  int left;
} pool_rows;

/* Maxima of the column of pixels at `at`, for the upper and the lower window. `seen`: NaN if anything is. */
INLINE void pool_column_of_three(const pool_rows *p, int64_t at, vf column[2], vf seen[2], const int whole, const int careful) {
  vf x[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    x[i] = pool_load(p->row[i] + at, whole, p->left);
    if (VL == 16) VKEEP(x[i]); /* elsewhere registers are few */
  }
  const vf both = pool_max(x[1], x[2], careful);
  column[0] = pool_max(x[0], both, careful), column[1] = pool_max(x[3], both, careful);
  if (!careful) seen[0] = vfma(x[0], x[1], seen[0]), seen[1] = vfma(x[2], x[3], seen[1]);
}

INLINE void pool_put(const pool_rows *p, float *to, vf y, const int ends, const int whole, const int careful) {
  if (careful) y = vsel(visnan(y), vset1(__builtin_nanf("")), y);
  if (ends) y = vfma(y, p->scale, p->shift), epilogue_act(&p->act, &y, 1);
  if (whole)
    vstore(to, y);
  else
    vstore_part(to, y, p->left);
}

/* The windows of column x by themselves. */
INLINE void pool_one(const pool_rows *p, const pool_line *l, int64_t x, vf seen[2], const int ends, const int whole, const int careful) {
  const int64_t centre = x - l->pad + 1;
  vf c[3][2];
#pragma GCC unroll 3
  for (int i = 0; i < 3; i++) pool_column_of_three(p, min64(max64(centre - 1 + i, 0), l->in - 1) * l->step, c[i], seen, whole, careful);
#pragma GCC unroll 2
  for (int r = 0; r < 2; r++) {
    const vf y = x % 2 ? pool_max(pool_max(c[0][r], c[1][r], careful), c[2][r], careful)
                       : pool_max(c[0][r], pool_max(c[1][r], c[2][r], careful), careful);
    pool_put(p, p->out[r] + x * l->out_step, y, ends, whole, careful);
  }
}

/* The windows of an even column and of the next: they share the maximum of the two columns of pixels that both see. */
INLINE void pool_two(const pool_rows *p, float *out[2], int64_t out_step, vf before[2], vf here[2], int64_t at_next, int64_t at_last,
                     vf seen[2], const int ends, const int whole, const int careful) {
  vf next[2], last[2];
  pool_column_of_three(p, at_next, next, seen, whole, careful);
  pool_column_of_three(p, at_last, last, seen, whole, careful);
#pragma GCC unroll 2
  for (int r = 0; r < 2; r++) {
    const vf both = pool_max(here[r], next[r], careful);
    pool_put(p, out[r], pool_max(before[r], both, careful), ends, whole, careful);
    pool_put(p, out[r] + out_step, pool_max(both, last[r], careful), ends, whole, careful);
    before[r] = next[r], here[r] = last[r];
    out[r] += 2 * out_step;
  }
}

INLINE vm pool_three(const pool_rows *rows, const pool_line *line, const int ends, const int whole, const int careful) {
  const pool_rows p = *rows;
  const pool_line l = *line;
  vf seen[2] = {vzero(), vzero()};
  int64_t x = l.lo;
  if (x % 2 && x < l.hi) pool_one(&p, &l, x++, seen, ends, whole, careful);
  int64_t twos = (l.hi - x) / 2;
  if (twos > 0) {
    const int64_t centre = x - l.pad + 1, step = l.step, out_step = l.out_step, right = (l.in - 1) * step;
    float *out[2] = {p.out[0] + x * out_step, p.out[1] + x * out_step};
    vf before[2], here[2];
    int64_t at = centre * step;
    pool_column_of_three(&p, max64(at - step, 0), before, seen, whole, careful);
    pool_column_of_three(&p, at, here, seen, whole, careful);
    at += step;
    x += 2 * twos;
    const int64_t last = min64(twos, (l.in - 1 - centre) / 2); /* whose pixels are all there */
    for (int64_t i = 0; i < last; i++, at += 2 * step)
      pool_two(&p, out, out_step, before, here, at, at + step, seen, ends, whole, careful);
    if (last < twos) pool_two(&p, out, out_step, before, here, min64(at, right), right, seen, ends, whole, careful);
  }
  if (x < l.hi) pool_one(&p, &l, x, seen, ends, whole, careful);
  return visnan(seen[0] + seen[1]);
}

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

/* Windows of three rows and columns of one vector of channels. `ends`: they are scaled, or have an activation, which is `kind`. */
INLINE vm pool_threes(const pool_pair *p, int first, int last, const pool_line *l, const pool_end *end, const pool_vector *v, const int kind,
                      const int ends, const int whole, const int careful) {
  const float *a = p->row[first], *b = p->row[last], *top = p->row[0] ? p->row[0] : a, *bottom = p->row[3] ? p->row[3] : b;
  pool_rows rows = {.row = {p->out[0] ? top : bottom, a, b, p->out[1] ? bottom : top}, .act = end->act, .left = v->left,
                    .out = {p->out[0] ? p->out[0] : p->out[1], p->out[1] ? p->out[1] : p->out[0]},
                    .scale = v->scaled ? v->scale : vset1(1.0f), .shift = v->scaled ? v->shift : vset1(-0.0f)};
  rows.act.kind = (uint8_t)kind;
  return pool_three(&rows, l, ends, whole, careful);
}

/* Windows of any width of one vector of channels, with an activation that the compiler knows. */
INLINE vm pool_windows(const pool_pair *p, int first, int last, const pool_line *l, const pool_end *end, const pool_vector *v, const int kind,
                       const int ends, const int whole, const int careful) {
  if (l->k == 3) return pool_threes(p, first, last, l, end, v, kind, ends, whole, careful);
  pool_end known = *end;
  known.act.kind = (uint8_t)kind;
  return pool_wide(p, (int)l->k, first, last, l, &known, v, whole, careful);
}

#define POOL_WINDOWS(NAME, KIND, ENDS)                                                                                             \
  static vm NAME(const pool_pair *p, int first, int last, const pool_line *l, const pool_end *end, const pool_vector *v, int whole) { \
    return whole ? pool_windows(p, first, last, l, end, v, KIND, ENDS, 1, 0) : pool_windows(p, first, last, l, end, v, KIND, ENDS, 0, 0); \
  }
POOL_WINDOWS(pool_plain, EPILOGUE_NONE, 0)
POOL_WINDOWS(pool_scaled, EPILOGUE_NONE, 1)
POOL_WINDOWS(pool_relu, EPILOGUE_RELU, 1)
POOL_WINDOWS(pool_other, end->act.kind, 1)

/* Where there is a NaN. */
static void pool_careful(const pool_pair *p, int first, int last, const pool_line *l, const pool_end *end, const pool_vector *v) {
  pool_windows(p, first, last, l, end, v, end->act.kind, 1, 0, 1);
}

static void pool_move(pool_pair *p, const pool_line *l, int64_t channels) {
  for (int i = 0; i <= l->k; i++)
    if (p->row[i]) p->row[i] += channels;
  for (int r = 0; r < 2; r++)
    if (p->out[r]) p->out[r] += channels;
}

/* Both rows of windows, n channels: one vector of them after the other. Strips of windows leave cache lines in L1 for the next vector. */
static void pool_pair_run(pool_pair *p, const pool_line *line, const pool_end *end, int64_t n) {
  const int kind = end->act.kind;
  const int64_t strip = n > VL ? POOL_STRIP : line->hi;
  int first = 1, last = (int)line->k - 1;
  while (!p->row[first]) first++;
  while (!p->row[last]) last--;
  for (int64_t lo = line->lo, c; lo < line->hi; lo += strip, pool_move(p, line, -c)) {
    pool_line l = *line;
    l.lo = lo, l.hi = min64(lo + strip, line->hi);
    for (c = 0; c < n; c += VL, pool_move(p, line, VL)) {
      const int whole = n - c >= VL;
      pool_vector v = {.scaled = end->scale != NULL, .left = (int)min64(n - c, VL)};
      if (v.scaled) v.scale = pool_load(end->scale + c, whole, v.left), v.shift = pool_load(end->shift + c, whole, v.left);
      const vm unordered = (kind == EPILOGUE_RELU ? pool_relu : kind != EPILOGUE_NONE ? pool_other : v.scaled ? pool_scaled : pool_plain)(
          p, first, last, &l, end, &v, whole);
      if (vm_any(unordered)) pool_careful(p, first, last, &l, end, &v);
    }
  }
}

#endif
