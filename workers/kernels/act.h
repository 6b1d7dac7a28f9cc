/* Scalar functions of one f32 (the UNARY list of opcodes.h) over an array. The one implementation that UNARY and the epilogues of GEMM,
 * CONV, DWCONV and BINARY share: an activation has the same bits whether it was fused or not.
 */
#ifndef ASPEN_ACT_H
#define ASPEN_ACT_H
#include "kernel.h"
#include "vec.h"

/* out[i] = f(in[i]) for n contiguous elements; out may be in. Returns 0, or ASPEN_KERNEL_BAD_ARGUMENT for a function without an f32
 * form. */
int FN(act)(int64_t opcode, float a, float b, const float *in, float *out, int64_t n);

/* Whether f(x) is min(max(x, *low), *high) to the bit, NaN included; if so, epilogues do it in registers. */
static inline int act_clamps(int64_t opcode, float a, float b, float *low, float *high) {
  *low = opcode == ASPEN_U_RELU ? 0.0f : opcode == ASPEN_U_CLIP ? a : -__builtin_inff();
  *high = opcode == ASPEN_U_CLIP ? b : __builtin_inff();
  return opcode == ASPEN_U_IDENTITY || opcode == ASPEN_U_RELU || opcode == ASPEN_U_CLIP;
}

#endif
