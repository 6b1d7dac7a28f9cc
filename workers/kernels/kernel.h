/* The contract between the scheduling engine and the kernels.
 *
 * A kernel computes one tile: the box [lo, hi) of its output, in the output's logical axes (ONNX order: N, C, H, W …).
 * Rules that hold for every kernel:
 *  - Any strides: strides are in elements, may be 0 (broadcast, inputs only) or negative. Fast paths may ask for more, results may not.
 *  - A value of the output depends on the inputs alone, never on the box it was computed in. Its operations and their order are the same
 *    whatever the tile, head or tail of a vector. So results are bit-identical for every tiling and worker count.
 *  - The whole box is overwritten, nothing outside it is touched, inputs are never written (RECOVERY: executing twice is harmless).
 *  - Inputs may be changed by a hostile client while the kernel runs: every index read from a tensor is checked when it is used.
 *  - Stores that the processor does not order with others (stores.h) are fenced before the kernel returns.
 *  - No allocation, no I/O, no locks. `scratch` holds at least as many bytes as <family>_scratch() asked for.
 *  - Returns 0, or an enum aspen_kernel_error.
 */
#ifndef ASPEN_KERNEL_H
#define ASPEN_KERNEL_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "dispatch/isa.h"
#include "numbers.h"
#include "opcodes.h"

#define ASPEN_MAX_RANK 8

typedef struct aspen_arg {
  char *ptr;            /* first element (logical index 0, 0, …) */
  const int64_t *dims;  /* rank entries */
  const int64_t *strides; /* rank entries, in elements */
  uint8_t dtype;        /* enum aspen_dtype; NONE: argument absent */
  uint8_t rank;
  uint32_t ring; /* > 0: row r (axis 2) lies where row r % ring would; only between steps of STACK, for kernels that say they read it */
} aspen_arg;

typedef struct aspen_call {
  const aspen_arg *args; /* args[0] is the output, further outputs follow (LSTM has two), then the inputs */
  uint32_t n_inputs;
  const int64_t *params; /* see below; floating-point parameters are the bits of a double */
  int64_t lo[ASPEN_MAX_RANK], hi[ASPEN_MAX_RANK]; /* box of the first output, rank entries */
  void *scratch;         /* 64-byte aligned, private to the worker */
  size_t scratch_bytes;
  /* 1: cores that read the output, and have read the bytes it replaces, share no cache with this one (stores.h). It changes times only. */
  int apart;
  /* 1: `scratch` is as the last call left it, which was for another tile of this node and request: data derived from inputs are valid. */
  int again;
  /* 1: the box is the part of a tile that a change reaches, in a plan that keeps activations. The output holds what it held before. */
  int part;
} aspen_call;

enum aspen_kernel_error {
  ASPEN_KERNEL_OK = 0,
  ASPEN_KERNEL_BAD_INDEX = 1, /* an index tensor points outside its axis */
  ASPEN_KERNEL_BAD_ARGUMENT = 2, /* combination of dtypes or parameters that no kernel serves: the planner should not have sent it */
  ASPEN_KERNEL_SCRATCH = 3,   /* scratch too small */
  ASPEN_KERNEL_INT_DIVIDE = 4 /* integer division by zero */
};

typedef int (*aspen_kernel_fn)(const aspen_call *);

static inline double aspen_param_f(const aspen_call *c, int i) {
  double d;
  memcpy(&d, &c->params[i], sizeof d);
  return d;
}

/* Inputs and parameters of each kernel, in the order in which a call has them. `x?` is an input that may be absent.
 *
 * - f64 marks a parameter that is the bits of a double.
 * - ACT: {unary opcode, f64 a, f64 b}, three parameters. IN_ACT: the same.
 * - WINDOW: {KH, KW, stride_h, stride_w, dil_h, dil_w, pad_top, pad_left}. Other pads follow from OH and OW.
 * - DEPTH: {KD, stride_d, dil_d, pad_front}; {1, 1, 1, 0} where there is no such axis.
 * - "fused": one fused multiply-add on AVX2 and AVX-512, a product and a sum on the portable ISA.
 *
 * Matrix products
 *
 * GEMM: out[…, M, N] = act(alpha * A[…, M, K] · B[…, K, N] + bias + residual), f32.
 * - in A: the rank of out; leading axes broadcast by stride 0.
 * - in B: as A; or packed [ceil(N/32), K, 32], zero-padded, contiguous.
 * - in bias?, residual?: the rank of out, broadcast by stride 0.
 * - in scale?, shift?: [N], contiguous; both or neither.
 * - in left?: STRASSEN's result for A. It needs packed B, even K, and A with all of the output's leading axes.
 * - params: packed_b, f64 alpha, ACT, residual_last, least rows of the output for which left is used, 1 reserved.
 * - packed_b: 1: B is packed; 2: and it comes from memory, not from a cache.
 * - residual_last: 1 moves the residual to the very end; 2 multiplies with it there.
 * - k is summed in ascending order from 0, one fused multiply-add a term.
 * - Then follow * alpha (when alpha ≠ 1), + bias, + residual, act, and * scale + shift (one fused operation).
 * - With left, a pair of rows 2 i, 2 i + 1 that is alike has the sum of seven products of halves. The last panel of an uneven number of
 *   them is computed as without.
 *
 * QNBITGEMM: as GEMM, bit by bit, with B of 4, 8 or 16 bits.
 * - in A, bias?, residual?, scale?, shift?, left?: as GEMM, in its order; left with 16 bits alone.
 * - in B: u8 [ceil(N/32), bytes of a panel], contiguous, at a multiple of 4 bytes (low_bit.h).
 * - params: f64 alpha, ACT, residual_last, bits, terms of a block, zeros, zero.
 * - terms of a block: whole words of 32 bits, or all K.
 * - zeros: 1: each column of a block has a zero point; else all have `zero`.
 * - A weight of 4 or 8 bits is (q - z) * s, rounded once; s and z belong to a column and a block of terms.
 * - A weight of 16 bits is f16 (zero: 0) or bf16 (zero: 1). It has no scale, and zeros is 0.
 *
 * QGEMM: out[…, M, N] = act(factor S + bias + residual), f32; or that as bytes, i8 or u8; or S itself, i32.
 * - Bytes are the f32 result / scale, rounded, + zero, within the type.
 * - S[i, j] = sum over k of (A[i, k] - zero[i]) (B[k, j] - y[j]), + c[j], modulo 2^32.
 * - in A[…, M, K]: i8 or u8.
 * - in B: packed [ceil(N/32), 3 + ceil(K/4), 32, 4], i8. A panel begins with the columns' sums over k, their y and c (i32 each). Behind
 *   these its terms are (k / 4, column, k % 4), with zeros behind the last term and column.
 * - in bias?, residual?, factor? (f32), zero? (as A, one a row): the rank of out, broadcast by stride 0. Without zero it is 0.
 * - A residual may be of bytes, i8 or u8. Its values are (byte - zero) * scale, rounded once.
 * - For i32 there are no bias, residual and factor.
 * - params: y (1: some may not be 0), ACT, residual_last, BYTES.
 * - BYTES: f64 scale and zero of an output of bytes, f64 scale and zero of a residual of bytes.
 *
 * QPACK: out[…, ceil(N/32), 3 + ceil(K/4), 128], i8: the panels of QGEMM's B for each B[…, K, N] (i8 or u8). c is 0.
 * - in zero?: one element, as B: zero point of all columns. Without it it is 0.
 * - The last two axes of out are contiguous and whole.
 *
 * QMATMUL: as QGEMM, where each index of the leading axes has its own B.
 * - in B: QPACK's out, with the leading axes of out. The panels of an index are one run of memory.
 *
 * QCONV: out[N, OC, OH, OW], 2-D, as QGEMM.
 * - in X[N, C, H, W]: i8 or u8.
 * - in W: packed [ceil(OC/32), 3 + KH*KW*ceil(C/4), 32, 4] as QGEMM's B, with (kh, kw, c / 4, column, c % 4).
 * - in bias? [OC], residual?, factor? (rank 4, as out).
 * - in zero?: one element, as X; the padding is zero.
 * - params: y, WINDOW, ACT, residual_last, BYTES.
 *
 * QDWCONV: as QCONV with OC = M * C channels, each made of one of input: channel c of output of channel c / M.
 * - in W: packed [ceil(OC/32), 3 + parts*ceil(KH/4)*KW, 32, 4], i8. A panel begins as QGEMM's B, whose y are 0 here. Behind that, weights
 *   less their zero points are (part, kh / 4, kw, column, kh % 4), with zeros behind the last row and column.
 * - in bias? [OC], residual?, factor? (rank 4, as out), zero? (one element, as X).
 * - params: parts (bytes that a weight is the sum of, 1 to 3), WINDOW, ACT, residual_last, BYTES.
 *
 * BGEMM: as GEMM with packed B, with A and B rounded to bf16 (to nearest even).
 * - Products of pairs of terms 2 i, 2 i + 1 are summed in f32 over ascending i.
 * - in A; it, the residual and the output are f32, or stored as bf16 (vector/half_lanes.h).
 * - in B: packed [ceil(N/32), ceil(K/2), 32], u32. The lower half of a word is term 2 i; zeros are behind the last.
 * - in bias?, residual?, scale?, shift?: as GEMM.
 * - params: f64 alpha, ACT, residual_last, amx.
 * - amx: 1: sums have the order and the rounding of AMX, by runs and chunks of k (gemm/amx_sums.h), with the same bits on every processor.
 * - A processor with an instruction for pairs takes denormal numbers for zeros; with amx, all do.
 *
 * BCONV: as CONV over two axes with one group, with X and W rounded to bf16 (to nearest even).
 * - Products of pairs of channels 2 i, 2 i + 1 are summed in f32 over (kh, kw, i).
 * - in X[N, C, H, W]; it, the residual and the output are f32, or stored as bf16.
 * - in W: packed [ceil(OC/32), KH*KW*ceil(C/2), 32], u32, with k = (kh, kw, i). The lower half of a word is that of channel 2 i; zeros are
 *   behind the last.
 * - in bias? [OC], residual?, scale?, shift?, in_scale?, in_shift?: as CONV.
 * - params: WINDOW, ACT, residual_last, IN_ACT, amx.
 * - Denormal numbers, and sums with amx, are as BGEMM's.
 *
 * STRASSEN: out[…, ceil(M/2), 7 F], F = 16 ((K/2 / 16 + 1) | 1), f32: left factors of the pairs of rows of A[…, M, K] (strassen.c).
 * - Behind the K/2 terms of each are 1 if the pair's rows are finite and of about the same size, else 0, and then zeros.
 * - Boxes hold whole pairs. There are no params.
 *
 * DGEMM: out[…, M, N] = act(alpha * (sum over k of term(A[…, M, k], B[…, k, N])) + bias), f64.
 * - in A, B, bias?: the rank of out, broadcast by stride 0.
 * - params: f64 alpha, ACT, term (0: a b, 1: (a - b)², 2: |a - b|).
 * - k ascends from 0, one fused multiply-add a term.
 *
 * Convolutions and windows
 *
 * CONV: out[N, OC, OH, OW], 2-D (the planner lifts 1-D), or out[N, OC, OD, OH, OW], f32.
 * - in X[N, C, H, W].
 * - in W: packed per group [G, ceil(OCg/32), KH*KW*Cg, 32] with k = (kh, kw, c).
 * - in bias? [OC], residual? (rank 4, as out), scale?, shift? ([OC], contiguous), in_scale?, in_shift? ([C], contiguous).
 * - params: groups, WINDOW, ACT, residual_last, IN_ACT, DEPTH.
 * - Over three axes operands have rank 5 instead of 4, and k = (kd, kh, kw, c). With one group, fewer than 16 channels and KW > 1 it is
 *   k = (kh, kw, kd, c).
 * - With in_scale, X stands for IN_ACT(X * in_scale + in_shift); its padding is still zero. in_scale needs KD = 1.
 * - Sums are over (kh, kw, c) in ascending order. Taps in the padding are added as exact zeros or skipped, but the same on every tile.
 *
 * WINO: as CONV (without in_scale and IN_ACT) with groups 1 and dilations 1, by Winograd's minimal filtering.
 * - It serves the kernels, strides and blocks of KINDS in winograd.c.
 * - in W: the transformed weights [ceil(OC/32), products, KD*C, 32] (planner/ops/packing/winograd.py).
 * - params: CONV's up to IN_ACT, m, DEPTH.
 * - The output is cut into blocks at multiples of their sides: m along an axis of several taps, 1 along one with a single tap.
 * - A block that the box cuts reads its whole input. An infinity or NaN in the input may spread over all of its block.
 * - Products sum over k in ascending order, parts of 256 terms each, then the parts.
 *
 * DWCONV: as CONV (without in_scale and IN_ACT) with C == groups, OC = M * C.
 * - Channel c of output is made of channel c / M of input.
 * - in W: [KD*KH*KW, OC].
 * - Over two axes X, the residual and the output may be stored as bf16.
 * - params: CONV's.
 *
 * PWDW: out[N, E, OH, OW] = DWCONV(act(X * W + bias)): a 1 x 1 convolution (stride 1, no padding) and the depthwise one that alone reads
 * it.
 * - in X[N, C, H, W].
 * - in W: packed [1, ceil(E/32), C, 32].
 * - in bias? [E], D [KH*KW, E], D's bias? [E].
 * - params: ACT between the two, WINDOW, ACT.
 * - The bits are those of CONV and DWCONV; taps in the padding are added as zeros.
 *
 * POOL: act(window * scale + shift), 2-D.
 * - in X[N, C, H, W], scale?, shift? ([C], contiguous).
 * - params: mode (0: max, 1: average), WINDOW, pad_bottom, pad_right, count_include_pad, ACT.
 * - Windows may reach beyond the padding (ceil mode); elements there never count.
 * - Max over an empty window is -inf (lowest for integers).
 * - Types: f32, f64, i8, u8 for max; f32 for average. Scale, shift and act: f32.
 *
 * STACK: a program of steps over images[N, C, H, W] that does not mix channels, f32 (conv/stack.c).
 * - A step calls POOL, DWCONV (C = OC), UNARY, BINARY or TERNARY. Boxes hold whole rows.
 * - out: one or more, of one shape.
 * - in images, and the other inputs of steps.
 * - params: number of steps, and ASPEN_STACK_WORDS of each.
 * - words of a step: kernel, number of inputs, H and W of its result, index of its output or -1, ASPEN_STACK_REFS inputs, its parameters,
 *   zeros.
 * - an input of a step: k: input k of STACK; -1: absent; -2 - j: the result of step j.
 *
 * Elements
 *
 * UNARY: out = f(in0).
 * - params: opcode, f64 a, f64 b.
 * - Types: f32 all; f64, i8..u64 where the function makes sense (abs, neg, sign, relu, clip, not, bit_not, identity, square …).
 *
 * BINARY: out = act(in0 ∘ in1); inputs have the rank of out, broadcast by stride 0.
 * - params: opcode, ACT.
 * - Types: f32, f64, i8..u64, bool; comparisons write bool.
 *
 * TERNARY: out = f(in0, in1, in2).
 * - params: opcode, ACT (for FMA and CLAMP in floating point).
 * - WHERE moves elements of any fixed size.
 *
 * CAST: between bool, integers, f16, bf16, f32, f64 with numpy's astype rules (float → int truncates).
 * - params: saturate.
 *
 * QUANTIZE: out = saturate(rint(X / scale) + zero), to even, in f32 throughout; X * scale with `times`.
 * - in X (f32; i32, which rounds to f32), scale (f32), zero? (dtype of out): the rank of out, broadcast by stride 0.
 * - out: i8, u8, i16, u16; NaN becomes 0.
 * - params: times.
 *
 * DEQUANTIZE: out = (X - zero) * scale, f32.
 * - in X (i8, u8, i16, u16, i32), scale (f32), zero? (dtype of X): the rank of out, broadcast by stride 0.
 *
 * QBINARY: out = QUANTIZE(act(DEQUANTIZE(X) op DEQUANTIZE(Y))), all i8 or u8, with the roundings of these kernels.
 * - in X, Y: the rank of out, broadcast by stride 0.
 * - params: op (ADD, SUB or MUL), ACT, then f64 scale and zero point of X, of Y, and of out.
 *
 * LOOKUP: out = table[X], where the lowest value of X has the first entry.
 * - in X (u8, i8): the rank of out, broadcast by stride 0. table[256] (dtype of out), dense.
 * - out: i8, u8, f32.
 * - There are no params.
 *
 * MINMAX: out[blocks, 2], f32: least and greatest of 0 and a block's elements of X (f32); both NaN where an element is.
 * - Block b has the indices [b D / blocks, (b + 1) D / blocks) along the axis of extent D (whole quotients). It may be empty.
 * - params: axis.
 *
 * QPARAMS: scale (f32) and zero (u8), one element each, of a tensor with these extremes[blocks, 2] (f32). Two outputs.
 * - The scale is the range in 255 steps, 1 where the range is empty. The zero is the whole number nearest to the place of 0 among them.
 * - There are no params.
 *
 * Movement
 *
 * COPY: out = in0, same shape, any strides, any fixed-size dtype.
 *
 * PAD: in X, value? (rank 0).
 * - params: mode, rank, begin[8]. A negative begin crops. End pads follow from the output's dims.
 *
 * GATHER: in X[d0 … dn], indices (any rank q, i32 or i64).
 * - out dims: X[:axis] + indices + X[axis+1:].
 * - params: axis. Negative indices wrap.
 *
 * GATHER_ELEMENTS: in X, indices (rank of X).
 * - params: axis.
 *
 * INDEX: out i64[…]: places of indices[…, count] in a row of all elements of a tensor of `count` axes.
 * - in indices: i32 or i64; negative ones wrap.
 * - params: count, dims[8].
 *
 * SCATTER: out = X with the updates at their indices along the axis, in ascending order.
 * - in X, indices (i32 or i64), updates: the rank of X. Indices and updates are alike, and at most as long as X along axes besides `axis`.
 * - params: axis, how (0: replace, 1: add, 2: multiply, 3: least, 4: greatest).
 * - Types: any fixed-size dtype for replace; f32, f64, all integers otherwise.
 *
 * Reductions and norms
 *
 * REDUCE: over the axes where the output has dim 1 and the input more (keepdims form: same rank).
 * - params: opcode, axes mask (bit i: axis i).
 * - Types: f32 and f64: all; i8, u8, i32, u32, i64, u64, bool: all but LOG_SUM_EXP (sums wrap, means and roots truncate).
 * - Sums in f32 use a fixed order that depends on shape and strides alone.
 *
 * ARGREDUCE: out i64, keepdims form. Types: all integers, f32, f64 (a NaN wins).
 * - params: 0 max / 1 min, axis, select_last, 0.
 *
 * SOFTMAX: f32, f64.
 * - params: axis, log.
 *
 * NORM: over axes axis…rank-1, f32.
 * - in X, scale?, bias? (rank of X, broadcast by stride 0).
 * - params: axis, mode (0: layer, mean and variance; 1: rms), f64 eps.
 *
 * MOMENTS: out[N, blocks, groups, 2], f64: mean, and sum of squared deviations from it, of groups of channels by blocks of pixels.
 * - in X[N, C, spatial axes]: f32; groups divides C.
 * - Block b has the pixels [b P / blocks, (b + 1) P / blocks) of the P in logical order (whole quotients).
 * - There are no params.
 *
 * STANDARDIZE: out = act((X - mean) / sqrt(variance + eps) * scale + shift + residual), f32.
 * - in X[N, C, spatial axes], MOMENTS of X, scale?, shift? ([1 or N, C]), residual? (as out).
 * - params: f64 eps, ACT.
 *
 * LRN: over axis 1.
 * - params: size, f64 alpha, f64 beta, f64 bias.
 *
 * TOPK: out i64: places of the best elements of X along the axis, best first, as many as the output is long there.
 * - The first of equal ones comes first; a NaN is the greatest.
 * - params: axis, largest. Any numbers.
 *
 * CUMSUM: f32, f64, all integers.
 * - params: axis, exclusive, reverse.
 *
 * Sampling
 *
 * RESIZE: any axes, f32 (nearest: any fixed-size dtype).
 * - params: mode, coordinate mode, nearest rounding, f64 cubic_coeff_a, f64 scale[8] (per axis), exclude_outside, 7 reserved.
 * - mode: 0 nearest, 1 linear, 2 cubic.
 * - coordinate mode: 0 half_pixel, 1 asymmetric, 2 align_corners, 3 pytorch_half_pixel, 4 half_pixel_symmetric. 5 is align_corners with the
 *   old length times the scale, not rounded, in place of the new length.
 * - nearest rounding: 0 round_prefer_floor, 1 round_prefer_ceil, 2 floor, 3 ceil.
 *
 * GRIDSAMPLE: out[N, C, O1, O2 (, O3)], f32, of X[N, C, D1, D2 (, D3)] at the points grid[N, O1, O2 (, O3), 2 (3)].
 * - The grid's last axis counts the axes of X from the last one on. -1 and 1 are the ends of the image (align_corners: the middles of its
 *   outer pixels).
 * - params: mode (0: linear, 1: nearest, 2: cubic), padding (0: zeros, 1: border, 2: reflection), align_corners.
 * - Every axis of X has 1 to 2^30 - 1 pixels. Any values of the grid are safe: a NaN lies before the first pixel.
 *
 * ROIALIGN: out[R, C, OH, OW], f32, of X[N, C, H, W]: cells of the regions rois[R, 4] of the images batches[R] (i64).
 * - in rois: left, top, right, bottom, times scale pixels.
 * - params: mode (0: average, 1: maximum), points of a cell along each axis, f64 scale, half_pixel.
 * - points: at most 1024; 0: as many as the cell spans pixels.
 * - A maximum is that of the four weighted pixels around each point, and of 0 where points lie outside.
 *
 * DEFORM: out[N, G T C / G, OH, OW], f32, T = KH KW: the input of a deformable convolution, group by group, tap by tap.
 * - It has channels of X[N, C, H, W] at the places of the tap, moved by offsets (rows, columns), times mask; zero outside.
 * - in X, offsets[N, 2 P T, OH, OW], mask?[N, P T, OH, OW]. P parts of the channels have offsets of their own.
 * - params: G, P, WINDOW.
 *
 * Attention and recurrence
 *
 * ATTENTION: out[…, M, Dv] = softmax(S) V over S[…, M, N] = scale Q K^T, then masked; f32.
 * - in Q[…, M, D], K[…, N, D], V[…, N, Dv]: the rank of out, leading axes broadcast by stride 0.
 * - in mask?[…, M, N]: as these, the last two axes too. f32: added to S; bool: S where true, else fill.
 * - params: f64 scale, causal, offset, f64 fill, f64 softcap, guard, mask_first, 1 reserved.
 * - causal: query i sees keys up to i + offset; S is fill for others.
 * - softcap: 0: none; else c tanh(S / c) before masking.
 * - guard: 1: rows that come out NaN become 0; 2: rows in which every S is -inf do.
 * - mask_first: the causal fill replaces the sum of S and mask; else the mask is added to the fill.
 *
 * LSTM, GRU, RNN: n steps of one direction of a recurrent layer, f32, gates in ONNX's order.
 * - out Y[n, 1, B, H].
 * - out of LSTM also: the cell state [1, 1, B, H] behind the last step. A tile whose box holds step 0 writes the box's rows and units of
 *   it.
 * - in P[T, B, gates H]: the input's product with W, biases inside. The run begins at its step `first`.
 * - in R: packed [ceil(H/16), H, gates, 16], zero-padded, contiguous.
 * - R of GRU, form 0: [ceil(H/16), H, 2, 16] for z and r, then [ceil(H/16), H, 16] for h, in as many floats. Forms 2 and 3 have one of
 *   these alone.
 * - in h? [m, 1, B, H]: the state before is its last step, in reverse its first. Absent states are zeros.
 * - in c? [1, 1, B, H]: LSTM.
 * - in rb? [H]: GRU of form 1: the recurrent bias inside the reset gate.
 * - params: first, reverse (from the last step to the first); GRU: form; RNN: relu (else tanh).
 * - form: 0: without linear_before_reset; 1: with it; 2, 3: one step of form 0 in two halves, so that tiles can share its units.
 * - Form 2 writes the update gate and r * h, out[2, 1, B, H]. Form 3 has that as input 3 and writes the new state.
 * - Sums over the terms of h are in ascending order, as in GEMM; then P is added.
 * - Boxes may cut any axis. A cut of steps or units makes a tile compute more than its box. All of that is lost but the units of the run's
 *   last step that it needs.
 *
 * Classical models
 *
 * TREES: out[N, C], f32 or f64: the result of an ensemble of decision trees for each row of X[N, F].
 * - in X: f32, f64, i32, i64; converted to the type of the thresholds.
 * - in nodes: i32, contiguous. [n, 4] with f32 thresholds: {value, weight, feature, child}. [n, 6] with f64 ones: {value (2), weight (2),
 *   feature, child}.
 * - in trees: i32 [t, 4], contiguous: {root, steps to the deepest leaf, first target, targets}.
 * - in weights? [W], base? [C]: the thresholds' type.
 * - A row goes on to child + (x[feature] <= value). Flags in `feature`: bit 29: x must also be no less than the value; bit 30: a NaN goes
 *   to child + 1, else to child.
 * - A leaf has the value NaN and is its own child. Where its tree has one target it holds the weight, else (first word, u32) the place
 *   where its weights begin.
 * - A target's weights are combined in the order of the trees, from 0, in the type of the thresholds; then base is added.
 * - An index outside its table is replaced by one inside.
 * - params: how (0: sum, 1: average, 2: least, 3: greatest), flags (1: some node has one), most steps.
 * - For least and greatest a NaN is not a weight, and the result without weights is 0.
 *
 * SCORES: out[N, E], f32, from the scores S[N, C] (f32 or f64) of classes.
 * - params: function, second.
 * - function: 0 none, 1 logistic, 2 softmax, 3 softmax that leaves zeros out, 4 probit.
 * - second: 0: E = C. Else one score (C = 1) becomes two first (E = 2): 1: 1 - s, s; 2: -s, s.
 *
 * LABELS: out[N], i64, from scores S[N, C] (f32 or f64).
 * - in S, labels (i64, [L]).
 * - params: mode, column, f64 threshold.
 * - mode 0: the label of the greatest score, the first of equal ones; L = C.
 * - mode 1: the second label where S[:, column] > threshold, else the first.
 * - mode 2: S has the scores of the L (L - 1) / 2 pairs of classes (i, j), i < j. A score > 0 is a vote for i, else for j. Most votes win,
 *   the first of equal ones.
 *
 * RBF: out[N, V] = exp(-gamma |x - s|^2), f32, of rows of X[N, F] and vectors s.
 * - in s: packed as GEMM's B, [ceil(V/32), F, 32].
 * - params: f64 gamma.
 * - Squares are summed over ascending features, one fused multiply-add each.
 *
 * DUELS: out[N, C (C - 1) / 2], f32: a sum for each pair of classes (i, j), i < j, in f64, + rho.
 * - The sum is over the vectors v of i of coef[j - 1, v] K[:, v], and then over those of j of coef[i, v] K[:, v]. Eight sums go side by
 *   side, then each other's.
 * - in K[N, V], coef[C - 1, V], starts, rho.
 * - in starts: i64 [C + 1]; class i has the vectors starts[i] … starts[i + 1] - 1.
 * - There are no params.
 *
 * COUPLE: out[N, C], f32: probabilities of classes from the scores S[N, C (C - 1) / 2] of pairs of them, as in libsvm.
 * - It is the second method of Wu, Lin and Weng (2004).
 * - in S, a, b. For each pair, class i wins with probability 1 / (1 + exp(a s + b)).
 * - There are no params.
 */

/* Plans of streams
 *
 * REACH: out[tiles, 12], u32: the part of each tile that runs (movement/reach.c). Row 0 is that of REACH itself.
 * - out 1: f64 [1, 4 + 2 outputs]: tiles that run, all tiles, operations of what runs, all operations.
 *   Then follow, for each output of the plan, an axis and the elements along it that are computed. Axis -1: all are. 0: nothing arrives.
 * - in changes: i32 [inputs + 1, ASPEN_REACH_WORDS]. The last line begins with the number of the frame, and a share (f32).
 * - in marks: i32, MOVED's. Any number.
 * - params: a program (planner/ops/streams/reach.py).
 *
 * MOVED: out[N, ceil(H / side), ceil(W / side)], i32: the frame in which a block of rows and columns of X moved, or the number before it.
 * - A block has moved if one of its elements differs from its like in `seen` by more than the share of X's range. NaN always does.
 * - out 1, out 2: f32 [N, ceil(H / side), 1]: the least and the greatest finite element of X in a row of blocks, when it last ran whole.
 *   The range is that of all rows.
 * - A tile that runs whole marks all of its blocks.
 * - in X[N, C, H, W], f32; seen, as X; changes, as REACH's.
 * - params: side.
 *
 * REFRESH: out[N, C, H, W] = X where blocks have moved in this frame, f32. Otherwise it stays as it was.
 * - A tile that runs whole copies all of X.
 * - in X; marks, MOVED's; changes, as REACH's.
 * - params: side.
 */

/* The table for an ISA: kernels[ASPEN_K_x], NULL for JOIN, END and OPAQUE. */
const aspen_kernel_fn *aspen_kernels_for(enum aspen_isa isa);
/* Scratch bytes that a call with these arguments and box may use (monotone in the box). */
size_t aspen_kernel_scratch(uint32_t kernel, const aspen_call *call);

/* The machine's limits (probe.c). aspen_probe_flops does 20 VL floating-point operations a turn in registers and returns how many.
 * aspen_probe_read reads n floats, `rounds` times. */
double aspen_probe_flops(enum aspen_isa isa, int64_t turns);
void aspen_probe_read(enum aspen_isa isa, const float *p, int64_t n, int64_t rounds);
/* Puts these bytes out of all caches, of all cores. Returns 0 where programs cannot. */
int aspen_probe_flush(const char *p, int64_t bytes);

#endif
