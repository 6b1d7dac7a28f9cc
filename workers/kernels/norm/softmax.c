/* SOFTMAX and LogSoftmax over one axis: maximum, sum of exp(x - maximum), result. The first two always cover the whole axis. */
#include <math.h>

#include "elementwise/functions.h"
#include "vector/lanes.h"
#include "vector/vmath.h"

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

/* ---- f64: rows in blocks of FLAT elements; of longer rows a part at a time ---- */

#define FLAT 512
#define SUMS 8 /* side by side */

/* The greatest of n elements, or NaN where one is. */
static double greatest_f64(const char *x, int64_t step, int64_t n) {
  double most = -INFINITY;
  for (int64_t i = 0; i < n; i++) {
    const double v = *(const double *)(x + i * step);
    most = (v > most) | (v != v) ? v : most;
  }
  return most;
}

/* e = x - most of elements [from, to) of a row. */
static void centre_f64(double *e, const char *x, int64_t step, int64_t from, int64_t to, double most) {
  for (int64_t i = from; i < to; i++) e[i - from] = *(const double *)(x + i * step) - most;
}

/* Term i goes to sum i % SUMS: the same order for any row of n elements. */
static double sum_f64(const double *e, int64_t n, double sums[SUMS]) {
  for (int64_t i = 0; i < n; i++) sums[i % SUMS] += e[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

/* Elements [lo, hi) of `rows` <= FLAT / n rows, `across` apart: 0 output, 1 input. */
static void softmax_few_f64(int log_of, const char *in, char *out, const int64_t along[2], const int64_t across[2], int64_t rows, int64_t n,
                            int64_t lo, int64_t hi) {
  double e[FLAT], most[FLAT];
  for (int64_t r = 0; r < rows; r++) {
    most[r] = greatest_f64(in + r * across[1], along[1], n);
    centre_f64(e + r * n, in + r * across[1], along[1], 0, n, most[r]);
  }
  FN(exp_f64)(e, e, rows * n);
  for (int64_t r = 0; r < rows; r++) {
    double sums[SUMS] = {0};
    const double total = sum_f64(e + r * n, n, sums), last = log_of ? log(total) : 0;
    const char *x = in + r * across[1];
    for (int64_t i = lo; i < hi; i++)
      *(double *)(out + r * across[0] + i * along[0]) = log_of ? (*(const double *)(x + i * along[1]) - most[r]) - last : e[r * n + i] / total;
  }
}

static void softmax_long_f64(int log_of, const char *in, char *out, const int64_t along[2], int64_t n, int64_t lo, int64_t hi) {
  double e[FLAT], sums[SUMS] = {0}, total = 0;
  const double most = greatest_f64(in, along[1], n);
  for (int64_t at = 0, end; at < n; at = end) {
    end = nd_min(at + FLAT, n);
    centre_f64(e, in, along[1], at, end, most);
    FN(exp_f64)(e, e, end - at);
    total = sum_f64(e, end - at, sums);
  }
  const double last = log_of ? log(total) : 0;
  for (int64_t at = lo, end; at < hi; at = end) {
    end = nd_min(at + FLAT, hi);
    centre_f64(e, in, along[1], at, end, most);
    if (!log_of) FN(exp_f64)(e, e, end - at);
    for (int64_t i = at; i < end; i++) *(double *)(out + i * along[0]) = log_of ? e[i - at] - last : e[i - at] / total;
  }
}

int FN(softmax)(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *in = &c->args[1];
  const int axis = (int)c->params[0], log = c->params[1] != 0, wide = in->dtype == ASPEN_DT_F64;
  const int64_t size = wide ? 8 : 4;
  if (out->dtype != in->dtype || (in->dtype != ASPEN_DT_F32 && !wide) || axis < 0 || axis >= in->rank) return ASPEN_KERNEL_BAD_ARGUMENT;
  nd nest, kept;
  if (!lanes_nest(&nest, in, 1ull << axis)) return ASPEN_KERNEL_OK;
  nd_begin(&kept, 2); /* the input first: its order is the one to walk in */
  kept.ptr[0] = in->ptr;
  kept.ptr[1] = out->ptr;
  for (int a = 0; a < in->rank; a++) {
    const int64_t strides[2] = {in->strides[a] * size, out->strides[a] * size};
    if (a == axis) continue;
    kept.ptr[0] += c->lo[a] * strides[0];
    kept.ptr[1] += c->lo[a] * strides[1];
    nd_add_axis(&kept, c->hi[a] - c->lo[a], strides);
  }
  const int64_t n = in->dims[axis], lo = c->lo[axis], hi = c->hi[axis];
  const int64_t along[2] = {out->strides[axis] * size, in->strides[axis] * size};
  if (lo >= hi || !nd_order(&kept)) return ASPEN_KERNEL_OK;
  const int64_t rows = nd_row(&kept), across[2] = {nd_step(&kept, 1), nd_step(&kept, 0)};
  /* By the tensor's stride alone, so that every tile takes the same way. */
  const int contiguous = along[1] == 4;
  do {
    const char *p = kept.ptr[0];
    char *o = kept.ptr[1];
    const int64_t few = n > FLAT ? 1 : FLAT / n; /* rows at once */
    for (int64_t i = 0; wide && i < rows; i += few) {
      const char *x = p + i * across[1];
      char *y = o + i * across[0];
      if (n > FLAT) softmax_long_f64(log, x, y, along, n, lo, hi);
      else softmax_few_f64(log, x, y, along, across, nd_min(few, rows - i), n, lo, hi);
    }
    for (int64_t i = 0; !wide && i < rows; i += contiguous ? 1 : COLUMNS) {
      const char *pi = p + i * across[1];
      if (contiguous) softmax_row(log, &nest, pi - in->ptr, pi, o + i * across[0], along[0], n, lo, hi);
      else softmax_columns(log, &nest, pi - in->ptr, pi, o + i * across[0], along, across, nd_min(COLUMNS, rows - i), lo, hi);
    }
  } while (nd_next(&kept));
  return ASPEN_KERNEL_OK;
}
