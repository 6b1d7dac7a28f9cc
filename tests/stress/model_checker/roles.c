/* What each fiber does: see model.h. The planner process's part in a recovery is that of aspen_mp/control/pool/recovery.py, in C. */
#define _GNU_SOURCE
#include "model.h"
#include "submit.h"

/* out = f(tile, inputs): tells tiles and inputs apart. */
static uint64_t f(unsigned tile, uint64_t a, uint64_t b) { return (a * 31 + b * 17 + tile + 1) & 0xffffffff; }

struct job { unsigned tile, id, generation, unused; uint64_t *out, *a, *b; };

/* A stream's tile that no change reaches is executed without a call. */
static int may_be_skipped(int tile) { return it.graph == STREAM && tile >= B; }

static void check_turn(const struct job *j) {
  CHECK(ran[j->id][j->tile] < j->generation, "a tile ran twice in one request, or after a later request");
  for (int p = 0; p < n_tiles; p++)
    if (parents_of[j->tile] >> p & 1) {
      CHECK(ran[j->id][p] == j->generation || may_be_skipped(p), "a tile ran before its parent");
      CHECK(!it.dies || ((uint32_t *)(arena[j->id] + EXECUTED))[p] == j->generation, "a tile runs, and its parent is not marked as executed"); /* I1 */
    }
  for (int c = 0; c < n_tiles; c++)
    if (parents_of[c] >> j->tile & 1) CHECK(ran[j->id][c] < j->generation, "a tile ran after its child");
  ran[j->id][j->tile] = j->generation;
}

static int compute(void *argument) {
  const struct job *j = argument;
  check_turn(j);
  *j->out = f(j->tile, *j->a, *j->b);
  return (int)j->tile == it.fault ? ASPEN_E_BAD_INDEX : 0;
}

static uint32_t *part_of(const void *parts, int tile) { return (uint32_t *)parts + tile * 2 * ASPEN_TILE_AXES; }

static void set_part(uint32_t *part, int reached) {
  for (int k = 0; k < ASPEN_TILE_AXES; k++) part[k] = !reached, part[ASPEN_TILE_AXES + k] = (uint32_t)reached;
}

/* REACH. Inputs reach the tiles that read them, and those behind these; none reaches B. */
static int find(void *argument) {
  static const uint64_t inputs[] = {[C] = 1, [D] = 3};
  const struct job *j = argument;
  check_turn(j);
  for (int t = B; t <= D; t++) set_part(part_of(j->out, t), (*j->a & inputs[t]) != 0);
  return 0;
}

/* Half of the output is written. */
static int begin_output(void *argument) {
  const struct job *j = argument;
  *j->out = ~*j->out;
  return 0;
}

static int run(const aspen_call *c, int (*body)(void *)) {
  uint64_t item = control.worker[running].current;
  struct job j = {(unsigned)c->params[0], ASPEN_ITEM_INSTANCE(item) - 1, ASPEN_ITEM_GENERATION(item), 0, (uint64_t *)c->args[0].ptr, (uint64_t *)c->args[1].ptr, (uint64_t *)c->args[2].ptr};
  if (body == find) j.a = j.b; /* the second output is not used here */
  struct access words[4 + 2 * TILES];
  uint32_t n = 0;
  words[n++] = (struct access){&ran[j.id][j.tile], 8, 1};
  words[n++] = (struct access){j.out, 8, 1};
  words[n++] = (struct access){j.a, 8, 0};
  words[n++] = (struct access){j.b, 8, 0};
  for (int p = 0; p < n_tiles; p++)
    if (parents_of[j.tile] >> p & 1 || parents_of[p] >> j.tile & 1) words[n++] = (struct access){&ran[j.id][p], 8, 0};
  for (int p = 0; p < n_tiles; p++)
    if (it.dies && parents_of[j.tile] >> p & 1) words[n++] = (struct access){arena[j.id] + EXECUTED + 4 * p, 4, 0};
  if (it.dies) call(begin_output, &j, &words[1], 1);
  return call(body, &j, words, n);
}

int kernel(const aspen_call *c) { return run(c, compute); }

int find_parts(const aspen_call *c) { return run(c, find); }

uint64_t expected(uint64_t x) {
  uint64_t a = f(A, x, x);
  if (it.graph == CHAIN) return f(C, f(B, a, a), f(B, a, a));
  return it.graph != DIAMOND ? a : f(D, f(B, a, a), f(C, a, a));
}

/* ------------------------------------------------------------------------------------------------ the fibers */

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

/* The process ends by itself. */
static int leave_process(void *me) {
  gone[(intptr_t)me] = LEFT;
  return 0;
}

void worker_body(int me) {
  struct aspen_dse *d = &dse[me];
  if (it.dies) { /* each life begins with nothing */
    aspen_dse_init(d, &control, &bell, (uint32_t)me, mapping, plans[me], instances[me], links);
    map_all(me);
  }
  aspen_dse_join(d);
  for (;;) switch (aspen_dse_run(d)) {
    case ASPEN_REASON_ATTACH: map_all(me); break;
    case ASPEN_REASON_DRAINED: tell_planner(); break;
    case ASPEN_REASON_LEAVE:
      if (it.dies) call(leave_process, (void *)(intptr_t)me, &(struct access){&gone[me], 8, 1}, 1);
      return;
    default: fail("a DSE left its loop for no reason");
    }
}

enum { SECOND = 1000000000 };

uint64_t input_of(int r) { return (uint64_t)(1000 + r); }

static void check_answer(int r, int s) {
  struct aspen_slot *slot = &client.slot[s];
  uint32_t error = aspen_load_relaxed(&slot->error);
  if (it.fault >= 0) CHECK(error == ASPEN_E_BAD_INDEX && aspen_load_relaxed(&slot->op) == (uint32_t)it.fault, "a failed request did not say so");
  else if (r == it.cancel) CHECK(error == 0 || error == ASPEN_E_CANCELLED, "a cancelled request ended oddly");
  else if (it.drops) CHECK(error == 0 || (it.drops == PLAN ? error == ASPEN_E_PLAN_GONE || error == ASPEN_E_BAD_PLAN : error == ASPEN_E_BAD_DATA), "a request of something that was dropped ended oddly");
  else if (it.timed == REFUSED && r == 1) CHECK(error == ASPEN_E_TOO_LATE, "a request that cannot be in time was not refused");
  else CHECK(error == 0, "a request failed");
  if (!error) CHECK(aspen_load_relaxed(&data[8 + 8 * s + 1]) == expected(input_of(r)), "a wrong answer");
}

/* What a client is told is of one time, and what it makes of it is right. */
static uint64_t hopeless(const struct aspen_request *q) {
  struct aspen_outlook o;
  if (!aspen_ask(&client, &o, 0)) return 0;
  for (uint32_t k = 0; k < o.n; k++) CHECK(o.rival[k].own == o.reserved[0] && o.rival[k].plan == 1, "an outlook is not whole");
  for (uint32_t k = 0; k < o.n_demands; k++) CHECK(o.demand[k].reserved == o.reserved[0] && o.demand[k].plan == 1, "an outlook is not whole");
  return aspen_foresee(&client, &o, q->plan, q->generation, q->class_, q->span_ns, 0);
}

static void wait_for_answer(int s) {
  struct aspen_slot *slot = &client.slot[s];
  for (;;) {
    uint32_t word = aspen_load_acquire(&slot->word);
    CHECK(ASPEN_SLOT_SEQUENCE(word) == told.sequence[s], "a slot changed hands");
    if (ASPEN_SLOT_STATE(word) == ASPEN_SLOT_DONE) break;
    aspen_wait_slot(slot, word, ASPEN_FOREVER);
  }
}

/* The input of a stream that changes with a frame after the first. Where one is cancelled, the next one changes the other input. */
static int changing(int r) { return (r + (it.cancel >= 0)) & 1; }

/* The value of an input: how often it has changed. */
static uint64_t value_at(int r, int input) {
  uint64_t v = (uint64_t)(1000 * (input + 1));
  for (int k = 1; k <= r - it.still; k++) v += changing(k) == input;
  return v;
}

/* Says what has changed since the frame before; everything where it does not count on what that left. */
static uint64_t fill_frame(int r, uint64_t *region) {
  uint32_t faults = aspen_load_acquire(&client.faults);
  int valid = told.valid && told.faults == faults;
  uint64_t changes = !valid ? 3 : it.still && r == it.requests - 1 ? 0 : 1u << changing(r);
  told.valid = 0, told.faults = faults;
  if (!valid) aspen_store_relaxed((uint32_t *)&region[TRUST], 0);
  if (changes & 1) aspen_store_relaxed(&region[X0], value_at(r, 0));
  if (changes & 2) aspen_store_relaxed(&region[X1], value_at(r, 1));
  aspen_store_relaxed(&region[CHANGES], changes);
  return changes;
}

/* A frame of a stream, which ends before the next one begins (aspen_mp/client/streams/model_stream.py). */
static void frame(int r) {
  uint64_t *region = &data[8], y1 = f(C, f(B, 0, 0), value_at(r, 0));
  uint32_t error = 0;
  aspen_store_seq(&region[OPEN], 1);
  if (fill_frame(r, region)) {
    struct aspen_request q = {.plan = 1, .generation = 1, .class_ = 1, .offset = 64};
    told.sequence[0] = aspen_submit(&client, &bell, 0, &q);
    if (r == it.cancel) aspen_cancel(&client, &bell, 0, told.sequence[0]);
    wait_for_answer(0);
    error = aspen_load_relaxed(&client.slot[0].error);
    CHECK(!error || (r == it.cancel && error == ASPEN_E_CANCELLED), "a frame failed");
  }
  CHECK(error || (aspen_load_relaxed(&region[Y1]) == y1 && aspen_load_relaxed(&region[RESULT]) == f(D, y1, value_at(r, 1))), "a stale result");
  if (ASPEN_SLOT_STATE(aspen_load_relaxed(&client.slot[0].word)) == ASPEN_SLOT_DONE) aspen_release(&client, 0);
  told.valid = !error;
  told.answered++;
  aspen_store_seq(&region[OPEN], 2 * (uint64_t)told.faults);
}

static void stream_body(void) {
  for (int r = 0; r < it.requests; r++) {
    MARK(r + 1);
    frame(r);
  }
}

/* Keeps up to `slots` requests in flight, waits for each in order. */
void client_body(int me) {
  if (it.graph == STREAM) {
    stream_body();
    return;
  }
  if (it.maps) /* the planner process says when the plan is there */
    for (uint32_t seen; (seen = aspen_load_seq(&news.n)) == 0;) aspen_futex_wait(&news.n, seen, ASPEN_FOREVER);
  for (int r = 0; r < it.requests + it.slots; r++) {
    MARK(r + 1);
    if (r >= it.slots && r - it.slots < it.requests) {
      int old = r - it.slots, s = old % it.slots;
      wait_for_answer(s);
      check_answer(old, s);
      aspen_release(&client, (uint32_t)s);
      told.answered++;
    }
    if (r < it.requests) {
      int s = r % it.slots;
      aspen_store_relaxed(&data[8 + 8 * s], input_of(r));
      struct aspen_request q = {.plan = 1, .generation = 1, .data = 0, .class_ = it.classes && r ? 0 : it.classes ? 2 : 1, .offset = (uint64_t)(64 + 64 * s)};
      if (it.timed) q.span_ns = SECOND * (uint64_t)(it.timed == LATEST ? it.requests - r : r + 1); /* the clock stands still: it does not pass */
      if (it.timed == REFUSED) q.span_ns = r == 1 ? 1 : SECOND;
      uint64_t takes = it.timed == REFUSED ? hopeless(&q) : 0;
      CHECK(!takes || r == 1, "a request that can be in time was refused");
      told.sequence[s] = takes ? aspen_decline(&client, &bell, (uint32_t)s, &q, takes) : aspen_submit(&client, &bell, (uint32_t)s, &q);
      if (r == it.cancel) aspen_cancel(&client, &bell, (uint32_t)s, told.sequence[s]);
      if (it.spoils) aspen_store_relaxed(&client.slot[s].word, ASPEN_SLOT_WORD(told.sequence[s], ASPEN_SLOT_FREE));
      if (it.spoils || it.drops == CLIENT) return; /* nobody is left to wait for an answer */
    }
  }
}

/* What the planner process waits for: that the process of a row has ended (a bit each); where new workers may come at any time, that one does; while it
 * stops the world, that all have stopped. How long a late worker is waited for before it is ended is left open: one that is ended then is one that
 * dies then. */
enum { COMES = 2, STOPPED = 3 };

static int world_stopped(void) {
  for (int w = 0; w < it.workers; w++)
    if (aspen_epoch_late(&control, (uint32_t)w)) return 0;
  return 1;
}

static uint32_t offers(void *unused) {
  uint32_t some = 0;
  for (int w = 0; w < it.workers; w++) some |= (uint32_t)(gone[w] != STAYS) << w;
  if (it.early && chief.vacant) some |= 1u << COMES;
  if (chief.stopping && world_stopped()) some |= 1u << STOPPED;
  return some;
}

static int reap(void *row) {
  int w = (int)(intptr_t)row;
  if (!(it.leaves && w == 1)) chief.vacant |= 1u << w;
  chief.restart |= gone[w] == FAULTED;
  gone[w] = STAYS;
  return 0;
}

/* Everything that it has written to may be garbage, above all the flags of what has been executed: this request's, or a later one's. That the others
 * compute with it until they have stopped, or that the client sees it, cannot be helped; so neither happens here. */
static void scribble(int k, uint64_t word) {
  struct aspen_instance *i = &control.instance[k + 1];
  uint32_t state = (uint32_t)word, runs = state == ASPEN_INSTANCE_RUNNING || state == ASPEN_INSTANCE_DONE, generation = (uint32_t)(word >> 32) + !runs;
  for (int t = 0; t < n_tiles; t++) {
    ((uint32_t *)(arena[k] + EXECUTED))[t] = generation;
    ((uint32_t *)(arena[k] + COUNTERS))[t] = 0xdead;
    links[k + 1][t] = ASPEN_ITEM(generation, k + 1, t);
  }
  for (int a = 0; a < 2; a++) ((uint64_t *)(arena[k] + ACTIVATIONS))[a] = 0xdead;
  for (int t = B; t <= D && it.graph == STREAM; t++) set_part(part_of(arena[k] + PARTS, t), 0);
  if (runs && client.slot[i->slot].word == ASPEN_SLOT_WORD(i->sequence, ASPEN_SLOT_RUNNING)) data[8 + 8 * i->slot + 1] = 0xdead;
}

/* The same for a stream's region, if its frame has not been answered, … */
static void scribble_frame(void) {
  static const int results[] = {RESULT, Y0, Y1};
  uint32_t state = ASPEN_SLOT_STATE(client.slot[0].word);
  for (int k = 0; k < 3 && (state == ASPEN_SLOT_SUBMITTED || state == ASPEN_SLOT_RUNNING); k++) data[8 + results[k]] = 0xdead;
}

/* … and if it has none. Before recovery has said so, the client cannot know: that cannot be helped, either. So it happens between that and the
 * client's next frame. */
static int scribble_idle_stream(void *unused) {
  static const int kept[] = {X0, X1, RESULT, Y0, Y1};
  const uint64_t open = data[8 + OPEN];
  if (open & 1 || open / 2 == control.signals.faults) return 0;
  for (int k = 0; k < 5; k++) data[8 + kept[k]] = 0xdead;
  return 0;
}

static uint32_t stream_words(struct access *words, uint32_t n) {
  words[n++] = (struct access){&data[8 + OPEN], 8, 0};
  words[n++] = (struct access){&client.slot[0].word, 4, 0};
  for (int k = 0; k < TRUST; k++) words[n++] = (struct access){&data[8 + k], 8, 1};
  return n;
}

/* From here on the planner process has everything for itself. Which tiles may run again is noted now: those that are not marked as executed. */
int stop_world(void *unused) {
  chief.standing = 1;
  if (chief.restart && it.graph == STREAM) scribble_frame();
  for (int k = 0; k < it.instances; k++) {
    uint64_t word = control.instance[k + 1].word;
    if (chief.restart) scribble(k, word);
    for (int t = 0; t < n_tiles; t++)
      if (chief.restart || ((uint32_t *)(arena[k] + EXECUTED))[t] != (uint32_t)(word >> 32)) ran[k][t] = 0;
  }
  return 0;
}

static void recover(void) {
  uint64_t *next[ASPEN_MAX_INSTANCES] = {NULL};
  struct aspen_recovery r = {.station = {.control = &control, .bell = &bell, .segment = mapping}, .next = next};
  r.station.user = (struct aspen_user){.signals = &control.signals, .next = next};
  aspen_recover(&r, (int)chief.restart);
}

static int start_worker(void *row) {
  uint32_t w = (uint32_t)(intptr_t)row;
  aspen_worker_reset(&control, w, 0, 0, 0, 0);
  control.signals.roster = 0; /* everybody stays where he is */
  chief.vacant &= ~(1u << w);
  revive((int)w);
  return 0;
}

static void refill(void) {
  for (int w = 0; w < it.workers && it.lone; w++)
    if (!(chief.vacant >> w & 1)) return;
  for (int w = 0; w < it.workers; w++) {
    if (!(chief.vacant >> w & 1)) continue;
    struct aspen_worker *e = &control.worker[w];
    struct access words[] = {{&e->state, 4, 1}, {&e->command, 4, 1}, {&e->parked, 4, 1}, {&e->attached, 4, 1}, birth_of(w)};
    call(start_worker, (void *)(intptr_t)w, words, 5);
    if (it.early || it.lone) return;
  }
}

static void heard_of_death(int w) {
  uint64_t how = gone[w];
  call(reap, (void *)(intptr_t)w, &(struct access){&gone[w], 8, 1}, 1);
  aspen_worker_gone(&control, (uint32_t)w, how != LEFT);
  if (how == LEFT || chief.stopping) return;
  chief.stopping = 1;
  aspen_epoch_begin(&control, &bell);
}

static void begin_again(void) {
  struct access words[24];
  uint32_t n = 0;
  for (int k = 0; k < it.instances; k++)
    for (int t = 0; t < n_tiles; t++) words[n++] = (struct access){&ran[k][t], 8, 1};
  if (it.graph == STREAM) n = stream_words(words, n);
  call(stop_world, NULL, words, n);
  recover();
  control.claim.wanted = control.claim.wanted != control.claim.done; /* nobody has noted either, so only that they differ matters */
  control.claim.done = 0;
  aspen_epoch_end(&control);
  if (chief.restart && it.graph == STREAM) call(scribble_idle_stream, NULL, words, stream_words(words, 0));
  chief.stopping = chief.standing = chief.restart = 0;
  if (!it.early) refill();
}

static void watch_over_workers(void) {
  for (;;) {
    struct access words[4 * MOST_WORKERS], read;
    uint32_t n = 0;
    for (int w = 0; w < it.workers; w++) {
      read = death_of(w);
      words[n++] = (struct access){read.p, read.bytes, 0};
      if (it.leaves && w == 1) words[n++] = (struct access){&gone[w], 8, 0};
      if (!chief.stopping) continue;
      words[n++] = (struct access){&control.worker[w].state, 4, 0};
      words[n++] = (struct access){&control.worker[w].parked, 4, 0};
    }
    int what = await(offers, NULL, words, n);
    if (what == STOPPED) begin_again();
    else if (what == COMES && it.early) refill();
    else heard_of_death(what);
  }
}

/* The planner process: asks a worker to leave, announces a segment or a plan, drops something and waits until nothing uses it, or watches over workers. */
void planner_body(int me) {
  uint32_t out[1 + ASPEN_CLIENT_DATA + ASPEN_PLAN_INSTANCES], dropped = 0;
  if (it.leaves) aspen_worker_command(&control, &bell, 1, ASPEN_COMMAND_LEAVE);
  if (it.announces) aspen_publish(&control, &bell);
  if (it.maps) {
    aspen_store_seq(&control.plan[1].state, ASPEN_PLAN_LIVE);
    aspen_publish(&control, &bell);
    tell_planner(); /* its client, here */
  }
  if (it.dies) watch_over_workers();
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

