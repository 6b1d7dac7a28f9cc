/* Scalar functions of one f32 (the UNARY list of opcodes.h) over an array. UNARY and the epilogues of GEMM, CONV, DWCONV and BINARY share
 * this one implementation: an activation has the same bits, fused or not.
 */
#ifndef ASPEN_ACT_H
#define ASPEN_ACT_H
#include "kernel.h"
#include "vector/vec.h"

/* out[i] = f(in[i]) for n contiguous elements; out may be in. Returns 0, or ASPEN_KERNEL_BAD_ARGUMENT for a function without an f32
 * form. */
int FN(act)(int64_t opcode, float a, float b, const float *in, float *out, int64_t n);

/* The functions that are few enough instructions to run on vectors in registers: one spelling for act.c and for epilogues. */
INLINE vf act_relu(vf x) { return vmax(vzero(), x); }
INLINE vf act_clip(vf x, vf a, vf b) { return vmin(b, vmax(a, x)); }
INLINE vf act_leaky_relu(vf x, vf a) { return vsel(vlt(x, vzero()), a * x, x); }
INLINE vf act_hard_sigmoid(vf x, vf a, vf b) { return vmax(vzero(), vmin(vset1(1), a * x + b)); }
/* NaN becomes the lowest level, as in QUANTIZE */
INLINE vf act_fake_quantize(vf x, vf a, vf b) { return a * vmin(b + vset1(255), vmax(vround(x / a), b)); }
INLINE vf act_hard_swish(vf x) { return x * vmax(vzero(), vmin(vset1(1), x * vset1(1.0f / 6) + vset1(0.5f))); }

#endif
