/* Blocks of products of bytes, summed exactly in 32 bits, for QGEMM, QCONV and QDWCONV.
 *
 * Left factors are rows of unsigned bytes: `taps` runs of whole groups of four terms each. Signed ones have 128 added, and so has their
 * zero point. Right factors are packed in panels: three rows of 32-bit numbers, then groups of four signed bytes for each column. The rows
 * are the columns' sums over all terms, their zero points y and their constants. Processors multiply and sum such groups in one instruction
 * (VNNI), four products a lane; others do it in two sums of pairs. AMX sums blocks of rows together, in strips (amx_sums.h). Sums of
 * integers are exact in any order, so the bits are the same everywhere.
 *
 * Zero points come off afterwards: sum (a - z)(b - y) = sum a b - z sum b - (sum a - K z) y, K terms.
 */
#ifndef ASPEN_INT8_H
#define ASPEN_INT8_H
#include "gemm/amx_sums.h"

enum {
  INT8_GROUP = ASPEN_BYTES_GROUP,         /* terms side by side */
  INT8_PANEL_GROUP = INT8_GROUP * ASPEN_NR, /* bytes of a group of a panel */
  INT8_HEADER = ASPEN_BYTES_HEADER * ASPEN_NR * 4 /* bytes in front of it */
};

/* The parameters that all blocks of a tile share. */
typedef struct int8_job {
  mm_job finish;         /* the epilogue; strides in elements */
  int64_t groups;        /* of a run */
  int64_t a_step;        /* bytes between rows of a block */
  int64_t factor_stride; /* between columns; 0: one for all */
  int64_t panel;         /* bytes of a panel */
  float scale, reciprocal, zero, lowest; /* of bytes that are written */
  float reciprocal_rest;  /* 1 / scale less the reciprocal, see `quick` */
  float level_reciprocal; /* of the step between levels that the epilogue rounds to */
  uint8_t dtype;         /* of the output: f32, i32 (sums), or bytes */
  uint8_t scaled;        /* there are factors */
  uint8_t zeros;         /* there are zero points of columns */
  uint8_t with;          /* the processor has the instruction */
  uint8_t divide;        /* by scale: the reciprocal is not good enough */
  uint8_t quick;         /* levels follow from the reciprocal and its rest (byte_levels.h) */
  uint8_t levelled;      /* the epilogue rounds to levels, and that of their step is */
  int most;              /* rows of a block */
  enum aspen_amx amx;    /* whether strips are summed first, and how */
  int64_t runs[2];       /* of a row of such a strip, outer and inner; 1 and 1 if nobody says */
  int64_t run_step[2];   /* bytes between them */
  amx_use use;
} int8_job;

/* The rows of a block. Pointers are those of column 0; bias, residual and factor are NULL in row 0 or in none. */
typedef struct int8_rows {
  int rows, taps;
  int alike;                  /* all rows have the same zero, bias and factor */
  const uint8_t *const *runs; /* [taps], of the first row */
  int32_t *sums;              /* [rows][ASPEN_NR], made elsewhere, which may be overwritten; NULL: they are to be made */
  char *out[MM_MAX_ROWS];
  const float *bias[MM_MAX_ROWS], *residual[MM_MAX_ROWS], *factor[MM_MAX_ROWS];
  uint32_t zero[MM_MAX_ROWS], rest[MM_MAX_ROWS]; /* z, and sum a - K z (read where there are zero points of columns) */
  const char *next;           /* brought nearer meanwhile, `next_step` bytes a group; NULL: more of the panel */
  int64_t next_step;
} int8_rows;

INLINE int64_t int8_groups(int64_t terms) { return (terms + INT8_GROUP - 1) / INT8_GROUP; }

/* Fills in all but groups, a_step, panel and runs, from the output, bias, residual and factor (or absent ones), whose columns lie along
 * `axis`. The parameters are y and `last` = {ACT(3), residual_last, f64 scale, zero}. Returns 0, or ASPEN_KERNEL_BAD_ARGUMENT. */
int FN(int8_open)(int8_job *job, const aspen_arg *out, const aspen_arg *bias, const aspen_arg *residual, const aspen_arg *factor, int axis,
                  int64_t zeros, const int64_t *last);

/* sums[rows][ASPEN_NR] of the rows of a strip (amx_strip), the first at `a`, times the panel. */
void FN(int8_strip)(int8_job *job, int rows, const uint8_t *a, const char *panel, int32_t *sums);

/* The block times columns [first, last) of the panel at `column`. */
void FN(int8_block)(const int8_job *job, const int8_rows *rows, const char *panel, int64_t column, int64_t first, int64_t last);

/* Copies bytes, unsigned: `flip` is 128 for signed ones. */
INLINE void int8_copy(uint8_t *to, const uint8_t *from, int64_t stride, int64_t n, uint8_t flip) {
  if (stride == 1 && !flip) memcpy(to, from, (size_t)n);
  else if (stride == 1)
    for (int64_t i = 0; i < n; i++) to[i] = from[i] ^ flip;
  else
    for (int64_t i = 0; i < n; i++) to[i] = from[i * stride] ^ flip;
}

#endif
