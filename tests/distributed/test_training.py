"""Training in shards and in copies, by real processes over gloo."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.distributed.launch import launch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not torch.distributed.is_available(), reason="this torch is built without torch.distributed"
    ),
]

EVERYWHERE = (
    "blocks_are_those_of_the_whole",
    "uneven_shards_have_blocks_of_their_own",
    "uneven_shards_share_scales",
    "skipping_and_raising_together",
    "data_parallel",
    "matrix_rules_are_those_of_the_whole",
)
TWO = (
    "converted_folders",
    "one_collective_for_all_maxima",
    "stochastic_rounding_is_that_of_the_whole",
    "scales_that_span_shards_are_those_of_the_whole",
    "master_copies_are_those_of_the_whole",
    "split_master_weights_are_those_of_the_whole",
    "nan_reaches_all_that_shares_its_scale",
    "whole_tensor_rules",
    "what_shards_cannot_do_is_refused",
    "memory_counts_what_is_here",
    "one_process_has_a_whole_state",
    "memory_is_that_of_one_matrix_more",
    "replicas_of_converted_models_are_refused",
    "one_monitor_for_all_shards",
    "a_monitor_of_replicas_is_that_of_one",
    "monitors_that_differ_are_refused",
    "monitors_of_ranks_with_other_parameters",
    "errors_of_one_rank_reach_the_others",
    "flat_parameters_are_refused",
)
FOUR = ("hybrid_sharding", "other_placements", "matrices_lie_anywhere")


RESUMED = (
    (2, ("zero_redundancy_is_one_process", "zero_redundancy_does_not_overlap", "zero_redundancy")),
    (4, ("zero_redundancy",)),
    (1, ("zero_redundancy",)),
    (2, ("zero_redundancy",)),
)


def test_one_two_and_four_processes(tmp_path: Path) -> None:
    launch(
        tmp_path,
        (0, ("saves_alone",)),
        (2, (*EVERYWHERE, *TWO, "loads_from_1", "saves", "full_state_dicts")),
        (4, (*EVERYWHERE, *FOUR, "loads_from_2")),
        (0, ("loads_alone",)),
        *RESUMED,
    )
