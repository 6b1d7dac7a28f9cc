/* PAD: rows of the box, each a part before, a part inside and a part after the input. */
#include "vector/nd.h"
#include "vector/vec.h"

/* The input index that stands at position i (relative to the input's start) of a padded axis of n elements; -1: the fill value. */
static inline int64_t padded_index(int mode, int64_t i, int64_t n) {
  if (i >= 0 && i < n) return i;
  if (n <= 0 || mode == ASPEN_PAD_CONSTANT) return -1;
  if (mode == ASPEN_PAD_EDGE) return i < 0 ? 0 : n - 1;
  if (mode == ASPEN_PAD_WRAP) return (i % n + n) % n;
  if (n == 1) return 0;
  const int64_t period = 2 * (n - 1); /* reflect: there and back without repeating the ends */
  i = (i % period + period) % period;
  return i < n ? i : period - i;
}

int FN(pad)(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *in = &c->args[1], *value = &c->args[2];
  const int mode = (int)c->params[0];
  const size_t size = nd_size(out->dtype);
  const int64_t unit = (int64_t)size;
  if (in->dtype != out->dtype || in->rank != out->rank || !size || out->dtype == ASPEN_DT_OBJECT) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (mode < ASPEN_PAD_CONSTANT || mode > ASPEN_PAD_WRAP) return ASPEN_KERNEL_BAD_ARGUMENT;
  _Alignas(16) char fill[16] = {0};
  if (c->n_inputs > 1 && value->dtype != ASPEN_DT_NONE) {
    if (value->dtype != out->dtype) return ASPEN_KERNEL_BAD_ARGUMENT;
    memcpy(fill, value->ptr, size);
  }
  /* The output's axes, outermost first. Unlike elsewhere they stay apart: each has its own map to the input. */
  int rank = 0, axis[ASPEN_MAX_RANK];
  for (int a = 0; a < out->rank; a++) {
    if (c->hi[a] <= c->lo[a]) return ASPEN_KERNEL_OK;
    int k = rank++;
    for (; k > 0 && nd_abs(out->strides[axis[k - 1]]) < nd_abs(out->strides[a]); k--) axis[k] = axis[k - 1];
    axis[k] = a;
  }
  char *o = nd_origin(c, out);
  if (rank == 0) {
    nd_copy_row(o, 0, in->ptr, 0, 1, size);
    return ASPEN_KERNEL_OK;
  }
  const int inner = axis[rank - 1];
  const int64_t so = out->strides[inner] * unit, si = in->strides[inner] * unit, n = in->dims[inner];
  const int64_t first = c->lo[inner] - c->params[2 + inner], row = c->hi[inner] - c->lo[inner]; /* first: relative to the input */
  const int64_t head = nd_min(row, nd_max(0, -first)), body = nd_max(0, nd_min(row, n - first) - head);
  int64_t index[ASPEN_MAX_RANK] = {0};
  for (;;) {
    const char *p = in->ptr;
    int inside = 1;
    for (int k = 0; k < rank - 1; k++) {
      const int a = axis[k];
      const int64_t i = padded_index(mode, c->lo[a] + index[k] - c->params[2 + a], in->dims[a]);
      if (i < 0) inside = 0;
      else p += i * in->strides[a] * unit;
    }
    if (!inside) {
      nd_copy_row(o, so, fill, 0, row, size);
    } else {
      if (body) nd_copy_row(o + head * so, so, p + (first + head) * si, si, body, size);
      for (int64_t j = 0; j < row; j++) {
        if (j == head) j += body;
        if (j == row) break;
        const int64_t i = padded_index(mode, first + j, n);
        nd_copy_row(o + j * so, so, i < 0 ? fill : p + i * si, 0, 1, size);
      }
    }
    int k = rank - 2;
    for (; k >= 0; k--) {
      const int a = axis[k];
      o += out->strides[a] * unit;
      if (++index[k] < c->hi[a] - c->lo[a]) break;
      o -= out->strides[a] * unit * index[k];
      index[k] = 0;
    }
    if (k < 0) return ASPEN_KERNEL_OK;
  }
}
