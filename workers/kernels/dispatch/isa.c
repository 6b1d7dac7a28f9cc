/* Finds the instruction sets of this CPU, and chooses one. Includes no kernel: processes that run none ask too. */
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "dispatch/isa.h"

const char *aspen_isa_name(enum aspen_isa isa) {
  static const char *const names[ASPEN_N_ISA] = {"portable", "avx2", "avx512"};
  return (unsigned)isa < ASPEN_N_ISA ? names[isa] : "?";
}

/* Builds for one machine have the kernels of a single instruction set, ASPEN_ONLY. */
static int is_built(enum aspen_isa isa) {
#ifdef ASPEN_ONLY
#define TEXT2(name) #name
#define TEXT(name) TEXT2(name)
  return !strcmp(aspen_isa_name(isa), TEXT(ASPEN_ONLY));
#else
  return 1;
#endif
}

int aspen_isa_supported(enum aspen_isa isa) {
  if (!is_built(isa)) return 0;
  if (isa == ASPEN_ISA_PORTABLE) return 1;
#if defined(__x86_64__)
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
  const unsigned fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
  if ((c & (fma | osxsave | avx | f16c)) != (fma | osxsave | avx | f16c)) return 0;
  unsigned xcr_lo, xcr_hi; /* which register states the operating system saves */
  __asm__ volatile("xgetbv" : "=a"(xcr_lo), "=d"(xcr_hi) : "c"(0));
  if ((xcr_lo & 0x6) != 0x6) return 0; /* xmm, ymm */
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & 1u << 5)) return 0;
  if (isa == ASPEN_ISA_AVX2) return 1;
  const unsigned f512 = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31;
  return isa == ASPEN_ISA_AVX512 && (xcr_lo & 0xe6) == 0xe6 && (b & (f512 | dq | bw | vl)) == (f512 | dq | bw | vl);
#else
  return 0;
#endif
}

int aspen_isa_halves(void) {
#if defined(__x86_64__)
  const unsigned performance = 0x8000001a, fp256 = 1u << 2; /* AMD: width of the datapath; reads 0 elsewhere */
  unsigned a, b, c, d;
  return aspen_isa_supported(ASPEN_ISA_AVX512) && __get_cpuid(performance, &a, &b, &c, &d) && (a & fp256);
#else
  return 0;
#endif
}

static int is_set(const char *variable, const char *value) {
  const char *setting = getenv(variable);
  return setting && !strcmp(setting, value);
}
static int is_off(const char *variable) { return is_set(variable, "off"); }

static int has_vnni(enum aspen_isa isa) {
  if (is_off("ASPEN_MP_VNNI")) return 0;
#if defined(__x86_64__)
  unsigned a, b, c, d;
  if (!aspen_isa_supported(isa)) return 0;
#ifdef ASPEN_AVX512_VNNI
  if (isa == ASPEN_ISA_AVX512) return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c & 1u << 11);
#endif
#ifdef ASPEN_AVX_VNNI
  if (isa == ASPEN_ISA_AVX2) return __get_cpuid_count(7, 0, &a, &b, &c, &d) && a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
#endif
#endif
  return 0;
}

int aspen_isa_vnni(enum aspen_isa isa) {
  static signed char known[ASPEN_N_ISA]; /* to ask takes long in virtual machines; whoever asks first finds the same as all others */
  if (!known[isa]) known[isa] = has_vnni(isa) ? 1 : -1;
  return known[isa] > 0;
}

static int has_vbmi(enum aspen_isa isa) {
  if (is_off("ASPEN_MP_VNNI")) return 0;
#if defined(__x86_64__) && defined(ASPEN_AVX512_VBMI)
  unsigned a, b, c, d;
  return isa == ASPEN_ISA_AVX512 && aspen_isa_supported(isa) && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c & 1u << 1);
#else
  return 0;
#endif
}

int aspen_isa_vbmi(enum aspen_isa isa) {
  static signed char known[ASPEN_N_ISA]; /* as above */
  if (!known[isa]) known[isa] = has_vbmi(isa) ? 1 : -1;
  return known[isa] > 0;
}

static int has_bf16(enum aspen_isa isa) {
  if (is_off("ASPEN_MP_BF16")) return 0;
#if defined(__x86_64__) && defined(ASPEN_AVX512_BF16)
  unsigned a, b, c, d;
  return isa == ASPEN_ISA_AVX512 && aspen_isa_supported(isa) && __get_cpuid_count(7, 0, &a, &b, &c, &d) && a >= 1 &&
         __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 5);
#else
  return 0;
#endif
}

int aspen_isa_bf16(enum aspen_isa isa) {
  static signed char known[ASPEN_N_ISA]; /* as above */
  if (!known[isa]) known[isa] = has_bf16(isa) ? 1 : -1;
  return known[isa] > 0;
}

#if defined(__x86_64__) && defined(ASPEN_AMX)
enum { XCOMP_SUPPORTED = 0x1021, XCOMP_ASK = 0x1023, XCOMP_REGISTERS = 18 }; /* of arch_prctl, which libraries do not know */

/* Whether CPU and operating system have AMX: registers, for bytes and bf16, as large as amx.h has them. */
static int has_amx(enum aspen_isa isa) {
  const unsigned needed = 1u << 22 | 1u << 24 | 1u << 25, saved = 3u << 17;
  unsigned a, b, c, d, xcr_lo, xcr_hi;
  if (isa != ASPEN_ISA_AVX512 || !aspen_isa_supported(isa)) return 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & needed) != needed) return 0;
  __asm__ volatile("xgetbv" : "=a"(xcr_lo), "=d"(xcr_hi) : "c"(0));
  if ((xcr_lo & saved) != saved) return 0;
  if (!__get_cpuid_count(0x1d, 1, &a, &b, &c, &d) || b >> 16 < 8 || (b & 0xffff) < 64 || (c & 0xffff) < 16) return 0;
  unsigned long features = 0;
  return !syscall(SYS_arch_prctl, XCOMP_SUPPORTED, &features) && (features & 1ul << XCOMP_REGISTERS);
}

/* A process keeps what it was permitted, and its children by fork have it, too. */
static int may_use_amx(enum aspen_isa isa) { return has_amx(isa) && !syscall(SYS_arch_prctl, XCOMP_ASK, XCOMP_REGISTERS); }
#else
static int has_amx(enum aspen_isa isa) { return 0; }
static int may_use_amx(enum aspen_isa isa) { return 0; }
#endif

int aspen_isa_amx_sums(enum aspen_isa isa) {
  return is_set("ASPEN_MP_AMX", "twin") || (is_set("ASPEN_MP_AMX", "on") && has_amx(isa));
}

enum aspen_amx aspen_isa_amx(enum aspen_isa isa, int needed) {
  static signed char known[2][ASPEN_N_ISA]; /* as above; 1 more than the answer */
  needed = needed != 0;
  if (!known[needed][isa]) {
    enum aspen_amx how = needed ? ASPEN_AMX_TWIN : ASPEN_AMX_OFF;
    if (is_set("ASPEN_MP_AMX", "twin")) how = ASPEN_AMX_TWIN;
    else if ((needed || is_set("ASPEN_MP_AMX", "on")) && may_use_amx(isa)) how = ASPEN_AMX_REAL;
    known[needed][isa] = (signed char)(how + 1);
  }
  return (enum aspen_amx)(known[needed][isa] - 1);
}

int aspen_isa_select(const char *name) {
  for (int isa = ASPEN_N_ISA - 1; isa >= 0; isa--) {
    if (!name || !*name) {
      if (aspen_isa_supported((enum aspen_isa)isa)) return isa;
    } else if (!strcmp(name, aspen_isa_name((enum aspen_isa)isa))) {
      return aspen_isa_supported((enum aspen_isa)isa) ? isa : -2;
    }
  }
  return name && *name ? -1 : -2; /* a build for another machine */
}

const char *aspen_isa_from_env(void) { return getenv("ASPEN_MP_ISA"); }
