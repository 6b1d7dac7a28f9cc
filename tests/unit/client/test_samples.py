"""Samples of a model: the forms in which files and arrays hold them, and what is said of those that do not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper

from aspen_mp.client.signature import ValueInfo
from aspen_mp.client.trials.difference import Difference, classes
from aspen_mp.client.trials.samples import Samples
from aspen_mp.errors import RequestError

X = ValueInfo("x", ("batch", 3), np.dtype(np.float32))
FIXED = ValueInfo("x", (2, 3), np.dtype(np.float32))
IDS = ValueInfo("ids", ("batch", None), np.dtype(np.int64))


def rows(n: int, start: int = 0) -> np.ndarray:
    return np.arange(start, start + 3 * n, dtype=np.float32).reshape(n, 3)


def test_a_folder_holds_samples_in_every_form(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=rows(2), ids=np.ones((2, 5), np.int32))
    (tmp_path / "b").mkdir()
    np.save(tmp_path / "b" / "x.npy", rows(2, 10))
    (tmp_path / "b" / "ids.pb").write_bytes(numpy_helper.from_array(np.zeros((2, 4), np.int64)).SerializeToString())
    (tmp_path / "notes.txt").write_text("not a sample")
    found = Samples(tmp_path, [X, IDS])
    assert len(found) == 2
    assert [sample["x"][0, 0] for sample in found] == [0, 10]
    assert [sample["ids"].shape for sample in found] == [(2, 5), (2, 4)]
    assert found[0]["ids"].dtype == np.int64


@pytest.mark.parametrize("form", ["npy", "npz", "pb"])
def test_a_model_of_one_input_takes_lone_arrays(tmp_path: Path, form: str) -> None:
    for k in range(3):
        if form == "npy":
            np.save(tmp_path / f"{k}.npy", rows(2, k))
        elif form == "npz":
            np.savez(tmp_path / f"{k}.npz", x=rows(2, k))
        else:
            (tmp_path / f"{k}.pb").write_bytes(numpy_helper.from_array(rows(2, k)).SerializeToString())
    assert [sample["x"][0, 0] for sample in Samples(tmp_path, [X])] == [0, 1, 2]


@pytest.mark.parametrize(("info", "each"), [(X, 1), (FIXED, 2)])
def test_a_lone_file_of_many_rows_is_cut(tmp_path: Path, info: ValueInfo, each: int) -> None:
    np.save(tmp_path / "all.npy", rows(6))
    for given in (tmp_path, tmp_path / "all.npy", [rows(6)]):
        found = Samples(given, [info])
        assert [sample["x"].shape for sample in found] == [(each, 3)] * (6 // each)
        np.testing.assert_array_equal(np.concatenate([sample["x"] for sample in found]), rows(6))


def test_arrays_are_taken_as_they_are_given() -> None:
    assert len(Samples([{"x": rows(1)}, {"x": rows(1)}], [X])) == 2
    assert len(Samples({"x": rows(1)}, [X])) == 1
    assert Samples([rows(2)[0], rows(2)[1]], [X])[0]["x"].shape == (1, 3), "a first dimension of one is added"


@pytest.mark.parametrize(
    ("given", "inputs", "message"),
    [
        ([], [X], "no samples among those given"),
        ([{"y": rows(1)}, {}], [X], "the model has no input 'y'. Its inputs are x"),
        ([{"x": rows(1)}, {}], [X, IDS], "has no array 'ids'. A sample needs x, ids"),
        ([rows(1), rows(1)], [X, IDS], "is one array, and the model has the inputs x, ids"),
        ([{"x": np.zeros((3, 3), np.float32)}], [FIXED], "must have shape 2x3, not 3x3"),
        ([{"x": np.zeros((1, 3), complex)}], [X], "must be float32, not complex128"),
    ],
)
def test_what_does_not_fit_is_named(given: list, inputs: list[ValueInfo], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        list(Samples(given, inputs))


def test_files_that_are_no_samples_are_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"there are no samples in .*an \.npz file"):
        Samples(tmp_path, [X])
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        Samples(tmp_path / "nowhere", [X])
    for name in ("a.npz", "a.npy", "a.pb"):
        (tmp_path / name).write_bytes(b"\xff\xfe nothing")
        with pytest.raises(RequestError, match=f"{name} cannot be read as a sample"):
            list(Samples(tmp_path / name, [X]))


@pytest.mark.parametrize("n", range(1, 14))
def test_samples_are_split_without_loss(n: int) -> None:
    found = Samples([{"x": rows(1)} for _ in range(n)], [X])
    chosen, judged = found.split()
    assert set(chosen) | set(judged) == set(range(n))
    assert bool(set(chosen) & set(judged)) == (n == 1)
    for held in range(n):
        chosen, judged = found.split(held)
        assert (chosen, judged) == (list(range(n - held)), list(range(n - held, n)) if held else chosen)
    with pytest.raises(RequestError, match="cannot be held out"):
        found.split(n)


@pytest.mark.parametrize(
    ("shape", "rows"),
    [((2, 5), 2), ((2, 5, 1, 1), 2), ((1, 4, 5000), 4), ((2, 5, 7, 7), None), ((1, 4, 64), None), ((5,), None), ((3, 1), None)],
)
def test_scores_are_told_by_their_shape(shape: tuple[int, ...], rows: int | None) -> None:
    found = classes(np.zeros(shape, np.float32))
    assert (None if found is None else found.size) == rows
    assert classes(np.zeros(shape, np.int64)) is None


def test_differences_add_up_over_samples() -> None:
    rng = np.random.default_rng(0)
    want = rng.standard_normal((5, 4, 10))
    got = want + 0.1 * rng.standard_normal(want.shape)
    found = Difference()
    for a, b in zip(got, want, strict=True):
        found.add(a, b)
    assert found.error == pytest.approx(max(abs(a - b).max() / abs(b).max() for a, b in zip(got, want, strict=True)))
    assert found.rms == pytest.approx(np.linalg.norm(got - want) / np.linalg.norm(want))
    assert found.top1 == (got.argmax(-1) == want.argmax(-1)).mean()
    found.add(np.zeros((4, 9)), want[0])
    assert found.error == np.inf
