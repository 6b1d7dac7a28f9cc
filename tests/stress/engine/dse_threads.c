/* The scheduler's loop as threads, for ThreadSanitizer: several DSEs, two clients, a canceller and a planner process over one set of segments.
 *
 * Kernels here read and write their operands with plain accesses, so every ordering that a tile relies on (its inputs, recycled buffers, an
 * instance that is used again, a request's region) has to come from the protocol, and ThreadSanitizer proves or refutes it. Workers leave and
 * join again, a second plan comes and goes and a third client is announced while requests run, some requests are cancelled and some fail.
 * All synchronisation is atomics on the shared words; a futex only puts to sleep, so it does not matter that ThreadSanitizer cannot see it.
 *
 * usage: dse_threads SEED REQUESTS        exit status: 0 every answer was right; 1 not; 66 ThreadSanitizer has something to say
 * PLANT_RELAXED, PLANT_LATE, PLANT_REUSE, PLANT_AGAIN build in a fault that has to be found.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "atomics.h"
#if defined(PLANT_RELAXED) /* parents are counted, but not ordered before their child */
#undef aspen_sub_acq_rel
#define aspen_sub_acq_rel(p, v) __atomic_fetch_sub((p), (v), __ATOMIC_RELAXED)
#endif
#include "engine/loop.h"
#include "submit.h"
#include "table.h"

enum { WORKERS = 3, CLIENTS = 3, PLANS = 2, SLOTS = 5, WATCHDOG = 120 };

static void check(int condition, const char *what) {
  if (condition) return;
  printf("WRONG: %s\n", what);
  exit(1);
}

#include "graphs.h"

size_t aspen_kernel_scratch(uint32_t kernel, const aspen_call *call) { return 0; }

/* ------------------------------------------------------------------------------------------------ kernels */

#if defined(PLANT_LATE) /* a tile's output is written after its children were counted down */
static __thread struct { uint64_t *to, value[LENGTH]; int64_t lo, hi; } late;
static int kernel(const aspen_call *c) {
  uint64_t value[LENGTH];
  int r = compute(c, value);
  for (int64_t i = late.lo; i < late.hi; i++) late.to[i] = late.value[i];
  late.to = (uint64_t *)c->args[0].ptr;
  late.lo = c->lo[0];
  late.hi = c->hi[0];
  memcpy(late.value, value, sizeof value);
  return r;
}
#else
static int kernel(const aspen_call *c) { return compute(c, (uint64_t *)c->args[0].ptr); }
#endif

/* ------------------------------------------------------------------------------------------------ the planner process */

enum { ARENAS = 3, IDS = 32 /* more than the ids of segments and instances that are ever in use */ };
static struct aspen_control control;
static struct aspen_doorbell bell;
static struct aspen_client_segment client[CLIENTS];
static char plan_bytes[PLANS][PLAN_BYTES] __attribute__((aligned(64))), arena[PLANS][ARENAS][ARENA_BYTES] __attribute__((aligned(64)));
static char data[CLIENTS][ASPEN_DATA_FIRST + SLOTS * REGION] __attribute__((aligned(64)));
static struct graph graph[PLANS];
static void *mapped_at[ASPEN_MAX_SEGMENTS]; /* in the place of descriptors: written before what refers to a segment is announced */
static uint32_t generation_of[PLANS];       /* what the planner process tells clients; 0: no such plan now */
static uint32_t clients_running, plans_dropped, seed, requests;

static uint32_t add_segment(uint32_t role, void *at, uint64_t bytes) {
  uint32_t id = aspen_add_segment(&control, role, bytes);
  aspen_store_release(&mapped_at[id], at);
  return id;
}

static void add_client(uint32_t k) {
  uint32_t segment = add_segment(ASPEN_ROLE_CLIENT, &client[k], sizeof client[k]), region = add_segment(ASPEN_ROLE_DATA, data[k], sizeof data[k]);
  check(aspen_add_client(&control, segment, &client[k]) == k + 1 && aspen_add_data(&control, k + 1, region) == 1, "no client");
}

static void make_graph(uint32_t k) {
  uint32_t random = seed * 7919 + k + 1;
  struct graph *g = &graph[k];
  make_nodes(g, &random);
  make_edges(g);
  make_joins(g);
  printf("plan %u: %d tiles, %d joins, %d buffers, fan-out %d before joins\n", k + 1, g->n_tiles, g->n_joins, g->n_buffers, g->fanout);
}

static void add_plan(uint32_t k, uint32_t n_arenas) {
  uint32_t arenas[ARENAS], random = seed;
  memset(plan_bytes[k], 0, PLAN_BYTES); /* a race with every worker that still looks at the plan that was here */
  memset(arena[k], 0, sizeof arena[k]);
  write_plan(&graph[k], plan_bytes[k], &random);
  uint32_t segment = add_segment(ASPEN_ROLE_PLAN, plan_bytes[k], PLAN_BYTES);
  for (uint32_t a = 0; a < n_arenas; a++) arenas[a] = add_segment(ASPEN_ROLE_ARENA, arena[k][a], ARENA_BYTES);
  check(aspen_add_plan(&control, segment, NULL, 0, arenas, n_arenas) == k + 1, "no plan");
  aspen_publish(&control, &bell);
  aspen_store_release(&generation_of[k], control.plan[k + 1].generation);
}

/* Another version of the hints: nonsense. */
static void rehint(uint32_t *random) {
  struct aspen_hint_row *rows = aspen_hints_next(&control);
  for (uint32_t k = 1; k <= PLANS; k++)
    for (unsigned d = 0; d < ASPEN_DEPTHS; d++) aspen_stat_store(&rows[k].word[d], aspen_random(random));
  for (uint32_t row = 0; row < WORKERS; row++) aspen_stat_store(&control.worker[row].domain, 1u << below(random, 16));
  aspen_stat_store(&control.hints.tokens, below(random, 3));
  aspen_hints_publish(&control, below(random, 2));
}

/* One step in the life of the second plan: there, asked to go, gone, unmapped by everyone, there again. */
static void churn(void) {
  static uint32_t step, seq;
  uint32_t out[1 + ASPEN_PLAN_INSTANCES], n;
  switch (step) {
  case 0:
    add_plan(1, 2);
    break;
  case 4:
    aspen_store_relaxed(&generation_of[1], 0); /* clients may have read it just before */
    aspen_drop_plan(&control, &bell, 2);
    break;
  case 5:
    if (!(n = aspen_collect_plan(&control, 2, out))) return;
    for (uint32_t i = 0; i < n; i++) aspen_store_relaxed(&mapped_at[out[i]], NULL);
    seq = aspen_publish(&control, &bell);
    plans_dropped++;
    break;
  case 6:
    if (!aspen_all_attached(&control, seq)) return; /* somebody may still look at its segments */
    add_plan(1, 2);
    step = 0;
  }
  step++;
}

/* ------------------------------------------------------------------------------------------------ workers */

struct worker {
  struct aspen_dse dse;
  struct aspen_mapping mapping[ASPEN_MAX_SEGMENTS];
  struct aspen_plan_view *plan[ASPEN_MAX_PLANS];
  struct aspen_instance_view *instance[ASPEN_MAX_INSTANCES];
  uint64_t *next[ASPEN_MAX_INSTANCES];
};

static void forget(struct worker *w, uint32_t k) {
  if (!w->plan[k]) return;
  for (uint32_t i = 1; i < IDS; i++)
    if (w->instance[i] && w->instance[i]->plan == w->plan[k]) {
      aspen_exec_instance_free((struct aspen_exec_instance *)w->instance[i]);
      w->instance[i] = NULL;
      w->next[i] = NULL;
    }
  aspen_exec_plan_free((struct aspen_exec_plan *)w->plan[k]);
  w->plan[k] = NULL;
}

/* Maps everything announced up to an attach_seq that was read before, and forgets what has ended; returns that number. */
static uint32_t map_all(struct worker *w) {
  static aspen_kernel_fn const kernels[ASPEN_N_KERNELS] = {[ASPEN_K_BINARY] = kernel};
  uint32_t seq = aspen_load_seq(&control.signals.attach_seq);
  for (uint32_t k = 1; k <= PLANS; k++)
    if (aspen_load_seq(&control.plan[k].state) == ASPEN_PLAN_FREE) forget(w, k);
  for (uint32_t i = 1; i < IDS; i++) {
    const struct aspen_segment *s = &control.segment[i];
    uint32_t state = aspen_load_acquire(&s->state);
    if (state == ASPEN_SEGMENT_LIVE) w->mapping[i] = (struct aspen_mapping){aspen_load_acquire(&mapped_at[i]), s->bytes, s->role};
    if (state == ASPEN_SEGMENT_DROPPED) w->mapping[i].base = NULL;
  }
  for (uint32_t k = 1; k <= PLANS; k++) {
    const struct aspen_plan *p = &control.plan[k];
    const char *why;
    if (w->plan[k] || aspen_load_seq(&p->state) == ASPEN_PLAN_FREE || !w->mapping[p->segment].base) continue;
    struct aspen_exec_plan *e = aspen_exec_plan_new(w->mapping[p->segment].base, PLAN_BYTES, p->generation, kernels, &why);
    check(e != NULL, why);
    w->plan[k] = &e->view;
    for (uint32_t a = 0; a < p->n_instances; a++) {
      uint32_t id = p->instance[a];
      struct aspen_bases bases = {{0}};
      bases.at[ASPEN_SPACE_ARENA] = w->mapping[control.instance[id].arena].base;
      struct aspen_exec_instance *x = aspen_exec_instance_new(e, &bases);
      w->instance[id] = &x->view;
      w->next[id] = aspen_exec_next(x);
    }
  }
  return seq;
}

static void *work(void *argument) {
  uint32_t row = (uint32_t)(uintptr_t)argument, seq;
  struct worker *w = calloc(1, sizeof *w);
  check(w != NULL, "out of memory");
  seq = map_all(w);
  aspen_dse_init(&w->dse, &control, &bell, row, w->mapping, w->plan, w->instance, w->next);
  aspen_dse_attached(&w->dse, seq);
  w->dse.s.user.share = (row * ASPEN_SHARES + WORKERS - 1) / WORKERS; /* no kernel here takes long enough for a worker to find its share */
  w->dse.s.user.walk = ASPEN_WALK / WORKERS;
  aspen_dse_join(&w->dse);
  for (;;) switch (aspen_dse_run(&w->dse)) {
    case ASPEN_REASON_ATTACH: aspen_dse_attached(&w->dse, map_all(w)); break;
    case ASPEN_REASON_DRAINED: break;
    case ASPEN_REASON_OPAQUE: check(0, "an opaque tile that no plan has");
    default: goto out;
  }
out:
  for (uint32_t k = 1; k <= PLANS; k++) forget(w, k);
  free(w);
  return NULL;
}

static pthread_t worker_thread[WORKERS];
static void start(uint32_t row) {
  aspen_worker_reset(&control, row, ASPEN_NONE, 0, row & 1, 0);
  check(pthread_create(&worker_thread[row], NULL, work, (void *)(uintptr_t)row) == 0, "no thread");
}

/* ------------------------------------------------------------------------------------------------ clients */

/* Keeps SLOTS requests in flight and checks each answer. Client 0 is disturbed by the canceller. */
static void *submit(void *argument) {
  uint32_t me = (uint32_t)(uintptr_t)argument, random = seed * 31 + me + 1, cancelled = 0, failed = 0, gone = 0, late = 0;
  uint32_t plan_of[SLOTS] = {0}, drops[SLOTS] = {0};
  for (uint32_t r = 0; r < requests + SLOTS; r++) {
    uint32_t s = r % SLOTS;
    struct aspen_slot *slot = &client[me].slot[s];
    uint64_t *x = (uint64_t *)(data[me] + ASPEN_DATA_FIRST + s * REGION), *y = x + LENGTH, expected[LENGTH];
    if (r >= SLOTS) {
      uint32_t word;
      while (ASPEN_SLOT_STATE(word = aspen_load_acquire(&slot->word)) != ASPEN_SLOT_DONE) aspen_wait_slot(slot, word, ASPEN_FOREVER);
      uint32_t error = aspen_load_relaxed(&slot->error);
      if (error == ASPEN_E_CANCELLED) {
        check(me == 0, "a request was cancelled that nobody cancelled");
        cancelled++;
      } else if (error == ASPEN_E_TOO_LATE || error == ASPEN_E_EXPIRED) {
        check(drops[s], "a request was dropped that may take as long as it likes");
        late++;
      } else if (plan_of[s] == 1 && (error == ASPEN_E_PLAN_GONE || error == ASPEN_E_BAD_PLAN /* its entry is free */)) {
        gone++;
      } else if (x[0] == POISON && error) {
        check(error == ASPEN_E_BAD_INDEX && aspen_load_relaxed(&slot->needed) == 0, "a failed request ended oddly");
        failed++;
      } else {
        check(error == 0, "a request failed");
        reference(&graph[plan_of[s]], x, expected);
        check(memcmp(y, expected, VECTOR) == 0, "a wrong answer");
      }
      aspen_release(&client[me], s);
    }
    if (r >= requests) continue;
    for (int i = 0; i < LENGTH; i++) x[i] = aspen_random(&random);
    if (below(&random, 16) == 0) x[0] = POISON;
    plan_of[s] = below(&random, PLANS);
    uint32_t generation = aspen_load_acquire(&generation_of[plan_of[s]]);
    if (!generation) generation = aspen_load_acquire(&generation_of[plan_of[s] = 0]);
    struct aspen_request q = {.plan = plan_of[s] + 1, .generation = generation, .data = 0, .class_ = below(&random, 3), .offset = ASPEN_DATA_FIRST + s * REGION};
    drops[s] = below(&random, 3) == 0;
    if (drops[s]) q.span_ns = 1000ull << below(&random, 22); /* from microseconds to seconds */
    uint64_t takes = aspen_hopeless(&client[me], &q);
    if (takes) aspen_decline(&client[me], &bell, s, &q, takes);
    else aspen_submit(&client[me], &bell, s, &q);
  }
  printf("client %u: %u requests, %u cancelled, %u failed, %u too late for their plan, %u for their deadline\n", me + 1, requests, cancelled, failed, gone, late);
  aspen_sub_seq(&clients_running, 1);
  return NULL;
}

/* Another thread of client 0: cancels a request now and then, perhaps one that has just ended. */
static void *cancel(void *argument) {
  uint32_t random = seed + 99;
  while (aspen_load_seq(&clients_running)) {
    uint32_t s = below(&random, SLOTS), word = aspen_load_relaxed(&client[0].slot[s].word), state = ASPEN_SLOT_STATE(word);
    if (state == ASPEN_SLOT_SUBMITTED || state == ASPEN_SLOT_RUNNING) aspen_cancel(&client[0], &bell, s, ASPEN_SLOT_SEQUENCE(word));
    for (int k = 0; k < 4; k++) aspen_wait_any(&client[0], aspen_load_seq(&client[0].completions), 5000000);
  }
  return NULL;
}

/* ------------------------------------------------------------------------------------------------ all together */

int main(int argc, char **argv) {
  pthread_t client_thread[CLIENTS], canceller;
  if (argc != 3) return 3;
  seed = (uint32_t)strtoul(argv[1], NULL, 10);
  requests = (uint32_t)strtoul(argv[2], NULL, 10);
  setvbuf(stdout, NULL, _IOLBF, 0);
  alarm(WATCHDOG); /* somebody sleeps for ever: killed by the signal */
  aspen_table_create(&control, WORKERS, 20000, 1000000);
  control.signals.seed = seed;
  add_client(0);
  add_client(1);
  make_graph(0);
  make_graph(1);
  add_plan(0, ARENAS);
  for (uint32_t row = 0; row < WORKERS; row++) start(row);
  clients_running = CLIENTS;
  for (uintptr_t k = 0; k < 2; k++) check(pthread_create(&client_thread[k], NULL, submit, (void *)k) == 0, "no thread");
  check(pthread_create(&canceller, NULL, cancel, NULL) == 0, "no thread");
  uint32_t random = seed + 5, left = 0;
  while (aspen_load_seq(&clients_running)) {
    uint32_t row = below(&random, WORKERS);
    aspen_worker_command(&control, &bell, row, ASPEN_COMMAND_LEAVE);
    pthread_join(worker_thread[row], NULL);
    aspen_stat_store(&control.signals.policy, below(&random, 3));
    start(row);
    if (left++ == 3) {
      aspen_look_again(&control, &bell); /* DSEs look at every client, also at the one that is about to be added */
      add_client(2);
      aspen_publish(&control, &bell);
      check(pthread_create(&client_thread[2], NULL, submit, (void *)2) == 0, "no thread");
    }
    usleep(1000); /* so that workers have the time to join */
    churn();
    rehint(&random);
  }
  for (int k = 0; k < CLIENTS; k++) pthread_join(client_thread[k], NULL);
  pthread_join(canceller, NULL);
  aspen_store_seq(&control.signals.stop, 1);
  aspen_wake_all(&bell);
  for (uint32_t row = 0; row < WORKERS; row++) pthread_join(worker_thread[row], NULL);
  for (uint32_t row = 0; row < WORKERS; row++) check(!control.row[row].first && !control.row[row].lock, "a row is not empty or still locked");
  check(!control.hints.holders[0], "a token is not given back");
  uint32_t instances = 0;
  for (uint32_t k = 1; k <= PLANS; k++)
    for (uint32_t a = 0; control.plan[k].state != ASPEN_PLAN_FREE && a < control.plan[k].n_instances; a++, instances++)
      check((uint32_t)control.instance[control.plan[k].instance[a]].word == ASPEN_INSTANCE_FREE, "an instance is not free");
  for (uint32_t i = 1; i < ASPEN_MAX_INSTANCES; i++) instances -= (uint32_t)control.instance[i].word != ASPEN_INSTANCE_NONE;
  check(instances == 0, "an instance is no plan's");
  check(!control.claim.lock && !control.idle.sleepers && !control.idle.spinners, "somebody is still counted");
  printf("fine; workers left and joined again %u times, a plan was dropped %u times\n", left, plans_dropped);
  return 0;
}
