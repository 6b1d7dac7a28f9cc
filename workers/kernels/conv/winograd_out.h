/* Winograd's convolution, from products to output: blocks transformed back along both axes, with what follows the sums, written as far as
 * the tile's box reaches.
 */
#ifndef ASPEN_WINOGRAD_OUT_H
#define ASPEN_WINOGRAD_OUT_H
#include "conv/winograd.h"

#define FEW_PIXELS (VL == 16 ? 25 : 9)  /* stay in registers until all are finished: blocks of more are finished by some rows at a time */
#define FEW_LINES (VL == 16 ? 40 : 12)  /* vectors between the axes of the output's transform: at most this many mostly find registers */

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
INLINE void column_out(const int KH, const int KW, const int S, const int MH, const int MW, const float *product, int64_t plane, int k,
                       block_lines lines) {
  const int height = winograd_side(KH, S, MH), width = winograd_side(KW, S, MW);
  vf d[WINOGRAD_SIDE], o[WINOGRAD_BLOCK];
#pragma GCC unroll 12
  for (int i = 0; i < height; i++) d[i] = vload(product + i * width * plane);
  line_out(KH, S, MH, d, o);
#pragma GCC unroll 8
  for (int i = 0; i < MH; i++) lines[i][k] = o[i];
}

/* All columns. Blocks that do not fit the registers go one after the other. */
INLINE void columns_out(const int KH, const int KW, const int S, const int MH, const int MW, const float *product, int64_t plane,
                        block_lines lines) {
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

/* Stores R rows, after the steps that follow their activation. */
INLINE void rows_out(const int R, const int MW, const int all, const wino *v, const target *t, const pixels *out, const pixels *late,
                     int row, int64_t j, vf *y) {
  const int64_t lanes = t->last - j;
  const int past = stores_begin(v->epilogue.past, out->at);
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
        vstore_to(past, to + i * out->column, y[r * MW + i]);
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

/* The same as below for a whole block, some rows at a time. Only the bias and an activation that is known at compile time follow the sums.
 * With narrow vectors, a branch at each row costs as much as the step that it chooses. */
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

/* Straight from registers: unit strides, columns from the panel's first on. all: whole block, whole vectors. Rows are finished together
 * that stay in registers; only an activation that is a call waits for all of them. */
INLINE void block_out_direct(const int KH, const int KW, const int S, const int MH, const int MW, const int all, const wino *v,
                             const target *t, const float *product, int64_t plane, int64_t column) {
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
INLINE void block_out_any(const int KH, const int KW, const int S, const int MH, const int MW, const wino *v, const target *t,
                          const float *product, int64_t plane, int64_t column) {
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

#endif
