/* MOVED and REFRESH: small changes of an activation end here (docs/protocol/reach.md, "Thresholds").
 *
 * REFRESH's output is the activation as the layers behind it have seen it. MOVED compares the activation with that, by blocks of rows and
 * columns with all channels. REFRESH copies the blocks that moved.
 *
 * Blocks carry the number of the frame in which they moved last. So a block that MOVED has not looked at is one that did not move.
 */
#include "kernel.h"
#include "vector/vec.h"

enum { N, C, H, W, IMAGE_AXES };
enum { DOWN = 1, ACROSS = 2 };                    /* axes of blocks, behind the images */
enum { MASK, LEAST, GREATEST, X, SEEN, CHANGES }; /* operands of MOVED */

/* The last line of a stream's changes says what frame it is, and how far blocks may move, as a share of the activation's range. */
static int32_t word_of(const aspen_arg *changes, int64_t word) {
  return ((const volatile int32_t *)changes->ptr)[(changes->dims[0] - 1) * changes->dims[1] + word];
}

static inline int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t most_of(int64_t a, int64_t b) { return a > b ? a : b; }

/* Whether one of some elements differs from its like by more than `most`. One that is not a number does. */
static int far(const float *a, int64_t step_a, const float *b, int64_t step_b, int64_t n, float most) {
  int found = 0;
  if (step_a == 1 && step_b == 1) {
    for (int64_t i = 0; i < n; i++) {
      const float by = a[i] - b[i];
      found |= (!(by <= most) | !(-by <= most)) & !(a[i] == b[i]); /* equal infinities have no difference */
    }
    return found;
  }
  for (int64_t i = 0; i < n; i++, a += step_a, b += step_b) {
    const float by = *a - *b;
    found |= (!(by <= most) | !(-by <= most)) & !(*a == *b);
  }
  return found;
}

static inline const float *at(const aspen_arg *x, int64_t n, int64_t c, int64_t h, int64_t w) {
  return (const float *)x->ptr + n * x->strides[N] + c * x->strides[C] + h * x->strides[H] + w * x->strides[W];
}

/* Blocks of a row of blocks, from `first` on and before `end`. */
struct row { int64_t image, top, bottom, first, end, side; };

/* Marks the blocks that moved. The inner loop goes along the axis whose elements lie side by side. */
static void compare(const aspen_call *c, const struct row *r, float most, int32_t frame, int32_t *mask, int64_t step) {
  const aspen_arg *x = &c->args[X], *y = &c->args[SEEN];
  const int64_t width = x->dims[W], left = r->first * r->side, right = least_of(r->end * r->side, width);
  for (int64_t j = r->first; j < r->end; j++) mask[j * step] = frame - 1;
  if (x->strides[W] != 1 && x->strides[C] == 1) {
    for (int64_t h = r->top; h < r->bottom; h++)
      for (int64_t w = left; w < right; w++) {
        int32_t *own = &mask[w / r->side * step];
        if (*own != frame && far(at(x, r->image, 0, h, w), 1, at(y, r->image, 0, h, w), y->strides[C], x->dims[C], most)) *own = frame;
      }
    return;
  }
  for (int64_t ch = 0; ch < x->dims[C]; ch++)
    for (int64_t h = r->top; h < r->bottom; h++) {
      if (!far(at(x, r->image, ch, h, left), x->strides[W], at(y, r->image, ch, h, left), y->strides[W], right - left, most)) continue;
      for (int64_t j = r->first; j < r->end; j++) {
        const int64_t w = j * r->side, n = least_of(r->side, right - w);
        int32_t *own = &mask[j * step];
        if (*own != frame && far(at(x, r->image, ch, h, w), x->strides[W], at(y, r->image, ch, h, w), y->strides[W], n, most)) *own = frame;
      }
    }
}

/* The extremes of rows of the activation, without what is not finite. */
static void extremes(const aspen_arg *x, const struct row *r, float *least, float *greatest) {
  const int by_channel = x->strides[W] != 1 && x->strides[C] == 1;
  const int inner = by_channel ? C : W, outer = by_channel ? W : C;
  float lo = 0, hi = 0;
  int some = 0;
  for (int64_t h = r->top; h < r->bottom; h++)
    for (int64_t o = 0; o < x->dims[outer]; o++) {
      const float *p = at(x, r->image, 0, h, 0) + o * x->strides[outer];
      for (int64_t i = 0; i < x->dims[inner]; i++, p += x->strides[inner]) {
        const float v = *p;
        if (!(v - v == 0)) continue;
        lo = some && lo < v ? lo : v;
        hi = some && hi > v ? hi : v;
        some = 1;
      }
    }
  *least = lo, *greatest = hi;
}

/* The difference up to which blocks have not moved: a share of the range that the activation had when it was last computed whole. */
static float threshold(const aspen_call *c) {
  const aspen_arg *least = &c->args[LEAST], *greatest = &c->args[GREATEST];
  const int32_t word = word_of(&c->args[CHANGES], 1);
  float share, lo = 0, hi = 0;
  memcpy(&share, &word, sizeof share);
  for (int64_t k = 0; k < least->dims[0] * least->dims[1]; k++) {
    const float a = ((const float *)least->ptr)[k], b = ((const float *)greatest->ptr)[k];
    lo = k && lo < a ? lo : a;
    hi = k && hi > b ? hi : b;
  }
  const float most = share * (hi - lo);
  return most > 0 && most - most == 0 ? most : 0;
}

int FN(moved)(const aspen_call *c) {
  const aspen_arg *mask = &c->args[MASK], *x = &c->args[X];
  const int64_t side = c->params[0], down = mask->dims[DOWN];
  const int32_t frame = word_of(&c->args[CHANGES], 0);
  const float most = c->part ? threshold(c) : 0;
  for (int64_t n = c->lo[N]; n < c->hi[N]; n++)
    for (int64_t i = c->lo[DOWN]; i < c->hi[DOWN]; i++) {
      const struct row r = {n, i * side, least_of((i + 1) * side, x->dims[H]), c->lo[ACROSS], c->hi[ACROSS], side};
      int32_t *own = (int32_t *)mask->ptr + n * mask->strides[0] + i * mask->strides[DOWN];
      if (c->part) {
        compare(c, &r, most, frame, own, mask->strides[ACROSS]);
        continue;
      }
      for (int64_t j = r.first; j < r.end; j++) own[j * mask->strides[ACROSS]] = frame;
      extremes(x, &r, (float *)c->args[LEAST].ptr + n * down + i, (float *)c->args[GREATEST].ptr + n * down + i);
    }
  return ASPEN_KERNEL_OK;
}

/* Copies columns of some rows and channels of an image. */
static void copy(const aspen_arg *to, const aspen_arg *from, const aspen_call *c, int64_t n, int64_t h, int64_t left, int64_t right) {
  if (to->strides[W] == 1 && from->strides[W] == 1) {
    for (int64_t ch = c->lo[C]; ch < c->hi[C]; ch++)
      memcpy((float *)at(to, n, ch, h, left), at(from, n, ch, h, left), (size_t)(right - left) * sizeof(float));
    return;
  }
  for (int64_t w = left; w < right; w++) {
    float *p = (float *)at(to, n, c->lo[C], h, w);
    const float *q = at(from, n, c->lo[C], h, w);
    if (to->strides[C] == 1 && from->strides[C] == 1) memcpy(p, q, (size_t)(c->hi[C] - c->lo[C]) * sizeof(float));
    else
      for (int64_t ch = c->lo[C]; ch < c->hi[C]; ch++, p += to->strides[C], q += from->strides[C]) *p = *q;
  }
}

int FN(refresh)(const aspen_call *c) {
  const aspen_arg *y = &c->args[0], *x = &c->args[1], *mask = &c->args[2];
  const int64_t side = c->params[0];
  const int32_t frame = word_of(&c->args[3], 0);
  for (int64_t n = c->lo[N]; n < c->hi[N]; n++)
    for (int64_t h = c->lo[H]; h < c->hi[H]; h++) {
      const int32_t *row = (const int32_t *)mask->ptr + n * mask->strides[0] + h / side * mask->strides[DOWN];
      for (int64_t j = c->lo[W] / side; j * side < c->hi[W]; j++) {
        if (c->part && row[j * mask->strides[ACROSS]] != frame) continue;
        const int64_t first = j;
        while ((j + 1) * side < c->hi[W] && (!c->part || row[(j + 1) * mask->strides[ACROSS]] == frame)) j++;
        copy(y, x, c, n, h, most_of(first * side, c->lo[W]), least_of((j + 1) * side, c->hi[W]));
      }
    }
  return ASPEN_KERNEL_OK;
}
