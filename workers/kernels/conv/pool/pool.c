/* POOL: sliding maximum or average over two spatial axes, then act(… * scale + shift).
 *
 * Vectors run over channels, one output pixel after the other, taps outside the image skipped. An average adds up each kernel row from
 * zero, then the rows: shorter chains lose fewer digits over large windows. A NaN in a window wins (all NaNs are the same NaN). Windows of
 * common sizes that lie inside the image go through loops without counters. Maxima of windows one pixel apart share comparisons (rows.h),
 * also where pixels, not channels, lie side by side (planes.h). Averages of windows that overlap share sums (average.h).
 */
#include "conv/pool/average.h"
#include "conv/pool/planes.h"

enum { MAXIMUM = 0, AVERAGE = 1 };

/* A vector of channels from number c of the tile on, of which `left` remain, when its windows are done. */
INLINE vf finish(const pool *p, vf y, int64_t c, int64_t left) {
  if (p->end.scale) {
    const float *scale = p->end.scale + c, *shift = p->end.shift + c;
    y = left >= VL ? vfma(y, vload(scale), vload(shift)) : vfma(y, vload_part(scale, left), vload_part(shift, left));
  }
  epilogue_act(&p->end.act, &y, 1);
  return y;
}

/* Taps [kh_lo, kh_hi) x [kw_lo, kw_hi) of one pixel, V vectors of channels. x: channel c of tap (0, 0); n: channels left, from number c of
 * the tile on. */
INLINE void pixel(const pool *p, const int V, const int unit, const int average, const float *x, float *out, const int64_t kh[2],
                  const int64_t kw[2], mean by, int64_t c, int64_t n) {
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
    vf y = vsel(visnan(acc[v]), vset1(__builtin_nanf("")), acc[v]);
    if (average) y = mean_apply(by, y);
    y = finish(p, y, c + v * VL, left);
    if (!unit)
      vstore_strided(out + v * VL * out_channel, out_channel, y, left);
    else if (left >= VL)
      vstore(out + v * VL, y);
    else
      vstore_part(out + v * VL, y, left);
  }
}

INLINE void channels(const pool *p, const int unit, const int average, const float *x, float *out, const int64_t kh[2], const int64_t kw[2],
                     mean by, int64_t n) {
  const int64_t x_channel = p->x->strides[1], out_channel = p->out->strides[1];
  int64_t c = 0;
  if (unit)
    for (; c + 4 * VL <= n; c += 4 * VL) pixel(p, 4, 1, average, x + c, out + c, kh, kw, by, c, 4 * VL);
  for (; c < n; c += VL) pixel(p, 1, unit, average, x + c * x_channel, out + c * out_channel, kh, kw, by, c, n - c);
}

static void channels_f32(const pool *p, const void *x, void *out, const int64_t kh[2], const int64_t kw[2], int64_t count, int64_t n) {
  const int unit = p->x->strides[1] == 1 && p->out->strides[1] == 1;
  const mean by = mean_of(count);
  if (p->average && unit)
    channels(p, 1, 1, x, out, kh, kw, by, n);
  else if (p->average)
    channels(p, 0, 1, x, out, kh, kw, by, n);
  else if (unit)
    channels(p, 1, 0, x, out, kh, kw, by, n);
  else
    channels(p, 0, 0, x, out, kh, kw, by, n);
}

/* ---- windows of K x K taps inside the image, contiguous channels ---- */

/* Vector v of channels of a pixel; `left` channels remain. */
INLINE vf tap(const float *p, const int whole, int64_t left) { return whole ? vload(p) : vload_part(p, left); }

INLINE void whole_window(const pool *p, const int K, const int V, const int whole, const int average, const float *x, float *out, int64_t c,
                         int64_t n) {
  const int64_t down = p->x->strides[2], right = p->x->strides[3];
  vf acc[4];
  if (average) {
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) acc[v] = vzero();
#pragma GCC unroll 3
    for (int i = 0; i < K; i++)
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) {
        vf line = vzero();
#pragma GCC unroll 3
        for (int j = 0; j < K; j++) line += tap(x + i * down + j * right + v * VL, whole, n - v * VL);
        acc[v] += line;
      }
#pragma GCC unroll 4
    for (int v = 0; v < V; v++)
      acc[v] = mean_apply((mean){(float)(1.0 / (K * K)), K * K}, vsel(visnan(acc[v]), vset1(__builtin_nanf("")), acc[v]));
  } else {
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) { /* maxima that forget NaNs, and one comparison for two taps to remember them */
      vf best = tap(x + v * VL, whole, n - v * VL);
      vm unordered = visnan(best);
#pragma GCC unroll 9
      for (int t = 1; t < K * K; t += 2) {
        const vf a = tap(x + t / K * down + t % K * right + v * VL, whole, n - v * VL);
        const int u = t + 1 < K * K ? t + 1 : t;
        const vf b = tap(x + u / K * down + u % K * right + v * VL, whole, n - v * VL);
        unordered = vm_or(unordered, vunordered(a, b));
        best = vmax(vmax(a, b), best);
      }
      acc[v] = vsel(unordered, vset1(__builtin_nanf("")), best);
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < V; v++) {
    const vf y = finish(p, acc[v], c + v * VL, whole ? VL : n);
    if (whole)
      vstore(out + v * VL, y);
    else
      vstore_part(out + v * VL, y, n - v * VL);
  }
}

/* Pixels of an output row; x: the first tap of the first pixel. */
INLINE void whole_row(const pool *p, const int K, const int average, const float *x, float *out, int64_t pixels, int64_t n) {
  const int64_t x_step = p->columns.stride * p->x->strides[3], out_step = p->out->strides[3];
  for (int64_t i = 0; i < pixels; i++, x += x_step, out += out_step) {
    int64_t c = 0;
    for (; c + 2 * VL <= n; c += 2 * VL) whole_window(p, K, 2, 1, average, x + c, out + c, c, 2 * VL);
    for (; c < n; c += VL)
      if (n - c >= VL)
        whole_window(p, K, 1, 1, average, x + c, out + c, c, VL);
      else
        whole_window(p, K, 1, 0, average, x + c, out + c, c, n - c);
  }
}

typedef void row_fn(const pool *, const float *, float *, int64_t, int64_t);
static void maximum_row_2(const pool *p, const float *x, float *out, int64_t pixels, int64_t n) { whole_row(p, 2, 0, x, out, pixels, n); }
static void maximum_row_3(const pool *p, const float *x, float *out, int64_t pixels, int64_t n) { whole_row(p, 3, 0, x, out, pixels, n); }
static void average_row_2(const pool *p, const float *x, float *out, int64_t pixels, int64_t n) { whole_row(p, 2, 1, x, out, pixels, n); }
static void average_row_3(const pool *p, const float *x, float *out, int64_t pixels, int64_t n) { whole_row(p, 3, 1, x, out, pixels, n); }

/* The function for pixels whose windows lie inside the image, or NULL. */
static row_fn *choose(const pool *p) {
  const int64_t k = p->rows.kernel;
  if (p->x->dtype != ASPEN_DT_F32 || p->x->strides[1] != 1 || p->out->strides[1] != 1) return NULL;
  if (k != p->columns.kernel || p->rows.dilation != 1 || p->columns.dilation != 1) return NULL;
  return k == 2 ? (p->average ? average_row_2 : maximum_row_2) : k == 3 ? (p->average ? average_row_3 : maximum_row_3) : NULL;
}

enum { CHUNK = 64 }; /* channels */

/* Maximum for other types: chunks of channels, so that the compiler's vectors run over them, too. They lie side by side, most are whole. */
#define MAXIMUM_OF(NAME, TYPE, LOWEST)                                                                                             \
  INLINE void NAME##_of(const int64_t m, const int64_t x_channel, const int64_t out_channel, const TYPE *x, TYPE *out, const int64_t kh[2], \
                        const int64_t kw[2], int64_t down, int64_t right) {                                                        \
    TYPE acc[CHUNK];                                                                                                               \
    for (int64_t l = 0; l < m; l++) acc[l] = LOWEST;                                                                               \
    for (int64_t i = kh[0]; i < kh[1]; i++)                                                                                        \
      for (int64_t j = kw[0]; j < kw[1]; j++) {                                                                                    \
        const TYPE *from = x + i * down + j * right;                                                                               \
        for (int64_t l = 0; l < m; l++) {                                                                                          \
          const TYPE t = from[l * x_channel];                                                                                      \
          acc[l] = acc[l] != acc[l] || acc[l] > t ? acc[l] : t;                                                                     \
        }                                                                                                                          \
      }                                                                                                                            \
    for (int64_t l = 0; l < m; l++) out[l * out_channel] = acc[l];                                                                 \
  }                                                                                                                                \
  static void NAME(const pool *p, const void *x, void *out, const int64_t kh[2], const int64_t kw[2], int64_t count, int64_t n) {  \
    const int64_t x_channel = p->x->strides[1], out_channel = p->out->strides[1];                                                  \
    const int64_t down = p->rows.dilation * p->x->strides[2], right = p->columns.dilation * p->x->strides[3];                      \
    const int dense = x_channel == 1 && out_channel == 1;                                                                          \
    for (int64_t c = 0; c < n; c += CHUNK) {                                                                                       \
      const int64_t m = min64(CHUNK, n - c);                                                                                       \
      const TYPE *from = (const TYPE *)x + c * x_channel;                                                                          \
      TYPE *to = (TYPE *)out + c * out_channel;                                                                                    \
      if (dense && m == CHUNK) NAME##_of(CHUNK, 1, 1, from, to, kh, kw, down, right);                                              \
      else if (dense) NAME##_of(m, 1, 1, from, to, kh, kw, down, right);                                                           \
      else NAME##_of(m, x_channel, out_channel, from, to, kh, kw, down, right);                                                    \
    }                                                                                                                              \
  }
MAXIMUM_OF(maximum_f64, double, -__builtin_inf())
MAXIMUM_OF(maximum_i8, int8_t, INT8_MIN)
MAXIMUM_OF(maximum_u8, uint8_t, 0)

/* ---- maxima of windows that are one pixel apart ---- */

/* Do channels (axis 1), or the pixels of a row (axis 3), lie side by side? */
static int beside(const pool *p, int axis) { return p->x->strides[axis] == 1 && p->out->strides[axis] == 1; }

static int shares(const pool *p) {
  const window *r = &p->rows, *w = &p->columns;
  if (p->average || p->x->dtype != ASPEN_DT_F32 || r->kernel != w->kernel || r->in < 1 || w->in < 1) return 0;
  if (r->stride != 1 || w->stride != 1 || r->dilation != 1 || w->dilation != 1) return 0;
  if (beside(p, 1)) return r->kernel > 2 && r->kernel <= POOL_WIDEST;
  return beside(p, 3) && (r->kernel == 3 || r->kernel == 5) && w->pad == w->kernel / 2;
}

/* Along the columns [lo, hi): those of windows that can share. */
static pool_line line_of(const pool *p, int64_t lo, int64_t hi) {
  const window *w = &p->columns;
  const int64_t beside = w->kernel == 3 ? 1 : w->kernel - 1; /* of three columns the middle one must be there, of others any */
  const int64_t last = w->in + w->pad - (w->kernel - 1 - beside);
  const int64_t from = max64(lo, w->pad - beside), to = min64(hi, last);
  return (pool_line){w->kernel, w->in, w->pad, from, max64(from, to), p->x->strides[3], p->out->strides[3]};
}

/* Do the windows of the pair that row `oh` belongs to have a row of pixels in common? */
static int in_common(const pool *p, int64_t oh) {
  const int64_t top = oh - oh % 2 - p->rows.pad;
  return top + 1 < p->rows.in && top + p->rows.kernel > 0;
}

/* Whether POOL with these parameters takes the rows of its arguments from rings: all its windows are maxima that share. `planes`: the
 * pixels of a row lie side by side, not channels. */
int FN(pool_rolls)(const int64_t *q, int64_t height, int64_t width, int planes) {
  aspen_arg image = {.dtype = ASPEN_DT_F32, .strides = (const int64_t[]){0, !planes, 0, planes}};
  const pool p = {.rows = {height, q[1], q[3], q[5], q[7]}, .columns = {width, q[2], q[4], q[6], q[8]}, .out = &image, .x = &image,
                  .average = q[0] == AVERAGE};
  const int64_t rows = height + q[7] + q[9] - q[1] + 1, columns = width + q[8] + q[10] - q[2] + 1;
  if (!shares(&p) || rows < 1) return 0;
  const pool_line line = line_of(&p, 0, columns);
  return line.lo == 0 && line.hi == columns && in_common(&p, 0) && in_common(&p, rows - 1);
}

/* Finds the rows of pixels for the pair of rows of windows, within [lo, hi), that begins with row `even`. x, out: the image's first pixel,
 * the output's. Only the tile's region is known: rows that only the other window sees are left out. */
static void lay_pair(const pool *p, const float *x, float *out, int64_t even, int64_t lo, int64_t hi, pool_pair *pair) {
  const int64_t top = even - p->rows.pad, k = p->rows.kernel;
  for (int r = 0; r < 2; r++) pair->out[r] = even + r >= lo && even + r < hi ? out + pool_row(even + r, p->out->ring) * p->out->strides[2] : NULL;
  for (int64_t i = 0; i <= k; i++) {
    const int seen = top + i >= 0 && top + i < p->rows.in && (i > 0 || pair->out[0]) && (i < k || pair->out[1]);
    pair->row[i] = seen ? x + pool_row(top + i, p->x->ring) * p->x->strides[2] : NULL;
  }
}

/* All rows of image n that can share. */
static void share(const pool *p, const aspen_call *c, const pool_line *line, int64_t n) {
  const int64_t *xs = p->x->strides, *os = p->out->strides, channels = c->hi[1] - c->lo[1];
  const float *x = (const float *)p->x->ptr + n * xs[0] + c->lo[1] * xs[1];
  float *out = (float *)p->out->ptr + n * os[0] + c->lo[1] * os[1];
  if (!beside(p, 1)) {
    plane plane = {.rows = p->rows, .x = x, .out = out, .down = xs[2], .out_down = os[2], .ring = p->x->ring, .out_ring = p->out->ring,
                   .lo = c->lo[2], .hi = c->hi[2]};
    for (int64_t k = 0; k < channels; k++, plane.x += xs[1], plane.out += os[1]) plane_run(&plane, line, &p->end, k);
    return;
  }
  for (int64_t even = c->lo[2] - c->lo[2] % 2; even < c->hi[2]; even += 2) {
    if (!in_common(p, even)) continue;
    pool_pair pair;
    lay_pair(p, x, out, even, c->lo[2], c->hi[2], &pair);
    pool_pair_run(&pair, line, &p->end, channels);
  }
}

int FN(pool)(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *x = &c->args[1];
  const int64_t *q = c->params;
  if (out->rank != 4 || x->rank != 4 || out->dtype != x->dtype || q[1] < 1 || q[2] < 1) return ASPEN_KERNEL_BAD_ARGUMENT;
  pool p = {.rows = {x->dims[2], q[1], q[3], q[5], q[7]}, .columns = {x->dims[3], q[2], q[4], q[6], q[8]}, .out = out, .x = x,
            .average = q[0] == AVERAGE, .pad_bottom = q[9], .pad_right = q[10], .count_pads = q[11] != 0};
  void (*run)(const pool *, const void *, void *, const int64_t[2], const int64_t[2], int64_t, int64_t) = NULL;
  int64_t item = 0;
  if (x->dtype == ASPEN_DT_F32) run = channels_f32, item = 4;
  if (!p.average && x->dtype == ASPEN_DT_F64) run = maximum_f64, item = 8;
  if (!p.average && x->dtype == ASPEN_DT_I8) run = maximum_i8, item = 1;
  if (!p.average && x->dtype == ASPEN_DT_U8) run = maximum_u8, item = 1;
  if (!run || q[0] < MAXIMUM || q[0] > AVERAGE) return ASPEN_KERNEL_BAD_ARGUMENT;

  const int plain = q[12] == ASPEN_U_IDENTITY && (c->n_inputs < 2 || !c->args[2].dtype);
  if (x->dtype != ASPEN_DT_F32 && !plain) return ASPEN_KERNEL_BAD_ARGUMENT;
  int status = FN(epilogue_open)(&p.end.act, q[12], aspen_param_f(c, 13), aspen_param_f(c, 14), 0);
  if (!status) status = epilogue_scale(c, 1, x->dims[1], &p.end.scale, &p.end.shift);
  if (status) return status;
  if (p.end.scale) p.end.scale += c->lo[1], p.end.shift += c->lo[1];

  if (average_shares(&p)) {
    average_run(&p, c);
    return 0;
  }
  const int64_t *xs = x->strides, *os = out->strides, channels = c->hi[1] - c->lo[1];
  row_fn *const whole = choose(&p);
  const pool_line line = line_of(&p, c->lo[3], c->hi[3]);
  const int sharing = shares(&p) && line.lo < line.hi;
  if ((x->ring || out->ring) && !shares(&p)) return ASPEN_KERNEL_BAD_ARGUMENT;
  int64_t top, bottom, left, right; /* pixels whose windows lie inside the image */
  window_inside(&p.rows, c->lo[2], c->hi[2], &top, &bottom);
  window_inside(&p.columns, c->lo[3], c->hi[3], &left, &right);
  for (int64_t n = c->lo[0]; n < c->hi[0]; n++) {
    if (sharing) share(&p, c, &line, n);
    for (int64_t oh = c->lo[2]; oh < c->hi[2]; oh++) {
      int64_t kh[2], kw[2];
      window_taps(&p.rows, oh, &kh[0], &kh[1]);
      const int64_t counted_rows = p.average ? counted(&p.rows, oh, p.pad_bottom, p.count_pads) : 0;
      const int shared = sharing && in_common(&p, oh);
      for (int64_t ow = c->lo[3]; ow < c->hi[3]; ow++) {
        if (shared && ow == line.lo) ow = line.hi;
        if (ow >= c->hi[3]) break;
        const int64_t from = n * xs[0] + c->lo[1] * xs[1] + window_start(&p.rows, oh) * xs[2] + window_start(&p.columns, ow) * xs[3];
        const int64_t to = n * os[0] + c->lo[1] * os[1] + oh * os[2] + ow * os[3];
        if (whole && !shared && oh >= top && oh < bottom && ow >= left && ow < right) {
          whole(&p, (const float *)x->ptr + from, (float *)out->ptr + to, right - ow, channels);
          ow = right - 1;
          continue;
        }
        window_taps(&p.columns, ow, &kw[0], &kw[1]);
        const int64_t count = p.average ? counted_rows * counted(&p.columns, ow, p.pad_right, p.count_pads) : 0;
        run(&p, x->ptr + from * item, out->ptr + to * item, kh, kw, count, channels);
      }
    }
  }
  return 0;
}
