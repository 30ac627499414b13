"""Lists and joins in this process, and foresees what a build would write, reject and need."""

from __future__ import annotations

import dataclasses
import functools
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar, cast

import apache_beam as beam
import msgspec
from apache_beam.pvalue import PCollection

from shardbeam.configs.schema import ImageConfig
from shardbeam.pipelines.build import begin_counting, gather_records, list_inputs, make_label_map
from shardbeam.pipelines.failures import explain_failure
from shardbeam.pipelines.plan import Plan
from shardbeam.pipelines.runners.options import LocalRunner, make_options, run_here
from shardbeam.transforms.beam.stages import flatten
from shardbeam.transforms.commit.allowance import Emptied, find_emptied
from shardbeam.transforms.commit.gate import RunCounts, count_sources, name_classes
from shardbeam.transforms.commit.notes import make_notes
from shardbeam.transforms.commit.warnings import find_warnings
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.core.memory import MemoryBudget
from shardbeam.transforms.core.records import decode_annotations
from shardbeam.transforms.core.text import counted
from shardbeam.transforms.dataset.input_counts import (
    Foreseen,
    InputCounts,
    ListingSummary,
    is_empty,
)
from shardbeam.transforms.dataset.outcome import Outcome, SplitOutcome, Status, add_counts
from shardbeam.transforms.dataset.record_batches import decode_batch
from shardbeam.transforms.dataset.rejects import describe_split_rejects
from shardbeam.transforms.dataset.shard_plan import no_examples, plan_shards
from shardbeam.transforms.examples.encode.encode import as_file, store_image
from shardbeam.transforms.examples.encode.maps import find_classes
from shardbeam.transforms.formats.names import is_heif_name, is_undecodable_name
from shardbeam.transforms.images.decode import advise_on_undecodable
from shardbeam.transforms.storage.image_bytes import LFS_POINTER, is_lfs_pointer, read_bytes

# Measured (docs/guide/running.md#memory): a plan without records, a record of a listed image, and
# what a build takes beyond the larger of the plan's records and these; what each further process
# takes, and an image of a shard that is being written.
_PLAN_BYTES = 130_000_000
_IMAGE_BYTES = 1_100
_MORE_BYTES = 80_000_000
_PROCESS_BYTES = 80_000_000
_WRITTEN_BYTES = 1_400
# {random name of a run: its result}. The runner runs in this process.
_kept: dict[str, object] = {}
_Result = TypeVar("_Result")


class EstimatedSizes(NamedTuple):
    """The counts of each split with the bytes that are expected, and what to say about these."""

    splits: Mapping[str, SplitOutcome]
    notes: tuple[str, ...]


def list_images(plan: Plan) -> ListingSummary:
    """Lists the images in this process.

    Raises:
        RunError: The input cannot be used.
    """
    begin_counting(plan)
    return _run(functools.partial(list_inputs, plan=plan)).listing


def count_inputs(plan: Plan) -> InputCounts:
    """Lists and joins in this process, and returns what was counted.

    Raises:
        RunError: The input cannot be used.
    """
    return _run(lambda pipeline: gather_records(pipeline, plan=plan).inputs)


def _run(graph: Callable[[beam.Pipeline], PCollection[_Result]]) -> _Result:
    """Runs a graph in this process, and returns the one element at its end.

    Raises:
        RunError: The input cannot be used.
    """
    options = make_options()
    pipeline = beam.Pipeline(runner=LocalRunner(options=options), options=options)
    name = uuid.uuid4().hex
    graph(pipeline) | "KeepResult" >> beam.Map(_keep, name=name)
    failed: Exception | None = None
    try:
        run_here(pipeline)
    except Exception as error:  # noqa: BLE001  # Runners change an error's type.
        failed = error
    if failed is not None:
        raise explain_failure(failed)
    return cast(_Result, _kept.pop(name))


def _keep(result: object, *, name: str) -> None:
    _kept[name] = result


def foresee(inputs: InputCounts, *, plan: Plan) -> RunCounts:
    """Returns what a build would write and reject, as far as names and sizes show.

    Raises:
        InputError: A split has no examples.
        RunError: The input cannot be used.
    """
    if not any(inputs.splits.get(split, SplitOutcome()).images for split in plan.dataset.splits):
        raise no_examples(plan.dataset.splits[0], inputs=inputs)
    shards = plan_shards(
        inputs,
        splits=plan.dataset.splits,
        num_shards=plan.num_shards,
        shard_size_bytes=plan.shard_size_bytes,
    )
    foreseen = inputs.samples.foreseen
    counts = {
        split: msgspec.structs.replace(
            joined,
            listed=inputs.listing.files.get(split, joined.listed),
            shards=shards.num_shards[split],
            examples=joined.examples - foreseen.examples.get(split, 0),
            images=joined.images - sum(foreseen.rejects(split).values()),
            rejected=add_counts(joined.rejected, foreseen.rejects(split)),
        )
        for split in plan.dataset.splits
        for joined in [inputs.splits.get(split, SplitOutcome())]
    }
    label_map = make_label_map(inputs, settings=plan.join.labels, objects=plan.objects)
    run = RunCounts(plan.dataset, inputs, label_map, planned=counts)
    if foreseen.empty and run.tolerance.allowed(counts):
        # Only small splits need the allowance, so that this takes no time.
        run = dataclasses.replace(run, emptied=_foresee_emptied(plan, label_map=label_map))
    return run


def preview(run: RunCounts) -> Outcome:
    """Returns what a plan says about a build."""
    return Outcome(
        status=Status.APPROVED,
        splits=run.splits,
        tolerated=run.tolerance.describe_tolerated(run.splits),
        sources=count_sources(run),
        warnings=find_warnings(run),
        notes=make_notes(run),
        **name_classes(run.label_map),
    )


class _Passed(NamedTuple):
    """An image that is passed on to be encoded.

    Attributes:
        source: Its source.
        classes: The written names of its classes, without those that only its map shows.
        lost_to: The split that it is rejected from, because its file is empty; None otherwise.
    """

    source: str
    classes: frozenset[str]
    lost_to: str | None


def _foresee_emptied(plan: Plan, *, label_map: LabelMap) -> dict[str, Emptied]:
    """Finds what has no image but empty files; lists and joins once more for this."""

    def graph(pipeline: beam.Pipeline) -> PCollection[set[_Passed]]:
        gathered = gather_records(pipeline, plan=plan)
        return (
            flatten(*gathered.records, label="FlattenRecords")
            | "FindPassed" >> beam.Map(_find_passed, label_map=label_map)
            | "UnitePassed" >> beam.CombineGlobally(_unite)
        )

    passed = _run(graph)
    lost = [(each.lost_to, each) for each in passed if each.lost_to is not None]
    kept = [each for each in passed if each.lost_to is None]
    return find_emptied(
        classes=((split, each.classes) for split, each in lost),
        sources=((split, {each.source}) for split, each in lost),
        written=frozenset().union(*(each.classes for each in kept)),
        left={each.source for each in kept},
    )


def _find_passed(batch: bytes, *, label_map: LabelMap) -> set[_Passed]:
    passed = set()
    for record in decode_batch(batch):
        is_lost = record.image is not None and is_empty(record.image)
        if is_lost or not is_undecodable_name(record.key):
            annotations = decode_annotations(record.annotations)
            classes = find_classes(annotations, masks={}, label_map=label_map)
            lost_to = record.split if is_lost else None
            passed.add(_Passed(record.source, frozenset(classes), lost_to))
    return passed


def _unite(parts: Iterable[set[_Passed]]) -> set[_Passed]:
    return set().union(*parts)


def describe_foreseen(inputs: InputCounts) -> Iterator[str]:
    """Describes the rejects of each split with their reasons, one line each."""
    for split, counts in inputs.splits.items():
        if any(counts.rejected.values()):
            first = inputs.samples.first_rejects.get(split, ())
            yield describe_split_rejects(split, counts.rejected, first=first)
    foreseen = inputs.samples.foreseen
    if count := sum(foreseen.empty.values()):
        files = counted(count, "image is an empty file", "images are empty files")
        yield f"{files}, such as {', '.join(foreseen.first_empty)}; copy the files again"
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


def estimate_sizes(
    splits: Mapping[str, SplitOutcome], *, inputs: InputCounts, settings: ImageConfig
) -> EstimatedSizes:
    """Estimates the bytes of each split if the config resizes images, from a sample of them.

    The sample is read and resized.
    """
    stored_bytes = expected_bytes = images = 0
    resizes = settings.resize is not None or settings.max_side is not None
    for sampled in inputs.samples.foreseen.sampled if resizes else ():
        try:
            data = as_file(read_bytes(sampled.image), file=sampled.image)
            image = store_image(
                data,
                file=sampled.image,
                key=sampled.key,
                settings=settings,
                memory=MemoryBudget(),
            )
        except (RejectedError, OSError):
            # The build reports it.
            continue
        images += 1
        expected_bytes += sampled.expected_bytes
        change = len(image.data) - sampled.image.size_bytes
        stored_bytes += sampled.expected_bytes + sampled.examples * change
    if not expected_bytes:
        return EstimatedSizes(splits, ())
    ratio = stored_bytes / expected_bytes
    note = (
        f"the bytes are an estimate: {counted(images, 'image was', 'images were')} read and resized"
    )
    return EstimatedSizes(
        {
            name: msgspec.structs.replace(split, num_bytes=round(split.num_bytes * ratio))
            for name, split in splits.items()
        },
        (note,),
    )


def foresee_memory(splits: Mapping[str, SplitOutcome], *, plan_bytes: int, processes: int) -> int:
    """Estimates the memory of a build on this machine, in bytes: 0.98 to 1.2 times as measured.

    Args:
        splits: The images and shards of each split.
        plan_bytes: The most memory that the process of the plan had, which held the same
            annotations; 0 if it is not known.
        processes: How many processes write shards.
    """
    images = sum(split.images for split in splits.values())
    # Each process writes one shard at a time, and the first of them begins another one.
    shards = processes + 1
    a_shard = max(-(-split.images // max(split.shards, 1)) for split in splits.values())
    return (
        max(plan_bytes, _PLAN_BYTES + _IMAGE_BYTES * images)
        + _MORE_BYTES
        + _PROCESS_BYTES * (processes - 1)
        + _WRITTEN_BYTES * min(images, a_shard * shards)
    )
