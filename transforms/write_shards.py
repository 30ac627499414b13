"""WriteShards: writes records into deterministic shards, and encodes them while writing."""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from typing import Any, NamedTuple, TypeAlias

import apache_beam as beam
import msgspec
from apache_beam import pvalue, typehints
from apache_beam.pvalue import PCollection

from shardbeam.transforms.beam.stages import (
    MAIN,
    add_step,
    count_images,
    count_under_way,
    in_global_window,
    report_usage,
)
from shardbeam.transforms.core.counters import counters
from shardbeam.transforms.core.counts import (
    RECORDS,
    REJECTS,
    Count,
    Counts,
    count_all,
    encode_element,
)
from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.core.records import Reject
from shardbeam.transforms.core.sharding import HASH_BYTES
from shardbeam.transforms.dataset.collectors.statistics import CountedStatistics
from shardbeam.transforms.dataset.input_counts import InputCounts
from shardbeam.transforms.dataset.record_batches import assign_shards, merge_batches
from shardbeam.transforms.dataset.shard_key import shard_key
from shardbeam.transforms.dataset.shard_names import FileNaming
from shardbeam.transforms.dataset.shard_plan import ShardPlan, plan_shards
from shardbeam.transforms.dataset.shard_result import ShardResult
from shardbeam.transforms.shards.processes import WAIT_S, WriterPool
from shardbeam.transforms.shards.writer import Shard, ShardSettings
from shardbeam.transforms.staging.staging import TOTALS, Staging, explain_write_errors

_STATISTICS = "statistics"

# `((split, shard), record)`. All type hints of this module are strings, which Beam ignores, so
# `with_output_types` declares the types that a shuffle needs.
_Sharded = tuple[tuple[str, int], bytes]
_Output: TypeAlias = ShardResult | pvalue.TaggedOutput[str, Any]


class WriteResult(NamedTuple):
    """The outputs of `WriteShards`.

    Attributes:
        shards: A `ShardResult` for each shard, written to staging.
        rejects: A `Reject` for each record that could not be encoded.
        statistics: `(split, CountedStatistics)` for each shard.
    """

    shards: PCollection[ShardResult]
    rejects: PCollection[Reject]
    statistics: PCollection[tuple[str, CountedStatistics]]


@dataclasses.dataclass(eq=False, kw_only=True)
class WriteShards(beam.PTransform[PCollection[bytes], WriteResult]):
    """Writes records into shards of `tf.train.Example`; each record names its split.

    Hashes of source and key decide split, shard and order, so the files do not depend on the
    runner, the number of workers or the order of arrival. Only records are shuffled. The worker
    that writes a shard reads, checks and encodes its images, with threads that read ahead
    (`shards.processes`, `shards.writer`). Empty shards are written, too.

    Files go to staging, where a restarted run finds the finished ones. `CommitDataset` moves them
    into place.

    Args:
        naming: The names of the files.
        num_shards: The number of shards, either one number for each split or `{split: shards}`; 0
            decides by size.
        settings: The settings of shards.
        inputs: One `InputCounts` of these records.
        label_map: One `LabelMap`.

    Raises:
        ValueError: (at construction) Several splits would have the same file names. (in `expand`)
            The input is unbounded.
        InputError: (at run time) A split has no examples, or staging cannot be written.
    """

    naming: FileNaming
    num_shards: int | Mapping[str, int]
    settings: ShardSettings
    inputs: PCollection[InputCounts]
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

    def expand(self, records: PCollection[bytes]) -> WriteResult:
        """Adds the step to a pipeline."""
        if not records.is_bounded:
            raise ValueError("WriteShards writes bounded input only")
        settings = self.settings
        # one ShardPlan; a split without examples ends the run here
        plan = self.inputs | "PlanShards" >> beam.Map(
            plan_shards,
            splits=settings.splits,
            num_shards=self.num_shards,
            shard_size_bytes=settings.shard_size_bytes,
        ).with_output_types(ShardPlan)
        # Each shard gets an empty value, because GroupByKey emits no empty groups.
        seeds = plan | "SeedShards" >> beam.FlatMap(
            _seed_shards, staging=settings.staging
        ).with_output_types(_Sharded)
        assigned = records | "AssignShard" >> beam.FlatMap(
            assign_shards, pvalue.AsSingleton(plan)
        ).with_output_types(_Sharded)
        # ((split, shard), [b"" and batch of records ...])
        grouped = (seeds, assigned) | beam.Flatten() | beam.GroupByKey()
        written = add_step(
            "WriteShard",
            _WriteShardFn(naming=self.naming, settings=settings),
            grouped,
            types={REJECTS: Reject, _STATISTICS: typehints.Tuple[str, CountedStatistics]},
            plan=pvalue.AsSingleton(plan),
            label_map=pvalue.AsSingleton(self.label_map),
        )
        return WriteResult(
            shards=written[MAIN], rejects=written[REJECTS], statistics=written[_STATISTICS]
        )


def _seed_shards(plan: ShardPlan, *, staging: Staging) -> Iterator[tuple[tuple[str, int], bytes]]:
    with explain_write_errors(staging.output):
        staging.write_state(TOTALS, plan.totals)
    report_usage()
    counters.sharded.expect(plan.totals.examples)
    for split, num_shards in plan.num_shards.items():
        for index in range(num_shards):
            yield (split, index), b""


@beam.typehints.with_output_types(ShardResult)
@dataclasses.dataclass(eq=False, kw_only=True)
class _WriteShardFn(beam.DoFn):
    naming: FileNaming
    settings: ShardSettings

    def setup(self) -> None:
        # Made by the first shard, when the total to write is known.
        self._writers: WriterPool | None = None

    def teardown(self) -> None:
        if self._writers is not None:
            self._writers.close()

    def start_bundle(self) -> None:
        self._writing: deque[tuple[Future[ShardResult], Count]] = deque()

    def process(
        self,
        element: tuple[tuple[str, int], Iterable[bytes]],
        plan: ShardPlan,
        label_map: LabelMap,
    ) -> Iterator[_Output]:
        (split, index), values = element
        received = Count()
        records = merge_batches(filter(None, values))
        # In place, because all of a dataset's records may be in one shard.
        for number, value in enumerate(records):
            received.add(value[:HASH_BYTES])
            records[number] = value[HASH_BYTES:]
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
            processes = self.settings.resources.count_processes(
                shards=plan.totals.shards, num_bytes=plan.totals.num_bytes
            )
            settings = dataclasses.replace(self.settings, first_sizes=plan.first_sizes)
            self._writers = WriterPool(settings, workers=processes - 1)
        self._writing.append((self._writers.begin(shard, waiting=report_usage), received))
        count_under_way(shards=1, images=len(records))
        while self._writing and self._writing[0][0].done():
            yield from self._outputs(*self._writing.popleft())

    def finish_bundle(self) -> Iterator[Any]:
        while self._writing:
            for output in self._outputs(*self._writing.popleft()):
                yield in_global_window(output)

    def _outputs(self, shard: Future[ShardResult], received: Count) -> Iterator[_Output]:
        while not wait([shard], timeout=WAIT_S).done:
            report_usage()
        with explain_write_errors(self.settings.staging.output):
            result = shard.result()
        count_under_way(shards=-1, images=-result.records)
        # The number of records that the shard accounts for, not the number that arrived here, so
        # that a record that the shard has lost is noticed.
        received.number = result.records
        counts = Counts(received={RECORDS: received})
        for reject in result.rejects:
            counts.send(REJECTS, encode_element(reject))
            yield pvalue.TaggedOutput(REJECTS, reject)
        count_images(
            written=result.images,
            rejected=Counter(reject.reason.value for reject in result.rejects),
            excluded=result.excluded,
            num_bytes=result.data.size_bytes,
        )
        statistics = CountedStatistics(
            result.statistics, corrected=result.corrected, shards=count_all([result.key.encode()])
        )
        yield pvalue.TaggedOutput(_STATISTICS, (result.split, statistics))
        # Rejects and statistics go to separate outputs, so that the shard's result stays small.
        yield msgspec.structs.replace(
            result,
            rejects=(),
            corrected=(),
            collected={},
            libraries={},
            exchanged={},
            counts=counts,
        )
        report_usage()
