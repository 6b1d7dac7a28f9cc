"""Which requests share a plan for a shape bucket."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import gcd

from hypothesis import given
from hypothesis import strategies as st

from aspen_mp.control.planning import shape_buckets
from aspen_mp.control.planning.shape_buckets import Buckets, Range, StageBuckets, WantedBucket
from aspen_mp.control.wire.protocol import Bind, Capacity, Follows, Slot
from aspen_mp.planner.job.bucket_policy import POLICY


def text(tokens: int, batch: int = 1) -> list[Bind]:
    return [Bind("ids", "int64", [batch, tokens], None), Bind("mask", "int64", [batch, tokens], None)]


def decoder(past: int, new: int = 1) -> list[Bind]:
    return [
        Bind("ids", "int64", [1, new], None),
        Bind("mask", "int64", [1, past + new], None),
        Bind("keys", "float32", [1, 3, past, 64], None),
    ]


def ends(bucket: WantedBucket) -> list[tuple[int, int]]:
    return [(one.least[0], one.most[0]) for one in bucket.ranges]


def broad(bucket: WantedBucket) -> tuple[int, int] | None:
    return next((found for found, one in zip(ends(bucket), bucket.ranges, strict=True) if one.demand == "busy"), None)


def wide(bucket: WantedBucket) -> tuple[int, int] | None:
    return next((found for found, one in zip(ends(bucket), bucket.ranges, strict=True) if one.demand == "even"), None)


@given(st.integers(2, 1 << 20))
def test_every_extent_is_in_one_class(extent: int) -> None:
    found = shape_buckets.narrow_bucket(extent)
    assert found is not None
    least, most = found
    assert least <= extent <= most
    assert shape_buckets.narrow_bucket(least) == shape_buckets.narrow_bucket(most) == found
    assert shape_buckets.narrow_bucket(most + 1) != found
    assert extent < 16 or most + 1 <= 1.5 * least


def test_one_and_huge_lengths_are_in_none() -> None:
    assert shape_buckets.narrow_bucket(1) is None
    assert shape_buckets.narrow_bucket(0) is None
    assert shape_buckets.narrow_bucket(POLICY.most_extent + 1) is None


@given(st.integers(1, 1000), st.integers(1, 1000), st.integers(1, 1000))
def test_parts_of_a_range_shrink_towards_the_extent(least: int, width: int, at: int) -> None:
    most = least + width
    extent = least + at % (width + 1)
    found = list(shape_buckets.halves(least, most, extent))
    assert found[0] == (least, most)
    for (a, b), (c, d) in pairwise(found):
        assert a <= c <= extent <= d <= b
        assert d - c < b - a


def test_what_differs_by_one_number_is_one_length() -> None:
    assert shape_buckets.difference(text(5), text(9)) == ((0, 1), (0, 1))
    assert shape_buckets.difference(decoder(5), decoder(6)) == ((0, 0), (0, 1), (0, 0, 1, 0))
    assert shape_buckets.difference(text(5, 1), text(9, 2)) == ((1, 2), (1, 2))  # batch and length
    assert shape_buckets.difference(text(5), text(5)) is None
    assert shape_buckets.difference(text(5), decoder(5)) is None
    assert shape_buckets.difference(text(5, 1), text(6, 2)) == ((1, 1), (1, 1))  # by the same number: who knows


def test_the_extent_is_the_smallest_of_the_dimensions() -> None:
    axes = shape_buckets.difference(decoder(5), decoder(6))
    assert axes is not None
    assert shape_buckets.lengths_of(decoder(7), axes) == (7,)
    assert shape_buckets.family(decoder(7), axes) == shape_buckets.family(decoder(70), axes)
    assert shape_buckets.family(decoder(7), axes) != shape_buckets.family(decoder(7, 2), axes)


def test_nothing_is_wanted_before_two_shapes_are_known() -> None:
    known = Buckets()
    known.learn(text(20))
    assert known.wanted(text(20)) is None
    known.learn(text(40))
    bucket = known.wanted(text(40))
    assert bucket is not None
    assert (ends(bucket)[-1], bucket.lengths) == ((32, 47), (40,))
    assert bucket.at(text(40), (47,)) == text(47)


def test_plans_are_found_by_any_length_of_theirs() -> None:
    known = Buckets()
    known.learn(text(20))
    known.learn(text(40))
    bucket = known.wanted(text(40))
    assert bucket is not None
    known.add(text(40), bucket, Range((32,), (47,)), b"plan")
    assert known.find(text(33)) == b"plan"
    assert known.find(text(48)) is None
    assert known.find(text(33, batch=2)) is None
    known.drop(b"plan")
    assert known.find(text(33)) is None


def test_a_class_without_a_plan_is_not_asked_for_again() -> None:
    known = Buckets()
    known.learn(text(20))
    known.learn(text(40))
    bucket = known.wanted(text(40))
    assert bucket is not None
    known.refuse(text(40), bucket, no_bucket=False)
    assert known.wanted(text(33)) is None
    assert known.wanted(text(48)) is not None
    for tokens in (48, 64):
        other = known.wanted(text(tokens))
        assert other is not None
        known.refuse(text(tokens), other, no_bucket=False)
    assert known.wanted(text(100)) is None  # such models have none


def test_a_class_that_holds_few_lengths_is_not_asked_for() -> None:
    """Sides of pictures come in steps of 32, say: a plan for all sizes between two of them serves few."""

    def picture(height: int, width: int) -> list[Bind]:
        return [Bind("x", "float32", [1, 3, height, width], None)]

    for step, wanted in ((64, False), (2, True)):
        known = Buckets()
        small, large = (picture(side * step, (side + 7) * step) for side in (6, 7))  # both sides longer by the same
        known.learn(small)
        known.learn(large)
        assert (known.wanted(large) is not None) == wanted
    known = Buckets()
    for tokens in (32, 64, 96):
        known.learn(text(tokens))
    assert known.wanted(text(64)) is not None  # which may be by chance


def test_a_length_without_plans_is_not_asked_for_in_other_classes() -> None:
    known = Buckets()
    known.learn(text(20))
    known.learn(text(40))
    bucket = known.wanted(text(40))
    assert bucket is not None
    known.refuse(text(40), bucket, no_bucket=True)
    assert known.wanted(text(100)) is None
    known.learn(text(40, batch=2))  # another length: the batch
    other = known.wanted(text(40, batch=3))
    assert other is not None
    assert ends(other)[-1] == (2, 7)


@given(st.integers(2, 1 << 20), st.integers(0, 1 << 20))
def test_large_classes_hold_the_others(extent: int, nbytes: int) -> None:
    found, wide = shape_buckets.narrow_bucket(extent), shape_buckets.wide_bucket(extent, lambda least, most: (most - least) * nbytes)
    assert found is not None
    if wide is None:
        assert (found[1] - found[0]) * nbytes > POLICY.wide_bytes / 4
        return
    assert wide[0] <= found[0] <= extent <= found[1] <= wide[1]
    assert (wide[1] - wide[0]) * nbytes <= POLICY.wide_bytes


def test_a_large_class_is_asked_for_until_there_is_less_than_it() -> None:
    known = Buckets()
    known.learn(text(20))
    known.learn(text(40))
    bucket = known.wanted(text(40))
    assert bucket is not None
    assert wide(bucket) == (2, 1023)
    known.add(text(40), bucket, Range((32,), (47,)), b"plan")
    other = known.wanted(text(100))
    assert other is not None
    assert wide(other) is None


def test_how_large_a_class_is_depends_on_the_cache() -> None:
    known = Buckets()
    known.learn(decoder(20))
    known.learn(decoder(21))
    cache = 3 * 64 * 4 + 8
    for past in (2, 40, 1000, 5000, 40000):
        bucket = known.wanted(decoder(past))
        assert bucket is not None
        found = wide(bucket)
        assert found is not None
        least, most = found
        assert (most - least) * cache <= POLICY.wide_bytes
    bucket = known.wanted(decoder(500000))
    assert bucket is not None
    assert wide(bucket) is None


@given(st.integers(0, 60))
def test_slots_shrink(less: int) -> None:
    slots = [Slot("y", "float32", [2, 64, 10], 128, 2 * 64 * 10 * 4)]
    (found,) = shape_buckets.slots(slots, [[Follows(1, 0, 1), Follows(2, 1, 3)]], [less, (less + 5) // 20])
    assert found.shape == [2, 64 - less, 10 - 3 * ((less + 5) // 20)]
    assert found.nbytes == 4 * found.shape[0] * found.shape[1] * found.shape[2]
    assert found.offset == 128


@given(st.integers(2, 1 << 20))
def test_broad_buckets_consist_of_narrow_ones(extent: int) -> None:
    narrow, broad = shape_buckets.narrow_bucket(extent), shape_buckets.broad_bucket(extent)
    assert narrow is not None
    assert broad is not None
    assert broad[0] <= narrow[0] <= extent <= narrow[1] <= broad[1]
    assert shape_buckets.broad_bucket(broad[0]) == shape_buckets.broad_bucket(broad[1]) == broad


@given(st.lists(st.integers(16, 256), min_size=2, max_size=100, unique=True))
def test_lengths_of_texts_take_two_plans_besides_the_first(lengths: list[int]) -> None:
    known, plans = Buckets(), 0
    for tokens in lengths:
        known.learn(text(tokens))
        bucket = known.wanted(text(tokens))
        if bucket is None or known.find(text(tokens)) is not None:
            continue
        plans += 1
        found = broad(bucket)
        assert found is not None
        known.add(text(tokens), bucket, Range(found[:1], found[1:], 1, "busy"), b"%d" % plans)
    assert plans <= 2 + len(lengths) * (gcd(*lengths) >= POLICY.least_step)


def test_a_broad_bucket_is_asked_for_until_there_is_less_than_it() -> None:
    known = Buckets()
    known.learn(text(20))
    known.learn(text(40))
    bucket = known.wanted(text(40))
    assert bucket is not None
    assert broad(bucket) == (32, 511)
    assert ends(bucket) == [(2, 1023), (32, 511), (32, 47)]
    known.add(text(40), bucket, Range((32,), (47,)), b"plan")
    for tokens, expected in ((100, None), (20, (2, 31)), (600, (512, 8191))):
        other = known.wanted(text(tokens))
        assert other is not None
        assert broad(other) == expected


def test_names_of_axes_say_what_has_changed() -> None:
    """Batch and length at once: neither of them is what two requests differ by alone."""
    batch, length = shape_buckets.symbols_of([["batch", "tokens"], ["batch", "tokens"]])
    known = Buckets()
    known.learn(text(20, batch=3), [batch, length])
    assert known.lengths == []
    known.learn(text(47, batch=5), [batch, length])
    assert known.lengths == [((1, 2), (1, 2)), length, batch]  # together, then the longer one
    known.learn(text(48, batch=6), [batch, length])
    assert ((1, 1), (1, 1)) in known.lengths  # by the same number: of a decoder these are one length
    assert known.lengths[1] == length
    other = Buckets()
    other.learn(text(20, batch=3))
    other.learn(text(47, batch=5))
    assert other.lengths == [((1, 2), (1, 2))]


def picture(height: int, width: int, batch: int = 1) -> list[Bind]:
    return [Bind("x", "float32", [batch, 3, height, width], None)]


PLAIN: Range = Range((160, 160), (640, 640), 1, "busy")


def learned(*shapes: list[Bind], symbols: Sequence[shape_buckets.Axes] = ()) -> Buckets:
    known = Buckets()
    for binds in shapes:
        known.learn(binds, symbols)
    return known


def test_sides_of_pictures_are_lengths_of_one_bucket() -> None:
    known = learned(picture(200, 300), picture(251, 477))
    bucket = known.wanted(picture(251, 477))
    assert bucket is not None
    assert bucket.axes == ((0, 0, 1, 2),)
    assert bucket.lengths == (251, 477)
    assert bucket.ranges == (PLAIN, Range((160, 320), (320, 640), 1, "busy"))
    assert bucket.largest(picture(251, 477), PLAIN) == picture(640, 640)
    known.add(picture(251, 477), bucket, PLAIN, b"plan")
    assert known.find(picture(160, 640)) == b"plan"
    assert known.find(picture(160, 641)) is None
    assert known.find(picture(200, 300, batch=2)) is None
    known.drop(b"plan")
    assert known.find(picture(160, 640)) is None


def test_sides_may_come_in_coarse_steps() -> None:
    """A model that takes multiples of 32 alone has no plan for other sizes: the last ranges are in such steps."""
    known = learned(picture(224, 320), picture(256, 480))
    bucket = known.wanted(picture(256, 480))
    assert bucket is not None
    coarse = Range((5, 5), (20, 20), 32, "busy")
    assert bucket.ranges[0] == PLAIN
    assert bucket.ranges[2] == coarse
    assert bucket.largest(picture(256, 480), coarse) == picture(640, 640)
    known.add(picture(256, 480), bucket, coarse, b"plan")
    assert known.find(picture(160, 608)) == b"plan"
    assert known.find(picture(161, 608)) is None
    assert known.wanted(picture(161, 608)) is None, "the model has none in steps of one"


def test_batches_of_texts_have_broad_buckets() -> None:
    bucket = learned(text(20, batch=3), text(47, batch=5)).wanted(text(47, batch=5))
    assert bucket is not None
    assert [(one.least, one.most) for one in bucket.ranges] == [((2, 32), (31, 511)), ((2, 40), (10, 160)), ((2, 40), (10, 80))]


def test_more_lengths_than_a_plan_has_are_none() -> None:
    one, other = (Bind("x", "float32", [2 * k, 3 * k, 5 * k, 7 * k], None) for k in (1, 2))
    assert shape_buckets.difference([one], [other]) is None


@given(st.integers(2, 1 << 14), st.sampled_from(POLICY.side_factors))
def test_every_side_is_in_a_bucket(side: int, factor: int) -> None:
    least, most = shape_buckets.side_bucket(side, factor)
    assert least <= side <= most
    assert most <= factor * least or least == POLICY.least_extent


# ---- stages behind others


def behind(height: int, width: int, boxes: int, kept: int, value: bytes | None = None) -> list[list[Bind]]:
    """A picture, the boxes in it, and those that are kept; perhaps a value that decides shapes."""
    picture = Bind("picture", "float32", [1, 3, height, width], None)
    found = [Bind("boxes", "float32", [boxes, 4], None), Bind("scores", "float32", [boxes], None)]
    last = [Bind("kept", "int64", [kept], None)] + ([] if value is None else [Bind("k", "int64", [], value)])
    return [[picture], found, last]


def test_binds_of_stages_follow_each_other() -> None:
    stages = behind(60, 80, 20, 7)
    assert shape_buckets.nested(shape_buckets.flat(stages), stages) == stages
    assert [bind.name for bind in shape_buckets.flat(stages)] == ["picture", "boxes", "scores", "kept"]


def test_stages_that_may_share_plans() -> None:
    def of(stages: list[list[Bind]], *capacities: Capacity) -> bytes:
        return shape_buckets.structure(stages, capacities)

    one = of(behind(60, 80, 20, 7))
    assert of(behind(61, 70, 0, 1)) == one
    others = [
        of(behind(60, 80, 20, 7)[:2]),
        of([*behind(60, 80, 20, 7)[:2], []]),
        of(behind(60, 80, 20, 7, b"1")),
        of(behind(60, 80, 20, 7, b"2")),
        of(behind(60, 80, 20, 7), Capacity("kept", 4096)),
        of([[Bind("picture", "object", [512], None)], *behind(60, 80, 20, 7)[1:]]),
        of([[Bind("picture", "object", [1024], None)], *behind(60, 80, 20, 7)[1:]]),
    ]
    assert len({one, *others}) == 1 + len(others)


def test_a_stage_behind_others_may_have_more_lengths_than_a_plan_has_extents() -> None:
    """Which of them it depends on is the planner's to say. Sides of pictures and numbers of boxes have buckets of their own kinds."""
    known = StageBuckets().of(behind(60, 80, 20, 7), [])
    first = Buckets()
    for stages in (behind(60, 80, 20, 7), behind(90, 75, 33, 12)):
        known.learn(shape_buckets.flat(stages))
        first.learn(shape_buckets.flat(stages))
    assert first.wanted(shape_buckets.flat(behind(90, 75, 33, 12))) is None
    wanted = known.wanted(shape_buckets.flat(behind(90, 75, 33, 12)))
    assert wanted is not None
    assert wanted.axes == ((0, 0, 1, 2), (3, 0), (3,), (4,))
    assert (wanted.widest.least, wanted.widest.most) == ((40, 40, 32, 2), (160, 160, 511, 31))


def test_plans_for_more_lengths_are_tried_first() -> None:
    known = StageBuckets().of(behind(60, 80, 20, 7), [])
    requests = [shape_buckets.flat(stages) for stages in (behind(60, 80, 20, 7), behind(60, 80, 20, 9), behind(61, 90, 20, 12))]
    for binds in requests:
        known.learn(binds)
    wanted = known.wanted(requests[-1])
    assert wanted is not None
    assert shape_buckets.count(wanted.axes) == 3
    for _ in range(POLICY.refusals):  # in one range after the other
        known.refuse(requests[-1], wanted, False)
    wanted = known.wanted(requests[-1])
    assert wanted is not None
    assert shape_buckets.count(wanted.axes) == 1
    known.add(requests[-1], wanted, wanted.widest, b"plan")
    assert known.find(shape_buckets.flat(behind(61, 90, 20, 13))) == b"plan"
    assert known.find(shape_buckets.flat(behind(61, 91, 20, 13))) is None


def test_a_wider_range_is_not_one_that_there_was_no_plan_for() -> None:
    """Lengths that a stage does not depend on are served in wider ranges than were wanted."""
    stages = [shape_buckets.flat(behind(60, 80, 20, 7)), shape_buckets.flat(behind(90, 75, 33, 7))]
    known = StageBuckets().of(behind(60, 80, 20, 7), [])
    for binds in stages:
        known.learn(binds)
    wanted = known.wanted(stages[1])
    assert wanted is not None
    wider = Range((2, 2, 32), (999, 999, 511))
    assert wider.covers(wanted.widest)
    assert not wanted.widest.covers(wider)
    known.add(stages[1], wanted, wider, b"plan")
    assert not known.split
    assert known.find(shape_buckets.flat(behind(500, 3, 32, 7))) == b"plan"


def test_stages_without_plans_are_forgotten_first() -> None:
    buckets = StageBuckets()
    stages = behind(60, 80, 20, 7)
    kept = buckets.of(stages, [])
    kept.plans[b"family"] = [(Range((2,), (9,)), b"plan")]
    for k in range(2 * POLICY.remembered_stages):
        buckets.of(behind(60, 80, 20, 7, str(k).encode()), [])
    assert buckets.of(stages, []) is kept
    assert len(buckets._of) == POLICY.remembered_stages
    assert buckets.keys() == {b"plan"}
    buckets.drop(b"plan")
    assert not buckets.keys()
