/* Everything that processes share, and the only definition of it.
 *
 * Offsets, never pointers; fixed-size little-endian records; a cache line for each group of words that different processes write.
 * Each field says who writes it and when. Fields touched by more than one process at a time are read and written through atomics.h alone.
 * Each segment starts with aspen_magic; `layout` is a hash of this file and opcodes.h, made at build time, so builds that differ refuse each other.
 * The protocol (who may do what, in which order, and why that is safe) is in shm/README.md.
 */
#ifndef ASPEN_LAYOUT_H
#define ASPEN_LAYOUT_H
#include <stddef.h>
#include <stdint.h>

#include "opcodes.h"

#define ASPEN_LINE 64
#define ASPEN_PAGE 4096
#define ASPEN_MAX_WORKERS 256   /* rows of the ready pool; a runtime uses max_workers of them */
#define ASPEN_COLUMNS 64        /* one bit of a row's mask each */
#define ASPEN_CLASSES 3         /* request priorities: high, normal, low */
#define ASPEN_DEPTHS 21         /* depth bins a class: column = class * ASPEN_DEPTHS + bin */
#define ASPEN_MAX_PLANS 1024
#define ASPEN_MAX_INSTANCES 4096
#define ASPEN_MAX_CLIENTS 256
#define ASPEN_MAX_SEGMENTS 8192 /* segment table: every plan, weight, arena and client data segment that workers map */
#define ASPEN_SLOTS 256         /* requests in flight a client */
#define ASPEN_MAX_WEIGHTS 8     /* weight segments a plan */
#define ASPEN_MAX_OPERANDS 255
#define ASPEN_TILE_AXES 6       /* axes that a tile may cut; axes from 6 on are always whole */
#define ASPEN_RANK 8
#define ASPEN_FANOUT 16         /* children a tile; join tiles beyond that */
#define ASPEN_NONE 0xffffffffu

struct aspen_magic {
  char magic[8];    /* "ASPENMP\0" */
  uint64_t layout;  /* ASPEN_LAYOUT_HASH */
  uint64_t bytes;   /* size of the segment */
  uint32_t role;    /* enum aspen_role */
  uint32_t version;
};
enum aspen_role { ASPEN_ROLE_CONTROL = 1, ASPEN_ROLE_DOORBELL, ASPEN_ROLE_CLIENT, ASPEN_ROLE_DATA, ASPEN_ROLE_PLAN, ASPEN_ROLE_WEIGHTS, ASPEN_ROLE_ARENA };

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
  F(uint64_t, reserved, 4)

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
  F(uint32_t, reserved, 4)

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

#define ASPEN_FIELD_1(type, name, count) type name ASPEN_ARRAY_##count;
#define ASPEN_ARRAY_1
#define ASPEN_ARRAY_2 [2]
#define ASPEN_ARRAY_4 [4]
#define ASPEN_ARRAY_6 [6]
#define ASPEN_ARRAY_8 [8]
struct aspen_plan_header { ASPEN_PLAN_HEADER_FIELDS(ASPEN_FIELD_1) };
struct aspen_op { ASPEN_OP_FIELDS(ASPEN_FIELD_1) };
struct aspen_operand { ASPEN_OPERAND_FIELDS(ASPEN_FIELD_1) };
struct aspen_tile { ASPEN_TILE_FIELDS(ASPEN_FIELD_1) };
_Static_assert(sizeof(struct aspen_tile) == ASPEN_LINE, "a tile is one cache line");
_Static_assert(sizeof(struct aspen_op) == 64, "an op is one cache line");
_Static_assert(sizeof(struct aspen_operand) == 144, "operand");
_Static_assert(sizeof(struct aspen_plan_header) % ASPEN_LINE == 0, "plan header");

#endif
