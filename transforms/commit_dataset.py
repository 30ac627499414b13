"""CommitDataset: gate, a rename a file, and the finish."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import apache_beam as beam
import msgspec
from apache_beam import pvalue
from apache_beam.pvalue import PCollection

from shardbeam.transforms.beam.stages import in_global_window, report_usage
from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.core.records import Reject
from shardbeam.transforms.dataset.census import Census
from shardbeam.transforms.dataset.commit import (
    Move,
    RefusedError,
    RejectsFile,
    RejectsPart,
    assign_rejects_file,
    check_in_place,
    count_resumed,
    count_reuse,
    count_splits,
    judge,
    keep_record,
    move_into_place,
    prepare_output,
    write_rejects,
)
from shardbeam.transforms.dataset.dataset import (
    DatasetSettings,
    RunSettings,
    metadata_paths,
    write_dataset_files,
)
from shardbeam.transforms.dataset.outcome import Status
from shardbeam.transforms.dataset.pointer import write_pointer
from shardbeam.transforms.dataset.shard_result import ShardResult
from shardbeam.transforms.dataset.staging import Staging

_MOVES_AT_A_TIME = 16
# A bundle may hold all files that there are.
_MOVES_UNDER_WAY = 1024

# A file of rejects (`RejectsPart`), and a reject that goes there.
_Assigned = tuple[tuple[str, int, int], Reject]


@dataclasses.dataclass(eq=False, kw_only=True)
class CommitDataset(beam.PTransform[PCollection[ShardResult], PCollection[str]]):
    """Commits staged shards as one dataset, or refuses to: `ShardResult` → the committed counts.

    The gate writes the rejects files and the run's outcome into staging, and raises if the
    counts do not add up or too much was rejected. Every step is idempotent, so retries and
    runs that are started again end in the same files.

    Args:
        dataset: What the config says about the dataset.
        run: What is particular to this run.
        staging: Where the shards wait.
        rejects: All rejects, of every step.
        census: One `Census`.
        label_map: One `LabelMap`.

    Raises:
        RefusedError: (at run time) The gate refused; the outcome says why.
        InputError: (at run time) A staged file is gone, the output cannot be written, or another
            run has taken its lease.
    """

    dataset: DatasetSettings
    run: RunSettings
    staging: Staging
    rejects: PCollection[Reject]
    census: PCollection[Census]
    label_map: PCollection[LabelMap]

    def expand(self, shards: PCollection[ShardResult]) -> PCollection[str]:
        """Adds the step to a pipeline."""
        # (split, rejects), by a shuffle: Prism gives a side input that comes without one, such as
        # the census, to steps on rejects before it is there.
        counts = (
            self.rejects
            | "OneEach" >> beam.Map(_one_each).with_output_types(tuple[str, int])
            | "CountRejects" >> beam.CombinePerKey(sum)
        )
        # ((split, file, files), Reject): of many rejects, no worker gets more than fill a file.
        rejects_files = (
            self.rejects
            | "AssignFile"
            >> beam.Map(_assign_file, pvalue.AsDict(counts)).with_output_types(_Assigned)
            | "GroupByFile" >> beam.GroupByKey()
            | "WriteRejects" >> beam.Map(_write_rejects, staging=self.staging)
        )
        results = (pvalue.AsList(shards), pvalue.AsList(rejects_files))
        # how many files each bundle has moved
        moved = (
            self.census
            | "Gate"
            >> beam.FlatMap(
                _gate, *results, dataset=self.dataset, run=self.run, staging=self.staging
            ).with_output_types(Move)
            # Move; without this barrier a retry of a move would repeat the gate.
            | "SpreadMoves" >> beam.Reshuffle()
            | "Move" >> beam.ParDo(_MoveFn(staging=self.staging))
        )
        return self.census | "Finish" >> beam.Map(
            _finish,
            *results,
            pvalue.AsSingleton(self.label_map),
            pvalue.AsIter(moved),
            dataset=self.dataset,
            run=self.run,
            staging=self.staging,
        )


def _one_each(reject: Reject) -> tuple[str, int]:
    return reject.split, 1


def _assign_file(reject: Reject, counts: Mapping[str, int]) -> _Assigned:
    split, file_index, num_files = assign_rejects_file(reject, counts=counts)
    return (split, file_index, num_files), reject


def _write_rejects(
    element: tuple[tuple[str, int, int], Iterable[Reject]], *, staging: Staging
) -> RejectsFile:
    part, rejects = element
    with staging.explain_errors():
        return write_rejects(RejectsPart(*part), rejects, staging=staging)


def _gate(
    census: Census,
    shards: Sequence[ShardResult],
    rejects: Sequence[RejectsFile],
    *,
    dataset: DatasetSettings,
    run: RunSettings,
    staging: Staging,
) -> Iterator[Move]:
    # From here on two runs would be in each other's way.
    staging.check_lease()
    splits = count_splits(splits=dataset.splits, census=census, shards=shards, rejects=rejects)
    outcome = judge(splits, max_ratio=dataset.max_reject_ratio, rejects_root=staging.rejects_root)
    outcome = msgspec.structs.replace(
        outcome, reuse=count_reuse(run.previous, shards), resumed=count_resumed(shards)
    )
    moves = plan_moves(shards, rejects)
    with staging.explain_errors():
        staging.write_outcome(outcome)
        if outcome.status is not Status.APPROVED:
            staging.release_lease()
            raise RefusedError(outcome.message)
        prepare_output(
            [move.file for move in moves],
            metadata=metadata_paths(dataset),
            staging=staging,
            shard_keys=[shard.key for shard in shards],
        )
    report_usage()
    yield from moves


def plan_moves(shards: Iterable[ShardResult], rejects: Iterable[RejectsFile]) -> list[Move]:
    """Lists what the commit does, in any order and in parallel."""
    moves = [
        move
        for shard in shards
        for move in (Move(shard.data, shard_key=shard.key), Move(shard.index))
    ]
    return moves + [Move(split.file) for split in rejects]


def _move(move: Move, *, staging: Staging) -> None:
    move_into_place(move.file, staging=staging)
    if move.shard_key:
        keep_record(move.shard_key, staging=staging)


@beam.typehints.with_output_types(int)
class _MoveFn(beam.DoFn):
    """Moves files, many at a time: each is some requests long where storage is remote."""

    def __init__(self, *, staging: Staging) -> None:
        self._staging = staging

    def setup(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=_MOVES_AT_A_TIME, thread_name_prefix="move")

    def teardown(self) -> None:
        self._executor.shutdown(cancel_futures=True)

    def start_bundle(self) -> None:
        self._staging.check_lease()
        self._moves: deque[Future[None]] = deque()
        self._count = 0

    def process(self, move: Move) -> None:
        self._count += 1
        self._moves.append(self._executor.submit(_move, move, staging=self._staging))
        if len(self._moves) > _MOVES_UNDER_WAY:
            with self._staging.explain_errors():
                self._moves.popleft().result()

    def finish_bundle(self) -> Iterator[Any]:
        with self._staging.explain_errors():
            for move in self._moves:
                move.result()
        report_usage()
        yield in_global_window(self._count)


def _finish(
    census: Census,
    shards: Sequence[ShardResult],
    rejects: Sequence[RejectsFile],
    label_map: LabelMap,
    moved: Iterable[int],
    *,
    dataset: DatasetSettings,
    run: RunSettings,
    staging: Staging,
) -> str:
    # Only so that nothing is finished before all is moved.
    del moved
    # A repetition must not come after what another run has begun meanwhile.
    staging.check_lease()
    splits = count_splits(splits=dataset.splits, census=census, shards=shards, rejects=rejects)
    with staging.explain_errors():
        check_in_place([move.file for move in plan_moves(shards, rejects)], staging=staging)
        write_dataset_files(
            dataset=dataset,
            run=run,
            staging=staging,
            splits=splits,
            shards=shards,
            rejects=rejects,
            listing=census.listing,
            label_map=label_map,
        )
        # Here, and not in the command: nobody may be waiting for the job.
        if run.latest:
            write_pointer(run.latest, folder=staging.output)
        staging.clear()
    staging.release_lease()
    report_usage()
    return staging.output
