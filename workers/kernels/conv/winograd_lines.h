/* Winograd's minimal filtering along one axis: what a line of input becomes, and what products become a line of output.
 *
 * An axis has a kernel of k taps, a stride s, and blocks of m outputs. n is both the input that a block sees and the products it takes.
 *
 * - k = 1: m = n = 1. Nothing is done.
 * - s = 1: n = m + k - 1. F(m, k).
 * - k = 3, s = 2: n = 2 m + 1. Two convolutions of stride 1 are summed. Even inputs have taps 0 and 2, by F(m, 2) of m + 1 products.
 *   Odd inputs have tap 1, by m plain products.
 *
 * F(m, k) follows from its points of interpolation (Toom-Cook, the last one at infinity), which depend on n alone. Every coefficient of the
 * input's side is exact in f32. planner/ops/packing/winograd.py has the same points and makes the weights.
 */
#ifndef ASPEN_WINOGRAD_LINES_H
#define ASPEN_WINOGRAD_LINES_H
#include "vector/vec.h"

#define WINOGRAD_SIDE 12 /* n at most */
#define WINOGRAD_BLOCK 6 /* m at most */

/* Products of an axis, and the step between the inputs of neighbouring blocks; how many different weights they take. */
INLINE int winograd_side(const int k, const int s, const int m) { return k == 1 ? 1 : s == 2 ? 2 * m + 1 : m + k - 1; }
INLINE int winograd_weights(const int k, const int s, const int m) { return s == 2 ? m + 2 : winograd_side(k, s, m); }

/* Points are 0, pairs ±point, and infinity; with an odd number of products there is one more, alone: see in_points. */
INLINE float winograd_point(const int pairs, const int j) {
  switch (pairs) {
  case 1: return 1.0f;
  case 2: return j == 0 ? 0.625f : 1.5f;
  case 3: return j == 0 ? 0.5f : j == 1 ? 1.0f : 2.0f;
  case 4: return j == 0 ? 0.4375f : j == 1 ? 0.8125f : j == 2 ? 1.25f : 2.25f;
  default: return j == 0 ? 0.375f : j == 1 ? 0.6875f : j == 2 ? 1.0f : j == 3 ? 1.5f : 2.75f;
  }
}
#define LONE_PAIR 0.75f /* n = 5: 0, ±3/4, 2 */
#define LONE 2.0f

INLINE float winograd_power(const float a, const int k) {
  return k == 0 ? 1.0f : k == 1 ? a : k == 2 ? a * a : k == 3 ? a * a * a : k == 4 ? a * a * a * a : a * a * a * a * a;
}

/* d times the product of (t^2 - point^2) over all pairs but `without`: powers of t are places in d, which begins at t^0. */
INLINE vf times_others(const int pairs, const int without, const vf *d) {
  float e1 = 0, e2 = 0, e3 = 0, e4 = 0, e5 = 0; /* elementary symmetric polynomials of the squares; all of it is known when compiled */
  const int others = pairs - (without < pairs);
#define ROOT(j)                                                                                                                    \
  if (j < pairs && j != without) {                                                                                                 \
    const float x = winograd_point(pairs, j) * winograd_point(pairs, j);                                                           \
    e5 += e4 * x, e4 += e3 * x, e3 += e2 * x, e2 += e1 * x, e1 += x;                                                               \
  }
  ROOT(0) ROOT(1) ROOT(2) ROOT(3) ROOT(4)
#undef ROOT
  vf y = d[2 * others];
  if (others >= 1) y = vfnma(vset1(e1), d[2 * (others - 1)], y);
  if (others >= 2) y = vfma(vset1(e2), d[2 * (others - 2)], y);
  if (others >= 3) y = vfnma(vset1(e3), d[2 * (others - 3)], y);
  if (others >= 4) y = vfma(vset1(e4), d[2 * (others - 4)], y);
  if (others >= 5) y = vfnma(vset1(e5), d[2 * (others - 5)], y);
  return y;
}

/* n inputs to n products, stride 1. */
INLINE void in_points(const int n, const vf *d, vf *o) {
  if (n == 3) { /* 0, 1 */
    o[0] = d[1] - d[0];
    o[1] = d[1];
    o[2] = d[2] - d[1];
  } else if (n == 5) {
    const vf a = vset1(LONE_PAIR), aa = vset1(LONE_PAIR * LONE_PAIR), b = vset1(LONE);
    const vf f0 = vfnma(b, d[0], d[1]), f1 = vfnma(b, d[1], d[2]), f2 = vfnma(b, d[2], d[3]), f3 = vfnma(b, d[3], d[4]);
    o[0] = vfnma(aa, f0, f2);
    o[1] = vfma(a, f1, f2);
    o[2] = vfnma(a, f1, f2);
    o[3] = vfnma(aa, d[1], d[3]);
    o[4] = vfnma(aa, f1, f3);
  } else {
    const int pairs = (n - 2) / 2;
    o[0] = times_others(pairs, pairs, d);
#pragma GCC unroll 5
    for (int j = 0; j < pairs; j++) {
      const vf even = times_others(pairs, j, d + 2), odd = times_others(pairs, j, d + 1), a = vset1(winograd_point(pairs, j));
      o[1 + 2 * j] = vfma(a, odd, even);
      o[2 + 2 * j] = vfnma(a, odd, even);
    }
    o[n - 1] = times_others(pairs, pairs, d + 1);
  }
}

/* n products to m outputs, stride 1. */
INLINE void out_points(const int n, const int m, const vf *p, vf *o) {
  if (n == 3) {
    o[0] = p[0] + p[1];
    o[1] = p[1] + p[2];
  } else if (n == 5) {
    const vf even = p[1] + p[2], odd = p[1] - p[2];
    o[0] = p[0] + (even + p[3]);
#pragma GCC unroll 6
    for (int k = 1; k < m; k++) {
      const vf x = vset1(winograd_power(LONE, k));
      vf sum = x * p[3];
      if (k == m - 1) sum = vfma(x, p[3], p[4]);
      o[k] = vfma(vset1(winograd_power(LONE_PAIR, k)), k % 2 ? odd : even, sum);
    }
  } else {
    const int pairs = (n - 2) / 2;
    vf both[2][(WINOGRAD_SIDE - 2) / 2]; /* even, odd */
#pragma GCC unroll 5
    for (int j = 0; j < pairs; j++) both[0][j] = p[1 + 2 * j] + p[2 + 2 * j], both[1][j] = p[1 + 2 * j] - p[2 + 2 * j];
    vf sum = both[0][pairs - 1];
#pragma GCC unroll 5
    for (int j = pairs - 2; j >= 0; j--) sum = both[0][j] + sum;
    o[0] = p[0] + sum;
#pragma GCC unroll 6
    for (int k = 1; k < m; k++) {
      const float largest = winograd_power(winograd_point(pairs, pairs - 1), k);
      const vf last = both[k % 2][pairs - 1];
      if (k == m - 1)
        sum = vfma(vset1(largest), last, p[n - 1]);
      else
        sum = vset1(largest) * last;
#pragma GCC unroll 5
      for (int j = pairs - 2; j >= 0; j--) sum = vfma(vset1(winograd_power(winograd_point(pairs, j), k)), both[k % 2][j], sum);
      o[k] = sum;
    }
  }
}

/* An axis of kernel k, stride s, block m: n inputs to n products, and those to m outputs. */
INLINE void line_in(const int k, const int s, const int m, const vf *d, vf *o) {
  if (k == 1) {
    o[0] = d[0];
  } else if (s == 2) {
    vf even[WINOGRAD_BLOCK + 1];
#pragma GCC unroll 7
    for (int i = 0; i <= m; i++) even[i] = d[2 * i];
    in_points(m + 1, even, o);
#pragma GCC unroll 6
    for (int i = 0; i < m; i++) o[m + 1 + i] = d[2 * i + 1];
  } else {
    in_points(m + k - 1, d, o);
  }
}

INLINE void line_out(const int k, const int s, const int m, const vf *p, vf *o) {
  if (k == 1) {
    o[0] = p[0];
  } else if (s == 2) {
    out_points(m + 1, m, p, o);
#pragma GCC unroll 6
    for (int i = 0; i < m; i++) o[i] += p[m + 1 + i];
  } else {
    out_points(m + k - 1, m, p, o);
  }
}

#endif
