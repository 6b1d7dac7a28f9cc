/* Everything that processes share, and the only definition of it.
 *
 * Offsets, never pointers; fixed-size little-endian records; a cache line for each group of words that different processes write.
 * Each field says who writes it and when. Fields touched by more than one process at a time are read and written through atomics.h alone.
 * Each segment starts with aspen_magic; `layout` is a hash of this file and opcodes.h, made at build time, so that builds that differ
 * refuse each other.
 * The protocol (who may do what, in which order, and why that is safe) is in docs/protocol.
 */
#ifndef ASPEN_LAYOUT_H
#define ASPEN_LAYOUT_H
#include <stddef.h>
#include <stdint.h>

#include "opcodes.h"

#define ASPEN_LINE 64
#define ASPEN_PAGE 4096
#define ASPEN_MAX_WORKERS 256   /* rows of the ready pool; a runtime uses max_workers of them */
#define ASPEN_LANES 16          /* requests whose tiles a row of the ready pool keeps apart; more than those share */
#define ASPEN_CLASSES 3         /* request priorities: high, normal, low */
#define ASPEN_CLASS_SHIFT 62    /* of a request's order: its class stands above, … */
#define ASPEN_ORDER_UNTIMED ((uint64_t)1 << 61) /* … this bit says that it has no deadline, … */
#define ASPEN_ORDER_KEY (ASPEN_ORDER_UNTIMED - 1) /* … and these bits are its key, … */
#define ASPEN_ORDER_TIES 4095   /* … of which the lowest are those of a ticket, and the others nanoseconds */
#define ASPEN_FLOWS 4096        /* pairs of client and model whose turns are remembered, by class … */
#define ASPEN_FLOW_WAYS 8       /* … each in one of so many places */
#define ASPEN_ACTIVE 512        /* requests that a claim knows of: those that run, and those with a deadline that wait */
#define ASPEN_OUTLOOK 64        /* requests of others that a client is told of; where there are more it is told nothing */
#define ASPEN_DEMANDS 32        /* plans of a client of which it is told what their requests take */
#define ASPEN_DEPTHS 21         /* depth bins: queues a lane */
#define ASPEN_MAX_PLANS 1024
#define ASPEN_MEMORIES 16       /* memories whose tokens are counted apart */
#define ASPEN_MAX_INSTANCES 4096
#define ASPEN_MAX_CLIENTS 256
#define ASPEN_MAX_SEGMENTS 8192 /* segment table: every plan, weight, arena and client data segment that workers map */
#define ASPEN_SLOTS 256         /* requests in flight a client */
#define ASPEN_CLIENT_DATA 64    /* data segments a client */
#define ASPEN_PLAN_INSTANCES 32 /* instances a plan */
#define ASPEN_MESSAGE 256       /* bytes of a failed request's message */
#define ASPEN_MAX_WEIGHTS 8     /* weight segments a plan */
#define ASPEN_MAX_BORROWED 1024 /* pieces of clients' files that a worker has mapped at a time */
#define ASPEN_MAX_OPERANDS 255
#define ASPEN_TILE_AXES 6       /* axes that a tile may cut; axes from 6 on are always whole */
#define ASPEN_RANK 8
#define ASPEN_FANOUT 16         /* children a tile; join tiles beyond that */
#define ASPEN_NONE 0xffffffffu
#define ASPEN_MAX_EXTENTS 3     /* lengths in which requests of a plan may differ */

struct aspen_magic {
  char magic[8];    /* "ASPENMP\0" */
  uint64_t layout;  /* ASPEN_LAYOUT_HASH */
  uint64_t bytes;   /* size of the segment */
  uint32_t role;    /* enum aspen_role */
  uint32_t version;
};
enum aspen_role {
  ASPEN_ROLE_CONTROL = 1, ASPEN_ROLE_DOORBELL, ASPEN_ROLE_CLIENT, ASPEN_ROLE_DATA, ASPEN_ROLE_PLAN, ASPEN_ROLE_WEIGHTS, ASPEN_ROLE_ARENA,
  ASPEN_ROLE_TRACE
};

/* ------------------------------------------------------------------------------------------------ plan segment
 * Written once by a planner child, checked by the planner process (every offset, count and index), then read-only.
 * The same bytes are the arrays of a `.aspen` file. Structs are lists of fields so that Python's numpy dtypes come from the same lines:
 * F(type, name, count). */

#define ASPEN_PLAN_HEADER_FIELDS(F)                                                                                                \
  F(uint64_t, magic, 1) F(uint64_t, layout, 1) F(uint64_t, bytes, 1)                                                               \
  F(uint32_t, role, 1) F(uint32_t, version, 1)                                                                                     \
  F(uint32_t, n_ops, 1) F(uint32_t, n_operands, 1) F(uint32_t, n_params, 1) F(uint32_t, n_tiles, 1)                                \
  F(uint32_t, n_children, 1) F(uint32_t, n_initial, 1) F(uint32_t, n_weights, 1) F(uint32_t, end_tile, 1)                 \
  F(uint64_t, ops, 1)          /* byte offsets of the arrays from the start of the segment, 64-byte aligned */                     \
  F(uint64_t, operands, 1) F(uint64_t, params, 1) F(uint64_t, tiles, 1) F(uint64_t, children, 1) F(uint64_t, parent_counts, 1)     \
  F(uint64_t, parent_begin, 1) /* u32[n_tiles + 1]: CSR of the inverse edges, read by recovery alone */                            \
  F(uint64_t, parents, 1) F(uint64_t, initial, 1) F(uint64_t, consts, 1) F(uint64_t, consts_bytes, 1)                              \
  F(uint64_t, blobs, 1) F(uint64_t, blobs_bytes, 1) /* names and opaque sub-graphs */                                              \
  F(uint64_t, arena_bytes, 1)     /* size of an arena segment, header and scheduling words included */                             \
  F(uint64_t, arena_counters, 1)  /* offsets in the arena: u32 missing[n_tiles] */                                                 \
  F(uint64_t, arena_executed, 1)  /* u32 executed[n_tiles]: generation */                                                          \
  F(uint64_t, arena_next, 1)      /* u64 next[n_tiles]: link of the ready pool's queues */                                         \
  F(uint64_t, arena_data, 1)      /* activations */                                                                                \
  F(uint64_t, request_bytes, 1)   /* size of a request's region in a client's data segment */                                      \
  F(uint64_t, scratch_bytes, 1)   /* most scratch that a kernel of this plan needs */                                              \
  F(uint64_t, weights_bytes, 8)   /* least size of each weight segment that the operands may touch */                              \
  F(uint64_t, values, 1) F(uint64_t, numbers, 1)      /* offsets of what follows from a request's extents */                       \
  F(uint32_t, n_values, 1) F(uint32_t, n_numbers, 1)                                                                               \
  F(uint32_t, n_extents, 1)       /* 0: the plan serves no shape bucket */                                                         \
  F(uint32_t, least, 3) F(uint32_t, most, 3) /* extents that a request may have */                                                 \
  F(uint32_t, reserved2, 1)                                                                                                        \
  F(uint64_t, memory, 1)          /* bit d: tiles of depth d wait for memory, … */                                                 \
  F(uint32_t, memory_cores, 1)    /* … of which so many cores leave others nothing; 0: any number does */                          \
  F(uint32_t, n_parts, 1)         /* tiles, from the first on, of which a request may run a part (docs/protocol/reach.md) */        \
  F(uint64_t, arena_parts, 1)     /* u32 parts[n_parts][2 * ASPEN_TILE_AXES]: what REACH found; 0: requests run all tiles whole */ \
  F(uint64_t, request_kept, 1)    /* u32 in the request's region: aspen_trust_word() if activations there are trusted; 0: no word */ \
  F(uint64_t, reserved1, 1)

#define ASPEN_OP_FIELDS(F)                                                                                                         \
  F(uint32_t, kernel, 1)         /* enum aspen_kernel_id */                                                                        \
  F(uint32_t, operand, 1)        /* first operand; outputs come first */                                                           \
  F(uint16_t, n_outputs, 1) F(uint16_t, n_inputs, 1)                                                                               \
  F(uint32_t, param, 1) F(uint32_t, n_params, 1)                                                                                   \
  F(uint32_t, name, 1) F(uint32_t, name_bytes, 1) /* in blobs: "node name (op type)", for messages and traces */                   \
  F(uint32_t, blob, 1)           /* in blobs: OPAQUE's sub-graph (a serialised ModelProto), else 0 */                              \
  F(uint32_t, blob_bytes, 1)                                                                                                       \
  F(uint32_t, layer, 1)          /* number in topological order */                                                                 \
  F(float, cost_ns, 1)           /* estimate for one tile */                                                                       \
  F(float, flops, 1)             /* of the whole op */                                                                             \
  F(float, cold_bytes, 1)        /* planner: what one tile moves to and from memory behind the caches, for schedules */            \
  F(uint32_t, reserved, 3)

#define ASPEN_OPERAND_FIELDS(F)                                                                                                    \
  F(uint8_t, space, 1) F(uint8_t, dtype, 1) F(uint8_t, rank, 1) F(uint8_t, flags, 1) F(uint32_t, reserved, 1)                      \
  F(int64_t, offset, 1)          /* bytes from the start of its space (the segment's first byte, header included; REQUEST: the first */ \
                                 /* byte of the request's region) to logical element (0, 0, …) */                                  \
  F(int64_t, dims, 8) F(int64_t, strides, 8) /* strides in elements */

/* One cache line. */
#define ASPEN_TILE_FIELDS(F)                                                                                                       \
  F(uint32_t, op, 1)                                                                                                               \
  F(uint32_t, children, 1)       /* first child in the children array */                                                           \
  F(uint16_t, n_children, 1)                                                                                                       \
  F(uint8_t, depth, 1)           /* depth bin, 0 … ASPEN_DEPTHS - 1 */                                                             \
  F(uint8_t, flags, 1)                                                                                                             \
  F(uint32_t, rank, 1)           /* of the preferred child order: lower runs first */                                              \
  F(uint32_t, lo, 6) F(uint32_t, hi, 6) /* box over the output's first axes; unused axes 0, 1 */

/* A value that follows from a request's extents. The extents are the first values; each other one follows from earlier ones. No value falls
 * as an extent rises, and none is negative. */
#define ASPEN_VALUE_FIELDS(F)                                                                                                      \
  F(uint16_t, kind, 1)           /* enum aspen_value_kind */                                                                       \
  F(uint16_t, u, 1) F(uint16_t, v, 1) /* numbers of earlier values */                                                              \
  F(uint16_t, reserved, 1)                                                                                                         \
  F(int64_t, a, 1) F(int64_t, b, 1) F(int64_t, c, 1)
#define ASPEN_VALUE_KINDS(X)                                                                                                       \
  X(FLOOR, 0)   /* (a * u + b) / c, rounded down; a >= 0, c >= 1 */                                                                \
  X(PRODUCT, 1) /* u * v */                                                                                                        \
  X(SUM, 2)     /* a * u + b * v; a, b >= 0 */

/* A number of the plan that follows from a value. It is less than in the plan's array by `per` for each step by which the value is less than
 * at the largest extents. `per` is not negative but for a PARAM. */
#define ASPEN_NUMBER_FIELDS(F)                                                                                                     \
  F(uint16_t, table, 1)          /* enum aspen_number_table */                                                                     \
  F(uint16_t, value, 1)                                                                                                            \
  F(uint32_t, index, 1)                                                                                                            \
  F(int64_t, per, 1)
#define ASPEN_NUMBER_TABLES(X)                                                                                                     \
  X(DIM, 0) X(STRIDE, 1) /* index: operand * ASPEN_RANK + axis */                                                                  \
  X(OFFSET, 2)           /* index: operand; bytes */                                                                               \
  X(PARAM, 3)            /* index: in params */                                                                                    \
  X(RATIO, 4)            /* the same: the bits of the double that is the value over the value whose number is `per` */
#define X(n, c) ASPEN_VALUE_##n = c,
enum aspen_value_kind { ASPEN_VALUE_KINDS(X) };
#undef X
#define X(n, c) ASPEN_NUMBER_##n = c,
enum aspen_number_table { ASPEN_NUMBER_TABLES(X) };
#undef X

/* The extents of a request share a word. One has all of it, two have 16 bits each, three 11, 11 and 10. The first has the lowest. */
static inline uint32_t aspen_extent(uint32_t word, uint32_t n, uint32_t k) {
  uint32_t bits = n == 2 ? 16 : 11;
  return n < 2 ? word : word >> bits * k & ((1u << bits) - 1);
}
static inline uint32_t aspen_extents_word(const uint32_t *extents, uint32_t n) {
  uint32_t word = 0;
  for (uint32_t k = 0; k < n; k++) word |= extents[k] << (n == 2 ? 16 : 11) * k;
  return word;
}

#define ASPEN_FIELD_1(type, name, count) type name ASPEN_ARRAY_##count;
#define ASPEN_ARRAY_1
#define ASPEN_ARRAY_2 [2]
#define ASPEN_ARRAY_3 [3]
#define ASPEN_ARRAY_4 [4]
#define ASPEN_ARRAY_6 [6]
#define ASPEN_ARRAY_8 [8]
struct aspen_plan_header { ASPEN_PLAN_HEADER_FIELDS(ASPEN_FIELD_1) };
struct aspen_op { ASPEN_OP_FIELDS(ASPEN_FIELD_1) };
struct aspen_operand { ASPEN_OPERAND_FIELDS(ASPEN_FIELD_1) };
struct aspen_tile { ASPEN_TILE_FIELDS(ASPEN_FIELD_1) };
struct aspen_value { ASPEN_VALUE_FIELDS(ASPEN_FIELD_1) };
struct aspen_number { ASPEN_NUMBER_FIELDS(ASPEN_FIELD_1) };
_Static_assert(sizeof(struct aspen_tile) == ASPEN_LINE, "a tile is one cache line");
_Static_assert(sizeof(struct aspen_op) == 64, "an op is one cache line");
_Static_assert(sizeof(struct aspen_operand) == 144, "operand");
_Static_assert(sizeof(struct aspen_value) == 32, "value");
_Static_assert(sizeof(struct aspen_number) == 16, "number");
_Static_assert(sizeof(struct aspen_plan_header) % ASPEN_LINE == 0, "plan header");

/* ------------------------------------------------------------------------------------------------ control segment
 * Mapped by the planner process ("server") and the workers only (I11: a client never writes control memory). Zero means "nothing yet"
 * in every field.
 * Ids of segments, plans, clients and instances are indices of the tables below; index 0 is never given out, so 0 means none. */

/* Words that the server alone writes, seldom, and every DSE reads before every tile: one read-mostly cache line. */
struct aspen_signals {
  uint32_t epoch;      /* futex. Odd: recovery stops the world, each DSE parks here. Server: ++ at begin and end of recovery */
  uint32_t attach_seq; /* server: ++ after a segment's descriptor was sent to every worker, before anything refers to the segment */
  uint32_t stop;       /* server: 1 when the runtime ends; never cleared */
  uint32_t n_rows;     /* server, at creation: rows in use (max_workers); a bound for loops over workers */
  uint32_t spin_ns;    /* server: how long an idle DSE looks for work before it parks */
  uint32_t steal;      /* server: 0 switches stealing off (tests) */
  uint32_t policy;     /* server: enum aspen_policy, order of the queues (tests) */
  uint32_t seed;       /* server: of ASPEN_POLICY_RANDOM */
  uint64_t tick_ns_q32; /* server, at creation: nanoseconds per tick of aspen_ticks(), 32.32 fixed point */
  uint32_t roster;     /* server: ++ when a row gets another worker: DSEs work out anew which rows are near */
  uint32_t trace;      /* server, before the attach_seq that announces it: segment that DSEs record into, 0: none. Looked at when mapping */
  uint32_t preempt_ns; /* server, at creation: how long a tile of a lower class is held back in each gap of a higher one, and how long one should be at
                        * most (docs/protocol/pool.md, "Classes"); 0: not at all, and as long as it likes */
  uint32_t faults;     /* server, while the world stands still: ++ when a worker may have scribbled, and requests begin anew */
  uint32_t reserved[2];
};
enum aspen_policy { ASPEN_POLICY_FIFO = 0, ASPEN_POLICY_LIFO = 1, ASPEN_POLICY_RANDOM = 2 };

/* Counts of idle DSEs: written by DSEs when they go idle, park and wake; read by whoever pushed tiles. Hints for waking only: a value too
 * high costs a futile system call, and the park protocol (docs/protocol/doorbell.md, "Park") never relies on a value too low. Recovery resets
 * both. */
struct aspen_idle {
  uint32_t sleepers; /* DSEs between "prepare to wait" and "awake again" */
  uint32_t spinners; /* DSEs that look for work and will look again before they park */
  uint32_t reserved[14];
};

/* Claiming of submitted requests: one DSE at a time (docs/protocol/claim.md, "Claim"). */
struct aspen_claim {
  uint32_t lock;       /* row + 1 of the claiming DSE; taken by try-lock only. Recovery: 0 */
  uint32_t wanted;     /* DSEs, server: ++ whenever something may have become claimable */
  uint32_t done;       /* claiming DSE: the value of `wanted` that its last complete scan began with */
  uint32_t turn;       /* claiming DSE: the client after the one served last, for fairness between clients */
  uint64_t waiting[ASPEN_MAX_CLIENTS / 64]; /* DSEs: clients whose slots have to be looked at; bits move here from the doorbell page.
                                             * Recovery: all ones */
  uint64_t running;    /* DSEs: + ASPEN_RUNNING(class) when a request is started, - when it is complete; recovery counts anew. A hint: with one request nobody
                        * looks for older ones, and with one class nobody holds tiles back */
  uint64_t ticket;     /* claiming DSE: of the request started last */
};

/* A request that runs, or one with a deadline that waits for an instance (docs/protocol/deadlines.md, "Admission"). */
struct aspen_active {
  uint64_t order;       /* what it has, or will have but for its ticket */
  uint64_t deadline_ns; /* CLOCK_MONOTONIC, 0: none, or one that cannot be met of a request that runs on */
  uint64_t admitted_ns; /* CLOCK_MONOTONIC: when it was found that the deadline can be met … */
  uint64_t expected_ns; /* … and when it ends, by the latest simulation; 0: by none */
  uint32_t instance;    /* where it runs, 0: it waits */
  uint32_t generation;  /* … in which the instance runs it */
  uint32_t client, slot, sequence; /* whose it is */
  uint32_t plan;
  uint64_t reserved;
};

/* Whose turn it is, and which deadlines can be met. The claiming DSE alone, under the claim lock; recovery makes it anew. No client writes here. */
struct aspen_turns {
  uint64_t now[ASPEN_CLASSES]; /* virtual time of a class: the least turn of its requests that run (docs/protocol/deadlines.md, "Shares") */
  uint64_t spent_ns;    /* core time of requests with deadlines that are admitted, less what has been refilled since … */
  uint64_t refilled_ns; /* … CLOCK_MONOTONIC */
  uint32_t stretch;     /* DSE of END: how much longer admitted requests took than predicted, times 1024; 0: none has ended yet … */
  uint32_t deviation;   /* … and by how much that differs, times 1024 */
  uint32_t alone;       /* the instance whose request has run alone so far, 0: none */
  uint32_t n_active;
  uint32_t rows;        /* that were open when the latest request started */
  uint32_t caution;     /* DSEs: by how much the stretch is raised, times 65536, because admitted requests were late; 0: by nothing */
  struct aspen_active active[ASPEN_ACTIVE]; /* in no order; those that have ended go when somebody looks */
  uint16_t admitted[ASPEN_MAX_CLIENTS][ASPEN_SLOTS]; /* where in `active` a slot's request waits; whoever looks there compares */
  struct aspen_flow { uint64_t key, finish; } flow[ASPEN_FLOWS]; /* by class, client and model: where its last turn ended. Key 0: nobody's */
  uint64_t asking[ASPEN_MAX_CLIENTS / 64]; /* clients that have submitted a request with a deadline lately: they are told the outlook. Recovery: all ones */
  uint64_t told_ns;     /* when they were told last, CLOCK_MONOTONIC */
  uint64_t faded_ns;    /* when what was learned of predictions faded last, CLOCK_MONOTONIC */
  uint64_t reserved[ASPEN_LINE / 8 - ASPEN_MAX_CLIENTS / 64 - 2];
  struct aspen_asker { uint64_t work_ns, at_ns; } asker[ASPEN_MAX_CLIENTS]; /* core time that a client has asked for with deadlines, less with time */
  uint16_t demand[ASPEN_MAX_CLIENTS][ASPEN_DEMANDS]; /* plan of each of the client's demands, 0: none */
};

/* A request as admission sees it (docs/protocol/deadlines.md, "Simulation"). */
struct aspen_rival {
  uint64_t order;
  uint64_t deadline_ns; /* CLOCK_MONOTONIC, 0: none that it was promised to meet */
  double work;          /* core time that is left, ns */
  double most;          /* cores that it can use */
  uint32_t plan, limit; /* requests of its plan that run at a time */
  uint32_t holds;       /* it has an instance */
  uint32_t own;         /* it is of the client that is told of it */
};

/* What decides whether a deadline can be met, as far as it does not depend on the request (docs/protocol/deadlines.md, "Outlook"). */
struct aspen_outlook {
  uint64_t at_ns;  /* CLOCK_MONOTONIC: the work that is left is that of then */
  double capacity; /* what all workers compute in a nanosecond, in nanoseconds that plans expect */
  double stretch;  /* predictions are multiplied by it … */
  double pace;     /* … and work goes on so much slower than simulated */
  double spent;    /* of the reserve, ns of core time */
  double part;     /* of core time that may be promised to this client; 1: all */
  uint32_t n;      /* rivals, ASPEN_NONE: there are too many */
  uint32_t n_demands;
  uint32_t reserved[2];
  struct aspen_demand { uint32_t plan, generation, limit, reserved; double work, most; } demand[ASPEN_DEMANDS]; /* of its requests, by plan */
  struct aspen_rival rival[ASPEN_OUTLOOK];
};

/* `claim.running` has a count for each class, the highest class in the lowest bits: ASPEN_MAX_INSTANCES fit. */
#define ASPEN_RUNNING_BITS 16
#define ASPEN_RUNNING(class_) ((uint64_t)1 << ASPEN_RUNNING_BITS * (class_))

enum aspen_worker_state { ASPEN_WORKER_NONE = 0, ASPEN_WORKER_JOINING, ASPEN_WORKER_RUNNING, ASPEN_WORKER_LEAVING, ASPEN_WORKER_DEAD };
enum aspen_command { ASPEN_COMMAND_NONE = 0, ASPEN_COMMAND_LEAVE, ASPEN_COMMAND_STOP };

struct aspen_worker {
  /* line 0: who it is. Server, before the process starts; `state` and `command` later */
  uint32_t pid;        /* 0 until the process is known */
  uint32_t cpu;        /* ASPEN_NONE: not pinned */
  uint32_t core_class; /* 0 the fastest class of the machine */
  uint32_t cache;      /* number of the last-level cache */
  uint32_t node;       /* NUMA node */
  uint32_t state;      /* enum aspen_worker_state. Server: JOINING, DEAD, NONE; worker: RUNNING, LEAVING */
  uint32_t command;    /* enum aspen_command. Server */
  uint32_t pace;       /* DSE, seldom: what kernels take here of the time that plans expect, times 1024; 0: not known yet */
  uint64_t start_time; /* of /proc/<pid>/stat: with pid it names a process for good */
  uint64_t paced_ns;   /* DSE, with `pace`: time in kernels, so far */
  uint64_t expected_ns; /* DSE, with `pace`: what plans expect of the same kernels */
  uint32_t domain;     /* server, with a version of hints: bit of the domain of its core; 0: none */
  uint32_t reserved1;
  /* line 1: the DSE, at every tile */
  uint64_t current;    /* DSE: item (see below) before its kernel starts, 0 between tiles. Read by recovery: which tile killed its worker */
  uint64_t heartbeat;  /* DSE: ++ every turn of its loop */
  uint32_t parked;     /* DSE: the odd epoch it has stopped at; it then touches nothing shared until the epoch is even */
  uint32_t attached;   /* worker: the attach_seq whose segments it has all mapped */
  uint32_t idle;       /* DSE: 0 busy, 1 looking for work, 2 parked */
  uint32_t reserved2;
  uint64_t held;       /* DSE: gaps of a higher class in which it held tiles of lower ones back … */
  uint64_t lent;       /* DSE: tiles of lower classes that went before those of a higher one, as their share … */
  uint64_t held_ticks; /* … and how long it did so */
  uint64_t lent_ticks; /* … and how long they took. Both are part of the four durations below */
  /* line 2 and 3: statistics. DSE; monotone since the worker joined. Line 2 is what most tiles touch.
   * The four durations are in ticks of aspen_ticks() (signals.tick_ns_q32 converts), each added to when a stretch of its kind ends. What is
   * missing in their sum is time in Python between two runs of the loop (mapping segments) and time that recovery held the worker. */
  uint64_t tiles;          /* executed, JOIN and END included */
  uint64_t kernel_ticks;   /* in kernels, and in Python for an opaque tile */
  uint64_t schedule_ticks; /* everything else between finding work and running out of it: claiming, popping, counting down, pushing, waking */
  uint64_t follows;        /* tiles run right after a parent, without the ready pool */
  uint64_t pushes;         /* tiles put into the ready pool */
  uint64_t steals;         /* tiles taken from other rows */
  uint64_t search_ticks;   /* looking for work in vain */
  uint64_t sleep_ticks;    /* parked */
  uint64_t parks;          /* times it slept */
  uint64_t opaque;     /* tiles executed by the Python side */
  uint64_t claims;     /* requests started */
  uint64_t ends;       /* requests completed */
  uint64_t wakes;      /* futex wakes issued to other DSEs */
  uint64_t faults;     /* kernels that returned an error */
  uint64_t failed;     /* requests completed with an error; not those that ask for more space */
  uint64_t cancelled;  /* requests completed that were cancelled, whose client is gone or whose deadline had passed */
};

/* An item of the ready pool: (instance, tile) and the low bits of the instance's generation; never 0. */
#define ASPEN_ITEM(generation, instance, tile) \
  (((uint64_t)((generation) & 0xffffu) << 48) | ((uint64_t)(instance) << 32) | (uint32_t)(tile))
#define ASPEN_ITEM_TILE(item) ((uint32_t)(item))
#define ASPEN_ITEM_INSTANCE(item) ((uint32_t)((item) >> 32) & 0xffffu)
#define ASPEN_ITEM_GENERATION(item) ((uint32_t)((item) >> 48))

/* Ready pool: a row for each worker. Everything but `lock` is written under `lock`; thieves read `first` without it. What lanes hold whose bit in `busy` is 0
 * says nothing. */
struct aspen_row {
  uint32_t lock; /* row + 1 of the holder, 0 free */
  uint32_t open; /* its worker runs: others may seed tiles here */
  uint64_t first; /* order of the oldest request that has a tile here, 0: none. Set before unlocking, sequentially consistent
                   * (docs/protocol/doorbell.md, "Park") */
  uint32_t waiting; /* items in all queues. Decides nothing but what a slow core leaves to others */
  uint32_t busy;  /* bit l: lane l is not empty */
  uint64_t reserved[5];
  struct aspen_lane {
    uint64_t order; /* of its request; of the oldest, if several share it */
    uint32_t mask;  /* bit d: queue d is not empty */
    uint32_t reserved;
    struct aspen_queue { uint64_t head, tail; } queue[ASPEN_DEPTHS]; /* by depth: items, linked through next[tile] of their instance's arena */
    uint64_t reserved1[4];
  } lane[ASPEN_LANES];
};

enum aspen_segment_state { ASPEN_SEGMENT_FREE = 0, ASPEN_SEGMENT_LIVE, ASPEN_SEGMENT_DROPPED };

/* Everything that workers map. Server alone writes; workers read between an attach_seq that they saw and the next. */
struct aspen_segment {
  uint32_t state; /* enum aspen_segment_state */
  uint32_t role;  /* enum aspen_role */
  uint64_t bytes;
  uint32_t seq;   /* attach_seq that announces its life (LIVE) or its end (DROPPED) */
  uint32_t reserved[3];
};

enum aspen_plan_state { ASPEN_PLAN_FREE = 0, ASPEN_PLAN_LIVE, ASPEN_PLAN_DRAINING };

/* Server alone writes: the rest, then `generation`, then `state` (release). Entries are reused only after every worker has seen the old
 * one end. */
struct aspen_plan {
  uint32_t state;      /* enum aspen_plan_state */
  uint32_t generation; /* ++ each time the entry is given out; a submission must name it */
  uint32_t segment;    /* plan segment */
  uint32_t n_weights;
  uint32_t weights[ASPEN_MAX_WEIGHTS];
  uint32_t n_instances;
  uint32_t instance[ASPEN_PLAN_INSTANCES];
  uint32_t seq;        /* FREE: attach_seq that announced its end; the entry is not reused before every worker is there */
  uint32_t model;      /* server, before clients hear of the plan, as the next two: number of its model */
  uint32_t share;      /* of core time, times 1024; 0: as 1024 */
  uint64_t core_ns;    /* what the plan expects of all its tiles, on one core; 0: unknown */
  uint64_t alone_ns;   /* DSE of END: what requests took that ran alone, the latest counting an eighth; 0: none has … */
  uint64_t alone_rows; /* … with so many workers */
  uint64_t refused;    /* claiming DSE: requests whose deadline could not be met … */
  uint64_t expired;    /* … or passed while they waited */
  uint32_t memory;     /* server, before clients hear of the plan: depths whose tiles wait for memory, a bit each */
  uint32_t reserved[5];
};

enum aspen_instance_state {
  ASPEN_INSTANCE_NONE = 0, ASPEN_INSTANCE_FREE, ASPEN_INSTANCE_CLAIMED, ASPEN_INSTANCE_RUNNING, ASPEN_INSTANCE_DONE
};
#define ASPEN_STATE(generation, state) (((uint64_t)(generation) << 32) | (uint32_t)(state))

/* One request in flight. `word` decides: (generation, FREE) → claiming DSE: (generation + 1, CLAIMED) → RUNNING → the DSE of END:
 * DONE → FREE.
 * The request's fields are the claiming DSE's between CLAIMED and RUNNING and constant until FREE. */
struct aspen_instance {
  /* line 0: read before every tile of the instance */
  uint64_t word;       /* ASPEN_STATE(generation, state): compare-and-swap (I9) */
  uint64_t fault;      /* 0, or enum aspen_error | op << 32. Set once, by compare-and-swap from 0: later tiles of the instance are no-ops */
  uint32_t plan;       /* server */
  uint32_t arena;      /* server: segment */
  uint32_t data;       /* segment that holds the request's region … */
  uint32_t extent;     /* of the request, one of the plan's (docs/protocol/extent.md, "Extents") */
  uint64_t offset;     /* … and where in it */
  uint64_t order;      /* of the request among all (aspen_order) */
  uint32_t client;
  uint32_t slot;
  uint32_t sequence;   /* of the slot: word (sequence, RUNNING) is this request's */
  uint32_t seq;        /* server: as in aspen_plan */
  /* line 1: request-grained */
  uint32_t class_;     /* priority class: 0 high, 1 normal, 2 low */
  uint32_t data_index; /* of `data` in the client's table */
  uint64_t needed;     /* bytes that an OBJECT result needs (fault NEEDS_SPACE); by the DSE that set `fault` */
  uint64_t started_ns; /* CLOCK_MONOTONIC */
  uint64_t served;     /* requests completed */
  uint64_t deadline_ns; /* CLOCK_MONOTONIC, 0: none */
  uint64_t late_ns;    /* from then on its tiles do nothing; UINT64_MAX: never */
  uint64_t expected_ns; /* claiming DSE, at any time: when it ends, by the latest simulation; 0: it has none */
  uint32_t alone;      /* claiming DSE: 1 as long as no other request has run beside it */
  uint32_t at_work;    /* DSEs, where `hints.counted`: + 1 when one begins to execute tiles of this request, - 1 when it ceases. Recovery: 0 */
  /* line 2: statistics. DSE of END; monotone for as long as the instance belongs to its plan */
  uint64_t queued_ns;  /* from submission, by the client's clock, to start */
  uint64_t ran_ns;     /* from start to END */
  uint64_t missed;     /* requests that ended after their deadline */
  uint64_t waited_ns;  /* claiming DSE: of this request, from submission to start … */
  uint64_t admitted_ns; /* … and when it was admitted */
  uint64_t beside;     /* of `served`, those that ended while requests of a higher class ran; both: DSE of END, server when it gives the instance out */
  uint32_t whole;      /* claiming DSE: 1 where kept activations cannot be trusted; all tiles run whole. Recovery: 1 where it begins anew */
  uint32_t reserved2;
  uint64_t reserved3;
};

enum aspen_client_state { ASPEN_CLIENT_FREE = 0, ASPEN_CLIENT_LIVE, ASPEN_CLIENT_DYING };

/* Server alone writes. */
struct aspen_client {
  uint32_t state;      /* enum aspen_client_state. DYING: its requests are cancelled, new ones not claimed */
  uint32_t segment;    /* client segment */
  uint32_t seq;        /* as in aspen_plan */
  uint32_t reserved[13];
  uint32_t data[ASPEN_CLIENT_DATA]; /* data segments by the index that submissions use */
};

/* Which tiles workers should rather leave to others while several requests run (docs/protocol/hints.md). A word for each depth of each plan: */
#define ASPEN_HINT_DOMAINS 0xffffu   /* bit k: for workers of domain k; none: for all */
#define ASPEN_HINT_MOST_SHIFT 16     /* so many workers of a request at a time, … */
#define ASPEN_HINT_MOST 0xffu        /* … 0: as many as like */
#define ASPEN_HINT_MEMORY (1u << 24) /* its tiles wait for memory: whoever executes one holds a token */
#define ASPEN_HINT_YIELDS (1u << 25) /* tiles of other requests go first */
struct aspen_hint_row { uint32_t word[ASPEN_DEPTHS], reserved[32 - ASPEN_DEPTHS]; };

struct aspen_hints {
  /* line 0: server. Read before every tile while several requests run */
  uint32_t version;    /* ++ when the other table is complete: its parity says which one is in force */
  uint32_t tokens;     /* of each memory; 0: none, everybody may have its tiles */
  uint32_t counted;    /* a word of the table in force has a `most`: DSEs count themselves in `instance.at_work` */
  uint32_t reserved[13];
  uint32_t holders[ASPEN_MEMORIES]; /* DSEs, while several requests run: + 1 when one begins to execute tiles that wait for memory, - 1 when it
                                     * ceases. Recovery: 0 */
  struct aspen_hint_row table[2][ASPEN_MAX_PLANS]; /* server: the one that is not in force, and rows of plans that are not announced yet */
};

struct aspen_control {
  struct aspen_magic magic;
  uint64_t reserved[4];
  struct aspen_signals signals;
  struct aspen_idle idle;
  struct aspen_claim claim;
  struct aspen_turns turns;
  struct aspen_hints hints;
  struct aspen_worker worker[ASPEN_MAX_WORKERS];
  struct aspen_row row[ASPEN_MAX_WORKERS];
  struct aspen_instance instance[ASPEN_MAX_INSTANCES];
  struct aspen_plan plan[ASPEN_MAX_PLANS];
  struct aspen_client client[ASPEN_MAX_CLIENTS];
  struct aspen_segment segment[ASPEN_MAX_SEGMENTS];
};

/* ------------------------------------------------------------------------------------------------ doorbell page
 * The only page that every client may write. Garbage costs spurious wake-ups or a late look at a submission (its client rings again while
 * it waits), never more. */
struct aspen_doorbell {
  struct aspen_magic magic;
  uint64_t reserved[4];
  uint32_t event;    /* futex of parked DSEs. ++ by whoever made work visible, before the wake; wraps */
  uint32_t reserved1[7];
  uint64_t pending[ASPEN_MAX_CLIENTS / 64]; /* bit per client. Client: set after its slot is SUBMITTED; DSE: moves it to claim.waiting */
};

/* ------------------------------------------------------------------------------------------------ client segment
 * Written by one client and by workers. Workers believe nothing in it: they validate a private copy of a slot. */
enum aspen_slot_state { ASPEN_SLOT_FREE = 0, ASPEN_SLOT_FILLING, ASPEN_SLOT_SUBMITTED, ASPEN_SLOT_RUNNING, ASPEN_SLOT_DONE };
#define ASPEN_SLOT_WORD(sequence, state) (((uint32_t)(sequence) << 3) | (uint32_t)(state))
#define ASPEN_SLOT_STATE(word) ((word) & 7u)
#define ASPEN_SLOT_SEQUENCE(word) ((word) >> 3)

struct aspen_slot {
  /* line 0: the request. Client, while FILLING */
  uint32_t word;     /* futex. ASPEN_SLOT_WORD(sequence, state). Client: FREE → FILLING → SUBMITTED, DONE → FREE;
                      * DSE: SUBMITTED → RUNNING → DONE */
  uint32_t waiters;  /* client: threads that sleep on `word` */
  uint32_t plan;
  uint32_t generation; /* of the plan */
  uint32_t data;     /* index of the data segment */
  uint32_t class_;   /* priority class */
  uint64_t offset;   /* of the region in the data segment, 64-byte aligned */
  uint64_t submitted_ns; /* CLOCK_MONOTONIC */
  uint32_t cancel;   /* client, while FILLING: ASPEN_NONE; before it sets the slot's bit in `cancel`: the sequence number it means */
  uint32_t extent;   /* word of the lengths that the plan leaves open; 0: it leaves none open */
  uint64_t span_ns;  /* from submitted_ns to the deadline, 0: there is none */
  uint32_t runs_on;  /* 1: late or not, the result is wanted */
  uint32_t reserved0;
  /* line 1: the answer. DSE, before DONE */
  uint32_t error;    /* enum aspen_error, 0: fine */
  uint32_t op;       /* that failed, ASPEN_NONE: none */
  uint64_t needed;   /* bytes, with NEEDS_SPACE; with TOO_LATE nanoseconds from submitted_ns until it would have ended */
  uint64_t started_ns;
  uint64_t finished_ns;
  uint32_t message_bytes;
  uint32_t instance; /* DSE, when it starts the request: where a cancellation finds it (checked against the instance) */
  uint64_t reserved1[3];
  char message[ASPEN_MESSAGE]; /* UTF-8, of a failed OPAQUE op */
};

struct aspen_client_segment {
  struct aspen_magic magic;
  uint32_t client;   /* server, at creation */
  uint32_t closed;   /* server: 1 when it has dropped the client */
  uint32_t faults;   /* server, while the world stands still: `signals.faults` after a worker may have scribbled */
  uint32_t reserved3;
  uint64_t reserved0[2];
  uint32_t completions; /* futex. DSE: ++ after each DONE */
  uint32_t waiters;     /* client: threads that sleep on `completions` */
  uint64_t reserved1[7];
  uint64_t pending[ASPEN_SLOTS / 64]; /* client: set after SUBMITTED; DSE: cleared when it takes the slot */
  uint64_t cancel[ASPEN_SLOTS / 64];  /* client: set to cancel a slot's request; DSE: cleared when seen */
  uint64_t asked_ns;    /* client: when it wanted to submit a request with a deadline last, CLOCK_MONOTONIC, 0: never … */
  uint64_t asking_ns;   /* … and since when it has done so again and again; it alone looks at this */
  uint32_t version;     /* of `outlook`. Claiming DSE: odd while it writes there; 0: it never has */
  uint32_t reserved2[11];
  uint32_t declined[ASPEN_DEMANDS]; /* client: ++ for each request that it has refused itself, by plan; claiming DSE: 0 when it has counted them */
  struct aspen_outlook outlook;     /* claiming DSE; the client reads it between two looks at `version` */
  struct aspen_slot slot[ASPEN_SLOTS];
};

/* ------------------------------------------------------------------------------------------------ trace segment
 * There while somebody traces the runtime: what each DSE did, in a ring of its own (docs/protocol/trace.md). A row's DSE alone writes the
 * row's ring and believes nothing in it: the client that traces has it mapped as well. A DSE in a dead one's row goes on where that one
 * stopped. Times are in ticks. */
#define ASPEN_TRACE_RECORD_FIELDS(F)                                                                                                \
  F(uint64_t, item, 1)  /* TILE: what was executed. START, END: the request, as an item of tile 0. Else 0 */                        \
  F(uint64_t, begin, 1)                                                                                                             \
  F(uint64_t, end, 1)   /* START: the slot's submitted_ns instead, CLOCK_MONOTONIC. An instant's: as `begin` */                     \
  F(uint32_t, what, 1)  /* enum aspen_trace_what; TILE: with enum aspen_trace_came << 8, and ASPEN_TRACE_SKIPPED, _CUT */           \
  F(uint32_t, more, 1)  /* TILE: the row it came from. START: client. END: enum aspen_error */
#define ASPEN_TRACE_RING_FIELDS(F)                                                                                                  \
  F(uint64_t, written, 1) /* records ever; number n lies at n % capacity. Stored (release) after the record */                      \
  F(uint64_t, item, 1)    /* what is being executed, 0: nothing; a death leaves it behind, and the row's next DSE makes a record of it */ \
  F(uint64_t, since, 1)   /* when that began; stored before `item` */                                                               \
  F(uint64_t, idle, 1)    /* since when the DSE has been idle, 0: it is not */                                                      \
  F(uint64_t, opened, 1)  /* since when the row's latest DSE records */                                                             \
  F(uint64_t, reserved, 2) F(uint64_t, reserved1, 1)
struct aspen_trace_record { ASPEN_TRACE_RECORD_FIELDS(ASPEN_FIELD_1) };
struct aspen_trace_ring { ASPEN_TRACE_RING_FIELDS(ASPEN_FIELD_1) };
struct aspen_trace_segment {
  struct aspen_magic magic;
  uint32_t n_rings;  /* server, at creation: a ring for each row … */
  uint32_t capacity; /* … of so many records, a power of two */
  uint64_t reserved[3];
  struct aspen_trace_ring ring[ASPEN_MAX_WORKERS];
  struct aspen_trace_record record[]; /* [n_rings][capacity] */
};
#define ASPEN_TRACE_WHATS(X)                                                                                                        \
  X(TILE, 1)  /* a tile was executed, JOIN and END included */                                                                      \
  X(IDLE, 2)  /* looked for work in vain, parked or not */                                                                          \
  X(PARK, 3)  /* slept, as part of being idle */                                                                                    \
  X(STOP, 4)  /* stood still for a recovery */                                                                                      \
  X(AWAY, 9)  /* was in Python, to map what was announced or to report */                                                           \
  X(JOIN, 5) X(LEAVE, 6)                                                                                                            \
  X(START, 7) /* a request was claimed */                                                                                           \
  X(END, 8)   /* a request was completed */
#define ASPEN_TRACE_CAMES(X)                                                                                                        \
  X(FOLLOWED, 0) /* right after a parent, without the ready pool */                                                                 \
  X(OWN, 1)      /* from the own row */                                                                                             \
  X(STOLEN, 2)   /* from another worker's row */
#define ASPEN_TRACE_SKIPPED 0x10000u /* the request had failed: nothing was computed */
#define ASPEN_TRACE_CUT 0x20000u     /* its worker died in it; by the row's next DSE, which does not know when: end = begin */
#define X(n, c) ASPEN_TRACE_##n = c,
enum aspen_trace_what { ASPEN_TRACE_WHATS(X) };
enum aspen_trace_came { ASPEN_TRACE_CAMES(X) };
#undef X

/* Data, arena and weight segments: a line of magic, then bytes. Offset 0 of a space is the first byte of the segment. */
#define ASPEN_DATA_FIRST ASPEN_LINE
struct aspen_data_head {
  struct aspen_magic magic;
  uint32_t torn;        /* worker: pages that the segment borrows from a file were missing, zeros were read instead (docs/protocol/borrow.md) */
  uint32_t marked;      /* server, at creation: weights that are borrowed; the last 8 bytes of the file are ASPEN_LAYOUT_HASH
                         * (docs/protocol/borrow.md, "Weights in files") */
  uint32_t reserved[6];
};

/* Why a request failed. 1 … 31 are enum aspen_kernel_error. Names and numbers for Python come from the same list. */
#define ASPEN_ERRORS(X)                                                                                                            \
  X(OK, 0) X(BAD_INDEX, 1) X(BAD_ARGUMENT, 2) X(SCRATCH, 3) X(INT_DIVIDE, 4)                                                       \
  X(CANCELLED, 32)    /* by its client */                                                                                          \
  X(CLIENT_GONE, 33)  /* its client is being dropped */                                                                            \
  X(BAD_PLAN, 34)     /* no such plan */                                                                                           \
  X(PLAN_GONE, 35)    /* the plan was dropped, or its entry is another plan's by now: ask for it again */                          \
  X(BAD_DATA, 36)     /* no such data segment */                                                                                   \
  X(BAD_REGION, 37)   /* offset misaligned, or the region reaches beyond its segment */                                            \
  X(BAD_PRIORITY, 38)                                                                                                              \
  X(OPAQUE_FAILED, 39) /* the slot's message says why */                                                                           \
  X(NEEDS_SPACE, 40)  /* an OBJECT result needs `needed` bytes: submit again with a larger region */                               \
  X(POISON, 41)       /* its kernel kills workers */                                                                               \
  X(LOST, 42)         /* restarted too often */                                                                                    \
  X(BAD_EXTENT, 43)   /* the plan is for other lengths */                                                                        \
  X(TOO_LATE, 44)     /* its deadline cannot be met: it was not begun, and would have taken `needed` ns */                      \
  X(EXPIRED, 45)      /* its deadline has passed */
enum aspen_error {
#define X(n, c) ASPEN_E_##n = c,
  ASPEN_ERRORS(X)
#undef X
};

#define ASPEN_LINE_AT(type, field) _Static_assert(offsetof(struct type, field) % ASPEN_LINE == 0, #type "." #field " starts a cache line")
_Static_assert(sizeof(struct aspen_magic) == 32, "magic");
_Static_assert(sizeof(struct aspen_signals) == ASPEN_LINE, "signals");
_Static_assert(sizeof(struct aspen_idle) == ASPEN_LINE, "idle");
_Static_assert(sizeof(struct aspen_hint_row) == 2 * ASPEN_LINE && ASPEN_MEMORIES == 16, "hints");
_Static_assert(sizeof(struct aspen_claim) == ASPEN_LINE, "claim");
_Static_assert(sizeof(struct aspen_worker) == 4 * ASPEN_LINE, "worker");
_Static_assert(sizeof(struct aspen_lane) == 6 * ASPEN_LINE, "lane");
_Static_assert(sizeof(struct aspen_row) == (1 + 6 * ASPEN_LANES) * ASPEN_LINE, "row");
_Static_assert(sizeof(struct aspen_segment) == 32, "segment");
_Static_assert(sizeof(struct aspen_plan) == 4 * ASPEN_LINE, "plan");
_Static_assert(sizeof(struct aspen_instance) == 3 * ASPEN_LINE, "instance");
_Static_assert(sizeof(struct aspen_active) == ASPEN_LINE, "active");
_Static_assert(offsetof(struct aspen_outlook, demand) == ASPEN_LINE && sizeof(struct aspen_rival) == 48 && sizeof(struct aspen_demand) == 32, "outlook");
_Static_assert(ASPEN_MAX_PLANS <= 0x10000, "a plan fits a demand");
_Static_assert(ASPEN_FLOWS % ASPEN_FLOW_WAYS == 0 && ASPEN_ACTIVE <= 0x10000, "turns");
_Static_assert(sizeof(struct aspen_client) == ASPEN_LINE + 4 * ASPEN_CLIENT_DATA, "client");
_Static_assert(sizeof(struct aspen_slot) == 2 * ASPEN_LINE + ASPEN_MESSAGE, "slot");
_Static_assert(sizeof(struct aspen_data_head) == ASPEN_DATA_FIRST, "data head");
_Static_assert(sizeof(struct aspen_doorbell) <= ASPEN_PAGE, "doorbell");
_Static_assert(sizeof(struct aspen_trace_record) == 32, "trace record");
_Static_assert(sizeof(struct aspen_trace_ring) == ASPEN_LINE, "trace ring");
_Static_assert(ASPEN_DEPTHS <= 32 && ASPEN_LANES < 32, "a bit for each queue and lane");
_Static_assert(ASPEN_CLASSES <= 4 && ASPEN_CLASS_SHIFT == 62, "a class fits above the key");
_Static_assert(ASPEN_CLASSES * ASPEN_RUNNING_BITS <= 64 && ASPEN_MAX_INSTANCES < 1 << ASPEN_RUNNING_BITS, "counts of all classes fit a word");
_Static_assert(ASPEN_MAX_INSTANCES <= 0x10000, "instances fit an item");
ASPEN_LINE_AT(aspen_control, signals);
ASPEN_LINE_AT(aspen_control, idle);
ASPEN_LINE_AT(aspen_control, claim);
ASPEN_LINE_AT(aspen_control, turns);
ASPEN_LINE_AT(aspen_control, hints);
ASPEN_LINE_AT(aspen_hints, holders);
ASPEN_LINE_AT(aspen_hints, table);
ASPEN_LINE_AT(aspen_control, worker);
ASPEN_LINE_AT(aspen_control, row);
ASPEN_LINE_AT(aspen_control, instance);
ASPEN_LINE_AT(aspen_control, plan);
ASPEN_LINE_AT(aspen_control, client);
ASPEN_LINE_AT(aspen_control, segment);
ASPEN_LINE_AT(aspen_worker, current);
ASPEN_LINE_AT(aspen_worker, tiles);
ASPEN_LINE_AT(aspen_row, lane);
ASPEN_LINE_AT(aspen_instance, class_);
ASPEN_LINE_AT(aspen_instance, queued_ns);
ASPEN_LINE_AT(aspen_turns, active);
ASPEN_LINE_AT(aspen_doorbell, event);
ASPEN_LINE_AT(aspen_client_segment, completions);
ASPEN_LINE_AT(aspen_client_segment, pending);
ASPEN_LINE_AT(aspen_client_segment, asked_ns);
ASPEN_LINE_AT(aspen_client_segment, declined);
ASPEN_LINE_AT(aspen_client_segment, outlook);
ASPEN_LINE_AT(aspen_client_segment, slot);
ASPEN_LINE_AT(aspen_slot, error);
ASPEN_LINE_AT(aspen_trace_segment, ring);
ASPEN_LINE_AT(aspen_trace_segment, record);

#endif
