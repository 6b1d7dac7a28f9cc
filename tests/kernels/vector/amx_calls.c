/* The wrapper of AMX, callable from a test: each function by instructions (real) or by the twin. On a processor without AMX, traps() lets
 * the instructions themselves run. Each raises SIGILL, and a handler decodes it as Intel's manual says and computes it by the twin. So
 * numbers of registers, order of operands and addresses are tested, too. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <ucontext.h>

#include "gemm/amx_sums.h"

INLINE void dot_of(const int real, const int type, const amx_shapes *shapes, const char *const *from, const int64_t *steps, char *to,
                   int64_t step) {
  amx_registers r;
  amx_configure(real, &r, shapes);
  amx_zero(real, &r, 1);
  if (from[0]) amx_load(real, &r, 1, from[0], steps[0]);
  amx_load(real, &r, 3, from[1], steps[1]);
  amx_load(real, &r, 6, from[2], steps[2]);
  amx_dot(type == 0 ? AMX_BYTES : AMX_BF16, real, &r, 1, 3, 6);
  amx_store(real, &r, 1, to, step);
  amx_release(real);
}

/* One product: register 1 from from[0] (NULL: zeros), plus those of registers 3 and 6. type: 0 for bytes, 1 for bf16. */
void dot(int real, int type, const amx_shapes *shapes, const char *const *from, const int64_t *steps, char *to, int64_t step) {
  if (real && type) dot_of(AMX_REAL, 1, shapes, from, steps, to, step);
  else if (real) dot_of(AMX_REAL, 0, shapes, from, steps, to, step);
  else if (type) dot_of(0, 1, shapes, from, steps, to, step);
  else dot_of(0, 0, shapes, from, steps, to, step);
}

/* The sums of a strip. */
void strip(int real, int type, const amx_terms *terms, int rows, const char *a, const char *panel, void *sums) {
  amx_use use = {0};
  const enum aspen_amx how = real ? ASPEN_AMX_REAL : ASPEN_AMX_TWIN;
  if (type) amx_sums_as(how, AMX_BF16, terms, &use, rows, a, panel, sums);
  else amx_sums_as(how, AMX_BYTES, terms, &use, rows, a, panel, sums);
  amx_done(how);
}

#if AMX_REAL
static amx_registers state;
static long count;

static int64_t value_of(const ucontext_t *u, int number) {
  static const int names[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                              REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
  return u->uc_mcontext.gregs[names[number]];
}

/* The operand in memory of the instruction whose modrm byte is at p; *step: its index register. Returns the bytes from modrm on. */
static int address_of(const ucontext_t *u, const uint8_t *p, int b, int x, char **at, int64_t *step) {
  const int mod = p[0] >> 6, rm = p[0] & 7;
  int length = 1;
  int64_t base, displacement = 0;
  *step = 0;
  if (rm == 4) {
    const int sib = p[length++], index = (sib >> 3 & 7) | x << 3;
    if (index != 4) *step = value_of(u, index) << (sib >> 6);
    base = (sib & 7) == 5 && mod == 0 ? 0 : value_of(u, (sib & 7) | b << 3);
    if ((sib & 7) == 5 && mod == 0) abort(); /* no base: compilers do not use it here */
  } else {
    base = mod == 0 && rm == 5 ? (int64_t)(p + 5) : value_of(u, rm | b << 3);
  }
  if (mod == 1) displacement = (int8_t)p[length], length += 1;
  if (mod == 2 || (mod == 0 && rm == 5)) {
    int32_t four;
    memcpy(&four, p + length, sizeof four);
    displacement = four, length += 4;
  }
  *at = (char *)(base + displacement);
  return length;
}

#define EACH(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7)
#define ZERO(t) if (reg == t) amx_zero(0, &state, t);
#define LOAD(t) if (reg == t) amx_load(0, &state, t, at, step);
#define STORE(t) if (reg == t) amx_store(0, &state, t, at, step);
/* The twin takes numbers that it reads once, so that they need not be constants here. */
static void trapped(int number, siginfo_t *info, void *context) {
  ucontext_t *const u = context;
  const uint8_t *const p = (const uint8_t *)u->uc_mcontext.gregs[REG_RIP];
  const int x = !(p[1] & 0x40), b = !(p[1] & 0x20), second = ~(p[2] >> 3) & 15, prefix = p[2] & 3;
  const int reg = p[4] >> 3 & 7, in_memory = p[4] >> 6 != 3;
  enum { NONE, P66, PF3, PF2 };
  if (p[0] != 0xc4 || (p[1] & 0x1f) != 2 || p[2] & 0x84) abort();
  char *at = NULL;
  int64_t step = 0;
  int length = 1;
  if (in_memory) length = address_of(u, p + 4, b, x, &at, &step);
  if (p[3] == 0x49 && prefix == NONE && in_memory) amx_configure(0, &state, (const amx_shapes *)at);
  else if (p[3] == 0x49 && prefix == NONE) state = (amx_registers){0};
  else if (p[3] == 0x49 && prefix == PF2) { EACH(ZERO) }
  else if (p[3] == 0x4b && prefix == PF2) { EACH(LOAD) }
  else if (p[3] == 0x4b && prefix == PF3) { EACH(STORE) }
  else if (p[3] == 0x5e && prefix == P66) amx_dot_bytes(0, &state, reg, p[4] & 7, second);
  else if (p[3] == 0x5c && prefix == PF3) amx_dot_bf16(0, &state, reg, p[4] & 7, second);
  else abort();
  u->uc_mcontext.gregs[REG_RIP] += 4 + length;
  count++;
}

/* on: instructions trap from now on. Off: how many have. */
long traps(int on) {
  static struct sigaction before;
  if (!on) {
    sigaction(SIGILL, &before, NULL);
    return count;
  }
  count = 0;
  return sigaction(SIGILL, &(struct sigaction){.sa_sigaction = trapped, .sa_flags = SA_SIGINFO}, &before);
}
#endif
