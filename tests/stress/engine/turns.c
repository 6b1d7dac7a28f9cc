/* Deadlines and shares (docs/protocol/deadlines.md) on tables made by hand.
 *
 * usage: turns          checks turns, entries of active requests and admission; "fine", or a line says what is not
 *        turns fluid    reads simulations and prints when each request ends: "cores n", then n lines "order work most plan limit holds"
 */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/loop.h"
#include "recover.h"
#include "submit.h"

size_t aspen_kernel_scratch(uint32_t kernel, const aspen_call *call) { return 0; }

enum { WORKERS = 2, MODELS = 3, MS = 1000000 };
static struct aspen_control control;
static struct aspen_doorbell bell;
static struct aspen_client_segment client;
static struct aspen_mapping mapping[ASPEN_MAX_SEGMENTS];
static struct aspen_instance_view *views[ASPEN_MAX_INSTANCES];
static struct aspen_plan_view *plans[ASPEN_MAX_PLANS];
static struct aspen_station s = {.control = &control, .bell = &bell, .segment = mapping, .plan = plans, .instance = (struct aspen_instance_view *const *)views};
static struct aspen_turns *const t = &control.turns;

static void check(int condition, const char *what) {
  if (condition) return;
  printf("WRONG: %s\n", what);
  exit(1);
}

static void fluid(void) {
  double cores, rate[ASPEN_ACTIVE];
  struct aspen_fluid r[ASPEN_ACTIVE];
  uint32_t n;
  while (scanf("%lf %u", &cores, &n) == 2) {
    double ends[ASPEN_ACTIVE];
    for (uint32_t k = 0; k < n; k++) {
      r[k].mark = k;
      check(scanf("%lu %lf %lf %u %u %u", &r[k].order, &r[k].work, &r[k].most, &r[k].plan, &r[k].limit, &r[k].holds) == 6, "six numbers a request");
    }
    aspen_fluid_run(r, n, cores, rate);
    for (uint32_t k = 0; k < n; k++) ends[r[k].mark] = r[k].ends;
    for (uint32_t k = 0; k < n; k++) printf("%.9g ", ends[k]);
    printf("\n");
  }
}

/* Plan m + 1 is model m's, with one instance of the same number; each takes 10 ms on one core. */
static void set_up(void) {
  memset(&control, 0, sizeof control);
  memset(&client, 0, sizeof client);
  control.signals.n_rows = WORKERS;
  for (uint32_t r = 0; r < WORKERS; r++) control.row[r].open = 1;
  control.client[1].state = ASPEN_CLIENT_LIVE;
  control.client[1].segment = 1;
  mapping[1] = (struct aspen_mapping){(char *)&client, sizeof client, ASPEN_ROLE_CLIENT};
  for (uint32_t m = 1; m <= MODELS; m++) {
    struct aspen_plan *p = &control.plan[m];
    p->state = ASPEN_PLAN_LIVE;
    p->n_instances = 1;
    p->instance[0] = m;
    p->core_ns = 10 * MS;
    p->model = m;
    control.instance[m].plan = m;
    control.instance[m].word = ASPEN_STATE(1, ASPEN_INSTANCE_FREE);
  }
}

static struct aspen_candidate request(uint32_t of, uint32_t plan, uint32_t slot) {
  struct aspen_candidate r = {.client = of, .slot = slot, .plan = plan, .class_ = 1, .word = ASPEN_SLOT_WORD(7, ASPEN_SLOT_SUBMITTED)};
  r.submitted_ns = aspen_now_ns();
  client.slot[slot].word = r.word;
  r.turn = aspen_turn(t, &r, plan);
  return r;
}

/* What aspen_start does of it. */
static void start(const struct aspen_candidate *r, uint32_t id) {
  struct aspen_instance *i = &control.instance[id];
  uint32_t generation = (uint32_t)(i->word >> 32) + 1;
  i->order = aspen_place(r) | (++control.claim.ticket & ASPEN_ORDER_TIES);
  i->client = r->client;
  i->deadline_ns = r->due_ns;
  client.slot[r->slot].word = ASPEN_SLOT_WORD(7, ASPEN_SLOT_RUNNING);
  aspen_turn_taken(&s, r, id, generation, aspen_open_rows(&s));
  i->word = ASPEN_STATE(generation, ASPEN_INSTANCE_RUNNING);
}

static void end(uint32_t id) { control.instance[id].word = ASPEN_STATE(control.instance[id].word >> 32, ASPEN_INSTANCE_FREE); }

/* Greedy flows, one request at a time on all cores: whoever's turn is first runs. Returns how often each ran. */
static void serve(uint32_t flows, const uint32_t *of, const uint32_t *plan, uint32_t turns, uint32_t *ran) {
  memset(ran, 0, flows * sizeof *ran);
  for (uint32_t n = 0; n < turns; n++) {
    uint32_t best = 0;
    for (uint32_t k = 1; k < flows; k++) {
      struct aspen_candidate a = request(of[k], plan[k], k), b = request(of[best], plan[best], best);
      if (aspen_place(&a) < aspen_place(&b)) best = k;
    }
    struct aspen_candidate r = request(of[best], plan[best], best);
    start(&r, 1);
    ran[best]++;
    end(1);
  }
}

static void shares(void) {
  uint32_t ran[4], of[] = {1, 1, 2, 2}, plan[] = {1, 2, 1, 3};
  set_up();
  control.plan[2].share = 2 * ASPEN_SHARE_ONE;
  serve(2, of, plan, 300, ran);
  check(ran[0] >= 99 && ran[0] <= 101, "a share of two gets twice as many turns");
  set_up();
  control.plan[2].core_ns = 30 * MS;
  serve(2, of, plan, 400, ran);
  check(ran[0] >= 299 && ran[0] <= 301, "equal shares are of core time, not of requests");
  set_up();
  uint32_t clients[] = {1, 2, 2, 2}, same[] = {1, 1, 1, 1};
  serve(4, clients, same, 400, ran);
  check(ran[0] >= 199 && ran[0] <= 201, "a client with more requests gets no more");
  set_up();
  serve(1, of, plan, 50, ran);
  serve(2, of, plan, 100, ran);
  check(ran[1] <= 52, "an idle flow has saved nothing up");
  set_up();
  t->now[1] = ASPEN_LAST_TURN - 5 * MS;
  serve(2, of, plan, 40, ran);
  check(ran[0] && ran[1] && t->now[1] < ASPEN_LAST_TURN / 2, "time begins anew before it ends");
}

/* A running request with the least turn holds virtual time back. */
static void virtual_time(void) {
  set_up();
  struct aspen_candidate a = request(1, 1, 0);
  start(&a, 1);
  for (uint32_t n = 0; n < 5; n++) {
    struct aspen_candidate b = request(2, 2, 1);
    start(&b, 2);
    end(2);
  }
  struct aspen_candidate c = request(3, 3, 2);
  check(c.turn == a.turn, "a new flow begins where the request is that has had the least");
  end(1);
  start(&c, 3);
  struct aspen_candidate b = request(2, 2, 1);
  check(b.turn > c.turn, "who has had more comes later");
}

static int admit(struct aspen_candidate *r, uint64_t span_ms, uint64_t *predicted) {
  r->span_ns = span_ms * MS;
  return (int)aspen_admit(&s, r, predicted);
}

static void admission(void) {
  uint64_t predicted = 0;
  set_up();
  for (uint32_t m = 1; m <= MODELS; m++) control.plan[m].alone_ns = 10 * MS, control.plan[m].alone_rows = WORKERS; /* so each uses one core */
  t->stretch = 1024;
  struct aspen_candidate a = request(1, 1, 0), b = request(1, 1, 1), c = request(1, 1, 2), d = request(1, 2, 3);
  check(admit(&a, 15, &predicted) == ASPEN_E_OK && t->n_active == 1, "a deadline that can be met is admitted");
  check(admit(&a, 15, &predicted) == ASPEN_E_OK && t->n_active == 1, "once");
  check(admit(&b, 15, &predicted) == ASPEN_E_TOO_LATE && t->n_active == 1, "the second waits for the instance, and would be late");
  check(predicted >= 19 * MS && predicted <= 21 * MS, "it is told when it would have ended");
  check(admit(&b, 12, &predicted) == ASPEN_E_TOO_LATE && predicted > 12 * MS, "an earlier deadline that breaks an admitted one is refused");
  check(admit(&b, 40, &predicted) == ASPEN_E_OK && t->n_active == 2, "a later one is admitted");
  check(admit(&d, 12, &predicted) == ASPEN_E_OK, "another plan's request has the other core");
  c.runs_on = 1;
  check(admit(&c, 5, &predicted) == ASPEN_E_OK && !c.deadline_ns && c.due_ns, "one that runs on goes without a deadline");
  check(aspen_place(&a) < aspen_place(&b) && aspen_place(&b) < aspen_place(&c) && aspen_place(&d) < aspen_place(&a), "the earliest deadline first");
  start(&a, 1);
  check(aspen_admitted(t, &b) && aspen_admitted(t, &c) && !aspen_admitted(t, &a), "who runs waits no longer");
  client.slot[1].word = ASPEN_SLOT_WORD(8, ASPEN_SLOT_SUBMITTED);
  struct aspen_candidate e = request(1, 3, 4);
  client.slot[1].word = ASPEN_SLOT_WORD(8, ASPEN_SLOT_SUBMITTED);
  start(&e, 3);
  check(!aspen_admitted(t, &b) && aspen_admitted(t, &d), "whose slot has changed is forgotten");
  b.word = ASPEN_SLOT_WORD(8, ASPEN_SLOT_SUBMITTED);
  check(!aspen_admitted(t, &b), "and its slot's next request is new");
  aspen_recover_turns(&control);
  check(t->n_active == 2 && !aspen_admitted(t, &d), "after a recovery those that run are known, and who waits is looked at again");
  struct aspen_candidate late = request(1, 2, 5);
  late.submitted_ns -= 100 * MS;
  check(admit(&late, 50, &predicted) == ASPEN_E_EXPIRED && control.plan[2].expired == 1, "a deadline that has passed");
  late.submitted_ns = UINT64_MAX;
  admit(&late, 50, &predicted);
  check(late.due_ns < aspen_now_ns() + 51 * MS, "a slot from the future gains nothing");
}

/* Admission never promises more core time than there is to promise. */
static void reserve(void) {
  uint64_t predicted = 0, admitted = 0;
  set_up();
  control.plan[1].n_instances = 32;
  for (uint32_t k = 0; k < 200; k++) {
    struct aspen_candidate r = request(1, 1, k);
    control.plan[1].core_ns = 100 * (uint64_t)MS;
    admitted += admit(&r, 3600 * 1000, &predicted) == ASPEN_E_OK;
  }
  check(admitted >= 200, "what flows in until the deadline may be promised");
  for (uint32_t k = 0; k < 50; k++) {
    struct aspen_candidate r = request(1, 1, k + 200);
    control.plan[1].core_ns = 1000 * (uint64_t)MS;
    admitted += admit(&r, 3600 * 1000, &predicted) == ASPEN_E_OK;
  }
  check(admitted < 210, "but no more than that of ten seconds");
}

/* After times in which everything was late, deadlines are met again, although nothing was admitted that could tell so. */
static void forgetting(void) {
  uint64_t predicted = 0;
  uint32_t refused = 0;
  set_up();
  t->stretch = t->deviation = 8192;
  t->caution = 8 * 65536;
  for (;; refused++) {
    struct aspen_candidate r = request(1, 1, 0);
    t->faded_ns = 0;
    if (admit(&r, 20, &predicted) == ASPEN_E_OK) break;
    check(refused < 200, "what was learned in bad times fades");
  }
  check(refused > 5, "but not at once");
  double stretch = aspen_stretch(t);
  struct aspen_candidate r = request(1, 2, 1);
  t->faded_ns = 0;
  check(admit(&r, 9, &predicted) == ASPEN_E_TOO_LATE && aspen_stretch(t) == stretch, "while something is admitted, refusals teach nothing");
}

/* Clients that ask for more than there is are promised equal parts; who asks for less gets that. */
static void parts(void) {
  uint64_t predicted = 0, admitted[3] = {0};
  set_up();
  control.plan[1].n_instances = 32;
  aspen_note_asked(&s, 1, 1, 1e10, aspen_now_ns());
  check(aspen_part(&s, 1, WORKERS, aspen_now_ns()) == 1, "a client that is alone gets all");
  aspen_note_asked(&s, 2, 1, 2e8, aspen_now_ns());
  double part = aspen_part(&s, 1, WORKERS, aspen_now_ns());
  check(part > 0.89 && part < 0.91, "what others ask for is left to them");
  check(aspen_part(&s, 2, WORKERS, aspen_now_ns()) == 1, "who asks for little gets it");
  aspen_note_asked(&s, 2, 1, 1e10, aspen_now_ns());
  for (uint32_t of = 1; of <= 2; of++) {
    part = aspen_part(&s, of, WORKERS, aspen_now_ns());
    check(part > 0.49 && part < 0.51, "who asks for much gets an equal part");
  }
  for (uint32_t k = 0; k < 120; k++) { /* client 1 comes first; 10 ms of each second */
    struct aspen_candidate r = request(k < 60 ? 1 : 2, 1, k);
    control.client[2] = control.client[1];
    control.plan[1].core_ns = 100 * (uint64_t)MS;
    admitted[r.client] += admit(&r, 1000, &predicted) == ASPEN_E_OK;
  }
  check(admitted[1] >= 7 && admitted[1] <= 10 && admitted[2] >= admitted[1] - 1, "who comes first does not get more");
}

/* A client that is told the outlook decides as the DSE does. */
static void outlook(void) {
  uint64_t predicted = 0;
  uint32_t declined = 0, agreed = 0, refused = 0;
  for (uint32_t round = 0; round < 300; round++) {
    set_up();
    t->stretch = 1024 + (uint32_t)(random() % 1024);
    for (uint32_t m = 1; m <= MODELS; m++) {
      control.plan[m].core_ns = (uint64_t)(1 + random() % 50) * MS;
      control.plan[m].alone_ns = control.plan[m].core_ns / (1 + (uint64_t)random() % 2);
      control.plan[m].alone_rows = WORKERS;
      control.plan[m].generation = m + 3;
    }
    for (uint32_t k = 0; k < 12; k++) {
      struct aspen_candidate r = request(1, 1 + (uint32_t)random() % MODELS, k);
      struct aspen_request asks = {.plan = r.plan, .generation = r.plan + 3, .class_ = r.class_, .span_ns = (uint64_t)(1 + random() % 200) * MS};
      uint64_t takes = aspen_hopeless(&client, &asks), began = r.submitted_ns;
      int error = admit(&r, asks.span_ns / MS, &predicted);
      check(!takes || k, "who was told nothing does not know");
      if (!k) { /* of all plans */
        for (uint32_t m = 1; m <= MODELS; m++) aspen_note_asked(&s, 1, m, 0, aspen_now_ns());
      } else {
        refused += error != ASPEN_E_OK;
        declined += takes > 0;
        agreed += (takes > 0) == (error != ASPEN_E_OK);
        if (takes && error) check(fabs((double)takes - (double)predicted) < 0.02 * (double)predicted + 20.0 * (double)(aspen_now_ns() - began), "both predict the same");
      }
      if (error) client.slot[k].word = 0;
      else if ((uint32_t)control.instance[r.plan].word == ASPEN_INSTANCE_FREE) start(&r, r.plan);
      aspen_tell(&s);
    }
  }
  check(refused > 500 && declined > 500 && agreed >= 300 * 11 - 60, "a client decides as the DSE would"); /* some time passes between the two */
  client.version |= 1;
  struct aspen_outlook o;
  check(!aspen_see_outlook(&client, &o), "an outlook that is being written is none");
  aspen_tell(&s);
  check(aspen_see_outlook(&client, &o), "the next DSE makes it whole");
  client.declined[1] = 1000000;
  aspen_tell(&s);
  check(control.plan[1].refused && control.plan[1].refused < 1000 && !client.declined[1], "refusals of a client count, within bounds");
  client.asked_ns = aspen_now_ns() - 2 * (uint64_t)ASPEN_ASKING_NS;
  uint32_t version = client.version;
  aspen_tell(&s);
  check(client.version == version && !(t->asking[0] & 2), "who does not ask any more is told nothing");
  client.asked_ns = aspen_now_ns() - ASPEN_ASKING_NS;
  check(!aspen_ask(&client, &o, aspen_now_ns()), "what is old is not believed");
}

int main(int argc, char **argv) {
  if (argc > 1 && !strcmp(argv[1], "fluid")) {
    fluid();
    return 0;
  }
  shares();
  virtual_time();
  admission();
  reserve();
  forgetting();
  parts();
  outlook();
  printf("fine\n");
  return 0;
}
