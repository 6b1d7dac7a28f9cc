/* SCORES and LABELS: results of classifiers and regressors of ai.onnx.ml from a row's scores. */
#include <math.h>

#include "elementwise/act.h"
#include "vector/nd.h"
#include "vector/wide.h"

#define FLAT 1024 /* values at a time, of whole rows */

enum { NONE, LOGISTIC, SOFTMAX, SOFTMAX_ZERO, PROBIT };
enum { ONE_MINUS = 1, MINUS };
enum { ARGMAX, ABOVE, VOTES };

INLINE double score_at(const aspen_arg *s, int64_t row, int64_t column) {
  const int64_t at = row * s->strides[0] + column * s->strides[1];
  return s->dtype == ASPEN_DT_F32 ? (double)((const float *)s->ptr)[at] : ((const double *)s->ptr)[at];
}

INLINE int64_t rows_at_a_time(int64_t columns) { return columns > 0 && columns < FLAT ? FLAT / columns : 1; }

/* sqrt(2) erfinv(2 p - 1), by Winitzki's formula with onnxruntime's constants; in f64, because it cancels where p is about a half. */
static void probit(float *v, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    const double x = 2 * (double)v[i] - 1, left = (1 - x) * (1 + x);
    const double log = left > 0 ? wide_log(left) : left == 0 ? -INFINITY : NAN;
    const double a = 2 / (3.14159 * 0.147) + 0.5 * log, b = log / 0.147;
    const double y = sqrt(2.0) * sqrt(sqrt(a * a - b) - a);
    v[i] = (float)(x < 0 ? -y : y);
  }
}

/* Each of n rows of m values less its greatest, or that itself where `zeros` says so, through exp and over the sum. */
static void softmax(float *v, float *e, int64_t n, int64_t m, int zeros) {
  for (int64_t r = 0; r < n; r++) {
    float *row = v + r * m, greatest = -INFINITY;
    for (int64_t k = 0; k < m; k++) greatest = row[k] > greatest ? row[k] : greatest;
    for (int64_t k = 0; k < m; k++) e[r * m + k] = zeros && !(fabsf(row[k]) > 1e-7f) ? -greatest : row[k] - greatest;
  }
  FN(act)(ASPEN_U_EXP, 0, 0, e, e, n * m);
  for (int64_t r = 0; r < n; r++) {
    float *row = v + r * m, sum = 0;
    for (int64_t k = 0; k < m; k++) {
      const int small = zeros && !(fabsf(row[k]) > 1e-7f); /* takes no part, and stays about zero */
      row[k] = small ? row[k] * e[r * m + k] : e[r * m + k];
      if (!small) sum += row[k];
    }
    for (int64_t k = 0; k < m; k++) row[k] /= sum;
  }
}

static void transform(float *v, float *more, int64_t n, int64_t m, int64_t which) {
  if (which == LOGISTIC) FN(act)(ASPEN_U_SIGMOID, 0, 0, v, v, n * m);
  if (which == SOFTMAX || which == SOFTMAX_ZERO) softmax(v, more, n, m, which == SOFTMAX_ZERO);
  if (which == PROBIT) probit(v, n * m);
}

#ifdef ISA_PORTABLE
size_t aspen_scratch_scores(const aspen_call *c) {
  const int64_t m = c->args[0].rank == 2 ? c->args[0].dims[1] : 0;
  return (size_t)(2 * rows_at_a_time(m) * m) * sizeof(float);
}
size_t aspen_scratch_labels(const aspen_call *c) { return c->params[0] == VOTES ? (size_t)c->args[2].dims[0] * sizeof(int32_t) : 0; }
#endif

int FN(scores)(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *s = &c->args[1];
  if (out->rank != 2 || s->rank != 2 || out->dtype != ASPEN_DT_F32) return ASPEN_KERNEL_BAD_ARGUMENT;
  const int64_t m = out->dims[1], block = rows_at_a_time(m), second = c->params[1];
  if (c->scratch_bytes < (size_t)(2 * block * m) * sizeof(float)) return ASPEN_KERNEL_SCRATCH;
  float *v = c->scratch, *more = v + block * m;
  for (int64_t r = c->lo[0], n; r < c->hi[0]; r += n) {
    n = nd_min(block, c->hi[0] - r);
    for (int64_t i = 0; i < n; i++)
      for (int64_t k = 0; k < m; k++) {
        const float x = (float)score_at(s, r + i, second ? 0 : k);
        v[i * m + k] = !second || k ? x : second == MINUS ? -x : 1 - x;
      }
    transform(v, more, n, m, c->params[0]);
    for (int64_t i = 0; i < n; i++)
      for (int64_t k = c->lo[1]; k < c->hi[1]; k++) ((float *)out->ptr)[(r + i) * out->strides[0] + k * out->strides[1]] = v[i * m + k];
  }
  return ASPEN_KERNEL_OK;
}

/* The class that most pairs of classes vote for, the first of equal ones. */
static int64_t elected(const aspen_arg *s, int64_t row, int32_t *votes, int64_t classes) {
  memset(votes, 0, (size_t)classes * sizeof *votes);
  int64_t best = 0, pair = 0;
  for (int64_t i = 0; i < classes; i++)
    for (int64_t j = i + 1; j < classes; j++) votes[score_at(s, row, pair++) > 0 ? i : j]++;
  for (int64_t k = 1; k < classes; k++) best = votes[k] > votes[best] ? k : best;
  return best;
}

static int64_t greatest(const aspen_arg *s, int64_t row) {
  int64_t best = 0;
  double most = score_at(s, row, 0);
  for (int64_t k = 1; k < s->dims[1]; k++) {
    const double x = score_at(s, row, k);
    if (x > most) best = k, most = x;
  }
  return best;
}

int FN(labels)(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *s = &c->args[1], *table = &c->args[2];
  const int64_t mode = c->params[0], column = c->params[1], classes = table->dims[0];
  const double threshold = aspen_param_f(c, 2);
  if (out->rank != 1 || s->rank != 2 || out->dtype != ASPEN_DT_I64 || s->dims[1] < 1) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (mode == VOTES && c->scratch_bytes < (size_t)classes * sizeof(int32_t)) return ASPEN_KERNEL_SCRATCH;
  for (int64_t r = c->lo[0]; r < c->hi[0]; r++) {
    const int64_t k = mode == ARGMAX ? greatest(s, r) : mode == ABOVE ? score_at(s, r, column) > threshold : elected(s, r, c->scratch, classes);
    ((int64_t *)out->ptr)[r * out->strides[0]] = ((const int64_t *)table->ptr)[k * table->strides[0]];
  }
  return ASPEN_KERNEL_OK;
}
