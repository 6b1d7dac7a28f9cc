/* Winograd's convolution, from input to products: patches of pixels, transformed along both axes. */
#ifndef ASPEN_WINOGRAD_IN_H
#define ASPEN_WINOGRAD_IN_H
#include "conv/winograd.h"

#define RUN 4            /* blocks side by side that share the transform of their columns: … */
#define MOST_VECTORS 300 /* … at most this many vectors, with 3 x 3, stride 2, blocks of 4 */
#define APART 256        /* floats between pixels: prefetchers hardly see that the next channels of each come next */

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
        if (how >= WHOLE && column_step >= APART && column >= 0 && column < v->in_columns) { /* the next channels */
          const float *next = line[0] + column * column_step + VL;
          for (int y = 0; y < rows; y++) __builtin_prefetch(how == INSIDE ? next + y * row_step : line[y] + column * p->step[y] + VL, 0, 2);
        }
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

#endif
