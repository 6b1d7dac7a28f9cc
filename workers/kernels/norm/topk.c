/* TOPK: places of the k greatest (or least) elements of an axis, best first. The first of equal ones comes first, and a NaN is greater than
 * every number. The result is defined by that order alone, so it does not show how it was found. A heap holds the best so far, its worst on
 * top. */
#include "vector/nd.h"
#include "vector/vec.h"

/* An element as a number that is the smaller the better it is, ties by where it is. */
typedef struct { uint64_t key; int64_t at; } entry;

static inline int worse(entry a, entry b) { return a.key != b.key ? a.key > b.key : a.at > b.at; }

static inline uint64_t key_signed(int64_t v) { return (uint64_t)v ^ (1ull << 63); }
static inline uint64_t key_unsigned(uint64_t v) { return v; }
static inline uint64_t key_f64(double v) {
  uint64_t bits;
  if (v != v) return UINT64_MAX;
  v += 0.0; /* -0 equals 0 */
  memcpy(&bits, &v, 8);
  return bits >> 63 ? ~bits : bits | 1ull << 63;
}
/* The key of a half float in the same order: sign and magnitude, NaN above `infinity`. */
static inline uint64_t key_half(uint16_t v, uint16_t infinity) {
  const uint16_t magnitude = v & 0x7fff;
  if (magnitude > infinity) return UINT64_MAX;
  return key_signed(v & 0x8000 ? -(int64_t)magnitude : (int64_t)magnitude);
}

static void sift_down(entry *heap, int64_t n, int64_t i, entry e) {
  for (;;) {
    int64_t child = 2 * i + 1;
    if (child >= n) break;
    if (child + 1 < n && worse(heap[child + 1], heap[child])) child++;
    if (!worse(heap[child], e)) break;
    heap[i] = heap[child];
    i = child;
  }
  heap[i] = e;
}

static void make_heap(entry *heap, int64_t n) {
  for (int64_t i = n / 2 - 1; i >= 0; i--) sift_down(heap, n, i, heap[i]);
}

/* The types served: X(suffix, C type, dtype, key). */
#define NUMBERS(X)                                                                                                       \
  X(f32, float, F32, key_f64(v)) X(f64, double, F64, key_f64(v)) X(f16, uint16_t, F16, key_half(v, 0x7c00))              \
  X(bf16, uint16_t, BF16, key_half(v, 0x7f80)) X(i8, int8_t, I8, key_signed(v)) X(u8, uint8_t, U8, key_unsigned(v))      \
  X(i16, int16_t, I16, key_signed(v)) X(u16, uint16_t, U16, key_unsigned(v)) X(i32, int32_t, I32, key_signed(v))         \
  X(u32, uint32_t, U32, key_unsigned(v)) X(i64, int64_t, I64, key_signed(v)) X(u64, uint64_t, U64, key_unsigned(v))

/* Fills the heap with the k best of n elements. `flip`: all ones where the greatest are best. An element is read once: what a hostile
 * client changes meanwhile makes the result wrong, never the heap. */
#define SELECT_TYPE(S, T, D, KEY)                                                                                        \
  static void select_##S(entry *heap, int64_t k, const char *p, int64_t step, int64_t n, uint64_t flip) {                \
    for (int64_t i = 0; i < n; i++) {                                                                                    \
      const T v = *(const T *)(p + i * step);                                                                            \
      const entry e = {(KEY) ^ flip, i};                                                                                 \
      if (i < k) {                                                                                                       \
        heap[i] = e;                                                                                                     \
        if (i == k - 1) make_heap(heap, k);                                                                              \
      } else if (e.key < heap[0].key) {                                                                                  \
        sift_down(heap, k, 0, e);                                                                                        \
      }                                                                                                                  \
    }                                                                                                                    \
  }
NUMBERS(SELECT_TYPE)

#ifdef ISA_PORTABLE
size_t aspen_scratch_topk(const aspen_call *c) {
  const int axis = (int)c->params[0];
  return axis >= 0 && axis < c->args[0].rank ? (size_t)c->args[0].dims[axis] * sizeof(entry) : 0;
}
#endif

int FN(topk)(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *x = &c->args[1];
  const int axis = (int)c->params[0];
  if (out->dtype != ASPEN_DT_I64 || out->rank != x->rank || axis < 0 || axis >= out->rank) return ASPEN_KERNEL_BAD_ARGUMENT;
  const int64_t k = out->dims[axis], n = x->dims[axis];
  const int64_t along = x->strides[axis] * (int64_t)nd_size(x->dtype), apart = out->strides[axis] * 8;
  const uint64_t flip = c->params[1] ? UINT64_MAX : 0;
  if (k > n) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (c->scratch_bytes < (size_t)k * sizeof(entry)) return ASPEN_KERNEL_SCRATCH;
  entry *heap = c->scratch;
  enum { OUT, X };
  nd it;
  nd_begin(&it, 2);
  it.ptr[OUT] = out->ptr, it.ptr[X] = x->ptr;
  for (int a = 0; a < out->rank; a++) {
    if (c->hi[a] <= c->lo[a]) return ASPEN_KERNEL_OK;
    if (a == axis) continue;
    const int64_t strides[2] = {out->strides[a] * 8, x->strides[a] * (int64_t)nd_size(x->dtype)};
    for (int j = 0; j < 2; j++) it.ptr[j] += c->lo[a] * strides[j];
    nd_add_axis(&it, c->hi[a] - c->lo[a], strides);
  }
  if (!nd_order(&it)) return ASPEN_KERNEL_OK;
  const int64_t row = nd_row(&it);
  do {
    for (int64_t i = 0; i < row; i++) {
      const char *p = it.ptr[X] + i * nd_step(&it, X);
      switch (x->dtype) {
#define CASE(S, T, D, KEY) case ASPEN_DT_##D: select_##S(heap, k, p, along, n, flip); break;
        NUMBERS(CASE)
#undef CASE
        default: return ASPEN_KERNEL_BAD_ARGUMENT;
      }
      char *o = it.ptr[OUT] + i * nd_step(&it, OUT);
      for (int64_t left = k; left > 0; left--) { /* the worst goes last */
        const entry worst = heap[0];
        sift_down(heap, left - 1, 0, heap[left - 1]);
        if (left - 1 >= c->lo[axis] && left - 1 < c->hi[axis]) *(int64_t *)(o + (left - 1) * apart) = worst.at;
      }
    }
  } while (nd_next(&it));
  return ASPEN_KERNEL_OK;
}
