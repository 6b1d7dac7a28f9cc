/* QUANTIZE, DEQUANTIZE: real values as whole numbers of a scale, and back. LOOKUP: a function of bytes, as a table. MINMAX, QPARAMS: the
 * scale and zero point that fit a tensor.
 *
 * Each is one pass over memory. It has the operations of the chain of kernels that it replaces, in the same order: division (or product),
 * rounding to even, sum, limits, conversion. NaN becomes the lowest level, as in onnxruntime. Rows whose elements lie side by side go
 * through whole; all else is staged in blocks (walk.h). Conversions are plain loops, which have the same bits in vectors and one by one.
 */
#include "vector/walk.h"
#include "vector/vec.h"

#define SHORT_ROW 64 /* elements: several of such rows are cheaper staged together */

/* ---- rows ---- */

/* n elements side by side of output and input. `each`: scale and zero point lie beside them, too; else one of each is for all. */
typedef struct {
  int64_t n;
  void *out;
  const void *x, *scale, *zero; /* zero: NULL where there is none */
  int each, times;
} row;

#define CHUNK 128 /* elements of a row that are converted together: compilers make the best of such loops on every machine */

#define CONVERT(NAME, FROM, TO)                                             \
  static inline void NAME(int64_t n, TO *restrict out, const FROM *restrict in) { \
    for (int64_t i = 0; i < n; i++) out[i] = (TO)in[i];                     \
  }
#define STORED(S, T) CONVERT(wide_##S, T, float) CONVERT(narrow_##S, int32_t, T)
STORED(i8, int8_t)
STORED(u8, uint8_t)
STORED(i16, int16_t)
STORED(u16, uint16_t)
CONVERT(wide_i32, int32_t, float)

INLINE vi level(vf x, vf scale, vf zero, vf low, vf high, int times) {
  const vf whole = vround(times ? x * scale : x / scale) + zero; /* without a zero point + 0, which no result shows */
  return vtoi(vmin(high, vmax(whole, low))); /* NaN becomes the lowest level */
}

/* The levels of n ≤ CHUNK elements; of scales and zeros there is one, or one for each. */
INLINE void levels(int32_t *out, const float *x, const float *scales, const float *zeros, int64_t n, float least, float most, int times, int each) {
  const vf low = vset1(least), high = vset1(most);
  vf scale = vset1(*scales), zero = vset1(*zeros);
  int64_t i = 0;
  for (; i + VL <= n; i += VL) {
    if (each) scale = vload(scales + i), zero = vload(zeros + i);
    vistore(out + i, level(vload(x + i), scale, zero, low, high, times));
  }
  if (i == n) return;
  if (each) scale = vload_part(scales + i, n - i), zero = vload_part(zeros + i, n - i);
  vistore_part(out + i, level(vload_part(x + i, n - i), scale, zero, low, high, times), n - i);
}

static void levels_of(const row *r, int32_t *out, const float *x, const float *scales, const float *zeros, int64_t n, float least, float most) {
  if (r->times && r->each) levels(out, x, scales, zeros, n, least, most, 1, 1);
  else if (r->times) levels(out, x, scales, zeros, n, least, most, 1, 0);
  else if (r->each) levels(out, x, scales, zeros, n, least, most, 0, 1);
  else levels(out, x, scales, zeros, n, least, most, 0, 0);
}

#define QUANTIZE_ROW(S, T, LEAST, MOST)                                                                        \
  static void quantize_##S(const row *r, int whole) {                                                          \
    _Alignas(64) float x[CHUNK], zeros[CHUNK] = {0};                                                           \
    _Alignas(64) int32_t found[CHUNK];                                                                         \
    if (r->zero && !r->each) zeros[0] = (float)*(const T *)r->zero;                                            \
    for (int64_t i = 0; i < r->n; i += CHUNK) {                                                                \
      const int64_t n = nd_min(CHUNK, r->n - i);                                                               \
      const float *from = (const float *)r->x + i, *scales = (const float *)r->scale + (r->each ? i : 0);      \
      if (whole) wide_i32(n, x, (const int32_t *)r->x + i), from = x;                                          \
      if (r->zero && r->each) wide_##S(n, zeros, (const T *)r->zero + i);                                      \
      levels_of(r, found, from, scales, zeros, n, LEAST, MOST);                                                \
      narrow_##S(n, (T *)r->out + i, found);                                                                   \
    }                                                                                                          \
  }                                                                                                            \
  static void quantize_##S##_f32(const row *r) { quantize_##S(r, 0); }                                         \
  static void quantize_##S##_i32(const row *r) { quantize_##S(r, 1); }

QUANTIZE_ROW(i8, int8_t, -128.0f, 127.0f)
QUANTIZE_ROW(u8, uint8_t, 0.0f, 255.0f)
QUANTIZE_ROW(i16, int16_t, -32768.0f, 32767.0f)
QUANTIZE_ROW(u16, uint16_t, 0.0f, 65535.0f)

#define DEQUANTIZE_ROW(S, T)                                                                                   \
  static void dequantize_##S(const row *r) {                                                                   \
    const T *restrict x = r->x, *restrict z = r->zero;                                                         \
    const float *restrict s = r->scale;                                                                        \
    float *restrict out = r->out;                                                                              \
    const int64_t n = r->n;                                                                                    \
    const float scale = *s, zero = z ? (float)*z : 0;                                                          \
    if (!r->each)                                                                                              \
      for (int64_t i = 0; i < n; i++) out[i] = ((float)x[i] - zero) * scale;                                   \
    else if (!z)                                                                                               \
      for (int64_t i = 0; i < n; i++) out[i] = (float)x[i] * s[i];                                             \
    else                                                                                                       \
      for (int64_t i = 0; i < n; i++) out[i] = ((float)x[i] - (float)z[i]) * s[i];                             \
  }

DEQUANTIZE_ROW(i8, int8_t)
DEQUANTIZE_ROW(u8, uint8_t)
DEQUANTIZE_ROW(i16, int16_t)
DEQUANTIZE_ROW(u16, uint16_t)
DEQUANTIZE_ROW(i32, int32_t)

typedef void (*row_fn)(const row *);

static row_fn quantizer(uint8_t to, uint8_t from) {
  const int whole = from == ASPEN_DT_I32;
  if (!whole && from != ASPEN_DT_F32) return NULL;
  switch (to) {
    case ASPEN_DT_I8: return whole ? quantize_i8_i32 : quantize_i8_f32;
    case ASPEN_DT_U8: return whole ? quantize_u8_i32 : quantize_u8_f32;
    case ASPEN_DT_I16: return whole ? quantize_i16_i32 : quantize_i16_f32;
    case ASPEN_DT_U16: return whole ? quantize_u16_i32 : quantize_u16_f32;
  }
  return NULL;
}

static row_fn dequantizer(uint8_t from) {
  switch (from) {
    case ASPEN_DT_I8: return dequantize_i8;
    case ASPEN_DT_U8: return dequantize_u8;
    case ASPEN_DT_I16: return dequantize_i16;
    case ASPEN_DT_U16: return dequantize_u16;
    case ASPEN_DT_I32: return dequantize_i32;
  }
  return NULL;
}

/* ---- boxes ---- */

/* Has argument k one element for the whole block? */
static inline int same_for_all(const nd_walk *w, int k) { return w->step[k] == 0 && (w->br == 1 || w->row_step[k] == 0); }

/* The box, of which scale and zero point are arguments 2 and 3; `inputs` has no zero point if it is 2. */
static int over_box(const aspen_call *c, int inputs, row_fn fn, int times) {
  nd it;
  if (!nd_open(&it, c, inputs)) return ASPEN_KERNEL_OK;
  int64_t size[ND_ARGS];
  for (int k = 0; k <= inputs; k++) size[k] = (int64_t)nd_size(c->args[k].dtype);
  row r = {.n = nd_row(&it), .times = times};
  int even = 1, still = 1, side = 1; /* output and input side by side; the others for all of a row; side by side, too */
  for (int k = 0; k <= inputs; k++) {
    const int64_t step = nd_step(&it, k);
    if (k < 2) even = even && step == size[k];
    else still = still && step == 0, side = side && step == size[k];
  }
  if (even && (still || side) && (r.n >= SHORT_ROW || it.rank == 1)) {
    r.each = !still;
    do {
      r.out = it.ptr[0], r.x = it.ptr[1], r.scale = it.ptr[2], r.zero = inputs > 2 ? it.ptr[3] : NULL;
      fn(&r);
    } while (nd_next(&it));
    return ASPEN_KERNEL_OK;
  }
  _Alignas(64) char staged[ND_ARGS][ND_BLOCK * 4];
  nd_walk w;
  nd_walk_open(&w, &it);
  do {
    r.n = w.count, r.each = 0;
    for (int k = 2; k <= inputs; k++) r.each |= !same_for_all(&w, k);
    r.out = nd_target(&w, (size_t)size[0], staged[0]);
    r.x = nd_stage(&w, 1, (size_t)size[1], staged[1]);
    r.scale = r.each ? nd_stage(&w, 2, 4, staged[2]) : w.ptr[2];
    r.zero = inputs < 3 ? NULL : r.each ? nd_stage(&w, 3, (size_t)size[3], staged[3]) : w.ptr[3];
    fn(&r);
    nd_commit(&w, (size_t)size[0], staged[0]);
  } while (nd_walk_next(&w));
  return ASPEN_KERNEL_OK;
}

/* How many inputs there are, if the zero point has type `stored`; else 0. */
static int inputs_of(const aspen_call *c, uint8_t stored) {
  const uint8_t zero = c->n_inputs > 2 ? c->args[3].dtype : ASPEN_DT_NONE;
  if (c->args[2].dtype != ASPEN_DT_F32) return 0;
  return zero == ASPEN_DT_NONE ? 2 : zero == stored ? 3 : 0;
}

int FN(quantize)(const aspen_call *c) {
  const row_fn fn = quantizer(c->args[0].dtype, c->args[1].dtype);
  const int inputs = inputs_of(c, c->args[0].dtype);
  return fn && inputs ? over_box(c, inputs, fn, c->params[0] != 0) : ASPEN_KERNEL_BAD_ARGUMENT;
}

int FN(dequantize)(const aspen_call *c) {
  const row_fn fn = c->args[0].dtype == ASPEN_DT_F32 ? dequantizer(c->args[1].dtype) : NULL;
  const int inputs = inputs_of(c, c->args[1].dtype);
  return fn && inputs ? over_box(c, inputs, fn, 0) : ASPEN_KERNEL_BAD_ARGUMENT;
}

/* ---- LOOKUP ---- */

enum { LEVELS = 256 };

/* A whole row, whatever its elements' distances are. `least`: 128 for signed bytes, whose lowest level is the first of the table. */
#define LOOK_UP(T)                                                                                             \
  static void look_up_##T(const nd *it, const T *table, unsigned least) {                                      \
    const int64_t n = nd_row(it), to = nd_step(it, 0), from = nd_step(it, 1);                                  \
    char *out = it->ptr[0];                                                                                    \
    const uint8_t *x = (const uint8_t *)it->ptr[1];                                                            \
    if (to == (int64_t)sizeof(T) && from == 1)                                                                 \
      for (int64_t i = 0; i < n; i++) ((T *)out)[i] = table[x[i] ^ least];                                     \
    else                                                                                                       \
      for (int64_t i = 0; i < n; i++) *(T *)(out + i * to) = table[x[i * from] ^ least];                       \
  }
LOOK_UP(uint8_t)
LOOK_UP(uint32_t)

#if VL == 16 && defined(ASPEN_AVX512_VBMI)
/* The bytes that indices of seven bits find in a table of two vectors. */
INLINE vi pick(vi index, vi low, vi high) {
  __asm__("vpermi2b %2, %1, %0" : "+v"(index) : "v"(low), "v"(high));
  return index;
}
/* n bytes side by side: the table is in four vectors. */
static void look_up_side_by_side(uint8_t *out, const uint8_t *x, int64_t n, const uint8_t *table, unsigned least) {
  const __m512i flip = _mm512_set1_epi8((char)least);
  vi part[4];
  memcpy(part, table, LEVELS);
  for (int64_t i = 0; i < n; i += 64) {
    const __mmask64 left = n - i >= 64 ? ~0ull : (1ull << (n - i)) - 1;
    const __m512i index = _mm512_xor_si512(left == ~0ull ? _mm512_loadu_si512(x + i) : _mm512_maskz_loadu_epi8(left, x + i), flip);
    const __m512i low = (__m512i)pick((vi)index, part[0], part[1]), high = (__m512i)pick((vi)index, part[2], part[3]);
    const __m512i found = _mm512_mask_blend_epi8(_mm512_movepi8_mask(index), low, high);
    if (left == ~0ull) _mm512_storeu_si512(out + i, found);
    else _mm512_mask_storeu_epi8(out + i, left, found);
  }
}
#else
static void look_up_side_by_side(uint8_t *out, const uint8_t *x, int64_t n, const uint8_t *table, unsigned least) {} /* never called */
#endif

int FN(lookup)(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *x = &c->args[1], *table = &c->args[2];
  const int bytes = out->dtype == ASPEN_DT_U8 || out->dtype == ASPEN_DT_I8;
  if ((x->dtype != ASPEN_DT_U8 && x->dtype != ASPEN_DT_I8) || (!bytes && out->dtype != ASPEN_DT_F32)) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (table->dtype != out->dtype || table->rank != 1 || table->dims[0] != LEVELS || table->strides[0] != 1) return ASPEN_KERNEL_BAD_ARGUMENT;
  const unsigned least = x->dtype == ASPEN_DT_I8 ? LEVELS / 2 : 0;
  nd it;
  if (!nd_open(&it, c, 1)) return ASPEN_KERNEL_OK;
  const int by_instruction = bytes && nd_step(&it, 0) == 1 && nd_step(&it, 1) == 1 && aspen_isa_vbmi(OWN_ISA);
  do
    if (by_instruction) look_up_side_by_side((uint8_t *)it.ptr[0], (const uint8_t *)it.ptr[1], nd_row(&it), (const uint8_t *)table->ptr, least);
    else if (bytes) look_up_uint8_t(&it, (const uint8_t *)table->ptr, least);
    else look_up_uint32_t(&it, (const uint32_t *)table->ptr, least);
  while (nd_next(&it));
  return ASPEN_KERNEL_OK;
}

/* ---- MINMAX ---- */

/* Least and greatest so far, both with 0 among them, and the lanes where a value was NaN. */
typedef struct {
  vf low, high;
  vm bad;
} range;

INLINE void take(range *r, vf x) { /* of equal values, and of NaN, the second operand stays */
  r->low = vmin(x, r->low);
  r->high = vmax(x, r->high);
  r->bad = vm_or(r->bad, visnan(x));
}

static void extremes_of_row(range *all, const float *p, int64_t step, int64_t n) {
  range r[4] = {*all, *all, *all, *all};
  int64_t i = 0;
  if (step == 1) {
    for (; i + 4 * VL <= n; i += 4 * VL)
      for (int k = 0; k < 4; k++) take(&r[k], vload(p + i + k * VL));
    for (; i < n; i += VL) take(&r[0], vload_part(p + i, n - i));
  } else {
    for (; i < n; i += VL) take(&r[0], vload_strided(p + i * step, step, n - i));
  }
  for (int k = 0; k < 4; k++) {
    all->low = vmin(r[k].low, all->low), all->high = vmax(r[k].high, all->high);
    all->bad = vm_or(all->bad, r[k].bad);
  }
}

int FN(minmax)(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *x = &c->args[1];
  const int64_t axis = c->params[0];
  if (out->dtype != ASPEN_DT_F32 || x->dtype != ASPEN_DT_F32 || out->rank != 2 || axis < 0 || axis >= x->rank) return ASPEN_KERNEL_BAD_ARGUMENT;
  const int64_t blocks = out->dims[0], length = x->dims[axis];
  for (int64_t b = c->lo[0]; b < c->hi[0]; b++) {
    const int64_t begin = b * length / blocks, end = (b + 1) * length / blocks;
    range all = {vzero(), vzero(), vlt(vzero(), vzero())};
    nd it;
    nd_begin(&it, 1);
    it.ptr[0] = x->ptr + begin * x->strides[axis] * 4;
    for (int a = 0; a < x->rank; a++) {
      const int64_t stride = x->strides[a] * 4;
      nd_add_axis(&it, a == axis ? end - begin : x->dims[a], &stride);
    }
    if (nd_order(&it)) do {
        extremes_of_row(&all, (const float *)it.ptr[0], nd_step(&it, 0) / 4, nd_row(&it));
      } while (nd_next(&it));
    const float nan = __builtin_nanf(""), low = vm_any(all.bad) ? nan : vhmin(all.low), high = vm_any(all.bad) ? nan : vhmax(all.high);
    float *to = (float *)out->ptr + b * out->strides[0];
    if (c->lo[1] <= 0) to[0] = low;
    if (c->hi[1] > 1) to[out->strides[1]] = high;
  }
  return ASPEN_KERNEL_OK;
}

/* ---- QPARAMS ---- */

int FN(qparams)(const aspen_call *c) {
  const aspen_arg *scale = &c->args[0], *zero = &c->args[1], *x = &c->args[2];
  if (scale->dtype != ASPEN_DT_F32 || zero->dtype != ASPEN_DT_U8 || x->dtype != ASPEN_DT_F32 || x->rank != 2) return ASPEN_KERNEL_BAD_ARGUMENT;
  for (int a = 0; a < scale->rank; a++)
    if (c->lo[a] >= c->hi[a]) return ASPEN_KERNEL_OK;
  const float *p = (const float *)x->ptr;
  float low = 0, high = 0;
  for (int64_t b = 0; b < x->dims[0]; b++, p += x->strides[0]) {
    const float least = p[0], most = p[x->strides[1]];
    low = least < low || least != least ? least : low; /* a NaN stays NaN */
    high = most > high || most != most ? most : high;
  }
  /* Where all is 0 any scale will do; this is onnxruntime's. */
  const float step = low == high ? 1.0f : (high - low) / 255.0f;
  const float at = 0.0f - low / step, within = at < 255.0f ? at > 0.0f ? at : 0.0f : 255.0f; /* 255 also for NaN */
  *(float *)scale->ptr = step;
  *(uint8_t *)zero->ptr = (uint8_t)vround(vset1(within))[0];
  return ASPEN_KERNEL_OK;
}
