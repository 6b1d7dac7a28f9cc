/* Functions of f32 computed in f64 (wide.h), and e^x of f64, over arrays. */
#ifndef ASPEN_FUNCTIONS_H
#define ASPEN_FUNCTIONS_H
#include "kernel.h"
#include "vector/vec.h"

/* out[i] = f(in[i]) for n contiguous elements; out may be in. Returns 0, or ASPEN_KERNEL_BAD_ARGUMENT for a function that is not here. */
int FN(functions)(int64_t opcode, const float *in, float *out, int64_t n);

/* out[i] = a[i] ^ b[i]; out may be either. */
void FN(power)(const float *a, const float *b, float *out, int64_t n);

/* out[i] = e^in[i] in f64, within an ulp; out may be in. */
void FN(exp_f64)(const double *in, double *out, int64_t n);

#endif
