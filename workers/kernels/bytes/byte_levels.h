/* Values as bytes without a quotient for each, where the scale allows that, for two rows of columns at a time. */
#ifndef ASPEN_BYTE_LEVELS_H
#define ASPEN_BYTE_LEVELS_H
#include "bytes/byte_sums.h"
#include "bytes/int8.h"

#define FAR_LEVEL 1e6f      /* beyond any level */
#define QUICK_SCALE 1e20f   /* scales of quick levels lie within this and its reciprocal … */
#define QUICK_ZERO 255     /* … and zero points this near 0 */
#define QUICK_BITS 15      /* of the mantissa of a scale that decide whether levels are quick */
#define QUICK_DISTANCE 16  /* of these bits from a multiple of 2^QUICK_BITS, at least */

/* Whether x * reciprocal + x * rest, each step rounded, and then rounded to a whole number, is x / scale rounded twice, wherever that is
 * within 510. The first sum is within 2^-47 of the quotient, so its rounding differs only next to the middle between two floats. One of
 * these must be half an odd number below 2^10, or the whole numbers are the same. Be X and S the mantissas of x and of the scale. The
 * distance from such a middle is |X 2^k - (2^QUICK_BITS i ± 1) S|, with whole numbers i and k >= 24. It is at least the distance of S
 * from a multiple of 2^QUICK_BITS, in parts of less than 2^50. */
INLINE int quick_scale(float scale) {
  if (!(scale > 1 / QUICK_SCALE && scale < QUICK_SCALE)) return 0;
  uint32_t bits;
  memcpy(&bits, &scale, sizeof bits);
  const uint32_t above = bits & ((1u << QUICK_BITS) - 1);
  return above >= QUICK_DISTANCE && above <= (1u << QUICK_BITS) - QUICK_DISTANCE;
}

/* Levels between `lowest` and `highest`: the nearest to a quotient, plus `zero`. */
typedef struct range {
  vf zero, lowest, highest;
} range;
INLINE range range_of(float zero, float lowest) { return (range){vset1(zero), vset1(lowest), vset1(lowest) + vset1(255)}; }

/* Bytes, as QUANTIZE finds them, in the lanes. */
INLINE vi level_of(const range *of, vf q) { return vtoi(vmin(of->highest, vmax(vround(q) + of->zero, of->lowest))); }

INLINE void store_levels(uint8_t *to, vi level) {
#if VL == 16
  _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8((__m512i)level));
#else
  int32_t each[VL];
  vistore(each, level);
  for (int k = 0; k < VL; k++) to[k] = (uint8_t)each[k];
#endif
}

/* Operands of quick levels: see quick_scale. */
typedef struct quick {
  vf reciprocal, rest, most;
  vi zero; /* of 16 bits */
} quick;

#if VL > 4
INLINE quick quick_of(const int8_job *job) {
  return (quick){vset1(job->reciprocal), vset1(job->reciprocal_rest), vset1(job->scale) * vset1(FAR_LEVEL),
                 viset1((int32_t)((uint32_t)(uint16_t)(int16_t)job->zero * 0x10001u))};
}
/* The nearest integers to what they hold. */
INLINE vi nearest(vf x) {
#if VL == 16
  return (vi)_mm512_cvtps_epi32(x);
#else
  return (vi)_mm256_cvtps_epi32(x);
#endif
}
/* x in units of the scale. NaN and all far below 0 become INT32_MIN, whose level is the lowest. */
INLINE vi quick_quotient(const quick *by, vf x) {
  x = vmin(by->most, x);
  return nearest(vfma(x, by->reciprocal, x * by->rest));
}
/* The levels of q, WIDTH columns of two rows, at `to` and `below`. */
INLINE void quick_levels(const quick *by, int is_signed, const vi q[2 * VECTORS], uint8_t *to, uint8_t *below) {
#if VL == 16
  const __m512i zero = (__m512i)by->zero, order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i a = _mm512_adds_epi16(_mm512_packs_epi32((__m512i)q[0], (__m512i)q[1]), zero);
  const __m512i b = _mm512_adds_epi16(_mm512_packs_epi32((__m512i)q[2], (__m512i)q[3]), zero);
  const __m512i both = _mm512_permutexvar_epi32(order, is_signed ? _mm512_packs_epi16(a, b) : _mm512_packus_epi16(a, b));
  _mm256_storeu_si256((__m256i *)to, _mm512_castsi512_si256(both));
  _mm256_storeu_si256((__m256i *)below, _mm512_extracti64x4_epi64(both, 1));
#else
  const __m256i zero = (__m256i)by->zero, order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i a = _mm256_adds_epi16(_mm256_packs_epi32((__m256i)q[0], (__m256i)q[1]), zero);
  const __m256i b = _mm256_adds_epi16(_mm256_packs_epi32((__m256i)q[2], (__m256i)q[3]), zero);
  const __m256i both = _mm256_permutevar8x32_epi32(is_signed ? _mm256_packs_epi16(a, b) : _mm256_packus_epi16(a, b), order);
  _mm_storeu_si128((__m128i *)to, _mm256_castsi256_si128(both));
  _mm_storeu_si128((__m128i *)below, _mm256_extracti128_si256(both, 1));
#endif
}
#if VL == 16
/* The levels of q, VL columns of two rows. */
INLINE void quick_half(const quick *by, int is_signed, const vi q[2], uint8_t *to, uint8_t *below) {
  const __m512i zero = (__m512i)by->zero, order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i a = _mm512_adds_epi16(_mm512_packs_epi32((__m512i)q[0], (__m512i)q[1]), zero);
  const __m256i both = _mm512_castsi512_si256(_mm512_permutexvar_epi32(order, is_signed ? _mm512_packs_epi16(a, a) : _mm512_packus_epi16(a, a)));
  _mm_storeu_si128((__m128i *)to, _mm256_castsi256_si128(both));
  _mm_storeu_si128((__m128i *)below, _mm256_extracti128_si256(both, 1));
}
#endif
#else /* portable fused operations round twice: no scale is quick */
INLINE quick quick_of(const int8_job *job) { return (quick){vzero(), vzero(), vzero(), viset1(0)}; }
INLINE vi nearest(vf x) { return vbits(x); }
INLINE vi quick_quotient(const quick *by, vf x) { return vbits(x); }
INLINE void quick_levels(const quick *by, int is_signed, const vi q[2 * VECTORS], uint8_t *to, uint8_t *below) {}
#endif

enum { NOTHING, FLOATS, SIGNED, UNSIGNED }; /* residuals */

/* VL bytes in the lanes. */
INLINE vi unsigned_bytes(const void *from) {
#if VL == 16
  return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)from));
#elif VL == 8
  return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)from));
#else
  int32_t each[VL];
  for (int k = 0; k < VL; k++) each[k] = ((const uint8_t *)from)[k];
  return viload(each);
#endif
}
INLINE vi signed_bytes(const void *from) {
#if VL == 16
  return (vi)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from));
#elif VL == 8
  return (vi)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)from));
#else
  int32_t each[VL];
  for (int k = 0; k < VL; k++) each[k] = ((const int8_t *)from)[k];
  return viload(each);
#endif
}

/* The values of VL residuals. */
INLINE vf residuals_of(const int8_job *job, const int joins, const char *from) {
  if (joins == FLOATS) return vload((const float *)from);
  const vi levels = joins == SIGNED ? signed_bytes(from) : unsigned_bytes(from);
  return vfromi(plus(levels, viset1(-job->residual_zero))) * vset1(job->residual_scale);
}

#endif
