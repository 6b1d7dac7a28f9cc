/* The end of a kernel's sums while they are in registers: bias, residual, activation, scale and shift, residual.
 *
 *   y = f(alpha * sum + bias [+ residual]) [* scale + shift] [+ residual, or * residual]
 *
 * The residual is added once, before or after the activation (`residual_last`). Each step is one rounded operation of vec.h (scale and
 * shift one vfma), so whoever follows this order gets the bits of everyone else. Activations of few instructions run on the vectors. The
 * others go through act.h, by way of a buffer in L1, where they share one loop. Either way the bits are those of UNARY.
 */
#ifndef ASPEN_EPILOGUE_H
#define ASPEN_EPILOGUE_H
#include "elementwise/act.h"
#include "vector/stores.h"

enum epilogue_kind {
  EPILOGUE_NONE,
  EPILOGUE_RELU,
  EPILOGUE_CLIP,
  EPILOGUE_LEAKY,
  EPILOGUE_HARD_SIGMOID,
  EPILOGUE_HARD_SWISH,
  EPILOGUE_FAKE_QUANTIZE,
  EPILOGUE_CALL,
};

typedef struct epilogue {
  int64_t act;
  float a, b;
  uint8_t kind;          /* enum epilogue_kind */
  uint8_t residual_last; /* the residual comes after the activation … */
  uint8_t gated;         /* … and is multiplied with, not added */
  uint8_t past;          /* whole lines of the output go past the caches (stores.h) */
} epilogue;

/* From an ACT parameter triple and residual_last: 0, 1 or 2 (gated). Returns 0, or ASPEN_KERNEL_BAD_ARGUMENT for a function without an f32
 * form. */
int FN(epilogue_open)(epilogue *e, int64_t act, double a, double b, int64_t residual_last);

/* Inputs `i` and `i` + 1 of a call, scale and shift: f32 of n contiguous elements each, or both absent and NULL. Returns 0, or
 * ASPEN_KERNEL_BAD_ARGUMENT. */
INLINE int epilogue_scale(const aspen_call *c, uint32_t i, int64_t n, const float **scale, const float **shift) {
  *scale = *shift = NULL;
  const aspen_arg *s = &c->args[1 + i];
  if (c->n_inputs <= i || !s->dtype) return 0;
  if (c->n_inputs < i + 2) return ASPEN_KERNEL_BAD_ARGUMENT;
  for (int k = 0; k < 2; k++)
    if (s[k].dtype != ASPEN_DT_F32 || s[k].rank != 1 || s[k].dims[0] != n || (n > 1 && s[k].strides[0] != 1)) return ASPEN_KERNEL_BAD_ARGUMENT;
  *scale = (const float *)s[0].ptr, *shift = (const float *)s[1].ptr;
  return 0;
}

#define EPILOGUE_EACH(EXPRESSION)                                                                                                  \
  do {                                                                                                                             \
    _Pragma("GCC unroll 32") for (int i = 0; i < n; i++) {                                                                         \
      const vf x = y[i];                                                                                                           \
      y[i] = EXPRESSION;                                                                                                           \
    }                                                                                                                              \
  } while (0)

/* f of n vectors, n a constant: the caller's array stays in registers. The expressions are those of act.c. */
INLINE void epilogue_act(const epilogue *e, vf *y, const int n) {
  const vf va = vset1(e->a), vb = vset1(e->b);
  switch (e->kind) {
  case EPILOGUE_NONE: break;
  case EPILOGUE_RELU: EPILOGUE_EACH(act_relu(x)); break;
  case EPILOGUE_CLIP: EPILOGUE_EACH(act_clip(x, va, vb)); break;
  case EPILOGUE_LEAKY: EPILOGUE_EACH(act_leaky_relu(x, va)); break;
  case EPILOGUE_HARD_SIGMOID: EPILOGUE_EACH(act_hard_sigmoid(x, va, vb)); break;
  case EPILOGUE_HARD_SWISH: EPILOGUE_EACH(act_hard_swish(x)); break;
  case EPILOGUE_FAKE_QUANTIZE: EPILOGUE_EACH(act_fake_quantize(x, va, vb)); break;
  default: {
    float t[32 * VL] __attribute__((aligned(64)));
#pragma GCC unroll 32
    for (int i = 0; i < n; i++) vstore(t + i * VL, y[i]);
    FN(act)(e->act, e->a, e->b, t, t, n * VL);
#pragma GCC unroll 32
    for (int i = 0; i < n; i++) y[i] = vload(t + i * VL);
  }
  }
}

#endif
