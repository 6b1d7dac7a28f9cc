/* BCONV: convolutions in one group, over two axes, of images and weights rounded to bf16 and summed in f32. Image, output and residual may
 * be stored as bf16.
 *
 * The input of a block of pixels is rounded into scratch memory, pixel by pixel in pairs of channels, with its margin of zeros. Then each
 * tap of a window is a run of pairs, and runs lie evenly. Where strides leave gaps the copy keeps only rows and columns that are read. A
 * tile that has the pixels of the one before, and other channels of output, finds them rounded. A prologue (scale, shift and activation of
 * the input) is computed on the way into the copy.
 *
 * Loops: image, block of pixels (bounded so that the copy stays in L2), panels of ASPEN_NR channels, lines of pixels, rows of the
 * micro-kernel.
 */
#include "gemm/bf16.h"
#include "conv/copied_axis.h"
#include "vector/half_lanes.h"

#define COPY_BYTES (256 << 10) /* of a block, about */

/* The block whose input is in scratch: its image and its pixels of output. */
typedef struct cached {
  const char *image;
  int64_t lo[2], hi[2];
} cached;
#define CACHED_BYTES 64 /* at the beginning of scratch */
_Static_assert(sizeof(cached) <= CACHED_BYTES, "");

typedef struct bconv {
  const aspen_arg *out, *x, *w, *bias, *residual;
  const float *in_scale, *in_shift; /* the prologue: of all input channels, or NULL */
  epilogue in_act;
  window axes[2];  /* rows and columns */
  int64_t pixel;   /* words of one, in the copy */
} bconv;

static int64_t copy_bytes(const bconv *v, int64_t rows, int64_t columns) {
  return copy_axis(&v->axes[0], rows).size * copy_axis(&v->axes[1], columns).size * v->pixel * 4;
}

/* Rows and columns of a block of pixels, for a box of `height` x `width`. */
static void block_shape(const bconv *v, int64_t height, int64_t width, int64_t *rows, int64_t *columns) {
  *rows = height, *columns = width;
  while (*rows > 1 && copy_bytes(v, *rows, *columns) > COPY_BYTES) *rows = (*rows + 1) / 2;
  while (*columns > MM_MAX_ROWS && copy_bytes(v, *rows, *columns) > COPY_BYTES) *columns = max64(MM_MAX_ROWS, (*columns + 1) / 2);
}

static int setup(bconv *v, const aspen_call *c) {
  *v = (bconv){.out = &c->args[0], .x = &c->args[1], .w = &c->args[2]};
  v->bias = c->n_inputs > 2 && c->args[3].dtype ? &c->args[3] : NULL;
  v->residual = c->n_inputs > 3 && c->args[4].dtype ? &c->args[4] : NULL;
  if (v->out->rank != 4 || v->x->rank != 4 || v->w->rank != 3 || (v->bias && v->bias->rank != 1) || (v->residual && v->residual->rank != 4))
    return ASPEN_KERNEL_BAD_ARGUMENT;
  if (!bf16_or_f32(v->out) || !bf16_or_f32(v->x) || (v->residual && !bf16_or_f32(v->residual)) || v->w->dtype != ASPEN_DT_U32)
    return ASPEN_KERNEL_BAD_ARGUMENT;
  const int64_t *p = c->params;
  for (int i = 0; i < 2; i++) {
    v->axes[i] = (window){v->x->dims[2 + i], p[i], p[2 + i], p[4 + i], p[6 + i]};
    if (p[i] < 1 || p[2 + i] < 1 || p[4 + i] < 1) return ASPEN_KERNEL_BAD_ARGUMENT;
  }
  if (epilogue_scale(c, 6, v->x->dims[1], &v->in_scale, &v->in_shift)) return ASPEN_KERNEL_BAD_ARGUMENT;
  v->pixel = bf16_step(v->x->dims[1]);
  return 0;
}

static size_t scratch_of(const bconv *v) {
  return CACHED_BYTES + (size_t)max64(COPY_BYTES, copy_bytes(v, 1, min64(MM_MAX_ROWS, v->out->dims[3])));
}

#ifdef ISA_PORTABLE
size_t aspen_scratch_bconv(const aspen_call *c) {
  bconv v;
  return setup(&v, c) ? 0 : scratch_of(&v);
}
#endif

/* A pixel through the prologue, rounded. */
static void prologue(const bconv *v, const bf16_job *job, uint32_t *to, const char *from) {
  enum { TOGETHER = 4, PART = 8 * TOGETHER * VL };
  const int64_t channels = v->x->dims[1], stride = v->x->strides[1];
  float t[PART] __attribute__((aligned(64)));
  for (int64_t first = 0; first < channels; first += PART) {
    const int64_t n = min64(PART, channels - first);
    for (int64_t c = 0; c < n; c += TOGETHER * VL) {
      vf y[TOGETHER];
#pragma GCC unroll 4
      for (int i = 0; i < TOGETHER; i++) {
        const int64_t at = first + c + i * VL, left = max64(channels - at, 0);
        const vf x = vload_values(from, v->x->dtype == ASPEN_DT_BF16, at * stride, stride, left);
        y[i] = vfma(x, vload_part(v->in_scale + at, left), vload_part(v->in_shift + at, left));
      }
      epilogue_act(&v->in_act, y, TOGETHER);
#pragma GCC unroll 4
      for (int i = 0; i < TOGETHER; i++) vstore(t + c + i * VL, y[i]);
    }
    FN(bf16_round)(job, to + first / 2, t, n);
  }
}

/* n pixels of input, `step` elements apart, in pairs into a row of the copy. */
static void copy_pixels(const bconv *v, const bf16_job *job, uint32_t *to, const char *from, int64_t step, int64_t n) {
  const int64_t channels = v->x->dims[1], stride = v->x->strides[1], bytes = step * bf16_item(v->x);
  if (v->in_scale)
    for (int64_t i = 0; i < n; i++) prologue(v, job, to + i * v->pixel, from + i * bytes);
  else if (stride == 1 && step == channels && 2 * v->pixel == channels)
    FN(bf16_row)(job, to, from, v->x->dtype, 1, n * channels);
  else
    for (int64_t i = 0; i < n; i++) FN(bf16_row)(job, to + i * v->pixel, from + i * bytes, v->x->dtype, stride, channels);
}

/* Positions first, first + 1 … of a row of input, n of them, into a row of the copy; zeros outside the image. */
static void copy_run(const bconv *v, const bf16_job *job, uint32_t *to, const char *row, int64_t first, int64_t n) {
  const int64_t lo = min64(max64(-first, 0), n), hi = max64(min64(v->axes[1].in - first, n), lo), step = v->x->strides[3];
  memset(to, 0, (size_t)(lo * v->pixel) * sizeof *to);
  if (lo < hi) copy_pixels(v, job, to + lo * v->pixel, row + (first + lo) * step * bf16_item(v->x), step, hi - lo);
  memset(to + hi * v->pixel, 0, (size_t)((n - hi) * v->pixel) * sizeof *to);
}

/* Copies the input of pixels [oh, oh + rows) x [ow, ow + columns) of output. */
static void copy_block(const bconv *v, const bf16_job *job, uint32_t *to, const char *image, int64_t oh, int64_t rows, int64_t ow, int64_t columns) {
  const copied_axis vertical = copy_axis(&v->axes[0], rows), horizontal = copy_axis(&v->axes[1], columns);
  const window *down = &v->axes[0], *across = &v->axes[1];
  const int64_t top = window_start(down, oh), left = window_start(across, ow);
  for (int64_t i = 0; i < vertical.size; i++, to += horizontal.size * v->pixel) {
    const int64_t ih = top + (vertical.compact ? i / down->kernel * down->stride + i % down->kernel * down->dilation : i);
    if (ih < 0 || ih >= down->in) {
      memset(to, 0, (size_t)(horizontal.size * v->pixel) * sizeof *to);
      continue;
    }
    const char *row = image + ih * v->x->strides[2] * bf16_item(v->x);
    if (!horizontal.compact) {
      copy_run(v, job, to, row, left, horizontal.size);
      continue;
    }
    for (int64_t q = 0; q < columns; q++)
      for (int64_t k = 0; k < across->kernel; k++)
        copy_run(v, job, to + (q * across->kernel + k) * v->pixel, row, left + q * across->stride + k * across->dilation, 1);
  }
}

/* The pixels of a block in an operand of the epilogue, one after the other: element 0 of the next one, and steps in bytes. */
typedef struct pixel_walk {
  char *at;
  int64_t across, down; /* to the next pixel; from the last one of a line to the first of the next, less `across` */
} pixel_walk;

INLINE pixel_walk walk_from(const aspen_arg *x, int64_t n, int64_t y, int64_t z, int64_t columns) {
  const int64_t item = bf16_item(x), across = x->strides[3] * item, down = x->strides[2] * item;
  return (pixel_walk){x->ptr + n * x->strides[0] * item + y * down + z * across, across, down - columns * across};
}

/* Channels of the box, of a block of pixels that are rounded. */
static void multiply_block(const bconv *v, bf16_job *job, const uint32_t *copy, const aspen_call *c, int64_t n, int64_t oh, int64_t rows, int64_t ow,
                           int64_t columns) {
  const copied_axis vertical = copy_axis(&v->axes[0], rows), horizontal = copy_axis(&v->axes[1], columns);
  const int64_t line = horizontal.size * v->pixel, line_step = vertical.step * line;
  /* The taps of a row of the window are one run. Sums of AMX depend on it, so that for them the block has no say. */
  const int joined = (job->amx ? v->axes[1].dilation : horizontal.tap) == 1 && 2 * v->pixel - v->x->dims[1] <= 1;
  job->runs[0] = v->axes[0].kernel, job->runs[1] = joined ? 1 : v->axes[1].kernel;
  job->pairs = bf16_pairs(v->x->dims[1]) * (joined ? v->axes[1].kernel : 1);
  job->run_step[0] = vertical.tap * line, job->run_step[1] = horizontal.tap * v->pixel;
  job->a_step = horizontal.step * v->pixel;
  const int one = line_step == columns * job->a_step; /* lines lie one behind the other */
  const int64_t lines = one ? 1 : rows, length = one ? rows * columns : columns, blocks = (length + job->most - 1) / job->most, all = lines * blocks;
  const int64_t terms = job->panel / ASPEN_NR, panels = (c->hi[1] + ASPEN_NR - 1) / ASPEN_NR;
  const int64_t share = all > 1 ? job->panel * 4 / all : 0; /* of the next panel, which each block brings nearer */
  float sums[AMX_STRIP * ASPEN_NR] __attribute__((aligned(64))), *made = NULL;
  mm_rows block; /* what is not read is not set */
  block.bias[0] = v->bias ? (const float *)v->bias->ptr : NULL;
  block.next_step = share / terms + 1;
  for (int64_t panel = c->lo[1] / ASPEN_NR; panel < panels; panel++) {
    const int64_t column = panel * ASPEN_NR;
    const uint32_t *b = (const uint32_t *)v->w->ptr + panel * job->panel;
    pixel_walk out = walk_from(v->out, n, oh, ow, columns), residual = walk_from(v->residual ? v->residual : v->out, n, oh, ow, columns);
    int64_t left = columns; /* pixels of the line */
    for (int64_t i = 0; i < all; i++) {
      const int64_t y = i / blocks, at = mm_cut(length, blocks, i % blocks), end = mm_cut(length, blocks, i % blocks + 1);
      block.rows = (int)(end - at);
      block.next = share ? (const char *)(b + job->panel) + i * share : NULL;
      for (int r = 0; r < block.rows; r++) {
        block.out[r] = (float *)out.at, block.residual[r] = v->residual ? (const float *)residual.at : NULL;
        out.at += out.across, residual.at += residual.across;
        if (--left == 0) left = columns, out.at += out.down, residual.at += residual.down;
      }
      const uint32_t *a = copy + y * line_step + at * job->a_step;
      const int strip = job->amx ? amx_strip(length, blocks, i % blocks) : 0;
      if (strip) FN(bf16_strip)(job, strip, a, b, made = sums);
      FN(bf16_block)(job, &block, a, b, made, column, max64(c->lo[1], column), min64(c->hi[1], column + ASPEN_NR));
      if (made) made += block.rows * ASPEN_NR;
    }
  }
}

int FN(bconv)(const aspen_call *c) {
  bconv v;
  if (setup(&v, c)) return ASPEN_KERNEL_BAD_ARGUMENT;
  for (int i = 0; i < 4; i++)
    if (c->lo[i] >= c->hi[i]) return 0;
  bf16_job job = {.finish = {.out_stride = v.out->strides[1], .bias_stride = v.bias ? v.bias->strides[0] : 1,
                              .residual_stride = v.residual ? v.residual->strides[1] : 1, .alpha = 1.0f, .one_bias = 1,
                              .half_out = bf16_item(v.out) == 2, .half_residual = v.residual && bf16_item(v.residual) == 2},
                   .panel = v.w->dims[1] * ASPEN_NR};
  FN(bf16_open)(&job, c->params[15]);
  if (FN(mm_prepare)(&job.finish, c->params + 8) || epilogue_scale(c, 4, v.out->dims[1], &job.finish.scale, &job.finish.shift))
    return ASPEN_KERNEL_BAD_ARGUMENT;
  job.finish.epilogue.past = (uint8_t)(!job.finish.half_out && stores_past(c, 1));
  if (v.in_scale && FN(epilogue_open)(&v.in_act, c->params[12], aspen_param_f(c, 13), aspen_param_f(c, 14), 0)) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (c->scratch_bytes < scratch_of(&v)) return ASPEN_KERNEL_SCRATCH;
  cached *const m = c->scratch;
  uint32_t *const copy = (uint32_t *)((char *)c->scratch + CACHED_BYTES);
  if (!c->again) *m = (cached){0};
  int64_t rows, columns;
  block_shape(&v, c->hi[2] - c->lo[2], c->hi[3] - c->lo[3], &rows, &columns);
  for (int64_t n = c->lo[0]; n < c->hi[0]; n++)
    for (int64_t oh = c->lo[2]; oh < c->hi[2]; oh += rows)
      for (int64_t ow = c->lo[3]; ow < c->hi[3]; ow += columns) {
        const int64_t height = min64(rows, c->hi[2] - oh), width = min64(columns, c->hi[3] - ow);
        const char *image = v.x->ptr + n * v.x->strides[0] * bf16_item(v.x);
        if (m->image != image || m->lo[0] != oh || m->lo[1] != ow || m->hi[0] != oh + height || m->hi[1] != ow + width)
          copy_block(&v, &job, copy, image, oh, height, ow, width);
        *m = (cached){image, {oh, ow}, {oh + height, ow + width}};
        multiply_block(&v, &job, copy, c, n, oh, height, ow, width);
      }
  amx_done(job.amx);
  stores_done(c);
  return 0;
}
