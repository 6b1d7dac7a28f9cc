/* From a submitted slot to a running instance (docs/protocol/claim.md). One DSE at a time claims, by try-lock: whoever fails to get the lock
 * has made `wanted` differ from `done` before, and the holder looks again after it let go. So nobody waits, and nothing is overlooked. */
#ifndef ASPEN_CLAIM_H
#define ASPEN_CLAIM_H
#include <string.h>

#include "admit.h"
#include "complete.h"
#include "doorbell.h"
#include "station.h"

/* Moves the doorbell's bits into control memory and says that a look is due. */
static inline void aspen_collect(struct aspen_station *s) {
  struct aspen_claim *claim = &s->control->claim;
  uint64_t any = 0;
  for (unsigned w = 0; w < ASPEN_MAX_CLIENTS / 64; w++) {
    if (!aspen_load_relaxed(&s->bell->pending[w])) continue;
    uint64_t bits = aspen_swap_seq(&s->bell->pending[w], 0);
    if (bits) aspen_or_seq(&claim->waiting[w], bits);
    any |= bits;
  }
  if (any || aspen_tell_due(s)) aspen_add_seq(&claim->wanted, 1);
}

/* A look is due and nobody is at it. */
static inline int aspen_claim_due(const struct aspen_station *s) {
  const struct aspen_claim *claim = &s->control->claim;
  return aspen_load_seq(&claim->wanted) != aspen_load_seq(&claim->done) && aspen_load_seq(&claim->lock) == 0;
}

/* ------------------------------------------------------------------------------------------------ validation */

/* Not an error to answer with: the slot names something that was announced after this process last mapped. */
#define ASPEN_E_NOT_MAPPED UINT32_MAX

/* What cannot be found here is either garbage, or so new that this process has to map it first. Having seen the submission we see every
 * announcement that came before it. */
static inline uint32_t aspen_missing(const struct aspen_station *s, uint32_t error) {
  return aspen_load_seq(&s->control->signals.attach_seq) == s->user.attached ? error : ASPEN_E_NOT_MAPPED;
}

/* Whether each extent in a word lies in its range. Without extents the word is 0. */
static inline int aspen_extents_fit(uint32_t word, uint32_t n, const uint32_t *least, const uint32_t *most) {
  for (uint32_t k = 0; k < n; k++)
    if (aspen_extent(word, n, k) < least[k] || aspen_extent(word, n, k) > most[k]) return 0;
  return n || !word;
}

/* Copies and checks a submitted slot. Returns the error to answer with, 0: good. */
static inline uint32_t aspen_candidate_read(const struct aspen_station *s, const struct aspen_client_segment *c, struct aspen_candidate *out) {
  const struct aspen_slot *slot = &c->slot[out->slot];
  const struct aspen_client *client = &s->control->client[out->client];
  out->plan = aspen_load_relaxed(&slot->plan);
  out->generation = aspen_load_relaxed(&slot->generation);
  out->class_ = aspen_load_relaxed(&slot->class_);
  out->offset = aspen_load_relaxed(&slot->offset);
  out->data = aspen_load_relaxed(&slot->data);
  out->extent = aspen_load_relaxed(&slot->extent);
  out->span_ns = aspen_stat_load(&slot->span_ns);
  out->runs_on = aspen_stat_load(&slot->runs_on);
  if (aspen_load_seq(&client->state) != ASPEN_CLIENT_LIVE) return ASPEN_E_CLIENT_GONE;
  if (out->plan == 0 || out->plan >= ASPEN_MAX_PLANS) return ASPEN_E_BAD_PLAN;
  const struct aspen_plan *plan = &s->control->plan[out->plan];
  uint32_t state = aspen_load_seq(&plan->state);
  if (state == ASPEN_PLAN_FREE) return ASPEN_E_BAD_PLAN;
  if (state != ASPEN_PLAN_LIVE || plan->generation != out->generation) return ASPEN_E_PLAN_GONE;
  if (out->class_ >= ASPEN_CLASSES) return ASPEN_E_BAD_PRIORITY;
  out->segment = out->data < ASPEN_CLIENT_DATA ? aspen_load_seq(&client->data[out->data]) : 0;
  if (out->segment == 0 || out->segment >= ASPEN_MAX_SEGMENTS) return ASPEN_E_BAD_DATA;
  const struct aspen_plan_view *view = s->plan[out->plan];
  if (!view || view->generation != out->generation) return aspen_missing(s, ASPEN_E_BAD_PLAN);
  if (!aspen_mapped(s, out->segment, ASPEN_ROLE_DATA)) return aspen_missing(s, ASPEN_E_BAD_DATA);
  if (!aspen_extents_fit(out->extent, view->n_extents, view->least, view->most)) return ASPEN_E_BAD_EXTENT;
  uint64_t bytes = s->segment[out->segment].bytes;
  if (out->offset % ASPEN_LINE || out->offset < ASPEN_DATA_FIRST || out->offset > bytes || view->request_bytes > bytes - out->offset)
    return ASPEN_E_BAD_REGION;
  return ASPEN_E_OK;
}

/* A free instance of a plan, 0: none. */
static inline uint32_t aspen_free_instance(const struct aspen_station *s, uint32_t plan) {
  const struct aspen_plan *p = &s->control->plan[plan];
  for (uint32_t k = 0; k < p->n_instances && k < ASPEN_PLAN_INSTANCES; k++) {
    uint32_t i = p->instance[k];
    if ((uint32_t)aspen_load_seq(&s->control->instance[i].word) == ASPEN_INSTANCE_FREE) return i;
  }
  return 0;
}

/* ------------------------------------------------------------------------------------------------ start */

/* Puts the first tiles of a started request into the rows of running workers, in contiguous shares so that neighbours stay together.
 * ASPEN_ATTACH leaves the rest in s->seed, to be continued after the worker has mapped what is new. */
static inline int aspen_seed(struct aspen_station *s) {
  enum { CHUNK = 64 };
  struct aspen_seed *seed = &s->seed;
  if (!seed->instance) return ASPEN_OK;
  struct aspen_control *control = s->control;
  const struct aspen_instance *instance = &control->instance[seed->instance];
  const struct aspen_plan_view *plan = s->instance[seed->instance]->plan;
  uint32_t generation = (uint32_t)(aspen_load_relaxed(&instance->word) >> 32), n_rows = control->signals.n_rows, row = s->row;
  uint64_t item[CHUNK];
  uint8_t depth[CHUNK];
  while (seed->next < seed->n) {
    uint32_t end = seed->n - seed->next < seed->share ? seed->n : seed->next + seed->share;
    while (seed->next < end) {
      uint32_t n = end - seed->next < CHUNK ? end - seed->next : CHUNK;
      for (uint32_t j = 0; j < n; j++) {
        uint32_t tile = plan->initial[seed->next + j];
        item[j] = ASPEN_ITEM(generation, seed->instance, tile);
        depth[j] = plan->tiles[tile].depth;
      }
      int r = aspen_pool_push(&control->row[row], &s->user, instance->order, item, depth, n, row != s->row);
      if (r == ASPEN_CLOSED) break;
      if (r) return r;
      seed->next += n;
    }
    do row = (row + 1) % n_rows;
    while (row != s->row && !aspen_load_relaxed(&control->row[row].open));
    if (row == s->row) seed->share = seed->n; /* been around: what closed rows refused is ours */
  }
  uint32_t n = seed->n;
  seed->instance = 0;
  int woken = 0;
  if (!aspen_stat_load(&control->signals.steal))
    woken = aspen_wake_owners(&control->idle, s->bell);
  else if (n > 1)
    woken = aspen_wake_for(&control->idle, s->bell, n - 1);
  if (woken) aspen_stat_add(&aspen_me(s)->wakes, 1);
  return ASPEN_OK;
}

/* Whether activations in a request's region cannot be trusted: no request has written them yet, or a worker may have scribbled there. With
 * ASPEN_REACH_TOLD none of them is read before it is written. */
static inline uint32_t aspen_stale_activations(const struct aspen_station *s, const struct aspen_candidate *r,
                                               const struct aspen_plan_view *plan) {
  const uint64_t at = plan->header->request_kept;
  const uint32_t word = at ? aspen_load_relaxed((uint32_t *)(s->segment[r->segment].base + r->offset + at)) : 0;
  return at && word != aspen_trust_word(s->control) && word != ASPEN_REACH_TOLD;
}

/* Starts a candidate in a free instance. The instance's fields are written before CLAIMED, so that the planner process finds it when it looks
 * for the last requests of a plan, client or data segment that ends; the marks of such an end are looked at after CLAIMED. One of the two
 * sees the other. */
static inline int aspen_start(struct aspen_station *s, struct aspen_client_segment *c, const struct aspen_candidate *r, uint32_t id) {
  struct aspen_instance *i = &s->control->instance[id];
  const struct aspen_instance_view *view = s->instance[id];
  uint64_t free_word = aspen_load_seq(&i->word);
  if ((uint32_t)free_word != ASPEN_INSTANCE_FREE) return ASPEN_OK; /* its plan was dropped after the choice: the next scan answers */
  uint32_t generation = (uint32_t)(free_word >> 32) + 1; /* no flag has it: nothing has to be cleared, so nothing can be half cleared (I2) */
  if (generation == 0) generation = 1;                   /* `executed` of a new arena is 0 */
  aspen_store_relaxed(&i->client, r->client);
  aspen_store_relaxed(&i->data, r->segment);
  i->data_index = r->data;
  i->slot = r->slot;
  i->sequence = ASPEN_SLOT_SEQUENCE(r->word);
  i->class_ = r->class_;
  i->order = aspen_place(r) | (++s->control->claim.ticket & ASPEN_ORDER_TIES); /* under the claim lock */
  i->offset = r->offset;
  i->extent = r->extent;
  i->needed = 0;
  aspen_store_relaxed(&i->whole, aspen_stale_activations(s, r, view->plan));
  i->started_ns = aspen_now_ns();
  i->waited_ns = i->started_ns > r->submitted_ns ? i->started_ns - r->submitted_ns : 0;
  i->deadline_ns = r->due_ns;
  i->late_ns = r->deadline_ns && !r->runs_on ? r->deadline_ns : UINT64_MAX;
  aspen_store_relaxed(&i->fault, 0);
  if (!aspen_cas_seq(&i->word, free_word, ASPEN_STATE(generation, ASPEN_INSTANCE_CLAIMED))) return ASPEN_OK; /* as above */
  uint32_t error = ASPEN_E_OK;
  if (aspen_load_seq(&s->control->plan[r->plan].state) != ASPEN_PLAN_LIVE) error = ASPEN_E_PLAN_GONE;
  else if (aspen_load_seq(&s->control->client[r->client].state) != ASPEN_CLIENT_LIVE) error = ASPEN_E_CLIENT_GONE;
  else if (aspen_load_seq(&s->control->client[r->client].data[r->data]) != r->segment) error = ASPEN_E_BAD_DATA;
  aspen_and_seq(&c->pending[r->slot / 64], ~((uint64_t)1 << (r->slot % 64)));
  if (error) {
    s->drained = 1; /* whoever looked while we held the instance has to look again */
    /* Not a store: the planner process may have seen the instance free before it was claimed, and taken it out of use since. */
    aspen_cas_seq(&i->word, ASPEN_STATE(generation, ASPEN_INSTANCE_CLAIMED), ASPEN_STATE(generation, ASPEN_INSTANCE_FREE));
    aspen_answer(c, r->slot, r->word, error, ASPEN_NONE, 0, 0);
    return ASPEN_OK;
  }
  aspen_store_relaxed(&c->slot[r->slot].instance, id);
  aspen_store_relaxed(&c->slot[r->slot].message_bytes, 0);
  if (!aspen_cas_seq(&c->slot[r->slot].word, r->word, ASPEN_SLOT_WORD(ASPEN_SLOT_SEQUENCE(r->word), ASPEN_SLOT_RUNNING))) {
    aspen_store_seq(&i->word, ASPEN_STATE(generation, ASPEN_INSTANCE_FREE)); /* the client scribbled over its own slot */
    s->drained = 1; /* as above */
    return ASPEN_OK;
  }
  uint32_t n = view->plan->n_initial, rows = aspen_open_rows(s);
  aspen_turn_taken(s, r, id, generation, rows);
  aspen_copy_words(view->missing, view->plan->parent_counts, sizeof(uint32_t) * view->plan->n_tiles);
  aspen_add_seq(&s->control->claim.running, ASPEN_RUNNING(i->class_));
  aspen_store_release(&i->word, ASPEN_STATE(generation, ASPEN_INSTANCE_RUNNING));
  aspen_stat_add(&aspen_me(s)->claims, 1);
  if (aspen_tracing(&s->trace))
    aspen_note(&s->trace, ASPEN_TRACE_START, r->client, ASPEN_ITEM(generation, id, 0), aspen_ticks(), aspen_stat_load(&c->slot[r->slot].submitted_ns));
  s->seed = (struct aspen_seed){.instance = id, .next = 0, .n = n, .share = (n + rows - 1) / rows};
  return aspen_seed(s);
}

/* ------------------------------------------------------------------------------------------------ scan */

/* Cancels what runs for a slot, if the slot's hint is true. Under the claim lock no instance changes hands. */
static inline void aspen_cancel_running(struct aspen_station *s, uint32_t client, uint32_t slot, uint32_t word, uint32_t id) {
  if (id == 0 || id >= ASPEN_MAX_INSTANCES) return;
  struct aspen_instance *i = &s->control->instance[id];
  if ((uint32_t)aspen_load_seq(&i->word) != ASPEN_INSTANCE_RUNNING) return;
  if (i->client == client && i->slot == slot && i->sequence == ASPEN_SLOT_SEQUENCE(word))
    aspen_cas_seq(&i->fault, 0, (uint64_t)ASPEN_E_CANCELLED | (uint64_t)ASPEN_NONE << 32);
}

/* A client is being dropped: whatever it has running becomes no-ops. */
static inline void aspen_cancel_client(struct aspen_station *s, uint32_t client) {
  for (uint32_t id = 1; id < ASPEN_MAX_INSTANCES; id++) {
    struct aspen_instance *i = &s->control->instance[id];
    if ((uint32_t)aspen_load_relaxed(&i->word) == ASPEN_INSTANCE_RUNNING && i->client == client)
      aspen_cas_seq(&i->fault, 0, (uint64_t)ASPEN_E_CLIENT_GONE | (uint64_t)ASPEN_NONE << 32);
  }
}

/* By class, then by deadline, then by turn in virtual time (aspen_place). Among those that are equal clients take turns, and each client's oldest goes first (by what
 * it says: the slot's time). */
struct aspen_choice {
  struct aspen_candidate candidate;
  uint32_t instance; /* 0: none yet */
  struct aspen_client_segment *client; /* as it was found: mapped until this process unmaps it, even if the client is freed meanwhile */
};

static inline int aspen_better(const struct aspen_candidate *a, const struct aspen_choice *b, uint32_t turn) {
  if (!b->instance) return 1;
  uint64_t pa = aspen_place(a), pb = aspen_place(&b->candidate);
  if (pa != pb) return pa < pb;
  uint32_t da = (a->client - turn) % ASPEN_MAX_CLIENTS, db = (b->candidate.client - turn) % ASPEN_MAX_CLIENTS;
  return da != db ? da < db : a->submitted_ns < b->candidate.submitted_ns;
}

/* Looks at one slot whose bit in `pending` or `cancel` was set. Answers what cannot run, notes what can. *left: it still waits. */
static inline int aspen_scan_slot(struct aspen_station *s, struct aspen_client_segment *c, uint32_t client, uint32_t number, int cancel,
                                  struct aspen_choice *choice, int *left) {
  struct aspen_slot *slot = &c->slot[number];
  uint64_t *pending = &c->pending[number / 64], bit = (uint64_t)1 << (number % 64);
  struct aspen_candidate r = {.client = client, .slot = number, .word = aspen_load_seq(&slot->word)};
  uint32_t cancelled = aspen_load_relaxed(&slot->cancel);
  if (ASPEN_SLOT_STATE(r.word) != ASPEN_SLOT_SUBMITTED) {
    /* A stale bit. Clear it first and look again after: a client that submits in between has set it anew, or is seen now. */
    aspen_and_seq(pending, ~bit);
    r.word = aspen_load_seq(&slot->word);
    if (cancel && ASPEN_SLOT_STATE(r.word) == ASPEN_SLOT_RUNNING && cancelled == ASPEN_SLOT_SEQUENCE(r.word))
      aspen_cancel_running(s, client, number, r.word, aspen_load_relaxed(&slot->instance));
    if (ASPEN_SLOT_STATE(r.word) != ASPEN_SLOT_SUBMITTED) return ASPEN_OK;
    aspen_or_seq(pending, bit);
  }
  cancel = cancel && cancelled == ASPEN_SLOT_SEQUENCE(r.word);
  uint64_t predicted_ns = 0;
  uint32_t error = cancel ? (uint32_t)ASPEN_E_CANCELLED : aspen_candidate_read(s, c, &r);
  if (error == ASPEN_E_NOT_MAPPED) return ASPEN_ATTACH;
  r.submitted_ns = aspen_stat_load(&slot->submitted_ns);
  if (!error && r.span_ns) error = aspen_admit(s, &r, &predicted_ns);
  if (error) {
    aspen_give_up(s, &r);
    aspen_and_seq(pending, ~bit);
    aspen_answer(c, number, r.word, error, ASPEN_NONE, predicted_ns, 0);
    return ASPEN_OK;
  }
  *left = 1;
  uint32_t instance = aspen_free_instance(s, r.plan);
  if (!instance) return ASPEN_OK;
  r.turn = aspen_turn(&s->control->turns, &r, s->control->plan[r.plan].model);
  if (aspen_better(&r, choice, s->control->claim.turn)) *choice = (struct aspen_choice){r, instance, c};
  return ASPEN_OK;
}

/* Looks at every slot of a client whose `waiting` bit was set; the bit stays as long as a slot waits. */
static inline int aspen_scan_client(struct aspen_station *s, uint32_t client, struct aspen_choice *choice) {
  uint64_t *waiting = &s->control->claim.waiting[client / 64], bit = (uint64_t)1 << (client % 64);
  struct aspen_client_segment *c = aspen_client_mapped(s, client);
  if (!c && aspen_missing(s, 0)) return ASPEN_ATTACH;
  aspen_and_seq(waiting, ~bit); /* before the look: what is submitted after it sets the bit anew */
  if (!c) return ASPEN_OK;     /* garbage in the doorbell page, or a client that is gone */
  if (aspen_load_seq(&s->control->client[client].state) != ASPEN_CLIENT_LIVE) aspen_cancel_client(s, client);
  int left = 0, r = ASPEN_OK;
  for (uint32_t w = 0; w < ASPEN_SLOTS / 64 && r == ASPEN_OK; w++) {
    uint64_t cancel = aspen_load_seq(&c->cancel[w]) ? aspen_swap_seq(&c->cancel[w], 0) : 0;
    for (uint64_t bits = aspen_load_seq(&c->pending[w]) | cancel; bits && r == ASPEN_OK; bits &= bits - 1)
      r = aspen_scan_slot(s, c, client, w * 64 + (uint32_t)__builtin_ctzll(bits), (cancel & bits & -bits) != 0, choice, &left);
    if (r && cancel) aspen_or_seq(&c->cancel[w], cancel); /* not looked at */
  }
  if (left || r) aspen_or_seq(waiting, bit);
  return r;
}

/* Starts everything that can start, the best first. Under the claim lock. */
static inline int aspen_claim_scan(struct aspen_station *s) {
  struct aspen_claim *claim = &s->control->claim;
  for (;;) {
    struct aspen_choice choice = {.instance = 0};
    for (uint32_t w = 0; w < ASPEN_MAX_CLIENTS / 64; w++)
      for (uint64_t bits = aspen_load_seq(&claim->waiting[w]); bits; bits &= bits - 1) {
        int r = aspen_scan_client(s, w * 64 + (uint32_t)__builtin_ctzll(bits), &choice);
        if (r) return r;
      }
    if (!choice.instance) {
      aspen_tell(s);
      return ASPEN_OK;
    }
    if (aspen_load_relaxed(&s->control->signals.epoch) != s->user.epoch) return ASPEN_EPOCH; /* I8 */
    claim->turn = choice.candidate.client + 1;
    int r = aspen_start(s, choice.client, &choice.candidate, choice.instance);
    if (r) return r;
  }
}

/* Looks for requests to start, if a look is due and nobody else is at it. */
static inline int aspen_claim(struct aspen_station *s) {
  struct aspen_claim *claim = &s->control->claim;
  for (;;) {
    if (aspen_load_seq(&claim->wanted) == aspen_load_seq(&claim->done)) return ASPEN_OK;
    if (!aspen_cas_seq(&claim->lock, 0, s->user.owner)) return ASPEN_OK; /* the holder looks again after letting go */
    uint32_t wanted = aspen_load_seq(&claim->wanted);
    int r = aspen_claim_scan(s);
    if (r == ASPEN_EPOCH) return r; /* the lock is recovery's to reset */
    if (r == ASPEN_OK) aspen_store_seq(&claim->done, wanted);
    aspen_store_seq(&claim->lock, 0);
    if (r) return r;
  }
}

#endif
