/* POOL: sliding maximum or average over two spatial axes.
 *
 * Vectors run over channels, one output pixel after the other, taps outside the image skipped. An average adds up each kernel row from
 * zero, then the rows: shorter chains lose fewer digits over large windows. A NaN in a window wins.
 */
#include "kernel.h"
#include "vec.h"
#include "window.h"

enum { MAXIMUM = 0, AVERAGE = 1 };

typedef struct pool {
  window rows, columns;
  const aspen_arg *out, *x;
  int average;
  int64_t pad_bottom, pad_right;
  int count_pads;
} pool;

/* Taps of a window that count: inside the image, or inside image and pads. */
static int64_t counted(const window *w, int64_t o, int64_t pad_after, int count_pads) {
  int64_t from, to;
  window padded = *w;
  if (count_pads) padded.in += w->pad + pad_after, padded.pad = 0;
  window_taps(&padded, o, &from, &to);
  return to - from;
}

/* Taps [kh_lo, kh_hi) x [kw_lo, kw_hi) of one pixel, V vectors of channels. x: channel c of tap (0, 0); n: channels left. */
INLINE void pixel(const pool *p, const int V, const int unit, const int average, const float *x, float *out, const int64_t kh[2],
                  const int64_t kw[2], float count, int64_t n) {
  const int64_t x_channel = p->x->strides[1], out_channel = p->out->strides[1];
  const int64_t down = p->rows.dilation * p->x->strides[2], right = p->columns.dilation * p->x->strides[3];
  vf acc[4];
#pragma GCC unroll 4
  for (int v = 0; v < V; v++) acc[v] = vset1(average ? 0.0f : -__builtin_inff());
  for (int64_t i = kh[0]; i < kh[1]; i++) {
    vf line[4];
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) line[v] = average ? vzero() : acc[v];
    const float *at = x + i * down + kw[0] * right;
    for (int64_t j = kw[0]; j < kw[1]; j++, at += right)
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) {
        const float *from = at + v * VL * x_channel;
        const int64_t left = n - v * VL;
        const vf t = !unit ? vload_strided(from, x_channel, left) : left >= VL ? vload(from) : vload_part(from, left);
        if (average)
          line[v] += t;
        else
          line[v] = vmax_nan(t, line[v]);
      }
#pragma GCC unroll 4
    for (int v = 0; v < V; v++)
      if (average)
        acc[v] += line[v];
      else
        acc[v] = line[v];
  }
#pragma GCC unroll 4
  for (int v = 0; v < V; v++) {
    const int64_t left = n - v * VL;
    vf y = acc[v];
    if (average && count > 0) y /= vset1(count); /* otherwise no tap was added and the sum is zero */
    if (!unit)
      vstore_strided(out + v * VL * out_channel, out_channel, y, left);
    else if (left >= VL)
      vstore(out + v * VL, y);
    else
      vstore_part(out + v * VL, y, left);
  }
}

INLINE void channels(const pool *p, const int unit, const int average, const float *x, float *out, const int64_t kh[2], const int64_t kw[2],
                     float count, int64_t n) {
  const int64_t x_channel = p->x->strides[1], out_channel = p->out->strides[1];
  int64_t c = 0;
  if (unit)
    for (; c + 4 * VL <= n; c += 4 * VL) pixel(p, 4, 1, average, x + c, out + c, kh, kw, count, 4 * VL);
  for (; c < n; c += VL) pixel(p, 1, unit, average, x + c * x_channel, out + c * out_channel, kh, kw, count, n - c);
}

static void channels_f32(const pool *p, const void *x, void *out, const int64_t kh[2], const int64_t kw[2], int64_t count, int64_t n) {
  const int unit = p->x->strides[1] == 1 && p->out->strides[1] == 1;
  if (p->average && unit)
    channels(p, 1, 1, x, out, kh, kw, (float)count, n);
  else if (p->average)
    channels(p, 0, 1, x, out, kh, kw, (float)count, n);
  else if (unit)
    channels(p, 1, 0, x, out, kh, kw, (float)count, n);
  else
    channels(p, 0, 0, x, out, kh, kw, (float)count, n);
}

/* Maximum for other types: chunks of channels, so that the compiler's vectors run over them, too. */
#define MAXIMUM_OF(NAME, TYPE, LOWEST)                                                                                             \
  static void NAME(const pool *p, const void *x, void *out, const int64_t kh[2], const int64_t kw[2], int64_t count, int64_t n) {  \
    const int64_t x_channel = p->x->strides[1], out_channel = p->out->strides[1];                                                  \
    const int64_t down = p->rows.dilation * p->x->strides[2], right = p->columns.dilation * p->x->strides[3];                      \
    for (int64_t c = 0; c < n; c += 64) {                                                                                          \
      TYPE acc[64];                                                                                                                \
      const int64_t m = min64(64, n - c);                                                                                          \
      for (int64_t l = 0; l < m; l++) acc[l] = LOWEST;                                                                             \
      for (int64_t i = kh[0]; i < kh[1]; i++)                                                                                      \
        for (int64_t j = kw[0]; j < kw[1]; j++) {                                                                                  \
          const TYPE *from = (const TYPE *)x + i * down + j * right + c * x_channel;                                               \
          for (int64_t l = 0; l < m; l++) {                                                                                        \
            const TYPE t = from[l * x_channel];                                                                                    \
            acc[l] = acc[l] != acc[l] || acc[l] > t ? acc[l] : t;                                                                  \
          }                                                                                                                        \
        }                                                                                                                          \
      for (int64_t l = 0; l < m; l++) ((TYPE *)out)[(c + l) * out_channel] = acc[l];                                               \
    }                                                                                                                              \
  }
MAXIMUM_OF(maximum_f64, double, -__builtin_inf())
MAXIMUM_OF(maximum_i8, int8_t, INT8_MIN)
MAXIMUM_OF(maximum_u8, uint8_t, 0)

int FN(pool)(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *x = &c->args[1];
  const int64_t *q = c->params;
  if (out->rank != 4 || x->rank != 4 || out->dtype != x->dtype || q[1] < 1 || q[2] < 1) return ASPEN_KERNEL_BAD_ARGUMENT;
  const pool p = {.rows = {x->dims[2], q[1], q[3], q[5], q[7]}, .columns = {x->dims[3], q[2], q[4], q[6], q[8]}, .out = out, .x = x,
                  .average = q[0] == AVERAGE, .pad_bottom = q[9], .pad_right = q[10], .count_pads = q[11] != 0};
  void (*run)(const pool *, const void *, void *, const int64_t[2], const int64_t[2], int64_t, int64_t) = NULL;
  int64_t item = 0;
  if (x->dtype == ASPEN_DT_F32) run = channels_f32, item = 4;
  if (!p.average && x->dtype == ASPEN_DT_F64) run = maximum_f64, item = 8;
  if (!p.average && x->dtype == ASPEN_DT_I8) run = maximum_i8, item = 1;
  if (!p.average && x->dtype == ASPEN_DT_U8) run = maximum_u8, item = 1;
  if (!run || q[0] < MAXIMUM || q[0] > AVERAGE) return ASPEN_KERNEL_BAD_ARGUMENT;

  const int64_t *xs = x->strides, *os = out->strides;
  for (int64_t n = c->lo[0]; n < c->hi[0]; n++)
    for (int64_t oh = c->lo[2]; oh < c->hi[2]; oh++) {
      int64_t kh[2], kw[2];
      window_taps(&p.rows, oh, &kh[0], &kh[1]);
      const int64_t counted_rows = p.average ? counted(&p.rows, oh, p.pad_bottom, p.count_pads) : 0;
      for (int64_t ow = c->lo[3]; ow < c->hi[3]; ow++) {
        window_taps(&p.columns, ow, &kw[0], &kw[1]);
        const int64_t count = p.average ? counted_rows * counted(&p.columns, ow, p.pad_right, p.count_pads) : 0;
        const int64_t from = n * xs[0] + c->lo[1] * xs[1] + window_start(&p.rows, oh) * xs[2] + window_start(&p.columns, ow) * xs[3];
        const int64_t to = n * os[0] + c->lo[1] * os[1] + oh * os[2] + ow * os[3];
        run(&p, x->ptr + from * item, out->ptr + to * item, kh, kw, count, c->hi[1] - c->lo[1]);
      }
    }
  return 0;
}
