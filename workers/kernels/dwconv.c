/* DWCONV: depthwise 2-D convolution, each channel by its own kernel.
 *
 * Vectors run over channels. Along a row of output pixels, up to PIXELS neighbours whose windows lie inside the image share each vector
 * of weights; at the borders pixels go one by one. Pixels outside, channels inside: the input streams by contiguously. An output is summed over
 * its taps in ascending order from zero, taps outside the image are skipped: a rule of the output pixel alone.
 */
#include "act.h"
#include "window.h"

#define PIXELS 4 /* times 2 vectors of channels: 8 sums, enough to hide the latency of a multiply-add */

typedef struct dwconv {
  window rows, columns;
  const float *x, *w, *bias, *residual; /* of this image; bias and residual may be NULL */
  float *out;
  int64_t x_row, x_column, x_channel, w_tap, w_channel, bias_channel, residual_column, residual_channel, out_column, out_channel;
  int64_t channel_lo, channel_hi;
  int64_t act;
  float act_a, act_b, low, high;
  int clamp; /* the activation is min(max(x, low), high) */
} dwconv;

INLINE vf load(const float *p, int64_t channel, int64_t stride, int64_t n, const int unit) {
  return !unit ? vload_strided(p + channel * stride, stride, n) : n >= VL ? vload(p + channel) : vload_part(p + channel, n);
}

/* P pixels from output column ow on, all with kernel columns [kw_lo, kw_hi), times V vectors of channels from c on. n: channels left. */
INLINE void pixels(const dwconv *d, const int P, const int V, const int unit, const float *x, const float *residual, float *out, int64_t kh_lo,
                   int64_t kh_hi, int64_t kw_lo, int64_t kw_hi, int64_t c, int64_t n) {
  vf sum[PIXELS][2];
#pragma GCC unroll 4
  for (int p = 0; p < P; p++)
#pragma GCC unroll 2
    for (int v = 0; v < V; v++) sum[p][v] = vzero();
  const int64_t next = d->columns.stride * d->x_column;
  for (int64_t kh = kh_lo; kh < kh_hi; kh++) {
    const float *from = x + kh * d->rows.dilation * d->x_row + kw_lo * d->columns.dilation * d->x_column;
    const float *w = d->w + (kh * d->columns.kernel + kw_lo) * d->w_tap;
    for (int64_t kw = kw_lo; kw < kw_hi; kw++, from += d->columns.dilation * d->x_column, w += d->w_tap) {
      vf weight[2];
#pragma GCC unroll 2
      for (int v = 0; v < V; v++) weight[v] = load(w, c + v * VL, d->w_channel, n - v * VL, unit);
#pragma GCC unroll 4
      for (int p = 0; p < P; p++)
#pragma GCC unroll 2
        for (int v = 0; v < V; v++)
          sum[p][v] = vfma(load(from + p * next, c + v * VL, d->x_channel, n - v * VL, unit), weight[v], sum[p][v]);
    }
  }
  const vf low = vset1(d->low), high = vset1(d->high);
#pragma GCC unroll 4
  for (int p = 0; p < P; p++)
#pragma GCC unroll 2
    for (int v = 0; v < V; v++) {
      const int64_t channel = c + v * VL, left = n - v * VL;
      vf y = sum[p][v];
      if (d->bias) y += load(d->bias, channel, d->bias_channel, left, unit);
      if (residual) y += load(residual + p * d->residual_column, channel, d->residual_channel, left, unit);
      if (d->clamp) y = vmin(high, vmax(low, y));
      float *to = out + p * d->out_column;
      if (unit) {
        if (left >= VL)
          vstore(to + channel, y);
        else
          vstore_part(to + channel, y, left);
      } else {
        if (!d->clamp) {
          float t[VL] __attribute__((aligned(64)));
          vstore(t, y);
          FN(act)(d->act, d->act_a, d->act_b, t, t, VL);
          y = vload(t);
        }
        vstore_strided(to + channel * d->out_channel, d->out_channel, y, left);
      }
    }
}

INLINE void channels(const dwconv *d, const int P, const int unit, const float *x, const float *residual, float *out, int64_t kh_lo,
                     int64_t kh_hi, int64_t kw_lo, int64_t kw_hi) {
  int64_t c = d->channel_lo;
  if (unit) {
    for (; c + 2 * VL <= d->channel_hi; c += 2 * VL) pixels(d, P, 2, 1, x, residual, out, kh_lo, kh_hi, kw_lo, kw_hi, c, 2 * VL);
    for (; c + VL <= d->channel_hi; c += VL) pixels(d, P, 1, 1, x, residual, out, kh_lo, kh_hi, kw_lo, kw_hi, c, VL);
  }
  for (; c < d->channel_hi; c += VL) pixels(d, P, 1, unit, x, residual, out, kh_lo, kh_hi, kw_lo, kw_hi, c, d->channel_hi - c);
  if (unit && !d->clamp) /* while the pixels are in L1 */
    for (int p = 0; p < P; p++) {
      float *to = out + p * d->out_column + d->channel_lo;
      FN(act)(d->act, d->act_a, d->act_b, to, to, d->channel_hi - d->channel_lo);
    }
}

INLINE void row(const dwconv *d, const int unit, int64_t oh, int64_t ow_lo, int64_t ow_hi, const float *residual, float *out) {
  int64_t kh_lo, kh_hi, inside_lo, inside_hi;
  window_taps(&d->rows, oh, &kh_lo, &kh_hi);
  window_inside(&d->columns, ow_lo, ow_hi, &inside_lo, &inside_hi);
  const float *line = d->x + window_start(&d->rows, oh) * d->x_row;
  for (int64_t ow = ow_lo; ow < ow_hi;) {
    const float *x = line + window_start(&d->columns, ow) * d->x_column;
    const float *r = residual ? residual + ow * d->residual_column : NULL;
    if (unit && ow >= inside_lo && ow + PIXELS <= inside_hi) {
      channels(d, PIXELS, unit, x, r, out + ow * d->out_column, kh_lo, kh_hi, 0, d->columns.kernel);
      ow += PIXELS;
    } else {
      int64_t kw_lo, kw_hi;
      window_taps(&d->columns, ow, &kw_lo, &kw_hi);
      channels(d, 1, unit, x, r, out + ow * d->out_column, kh_lo, kh_hi, kw_lo, kw_hi);
      ow++;
    }
  }
}

static __attribute__((noinline)) void row_unit(const dwconv *d, int64_t oh, int64_t lo, int64_t hi, const float *residual, float *out) {
  row(d, 1, oh, lo, hi, residual, out);
}
static __attribute__((noinline)) void row_strided(const dwconv *d, int64_t oh, int64_t lo, int64_t hi, const float *residual, float *out) {
  row(d, 0, oh, lo, hi, residual, out);
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
              .x_row = x->strides[2], .x_column = x->strides[3], .x_channel = x->strides[1], .w_tap = w->strides[0], .w_channel = w->strides[1],
              .bias_channel = bias ? bias->strides[0] : 1, .residual_column = residual ? residual->strides[3] : 0,
              .residual_channel = residual ? residual->strides[1] : 1, .out_column = out->strides[3], .out_channel = out->strides[1],
              .channel_lo = c->lo[1], .channel_hi = c->hi[1], .act = p[9], .act_a = (float)aspen_param_f(c, 10), .act_b = (float)aspen_param_f(c, 11)};
  if (d.rows.kernel < 1 || d.columns.kernel < 1) return ASPEN_KERNEL_BAD_ARGUMENT;
  float probe = 0;
  if (FN(act)(d.act, d.act_a, d.act_b, &probe, &probe, 1)) return ASPEN_KERNEL_BAD_ARGUMENT;
  d.clamp = act_clamps(d.act, d.act_a, d.act_b, &d.low, &d.high);
  const int unit = d.x_channel == 1 && d.w_channel == 1 && d.bias_channel == 1 && d.residual_channel == 1 && d.out_channel == 1;
  for (int64_t n = c->lo[0]; n < c->hi[0]; n++) {
    d.x = (const float *)x->ptr + n * x->strides[0];
    for (int64_t oh = c->lo[2]; oh < c->hi[2]; oh++)
      (unit ? row_unit : row_strided)(&d, oh, c->lo[3], c->hi[3],
                                      residual ? (const float *)residual->ptr + n * residual->strides[0] + oh * residual->strides[2] : NULL,
                                      (float *)out->ptr + n * out->strides[0] + oh * out->strides[2]);
  }
  return 0;
}
