/* DEFORM: the input of a deformable convolution, laid out so that a convolution of single pixels does the rest. For each pixel of output,
 * tap by tap, it has the channels at the tap's place, which its offset moves between pixels, times its mask.
 */
#include <math.h>

#include "vector/nd.h"
#include "sampling/sample.h"

#define LINE 256 /* channels at a time that do not lie side by side in the result */

typedef struct {
  int64_t groups, parts, taps, kernel[2], stride[2], dilation[2], pad[2];
  int64_t inner, shared; /* channels of a group, of a part that shares offsets */
} window;

/* The four pixels around a place, as far as they lie in the image, and their weights; returns how many. */
INLINE int around(const aspen_arg *x, float row, float column, float factor, int64_t *offset, float *weight) {
  const int64_t height = x->dims[2], width = x->dims[3];
  if (!(row > -1 && row < (float)height && column > -1 && column < (float)width)) return 0;
  const float top = floorf(row), left = floorf(column), down = row - top, right = column - left;
  const int64_t i = (int64_t)top, j = (int64_t)left;
  const float rows[2] = {1 - down, down}, columns[2] = {1 - right, right};
  int n = 0;
  for (int a = 0; a < 2; a++)
    for (int b = 0; b < 2; b++)
      if (i + a >= 0 && i + a < height && j + b >= 0 && j + b < width) {
        offset[n] = (i + a) * x->strides[2] + (j + b) * x->strides[3];
        weight[n++] = rows[a] * columns[b] * factor;
      }
  return n;
}

/* n channels of a place, side by side in the image and in the result where they are so. */
INLINE void copy_channels(const aspen_arg *x, const aspen_arg *out, const float *from, float *to, const int64_t *offset, const float *weight,
                          int taps, int64_t n) {
  const int64_t step = x->strides[1], along = out->strides[1];
  if (step != 1 && n > 1) {
    sample_strided(to, along, from, step, offset, weight, taps, n);
  } else if (along == 1 || n == 1) {
    if (taps == 4) sample_channels(to, from, offset, weight, 4, n);
    else sample_channels(to, from, offset, weight, taps, n);
  } else {
    float line[LINE] __attribute__((aligned(64)));
    for (int64_t c = 0; c < n; c += LINE) {
      const int64_t m = nd_min(LINE, n - c);
      sample_channels(line, from + c, offset, weight, taps, m);
      nd_copy_row((char *)(to + c * along), along * 4, (const char *)line, 4, m, 4);
    }
  }
}

/* The box's channels of one pixel. A run of channels has one group, one tap and one offset. */
static void pixel(const aspen_call *c, const window *w, const float *x, const float *offsets, const float *mask, float *to, int64_t row,
                  int64_t column) {
  const aspen_arg *out = &c->args[0], *in = &c->args[1], *moved = &c->args[2], *factors = &c->args[3];
  const int64_t group_channels = w->taps * w->inner;
  for (int64_t k = c->lo[1], n; k < c->hi[1]; k += n, to += n * out->strides[1]) {
    const int64_t tap = k / w->inner % w->taps, inner = k % w->inner, channel = k / group_channels * w->inner + inner;
    const int64_t part = channel / w->shared, at = part * w->taps + tap;
    n = nd_min(nd_min(w->inner - inner, w->shared - channel % w->shared), c->hi[1] - k);
    const float y = (float)(row * w->stride[0] - w->pad[0] + tap / w->kernel[1] * w->dilation[0]) + offsets[2 * at * moved->strides[1]];
    const float z = (float)(column * w->stride[1] - w->pad[1] + tap % w->kernel[1] * w->dilation[1]) + offsets[(2 * at + 1) * moved->strides[1]];
    int64_t offset[4];
    float weight[4];
    const int taps = around(in, y, z, mask ? mask[at * factors->strides[1]] : 1, offset, weight);
    copy_channels(in, out, x + channel * in->strides[1], to, offset, weight, taps, n);
  }
}

int FN(deform)(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *x = &c->args[1], *offsets = &c->args[2], *mask = &c->args[3];
  const int masked = c->n_inputs > 2 && mask->dtype != ASPEN_DT_NONE;
  if (out->dtype != ASPEN_DT_F32 || x->dtype != ASPEN_DT_F32 || offsets->dtype != ASPEN_DT_F32 || (masked && mask->dtype != ASPEN_DT_F32) ||
      out->rank != 4 || x->rank != 4)
    return ASPEN_KERNEL_BAD_ARGUMENT;
  window w = {.groups = c->params[0], .parts = c->params[1], .taps = c->params[2] * c->params[3]};
  for (int a = 0; a < 2; a++) {
    w.kernel[a] = c->params[2 + a], w.stride[a] = c->params[4 + a];
    w.dilation[a] = c->params[6 + a], w.pad[a] = c->params[8 + a];
  }
  w.inner = x->dims[1] / w.groups, w.shared = x->dims[1] / w.parts;
  if (w.inner < 1 || w.shared < 1) return ASPEN_KERNEL_BAD_ARGUMENT;
  for (int64_t n = c->lo[0]; n < c->hi[0]; n++)
    for (int64_t i = c->lo[2]; i < c->hi[2]; i++)
      for (int64_t j = c->lo[3]; j < c->hi[3]; j++) {
        const float *from = (const float *)offsets->ptr + n * offsets->strides[0] + i * offsets->strides[2] + j * offsets->strides[3];
        const float *factor = masked ? (const float *)mask->ptr + n * mask->strides[0] + i * mask->strides[2] + j * mask->strides[3] : NULL;
        float *to = (float *)out->ptr + n * out->strides[0] + c->lo[1] * out->strides[1] + i * out->strides[2] + j * out->strides[3];
        pixel(c, &w, (const float *)x->ptr + n * x->strides[0], from, factor, to, i, j);
      }
  return ASPEN_KERNEL_OK;
}
