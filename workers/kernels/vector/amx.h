/* The instructions of AMX on its eight registers of 16 rows of 64 bytes, and a portable twin of each that computes the same bits.
 *
 * real: 1 for the instruction, which the process must be permitted to use (aspen_isa_amx), 0 for the twin. It is a constant, as numbers of
 * registers are. The twin keeps its registers in `r`, which instructions do not touch.
 *
 * Sums of bf16 are as Intel's manual has them (TDPBF16PS). The even and the odd terms of pairs have sums of their own, from zero on, by a
 * fused multiply-add each. Then the two are added, and their sum to the register. Every step rounds to nearest even. Denormal numbers count
 * as zeros, as terms and as results. Where NaNs meet, it may differ which of them results.
 */
#ifndef ASPEN_AMX_H
#define ASPEN_AMX_H
#include "vector/half.h"
#include "vector/vec.h"

enum { AMX_REGISTERS = 8, AMX_ROWS = 16, AMX_ROW_BYTES = 64, AMX_LANES = 16, AMX_GROUP = 4 /* bytes of terms side by side */ };

#if VL == 16 && defined(ASPEN_AMX)
#define AMX_REAL 1 /* the compiler knows the instructions */
#else
#define AMX_REAL 0
#endif

/* The shapes of the registers, as LDTILECFG reads them. */
typedef struct amx_shapes {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
} amx_shapes;
_Static_assert(sizeof(amx_shapes) == 64, "");

typedef struct amx_registers {
  amx_shapes shapes;
  uint32_t data[AMX_REGISTERS][AMX_ROWS][AMX_LANES];
} amx_registers;

/* Gives the registers shapes, and clears them. */
INLINE void amx_configure(const int real, amx_registers *r, const amx_shapes *shapes) {
#if AMX_REAL
  if (real) {
    __asm__ volatile("ldtilecfg %0" : : "m"(*shapes));
    return;
  }
#endif
  r->shapes = *shapes;
  memset(r->data, 0, sizeof r->data);
}

/* Ends the use of the registers: what switches to another process need not keep them. */
INLINE void amx_release(const int real) {
#if AMX_REAL
  if (real) __asm__ volatile("tilerelease");
#endif
}

INLINE void amx_zero(const int real, amx_registers *r, const int t) {
#if AMX_REAL
  if (real) {
    __asm__ volatile("tilezero %%tmm%c0" : : "i"(t));
    return;
  }
#endif
  memset(r->data[t], 0, sizeof r->data[t]);
}

/* Rows that are `step` bytes apart. */
INLINE void amx_load(const int real, amx_registers *r, const int t, const void *from, int64_t step) {
#if AMX_REAL
  if (real) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(step), "i"(t) : "memory");
    return;
  }
#endif
  memset(r->data[t], 0, sizeof r->data[t]);
  for (int i = 0; i < r->shapes.rows[t]; i++) memcpy(r->data[t][i], (const char *)from + i * step, r->shapes.row_bytes[t]);
}

INLINE void amx_store(const int real, const amx_registers *r, const int t, void *to, int64_t step) {
#if AMX_REAL
  if (real) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(step), "i"(t) : "memory");
    return;
  }
#endif
  for (int i = 0; i < r->shapes.rows[t]; i++) memcpy((char *)to + i * step, r->data[t][i], r->shapes.row_bytes[t]);
}

/* sum[i][j] += sum over k of the four products of bytes a[i][k] (unsigned) and b[k][j] (signed). Lanes are of 32 bits, sums wrap around. */
INLINE void amx_dot_bytes(const int real, amx_registers *r, const int sum, const int a, const int b) {
#if AMX_REAL
  if (real) {
    __asm__ volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sum), "i"(a), "i"(b));
    return;
  }
#endif
  for (int i = 0; i < r->shapes.rows[sum]; i++)
    for (int k = 0; k < r->shapes.row_bytes[a] / AMX_GROUP; k++) {
      const uint8_t *const left = (const uint8_t *)&r->data[a][i][k];
      const int8_t *const right = (const int8_t *)r->data[b][k];
      for (int j = 0; j < r->shapes.row_bytes[sum] / 4; j++)
        for (int q = 0; q < AMX_GROUP; q++) r->data[sum][i][j] += (uint32_t)(left[q] * right[j * AMX_GROUP + q]);
    }
}

/* The even (0) or odd (1) term of a pair; denormal ones are zeros. */
INLINE double amx_term(uint32_t pair, int odd) {
  const uint32_t bits = odd ? pair & 0xffff0000 : pair << 16;
  return half_float(bits & (bits & 0x7f800000 ? 0xffffffff : 0x80000000));
}

/* The f32 nearest to x, a zero where it is denormal: just below the normal numbers some still round up to one. In the sums below, x
 * is rounded itself only where one summand is far smaller than the other. That leaves it close to an f32, so that rounding twice is as good
 * as rounding once. No branches: compilers make vector code of it. */
INLINE float amx_rounded(double x) {
  const double least = 0x1p-126 - 0x1p-151;
  int64_t size, limit;
  memcpy(&size, &x, sizeof size), memcpy(&limit, &least, sizeof limit);
  return half_float(half_bits((float)x) & ((size & INT64_MAX) < limit ? 0x80000000 : 0xffffffff));
}

/* sum[i][j] += sum over k of the two products of bf16 a[i][k] and b[k][j]; see above. */
INLINE void amx_dot_bf16(const int real, amx_registers *r, const int sum, const int a, const int b) {
#if AMX_REAL
  if (real) {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sum), "i"(a), "i"(b));
    return;
  }
#endif
  for (int i = 0; i < r->shapes.rows[sum]; i++) {
    float each[2][AMX_LANES] = {{0}};
    for (int k = 0; k < r->shapes.row_bytes[a] / AMX_GROUP; k++) {
      const double even = amx_term(r->data[a][i][k], 0), odd = amx_term(r->data[a][i][k], 1);
      for (int j = 0; j < AMX_LANES; j++) {
        each[0][j] = amx_rounded(each[0][j] + even * amx_term(r->data[b][k][j], 0));
        each[1][j] = amx_rounded(each[1][j] + odd * amx_term(r->data[b][k][j], 1));
      }
    }
    for (int j = 0; j < r->shapes.row_bytes[sum] / 4; j++) {
      uint32_t *const to = &r->data[sum][i][j];
      const double before = amx_rounded(half_float(*to)), more = amx_rounded((double)each[0][j] + each[1][j]);
      *to = half_bits(amx_rounded(before + more));
    }
  }
}

#endif
