"""A client that writes nonsense into all memory that it has been given, while requests of its own run on it.

    python scribbler.py NAME SEED SECONDS

It loads models whose kernels and reference operators read indices, sizes and serialised values from its data segment, publishes good and
bad requests, and meanwhile overwrites inputs, outputs, slots, bit masks and the doorbell page. Some plans are those of streams, which keep
activations and changed boxes in its data segment, too. Prints how many requests it published.
"""

from __future__ import annotations

import mmap
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import folders  # noqa: F401  others are found then
import small_models
from guests import Guest
from slots import FIRST_SLOT, SLOT_BYTES

from aspen_mp.control.wire import protocol
from aspen_mp.planner.job.options import Keeping
from aspen_mp.shm import values
from aspen_mp.shm.bindings import _channel
from aspen_mp.shm.errors import AspenError
from aspen_mp.shm.tables import NUMBERS

F32, I64 = TensorProto.FLOAT, TensorProto.INT64
ROWS = 300


def _value(name: str, kind: int, shape: list[Any]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _model(node: onnx.NodeProto, inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]) -> onnx.ModelProto:
    graph = helper.make_graph([node], node.op_type, inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def _ranked() -> onnx.ModelProto:
    """Indices and divisors that are activations."""
    n, node = [ROWS, 7], helper.make_node
    three = helper.make_tensor("k", I64, [1], [3])
    nodes = [
        node("TopK", ["x", "k"], ["v", "i"], axis=0),
        node("GatherElements", ["x", "i"], ["g"], axis=0),
        node("ArgMax", ["x"], ["a"], axis=1, keepdims=0),
        node("Gather", ["x", "a"], ["b"], axis=1),
        node("Mod", ["i", "i"], ["m"]),
    ]
    outputs = [_value("g", F32, None), _value("b", F32, None), _value("m", I64, None)]
    graph = helper.make_graph(nodes, "ranked", [_value("x", F32, n)], outputs, [three])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def models() -> dict[str, tuple[onnx.ModelProto, dict[str, list[int]]]]:
    """Each with the shapes of its inputs: kernels that read indices and divide integers, reference operators that sort and scatter."""
    n = [ROWS, 7]
    x, i = _value("x", F32, n), _value("i", I64, n)
    y = _value("y", F32, n)
    node = helper.make_node
    points, k = _value("i", I64, [50, 2]), _value("k", I64, [1])
    return {
        "mlp": (small_models.mlp(), {"x": [4, 16]}),
        "gather": (_model(node("Gather", ["x", "i"], ["y"]), [x, i], [_value("y", F32, [*n, 7])]), {"x": n, "i": n}),
        "elements": (_model(node("GatherElements", ["x", "i"], ["y"], axis=0), [x, i], [y]), {"x": n, "i": n}),
        "divide": (
            _model(node("Mod", ["i", "j"], ["k"]), [i, _value("j", I64, n)], [_value("k", I64, n)]),
            {"i": n, "j": n},
        ),
        "nd": (
            _model(node("GatherND", ["x", "i"], ["y"]), [x, points], [_value("y", F32, [50])]),
            {"x": n, "i": [50, 2]},
        ),
        "scatter": (_model(node("ScatterElements", ["x", "i", "u"], ["y"]), [x, i, _value("u", F32, n)], [y]), {"x": n, "i": n, "u": n}),
        "sorted": (
            _model(node("TopK", ["x", "k"], ["y", "j"], axis=0), [x, k], [_value("y", F32, None), _value("j", I64, None)]),
            {"x": n, "k": [1]},
        ),
        "ranked": (_ranked(), {"x": n}),
        "chain": (small_models.conv_chain(3, 8, 16), {"x": [1, 8, 16, 16]}),
        "nonzero": (small_models.nonzero(), {"x": [2000]}),
        "strings": (small_models.strings(), {"a": [40], "b": [40]}),
    }


class Scribbler:
    def __init__(self, name: str, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.guest = Guest(name)
        self.own, self.bell = (self._map(fd, np.uint32) for fd in self.guest.fds[:2])
        self.heads = [memory[:16].copy() for memory in (self.own, self.bell)]
        self.number = 0
        self.published = 0
        self.segments: list[tuple[int, Any]] = [self._segment(n) for n in (1 << 16, 1 << 20, 1 << 22)]
        self.plans: list[protocol.Planned] = []
        self.keeping: set[int] = set()  # plans of streams
        for label, (model, shapes) in models().items():
            self._load(label, model, shapes)
        assert len(self.plans) >= 16, "too few of the models could be planned"
        assert len(self.keeping) >= 6, "too few of the models have plans for streams"
        self.channel = _channel.ClientChannel(self.own.data, self.bell.data)

    def _map(self, fd: int, dtype: Any) -> Any:
        return np.frombuffer(mmap.mmap(fd, os.fstat(fd).st_size), dtype)

    def _ask(self, *fields: Any, fds: tuple[int, ...] = ()) -> Any:
        self.number += 1
        return self.guest.ask(fields[0], self.number, *fields[1:], fds=fds)

    def _segment(self, nbytes: int) -> tuple[int, Any]:
        before = len(self.guest.fds)
        ready = self._ask("Data", nbytes)
        assert isinstance(ready, protocol.DataReady)
        return ready.index, self._map(self.guest.fds[before], np.uint8)

    def _load(self, label: str, model: onnx.ModelProto, shapes: dict[str, list[int]]) -> None:
        fd = os.memfd_create(label)
        os.write(fd, model.SerializeToString())
        loaded = self._ask("Load", "", label, {"instances": 2}, fds=(fd,))
        os.close(fd)
        assert isinstance(loaded, protocol.Loaded), loaded
        binds = []
        for value in loaded.inputs:
            if value.dtype == "object":
                binds.append([value.name, "object", [1 << 16], None])
            else:
                wanted = np.array([5]).tobytes() if label == "sorted" and value.name == "k" else None
                binds.append([value.name, value.dtype, shapes[value.name], wanted])
        kinds: tuple[Keeping, ...] = ("", "bits")
        for kind in kinds:
            planned = self._ask("MakePlan", loaded.model, [binds], [], False, False, False, kind)
            assert isinstance(planned, protocol.Planned), planned
            if planned.plan:
                self.plans.append(planned)
                self.keeping |= {planned.plan} if kind else set()

    # ---- one step of nonsense

    def fill(self, plan: protocol.Planned, data: Any, offset: int) -> None:
        """Inputs as they should be."""
        for slot in plan.inputs:
            at = data[offset + slot.offset : offset + slot.offset + slot.nbytes]
            if slot.dtype == "object":
                encoded = values.Encoded(np.array([f"s{k}" for k in range(40)], object))
                encoded.write(at.data[: encoded.nbytes])
            elif not slot.name:
                if len(at) == slot.nbytes:  # else the region reaches beyond the segment, and is refused
                    self.boxes(at.view(np.int32))
            elif slot.dtype == "int64":
                at.view(np.int64)[:] = self.rng.integers(1, 7, slot.nbytes // 8)
            elif slot.nbytes:
                at.view(np.float32)[:] = self.rng.standard_normal(slot.nbytes // 4)

    def boxes(self, words: Any) -> None:
        """Changed boxes: of all, of some, or any numbers. The word in front may say that activations are trusted."""
        rows = words.reshape(-1, NUMBERS["REACH_WORDS"])
        rows[:] = self.rng.integers(-2, 400, rows.shape)
        rows[:, 0] = self.rng.choice([0, 1, 3, NUMBERS["REACH_BOXES"], 1 << 30, -1], len(rows))
        if self.rng.random() < 0.3:
            self.smear(words.view(np.uint8))

    def publish(self) -> None:
        plan = self.plans[int(self.rng.integers(len(self.plans)))]
        index, data = self.segments[-1]
        room = (len(data) - 64 - plan.region) // 64
        offset = 64 + 64 * int(self.rng.integers(max(room, 1)))
        self.fill(plan, data, offset)
        number, generation, priority = plan.plan, plan.generation, int(self.rng.integers(3))
        extent = 0
        if self.rng.random() < 0.3:
            odd = int(self.rng.choice([0, 1, 63, 64, 1 << 16, 1 << 31, (1 << 32) - 1]))
            which = int(self.rng.integers(6))
            number = odd if which == 0 else number
            generation = odd if which == 1 else generation
            index = odd if which == 2 else index
            offset = int(self.rng.choice([0, 1, 63, len(data) - 64, len(data), 1 << 40, (1 << 64) - 64])) if which == 3 else offset
            priority = odd if which == 4 else priority
            extent = odd if which == 5 else 0
        with suppress(Exception):
            self.channel.submit(number, generation, index, offset, priority, extent)
            self.published += 1
        # Whatever of it is being read now changes under the reader.
        for _ in range(int(self.rng.integers(1, 20))):
            slot = plan.inputs[int(self.rng.integers(len(plan.inputs)))] if plan.inputs else None
            if slot is not None and slot.nbytes and offset + slot.offset + slot.nbytes <= len(data):
                at = data[offset + slot.offset : offset + slot.offset + slot.nbytes]
                self.smear(at)
            if plan.plan in self.keeping and offset + plan.region <= len(data):
                self.smear(data[offset : offset + plan.region])
                if self.rng.random() < 0.3:
                    line = offset + plan.inputs[-1].offset - NUMBERS["REACH_LINE"]
                    data[line : line + 4].view(np.uint32)[:] = self.rng.choice([0, 1, 3])

    def smear(self, at: Any) -> None:
        kind = self.rng.random()
        if kind < 0.4 and len(at) >= 8:
            words = at[: len(at) // 8 * 8].view(np.int64)
            words[int(self.rng.integers(len(words))) :] = int(self.rng.choice([0, -1, 1 << 62, -(1 << 63), 1 << 31, 7, 299]))
        elif kind < 0.7:
            begin = int(self.rng.integers(len(at)))
            piece = at[begin : begin + int(self.rng.integers(1, 4096))]
            piece[:] = np.frombuffer(self.rng.bytes(len(piece)), np.uint8)
        else:
            at[int(self.rng.integers(len(at)))] ^= 1 << int(self.rng.integers(8))

    def scribble(self, words: Any, first: int) -> None:
        """Random words; more often those at the beginning, where counts and masks are."""
        for _ in range(int(self.rng.integers(1, 30))):
            at = first + int(len(words[first:]) * self.rng.random() ** 4)
            kind = self.rng.random()
            if kind < 0.5:
                words[at] = int(self.rng.integers(1 << 32))
            elif kind < 0.8:
                words[at] = int(self.rng.choice([0, 0xFFFFFFFF, 1, 7, 64]))
            else:
                words[at] += 1

    def slot_words(self) -> None:
        """Slots jump from state to state, with and without their bits."""
        base = FIRST_SLOT // 4
        for _ in range(10):
            k = int(self.rng.integers(256))
            word = base + k * (SLOT_BYTES // 4)
            self.own[word] = (int(self.rng.integers(1 << 29)) << 3 | int(self.rng.integers(8))) & 0xFFFFFFFF
            mask = 128 // 4 + 8 * int(self.rng.integers(2)) + k // 32
            self.own[mask] |= 1 << (k % 32)

    def step(self) -> None:
        kind = self.rng.random()
        if kind < 0.55:
            self.publish()
        elif kind < 0.65:
            self.scribble(self.own, 0)
        elif kind < 0.75:
            self.scribble(self.bell, 0)
        elif kind < 0.85:
            self.slot_words()
        elif kind < 0.9:
            self.smear(self.segments[int(self.rng.integers(len(self.segments)))][1])
        elif kind < 0.92:
            for memory, head in zip((self.own, self.bell), self.heads, strict=True):
                memory[:16] = head
            self.channel = _channel.ClientChannel(self.own.data, self.bell.data)
        else:
            with suppress(Exception):
                self.channel.ring()


def main() -> None:
    name, seed, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    scribbler = Scribbler(name, seed)
    print("ready", flush=True)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with suppress(AspenError, OverflowError):
            scribbler.step()
    print(scribbler.published, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
