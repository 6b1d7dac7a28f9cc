"""Faults planted into copies of the headers, of the tests' own planner process, and of their memory plans: a storm or the crash points must
find each."""

from __future__ import annotations

from dataclasses import dataclass

POINTS = "points 1 3 watchdog=1500"
CLAIM, COMPLETE = f"{POINTS} at=claim.h", f"{POINTS} at=complete.h"
STORM = "storm 1 4 1000000000 25 watchdog=1500"
STOPS = "storm 1 4 1000000000 25 watchdog=1500 stops=60"


@dataclass(frozen=True, slots=True)
class Fault:
    """`changes`: file, lines, what they become. `command`: what finds it. `sign`: what its output must have."""

    what: str
    changes: tuple[tuple[str, str, str], ...]
    command: str = POINTS
    sign: str = "WRONG: "


def _one(what: str, name: str, old: str, new: str, command: str = POINTS, sign: str = "WRONG: ") -> Fault:
    return Fault(what, ((name, old, new),), command, sign)


FAULTS = [
    # The invariants of tiles and memory plans.
    Fault(
        "sets the flag after the counters",
        (
            ("finish.h", "  aspen_store_release(&v->executed[tile], generation);", ""),
            (
                "finish.h",
                "  return aspen_dse_push(d, &ready);\n",
                "  int r = aspen_dse_push(d, &ready);\n  aspen_store_release(&v->executed[tile], generation);\n  return r;\n",
            ),
        ),
        STOPS,
    ),
    _one("tiles overwrite what they read", "graphs.h", "#if defined(PLANT_IN_PLACE)", "#if 1", STORM),
    _one("takes buffers over without waiting for their readers", "graphs.h", "#if defined(PLANT_REUSE)", "#if 1", STORM),
    _one(
        "lists of parents lack some",
        "graphs.h",
        "      if (g->edge[s][t]) parents[",
        "      if (g->edge[s][t] && (s + t) % 5) parents[",
        STORM,
    ),
    # Stopping the world.
    _one("does not wait for parking", "supervise.h", "  stop_the_world();\n", "  reap();\n", STORM),
    Fault(
        "leaves stopped workers to themselves",
        (
            (
                "supervise.h",
                "if (!aspen_epoch_late(&world->control, r)) continue;",
                "if (!aspen_epoch_late(&world->control, r) || row_of[r].stopped) continue;",
            ),
            (
                "supervise.h",
                "      end_worker(r, SIGKILL);\n      row_of[r].kill_at = 0;",
                "      end_worker(r, SIGCONT);\n      row_of[r].stopped = 0;",
            ),
        ),
        STOPS,
    ),
    _one(
        "waits for a lock whatever happens",
        "pool.h",
        "    if (aspen_load_relaxed(&u->signals->epoch) != u->epoch) return ASPEN_EPOCH;",
        "",
        POINTS,
        r"(?m)^(WRONG: |ended because they did not park: [1-9])",
    ),
    _one("parks with a tile to follow in hand", "epoch.h", "  d->follow = d->opaque = 0;", "  d->opaque = 0;", STORM),
    _one("parks with a request to seed in hand", "epoch.h", "  d->s.seed.instance = 0;\n", ""),
    _one("parks with tiles to push in hand", "epoch.h", "  d->held.n = 0;\n  d->s.seed", "  d->s.seed", STORM),
    _one("parks counted as looking for work", "epoch.h", "  d->looking = 0; /* aspen", "  /* aspen", POINTS),
    _one("keeps the counts of idle workers", "recover.h", "  aspen_store_relaxed(&c->idle.sleepers, 0);\n", ""),
    # Making anew.
    _one(
        "keeps the queues", "recover.h", "    aspen_store_relaxed(&c->row[r].first, 0);\n    aspen_store_relaxed(&c->row[r].busy, 0);\n", ""
    ),
    _one("keeps the lanes", "recover.h", "    aspen_store_relaxed(&c->row[r].busy, 0);\n", ""),
    _one("keeps the locks of rows", "recover.h", "    aspen_store_relaxed(&c->row[r].lock, 0);\n", ""),
    _one("keeps the claim lock", "recover.h", "  aspen_store_relaxed(&c->claim.lock, 0);\n", ""),
    _one(
        "keeps the list of waiting clients",
        "recover.h",
        "aspen_store_relaxed(&c->claim.waiting[w], ~(uint64_t)0);",
        "(void)c;",
    ),
    _one("keeps the counters", "recover.h", "    v->missing[n] = lacking;\n", ""),
    _one(
        "takes any flag for this request's",
        "recover.h",
        "lacking += v->executed[v->parents[k]] != generation;",
        "lacking += v->executed[v->parents[k]] == 0;",
    ),
    _one("executes tiles twice", "recover.h", "    if (v->executed[n] == generation) continue;\n", ""),
    _one(
        "forgets a request that was being claimed",
        "recover.h",
        "      case ASPEN_INSTANCE_CLAIMED: aspen_recover_claimed(r, i, generation); break;\n",
        "",
        CLAIM,
    ),
    _one(
        "leaves the slot of a request that was being claimed",
        "recover.h",
        "  if (c)\n    aspen_cas_seq(&c->slot[i->slot % ASPEN_SLOTS].word, aspen_recovery_running(i)",
        "  if (0)\n    aspen_cas_seq(&c->slot[i->slot % ASPEN_SLOTS].word, aspen_recovery_running(i)",
        CLAIM,
    ),
    _one(
        "does not answer a request that had ended",
        "recover.h",
        "      case ASPEN_INSTANCE_DONE: aspen_recover_done(r, id, generation, restart); break;\n",
        "",
        COMPLETE,
    ),
    _one(
        "executes nothing more of a request whose END was executed, and does not end it",
        "recover.h",
        "    aspen_recover_answer(r, i, generation);\n    return;\n",
        "    return;\n",
        COMPLETE,
    ),
    _one(
        "does not wake for answers again",
        "recover.h",
        "    if (state == ASPEN_SLOT_DONE && aspen_load_seq(&c->slot[k].waiters)) aspen_futex_wake(&c->slot[k].word, INT_MAX);\n",
        "",
        COMPLETE,
    ),
    _one(
        "does not wake for completions again",
        "recover.h",
        "  aspen_add_seq(&c->completions, 1);\n  aspen_futex_wake(&c->completions, INT_MAX);\n}\n\n/* `restart`",
        "}\n\n/* `restart`",
        COMPLETE,
    ),
    _one(
        "does not mark submissions again",
        "recover.h",
        "    if (state == ASPEN_SLOT_SUBMITTED) aspen_or_seq(&c->pending[k / 64], bit);\n",
        "",
        CLAIM,
    ),
    _one("does not mark cancellations again", "recover.h", "      aspen_or_seq(&c->cancel[k / 64], bit);\n", "      (void)bit;\n", CLAIM),
    # After a fault.
    _one("believes flags after a fault", "recover.h", "  if (restart) aspen_recover_restart(r, i, &v);\n", "", COMPLETE),
    _one(
        "leaves the flags of other instances after a fault",
        "recover.h",
        "    if (restart && (uint32_t)word != ASPEN_INSTANCE_NONE) aspen_recover_flags(r, id);\n",
        "",
        STORM,
    ),
    _one(
        "answers with what a fault may have overwritten",
        "recover.h",
        "  if (restart && c && aspen_load_seq",
        "  if (0 && c && aspen_load_seq",
        COMPLETE,
    ),
    _one(
        "takes a fault at its word when its message is half written",
        "recover.h",
        "  restart |= error == ASPEN_E_OPAQUE_FAILED || error == ASPEN_E_NEEDS_SPACE;\n",
        "  (void)error;\n",
        COMPLETE,
    ),
]
