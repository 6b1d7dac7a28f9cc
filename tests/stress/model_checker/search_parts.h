/* What the parts of the search know of each other: reduction.c (which transitions to follow), states.c (what tells states apart, and which were seen),
 * search.c (the search itself). */
#ifndef SEARCH_PARTS_H
#define SEARCH_PARTS_H
#include "atomics.h"
#include "search.h"

extern const struct options *opt;

/* ------------------------------------------------------------------------------------------------ reduction.c */

extern uint32_t n_words, n_places;
extern uint32_t barring;  /* locks that some step takes */
extern int learned;       /* something new, that the closure does not know yet */
extern int stale;         /* something new since the search began: it has to be repeated */
extern uint64_t patience; /* at this many states */

uint32_t place_of(void *code, uint32_t marker, uint32_t who);
void take_note(uint64_t states);

/* Sets of transitions: bit fiber * CHOICES + choice. */
uint32_t all_enabled(void);
static inline uint32_t of_fiber(int i) { return ((1u << CHOICES) - 1) << (i * CHOICES); }
uint32_t living(uint32_t mask); /* those that are no deaths */
uint32_t without_mirror_images(uint32_t mask);
uint32_t chosen(uint32_t mask); /* those to follow */

/* ------------------------------------------------------------------------------------------------ states.c */

enum { OPEN = 0x80, FINE = 0x40 }; /* of seen_as: the search is still at work on it; from here everybody can come to rest. Other bits: preemptions used */
extern int last;          /* fiber that ran last */
extern uint32_t used;     /* preemptions */
extern size_t n_saved;    /* bytes on the stack of saved states */
extern uint64_t n_seen;
extern uint8_t *seen_as;
extern uint32_t *seen_at; /* when it was found, while the states that can lead back to it are not all known (Tarjan's groups, search.c); else 0 */

uint64_t hash(void);
size_t save(void);
void restore(size_t at);
void forget_all(void);
uint64_t find(uint64_t h);
void prefetch(uint64_t h);
uint64_t add(uint64_t h, int *known);

/* What the reduction must not lose (search() with `compare`): each fiber's local states, and states in which nobody can go on. As hashes, without buffers
 * and without what is only remembered: those differ between executions that are equivalent. */
struct facts { uint64_t *hash, n, size, rests; };
extern struct facts *facts; /* NULL: not asked for */
uint64_t *fact(struct facts *f, uint64_t h);
void note_local_states(void);
void note_rest(void);

#endif
