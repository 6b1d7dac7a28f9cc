"""Where the system has too little of something, a repository is read again later. What is wrong in a file stays wrong until it changes."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import serving_tools as tools

from aspen_mp.client.signature import ValueInfo
from aspen_mp.errors import ConfigError, ResourceLimitError
from aspen_mp.serving.keeper import Keeper
from aspen_mp.serving.repository import disk
from aspen_mp.serving.supervisor import Supervisor
from aspen_mp.serving.text import embedder, recipe
from aspen_mp.system import filesystem

SHORTAGES = [OSError(number, os.strerror(number)) for number in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)] + [MemoryError()]
TEXTS = ["tokenizer.json", "sentence_bert_config.json", "tokenizer_config.json", "config_sentence_transformers.json", "modules.json"]


def failing(monkeypatch: pytest.MonkeyPatch, what: str, name: str, error: BaseException) -> None:
    """A function of the file system fails for files of this name."""
    real = getattr(filesystem, what)

    def fails(path: Any, *arguments: Any, **named: Any) -> Any:
        if os.fspath(path).endswith(name):
            raise error
        return real(path, *arguments, **named)

    monkeypatch.setattr(filesystem, what, fails)


READS = [("open", "config.toml"), ("listdir", "/a"), ("listdir", "/a/1"), ("stat", "beside.json")]


@pytest.mark.parametrize("error", SHORTAGES, ids=repr)
@pytest.mark.parametrize(("what", "name"), READS)
def test_a_model_that_cannot_be_read_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, name: str, error: BaseException
) -> None:
    tools.save(tmp_path, "a", 1, tools.constant(1), "instances = 2")
    (tmp_path / "a" / "1" / "beside.json").touch()
    before = disk.scan(tmp_path)
    with monkeypatch.context() as patch:
        failing(patch, what, name, error)
        found = disk.scan(tmp_path)
    assert (list(found.versions), list(found.broken), found.lacks) == ([], ["a"], True)
    assert (before.lacks, before.broken, before.versions) == (False, {}, disk.scan(tmp_path).versions)


@pytest.mark.parametrize("content", ["instances = 'two'", "instances =", "unknown = 1", b"\xff\xfe"])
def test_a_damaged_configuration_is_not_read_again(tmp_path: Path, content: str | bytes) -> None:
    tools.save(tmp_path, "a", 1, tools.constant(1))
    (tmp_path / "a" / "config.toml").write_bytes(content if isinstance(content, bytes) else content.encode())
    found = disk.scan(tmp_path)
    assert (list(found.broken), found.lacks) == (["a"], False)


@pytest.mark.parametrize("error", SHORTAGES, ids=repr)
@pytest.mark.parametrize("name", TEXTS)
def test_files_beside_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: BaseException) -> None:
    """Those of embeddings: read again after a shortage, given up where they are damaged."""
    pytest.importorskip("tokenizers")
    for each in TEXTS:
        (tmp_path / each).write_text("[]" if each == "modules.json" else "{}")
    inputs = [ValueInfo("input_ids", ("n", "m"), np.dtype(np.int64))]
    outputs = [ValueInfo("states", ("n", "m", 4), np.dtype(np.float32))]

    def find() -> object:
        return recipe.find(tmp_path, disk.Embeddings(), inputs, outputs)

    assert find()
    with monkeypatch.context() as patch:
        failing(patch, "open", name, error)
        with pytest.raises(ResourceLimitError, match=name):
            find()
        if name == "tokenizer.json":
            with pytest.raises(ResourceLimitError, match=name):
                embedder._tokenizer(tmp_path / name)
    (tmp_path / name).write_text("{")
    with pytest.raises(ConfigError, match=name):
        find()


def test_a_keeper_looks_again_after_a_shortage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "1").mkdir(parents=True)
    (tmp_path / "a" / "config.toml").touch()
    keeper = Keeper(SimpleNamespace(), [tmp_path], [])  # type: ignore[arg-type]
    for name, what in (("config.toml", "open"), (str(tmp_path), "listdir")):
        with monkeypatch.context() as patch:
            failing(patch, what, name, SHORTAGES[0])
            asyncio.run(keeper.settle())
            assert keeper.lacks
        asyncio.run(keeper.settle())
        assert not keeper.lacks
    with monkeypatch.context() as patch:
        failing(patch, "listdir", str(tmp_path), PermissionError(errno.EACCES, "no"))
        asyncio.run(keeper.settle())
        assert not keeper.lacks


class Looks(Supervisor):
    """A supervisor without runtime and front ends, whose next look comes at once."""

    def __init__(self) -> None:
        self._settling, self._stopping, self._again, self._again_s = asyncio.Lock(), asyncio.Event(), None, 0.0
        self._keeper, self.looks = self, 0  # type: ignore[assignment]
        self.served, self.unserved, self.lacks = [], [], False

    async def settle(self) -> list[Any]:
        self.looks += 1
        return []

    def _spawn(self, work: Any) -> None:
        self.spawned = asyncio.ensure_future(work)


def test_folders_that_could_not_be_watched_are_watched_later() -> None:
    """The models are looked at nevertheless, and once more when the watch is there: what came between the two was told to nobody."""

    async def go() -> None:
        server, answers = Looks(), [False, False, True]
        done = asyncio.Event()

        def follow() -> bool:
            if len(answers) == 1:
                done.set()
            return answers.pop(0)

        server._follow = follow
        await server._settle()
        assert server.looks == 1
        await asyncio.wait_for(done.wait(), 60)
        await server.spawned
        assert (server.looks, answers) == (3, [])
        assert server._again is None

    asyncio.run(go())
