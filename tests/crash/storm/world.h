/* A runtime in miniature for crash tests: worker and client processes over shared memory run the product's own headers, a supervisor does what
 * the planner process does: it starts workers, reaps them, and recovers.
 *
 * Built with ASPEN_CRASH_POINTS: every atomic operation that a worker makes, and the middle of every kernel, is a place where it may die, be
 * stopped, or fault. Each place is a site (file and line); sites are found as they are reached.
 */
#ifndef ASPEN_TEST_WORLD_H
#define ASPEN_TEST_WORLD_H
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/loop.h"
#include "recover.h"
#include "submit.h"
#include "table.h"

static void check(int condition, const char *what);
#include "graphs.h"

enum { ROWS = 8, CLIENTS = 2, THREADS = 2, PLANS = 2, ARENAS = 3, SLOTS = 4 /* a thread */, IDS = 32, SITES = 1024, ARMS = 2 };
#define LARGE 0xbeefull /* as first element of an input: the opaque tile needs more space */
#define NEEDED 123456789ull
#define MESSAGE "its result is too large"
enum { CHECKED = CLIENTS * THREADS, DATA_BYTES = ASPEN_DATA_FIRST + THREADS * SLOTS * REGION };

struct site { uint64_t key; const char *file; uint32_t line, unused; uint64_t arrivals, deaths; };
struct arm { uint32_t site, n, seen, signal; }; /* the n-th arrival of any worker at a site */

struct world {
  struct aspen_control control;
  struct aspen_doorbell bell __attribute__((aligned(64)));
  struct aspen_client_segment client[CLIENTS] __attribute__((aligned(64)));
  char data[CLIENTS][DATA_BYTES] __attribute__((aligned(64)));
  char plan[PLANS][PLAN_BYTES] __attribute__((aligned(64))), arena[PLANS][ARENAS][ARENA_BYTES] __attribute__((aligned(64)));
  struct graph graph[PLANS];
  void *mapped_at[ASPEN_MAX_SEGMENTS]; /* in the place of descriptors */
  uint32_t generation_of[PLANS];       /* what clients know; 0: no such plan now */
  /* the test's own */
  struct site site[SITES];
  struct arm arm[ARMS];
  uint32_t counting, random_deaths, stops; /* of 100 deaths by themselves, how many are stops */
  uint32_t round, finished, finish; /* clients: a round of requests each time `round` changes, or without end until `finish` */
  uint32_t blocked, only; /* of the round: no instance is free; 0, or number + 1 of the only threads that ask, and ask but once */
  uint64_t answers[CHECKED], failed, cancelled, gone;
  uint32_t drained;
  uint32_t verdict;
  char why[200];
};
static struct world *world;
static pid_t supervisor;

static void tell(void) { kill(supervisor, SIGUSR1); }

/* Ends the test: the first complaint counts. */
static void complain(const char *what) {
  if (aspen_cas_seq(&world->verdict, 0, 1)) {
    snprintf(world->why, sizeof world->why, "%s", what);
    aspen_store_seq(&world->verdict, 2);
  }
  if (getpid() != supervisor) {
    tell();
    _exit(9);
  }
}
static void check(int condition, const char *what) {
  if (!condition) complain(what);
}

/* ------------------------------------------------------------------------------------------------ crash points */

static struct { uint32_t worker, random, countdown, site, n, signal; } me;

static uint32_t site_of(const char *file, int line) {
  uint64_t key = 1469598103934665603ull;
  for (const char *p = file; *p; p++) key = (key ^ (uint8_t)*p) * 1099511628211ull;
  key = key << 16 | (uint16_t)line;
  for (uint32_t id = 1 + (uint32_t)(key >> 20) % (SITES - 1);; id = id % (SITES - 1) + 1) {
    struct site *s = &world->site[id];
    uint64_t old = 0;
    if (__atomic_compare_exchange_n(&s->key, &old, key, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
      s->file = file;
      s->line = (uint32_t)line;
      return id;
    }
    if (old == key) return id;
  }
}

static void die(uint32_t site, int with) {
  __atomic_fetch_add(&world->site[site].deaths, 1, __ATOMIC_RELAXED);
  me.countdown = me.n = 0;
  kill(getpid(), with);
  if (with == SIGSTOP) return; /* somebody let it go on */
  for (;;) pause();
}

void aspen_crash_point(uint32_t *site, const char *file, int line) {
  if (!me.worker) return;
  if (!*site) *site = site_of(file, line);
  uint32_t id = *site;
  if (world->counting) __atomic_fetch_add(&world->site[id].arrivals, 1, __ATOMIC_RELAXED);
  for (int k = 0; k < ARMS; k++) {
    struct arm *a = &world->arm[k];
    if (__atomic_load_n(&a->site, __ATOMIC_RELAXED) == id && __atomic_add_fetch(&a->seen, 1, __ATOMIC_SEQ_CST) == a->n) die(id, (int)a->signal);
  }
  if (me.countdown && --me.countdown == 0) die(id, (int)me.signal);
  if (me.n && me.site == id && --me.n == 0) die(id, (int)me.signal);
}

/* How a worker of a storm is going to end: at some operation, or at the n-th arrival at one site, so that seldom reached ones get their share. */
static void choose_death(void) {
  uint32_t kind = below(&me.random, 100);
  me.signal = kind < 8 ? SIGSEGV : kind < 8 + world->stops ? SIGSTOP : SIGKILL;
  me.countdown = 1 + below(&me.random, 1u << (6 + below(&me.random, 10)));
  for (int k = 0; k < 8 && !me.n; k++) {
    uint32_t id = 1 + below(&me.random, SITES - 1);
    for (uint32_t j = 0; j < SITES && !world->site[id].key; j++) id = id % (SITES - 1) + 1;
    if (!world->site[id].key || below(&me.random, 100) < 30) continue;
    me.site = id;
    me.n = 1 + below(&me.random, 1u << below(&me.random, 7));
    me.countdown += 20000;
  }
}

/* ------------------------------------------------------------------------------------------------ kernels */

size_t aspen_kernel_scratch(uint32_t kernel, const aspen_call *call) { return 0; }

/* In two halves, with a crash point between; some tiles take long. */
static int kernel(const aspen_call *c) {
  static uint32_t site;
  aspen_call half = *c;
  uint64_t *out = (uint64_t *)c->args[0].ptr;
  half.hi[0] = c->lo[0] + (c->hi[0] - c->lo[0]) / 2;
  int error = compute(&half, out);
  aspen_crash_point(&site, __FILE__, __LINE__);
  if ((c->params[0] * 7 + c->lo[0]) % 61 == 0)
    for (uint64_t until = aspen_now_ns() + 50000; aspen_now_ns() < until;) aspen_cpu_relax();
  half.lo[0] = half.hi[0];
  half.hi[0] = c->hi[0];
  return compute(&half, out) | error;
}

/* ------------------------------------------------------------------------------------------------ workers */

static struct {
  struct aspen_dse dse;
  struct aspen_mapping mapping[ASPEN_MAX_SEGMENTS];
  struct aspen_plan_view *plan[ASPEN_MAX_PLANS];
  struct aspen_instance_view *instance[ASPEN_MAX_INSTANCES];
  uint64_t *next[ASPEN_MAX_INSTANCES];
} mine; /* the worker's, and its mappings the supervisor's */

static void forget(uint32_t k) {
  if (!mine.plan[k]) return;
  for (uint32_t i = 1; i < IDS; i++)
    if (mine.instance[i] && mine.instance[i]->plan == mine.plan[k]) {
      aspen_exec_instance_free((struct aspen_exec_instance *)mine.instance[i]);
      mine.instance[i] = NULL;
      mine.next[i] = NULL;
    }
  aspen_exec_plan_free((struct aspen_exec_plan *)mine.plan[k]);
  mine.plan[k] = NULL;
}

static void map_segments(void) {
  for (uint32_t i = 1; i < IDS; i++) {
    const struct aspen_segment *s = &world->control.segment[i];
    uint32_t state = aspen_load_acquire(&s->state);
    if (state == ASPEN_SEGMENT_LIVE) mine.mapping[i] = (struct aspen_mapping){aspen_load_acquire(&world->mapped_at[i]), s->bytes, s->role};
    if (state == ASPEN_SEGMENT_DROPPED) mine.mapping[i].base = NULL;
  }
}

/* Maps everything announced up to an attach_seq that was read before, and forgets what has ended; returns that number. */
static uint32_t map_all(void) {
  static aspen_kernel_fn const kernels[ASPEN_N_KERNELS] = {[ASPEN_K_BINARY] = kernel};
  const struct aspen_control *c = &world->control;
  uint32_t seq = aspen_load_seq(&c->signals.attach_seq);
  for (uint32_t k = 1; k <= PLANS; k++)
    if (mine.plan[k] && (aspen_load_seq(&c->plan[k].state) == ASPEN_PLAN_FREE || c->plan[k].generation != mine.plan[k]->generation)) forget(k);
  map_segments();
  for (uint32_t k = 1; k <= PLANS; k++) {
    const struct aspen_plan *p = &c->plan[k];
    const char *why;
    if (mine.plan[k] || aspen_load_seq(&p->state) == ASPEN_PLAN_FREE || !mine.mapping[p->segment].base) continue;
    struct aspen_exec_plan *e = aspen_exec_plan_new(mine.mapping[p->segment].base, PLAN_BYTES, p->generation, kernels, &why);
    if (!e) complain(why);
    mine.plan[k] = &e->view;
    for (uint32_t a = 0; a < p->n_instances; a++) {
      uint32_t id = p->instance[a];
      struct aspen_bases bases = {{0}};
      bases.at[ASPEN_SPACE_ARENA] = mine.mapping[c->instance[id].arena].base;
      struct aspen_exec_instance *x = aspen_exec_instance_new(e, &bases);
      mine.instance[id] = &x->view;
      mine.next[id] = aspen_exec_next(x);
    }
  }
  return seq;
}

/* What Python does for an opaque tile. One kind of request does not fit into its region there. */
static void execute_opaque(void) {
  uint64_t item = mine.dse.opaque;
  uint32_t tile = ASPEN_ITEM_TILE(item);
  const struct aspen_exec_instance *e = (const struct aspen_exec_instance *)mine.instance[ASPEN_ITEM_INSTANCE(item)];
  const struct aspen_tile *t = &e->view.plan->tiles[tile];
  aspen_call c;
  aspen_call_fill(&c, e, &aspen_exec_plan_of(e)->op[t->op], t);
  int error = kernel(&c), large = *(const uint64_t *)e->view.request == LARGE;
  if (large) error = ASPEN_E_NEEDS_SPACE;
  aspen_dse_complete_opaque(&mine.dse, item, (uint32_t)error, large ? NEEDED : 0, MESSAGE, large ? sizeof MESSAGE : 0);
}

static void worker(uint32_t row, uint32_t random) {
  me.worker = 1;
  me.random = random;
  if (world->random_deaths) choose_death();
  uint32_t seq = map_all();
  aspen_dse_init(&mine.dse, &world->control, &world->bell, row, mine.mapping, mine.plan, mine.instance, mine.next);
  aspen_dse_attached(&mine.dse, seq);
  aspen_dse_join(&mine.dse);
  for (;;) switch (aspen_dse_run(&mine.dse)) {
    case ASPEN_REASON_ATTACH: aspen_dse_attached(&mine.dse, map_all()); break;
    case ASPEN_REASON_DRAINED:
      aspen_store_seq(&world->drained, 1);
      tell();
      break;
    case ASPEN_REASON_OPAQUE: execute_opaque(); break;
    default: _exit(0);
    }
}

/* ------------------------------------------------------------------------------------------------ clients */

struct asked { uint32_t busy, plan, poisoned, large, cancels, sequence, answered, drops; uint64_t expected[LENGTH]; };
struct thread { uint32_t client, number, random, round; struct asked slot[SLOTS]; };

static uint64_t *region_of(const struct thread *t, uint32_t s) { return (uint64_t *)(world->data[t->client] + ASPEN_DATA_FIRST + (t->number * SLOTS + s) * REGION); }

static void check_answer(struct thread *t, uint32_t s) {
  struct aspen_client_segment *c = &world->client[t->client];
  struct aspen_slot *slot = &c->slot[t->number * SLOTS + s];
  struct asked *a = &t->slot[s];
  uint32_t error = aspen_load_relaxed(&slot->error);
  a->busy = 0;
  a->answered = 0;
  if (ASPEN_SLOT_SEQUENCE(aspen_load_acquire(&slot->word)) != a->sequence) complain("an answer to another request");
  if (error == ASPEN_E_CANCELLED) {
    if (!a->cancels) complain("a request was cancelled that nobody cancelled");
    __atomic_fetch_add(&world->cancelled, 1, __ATOMIC_RELAXED);
  } else if (error == ASPEN_E_TOO_LATE || error == ASPEN_E_EXPIRED) {
    if (!a->drops) complain("a request was dropped that may take as long as it likes");
  } else if (a->plan == 1 && (error == ASPEN_E_PLAN_GONE || error == ASPEN_E_BAD_PLAN /* its entry is free */)) {
    __atomic_fetch_add(&world->gone, 1, __ATOMIC_RELAXED);
  } else if (a->plan == PLANS) {
    if (error != ASPEN_E_BAD_PLAN) complain("a request of a plan that does not exist ended oddly");
  } else if (a->poisoned) {
    if (error != ASPEN_E_BAD_INDEX || aspen_load_relaxed(&slot->op) != 0) complain("a request that must fail did not");
    __atomic_fetch_add(&world->failed, 1, __ATOMIC_RELAXED);
  } else if (a->large) {
    if (error != ASPEN_E_NEEDS_SPACE || aspen_load_relaxed(&slot->op) != HUB || slot->needed != NEEDED || slot->message_bytes != sizeof MESSAGE ||
        memcmp(slot->message, MESSAGE, sizeof MESSAGE))
      complain("a request that needs more space did not say so, or not all of it");
    __atomic_fetch_add(&world->failed, 1, __ATOMIC_RELAXED);
  } else if (error) {
    complain("a request failed");
  } else {
    if (memcmp(region_of(t, s) + LENGTH, a->expected, VECTOR)) complain("a wrong answer");
    a->answered = 1;
  }
  aspen_release(c, t->number * SLOTS + s);
  aspen_add_seq(&world->answers[t->client * THREADS + t->number], 1);
}

/* One thread of a client sleeps on the slot, the other on the count of completions: without an end, so that a lost wake-up shows. */
static void await(struct thread *t, uint32_t s) {
  struct aspen_client_segment *c = &world->client[t->client];
  struct aspen_slot *slot = &c->slot[t->number * SLOTS + s];
  for (;;) {
    uint32_t seen = aspen_load_seq(&c->completions), word = aspen_load_acquire(&slot->word);
    if (ASPEN_SLOT_STATE(word) == ASPEN_SLOT_DONE) break;
    if (t->number) aspen_wait_any(c, seen, ASPEN_FOREVER);
    else aspen_wait_slot(slot, word, ASPEN_FOREVER);
  }
  check_answer(t, s);
}

static void cancel(struct thread *t, uint32_t s) {
  t->slot[s].cancels = 1;
  aspen_cancel(&world->client[t->client], &world->bell, t->number * SLOTS + s, t->slot[s].sequence);
}

static void ask(struct thread *t, uint32_t s) {
  struct asked *a = &t->slot[s];
  uint64_t *x = region_of(t, s);
  if (a->answered && memcmp(x + LENGTH, a->expected, VECTOR)) complain("an answer changed after it was given");
  for (int i = 0; i < LENGTH; i++) x[i] = aspen_random(&t->random);
  a->poisoned = below(&t->random, 12) == 0;
  a->large = !a->poisoned && below(&t->random, 12) == 0;
  if (a->poisoned) x[0] = POISON;
  if (a->large) x[0] = LARGE;
  a->plan = below(&t->random, 40) == 0 ? PLANS : below(&t->random, PLANS);
  uint32_t generation = a->plan < PLANS ? aspen_load_acquire(&world->generation_of[a->plan]) : 1;
  if (!generation) generation = aspen_load_acquire(&world->generation_of[a->plan = 0]);
  if (a->plan < PLANS) reference(&world->graph[a->plan], x, a->expected);
  struct aspen_request q = {.plan = a->plan + 1, .generation = generation, .class_ = below(&t->random, 3), .offset = (uint64_t)((char *)x - world->data[t->client])};
  if (below(&t->random, 3) == 0) { /* from microseconds to seconds */
    q.span_ns = 1000ull << below(&t->random, 22);
    q.runs_on = below(&t->random, 2);
  }
  a->drops = q.span_ns && !q.runs_on;
  a->busy = 1;
  a->cancels = 0;
  struct aspen_client_segment *c = &world->client[t->client];
  uint64_t takes = aspen_hopeless(c, &q);
  a->sequence = takes ? aspen_decline(c, &world->bell, t->number * SLOTS + s, &q, takes) : aspen_submit(c, &world->bell, t->number * SLOTS + s, &q);
}

static void *ask_for_ever(struct thread *t) {
  for (uint32_t r = 0, left = 0; left < SLOTS; r++) {
    uint32_t s = r % SLOTS;
    if (t->slot[s].busy) await(t, s);
    if (aspen_load_acquire(&world->finish)) {
      left++;
      continue;
    }
    ask(t, s);
    if (below(&t->random, 10)) continue;
    s = below(&t->random, SLOTS);
    if (t->slot[s].busy) cancel(t, s);
  }
  return NULL;
}

/* A round: every slot once, or one request a client. In a blocked one there is no free instance, and everything is cancelled. */
static void *ask_in_rounds(struct thread *t) {
  for (;;) {
    uint32_t round;
    while ((round = aspen_load_acquire(&world->round)) == t->round) aspen_futex_wait(&world->round, round, ASPEN_FOREVER);
    t->round = round;
    if (aspen_load_acquire(&world->finish)) return NULL;
    uint32_t n = !world->only ? SLOTS : world->only == t->number + 1;
    for (uint32_t s = 0; s < n; s++) ask(t, s);
    for (uint32_t s = 0; s < n; s++)
      if (world->blocked || below(&t->random, 8) == 0) cancel(t, s);
    for (uint32_t s = 0; s < n; s++) await(t, s);
    aspen_add_seq(&world->finished, 1);
    tell();
  }
}

static void *client_thread(void *argument) { return world->random_deaths ? ask_for_ever(argument) : ask_in_rounds(argument); }

static void client(uint32_t k, uint32_t random) {
  static struct thread thread[THREADS];
  pthread_t id[THREADS];
  for (uint32_t n = 0; n < THREADS; n++) {
    thread[n] = (struct thread){.client = k, .number = n, .random = random + 77 * n};
    if (pthread_create(&id[n], NULL, client_thread, &thread[n])) complain("no thread");
  }
  for (uint32_t n = 0; n < THREADS; n++) pthread_join(id[n], NULL);
  _exit(0);
}

#endif
