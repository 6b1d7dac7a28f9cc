/* Products in seven products of halves instead of eight (V. Strassen, Gaussian Elimination is not Optimal, 1969), one level deep.
 *
 * Rows are taken in pairs 2 i, 2 i + 1, columns in pairs of panels, terms in halves. A11 … A22 belong to a pair of rows (1: the even one)
 * and a half of the terms. B11 … B22 belong to a half and a panel.
 *
 * - P1 = (A11 + A22)(B11 + B22), P2 = (A21 + A22) B11, P3 = A11 (B12 - B22), P4 = A22 (B21 - B11)
 * - P5 = (A11 + A12) B22, P6 = (A21 - A11)(B11 + B12), P7 = (A12 - A22)(B21 + B22)
 * - C11 = P1 + P4 - P5 + P7, C12 = P3 + P5, C21 = P2 + P4, C22 = P1 - P2 + P3 + P6
 *
 * STRASSEN makes the left factors, once for all that read A (a last row without a partner is its own). GEMM makes the right ones of a pair
 * of panels while it multiplies the first rows, and keeps them for the tile's other rows. So weights are stored once. Weights of 16 bits
 * become floats before, a part at a time.
 *
 * A value is rounded beside the largest of its pair's rows, not of its own alone. So pairs whose rows are of very unlike size, or not
 * finite, are computed directly. The choice depends on the pair alone, never on the tile.
 *
 * An eighth fewer multiplications are paid for by more loads and stores. Most of them go to L2, which the part that is multiplied at a time
 * must not overflow. A store that has to wait for its line holds up all behind it, so lines that are stored to are fetched before.
 */
#include "gemm/low_bit.h"
#include "vector/stores.h"

#define PAIRS ASPEN_SEVEN_PAIRS
#define PART ASPEN_SEVEN_PART
#define LINE 16       /* floats of a cache line */
#define LINES 128     /* that a block's results go to, at most: a power of two */
#define AHEAD 16      /* terms that right factors are fetched ahead where they are made */
#define PRODUCTS 7
#define KEPT 5        /* right factors that are sums */
#define QUADRANTS 4   /* of a pair of panels: halves of their terms */
#define WIDE 2        /* vectors of columns in the micro-kernel, … */
#define ROWS MM_EVEN_ROWS /* … and pairs of rows */
#if VL == 8
#define RUN 4 /* terms between two fetches: beside narrow vectors every other instruction counts */
/* The loads of a term stay behind those of the one before: there is no register for them. */
#define IN_ORDER __asm__ volatile("" ::: "memory")
#else
#define RUN 2
#define IN_ORDER ((void)0)
#endif
#define UNLIKE 8.0f   /* a pair's rows differ in their largest magnitude by no more than this … */
#define LARGEST 1e15f /* … which is less than this: sums and products of it are finite */

enum { TOP, BOTTOM };

/* Floats of a pair's left factors, [parts][PRODUCTS][padded terms]. Zeros fill up to an uneven number of lines, so that rows do not compete
 * for the same sets of L1. The last one says whether the pair is alike. */
static int64_t left_floats(int64_t half) { return PRODUCTS * ((half / LINE + 1) | 1) * LINE; }

/* Halves of many terms are cut into parts, whole lines but for the last one. */
static int64_t parts_of(int64_t half) { return half > PART ? (half + PART - 1) / PART : 1; }
static int64_t part_end(int64_t half, int64_t parts, int64_t part) {
  const int64_t each = (half + LINE * parts - 1) / (LINE * parts) * LINE, end = (part + 1) * each;
  return end < half ? end : half;
}
static int64_t padded(int64_t terms) { return (terms + LINE - 1) / LINE * LINE; }

#ifdef ISA_PORTABLE
size_t aspen_scratch_strassen(int64_t terms, int halves) {
  const int64_t half = terms / 2, parts = parts_of(half);
  const int64_t products = parts > 1 ? PAIRS * PRODUCTS : 0;
  const int64_t floats = halves ? QUADRANTS * part_end(half, parts, 0) + terms : 0;
  return (size_t)((KEPT * part_end(half, parts, 0) + products + floats) * ASPEN_NR) * sizeof(float);
}
#endif

/* ---- left factors ---- */

/* Terms [lo, hi) of a pair of rows: factors [PRODUCTS][each], zeros behind them. unit: terms are contiguous and whole lines; then those of
 * the next pair, `step` elements on, are brought nearer. past: they are stored past the caches. */
INLINE void part_of(const int unit, const int past, const float *const *row, int64_t stride, int64_t step, int64_t half, int64_t lo, int64_t hi, float *to, vf *largest,
                    vf *nothing) {
  const int64_t each = padded(hi - lo);
  const float *const top = row[TOP], *const bottom = row[BOTTOM];
  for (int64_t k = lo; k < lo + each; k += VL) {
    vf a[2][2];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
      const float *p = (i < 2 ? top : bottom) + (i % 2 * half + k) * (unit ? 1 : stride);
      const int64_t lanes = hi - k;
      const vf x = unit ? vload(p) : lanes <= 0 ? vzero() : stride != 1 ? vload_strided(p, stride, lanes) : vload_part(p, lanes);
      if (unit) __builtin_prefetch(p + step);
      a[i / 2][i % 2] = x;
      *nothing = vfma(x, vzero(), *nothing);
      largest[i / 2] = vmax(vabs(x), largest[i / 2]);
    }
    const vf left[PRODUCTS] = {a[0][0] + a[1][1], a[1][0] + a[1][1], a[0][0], a[1][1], a[0][0] + a[0][1], a[1][0] - a[0][0], a[0][1] - a[1][1]};
#pragma GCC unroll 7
    for (int i = 0; i < PRODUCTS; i++) {
      if (past) vstore_to(1, to + i * each + k - lo, left[i]);
      else vstore(to + i * each + k - lo, left[i]);
    }
  }
}

/* Those of a pair of rows. */
static void factors_of(const float *const *row, int64_t stride, int64_t step, int64_t half, float *to, int past) {
  vf largest[2] = {vzero(), vzero()}, nothing = vzero(); /* unless a value is not finite */
  const int64_t parts = parts_of(half);
  float *const end_of_all = to + left_floats(half);
  for (int64_t part = 0, lo = 0, hi; part < parts; part++, to += PRODUCTS * padded(hi - lo), lo = hi) {
    hi = part_end(half, parts, part);
    const int unit = stride == 1 && padded(hi - lo) == hi - lo;
    if (unit && past) part_of(1, 1, row, 1, step, half, lo, hi, to, largest, &nothing);
    else if (unit) part_of(1, 0, row, 1, step, half, lo, hi, to, largest, &nothing);
    else part_of(0, 0, row, stride, step, half, lo, hi, to, largest, &nothing);
  }
  for (; to < end_of_all; to += VL) vstore(to, vzero());
  const float top = vhmax(largest[TOP]), bottom = vhmax(largest[BOTTOM]);
  const int finite = vhmax(nothing) == 0.0f && top < LARGEST && bottom < LARGEST;
  end_of_all[-1] = (float)(finite && top <= UNLIKE * bottom && bottom <= UNLIKE * top);
}

int FN(strassen)(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *a = &c->args[1];
  const int rank = out->rank, pair_axis = rank - 2;
  if (rank < 2 || a->rank != rank || out->dtype != ASPEN_DT_F32 || a->dtype != ASPEN_DT_F32) return ASPEN_KERNEL_BAD_ARGUMENT;
  const int64_t terms = a->dims[rank - 1], rows = a->dims[pair_axis], floats = left_floats(terms / 2);
  if (terms % 2 || out->dims[rank - 1] != floats || out->dims[pair_axis] != (rows + 1) / 2 || out->strides[rank - 1] != 1)
    return ASPEN_KERNEL_BAD_ARGUMENT;
  for (int i = 0; i < rank; i++)
    if (c->lo[i] >= c->hi[i]) return 0;
  if (c->lo[rank - 1] || c->hi[rank - 1] != out->dims[rank - 1]) return ASPEN_KERNEL_BAD_ARGUMENT; /* whole pairs */
  const int past = stores_past(c, rank - 1);
  int64_t at[ASPEN_MAX_RANK];
  memcpy(at, c->lo, (size_t)rank * sizeof *at);
  for (;;) {
    const float *even = (const float *)a->ptr + 2 * at[pair_axis] * a->strides[pair_axis];
    float *to = (float *)out->ptr + at[pair_axis] * out->strides[pair_axis];
    for (int i = 0; i < pair_axis; i++) even += at[i] * a->strides[i], to += at[i] * out->strides[i];
    const float *const row[2] = {even, even + (2 * at[pair_axis] + 1 < rows ? a->strides[pair_axis] : 0)};
    factors_of(row, a->strides[rank - 1], 2 * a->strides[pair_axis], terms / 2, to, stores_begin(past, to));
    int axis = pair_axis;
    for (; axis >= 0 && ++at[axis] >= c->hi[axis]; axis--) at[axis] = c->lo[axis];
    if (axis < 0) break;
  }
  stores_done(c);
  return 0;
}

/* ---- products ---- */

/* One term: R rows, `row` apart, three to a pointer, times WIDE vectors, which are kept. The vectors are b1 (ALONE), b1 + b2 (SUM) or b1 -
 * b2 (DIFFERENCE). */
enum right_factor { ALONE, SUM, DIFFERENCE };
INLINE void term(const int R, const int how, const float *const *base, int64_t row, int64_t k, const float *b1, const float *b2, float *keep, vf *sum) {
  vf w[WIDE];
#pragma GCC unroll 2
  for (int v = 0; v < WIDE; v++) {
    w[v] = vload(b1 + v * VL);
    if (how != ALONE) __builtin_prefetch(b1 + AHEAD * ASPEN_NR + v * VL), __builtin_prefetch(b2 + AHEAD * ASPEN_NR + v * VL);
    if (how == SUM) w[v] += vload(b2 + v * VL);
    if (how == DIFFERENCE) w[v] -= vload(b2 + v * VL);
    if (how != ALONE) vstore(keep + v * VL, w[v]);
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) {
    const vf x = vset1(base[r / 3][(r % 3) * row + k]);
#pragma GCC unroll 2
    for (int v = 0; v < WIDE; v++) VFMA_IN(sum[r * WIDE + v], x, w[v]);
  }
}

/* Lines that are brought nearer while terms are multiplied: from `next` on, `step` bytes for two terms, and lines[0 … mask], to be written
 * where `write`. */
typedef struct aside {
  const char *next, *const *lines;
  int64_t step;
  int mask, write, more; /* more: sums are added to those of the terms before */
} aside;

/* `terms` terms of R rows to sums[R][ASPEN_NR]. */
INLINE void multiply(const int R, const int how, const float *rows, int64_t row, const float *b1, const float *b2, float *keep,
                     int64_t terms, float *sums, const aside *w) {
  vf sum[ROWS * WIDE];
#pragma GCC unroll 32
  for (int i = 0; i < R * WIDE; i++) sum[i] = vzero();
  const float *base[(ROWS + 2) / 3]; /* more pointers than that find no registers */
#pragma GCC unroll 8
  for (int r = 0; r < R; r += 3) base[r / 3] = rows + r * row;
  const char *next = w->next, *const *lines = w->lines;
  const int64_t step = w->step;
  const int mask = w->mask, write = w->write;
  int64_t k = 0;
  for (; k + RUN <= terms; k += RUN, b1 += RUN * ASPEN_NR, b2 += RUN * ASPEN_NR, keep += RUN * ASPEN_NR, next += RUN / 2 * step) {
#pragma GCC unroll 2
    for (int i = 0; i < RUN / 2; i++) __builtin_prefetch(next + i * step, 0, 2);
    if (write)
      __builtin_prefetch(lines[k / RUN & mask], 1);
    else
      __builtin_prefetch(lines[k / RUN & mask]);
    __builtin_prefetch(sums + k / RUN % 16 * 16); /* a store that waits for its line holds up those behind it */
#pragma GCC unroll 4
    for (int i = 0; i < RUN; i++) {
      term(R, how, base, row, k + i, b1 + i * ASPEN_NR, b2 + i * ASPEN_NR, keep + i * ASPEN_NR, sum);
      IN_ORDER;
    }
  }
  for (; k < terms; k++, b1 += ASPEN_NR, b2 += ASPEN_NR, keep += ASPEN_NR) term(R, how, base, row, k, b1, b2, keep, sum);
  if (w->more)
#pragma GCC unroll 32
    for (int i = 0; i < R * WIDE; i++) sum[i] += vload(sums + i / WIDE * ASPEN_NR + i % WIDE * VL);
#pragma GCC unroll 32
  for (int i = 0; i < R * WIDE; i++) vstore(sums + i / WIDE * ASPEN_NR + i % WIDE * VL, sum[i]);
}

typedef void multiply_fn(const float *, int64_t, const float *, const float *, float *, int64_t, float *, const aside *);
#define MULTIPLY(R, HOW)                                                                                                           \
  static void multiply_##R##_##HOW(const float *rows, int64_t row, const float *b1, const float *b2, float *keep, int64_t terms,   \
                                   float *sums, const aside *w) {                                                                  \
    multiply(R, HOW, rows, row, b1, b2, keep, terms, sums, w);                                                                     \
  }
#define MULTIPLIES(R) MULTIPLY(R, ALONE) MULTIPLY(R, SUM) MULTIPLY(R, DIFFERENCE)
#define ENTRY(R) {multiply_##R##_ALONE, multiply_##R##_SUM, multiply_##R##_DIFFERENCE}
MULTIPLIES(1) MULTIPLIES(2) MULTIPLIES(3) MULTIPLIES(4) MULTIPLIES(5) MULTIPLIES(6)
#if ROWS > 6
MULTIPLIES(7) MULTIPLIES(8) MULTIPLIES(9) MULTIPLIES(10) MULTIPLIES(11) MULTIPLIES(12) MULTIPLIES(13) MULTIPLIES(14)
#endif
static multiply_fn *const multiplies[ROWS][3] = {
    ENTRY(1), ENTRY(2), ENTRY(3), ENTRY(4), ENTRY(5), ENTRY(6),
#if ROWS > 6
    ENTRY(7), ENTRY(8), ENTRY(9), ENTRY(10), ENTRY(11), ENTRY(12), ENTRY(13), ENTRY(14),
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

/* The rows of up to MM_ROWS pairs that are in the box, both panels, from their products, which lie `each` apart. */
static void finish(const mm_job *job, const pair *pairs, int rows, const float *products, int64_t each, int64_t column, int64_t first, int64_t last) {
  float sums[2][2][MM_ROWS * ASPEN_NR] __attribute__((aligned(64))); /* of halves and panels */
  mm_rows out[2] = {{.rows = 0, .taps = 1}, {.rows = 0, .taps = 1}};
  for (int r = 0; r < rows; r++) {
    const float *p = products + r * ASPEN_NR;
    float *top = sums[TOP][0] + out[TOP].rows * ASPEN_NR, *bottom = sums[BOTTOM][0] + out[BOTTOM].rows * ASPEN_NR;
    for (int64_t j = 0; j < ASPEN_NR; j += VL) {
#define P(i) vload(p + (i - 1) * each + j)
      const vf p1 = P(1), p2 = P(2), p3 = P(3), p4 = P(4), p5 = P(5), p6 = P(6), p7 = P(7);
#undef P
      vstore(top + j, p1 + p4 - p5 + p7);
      vstore(top + MM_ROWS * ASPEN_NR + j, p3 + p5);
      vstore(bottom + j, p2 + p4);
      vstore(bottom + MM_ROWS * ASPEN_NR + j, p1 - p2 + p3 + p6);
    }
    for (int half = 0; half < 2; half++)
      if (pairs[r].out[half]) add_row(&pairs[r], half, &out[half]);
  }
  for (int half = 0; half < 2; half++)
    for (int panel = 0; panel < 2 && out[half].rows; panel++) {
      const int64_t from = column + panel * ASPEN_NR;
      if (from < last && from + ASPEN_NR > first) FN(mm_finish)(job, &out[half], sums[half][panel], from, first, last);
    }
}

/* Lists the lines that a block's results go to, over and over, or what is added to them. */
static void lines_to_come(const pair *pairs, int rows, int residuals, int64_t column, const char *none, const char **lines) {
  int n = 0;
  for (int r = 0; r < rows; r++)
    for (int half = 0; half < 2; half++) {
      const float *at = residuals ? pairs[r].residual[half] : pairs[r].out[half];
      for (int64_t line = 0; line < 2 * ASPEN_NR && at; line += LINE) lines[n++] = (const char *)(at + column + line);
    }
  if (!n) lines[n++] = none;
  for (int i = n; i < LINES; i++) lines[i] = lines[i - n];
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

/* A part of the terms of a pair of panels. */
typedef struct right_part {
  int64_t column, lo, hi; /* its first column; terms of the halves */
  const float *b;         /* its first quadrant's first term … */
  int64_t half, panel;    /* … and how far behind those of the other half and of the other panel are */
  float *kept;            /* [KEPT][part][ASPEN_NR] */
  const char *coming[QUADRANTS]; /* what is multiplied with after it, as it is kept; NULL: nothing */
  int64_t share;          /* bytes of them that are brought nearer with every two terms */
  int last;               /* of the parts */
} right_part;

/* The seven products of a block of pairs, added to products[PRODUCTS][rows][ASPEN_NR] but for the first part. Block 0 makes the right
 * factors. */
static void strassen_block(const mm_job *job, const right_part *w, const pair *pairs, const float *left, int64_t row, int rows, int block, float *products) {
  const int64_t half = job->k / 2, terms = w->hi - w->lo, longest = part_end(half, parts_of(half), 0);
  const int64_t quadrant[QUADRANTS] = {0, w->half, w->panel, w->panel + w->half};
  const int passes = ASPEN_NR / (WIDE * VL);
  const char *lines[LINES];
  for (int product = 0; product < PRODUCTS; product++) {
    /* With the last products comes first what is added to the results, then where they go to. */
    const int residuals = product + 1 < PRODUCTS;
    const int lists = w->last && product + 2 >= PRODUCTS && job->direct &&
                      (residuals ? pairs[0].residual[TOP] != NULL : !job->epilogue.past);
    if (lists) lines_to_come(pairs, rows, residuals, w->column, (const char *)w->b, lines);
    else lines[0] = (const char *)w->b;
    const int brings = product < QUADRANTS && w->coming[product];
    for (int pass = 0; pass < passes; pass++) {
      const int j = pass * WIDE * VL;
      const float *b = w->b + j, *b1 = b + quadrant[right[product].first], *b2 = b + quadrant[right[product].second];
      float *keep = w->kept + right[product].kept * longest * ASPEN_NR + j;
      const char *next = brings ? w->coming[product] + (block * passes + pass) * (terms / 2 * w->share) : (const char *)b1;
      const aside besides = {
          .next = next, .step = brings ? w->share : 0, .lines = lines, .mask = lists ? LINES - 1 : 0, .write = lists && !residuals, .more = w->lo > 0};
      int how = right[product].how;
      if (block > 0 && how != ALONE) how = ALONE, b1 = keep;
      multiplies[rows - 1][how](left + PRODUCTS * w->lo + product * padded(terms), row, b1, b2, keep, terms, products + product * rows * ASPEN_NR + j,
                                &besides);
    }
  }
}

/* Cuts `n` pairs into blocks of up to ROWS whose left factors lie evenly, from start[i] to start[i + 1]. Returns the number of blocks. */
static int cut_blocks(const pair *pairs, int n, int *start) {
  int blocks = 0;
  for (int from = 0, to; from < n; from = to) {
    for (to = from + 1; to < n && pairs[to].left - pairs[to - 1].left == pairs[from + 1].left - pairs[from].left; to++) {}
    const int pieces = (to - from + ROWS - 1) / ROWS;
    for (int i = 0; i < pieces; i++) start[blocks++] = from + (int)mm_cut(to - from, pieces, i);
  }
  start[blocks] = n;
  return blocks;
}

/* Weights as they are kept: floats, or 16 bits (`halves`), which become floats in scratch memory. A part of a pair of panels goes to
 * `part`[QUADRANTS][longest][ASPEN_NR]. For rows that are computed directly a whole panel goes to `whole`[terms][ASPEN_NR]. */
typedef struct right_weights {
  const nbits *halves; /* NULL: floats */
  const char *panels;
  float *part, *whole;
} right_weights;

/* Terms [lo, hi) of the halves of the pair of panels that begins at `column`. */
static void open_part(const mm_job *job, const right_weights *b, right_part *w) {
  const int64_t half = job->k / 2, at = w->column / ASPEN_NR;
  if (!b->halves) {
    w->b = (const float *)b->panels + at * job->b_panel + w->lo * ASPEN_NR;
    w->half = half * ASPEN_NR, w->panel = job->b_panel;
    return;
  }
  const int64_t each = (w->hi - w->lo) * ASPEN_NR;
  for (int i = 0; i < QUADRANTS; i++)
    FN(halves_unpack)(b->halves, b->panels + (at + i / 2) * b->halves->panel, i % 2 * half + w->lo, i % 2 * half + w->hi, b->part + i * each);
  w->b = b->part, w->half = each, w->panel = 2 * each;
}

/* The rows of some pairs, directly. */
static void direct_columns(const mm_job *job, const pair *pairs, int n, const right_weights *b, int64_t column, int64_t first, int64_t last) {
  if (!b->halves) {
    direct_rows(job, pairs, n, (const float *)b->panels + column / ASPEN_NR * job->b_panel, column, first, last);
    return;
  }
  for (; n && column < last; column += ASPEN_NR) {
    const int64_t from = column > first ? column : first, to = column + ASPEN_NR < last ? column + ASPEN_NR : last;
    if (from >= to) continue;
    FN(halves_unpack)(b->halves, b->panels + column / ASPEN_NR * b->halves->panel, 0, job->k, b->whole);
    direct_rows(job, pairs, n, b->whole, column, from, to);
  }
}

/* Columns [first, last) of up to PAIRS pairs, of which those that are `alike` come first; `columns`: of B. scratch: the right factors,
 * then, where there are several parts, the products so far, [PAIRS][PRODUCTS][ASPEN_NR]. */
static void chunk(const mm_job *job, const pair *pairs, int alike, int n, const right_weights *weights, int64_t first, int64_t last, int64_t columns,
                  float *scratch) {
  const int64_t half = job->k / 2, parts = parts_of(half), item = weights->halves ? 2 : (int64_t)sizeof(float);
  const int64_t panel = weights->halves ? weights->halves->panel : item * job->b_panel;
  float *const so_far = scratch + KEPT * part_end(half, parts, 0) * ASPEN_NR;
  const int passes = ASPEN_NR / (WIDE * VL);
  int start[PAIRS + 1]; /* of blocks, whose pairs lie evenly */
  const int blocks = cut_blocks(pairs, alike, start);
  /* While the blocks pass over a part, the next one comes from memory. */
  const int64_t share = blocks ? (2 * ASPEN_NR * item + blocks * passes - 1) / (blocks * passes) : 0;
  for (int64_t column = first / (2 * ASPEN_NR) * 2 * ASPEN_NR; column < last; column += 2 * ASPEN_NR) {
    const int64_t from = column > first ? column : first, end = column + 2 * ASPEN_NR;
    if (column + ASPEN_NR >= columns) { /* a last panel that has no partner */
      direct_columns(job, pairs, n, weights, column, from, last);
      return;
    }
    for (int64_t part = 0, lo = 0, hi; part < parts; part++, lo = hi) {
      hi = part_end(half, parts, part);
      right_part w = {.column = column, .lo = lo, .hi = hi, .kept = scratch, .share = share, .last = part + 1 == parts};
      /* Also behind the tile's last column, where another tile begins. */
      if (blocks) open_part(job, weights, &w);
      for (int i = 0; i < QUADRANTS && (!w.last || end + ASPEN_NR < columns); i++)
        w.coming[i] = weights->panels + (column / ASPEN_NR + i / 2 + (w.last ? 2 : 0)) * panel + (i % 2 * half + (w.last ? 0 : hi)) * ASPEN_NR * item;
      for (int i = 0; i < blocks; i++) {
        const pair *const of = pairs + start[i];
        const int rows = start[i + 1] - start[i];
        float whole[PRODUCTS * ROWS * ASPEN_NR] __attribute__((aligned(64)));
        float *products = parts > 1 ? so_far + start[i] * PRODUCTS * ASPEN_NR : whole;
        strassen_block(job, &w, of, of->left, rows > 1 ? of[1].left - of->left : 0, rows, i, products);
        for (int at = 0, n; w.last && at < rows; at += n) {
          n = rows - at < MM_ROWS ? rows - at : MM_ROWS;
          finish(job, of + at, n, products + at * ASPEN_NR, (int64_t)rows * ASPEN_NR, column, from, last);
        }
      }
    }
    direct_columns(job, pairs + alike, n - alike, weights, column, from, end < last ? end : last);
  }
}

int FN(mm_strassen)(const aspen_call *c, const mm_job *gemm, const nbits *halves) {
  const aspen_arg *out = &c->args[0], *left = &c->args[7];
  const aspen_arg *operands[4] = {&c->args[1], out, &c->args[3], &c->args[4]};
  const int rank = out->rank, m_axis = rank - 2;
  const int64_t rows = out->dims[m_axis], half = gemm->k / 2;
  if (gemm->k % 2 || left->rank != rank || left->dtype != ASPEN_DT_F32 || left->strides[rank - 1] != 1 ||
      left->dims[m_axis] != (rows + 1) / 2 || left->dims[rank - 1] != left_floats(half))
    return ASPEN_KERNEL_BAD_ARGUMENT;
  if (c->scratch_bytes < aspen_scratch_strassen(gemm->k, halves != NULL)) return ASPEN_KERNEL_SCRATCH;
  mm_job job = *gemm;
  for (int i = 0; i <= m_axis; i++) {
    if (i < m_axis && left->dims[i] != out->dims[i]) return ASPEN_KERNEL_BAD_ARGUMENT;
    job.one_bias &= !operands[2]->dtype || out->dims[i] == 1 || operands[2]->strides[i] == 0;
  }
  const int64_t parts = parts_of(half), longest = part_end(half, parts, 0);
  right_weights weights = {.halves = halves, .panels = c->args[2].ptr};
  weights.part = (float *)c->scratch + (KEPT * longest + (parts > 1 ? PAIRS * PRODUCTS : 0)) * ASPEN_NR;
  weights.whole = weights.part + QUADRANTS * longest * ASPEN_NR;
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
      if (p.left[left_floats(half) - 1] != 0.0f) pairs[alike++] = p;
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
    chunk(&job, pairs, alike, alike + PAIRS - n, &weights, c->lo[rank - 1], c->hi[rank - 1], out->dims[rank - 1],
          c->scratch);
  }
  return 0;
}
