/* QCONV: convolutions of images of bytes, summed exactly; out = act(factor S + bias + residual), maybe as bytes again, or S itself.
 *
 * A tile copies its input of an image, with its padding, to scratch memory, pixel by pixel in whole groups of four channels. Then every tap
 * of a window is a run of terms at a fixed distance. Without dilation, those of a row of the window are one run. An image of unsigned bytes
 * and whole groups, with a window of one pixel, is read in place.
 *
 * Loops: images, panels of ASPEN_NR channels, lines of pixels, blocks of neighbouring pixels (int8.h).
 */
#include "bytes/int8.h"

typedef struct window {
  int64_t kernel[2], stride[2], dilation[2], pad[2];
} window;

INLINE window window_of(const int64_t *params) {
  window w;
  for (int i = 0; i < 2; i++) w.kernel[i] = params[i], w.stride[i] = params[2 + i], w.dilation[i] = params[4 + i], w.pad[i] = params[6 + i];
  return w;
}
/* Rows (0) or columns (1) of input that n of output look at. */
INLINE int64_t span(const window *w, int axis, int64_t n) { return (n - 1) * w->stride[axis] + (w->kernel[axis] - 1) * w->dilation[axis] + 1; }
/* Runs of a window. */
INLINE int64_t runs_of(const window *w) { return w->dilation[1] == 1 ? w->kernel[0] : w->kernel[0] * w->kernel[1]; }

/* Copied pixels, what the zero points of columns are multiplied with for each pixel of output, and the runs of a window. */
INLINE size_t scratch_of(const aspen_call *c, const window *w) {
  const int64_t height = c->hi[2] - c->lo[2], width = c->hi[3] - c->lo[3], pixel = int8_groups(c->args[1].dims[1]) * INT8_GROUP;
  return (size_t)(span(w, 0, height) * span(w, 1, width) * pixel + height * width * 4 + runs_of(w) * (int64_t)sizeof(void *)) + 192;
}

#ifdef ISA_PORTABLE
size_t aspen_scratch_qconv(const aspen_call *c) {
  const window w = window_of(c->params + 1);
  return scratch_of(c, &w);
}
#endif

/* Copies n pixels of fewer channels than a group has, side by side. All but the last are read as a group, whose bytes are all there. */
static void copy_few(uint8_t *to, const uint8_t *from, int64_t stride, int64_t n, int64_t channels, uint8_t flip, uint8_t zero) {
  uint8_t mask[INT8_GROUP], change[INT8_GROUP];
  uint32_t kept, changed;
  for (int64_t k = 0; k < INT8_GROUP; k++) mask[k] = k < channels ? 0xff : 0, change[k] = k < channels ? flip : zero;
  memcpy(&kept, mask, sizeof kept), memcpy(&changed, change, sizeof changed);
  for (int64_t i = 0; i + 1 < n; i++, from += stride, to += INT8_GROUP) {
    uint32_t pixel;
    memcpy(&pixel, from, sizeof pixel);
    pixel = (pixel & kept) ^ changed;
    memcpy(to, &pixel, sizeof pixel);
  }
  for (int64_t k = 0; k < INT8_GROUP; k++) to[k] = k < channels ? from[k] ^ flip : zero;
}

/* Copies rows [top, top + height) and columns [left, left + width) of an image, with whole groups of channels. Pixels outside and channels
 * beyond the last are `zero`. */
static void copy_image(uint8_t *to, const aspen_arg *x, const uint8_t *image, int64_t top, int64_t height, int64_t left, int64_t width, int64_t pixel,
                       uint8_t flip, uint8_t zero) {
  const int64_t channels = x->dims[1], stride = x->strides[3];
  const int64_t first = left < 0 ? -left : 0, most = x->dims[3] - left, last = most < width ? most : width; /* columns inside */
  const int dense = x->strides[1] == 1 && stride == channels && pixel == channels;
  for (int64_t row = top; row < top + height; row++, to += width * pixel) {
    if (row < 0 || row >= x->dims[2] || first >= last) {
      memset(to, zero, (size_t)(width * pixel));
      continue;
    }
    const uint8_t *from = image + row * x->strides[2] + (left + first) * stride;
    memset(to, zero, (size_t)(first * pixel));
    if (dense) {
      int8_copy(to + first * pixel, from, 1, (last - first) * pixel, flip);
    } else if (pixel == INT8_GROUP && channels < INT8_GROUP && x->strides[1] == 1 && stride > 0 && stride + channels >= INT8_GROUP) {
      copy_few(to + first * pixel, from, stride, last - first, channels, flip, zero);
    } else {
      for (int64_t i = first; i < last; i++, from += stride) {
        int8_copy(to + i * pixel, from, x->strides[1], channels, flip);
        memset(to + i * pixel + channels, zero, (size_t)(pixel - channels));
      }
    }
    memset(to + last * pixel, zero, (size_t)((width - last) * pixel));
  }
}

/* How the pixels that a tile reads lie, in bytes; `joined` taps are a run. */
typedef struct pixels {
  const uint8_t *base;
  int64_t runs, joined, row_step, column_step, line_step, step; /* line_step, step: between lines and pixels of output */
} pixels;

/* Where run t of a window begins, from the window's own beginning. */
INLINE int64_t run_at(const window *w, const pixels *p, int64_t t) {
  const int64_t row = p->joined > 1 ? t : t / w->kernel[1], column = p->joined > 1 ? 0 : t % w->kernel[1];
  return row * w->dilation[0] * p->row_step + column * w->dilation[1] * p->column_step;
}

/* For each of n pixels of output, in lines of `width`, the sum of its window's elements less as many zero points. */
static void sum_windows(const window *w, const pixels *p, int64_t n, int64_t width, int64_t run_bytes, uint8_t zero, uint32_t *rest) {
  for (int64_t i = 0; i < n; i++) {
    const uint8_t *at = p->base + i / width * p->line_step + i % width * p->step;
    uint32_t sum = 0;
    for (int64_t t = 0; t < p->runs; t++) {
      const uint8_t *run = at + run_at(w, p, t);
      for (int64_t k = 0; k < run_bytes; k++) sum += run[k];
    }
    rest[i] = sum - (uint32_t)(p->runs * run_bytes) * zero;
  }
}

/* Whether its lines of `width` pixels lie one behind the other. */
INLINE int in_line(const aspen_arg *x, int64_t width) { return !x->dtype || x->strides[2] == width * x->strides[3]; }

int FN(qconv)(const aspen_call *c) {
  const aspen_arg none = {0};
  const aspen_arg *out = &c->args[0], *x = &c->args[1], *b = &c->args[2], *more[4] = {&none, &none, &none, &none};
  for (uint32_t i = 2; i < c->n_inputs; i++)
    if (c->args[1 + i].dtype) more[i - 2] = &c->args[1 + i];
  const aspen_arg *bias = more[0], *residual = more[1], *factor = more[2], *zero_point = more[3];
  if (out->rank != 4 || x->rank != 4 || b->rank != 4 || b->dtype != ASPEN_DT_I8 || (x->dtype != ASPEN_DT_I8 && x->dtype != ASPEN_DT_U8) ||
      (bias->dtype && bias->rank != 1) || (residual->dtype && residual->rank != 4) || (factor->dtype && factor->rank != 4) ||
      (zero_point->dtype && zero_point->dtype != x->dtype))
    return ASPEN_KERNEL_BAD_ARGUMENT;
  for (int i = 0; i < 4; i++)
    if (c->lo[i] >= c->hi[i]) return 0;
  const window w = window_of(c->params + 1);
  int8_job job;
  if (FN(int8_open)(&job, out, bias, residual, factor, 1, c->params[0], c->params + 9)) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (c->scratch_bytes < scratch_of(c, &w)) return ASPEN_KERNEL_SCRATCH;

  const int64_t height = c->hi[2] - c->lo[2], width = c->hi[3] - c->lo[3], rows_in = span(&w, 0, height), columns_in = span(&w, 1, width);
  const int64_t channels = x->dims[1], pixel = int8_groups(channels) * INT8_GROUP;
  const int64_t size = job.dtype == ASPEN_DT_F32 || job.dtype == ASPEN_DT_I32 ? 4 : 1;
  const int64_t copied = (rows_in * columns_in * pixel + 63) / 64 * 64, rests = (height * width * 4 + 63) / 64 * 64;
  uint8_t *const copy = c->scratch;
  uint32_t *const rest = (uint32_t *)(copy + copied);
  const uint8_t **const runs = (const uint8_t **)(copy + copied + rests);
  const uint8_t flip = x->dtype == ASPEN_DT_I8 ? 0x80 : 0, zero = (zero_point->dtype ? (uint8_t)*zero_point->ptr : 0) ^ flip;
  const int64_t top = c->lo[2] * w.stride[0] - w.pad[0], left = c->lo[3] * w.stride[1] - w.pad[1];
  const int inside = top >= 0 && left >= 0 && top + rows_in <= x->dims[2] && left + columns_in <= x->dims[3];
  const int in_place = !flip && inside && w.kernel[0] == 1 && w.kernel[1] == 1 && x->strides[1] == 1 && channels == pixel;
  pixels p = {.runs = runs_of(&w), .row_step = in_place ? x->strides[2] : columns_in * pixel, .column_step = in_place ? x->strides[3] : pixel};
  p.joined = w.kernel[0] * w.kernel[1] / p.runs;
  p.line_step = w.stride[0] * p.row_step, p.step = w.stride[1] * p.column_step;
  job.a_step = p.step;
  job.groups = int8_groups(channels) * p.joined;
  job.runs[0] = w.kernel[0], job.runs[1] = w.kernel[1] / p.joined;
  job.run_step[0] = w.dilation[0] * p.row_step, job.run_step[1] = w.dilation[1] * p.column_step;
  job.panel = INT8_HEADER + p.runs * job.groups * INT8_PANEL_GROUP;
  const int one_line = p.line_step == width * p.step && in_line(out, width) && in_line(residual, width) && in_line(factor, width);
  const int64_t lines = one_line ? 1 : height, length = one_line ? height * width : width;

  const int64_t blocks = (length + job.most - 1) / job.most, all = blocks * lines, n_hi = c->hi[1];
  /* of the next panel, which each block brings nearer */
  const int alike = int8_one_factor(out, factor), levels = alike && FN(int8_has_levels)(&job);
  const int64_t residual_step = residual->dtype ? residual->strides[3] : 0;
  const int64_t groups = p.runs * job.groups, share = all > 1 ? job.panel / all / 64 * 64 : 0, next_step = groups ? share / groups : 0;
  int32_t sums[AMX_STRIP * ASPEN_NR] __attribute__((aligned(64))), *made = NULL;
  for (int64_t image = c->lo[0]; image < c->hi[0]; image++) {
    const uint8_t *from = (const uint8_t *)x->ptr + image * x->strides[0];
    p.base = in_place ? from + top * x->strides[2] + left * x->strides[3] : copy;
    if (!in_place) copy_image(copy, x, from, top, rows_in, left, columns_in, pixel, flip, zero);
    if (job.zeros) sum_windows(&w, &p, height * width, width, job.groups * INT8_GROUP, zero, rest);
    for (int64_t n = c->lo[1]; n < n_hi;) { /* panels start at multiples of ASPEN_NR, the box need not */
      const int64_t column = n / ASPEN_NR * ASPEN_NR, last = column + ASPEN_NR < n_hi ? column + ASPEN_NR : n_hi;
      const char *panel = b->ptr + column / ASPEN_NR * job.panel;
      int8_columns columns;
      if (levels) FN(int8_gather)(&columns, &job, panel, column, n, last, (const float *)bias->ptr, (const float *)factor->ptr, zero);
      for (int64_t i = 0, line = 0, of_line = 0, at = 0, end; i < all; i++, of_line++, at = end) {
        if (of_line == blocks) line++, of_line = at = 0;
        end = at + length / blocks + (of_line < length % blocks);
        for (int64_t t = 0; t < p.runs; t++) runs[t] = p.base + line * p.line_step + at * p.step + run_at(&w, &p, t);
        const char *next = all > 1 ? panel + job.panel + i * share : NULL;
        const int strip = job.amx ? amx_strip(length, blocks, of_line) : 0;
        if (strip) FN(int8_strip)(&job, strip, runs[0], panel, made = sums);
        const int64_t y = c->lo[2] + line, z = c->lo[3] + at; /* of a single line z runs on */
        const int8_terms terms = {(int)(end - at), (int)p.runs, runs, next, next_step};
        char *const to = out->ptr + size * (image * out->strides[0] + y * out->strides[2] + z * out->strides[3]);
        if (levels) {
          const int8_pixels block = {terms, made, (uint8_t *)to, int8_pixel(residual, image, y, z), out->strides[3], residual_step};
          FN(int8_levels)(&job, &columns, &block);
        } else {
          int8_rows rows = {.terms = terms, .alike = alike, .sums = made};
          for (int r = 0; r < terms.rows; r++) {
            rows.out[r] = to + r * size * out->strides[3];
            rows.bias[r] = (const float *)bias->ptr;
            rows.residual[r] = int8_pixel(residual, image, y, z + r);
            rows.factor[r] = int8_pixel(factor, image, y, z + r);
            rows.zero[r] = zero;
            rows.rest[r] = job.zeros ? rest[line * length + at + r] : 0;
          }
          FN(int8_block)(&job, &rows, panel, column, n, last);
        }
        if (made) made += terms.rows * ASPEN_NR;
      }
      n = last;
    }
  }
  amx_done(job.amx);
  return 0;
}
