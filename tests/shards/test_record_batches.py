from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.configs.decoding import MsgpackDecoder
from shardbeam.transforms.core.records import Record
from shardbeam.transforms.core.sharding import example_hash, shard_index
from shardbeam.transforms.dataset.outcome import PlannedCounts
from shardbeam.transforms.dataset.record_batches import RecordBatcher, assign_shards, merge_batches
from shardbeam.transforms.dataset.shard_plan import ShardPlan

NUM_SHARDS = {"train": 3, "test": 1}
PLAN = ShardPlan(NUM_SHARDS, PlannedCounts(shards=4, examples=0, num_bytes=0))


def make_record(number: int, *, split: str = "train", num_bytes: int = 10) -> Record:
    return Record(
        source="s", key=f"{number}.jpg", image=None, annotations=bytes(num_bytes), split=split
    )


def hash_of(record: Record) -> bytes:
    return example_hash(seed=0, source=record.source, key=record.key)


def batch(records: list[Record]) -> list[bytes]:
    batcher = RecordBatcher()
    batches = [
        each for record in records for each in batcher.add(record, example_hash=hash_of(record))
    ]
    return [*batches, *batcher.finish()]


def assign(batches: list[bytes]) -> dict[tuple[str, int], list[bytes]]:
    shards: dict[tuple[str, int], list[bytes]] = {}
    for each in batches:
        for shard, part in assign_shards(each, PLAN):
            shards.setdefault(shard, []).append(part)
    return shards


@given(st.lists(st.tuples(st.sampled_from(["train", "test"]), st.integers(0, 50)), unique=True))
def test_each_shard_gets_its_records_in_order(numbers: list[tuple[str, int]]) -> None:
    records = [make_record(number, split=split) for split, number in numbers]
    expected: dict[tuple[str, int], list[bytes]] = {}
    for record in records:
        index = shard_index(hash_of(record), num_shards=NUM_SHARDS[record.split])
        value = hash_of(record) + msgspec.msgpack.encode(record)
        expected.setdefault((record.split, index), []).append(value)
    middle = len(records) // 2
    # The last records come first, as from another worker.
    shards = assign([*batch(records[middle:]), *batch(records[:middle])])
    assert {shard: merge_batches(batches) for shard, batches in shards.items()} == {
        shard: sorted(values) for shard, values in expected.items()
    }


def test_a_batch_ends_at_four_megabytes_or_after_a_longer_record() -> None:
    sizes = [1_500_000] * 4 + [9_000_000, 10, 10]
    records = [make_record(number, num_bytes=size) for number, size in enumerate(sizes)]
    found = [
        sum(len(values) for values in MsgpackDecoder().decode(each).values())
        for each in batch(records)
    ]
    assert found == [3, 2, 2]


def test_without_records_there_is_no_batch() -> None:
    assert batch([]) == []
