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
  int64_t residual_stride; /* between columns of a residual of bytes */
  float residual_scale;    /* of a residual of bytes, whose values are (byte - residual_zero) * residual_scale */
  int32_t residual_zero;
  uint8_t residual_type; /* f32, or bytes */
  int64_t panel;         /* bytes of a panel */
  float scale, reciprocal, zero, lowest; /* of bytes that are written */
  float reciprocal_rest;  /* 1 / scale less the reciprocal, see `quick` */
  uint8_t unit;           /* the scale is 1 */
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

/* Left factors of a block. */
typedef struct int8_terms {
  int rows, taps;
  const uint8_t *const *runs; /* [taps], of the first row */
  const char *next;           /* brought nearer meanwhile, `next_step` bytes a group; NULL: more of the panel */
  int64_t next_step;
} int8_terms;

/* The rows of a block. Pointers are those of column 0; bias, residual and factor are NULL in row 0 or in none. */
typedef struct int8_rows {
  int8_terms terms;
  int alike;                  /* all rows have the same zero, bias and factor */
  int32_t *sums;              /* [rows][ASPEN_NR], made elsewhere, which may be overwritten; NULL: they are to be made */
  char *out[MM_MAX_ROWS];
  const float *bias[MM_MAX_ROWS], *factor[MM_MAX_ROWS];
  const void *residual[MM_MAX_ROWS];             /* f32, or bytes as the job says */
  uint32_t zero[MM_MAX_ROWS], rest[MM_MAX_ROWS]; /* z, and sum a - K z (read where there are zero points of columns) */
} int8_rows;

/* Columns of a panel whose sums become bytes by a factor, a bias and a residual alone. */
typedef struct int8_columns {
  int32_t offset[ASPEN_NR]; /* of sums */
  float factor[ASPEN_NR], bias[ASPEN_NR];
  const char *panel;
  int64_t column, first, last; /* [first, last) of the box; the panel begins at `column` */
  int bounded;                 /* integers hold all that sums become without a residual */
} int8_columns;

/* A block of rows whose outputs lie `out_step` bytes apart, and residuals `residual_step` elements. Pointers are those of column 0. */
typedef struct int8_pixels {
  int8_terms terms;
  int32_t *sums; /* as those of int8_rows */
  uint8_t *out;
  const void *residual;
  int64_t out_step, residual_step;
} int8_pixels;

INLINE int64_t int8_groups(int64_t terms) { return (terms + INT8_GROUP - 1) / INT8_GROUP; }

/* Fills in all but groups, a_step, panel and runs, from the output, bias, residual and factor (or absent ones), whose columns lie along
 * `axis`. The parameters are y and `last` = {ACT(3), residual_last, f64 scale, zero, f64 scale and zero of a
 * residual of bytes}. Returns 0, or ASPEN_KERNEL_BAD_ARGUMENT. */
int FN(int8_open)(int8_job *job, const aspen_arg *out, const aspen_arg *bias, const aspen_arg *residual, const aspen_arg *factor, int axis,
                  int64_t zeros, const int64_t *last);

/* Fills in what bytes of this type, scale and zero point need. */
void FN(int8_scale)(int8_job *job, uint8_t dtype, double scale, int64_t zero);

/* sums[rows][ASPEN_NR] of the rows of a strip (amx_strip), the first at `a`, times the panel. */
void FN(int8_strip)(int8_job *job, int rows, const uint8_t *a, const char *panel, int32_t *sums);

/* sums[rows][ASPEN_NR] of a block, of up to `columns` columns of the panel from column `at` of it on; at: a multiple of WIDTH. */
void FN(int8_sums)(const int8_job *job, const int8_terms *terms, const char *panel, int at, int columns, int32_t *sums);

/* Whether int8_levels serves the job, for rows that share zero point, bias and factor. */
int FN(int8_has_levels)(const int8_job *job);
/* Gathers what a panel's columns need. bias, factor: of column 0, or NULL. zero: of the rows. */
void FN(int8_gather)(int8_columns *to, const int8_job *job, const char *panel, int64_t column, int64_t first, int64_t last, const float *bias,
                     const float *factor, uint32_t zero);
void FN(int8_levels)(const int8_job *job, const int8_columns *columns, const int8_pixels *block);

/* The block times columns [first, last) of the panel at `column`. */
void FN(int8_block)(const int8_job *job, const int8_rows *rows, const char *panel, int64_t column, int64_t first, int64_t last);

/* A pixel [image, :, y, z] of an operand of the epilogue, from channel 0 on; NULL where it is absent. */
INLINE const void *int8_pixel(const aspen_arg *x, int64_t image, int64_t y, int64_t z) {
  if (!x->dtype) return NULL;
  return x->ptr + (image * x->strides[0] + y * x->strides[2] + z * x->strides[3]) * (x->dtype == ASPEN_DT_F32 ? 4 : 1);
}
/* Whether all pixels have the same factor. */
INLINE int int8_one_factor(const aspen_arg *out, const aspen_arg *factor) {
  const int axes[] = {0, 2, 3};
  int one = 1;
  for (int i = 0; i < 3; i++) one &= !factor->dtype || out->dims[axes[i]] == 1 || factor->strides[axes[i]] == 0;
  return one;
}

/* Copies bytes, unsigned: `flip` is 128 for signed ones. */
INLINE void int8_copy(uint8_t *to, const uint8_t *from, int64_t stride, int64_t n, uint8_t flip) {
  if (stride == 1 && !flip) memcpy(to, from, (size_t)n);
  else if (stride == 1)
    for (int64_t i = 0; i < n; i++) to[i] = from[i] ^ flip;
  else
    for (int64_t i = 0; i < n; i++) to[i] = from[i * stride] ^ flip;
}

#endif
