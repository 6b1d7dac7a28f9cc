/* float16 and bfloat16 to and from float32, by integer arithmetic that a compiler turns into vector code.
 * Rounding is to nearest even; NaNs stay NaNs (float16 keeps the upper payload bits, as IEEE conversions do). */
#ifndef ASPEN_HALF_H
#define ASPEN_HALF_H
#include <stdint.h>
#include <string.h>

static inline float half_float(uint32_t u) {
  float f;
  memcpy(&f, &u, 4);
  return f;
}

static inline uint32_t half_bits(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  return u;
}

static inline float f16_to_f32(uint16_t h) {
  uint32_t magnitude = (uint32_t)(h & 0x7fff) << 13, sign = (uint32_t)(h & 0x8000) << 16;
  uint32_t finite = half_bits(half_float(magnitude) * half_float(0x77800000)); /* times 2^112: another bias; exact */
  uint32_t special = magnitude | 0x7f800000;
  return half_float((magnitude >= 0x0f800000 ? special : finite) | sign);
}

static inline uint16_t f32_to_f16(float f) {
  uint32_t bits = half_bits(f), sign = bits >> 16 & 0x8000, m = bits & 0x7fffffff;
  uint32_t nan = 0x7e00 | (m >> 13 & 0x3ff);
  uint32_t normal = (m + 0xc8000fff + (m >> 13 & 1)) >> 13;               /* rebias, round to even; may carry into infinity, rightly */
  uint32_t subnormal = half_bits(half_float(m) + 0.5f) - 0x3f000000;      /* the addition rounds at 2^-24 */
  uint32_t r = m < 0x38800000 ? subnormal : normal;
  r = m >= 0x47800000 ? 0x7c00 : r;
  r = m > 0x7f800000 ? nan : r;
  return (uint16_t)(r | sign);
}

static inline uint16_t f64_to_f16(double d) {
  uint64_t bits, m, tail;
  memcpy(&bits, &d, 8);
  m = bits & 0x7fffffffffffffff;
  /* To odd at 29 bits below a float's last: then the second rounding is as if it were the only one. */
  float f = (float)d;
  uint32_t u = half_bits(f);
  double back = (double)f;
  memcpy(&tail, &back, 8);
  tail &= 0x7fffffffffffffff;
  if (m < 0x7ff0000000000000 && tail != m && (u & 0x7f800000) != 0x7f800000) {
    if (tail > m) u--;
    u |= 1;
    f = half_float(u);
  }
  return f32_to_f16(f);
}

static inline float bf16_to_f32(uint16_t h) { return half_float((uint32_t)h << 16); }

static inline uint16_t f32_to_bf16(float f) {
  uint32_t bits = half_bits(f);
  uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16 & 0x8000) | 0x7fc0 : rounded);
}

static inline void f16_widen(int64_t n, float *restrict out, const uint16_t *restrict in) {
  for (int64_t i = 0; i < n; i++) out[i] = f16_to_f32(in[i]);
}
static inline void f16_narrow(int64_t n, uint16_t *restrict out, const float *restrict in) {
  for (int64_t i = 0; i < n; i++) out[i] = f32_to_f16(in[i]);
}
static inline void bf16_widen(int64_t n, float *restrict out, const uint16_t *restrict in) {
  for (int64_t i = 0; i < n; i++) out[i] = bf16_to_f32(in[i]);
}
static inline void bf16_narrow(int64_t n, uint16_t *restrict out, const float *restrict in) {
  for (int64_t i = 0; i < n; i++) out[i] = f32_to_bf16(in[i]);
}

#endif
