/* NORM: layer and RMS normalisation over the trailing axes, f32. Mean, then variance about it, then the result; the statistics always
 * cover the whole of the normalised axes, the result only the box. */
#include <math.h>

#include "vector/lanes.h"

LANES_ROWS(rows_sum, 0, 0, STEP_SUM, COMBINE_SUM, vhadd)
LANES_ROWS(rows_centred, 0, p, STEP_CENTRED, COMBINE_SUM, vhadd)
LANES_COLUMNS(columns_sum, 0, STEP_SUM, COMBINE_SUM)
LANES_COLUMNS(columns_centred, 0, STEP_CENTRED, COMBINE_SUM)

enum { IN, OUT, SCALE, BIAS, N_ARGS }; /* order in the nests: the input's layout decides the order of walking */

INLINE vf result(vf x, vf mean, vf inverse, vf scale, vf bias, int has_scale, int has_bias) {
  vf y = (x - mean) * inverse;
  if (has_scale && has_bias) return vfma(y, scale, bias);
  if (has_scale) return y * scale;
  if (has_bias) y = y + bias;
  return y;
}

/* m ≤ COLUMNS results whose arguments are `step[k]` bytes apart; mean and inverse given for each. */
INLINE void apply(char *const p[N_ARGS], const int64_t step[N_ARGS], int64_t m, const vf mean[4], const vf inverse[4], int has_scale,
                  int has_bias) {
  vf x[4], scale[4], bias[4];
  columns_load(x, p[IN], step[IN], m);
  for (int k = 0; k < 4; k++) scale[k] = bias[k] = vzero();
  if (has_scale) columns_load(scale, p[SCALE], step[SCALE], m);
  if (has_bias) columns_load(bias, p[BIAS], step[BIAS], m);
  for (int k = 0; k < 4; k++) x[k] = result(x[k], mean[k], inverse[k], scale[k], bias[k], has_scale, has_bias);
  columns_store(p[OUT], step[OUT], x, m);
}

/* n results along a line. mean and inverse are the same for all. */
INLINE void apply_line(char *const p[N_ARGS], const int64_t step[N_ARGS], int64_t n, float mean, float inverse, int has_scale,
                       int has_bias) {
  vf means[4], inverses[4];
  for (int k = 0; k < 4; k++) means[k] = vset1(mean), inverses[k] = vset1(inverse);
  int64_t i = 0;
  const int contiguous = step[OUT] == 4 && step[IN] == 4 && (!has_scale || step[SCALE] == 4) && (!has_bias || step[BIAS] == 4);
  static const int64_t unit[N_ARGS] = {4, 4, 4, 4};
  char *q[N_ARGS];
  if (contiguous)
    for (; i + COLUMNS <= n; i += COLUMNS) {
      for (int k = 0; k < N_ARGS; k++) q[k] = p[k] + i * 4;
      apply(q, unit, COLUMNS, means, inverses, has_scale, has_bias);
    }
  for (; i < n; i += COLUMNS) {
    for (int k = 0; k < N_ARGS; k++) q[k] = p[k] + i * step[k];
    apply(q, step, nd_min(COLUMNS, n - i), means, inverses, has_scale, has_bias);
  }
}

/* The box: axes kept, each combination normalised by itself, and (line) the part of the normalised axes that belongs to the box. */
typedef struct {
  nd kept, line;
  nd nest;       /* all of the normalised axes, for the statistics */
  char *base[N_ARGS];
  float count, eps;
  int rms, has_scale, has_bias;
} norm_plan;

/* One line for each combination of kept indices; the normalised axes are contiguous in the input. */
static void norm_rows(norm_plan *n) {
  const int64_t rows = nd_row(&n->kept), length = nd_row(&n->line);
  int64_t step[N_ARGS];
  char *q[N_ARGS];
  for (int k = 0; k < N_ARGS; k++) step[k] = nd_step(&n->line, k);
  do {
    for (int64_t i = 0; i < rows; i++) {
      int64_t offset[N_ARGS];
      for (int k = 0; k < N_ARGS; k++) offset[k] = n->kept.ptr[k] - n->base[k] + i * nd_step(&n->kept, k);
      const float mean = n->rms ? 0 : rows_sum(&n->nest, offset[IN], 0) / n->count;
      const float variance = rows_centred(&n->nest, offset[IN], mean) / n->count;
      const float inverse = 1 / sqrtf(variance + n->eps);
      do {
        for (int k = 0; k < N_ARGS; k++) q[k] = n->line.ptr[k] + offset[k];
        if (n->has_scale && n->has_bias) apply_line(q, step, length, mean, inverse, 1, 1);
        else apply_line(q, step, length, mean, inverse, n->has_scale, n->has_bias);
      } while (nd_next(&n->line));
    }
  } while (nd_next(&n->kept));
}

/* Up to COLUMNS neighbouring combinations at once. */
static void norm_columns(norm_plan *n) {
  const int64_t rows = nd_row(&n->kept), length = nd_row(&n->line);
  int64_t across[N_ARGS];
  char *q[N_ARGS];
  for (int k = 0; k < N_ARGS; k++) across[k] = nd_step(&n->kept, k);
  do {
    for (int64_t i = 0; i < rows; i += COLUMNS) {
      const int64_t m = nd_min(COLUMNS, rows - i);
      int64_t offset[N_ARGS];
      for (int k = 0; k < N_ARGS; k++) offset[k] = n->kept.ptr[k] - n->base[k] + i * across[k];
      vf mean[4] = {vzero(), vzero(), vzero(), vzero()}, inverse[4];
      if (!n->rms) {
        columns_sum(mean, &n->nest, offset[IN], across[IN], m, mean);
        for (int k = 0; k < 4; k++) mean[k] = mean[k] / vset1(n->count);
      }
      columns_centred(inverse, &n->nest, offset[IN], across[IN], m, mean);
      for (int k = 0; k < 4; k++) inverse[k] = vset1(1) / vsqrt(inverse[k] / vset1(n->count) + vset1(n->eps));
      do {
        for (int64_t j = 0; j < length; j++) {
          for (int k = 0; k < N_ARGS; k++) q[k] = n->line.ptr[k] + offset[k] + j * nd_step(&n->line, k);
          apply(q, across, m, mean, inverse, n->has_scale, n->has_bias);
        }
      } while (nd_next(&n->line));
    }
  } while (nd_next(&n->kept));
}

int FN(norm)(const aspen_call *c) {
  static const aspen_arg absent = {0};
  const aspen_arg *scale = c->n_inputs > 1 ? &c->args[2] : &absent, *bias = c->n_inputs > 2 ? &c->args[3] : &absent;
  const aspen_arg *args[N_ARGS] = {&c->args[1], &c->args[0], scale, bias};
  const int axis = (int)c->params[0], rank = c->args[0].rank;
  norm_plan n = {.rms = c->params[1] == 1,
                 .eps = (float)aspen_param_f(c, 2),
                 .has_scale = args[SCALE]->dtype != ASPEN_DT_NONE,
                 .has_bias = args[BIAS]->dtype != ASPEN_DT_NONE};
  for (int k = 0; k < N_ARGS; k++) {
    if (args[k]->dtype == ASPEN_DT_NONE && k >= SCALE) continue;
    if (args[k]->dtype != ASPEN_DT_F32 || args[k]->rank != rank) return ASPEN_KERNEL_BAD_ARGUMENT;
    n.base[k] = args[k]->ptr;
  }
  if (axis < 0 || axis > rank) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (!lanes_nest(&n.nest, args[IN], ~0ull << axis)) return ASPEN_KERNEL_OK;
  nd_begin(&n.kept, N_ARGS);
  nd_begin(&n.line, N_ARGS);
  memcpy(n.kept.ptr, n.base, sizeof n.base);
  memcpy(n.line.ptr, n.base, sizeof n.base);
  n.count = 1;
  for (int a = 0; a < rank; a++) {
    nd *it = a < axis ? &n.kept : &n.line;
    int64_t strides[N_ARGS];
    for (int k = 0; k < N_ARGS; k++) {
      strides[k] = n.base[k] ? args[k]->strides[a] * 4 : 0;
      it->ptr[k] += c->lo[a] * strides[k];
    }
    nd_add_axis(it, c->hi[a] - c->lo[a], strides);
    if (a >= axis) n.count *= (float)args[IN]->dims[a];
  }
  if (!nd_order(&n.kept) || !nd_order(&n.line)) return ASPEN_KERNEL_OK;
  if (lanes_contiguous(&n.nest)) norm_rows(&n);
  else norm_columns(&n);
  return ASPEN_KERNEL_OK;
}
