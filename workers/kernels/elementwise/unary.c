/* UNARY: f32 through act.h, whose functions the epilogues share; f64 through functions.h and libm; integers where the function makes
 * sense. */
#include <math.h>

#include "elementwise/act.h"
#include "elementwise/elementwise.h"
#include "elementwise/functions.h"

#define EACH(E)                              \
  do {                                       \
    for (int64_t i = 0; i < n; i++) {        \
      const T x = p[i];                      \
      o[i] = (T)(E);                         \
    }                                        \
    return ASPEN_KERNEL_OK;                  \
  } while (0)

/* ---- f64 ---- */

static inline double sigmoid_f64(double x) {
  const double e = exp(-fabs(x));
  return (x < 0 ? e : 1) / (1 + e);
}
/* The same of an array, a part at a time: out may be in. */
static int sigmoid_row_f64(int64_t n, double *o, const double *p) {
  double e[256];
  for (int64_t start = 0, m; start < n; start += m) {
    m = n - start < 256 ? n - start : 256;
    for (int64_t i = 0; i < m; i++) e[i] = -fabs(p[start + i]);
    FN(exp_f64)(e, e, m);
    for (int64_t i = 0; i < m; i++) o[start + i] = (p[start + i] < 0 ? e[i] : 1) / (1 + e[i]);
  }
  return ASPEN_KERNEL_OK;
}
static inline double softplus_f64(double x) { return (x > 0 ? x : 0) + log1p(exp(-fabs(x))); }
static inline double clamp01_f64(double x) { return x < 0 ? 0 : x > 1 ? 1 : x; }
static inline double gelu_tanh_f64(double x) { return x * sigmoid_f64(2 * 0.79788456080286535588 * (x + 0.044715 * x * x * x)); }

static int unary_f64(int op, double a, double b, int64_t n, double *o, const double *p) {
  typedef double T;
  switch (op) {
    case ASPEN_U_IDENTITY: EACH(x);
    case ASPEN_U_ABS: EACH(fabs(x));
    case ASPEN_U_NEG: EACH(-x);
    case ASPEN_U_EXP: FN(exp_f64)(p, o, n); return ASPEN_KERNEL_OK;
    case ASPEN_U_LOG: EACH(log(x));
    case ASPEN_U_SQRT: EACH(sqrt(x));
    case ASPEN_U_RECIPROCAL: EACH(1 / x);
    case ASPEN_U_SIGMOID: return sigmoid_row_f64(n, o, p);
    case ASPEN_U_TANH: EACH(tanh(x));
    case ASPEN_U_ERF: EACH(erf(x));
    case ASPEN_U_RELU: EACH(x < 0 ? 0 : x);
    case ASPEN_U_LEAKY_RELU: EACH(x < 0 ? a * x : x);
    case ASPEN_U_ELU: EACH(x < 0 ? a * expm1(x) : x);
    case ASPEN_U_SELU: EACH(b * (x < 0 ? a * expm1(x) : x));
    case ASPEN_U_CELU: EACH(x < 0 ? a * expm1(x / a) : x);
    case ASPEN_U_GELU_ERF: EACH(0.5 * x * erfc(-x * 0.70710678118654752440));
    case ASPEN_U_GELU_TANH: EACH(gelu_tanh_f64(x));
    case ASPEN_U_SWISH: EACH(x * sigmoid_f64(a * x));
    case ASPEN_U_HARD_SIGMOID: EACH(clamp01_f64(a * x + b));
    case ASPEN_U_FAKE_QUANTIZE: EACH(a * fmin(b + 255, fmax(b, nearbyint(x / a))));
    case ASPEN_U_HARD_SWISH: EACH(x * clamp01_f64(x / 6 + 0.5));
    case ASPEN_U_SOFTPLUS: EACH(softplus_f64(x));
    case ASPEN_U_SOFTSIGN: EACH(x / (1 + fabs(x)));
    case ASPEN_U_MISH: EACH(x * tanh(softplus_f64(x)));
    case ASPEN_U_THRESHOLDED_RELU: EACH(x > a ? x : 0);
    case ASPEN_U_SHRINK: EACH(x < -a ? x + b : x > a ? x - b : 0);
    case ASPEN_U_CLIP: EACH((x < a ? a : x) > b ? b : x < a ? a : x);
    case ASPEN_U_CEIL: EACH(ceil(x));
    case ASPEN_U_FLOOR: EACH(floor(x));
    case ASPEN_U_ROUND: EACH(nearbyint(x));
    case ASPEN_U_SIGN: EACH(x > 0 ? 1 : x < 0 ? -1 : x);
    case ASPEN_U_SIN: EACH(sin(x));
    case ASPEN_U_COS: EACH(cos(x));
    case ASPEN_U_TAN: EACH(tan(x));
    case ASPEN_U_ASIN: EACH(asin(x));
    case ASPEN_U_ACOS: EACH(acos(x));
    case ASPEN_U_ATAN: EACH(atan(x));
    case ASPEN_U_SINH: EACH(sinh(x));
    case ASPEN_U_COSH: EACH(cosh(x));
    case ASPEN_U_ASINH: EACH(asinh(x));
    case ASPEN_U_ACOSH: EACH(acosh(x));
    case ASPEN_U_ATANH: EACH(atanh(x));
    case ASPEN_U_SQUARE: EACH(x * x);
  }
  return ASPEN_KERNEL_BAD_ARGUMENT;
}

/* ---- integers and bool ---- */

/* W: an unsigned type of at least 32 bits, so that everything wraps. Bounds beyond the type's range mean no bound. */
#define INTEGERS(S, TYPE, W, LOWEST, HIGHEST, NEGATIVE)                                                            \
  static int unary_##S(int op, double a, double b, int64_t n, TYPE *o, const TYPE *p) {                            \
    typedef TYPE T;                                                                                                \
    const T low = a > (double)(LOWEST) ? (a < (double)(HIGHEST) ? (T)a : (HIGHEST)) : (LOWEST);                    \
    const T high = b < (double)(HIGHEST) ? (b > (double)(LOWEST) ? (T)b : (LOWEST)) : (HIGHEST);                   \
    switch (op) {                                                                                                  \
      case ASPEN_U_IDENTITY: EACH(x);                                                                              \
      case ASPEN_U_ABS: EACH(NEGATIVE(x) ? (T)(0 - (W)x) : x);                                                     \
      case ASPEN_U_NEG: EACH(0 - (W)x);                                                                            \
      case ASPEN_U_SIGN: EACH(NEGATIVE(x) ? (T)-1 : (T)(x != 0));                                                  \
      case ASPEN_U_RELU: EACH(NEGATIVE(x) ? 0 : x);                                                                \
      case ASPEN_U_CLIP: EACH((x < low ? low : x) > high ? high : x < low ? low : x);                              \
      case ASPEN_U_BIT_NOT: EACH(~x);                                                                              \
      case ASPEN_U_SQUARE: EACH((W)x * (W)x);                                                                      \
    }                                                                                                              \
    return ASPEN_KERNEL_BAD_ARGUMENT;                                                                              \
  }
#define BELOW_ZERO(x) ((x) < 0)
#define NEVER(x) 0

INTEGERS(i8, int8_t, uint32_t, INT8_MIN, INT8_MAX, BELOW_ZERO)
INTEGERS(u8, uint8_t, uint32_t, 0, UINT8_MAX, NEVER)
INTEGERS(i16, int16_t, uint32_t, INT16_MIN, INT16_MAX, BELOW_ZERO)
INTEGERS(u16, uint16_t, uint32_t, 0, UINT16_MAX, NEVER)
INTEGERS(i32, int32_t, uint32_t, INT32_MIN, INT32_MAX, BELOW_ZERO)
INTEGERS(u32, uint32_t, uint32_t, 0, UINT32_MAX, NEVER)
INTEGERS(i64, int64_t, uint64_t, INT64_MIN, INT64_MAX, BELOW_ZERO)
INTEGERS(u64, uint64_t, uint64_t, 0, UINT64_MAX, NEVER)

static int unary_bool(int op, int64_t n, uint8_t *o, const uint8_t *p) {
  typedef uint8_t T;
  switch (op) {
    case ASPEN_U_IDENTITY: EACH(x != 0);
    case ASPEN_U_NOT: case ASPEN_U_BIT_NOT: EACH(x == 0);
  }
  return ASPEN_KERNEL_BAD_ARGUMENT;
}

int FN(unary_row)(uint8_t dtype, int op, double a, double b, int64_t n, void *out, const void *in) {
  switch (dtype) {
    case ASPEN_DT_F32: return FN(act)(op, (float)a, (float)b, in, out, n);
    case ASPEN_DT_F64: return unary_f64(op, a, b, n, out, in);
    case ASPEN_DT_I8: return unary_i8(op, a, b, n, out, in);
    case ASPEN_DT_U8: return unary_u8(op, a, b, n, out, in);
    case ASPEN_DT_I16: return unary_i16(op, a, b, n, out, in);
    case ASPEN_DT_U16: return unary_u16(op, a, b, n, out, in);
    case ASPEN_DT_I32: return unary_i32(op, a, b, n, out, in);
    case ASPEN_DT_U32: return unary_u32(op, a, b, n, out, in);
    case ASPEN_DT_I64: return unary_i64(op, a, b, n, out, in);
    case ASPEN_DT_U64: return unary_u64(op, a, b, n, out, in);
    case ASPEN_DT_BOOL: return unary_bool(op, n, out, in);
  }
  return ASPEN_KERNEL_BAD_ARGUMENT;
}

/* ---- classification: float in, bool out ---- */

#define CLASSIFY(T)                                                                                                \
  do {                                                                                                             \
    const T *p = in;                                                                                               \
    if (op == ASPEN_U_ISNAN)                                                                                       \
      for (int64_t i = 0; i < n; i++) out[i] = p[i] != p[i];                                                       \
    else                                                                                                           \
      for (int64_t i = 0; i < n; i++) out[i] = (uint8_t)((negative & (p[i] == -(T)INFINITY)) | (positive & (p[i] == (T)INFINITY))); \
  } while (0)

static void classify_row(int is_f64, int op, double a, double b, int64_t n, uint8_t *out, const void *in) {
  const int negative = a != 0, positive = b != 0;
  if (is_f64) CLASSIFY(double);
  else CLASSIFY(float);
}

int FN(unary)(const aspen_call *c) {
  const int op = (int)c->params[0];
  const double a = aspen_param_f(c, 1), b = aspen_param_f(c, 2);
  const uint8_t in_dtype = c->args[1].dtype, out_dtype = c->args[0].dtype, computed = elt_is_half(in_dtype) ? ASPEN_DT_F32 : in_dtype;
  const int classify = op == ASPEN_U_ISNAN || op == ASPEN_U_ISINF;
  if (out_dtype != (classify ? ASPEN_DT_BOOL : in_dtype)) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (classify && computed != ASPEN_DT_F32 && computed != ASPEN_DT_F64) return ASPEN_KERNEL_BAD_ARGUMENT;
  nd it;
  if (!nd_open(&it, c, 1)) return ASPEN_KERNEL_OK;
  elt_buffer bi, bo;
  int error = ASPEN_KERNEL_OK;
  nd_walk w;
  nd_walk_open(&w, &it);
  do {
    const void *x = elt_load(in_dtype, &w, 1, &bi);
    void *t = elt_target(out_dtype, &w, &bo);
    if (classify) classify_row(computed == ASPEN_DT_F64, op, a, b, w.count, t, x);
    else error = FN(unary_row)(computed, op, a, b, w.count, t, x);
    if (!error) elt_store(out_dtype, &w, &bo);
  } while (!error && nd_walk_next(&w));
  return error;
}
