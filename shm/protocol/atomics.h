/* Atomic operations with named orderings, spinning, clock: the only file that spells an __atomic builtin.
 *
 * Which to use:
 *   relaxed   a hint, or a word that a lock or another word's ordering protects
 *   acquire / release   publish: what was written before the release is seen after the acquire
 *   acq_rel   the counters of missing parents: whoever counts a child down to zero sees what every parent wrote (I1)
 *   seq       one total order over all seq operations: needed wherever two sides each write one word and then read the other's
 *             (docs/protocol/doorbell.md, "Park")
 *   guarded   plain accesses to words that only the holder of a lock touches; named so that the model checker sees them
 *   stat      words that one process writes and that decide nothing (statistics, heartbeat)
 *   show, see many words that one process writes while others read them: a counter before and after them says whether what was read is whole
 * Store-then-load order always comes from seq operations on the words themselves, never from stand-alone fences: those are invisible to
 * ThreadSanitizer, and on x86 a seq store (xchg) costs what a fence would.
 *
 * Under ASPEN_MODEL_CHECK every operation except `stat` goes to the model checker (tests/stress/model_checker/model.c), which decides who runs next.
 * Under ASPEN_CRASH_POINTS every operation first calls aspen_crash_point() (tests/crash/storm/world.h), which may end the process there.
 * Under ASPEN_SIMULATION every operation is counted, and after some of them other processes run first (system/simulation.h).
 */
#ifndef ASPEN_ATOMICS_H
#define ASPEN_ATOMICS_H
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "system/simulation.h"

#if defined(ASPEN_CRASH_POINTS)
void aspen_crash_point(uint32_t *site, const char *file, int line); /* *site: the caller's, 0 at first */
#define ASPEN_POINT_ ({ static uint32_t aspen_site_; aspen_crash_point(&aspen_site_, __FILE__, __LINE__); }),
#elif defined(ASPEN_SIMULATION)
#define ASPEN_POINT_ (aspen_sim_budget && --aspen_sim_budget == 0 ? aspen_sim_pause() : (void)0),
#else
#define ASPEN_POINT_
#endif

#ifndef ASPEN_MODEL_CHECK

#define aspen_load_relaxed(p) (ASPEN_POINT_ __atomic_load_n((p), __ATOMIC_RELAXED))
#define aspen_load_acquire(p) (ASPEN_POINT_ __atomic_load_n((p), __ATOMIC_ACQUIRE))
#define aspen_load_seq(p) (ASPEN_POINT_ __atomic_load_n((p), __ATOMIC_SEQ_CST))
#define aspen_store_relaxed(p, v) (ASPEN_POINT_ __atomic_store_n((p), (v), __ATOMIC_RELAXED))
#define aspen_store_release(p, v) (ASPEN_POINT_ __atomic_store_n((p), (v), __ATOMIC_RELEASE))
#define aspen_store_seq(p, v) (ASPEN_POINT_ __atomic_store_n((p), (v), __ATOMIC_SEQ_CST))
#define aspen_add_seq(p, v) (ASPEN_POINT_ __atomic_fetch_add((p), (v), __ATOMIC_SEQ_CST)) /* these return the old value */
#define aspen_sub_seq(p, v) (ASPEN_POINT_ __atomic_fetch_sub((p), (v), __ATOMIC_SEQ_CST))
#define aspen_sub_acq_rel(p, v) (ASPEN_POINT_ __atomic_fetch_sub((p), (v), __ATOMIC_ACQ_REL))
#define aspen_or_seq(p, v) (ASPEN_POINT_ __atomic_fetch_or((p), (v), __ATOMIC_SEQ_CST))
#define aspen_and_seq(p, v) (ASPEN_POINT_ __atomic_fetch_and((p), (v), __ATOMIC_SEQ_CST))
#define aspen_swap_seq(p, v) (ASPEN_POINT_ __atomic_exchange_n((p), (v), __ATOMIC_SEQ_CST))
/* Compare and swap: true when *p was `expected` and is now `desired`. */
#define aspen_cas_seq(p, expected, desired)                                                                                        \
  ({                                                                                                                               \
    __typeof__(*(p) + 0) aspen_e_ = (expected);                                                                                    \
    ASPEN_POINT_ __atomic_compare_exchange_n((p), &aspen_e_, (desired), 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                    \
  })
#define aspen_cas_acquire(p, expected, desired)                                                                                    \
  ({                                                                                                                               \
    __typeof__(*(p) + 0) aspen_e_ = (expected);                                                                                    \
    ASPEN_POINT_ __atomic_compare_exchange_n((p), &aspen_e_, (desired), 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);                    \
  })
#define aspen_load_guarded(p) (ASPEN_POINT_ *(p))
#define aspen_store_guarded(p, v) (ASPEN_POINT_(void)(*(p) = (v)))
#define aspen_copy_words(to, from, bytes) (ASPEN_POINT_(void)memcpy((to), (from), (bytes))) /* plain; a later release shows it */

static inline void aspen_cpu_relax(void) {
#if defined(ASPEN_SIMULATION)
  aspen_sim_spin();
#elif defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory");
#endif
}

/* Lets another thread of this CPU run. */
static inline void aspen_yield(void) {
#if defined(ASPEN_SIMULATION)
  aspen_sim_spin();
#else
  sched_yield();
#endif
}

/* One turn of a spin loop: pauses; now and then lets another thread of this CPU run, which may be the one that is waited for. */
static inline void aspen_spin(uint32_t *turns) {
  if (++*turns % 64 == 0)
    aspen_yield();
  else
    aspen_cpu_relax();
}

#else

enum aspen_mc_order { ASPEN_MC_RELAXED, ASPEN_MC_ACQUIRE, ASPEN_MC_RELEASE, ASPEN_MC_ACQ_REL, ASPEN_MC_SEQ };
enum aspen_mc_op { ASPEN_MC_ADD, ASPEN_MC_SUB, ASPEN_MC_OR, ASPEN_MC_AND, ASPEN_MC_SWAP };
uint64_t aspen_mc_load(const void *p, unsigned bytes, enum aspen_mc_order order);
void aspen_mc_store(void *p, unsigned bytes, uint64_t v, enum aspen_mc_order order);
uint64_t aspen_mc_rmw(void *p, unsigned bytes, enum aspen_mc_op op, uint64_t v, enum aspen_mc_order order);
int aspen_mc_cas(void *p, unsigned bytes, uint64_t expected, uint64_t desired, enum aspen_mc_order order);
void aspen_mc_spin(void);
uint64_t aspen_mc_guarded(void *p, unsigned bytes, int store, uint64_t v);
void aspen_mc_copy(void *to, const void *from, size_t bytes);

#define aspen_mc_typed_(p, e) ((__typeof__(*(p) + 0))(e))
#define aspen_load_relaxed(p) aspen_mc_typed_(p, aspen_mc_load((p), sizeof *(p), ASPEN_MC_RELAXED))
#define aspen_load_acquire(p) aspen_mc_typed_(p, aspen_mc_load((p), sizeof *(p), ASPEN_MC_ACQUIRE))
#define aspen_load_seq(p) aspen_mc_typed_(p, aspen_mc_load((p), sizeof *(p), ASPEN_MC_SEQ))
#define aspen_store_relaxed(p, v) aspen_mc_store((p), sizeof *(p), (uint64_t)(v), ASPEN_MC_RELAXED)
#define aspen_store_release(p, v) aspen_mc_store((p), sizeof *(p), (uint64_t)(v), ASPEN_MC_RELEASE)
#define aspen_store_seq(p, v) aspen_mc_store((p), sizeof *(p), (uint64_t)(v), ASPEN_MC_SEQ)
#define aspen_add_seq(p, v) aspen_mc_typed_(p, aspen_mc_rmw((p), sizeof *(p), ASPEN_MC_ADD, (uint64_t)(v), ASPEN_MC_SEQ))
#define aspen_sub_seq(p, v) aspen_mc_typed_(p, aspen_mc_rmw((p), sizeof *(p), ASPEN_MC_SUB, (uint64_t)(v), ASPEN_MC_SEQ))
#define aspen_sub_acq_rel(p, v) aspen_mc_typed_(p, aspen_mc_rmw((p), sizeof *(p), ASPEN_MC_SUB, (uint64_t)(v), ASPEN_MC_ACQ_REL))
#define aspen_or_seq(p, v) aspen_mc_typed_(p, aspen_mc_rmw((p), sizeof *(p), ASPEN_MC_OR, (uint64_t)(v), ASPEN_MC_SEQ))
#define aspen_and_seq(p, v) aspen_mc_typed_(p, aspen_mc_rmw((p), sizeof *(p), ASPEN_MC_AND, (uint64_t)(v), ASPEN_MC_SEQ))
#define aspen_swap_seq(p, v) aspen_mc_typed_(p, aspen_mc_rmw((p), sizeof *(p), ASPEN_MC_SWAP, (uint64_t)(v), ASPEN_MC_SEQ))
#define aspen_cas_seq(p, e, d) aspen_mc_cas((p), sizeof *(p), (uint64_t)(e), (uint64_t)(d), ASPEN_MC_SEQ)
#define aspen_cas_acquire(p, e, d) aspen_mc_cas((p), sizeof *(p), (uint64_t)(e), (uint64_t)(d), ASPEN_MC_ACQUIRE)
#define aspen_load_guarded(p) aspen_mc_typed_(p, aspen_mc_guarded((p), sizeof *(p), 0, 0))
#define aspen_store_guarded(p, v) ((void)aspen_mc_guarded((p), sizeof *(p), 1, (uint64_t)(v)))
#define aspen_copy_words(to, from, bytes) aspen_mc_copy((to), (from), (bytes))

static inline void aspen_cpu_relax(void) { aspen_mc_spin(); }
static inline void aspen_yield(void) { sched_yield(); }
/* No counting here: all turns of a spin loop are one state to the checker. */
static inline void aspen_spin(uint32_t *turns) { aspen_mc_spin(); }

#endif

/* Words that one process writes while others read them. Releases: they come after the counter that was stored before them. */
static inline void aspen_show_words(void *to, const void *from, size_t bytes) {
  for (size_t k = 0; k < bytes / 8; k++) aspen_store_release(&((uint64_t *)to)[k], ((const uint64_t *)from)[k]);
}

/* Acquires: they come before the counter that is loaded after them. */
static inline void aspen_see_words(void *to, const void *from, size_t bytes) {
  for (size_t k = 0; k < bytes / 8; k++) ((uint64_t *)to)[k] = aspen_load_acquire(&((const uint64_t *)from)[k]);
}

/* Single-writer words that decide nothing. The model checker does without counts: no two of its states would be the same. */
#define aspen_stat_load(p) (ASPEN_POINT_ __atomic_load_n((p), __ATOMIC_RELAXED))
#define aspen_stat_store(p, v) (ASPEN_POINT_ __atomic_store_n((p), (v), __ATOMIC_RELAXED))
#ifndef ASPEN_MODEL_CHECK
#define aspen_stat_add(p, v) (ASPEN_POINT_ __atomic_store_n((p), __atomic_load_n((p), __ATOMIC_RELAXED) + (v), __ATOMIC_RELAXED))
#else
#define aspen_stat_add(p, v) ((void)(p), (void)(v))
#endif

static inline uint64_t aspen_clock_ns(clockid_t which) {
#if defined(ASPEN_MODEL_CHECK)
  return 0;
#elif defined(ASPEN_SIMULATION)
  return aspen_sim_time_ns;
#endif
  struct timespec t;
  clock_gettime(which, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t aspen_now_ns(void) { return aspen_clock_ns(CLOCK_MONOTONIC); }

/* Time that this thread has had a processor. */
static inline uint64_t aspen_thread_ns(void) { return aspen_clock_ns(CLOCK_THREAD_CPUTIME_ID); }

/* A cheap clock for durations on one core: the time-stamp counter where there is one that ticks evenly, else nanoseconds.
 * signals.tick_ns_q32 converts. */
static inline uint64_t aspen_ticks(void) {
#if defined(ASPEN_MODEL_CHECK)
  return 0;
#elif defined(ASPEN_SIMULATION)
  return aspen_sim_time_ns;
#elif defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  uint64_t t;
  __asm__ volatile("mrs %0, cntvct_el0" : "=r"(t));
  return t;
#else
  return aspen_now_ns();
#endif
}

#endif
