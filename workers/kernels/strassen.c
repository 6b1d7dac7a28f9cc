/* Products in seven products of halves instead of eight (V. Strassen, Gaussian Elimination is not Optimal, 1969), one level deep.
 *
 * Rows are taken in pairs 2 i, 2 i + 1, columns in pairs of panels, terms in halves. With A11 … A22 those of a pair of rows (1: the even one)
 * and a half of the terms, B11 … B22 those of a half of the terms and a panel:
 *   P1 = (A11 + A22)(B11 + B22)   P2 = (A21 + A22) B11   P3 = A11 (B12 - B22)   P4 = A22 (B21 - B11)
 *   P5 = (A11 + A12) B22          P6 = (A21 - A11)(B11 + B12)                   P7 = (A12 - A22)(B21 + B22)
 *   C11 = P1 + P4 - P5 + P7       C12 = P3 + P5       C21 = P2 + P4             C22 = P1 - P2 + P3 + P6
 * STRASSEN makes the left factors, once for all that read A. The right ones GEMM makes of a pair of panels while it multiplies the first
 * rows with them, and keeps them for the other rows of the tile: weights are kept once.
 *
 * A value is rounded beside the largest of its pair's rows, not of its own alone. So pairs whose rows are of very unlike size, or not
 * finite, are computed directly: it depends on the pair alone which way is taken, never on the tile.
 *
 * An eighth fewer multiplications are paid for by more loads, most of them from L2. So the planner uses it where multiplying takes long beside
 * loading: on cores that take vectors of 512 bits in two halves (Zen 4). On those that take them whole (Zen 5) BERT-base and ViT-B/16 are slower by
 * 7 to 10 %. With AVX2 BERT-base is slower by 4 % on Zen 4 and faster by 3 % on Zen 5; it is computed directly.
 */
#include "mm.h"

#define PAIRS 128     /* at a time, for which right factors are made */
#define PRODUCTS 7
#define KEPT 5        /* right factors that are sums */
#define WIDE 2        /* vectors of columns in the micro-kernel */
#define UNLIKE 8.0f   /* a pair's rows differ in their largest magnitude by no more than this … */
#define LARGEST 1e15f /* … which is less than this: sums and products of it are finite */

enum { TOP, BOTTOM };

/* Floats of a left factor: those of half the terms, one that says whether the pair is alike, and zeros up to an uneven number of lines, so
 * that rows do not compete for the same sets of L1. */
static int64_t factor_floats(int64_t half) { return (half / 16 + 1 | 1) * 16; }

#ifdef ISA_PORTABLE
size_t aspen_scratch_seven(int64_t terms) { return (size_t)(KEPT * (terms / 2) * ASPEN_NR) * sizeof(float); }
#endif

/* ---- left factors ---- */

INLINE vf terms_of(const float *p, int64_t stride, int64_t lanes) {
  return !p ? vzero() : stride != 1 ? vload_strided(p, stride, lanes) : lanes >= VL ? vload(p) : vload_part(p, lanes);
}

/* Those of a pair of rows, NULL beyond the last one, to [PRODUCTS][each]; then whether the rows are alike. */
static void factors_of(const float *const *row, int64_t stride, int64_t half, int64_t each, float *to) {
  vf largest[2] = {vzero(), vzero()}, nothing = vzero(); /* unless a value is not finite */
  for (int64_t k = 0; k < half; k += VL) {
    vf a[2][2];
    for (int r = 0; r < 2; r++)
      for (int h = 0; h < 2; h++) {
        const vf x = a[r][h] = terms_of(row[r] ? row[r] + (h * half + k) * stride : NULL, stride, half - k);
        nothing = vfma(x, vzero(), nothing);
        largest[r] = vmax(vabs(x), largest[r]);
      }
    const vf left[PRODUCTS] = {a[0][0] + a[1][1], a[1][0] + a[1][1], a[0][0], a[1][1], a[0][0] + a[0][1], a[1][0] - a[0][0], a[0][1] - a[1][1]};
#pragma GCC unroll 7
    for (int i = 0; i < PRODUCTS; i++) {
      vstore(to + i * each + k, left[i]);
    }
  }
  const float top = vhmax(largest[TOP]), bottom = vhmax(largest[BOTTOM]);
  const int finite = vhmax(nothing) == 0.0f && top < LARGEST && bottom < LARGEST;
  const int alike = finite && (!row[BOTTOM] || (top <= UNLIKE * bottom && bottom <= UNLIKE * top));
  for (int i = 0; i < PRODUCTS; i++) {
    for (int64_t k = half; k < each; k++) to[i * each + k] = 0.0f;
    to[i * each + half] = (float)alike;
  }
}

int FN(strassen)(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *a = &c->args[1];
  const int rank = out->rank, pair_axis = rank - 2;
  if (rank < 2 || a->rank != rank || out->dtype != ASPEN_DT_F32 || a->dtype != ASPEN_DT_F32) return ASPEN_KERNEL_BAD_ARGUMENT;
  const int64_t terms = a->dims[rank - 1], rows = a->dims[pair_axis], each = factor_floats(terms / 2);
  if (terms % 2 || out->dims[rank - 1] != PRODUCTS * each || out->dims[pair_axis] != (rows + 1) / 2 || out->strides[rank - 1] != 1)
    return ASPEN_KERNEL_BAD_ARGUMENT;
  for (int i = 0; i < rank; i++)
    if (c->lo[i] >= c->hi[i]) return 0;
  if (c->lo[rank - 1] || c->hi[rank - 1] != out->dims[rank - 1]) return ASPEN_KERNEL_BAD_ARGUMENT; /* whole pairs */
  int64_t at[ASPEN_MAX_RANK];
  memcpy(at, c->lo, (size_t)rank * sizeof *at);
  for (;;) {
    const float *even = (const float *)a->ptr + 2 * at[pair_axis] * a->strides[pair_axis];
    float *to = (float *)out->ptr + at[pair_axis] * out->strides[pair_axis];
    for (int i = 0; i < pair_axis; i++) even += at[i] * a->strides[i], to += at[i] * out->strides[i];
    const float *const row[2] = {even, 2 * at[pair_axis] + 1 < rows ? even + a->strides[pair_axis] : NULL};
    factors_of(row, a->strides[rank - 1], terms / 2, each, to);
    int axis = pair_axis;
    for (; axis >= 0 && ++at[axis] >= c->hi[axis]; axis--) at[axis] = c->lo[axis];
    if (axis < 0) return 0;
  }
}

/* ---- products ---- */

/* One term: R rows times WIDE vectors of b1 (ALONE), b1 + b2 (SUM) or b1 - b2 (DIFFERENCE), which are kept. */
enum right_factor { ALONE, SUM, DIFFERENCE };
INLINE void term(const int R, const int how, const float *const *p, int64_t k, const float *b1, const float *b2, float *keep, vf *sum) {
  vf w[WIDE];
#pragma GCC unroll 2
  for (int v = 0; v < WIDE; v++) {
    w[v] = vload(b1 + v * VL);
    if (how == SUM) w[v] += vload(b2 + v * VL);
    if (how == DIFFERENCE) w[v] -= vload(b2 + v * VL);
    if (how != ALONE) vstore(keep + v * VL, w[v]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
    const vf x = vset1(p[r][k]);
#pragma GCC unroll 2
    for (int v = 0; v < WIDE; v++) VFMA_IN(sum[r * WIDE + v], x, w[v]);
  }
}

/* All terms of R rows, factor `at` of each, to sums[R][ASPEN_NR]. Meanwhile what comes next from memory is brought nearer, `step` bytes for
 * two terms; not as far as L2, which the factors fill. */
INLINE void multiply(const int R, const int how, const float *const *rows, int64_t at, const float *b1, const float *b2, float *keep,
                     int64_t terms, float *sums, const char *next, int64_t step) {
  vf sum[MM_ROWS * WIDE];
#pragma GCC unroll 32
  for (int i = 0; i < R * WIDE; i++) sum[i] = vzero();
  const float *p[MM_ROWS];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) p[r] = rows[r] + at;
  int64_t k = 0;
  for (; k + 2 <= terms; k += 2, b1 += 2 * ASPEN_NR, b2 += 2 * ASPEN_NR, keep += 2 * ASPEN_NR) {
    __builtin_prefetch(next, 0, 1);
    next += step;
    term(R, how, p, k, b1, b2, keep, sum);
    term(R, how, p, k + 1, b1 + ASPEN_NR, b2 + ASPEN_NR, keep + ASPEN_NR, sum);
  }
  if (k < terms) term(R, how, p, k, b1, b2, keep, sum);
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 2
    for (int v = 0; v < WIDE; v++) vstore(sums + r * ASPEN_NR + v * VL, sum[r * WIDE + v]);
}

typedef void multiply_fn(const float *const *, int64_t, const float *, const float *, float *, int64_t, float *, const char *, int64_t);
#define MULTIPLY(R, HOW)                                                                                                           \
  static void multiply_##R##_##HOW(const float *const *rows, int64_t at, const float *b1, const float *b2, float *keep,            \
                                   int64_t terms, float *sums, const char *next, int64_t step) {                                   \
    multiply(R, HOW, rows, at, b1, b2, keep, terms, sums, next, step);                                                             \
  }
#define MULTIPLIES(R) MULTIPLY(R, ALONE) MULTIPLY(R, SUM) MULTIPLY(R, DIFFERENCE)
#define ENTRY(R) {multiply_##R##_ALONE, multiply_##R##_SUM, multiply_##R##_DIFFERENCE}
MULTIPLIES(1) MULTIPLIES(2) MULTIPLIES(3) MULTIPLIES(4) MULTIPLIES(5) MULTIPLIES(6)
#if MM_ROWS == 8
MULTIPLIES(7) MULTIPLIES(8)
#endif
static multiply_fn *const multiplies[MM_ROWS][3] = {
    ENTRY(1), ENTRY(2), ENTRY(3), ENTRY(4), ENTRY(5), ENTRY(6),
#if MM_ROWS == 8
    ENTRY(7), ENTRY(8),
#endif
};

/* Right factors: quadrants of B are 0: B11, 1: B21, 2: B12, 3: B22. Where a sum is kept. */
static const struct {
  uint8_t how, first, second, kept;
} right[PRODUCTS] = {{SUM, 0, 3, 0}, {ALONE, 0, 0, 0}, {DIFFERENCE, 2, 3, 1}, {DIFFERENCE, 1, 0, 2}, {ALONE, 3, 3, 0}, {SUM, 0, 2, 3}, {SUM, 1, 3, 4}};

/* ---- output ---- */

/* A pair of rows: its left factors, and of each row that is in the box where it is read directly and written. out: NULL outside the box. */
typedef struct pair {
  const float *left, *a[2];
  float *out[2];
  const float *bias[2], *residual[2];
} pair;

static void add_row(const pair *p, int half, mm_rows *rows) {
  rows->out[rows->rows] = p->out[half];
  rows->bias[rows->rows] = p->bias[half];
  rows->residual[rows->rows] = p->residual[half];
  rows->rows++;
}

/* Rows of one half of a block's pairs that are in the box, and one of their two panels, from the products [PRODUCTS][rows][ASPEN_NR]. */
static void finish(const mm_job *job, const pair *pairs, int rows, int half, int panel, const float *products, int64_t column, int64_t first,
                   int64_t last) {
  if (column >= last || column + ASPEN_NR <= first) return;
  float sums[MM_ROWS * ASPEN_NR] __attribute__((aligned(64)));
  const int64_t each = (int64_t)rows * ASPEN_NR;
  mm_rows out = {.rows = 0, .taps = 1};
  for (int r = 0; r < rows; r++) {
    if (!pairs[r].out[half]) continue;
    const float *p = products + r * ASPEN_NR;
    float *to = sums + out.rows * ASPEN_NR;
    for (int64_t j = 0; j < ASPEN_NR; j += VL) {
#define P(i) vload(p + (i - 1) * each + j)
      const vf sum = half == TOP ? (panel == 0 ? P(1) + P(4) - P(5) + P(7) : P(3) + P(5)) : (panel == 0 ? P(2) + P(4) : P(1) - P(2) + P(3) + P(6));
#undef P
      vstore(to + j, sum);
    }
    add_row(&pairs[r], half, &out);
  }
  if (out.rows) FN(mm_finish)(job, &out, sums, column, first, last);
}

/* ---- a tile ---- */

/* The rows of some pairs, directly. */
static void direct_rows(const mm_job *job, const pair *pairs, int n, const float *b, int64_t column, int64_t first, int64_t last) {
  const float *a[MM_ROWS];
  mm_rows rows = {.rows = 0, .taps = 1, .a = a};
  for (int i = 0; i < 2 * n; i++) {
    const pair *p = &pairs[i / 2];
    if (p->out[i % 2]) {
      a[rows.rows] = p->a[i % 2];
      add_row(p, i % 2, &rows);
    }
    if (rows.rows == MM_ROWS || (rows.rows && i + 1 == 2 * n)) {
      FN(mm_block)(job, &rows, b, column, first, last);
      rows.rows = 0;
    }
  }
}

/* Columns [first, last) of up to PAIRS pairs, of which those that are `alike` come first; `columns`: of B; kept: [KEPT][half][ASPEN_NR]. */
static void chunk(const mm_job *job, const pair *pairs, int alike, int n, const float *weights, int64_t first, int64_t last, int64_t columns,
                  float *kept) {
  const int64_t half = job->k / 2, panel = job->b_panel, each = factor_floats(half);
  const int64_t quadrant[4] = {0, half * ASPEN_NR, panel, panel + half * ASPEN_NR};
  const int blocks = (int)mm_blocks(alike), passes = ASPEN_NR / (WIDE * VL);
  const float *left[PAIRS];
  for (int i = 0; i < alike; i++) left[i] = pairs[i].left;
  /* While the blocks pass over a pair of panels, the next pair comes from memory, a share with every two terms. */
  const int64_t shares = (int64_t)blocks * PRODUCTS * passes * (half / 2), bytes = 2 * panel * (int64_t)sizeof(float);
  const int64_t share = shares ? (bytes + shares - 1) / shares : 0;
  for (int64_t column = first / (2 * ASPEN_NR) * 2 * ASPEN_NR; column < last; column += 2 * ASPEN_NR) {
    const float *b = weights + column / ASPEN_NR * panel;
    const int64_t from = column > first ? column : first, end = column + 2 * ASPEN_NR;
    if (column + ASPEN_NR >= columns) { /* a last panel that has no partner */
      direct_rows(job, pairs, n, b, column, from, last);
      return;
    }
    const int more = end + ASPEN_NR < columns; /* also behind the tile's last column, where another tile begins */
    const char *next = (const char *)(more ? b + 2 * panel : b);
    const int64_t step = more ? share : 0;
    for (int i = 0, at = 0; i < blocks; i++) {
      const int rows = (int)(mm_cut(alike, blocks, i + 1) - at);
      float products[PRODUCTS * MM_ROWS * ASPEN_NR] __attribute__((aligned(64)));
      for (int product = 0; product < PRODUCTS; product++) {
        for (int pass = 0; pass < passes; pass++) {
          const int j = pass * WIDE * VL;
          const float *b1 = b + quadrant[right[product].first] + j, *b2 = b + quadrant[right[product].second] + j;
          float *keep = kept + right[product].kept * half * ASPEN_NR + j;
          int how = right[product].how;
          if (i > 0 && how != ALONE) how = ALONE, b1 = keep;
          multiplies[rows - 1][how](left + at, product * each, b1, b2, keep, half, products + product * rows * ASPEN_NR + j, next, step);
          next += half / 2 * step;
        }
      }
      for (int r = 0; r < 2; r++)
        for (int p = 0; p < 2; p++) finish(job, pairs + at, rows, r, p, products, column + p * ASPEN_NR, from, last);
      at += rows;
    }
    direct_rows(job, pairs + alike, n - alike, b, column, from, end < last ? end : last);
  }
}

int FN(mm_seven)(const aspen_call *c, const mm_job *gemm) {
  const aspen_arg *out = &c->args[0], *left = &c->args[7];
  const aspen_arg *operands[4] = {&c->args[1], out, &c->args[3], &c->args[4]};
  const int rank = out->rank, m_axis = rank - 2;
  const int64_t rows = out->dims[m_axis], half = gemm->k / 2;
  if (!c->params[0] || gemm->k % 2 || left->rank != rank || left->dtype != ASPEN_DT_F32 || left->strides[rank - 1] != 1 ||
      left->dims[m_axis] != (rows + 1) / 2 || left->dims[rank - 1] != PRODUCTS * factor_floats(half))
    return ASPEN_KERNEL_BAD_ARGUMENT;
  if (c->scratch_bytes < aspen_scratch_seven(gemm->k)) return ASPEN_KERNEL_SCRATCH;
  mm_job job = *gemm;
  for (int i = 0; i <= m_axis; i++) {
    if (i < m_axis && left->dims[i] != out->dims[i]) return ASPEN_KERNEL_BAD_ARGUMENT;
    job.one_bias &= !operands[2]->dtype || out->dims[i] == 1 || operands[2]->strides[i] == 0;
  }
  pair pairs[PAIRS];
  int64_t at[ASPEN_MAX_RANK]; /* leading axes, and the next pair */
  memcpy(at, c->lo, (size_t)m_axis * sizeof *at);
  at[m_axis] = c->lo[m_axis] / 2;
  for (int more = 1; more;) {
    int alike = 0, n = PAIRS; /* pairs that are not alike are kept from the end on */
    while (more && alike < n) {
      pair p = {.left = (const float *)left->ptr + at[m_axis] * left->strides[m_axis]};
      for (int i = 0; i < m_axis; i++) p.left += at[i] * left->strides[i];
      for (int r = 0; r < 2; r++) {
        const int64_t m = 2 * at[m_axis] + r;
        if (m < c->lo[m_axis] || m >= c->hi[m_axis]) continue;
        const float *pointers[4];
        for (int o = 0; o < 4; o++) {
          const aspen_arg *x = operands[o];
          pointers[o] = x->dtype ? (const float *)x->ptr + m * x->strides[m_axis] : NULL;
          for (int i = 0; x->dtype && i < m_axis; i++) pointers[o] += at[i] * x->strides[i];
        }
        p.a[r] = pointers[0];
        p.out[r] = (float *)pointers[1];
        p.bias[r] = pointers[2];
        p.residual[r] = pointers[3];
      }
      if (p.left[half] != 0.0f) pairs[alike++] = p;
      else pairs[--n] = p;
      int axis = m_axis;
      at[axis]++;
      while (at[axis] * (axis == m_axis ? 2 : 1) >= c->hi[axis]) {
        at[axis] = axis == m_axis ? c->lo[axis] / 2 : c->lo[axis];
        if (--axis < 0) break;
        at[axis]++;
      }
      more = axis >= 0;
    }
    memmove(pairs + alike, pairs + n, (size_t)(PAIRS - n) * sizeof *pairs);
    chunk(&job, pairs, alike, alike + PAIRS - n, (const float *)c->args[2].ptr, c->lo[rank - 1], c->hi[rank - 1], out->dims[rank - 1],
          c->scratch);
  }
  return 0;
}
