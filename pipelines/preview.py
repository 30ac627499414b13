"""What a build would do: listing and joining, without reading an image or writing a file."""

from __future__ import annotations

import apache_beam as beam
import msgspec
from apache_beam import pvalue

from shardbeam.pipelines.plan import Plan
from shardbeam.transforms.assign_split import AssignSplit
from shardbeam.transforms.build_label_map import BuildLabelMap
from shardbeam.transforms.check_join import CheckJoin
from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.dataset.listing import ListingSummary
from shardbeam.transforms.dataset.outcome import Outcome, SplitOutcome, Status
from shardbeam.transforms.dataset.shard_plan import ShardPlan
from shardbeam.transforms.dataset.tally import JoinTally
from shardbeam.transforms.join_annotations import JoinAnnotations
from shardbeam.transforms.list_images import ListImages
from shardbeam.transforms.read_annotations import ReadAnnotations
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.summarize_listing import SummarizeListing
from shardbeam.transforms.write_to_tfrecord import PlanShards


class Preview(msgspec.Struct, frozen=True):
    """What a preview finds out.

    Attributes:
        outcome: What would be written.
        listing: What is there to be read.
    """

    outcome: Outcome
    listing: ListingSummary


def preview_dataset(pipeline: beam.Pipeline, *, plan: Plan, result_uri: str) -> None:
    """Adds the graph that previews a build to a pipeline.

    Args:
        pipeline: The pipeline.
        plan: What would be built.
        result_uri: Where the `Preview` goes, as JSON.
    """
    listed = pipeline | ListImages(sources=plan.sources, splits=plan.splits)
    read = listed.files | ReadAnnotations(sources=plan.sources)
    listing = (listed.images, listed.others, listed.rejects) | SummarizeListing(
        splits=plan.splits, contained=read.images
    )
    joined = (
        (listed.images, read.images),
        (listed.masks, read.entries),
    ) | JoinAnnotations(sources=plan.sources, settings=plan.join)
    checked = joined.tally | CheckJoin(sources=plan.sources)
    label_map = (read.categories, joined.tally) | BuildLabelMap(
        settings=plan.labels, objects=plan.objects
    )
    shards = (
        joined.records
        | AssignSplit()
        | PlanShards(
            splits=plan.splits.names,
            num_shards=plan.num_shards,
            shard_size_bytes=plan.shard_size_bytes,
        )
    )
    checked | "WritePreview" >> beam.Map(
        _write_preview,
        pvalue.AsSingleton(shards),
        pvalue.AsSingleton(listing),
        # Only so that its errors are shown.
        pvalue.AsSingleton(label_map),
        splits=plan.splits.names,
        result_uri=result_uri,
    )


def list_inputs(pipeline: beam.Pipeline, *, plan: Plan, result_uri: str) -> None:
    """Adds the graph that only lists to a pipeline.

    Args:
        pipeline: The pipeline.
        plan: What would be built.
        result_uri: Where the `ListingSummary` goes, as JSON.
    """
    # There is one worker, and nothing that it would have to keep.
    listed = pipeline | ListImages(sources=plan.sources, splits=plan.splits, spread=False)
    listing = (listed.images, listed.others, listed.rejects) | SummarizeListing(splits=plan.splits)
    listing | "WriteListing" >> beam.Map(_write_json, uri=result_uri)


def _write_preview(
    tally: JoinTally,
    shards: ShardPlan,
    listing: ListingSummary,
    label_map: LabelMap,
    *,
    splits: tuple[str, ...],
    result_uri: str,
) -> None:
    del label_map
    counts = {
        split: msgspec.structs.replace(
            joined,
            listed=listing.files.get(split, joined.listed),
            shards=shards.num_shards[split],
            num_bytes=shards.num_bytes[split],
        )
        for split in splits
        for joined in [tally.splits.get(split, SplitOutcome())]
    }
    outcome = Outcome(status=Status.APPROVED, splits=counts)
    _write_json(Preview(outcome=outcome, listing=listing), uri=result_uri)


def _write_json(value: Preview | ListingSummary, *, uri: str) -> None:
    storage_for(uri).replace(uri, msgspec.json.encode(value))
