/* A call of Winograd's convolution, as its parts see it (winograd.c): the existing kernels and blocks, the call's parameters, the size of
 * chunks, the workspace.
 */
#ifndef ASPEN_WINOGRAD_H
#define ASPEN_WINOGRAD_H
#include "vector/epilogue.h"
#include "conv/volume.h"
#include "conv/window.h"
#include "conv/winograd_lines.h"

#define FEW_WEIGHTS ASPEN_WINO_FEW_WEIGHTS
#define CHUNK_BYTES ASPEN_WINO_CHUNK_BYTES
#define CHUNK_PRODUCTS ASPEN_WINO_CHUNK_PRODUCTS
#define LARGE_BYTES ASPEN_WINO_LARGE_BYTES
#define LARGE_MOST ASPEN_WINO_LARGE_MOST
#define LEAST ASPEN_WINO_LEAST
#define FAR_BYTES (1 << 20)     /* of an image and its output: beyond, they are not expected in L2 */
#define VL_MOST 16              /* the longest vectors of any ISA: scratch is the same for all */

/* Kernels and blocks: X(name, kernel rows, kernel columns, stride, rows and columns of a block). A side of 1 has blocks of 1. */
#define KINDS(X)                                                                                                                   \
  X(3x3_2, 3, 3, 1, 2, 2) X(3x3_3, 3, 3, 1, 3, 3) X(3x3_4, 3, 3, 1, 4, 4) X(3x3_6, 3, 3, 1, 6, 6)                                  \
  X(3x3s2_2, 3, 3, 2, 2, 2) X(3x3s2_3, 3, 3, 2, 3, 3) X(3x3s2_4, 3, 3, 2, 4, 4)                                                    \
  X(2x2_3, 2, 2, 1, 3, 3) X(2x2_5, 2, 2, 1, 5, 5) X(4x4_3, 4, 4, 1, 3, 3) X(4x4_5, 4, 4, 1, 5, 5)                                  \
  X(5x5_2, 5, 5, 1, 2, 2) X(5x5_4, 5, 5, 1, 4, 4)                                                                                  \
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

typedef struct workspace {
  float *input;       /* [planes][chunk][row] */
  float *product;     /* [planes][chunk][ASPEN_NR] */
  place *places;      /* of a chunk's blocks, and of the next chunk's */
  const char **lines; /* to be fetched */
  /* Floats of a plane; uneven numbers of cache lines, or planes would compete for the same sets of L1. */
  int64_t input_plane, product_plane;
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

/* Reads and checks a call. ASPEN_KERNEL_BAD_ARGUMENT for other kinds than KINDS. The epilogue and `direct` are left to the caller. */
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
  /* Behind the last plane, too, there is room for whole vectors. */
  v->row = uneven_lines(v->all_terms + (v->depth.all > 1 ? VL_MOST - 1 : 0));
  const int64_t floats = v->planes * (int64_t)sizeof(float), most = CHUNK_PRODUCTS / v->planes;
  const int few = v->rows.weights * v->columns.weights * 4 * v->all_terms * v->out->dims[1] <= FEW_WEIGHTS;
  v->chunk = max64(min64((few ? CHUNK_BYTES : LARGE_BYTES) / (floats * v->row), few ? most : LARGE_MOST), LEAST);
  v->far = 4 * (v->all_terms * v->x->dims[2] * v->x->dims[3] + v->out->dims[1] * v->out->dims[2] * v->out->dims[3]) > FAR_BYTES;
  return 0;
}

#endif
