/* The client's side of a request (docs/protocol/submit.md, "Submit", "Cancel"). Nothing here touches control memory (I11). */
#ifndef ASPEN_SUBMIT_H
#define ASPEN_SUBMIT_H
#include "doorbell.h"
#include "outlook.h"

struct aspen_request {
  uint32_t plan, generation, data, class_;
  uint64_t offset;
  uint32_t extent;
  uint32_t runs_on; /* late or not, the result is wanted */
  uint64_t span_ns; /* until its deadline, 0: it has none */
};

static inline void aspen_ring_as(struct aspen_client_segment *c, struct aspen_doorbell *bell) {
  uint32_t client = c->client % ASPEN_MAX_CLIENTS;
  aspen_or_seq(&bell->pending[client / 64], (uint64_t)1 << (client % 64));
  aspen_ring(bell, 1); /* always: a client cannot see how many sleep, and a wake without sleepers is a cheap system call */
}

/* Publishes a request in a FREE slot and rings. Returns the slot's sequence number. */
static inline uint32_t aspen_submit(struct aspen_client_segment *c, struct aspen_doorbell *bell, uint32_t slot,
                                    const struct aspen_request *r) {
  struct aspen_slot *s = &c->slot[slot];
  uint32_t sequence = ASPEN_SLOT_SEQUENCE(aspen_load_relaxed(&s->word));
  sequence = ASPEN_SLOT_SEQUENCE(ASPEN_SLOT_WORD(sequence + 1, 0)); /* wraps as the word does */
  aspen_store_relaxed(&s->word, ASPEN_SLOT_WORD(sequence, ASPEN_SLOT_FILLING));
  aspen_store_relaxed(&s->plan, r->plan);
  aspen_store_relaxed(&s->generation, r->generation);
  aspen_store_relaxed(&s->data, r->data);
  aspen_store_relaxed(&s->class_, r->class_);
  aspen_store_relaxed(&s->cancel, ASPEN_NONE); /* no sequence number: after a death, recovery takes the field at its word */
  aspen_store_relaxed(&s->offset, r->offset);
  aspen_store_relaxed(&s->extent, r->extent);
  aspen_stat_store(&s->span_ns, r->span_ns);
  aspen_stat_store(&s->runs_on, r->runs_on);
  aspen_stat_store(&s->submitted_ns, aspen_now_ns());
  aspen_store_release(&s->word, ASPEN_SLOT_WORD(sequence, ASPEN_SLOT_SUBMITTED)); /* after the inputs and the fields */
  aspen_or_seq(&c->pending[slot / 64], (uint64_t)1 << (slot % 64));
  aspen_ring_as(c, bell);
  return sequence;
}

/* How long a request would take that its client need not submit, because it would be refused; 0: it may be admitted. */
static inline uint64_t aspen_hopeless(struct aspen_client_segment *c, const struct aspen_request *r) {
  struct aspen_outlook o;
  uint64_t now = aspen_now_ns();
  return r->span_ns && aspen_ask(c, &o, now) && !r->runs_on ? aspen_foresee(c, &o, r->plan, r->generation, r->class_, r->span_ns, now) : 0;
}

/* Answers a request itself that nobody else has seen: it would take `predicted_ns`. DSEs hear of it for their counts. Returns the slot's sequence number. */
static inline uint32_t aspen_decline(struct aspen_client_segment *c, struct aspen_doorbell *bell, uint32_t slot, const struct aspen_request *r,
                                     uint64_t predicted_ns) {
  struct aspen_slot *s = &c->slot[slot];
  uint32_t sequence = ASPEN_SLOT_SEQUENCE(ASPEN_SLOT_WORD(ASPEN_SLOT_SEQUENCE(aspen_load_relaxed(&s->word)) + 1, 0));
  uint64_t now = aspen_now_ns();
  aspen_store_relaxed(&s->word, ASPEN_SLOT_WORD(sequence, ASPEN_SLOT_FILLING));
  aspen_store_relaxed(&s->error, ASPEN_E_TOO_LATE);
  aspen_store_relaxed(&s->op, ASPEN_NONE);
  aspen_store_relaxed(&s->needed, predicted_ns);
  aspen_store_relaxed(&s->message_bytes, 0);
  aspen_stat_store(&s->submitted_ns, now);
  aspen_stat_store(&s->started_ns, 0);
  aspen_stat_store(&s->finished_ns, now);
  aspen_store_release(&s->word, ASPEN_SLOT_WORD(sequence, ASPEN_SLOT_DONE));
  aspen_add_seq(&c->completions, 1);
  if (aspen_load_seq(&c->waiters)) aspen_futex_wake(&c->completions, INT_MAX); /* a thread that waits for any */
  aspen_add_seq(&c->declined[r->plan % ASPEN_DEMANDS], 1);
  aspen_ring_as(c, bell);
  return sequence;
}

/* Asks for the cancellation of a slot's request; it still ends with DONE. */
static inline void aspen_cancel(struct aspen_client_segment *c, struct aspen_doorbell *bell, uint32_t slot, uint32_t sequence) {
  aspen_store_relaxed(&c->slot[slot].cancel, sequence); /* so that a late look does not hit the slot's next request */
  aspen_or_seq(&c->cancel[slot / 64], (uint64_t)1 << (slot % 64));
  aspen_ring_as(c, bell);
}

/* Looks at a slot for at most `ns` until its request is done: to sleep, and to be woken, takes longer than small requests do. */
static inline void aspen_watch_slot(struct aspen_slot *s, uint64_t ns) {
  const uint64_t until = aspen_now_ns() + ns;
  uint32_t turns = 0;
  while (ASPEN_SLOT_STATE(aspen_load_acquire(&s->word)) != ASPEN_SLOT_DONE && aspen_now_ns() < until) aspen_spin(&turns);
}

/* Sleeps until the word of a slot is no longer `word`, at most `timeout_ns`. */
static inline int aspen_wait_slot(struct aspen_slot *s, uint32_t word, uint64_t timeout_ns) {
  int r = 0;
  aspen_add_seq(&s->waiters, 1); /* seq: the completing DSE stores the word, then looks at the waiters */
  if (aspen_load_seq(&s->word) == word) r = aspen_futex_wait(&s->word, word, timeout_ns);
  aspen_sub_seq(&s->waiters, 1);
  return r;
}

/* Sleeps until the count of completions is no longer `seen`. */
static inline int aspen_wait_any(struct aspen_client_segment *c, uint32_t seen, uint64_t timeout_ns) {
  int r = 0;
  aspen_add_seq(&c->waiters, 1);
  if (aspen_load_seq(&c->completions) == seen) r = aspen_futex_wait(&c->completions, seen, timeout_ns);
  aspen_sub_seq(&c->waiters, 1);
  return r;
}

/* Gives the slot of a DONE request back. */
static inline void aspen_release(struct aspen_client_segment *c, uint32_t slot) {
  struct aspen_slot *s = &c->slot[slot];
  aspen_store_relaxed(&s->word, ASPEN_SLOT_WORD(ASPEN_SLOT_SEQUENCE(aspen_load_relaxed(&s->word)), ASPEN_SLOT_FREE));
}

#endif
