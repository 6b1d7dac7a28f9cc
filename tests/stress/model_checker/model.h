/* The system under the model checker: what its parts (system.c: memory; roles.c: what each fiber does; model.c: scenarios) know of each other. */
#ifndef MODEL_H
#define MODEL_H
#define ASPEN_KEEPS_SCRATCH 0 /* kernels here compute nothing */
#include "engine/loop.h"
#include "recover.h"
#include "search.h"

#define MARK(n) (fiber[running].marker = (uint32_t)(n)) /* where a program is, for the search's table of places */

enum { MOST_WORKERS = 3, TILES = 5, A = 0, B, C, D, END /* of the diamond, and of a stream, where A is REACH */ };
/* Words of a stream's region: inputs of C and D, results of D, B and C, what trusts these, which inputs have changed; 1 while a frame is under way, else 2 · the faults that
 * the client knew of in the last one. */
enum { X0 = 0, RESULT, X1, Y0, Y1, TRUST, CHANGES, OPEN };
enum { PLAN_BYTES = 8192, ARENA_BYTES = 512, COUNTERS = 64, EXECUTED = 128, LINKS = 192, ACTIVATIONS = 256, PARTS = 320, CONSTANT = 6144 /* in the plan */ };

struct scenario {
  const char *name;
  enum { SINGLE, PAIR, CHAIN, DIAMOND, STREAM } graph;
  int requests, slots, instances;
  int fault, cancel;                /* a tile whose kernel fails, a request that is cancelled; -1: none */
  int leaves, announces, lazy;      /* worker 1 is asked to leave; a segment is announced; nobody steals */
  enum { NONE, PLAN, CLIENT, DATA } drops;
  int spoils;                       /* the client overwrites its own slot */
  int maps;                         /* the plan itself is announced */
  int still;                        /* the last frame of a stream is like the one before */
  enum { UNTIMED, LATEST, EARLIEST, REFUSED } timed; /* requests have deadlines; the first request's is the latest, the earliest; the second's cannot be met */
  /* Of the command line: */
  int workers;
  int shares;                       /* each takes tiles from its own queue share on; else all from the first */
  int classes;                      /* the second request has a higher class than the first, … */
  int impatient;                    /* … whose tiles nobody holds back for it; else as long as it runs: clocks stand still */
  int hints;                        /* 1: tiles wait for memory, and there is one token; 2: hints leave every tile to others */
  int lives[MOST_WORKERS];          /* how often each worker may die */
  int scribbles;                    /* it dies of a fault: what it may write to is garbage then */
  int early;                        /* a new worker may come at any time, even while the world stands still */
  int lone;                         /* no new worker comes for a dead one as long as another lives */
  int dies;                         /* somebody may */
};
extern struct scenario it;

extern struct aspen_control control;
extern struct aspen_doorbell bell;
extern struct aspen_client_segment client;
extern uint64_t data[64];
extern char arena[2][ARENA_BYTES];
extern struct aspen_dse dse[MOST_WORKERS];
extern struct aspen_mapping mapping[ASPEN_MAX_SEGMENTS];
/* Each worker its own: what it has mapped, and to which request an instance's arguments belong. */
extern struct aspen_plan_view *plans[MOST_WORKERS][ASPEN_MAX_PLANS];
extern struct aspen_instance_view *instances[MOST_WORKERS][ASPEN_MAX_INSTANCES];
extern struct aspen_exec_instance *made[MOST_WORKERS][2];
extern uint64_t *links[ASPEN_MAX_INSTANCES];
extern struct aspen_exec_plan *exec;
extern uint64_t ran[2][TILES];      /* by instance and tile: request that ran last */
extern struct told { uint64_t answered; uint32_t sequence[2], valid, faults; } told; /* the client's own */
extern struct news { uint32_t n, unused; } news; /* the planner process's socket: it wakes up when something was sent */
/* The planner process's own: it has begun a recovery; the world stands still; there may be garbage; rows that wait for a worker. */
extern struct chief { uint32_t stopping, standing, restart, vacant; } chief;
enum { STAYS, LEFT, KILLED, FAULTED };
extern uint64_t gone[MOST_WORKERS]; /* how its process has ended, until the planner process hears of it */
extern uint32_t parents_of[TILES];
extern int n_tiles;

static inline int client_fiber(void) { return it.workers; }
static inline int planner_fiber(void) { return it.workers + 1; }

/* Locks of the search: a row each, the claim's; and the right to work on control memory and arenas, one of each worker's, all taken by recovery. */
enum { CLAIM_LOCK = MOST_WORKERS, WORLD = MOST_WORKERS + 1 };
static inline uint32_t all_of_world(void) { return ((1u << it.workers) - 1) << WORLD; }

void set_up(void);
int kernel(const aspen_call *c);
int find_parts(const aspen_call *c);
uint64_t expected(uint64_t x);
void worker_body(int me);
void client_body(int me);
void planner_body(int me);
int stop_world(void *unused);
uint64_t input_of(int r);

#endif
