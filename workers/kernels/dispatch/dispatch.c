/* Tables of kernels per instruction set. Everything is made from kernels.def. */
#include "kernel.h"

/* A function of an instruction set. Builds for one machine have those of a single one, and isa.c denies the others. */
#ifdef ASPEN_ONLY
#define PASTE2(a, b) a##b
#define PASTE(a, b) PASTE2(a, b)
#define OF(f, isa) PASTE(aspen_##f##_, ASPEN_ONLY)
#else
#define OF(f, isa) aspen_##f##_##isa
#endif

/* Declarations. */
#define DECLARE_PORTABLE(f) int OF(f, portable)(const aspen_call *);
#if defined(__x86_64__)
#define DECLARE_ALL(f) DECLARE_PORTABLE(f) int OF(f, avx2)(const aspen_call *); int OF(f, avx512)(const aspen_call *);
#else
#define DECLARE_ALL(f) DECLARE_PORTABLE(f)
#endif
#define KERNEL(id, f, isas, scratch)                                                                                               \
  DECLARE_##isas(f) size_t aspen_scratch_##scratch(const aspen_call *);
#include "kernels.def"
#undef KERNEL

size_t aspen_scratch_none(const aspen_call *call) { return 0; }

/* Tables. A kernel without a build for an ISA falls back to the portable one. */
#define KERNEL(id, f, isas, scratch) [ASPEN_K_##id] = OF(f, portable),
static const aspen_kernel_fn table_portable[ASPEN_N_KERNELS] = {
#include "kernels.def"
};
#undef KERNEL

#if defined(__x86_64__)
#define PICK_PORTABLE(f, isa) OF(f, portable)
#define PICK_ALL(f, isa) OF(f, isa)
#define KERNEL(id, f, isas, scratch) [ASPEN_K_##id] = PICK_##isas(f, avx2),
static const aspen_kernel_fn table_avx2[ASPEN_N_KERNELS] = {
#include "kernels.def"
};
#undef KERNEL
#define KERNEL(id, f, isas, scratch) [ASPEN_K_##id] = PICK_##isas(f, avx512),
static const aspen_kernel_fn table_avx512[ASPEN_N_KERNELS] = {
#include "kernels.def"
};
#undef KERNEL
#else
#define table_avx2 table_portable
#define table_avx512 table_portable
#endif

#define KERNEL(id, f, isas, scratch) [ASPEN_K_##id] = aspen_scratch_##scratch,
static size_t (*const table_scratch[ASPEN_N_KERNELS])(const aspen_call *) = {
#include "kernels.def"
};
#undef KERNEL

const aspen_kernel_fn *aspen_kernels_for(enum aspen_isa isa) {
  switch (isa) {
  case ASPEN_ISA_AVX512: return table_avx512;
  case ASPEN_ISA_AVX2: return table_avx2;
  default: return table_portable;
  }
}

size_t aspen_kernel_scratch(uint32_t kernel, const aspen_call *call) {
  return kernel < ASPEN_N_KERNELS && table_scratch[kernel] ? table_scratch[kernel](call) : 0;
}

/* probe.c */
#define PROBES(isa) double OF(probe_flops, isa)(int64_t, float *); void OF(probe_read, isa)(const float *, int64_t, int64_t, float *);
PROBES(portable)
#if defined(__x86_64__)
PROBES(avx2)
PROBES(avx512)
#else
#define aspen_probe_flops_avx2 aspen_probe_flops_portable
#define aspen_probe_flops_avx512 aspen_probe_flops_portable
#define aspen_probe_read_avx2 aspen_probe_read_portable
#define aspen_probe_read_avx512 aspen_probe_read_portable
#endif

double aspen_probe_flops(enum aspen_isa isa, int64_t turns) {
  float sink;
  return isa == ASPEN_ISA_AVX512 ? OF(probe_flops, avx512)(turns, &sink)
         : isa == ASPEN_ISA_AVX2 ? OF(probe_flops, avx2)(turns, &sink)
                                 : OF(probe_flops, portable)(turns, &sink);
}

void aspen_probe_read(enum aspen_isa isa, const float *p, int64_t n, int64_t rounds) {
  float sink;
  if (isa == ASPEN_ISA_AVX512) OF(probe_read, avx512)(p, n, rounds, &sink);
  else if (isa == ASPEN_ISA_AVX2) OF(probe_read, avx2)(p, n, rounds, &sink);
  else OF(probe_read, portable)(p, n, rounds, &sink);
}

int aspen_probe_flush(const char *p, int64_t bytes) {
#if defined(__x86_64__)
  for (int64_t i = 0; i < bytes; i += 64) __builtin_ia32_clflush(p + i);
  if (bytes > 0) __builtin_ia32_clflush(p + bytes - 1);
  __builtin_ia32_mfence();
  return 1;
#else
  (void)p, (void)bytes;
  return 0;
#endif
}
