/* What tells states apart, how the search goes back to one, and which it has seen.
 *
 * State. Tracked memory, store buffers, and of each fiber what it does next, where, its callee-saved registers and its stack. The search goes
 * back to a state by copying it, and recognises states by a 64-bit hash of it: for n states the chance that one of them is taken for another,
 * and what follows only from it overlooked, is about n²/2⁶⁵ (10⁻⁵ for 20 million; the addresses in the state make it a new draw every run).
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "search_parts.h"

int last = -1;
uint32_t used;

static size_t live(int i) { return (size_t)(stack[i] + STACK - stack_pointer(i)); }

/* Short stretches of whole words, too short for a call (cbuild.py: nor does the compiler make one of it). */
static inline void copy(void *to, const void *from, size_t bytes) {
  struct four { uint64_t w[4]; } *t = to;
  const struct four *f = from;
  for (; bytes >= sizeof *t; bytes -= sizeof *t) *t++ = *f++;
  for (size_t k = 0; k < bytes / 8; k++) t->w[k] = f->w[k];
}

/* What tells states apart, in one row of words. */
static uint64_t row[REGIONS * 64 + FIBERS * STACK / 8];

static size_t describe(void) {
  uint64_t *to = row;
#define WORDS_OF(p, n) (copy(to, (p), (n)), to += (n) / 8)
  for (int i = 0; i < n_regions; i++)
    WORDS_OF(region[i].p, region[i].n);
  for (int i = 0; i < n_fibers; i++) {
    const struct fiber *f = &fiber[i];
    *to++ = f->at.kind | (uint64_t)f->at.op << 8 | (uint64_t)f->at.order << 16 | (uint64_t)f->n_buffer << 24 | (uint64_t)f->noted << 32 | (uint64_t)f->lives << 36 | (uint64_t)f->at.bytes << 40 | (uint64_t)f->at.n << 48;
    *to++ = (uintptr_t)f->at.p;
    *to++ = f->at.a;
    *to++ = f->at.b;
    *to++ = (uintptr_t)f->blocked_on;
    *to++ = f->marker;
    WORDS_OF(f->registers, sizeof *f->registers * CALLEE_SAVED);
    WORDS_OF(buffer[i], sizeof(struct entry) * f->n_buffer);
    *to++ = (uintptr_t)stack_pointer(i);
    WORDS_OF(stack_pointer(i), live(i));
  }
  return (size_t)(to - row);
}

static uint64_t folded(uint64_t a, uint64_t b) {
  unsigned __int128 m = (unsigned __int128)a * b;
  return (uint64_t)m ^ (uint64_t)(m >> 64);
}

uint64_t hash(void) {
  static const uint64_t key[] = {0xa0761d6478bd642full, 0xe7037ed1a0b428dbull, 0x8ebc6af09c88c6e3ull, 0x589965cc75374cc3ull};
  uint64_t lane[4] = {key[3], key[2], key[1], key[0]};
  size_t n = describe();
  if (opt->bound != UNBOUNDED) row[n++] = (uint64_t)last;
  while (n % 8) row[n++] = 0x1d8e4e27c47d124full;
  for (size_t k = 0; k < n; k += 8)
#pragma GCC unroll 4
    for (int l = 0; l < 4; l++) lane[l] = folded(row[k + 2 * (size_t)l] ^ key[l] ^ lane[l], row[k + 2 * (size_t)l + 1] ^ key[(l + 1) % 4] ^ (lane[l] << 32 | lane[l] >> 32));
  uint64_t h = folded(folded(lane[0] ^ key[0], lane[1] ^ key[1]) ^ key[2] ^ n, folded(lane[2] ^ key[2], lane[3] ^ key[3]) ^ key[3]);
  return h ? h : 1;
}

size_t n_saved;
static char *saved; /* a stack of saved states */
static size_t saved_size;

size_t save(void) {
  size_t at = n_saved, n = sizeof(struct fiber) * (size_t)n_fibers;
  for (int i = 0; i < n_regions; i++) n += region[i].n;
  for (int i = 0; i < n_fibers; i++) n += live(i) + sizeof(struct entry) * fiber[i].n_buffer;
  if (n_saved + n > saved_size && !(saved = realloc(saved, saved_size = 2 * (n_saved + n)))) abort();
  char *p = saved + at;
#define PUT(from, count) (copy(p, (from), (count)), p += (count))
  PUT(fiber, sizeof(struct fiber) * (size_t)n_fibers);
  for (int i = 0; i < n_regions; i++) PUT(region[i].p, region[i].n);
  for (int i = 0; i < n_fibers; i++) {
    PUT(buffer[i], sizeof(struct entry) * fiber[i].n_buffer);
    PUT(stack_pointer(i), live(i));
  }
  n_saved += n;
  return at;
}

void restore(size_t at) {
  const char *p = saved + at;
  char *was[FIBERS];
  for (int i = 0; i < n_fibers; i++) was[i] = stack_pointer(i);
#define GET(to, count) (copy((to), p, (count)), p += (count))
  GET(fiber, sizeof(struct fiber) * (size_t)n_fibers);
  for (int i = 0; i < n_regions; i++) GET(region[i].p, region[i].n);
  for (int i = 0; i < n_fibers; i++) {
    GET(buffer[i], sizeof(struct entry) * fiber[i].n_buffer);
    if (was[i] < stack_pointer(i)) memset(was[i], 0, (size_t)(stack_pointer(i) - was[i])); /* as fibers.c leaves it */
    GET(stack_pointer(i), live(i));
  }
  restored();
}

/* ------------------------------------------------------------------------------------------------ states seen */

uint64_t n_seen;
uint8_t *seen_as;
uint32_t *seen_at;
static uint64_t *seen, seen_size;

static void *zeroed(size_t bytes) {
  void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    printf("out of memory at %lu states\n", (unsigned long)n_seen);
    exit(2);
  }
  madvise(p, bytes, MADV_HUGEPAGE); /* it is looked at all over */
  return p;
}

static void table_of(uint64_t size) {
  seen = zeroed(size * sizeof *seen);
  seen_as = zeroed(size);
  seen_at = zeroed(size * sizeof *seen_at);
  seen_size = size;
}

static void free_table(uint64_t *s, uint8_t *as, uint32_t *at, uint64_t size) {
  munmap(s, size * sizeof *s);
  munmap(as, size);
  munmap(at, size * sizeof *at);
}

void forget_all(void) {
  if (seen) free_table(seen, seen_as, seen_at, seen_size);
  n_seen = 0;
  table_of(1 << 20);
}

uint64_t find(uint64_t h) {
  uint64_t j = h & (seen_size - 1);
  while (seen[j] && seen[j] != h) j = (j + 1) & (seen_size - 1);
  return j;
}

static void grow(void) {
  uint64_t *old = seen, n = seen_size;
  uint8_t *old_as = seen_as;
  uint32_t *old_at = seen_at;
  table_of(2 * n);
  for (uint64_t k = 0; k < n; k++)
    if (old[k]) {
      uint64_t j = find(old[k]);
      seen[j] = old[k];
      seen_as[j] = old_as[k];
      seen_at[j] = old_at[k];
    }
  free_table(old, old_as, old_at, n);
}

void prefetch(uint64_t h) {
  uint64_t j = h & (seen_size - 1);
  __builtin_prefetch(&seen[j]);
  __builtin_prefetch(&seen_as[j]);
  __builtin_prefetch(&seen_at[j]);
}

/* Where a state is in the table. *known: there is nothing new to follow from it. */
uint64_t add(uint64_t h, int *known) {
  if (n_seen * 4 > seen_size * 3) grow();
  uint64_t j = find(h);
  *known = seen[j] && (seen_as[j] & ~(OPEN | FINE)) <= (int)used;
  if (*known) return j;
  if (!seen[j]) n_seen++;
  seen[j] = h;
  seen_as[j] = (uint8_t)used;
  return j;
}

/* ------------------------------------------------------------------------------------------------ what a search saw */

struct facts *facts;

uint64_t *fact(struct facts *f, uint64_t h) {
  uint64_t j = h & (f->size - 1);
  while (f->hash[j] && f->hash[j] != h) j = (j + 1) & (f->size - 1);
  return &f->hash[j];
}

static int note_fact(uint64_t h) {
  if (facts->n * 2 >= facts->size) {
    struct facts old = *facts;
    facts->size = old.size ? 2 * old.size : 4096;
    if (!(facts->hash = calloc(facts->size, sizeof *facts->hash))) abort();
    for (uint64_t k = 0; k < old.size; k++)
      if (old.hash[k]) *fact(facts, old.hash[k]) = old.hash[k];
    free(old.hash);
  }
  uint64_t *at = fact(facts, h);
  if (*at) return 0;
  facts->n++;
  *at = h;
  return 1;
}

static void mix(uint64_t *h, const void *p, size_t bytes) {
  const uint64_t *w = p;
  for (size_t k = 0; k < bytes / 8; k++) *h = folded(*h ^ 0xa0761d6478bd642full ^ k, w[k] ^ 0xe7037ed1a0b428dbull);
}

static uint64_t local_state(int i) {
  const struct fiber *f = &fiber[i];
  uint64_t h = (uint64_t)i + 1, at[] = {f->at.kind | (uint64_t)f->at.op << 8 | (uint64_t)f->at.order << 16, (uintptr_t)f->at.p, f->at.a, f->at.b, (uintptr_t)f->blocked_on, f->marker, (uintptr_t)stack_pointer(i)};
  mix(&h, at, sizeof at);
  mix(&h, f->registers, sizeof *f->registers * CALLEE_SAVED);
  mix(&h, stack_pointer(i), live(i));
  return h | 1;
}

void note_local_states(void) {
  for (int i = 0; i < n_fibers; i++) note_fact(local_state(i)); /* all: a step may wake others */
}

void note_rest(void) {
  uint64_t h = FIBERS + 1;
  for (int i = 0; i < n_regions; i++)
    if (tracked(region[i].p)) mix(&h, region[i].p, region[i].n);
  for (int i = 0; i < n_fibers; i++) h = folded(h ^ local_state(i), 0x8ebc6af09c88c6e3ull);
  facts->rests += (uint64_t)note_fact(h | 1);
}
