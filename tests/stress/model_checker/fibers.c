/* See fibers.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fibers.h"
#include "futex.h"

struct fiber fiber[FIBERS];
struct entry buffer[FIBERS][BUFFER];
char stack[FIBERS][STACK] __attribute__((aligned(64)));
int n_fibers, running = -1, tso, searching, dies_anywhere;
static uint64_t birth[FIBERS], death[FIBERS]; /* their addresses stand for a fiber's coming and going */
uint32_t most_buffered;
void (*body[FIBERS])(int);
struct region region[REGIONS], ignored[REGIONS];
int n_regions, n_ignored;
static uint32_t *event_word;

/* ------------------------------------------------------------------------------------------------ switching */

uint64_t *fiber_now, fiber_search[SAVED]; /* `registers` of the fiber that runs, NULL: none; the search's own registers */
uint64_t fiber_asked[6];                  /* arguments of its operation, and which it is */
uint64_t fiber_enter(uint64_t *registers, uint64_t result); /* lets a fiber run on, returns after its next operation */

/* The operations of the code under check. Outside of fibers (while the scenario is set up) they go to fiber_direct. */
#if defined(__x86_64__)
#define SAVE(to) "  movq %rbx, 0(" to ")\n  movq %rbp, 8(" to ")\n  movq %r12, 16(" to ")\n  movq %r13, 24(" to ")\n  movq %r14, 32(" to ")\n  movq %r15, 40(" to ")\n  movq %rsp, 48(" to ")\n"
#define LOAD_FROM(p) "  movq 0(" p "), %rbx\n  movq 8(" p "), %rbp\n  movq 16(" p "), %r12\n  movq 24(" p "), %r13\n  movq 32(" p "), %r14\n  movq 40(" p "), %r15\n  movq 48(" p "), %rsp\n"
#define OPERATION(name, kind) ".globl " name "\n.type " name ", @function\n" name ": movl $" #kind ", %r9d\n  jmp fiber_leave\n"
__asm__(".text\n"
        "fiber_leave:\n"
        "  movq fiber_now(%rip), %r11\n  testq %r11, %r11\n  jz fiber_direct\n" SAVE("%r11")
        "  leaq fiber_asked(%rip), %r10\n"
        "  movq %rdi, 0(%r10)\n  movq %rsi, 8(%r10)\n  movq %rdx, 16(%r10)\n  movq %rcx, 24(%r10)\n  movq %r8, 32(%r10)\n  movq %r9, 40(%r10)\n"
        "  leaq fiber_search(%rip), %r10\n" LOAD_FROM("%r10") "  ret\n"
        ".globl fiber_enter\n.type fiber_enter, @function\nfiber_enter:\n"
        "  leaq fiber_search(%rip), %r10\n" SAVE("%r10") LOAD_FROM("%rdi") "  movq %rsi, %rax\n  ret\n"
#elif defined(__aarch64__)
/* Here a return address is in x30: it goes onto the stack, as on the other machine. */
#define SAVE(to) "  stp x30, xzr, [sp, #-16]!\n  stp x19, x20, [" to "]\n  stp x21, x22, [" to ", #16]\n  stp x23, x24, [" to ", #32]\n  stp x25, x26, [" to ", #48]\n  stp x27, x28, [" to ", #64]\n  mov x10, sp\n  stp x29, x10, [" to ", #80]\n"
#define LOAD_FROM(p) "  ldp x19, x20, [" p "]\n  ldp x21, x22, [" p ", #16]\n  ldp x23, x24, [" p ", #32]\n  ldp x25, x26, [" p ", #48]\n  ldp x27, x28, [" p ", #64]\n  ldp x29, x10, [" p ", #80]\n  mov sp, x10\n  ldr x30, [sp], #16\n"
#define OPERATION(name, kind) ".globl " name "\n.type " name ", %function\n" name ": mov x5, #" #kind "\n  b fiber_leave\n"
__asm__(".text\n.p2align 2\n"
        "fiber_leave:\n"
        "  adrp x9, fiber_now\n  ldr x9, [x9, :lo12:fiber_now]\n  cbnz x9, 1f\n  b fiber_direct\n1:\n" SAVE("x9")
        "  adrp x9, fiber_asked\n  add x9, x9, :lo12:fiber_asked\n"
        "  stp x0, x1, [x9]\n  stp x2, x3, [x9, #16]\n  stp x4, x5, [x9, #32]\n"
        "  adrp x9, fiber_search\n  add x9, x9, :lo12:fiber_search\n" LOAD_FROM("x9") "  ret\n"
        ".globl fiber_enter\n.type fiber_enter, %function\nfiber_enter:\n"
        "  adrp x9, fiber_search\n  add x9, x9, :lo12:fiber_search\n" SAVE("x9") LOAD_FROM("x0") "  mov x0, x1\n  ret\n"
#else
#error "say how to switch stacks, and which registers survive calls"
#endif
        OPERATION("aspen_mc_load", 1) OPERATION("aspen_mc_store", 2) OPERATION("aspen_mc_rmw", 3) OPERATION("aspen_mc_cas", 4)
        OPERATION("aspen_mc_copy", 5) OPERATION("call", 6) OPERATION("aspen_mc_guarded", 7) OPERATION("aspen_mc_spin", 8)
        OPERATION("aspen_futex_wait", 9) OPERATION("aspen_futex_wake", 10) OPERATION("fiber_done", 11) OPERATION("await", 12));
void fiber_done(void);

/* ------------------------------------------------------------------------------------------------ memory */

enum { GRANULES = 4096 };
enum standing { OTHER, TRACKED, REMEMBERED };
static struct { uint64_t number; enum standing standing; } granule[GRANULES]; /* 8 bytes each, by hash of the address */

static uint32_t granule_of(const void *p) {
  uint64_t number = (uint64_t)(uintptr_t)p >> 3;
  uint32_t k = (uint32_t)((number * 0x9e3779b97f4a7c15ull) >> 52) % GRANULES;
  while (granule[k].number && granule[k].number != number) k = (k + 1) % GRANULES;
  return k;
}
static enum standing standing_of(const void *p) { return granule[granule_of(p)].standing; }

static void add_region(struct region *list, int *n, void *p, size_t bytes, const char *name) {
  if (*n == REGIONS || (uintptr_t)p % 8) abort();
  list[(*n)++] = (struct region){p, (bytes + 7) & ~(size_t)7, name};
}
static void add_tracked(void *p, size_t n, const char *name, enum standing standing) {
  add_region(region, &n_regions, p, n, name);
  for (size_t k = 0; k < n; k += 8) {
    uint32_t g = granule_of((char *)p + k);
    if (granule[g].number) abort(); /* twice */
    granule[g].number = (uint64_t)(uintptr_t)((char *)p + k) >> 3;
    granule[g].standing = standing;
  }
}
void track(void *p, size_t n, const char *name) { add_tracked(p, n, name, TRACKED); }
void remember(void *p, size_t n, const char *name) { add_tracked(p, n, name, REMEMBERED); }
void ignore(void *p, size_t n) { add_region(ignored, &n_ignored, p, n, "ignored"); }
int tracked(const void *p) { return standing_of(p) == TRACKED; }
void event_count(uint32_t *p) { event_word = p; }

static int is_ignored(const void *p) {
  for (int i = 0; i < n_ignored; i++)
    if ((const char *)p >= ignored[i].p && (const char *)p < ignored[i].p + ignored[i].n) return 1;
  return 0;
}

static uint64_t raw_load(const void *p, unsigned bytes) {
  uint64_t v = 0;
  memcpy(&v, p, bytes);
  return v;
}
static void raw_store(void *p, unsigned bytes, uint64_t v) {
  CHECK(!searching || standing_of(p) != OTHER || is_ignored(p), "a store outside the tracked state: the checker must learn about it");
  memcpy(p, &v, bytes);
}

/* An event count grows without end, and only matters in whether it is what a fiber noted. So its value is left out of the state, and each fiber
 * has one of: nothing noted, noted what it is now, noted what it was before. What is noted is good for one wait; a fiber's next addition or
 * compare-and-swap ends it (checked: a wait without anything noted is an error of this model). */
static uint64_t event_operation(struct pending *at) {
  struct fiber *f = &fiber[running];
  if (at->kind == LOAD) f->noted = CURRENT;
  else if (at->kind == RMW && at->op == ASPEN_MC_ADD)
    for (int i = 0; i < FIBERS; i++) fiber[i].noted = fiber[i].noted ? OLD : NOTHING;
  else fail("the event count is only added to and looked at");
  return 0;
}

static uint64_t apply(struct pending *at) {
  if (at->kind == SPIN) return 0;
  if (at->p == event_word && searching) return event_operation(at);
  uint64_t old = at->kind == CALL || at->kind == AWAIT || at->kind == COPY ? 0 : raw_load(at->p, at->bytes);
  on_operation(at, old);
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
  case COPY: memcpy(at->p, (const void *)at->a, 4 * at->n); return 0;
  case CALL: return (uint64_t)((int (*)(void *))at->p)((void *)at->a);
  case GUARDED:
    CHECK(!searching || may_touch_guarded(at->p), "a word that a lock guards was touched without the lock");
    if (at->op) raw_store(at->p, at->bytes, at->a);
    return old;
  default: return 0;
  }
}

uint32_t accesses(const struct pending *at, struct access *out, uint32_t most) {
  uint32_t n = 0;
  const char *p = at->p;
  switch (at->kind) {
  case LOAD: out[n++] = (struct access){p, at->bytes, 0}; break;
  case STORE:
  case RMW:
  case CAS: out[n++] = (struct access){p, at->bytes, 1}; break;
  case COPY:
    CHECK(at->n <= most, "a copy of too many words");
    for (; n < at->n; n++) out[n] = (struct access){p + 4 * n, 4, 1};
    break;
  case CALL:
  case AWAIT:
    CHECK(at->n <= most, "a call that touches too many words");
    for (; n < at->n; n++) out[n] = ((const struct access *)at->b)[n];
    break;
  /* The byte behind a futex's first stands for the queue of those that sleep on it. */
  case WAIT:
    out[n++] = (struct access){p, 4, 0};
    out[n++] = (struct access){p + 1, 1, 0};
    break;
  case WAKE: out[n++] = (struct access){p + 1, 1, 1}; break;
  }
  return n;
}

/* ------------------------------------------------------------------------------------------------ operations of the code under check */

static struct pending decoded(enum kind kind, const uint64_t *a) {
  struct pending at = {.kind = (uint8_t)kind, .p = (void *)(uintptr_t)a[0]};
  switch (kind) {
  case LOAD: /* p, bytes, order */
    at.bytes = (uint8_t)a[1], at.order = (uint8_t)a[2];
    break;
  case STORE: /* p, bytes, value, order */
    at.bytes = (uint8_t)a[1], at.a = a[2], at.order = (uint8_t)a[3];
    break;
  case RMW: /* p, bytes, operation, value, order */
    at.bytes = (uint8_t)a[1], at.op = (uint8_t)a[2], at.a = a[3], at.order = (uint8_t)a[4];
    break;
  case CAS: /* p, bytes, expected, desired, order */
    at.bytes = (uint8_t)a[1], at.a = a[2], at.b = a[3], at.order = (uint8_t)a[4];
    break;
  case COPY: /* to, from, bytes */
    CHECK(a[2] % 4 == 0, "a copy of odd length");
    at.a = a[1], at.n = (uint32_t)(a[2] / 4);
    break;
  case CALL: /* function, argument, words, their number */
  case AWAIT:
    at.a = a[1], at.b = a[2], at.n = (uint32_t)a[3];
    break;
  case GUARDED: /* p, bytes, store, value */
    at.bytes = (uint8_t)a[1], at.op = (uint8_t)a[2], at.a = a[3];
    break;
  case WAIT: /* p, expected */
  case WAKE: /* p, most */
    at.bytes = 4, at.a = (uint32_t)a[1];
    break;
  default: at.p = NULL;
  }
  if (at.bytes < 8 && (kind == STORE || kind == RMW || kind == CAS)) { /* the rest of the registers is anything */
    uint64_t mask = ((uint64_t)1 << (8 * at.bytes)) - 1;
    at.a &= mask;
    at.b &= mask;
  }
  return at;
}

/* Operations on words that are not tracked are no steps; nor are those on words that a lock guards, which only its holder may touch. */
static int is_step(const struct pending *at) { return at->kind == GUARDED ? 0 : at->kind > GUARDED || at->kind == CALL || standing_of(at->p) == TRACKED; }

uint64_t fiber_direct(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t kind) {
  struct pending at = decoded((enum kind)kind, (uint64_t[]){a, b, c, d, e});
  return kind == WAIT || kind == WAKE ? 0 : apply(&at);
}

/* Runs a fiber to its next step. */
static void run_on(int i, uint64_t result) {
  struct fiber *f = &fiber[i];
  running = i;
  for (;;) {
    fiber_now = f->registers;
    fiber_enter(f->registers, result);
    fiber_now = NULL;
    char *sp = stack_pointer(i), *dead = sp - 1024 > stack[i] ? sp - 1024 : stack[i];
    memset(dead, 0, (size_t)(sp - dead)); /* remains of functions that have returned */
    f->at = decoded((enum kind)fiber_asked[5], fiber_asked);
    f->at_code = *(void **)sp;
    if (is_step(&f->at)) break;
    result = apply(&f->at);
  }
  announced(i);
}

static void entry(void) {
  body[running](running);
  for (;;) fiber_done();
}

static void **top_of(int i) { return (void **)(stack[i] + STACK - 64); }

static void begin(int i, struct fiber as) {
  *top_of(i) = (void *)entry; /* returned to; the stack is then aligned as after a call */
  fiber[i] = as;
  fiber[i].registers[STACK_POINTER] = (uint64_t)(uintptr_t)top_of(i);
}

void start_fibers(void) {
  for (int i = 0; i < n_fibers; i++) begin(i, (struct fiber){.at.kind = START, .lives = fiber[i].lives});
}

void revive(int i) {
  CHECK(fiber[i].at.kind == DEAD, "a fiber that lives is started anew");
  begin(i, (struct fiber){.at.kind = START, .lives = fiber[i].lives, .place = fiber[i].place});
}

struct access birth_of(int i) { return (struct access){(char *)&birth[i] + 1, 1, 1}; }
struct access death_of(int i) { return (struct access){&death[i], 8, 1}; }

/* All of its local state is gone. It waits for its birth as others do on a futex. */
static void die(int i) {
  memset(stack_pointer(i), 0, (size_t)(stack[i] + STACK - stack_pointer(i)));
  fiber[i] = (struct fiber){.at.kind = DEAD, .blocked_on = &birth[i], .lives = fiber[i].lives - 1, .place = fiber[i].place};
  fiber[i].registers[STACK_POINTER] = (uint64_t)(uintptr_t)top_of(i);
  running = i;
  died(i);
}

/* ------------------------------------------------------------------------------------------------ one step */

static void write_one(int i) {
  struct fiber *f = &fiber[i];
  struct entry *e = buffer[i];
  struct pending at = {.kind = STORE, .p = e->p, .bytes = (uint8_t)e->bytes, .a = e->v};
  apply(&at);
  memmove(e, e + 1, sizeof *e * (BUFFER - 1));
  e[--f->n_buffer] = (struct entry){0};
}

static int waiters(const void *p) {
  int n = 0;
  for (int i = 0; i < n_fibers; i++) n += fiber[i].blocked_on == p;
  return n;
}

static int buffered(const struct pending *at) { return tso && at->kind == STORE && at->order != ASPEN_MC_SEQ; }

/* Sequentially consistent stores and all read-modify-writes wait until the buffer is empty, as on x86; so do system calls. */
int runnable(int i) {
  const struct fiber *f = &fiber[i];
  return f->n_buffer == 0 || f->at.kind == LOAD || f->at.kind == SPIN || buffered(&f->at);
}

/* A killed process's stores all reach memory, and before its end is known: what hardware has retired is written, and the kernel takes a processor
 * away from a process before it says that the process has ended. So a fiber whose stores are still in its buffer does not die yet: the
 * same happens when they are written first, each at any time, while the fiber stands still.
 * Nor does it die before an operation that changes nothing but its own local state, which is lost: the same is seen by everybody else when it
 * does that operation first, and at once. A fiber that spins or sleeps may never get to any other. (Unless `dies_anywhere`.) Plain writes to what is shared
 * are one with the operation before them here. */
int dies_here(int i) {
  const struct fiber *f = &fiber[i];
  if (!f->lives || f->at.kind == DONE || f->at.kind == DEAD) return 0;
  return dies_anywhere || f->blocked_on || (f->at.kind != START && f->at.kind != LOAD && f->at.kind != WAIT);
}

static int offered(int i, int choice) {
  const struct pending *at = &fiber[i].at;
  int was = running;
  running = i;
  uint32_t offers = ((uint32_t (*)(void *))at->p)((void *)at->a);
  running = was;
  return (int)(offers >> choice & 1);
}

int enabled(int i, int choice) {
  const struct fiber *f = &fiber[i];
  if (choice == LATE) return f->n_buffer > 0;
  if (choice == DIES) return !f->n_buffer && dies_here(i);
  if (f->blocked_on || f->at.kind == DONE || !runnable(i)) return 0;
  if (f->at.kind == AWAIT) return offered(i, choice);
  if (f->at.kind != WAKE) return choice == 0;
  int n = waiters(f->at.p);
  return choice == 0 || ((uint64_t)n > f->at.a && choice < n);
}

static void perform(int i, int choice) {
  struct fiber *f = &fiber[i];
  struct pending *at = &f->at;
  uint64_t result = 0;
  running = i;
  switch (at->kind) {
  case LOAD:
    result = apply(at);
    for (uint32_t k = 0; k < f->n_buffer; k++)
      if (buffer[i][k].p == at->p) result = buffer[i][k].v;
    break;
  case STORE:
    if (!buffered(at)) {
      apply(at);
      break;
    }
    CHECK(f->n_buffer < BUFFER, "the model's store buffers are too short");
    buffer[i][f->n_buffer++] = (struct entry){at->p, at->a, at->bytes, word_of(at->p, at->bytes)};
    if (f->n_buffer > most_buffered) most_buffered = f->n_buffer;
    break;
  case RMW:
  case CAS:
    if (at->p != event_word) f->noted = NOTHING;
    result = apply(at);
    break;
  case WAIT: {
    int same = at->p == event_word ? f->noted == CURRENT : raw_load(at->p, 4) == at->a;
    CHECK(at->p != event_word || f->noted, "a wait for the event count without a look at it");
    f->noted = NOTHING;
    result = same ? 0 : EAGAIN;
    if (same) {
      f->blocked_on = at->p;
      return; /* goes on when woken */
    }
    break;
  }
  case WAKE:
    for (int k = 0, n = 0; k < 2 * n_fibers && result < at->a; k++) {
      struct fiber *w = &fiber[k % n_fibers];
      if (w->blocked_on != at->p || n++ < choice) continue;
      w->blocked_on = NULL;
      w->at = (struct pending){.kind = SPIN};
      w->reads = w->writes = (struct set){{0}};
      result++;
    }
    break;
  case AWAIT: result = (uint64_t)choice; break;
  case SPIN:
  case START: break;
  default: result = apply(at);
  }
  run_on(i, result);
}

void step(int i, int choice) {
  running = i;
  if (choice == LATE) write_one(i);
  else if (choice == DIES) die(i);
  else perform(i, choice);
}
