/* DGEMM: out[…, M, N] = act(alpha A[…, M, K] B[…, K, N] + bias), f64; or with distances of the rows of A from the columns of B in place of
 * products.
 *
 * Blocks of up to ROWS rows times VECTORS vectors of columns, whose sums stay in registers over all terms. B is never packed ahead: few
 * rows read whole vectors of its columns in place. For more rows, or columns that do not lie side by side, a panel is copied to scratch
 * memory first, zeros behind the last. A is read in place, whatever its strides.
 */
#include "elementwise/elementwise.h"
#include "vector/nd.h"

#define VD (VL / 2)
#define ROWS 6
#if VL == 16
#define VECTORS 4
#else
#define VECTORS 2
#endif
#define COLUMNS (VECTORS * VD)
#define IN_PLACE_ROWS (2 * ROWS)

typedef double vd __attribute__((vector_size(VL * 4), may_alias));
typedef double vd_u __attribute__((vector_size(VL * 4), may_alias, aligned(8)));

INLINE vd vdload(const double *p) { return *(const vd_u *)p; }
INLINE void vdstore(double *p, vd v) { *(vd_u *)p = v; }
/* Lanes 0 … n - 1. */
#if VL == 16
INLINE void vdstore_part(double *p, vd v, int64_t n) {
  _mm512_mask_storeu_pd(p, n >= VD ? 0xff : (__mmask8)((1u << n) - 1), (__m512d)v);
}
INLINE vd vdset1(double x) { return (vd)_mm512_set1_pd(x); }
INLINE vd vdfma(vd a, vd b, vd c) { return (vd)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c); }
#elif VL == 8
INLINE void vdstore_part(double *p, vd v, int64_t n) {
  const __m256i lanes = _mm256_set_epi64x(3, 2, 1, 0);
  _mm256_maskstore_pd(p, _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), lanes), (__m256d)v);
}
INLINE vd vdset1(double x) { return (vd)_mm256_set1_pd(x); }
INLINE vd vdfma(vd a, vd b, vd c) { return (vd)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c); }
#else
INLINE void vdstore_part(double *p, vd v, int64_t n) {
  if (n >= VD) vdstore(p, v);
  else *p = v[0];
}
INLINE vd vdset1(double x) { return (vd){x, x}; }
INLINE vd vdfma(vd a, vd b, vd c) { return a * b + c; }
#endif

/* The factors of a block: row r of A at a[r], terms a_step apart; term t of B at b + t * b_step. */
typedef struct factors {
  const double *a[ROWS], *b;
  int64_t a_step, b_step, terms;
} factors;

enum { PRODUCTS, SQUARES, ABSOLUTES };

INLINE vd vdabs(vd a) {
  typedef int64_t bits __attribute__((vector_size(VL * 4)));
  return (vd)((bits)a & INT64_MAX);
}

INLINE vd add_term(int term, vd a, vd b, vd sum) {
  if (term == PRODUCTS) return vdfma(a, b, sum);
  const vd apart = a - b;
  if (term == SQUARES) return vdfma(apart, apart, sum);
  return sum + vdabs(apart);
}

/* sums[r][column]: in ascending order of terms, one vdfma each, from zero on. */
INLINE void block(int term, const factors *f, int rows, int vectors, double sums[ROWS][COLUMNS]) {
  vd s[ROWS][VECTORS], w[VECTORS];
  const double *b = f->b;
  for (int r = 0; r < rows; r++)
    for (int v = 0; v < vectors; v++) s[r][v] = vdset1(0);
  for (int64_t t = 0, at = 0; t < f->terms; t++, at += f->a_step, b += f->b_step) {
    for (int v = 0; v < vectors; v++) w[v] = vdload(b + v * VD);
    for (int r = 0; r < rows; r++) {
      const vd x = vdset1(f->a[r][at]);
      for (int v = 0; v < vectors; v++) s[r][v] = add_term(term, x, w[v], s[r][v]);
    }
  }
  for (int r = 0; r < rows; r++)
    for (int v = 0; v < vectors; v++) vdstore(&sums[r][v * VD], s[r][v]);
}

#define BLOCKS_OF(ROWS_, TERM)                                                                     \
  static void block_##ROWS_##_##TERM(const factors *f, int vectors, double sums[ROWS][COLUMNS]) { \
    if (vectors == 1) block(TERM, f, ROWS_, 1, sums);                                              \
    else if (vectors == 2) block(TERM, f, ROWS_, 2, sums);                                         \
    else if (vectors == 3) block(TERM, f, ROWS_, VECTORS - 1, sums);                               \
    else block(TERM, f, ROWS_, VECTORS, sums);                                                     \
  }
#define BLOCKS(TERM) \
  BLOCKS_OF(1, TERM) BLOCKS_OF(2, TERM) BLOCKS_OF(3, TERM) BLOCKS_OF(4, TERM) BLOCKS_OF(5, TERM) BLOCKS_OF(6, TERM)
#define BLOCKS_BY_ROWS(TERM) {block_1_##TERM, block_2_##TERM, block_3_##TERM, block_4_##TERM, block_5_##TERM, block_6_##TERM}
BLOCKS(PRODUCTS)
BLOCKS(SQUARES)
BLOCKS(ABSOLUTES)
static void (*const blocks[][ROWS])(const factors *, int, double[ROWS][COLUMNS]) = {
    BLOCKS_BY_ROWS(PRODUCTS), BLOCKS_BY_ROWS(SQUARES), BLOCKS_BY_ROWS(ABSOLUTES)};

/* The parameters of the end of a call, by the strides of the last two axes. */
typedef struct rest {
  double *out;
  const double *bias; /* or NULL */
  int64_t out_row, out_column, bias_row, bias_column;
  double alpha, a, b;
  int act, term, plain; /* plain: no activation, columns side by side */
} rest;

static void bias_of(const rest *e, int64_t row, int64_t column, int64_t n, double bias[COLUMNS]) {
  for (int64_t i = 0; i < n; i++) bias[i] = e->bias[row * e->bias_row + (column + i) * e->bias_column];
}

/* Rows row … row + rows - 1 of n columns. `bias`: that of the columns, where it is the same for all rows, else room for it. */
static int finish(const rest *e, int64_t row, int64_t column, int rows, int64_t n, double sums[ROWS][COLUMNS], double bias[COLUMNS]) {
  for (int r = 0; r < rows; r++) {
    double *v = sums[r], *out = e->out + (row + r) * e->out_row + column * e->out_column;
    if (e->bias && e->bias_row) bias_of(e, row + r, column, n, bias);
    for (int64_t i = 0; i < n; i += VD) {
      vd x = vdload(v + i);
      if (e->alpha != 1) x = x * vdset1(e->alpha);
      if (e->bias) x = x + vdload(bias + i);
      if (e->plain) vdstore_part(out + i, x, n - i);
      else vdstore(v + i, x);
    }
    if (e->plain) continue;
    const int error = e->act == ASPEN_U_IDENTITY ? 0 : FN(unary_row)(ASPEN_DT_F64, e->act, e->a, e->b, n, v, v);
    if (error) return error;
    nd_copy_row((char *)out, e->out_column * 8, (const char *)v, 8, n, 8);
  }
  return ASPEN_KERNEL_OK;
}

/* Rows [r0, r1) times n <= COLUMNS columns from `column` on, whose factors are at f->b. */
static int all_rows(factors *f, const double *a, int64_t a_row, const rest *e, int64_t r0, int64_t r1, int64_t column, int64_t n) {
  double sums[ROWS][COLUMNS] __attribute__((aligned(64))), bias[COLUMNS] __attribute__((aligned(64))) = {0};
  if (e->bias && !e->bias_row) bias_of(e, 0, column, n, bias);
  const int vectors = (int)((n + VD - 1) / VD);
  for (int64_t row = r0, rows; row < r1; row += rows) {
    rows = nd_min(ROWS, r1 - row);
    for (int64_t r = 0; r < rows; r++) f->a[r] = a + (row + r) * a_row;
    blocks[e->term][rows - 1](f, vectors, sums);
    const int error = finish(e, row, column, (int)rows, n, sums, bias);
    if (error) return error;
  }
  return ASPEN_KERNEL_OK;
}

static void pack(double *to, const double *b, int64_t term, int64_t column, int64_t terms, int64_t n, int64_t width) {
  for (int64_t t = 0; t < terms; t++, to += width) {
    for (int64_t i = 0; i < n; i++) to[i] = b[t * term + i * column];
    for (int64_t i = n; i < width; i++) to[i] = 0;
  }
}

#ifdef ISA_PORTABLE
size_t aspen_scratch_dgemm(const aspen_call *c) {
  const aspen_arg *a = &c->args[1];
  return (size_t)a->dims[a->rank - 1] * ASPEN_NR * sizeof(double);
}
#endif

_Static_assert(COLUMNS <= ASPEN_NR, "a panel fits the scratch memory");

/* One matrix of each operand; e->out and e->bias are its own. */
static int matrix(const aspen_call *c, const double *a, const double *b, const rest *e) {
  const aspen_arg *A = &c->args[1], *B = &c->args[2];
  const int m = c->args[0].rank - 2, n = m + 1;
  const int64_t term = B->strides[m], step = B->strides[n], hi = c->hi[n];
  factors f = {.terms = A->dims[n], .a_step = A->strides[n]};
  const int in_place = step == 1 && c->hi[m] - c->lo[m] <= IN_PLACE_ROWS;
  for (int64_t column = c->lo[n], count; column < hi; column += count) {
    count = nd_min(COLUMNS, hi - column);
    if (in_place && count >= VD) {
      count -= count % VD; /* nothing beyond B may be read */
      f.b = b + column, f.b_step = term;
    } else {
      f.b = c->scratch, f.b_step = (count + VD - 1) / VD * VD;
      pack(c->scratch, b + column * step, term, step, f.terms, count, f.b_step);
    }
    const int error = all_rows(&f, a, A->strides[m], e, c->lo[m], c->hi[m], column, count);
    if (error) return error;
  }
  return ASPEN_KERNEL_OK;
}

int FN(dgemm)(const aspen_call *c) {
  static const aspen_arg absent;
  const aspen_arg *out = &c->args[0], *a = &c->args[1], *b = &c->args[2];
  const aspen_arg *bias = c->n_inputs > 2 && c->args[3].dtype ? &c->args[3] : &absent;
  const int rank = out->rank, m = rank - 2, n = rank - 1;
  if (rank < 2 || a->rank != rank || b->rank != rank || (bias->dtype && bias->rank != rank)) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (out->dtype != ASPEN_DT_F64 || a->dtype != ASPEN_DT_F64 || b->dtype != ASPEN_DT_F64) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (bias->dtype && bias->dtype != ASPEN_DT_F64) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (c->scratch_bytes < (size_t)a->dims[n] * ASPEN_NR * sizeof(double)) return ASPEN_KERNEL_SCRATCH;
  rest e = {.out_row = out->strides[m], .out_column = out->strides[n], .alpha = aspen_param_f(c, 0), .act = (int)c->params[1],
            .a = aspen_param_f(c, 2), .b = aspen_param_f(c, 3)};
  e.term = (int)c->params[4];
  if ((uint64_t)c->params[4] > ABSOLUTES) return ASPEN_KERNEL_BAD_ARGUMENT;
  e.plain = e.act == ASPEN_U_IDENTITY && e.out_column == 1;
  if (bias->dtype) e.bias_row = bias->strides[m], e.bias_column = bias->strides[n];
  enum { OUT, A, B, BIAS };
  const aspen_arg *args[] = {out, a, b, bias};
  nd it; /* over the leading axes */
  nd_begin(&it, 4);
  for (int k = 0; k < 4; k++) it.ptr[k] = args[k]->ptr;
  for (int i = 0; i < m; i++) {
    int64_t strides[4];
    for (int k = 0; k < 4; k++) {
      strides[k] = args[k]->dtype ? args[k]->strides[i] * 8 : 0;
      it.ptr[k] += c->lo[i] * strides[k];
    }
    nd_add_axis(&it, c->hi[i] - c->lo[i], strides);
  }
  if (c->lo[m] >= c->hi[m] || c->lo[n] >= c->hi[n] || !nd_order(&it)) return ASPEN_KERNEL_OK;
  const int64_t row = nd_row(&it);
  do {
    for (int64_t i = 0; i < row; i++) {
      e.out = (double *)(it.ptr[OUT] + i * nd_step(&it, OUT));
      e.bias = bias->dtype ? (const double *)(it.ptr[BIAS] + i * nd_step(&it, BIAS)) : NULL;
      const int error = matrix(c, (const double *)(it.ptr[A] + i * nd_step(&it, A)), (const double *)(it.ptr[B] + i * nd_step(&it, B)), &e);
      if (error) return error;
    }
  } while (nd_next(&it));
  return ASPEN_KERNEL_OK;
}
