/* Sums of four products of bytes in each lane, with the processor's instruction and without it. Both are exact modulo 2^32. */
#ifndef ASPEN_BYTE_SUMS_H
#define ASPEN_BYTE_SUMS_H
#include "vector/vec.h"

#define VECTORS 2            /* of columns in a micro-kernel */
#define WIDTH (VECTORS * VL) /* columns */

/* sum[lane] += the four products of bytes a[lane] (unsigned) and b[lane] (signed). */
#if VL == 16 && defined(ASPEN_AVX512_VNNI)
INLINE vi dots(vi sum, vi a, vi b) {
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
}
#elif VL == 8 && defined(ASPEN_AVX_VNNI)
INLINE vi dots(vi sum, vi a, vi b) {
  __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
  return sum;
}
#else
INLINE vi dots(vi sum, vi a, vi b) { return sum; } /* never called */
#endif

/* Integers wrap around, as ONNX's do: in C unsigned ones. */
typedef uint32_t vu __attribute__((vector_size(VL * 4), may_alias));
INLINE vi plus(vi a, vi b) { return (vi)((vu)a + (vu)b); }

/* Bytes as two vectors of 16 bits: the even ones and the odd ones. */
typedef struct halves {
  vi even, odd;
} halves;
#if VL == 16
INLINE halves unsigned_halves(vi x) { return (halves){x & viset1(0x00ff00ff), (vi)_mm512_srli_epi16((__m512i)x, 8)}; }
INLINE halves signed_halves(vi x) {
  return (halves){(vi)_mm512_srai_epi16(_mm512_slli_epi16((__m512i)x, 8), 8), (vi)_mm512_srai_epi16((__m512i)x, 8)};
}
INLINE vi pairs(vi sum, vi a, vi b) { return plus(sum, (vi)_mm512_madd_epi16((__m512i)a, (__m512i)b)); }
#elif VL == 8
INLINE halves unsigned_halves(vi x) { return (halves){x & viset1(0x00ff00ff), (vi)_mm256_srli_epi16((__m256i)x, 8)}; }
INLINE halves signed_halves(vi x) {
  return (halves){(vi)_mm256_srai_epi16(_mm256_slli_epi16((__m256i)x, 8), 8), (vi)_mm256_srai_epi16((__m256i)x, 8)};
}
INLINE vi pairs(vi sum, vi a, vi b) { return plus(sum, (vi)_mm256_madd_epi16((__m256i)a, (__m256i)b)); }
#else
typedef int16_t words __attribute__((vector_size(VL * 4), may_alias));
INLINE halves unsigned_halves(vi x) { return (halves){x & viset1(0x00ff00ff), x >> 8 & viset1(0x00ff00ff)}; }
INLINE halves signed_halves(vi x) { return (halves){(vi)((words)x << 8 >> 8), (vi)((words)x >> 8)}; }
INLINE vi pairs(vi sum, vi a, vi b) {
  const vi p = (vi)((words)a * (words)b); /* of bytes: they fit */
  return plus(plus(sum, (vi)((vu)p << 16) >> 16), p >> 16);
}
#endif

#endif
