/* Included before each family where its portable copy is compiled with -fwhole-program: of a family these functions stay, and no kernel.
 * They say how much scratch memory kernels of every instruction set need. */
#include "kernel.h"

#define KEPT __attribute__((externally_visible))
#define KERNEL(id, f, isas, scratch) KEPT size_t aspen_scratch_##scratch(const aspen_call *);
#include "kernels.def"
#undef KERNEL
KEPT size_t aspen_scratch_strassen(int64_t terms, int halves); /* of those of GEMM; gemm/mm.h */
KEPT int aspen_pool_rolls_scratch(const int64_t *params, int64_t height, int64_t width, int planes); /* STACK asks POOL; conv/stack.c */
