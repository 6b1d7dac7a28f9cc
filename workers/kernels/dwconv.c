/* DWCONV: depthwise 2-D convolution, each channel by its own kernel.
 *
 * Vectors run over channels. Along a row of output pixels, PIXELS neighbours whose windows lie inside the image share vectors of weights
 * and, where kernel and stride are common ones, of input; elsewhere pixels go one by one. An output is summed over its taps in ascending
 * order from zero, taps outside the image are skipped: a rule of the output pixel alone.
 */
#include "epilogue.h"
#include "window.h"

#define L1_BYTES (20 << 10) /* of input that the windows of one row of PIXELS may span */
#define PIXELS 4 /* times 2 vectors of channels: 8 sums, enough to hide the latency of a multiply-add */

typedef struct dwconv {
  window rows, columns;
  const float *x, *w, *bias, *residual; /* of this image; bias and residual may be NULL */
  float *out;
  int64_t x_row, x_column, x_channel, w_tap, w_channel, bias_channel, residual_column, residual_channel, out_column, out_channel;
  epilogue epilogue;
  const float *scale, *shift; /* may be NULL */
} dwconv;

INLINE vf load(const float *p, int64_t channel, int64_t stride, int64_t n, const int unit) {
  return !unit ? vload_strided(p + channel * stride, stride, n) : n >= VL ? vload(p + channel) : vload_part(p + channel, n);
}

/* sum[p * V + v] over taps [kh_lo, kh_hi) x [kw_lo, kw_hi) of P pixels, V vectors of channels from c on; n: channels left. */
INLINE void any_taps(const dwconv *d, const int P, const int V, const int unit, vf *sum, const float *x, const int64_t kh[2],
                     const int64_t kw[2], int64_t c, int64_t n) {
  const int64_t next = d->columns.stride * d->x_column;
  for (int64_t i = kh[0]; i < kh[1]; i++) {
    const float *from = x + i * d->rows.dilation * d->x_row + kw[0] * d->columns.dilation * d->x_column;
    const float *w = d->w + (i * d->columns.kernel + kw[0]) * d->w_tap;
    for (int64_t j = kw[0]; j < kw[1]; j++, from += d->columns.dilation * d->x_column, w += d->w_tap) {
      vf weight[4];
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) weight[v] = load(w, c + v * VL, d->w_channel, n - v * VL, unit);
#pragma GCC unroll 4
      for (int p = 0; p < P; p++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++)
          sum[p * V + v] = vfma(load(from + p * next, c + v * VL, d->x_channel, n - v * VL, unit), weight[v], sum[p * V + v]);
    }
  }
}

/* The same for whole kernel rows of K taps, column stride S, no dilation, unit channels: neighbours share what they read, so an input
 * vector is loaded once a kernel row. */
INLINE void whole_taps(const dwconv *d, const int P, const int V, const int K, const int S, vf *sum, const float *x,
                       const int64_t kh[2], int64_t c) {
  for (int64_t i = kh[0]; i < kh[1]; i++) {
    const float *from = x + i * d->rows.dilation * d->x_row + c, *w = d->w + i * K * d->w_tap + c;
    vf weight[5][4];
#pragma GCC unroll 5
    for (int t = 0; t < K; t++)
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) weight[t][v] = vload(w + t * d->w_tap + v * VL);
#pragma GCC unroll 16
    for (int j = 0; j < (P - 1) * S + K; j++, from += d->x_column)
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) {
        vf seen = vload(from + v * VL);
        VKEEP(seen);
#pragma GCC unroll 4
        for (int p = 0; p < P; p++)
          if (j >= p * S && j - p * S < K) sum[p * V + v] = vfma(seen, weight[j - p * S][v], sum[p * V + v]);
      }
  }
}

/* P pixels from output column ow on, all with the same taps, times V vectors of channels. K: taps of a kernel row where whole_taps
 * serves, or 0. */
INLINE void pixels(const dwconv *d, const int P, const int V, const int unit, const int K, const int S, const float *x,
                   const float *residual, float *out, const int64_t kh[2], const int64_t kw[2], int64_t c, int64_t n) {
  vf sum[PIXELS * 4];
#pragma GCC unroll 4
  for (int p = 0; p < P; p++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) sum[p * V + v] = vzero();
  if (K)
    whole_taps(d, P, V, K, S, sum, x, kh, c);
  else
    any_taps(d, P, V, unit, sum, x, kh, kw, c, n);
  /* Copies, because the compiler cannot know that stores to the output leave d alone. */
  const int64_t residual_column = d->residual_column, residual_channel = d->residual_channel;
  const int64_t out_column = d->out_column, out_channel = d->out_channel;
  const float *const biases = d->bias, *const scales = d->scale, *const shifts = d->shift;
  const int64_t bias_channel = d->bias_channel;
  const int late = d->epilogue.residual_last;
#pragma GCC unroll 4
  for (int v = 0; v < V; v++) {
    const int64_t channel = c + v * VL, left = n - v * VL;
    if (biases) {
      const vf bias = load(biases, channel, bias_channel, left, unit);
#pragma GCC unroll 4
      for (int p = 0; p < P; p++) sum[p * V + v] += bias;
    }
    if (residual && !late)
#pragma GCC unroll 4
      for (int p = 0; p < P; p++) sum[p * V + v] += load(residual + p * residual_column, channel, residual_channel, left, unit);
  }
  epilogue_act(&d->epilogue, sum, P * V);
#pragma GCC unroll 4
  for (int v = 0; v < V; v++) {
    const int64_t channel = c + v * VL, left = n - v * VL;
    if (scales) {
      const vf scale = load(scales, channel, 1, left, 1), shift = load(shifts, channel, 1, left, 1);
#pragma GCC unroll 4
      for (int p = 0; p < P; p++) sum[p * V + v] = vfma(sum[p * V + v], scale, shift);
    }
    if (residual && late)
#pragma GCC unroll 4
      for (int p = 0; p < P; p++) sum[p * V + v] += load(residual + p * residual_column, channel, residual_channel, left, unit);
#pragma GCC unroll 4
    for (int p = 0; p < P; p++) {
      float *to = out + p * out_column + (unit ? channel : channel * out_channel);
      if (!unit)
        vstore_strided(to, out_channel, sum[p * V + v], left);
      else if (left >= VL)
        vstore(to, sum[p * V + v]);
      else
        vstore_part(to, sum[p * V + v], left);
    }
  }
}

/* All channels of P pixels, W vectors at a time and then one. */
INLINE void channels(const dwconv *d, const int P, const int W, const int unit, const int K, const int S, const float *x,
                     const float *residual, float *out, const int64_t kh[2], const int64_t kw[2], int64_t c, int64_t end) {
  if (unit) {
    for (; c + W * VL <= end; c += W * VL) pixels(d, P, W, 1, K, S, x, residual, out, kh, kw, c, W * VL);
    for (; c + VL <= end; c += VL) pixels(d, P, 1, 1, K, S, x, residual, out, kh, kw, c, VL);
  }
  for (; c < end; c += VL) pixels(d, P, 1, unit, 0, 0, x, residual, out, kh, kw, c, end - c);
}

typedef void channels_fn(const dwconv *, const float *, const float *, float *, const int64_t[2], const int64_t[2], int64_t, int64_t);
#define CHANNELS(NAME, ...)                                                                                                        \
  static void NAME(const dwconv *d, const float *x, const float *residual, float *out, const int64_t kh[2], const int64_t kw[2],   \
                   int64_t c_lo, int64_t c_hi) {                                                                                   \
    channels(d, __VA_ARGS__, x, residual, out, kh, kw, c_lo, c_hi);                                                                \
  }
#define WIDE5 (VL == 16 ? 2 : 1) /* vectors that leave registers for 5 weights each */
CHANNELS(one_strided, 1, 1, 0, 0, 0)
CHANNELS(one_unit, 1, 4, 1, 0, 0)
CHANNELS(many_any, PIXELS, 2, 1, 0, 0)
CHANNELS(many_3_1, PIXELS, 2, 1, 3, 1)
CHANNELS(many_3_2, PIXELS, 2, 1, 3, 2)
CHANNELS(many_5_1, PIXELS, WIDE5, 1, 5, 1)
CHANNELS(many_5_2, PIXELS, WIDE5, 1, 5, 2)

/* The function for PIXELS neighbours whose windows lie inside the image. */
static channels_fn *choose(const dwconv *d) {
  const window *w = &d->columns;
  if (w->dilation == 1 && w->kernel == 3) return w->stride == 1 ? many_3_1 : w->stride == 2 ? many_3_2 : many_any;
  if (w->dilation == 1 && w->kernel == 5) return w->stride == 1 ? many_5_1 : w->stride == 2 ? many_5_2 : many_any;
  return many_any;
}

/* One image, in strips of pixels so narrow, and blocks of channels so few, that kernel rows find their input in L1 again when the next row
 * of output comes; within a strip, memory is read along rows. */
static void image(const dwconv *d, channels_fn *many, channels_fn *one, const aspen_call *c, const float *residual, int64_t residual_row,
                  float *out, int64_t out_row) {
  int64_t inside_lo, inside_hi, inside_top, inside_bottom;
  window_inside(&d->columns, c->lo[3], c->hi[3], &inside_lo, &inside_hi);
  window_inside(&d->rows, c->lo[2], c->hi[2], &inside_top, &inside_bottom);
  const int64_t seen = (PIXELS - 1) * d->columns.stride + d->columns.kernel; /* input pixels of a row of PIXELS windows */
  const int64_t column_bytes = d->rows.kernel * (int64_t)sizeof(float);      /* of one channel */
  int64_t step = L1_BYTES / (seen * column_bytes) / (4 * VL) * (4 * VL);
  step = min64(max64(step, 4 * VL), c->hi[1] - c->lo[1]);
  const int64_t strip = max64((L1_BYTES / (step * column_bytes) - d->columns.kernel) / d->columns.stride + 1, PIXELS);
  for (int64_t first = c->lo[3], next; first < c->hi[3]; first = next) {
    next = first;
    for (int64_t channel = c->lo[1]; channel < c->hi[1]; channel += step)
      for (int64_t oh = c->lo[2]; oh < c->hi[2]; oh++) {
        int64_t kh[2] = {0, d->rows.kernel};
        if (oh < inside_top || oh >= inside_bottom) window_taps(&d->rows, oh, &kh[0], &kh[1]);
        const float *line = d->x + window_start(&d->rows, oh) * d->x_row;
        int64_t ow = first;
        for (int64_t together; ow < c->hi[3] && ow < first + strip; ow += together) {
          int64_t kw[2] = {0, d->columns.kernel};
          together = 1;
          if (many && ow >= inside_lo && ow + 1 < inside_hi && inside_hi - inside_lo >= PIXELS) {
            ow = min64(ow, inside_hi - PIXELS); /* at the end, computing some pixels twice is cheaper than going one by one */
            together = PIXELS;
          } else {
            window_taps(&d->columns, ow, &kw[0], &kw[1]);
          }
          const float *r = residual ? residual + oh * residual_row + ow * d->residual_column : NULL;
          (together > 1 ? many : one)(d, line + window_start(&d->columns, ow) * d->x_column, r, out + oh * out_row + ow * d->out_column, kh, kw,
                                      channel, min64(channel + step, c->hi[1]));
        }
        next = ow;
      }
  }
}

int FN(dwconv)(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *x = &c->args[1], *w = &c->args[2];
  const aspen_arg *bias = c->n_inputs > 2 && c->args[3].dtype ? &c->args[3] : NULL;
  const aspen_arg *residual = c->n_inputs > 3 && c->args[4].dtype ? &c->args[4] : NULL;
  const int64_t *p = c->params;
  if (out->rank != 4 || x->rank != 4 || w->rank != 2 || (bias && bias->rank != 1) || (residual && residual->rank != 4))
    return ASPEN_KERNEL_BAD_ARGUMENT;
  if (out->dtype != ASPEN_DT_F32 || x->dtype != ASPEN_DT_F32 || w->dtype != ASPEN_DT_F32) return ASPEN_KERNEL_BAD_ARGUMENT;
  dwconv d = {.rows = {x->dims[2], p[1], p[3], p[5], p[7]}, .columns = {x->dims[3], p[2], p[4], p[6], p[8]},
              .w = (const float *)w->ptr, .bias = bias ? (const float *)bias->ptr : NULL,
              .x_row = x->strides[2], .x_column = x->strides[3], .x_channel = x->strides[1],
              .w_tap = w->strides[0], .w_channel = w->strides[1],
              .bias_channel = bias ? bias->strides[0] : 1, .residual_column = residual ? residual->strides[3] : 0,
              .residual_channel = residual ? residual->strides[1] : 1, .out_column = out->strides[3], .out_channel = out->strides[1]};
  if (d.rows.kernel < 1 || d.columns.kernel < 1) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (FN(epilogue_open)(&d.epilogue, p[9], aspen_param_f(c, 10), aspen_param_f(c, 11), p[12])) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (epilogue_scale(c, 4, out->dims[1], &d.scale, &d.shift)) return ASPEN_KERNEL_BAD_ARGUMENT;
  for (int i = 0; i < 4; i++)
    if (c->lo[i] >= c->hi[i]) return 0;
  const int unit = d.x_channel == 1 && d.w_channel == 1 && d.bias_channel == 1 && d.residual_channel == 1 && d.out_channel == 1;
  for (int64_t n = c->lo[0]; n < c->hi[0]; n++) {
    d.x = (const float *)x->ptr + n * x->strides[0];
    image(&d, unit ? choose(&d) : NULL, unit ? one_unit : one_strided, c,
          residual ? (const float *)residual->ptr + n * residual->strides[0] : NULL, residual ? residual->strides[2] : 0,
          (float *)out->ptr + n * out->strides[0], out->strides[2]);
  }
  return 0;
}
