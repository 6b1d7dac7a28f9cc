/* Stores that go past the caches, for tiles whose output is read by cores that share none with this one (`aspen_call.apart`).
 *
 * A line must be a core's alone before it is written. Where other cores have read it since, their copies are taken back first. That costs
 * little among cores that share a last-level cache. From one such cache to another it costs 25 ns a line (Zen 4), however far ahead the
 * line is asked for. A store past the caches waits for nobody, and what it replaces need not come; but then the line is read from memory.
 * It changes times, never results.
 *
 * Such stores are not ordered with others: stores_done() makes them so, before anybody is told that the tile is done (I1, docs/protocol).
 */
#ifndef ASPEN_STORES_H
#define ASPEN_STORES_H
#include "kernel.h"
#include "vector/vec.h"

#if defined(__x86_64__) && VL > 4
#define STORES_PAST 1
#else
#define STORES_PAST 0
#endif

#define LINE_FLOATS 16

/* Whether V vectors that are stored side by side fill lines; with fewer, halves of lines wait for each other. */
#define STORES_LINES(V) ((V) * VL >= LINE_FLOATS)

/* Whether a tile's output may go past the caches, with channels (or columns) along axis `unit`. All pixels must be cut into lines alike. */
static inline int stores_past(const aspen_call *c, int unit) {
  const aspen_arg *out = &c->args[0];
  int64_t uneven = 0;
  for (int i = 0; i < out->rank; i++)
    if (i != unit) uneven |= out->strides[i];
  return STORES_PAST && c->apart && out->strides[unit] == 1 && uneven % LINE_FLOATS == 0;
}

/* Whether lines of such a tile begin at `to`. */
INLINE int stores_begin(int past, const float *to) { return past && (uintptr_t)to % (LINE_FLOATS * sizeof *to) == 0; }

INLINE void vstore_to(const int past, float *p, vf v) {
#if STORES_PAST
  if (past) {
#if VL == 16
    _mm512_stream_ps(p, (__m512)v);
#else
    _mm256_stream_ps(p, (__m256)v);
#endif
    return;
  }
#endif
  vstore(p, v);
}

/* Before such a tile's kernel returns. */
static inline void stores_done(const aspen_call *c) {
#if STORES_PAST
  if (c->apart) _mm_sfence();
#else
  (void)c;
#endif
}

#endif
