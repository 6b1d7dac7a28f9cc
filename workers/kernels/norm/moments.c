/* MOMENTS and STANDARDIZE: normalisation of groups of channels over all pixels of an image, in two steps that tiles share by pixels.
 *
 * MOMENTS writes mean and sum of squared deviations of each block of pixels; STANDARDIZE puts the blocks of an image together and
 * normalises. Blocks of pixels follow from the shape alone, so no value depends on tiles.
 *
 * A part of a block that fits a near cache is read twice: for its mean in f32, then for deviations and their squares. The
 * former sum, zero but for rounding, corrects both results, so a mean far from zero costs nothing. Parts are put together in f64.
 */
#include <math.h>

#include "elementwise/act.h"
#include "vector/nd.h"

#define PART_FLOATS 16384 /* of a part whose channels lie side by side */
#define PART_LEAST 16
#define PART_MOST 256  /* pixels: one sum in f32 has no more terms of a channel */
#define LINE_MOST 1024 /* pixels of a part of a single channel */

INLINE int64_t block_begin(int64_t block, int64_t blocks, int64_t pixels) { return block * pixels / blocks; }

INLINE int64_t pixels_of(const aspen_arg *x) {
  int64_t n = 1;
  for (int a = 2; a < x->rank; a++) n *= x->dims[a];
  return n;
}

/* Elements from one pixel to the next, where that is the same everywhere; 0 where not. */
static int64_t even_step(const aspen_arg *x) {
  int64_t step = 0, n = 1;
  for (int a = x->rank - 1; a >= 2; a--) {
    if (x->dims[a] == 1) continue;
    if (!step) step = x->strides[a];
    else if (x->strides[a] != step * n) return 0;
    n *= x->dims[a];
  }
  return step;
}

/* Where m ≤ LINE_MOST pixels from the first on lie, in elements. */
static void places(const aspen_arg *x, int64_t step, int64_t first, int64_t m, int64_t *at) {
  if (step) {
    for (int64_t i = 0; i < m; i++) at[i] = (first + i) * step;
    return;
  }
  int64_t index[ASPEN_MAX_RANK], offset = 0;
  for (int a = x->rank - 1; a >= 2; a--) {
    index[a] = first % x->dims[a];
    first /= x->dims[a];
    offset += index[a] * x->strides[a];
  }
  for (int64_t i = 0; i < m; i++) {
    at[i] = offset;
    for (int a = x->rank - 1; a >= 2; a--) {
      offset += x->strides[a];
      if (++index[a] < x->dims[a]) break;
      offset -= index[a] * x->strides[a];
      index[a] = 0;
    }
  }
}

/* ---- channels side by side ---- */

/* sum[c] over m pixels. */
static void sums(const float *x, const int64_t *at, int64_t m, int64_t channels, float *sum) {
  for (int64_t c = 0; c < channels; c += VL) vstore_part(sum + c, vzero(), channels - c);
  int64_t i = 0;
  for (; i + 4 <= m; i += 4) {
    const float *p0 = x + at[i], *p1 = x + at[i + 1], *p2 = x + at[i + 2], *p3 = x + at[i + 3];
    int64_t c = 0;
    for (; c + VL <= channels; c += VL)
      vstore(sum + c, vload(sum + c) + ((vload(p0 + c) + vload(p1 + c)) + (vload(p2 + c) + vload(p3 + c))));
    if (c < channels) {
      const int64_t n = channels - c;
      const vf four = (vload_part(p0 + c, n) + vload_part(p1 + c, n)) + (vload_part(p2 + c, n) + vload_part(p3 + c, n));
      vstore_part(sum + c, vload_part(sum + c, n) + four, n);
    }
  }
  for (; i < m; i++)
    for (int64_t c = 0; c < channels; c += VL)
      vstore_part(sum + c, vload_part(sum + c, channels - c) + vload_part(x + at[i] + c, channels - c), channels - c);
}

/* Sums of deviations from the centres, and of their squares, of n ≤ 4 VL channels over m pixels. */
INLINE void deviations_of(const float *x, const int64_t *at, int64_t m, int64_t n, const float *centre, float *first, float *second,
                          int whole) {
  vf mean[4], d[4], s[4];
  for (int k = 0; k < 4; k++) {
    mean[k] = n > k * VL ? vload_part(centre + k * VL, n - k * VL) : vzero();
    d[k] = s[k] = vzero();
  }
  for (int64_t i = 0; i < m; i++) {
    const float *p = x + at[i];
    for (int k = 0; k < 4; k++) {
      if (!whole && n <= k * VL) break;
      const vf v = (whole ? vload(p + k * VL) : vload_part(p + k * VL, n - k * VL)) - mean[k];
      d[k] = d[k] + v;
      s[k] = vfma(v, v, s[k]);
    }
  }
  for (int k = 0; k < 4 && n > k * VL; k++) {
    vstore_part(first + k * VL, d[k], n - k * VL);
    vstore_part(second + k * VL, s[k], n - k * VL);
  }
}

static void deviations(const float *x, const int64_t *at, int64_t m, int64_t channels, const float *centre, float *first, float *second) {
  int64_t c = 0;
  for (; c + 4 * VL <= channels; c += 4 * VL) deviations_of(x + c, at, m, 4 * VL, centre + c, first + c, second + c, 1);
  if (c < channels) deviations_of(x + c, at, m, channels - c, centre + c, first + c, second + c, 0);
}

INLINE float group_sum(const float *p, int64_t n) {
  vf sum = vzero();
  int64_t c = 0;
  for (; c + VL <= n; c += VL) sum = sum + vload(p + c);
  if (c < n) sum = sum + vload_part(p + c, n - c);
  return vhadd(sum);
}

/* Takes in the moments of `groups` groups that were seen `more` times, beside `seen` times before: (mean, squares) each. */
INLINE void take_in(double *restrict mean, double *restrict squares, const float *restrict centre, int64_t across,
                    const float *restrict first, const float *restrict second, int64_t groups, double seen, double more) {
  const double one = 1 / more, share = more / (seen + more), both = seen * share;
  for (int64_t g = 0; g < groups; g++) {
    const double off = first[g] * one, here = centre[g * across] + off, apart = here - mean[g];
    squares[g] += (second[g] - first[g] * off) + apart * apart * both;
    mean[g] += apart * share;
  }
}

typedef struct {
  float *sum, *centre, *first, *second; /* a channel each; first and second then a group each */
  double *mean, *squares;               /* a group each */
} room;

static room room_in(void *scratch, int64_t channels) {
  const int64_t n = (channels + 15) / 16 * 16;
  float *f = scratch;
  double *d = (double *)(f + 4 * n);
  return (room){f, f + n, f + 2 * n, f + 3 * n, d, d + n};
}

/* Pixels [begin, end) of `groups` groups of `size` channels, side by side from x on. */
static void side_by_side(const aspen_arg *arg, const float *x, int64_t step, int64_t begin, int64_t end, int64_t groups, int64_t size,
                         const room *r) {
  const int64_t channels = groups * size, fit = PART_FLOATS / arg->dims[1];
  const int64_t part = fit < PART_LEAST ? PART_LEAST : fit > PART_MOST ? PART_MOST : fit;
  int64_t at[PART_MOST];
  for (int64_t p = begin; p < end; p += part) {
    const int64_t m = nd_min(part, end - p);
    places(arg, step, p, m, at);
    sums(x, at, m, channels, r->sum);
    const float terms = (float)(m * size);
    for (int64_t g = 0; g < groups; g++) {
      const float mean = (size == 1 ? r->sum[g] : group_sum(r->sum + g * size, size)) / terms;
      for (int64_t c = 0; c < size; c++) r->centre[g * size + c] = mean;
    }
    deviations(x, at, m, channels, r->centre, r->first, r->second);
    if (size > 1)
      for (int64_t g = 0; g < groups; g++) {
        r->first[g] = group_sum(r->first + g * size, size);
        r->second[g] = group_sum(r->second + g * size, size);
      }
    take_in(r->mean, r->squares, r->centre, size, r->first, r->second, groups, (double)((p - begin) * size), terms);
  }
}

/* ---- any other layout: a channel after the other ---- */

static void line_moments(const float *p, int64_t n, float *centre, float *first, float *second) {
  vf sum[4], d[4], s[4];
  for (int k = 0; k < 4; k++) sum[k] = d[k] = s[k] = vzero();
  int64_t i = 0;
  for (; i + 4 * VL <= n; i += 4 * VL)
    for (int k = 0; k < 4; k++) sum[k] = sum[k] + vload(p + i + k * VL);
  for (; i < n; i += VL) sum[0] = sum[0] + vload_part(p + i, n - i);
  *centre = vhadd((sum[0] + sum[1]) + (sum[2] + sum[3])) / (float)n;
  const vf mean = vset1(*centre);
  for (i = 0; i + 4 * VL <= n; i += 4 * VL)
    for (int k = 0; k < 4; k++) {
      const vf v = vload(p + i + k * VL) - mean;
      d[k] = d[k] + v;
      s[k] = vfma(v, v, s[k]);
    }
  for (; i < n; i += VL) {
    const vf v = vload_part_fill(p + i, n - i, mean) - mean;
    d[0] = d[0] + v;
    s[0] = vfma(v, v, s[0]);
  }
  *first = vhadd((d[0] + d[1]) + (d[2] + d[3]));
  *second = vhadd((s[0] + s[1]) + (s[2] + s[3]));
}

static void channel_by_channel(const aspen_arg *arg, const float *x, int64_t step, int64_t begin, int64_t end, int64_t groups,
                               int64_t size, const room *r) {
  int64_t at[LINE_MOST];
  float line[LINE_MOST];
  for (int64_t p = begin; p < end; p += LINE_MOST) {
    const int64_t m = nd_min(LINE_MOST, end - p);
    if (step != 1) places(arg, step, p, m, at);
    for (int64_t c = 0; c < groups * size; c++) {
      const float *from = x + c * arg->strides[1];
      float centre, first, second;
      if (step != 1)
        for (int64_t i = 0; i < m; i++) line[i] = from[at[i]];
      line_moments(step == 1 ? from + p : line, m, &centre, &first, &second);
      const double seen = (double)((p - begin) * size + c % size * m);
      take_in(r->mean + c / size, r->squares + c / size, &centre, 0, &first, &second, 1, seen, (double)m);
    }
  }
}

#ifdef ISA_PORTABLE
size_t aspen_scratch_moments(const aspen_call *c) { return (size_t)((c->args[1].dims[1] + 15) / 16 * 16) * (4 * 4 + 2 * 8); }
#endif

int FN(moments)(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *x = &c->args[1];
  if (out->dtype != ASPEN_DT_F64 || out->rank != 4 || x->dtype != ASPEN_DT_F32 || x->rank < 3) return ASPEN_KERNEL_BAD_ARGUMENT;
  const int64_t channels = x->dims[1], blocks = out->dims[1], all = out->dims[2];
  if (all < 1 || channels % all || out->dims[0] != x->dims[0] || out->dims[3] != 2) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (c->scratch_bytes < (size_t)((channels + 15) / 16 * 16) * (4 * 4 + 2 * 8)) return ASPEN_KERNEL_SCRATCH;
  const int64_t size = channels / all, groups = c->hi[2] - c->lo[2], pixels = pixels_of(x), step = pixels > 1 ? even_step(x) : 1;
  const room r = room_in(c->scratch, channels);
  for (int64_t n = c->lo[0]; n < c->hi[0]; n++)
    for (int64_t b = c->lo[1]; b < c->hi[1]; b++) {
      const int64_t begin = block_begin(b, blocks, pixels), end = block_begin(b + 1, blocks, pixels);
      const float *from = (const float *)x->ptr + n * x->strides[0] + c->lo[2] * size * x->strides[1];
      for (int64_t g = 0; g < groups; g++) r.mean[g] = r.squares[g] = 0;
      if (channels > 1 && x->strides[1] == 1) side_by_side(x, from, step, begin, end, groups, size, &r);
      else channel_by_channel(x, from, step, begin, end, groups, size, &r);
      for (int64_t g = 0; g < groups; g++) {
        double *to = (double *)out->ptr + n * out->strides[0] + b * out->strides[1] + (c->lo[2] + g) * out->strides[2];
        if (c->lo[3] <= 0) to[0] = r.mean[g];
        if (c->hi[3] > 1) to[out->strides[3]] = r.squares[g];
      }
    }
  return ASPEN_KERNEL_OK;
}

/* ---- STANDARDIZE ---- */

/* The coefficients of the channels [lo, hi) of image n: a result is (x - mean) * scale + shift. Stays for the next tile. */
typedef struct {
  int64_t n, lo, hi, made;
} header;
typedef struct {
  header *head;
  float *mean, *scale, *shift; /* from channel lo on */
  double *sum, *squares;       /* a group each */
} factors;

#define ROOM(channels) (sizeof(header) + (size_t)(((channels) + 15) / 16 * 16) * (3 * 4 + 2 * 8))

static factors factors_in(void *scratch, int64_t channels) {
  const int64_t n = (channels + 15) / 16 * 16;
  double *d = (double *)((char *)scratch + sizeof(header));
  float *f = (float *)(d + 2 * n);
  return (factors){scratch, f, f + n, f + 2 * n, d, d + n};
}

static float value(const aspen_arg *arg, int64_t n, int64_t c, float absent) {
  if (arg->dtype == ASPEN_DT_NONE) return absent;
  return ((const float *)arg->ptr)[(arg->dims[0] > 1 ? n * arg->strides[0] : 0) + c * arg->strides[1]];
}

static void make_factors(const aspen_call *c, const factors *f, int64_t n, const aspen_arg *gamma, const aspen_arg *beta) {
  const aspen_arg *x = &c->args[1], *moments = &c->args[2];
  const int64_t blocks = moments->dims[1], size = x->dims[1] / moments->dims[2], pixels = pixels_of(x);
  const int64_t lo = c->lo[1], hi = c->hi[1], g0 = lo / size, groups = (hi - 1) / size + 1 - g0;
  const double count = (double)pixels * (double)size;
  const double *base = (const double *)moments->ptr + n * moments->strides[0] + g0 * moments->strides[2];
  for (int64_t g = 0; g < groups; g++) f->sum[g] = f->squares[g] = 0;
  for (int pass = 0; pass < 2; pass++) /* the mean, then deviations from it */
    for (int64_t b = 0; b < blocks; b++) {
      const double terms = (double)((block_begin(b + 1, blocks, pixels) - block_begin(b, blocks, pixels)) * size), share = terms / count;
      const double *m = base + b * moments->strides[1];
      for (int64_t g = 0; g < groups; g++) {
        const double *p = m + g * moments->strides[2];
        const double off = p[0] - f->sum[g];
        if (pass == 0) f->sum[g] += share * p[0];
        else f->squares[g] += p[moments->strides[3]] + terms * off * off;
      }
    }
  const double eps = aspen_param_f(c, 0);
  for (int64_t k = lo; k < hi; k++) {
    const int64_t g = k / size - g0;
    const double inverse = 1 / sqrt(f->squares[g] / count + eps);
    const float mean = (float)f->sum[g], scale = (float)(inverse * value(gamma, n, k, 1));
    f->mean[k - lo] = mean;
    f->scale[k - lo] = scale;
    f->shift[k - lo] = (float)(value(beta, n, k, 0) + ((double)mean - f->sum[g]) * scale);
  }
  *f->head = (header){n, lo, hi, 1};
}

enum { PLAIN, RELU, OTHER };

INLINE vf one(vf x, vf mean, vf scale, vf shift, vf residual, int more, int kind) {
  vf y = vfma(x - mean, scale, shift);
  if (more) y = y + residual;
  return kind == RELU ? act_relu(y) : y;
}

/* A row of pixels: result, input and residual (NULL: none), and the elements from one pixel to the next. */
typedef struct {
  float *out;
  const float *x, *more;
  int64_t so, sx, sm;
} run;

/* Pixels [begin, end) of a row whose channels lie side by side. */
INLINE void pixels(const run *r, int64_t begin, int64_t end, int64_t channels, const factors *f, int more, int kind) {
  for (int64_t i = begin; i < end; i++) {
    const float *p = r->x + i * r->sx, *s = more ? r->more + i * r->sm : p;
    float *q = r->out + i * r->so;
    int64_t k = 0;
    for (; k + VL <= channels; k += VL)
      vstore(q + k, one(vload(p + k), vload(f->mean + k), vload(f->scale + k), vload(f->shift + k), vload(s + k), more, kind));
    if (k < channels) {
      const int64_t n = channels - k;
      const vf mean = vload_part(f->mean + k, n), scale = vload_part(f->scale + k, n), shift = vload_part(f->shift + k, n);
      vstore_part(q + k, one(vload_part(p + k, n), mean, scale, shift, vload_part(s + k, n), more, kind), n);
    }
  }
}

#define LINE_BLOCK 512 /* pixels of a channel that are staged at a time */
#define NEAR 1024 /* results between two calls of a function: they are in the nearest cache */

static int run_of_pixels(const run *r, int64_t m, int64_t channels, const factors *f, int kind, const aspen_call *c) {
  const int64_t most = nd_max(NEAR / channels, 1);
  const float a = (float)aspen_param_f(c, 2), b = (float)aspen_param_f(c, 3);
  int error = 0;
  for (int64_t i = 0; i < m && !error; i += most) {
    const int64_t end = nd_min(i + most, m);
    if (r->more && kind == RELU) pixels(r, i, end, channels, f, 1, RELU);
    else if (r->more) pixels(r, i, end, channels, f, 1, PLAIN);
    else if (kind == RELU) pixels(r, i, end, channels, f, 0, RELU);
    else pixels(r, i, end, channels, f, 0, PLAIN);
    if (kind != OTHER) continue;
    float *to = r->out + i * r->so;
    if (r->so == channels) error = FN(act)(c->params[1], a, b, to, to, (end - i) * channels);
    else
      for (int64_t j = i; j < end && !error; j++, to += r->so) error = FN(act)(c->params[1], a, b, to, to, channels);
  }
  return error;
}

/* n pixels of one channel, any distance apart. */
static int run_of_channel(const run *r, int64_t n, const float by[3], int kind, const aspen_call *c) {
  float line[LINE_BLOCK], other[LINE_BLOCK];
  const vf mean = vset1(by[0]), scale = vset1(by[1]), shift = vset1(by[2]);
  for (int64_t i = 0; i < n; i += LINE_BLOCK) {
    const int64_t m = nd_min(LINE_BLOCK, n - i);
    const float *from = r->x + i * r->sx, *more = r->more ? r->more + i * r->sm : NULL;
    if (r->sx != 1) {
      nd_copy_row((char *)line, 4, (const char *)from, r->sx * 4, m, 4);
      from = line;
    }
    if (more && r->sm != 1) {
      nd_copy_row((char *)other, 4, (const char *)more, r->sm * 4, m, 4);
      more = other;
    }
    float *to = r->so == 1 ? r->out + i : line;
    for (int64_t k = 0; k < m; k += VL) {
      const vf residual = more ? vload_part(more + k, m - k) : vzero();
      vstore_part(to + k, one(vload_part(from + k, m - k), mean, scale, shift, residual, more != NULL, kind), m - k);
    }
    if (kind == OTHER) {
      const int error = FN(act)(c->params[1], (float)aspen_param_f(c, 2), (float)aspen_param_f(c, 3), to, to, m);
      if (error) return error;
    }
    if (r->so != 1) nd_copy_row((char *)(r->out + i * r->so), r->so * 4, (const char *)line, 4, m, 4);
  }
  return 0;
}

#ifdef ISA_PORTABLE
size_t aspen_scratch_standardize(const aspen_call *c) { return ROOM(c->args[1].dims[1]); }
#endif

int FN(standardize)(const aspen_call *c) {
  static const aspen_arg absent = {0};
  const aspen_arg *out = &c->args[0], *x = &c->args[1], *moments = &c->args[2];
  const aspen_arg *gamma = c->n_inputs > 2 ? &c->args[3] : &absent, *beta = c->n_inputs > 3 ? &c->args[4] : &absent;
  const aspen_arg *more = c->n_inputs > 4 && c->args[5].dtype != ASPEN_DT_NONE ? &c->args[5] : NULL;
  if (out->dtype != ASPEN_DT_F32 || x->dtype != ASPEN_DT_F32 || moments->dtype != ASPEN_DT_F64 || x->rank < 3 || out->rank != x->rank ||
      moments->rank != 4 || moments->dims[1] < 1 || moments->dims[2] < 1 || x->dims[1] % moments->dims[2])
    return ASPEN_KERNEL_BAD_ARGUMENT;
  if (more && (more->dtype != ASPEN_DT_F32 || more->rank != x->rank)) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (c->scratch_bytes < ROOM(x->dims[1])) return ASPEN_KERNEL_SCRATCH;
  for (int a = 0; a < out->rank; a++)
    if (c->lo[a] >= c->hi[a]) return ASPEN_KERNEL_OK;
  const int kind = c->params[1] == ASPEN_U_IDENTITY ? PLAIN : c->params[1] == ASPEN_U_RELU ? RELU : OTHER;
  const int64_t channels = c->hi[1] - c->lo[1];
  const int side = channels > 1 && x->strides[1] == 1 && out->strides[1] == 1 && (!more || more->strides[1] == 1);
  const factors f = factors_in(c->scratch, x->dims[1]);
  if (!c->again) f.head->made = 0;
  for (int64_t n = c->lo[0]; n < c->hi[0]; n++) {
    const header *h = f.head;
    if (!h->made || h->n != n || h->lo != c->lo[1] || h->hi != c->hi[1]) make_factors(c, &f, n, gamma, beta);
    for (int64_t k = 0; k < (side ? 1 : channels); k++) {
      nd it;
      nd_begin(&it, more ? 3 : 2);
      const aspen_arg *args[3] = {out, x, more};
      for (int j = 0; j < it.args; j++) it.ptr[j] = args[j]->ptr + (n * args[j]->strides[0] + (c->lo[1] + k) * args[j]->strides[1]) * 4;
      for (int a = 2; a < out->rank; a++) {
        const int64_t strides[3] = {out->strides[a] * 4, x->strides[a] * 4, more ? more->strides[a] * 4 : 0};
        for (int j = 0; j < it.args; j++) it.ptr[j] += c->lo[a] * strides[j];
        nd_add_axis(&it, c->hi[a] - c->lo[a], strides);
      }
      if (!nd_order(&it)) continue;
      const float by[3] = {f.mean[k], f.scale[k], f.shift[k]};
      run r = {.so = nd_step(&it, 0) / 4, .sx = nd_step(&it, 1) / 4, .sm = more ? nd_step(&it, 2) / 4 : 0};
      do {
        r.out = (float *)it.ptr[0], r.x = (const float *)it.ptr[1], r.more = more ? (const float *)it.ptr[2] : NULL;
        const int error = side ? run_of_pixels(&r, nd_row(&it), channels, &f, kind, c) : run_of_channel(&r, nd_row(&it), by, kind, c);
        if (error) return error;
      } while (nd_next(&it));
    }
  }
  return ASPEN_KERNEL_OK;
}
