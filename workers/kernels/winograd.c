/* WINO: convolution in blocks by Winograd's minimal filtering.
 *
 * The output is cut into blocks of pixels, anchored at multiples of their sides in the whole image. A block needs a patch of input.
 * Both transforms are linear and separable (winograd_lines.h): patch d → B' d B, and products → A' (…) A; weights have been transformed
 * when they were packed. Between the transforms a block is a row of independent matrix products over the channels, one for each
 * pair of products of its two axes. A block is always computed whole and written as far as the tile's box reaches, so a value depends on the
 * inputs alone.
 *
 * (S. Winograd, Arithmetic Complexity of Computations, 1980; A. Lavin, S. Gray, Fast Algorithms for Convolutional Neural Networks, 2016.)
 * The points of interpolation are chosen so that the error of a layer is small: with blocks of 4 and a kernel of 3 it is a half (root mean
 * square) to a quarter (worst) of that of the usual 0, ±1, ±2, at the same cost.
 *
 * A window with depth (volume.h) has the channels of its planes one after the other: products sum over all of them, and blocks are transformed
 * back once.
 *
 * Loops: chunk of blocks (their transformed input stays in L2), panel of output channels, the products, rows of the micro-kernel.
 * A chunk's panel is transformed back, with the epilogue, as soon as its products are there. Where a worker's next tile has other channels of
 * the same pixels, it finds the last chunk transformed (`made`) and begins there.
 */
#include "epilogue.h"
#include "mm.h"
#include "volume.h"
#include "window.h"
#include "winograd_lines.h"

#define FEW_WEIGHTS (4 << 20)   /* bytes of all: above, what counts is how often they are read, once a chunk; below, that a chunk stays in L2 */
#define CHUNK_BYTES (600 << 10) /* transformed input of a chunk, about, … */
#define CHUNK_PRODUCTS 1008     /* … and its blocks times their products, at most, with few weights … */
#define LARGE_BYTES (4 << 20)   /* … and bytes and blocks with many */
#define LARGE_MOST 64
#define LEAST 16                /* blocks, in any case */
#define FAR_BYTES (1 << 20)     /* of an image and its output: beyond, they are not expected in L2 */
#define RUN 4                   /* blocks side by side that share the transform of their columns: … */
#define MOST_VECTORS 300        /* … at most so many vectors, with 3 x 3, stride 2, blocks of 4 */
#if VL == 16
#define MOST_ROWS 14 /* 14 x 2 sums in 32 registers */
#elif VL == 8
#define MOST_ROWS 6 /* 6 x 2 sums in 16 registers */
#else
#define MOST_ROWS 6
#endif
#if VL == 8
#define GRAIN MOST_ROWS /* chunks are multiples of as many blocks: 6 rows keep all multipliers busy, 5 do not */
#else
#define GRAIN 1
#endif
#define VL_MOST 16   /* the longest vectors of any ISA: scratch is the same for all */
#define GRAIN_MOST 6 /* the largest GRAIN of any ISA: scratch is the same for all */
#define MOST_LINES 6144 /* fetched while a panel is multiplied, but for weights */
#define WIDE 2          /* vectors of columns in the micro-kernel … */
#if VL == 8
#define WIDER 4         /* … or so many, and half as many rows: fewer loads, and input that is read once, … */
#define WIDER_TERMS 128 /* … as long as a product's weights for all of them stay in L1 */
#endif
#define FEW_PIXELS (VL == 16 ? 25 : 9)  /* stay in registers until all are finished: blocks of more are finished by some rows at a time */
#define FEW_LINES (VL == 16 ? 40 : 12)  /* vectors between the axes of the output's transform: so many mostly find registers */
#if VL == 8
#define IN_ORDER __asm__ volatile("" ::: "memory") /* the loads of a term stay behind those of the one before: there is no register for them */
#else
#define IN_ORDER ((void)0)
#endif

/* Kernels and blocks: X(name, kernel rows, kernel columns, stride, rows and columns of a block). A side of 1 has blocks of 1. */
#define KINDS(X)                                                                                                                   \
  X(3x3_2, 3, 3, 1, 2, 2) X(3x3_3, 3, 3, 1, 3, 3) X(3x3_4, 3, 3, 1, 4, 4) X(3x3_6, 3, 3, 1, 6, 6)                                  \
  X(3x3s2_2, 3, 3, 2, 2, 2) X(3x3s2_3, 3, 3, 2, 3, 3) X(3x3s2_4, 3, 3, 2, 4, 4)                                                    \
  X(2x2_5, 2, 2, 1, 5, 5) X(4x4_5, 4, 4, 1, 5, 5) X(5x5_2, 5, 5, 1, 2, 2) X(5x5_4, 5, 5, 1, 4, 4)                                  \
  X(1x3_4, 1, 3, 1, 1, 4) X(3x1_4, 3, 1, 1, 4, 1) X(1x5_4, 1, 5, 1, 1, 4) X(5x1_4, 5, 1, 1, 4, 1)                                  \
  X(1x7_4, 1, 7, 1, 1, 4) X(7x1_4, 7, 1, 1, 4, 1) X(1x7_6, 1, 7, 1, 1, 6) X(7x1_6, 7, 1, 1, 6, 1)

/* Rows are axis 0, columns axis 1. */
typedef struct side {
  int kernel, stride, m, n;
  int weights; /* different ones among n */
} side;

typedef struct wino {
  const aspen_arg *out, *x, *w, *bias, *residual;
  int kind;      /* index into KINDS */
  side rows, columns;
  int planes;    /* products of a block */
  struct planes depth;
  int64_t channels; /* of a plane */
  int64_t terms, all_terms; /* of a product: channels of the planes at hand, of all that weights are there for */
  int64_t in_rows, in_columns, pad_top, pad_left;
  int64_t row;    /* floats of a block in one transformed plane: its channels; uneven number of cache lines */
  int64_t chunk;  /* blocks */
  int far;        /* input and output are worth fetching ahead */
  int direct; /* channels have unit strides in output, residual and bias */
  epilogue epilogue;
  const float *scale, *shift; /* of all output channels, or NULL */
} wino;

/* Where a block lies: image, and block numbers. */
typedef struct place {
  int64_t image, row, column;
} place;

/* Whose transformed input is in the workspace: the pixels of the tile [axes 0, 2, 3] of the images at x, and blocks [from, to) of them. */
typedef struct made {
  int64_t lo[3], hi[3], from, to, plane;
  const char *x;
} made;
#define MADE_BYTES 128 /* at the beginning of scratch */
_Static_assert(sizeof(made) <= MADE_BYTES, "");

typedef struct workspace {
  float *input;       /* [planes][chunk][row] */
  float *product;     /* [planes][chunk][ASPEN_NR] */
  place *places;      /* of a chunk's blocks, and of the next chunk's */
  const char **lines; /* to be fetched */
  int64_t input_plane, product_plane; /* floats of a plane; uneven numbers of cache lines, or planes would compete for the same sets of L1 */
} workspace;

static int64_t uneven_lines(int64_t floats) { return ((floats + 15) / 16 | 1) * 16; }

static const struct {
  int8_t kernel[2], stride, m[2];
} kinds[] = {
#define KIND(NAME, KH, KW, S, MH, MW) {{KH, KW}, S, {MH, MW}},
    KINDS(KIND)
#undef KIND
};

static side side_of(int kernel, int stride, int m) {
  return (side){kernel, stride, m, winograd_side(kernel, stride, m), winograd_weights(kernel, stride, m)};
}

static int setup(wino *v, const aspen_call *c, const struct planes *planes) {
  *v = (wino){.out = &c->args[0], .x = &c->args[1], .w = &c->args[2], .depth = *planes};
  v->bias = c->n_inputs > 2 && c->args[3].dtype ? &c->args[3] : NULL;
  v->residual = c->n_inputs > 3 && c->args[4].dtype ? &c->args[4] : NULL;
  if (v->out->rank != 4 || v->x->rank != 4 || v->w->rank != 4 || (v->bias && v->bias->rank != 1) || (v->residual && v->residual->rank != 4))
    return ASPEN_KERNEL_BAD_ARGUMENT;
  if (v->out->dtype != ASPEN_DT_F32 || v->x->dtype != ASPEN_DT_F32 || v->w->dtype != ASPEN_DT_F32) return ASPEN_KERNEL_BAD_ARGUMENT;
  const int64_t *p = c->params;
  if (p[0] != 1 || p[5] != 1 || p[6] != 1 || p[16] < 2) return ASPEN_KERNEL_BAD_ARGUMENT;
  const int n_kinds = (int)(sizeof kinds / sizeof *kinds);
  for (; v->kind < n_kinds; v->kind++)
    if (p[1] == kinds[v->kind].kernel[0] && p[2] == kinds[v->kind].kernel[1] && p[3] == kinds[v->kind].stride &&
        p[4] == kinds[v->kind].stride && p[16] == max64(kinds[v->kind].m[0], kinds[v->kind].m[1]))
      break;
  if (v->kind == n_kinds) return ASPEN_KERNEL_BAD_ARGUMENT;
  v->rows = side_of(kinds[v->kind].kernel[0], kinds[v->kind].stride, kinds[v->kind].m[0]);
  v->columns = side_of(kinds[v->kind].kernel[1], kinds[v->kind].stride, kinds[v->kind].m[1]);
  v->planes = v->rows.n * v->columns.n;
  v->pad_top = p[7];
  v->pad_left = p[8];
  v->channels = v->x->dims[1];
  v->terms = v->depth.n * v->channels;
  v->all_terms = v->depth.all * v->channels;
  /* Input that no output pixel of the image needs is not looked at. */
  v->in_rows = min64(v->x->dims[2], (v->out->dims[2] - 1) * v->rows.stride + v->rows.kernel - v->pad_top);
  v->in_columns = min64(v->x->dims[3], (v->out->dims[3] - 1) * v->columns.stride + v->columns.kernel - v->pad_left);
  v->row = uneven_lines(v->all_terms + (v->depth.all > 1 ? VL_MOST - 1 : 0)); /* behind the last plane, too, there is room for whole vectors */
  const int64_t floats = v->planes * (int64_t)sizeof(float), most = CHUNK_PRODUCTS / v->planes;
  const int few = v->rows.weights * v->columns.weights * 4 * v->all_terms * v->out->dims[1] <= FEW_WEIGHTS;
  v->chunk = max64(min64((few ? CHUNK_BYTES : LARGE_BYTES) / (floats * v->row), few ? most : LARGE_MOST), LEAST);
  v->far = 4 * (v->all_terms * v->x->dims[2] * v->x->dims[3] + v->out->dims[1] * v->out->dims[2] * v->out->dims[3]) > FAR_BYTES;
  return 0;
}

static int64_t blocks_of(const side *s, const aspen_call *c, int axis) { return (c->hi[axis] + s->m - 1) / s->m - c->lo[axis] / s->m; }

/* Lay the workspace out from `base`, for chunks of at most `blocks`; returns its size in bytes. */
static size_t lay_out(const wino *v, workspace *s, int64_t blocks, char *base) {
  s->input_plane = uneven_lines(blocks * v->row);
  s->product_plane = uneven_lines(blocks * ASPEN_NR);
  s->input = (float *)(base + MADE_BYTES);
  s->product = s->input + v->planes * s->input_plane;
  s->places = (place *)(s->product + v->planes * s->product_plane);
  s->lines = (const char **)(s->places + 2 * blocks);
  return (size_t)((char *)(s->lines + 2 * MOST_LINES + v->all_terms) - base);
}

#ifdef ISA_PORTABLE
size_t aspen_scratch_winograd(const aspen_call *c) {
  wino v;
  workspace s;
  volume volume;
  const int error = is_volume(c) ? volume_open(&volume, c, 17) || setup(&v, &volume.call, &volume.planes) : setup(&v, c, &one_plane);
  return error ? 0 : lay_out(&v, &s, v.chunk + GRAIN_MOST - 1, (char *)64);
}
#endif

/* ---- input ---- */

/* The rows of input under a row of blocks. Rows outside the image point at zeros and stay there. */
typedef struct patch {
  const float *line[WINOGRAD_SIDE];
  int64_t step[WINOGRAD_SIDE], channel[WINOGRAD_SIDE]; /* between columns, between channels */
  int inside; /* all rows are */
} patch;

static const float zeros[16];

/* How channels lie in memory: at a stride, next to each other, in whole vectors, or those and all rows inside the image. */
enum channels_in { ANYWHERE, NEIGHBOURS, WHOLE, INSIDE };

/* `count` blocks side by side, the first patch beginning at input column `first`, to `to`: one plane for each of the products. */
INLINE void blocks_in(const int KH, const int KW, const int S, const int MH, const int MW, const int how, const wino *v, const patch *p,
                      int64_t first, int64_t count, float *to, int64_t plane) {
  const int rows = winograd_side(KH, S, MH), width = winograd_side(KW, S, MW), step = MW * S, shared = width - step;
  const int64_t row_step = v->x->strides[2], column_step = v->x->strides[3];
  for (int64_t c = 0; c < v->channels; c += VL) {
    const int64_t lanes = v->channels - c;
    const float *line[WINOGRAD_SIDE]; /* inside, the first will do: the others follow at a stride, without a pointer each */
    for (int y = 0; y < (how == INSIDE ? 1 : rows); y++) line[y] = p->line[y] + c * p->channel[y];
    vf columns[MOST_VECTORS]; /* [RUN * step + shared][rows] */
    for (int64_t done = 0; done < count; done += RUN) {
      const int64_t run = min64(RUN, count - done);
      int64_t j = 0;
      if (done) /* the last patch shares columns with the next one */
        for (; j < shared; j++)
          for (int y = 0; y < rows; y++) columns[j * rows + y] = columns[(RUN * step + j) * rows + y];
      for (; j < run * step + shared; j++) {
        const int64_t column = first + done * step + j;
        vf d[WINOGRAD_SIDE];
        if (column < 0 || column >= v->in_columns) {
          for (int y = 0; y < rows; y++) d[y] = vzero();
        } else {
          const float *first_row = line[0] + column * column_step;
#pragma GCC unroll 12
          for (int y = 0; y < rows; y++) {
            const float *q = how == INSIDE ? first_row + y * row_step : line[y] + column * p->step[y];
            d[y] = how >= WHOLE ? vload(q) : how == NEIGHBOURS ? vload_part(q, lanes) : vload_strided(q, p->channel[y], lanes);
          }
        }
        line_in(KH, S, MH, d, columns + j * rows);
      }
      for (int64_t i = 0; i < run; i++) {
        float *at = to + (done + i) * v->row + c;
        for (int y = 0; y < rows; y++) {
          vf d[WINOGRAD_SIDE], o[WINOGRAD_SIDE];
#pragma GCC unroll 12
          for (int x = 0; x < width; x++) d[x] = columns[(i * step + x) * rows + y];
          line_in(KW, S, MW, d, o);
#pragma GCC unroll 12
          for (int x = 0; x < width; x++, at += plane) vstore(at, o[x]);
        }
      }
    }
  }
}

typedef void in_fn(const wino *, const patch *, int64_t, int64_t, float *, int64_t);
#define BLOCKS_IN(NAME, KH, KW, S, MH, MW)                                                                                         \
  static void blocks_in_any_##NAME(const wino *v, const patch *p, int64_t first, int64_t count, float *to, int64_t plane) {         \
    blocks_in(KH, KW, S, MH, MW, ANYWHERE, v, p, first, count, to, plane);                                                         \
  }                                                                                                                                \
  static void blocks_in_part_##NAME(const wino *v, const patch *p, int64_t first, int64_t count, float *to, int64_t plane) {        \
    blocks_in(KH, KW, S, MH, MW, NEIGHBOURS, v, p, first, count, to, plane);                                                       \
  }                                                                                                                                \
  static void blocks_in_whole_##NAME(const wino *v, const patch *p, int64_t first, int64_t count, float *to, int64_t plane) {       \
    blocks_in(KH, KW, S, MH, MW, WHOLE, v, p, first, count, to, plane);                                                            \
  }                                                                                                                                \
  static void blocks_in_inside_##NAME(const wino *v, const patch *p, int64_t first, int64_t count, float *to, int64_t plane) {      \
    blocks_in(KH, KW, S, MH, MW, INSIDE, v, p, first, count, to, plane);                                                           \
  }
KINDS(BLOCKS_IN)
static in_fn *const inputs[][4] = {
#define KIND(NAME, ...) {blocks_in_any_##NAME, blocks_in_part_##NAME, blocks_in_whole_##NAME, blocks_in_inside_##NAME},
    KINDS(KIND)
#undef KIND
};

/* Places of blocks [from, to) of the tile. */
static void locate(const wino *v, const aspen_call *c, int64_t from, int64_t to, place *places) {
  const int64_t columns = blocks_of(&v->columns, c, 3), rows = blocks_of(&v->rows, c, 2), top = c->lo[2] / v->rows.m, left = c->lo[3] / v->columns.m;
  place at = {c->lo[0] + from / columns / rows, top + from / columns % rows, left + from % columns};
  for (int64_t block = from; block < to; block++) {
    *places++ = at;
    if (++at.column < left + columns) continue;
    at.column = left;
    if (++at.row < top + rows) continue;
    at.row = top;
    at.image++;
  }
}

/* Transformed input of a chunk. */
static void input_of(const wino *v, const workspace *s, int64_t blocks) {
  const int how = v->x->strides[1] != 1 && v->channels > 1 ? ANYWHERE : v->channels % VL ? NEIGHBOURS : WHOLE;
  for (int64_t block = 0, count; block < blocks; block += count) {
    const place at = s->places[block];
    for (count = 1; block + count < blocks && s->places[block + count].column == at.column + count; count++) {}
    patch p;
    p.inside = 1;
    for (int y = 0; y < v->rows.n; y++) {
      const int64_t row = at.row * v->rows.m * v->rows.stride - v->pad_top + y;
      const int inside = row >= 0 && row < v->in_rows;
      p.inside &= inside;
      p.line[y] = inside ? (const float *)v->x->ptr + at.image * v->x->strides[0] + row * v->x->strides[2] : zeros;
      p.step[y] = inside ? v->x->strides[3] : 0;
      p.channel[y] = inside ? v->x->strides[1] : 0;
    }
    float *input = s->input + block * v->row;
    const int64_t first = at.column * v->columns.m * v->columns.stride - v->pad_left;
    in_fn *f = inputs[v->kind][how == WHOLE && p.inside ? INSIDE : how];
    if (v->depth.n > 0) f(v, &p, first, count, input, s->input_plane);
    for (int64_t i = 1; i < v->depth.n; i++) {
      for (int y = 0; y < v->rows.n; y++)
        if (p.line[y] != zeros) p.line[y] += v->depth.step;
      f(v, &p, first, count, input += v->channels, s->input_plane); /* what was written behind a plane's channels, the next one's replace */
    }
  }
}

/* ---- products ---- */

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

/* to[R][V * VL] = a[R][k] · b[k][V * VL], summed in ascending k. Rows of a are `row` apart, rows of b and to ASPEN_NR. */
INLINE void multiply(const int R, const int V, const float *a, int64_t row, const float *b, int64_t k_end, float *to, const ahead *h) {
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
    for (int j = 0; j < V; j++) vstore(to + r * ASPEN_NR + j * VL, sum[r][j]);
}

#if VL == 8
/* The same with WIDER vectors: the rows' values are in registers, and the weights go by. */
INLINE void multiply_wider(const int R, const float *a, int64_t row, const float *b, int64_t k_end, float *to, const ahead *h) {
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
    for (int j = 0; j < WIDER; j++) vstore(to + r * ASPEN_NR + j * VL, sum[r][j]);
}
#endif

typedef void multiply_fn(const float *, int64_t, const float *, int64_t, float *, const ahead *);
#define MULTIPLY_V(R, V)                                                                                                           \
  static void multiply_##R##x##V(const float *a, int64_t row, const float *b, int64_t k, float *to, const ahead *h) {              \
    multiply(R, V, a, row, b, k, to, h);                                                                                           \
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
  static void multiply_wider_##R(const float *a, int64_t row, const float *b, int64_t k, float *to, const ahead *h) {              \
    multiply_wider(R, a, row, b, k, to, h);                                                                                        \
  }
WIDE_MULTIPLY(1) WIDE_MULTIPLY(2) WIDE_MULTIPLY(3)
static multiply_fn *const by_rows_wider[] = {multiply_wider_1, multiply_wider_2, multiply_wider_3};
#endif

/* Which of a panel's weights product `i` takes: those of a plain product stand once. */
static int64_t weights_of(const wino *v, int i) {
  return min64(i / v->columns.n, v->rows.weights - 1) * v->columns.weights + min64(i % v->columns.n, v->columns.weights - 1);
}

/* All products of `blocks` blocks with the first `columns` columns of a panel. While the weights of one product are used, those of the next
 * come into L2, evenly over all passes over them, and so do `n_lines` other lines over all products: the memory is never idle. */
static void products(const wino *v, const workspace *s, const float *panel, int64_t blocks, int64_t columns, int64_t n_lines) {
#if VL == 8
  const int wider = v->terms <= WIDER_TERMS && columns > (WIDER - 1) * VL;
  const int64_t most_rows = wider ? MOST_ROWS / 2 : MOST_ROWS, width = wider ? WIDER * VL : WIDE * VL;
#else
  const int64_t most_rows = MOST_ROWS, width = WIDE * VL;
#endif
  const int64_t pieces = (blocks + most_rows - 1) / most_rows, size = v->all_terms * ASPEN_NR, used = v->terms * ASPEN_NR;
  const int64_t passes = pieces * ((columns + width - 1) / width), calls = v->planes * passes, steps = max64(v->terms / 4, 1);
  const float *input = s->input;
  float *product = s->product;
  ahead h = {.weights_pace = (int)((used / 16 + passes * steps - 1) / (passes * steps)),
             .lines_pace = (int)((n_lines + calls * steps - 1) / (calls * steps))};
  for (int64_t i = 0; i < h.lines_pace * steps; i++) s->lines[n_lines + i] = (const char *)s->lines; /* may be fetched too */
  int64_t call = 0;
  for (int i = 0; i < v->planes; i++, input += s->input_plane, product += s->product_plane) {
    const float *weights = panel + weights_of(v, i) * size;
    h.weights = (const char *)(i + 1 < v->planes ? panel + weights_of(v, i + 1) * size : panel + v->rows.weights * v->columns.weights * size);
    for (int64_t at = 0; at < columns; at += width) /* outside: so many weights at a time stay in L1 */
      for (int64_t piece = 0; piece < pieces; piece++, h.weights += h.weights_pace * steps * 64) {
        const int64_t first = mm_cut(blocks, pieces, piece), rows = mm_cut(blocks, pieces, piece + 1) - first;
        h.lines = s->lines + call++ * n_lines / calls;
        multiply_fn *f = by_rows[rows - 1][columns - at > VL];
#if VL == 8
        if (wider) f = by_rows_wider[rows - 1];
#endif
        f(input + first * v->row, v->row, weights + at, v->terms, product + first * ASPEN_NR + at, &h);
      }
  }
}

/* ---- output ---- */

/* The part of a block that is written, and where column 0 of its first pixel goes. Pixels [top, bottom) x [left, right), columns
 * [first, last). */
typedef struct target {
  float *out;
  const float *bias, *residual; /* bias: column 0 */
  int top, bottom, left, right;
  int64_t first, last;
} target;

typedef vf block_lines[WINOGRAD_BLOCK][WINOGRAD_SIDE];

/* Column k of a block's products, for VL output channels, through the transform of the rows' axis. */
INLINE void column_out(const int KH, const int KW, const int S, const int MH, const int MW, const float *product, int64_t plane, int k, block_lines lines) {
  const int height = winograd_side(KH, S, MH), width = winograd_side(KW, S, MW);
  vf d[WINOGRAD_SIDE], o[WINOGRAD_BLOCK];
#pragma GCC unroll 12
  for (int i = 0; i < height; i++) d[i] = vload(product + i * width * plane);
  line_out(KH, S, MH, d, o);
#pragma GCC unroll 8
  for (int i = 0; i < MH; i++) lines[i][k] = o[i];
}

/* All columns. Of blocks that do not fit the registers, one after the other. */
INLINE void columns_out(const int KH, const int KW, const int S, const int MH, const int MW, const float *product, int64_t plane, block_lines lines) {
  const int width = winograd_side(KW, S, MW);
  if (MH * width <= FEW_LINES)
#pragma GCC unroll 12
    for (int k = 0; k < width; k++) column_out(KH, KW, S, MH, MW, product + k * plane, plane, k, lines);
  else
#pragma GCC unroll 1
    for (int k = 0; k < width; k++, product += plane) column_out(KH, KW, S, MH, MW, product, plane, k, lines);
}

INLINE vf channels_of(const float *p, const int whole, int64_t n) { return whole ? vload(p) : vload_part(p, n); }

/* Where pixel 0 of some rows lies in an operand, for VL channels. */
typedef struct pixels {
  float *at;
  int64_t row, column; /* strides */
} pixels;

/* Adds the residual of R rows from `row` on. Pixels outside the box have none that may be read. */
INLINE void residual_out(const int R, const int MW, const int all, const target *t, const pixels *p, int row, int64_t lanes, vf *y) {
#pragma GCC unroll 6
  for (int r = 0; r < R; r++) {
    if (!all && (row + r < t->top || row + r >= t->bottom)) continue;
#pragma GCC unroll 6
    for (int i = 0; i < MW; i++)
      if (all || (i >= t->left && i < t->right)) y[r * MW + i] += channels_of(p->at + (row + r) * p->row + i * p->column, all, lanes);
  }
}

/* What follows the activation of R rows, and home. */
INLINE void rows_out(const int R, const int MW, const int all, const wino *v, const target *t, const pixels *out, const pixels *late, int row, int64_t j,
                     vf *y) {
  const int64_t lanes = t->last - j;
  if (v->scale) {
    const vf scale = channels_of(v->scale + j, all, lanes), shift = channels_of(v->shift + j, all, lanes);
#pragma GCC unroll 32
    for (int i = 0; i < R * MW; i++) y[i] = vfma(y[i], scale, shift);
  }
  if (late->at) residual_out(R, MW, all, t, late, row, lanes, y);
#pragma GCC unroll 6
  for (int r = 0; r < R; r++) {
    if (!all && (row + r < t->top || row + r >= t->bottom)) continue;
    float *to = out->at + (row + r) * out->row;
#pragma GCC unroll 6
    for (int i = 0; i < MW; i++) {
      if (!all && (i < t->left || i >= t->right)) continue;
      if (all)
        vstore(to + i * out->column, y[r * MW + i]);
      else
        vstore_part(to + i * out->column, y[r * MW + i], lanes);
    }
  }
}

/* Rows of a block that are finished at once: they stay in registers. (A plain expression, or loops over them are not unrolled in time.) */
#if VL == 16
#define ROWS_OUT(MH, MW) ((MH) * (MW) <= FEW_PIXELS ? (MH) : 1)
#else
#define ROWS_OUT(MH, MW)                                                                                                           \
  ((MH) * (MW) <= FEW_PIXELS ? (MH) : (MH) % 3 == 0 && 3 * (MW) <= FEW_PIXELS ? 3 : (MH) % 2 == 0 && 2 * (MW) <= FEW_PIXELS ? 2 : 1)
#endif

/* The same as below for a whole block, some rows at a time, with nothing behind the sums but the bias and an activation that is known when
 * compiled: with narrow vectors, asking at each row what is to be done costs as much as doing it. */
INLINE void plain_rows(const int KW, const int S, const int MH, const int MW, const int kind, const wino *v, const pixels *out, vf bias,
                       block_lines lines) {
  const int R = ROWS_OUT(MH, MW);
  epilogue e = v->epilogue;
  e.kind = (uint8_t)kind;
  float *to = out->at;
  const int64_t down = out->row, right = out->column;
#pragma GCC unroll 1
  for (int row = 0; row < MH; row += R) {
    vf y[FEW_PIXELS];
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) line_out(KW, S, MW, lines[row + r], y + r * MW);
#pragma GCC unroll 32
      for (int i = 0; i < R * MW; i++) y[i] += bias;
    epilogue_act(&e, y, R * MW);
#pragma GCC unroll 6
    for (int r = 0; r < R; r++, to += down)
#pragma GCC unroll 6
      for (int i = 0; i < MW; i++) vstore(to + i * right, y[r * MW + i]);
  }
}

/* Straight from registers: unit strides, columns from the panel's first on. all: whole block, whole vectors. Rows are finished together that
 * stay in registers; only an activation that is a call waits for all of them. */
INLINE void block_out_direct(const int KH, const int KW, const int S, const int MH, const int MW, const int all, const wino *v, const target *t, const float *product, int64_t plane,
                             int64_t column) {
  const int R = ROWS_OUT(MH, MW), call = MH > R && v->epilogue.kind == EPILOGUE_CALL;
  const aspen_arg *const from = t->residual ? v->residual : v->out;
  for (int64_t j = column; j < min64(column + ASPEN_NR, t->last); j += VL) {
    const int64_t lanes = t->last - j;
    const pixels out = {t->out + j, v->out->strides[2], v->out->strides[3]};
    const pixels early = {t->residual && !v->epilogue.residual_last ? (float *)t->residual + j : NULL, from->strides[2], from->strides[3]};
    const pixels late = {t->residual && v->epilogue.residual_last ? (float *)t->residual + j : NULL, from->strides[2], from->strides[3]};
    const vf bias = t->bias ? channels_of(t->bias + j, all, lanes) : vzero();
    float block[WINOGRAD_BLOCK * WINOGRAD_BLOCK * VL] __attribute__((aligned(64))); /* with `call` */
    block_lines lines;
    columns_out(KH, KW, S, MH, MW, product + (j - column), plane, lines);
    if (VL < 16 && all && MH > R && t->bias && !t->residual && !v->scale) {
      const int kind = v->epilogue.kind;
      if (kind == EPILOGUE_RELU) plain_rows(KW, S, MH, MW, EPILOGUE_RELU, v, &out, bias, lines);
      if (kind == EPILOGUE_LEAKY) plain_rows(KW, S, MH, MW, EPILOGUE_LEAKY, v, &out, bias, lines);
      if (kind == EPILOGUE_NONE) plain_rows(KW, S, MH, MW, EPILOGUE_NONE, v, &out, bias, lines);
      if (kind == EPILOGUE_RELU || kind == EPILOGUE_LEAKY || kind == EPILOGUE_NONE) continue;
    }
    for (int row = 0; row < MH; row += R) {
      vf y[FEW_PIXELS];
#pragma GCC unroll 6
      for (int r = 0; r < R; r++) line_out(KW, S, MW, lines[row + r], y + r * MW);
      if (t->bias)
#pragma GCC unroll 32
        for (int i = 0; i < R * MW; i++) y[i] += bias;
      if (early.at) residual_out(R, MW, all, t, &early, row, lanes, y);
      if (call) {
#pragma GCC unroll 16
        for (int i = 0; i < R * MW; i++) vstore(block + (row * MW + i) * VL, y[i]);
      } else {
        epilogue_act(&v->epilogue, y, R * MW);
        rows_out(R, MW, all, v, t, &out, &late, row, j, y);
      }
    }
    if (!call) continue;
    FN(act)(v->epilogue.act, v->epilogue.a, v->epilogue.b, block, block, MH * MW * VL);
    for (int row = 0; row < MH; row += R) {
      vf y[FEW_PIXELS];
#pragma GCC unroll 16
      for (int i = 0; i < R * MW; i++) y[i] = vload(block + (row * MW + i) * VL);
      rows_out(R, MW, all, v, t, &out, &late, row, j, y);
    }
  }
}

/* z[0 … n) += p[0 … n) at a stride */
static void add_row(float *z, const float *p, int64_t stride, int64_t n) {
  if (stride == 1)
    for (int64_t i = 0; i < n; i += VL) vstore_part(z + i, vload_part(z + i, n - i) + vload_part(p + i, n - i), n - i);
  else
    for (int64_t i = 0; i < n; i++) z[i] += p[i * stride];
}

/* Anything else, in the same order: through a buffer [MH * MW][ASPEN_NR]. */
INLINE void block_out_any(const int KH, const int KW, const int S, const int MH, const int MW, const wino *v, const target *t, const float *product, int64_t plane, int64_t column) {
  const epilogue *e = &v->epilogue;
  float block[WINOGRAD_BLOCK * WINOGRAD_BLOCK * ASPEN_NR] __attribute__((aligned(64)));
  for (int64_t j = 0; j < ASPEN_NR; j += VL) {
    block_lines lines;
    columns_out(KH, KW, S, MH, MW, product + j, plane, lines);
    for (int row = 0; row < MH; row++) {
      vf y[WINOGRAD_BLOCK];
      line_out(KW, S, MW, lines[row], y);
#pragma GCC unroll 6
      for (int i = 0; i < MW; i++) vstore(block + (row * MW + i) * ASPEN_NR + j, y[i]);
    }
  }
  const int64_t skip = max64(t->first - column, 0), width = min64(t->last - column, ASPEN_NR) - skip;
  column += skip;
  const int64_t bias_stride = v->bias ? v->bias->strides[0] : 0, out_stride = v->out->strides[1];
  for (int row = t->top; row < t->bottom; row++)
    for (int i = t->left; i < t->right; i++) {
      float *z = block + (row * MW + i) * ASPEN_NR + skip;
      const float *residual = NULL;
      if (t->residual)
        residual = t->residual + row * v->residual->strides[2] + i * v->residual->strides[3] + column * v->residual->strides[1];
      if (t->bias) add_row(z, t->bias + column * bias_stride, bias_stride, width);
      if (residual && !e->residual_last) add_row(z, residual, v->residual->strides[1], width);
      FN(act)(e->act, e->a, e->b, z, z, width);
      if (v->scale)
        for (int64_t k = 0; k < width; k += VL)
          vstore_part(z + k, vfma(vload_part(z + k, width - k), vload_part(v->scale + column + k, width - k),
                                  vload_part(v->shift + column + k, width - k)), width - k);
      if (residual && e->residual_last) add_row(z, residual, v->residual->strides[1], width);
      float *out = t->out + row * v->out->strides[2] + i * v->out->strides[3] + column * out_stride;
      for (int64_t k = 0; k < width; k++) out[k * out_stride] = z[k];
    }
}

typedef void out_fn(const wino *, const target *, const float *, int64_t, int64_t);
#define BLOCK_OUT(NAME, KH, KW, S, MH, MW)                                                                                         \
  static void block_out_all_##NAME(const wino *v, const target *t, const float *product, int64_t plane, int64_t column) {          \
    block_out_direct(KH, KW, S, MH, MW, 1, v, t, product, plane, column);                                                          \
  }                                                                                                                                \
  static void block_out_part_##NAME(const wino *v, const target *t, const float *product, int64_t plane, int64_t column) {         \
    block_out_direct(KH, KW, S, MH, MW, 0, v, t, product, plane, column);                                                          \
  }                                                                                                                                \
  static void block_out_any_##NAME(const wino *v, const target *t, const float *product, int64_t plane, int64_t column) {          \
    block_out_any(KH, KW, S, MH, MW, v, t, product, plane, column);                                                                \
  }
KINDS(BLOCK_OUT)
static out_fn *const outputs[][3] = {
#define KIND(NAME, ...) {block_out_any_##NAME, block_out_part_##NAME, block_out_all_##NAME},
    KINDS(KIND)
#undef KIND
};

/* Where the first pixel of a block lies, whether it is inside the box or not. */
static float *pixel_of(const wino *v, const aspen_arg *a, place at) {
  return (float *)a->ptr + at.image * a->strides[0] + at.row * v->rows.m * a->strides[2] + at.column * v->columns.m * a->strides[3];
}

/* One panel of a chunk. */
static void output_of(const wino *v, const aspen_call *c, const workspace *s, int64_t blocks, int64_t column) {
  const int64_t height = v->rows.m, width = v->columns.m;
  target t = {.bias = v->bias ? (const float *)v->bias->ptr : NULL, .first = c->lo[1], .last = c->hi[1]};
  const int direct = v->direct && t.first <= column;
  const int columns_all = min64(column + ASPEN_NR, t.last) % VL == 0;
  for (int64_t block = 0; block < blocks; block++) {
    const place at = s->places[block];
    t.top = (int)max64(c->lo[2] - at.row * height, 0);
    t.bottom = (int)min64(c->hi[2] - at.row * height, height);
    t.left = (int)max64(c->lo[3] - at.column * width, 0);
    t.right = (int)min64(c->hi[3] - at.column * width, width);
    t.out = pixel_of(v, v->out, at);
    if (v->residual) t.residual = pixel_of(v, v->residual, at);
    const int all = columns_all && t.bottom - t.top == height && t.right - t.left == width;
    outputs[v->kind][direct ? 1 + all : 0](v, &t, s->product + block * ASPEN_NR, s->product_plane, column);
  }
}

/* Lists the lines that a panel's output goes to and its residual comes from, and part `part` of `parts` of the next chunk's input. Returns
 * their number. */
static int64_t list_lines(const wino *v, const aspen_call *c, const workspace *s, int64_t blocks, int64_t next, int64_t column, int64_t part,
                          int64_t parts) {
  const int64_t height = v->rows.m, width = v->columns.m;
  const char **line = s->lines, **const end = line + MOST_LINES;
  const aspen_arg *const targets[2] = {v->out, v->residual};
  for (int64_t block = 0; v->direct && block < blocks; block++) {
    const place at = s->places[block];
    const int64_t bottom = min64(c->hi[2] - at.row * height, height), right = min64(c->hi[3] - at.column * width, width);
    for (int t = 0; t < 2; t++) {
      const aspen_arg *a = targets[t];
      if (!a || end - line < 2 * height * width) continue;
      const float *p = pixel_of(v, a, at) + column;
      for (int64_t y = 0; y < bottom; y++)
        for (int64_t x = 0; x < right; x++) {
          const float *q = p + y * a->strides[2] + x * a->strides[3];
          *line++ = (const char *)q;
          *line++ = (const char *)(q + 16);
        }
    }
  }
  const aspen_arg *a = v->x;
  const int64_t rows = v->rows.n, down = height * v->rows.stride, across = width * v->columns.stride;
  for (int64_t i = next * rows * part / parts; a->strides[1] == 1 && i < next * rows * (part + 1) / parts; i++) {
    const place at = s->places[blocks + i / rows];
    const int64_t y = at.row * down - v->pad_top + i % rows, last = at.column * across - v->pad_left + v->columns.n;
    if (y < 0 || y >= v->in_rows) continue;
    const float *p = (const float *)a->ptr + at.image * a->strides[0] + y * a->strides[2];
    for (int64_t x = max64(last - across, 0); x < min64(last, v->in_columns); x++)
      for (int64_t i = 0; i < v->depth.n; i++)
        for (int64_t k = 0; k < v->channels && line < end; k += 16) *line++ = (const char *)(p + x * a->strides[3] + i * v->depth.step + k);
  }
  return line - s->lines;
}

/* Are blocks [from, to) of the tile's pixels in the workspace? */
static int is_made(const made *m, const made *wanted, int64_t from, int64_t to) {
  return !memcmp(m->lo, wanted->lo, sizeof m->lo) && !memcmp(m->hi, wanted->hi, sizeof m->hi) && m->plane == wanted->plane && m->x == wanted->x && m->from == from && m->to == to;
}

/* The first block of a chunk. */
static int64_t cut(int64_t grains, int64_t chunks, int64_t blocks, int64_t chunk) { return min64(mm_cut(grains, chunks, chunk) * GRAIN, blocks); }

/* The boxes of some images. */
static int images(const aspen_call *c, const struct planes *planes) {
  wino v;
  workspace s;
  const int error = setup(&v, c, planes);
  if (error) return error;
  if (c->scratch_bytes < MADE_BYTES) return ASPEN_KERNEL_SCRATCH;
  made *const m = c->scratch;
  const int64_t blocks = (c->hi[0] - c->lo[0]) * blocks_of(&v.rows, c, 2) * blocks_of(&v.columns, c, 3);
  if (blocks <= 0 || c->lo[1] >= c->hi[1]) return 0;
  if (FN(epilogue_open)(&v.epilogue, c->params[9], aspen_param_f(c, 10), aspen_param_f(c, 11), c->params[12])) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (epilogue_scale(c, 4, v.out->dims[1], &v.scale, &v.shift)) return ASPEN_KERNEL_BAD_ARGUMENT;
  v.direct = v.out->strides[1] == 1 && (!v.bias || v.bias->strides[0] == 1) && (!v.residual || v.residual->strides[1] == 1);
  const int64_t grains = (blocks + GRAIN - 1) / GRAIN, most = (v.chunk + GRAIN - 1) / GRAIN, chunks = (grains + most - 1) / most;
  if (lay_out(&v, &s, min64((grains + chunks - 1) / chunks * GRAIN, blocks), c->scratch) > c->scratch_bytes) return ASPEN_KERNEL_SCRATCH;
  const int64_t panel_size = v.rows.weights * v.columns.weights * v.all_terms * ASPEN_NR;
  const int64_t first = c->lo[1] / ASPEN_NR, last = (c->hi[1] + ASPEN_NR - 1) / ASPEN_NR; /* panels */
  const made wanted = {.lo = {c->lo[0], c->lo[2], c->lo[3]}, .hi = {c->hi[0], c->hi[2], c->hi[3]}, .plane = s.input_plane, .x = v.x->ptr};
  const int backwards = chunks > 1 && is_made(m, &wanted, cut(grains, chunks, blocks, chunks - 1), blocks), step = backwards ? -1 : 1;
  for (int64_t turn = 0, chunk = backwards ? chunks - 1 : 0; turn < chunks; turn++, chunk += step) {
    const int64_t from = cut(grains, chunks, blocks, chunk), to = cut(grains, chunks, blocks, chunk + 1);
    int64_t next = 0;
    locate(&v, c, from, to, s.places);
    if (turn + 1 < chunks) {
      const int64_t begin = cut(grains, chunks, blocks, chunk + step), end = cut(grains, chunks, blocks, chunk + step + 1);
      locate(&v, c, begin, end, s.places + (to - from));
      next = end - begin;
    }
    if (!is_made(m, &wanted, from, to)) input_of(&v, &s, to - from);
    *m = wanted;
    m->from = from;
    m->to = to;
    for (int64_t panel = first; panel < last; panel++) {
      const int64_t column = panel * ASPEN_NR;
      int64_t lines;
      lines = v.far ? list_lines(&v, c, &s, to - from, next, column, panel - first, last - first) : 0;
      products(&v, &s, (const float *)v.w->ptr + panel * panel_size, to - from, min64(ASPEN_NR, c->hi[1] - column), lines);
      output_of(&v, c, &s, to - from, column);
    }
  }
  return 0;
}

int FN(winograd)(const aspen_call *c) {
  if (!c->again && c->scratch_bytes >= MADE_BYTES) *(made *)c->scratch = (made){0};
  if (!is_volume(c)) return images(c, &one_plane);
  volume v;
  if (volume_open(&v, c, 17)) return ASPEN_KERNEL_BAD_ARGUMENT;
  v.plane_weights = c->args[1].dims[1] * ASPEN_NR;
  while (volume_next(&v)) {
    const int error = images(&v.call, &v.planes);
    if (error) return error;
  }
  return 0;
}
