/* GRIDSAMPLE: an image read at points that a tensor gives, between its pixels.
 *
 * Points go in blocks. Their coordinates become, axis by axis, places of pixels (-1: outside, where everything is zero) and weights, in
 * vectors of points. All is in single precision, as others compute them: where one rounding decides which pixel is the nearest, results are
 * theirs. A result is the sum of weight times pixel over the combinations of all axes, the last axis fastest.
 *
 * Where the image's channels lie side by side and are not few, a vector holds channels of a point; else points of a channel.
 */
#include "vector/nd.h"
#include "sampling/sample.h"
#include "movement/transpose.h"

enum { LINEAR, NEAREST, CUBIC };
enum { ZEROS, BORDER, REFLECTION };

#define AXES 3
#define TAPS 4
#define BLOCK 64           /* points */
#define FEW 8              /* channels: fewer do not fill vectors */
#define ROOM 16384         /* floats of points whose channels do not lie side by side in the result */
#define FAR 1073741824.0f  /* beyond any axis; NaN lies there too, before the first pixel */
#define CUBIC_A -0.75f

typedef struct {
  int axes, mode, padding, align, taps; /* taps: along an axis */
  int64_t extent[AXES], stride[AXES];   /* of the image */
  int64_t channel, step;                /* from one channel to the next: image, result */
} image;

typedef struct {
  int64_t n;                               /* points */
  int even;                                /* they lie side by side in the result */
  int64_t to[BLOCK];                       /* where their results go, in elements */
  int32_t place[AXES][TAPS][BLOCK];
  float weight[AXES][TAPS][BLOCK];
} block;

/* ---- where points lie ---- */

INLINE vf coordinate(const image *m, vf g, float extent) {
  const vf one = vset1(1), two = vset1(2);
  const vf at = m->align ? (g + one) / two * vset1(extent - 1) : ((g + one) * vset1(extent) - one) / two;
  return vsel(visnan(at), vset1(-FAR), vmin(vmax(at, vset1(-FAR)), vset1(FAR)));
}

INLINE vf bounded(const image *m, vf at, float extent) {
  const vf last = vset1(extent - 1);
  if (m->padding == ZEROS) return at;
  if (m->padding == REFLECTION) {
    const float low = m->align ? 0 : -0.5f, high = m->align ? extent - 1 : extent - 0.5f;
    if (high <= low) return vzero();
    const vf d = vabs(at - vset1(low)), span = vset1(high - low), turns = vfloor(d / span), rest = d - turns * span;
    const vf half = turns * vset1(0.5f);
    at = vsel(veq(vfloor(half), half), rest + vset1(low), vset1(high) - rest);
  }
  return vmin(vmax(at, vzero()), last);
}

INLINE vi place(vf at, int64_t extent) {
  const vi i = vtoi(at);
  return visel(vm_and(vilt(viset1(-1), i), vilt(i, viset1((int32_t)extent))), i, viset1(-1));
}

INLINE vf cubic_near(vf d) { return ((vset1(CUBIC_A + 2) * d - vset1(CUBIC_A + 3)) * d) * d + vset1(1); }
INLINE vf cubic_far(vf d) {
  return ((vset1(CUBIC_A) * d - vset1(5 * CUBIC_A)) * d + vset1(8 * CUBIC_A)) * d - vset1(4 * CUBIC_A);
}

/* Places and weights of all points along one axis. */
static void find(const image *m, block *b, int axis, const float *grid) {
  const int64_t n = m->extent[axis];
  const float extent = (float)n;
  for (int64_t j = 0; j < b->n; j += VL) {
    vf at = coordinate(m, vload(grid + j), extent), first;
    vi where[TAPS];
    vf weight[TAPS];
    if (m->mode == NEAREST) {
      where[0] = place(vround(bounded(m, vround(at), extent)), n);
      weight[0] = vset1(1);
    } else if (m->mode == LINEAR) {
      at = bounded(m, at, extent);
      first = vfloor(at);
      where[0] = place(first, n), where[1] = place(first + vset1(1), n);
      weight[1] = at - first, weight[0] = vset1(1) - weight[1];
    } else { /* each pixel is bounded, not the point */
      first = vfloor(at);
      const vf part = at - first, one = vset1(1);
      weight[0] = cubic_far(part + one), weight[1] = cubic_near(part);
      weight[2] = cubic_near(one - part), weight[3] = cubic_far(vset1(2) - part);
      for (int k = 0; k < 4; k++) where[k] = place(bounded(m, first + vset1((float)(k - 1)), extent), n);
    }
    for (int k = 0; k < m->taps; k++) {
      vistore(b->place[axis][k] + j, where[k]);
      vstore(b->weight[axis][k] + j, weight[k]);
    }
  }
}

/* ---- vectors of channels ---- */

/* Pixels of point j that lie in the image, and their weights; returns how many. */
INLINE int combine(const image *m, const block *b, int64_t j, int64_t *offset, float *weight) {
  int n = 0;
  const int depth = m->axes == 3 ? m->taps : 1, a = m->axes - 2;
  for (int i = 0; i < depth; i++) {
    const int32_t front = a ? b->place[0][i][j] : 0;
    if (front < 0) continue;
    for (int r = 0; r < m->taps; r++) {
      const int32_t row = b->place[a][r][j];
      if (row < 0) continue;
      const int64_t start = (a ? front * m->stride[0] : 0) + row * m->stride[a];
      const float part = a ? b->weight[0][i][j] * b->weight[a][r][j] : b->weight[a][r][j];
      for (int k = 0; k < m->taps; k++) {
        const int32_t column = b->place[a + 1][k][j];
        if (column < 0) continue;
        offset[n] = start + column * m->stride[a + 1];
        weight[n++] = part * b->weight[a + 1][k][j];
      }
    }
  }
  return n;
}

/* Channels of points whose channels lie side by side in the result, or go there through `room`. */
static void channel_vectors(const image *m, const block *b, const float *x, float *out, int64_t channels, float *room) {
  int64_t offset[SAMPLE_TAPS];
  float weight[SAMPLE_TAPS];
  const int direct = m->step == 1;
  const int64_t line = direct ? channels : nd_min(channels, ROOM), most = direct ? b->n : nd_max(ROOM / line, 1);
  for (int64_t c = 0; c < channels; c += line)
    for (int64_t j0 = 0; j0 < b->n; j0 += most) {
      const int64_t n = nd_min(line, channels - c), points = nd_min(most, b->n - j0);
      float *to = out + c * m->step;
      for (int64_t j = j0; j < j0 + points; j++) {
        const int taps = combine(m, b, j, offset, weight);
        float *result = direct ? to + b->to[j] : room + (j - j0) * n;
        if (m->channel != 1) sample_strided(result, 1, x + c * m->channel, m->channel, offset, weight, taps, n);
        else if (taps == 4) sample_channels(result, x + c, offset, weight, 4, n);
        else sample_channels(result, x + c, offset, weight, taps, n);
      }
      if (direct) continue;
      if (b->even) {
        transpose((char *)(to + b->to[j0]), m->step * 4, (const char *)room, n * 4, n, points, 4);
      } else {
        for (int64_t j = 0; j < points; j++) nd_copy_row((char *)(to + b->to[j0 + j]), m->step * 4, (const char *)(room + j * n), 4, n, 4);
      }
    }
}

/* ---- vectors of points ---- */

typedef struct {
  int taps;
  int32_t offset[SAMPLE_TAPS][BLOCK]; /* -1: outside */
  float weight[SAMPLE_TAPS][BLOCK];
} pixels;

static void combine_all(const image *m, const block *b, pixels *p) {
  const int depth = m->axes == 3 ? m->taps : 1, a = m->axes - 2;
  p->taps = 0;
  for (int i = 0; i < depth; i++)
    for (int r = 0; r < m->taps; r++)
      for (int k = 0; k < m->taps; k++, p->taps++)
        for (int64_t j = 0; j < b->n; j += VL) {
          const vi row = viload(b->place[a][r] + j), column = viload(b->place[a + 1][k] + j);
          vi outside = row | column, offset = row * viset1((int32_t)m->stride[a]) + column * viset1((int32_t)m->stride[a + 1]);
          vf weight = vload(b->weight[a][r] + j);
          if (a) {
            const vi front = viload(b->place[0][i] + j);
            outside |= front, offset += front * viset1((int32_t)m->stride[0]);
            weight = vload(b->weight[0][i] + j) * weight;
          }
          vistore(p->offset[p->taps] + j, visel(vilt(outside, viset1(0)), viset1(-1), offset));
          vstore(p->weight[p->taps] + j, weight * vload(b->weight[a + 1][k] + j));
        }
}

static void point_vectors(const image *m, const block *b, const float *x, float *out, int64_t channels) {
  pixels p;
  combine_all(m, b, &p);
  for (int64_t c = 0; c < channels; c++, x += m->channel, out += m->step)
    for (int64_t j = 0; j < b->n; j += VL) {
      const int64_t n = nd_min(VL, b->n - j);
      vf sum = vzero();
      for (int k = 0; k < p.taps; k++) {
        const vi offset = viload(p.offset[k] + j);
        const vm outside = vilt(offset, viset1(0));
        const vf pixel = vsel(outside, vzero(), vgather(x, visel(outside, viset1(0), offset)));
        sum = vfma(vload(p.weight[k] + j), pixel, sum);
      }
      if (b->even) {
        vstore_part(out + b->to[j], sum, n);
      } else {
        float results[VL] __attribute__((aligned(64)));
        vstore(results, sum);
        for (int64_t i = 0; i < n; i++) out[b->to[j + i]] = results[i];
      }
    }
}

/* ---- the kernel ---- */

static int open_image(image *m, const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *x = &c->args[1], *grid = &c->args[2];
  if (out->dtype != ASPEN_DT_F32 || x->dtype != ASPEN_DT_F32 || grid->dtype != ASPEN_DT_F32) return ASPEN_KERNEL_BAD_ARGUMENT;
  m->axes = x->rank - 2;
  if (m->axes < 2 || m->axes > AXES || out->rank != x->rank || grid->rank != x->rank) return ASPEN_KERNEL_BAD_ARGUMENT;
  m->mode = (int)c->params[0], m->padding = (int)c->params[1], m->align = c->params[2] != 0;
  m->taps = m->mode == NEAREST ? 1 : m->mode == LINEAR ? 2 : TAPS;
  m->channel = x->strides[1], m->step = out->strides[1];
  for (int a = 0; a < m->axes; a++) {
    m->extent[a] = x->dims[2 + a], m->stride[a] = x->strides[2 + a];
    if (m->extent[a] < 1 || m->extent[a] >= (int64_t)FAR) return ASPEN_KERNEL_BAD_ARGUMENT;
  }
  return ASPEN_KERNEL_OK;
}

/* Do the places of all pixels fit the lanes of a vector? -1 stands for those outside, so none may lie before the first. */
static int fits_lanes(const image *m) {
  int64_t last = 0;
  for (int a = 0; a < m->axes; a++) {
    if (m->stride[a] < 0 || m->stride[a] > INT32_MAX) return 0;
    last += (m->extent[a] - 1) * m->stride[a];
  }
  return last <= INT32_MAX;
}

int FN(gridsample)(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *x = &c->args[1], *grid = &c->args[2];
  image m;
  const int error = open_image(&m, c);
  if (error) return error;
  int64_t points = 1;
  for (int a = 0; a < m.axes; a++) points *= nd_max(c->hi[2 + a] - c->lo[2 + a], 0);
  const int64_t channels = c->hi[1] - c->lo[1];
  if (channels <= 0) return ASPEN_KERNEL_OK;
  const int lanes_of_points = (m.channel != 1 || x->dims[1] < FEW) && fits_lanes(&m);
  const int64_t next = grid->strides[m.axes + 1];
  float given[AXES][BLOCK] __attribute__((aligned(64))), room[ROOM] __attribute__((aligned(64)));
  block b;
  for (int64_t n = c->lo[0]; n < c->hi[0]; n++) {
    const float *from = (const float *)x->ptr + n * x->strides[0] + c->lo[1] * m.channel;
    const float *g = (const float *)grid->ptr + n * grid->strides[0];
    float *to = (float *)out->ptr + n * out->strides[0] + c->lo[1] * m.step;
    int64_t at[AXES], where = 0, read = 0;
    for (int a = 0; a < m.axes; a++) {
      at[a] = c->lo[2 + a];
      where += at[a] * out->strides[2 + a], read += at[a] * grid->strides[1 + a];
    }
    for (int64_t done = 0; done < points; done += b.n) {
      b.n = nd_min(BLOCK, points - done), b.even = 1;
      for (int64_t j = 0; j < b.n; j++) {
        b.to[j] = where;
        b.even &= j == 0 || where == b.to[j - 1] + 1;
        for (int a = 0; a < m.axes; a++) given[a][j] = g[read + (m.axes - 1 - a) * next];
        for (int a = m.axes - 1; a >= 0; a--) { /* the next point */
          where += out->strides[2 + a], read += grid->strides[1 + a];
          if (++at[a] < c->hi[2 + a]) break;
          const int64_t length = c->hi[2 + a] - c->lo[2 + a];
          where -= length * out->strides[2 + a], read -= length * grid->strides[1 + a];
          at[a] = c->lo[2 + a];
        }
      }
      for (int64_t j = b.n; j % VL; j++)
        for (int a = 0; a < m.axes; a++) given[a][j] = 0;
      for (int a = 0; a < m.axes; a++) find(&m, &b, a, given[a]);
      if (lanes_of_points) point_vectors(&m, &b, from, to, channels);
      else channel_vectors(&m, &b, from, to, channels, room);
    }
  }
  return ASPEN_KERNEL_OK;
}
