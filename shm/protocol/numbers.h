/* Numbers that several parts compute with, each written once: the engine and the simulator that foretells it, kernels and the planner that
 * packs weights, reserves memory and reckons costs for them. Python reads ASPEN_NUMBERS as `aspen_mp.shm.tables.NUMBERS`. What segments look
 * like does not depend on them (layout.h).
 */
#ifndef ASPEN_NUMBERS_H
#define ASPEN_NUMBERS_H

/* Scheduling: pool.h, workers/engine, planner/simulation/simulate.h. */
#define ASPEN_SHARES 65536 /* `share` of aspen_user: of so many */
#define ASPEN_WALK 1024    /* items of a queue that all workers together look through, who wait for each other meanwhile */
#define ASPEN_SLOWER 1.25  /* cores that differ by less are alike: estimates of tiles are no better */
#define ASPEN_UNDERWAY 0.5 /* of a tile, what a faster core has still to do of the one that it runs, on average */
#define ASPEN_LENT 32      /* a lower class gets one part of the time of higher ones in so many: 3 %, which nobody notices */
#define ASPEN_PATIENCE 4   /* tiles: a faster core may have begun a long one; by simulation, more gains nothing */

/* Kernels. Packed weights: */
#define ASPEN_NR 32          /* width of a packed weight panel, the same on every ISA so that a plan fits all of them */
#define ASPEN_UNITS 16       /* of a panel of recurrent weights */
#define ASPEN_BYTES_GROUP 4  /* terms of packed bytes that lie side by side, … */
#define ASPEN_BYTES_HEADER 3 /* … and groups in front of each of their panels */
#define ASPEN_EQUAL_BIT 29   /* flags beside the feature of a tree's node: equal values alone go on to the second child, … */
#define ASPEN_MISSING_BIT 30 /* … and so do values that are missing */
/* What is computed at a time, which scratch memory, costs or errors depend on: */
#define ASPEN_MAX_ROWS 14                  /* rows of a product, the most of any ISA */
#define ASPEN_KEYS 512                     /* keys of ATTENTION */
#define ASPEN_PACK_ROWS 24                 /* from so many rows on ATTENTION packs V, too */
#define ASPEN_SEVEN_PAIRS 128              /* pairs of rows of Strassen's products, for which right factors are made */
#define ASPEN_SEVEN_PART 192               /* terms of a half, at most, of Strassen's products: so many of all factors stay in L2 */
#define ASPEN_WINO_PART 256                /* terms of a product of WINO */
#define ASPEN_WINO_FEW_WEIGHTS (4 << 20)   /* bytes of all: above, what counts is that each chunk reads them; below, that a chunk stays in L2 */
#define ASPEN_WINO_CHUNK_BYTES (600 << 10) /* transformed input of a chunk, about, … */
#define ASPEN_WINO_CHUNK_PRODUCTS 1008     /* … and its blocks times their products, at most, with few weights … */
#define ASPEN_WINO_LARGE_BYTES (4 << 20)   /* … and bytes and blocks with many */
#define ASPEN_WINO_LARGE_MOST 64
#define ASPEN_WINO_LEAST 16                /* blocks, in any case */

/* Programs of STACK (workers/kernels/conv/stack.c): */
#define ASPEN_ANY_PARAMS 65535  /* in ASPEN_KERNELS: the op says how many parameters it has */
#define ASPEN_ANY_OUTPUTS 65535 /* … and outputs, of which there is one at least */
#define ASPEN_STACK_STEPS 48    /* of a program, at most */
#define ASPEN_STACK_REFS 6      /* inputs of a step, at most */
#define ASPEN_STACK_WORDS 31    /* of a step: kernel, inputs, height and width of its image, output, REFS inputs, parameters of the kernel */
#define ASPEN_STACK_IMAGES 15   /* among the inputs, at most: each may have to be copied */
#define ASPEN_STACK_OUTPUT 4    /* where a step's words say which output it makes, -1: none */
#define ASPEN_STACK_OUTPUTS 8   /* at most */
#define ASPEN_STACK_CHANNELS 16 /* that run through the program at a time */

/* Changed boxes of a model's inputs, as REACH reads them (workers/kernels/movement/reach.c): */
#define ASPEN_REACH_LINE 64 /* bytes in front of them, which begin with the word `request_kept` */
#define ASPEN_REACH_BOXES 32 /* of an input or a step, at most */
#define ASPEN_REACH_WORDS 513 /* i32 of an input: the number of boxes, then 8 lower and 8 upper bounds of each */
#define ASPEN_REACH_ARRIVING -1 /* instead of input 0's number: inputs arrive; box 0 of each is missing now, box 1 was before */
#define ASPEN_REACH_FIRST -2 /* the same, and nothing has been computed before */
#define ASPEN_REACH_TOLD 2 /* in the word `request_kept`: only the parts that REACH finds are to run, whatever the activations are */

#define ASPEN_NUMBERS(X)                                                                                                           \
  X(NR) X(UNITS) X(BYTES_GROUP) X(BYTES_HEADER) X(EQUAL_BIT) X(MISSING_BIT) X(MAX_ROWS) X(KEYS) X(PACK_ROWS) X(SEVEN_PAIRS)         \
  X(SEVEN_PART) X(WINO_PART) X(WINO_FEW_WEIGHTS) X(WINO_CHUNK_BYTES) X(WINO_CHUNK_PRODUCTS) X(WINO_LARGE_BYTES)                     \
  X(WINO_LARGE_MOST) X(WINO_LEAST) X(ANY_PARAMS) X(ANY_OUTPUTS) X(STACK_STEPS) X(STACK_REFS) X(STACK_WORDS) X(STACK_IMAGES)             \
  X(STACK_OUTPUT) X(STACK_OUTPUTS) X(STACK_CHANNELS) X(REACH_LINE) X(REACH_BOXES) X(REACH_WORDS)                    \
  X(REACH_ARRIVING) X(REACH_FIRST) X(REACH_TOLD)

#endif
