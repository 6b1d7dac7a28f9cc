/* An ensemble of trees over rows, for one type of thresholds and weights. trees.c includes this file once a type, with
 *   T      the type;
 *   OF(x)  the name x with the type as suffix.
 *
 * Several rows, or several trees of one row, are walked side by side without branches. Each step of a walk waits for two loads and a
 * comparison, and the steps of other walks run meanwhile. The choice of walks that run side by side changes no value. A leaf is found by
 * comparisons alone, and a row's leaves are added in the order of the trees.
 *
 * Nothing in the tables is believed: indices are bounded where they are used, and a walk has as many steps as the parameters allow.
 */
typedef struct {
  T value;  /* an inner node goes on to `child` + (x <= value); a leaf has NaN here, and itself for a child */
  union {
    T weight;     /* of a leaf of a tree with one target */
    uint32_t row; /* of a leaf of a tree with several: where its weights begin among the leaves' */
  };
  uint32_t feature; /* and flags */
  uint32_t child;
} OF(node);

typedef struct {
  const OF(node) *nodes;
  const T *weights, *base;
  int64_t n_weights;
  uint32_t last, features, targets;
  int64_t most_steps, aggregate, flags;
  const tree *trees;
  int64_t n_trees;
} OF(ensemble);

/* One step of each walk. Returns whether any has moved. */
INLINE uint32_t OF(step)(const OF(node) *nodes, uint32_t last, uint32_t features, const T *const *x, uint32_t *at, const int flags) {
  uint32_t moved = 0;
#pragma GCC unroll 8
  for (int l = 0; l < WALKS; l++) {
    const OF(node) *n = &nodes[at[l]];
    const uint32_t own = n->feature;
    uint32_t feature = flags == PLAIN ? own : own & FEATURE;
    feature = feature < features ? feature : 0;
    const T v = x[l][feature], value = n->value;
    uint32_t right = v <= value;
    if (flags == EXACT) {
      right &= ~((own >> EQUAL_BIT) & (uint32_t)(v < value));
      right |= (own >> MISSING_BIT) & (uint32_t)(v != v);
      right &= 1;
    }
    uint32_t next = n->child + right;
    next = next < last ? next : last;
    moved |= next ^ at[l];
    at[l] = next;
  }
  return moved;
}

/* From the roots in `at` to the leaves. */
INLINE void OF(walk)(const OF(ensemble) *e, const T *const *x, uint32_t *at, int64_t steps, const int flags) {
  uint32_t a[WALKS];
  const OF(node) *nodes = e->nodes;
  const uint32_t last = e->last, features = e->features;
  memcpy(a, at, sizeof a);
  for (int64_t s = 0; s < steps; s += 4) { /* steps from a leaf stay there */
    OF(step)(nodes, last, features, x, a, flags);
    OF(step)(nodes, last, features, x, a, flags);
    OF(step)(nodes, last, features, x, a, flags);
    if (!OF(step)(nodes, last, features, x, a, flags)) break;
  }
  memcpy(at, a, sizeof a);
}

INLINE void OF(combine)(T *sum, T weight, int64_t aggregate) {
  if (aggregate <= AVERAGE) *sum += weight;
  else if (weight == weight && (!(*sum == *sum) || (aggregate == LEAST ? weight < *sum : weight > *sum))) *sum = weight; /* NaN: none yet */
}

/* A leaf's weights to the sums of its row. */
INLINE void OF(take)(const OF(ensemble) *e, const tree *t, uint32_t at, T *sums) {
  const OF(node) *leaf = &e->nodes[at];
  if (t->targets == 1) {
    OF(combine)(&sums[t->first], leaf->weight, e->aggregate);
    return;
  }
  const int64_t row = leaf->row;
  if (row > e->n_weights - t->targets) return;
  const T *w = e->weights + row;
  if (e->aggregate <= AVERAGE)
    for (int64_t k = 0; k < t->targets; k++) sums[t->first + k] += w[k];
  else
    for (int64_t k = 0; k < t->targets; k++) OF(combine)(&sums[t->first + k], w[k], e->aggregate);
}

/* Rows side by side, tree by tree: a tree's nodes stay in the cache while the rows pass. */
INLINE void OF(rows)(const OF(ensemble) *e, const T *x, int64_t step, int64_t n, T *sums, const int flags) {
  for (int64_t k = 0; k < e->n_trees; k++) {
    const tree t = tree_of(&e->trees[k], e->last, e->targets);
    for (int64_t r = 0; r < n; r += WALKS) {
      const T *row[WALKS];
      uint32_t at[WALKS];
      for (int l = 0; l < WALKS; l++) row[l] = x + (r + l) * step, at[l] = t.root;
      OF(walk)(e, row, at, nd_min(t.steps, e->most_steps), flags);
      for (int l = 0; l < WALKS; l++) OF(take)(e, &t, at[l], sums + (r + l) * e->targets);
    }
  }
}

/* Trees side by side, for a single row. */
INLINE void OF(trees)(const OF(ensemble) *e, const T *x, T *sums, const int flags) {
  const T *row[WALKS];
  for (int l = 0; l < WALKS; l++) row[l] = x;
  for (int64_t k = 0; k < e->n_trees; k += WALKS) {
    tree t[WALKS];
    uint32_t at[WALKS];
    int64_t steps = 0;
    const int64_t n = nd_min(WALKS, e->n_trees - k);
    for (int64_t l = 0; l < WALKS; l++) {
      t[l] = tree_of(&e->trees[k + nd_min(l, n - 1)], e->last, e->targets);
      at[l] = t[l].root;
      steps = t[l].steps > steps ? t[l].steps : steps;
    }
    OF(walk)(e, row, at, nd_min(steps, e->most_steps), flags);
    for (int64_t l = 0; l < n; l++) OF(take)(e, &t[l], at[l], sums);
  }
}

static int OF(missing)(const OF(ensemble) *e, const T *x, int64_t step, int64_t n) {
  int found = 0;
  for (int64_t r = 0; r < n; r++)
    for (uint32_t f = 0; f < e->features; f++) found |= !(x[r * step + f] == x[r * step + f]);
  return found;
}

INLINE void OF(block_as)(const OF(ensemble) *e, const T *x, int64_t step, int64_t n, T *sums, const int flags) {
  const int64_t many = n - n % WALKS;
  OF(rows)(e, x, step, many, sums, flags);
  for (int64_t r = many; r < n; r++) OF(trees)(e, x + r * step, sums + r * e->targets, flags);
}

static void OF(block)(const OF(ensemble) *e, const T *x, int64_t step, int64_t n, T *sums) {
  const T start = e->aggregate <= AVERAGE ? 0 : (T)NAN;
  for (int64_t i = 0; i < n * e->targets; i++) sums[i] = start;
  if (e->flags == PLAIN) OF(block_as)(e, x, step, n, sums, PLAIN);
  else if (e->flags == MASKED && !OF(missing)(e, x, step, n)) OF(block_as)(e, x, step, n, sums, MASKED);
  else OF(block_as)(e, x, step, n, sums, EXACT);
}

/* The result of a target from its sum. */
INLINE T OF(result)(const OF(ensemble) *e, T sum, int64_t target) {
  if (e->aggregate == AVERAGE) sum /= (T)e->n_trees;
  if (!(sum == sum) && e->aggregate > AVERAGE) sum = 0;
  return e->base ? sum + e->base[target] : sum;
}

static int OF(run)(const aspen_call *c, OF(ensemble) *e) {
  const aspen_arg *out = &c->args[0], *x = &c->args[1];
  const int64_t stride = x->strides[0], block = rows_of_block(x->dims[1], sizeof(T));
  const int direct = x->dtype == (sizeof(T) == 4 ? ASPEN_DT_F32 : ASPEN_DT_F64) && (x->strides[1] == 1 || x->dims[1] == 1);
  T *sums = c->scratch, *copy = sums + block * e->targets;
  for (int64_t r = c->lo[0], n; r < c->hi[0]; r += n) {
    n = nd_min(block, c->hi[0] - r);
    if (direct) {
      OF(block)(e, (const T *)x->ptr + r * stride, stride, n, sums);
    } else {
      for (int64_t i = 0; i < n; i++)
        for (int64_t f = 0; f < x->dims[1]; f++) {
          const int64_t at = (r + i) * stride + f * x->strides[1];
          copy[i * x->dims[1] + f] = x->dtype == ASPEN_DT_F32   ? (T)((const float *)x->ptr)[at]
                                     : x->dtype == ASPEN_DT_F64 ? (T)((const double *)x->ptr)[at]
                                     : x->dtype == ASPEN_DT_I32 ? (T)((const int32_t *)x->ptr)[at]
                                                                : (T)((const int64_t *)x->ptr)[at];
        }
      OF(block)(e, copy, x->dims[1], n, sums);
    }
    for (int64_t i = 0; i < n; i++)
      for (int64_t k = c->lo[1]; k < c->hi[1]; k++) {
        const T y = OF(result)(e, sums[i * e->targets + k], k);
        const int64_t at = (r + i) * out->strides[0] + k * out->strides[1];
        if (out->dtype == ASPEN_DT_F32) ((float *)out->ptr)[at] = (float)y;
        else ((double *)out->ptr)[at] = (double)y;
      }
  }
  return ASPEN_KERNEL_OK;
}

static int OF(start)(const aspen_call *c) {
  const aspen_arg *x = &c->args[1], *nodes = &c->args[2], *trees = &c->args[3], *weights = &c->args[4], *base = &c->args[5];
  const int has_weights = c->n_inputs > 3 && weights->dtype != ASPEN_DT_NONE, has_base = c->n_inputs > 4 && base->dtype != ASPEN_DT_NONE;
  OF(ensemble) e = {
      .nodes = (const OF(node) *)nodes->ptr,
      .weights = has_weights ? (const T *)weights->ptr : NULL,
      .base = has_base ? (const T *)base->ptr : NULL,
      .n_weights = has_weights ? weights->dims[0] : 0,
      .last = (uint32_t)(nodes->dims[0] - 1),
      .features = (uint32_t)x->dims[1],
      .targets = (uint32_t)c->args[0].dims[1],
      .most_steps = c->params[2],
      .aggregate = c->params[0],
      .flags = c->params[1],
      .trees = (const tree *)trees->ptr,
      .n_trees = trees->dims[0],
  };
  return OF(run)(c, &e);
}
