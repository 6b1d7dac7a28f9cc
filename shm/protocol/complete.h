/* The end of a request: its result goes to the client, its instance is free again (docs/protocol/complete.md, "Complete", "Fail"). */
#ifndef ASPEN_COMPLETE_H
#define ASPEN_COMPLETE_H
#include <string.h>

#include "admit.h"
#include "futex.h"

/* Marks a running instance as failed; the first fault counts. The message goes straight to the slot, which is the request's until DONE. */
static inline int aspen_fail(struct aspen_station *s, uint32_t instance, uint32_t error, uint32_t op, uint64_t needed, const char *message,
                             uint32_t message_bytes) {
  struct aspen_instance *i = &s->control->instance[instance];
  if (!aspen_cas_seq(&i->fault, 0, (uint64_t)error | (uint64_t)op << 32)) return 0;
  i->needed = needed; /* read by the DSE of END, which comes after this tile by the counters' acquire-release */
  struct aspen_client_segment *c = aspen_client_mapped(s, i->client);
  if (c && message_bytes) {
    struct aspen_slot *slot = &c->slot[i->slot % ASPEN_SLOTS];
    if (message_bytes > ASPEN_MESSAGE) message_bytes = ASPEN_MESSAGE;
    memcpy(slot->message, message, message_bytes);
    aspen_store_relaxed(&slot->message_bytes, message_bytes);
  }
  return 1;
}

/* The deadline of a request has passed that does not run on when it is late. Without a deadline it costs a look at a word that every tile reads. */
static inline int aspen_overdue(const struct aspen_instance *i) { return aspen_order_timed(i->order) && aspen_now_ns() >= i->late_ns; }

/* Whether nobody wants the result of the request that runs in an instance any more: the error that it will end with, 0: somebody does. It may be that no DSE
 * has looked yet, because all are in tiles. `c`: the client's segment, NULL: it is not mapped here. */
static inline uint32_t aspen_unwanted(const struct aspen_control *control, const struct aspen_instance *i, const struct aspen_client_segment *c) {
  uint32_t error = (uint32_t)aspen_load_relaxed(&i->fault);
  if (error) return error;
  if (aspen_load_seq(&control->client[i->client % ASPEN_MAX_CLIENTS].state) != ASPEN_CLIENT_LIVE) return ASPEN_E_CLIENT_GONE;
  if (aspen_overdue(i)) return ASPEN_E_EXPIRED;
  if (!c) return ASPEN_E_OK;
  const struct aspen_slot *slot = &c->slot[i->slot % ASPEN_SLOTS];
  return aspen_load_relaxed(&slot->cancel) == i->sequence && aspen_load_relaxed(&slot->word) == ASPEN_SLOT_WORD(i->sequence, ASPEN_SLOT_RUNNING)
             ? ASPEN_E_CANCELLED
             : ASPEN_E_OK;
}

/* Writes a result, once (I9), and wakes whoever waits for it. `from` is the slot's word as the request left it: a client that scribbled there gets nothing. */
static inline void aspen_answer(struct aspen_client_segment *c, uint32_t slot, uint32_t from, uint32_t error, uint32_t op, uint64_t needed,
                                uint64_t started_ns) {
  struct aspen_slot *s = &c->slot[slot % ASPEN_SLOTS];
  if (aspen_load_relaxed(&s->word) != from) return;
  aspen_store_relaxed(&s->error, error);
  aspen_store_relaxed(&s->op, op);
  aspen_store_relaxed(&s->needed, needed);
  aspen_stat_store(&s->started_ns, started_ns);
  aspen_stat_store(&s->finished_ns, aspen_now_ns());
  if (!aspen_cas_seq(&s->word, from, ASPEN_SLOT_WORD(ASPEN_SLOT_SEQUENCE(from), ASPEN_SLOT_DONE))) return;
  if (aspen_load_seq(&s->waiters)) aspen_futex_wake(&s->word, INT_MAX);
  aspen_add_seq(&c->completions, 1);
  if (aspen_load_seq(&c->waiters)) aspen_futex_wake(&c->completions, INT_MAX);
}

/* What is learned from a request that ends. */
static inline void aspen_note_end(struct aspen_station *s, struct aspen_instance *i, uint32_t error) {
  uint64_t now = aspen_now_ns(), ran = now > i->started_ns ? now - i->started_ns : 0;
  aspen_stat_add(&i->served, 1); /* before the client knows */
  aspen_stat_add(&i->queued_ns, i->waited_ns);
  aspen_stat_add(&i->ran_ns, ran);
  uint32_t missed = i->deadline_ns && now >= i->deadline_ns;
  if (missed) aspen_stat_add(&i->missed, 1);
  if (!error || missed) /* without those that are late it would tell of the lucky ones */
    aspen_note_stretch(&s->control->turns, i->admitted_ns, aspen_stat_load(&i->expected_ns), now, (int)missed);
  if (!error) aspen_note_alone(s, i, ran);
}

/* The word `request_kept` of a region whose activations can be trusted. It is odd. Clients write even ones: 0 for a request to run whole,
 * ASPEN_REACH_TOLD. */
static inline uint32_t aspen_trust_word(const struct aspen_control *c) { return 2 * aspen_load_relaxed(&c->signals.faults) + 1; }

/* Notes that activations in a request's region are trusted from now on: all have been computed anew, or those that REACH was told of. */
static inline void aspen_trust_activations(struct aspen_station *s, uint32_t instance) {
  const struct aspen_instance *i = &s->control->instance[instance];
  const uint64_t at = s->instance[instance]->plan->header->request_kept;
  uint32_t *word = (uint32_t *)(s->segment[i->data].base + i->offset + at);
  if (at && (aspen_load_relaxed(&i->whole) || aspen_load_relaxed(word) == ASPEN_REACH_TOLD))
    aspen_store_relaxed(word, aspen_trust_word(s->control));
}

/* END was executed: every tile of the instance has been executed and every edge counted down, so nobody touches its arena any more (I10). */
static inline void aspen_complete(struct aspen_station *s, uint32_t instance, uint32_t generation) {
  struct aspen_instance *i = &s->control->instance[instance];
  if (!aspen_cas_seq(&i->word, ASPEN_STATE(generation, ASPEN_INSTANCE_RUNNING), ASPEN_STATE(generation, ASPEN_INSTANCE_DONE))) return; /* I9 */
  aspen_stat_add(&aspen_me(s)->ends, 1);
  uint64_t fault = aspen_load_relaxed(&i->fault);
  uint32_t error = (uint32_t)fault, client = i->client, plan = i->plan, data = i->data, index = i->data_index;
  aspen_note_end(s, i, error);
  if (!error) aspen_trust_activations(s, instance); /* before the client submits the next one */
  if (error == ASPEN_E_CANCELLED || error == ASPEN_E_CLIENT_GONE || error == ASPEN_E_EXPIRED) aspen_stat_add(&aspen_me(s)->cancelled, 1);
  else if (error && error != ASPEN_E_NEEDS_SPACE) aspen_stat_add(&aspen_me(s)->failed, 1);
  if (aspen_tracing(&s->trace)) aspen_note_now(&s->trace, ASPEN_TRACE_END, error, ASPEN_ITEM(generation, instance, 0)); /* before the client knows */
  struct aspen_client_segment *c = aspen_client_mapped(s, client);
  if (c)
    aspen_answer(c, i->slot, ASPEN_SLOT_WORD(i->sequence, ASPEN_SLOT_RUNNING), error, error ? (uint32_t)(fault >> 32) : ASPEN_NONE,
                 error ? i->needed : 0, i->started_ns);
  if (aspen_sub_seq(&s->control->claim.running, ASPEN_RUNNING(i->class_)) & (ASPEN_RUNNING(i->class_) - 1)) aspen_stat_add(&i->beside, 1);
  aspen_store_seq(&i->word, ASPEN_STATE(generation, ASPEN_INSTANCE_FREE));
  /* The planner process marks a plan, client or data segment as ending, then looks for running instances; we free the instance, then look for
   * the mark. */
  const struct aspen_client *owner = &s->control->client[client];
  if (aspen_load_seq(&s->control->plan[plan].state) != ASPEN_PLAN_LIVE || aspen_load_seq(&owner->state) != ASPEN_CLIENT_LIVE ||
      aspen_load_seq(&owner->data[index]) != data)
    s->drained = 1;
  aspen_add_seq(&s->control->claim.wanted, 1); /* a request may wait for the instance */
}

#endif
