/* Transposition of a matrix of 1-, 2-, 4-, 8- or 16-byte elements, in blocks that fit L1. */
#ifndef ASPEN_TRANSPOSE_H
#define ASPEN_TRANSPOSE_H
#include "vector/nd.h"

#define TRANSPOSE_BLOCK 16 /* 16 lines of either side; at most 16 × 16 × 16 bytes = 4 KB each */

typedef uint32_t tr_v4 __attribute__((vector_size(16), aligned(4), may_alias));

/* 4 × 4 elements of 4 bytes: out row r (r along the input's unit stride), column c. */
static inline void transpose_4x4(char *out, int64_t so, const char *in, int64_t si) {
  tr_v4 r0 = *(const tr_v4 *)in, r1 = *(const tr_v4 *)(in + si), r2 = *(const tr_v4 *)(in + 2 * si), r3 = *(const tr_v4 *)(in + 3 * si);
  tr_v4 a = __builtin_shuffle(r0, r1, (tr_v4){0, 4, 1, 5}), b = __builtin_shuffle(r2, r3, (tr_v4){0, 4, 1, 5});
  tr_v4 d = __builtin_shuffle(r0, r1, (tr_v4){2, 6, 3, 7}), e = __builtin_shuffle(r2, r3, (tr_v4){2, 6, 3, 7});
  *(tr_v4 *)out = __builtin_shuffle(a, b, (tr_v4){0, 1, 4, 5});
  *(tr_v4 *)(out + so) = __builtin_shuffle(a, b, (tr_v4){2, 3, 6, 7});
  *(tr_v4 *)(out + 2 * so) = __builtin_shuffle(d, e, (tr_v4){0, 1, 4, 5});
  *(tr_v4 *)(out + 3 * so) = __builtin_shuffle(d, e, (tr_v4){2, 3, 6, 7});
}

/* out[r][c] = in[c][r]. In out, rows are `so` bytes apart and columns contiguous; in `in`, rows are contiguous and columns `si` bytes
 * apart. */
static inline void transpose(char *out, int64_t so, const char *in, int64_t si, int64_t rows, int64_t columns, size_t size) {
  const int64_t unit = (int64_t)size;
  if (columns < 4) { /* images of few channels: each column runs along its own line of the input */
    for (int64_t c = 0; c < columns; c++) nd_copy_row(out + c * unit, so, in + c * si, unit, rows, size);
    return;
  }
  for (int64_t r0 = 0; r0 < rows; r0 += TRANSPOSE_BLOCK)
    for (int64_t c0 = 0; c0 < columns; c0 += TRANSPOSE_BLOCK) {
      const int64_t r1 = nd_min(rows, r0 + TRANSPOSE_BLOCK), c1 = nd_min(columns, c0 + TRANSPOSE_BLOCK);
      int64_t r = r0;
      if (size == 4)
        for (; r + 4 <= r1; r += 4) {
          int64_t k = c0;
          for (; k + 4 <= c1; k += 4) transpose_4x4(out + r * so + k * 4, so, in + k * si + r * 4, si);
          for (int64_t q = r; q < r + 4 && k < c1; q++) nd_copy_row(out + q * so + k * 4, 4, in + k * si + q * 4, si, c1 - k, 4);
        }
      for (; r < r1; r++) nd_copy_row(out + r * so + c0 * unit, unit, in + c0 * si + r * unit, si, c1 - c0, size);
    }
}

#endif
