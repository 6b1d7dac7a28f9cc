/* ROIALIGN: regions of images, each cut into cells; a cell is the average or the maximum of points in it, each between four pixels.
 *
 * Points of a region lie on a lattice, so along each axis a cell has a list of pixels with weights. Averages put together the shares of
 * several points in the same pixel: neighbouring points share most. A result is the sum over the cell's rows and, within them, columns of
 * the product of both weights times the pixel. A maximum is that of all points' four pixels times their weights, as onnxruntime has it;
 * points outside count as zero there. Coordinates are in single precision.
 */
#include <math.h>

#include "vector/nd.h"
#include "sampling/sample.h"
#include "movement/transpose.h"

#define ROOM 16384 /* floats of cells whose channels do not lie side by side in the result */
#define LINE 256   /* channels of these at a time */
#define MOST 16777216.0f /* points of a cell along an axis that single precision still tells apart */

typedef struct {
  int64_t offset; /* elements into the image */
  float weight;
} pixel;

/* The cells of an axis that a box has, `room` pixels each. */
typedef struct {
  int64_t cells, room;
  pixel *list;
  int32_t *count;   /* pixels of a cell; of a maximum, two a point */
  uint8_t *outside; /* has the cell points outside? */
} axis;

/* Most pixels of a cell: those that there are, or two a point. Points that adapt to the region are at least half a pixel apart. */
INLINE int64_t most_pixels(const aspen_call *c, int64_t extent) {
  const int64_t ratio = c->params[1];
  if (c->params[0]) return 2 * (ratio > 0 ? ratio : 2 * (extent + 3));
  return ratio > 0 ? nd_min(2 * ratio, extent) : extent;
}

INLINE int64_t axis_bytes(int64_t cells, int64_t room) { return cells * room * (int64_t)sizeof(pixel) + (cells * 5 + 63) / 64 * 64; }

#ifdef ISA_PORTABLE
size_t aspen_scratch_roialign(const aspen_call *c) {
  int64_t bytes = 64;
  for (int a = 2; a < 4; a++) bytes += axis_bytes(c->args[0].dims[a], most_pixels(c, c->args[1].dims[a]));
  return (size_t)bytes;
}
#endif

/* Adds to the weight of a pixel that one of the last entries has, or appends it. Points go one way: forwards, one of the last two may have
 * it, backwards, one of the last three. */
INLINE void put(pixel *list, int32_t *count, int64_t room, int64_t offset, float weight) {
  const int32_t n = *count;
  for (int32_t k = n - 1; k >= 0 && (k >= n - 3 || n == room); k--)
    if (list[k].offset == offset) {
      list[k].weight += weight;
      return;
    }
  if (n == room) return; /* cannot be: then each pixel has an entry */
  list[n] = (pixel){offset, weight};
  *count = n + 1;
}

/* Lists of the cells [lo, hi) of `cells` between the coordinates start and start + size. */
static void find(axis *x, int64_t lo, int64_t hi, int64_t cells, float start, float size, int64_t ratio, int64_t extent, int64_t stride,
                 int largest) {
  const float bin = size / (float)cells, last = (float)extent;
  const float wanted = ratio > 0 ? (float)ratio : ceilf(bin);
  const int64_t points = wanted >= 1 ? (int64_t)fminf(wanted, MOST) : 0; /* none for NaN */
  const float share = 1.0f / (float)nd_max(points, 1);
  for (int64_t cell = lo; cell < hi; cell++) {
    pixel *list = x->list + (cell - lo) * x->room;
    int32_t *count = &x->count[cell - lo];
    const float first = start + (float)cell * bin;
    *count = 0, x->outside[cell - lo] = 0;
    /* Points that adapt go forwards and may be many; those beyond the image are stepped over, but for one on either side. */
    int64_t from = 0, to = points;
    if (ratio <= 0 && points > 2) {
      const double step = (double)bin / (double)points, before = (-1.0 - first) / step - 2, behind = ((double)last - first) / step + 2;
      if (before > 0) from = before < (double)points ? (int64_t)before : points;
      if (behind < (double)points) to = behind > 0 ? (int64_t)behind : 0;
      if (!(step > 0 && step <= 2)) to = from; /* an endless region */
      if (from > 0 || to < points) x->outside[cell - lo] = 1;
    }
    for (int64_t i = from; i < to; i++) {
      float at = first + ((float)i + 0.5f) * bin / (float)points;
      if (!(at >= -1 && at <= last)) {
        x->outside[cell - lo] = 1;
        continue;
      }
      at = at > 0 ? at : 0;
      int64_t low = (int64_t)at, high = low + 1;
      float part = at - (float)low;
      if (low >= extent - 1) low = high = extent - 1, part = 0;
      if (!largest) {
        put(list, count, x->room, low * stride, (1 - part) * share);
        put(list, count, x->room, high * stride, part * share);
      } else if (*count + 2 <= x->room) {
        list[(*count)++] = (pixel){low * stride, 1 - part};
        list[(*count)++] = (pixel){high * stride, part};
      }
    }
    if (points == 0) *count = -1; /* no point at all */
  }
}

/* A cell as its rows and columns have it. */
typedef struct {
  const pixel *rows, *columns;
  int32_t height, width;
  int outside;
} cell;

/* V vectors of channels, or less than one: `part` (0: whole vectors) are left. */
INLINE void vectors(float *to, const float *x, const cell *c, const int largest, const int V, int64_t part) {
  vf sum[4];
#pragma GCC unroll 4
  for (int v = 0; v < V; v++) sum[v] = largest && !c->outside ? vset1(-INFINITY) : vzero();
  for (int32_t i = 0; i < c->height; i++) {
    const float *row = x + c->rows[i].offset, weight = c->rows[i].weight;
    for (int32_t k = 0; k < c->width; k++) {
      const float *p = row + c->columns[k].offset;
      const vf w = vset1(weight * c->columns[k].weight);
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) {
        const vf value = part ? vload_part(p, part) : vload(p + v * VL);
        sum[v] = largest ? vmax_nan(sum[v], w * value) : vfma(w, value, sum[v]);
      }
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < V; v++)
    if (part) vstore_part(to, sum[v], part);
    else vstore(to + v * VL, sum[v]);
}

INLINE void channels_of(float *to, const float *x, const cell *c, const int largest, int64_t n) {
  int64_t k = 0;
  for (; k + 4 * VL <= n; k += 4 * VL) vectors(to + k, x + k, c, largest, 4, 0);
  for (; k + VL <= n; k += VL) vectors(to + k, x + k, c, largest, 1, 0);
  if (k < n) vectors(to + k, x + k, c, largest, 1, n - k);
}

INLINE void strided(float *to, const float *x, int64_t step, const cell *c, int largest, int64_t n) {
  for (int64_t k = 0; k < n; k++, x += step) {
    float sum = largest && !c->outside ? -INFINITY : 0;
    for (int32_t i = 0; i < c->height; i++)
      for (int32_t j = 0; j < c->width; j++) {
        const float w = c->rows[i].weight * c->columns[j].weight, value = x[c->rows[i].offset + c->columns[j].offset];
        if (!largest) sum = sample_fma(w, value, sum);
        else if (!(sum != sum)) sum = sum > w * value ? sum : w * value;
      }
    to[k] = sum;
  }
}

static void compute(float *to, const float *x, int64_t step, cell c, int largest, int64_t n) {
  if (c.height < 0 || c.width < 0) { /* no points: zero, of a maximum too */
    c.height = 0, c.outside = 1;
  } else if (c.height == 0 || c.width == 0) {
    c.outside = 1;
  }
  if (step != 1 && n > 1) strided(to, x, step, &c, largest, n);
  else if (largest) channels_of(to, x, &c, 1, n);
  else channels_of(to, x, &c, 0, n);
}

/* All cells of the box of one region. */
static void region(const aspen_call *c, int64_t r, const float *x, const axis a[2], float *room) {
  const aspen_arg *out = &c->args[0];
  const int largest = c->params[0] == 1;
  const int64_t channels = c->hi[1] - c->lo[1], height = a[0].cells, width = a[1].cells, step = c->args[1].strides[1];
  const int64_t down = out->strides[2], right = out->strides[3], along = out->strides[1];
  float *to = (float *)out->ptr + r * out->strides[0] + c->lo[1] * along + c->lo[2] * down + c->lo[3] * right;
  const int direct = along == 1 || channels == 1, even = right == 1 && (height == 1 || down == width);
  const int64_t line = direct ? channels : nd_min(channels, LINE), most = direct ? height * width : ROOM / line;
  for (int64_t k = 0; k < channels; k += line) {
    const int64_t n = nd_min(line, channels - k), cells = height * width;
    for (int64_t first = 0; first < cells; first += most) {
      const int64_t m = nd_min(most, cells - first);
      for (int64_t j = 0; j < m; j++) {
        const int64_t row = (first + j) / width, column = (first + j) % width;
        const cell one = {a[0].list + row * a[0].room, a[1].list + column * a[1].room, a[0].count[row], a[1].count[column],
                          a[0].outside[row] | a[1].outside[column]};
        compute(direct ? to + row * down + column * right : room + j * n, x + k * step, step, one, largest, n);
      }
      if (direct) continue;
      if (even) {
        transpose((char *)(to + k * along + first), along * 4, (const char *)room, n * 4, n, m, 4);
      } else {
        for (int64_t j = 0; j < m; j++) {
          float *cell_to = to + k * along + (first + j) / width * down + (first + j) % width * right;
          nd_copy_row((char *)cell_to, along * 4, (const char *)(room + j * n), 4, n, 4);
        }
      }
    }
  }
}

int FN(roialign)(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *x = &c->args[1], *rois = &c->args[2], *batches = &c->args[3];
  if (out->dtype != ASPEN_DT_F32 || x->dtype != ASPEN_DT_F32 || rois->dtype != ASPEN_DT_F32 || batches->dtype != ASPEN_DT_I64 ||
      out->rank != 4 || x->rank != 4)
    return ASPEN_KERNEL_BAD_ARGUMENT;
  float room[ROOM] __attribute__((aligned(64)));
  const float scale = (float)aspen_param_f(c, 2);
  const int half = c->params[3] != 0, largest = c->params[0] == 1;
  axis a[2];
  char *scratch = c->scratch;
  int64_t used = 0;
  for (int k = 0; k < 2; k++) {
    a[k].cells = c->hi[2 + k] - c->lo[2 + k];
    if (a[k].cells <= 0 || c->hi[1] <= c->lo[1]) return ASPEN_KERNEL_OK;
    if (x->dims[2 + k] < 1) return ASPEN_KERNEL_BAD_ARGUMENT;
    a[k].room = most_pixels(c, x->dims[2 + k]);
    a[k].list = (pixel *)(scratch + used);
    a[k].count = (int32_t *)(a[k].list + a[k].cells * a[k].room);
    a[k].outside = (uint8_t *)(a[k].count + a[k].cells);
    used += axis_bytes(a[k].cells, a[k].room);
  }
  if ((int64_t)c->scratch_bytes < used) return ASPEN_KERNEL_SCRATCH;
  for (int64_t r = c->lo[0]; r < c->hi[0]; r++) {
    const int64_t batch = *((const int64_t *)batches->ptr + r * batches->strides[0]);
    if (batch < 0 || batch >= x->dims[0]) return ASPEN_KERNEL_BAD_INDEX;
    const float *roi = (const float *)rois->ptr + r * rois->strides[0];
    for (int k = 0; k < 2; k++) { /* rows, columns */
      const float shift = half ? 0.5f : 0;
      const float begin = roi[(1 - k) * rois->strides[1]] * scale - shift, end = roi[(3 - k) * rois->strides[1]] * scale - shift;
      const float size = half || end - begin > 1 ? end - begin : 1;
      find(&a[k], c->lo[2 + k], c->hi[2 + k], out->dims[2 + k], begin, size, c->params[1], x->dims[2 + k], x->strides[2 + k], largest);
    }
    region(c, r, (const float *)x->ptr + batch * x->strides[0] + c->lo[1] * x->strides[1], a, room);
  }
  return ASPEN_KERNEL_OK;
}
