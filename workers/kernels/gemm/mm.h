/* Blocks of a matrix product: the inner loops that GEMM and CONV share.
 *
 * A block is up to MM_ROWS rows of A, each with its own pointer, or MM_EVEN_ROWS that lie evenly, times columns of B. B comes in panels of
 * ASPEN_NR columns, b[panel][k][column]. Rows may be cut into taps (convolution): tap t of row r is `k` terms at a[t * rows + r], and B
 * runs on through all taps. Every output element is summed in ascending k by one vfma per term from zero on, in whatever block it lies. So
 * a caller may cut rows and columns as it likes without changing a bit.
 */
#ifndef ASPEN_MM_H
#define ASPEN_MM_H
#include "vector/epilogue.h"
#include "kernel.h"
#include "vector/vec.h"

#if VL == 16
#define MM_ROWS 8       /* 8 x 2 accumulators: more pointers find no registers */
#define MM_EVEN_ROWS 14 /* 14 x 2 of rows that lie evenly, three to a pointer */
#else
#define MM_ROWS 6 /* 6 x 2 accumulators in 16 registers */
#define MM_EVEN_ROWS MM_ROWS
#endif

#define MM_MAX_ROWS ASPEN_MAX_ROWS /* the largest MM_EVEN_ROWS of any ISA */
#define MM_SET_BYTES 4096 /* rows a multiple of this many bytes apart compete for the same sets of L1 */

/* The parameters that all blocks of a tile share. Strides in elements. */
typedef struct mm_job {
  int64_t k;        /* terms of a tap */
  int64_t a_stride; /* between the terms of a row */
  int64_t b_stride; /* between the terms of a column */
  int64_t b_panel;  /* between panels */
  int64_t out_stride, bias_stride, residual_stride; /* between columns */
  float alpha;
  uint8_t one_bias; /* all rows have the same bias */
  uint8_t scaled;   /* multiply by alpha */
  uint8_t direct;   /* unit strides: sums go from registers to the output */
  uint8_t half_out, half_residual; /* of bf16.c alone: they are stored as bf16, and pointers of rows point at such values */
  epilogue epilogue;
  const float *scale, *shift; /* [columns], unit stride, or both NULL; of column 0 */
} mm_job;

/* The rows of one block. Pointers are those of column 0; bias and residual are NULL in row 0 or in none. With one_bias, row 0's bias is
 * that of all rows and the others are not read. */
typedef struct mm_rows {
  int rows, taps;
  const float *const *a; /* [taps][rows]; of more than MM_ROWS rows the first alone */
  int64_t a_step;        /* between rows, elements, with more than MM_ROWS: then there is one tap, terms are contiguous, and B is packed */
  float *out[MM_EVEN_ROWS];
  const float *bias[MM_EVEN_ROWS], *residual[MM_EVEN_ROWS];
  const char *next;  /* what is multiplied with after this panel, brought nearer meanwhile: `next_step` bytes a term. NULL: nothing */
  int64_t next_step;
  uint8_t stream;    /* instead: nothing but this block is multiplied with B, packed; it is brought nearer ahead of the reading */
  /* A panel in parts, for up to MM_ROWS rows. from: the sums [rows][ASPEN_NR] of the terms before these, or NULL. to: where the sums go if
   * other parts follow, or NULL. */
  const float *from;
  float *to;
} mm_rows;

/* Fill in the epilogue from the parameters {ACT(3), residual_last} at params, and `direct` from the strides set before. Returns 0, or
 * ASPEN_KERNEL_BAD_ARGUMENT. */
int FN(mm_prepare)(mm_job *job, const int64_t *params);

/* How many panels one pass over a block of `rows` rows should take together: few rows need more columns to keep the multipliers busy. */
INLINE int mm_panels(int64_t rows) {
#if VL == 16
  return rows <= 3 ? 4 : rows <= 6 ? 2 : 1;
#else
  return rows == 1 ? 2 : 1;
#endif
}

/* Columns [first, last) of the block; b points to panel column / ASPEN_NR, column <= first. */
void FN(mm_block)(const mm_job *job, const mm_rows *rows, const float *b, int64_t column, int64_t first, int64_t last);

/* Finishes the sums of a block, made elsewhere: sums[rows][ASPEN_NR] of the panel at `column`, which may be overwritten. Columns [first,
 * last) of the box are written. */
void FN(mm_finish)(const mm_job *job, const mm_rows *rows, float *sums, int64_t column, int64_t first, int64_t last);

struct nbits;
/* GEMM by the left factors that STRASSEN has made (strassen.c). w: weights are of 16 bits, or NULL. Returns an enum aspen_kernel_error. The
 * scratch memory of products of `terms` terms; halves: of such weights. */
int FN(mm_strassen)(const aspen_call *c, const mm_job *gemm, const struct nbits *w);
size_t aspen_scratch_strassen(int64_t terms, int halves);

/* Products of few terms (pointwise.c): pixels `x_step` apart, each `taps` runs of `depth` terms `tap_step` apart. Their outputs are
 * `to_step` apart and their residuals `residual_step`. In elements, channels contiguous. */
#define MM_FEW_TERMS 128
#define MM_FEWEST_PIXELS 4
typedef struct mm_pixels {
  const epilogue *epilogue;
  int64_t taps, tap_step, depth, x_step, to_step, residual_step;
} mm_pixels;

/* Columns [lo, hi) of n >= MM_FEWEST_PIXELS neighbouring pixels, lo at the beginning of a panel. panels: panel 0, of rows that are used;
 * bias, residual (or NULL) and to: column 0. Sums are those of mm_block. */
void FN(mm_row_of_pixels)(const mm_pixels *w, const float *x, int64_t n, const float *panels, int64_t panel_step, const float *bias,
                          const float *residual, float *to, int64_t lo, int64_t hi);

/* CONV as a product of few terms (pointwise.c). Returns an enum aspen_kernel_error, or -1: it is none of those. */
int FN(pointwise)(const aspen_call *c, const epilogue *e);

/* Copies n ≤ ASPEN_NR columns of k_end terms into a panel, zeros behind them. Strides in elements. */
void FN(mm_pack)(float *panel, const float *b, int64_t k_stride, int64_t n_stride, int64_t k_end, int64_t n);

/* Number of blocks for `rows` rows, of sizes that differ by one at most. Block i of n is rows [mm_cut(rows, n, i), mm_cut(rows, n, i +
 * 1)). */
INLINE int64_t mm_blocks(int64_t rows) { return (rows + MM_ROWS - 1) / MM_ROWS; }
/* The same of rows that lie `step` elements apart, terms of one tap contiguous and B packed. */
INLINE int64_t mm_even_blocks(int64_t rows, int64_t step) {
  const int most = step * (int64_t)sizeof(float) % MM_SET_BYTES ? MM_EVEN_ROWS : MM_ROWS;
  return (rows + most - 1) / most;
}
INLINE int64_t mm_cut(int64_t rows, int64_t n, int64_t i) {
  const int64_t extra = rows % n;
  return rows / n * i + (i < extra ? i : extra);
}

#endif
