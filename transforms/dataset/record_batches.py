"""Batches of records: a few long elements cross a shuffle in less time than many short ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from shardbeam.configs.decoding import MsgpackDecoder
from shardbeam.transforms.core.counters import counters
from shardbeam.transforms.core.records import Record
from shardbeam.transforms.core.sharding import HASH_BYTES, shard_index
from shardbeam.transforms.dataset.shard_plan import ShardPlan

# A batch ends when it is this long; a longer record is alone in its batch.
_BATCH_BYTES = 4_000_000

_encoder = msgspec.msgpack.Encoder(order="deterministic")
_by_split_decoder = MsgpackDecoder(dict[str, list[bytes]])
_decoder = MsgpackDecoder(list[bytes])
_record_decoder = MsgpackDecoder(Record)


class RecordBatcher:
    """Batches records with their hashes, in the order in which they come."""

    def __init__(self) -> None:
        # {split: hash + encoded record of each}
        self._values: dict[str, list[bytes]] = {}
        self._num_bytes = 0

    def add(self, record: Record, *, example_hash: bytes) -> Iterator[bytes]:
        """Adds a record; yields a batch as soon as one is long enough."""
        # With the hash in front, sorting the bytes sorts the examples.
        value = example_hash + _encoder.encode(record)
        self._values.setdefault(record.split, []).append(value)
        self._num_bytes += len(value)
        if self._num_bytes >= _BATCH_BYTES:
            yield from self.finish()

    def finish(self) -> Iterator[bytes]:
        """Yields a batch of the records that are left, if there are any."""
        if self._values:
            yield _encoder.encode(self._values)
        self._values, self._num_bytes = {}, 0


def decode_batch(batch: bytes) -> Iterator[Record]:
    """Yields the records of a batch."""
    for values in _by_split_decoder.decode(batch).values():
        for value in values:
            yield _record_decoder.decode(value[HASH_BYTES:])


def assign_shards(batch: bytes, plan: ShardPlan) -> Iterator[tuple[tuple[str, int], bytes]]:
    """Divides a batch by the records' shards: yields `((split, shard), batch of its records)`."""
    for split, values in _by_split_decoder.decode(batch).items():
        counters.sharded.add(len(values))
        shards: dict[int, list[bytes]] = {}
        for value in values:
            index = shard_index(value[:HASH_BYTES], num_shards=plan.num_shards[split])
            shards.setdefault(index, []).append(value)
        for index, found in shards.items():
            yield (split, index), _encoder.encode(found)


def merge_batches(batches: Iterable[bytes]) -> list[bytes]:
    """Returns `hash + encoded record` of each record in a shard's batches, in order."""
    return sorted(value for batch in batches for value in _decoder.decode(batch))
