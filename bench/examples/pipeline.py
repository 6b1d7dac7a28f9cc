"""A data loader without PyTorch in front of `Model.map`.

Processes decode and augment images into a ring of batches in one `SharedMemory`. The main process hands each batch to the runtime as it is
finished, and the runtime's workers read it there. No image is copied or pickled on its way. Back-pressure is the ring: a slot is given back
when the result of its batch is there, and a decoder without a free slot waits.
"""

from __future__ import annotations

import argparse
import json
import mmap
import time
import zlib
from collections import deque
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.shared_memory import SharedMemory
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import aspen_mp

if TYPE_CHECKING:
    from types import TracebackType

    from aspen_mp.client.model import Model

Images = npt.NDArray[np.float32]
_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
_SCALE = 1 / np.array([0.229, 0.224, 0.225], np.float32)
_SPAWN = get_context("spawn")  # the main process has threads by then


class Dataset:
    """Compressed pictures, made up: what a folder of files is elsewhere. `size`: of the square pictures after augmentation, in pixels."""

    def __init__(self, n: int, size: int) -> None:
        self.n = n
        self.size = size

    def encoded(self, index: int) -> bytes:
        """The bytes that would be read from disk."""
        side = self.size + self.size // 8
        rows = np.arange(side, dtype=np.uint32)
        picture = (rows[:, None, None] * (index + 1) + rows[None, :, None] * 7 + np.arange(3, dtype=np.uint32) * 85) % 251
        return zlib.compress(picture.astype(np.uint8).tobytes(), 1)

    def load(self, index: int, out: Images) -> None:
        """Decodes, crops, mirrors and normalises picture `index` into `out`: float32 [3, size, size]. The same every time."""
        side, random = self.size + self.size // 8, np.random.default_rng(index)
        picture = np.frombuffer(zlib.decompress(self.encoded(index)), np.uint8).reshape(side, side, 3)
        top, left = random.integers(0, side - self.size + 1, 2)
        crop = picture[top : top + self.size, left : left + self.size]
        if random.random() < 0.5:
            crop = crop[:, ::-1]
        np.multiply(crop.astype(np.float32) / 255 - _MEAN, _SCALE, out=out.transpose(1, 2, 0))


class Loader:
    """Batches of a dataset, in order, from `processes` processes; the last one may hold fewer pictures. Iterating gives (slot, array);
    `give_back` makes a slot free again. A context manager."""

    def __init__(self, dataset: Dataset, batch: int, processes: int, slots: int) -> None:
        self._dataset = dataset
        self._batch = batch
        shape = (batch, 3, dataset.size, dataset.size)
        # Each slot begins with a page: only then can pages of it stand in for an input of the runtime's.
        stride = -(-4 * int(np.prod(shape)) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._memory = SharedMemory(create=True, size=stride * slots)
        self._slots = [np.ndarray(shape, np.float32, self._memory.buf, k * stride) for k in range(slots)]
        self._free = deque(range(slots))
        self._todo: Any = _SPAWN.Queue()
        self._done: Any = _SPAWN.Queue()
        arguments = (self._memory.name, stride, dataset, batch, self._todo, self._done)
        self._processes = [_SPAWN.Process(target=_decode, args=arguments, daemon=True) for _ in range(processes)]
        for process in self._processes:
            process.start()

    def __len__(self) -> int:
        return (self._dataset.n + self._batch - 1) // self._batch

    def __iter__(self) -> Iterator[tuple[int, Images]]:
        sent = 0
        ready: dict[int, int] = {}
        for number in range(len(self)):
            while True:
                while self._free and sent < len(self):
                    self._todo.put((sent, self._free.popleft()))
                    sent += 1
                if number in ready:
                    break
                finished, slot, error = self._done.get()
                if error:
                    raise RuntimeError(f"batch {finished}: {error}")
                ready[finished] = slot
            slot = ready.pop(number)
            yield slot, self._slots[slot][: min(self._batch, self._dataset.n - number * self._batch)]

    def give_back(self, slot: int) -> None:
        self._free.append(slot)

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        for _ in self._processes:
            self._todo.put(None)
        for process in self._processes:
            process.join()
        for queue in (self._todo, self._done):
            queue.close()
            queue.join_thread()
        self._slots.clear()
        self._memory.close()
        self._memory.unlink()


def _decode(name: str, stride: int, dataset: Dataset, batch: int, todo: Any, done: Any) -> None:
    """The whole life of a decoding process."""
    memory = SharedMemory(name)
    for number, slot in iter(todo.get, None):
        error = ""
        out = np.ndarray((batch, 3, dataset.size, dataset.size), np.float32, memory.buf, slot * stride)
        try:
            for k, index in enumerate(range(number * batch, min(dataset.n, (number + 1) * batch))):
                dataset.load(index, out[k])
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
        del out
        done.put((number, slot, error))
    memory.close()


def stream(model: Model, loader: Loader, concurrency: int) -> Iterator[dict[str, Any]]:
    """The model's results for each batch, in order."""
    used: deque[int] = deque()

    def batches() -> Iterator[Images]:
        for slot, batch in loader:
            used.append(slot)
            yield batch

    with model.map(batches(), concurrency=concurrency, copy=False) as results:
        for result in results:
            loader.give_back(used.popleft())
            yield result


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Decode images in processes, stream them through a runtime.")
    parser.add_argument("--model", default="zoo:mobilenet_v2", help="An ONNX file or zoo:NAME, with input float32 [batch, 3, size, size].")
    parser.add_argument("--images", type=int, default=256, help="Number of images (default: 256).")
    parser.add_argument("--batch", type=int, default=8, help="Batch size (default: 8).")
    parser.add_argument("--size", type=int, default=224, help="Side of the images in pixels (default: 224).")
    parser.add_argument("--processes", type=int, default=2, help="Number of processes that decode images (default: 2).")
    parser.add_argument("--workers", type=int, default=None, help="Number of workers (default: one for each core).")
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")
    asked = parser.parse_args(arguments)
    with aspen_mp.Runtime(workers=asked.workers) as runtime:
        source: Any = asked.model
        if source.startswith("zoo:"):
            from aspen_mp.bench import models

            source = models.build(source[4:], batch=asked.batch)
        model = runtime.load(source)
        concurrency = 2 * model.instances
        dataset = Dataset(asked.images - asked.images % asked.batch, asked.size)
        with Loader(dataset, asked.batch, asked.processes, slots=concurrency + asked.processes + 1) as loader:
            began, total = time.perf_counter(), 0.0
            for result in stream(model, loader, concurrency):
                total += float(np.sum(next(iter(result.values())), dtype=np.float64))
            seconds = time.perf_counter() - began
        moved = model.transfers
        report = {
            "images": dataset.n,
            "images_per_s": dataset.n / seconds,
            "sum": total,
            "copied_bytes": moved.copied_bytes,
            "in_place_bytes": moved.in_place_bytes,
        }
    if asked.json:
        print(json.dumps(report))
        return
    in_place, copied = moved.in_place_bytes / 2**20, moved.copied_bytes / 2**20
    print(
        f"{dataset.n} images, {dataset.n / seconds:.1f} a second; inputs: {in_place:.0f} MiB read where they were, {copied:.0f} MiB copied"
    )


if __name__ == "__main__":
    main()
