/* Random tile graphs over recycled buffers, as plans: what the schedulers' tests in C run (dse_threads.c, tests/crash).
 *
 * A node is an elementwise function of two vectors, cut into tiles; some need all of their right input. Few buffers, each taken over as soon
 * as nobody later needs what is in it, so most edges are anti-dependencies. The includer defines check() first.
 * PLANT_REUSE, PLANT_IN_PLACE build in a fault of the memory plan that has to be found, PLANT_AGAIN one of what kernels keep in scratch.
 */
#ifndef ASPEN_TEST_GRAPHS_H
#define ASPEN_TEST_GRAPHS_H
#include <stdint.h>
#include <string.h>

#include "plans/call.h"
#include "pool.h"
#include "table.h"

#ifndef GRAPH_NODES
#define GRAPH_NODES 22 /* 1: of which every tile needs all of an input */
#endif
enum { LENGTH = 96, PARTS = 6, NODES = GRAPH_NODES, REACH = 5, HUB = 5, MOST = 512 };
enum { X = -1, Y = -2, VECTOR = LENGTH * 8 /* bytes */, REGION = 2 * VECTOR, PLAN_BYTES = 1 << 18, ARENA_BYTES = 1 << 17 };
#define POISON 0xdeadull /* as first element of an input: a kernel fails */

/* ------------------------------------------------------------------------------------------------ kernels */

/* Element i of a node. A `whole` node needs all of its right input for every element. */
static uint64_t element(int64_t node, int64_t i, uint64_t left, uint64_t right) { return (left * 31) ^ (right * 17 + (uint64_t)(node * LENGTH + i)); }
static uint64_t mixed(uint64_t sum, uint64_t right, int64_t k) { return sum * 3 + (right ^ (uint64_t)k); }

/* A `whole` node's next tile finds the sum that its last one left, as kernels find what they left in scratch. */
static int compute(const aspen_call *c, uint64_t *result) {
  static __thread uint64_t sum;
  static __thread const aspen_arg *kept_for;
  const uint64_t *left = (const uint64_t *)c->args[1].ptr, *right = (const uint64_t *)c->args[2].ptr;
  int64_t node = c->params[0], whole = c->params[1], step = c->args[2].strides[0];
#if defined(PLANT_AGAIN) /* whatever the request was */
  int again = kept_for == c->args;
#else
  int again = c->again;
#endif
  check(!c->again || kept_for == c->args, "scratch of another node is kept");
  kept_for = c->args;
  if (!again) sum = 0;
  for (int64_t k = 0; whole && !again && k < LENGTH; k++) sum = mixed(sum, right[k * step], k);
  for (int64_t i = c->lo[0]; i < c->hi[0]; i++) result[i] = element(node, i, left[i], whole ? sum : right[i * step]);
  return c->params[2] && c->lo[0] == 0 && left[0] == POISON ? ASPEN_KERNEL_BAD_INDEX : 0;
}

/* ------------------------------------------------------------------------------------------------ plans */

struct node { int left, right, flip, whole, parts, buffer; };
struct box { int node, lo, hi; };
struct graph {
  struct node node[NODES];
  struct box box[MOST];
  char edge[MOST][MOST];
  int n_tiles, n_kernels, n_buffers, n_joins, fanout;
};

static uint32_t below(uint32_t *random, uint32_t n) { return aspen_random(random) % n; }

static int overlap(int buffer_a, int a_lo, int a_hi, int buffer_b, int b_lo, int b_hi) {
  return buffer_a == buffer_b && buffer_a != X && a_lo < b_hi && b_lo < a_hi;
}
static int buffer_of(const struct graph *g, int v) { return v < 0 ? X : g->node[v].buffer; }

static int reads(const struct graph *g, const struct box *t, const struct box *of) {
  const struct node *n = &g->node[t->node];
  int lo = n->whole ? 0 : n->flip ? LENGTH - t->hi : t->lo, hi = n->whole ? LENGTH : n->flip ? LENGTH - t->lo : t->hi;
  int written = g->node[of->node].buffer;
  return overlap(buffer_of(g, n->left), t->lo, t->hi, written, of->lo, of->hi) || overlap(buffer_of(g, n->right), lo, hi, written, of->lo, of->hi);
}

static int needed(const struct graph *g, int v, int from) {
  for (int u = from; u < NODES; u++)
    if (g->node[u].left == v || g->node[u].right == v) return 1;
  return 0;
}

/* Random nodes in layers of at most REACH; few buffers, each taken over as soon as nobody later needs what is in it. */
static void make_nodes(struct graph *g, uint32_t *random) {
  int tenant[NODES];
  for (int v = 0; v < NODES; v++) {
    struct node *n = &g->node[v];
    int first = v < REACH ? X : v - REACH;
    n->left = first + (int)below(random, (uint32_t)(v - first));
    n->right = v % 4 == 3 ? v - 1 : first + (int)below(random, (uint32_t)(v - first));
    n->flip = (int)below(random, 2);
    n->whole = NODES == 1 || below(random, 4) == 0;
    n->parts = v == HUB || below(random, 6) == 0 ? 1 : PARTS;
    if (v > HUB && v <= HUB + 4) { /* one tile that very many read and nothing else orders: more children than fit */
      n->left = HUB;
      n->right = HUB - 1;
      n->parts = PARTS;
    }
  }
  for (int v = 0; v < NODES; v++) {
    struct node *n = &g->node[v];
    n->buffer = Y;
    if (v == NODES - 1) break;
    uint32_t start = g->n_buffers ? below(random, (uint32_t)g->n_buffers) : 0;
    for (int k = 0; k < g->n_buffers && n->buffer == Y; k++) {
      int b = (int)(start + (uint32_t)k) % g->n_buffers;
#if defined(PLANT_IN_PLACE) /* the last reader overwrites what it reads, element by element: right, as long as it runs but once (I5) */
      if (tenant[b] == n->left && n->right != n->left && buffer_of(g, n->right) != b && !needed(g, tenant[b], v + 1)) n->buffer = b;
#endif
      if (!needed(g, tenant[b], v)) n->buffer = b;
    }
    if (n->buffer == Y) n->buffer = g->n_buffers++;
    tenant[n->buffer] = v;
  }
}

/* An edge between two tiles that touch the same elements, unless they are ordered anyway. */
static void make_edges(struct graph *g) {
  static char before[MOST][MOST];
  memset(before, 0, sizeof before);
  for (int v = 0; v < NODES; v++)
    for (int k = 0; k < g->node[v].parts; k++)
      g->box[g->n_tiles++] = (struct box){v, k * LENGTH / g->node[v].parts, (k + 1) * LENGTH / g->node[v].parts};
  g->n_kernels = g->n_tiles;
  for (int t = 0; t < g->n_tiles; t++)
    for (int s = t - 1; s >= 0; s--) {
      const struct box *a = &g->box[s], *b = &g->box[t];
      int flow = reads(g, b, a), reuse = reads(g, a, b) || overlap(g->node[a->node].buffer, a->lo, a->hi, g->node[b->node].buffer, b->lo, b->hi);
      if (before[t][s] || !(flow || reuse)) continue;
      before[t][s] = 1;
      for (int k = 0; k < s; k++) before[t][k] |= before[s][k];
#if defined(PLANT_REUSE) /* a buffer is taken over without waiting for its last readers */
      if (!flow) continue;
#endif
      g->edge[s][t] = 1;
    }
}

static int children(const struct graph *g, int s) {
  int n = 0;
  for (int t = 0; t < g->n_tiles; t++) n += g->edge[s][t];
  return n;
}

static int new_join(struct graph *g) {
  check(g->n_tiles < MOST - 1, "the graph is larger than its tables");
  g->n_joins++;
  return g->n_tiles++;
}

/* JOIN tiles: between a node's tiles and the parents that they all have, and where a tile has too many children. Then END after all sinks. */
static void make_joins(struct graph *g) {
  for (int v = 0, first = 0; v < NODES; first += g->node[v++].parts) {
    int last = first + g->node[v].parts, common[MOST], n = 0;
    for (int s = 0; s < first; s++) {
      int all = 1;
      for (int t = first; t < last; t++) all &= g->edge[s][t];
      if (all) common[n++] = s;
    }
    if (n < 2 || last - first < 2) continue;
    int join = new_join(g);
    for (int k = 0; k < n; k++) {
      for (int t = first; t < last; t++) g->edge[common[k]][t] = 0;
      g->edge[common[k]][join] = 1;
    }
    for (int t = first; t < last; t++) g->edge[join][t] = 1;
  }
  for (int s = 0; s < g->n_tiles; s++) {
    int n = children(g, s);
    if (n > g->fanout) g->fanout = n;
    for (; n > ASPEN_FANOUT; n -= ASPEN_FANOUT - 1) {
      int join = new_join(g);
      for (int t = 0, moved = 0; moved < ASPEN_FANOUT; t++)
        if (g->edge[s][t] && t != join) {
          g->edge[s][t] = 0;
          g->edge[join][t] = 1;
          moved++;
        }
      g->edge[s][join] = 1;
    }
  }
  int end = g->n_tiles++;
  for (int s = 0; s < end; s++)
    if (!children(g, s)) g->edge[s][end] = 1;
}

static uint64_t up(uint64_t n) { return (n + 63) & ~(uint64_t)63; }

static struct aspen_operand operand(const struct graph *g, int v, int flip) {
  int b = buffer_of(g, v);
  struct aspen_operand o = {.dtype = ASPEN_DT_U64, .rank = 1, .dims = {LENGTH}, .strides = {flip ? -1 : 1}};
  o.space = b < 0 ? ASPEN_SPACE_REQUEST : ASPEN_SPACE_ARENA;
  o.offset = (b == X ? 0 : b == Y ? VECTOR : (int64_t)b * VECTOR) + (flip ? VECTOR - 8 : 0);
  return o;
}

static void write_plan(const struct graph *g, char *base, uint32_t *random) {
  struct aspen_plan_header *h = (struct aspen_plan_header *)base;
  uint32_t n = (uint32_t)g->n_tiles, end = n - 1;
  aspen_magic_write((struct aspen_magic *)base, PLAN_BYTES, ASPEN_ROLE_PLAN);
  h->n_ops = NODES + 2, h->n_operands = 3 * NODES, h->n_params = 4 * NODES, h->n_tiles = n, h->end_tile = end;
  h->ops = up(sizeof *h), h->operands = up(h->ops + h->n_ops * sizeof(struct aspen_op));
  h->params = up(h->operands + h->n_operands * sizeof(struct aspen_operand)), h->tiles = up(h->params + 8 * h->n_params);
  h->parent_counts = up(h->tiles + ASPEN_LINE * n), h->initial = up(h->parent_counts + 4 * n), h->parent_begin = up(h->initial + 4 * n);
  h->children = up(h->parent_begin + 4 * (n + 1)), h->parents = up(h->children + 4 * ASPEN_FANOUT * n);
  h->arena_counters = ASPEN_LINE, h->arena_executed = up(h->arena_counters + 4 * n), h->arena_next = up(h->arena_executed + 4 * n);
  h->arena_data = up(h->arena_next + 8 * n), h->arena_bytes = h->arena_data + (uint64_t)g->n_buffers * VECTOR, h->request_bytes = REGION;
  check(h->arena_bytes <= ARENA_BYTES && h->parents + 4 * ASPEN_FANOUT * n <= PLAN_BYTES, "the plan is larger than its segment");
  struct aspen_op *ops = (struct aspen_op *)(base + h->ops);
  struct aspen_operand *operands = (struct aspen_operand *)(base + h->operands);
  struct aspen_tile *tiles = (struct aspen_tile *)(base + h->tiles);
  int64_t *params = (int64_t *)(base + h->params);
  uint32_t *kids = (uint32_t *)(base + h->children), *counts = (uint32_t *)(base + h->parent_counts), *initial = (uint32_t *)(base + h->initial);
  uint32_t *begin = (uint32_t *)(base + h->parent_begin), *parents = (uint32_t *)(base + h->parents);
  ops[NODES].kernel = ASPEN_K_JOIN;
  ops[NODES + 1].kernel = ASPEN_K_END;
  for (int v = 0; v < NODES; v++) {
    const struct node *node = &g->node[v];
    ops[v] = (struct aspen_op){.kernel = ASPEN_K_BINARY, .operand = 3 * (uint32_t)v, .n_outputs = 1, .n_inputs = 2, .param = 4 * (uint32_t)v, .n_params = 4};
    int64_t p[4] = {v, node->whole, v == 0};
    memcpy(params + 4 * v, p, sizeof p);
    struct aspen_operand *o = &operands[3 * v];
    o[0] = operand(g, v, 0), o[1] = operand(g, node->left, 0), o[2] = operand(g, node->right, node->flip);
    for (int k = 0; k < 3; k++)
      if (o[k].space == ASPEN_SPACE_ARENA) o[k].offset += (int64_t)h->arena_data;
  }
  for (uint32_t t = 0; t < n; t++) {
    int is_kernel = (int)t < g->n_kernels;
    tiles[t] = (struct aspen_tile){.op = is_kernel ? (uint32_t)g->box[t].node : t == end ? NODES + 1 : NODES, .children = h->n_children};
    tiles[t].depth = (uint8_t)(is_kernel ? g->box[t].node * (ASPEN_DEPTHS - 1) / NODES : t == end ? ASPEN_DEPTHS - 1 : 0);
    tiles[t].rank = below(random, n);
    if (is_kernel) tiles[t].lo[0] = (uint32_t)g->box[t].lo, tiles[t].hi[0] = (uint32_t)g->box[t].hi;
    for (uint32_t c = 0; c < n; c++)
      if (g->edge[t][c]) {
        kids[h->n_children++] = c;
        tiles[t].n_children++;
        counts[c]++;
      }
  }
  for (uint32_t t = 0; t < n; t++)
    if (!counts[t]) initial[h->n_initial++] = t;
  for (uint32_t t = 0; t < n; t++) { /* the inverse edges (I4) */
    begin[t + 1] = begin[t];
    for (uint32_t s = 0; s < n; s++)
      if (g->edge[s][t]) parents[begin[t + 1]++] = s;
  }
}

/* Everything in order, without tiles or shared buffers. */
static void reference(const struct graph *g, const uint64_t *x, uint64_t *y) {
  uint64_t value[NODES + 1][LENGTH];
  memcpy(value[0], x, VECTOR);
  for (int v = 0; v < NODES; v++) {
    const struct node *n = &g->node[v];
    const uint64_t *left = value[n->left + 1], *right = value[n->right + 1];
    uint64_t sum = 0;
    for (int64_t k = 0; k < LENGTH; k++) sum = mixed(sum, right[n->flip ? LENGTH - 1 - k : k], k);
    for (int64_t i = 0; i < LENGTH; i++) value[v + 1][i] = element(v, i, left[i], n->whole ? sum : right[n->flip ? LENGTH - 1 - i : i]);
  }
  memcpy(y, value[NODES], VECTOR);
}

#endif
