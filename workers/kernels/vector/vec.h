/* Vectors of f32 and i32, VL lanes each: 16 (AVX-512), 8 (AVX2) or 4 (portable, GCC vector extensions).
 *
 * A family includes this file and nothing else from <immintrin.h>; it is compiled once per instruction set with ASPEN_ISA naming it.
 * Functions that other sources call are spelled FN(name) and so get the ISA as suffix. Everything else must be static: the linker might
 * keep the AVX-512 copy of a shared inline function for a CPU without it.
 *
 * vf and vi are GCC vectors: + - * / and, on vi, & | ^ ~ << >> work lane by lane (>> is arithmetic).
 * vm is a set of lanes; make it with vlt … and use it with vsel.
 * Tails: vload_part and vstore_part touch n lanes only, so that a tail goes through the same arithmetic as a full vector.
 * Fused multiply-add: vfma rounds once on AVX2 and AVX-512 and twice on portable, always: the compiler never fuses (-ffp-contract=off).
 * NaN: vmin and vmax return their second operand when the operands are unordered or equal (vmax(a, x) is a > x ? a : x), so vmax(limit, x)
 * keeps a NaN in x; vmin_nan and vmax_nan return NaN when either operand is NaN.
 */
#ifndef ASPEN_VEC_H
#define ASPEN_VEC_H
#include <stdint.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define ASPEN_PASTE3(a, b) a##b
#define ASPEN_PASTE2(a, b) ASPEN_PASTE3(a, b)
#define FN(name) ASPEN_PASTE2(aspen_##name##_, ASPEN_ISA)
#define INLINE static inline __attribute__((always_inline, unused))

#if defined(__AVX512F__)
#define VL 16
#define OWN_ISA ASPEN_ISA_AVX512 /* isa.h */
#define ISA_AVX512 1
#elif defined(__AVX2__)
#define VL 8
#define OWN_ISA ASPEN_ISA_AVX2
#define ISA_AVX2 1
#else
#define VL 4
#define OWN_ISA ASPEN_ISA_PORTABLE
#define ISA_PORTABLE 1
#endif

typedef float vf __attribute__((vector_size(VL * 4), may_alias));
typedef int32_t vi __attribute__((vector_size(VL * 4), may_alias));
typedef float vf_u __attribute__((vector_size(VL * 4), may_alias, aligned(4)));
typedef int32_t vi_u __attribute__((vector_size(VL * 4), may_alias, aligned(4)));

/* ---- moving ---- */
#if VL == 16
INLINE vf vset1(float x) { return _mm512_set1_ps(x); }
INLINE vi viset1(int32_t x) { return (vi)_mm512_set1_epi32(x); }
#elif VL == 8
INLINE vf vset1(float x) { return _mm256_set1_ps(x); }
INLINE vi viset1(int32_t x) { return (vi)_mm256_set1_epi32(x); }
#else
INLINE vf vset1(float x) { return (vf){x, x, x, x}; }
INLINE vi viset1(int32_t x) { return (vi){x, x, x, x}; }
#endif
INLINE vf vzero(void) { return (vf){0}; }
INLINE vf vload(const float *p) { return *(const vf_u *)p; }
INLINE void vstore(float *p, vf v) { *(vf_u *)p = v; }
INLINE vi viload(const int32_t *p) { return *(const vi_u *)p; }
INLINE void vistore(int32_t *p, vi v) { *(vi_u *)p = v; }
INLINE vi vbits(vf v) { return (vi)v; }   /* reinterpretation */
INLINE vf vfrombits(vi v) { return (vf)v; }
INLINE vi vilanes(void) { /* 0, 1, 2 … */
  static const int32_t lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return viload(lanes);
}

/* Keep a value in a register: the compiler may otherwise load it again for each use. */
#if defined(__x86_64__)
#define VKEEP(v) __asm__("" : "+v"(v))
#elif defined(__aarch64__)
#define VKEEP(v) __asm__("" : "+w"(v))
#else
#define VKEEP(v) ((void)0)
#endif

/* Lanes 0 … n-1 (0 ≤ n; more than VL counts as VL), or from … to-1; lanes beyond are zero, or those of `fill`. */
#if VL == 16
INLINE __mmask16 vpart_(int64_t n) { return n >= VL ? 0xffff : (__mmask16)((1u << n) - 1); }
INLINE vf vload_part(const float *p, int64_t n) { return _mm512_maskz_loadu_ps(vpart_(n), p); }
INLINE vf vload_part_fill(const float *p, int64_t n, vf fill) { return _mm512_mask_loadu_ps(fill, vpart_(n), p); }
INLINE vf vload_between(const float *p, int64_t from, int64_t to, vf fill) {
  return _mm512_mask_loadu_ps(fill, (__mmask16)(vpart_(to) & ~vpart_(from)), p);
}
INLINE void vstore_part(float *p, vf v, int64_t n) { _mm512_mask_storeu_ps(p, vpart_(n), v); }
INLINE vi viload_part(const int32_t *p, int64_t n) { return (vi)_mm512_maskz_loadu_epi32(vpart_(n), p); }
INLINE void vistore_part(int32_t *p, vi v, int64_t n) { _mm512_mask_storeu_epi32(p, vpart_(n), (__m512i)v); }
#elif VL == 8
INLINE __m256i vpart_(int64_t n) { return _mm256_cmpgt_epi32(_mm256_set1_epi32(n >= VL ? VL : (int)n), (__m256i)vilanes()); }
INLINE vf vload_part(const float *p, int64_t n) { return _mm256_maskload_ps(p, vpart_(n)); }
INLINE vf vload_part_fill(const float *p, int64_t n, vf fill) {
  __m256i m = vpart_(n);
  return _mm256_blendv_ps(fill, _mm256_maskload_ps(p, m), (__m256)m);
}
INLINE vf vload_between(const float *p, int64_t from, int64_t to, vf fill) {
  const __m256i m = _mm256_andnot_si256(vpart_(from), vpart_(to));
  return _mm256_blendv_ps(fill, _mm256_maskload_ps(p, m), (__m256)m);
}
INLINE void vstore_part(float *p, vf v, int64_t n) { _mm256_maskstore_ps(p, vpart_(n), v); }
INLINE vi viload_part(const int32_t *p, int64_t n) { return (vi)_mm256_maskload_epi32(p, vpart_(n)); }
INLINE void vistore_part(int32_t *p, vi v, int64_t n) { _mm256_maskstore_epi32(p, vpart_(n), (__m256i)v); }
#else
INLINE vf vload_part_fill(const float *p, int64_t n, vf fill) {
  memcpy(&fill, p, (size_t)(n >= VL ? VL : n) * 4);
  return fill;
}
INLINE vf vload_between(const float *p, int64_t from, int64_t to, vf fill) {
  for (int64_t i = from; i < to && i < VL; i++) fill[i] = p[i];
  return fill;
}
INLINE vf vload_part(const float *p, int64_t n) { return vload_part_fill(p, n, vzero()); }
INLINE void vstore_part(float *p, vf v, int64_t n) { memcpy(p, &v, (size_t)(n >= VL ? VL : n) * 4); }
INLINE vi viload_part(const int32_t *p, int64_t n) {
  vi v = {0};
  memcpy(&v, p, (size_t)(n >= VL ? VL : n) * 4);
  return v;
}
INLINE void vistore_part(int32_t *p, vi v, int64_t n) { memcpy(p, &v, (size_t)(n >= VL ? VL : n) * 4); }
#endif

/* n lanes at a stride of `stride` elements (0 and negative allowed); lanes beyond n are zero. */
INLINE vf vload_strided(const float *p, int64_t stride, int64_t n) {
  float t[VL] __attribute__((aligned(64))) = {0};
  for (int64_t i = 0; i < n && i < VL; i++) t[i] = p[i * stride];
  return vload(t);
}
INLINE void vstore_strided(float *p, int64_t stride, vf v, int64_t n) {
  float t[VL] __attribute__((aligned(64)));
  vstore(t, v);
  for (int64_t i = 0; i < n && i < VL; i++) p[i * stride] = t[i];
}
/* base[index], index in elements. Indices must have been checked. */
INLINE vf vgather(const float *base, vi index) {
#if VL == 16
  return _mm512_i32gather_ps((__m512i)index, base, 4);
#elif VL == 8
  return _mm256_i32gather_ps(base, (__m256i)index, 4);
#else
  return (vf){base[index[0]], base[index[1]], base[index[2]], base[index[3]]};
#endif
}

/* ---- comparing and choosing ---- */
#if VL == 16
typedef __mmask16 vm;
INLINE vm vlt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
INLINE vm vle(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
INLINE vm veq(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
INLINE vm visnan(vf a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
INLINE vm vunordered(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q); } /* is either a NaN? */
INLINE vm vilt(vi a, vi b) { return _mm512_cmplt_epi32_mask((__m512i)a, (__m512i)b); }
INLINE vm vieq(vi a, vi b) { return _mm512_cmpeq_epi32_mask((__m512i)a, (__m512i)b); }
INLINE vm vm_and(vm a, vm b) { return a & b; }
INLINE vm vm_or(vm a, vm b) { return a | b; }
INLINE vm vm_not(vm a) { return (vm)~a; }
INLINE int vm_any(vm a) { return a != 0; }
INLINE vf vsel(vm m, vf yes, vf no) { return _mm512_mask_blend_ps(m, no, yes); }
INLINE vi visel(vm m, vi yes, vi no) { return (vi)_mm512_mask_blend_epi32(m, (__m512i)no, (__m512i)yes); }
#else
typedef vi vm; /* all ones or all zeros a lane */
#if VL == 8
INLINE vm vlt(vf a, vf b) { return (vm)_mm256_cmp_ps(a, b, _CMP_LT_OQ); }
INLINE vm vle(vf a, vf b) { return (vm)_mm256_cmp_ps(a, b, _CMP_LE_OQ); }
INLINE vm vunordered(vf a, vf b) { return (vm)_mm256_cmp_ps(a, b, _CMP_UNORD_Q); }
INLINE vf vsel(vm m, vf yes, vf no) { return _mm256_blendv_ps(no, yes, (__m256)m); }
INLINE int vm_any(vm a) { return _mm256_movemask_ps((__m256)a) != 0; }
#else
INLINE vm vlt(vf a, vf b) { return a < b; }
INLINE vm vle(vf a, vf b) { return a <= b; }
INLINE vm vunordered(vf a, vf b) { return (a != a) | (b != b); }
INLINE vf vsel(vm m, vf yes, vf no) { return (vf)((m & (vi)yes) | (~m & (vi)no)); }
INLINE int vm_any(vm a) { return (a[0] | a[1] | a[2] | a[3]) != 0; }
#endif
INLINE vm veq(vf a, vf b) { return a == b; }
INLINE vm visnan(vf a) { return a != a; }
INLINE vm vilt(vi a, vi b) { return a < b; }
INLINE vm vieq(vi a, vi b) { return a == b; }
INLINE vm vm_and(vm a, vm b) { return a & b; }
INLINE vm vm_or(vm a, vm b) { return a | b; }
INLINE vm vm_not(vm a) { return ~a; }
INLINE vi visel(vm m, vi yes, vi no) { return (m & yes) | (~m & no); }
#endif
INLINE vm vgt(vf a, vf b) { return vlt(b, a); }
INLINE vm vge(vf a, vf b) { return vle(b, a); }

/* ---- arithmetic beyond the operators ---- */
#if VL == 16
INLINE vf vfma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }   /* a b + c */
INLINE vf vfnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); } /* c - a b */
INLINE vf vmin(vf a, vf b) { return _mm512_min_ps(a, b); }
INLINE vf vmax(vf a, vf b) { return _mm512_max_ps(a, b); }
INLINE vf vsqrt(vf a) { return _mm512_sqrt_ps(a); }
INLINE vf vround(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); } /* ties to even */
INLINE vf vfloor(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
INLINE vf vceil(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC); }
INLINE vf vtrunc(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC); }
INLINE vi vtoi(vf a) { return (vi)_mm512_cvttps_epi32(a); } /* towards zero; |a| < 2^31 */
INLINE vf vfromi(vi a) { return _mm512_cvtepi32_ps((__m512i)a); }
#elif VL == 8
INLINE vf vfma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
INLINE vf vfnma(vf a, vf b, vf c) { return _mm256_fnmadd_ps(a, b, c); }
INLINE vf vmin(vf a, vf b) { return _mm256_min_ps(a, b); }
INLINE vf vmax(vf a, vf b) { return _mm256_max_ps(a, b); }
INLINE vf vsqrt(vf a) { return _mm256_sqrt_ps(a); }
INLINE vf vround(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE vf vfloor(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
INLINE vf vceil(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC); }
INLINE vf vtrunc(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC); }
INLINE vi vtoi(vf a) { return (vi)_mm256_cvttps_epi32(a); }
INLINE vf vfromi(vi a) { return _mm256_cvtepi32_ps((__m256i)a); }
#else
INLINE vf vfma(vf a, vf b, vf c) { return a * b + c; }
INLINE vf vfnma(vf a, vf b, vf c) { return c - a * b; }
INLINE vf vmin(vf a, vf b) { return vsel(a < b, a, b); }
INLINE vf vmax(vf a, vf b) { return vsel(a > b, a, b); }
INLINE vf vsqrt(vf a) { return (vf){__builtin_sqrtf(a[0]), __builtin_sqrtf(a[1]), __builtin_sqrtf(a[2]), __builtin_sqrtf(a[3])}; }
INLINE vi vtoi(vf a) { return __builtin_convertvector(a, vi); }
INLINE vf vfromi(vi a) { return __builtin_convertvector(a, vf); }
#endif
/* sum = vfma(a, b, sum) in a micro-kernel. Where sums fill the registers the instruction is spelled out. A compiler that may choose among
 * its forms lets the sums wander from register to register, with moves and spills between. That costs a tenth of a Zen 4's multipliers. */
#if VL == 8
#define VFMA_IN(sum, a, b) __asm__("vfmadd231ps %1, %2, %0" : "+x"(sum) : "x"(a), "x"(b))
#else
#define VFMA_IN(sum, a, b) ((sum) = vfma(a, b, sum))
#endif
INLINE vf vabs(vf a) { return vfrombits(vbits(a) & viset1(0x7fffffff)); }
INLINE vf vneg(vf a) { return vfrombits(vbits(a) ^ viset1(INT32_MIN)); }
INLINE vf vcopysign(vf magnitude, vf sign) {
  return vfrombits((vbits(magnitude) & viset1(0x7fffffff)) | (vbits(sign) & viset1(INT32_MIN)));
}
INLINE vf vmin_nan(vf a, vf b) { return vsel(visnan(a), a, vmin(a, b)); }
INLINE vf vmax_nan(vf a, vf b) { return vsel(visnan(a), a, vmax(a, b)); }
#if VL == 4 /* without rounding instructions: from 2^23 on every float is an integer */
INLINE vf vround(vf a) {
  const vf big = vset1(8388608.0f);
  return vsel(vlt(vabs(a), big), vcopysign((vabs(a) + big) - big, a), a);
}
INLINE vf vtrunc(vf a) {
  const vm small = vlt(vabs(a), vset1(8388608.0f));
  return vsel(small, vcopysign(vfromi(vtoi(vsel(small, a, vzero()))), a), a);
}
INLINE vf vfloor(vf a) {
  const vf t = vtrunc(a);
  return vsel(vgt(t, a), t - vset1(1), t);
}
INLINE vf vceil(vf a) {
  const vf t = vtrunc(a);
  return vsel(vlt(t, a), vcopysign(t + vset1(1), a), t);
}
#endif

/* ---- across lanes, in a fixed order: halves are combined until one lane is left ---- */
#if VL == 16
#define VEC_HALVES(v, COMBINE)                                                                                                     \
  v = COMBINE(v, __builtin_shuffle(v, (vi){8, 9, 10, 11, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15}));                          \
  v = COMBINE(v, __builtin_shuffle(v, (vi){4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7}));                                      \
  v = COMBINE(v, __builtin_shuffle(v, (vi){2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3}));                                      \
  v = COMBINE(v, __builtin_shuffle(v, (vi){1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}));
#elif VL == 8
#define VEC_HALVES(v, COMBINE)                                                                                                     \
  v = COMBINE(v, __builtin_shuffle(v, (vi){4, 5, 6, 7, 4, 5, 6, 7}));                                                              \
  v = COMBINE(v, __builtin_shuffle(v, (vi){2, 3, 2, 3, 2, 3, 2, 3}));                                                              \
  v = COMBINE(v, __builtin_shuffle(v, (vi){1, 1, 1, 1, 1, 1, 1, 1}));
#else
#define VEC_HALVES(v, COMBINE)                                                                                                     \
  v = COMBINE(v, __builtin_shuffle(v, (vi){2, 3, 2, 3}));                                                                          \
  v = COMBINE(v, __builtin_shuffle(v, (vi){1, 1, 1, 1}));
#endif
#define VEC_REDUCE(NAME, COMBINE)                                                                                                  \
  INLINE float NAME(vf v) {                                                                                                        \
    VEC_HALVES(v, COMBINE)                                                                                                         \
    return v[0];                                                                                                                   \
  }
#define VEC_ADD(a, b) ((a) + (b))
#define VEC_MUL(a, b) ((a) * (b))
VEC_REDUCE(vhadd, VEC_ADD)
VEC_REDUCE(vhmul, VEC_MUL)
VEC_REDUCE(vhmin, vmin_nan) /* NaN wins */
VEC_REDUCE(vhmax, vmax_nan)
#undef VEC_REDUCE

#endif
