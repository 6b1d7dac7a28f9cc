/* Which transitions the search follows from a state: partial-order reduction, and a symmetry.
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
 */
#include "search_parts.h"

/* ------------------------------------------------------------------------------------------------ words, places, locks */

enum { PLACES = 1024, INDEX = 4096 };
static struct { const void *p; unsigned bytes; } word[WORDS];
static uint16_t word_index[INDEX]; /* 1 + word, by hash of the address */
uint32_t n_words, n_places;
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
uint32_t barring;
int learned, stale;
uint64_t patience;

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

uint32_t place_of(void *code, uint32_t marker, uint32_t who) {
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
void take_note(uint64_t states) {
  learned = 0;
  close_places();
  if (!stale++) patience = states + states / 4 + 20000;
}

/* ------------------------------------------------------------------------------------------------ transitions */

uint32_t all_enabled(void) {
  uint32_t mask = 0;
  for (int i = 0; i < n_fibers; i++)
    for (int c = 0; c < CHOICES; c++) mask |= (uint32_t)enabled(i, c) << (i * CHOICES + c);
  return mask;
}

uint32_t living(uint32_t mask) {
  for (int i = 0; i < n_fibers; i++) mask &= ~(1u << (i * CHOICES + DIES));
  return mask;
}

uint32_t without_mirror_images(uint32_t mask) {
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

/* Those of the smallest set found that may go first. */
uint32_t chosen(uint32_t mask) {
  uint32_t best = mask;
  for (int a = 0; a < 2 * n_fibers && best & (best - 1); a++) {
    uint32_t seed = a < n_fibers ? (uint32_t)EXECUTES << a : (uint32_t)WRITES << (a - n_fibers);
    if (!transitions_of(seed, mask)) continue;
    uint32_t some = transitions_of(closed(seed), mask);
    if (living(some) && __builtin_popcount(some) < __builtin_popcount(best)) best = some;
  }
  return best;
}
