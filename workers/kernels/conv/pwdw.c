/* PWDW: a 1x1 convolution and the depthwise convolution that alone reads its result, in one pass. The wide tensor between the two is never
 * written: rows of a panel of its channels stay in the cache, in a ring a few rows ahead of the windows.
 *
 * Loops: image, strip of columns (so narrow that the ring stays in L2), group of panels, rows of output in steps, panel of channels. A step
 * first makes the new rows of the ring, then the windows. Rows and columns beyond the image are zeros in the ring. A group is one panel
 * where the input stays in L2 until the next one reads it. For larger images it is as many panels as have their rings and weights in L2, so
 * that the input is read once for all.
 */
#include "conv/depthwise.h"
#include "gemm/mm.h"
#include "conv/pointwise.h"
#include "conv/window.h"

#define RING_BYTES (256 << 10) /* of a strip, about */
#define FEWEST_COLUMNS 16      /* of output in a strip, however large the ring becomes */
#define FRESH_PIXELS 64        /* of the ring in a step, at least, so that the micro-kernels run on full blocks of rows */
#define ANY_PIXELS 4
#define INPUT_BYTES (768 << 10) /* of a tile that stay in L2 beside a ring, about */
#define GROUP_BYTES (512 << 10) /* of rings and weights of a group, about */
#define MOST_PANELS 8           /* in a group */

typedef struct pwdw {
  const aspen_arg *out, *x, *w, *bias, *dw, *dw_bias;
  window rows, columns;
  int64_t reach_rows, reach_columns; /* input rows and columns that one window spans */
  epilogue epilogue;                 /* of the depthwise half */
} pwdw;

/* The parts of a panel in scratch. The ring's pixels are ASPEN_NR floats. */
typedef struct kept {
  float *ring;
  float *taps;             /* [KH * KW][ASPEN_NR] */
  float *bias, *wide_bias; /* [ASPEN_NR] each: behind the windows, and between the halves */
} kept;

/* A strip of a tile. `kept`: of the panel at hand, one of those in `panels`. */
typedef struct strip {
  int64_t oh_lo, oh_hi, ow_lo, ow_hi;
  int64_t step;         /* rows of output in a step */
  int64_t slots, width; /* rows and columns of the ring */
  int64_t top, left;    /* input row and column of the first window's first tap; may lie outside */
  int64_t in_lo, in_hi; /* input columns inside the image */
  float *zeros;         /* a row of the ring for rows outside the image */
  const float **line;   /* input rows of a step */
  kept kept, panels[MOST_PANELS];
} strip;

static int setup(pwdw *v, const aspen_call *c) {
  *v = (pwdw){.out = &c->args[0], .x = &c->args[1], .w = &c->args[2], .dw = &c->args[4]};
  v->bias = c->args[3].dtype ? &c->args[3] : NULL;
  v->dw_bias = c->n_inputs > 4 && c->args[5].dtype ? &c->args[5] : NULL;
  if (v->out->rank != 4 || v->x->rank != 4 || v->w->rank != 4 || v->dw->rank != 2) return ASPEN_KERNEL_BAD_ARGUMENT;
  for (uint32_t i = 0; i <= c->n_inputs; i++)
    if (c->args[i].dtype && c->args[i].dtype != ASPEN_DT_F32) return ASPEN_KERNEL_BAD_ARGUMENT;
  if ((v->bias && v->bias->rank != 1) || (v->dw_bias && v->dw_bias->rank != 1)) return ASPEN_KERNEL_BAD_ARGUMENT;
  const int64_t *p = c->params;
  v->rows = (window){v->x->dims[2], p[3], p[5], p[7], p[9]};
  v->columns = (window){v->x->dims[3], p[4], p[6], p[8], p[10]};
  if (v->rows.kernel < 1 || v->columns.kernel < 1) return ASPEN_KERNEL_BAD_ARGUMENT;
  v->reach_rows = (v->rows.kernel - 1) * v->rows.dilation + 1;
  v->reach_columns = (v->columns.kernel - 1) * v->columns.dilation + 1;
  return 0;
}

/* How a tile is gone through. `columns`: of output in a strip, `group`: panels. */
typedef struct way {
  int64_t columns, group;
} way;

static int64_t ring_pixels(const pwdw *v, int64_t columns) {
  const int64_t width = (columns - 1) * v->columns.stride + v->reach_columns;
  return FRESH_PIXELS + width * (2 * v->rows.stride + v->reach_rows); /* whatever the step: see `open_strip` */
}

/* As many columns as leave the ring, for steps of two rows, its size. */
static way way_of(const pwdw *v, const aspen_call *c) {
  const int64_t pixel = ASPEN_NR * (int64_t)sizeof(float), line = RING_BYTES / ((v->rows.stride + v->reach_rows) * pixel);
  const int64_t most = max64((line - v->reach_columns) / v->columns.stride + 1, FEWEST_COLUMNS);
  way w = {min64(c->hi[3] - c->lo[3], most), 1};
  const int64_t rows = min64((c->hi[2] - c->lo[2]) * v->rows.stride, v->rows.in), across = min64(w.columns * v->columns.stride, v->columns.in);
  const int64_t depth = v->x->dims[1], panels = (c->hi[1] + ASPEN_NR - 1) / ASPEN_NR - c->lo[1] / ASPEN_NR;
  if (rows * across * depth * (int64_t)sizeof(float) > INPUT_BYTES)
    w.group = max64(min64(min64(panels, MOST_PANELS), GROUP_BYTES / ((ring_pixels(v, w.columns) + depth) * pixel)), 1);
  return w;
}

static size_t round64(size_t n) { return (n + 63) & ~(size_t)63; }

/* Lays the workspace of a strip out from `base`; returns its size in bytes. */
static size_t lay_out(const pwdw *v, strip *s, char *base, way by) {
  const int64_t width = (by.columns - 1) * v->columns.stride + v->reach_columns;
  size_t at = 0;
#define PART(field, type, count) (s->field = (type *)(base + at), at += round64((size_t)(count) * sizeof(type)))
  PART(zeros, float, width * ASPEN_NR);
  PART(line, const float *, FRESH_PIXELS + 2 * v->rows.stride + v->reach_rows);
  for (int64_t i = 0; i < by.group; i++) {
    PART(panels[i].ring, float, ring_pixels(v, by.columns) * ASPEN_NR);
    PART(panels[i].taps, float, v->rows.kernel * v->columns.kernel * ASPEN_NR);
    PART(panels[i].bias, float, ASPEN_NR);
    PART(panels[i].wide_bias, float, ASPEN_NR);
  }
#undef PART
  return at;
}

#ifdef ISA_PORTABLE
size_t aspen_scratch_pwdw(const aspen_call *c) {
  pwdw v;
  strip s;
  return setup(&v, c) ? 0 : lay_out(&v, &s, (char *)64, way_of(&v, c));
}
#endif

/* Rows of output [oh_lo, oh_hi), columns [ow_lo, ow_hi). Margins of the rings become zeros; nothing else of them is read before it is
 * written. */
static void open_strip(const pwdw *v, strip *s, int64_t group, int64_t oh_lo, int64_t oh_hi, int64_t ow_lo, int64_t ow_hi) {
  s->oh_lo = oh_lo, s->oh_hi = oh_hi, s->ow_lo = ow_lo, s->ow_hi = ow_hi;
  s->top = window_start(&v->rows, oh_lo), s->left = window_start(&v->columns, ow_lo);
  s->width = (ow_hi - ow_lo - 1) * v->columns.stride + v->reach_columns;
  const int64_t fresh = v->rows.stride * s->width;
  s->step = min64((max64(2, (FRESH_PIXELS + fresh - 1) / fresh) + 1) / 2 * 2, oh_hi - oh_lo);
  s->slots = (s->step - 1) * v->rows.stride + v->reach_rows;
  s->in_lo = min64(max64(s->left, 0), v->columns.in);
  s->in_hi = max64(min64(s->left + s->width, v->columns.in), s->in_lo);
  const size_t before = (size_t)(s->in_lo < s->in_hi ? s->in_lo - s->left : s->width), after = (size_t)(s->left + s->width - s->in_hi);
  memset(s->zeros, 0, (size_t)s->width * ASPEN_NR * sizeof(float));
  for (int64_t k = 0; k < group; k++)
    for (int64_t i = 0; i < s->slots; i++) {
      float *row = s->panels[k].ring + i * s->width * ASPEN_NR;
      memset(row, 0, before * ASPEN_NR * sizeof(float));
      if (s->in_lo < s->in_hi) memset(row + (s->in_hi - s->left) * ASPEN_NR, 0, after * ASPEN_NR * sizeof(float));
    }
}

static float *ring_row(const strip *s, int64_t ih) { return s->kept.ring + (ih - s->top) % s->slots * s->width * ASPEN_NR; }

/* ---- the ring's rows ---- */

/* The factors of a panel's product. next: the panel that comes after this one, brought nearer meanwhile, or NULL. */
typedef struct wide {
  const float *x; /* this image */
  const float *panel, *next;
  const float *bias; /* [ASPEN_NR], or NULL */
  int64_t columns;   /* of the panel that are in use */
} wide;

/* A row of n >= R pixels. `next` and its step: as in mm.h. */
typedef void wide_fn(const mm_job *, const wide *, const float *, int64_t, int64_t, int64_t, float *, const char *, int64_t);
INLINE void wide_row(const int R, const int V, const mm_job *job, const wide *w, const float *x, int64_t x_column, int64_t n, int64_t column, float *to,
                     const char *next, int64_t next_step) {
  const epilogue e = job->epilogue;
  const mm_pixels pixels = {.taps = 1, .depth = job->k, .x_step = x_column, .to_step = ASPEN_NR};
  const float *panel = w->panel + column, *bias = w->bias ? w->bias + column : NULL;
  for (int64_t i = 0; i < n; i += R, next += job->k * next_step) {
    if (i > n - R) i = n - R; /* at the end, computing some pixels twice is cheaper than another micro-kernel */
    pointwise_block(R, V, 1, &pixels, &e, x + i * x_column, panel, bias, NULL, to + i * ASPEN_NR + column, ASPEN_NR, next, next_step);
  }
}
#define WIDE(R)                                                                                                                    \
  static void wide_##R##x1(const mm_job *job, const wide *w, const float *x, int64_t x_column, int64_t n, int64_t column, float *to, \
                           const char *next, int64_t next_step) {                                                                  \
    wide_row(R, 1, job, w, x, x_column, n, column, to, next, next_step);                                                           \
  }                                                                                                                                \
  static void wide_##R##x2(const mm_job *job, const wide *w, const float *x, int64_t x_column, int64_t n, int64_t column, float *to, \
                           const char *next, int64_t next_step) {                                                                  \
    wide_row(R, 2, job, w, x, x_column, n, column, to, next, next_step);                                                           \
  }
#define SETUP 6 /* terms that a call of mm.h costs beside its own */
WIDE(4) WIDE(5) WIDE(6)
#if VL == 16
WIDE(7) WIDE(8)
static wide_fn *const wide_rows[][2] = {{wide_4x1, wide_4x2}, {wide_5x1, wide_5x2}, {wide_6x1, wide_6x2}, {wide_7x1, wide_7x2}, {wide_8x1, wide_8x2}};
#else
static wide_fn *const wide_rows[][2] = {{wide_4x1, wide_4x2}, {wide_5x1, wide_5x2}, {wide_6x1, wide_6x2}};
#endif
#if POINTWISE_WIDER
static void wide_panel(const mm_job *job, const wide *w, const float *x, int64_t x_column, int64_t n, int64_t column, float *to, const char *next,
                       int64_t next_step) {
  wide_row(POINTWISE_WIDER, ASPEN_NR / VL, job, w, x, x_column, n, column, to, next, next_step);
}
#endif

/* Pixels of a micro-kernel for rows of n; 0: those of mm.h are better, which take pixels of several rows together. */
static int64_t wide_pixels(int64_t n, int64_t depth) {
  const int64_t r = pointwise_pixels(n);
  return r && ((n + r - 1) / r * r - n) * depth <= SETUP * n ? r : 0;
}

/* Input rows [from, to), all inside the image, into the ring: a row of pixels after the other. */
static void expand_rows(const pwdw *v, const strip *s, const mm_job *job, const wide *w, int64_t pixels, int64_t from, int64_t to) {
  const int64_t n = s->in_hi - s->in_lo, x_column = v->x->strides[3];
  int64_t columns = 2 * VL; /* at a time */
  wide_fn *const *by = wide_rows[pixels - POINTWISE_FEWEST];
#if POINTWISE_WIDER
  static wide_fn *const wider[2] = {wide_panel, wide_panel};
  if (w->columns == ASPEN_NR && pointwise_wider(n)) pixels = POINTWISE_WIDER, columns = ASPEN_NR, by = wider;
#endif
  const int64_t blocks = (n + pixels - 1) / pixels, halves = (w->columns + columns - 1) / columns;
  const int64_t step = w->next ? (int64_t)sizeof(float) * ASPEN_NR / (blocks * halves * (to - from)) : 0;
  const char *next = (const char *)(w->next ? w->next : w->panel);
  for (int64_t row = from; row < to; row++) {
    const float *x = w->x + row * v->x->strides[2] + s->in_lo * x_column;
    float *out = ring_row(s, row) + (s->in_lo - s->left) * ASPEN_NR;
    for (int64_t column = 0; column < w->columns; column += columns, next += blocks * job->k * step)
      by[w->columns - column > VL](job, w, x, x_column, n, column, out, next, step);
  }
}

/* The same for pixels whose channels lie apart, and for images of awkward widths. The micro-kernels of mm.h take pixels of several rows
 * together. */
static void expand_pixels(const pwdw *v, const strip *s, const mm_job *job, const wide *w, int64_t from, int64_t to) {
  const int64_t width = s->in_hi - s->in_lo, pixels = (to - from) * width, x_column = v->x->strides[3];
  /* Whole rows lie one behind the other. */
  const int even = job->a_stride == 1 && width == v->columns.in && v->x->strides[2] == width * x_column;
  const int64_t blocks = even ? mm_even_blocks(pixels, x_column) : mm_blocks(pixels);
  const int64_t step = ((int64_t)sizeof(float) * ASPEN_NR + blocks - 1) / blocks;
  const float *a[MM_EVEN_ROWS];
  mm_rows block = {.taps = 1, .a = a, .a_step = x_column, .bias = {w->bias}, .next_step = step};
  int64_t row = from, left = 0;
  const float *at = NULL;
  float *out = NULL;
  for (int64_t i = 0; i < blocks; i++) {
    block.rows = (int)(mm_cut(pixels, blocks, i + 1) - mm_cut(pixels, blocks, i));
    block.next = w->next && blocks > 1 ? (const char *)w->next + i * step * job->k : NULL;
    for (int r = 0; r < block.rows; r++, at += x_column, out += ASPEN_NR, left--) {
      if (!left) {
        at = w->x + row * v->x->strides[2] + s->in_lo * x_column;
        out = ring_row(s, row) + (s->in_lo - s->left) * ASPEN_NR;
        row++, left = width;
      }
      a[r] = at, block.out[r] = out;
    }
    FN(mm_block)(job, &block, w->panel, 0, 0, w->columns);
  }
}

/* ---- the windows ---- */

/* The output of the windows of a step: the panel's column 0 of the first pixel of the strip's first row in it. */
typedef struct target {
  float *out;
  int64_t row, column, channel; /* strides */
  int64_t lo, hi;               /* columns of the panel that belong to the box */
} target;

/* For boxes that do not have all lanes, or channels that are not neighbours: lanes[i] is pixel i of rows of `pixels`. */
static __attribute__((noinline)) void scatter(const target *t, float (*lanes)[VL], int64_t rows, int64_t pixels, float *out, int64_t v) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t p = 0; p < pixels; p++, lanes++)
      for (int64_t i = max64(t->lo, v); i < min64(t->hi, v + VL); i++) out[r * t->row + p * t->column + i * t->channel] = (*lanes)[i - v];
}

/* Bias, activation and home for R x P pixels from `out` on. */
INLINE void finish(const pwdw *d, const strip *s, const target *t, const int R, const int P, vf *sum, float *out, int64_t v) {
  if (d->dw_bias) {
    const vf bias = vload(s->kept.bias + v);
#pragma GCC unroll 32
    for (int i = 0; i < R * P; i++) sum[i] += bias;
  }
  epilogue_act(&d->epilogue, sum, R * P);
  const int64_t row = t->row, column = t->column;
  if (t->channel == 1 && t->lo <= v && t->hi >= v + VL) {
#pragma GCC unroll 2
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
      for (int p = 0; p < P; p++) vstore(out + r * row + p * column + v, sum[r * P + p]);
  } else {
    float lanes[2 * DEPTHWISE_PIXELS][VL] __attribute__((aligned(64)));
#pragma GCC unroll 32
    for (int i = 0; i < R * P; i++) vstore(lanes[i], sum[i]);
    scatter(t, lanes, R, P, out, v);
  }
}

/* R rows of output, all columns of the strip, P or more of them; line: their input rows. */
INLINE void windows(const pwdw *d, const strip *s, const target *t, const int R, const int P, const int K, const int S, const float *const *line,
                    float *out) {
  const int64_t pixels = s->ow_hi - s->ow_lo;
  for (int64_t i = 0; i < pixels; i += P) {
    if (i > pixels - P) i = pixels - P; /* at the end, computing some pixels twice is cheaper than going one by one */
    for (int64_t v = t->lo / VL * VL; v < t->hi; v += VL) {
      vf sum[2 * DEPTHWISE_PIXELS]; /* a constant number: it lives in registers */
#pragma GCC unroll 32
      for (int k = 0; k < R * P; k++) sum[k] = vzero();
      depthwise_taps(0, R, P, K, K, S, S, 0, sum, line, i * S * ASPEN_NR + v, ASPEN_NR, 0, 0, s->kept.taps + v, ASPEN_NR);
      finish(d, s, t, R, P, sum, out + i * t->column, v);
    }
  }
}

/* P pixels from number `i` on, any window. */
INLINE void any_window(const pwdw *d, const strip *s, const target *t, const int P, const float *const *line, float *out, int64_t i) {
  const int64_t next = d->columns.stride * ASPEN_NR, dilation = d->columns.dilation * ASPEN_NR;
  for (int64_t v = t->lo / VL * VL; v < t->hi; v += VL) {
    vf sum[ANY_PIXELS];
#pragma GCC unroll 4
    for (int p = 0; p < P; p++) sum[p] = vzero();
    const float *w = s->kept.taps + v;
    for (int64_t kh = 0; kh < d->rows.kernel; kh++) {
      const float *from = line[kh * d->rows.dilation] + i * next + v;
      for (int64_t kw = 0; kw < d->columns.kernel; kw++, from += dilation, w += ASPEN_NR) {
        const vf weight = vload(w);
#pragma GCC unroll 4
        for (int p = 0; p < P; p++) sum[p] = vfma(vload(from + p * next), weight, sum[p]);
      }
    }
    finish(d, s, t, 1, P, sum, out + i * t->column, v);
  }
}

typedef void windows_fn(const pwdw *, const strip *, const target *, const float *const *, float *);
static void any_windows(const pwdw *d, const strip *s, const target *t, const float *const *line, float *out) {
  const int64_t pixels = s->ow_hi - s->ow_lo;
  int64_t i = 0;
  for (; i + ANY_PIXELS <= pixels; i += ANY_PIXELS) any_window(d, s, t, ANY_PIXELS, line, out, i);
  for (; i < pixels; i++) any_window(d, s, t, 1, line, out, i);
}

#define WINDOWS(NAME, R, K, S)                                                                                                     \
  static void NAME(const pwdw *d, const strip *s, const target *t, const float *const *line, float *out) {                         \
    windows(d, s, t, R, DEPTHWISE_PIXELS, K, S, line, out);                                                                                  \
  }
WINDOWS(one_3_1, 1, 3, 1)
WINDOWS(one_3_2, 1, 3, 2)
WINDOWS(one_5_1, 1, 5, 1)
WINDOWS(one_5_2, 1, 5, 2)
WINDOWS(more_3_1, DEPTHWISE_ROWS_3, 3, 1)
WINDOWS(more_3_2, DEPTHWISE_ROWS_3, 3, 2)
WINDOWS(more_5_1, DEPTHWISE_ROWS_5, 5, 1)
WINDOWS(more_5_2, DEPTHWISE_ROWS_5, 5, 2)

/* The functions for one row of windows and for *rows of them. */
static windows_fn *choose(const pwdw *v, int64_t pixels, windows_fn **more, int64_t *rows) {
  *more = any_windows, *rows = 1;
  if (!depthwise_common(&v->rows, &v->columns) || pixels < DEPTHWISE_PIXELS) return any_windows;
  const int three = v->rows.kernel == 3, one = v->rows.stride == 1;
  *rows = three ? DEPTHWISE_ROWS_3 : DEPTHWISE_ROWS_5;
  *more = three ? (one ? more_3_1 : more_3_2) : one ? more_5_1 : more_5_2;
  return three ? (one ? one_3_1 : one_3_2) : one ? one_5_1 : one_5_2;
}

/* to[i] = from[(first + i) * stride] for i < n, zeros behind. */
static void load_channels(float *to, const float *from, int64_t stride, int64_t first, int64_t n) {
  for (int64_t i = 0; i < ASPEN_NR; i++) to[i] = i < n ? from[(first + i) * stride] : 0.0f;
}

/* Loads taps and biases of a panel's channels `first` to `first` + n, at known strides. */
static void load_panel(const pwdw *v, const kept *k, int64_t first, int64_t n) {
  const int64_t taps = v->rows.kernel * v->columns.kernel;
  for (int64_t t = 0; t < taps; t++)
    load_channels(k->taps + t * ASPEN_NR, (const float *)v->dw->ptr + t * v->dw->strides[0], v->dw->strides[1], first, n);
  if (v->bias) load_channels(k->wide_bias, (const float *)v->bias->ptr, v->bias->strides[0], first, n);
  if (v->dw_bias) load_channels(k->bias, (const float *)v->dw_bias->ptr, v->dw_bias->strides[0], first, n);
}

/* A group of panels of a strip. w[i].next: the panel after panel i. */
static void slide(const pwdw *v, strip *s, const mm_job *job, int64_t group, const wide *w, const target *t) {
  windows_fn *more, *one;
  int64_t together, ready = s->top; /* input rows before it are in the rings, or outside the image */
  one = choose(v, s->ow_hi - s->ow_lo, &more, &together);
  const int64_t pixels = job->a_stride == 1 ? wide_pixels(s->in_hi - s->in_lo, job->k) : 0;
  for (int64_t oh = s->oh_lo; oh < s->oh_hi; oh += s->step) {
    const int64_t rows = min64(s->step, s->oh_hi - oh), first = window_start(&v->rows, oh);
    const int64_t last = first + (rows - 1) * v->rows.stride + v->reach_rows;
    const int64_t from = max64(max64(ready, first), 0), to = min64(last, v->rows.in);
    ready = last;
    for (int64_t i = 0; i < group; i++) {
      s->kept = s->panels[i];
      wide now = w[i];
      if (oh + s->step < s->oh_hi) now.next = group > 1 ? w[(i + 1) % group].panel : NULL;
      if (from < to && s->in_lo < s->in_hi) {
        if (pixels)
          expand_rows(v, s, job, &now, pixels, from, to);
        else
          expand_pixels(v, s, job, &now, from, to);
      }
      for (int64_t k = 0; k < last - first; k++)
        s->line[k] = first + k >= 0 && first + k < v->rows.in ? ring_row(s, first + k) : s->zeros;
      float *out = t[i].out + (oh - s->oh_lo) * t[i].row;
      for (int64_t r = 0, k; r < rows; r += k) {
        k = rows - r >= together ? together : 1;
        (k > 1 ? more : one)(v, s, &t[i], s->line + r * v->rows.stride, out + r * t[i].row);
      }
    }
  }
}

int FN(pwdw)(const aspen_call *c) {
  pwdw v;
  if (setup(&v, c)) return ASPEN_KERNEL_BAD_ARGUMENT;
  for (int i = 0; i < 4; i++)
    if (c->lo[i] >= c->hi[i]) return 0;
  const int64_t depth = v.x->dims[1], channels = v.out->dims[1];
  const int64_t act[4] = {c->params[0], c->params[1], c->params[2], 0};
  mm_job job = {.k = depth, .a_stride = v.x->strides[1], .b_stride = ASPEN_NR, .b_panel = v.w->strides[1], .out_stride = 1,
                .bias_stride = 1, .residual_stride = 1, .alpha = 1, .one_bias = 1};
  if (FN(mm_prepare)(&job, act)) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (FN(epilogue_open)(&v.epilogue, c->params[11], aspen_param_f(c, 12), aspen_param_f(c, 13), 0)) return ASPEN_KERNEL_BAD_ARGUMENT;
  const way by = way_of(&v, c);
  strip s;
  if (lay_out(&v, &s, c->scratch, by) > c->scratch_bytes) return ASPEN_KERNEL_SCRATCH;
  const int64_t *os = v.out->strides;
  for (int64_t n = c->lo[0]; n < c->hi[0]; n++)
    for (int64_t ow = c->lo[3]; ow < c->hi[3]; ow += by.columns) {
      const float *x = (const float *)v.x->ptr + n * v.x->strides[0];
      open_strip(&v, &s, by.group, c->lo[2], c->hi[2], ow, min64(ow + by.columns, c->hi[3]));
      wide w[MOST_PANELS];
      target t[MOST_PANELS];
      int64_t ready = 0; /* panels of the group */
      for (int64_t first = c->lo[1] / ASPEN_NR * ASPEN_NR; first < c->hi[1]; first += ASPEN_NR) {
        const int64_t n_columns = min64(ASPEN_NR, channels - first);
        const float *panel = (const float *)v.w->ptr + first / ASPEN_NR * v.w->strides[1];
        t[ready] = (target){.out = (float *)v.out->ptr + n * os[0] + first * os[1] + c->lo[2] * os[2] + ow * os[3], .row = os[2], .column = os[3],
                            .channel = os[1], .lo = max64(c->lo[1] - first, 0), .hi = min64(c->hi[1] - first, ASPEN_NR)};
        const float *after = first + ASPEN_NR < c->hi[1] ? panel + v.w->strides[1] : NULL;
        w[ready] = (wide){x, panel, after, v.bias ? s.panels[ready].wide_bias : NULL, n_columns};
        load_panel(&v, &s.panels[ready], first, n_columns);
        if (++ready < by.group && first + ASPEN_NR < c->hi[1]) continue;
        slide(&v, &s, &job, ready, w, t);
        ready = 0;
      }
    }
  return 0;
}
