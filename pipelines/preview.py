"""What a build would do: listing and joining, without reading an image or writing a file."""

from __future__ import annotations

from collections.abc import Mapping

import apache_beam as beam
import msgspec

from shardbeam.pipelines.build import gather_records
from shardbeam.pipelines.plan import Plan
from shardbeam.transforms.dataset.census import Census, ListingSummary
from shardbeam.transforms.dataset.outcome import Outcome, SplitOutcome, Status
from shardbeam.transforms.dataset.shard_plan import plan_shards
from shardbeam.transforms.list_images import ListImages
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.take_census import TakeCensus


class Preview(msgspec.Struct, frozen=True):
    """What a preview finds out.

    Attributes:
        outcome: What would be written.
        listing: What is there to be read.
    """

    outcome: Outcome
    listing: ListingSummary


def preview_dataset(pipeline: beam.Pipeline, *, plan: Plan, result_uri: str) -> None:
    """Adds the graph that previews a build to a pipeline: the first half of the build's.

    Args:
        pipeline: The pipeline.
        plan: What would be built.
        result_uri: Where the `Preview` goes, as JSON.
    """
    gather_records(pipeline, plan=plan).census | "WritePreview" >> beam.Map(
        _write_preview,
        splits=plan.splits.names,
        num_shards=plan.num_shards,
        shard_size_bytes=plan.shard_size_bytes,
        result_uri=result_uri,
    )


def list_inputs(pipeline: beam.Pipeline, *, plan: Plan, result_uri: str) -> None:
    """Adds the graph that only lists to a pipeline.

    Args:
        pipeline: The pipeline.
        plan: What would be built.
        result_uri: Where the `ListingSummary` goes, as JSON.
    """
    listed = pipeline | ListImages(sources=plan.sources, splits=plan.splits)
    (
        (listed.census,)
        | TakeCensus()
        | "WriteListing" >> beam.Map(_write_listing, result_uri=result_uri)
    )


def _write_preview(
    census: Census,
    *,
    splits: tuple[str, ...],
    num_shards: int | Mapping[str, int],
    shard_size_bytes: int,
    result_uri: str,
) -> None:
    shards = plan_shards(
        census, splits=splits, num_shards=num_shards, shard_size_bytes=shard_size_bytes
    )
    counts = {
        split: msgspec.structs.replace(
            joined,
            listed=census.listing.files.get(split, joined.listed),
            shards=shards.num_shards[split],
        )
        for split in splits
        for joined in [census.splits.get(split, SplitOutcome())]
    }
    outcome = Outcome(status=Status.APPROVED, splits=counts)
    preview = Preview(outcome=outcome, listing=census.listing)
    storage_for(result_uri).replace(result_uri, msgspec.json.encode(preview))


def _write_listing(census: Census, *, result_uri: str) -> None:
    storage_for(result_uri).replace(result_uri, msgspec.json.encode(census.listing))
