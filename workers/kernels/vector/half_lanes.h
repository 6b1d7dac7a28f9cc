/* Vectors of f32 from and to values that are stored as bf16.
 *
 * Stored values are rounded to nearest even, denormal ones to zeros, NaNs to quiet ones: what the processor's instruction does
 * (AVX512_BF16). Without it the same bits come of integer arithmetic. So they are the same on every instruction set, for the same value.
 */
#ifndef ASPEN_HALF_LANES_H
#define ASPEN_HALF_LANES_H
#include "vector/half.h"
#include "vector/vec.h"

/* One value. */
INLINE uint16_t bf16_stored(float x) {
  const uint32_t bits = half_bits(x), magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
  return magnitude < 0x00800000 ? (uint16_t)(bits >> 16 & 0x8000) : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* VL values; of a part the first n, zeros behind them; of values at a stride as many. */
#if VL == 16
INLINE vf halves_wide(__m256i x) { return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16); }
INLINE vf vload_halves(const uint16_t *p) { return halves_wide(_mm256_loadu_si256((const __m256i *)p)); }
INLINE vf vload_halves_part(const uint16_t *p, int64_t n) { return halves_wide(_mm256_maskz_loadu_epi16(vpart_(n), p)); }
#else
INLINE vf vload_halves_part(const uint16_t *p, int64_t n) {
  uint32_t t[VL] __attribute__((aligned(32))) = {0};
  for (int64_t i = 0; i < n && i < VL; i++) t[i] = (uint32_t)p[i] << 16;
  return vload((const float *)t);
}
INLINE vf vload_halves(const uint16_t *p) { return vload_halves_part(p, VL); }
#endif
INLINE vf vload_halves_strided(const uint16_t *p, int64_t stride, int64_t n) {
  uint16_t t[VL] = {0};
  for (int64_t i = 0; i < n && i < VL; i++) t[i] = p[i * stride];
  return vload_halves(t);
}

/* VL words whose lower halves are the values, rounded; the upper ones are zeros. */
INLINE vi halves_rounded(vf v) {
  typedef uint32_t vw __attribute__((vector_size(VL * 4), may_alias));
  const vi bits = vbits(v), magnitude = bits & viset1(0x7fffffff);
  const vi high = (vi)((vw)bits >> 16), near = (vi)((vw)(bits + viset1(0x7fff) + (high & viset1(1))) >> 16);
  const vi kept = visel(vilt(magnitude, viset1(0x00800000)), high & viset1(0x8000), near);
  return visel(vilt(viset1(0x7f800000), magnitude), high | viset1(0x40), kept);
}

/* Stores VL values, or the first n. with: the processor has the instruction. */
#if VL == 16
#ifdef ASPEN_AVX512_BF16
INLINE __m256i halves_narrow(const int with, vf v) {
  if (!with) return _mm512_cvtepi32_epi16((__m512i)halves_rounded(v));
  __m256i words;
  __asm__("vcvtneps2bf16 %1, %0" : "=v"(words) : "v"(v));
  return words;
}
#else
INLINE __m256i halves_narrow(const int with, vf v) { return _mm512_cvtepi32_epi16((__m512i)halves_rounded(v)); }
#endif
INLINE void vstore_halves(const int with, uint16_t *p, vf v) { _mm256_storeu_si256((__m256i *)p, halves_narrow(with, v)); }
INLINE void vstore_halves_part(const int with, uint16_t *p, vf v, int64_t n) { _mm256_mask_storeu_epi16(p, vpart_(n), halves_narrow(with, v)); }
#else
INLINE void vstore_halves_part(const int with, uint16_t *p, vf v, int64_t n) {
  const vi words = halves_rounded(v);
  for (int64_t i = 0; i < n && i < VL; i++) p[i] = (uint16_t)words[i];
}
INLINE void vstore_halves(const int with, uint16_t *p, vf v) { vstore_halves_part(with, p, v, VL); }
#endif
INLINE void vstore_halves_strided(uint16_t *p, int64_t stride, vf v, int64_t n) {
  const vi words = halves_rounded(v);
  for (int64_t i = 0; i < n && i < VL; i++) p[i * stride] = (uint16_t)words[i];
}

/* Elements at, at + stride …, n of them or VL. half: they are stored as bf16, else f32. */
INLINE vf vload_values(const char *p, const int half, int64_t at, int64_t stride, int64_t n) {
  if (half) {
    const uint16_t *from = (const uint16_t *)p + at;
    return stride != 1 ? vload_halves_strided(from, stride, n) : n >= VL ? vload_halves(from) : vload_halves_part(from, n);
  }
  const float *from = (const float *)p + at;
  return stride == 1 ? vload_part(from, n) : vload_strided(from, stride, n);
}
INLINE void vstore_values(char *p, const int half, const int with, int64_t at, int64_t stride, vf v, int64_t n) {
  if (half) {
    uint16_t *to = (uint16_t *)p + at;
    if (stride != 1) vstore_halves_strided(to, stride, v, n);
    else if (n >= VL) vstore_halves(with, to, v);
    else vstore_halves_part(with, to, v, n);
    return;
  }
  float *to = (float *)p + at;
  if (stride == 1) vstore_part(to, v, n);
  else vstore_strided(to, stride, v, n);
}

#endif
