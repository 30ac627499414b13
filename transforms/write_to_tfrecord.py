"""WriteToTFRecord: records into deterministic shards, encoded where they are written."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
import msgspec
from apache_beam import coders as beam_coders
from apache_beam import pvalue
from apache_beam.io import filesystem
from apache_beam.pvalue import PCollection

from shardbeam.transforms.beam.stages import in_global_window, report_usage
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.core.process import tune_process, usable_cpus
from shardbeam.transforms.core.records import Record, Reject
from shardbeam.transforms.core.sharding import HASH_BYTES, example_hash, shard_index
from shardbeam.transforms.dataset.census import Census
from shardbeam.transforms.dataset.helper_pool import helper_pool
from shardbeam.transforms.dataset.naming import ShardNaming
from shardbeam.transforms.dataset.outcome import ShardProgress, Totals
from shardbeam.transforms.dataset.previous_shard import copy_shard, find_record
from shardbeam.transforms.dataset.shard_encoder import ShardEncoderSettings, ShardWork
from shardbeam.transforms.dataset.shard_plan import ShardPlan, plan_shards
from shardbeam.transforms.dataset.shard_result import Origin, ShardResult
from shardbeam.transforms.dataset.shard_writer import ShardTarget
from shardbeam.transforms.dataset.shard_writers import ShardUnderWay, ShardWriters, Write
from shardbeam.transforms.dataset.staging import Staging, shard_key
from shardbeam.transforms.examples.record_encoder import EncoderSettings
from shardbeam.transforms.storage.base import WriteFailedError

_log = logging.getLogger(__name__)

# Images of 135 KB by round trips of 30 ms: more brings nothing (benchmarks/RESULTS.md).
DEFAULT_READ_AHEAD = 32

_REJECTS = "rejects"
# Threads beyond the CPUs: some always wait for the disk, or for each other.
_WAITING_THREADS = 2
# Each takes about 100 MB of memory.
_MAX_PROCESSES = 8
# What a process writes in a few times the half second that it takes to start.
_BYTES_PER_PROCESS = 100_000_000
# Where a shard is lost on the way to object storage, it is written anew.
_MAX_ATTEMPTS = 3

# A shard's key and a record on its way into it. Beam ignores annotations that are strings, as
# they are here, so that types which matter to a shuffle are said to it by themselves.
_Sharded = tuple[tuple[str, int], bytes]

_record_encoder = msgspec.msgpack.Encoder(order="deterministic")


class WriteResult(NamedTuple):
    """What `WriteToTFRecord` gives.

    Attributes:
        shards: A `ShardResult` for each shard, written to staging.
        rejects: A `Reject` for each record that could not be encoded.
    """

    shards: PCollection[ShardResult]
    rejects: PCollection[Reject]


class WriteToTFRecord(beam.io.WriteToTFRecord):
    """Writes `(split, Record)` into sharded TFRecord files of `tf.train.Example`.

    Takes the arguments of `beam.io.WriteToTFRecord`, and differs from it in five ways. Split,
    shard and order follow from hashes of the examples' identity, so the files are the same
    whatever the runner, the number of workers and the order of arrival. Records are shuffled;
    images are read, checked and encoded by the worker that writes the shard, threads reading
    ahead of the writer. An empty shard is written too. Files go to a staging area, where a run
    that is started again finds the finished ones. And the result says what was written:
    `CommitDataset` moves it into place.

        records | WriteToTFRecord(
            "/data/coco/coco-{split}.tfrecord", splits=["train"], encoder=..., staging=...
        )

    Args:
        file_path_prefix: As Beam's; `{split}` in it stands for the split's name.
        coder: Only Beam's default, BytesCoder: what is written are serialized Examples.
        file_name_suffix: As Beam's.
        num_shards: Shards of every split, or by split (`{split: shards}`); 0 means by size.
        shard_name_template: As Beam's: `S` and `N` stand for shard and shard count. The default
            pads them to at least five digits, as TFDS reads them. Window templates are refused.
        compression_type: Only uncompressed: TFDS loads no compressed shards.
        triggering_frequency: Refused, the input being bounded.
        splits: The splits' names.
        encoder: How a record becomes an Example.
        census: One `Census`, of these records.
        label_map: One `LabelMap`.
        staging: Where the shards wait for the commit.
        shard_size_bytes: Target size of a shard where `num_shards` is 0.
        seed: Key of the hash that decides shard and order.
        processes: Processes that write shards at the same time, for each worker process and with
            it: past the interpreter's lock, they use as many CPUs. 0 means one a CPU, eight at
            most, where there is so much to write that starting them is nothing beside it.
        threads: Threads that read and encode ahead, in each of these processes; by default two
            more than there are CPUs for it.
        max_items_ahead: Images of a shard under way at most. While one shard ends and the next
            begins, there are two of them in a worker process.
        max_bytes_ahead: Bytes of images under way at most, likewise.
        read_ahead: Images that are read at a time, for each shard, where they lie in object
            storage: its answers take long, but it gives many at once.
        previous: Folder of a committed dataset: shards that would come out as they are there are
            copied, and their images not read. What is damaged there is written anew.

    Raises:
        ValueError: (at construction) An argument that no reader above could load, or that
            makes sense for unbounded input only. (in `expand`) The input is unbounded.
        InputError: (at run time) A split has no examples, or staging cannot be written.
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
        splits: Sequence[str],
        encoder: EncoderSettings,
        census: PCollection[Census],
        label_map: PCollection[LabelMap],
        staging: Staging,
        shard_size_bytes: int = 150_000_000,
        seed: int = 0,
        processes: int = 1,
        threads: int | None = None,
        max_items_ahead: int = 64,
        max_bytes_ahead: int = 64_000_000,
        read_ahead: int = DEFAULT_READ_AHEAD,
        previous: str = "",
    ) -> None:
        if coder is not None and not isinstance(coder, beam_coders.BytesCoder):
            raise ValueError(f"coder must be BytesCoder, got {type(coder).__name__}")
        if triggering_frequency is not None:
            raise ValueError("triggering_frequency is for unbounded input; this input is bounded")
        self._naming = ShardNaming(
            prefix=file_path_prefix, suffix=file_name_suffix, template=shard_name_template
        )
        compression = (
            filesystem.CompressionTypes.detect_compression_type(
                f"{file_path_prefix}{file_name_suffix}"
            )
            if compression_type == filesystem.CompressionTypes.AUTO
            else compression_type
        )
        if compression != filesystem.CompressionTypes.UNCOMPRESSED:
            raise ValueError(
                f"compression {compression!r}: tfds.load reads uncompressed shards only; "
                "images are compressed already"
            )
        if len(splits) > 1 and "{split}" not in file_path_prefix:
            raise ValueError(f"several splits need {{split}} in the prefix {file_path_prefix!r}")
        super().__init__(
            file_path_prefix,
            file_name_suffix=file_name_suffix,
            compression_type=filesystem.CompressionTypes.UNCOMPRESSED,
        )
        self._splits = tuple(splits)
        self._num_shards = num_shards
        self._census = census
        self._label_map = label_map
        self._staging = staging
        self._shard_size_bytes = shard_size_bytes
        self._seed = seed
        self._processes = processes
        self._settings = ShardEncoderSettings(
            encoder=encoder,
            threads=threads or 0,
            max_items_ahead=max_items_ahead,
            max_bytes_ahead=max_bytes_ahead,
            read_ahead=read_ahead,
        )
        self._previous = previous

    def display_data(self) -> dict[str, Any]:
        """Shows the settings that decide the files, on runners that have a console."""
        return {
            "file_path_prefix": self._naming.prefix,
            "num_shards": str(self._num_shards or "by size"),
            "shard_size_bytes": self._shard_size_bytes,
            "seed": self._seed,
        }

    def expand(self, records: PCollection[tuple[str, Record]]) -> WriteResult:
        """Adds the step to a pipeline."""
        if not records.is_bounded:
            raise ValueError("WriteToTFRecord writes bounded input only")
        # one ShardPlan; a split without examples ends the run here
        plan = self._census | "PlanShards" >> beam.Map(
            plan_shards,
            splits=self._splits,
            num_shards=1 if self._naming.is_single_file else self._num_shards,
            shard_size_bytes=self._shard_size_bytes,
        ).with_output_types(ShardPlan)
        # Every index of every shard gets an empty value: GroupByKey emits no empty groups.
        seeds = plan | "SeedShards" >> beam.FlatMap(
            _seed_shards, staging=self._staging, processes=self._processes
        ).with_output_types(_Sharded)
        assigned = records | "AssignShard" >> beam.Map(
            assign_shard, pvalue.AsSingleton(plan), seed=self._seed
        ).with_output_types(_Sharded)
        # ((split, shard), b"" or hash + record)
        written = (
            (seeds, assigned)
            | beam.Flatten()
            | beam.GroupByKey()
            # ((split, shard), [b"" and hash + record ...])
            | "WriteShard"
            >> beam.ParDo(
                _WriteShardFn(
                    naming=self._naming,
                    settings=self._settings,
                    staging=self._staging,
                    processes=self._processes,
                    previous=self._previous,
                ),
                pvalue.AsSingleton(plan),
                pvalue.AsSingleton(self._label_map),
            ).with_outputs(_REJECTS, main="shards")
        )
        written[_REJECTS].element_type = Reject
        return WriteResult(shards=written.shards, rejects=written[_REJECTS])


def _seed_shards(
    plan: ShardPlan, *, staging: Staging, processes: int
) -> Iterator[tuple[tuple[str, int], bytes]]:
    # They start while records are assigned to shards.
    helper_pool.prepare(count_helpers(plan.totals, processes=processes))
    with staging.explain_errors():
        staging.write_totals(plan.totals)
    report_usage()
    for split, num_shards in plan.num_shards.items():
        for index in range(num_shards):
            yield (split, index), b""


def assign_shard(
    element: tuple[str, Record], plan: ShardPlan, *, seed: int
) -> tuple[tuple[str, int], bytes]:
    """Finds the shard of a record: `((split, shard), hash + encoded record)`."""
    split, record = element
    digest = example_hash(seed=seed, source=record.source, key=record.key)
    index = shard_index(digest, num_shards=plan.num_shards[split])
    # With the hash in front, sorting the bytes sorts the examples.
    return (split, index), digest + _record_encoder.encode(record)


@beam.typehints.with_output_types(ShardResult)
class _WriteShardFn(beam.DoFn):
    def __init__(
        self,
        *,
        naming: ShardNaming,
        settings: ShardEncoderSettings,
        staging: Staging,
        processes: int,
        previous: str,
    ) -> None:
        self._naming = naming
        self._settings = settings
        self._staging = staging
        self._processes = processes
        self._previous = previous
        self._has_warned = False

    def setup(self) -> None:
        tune_process()
        # Started when it is known how much there is to write.
        self._writers: ShardWriters | None = None

    def teardown(self) -> None:
        if self._writers is not None:
            self._writers.close()

    def start_bundle(self) -> None:
        self._under_way: deque[ShardUnderWay] = deque()

    def process(
        self,
        element: tuple[tuple[str, int], Iterable[bytes]],
        plan: ShardPlan,
        label_map: LabelMap,
    ) -> Iterator[ShardResult | pvalue.TaggedOutput[str, Reject]]:
        (split, index), values = element
        payloads = [value[HASH_BYTES:] for value in sorted(values) if value]
        num_shards = plan.num_shards[split]
        key = shard_key(
            settings_digest=self._settings.encoder.digest(label_map=label_map),
            split=split,
            shard_index=index,
            num_shards=num_shards,
            records=payloads,
        )
        target = ShardTarget(
            staging=self._staging,
            shard_key=key,
            split=split,
            shard_index=index,
            num_shards=num_shards,
            file_name=self._naming.file_name(split=split, shard_index=index, num_shards=num_shards),
            records=len(payloads),
        )
        work = ShardWork(records=payloads, target=target, label_map=label_map)
        if self._writers is None:
            self._writers = self._start_writers(plan)
        self._under_way.append(self._writers.begin(functools.partial(self._find_or_write, work)))
        while self._under_way and self._under_way[0].done():
            yield from self._outputs(self._under_way.popleft())

    def finish_bundle(self) -> Iterator[Any]:
        while self._under_way:
            for output in self._outputs(self._under_way.popleft()):
                yield in_global_window(output)

    def _start_writers(self, plan: ShardPlan) -> ShardWriters:
        helpers = count_helpers(plan.totals, processes=self._processes)
        threads = math.ceil(usable_cpus() / (1 + helpers)) + _WAITING_THREADS
        settings = dataclasses.replace(self._settings, threads=self._settings.threads or threads)
        return ShardWriters(settings, helpers=helpers)

    def _outputs(
        self, shard: ShardUnderWay
    ) -> Iterator[ShardResult | pvalue.TaggedOutput[str, Reject]]:
        assert self._writers is not None
        with self._staging.explain_errors():
            result = self._writers.wait(shard)
        for reject in result.rejects:
            yield pvalue.TaggedOutput(_REJECTS, reject)
        # The rejects travel on their own; the shard's result stays small.
        yield msgspec.structs.replace(result, rejects=())
        report_usage()

    def _copy(self, target: ShardTarget) -> tuple[ShardResult | None, Origin]:
        """Copies a shard from the previous version, if it is there and good.

        Returns:
            The copy, if there is one; otherwise why the shard has to be written.
        """
        if not self._previous:
            return None, Origin.WRITTEN
        try:
            record = find_record(self._previous, target=target)
            if record is None:
                return None, Origin.WRITTEN
            return copy_shard(record, previous=self._previous, target=target), Origin.COPIED
        except (InputError, OSError) as error:
            # Whatever it is: what was to save work must not be what ends the run. The first one
            # is told, all are counted.
            if not self._has_warned:
                self._has_warned = True
                _log.warning("%s; the shard is written anew from its images", error)
            return None, Origin.MENDED

    def _find_or_write(self, work: ShardWork, write: Write) -> ShardResult:
        target = work.target
        self._staging.check_lease()
        found, origin = self._staging.find_shard(shard_key=target.shard_key), Origin.WRITTEN
        if found is None:
            found, origin = self._copy(target)
        if found is None:
            return _write_at_last(msgspec.structs.replace(work, origin=origin), write)
        progress = ShardProgress(examples=target.records, finished=True)
        self._staging.write_progress(progress, split=target.split, shard_index=target.shard_index)
        return found


def _write_at_last(work: ShardWork, write: Write) -> ShardResult:
    for _ in range(_MAX_ATTEMPTS - 1):
        with contextlib.suppress(WriteFailedError):
            return write(work)
    return write(work)


def count_helpers(totals: Totals, *, processes: int) -> int:
    """Says how many helper processes write shards beside this one.

    Args:
        totals: What there is to write.
        processes: As of `WriteToTFRecord`.
    """
    wanted = processes or min(usable_cpus(), _MAX_PROCESSES, totals.num_bytes // _BYTES_PER_PROCESS)
    return max(0, min(wanted, totals.shards) - 1)
