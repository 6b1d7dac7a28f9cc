/* IGEMM: products of matrices of bytes, summed exactly in 32 bits; out = act(factor S + bias + residual), or S itself.
 *
 * The bytes of A are taken as unsigned (signed ones have 128 added, and so has their zero point), those of B lie packed as signed ones, four
 * terms of a column side by side: that is what processors multiply and sum in one instruction (VNNI), four products a lane. Others do it in
 * two sums of pairs. As sums of integers are exact in any order, the bits are the same everywhere.
 *
 * Zero points come off afterwards: sum (a - z)(b - y) = sum a b - z sum b - (sum a - K z) y. The sums of B's columns and their zero points y
 * stand in front of each panel; those of A's rows are made once a tile, if there are any y.
 *
 * Loops: panels of ASPEN_NR columns, blocks of rows. Rows are read in place where they are unsigned, lie evenly, and are whole groups of
 * four; else the tile copies its rows to scratch memory first.
 */
#include "mm.h"

enum { GROUP = 4, PANEL_GROUP = GROUP * ASPEN_NR, HEADER = 2 * ASPEN_NR * (int)sizeof(int32_t) }; /* bytes */
#define VECTORS 2               /* of columns in a micro-kernel */
#define WIDTH (VECTORS * VL)    /* columns */
#define AHEAD 4096              /* bytes of a panel that are fetched ahead of the reading */
#define SPARE 64                /* bytes behind a copied row where rows would compete for the same sets of L1 */

/* Most rows of a block, with the instruction and without it: their sums stay in registers. */
#if VL == 16
#define OWN_ISA ASPEN_ISA_AVX512
#define ROWS_WITH MM_EVEN_ROWS
#define ROWS_WITHOUT 10
#elif VL == 8
#define OWN_ISA ASPEN_ISA_AVX2
#define ROWS_WITH 6
#define ROWS_WITHOUT 4
#else
#define OWN_ISA ASPEN_ISA_PORTABLE
#define ROWS_WITH 0
#define ROWS_WITHOUT 4
#endif

#define SUMS 32 /* vectors of sums in a micro-kernel, at most */

/* A row of the tile. Pointers are those of column 0. */
typedef struct row_place {
  const uint8_t *a;
  char *out;
  const float *bias, *residual, *factor;
  uint32_t zero; /* of the row, as an unsigned byte's */
  uint32_t rest; /* what the zero points of B's columns are multiplied with */
} row_place;

INLINE int64_t groups_of(int64_t k) { return (k + GROUP - 1) / GROUP; }
INLINE int64_t copied_row(int64_t k) {
  const int64_t bytes = (groups_of(k) * GROUP + 63) / 64 * 64;
  return bytes % MM_SET_BYTES ? bytes : bytes + SPARE;
}

#ifdef ISA_PORTABLE
size_t aspen_scratch_igemm(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *a = &c->args[1];
  size_t rows = 1;
  for (int i = 0; i + 1 < out->rank; i++) rows *= (size_t)(c->hi[i] - c->lo[i]);
  return rows * (sizeof(row_place) + (size_t)copied_row(a->dims[a->rank - 1])) + 64;
}
#endif

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

/* Bytes as two vectors of 16 bits: the even ones and the odd ones. */
typedef struct halves {
  vi even, odd;
} halves;
#if VL == 16
INLINE halves unsigned_halves(vi x) { return (halves){x & viset1(0x00ff00ff), (vi)_mm512_srli_epi16((__m512i)x, 8)}; }
INLINE halves signed_halves(vi x) {
  return (halves){(vi)_mm512_srai_epi16(_mm512_slli_epi16((__m512i)x, 8), 8), (vi)_mm512_srai_epi16((__m512i)x, 8)};
}
INLINE vi pairs(vi sum, vi a, vi b) { return sum + (vi)_mm512_madd_epi16((__m512i)a, (__m512i)b); }
#elif VL == 8
INLINE halves unsigned_halves(vi x) { return (halves){x & viset1(0x00ff00ff), (vi)_mm256_srli_epi16((__m256i)x, 8)}; }
INLINE halves signed_halves(vi x) {
  return (halves){(vi)_mm256_srai_epi16(_mm256_slli_epi16((__m256i)x, 8), 8), (vi)_mm256_srai_epi16((__m256i)x, 8)};
}
INLINE vi pairs(vi sum, vi a, vi b) { return sum + (vi)_mm256_madd_epi16((__m256i)a, (__m256i)b); }
#else
typedef int16_t words __attribute__((vector_size(VL * 4), may_alias));
INLINE halves unsigned_halves(vi x) { return (halves){x & viset1(0x00ff00ff), x >> 8 & viset1(0x00ff00ff)}; }
INLINE halves signed_halves(vi x) { return (halves){(vi)((words)x << 8 >> 8), (vi)((words)x >> 8)}; }
INLINE vi pairs(vi sum, vi a, vi b) {
  const vi p = (vi)((words)a * (words)b); /* of bytes: they fit */
  return sum + (p << 16 >> 16) + (p >> 16);
}
#endif

/* A group of terms of R rows, three to a pointer (more pointers find no registers), times WIDTH columns. with: the instruction is there. */
INLINE void group(const int R, const int with, const uint8_t *const *base, int64_t step, int64_t at, const int8_t *b, vi *sum) {
  const vi w[VECTORS] = {viload((const int32_t *)b), viload((const int32_t *)b + VL)};
  const halves both[VECTORS] = {signed_halves(w[0]), signed_halves(w[1])};
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) {
    int32_t four;
    memcpy(&four, base[r / 3] + (r % 3) * step + at, sizeof four);
    const vi x = viset1(four);
    if (with) {
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; v++) sum[r * VECTORS + v] = dots(sum[r * VECTORS + v], x, w[v]);
    } else {
      const halves y = unsigned_halves(x);
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; v++) sum[r * VECTORS + v] = pairs(pairs(sum[r * VECTORS + v], y.even, both[v].even), y.odd, both[v].odd);
    }
  }
}

/* R rows, `step` bytes apart, times WIDTH columns: sums[R][ASPEN_NR]. S: so many groups of terms have sums of their own, where rows are too few
 * to keep the multipliers busy. Meanwhile `next_step` bytes a group are brought nearer at `next`. */
INLINE void multiply(const int R, const int S, const int with, const uint8_t *a, int64_t step, const int8_t *b, int64_t groups, const char *next,
                     int64_t next_step, int32_t *sums) {
  vi sum[SUMS];
#pragma GCC unroll 64
  for (int i = 0; i < S * R * VECTORS; i++) sum[i] = (vi)vzero();
  const uint8_t *base[(ROWS_WITHOUT + ROWS_WITH + 2) / 3];
#pragma GCC unroll 8
  for (int r = 0; r < R; r += 3) base[r / 3] = a + r * step;
  int64_t g = 0;
  for (; g + S <= groups; g += S)
#pragma GCC unroll 4
    for (int s = 0; s < S; s++, b += PANEL_GROUP, next += next_step) {
      __builtin_prefetch(next, 0, 2);
      if (S > 1) __builtin_prefetch(next + next_step / 2, 0, 2);
      group(R, with, base, step, (g + s) * GROUP, b, sum + s * R * VECTORS);
    }
  if (S > 1)
    for (; g < groups; g++, b += PANEL_GROUP) group(R, with, base, step, g * GROUP, b, sum);
#pragma GCC unroll 4
  for (int s = 1; s < S; s++)
#pragma GCC unroll 32
    for (int i = 0; i < R * VECTORS; i++) sum[i] += sum[s * R * VECTORS + i];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; v++) vistore(sums + r * ASPEN_NR + v * VL, sum[r * VECTORS + v]);
}

typedef void multiply_fn(const uint8_t *, int64_t, const int8_t *, int64_t, const char *, int64_t, int32_t *);
#define MULTIPLY(R, S, WITH)                                                                                                       \
  static void multiply_##WITH##_##R(const uint8_t *a, int64_t step, const int8_t *b, int64_t groups, const char *next, int64_t next_step, \
                                    int32_t *sums) {                                                                               \
    multiply(R, S, WITH, a, step, b, groups, next, next_step, sums);                                                               \
  }
#if VL == 16
MULTIPLY(1, 4, 1) MULTIPLY(2, 4, 1) MULTIPLY(3, 4, 1) MULTIPLY(4, 2, 1) MULTIPLY(5, 2, 1) MULTIPLY(6, 2, 1) MULTIPLY(7, 1, 1)
MULTIPLY(8, 1, 1) MULTIPLY(9, 1, 1) MULTIPLY(10, 1, 1) MULTIPLY(11, 1, 1) MULTIPLY(12, 1, 1) MULTIPLY(13, 1, 1) MULTIPLY(14, 1, 1)
MULTIPLY(1, 2, 0) MULTIPLY(2, 2, 0) MULTIPLY(3, 2, 0) MULTIPLY(4, 1, 0) MULTIPLY(5, 1, 0) MULTIPLY(6, 1, 0) MULTIPLY(7, 1, 0)
MULTIPLY(8, 1, 0) MULTIPLY(9, 1, 0) MULTIPLY(10, 1, 0)
static multiply_fn *const multiply_with[] = {multiply_1_1, multiply_1_2,  multiply_1_3,  multiply_1_4,  multiply_1_5,  multiply_1_6,  multiply_1_7,
                                             multiply_1_8, multiply_1_9, multiply_1_10, multiply_1_11, multiply_1_12, multiply_1_13, multiply_1_14};
static multiply_fn *const multiply_without[] = {multiply_0_1, multiply_0_2, multiply_0_3, multiply_0_4, multiply_0_5,
                                                multiply_0_6, multiply_0_7, multiply_0_8, multiply_0_9, multiply_0_10};
#else
#if VL == 8
MULTIPLY(1, 4, 1) MULTIPLY(2, 2, 1) MULTIPLY(3, 2, 1) MULTIPLY(4, 1, 1) MULTIPLY(5, 1, 1) MULTIPLY(6, 1, 1)
static multiply_fn *const multiply_with[] = {multiply_1_1, multiply_1_2, multiply_1_3, multiply_1_4, multiply_1_5, multiply_1_6};
#endif
MULTIPLY(1, 1, 0) MULTIPLY(2, 1, 0) MULTIPLY(3, 1, 0) MULTIPLY(4, 1, 0)
static multiply_fn *const multiply_without[] = {multiply_0_1, multiply_0_2, multiply_0_3, multiply_0_4};
#endif

/* What is the same for all rows of a tile. */
typedef struct igemm_job {
  mm_job finish;
  const row_place *rows;
  int64_t groups, a_step, factor_stride;
  const aspen_arg *out;
  uint8_t with, zeros, scaled;
} igemm_job;

/* Zero points off WIDTH sums of a row, and the factor on them. */
INLINE void settle(const igemm_job *job, const row_place *row, const int32_t *header, int64_t column, int64_t last, int32_t *sums) {
  const vi zero = viset1((int32_t)row->zero), rest = viset1((int32_t)row->rest);
#pragma GCC unroll 2
  for (int v = 0; v < VECTORS; v++) {
    vi s = viload(sums + v * VL) - zero * viload(header + v * VL);
    if (job->zeros) s -= rest * viload(header + ASPEN_NR + v * VL);
    if (job->out->dtype == ASPEN_DT_I32) {
      vistore(sums + v * VL, s);
      continue;
    }
    vf y = vfromi(s);
    if (job->scaled) {
      const int64_t at = column + v * VL, left = last - at;
      const float *f = row->factor + at * job->factor_stride;
      y *= job->factor_stride == 0 ? vset1(*row->factor) : job->factor_stride == 1 ? (left > 0 ? vload_part(f, left) : vzero()) : vload_strided(f, job->factor_stride, left);
    }
    vstore((float *)sums + v * VL, y);
  }
}

/* Rows [row, row + n) times columns [first, last) of the panel at `column`. */
static void block(const igemm_job *job, int64_t row, int n, const char *panel, const char *next, int64_t next_step, int64_t column, int64_t first,
                  int64_t last) {
  int32_t sums[MM_MAX_ROWS * ASPEN_NR] __attribute__((aligned(64)));
  const row_place *rows = job->rows + row;
  for (int at = 0; at < ASPEN_NR; at += WIDTH) {
    if (column + at >= last || column + at + WIDTH <= first) continue;
    const int8_t *b = (const int8_t *)panel + HEADER + at * GROUP;
#if ROWS_WITH
    multiply_fn *f = job->with ? multiply_with[n - 1] : multiply_without[n - 1];
#else
    multiply_fn *f = multiply_without[n - 1];
#endif
    f(rows->a, job->a_step, b, job->groups, next ? next : (const char *)b + AHEAD, next ? next_step : PANEL_GROUP, sums + at);
    for (int r = 0; r < n; r++) settle(job, rows + r, (const int32_t *)panel + at, column + at, last, sums + r * ASPEN_NR + at);
  }
  if (job->out->dtype == ASPEN_DT_I32) {
    const int64_t stride = job->finish.out_stride;
    for (int r = 0; r < n; r++)
      for (int64_t j = first; j < last; j++) ((int32_t *)rows[r].out)[j * stride] = sums[r * ASPEN_NR + j - column];
    return;
  }
  for (int r = 0; r < n; r += MM_ROWS) {
    mm_rows to = {.rows = n - r < MM_ROWS ? n - r : MM_ROWS};
    for (int i = 0; i < to.rows; i++) {
      const row_place *p = rows + r + i;
      to.out[i] = (float *)p->out, to.bias[i] = p->bias, to.residual[i] = p->residual;
    }
    FN(mm_finish)(&job->finish, &to, (float *)sums + r * ASPEN_NR, column, first, last);
  }
}

/* Copies the terms of a row, unsigned, and zeros up to the end of a group. */
static void copy_row(uint8_t *to, const uint8_t *from, int64_t stride, int64_t k, uint8_t flip) {
  if (stride == 1)
    for (int64_t i = 0; i < k; i++) to[i] = from[i] ^ flip;
  else
    for (int64_t i = 0; i < k; i++) to[i] = from[i * stride] ^ flip;
  memset(to + k, 0, (size_t)(groups_of(k) * GROUP - k));
}

int FN(igemm)(const aspen_call *c) {
  enum { A, OUT, BIAS, RESIDUAL, FACTOR, ZERO, OPERANDS };
  const aspen_arg none = {0};
  const aspen_arg *out = &c->args[0], *a = &c->args[1], *b = &c->args[2], *operands[OPERANDS] = {a, out, &none, &none, &none, &none};
  for (uint32_t i = 2; i < c->n_inputs; i++)
    if (c->args[1 + i].dtype) operands[i] = &c->args[1 + i];
  const int rank = out->rank, n_axis = rank - 1, whole = out->dtype == ASPEN_DT_I32;
  if (rank < 2 || a->rank != rank || b->rank != 4 || b->dtype != ASPEN_DT_I8 || (a->dtype != ASPEN_DT_I8 && a->dtype != ASPEN_DT_U8))
    return ASPEN_KERNEL_BAD_ARGUMENT;
  if (!whole && out->dtype != ASPEN_DT_F32) return ASPEN_KERNEL_BAD_ARGUMENT;
  for (int i = BIAS; i < OPERANDS; i++) {
    if (!operands[i]->dtype) continue;
    if (operands[i]->rank != rank || operands[i]->dtype != (i == ZERO ? a->dtype : ASPEN_DT_F32)) return ASPEN_KERNEL_BAD_ARGUMENT;
    if (whole && i != ZERO) return ASPEN_KERNEL_BAD_ARGUMENT;
  }
  int64_t rows = 1;
  for (int i = 0; i < rank; i++) {
    if (c->lo[i] >= c->hi[i]) return 0;
    if (i < n_axis) rows *= c->hi[i] - c->lo[i];
  }

  const int64_t k = a->dims[n_axis], groups = groups_of(k), k_stride = a->strides[n_axis], copied = copied_row(k);
  const uint8_t flip = a->dtype == ASPEN_DT_I8 ? 0x80 : 0;
  if (c->scratch_bytes < (size_t)rows * (sizeof(row_place) + (size_t)copied) + 64) return ASPEN_KERNEL_SCRATCH;
  row_place *const places = c->scratch;
  uint8_t *copy = (uint8_t *)c->scratch + ((size_t)rows * sizeof(row_place) + 63) / 64 * 64;
  const aspen_arg *factor = operands[FACTOR], *zero = operands[ZERO], *bias = operands[BIAS], *residual = operands[RESIDUAL];
  igemm_job job = {.rows = places, .groups = groups, .out = out, .scaled = factor->dtype != 0, .zeros = c->params[0] != 0,
                   .with = (uint8_t)aspen_isa_vnni(OWN_ISA), .factor_stride = factor->dtype ? factor->strides[n_axis] : 0};
  job.finish = (mm_job){.k = k, .out_stride = out->strides[n_axis], .bias_stride = bias->dtype ? bias->strides[n_axis] : 1,
                        .residual_stride = residual->dtype ? residual->strides[n_axis] : 1, .alpha = 1.0f, .one_bias = 1};
  if (FN(mm_prepare)(&job.finish, c->params + 1)) return ASPEN_KERNEL_BAD_ARGUMENT;

  /* Where each row is. */
  int64_t index[ASPEN_MAX_RANK], at[OPERANDS] = {0};
  for (int i = 0; i < n_axis; i++) {
    index[i] = c->lo[i];
    job.finish.one_bias &= c->hi[i] - c->lo[i] == 1 || !bias->dtype || bias->strides[i] == 0;
    for (int o = 0; o < OPERANDS; o++)
      if (operands[o]->dtype) at[o] += operands[o]->strides[i] * c->lo[i];
  }
  int in_place = flip == 0 && k_stride == 1 && k % GROUP == 0;
  const uint8_t *const bytes = (const uint8_t *)a->ptr;
  for (int64_t r = 0; r < rows; r++) {
    row_place *p = &places[r];
    *p = (row_place){.a = bytes + at[A], .out = out->ptr + 4 * at[OUT],
                     .bias = bias->dtype ? (const float *)bias->ptr + at[BIAS] : NULL,
                     .residual = residual->dtype ? (const float *)residual->ptr + at[RESIDUAL] : NULL,
                     .factor = factor->dtype ? (const float *)factor->ptr + at[FACTOR] : NULL,
                     .zero = (zero->dtype ? (uint8_t)zero->ptr[at[ZERO]] : 0) ^ flip};
    in_place &= r < 2 || p->a - p[-1].a == places[1].a - places[0].a;
    for (int i = n_axis - 1; i >= 0; i--) {
      for (int o = 0; o < OPERANDS; o++)
        if (operands[o]->dtype) at[o] += operands[o]->strides[i];
      if (++index[i] < c->hi[i]) break;
      for (int o = 0; o < OPERANDS; o++)
        if (operands[o]->dtype) at[o] -= operands[o]->strides[i] * (c->hi[i] - c->lo[i]);
      index[i] = c->lo[i];
    }
  }
  job.a_step = rows > 1 ? places[1].a - places[0].a : 0;
  if (in_place && rows > 2 && job.a_step % MM_SET_BYTES == 0 && job.a_step) in_place = 0;
  if (!in_place) job.a_step = copied;
  for (int64_t r = 0; r < rows && (!in_place || job.zeros); r++) {
    row_place *p = &places[r];
    if (!in_place) {
      copy_row(copy + r * copied, p->a, k_stride, k, flip);
      p->a = copy + r * copied;
    }
    if (job.zeros) {
      uint32_t sum = 0;
      for (int64_t i = 0; i < k; i++) sum += p->a[i];
      p->rest = sum - (uint32_t)k * p->zero;
    }
  }

  const int most = job.with ? ROWS_WITH : ROWS_WITHOUT;
  const int64_t blocks = (rows + most - 1) / most, panel_bytes = HEADER + groups * PANEL_GROUP, n_hi = c->hi[n_axis];
  const int64_t share = blocks > 1 ? panel_bytes / blocks / 64 * 64 : 0; /* of the next panel, which each block brings nearer */
  for (int64_t n = c->lo[n_axis]; n < n_hi;) { /* panels start at multiples of ASPEN_NR, the box need not */
    const int64_t column = n / ASPEN_NR * ASPEN_NR, last = column + ASPEN_NR < n_hi ? column + ASPEN_NR : n_hi;
    const char *panel = b->ptr + column / ASPEN_NR * panel_bytes;
    for (int64_t i = 0, row = 0; i < blocks; i++) {
      const int64_t end = mm_cut(rows, blocks, i + 1);
      block(&job, row, (int)(end - row), panel, blocks > 1 ? panel + panel_bytes + i * share : NULL, share / (groups ? groups : 1), column, n, last);
      row = end;
    }
    n = last;
  }
  return 0;
}
