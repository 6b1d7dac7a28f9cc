/* A depth-first search over the states of a few fibers (states.c): all interleavings, but for those that provably show nothing new (reduction.c).
 *
 * With a bound on preemptions nothing is reduced but steps that touch nothing: such a search is not exhaustive, and says so.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "search_parts.h"

const struct options *opt;

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
  for (int i = 0; i < n_fibers; i++)
    for (int c; o->settled >> i & 1 && (c = enabled(i, LATE) ? LATE : 0, enabled(i, c));) {
      step(i, c);
      normalise();
    }
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
