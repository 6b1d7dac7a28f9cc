/* Weights of 4 or 8 bits become floats: a panel of them for many rows, or term by term for few; of 16 see halves.c. See low_bit.h. */
#include "gemm/low_bit.h"

#define PANEL_VECTORS (ASPEN_NR / VL)
#define TOGETHER (VL == 16 ? PANEL_VECTORS : 1) /* vectors of columns whose terms take turns: as many as there are registers for */
#define AHEAD 2048 /* bytes of a panel: the hardware follows no stream beyond a page */

int FN(nbits_open)(nbits *w, const int64_t *params, int64_t k, const aspen_arg *b, int64_t columns) {
  const int64_t bits = params[0], block = params[1], zeros = params[2], zero = params[3];
  if ((bits != 4 && bits != 8 && bits != 16) || block < 1 || (block % (32 / bits) && block < k) || zeros < 0 || zeros > 1 || zero < 0 || zero >= (bits == 16 ? 2 : 1 << bits) ||
      (bits == 16 && zeros))
    return ASPEN_KERNEL_BAD_ARGUMENT;
  const int64_t per = 32 / bits, blocks = k > 0 ? (k - 1) / block + 1 : 0, header = bits == 16 ? 0 : NBITS_SCALES + (zeros ? NBITS_ZEROS : 0);
  *w = (nbits){.bits = (int)bits, .zeros = (int)zeros, .zero = (float)zero, .bf16 = bits == 16 && zero, .k = k, .block = block};
  w->panel = blocks * header + (k + per - 1) / per * NBITS_WORDS;
  if (b->dtype != ASPEN_DT_U8 || b->rank != 2 || b->dims[0] < (columns + ASPEN_NR - 1) / ASPEN_NR || b->dims[1] != w->panel ||
      (b->dims[0] > 1 && b->strides[0] != w->panel) || (w->panel > 1 && b->strides[1] != 1) || (uintptr_t)b->ptr % 4)
    return ASPEN_KERNEL_BAD_ARGUMENT;
  return 0;
}

/* The registers that turn the words of one vector of columns into weights. */
typedef struct levels {
  vf table, zero, scale; /* table: of all levels less the zero point of all (4 bits, no others, 16 lanes) */
} levels;

INLINE levels levels_of(const nbits *w, const int BITS, const int ZEROS) {
  levels l = {.zero = vset1(w->zero)};
#if VL == 16
  l.table = vfromi(vilanes());
  if (BITS == 4 && !ZEROS) l.table -= l.zero;
#else
  (void)BITS, (void)ZEROS;
#endif
  return l;
}

/* Scales and zero points of vector v of the columns of a block. */
INLINE void open_block(levels *l, const int ZEROS, const char *block, int v) {
  l->scale = vload((const float *)block + v * VL);
  if (!ZEROS) return;
#if VL == 16
  l->zero = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(block + NBITS_SCALES + v * VL))));
#elif VL == 8
  l->zero = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(block + NBITS_SCALES + v * VL))));
#else
  const uint8_t *z = (const uint8_t *)block + NBITS_SCALES + v * VL;
  l->zero = (vf){z[0], z[1], z[2], z[3]};
#endif
}

/* The weights of term t of a group, of a vector of columns. */
INLINE vf weights(const levels *l, const int BITS, const int ZEROS, vi words, const int t) {
  const vi down = words >> (t * BITS);
#if VL == 16
  if (BITS == 4) {
    const vf level = _mm512_permutexvar_ps((__m512i)down, l->table); /* looks at the lowest four bits */
    return (ZEROS ? (vf)(level - l->zero) : level) * l->scale;
  }
#endif
  return (vfromi(down & viset1((1 << BITS) - 1)) - l->zero) * l->scale;
}

INLINE void unpack(const int BITS, const int ZEROS, const nbits *w, const char *b, float *to) {
  const int PER = 32 / BITS;
  levels l[PANEL_VECTORS];
#pragma GCC unroll 8
  for (int v = 0; v < PANEL_VECTORS; v++) l[v] = levels_of(w, BITS, ZEROS);
  for (int64_t k = 0; k < w->k; k += w->block) {
    int64_t terms = w->k - k < w->block ? w->k - k : w->block;
#pragma GCC unroll 8
    for (int v = 0; v < PANEL_VECTORS; v++) open_block(&l[v], ZEROS, b, v);
    b += NBITS_SCALES + (ZEROS ? NBITS_ZEROS : 0);
    for (; terms > 0; terms -= PER, b += NBITS_WORDS) {
      __builtin_prefetch(b + AHEAD);
      __builtin_prefetch(b + AHEAD + 64);
      vi d[PANEL_VECTORS];
#pragma GCC unroll 8
      for (int v = 0; v < PANEL_VECTORS; v++) d[v] = viload((const int32_t *)b + v * VL);
#pragma GCC unroll 8
      for (int t = 0; t < PER; t++) {
        if (t >= terms) break;
#pragma GCC unroll 8
        for (int v = 0; v < PANEL_VECTORS; v++) vstore(to + v * VL, weights(&l[v], BITS, ZEROS, d[v], t));
        to += ASPEN_NR;
      }
    }
  }
}

void FN(nbits_unpack)(const nbits *w, const char *panel, float *to) {
  if (w->bits == 16) {
    FN(halves_unpack)(w, panel, 0, w->k, to);
  } else if (w->bits == 4) {
    if (w->zeros) unpack(4, 1, w, panel, to);
    else unpack(4, 0, w, panel, to);
  } else {
    if (w->zeros) unpack(8, 1, w, panel, to);
    else unpack(8, 0, w, panel, to);
  }
}

/* Term t of a group of R rows, times vector v of panel p, whose words are d. */
INLINE void term(const int R, const int BITS, const int ZEROS, const float *const *x, const int t, vi d, const levels *l, vf *sum) {
  const vf w = weights(l, BITS, ZEROS, d, t);
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) sum[r * PANEL_VECTORS] = vfma(vset1(x[r][t]), w, sum[r * PANEL_VECTORS]);
}

/* R rows times P panels. */
INLINE void few(const int R, const int P, const int BITS, const int ZEROS, const nbits *w, const float *const *a, const char *b, float *sums) {
  const int PER = 32 / BITS;
  const int64_t panel = w->panel, header = NBITS_SCALES + (ZEROS ? NBITS_ZEROS : 0);
  const char *const end = b + panel;
  vf sum[NBITS_MOST * PANEL_VECTORS];
#pragma GCC unroll 64
  for (int i = 0; i < R * P * PANEL_VECTORS; i++) sum[i] = vzero();
  const float *x[NBITS_ROWS];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) x[r] = a[r];
  levels l[NBITS_MOST][PANEL_VECTORS];
#pragma GCC unroll 4
  for (int p = 0; p < P; p++)
#pragma GCC unroll 8
    for (int v = 0; v < PANEL_VECTORS; v++) l[p][v] = levels_of(w, BITS, ZEROS);
  for (int64_t k = 0; k < w->k; k += w->block) {
    int64_t terms = w->k - k < w->block ? w->k - k : w->block;
#pragma GCC unroll 4
    for (int p = 0; p < P; p++)
#pragma GCC unroll 8
      for (int v = 0; v < PANEL_VECTORS; v++) open_block(&l[p][v], ZEROS, b + p * panel, v);
    b += header;
    for (; terms >= PER; terms -= PER, b += NBITS_WORDS) {
      const char *ahead = b + (end - b > AHEAD ? AHEAD : AHEAD + (P - 1) * panel); /* behind these panels lie the next */
#pragma GCC unroll 4
      for (int p = 0; p < P; p++) {
        __builtin_prefetch(ahead + p * panel);
        __builtin_prefetch(ahead + p * panel + 64);
        vi d[PANEL_VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < PANEL_VECTORS; v++) d[v] = viload((const int32_t *)(b + p * panel) + v * VL);
#pragma GCC unroll 8
        for (int u = 0; u < PANEL_VECTORS; u += TOGETHER)
#pragma GCC unroll 8
          for (int t = 0; t < PER; t++)
#pragma GCC unroll 2
            for (int v = u; v < u + TOGETHER; v++) term(R, BITS, ZEROS, x, t, d[v], &l[p][v], sum + p * R * PANEL_VECTORS + v);
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) x[r] += PER;
    }
    if (!terms) continue;
#pragma GCC unroll 1
    for (int t = 0; t < (int)terms; t++)
#pragma GCC unroll 4
      for (int p = 0; p < P; p++)
#pragma GCC unroll 8
        for (int v = 0; v < PANEL_VECTORS; v++)
          term(R, BITS, ZEROS, x, t, viload((const int32_t *)(b + p * panel) + v * VL), &l[p][v], sum + p * R * PANEL_VECTORS + v);
  } /* a block that ends within a group is the last */
#pragma GCC unroll 64
  for (int i = 0; i < R * P * PANEL_VECTORS; i++) vstore(sums + i * VL, sum[i]);
}

typedef void few_fn(const nbits *, const float *const *, const char *, float *);
#define FEW(R, P, BITS, ZEROS)                                                                                                     \
  static void few_##R##x##P##_##BITS##_##ZEROS(const nbits *w, const float *const *a, const char *b, float *sums) {                \
    few(R, P, BITS, ZEROS, w, a, b, sums);                                                                                         \
  }
#define FORMS(R, P) FEW(R, P, 4, 0) FEW(R, P, 4, 1) FEW(R, P, 8, 0) FEW(R, P, 8, 1)
#define NAMES(R, P) {few_##R##x##P##_4_0, few_##R##x##P##_4_1, few_##R##x##P##_8_0, few_##R##x##P##_8_1}
#if NBITS_ROWS == 8
FORMS(1, 1) FORMS(1, 2) FORMS(1, 3) FORMS(1, 4) FORMS(2, 1) FORMS(2, 2) FORMS(3, 1) FORMS(4, 1)
FEW(3, 2, 8, 0) FEW(3, 2, 8, 1) FEW(4, 2, 8, 0) FEW(4, 2, 8, 1)
FORMS(5, 1) FORMS(6, 1) FORMS(7, 1) FORMS(8, 1)
#else
FORMS(1, 1) FORMS(2, 1) FORMS(3, 1)
#if VL == 8
FORMS(1, 2)
#endif
#endif
static few_fn *const fews[NBITS_ROWS][4][4] = {
#if NBITS_ROWS == 8
  {NAMES(1, 1), NAMES(1, 2), NAMES(1, 3), NAMES(1, 4)},
  {NAMES(2, 1), NAMES(2, 2)}, {NAMES(3, 1), {NULL, NULL, few_3x2_8_0, few_3x2_8_1}}, {NAMES(4, 1), {NULL, NULL, few_4x2_8_0, few_4x2_8_1}},
  {NAMES(5, 1)}, {NAMES(6, 1)}, {NAMES(7, 1)}, {NAMES(8, 1)},
#elif VL == 8
  {NAMES(1, 1), NAMES(1, 2)}, {NAMES(2, 1)}, {NAMES(3, 1)},
#else
  {NAMES(1, 1)}, {NAMES(2, 1)}, {NAMES(3, 1)},
#endif
};

void FN(nbits_few)(const nbits *w, int rows, const float *const *a, const char *b, int panels, float *sums) {
  if (w->bits == 16) FN(halves_few)(w, rows, a, b, panels, sums);
  else fews[rows - 1][panels - 1][(w->bits == 8 ? 2 : 0) + w->zeros](w, a, b, sums);
}
