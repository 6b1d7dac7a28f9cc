/* Shared by UNARY, BINARY and TERNARY: staging of blocks in the type they compute in (float16 and bfloat16 compute in float32). */
#ifndef ASPEN_ELEMENTWISE_H
#define ASPEN_ELEMENTWISE_H
#include "vector/half.h"
#include "vector/walk.h"
#include "vector/vec.h"

typedef struct {
  _Alignas(64) char bytes[ND_BLOCK * 16];
} elt_buffer;

static inline int elt_is_half(uint8_t dtype) { return dtype == ASPEN_DT_F16 || dtype == ASPEN_DT_BF16; }

/* Argument k of the block as a contiguous array of the computing type: itself, or a copy in buf, which belongs to this argument. */
static inline const void *elt_load(uint8_t dtype, const nd_walk *w, int k, elt_buffer *buf) {
  if (!elt_is_half(dtype)) return nd_stage(w, k, nd_size(dtype), buf->bytes);
  if (nd_walk_repeats(w, k)) return buf->bytes;
  const uint16_t *h = (const uint16_t *)nd_stage(w, k, 2, buf->bytes + ND_BLOCK * 4);
  if (dtype == ASPEN_DT_F16) f16_widen(w->count, (float *)buf->bytes, h);
  else bf16_widen(w->count, (float *)buf->bytes, h);
  return buf->bytes;
}

/* Where to compute the block of the output; elt_store takes it home. */
static inline void *elt_target(uint8_t dtype, const nd_walk *w, elt_buffer *buf) {
  return elt_is_half(dtype) ? (void *)buf->bytes : nd_target(w, nd_size(dtype), buf->bytes);
}

static inline void elt_store(uint8_t dtype, const nd_walk *w, elt_buffer *buf) {
  if (!elt_is_half(dtype)) {
    nd_commit(w, nd_size(dtype), buf->bytes);
    return;
  }
  char *narrow = buf->bytes + ND_BLOCK * 4;
  uint16_t *h = (uint16_t *)nd_target(w, 2, narrow);
  if (dtype == ASPEN_DT_F16) f16_narrow(w->count, h, (const float *)buf->bytes);
  else bf16_narrow(w->count, h, (const float *)buf->bytes);
  nd_commit(w, 2, narrow);
}

/* out[i] = op(in[i]) for n contiguous elements; in may be out. Not for the half types. Returns an enum aspen_kernel_error. */
int FN(unary_row)(uint8_t dtype, int op, double a, double b, int64_t n, void *out, const void *in);

#endif
