"""The whole flow, from images and annotations to a committed dataset, on one page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import apache_beam as beam
import msgspec
from apache_beam.pvalue import PBegin, PCollection

from shardbeam.pipelines.plan import Plan
from shardbeam.transforms.beam.stages import MergeCounts, flatten
from shardbeam.transforms.commit.commit import CommitSettings
from shardbeam.transforms.commit.join_checks import (
    check_arrived,
    check_image_ids,
    check_join,
    check_listing,
    check_masks,
    check_units,
)
from shardbeam.transforms.commit_dataset import CommitDataset
from shardbeam.transforms.core.counters import IMAGES, ROWS, counters
from shardbeam.transforms.core.kinds import Kind
from shardbeam.transforms.core.labels import LabelMap, LabelSettings, build_label_map
from shardbeam.transforms.core.records import Record, Reject
from shardbeam.transforms.core.resources import Resources
from shardbeam.transforms.dataset.input_counts import DeclaredClasses, InputCounts
from shardbeam.transforms.duplicates.duplicates import Duplicates
from shardbeam.transforms.find_duplicates import FindDuplicates
from shardbeam.transforms.join_annotations import JoinAnnotations
from shardbeam.transforms.list_images import ListImages
from shardbeam.transforms.read_annotations import ReadAnnotations
from shardbeam.transforms.shards.writer import ShardSettings
from shardbeam.transforms.write_shards import WriteShards

# A program's transform that gives a `shardbeam.Record` for each image.
Records: TypeAlias = beam.PTransform[PBegin, PCollection[Record]]


def begin_counting(plan: Plan, *, annotation_files: Sequence[tuple[str, int, str]] = ()) -> None:
    """Begins to count what a graph does, in case that somebody watches."""
    counters.begin(
        noun=ROWS if Kind.ROWS in plan.encoder.kinds else IMAGES,
        annotation_bytes=sum(size_bytes for _, size_bytes, _ in annotation_files),
    )


def list_inputs(pipeline: beam.Pipeline, *, plan: Plan) -> PCollection[InputCounts]:
    """Adds the graph that only lists the images; it gives one `InputCounts` with the listing."""
    listed = pipeline | ListImages(sources=plan.sources, settings=plan.join, makes_records=False)
    return (
        listed.counts
        | MergeCounts()
        | "CheckListing"
        >> beam.Map(check_listing, sources=plan.sources).with_output_types(InputCounts)
    )


class Gathered(NamedTuple):
    """What is known before an image is read.

    Attributes:
        records: The records of each step, in batches (`dataset.record_batches`): a `Record` for
            each image that is neither rejected nor excluded so far.
        rejects: The rejects of each step: a `Reject` for each input that cannot be used.
        inputs: One `InputCounts`. Making it fails if images and annotations do not belong together.
        label_map: One `LabelMap`.
    """

    records: tuple[PCollection[bytes], ...]
    rejects: tuple[PCollection[Reject], ...]
    inputs: PCollection[InputCounts]
    label_map: PCollection[LabelMap]


def gather_records(
    pipeline: beam.Pipeline, *, plan: Plan, records: Records | None = None
) -> Gathered:
    """Adds the first half of the graph to a pipeline: list, read, join, count.

    It reads no image and writes nothing, so `shardbeam plan` runs only this half.

    Args:
        pipeline: The pipeline.
        plan: What to build.
        records: Gives the records, if the plan's sources do not.
    """
    if records is None:
        # values: (source and join key, listed image or mask); files: ListedFile
        # made: Record of each image that needs no join
        listed = pipeline | ListImages(sources=plan.sources, settings=plan.join)
        # values: (source and join key, annotation entry, or image inside a container)
        read = listed.files | ReadAnnotations(sources=plan.sources, splits=plan.join.splits)
        values, made = (*listed.values, *read.values), listed.records
        counts, rejects = (*listed.counts, *read.counts), listed.rejects
    else:
        # Imported here: few builds have records of a program.
        from shardbeam.transforms.take_records import TakeRecords

        # values: (source and join key, image or what its record says)
        taken = pipeline | "GiveRecords" >> records | TakeRecords(splits=plan.join.splits)
        values, made = (taken.values,), ()
        counts, rejects = taken.counts, taken.rejects
    # records: Record, in batches
    joined = values | JoinAnnotations(sources=plan.sources, settings=plan.join)
    # one InputCounts
    inputs = (
        (*counts, *joined.counts)
        | MergeCounts()
        | "CheckJoin" >> beam.Map(_check, plan=plan).with_output_types(InputCounts)
    )
    # one LabelMap
    label_map = inputs | "BuildLabelMap" >> beam.Map(
        make_label_map, settings=plan.join.labels, objects=plan.objects
    ).with_output_types(LabelMap)
    return Gathered(
        records=(*made, joined.records),
        rejects=(*rejects, joined.rejects),
        inputs=inputs,
        label_map=label_map,
    )


def build_dataset(
    pipeline: beam.Pipeline,
    *,
    plan: Plan,
    commit: CommitSettings,
    resources: Resources,
    records: Records | None = None,
) -> None:
    """Adds the graph that builds a dataset to a pipeline.

    Args:
        pipeline: The pipeline.
        plan: What to build.
        commit: The dataset's settings, and the staging folder.
        resources: What each worker process may use to write shards.
        records: As for `gather_records`.
    """
    gathered = gather_records(pipeline, plan=plan, records=records)
    # shards: ShardResult, in staging; images are read, checked, converted and encoded in here
    written = flatten(*gathered.records, label="FlattenRecords") | WriteShards(
        naming=plan.dataset.naming,
        num_shards=plan.num_shards,
        settings=ShardSettings(
            splits=plan.dataset.splits,
            encoder=plan.encoder,
            staging=commit.staging,
            container=plan.dataset.container,
            shard_size_bytes=plan.shard_size_bytes,
            seed=plan.dataset.seed,
            resources=resources,
            previous=commit.run.previous,
        ),
        inputs=gathered.inputs,
        label_map=gathered.label_map,
    )
    duplicates: PCollection[Duplicates] | None = None
    if plan.dataset.duplicates.find == "all":
        # one Duplicates, by the shards' indexes
        duplicates = written.shards | FindDuplicates(
            splits=plan.dataset.splits,
            near=plan.dataset.duplicates.near,
            staging=commit.staging,
            inputs=gathered.inputs,
        )
    written.shards | CommitDataset(
        settings=commit,
        rejects=(*gathered.rejects, written.rejects) | beam.Flatten(),
        statistics=written.statistics,
        inputs=gathered.inputs,
        label_map=gathered.label_map,
        duplicates=duplicates,
    )


def _check(inputs: InputCounts, *, plan: Plan) -> InputCounts:
    inputs = check_arrived(inputs, sources=plan.sources)
    classes = DeclaredClasses()
    classes.add(inputs.classes)
    for source in plan.sources:
        for category in source.format.declared_categories():
            classes.add_category(category)
    inputs = msgspec.structs.replace(inputs, classes=classes)
    check_join(inputs, sources=plan.sources)
    check_units(inputs, sources=plan.sources)
    if plan.encoder.needs_numbers:
        check_image_ids(inputs, sources=plan.sources)
    check_masks(inputs)
    # An unknown class may be why a split is empty, so its error comes first.
    make_label_map(inputs, settings=plan.join.labels, objects=plan.objects)
    return inputs


def make_label_map(inputs: InputCounts, *, settings: LabelSettings, objects: bool) -> LabelMap:
    """Makes the label map of the classes that were counted."""
    return build_label_map(
        categories=inputs.classes.categories.values(),
        settings=settings,
        objects=objects or inputs.classes.have_boxes,
        lost=inputs.classes.lost,
    )
