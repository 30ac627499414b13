"""Lists and joins in this process, and foresees what a build would write, reject and need."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Iterator

import apache_beam as beam
import msgspec
from apache_beam.pvalue import PCollection

from shardbeam.pipelines.build import begin_counting, gather_records, list_inputs, make_label_map
from shardbeam.pipelines.failures import explain_failure
from shardbeam.pipelines.plan import Plan
from shardbeam.pipelines.runners.options import LocalRunner, make_options, run_here
from shardbeam.transforms.commit.gate import RunCounts, count_sources, name_classes
from shardbeam.transforms.commit.warnings import find_warnings, make_notes
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.text import counted
from shardbeam.transforms.dataset.input_counts import Foreseen, InputCounts, ListingSummary
from shardbeam.transforms.dataset.outcome import Outcome, SplitOutcome, Status, add_counts
from shardbeam.transforms.dataset.rejects import describe_split_rejects
from shardbeam.transforms.dataset.shard_plan import no_examples, plan_shards
from shardbeam.transforms.formats.names import is_heif_name
from shardbeam.transforms.images.decode import advise_on_undecodable
from shardbeam.transforms.storage.image_bytes import LFS_POINTER, is_lfs_pointer, read_bytes

# Measured (docs/guide/running.md#memory): a plan without records, a record of a listed image, and
# what a build takes beyond the larger of the plan's records and these.
_PLAN_BYTES = 130_000_000
_IMAGE_BYTES = 1_100
_MORE_BYTES = 80_000_000
# {random name of a run: what it counted}. The runner runs in this process.
_kept: dict[str, InputCounts] = {}


def list_images(plan: Plan) -> ListingSummary:
    """Lists the images in this process.

    Raises:
        RunError: The input cannot be used.
    """
    begin_counting(plan)
    return _count_inputs(functools.partial(list_inputs, plan=plan)).listing


def count_inputs(plan: Plan) -> InputCounts:
    """Lists and joins in this process, and returns what was counted.

    Raises:
        RunError: The input cannot be used.
    """
    return _count_inputs(lambda pipeline: gather_records(pipeline, plan=plan).inputs)


def _count_inputs(graph: Callable[[beam.Pipeline], PCollection[InputCounts]]) -> InputCounts:
    """Runs a graph in this process, and returns the counts at its end.

    Raises:
        RunError: The input cannot be used.
    """
    options = make_options()
    pipeline = beam.Pipeline(runner=LocalRunner(options=options), options=options)
    name = uuid.uuid4().hex
    graph(pipeline) | "KeepCounts" >> beam.Map(_keep_counts, name=name)
    failed: Exception | None = None
    try:
        run_here(pipeline)
    except Exception as error:  # noqa: BLE001  # Runners change an error's type.
        failed = error
    if failed is not None:
        raise explain_failure(failed)
    return _kept.pop(name)


def _keep_counts(inputs: InputCounts, *, name: str) -> None:
    _kept[name] = inputs


def preview(inputs: InputCounts, *, plan: Plan) -> Outcome:
    """Returns what a build would write; its counts include the rejects that are foreseen.

    Raises:
        InputError: A split has no examples.
    """
    if not any(inputs.splits.get(split, SplitOutcome()).images for split in plan.dataset.splits):
        raise no_examples(plan.dataset.splits[0], inputs=inputs)
    shards = plan_shards(
        inputs,
        splits=plan.dataset.splits,
        num_shards=plan.num_shards,
        shard_size_bytes=plan.shard_size_bytes,
    )
    counts = {
        split: msgspec.structs.replace(
            joined,
            listed=inputs.listing.files.get(split, joined.listed),
            shards=shards.num_shards[split],
            examples=joined.examples - inputs.samples.foreseen.examples.get(split, 0),
            images=joined.images - inputs.samples.foreseen.undecodable.get(split, 0),
            rejected=add_counts(joined.rejected, inputs.samples.foreseen.rejects(split)),
        )
        for split in plan.dataset.splits
        for joined in [inputs.splits.get(split, SplitOutcome())]
    }
    label_map = make_label_map(inputs, settings=plan.join.labels, objects=plan.objects)
    run = RunCounts(plan.dataset, inputs, label_map, planned=counts)
    return Outcome(
        status=Status.APPROVED,
        splits=counts,
        sources=count_sources(run),
        warnings=find_warnings(run),
        notes=make_notes(run),
        **name_classes(label_map),
    )


def describe_foreseen(inputs: InputCounts) -> Iterator[str]:
    """Describes the rejects of each split with their reasons, one line each."""
    for split, counts in inputs.splits.items():
        if any(counts.rejected.values()):
            first = inputs.samples.first_rejects.get(split, ())
            yield describe_split_rejects(split, counts.rejected, first=first)
    foreseen = inputs.samples.foreseen
    if count := sum(foreseen.undecodable.values()):
        have = counted(count, "image has the extension", "images have extensions")
        advice = advise_on_undecodable(is_heif=is_heif_name(foreseen.first))
        yield f"{have} of formats that cannot be decoded, such as {foreseen.first}; {advice}"


def warn_of_pointers(foreseen: Foreseen) -> Iterator[str]:
    """Warns of pointers of Git LFS: the few shortest images are read to find them."""
    for image in foreseen.shortest:
        try:
            is_pointer = is_lfs_pointer(read_bytes(image))
        except (RejectedError, OSError):
            # The build reports it.
            continue
        if is_pointer:
            files = counted(foreseen.short, "image is", "images are")
            yield f"{image.uri}: {LFS_POINTER}; {files} as short as a pointer"
            return


def foresee_memory(*, images: int, plan_bytes: int) -> int:
    """Estimates the memory of a build in one process, in bytes: 0.98 to 1.2 times as measured.

    Args:
        images: How many images it has.
        plan_bytes: The most memory that the process of the plan had, which held the same
            annotations; 0 if it is not known.
    """
    return max(plan_bytes, _PLAN_BYTES + _IMAGE_BYTES * images) + _MORE_BYTES
