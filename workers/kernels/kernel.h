/* The contract between the scheduling engine and the kernels.
 *
 * A kernel computes one tile: the box [lo, hi) of its output, in the output's logical axes (ONNX order: N, C, H, W …).
 * Rules that hold for every kernel:
 *  - Any strides: strides are in elements, may be 0 (broadcast, inputs only) or negative. Fast paths may ask for more, results may not.
 *  - A value of the output depends on the inputs alone, never on the box it was computed in: the same operations in the same
 *    order whatever the tile, head or tail of a vector. So results are bit-identical for every tiling and worker count.
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
  int apart; /* 1: cores that read the output, and have read what it replaces, share no cache with this one (stores.h); changes times, never results */
  int again; /* 1: `scratch` is as the last call left it, which was for another tile of this node and request: what it made there of inputs holds */
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

/* Inputs and parameters of each kernel. f64 marks a parameter that is the bits of a double; ACT = {unary opcode, f64 a, f64 b}.
 *
 * GEMM   out[…, M, N] = act(alpha * A[…, M, K] · B[…, K, N] + bias + residual), f32. k is summed in ascending order, one fused (or, on the
 *        portable ISA, plain) multiply-add per term, starting from 0; then * alpha (when alpha ≠ 1), + bias, + residual, act, * scale + shift
 *        (one fused operation); residual_last moves the residual to the very end (1), or there multiplies with it (2).
 *        in: A (same rank as out, leading axes broadcast by stride 0), B (idem; when packed: dims [ceil(N/32), K, 32], zero-padded, contiguous),
 *        bias?, residual? (both same rank as out, broadcast by stride 0), scale? and shift? ([N], contiguous; both or neither), left?
 *        left?: what STRASSEN makes of A (packed B, even K, A with all of the output's leading axes). Then the sum is that of seven products of
 *        halves where a pair of rows 2 i, 2 i + 1 is alike; the last panel of an uneven number of them is computed as without.
 *        params: packed_b (2: and it comes from memory, not from a cache), f64 alpha, ACT(3), residual_last, least rows of the output for which
 *        left is used, 1 reserved
 * QNBITGEMM  as GEMM, bit by bit, with B of 4, 8 or 16 bits. Of 4 or 8 a weight is (q - z) * s, rounded once; s and z belong to a column and a block of terms.
 *        in: A, B (u8 [ceil(N/32), bytes of a panel], contiguous, at a multiple of 4 bytes: nbits.h), bias?, residual?, scale?, shift?, left? (16 bits alone) as GEMM.
 *        params: f64 alpha, ACT(3), residual_last, bits, terms of a block (whole words of 32 bits, or all K), zeros (1: each column of a block
 *        has a zero point), zero (else that of all). Of 16 bits, f16 (zero: 0) or bf16 (zero: 1), there are no scales and zeros is 0
 * QGEMM  out[…, M, N] = act(factor S + bias + residual), f32; as bytes, i8 or u8, that / scale, rounded, + zero, within the type; or S itself, i32:
 *        S[i, j] = sum over k of (A[i, k] - zero[i]) (B[k, j] - y[j]), + c[j], modulo 2^32. in: A[…, M, K], i8 or u8; B packed [ceil(N/32), 3 + ceil(K/4), 32, 4], i8: of
 *        each panel first the columns' sums over k, their y and c (i32 each), then (k / 4, column, k % 4), zeros behind the last term and column; bias?, residual?,
 *        factor? (f32) and zero? (as A, one a row), all of the output's rank, broadcast by stride 0. Without zero it is 0. For i32 there are no bias, residual and
 *        factor. params: y (1: some may not be 0), ACT(3), residual_last, f64 scale, zero of the output
 * QCONV  out[N, OC, OH, OW], 2-D, as QGEMM. in: X[N, C, H, W], i8 or u8; W packed [ceil(OC/32), 3 + KH*KW*ceil(C/4), 32, 4] as B, with (kh, kw, c / 4, column, c % 4);
 *        bias? [OC], residual?, factor? (rank 4, as out), zero? (one element, as X; the padding is zero). params: y, KH, KW, stride_h, stride_w, dil_h, dil_w, pad_top,
 *        pad_left, ACT(3), residual_last, f64 scale, zero of the output
 * BGEMM  as GEMM with packed B, with A and B rounded to bf16 (to nearest even): products of pairs of terms 2 i, 2 i + 1, f32 sums over ascending i. in: A, B packed
 *        [ceil(N/32), ceil(K/2), 32], u32, the lower half of a word term 2 i, zeros behind the last; bias?, residual?, scale?, shift? as GEMM. A processor that has an
 *        instruction for pairs takes denormal numbers for zeros. params: f64 alpha, ACT(3), residual_last
 * BCONV  as CONV over two axes with one group, with X and W rounded to bf16 (to nearest even): products of pairs of channels 2 i, 2 i + 1, f32 sums over (kh, kw, i).
 *        in: X[N, C, H, W], W packed [ceil(OC/32), KH*KW*ceil(C/2), 32], u32, with k = (kh, kw, i), the lower half of a word that of channel 2 i, zeros behind the last;
 *        bias? [OC], residual?, scale?, shift?, in_scale? and in_shift? as CONV. Denormal numbers as BGEMM's.
 *        params: KH, KW, stride_h, stride_w, dil_h, dil_w, pad_top, pad_left, ACT(3), residual_last, IN_ACT(3)
 * STRASSEN out[…, ceil(M/2), 7 F], F = 16 ((K/2 / 16 + 1) | 1), f32: left factors of the pairs of rows of A[…, M, K] (strassen.c), behind the
 *        K/2 terms of each whether the pair's rows are finite and of about the same size (1, else 0), and zeros. Boxes hold whole pairs. No params.
 * DGEMM  out[…, M, N] = act(alpha sum over k of term(A[…, M, k], B[…, k, N]) + bias), f64, of operands of the output's rank, broadcast by stride 0. k ascends, one
 *        fused (portable: plain) multiply-add a term, from 0 on. in: A, B, bias?. params: f64 alpha, ACT(3), term (0 a b, 1 (a - b)², 2 |a - b|)
 * CONV   out[N, OC, OH, OW], 2-D (1-D is lifted by the planner) or out[N, OC, OD, OH, OW], f32. in: X[N, C, H, W], W packed per group [G, ceil(OCg/32), KH*KW*Cg, 32]
 *        with k = (kh, kw, c), bias? [OC], residual? (rank 4, as out), scale? and shift? ([OC], contiguous), in_scale? and in_shift? ([C], contiguous).
 *        params: groups, KH, KW, stride_h, stride_w, dil_h, dil_w, pad_top, pad_left, ACT(3), residual_last, IN_ACT(3), DEPTH(4).   (bottom and right pads follow
 *        from OH, OW.) DEPTH = {KD, stride_d, dil_d, pad_front}, {1, 1, 1, 0} where there is no such axis. Over three axes operands have rank 5 where they have
 *        rank 4 over two, and k = (kd, kh, kw, c); with one group, fewer than 16 channels and KW > 1 k = (kh, kw, kd, c). in_scale goes with KD = 1 alone.
 *        With in_scale, X stands for IN_ACT(X * in_scale + in_shift); its padding is still zero.
 *        Summed over (kh, kw, c) in ascending order; taps in the padding may be added as exact zeros or skipped, but the same on every tile.
 * WINO   as CONV (without in_scale and IN_ACT) with groups 1 and dilations 1, by Winograd's minimal filtering, for the kernels, strides and blocks of KINDS in
 *        winograd.c. W holds the transformed weights [ceil(OC/32), products, KD*C, 32] (planner/ops/packing/winograd.py). params: CONV's up to IN_ACT, m, DEPTH(4).
 *        The output is cut into blocks at multiples of their sides: m along an axis of several taps, 1 along one with a single tap; of a block that the box cuts, the whole input is read. An infinity
 *        or NaN in the input may spread over all of its block. Products sum over k in ascending order, parts of 256 terms each, then the parts.
 * DWCONV as CONV (without in_scale and IN_ACT) with C == groups, OC = M * C: channel c of output is made of channel c / M of input; W is [KD*KH*KW, OC].
 *        params as CONV.
 * PWDW   out = DWCONV(act(X * W + bias)): a 1 x 1 convolution, stride 1 and no padding, and the depthwise one that alone reads it. in: X[N, C, H, W],
 *        W packed [1, ceil(E/32), C, 32], bias? [E], D [KH*KW, E], D's bias? [E]; out[N, E, OH, OW]. params: ACT(3) between the two,
 *        KH, KW, stride_h, stride_w, dil_h, dil_w, pad_top, pad_left, ACT(3). The bits are those of CONV and DWCONV; taps in the padding are added as zeros.
 * POOL   2-D, act(window * scale + shift). in: X[N, C, H, W], scale? and shift? ([C], contiguous). params: mode (0 max, 1 average), KH, KW, stride_h,
 *        stride_w, dil_h, dil_w, pad_top, pad_left, pad_bottom, pad_right, count_include_pad, ACT(3). Windows may reach beyond the padding (ceil mode): what lies there never counts.
 *        Max over an empty window is -inf (lowest for integers). f32, f64, i8, u8 for max; f32 for average. Scale, shift and act: f32.
 * STACK  what a program of steps makes of images[N, C, H, W] without mixing channels, f32 (conv/stack.c). A step calls POOL, DWCONV (C = OC), UNARY, BINARY or
 *        TERNARY. out: one or more, of one shape. in: images, and what steps need besides. Boxes hold whole rows. params: number of steps, and of each
 *        ASPEN_STACK_WORDS: kernel, number of its inputs, H and W of what it makes, which output that is or -1, ASPEN_STACK_REFS inputs (k: input k of STACK; -1:
 *        absent; -2 - j: what step j makes), the kernel's own parameters, zeros
 * UNARY  out = f(in0). params: opcode, f64 a, f64 b. f32 all; f64, i8..u64 where the function makes sense (abs, neg, sign, relu, clip, not, bit_not, identity, square …)
 * BINARY out = act(in0 ∘ in1); inputs have the rank of out, broadcast by stride 0. params: opcode, ACT(3). f32, f64, i8..u64, bool; comparisons write bool.
 * TERNARY params: opcode, ACT(3) (of FMA and CLAMP in floating point). WHERE moves elements of any fixed size.
 * CAST   params: saturate. between bool, integers, f16, bf16, f32, f64 with numpy's astype rules (float → int truncates)
 * QUANTIZE out = saturate(rint(X / scale) + zero), to even, as f32 all the way; X * scale with `times`. in: X (f32; i32, which rounds to f32), scale (f32),
 *        zero? (dtype of out); all of the output's rank, broadcast by stride 0. out: i8, u8, i16, u16; what is no number becomes 0. params: times
 * DEQUANTIZE out = (X - zero) * scale, f32. in: X (i8, u8, i16, u16, i32), scale (f32), zero? (dtype of X); all of the output's rank, broadcast by stride 0
 * MINMAX out[blocks, 2], f32: least and greatest of 0 and the elements of X (f32) whose index along the axis is in [b D / blocks, (b + 1) D / blocks) (whole
 *        quotients) of its D; both NaN where an element is. params: axis
 * QPARAMS scale (f32) and zero (u8), of one element each, of a tensor with these extremes[blocks, 2] (f32): the range in 255 steps, the whole number that is
 *        nearest to where 0 lies among them; scale 1 where the range is empty. Two outputs. No params
 * COPY   out = in0, same shape, any strides, any fixed-size dtype
 * PAD    in: X, value? (rank 0). params: mode, rank, begin[8] (begin may be negative: crop). End pads follow from the output's dims
 * REDUCE over the axes where the output has dim 1 and the input more (keepdims form: same rank). params: opcode, axes mask (bit i: axis i).
 *        f32 and f64: all; i8, u8, i32, u32, i64, u64, bool: all but LOG_SUM_EXP (sums wrap, means and roots truncate). Sums in f32 use a fixed
 *        order that depends on shape and strides alone
 * ARGREDUCE params: 0 max / 1 min, axis, select_last, 0. keepdims form; out i64. All integers, f32, f64 (a NaN wins)
 * SOFTMAX params: axis, log. f32, f64
 * NORM   over axes axis…rank-1, f32. in: X, scale?, bias? (rank of X, broadcast by stride 0). params: axis, mode (0 layer: mean and variance; 1 rms), f64 eps
 * MOMENTS of groups of channels by blocks of pixels. in: X[N, C, spatial axes], f32; out[N, blocks, groups, 2], f64: mean, and sum of squared deviations from
 *        it. Block b has the pixels [b P / blocks, (b + 1) P / blocks) of the P in logical order (whole quotients); groups divides C. No params.
 * STANDARDIZE out = act((X - mean) / sqrt(variance + eps) * scale + shift + residual), f32. in: X[N, C, spatial axes], what MOMENTS makes of it, scale? and shift? ([1 or N, C]), residual? (as out).
 *        params: f64 eps, ACT(3)
 * LRN    over axis 1. params: size, f64 alpha, f64 beta, f64 bias
 * GATHER in: X[d0 … dn], indices (any rank q, i32 or i64). out dims = X[:axis] + indices + X[axis+1:]. params: axis. Negative indices wrap
 * GATHER_ELEMENTS in: X, indices (rank of X). params: axis
 * TOPK   out i64: where along the axis the best elements of X are, as many as the output is long there, best first; of equal ones the first
 *        first, a NaN is the greatest. params: axis, largest. Any numbers
 * INDEX  out i64[…] = places that indices[…, count] (i32 or i64, negative ones wrap) have in a row of all elements of a tensor of `count` axes.
 *        params: count, dims[8]
 * SCATTER in: X, indices (i32 or i64), updates (both rank of X; axes besides `axis` at most as long as those of X, and alike).
 *        out = X with the updates at their indices along the axis, in ascending order. params: axis, 0 replace / 1 add / 2 multiply / 3 least / 4
 *        greatest (f32, f64, all integers). Any fixed-size dtype otherwise
 * RESIZE any axes, f32 (nearest: any fixed-size dtype). params: mode (0 nearest, 1 linear, 2 cubic), coordinate mode
 *        (0 half_pixel, 1 asymmetric, 2 align_corners, 3 pytorch_half_pixel, 4 half_pixel_symmetric, 5 align_corners with the old length times the
 *        scale, not rounded, as the new length), nearest rounding (0 round_prefer_floor, 1 round_prefer_ceil, 2 floor, 3 ceil), f64 cubic_coeff_a,
 *        f64 scale[8] (per axis), exclude_outside, 7 reserved
 * GRIDSAMPLE out[N, C, O1, O2 (, O3)], f32, of X[N, C, D1, D2 (, D3)] at the points grid[N, O1, O2 (, O3), 2 (3)], whose last axis counts the axes of X
 *        from the last one on: -1 and 1 are the ends of the image (align_corners: the middles of its outer pixels). params: mode (0 linear, 1 nearest,
 *        2 cubic), padding (0 zeros, 1 border, 2 reflection), align_corners. Every axis of X has 1 to 2^30 - 1 pixels. Any values of the grid are safe:
 *        what is no number lies before the first pixel
 * ROIALIGN out[R, C, OH, OW], f32, of X[N, C, H, W]: cells of the regions rois[R, 4] (left, top, right, bottom, times scale pixels) of the images
 *        batches[R] (i64). params: mode (0 average, 1 maximum), points of a cell along each axis (at most 1024; 0: as many as it spans pixels), f64 scale,
 *        half_pixel. A maximum is that of the four weighted pixels around each point, and of 0 where points lie outside
 * DEFORM what a deformable convolution reads: out[N, G T C / G, OH, OW], f32, group by group, tap by tap, channels of X[N, C, H, W] at the places of the
 *        tap, moved by offsets[N, 2 P T, OH, OW] (rows, columns), times mask?[N, P T, OH, OW]; P parts of the channels have offsets of their own, T = KH KW.
 *        What lies outside is zero. params: G, P, KH, KW, stride_h, stride_w, dil_h, dil_w, pad_top, pad_left
 * CUMSUM params: axis, exclusive, reverse. f32, f64, all integers
 * ATTENTION out[…, M, Dv] = softmax(S) V over S[…, M, N] = scale Q K^T, then masked; f32. in: Q[…, M, D], K[…, N, D], V[…, N, Dv], mask?[…, M, N]
 *        (f32: added to S; bool: S where true, else fill), all of the output's rank, leading axes broadcast by stride 0, the mask's last two too.
 *        params: f64 scale, causal (query i sees keys up to i + offset, S is fill for others), offset, f64 fill, f64 softcap (0: none, else
 *        c tanh(S / c) before masking), guard (1: rows that come out NaN become 0, 2: rows in which every S is -inf do), mask_first (the causal fill replaces what a
 *        mask was added to, else the mask is added to the fill), 1 reserved.
 * LSTM, GRU, RNN  n steps of one direction of a recurrent layer, f32, gates in ONNX's order. out: Y[n, 1, B, H]; LSTM also the cell state behind the last of them
 *        [1, 1, B, H], of whose rows and units a tile writes those of its box if that holds step 0. in: P[T, B, gates H] (the input's product with W, biases inside;
 *        the run begins at its step `first`), R packed [ceil(H/16), H, gates, 16] (zero-padded, contiguous; GRU of form 0:
 *        [ceil(H/16), H, 2, 16] for z and r, then [ceil(H/16), H, 16] for h, in as many floats; of forms 2 and 3 one of these alone), h? [m, 1, B, H]: the state before is its last step, in reverse
 *        its first; LSTM: c? [1, 1, B, H]; GRU of form 1: rb? [H], the recurrent bias inside the reset gate. Absent states are zeros.
 *        params: first, reverse (from the last step to the first), GRU: form, RNN: relu (else tanh). Forms of GRU: 0, 1: without and with linear_before_reset;
 *        2, 3: one step of 0 in two halves, so that tiles can share its units: the update gate and r * h, out[2, 1, B, H], and what follows from them (as input 3).
 *        Sums over the terms of h are in ascending order, as in GEMM, then P is added. Boxes may cut any axis; what a cut of steps or units makes a tile
 *        compute beside its box is lost, except units of the run's last step that it needs.
 * TREES  out[N, C], f32 or f64: what an ensemble of decision trees makes of each row of X[N, F] (f32, f64, i32, i64; converted to the type of the thresholds).
 *        in: X, nodes, trees, weights? [W], base? [C] (both of the thresholds' type). nodes (i32, contiguous): [n, 4] with f32 thresholds {value, weight, feature, child},
 *        or [n, 6] with f64 ones {value (2), weight (2), feature, child}: a row goes on to child + (x[feature] <= value). Flags in `feature`: bit 29, x must also
 *        be no less than the value; bit 30, a NaN goes to child + 1, else to child. A leaf has the value NaN and is its own child; where its tree has one target it
 *        holds the weight, else (first word, u32) where its weights begin. trees (i32, contiguous) [t, 4]: {root, steps to the deepest leaf, first target, targets}.
 *        A target's weights are combined in the order of the trees, from 0, in the type of the thresholds; then base is added. Indices outside their table are
 *        taken for others inside. params: 0 sum / 1 average / 2 least / 3 greatest (NaN: no weight; of none the result is 0), flags (1: some node has one), most steps
 * SCORES out[N, E], f32, from the scores S[N, C] (f32 or f64) of classes. params: 0 none / 1 logistic / 2 softmax / 3 softmax that leaves zeros out / 4 probit,
 *        second (0: E = C; of one score (C = 1) two are made first (E = 2): 1: 1 - s, s; 2: -s, s)
 * LABELS out[N], i64, from scores S[N, C] (f32 or f64). in: S, labels (i64, [L]). params: mode (0: that of the greatest score, of equals the first, L = C; 1: the
 *        second label where S[:, column] > threshold, else the first; 2: S has the scores of the L (L - 1) / 2 pairs of classes (i, j), i < j: a score > 0 is a vote for
 *        i, else for j, and most votes win, of equals the first), column, f64 threshold
 * RBF    out[N, V] = exp(-gamma |x - s|^2), f32, of rows of X[N, F] and vectors s, packed as GEMM's B: [ceil(V/32), F, 32]. Squares are summed over ascending features,
 *        one fused (portable: plain) multiply-add each. params: f64 gamma
 * DUELS  out[N, C (C - 1) / 2], f32: for each pair of classes (i, j), i < j, the sum over the vectors v of i of coef[j - 1, v] K[:, v] and then over those of j of
 *        coef[i, v] K[:, v], in f64 (eight sums side by side, then each other's), + rho. in: K[N, V], coef[C - 1, V], starts (i64, [C + 1]: class i has the vectors
 *        starts[i] … starts[i + 1] - 1), rho. No params
 * COUPLE out[N, C], f32: probabilities of classes from the scores S[N, C (C - 1) / 2] of pairs of them, by the second method of Wu, Lin and Weng (2004), as libsvm
 *        does it. in: S, a, b (of each pair: class i wins with 1 / (1 + exp(a s + b))). No params
 */

/* Instruction sets, best first. ASPEN_MP_ISA forces one. */
/* The table for an ISA: kernels[ASPEN_K_x], NULL for JOIN, END and OPAQUE. */
const aspen_kernel_fn *aspen_kernels_for(enum aspen_isa isa);
/* Scratch bytes that a call with these arguments and box may use (monotone in the box). */
size_t aspen_kernel_scratch(uint32_t kernel, const aspen_call *call);

/* The machine's limits (probe.c): does 20 VL floating-point operations a turn in registers and returns how many; reads n floats, `rounds` times. */
double aspen_probe_flops(enum aspen_isa isa, int64_t turns);
void aspen_probe_read(enum aspen_isa isa, const float *p, int64_t n, int64_t rounds);
/* Puts what lies there out of all caches, of all cores. Returns 0 where programs cannot. */
int aspen_probe_flush(const char *p, int64_t bytes);

#endif
