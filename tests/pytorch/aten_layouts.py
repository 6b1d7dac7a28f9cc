"""Cases of operators that move, read and write elements, and of those that look at windows and norms."""

from __future__ import annotations

from typing import Any

import torch
from aten_cases import Case, Cases, cases, flags, real, whole

# ---- views


@cases("view.default", "_unsafe_view.default", "_reshape_copy.default", "view_copy.default")
def _view(op: Any) -> Cases:
    yield Case(lambda x: op(x, [15]), (real(3, 5),))
    yield Case(lambda x: op(x, [5, 1, -1]), (real(3, 5),))
    yield Case(lambda x: op(x, [0, 7]), (real(0, 5),))
    yield Case(lambda x: op(x, []), (real(1, 1),))


@cases("permute.default", "permute_copy.default")
def _permute(op: Any) -> Cases:
    yield Case(lambda x: op(x, [2, 0, -2]), (real(3, 5, 4),))


@cases("t.default", "t_copy.default")
def _t(op: Any) -> Cases:
    yield Case(op, (real(3, 5),))
    yield Case(op, (real(3),))


@cases("transpose.int", "transpose_copy.int")
def _transpose(op: Any) -> Cases:
    yield Case(lambda x: op(x, 0, -1), (real(3, 5, 2),))


@cases("expand.default", "expand_copy.default")
def _expand(op: Any) -> Cases:
    yield Case(lambda x: op(x, [4, 3, -1]), (real(1, 5),))


@cases("unsqueeze.default", "unsqueeze_copy.default")
def _unsqueeze(op: Any) -> Cases:
    for dim in (0, -1, 1):
        yield Case(lambda x, dim=dim: op(x, dim), (real(3, 5),))


@cases("squeeze.default", "squeeze.dim", "squeeze.dims", "squeeze_copy.dim", "squeeze_copy.dims")
def _squeeze(op: Any) -> Cases:
    arguments: list[Any] = {"default": [()], "dim": [(0,), (-1,), (1,)], "dims": [([0, -1],), ([1],)]}[op._overloadname]
    for argument in arguments:
        yield Case(lambda x, argument=argument: op(x, *argument), (real(1, 3, 1),))


@cases("slice.Tensor", "slice_copy.Tensor")
def _slice(op: Any) -> Cases:
    for dim, start, end, step in ((0, 1, 3, 1), (1, -3, 2**63 - 1, 1), (-1, 0, -1, 2), (1, 2, 2, 1), (1, 0, 99, 1)):
        yield Case(lambda x, a=(dim, start, end, step): op(x, *a), (real(4, 5),))


@cases("select.int", "select_copy.int")
def _select(op: Any) -> Cases:
    for dim, index in ((0, 1), (1, -1)):
        yield Case(lambda x, dim=dim, index=index: op(x, dim, index), (real(4, 5),))


@cases("split.Tensor", "split_copy.Tensor", "split_with_sizes.default", "split_with_sizes_copy.default")
def _split(op: Any) -> Cases:
    parts: Any = 2 if op._overloadname == "Tensor" else [1, 3, 1]
    yield Case(lambda x: op(x, parts, 1), (real(4, 5),))
    yield Case(lambda x: op(x, parts), (real(5, 2),))


@cases("unbind.int", "unbind_copy.int")
def _unbind(op: Any) -> Cases:
    yield Case(lambda x: op(x, 1), (real(4, 3),))


@cases("cat.default")
def _cat(op: Any) -> Cases:
    yield Case(lambda x, y: op([x, y], 1), (real(4, 3), real(4, 2)))
    yield Case(lambda x, y: op([x, y], -1), (real(0), real(4, 2)))
    yield Case(lambda x, y: op([x, y]), (whole(3), real(2)))


@cases("stack.default")
def _stack(op: Any) -> Cases:
    yield Case(lambda x, y: op([x, y], -1), (real(4, 3), real(4, 3)))


@cases("repeat.default")
def _repeat(op: Any) -> Cases:
    yield Case(lambda x: op(x, [2, 1, 3]), (real(4, 2),))


@cases("flip.default")
def _flip(op: Any) -> Cases:
    yield Case(lambda x: op(x, [0, -1]), (real(4, 2, 3),))


@cases("roll.default")
def _roll(op: Any) -> Cases:
    yield Case(lambda x: op(x, [1, -2], [0, 1]), (real(4, 5),))
    yield Case(lambda x: op(x, [3]), (real(4, 5),))
    yield Case(lambda x: op(x, [9], [1]), (real(4, 5),))


@cases("constant_pad_nd.default")
def _pad(op: Any) -> Cases:
    yield Case(lambda x: op(x, [1, 2]), (real(4, 5),))
    yield Case(lambda x: op(x, [0, 1, 2, 0], 1.5), (real(4, 5),))
    yield Case(lambda x: op(x, [-1, 1], 7), (whole(4, 5),))


@cases("reflection_pad1d.default", "replication_pad1d.default")
def _pad1(op: Any) -> Cases:
    yield Case(lambda x: op(x, [1, 2]), (real(2, 4, 5),))


@cases("reflection_pad2d.default", "replication_pad2d.default")
def _pad2(op: Any) -> Cases:
    yield Case(lambda x: op(x, [1, 2, 3, 0]), (real(2, 2, 4, 5),))


@cases("reflection_pad3d.default", "replication_pad3d.default")
def _pad3(op: Any) -> Cases:
    yield Case(lambda x: op(x, [1, 2, 1, 0, 2, 1]), (real(1, 2, 4, 3, 5),))


@cases("tril.default", "triu.default")
def _triangle(op: Any) -> Cases:
    for diagonal in (0, 1, -2):
        yield Case(lambda x, d=diagonal: op(x, d), (real(2, 4, 5),))
    yield Case(op, (flags(4, 4),))


@cases("pixel_shuffle.default")
def _pixel_shuffle(op: Any) -> Cases:
    yield Case(lambda x: op(x, 2), (real(2, 8, 3, 4),))


@cases("pixel_unshuffle.default")
def _pixel_unshuffle(op: Any) -> Cases:
    yield Case(lambda x: op(x, 2), (real(2, 3, 6, 4),))


@cases("unfold.default")
def _unfold(op: Any) -> Cases:
    yield Case(lambda x: op(x, 1, 3, 2), (real(2, 9, 3),))


@cases("diagonal.default", "diagonal_copy.default")
def _diagonal(op: Any) -> Cases:
    yield Case(op, (real(4, 5),))
    yield Case(lambda x: op(x, 1, 0, -1), (real(4, 2, 5),))
    yield Case(lambda x: op(x, -2), (real(4, 5, 2),))


@cases("select_scatter.default")
def _select_scatter(op: Any) -> Cases:
    for index in (0, 2, -1):
        yield Case(lambda x, y, index=index: op(x, y, 0, index), (real(4, 5), real(5)))


@cases("slice_scatter.default")
def _slice_scatter(op: Any) -> Cases:
    yield Case(lambda x, y: op(x, y, 0, 1, 3), (real(4, 5), real(2, 5)))
    yield Case(lambda x, y: op(x, y, 1, 0, -2), (real(4, 5), real(4, 3)))
    yield Case(lambda x, y: op(x, y, 1, 1, 5, 2), (real(4, 5), real(4, 2)))
    yield Case(op, (real(4, 5), real(4, 5)))


@cases("as_strided.default", "as_strided_copy.default")
def _as_strided(op: Any) -> Cases:
    yield Case(lambda x: op(x, [2, 3, 1, 1], [3, 1, 3, 3]), (real(2, 3, 1, 1),))
    yield Case(lambda x: op(x, [2, 3, 4], [8, 2, 1]), (real(2, 8),))
    yield Case(lambda x: op(x, [3, 2], [2, 1], 1), (real(10),))


# ---- places


@cases("embedding.default")
def _embedding(op: Any) -> Cases:
    yield Case(op, (real(9, 4), whole(2, 3, low=0, high=9)))


@cases("index_select.default")
def _index_select(op: Any) -> Cases:
    yield Case(lambda x, k: op(x, 1, k), (real(3, 6), whole(4, low=0, high=6)))


@cases("gather.default")
def _gather(op: Any) -> Cases:
    yield Case(lambda x, k: op(x, 1, k), (real(3, 6), whole(2, 4, low=0, high=6)))


@cases("index.Tensor", "_unsafe_index.Tensor")
def _index(op: Any) -> Cases:
    rows, columns = whole(2, 3, low=-4, high=4), whole(3, low=-5, high=5)
    yield Case(lambda x, k: op(x, [k]), (real(4, 5), rows))
    yield Case(lambda x, k: op(x, [None, k]), (real(4, 5, 2), columns))
    yield Case(lambda x, k, m: op(x, [k, m]), (real(4, 5, 2), rows, columns))
    yield Case(lambda x, k, m: op(x, [None, k, m]), (real(3, 4, 5), rows, columns))
    yield Case(lambda x, k, m: op(x, [None, k, m, None]), (real(3, 4, 5, 2), rows, columns))
    yield Case(lambda x, k, m: op(x, [k, None, m]), (real(4, 3, 5), rows, columns))


@cases("index_put.default", "_unsafe_index_put.default")
def _index_put(op: Any) -> Cases:
    for accumulate in (False, True):
        put = lambda x, k, v, a=accumulate: op(x, [k], v, a)  # noqa: E731
        yield Case(put, (real(6, 3), torch.tensor([4, 0, 2]), real(3, 3)))
        yield Case(put, (real(6, 3), torch.tensor([4, -1]), real()))
    yield Case(lambda x, k, m, v: op(x, [k, m], v), (real(6, 3), torch.tensor([4, 0]), torch.tensor([1, 2]), real(2)))
    yield Case(lambda x, k, v: op(x, [None, k], v), (real(2, 6, 3), torch.tensor([4, 0]), real(2, 2, 3)))
    yield Case(lambda x, m, v: op(x, [m], v), (real(4, 5), flags(4, 5), real()))
    yield Case(lambda x, m, v: op(x, [m], v), (real(4, 5), flags(4), real()))


@cases("scatter.src", "scatter_add.default")
def _scatter(op: Any) -> Cases:
    places = torch.tensor([[0, 2, 1], [3, 0, 2]])
    yield Case(lambda x, k, y: op(x, 1, k, y), (real(2, 4), places, real(2, 3)))
    yield Case(lambda x, k, y: op(x, -1, k, y), (real(2, 4), places, real(3, 4)))


@cases("scatter.value")
def _scatter_value(op: Any) -> Cases:
    yield Case(lambda x, k: op(x, 1, k, 2.5), (real(2, 4), torch.tensor([[0, 2, 1], [3, 0, 2]])))


@cases("scatter_reduce.two")
def _scatter_reduce(op: Any) -> Cases:
    for reduce in ("sum", "prod", "amax", "amin"):
        yield Case(lambda x, k, y, r=reduce: op(x, 0, k, y, r), (real(4, 3), whole(5, 3, low=0, high=4), real(5, 3)))


@cases("index_add.default", "index_copy.default")
def _index_add(op: Any) -> Cases:
    yield Case(lambda x, k, y: op(x, 1, k, y), (real(2, 4), torch.tensor([3, 0]), real(2, 2)))
    if op.__name__ == "index_add.default":
        yield Case(lambda x, k, y: op(x, 0, k, y, alpha=2), (real(2, 4), torch.tensor([1, 1, 0]), real(3, 4)))


# ---- from nothing


@cases(
    "full.default",
    "zeros.default",
    "ones.default",
    "arange.start_step",
    "arange.start",
    "arange.default",
    "eye.m",
    "scalar_tensor.default",
    "eye.default",
    "linspace.default",
)
def _new(op: Any) -> Cases:
    arguments: dict[str, list[Any]] = {
        "full.default": [([2, 3], 1.5), ([], 2)],
        "zeros.default": [([2, 3],)],
        "ones.default": [([2, 300, 100],)],
        "arange.start": [(2, 5)],
        "arange.default": [(5,)],
        "eye.m": [(3, 4)],
        "arange.start_step": [(0, 5), (1, 9, 2), (0, 1, 0.3)],
        "scalar_tensor.default": [(2.5,)],
        "eye.default": [(3,)],
        "linspace.default": [(0, 1, 7), (-3.0, 3.0, 4)],
    }
    for argument in arguments[op.__name__]:
        yield Case(lambda x, argument=argument: ops_add(op(*argument), x), (real(),))


def ops_add(x: Any, y: Any) -> Any:
    return torch.ops.aten.add.Tensor(x, y)


@cases("full_like.default", "new_full.default", "zeros_like.default", "ones_like.default", "new_zeros.default", "new_ones.default")
def _like(op: Any) -> Cases:
    size = [[2, 4]] if op.__name__.startswith("new_") else []
    value = [2] if "full" in op.__name__ else []
    yield Case(lambda x: op(x, *size, *value), (real(3, 5),))
    yield Case(lambda x: op(x, *size, *value), (whole(3, 5),))


@cases(
    "empty.memory_format",
    "empty_like.default",
    "new_empty.default",
    "empty_permuted.default",
    "empty_strided.default",
    "new_empty_strided.default",
)
def _empty(op: Any) -> Cases:
    arguments: dict[str, tuple[Any, ...]] = {
        "empty.memory_format": ([2, 3],),
        "empty_permuted.default": ([2, 3], [0, 1]),
        "empty_strided.default": ([2, 3], [3, 1]),
        "new_empty.default": ([2, 3],),
        "new_empty_strided.default": ([2, 3], [3, 1]),
    }
    first = "new" in op.__name__ or "like" in op.__name__
    given = arguments.get(op.__name__, ())
    yield Case(lambda x: torch.ops.aten.full_like.default(op(*((x,) if first else ()), *given), 3), (real(2, 3),))


@cases("fill.Scalar", "fill.Tensor")
def _fill(op: Any) -> Cases:
    if op._overloadname == "Scalar":
        yield Case(lambda x: op(x, 3.5), (real(2, 3),))
    else:
        yield Case(op, (real(2, 3), real()))


@cases("prims.iota.default")
def _iota(op: Any) -> Cases:
    iota = lambda x: ops_add(op(5, start=2, step=3, dtype=torch.int64, device=torch.device("cpu"), requires_grad=False), x)  # noqa: E731
    yield Case(iota, (whole(),))


@cases("prims.convert_element_type.default")
def _convert(op: Any) -> Cases:
    yield Case(lambda x: op(x, torch.int64), (real(9),))


# ---- products


@cases("mm.default", "bmm.default", "dot.default", "mv.default", "_int_mm.default")
def _product(op: Any) -> Cases:
    shapes: dict[str, Any] = {"mm": ((3, 5), (5, 4)), "bmm": ((2, 3, 5), (2, 5, 4)), "dot": ((5,), (5,)), "mv": ((3, 5), (5,))}
    name = op.__name__.split(".", maxsplit=1)[0]
    if name == "_int_mm":
        yield Case(op, (whole(32, 16, dtype=torch.int8), whole(16, 8, dtype=torch.int8)))
        return
    yield Case(op, tuple(real(*shape) for shape in shapes[name]))
    yield Case(op, tuple(whole(*shape) for shape in shapes[name]))


@cases("addmm.default", "baddbmm.default", "addmv.default")
def _add_product(op: Any) -> Cases:
    shapes: dict[str, Any] = {
        "addmm": ((4,), (3, 5), (5, 4)),
        "baddbmm": ((2, 3, 4), (2, 3, 5), (2, 5, 4)),
        "addmv": ((3,), (3, 5), (5,)),
    }
    tensors = tuple(real(*shape) for shape in shapes[op.__name__.split(".", maxsplit=1)[0]])
    yield Case(op, tensors)
    yield Case(lambda *t: op(*t, beta=0.5, alpha=2), tensors)
    yield Case(lambda *t: op(*t, beta=0), tensors)


# ---- windows


@cases("convolution.default")
def _convolution(op: Any) -> Cases:
    def conv(stride: Any, padding: Any, dilation: Any, transposed: bool = False, extra: Any = (0, 0), groups: int = 1) -> Any:
        return lambda x, w, b=None: op(x, w, b, stride, padding, dilation, transposed, extra, groups)

    yield Case(conv([1, 1], [0, 0], [1, 1]), (real(2, 3, 7, 8), real(4, 3, 3, 2), real(4)))
    yield Case(conv([2, 1], [1, 2], [1, 2], groups=2), (real(1, 4, 9, 8), real(6, 2, 3, 2)))
    yield Case(conv([2], [1], [1], extra=[0]), (real(2, 3, 9), real(4, 3, 3), real(4)))
    yield Case(conv([1, 2, 1], [1, 0, 1], [1, 1, 1], extra=[0, 0, 0]), (real(1, 2, 5, 6, 4), real(3, 2, 3, 3, 3)))
    yield Case(conv([2, 2], [1, 1], [1, 1], True, [1, 0]), (real(1, 4, 5, 6), real(4, 3, 3, 3), real(3)))
    yield Case(conv([2, 1], [0, 1], [1, 2], True, [0, 0], 2), (real(1, 4, 5, 6), real(4, 3, 3, 3)))


@cases("max_pool2d_with_indices.default")
def _max_pool(op: Any) -> Cases:
    for arguments in (([3, 3], [2, 2], [1, 1]), ([2, 2],), ([3, 2], [2, 2], [0, 0], [2, 1]), ([3, 3], [2, 2], [0, 0], [1, 1], True)):
        yield Case(lambda x, a=arguments: op(x, *a)[0], (real(2, 3, 10, 11),))
    yield Case(lambda x: op(x, [3, 3], [2, 2], [1, 1], [1, 1], True)[0], (real(3, 8, 9),))


@cases("max_pool3d_with_indices.default")
def _max_pool3(op: Any) -> Cases:
    yield Case(lambda x: op(x, [2, 2, 3], [2, 1, 2])[0], (real(1, 2, 6, 5, 7),))


@cases("avg_pool2d.default", "avg_pool3d.default")
def _avg_pool(op: Any) -> Cases:
    n = int(op.__name__[8])
    x = real(2, 3, *range(9, 9 + n))
    each = lambda k: [k] * n  # noqa: E731
    for arguments in (
        (each(3), each(2)),
        (each(2),),
        (each(3), each(2), each(1), False, True),
        (each(3), each(2), each(1), False, False),
        (each(3), each(2), each(1), True, True),
        (each(3), each(2), each(1), True, False),
        (each(2), each(2), each(0), True),
    ):
        yield Case(lambda x, a=arguments: op(x, *a), (x,))


@cases("_adaptive_avg_pool2d.default")
def _adaptive(op: Any) -> Cases:
    for size in ([1, 1], [3, 4], [4, 3], [7, 7], [12, 5]):
        yield Case(lambda x, size=size: op(x, size), (real(2, 3, 9, 8),))


@cases("_adaptive_avg_pool3d.default")
def _adaptive3(op: Any) -> Cases:
    yield Case(lambda x: op(x, [2, 1, 3]), (real(1, 2, 4, 3, 9),))


@cases("adaptive_max_pool2d.default")
def _adaptive_max(op: Any) -> Cases:
    yield Case(lambda x: op(x, [3, 2])[0], (real(2, 3, 9, 8),))


@cases("adaptive_max_pool3d.default")
def _adaptive_max3(op: Any) -> Cases:
    yield Case(lambda x: op(x, [2, 1, 3])[0], (real(1, 2, 4, 3, 9),))


@cases("upsample_nearest1d.default", "upsample_nearest2d.default", "upsample_nearest3d.default")
def _nearest(op: Any) -> Cases:
    n = int(op.__name__[16])
    yield Case(lambda x: op(x, [8, 7, 9][:n]), (real(1, 2, *[4, 5, 3][:n]),))
    yield Case(lambda x: op(x, [8, 10, 6][:n], *[2.0] * n), (real(1, 2, *[4, 5, 3][:n]),))


@cases("_upsample_nearest_exact1d.default", "_upsample_nearest_exact2d.default")
def _nearest_exact(op: Any) -> Cases:
    n = int(op.__name__[23])
    yield Case(lambda x: op(x, [8, 7][:n]), (real(1, 2, *[4, 5][:n]),))


@cases("upsample_linear1d.default", "upsample_bilinear2d.default", "upsample_trilinear3d.default", "upsample_bicubic2d.default")
def _linear(op: Any) -> Cases:
    n = next(int(letter) for letter in op.__name__ if letter.isdigit())
    for align in (False, True):
        yield Case(lambda x, align=align: op(x, [8, 7, 9][:n], align), (real(1, 2, *[4, 5, 3][:n]),))
        yield Case(lambda x, align=align: op(x, [8, 10, 6][:n], align, *[2.0] * n), (real(1, 2, *[4, 5, 3][:n]),))


@cases("grid_sampler_2d.default")
def _grid(op: Any) -> Cases:
    for mode in (0, 1):
        for padding in (0, 1, 2):
            yield Case(lambda x, g, m=mode, p=padding: op(x, g, m, p, False), (real(1, 2, 5, 6), real(1, 4, 3, 2, low=-1.3, high=1.3)))
    yield Case(lambda x, g: op(x, g, 0, 0, True), (real(1, 2, 5, 6), real(1, 4, 3, 2, low=-1.3, high=1.3)))


@cases("im2col.default")
def _im2col(op: Any) -> Cases:
    yield Case(lambda x: op(x, [3, 2], [1, 2], [1, 0], [2, 1]), (real(2, 3, 7, 8),))


# ---- norms and attention


@cases("native_layer_norm.default")
def _layer_norm(op: Any) -> Cases:
    yield Case(lambda x, w, b: op(x, [5], w, b, 1e-5)[0], (real(3, 4, 5), real(5), real(5)))
    yield Case(lambda x: op(x, [4, 5], None, None, 1e-3)[0], (real(3, 4, 5),))
    yield Case(lambda x, w: op(x, [5], w, None, 1e-5)[0], (real(3, 4, 5), real(5)))


@cases("native_group_norm.default")
def _group_norm(op: Any) -> Cases:
    yield Case(lambda x, w, b: op(x, w, b, 2, 6, 20, 3, 1e-5)[0], (real(2, 6, 4, 5), real(6), real(6)))
    yield Case(lambda x: op(x, None, None, 2, 6, 20, 2, 1e-5)[0], (real(2, 6, 4, 5),))


@cases("_native_batch_norm_legit_no_training.default")
def _batch_norm(op: Any) -> Cases:
    run = lambda x, w, b, m, v: op(x, w, b, m, v, 0.1, 1e-5)[0]  # noqa: E731
    yield Case(run, (real(2, 6, 4, 5), real(6), real(6), real(6), real(6, low=0.5)))
    yield Case(lambda x, m, v: op(x, None, None, m, v, 0.1, 1e-3)[0], (real(2, 6, 4), real(6), real(6, low=0.5)))
    yield Case(run, (real(3, 6), real(6), real(6), real(6), real(6, low=0.5)))


@cases("_native_batch_norm_legit.no_stats")
def _instance_norm(op: Any) -> Cases:
    yield Case(lambda x, w, b: op(x, w, b, True, 0.1, 1e-5)[0], (real(1, 6, 4, 5), real(6), real(6)))
    yield Case(lambda x: op(x, None, None, True, 0.1, 1e-5)[0], (real(1, 6, 20),))


@cases("_scaled_dot_product_flash_attention_for_cpu.default")
def _flash(op: Any) -> Cases:
    q, k, v = real(2, 3, 5, 8), real(2, 3, 7, 8), real(2, 3, 7, 8)
    yield Case(lambda q, k, v: op(q, k, v)[0], (q, k, v))
    yield Case(lambda q, k, v: op(q, k, v, scale=0.3)[0], (q, k, v))
    yield Case(lambda q, k, v: op(q, k, v, 0.0, True)[0], (real(2, 3, 5, 8), real(2, 3, 5, 8), real(2, 3, 5, 8)))
    yield Case(lambda q, k, v, m: op(q, k, v, attn_mask=m)[0], (q, k, v, real(5, 7)))
    yield Case(lambda q, k, v, m: op(q, k, v, attn_mask=m)[0], (q, k, v, real(2, 1, 5, 7)))


# ---- recurrent layers


@cases("aspen_mp.lstm.default", "aspen_mp.gru.default", "aspen_mp.rnn_tanh.default", "aspen_mp.rnn_relu.default")
def _recurrent(op: Any) -> Cases:
    """Weights are constants, as those of modules are."""
    kind = str(op).split(".")[1]
    gates, count = {"lstm": (4, 2), "gru": (3, 1)}.get(kind, (1, 1))
    for layers, two, first, biases in ((1, False, False, True), (1, True, True, False), (3, True, True, True), (2, False, False, False)):
        shapes: list[tuple[int, ...]] = []
        for layer in range(layers):
            one = [(gates * 5, 6 if layer == 0 else 5 * (1 + two)), (gates * 5, 5)] + [(gates * 5,)] * (2 * biases)
            shapes += one * (1 + two)
        weights = [torch.nn.Parameter(real(*shape, low=-1, high=1), requires_grad=False) for shape in shapes]
        states = [real(layers * (1 + two), 2, 5) for _ in range(count)]

        def call(x: Any, *hx: Any, weights: Any = weights, options: Any = (biases, layers, 0.1, False, two, first)) -> Any:
            return op(x, list(hx) if len(hx) > 1 else hx[0], weights, *options)

        yield Case(call, (real(*((2, 4) if first else (4, 2)), 6), *states))
