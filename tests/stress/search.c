/* A depth-first search over the states of a few fibers, with partial-order reduction.
 *
 * State. Tracked memory, store buffers, and of each fiber what it does next, where, its callee-saved registers and its stack. The search goes
 * back to a state by copying it, and recognises states by a 64-bit hash of it: for n states the chance that one of them is taken for another,
 * and what follows only from it overlooked, is about n²/2⁶⁵ (10⁻⁵ for 20 million; the addresses in the state make it a new draw every run).
 *
 * Reduction. Only some fibers are followed from a state where the others' steps can wait: a set F of fibers such that nothing that the fibers
 * outside F can do while those in F stand still conflicts with the next transition of a fiber in F ("persistent set"; two accesses conflict
 * when they touch the same word and one of them writes). Whatever happens from the state on, transitions of F can then be moved to the front, so
 * every execution has an equivalent one that is followed: same steps of each fiber, same values read. So each fiber goes through the same
 * local states and fails the same checks, and every state in which nobody can go on is reached. Two provisos: when following F alone leads back to a
 * state that the search is still at work on, all fibers are followed from the state instead, so that nobody's step is put off for ever;
 * and a fiber in F that cannot run brings in those who could let it run (a sleeper on a futex conflicts with whoever wakes its sleepers).
 * What a fiber can do while others stand still is over-estimated by four tables, filled by observation:
 *   - places: where each fiber can get from each point of its code, and the words that it touches on the way;
 *   - locks: for each word and fiber the locks that it always holds when it touches (writes) the word. It does not while the holder of such a lock stands
 *     still, the release that may wait in the holder's store buffer included;
 *   - words that are still in its store buffer;
 *   - a sleeper does nothing while nobody outside F can wake it.
 * The tables start with what random executions show. When the search meets a step that they do not allow for, it is entered and the search
 * starts all over, so the last search is one in which every step announced was allowed for. That is enough: take a shortest execution that
 * would lead to the announcement of another step. Up to there the tables hold, so what they call independent is; then an
 * equivalent execution is followed by the search, in which that fiber announces that step, and the search would have seen it.
 * Deaths. A fiber that may die has its death as one more transition, wherever it may die (fibers.c). It touches a word of its own that only whoever waits
 * for deaths reads, and the queue of the futex on which the fiber sleeps. Three things are particular. (1) The death of a fiber in F
 * conflicts with nothing outside: whoever waits for deaths hears of this one after it, whatever he has heard before. (2) Deaths need not
 * happen: a set whose only transitions are deaths is not followed alone, for in an execution that comes to rest without them none of
 * it would be moved to the front; and a state in which only deaths are left is at rest, as well as followed. (3) What a dead fiber, or one
 * that has stopped for a recovery, left locked is no lock any more (`holds`). So that a recovery is seen to be impossible while anybody in F runs on, the
 * right to work on what is shared is a lock as well: each fiber holds its own part, and recovery takes all parts at once (`takes`); as long as
 * somebody in F keeps his, others get no further than up to that step. That nobody holds a part when it is taken is checked like other locks.
 * A fiber that awaits (AWAIT) what nobody outside F can bring about sleeps.
 *
 * A late store is a transition of its fiber like any other; executing the store (it enters the fiber's own buffer) conflicts with nothing.
 * The argument is put to the test by `compare`: a search with and one without reduction, which must show each fiber in the same local states.
 *
 * Not reduced: data that fibers touch without an operation. It must be ordered by operations in every execution: words that a row's lock guards are
 * checked to be, tiles' data and counters are touched by operations (CALL, COPY), the rest is private or checked by ThreadSanitizer (dse_threads.c).
 *
 * Symmetry. When fibers 0 and 1 are the same but for their names, each execution in which fiber 1 does a certain thing first is the mirror image
 * of one in which fiber 0 does it first, so fiber 1 need not be followed there.
 *
 * With a bound on preemptions nothing is reduced but steps that touch nothing: such a search is not exhaustive, and says so.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "atomics.h"
#include "search.h"

static const struct options *opt;

/* ------------------------------------------------------------------------------------------------ words, places, locks */

enum { PLACES = 1024, INDEX = 4096 };
static struct { const void *p; unsigned bytes; } word[WORDS];
static uint16_t word_index[INDEX]; /* 1 + word, by hash of the address */
static uint32_t n_words, n_places;
static struct place {
  void *code;
  uint32_t marker, who;
  struct set own_reads, own_writes, reads, writes; /* here; here and on all ways from here */
  struct set barred_reads, barred_writes;          /* as far as one gets without the locks that a step takes */
  uint32_t takes;
  uint64_t next[PLACES / 64];
} place[PLACES];
static uint16_t place_index[INDEX];
static uint32_t under[FIBERS][WORDS], under_write[FIBERS][WORDS]; /* locks held at each access */
static uint32_t barring;  /* locks that some step takes */
static int learned;       /* something new, that the closure does not know yet */
static int stale;         /* something new since the search began: it has to be repeated */
static uint64_t patience; /* at this many states */

static uint32_t scatter(uint64_t v) { return (uint32_t)((v * 0x9e3779b97f4a7c15ull) >> 48) % INDEX; }

uint32_t word_of(const void *p, unsigned bytes) {
  uint32_t k = scatter((uint64_t)(uintptr_t)p);
  for (; word_index[k]; k = (k + 1) % INDEX)
    if (word[word_index[k] - 1].p == p) {
      CHECK(word[word_index[k] - 1].bytes == bytes, "a word is touched in different sizes");
      return word_index[k] - 1u;
    }
  CHECK(n_words < WORDS, "too many shared words for this model");
  for (uint32_t w = 0; w < n_words; w++)
    CHECK((const char *)p + bytes <= (const char *)word[w].p || (const char *)word[w].p + word[w].bytes <= (const char *)p || bytes == 1 || word[w].bytes == 1,
          "words overlap");
  word[n_words].p = p;
  word[n_words].bytes = bytes;
  for (int i = 0; i < FIBERS; i++) under[i][n_words] = under_write[i][n_words] = ~0u;
  word_index[k] = (uint16_t)++n_words;
  return n_words - 1;
}

static uint32_t place_of(void *code, uint32_t marker, uint32_t who) {
  uint32_t k = scatter((uint64_t)(uintptr_t)code * 31 + marker * FIBERS + who);
  for (; place_index[k]; k = (k + 1) % INDEX) {
    struct place *q = &place[place_index[k] - 1];
    if (q->code == code && q->marker == marker && q->who == who) return place_index[k] - 1u;
  }
  CHECK(n_places < PLACES, "too many places in the code for this model");
  place[n_places].code = code;
  place[n_places].marker = marker;
  place[n_places].who = who;
  place_index[k] = (uint16_t)++n_places;
  return n_places - 1;
}

#define SET(s, w) ((s).bits[(w) / 64] |= (uint64_t)1 << ((w) % 64))
static int subset(const struct set *a, const struct set *b) {
  for (int k = 0; k < SETS; k++)
    if (a->bits[k] & ~b->bits[k]) return 0;
  return 1;
}
static void join(struct set *a, const struct set *b) {
  for (int k = 0; k < SETS; k++) a->bits[k] |= b->bits[k];
}
static int widen(struct set *a, const struct set *b) {
  if (subset(b, a)) return 0;
  join(a, b);
  return 1;
}

/* Locks that are certainly held when what fiber i does next takes effect. */
static uint32_t surely_holds(int i) {
  uint32_t held = holds(i);
  for (uint32_t k = 0; k < fiber[i].n_buffer; k++) held &= ~held_by_word(buffer[i][k].p);
  return tso && fiber[i].at.kind == STORE ? held & ((1u << LONG_LOCKS) - 1) : held;
}

static void touch_under(uint32_t *locks, uint32_t w, uint32_t held) {
  if (!(locks[w] & ~held)) return;
  locks[w] &= held;
  learned = 1;
}

void announced(int i) {
  struct fiber *f = &fiber[i];
  f->reads = f->writes = (struct set){{0}};
  if (opt->bound != UNBOUNDED || !opt->reduced) return;
  /* A DSE can get from anywhere in its loop to anywhere else. */
  void *where = opt->loops >> i & 1 && f->at.kind != DONE ? NULL : f->at_code;
  uint32_t before = f->place, here = f->place = place_of(where, f->marker, (uint32_t)i), held = surely_holds(i);
  struct place *p = &place[here];
  struct access touched[16];
  uint32_t n = accesses(&f->at, touched, 16);
  for (uint32_t k = 0; k < n; k++) {
    uint32_t w = word_of(touched[k].p, touched[k].bytes);
    touch_under(under[i], w, held);
    if (touched[k].write) touch_under(under_write[i], w, held);
    if (touched[k].write) SET(f->writes, w);
    else SET(f->reads, w);
  }
  struct set writes = f->writes;
  if (f->lives) { /* it may die here: not what it does next, for nothing that others can do is in the way of that; but others may wait for it */
    uint32_t w = word_of(death_of(i).p, death_of(i).bytes);
    touch_under(under[i], w, 0);
    touch_under(under_write[i], w, 0);
    SET(writes, w);
  }
  if (!subset(&f->reads, &p->own_reads) || !subset(&writes, &p->own_writes)) {
    join(&p->own_reads, &f->reads);
    join(&p->own_writes, &writes);
    learned = 1;
  }
  barring |= p->takes = takes(&f->at);
  uint64_t *edges = place[before].next;
  if (!(edges[here / 64] >> (here % 64) & 1)) {
    edges[here / 64] |= (uint64_t)1 << (here % 64);
    learned = 1;
  }
}

/* What can be touched from each place on. */
static void close_places(void) {
  for (uint32_t k = 0; k < n_places; k++) {
    place[k].reads = place[k].own_reads;
    place[k].writes = place[k].own_writes;
    place[k].barred_reads = place[k].takes ? (struct set){{0}} : place[k].own_reads;
    place[k].barred_writes = place[k].takes ? (struct set){{0}} : place[k].own_writes;
  }
  for (int more = 1; more;) {
    more = 0;
    for (uint32_t k = n_places; k-- > 0;)
      for (uint32_t m = 0; m < n_places; m++)
        if (place[k].next[m / 64] >> (m % 64) & 1) {
          more |= widen(&place[k].reads, &place[m].reads) | widen(&place[k].writes, &place[m].writes);
          if (!place[k].takes)
            more |= widen(&place[k].barred_reads, &place[m].barred_reads) | widen(&place[k].barred_writes, &place[m].barred_writes);
        }
  }
}

/* Having learned something the search goes on for a while, to learn more, before it starts again. */
static void take_note(uint64_t states) {
  learned = 0;
  close_places();
  if (!stale++) patience = 3 * states + 20000;
}

/* ------------------------------------------------------------------------------------------------ transitions */

/* A set of transitions: bit fiber * CHOICES + choice. */
static uint32_t all_enabled(void) {
  uint32_t mask = 0;
  for (int i = 0; i < n_fibers; i++)
    for (int c = 0; c < CHOICES; c++) mask |= (uint32_t)enabled(i, c) << (i * CHOICES + c);
  return mask;
}
static uint32_t of_fiber(int i) { return ((1u << CHOICES) - 1) << (i * CHOICES); }

/* Those that are no deaths. */
static uint32_t living(uint32_t mask) {
  for (int i = 0; i < n_fibers; i++) mask &= ~(1u << (i * CHOICES + DIES));
  return mask;
}

static uint32_t without_mirror_images(uint32_t mask) {
  if (opt->symmetric && (mask & of_fiber(1)) && breaks_symmetry(&fiber[1].at)) mask &= ~(1u << CHOICES);
  return mask;
}

/* For late stores a fiber counts as two actors: the one that executes and the one that writes its oldest store to memory. Neither is in the
 * other's way: a load reads the buffer first; what has to wait for an empty buffer (a death, too) brings in the writer. */
enum { EXECUTES = 1, WRITES = 1 << FIBERS }; /* << fiber: sets of actors */

/* Locks that fiber i keeps for as long as the actors of the set stand still: not those whose release waits in its buffer when that may be written,
 * nor, when it may run on, those that it gives up by a plain store. (Other locks it cannot give up before what waits in its buffer has been written.) */
static uint32_t keeps(int i, uint32_t set) {
  uint32_t held = holds(i);
  if (!(set & (uint32_t)WRITES << i))
    for (uint32_t k = 0; k < fiber[i].n_buffer; k++) held &= ~held_by_word(buffer[i][k].p);
  return set & (uint32_t)EXECUTES << i ? held : held & ((1u << LONG_LOCKS) - 1);
}

/* Does somebody in the set keep a lock that some step takes? Then the others get only as far as before that step. */
static int bars(uint32_t set) {
  uint32_t kept = 0;
  for (int i = 0; i < n_fibers && barring; i++)
    if (set & (uint32_t)(EXECUTES | WRITES) << i) kept |= keeps(i, set);
  return (kept & barring) != 0;
}

/* Can the death of fiber j, which sleeps, conflict with the next transition of fiber i: does that wake sleepers of the same word, or wait for deaths? */
static int dying_matters(int i, int j) {
  const struct fiber *f = &fiber[i], *g = &fiber[j];
  if (!g->lives || !g->blocked_on || g->at.kind == DEAD || f->blocked_on || !runnable(i)) return 0;
  uint32_t w = word_of((const char *)g->blocked_on + 1, 1), x = word_of(death_of(j).p, death_of(j).bytes);
  return (f->writes.bits[w / 64] >> (w % 64) & 1) || (f->reads.bits[x / 64] >> (x % 64) & 1);
}

/* Can what fiber j does (`executes`, `writes_late`) while the actors of the set stand still conflict with the next transition of fiber i, one of them? */
static int conflict(uint32_t set, int barred, int i, int writer, int j, int executes, int writes_late) {
  const struct fiber *f = &fiber[i], *g = &fiber[j];
  struct set reads = {{0}}, writes = {{0}};
  if (writer) {
    if (f->n_buffer) SET(writes, buffer[i][0].word);
  } else if (f->blocked_on) {
    SET(reads, word_of((const char *)f->blocked_on + 1, 1)); /* whoever wakes it */
  } else if (runnable(i)) {
    reads = f->reads;
    if (!tso || f->at.kind != STORE || f->at.order == ASPEN_MC_SEQ) writes = f->writes;
  }
  if (writes_late)
    for (uint32_t k = 0; k < g->n_buffer; k++) {
      uint32_t x = buffer[j][k].word;
      if ((reads.bits[x / 64] | writes.bits[x / 64]) >> (x % 64) & 1) return 1;
    }
  if (!executes) return 0;
  uint32_t held = 0, known = 0;
  const struct place *p = &place[g->place];
  const struct set *touched = barred ? &p->barred_reads : &p->reads, *written = barred ? &p->barred_writes : &p->writes;
  for (int k = 0; k < SETS; k++) {
    uint64_t by_write = writes.bits[k] & (touched->bits[k] | written->bits[k]), by_read = reads.bits[k] & written->bits[k];
    for (uint64_t both = by_write | by_read; both; both &= both - 1) {
      uint32_t x = (uint32_t)(64 * k + __builtin_ctzll(both));
      if (!known++) held = keeps(i, set);
      if (!(held & (by_write & both & -both ? under : under_write)[j][x])) return 1;
    }
  }
  return 0;
}

/* Does j wait for what nobody can do while the actors of the set stand still? A dead fiber does nothing, unless j makes it start anew. */
static int waits_in_vain(int j, uint32_t set, int barred) {
  const struct fiber *f = &fiber[j];
  for (int c = 0; c < WAYS; c++)
    if (enabled(j, c)) return 0;
  for (int k = 0; k < n_fibers; k++) {
    if (k == j) continue;
    if (!(set & (uint32_t)EXECUTES << k) && fiber[k].at.kind != DEAD) {
      struct set writes = barred ? place[fiber[k].place].barred_writes : place[fiber[k].place].writes;
      uint32_t w = word_of(death_of(k).p, death_of(k).bytes);
      if (!fiber[k].lives) writes.bits[w / 64] &= ~((uint64_t)1 << (w % 64));
      for (int b = 0; b < SETS; b++)
        if (writes.bits[b] & f->reads.bits[b]) return 0;
    }
    if (!(set & (uint32_t)WRITES << k))
      for (uint32_t b = 0; b < fiber[k].n_buffer; b++)
        if (f->reads.bits[buffer[k][b].word / 64] >> (buffer[k][b].word % 64) & 1) return 0;
  }
  return 1;
}

/* Is j asleep for as long as the actors of the set stand still? */
static int sleeps(int j, uint32_t set, int barred) {
  const void *p = fiber[j].blocked_on;
  if (fiber[j].at.kind == AWAIT) return waits_in_vain(j, set, barred);
  if (!p) return 0;
  uint32_t w = word_of((const char *)p + 1, 1);
  for (int k = 0; k < n_fibers; k++)
    if (k != j && !(set & (uint32_t)EXECUTES << k) &&
        (barred ? &place[fiber[k].place].barred_writes : &place[fiber[k].place].writes)->bits[w / 64] >> (w % 64) & 1)
      return 0;
  return 1;
}

static uint32_t transitions_of(uint32_t set, uint32_t mask) {
  uint32_t of = 0;
  for (int i = 0; i < n_fibers; i++) {
    if (set & (uint32_t)EXECUTES << i) of |= (((1u << WAYS) - 1) | 1u << DIES) << (i * CHOICES);
    if (set & (uint32_t)WRITES << i) of |= 1u << (i * CHOICES + LATE);
  }
  return of & mask;
}

/* Adds to a set of actors what has to be in it too. */
static uint32_t closed(uint32_t set) {
  for (;;) {
    uint32_t before = set;
    for (int i = 0; i < n_fibers; i++)
      if (set & (uint32_t)EXECUTES << i && (!runnable(i) || (fiber[i].n_buffer && dies_here(i)))) set |= (uint32_t)WRITES << i;
    int barred = bars(set);
    for (int j = 0; j < n_fibers; j++) {
      int outside = !(set & (uint32_t)EXECUTES << j), asleep = outside && sleeps(j, set, barred), executes = outside && !asleep;
      int late = !(set & (uint32_t)WRITES << j) && fiber[j].n_buffer;
      if (!executes && !late && !(asleep && fiber[j].lives)) continue;
      for (int i = 0; i < n_fibers; i++) {
        if (i == j) continue;
        if ((set & (uint32_t)EXECUTES << i && (conflict(set, barred, i, 0, j, executes, late) || (asleep && dying_matters(i, j)))) ||
            (set & (uint32_t)WRITES << i && conflict(set, barred, i, 1, j, executes, late))) {
          set |= (uint32_t)(EXECUTES | WRITES) << j;
          break;
        }
      }
    }
    if (set == before) return set;
  }
}

/* The transitions to follow: those of the smallest set found that may go first. */
static uint32_t chosen(uint32_t mask) {
  uint32_t best = mask;
  for (int a = 0; a < 2 * n_fibers && best & (best - 1); a++) {
    uint32_t seed = a < n_fibers ? (uint32_t)EXECUTES << a : (uint32_t)WRITES << (a - n_fibers);
    if (!transitions_of(seed, mask)) continue;
    uint32_t some = transitions_of(closed(seed), mask);
    if (living(some) && __builtin_popcount(some) < __builtin_popcount(best)) best = some;
  }
  return best;
}

/* ------------------------------------------------------------------------------------------------ states */

static int last = -1;
static uint32_t used; /* preemptions */

static size_t live(int i) { return (size_t)(stack[i] + STACK - stack_pointer(i)); }

/* Short stretches of whole words, too short for a call. */
static inline void copy(void *to, const void *from, size_t bytes) {
  struct four { uint64_t w[4]; } *t = to;
  const struct four *f = from;
  for (; bytes >= sizeof *t; bytes -= sizeof *t) {
    *t++ = *f++;
    __asm__ volatile("" ::: "memory"); /* no call of memcpy here */
  }
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

static uint64_t hash(void) {
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

static char *saved; /* a stack of saved states */
static size_t n_saved, saved_size;

static size_t save(void) {
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

static void restore(size_t at) {
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

enum { OPEN = 0x80, FINE = 0x40 }; /* the search is still at work on it; from here everybody can come to rest. Other bits: preemptions used */
static uint64_t *seen, n_seen, seen_size;
static uint8_t *seen_as;
static uint32_t *seen_at; /* when it was found, while the states that can lead back to it are not all known (below); else 0 */

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

static void forget_all(void) {
  if (seen) free_table(seen, seen_as, seen_at, seen_size);
  n_seen = 0;
  table_of(1 << 20);
}

static uint64_t find(uint64_t h) {
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

static void prefetch(uint64_t h) {
  uint64_t j = h & (seen_size - 1);
  __builtin_prefetch(&seen[j]);
  __builtin_prefetch(&seen_as[j]);
  __builtin_prefetch(&seen_at[j]);
}

/* Where a state is in the table. *known: there is nothing new to follow from it. */
static uint64_t add(uint64_t h, int *known) {
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

/* What the reduction must not lose (search() with `compare`): each fiber's local states, and states in which nobody can go on. As hashes, without buffers
 * and without what is only remembered: those differ between executions that are equivalent. */
struct facts { uint64_t *hash, n, size, rests; };
static struct facts *facts; /* NULL: not asked for */

static uint64_t *fact(struct facts *f, uint64_t h) {
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

static void note_local_states(void) {
  for (int i = 0; i < n_fibers; i++) note_fact(local_state(i)); /* all: a step may wake others */
}

static void note_rest(void) {
  uint64_t h = FIBERS + 1;
  for (int i = 0; i < n_regions; i++)
    if (tracked(region[i].p)) mix(&h, region[i].p, region[i].n);
  for (int i = 0; i < n_fibers; i++) h = folded(h ^ local_state(i), 0x8ebc6af09c88c6e3ull);
  facts->rests += (uint64_t)note_fact(h | 1);
}

/* ------------------------------------------------------------------------------------------------ the search */

/* `oldest`, `fine`: of what was found from here so far, the oldest state that can be led back to, and whether everybody can come to rest without a death;
 * `dying`: a death has led here. */
struct node { uint64_t h; size_t state; uint32_t todo, done, mask, n_trace; int last; uint32_t used, number, oldest; int fine, dying; };
static struct node *path;
static size_t depth, path_size, deepest;
static struct taken { uint8_t who, choice; struct pending at; } *trace;
static size_t n_trace, trace_size;
static uint64_t transitions, rests;
static uint32_t starts;

static const char *name_of(const void *p) {
  for (int i = 0; i < n_regions; i++)
    if ((const char *)p >= region[i].p && (const char *)p < region[i].p + region[i].n) return region[i].name;
  return "";
}

void print_trace(void) {
  static const char *const kind[] = {"start", "load", "store", "rmw", "cas", "copy", "kernel", "guarded", "spin", "futex wait", "futex wake", "done", "await", "dead"};
  printf("%zu steps, %lu states; the last steps:\n", n_trace, (unsigned long)n_seen);
  for (size_t k = n_trace > 80 ? n_trace - 80 : 0; k < n_trace; k++) {
    const struct taken *t = &trace[k];
    if (t->choice == DIES) printf("  %-9s dies\n", name_of_fiber(t->who));
    else if (t->choice == LATE) printf("  %-9s (late store)    %s at ..%03lx  %lx\n", name_of_fiber(t->who), name_of(t->at.p), (unsigned long)t->at.p & 0xfff, (unsigned long)t->at.a);
    else
      printf("  %-9s %-10s %s at ..%03lx  %lx %lx\n", name_of_fiber(t->who), kind[t->at.kind], name_of(t->at.p), (unsigned long)t->at.p & 0xfff,
             (unsigned long)t->at.a, (unsigned long)t->at.b);
  }
}

static void check_locks(void) {
  uint32_t held = 0, by;
  for (int i = 0; i < n_fibers; held |= by, i++) CHECK(!(held & (by = holds(i))), "two fibers hold the same lock, or run the same tile");
  for (int i = 0; i < n_fibers && barring; i++) CHECK(!(takes(&fiber[i].at) & held & ~holds(i)), "a fiber takes for granted what another has not given up");
}

static void take(int i, int choice) {
  if (n_trace == trace_size && !(trace = realloc(trace, (trace_size = trace_size ? 2 * trace_size : 4096) * sizeof *trace))) abort();
  struct taken *t = &trace[n_trace++];
  *t = (struct taken){(uint8_t)i, (uint8_t)choice, fiber[i].at};
  if (choice == LATE) t->at = (struct pending){.p = buffer[i][0].p, .a = buffer[i][0].v};
  step(i, choice);
  transitions++;
  normalise();
  check_locks();
  if (learned) take_note(n_seen);
  if (facts && choice != LATE) note_local_states();
}

/* Random executions: they show most of what fibers touch where. One that goes on for so long has next to no chance ever to come to rest. */
static void walk(size_t from) {
  enum { PATIENCE = 100000 };
  uint64_t random = 88172645463325252ull;
  for (uint32_t w = 0; w < opt->walks; w++) {
    restore(from);
    n_trace = 0;
    int who = -1;
    for (int steps = 0; steps < PATIENCE; steps++) {
      uint32_t mask = all_enabled(), some = who < 0 ? 0 : mask & of_fiber(who);
      if (!living(mask)) check_rest();
      if (!living(mask) && steps > 1000) break;
      if (!mask) break;
      random ^= random << 13;
      random ^= random >> 7;
      random ^= random << 17;
      if (some && random >> 40 & ((1u << w % 6) - 1)) mask = some; /* in some of them a fiber goes on for longer */
      if (living(mask) && (random >> 48 & ((1u << w % 7) - 1) || steps > 1000)) mask = living(mask); /* and deaths are seldom */
      for (uint32_t skip = (uint32_t)(random & 0xffff) % (uint32_t)__builtin_popcount(mask); skip; skip--) mask &= mask - 1;
      int t = __builtin_ctz(mask);
      who = t / CHOICES;
      take(who, t % CHOICES);
      CHECK(steps < PATIENCE - 1, "a random execution does not come to rest");
    }
  }
}

/* Can everybody come to rest from every state? Not to be seen in a state alone: somebody may spin for a lock that nobody gives up any more. So states are
 * gathered into the largest groups in which each can lead to each (Tarjan 1972); from a group everybody comes to rest when a state of it
 * rests or leads to another group from which everybody does. */
static uint64_t *group;
static size_t n_group, group_size;
static uint32_t numbers;

static void push(uint64_t h, uint64_t at, size_t state, uint32_t mask, uint32_t todo, int dying) {
  if (depth == path_size && !(path = realloc(path, (path_size = path_size ? 2 * path_size : 4096) * sizeof *path))) abort();
  if (n_group == group_size && !(group = realloc(group, (group_size = group_size ? 2 * group_size : 4096) * sizeof *group))) abort();
  numbers++;
  path[depth++] = (struct node){h, state, todo, 0, mask, (uint32_t)n_trace, last, used, numbers, numbers, 0, dying};
  if (depth > deepest) deepest = depth;
  group[n_group++] = h;
  seen_as[at] |= OPEN;
  seen_at[at] = numbers;
}

/* A state to which the one at the end of the path leads. */
static void leads_to(uint64_t at, int dying) {
  struct node *s = &path[depth - 1];
  if (seen_at[at] && seen_at[at] < s->oldest) s->oldest = seen_at[at];
  if (seen_as[at] & FINE && !dying) s->fine = 1;
}

static void pop(void) {
  struct node s = path[--depth];
  n_saved = s.state;
  seen_as[find(s.h)] &= (uint8_t)~OPEN;
  if (s.oldest == s.number) { /* the first state of its group */
    n_trace = s.n_trace;
    CHECK(s.fine || opt->bound != UNBOUNDED || stale, "from here on somebody never comes to rest");
    uint64_t h;
    do {
      h = group[--n_group];
      uint64_t at = find(h);
      seen_at[at] = 0;
      if (s.fine) seen_as[at] |= FINE;
    } while (h != s.h);
  }
  if (!depth) return;
  struct node *before = &path[depth - 1];
  if (s.oldest < before->oldest) before->oldest = s.oldest;
  before->fine |= s.fine && !s.dying;
}

/* Enters the state that memory holds: puts it at the end of the path, if there is something to follow from it. `dying`: a death led here, which nobody
 * may rely on to come to rest. */
static void enter(int dying) {
  enum { CHAIN = 256 };
  for (int chain = 0;; chain++) {
    uint32_t every = all_enabled(), mask = without_mirror_images(every), todo = mask;
    int resting = !living(every);
    if (opt->bound != UNBOUNDED || !opt->reduced) {
      for (int i = 0; i < n_fibers; i++) /* a step that touches nothing comes first, and alone */
        if (fiber[i].at.kind == SPIN && enabled(i, 0)) todo = 1u << (i * CHOICES);
    } else if (!resting) {
      todo = chosen(mask);
    }
    /* Where only one transition is followed, the state between is not worth keeping. Every so often one is, or a cycle of such would never end. */
    if (opt->bound == UNBOUNDED && todo && !(todo & (todo - 1)) && !resting && chain < CHAIN) {
      int t = __builtin_ctz(todo);
      take(t / CHOICES, t % CHOICES);
      continue;
    }
    uint64_t h = hash();
    prefetch(h);
    size_t state = save(); /* perhaps for nothing, while memory is waited for */
    int known;
    uint64_t at = add(h, &known);
    if (!known && resting) {
      check_rest();
      if (facts) note_rest();
      rests++;
    }
    if (!known && todo) {
      push(h, at, state, mask, todo, dying);
      if (resting) path[depth - 1].fine = 1;
      return;
    }
    n_saved = state;
    if (!known) seen_as[at] |= FINE; /* at rest, or the mirror image of a state that is followed */
    if (!depth) return;
    leads_to(at, dying);
    struct node *s = &path[depth - 1];
    if (seen_as[at] & OPEN && opt->bound == UNBOUNDED) s->todo = s->mask & ~s->done; /* nobody is put off for ever */
    return;
  }
}

static void report(const char *how) {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  printf("%s: %lu states, %lu transitions, %lu ways to rest, depth %zu, %u words, %u places, %u starts, buffers of %u, %.1f s, %ld MiB\n", how,
         (unsigned long)n_seen, (unsigned long)transitions, (unsigned long)rests, deepest, n_words, n_places, starts, most_buffered,
         (double)u.ru_utime.tv_sec + 1e-6 * (double)u.ru_utime.tv_usec, u.ru_maxrss / 1024);
}

/* 0: done, 2: too many states, -1: something was learned. */
static int explore(size_t from) {
  forget_all();
  if (facts) {
    free(facts->hash);
    *facts = (struct facts){0};
  }
  n_saved = from;
  restore(from);
  save();
  depth = deepest = n_trace = 0;
  transitions = rests = 0;
  last = -1;
  used = 0;
  stale = 0;
  starts++;
  n_group = 0;
  numbers = 0;
  if (facts) note_local_states();
  dies_anywhere = !opt->reduced;
  enter(0);
  while (depth && !(stale && n_seen > patience)) {
    struct node *s = &path[depth - 1];
    if (!s->todo) {
      pop();
      continue;
    }
    int t = opt->backwards ? 31 - __builtin_clz(s->todo) : __builtin_ctz(s->todo), i = t / CHOICES, c = t % CHOICES;
    s->todo &= ~(1u << t);
    s->done |= 1u << t;
    restore(s->state);
    n_trace = s->n_trace;
    last = s->last;
    used = s->used;
    if (opt->bound != UNBOUNDED && c < WAYS) {
      /* A switch away from a fiber that could go on is a preemption. */
      used += last >= 0 && last != i && fiber[last].at.kind != SPIN && enabled(last, 0);
      if (used > opt->bound) continue;
      last = i;
    }
    take(i, c);
    enter(c == DIES);
    if (n_seen > opt->most) return 2;
  }
  return stale ? -1 : 0;
}

static int search_from(size_t from, struct facts *noted) {
  if (opt->bound == UNBOUNDED && opt->reduced) walk(from);
  facts = noted;
  int r;
  do {
    r = explore(from);
  } while (r < 0);
  facts = NULL;
  report(r ? "stopped" : opt->bound == UNBOUNDED ? opt->reduced ? "exhausted" : "whole" : "bounded");
  if (r) return 2;
  CHECK(rests || opt->bound != UNBOUNDED, "no execution comes to rest");
  return 0;
}

int search(const struct options *o) {
  opt = o;
  for (int i = 0; i < n_fibers; i++) fiber[i].place = place_of(NULL, 0, (uint32_t)i);
  searching = 1;
  for (int i = 0; i < n_fibers; i++) step(i, 0); /* to the first operation of each: nothing shared happens before */
  normalise();
  size_t from = save();
  forget_all();
  if (!o->compare) return search_from(from, NULL);
  struct facts some = {0}, all = {0};
  struct options other = *o;
  int r = search_from(from, &some);
  other.reduced = 0;
  opt = &other;
  if (r || (r = search_from(from, &all))) return r;
  uint64_t lost = 0, gained = 0;
  for (uint64_t k = 0; k < all.size; k++) lost += all.hash[k] && !*fact(&some, all.hash[k]);
  for (uint64_t k = 0; k < some.size; k++) gained += some.hash[k] && !*fact(&all, some.hash[k]);
  printf("compared: %lu local states and %lu ways to rest with reduction, %lu and %lu without; %lu lost, %lu gained\n", (unsigned long)(some.n - some.rests),
         (unsigned long)some.rests, (unsigned long)(all.n - all.rests), (unsigned long)all.rests, (unsigned long)lost, (unsigned long)gained);
  return lost || gained ? 1 : 0;
}
