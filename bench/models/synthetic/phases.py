"""Networks of which each part needs one thing only, arithmetic or memory. They measure what several networks at once take from each other
(HaX-CoNN, Dagli and Belviranli, PPoPP 2024, section 3.3)."""

from __future__ import annotations

import math

import onnx
from onnx import TensorProto

from aspen_mp.bench.models.net import Init, Net, Weights
from aspen_mp.bench.models.vision import ImageOptions

ROWS = 16
"""Rows of the image between two phases, each of `size` numbers."""
KINDS = {
    "c": "arithmetic: products whose factors fit a core's own cache",
    "w": "arithmetic: products whose weights pass through the caches",
    "l": "memory: a vector times weights that the last cache holds",
    "m": "memory: a vector times weights that no cache holds",
}
"""The meaning of each letter of `order`."""


def phases(name: str, options: ImageOptions, weights: Weights, *, order: str = "cm", size: int = 512) -> onnx.ModelProto:
    """Phases one after the other, a letter of `order` each (`KINDS`), of some 10 ms on a core at the usual size. Image [batch, 16, size];
    phases of one kind have the same weights: 1 MiB, 32 MiB, 9 MiB and 256 MiB."""
    if not order or set(order) - set(KINDS):
        raise ValueError(f"{name}: order={order!r} must be letters of {', '.join(KINDS)}")
    if size % 64 or not isinstance(options.batch, int):
        raise ValueError(f"{name}: size={size} must be a multiple of 64, and the batch a number")
    net = PhaseNet(name, options, weights, size)
    x = net.input("input", TensorProto.FLOAT, [options.batch, ROWS, size])
    for place, kind in enumerate(order):
        x = net.phase(kind, place, x)
    net.output(x, "output", [options.batch, ROWS, size])
    return net.finish()


class PhaseNet(Net):
    """Each phase reads and gives an image of [batch, `ROWS`, size]."""

    def __init__(self, name: str, options: ImageOptions, weights: Weights, size: int) -> None:
        super().__init__(name, opset=options.opset, weights=weights)
        self._size = size
        self._batch = options.batch if isinstance(options.batch, int) else 1
        self._there: set[str] = set()

    def phase(self, kind: str, place: int, x: str) -> str:
        """The phase of a kind at one place of the network."""
        size = self._size
        if kind in "cw":
            times = max(size // (32 if kind == "c" else 128), 1)
            names, outer = (["c"] * 8, size) if kind == "c" else (["w.in", "w.out"], 16 * size)
            y = self._product(self._repeated(x, times, place), names, times * ROWS, size, outer)
            images = self.op("Reshape", y, self.ints(self._batch, times, ROWS, size))
            return self.reduce_mean(images, [1], keepdims=False)
        if kind == "l":
            rows = self.op("Slice", x, self.ints(0), self.ints(3), self.ints(1))
            y = self._product(self.op("Reshape", rows, self.ints(self._batch, 3 * size)), ["l"] * 64, 1, 3 * size, 3 * size)
            spread = self.reduce_mean(self.op("Reshape", y, self.ints(self._batch, 3, size)), [1])
            return self.op("Add", x, spread)
        y = self._product(self.op("Reshape", x, self.ints(self._batch, ROWS * size)), ["m"], 1, ROWS * size, ROWS * size)
        return self.op("Reshape", y, self.ints(self._batch, ROWS, size))

    def _repeated(self, x: str, times: int, place: int) -> str:
        """The image several times, each with other numbers added: [batch · times · `ROWS`, size]."""
        added = self.param(f"{place}.added", (times, 1, self._size), Init(0.5))
        image = self.op("Reshape", x, self.ints(self._batch, 1, ROWS, self._size))
        return self.op("Reshape", self.op("Add", image, added), self.ints(-1, self._size))

    def _product(self, x: str, names: list[str], rows: int, inner: int, outer: int) -> str:
        """Products with weights of these names in turn, from `inner` numbers to `outer` and back."""
        sides = [inner, outer]
        for name in names:
            if name not in self._there:
                self._there.add(name)
                self.param(f"{name}.weight", sides, Init(1 / math.sqrt(sides[0])))
            self.add_macs(self._batch * rows * sides[0] * sides[1])
            x = self.op("MatMul", x, f"{name}.weight")
            sides.reverse()
        return x
