/* The inner loops of depthwise convolution, for vectors of channels: DWCONV and PWDW share them, so both give the same bits. Small kernels
 * of common sizes are unrolled whole, others by runs of taps.
 *
 * An output is summed from zero over its taps in ascending order (kernel rows, then columns), one vfma a tap.
 */
#ifndef ASPEN_DEPTHWISE_H
#define ASPEN_DEPTHWISE_H
#include "kernel.h"
#include "vector/half_lanes.h"
#include "vector/vec.h"
#include "conv/window.h"

/* Sums in registers: rows times pixels. Beside them, the weights of a kernel row for each of the rows, and an input. */
#if VL == 16
#define DEPTHWISE_PIXELS 7
#define DEPTHWISE_ROWS_3 2 /* for kernels of 3 x 3 */
#define DEPTHWISE_ROWS_5 2 /* of 5 x 5 */
#elif VL == 8
#define DEPTHWISE_PIXELS 7 /* the widths of common images are multiples of 7; two rows would leave room for 4 */
#define DEPTHWISE_ROWS_3 1
#define DEPTHWISE_ROWS_5 1
#else
#define DEPTHWISE_PIXELS 4
#define DEPTHWISE_ROWS_3 2
#define DEPTHWISE_ROWS_5 1
#endif
#define DEPTHWISE_RUN 7 /* neighbouring taps whose weights lie in registers, beside as many sums as DEPTHWISE_PIXELS and more */

/* Is this a kernel and stride that depthwise_taps is made for? */
INLINE int depthwise_common(const window *rows, const window *columns) {
  return rows->kernel == columns->kernel && rows->stride == columns->stride && rows->dilation == 1 && columns->dilation == 1 &&
         (rows->kernel == 3 || rows->kernel == 5) && (rows->stride == 1 || rows->stride == 2);
}

/* sum[r * P + p]: R output rows of P neighbouring pixels, whose windows of KH x KW taps lie SH rows and SW columns apart, no dilation.
 * line[i] points at the first tap of the first pixel in input row i of (R - 1) * SH + KH. `column` elements lie between input columns,
 * `tap` between taps of w. `edge`: of the columns from there on only [lo, hi) count, and of the rows those that are not NULL. An input
 * vector is loaded once for all the sums it belongs to. half: the input is stored as bf16. */
INLINE void depthwise_taps(const int half, const int R, const int P, const int KH, const int KW, const int SH, const int SW, const int edge, vf *sum,
                           const float *const *line, int64_t at, int64_t column, int64_t lo, int64_t hi, const float *w, int64_t tap) {
#pragma GCC unroll 16
  for (int i = 0; i < (R - 1) * SH + KH; i++) {
    if (edge && !line[i]) continue;
    const int64_t item = half ? sizeof(uint16_t) : sizeof(float);
    const char *from = (const char *)line[i] + at * item;
    vf weight[2][5];
#pragma GCC unroll 2
    for (int r = 0; r < R; r++)
#pragma GCC unroll 5
      for (int t = 0; t < KW; t++)
        if (i >= r * SH && i - r * SH < KH) weight[r][t] = vload(w + ((i - r * SH) * KW + t) * tap);
#pragma GCC unroll 32
    for (int j = 0; j < (P - 1) * SW + KW; j++, from += column * item) {
      if (edge && !(j >= lo && j < hi)) continue;
      vf seen = half ? vload_halves((const uint16_t *)from) : vload((const float *)from);
      VKEEP(seen);
#pragma GCC unroll 2
      for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int p = 0; p < P; p++)
          if (i >= r * SH && i - r * SH < KH && j >= p * SW && j - p * SW < KW)
            VFMA_IN(sum[r * P + p], seen, weight[r][j - p * SW]);
    }
  }
}

/* sum[p] over T neighbouring taps of a kernel row, for P pixels whose windows lie S columns apart, no dilation. from: the first tap of the
 * first pixel; `column` elements lie between input columns, `tap` between taps of w. `edge`: of the columns from there on, only [lo, hi)
 * count. */
INLINE void depthwise_run(const int T, const int P, const int S, const int edge, vf *sum, const float *from, int64_t column, int64_t lo, int64_t hi,
                          const float *w, int64_t tap) {
  vf weight[DEPTHWISE_RUN];
#pragma GCC unroll 8
  for (int t = 0; t < T; t++) weight[t] = vload(w + t * tap);
#pragma GCC unroll 64
  for (int j = 0; j < (P - 1) * S + T; j++, from += column) {
    if (edge && !(j >= lo && j < hi)) continue;
    vf seen = vload(from);
    VKEEP(seen);
#pragma GCC unroll 16
    for (int p = 0; p < P; p++)
      if (j >= p * S && j - p * S < T) VFMA_IN(sum[p], seen, weight[j - p * S]);
  }
}

/* The same of a single tap, where pixels lie `step` columns apart. */
INLINE void depthwise_tap(const int P, const int edge, vf *sum, const float *from, int64_t column, int64_t step, int64_t lo, int64_t hi, const float *w) {
  vf weight = vload(w);
  VKEEP(weight);
#pragma GCC unroll 16
  for (int p = 0; p < P; p++, from += step * column) {
    if (edge && !(p * step >= lo && p * step < hi)) continue;
    VFMA_IN(sum[p], vload(from), weight);
  }
}

/* DWCONV where image, output or residual are stored as bf16 (bdwconv.c). Returns an enum aspen_kernel_error. */
int FN(bdwconv)(const aspen_call *c);

#endif
