/* Exhaustive check of the scheduler: every interleaving of two DSEs, a client and a planner process over a small tile graph.
 *
 * The protocol's own headers are compiled with ASPEN_MODEL_CHECK, where each atomic operation is a point at which any other fiber may run
 * instead. Fibers have small stacks of their own; a state is the shared memory plus the live part of every stack, so the search can go back
 * to any state by copying bytes, and recognises states it has seen by their hash. (Remains of dead variables make some states look different
 * that are not: the dead part of a stack is cleared at every switch, and functions are not inlined, so that this costs little.) Memory is x86-TSO when asked for: stores (other than seq
 * ones) wait in a FIFO of their fiber until a separate step writes them, so a missing store-load barrier shows.
 *
 * Checked in every state: a tile runs once a request and after its parents, with the inputs that it should see (buffers are recycled within and between requests);
 * clients get right answers; no state is left in which somebody waits for ever; at the end everything is back at rest.
 *
 * usage: model SCENARIO [tso] [bound=N] [max states]   with a bound: only schedules with at most N (< 15) preemptions
 *       exit status: 0 all states are fine, 1 a violation (its trace is printed), 2 too many states
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "dse.h"
#include "submit.h"
#include "table.h"

size_t aspen_kernel_scratch(uint32_t kernel, const aspen_call *call) { return 0; }

static struct aspen_control control;

/* ------------------------------------------------------------------------------------------------ fibers */

enum { FIBERS = 4, STACK = 32768, BUFFER = 8, REGIONS = 64, WAKES = 3 };
enum kind { START, LOAD, STORE, RMW, CAS, SPIN, WAIT, WAKE, DONE };
static const char *const kind_name[] = {"start", "load", "store", "rmw", "cas", "spin", "futex wait", "futex wake", "done"};

struct pending { uint64_t *unused; enum kind kind; void *p; unsigned bytes; int op, order; uint64_t a, b, result; };
struct entry { void *p; unsigned bytes; uint64_t v; };

struct fiber {
  struct pending at;  /* what it does when it runs next */
  struct entry buffer[BUFFER];
  uint32_t n_buffer;
  void *blocked_on;   /* futex */
  void *sp;
};

static struct fiber fiber[FIBERS];
static ucontext_t context[FIBERS], scheduler;
static char stack[FIBERS][STACK] __attribute__((aligned(64)));
static int n_fibers, running = -1, tso, searching, last = -1, used, bound = 15 /* preemptions; 15: any number */;
static void (*body[FIBERS])(int);

/* Memory that is part of the state. What is not tracked is constant, or written and never read in the scenario at hand ("ignored"). */
static struct { char *p; size_t n; const char *name; } region[REGIONS], ignored[REGIONS];
static int n_regions, n_ignored;
static void track(void *p, size_t n, const char *name) {
  if (n_regions == REGIONS) abort();
  region[n_regions].p = p;
  region[n_regions].n = (n + 7) & ~(size_t)7;
  region[n_regions++].name = name;
}
static void ignore(void *p, size_t n) {
  if (n_ignored == REGIONS) abort();
  ignored[n_ignored].p = p;
  ignored[n_ignored++].n = n;
}
static int is_ignored(const void *p) {
  for (int i = 0; i < n_ignored; i++)
    if ((const char *)p >= ignored[i].p && (const char *)p < ignored[i].p + ignored[i].n) return 1;
  return 0;
}
static int tracked(const void *p) {
  for (int i = 0; i < n_regions; i++)
    if ((const char *)p >= region[i].p && (const char *)p < region[i].p + region[i].n) return 1;
  return 0;
}

static void print_trace(void);
static int holds_a_row(void);
static void fail(const char *what) {
  printf("VIOLATION: %s\n", what);
  print_trace();
  exit(1);
}
#define CHECK(condition, what) ((condition) ? (void)0 : fail(what))

static uint64_t raw_load(const void *p, unsigned bytes) {
  uint64_t v = 0;
  memcpy(&v, p, bytes);
  return v;
}
static void raw_store(void *p, unsigned bytes, uint64_t v) {
  CHECK(!searching || tracked(p) || is_ignored(p), "a store outside the tracked state: the checker must learn about it");
  memcpy(p, &v, bytes);
}

static uint64_t apply(struct pending *at) {
  uint64_t old = at->kind == SPIN ? 0 : raw_load(at->p, at->bytes);
  switch (at->kind) {
  case LOAD: return old;
  case STORE: raw_store(at->p, at->bytes, at->a); return 0;
  case RMW:
    raw_store(at->p, at->bytes,
              at->op == ASPEN_MC_ADD   ? old + at->a
              : at->op == ASPEN_MC_SUB ? old - at->a
              : at->op == ASPEN_MC_OR  ? old | at->a
              : at->op == ASPEN_MC_AND ? old & at->a
                                       : at->a);
    return old;
  case CAS:
    if (old == at->a) raw_store(at->p, at->bytes, at->b);
    return old == at->a;
  default: return 0;
  }
}

static __attribute__((noinline)) uint64_t yield(struct pending at) {
  int me = running;
  if (!searching) return apply(&at);
  fiber[me].at = at;
  __builtin_unwind_init(); /* callee-saved registers onto the stack: they are part of the state */
  swapcontext(&context[me], &scheduler);
  return fiber[me].at.result;
}

/* Operations on untracked words do not branch. */
static uint64_t operation(struct pending at) { return tracked(at.p) ? yield(at) : apply(&at); }

uint64_t aspen_mc_load(const void *p, unsigned bytes, enum aspen_mc_order order) {
  return operation((struct pending){.kind = LOAD, .p = (void *)p, .bytes = bytes, .order = order});
}
void aspen_mc_store(void *p, unsigned bytes, uint64_t v, enum aspen_mc_order order) {
  operation((struct pending){.kind = STORE, .p = p, .bytes = bytes, .a = v, .order = order});
}
uint64_t aspen_mc_rmw(void *p, unsigned bytes, enum aspen_mc_op op, uint64_t v, enum aspen_mc_order order) {
  return operation((struct pending){.kind = RMW, .p = p, .bytes = bytes, .op = op, .a = v, .order = order});
}
int aspen_mc_cas(void *p, unsigned bytes, uint64_t expected, uint64_t desired, enum aspen_mc_order order) {
  return (int)operation((struct pending){.kind = CAS, .p = p, .bytes = bytes, .a = expected, .b = desired, .order = order});
}
void aspen_mc_spin(void) { yield((struct pending){.kind = SPIN}); }
/* No branching: only the holder of a row's lock may come here, and that is checked. */
uint64_t aspen_mc_guarded(void *p, unsigned bytes, int store, uint64_t v) {
  CHECK(!searching || holds_a_row(), "a word that a lock guards was touched without a lock");
  if (store) raw_store(p, bytes, v);
  return store ? 0 : raw_load(p, bytes);
}
int aspen_futex_wait(uint32_t *word, uint32_t expected, uint64_t timeout_ns) {
  return (int)yield((struct pending){.kind = WAIT, .p = word, .bytes = 4, .a = expected});
}
int aspen_futex_wake(uint32_t *word, uint32_t n) { return (int)yield((struct pending){.kind = WAKE, .p = word, .bytes = 4, .a = n}); }

static void entry(int i) {
  body[i](i);
  yield((struct pending){.kind = DONE});
  abort();
}

/* ------------------------------------------------------------------------------------------------ one step */

static void flush_one(struct fiber *f) {
  raw_store(f->buffer[0].p, f->buffer[0].bytes, f->buffer[0].v);
  memmove(f->buffer, f->buffer + 1, sizeof f->buffer - sizeof f->buffer[0]);
  f->buffer[--f->n_buffer] = (struct entry){0};
}

static int waiters(void *p) {
  int n = 0;
  for (int i = 0; i < n_fibers; i++) n += fiber[i].blocked_on == p;
  return n;
}

/* Choices of a fiber: 0 … WAKES-1 run it (waking, the choice says whom first), WAKES flushes its oldest store. */
static int enabled(int i, int choice) {
  struct fiber *f = &fiber[i];
  if (choice == WAKES) return f->n_buffer > 0;
  if (f->blocked_on || f->at.kind == DONE) return 0;
  int fence = f->at.kind == RMW || f->at.kind == CAS || f->at.kind == WAIT || f->at.kind == WAKE ||
              (f->at.kind == STORE && (f->at.order == ASPEN_MC_SEQ || f->n_buffer == BUFFER));
  if (fence && f->n_buffer) return 0;
  if (f->at.kind != WAKE) return choice == 0;
  int n = waiters(f->at.p);
  return choice == 0 || ((uint64_t)n > f->at.a && choice < n);
}

static void perform(int i, int choice) {
  struct fiber *f = &fiber[i];
  struct pending *at = &f->at;
  switch (at->kind) {
  case LOAD:
    at->result = apply(at);
    for (uint32_t k = 0; k < f->n_buffer; k++)
      if (f->buffer[k].p == at->p) at->result = f->buffer[k].v;
    break;
  case STORE:
    if (tso && at->order != ASPEN_MC_SEQ) f->buffer[f->n_buffer++] = (struct entry){at->p, at->bytes, at->a};
    else apply(at);
    at->result = 0;
    break;
  case RMW:
  case CAS: at->result = apply(at); break;
  case WAIT:
    at->result = raw_load(at->p, 4) == at->a ? 0 : EAGAIN;
    if (!at->result) {
      f->blocked_on = at->p;
      return; /* goes on when woken */
    }
    break;
  case WAKE:
    at->result = 0;
    for (int k = 0, n = 0; k < 2 * n_fibers && at->result < at->a; k++) {
      struct fiber *w = &fiber[k % n_fibers];
      if (w->blocked_on != at->p || n++ < choice) continue;
      w->blocked_on = NULL;
      w->at = (struct pending){.kind = SPIN};
      at->result++;
    }
    break;
  default: at->result = 0;
  }
  running = i;
  swapcontext(&scheduler, &context[i]);
#if defined(__x86_64__)
  f->sp = (void *)context[i].uc_mcontext.gregs[REG_RSP];
#elif defined(__aarch64__)
  f->sp = (void *)context[i].uc_mcontext.sp;
#else
#error "say where ucontext_t keeps the stack pointer"
#endif
  char *dead = (char *)f->sp - 3072 > stack[i] ? (char *)f->sp - 3072 : stack[i];
  memset(dead, 0, (size_t)((char *)f->sp - dead));
}

static void step(int i, int choice) {
  if (choice == WAKES) flush_one(&fiber[i]);
  else perform(i, choice);
}

/* ------------------------------------------------------------------------------------------------ states */

struct state { size_t bytes; int fiber, choice, only, took_fiber, took_choice, last, used; char data[]; };

static size_t live(int i) { return (size_t)(stack[i] + STACK - (char *)fiber[i].sp); }

static struct state *save(void) {
  size_t n = sizeof(struct state) + sizeof fiber + sizeof(ucontext_t) * n_fibers;
  for (int i = 0; i < n_regions; i++) n += region[i].n;
  for (int i = 0; i < n_fibers; i++) n += live(i);
  struct state *s = malloc(n);
  if (!s) abort();
  s->bytes = n;
  s->fiber = s->choice = s->only = 0;
  s->last = last;
  s->used = used;
  char *p = s->data;
#define PUT(from, count) (memcpy(p, (from), (count)), p += (count))
  PUT(fiber, sizeof fiber);
  PUT(context, sizeof(ucontext_t) * n_fibers);
  for (int i = 0; i < n_regions; i++) PUT(region[i].p, region[i].n);
  for (int i = 0; i < n_fibers; i++) PUT(fiber[i].sp, live(i));
  return s;
}

static void restore(const struct state *s) {
  const char *p = s->data;
#define GET(to, count) (memcpy((to), p, (count)), p += (count))
  GET(fiber, sizeof fiber);
  GET(context, sizeof(ucontext_t) * n_fibers);
  for (int i = 0; i < n_regions; i++) GET(region[i].p, region[i].n);
  for (int i = 0; i < n_fibers; i++) GET(fiber[i].sp, live(i));
}

static uint64_t mix(uint64_t h, const void *data, size_t bytes) {
  const uint64_t *p = data;
  for (size_t k = 0; k < bytes / 8; k++) {
    h = (h ^ p[k]) * 0x9fb21c651e98df25ull;
    h ^= h >> 29;
  }
  return h;
}

static uint64_t hash(void) {
  uint64_t h = 0x243f6a8885a308d3ull;
  for (int i = 0; i < n_regions; i++) h = mix(h, region[i].p, region[i].n);
  for (int i = 0; i < n_fibers; i++) {
    const struct fiber *f = &fiber[i];
    uint64_t rest[] = {f->at.kind, (uintptr_t)f->blocked_on, f->n_buffer};
    h = mix(h, rest, sizeof rest);
    h = mix(h, f->buffer, sizeof(struct entry) * f->n_buffer);
    h = mix(h, f->sp, live(i));
  }
  if (bound < 15) h = mix(h, (uint64_t[]){(uint64_t)last}, 8);
  return h < 16 ? 16 : h;
}

static uint64_t *seen, n_seen, seen_size = 1 << 20;
/* The low four bits of an entry are not of the hash: they say with how few preemptions the state was reached. */
static int add(uint64_t h) {
  h = (h & ~(uint64_t)15) | (uint64_t)used;
  if (n_seen * 2 > seen_size) {
    uint64_t *old = seen, n = seen_size;
    seen = calloc(seen_size *= 2, sizeof *seen);
    if (!seen) abort();
    for (uint64_t k = 0; k < n; k++)
      if (old[k]) {
        uint64_t j = old[k] >> 4 & (seen_size - 1);
        while (seen[j]) j = (j + 1) & (seen_size - 1);
        seen[j] = old[k];
      }
    free(old);
  }
  uint64_t j = h >> 4 & (seen_size - 1);
  while (seen[j]) {
    if (seen[j] >> 4 == h >> 4) {
      if ((seen[j] & 15) <= (h & 15)) return 0;
      seen[j] = h;
      return 1;
    }
    j = (j + 1) & (seen_size - 1);
  }
  seen[j] = h;
  n_seen++;
  return 1;
}

/* ------------------------------------------------------------------------------------------------ the system under check */

enum { TILES = 5, A = 0, B, C, D, END /* of the diamond */, PLAN_BYTES = 8192, ARENA_BYTES = 512, COUNTERS = 64, EXECUTED = 128, LINKS = 192, ACTIVATIONS = 256 };
static struct aspen_doorbell bell;
static struct aspen_client_segment client;
static char plan[PLAN_BYTES] __attribute__((aligned(64))), arena[2][ARENA_BYTES] __attribute__((aligned(64)));
static uint64_t data[64] __attribute__((aligned(64)));
static struct aspen_dse dse[2];
static struct aspen_mapping mapping[ASPEN_MAX_SEGMENTS];
static struct aspen_plan_view *plans[ASPEN_MAX_PLANS];
static struct aspen_instance_view *instances[2][ASPEN_MAX_INSTANCES]; /* each worker its own: `generation` and `request` are private */
static uint64_t *links[ASPEN_MAX_INSTANCES];
static uint32_t ran[3][TILES]; /* by instance and tile: generation that ran last */
static struct { uint32_t finished, answered, sequence[4]; int at; } progress; /* the client's */

static int requests = 1, slots = 1, n_instances = 1, fault_tile = -1, cancel_request = -1, leaver = -1, announce;
static enum { DIAMOND, PAIR, SINGLE } graph;
static uint32_t parents_of[TILES];

/* out = f(tile, inputs): tells tiles and inputs apart. */
static uint64_t f(unsigned tile, uint64_t a, uint64_t b) { return (a * 31 + b * 17 + tile + 1) & 0xffffffff; }

static int kernel(const aspen_call *c) {
  unsigned tile = (unsigned)c->params[0], id = ASPEN_ITEM_INSTANCE(control.worker[running].current) - 1;
  uint32_t generation = (uint32_t)(control.instance[id + 1].word >> 32);
  CHECK(ran[id][tile] == generation - 1, "a tile ran twice in one request");
  for (unsigned p = 0; p < TILES; p++)
    if (parents_of[tile] >> p & 1) CHECK(ran[id][p] == generation, "a tile ran before its parent");
  uint64_t a = aspen_load_relaxed((uint64_t *)c->args[1].ptr), b = *(uint64_t *)c->args[2].ptr; /* two steps: reading, then writing */
  aspen_store_relaxed((uint64_t *)c->args[0].ptr, f(tile, a, b));
  ran[id][tile] = generation;
  return (int)tile == fault_tile ? ASPEN_E_BAD_INDEX : 0;
}

static uint64_t expected(uint64_t x) {
  uint64_t a = f(A, x, x);
  return graph != DIAMOND ? a : f(D, f(B, a, a), f(C, a, a));
}

/* A diamond whose last tile overwrites what its first one wrote: A: x → y; B: y → 0; C: y → 1; D: 0, 1 → y; END.
 * Or a pair, both ready at once: A: x → y; B: x → 0; END. Or a single tile: A: x → y; END. */
static void make_plan(void) {
  const int X = -1, Y = -2, n = graph == DIAMOND ? 5 : graph == PAIR ? 3 : 2, end = n - 1, pair = graph == PAIR;
  const int out[] = {Y, 0, 1, Y}, in0[] = {X, pair ? X : Y, Y, 0}, in1[] = {X, pair ? X : Y, Y, 1};
  const uint32_t diamond_kids[] = {B, C, D, D, END}, diamond_count[] = {2, 1, 1, 1, 0}, pair_kids[] = {2, 2}, pair_count[] = {1, 1, 0},
                 single_kids[] = {1}, single_count[] = {1, 0};
  const uint32_t *kids = graph == DIAMOND ? diamond_kids : pair ? pair_kids : single_kids;
  const uint32_t *count = graph == DIAMOND ? diamond_count : pair ? pair_count : single_count;
  uint32_t n_children = 0;
  struct aspen_plan_header *h = (struct aspen_plan_header *)plan;
  struct aspen_op *ops = (struct aspen_op *)(plan + 1024);
  struct aspen_operand *operands = (struct aspen_operand *)(plan + 2048);
  int64_t *params = (int64_t *)(plan + 6144);
  struct aspen_tile *tiles = (struct aspen_tile *)(plan + 6400);
  uint32_t *children = (uint32_t *)(plan + 7168), *counts = children + 16, *initial = children + 32;
  aspen_magic_write((struct aspen_magic *)plan, PLAN_BYTES, ASPEN_ROLE_PLAN);
  h->n_ops = h->n_tiles = (uint32_t)n;
  h->n_operands = 12;
  h->n_params = 16;
  h->n_initial = pair ? 2 : 1;
  h->end_tile = (uint32_t)end;
  h->ops = 1024, h->operands = 2048, h->params = 6144, h->tiles = 6400, h->children = 7168, h->parent_counts = 7232, h->initial = 7296;
  h->arena_bytes = ARENA_BYTES, h->arena_counters = COUNTERS, h->arena_executed = EXECUTED, h->arena_next = LINKS, h->arena_data = ACTIVATIONS;
  h->request_bytes = 64;
  initial[0] = A;
  initial[1] = B;
  for (int t = 0; t < n; t++) {
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

static void worker(int me) {
  struct aspen_dse *d = &dse[me];
  while (aspen_dse_join(d)) {}
  for (;;) switch (aspen_dse_run(d)) {
    case ASPEN_REASON_ATTACH: aspen_dse_attached(d, aspen_load_seq(&control.signals.attach_seq)); break;
    case ASPEN_REASON_LEAVE: return;
    case ASPEN_REASON_DRAINED: break;
    default: fail("a DSE left its loop for no reason");
    }
}

static int holds_a_row(void) { return control.row[0].lock == (uint32_t)running + 1 || control.row[1].lock == (uint32_t)running + 1; }

static uint64_t input_of(int r) { return (uint64_t)(1000 + r); }

/* Keeps up to `slots` requests in flight, waits for each in order. */
static void client_body(int me) {
  uint32_t *sequence = progress.sequence;
  for (progress.at = 0; progress.at < requests + slots; progress.at++) {
    int r = progress.at;
    if (r >= slots && r - slots < requests) {
      int old = r - slots, s = old % slots;
      struct aspen_slot *slot = &client.slot[s];
      for (;;) {
        uint32_t word = aspen_load_acquire(&slot->word);
        CHECK(ASPEN_SLOT_SEQUENCE(word) == sequence[s], "a slot changed hands");
        if (ASPEN_SLOT_STATE(word) == ASPEN_SLOT_DONE) break;
        aspen_wait_slot(slot, word, ASPEN_FOREVER);
      }
      uint32_t error = aspen_load_relaxed(&slot->error);
      if (fault_tile >= 0) CHECK(error == ASPEN_E_BAD_INDEX && aspen_load_relaxed(&slot->op) == (uint32_t)fault_tile, "a failed request did not say so");
      else if (old == cancel_request) CHECK(error == 0 || error == ASPEN_E_CANCELLED, "a cancelled request ended oddly");
      else CHECK(error == 0, "a request failed");
      if (!error) CHECK(aspen_load_relaxed(&data[8 + 8 * s + 1]) == expected(input_of(old)), "a wrong answer");
      aspen_release(&client, (uint32_t)s);
      progress.answered++;
    }
    if (r < requests) {
      int s = r % slots;
      aspen_store_relaxed(&data[8 + 8 * s], input_of(r));
      struct aspen_request q = {.plan = 1, .generation = 1, .data = 0, .class_ = 1, .offset = (uint64_t)(64 + 64 * s)};
      sequence[s] = aspen_submit(&client, &bell, (uint32_t)s, &q);
      if (r == cancel_request) aspen_cancel(&client, &bell, (uint32_t)s, sequence[s]);
    }
  }
  progress.finished = 1;
}

/* The planner process: asks a worker to leave, or announces a segment. */
static void server_body(int me) {
  if (leaver >= 0) {
    aspen_store_seq(&control.worker[leaver].command, ASPEN_COMMAND_LEAVE);
    aspen_wake_all(&bell);
  }
  if (announce) {
    aspen_store_seq(&control.signals.attach_seq, 2);
    aspen_wake_all(&bell);
  }
}

static void set_up(void) {
  const char *why;
  make_plan();
  memset(&control, 0, sizeof control);
  control.signals.n_rows = 2;
  control.signals.steal = 1;
  control.signals.attach_seq = 1;
  for (uint32_t r = 0; r < 2; r++) control.worker[r].state = ASPEN_WORKER_JOINING;
  uint32_t s_plan = aspen_add_segment(&control, ASPEN_ROLE_PLAN, PLAN_BYTES), s_data = aspen_add_segment(&control, ASPEN_ROLE_DATA, sizeof data);
  uint32_t s_client = aspen_add_segment(&control, ASPEN_ROLE_CLIENT, sizeof client), s_arena[2];
  for (int k = 0; k < n_instances; k++) s_arena[k] = aspen_add_segment(&control, ASPEN_ROLE_ARENA, ARENA_BYTES);
  mapping[s_plan] = (struct aspen_mapping){plan, PLAN_BYTES, ASPEN_ROLE_PLAN};
  mapping[s_data] = (struct aspen_mapping){(char *)data, sizeof data, ASPEN_ROLE_DATA};
  mapping[s_client] = (struct aspen_mapping){(char *)&client, sizeof client, ASPEN_ROLE_CLIENT};
  aspen_add_client(&control, s_client, &client);
  aspen_add_data(&control, 1, s_data);
  aspen_add_plan(&control, s_plan, NULL, 0, s_arena, (uint32_t)n_instances);
  static aspen_kernel_fn kernels[ASPEN_N_KERNELS];
  kernels[ASPEN_K_BINARY] = kernel;
  struct aspen_exec_plan *p = aspen_exec_plan_new(plan, PLAN_BYTES, 1, kernels, &why);
  if (!p) {
    printf("bad plan: %s\n", why);
    exit(3);
  }
  plans[1] = &p->view;
  for (int w = 0; w < 2; w++) {
    for (int k = 0; k < n_instances; k++) {
      struct aspen_bases bases = {{0}};
      bases.at[ASPEN_SPACE_ARENA] = arena[k];
      struct aspen_exec_instance *e = aspen_exec_instance_new(p, &bases);
      instances[w][k + 1] = &e->view;
      links[k + 1] = aspen_exec_next(e);
      track(&e->view.generation, 16, "a worker's view of an instance");
      track(e->args, sizeof *e->args * 12, "a worker's arguments of an instance");
    }
    aspen_dse_init(&dse[w], &control, &bell, (uint32_t)w, mapping, plans, instances[w], links);
    dse[w].s.user.attached = 1;
    track(&dse[w], offsetof(struct aspen_dse, victim), "a DSE");
    track(&control.row[w], 16, "a row");
    track(&control.row[w].column[ASPEN_DEPTHS], sizeof(struct aspen_queue) * 2, "columns");
    track(&control.worker[w].current, 8, "a worker's current tile");
    if (leaver == w) track(&control.worker[w].state, 8, "a worker's state and command");
  }
  if (announce) track(&control.signals.epoch, 8, "epoch and attach_seq");
  track(&control.idle, 8, "idle counts");
  track(&control.claim, 32, "claim");
  for (int k = 0; k < n_instances; k++) {
    struct aspen_instance *i = &control.instance[k + 1];
    track(&i->word, 8, "an instance's word");
    if (fault_tile >= 0 || cancel_request >= 0) track(&i->fault, 8, "an instance's fault");
    else ignore(&i->fault, 8);
    track(&i->plan, sizeof *i - offsetof(struct aspen_instance, plan), "an instance");
    track(arena[k] + COUNTERS, 32, "counters");
    track(arena[k] + LINKS, 48, "links");
    track(arena[k] + ACTIVATIONS, 24, "activations");
    ignore(arena[k] + EXECUTED, 32); /* read by recovery alone */
  }
  ignore(control.worker, sizeof control.worker[0] * 2);
  track(&bell.event, 4, "event");
  track(&bell.pending[0], 8, "pending clients");
  ignore(&client.completions, 8);
  track(&client.pending[0], 8, "pending slots");
  if (cancel_request >= 0) track(&client.cancel[0], 8, "cancelled slots");
  for (int s = 0; s < slots; s++) {
    struct aspen_slot *slot = &client.slot[s];
    track(&slot->word, 8, "a slot's word and waiters");
    if (cancel_request >= 0) track(&slot->cancel, 4, "a slot's cancellation");
    track(&slot->error, fault_tile >= 0 ? 8 : 4, "a slot's answer");
    if (cancel_request >= 0) track(&slot->message_bytes, 8, "a slot's hint");
    ignore(slot, sizeof *slot);
  }
  track(&data[8], (size_t)(64 * slots), "a request's region");
  track(ran, sizeof ran, "what ran");
  track(&progress, sizeof progress, "the client's progress");
  body[0] = body[1] = worker;
  body[2] = client_body;
  body[3] = server_body;
  n_fibers = leaver >= 0 || announce ? 4 : 3;
  for (int i = 0; i < n_fibers; i++) {
    getcontext(&context[i]);
    context[i].uc_stack.ss_sp = stack[i];
    context[i].uc_stack.ss_size = STACK;
    makecontext(&context[i], (void (*)(void))entry, 1, i);
    fiber[i].sp = stack[i];
    fiber[i].at.kind = START;
  }
}

/* Nobody can run any more: everything must be at rest. */
static void check_rest(void) {
  CHECK(progress.finished && (int)progress.answered == requests, "everybody waits, and a request has no answer");
  CHECK(fiber[3].at.kind == DONE || n_fibers == 3, "everybody waits, and so does the planner process");
  int left = 0;
  for (int w = 0; w < 2; w++) {
    if (fiber[w].at.kind == DONE) left++;
    else CHECK(fiber[w].blocked_on == &bell.event, "a DSE is neither parked nor gone");
    CHECK(control.row[w].mask == 0 && control.row[w].lock == 0, "a row is not empty or still locked");
  }
  CHECK(left == (leaver >= 0), "the wrong workers left");
  CHECK(control.idle.sleepers == (uint32_t)(2 - left) && control.idle.spinners == 0, "the counts of idle workers are off");
  CHECK(control.claim.lock == 0 && control.claim.wanted == control.claim.done, "a claim is due and nobody makes it");
  for (int k = 0; k < n_instances; k++) CHECK((uint32_t)control.instance[k + 1].word == ASPEN_INSTANCE_FREE, "an instance is not free");
  uint64_t rounds = 0;
  for (int k = 0; k < n_instances; k++) rounds += control.instance[k + 1].word >> 32;
  if (cancel_request < 0) CHECK(rounds == (uint64_t)requests, "requests and generations differ");
}

/* ------------------------------------------------------------------------------------------------ the search */

static struct state **path;
static size_t depth, path_size;

static const char *where(const void *p) {
  for (int i = 0; i < n_regions; i++)
    if ((const char *)p >= region[i].p && (const char *)p < region[i].p + region[i].n) return region[i].name;
  return "";
}

static void print_trace(void) {
  static const char *const who[] = {"worker 0", "worker 1", "client", "planner"};
  printf("%zu steps, %lu states; the last steps:\n", depth, (unsigned long)n_seen);
  for (size_t k = depth > 60 ? depth - 60 : 0; k < depth; k++) {
    const struct state *s = path[k];
    struct fiber f[FIBERS];
    memcpy(f, s->data, sizeof f);
    const struct pending *at = &f[s->took_fiber].at;
    const char *name = who[s->took_fiber];
    if (s->took_choice == WAKES) printf("  %-9s writes back    %s\n", name, where(f[s->took_fiber].buffer[0].p));
    else printf("  %-9s %-10s %s at ..%03lx  %lx %lx\n", name, kind_name[at->kind], where(at->p), (unsigned long)at->p & 0xfff, (unsigned long)at->a, (unsigned long)at->b);
  }
}

static void push(void) {
  if (depth == path_size) {
    path_size = path_size ? 2 * path_size : 4096;
    path = realloc(path, path_size * sizeof *path);
    if (!path) abort();
  }
  path[depth++] = save();
}

static int explore(uint64_t most) {
  uint64_t transitions = 0, rests = 0;
  size_t deepest = 0;
  seen = calloc(seen_size, sizeof *seen);
  searching = 1;
  for (int i = 0; i < n_fibers; i++) perform(i, 0); /* to the first operation of each: nothing shared happens before */
  add(hash());
  push();
  int at_top = 1; /* memory holds the state at the top of the path */
  while (depth) {
    struct state *s = path[depth - 1];
    int found = 0;
    if (!at_top) restore(s);
    at_top = 1;
    /* A step that touches no memory commutes with all others: when there is one, no other needs to be tried here. */
    if (s->fiber == 0 && s->choice == 0)
      for (int i = 0; i < n_fibers; i++)
        if (fiber[i].at.kind == SPIN && !fiber[i].blocked_on) {
          s->fiber = i;
          s->only = 1;
        }
    if (s->only > 1) s->fiber = n_fibers;
    s->only *= 2;
    for (; s->fiber < n_fibers && !found; s->fiber++, s->choice = 0) {
      for (; s->choice <= WAKES; s->choice++)
        if (enabled(s->fiber, s->choice)) {
          found = 1;
          break;
        }
      if (found) break;
    }
    if (!found) {
      int any = 0;
      for (int i = 0; i < n_fibers; i++)
        for (int c = 0; c <= WAKES; c++) any |= enabled(i, c);
      if (!any) {
        check_rest();
        rests++;
      }
      free(s);
      depth--;
      at_top = 0;
      continue;
    }
    int i = s->took_fiber = s->fiber, c = s->took_choice = s->choice, preempts = 0;
    last = s->last;
    used = s->used;
    if (bound < 15 && c != WAKES) {
      /* A switch away from a fiber that could go on is a preemption. */
      preempts = last >= 0 && last != i && fiber[last].at.kind != SPIN && enabled(last, 0);
      if (used + preempts > bound) {
        s->choice++;
        continue;
      }
      used += preempts;
      last = i;
    }
    step(i, c);
    transitions++;
    if (add(hash())) {
      if (n_seen > most) {
        printf("more than %lu states\n", (unsigned long)most);
        return 2;
      }
      s->choice++;
      push();
      if (depth > deepest) deepest = depth;
    } else {
      s->choice++;
      at_top = 0;
    }
  }
  printf("%lu states, %lu transitions, %lu ways to rest, depth %zu\n", (unsigned long)n_seen, (unsigned long)transitions, (unsigned long)rests, deepest);
  return rests ? 0 : 1;
}

static const struct { const char *name; int graph, requests, slots, instances, fault, cancel, leave, announce; } scenarios[] = {
    {"diamond", DIAMOND, 1, 1, 1, -1, -1, -1, 0}, /* one request: push, follow, steal, park, wake, complete */
    {"fault", DIAMOND, 1, 1, 1, B, -1, -1, 0},    /* a kernel fails: no-ops to END */
    {"again", PAIR, 2, 1, 1, -1, -1, -1, 0},   /* one after the other: the instance, its flags and buffers are used again */
    {"queued", PAIR, 2, 2, 1, -1, -1, -1, 0},  /* two at once, one instance: the second waits for the first one's END */
    {"beside", PAIR, 2, 2, 2, -1, -1, -1, 0},  /* two at once, two instances */
    {"cancel", PAIR, 1, 1, 1, -1, 0, -1, 0},   /* cancelled right after submission */
    {"leave", PAIR, 1, 1, 1, -1, -1, 1, 0},    /* a worker leaves */
    {"attach", PAIR, 1, 1, 1, -1, -1, -1, 1},  /* something is announced */
};

int main(int argc, char **argv) {
  uint64_t most = 50000000;
  int known = 0, override = -1;
  for (int k = 2; k < argc; k++)
    if (!strcmp(argv[k], "tso")) tso = 1;
    else if (!strncmp(argv[k], "bound=", 6)) bound = atoi(argv[k] + 6) & 15;
    else if (!strncmp(argv[k], "graph=", 6)) override = atoi(argv[k]+6);
    else most = strtoull(argv[k], NULL, 10);
  for (size_t k = 0; argc > 1 && k < sizeof scenarios / sizeof *scenarios; k++)
    if (!strcmp(argv[1], scenarios[k].name)) {
      known = 1;
      graph = scenarios[k].graph, requests = scenarios[k].requests, slots = scenarios[k].slots, n_instances = scenarios[k].instances, fault_tile = scenarios[k].fault;
      cancel_request = scenarios[k].cancel, leaver = scenarios[k].leave, announce = scenarios[k].announce;
    }
  if (!known) {
    fprintf(stderr, "usage: model SCENARIO [tso] [bound=N] [max states]\n");
    return 3;
  }
  if (override >= 0) graph = override;
  setvbuf(stdout, NULL, _IOLBF, 0);
  set_up();
  return explore(most);
}
