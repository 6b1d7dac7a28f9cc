/* Sums of a few weighted pixels, for many channels at a time: shared by the kernels that read images between their pixels.
 *
 * A sum starts from zero and takes one fused (on the portable ISA, plain) multiply-add a pixel, in the order of the list. All functions
 * here agree on that.
 */
#ifndef ASPEN_SAMPLE_H
#define ASPEN_SAMPLE_H
#include "vector/vec.h"

#define SAMPLE_TAPS 64 /* most pixels of a sum: four along each of three axes */

/* vfma of single numbers. */
INLINE float sample_fma(float a, float b, float c) {
#if VL == 4
  return a * b + c;
#else
  return __builtin_fmaf(a, b, c);
#endif
}

/* V vectors of channels, or less than one: `part` (0: whole vectors) are left. */
INLINE void sample_vectors(float *to, const float *x, const int64_t *offset, const float *weight, int taps, const int V, int64_t part) {
  vf sum[4];
#pragma GCC unroll 4
  for (int v = 0; v < V; v++) sum[v] = vzero();
  for (int k = 0; k < taps; k++) {
    const float *p = x + offset[k];
    const vf w = vset1(weight[k]);
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) sum[v] = vfma(w, part ? vload_part(p, part) : vload(p + v * VL), sum[v]);
  }
#pragma GCC unroll 4
  for (int v = 0; v < V; v++)
    if (part) vstore_part(to, sum[v], part);
    else vstore(to + v * VL, sum[v]);
}

/* to[c] = Σ weight[k] x[offset[k] + c], c < n: channels side by side. */
INLINE void sample_channels(float *to, const float *x, const int64_t *offset, const float *weight, int taps, int64_t n) {
  int64_t c = 0;
  for (; c + 4 * VL <= n; c += 4 * VL) sample_vectors(to + c, x + c, offset, weight, taps, 4, 0);
  if (c + 2 * VL <= n) {
    sample_vectors(to + c, x + c, offset, weight, taps, 2, 0);
    c += 2 * VL;
  }
  for (; c + VL <= n; c += VL) sample_vectors(to + c, x + c, offset, weight, taps, 1, 0);
  if (c < n) sample_vectors(to + c, x + c, offset, weight, taps, 1, n - c);
}

/* The same where the image's channels are `step` elements apart and the result's `to_step`. */
INLINE void sample_strided(float *to, int64_t to_step, const float *x, int64_t step, const int64_t *offset, const float *weight, int taps,
                           int64_t n) {
  for (int64_t c = 0; c < n; c++) {
    float sum = 0;
    for (int k = 0; k < taps; k++) sum = sample_fma(weight[k], x[offset[k] + c * step], sum);
    to[c * to_step] = sum;
  }
}

#endif
