"""WriteShards: records into deterministic shards, encoded where they are written."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeAlias

import apache_beam as beam
import msgspec
from apache_beam import pvalue, typehints
from apache_beam.pvalue import PCollection

from shardbeam.transforms.beam.stages import in_global_window, report_usage
from shardbeam.transforms.core.edges import (
    RECORDS,
    REJECTS,
    STATISTICS,
    Edges,
    Tally,
    encode_element,
)
from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.core.records import Record, Reject
from shardbeam.transforms.core.sharding import HASH_BYTES, example_hash, shard_index
from shardbeam.transforms.dataset.census import Census
from shardbeam.transforms.dataset.files import ShardResult
from shardbeam.transforms.dataset.processes import WriterPool, count_workers
from shardbeam.transforms.dataset.shard import Shard, ShardSettings
from shardbeam.transforms.dataset.shard_plan import FileNaming, ShardPlan, plan_shards
from shardbeam.transforms.dataset.staging import TOTALS, Staging, explain_write_errors, shard_key
from shardbeam.transforms.dataset.statistics import CountedStatistics, Statistics

_REJECTS = "rejects"
_STATISTICS = "statistics"

# A shard's key and a record on its way into it. Beam ignores annotations that are strings, as
# they are here, so that types which matter to a shuffle are said to it by themselves.
_Sharded = tuple[tuple[str, int], bytes]
_Output: TypeAlias = ShardResult | pvalue.TaggedOutput[str, Any]

_record_encoder = msgspec.msgpack.Encoder(order="deterministic")


class WriteResult(NamedTuple):
    """What `WriteShards` gives.

    Attributes:
        shards: A `ShardResult` for each shard, written to staging.
        rejects: A `Reject` for each record that could not be encoded.
        statistics: `(split, CountedStatistics)` for each shard.
    """

    shards: PCollection[ShardResult]
    rejects: PCollection[Reject]
    statistics: PCollection[tuple[str, CountedStatistics]]


@dataclasses.dataclass(eq=False, kw_only=True)
class WriteShards(beam.PTransform[PCollection[tuple[str, Record]], WriteResult]):
    """Writes `(split, Record)` into shards of `tf.train.Example`.

    Split, shard and order follow from hashes of the examples' identity, so the files are the same
    whatever the runner, the number of workers and the order of arrival. Records are shuffled;
    images are read, checked and encoded by the worker that writes the shard, threads reading
    ahead of the writer (`dataset.processes`, `dataset.shard`). An empty shard is written too.
    Files go to a staging area, where a run that is started again finds the finished ones. And the
    result says what was written: `CommitDataset` moves it into place.

    Args:
        naming: How the files are named.
        num_shards: Shards of every split, or by split (`{split: shards}`); 0 means by size.
        settings: How the shards are made.
        census: One `Census`, of these records.
        label_map: One `LabelMap`.

    Raises:
        ValueError: (at construction) Several splits would have the same file names. (in `expand`)
            The input is unbounded.
        InputError: (at run time) A split has no examples, or staging cannot be written.
    """

    naming: FileNaming
    num_shards: int | Mapping[str, int]
    settings: ShardSettings
    census: PCollection[Census]
    label_map: PCollection[LabelMap]

    def __post_init__(self) -> None:
        if len(self.settings.splits) > 1 and "{split}" not in self.naming.prefix:
            raise ValueError(f"several splits need {{split}} in the prefix {self.naming.prefix!r}")
        if self.naming.is_single_file:
            self.num_shards = 1

    def display_data(self) -> dict[str, Any]:
        """Shows the settings that decide the files, on runners that have a console."""
        return {
            "file_path_prefix": self.naming.prefix,
            "num_shards": str(self.num_shards or "by size"),
            "shard_size_bytes": self.settings.shard_size_bytes,
            "seed": self.settings.seed,
        }

    def expand(self, records: PCollection[tuple[str, Record]]) -> WriteResult:
        """Adds the step to a pipeline."""
        if not records.is_bounded:
            raise ValueError("WriteShards writes bounded input only")
        settings = self.settings
        # one ShardPlan; a split without examples ends the run here
        plan = self.census | "PlanShards" >> beam.Map(
            plan_shards,
            splits=settings.splits,
            num_shards=self.num_shards,
            shard_size_bytes=settings.shard_size_bytes,
        ).with_output_types(ShardPlan)
        # Every index of every shard gets an empty value: GroupByKey emits no empty groups.
        seeds = plan | "SeedShards" >> beam.FlatMap(
            _seed_shards, staging=settings.staging
        ).with_output_types(_Sharded)
        assigned = records | "AssignShard" >> beam.Map(
            assign_shard, pvalue.AsSingleton(plan), seed=settings.seed
        ).with_output_types(_Sharded)
        # ((split, shard), b"" or hash + record)
        written = (
            (seeds, assigned)
            | beam.Flatten()
            | beam.GroupByKey()
            # ((split, shard), [b"" and hash + record ...])
            | "WriteShard"
            >> beam.ParDo(
                _WriteShardFn(naming=self.naming, settings=settings),
                pvalue.AsSingleton(plan),
                pvalue.AsSingleton(self.label_map),
            ).with_outputs(_REJECTS, _STATISTICS, main="shards")
        )
        written[_REJECTS].element_type = Reject
        written[_STATISTICS].element_type = typehints.Tuple[str, CountedStatistics]
        return WriteResult(
            shards=written.shards, rejects=written[_REJECTS], statistics=written[_STATISTICS]
        )


def _seed_shards(plan: ShardPlan, *, staging: Staging) -> Iterator[tuple[tuple[str, int], bytes]]:
    with explain_write_errors(staging.output):
        staging.write_state(TOTALS, plan.totals)
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
@dataclasses.dataclass(eq=False, kw_only=True)
class _WriteShardFn(beam.DoFn):
    naming: FileNaming
    settings: ShardSettings

    def setup(self) -> None:
        # Started when it is known how much there is to write.
        self._writers: WriterPool | None = None

    def teardown(self) -> None:
        if self._writers is not None:
            self._writers.close()

    def start_bundle(self) -> None:
        self._under_way: deque[tuple[Future[ShardResult], Edges]] = deque()

    def process(
        self,
        element: tuple[tuple[str, int], Iterable[bytes]],
        plan: ShardPlan,
        label_map: LabelMap,
    ) -> Iterator[_Output]:
        (split, index), values = element
        edges = Edges()
        records = []
        for value in sorted(filter(None, values)):
            edges.receive(RECORDS, value[:HASH_BYTES])
            records.append(value[HASH_BYTES:])
        num_shards = plan.num_shards[split]
        key = shard_key(
            settings_digest=self.settings.digest(label_map=label_map),
            split=split,
            shard_index=index,
            num_shards=num_shards,
            records=records,
        )
        shard = Shard(
            key=key,
            split=split,
            shard_index=index,
            num_shards=num_shards,
            file_name=self.naming.file_name(split=split, shard_index=index, num_shards=num_shards),
            records=records,
            label_map=label_map,
        )
        if self._writers is None:
            workers = count_workers(plan.totals, processes=self.settings.processes)
            self._writers = WriterPool(self.settings, workers=workers)
        self._under_way.append((self._writers.begin(shard), edges))
        while self._under_way and self._under_way[0][0].done():
            yield from self._outputs(*self._under_way.popleft())

    def finish_bundle(self) -> Iterator[Any]:
        while self._under_way:
            for output in self._outputs(*self._under_way.popleft()):
                yield in_global_window(output)

    def _outputs(self, shard: Future[ShardResult], edges: Edges) -> Iterator[_Output]:
        with explain_write_errors(self.settings.staging.output):
            result = shard.result()
        # What counts is what became of the records that have arrived.
        edges.received.setdefault(RECORDS, Tally()).number = result.records
        for reject in result.rejects:
            edges.send(REJECTS, encode_element(reject))
            yield pvalue.TaggedOutput(_REJECTS, reject)
        statistics = CountedStatistics(result.statistics, corrected=result.corrected)
        statistics.edges.receive(STATISTICS, result.key.encode())
        edges.send(STATISTICS, result.key.encode())
        yield pvalue.TaggedOutput(_STATISTICS, (result.split, statistics))
        # These travel on their own; the shard's result stays small.
        yield msgspec.structs.replace(
            result, rejects=(), corrected=(), statistics=Statistics(), edges=edges
        )
        report_usage()
