/* Whether other workers' cores are behind other last-level caches (docs/protocol/cores.md, "Caches apart").
 *
 * Machines do not always report it, and virtual machines least. So a DSE measures how long it takes to read a line that another worker
 * writes. Kernels that store past the caches decide by the result (`aspen_call.apart`).
 */
#ifndef ASPEN_CACHES_H
#define ASPEN_CACHES_H
#include "engine/state.h"

/* A read that takes longer, in ns, came from behind another last-level cache. On Zen 4 a line takes 30 to 80 from behind the same one, and
 * 130 to 170 from behind another. */
#define ASPEN_FAR_NS 110
/* The weight of the latest look in `far`. */
#define ASPEN_FAR_NEW 0.05
/* Caches count as apart when a larger share of looks took that long. Where they are, it is 0.4 to 0.8, because a prefetcher was often there
 * before. Where they are not, it is 0.004. */
#define ASPEN_FAR_SHARE 0.2

/* The row whose line is looked at: each open row in turn. ASPEN_NONE: there is no other. */
static inline uint32_t aspen_dse_neighbour(struct aspen_dse *d) {
  for (uint32_t k = 0; k < d->n_victims; k++) {
    const uint32_t r = d->victim[d->turn++ % d->n_victims];
    if (aspen_load_relaxed(&d->s.control->row[r].open)) return r;
  }
  return ASPEN_NONE;
}

/* The ticks that it takes to read a word in a line that its worker alone writes. */
static inline uint64_t aspen_dse_read(const uint64_t *word, uint64_t *found) {
#if defined(__x86_64__) && !defined(ASPEN_MODEL_CHECK)
  __builtin_ia32_lfence(); /* Earlier work is done, */
  const uint64_t began = aspen_ticks();
  __builtin_ia32_lfence(); /* and the clock is read, before the line is asked for. */
  *found = aspen_stat_load(word);
  __builtin_ia32_lfence();
  return aspen_ticks() - began;
#else
  *found = aspen_stat_load(word); /* No kernel of this processor stores past the caches. */
  return 0;
#endif
}

/* Worker `r` had executed `tiles` tiles when its line was read, and the read took `took` ticks. An idle worker has read nothing lately, so
 * it counts as near. A worker that has ended no tile since the last look teaches nothing: its line was already here. */
static inline void aspen_dse_hear(struct aspen_dse *d, uint32_t r, uint64_t tiles, uint64_t took, int busy) {
  const int news = r != d->heard_of || tiles != d->heard;
  d->heard_of = r;
  d->heard = tiles;
  if (busy && !news) return;
  d->far += ASPEN_FAR_NEW * ((busy && aspen_dse_ns(d, took) > ASPEN_FAR_NS) - d->far);
  d->apart = d->far > ASPEN_FAR_SHARE;
}

/* Looks at one other worker's line. */
static inline void aspen_dse_apart(struct aspen_dse *d) {
  const uint32_t r = aspen_dse_neighbour(d);
  uint64_t tiles = 0, took = 0;
  if (r == ASPEN_NONE) {
    d->far = d->apart = 0;
    return;
  }
  const struct aspen_worker *other = &d->s.control->worker[r];
  took = aspen_dse_read(&other->tiles, &tiles);
  aspen_dse_hear(d, r, tiles, took, !aspen_stat_load(&other->idle));
}

#endif
