"""How many shards each split gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.reasons import Exclusion
from shardbeam.transforms.core.records import SizedImage
from shardbeam.transforms.core.sharding import NO_SPLIT, shard_count
from shardbeam.transforms.dataset.input_counts import InputCounts
from shardbeam.transforms.dataset.outcome import PlannedCounts, SplitOutcome
from shardbeam.transforms.dataset.rejects import describe_rejects
from shardbeam.transforms.examples.encode.size_fields import MIN_MISFITS


class ShardPlan(msgspec.Struct, frozen=True):
    """The number of shards of each split, and the totals of all shards.

    Attributes:
        num_shards: `{split: shards}`.
        totals: Sums over all splits.
        first_sizes: `{source: its first images}` that decide whether it exchanges width and height.
    """

    num_shards: Mapping[str, int]
    totals: PlannedCounts
    first_sizes: Mapping[str, tuple[SizedImage, ...]] = {}


def plan_shards(
    inputs: InputCounts,
    *,
    splits: Sequence[str],
    num_shards: int | Mapping[str, int],
    shard_size_bytes: int,
) -> ShardPlan:
    """Decides how many shards each split gets.

    Args:
        inputs: The merged inputs.
        splits: The splits' names.
        num_shards: The number of shards, either one number for each split or `{split: shards}`; 0,
            or no number for a split, decides by size.
        shard_size_bytes: Target size of a shard if the number is not given.

    Raises:
        InputError: A split has no examples. If all splits have none and there are rejects, this is
            not raised: the gate refuses the dataset after the files of rejects are written.
    """
    shards = {}
    empty = [split for split in splits if not _count(inputs, split).images]
    if empty and not (empty == list(splits) and inputs.samples.first_rejects):
        raise no_examples(empty[0], inputs=inputs)
    for split in splits:
        counts = _count(inputs, split)
        given = num_shards if isinstance(num_shards, int) else num_shards.get(split, 0)
        shards[split] = given or shard_count(
            num_bytes=counts.num_bytes,
            num_examples=counts.images,
            shard_size_bytes=shard_size_bytes,
        )
    return ShardPlan(
        num_shards=shards,
        totals=PlannedCounts(
            shards=sum(shards.values()),
            examples=sum(counts.images for counts in inputs.splits.values()),
            num_bytes=sum(counts.num_bytes for counts in inputs.splits.values()),
        ),
        first_sizes=inputs.first_sizes.at_least(MIN_MISFITS),
    )


def no_examples(split: str, *, inputs: InputCounts) -> InputError:
    """Returns the error of a split without examples, which no reader can load."""
    # An input with a wrong name may belong to no split.
    for name in (split, NO_SPLIT):
        counts = _count(inputs, name)
        if counts.rejected:
            first = inputs.samples.first_rejects.get(name, ())
            described = describe_rejects(counts.rejected, first=first)
            problem = f"has no examples: all inputs were rejected, {described}"
            break
        if counts.excluded:
            excluded = ", ".join(f"{count:,} {rule}" for rule, count in counts.excluded.items())
            problem = f"has no examples: all images are excluded, {excluded}"
            if Exclusion.UNANNOTATED.value in counts.excluded:
                problem += "; --unannotated keep writes images without annotations as negatives"
            for left_out in (inputs.samples.describe_archives(), inputs.describe_linked_folders()):
                problem += f"; {left_out}" if left_out else ""
            break
    else:
        problem = (
            "has no examples, and no reader can load an empty split; take it out of the config, "
            "or give it more images or a larger fraction"
        )
    return InputError(uri=f"split {split!r}", problem=problem)


def _count(inputs: InputCounts, split: str) -> SplitOutcome:
    return inputs.splits.get(split, SplitOutcome())
