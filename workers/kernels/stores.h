/* Stores that go past the caches, where those that stay in them are slow.
 *
 * A line must be a core's alone before it is written. Where other cores have read it since, their copies are taken back first. Among cores
 * that share a last-level cache that costs little; from one such cache to another 25 ns a line (Zen 4), however far ahead the line is asked
 * for, and a kernel that only adds writes one in two. A store past the caches waits for nobody; but then the line is read from memory.
 *
 * Which of them is better depends on which cores run the tiles before and after, and on caches that hosts of virtual machines do not tell
 * the truth about. So each worker measures: its tiles store as has been better, and a few the other way. It changes times, never results.
 *
 * Such stores are not ordered with others: stores_end() makes them so, before anybody is told that the tile is done (I1 of shm/README.md).
 */
#ifndef ASPEN_STORES_H
#define ASPEN_STORES_H
#include "vec.h"

#if defined(__x86_64__) && VL > 4
#define STORES_PAST 1
#else
#define STORES_PAST 0
#endif

#define STORES_LINES 256 /* that a tile writes at least, to be measured */
#define STORES_WORTH 3.0 /* times as long: whoever reads the lines afterwards waits for memory, which is not measured here */
#define STORES_TRY_PAST 256 /* one tile of so many goes past the caches where that is not better … */
#define STORES_TRY_KEPT 64  /* … and one of so many stays in them where it is */

/* Of a kernel, on a worker. Ticks a line, as tiles have taken that store so: of the last one, but at most twice what was known before, so that
 * one that was interrupted changes nothing. 0: not known. */
typedef struct stores {
  double kept, past;
  uint32_t tiles;
} stores;

#if STORES_PAST
#if VL == 16
INLINE void vstore_past(float *p, vf v) { _mm512_stream_ps(p, (__m512)v); } /* aligned */
#else
INLINE void vstore_past(float *p, vf v) { _mm256_stream_ps(p, (__m256)v); }
#endif
#else
INLINE void vstore_past(float *p, vf v) { vstore(p, v); }
#endif

typedef struct stores_tile {
  uint64_t begun;
  int64_t lines;
  int past;
} stores_tile;

/* Whether this tile's stores go past the caches (`past`). */
static inline stores_tile stores_begin(stores *s, int64_t lines) {
#if STORES_PAST
  const int better = s->past > 0 && s->kept > STORES_WORTH * s->past;
  int past = better;
  if (lines >= STORES_LINES && ++s->tiles % (better ? STORES_TRY_KEPT : STORES_TRY_PAST) == 0) past = !better;
  if (lines >= STORES_LINES && s->kept > 0 && !(s->past > 0)) past = 1;
  return (stores_tile){__builtin_ia32_rdtsc(), lines, past};
#else
  return (stores_tile){0, lines, 0};
#endif
}

/* A tile that stored so has taken so many ticks a line. */
static inline void stores_learn(stores *s, int past, double ticks) {
  double *known = past ? &s->past : &s->kept;
  *known = *known > 0 && ticks > 2 * *known ? 2 * *known : ticks;
}

static inline void stores_end(stores *s, stores_tile tile) {
#if STORES_PAST
  if (tile.past) _mm_sfence();
  if (tile.lines >= STORES_LINES) stores_learn(s, tile.past, (double)(__builtin_ia32_rdtsc() - tile.begun) / (double)tile.lines);
#else
  (void)s, (void)tile;
#endif
}

#endif
