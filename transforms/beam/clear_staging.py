"""The last steps of a commit: all workers clear staging."""

from __future__ import annotations

from typing import TypeVar

import apache_beam as beam
from apache_beam import pvalue
from apache_beam.pvalue import PCollection

from shardbeam.transforms.beam.stages import counting
from shardbeam.transforms.commit.moves import CommitBatch, clear, end_commit, list_staging
from shardbeam.transforms.staging.staging import Staging

T = TypeVar("T")


def clear_staging(done: PCollection[T], *, staging: Staging) -> PCollection[T]:
    """Adds the steps that delete what is left in staging, by all workers, and then give `done`.

    Args:
        done: The result of a commit, one element.
        staging: The run's staging area.
    """
    cleared = (
        done
        | "ListStaging"
        >> beam.FlatMap(counting(list_staging), staging=staging).with_output_types(CommitBatch)
        # CommitBatch
        | "SpreadClearing" >> beam.Reshuffle()
        | "ClearStaging" >> beam.Map(counting(clear), staging=staging)
    )
    return done | "EndCommit" >> beam.Map(
        counting(end_commit), pvalue.AsIter(cleared), staging=staging
    ).with_output_types(done.element_type)
