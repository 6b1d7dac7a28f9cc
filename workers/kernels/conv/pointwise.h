/* Products of few terms: pixels times a panel of weights, where the sums are done before the machinery of mm.h has warmed up. Pixels lie
 * one step apart with unit channels, and so do the taps of a pixel, so there is no pointer for each of them. Sums are those of mm.h:
 * ascending terms from zero, one vfma each, then bias, residual and activation. So both give the same bits.
 */
#ifndef ASPEN_POINTWISE_H
#define ASPEN_POINTWISE_H
#include "vector/epilogue.h"
#include "gemm/mm.h"

#define POINTWISE_FEWEST MM_FEWEST_PIXELS /* pixels of the smallest micro-kernel */
#if VL == 16
#define POINTWISE_MOST 8
#else
#define POINTWISE_MOST 6
#endif
#if VL == 8 /* few pixels times all vectors of a panel: fewer loads a term than with many pixels times two */
#define POINTWISE_WIDER 3
#endif

INLINE void pointwise_add(const int R, const int V, const int whole, const float *residual, int64_t step, int64_t columns, vf *sum) {
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++)
      sum[r * V + v] += whole ? vload(residual + r * step + v * VL) : vload_part(residual + r * step + v * VL, columns - v * VL);
}

INLINE void pointwise_home(const int R, const int V, const int whole, const int past, const mm_pixels *w, float *to, int64_t columns, const vf *sum) {
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++)
      if (whole)
        vstore_to(past, to + r * w->to_step + v * VL, sum[r * V + v]);
      else
        vstore_part(to + r * w->to_step + v * VL, sum[r * V + v], columns - v * VL);
}

/* R pixels times V vectors of columns, 1, 2 or (POINTWISE_WIDER pixels) 4, `columns` of them (whole: all). x, bias, residual (or NULL) and
 * to: of the first pixel and column. next: lines that come nearer meanwhile, `next_step` bytes a term. */
INLINE void pointwise_block(const int R, const int V, const int whole, const mm_pixels *w, const epilogue *e, const float *x, const float *panel,
                            const float *bias, const float *residual, float *to, int64_t columns, const char *next, int64_t next_step) {
  vf sum[2 * POINTWISE_MOST]; /* R x V; a constant number lives in registers */
  const float *p[POINTWISE_MOST];
#pragma GCC unroll 16
  for (int i = 0; i < R * V; i++) sum[i] = vzero();
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) p[r] = x + r * w->x_step;
  const int64_t depth = w->depth;
  for (int64_t tap = w->taps; tap > 0; tap--) {
    for (int64_t k = 0; k < depth; k++, panel += ASPEN_NR, next += next_step) {
#if POINTWISE_WIDER
      if (V > 2) { /* the pixels are in registers, and the weights go by */
        vf at[POINTWISE_WIDER];
        __builtin_prefetch(next, 0, 2);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) at[r] = vset1(p[r][k]);
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) {
          const vf y = vload(panel + v * VL);
#pragma GCC unroll 8
          for (int r = 0; r < R; r++) VFMA_IN(sum[r * V + v], y, at[r]);
        }
        continue;
      }
#endif
      vf y[2];
#pragma GCC unroll 2
      for (int v = 0; v < V; v++) y[v] = vload(panel + v * VL);
      __builtin_prefetch(next, 0, 2);
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) {
        const vf at = vset1(p[r][k]);
#pragma GCC unroll 2
        for (int v = 0; v < V; v++) sum[r * V + v] = vfma(at, y[v], sum[r * V + v]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) p[r] += w->tap_step;
  }
  if (bias)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) {
      const vf b = whole ? vload(bias + v * VL) : vload_part(bias + v * VL, columns - v * VL);
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) sum[r * V + v] += b;
    }
  if (residual && !e->residual_last) pointwise_add(R, V, whole, residual, w->residual_step, columns, sum);
  epilogue_act(e, sum, R * V);
  if (residual && e->residual_last) pointwise_add(R, V, whole, residual, w->residual_step, columns, sum);
  if (STORES_LINES(V) && whole && stores_begin(e->past, to)) pointwise_home(R, V, 1, 1, w, to, columns, sum);
  else pointwise_home(R, V, whole, 0, w, to, columns, sum);
}

/* Pixels of a micro-kernel for n in a row: the least work, where each call costs as much as half a pixel more. 0: n is too few. */
INLINE int64_t pointwise_pixels(int64_t n) {
  int64_t best = 0, least = INT64_MAX;
  for (int64_t r = POINTWISE_FEWEST; r <= POINTWISE_MOST && r <= n; r++) {
    const int64_t work = (n + r - 1) / r * (2 * r + 1);
    if (work <= least) best = r, least = work;
  }
  return best;
}

#if POINTWISE_WIDER
/* Whether n pixels times all columns of a panel take less with POINTWISE_WIDER pixels at a time, counted as above. */
INLINE int pointwise_wider(int64_t n) {
  const int64_t r = pointwise_pixels(n), wide = POINTWISE_WIDER;
  return r && (n + wide - 1) / wide * (4 * wide + 1) <= 2 * ((n + r - 1) / r) * (2 * r + 1);
}
#endif

#endif
