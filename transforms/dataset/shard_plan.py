"""How many shards each split gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.sharding import shard_count
from shardbeam.transforms.dataset.census import Census
from shardbeam.transforms.dataset.outcome import SplitOutcome, Totals


class ShardPlan(msgspec.Struct, frozen=True):
    """How many shards each split has, and what goes into them.

    Attributes:
        num_shards: `{split: shards}`.
        totals: Sums over all splits.
    """

    num_shards: Mapping[str, int]
    totals: Totals


def plan_shards(
    census: Census,
    *,
    splits: Sequence[str],
    num_shards: int | Mapping[str, int],
    shard_size_bytes: int,
) -> ShardPlan:
    """Decides how many shards each split gets.

    Args:
        census: What goes into them.
        splits: The splits' names.
        num_shards: Shards of every split, or by split; 0 or absent means by size.
        shard_size_bytes: Target size of a shard where the number is not given.

    Raises:
        InputError: A split has no examples.
    """
    shards = {}
    for split in splits:
        counts = census.splits.get(split, SplitOutcome())
        if counts.images == 0:
            raise InputError(
                uri=f"split {split!r}",
                problem="has no examples, and no reader can load an empty split; take it out of "
                "the config, or give it more images or a larger fraction",
            )
        given = num_shards if isinstance(num_shards, int) else num_shards.get(split, 0)
        shards[split] = given or shard_count(
            num_bytes=counts.num_bytes,
            num_examples=counts.images,
            shard_size_bytes=shard_size_bytes,
        )
    return ShardPlan(
        num_shards=shards,
        totals=Totals(
            shards=sum(shards.values()),
            examples=sum(counts.images for counts in census.splits.values()),
            num_bytes=sum(counts.num_bytes for counts in census.splits.values()),
        ),
    )
