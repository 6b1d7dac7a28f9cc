/* Sums of bytes become bytes again by a factor, a bias and a residual alone. These are the steps of int8_block without zero points of
 * columns and without functions. A panel's operands are gathered once for all its rows.
 */
#include "bytes/byte_levels.h"
#include "bytes/int8.h"

#define MOST_FACTOR 0.25f       /* sums are within 2^31, so their product with it … */
#define MOST_BIAS 268435456.0f /* … and what is added are together less than integers hold */

int FN(int8_has_levels)(const int8_job *job) {
  const mm_job *f = &job->finish;
  const epilogue *e = &f->epilogue;
  const int rounded = job->levelled && e->a == 1.0f && e->residual_last && job->residual_type;
  return (job->dtype == ASPEN_DT_I8 || job->dtype == ASPEN_DT_U8) && job->quick && job->with && !job->zeros && f->out_stride == 1 &&
         f->residual_stride == 1 && job->residual_stride == 1 && (e->kind == EPILOGUE_NONE || rounded) && !e->gated;
}

void FN(int8_gather)(int8_columns *to, const int8_job *job, const char *panel, int64_t column, int64_t first, int64_t last, const float *bias,
                     const float *factor, uint32_t zero) {
  const uint32_t *header = (const uint32_t *)panel;
  to->panel = panel, to->column = column, to->first = first, to->last = last, to->bounded = 1;
  for (int64_t j = 0; j < ASPEN_NR; j++) {
    const int64_t c = column + j;
    const int inside = c >= first && c < last;
    to->offset[j] = (int32_t)(header[2 * ASPEN_NR + j] - zero * header[j]);
    to->factor[j] = !inside ? 0.0f : factor ? factor[c * job->factor_stride] : 1.0f;
    to->bias[j] = bias && inside ? bias[c * job->finish.bias_stride] : 0.0f;
    to->bounded &= to->factor[j] <= MOST_FACTOR && to->factor[j] >= -MOST_FACTOR && to->bias[j] <= MOST_BIAS && to->bias[j] >= -MOST_BIAS;
  }
}

/* Copies n bytes in few pieces, which may overlap. */
INLINE void copy_short(char *to, const char *from, int64_t n) {
#define PIECES(SIZE)                                                                                                               \
  if (n >= SIZE) {                                                                                                                 \
    for (int64_t i = 0; i + SIZE < n; i += SIZE) memcpy(to + i, from + i, SIZE);                                                   \
    memcpy(to + n - SIZE, from + n - SIZE, SIZE);                                                                                  \
    return;                                                                                                                        \
  }
  PIECES(16) PIECES(8) PIECES(4)
#undef PIECES
  for (int64_t i = 0; i < n; i++) to[i] = from[i];
}

/* How values become bytes. EASY: the scale is 1, and integers hold all values. ROUNDED: a residual comes behind a first rounding to whole
 * levels. */
enum { QUICK, EASY, ROUNDED };

/* The bytes of V vectors of columns from column `at` of the panel on, of n rows. */
INLINE void level_rows(const int V, const int how, const int joins, const int8_job *job, const int8_columns *c, int at, const int8_pixels *block,
                       const int32_t *sums) {
  const int n = block->terms.rows, is_signed = job->dtype == ASPEN_DT_I8;
  const int64_t size = joins == FLOATS ? 4 : 1, begin = c->first - c->column - at, end = c->last - c->column - at;
  const int64_t low = begin > 0 ? begin : 0, high = end < V * VL ? end : V * VL;
  const int cut = low > 0 || high < V * VL;
  const quick by = quick_of(job);
  const range round_to = range_of(0, job->finish.epilogue.b);
  vi offset[VECTORS];
  vf factor[VECTORS], bias[VECTORS];
#pragma GCC unroll 2
  for (int v = 0; v < V; v++)
    offset[v] = viload(c->offset + at + v * VL), factor[v] = vload(c->factor + at + v * VL), bias[v] = vload(c->bias + at + v * VL);
  uint8_t *out = block->out + c->column + at;
  const char *residual = joins ? (const char *)block->residual + (c->column + at) * size : NULL;
  const int64_t step = block->out_step, residual_step = block->residual_step * size;
  sums += at;
  for (int r = 0; r < n; r += 2, out += 2 * step, residual += joins ? 2 * residual_step : 0, sums += 2 * ASPEN_NR) {
    const int below = r + 1 < n;
    uint8_t bytes[2][WIDTH];
    char kept[2][WIDTH * sizeof(float)];
    const char *joined[2] = {residual, joins && below ? residual + residual_step : residual};
    if (joins && cut)
      for (int k = 0; k < 2; k++) {
        memset(kept[k], 0, sizeof kept[k]);
        copy_short(kept[k] + low * size, joined[k] + low * size, (high - low) * size);
        joined[k] = kept[k];
      }
    vi q[2 * VECTORS];
#pragma GCC unroll 2
    for (int k = 0; k < 2; k++)
#pragma GCC unroll 2
      for (int v = 0; v < V; v++) {
        vf y = vfromi(plus(viload(sums + (k && below ? ASPEN_NR : 0) + v * VL), offset[v])) * factor[v] + bias[v];
        if (how == ROUNDED) y = vmin(round_to.highest, vmax(vround(y), round_to.lowest));
        if (joins) y += residuals_of(job, joins, joined[k] + v * VL * size);
        q[k * V + v] = how == EASY ? nearest(y) : quick_quotient(&by, y);
      }
    uint8_t *const to = cut ? bytes[0] : out, *const beneath = cut ? bytes[1] : below ? out + step : out;
#if VL == 16
    if (V == 1) quick_half(&by, is_signed, q, to, beneath);
    else
#endif
      quick_levels(&by, is_signed, q, to, beneath);
    if (cut) {
      copy_short((char *)out + low, (char *)bytes[0] + low, high - low);
      if (below) copy_short((char *)out + step + low, (char *)bytes[1] + low, high - low);
    }
  }
}

typedef void level_rows_fn(const int8_job *, const int8_columns *, int, const int8_pixels *, const int32_t *);
#define LEVEL_ROWS(V, HOW, JOINS)                                                                                                  \
  static void level_rows_##V##_##HOW##_##JOINS(const int8_job *job, const int8_columns *c, int at, const int8_pixels *block,       \
                                               const int32_t *sums) {                                                              \
    level_rows(V, HOW, JOINS, job, c, at, block, sums);                                                                            \
  }
#define LEVEL_ROWS_EACH(V, HOW)                                                                                                    \
  LEVEL_ROWS(V, HOW, NOTHING) LEVEL_ROWS(V, HOW, FLOATS) LEVEL_ROWS(V, HOW, SIGNED) LEVEL_ROWS(V, HOW, UNSIGNED)
#define LEVEL_ROWS_ALL(V) LEVEL_ROWS_EACH(V, QUICK) LEVEL_ROWS_EACH(V, EASY) LEVEL_ROWS_EACH(V, ROUNDED)
#define LEVEL_ROWS_SOME(V, HOW)                                                                                                    \
  {level_rows_##V##_##HOW##_NOTHING, level_rows_##V##_##HOW##_FLOATS, level_rows_##V##_##HOW##_SIGNED, level_rows_##V##_##HOW##_UNSIGNED}
#define LEVEL_ROWS_LIST(V) {LEVEL_ROWS_SOME(V, QUICK), LEVEL_ROWS_SOME(V, EASY), LEVEL_ROWS_SOME(V, ROUNDED)}
LEVEL_ROWS_ALL(2)
static level_rows_fn *const level_rows_of[3][4] = LEVEL_ROWS_LIST(2);
#if VL == 16
LEVEL_ROWS_ALL(1)
static level_rows_fn *const level_half_of[3][4] = LEVEL_ROWS_LIST(1);
#endif

void FN(int8_levels)(const int8_job *job, const int8_columns *c, const int8_pixels *block) {
  int32_t made[MM_MAX_ROWS * ASPEN_NR] __attribute__((aligned(64))), *const sums = block->sums ? block->sums : made;
  const int of_bytes = job->residual_type == ASPEN_DT_I8 ? SIGNED : UNSIGNED;
  const int joins = !block->residual ? NOTHING : job->residual_type == ASPEN_DT_F32 ? FLOATS : of_bytes;
  const float most = MOST_BIAS / 512; /* of the scale of a residual: bytes less their zero point are within 511 */
  const int bounded = job->unit && c->bounded && joins != FLOATS && job->residual_scale <= most && job->residual_scale >= -most;
  const int how = job->finish.epilogue.kind != EPILOGUE_NONE ? ROUNDED : bounded ? EASY : QUICK;
  for (int at = 0; at < ASPEN_NR; at += WIDTH) {
    if (c->column + at >= c->last || c->column + at + WIDTH <= c->first) continue;
    const int columns = (int)(c->last - c->column - at);
    if (!block->sums) FN(int8_sums)(job, &block->terms, c->panel, at, columns, sums);
    level_rows_fn *f = level_rows_of[how][joins];
#if VL == 16
    if (columns <= VL) f = level_half_of[how][joins];
#endif
    f(job, c, at, block, sums);
  }
}
