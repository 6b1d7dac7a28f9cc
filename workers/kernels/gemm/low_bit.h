/* Weights of 4, 8 or 16 bits, as QNBITGEMM has them. A weight of 4 or 8 bits is w = (q - z) * s. Each column and block of terms has its
 * scale s and perhaps a zero point z. Weights of 16 bits are f16 or bf16, without any of these.
 *
 * A panel of ASPEN_NR columns is its blocks, one behind the other. A block is the columns' scales (f32), their zero points (bytes, where
 * each has its own), and groups of terms. A group has as many terms as 32 bits hold, a word a column. Term t of the group is the bits from
 * t * bits on. So a vector of words is a vector of columns on every ISA, and a shift brings any of its terms down. Groups do not straddle
 * blocks; behind the last term of all are zeros.
 *
 * q - z is exact and times s rounds once, as in DEQUANTIZE and DequantizeLinear; f16 and bf16 become floats exactly. So sums of such
 * weights have the bits of GEMM's.
 */
#ifndef ASPEN_LOW_BIT_H
#define ASPEN_LOW_BIT_H
#include "gemm/mm.h"

enum {
  NBITS_WORDS = 4 * ASPEN_NR,  /* bytes of a group of a panel */
  NBITS_SCALES = 4 * ASPEN_NR, /* bytes in front of each block … */
  NBITS_ZEROS = ASPEN_NR       /* … and of its zero points */
};

typedef struct nbits {
  int bits, zeros;  /* of a weight: 4, 8 or 16; whether each column of a block has a zero point */
  int bf16;         /* of 16 bits: whether they are those; else f16 */
  float zero;       /* else that of all */
  int64_t k, block; /* terms of a column, and of a block; the last may be shorter */
  int64_t panel;    /* bytes */
} nbits;

/* From the parameters {bits, block, zeros, zero} of a product of k terms, and its weights. Returns 0, or ASPEN_KERNEL_BAD_ARGUMENT. */
int FN(nbits_open)(nbits *w, const int64_t *params, int64_t k, const aspen_arg *b, int64_t columns);

/* The weights of a panel: to[k][ASPEN_NR]. */
void FN(nbits_unpack)(const nbits *w, const char *panel, float *to);

/* For 16 bits (halves.c): the terms [lo, hi) of a panel, to[hi - lo][ASPEN_NR]; the same as nbits_few. */
void FN(halves_unpack)(const nbits *w, const char *panel, int64_t lo, int64_t hi, float *to);
void FN(halves_few)(const nbits *w, int rows, const float *const *a, const char *b, int panels, float *sums);

/* Few rows (NBITS_FEW) are multiplied with weights as they come from memory; for more, a panel is unpacked once. A pass over few rows takes
 * several panels together, because sums wait for each other, as long as there are registers. */
#if VL == 16
#define NBITS_ROWS 8 /* of a pass */
#define NBITS_FEW 32
INLINE int nbits_panels(const nbits *w, int64_t rows) { return rows == 1 ? 4 : rows == 2 || (w->bits != 4 && rows <= 4) ? 2 : 1; }
#else
#define NBITS_ROWS 3
#define NBITS_FEW NBITS_ROWS
INLINE int nbits_panels(const nbits *w, int64_t rows) { return w->bits && rows == 1 && VL == 8 ? 2 : 1; }
#endif
#define NBITS_MOST 8 /* rows times panels of a pass */

/* Sums of up to NBITS_ROWS rows, whose terms are contiguous, as mm_block makes them, times 1 to nbits_panels panels:
 * sums[panels][rows][ASPEN_NR]. */
void FN(nbits_few)(const nbits *w, int rows, const float *const *a, const char *b, int panels, float *sums);

#endif
