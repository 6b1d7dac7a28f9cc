/* CAST between bool, integers and floating-point types, as numpy's astype does on x86.
 *
 * A block is widened to one of five types that hold the source exactly (i32, i64, u64, f32, f64), unless it has that type already. Then it
 * is converted once, with one rounding. Floating-point values beyond an integer type's range become the results of x86's conversion
 * instructions. They are the smallest i32 (also for the low bits kept by i8 … u16) or i64 (whose low bits u32 keeps).
 */
#include <math.h>

#include "vector/half.h"
#include "vector/walk.h"
#include "vector/vec.h"

#define EACH(FROM, TO, E)                        \
  do {                                           \
    const FROM *restrict p = in;                 \
    TO *restrict o = out;                        \
    for (int64_t i = 0; i < n; i++) {            \
      const FROM x = p[i];                       \
      o[i] = (TO)(E);                            \
    }                                            \
  } while (0);                                   \
  break

/* The type that a source is widened to. */
static uint8_t widened(uint8_t dtype) {
  switch (dtype) {
    case ASPEN_DT_BOOL: case ASPEN_DT_I8: case ASPEN_DT_U8: case ASPEN_DT_I16: case ASPEN_DT_U16: case ASPEN_DT_I32: return ASPEN_DT_I32;
    case ASPEN_DT_U32: case ASPEN_DT_I64: return ASPEN_DT_I64;
    case ASPEN_DT_U64: return ASPEN_DT_U64;
    case ASPEN_DT_F16: case ASPEN_DT_BF16: case ASPEN_DT_F32: return ASPEN_DT_F32;
    case ASPEN_DT_F64: return ASPEN_DT_F64;
  }
  return ASPEN_DT_NONE;
}

static void widen(uint8_t dtype, int64_t n, void *out, const void *in) {
  switch (dtype) {
    case ASPEN_DT_BOOL: EACH(uint8_t, int32_t, x != 0);
    case ASPEN_DT_I8: EACH(int8_t, int32_t, x);
    case ASPEN_DT_U8: EACH(uint8_t, int32_t, x);
    case ASPEN_DT_I16: EACH(int16_t, int32_t, x);
    case ASPEN_DT_U16: EACH(uint16_t, int32_t, x);
    case ASPEN_DT_U32: EACH(uint32_t, int64_t, x);
    case ASPEN_DT_F16: f16_widen(n, out, in); break;
    case ASPEN_DT_BF16: bf16_widen(n, out, in); break;
  }
}

/* Integers keep their low bits. */
#define FROM_INTEGER(S, T)                                                       \
  static int from_##S(uint8_t dtype, int64_t n, void *out, const void *in) {     \
    switch (dtype) {                                                             \
      case ASPEN_DT_BOOL: EACH(T, uint8_t, x != 0);                              \
      case ASPEN_DT_I8: EACH(T, int8_t, x);                                      \
      case ASPEN_DT_U8: EACH(T, uint8_t, x);                                     \
      case ASPEN_DT_I16: EACH(T, int16_t, x);                                    \
      case ASPEN_DT_U16: EACH(T, uint16_t, x);                                   \
      case ASPEN_DT_I32: EACH(T, int32_t, x);                                    \
      case ASPEN_DT_U32: EACH(T, uint32_t, x);                                   \
      case ASPEN_DT_I64: EACH(T, int64_t, x);                                    \
      case ASPEN_DT_U64: EACH(T, uint64_t, x);                                   \
      case ASPEN_DT_F16: EACH(T, uint16_t, f32_to_f16((float)x));                \
      case ASPEN_DT_BF16: EACH(T, uint16_t, f32_to_bf16((float)x));              \
      case ASPEN_DT_F32: EACH(T, float, x);                                      \
      case ASPEN_DT_F64: EACH(T, double, x);                                     \
      default: return ASPEN_KERNEL_BAD_ARGUMENT;                                 \
    }                                                                            \
    return ASPEN_KERNEL_OK;                                                      \
  }

FROM_INTEGER(i32, int32_t)
FROM_INTEGER(i64, int64_t)
FROM_INTEGER(u64, uint64_t)

static inline int32_t to_i32(double x) { return (int32_t)((x > -2147483649.0) & (x < 2147483648.0) ? x : -2147483648.0); }
static inline int64_t to_i64(double x) { return (int64_t)((x >= -0x1p63) & (x < 0x1p63) ? x : -0x1p63); }
static inline uint64_t to_u64(double x) { return x >= 0x1p63 ? (uint64_t)to_i64(x - 0x1p63) ^ 0x8000000000000000 : (uint64_t)to_i64(x); }

#define FROM_FLOAT(S, T, TO_F16)                                                 \
  static int from_##S(uint8_t dtype, int64_t n, void *out, const void *in) {     \
    switch (dtype) {                                                             \
      case ASPEN_DT_BOOL: EACH(T, uint8_t, x != 0);                              \
      case ASPEN_DT_I8: EACH(T, int8_t, to_i32((double)x));                      \
      case ASPEN_DT_U8: EACH(T, uint8_t, to_i32((double)x));                     \
      case ASPEN_DT_I16: EACH(T, int16_t, to_i32((double)x));                    \
      case ASPEN_DT_U16: EACH(T, uint16_t, to_i32((double)x));                   \
      case ASPEN_DT_I32: EACH(T, int32_t, to_i32((double)x));                    \
      case ASPEN_DT_U32: EACH(T, uint32_t, to_i64((double)x));                   \
      case ASPEN_DT_I64: EACH(T, int64_t, to_i64((double)x));                    \
      case ASPEN_DT_U64: EACH(T, uint64_t, to_u64((double)x));                   \
      case ASPEN_DT_F16: EACH(T, uint16_t, TO_F16(x));                           \
      case ASPEN_DT_BF16: EACH(T, uint16_t, f32_to_bf16((float)x));              \
      case ASPEN_DT_F32: EACH(T, float, x);                                      \
      case ASPEN_DT_F64: EACH(T, double, x);                                     \
      default: return ASPEN_KERNEL_BAD_ARGUMENT;                                 \
    }                                                                            \
    return ASPEN_KERNEL_OK;                                                      \
  }

FROM_FLOAT(f32, float, f32_to_f16)
FROM_FLOAT(f64, double, f64_to_f16)

int FN(cast)(const aspen_call *c) {
  const uint8_t to = c->args[0].dtype, from = c->args[1].dtype, wide = widened(from);
  const size_t to_size = nd_size(to), from_size = nd_size(from);
  if (wide == ASPEN_DT_NONE) return ASPEN_KERNEL_BAD_ARGUMENT;
  nd it;
  if (!nd_open(&it, c, 1)) return ASPEN_KERNEL_OK;
  _Alignas(64) char source[ND_BLOCK * 8], middle[ND_BLOCK * 8], target[ND_BLOCK * 8];
  int error = ASPEN_KERNEL_OK;
  nd_walk w;
  nd_walk_open(&w, &it);
  do {
    const int64_t m = w.count;
    const void *x = nd_stage(&w, 1, from_size, source);
    if (wide != from) widen(from, m, middle, x), x = middle;
    void *t = nd_target(&w, to_size, target);
    switch (wide) {
      case ASPEN_DT_I32: error = from_i32(to, m, t, x); break;
      case ASPEN_DT_I64: error = from_i64(to, m, t, x); break;
      case ASPEN_DT_U64: error = from_u64(to, m, t, x); break;
      case ASPEN_DT_F32: error = from_f32(to, m, t, x); break;
      case ASPEN_DT_F64: error = from_f64(to, m, t, x); break;
    }
    if (!error) nd_commit(&w, to_size, target);
  } while (!error && nd_walk_next(&w));
  return error;
}
