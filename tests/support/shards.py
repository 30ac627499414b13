"""Makes records and shards, and reads them from staging."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from shardbeam.configs.decoding import MsgpackDecoder
from shardbeam.transforms.containers.tfrecord import read_records
from shardbeam.transforms.core.counts import count_all
from shardbeam.transforms.core.records import (
    Corrected,
    ImageAnnotations,
    ImageRef,
    Record,
    encode_annotations,
)
from shardbeam.transforms.core.resources import Resources
from shardbeam.transforms.core.sharding import HASH_BYTES, example_hash
from shardbeam.transforms.dataset.collectors.statistics import CountedStatistics, Statistics
from shardbeam.transforms.dataset.input_counts import InputCounts
from shardbeam.transforms.dataset.outcome import SplitOutcome
from shardbeam.transforms.dataset.record_batches import RecordBatcher
from shardbeam.transforms.dataset.shard_result import Origin, ShardResult
from shardbeam.transforms.examples.encode.schema import EncoderSettings
from shardbeam.transforms.examples.example_pb2 import Example
from shardbeam.transforms.formats.base import Kind
from shardbeam.transforms.shards.writer import Shard, ShardSettings
from shardbeam.transforms.staging.staging import Staging
from tests.support.example_builders import encode_picture, make_label_map

ENCODER = EncoderSettings(kinds=frozenset({Kind.CLASSIFICATION}))
PICTURE = encode_picture(mode="RGB", format="JPEG", size=(8, 6))


def make_settings(
    output: Path, *, splits: tuple[str, ...] = ("train",), threads: int = 2
) -> ShardSettings:
    staging = Staging(output=str(output), plan="plan", run_id="run")
    return ShardSettings(
        splits=splits, encoder=ENCODER, staging=staging, resources=Resources(threads=threads)
    )


def make_records(folder: Path, count: int, *, data: bytes = PICTURE) -> list[Record]:
    folder.mkdir(exist_ok=True)
    return [make_record(folder / f"{number}.jpg", data=data) for number in range(count)]


def make_inputs(records: Iterable[Record]) -> InputCounts:
    inputs = InputCounts()
    for record in records:
        counts = SplitOutcome(images=1, num_bytes=record.expected_bytes)
        inputs.splits.setdefault(record.split, SplitOutcome()).add(counts)
    return inputs


def make_batches(records: Iterable[Record], *, seed: int = 0) -> list[bytes]:
    """Batches records as the join does, each in a batch of its own."""
    batches = []
    for record in records:
        batcher = RecordBatcher()
        digest = example_hash(seed=seed, source=record.source, key=record.key)
        batches += [*batcher.add(record, example_hash=digest), *batcher.finish()]
    return batches


def decode_batch(batch: bytes) -> list[Record]:
    """Reads the records of a batch."""
    values = MsgpackDecoder(dict[str, list[bytes]]).decode(batch).values()
    return [MsgpackDecoder(Record).decode(value[HASH_BYTES:]) for value in itertools.chain(*values)]


def make_record(path: Path, *, data: bytes) -> Record:
    path.write_bytes(data)
    status = path.stat()
    return Record(
        source="s",
        key=path.name,
        image=ImageRef(uri=str(path), size_bytes=status.st_size, version=str(status.st_mtime_ns)),
        annotations=encode_annotations(ImageAnnotations(image_id="", labels=("cat",))),
    )


def make_shard(folder: Path, *, key: str = "0" * 64, images: int = 20) -> Shard:
    """A shard of small images."""
    return Shard(
        key=key,
        split="train",
        shard_index=0,
        num_shards=1,
        file_name="x-train.tfrecord-00000-of-00001",
        records=[msgspec.msgpack.encode(record) for record in make_records(folder, images)],
        label_map=make_label_map({"cat": 1}, objects=False),
        origin=Origin.DAMAGED,
    )


def statistics_of(
    *shards: ShardResult, corrected: Sequence[Corrected] = ()
) -> dict[str, CountedStatistics]:
    """The statistics of shards of one split, which count nothing but these shards."""
    keys = count_all(shard.key.encode() for shard in shards)
    return {
        shard.split: CountedStatistics(Statistics(), corrected=tuple(corrected), shards=keys)
        for shard in shards
    }


def finished_shards(staging: Staging) -> dict[str, ShardResult]:
    """Returns the done-files in staging, by the name that the shard will have."""
    done = Path(staging.root).glob("shards/*/done")
    results = [MsgpackDecoder(ShardResult).decode(path.read_bytes()) for path in done]
    return {result.data.path: result for result in results}


def read_shard(result: ShardResult, *, staging: Staging) -> list[str]:
    """The file names in a shard's Examples, in their order."""
    data = Path(staging.uri(result.staged, result.data.path)).read_bytes()
    assert len(data) == result.data.size_bytes
    examples = [Example.FromString(record) for record in read_records(io.BytesIO(data))]
    return [
        example.features.feature["image/filename"].bytes_list.value[0].decode()
        for example in examples
    ]
