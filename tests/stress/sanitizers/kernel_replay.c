/* Runs kernel calls from standard input, each operand in a block of its own that ends where the operand does, and writes what each returned and
 * its output's elements in logical order. For builds with AddressSanitizer: `test_sanitizers.py` writes the calls.
 *
 * A call: u32 bytes that follow; u32 kernel, arguments, parameters, rank of the output; i64 parameters; (lo, hi) of each axis; for each argument
 * u32 dtype, rank, i64 bytes from the block's start to element (0, 0, …), i64 bytes; (dim, stride in elements) of each axis; the bytes.
 */
#include <stdio.h>
#include <stdlib.h>

#include "kernel.h"

enum { MAX_ARGS = 9, MAX_PARAMS = 32 };

#define PASTE(a, b) a##b
#define PASTE2(a, b) PASTE(a, b)

/* What the families that were compiled in define; all else is NULL. */
#define KERNEL(id, f, isas, scratch)                                                                        \
  extern int PASTE2(aspen_##f##_, ASPEN_ISA)(const aspen_call *) __attribute__((weak));                     \
  extern size_t aspen_scratch_##scratch(const aspen_call *) __attribute__((weak));
#include "kernels.def"
#undef KERNEL
size_t aspen_scratch_none(const aspen_call *call) { return 0; }

static aspen_kernel_fn kernel_of(uint32_t code) {
  switch (code) {
#define KERNEL(id, f, isas, scratch) case ASPEN_K_##id: return PASTE2(aspen_##f##_, ASPEN_ISA);
#include "kernels.def"
#undef KERNEL
  }
  return NULL;
}

static size_t scratch_of(uint32_t code, const aspen_call *call) {
  switch (code) {
#define KERNEL(id, f, isas, scratch) case ASPEN_K_##id: return aspen_scratch_##scratch ? aspen_scratch_##scratch(call) : 0;
#include "kernels.def"
#undef KERNEL
  }
  return 0;
}

static void need(int good, const char *what) {
  if (good) return;
  fprintf(stderr, "kernel_replay: %s\n", what);
  exit(3);
}

static void take(void *to, const char **from, size_t n) {
  memcpy(to, *from, n);
  *from += n;
}

static size_t item_bytes(uint32_t dtype) {
  static const uint8_t bytes[] = {
#define X(n, c, b, s) [c] = b,
      ASPEN_DTYPES(X)
#undef X
  };
  return bytes[dtype];
}

static void write_elements(const aspen_arg *a) {
  int64_t at[ASPEN_MAX_RANK] = {0};
  const size_t item = item_bytes(a->dtype);
  for (int k = 0; k < a->rank; k++)
    if (!a->dims[k]) return;
  for (;;) {
    const char *p = a->ptr;
    for (int k = 0; k < a->rank; k++) p += at[k] * a->strides[k] * (int64_t)item;
    fwrite(p, item, 1, stdout);
    int k = a->rank - 1;
    while (k >= 0 && ++at[k] == a->dims[k]) at[k--] = 0;
    if (k < 0) return;
  }
}

static void replay(const char *call) {
  uint32_t head[4];
  take(head, &call, sizeof head);
  need(head[1] <= MAX_ARGS && head[2] <= MAX_PARAMS && head[3] <= ASPEN_MAX_RANK, "a call that is none");
  int64_t params[MAX_PARAMS], dims[MAX_ARGS][ASPEN_MAX_RANK], strides[MAX_ARGS][ASPEN_MAX_RANK];
  aspen_arg args[MAX_ARGS] = {0};
  char *blocks[MAX_ARGS] = {0};
  aspen_call c = {.args = args, .n_inputs = head[1] - 1, .params = params};
  take(params, &call, 8 * head[2]);
  for (uint32_t k = 0; k < head[3]; k++) {
    take(&c.lo[k], &call, 8);
    take(&c.hi[k], &call, 8);
  }
  for (uint32_t i = 0; i < head[1]; i++) {
    uint32_t kind[2];
    int64_t place[2];
    take(kind, &call, sizeof kind);
    take(place, &call, sizeof place);
    args[i] = (aspen_arg){.dims = dims[i], .strides = strides[i], .dtype = (uint8_t)kind[0], .rank = (uint8_t)kind[1]};
    for (uint32_t k = 0; k < kind[1]; k++) {
      take(&dims[i][k], &call, 8);
      take(&strides[i][k], &call, 8);
    }
    if (!kind[0]) continue;
    blocks[i] = malloc(place[1] ? place[1] : 1);
    need(blocks[i] != NULL, "no memory");
    take(blocks[i], &call, place[1]);
    args[i].ptr = blocks[i] + place[0];
  }
  c.scratch_bytes = scratch_of(head[0], &c);
  char *scratch = c.scratch_bytes ? aligned_alloc(64, (c.scratch_bytes + 63) / 64 * 64) : NULL;
  c.scratch = scratch;
  aspen_kernel_fn run = kernel_of(head[0]);
  need(run != NULL, "a kernel that was not compiled in");
  int32_t status = run(&c);
  fwrite(&status, sizeof status, 1, stdout);
  write_elements(&args[0]);
  fflush(stdout);
  free(scratch);
  for (uint32_t i = 0; i < head[1]; i++) free(blocks[i]);
}

int main(void) {
  uint32_t bytes;
  while (fread(&bytes, sizeof bytes, 1, stdin) == 1) {
    char *call = malloc(bytes);
    need(call && fread(call, 1, bytes, stdin) == bytes, "a call that is cut short");
    replay(call);
    free(call);
  }
  return 0;
}
