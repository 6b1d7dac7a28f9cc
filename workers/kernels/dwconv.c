/* DWCONV: depthwise convolution over two or three axes, each channel by its own kernel.
 *
 * Vectors run over channels. Where kernel and stride are common ones, two output rows of neighbours whose windows lie inside the image are
 * summed together, so that an input vector is loaded once for all of them (depthwise.h); elsewhere pixels go one by one or a few at a time. An
 * output is summed over its taps in ascending order from zero, taps outside the image are skipped: a rule of the output pixel alone.
 */
#include "depthwise.h"
#include "epilogue.h"
#include "volume.h"
#include "window.h"

#define L1_BYTES (20 << 10) /* of input that the windows of one row of neighbours may span */
#define ANY_PIXELS 4        /* neighbours where kernel or stride are others; times 2 vectors of channels: 8 sums */

typedef struct dwconv {
  window rows, columns;
  planes planes;
  int64_t w_plane; /* floats between the weights of planes */
  const float *x, *w, *bias, *residual; /* of this image; bias and residual may be NULL */
  float *out;
  int64_t x_row, x_column, x_channel, w_tap, w_channel, bias_channel;
  int64_t residual_row, residual_column, residual_channel, out_row, out_column, out_channel;
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
  for (int64_t q = 0; q < d->planes.n; q++, x += d->planes.step)
    for (int64_t i = kh[0]; i < kh[1]; i++) {
      const float *from = x + i * d->rows.dilation * d->x_row + kw[0] * d->columns.dilation * d->x_column;
      const float *w = d->w + q * d->w_plane + (i * d->columns.kernel + kw[0]) * d->w_tap;
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

/* Bias, residual, activation, scale and shift of R x P pixels times V vectors of channels from c on, and home. sum[(r * P + p) * V + v]; `left`
 * channels remain; residual and out: channel 0 of the first pixel. */
INLINE void finish(const dwconv *d, const int R, const int P, const int V, const int unit, vf *sum, const float *residual, float *out, int64_t c,
                   int64_t n) {
  /* Copies, because the compiler cannot know that stores to the output leave d alone. */
  const int64_t residual_row = d->residual_row, residual_column = d->residual_column, residual_channel = d->residual_channel;
  const int64_t out_row = d->out_row, out_column = d->out_column, out_channel = d->out_channel;
  const float *const biases = d->bias, *const scales = d->scale, *const shifts = d->shift;
  const int64_t bias_channel = d->bias_channel;
  const int late = d->epilogue.residual_last;
#define EACH_PIXEL _Pragma("GCC unroll 2") for (int r = 0; r < R; r++) _Pragma("GCC unroll 8") for (int p = 0; p < P; p++)
#define RESIDUAL load(residual + r * residual_row + p * residual_column, channel, residual_channel, left, unit)
#pragma GCC unroll 4
  for (int v = 0; v < V; v++) {
    const int64_t channel = c + v * VL, left = n - v * VL;
    if (biases) {
      const vf bias = load(biases, channel, bias_channel, left, unit);
      EACH_PIXEL sum[(r * P + p) * V + v] += bias;
    }
    if (residual && !late) EACH_PIXEL sum[(r * P + p) * V + v] += RESIDUAL;
  }
  epilogue_act(&d->epilogue, sum, R * P * V);
#pragma GCC unroll 4
  for (int v = 0; v < V; v++) {
    const int64_t channel = c + v * VL, left = n - v * VL;
    if (scales) {
      const vf scale = load(scales, channel, 1, left, 1), shift = load(shifts, channel, 1, left, 1);
      EACH_PIXEL sum[(r * P + p) * V + v] = vfma(sum[(r * P + p) * V + v], scale, shift);
    }
    if (residual && late) EACH_PIXEL sum[(r * P + p) * V + v] += RESIDUAL;
    EACH_PIXEL {
      float *to = out + r * out_row + p * out_column + (unit ? channel : channel * out_channel);
      const vf y = sum[(r * P + p) * V + v];
      if (!unit)
        vstore_strided(to, out_channel, y, left);
      else if (left >= VL)
        vstore(to, y);
      else
        vstore_part(to, y, left);
    }
  }
#undef RESIDUAL
#undef EACH_PIXEL
}

/* P pixels of a row, all with the same taps. x: tap (0, 0) of the first one; residual and out: the first one. */
typedef void pixels_fn(const dwconv *, const float *, const float *, float *, const int64_t[2], const int64_t[2], int64_t, int64_t);

INLINE void any_pixels(const dwconv *d, const int P, const int V, const int unit, const float *x, const float *residual, float *out,
                       const int64_t kh[2], const int64_t kw[2], int64_t c, int64_t n) {
  vf sum[8]; /* P x V of them; a constant number lives in registers */
#pragma GCC unroll 8
  for (int i = 0; i < P * V; i++) sum[i] = vzero();
  any_taps(d, P, V, unit, sum, x, kh, kw, c, n);
  finish(d, 1, P, V, unit, sum, residual, out, c, n);
}

INLINE void any_channels(const dwconv *d, const int P, const int V, const int unit, const float *x, const float *residual, float *out,
                         const int64_t kh[2], const int64_t kw[2], int64_t c, int64_t end) {
  if (unit) {
    for (; c + V * VL <= end; c += V * VL) any_pixels(d, P, V, 1, x, residual, out, kh, kw, c, V * VL);
    for (; c + VL <= end; c += VL) any_pixels(d, P, 1, 1, x, residual, out, kh, kw, c, VL);
  }
  for (; c < end; c += VL) any_pixels(d, P, 1, unit, x, residual, out, kh, kw, c, end - c);
}

static void one_strided(const dwconv *d, const float *x, const float *residual, float *out, const int64_t kh[2], const int64_t kw[2], int64_t c,
                        int64_t end) {
  any_channels(d, 1, 1, 0, x, residual, out, kh, kw, c, end);
}
static void one_unit(const dwconv *d, const float *x, const float *residual, float *out, const int64_t kh[2], const int64_t kw[2], int64_t c,
                     int64_t end) {
  any_channels(d, 1, 4, 1, x, residual, out, kh, kw, c, end);
}
static void many_unit(const dwconv *d, const float *x, const float *residual, float *out, const int64_t kh[2], const int64_t kw[2], int64_t c,
                      int64_t end) {
  any_channels(d, ANY_PIXELS, 2, 1, x, residual, out, kh, kw, c, end);
}

/* R rows of P pixels whose windows lie inside the image, unit channels. x: tap (0, 0) of the first one. */
typedef void block_fn(const dwconv *, const float *, const float *, float *, int64_t, int64_t);

INLINE void block(const dwconv *d, const int deep, const int R, const int P, const int K, const int S, const float *x, const float *residual, float *out, int64_t c,
                  int64_t end) {
  const float *line[7]; /* of two rows of windows, at most */
#pragma GCC unroll 8
  for (int i = 0; i < (R - 1) * S + K; i++) line[i] = x + i * d->x_row;
  for (; c + VL <= end; c += VL) {
    vf sum[2 * DEPTHWISE_PIXELS];
#pragma GCC unroll 16
    for (int i = 0; i < R * P; i++) sum[i] = vzero();
    depthwise_taps(R, P, K, K, S, S, sum, line, c, d->x_column, d->w + c, d->w_tap);
    if (deep) /* a window of one plane is spared the loop */
#pragma GCC unroll 1
      for (int64_t q = 1; q < d->planes.n; q++) {
        const float *plane[7];
#pragma GCC unroll 8
        for (int i = 0; i < (R - 1) * S + K; i++) plane[i] = line[i] + q * d->planes.step;
        depthwise_taps(R, P, K, K, S, S, sum, plane, c, d->x_column, d->w + q * d->w_plane + c, d->w_tap);
      }
    finish(d, R, P, 1, 1, sum, residual, out, c, VL);
  }
  if (c == end) return;
  const int64_t taps[2] = {0, K};
  for (int r = 0; r < R; r++)
    any_pixels(d, P, 1, 1, x + r * S * d->x_row, residual ? residual + r * d->residual_row : NULL, out + r * d->out_row, taps, taps, c, end - c);
}

#define BLOCK(NAME, R, K, S)                                                                                                       \
  static void NAME(const dwconv *d, const float *x, const float *residual, float *out, int64_t c, int64_t end) {                   \
    block(d, 0, R, DEPTHWISE_PIXELS, K, S, x, residual, out, c, end);                                                              \
  }                                                                                                                                \
  static void deep_##NAME(const dwconv *d, const float *x, const float *residual, float *out, int64_t c, int64_t end) {            \
    block(d, 1, R, DEPTHWISE_PIXELS, K, S, x, residual, out, c, end);                                                              \
  }
BLOCK(one_3_1, 1, 3, 1)
BLOCK(one_3_2, 1, 3, 2)
BLOCK(one_5_1, 1, 5, 1)
BLOCK(one_5_2, 1, 5, 2)
BLOCK(more_3_1, DEPTHWISE_ROWS_3, 3, 1)
BLOCK(more_3_2, DEPTHWISE_ROWS_3, 3, 2)
BLOCK(more_5_1, DEPTHWISE_ROWS_5, 5, 1)
BLOCK(more_5_2, DEPTHWISE_ROWS_5, 5, 2)

/* How the pixels of an image are computed. */
typedef struct plan {
  block_fn *one, *more; /* for windows inside the image: of one row and of `rows` rows of `pixels` pixels; NULL: neither */
  pixels_fn *each;      /* one pixel, any taps */
  pixels_fn *some;      /* ANY_PIXELS with the same taps, where there are no blocks; or NULL */
  int64_t rows, pixels;
} plan;

static plan choose(const dwconv *d, int unit) {
  const window *a = &d->rows, *b = &d->columns;
  if (!unit) return (plan){.each = one_strided, .rows = 1, .pixels = 1};
  if (depthwise_common(a, b) && d->planes.n > 0) {
    static block_fn *const blocks[2][2][2][2] = { /* [deep][5 x 5][stride 2][more rows than one] */
        {{{one_3_1, more_3_1}, {one_3_2, more_3_2}}, {{one_5_1, more_5_1}, {one_5_2, more_5_2}}},
        {{{deep_one_3_1, deep_more_3_1}, {deep_one_3_2, deep_more_3_2}}, {{deep_one_5_1, deep_more_5_1}, {deep_one_5_2, deep_more_5_2}}},
    };
    block_fn *const *by = blocks[d->planes.n > 1][a->kernel == 5][a->stride == 2];
    return (plan){by[0], by[1], one_unit, many_unit, a->kernel == 3 ? DEPTHWISE_ROWS_3 : DEPTHWISE_ROWS_5, DEPTHWISE_PIXELS};
  }
  return (plan){.each = one_unit, .some = many_unit, .rows = 1, .pixels = ANY_PIXELS};
}

/* One image, in strips of pixels so narrow, and blocks of channels so few, that kernel rows find their input in L1 again when the next row
 * of output comes; within a strip, memory is read along rows. */
static void image(const dwconv *d, const plan *by, const aspen_call *c, const float *residual, float *out) {
  int64_t inside_lo, inside_hi, inside_top, inside_bottom;
  window_inside(&d->columns, c->lo[3], c->hi[3], &inside_lo, &inside_hi);
  window_inside(&d->rows, c->lo[2], c->hi[2], &inside_top, &inside_bottom);
  const int64_t seen = (by->pixels - 1) * d->columns.stride + d->columns.kernel; /* input pixels of a row of neighbours */
  const int64_t column_bytes = d->planes.all * d->rows.kernel * (int64_t)sizeof(float);          /* of one channel */
  int64_t step = L1_BYTES / (seen * column_bytes) / (4 * VL) * (4 * VL);
  step = min64(max64(step, 4 * VL), c->hi[1] - c->lo[1]);
  const int64_t fits = (L1_BYTES / (step * column_bytes) - d->columns.kernel) / d->columns.stride + 1;
  const int64_t strip = max64(fits / by->pixels, 1) * by->pixels;
  for (int64_t first = c->lo[3], last; first < c->hi[3]; first = last) {
    last = max64(first, inside_lo) + strip;
    if (last + by->pixels > c->hi[3]) last = c->hi[3];
    const int64_t stop = min64(inside_hi, last);
    for (int64_t channel = c->lo[1]; channel < c->hi[1]; channel += step) {
      const int64_t end = min64(channel + step, c->hi[1]);
      for (int64_t oh = c->lo[2], rows; oh < c->hi[2]; oh += rows) {
        int64_t kh[2] = {0, d->rows.kernel};
        const int whole = oh >= inside_top && oh < inside_bottom;
        if (!whole) window_taps(&d->rows, oh, &kh[0], &kh[1]);
        const int blocks = whole && by->one && stop - inside_lo >= by->pixels;
        const int64_t neighbours = blocks ? by->pixels : by->some && stop - inside_lo >= ANY_PIXELS ? ANY_PIXELS : 1;
        rows = blocks && oh + by->rows <= inside_bottom ? by->rows : 1;
        const float *line = d->x + window_start(&d->rows, oh) * d->x_row;
        const float *residual_line = residual ? residual + oh * d->residual_row : NULL;
        for (int64_t ow = first, together; ow < last; ow += together) {
          const int many = neighbours > 1 && ow >= inside_lo && ow + 1 < stop;
          together = many ? neighbours : 1;
          if (many) ow = min64(ow, stop - neighbours); /* at the end, computing some pixels twice is cheaper than going one by one */
          const float *x = line + window_start(&d->columns, ow) * d->x_column;
          const float *r = residual ? residual_line + ow * d->residual_column : NULL;
          float *to = out + oh * d->out_row + ow * d->out_column;
          int64_t kw[2] = {0, d->columns.kernel};
          if (many && blocks) {
            (rows > 1 ? by->more : by->one)(d, x, r, to, channel, end);
          } else if (many) {
            by->some(d, x, r, to, kh, kw, channel, end); /* all taps of a row */
          } else {
            window_taps(&d->columns, ow, &kw[0], &kw[1]);
            for (int64_t i = 0; i < rows; i++)
              by->each(d, x + i * d->rows.stride * d->x_row, r ? r + i * d->residual_row : NULL, to + i * d->out_row, kh, kw, channel, end);
          }
        }
      }
    }
  }
}

/* The boxes of some images. */
static int images(const aspen_call *c, const planes *planes) {
  const aspen_arg *out = &c->args[0], *x = &c->args[1], *w = &c->args[2];
  const aspen_arg *bias = c->n_inputs > 2 && c->args[3].dtype ? &c->args[3] : NULL;
  const aspen_arg *residual = c->n_inputs > 3 && c->args[4].dtype ? &c->args[4] : NULL;
  const int64_t *p = c->params;
  if (out->rank != 4 || x->rank != 4 || w->rank != 2 || (bias && bias->rank != 1) || (residual && residual->rank != 4))
    return ASPEN_KERNEL_BAD_ARGUMENT;
  if (out->dtype != ASPEN_DT_F32 || x->dtype != ASPEN_DT_F32 || w->dtype != ASPEN_DT_F32) return ASPEN_KERNEL_BAD_ARGUMENT;
  dwconv d = {.rows = {x->dims[2], p[1], p[3], p[5], p[7]}, .columns = {x->dims[3], p[2], p[4], p[6], p[8]},
              .planes = *planes, .w_plane = p[1] * p[2] * w->strides[0], .w = (const float *)w->ptr, .bias = bias ? (const float *)bias->ptr : NULL,
              .x_row = x->strides[2], .x_column = x->strides[3], .x_channel = x->strides[1],
              .w_tap = w->strides[0], .w_channel = w->strides[1],
              .bias_channel = bias ? bias->strides[0] : 1,
              .residual_row = residual ? residual->strides[2] : 0, .residual_column = residual ? residual->strides[3] : 0,
              .residual_channel = residual ? residual->strides[1] : 1,
              .out_row = out->strides[2], .out_column = out->strides[3], .out_channel = out->strides[1]};
  if (d.rows.kernel < 1 || d.columns.kernel < 1) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (FN(epilogue_open)(&d.epilogue, p[9], aspen_param_f(c, 10), aspen_param_f(c, 11), p[12])) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (epilogue_scale(c, 4, out->dims[1], &d.scale, &d.shift)) return ASPEN_KERNEL_BAD_ARGUMENT;
  for (int i = 0; i < 4; i++)
    if (c->lo[i] >= c->hi[i]) return 0;
  const int unit = d.x_channel == 1 && d.w_channel == 1 && d.bias_channel == 1 && d.residual_channel == 1 && d.out_channel == 1;
  const plan by = choose(&d, unit);
  for (int64_t n = c->lo[0]; n < c->hi[0]; n++) {
    d.x = (const float *)x->ptr + n * x->strides[0];
    image(&d, &by, c, residual ? (const float *)residual->ptr + n * residual->strides[0] : NULL, (float *)out->ptr + n * out->strides[0]);
  }
  return 0;
}

int FN(dwconv)(const aspen_call *c) {
  if (!is_volume(c)) return images(c, &one_plane);
  volume v;
  if (volume_open(&v, c, 16)) return ASPEN_KERNEL_BAD_ARGUMENT;
  v.plane_weights = c->params[1] * c->params[2] * c->args[2].strides[0];
  while (volume_next(&v)) {
    const int error = images(&v.call, &v.planes);
    if (error) return error;
  }
  return 0;
}
