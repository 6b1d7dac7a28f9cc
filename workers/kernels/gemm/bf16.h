/* Blocks of products of bf16, summed in f32, two terms at a time.
 *
 * Left factors are rows of words of 32 bits, each two successive terms, the lower half the even one. A row may be cut into runs of pairs,
 * at even distances. Right factors come in panels of ASPEN_NR columns, panel[run][pair][column], words too. Behind the last of an odd
 * number of terms is a zero. Every output element is summed in ascending order of its pairs, from zero on, in whatever block it lies. The
 * processor adds a pair in one instruction (AVX512_BF16, aspen_isa_bf16: no denormal numbers), or by two multiply-adds, the odd term first.
 *
 * Plans may ask for the sums of AMX instead, which have another order (amx_sums.h). Blocks of rows are then summed together, in strips,
 * and every processor makes the same bits.
 */
#ifndef ASPEN_BF16_H
#define ASPEN_BF16_H
#include "gemm/amx_sums.h"

#define BF16_PANEL_BYTES (ASPEN_NR * 4) /* of a pair of a panel */

/* The parameters that all blocks of a tile share. Steps in words. */
typedef struct bf16_job {
  mm_job finish;        /* the epilogue */
  int64_t pairs;        /* of a run */
  int64_t runs[2];      /* outer and inner */
  int64_t run_step[2];  /* between them */
  int64_t a_step;       /* between rows of a block */
  int64_t panel;        /* words of a panel */
  int with;             /* the processor has the instruction */
  int most;             /* rows of a block */
  enum aspen_amx amx;   /* whether strips are summed first, and how */
  amx_use use;
} bf16_job;

INLINE int64_t bf16_pairs(int64_t terms) { return (terms + 1) / 2; }

/* Operands whose values are f32, or stored as bf16. */
INLINE int bf16_or_f32(const aspen_arg *x) { return x->dtype == ASPEN_DT_F32 || x->dtype == ASPEN_DT_BF16; }
INLINE int64_t bf16_item(const aspen_arg *x) { return x->dtype == ASPEN_DT_BF16 ? 2 : 4; } /* bytes */

/* Words between rows of a copy: not so many that rows compete for the same sets of L1. */
#define BF16_SET 256
INLINE int64_t bf16_step(int64_t terms) {
  const int64_t words = bf16_pairs(terms);
  return words % BF16_SET ? words : words + 16;
}

/* Fills in `with`, `most` and, if the plan has the sums of AMX, `amx`. */
void FN(bf16_open)(bf16_job *job, int64_t amx);

/* `from`, values of this dtype, in pairs: bf16_pairs(n) words. Values of f32 are rounded, those of bf16 only move. The terms are `stride`
 * apart. */
void FN(bf16_row)(const bf16_job *job, uint32_t *to, const void *from, int dtype, int64_t stride, int64_t n);

/* Rounds n terms to bf16, to nearest even: bf16_pairs(n) words. With the instruction, and for AMX, denormal ones are zeros. */
void FN(bf16_round)(const bf16_job *job, uint32_t *to, const float *from, int64_t n);

/* sums[rows][ASPEN_NR] of the rows of a strip (amx_strip), the first at `a`, times the panel. */
void FN(bf16_strip)(bf16_job *job, int rows, const uint32_t *a, const uint32_t *panel, float *sums);

/* rows->rows rows from `a` on times columns [first, last) of the panel at `column`. Used of `rows`: the fields of the epilogue (mm.h), and
 * `next`, which is brought nearer meanwhile, `next_step` bytes a pair. sums: those of the block, of a strip, which may be overwritten;
 * NULL: they are to be made. */
void FN(bf16_block)(const bf16_job *job, const mm_rows *rows, const uint32_t *a, const uint32_t *panel, float *sums, int64_t column,
                    int64_t first, int64_t last);

#endif
