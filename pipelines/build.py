"""The whole flow, from images and annotations to a committed dataset, on one page."""

from __future__ import annotations

import apache_beam as beam

from shardbeam.pipelines.plan import Plan
from shardbeam.transforms.assign_split import AssignSplit
from shardbeam.transforms.build_label_map import BuildLabelMap
from shardbeam.transforms.check_join import CheckJoin
from shardbeam.transforms.commit_dataset import CommitDataset
from shardbeam.transforms.dataset.dataset import RunSettings
from shardbeam.transforms.dataset.staging import Staging
from shardbeam.transforms.join_annotations import JoinAnnotations
from shardbeam.transforms.list_images import ListImages
from shardbeam.transforms.read_annotations import ReadAnnotations
from shardbeam.transforms.summarize_listing import SummarizeListing
from shardbeam.transforms.write_to_tfrecord import DEFAULT_READ_AHEAD, WriteToTFRecord


def build_dataset(
    pipeline: beam.Pipeline,
    *,
    plan: Plan,
    staging: Staging,
    run: RunSettings,
    processes: int = 1,
    threads: int | None = None,
    read_ahead: int | None = None,
) -> None:
    """Adds the graph that builds a dataset to a pipeline.

    Args:
        pipeline: The pipeline.
        plan: What to build.
        staging: Where it waits for the commit.
        run: What is particular to this run.
        processes: Processes that write shards at the same time, for each worker process; 0 for
            one a CPU where there is much to write.
        threads: Threads that encode, in each of them; two more than its CPUs where None.
        read_ahead: Images that are read from object storage at a time, for each shard; as
            `WriteToTFRecord` has it where None.
    """
    # images: ((source, join), ListedImage); masks: ((source, join), AnnotationEntry)
    listed = pipeline | ListImages(sources=plan.sources, splits=plan.splits)
    # entries: ((source, join), AnnotationEntry); categories: Category; images: as above
    read = listed.files | ReadAnnotations(sources=plan.sources)
    # one ListingSummary
    listing = (listed.images, listed.others, listed.rejects) | SummarizeListing(
        splits=plan.splits, contained=read.images
    )

    # records: Record; tally: one JoinTally
    joined = (
        (listed.images, read.images),
        (listed.masks, read.entries),
    ) | JoinAnnotations(sources=plan.sources, settings=plan.join)
    checked = joined.tally | CheckJoin(sources=plan.sources)
    # one LabelMap
    label_map = (read.categories, joined.tally) | BuildLabelMap(
        settings=plan.labels, objects=plan.objects
    )

    # (split, Record)
    records = joined.records | AssignSplit()
    # shards: ShardResult, in staging; images are read, checked, converted and encoded in here
    written = records | WriteToTFRecord(
        plan.file_path_prefix,
        shard_name_template=plan.shard_name_template,
        num_shards=plan.num_shards,
        splits=plan.splits.names,
        encoder=plan.encoder,
        label_map=label_map,
        staging=staging,
        shard_size_bytes=plan.shard_size_bytes,
        seed=plan.dataset.seed,
        processes=processes,
        threads=threads,
        read_ahead=read_ahead or DEFAULT_READ_AHEAD,
        previous=run.previous,
        after=checked,
    )

    # Reject
    rejects = (listed.rejects, joined.rejects, written.rejects) | beam.Flatten()
    written.shards | CommitDataset(
        dataset=plan.dataset,
        run=run,
        staging=staging,
        rejects=rejects,
        listing=listing,
        tally=joined.tally,
        label_map=label_map,
    )
