/* Maxima of 3 x 3 and 5 x 5 windows, one pixel apart, for POOL. The pixels of a row lie side by side (NCHW). Vectors run along rows.
 *
 * Pairs of rows share comparisons as in rows.h. The last of equal maxima in the order of comparison wins, and that order is the same; so
 * the bits are, too. Columns outside the image hold the least of all numbers. Columns of two vectors are in registers; a window's are lanes
 * of both.
 */
#ifndef ASPEN_POOL_PLANES_H
#define ASPEN_POOL_PLANES_H
#include "conv/pool/rows.h"

enum { PLANE_WIDEST = 5 };

/* Along a pair of rows of one channel. `row`: see `pool_pair`; in the place of one that is not there another that both windows see. */
typedef struct plane_pair {
  const float *row[PLANE_WIDEST + 1];
  float *out[2];
} plane_pair;

/* NaN if anything is that has been looked at. */
typedef struct plane_seen {
  vf a, b;
} plane_seen;

/* Columns that windows see: [from, to) of a row. */
typedef struct plane_span {
  int64_t from, to;
} plane_span;

INLINE vf plane_load(const float *row, int64_t x, plane_span in, const int inside) {
  return inside ? vload(row + x) : vload_between(row + x, max64(in.from - x, 0), max64(in.to - x, 0), vset1(-__builtin_inff()));
}

/* Maxima of the columns from x on, of both windows. */
INLINE void plane_columns(const float *const *row, const int k, int64_t x, plane_span in, const int inside, const int careful, plane_seen *seen,
                          vf *upper, vf *lower) {
  vf shared = plane_load(row[1], x, in, inside);
#pragma GCC unroll 4
  for (int i = 2; i < k; i++) {
    const vf t = plane_load(row[i], x, in, inside);
    if (!careful && i == 2) seen->a = vfma(shared, t, seen->a);
    if (!careful && i == 4) seen->a = vfma(plane_load(row[3], x, in, inside), t, seen->a);
    shared = pool_max(shared, t, careful);
  }
  const vf top = plane_load(row[0], x, in, inside), bottom = plane_load(row[k], x, in, inside);
  if (!careful) seen->b = vfma(top, bottom, seen->b);
  *upper = k == 3 ? pool_max(top, shared, careful) : pool_max(shared, top, careful);
  *lower = k == 3 ? pool_max(bottom, shared, careful) : pool_max(shared, bottom, careful);
}

/* Lanes from n on of two vectors. */
INLINE vf plane_lanes(vf a, vf b, const int n) { return __builtin_shuffle(a, b, vilanes() + viset1(n)); }

/* Windows of the columns beside those of `here`. */
INLINE vf plane_across(vf before, vf here, vf next, const int k, const int careful) {
  vf y = plane_lanes(before, here, VL - k / 2);
#pragma GCC unroll 4
  for (int i = 1; i < k / 2; i++) y = pool_max(y, plane_lanes(before, here, VL - k / 2 + i), careful);
  y = pool_max(y, here, careful);
#pragma GCC unroll 4
  for (int i = 1; i <= k / 2; i++) y = pool_max(y, plane_lanes(here, next, i), careful);
  return y;
}

INLINE void plane_store(float *to, vf y, int64_t left, const epilogue *act, vf scale, vf shift, const int scaled, const int careful) {
  if (careful) y = vsel(visnan(y), vset1(__builtin_nanf("")), y);
  if (scaled) y = vfma(y, scale, shift);
  epilogue_act(act, &y, 1);
  if (left >= VL)
    vstore(to, y);
  else
    vstore_part(to, y, left);
}

/* `both`: both rows are wanted. */
INLINE vm plane_pair_run(plane_pair p, const int k, const pool_line *l, const pool_end *end, const pool_vector *v, const int both,
                         const int scaled, const int careful) {
  const vf lowest = vset1(-__builtin_inff()), scale = v->scale, shift = v->shift;
  const epilogue act = end->act;
  const int64_t hi = l->hi;
  const plane_span in = {max64(l->lo - k / 2, 0), min64(hi + k / 2, l->in)};
  plane_seen seen = {vzero(), vzero()};
  vf upper[3] = {lowest, lowest, lowest}, lower[3] = {lowest, lowest, lowest};
  if (in.from < l->lo) plane_columns(p.row, k, l->lo - VL, in, 0, careful, &seen, &upper[0], &lower[0]);
  plane_columns(p.row, k, l->lo, in, 0, careful, &seen, &upper[1], &lower[1]);
  for (int64_t o = l->lo; o < hi; o += VL) {
    const int64_t x = o + VL;
    if (x + VL <= in.to)
      plane_columns(p.row, k, x, in, 1, careful, &seen, &upper[2], &lower[2]);
    else if (x < in.to)
      plane_columns(p.row, k, x, in, 0, careful, &seen, &upper[2], &lower[2]);
    else
      upper[2] = lower[2] = lowest;
    if (both || p.out[0])
      plane_store(p.out[0] + o, plane_across(upper[0], upper[1], upper[2], k, careful), hi - o, &act, scale, shift, scaled, careful);
    if (both || p.out[1])
      plane_store(p.out[1] + o, plane_across(lower[0], lower[1], lower[2], k, careful), hi - o, &act, scale, shift, scaled, careful);
    upper[0] = upper[1], lower[0] = lower[1], upper[1] = upper[2], lower[1] = lower[2];
  }
  return visnan(seen.a + seen.b);
}

/* Rows [lo, hi) of windows of a channel. `x`, `out`: its first pixels; `down`, `out_down`: elements from a row to the next; `ring`: of
 * rows, or 0. */
typedef struct plane {
  window rows;
  const float *x;
  float *out;
  int64_t down, out_down, lo, hi;
  uint32_t ring, out_ring;
} plane;

INLINE const float *plane_from(const plane *p, int64_t row) { return p->x + pool_row(row, p->ring) * p->down; }
INLINE float *plane_to(const plane *p, int64_t row) {
  return row >= p->lo && row < p->hi ? p->out + pool_row(row, p->out_ring) * p->out_down : NULL;
}

INLINE vm plane_rows(const plane *at, const int k, const pool_line *l, const pool_end *end, const pool_vector *v, const int scaled,
                     const int careful) {
  vm unordered = vunordered(vzero(), vzero());
  for (int64_t even = at->lo - at->lo % 2; even < at->hi; even += 2) {
    const int64_t top = even - at->rows.pad, first = max64(top + 1, 0), last = min64(top + k, at->rows.in) - 1;
    if (first > last) continue;
    plane_pair p = {.out = {plane_to(at, even), plane_to(at, even + 1)}};
#pragma GCC unroll 4
    for (int i = 1; i < k; i++) p.row[i] = plane_from(at, min64(max64(top + i, first), last));
    p.row[0] = plane_from(at, top >= 0 && p.out[0] ? top : last);
    p.row[k] = plane_from(at, top + k < at->rows.in && p.out[1] ? top + k : last);
    unordered = vm_or(unordered, p.out[0] && p.out[1] ? plane_pair_run(p, k, l, end, v, 1, scaled, careful)
                                                      : plane_pair_run(p, k, l, end, v, 0, scaled, careful));
  }
  return unordered;
}

/* With a window, and an activation, that the compiler knows. */
INLINE vm plane_known(const plane *p, const pool_line *l, const pool_end *end, const pool_vector *v, const int kind, const int careful) {
  pool_end known = *end;
  known.act.kind = (uint8_t)kind;
  if (l->k == 3) return v->scaled ? plane_rows(p, 3, l, &known, v, 1, careful) : plane_rows(p, 3, l, &known, v, 0, careful);
  return plane_rows(p, 5, l, &known, v, v->scaled, careful);
}

#define PLANE(NAME, KIND, CAREFUL)                                                                                                 \
  static vm NAME(const plane *p, const pool_line *l, const pool_end *end, const pool_vector *v) {                                  \
    return plane_known(p, l, end, v, KIND, CAREFUL);                                                                               \
  }
PLANE(plane_plain, EPILOGUE_NONE, 0)
PLANE(plane_relu, EPILOGUE_RELU, 0)
PLANE(plane_other, end->act.kind, 0)
PLANE(plane_careful, end->act.kind, 1) /* where there is a NaN */
#undef PLANE

/* Channel c of the tile. */
static void plane_run(const plane *p, const pool_line *l, const pool_end *end, int64_t c) {
  pool_vector v = {.scaled = end->scale != NULL};
  if (v.scaled) v.scale = vset1(end->scale[c]), v.shift = vset1(end->shift[c]);
  const int kind = end->act.kind;
  if (vm_any((kind == EPILOGUE_NONE ? plane_plain : kind == EPILOGUE_RELU ? plane_relu : plane_other)(p, l, end, &v)))
    plane_careful(p, l, end, &v);
}

#endif
