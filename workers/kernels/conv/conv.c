/* CONV: convolution over two or three axes with groups, strides, dilation and any pads, as a product of pixels and packed weights.
 *
 * There is no im2col. A pixel of the output is a row of the product, cut into taps. Tap (kh, kw) points at the Cg channels of the input
 * pixel it reads, or at zeros left and right of the image. Kernel rows that lie wholly above or below the image are skipped for that row of
 * output pixels. Both rules depend on the output pixel alone. mm.h does the rest.
 *
 * When channels are not contiguous, or too few for a tap, a block's input is copied into scratch, channels last with a margin of
 * zeros. The taps of a kernel row are then contiguous and become one. Where stride or dilation leave gaps the copy keeps only the rows and
 * columns that are read, so it is never larger than im2col's. A prologue (scale, shift and activation of the input, such as a normalisation
 * before the convolution) is computed on the way into that copy.
 *
 * Groups of 2, 4 or 8 channels that have as many outputs would leave most of a panel empty. There a vector holds the outputs of several
 * groups, and each term takes its input from the lanes of its own group. The order of summation is the same.
 *
 * A window with depth (volume.h) has its taps plane after plane. There kernel rows outside the image point at zeros, too: skipping them
 * would leave gaps between the weights of the planes. With few channels, planes count as more channels, side by side in the copy, so that
 * taps of a kernel row are long enough. Then k = (kh, kw, kd, c), and planes outside the volume are zeros.
 *
 * Loops: image, block of pixels (bounded so that pointers and input stay in L2), group, panel of weights or its part, rows of the
 * micro-kernel.
 */
#include "gemm/mm.h"
#include "conv/volume.h"
#include "conv/copied_axis.h"

#define PIXELS 256                 /* output pixels of a block, at most */
#define COPIED_PIXELS 1024         /* the same where the input is copied: neighbouring blocks copy the same rows again */
#define POINTER_BYTES (64 << 10)   /* tap pointers of a block, about */
#define INPUT_BYTES (384 << 10)    /* input of a block, about */
#define COPY_BYTES (128 << 10)     /* copied input of a block, about */
#define FEW_CHANNELS 16            /* below, taps of a kernel row are better joined by a copy */
#define L1_WEIGHTS (16 << 10)      /* panels of at most this many bytes stay in L1 while pixels go by: rows outside, columns inside */
/* panels of more bytes do not stay in L2 while pixels go by, beside the input and the panel that comes next */
#define LONG_PANEL (384 << 10)
#define PART_BYTES (128 << 10)     /* bytes of their parts, about: all pixels are multiplied by the first taps, then by the next ones */

typedef struct conv {
  const aspen_arg *out, *x, *w, *bias, *residual;
  const float *scale, *shift; /* of all channels, or NULL */
  const float *in_scale, *in_shift; /* the prologue: of all input channels, or NULL */
  epilogue in_act;
  int64_t groups, in_channels, out_channels; /* channels of one group */
  window rows, columns;
  planes planes;
  planes folded;      /* those that are channels; or one */
  int copy;           /* input goes through scratch */
  int64_t taps;       /* pointers of a pixel, at most */
  int64_t block;      /* pixels of a block */
} conv;

static int64_t copy_bytes(const conv *v, int64_t rows, int64_t columns) {
  return v->planes.all * copy_axis(&v->rows, rows).size * copy_axis(&v->columns, columns).size * v->in_channels * (int64_t)sizeof(float);
}

static int64_t copy_budget(const conv *v) { return v->in_scale ? INPUT_BYTES : COPY_BYTES; }

/* Rows and columns of a block of output pixels, for a box of `height` x `width`. */
static void block_shape(const conv *v, int64_t height, int64_t width, int64_t *rows, int64_t *columns) {
  *columns = min64(width, v->block);
  *rows = min64(height, v->block / *columns);
  if (!v->copy) return;
  const int64_t budget = copy_budget(v);
  while (*rows > 1 && copy_bytes(v, *rows, *columns) > budget) *rows = (*rows + 1) / 2;
  while (*columns > MM_MAX_ROWS && copy_bytes(v, *rows, *columns) > budget) *columns = max64(MM_MAX_ROWS, (*columns + 1) / 2);
}

static int setup(conv *v, const aspen_call *c, const planes *planes) {
  *v = (conv){.out = &c->args[0], .x = &c->args[1], .w = &c->args[2], .planes = *planes};
  v->bias = c->n_inputs > 2 && c->args[3].dtype ? &c->args[3] : NULL;
  v->residual = c->n_inputs > 3 && c->args[4].dtype ? &c->args[4] : NULL;
  if (v->out->rank != 4 || v->x->rank != 4 || v->w->rank != 4 || (v->bias && v->bias->rank != 1) || (v->residual && v->residual->rank != 4))
    return ASPEN_KERNEL_BAD_ARGUMENT;
  if (v->out->dtype != ASPEN_DT_F32 || v->x->dtype != ASPEN_DT_F32 || v->w->dtype != ASPEN_DT_F32) return ASPEN_KERNEL_BAD_ARGUMENT;
  const int64_t *p = c->params;
  v->groups = p[0];
  v->rows = (window){v->x->dims[2], p[1], p[3], p[5], p[7]};
  v->columns = (window){v->x->dims[3], p[2], p[4], p[6], p[8]};
  if (v->groups < 1 || v->rows.kernel < 1 || v->columns.kernel < 1) return ASPEN_KERNEL_BAD_ARGUMENT;
  v->in_channels = v->x->dims[1] / v->groups;
  v->folded = one_plane;
  if (v->planes.all > 1 && v->groups == 1 && v->in_channels < FEW_CHANNELS && v->columns.kernel > 1) {
    v->folded = v->planes;
    v->planes = one_plane;
    v->in_channels *= v->folded.all;
  }
  v->out_channels = v->out->dims[1] / v->groups;
  if (epilogue_scale(c, 4, v->out->dims[1], &v->scale, &v->shift) || epilogue_scale(c, 6, v->x->dims[1], &v->in_scale, &v->in_shift))
    return ASPEN_KERNEL_BAD_ARGUMENT;
  if (planes->all > 1 && v->in_scale) return ASPEN_KERNEL_BAD_ARGUMENT;
  v->copy = (v->x->strides[1] != 1 && v->in_channels > 1) || (v->in_channels < FEW_CHANNELS && v->columns.kernel > 1) || v->in_scale ||
            v->folded.all > 1;
  v->taps = v->planes.all * v->rows.kernel * (v->copy && v->columns.dilation == 1 ? 1 : v->columns.kernel);
  const int64_t new_pixels = v->planes.all * min64(v->rows.stride, v->rows.kernel) * min64(v->columns.stride, v->columns.kernel);
  const int64_t pixel_bytes = new_pixels * v->in_channels * (int64_t)sizeof(float); /* of input, for each pixel of output */
  v->block = min64(v->copy ? COPIED_PIXELS : PIXELS, max64(INPUT_BYTES / max64(pixel_bytes, 1), 4 * MM_MAX_ROWS));
  v->block = max64(min64(v->block, POINTER_BYTES / (v->taps * (int64_t)sizeof(float *))), MM_MAX_ROWS);
  return 0;
}

/* Whether the groups of a convolution are so narrow that several share a vector: their channels, or 0. */
static int64_t narrow_group(const conv *v) {
  const int64_t d = v->in_channels;
  return v->groups > 1 && d == v->out_channels && (d == 2 || d == 4 || d == 8) && !v->in_scale ? d : 0;
}

/* The same convolution as if it had one group, for its pointers. */
static conv without_groups(const conv *v) {
  conv n = *v;
  n.groups = 1;
  n.in_channels = n.out_channels = v->x->dims[1];
  n.copy = 0;
  n.taps = v->planes.all * v->rows.kernel * v->columns.kernel;
  n.block = max64(min64(PIXELS, POINTER_BYTES / (n.taps * (int64_t)sizeof(float *))), MM_MAX_ROWS);
  return n;
}

/* The workspace of a block. */
typedef struct block_run { /* consecutive pixels with the same taps */
  int32_t pixel, rows, taps;
  int32_t pointers; /* index of the first pointer */
  int64_t skipped;  /* weights of each panel, in floats, that belong to kernel rows above the image */
} block_run;
typedef struct workspace {
  float *zeros;              /* Cg */
  int64_t *out_at, *residual_at; /* element offsets of each pixel */
  block_run *runs;
  const float **pointers;
  float *input;
  float *sums; /* of each pixel, by a part of a panel */
  int64_t step; /* between the pixels of all runs, elements; 0: they do not lie evenly */
} workspace;

static size_t round64(size_t n) { return (n + 63) & ~(size_t)63; }

/* Whether panels are multiplied in parts, if there are several runs of pixels. */
static int long_panels(const conv *v) { return v->w->strides[1] * (int64_t)sizeof(float) > LONG_PANEL; }

/* Lay the workspace out from `base`; returns its size in bytes. */
static size_t lay_out(const conv *v, workspace *s, char *base) {
  size_t at = 0, pixels = (size_t)v->block;
#define PART(field, type, count) (s->field = (type *)(base + at), at += round64((size_t)(count) * sizeof(type)))
  PART(zeros, float, v->in_channels);
  PART(out_at, int64_t, pixels);
  PART(residual_at, int64_t, pixels);
  PART(runs, block_run, pixels);
  PART(pointers, const float *, pixels * (size_t)v->taps);
  if (v->copy) PART(input, float, max64(copy_budget(v), copy_bytes(v, 1, min64(MM_MAX_ROWS, v->out->dims[3]))) / (int64_t)sizeof(float));
  if (long_panels(v)) PART(sums, float, pixels * ASPEN_NR);
#undef PART
  return at;
}

/* Rearranged weights of narrow groups, in floats. */
static int64_t narrow_floats(const conv *v) { return v->planes.all * v->rows.kernel * v->columns.kernel * v->in_channels * v->x->dims[1]; }

#ifdef ISA_PORTABLE
size_t aspen_scratch_conv(const aspen_call *c) {
  conv v;
  workspace s;
  volume volume;
  if (is_volume(c) ? volume_open(&volume, c, 16) || setup(&v, &volume.call, &volume.planes) : setup(&v, c, &one_plane)) return 0;
  const size_t plain = lay_out(&v, &s, (char *)64);
  if (!narrow_group(&v)) return plain;
  const conv one = without_groups(&v);
  const size_t narrow = lay_out(&one, &s, (char *)64) + (size_t)narrow_floats(&v) * sizeof(float);
  return narrow > plain ? narrow : plain;
}
#endif

#if VL >= 8
/* to[3 j + c] = from[c * channel_stride + j] for j < n: red, green and blue planes become pixels. */
static void interleave_3(float *to, const float *from, int64_t channel_stride, int64_t n) {
  /* Element e of three vectors of output is channel e % 3 of pixel e / 3: first from channels 0 and 1, then with channel 2. */
#define FIRST(e) ((e) % 3 == 1 ? VL + (e) / 3 : (e) / 3)
#define SECOND(e) ((e) % 3 == 2 ? VL + (e) / 3 : (e) % VL)
#define EIGHT(F, e) F(e), F(e + 1), F(e + 2), F(e + 3), F(e + 4), F(e + 5), F(e + 6), F(e + 7)
#if VL == 16
#define LANES(F, k) {EIGHT(F, 16 * k), EIGHT(F, 16 * k + 8)}
#else
#define LANES(F, k) {EIGHT(F, 8 * k)}
#endif
  static const vi first[3] = {LANES(FIRST, 0), LANES(FIRST, 1), LANES(FIRST, 2)};
  static const vi second[3] = {LANES(SECOND, 0), LANES(SECOND, 1), LANES(SECOND, 2)};
  for (; n > 0; n -= VL, from += VL, to += 3 * VL) {
    vf plane[3];
#pragma GCC unroll 3
    for (int c = 0; c < 3; c++) plane[c] = n >= VL ? vload(from + c * channel_stride) : vload_part(from + c * channel_stride, n);
#pragma GCC unroll 3
    for (int k = 0; k < 3; k++) {
      const vf t = __builtin_shuffle(__builtin_shuffle(plane[0], plane[1], first[k]), plane[2], second[k]);
      if (n >= VL)
        vstore(to + k * VL, t);
      else if (3 * n > k * VL)
        vstore_part(to + k * VL, t, 3 * n - k * VL);
    }
  }
#undef FIRST
#undef SECOND
#undef EIGHT
#undef LANES
}
#define INTERLEAVES_3 1
#else
#define INTERLEAVES_3 0
#define interleave_3(to, from, channel_stride, n) ((void)0)
#endif

/* The prologue of n pixels of one group, from unit channels `from_step` elements apart (`from` may be `to`). */
static void prologue(const conv *v, float *to, const float *from, int64_t from_step, const float *scale, const float *shift, int64_t n) {
  const int64_t channels = v->in_channels;
  for (int64_t j = 0; j < n; j++, to += channels, from += from_step) {
    int64_t c = 0;
    for (; c + 4 * VL <= channels; c += 4 * VL) {
      vf y[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++) y[i] = vfma(vload(from + c + i * VL), vload(scale + c + i * VL), vload(shift + c + i * VL));
      epilogue_act(&v->in_act, y, 4);
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++) vstore(to + c + i * VL, y[i]);
    }
    for (; c < channels; c += VL) {
      vf y = vfma(vload_part(from + c, channels - c), vload_part(scale + c, channels - c), vload_part(shift + c, channels - c));
      epilogue_act(&v->in_act, &y, 1);
      vstore_part(to + c, y, channels - c);
    }
  }
}

/* As below, where planes are channels: those outside the volume are zeros. `to` is the first of `count` columns inside the image. */
static void copy_planes(const conv *v, float *to, const float *from, int64_t from_step, int64_t count) {
  enum { TOGETHER = 16 };
  const planes *f = &v->folded;
  const int64_t channels = v->in_channels, each = channels / f->all, channel_stride = v->x->strides[1];
  if (INTERLEAVES_3 && each == 1 && f->n == 3 && f->all == 3 && from_step == 1) {
    interleave_3(to, from, f->step, count);
    return;
  }
  if (f->n < f->all) memset(to, 0, (size_t)(count * channels) * sizeof *to);
  for (int64_t j0 = 0; j0 < count; j0 += TOGETHER) {
    const int64_t end = min64(j0 + TOGETHER, count);
    for (int64_t i = 0; i < f->n; i++)
      for (int64_t c = 0; c < each; c++) {
        const float *p = from + i * f->step + c * channel_stride;
        float *q = to + (f->first + i) * each + c;
        for (int64_t j = j0; j < end; j++) q[j * channels] = p[j * from_step];
      }
  }
}

/* Channels of one input pixel for each of n columns first, first + step …, into to[column][channel]; zeros outside the image. */
static void copy_columns(const conv *v, int64_t group, float *to, const float *row, int64_t first, int64_t step, int64_t n) {
  const int64_t channels = v->in_channels, channel_stride = v->x->strides[1], column_stride = v->x->strides[3], width = v->columns.in;
  int64_t lo = 0, hi = n; /* columns inside the image */
  while (lo < n && (first + lo * step < 0 || first + lo * step >= width)) lo++;
  while (hi > lo && (first + (hi - 1) * step < 0 || first + (hi - 1) * step >= width)) hi--;
  memset(to, 0, (size_t)(lo * channels) * sizeof *to);
  memset(to + hi * channels, 0, (size_t)((n - hi) * channels) * sizeof *to);
  if (lo >= hi) return;
  to += lo * channels;
  row += (first + lo * step) * column_stride;
  const int64_t count = hi - lo, from_step = step * column_stride;
  if (v->folded.all > 1) {
    copy_planes(v, to, row, from_step, count);
    return;
  }
  const float *scale = v->in_scale ? v->in_scale + group * channels : NULL, *shift = v->in_scale ? v->in_shift + group * channels : NULL;
  if (channel_stride == 1 && scale) {
    prologue(v, to, row, from_step, scale, shift, count);
    return;
  }
  if ((channel_stride == 1 || channels == 1) && from_step == channels) {
    memcpy(to, row, (size_t)(count * channels) * sizeof *to);
  } else if (channel_stride == 1) {
    for (int64_t j = 0; j < count; j++)
      for (int64_t c = 0; c < channels; c++) to[j * channels + c] = row[j * from_step + c];
  } else if (INTERLEAVES_3 && channels == 3 && from_step == 1) {
    interleave_3(to, row, channel_stride, count);
  } else {
    enum { TOGETHER = 16 }; /* columns, so that the lines written stay in L1 while channels go by */
    for (int64_t j0 = 0; j0 < count; j0 += TOGETHER)
      for (int64_t c = 0; c < channels; c++) {
        const float *from = row + c * channel_stride;
        const int64_t end = min64(j0 + TOGETHER, count);
        for (int64_t j = j0; j < end; j++) to[j * channels + c] = from[j * from_step];
      }
  }
  if (scale) prologue(v, to, to, channels, scale, shift, count);
}

static void copy_plane(const conv *v, int64_t group, float *to, const float *x, int64_t oh, int64_t rows, int64_t ow, int64_t columns) {
  const copied_axis vertical = copy_axis(&v->rows, rows), horizontal = copy_axis(&v->columns, columns);
  const int64_t first_row = oh * v->rows.stride - v->rows.pad, first_column = ow * v->columns.stride - v->columns.pad;
  for (int64_t i = 0; i < vertical.size; i++) {
    const int64_t ih = first_row + (vertical.compact ? i / v->rows.kernel * v->rows.stride + i % v->rows.kernel * v->rows.dilation : i);
    float *line = to + i * horizontal.size * v->in_channels;
    if (ih < 0 || ih >= v->rows.in) { /* a kernel row outside the image: only with several planes it is read */
      if (v->planes.n > 1) memset(line, 0, (size_t)(horizontal.size * v->in_channels) * sizeof *line);
      continue;
    }
    const float *from = x + ih * v->x->strides[2];
    if (!horizontal.compact) {
      copy_columns(v, group, line, from, first_column, 1, horizontal.size);
    } else {
      for (int64_t q = 0; q < columns; q++)
        copy_columns(v, group, line + q * v->columns.kernel * v->in_channels, from, first_column + q * v->columns.stride,
                     v->columns.dilation, v->columns.kernel);
    }
  }
}

static void copy_input(const conv *v, int64_t group, float *to, const float *x, int64_t oh, int64_t rows, int64_t ow, int64_t columns) {
  const int64_t plane = copy_bytes(v, rows, columns) / v->planes.all / (int64_t)sizeof(float);
  for (int64_t i = 0; i < v->planes.n; i++) copy_plane(v, group, to + i * plane, x + i * v->planes.step, oh, rows, ow, columns);
}

/* How far taps and pixels lie apart, in elements of the input: where it is, or of its copy. */
typedef struct tap_steps {
  int64_t row, column, kernel_row, kernel_column, plane;
} tap_steps;

/* Pointers of a pixel to all taps of a plane, `next` places apart; outside the image they are zeros. inside: no columns are. */
static void point_plane(const conv *v, const workspace *s, const float **p, int64_t next, const float *at, tap_steps step, int64_t oh, int64_t ow,
                        int64_t across, int inside) {
  int64_t ih = window_start(&v->rows, oh);
  for (int64_t kh = 0; kh < v->rows.kernel; kh++, at += step.kernel_row, ih += v->rows.dilation) {
    const int out = !v->copy && (ih < 0 || ih >= v->rows.in);
    int64_t iw = window_start(&v->columns, ow);
    for (int64_t kw = 0; kw < across; kw++, p += next, iw += v->columns.dilation)
      *p = out || (!inside && (iw < 0 || iw >= v->columns.in)) ? s->zeros : at + kw * step.kernel_column;
  }
}

/* Pointers of a block of pixels, in runs of up to MM_ROWS pixels that have the same kernel rows (deep: all). many: runs may be as long as
 * mm.h allows for pixels that lie evenly. Returns the number of runs. Layers with few channels spend as much time here as in arithmetic if
 * this is done carelessly. */
INLINE int64_t point_taps(const conv *v, const int deep, workspace *s, mm_job *job, int many, const float *x, int64_t oh0, int64_t rows, int64_t ow0,
                          int64_t columns) {
  const copied_axis vertical = copy_axis(&v->rows, rows), horizontal = copy_axis(&v->columns, columns);
  const int joined = v->copy && horizontal.tap == 1;
  const int64_t across = joined ? 1 : v->columns.kernel; /* taps of a kernel row */
  const int64_t channels = v->in_channels, line = horizontal.size * channels, row_stride = v->x->strides[2], column_stride = v->x->strides[3];
  const tap_steps step = v->copy ? (tap_steps){vertical.step * line, horizontal.step * channels, vertical.tap * line, horizontal.tap * channels,
                                             vertical.size * line}
                                 : (tap_steps){v->rows.stride * row_stride, v->columns.stride * column_stride,
                                               v->rows.dilation * row_stride, v->columns.dilation * column_stride, v->planes.step};
  const float *const origin =
      v->copy ? s->input : x + window_start(&v->rows, oh0) * row_stride + window_start(&v->columns, ow0) * column_stride;
  int64_t inside_lo = ow0, inside_hi = ow0 + columns; /* columns without taps in the margins */
  if (!v->copy) window_inside(&v->columns, ow0, ow0 + columns, &inside_lo, &inside_hi);
  const int64_t out_row = v->out->strides[2], out_column = v->out->strides[3];
  const int64_t residual_row = v->residual ? v->residual->strides[2] : 0, residual_column = v->residual ? v->residual->strides[3] : 0;
  job->k = joined ? v->columns.kernel * channels : channels;
  /* Pixels of 1 x 1 that lie evenly, also from row to row. */
  const int even = many && !v->copy && v->planes.n * v->rows.kernel * across == 1 && inside_lo == ow0 && inside_hi == ow0 + columns &&
                   (rows == 1 || step.row == columns * step.column);
  s->step = even ? step.column : 0;
  int64_t runs = 0, pointers = 0, pixel = 0;
  for (int64_t i = 0; i < rows;) {
    int64_t from, to, next = i + 1, a, b;
    if (deep) {
      from = 0, to = v->rows.kernel, next = rows;
    } else {
      window_taps(&v->rows, oh0 + i, &from, &to);
      for (; next < rows; next++) {
        window_taps(&v->rows, oh0 + next, &a, &b);
        if (a != from || b != to) break;
      }
    }
    const int64_t skipped = from * v->columns.kernel * channels * ASPEN_NR;
    const int64_t pixels = (next - i) * columns, pieces = even && to > from ? mm_even_blocks(pixels, step.column) : mm_blocks(pixels);
    int64_t row = i, column = 0;
    for (int64_t piece = 0; piece < pieces; piece++) {
      const int64_t first = mm_cut(pixels, pieces, piece), n = mm_cut(pixels, pieces, piece + 1) - first;
      s->runs[runs++] = (block_run){.pixel = (int32_t)(i * columns + first), .rows = (int32_t)n, .taps = (int32_t)(v->planes.n * (to - from) * across),
                                    .pointers = (int32_t)pointers, .skipped = skipped};
      for (int64_t r = 0; r < n; r++, pixel++) {
        const int64_t oh = oh0 + row, ow = ow0 + column;
        s->out_at[pixel] = oh * out_row + ow * out_column;
        s->residual_at[pixel] = oh * residual_row + ow * residual_column;
        const float **p = s->pointers + pointers + r;
        const float *at = origin + row * step.row + column * step.column + from * step.kernel_row;
        if (deep) {
          const int inside = ow >= inside_lo && ow < inside_hi;
          for (int64_t q = 0; q < v->planes.n; q++, p += n * v->rows.kernel * across)
            point_plane(v, s, p, n, at + q * step.plane, step, oh, ow, across, inside);
        } else if (ow >= inside_lo && ow < inside_hi) {
          for (int64_t kh = from; kh < to; kh++, at += step.kernel_row)
            for (int64_t kw = 0; kw < across; kw++, p += n) *p = at + kw * step.kernel_column;
        } else {
          for (int64_t kh = from; kh < to; kh++, at += step.kernel_row) {
            int64_t iw = window_start(&v->columns, ow);
            for (int64_t kw = 0; kw < across; kw++, p += n, iw += v->columns.dilation)
              *p = iw < 0 || iw >= v->columns.in ? s->zeros : at + kw * step.kernel_column;
          }
        }
        if (++column == columns) column = 0, row++;
      }
      pointers += n * v->planes.n * (to - from) * across;
    }
    i = next;
  }
  return runs;
}

static __attribute__((noinline)) int64_t point_deep(const conv *v, workspace *s, mm_job *job, const float *x, int64_t oh, int64_t rows, int64_t ow,
                                                   int64_t columns) {
  return point_taps(v, 1, s, job, 0, x, oh, rows, ow, columns);
}

static int64_t point(const conv *v, workspace *s, mm_job *job, int many, const float *x, int64_t oh, int64_t rows, int64_t ow, int64_t columns) {
  if (v->planes.n > 1) return point_deep(v, s, job, x, oh, rows, ow, columns);
  return point_taps(v, 0, s, job, many, x, oh, rows, ow, columns);
}

/* The taps [first, last) of a panel times a run of pixels. Sums of the run's other taps so far wait in s->sums. */
static void multiply_part(const workspace *s, const mm_job *job, mm_rows *block, const block_run *run, const float *panel, int64_t first, int64_t last,
                          int64_t column, int64_t lo, int64_t hi) {
  const int64_t begin = run->skipped / (job->k * ASPEN_NR), end = begin + run->taps;
  const int64_t from = max64(first, begin), to = max64(from, min64(last, end));
  if (from == to && (run->taps || first)) return; /* without any taps it is the first part that writes the output */
  float *sums = s->sums + (int64_t)run->pixel * ASPEN_NR;
  block->taps = (int)(to - from), block->a = s->pointers + run->pointers + (from - begin) * run->rows;
  block->from = from > begin ? sums : NULL, block->to = to < end ? sums : NULL;
  FN(mm_block)(job, block, panel + from * job->k * ASPEN_NR, column, lo, hi);
}

/* All panels times all pixels of a block. out, bias and residual point at column 0 of the group, in the image. */
static void multiply_block(const conv *v, const workspace *s, const mm_job *job, int64_t runs, const float *w, float *out,
                           const float *bias, const float *residual, int64_t oc_lo, int64_t oc_hi) {
  const int64_t panel_bytes = v->w->strides[1] * (int64_t)sizeof(float);
  const int64_t panels = max64(mm_panels(runs == 1 ? s->runs[0].rows : MM_ROWS), L1_WEIGHTS / max64(panel_bytes, 1));
  const int64_t all_panels = (v->out_channels + ASPEN_NR - 1) / ASPEN_NR;
  /* no channels: no bytes */
  const int64_t tap_bytes = job->k * ASPEN_NR * (int64_t)sizeof(float), taps = panel_bytes / max64(tap_bytes, 1);
  const int64_t parts = runs > 1 && long_panels(v) ? min64((panel_bytes + PART_BYTES - 1) / PART_BYTES, taps) : 1;
  mm_rows block;
  block.next = NULL, block.stream = 0;
  block.from = block.to = NULL;
  block.a_step = s->step;
  block.bias[0] = bias;
  block.residual[0] = NULL;
  for (int64_t oc = oc_lo; oc < oc_hi;) {
    const int64_t column = oc / ASPEN_NR * ASPEN_NR, last = min64(column + panels * ASPEN_NR, oc_hi);
    const float *panel = w + column / ASPEN_NR * v->w->strides[1];
    for (int64_t part = 0; part < parts; part++) {
      const int64_t first = mm_cut(taps, parts, part), end = mm_cut(taps, parts, part + 1);
      /* The next part or panels are brought nearer in equal shares. Otherwise the first run would wait for memory, and the others would
       * leave it idle. It may belong to the next tile. */
      const int64_t left = max64(all_panels - column / ASPEN_NR - panels, 0);
      const char *next = (const char *)panel + (part + 1 < parts ? end * tap_bytes : panels * panel_bytes);
      const int64_t next_bytes = part + 1 < parts ? (mm_cut(taps, parts, part + 2) - end) * tap_bytes
                                                  : min64(panels, left) * (parts > 1 ? mm_cut(taps, parts, 1) * tap_bytes : panel_bytes);
      const int64_t share = next_bytes / runs;
      for (int64_t i = 0; i < runs; i++) {
        const block_run *run = &s->runs[i];
        const int64_t terms = (parts > 1 ? min64(end - first, run->taps) : run->taps) * job->k;
        if (share) {
          block.next = next + i * share;
          block.next_step = share / max64(terms, 1) + 1;
        }
        block.rows = run->rows;
        for (int r = 0; r < run->rows; r++) block.out[r] = out + s->out_at[run->pixel + r];
        if (residual)
          for (int r = 0; r < run->rows; r++) block.residual[r] = residual + s->residual_at[run->pixel + r];
        if (parts > 1) {
          multiply_part(s, job, &block, run, panel, first, end, column, oc, last);
        } else {
          block.taps = run->taps, block.a = s->pointers + run->pointers;
          FN(mm_block)(job, &block, panel + run->skipped, column, oc, last);
        }
      }
      block.next = NULL;
    }
    oc = last;
  }
}

/* Whether the product has so few terms that pointers of pixels would take as long as the sums. Its input is copied, and its pixels and taps
 * lie evenly. */
static int few_terms(const conv *v, const copied_axis *horizontal, int64_t columns) {
  return v->copy && v->planes.n == 1 && horizontal->tap == 1 && v->rows.kernel * v->columns.kernel * v->in_channels <= MM_FEW_TERMS && columns >= MM_FEWEST_PIXELS &&
         !v->scale && v->out->strides[1] == 1 && (!v->residual || v->residual->strides[1] == 1) && (!v->bias || v->bias->strides[0] == 1);
}

/* A block of pixels of such a product, from the copied input. out, bias and residual: column 0 of the group, in the image. */
static void multiply_rows(const conv *v, const workspace *s, const mm_job *job, int64_t oh, int64_t rows, int64_t ow, int64_t columns, const float *w,
                          const float *bias, const float *residual, float *out, int64_t oc_lo, int64_t oc_hi) {
  const copied_axis vertical = copy_axis(&v->rows, rows), horizontal = copy_axis(&v->columns, columns);
  const int64_t line = horizontal.size * v->in_channels, depth = v->columns.kernel * v->in_channels;
  mm_pixels p = {.epilogue = &job->epilogue, .tap_step = vertical.tap * line, .depth = depth, .x_step = horizontal.step * v->in_channels,
                 .to_step = v->out->strides[3], .residual_step = v->residual ? v->residual->strides[3] : 0};
  for (int64_t i = 0, from, to; i < rows; i++) {
    window_taps(&v->rows, oh + i, &from, &to);
    p.taps = to - from;
    FN(mm_row_of_pixels)(&p, s->input + i * vertical.step * line + from * p.tap_step, columns, w + from * depth * ASPEN_NR, v->w->strides[1], bias,
                         residual ? residual + (oh + i) * v->residual->strides[2] + ow * p.residual_step : NULL,
                         out + (oh + i) * v->out->strides[2] + ow * p.to_step, oc_lo, oc_hi);
  }
}

/* One block of pixels, all groups. Copied input always lies in the same place, so there one set of pointers serves all groups. */
static void all_groups(const conv *v, workspace *s, mm_job *job, const aspen_call *c, int64_t n, int64_t oh, int64_t rows, int64_t ow,
                       int64_t columns) {
  int64_t runs = 0;
  const copied_axis horizontal = copy_axis(&v->columns, columns);
  const int few = few_terms(v, &horizontal, columns);
  for (int64_t g = c->lo[1] / v->out_channels; g * v->out_channels < c->hi[1]; g++) {
    const int64_t oc0 = g * v->out_channels, oc_lo = max64(c->lo[1] - oc0, 0), oc_hi = min64(c->hi[1] - oc0, v->out_channels);
    const float *x = (const float *)v->x->ptr + n * v->x->strides[0] + g * v->in_channels * v->x->strides[1];
    const aspen_arg *r = v->residual;
    const float *residual = r ? (const float *)r->ptr + n * r->strides[0] + oc0 * r->strides[1] : NULL;
    if (v->scale) job->scale = v->scale + oc0, job->shift = v->shift + oc0;
    const float *w = (const float *)v->w->ptr + g * v->w->strides[0], *bias = v->bias ? (const float *)v->bias->ptr + oc0 * v->bias->strides[0] : NULL;
    float *out = (float *)v->out->ptr + n * v->out->strides[0] + oc0 * v->out->strides[1];
    if (v->copy) copy_input(v, g, s->input, x, oh, rows, ow, columns);
    if (few && oc_lo % ASPEN_NR == 0) {
      multiply_rows(v, s, job, oh, rows, ow, columns, w, bias, residual, out, oc_lo, oc_hi);
      continue;
    }
    if (!v->copy || !runs) runs = point(v, s, job, 1, x, oh, rows, ow, columns);
    multiply_block(v, s, job, runs, w, out, bias, residual, oc_lo, oc_hi);
  }
}

/* Where the lanes of a vector of outputs find input k of their group, for groups of 2, 4 and 8. */
#define LANE(D, k, i) ((i) / (D) * (D) + (k))
#define LANES_4(D, k, i) LANE(D, k, i), LANE(D, k, (i) + 1), LANE(D, k, (i) + 2), LANE(D, k, (i) + 3)
#if VL == 16
#define LANES(D, k) {LANES_4(D, k, 0), LANES_4(D, k, 4), LANES_4(D, k, 8), LANES_4(D, k, 12)}
#elif VL == 8
#define LANES(D, k) {LANES_4(D, k, 0), LANES_4(D, k, 4)}
#else
#define LANES(D, k) {LANES_4(D, k, 0)}
#endif
static const vi lanes[][8] = {
    {LANES(2, 0), LANES(2, 1)},
    {LANES(4, 0), LANES(4, 1), LANES(4, 2), LANES(4, 3)},
    {LANES(8, 0), LANES(8, 1), LANES(8, 2), LANES(8, 3), LANES(8, 4), LANES(8, 5), LANES(8, 6), LANES(8, 7)},
};

/* Sums of R pixels for a vector of channels, groups of D: x is `offset` behind the pointers of each tap, weights [taps][D][VL]. */
INLINE void narrow_sums(const int R, const int D, int taps, const float *const *p, int64_t offset, const float *weights, vf *sum) {
  vf y[MM_MAX_ROWS];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) y[r] = vzero();
  for (; taps > 0; taps--, p += R, weights += D * VL) {
    vf x[MM_MAX_ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) x[r] = vload(p[r] + offset);
#pragma GCC unroll 8
    for (int k = 0; k < D; k++) {
      const vf w = vload(weights + k * VL);
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) y[r] = vfma(__builtin_shuffle(x[r], lanes[D / 4][k]), w, y[r]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) sum[r] = y[r];
}

typedef void narrow_fn(int, const float *const *, int64_t, const float *, vf *);
#define NARROW(R, D)                                                                                                               \
  static void narrow_##R##x##D(int taps, const float *const *p, int64_t offset, const float *weights, vf *sum) {                   \
    narrow_sums(R, D, taps, p, offset, weights, sum);                                                                              \
  }
#define NARROW_ROWS(D) NARROW(1, D) NARROW(2, D) NARROW(3, D) NARROW(4, D) NARROW(5, D) NARROW(6, D) NARROW(7, D) NARROW(8, D)
#define NARROW_TABLE(D) {narrow_1x##D, narrow_2x##D, narrow_3x##D, narrow_4x##D, narrow_5x##D, narrow_6x##D, narrow_7x##D, narrow_8x##D}
NARROW_ROWS(2)
#if VL >= 8
NARROW_ROWS(4)
#endif
#if VL >= 16
NARROW_ROWS(8)
#endif
static narrow_fn *const narrows[][MM_MAX_ROWS] = {
    NARROW_TABLE(2),
#if VL >= 8
    NARROW_TABLE(4),
#endif
#if VL >= 16
    NARROW_TABLE(8),
#endif
};

/* The weights of channels [first, last) as [vector][taps][d][VL]. */
static void narrow_weights(const conv *v, float *to, int64_t first, int64_t last) {
  const int64_t d = v->in_channels, terms = v->planes.n * v->rows.kernel * v->columns.kernel * d;
  for (int64_t at = first; at < last; at += VL)
    for (int64_t k = 0; k < terms; k++, to += VL)
      for (int64_t i = 0; i < VL; i += d) {
        const float *from = (const float *)v->w->ptr + (at + i) / d * v->w->strides[0] + k * ASPEN_NR;
        for (int64_t j = 0; j < d; j++) to[i + j] = from[j];
      }
}

/* Finishes the sums of `rows` pixels for the vector of channels `at`, as mm.c does. out and residual: channel 0 of the image. */
static void narrow_out(const conv *v, const workspace *s, const epilogue *e, int64_t pixel, int rows, float *out, const float *residual,
                       int64_t at, vf *y) {
  const vf bias = v->bias ? vload((const float *)v->bias->ptr + at) : vzero();
  for (int r = 0; r < rows; r++) {
    if (v->bias) y[r] += bias;
    if (residual && !e->residual_last) y[r] += vload(residual + s->residual_at[pixel + r] + at);
    epilogue_act(e, y + r, 1);
    if (v->scale) y[r] = vfma(y[r], vload(v->scale + at), vload(v->shift + at));
    if (residual && e->residual_last) y[r] += vload(residual + s->residual_at[pixel + r] + at);
    vstore(out + s->out_at[pixel + r] + at, y[r]);
  }
}

/* Unit strides of channels, and a box of whole vectors of several groups each. */
static int narrow_applies(const conv *v, const aspen_call *c) {
  const int64_t d = narrow_group(v);
  return d && 2 * d <= VL && c->lo[1] % VL == 0 && c->hi[1] % VL == 0 && v->x->strides[1] == 1 && v->out->strides[1] == 1 &&
         (!v->bias || v->bias->strides[0] == 1) && (!v->residual || v->residual->strides[1] == 1);
}

static int narrow_conv(const conv *v, const aspen_call *c, mm_job *job) {
  const conv one = without_groups(v);
  workspace s = {0};
  const size_t at = lay_out(&one, &s, c->scratch);
  if (at + (size_t)narrow_floats(v) * sizeof(float) > c->scratch_bytes) return ASPEN_KERNEL_SCRATCH;
  memset(s.zeros, 0, (size_t)one.in_channels * sizeof(float));
  float *weights = (float *)((char *)c->scratch + at);
  const int64_t d = v->in_channels, taps = v->columns.kernel, panel = v->planes.n * v->rows.kernel * taps * d * VL;
  narrow_weights(v, weights, c->lo[1], c->hi[1]);
  int64_t rows, columns;
  block_shape(&one, c->hi[2] - c->lo[2], c->hi[3] - c->lo[3], &rows, &columns);
  for (int64_t n = c->lo[0]; n < c->hi[0]; n++)
    for (int64_t oh = c->lo[2]; oh < c->hi[2]; oh += rows)
      for (int64_t ow = c->lo[3]; ow < c->hi[3]; ow += columns) {
        const int64_t runs = point(&one, &s, job, 0, (const float *)v->x->ptr + n * v->x->strides[0], oh, min64(rows, c->hi[2] - oh), ow,
                                   min64(columns, c->hi[3] - ow));
        float *out = (float *)v->out->ptr + n * v->out->strides[0];
        const float *residual = v->residual ? (const float *)v->residual->ptr + n * v->residual->strides[0] : NULL;
        for (int64_t k = c->lo[1]; k < c->hi[1]; k += VL)
          for (int64_t i = 0; i < runs; i++) {
            const block_run *run = &s.runs[i];
            const int64_t above = run->skipped / (one.in_channels * ASPEN_NR); /* taps */
            vf sum[MM_MAX_ROWS];
            narrows[d / 4][run->rows - 1](run->taps, s.pointers + run->pointers, k, weights + (k - c->lo[1]) / VL * panel + above * d * VL, sum);
            narrow_out(v, &s, &job->epilogue, run->pixel, run->rows, out, residual, k, sum);
          }
      }
  return 0;
}

/* The boxes of some images. */
static int images(const aspen_call *c, const planes *planes) {
  conv v;
  workspace s = {0};
  if (setup(&v, c, planes)) return ASPEN_KERNEL_BAD_ARGUMENT;
  for (int i = 0; i < 4; i++)
    if (c->lo[i] >= c->hi[i]) return 0;
  mm_job job = {.a_stride = 1, .b_stride = ASPEN_NR, .b_panel = v.w->strides[1], .out_stride = v.out->strides[1],
                .bias_stride = v.bias ? v.bias->strides[0] : 1, .residual_stride = v.residual ? v.residual->strides[1] : 1,
                .alpha = 1, .one_bias = 1};
  if (FN(mm_prepare)(&job, c->params + 9)) return ASPEN_KERNEL_BAD_ARGUMENT;
  job.epilogue.past = (uint8_t)stores_past(c, 1);
  const int few = planes->all == 1 || (planes->n == 1 && v.folded.all == 1) ? FN(pointwise)(c, &job.epilogue) : -1;
  if (few >= 0) return few;
  if (v.in_scale && FN(epilogue_open)(&v.in_act, c->params[13], aspen_param_f(c, 14), aspen_param_f(c, 15), 0))
    return ASPEN_KERNEL_BAD_ARGUMENT;
  if (narrow_applies(&v, c)) return narrow_conv(&v, c, &job);
  if (lay_out(&v, &s, c->scratch) > c->scratch_bytes) return ASPEN_KERNEL_SCRATCH;
  memset(s.zeros, 0, (size_t)v.in_channels * sizeof(float));

  int64_t rows, columns;
  block_shape(&v, c->hi[2] - c->lo[2], c->hi[3] - c->lo[3], &rows, &columns);
  for (int64_t n = c->lo[0]; n < c->hi[0]; n++)
    for (int64_t oh = c->lo[2]; oh < c->hi[2]; oh += rows)
      for (int64_t ow = c->lo[3]; ow < c->hi[3]; ow += columns)
        all_groups(&v, &s, &job, c, n, oh, min64(rows, c->hi[2] - oh), ow, min64(columns, c->hi[3] - ow));
  return 0;
}

int FN(conv)(const aspen_call *c) {
  if (!is_volume(c)) {
    const int error = images(c, &one_plane);
    stores_done(c);
    return error;
  }
  volume v;
  if (volume_open(&v, c, 16) || c->params[0] < 1) return ASPEN_KERNEL_BAD_ARGUMENT;
  const int64_t channels = c->args[1].dims[1] / c->params[0];
  const int folds = c->params[0] == 1 && channels < FEW_CHANNELS && c->params[2] > 1;
  v.plane_weights = folds ? 0 : c->params[1] * c->params[2] * channels * ASPEN_NR;
  int error = 0;
  while (!error && volume_next(&v)) error = images(&v.call, &v.planes);
  stores_done(c);
  return error;
}
