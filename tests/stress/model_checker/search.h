/* The search over all interleavings of fibers, reduced where that provably misses nothing: see search.c, reduction.c. */
#ifndef SEARCH_H
#define SEARCH_H
#include "fibers.h"

struct options {
  uint64_t most;   /* states */
  uint32_t bound;  /* preemptions a schedule may have; UNBOUNDED: any number */
  int reduced;     /* leave out interleavings that only reorder independent steps */
  int symmetric;   /* fibers 0 and 1 are the same but for their names */
  int compare;     /* search with and without reduction: is anything lost by it? */
  int backwards;   /* the last fiber first: the same states in another order */
  uint32_t settled; /* fibers (a bit each) that have come to rest, one after the other, before anything else happens */
  uint32_t loops;  /* fibers (a bit each) that can get from anywhere in their code to anywhere else */
  uint32_t walks;  /* random executions that come before the search, to learn what fibers touch where */
};
enum { UNBOUNDED = UINT32_MAX };

/* Exit status: 0 every state is fine, 1 a violation (printed with its trace), 2 too many states. */
int search(const struct options *o);
void print_trace(void);

/* By the system under check. */
uint32_t holds(int i);    /* locks that fiber i holds, as memory says: a bit each. Two fibers never hold the same */
uint32_t held_by_word(const void *p); /* the bit of the lock in this word, 0: it is none */
enum { LONG_LOCKS = 16 }; /* bits from here on are given up by a plain store: no late store is under them */
uint32_t takes(const struct pending *at); /* locks that this operation takes without waiting: nobody may hold them when a fiber gets there */
const char *name_of_fiber(int i);
int breaks_symmetry(const struct pending *at); /* fiber 1 is about to do first what only fiber 0 shall do first */
void normalise(void);     /* puts 0 into what is dead */
void restored(void);      /* another state is in memory: what is a function of it, and no part of it, follows */
void check_rest(void);    /* nobody can run any more: is everything as it should be? */

#endif
