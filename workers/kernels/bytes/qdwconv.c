/* QDWCONV: depthwise convolutions of images of bytes, summed exactly; the rest as QCONV.
 *
 * Four rows that a window sees are laid together as quads: for each column and channel, the bytes of the rows side by side. So a sum of
 * products of bytes (byte_sums.h) takes a column of the window with four of its rows. Quads of a line of output are made once, in scratch
 * memory, and read for every column of the window. Pixels outside the image are the zero point. Rows that the window does not have are
 * anything, because their weights are 0.
 *
 * Weights lie in panels as QCONV's, with taps (part, four rows, column) for terms. A weight less its zero point may need several bytes,
 * whose sum it is: its `parts`.
 *
 * Loops: images, strips of columns, pairs of panels of ASPEN_NR channels, lines of output, panels of a pair, blocks of neighbouring pixels
 * (int8.h). A pair of panels is as many bytes as a cache line, so that lines are read and written while they are near.
 */
#include "conv/window.h"
#include "bytes/byte_levels.h"

#define ROWS 4             /* of the image in a quad: bytes that are summed together */
#define STRIP_BYTES 8192   /* of quads of a strip … */
#define STRIP_LEAST 14     /* … and its columns of output, if these bytes are fewer; the same for all instruction sets */
#define COLUMN_BYTES (ASPEN_NR * ROWS) /* of a column's quads */
#if VL == 16
#define PIXELS 14 /* of a block, at most */
#else
#define PIXELS 6
#endif

/* A call's window, and how its output is cut. */
typedef struct shape {
  window rows, columns;
  int64_t parts, groups, taps; /* groups: of rows of the window; taps: terms of a panel */
  int64_t strip, seen;         /* columns of output in a strip, at most, and of input that they see */
  int64_t multiplier;          /* channels of output for one of input */
} shape;

INLINE shape shape_of(const aspen_call *c) {
  const int64_t *p = c->params, *in = c->args[1].dims;
  shape s = {.rows = {in[2], p[1], p[3], p[5], p[7]}, .columns = {in[3], p[2], p[4], p[6], p[8]}, .parts = p[0]};
  s.groups = (s.rows.kernel + ROWS - 1) / ROWS;
  s.taps = s.parts * s.groups * s.columns.kernel;
  s.multiplier = in[1] > 0 ? c->args[0].dims[1] / in[1] : 1;
  const int64_t width = c->hi[3] - c->lo[3], span = (s.columns.kernel - 1) * s.columns.dilation + 1;
  const int64_t fit = (STRIP_BYTES / (COLUMN_BYTES * s.groups) - span) / s.columns.stride + 1, most = min64(max64(fit, STRIP_LEAST), width);
  const int64_t strips = most > 0 ? (width + most - 1) / most : 1;
  s.strip = (width + strips - 1) / strips;
  s.seen = (s.strip - 1) * s.columns.stride + span;
  return s;
}

/* Scratch memory: quads [groups][seen + 1][ASPEN_NR], rows as they are copied [ROWS][seen + 1][ASPEN_NR], a pixel of zero points, and where
 * the quads of each tap begin. */
INLINE int64_t line_bytes(const shape *s) { return (s->seen + 1) * COLUMN_BYTES; }
INLINE size_t scratch_of(const shape *s) { return (size_t)((s->groups + 1) * line_bytes(s) + s->taps * (int64_t)sizeof(void *)) + 64; }

#ifdef ISA_PORTABLE
size_t aspen_scratch_qdwconv(const aspen_call *c) {
  const shape s = shape_of(c);
  return scratch_of(&s);
}
#endif

/* A row of the image, from a panel's first channel on: pixel i at `from + i * step`. */
typedef struct line {
  const uint8_t *from;
  int64_t step;
} line;

/* The quads of n columns, of which the last may be written twice. n_rows: those that the window has. */
#if VL == 16
INLINE void lay_quads(const int n_rows, const int flip, const line *rows, int64_t n, uint8_t *to) {
  const __m512i flips = _mm512_set1_epi8((char)0x80), order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const uint8_t *from[ROWS];
  int64_t step[ROWS];
#pragma GCC unroll 4
  for (int k = 0; k < n_rows; k++) from[k] = rows[k].from, step[k] = rows[k].step;
  for (int64_t i = 0; i < n; i += 2, to += 2 * COLUMN_BYTES) { /* two columns, of half a vector each */
    const int next = i + 1 < n;
    __m512i row[ROWS];
#pragma GCC unroll 4
    for (int k = 0; k < ROWS; k++) {
      if (k >= n_rows) {
        row[k] = _mm512_setzero_si512();
        continue;
      }
      const __m256i one = _mm256_loadu_si256((const __m256i *)from[k]);
      const __m256i other = _mm256_loadu_si256((const __m256i *)(from[k] + (next ? step[k] : 0)));
      from[k] += 2 * step[k];
      row[k] = _mm512_inserti64x4(_mm512_castsi256_si512(one), other, 1);
      if (flip) row[k] = _mm512_xor_si512(row[k], flips);
      row[k] = _mm512_permutexvar_epi32(order, row[k]);
    }
    const __m512i a = _mm512_unpacklo_epi8(row[0], row[1]), b = _mm512_unpackhi_epi8(row[0], row[1]);
    const __m512i c = _mm512_unpacklo_epi8(row[2], row[3]), d = _mm512_unpackhi_epi8(row[2], row[3]);
    _mm512_storeu_si512(to, _mm512_unpacklo_epi16(a, c));
    _mm512_storeu_si512(to + 64, _mm512_unpackhi_epi16(a, c));
    _mm512_storeu_si512(to + 128, _mm512_unpacklo_epi16(b, d));
    _mm512_storeu_si512(to + 192, _mm512_unpackhi_epi16(b, d));
  }
}
#elif VL == 8
INLINE void lay_quads(const int n_rows, const int flip, const line *rows, int64_t n, uint8_t *to) {
  const __m256i flips = _mm256_set1_epi8((char)0x80), order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
  const uint8_t *from[ROWS];
  int64_t step[ROWS];
#pragma GCC unroll 4
  for (int k = 0; k < n_rows; k++) from[k] = rows[k].from, step[k] = rows[k].step;
  for (int64_t i = 0; i < n; i++, to += COLUMN_BYTES) {
    __m256i row[ROWS];
#pragma GCC unroll 4
    for (int k = 0; k < ROWS; k++) {
      if (k >= n_rows) {
        row[k] = _mm256_setzero_si256();
        continue;
      }
      const __m256i one = _mm256_loadu_si256((const __m256i *)from[k]);
      from[k] += step[k];
      row[k] = _mm256_permutevar8x32_epi32(flip ? _mm256_xor_si256(one, flips) : one, order);
    }
    const __m256i a = _mm256_unpacklo_epi8(row[0], row[1]), b = _mm256_unpackhi_epi8(row[0], row[1]);
    const __m256i c = _mm256_unpacklo_epi8(row[2], row[3]), d = _mm256_unpackhi_epi8(row[2], row[3]);
    _mm256_storeu_si256((__m256i *)to, _mm256_unpacklo_epi16(a, c));
    _mm256_storeu_si256((__m256i *)(to + 32), _mm256_unpackhi_epi16(a, c));
    _mm256_storeu_si256((__m256i *)(to + 64), _mm256_unpacklo_epi16(b, d));
    _mm256_storeu_si256((__m256i *)(to + 96), _mm256_unpackhi_epi16(b, d));
  }
}
#else
INLINE void lay_quads(const int n_rows, const int flip, const line *rows, int64_t n, uint8_t *to) {
  for (int64_t i = 0; i < n; i++, to += COLUMN_BYTES) {
    uint8_t quads[ASPEN_NR][ROWS] = {{0}};
    for (int k = 0; k < n_rows; k++)
      for (int j = 0; j < ASPEN_NR; j++) quads[j][k] = rows[k].from[i * rows[k].step + j] ^ (flip ? 0x80 : 0);
    memcpy(to, quads, sizeof quads);
  }
}
#endif

#define QUADS(N, FLIP)                                                                                                             \
  static void quads_##N##_##FLIP(const line *rows, int64_t n, uint8_t *to) { lay_quads(N, FLIP, rows, n, to); }
QUADS(1, 0) QUADS(2, 0) QUADS(3, 0) QUADS(4, 0) QUADS(1, 1) QUADS(2, 1) QUADS(3, 1) QUADS(4, 1)
static void (*const quads_of[2][ROWS])(const line *, int64_t, uint8_t *) = {{quads_1_0, quads_2_0, quads_3_0, quads_4_0},
                                                                          {quads_1_1, quads_2_1, quads_3_1, quads_4_1}};

/* The image that a line of output sees, and where its parts go. */
typedef struct seen {
  const aspen_arg *x;
  const uint8_t *image, *end; /* behind the image's last element, or NULL where its elements do not ascend */
  uint8_t *quads, *copies, *zeros; /* zeros: a pixel of zero points, as they are stored */
  int64_t left, first, last;  /* first column of the strip's windows, and those inside the image [first, last), from there on */
  int64_t column, channels;   /* first channel of the panel, and how many */
  uint8_t flip, zero;         /* flip: bytes are signed; zero: as quads hold it */
} seen;

/* Row `y` of the image, whose pixels have ASPEN_NR bytes that may be read: as it is, or copied. Those beyond the channels are anything. */
static line line_of(const shape *s, const seen *e, int64_t y, uint8_t *copy) {
  if (y < 0 || y >= e->x->dims[2]) return (line){e->zeros, 0};
  const int64_t step = e->x->strides[3], apart = e->x->strides[1], n = e->last - e->first;
  const uint8_t *from = e->image + y * e->x->strides[2] + (e->left + e->first) * step;
  const uint8_t *panel = from + e->column / s->multiplier * apart;
  const int whole = e->channels == ASPEN_NR || (e->end && (e->end - panel) - (n - 1) * step >= ASPEN_NR);
  if (s->multiplier == 1 && apart == 1 && whole) return (line){panel, step};
  for (int64_t i = 0; i < n; i++, from += step)
    for (int64_t k = 0; k < e->channels; k++) copy[i * ASPEN_NR + k] = from[(e->column + k) / s->multiplier * apart];
  return (line){copy, ASPEN_NR};
}

/* The quads for line `oh` of output. */
static void see(const shape *s, const seen *e, int64_t oh) {
  const int64_t top = window_start(&s->rows, oh), bytes = line_bytes(s);
  for (int64_t g = 0; g < s->groups; g++) {
    uint8_t *to = e->quads + g * bytes;
    const int n_rows = (int)min64(ROWS, s->rows.kernel - g * ROWS);
    if (e->first >= e->last) {
      memset(to, e->zero, (size_t)(s->seen * COLUMN_BYTES));
      continue;
    }
    line rows[ROWS];
    for (int k = 0; k < n_rows; k++)
      rows[k] = line_of(s, e, top + (g * ROWS + k) * s->rows.dilation, e->copies + k * (s->seen + 1) * ASPEN_NR);
    quads_of[e->flip][n_rows - 1](rows, e->last - e->first, to + e->first * COLUMN_BYTES);
    memset(to, e->zero, (size_t)(e->first * COLUMN_BYTES));
    memset(to + e->last * COLUMN_BYTES, e->zero, (size_t)((s->seen - e->last) * COLUMN_BYTES));
  }
}

/* Adds to the sums of P pixels, `step` bytes apart, of WIDTH channels. at: where the quads of each tap begin. */
INLINE void add_taps(const int P, const int with, int64_t taps, const uint8_t *const *at, int64_t offset, int64_t step, const int8_t *w, vi *sum) {
  for (int64_t t = 0; t < taps; t++, w += COLUMN_BYTES) {
    const vi weight[VECTORS] = {viload((const int32_t *)w), viload((const int32_t *)w + VL)};
    const halves both[VECTORS] = {signed_halves(weight[0]), signed_halves(weight[1])};
    const uint8_t *base[(PIXELS + 2) / 3];
#pragma GCC unroll 8
    for (int p = 0; p < P; p += 3) base[p / 3] = at[t] + offset + p * step;
#pragma GCC unroll 16
    for (int p = 0; p < P; p++) {
      const int32_t *from = (const int32_t *)(base[p / 3] + p % 3 * step);
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; v++) {
        const vi quads = viload(from + v * VL);
        vi *of = &sum[p * VECTORS + v];
        if (with) {
          *of = dots(*of, quads, weight[v]);
        } else {
          const halves x = unsigned_halves(quads);
          *of = pairs(pairs(*of, x.even, both[v].even), x.odd, both[v].odd);
        }
      }
    }
  }
}

/* The sums[P][ASPEN_NR] of pixels. */
INLINE void sum_pixels(const int P, const int with, int64_t taps, const uint8_t *const *at, int64_t offset, int64_t step, const int8_t *w, int32_t *sums) {
  vi sum[PIXELS * VECTORS];
#pragma GCC unroll 32
  for (int i = 0; i < P * VECTORS; i++) sum[i] = (vi)vzero();
  add_taps(P, with, taps, at, offset, step, w, sum);
#pragma GCC unroll 16
  for (int p = 0; p < P; p++)
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; v++) vistore(sums + p * ASPEN_NR + v * VL, sum[p * VECTORS + v]);
}

/* Bytes of pixels at `out`, `pixel` bytes apart, of columns [first, first + WIDTH) of a panel, by the steps of int8_levels. easy: the scale
 * is 1, and integers hold all values. */
INLINE void level_pixels(const int P, const int easy, int64_t taps, const uint8_t *const *at, int64_t offset, int64_t step, const int8_t *w,
                         const int8_job *job, const int8_columns *f, int first, uint8_t *out, int64_t pixel) {
  vi sum[PIXELS * VECTORS];
#pragma GCC unroll 16
  for (int p = 0; p < P; p++)
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; v++) sum[p * VECTORS + v] = viload(f->offset + first + v * VL);
  add_taps(P, 1, taps, at, offset, step, w, sum);
  const quick by = quick_of(job);
  const int is_signed = job->dtype == ASPEN_DT_I8;
  const vf scales[VECTORS] = {vload(f->factor + first), vload(f->factor + first + VL)};
  const vf bias[VECTORS] = {vload(f->bias + first), vload(f->bias + first + VL)};
#pragma GCC unroll 8
  for (int p = 0; p < P; p += 2) {
    vi q[2 * VECTORS];
#pragma GCC unroll 4
    for (int i = 0; i < 2 * VECTORS; i++) {
      const int at_pixel = p + i / VECTORS < P ? p + i / VECTORS : p;
      const vf y = vfromi(sum[at_pixel * VECTORS + i % VECTORS]) * scales[i % VECTORS] + bias[i % VECTORS];
      q[i] = easy ? nearest(y) : quick_quotient(&by, y);
    }
    quick_levels(&by, is_signed, q, out + p * pixel, out + (p + 1 < P ? p + 1 : p) * pixel);
  }
}

typedef void sum_fn(int64_t, const uint8_t *const *, int64_t, int64_t, const int8_t *, int32_t *);
#define SUM(P, WITH)                                                                                                               \
  static void sum_##WITH##_##P(int64_t taps, const uint8_t *const *at, int64_t offset, int64_t step, const int8_t *w, int32_t *sums) { \
    sum_pixels(P, WITH, taps, at, offset, step, w, sums);                                                                          \
  }
#define SUMS(WITH) SUM(1, WITH) SUM(2, WITH) SUM(3, WITH) SUM(4, WITH) SUM(5, WITH) SUM(6, WITH)
#define LIST(WITH) sum_##WITH##_1, sum_##WITH##_2, sum_##WITH##_3, sum_##WITH##_4, sum_##WITH##_5, sum_##WITH##_6
#if VL == 16
#define MORE_SUMS(WITH) SUM(7, WITH) SUM(8, WITH) SUM(9, WITH) SUM(10, WITH) SUM(11, WITH) SUM(12, WITH) SUM(13, WITH) SUM(14, WITH)
#define MORE_LIST(WITH)                                                                                                            \
  , sum_##WITH##_7, sum_##WITH##_8, sum_##WITH##_9, sum_##WITH##_10, sum_##WITH##_11, sum_##WITH##_12, sum_##WITH##_13, sum_##WITH##_14
#else
#define MORE_SUMS(WITH)
#define MORE_LIST(WITH)
#endif
SUMS(0) MORE_SUMS(0)
#if VL > 4
typedef void level_fn(int64_t, const uint8_t *const *, int64_t, int64_t, const int8_t *, const int8_job *, const int8_columns *, int, uint8_t *,
                      int64_t);
#define LEVELS(P, EASY)                                                                                                            \
  static void levels_##EASY##_##P(int64_t taps, const uint8_t *const *at, int64_t offset, int64_t step, const int8_t *w, const int8_job *job, \
                                  const int8_columns *f, int first, uint8_t *out, int64_t pixel) {                                 \
    level_pixels(P, EASY, taps, at, offset, step, w, job, f, first, out, pixel);                                                   \
  }
#define SOME_LEVELS(EASY) LEVELS(1, EASY) LEVELS(2, EASY) LEVELS(3, EASY) LEVELS(4, EASY) LEVELS(5, EASY) LEVELS(6, EASY)
#define SOME_LIST(EASY) levels_##EASY##_1, levels_##EASY##_2, levels_##EASY##_3, levels_##EASY##_4, levels_##EASY##_5, levels_##EASY##_6
#if VL == 16
#define MORE_LEVELS(EASY)                                                                                                          \
  LEVELS(7, EASY) LEVELS(8, EASY) LEVELS(9, EASY) LEVELS(10, EASY) LEVELS(11, EASY) LEVELS(12, EASY) LEVELS(13, EASY) LEVELS(14, EASY)
#define MORE_LEVELS_LIST(EASY)                                                                                                     \
  , levels_##EASY##_7, levels_##EASY##_8, levels_##EASY##_9, levels_##EASY##_10, levels_##EASY##_11, levels_##EASY##_12, levels_##EASY##_13, \
      levels_##EASY##_14
#else
#define MORE_LEVELS(EASY)
#define MORE_LEVELS_LIST(EASY)
#endif
SOME_LEVELS(0) MORE_LEVELS(0) SOME_LEVELS(1) MORE_LEVELS(1)
static level_fn *const levels_of[2][PIXELS] = {{SOME_LIST(0) MORE_LEVELS_LIST(0)}, {SOME_LIST(1) MORE_LEVELS_LIST(1)}};
SUMS(1) MORE_SUMS(1)
static sum_fn *const sums_of[2][PIXELS] = {{LIST(0) MORE_LIST(0)}, {LIST(1) MORE_LIST(1)}};
#else
static sum_fn *const sums_of[1][PIXELS] = {{LIST(0)}};
#endif

/* The output, and the steps behind the sums. */
typedef struct output {
  int8_job job;
  const aspen_arg *out, *residual, *factor;
  const float *bias;   /* of channel 0, or NULL */
  int64_t size;        /* of an element */
  int64_t pixel;       /* bytes between pixels of a line */
  int8_rows rows;      /* of a block; it changes pointers of the output and the residual, and of the factor where pixels are not alike */
  int direct;          /* sums go from registers to bytes (level_pixels) */
  uint8_t line[PIXELS * ASPEN_NR] __attribute__((aligned(64))); /* these of a panel that the box cuts */
} output;

static void open_output(output *o, const aspen_arg *out, const aspen_arg *bias, const aspen_arg *residual, const aspen_arg *factor, uint32_t zero) {
  o->out = out, o->residual = residual, o->factor = factor, o->bias = (const float *)bias->ptr;
  o->size = o->job.dtype == ASPEN_DT_F32 || o->job.dtype == ASPEN_DT_I32 ? 4 : 1;
  o->pixel = o->size * out->strides[3];
  int8_rows *rows = &o->rows;
  rows->alike = int8_one_factor(out, factor);
  rows->terms = (int8_terms){0};
  for (int r = 0; r < PIXELS; r++) {
    rows->bias[r] = o->bias, rows->factor[r] = (const float *)factor->ptr, rows->residual[r] = NULL;
    rows->zero[r] = zero, rows->rest[r] = 0;
  }
  o->direct = rows->alike && !residual->dtype && FN(int8_has_levels)(&o->job);
}

/* Columns [first, last) of a panel of weights that begins at `column`. */
typedef struct part {
  const char *panel;
  int64_t column, first, last;
  int8_columns own; /* where sums go directly to bytes */
} part;

/* Where the pixels of a block are read and written: `out` is channel 0 of the first. */
typedef struct block {
  int64_t image, y, z, offset; /* offset: of its quads */
  int n;
  char *out;
} block;

/* Writes the pixels of a block whose sums are made. */
static void write_block(output *o, int32_t *sums, const block *b, const part *p) {
  int8_rows *rows = &o->rows;
  rows->terms.rows = b->n, rows->sums = sums;
  for (int r = 0; r < b->n; r++) rows->out[r] = b->out + r * o->pixel;
  if (o->residual->dtype)
    for (int r = 0; r < b->n; r++) rows->residual[r] = int8_pixel(o->residual, b->image, b->y, b->z + r);
  if (!rows->alike)
    for (int r = 0; r < b->n; r++) rows->factor[r] = int8_pixel(o->factor, b->image, b->y, b->z + r);
  FN(int8_block)(&o->job, rows, p->panel, p->column, p->first, p->last);
}

static void make_block(const shape *s, output *o, const uint8_t *const *at, const block *b, const part *p) {
  const int64_t step = s->columns.stride * COLUMN_BYTES;
  const int8_t *w = (const int8_t *)p->panel + INT8_HEADER;
  if (!o->direct) {
    int32_t sums[PIXELS * ASPEN_NR] __attribute__((aligned(64)));
    for (int j = 0; j < ASPEN_NR; j += WIDTH) sums_of[o->job.with][b->n - 1](s->taps, at, b->offset + j * ROWS, step, w + j * ROWS, sums + j);
    write_block(o, sums, b, p);
    return;
  }
#if VL > 4
  const int64_t n = p->last - p->first;
  const int cut = n < ASPEN_NR;
  uint8_t *const to = cut ? o->line : (uint8_t *)b->out + p->column;
  for (int j = 0; j < ASPEN_NR; j += WIDTH)
    levels_of[o->job.unit && p->own.bounded][b->n - 1](s->taps, at, b->offset + j * ROWS, step, w + j * ROWS, &o->job, &p->own, j, to + j,
                                                      cut ? ASPEN_NR : o->pixel);
  for (int r = 0; r < b->n && cut; r++) memcpy(b->out + r * o->pixel + p->first, o->line + r * ASPEN_NR + p->first - p->column, (size_t)n);
#endif
}

/* Lines of a strip, of a pair of panels or one. */
static void strip(const aspen_call *c, const shape *s, output *o, seen *e, const uint8_t *const *at, int64_t image, int64_t left, int64_t width,
                  const part *parts, int n_parts) {
  const int64_t blocks = (width + PIXELS - 1) / PIXELS;
  for (int64_t y = c->lo[2]; y < c->hi[2]; y++)
    for (const part *p = parts; p < parts + n_parts; p++) {
      char *line = o->out->ptr + o->size * (image * o->out->strides[0] + y * o->out->strides[2]) + left * o->pixel;
      e->column = p->column, e->channels = min64(ASPEN_NR, o->out->dims[1] - p->column);
      see(s, e, y);
      for (int64_t i = 0; i < blocks; i++) {
        const int64_t begin = mm_cut(width, blocks, i), end = mm_cut(width, blocks, i + 1);
        const block b = {image, y, left + begin, begin * s->columns.stride * COLUMN_BYTES, (int)(end - begin), line + begin * o->pixel};
        make_block(s, o, at, &b, p);
      }
    }
}

static void image_of(const aspen_call *c, const shape *s, output *o, seen *e, const uint8_t *const *at, int64_t image) {
  const int64_t panel_bytes = INT8_HEADER + s->taps * INT8_PANEL_GROUP, pair = 2 * ASPEN_NR;
  for (int64_t z = c->lo[3]; z < c->hi[3]; z += s->strip) {
    const int64_t width = min64(s->strip, c->hi[3] - z), all = s->seen - (s->strip - width) * s->columns.stride;
    e->left = window_start(&s->columns, z);
    e->first = min64(max64(-e->left, 0), all);
    e->last = max64(min64(e->x->dims[3] - e->left, all), e->first);
    for (int64_t n = c->lo[1]; n < c->hi[1];) { /* panels start at multiples of ASPEN_NR, the box need not */
      part parts[2];
      int n_parts = 0;
      for (const int64_t end = min64(n / pair * pair + pair, c->hi[1]); n < end; n_parts++) {
        part *p = &parts[n_parts];
        p->column = n / ASPEN_NR * ASPEN_NR, p->first = n, p->last = n = min64(p->column + ASPEN_NR, end);
        p->panel = c->args[2].ptr + p->column / ASPEN_NR * panel_bytes;
        if (o->direct) FN(int8_gather)(&p->own, &o->job, p->panel, p->column, p->first, p->last, o->bias, o->rows.factor[0], o->rows.zero[0]);
      }
      strip(c, s, o, e, at, image, z, width, parts, n_parts);
    }
  }
}

int FN(qdwconv)(const aspen_call *c) {
  const aspen_arg none = {0};
  const aspen_arg *out = &c->args[0], *x = &c->args[1], *w = &c->args[2], *more[4] = {&none, &none, &none, &none};
  for (uint32_t i = 2; i < c->n_inputs; i++)
    if (c->args[1 + i].dtype) more[i - 2] = &c->args[1 + i];
  const aspen_arg *bias = more[0], *residual = more[1], *factor = more[2], *zero_point = more[3];
  if (out->rank != 4 || x->rank != 4 || w->rank != 4 || w->dtype != ASPEN_DT_I8 || (x->dtype != ASPEN_DT_I8 && x->dtype != ASPEN_DT_U8) ||
      (bias->dtype && bias->rank != 1) || (residual->dtype && residual->rank != 4) || (factor->dtype && factor->rank != 4) ||
      (zero_point->dtype && zero_point->dtype != x->dtype))
    return ASPEN_KERNEL_BAD_ARGUMENT;
  for (int i = 0; i < 4; i++)
    if (c->lo[i] >= c->hi[i]) return 0;
  const shape s = shape_of(c);
  output o;
  if (s.multiplier < 1 || s.parts < 1 || FN(int8_open)(&o.job, out, bias, residual, factor, 1, 0, c->params + 9)) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (c->scratch_bytes < scratch_of(&s)) return ASPEN_KERNEL_SCRATCH;
  const uint8_t flip = x->dtype == ASPEN_DT_I8 ? 0x80 : 0, zero = zero_point->dtype ? (uint8_t)*zero_point->ptr : 0;
  open_output(&o, out, bias, residual, factor, zero ^ flip);

  const int64_t bytes = line_bytes(&s);
  uint8_t *const scratch = c->scratch;
  seen e = {.x = x, .quads = scratch, .copies = scratch + s.groups * bytes, .flip = flip != 0, .zero = zero ^ flip};
  e.zeros = e.copies + bytes;
  memset(e.zeros, zero, 64);
  const uint8_t **const at = (const uint8_t **)(e.zeros + 64);
  for (int64_t t = 0; t < s.taps; t++)
    at[t] = e.quads + t / s.columns.kernel % s.groups * bytes + t % s.columns.kernel * s.columns.dilation * COLUMN_BYTES;
  const int64_t *d = x->dims, *stride = x->strides;
  for (int64_t image = c->lo[0]; image < c->hi[0]; image++) {
    e.image = (const uint8_t *)x->ptr + image * stride[0];
    e.end = stride[1] < 0 || stride[2] < 0 || stride[3] < 0 ? NULL : e.image + (d[1] - 1) * stride[1] + (d[2] - 1) * stride[2] + (d[3] - 1) * stride[3] + 1;
    image_of(c, &s, &o, &e, at, image);
  }
  return 0;
}
