/* Scalar functions of one f32 over an array: see act.h. */
#include "vector/epilogue.h"

#include "elementwise/functions.h"
#include "vector/vlog.h"
#include "vector/vmath.h"

/* One loop a function: the switch stays outside, the tail runs through the same expression. */
#define EACH(EXPRESSION)                                                                                                           \
  do {                                                                                                                             \
    int64_t i = 0;                                                                                                                 \
    for (; i + VL <= n; i += VL) {                                                                                                 \
      const vf x = vload(in + i);                                                                                                  \
      vstore(out + i, EXPRESSION);                                                                                                 \
    }                                                                                                                              \
    if (i < n) {                                                                                                                   \
      const vf x = vload_part(in + i, n - i);                                                                                      \
      vstore_part(out + i, EXPRESSION, n - i);                                                                                     \
    }                                                                                                                              \
    return 0;                                                                                                                      \
  } while (0)

int FN(act)(int64_t opcode, float a, float b, const float *in, float *out, int64_t n) {
  const vf va = vset1(a), vb = vset1(b), zero = vzero(), one = vset1(1);
  switch (opcode) {
  case ASPEN_U_IDENTITY:
    if (in != out) memmove(out, in, (size_t)n * sizeof *out);
    return 0;
  case ASPEN_U_ABS: EACH(vabs(x));
  case ASPEN_U_NEG: EACH(vneg(x));
  case ASPEN_U_EXP: EACH(vexp(x));
  case ASPEN_U_SQRT: EACH(vsqrt(x));
  case ASPEN_U_RECIPROCAL: EACH(one / x);
  case ASPEN_U_SIGMOID: EACH(vsigmoid(x));
  case ASPEN_U_TANH: EACH(vtanh(x));
  case ASPEN_U_ERF: EACH(verf(x));
  case ASPEN_U_RELU: EACH(act_relu(x));
  case ASPEN_U_LEAKY_RELU: EACH(act_leaky_relu(x, va));
  case ASPEN_U_GELU_ERF: EACH(vgelu_erf(x));
  case ASPEN_U_GELU_TANH: EACH(vgelu_tanh(x));
  case ASPEN_U_SWISH: EACH(vswish(x, va));
  case ASPEN_U_HARD_SIGMOID: EACH(act_hard_sigmoid(x, va, vb));
  case ASPEN_U_HARD_SWISH: EACH(act_hard_swish(x));
  case ASPEN_U_FAKE_QUANTIZE: EACH(act_fake_quantize(x, va, vb));
  case ASPEN_U_CLIP: EACH(act_clip(x, va, vb));
  case ASPEN_U_SQUARE: EACH(x * x);
  case ASPEN_U_LOG: EACH(vlog(x));
  case ASPEN_U_ELU: EACH(vsel(vlt(x, zero), va * vexpm1(x), x));
  case ASPEN_U_SELU: EACH(vb * vsel(vlt(x, zero), va * vexpm1(x), x));
  case ASPEN_U_CELU: EACH(vsel(vlt(x, zero), va * vexpm1(x / va), x));
  case ASPEN_U_SOFTPLUS: EACH(vsoftplus(x));
  case ASPEN_U_SOFTSIGN: EACH(x / (one + vabs(x)));
  case ASPEN_U_MISH: EACH(vmish(x));
  case ASPEN_U_THRESHOLDED_RELU: EACH(vsel(vgt(x, va), x, zero));
  case ASPEN_U_SHRINK: EACH(vsel(vlt(x, vneg(va)), x + vb, vsel(vgt(x, va), x - vb, zero)));
  case ASPEN_U_CEIL: EACH(vceil(x));
  case ASPEN_U_FLOOR: EACH(vfloor(x));
  case ASPEN_U_ROUND: EACH(vround(x));
  case ASPEN_U_SIGN: EACH(vsel(vlt(x, zero), -one, vsel(vgt(x, zero), one, x)));
  default: return FN(functions)(opcode, in, out, n);
  }
}

int FN(epilogue_open)(epilogue *e, int64_t act, double a, double b, int64_t residual_last) {
  *e = (epilogue){.act = act, .a = (float)a, .b = (float)b, .residual_last = residual_last != 0, .gated = residual_last == 2};
  switch (act) {
  case ASPEN_U_IDENTITY: e->kind = EPILOGUE_NONE; break;
  case ASPEN_U_RELU: e->kind = EPILOGUE_RELU; break;
  case ASPEN_U_CLIP: e->kind = EPILOGUE_CLIP; break;
  case ASPEN_U_LEAKY_RELU: e->kind = EPILOGUE_LEAKY; break;
  case ASPEN_U_HARD_SIGMOID: e->kind = EPILOGUE_HARD_SIGMOID; break;
  case ASPEN_U_HARD_SWISH: e->kind = EPILOGUE_HARD_SWISH; break;
  case ASPEN_U_FAKE_QUANTIZE: e->kind = EPILOGUE_FAKE_QUANTIZE; break;
  default: {
    float probe = 0;
    e->kind = EPILOGUE_CALL;
    if (FN(act)(act, e->a, e->b, &probe, &probe, 1)) return ASPEN_KERNEL_BAD_ARGUMENT;
  }
  }
  return 0;
}
