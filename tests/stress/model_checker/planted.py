"""Faults planted into copies of the scheduler's headers, which the model checker must find, and into its own reduction."""

from __future__ import annotations

# What is broken, where, which lines become what, and the scenario that shows it.
MUTANTS: dict[str, list[tuple[str, str, str, str, str]]] = {
    "park": [
        ("parks without a second look", "dse.h", "if (!aspen_dse_work(d)) {", "if (1) {", "single"),
        (
            "notes the count after the second look",
            "dse.h",
            "aspen_park_commit(d->s.bell, event);",
            "aspen_park_commit(d->s.bell, aspen_load_seq(&d->s.bell->event));",
            "single",
        ),
        (
            "announces itself after the second look",
            "doorbell.h",
            "  aspen_add_seq(&idle->sleepers, 1);\n"
            "  aspen_sub_seq(&idle->spinners, 1); /* a pusher that still trusted this spinner did so before our second look */\n",
            "",
            "pair",
        ),
        (
            "shows tiles with a store that may be late",
            "pool.h",
            "    aspen_store_seq(&row->first, !first",
            "    aspen_store_release(&row->first, !first",
            "lazy tso",
        ),
        ("rings without bumping the count", "doorbell.h", "  aspen_add_seq(&bell->event, 1);\n", "", "single"),
        (
            "fills others' rows without waking anyone",
            "doorbell.h",
            "  return aspen_load_seq(&idle->sleepers) ? aspen_ring(bell, INT_MAX) : 0;",
            "  return 0;",
            "lazy",
        ),
    ],
    "claim": [
        (
            "looks for the client again after it was found",
            "claim.h",
            "aspen_start(s, choice.client, ",
            "aspen_start(s, aspen_client_mapped(s, choice.candidate.client), ",
            "drop-client",
        ),
        (
            "rings before it sets its bit",
            "submit.h",
            "  aspen_or_seq(&bell->pending[client / 64], (uint64_t)1 << (client % 64));\n  aspen_ring(bell, 1);",
            "  aspen_ring(bell, 1);\n  aspen_or_seq(&bell->pending[client / 64], (uint64_t)1 << (client % 64));",
            "single",
        ),
        (
            "sets the slot's bit after it rang",
            "submit.h",
            "  aspen_or_seq(&c->pending[slot / 64], (uint64_t)1 << (slot % 64));\n  aspen_ring_as(c, bell);\n  return sequence;",
            "  aspen_ring_as(c, bell);\n  aspen_or_seq(&c->pending[slot / 64], (uint64_t)1 << (slot % 64));\n  return sequence;",
            "single",
        ),
        ("waits without saying so", "submit.h", "  aspen_add_seq(&s->waiters, 1); /* seq", "  /* seq", "single"),
        ("collects the doorbell's bits without a word", "claim.h", "  if (any) aspen_add_seq(&claim->wanted, 1);", "", "single"),
        ("forgets who waits for an instance", "claim.h", "  if (left || r) aspen_or_seq(waiting, bit);", "", "queued"),
        (
            "clears the pending bit after the look",
            "claim.h",
            "    aspen_and_seq(pending, ~bit);\n    r.word = aspen_load_seq(&slot->word);\n",
            "    r.word = aspen_load_seq(&slot->word);\n    aspen_and_seq(pending, ~bit);\n",
            "recancel",
        ),
        (
            "clears the waiting bit after the look",
            "claim.h",
            "  if (left || r) aspen_or_seq(waiting, bit);",
            "  if (left || r) aspen_or_seq(waiting, bit);\n  else aspen_and_seq(waiting, ~bit);",
            "queued",
        ),
        ("claims without the lock", "claim.h", "if (!aspen_cas_seq(&claim->lock, 0, s->user.owner)) return ASPEN_OK;", "", "beside"),
        (
            "notes what it has done at the end of the scan",
            "claim.h",
            "aspen_store_seq(&claim->done, wanted);",
            "aspen_store_seq(&claim->done, aspen_load_seq(&claim->wanted));",
            "queued",
        ),
        (
            "does not reset the counters",
            "claim.h",
            "  aspen_copy_words(view->missing, view->plan->parent_counts, sizeof(uint32_t) * view->plan->n_tiles);\n",
            "",
            "single",
        ),
        (
            "shows the tiles before their counters",
            "claim.h",
            "  aspen_copy_words(view->missing, view->plan->parent_counts, sizeof(uint32_t) * view->plan->n_tiles);\n",
            "  s->seed = (struct aspen_seed){.instance = id, .next = 0, .n = view->plan->n_initial, .share = 1};\n  aspen_seed(s);\n"
            "  aspen_copy_words(view->missing, view->plan->parent_counts, sizeof(uint32_t) * view->plan->n_tiles);\n",
            "pair",
        ),
    ],
    "pool": [
        ("forgets a queue's bit", "pool.h", "    aspen_store_guarded(&lane->mask, mask | bit);\n", "", "single"),
        ("forgets a lane's bit", "pool.h", "    aspen_store_guarded(&row->busy, busy | (empty & -empty));\n", "", "single"),
        ("believes what an empty lane holds", "pool.h", "    aspen_store_guarded(&lane->mask, 0);\n", "", "single deaths=1,0"),
        (
            "does not say whose lane it is",
            "pool.h",
            "  if (empty || lane == younger) aspen_store_guarded(&lane->order, order);\n",
            "",
            "single",
        ),
        ("puts a request's tiles into another's lane", "pool.h", "if (other == order) return lane;", "return lane;", "beside"),
        (
            "says that a request is there whose last tile it takes",
            "pool.h",
            "  aspen_store_relaxed(&row->first, aspen_row_oldest(row));\n}",
            "  if (!aspen_load_guarded(&row->busy)) aspen_store_relaxed(&row->first, 0);\n}",
            "beside",
        ),
        (
            "hides a row's other requests when one's last tile is taken",
            "pool.h",
            "&row->first, aspen_row_oldest(row));\n}",
            "&row->first, 0);\n}",
            "beside",
        ),
        ("does not count a request as running", "claim.h", "  aspen_add_seq(&s->control->claim.running, 1);\n", "", "single"),
        ("does not count a request as complete", "complete.h", "  aspen_sub_seq(&s->control->claim.running, 1);\n", "", "single"),
        (
            "takes no row lock at all",
            "pool.h",
            "const struct aspen_user *u) {\n  uint32_t turns = 0;",
            "const struct aspen_user *u) {\n  return ASPEN_OK;\n  uint32_t turns = 0;",
            "single",
        ),
        (
            "leaves an emptied row marked",
            "pool.h",
            "    aspen_row_emptied(row, lane, 1u << depth);",
            "    (void)0;",
            "single",
        ),
        (
            "keeps the lock of a row that it finds empty",
            "pool.h",
            "  aspen_row_unlock(row);\n  return r;\n}\n\n#endif",
            "  if (r != ASPEN_EMPTY) aspen_row_unlock(row);\n  return r;\n}\n\n#endif",
            "pair",
        ),
        (
            "keeps the claim lock when it has to map first",
            "claim.h",
            "    aspen_store_seq(&claim->lock, 0);\n    if (r) return r;",
            "    if (r) return r;\n    aspen_store_seq(&claim->lock, 0);",
            "attach",
        ),
        (
            "takes the last item of a queue and leaves it as its end",
            "pool.h",
            "    if (!after) aspen_store_guarded(&q->tail, before);\n",
            "",
            "rush crowded shares walks=30000",
        ),
        (
            "leaves what it takes from within a queue",
            "pool.h",
            "    aspen_store_guarded(aspen_link(u, before), after);\n",
            "",
            "pair shares",
        ),
        (
            "loses the tile that it leaves to those whose share it is",
            "dse.h",
            "  ready->item[0] = best;\n",
            "",
            "diamond shares",
        ),
        ("thieves do not lock", "pool.h", "thief ? (aspen_row_trylock(row, u) ? ASPEN_OK : ASPEN_BUSY)", "thief ? ASPEN_OK", "pair"),
        (
            "pops by what it saw before it had the lock",
            "pool.h",
            "  int r = thief ? (aspen_row_trylock(row, u) ? ASPEN_OK : ASPEN_BUSY) : aspen_row_lock(row, u);\n"
            "  if (r) return r;\n  if (!aspen_load_relaxed(&row->first)) r = ASPEN_EMPTY;",
            "  int r = thief ? (aspen_row_trylock(row, u) ? ASPEN_OK : ASPEN_BUSY) : aspen_row_lock(row, u);\n  if (r) return r;",
            "pair",
        ),
    ],
    "complete": [
        (
            "counts down in two steps",
            "dse.h",
            "if (aspen_sub_acq_rel(&v->missing[child], 1) != 1) continue;",
            "uint32_t m = aspen_load_relaxed(&v->missing[child]); aspen_store_relaxed(&v->missing[child], m - 1); if (m != 1) continue;",
            "pair",
        ),
        (
            "pushes every child that it counts down",
            "dse.h",
            "if (aspen_sub_acq_rel(&v->missing[child], 1) != 1) continue;",
            "aspen_sub_acq_rel(&v->missing[child], 1);",
            "diamond",
        ),
        (
            "loses what is ready beside the tile that follows",
            "dse.h",
            "  return aspen_dse_push(d, &ready);",
            "  return ASPEN_OK;",
            "diamond",
        ),
        (
            "frees the instance before the answer",
            "complete.h",
            "ASPEN_STATE(generation, ASPEN_INSTANCE_DONE))) return; /* I9 */",
            "ASPEN_STATE(generation, ASPEN_INSTANCE_FREE))) return;",
            "queued",
        ),
        (
            "loses the wake-up at END: a request waits for the instance",
            "complete.h",
            "  aspen_add_seq(&s->control->claim.wanted, 1); /* a request may wait for the instance */\n",
            "",
            "queued",
        ),
        (
            "loses the wake-up at END: the client waits for the answer",
            "complete.h",
            "  if (aspen_load_seq(&s->waiters)) aspen_futex_wake(&s->word, INT_MAX);\n",
            "",
            "single",
        ),
        (
            "looks for waiting clients before the answer",
            "complete.h",
            "  if (!aspen_cas_seq(&s->word, from, ASPEN_SLOT_WORD(ASPEN_SLOT_SEQUENCE(from), ASPEN_SLOT_DONE))) return;\n"
            "  if (aspen_load_seq(&s->waiters))",
            "  uint32_t waiters = aspen_load_seq(&s->waiters);\n"
            "  if (!aspen_cas_seq(&s->word, from, ASPEN_SLOT_WORD(ASPEN_SLOT_SEQUENCE(from), ASPEN_SLOT_DONE))) return;\n  if (waiters)",
            "single",
        ),
    ],
    "leave": [
        (
            "leaves with tiles in hand",
            "dse.h",
            "(aspen_dse_put_back(d) || aspen_dse_admit(d) || aspen_dse_leave(d))",
            "(aspen_dse_leave(d))",
            "hold",
        ),
        (
            "leaves without what it could not push",
            "dse.h",
            "(aspen_dse_put_back(d) || aspen_dse_admit(d) || aspen_dse_leave(d))",
            "(aspen_dse_put_back(d), aspen_dse_leave(d))",
            "hold",
        ),
        (
            "takes nothing from closed rows",
            "dse.h",
            "return aspen_stat_load(&d->s.control->signals.steal) || !aspen_load_seq(&row->open);",
            "return aspen_stat_load(&d->s.control->signals.steal);",
            "bequeath",
        ),
        (
            "closes its row with a store that may be late",
            "dse.h",
            "aspen_store_seq(&aspen_own_row(&d->s)->open, open);",
            "aspen_store_relaxed(&aspen_own_row(&d->s)->open, open);",
            "bequeath tso",
        ),
        (
            "leaves without waking anyone",
            "dse.h",
            "  if (aspen_load_seq(&idle->sleepers) && aspen_dse_work(d)) aspen_dse_ring(d, 1);\n",
            "",
            "leave",
        ),
        (
            "leaves without uncounting itself",
            "dse.h",
            "    aspen_sub_seq(&idle->spinners, 1);\n  }\n",
            "  }\n",
            "leave",
        ),
    ],
    "attach": [
        (
            "follows links into what it has not mapped",
            "pool.h",
            "  else if (!aspen_row_mapped(u)) r = ASPEN_ATTACH;\n  else *item",
            "  else *item",
            "attach",
        ),
        (
            "refuses what it has not mapped",
            "claim.h",
            "== s->user.attached ? error : ASPEN_E_NOT_MAPPED;",
            "== s->user.attached ? error : error;",
            "attach",
        ),
        ("sleeps through an announcement", "dse.h", " || aspen_load_seq(&g->attach_seq) != d->s.user.attached", "", "announce"),
        (
            "claims what is being dropped",
            "claim.h",
            "  if (aspen_load_seq(&s->control->plan[r->plan].state) != ASPEN_PLAN_LIVE) error = ASPEN_E_PLAN_GONE;\n  else if",
            "  if",
            "drop workers=1",
        ),
        (
            "withdraws a claim with a store",
            "claim.h",
            "    aspen_cas_seq(&i->word, ASPEN_STATE(generation, ASPEN_INSTANCE_CLAIMED), ASPEN_STATE(generation, ASPEN_INSTANCE_FREE));",
            "    aspen_store_seq(&i->word, ASPEN_STATE(generation, ASPEN_INSTANCE_FREE));",
            "drop workers=1",
        ),
        ("withdraws a claim without a word", "claim.h", "    s->drained = 1; /* whoever looked", "    /* whoever looked", "drop workers=1"),
        ("frees a spoilt slot's instance without a word", "claim.h", "    s->drained = 1; /* as above */\n", "", "spoil"),
        (
            "sleeps on what the planner process waits for",
            "dse.h",
            "r == ASPEN_EMPTY && !d->s.drained",
            "r == ASPEN_EMPTY",
            "drop workers=1",
        ),
        (
            "frees the instance with a store that may be late",
            "complete.h",
            "  aspen_store_seq(&i->word, ASPEN_STATE(generation, ASPEN_INSTANCE_FREE));",
            "  aspen_store_release(&i->word, ASPEN_STATE(generation, ASPEN_INSTANCE_FREE));",
            "drop tso",
        ),
        (
            "marks the end with a store that may be late",
            "table.h",
            "  aspen_store_seq(&c->client[client].data[index], 0);",
            "  aspen_store_release(&c->client[client].data[index], 0);",
            "drop-data tso",
        ),
        (
            "does not say that a data segment is free",
            "complete.h",
            " ||\n      aspen_load_seq(&owner->data[index]) != data)",
            ")",
            "drop-data",
        ),
    ],
    "epoch": [
        (
            "marks a tile as executed after it has counted down its children",
            "dse.h",
            (
                "  aspen_store_release(&v->executed[tile], generation);\n"
                "  struct aspen_batch ready = {.order = aspen_dse_order(d, item)};\n"
                "  uint64_t best = 0;\n"
                "  uint32_t best_rank = 0;\n"
                "  for (uint32_t k = 0; k < t->n_children; k++) {\n"
                "    uint32_t child = v->plan->children[t->children + k];\n"
                "    if (aspen_sub_acq_rel(&v->missing[child], 1) != 1) continue;\n"
            ),
            (
                "  struct aspen_batch ready = {.order = aspen_dse_order(d, item)};\n"
                "  uint64_t best = 0;\n"
                "  uint32_t best_rank = 0;\n"
                "  if (!t->n_children) aspen_store_release(&v->executed[tile], generation);\n"
                "  for (uint32_t k = 0; k < t->n_children; k++) {\n"
                "    uint32_t child = v->plan->children[t->children + k];\n"
                "    uint32_t was = aspen_sub_acq_rel(&v->missing[child], 1);\n"
                "    if (k + 1 == t->n_children) aspen_store_release(&v->executed[tile], generation);\n"
                "    if (was != 1) continue;\n"
            ),
            "diamond deaths=1,0",
        ),
        (
            "keeps the tile in hand when it parks",
            "dse.h",
            "  d->follow = d->opaque = 0;\n  d->held.n = 0;\n",
            "  d->opaque = 0;\n  d->held.n = 0;\n",
            "diamond deaths=1,0",
        ),
        ("goes on seeding when it has parked", "dse.h", "  d->s.seed.instance = 0;\n  d->looking", "  d->looking", "pair deaths=1,0"),
        (
            "uncounts itself after it has parked",
            "dse.h",
            "  d->looking = 0; /* aspen_epoch_end",
            "  /* aspen_epoch_end",
            "single deaths=1,0",
        ),
        (
            "goes on while the epoch is odd",
            "dse.h",
            "    aspen_futex_wait(&g->epoch, epoch, ASPEN_FOREVER);\n",
            "    d->s.user.epoch = epoch;\n    return;\n",
            "single deaths=1,0",
        ),
        (
            "parks with a tile in hand",
            "dse.h",
            "    if (aspen_load_acquire(&d->s.control->signals.epoch) != d->s.user.epoch) aspen_dse_epoch(d);\n    int asked",
            (
                "    uint32_t epoch = aspen_load_acquire(&d->s.control->signals.epoch);\n"
                "    if (epoch & 1) aspen_store_release(&me->parked, epoch);\n"
                "    if (epoch & 1) aspen_dse_put_back(d);\n"
                "    if (epoch != d->s.user.epoch) aspen_dse_epoch(d);\n    int asked"
            ),
            "diamond deaths=1,0",
        ),
        (
            "sleeps through an epoch",
            "dse.h",
            "  if (aspen_load_seq(&g->epoch) != d->s.user.epoch || aspen_load_seq(&g->attach_seq)",
            "  if (aspen_load_seq(&g->attach_seq)",
            "single deaths=1,0",
        ),
        (
            "waits for a dead worker's lock",
            "pool.h",
            "    if (aspen_load_relaxed(&u->signals->epoch) != u->epoch) return ASPEN_EPOCH;\n",
            "",
            "pair deaths=1,0",
        ),
        (
            "joins while the world stands still",
            "dse.h",
            "    if (aspen_load_seq(&d->s.control->signals.epoch) != d->s.user.epoch) aspen_dse_epoch(d);\n  } while",
            "  } while",
            "single deaths=1,0 early",
        ),
        (
            "joins before it says so",
            "dse.h",
            "  aspen_store_seq(&aspen_me(&d->s)->state, ASPEN_WORKER_RUNNING);\n",
            "",
            "single deaths=1,0 early",
        ),
        (
            "says that it runs with a store that may be late",
            "dse.h",
            "aspen_store_seq(&aspen_me(&d->s)->state, ASPEN_WORKER_RUNNING);",
            "aspen_store_release(&aspen_me(&d->s)->state, ASPEN_WORKER_RUNNING);",
            "single deaths=1,0 early tso",
        ),
        (
            "does not wait until others have parked",
            "recover.h",
            "  return (state == ASPEN_WORKER_RUNNING || state == ASPEN_WORKER_LEAVING) &&",
            "  return 0 &&",
            "single deaths=1,0",
        ),
        (
            "does not wait for one that leaves",
            "recover.h",
            "(state == ASPEN_WORKER_RUNNING || state == ASPEN_WORKER_LEAVING)",
            "(state == ASPEN_WORKER_RUNNING)",
            "leave deaths=1,0",
        ),
        (
            "takes a worker that has stopped for one that has ended",
            "roles.c",
            "(gone[w] != STAYS) << w",
            "(gone[w] != STAYS || (chief.stopping && aspen_epoch_late(&control, (uint32_t)w))) << w",
            "single deaths=1,0",
        ),
        ("ends an epoch without waking anyone", "recover.h", "  aspen_futex_wake(&c->signals.epoch, INT_MAX);\n", "", "single deaths=1,0"),
        ("begins an epoch without waking anyone", "recover.h", "  aspen_wake_all(bell);\n", "", "single deaths=1,0"),
        ("counts sleepers that have parked", "recover.h", "  aspen_store_relaxed(&c->idle.sleepers, 0);\n", "", "single deaths=1,0"),
        ("counts spinners that have died", "recover.h", "  aspen_store_relaxed(&c->idle.spinners, 0);\n", "", "single deaths=1,0"),
    ],
    "recover": [
        ("keeps the rows' locks", "recover.h", "    aspen_store_relaxed(&c->row[r].lock, 0);\n", "", "single deaths=1,0"),
        ("keeps the claim's lock", "recover.h", "  aspen_store_relaxed(&c->claim.lock, 0);\n", "", "single deaths=1,0"),
        (
            "keeps what is queued",
            "recover.h",
            "    aspen_store_relaxed(&c->row[r].first, 0);\n    aspen_store_relaxed(&c->row[r].busy, 0);\n",
            "",
            "single deaths=1,0",
        ),
        ("keeps which lanes are busy", "recover.h", "    aspen_store_relaxed(&c->row[r].busy, 0);\n", "", "single deaths=1,0"),
        ("does not count anew what runs", "recover.h", "  aspen_store_relaxed(&c->claim.running, running);\n", "", "single deaths=1,0"),
        (
            "forgets who waited to be looked at",
            "recover.h",
            "aspen_store_relaxed(&c->claim.waiting[w], w ? 0 : (uint64_t)2);",
            "aspen_store_relaxed(&c->claim.waiting[w], aspen_load_relaxed(&c->claim.waiting[w]));",
            "single deaths=1,0",
        ),
        (
            "does not say that there is something to claim",
            "recover.h",
            "  aspen_store_relaxed(&c->claim.wanted, aspen_load_relaxed(&c->claim.done) + 1);\n",
            "",
            "single deaths=1,0",
        ),
        ("keeps the counters", "recover.h", "    v->missing[n] = lacking;\n", "", "diamond deaths=1,0"),
        (
            "overlooks a parent",
            "recover.h",
            "k < v->begin[n + 1]; k++) lacking",
            "k + 1 < v->begin[n + 1]; k++) lacking",
            "diamond deaths=1,0",
        ),
        (
            "queues what still waits for a parent",
            "recover.h",
            "    if (!lacking) aspen_recover_push",
            "    aspen_recover_push",
            "diamond deaths=1,0",
        ),
        (
            "takes a flag of an earlier request for this one's",
            "recover.h",
            "    if (v->executed[n] == generation) continue;",
            "    if (v->executed[n]) continue;",
            "again deaths=1,0",
        ),
        (
            "counts a parent's flag of an earlier request",
            "recover.h",
            "lacking += v->executed[v->parents[k]] != generation;",
            "lacking += !v->executed[v->parents[k]];",
            "again deaths=1,0",
        ),
        (
            "forgets a claim",
            "recover.h",
            "      case ASPEN_INSTANCE_CLAIMED: aspen_recover_claimed(r, i, generation); break;\n",
            "",
            "single deaths=1,0",
        ),
        (
            "gives a claim up, but not its slot",
            "recover.h",
            "    aspen_cas_seq(&c->slot[i->slot % ASPEN_SLOTS].word, aspen_recovery_running(i), ",
            "    (void)(aspen_recovery_running(i) + ",
            "single deaths=1,0",
        ),
        (
            "forgets a request that is at its end",
            "recover.h",
            "      case ASPEN_INSTANCE_DONE: aspen_recover_done(r, id, generation, restart); break;\n",
            "",
            "single deaths=1,0",
        ),
        (
            "executes nothing again when END was",
            "recover.h",
            "    aspen_recover_answer(r, i, generation);\n    return;\n",
            "    return;\n",
            "single deaths=1,0",
        ),
        (
            "frees without an answer",
            "recover.h",
            "  if (c)\n    aspen_answer(c, i->slot, aspen_recovery_running(i), error,",
            "  if (0)\n    aspen_answer(c, i->slot, aspen_recovery_running(i), error,",
            "single deaths=1,0",
        ),
        (
            "does not wake a client once more",
            "recover.h",
            "    if (state == ASPEN_SLOT_DONE && aspen_load_seq(&c->slot[k].waiters)) aspen_futex_wake(&c->slot[k].word, INT_MAX);\n",
            "",
            "single deaths=1,0",
        ),
        (
            "does not mark a submission once more",
            "recover.h",
            "    if (state == ASPEN_SLOT_SUBMITTED) aspen_or_seq(&c->pending[k / 64], bit);\n",
            "",
            "single deaths=1,0",
        ),
        (
            "trusts what may have been overwritten",
            "roles.c",
            "  aspen_recover(&r, (int)chief.restart);",
            "  aspen_recover(&r, 0);",
            "single deaths=1,0 scribbles",
        ),
        (
            "keeps flags that may have been overwritten",
            "recover.h",
            "  if (aspen_recovery_view(r, id, &v)) memset(v.executed, 0, sizeof *v.executed * v.header->n_tiles);",
            "  (void)v;",
            "again deaths=1,0 scribbles",
        ),
        (
            "answers with what may have been overwritten",
            "recover.h",
            "  if (restart && c && aspen_load_seq",
            "  if (0 && c && aspen_load_seq",
            "single deaths=1,0 scribbles",
        ),
    ],
}


# The same for reduction.c: what makes it leave out too much.
REDUCTION = [
    ("reads conflict with nothing", "by_read = reads.bits[k] & written->bits[k];", "by_read = 0;", "single"),
    ("writes conflict with nothing", "by_write = writes.bits[k] & (touched->bits[k] | written->bits[k])", "by_write = 0", "single"),
    ("every lock guards every word", "  if (!(locks[w] & ~held)) return;\n", "  return;\n", "single"),
    ("what comes later in the code conflicts with nothing", "  for (int more = 1; more;) {\n", "  for (int more = 0; more;) {\n", "single"),
    ("late stores conflict with nothing", "  if (writes_late)\n", "  if (0)\n", "scribble tso"),
    ("deaths do not wait for late stores", " || (fiber[i].n_buffer && dies_here(i))", "", "cancel workers=1 deaths=1 tso"),
]
