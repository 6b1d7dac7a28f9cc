/* Fibers for the model checker: each atomic operation of the code under check is a point where the search may let another fiber run.
 *
 * An operation saves the callee-saved registers and switches to the search's stack at once (fibers.c, in assembly), so registers and stack hold exactly
 * what the code under check left in them: its whole local state. What has been returned from is cleared.
 */
#ifndef FIBERS_H
#define FIBERS_H
#include <stddef.h>
#include <stdint.h>

enum { FIBERS = 5, STACK = 16384, BUFFER = 52, REGIONS = 112, SETS = 3, WORDS = 64 * SETS };
enum kind { START, LOAD, STORE, RMW, CAS, COPY, CALL, GUARDED, SPIN, WAIT, WAKE, DONE, AWAIT, DEAD }; /* numbers known to the assembly in fibers.c */

/* What a fiber does when it runs next. COPY: n words of 4 bytes from a to p. CALL: function p with argument a, which touches the n words at b.
 * AWAIT: goes on with one of the choices that function p with argument a offers (a bit each), which reads the n words at b. */
struct pending { uint8_t kind, bytes, op, order; uint32_t n; void *p; uint64_t a, b; };
struct entry { void *p; uint64_t v; uint32_t bytes, word; };
struct access { const void *p; uint32_t bytes, write; };
struct set { uint64_t bits[SETS]; }; /* of words that fibers share */

/* What a fiber left behind: its callee-saved registers and stack pointer. The assembly in fibers.c knows these numbers. */
#if defined(__x86_64__)
enum saved { CALLEE_SAVED = 6, STACK_POINTER = 6, SAVED = 7 };
#else
enum saved { CALLEE_SAVED = 11, STACK_POINTER = 11, SAVED = 12 };
#endif
enum noted { NOTHING, CURRENT, OLD };

struct fiber {
  struct pending at;
  void *blocked_on;  /* futex */
  void *at_code;     /* where in the code under check it is */
  uint32_t n_buffer; /* stores that memory has not seen (TSO) */
  uint32_t lives;    /* how often it may still die */
  uint32_t noted;    /* what it knows of the event count: enum noted */
  uint32_t marker;   /* of its program, for the client and the planner process */
  uint32_t place;    /* number of (at_code, marker), by reduction.c */
  struct set reads, writes; /* of what it does next, by reduction.c */
  uint64_t registers[SAVED];
};
struct region { char *p; size_t n; const char *name; };

extern struct fiber fiber[FIBERS];
extern struct entry buffer[FIBERS][BUFFER];
extern char stack[FIBERS][STACK];
extern int n_fibers, running, tso, searching, dies_anywhere;
extern uint32_t most_buffered;
extern void (*body[FIBERS])(int);
extern struct region region[REGIONS], ignored[REGIONS];
extern int n_regions, n_ignored;

/* Memory that is part of the state. Operations on it are steps; not so on what is only remembered, whose order must not matter.
 * All other memory is constant, or written and never read in the scenario at hand (ignored). */
void track(void *p, size_t n, const char *name);
void remember(void *p, size_t n, const char *name);
void ignore(void *p, size_t n);
/* A word that is only ever added to, and whose value only tells whether it has changed since the fiber's last look: see fibers.c. */
int tracked(const void *p);
void event_count(uint32_t *p);
void start_fibers(void); /* makes n_fibers fibers of body[] */
/* One step for fn(argument), which touches `words`. */
int call(int (*fn)(void *), void *argument, const struct access *words, uint32_t n);
/* Sleeps until offers(argument) is not 0; returns the number of one of its bits. */
int await(uint32_t (*offers)(void *), void *argument, const struct access *words, uint32_t n);
void revive(int i); /* makes a dead fiber start anew, within a call that writes birth_of(i) */

/* Transitions of a fiber: the first WAYS run it (waking, the number says whom first; awaiting, which offer it takes), LATE writes its oldest
 * store to memory, DIES ends it. */
enum { WAYS = 4, LATE = WAYS, DIES, CHOICES };
int enabled(int i, int choice);
int runnable(int i); /* its own store buffer does not keep it from running */
int dies_here(int i); /* as soon as its store buffer is empty, it may die */
void step(int i, int choice);
uint32_t accesses(const struct pending *at, struct access *out, uint32_t most);
struct access birth_of(int i);
struct access death_of(int i); /* word that a fiber's death writes */
static inline char *stack_pointer(int i) { return (char *)fiber[i].registers[STACK_POINTER]; }

/* By the search and the system under check. */
_Noreturn void fail(const char *what);
void announced(int i);               /* fiber i has got to its next operation */
uint32_t word_of(const void *p, unsigned bytes);
int may_touch_guarded(const void *p);
void on_operation(const struct pending *at, uint64_t old);
void died(int i);
#define CHECK(condition, what) ((condition) ? (void)0 : fail(what))

#endif
