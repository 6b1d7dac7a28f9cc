/* DWCONV: depthwise convolution over two or three axes, each channel of output by its own kernel, each of input for one or several of them.
 *
 * Vectors run over channels of output. Where kernel and stride are common ones, two output rows of neighbours share each load of an input
 * vector (depthwise.h). Other rows go one by one or a few at a time. Elsewhere a strip of output is made for a few channels after the
 * other. The rows of input that its windows see lie in scratch meanwhile. Neighbours are summed together by runs of taps of a kernel row
 * (`strips`). An output is summed over its taps in ascending order from zero, taps outside the image are
 * skipped: a rule of the output pixel alone.
 */
#include "conv/depthwise.h"
#include "vector/epilogue.h"
#include "conv/volume.h"
#include "conv/window.h"

#define L1_BYTES (20 << 10) /* of input that the windows of one row of neighbours may span */
#define ANY_PIXELS 4        /* neighbours that have no block; times 2 vectors of channels: 8 sums */
#define LINE 16             /* channels of a strip that are made together: a cache line */
#define RING_BYTES (28 << 10) /* of input in scratch, about */
#define FEWEST_COLUMNS 16   /* of output in a strip, however large the ring becomes */
#define NARROW 4            /* columns of a tile; fewer go one by one */
#define FEW_TAPS 20         /* of a window; with fewer, strips cost more than they save */
#define SHORT_ROW 3         /* taps of a kernel row */
#define COPIED_WEIGHTS 8    /* pixels of a strip that are worth a copy of the weights */
#define RING_TAPS 4         /* of a window that are worth a copy of the input */

typedef struct dwconv {
  window rows, columns;
  planes planes;
  int64_t w_plane; /* floats between the weights of planes */
  const float *x, *w, *bias; /* x: of this image; bias may be NULL */
  int64_t x_row, x_column, x_channel, w_tap, w_channel, bias_channel;
  int64_t multiplier; /* channel c of output is made of channel c / multiplier of input */
  int64_t residual_row, residual_column, residual_channel, out_row, out_column, out_channel;
  epilogue epilogue;
  const float *scale, *shift; /* may be NULL */
} dwconv;

INLINE vf load(const float *p, int64_t channel, int64_t stride, int64_t n, const int unit) {
  return !unit ? vload_strided(p + channel * stride, stride, n) : n >= VL ? vload(p + channel) : vload_part(p + channel, n);
}

/* sum[p * V + v] over taps [kh_lo, kh_hi) x [kw_lo, kw_hi) of P pixels, V vectors of channels from c on; n: channels left. */
INLINE void any_taps(const dwconv *d, const int P, const int V, vf *sum, const float *x, const int64_t kh[2], const int64_t kw[2], int64_t c,
                     int64_t n) {
  const int64_t next = d->columns.stride * d->x_column;
  for (int64_t q = 0; q < d->planes.n; q++, x += d->planes.step)
    for (int64_t i = kh[0]; i < kh[1]; i++) {
      const float *from = x + i * d->rows.dilation * d->x_row + kw[0] * d->columns.dilation * d->x_column;
      const float *w = d->w + q * d->w_plane + (i * d->columns.kernel + kw[0]) * d->w_tap;
      for (int64_t j = kw[0]; j < kw[1]; j++, from += d->columns.dilation * d->x_column, w += d->w_tap) {
        vf weight[4];
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) weight[v] = load(w, c + v * VL, 1, n - v * VL, 1);
#pragma GCC unroll 4
        for (int p = 0; p < P; p++)
#pragma GCC unroll 4
          for (int v = 0; v < V; v++)
            sum[p * V + v] = vfma(load(from + p * next, c + v * VL, 1, n - v * VL, 1), weight[v], sum[p * V + v]);
      }
    }
}

/* Bias, residual, activation, scale and shift of R x P pixels times V vectors of channels from c on, and home. sum[(r * P + p) * V + v];
 * `left` channels remain; residual and out: channel 0 of the first pixel. */
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

/* P pixels of a row, all with the same taps, V vectors of channels. x: tap (0, 0) of the first one; residual and out: the first one. */
INLINE void any_pixels(const dwconv *d, const int P, const int V, const float *x, const float *residual, float *out, const int64_t kh[2],
                       const int64_t kw[2], int64_t c, int64_t n) {
  vf sum[8]; /* P x V of them; a constant number lives in registers */
#pragma GCC unroll 8
  for (int i = 0; i < P * V; i++) sum[i] = vzero();
  any_taps(d, P, V, sum, x, kh, kw, c, n);
  finish(d, 1, P, V, 1, sum, residual, out, c, n);
}

INLINE void any_channels(const dwconv *d, const int P, const int V, const float *x, const float *residual, float *out, const int64_t kh[2],
                         const int64_t kw[2], int64_t c, int64_t end) {
  for (; c + V * VL <= end; c += V * VL) any_pixels(d, P, V, x, residual, out, kh, kw, c, V * VL);
  for (; c + VL <= end; c += VL) any_pixels(d, P, 1, x, residual, out, kh, kw, c, VL);
  for (; c < end; c += VL) any_pixels(d, P, 1, x, residual, out, kh, kw, c, end - c);
}

static void one_unit(const dwconv *d, const float *x, const float *residual, float *out, const int64_t kh[2], const int64_t kw[2], int64_t c,
                     int64_t end) {
  any_channels(d, 1, 4, x, residual, out, kh, kw, c, end);
}
static void many_unit(const dwconv *d, const float *x, const float *residual, float *out, const int64_t kh[2], const int64_t kw[2], int64_t c,
                      int64_t end) {
  any_channels(d, ANY_PIXELS, 2, x, residual, out, kh, kw, c, end);
}

/* R rows of P pixels, unit channels. x: tap (0, 0) of the first one. kh: the rows inside the image among the (R - 1) * S + K from there on.
 * kw: the columns inside. */
typedef void block_fn(const dwconv *, const float *, const float *, float *, const int64_t[2], const int64_t[2], int64_t, int64_t);

/* `edge`: not all of them lie inside, or there are several planes. */
INLINE void block(const dwconv *d, const int edge, const int R, const int P, const int K, const int S, const float *x, const float *residual,
                  float *out, const int64_t kh[2], const int64_t kw[2], int64_t c, int64_t end) {
  for (; c + VL <= end; c += VL) {
    vf sum[2 * DEPTHWISE_PIXELS];
#pragma GCC unroll 16
    for (int i = 0; i < R * P; i++) sum[i] = vzero();
#pragma GCC unroll 1
    for (int64_t q = 0; q < (edge ? d->planes.n : 1); q++) {
      const float *line[7]; /* of two rows of windows, at most */
#pragma GCC unroll 8
      for (int i = 0; i < (R - 1) * S + K; i++) line[i] = edge && (i < kh[0] || i >= kh[1]) ? NULL : x + q * d->planes.step + i * d->x_row;
      depthwise_taps(0, R, P, K, K, S, S, edge, sum, line, c, d->x_column, kw[0], kw[1], d->w + q * d->w_plane + c, d->w_tap);
    }
    finish(d, R, P, 1, 1, sum, residual, out, c, VL);
  }
  if (c == end) return;
  const int64_t taps[2] = {0, K};
  for (int r = 0; r < R && !edge; r++)
    any_pixels(d, P, 1, x + r * S * d->x_row, residual ? residual + r * d->residual_row : NULL, out + r * d->out_row, taps, taps, c, end - c);
  for (int r = 0; r < R && edge; r++)
    for (int p = 0; p < P; p++) {
      const int64_t rows[2] = {max64(kh[0] - r * S, 0), min64(kh[1] - r * S, K)}, columns[2] = {max64(kw[0] - p * S, 0), min64(kw[1] - p * S, K)};
      any_pixels(d, 1, 1, x + r * S * d->x_row + p * S * d->x_column, residual ? residual + r * d->residual_row + p * d->residual_column : NULL,
                 out + r * d->out_row + p * d->out_column, rows, columns, c, end - c);
    }
}

#define BLOCK(NAME, EDGE, R, K, S)                                                                                                 \
  static void NAME(const dwconv *d, const float *x, const float *residual, float *out, const int64_t kh[2], const int64_t kw[2],   \
                   int64_t c, int64_t end) {                                                                                       \
    block(d, EDGE, R, DEPTHWISE_PIXELS, K, S, x, residual, out, kh, kw, c, end);                                                   \
  }
#define BLOCKS(K, S)                                                                                                               \
  BLOCK(one_##K##_##S, 0, 1, K, S)                                                                                                 \
  BLOCK(more_##K##_##S, 0, DEPTHWISE_ROWS_##K, K, S)                                                                               \
  BLOCK(edge_one_##K##_##S, 1, 1, K, S)                                                                                            \
  BLOCK(edge_more_##K##_##S, 1, DEPTHWISE_ROWS_##K, K, S)
BLOCKS(3, 1)
BLOCKS(3, 2)
BLOCKS(5, 1)
BLOCKS(5, 2)

/* How the pixels of an image are computed: DEPTHWISE_PIXELS of `rows` rows together, or without blocks ANY_PIXELS or one. */
typedef struct plan {
  block_fn *block[2][2]; /* [edge][more rows than one]; NULL: none */
  int64_t rows, pixels;
} plan;

/* Unit channels, multiplier 1, `columns` columns of output. */
static plan choose(const dwconv *d, int64_t columns) {
  const window *a = &d->rows, *b = &d->columns;
  if (!depthwise_common(a, b) || d->planes.n < 1 || columns < DEPTHWISE_PIXELS) return (plan){.rows = 1, .pixels = ANY_PIXELS};
  static const plan plans[2][2] = { /* [5 x 5][stride 2] */
#define PLAN(K, S) {{{one_##K##_##S, more_##K##_##S}, {edge_one_##K##_##S, edge_more_##K##_##S}}, DEPTHWISE_ROWS_##K, DEPTHWISE_PIXELS}
      {PLAN(3, 1), PLAN(3, 2)}, {PLAN(5, 1), PLAN(5, 2)}
#undef PLAN
  };
  return plans[a->kernel == 5][a->stride == 2];
}

/* Columns [first, last) of rows from `oh` on, channels [channel, end), in blocks, which at the end make some pixels twice. Returns the
 * number of rows. */
static int64_t row_of_blocks(const dwconv *d, const plan *by, const aspen_call *c, int64_t oh, int64_t first, int64_t last, int64_t channel,
                             int64_t end, const float *residual, float *out) {
  const int64_t rows = oh + by->rows <= c->hi[2] ? by->rows : 1, top = window_start(&d->rows, oh);
  const int64_t down = (rows - 1) * d->rows.stride + d->rows.kernel, right = (by->pixels - 1) * d->columns.stride + d->columns.kernel;
  const int64_t kh[2] = {max64(-top, 0), min64(down, d->rows.in - top)};
  const int inside = kh[0] == 0 && kh[1] == down && d->planes.n == 1;
  for (int64_t ow = first; ow < last; ow += by->pixels) {
    ow = min64(ow, max64(last, c->lo[3] + by->pixels) - by->pixels);
    const int64_t left = window_start(&d->columns, ow), kw[2] = {max64(-left, 0), min64(right, d->columns.in - left)};
    const int edge = !inside || kw[0] > 0 || kw[1] < right;
    by->block[edge][rows > 1](d, d->x + top * d->x_row + left * d->x_column,
                              residual ? residual + oh * d->residual_row + ow * d->residual_column : NULL,
                              out + oh * d->out_row + ow * d->out_column, kh, kw, channel, end);
  }
  return rows;
}

/* The same of a row, pixel by pixel, or a few with the same taps. [lo, hi): those whose windows lie inside. */
static void row_of_pixels(const dwconv *d, int64_t oh, int64_t first, int64_t last, int64_t lo, int64_t hi, int64_t channel, int64_t end,
                          const float *residual, float *out) {
  int64_t kh[2], kw[2];
  window_taps(&d->rows, oh, &kh[0], &kh[1]);
  hi = min64(hi, last);
  for (int64_t ow = first, together; ow < last; ow += together) {
    const int many = hi - lo >= ANY_PIXELS && ow >= lo && ow + 1 < hi;
    together = many ? ANY_PIXELS : 1;
    if (many) ow = min64(ow, hi - ANY_PIXELS); /* at the end, computing some pixels twice is cheaper than going one by one */
    window_taps(&d->columns, ow, &kw[0], &kw[1]);
    const float *x = d->x + window_start(&d->rows, oh) * d->x_row + window_start(&d->columns, ow) * d->x_column;
    const float *r = residual ? residual + oh * d->residual_row + ow * d->residual_column : NULL;
    (many ? many_unit : one_unit)(d, x, r, out + oh * d->out_row + ow * d->out_column, kh, kw, channel, end);
  }
}

/* One image. Strips of pixels are narrow, and blocks of channels small: kernel rows find their input in L1 again for the next row of
 * output. Within a strip, memory is read along rows. */
static void image(const dwconv *d, const plan *by, const aspen_call *c, const float *residual, float *out) {
  int64_t lo, hi;
  window_inside(&d->columns, c->lo[3], c->hi[3], &lo, &hi);
  const int64_t seen = (by->pixels - 1) * d->columns.stride + d->columns.kernel; /* input pixels of a row of neighbours */
  const int64_t column_bytes = d->planes.all * d->rows.kernel * (int64_t)sizeof(float);          /* of one channel */
  int64_t step = L1_BYTES / (seen * column_bytes) / (4 * VL) * (4 * VL);
  step = min64(max64(step, 4 * VL), c->hi[1] - c->lo[1]);
  const int64_t fits = (L1_BYTES / (step * column_bytes) - d->columns.kernel) / d->columns.stride + 1;
  const int64_t strip = max64(fits / by->pixels, 1) * by->pixels;
  for (int64_t first = c->lo[3], last; first < c->hi[3]; first = last) {
    last = (by->block[0][0] ? first : max64(first, lo)) + strip;
    if (last + by->pixels > c->hi[3]) last = c->hi[3];
    for (int64_t channel = c->lo[1]; channel < c->hi[1]; channel += step) {
      const int64_t end = min64(channel + step, c->hi[1]);
      if (by->block[0][0])
        for (int64_t oh = c->lo[2]; oh < c->hi[2];) oh += row_of_blocks(d, by, c, oh, first, last, channel, end, residual, out);
      else
        for (int64_t oh = c->lo[2]; oh < c->hi[2]; oh++) row_of_pixels(d, oh, first, last, lo, hi, channel, end, residual, out);
    }
  }
}

/* ---- strips ---- */

/* A strip of output columns, LINE channels of it, and its workspace. */
typedef struct strip {
  int64_t slots, width;     /* rows and columns of the ring, of each plane */
  int64_t in_lo, in_hi;     /* input columns that its windows see, inside the image */
  int64_t tap, column;      /* floats between taps of `w`, between columns of `line` */
  const float *w;           /* tap 0 */
  const float **line;       /* of each plane, the rows of input that a row of windows sees */
  float *ring, *weights;
  int64_t first[LINE / VL], seen[LINE / VL]; /* channels of input that a vector of output is made of, and how many … */
  vi which[LINE / VL];                       /* … from the first of them on, which its lanes are */
} strip;

/* Rows of the ring: as many as a row of windows sees, and one where the image has none. */
static int64_t ring_rows(const dwconv *d) { return max64(min64((d->rows.kernel - 1) * d->rows.dilation + 1, d->rows.in), 1); }

/* Columns of output in a strip: as many as leave the ring its size. */
static int64_t strip_columns(const dwconv *d, int64_t columns) {
  const int64_t span = (d->columns.kernel - 1) * d->columns.dilation + 1;
  const int64_t line = RING_BYTES / (d->planes.all * ring_rows(d) * LINE * (int64_t)sizeof(float));
  return min64(max64((line - span) / d->columns.stride + 1, FEWEST_COLUMNS), columns);
}

/* Lays the workspace of strips of at most `columns` columns out from `base`; returns its size in bytes. */
static size_t lay_out(const dwconv *d, strip *s, char *base, int64_t columns) {
  const int64_t span = (d->columns.kernel - 1) * d->columns.dilation + 1, rows = d->planes.all * d->rows.kernel;
  size_t at = 0;
  s->slots = ring_rows(d);
  s->width = min64((columns - 1) * d->columns.stride + span, d->columns.in);
#define PART(field, type, count) (s->field = (type *)(base + at), at += ((size_t)(count) * sizeof(type) + 63) & ~(size_t)63)
  PART(ring, float, d->planes.all * s->slots * s->width * LINE);
  PART(weights, float, rows * d->columns.kernel * LINE);
  PART(line, const float *, rows);
#undef PART
  return at;
}

/* Chooses the channels of input that the channels [c, c + n) of output are made of. */
static void choose_channels(const dwconv *d, strip *s, int64_t c, int64_t n) {
  int64_t channel = c / d->multiplier, times = d->multiplier - c % d->multiplier; /* further outputs of the channel */
  for (int v = 0; v < LINE / VL; v++) {
    int32_t lane[VL] = {0};
    s->first[v] = channel, s->seen[v] = 0;
    for (int64_t i = 0; i < VL && v * VL + i < n; i++) {
      lane[i] = (int32_t)(channel - s->first[v]);
      s->seen[v] = lane[i] + 1;
      if (--times == 0) channel++, times = d->multiplier;
    }
    s->which[v] = viload(lane);
  }
}

/* A row of n pixels goes to the ring. x: channel 0 of the first one. `unit` channels, all of LINE (`whole`), `same` as those of output.
 * `next`: elements to the next row, which is brought nearer meanwhile, or 0. The processor's prefetchers do not foresee few channels of a
 * pixel. */
INLINE void keep_row(const dwconv *d, const strip *s, const int unit, const int whole, const int same, const float *x, float *to, int64_t n,
                     int64_t next) {
#pragma GCC unroll 4
  for (int v = 0; v < LINE / VL; v++) {
    const int64_t first = s->first[v], seen = s->seen[v], x_channel = d->x_channel, x_column = d->x_column;
    const vi which = s->which[v];
    const float *from = x;
    float *at = to + v * VL;
    for (int64_t i = 0; i < n; i++, from += x_column, at += LINE) {
      const vf y = load(from, first, x_channel, whole ? VL : seen, unit);
      vstore(at, same ? y : __builtin_shuffle(y, which));
      if (unit) __builtin_prefetch(from + first + next);
    }
  }
}

/* Rows [from, to) of input, all planes of them, go to the ring. n: channels of LINE that exist. No row from `end` on is ever seen. */
static void keep_rows(const dwconv *d, const strip *s, int64_t from, int64_t to, int64_t end, int64_t n) {
  const int64_t columns = s->in_hi - s->in_lo;
  for (int64_t ih = from; ih < to; ih++) {
    const int64_t slot = ih % s->slots, next = ih + 1 < end ? d->x_row : 0;
    for (int64_t q = 0; q < d->planes.n; q++) {
      const float *x = d->x + q * d->planes.step + ih * d->x_row + s->in_lo * d->x_column;
      float *row = s->ring + (q * s->slots + slot) * s->width * LINE;
      if (d->x_channel != 1)
        keep_row(d, s, 0, 0, 0, x, row, columns, next);
      else if (d->multiplier > 1)
        keep_row(d, s, 1, 0, 0, x, row, columns, next);
      else if (n < LINE)
        keep_row(d, s, 1, 0, 1, x, row, columns, next);
      else
        keep_row(d, s, 1, 1, 1, x, row, columns, next);
    }
  }
}

/* The lines of a row of windows whose first tap is in input row `top`. */
static void set_lines(const dwconv *d, strip *s, int ring, int64_t top, const int64_t kh[2], int64_t c) {
  const int64_t dilation = d->rows.dilation, first = top + kh[0] * dilation;
  const int64_t step = ring ? dilation % s->slots : dilation, row = ring ? s->width * LINE : d->x_row;
  for (int64_t q = 0; q < d->planes.n; q++) {
    const float *base = ring ? s->ring + q * s->slots * row : d->x + q * d->planes.step + s->in_lo * d->x_column + c;
    int64_t at = ring ? first % s->slots : first;
    for (int64_t i = kh[0]; i < kh[1]; i++, at += step) {
      if (ring && at >= s->slots) at -= s->slots;
      s->line[q * d->rows.kernel + i] = base + at * row;
    }
  }
}

/* P pixels of a row, VL channels: sums of taps of kernel rows [kh[0], kh[1]) of all planes, to `to`. at: where the first tap of the first
 * pixel lies in each of the strip's lines, in columns. With `edge`, only [lo, hi) of the columns from there on count. v: which channels of
 * LINE. */
typedef void window_fn(const dwconv *, const strip *, int64_t, const int64_t[2], int64_t, int64_t, int64_t, float *);

/* S: the stride, where there is no dilation; 0: any. */
INLINE void row_of_windows(const int P, const int S, const int edge, const dwconv *d, const strip *s, int64_t at, const int64_t kh[2], int64_t lo,
                           int64_t hi, int64_t v, float *to) {
  vf sum[16];
#pragma GCC unroll 16
  for (int p = 0; p < P; p++) sum[p] = vzero();
  const int64_t taps = d->columns.kernel, column = s->column, tap = s->tap, step = d->columns.stride, dilation = d->columns.dilation;
  const int64_t runs = (taps + DEPTHWISE_RUN - 1) / DEPTHWISE_RUN, run = (taps + runs - 1) / runs;
  for (int64_t q = 0; q < d->planes.n; q++)
    for (int64_t i = kh[0]; i < kh[1]; i++) {
      const float *from = s->line[q * d->rows.kernel + i] + at * column + v, *w = s->w + (q * d->rows.kernel + i) * taps * tap + v;
      if (S == 0)
        for (int64_t t = 0; t < taps; t++, w += tap, from += dilation * column)
          depthwise_tap(P, edge, sum, from, column, step, lo - t * dilation, hi - t * dilation, w);
      else
        for (int64_t t = 0; t < taps; t += run, w += run * tap, from += run * column) {
#define RUN(T) case T: depthwise_run(T, P, S, edge, sum, from, column, lo - t, hi - t, w, tap); break
          switch (min64(run, taps - t)) {
            RUN(1);
            RUN(2);
            RUN(3);
            RUN(4);
            RUN(5);
            RUN(6);
          default: depthwise_run(DEPTHWISE_RUN, P, S, edge, sum, from, column, lo - t, hi - t, w, tap);
          }
#undef RUN
        }
    }
#pragma GCC unroll 16
  for (int p = 0; p < P; p++) vstore(to + p * VL, sum[p]);
}

#define WINDOW(P, S, EDGE, NAME)                                                                                                   \
  static void NAME(const dwconv *d, const strip *s, int64_t at, const int64_t kh[2], int64_t lo, int64_t hi, int64_t v, float *to) { \
    row_of_windows(P, S, EDGE, d, s, at, kh, lo, hi, v, to);                                                                       \
  }
#define WINDOWS(P)                                                                                                                 \
  WINDOW(P, 0, 0, inside_##P##_any) WINDOW(P, 1, 0, inside_##P##_1) WINDOW(P, 2, 0, inside_##P##_2)                                \
  WINDOW(P, 0, 1, edge_##P##_any) WINDOW(P, 1, 1, edge_##P##_1) WINDOW(P, 2, 1, edge_##P##_2)
#define WINDOW_ROW(P) {P, {{inside_##P##_any, inside_##P##_1, inside_##P##_2}, {edge_##P##_any, edge_##P##_1, edge_##P##_2}}}
typedef struct windows {
  int64_t pixels;
  window_fn *by[2][3]; /* [edge][stride; 0: any] */
} windows;
/* How many pixels at a time; widths of images are multiples of 7 or 8. Few of them wait for their sums. */
#if VL == 16
#define MOST_PIXELS 16
WINDOWS(7) WINDOWS(8) WINDOWS(14) WINDOWS(16)
static const windows all_windows[] = {WINDOW_ROW(16), WINDOW_ROW(14), WINDOW_ROW(8), WINDOW_ROW(7)};
#elif VL == 8
#define MOST_PIXELS 8
WINDOWS(7) WINDOWS(8)
static const windows all_windows[] = {WINDOW_ROW(8), WINDOW_ROW(7)};
#else
#define MOST_PIXELS 4
WINDOWS(4)
static const windows all_windows[] = {WINDOW_ROW(4)};
#endif

/* The windows that take least for `columns` columns. */
static const windows *windows_for(int64_t columns) {
  const windows *best = NULL;
  int64_t least = INT64_MAX;
  for (size_t k = 0; k < sizeof all_windows / sizeof *all_windows; k++) {
    /* a row of weights costs as much as a pixel or two */
    const int64_t n = all_windows[k].pixels, takes = (columns + n - 1) / n * (2 * n + 3);
    if (takes < least) least = takes, best = &all_windows[k];
  }
  return best;
}

/* From sums [n][VL] of neighbours, channels c to c + left, to the output. */
INLINE void finish_each(const dwconv *d, const int unit, const float *sums, int64_t n, const float *residual, float *out, int64_t c, int64_t left) {
  for (; n >= 4; n -= 4, sums += 4 * VL, out += 4 * d->out_column) {
    vf sum[4] = {vload(sums), vload(sums + VL), vload(sums + 2 * VL), vload(sums + 3 * VL)};
    finish(d, 1, 4, 1, unit, sum, residual, out, c, left);
    if (residual) residual += 4 * d->residual_column;
  }
  for (; n > 0; n--, sums += VL, out += d->out_column) {
    vf sum[1] = {vload(sums)};
    finish(d, 1, 1, 1, unit, sum, residual, out, c, left);
    if (residual) residual += d->residual_column;
  }
}
static void finish_unit(const dwconv *d, const float *sums, int64_t n, const float *residual, float *out, int64_t c, int64_t left) {
  finish_each(d, 1, sums, n, residual, out, c, left);
}
static void finish_strided(const dwconv *d, const float *sums, int64_t n, const float *residual, float *out, int64_t c, int64_t left) {
  finish_each(d, 0, sums, n, residual, out, c, left);
}

/* A row of a strip: output columns [first, last), channels [c, c + n), from the lines that the strip has. `unit`: channels of all but the
 * input.
 * `more`: there is a row below, which is brought nearer. */
static void strip_row(const dwconv *d, const strip *s, const windows *by, int unit, int more, const int64_t kh[2], int64_t first, int64_t last,
                      const float *residual, float *out, int64_t c, int64_t n) {
  const window *w = &d->columns;
  const int64_t span = (w->kernel - 1) * w->dilation;
  const int stride = w->dilation == 1 && w->stride <= 2 ? (int)w->stride : 0;
  float sums[MOST_PIXELS * VL] __attribute__((aligned(64)));
  for (int64_t ow = first, pixels; ow < last; ow += pixels) {
    pixels = min64(by->pixels, last - ow);
    const int64_t start = window_start(w, ow), lo = -start, hi = min64(w->in - start, (pixels - 1) * w->stride + span + 1);
    const int edge = lo > 0 || hi < (by->pixels - 1) * w->stride + span + 1;
    if (more)
      for (int64_t p = ow; p < ow + pixels; p++) {
        __builtin_prefetch(out + p * d->out_column + c + d->out_row, 1);
        if (residual) __builtin_prefetch(residual + p * d->residual_column + c + d->residual_row);
      }
    for (int64_t v = 0; v < LINE && v < n; v += VL) {
      by->by[edge][stride](d, s, start - s->in_lo, kh, lo, hi, v, sums);
      (unit ? finish_unit : finish_strided)(d, sums, pixels, residual ? residual + ow * d->residual_column : NULL, out + ow * d->out_column, c + v, n - v);
    }
  }
}

/* Weights of channels [c, c + n), one tap behind the other, where enough pixels use them. */
static void keep_weights(const dwconv *d, strip *s, int64_t pixels, int64_t c, int64_t n) {
  if (pixels < COPIED_WEIGHTS && d->w_channel == 1 && n == LINE) {
    s->w = d->w + c, s->tap = d->w_tap;
    return;
  }
  const int64_t taps = d->planes.n * d->rows.kernel * d->columns.kernel;
  for (int64_t t = 0; t < taps; t++)
    for (int v = 0; v < LINE / VL; v++)
      vstore(s->weights + t * LINE + v * VL, load(d->w + t * d->w_tap, c + v * VL, d->w_channel, max64(n - v * VL, 0), d->w_channel == 1));
  s->w = s->weights, s->tap = LINE;
}

/* One image. `unit`: channels of all but input and weights. */
static void strips(const dwconv *d, const aspen_call *call, int unit, const float *residual, float *out) {
  strip s;
  const window *rows = &d->rows, *columns = &d->columns;
  const int64_t most = strip_columns(d, call->hi[3] - call->lo[3]), all = call->hi[3] - call->lo[3];
  lay_out(d, &s, call->scratch, most);
  const int64_t parts = (all + most - 1) / most;
  const windows *by = windows_for((all + parts - 1) / parts);
  const int64_t even = ((all + parts - 1) / parts + by->pixels - 1) / by->pixels * by->pixels, length = even > most ? most : even;
  const int64_t below = min64(window_start(rows, call->hi[2] - 1) + (rows->kernel - 1) * rows->dilation + 1, rows->in);
  const int in_place = d->multiplier == 1 && d->x_channel == 1 && d->planes.n * rows->kernel * columns->kernel < RING_TAPS;
  for (int64_t first = call->lo[3]; first < call->hi[3]; first += length) {
    const int64_t last = min64(first + length, call->hi[3]);
    s.in_lo = min64(max64(window_start(columns, first), 0), columns->in);
    s.in_hi = max64(min64(window_start(columns, last - 1) + (columns->kernel - 1) * columns->dilation + 1, columns->in), s.in_lo);
    for (int64_t c = call->lo[1]; c < call->hi[1]; c += LINE) {
      const int64_t n = min64(LINE, call->hi[1] - c);
      const int ring = !in_place || n < LINE;
      keep_weights(d, &s, (last - first) * (call->hi[2] - call->lo[2]), c, n);
      choose_channels(d, &s, c, n);
      s.column = ring ? LINE : d->x_column;
      int64_t kept = 0; /* rows of input before this one are in the ring, or nobody sees them any more */
      for (int64_t oh = call->lo[2]; oh < call->hi[2]; oh++) {
        int64_t kh[2];
        window_taps(rows, oh, &kh[0], &kh[1]);
        const int64_t top = window_start(rows, oh);
        if (kh[0] < kh[1]) {
          kept = max64(kept, top); /* of dilated windows, a later one may see an earlier row */
          const int64_t seen = top + (kh[1] - 1) * rows->dilation + 1;
          if (ring && kept < seen) keep_rows(d, &s, kept, seen, below, n), kept = seen;
          set_lines(d, &s, ring, top, kh, c);
        }
        strip_row(d, &s, by, unit, unit && oh + 1 < call->hi[2], kh, first, last, residual ? residual + oh * d->residual_row : NULL, out + oh * d->out_row, c, n);
      }
    }
  }
}

/* Images of a call: operands and window, no epilogue. */
static int setup(dwconv *d, const aspen_call *c, const planes *planes) {
  const aspen_arg *out = &c->args[0], *x = &c->args[1], *w = &c->args[2];
  const aspen_arg *bias = c->n_inputs > 2 && c->args[3].dtype ? &c->args[3] : NULL;
  const aspen_arg *residual = c->n_inputs > 3 && c->args[4].dtype ? &c->args[4] : NULL;
  const int64_t *p = c->params;
  if (out->rank != 4 || x->rank != 4 || w->rank != 2 || (bias && bias->rank != 1) || (residual && residual->rank != 4))
    return ASPEN_KERNEL_BAD_ARGUMENT;
  if (out->dtype != ASPEN_DT_F32 || x->dtype != ASPEN_DT_F32 || w->dtype != ASPEN_DT_F32) return ASPEN_KERNEL_BAD_ARGUMENT;
  *d = (dwconv){.rows = {x->dims[2], p[1], p[3], p[5], p[7]}, .columns = {x->dims[3], p[2], p[4], p[6], p[8]},
                .planes = *planes, .w_plane = p[1] * p[2] * w->strides[0], .w = (const float *)w->ptr, .bias = bias ? (const float *)bias->ptr : NULL,
                .x_row = x->strides[2], .x_column = x->strides[3], .x_channel = x->strides[1],
                .w_tap = w->strides[0], .w_channel = w->strides[1],
                .multiplier = x->dims[1] > 0 ? out->dims[1] / x->dims[1] : 1,
                .bias_channel = bias ? bias->strides[0] : 1,
                .residual_row = residual ? residual->strides[2] : 0, .residual_column = residual ? residual->strides[3] : 0,
                .residual_channel = residual ? residual->strides[1] : 1,
                .out_row = out->strides[2], .out_column = out->strides[3], .out_channel = out->strides[1]};
  return d->rows.kernel < 1 || d->columns.kernel < 1 || d->multiplier < 1 ? ASPEN_KERNEL_BAD_ARGUMENT : 0;
}

#ifdef ISA_PORTABLE
size_t aspen_scratch_dwconv(const aspen_call *c) {
  dwconv d;
  strip s;
  volume v;
  if (is_volume(c) ? volume_open(&v, c, 16) || setup(&d, &v.call, &v.planes) : setup(&d, c, &one_plane)) return 0;
  const int64_t columns = c->hi[is_volume(c) ? 4 : 3] - c->lo[is_volume(c) ? 4 : 3];
  return columns > 0 ? lay_out(&d, &s, (char *)64, strip_columns(&d, columns)) : 0;
}
#endif

/* Is a window, of unit channels, that fast in strips? Its input is loaded for several taps, and often enough to be worth a copy. */
static int by_runs(const dwconv *d) {
  return !depthwise_common(&d->rows, &d->columns) && d->columns.dilation == 1 && d->columns.stride <= 2 && d->columns.kernel >= SHORT_ROW &&
         d->planes.all * d->rows.kernel * d->columns.kernel >= FEW_TAPS;
}

/* The boxes of some images. */
static int images(const aspen_call *c, const planes *planes) {
  const aspen_arg *out = &c->args[0], *x = &c->args[1];
  const aspen_arg *residual = c->n_inputs > 3 && c->args[4].dtype ? &c->args[4] : NULL;
  const int64_t *p = c->params;
  dwconv d;
  if (setup(&d, c, planes)) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (FN(epilogue_open)(&d.epilogue, p[9], aspen_param_f(c, 10), aspen_param_f(c, 11), p[12])) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (epilogue_scale(c, 4, out->dims[1], &d.scale, &d.shift)) return ASPEN_KERNEL_BAD_ARGUMENT;
  for (int i = 0; i < 4; i++)
    if (c->lo[i] >= c->hi[i]) return 0;
  const int unit = d.bias_channel == 1 && d.residual_channel == 1 && d.out_channel == 1;
  const int plain = unit && d.x_channel == 1 && d.w_channel == 1 && d.multiplier == 1;
  const int in_strips = !plain || (by_runs(&d) && c->hi[3] - c->lo[3] >= NARROW);
  strip s;
  if (in_strips && lay_out(&d, &s, c->scratch, strip_columns(&d, c->hi[3] - c->lo[3])) > c->scratch_bytes) return ASPEN_KERNEL_SCRATCH;
  const plan by = choose(&d, c->hi[3] - c->lo[3]);
  for (int64_t n = c->lo[0]; n < c->hi[0]; n++) {
    d.x = (const float *)x->ptr + n * x->strides[0];
    const float *of = residual ? (const float *)residual->ptr + n * residual->strides[0] : NULL;
    float *to = (float *)out->ptr + n * out->strides[0];
    if (in_strips)
      strips(&d, c, unit, of, to);
    else
      image(&d, &by, c, of, to);
  }
  return 0;
}

int FN(dwconv)(const aspen_call *c) {
  if (c->args[0].dtype == ASPEN_DT_BF16 || c->args[1].dtype == ASPEN_DT_BF16 || (c->n_inputs > 3 && c->args[4].dtype == ASPEN_DT_BF16))
    return FN(bdwconv)(c);
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
