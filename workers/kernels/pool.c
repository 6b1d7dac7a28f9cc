/* POOL: sliding maximum or average over two spatial axes. */
#include "kernel.h"
#include "vec.h"
int FN(pool)(const aspen_call *c) { return ASPEN_KERNEL_BAD_ARGUMENT; }
