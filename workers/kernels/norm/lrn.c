/* LRN: x / (bias + alpha / size · Σ x²)^beta, f32, the sum over a window of channels (axis 1) in ascending order. */
#include <math.h>

#include "elementwise/functions.h"
#include "vector/nd.h"
#include "vector/vec.h"

#define BLOCK 128

/* Divides n elements by (bias + scale · sum)^beta. */
static void finish(const float *x, const float *sum, float *out, int64_t n, float bias, float scale, float beta) {
  float v[BLOCK], b[BLOCK];
  if (beta == 0.75f) { /* what every published network with LRN has */
    for (int64_t j = 0; j < n; j++) {
      const float root = sqrtf(bias + scale * sum[j]);
      out[j] = x[j] / (root * sqrtf(root));
    }
    return;
  }
  for (int64_t j = 0; j < n; j++) v[j] = bias + scale * sum[j], b[j] = beta;
  FN(power)(v, b, v, n);
  for (int64_t j = 0; j < n; j++) out[j] = x[j] / v[j];
}

int FN(lrn)(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *in = &c->args[1];
  if (out->dtype != ASPEN_DT_F32 || in->dtype != ASPEN_DT_F32 || in->rank < 2 || out->rank != in->rank) return ASPEN_KERNEL_BAD_ARGUMENT;
  const int64_t size = c->params[0], channels = in->dims[1], before = (size - 1) / 2, after = size - 1 - before;
  if (size < 1) return ASPEN_KERNEL_BAD_ARGUMENT;
  const float scale = (float)(aspen_param_f(c, 1) / (double)size), beta = (float)aspen_param_f(c, 2), bias = (float)aspen_param_f(c, 3);
  const int64_t channel_step = in->strides[1] * 4;
  nd it; /* a third argument, which is not memory, carries the channel of each element */
  nd_begin(&it, 3);
  it.ptr[0] = out->ptr, it.ptr[1] = in->ptr, it.ptr[2] = in->ptr;
  for (int a = 0; a < out->rank; a++) {
    const int64_t strides[3] = {out->strides[a] * 4, in->strides[a] * 4, a == 1};
    for (int k = 0; k < 3; k++) it.ptr[k] += c->lo[a] * strides[k];
    nd_add_axis(&it, c->hi[a] - c->lo[a], strides);
  }
  if (!nd_order(&it)) return ASPEN_KERNEL_OK;
  const int64_t row = nd_row(&it), so = nd_step(&it, 0), si = nd_step(&it, 1), sc = nd_step(&it, 2);
  do {
    for (int64_t i = 0; i < row; i += BLOCK) {
      const int64_t m = nd_min(BLOCK, row - i), first = it.ptr[2] - in->ptr + i * sc; /* channel of the block's first element */
      const char *p = it.ptr[1] + i * si;
      float x[BLOCK], t[BLOCK], sum[BLOCK] = {0};
      for (int64_t w = -nd_min(before, channels - 1); w <= nd_min(after, channels - 1); w++) { /* beyond there are no channels */
        /* Elements j whose channel first + j sc + w exists. */
        int64_t j0 = 0, j1 = m;
        if (sc == 0) {
          if (first + w < 0 || first + w >= channels) continue;
        } else if (sc > 0) {
          j0 = nd_max(0, -(first + w)), j1 = nd_min(m, channels - first - w);
        } else {
          j0 = nd_max(0, first + w - channels + 1), j1 = nd_min(m, first + w + 1);
        }
        if (j0 >= j1) continue;
        const char *near = p + w * channel_step + j0 * si;
        const float *q = si == 4 ? (const float *)near : t;
        if (si != 4) nd_copy_row((char *)t, 4, near, si, j1 - j0, 4);
        for (int64_t j = j0; j < j1; j++) sum[j] += q[j - j0] * q[j - j0];
      }
      nd_copy_row((char *)x, 4, p, si, m, 4);
      finish(x, sum, t, m, bias, scale, beta);
      nd_copy_row(it.ptr[0] + i * so, so, (const char *)t, 4, m, 4);
    }
  } while (nd_next(&it));
  return ASPEN_KERNEL_OK;
}
