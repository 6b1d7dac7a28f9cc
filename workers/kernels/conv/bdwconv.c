/* DWCONV of images where input, output or residual are stored as bf16; the sums are those of dwconv.c.
 *
 * Where kernel and stride are common ones and channels lie side by side, neighbours of two output rows share each load (depthwise.h). They
 * go by blocks of channels, whose lines of input stay in L1 from one row of windows to the next. Everything else goes pixel by pixel.
 */
#include "conv/depthwise.h"
#include "vector/epilogue.h"
#include "dispatch/isa.h"

#define CHANNELS 128 /* of a block */
#define COLUMNS 28   /* of output, whose input stays in L1: of CHANNELS, and a kernel of 3 x 3 */

typedef struct depthwise_call {
  const aspen_arg *out, *x, *w, *bias, *residual;
  window rows, columns;
  int64_t multiplier; /* channel c of output is made of channel c / multiplier of input */
  int half_in, half_out, half_residual, with;
  epilogue epilogue;
  const float *scale, *shift;
} depthwise_call;

static int setup(depthwise_call *d, const aspen_call *c) {
  const int64_t *p = c->params;
  *d = (depthwise_call){.out = &c->args[0], .x = &c->args[1], .w = &c->args[2], .with = aspen_isa_bf16(OWN_ISA)};
  d->bias = c->n_inputs > 2 && c->args[3].dtype ? &c->args[3] : NULL;
  d->residual = c->n_inputs > 3 && c->args[4].dtype ? &c->args[4] : NULL;
  const aspen_arg *values[] = {d->out, d->x, d->residual};
  for (int i = 0; i < 3; i++)
    if (values[i] && (values[i]->rank != 4 || (values[i]->dtype != ASPEN_DT_F32 && values[i]->dtype != ASPEN_DT_BF16))) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (d->w->rank != 2 || d->w->dtype != ASPEN_DT_F32 || (d->bias && d->bias->rank != 1)) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (p[1] < 1 || p[2] < 1 || p[3] < 1 || p[4] < 1 || d->x->dims[1] < 1 || d->out->dims[1] < d->x->dims[1]) return ASPEN_KERNEL_BAD_ARGUMENT;
  d->rows = (window){d->x->dims[2], p[1], p[3], p[5], p[7]}, d->columns = (window){d->x->dims[3], p[2], p[4], p[6], p[8]};
  d->multiplier = d->out->dims[1] / d->x->dims[1];
  d->half_in = d->x->dtype == ASPEN_DT_BF16, d->half_out = d->out->dtype == ASPEN_DT_BF16;
  d->half_residual = d->residual && d->residual->dtype == ASPEN_DT_BF16;
  if (FN(epilogue_open)(&d->epilogue, p[9], aspen_param_f(c, 10), aspen_param_f(c, 11), p[12])) return ASPEN_KERNEL_BAD_ARGUMENT;
  return epilogue_scale(c, 4, d->out->dims[1], &d->scale, &d->shift);
}

/* Element 0 of a pixel. */
INLINE int64_t pixel_at(const aspen_arg *a, int64_t n, int64_t y, int64_t z) { return n * a->strides[0] + y * a->strides[2] + z * a->strides[3]; }

INLINE void add_residual(const depthwise_call *d, const int R, const int P, vf *sum, int64_t n, int64_t oh, int64_t ow, int64_t c, int64_t left) {
  const int64_t stride = d->residual->strides[1];
#pragma GCC unroll 2
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int p = 0; p < P; p++)
      sum[r * P + p] += vload_values(d->residual->ptr, d->half_residual, pixel_at(d->residual, n, oh + r, ow + p) + c * stride, stride, left);
}

/* Finishes the sums of R x P pixels, VL channels from c on, of which `left` remain, and stores them. unit: channels of output lie side by
 * side, and all VL are there. */
INLINE void finish(const depthwise_call *d, const int R, const int P, const int unit, vf *sum, int64_t n, int64_t oh, int64_t ow, int64_t c,
                   int64_t left) {
  if (d->bias) {
    const int64_t stride = d->bias->strides[0];
    const vf bias = vload_values(d->bias->ptr, 0, c * stride, stride, left);
#pragma GCC unroll 16
    for (int i = 0; i < R * P; i++) sum[i] += bias;
  }
  if (d->residual && !d->epilogue.residual_last) add_residual(d, R, P, sum, n, oh, ow, c, left);
  epilogue_act(&d->epilogue, sum, R * P);
  if (d->scale) {
    const vf scale = vload_part(d->scale + c, left), shift = vload_part(d->shift + c, left);
#pragma GCC unroll 16
    for (int i = 0; i < R * P; i++) sum[i] = vfma(sum[i], scale, shift);
  }
  if (d->residual && d->epilogue.residual_last) add_residual(d, R, P, sum, n, oh, ow, c, left);
  const int64_t stride = d->out->strides[1], down = d->out->strides[2], across = d->out->strides[3], at = pixel_at(d->out, n, oh, ow) + c * stride;
  char *const out = d->out->ptr;
  const int with = d->with;
#define EACH_PIXEL _Pragma("GCC unroll 2") for (int r = 0; r < R; r++) _Pragma("GCC unroll 8") for (int p = 0; p < P; p++)
  if (!unit)
    EACH_PIXEL vstore_values(out, d->half_out, with, at + r * down + p * across, stride, sum[r * P + p], left);
  else if (d->half_out && with)
    EACH_PIXEL vstore_halves(1, (uint16_t *)out + at + r * down + p * across, sum[r * P + p]);
  else
    EACH_PIXEL vstore_values(out, d->half_out, 0, at + r * down + p * across, 1, sum[r * P + p], VL);
#undef EACH_PIXEL
}

/* Channels c, c + 1 … of a pixel of input, those that `left` channels of output are made of. */
INLINE vf seen(const depthwise_call *d, int64_t at, int64_t c, int64_t left) {
  const int64_t stride = d->x->strides[1];
  if (d->multiplier == 1) return vload_values(d->x->ptr, d->half_in, at + c * stride, stride, left);
  float t[VL] __attribute__((aligned(64))) = {0};
  for (int64_t i = 0; i < VL && i < left; i++) {
    const int64_t from = at + (c + i) / d->multiplier * stride;
    t[i] = d->half_in ? bf16_to_f32(((const uint16_t *)d->x->ptr)[from]) : ((const float *)d->x->ptr)[from];
  }
  return vload(t);
}

/* A pixel, channels [c, end), whatever the strides. */
static void any_pixel(const depthwise_call *d, int64_t n, int64_t oh, int64_t ow, int64_t c, int64_t end) {
  int64_t kh[2], kw[2];
  window_taps(&d->rows, oh, &kh[0], &kh[1]);
  window_taps(&d->columns, ow, &kw[0], &kw[1]);
  const int64_t top = window_start(&d->rows, oh), first = window_start(&d->columns, ow), tap = d->w->strides[0], channel = d->w->strides[1];
  for (; c < end; c += VL) {
    vf sum[1] = {vzero()};
    for (int64_t i = kh[0]; i < kh[1]; i++)
      for (int64_t j = kw[0]; j < kw[1]; j++) {
        const int64_t at = pixel_at(d->x, n, top + i * d->rows.dilation, first + j * d->columns.dilation);
        const int64_t w = (i * d->columns.kernel + j) * tap + c * channel;
        sum[0] = vfma(seen(d, at, c, end - c), vload_values(d->w->ptr, 0, w, channel, end - c), sum[0]);
      }
    finish(d, 1, 1, 0, sum, n, oh, ow, c, end - c);
  }
}

/* R rows of DEPTHWISE_PIXELS pixels, whole vectors of channels [c, end). */
INLINE void block(const depthwise_call *d, const int half, const int R, const int K, const int S, int64_t n, int64_t oh, int64_t ow, int64_t c,
                  int64_t end) {
  enum { P = DEPTHWISE_PIXELS };
  const int64_t top = window_start(&d->rows, oh), first = window_start(&d->columns, ow), item = half ? sizeof(uint16_t) : sizeof(float);
  const int64_t across = (P - 1) * S + K, lo = max64(-first, 0), hi = min64(across, d->columns.in - first);
  const float *line[7]; /* of two rows of windows, at most */
  int edge = lo > 0 || hi < across;
#pragma GCC unroll 8
  for (int i = 0; i < (R - 1) * S + K; i++) {
    const int outside = top + i < 0 || top + i >= d->rows.in;
    line[i] = outside ? NULL : (const float *)(d->x->ptr + pixel_at(d->x, n, top + i, first) * item);
    edge |= outside;
  }
  const float *w = (const float *)d->w->ptr;
  for (; c < end; c += VL) {
    vf sum[2 * P];
#pragma GCC unroll 16
    for (int i = 0; i < R * P; i++) sum[i] = vzero();
    if (edge) depthwise_taps(half, R, P, K, K, S, S, 1, sum, line, c, d->x->strides[3], lo, hi, w + c, d->w->strides[0]);
    else depthwise_taps(half, R, P, K, K, S, S, 0, sum, line, c, d->x->strides[3], lo, hi, w + c, d->w->strides[0]);
    finish(d, R, P, 1, sum, n, oh, ow, c, VL);
  }
}

typedef void block_fn(const depthwise_call *, int64_t, int64_t, int64_t, int64_t, int64_t);
#define BLOCK(HALF, K, S, NAME, R)                                                                                                 \
  static void NAME(const depthwise_call *d, int64_t n, int64_t oh, int64_t ow, int64_t c, int64_t end) { block(d, HALF, R, K, S, n, oh, ow, c, end); }
#define BLOCKS(HALF, K, S) BLOCK(HALF, K, S, one_##HALF##_##K##_##S, 1) BLOCK(HALF, K, S, more_##HALF##_##K##_##S, DEPTHWISE_ROWS_##K)
BLOCKS(0, 3, 1) BLOCKS(0, 3, 2) BLOCKS(0, 5, 1) BLOCKS(0, 5, 2)
BLOCKS(1, 3, 1) BLOCKS(1, 3, 2) BLOCKS(1, 5, 1) BLOCKS(1, 5, 2)
/* [half][5 x 5][stride 2][more rows than one] */
#define BOTH(HALF, K, S) {one_##HALF##_##K##_##S, more_##HALF##_##K##_##S}
#define WINDOWS(HALF) {{BOTH(HALF, 3, 1), BOTH(HALF, 3, 2)}, {BOTH(HALF, 5, 1), BOTH(HALF, 5, 2)}}
static block_fn *const blocks[2][2][2][2] = {WINDOWS(0), WINDOWS(1)};

/* Rows of a strip of columns [first, last), channels [c, end): whole vectors in blocks, which at the end make some pixels twice. */
static void strip(const depthwise_call *d, const aspen_call *call, int64_t n, int64_t first, int64_t last, int64_t c, int64_t end) {
  block_fn *const *by = blocks[d->half_in][d->rows.kernel == 5][d->rows.stride == 2];
  const int64_t most = d->rows.kernel == 5 ? DEPTHWISE_ROWS_5 : DEPTHWISE_ROWS_3, whole = c + (end - c) / VL * VL;
  for (int64_t oh = call->lo[2], rows; oh < call->hi[2]; oh += rows) {
    rows = oh + most <= call->hi[2] ? most : 1;
    for (int64_t ow = first; ow < last && c < whole; ow += DEPTHWISE_PIXELS)
      by[rows > 1](d, n, oh, min64(ow, max64(last, call->lo[3] + DEPTHWISE_PIXELS) - DEPTHWISE_PIXELS), c, whole);
    for (int64_t r = 0; r < rows && whole < end; r++)
      for (int64_t ow = first; ow < last; ow++) any_pixel(d, n, oh + r, ow, whole, end);
  }
}

int FN(bdwconv)(const aspen_call *c) {
  depthwise_call d;
  if (setup(&d, c)) return ASPEN_KERNEL_BAD_ARGUMENT;
  for (int i = 0; i < 4; i++)
    if (c->lo[i] >= c->hi[i]) return 0;
  const int unit = d.out->strides[1] == 1 && d.x->strides[1] == 1 && d.w->strides[1] == 1 && d.multiplier == 1;
  const int in_blocks = unit && depthwise_common(&d.rows, &d.columns) && c->hi[3] - c->lo[3] >= DEPTHWISE_PIXELS;
  for (int64_t n = c->lo[0]; n < c->hi[0]; n++) {
    if (!in_blocks)
      for (int64_t oh = c->lo[2]; oh < c->hi[2]; oh++)
        for (int64_t ow = c->lo[3]; ow < c->hi[3]; ow++) any_pixel(&d, n, oh, ow, c->lo[1], c->hi[1]);
    else
      for (int64_t first = c->lo[3]; first < c->hi[3]; first += COLUMNS)
        for (int64_t channel = c->lo[1]; channel < c->hi[1]; channel += CHANNELS)
          strip(&d, c, n, first, min64(first + COLUMNS, c->hi[3]), channel, min64(channel + CHANNELS, c->hi[1]));
  }
  return 0;
}
