/* RESIZE as ONNX defines it: nearest (any fixed-size type), linear and cubic (f32), over any axes.
 *
 * Along each resized axis an output coordinate maps to a few input indices with weights (taps), computed in double as the specification
 * writes it. An output is the sum over the combinations of taps of its axes, last axis fastest, of the product of weights times the input.
 * The box is walked in blocks of the innermost axis, so that the taps of that axis are computed once a block.
 */
#include <math.h>

#include "nd.h"
#include "vec.h"

enum { NEAREST, LINEAR, CUBIC };
enum { HALF_PIXEL, ASYMMETRIC, ALIGN_CORNERS, PYTORCH_HALF_PIXEL, HALF_PIXEL_SYMMETRIC };
enum { PREFER_FLOOR, PREFER_CEIL, FLOOR, CEIL };

#define BLOCK 128
#define TAPS 4

typedef struct {
  int64_t in, out;   /* lengths */
  int64_t si, so;    /* strides, bytes */
  int64_t lo, hi;    /* box */
  double scale;
  int moved;         /* not the identity */
  int64_t index;     /* current output index, outer axes only */
  int n;             /* current taps: byte offsets and weights */
  int64_t offset[TAPS];
  double weight[TAPS];
} axis_state;

typedef struct {
  int mode, coordinate, rounding, exclude_outside;
  double cubic_a;
} resize_params;

static double input_coordinate(const resize_params *r, const axis_state *a, double x) {
  const double width = a->scale * (double)a->in; /* before it was rounded to the output's length */
  switch (r->coordinate) {
    case ASYMMETRIC: return x / a->scale;
    case ALIGN_CORNERS: return width == 1 ? 0 : x * (double)(a->in - 1) / (width - 1);
    case PYTORCH_HALF_PIXEL: return width == 1 ? -0.5 : (x + 0.5) / a->scale - 0.5;
    case HALF_PIXEL_SYMMETRIC: return (double)a->in / 2 * (1 - (double)a->out / width) + (x + 0.5) / a->scale - 0.5;
  }
  return (x + 0.5) / a->scale - 0.5;
}

static int64_t clamped(double i, int64_t n) { return i > 0 ? (i < (double)(n - 1) ? (int64_t)i : n - 1) : 0; }

/* Fills the taps of output index i; taps of weight 0 are left out, which keeps infinities of elements that do not count out of sums. */
static void find_taps(const resize_params *r, axis_state *a, int64_t i) {
  if (!a->moved) {
    a->n = 1, a->offset[0] = i * a->si, a->weight[0] = 1;
    return;
  }
  const double x = input_coordinate(r, a, (double)i);
  if (r->mode == NEAREST) {
    const double nearest = r->rounding == PREFER_FLOOR ? ceil(x - 0.5) : r->rounding == PREFER_CEIL ? floor(x + 0.5) : r->rounding == FLOOR ? floor(x) : ceil(x);
    a->n = 1, a->offset[0] = clamped(nearest, a->in) * a->si, a->weight[0] = 1;
    return;
  }
  const double left = floor(x), t = x - left;
  double w[TAPS], sum = 0;
  const int taps = r->mode == LINEAR ? 2 : 4, before = taps / 2 - 1;
  if (r->mode == LINEAR) {
    w[0] = 1 - t, w[1] = t;
  } else {
    const double A = r->cubic_a, u = 1 - t, far = 1 + t, away = 1 + u;
    w[0] = ((A * far - 5 * A) * far + 8 * A) * far - 4 * A;
    w[1] = ((A + 2) * t - (A + 3)) * t * t + 1;
    w[2] = ((A + 2) * u - (A + 3)) * u * u + 1;
    w[3] = ((A * away - 5 * A) * away + 8 * A) * away - 4 * A;
    if (t == 0) w[0] = w[2] = w[3] = 0, w[1] = 1; /* as the polynomials give it, but for rounding */
  }
  for (int k = 0; k < taps; k++) {
    const double at = left + (double)(k - before);
    if (r->exclude_outside && (at < 0 || at > (double)(a->in - 1))) w[k] = 0;
    sum += w[k];
  }
  a->n = 0;
  for (int k = 0; k < taps; k++) {
    if (w[k] == 0) continue;
    a->offset[a->n] = clamped(left + (double)(k - before), a->in) * a->si;
    a->weight[a->n++] = r->exclude_outside ? w[k] / sum : w[k];
  }
}

/* Taps of a block of the innermost axis, tap-major. Missing taps have weight 0 and are never read. */
typedef struct {
  int n[BLOCK], most;
  int64_t offset[TAPS][BLOCK];
  float weight[TAPS][BLOCK];
} block_taps;

static void find_block(const resize_params *r, axis_state *a, int64_t first, int64_t m, block_taps *b) {
  b->most = 0;
  for (int64_t j = 0; j < m; j++) {
    find_taps(r, a, first + j);
    b->n[j] = a->n;
    if (a->n > b->most) b->most = a->n;
    for (int k = 0; k < TAPS; k++) {
      /* A missing tap repeats the first element: its product is not added. */
      b->offset[k][j] = k < a->n ? a->offset[k] : a->offset[0];
      b->weight[k][j] = k < a->n ? (float)a->weight[k] : 0;
    }
  }
}

/* acc += weight · the row of inputs at p, interpolated along the innermost axis. */
static void add_row(const axis_state *inner, const block_taps *b, const char *p, int64_t first, int64_t m, float weight, float *acc) {
  if (!inner->moved) {
    if (inner->si == 4) {
      const float *x = (const float *)(p + first * 4);
      for (int64_t j = 0; j < m; j++) acc[j] += weight * x[j];
    } else {
      for (int64_t j = 0; j < m; j++) acc[j] += weight * *(const float *)(p + (first + j) * inner->si);
    }
    return;
  }
  for (int k = 0; k < b->most; k++)
    for (int64_t j = 0; j < m; j++) {
      const float x = *(const float *)(p + b->offset[k][j]), y = acc[j] + weight * b->weight[k][j] * x;
      acc[j] = k < b->n[j] ? y : acc[j];
    }
}

/* All combinations of the outer axes' taps, last axis fastest. */
static void add_combinations(const axis_state *axes, int outer, const axis_state *inner, const block_taps *b, const char *p, int64_t first, int64_t m,
                             float *acc) {
  int tap[ASPEN_MAX_RANK] = {0};
  for (;;) {
    int64_t offset = 0;
    double weight = 1;
    for (int k = 0; k < outer; k++) offset += axes[k].offset[tap[k]], weight *= axes[k].weight[tap[k]];
    add_row(inner, b, p + offset, first, m, (float)weight, acc);
    int k = outer - 1;
    for (; k >= 0; k--) {
      if (++tap[k] < axes[k].n) break;
      tap[k] = 0;
    }
    if (k < 0) return;
  }
}

/* Steps the outer axes to the next position. Returns 0 after the last. */
static int advance(const resize_params *r, axis_state *axes, int outer) {
  for (int k = outer - 1; k >= 0; k--) {
    axis_state *a = &axes[k];
    if (++a->index < a->hi) {
      find_taps(r, a, a->index);
      return 1;
    }
    a->index = a->lo;
    find_taps(r, a, a->index);
  }
  return 0;
}

int FN(resize)(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *in = &c->args[1];
  const resize_params r = {.mode = (int)c->params[0], .coordinate = (int)c->params[1], .rounding = (int)c->params[2],
                           .cubic_a = aspen_param_f(c, 3), .exclude_outside = c->params[12] != 0};
  const size_t size = nd_size(out->dtype);
  const int64_t unit = (int64_t)size;
  if (out->dtype != in->dtype || out->rank != in->rank || !size || out->dtype == ASPEN_DT_OBJECT) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (r.mode < NEAREST || r.mode > CUBIC || (r.mode != NEAREST && out->dtype != ASPEN_DT_F32)) return ASPEN_KERNEL_BAD_ARGUMENT;
  /* Axes, outermost in the output's memory first. */
  axis_state axes[ASPEN_MAX_RANK + 1];
  int rank = 0;
  for (int a = 0; a < out->rank; a++) {
    const axis_state s = {.in = in->dims[a], .out = out->dims[a], .si = in->strides[a] * unit, .so = out->strides[a] * unit,
                          .lo = c->lo[a], .hi = c->hi[a], .scale = aspen_param_f(c, 4 + a), .index = c->lo[a],
                          .moved = in->dims[a] != out->dims[a] || aspen_param_f(c, 4 + a) != 1};
    if (s.hi <= s.lo) return ASPEN_KERNEL_OK;
    if (s.in <= 0 || !(s.scale > 0)) return ASPEN_KERNEL_BAD_ARGUMENT;
    int k = rank++;
    for (; k > 0 && nd_abs(axes[k - 1].so) < nd_abs(s.so); k--) axes[k] = axes[k - 1];
    axes[k] = s;
  }
  if (rank == 0) axes[rank++] = (axis_state){.in = 1, .out = 1, .lo = 0, .hi = 1, .scale = 1};
  const int outer = rank - 1;
  axis_state *inner = &axes[outer];
  block_taps taps = {.most = 0};
  for (int64_t first = inner->lo; first < inner->hi; first += BLOCK) {
    const int64_t m = nd_min(BLOCK, inner->hi - first);
    if (inner->moved) find_block(&r, inner, first, m, &taps);
    for (int k = 0; k < outer; k++) axes[k].index = axes[k].lo, find_taps(&r, &axes[k], axes[k].lo);
    do {
      char *o = out->ptr + first * inner->so;
      const char *p = in->ptr;
      for (int k = 0; k < outer; k++) o += axes[k].index * axes[k].so;
      if (r.mode != NEAREST) {
        float acc[BLOCK] = {0};
        add_combinations(axes, outer, inner, &taps, p, first, m, acc);
        nd_copy_row(o, inner->so, (const char *)acc, 4, m, 4);
        continue;
      }
      for (int k = 0; k < outer; k++) p += axes[k].offset[0];
      if (!inner->moved) nd_copy_row(o, inner->so, p + first * inner->si, inner->si, m, size);
      else
        for (int64_t j = 0; j < m; j++) nd_copy_row(o + j * inner->so, 0, p + taps.offset[0][j], 0, 1, size);
    } while (advance(&r, axes, outer));
  }
  return ASPEN_KERNEL_OK;
}
