/* The memory of the system under the model checker: how it is set up, what of it is state, and what must be true of it: see model.h. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"

struct aspen_control control;
struct aspen_doorbell bell;
struct aspen_client_segment client;
static char plan[PLAN_BYTES] __attribute__((aligned(64)));
char arena[2][ARENA_BYTES] __attribute__((aligned(64)));
uint64_t data[64] __attribute__((aligned(64)));
struct aspen_dse dse[MOST_WORKERS];
struct aspen_mapping mapping[ASPEN_MAX_SEGMENTS];
struct aspen_plan_view *plans[MOST_WORKERS][ASPEN_MAX_PLANS];
struct aspen_instance_view *instances[MOST_WORKERS][ASPEN_MAX_INSTANCES];
struct aspen_exec_instance *made[MOST_WORKERS][2];
uint64_t *links[ASPEN_MAX_INSTANCES];
struct aspen_exec_plan *exec;
uint64_t ran[2][TILES];                          /* by instance and tile: request that ran last */
struct told told;
static struct { uint64_t once; } claimed;               /* has anybody had the claim lock? */
struct news news __attribute__((aligned(8)));
struct chief chief __attribute__((aligned(8)));
uint64_t gone[MOST_WORKERS];

uint32_t parents_of[TILES];
int n_tiles;

/* A tile's operands: arena words, the request's input X and output Y and other words, or a constant. */
#define OF_REQUEST(word) (-1 - (word))
enum { X = OF_REQUEST(0), Y = OF_REQUEST(1), FIXED = -100 };

/* DIAMOND and CHAIN: their last tile overwrites what the first one wrote. PAIR: both are ready at once. */
static const struct {
  int n_tiles, n_initial, out[4], in0[4], in1[4];
  uint32_t kids[5], count[5];
} graphs[] = {
    [SINGLE] = {2, 1, {Y}, {X}, {X}, {1}, {1}},                                                           /* A: x → y */
    [PAIR] = {3, 2, {Y, 0}, {X, X}, {X, X}, {2, 2}, {1, 1}},                                              /* A: x → y; B: x → 0 */
    [CHAIN] = {4, 1, {Y, 0, Y}, {X, Y, 0}, {X, Y, 0}, {B, C, 3}, {1, 1, 1}},                              /* A: x → y; B: y → 0; C: 0 → y */
    [DIAMOND] = {5, 1, {Y, 0, 1, Y}, {X, Y, Y, 0}, {X, Y, Y, 1}, {B, C, D, D, END}, {2, 1, 1, 1}},        /* A: x → y; B: y → 0; C: y → 1; D: 0, 1 → y */
    [STREAM] = {5, 1, {0, OF_REQUEST(Y0), OF_REQUEST(Y1), OF_REQUEST(RESULT)}, {0, FIXED, OF_REQUEST(Y0), OF_REQUEST(Y1)},
                {OF_REQUEST(CHANGES), FIXED, OF_REQUEST(X0), OF_REQUEST(X1)}, {B, C, D, END}, {1, 1, 1, 1}}, /* no input reaches B */
};

static void make_plan(void) {
  const int end = (n_tiles = graphs[it.graph].n_tiles) - 1;
  const int *out = graphs[it.graph].out, *in0 = graphs[it.graph].in0, *in1 = graphs[it.graph].in1;
  const uint32_t *kids = graphs[it.graph].kids, *count = graphs[it.graph].count;
  uint32_t n_children = 0;
  struct aspen_plan_header *h = (struct aspen_plan_header *)plan;
  struct aspen_op *ops = (struct aspen_op *)(plan + 1024);
  struct aspen_operand *operands = (struct aspen_operand *)(plan + 2048);
  int64_t *params = (int64_t *)(plan + CONSTANT);
  struct aspen_tile *tiles = (struct aspen_tile *)(plan + 6400);
  uint32_t *children = (uint32_t *)(plan + 7168), *counts = children + 16, *initial = children + 32, *begins = children + 48, *parents = children + 64;
  aspen_magic_write((struct aspen_magic *)plan, PLAN_BYTES, ASPEN_ROLE_PLAN);
  h->n_ops = h->n_tiles = (uint32_t)n_tiles;
  h->n_operands = 12;
  h->n_params = 16;
  h->n_initial = (uint32_t)graphs[it.graph].n_initial;
  h->end_tile = (uint32_t)end;
  h->ops = 1024, h->operands = 2048, h->params = CONSTANT, h->tiles = 6400, h->children = 7168, h->parent_counts = 7232, h->initial = 7296, h->parent_begin = 7360, h->parents = 7424;
  h->arena_bytes = ARENA_BYTES, h->arena_counters = COUNTERS, h->arena_executed = EXECUTED, h->arena_next = LINKS, h->arena_data = ACTIVATIONS;
  h->request_bytes = 64;
  uint32_t n_parents = 0;
  initial[0] = A;
  initial[1] = B;
  for (int t = 0; t < n_tiles; t++) {
    tiles[t] = (struct aspen_tile){.op = (uint32_t)t, .children = n_children, .n_children = (uint16_t)count[t], .depth = (uint8_t)(t > C ? 1 : 0), .rank = (uint32_t)t};
    for (int k = 0; k < ASPEN_TILE_AXES; k++) tiles[t].hi[k] = 1;
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
      o->space = where == FIXED ? ASPEN_SPACE_PLAN : where < 0 ? ASPEN_SPACE_REQUEST : ASPEN_SPACE_ARENA;
      o->offset = where == FIXED ? CONSTANT : where < 0 ? 8 * OF_REQUEST(where) : ACTIVATIONS + 8 * where;
    }
  }
  if (it.graph == STREAM) {
    ops[A].kernel = ASPEN_K_REACH, ops[A].n_outputs = 2, ops[A].n_inputs = 1;
    operands[0].offset = PARTS;
    h->n_parts = (uint32_t)end, h->arena_parts = PARTS, h->request_kept = 8 * TRUST;
  }
  for (int t = 0; t < n_tiles; t++) {
    for (int p = 0; p < n_tiles; p++)
      if (parents_of[t] >> p & 1) parents[n_parents++] = (uint32_t)p;
    begins[t + 1] = n_parents;
  }
}

/* ------------------------------------------------------------------------------------------------ what the search asks */

static int standing_still(void) { return chief.standing && control.signals.epoch & 1; }

static int parked(int w) { return control.signals.epoch & 1 && control.worker[w].parked == control.signals.epoch; }

uint32_t holds(int i) {
  if (i >= it.workers) return i == planner_fiber() && standing_still() ? all_of_world() : 0;
  if (fiber[i].at.kind == DEAD || parked(i)) return 0; /* what it held is recovery's to reset */
  uint32_t held = (uint32_t)(control.claim.lock == (uint32_t)i + 1) << CLAIM_LOCK;
  for (int r = 0; r < it.workers; r++) held |= (uint32_t)(control.row[r].lock == (uint32_t)i + 1) << r;
  if (it.dies && control.row[i].open) held |= 1u << (WORLD + i);
  uint64_t item = control.worker[i].current;
  if (item) held |= 1u << (LONG_LOCKS + (ASPEN_ITEM_INSTANCE(item) - 1) * TILES + ASPEN_ITEM_TILE(item));
  return held;
}

uint32_t held_by_word(const void *p) {
  if (p == &control.claim.lock) return 1u << CLAIM_LOCK;
  for (int w = 0; w < it.workers; w++) {
    if (p == &control.row[w].lock) return 1u << w;
    if (p == &control.worker[w].parked) return ~0u;
  }
  return 0;
}

/* Recovery takes it for granted that everybody has parked or is gone (I7). */
uint32_t takes(const struct pending *at) { return at->kind == CALL && at->p == (void *)stop_world ? all_of_world() : 0; }

const char *name_of_fiber(int i) {
  static const char *const workers[] = {"worker 0", "worker 1", "worker 2"};
  return i < it.workers ? workers[i] : i == client_fiber() ? "client" : "planner";
}

/* A row's words under that row's lock; a queue's links under any, for a tile is in one queue only (I12). All of them while the world stands still. */
int may_touch_guarded(const void *p) {
  uint32_t held = holds(running), rows = (1u << it.workers) - 1;
  for (uint32_t k = 0; k < fiber[running].n_buffer; k++) held &= ~held_by_word(buffer[running][k].p);
  if (held & all_of_world() && running == planner_fiber()) return 1;
  for (int r = 0; r < it.workers; r++)
    if ((const char *)p >= (const char *)&control.row[r] && (const char *)p < (const char *)&control.row[r + 1]) return held >> r & 1;
  return (held & rows) != 0;
}

/* A worker that has parked, or any while the world stands still, touches nothing but the signals and its own entry (I7, I8). */
static void check_quiet(const struct pending *at) {
  const char *p = at->p, *own = (const char *)&control.worker[running], *signals = (const char *)&control.signals;
  if (!standing_still() && !parked(running)) return;
  if ((p >= own && p < own + sizeof control.worker[0]) || (at->kind == LOAD && ((p >= signals && p < signals + sizeof control.signals) || !tracked(p)))) return;
  fail("a worker touched what is shared while the world stood still");
}

/* Of requests with deadlines that wait, the one with the earliest is begun first: word `p` of a slot becomes RUNNING. */
static void check_earliest(const uint32_t *p) {
  const struct aspen_turns *t = &control.turns;
  uint64_t own = 0, least = UINT64_MAX;
  for (uint32_t k = 0; k < t->n_active; k++) {
    const struct aspen_active *a = &t->active[k];
    if (a->instance || client.slot[a->slot].word != ASPEN_SLOT_WORD(a->sequence, ASPEN_SLOT_SUBMITTED)) continue;
    if (&client.slot[a->slot].word == p) own = a->deadline_ns;
    if (a->deadline_ns < least) least = a->deadline_ns;
  }
  CHECK(own, "a request with a deadline begins that was not admitted");
  CHECK(own == least, "a later deadline goes first");
}

void on_operation(const struct pending *at, uint64_t old) {
  if (it.dies && searching && running < it.workers) check_quiet(at);
  if (at->p == &control.claim.lock && at->kind == CAS && !old) claimed.once = 1;
  for (int k = 0; k < it.slots && it.timed && at->kind == CAS; k++)
    if (at->p == &client.slot[k].word && old == at->a && ASPEN_SLOT_STATE(at->b) == ASPEN_SLOT_RUNNING) check_earliest(&client.slot[k].word);
  for (int k = 0; k < it.instances; k++) {
    const char *a = arena[k], *p = at->p;
    if (at->kind == RMW && p >= a + COUNTERS && p < a + EXECUTED) CHECK(old != 0, "a counter fell below zero");
    if (at->kind == STORE && p >= a + EXECUTED && p < a + LINKS) CHECK(old != at->a, "a tile was executed twice in one request");
  }
}

/* All that it knew is gone. */
void died(int w) {
  gone[w] = it.scribbles ? FAULTED : KILLED;
  memset(&dse[w], 0, sizeof *dse);
  plans[w][1] = NULL;
  for (int k = 0; k < it.instances; k++) {
    instances[w][k + 1] = NULL;
    made[w][k]->view.generation = 0;
    made[w][k]->view.request = NULL;
  }
}

/* Between claims each request has one entry, and the hint of one that waits leads to it. */
static void check_turns(void) {
  struct aspen_turns *t = &control.turns;
  CHECK(t->n_active <= ASPEN_ACTIVE, "there are too many entries");
  for (uint32_t k = 0; k < t->n_active; k++) {
    const struct aspen_active *a = &t->active[k];
    CHECK(a->instance || t->admitted[a->client][a->slot] == k || client.slot[a->slot].word != ASPEN_SLOT_WORD(a->sequence, ASPEN_SLOT_SUBMITTED),
          "a request that waits is not found");
    for (uint32_t o = 0; o < k; o++) {
      const struct aspen_active *b = &t->active[o];
      CHECK(!a->instance || a->instance != b->instance || a->generation != b->generation, "a request that runs has two entries");
      CHECK(a->instance || b->instance || a->slot != b->slot || a->sequence != b->sequence, "a request that waits has two entries");
    }
  }
}

/* The first claim: who makes it is worker 0, whatever the two are called. */
int breaks_symmetry(const struct pending *at) {
  return at->kind == CAS && at->p == &control.claim.lock && !claimed.once;
}

static void normalise_worker(struct aspen_dse *d, int me) {
  for (uint32_t k = d->held.n; k < sizeof d->held.item / sizeof *d->held.item; k++) d->held.item[k] = d->held.depth[k] = 0;
  if (!d->held.n) d->held.order = 0;
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
  uint32_t queued[2] = {0, 0};
  int unlocked = 1;
  for (int w = 0; w < it.workers; w++) normalise_worker(&dse[w], w);
  control.claim.turn = 0; /* there is one client */
  for (uint32_t k = 0; k < ASPEN_ACTIVE; k++) {
    control.turns.active[k].expected_ns = 0; /* nobody decides by it */
    if (k >= control.turns.n_active) memset(&control.turns.active[k], 0, sizeof *control.turns.active);
  }
  if (!control.claim.lock) control.turns.rows = 0; /* it is counted anew before anybody decides by it */
  if (!control.claim.lock && !standing_still()) check_turns();
  if (standing_still()) return; /* recovery needs no locks */
  for (int w = 0; w < it.workers; w++) {
    struct aspen_row *row = &control.row[w];
    if (row->lock) unlocked = 0;
    if (row->lock) continue;
    uint64_t oldest = 0;
    for (unsigned l = 0; l < ASPEN_LANES; l++) {
      struct aspen_lane *lane = &row->lane[l];
      if (!(row->busy >> l & 1)) {
        memset(lane, 0, sizeof *lane); /* one state, and nothing that would do as an empty lane */
        lane->order = lane->mask = 3;
        continue;
      }
      CHECK(lane->mask, "an empty lane counts as busy");
      if (!oldest || lane->order < oldest) oldest = lane->order;
      for (unsigned c = 0; c < 2; c++)
        if (!(lane->mask >> c & 1)) lane->queue[c].head = lane->queue[c].tail = 0;
        else
          for (uint64_t item = lane->queue[c].head; item; item = links[ASPEN_ITEM_INSTANCE(item)][ASPEN_ITEM_TILE(item)]) {
            uint32_t *in = &queued[ASPEN_ITEM_INSTANCE(item) - 1], bit = 1u << ASPEN_ITEM_TILE(item);
            CHECK(!(*in & bit), "a tile is queued twice");
            *in |= bit;
            uint64_t order = control.instance[ASPEN_ITEM_INSTANCE(item)].order;
            CHECK(ASPEN_LANES == 1 ? lane->order <= order : lane->order == order, "a tile waits in another request's lane");
          }
    }
    CHECK(row->first == oldest, "a row does not say how old its oldest request is");
  }
  for (int k = 0; k < it.instances && unlocked; k++)
    for (int t = 0; t < n_tiles; t++)
      if (!(queued[k] >> t & 1)) links[k + 1][t] = 0;
}

/* The arguments of a worker's instance follow from the region of the request that it was prepared for last. */
void restored(void) {
  for (int w = 0; w < it.workers && it.slots > 1; w++)
    for (int k = 0; k < it.instances; k++) {
      struct aspen_instance_view *v = &made[w][k]->view;
      if (v->request) aspen_exec_move(made[w][k], v->request, v->generation, 0);
    }
}

/* Nobody can run any more: everything must be at rest. */
void check_rest(void) {
  CHECK(fiber[client_fiber()].at.kind == DONE && (it.spoils || it.drops == CLIENT || (int)told.answered == it.requests), "everybody waits, and a request has no answer");
  CHECK(n_fibers == planner_fiber() || fiber[planner_fiber()].at.kind == (it.dies ? AWAIT : DONE), "everybody waits, and so does the planner process");
  int left = 0, vacant = 0;
  for (int w = 0; w < it.workers; w++) {
    if (fiber[w].at.kind == DONE || fiber[w].at.kind == DEAD) left++;
    else {
      CHECK(fiber[w].blocked_on == &bell.event, "a DSE is neither parked nor gone");
      CHECK(dse[w].s.user.attached == control.signals.attach_seq, "an announcement was overlooked");
    }
    CHECK(control.row[w].first == 0 && control.row[w].busy == 0 && control.row[w].lock == 0, "a row is not empty or still locked");
  }
  for (int w = 0; w < it.workers; w++) vacant += chief.vacant >> w & 1;
  CHECK(vacant == 0 || (it.lone && vacant < it.workers), "a dead worker is not replaced");
  CHECK(left == it.leaves + vacant, "the wrong workers left");
  CHECK(!chief.stopping && !(control.signals.epoch & 1), "a recovery does not end");
  CHECK(control.idle.sleepers == (uint32_t)(it.workers - left) && control.idle.spinners == 0, "the counts of idle workers are off");
  CHECK(control.claim.lock == 0 && control.claim.wanted == control.claim.done, "a claim is due and nobody makes it");
  CHECK(control.claim.running == 0, "requests count as running");
  CHECK(control.hints.holders[0] == 0, "a token is not given back");
  for (int k = 0; k < it.instances; k++) CHECK(control.instance[k + 1].at_work == 0, "a worker counts as one of a request's");
  uint64_t rounds = 0;
  for (int k = 0; k < it.instances; k++) {
    CHECK((uint32_t)control.instance[k + 1].word == (it.drops == PLAN ? ASPEN_INSTANCE_NONE : ASPEN_INSTANCE_FREE), "an instance is not free");
    rounds += control.instance[k + 1].word >> 32;
  }
  if (it.cancel < 0 && !it.drops && !it.spoils && !it.dies) CHECK(rounds + (it.timed == REFUSED) + (uint64_t)it.still == (uint64_t)it.requests, "requests and generations differ");
}

/* ------------------------------------------------------------------------------------------------ setting up */

static void track_instance(int k) {
  struct aspen_instance *i = &control.instance[k + 1];
  track(&i->word, 16, "an instance's word and fault");
  track(&i->plan, offsetof(struct aspen_instance, started_ns) - offsetof(struct aspen_instance, plan), "an instance");
  ignore(&i->started_ns, offsetof(struct aspen_instance, alone) - offsetof(struct aspen_instance, started_ns));
  if (it.hints) track(&i->alone, 8, "how many work for an instance");
  else ignore(&i->alone, 8);
  ignore(&i->queued_ns, offsetof(struct aspen_instance, whole) - offsetof(struct aspen_instance, queued_ns)); /* and what is counted */
  if (it.graph == STREAM) track(&i->whole, 8, "whether an instance runs whole"), remember(arena[k] + PARTS, 4 * 48, "parts");
  else ignore(&i->whole, 8);
  track(arena[k] + COUNTERS, 24, "counters");
  if (it.dies) track(arena[k] + EXECUTED, 24, "executed");
  else remember(arena[k] + EXECUTED, 24, "executed"); /* nobody reads it */
  remember(arena[k] + LINKS, 48, "links");
  track(arena[k] + ACTIVATIONS, 16, "activations");
  track(ran[k], sizeof ran[k], "what ran");
  for (int w = 0; w < it.workers; w++) remember(&made[w][k]->view.generation, 16, "a worker's view of an instance");
}

static void track_all(void) {
  for (int w = 0; w < it.workers; w++) {
    remember(&dse[w], it.dies ? sizeof *dse : offsetof(struct aspen_dse, looked_since), "a DSE"); /* clocks and victims never change, once they are there */
    if (it.maps || it.drops || it.dies) {
      remember(&plans[w][1], 8, "a worker's plans");
      remember(&instances[w][1], 16, "a worker's instances");
    }
    track(&control.row[w], 16, "a row");
    remember(&control.row[w].waiting, 8, "which lanes are busy");
    for (int l = 0; l < ASPEN_LANES; l++) remember(&control.row[w].lane[l], offsetof(struct aspen_lane, queue[2]), "a lane");
    remember(&control.worker[w].current, 8, "a worker's current tile");
    track(&control.worker[w].node, 16, "a worker's state and command");
    if (it.dies) track(&control.worker[w].parked, 8, "parked and attached"), track(&gone[w], 8, "how a worker ended");
    ignore(&control.worker[w].heartbeat, sizeof control.worker[w] - offsetof(struct aspen_worker, heartbeat));
  }
  if (it.dies) {
    ignore(&client.pending[1], 8 * (ASPEN_SLOTS / 64 - 1));
    remember(&chief, sizeof chief, "what the planner process knows");
    ignore(&control.signals.roster, 8);
    if (it.graph == STREAM) track(&control.signals.preempt_ns, 8, "faults"), track(&client.faults, 8, "faults, as the client sees them");
    else ignore(&control.signals.preempt_ns, 8), ignore(&client.faults, 8); /* nobody looks at faults */
  }
  if (it.announces || it.maps || it.drops || it.dies) track(&control.signals.epoch, 8, "epoch and attach_seq");
  track(&control.idle, 8, "idle counts");
  track(&control.claim, 24, "claim");
  ignore(&control.claim.waiting[1], 24); /* no such clients */
  track(&control.claim.running, 8, "how many requests run");
  remember(&control.claim.ticket, 8, "the last request's ticket");
  remember(&control.turns, offsetof(struct aspen_turns, admitted), "turns and requests that run");
  remember(&control.turns.admitted[1], 8, "where requests wait");
  remember(control.turns.flow, sizeof *control.turns.flow, "the flow's last turn");
  remember(control.turns.asking, 8, "clients that ask");
  remember(&control.turns.demand[1], 8, "plans of their requests");
  if (it.timed == REFUSED) {
    track(&client.version, 8, "the outlook's version");
    track(&client.declined[0], 8, "requests that the client has refused");
    track(&client.outlook, sizeof client.outlook, "the outlook");
  }
  for (int k = 0; k < it.instances; k++) track_instance(k);
  if (it.hints) track(&control.hints.holders[0], 8, "tokens");
  else ignore(&control.hints.holders[0], 8);
  ignore(&control.hints.holders[2], sizeof control.hints.holders - 8); /* there is one memory */
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
    track(&data[8 + 8 * s], it.graph == STREAM ? 64 : 16, "a request's region");
    ignore(&slot->submitted_ns, 8);
    ignore(&slot->span_ns, 16);
    ignore(&slot->started_ns, 16);
  }
  remember(&claimed, sizeof claimed, "whether there was a claim");
  remember(&told, sizeof told, "what the client knows");
  track(&news, sizeof news, "news for the planner process");
}

void set_up(void) {
  const char *why;
  make_plan();
  control.signals.n_rows = (uint32_t)it.workers;
  control.signals.steal = (uint32_t)!it.lazy;
  control.signals.preempt_ns = (uint32_t)!it.impatient;
  control.signals.attach_seq = 1;
  for (int r = 0; r < it.workers; r++) control.worker[r].state = ASPEN_WORKER_JOINING;
  uint32_t s_plan = aspen_add_segment(&control, ASPEN_ROLE_PLAN, PLAN_BYTES), s_data = aspen_add_segment(&control, ASPEN_ROLE_DATA, sizeof data);
  uint32_t s_client = aspen_add_segment(&control, ASPEN_ROLE_CLIENT, sizeof client), s_arena[2];
  for (int k = 0; k < it.instances; k++) {
    s_arena[k] = aspen_add_segment(&control, ASPEN_ROLE_ARENA, ARENA_BYTES);
    mapping[s_arena[k]] = (struct aspen_mapping){arena[k], ARENA_BYTES, ASPEN_ROLE_ARENA};
  }
  mapping[s_plan] = (struct aspen_mapping){plan, PLAN_BYTES, ASPEN_ROLE_PLAN};
  mapping[s_data] = (struct aspen_mapping){(char *)data, sizeof data, ASPEN_ROLE_DATA};
  mapping[s_client] = (struct aspen_mapping){(char *)&client, sizeof client, ASPEN_ROLE_CLIENT};
  aspen_add_client(&control, s_client, &client);
  aspen_add_data(&control, 1, s_data);
  aspen_add_plan(&control, s_plan, NULL, 0, s_arena, (uint32_t)it.instances);
  if (it.hints) {
    control.hints.tokens = control.hints.counted = 1;
    for (int d = 0; d < ASPEN_DEPTHS; d++)
      control.hints.table[0][1].word[d] = it.hints == 2 ? ASPEN_HINT_YIELDS : ASPEN_HINT_MEMORY | 1u << ASPEN_HINT_MOST_SHIFT;
  }
  if (it.maps) control.plan[1].state = ASPEN_PLAN_FREE; /* not yet announced */
  static aspen_kernel_fn kernels[ASPEN_N_KERNELS];
  kernels[ASPEN_K_BINARY] = kernel;
  kernels[ASPEN_K_REACH] = find_parts;
  exec = aspen_exec_plan_new(plan, PLAN_BYTES, 1, kernels, &why);
  if (!exec) {
    printf("bad plan: %s\n", why);
    exit(3);
  }
  for (int w = 0; w < it.workers; w++) {
    for (int k = 0; k < it.instances; k++) {
      struct aspen_bases bases = {{0}};
      bases.at[ASPEN_SPACE_ARENA] = arena[k];
      bases.at[ASPEN_SPACE_PLAN] = plan;
      made[w][k] = aspen_exec_instance_new(exec, &bases);
      aspen_exec_move(made[w][k], (char *)&data[8], 0, 0);
      links[k + 1] = aspen_exec_next(made[w][k]);
    }
    aspen_dse_init(&dse[w], &control, &bell, (uint32_t)w, mapping, plans[w], instances[w], links);
    dse[w].s.user.attached = control.worker[w].attached = 1;
    if (it.shares) dse[w].s.user.share = (uint32_t)((w * ASPEN_SHARES + it.workers - 1) / it.workers), dse[w].s.user.walk = (uint32_t)(ASPEN_WALK / it.workers);
    if (it.maps) continue;
    plans[w][1] = &exec->view;
    for (int k = 0; k < it.instances; k++) instances[w][k + 1] = &made[w][k]->view;
  }
  if (it.graph == STREAM) data[8 + TRUST] = aspen_trust_word(&control); /* of whoever had the region before */
  track_all();
  for (int w = 0; w < it.workers; w++) {
    body[w] = worker_body;
    fiber[w].lives = (uint32_t)it.lives[w];
  }
  body[client_fiber()] = client_body;
  body[planner_fiber()] = planner_body;
  n_fibers = it.leaves || it.announces || it.maps || it.drops || it.dies ? it.workers + 2 : it.workers + 1;
  start_fibers();
}

