/* Instruction sets that kernels are compiled for. */
#ifndef ASPEN_ISA_H
#define ASPEN_ISA_H

enum aspen_isa { ASPEN_ISA_PORTABLE = 0, ASPEN_ISA_AVX2 = 1, ASPEN_ISA_AVX512 = 2, ASPEN_N_ISA };

const char *aspen_isa_name(enum aspen_isa isa);        /* "portable", "avx2", "avx512" */
int aspen_isa_supported(enum aspen_isa isa);           /* by this CPU, operating system and build */
/* Best supported ISA, or the one named. Returns -1 for an unknown name, -2 for one that is not supported. name NULL or "": best. */
int aspen_isa_select(const char *name);
/* Whether this core takes vectors of 512 bits in two halves (AVX-512 on datapaths of 256 bits). Then multiply-adds take twice as long
 * beside loads from L2 as on a core that takes them whole. */
int aspen_isa_halves(void);
/* Whether this CPU sums products of bytes in one instruction, in vectors of the instruction set (AVX512_VNNI, AVX_VNNI), and the compiler
 * knew it. The environment variable ASPEN_MP_VNNI=off says no. */
int aspen_isa_vnni(enum aspen_isa isa);
/* Whether this CPU finds bytes in tables of 128 in one instruction (AVX512_VBMI), as above. ASPEN_MP_VNNI=off says no to this, too. */
int aspen_isa_vbmi(enum aspen_isa isa);
/* Whether this CPU sums products of pairs of bf16 in one instruction (AVX512_BF16), in vectors of the instruction set, and the compiler
 * knew it. The environment variable ASPEN_MP_BF16=off says no. */
int aspen_isa_bf16(enum aspen_isa isa);
/* Whether plans are made for the sums of AMX. With ASPEN_MP_AMX=on they are where CPU and operating system have it beside the instruction
 * set, and the compiler knew it; with ASPEN_MP_AMX=twin, anywhere. Asks the operating system for nothing. */
int aspen_isa_amx_sums(enum aspen_isa isa);
/* How this process computes such sums. The first call asks the operating system for the registers, which it may refuse. */
enum aspen_amx {
  ASPEN_AMX_OFF,  /* not at all */
  ASPEN_AMX_TWIN, /* as portable C does, with the same bits (vector/amx.h) */
  ASPEN_AMX_REAL  /* by instructions */
};
/* needed: a plan has sums of AMX, which have bits of their own: never ASPEN_AMX_OFF. Else other sums have the same bits, and AMX computes
 * them only where ASPEN_MP_AMX says so. */
enum aspen_amx aspen_isa_amx(enum aspen_isa isa, int needed);
const char *aspen_isa_from_env(void);                   /* value of ASPEN_MP_ISA, or NULL */

#endif
