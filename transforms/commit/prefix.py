"""Shards below a prefix, without a dataset around them, as `WriteToTFRecord` writes them.

No lease is held. A prefix that has files already is refused, and shards are moved into place only
after all of them are written and the counts add up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from shardbeam.transforms.commit.gate import count_splits, decide, find_lost
from shardbeam.transforms.commit.moves import CommitBatch, Move, check_all_moved
from shardbeam.transforms.core.counts import REJECTS, Count, Counts, encode_element
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import Reject
from shardbeam.transforms.dataset.collectors.statistics import CountedStatistics
from shardbeam.transforms.dataset.files import ShardResult
from shardbeam.transforms.dataset.input_counts import InputCounts, merge_inputs
from shardbeam.transforms.dataset.outcome import SplitOutcome, Status
from shardbeam.transforms.dataset.rejects import describe_rejects
from shardbeam.transforms.dataset.shard_plan import FileNaming
from shardbeam.transforms.staging.staging import Staging, explain_write_errors
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.find import storage_for


class PrefixSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the files below a prefix.

    Attributes:
        naming: How the files are named.
        splits: The splits' names.
        staging: Where the shards wait.
        max_reject_ratio: The greatest share of a split's records that may be rejected.
    """

    naming: FileNaming
    splits: Sequence[str]
    staging: Staging
    max_reject_ratio: float


def check_free(settings: PrefixSettings) -> None:
    """Refuses a prefix that has files already.

    Raises:
        InputError: A file has a name that a shard may get.
    """
    folder = settings.staging.output
    shard = re.compile(settings.naming.pattern(settings.splits))
    for file in storage_for(folder).list(folder):
        if shard.fullmatch(file.path):
            raise InputError(
                uri=join_uri(folder, file.path),
                problem="is there already; choose another prefix",
            )


def count_reject(reject: Reject) -> InputCounts:
    """Counts a reject that was received."""
    inputs = InputCounts()
    inputs.add_reject(reject)
    inputs.counts = Counts()
    inputs.counts.receive(REJECTS, encode_element(reject))
    return inputs


def approve(
    inputs: InputCounts,
    shards: Sequence[ShardResult],
    rejected: InputCounts,
    *,
    settings: PrefixSettings,
    statistics: Mapping[str, CountedStatistics],
) -> list[CommitBatch]:
    """Checks that every record was written, rejected or excluded, and plans the moves.

    Raises:
        InputError: The counts do not add up, too much was rejected, or the prefix has files.
    """
    inputs = merge_inputs([inputs, InputCounts(counts=rejected.counts)])
    lost = find_lost(
        inputs,
        splits=settings.splits,
        shards=shards,
        rejects=(),
        statistics=statistics,
    )
    counts = count_splits(splits=settings.splits, inputs=inputs, shards=shards, rejects=())
    for split, count in rejected.splits.items():
        more = SplitOutcome(rejected=count.rejected, unlisted=count.unlisted)
        counts.setdefault(split, SplitOutcome()).add(more)
    outcome = decide(
        counts, max_ratio=settings.max_reject_ratio, rejects_root="", lost_elements=lost
    )
    if outcome.status is not Status.APPROVED:
        problem = outcome.message.partition("\n")[0]
        problem = problem.replace("rejects.max_ratio", "max_reject_ratio")
        for split, first in rejected.samples.first_rejects.items():
            problem += f"; {describe_rejects(counts[split].rejected, first=first)}"
        raise InputError(uri=settings.naming.prefix, problem=problem)
    with explain_write_errors(settings.staging.output):
        check_free(settings)
    return [CommitBatch((_move_of(shard),)) for shard in shards]


def _move_of(shard: ShardResult) -> Move:
    return Move(shard.staged, (shard.data,))


def name_files(
    shards: Iterable[ShardResult], moved: Iterable[Count], *, settings: PrefixSettings
) -> list[str]:
    """Names the shards after all of them have been moved.

    Returns:
        The shards' URIs.

    Raises:
        InputError: A runner lost a move.
    """
    moves = [_move_of(shard) for shard in shards]
    check_all_moved(moves, moved)
    return sorted(join_uri(settings.staging.output, move.files[0].path) for move in moves)
