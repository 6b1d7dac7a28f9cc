/* The scheduler under the model checker: two or three DSEs, a client and a planner process over a small tile graph. system.c is their memory, roles.c what
 * each does; reduction.c says what "every interleaving" means and how many of them are left out, fibers.c how the headers' own lines are run.
 *
 * The headers are compiled with ASPEN_MODEL_CHECK, where each atomic operation is a step. Memory is sequentially consistent, or x86-TSO when
 * asked for: stores (other than seq ones) wait in a FIFO of their fiber until a separate step writes them, so a missing store-load
 * barrier shows. Tiles' data and counters are touched in one step each: on x86 they are seen at the latest by the count-down or release that publishes them.
 *
 * Checked: a tile runs once a request, after its parents, and sees what it should see (buffers are recycled within and between requests); counters do not
 * fall below zero; nobody touches what a lock guards without the lock, nor what it has not mapped; clients get right answers; no state is left in which somebody
 * waits for ever; at the end everything is back at rest.
 *
 * With `deaths` the processes of workers may be killed, at any step, also with half of a tile's output written (fibers.c says where that makes a
 * difference). The planner process hears of it at any later moment, stops the world, recovers (recover.h), and starts a new worker. Tiles may then run again
 * if they were not marked as executed, or if what they had written to cannot be trusted (`scribbles`); no tile runs after its child; and nobody touches what is
 * shared from parking to the even epoch.
 *
 * usage: model SCENARIO [workers=N] [shares] [classes] [impatient] [hints] [nonsense] [deaths=N,N,N] [scribbles] [early] [lone] [settled] [tso] [bound=N] [whole] [mirrored] [compare] [backwards] [walks=N] [max states]
 *          shares: each worker begins with its own queue share; classes: the second request has a higher class; impatient: nothing is held back for it; hints: tiles wait for memory, and there is one token; nonsense: hints leave every tile to others; deaths: how often each worker may die; scribbles: of a fault; early: a new worker may come at any time, also while the world stands still
 *          lone: none comes as long as another lives; settled: it begins when the first workers are there and sleep
 *          bound=N: only schedules with at most N preemptions; whole: without reduction; mirrored: without symmetry; compare: with and without reduction
 *       exit status: 0 every state is fine, 1 a violation (its trace is printed) or something lost by the reduction, 2 too many states, 3 usage
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model.h"

size_t aspen_kernel_scratch(uint32_t kernel, const aspen_call *call) { return 0; }

void fail(const char *what) {
  printf("VIOLATION: %s\n", what);
  print_trace();
  fflush(stdout);
  _exit(1);
}

struct scenario it;

static void crashed(int signal) { fail("a crash: somebody touched what is not mapped"); }

static const struct scenario scenarios[] = {
    /* name, graph, requests, slots, instances, fault, cancel, leaves, announces, lazy, drops, spoils, maps, timed */
    {"single", SINGLE, 1, 1, 1, -1, -1, 0, 0, 0, NONE, 0, 0},
    {"pair", PAIR, 1, 1, 1, -1, -1, 0, 0, 0, NONE, 0, 0},       /* two tiles ready at once: seeding, stealing */
    {"chain", CHAIN, 1, 1, 1, -1, -1, 0, 0, 0, NONE, 0, 0},     /* one after the other, the last one over what the first one wrote: steal, follow, complete */
    {"diamond", DIAMOND, 1, 1, 1, -1, -1, 0, 0, 0, NONE, 0, 0}, /* push, follow, steal, park, wake, complete */
    {"lazy", PAIR, 1, 1, 1, -1, -1, 0, 0, 1, NONE, 0, 0},       /* the same, and nobody steals */
    {"fault", DIAMOND, 1, 1, 1, B, -1, 0, 0, 0, NONE, 0, 0},    /* a kernel fails: no-ops to END */
    {"again", SINGLE, 2, 1, 1, -1, -1, 0, 0, 0, NONE, 0, 0},    /* one after the other: the instance, its flags and buffers are used again */
    {"queued", SINGLE, 2, 2, 1, -1, -1, 0, 0, 0, NONE, 0, 0},   /* two at once, one instance: the second waits for the first one's END */
    {"beside", SINGLE, 2, 2, 2, -1, -1, 0, 0, 0, NONE, 0, 0},   /* two at once, two instances */
    {"rush", PAIR, 2, 2, 2, -1, -1, 0, 0, 0, NONE, 0, 0},       /* the same with two tiles each */
    {"rush-lazy", PAIR, 2, 2, 2, -1, -1, 0, 0, 1, NONE, 0, 0},  /* the same, and nobody steals */
    {"later", SINGLE, 2, 2, 1, -1, -1, 0, 0, 0, NONE, 0, 0, .timed = LATEST},  /* as queued, and the first request's deadline is the later one */
    {"sooner", SINGLE, 2, 2, 1, -1, -1, 0, 0, 0, NONE, 0, 0, .timed = EARLIEST}, /* … the earlier one */
    {"retimed", SINGLE, 2, 2, 1, -1, 0, 0, 0, 0, NONE, 0, 0, .timed = EARLIEST}, /* … and the first request is cancelled */
    {"refused", SINGLE, 2, 2, 1, -1, -1, 0, 0, 0, NONE, 0, 0, .timed = REFUSED}, /* the second request's deadline cannot be met: a DSE or the client says so */
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
    /* Streams: each frame runs what its changes reach. */
    {"stream", STREAM, 2, 1, 1, -1, -1, 0, 0, 0, NONE, 0, 0},
    {"stream-three", STREAM, 3, 1, 1, -1, -1, 0, 0, 0, NONE, 0, 0},
    {"stream-still", STREAM, 2, 1, 1, -1, -1, 0, 0, 0, NONE, 0, 0, .still = 1}, /* nothing changes: no request */
    {"stream-cancel", STREAM, 3, 1, 1, -1, 1, 0, 0, 0, NONE, 0, 0},             /* the frame in the middle is cancelled */
    {"spoil", SINGLE, 1, 1, 1, -1, -1, 0, 0, 0, PLAN, 1, 0},    /* the plan is dropped while the client overwrites its own slot */
};

int main(int argc, char **argv) {
  struct options o = {.most = 1000000000, .bound = UNBOUNDED, .reduced = 1, .symmetric = 1, .walks = 2000};
  struct scenario more = {.workers = 2};
  int known = 0;
  for (int k = 2; k < argc; k++)
    if (!strcmp(argv[k], "tso")) tso = 1;
    else if (!strcmp(argv[k], "whole")) o.reduced = o.symmetric = 0;
    else if (!strcmp(argv[k], "mirrored")) o.symmetric = 0;
    else if (!strcmp(argv[k], "compare")) o.compare = 1, o.symmetric = 0;
    else if (!strcmp(argv[k], "backwards")) o.backwards = 1;
    else if (!strncmp(argv[k], "deaths=", 7)) {
      sscanf(argv[k] + 7, "%d,%d,%d", &more.lives[0], &more.lives[1], &more.lives[2]);
      more.dies = 1;
      o.walks = 20000; /* there is more to learn */
    } else if (!strncmp(argv[k], "workers=", 8)) more.workers = atoi(argv[k] + 8);
    else if (!strcmp(argv[k], "shares")) more.shares = 1;
    else if (!strcmp(argv[k], "classes")) more.classes = 1;
    else if (!strcmp(argv[k], "impatient")) more.impatient = 1;
    else if (!strcmp(argv[k], "hints")) more.hints = 1;
    else if (!strcmp(argv[k], "nonsense")) more.hints = 2;
    else if (!strcmp(argv[k], "scribbles")) more.scribbles = 1;
    else if (!strcmp(argv[k], "early")) more.early = 1;
    else if (!strcmp(argv[k], "lone")) more.lone = 1;
    else if (!strcmp(argv[k], "settled")) o.settled = 1;
    else if (!strncmp(argv[k], "walks=", 6)) o.walks = (uint32_t)atoi(argv[k] + 6);
    else if (!strncmp(argv[k], "bound=", 6)) o.bound = (uint32_t)atoi(argv[k] + 6) & 63;
    else o.most = strtoull(argv[k], NULL, 10);
  for (size_t k = 0; argc > 1 && k < sizeof scenarios / sizeof *scenarios; k++)
    if (!strcmp(argv[1], scenarios[k].name)) {
      known = 1;
      it = scenarios[k];
      it.workers = more.workers, it.dies = more.dies, it.scribbles = more.scribbles, it.early = more.early, it.lone = more.lone, it.shares = more.shares;
      it.classes = more.classes, it.impatient = more.impatient, it.hints = more.hints;
      memcpy(it.lives, more.lives, sizeof it.lives);
    }
  if (!known) {
    fprintf(stderr, "usage: model SCENARIO [workers=N] [shares] [classes] [impatient] [hints] [nonsense] [deaths=N,N,N] [scribbles] [early] [lone] [settled] [tso] [bound=N] [whole] [mirrored] [compare] [backwards] [walks=N] [max states]\n");
    return 3;
  }
  if (it.workers < 1 + it.leaves || it.workers > MOST_WORKERS || (it.early && it.workers > 2)) return 3;
  o.loops = (1u << it.workers) - 1;
  if (o.settled) o.settled = o.loops;
  if (it.leaves || it.dies || it.shares || it.workers > 2 || o.bound != UNBOUNDED) o.symmetric = 0;
  setvbuf(stdout, NULL, _IOLBF, 0);
  static char alternative[65536];
  sigaltstack(&(stack_t){.ss_sp = alternative, .ss_size = sizeof alternative}, NULL);
  struct sigaction action = {.sa_handler = crashed, .sa_flags = SA_ONSTACK};
  sigaction(SIGSEGV, &action, NULL);
  sigaction(SIGBUS, &action, NULL);
  set_up();
  return search(&o);
}
