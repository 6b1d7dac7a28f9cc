"""What a plan for a shape bucket is at other lengths, as a client works it out."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from aspen_mp.client.requests.lengths import Key
from aspen_mp.client.requests.lengths import KnownBucket as Known
from aspen_mp.control.planning import shape_buckets
from aspen_mp.control.wire.protocol import Bucket, Follows, Planned, Slot

LEAST, MOST = 16, 127


def step(past: int, new: int = 1, name: str = "keys") -> Key:
    return ("ids", (1, new)), ("mask", (1, past + new)), (name, (1, 3, past, 64))


def answer(extent: int) -> Planned:
    """What the planner process says of a decoder's step: its cache grows, the logits do not."""
    inputs = [Slot("ids", "int64", [1, 1], 0, 8), Slot("mask", "int64", [1, MOST + 1], 64, 8 * (MOST + 1))]
    inputs.append(Slot("keys", "float32", [1, 3, MOST, 64], 4096, 4 * 3 * MOST * 64))
    outputs = [
        Slot("logits", "float32", [1, 1, 50], 1 << 20, 200),
        Slot("present", "float32", [1, 3, MOST + 1, 64], 2 << 20, 768 * (MOST + 1)),
    ]
    one = Follows(1, 0, 1), Follows(2, 0, 1)
    axes = ((0, 0), (0, 1), (0, 0, 1, 0))
    found = Bucket((LEAST,), (MOST,), 1, axes, [], [[], [one[0]], [one[1]]], [[], [one[1]]], (0,))
    return Planned(7, 1, 2, 4 << 20, inputs, outputs, [], True, False, 1, extent, 64, found)


@given(st.integers(LEAST, MOST), st.integers(LEAST, MOST))
def test_shapes_at_every_extent_of_it(asked: int, extent: int) -> None:
    planned = Known(answer(asked), step(asked)).at(step(extent))
    assert planned is not None
    assert planned.extent == extent
    assert [tuple(slot.shape) for slot in planned.inputs] == [shape for _, shape in step(extent)]
    assert [slot.shape for slot in planned.outputs] == [[1, 1, 50], [1, 3, extent + 1, 64]]
    assert planned.outputs[1].nbytes == 768 * (extent + 1)
    assert (planned.plan, planned.generation, planned.region, planned.often) == (1, 2, 4 << 20, 64)
    assert [slot.offset for slot in (*planned.inputs, *planned.outputs)] == [0, 64, 4096, 1 << 20, 2 << 20]


def test_other_requests_are_not_its() -> None:
    known = Known(answer(20), step(20))
    (ids, mask, keys), longer = step(30), step(31)
    assert known.at(step(30)) is not None
    for other in (
        step(LEAST - 1),
        step(MOST + 1),
        step(30, new=2),
        step(30, name="values"),
        (ids, mask),
        (ids, mask, keys, keys),
        (ids, longer[1], keys),
        (ids, mask, longer[2]),
        (mask, ids, keys),
        (ids, ("mask", (31,)), keys),
        (ids, ("mask", ()), keys),
        (ids, mask, ("keys", (2, 3, 30, 64))),
        (("ids", (1, 1, 1)), mask, keys),
    ):
        assert known.at(other) is None


def test_it_is_told_whole() -> None:
    planned = answer(20)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(planned), type=Planned) == planned
    assert shape_buckets.slots(planned.inputs, [[], [], []], [5]) == planned.inputs


def test_lengths_that_a_stage_does_not_depend_on_are_in_no_word() -> None:
    """Behind a picture [1, 3, height, width] and some boxes: the plan has one extent, the number of boxes."""
    follows = [[Follows(0, 0, 1)]]
    slot = Slot("boxes", "float32", [99, 4], 0, 16 * 99)
    axes = ((0, 0, 1, 2), (3, 0))
    found = Bucket((2, 2, 2), (500, 400, 99), 1, axes, [], follows, follows, (2,))
    planned = Planned(7, 1, 2, 1 << 20, [slot], [slot], [], True, False, 1, 20, 64, found)

    def key(height: int, width: int, boxes: int) -> Key:
        return ("picture", (1, 3, height, width)), ("boxes", (boxes, 4))

    known = Known(planned, key(64, 48, 20), b"two stages")
    assert known.structure == b"two stages"
    for boxes in (2, 20, 99):
        there = known.at(key(500, 2, boxes))
        assert there is not None
        assert (there.extent, there.inputs[0].shape, there.outputs[0].nbytes) == (boxes, [boxes, 4], 16 * boxes)
    for other in (key(501, 48, 20), key(64, 1, 20), key(64, 48, 100), key(64, 48, 1)):
        assert known.at(other) is None
