/* The scheduler under the model checker: two DSEs, a client and a planner process over a small tile graph. search.c says what "every
 * interleaving" means and how many of them are left out, fibers.c how the headers' own lines are run.
 *
 * The headers are compiled with ASPEN_MODEL_CHECK, where each atomic operation is a step. Memory is sequentially consistent, or x86-TSO when
 * asked for: stores (other than seq ones) wait in a FIFO of their fiber until a separate step writes them, so a missing store-load
 * barrier shows. Tiles' data and counters are touched in one step each: on x86 they are seen at the latest by the count-down or release that publishes them.
 *
 * Checked: a tile runs once a request, after its parents, and sees what it should see (buffers are recycled within and between requests); counters do not
 * fall below zero; nobody touches what a lock guards without the lock, nor what it has not mapped; clients get right answers; no state is left in which somebody
 * waits for ever; at the end everything is back at rest.
 *
 * usage: model SCENARIO [tso] [bound=N] [whole] [mirrored] [compare] [backwards] [walks=N] [max states]
 *          bound=N: only schedules with at most N preemptions; whole: without reduction; mirrored: without symmetry; compare: with and without reduction
 *       exit status: 0 every state is fine, 1 a violation (its trace is printed) or something lost by the reduction, 2 too many states, 3 usage
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dse.h"
#include "search.h"
#include "submit.h"
#include "table.h"

size_t aspen_kernel_scratch(uint32_t kernel, const aspen_call *call) { return 0; }

void fail(const char *what) {
  printf("VIOLATION: %s\n", what);
  print_trace();
  fflush(stdout);
  _exit(1);
}

/* ------------------------------------------------------------------------------------------------ the system under check */

enum { TILES = 5, A = 0, B, C, D, END /* of the diamond */, PLAN_BYTES = 8192, ARENA_BYTES = 512, COUNTERS = 64, EXECUTED = 128, LINKS = 192, ACTIVATIONS = 256 };
static struct aspen_control control;
static struct aspen_doorbell bell;
static struct aspen_client_segment client;
static char plan[PLAN_BYTES] __attribute__((aligned(64))), arena[2][ARENA_BYTES] __attribute__((aligned(64)));
static uint64_t data[64] __attribute__((aligned(64)));
static struct aspen_dse dse[2];
static struct aspen_mapping mapping[ASPEN_MAX_SEGMENTS];
/* Each worker its own: what it has mapped, and to which request an instance's arguments belong. */
static struct aspen_plan_view *plans[2][ASPEN_MAX_PLANS];
static struct aspen_instance_view *instances[2][ASPEN_MAX_INSTANCES];
static struct aspen_exec_instance *made[2][2];
static uint64_t *links[ASPEN_MAX_INSTANCES];
static struct aspen_exec_plan *exec;
static uint64_t ran[2][TILES];                          /* by instance and tile: request that ran last */
static struct { uint64_t answered; uint32_t sequence[2]; } told; /* the client's own */
static struct { uint64_t once; } claimed;               /* has anybody had the claim lock? */
static struct { uint32_t n, unused; } news __attribute__((aligned(8)));             /* the planner process's socket: it wakes up when something was sent */

static struct scenario {
  const char *name;
  enum { SINGLE, PAIR, DIAMOND } graph;
  int requests, slots, instances;
  int fault, cancel;                /* a tile whose kernel fails, a request that is cancelled; -1: none */
  int leaves, announces, lazy;      /* worker 1 is asked to leave; a segment is announced; nobody steals */
  enum { NONE, PLAN, CLIENT, DATA } drops;
  int spoils;                       /* the client overwrites its own slot */
  int maps;                         /* the plan itself is announced */
} it;
static uint32_t parents_of[TILES];
static int n_tiles;

/* out = f(tile, inputs): tells tiles and inputs apart. */
static uint64_t f(unsigned tile, uint64_t a, uint64_t b) { return (a * 31 + b * 17 + tile + 1) & 0xffffffff; }

struct job { unsigned tile, id, generation, unused; uint64_t *out, *a, *b; };

static int compute(void *argument) {
  const struct job *j = argument;
  CHECK(ran[j->id][j->tile] < j->generation, "a tile ran twice in one request, or after a later request");
  for (int p = 0; p < n_tiles; p++)
    if (parents_of[j->tile] >> p & 1) CHECK(ran[j->id][p] == j->generation, "a tile ran before its parent");
  *j->out = f(j->tile, *j->a, *j->b);
  ran[j->id][j->tile] = j->generation;
  return (int)j->tile == it.fault ? ASPEN_E_BAD_INDEX : 0;
}

static int kernel(const aspen_call *c) {
  uint64_t item = control.worker[running].current;
  struct job j = {(unsigned)c->params[0], ASPEN_ITEM_INSTANCE(item) - 1, ASPEN_ITEM_GENERATION(item), 0, (uint64_t *)c->args[0].ptr, (uint64_t *)c->args[1].ptr, (uint64_t *)c->args[2].ptr};
  struct access words[4 + TILES];
  uint32_t n = 0;
  words[n++] = (struct access){&ran[j.id][j.tile], 8, 1};
  words[n++] = (struct access){j.out, 8, 1};
  words[n++] = (struct access){j.a, 8, 0};
  words[n++] = (struct access){j.b, 8, 0};
  for (int p = 0; p < n_tiles; p++)
    if (parents_of[j.tile] >> p & 1) words[n++] = (struct access){&ran[j.id][p], 8, 0};
  return call(compute, &j, words, n);
}

static uint64_t expected(uint64_t x) {
  uint64_t a = f(A, x, x);
  return it.graph != DIAMOND ? a : f(D, f(B, a, a), f(C, a, a));
}

/* A diamond whose last tile overwrites what its first one wrote: A: x → y; B: y → 0; C: y → 1; D: 0, 1 → y; END.
 * Or a pair, both ready at once: A: x → y; B: x → 0; END. Or a single tile: A: x → y; END. */
static void make_plan(void) {
  const int X = -1, Y = -2, pair = it.graph == PAIR, end = (n_tiles = it.graph == DIAMOND ? 5 : pair ? 3 : 2) - 1;
  const int out[] = {Y, 0, 1, Y}, in0[] = {X, pair ? X : Y, Y, 0}, in1[] = {X, pair ? X : Y, Y, 1};
  const uint32_t diamond_kids[] = {B, C, D, D, END}, diamond_count[] = {2, 1, 1, 1, 0}, pair_kids[] = {2, 2}, pair_count[] = {1, 1, 0},
                 single_kids[] = {1}, single_count[] = {1, 0};
  const uint32_t *kids = it.graph == DIAMOND ? diamond_kids : pair ? pair_kids : single_kids;
  const uint32_t *count = it.graph == DIAMOND ? diamond_count : pair ? pair_count : single_count;
  uint32_t n_children = 0;
  struct aspen_plan_header *h = (struct aspen_plan_header *)plan;
  struct aspen_op *ops = (struct aspen_op *)(plan + 1024);
  struct aspen_operand *operands = (struct aspen_operand *)(plan + 2048);
  int64_t *params = (int64_t *)(plan + 6144);
  struct aspen_tile *tiles = (struct aspen_tile *)(plan + 6400);
  uint32_t *children = (uint32_t *)(plan + 7168), *counts = children + 16, *initial = children + 32;
  aspen_magic_write((struct aspen_magic *)plan, PLAN_BYTES, ASPEN_ROLE_PLAN);
  h->n_ops = h->n_tiles = (uint32_t)n_tiles;
  h->n_operands = 12;
  h->n_params = 16;
  h->n_initial = pair ? 2 : 1;
  h->end_tile = (uint32_t)end;
  h->ops = 1024, h->operands = 2048, h->params = 6144, h->tiles = 6400, h->children = 7168, h->parent_counts = 7232, h->initial = 7296;
  h->arena_bytes = ARENA_BYTES, h->arena_counters = COUNTERS, h->arena_executed = EXECUTED, h->arena_next = LINKS, h->arena_data = ACTIVATIONS;
  h->request_bytes = 64;
  initial[0] = A;
  initial[1] = B;
  for (int t = 0; t < n_tiles; t++) {
    tiles[t] = (struct aspen_tile){.op = (uint32_t)t, .children = n_children, .n_children = (uint16_t)count[t], .depth = (uint8_t)(t > C ? 1 : 0), .rank = (uint32_t)t};
    tiles[t].hi[0] = 1;
    ops[t].kernel = t == end ? ASPEN_K_END : ASPEN_K_BINARY;
    for (uint32_t k = 0; k < count[t]; k++, n_children++) {
      uint32_t child = children[n_children] = kids[n_children];
      counts[child]++;
      parents_of[child] |= 1u << t;
    }
    h->n_children = n_children;
    if (t == end) continue;
    ops[t].operand = (uint32_t)(3 * t), ops[t].n_outputs = 1, ops[t].n_inputs = 2, ops[t].param = (uint32_t)(4 * t), ops[t].n_params = 4;
    params[4 * t] = t;
    for (int k = 0; k < 3; k++) {
      int where = k == 0 ? out[t] : k == 1 ? in0[t] : in1[t];
      struct aspen_operand *o = &operands[3 * t + k];
      *o = (struct aspen_operand){.dtype = ASPEN_DT_U64, .rank = 1, .dims = {1}, .strides = {1}};
      o->space = where < 0 ? ASPEN_SPACE_REQUEST : ASPEN_SPACE_ARENA;
      o->offset = where < 0 ? (where == -1 ? 0 : 8) : ACTIVATIONS + 8 * where;
    }
  }
}

/* ------------------------------------------------------------------------------------------------ the fibers */

#define MARK(n) (fiber[running].marker = (uint32_t)(n)) /* where a program is, for the search's table of places */

static void tell_planner(void) {
  aspen_add_seq(&news.n, 1);
  aspen_futex_wake(&news.n, INT_MAX);
}

/* What a worker's process does when something was announced: it maps the plans that live, and unmaps the others. */
static void map_all(int me) {
  uint32_t seq = aspen_load_acquire(&control.signals.attach_seq);
  int live = aspen_load_acquire(&control.plan[1].state) != ASPEN_PLAN_FREE;
  plans[me][1] = live ? &exec->view : NULL;
  for (int k = 0; k < it.instances; k++) instances[me][k + 1] = live ? &made[me][k]->view : NULL;
  aspen_dse_attached(&dse[me], seq);
}

static void worker(int me) {
  struct aspen_dse *d = &dse[me];
  aspen_dse_join(d);
  for (;;) switch (aspen_dse_run(d)) {
    case ASPEN_REASON_ATTACH: map_all(me); break;
    case ASPEN_REASON_DRAINED: tell_planner(); break;
    case ASPEN_REASON_LEAVE: return;
    default: fail("a DSE left its loop for no reason");
    }
}

static uint64_t input_of(int r) { return (uint64_t)(1000 + r); }

static void check_answer(int r, int s) {
  struct aspen_slot *slot = &client.slot[s];
  uint32_t error = aspen_load_relaxed(&slot->error);
  if (it.fault >= 0) CHECK(error == ASPEN_E_BAD_INDEX && aspen_load_relaxed(&slot->op) == (uint32_t)it.fault, "a failed request did not say so");
  else if (r == it.cancel) CHECK(error == 0 || error == ASPEN_E_CANCELLED, "a cancelled request ended oddly");
  else if (it.drops) CHECK(error == 0 || (it.drops == PLAN ? error == ASPEN_E_PLAN_GONE || error == ASPEN_E_BAD_PLAN : error == ASPEN_E_BAD_DATA), "a request of something that was dropped ended oddly");
  else CHECK(error == 0, "a request failed");
  if (!error) CHECK(aspen_load_relaxed(&data[8 + 8 * s + 1]) == expected(input_of(r)), "a wrong answer");
}

/* Keeps up to `slots` requests in flight, waits for each in order. */
static void client_body(int me) {
  if (it.maps) /* the planner process says when the plan is there */
    for (uint32_t seen; (seen = aspen_load_seq(&news.n)) == 0;) aspen_futex_wait(&news.n, seen, ASPEN_FOREVER);
  for (int r = 0; r < it.requests + it.slots; r++) {
    MARK(r + 1);
    if (r >= it.slots && r - it.slots < it.requests) {
      int old = r - it.slots, s = old % it.slots;
      struct aspen_slot *slot = &client.slot[s];
      for (;;) {
        uint32_t word = aspen_load_acquire(&slot->word);
        CHECK(ASPEN_SLOT_SEQUENCE(word) == told.sequence[s], "a slot changed hands");
        if (ASPEN_SLOT_STATE(word) == ASPEN_SLOT_DONE) break;
        aspen_wait_slot(slot, word, ASPEN_FOREVER);
      }
      check_answer(old, s);
      aspen_release(&client, (uint32_t)s);
      told.answered++;
    }
    if (r < it.requests) {
      int s = r % it.slots;
      aspen_store_relaxed(&data[8 + 8 * s], input_of(r));
      struct aspen_request q = {.plan = 1, .generation = 1, .data = 0, .class_ = 1, .offset = (uint64_t)(64 + 64 * s)};
      told.sequence[s] = aspen_submit(&client, &bell, (uint32_t)s, &q);
      if (r == it.cancel) aspen_cancel(&client, &bell, (uint32_t)s, told.sequence[s]);
      if (it.spoils) aspen_store_relaxed(&client.slot[s].word, ASPEN_SLOT_WORD(told.sequence[s], ASPEN_SLOT_FREE));
      if (it.spoils || it.drops == CLIENT) return; /* nobody is left to wait for an answer */
    }
  }
}

/* The planner process: asks a worker to leave, announces a segment or a plan, drops something and waits until nothing uses it. */
static void planner_body(int me) {
  uint32_t out[1 + ASPEN_CLIENT_DATA + ASPEN_PLAN_INSTANCES], dropped = 0;
  if (it.leaves) aspen_worker_command(&control, &bell, 1, ASPEN_COMMAND_LEAVE);
  if (it.announces) aspen_publish(&control, &bell);
  if (it.maps) {
    aspen_store_seq(&control.plan[1].state, ASPEN_PLAN_LIVE);
    aspen_publish(&control, &bell);
    tell_planner(); /* its client, here */
  }
  if (!it.drops) return;
  if (it.drops == PLAN) aspen_drop_plan(&control, &bell, 1);
  else if (it.drops == CLIENT) aspen_drop_client(&control, &bell, 1);
  else dropped = aspen_drop_data(&control, 1, 0);
  for (;;) {
    uint32_t seen = aspen_load_seq(&news.n);
    if (it.drops == PLAN ? aspen_collect_plan(&control, 1, out) : it.drops == CLIENT ? aspen_collect_client(&control, 1, out) : !aspen_in_use(&control, 0, dropped)) break;
    aspen_futex_wait(&news.n, seen, ASPEN_FOREVER);
  }
  MARK(1);
  aspen_publish(&control, &bell);
}

/* ------------------------------------------------------------------------------------------------ what the search asks */

uint32_t holds(int i) {
  if (i > 1) return 0;
  uint32_t held = (uint32_t)(control.row[0].lock == (uint32_t)i + 1) | (uint32_t)(control.row[1].lock == (uint32_t)i + 1) << 1 |
                  (uint32_t)(control.claim.lock == (uint32_t)i + 1) << 2;
  uint64_t item = control.worker[i].current;
  if (item) held |= 1u << (LONG_LOCKS + (ASPEN_ITEM_INSTANCE(item) - 1) * TILES + ASPEN_ITEM_TILE(item));
  return held;
}
uint32_t held_by_word(const void *p) {
  return p == &control.row[0].lock ? 1 : p == &control.row[1].lock ? 2 : p == &control.claim.lock ? 4 : 0;
}

/* A row's words under that row's lock; a queue's links under either, for a tile is in one queue only (I12). */
int may_touch_guarded(const void *p) {
  int first = (const char *)p >= (const char *)&control.row[0] && (const char *)p < (const char *)&control.row[1];
  int second = (const char *)p >= (const char *)&control.row[1] && (const char *)p < (const char *)&control.row[2];
  uint32_t held = holds(running);
  for (uint32_t k = 0; k < fiber[running].n_buffer; k++) held &= ~held_by_word(buffer[running][k].p);
  return first ? held & 1 : second ? held & 2 : held & 3;
}

void on_operation(const struct pending *at, uint64_t old) {
  if (at->p == &control.claim.lock && at->kind == CAS && !old) claimed.once = 1;
  for (int k = 0; k < it.instances; k++) {
    const char *a = arena[k], *p = at->p;
    if (at->kind == RMW && p >= a + COUNTERS && p < a + EXECUTED) CHECK(old != 0, "a counter fell below zero");
    if (at->kind == STORE && p >= a + EXECUTED && p < a + LINKS) CHECK(old != at->a, "a tile was executed twice in one request");
  }
}

/* The first claim: who makes it is worker 0, whatever the two are called. */
int breaks_symmetry(const struct pending *at) {
  return at->kind == CAS && at->p == &control.claim.lock && !claimed.once;
}

static void normalise_worker(struct aspen_dse *d, int me) {
  for (uint32_t k = d->held.n; k < sizeof d->held.item / sizeof *d->held.item; k++) d->held.item[k] = d->held.column[k] = 0;
  if (!d->s.seed.instance) d->s.seed = (struct aspen_seed){0};
  for (int k = 0; k < it.instances; k++) {
    struct aspen_instance_view *v = &made[me][k]->view;
    uint64_t word = control.instance[k + 1].word;
    /* The arguments are those of an earlier request: before the next tile they are made anew. */
    if (v->generation != (uint32_t)(word >> 32) || (uint32_t)word == ASPEN_INSTANCE_FREE || (uint32_t)word == ASPEN_INSTANCE_NONE) {
      v->generation = 0;
      v->request = NULL;
    }
  }
}

void normalise(void) {
  for (int w = 0; w < 2; w++) normalise_worker(&dse[w], w);
  int unlocked = !control.row[0].lock && !control.row[1].lock;
  uint32_t queued[2] = {0, 0};
  for (int w = 0; w < 2; w++) {
    struct aspen_row *row = &control.row[w];
    if (row->lock) continue;
    for (unsigned c = ASPEN_DEPTHS; c < ASPEN_DEPTHS + 2; c++)
      if (!(row->mask >> c & 1)) row->column[c].head = row->column[c].tail = 0;
      else
        for (uint64_t item = row->column[c].head; item; item = links[ASPEN_ITEM_INSTANCE(item)][ASPEN_ITEM_TILE(item)]) {
          uint32_t *in = &queued[ASPEN_ITEM_INSTANCE(item) - 1], bit = 1u << ASPEN_ITEM_TILE(item);
          CHECK(!(*in & bit), "a tile is queued twice");
          *in |= bit;
        }
  }
  for (int k = 0; k < it.instances && unlocked; k++)
    for (int t = 0; t < n_tiles; t++)
      if (!(queued[k] >> t & 1)) links[k + 1][t] = 0;
}

/* The arguments of a worker's instance follow from the region of the request that it was prepared for last. */
void restored(void) {
  for (int w = 0; w < 2 && it.slots > 1; w++)
    for (int k = 0; k < it.instances; k++) {
      struct aspen_instance_view *v = &made[w][k]->view;
      if (v->request) aspen_exec_move(made[w][k], v->request, v->generation);
    }
}

/* Nobody can run any more: everything must be at rest. */
void check_rest(void) {
  CHECK(fiber[2].at.kind == DONE && (it.spoils || it.drops == CLIENT || (int)told.answered == it.requests), "everybody waits, and a request has no answer");
  CHECK(n_fibers == 3 || fiber[3].at.kind == DONE, "everybody waits, and so does the planner process");
  int left = 0;
  for (int w = 0; w < 2; w++) {
    if (fiber[w].at.kind == DONE) left++;
    else {
      CHECK(fiber[w].blocked_on == &bell.event, "a DSE is neither parked nor gone");
      CHECK(dse[w].s.user.attached == control.signals.attach_seq, "an announcement was overlooked");
    }
    CHECK(control.row[w].mask == 0 && control.row[w].lock == 0, "a row is not empty or still locked");
  }
  CHECK(left == it.leaves, "the wrong workers left");
  CHECK(control.idle.sleepers == (uint32_t)(2 - left) && control.idle.spinners == 0, "the counts of idle workers are off");
  CHECK(control.claim.lock == 0 && control.claim.wanted == control.claim.done, "a claim is due and nobody makes it");
  uint64_t rounds = 0;
  for (int k = 0; k < it.instances; k++) {
    CHECK((uint32_t)control.instance[k + 1].word == (it.drops == PLAN ? ASPEN_INSTANCE_NONE : ASPEN_INSTANCE_FREE), "an instance is not free");
    rounds += control.instance[k + 1].word >> 32;
  }
  if (it.cancel < 0 && !it.drops && !it.spoils) CHECK(rounds == (uint64_t)it.requests, "requests and generations differ");
}

/* ------------------------------------------------------------------------------------------------ setting up */

static void crashed(int signal) { fail("a crash: somebody touched what is not mapped"); }

static void track_instance(int k) {
  struct aspen_instance *i = &control.instance[k + 1];
  track(&i->word, 16, "an instance's word and fault");
  track(&i->plan, offsetof(struct aspen_instance, started_ns) - offsetof(struct aspen_instance, plan), "an instance");
  ignore(&i->started_ns, 16); /* and `served` */
  track(arena[k] + COUNTERS, 24, "counters");
  remember(arena[k] + EXECUTED, 24, "executed");
  remember(arena[k] + LINKS, 48, "links");
  track(arena[k] + ACTIVATIONS, 16, "activations");
  track(ran[k], sizeof ran[k], "what ran");
  for (int w = 0; w < 2; w++) {
    remember(&made[w][k]->view.generation, 16, "a worker's view of an instance");
  }
}

static void track_all(void) {
  for (int w = 0; w < 2; w++) {
    remember(&dse[w], offsetof(struct aspen_dse, looked_since), "a DSE");
    if (it.maps || it.drops) {
      remember(&plans[w][1], 8, "a worker's plans");
      remember(&instances[w][1], 16, "a worker's instances");
    }
    track(&control.row[w], 16, "a row");
    remember(&control.row[w].column[ASPEN_DEPTHS], sizeof(struct aspen_queue) * 2, "columns");
    remember(&control.worker[w].current, 8, "a worker's current tile");
    track(&control.worker[w].node, 16, "a worker's state and command");
    ignore(&control.worker[w].heartbeat, sizeof control.worker[w] - offsetof(struct aspen_worker, heartbeat));
  }
  if (it.announces || it.maps || it.drops) track(&control.signals.epoch, 8, "epoch and attach_seq");
  track(&control.idle, 8, "idle counts");
  track(&control.claim, 24, "claim");
  ignore(&control.claim.waiting[1], 24); /* no such clients */
  for (int k = 0; k < it.instances; k++) track_instance(k);
  if (it.maps || it.drops == PLAN) track(&control.plan[1].state, 8, "the plan's state");
  if (it.drops == CLIENT) track(&control.client[1], 16, "the client's state");
  if (it.drops == DATA) track(&control.client[1].data[0], 8, "the client's data segments");
  if (it.drops) ignore(control.segment, sizeof control.segment), ignore(&control.plan[1], sizeof control.plan[1]);
  track(&bell.event, 4, "event");
  event_count(&bell.event);
  track(&bell.pending[0], 8, "pending clients");
  ignore(&client.completions, 8);
  track(&client.pending[0], 8, "pending slots");
  track(&client.cancel[0], 8, "cancelled slots");
  for (int s = 0; s < it.slots; s++) {
    struct aspen_slot *slot = &client.slot[s];
    track(&slot->word, offsetof(struct aspen_slot, submitted_ns), "a slot");
    track(&slot->cancel, 8, "a slot's cancellation");
    track(&slot->error, 16, "a slot's answer");
    track(&slot->message_bytes, 8, "a slot's hint");
    track(&data[8 + 8 * s], 16, "a request's region");
    ignore(&slot->submitted_ns, 8);
    ignore(&slot->started_ns, 16);
  }
  remember(&claimed, sizeof claimed, "whether there was a claim");
  remember(&told, sizeof told, "what the client knows");
  track(&news, sizeof news, "news for the planner process");
}

static void set_up(void) {
  const char *why;
  make_plan();
  control.signals.n_rows = 2;
  control.signals.steal = (uint32_t)!it.lazy;
  control.signals.attach_seq = 1;
  for (uint32_t r = 0; r < 2; r++) control.worker[r].state = ASPEN_WORKER_JOINING;
  uint32_t s_plan = aspen_add_segment(&control, ASPEN_ROLE_PLAN, PLAN_BYTES), s_data = aspen_add_segment(&control, ASPEN_ROLE_DATA, sizeof data);
  uint32_t s_client = aspen_add_segment(&control, ASPEN_ROLE_CLIENT, sizeof client), s_arena[2];
  for (int k = 0; k < it.instances; k++) s_arena[k] = aspen_add_segment(&control, ASPEN_ROLE_ARENA, ARENA_BYTES);
  mapping[s_plan] = (struct aspen_mapping){plan, PLAN_BYTES, ASPEN_ROLE_PLAN};
  mapping[s_data] = (struct aspen_mapping){(char *)data, sizeof data, ASPEN_ROLE_DATA};
  mapping[s_client] = (struct aspen_mapping){(char *)&client, sizeof client, ASPEN_ROLE_CLIENT};
  aspen_add_client(&control, s_client, &client);
  aspen_add_data(&control, 1, s_data);
  aspen_add_plan(&control, s_plan, NULL, 0, s_arena, (uint32_t)it.instances);
  if (it.maps) control.plan[1].state = ASPEN_PLAN_FREE; /* not yet announced */
  static aspen_kernel_fn kernels[ASPEN_N_KERNELS];
  kernels[ASPEN_K_BINARY] = kernel;
  exec = aspen_exec_plan_new(plan, PLAN_BYTES, 1, kernels, &why);
  if (!exec) {
    printf("bad plan: %s\n", why);
    exit(3);
  }
  for (int w = 0; w < 2; w++) {
    for (int k = 0; k < it.instances; k++) {
      struct aspen_bases bases = {{0}};
      bases.at[ASPEN_SPACE_ARENA] = arena[k];
      made[w][k] = aspen_exec_instance_new(exec, &bases);
      aspen_exec_move(made[w][k], (char *)&data[8], 0);
      links[k + 1] = aspen_exec_next(made[w][k]);
    }
    aspen_dse_init(&dse[w], &control, &bell, (uint32_t)w, mapping, plans[w], instances[w], links);
    dse[w].s.user.attached = control.worker[w].attached = 1;
    if (it.maps) continue;
    plans[w][1] = &exec->view;
    for (int k = 0; k < it.instances; k++) instances[w][k + 1] = &made[w][k]->view;
  }
  track_all();
  body[0] = body[1] = worker;
  body[2] = client_body;
  body[3] = planner_body;
  n_fibers = it.leaves || it.announces || it.maps || it.drops ? 4 : 3;
  start_fibers();
}

static const struct scenario scenarios[] = {
    /* name, graph, requests, slots, instances, fault, cancel, leaves, announces, lazy, drops, spoils, maps */
    {"single", SINGLE, 1, 1, 1, -1, -1, 0, 0, 0, NONE, 0, 0},
    {"pair", PAIR, 1, 1, 1, -1, -1, 0, 0, 0, NONE, 0, 0},       /* two tiles ready at once: seeding, stealing */
    {"diamond", DIAMOND, 1, 1, 1, -1, -1, 0, 0, 0, NONE, 0, 0}, /* push, follow, steal, park, wake, complete */
    {"lazy", PAIR, 1, 1, 1, -1, -1, 0, 0, 1, NONE, 0, 0},       /* the same, and nobody steals */
    {"fault", DIAMOND, 1, 1, 1, B, -1, 0, 0, 0, NONE, 0, 0},    /* a kernel fails: no-ops to END */
    {"again", SINGLE, 2, 1, 1, -1, -1, 0, 0, 0, NONE, 0, 0},    /* one after the other: the instance, its flags and buffers are used again */
    {"queued", SINGLE, 2, 2, 1, -1, -1, 0, 0, 0, NONE, 0, 0},   /* two at once, one instance: the second waits for the first one's END */
    {"beside", SINGLE, 2, 2, 2, -1, -1, 0, 0, 0, NONE, 0, 0},   /* two at once, two instances */
    {"rush", PAIR, 2, 2, 2, -1, -1, 0, 0, 0, NONE, 0, 0},       /* the same with two tiles each */
    {"cancel", PAIR, 1, 1, 1, -1, 0, 0, 0, 0, NONE, 0, 0},      /* cancelled right after submission */
    {"recancel", SINGLE, 2, 1, 1, -1, 0, 0, 0, 0, NONE, 0, 0},  /* cancelled, then the slot is used again */
    {"scribble", SINGLE, 1, 1, 1, -1, -1, 0, 0, 0, NONE, 1, 0}, /* the client overwrites its own slot, and is gone */
    {"leave", PAIR, 1, 1, 1, -1, -1, 1, 0, 0, NONE, 0, 0},      /* a worker leaves */
    {"bequeath", PAIR, 1, 1, 1, -1, -1, 1, 0, 1, NONE, 0, 0},   /* a worker leaves, and nobody steals */
    {"relay", SINGLE, 2, 2, 1, -1, -1, 1, 0, 0, NONE, 0, 0},    /* a worker leaves while one request runs and another waits */
    {"announce", PAIR, 1, 1, 1, -1, -1, 0, 1, 0, NONE, 0, 0},   /* something is announced while a request runs */
    {"hold", DIAMOND, 1, 1, 1, -1, -1, 1, 1, 0, NONE, 0, 0},    /* a worker leaves with tiles in hand, and something is announced meanwhile */
    {"attach", PAIR, 1, 1, 1, -1, -1, 0, 0, 0, NONE, 0, 1},     /* the plan is announced, then the client hears of it */
    {"drop", SINGLE, 1, 1, 1, -1, -1, 0, 0, 0, PLAN, 0, 0},     /* the plan is dropped while its request comes, is claimed, runs, ends */
    {"drop-data", SINGLE, 1, 1, 1, -1, -1, 0, 0, 0, DATA, 0, 0},
    {"drop-client", SINGLE, 1, 1, 1, -1, -1, 0, 0, 0, CLIENT, 0, 0},
    {"spoil", SINGLE, 1, 1, 1, -1, -1, 0, 0, 0, PLAN, 1, 0},    /* the plan is dropped while the client overwrites its own slot */
};

int main(int argc, char **argv) {
  struct options o = {.most = 1000000000, .bound = UNBOUNDED, .reduced = 1, .symmetric = 1, .loops = 3, .walks = 2000};
  int known = 0;
  for (int k = 2; k < argc; k++)
    if (!strcmp(argv[k], "tso")) tso = 1;
    else if (!strcmp(argv[k], "whole")) o.reduced = o.symmetric = 0;
    else if (!strcmp(argv[k], "mirrored")) o.symmetric = 0;
    else if (!strcmp(argv[k], "compare")) o.compare = 1, o.symmetric = 0;
    else if (!strcmp(argv[k], "backwards")) o.backwards = 1;
    else if (!strncmp(argv[k], "walks=", 6)) o.walks = (uint32_t)atoi(argv[k] + 6);
    else if (!strncmp(argv[k], "bound=", 6)) o.bound = (uint32_t)atoi(argv[k] + 6) & 63;
    else o.most = strtoull(argv[k], NULL, 10);
  for (size_t k = 0; argc > 1 && k < sizeof scenarios / sizeof *scenarios; k++)
    if (!strcmp(argv[1], scenarios[k].name)) {
      known = 1;
      it = scenarios[k];
    }
  if (!known) {
    fprintf(stderr, "usage: model SCENARIO [tso] [bound=N] [whole] [mirrored] [compare] [backwards] [walks=N] [max states]\n");
    return 3;
  }
  if (it.leaves || o.bound != UNBOUNDED) o.symmetric = 0;
  setvbuf(stdout, NULL, _IOLBF, 0);
  static char alternative[65536];
  sigaltstack(&(stack_t){.ss_sp = alternative, .ss_size = sizeof alternative}, NULL);
  struct sigaction action = {.sa_handler = crashed, .sa_flags = SA_ONSTACK};
  sigaction(SIGSEGV, &action, NULL);
  sigaction(SIGBUS, &action, NULL);
  set_up();
  return search(&o);
}
