/* Products of a few columns, most often one: a linear model's scores. Vectors of columns would be nearly empty, so here vectors hold rows,
 * whose terms are transposed on the way. Sums, epilogues and bits are those of mm_block. */
#ifndef ASPEN_NARROW_H
#define ASPEN_NARROW_H
#include "gemm/mm.h"
#include "movement/transpose.h"

#define NARROW_COLUMNS 8
#define NARROW_TERMS 64 /* transposed at a time */

/* Whether so many columns of `rows` rows that lie `a_step` elements apart go this way; a_step 0: they do not lie evenly. */
INLINE int narrow(const mm_job *job, int64_t rows, int64_t a_step, const float *residual, int64_t columns) {
  return columns <= NARROW_COLUMNS && rows >= VL && a_step && a_step * (int64_t)sizeof(float) % MM_SET_BYTES && job->a_stride == 1 &&
         job->b_stride == ASPEN_NR && job->direct && job->one_bias && !residual;
}

/* VL rows times N columns. b, bias, scale, shift and out: of the first of them. */
INLINE void narrow_rows(const int N, const mm_job *job, const float *a, int64_t a_step, const float *b, const float *bias,
                        const float *scale, const float *shift, float *out, int64_t out_step) {
  float x[NARROW_TERMS * VL] __attribute__((aligned(64)));
  vf sum[NARROW_COLUMNS];
#pragma GCC unroll 8
  for (int n = 0; n < N; n++) sum[n] = vzero();
  for (int64_t at = 0; at < job->k; at += NARROW_TERMS) {
    const int64_t terms = job->k - at < NARROW_TERMS ? job->k - at : NARROW_TERMS;
    transpose((char *)x, VL * sizeof(float), (const char *)(a + at), a_step * (int64_t)sizeof(float), terms, VL, sizeof(float));
    for (int64_t k = 0; k < terms; k++, b += ASPEN_NR)
#pragma GCC unroll 8
      for (int n = 0; n < N; n++) sum[n] = vfma(vload(x + k * VL), vset1(b[n]), sum[n]);
  }
#pragma GCC unroll 8
  for (int n = 0; n < N; n++) {
    if (job->scaled) sum[n] *= vset1(job->alpha);
    if (bias) sum[n] += vset1(bias[n]);
  }
  epilogue_act(&job->epilogue, sum, N);
#pragma GCC unroll 8
  for (int n = 0; n < N; n++) {
    if (scale) sum[n] = vfma(sum[n], vset1(scale[n]), vset1(shift[n]));
    vstore(x + n * VL, sum[n]);
  }
  if (N == 1 && out_step == 1) {
    vstore(out, sum[0]);
    return;
  }
  for (int r = 0; r < VL; r++, out += out_step)
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) out[n] = x[n * VL + r];
}

/* All rows; the last vector of them may hold some that the one before it had. Pointers as of narrow_rows. */
INLINE void narrow_columns(const int N, const mm_job *job, int64_t rows, const float *a, int64_t a_step, const float *b, const float *bias,
                           const float *scale, const float *shift, float *out, int64_t out_step) {
  for (int64_t row = 0; row < rows; row += VL) {
    const int64_t from = row + VL <= rows ? row : rows - VL;
    narrow_rows(N, job, a + from * a_step, a_step, b, bias, scale, shift, out + from * out_step, out_step);
  }
}

#endif
