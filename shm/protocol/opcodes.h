/* Names of everything that a plan may ask a worker to do: kernels, scalar functions, data types, operand spaces.
 *
 * Each list is an X-macro and is the only definition: C enums, the Python tables of aspen_mp.shm, the worker's dispatch table and
 * the plan validator are all made from it. Numbers are part of the plan format: append, never reorder.
 */
#ifndef ASPEN_OPCODES_H
#define ASPEN_OPCODES_H

/* DTYPE(NAME, code, bytes, numpy name) */
#define ASPEN_DTYPES(X)                                                                                                            \
  X(NONE, 0, 0, "")                                                                                                                \
  X(F32, 1, 4, "float32")                                                                                                          \
  X(F64, 2, 8, "float64")                                                                                                          \
  X(F16, 3, 2, "float16")                                                                                                          \
  X(BF16, 4, 2, "bfloat16")                                                                                                        \
  X(I8, 5, 1, "int8")                                                                                                              \
  X(U8, 6, 1, "uint8")                                                                                                             \
  X(I16, 7, 2, "int16")                                                                                                            \
  X(U16, 8, 2, "uint16")                                                                                                           \
  X(I32, 9, 4, "int32")                                                                                                            \
  X(U32, 10, 4, "uint32")                                                                                                          \
  X(I64, 11, 8, "int64")                                                                                                           \
  X(U64, 12, 8, "uint64")                                                                                                          \
  X(BOOL, 13, 1, "bool")                                                                                                           \
  X(C64, 14, 8, "complex64")                                                                                                       \
  X(C128, 15, 16, "complex128")                                                                                                    \
  X(OBJECT, 16, 1, "object") /* a serialised value (strings, sequences, values of unknown shape); see aspen_mp.shm.values */

/* Where an operand's bytes live. WEIGHTS + i is the plan's i-th weight segment. */
#define ASPEN_SPACES(X)                                                                                                            \
  X(ARENA, 0)   /* the instance's arena segment: activations */                                                                    \
  X(REQUEST, 1) /* the request's region in a client's data segment: inputs (read) and outputs (written) */                         \
  X(PLAN, 2)    /* constants inside the plan segment */                                                                            \
  X(WEIGHTS, 3)

/* KERNEL(NAME, code, fewest inputs, most inputs, number of i64 parameters, number of outputs; OPAQUE has any)
 * Parameters, outputs: 65535 (ASPEN_ANY_PARAMS, ASPEN_ANY_OUTPUTS) is any number. Outputs come first, inputs follow. Boxes of tiles are of output 0. A missing optional input has dtype NONE.
 * Meaning of inputs and parameters: workers/kernels/kernel.h. */
#define ASPEN_KERNELS(X)                                                                                                           \
  X(JOIN, 0, 0, 0, 0, 0)    /* no work: keeps edge counts linear */                                                                \
  X(END, 1, 0, 0, 0, 0)     /* no work: the last tile of every plan; executing it completes the request */                         \
  X(OPAQUE, 2, 0, 255, 0, 0) /* any sub-graph, through onnx.reference, by the worker's Python side */                              \
  X(GEMM, 3, 2, 7, 8, 1)                                                                                                           \
  X(CONV, 4, 2, 8, 20, 1)                                                                                                          \
  X(DWCONV, 5, 2, 6, 20, 1)                                                                                                        \
  X(POOL, 6, 1, 3, 15, 1)                                                                                                          \
  X(UNARY, 7, 1, 1, 3, 1)                                                                                                          \
  X(BINARY, 8, 2, 2, 4, 1)                                                                                                         \
  X(TERNARY, 9, 3, 3, 4, 1)                                                                                                        \
  X(CAST, 10, 1, 1, 1, 1)                                                                                                          \
  X(COPY, 11, 1, 1, 0, 1)                                                                                                          \
  X(PAD, 12, 1, 2, 10, 1)                                                                                                          \
  X(REDUCE, 13, 1, 1, 2, 1)                                                                                                        \
  X(ARGREDUCE, 14, 1, 1, 4, 1)                                                                                                     \
  X(SOFTMAX, 15, 1, 1, 2, 1)                                                                                                       \
  X(NORM, 16, 1, 3, 3, 1)                                                                                                          \
  X(LRN, 17, 1, 1, 4, 1)                                                                                                           \
  X(GATHER, 18, 2, 2, 1, 1)                                                                                                        \
  X(GATHER_ELEMENTS, 19, 2, 2, 1, 1)                                                                                               \
  X(RESIZE, 20, 1, 1, 20, 1)                                                                                                       \
  X(CUMSUM, 21, 1, 1, 3, 1)                                                                                                        \
  X(WINO, 22, 2, 6, 21, 1)                                                                                                         \
  X(ATTENTION, 23, 3, 4, 8, 1)                                                                                                     \
  X(PWDW, 24, 4, 5, 14, 1)                                                                                                         \
  X(STRASSEN, 25, 1, 1, 0, 1)                                                                                                      \
  X(TOPK, 26, 1, 1, 2, 1)                                                                                                          \
  X(INDEX, 27, 1, 1, 9, 1)                                                                                                         \
  X(SCATTER, 28, 3, 3, 2, 1)                                                                                                       \
  X(LSTM, 29, 2, 4, 3, 2)                                                                                                          \
  X(GRU, 30, 2, 4, 3, 1)                                                                                                           \
  X(RNN, 31, 2, 3, 3, 1)                                                                                                           \
  X(MOMENTS, 32, 1, 1, 0, 1)                                                                                                       \
  X(STANDARDIZE, 33, 2, 5, 4, 1)                                                                                                   \
  X(GRIDSAMPLE, 34, 2, 2, 3, 1)                                                                                                    \
  X(ROIALIGN, 35, 3, 3, 4, 1)                                                                                                      \
  X(DEFORM, 36, 2, 3, 10, 1)                                                                                                       \
  X(QGEMM, 37, 2, 6, 9, 1)                                                                                                         \
  X(QUANTIZE, 38, 2, 3, 1, 1)                                                                                                      \
  X(DEQUANTIZE, 39, 2, 3, 0, 1)                                                                                                    \
  X(MINMAX, 40, 1, 1, 1, 1)                                                                                                        \
  X(QPARAMS, 41, 1, 1, 0, 2)                                                                                                       \
  X(QCONV, 42, 2, 6, 17, 1)                                                                                                        \
  X(QNBITGEMM, 43, 2, 7, 9, 1)                                                                                                     \
  X(BCONV, 44, 2, 8, 16, 1)                                                                                                        \
  X(BGEMM, 45, 2, 6, 6, 1)                                                                                                         \
  X(TREES, 46, 3, 5, 3, 1)                                                                                                         \
  X(SCORES, 47, 1, 1, 2, 1)                                                                                                        \
  X(LABELS, 48, 2, 2, 3, 1)                                                                                                        \
  X(RBF, 49, 2, 2, 1, 1)                                                                                                           \
  X(DUELS, 50, 4, 4, 0, 1)                                                                                                         \
  X(COUPLE, 51, 3, 3, 0, 1)                                                                                            \
  X(DGEMM, 52, 2, 3, 5, 1)                                                                                                         \
  X(STACK, 53, 1, 100, 65535, 65535) /* any number of parameters and outputs */                                                    \
  X(LOOKUP, 54, 2, 2, 0, 1)                                                                                                        \
  X(QDWCONV, 55, 2, 6, 17, 1)                                                                                                      \
  X(QPACK, 56, 1, 2, 0, 1)                                                                                                         \
  X(QMATMUL, 57, 2, 6, 9, 1)                                                                                                       \
  X(QBINARY, 58, 2, 2, 10, 1)                                                                                                      \
  X(REACH, 59, 1, 65, 65535, 2)                                                                                                    \
  X(MOVED, 60, 3, 3, 1, 3)                                                                                                         \
  X(REFRESH, 61, 3, 3, 1, 1)

/* Scalar functions of one argument; a, b are the function's two parameters. Also the activations of GEMM, CONV and BINARY epilogues. */
#define ASPEN_UNARY(X)                                                                                                             \
  X(IDENTITY, 0) X(ABS, 1) X(NEG, 2) X(EXP, 3) X(LOG, 4) X(SQRT, 5) X(RECIPROCAL, 6) X(SIGMOID, 7) X(TANH, 8) X(ERF, 9)             \
  X(RELU, 10) X(LEAKY_RELU, 11)    /* x < 0 ? a x : x */                                                                           \
  X(ELU, 12)                       /* x < 0 ? a (e^x - 1) : x */                                                                   \
  X(SELU, 13)                      /* b (x < 0 ? a (e^x - 1) : x) */                                                               \
  X(CELU, 14) X(GELU_ERF, 15) X(GELU_TANH, 16)                                                                                     \
  X(SWISH, 17)                     /* x sigmoid(a x); SiLU has a = 1 */                                                            \
  X(HARD_SIGMOID, 18)              /* max(0, min(1, a x + b)) */                                                                   \
  X(HARD_SWISH, 19) X(SOFTPLUS, 20) X(SOFTSIGN, 21) X(MISH, 22)                                                                    \
  X(THRESHOLDED_RELU, 23)          /* x > a ? x : 0 */                                                                             \
  X(SHRINK, 24)                    /* x < -a ? x + b : x > a ? x - b : 0 */                                                        \
  X(CLIP, 25)                      /* min(max(x, a), b) */                                                                         \
  X(CEIL, 26) X(FLOOR, 27) X(ROUND, 28) X(SIGN, 29) X(SIN, 30) X(COS, 31) X(TAN, 32) X(ASIN, 33) X(ACOS, 34) X(ATAN, 35)            \
  X(SINH, 36) X(COSH, 37) X(ASINH, 38) X(ACOSH, 39) X(ATANH, 40) X(NOT, 41) X(ISNAN, 42)                                           \
  X(ISINF, 43)                     /* a: detect negative, b: detect positive */                                                    \
  X(BIT_NOT, 44) X(SQUARE, 45)                                                                                                     \
  X(FAKE_QUANTIZE, 46)             /* a min(max(round(x / a), b), b + 255): the nearest of 256 levels, a apart */

#define ASPEN_BINARY(X)                                                                                                            \
  X(ADD, 0) X(SUB, 1) X(MUL, 2) X(DIV, 3) X(POW, 4) X(MIN, 5) X(MAX, 6)                                                            \
  X(MOD, 7)  /* sign of the divisor (Python) */                                                                                    \
  X(FMOD, 8) /* sign of the dividend (C) */                                                                                        \
  X(AND, 9) X(OR, 10) X(XOR, 11) X(EQUAL, 12) X(LESS, 13) X(LESS_EQUAL, 14) X(GREATER, 15) X(GREATER_EQUAL, 16)                    \
  X(PRELU, 17) /* x < 0 ? x y : x */                                                                                               \
  X(BIT_AND, 18) X(BIT_OR, 19) X(BIT_XOR, 20) X(SHIFT_LEFT, 21) X(SHIFT_RIGHT, 22)

#define ASPEN_TERNARY(X)                                                                                                           \
  X(WHERE, 0) /* in0 (bool) ? in1 : in2 */                                                                                         \
  X(FMA, 1)   /* in0 * in1 + in2 */                                                                                                \
  X(CLAMP, 2) /* min(max(in0, in1), in2) */

#define ASPEN_REDUCE(X)                                                                                                            \
  X(SUM, 0) X(MEAN, 1) X(MAX, 2) X(MIN, 3) X(PROD, 4) X(L1, 5) X(L2, 6) X(SUM_SQUARE, 7) X(LOG_SUM, 8) X(LOG_SUM_EXP, 9)

#define ASPEN_PAD_MODES(X) X(CONSTANT, 0) X(REFLECT, 1) X(EDGE, 2) X(WRAP, 3)

enum aspen_dtype {
#define X(n, c, b, s) ASPEN_DT_##n = c,
  ASPEN_DTYPES(X)
#undef X
};
enum aspen_space {
#define X(n, c) ASPEN_SPACE_##n = c,
  ASPEN_SPACES(X)
#undef X
};
enum aspen_kernel_id {
#define X(n, c, lo, hi, p, o) ASPEN_K_##n = c,
  ASPEN_KERNELS(X)
#undef X
  ASPEN_N_KERNELS
};
enum aspen_unary {
#define X(n, c) ASPEN_U_##n = c,
  ASPEN_UNARY(X)
#undef X
};
enum aspen_binary {
#define X(n, c) ASPEN_B_##n = c,
  ASPEN_BINARY(X)
#undef X
};
enum aspen_ternary {
#define X(n, c) ASPEN_T_##n = c,
  ASPEN_TERNARY(X)
#undef X
};
enum aspen_reduce {
#define X(n, c) ASPEN_R_##n = c,
  ASPEN_REDUCE(X)
#undef X
};
enum aspen_pad_mode {
#define X(n, c) ASPEN_PAD_##n = c,
  ASPEN_PAD_MODES(X)
#undef X
};

#endif
