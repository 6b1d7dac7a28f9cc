"""Windows and pairs by which a schedule is judged (control/models/schedule_trial.py), with clocks and times by hand."""

from __future__ import annotations

import random

import pytest

from aspen_mp.control.models.schedule_trial import KEPT_PAIRS, LEAST_PAIRS, REST_WINDOWS, WORSE, Count, Trial, Window, cost


def judged(with_schedule: float, without: float, windows: int, noise: float = 0.0, seed: int = 0) -> Trial:
    """A trial after so many windows, in which networks take about these times."""
    draw, trial = random.Random(seed), Trial()
    for _ in range(windows):
        if trial.reverted:
            break
        trial.add((with_schedule if trial.on else without) * (1 + draw.uniform(-noise, noise)))
    return trial


def test_schedule_and_none_take_turns() -> None:
    trial, shown = Trial(), []
    for _ in range(8):
        shown.append(trial.on)
        trial.add(1.0)
    assert shown == [True, False, False, True, True, False, False, True]


def test_what_does_harm_is_reverted_after_the_fewest_pairs() -> None:
    trial = judged(1.10, 1.0, 100)
    assert trial.reverted
    assert trial.pairs == LEAST_PAIRS
    assert trial.ratio == pytest.approx(1.10)
    assert not trial.on


@pytest.mark.parametrize("ratio", [0.7, 1.0, WORSE])
def test_what_does_little_harm_is_kept(ratio: float) -> None:
    trial = judged(ratio, 1.0, 2 * KEPT_PAIRS)
    assert trial.kept
    assert not trial.reverted
    assert trial.on


def test_what_grows_slowly_favours_neither() -> None:
    trial = Trial()
    for k in range(2 * KEPT_PAIRS):
        trial.add(1.02**k)
    assert trial.kept
    assert trial.ratio == pytest.approx(1.0, abs=0.021)


def test_what_is_kept_is_looked_at_again_and_reverted_later() -> None:
    trial = judged(0.9, 1.0, 2 * KEPT_PAIRS)
    shown = []
    while not trial.reverted:
        shown.append(trial.on)
        trial.add(1.5 if trial.on else 1.0)
        assert len(shown) < 1000
    assert shown[:REST_WINDOWS] == [True] * REST_WINDOWS
    assert shown.count(False) * 10 < len(shown)
    assert trial.pairs > KEPT_PAIRS


def test_noise_seldom_reverts_what_changes_nothing() -> None:
    reverted = sum(judged(1.0, 1.0, 2 * KEPT_PAIRS, noise=0.2, seed=seed).reverted for seed in range(400))
    assert reverted < 0.2 * 400
    assert all(judged(1.25, 1.0, 2 * KEPT_PAIRS, noise=0.05, seed=seed).reverted for seed in range(100))


def test_a_void_window_begins_its_pair_anew() -> None:
    trial = Trial()
    trial.add(5.0)
    assert not trial.on
    trial.void()
    assert trial.on
    trial.add(1.0)
    trial.add(1.0)
    assert trial.ratio == 1.0


def test_a_window_waits_for_requests_that_began_before_it() -> None:
    window = Window(0.0, [Count(5, 1.0), Count(7, 2.0)])
    assert window.look(0.1, [Count(6, 1.1), Count(7, 2.0)]) is None
    assert window.look(0.2, [Count(7, 1.2), Count(8, 2.5)]) is None  # it begins
    assert window.look(0.4, [Count(10, 1.5), Count(11, 4.0)]) is None  # too short
    found = window.look(0.7, [Count(12, 1.7), Count(11, 4.0)])
    assert found == [pytest.approx((10.0, 0.1)), pytest.approx((6.0, 0.5))]


def test_a_window_without_requests_counts_for_nothing() -> None:
    window = Window(0.0, [Count(0, 0.0), Count(0, 0.0)])
    assert window.look(0.5, [Count(9, 1.0), Count(0, 0.0)]) is None
    assert window.look(1.0, [Count(99, 2.0), Count(0, 0.0)]) is None
    assert window.look(2.6, [Count(999, 3.0), Count(0, 0.0)]) == []


def test_costs() -> None:
    measured = [(10.0, 0.1), (5.0, 0.5)]
    assert cost(measured, [4, 1], "latency") == 0.5
    assert cost(measured, [6, 1], "latency") == pytest.approx(0.6)
    assert cost(measured, [1, 1], "throughput") == pytest.approx(1 / 15)
