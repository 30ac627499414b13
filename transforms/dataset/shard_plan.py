"""How many shards each split gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import Record
from shardbeam.transforms.core.sharding import shard_count
from shardbeam.transforms.dataset.outcome import Totals


class ShardPlan(msgspec.Struct, frozen=True):
    """How many shards each split has, and what goes into them.

    Attributes:
        num_shards: `{split: shards}`.
        num_bytes: `{split: bytes of its images and records}`.
        totals: Sums over all splits.
    """

    num_shards: Mapping[str, int]
    num_bytes: Mapping[str, int]
    totals: Totals


def plan_shards(
    sizes: Mapping[str, tuple[int, int]],
    *,
    splits: Sequence[str],
    num_shards: int | Mapping[str, int],
    shard_size_bytes: int,
) -> ShardPlan:
    """Decides how many shards each split gets.

    Args:
        sizes: `{split: (examples, bytes)}`.
        splits: The splits' names.
        num_shards: Shards of every split, or by split; 0 or absent means by size.
        shard_size_bytes: Target size of a shard where the number is not given.

    Raises:
        InputError: A split has no examples.
    """
    shards = {}
    for split in splits:
        num_examples, num_bytes = sizes.get(split, (0, 0))
        if num_examples == 0:
            raise InputError(
                uri=f"split {split!r}",
                problem="has no examples, and no reader can load an empty split; take it out of "
                "the config, or give it more images or a larger fraction",
            )
        given = num_shards if isinstance(num_shards, int) else num_shards.get(split, 0)
        shards[split] = given or shard_count(
            num_bytes=num_bytes, num_examples=num_examples, shard_size_bytes=shard_size_bytes
        )
    return ShardPlan(
        num_shards=shards,
        num_bytes={split: num_bytes for split, (_, num_bytes) in sizes.items()},
        totals=Totals(
            shards=sum(shards.values()),
            examples=sum(examples for examples, _ in sizes.values()),
            num_bytes=sum(num_bytes for _, num_bytes in sizes.values()),
        ),
    )


def record_size(element: tuple[str, Record]) -> tuple[str, tuple[int, int]]:
    """Measures one record: `(split, (1, bytes of its Examples' images and annotations))`."""
    split, record = element
    return split, (1, record.examples * record.size_bytes + len(record.annotations))
