/* RBF, DUELS and COUPLE: support vector machines of ai.onnx.ml. */
#include "vector/nd.h"
#include "vector/vec.h"
#include "vector/vmath.h"
#include "vector/wide.h"

#define ROWS 4 /* that a panel of vectors is read for */
#define PARTS (ASPEN_NR / VL)

/* The squared distances of n ≤ ROWS rows from the 32 vectors of a panel, through exp. */
INLINE void distances(const float *const *x, int64_t step, const float *panel, int64_t features, vf gamma, float out[ROWS][ASPEN_NR]) {
  vf sum[ROWS][PARTS];
  for (int r = 0; r < ROWS; r++)
    for (int p = 0; p < PARTS; p++) sum[r][p] = vzero();
  for (int64_t f = 0; f < features; f++, panel += ASPEN_NR)
    for (int r = 0; r < ROWS; r++)
      for (int p = 0; p < PARTS; p++) {
        const vf d = vset1(x[r][f * step]) - vload(panel + p * VL);
        sum[r][p] = vfma(d, d, sum[r][p]);
      }
  for (int r = 0; r < ROWS; r++)
    for (int p = 0; p < PARTS; p++) vstore(&out[r][p * VL], vexp(vneg(gamma * sum[r][p])));
}

int FN(rbf)(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *x = &c->args[1], *w = &c->args[2];
  if (out->dtype != ASPEN_DT_F32 || x->dtype != ASPEN_DT_F32 || w->dtype != ASPEN_DT_F32 || out->rank != 2 || x->rank != 2)
    return ASPEN_KERNEL_BAD_ARGUMENT;
  const int64_t features = x->dims[1];
  const vf gamma = vset1((float)aspen_param_f(c, 0));
  float block[ROWS][ASPEN_NR] __attribute__((aligned(64)));
  for (int64_t r = c->lo[0]; r < c->hi[0]; r += ROWS) {
    const float *row[ROWS];
    const int64_t n = nd_min(ROWS, c->hi[0] - r);
    for (int64_t k = 0; k < ROWS; k++) row[k] = (const float *)x->ptr + (r + nd_min(k, n - 1)) * x->strides[0];
    for (int64_t p = c->lo[1] / ASPEN_NR; p * ASPEN_NR < c->hi[1]; p++) {
      distances(row, x->strides[1], (const float *)w->ptr + p * features * ASPEN_NR, features, gamma, block);
      const int64_t first = p * ASPEN_NR, from = first > c->lo[1] ? first : c->lo[1], to = nd_min(first + ASPEN_NR, c->hi[1]);
      for (int64_t k = 0; k < n; k++)
        for (int64_t v = from; v < to; v++) ((float *)out->ptr)[(r + k) * out->strides[0] + v * out->strides[1]] = block[k][v - first];
    }
  }
  return ASPEN_KERNEL_OK;
}

#define SUMS 8 /* side by side */

/* Terms from … to - 1 to the sums; term v goes to the same one whatever comes before. */
INLINE void add_terms(double *sums, const float *k, int64_t step, const float *coef, int64_t along, int64_t from, int64_t to) {
  for (int64_t v = from; v < to; v++) sums[(v - from) % SUMS] += (double)coef[v * along] * (double)k[v * step];
}

int FN(duels)(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *k = &c->args[1], *coef = &c->args[2], *starts = &c->args[3], *rho = &c->args[4];
  if (out->rank != 2 || k->rank != 2 || coef->rank != 2) return ASPEN_KERNEL_BAD_ARGUMENT;
  const int64_t classes = starts->dims[0] - 1, vectors = k->dims[1];
  const int64_t *start = (const int64_t *)starts->ptr;
  for (int64_t r = c->lo[0]; r < c->hi[0]; r++) {
    const float *row = (const float *)k->ptr + r * k->strides[0];
    int64_t pair = 0;
    for (int64_t i = 0; i < classes; i++)
      for (int64_t j = i + 1; j < classes; j++, pair++) {
        if (pair < c->lo[1] || pair >= c->hi[1]) continue;
        double sums[SUMS] = {0};
        for (int half = 0; half < 2; half++) {
          const int64_t own = half ? j : i, from = start[own * starts->strides[0]], to = start[(own + 1) * starts->strides[0]];
          const float *factors = (const float *)coef->ptr + (half ? i : j - 1) * coef->strides[0];
          if (from >= 0 && to <= vectors) add_terms(sums, row, k->strides[1], factors, coef->strides[1], from, to);
        }
        for (int width = SUMS / 2; width; width /= 2)
          for (int s = 0; s < width; s++) sums[s] += sums[s + width];
        const double sum = sums[0] + (double)((const float *)rho->ptr)[pair * rho->strides[0]];
        ((float *)out->ptr)[r * out->strides[0] + pair * out->strides[1]] = (float)sum;
      }
  }
  return ASPEN_KERNEL_OK;
}

#define ROUNDS 100

/* Finds the classes' probabilities p. From p = 1 / C, one class after the other is moved to the minimum of the quadratic form q of pairwise
 * disagreements. All are scaled to add up to 1 again, until the form's gradient is about the same for all. */
static void settle(const float *q, float *p, float *qp, int64_t classes) {
  const float enough = 0.005f / (float)classes;
  for (int64_t k = 0; k < classes; k++) p[k] = 1 / (float)classes;
  for (int round = 0; round < ROUNDS; round++) {
    float all = 0, off = 0;
    for (int64_t i = 0; i < classes; i++) {
      qp[i] = 0;
      for (int64_t j = 0; j < classes; j++) qp[i] += q[i * classes + j] * p[j];
      all += p[i] * qp[i];
    }
    for (int64_t i = 0; i < classes; i++) {
      const float d = qp[i] > all ? qp[i] - all : all - qp[i];
      off = d > off ? d : off;
    }
    if (off < enough) break;
    for (int64_t i = 0; i < classes; i++) {
      const float own = q[i * classes + i], move = (all - qp[i]) / own, whole = 1 + move;
      p[i] += move;
      all = (all + move * (move * own + 2 * qp[i])) / whole / whole;
      for (int64_t j = 0; j < classes; j++) {
        qp[j] = (qp[j] + move * q[i * classes + j]) / whole;
        p[j] /= whole;
      }
    }
  }
}

#ifdef ISA_PORTABLE
size_t aspen_scratch_couple(const aspen_call *c) {
  const int64_t n = c->args[0].rank == 2 ? c->args[0].dims[1] : 0;
  return (size_t)(n * n + 2 * n) * sizeof(float);
}
#endif

int FN(couple)(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *s = &c->args[1], *a = &c->args[2], *b = &c->args[3];
  if (out->rank != 2 || s->rank != 2) return ASPEN_KERNEL_BAD_ARGUMENT;
  const int64_t n = out->dims[1];
  if (c->scratch_bytes < (size_t)(n * n + 2 * n) * sizeof(float)) return ASPEN_KERNEL_SCRATCH;
  float *q = c->scratch, *p = q + n * n, *qp = p + n;
  for (int64_t r = c->lo[0]; r < c->hi[0]; r++) {
    int64_t pair = 0;
    memset(q, 0, (size_t)(n * n) * sizeof *q);
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = i + 1; j < n; j++, pair++) {
        const float score = ((const float *)s->ptr)[r * s->strides[0] + pair * s->strides[1]];
        const float x = score * ((const float *)a->ptr)[pair * a->strides[0]] + ((const float *)b->ptr)[pair * b->strides[0]];
        float wins = (float)(1 / (1 + wide_exp((double)x)));
        wins = wins < 1e-7f ? 1e-7f : wins > 1 - 1e-7f ? 1 - 1e-7f : wins;
        const float loses = 1 - wins;
        q[i * n + i] += loses * loses;
        q[j * n + j] += wins * wins;
        q[i * n + j] = q[j * n + i] = -loses * wins;
      }
    settle(q, p, qp, n);
    for (int64_t k = c->lo[1]; k < c->hi[1]; k++) ((float *)out->ptr)[r * out->strides[0] + k * out->strides[1]] = p[k];
  }
  return ASPEN_KERNEL_OK;
}
