"""How many shards a split gets."""

from __future__ import annotations

import pytest

from shardbeam.transforms.dataset.census import Census
from shardbeam.transforms.dataset.outcome import SplitOutcome, Totals
from shardbeam.transforms.dataset.shard_plan import ShardPlan, plan_shards


@pytest.mark.parametrize(
    ("num_bytes", "num_examples", "shards"),
    [
        (19_300_000_000, 118_287, 129),
        (150_000_000, 1_000, 1),
        (150_000_001, 1_000, 2),
        (900_000_000, 3, 3),
    ],
)
def test_shards_by_size_have_at_most_the_target_size(
    num_bytes: int, num_examples: int, shards: int
) -> None:
    plan = plan_shards(
        Census(splits={"train": SplitOutcome(images=num_examples, num_bytes=num_bytes)}),
        splits=["train"],
        num_shards=0,
        shard_size_bytes=150_000_000,
    )
    assert plan == ShardPlan(
        num_shards={"train": shards},
        totals=Totals(shards=shards, examples=num_examples, num_bytes=num_bytes),
    )
