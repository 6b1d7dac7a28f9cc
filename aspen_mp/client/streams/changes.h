/* Finds where an array differs from the one before it, block by block, and few boxes that hold these blocks.
 *
 * An array is seen as images [batch][outer][height][between][width][inner] of bytes; any of these may be 1. A block has a few rows and
 * columns, and all of `outer`, `between` and `inner`. The array before takes over what differs.
 *
 *     aspen_compare()   marks blocks that differ by more than a tolerance, and copies them
 *     aspen_boxes()     covers marked blocks with few boxes
 */
#ifndef ASPEN_CHANGES_H
#define ASPEN_CHANGES_H
#include <stdint.h>
#include <string.h>

struct aspen_image {
  int64_t batch, outer, height, between, width, inner; /* `inner` in bytes */
  int64_t rows, columns;                               /* of a block */
};

static inline int64_t aspen_blocks_down(const struct aspen_image *g) { return (g->height + g->rows - 1) / g->rows; }
static inline int64_t aspen_blocks_across(const struct aspen_image *g) { return (g->width + g->columns - 1) / g->columns; }

/* Whether any of some numbers differs from its like by more than `tol`. A value that is not a number always does. `bytes`: of all of them. */
typedef int aspen_far(const char *from, const char *to, int64_t bytes, double tol);

/* Integers of 16 bits differ by no more than this. */
#define ASPEN_FAR_MOST 65536.0

#define ASPEN_FAR(NAME, TYPE, WIDE, TOL)                                                                                           \
  static int aspen_far_##NAME(const char *from, const char *to, int64_t bytes, double tol) {                                       \
    const TYPE *a = (const TYPE *)from, *b = (const TYPE *)to;                                                                     \
    const WIDE most = (WIDE)(TOL);                                                                                                 \
    int far = 0;                                                                                                                   \
    for (int64_t i = 0; i < bytes / (int64_t)sizeof *a; i++) {                                                                     \
      const WIDE by = (WIDE)a[i] - (WIDE)b[i];                                                                                     \
      far |= !(by <= most) | !(-by <= most);                                                                                       \
    }                                                                                                                              \
    return far;                                                                                                                    \
  }
ASPEN_FAR(f32, float, float, tol)
ASPEN_FAR(f64, double, double, tol)
ASPEN_FAR(u8, uint8_t, int32_t, tol < ASPEN_FAR_MOST ? tol : ASPEN_FAR_MOST)
ASPEN_FAR(i8, int8_t, int32_t, tol < ASPEN_FAR_MOST ? tol : ASPEN_FAR_MOST)
ASPEN_FAR(u16, uint16_t, int32_t, tol < ASPEN_FAR_MOST ? tol : ASPEN_FAR_MOST)
ASPEN_FAR(i16, int16_t, int32_t, tol < ASPEN_FAR_MOST ? tol : ASPEN_FAR_MOST)

static inline int aspen_far_bits(const char *from, const char *to, int64_t bytes, double tol) {
  (void)tol;
  return memcmp(from, to, (size_t)bytes) != 0;
}

/* Types of elements that have a tolerance; elements of others differ when their bits do. */
enum aspen_far_type { ASPEN_FAR_BITS = 0, ASPEN_FAR_F32, ASPEN_FAR_F64, ASPEN_FAR_U8, ASPEN_FAR_I8, ASPEN_FAR_U16, ASPEN_FAR_I16 };

static inline aspen_far *aspen_far_of(int type) {
  static aspen_far *const all[] = {aspen_far_bits, aspen_far_f32, aspen_far_f64, aspen_far_u8, aspen_far_i8, aspen_far_u16, aspen_far_i16};
  return all[type];
}

/* Marks blocks of `seen` where `from` differs from `to` by more than `tol`, and copies rows of such blocks to `to`. So `to` is nowhere
 * farther from `from` than `tol`. Returns how many blocks are marked. Whole rows are compared first, because most are close. */
static inline int64_t aspen_compare(const struct aspen_image *g, const char *from, char *to, uint8_t *seen, int type, double tol) {
  const int64_t across = aspen_blocks_across(g), down = aspen_blocks_down(g), line = g->width * g->inner, step = g->columns * g->inner;
  aspen_far *const far = aspen_far_of(type);
  int64_t marked = 0;
  memset(seen, 0, (size_t)(g->batch * down * across));
  for (int64_t n = 0; n < g->batch; n++)
    for (int64_t o = 0; o < g->outer; o++)
      for (int64_t h = 0; h < g->height; h++)
        for (int64_t m = 0; m < g->between; m++, from += line, to += line) {
          uint8_t *row = seen + (n * down + h / g->rows) * across;
          if (!far(from, to, line, tol)) continue;
          for (int64_t w = 0, at = 0; w < across; w++, at += step) {
            const int64_t bytes = at + step < line ? step : line - at;
            if (!memcmp(from + at, to + at, (size_t)bytes) || !far(from + at, to + at, bytes, tol)) continue;
            memcpy(to + at, from + at, (size_t)bytes);
            row[w] = 1;
          }
        }
  for (int64_t i = 0; i < g->batch * down * across; i++) marked += seen[i];
  return marked;
}

/* Bounds of a box in blocks, the upper ones behind it. */
struct aspen_block_box { int64_t image, top, bottom, left, right; };

/* Covers the marked blocks of images with at most `most` boxes; takes the marks away. Runs of marked blocks in a row become boxes, which go
 * on into the rows below as long as the same run is marked there. Returns their number, -1: more are needed. */
static inline int64_t aspen_cover(uint8_t *seen, int64_t images, int64_t down, int64_t across, struct aspen_block_box *box, int64_t most) {
  int64_t n = 0;
  for (int64_t i = 0; i < images; i++)
    for (int64_t y = 0; y < down; y++)
      for (int64_t x = 0; x < across; x++) {
        uint8_t *row = seen + (i * down + y) * across;
        if (!row[x]) continue;
        struct aspen_block_box b = {i, y, y + 1, x, x + 1};
        while (b.right < across && row[b.right]) b.right++;
        for (; b.bottom < down; b.bottom++) {
          const uint8_t *below = seen + (i * down + b.bottom) * across;
          int64_t k = b.left;
          while (k < b.right && below[k]) k++;
          if (k < b.right) break;
        }
        if (n == most) return -1;
        for (int64_t k = b.top; k < b.bottom; k++) memset(seen + (i * down + k) * across + b.left, 0, (size_t)(b.right - b.left));
        box[n++] = b;
      }
  return n;
}

/* Covers any marks with at most `most` boxes. Marks are made coarser, by pairs along both axes, until that is possible. `spare` has the
 * size of `seen`. */
static inline int64_t aspen_boxes(const struct aspen_image *g, uint8_t *seen, uint8_t *spare, struct aspen_block_box *box,
                                  int64_t most) {
  int64_t images = g->batch, down = aspen_blocks_down(g), across = aspen_blocks_across(g), scale = 1;
  for (;;) {
    memcpy(spare, seen, (size_t)(images * down * across));
    int64_t n = aspen_cover(spare, images, down, across, box, most);
    if (n >= 0) {
      for (int64_t k = 0; k < n; k++) box[k].top *= scale, box[k].bottom *= scale, box[k].left *= scale, box[k].right *= scale;
      return n;
    }
    if (down == 1 && across == 1) { /* more images than boxes */
      box[0] = (struct aspen_block_box){-1, 0, scale, 0, scale};
      return 1;
    }
    const int64_t lower = (down + 1) / 2, fewer = (across + 1) / 2;
    for (int64_t i = 0; i < images; i++)
      for (int64_t y = 0; y < lower; y++)
        for (int64_t x = 0; x < fewer; x++) {
          uint8_t any = 0;
          for (int64_t k = 0; k < 4; k++) {
            const int64_t v = 2 * y + k / 2, u = 2 * x + k % 2;
            if (v < down && u < across) any |= seen[(i * down + v) * across + u];
          }
          seen[(i * lower + y) * fewer + x] = any; /* reads of later blocks lie behind */
        }
    down = lower, across = fewer, scale *= 2;
  }
}

#endif
