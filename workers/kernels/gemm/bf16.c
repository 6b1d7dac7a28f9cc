/* Micro-kernels of products of pairs of bf16: see bf16.h. */
#include "gemm/bf16.h"
#include "vector/half.h"
#include "gemm/mm_home.h"

#define VECTORS 2            /* of columns in a micro-kernel */
#define WIDTH (VECTORS * VL) /* columns */
#define FETCHED 4096         /* bytes of a panel that are fetched ahead of the reading */

/* Most rows of a block, with the instruction and without it: their sums stay in registers. */
#if VL == 16
#define ROWS_WITH MM_EVEN_ROWS
#define ROWS_WITHOUT 10
#elif VL == 8
#define ROWS_WITH 0
#define ROWS_WITHOUT 4
#else
#define ROWS_WITH 0
#define ROWS_WITHOUT 4
#endif

typedef uint32_t vu __attribute__((vector_size(VL * 4), may_alias));
INLINE vf even(vi x) { return (vf)((vu)x << 16); }
INLINE vf odd(vi x) { return (vf)(x & viset1(~0xffff)); }

/* sum[lane] += the two products of bf16 of a[lane] and b[lane]. */
#if VL == 16 && defined(ASPEN_AVX512_BF16)
INLINE vf pair_with(vf sum, vi a, vi b) {
  __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
}
INLINE vi round_with(vf low, vf high) {
  vi words;
  __asm__("vcvtne2ps2bf16 %2, %1, %0" : "=v"(words) : "v"(high), "v"(low));
  return words;
}
#else
INLINE vf pair_with(vf sum, vi a, vi b) { return sum + even(a) * even(b); }   /* never called */
INLINE vi round_with(vf low, vf high) { return vbits(low) & vbits(high); } /* nor this */
#endif

void FN(bf16_open)(bf16_job *job, int64_t amx) {
  job->with = aspen_isa_bf16(OWN_ISA);
  job->amx = amx ? aspen_isa_amx(OWN_ISA, 1) : ASPEN_AMX_OFF;
  job->most = job->amx ? MM_ROWS : job->with ? ROWS_WITH : ROWS_WITHOUT;
}

/* As the instruction rounds: denormal numbers before, which might round up to a normal one, are zeros. */
INLINE uint32_t round_one(const bf16_job *job, float x) {
  const uint32_t bits = half_bits(x);
  return f32_to_bf16(job->amx && !(bits & 0x7f800000) ? half_float(bits & 0x80000000) : x);
}

void FN(bf16_round)(const bf16_job *job, uint32_t *to, const float *from, int64_t n) {
  if (job->with) {
    int64_t i = 0;
    for (; i + 2 * VL <= n; i += 2 * VL) vistore((int32_t *)to + i / 2, round_with(vload(from + i), vload(from + i + VL)));
    const int64_t left = n - i, second = left > VL ? left - VL : 0;
    if (left) vistore_part((int32_t *)to + i / 2, round_with(vload_part(from + i, left), vload_part(from + i + VL, second)), bf16_pairs(left));
    return;
  }
  for (int64_t i = 0; i + 1 < n; i += 2) to[i / 2] = round_one(job, from[i]) | round_one(job, from[i + 1]) << 16;
  if (n % 2) to[n / 2] = round_one(job, from[n - 1]);
}

/* Values of bf16, `stride` apart, in pairs. */
static void move_halves(uint32_t *to, const uint16_t *from, int64_t stride, int64_t n) {
  if (n % 2) to[n / 2] = from[(n - 1) * stride];
  if (stride == 1)
    memcpy(to, from, (size_t)(n / 2) * sizeof *to);
  else
    for (int64_t i = 0; i + 1 < n; i += 2) to[i / 2] = from[i * stride] | (uint32_t)from[(i + 1) * stride] << 16;
}

void FN(bf16_row)(const bf16_job *job, uint32_t *to, const void *from, int dtype, int64_t stride, int64_t n) {
  if (dtype == ASPEN_DT_BF16) {
    move_halves(to, from, stride, n);
    return;
  }
  const float *x = from;
  if (stride == 1) {
    FN(bf16_round)(job, to, x, n);
    return;
  }
  for (int64_t k = 0; k < n; k += 2) {
    const float pair[2] = {x[k * stride], k + 1 < n ? x[(k + 1) * stride] : 0.0f};
    FN(bf16_round)(job, to + k / 2, pair, k + 1 < n ? 2 : 1);
  }
}

/* A pair of terms of R rows, three to a pointer (more pointers find no registers), times WIDTH columns. */
INLINE void pair(const int R, const int with, const uint32_t *const *base, int64_t step, int64_t at, const uint32_t *b, vf *sum) {
  const vi w[VECTORS] = {viload((const int32_t *)b), viload((const int32_t *)b + VL)};
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) {
    const vi x = viset1((int32_t)base[r / 3][(r % 3) * step + at]);
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; v++) {
      vf *s = sum + r * VECTORS + v;
      *s = with ? pair_with(*s, x, w[v]) : vfma(even(x), even(w[v]), vfma(odd(x), odd(w[v]), *s));
    }
  }
}

/* R rows times WIDTH columns, all sums in registers. By the time the sums are done, the lines they go to are here. */
INLINE void multiply(const int R, const int with, const bf16_job *job, const mm_rows *rows, const uint32_t *a, const uint32_t *b, int64_t column,
                     int64_t first, int64_t last) {
  vf sum[MM_MAX_ROWS * VECTORS];
#pragma GCC unroll 32
  for (int i = 0; i < R * VECTORS; i++) sum[i] = vzero();
  const char *out[2 * AHEAD], *beside[2 * AHEAD];
  if (job->runs[0] * job->runs[1] * job->pairs > 2 * AHEAD)
    lines_to_come(1, R, VECTORS, 2 * AHEAD, &job->finish, rows, column, (const char *)b, out, beside);
  else /* so many turns see no more of them */
    lines_to_come(1, R, VECTORS, AHEAD, &job->finish, rows, column, (const char *)b, out, beside);
  const int64_t step = job->a_step, pairs = job->pairs, next_step = rows->next ? rows->next_step : BF16_PANEL_BYTES;
  const char *next = rows->next ? rows->next : (const char *)b + FETCHED;
  int64_t turn = 0;
  for (int64_t i = 0; i < job->runs[0]; i++)
    for (int64_t j = 0; j < job->runs[1]; j++) {
      const uint32_t *base[(MM_MAX_ROWS + 2) / 3];
#pragma GCC unroll 8
      for (int r = 0; r < R; r += 3) base[r / 3] = a + i * job->run_step[0] + j * job->run_step[1] + r * step;
      for (int64_t k = 0; k < pairs; k++, b += ASPEN_NR, next += next_step, turn++) {
        __builtin_prefetch(next, 0, 2);
        if (turn % 2)
          __builtin_prefetch(beside[turn / 2 % (2 * AHEAD)]);
        else
          __builtin_prefetch(out[turn / 2 % (2 * AHEAD)], 1);
        pair(R, with, base, step, k, b, sum);
      }
    }
  home(1, with, R, VECTORS, &job->finish, rows, sum, column, first, last);
}

typedef void multiply_fn(const bf16_job *, const mm_rows *, const uint32_t *, const uint32_t *, int64_t, int64_t, int64_t);
#define MULTIPLY(R, WITH)                                                                                                          \
  static void multiply_##WITH##_##R(const bf16_job *job, const mm_rows *rows, const uint32_t *a, const uint32_t *b, int64_t column, int64_t first, \
                                    int64_t last) {                                                                                \
    multiply(R, WITH, job, rows, a, b, column, first, last);                                                                       \
  }
MULTIPLY(1, 0) MULTIPLY(2, 0) MULTIPLY(3, 0) MULTIPLY(4, 0)
#if VL == 16
MULTIPLY(5, 0) MULTIPLY(6, 0) MULTIPLY(7, 0) MULTIPLY(8, 0) MULTIPLY(9, 0) MULTIPLY(10, 0)
MULTIPLY(1, 1) MULTIPLY(2, 1) MULTIPLY(3, 1) MULTIPLY(4, 1) MULTIPLY(5, 1) MULTIPLY(6, 1) MULTIPLY(7, 1)
MULTIPLY(8, 1) MULTIPLY(9, 1) MULTIPLY(10, 1) MULTIPLY(11, 1) MULTIPLY(12, 1) MULTIPLY(13, 1) MULTIPLY(14, 1)
static multiply_fn *const multiply_with[] = {multiply_1_1, multiply_1_2, multiply_1_3,  multiply_1_4,  multiply_1_5,  multiply_1_6,  multiply_1_7,
                                             multiply_1_8, multiply_1_9, multiply_1_10, multiply_1_11, multiply_1_12, multiply_1_13, multiply_1_14};
static multiply_fn *const multiply_without[] = {multiply_0_1, multiply_0_2, multiply_0_3, multiply_0_4, multiply_0_5,
                                                multiply_0_6, multiply_0_7, multiply_0_8, multiply_0_9, multiply_0_10};
#else
static multiply_fn *const multiply_without[] = {multiply_0_1, multiply_0_2, multiply_0_3, multiply_0_4};
#define multiply_with multiply_without
#endif

void FN(bf16_strip)(bf16_job *job, int rows, const uint32_t *a, const uint32_t *panel, float *sums) {
  const int64_t word = sizeof *a;
  const amx_terms terms = {job->pairs,
                           {job->runs[0], job->runs[1]},
                           {job->run_step[0] * word, job->run_step[1] * word},
                           job->a_step * word};
  amx_sums_as(job->amx, AMX_BF16, &terms, &job->use, rows, (const char *)a, (const char *)panel, sums);
}

/* Sums of a strip, row by row, where values are stored as bf16. */
static void finish_halves(const bf16_job *job, const mm_rows *rows, const float *sums, int64_t column, int64_t first, int64_t last) {
  for (int r = 0; r < rows->rows; r++, sums += ASPEN_NR) {
    const mm_rows one = {.rows = 1, .out = {rows->out[r]}, .bias = {rows->bias[job->finish.one_bias ? 0 : r]}, .residual = {rows->residual[r]}};
    for (int64_t v = 0; v < ASPEN_NR; v += VL) {
      vf sum[1] = {vload(sums + v)};
      if (column + v + VL > first && column + v < last) home(1, 0, 1, 1, &job->finish, &one, sum, column + v, first, last);
    }
  }
}

void FN(bf16_block)(const bf16_job *job, const mm_rows *rows, const uint32_t *a, const uint32_t *panel, float *sums, int64_t column,
                    int64_t first, int64_t last) {
  if (sums) {
    if (job->finish.half_out || job->finish.half_residual) finish_halves(job, rows, sums, column, first, last);
    else FN(mm_finish)(&job->finish, rows, sums, column, first, last);
    return;
  }
  const int r = rows->rows - 1;
  /* not (… ? … : …)[r], of which gcc's sanitizer does not know the size */
  multiply_fn *const f = job->with ? multiply_with[r] : multiply_without[r];
  for (int64_t v = 0; v < ASPEN_NR; v += WIDTH)
    if (column + v + WIDTH > first && column + v < last) f(job, rows, a, panel + v, column + v, first, last);
}
