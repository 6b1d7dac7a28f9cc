/* Functions of f32 computed in f64: see functions.h. Compiled with -fno-trapping-math, without which the loops stay scalar. */
#include "elementwise/functions.h"

#include <math.h>

#include "vector/wide.h"

#define CHUNK 256

#define EACH(E)                                            \
  do {                                                     \
    for (int64_t i = 0; i < n; i++) {                      \
      const double x = (double)in[i];                      \
      out[i] = (float)(E);                                 \
    }                                                      \
    return ASPEN_KERNEL_OK;                                \
  } while (0)

/* Arguments beyond the reduction's range, infinity and NaN go through libm: an element's way depends on its value alone. */
#define EACH_REDUCED(E, LIBM)                                                        \
  do {                                                                               \
    for (int64_t start = 0; start < n; start += CHUNK) {                             \
      const int64_t m = n - start < CHUNK ? n - start : CHUNK;                       \
      float t[CHUNK];                                                                \
      int outside = 0;                                                               \
      memcpy(t, in + start, (size_t)m * sizeof *t);                                  \
      for (int64_t i = 0; i < m; i++) {                                              \
        const double x = (double)t[i];                                               \
        out[start + i] = (float)(E);                                                 \
        outside |= !(fabsf(t[i]) < 0x1p28f);                                         \
      }                                                                              \
      if (outside)                                                                   \
        for (int64_t i = 0; i < m; i++)                                              \
          if (!(fabsf(t[i]) < 0x1p28f)) out[start + i] = (float)LIBM((double)t[i]);                \
    }                                                                                \
    return ASPEN_KERNEL_OK;                                                          \
  } while (0)

int FN(functions)(int64_t opcode, const float *in, float *out, int64_t n) {
  switch (opcode) {
  case ASPEN_U_SIN: EACH_REDUCED(wide_sin(x), sin);
  case ASPEN_U_COS: EACH_REDUCED(wide_cos(x), cos);
  case ASPEN_U_TAN: EACH_REDUCED(wide_tan(x), tan);
  case ASPEN_U_ASIN: EACH(wide_asin(x));
  case ASPEN_U_ACOS: EACH(wide_acos(x));
  case ASPEN_U_ATAN: EACH(wide_atan(x));
  case ASPEN_U_SINH: EACH(wide_sinh(x));
  case ASPEN_U_COSH: EACH(wide_cosh(x));
  case ASPEN_U_ASINH: EACH(wide_asinh(x));
  case ASPEN_U_ACOSH: EACH(wide_acosh(x));
  case ASPEN_U_ATANH: EACH(wide_atanh(x));
  default: return ASPEN_KERNEL_BAD_ARGUMENT;
  }
}

/* Squares and cubes, which models use most (variance, GELU), are products. */
static inline float power_special(float x, float y) { return y == 2 ? x * x : y == 3 ? x * x * x : powf(x, y); }

void FN(power)(const float *a, const float *b, float *out, int64_t n) {
  for (int64_t start = 0; start < n; start += CHUNK) {
    const int64_t m = n - start < CHUNK ? n - start : CHUNK;
    int others = 0, squares = 1, cubes = 1;
    for (int64_t i = 0; i < m; i++) squares &= b[start + i] == 2, cubes &= b[start + i] == 3;
    if (squares) {
      for (int64_t i = 0; i < m; i++) out[start + i] = a[start + i] * a[start + i];
      continue;
    }
    if (cubes) {
      for (int64_t i = 0; i < m; i++) out[start + i] = a[start + i] * a[start + i] * a[start + i];
      continue;
    }
    float x[CHUNK], y[CHUNK];
    memcpy(x, a + start, (size_t)m * sizeof *x);
    memcpy(y, b + start, (size_t)m * sizeof *y);
    for (int64_t i = 0; i < m; i++) {
      const float square = x[i] * x[i], cube = square * x[i], p = (float)wide_pow((double)x[i], (double)y[i]);
      others |= !((x[i] > 0) & (x[i] < INFINITY) & (fabsf(y[i]) < INFINITY));
      out[start + i] = y[i] == 2 ? square : y[i] == 3 ? cube : p;
    }
    if (others)
      for (int64_t i = 0; i < m; i++)
        if (!((x[i] > 0) & (x[i] < INFINITY) & (fabsf(y[i]) < INFINITY))) out[start + i] = power_special(x[i], y[i]);
  }
}

void FN(exp_f64)(const double *in, double *out, int64_t n) {
  for (int64_t i = 0; i < n; i++) out[i] = wide_exp_f64(in[i]);
}
