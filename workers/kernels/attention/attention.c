/* ATTENTION: out[…, M, Dv] = softmax(scale Q[…, M, D] K[…, N, D]^T, masked) V[…, N, Dv], scores never leaving the cache.
 *
 * Keys come in blocks of KEYS from key 0 on. A block of K, and of V where enough rows share it, is packed into panels once a tile. Then
 * every group of rows multiplies with it, exponentiates about the running maximum and adds to its running sums (Milakov and Gimelshein,
 * arXiv:1805.02867). Up to KEYS keys that is the plain softmax; beyond them sums are scaled when the maximum grows. Leading axes that
 * neither K nor V depend on (groups of heads that share keys) count as rows.
 *
 * A row's result depends on its index alone, whatever part of its group the tile has. Blocks of keys start at fixed keys. The keys that
 * causal masking skips end where those of the row's group end, and groups begin at multiples of MM_ROWS.
 *
 * Where few keys, all of them seen, serve many rows (prompts that an image looks at), vectors hold rows instead of keys. Scores and sums
 * are computed the other way round, softmax goes down the lanes, and nothing is lost on short rows. The choice does not depend on how the
 * operator is cut into tiles.
 *
 * Skipped keys would have weighed exp(fill - maximum). Where the maximum is so low that this is not 0, the row is done again with all keys.
 */
#include <math.h>

#include "gemm/mm.h"
#include "vector/vmath.h"

#define KEYS ASPEN_KEYS
#define SCORES (KEYS + 16) /* row of scores: no multiple of 4 KiB between rows */
#define PACK_ROWS ASPEN_PACK_ROWS
#define FEW_KEYS 32        /* … for at least LANES rows */
#define LANES ASPEN_NR
#define NO_WEIGHT 104.0f   /* vexp(-104) is 0 */

enum { SCALE, CAUSAL, OFFSET, FILL, SOFTCAP, GUARD, MASK_FIRST }; /* parameters */
enum { NAN_TO_ZERO = 1, UNSEEN_TO_ZERO = 2 };         /* values of GUARD */

size_t aspen_scratch_attention(const aspen_call *c);

#ifdef ISA_PORTABLE
static size_t panels(int64_t n) { return (size_t)(n + ASPEN_NR - 1) / ASPEN_NR; }

size_t aspen_scratch_attention(const aspen_call *c) {
  const aspen_arg *k = &c->args[2], *v = &c->args[3];
  const int rank = c->args[0].rank;
  if (rank < 2 || k->rank != rank || v->rank != rank) return 0;
  const size_t keys = (size_t)(k->dims[rank - 2] < KEYS ? k->dims[rank - 2] : KEYS), values = panels(v->dims[rank - 1]) * ASPEN_NR;
  size_t rows = 1;
  for (int a = 0; a < rank - 1; a++)
    if (a == rank - 2 || (k->strides[a] == 0 && v->strides[a] == 0)) rows *= (size_t)(c->hi[a] > c->lo[a] ? c->hi[a] - c->lo[a] : 0);
  return sizeof(float) * (panels((int64_t)keys) * ASPEN_NR * (size_t)k->dims[rank - 1] + values * keys + MM_MAX_ROWS * SCORES + KEYS +
                          rows * (values + 4) + 64);
}
#endif

/* The state of a row from block to block, besides its sums of values. */
typedef struct row_state {
  float max, total;
  int32_t again, reserved;
} row_state;

/* A row: its pointers, its index along the axis of queries, and its number in the tile. */
typedef struct row {
  const float *q;
  float *out;
  const char *mask;
  int64_t m, number;
} row;

typedef struct tile {
  mm_job score, mix;
  int64_t keys, values;
  int64_t out_stride, mask_stride;
  int64_t m_lo, m_hi, v_lo, v_hi;
  int64_t offset;
  int shared, shared_axes; /* rows of other leading axes, and how many axes those are */
  const aspen_call *c;
  const aspen_arg *mask; /* NULL: none */
  float fill, cap;
  int causal, guard, mask_first, one_mask; /* one_mask: the same for all rows */
  int again; /* the second pass: rows that must see every key */
  int32_t any_again;
  float *k_panels, *v_panels, *scores, *staged, *sums;
  row_state *states;
  const char *staged_from;
  int64_t staged_keys;
  int64_t sums_row;
} tile;

/* The keys that the group of query m looks at: [0, end). */
INLINE int64_t group_end(const tile *t, int64_t m) {
  if (!t->causal || t->again) return t->keys;
  const int64_t end = m / MM_ROWS * MM_ROWS + MM_ROWS + t->offset;
  return end < 0 ? 0 : end < t->keys ? end : t->keys;
}

/* The mask of n keys: float addends, or all ones and zeros; in place or staged. */
static const void *mask_row(tile *t, const char *from, int64_t n) {
  const int64_t step = t->mask_stride;
  if (t->mask->dtype == ASPEN_DT_F32 && step == 1) return from;
  if (from == t->staged_from && n <= t->staged_keys) return t->staged;
  t->staged_from = t->one_mask ? from : NULL;
  t->staged_keys = n;
  if (t->mask->dtype == ASPEN_DT_F32) {
    for (int64_t i = 0; i < n; i++) t->staged[i] = ((const float *)from)[i * step];
  } else {
    int32_t *keep = (int32_t *)t->staged;
    const uint8_t *p = (const uint8_t *)from;
    if (step == 1)
      for (int64_t i = 0; i < n; i++) keep[i] = p[i] ? -1 : 0;
    else
      for (int64_t i = 0; i < n; i++) keep[i] = p[i * step] ? -1 : 0;
  }
  return t->staged;
}

/* Masks n scores in place and returns their maximum; NaN never is one. */
INLINE float mask_and_max(float *s, int64_t n, const float *addends, const int32_t *keep, float fill) {
  const vf low = vset1(-INFINITY), vfill = vset1(fill);
  vf m0 = low, m1 = low;
  int64_t i = 0;
  for (; i + 2 * VL <= n; i += 2 * VL) {
    vf x0 = vload(s + i), x1 = vload(s + i + VL);
    if (addends) x0 = x0 + vload(addends + i), x1 = x1 + vload(addends + i + VL);
    if (keep) x0 = vsel(vilt(viload(keep + i), viset1(0)), x0, vfill), x1 = vsel(vilt(viload(keep + i + VL), viset1(0)), x1, vfill);
    if (addends || keep) vstore(s + i, x0), vstore(s + i + VL, x1);
    m0 = vmax(x0, m0), m1 = vmax(x1, m1);
  }
  for (; i < n; i += VL) {
    vf x = vload_part_fill(s + i, n - i, low);
    if (addends) x = x + vload_part(addends + i, n - i);
    if (keep) x = vsel(vilt(viload_part(keep + i, n - i), viset1(0)), x, vfill);
    if (addends || keep) vstore_part(s + i, x, n - i);
    if (keep) x = vload_part_fill(s + i, n - i, low); /* without the lanes beyond */
    m0 = vmax(x, m0);
  }
  return vhmax(vmax(m0, m1));
}

/* exp(s - max) for s ≤ max as a power of two: no overflow to catch and one product to reduce the range. Its rounding error grows with the
 * distance from the maximum, where the weight is small. */
INLINE vf weight(vf s, vf max) {
  return vexp2_(vmax(vset1(-151.0f), (s - max) * vset1(1.44269504f)));
}

/* s = exp(s - max), and their sum. */
static float exp_and_sum(float *s, int64_t n, float max) {
  const vf vmaximum = vset1(max), low = vset1(-INFINITY);
  vf a0 = vzero(), a1 = a0, a2 = a0, a3 = a0;
  int64_t i = 0;
  for (; i + 4 * VL <= n; i += 4 * VL) {
    const vf e0 = weight(vload(s + i), vmaximum), e1 = weight(vload(s + i + VL), vmaximum);
    const vf e2 = weight(vload(s + i + 2 * VL), vmaximum), e3 = weight(vload(s + i + 3 * VL), vmaximum);
    vstore(s + i, e0);
    vstore(s + i + VL, e1);
    vstore(s + i + 2 * VL, e2);
    vstore(s + i + 3 * VL, e3);
    a0 = a0 + e0, a1 = a1 + e1, a2 = a2 + e2, a3 = a3 + e3;
  }
  for (; i < n; i += VL) {
    const vf e = weight(vload_part_fill(s + i, n - i, low), vmaximum);
    vstore_part(s + i, e, n - i);
    a0 = a0 + e;
  }
  return vhadd((a0 + a1) + (a2 + a3));
}

static void cap_scores(float *s, int64_t n, float cap) {
  const vf c = vset1(cap), inverse = vset1(1 / cap);
  for (int64_t i = 0; i < n; i += VL) vstore_part(s + i, c * vtanh(vload_part(s + i, n - i) * inverse), n - i);
}

static void scale_sums(float *sums, int64_t n, float by) {
  for (int64_t i = 0; i < n; i += VL) vstore_part(sums + i, vload_part(sums + i, n - i) * vset1(by), n - i);
}

/* Scores of a row become weights: keys [first, first + n), of which the row may see those below `visible`. */
static void weigh(tile *t, const row *r, float *s, int64_t first, int64_t n, float *sums) {
  row_state *state = &t->states[r->number];
  if (t->cap != 0.0f) cap_scores(s, n, t->cap);
  const int64_t seen = !t->causal ? n : r->m + t->offset + 1 - first, visible = seen < 0 ? 0 : seen;
  for (int64_t i = visible; i < n; i++) s[i] = t->again ? t->fill : -INFINITY;
  float max;
  if (!t->mask) {
    max = mask_and_max(s, n, NULL, NULL, 0);
  } else {
    const int64_t bytes = t->mask->dtype == ASPEN_DT_F32 ? 4 : 1;
    const void *m = mask_row(t, r->mask + first * t->mask_stride * bytes, n);
    max = bytes == 4 ? mask_and_max(s, n, m, NULL, 0) : mask_and_max(s, n, NULL, m, t->fill);
    if (t->again && t->mask_first && visible < n) {
      for (int64_t i = visible; i < n; i++) s[i] = t->fill;
      max = mask_and_max(s, n, NULL, NULL, 0);
    }
  }
  const float before = first ? state->max : -INFINITY;
  if (!(max > before)) max = before;
  if (max == -INFINITY) { /* nothing to see so far (or nothing but NaN, which the sum must keep) */
    float nan = 0;
    for (int64_t i = 0; i < n; i++) nan += s[i] != s[i] ? s[i] : 0, s[i] = 0;
    state->max = max;
    state->total = (first ? state->total : 0) + nan;
    return;
  }
  const float total = exp_and_sum(s, n, max);
  if (first == 0) {
    state->total = total;
  } else {
    const vf factor = vexp(vset1(before) - vset1(max));
    state->total = state->total * factor[0] + total;
    if (max != before) scale_sums(sums, t->sums_row, factor[0]);
  }
  state->max = max;
}

static void finish(tile *t, const row *r, const float *sums) {
  const row_state *state = &t->states[r->number];
  if (t->causal && !t->again && t->fill > -INFINITY && !(state->max > t->fill + NO_WEIGHT)) {
    t->states[r->number].again = 1;
    t->any_again = 1;
    return;
  }
  const int64_t n = t->v_hi - t->v_lo, stride = t->out_stride;
  float *out = r->out + t->v_lo * stride;
  sums += t->v_lo;
  const float inverse = 1 / state->total;
  if ((t->guard == NAN_TO_ZERO && !(state->total > 0)) || (t->guard == UNSEEN_TO_ZERO && state->total == 0)) {
    for (int64_t i = 0; i < n; i++) out[i * stride] = 0;
  } else if (stride == 1) {
    for (int64_t i = 0; i < n; i += VL) vstore_part(out + i, vload_part(sums + i, n - i) * vset1(inverse), n - i);
  } else {
    for (int64_t i = 0; i < n; i++) out[i * stride] = sums[i] * inverse;
  }
}

/* Up to MM_ROWS rows of one group times keys [first, first + n). */
static void rows_times_keys(tile *t, const row *rows, int count, int64_t first, int64_t n, const float *v) {
  const float *a[MM_ROWS];
  mm_rows block = {.rows = count, .taps = 1, .a = a};
  for (int i = 0; i < count; i++) {
    a[i] = rows[i].q;
    block.out[i] = t->scores + i * SCORES;
    block.bias[i] = block.residual[i] = NULL;
  }
  FN(mm_block)(&t->score, &block, t->k_panels, 0, 0, n);
  for (int i = 0; i < count; i++) {
    a[i] = t->scores + i * SCORES;
    block.out[i] = t->sums + rows[i].number * t->sums_row;
    block.residual[i] = first ? block.out[i] : NULL;
    weigh(t, &rows[i], t->scores + i * SCORES, first, n, block.out[i]);
  }
  t->mix.k = n;
  FN(mm_block)(&t->mix, &block, v, t->v_lo / ASPEN_NR * ASPEN_NR, t->v_lo, t->v_hi);
  if (first + n >= group_end(t, rows[0].m))
    for (int i = 0; i < count; i++) finish(t, &rows[i], t->sums + rows[i].number * t->sums_row);
}

/* The row of query m and the g-th combination of the leading axes that share keys. */
static row row_at(const tile *t, const row *origin, int64_t g, int64_t m) {
  const aspen_call *c = t->c;
  const int queries = c->args[0].rank - 2;
  row r = *origin;
  r.m = m;
  r.number = g * (t->m_hi - t->m_lo) + m - t->m_lo;
  const int64_t bytes = t->mask && t->mask->dtype == ASPEN_DT_F32 ? 4 : 1;
  for (int axis = queries; axis > queries - 1 - t->shared_axes; axis--) {
    int64_t index = m;
    if (axis < queries) {
      const int64_t extent = c->hi[axis] - c->lo[axis];
      index = c->lo[axis] + g % extent;
      g /= extent;
    }
    r.out += index * c->args[0].strides[axis];
    r.q += index * c->args[1].strides[axis];
    if (t->mask) r.mask += index * t->mask->strides[axis] * bytes;
  }
  return r;
}

/* The next group's queries come nearer while this one multiplies: they are short pieces, far apart. */
static void next_queries(const tile *t, const row *origin, int64_t m) {
  const int64_t step = t->c->args[1].strides[t->c->args[0].rank - 2];
  if (t->score.a_stride != 1) return;
  for (int64_t end = m + MM_ROWS < t->m_hi ? m + MM_ROWS : t->m_hi; m < end; m++)
    for (int64_t k = 0; k < t->score.k; k += 16) __builtin_prefetch(origin->q + m * step + k);
}

/* All rows of the box for one choice of the other leading axes. */
static void attend(tile *t, const row *origin, const float *k, const float *v) {
  const aspen_call *c = t->c;
  const int queries = c->args[0].rank - 2, last = queries + 1;
  const int64_t k_row = c->args[2].strides[queries], k_column = c->args[2].strides[last];
  const int64_t v_row = c->args[3].strides[queries], v_column = c->args[3].strides[last];
  const int64_t all = group_end(t, t->m_hi - 1), depth = t->score.k, v_first = t->v_lo / ASPEN_NR * ASPEN_NR;
  const int in_place = v_column == 1 && t->values % ASPEN_NR == 0 && t->shared * (t->m_hi - t->m_lo) < PACK_ROWS;
  int64_t first = 0;
  do {
    const int64_t n = all - first < KEYS ? all - first : KEYS;
    t->staged_from = NULL;
    for (int64_t j = 0; j < n; j += ASPEN_NR)
      FN(mm_pack)(t->k_panels + j * depth, k + (first + j) * k_row, k_column, k_row, depth, n - j < ASPEN_NR ? n - j : ASPEN_NR);
    const float *vp = v + first * v_row + v_first * v_column;
    t->mix.b_stride = in_place ? v_row : ASPEN_NR;
    t->mix.b_panel = in_place ? ASPEN_NR : n * ASPEN_NR;
    if (!in_place) {
      for (int64_t j = v_first, at = 0; j < t->v_hi; j += ASPEN_NR, at += n * ASPEN_NR)
        FN(mm_pack)(t->v_panels + at, v + first * v_row + j * v_column, v_row, v_column, n, t->values - j < ASPEN_NR ? t->values - j : ASPEN_NR);
      vp = t->v_panels;
    }
    for (int64_t m = t->m_lo, m_end; m < t->m_hi; m = m_end) {
      m_end = m / MM_ROWS * MM_ROWS + MM_ROWS;
      if (m_end > t->m_hi) m_end = t->m_hi;
      const int64_t end = group_end(t, m), own = end - first < n ? end - first : n;
      if (own <= 0 && first > 0) continue;
      row rows[MM_ROWS];
      int count = 0;
      if (first == 0) next_queries(t, origin, m_end);
      for (int64_t g = 0; g < t->shared; g++)
        for (int64_t i = m; i < m_end; i++) {
          row r = row_at(t, origin, g, i);
          if (t->again && !t->states[r.number].again) continue;
          rows[count++] = r;
          if (count < MM_ROWS) continue;
          rows_times_keys(t, rows, count, first, own > 0 ? own : 0, vp);
          count = 0;
        }
      if (count) rows_times_keys(t, rows, count, first, own > 0 ? own : 0, vp);
    }
    first += n;
  } while (first < all);
}

static int few_keys(const tile *t) {
  const int64_t rows = t->c->args[1].dims[t->c->args[0].rank - 2];
  return t->keys > 0 && t->keys <= FEW_KEYS && rows >= LANES && !t->mask && !t->causal && t->cap == 0.0f;
}

/* w[n][LANES]: scores become weights, lane by lane as `weigh` does it; scale: what `finish` multiplies with, 0 where it writes 0. */
static void weigh_lanes(float *w, int64_t n, int guard, float *scale) {
  const vf low = vset1(-INFINITY), zero = vzero();
  for (int j = 0; j < LANES; j += VL) {
    vf max = low, total = zero;
    for (int64_t i = 0; i < n; i++) max = vmax(vload(w + i * LANES + j), max);
    const vm seen = vlt(low, max);
    for (int64_t i = 0; i < n; i++) {
      const vf s = vload(w + i * LANES + j), e = vsel(seen, weight(s, max), zero);
      total = total + vsel(seen, e, vsel(visnan(s), s, zero));
      vstore(w + i * LANES + j, e);
    }
    vf by = vset1(1) / total;
    if (guard == NAN_TO_ZERO) by = vsel(vlt(zero, total), by, zero);
    if (guard == UNSEEN_TO_ZERO) by = vsel(veq(total, zero), zero, by);
    vstore(scale + j, by);
  }
}

/* All rows of the box, LANES of them at a time, for one choice of the other leading axes. */
static void attend_few(const tile *t, const row *origin, const float *k, const float *v) {
  const aspen_call *c = t->c;
  const int queries = c->args[0].rank - 2, last = queries + 1;
  const int64_t k_row = c->args[2].strides[queries], v_column = c->args[3].strides[last];
  const int64_t q_row = c->args[1].strides[queries], out_row = c->args[0].strides[queries], n = t->keys;
  float *const w = t->scores, *const mixed = w + FEW_KEYS * LANES, *const scale = mixed + MM_ROWS * LANES;
  mm_job score = t->score, mix = t->mix;
  score.a_stride = c->args[2].strides[last];
  mix.k = n;
  mix.a_stride = c->args[3].strides[queries];
  mix.b_stride = ASPEN_NR;
  mix.b_panel = n * ASPEN_NR;
  const float *a[MM_ROWS];
  mm_rows block = {.taps = 1, .a = a};
  for (int64_t g = 0; g < t->shared; g++)
    for (int64_t m = t->m_lo; m < t->m_hi; m += LANES) {
      const int64_t count = t->m_hi - m < LANES ? t->m_hi - m : LANES;
      const row first = row_at(t, origin, g, m);
      FN(mm_pack)(t->k_panels, first.q, t->score.a_stride, q_row, score.k, count);
      for (int64_t i = 0; i < n; i += MM_ROWS) {
        block.rows = (int)(n - i < MM_ROWS ? n - i : MM_ROWS);
        for (int r = 0; r < block.rows; r++) a[r] = k + (i + r) * k_row, block.out[r] = w + (i + r) * LANES;
        FN(mm_block)(&score, &block, t->k_panels, 0, 0, LANES);
      }
      weigh_lanes(w, n, t->guard, scale);
      for (int64_t i = t->v_lo; i < t->v_hi; i += MM_ROWS) {
        block.rows = (int)(t->v_hi - i < MM_ROWS ? t->v_hi - i : MM_ROWS);
        for (int r = 0; r < block.rows; r++) a[r] = v + (i + r) * v_column, block.out[r] = mixed + r * LANES;
        FN(mm_block)(&mix, &block, w, 0, 0, LANES);
        for (int j = 0; j < LANES; j += VL) {
          const vf by = vload(scale + j);
          const vm none = veq(by, vzero());
          for (int r = 0; r < block.rows; r++) {
            vf x = vload(mixed + r * LANES + j) * by;
            if (t->guard) x = vsel(none, vzero(), x);
            vstore(mixed + r * LANES + j, x);
          }
        }
        for (int64_t lane = 0; lane < count; lane++) {
          float *out = first.out + lane * out_row + i * t->out_stride;
          for (int r = 0; r < block.rows; r++) out[r * t->out_stride] = mixed[r * LANES + lane];
        }
      }
    }
}

int FN(attention)(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *q = &c->args[1], *k = &c->args[2], *v = &c->args[3];
  const aspen_arg *mask = c->n_inputs > 3 && c->args[4].dtype ? &c->args[4] : NULL;
  const int rank = out->rank, queries = rank - 2, last = rank - 1;
  if (rank < 2 || q->rank != rank || k->rank != rank || v->rank != rank || (mask && mask->rank != rank)) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (out->dtype != ASPEN_DT_F32 || q->dtype != ASPEN_DT_F32 || k->dtype != ASPEN_DT_F32 || v->dtype != ASPEN_DT_F32 ||
      (mask && mask->dtype != ASPEN_DT_F32 && mask->dtype != ASPEN_DT_BOOL))
    return ASPEN_KERNEL_BAD_ARGUMENT;
  for (int i = 0; i < rank; i++)
    if (c->lo[i] >= c->hi[i]) return 0;
  if (c->scratch_bytes < aspen_scratch_attention(c)) return ASPEN_KERNEL_SCRATCH;

  tile t = {.c = c,
            .keys = k->dims[queries],
            .values = v->dims[last],
            .out_stride = out->strides[last],
            .m_lo = c->lo[queries],
            .m_hi = c->hi[queries],
            .v_lo = c->lo[last],
            .v_hi = c->hi[last],
            .mask = mask,
            .mask_stride = mask ? mask->strides[last] : 0,
            .one_mask = mask && mask->strides[queries] == 0,
            .causal = c->params[CAUSAL] != 0,
            .offset = c->params[OFFSET],
            .fill = (float)aspen_param_f(c, FILL),
            .cap = (float)aspen_param_f(c, SOFTCAP),
            .guard = (int)c->params[GUARD],
            .mask_first = c->params[MASK_FIRST] != 0};
  t.score = (mm_job){.k = k->dims[last], .a_stride = q->strides[last], .b_stride = ASPEN_NR, .b_panel = k->dims[last] * ASPEN_NR,
                     .out_stride = 1, .bias_stride = 1, .residual_stride = 1, .alpha = (float)aspen_param_f(c, SCALE)};
  t.score.scaled = t.score.alpha != 1.0f;
  t.mix = (mm_job){.a_stride = 1, .out_stride = 1, .bias_stride = 1, .residual_stride = 1, .alpha = 1};
  static const int64_t identity[4] = {ASPEN_U_IDENTITY, 0, 0, 0};
  if (FN(mm_prepare)(&t.score, identity) || FN(mm_prepare)(&t.mix, identity)) return ASPEN_KERNEL_BAD_ARGUMENT;

  /* Trailing leading axes along which K and V stay the same are rows. */
  int split = queries;
  t.shared = 1;
  while (split > 0 && k->strides[split - 1] == 0 && v->strides[split - 1] == 0) {
    split--;
    t.shared *= (int)(c->hi[split] - c->lo[split]);
    if (mask && mask->strides[split] != 0) t.one_mask = 0;
  }
  t.shared_axes = queries - split;

  const int64_t keys = t.keys < KEYS ? t.keys : KEYS;
  t.sums_row = (t.values + ASPEN_NR - 1) / ASPEN_NR * ASPEN_NR;
  t.scores = c->scratch;
  t.staged = t.scores + MM_MAX_ROWS * SCORES;
  t.k_panels = t.staged + KEYS;
  t.v_panels = t.k_panels + (keys + ASPEN_NR - 1) / ASPEN_NR * ASPEN_NR * t.score.k;
  t.sums = t.v_panels + t.sums_row * keys;
  t.states = (row_state *)(t.sums + t.sums_row * t.shared * (t.m_hi - t.m_lo));

  int64_t batch[ASPEN_MAX_RANK] = {0};
  const int64_t mask_bytes = mask && mask->dtype == ASPEN_DT_F32 ? 4 : 1;
  for (;;) {
    row origin = {.q = (const float *)q->ptr, .out = (float *)out->ptr, .mask = mask ? mask->ptr : NULL};
    const float *kp = (const float *)k->ptr, *vp = (const float *)v->ptr;
    for (int i = 0; i < split; i++) {
      const int64_t index = c->lo[i] + batch[i];
      origin.q += index * q->strides[i];
      origin.out += index * out->strides[i];
      if (mask) origin.mask += index * mask->strides[i] * mask_bytes;
      kp += index * k->strides[i];
      vp += index * v->strides[i];
    }
    for (int64_t i = 0; i < t.shared * (t.m_hi - t.m_lo); i++) t.states[i].again = 0;
    t.again = 0;
    t.any_again = 0;
    if (few_keys(&t)) attend_few(&t, &origin, kp, vp);
    else attend(&t, &origin, kp, vp);
    if (t.any_again) {
      t.again = 1;
      attend(&t, &origin, kp, vp);
    }
    int axis = split - 1;
    for (; axis >= 0; axis--) {
      if (++batch[axis] < c->hi[axis] - c->lo[axis]) break;
      batch[axis] = 0;
    }
    if (axis < 0) return 0;
  }
}
