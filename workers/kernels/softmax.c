/* SOFTMAX and LogSoftmax over one axis, f32: maximum, sum of exp(x - maximum), result. The first two always cover the whole axis. */
#include <math.h>

#include "lanes.h"
#include "vmath.h"

#define STEP_EXP(acc, x, p) ((acc) + vexp((x) - (p)))
LANES_ROWS(rows_max, -INFINITY, -INFINITY, STEP_MAX, COMBINE_MAX, vhmax)
LANES_ROWS(rows_exp, 0, -INFINITY, STEP_EXP, COMBINE_SUM, vhadd)
LANES_COLUMNS(columns_max, -INFINITY, STEP_MAX, COMBINE_MAX)
LANES_COLUMNS(columns_exp, 0, STEP_EXP, COMBINE_SUM)

/* rows_exp for one contiguous row, keeping the exponentials: the same terms in the same order, so the same sum. */
static float exp_and_sum(float *out, const float *in, int64_t n, float max) {
  const vf vmaximum = vset1(max), fill = vset1(-INFINITY);
  vf a0 = vzero(), a1 = a0, a2 = a0, a3 = a0, total = a0;
  for (int64_t start = 0; start < n; start += LANES_CHUNK) {
    const int64_t stop = nd_min(n, start + LANES_CHUNK);
    int64_t i = start;
    for (; i + 4 * VL <= stop; i += 4 * VL) {
      const vf e0 = vexp(vload(in + i) - vmaximum), e1 = vexp(vload(in + i + VL) - vmaximum);
      const vf e2 = vexp(vload(in + i + 2 * VL) - vmaximum), e3 = vexp(vload(in + i + 3 * VL) - vmaximum);
      vstore(out + i, e0);
      vstore(out + i + VL, e1);
      vstore(out + i + 2 * VL, e2);
      vstore(out + i + 3 * VL, e3);
      a0 = a0 + e0, a1 = a1 + e1, a2 = a2 + e2, a3 = a3 + e3;
    }
    for (; i < stop; i += VL) {
      const vf e = vexp(vload_part_fill(in + i, stop - i, fill) - vmaximum);
      vstore_part(out + i, e, stop - i);
      a0 = a0 + e;
    }
    if (stop - start == LANES_CHUNK) {
      total = total + ((a0 + a1) + (a2 + a3));
      a0 = a1 = a2 = a3 = vzero();
    }
  }
  return vhadd(total + ((a0 + a1) + (a2 + a3)));
}

/* The result of an element: exp(x - max) / sum as a product, or x - max - log(sum). `last` is 1 / sum or log(sum). */
INLINE vf result(int log, vf x, vf max, vf last) { return log ? (x - max) - last : vexp(x - max) * last; }

/* A row that is one vector, with the bits of exp_and_sum and scale. */
static void softmax_vector(float *out, const float *in, int64_t n) {
  const vf x = vload_part_fill(in, n, vset1(-INFINITY)), e = vexp(x - vset1(vhmax(x)));
  vstore_part(out, e * vset1(1 / vhadd(e)), n);
}

static void scale(float *out, int64_t n, float by) {
  const vf v = vset1(by);
  int64_t i = 0;
  for (; i + VL <= n; i += VL) vstore(out + i, vload(out + i) * v);
  if (i < n) vstore_part(out + i, vload_part(out + i, n - i) * v, n - i);
}

/* One row, contiguous in the input. Steps in bytes; [lo, hi) is the part that belongs to the box. */
static void softmax_row(int log, nd *nest, int64_t offset, const char *in, char *out, int64_t so, int64_t n, int64_t lo, int64_t hi) {
  const int whole = !log && so == 4 && lo == 0 && hi == n;
  if (whole && n <= VL) {
    softmax_vector((float *)out, (const float *)in, n);
    return;
  }
  const float max = rows_max(nest, offset, 0);
  if (whole) {
    const float sum = exp_and_sum((float *)out, (const float *)in, n, max);
    scale((float *)out, n, 1 / sum);
    return;
  }
  const float sum = rows_exp(nest, offset, max);
  const vf vmaximum = vset1(max), last = vset1(log ? logf(sum) : 1 / sum);
  for (int64_t i = lo; i < hi; i += COLUMNS) {
    const int64_t m = nd_min(COLUMNS, hi - i);
    vf x[4];
    columns_load(x, in + i * 4, 4, m);
    for (int k = 0; k < 4; k++) x[k] = result(log, x[k], vmaximum, last);
    columns_store(out + i * so, so, x, m);
  }
}

/* m neighbouring rows at once, the axis being strided in the input. along: its steps, across: between the rows (0 output, 1 input). */
static void softmax_columns(int log, nd *nest, int64_t offset, const char *in, char *out, const int64_t along[2], const int64_t across[2],
                            int64_t m, int64_t lo, int64_t hi) {
  vf max[4], last[4], x[4];
  for (int k = 0; k < 4; k++) max[k] = vzero();
  columns_max(max, nest, offset, across[1], m, max);
  columns_exp(last, nest, offset, across[1], m, max);
  if (log) {
    float t[COLUMNS];
    columns_store((char *)t, 4, last, COLUMNS);
    for (int64_t j = 0; j < m; j++) t[j] = logf(t[j]);
    columns_load(last, (const char *)t, 4, COLUMNS);
  } else {
    for (int k = 0; k < 4; k++) last[k] = vset1(1) / last[k];
  }
  for (int64_t i = lo; i < hi; i++) {
    columns_load(x, in + i * along[1], across[1], m);
    for (int k = 0; k < 4; k++) x[k] = result(log, x[k], max[k], last[k]);
    columns_store(out + i * along[0], across[0], x, m);
  }
}

int FN(softmax)(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *in = &c->args[1];
  const int axis = (int)c->params[0], log = c->params[1] != 0;
  if (out->dtype != ASPEN_DT_F32 || in->dtype != ASPEN_DT_F32 || axis < 0 || axis >= in->rank) return ASPEN_KERNEL_BAD_ARGUMENT;
  nd nest, kept;
  if (!lanes_nest(&nest, in, 1ull << axis)) return ASPEN_KERNEL_OK;
  nd_begin(&kept, 2); /* the input first: its order is the one to walk in */
  kept.ptr[0] = in->ptr;
  kept.ptr[1] = out->ptr;
  for (int a = 0; a < in->rank; a++) {
    const int64_t strides[2] = {in->strides[a] * 4, out->strides[a] * 4};
    if (a == axis) continue;
    kept.ptr[0] += c->lo[a] * strides[0];
    kept.ptr[1] += c->lo[a] * strides[1];
    nd_add_axis(&kept, c->hi[a] - c->lo[a], strides);
  }
  const int64_t n = in->dims[axis], lo = c->lo[axis], hi = c->hi[axis];
  const int64_t along[2] = {out->strides[axis] * 4, in->strides[axis] * 4};
  if (lo >= hi || !nd_order(&kept)) return ASPEN_KERNEL_OK;
  const int64_t rows = nd_row(&kept), across[2] = {nd_step(&kept, 1), nd_step(&kept, 0)};
  /* By the tensor's stride alone, so that every tile takes the same way. */
  const int contiguous = along[1] == 4;
  do {
    const char *p = kept.ptr[0];
    char *o = kept.ptr[1];
    for (int64_t i = 0; i < rows; i += contiguous ? 1 : COLUMNS) {
      const char *pi = p + i * across[1];
      if (contiguous) softmax_row(log, &nest, pi - in->ptr, pi, o + i * across[0], along[0], n, lo, hi);
      else softmax_columns(log, &nest, pi - in->ptr, pi, o + i * across[0], along, across, nd_min(COLUMNS, rows - i), lo, hi);
    }
  } while (nd_next(&kept));
  return ASPEN_KERNEL_OK;
}
