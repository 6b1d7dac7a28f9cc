/* How a tile that Python has executed comes back to the engine.
 *
 * The loop has returned ASPEN_REASON_OPAQUE, and `opaque` is the tile. No part of the engine runs while Python executes it.
 */
#ifndef ASPEN_OPAQUE_H
#define ASPEN_OPAQUE_H
#include "complete.h"
#include "engine/execute.h"
#include "engine/state.h"

/* Whether nobody wants the result of the opaque tile's request any more. Python asks between the steps of the tile. */
static inline int aspen_dse_unwanted(const struct aspen_dse *d) {
  const struct aspen_instance *i = &d->s.control->instance[ASPEN_ITEM_INSTANCE(d->opaque)];
  return aspen_unwanted(d->s.control, i, aspen_client_mapped(&d->s, i->client)) != ASPEN_E_OK;
}

/* Why nobody wants the result of a request. */
static inline uint32_t aspen_dse_given_up(const struct aspen_dse *d, uint32_t id) {
  const struct aspen_instance *i = &d->s.control->instance[id];
  uint32_t error = aspen_unwanted(d->s.control, i, aspen_client_mapped(&d->s, i->client));
  return error == ASPEN_E_EXPIRED ? error : ASPEN_E_CANCELLED;
}

/* Python has executed the opaque tile. */
static inline int aspen_dse_complete_opaque(struct aspen_dse *d, uint64_t item, uint32_t error, uint64_t needed, const char *message,
                                            uint32_t message_bytes) {
  uint32_t id = ASPEN_ITEM_INSTANCE(item), op = d->s.instance[id]->plan->tiles[ASPEN_ITEM_TILE(item)].op;
  uint64_t began = d->lap;
  d->opaque = 0;
  d->scratch_of = ASPEN_NONE; /* Python code ran: the content of scratch is unknown. */
  aspen_dse_lap(d, &aspen_me(&d->s)->kernel_ticks);
  aspen_dse_unpaced(d, d->lap - began);
  if (aspen_tracing(&d->s.trace)) aspen_dse_note(d, item, began, 0);
  aspen_stat_add(&aspen_me(&d->s)->opaque, 1);
  if (error == ASPEN_E_CANCELLED) error = aspen_dse_given_up(d, id); /* Python saw only that nobody wants it. */
  if (error) {
    if (error != ASPEN_E_CANCELLED && error != ASPEN_E_EXPIRED) aspen_stat_add(&aspen_me(&d->s)->faults, 1);
    aspen_fail(&d->s, id, error, op, needed, message, message_bytes);
  }
  int r = aspen_dse_finish(d, item);
  aspen_dse_lap(d, &aspen_me(&d->s)->schedule_ticks);
  return r;
}

#endif
