/* WINO: convolution in blocks by Winograd's minimal filtering.
 *
 * The output is cut into blocks of pixels, anchored at multiples of their sides in the whole image. A block needs a patch of input.
 * Both transforms are linear and separable (winograd_lines.h): patch d → B' d B, and products → A' (…) A; weights have been transformed
 * when they were packed. Between the transforms a block is a row of independent matrix products over the channels, one for each
 * pair of products of its two axes. A block is always computed whole and written as far as the tile's box reaches, so a value depends on
 * the inputs alone.
 *
 * (S. Winograd, Arithmetic Complexity of Computations, 1980; A. Lavin, S. Gray, Fast Algorithms for Convolutional Neural Networks, 2016.)
 * The points of interpolation are chosen for a small error of a layer. The usual points are 0, ±1, ±2. With blocks of 4 and a kernel of 3
 * the error is half of theirs (worst: a quarter) at the same cost.
 *
 * A window with depth (volume.h) has the channels of its planes one after the other. Products sum over all of them, and blocks are
 * transformed back once.
 *
 * Loops: chunk of blocks (their transformed input stays in L2), panel of output channels, the products, rows of the micro-kernel.
 * A chunk's panel is transformed back, with the epilogue, as soon as its products are there. Where a worker's next tile has other channels
 * of the same pixels, it finds the last chunk transformed (`cached`) and begins there.
 *
 * Here are the workspace and the outer loops, over a call as winograd.h describes it. The work on a chunk is in winograd_in.h,
 * winograd_products.h and winograd_out.h.
 */
#include "gemm/mm.h"
#include "conv/volume.h"
#include "conv/winograd_in.h"
#include "conv/winograd_out.h"
#include "conv/winograd_products.h"

#if VL == 8
#define GRAIN MOST_ROWS /* chunks are multiples of as many blocks: 6 rows keep all multipliers busy, 5 do not */
#else
#define GRAIN 1
#endif
#define GRAIN_MOST 6    /* the largest GRAIN of any ISA: scratch is the same for all */
#define MOST_LINES 6144 /* fetched while a panel is multiplied, but for weights */

/* The transformed input in the workspace: the pixels of the tile [axes 0, 2, 3] of the images at x, and blocks [from, to) of them. */
typedef struct cached {
  int64_t lo[3], hi[3], from, to, plane;
  const char *x;
} cached;
#define CACHED_BYTES 128 /* at the beginning of scratch */
_Static_assert(sizeof(cached) <= CACHED_BYTES, "");

static int64_t blocks_of(const side *s, const aspen_call *c, int axis) { return (c->hi[axis] + s->m - 1) / s->m - c->lo[axis] / s->m; }

/* Lay the workspace out from `base`, for chunks of at most `blocks`; returns its size in bytes. */
static size_t lay_out(const wino *v, workspace *s, int64_t blocks, char *base) {
  s->input_plane = uneven_lines(blocks * v->row);
  s->product_plane = uneven_lines(blocks * ASPEN_NR);
  s->input = (float *)(base + CACHED_BYTES);
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

/* Places of blocks [from, to) of the tile. */
static void locate(const wino *v, const aspen_call *c, int64_t from, int64_t to, place *places) {
  const int64_t columns = blocks_of(&v->columns, c, 3), rows = blocks_of(&v->rows, c, 2);
  const int64_t top = c->lo[2] / v->rows.m, left = c->lo[3] / v->columns.m;
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

/* Lists the lines that a panel's output goes to and its residual comes from, and part `part` of `parts` of the next chunk's input. Returns
 * their number. */
static int64_t list_lines(const wino *v, const aspen_call *c, const workspace *s, int64_t blocks, int64_t next, int64_t column,
                          int64_t part, int64_t parts) {
  const int64_t height = v->rows.m, width = v->columns.m;
  const char **line = s->lines, **const end = line + MOST_LINES;
  const aspen_arg *const targets[2] = {v->out, v->residual};
  for (int64_t block = 0; v->direct && block < blocks; block++) {
    const place at = s->places[block];
    const int64_t bottom = min64(c->hi[2] - at.row * height, height), right = min64(c->hi[3] - at.column * width, width);
    for (int t = v->epilogue.past; t < 2; t++) {
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
static int is_cached(const cached *m, const cached *wanted, int64_t from, int64_t to) {
  return !memcmp(m->lo, wanted->lo, sizeof m->lo) && !memcmp(m->hi, wanted->hi, sizeof m->hi) && m->plane == wanted->plane &&
         m->x == wanted->x && m->from == from && m->to == to;
}

/* The first block of a chunk. */
static int64_t cut(int64_t grains, int64_t chunks, int64_t blocks, int64_t chunk) {
  return min64(mm_cut(grains, chunks, chunk) * GRAIN, blocks);
}

/* The boxes of some images. */
static int images(const aspen_call *c, const struct planes *planes) {
  wino v;
  workspace s;
  const int error = setup(&v, c, planes);
  if (error) return error;
  if (c->scratch_bytes < CACHED_BYTES) return ASPEN_KERNEL_SCRATCH;
  cached *const m = c->scratch;
  const int64_t blocks = (c->hi[0] - c->lo[0]) * blocks_of(&v.rows, c, 2) * blocks_of(&v.columns, c, 3);
  if (blocks <= 0 || c->lo[1] >= c->hi[1]) return 0;
  if (FN(epilogue_open)(&v.epilogue, c->params[9], aspen_param_f(c, 10), aspen_param_f(c, 11), c->params[12]))
    return ASPEN_KERNEL_BAD_ARGUMENT;
  v.epilogue.past = STORES_LINES(1) && stores_past(c, 1);
  if (epilogue_scale(c, 4, v.out->dims[1], &v.scale, &v.shift)) return ASPEN_KERNEL_BAD_ARGUMENT;
  v.direct = v.out->strides[1] == 1 && (!v.bias || v.bias->strides[0] == 1) && (!v.residual || v.residual->strides[1] == 1);
  const int64_t grains = (blocks + GRAIN - 1) / GRAIN, most = (v.chunk + GRAIN - 1) / GRAIN, chunks = (grains + most - 1) / most;
  if (lay_out(&v, &s, min64((grains + chunks - 1) / chunks * GRAIN, blocks), c->scratch) > c->scratch_bytes) return ASPEN_KERNEL_SCRATCH;
  const int64_t panel_size = v.rows.weights * v.columns.weights * v.all_terms * ASPEN_NR;
  const int64_t first = c->lo[1] / ASPEN_NR, last = (c->hi[1] + ASPEN_NR - 1) / ASPEN_NR; /* panels */
  const cached wanted = {.lo = {c->lo[0], c->lo[2], c->lo[3]}, .hi = {c->hi[0], c->hi[2], c->hi[3]}, .plane = s.input_plane, .x = v.x->ptr};
  const int backwards = chunks > 1 && is_cached(m, &wanted, cut(grains, chunks, blocks, chunks - 1), blocks), step = backwards ? -1 : 1;
  for (int64_t turn = 0, chunk = backwards ? chunks - 1 : 0; turn < chunks; turn++, chunk += step) {
    const int64_t from = cut(grains, chunks, blocks, chunk), to = cut(grains, chunks, blocks, chunk + 1);
    int64_t next = 0;
    locate(&v, c, from, to, s.places);
    if (turn + 1 < chunks) {
      const int64_t begin = cut(grains, chunks, blocks, chunk + step), end = cut(grains, chunks, blocks, chunk + step + 1);
      locate(&v, c, begin, end, s.places + (to - from));
      next = end - begin;
    }
    if (!is_cached(m, &wanted, from, to)) input_of(&v, &s, to - from);
    *m = wanted;
    m->from = from;
    m->to = to;
    for (int64_t panel = first; panel < last; panel++) {
      const int64_t column = panel * ASPEN_NR;
      const int64_t lines = v.far ? list_lines(&v, c, &s, to - from, next, column, panel - first, last - first) : 0;
      products(&v, &s, (const float *)v.w->ptr + panel * panel_size, to - from, min64(ASPEN_NR, c->hi[1] - column), lines);
      output_of(&v, c, &s, to - from, column);
    }
  }
  return 0;
}

int FN(winograd)(const aspen_call *c) {
  if (!c->again && c->scratch_bytes >= CACHED_BYTES) *(cached *)c->scratch = (cached){0};
  if (!is_volume(c)) {
    const int error = images(c, &one_plane);
    stores_done(c);
    return error;
  }
  volume v;
  if (volume_open(&v, c, 17)) return ASPEN_KERNEL_BAD_ARGUMENT;
  v.plane_weights = c->args[1].dims[1] * ASPEN_NR;
  int error = 0;
  while (!error && volume_next(&v)) error = images(&v.call, &v.planes);
  stores_done(c);
  return error;
}
