/* RESIZE as ONNX defines it: nearest (any fixed-size type), linear and cubic (f32), over any axes.
 *
 * Along each resized axis an output coordinate maps to a few input indices with weights (taps), computed in double as the specification
 * writes it. An output is a sum over the taps of its innermost axis (in memory) of weight times line. A line is a sum over the combinations
 * of taps of the other axes, last axis fastest, of the product of weights times the input. Where the innermost axis is not resized but the
 * one around it is (channels of pixels), lines of pixels are summed and weighted likewise. The box is walked in blocks of the two innermost
 * axes, whose taps are computed once a block.
 */
#include <math.h>

#include "vector/nd.h"
#include "vector/vec.h"

enum { NEAREST, LINEAR, CUBIC };
enum { HALF_PIXEL, ASYMMETRIC, ALIGN_CORNERS, PYTORCH_HALF_PIXEL, HALF_PIXEL_SYMMETRIC, ALIGN_FRACTIONAL_CORNERS };
enum { PREFER_FLOOR, PREFER_CEIL, FLOOR, CEIL };

#define BLOCK 128
#define TAPS 4
#define LINE 512 /* longest part of a line that is kept */
#define PIXELS 8192 /* the same of pixels, in floats: at least TAPS of BLOCK */

typedef struct {
  int n;
  int64_t index[TAPS], offset[TAPS]; /* input elements, and the same in bytes */
  double weight[TAPS];
} tap_set;

typedef struct {
  int64_t in, out;   /* lengths */
  int64_t si, so;    /* strides, bytes */
  int64_t lo, hi;    /* box */
  double scale;
  int moved;         /* not the identity */
  int64_t index;     /* current output index and its taps: all axes but the innermost */
  tap_set taps;
} axis_state;

typedef struct {
  int mode, coordinate, rounding, exclude_outside;
  double cubic_a;
} resize_params;

static double input_coordinate(const resize_params *r, const axis_state *a, double x) {
  const double width = a->scale * (double)a->in; /* before it was rounded to the output's length */
  switch (r->coordinate) {
    case ASYMMETRIC: return x / a->scale;
    case ALIGN_CORNERS: return a->out == 1 ? 0 : x * (double)(a->in - 1) / (double)(a->out - 1);
    case ALIGN_FRACTIONAL_CORNERS: return width == 1 ? 0 : x * (double)(a->in - 1) / (width - 1);
    case PYTORCH_HALF_PIXEL: return a->out == 1 ? 0 : (x + 0.5) / a->scale - 0.5;
    case HALF_PIXEL_SYMMETRIC: return (double)a->in / 2 * (1 - (double)a->out / width) + (x + 0.5) / a->scale - 0.5;
  }
  return (x + 0.5) / a->scale - 0.5;
}

/* The same in single precision, where one rounding more or less decides which element is the nearest: so compute onnxruntime and
 * PyTorch. */
static double nearest_coordinate(const resize_params *r, const axis_state *a, float x) {
  const float scale = (float)a->scale, in = (float)a->in, width = scale * in;
  switch (r->coordinate) {
    case ASYMMETRIC: return x / scale;
    case ALIGN_CORNERS: return a->out == 1 ? 0 : x * (in - 1) / ((float)a->out - 1);
    case ALIGN_FRACTIONAL_CORNERS: return width == 1 ? 0 : x * (in - 1) / (width - 1);
    case PYTORCH_HALF_PIXEL: return a->out == 1 ? 0 : (x + 0.5f) / scale - 0.5f;
    case HALF_PIXEL_SYMMETRIC: return in / 2 * (1 - (float)a->out / width) + (x + 0.5f) / scale - 0.5f;
  }
  return (x + 0.5f) / scale - 0.5f;
}

static int64_t clamped(double i, int64_t n) { return i > 0 ? (i < (double)(n - 1) ? (int64_t)i : n - 1) : 0; }

/* Fills the taps of output index i. Taps of weight 0 are left out, which keeps infinities of elements that do not count out of sums. */
static void find_taps(const resize_params *r, const axis_state *a, int64_t i, tap_set *set) {
  if (!a->moved) {
    set->n = 1, set->index[0] = i, set->offset[0] = i * a->si, set->weight[0] = 1;
    return;
  }
  const double x = r->mode == NEAREST ? nearest_coordinate(r, a, (float)i) : input_coordinate(r, a, (double)i);
  if (r->mode == NEAREST) {
    const double nearest = r->rounding == PREFER_FLOOR  ? ceil(x - 0.5)
                           : r->rounding == PREFER_CEIL ? floor(x + 0.5)
                           : r->rounding == FLOOR       ? floor(x)
                                                        : ceil(x);
    set->n = 1, set->index[0] = clamped(nearest, a->in), set->offset[0] = set->index[0] * a->si, set->weight[0] = 1;
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
  set->n = 0;
  for (int k = 0; k < taps; k++) {
    if (w[k] == 0) continue;
    set->index[set->n] = clamped(left + (double)(k - before), a->in);
    set->offset[set->n] = set->index[set->n] * a->si;
    set->weight[set->n++] = r->exclude_outside ? w[k] / sum : w[k];
  }
}

/* Taps of a block of the innermost axis, tap-major. Taps that an output lacks repeat its first and are not added. */
typedef struct {
  int32_t n[BLOCK];
  int most;
  int64_t start, length;       /* the part of the line that the block needs, in elements of the axis */
  int64_t offset[TAPS][BLOCK]; /* bytes */
  int32_t place[TAPS][BLOCK];  /* relative to start; length ≤ LINE only */
  float weight[TAPS][BLOCK];
} block_taps;

static void find_block(const resize_params *r, const axis_state *a, int64_t first, int64_t m, block_taps *b) {
  int64_t least = INT64_MAX, last = 0;
  b->most = 0;
  for (int64_t j = 0; j < m; j++) {
    tap_set set;
    find_taps(r, a, first + j, &set);
    b->n[j] = set.n;
    if (set.n > b->most) b->most = set.n;
    for (int k = 0; k < TAPS; k++) {
      const int t = k < set.n ? k : 0;
      b->offset[k][j] = set.index[t] * a->si;
      b->weight[k][j] = (float)set.weight[t];
      least = nd_min(least, set.index[t]), last = nd_max(last, set.index[t]);
    }
  }
  b->start = least, b->length = last - least + 1;
  if (b->length > LINE) return;
  for (int64_t j = 0; j < m; j++)
    for (int k = 0; k < TAPS; k++) b->place[k][j] = a->si ? (int32_t)(b->offset[k][j] / a->si - least) : 0;
}

/* sum[j] += Σ weight[c] · x, c ascending, x at p + offset[c] + j step, or at p + offset[c] + places[j]. */
static void add_lines(const char *p, const int64_t *offset, const float *weight, int count, int64_t step, const int64_t *places, int64_t m,
                      float *sum) {
  int64_t j = 0;
  if (step == 4 && !places) {
    for (; j + 4 * VL <= m; j += 4 * VL) {
      vf a[4];
      for (int k = 0; k < 4; k++) a[k] = vload(sum + j + k * VL);
      for (int c = 0; c < count; c++) {
        const float *x = (const float *)(p + offset[c]) + j;
        const vf w = vset1(weight[c]);
        for (int k = 0; k < 4; k++) a[k] = a[k] + w * vload(x + k * VL);
      }
      for (int k = 0; k < 4; k++) vstore(sum + j + k * VL, a[k]);
    }
    for (; j < m; j += VL) {
      vf a = vload_part(sum + j, m - j);
      for (int c = 0; c < count; c++) a = a + vset1(weight[c]) * vload_part((const float *)(p + offset[c]) + j, m - j);
      vstore_part(sum + j, a, m - j);
    }
    return;
  }
  for (int c = 0; c < count; c++) {
    const char *q = p + offset[c];
    if (places)
      for (j = 0; j < m; j++) sum[j] += weight[c] * *(const float *)(q + places[j]);
    else
      for (j = 0; j < m; j++) sum[j] += weight[c] * *(const float *)(q + j * step);
  }
}

/* The sum over the combinations of the outer axes' taps of weight times input, for m elements: at p + j step, or at p + places[j]. */
static void sum_lines(const axis_state *axes, int outer, const char *p, int64_t step, const int64_t *places, int64_t m, float *sum) {
  enum { AT_ONCE = 64 };
  int64_t offset[AT_ONCE];
  float weight[AT_ONCE];
  int tap[ASPEN_MAX_RANK + 1] = {0}, count = 0, more = 1, varied = 0;
  const tap_set *sets[ASPEN_MAX_RANK + 1];
  memset(sum, 0, (size_t)m * sizeof *sum);
  for (int k = 0; k < outer; k++) /* a single tap has weight 1 */
    if (axes[k].taps.n > 1) sets[varied++] = &axes[k].taps;
    else p += axes[k].taps.offset[0];
  while (more) {
    double product = 1;
    offset[count] = 0;
    for (int k = 0; k < varied; k++) offset[count] += sets[k]->offset[tap[k]], product *= sets[k]->weight[tap[k]];
    weight[count++] = (float)product;
    int k = varied - 1;
    for (; k >= 0; k--) {
      if (++tap[k] < sets[k]->n) break;
      tap[k] = 0;
    }
    more = k >= 0;
    if (more && count < AT_ONCE) continue;
    add_lines(p, offset, weight, count, step, places, m, sum);
    count = 0;
  }
}

/* m outputs of a row whose innermost axis is resized. A line too long to keep (strong reduction) is computed at the taps alone. */
static void interpolate_row(const axis_state *axes, int outer, const block_taps *b, const char *p, int64_t m, float *restrict acc) {
  const axis_state *inner = &axes[outer];
  float line[LINE];
  const int kept = b->length <= LINE;
  if (kept) sum_lines(axes, outer, p + b->start * inner->si, inner->si, NULL, b->length, line);
  for (int64_t j = 0; j < m; j++) acc[j] = 0;
  for (int k = 0; k < b->most; k++) {
    const int32_t *n = b->n, *place = b->place[k];
    const float *w = b->weight[k];
    if (kept) {
      for (int64_t j = 0; j < m; j++) {
        const float y = acc[j] + w[j] * line[place[j]];
        acc[j] = k < n[j] ? y : acc[j];
      }
    } else {
      sum_lines(axes, outer, p, 0, b->offset[k], m, line);
      for (int64_t j = 0; j < m; j++) {
        const float y = acc[j] + w[j] * line[j];
        acc[j] = k < n[j] ? y : acc[j];
      }
    }
  }
}

/* Nearest, along an innermost axis that is resized. */
static void pick_row(char *o, int64_t so, const char *p, const block_taps *b, int64_t m, size_t size) {
#define PICK(T) for (int64_t j = 0; j < m; j++) *(T *)(o + j * so) = *(const T *)(p + b->offset[0][j]); break
  switch (size) {
    case 1: PICK(nd_u8);
    case 2: PICK(nd_u16);
    case 4: PICK(nd_u32);
    case 8: PICK(nd_u64);
    case 16: PICK(nd_u128);
  }
#undef PICK
}

/* Taps of `n` neighbours: the first input index and how many from there on they reach over. */
static int64_t span(const tap_set *sets, int64_t n, int64_t *first) {
  int64_t least = INT64_MAX, last = 0;
  for (int64_t j = 0; j < n; j++)
    for (int k = 0; k < sets[j].n; k++) least = nd_min(least, sets[j].index[k]), last = nd_max(last, sets[j].index[k]);
  *first = least;
  return last - least + 1;
}

/* n pixels of m channels, which lie next to each other in both. o: the first pixel. p: channel 0 of the input's row of pixels.
 * sets: the taps of the pixels. */
static void resize_pixels(const axis_state *axes, int outer, const tap_set *sets, char *o, const char *p, int64_t n, int64_t m) {
  const axis_state *middle = &axes[outer - 1];
  float line[PIXELS];
  int64_t first;
  const int64_t length = span(sets, n, &first);
  p += first * middle->si;
  if (middle->si == m * 4)
    sum_lines(axes, outer - 1, p, 4, NULL, length * m, line);
  else
    for (int64_t x = 0; x < length; x++) sum_lines(axes, outer - 1, p + x * middle->si, 4, NULL, m, line + x * m);
  for (int64_t j = 0; j < n; j++, o += middle->so) {
    const tap_set *set = &sets[j];
    const float *x[TAPS];
    for (int k = 0; k < set->n; k++) x[k] = line + (set->index[k] - first) * m;
    for (int64_t c = 0; c < m; c += VL) {
      vf sum = vzero();
      for (int k = 0; k < set->n; k++) sum = sum + vset1((float)set->weight[k]) * vload_part(x[k] + c, m - c);
      vstore_part((float *)o + c, sum, m - c);
    }
  }
}

/* Steps the given axes to their next position. Returns 0 after the last, back at the first. */
static int advance(const resize_params *r, axis_state *axes, int count) {
  for (int k = count - 1; k >= 0; k--) {
    axis_state *a = &axes[k];
    a->index = a->index + 1 < a->hi ? a->index + 1 : a->lo;
    find_taps(r, a, a->index, &a->taps);
    if (a->index != a->lo) return 1;
  }
  return 0;
}

/* One row of the block: all axes but the innermost stand at their current positions. */
static void resize_row(const resize_params *r, const axis_state *axes, int outer, const block_taps *taps, const aspen_arg *out,
                       const aspen_arg *in, int64_t first, int64_t m, size_t size) {
  const axis_state *inner = &axes[outer];
  char *o = out->ptr + first * inner->so;
  const char *p = in->ptr;
  for (int k = 0; k < outer; k++) o += axes[k].index * axes[k].so;
  if (r->mode != NEAREST) {
    float acc[BLOCK];
    if (inner->moved) interpolate_row(axes, outer, taps, p, m, acc);
    else sum_lines(axes, outer, p + first * inner->si, inner->si, NULL, m, acc);
    nd_copy_row(o, inner->so, (const char *)acc, 4, m, 4);
    return;
  }
  for (int k = 0; k < outer; k++) p += axes[k].taps.offset[0];
  if (inner->moved) pick_row(o, inner->so, p, taps, m, size);
  else nd_copy_row(o, inner->so, p + first * inner->si, inner->si, m, size);
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
  axis_state axes[ASPEN_MAX_RANK + 2];
  int rank = 0;
  for (; rank < 2 - out->rank; rank++) axes[rank] = (axis_state){.in = 1, .out = 1, .so = INT64_MAX, .lo = 0, .hi = 1, .scale = 1};
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
  const int outer = rank - 1;
  axis_state *inner = &axes[outer], *middle = &axes[outer - 1];
  block_taps taps;
  tap_set cached[BLOCK]; /* of the middle axis */
  /* A rule of the whole node, not of the tile: how an output is rounded must not depend on tiles. */
  const int pixels = r.mode != NEAREST && !inner->moved && middle->moved && inner->si == unit && inner->so == unit && middle->in <= 2 * middle->out;
  for (int64_t i0 = inner->lo; i0 < inner->hi; i0 += BLOCK) {
    const int64_t m = nd_min(BLOCK, inner->hi - i0);
    if (inner->moved) find_block(&r, inner, i0, m, &taps);
    for (int64_t j0 = middle->lo, n; j0 < middle->hi; j0 += n) {
      n = nd_min(BLOCK, middle->hi - j0);
      for (int64_t j = 0; j < n; j++) find_taps(&r, middle, j0 + j, &cached[j]);
      for (int64_t unused; pixels && span(cached, n, &unused) * m > PIXELS;) n = (n + 1) / 2;
      for (int k = 0; k < outer - 1; k++) axes[k].index = axes[k].lo, find_taps(&r, &axes[k], axes[k].lo, &axes[k].taps);
      do
        if (pixels) {
          int64_t o = i0 * inner->so + j0 * middle->so;
          for (int k = 0; k < outer - 1; k++) o += axes[k].index * axes[k].so;
          resize_pixels(axes, outer, cached, out->ptr + o, in->ptr + i0 * inner->si, n, m);
        } else for (int64_t j = 0; j < n; j++) {
          middle->index = j0 + j;
          middle->taps = cached[j];
          resize_row(&r, axes, outer, &taps, out, in, i0, m, size);
        }
      while (advance(&r, axes, outer - 1));
    }
  }
  return ASPEN_KERNEL_OK;
}
