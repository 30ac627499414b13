"""WriteToTFRecord: Beam's transform of that name, with deterministic shards of Examples.

No lease is held. A prefix that has files already is refused, and shards are moved into place only
after all of them are written and the counts add up.
"""

from __future__ import annotations

import hashlib
import os
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
import msgspec
from apache_beam import coders as beam_coders
from apache_beam import pvalue
from apache_beam.io import filesystem
from apache_beam.pvalue import PCollection

from shardbeam.configs.convert import convert
from shardbeam.configs.problem import Problem
from shardbeam.configs.schema import FeaturesConfig, ImageConfig, LabelsConfig
from shardbeam.transforms.beam.stages import MergeCounts, counting
from shardbeam.transforms.commit.allowance import Tolerance
from shardbeam.transforms.commit.gate import count_splits, decide, find_lost
from shardbeam.transforms.commit.join_checks import check_arrived
from shardbeam.transforms.commit.moves import (
    CommitBatch,
    Move,
    check_all_moved,
    check_moved,
    end_commit,
    move,
)
from shardbeam.transforms.core.counts import REJECTS, Count, Counts, encode_element
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.labels import LabelMap, LabelSettings, build_label_map
from shardbeam.transforms.core.records import Record, Reject
from shardbeam.transforms.core.resources import Resources
from shardbeam.transforms.core.sharding import SplitAssignment
from shardbeam.transforms.dataset.collectors.statistics import CountedStatistics, merge_counted
from shardbeam.transforms.dataset.input_counts import InputCounts, merge_inputs
from shardbeam.transforms.dataset.outcome import SplitOutcome, Status
from shardbeam.transforms.dataset.rejects import describe_rejects
from shardbeam.transforms.dataset.shard_names import FileNaming
from shardbeam.transforms.dataset.shard_result import ShardResult
from shardbeam.transforms.examples.encode.schema import EncoderSettings
from shardbeam.transforms.formats.base import find_format
from shardbeam.transforms.formats.join.sources import GIVEN_SOURCE, JoinSettings
from shardbeam.transforms.join_annotations import JoinAnnotations
from shardbeam.transforms.shards.writer import ShardSettings
from shardbeam.transforms.staging.staging import TOTALS, Staging, explain_write_errors
from shardbeam.transforms.storage.base import is_uri, join_uri
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.take_records import TakeRecords
from shardbeam.transforms.write_shards import WriteShards

_DEFAULT_SPLIT = "train"


class WrittenFiles(NamedTuple):
    """The result of `WriteToTFRecord`.

    Attributes:
        files: Path or URI of each shard, once it is in place.
        rejects: A `Reject` for each record that was not written, with the reason.
        label_map: One `LabelMap`: the ids that the classes have in the Examples.
    """

    files: PCollection[str]
    rejects: PCollection[Reject]
    label_map: PCollection[LabelMap]


class WriteToTFRecord(beam.io.WriteToTFRecord):
    """Writes records into sharded TFRecord files of `tf.train.Example`.

    The worker that writes a shard reads, checks and encodes its images. The files are the same,
    whatever the runner and the number of workers. Each record is written, rejected or excluded; the
    files are moved into place once the counts add up.

        files = (
            pipeline
            | beam.Create(rows)
            | beam.Map(
                lambda row: shardbeam.Record.of(
                    row["name"], image=row["path"], labels=[row["class"]]
                )
            )
            | shardbeam.WriteToTFRecord("/data/birds.tfrecord", num_shards=8)
        ).files

    It refuses a prefix that has files already. It holds no lease, so only one pipeline at a time
    may write to a prefix; `shardbeam.build(records=...)` makes a dataset, and holds one.

    Args:
        file_path_prefix: As Beam's; `{split}` in it stands for the split's name.
        coder: Only Beam's default, BytesCoder, because serialized Examples are written.
        file_name_suffix: As Beam's.
        num_shards: The number of shards, either one number for each split or `{split: shards}`; 0
            decides by size.
        shard_name_template: As Beam's: `S` and `N` stand for shard and shard count. The default
            pads them to at least five digits, as TFDS reads them. Window templates are refused.
        compression_type: Only uncompressed: TFDS loads no compressed shards.
        triggering_frequency: Refused, because the input is bounded.
        splits: The splits' names. If there are several, each record names its split.
        image: How images are checked and stored: the keys of `image` in a config.
        features: Which Example keys are written: the keys of `features` in a config.
        labels: Which classes are written: the keys of `labels` in a config.
        shard_size_mb: Target size of a shard in MB (10⁶ bytes), if their number is not given.
        seed: Key of the hash that decides shard and order.
        max_reject_ratio: The greatest share of a split's records that may be rejected.

    Raises:
        ValueError: (at construction) An argument would give files that readers cannot load, or
            makes sense for unbounded input only. (in `expand`) The input is unbounded.
        InputError: (at run time) The prefix has files, a split has no examples, too much was
            rejected, the folder cannot be written, or workers see different folders.
    """

    def __init__(
        self,
        file_path_prefix: str,
        coder: beam_coders.Coder | None = None,
        file_name_suffix: str = "",
        num_shards: int | Mapping[str, int] = 0,
        shard_name_template: str | None = None,
        compression_type: str = filesystem.CompressionTypes.AUTO,
        triggering_frequency: int | None = None,
        *,
        splits: Sequence[str] = (_DEFAULT_SPLIT,),
        image: Mapping[str, Any] | None = None,
        features: Mapping[str, Any] | None = None,
        labels: Mapping[str, Any] | None = None,
        shard_size_mb: float = 150,
        seed: int = 0,
        max_reject_ratio: float = 0.01,
    ) -> None:
        if coder is not None and not isinstance(coder, beam_coders.BytesCoder):
            raise ValueError(f"coder must be BytesCoder, got {type(coder).__name__}")
        if triggering_frequency is not None:
            raise ValueError("triggering_frequency is for unbounded input; this input is bounded")
        if compression_type == filesystem.CompressionTypes.AUTO:
            name = f"{file_path_prefix}{file_name_suffix}"
            compression_type = filesystem.CompressionTypes.detect_compression_type(name)
        if compression_type != filesystem.CompressionTypes.UNCOMPRESSED:
            raise ValueError(
                f"compression {compression_type!r}: tfds.load reads uncompressed shards only; "
                "images are compressed already"
            )
        super().__init__(
            file_path_prefix, file_name_suffix=file_name_suffix, compression_type=compression_type
        )
        prefix = file_path_prefix if is_uri(file_path_prefix) else os.path.abspath(file_path_prefix)
        self._num_shards = num_shards
        self._labels = LabelSettings(**_read(labels, LabelsConfig, name="labels"))
        encoder = EncoderSettings(
            **_read(features, FeaturesConfig, name="features"),
            kinds=GIVEN_SOURCE.format.kinds,
            image=ImageConfig(**_read(image, ImageConfig, name="image")),
            min_side_px=self._labels.min_side_px,
            min_area_px=self._labels.min_area_px,
        )
        is_one = len(splits) == 1
        self._splits = SplitAssignment(
            by_source={GIVEN_SOURCE.name: splits[0]} if is_one else {},
            predefined=() if is_one else tuple(splits),
            seed=seed,
        )
        # A digest of all that decides the files, so that the next run finds a killed run's shards.
        decides = [prefix, file_name_suffix, shard_name_template, num_shards, encoder, splits]
        digest = hashlib.sha256(
            msgspec.msgpack.encode([*decides, self._labels, seed], order="deterministic")
        ).hexdigest()[:16]
        self._naming = FileNaming(
            prefix=prefix, suffix=file_name_suffix, template=shard_name_template
        )
        self._max_reject_ratio = max_reject_ratio
        self._settings = ShardSettings(
            splits=tuple(splits),
            encoder=encoder,
            staging=Staging(
                output=os.path.dirname(prefix), plan=digest, run_id=uuid.uuid4().hex, mark=TOTALS
            ),
            shard_size_bytes=round(shard_size_mb * 1_000_000),
            seed=seed,
            # Beside other workers on the machine.
            resources=Resources(processes=1),
        )
        # Check the arguments now, not only when the pipeline is built.
        self._write(None, None)

    def _write(self, inputs: Any, label_map: Any) -> WriteShards:  # noqa: ANN401  # None, too.
        return WriteShards(
            naming=self._naming,
            num_shards=self._num_shards,
            settings=self._settings,
            inputs=inputs,
            label_map=label_map,
        )

    def display_data(self) -> dict[str, Any]:
        """Shows the settings that decide the files, on runners that have a console."""
        return self._write(None, None).display_data()

    def expand(self, records: PCollection[Record]) -> WrittenFiles:
        """Adds the step to a pipeline."""
        if not records.is_bounded:
            raise ValueError("WriteToTFRecord writes bounded input only")
        settings = self._settings
        join = JoinSettings(splits=self._splits, labels=self._labels)
        taken = records | TakeRecords(splits=self._splits)
        joined = (taken.values,) | JoinAnnotations(sources=[GIVEN_SOURCE], settings=join)
        # one InputCounts
        inputs = (
            (*taken.counts, *joined.counts)
            | MergeCounts()
            | "CheckPrefix"
            >> beam.Map(counting(_check), settings=settings, naming=self._naming).with_output_types(
                InputCounts
            )
        )
        # one LabelMap
        label_map = inputs | "BuildLabelMap" >> beam.Map(
            _build_label_map, settings=self._labels
        ).with_output_types(LabelMap)
        # shards: ShardResult, in staging
        written = joined.records | self._write(inputs, label_map)
        rejects = (*taken.rejects, joined.rejects, written.rejects) | beam.Flatten()
        # one InputCounts of rejects
        rejected = (
            rejects
            | "CountReject" >> beam.Map(_count_reject).with_output_types(InputCounts)
            | "CountRejects"
            >> beam.CombineGlobally(merge_inputs)
            .with_input_types(InputCounts)
            .with_output_types(InputCounts)
        )
        # (split, CountedStatistics)
        statistics = written.statistics | beam.CombinePerKey(merge_counted)
        shards = pvalue.AsList(written.shards)
        # CommitBatch; without this barrier a retry of a move would repeat the check.
        batches = (
            inputs
            | "Approve"
            >> beam.FlatMap(
                counting(_approve),
                shards,
                pvalue.AsSingleton(rejected),
                settings=settings,
                naming=self._naming,
                max_ratio=self._max_reject_ratio,
                statistics=pvalue.AsDict(statistics),
            ).with_output_types(CommitBatch)
            | "SpreadMoves" >> beam.Reshuffle()
        )
        # the number of old files, of which there are none, and then of moves, in each batch
        deleted = batches | "Move" >> beam.Map(counting(move), staging=settings.staging)
        checked = batches | "CheckMoved" >> beam.Map(
            counting(check_moved), pvalue.AsIter(deleted), staging=settings.staging
        )
        files = inputs | "EndCommit" >> beam.FlatMap(
            counting(_end_commit), shards, pvalue.AsIter(checked), staging=settings.staging
        ).with_output_types(str)
        return WrittenFiles(files=files, rejects=rejects, label_map=label_map)


def _check_free(settings: ShardSettings, *, naming: FileNaming) -> None:
    """Refuses a prefix that has files already.

    Raises:
        InputError: A file has a name that a shard may get.
    """
    folder = settings.staging.output
    shard = re.compile(naming.pattern(settings.splits))
    for file in storage_for(folder).list(folder):
        if shard.fullmatch(file.path):
            raise InputError(
                uri=join_uri(folder, file.path),
                problem="is there already; choose another prefix",
            )


def _count_reject(reject: Reject) -> InputCounts:
    """Counts a reject that was received."""
    inputs = InputCounts()
    inputs.add_reject(reject)
    inputs.counts = Counts()
    inputs.counts.receive(REJECTS, encode_element(reject))
    return inputs


def _approve(
    inputs: InputCounts,
    shards: Sequence[ShardResult],
    rejected: InputCounts,
    *,
    settings: ShardSettings,
    naming: FileNaming,
    max_ratio: float,
    statistics: Mapping[str, CountedStatistics],
) -> list[CommitBatch]:
    """Checks that every record was written, rejected or excluded, and plans the moves.

    Raises:
        InputError: The counts do not add up, too much was rejected, or the prefix has files.
    """
    inputs = merge_inputs([inputs, InputCounts(counts=rejected.counts)])
    lost = find_lost(
        inputs,
        splits=settings.splits,
        shards=shards,
        rejects=(),
        statistics=statistics,
    )
    counts = count_splits(splits=settings.splits, inputs=inputs, shards=shards, rejects=())
    for split, count in rejected.splits.items():
        more = SplitOutcome(rejected=count.rejected, unlisted=count.unlisted)
        counts.setdefault(split, SplitOutcome()).add(more)
    tolerance = Tolerance(max_ratio)
    outcome = decide(counts, tolerance=tolerance, rejects_root="", lost_elements=lost)
    if outcome.status is not Status.APPROVED:
        problem = outcome.message.partition("\n")[0]
        problem = problem.replace("rejects.max_ratio", "max_reject_ratio")
        for split, first in rejected.samples.first_rejects.items():
            problem += f"; {describe_rejects(counts[split].rejected, first=first)}"
        raise InputError(uri=naming.prefix, problem=problem)
    with explain_write_errors(settings.staging.output):
        _check_free(settings, naming=naming)
    return [CommitBatch((_move_of(shard),)) for shard in shards]


def _move_of(shard: ShardResult) -> Move:
    return Move(shard.staged, (shard.data,))


def _end_commit(
    inputs: InputCounts,
    shards: Iterable[ShardResult],
    moved: Iterable[Count],
    *,
    staging: Staging,
) -> list[str]:
    """Removes staging and names the shards, after all of them have been moved.

    Returns:
        The shards' URIs.

    Raises:
        InputError: A runner lost a move.
    """
    del inputs
    moves = [_move_of(shard) for shard in shards]
    check_all_moved(moves, moved)
    names = sorted(join_uri(staging.output, move.files[0].path) for move in moves)
    return end_commit(names, staging=staging)


def _read(
    given: Mapping[str, Any] | None, kind: type[msgspec.Struct], *, name: str
) -> dict[str, Any]:
    """Reads keys of a config; those that are not given have their defaults.

    Raises:
        ValueError: A key or a value is wrong.
    """
    try:
        return msgspec.structs.asdict(convert(given or {}, kind, find_format=find_format))
    except Problem as problem:
        raise ValueError(str(Problem((name, *problem.path), problem.text))) from problem


def _check(inputs: InputCounts, *, settings: ShardSettings, naming: FileNaming) -> InputCounts:
    """Fails before any image is read if the runner lost records, or the prefix has files."""
    inputs = check_arrived(inputs, sources=[GIVEN_SOURCE])
    _check_free(settings, naming=naming)
    return inputs


def _build_label_map(inputs: InputCounts, *, settings: LabelSettings) -> LabelMap:
    return build_label_map(
        categories=inputs.classes.categories.values(),
        settings=settings,
        objects=inputs.classes.have_boxes,
    )
