/* Sleeping on a shared 32-bit word. Not the "private" futex operations: the sleepers are in different processes. */
#ifndef ASPEN_FUTEX_H
#define ASPEN_FUTEX_H
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "atomics.h"

#define ASPEN_FOREVER UINT64_MAX

#if defined(ASPEN_SIMULATION)

static inline int aspen_futex_wait(uint32_t *word, uint32_t expected, uint64_t timeout_ns) { return aspen_sim_futex_wait(word, expected, timeout_ns); }
static inline int aspen_futex_wake(uint32_t *word, uint32_t n) { return aspen_sim_futex_wake(word, n); }

#elif !defined(ASPEN_MODEL_CHECK)

/* Sleeps while *word == expected, at most `timeout_ns`. Returns 0 (woken, perhaps for no reason), or EAGAIN (the word differed), EINTR or ETIMEDOUT. */
static inline int aspen_futex_wait(uint32_t *word, uint32_t expected, uint64_t timeout_ns) {
  struct timespec t = {(time_t)(timeout_ns / 1000000000u), (long)(timeout_ns % 1000000000u)};
  long r = syscall(SYS_futex, word, FUTEX_WAIT, expected, timeout_ns == ASPEN_FOREVER ? NULL : &t, NULL, 0);
  return r == 0 ? 0 : errno;
}

/* Wakes up to n sleepers of the word; returns how many. */
static inline int aspen_futex_wake(uint32_t *word, uint32_t n) {
  long r = syscall(SYS_futex, word, FUTEX_WAKE, n > INT_MAX ? INT_MAX : (int)n, NULL, NULL, 0);
  return r < 0 ? 0 : (int)r;
}

#else
int aspen_futex_wait(uint32_t *word, uint32_t expected, uint64_t timeout_ns);
int aspen_futex_wake(uint32_t *word, uint32_t n);
#endif

#endif
