/* Winograd's convolution, the products: rows of transformed blocks times panels of weights, one product over the channels for each pair of
 * the axes' products.
 *
 * Meanwhile the lines that are needed next come nearer: the weights of the next product, and whatever else the caller has listed.
 */
#ifndef ASPEN_WINOGRAD_PRODUCTS_H
#define ASPEN_WINOGRAD_PRODUCTS_H
#include "gemm/mm.h"
#include "conv/winograd.h"

#if VL == 16
#define MOST_ROWS 14 /* 14 x 2 sums in 32 registers */
#elif VL == 8
#define MOST_ROWS 6 /* 6 x 2 sums in 16 registers */
#else
#define MOST_ROWS 6
#endif
#define WIDE 2          /* vectors of columns in the micro-kernel … */
#if VL == 8
#define WIDER 4         /* … or so many, and half as many rows: fewer loads, and input that is read once */
/* The loads of a term stay behind those of the one before: there is no register for them. */
#define IN_ORDER __asm__ volatile("" ::: "memory")
#else
#define IN_ORDER ((void)0)
#endif

/* Terms that are summed one after the other: a sum's rounding error grows with their number, so longer sums are sums of such parts. They
 * begin at multiples of PART, whatever the vectors: a multiple of 4, for what is fetched meanwhile. */
#define PART ASPEN_WINO_PART

/* Cache lines to fetch in a micro-kernel, for every four terms: a run of weights, and a list of others (input and output to come). */
typedef struct ahead {
  const char *weights, *const *lines;
  int weights_pace, lines_pace;
} ahead;

/* `TERM`, which counts k up, for all k below k_end; with every fourth what `h` says is fetched into L2. */
#define ALL_TERMS(TERM)                                                                                                            \
  int64_t k = 0;                                                                                                                   \
  const char *weights = h->weights, *const *lines = h->lines;                                                                      \
  const int weights_pace = h->weights_pace, lines_pace = h->lines_pace;                                                            \
  while (k + 4 <= k_end) {                                                                                                         \
    for (int i = weights_pace; i > 0; i--, weights += 64) __builtin_prefetch(weights, 0, 2);                                       \
    for (int i = lines_pace; i > 0; i--) __builtin_prefetch(*lines++, 0, 2);                                                       \
    TERM;                                                                                                                          \
    TERM;                                                                                                                          \
    TERM;                                                                                                                          \
    TERM;                                                                                                                          \
  }                                                                                                                                \
  while (k < k_end) TERM

/* The sums of a part, to the results of earlier parts at `to`. */
INLINE vf with_earlier(vf sum, const float *to, int more) {
  if (more) sum = vload(to) + sum;
  return sum;
}

/* to[R][V * VL] = a[R][k] · b[k][V * VL], summed in ascending k, and with `more` added to what is there. Rows of a are `row` apart, rows of
 * b and to ASPEN_NR. */
INLINE void multiply(const int R, const int V, const float *a, int64_t row, const float *b, int64_t k_end, float *to, int more,
                     const ahead *h) {
  vf sum[MOST_ROWS][WIDE];
  const float *base[(MOST_ROWS + 2) / 3]; /* of three rows each: more pointers than that find no registers */
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) {
    if (r % 3 == 0) base[r / 3] = a + r * row;
#pragma GCC unroll 2
    for (int j = 0; j < V; j++) sum[r][j] = vzero();
  }
#define TERM                                                                                                                       \
  do {                                                                                                                             \
    vf w[WIDE];                                                                                                                    \
    _Pragma("GCC unroll 2") for (int j = 0; j < V; j++) w[j] = vload(b + j * VL);                                                  \
    b += ASPEN_NR;                                                                                                                 \
    _Pragma("GCC unroll 16") for (int r = 0; r < R; r++) {                                                                         \
      const vf x = vset1(base[r / 3][(r % 3) * row + k]);                                                                          \
      _Pragma("GCC unroll 2") for (int j = 0; j < V; j++) VFMA_IN(sum[r][j], w[j], x);                                             \
    }                                                                                                                              \
    k++;                                                                                                                           \
    IN_ORDER;                                                                                                                      \
  } while (0)
  ALL_TERMS(TERM);
#undef TERM
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 2
    for (int j = 0; j < V; j++) {
      float *at = to + r * ASPEN_NR + j * VL;
      vstore(at, with_earlier(sum[r][j], at, more));
    }
}

#if VL == 8
/* The same with WIDER vectors: the rows' values are in registers, and the weights go by. */
INLINE void multiply_wider(const int R, const float *a, int64_t row, const float *b, int64_t k_end, float *to, int more,
                           const ahead *h) {
  vf sum[MOST_ROWS / 2][WIDER];
#pragma GCC unroll 3
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int j = 0; j < WIDER; j++) sum[r][j] = vzero();
#define TERM                                                                                                                       \
  do {                                                                                                                             \
    vf x[MOST_ROWS / 2];                                                                                                           \
    _Pragma("GCC unroll 3") for (int r = 0; r < R; r++) x[r] = vset1(a[r * row + k]);                                              \
    _Pragma("GCC unroll 4") for (int j = 0; j < WIDER; j++) {                                                                      \
      const vf w = vload(b + j * VL);                                                                                              \
      _Pragma("GCC unroll 3") for (int r = 0; r < R; r++) VFMA_IN(sum[r][j], w, x[r]);                                             \
    }                                                                                                                              \
    b += ASPEN_NR;                                                                                                                 \
    k++;                                                                                                                           \
    IN_ORDER;                                                                                                                      \
  } while (0)
  ALL_TERMS(TERM);
#undef TERM
#pragma GCC unroll 3
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int j = 0; j < WIDER; j++) {
      float *at = to + r * ASPEN_NR + j * VL;
      vstore(at, with_earlier(sum[r][j], at, more));
    }
}
#endif

typedef void multiply_fn(const float *, int64_t, const float *, int64_t, float *, int, const ahead *);
#define MULTIPLY_V(R, V)                                                                                                           \
  static void multiply_##R##x##V(const float *a, int64_t row, const float *b, int64_t k, float *to, int more, const ahead *h) {    \
    multiply(R, V, a, row, b, k, to, more, h);                                                                                     \
  }
#define MULTIPLY(R) MULTIPLY_V(R, 1) MULTIPLY_V(R, 2)
MULTIPLY(1) MULTIPLY(2) MULTIPLY(3) MULTIPLY(4) MULTIPLY(5) MULTIPLY(6)
#if MOST_ROWS > 6
MULTIPLY(7) MULTIPLY(8) MULTIPLY(9) MULTIPLY(10) MULTIPLY(11) MULTIPLY(12) MULTIPLY(13) MULTIPLY(14)
#endif
#define BOTH(R) {multiply_##R##x1, multiply_##R##x2}
static multiply_fn *const by_rows[MOST_ROWS][WIDE] = {
    BOTH(1), BOTH(2), BOTH(3), BOTH(4), BOTH(5), BOTH(6),
#if MOST_ROWS > 6
    BOTH(7), BOTH(8), BOTH(9), BOTH(10), BOTH(11), BOTH(12), BOTH(13), BOTH(14),
#endif
};

#if VL == 8
#define WIDE_MULTIPLY(R)                                                                                                           \
  static void multiply_wider_##R(const float *a, int64_t row, const float *b, int64_t k, float *to, int more, const ahead *h) {    \
    multiply_wider(R, a, row, b, k, to, more, h);                                                                                  \
  }
WIDE_MULTIPLY(1) WIDE_MULTIPLY(2) WIDE_MULTIPLY(3)
static multiply_fn *const by_rows_wider[] = {multiply_wider_1, multiply_wider_2, multiply_wider_3};
#endif

/* The weights of a panel that product `i` takes: those of a plain product stand once. */
static int64_t weights_of(const wino *v, int i) {
  return min64(i / v->columns.n, v->rows.weights - 1) * v->columns.weights + min64(i % v->columns.n, v->columns.weights - 1);
}

/* All products of `blocks` blocks with the first `columns` columns of a panel. While the weights of one product are used, those of the next
 * come into L2, evenly over all passes over them. `n_lines` other lines come evenly over all products: the memory is never idle. */
static void products(const wino *v, const workspace *s, const float *panel, int64_t blocks, int64_t columns, int64_t n_lines) {
#if VL == 8
  const int wider = columns > (WIDER - 1) * VL;
  const int64_t most_rows = wider ? MOST_ROWS / 2 : MOST_ROWS, width = wider ? WIDER * VL : WIDE * VL;
#else
  const int64_t most_rows = MOST_ROWS, width = WIDE * VL;
#endif
  const int64_t pieces = (blocks + most_rows - 1) / most_rows, size = v->all_terms * ASPEN_NR, used = v->terms * ASPEN_NR;
  const int64_t passes = pieces * ((columns + width - 1) / width), steps = max64(v->terms / 4, 1), all_steps = v->planes * passes * steps;
  const float *input = s->input;
  float *product = s->product;
  ahead h = {.weights_pace = (int)((used / 16 + passes * steps - 1) / (passes * steps)),
             .lines_pace = (int)((n_lines + all_steps - 1) / all_steps)};
  for (int64_t i = 0; i < h.lines_pace * steps; i++) s->lines[n_lines + i] = (const char *)s->lines; /* may be fetched too */
  int64_t step = 0;
  for (int i = 0; i < v->planes; i++, input += s->input_plane, product += s->product_plane) {
    const float *weights = panel + weights_of(v, i) * size;
    h.weights = (const char *)(i + 1 < v->planes ? panel + weights_of(v, i + 1) * size
                                                 : panel + v->rows.weights * v->columns.weights * size);
    for (int64_t at = 0; at < columns; at += width) /* outside: the weights of `width` columns stay in L1 */
      for (int64_t term = 0, terms; term == 0 || term < v->terms; term += PART) { /* once without any term: sums are 0 then */
        terms = min64(PART, v->terms - term);
        for (int64_t piece = 0; piece < pieces; piece++, step += terms / 4, h.weights += h.weights_pace * (terms / 4) * 64) {
          const int64_t first = mm_cut(blocks, pieces, piece), rows = mm_cut(blocks, pieces, piece + 1) - first;
          h.lines = s->lines + step * n_lines / all_steps;
          multiply_fn *f = by_rows[rows - 1][columns - at > VL];
#if VL == 8
          if (wider) f = by_rows_wider[rows - 1];
#endif
          f(input + first * v->row + term, v->row, weights + term * ASPEN_NR + at, terms, product + first * ASPEN_NR + at, term > 0, &h);
        }
      }
  }
}

#endif
