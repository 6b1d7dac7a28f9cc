"""Which tests `make test` leaves to `make test-all`: those with the marker `full`, which `mark` sets by one rule.

Files and tests that take long are named in `FULL`, each with the reason. Of a test with parameters a covering subset stays, on the best
instruction set of the machine alone: in the order of its cases, those with a value of some parameter that no case before them has. The rule
depends on names and order only. So every process of a run, and every run on machines with the same instruction sets, chooses alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import folders
import pytest

from aspen_mp.workers import _kernels

Value = tuple[str, type, object]
BEST: Final = _kernels.isas()[0]

SEEDS: Final = 2
"""Values of a parameter `seed` that a test needs: any drawn case is as good as another."""
_BORROWED: Final = (
    *("a_descriptor_that_is_another_file_s_by_now", "a_ring_in_one_segment", "a_tail_of_a_page", "a_torn_loan_is_not_used_again"),
    *("address_space_is_not_endless", "buffers_outlive_the_runtime_that_was_lost", "forked_children_fill_buffers"),
    *("forked_children_have_loans_of_their_own", "memory_that_is_cut_short_before", "memory_that_is_cut_short_while_it_is_read"),
    *("more_arrays_than_loans", "other_kinds_of_memory", "outputs_on_borrowed_pages", "pieces_that_are_on_their_way_count"),
    *("results_stay_when_buffers_are_used_again", "signals_still_end_a_worker_that_borrows", "submit_copies_unless_told_otherwise"),
    *("threads_share_loans", "what_has_no_buffers", "what_missing_memory_leads_to_is_not_told_as_an_error_of_the_model"),
)
"""Tests of memory that a runtime borrows, in its rarer states."""
_ENDINGS: Final = ("front_ends_by_themselves_lose_nothing", "nothing_sent_before_sigterm_is_lost")
_BENCHMARK: Final = "a command of the benchmarks"
_AGAIN: Final = "other tests once more, in a process without an instruction"
_WHOLE: Final = "whole networks or programs: the quick tests have small ones"
_RARE: Final = "what seldom happens to a machine, or takes many rounds: the quick tests have one storm and one death of each kind"
FULL: Final = {
    **dict.fromkeys(
        (
            *(f"api/commands/test_{name}.py" for name in ("figures", "coexecution", "peers", "bench_plans", "bench_torch")),
            *(f"api/commands/test_cli.py::test_bench_{name}" for name in ("elastic", "storm", "churn", "kernels", "prediction")),
            *(f"api/commands/test_cli.py::test_bench_{name}" for name in ("stream", "cameras")),
            "api/commands/test_cli.py::test_plan_measured",
            "api/files/test_calibration.py::test_doctor_measures_and_shows",
        ),
        _BENCHMARK,
    ),
    **dict.fromkeys(
        (
            "kernels/conv/test_bconv.py::test_without_the_instruction",
            "kernels/conv/test_qconv.py::test_all_of_this_without_the_instruction",
            "kernels/gemm/test_bgemm.py::test_without_the_instruction",
            "kernels/gemm/test_qgemm.py::test_all_of_this_without_the_instruction",
        ),
        _AGAIN,
    ),
    **dict.fromkeys(
        (
            "api/commands/test_cli.py::test_plan_shows_parts_of_the_batch_as_one_row",
            "api/commands/test_examples.py",
            "api/dropin/test_backend.py",
            "api/runtime/test_greenlets.py",
            "api/options/test_accuracy_option.py::test_command_line",
            "api/options/test_accuracy_option.py::test_table_of_the_zoo",
            "api/options/test_precision.py::test_command_line",
            *(f"api/options/test_{name}.py::test_same_bits_for_any_workers" for name in ("precision", "winograd_option")),
            "api/options/test_winograd_option.py::test_command_line",
            "api/commands/test_trace.py::test_stages_and_opaque_tiles",
            "models/ranges/test_buckets_agree.py",
            "models/test_demo.py",
            "models/test_published_decoders.py",
            "models/test_rounded_agree.py::test_network",
            "models/test_zoo_structure.py",
            "models/test_zoo_agrees.py",
            "models/test_plans_agree.py",
            "models/test_plan_models.py",
            "pytorch/test_huggingface.py",
            "pytorch/nets/test_generation.py",
            "pytorch/nets/test_networks_agree.py",
        ),
        _WHOLE,
    ),
    **dict.fromkeys(
        (
            *(f"api/hostile/test_{name}.py" for name in ("forged_sockets", "hostile_memory")),
            "crash/cores",
            "crash/hangs",
            *(f"crash/kills/test_{name}.py" for name in ("client_storm", "kill_everything", "planning_children", "stateful")),
            *(f"crash/kills/test_storm.py::test_workers_{end}" for end in ("are_killed", "come_and_go")),
            "crash/outages/test_outages.py",
            "serving/costs/test_serving_attacks.py",
            "crash/outages/test_retry.py::test_killed_again_and_again",
            "crash/kills/test_process_ends.py",
            "simulation/test_histories.py::test_a_failing_history_gets_shorter",
            "crash/scarcity",
            "stress/fuzz/test_fuzz.py::test_nothing_is_found",
            "stress/processes/test_bucketed_requests.py",
            "stress/processes/test_slow_core.py",
            *(f"api/commands/test_cli.py::test_{name}" for name in ("life_of_a_detached_runtime", "trace")),
            *(f"api/commands/test_metrics.py::test_{name}" for name in ("launch_serves_them", "wrong_addresses")),
            *(f"api/commands/test_planted_modules.py::test_a_{name}" for name in ("detached_runtime", "runtime_with_metrics", "server")),
            "api/commands/test_service.py::test_a_planner_process_that_hangs_is_no_longer_said_to_be_alive",
            "api/dropin/test_inference_session.py::test_a_copy_outlives_the_session_that_it_was_made_of",
            "api/hostile/test_bad_inputs.py::test_damaged_plans_are_not_used",
            "api/hostile/test_hostile_frames.py::test_silence_and_dribble_are_ended",
            "api/runtime/test_behind_data.py",
            "api/runtime/test_bursts.py",
            "api/runtime/test_handles.py::test_a_pool_of_processes_shares_one_model",
            *(f"api/runtime/test_runtime.py::test_{name}" for name in ("silence_is_ended", "a_client_that_goes_leaves_nothing_behind")),
            *(f"api/runtime/test_in_place.py::test_{name}" for name in _BORROWED),
            "crash/outages/test_retry.py::test_a_request_that_ends_runtimes_fails",
            *(f"crash/storm/test_crash_points.py::test_{name}" for name in ("every_point_with_every_signal", "two_points_at_once")),
            "unit/control/wire/test_python_of_children.py::test_a_runtime_where_the_executable_is_no_python",
            *(f"serving/test_serving_endings.py::test_{name}_under_load" for name in _ENDINGS),
            "serving/test_serving_access.py::test_warnings_are_said_once",
            "serving/test_serving_processes.py::test_a_killed_server_leaves_no_files",
            *(f"api/hostile/test_sizes_beyond_memory.py::test_{name}" for name in ("sessions", "random_values_of_the_command")),
            "unit/control/wire/test_python_of_children.py::test_an_embedded_interpreter",
        ),
        _RARE,
    ),
    **dict.fromkeys(
        (
            "stress/engine/test_tsan.py",
            "stress/model_checker",
            "crash/storm/test_crash_points.py::test_planted_faults_are_found",
            "crash/storm/test_storm_in_c.py",
            "stress/sanitizers",
            "unit/planner/plan/test_plan_fuzz.py",
        ),
        "searches to the end, and builds of their own: the quick tests have their beginnings",
    ),
    "conformance/test_conformance.py::test_still_passes": "unit/planner/lower/test_lowering.py has the models of onnx, without a runtime",
    "docs/test_pages.py::test_blocks_of_page_run": "whole programs, with networks and servers",
    "docs/test_pages.py::test_a_page_that_fails_is_noticed": "what the test of pages has planted in it",
    **dict.fromkeys(
        (
            "api/files/test_cache.py",
            "api/files/test_cache_lives.py::test_a_writer_that_is_killed_leaves_no_half_file",
            "api/options/test_precision.py::test_plan_cache_knows_them_apart",
            "api/runtime/test_lengths.py",
            "unit/control/planning/test_planning_of_sizes.py",
            "unit/planner/test_large_graphs.py",
            "unit/planner/tiling/test_batch_splitting.py::test_random_graphs_in_random_parts",
            "unit/planner/tiling/test_search.py",
        ),
        "many plans: the quick tests make some of each kind",
    ),
    "stress/fuzz/test_fuzz.py::test_corpus": "every input that was ever found, most of them large",
    "unit/planner/lower/test_lowering.py::test_node_models_with_constants": "the models of test_node_models once more",
}
"""Folders, files (`….py`) and tests (`….py::test_…`), relative to this one, and why they can wait."""


def mark(items: Iterable[pytest.Item]) -> None:
    """Gives the marker `full` to every test that `make test` leaves out."""
    seen: dict[str, set[Value]] = defaultdict(set)
    for item in items:
        place = f"{item.path.relative_to(folders.TESTS)}::{getattr(item, 'originalname', item.name)}"
        if any(place == each or place.startswith((f"{each}/", f"{each}::")) for each in FULL) or not _brings(item, seen[place]):
            item.add_marker(pytest.mark.full)


def _brings(item: pytest.Item, seen: set[Value]) -> bool:
    """Whether the case has a value of a parameter that none in `seen` has; notes its values there."""
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return True
    if callspec.params.get("isa", BEST) != BEST:
        return False
    new = {_value(name, given) for name, given in callspec.params.items()} - seen
    if sum(name == "seed" for name, *_ in seen) >= SEEDS:
        new = {value for value in new if value[0] != "seed"}
    seen |= new
    return bool(new)


def _value(name: str, given: object) -> Value:
    """What equal values of a parameter have in common; those that cannot be compared are what they are."""
    try:
        hash(given)
    except TypeError:
        return name, object, id(given)
    return name, type(given), given
