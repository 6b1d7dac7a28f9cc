/* Sums of products by AMX, for int8.c and bf16.c. A strip of up to 32 rows is multiplied with a panel of ASPEN_NR columns, in 2 x 2
 * registers.
 *
 * Both types lie alike: a group is four bytes, and a panel has ASPEN_NR groups of successive terms side by side (int8.h, bf16.h). So a
 * register of left factors is loaded from the rows themselves, and one of right factors from the panel as it is.
 *
 * A run of terms is cut into chunks of up to 16 groups. Where chunks of one size do not fill it, the rest of every run is added in a second
 * pass, with registers of another shape. So the order of summation follows from the number of runs and groups alone.
 */
#ifndef ASPEN_AMX_SUMS_H
#define ASPEN_AMX_SUMS_H
#include "gemm/mm.h"
#include "vector/amx.h"

enum {
  AMX_BLOCKS = 4,                /* blocks of MM_ROWS rows at most that are summed together: a strip */
  AMX_STRIP = 2 * AMX_ROWS,      /* rows of a strip, at most */
  AMX_LINE = ASPEN_NR * AMX_GROUP /* bytes of a group of a panel */
};
_Static_assert(AMX_BLOCKS * MM_ROWS <= AMX_STRIP && ASPEN_NR == 2 * AMX_LANES, "");

typedef enum amx_type { AMX_BYTES, AMX_BF16 } amx_type;

/* The left factors of a tile. Steps in bytes. */
typedef struct amx_terms {
  int64_t groups;      /* of a run */
  int64_t runs[2];     /* outer and inner */
  int64_t run_step[2]; /* between them */
  int64_t row_step;    /* between rows */
} amx_terms;

/* The registers' shapes. They change seldom, and to change them takes as long as a dozen products. */
typedef struct amx_use {
  int rows;
  int64_t depth;
} amx_use;

/* The rows of the strip that begins with block i of `blocks` blocks of `rows` rows (mm_cut); 0 where none does. */
INLINE int amx_strip(int64_t rows, int64_t blocks, int64_t i) {
  const int64_t end = i + AMX_BLOCKS < blocks ? i + AMX_BLOCKS : blocks;
  return i % AMX_BLOCKS ? 0 : (int)(mm_cut(rows, blocks, end) - mm_cut(rows, blocks, i));
}

enum { AMX_A = 4, AMX_B = 6 }; /* registers: four of sums, two of rows, two of columns */

INLINE void amx_shape(const int real, amx_registers *r, amx_use *use, int rows, int64_t depth) {
  if (real && use->rows == rows && use->depth == depth) return;
  *use = (amx_use){rows, depth};
  amx_shapes shapes = {.palette = 1};
  for (int t = 0; t < AMX_REGISTERS; t++) {
    const int second = t < AMX_A ? t / 2 : t - AMX_A;
    const int left = second ? rows - AMX_ROWS : rows < AMX_ROWS ? rows : AMX_ROWS;
    shapes.rows[t] = (uint8_t)(t >= AMX_B ? depth : left > 0 ? left : 0);
    shapes.row_bytes[t] = (uint16_t)(shapes.rows[t] == 0 ? 0 : t >= AMX_A && t < AMX_B ? depth * AMX_GROUP : AMX_ROW_BYTES);
  }
  amx_configure(real, r, &shapes);
}

INLINE void amx_dot(const amx_type type, const int real, amx_registers *r, const int sum, const int a, const int b) {
  if (type == AMX_BYTES) amx_dot_bytes(real, r, sum, a, b);
  else amx_dot_bf16(real, r, sum, a, b);
}

/* Adds `chunks` chunks of `depth` groups of each run, from group `from` on. more: to the sums that are there. */
INLINE void amx_pass(const amx_type type, const int real, amx_registers *r, const amx_terms *x, int rows, const char *a, const char *panel,
                     int64_t from, int64_t chunks, int64_t depth, int more, char *sums) {
  const int64_t half = AMX_ROW_BYTES, below = AMX_ROWS * AMX_LINE;
  const int two = rows > AMX_ROWS;
  if (more) {
    amx_load(real, r, 0, sums, AMX_LINE), amx_load(real, r, 1, sums + half, AMX_LINE);
    if (two) amx_load(real, r, 2, sums + below, AMX_LINE), amx_load(real, r, 3, sums + below + half, AMX_LINE);
  } else {
    amx_zero(real, r, 0), amx_zero(real, r, 1);
    if (two) amx_zero(real, r, 2), amx_zero(real, r, 3);
  }
  for (int64_t i = 0; i < x->runs[0]; i++)
    for (int64_t j = 0; j < x->runs[1]; j++) {
      const char *at = a + i * x->run_step[0] + j * x->run_step[1] + from * AMX_GROUP;
      const char *b = panel + ((i * x->runs[1] + j) * x->groups + from) * AMX_LINE;
      for (int64_t c = 0; c < chunks; c++, at += depth * AMX_GROUP, b += depth * AMX_LINE) {
        amx_load(real, r, AMX_B, b, AMX_LINE);
        amx_load(real, r, AMX_A, at, x->row_step);
        amx_dot(type, real, r, 0, AMX_A, AMX_B);
        amx_load(real, r, AMX_B + 1, b + half, AMX_LINE);
        amx_dot(type, real, r, 1, AMX_A, AMX_B + 1);
        if (!two) continue;
        amx_load(real, r, AMX_A + 1, at + AMX_ROWS * x->row_step, x->row_step);
        amx_dot(type, real, r, 2, AMX_A + 1, AMX_B);
        amx_dot(type, real, r, 3, AMX_A + 1, AMX_B + 1);
      }
    }
  amx_store(real, r, 0, sums, AMX_LINE), amx_store(real, r, 1, sums + half, AMX_LINE);
  if (two) amx_store(real, r, 2, sums + below, AMX_LINE), amx_store(real, r, 3, sums + below + half, AMX_LINE);
}

/* sums[rows][ASPEN_NR], of 32 bits each, of the rows from `a` on times the terms of a panel. */
INLINE void amx_sums(const amx_type type, const int real, const amx_terms *x, amx_use *use, int rows, const char *a, const char *panel,
                     void *sums) {
  amx_registers r; /* the twin's */
  if (!x->groups) {
    memset(sums, 0, (size_t)rows * AMX_LINE);
    return;
  }
  const int64_t most = AMX_LANES, fewest = (x->groups + most - 1) / most, even = x->groups % fewest == 0;
  const int64_t depth = even ? x->groups / fewest : most, whole = x->groups / depth, rest = x->groups - whole * depth;
  amx_shape(real, &r, use, rows, depth);
  amx_pass(type, real, &r, x, rows, a, panel, 0, whole, depth, 0, sums);
  if (!rest) return;
  amx_shape(real, &r, use, rows, rest);
  amx_pass(type, real, &r, x, rows, a, panel, whole * depth, 1, rest, 1, sums);
}

/* The same by instructions, or by the twin. */
INLINE void amx_sums_as(enum aspen_amx how, const amx_type type, const amx_terms *x, amx_use *use, int rows, const char *a, const char *panel,
                        void *sums) {
  if (AMX_REAL && how == ASPEN_AMX_REAL) amx_sums(type, AMX_REAL, x, use, rows, a, panel, sums);
  else amx_sums(type, 0, x, use, rows, a, panel, sums);
}

/* Behind the last sums of a tile: no registers are in use between tiles, so that a worker that sleeps holds none. */
INLINE void amx_done(enum aspen_amx how) {
  if (how == ASPEN_AMX_REAL) amx_release(AMX_REAL);
}

#endif
