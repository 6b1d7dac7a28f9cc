/* BINARY and TERNARY: one contiguous loop per operation and type, over staged blocks of the box (nd.h). */
#include <math.h>

#include "elementwise/elementwise.h"
#include "elementwise/functions.h"
#include "vector/half.h"
#include "vector/nd.h"

/* Every loop sees T x, y and writes R. */
#define LOOP(R, E)                                     \
  do {                                                 \
    R *restrict o = (R *)out;                          \
    for (int64_t i = 0; i < n; i++) {                  \
      T x = a[i], y = b[i];                            \
      o[i] = (R)(E);                                   \
    }                                                  \
    return ASPEN_KERNEL_OK;                            \
  } while (0)

#define COMPARISONS                                          \
  case ASPEN_B_EQUAL: LOOP(uint8_t, x == y);                 \
  case ASPEN_B_LESS: LOOP(uint8_t, x < y);                   \
  case ASPEN_B_LESS_EQUAL: LOOP(uint8_t, x <= y);            \
  case ASPEN_B_GREATER: LOOP(uint8_t, x > y);                \
  case ASPEN_B_GREATER_EQUAL: LOOP(uint8_t, x >= y);

/* ---- floating point ---- */

/* numpy's mod: the result has the divisor's sign. */
static inline float mod_f32(float x, float y) {
  float r = fmodf(x, y);
  if (r == 0) return copysignf(0, y);
  return (r < 0) != (y < 0) ? r + y : r;
}
static inline double mod_f64(double x, double y) {
  double r = fmod(x, y);
  if (r == 0) return copysign(0, y);
  return (r < 0) != (y < 0) ? r + y : r;
}

/* f32: functions.h. f64: squares and cubes as there. */
static void pow_row_f32(int64_t n, float *o, const float *a, const float *b) { FN(power)(a, b, o, n); }
static void pow_row_f64(int64_t n, double *restrict o, const double *restrict a, const double *restrict b) {
  for (int64_t i = 0; i < n; i++) o[i] = b[i] == 2 ? a[i] * a[i] : b[i] == 3 ? a[i] * a[i] * a[i] : pow(a[i], b[i]);
}

/* A NaN in either place wins, as in numpy and ONNX. */
#define MIN_NAN(x, y) (((x) < (y)) | ((x) != (x)) ? (x) : (y))
#define MAX_NAN(x, y) (((x) > (y)) | ((x) != (x)) ? (x) : (y))

#define FLOATS(S, TYPE, FMOD, MOD)                                                                            \
  static int binary_##S(int op, int64_t n, void *out, const void *in0, const void *in1) {                          \
    typedef TYPE T;                                                                                                \
    const T *restrict a = in0, *restrict b = in1;                                                                  \
    switch (op) {                                                                                                  \
      case ASPEN_B_ADD: LOOP(T, x + y);                                                                            \
      case ASPEN_B_SUB: LOOP(T, x - y);                                                                            \
      case ASPEN_B_MUL: LOOP(T, x * y);                                                                            \
      case ASPEN_B_DIV: LOOP(T, x / y);                                                                            \
      case ASPEN_B_POW: pow_row_##S(n, out, a, b); return ASPEN_KERNEL_OK;                                         \
      case ASPEN_B_MIN: LOOP(T, MIN_NAN(x, y));                                                                    \
      case ASPEN_B_MAX: LOOP(T, MAX_NAN(x, y));                                                                    \
      case ASPEN_B_MOD: LOOP(T, MOD(x, y));                                                                        \
      case ASPEN_B_FMOD: LOOP(T, FMOD(x, y));                                                                      \
      case ASPEN_B_PRELU: LOOP(T, x < 0 ? x * y : x);                                                              \
      COMPARISONS                                                                                                  \
    }                                                                                                              \
    return ASPEN_KERNEL_BAD_ARGUMENT;                                                                              \
  }

FLOATS(f32, float, fmodf, mod_f32)
FLOATS(f64, double, fmod, mod_f64)

/* ---- integers ---- */

/* Division and its relatives: the C result except where C leaves it open. Zero divisors are reported, the smallest integer by -1 wraps. */
#define DIVISION(E)                                    \
  do {                                                 \
    T *restrict o = (T *)out;                          \
    int zero = 0;                                      \
    for (int64_t i = 0; i < n; i++) {                  \
      T x = a[i], y = b[i];                            \
      zero |= y == 0;                                  \
      if (y == 0) y = 1;                               \
      o[i] = (T)(E);                                   \
    }                                                  \
    return zero ? ASPEN_KERNEL_INT_DIVIDE : ASPEN_KERNEL_OK; \
  } while (0)

/* x^y modulo 2^width; a negative exponent gives the truncated real result, and 0 to a negative power is a division by zero. */
#define INTEGERS(S, TYPE, UNSIGNED, SIGNED)                                                                        \
  static inline int pow_##S(TYPE x, TYPE y, TYPE *out) {                                                           \
    if (SIGNED && y < 0) {                                                                                         \
      int odd = (int)(y & 1);                                                                                      \
      *out = x == 1 ? 1 : x == (TYPE)-1 ? (odd ? (TYPE)-1 : 1) : 0;                                                \
      return x == 0;                                                                                               \
    }                                                                                                              \
    uint64_t r = 1, p = (uint64_t)x, e = (uint64_t)y;                                                              \
    for (; e; e >>= 1, p *= p)                                                                                     \
      if (e & 1) r *= p;                                                                                           \
    *out = (TYPE)r;                                                                                                \
    return 0;                                                                                                      \
  }                                                                                                                \
  static int binary_##S(int op, int64_t n, void *out, const void *in0, const void *in1) {                          \
    typedef TYPE T;                                                                                                \
    typedef UNSIGNED U; /* at least 32 bits wide: no promotion to a signed type, so everything wraps */            \
    const int width = (int)(8 * sizeof(T));                                                                        \
    const T *restrict a = in0, *restrict b = in1;                                                                  \
    switch (op) {                                                                                                  \
      case ASPEN_B_ADD: LOOP(T, (U)x + (U)y);                                                                      \
      case ASPEN_B_SUB: LOOP(T, (U)x - (U)y);                                                                      \
      case ASPEN_B_MUL: LOOP(T, (U)x * (U)y);                                                                      \
      case ASPEN_B_DIV: DIVISION(SIGNED && y == (T)-1 ? (T)(0 - (U)x) : x / y);                                    \
      case ASPEN_B_FMOD: DIVISION(SIGNED && y == (T)-1 ? 0 : x % y);                                               \
      case ASPEN_B_MOD: DIVISION(SIGNED && y == (T)-1 ? 0 : x % y + (x % y != 0 && (x % y < 0) != (y < 0) ? y : 0)); \
      case ASPEN_B_POW: {                                                                                          \
        T *o = out;                                                                                                \
        int zero = 0;                                                                                              \
        for (int64_t i = 0; i < n; i++) zero |= pow_##S(a[i], b[i], &o[i]);                                        \
        return zero ? ASPEN_KERNEL_INT_DIVIDE : ASPEN_KERNEL_OK;                                                   \
      }                                                                                                            \
      case ASPEN_B_MIN: LOOP(T, x < y ? x : y);                                                                    \
      case ASPEN_B_MAX: LOOP(T, x > y ? x : y);                                                                    \
      case ASPEN_B_PRELU: LOOP(T, x < 0 ? (T)((U)x * (U)y) : x);                                                   \
      case ASPEN_B_BIT_AND: LOOP(T, x & y);                                                                        \
      case ASPEN_B_BIT_OR: LOOP(T, x | y);                                                                         \
      case ASPEN_B_BIT_XOR: LOOP(T, x ^ y);                                                                        \
      /* A shift by the width or more, or by a negative count, moves every bit out. */                             \
      case ASPEN_B_SHIFT_LEFT: LOOP(T, y >= 0 && y < width ? (U)x << (y & (width - 1)) : 0);                       \
      case ASPEN_B_SHIFT_RIGHT: LOOP(T, y >= 0 && y < width ? x >> (y & (width - 1)) : SIGNED && x < 0 ? (T)-1 : 0); \
      COMPARISONS                                                                                                  \
    }                                                                                                              \
    return ASPEN_KERNEL_BAD_ARGUMENT;                                                                              \
  }

#pragma GCC diagnostic ignored "-Wtype-limits"
#pragma GCC diagnostic ignored "-Wsign-compare"
INTEGERS(i8, int8_t, uint32_t, 1)
INTEGERS(u8, uint8_t, uint32_t, 0)
INTEGERS(i16, int16_t, uint32_t, 1)
INTEGERS(u16, uint16_t, uint32_t, 0)
INTEGERS(i32, int32_t, uint32_t, 1)
INTEGERS(u32, uint32_t, uint32_t, 0)
INTEGERS(i64, int64_t, uint64_t, 1)
INTEGERS(u64, uint64_t, uint64_t, 0)

static int binary_bool(int op, int64_t n, void *out, const void *in0, const void *in1) {
  typedef uint8_t T;
  const T *restrict a = in0, *restrict b = in1;
  switch (op) {
    case ASPEN_B_AND: case ASPEN_B_BIT_AND: case ASPEN_B_MUL: case ASPEN_B_MIN: LOOP(T, (x != 0) & (y != 0));
    case ASPEN_B_OR: case ASPEN_B_BIT_OR: case ASPEN_B_ADD: case ASPEN_B_MAX: LOOP(T, (x != 0) | (y != 0));
    case ASPEN_B_XOR: case ASPEN_B_BIT_XOR: LOOP(T, (x != 0) != (y != 0));
    case ASPEN_B_EQUAL: LOOP(T, (x != 0) == (y != 0));
    case ASPEN_B_LESS: LOOP(T, (x != 0) < (y != 0));
    case ASPEN_B_LESS_EQUAL: LOOP(T, (x != 0) <= (y != 0));
    case ASPEN_B_GREATER: LOOP(T, (x != 0) > (y != 0));
    case ASPEN_B_GREATER_EQUAL: LOOP(T, (x != 0) >= (y != 0));
  }
  return ASPEN_KERNEL_BAD_ARGUMENT;
}

typedef int (*binary_fn)(int, int64_t, void *, const void *, const void *);

static binary_fn binary_for(uint8_t dtype) {
  switch (dtype) {
    case ASPEN_DT_F16: case ASPEN_DT_BF16: case ASPEN_DT_F32: return binary_f32;
    case ASPEN_DT_F64: return binary_f64;
    case ASPEN_DT_I8: return binary_i8;
    case ASPEN_DT_U8: return binary_u8;
    case ASPEN_DT_I16: return binary_i16;
    case ASPEN_DT_U16: return binary_u16;
    case ASPEN_DT_I32: return binary_i32;
    case ASPEN_DT_U32: return binary_u32;
    case ASPEN_DT_I64: return binary_i64;
    case ASPEN_DT_U64: return binary_u64;
    case ASPEN_DT_BOOL: return binary_bool;
  }
  return NULL;
}

static int is_comparison(int op) { return op >= ASPEN_B_EQUAL && op <= ASPEN_B_GREATER_EQUAL; }

int FN(binary)(const aspen_call *c) {
  const int op = (int)c->params[0], act = (int)c->params[1];
  const double act_a = aspen_param_f(c, 2), act_b = aspen_param_f(c, 3);
  const uint8_t dtype = c->args[1].dtype, out_dtype = is_comparison(op) ? ASPEN_DT_BOOL : dtype;
  const binary_fn fn = binary_for(dtype);
  const uint8_t computed = elt_is_half(dtype) ? ASPEN_DT_F32 : dtype;
  const int is_float = computed == ASPEN_DT_F32 || computed == ASPEN_DT_F64;
  if (!fn || c->args[2].dtype != dtype || c->args[0].dtype != out_dtype) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (act != ASPEN_U_IDENTITY && (!is_float || is_comparison(op))) return ASPEN_KERNEL_BAD_ARGUMENT;

  elt_buffer ba, bb, bo;
  nd it;
  if (!nd_open(&it, c, 2)) return ASPEN_KERNEL_OK;
  int error = ASPEN_KERNEL_OK;
  nd_walk w;
  nd_walk_open(&w, &it);
  do {
    const void *a = elt_load(dtype, &w, 1, &ba), *b = elt_load(dtype, &w, 2, &bb);
    void *t = elt_target(out_dtype, &w, &bo);
    error = fn(op, w.count, t, a, b);
    if (!error && act != ASPEN_U_IDENTITY) error = FN(unary_row)(computed, act, act_a, act_b, w.count, t, t);
    if (!error) elt_store(out_dtype, &w, &bo);
  } while (!error && nd_walk_next(&w));
  return error;
}

/* ---- TERNARY ---- */

#if defined(__FMA__)
#define FMA_F32(x, y, z) __builtin_fmaf(x, y, z)
#define FMA_F64(x, y, z) __builtin_fma(x, y, z)
#else
#define FMA_F32(x, y, z) ((x) * (y) + (z))
#define FMA_F64(x, y, z) ((x) * (y) + (z))
#endif

#define CLAMP_LOOP(T, MIN, MAX)                                                                                    \
  do {                                                                                                             \
    T *restrict o = out;                                                                                           \
    const T *restrict x = a, *restrict y = b, *restrict z = d;                                                     \
    for (int64_t i = 0; i < n; i++) {                                                                              \
      T v = MAX(x[i], y[i]);                                                                                       \
      o[i] = MIN(v, z[i]);                                                                                         \
    }                                                                                                              \
    return ASPEN_KERNEL_OK;                                                                                        \
  } while (0)
#define FMA_LOOP(T, F)                                                                                             \
  do {                                                                                                             \
    T *restrict o = out;                                                                                           \
    const T *restrict x = a, *restrict y = b, *restrict z = d;                                                     \
    for (int64_t i = 0; i < n; i++) o[i] = F(x[i], y[i], z[i]);                                                    \
    return ASPEN_KERNEL_OK;                                                                                        \
  } while (0)
#define MIN_INT(x, y) ((x) < (y) ? (x) : (y))
#define MAX_INT(x, y) ((x) > (y) ? (x) : (y))

static int clamp_row(uint8_t dtype, int64_t n, void *out, const void *a, const void *b, const void *d) {
  switch (dtype) {
    case ASPEN_DT_F16: case ASPEN_DT_BF16: case ASPEN_DT_F32: CLAMP_LOOP(float, MIN_NAN, MAX_NAN);
    case ASPEN_DT_F64: CLAMP_LOOP(double, MIN_NAN, MAX_NAN);
    case ASPEN_DT_I8: CLAMP_LOOP(int8_t, MIN_INT, MAX_INT);
    case ASPEN_DT_U8: CLAMP_LOOP(uint8_t, MIN_INT, MAX_INT);
    case ASPEN_DT_I16: CLAMP_LOOP(int16_t, MIN_INT, MAX_INT);
    case ASPEN_DT_U16: CLAMP_LOOP(uint16_t, MIN_INT, MAX_INT);
    case ASPEN_DT_I32: CLAMP_LOOP(int32_t, MIN_INT, MAX_INT);
    case ASPEN_DT_U32: CLAMP_LOOP(uint32_t, MIN_INT, MAX_INT);
    case ASPEN_DT_I64: CLAMP_LOOP(int64_t, MIN_INT, MAX_INT);
    case ASPEN_DT_U64: CLAMP_LOOP(uint64_t, MIN_INT, MAX_INT);
  }
  return ASPEN_KERNEL_BAD_ARGUMENT;
}

static int fma_row(uint8_t dtype, int64_t n, void *out, const void *a, const void *b, const void *d) {
  switch (dtype) {
    case ASPEN_DT_F16: case ASPEN_DT_BF16: case ASPEN_DT_F32: FMA_LOOP(float, FMA_F32);
    case ASPEN_DT_F64: FMA_LOOP(double, FMA_F64);
  }
  return ASPEN_KERNEL_BAD_ARGUMENT;
}

#define WHERE_LOOP(T)                                                                                              \
  do {                                                                                                             \
    T *restrict o = out;                                                                                           \
    const T *restrict x = a, *restrict y = b;                                                                      \
    for (int64_t i = 0; i < n; i++) {                                                                              \
      T p = x[i], q = y[i];                                                                                        \
      o[i] = condition[i] ? p : q;                                                                                 \
    }                                                                                                              \
  } while (0)

static void where_row(size_t size, int64_t n, void *out, const uint8_t *condition, const void *a, const void *b) {
  switch (size) {
    case 1: WHERE_LOOP(nd_u8); break;
    case 2: WHERE_LOOP(nd_u16); break;
    case 4: WHERE_LOOP(nd_u32); break;
    case 8: WHERE_LOOP(nd_u64); break;
    case 16: WHERE_LOOP(nd_u128); break;
  }
}

int FN(ternary)(const aspen_call *c) {
  const int op = (int)c->params[0];
  const uint8_t dtype = c->args[0].dtype;
  const int where = op == ASPEN_T_WHERE, act = (int)c->params[1];
  const double act_a = aspen_param_f(c, 2), act_b = aspen_param_f(c, 3);
  const uint8_t computed = elt_is_half(dtype) ? ASPEN_DT_F32 : dtype;
  if (act != ASPEN_U_IDENTITY && (where || (computed != ASPEN_DT_F32 && computed != ASPEN_DT_F64))) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (c->args[2].dtype != dtype || c->args[3].dtype != dtype) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (c->args[1].dtype != (where ? ASPEN_DT_BOOL : dtype)) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (dtype == ASPEN_DT_NONE || dtype == ASPEN_DT_OBJECT) return ASPEN_KERNEL_BAD_ARGUMENT;
  elt_buffer buffers[3], bo;
  nd it;
  if (!nd_open(&it, c, 3)) return ASPEN_KERNEL_OK;
  const size_t size = nd_size(dtype);
  int error = ASPEN_KERNEL_OK;
  nd_walk w;
  nd_walk_open(&w, &it);
  do {
    const void *in[3];
    if (where) {
      for (int k = 0; k < 3; k++) in[k] = nd_stage(&w, 1 + k, k == 0 ? 1 : size, buffers[k].bytes);
      where_row(size, w.count, nd_target(&w, size, bo.bytes), in[0], in[1], in[2]);
      nd_commit(&w, size, bo.bytes);
      continue;
    }
    for (int k = 0; k < 3; k++) in[k] = elt_load(dtype, &w, 1 + k, &buffers[k]);
    void *t = elt_target(dtype, &w, &bo);
    error = op == ASPEN_T_FMA     ? fma_row(dtype, w.count, t, in[0], in[1], in[2])
            : op == ASPEN_T_CLAMP ? clamp_row(dtype, w.count, t, in[0], in[1], in[2])
                                  : ASPEN_KERNEL_BAD_ARGUMENT;
    if (!error && act != ASPEN_U_IDENTITY) error = FN(unary_row)(computed, act, act_a, act_b, w.count, t, t);
    if (!error) elt_store(dtype, &w, &bo);
  } while (!error && nd_walk_next(&w));
  return error;
}
