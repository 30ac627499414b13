"""Lists and joins in this process, and says what a build would write."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import apache_beam as beam
import msgspec
from apache_beam.pvalue import PCollection

from shardbeam.configs.decoding import MsgpackDecoder
from shardbeam.pipelines.build import begin_counting, gather_records, list_inputs
from shardbeam.pipelines.failures import explain_failure
from shardbeam.pipelines.plan import Plan
from shardbeam.pipelines.runners.options import LocalRunner, make_options, run_here
from shardbeam.pipelines.temporary import temporary_folder
from shardbeam.transforms.commit.gate import count_sources, name_classes
from shardbeam.transforms.commit.notes import make_notes
from shardbeam.transforms.commit.warnings import find_warnings
from shardbeam.transforms.core.errors import naming
from shardbeam.transforms.core.labels import build_label_map
from shardbeam.transforms.dataset.census import Census, ListingSummary
from shardbeam.transforms.dataset.outcome import Outcome, SplitOutcome, Status, add_counts
from shardbeam.transforms.dataset.shard_plan import no_examples, plan_shards

if TYPE_CHECKING:
    pass


def list_images(plan: Plan) -> ListingSummary:
    """Lists the images in this process.

    Raises:
        RunError: The input cannot be used.
    """
    begin_counting(plan)
    return _take_census(functools.partial(list_inputs, plan=plan)).listing


def take_census(plan: Plan) -> Census:
    """Lists and joins in this process, and returns what was counted.

    Raises:
        RunError: The input cannot be used.
    """
    return _take_census(functools.partial(_gather_census, plan=plan))


def _gather_census(pipeline: beam.Pipeline, *, plan: Plan) -> PCollection[Census]:
    return gather_records(pipeline, plan=plan).census


def _take_census(graph: Callable[[beam.Pipeline], PCollection[Census]]) -> Census:
    """Runs a graph in this process, and returns the census at its end.

    Raises:
        RunError: The input cannot be used.
    """
    options = make_options()
    with temporary_folder() as folder:
        path = Path(folder, "census")
        pipeline = beam.Pipeline(runner=LocalRunner(options=options), options=options)
        graph(pipeline) | "WriteCensus" >> beam.Map(_write_census, path=path)
        failed: Exception | None = None
        try:
            run_here(pipeline)
        except Exception as error:  # noqa: BLE001  # Runners change an error's type.
            failed = error
        if failed is not None:
            raise explain_failure(failed)
        return MsgpackDecoder(Census).decode(path.read_bytes())


def _write_census(census: Census, *, path: Path) -> None:
    with naming(str(path)):
        path.write_bytes(msgspec.msgpack.encode(census))


def preview(census: Census, *, plan: Plan) -> Outcome:
    """Returns what a build would write; its counts include the rejects that are foreseen.

    Raises:
        InputError: A split has no examples.
    """
    if not any(census.splits.get(split, SplitOutcome()).images for split in plan.splits.names):
        raise no_examples(plan.splits.names[0], census=census)
    shards = plan_shards(
        census,
        splits=plan.splits.names,
        num_shards=plan.num_shards,
        shard_size_bytes=plan.shard_size_bytes,
    )
    counts = {
        split: msgspec.structs.replace(
            joined,
            listed=census.listing.files.get(split, joined.listed),
            shards=shards.num_shards[split],
            examples=joined.examples - census.foreseen.examples.get(split, 0),
            images=joined.images - census.foreseen.undecodable.get(split, 0),
            rejected=add_counts(joined.rejected, census.foreseen.rejects(split)),
        )
        for split in plan.splits.names
        for joined in [census.splits.get(split, SplitOutcome())]
    }
    label_map = build_label_map(
        categories=census.categories.values(),
        settings=plan.labels,
        objects=plan.objects,
        lost=census.lost,
    )
    return Outcome(
        status=Status.APPROVED,
        splits=counts,
        sources=count_sources(census, dataset=plan.dataset),
        warnings=find_warnings(census, splits=counts, label_map=label_map, dataset=plan.dataset),
        notes=make_notes(census, dataset=plan.dataset, label_map=label_map),
        **name_classes(label_map),
    )
