"""Compiled modules in threads, in worker processes of a DataLoader, and in processes that are forked or spawned."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

import torch_checks  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402
from torch_checks import compiled, same  # noqa: E402


def network() -> nn.Module:
    torch.manual_seed(11)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5)).eval()


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    with torch_checks.fresh():
        yield


def test_threads_call_one_module() -> None:
    module = network()
    ours = compiled(module)
    wrong: list[object] = []

    def work(seed: int) -> None:
        draws = torch.Generator().manual_seed(seed)
        try:
            with torch.no_grad():
                for _ in range(20):
                    x = torch.randn(1 + seed % 2, 3, 8, 8, generator=draws)
                    same(ours(x), module(x))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_threads_compile_modules_of_their_own() -> None:
    wrong: list[object] = []

    def work() -> None:
        try:
            module = network()
            ours = compiled(module)
            x = torch.ones(1, 3, 8, 8)
            with torch.no_grad():
                same(ours(x), module(x))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class Images(Dataset[Any]):
    """Images that are drawn by the worker; with a module, what it says of them."""

    def __init__(self, module: Any = None) -> None:
        self.module = module

    def __len__(self) -> int:
        return 12

    def __getitem__(self, k: int) -> Any:
        image = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(k))
        if self.module is None:
            return image
        with torch.no_grad():
            return image, self.module(image[None])[0]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_inputs_come_from_workers_of_a_loader(start: str) -> None:
    module = network()
    ours = compiled(module)
    seen = 0
    with torch.no_grad():
        for images in DataLoader(Images(), batch_size=4, num_workers=2, multiprocessing_context=start):
            same(ours(images), module(images))
            seen += len(images)
    assert seen == 12


@pytest.mark.parametrize("before", [False, True], ids=["never called", "called before"])
def test_workers_of_a_loader_run_the_module(before: bool) -> None:
    module = network()
    ours = compiled(module)
    with torch.no_grad():
        if before:
            ours(torch.zeros(1, 3, 8, 8))
        for images, found in DataLoader(Images(ours), batch_size=4, num_workers=2, multiprocessing_context="fork"):
            same(found, module(images), 1e-4)
        same(ours(torch.ones(1, 3, 8, 8)), module(torch.ones(1, 3, 8, 8)))


def child(answers: Any, run: Any) -> None:
    """What another process does: a module of its own, or one that it was given."""
    torch.set_num_threads(1)
    module = network()
    try:
        with torch.no_grad():
            x = torch.full((2, 3, 8, 8), 0.5)
            same((run or compiled(module))(x), module(x))
        answers.put("")
    except BaseException as error:
        answers.put(f"{type(error).__name__}: {error}")


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize("before", [False, True], ids=["never called", "called before"])
def test_another_process(start: str, before: bool) -> None:
    context = multiprocessing.get_context(start)
    module = network()
    ours = compiled(module)
    if before:
        with torch.no_grad():
            ours(torch.zeros(2, 3, 8, 8))
    answers = context.SimpleQueue()
    process = context.Process(target=child, args=(answers, ours if start == "fork" else None))
    process.start()
    assert answers.get() == ""
    process.join()
    assert process.exitcode == 0
    x = torch.ones(2, 3, 8, 8)
    with torch.no_grad():
        same(ours(x), module(x))
