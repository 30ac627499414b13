"""CommitDataset: decides whether the dataset is good enough, and moves its files into place."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import apache_beam as beam
from apache_beam import pvalue
from apache_beam.pvalue import PCollection

from shardbeam.transforms.beam.stages import counting
from shardbeam.transforms.commit.commit import CommitSettings, finish, gate
from shardbeam.transforms.commit.moves import (
    CommitBatch,
    check_moved,
    clear,
    end_commit,
    move,
)
from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.core.records import Reject
from shardbeam.transforms.dataset.collectors.statistics import CountedStatistics, merge_counted
from shardbeam.transforms.dataset.input_counts import InputCounts
from shardbeam.transforms.dataset.rejects import RejectsFile, rejects_path, write_rejects
from shardbeam.transforms.dataset.shard_result import ShardResult
from shardbeam.transforms.duplicates.duplicates import Duplicates
from shardbeam.transforms.staging.staging import Staging, explain_write_errors

# `((split, path of a file of rejects), reject)`
_Assigned = tuple[tuple[str, str], Reject]


@dataclasses.dataclass(eq=False, kw_only=True)
class CommitDataset(beam.PTransform[PCollection[ShardResult], PCollection[str]]):
    """Commits staged shards as one dataset, or refuses to: `ShardResult` → the dataset's folder.

    The gate writes the files of rejects and the run's outcome into staging. It raises if the counts
    do not add up, too many inputs were rejected, or the dataset is not what the config expects.
    Every step is idempotent, so retries and restarted runs end with the same files.

    Args:
        settings: The dataset to commit, and its folder.
        rejects: The rejects of all steps.
        statistics: `(split, CountedStatistics)` for each shard.
        inputs: One `InputCounts`.
        label_map: One `LabelMap`.
        duplicates: One `Duplicates`; None if duplicates are not searched.

    Raises:
        GateError: (at run time) The gate refused; the outcome has the reason.
        InputError: (at run time) A staged file is gone, the output cannot be written, or another
            run has taken its lease.
    """

    settings: CommitSettings
    rejects: PCollection[Reject]
    statistics: PCollection[tuple[str, CountedStatistics]]
    inputs: PCollection[InputCounts]
    label_map: PCollection[LabelMap]
    duplicates: PCollection[Duplicates] | None = None

    def expand(self, shards: PCollection[ShardResult]) -> PCollection[str]:
        """Adds the step to a pipeline."""
        staging = self.settings.staging
        # (split, number of rejects). This side input must come from a shuffle: otherwise Prism
        # starts the steps that need it before it is complete.
        counts = (
            self.rejects
            | "OneEach" >> beam.Map(_one_each).with_output_types(tuple[str, int])
            | "CountRejects" >> beam.CombinePerKey(sum)
        )
        # ((split, path), Reject): no worker gets more rejects than fit into one file.
        rejects_files = (
            self.rejects
            | "AssignFile"
            >> beam.Map(_assign_file, pvalue.AsDict(counts)).with_output_types(_Assigned)
            | "GroupByFile" >> beam.GroupByKey()
            | "WriteRejects" >> beam.Map(_write_rejects, staging=staging)
        )
        label_map = pvalue.AsSingleton(self.label_map)
        # (split, CountedStatistics), merged: statistics of each shard are too large for one worker.
        statistics = pvalue.AsDict(
            self.statistics | "MergeStatistics" >> beam.CombinePerKey(merge_counted)
        )
        results = (pvalue.AsList(shards), pvalue.AsList(rejects_files))
        duplicates = None if self.duplicates is None else pvalue.AsSingleton(self.duplicates)
        # CommitBatch; without this barrier a retry of a move would repeat the gate.
        batches = (
            self.inputs
            | "Gate"
            >> beam.FlatMap(
                counting(gate),
                *results,
                label_map,
                settings=self.settings,
                statistics=statistics,
                duplicates=duplicates,
            ).with_output_types(CommitBatch)
            | "SpreadBatches" >> beam.Reshuffle()
        )
        # the number of old files, and then of moves, in each batch; each step waits for all batches
        deleted = batches | "Move" >> beam.Map(counting(move), staging=staging)
        checked = batches | "CheckMoved" >> beam.Map(
            counting(check_moved), pvalue.AsIter(deleted), staging=staging
        )
        # the dataset's folder
        committed = self.inputs | "Finish" >> beam.Map(
            counting(finish),
            *results,
            label_map,
            pvalue.AsIter(checked),
            settings=self.settings,
            statistics=statistics,
            duplicates=duplicates,
        ).with_output_types(str)
        cleared = batches | "ClearStaging" >> beam.Map(
            counting(clear), pvalue.AsSingleton(committed), staging=staging
        )
        return committed | "EndCommit" >> beam.Map(
            counting(end_commit), pvalue.AsIter(cleared), staging=staging
        ).with_output_types(str)


def _one_each(reject: Reject) -> tuple[str, int]:
    return reject.split, 1


def _assign_file(reject: Reject, counts: Mapping[str, int]) -> _Assigned:
    return (reject.split, rejects_path(reject, counts=counts)), reject


def _write_rejects(
    element: tuple[tuple[str, str], Iterable[Reject]], *, staging: Staging
) -> RejectsFile:
    (split, path), rejects = element
    with explain_write_errors(staging.output):
        staging.check_mark()
        return write_rejects(split, path, rejects, root=staging.root, folder=staging.run_folder)
