/* Weights of 16 bits become floats, exactly: a panel of them for many rows, or term by term for few. See low_bit.h. */
#include "gemm/low_bit.h"

#include "vector/half.h"

#define PANEL_VECTORS (ASPEN_NR / VL)
#define AHEAD 2048 /* bytes of a panel: the hardware follows no stream beyond a page */

/* The even (0) or odd (1) term of words of one vector of columns. */
INLINE vf weight(const int BF16, vi words, const int odd) {
  vi half = words; /* in the lower bits, unless bf16 */
  if (BF16 && odd) half &= viset1(INT32_MIN >> 15);
  else if (BF16) half <<= 16;
  else if (odd) half >>= 16;
  if (BF16) return vfrombits(half);
#if VL == 16
  return _mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)half));
#elif VL == 8
  const __m256i lower = (__m256i)(half & viset1(0xffff)), packed = _mm256_packus_epi32(lower, lower);
  return _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
#else
  vf x;
  for (int i = 0; i < VL; i++) x[i] = f16_to_f32((uint16_t)half[i]);
  return x;
#endif
}

/* Both terms of the words of a panel's columns, or one of them. */
INLINE void unpack_pair(const int BF16, const int32_t *b, const int even, const int odd, float *to) {
#if VL == 16
  if (!BF16 && even && odd) { /* all columns of a term side by side first: that is one instruction for two vectors */
    static const uint16_t lanes[32] = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34, 36, 38, 40, 42, 44, 46, 48, 50, 52, 54, 56, 58, 60, 62};
    const __m512i low = (__m512i)viload(b), high = (__m512i)viload(b + VL), at = _mm512_loadu_si512(lanes);
    const __m512i terms[2] = {_mm512_permutex2var_epi16(low, at, high), _mm512_permutex2var_epi16(low, _mm512_add_epi16(at, _mm512_set1_epi16(1)), high)};
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++, to += ASPEN_NR) {
      vstore(to, _mm512_cvtph_ps(_mm512_castsi512_si256(terms[i])));
      vstore(to + VL, _mm512_cvtph_ps(_mm512_extracti64x4_epi64(terms[i], 1)));
    }
    return;
  }
#endif
#pragma GCC unroll 8
  for (int v = 0; v < PANEL_VECTORS && even; v++) vstore(to + v * VL, weight(BF16, viload(b + v * VL), 0));
  to += even ? ASPEN_NR : 0;
#pragma GCC unroll 8
  for (int v = 0; v < PANEL_VECTORS && odd; v++) vstore(to + v * VL, weight(BF16, viload(b + v * VL), 1));
}

INLINE void unpack(const int BF16, const char *panel, int64_t lo, int64_t hi, float *to) {
  const int32_t *b = (const int32_t *)panel + lo / 2 * ASPEN_NR;
  if (lo % 2 && lo < hi) unpack_pair(BF16, b, 0, 1, to), to += ASPEN_NR, b += ASPEN_NR, lo++;
  for (; lo + 2 <= hi; lo += 2, b += ASPEN_NR, to += 2 * ASPEN_NR) {
    __builtin_prefetch((const char *)b + AHEAD);
    __builtin_prefetch((const char *)b + AHEAD + 64);
    unpack_pair(BF16, b, 1, 1, to);
  }
  if (lo < hi) unpack_pair(BF16, b, 1, 0, to);
}

void FN(halves_unpack)(const nbits *w, const char *panel, int64_t lo, int64_t hi, float *to) {
  if (w->bf16) unpack(1, panel, lo, hi, to);
  else unpack(0, panel, lo, hi, to);
}

/* A term of R rows, times vector v of panel p, whose words are d. */
INLINE void term(const int R, const int BF16, const float *const *x, const int odd, vi d, vf *sum) {
  const vf w = weight(BF16, d, odd);
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) sum[r * PANEL_VECTORS] = vfma(vset1(x[r][odd]), w, sum[r * PANEL_VECTORS]);
}

/* R rows times P panels. */
INLINE void few(const int R, const int P, const int BF16, const nbits *w, const float *const *a, const char *b, float *sums) {
  const int64_t panel = w->panel;
  const char *const end = b + panel;
  vf sum[NBITS_MOST * PANEL_VECTORS];
#pragma GCC unroll 64
  for (int i = 0; i < R * P * PANEL_VECTORS; i++) sum[i] = vzero();
  const float *x[NBITS_ROWS];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) x[r] = a[r];
  int64_t terms = w->k;
  for (; terms >= 2; terms -= 2, b += NBITS_WORDS) {
    const char *ahead = b + (end - b > AHEAD ? AHEAD : AHEAD + (P - 1) * panel); /* behind these panels lie the next */
#pragma GCC unroll 4
    for (int p = 0; p < P; p++) {
      __builtin_prefetch(ahead + p * panel);
      __builtin_prefetch(ahead + p * panel + 64);
#pragma GCC unroll 8
      for (int v = 0; v < PANEL_VECTORS; v++) {
        const vi d = viload((const int32_t *)(b + p * panel) + v * VL);
        term(R, BF16, x, 0, d, sum + p * R * PANEL_VECTORS + v);
        term(R, BF16, x, 1, d, sum + p * R * PANEL_VECTORS + v);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) x[r] += 2;
  }
  if (terms)
#pragma GCC unroll 4
    for (int p = 0; p < P; p++)
#pragma GCC unroll 8
      for (int v = 0; v < PANEL_VECTORS; v++)
        term(R, BF16, x, 0, viload((const int32_t *)(b + p * panel) + v * VL), sum + p * R * PANEL_VECTORS + v);
#pragma GCC unroll 64
  for (int i = 0; i < R * P * PANEL_VECTORS; i++) vstore(sums + i * VL, sum[i]);
}

typedef void few_fn(const nbits *, const float *const *, const char *, float *);
#define FEW(R, P, BF16)                                                                                                            \
  static void few_##R##x##P##_##BF16(const nbits *w, const float *const *a, const char *b, float *sums) { few(R, P, BF16, w, a, b, sums); }
#define FORMS(R, P) FEW(R, P, 0) FEW(R, P, 1)
#define NAMES(R, P) {few_##R##x##P##_0, few_##R##x##P##_1}
#if NBITS_ROWS == 8
FORMS(1, 1) FORMS(1, 2) FORMS(1, 3) FORMS(1, 4) FORMS(2, 1) FORMS(2, 2) FORMS(3, 1) FORMS(3, 2) FORMS(4, 1) FORMS(4, 2)
FORMS(5, 1) FORMS(6, 1) FORMS(7, 1) FORMS(8, 1)
#else
FORMS(1, 1) FORMS(2, 1) FORMS(3, 1)
#if VL == 8
FORMS(1, 2)
#endif
#endif
static few_fn *const fews[NBITS_ROWS][4][2] = {
#if NBITS_ROWS == 8
  {NAMES(1, 1), NAMES(1, 2), NAMES(1, 3), NAMES(1, 4)},
  {NAMES(2, 1), NAMES(2, 2)}, {NAMES(3, 1), NAMES(3, 2)}, {NAMES(4, 1), NAMES(4, 2)},
  {NAMES(5, 1)}, {NAMES(6, 1)}, {NAMES(7, 1)}, {NAMES(8, 1)},
#elif VL == 8
  {NAMES(1, 1), NAMES(1, 2)}, {NAMES(2, 1)}, {NAMES(3, 1)},
#else
  {NAMES(1, 1)}, {NAMES(2, 1)}, {NAMES(3, 1)},
#endif
};

void FN(halves_few)(const nbits *w, int rows, const float *const *a, const char *b, int panels, float *sums) {
  fews[rows - 1][panels - 1][w->bf16](w, a, b, sums);
}
