"""Writing a shard from its records: threads read and encode its images ahead of the writer."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.core.read_ahead import batch_by_size, map_ahead
from shardbeam.transforms.core.records import Record
from shardbeam.transforms.dataset.shard_result import Origin, ShardResult
from shardbeam.transforms.dataset.shard_writer import ShardTarget, write_shard
from shardbeam.transforms.examples.record_encoder import (
    EncoderSettings,
    FetchedRecord,
    RecordEncoder,
    fetch,
)
from shardbeam.transforms.storage.find import storage_for

_BATCH_ITEMS = 8
_BATCH_BYTES = 1_000_000

_record_decoder = msgspec.msgpack.Decoder(Record)

Batches = Iterable[list[FetchedRecord]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardEncoderSettings:
    """How shards are written.

    Attributes:
        encoder: How a record becomes an Example.
        threads: Threads that read and encode ahead, shared by the shards of a process; 0 where
            that is still to be decided, by the machine that writes.
        max_items_ahead: Images of a shard under way at most.
        max_bytes_ahead: Bytes of images of a shard under way at most.
        read_ahead: Images that are read at a time where they lie in object storage.
    """

    encoder: EncoderSettings
    threads: int
    max_items_ahead: int
    max_bytes_ahead: int
    read_ahead: int


class ShardWork(msgspec.Struct, frozen=True, kw_only=True):
    """A shard that is to be written.

    Attributes:
        records: Its records in their order, each as `Record` in MessagePack.
        target: Which shard it is, and where it goes.
        label_map: The labels' written names and ids.
        origin: Why it is written.
    """

    records: Sequence[bytes]
    target: ShardTarget
    label_map: LabelMap
    origin: Origin = Origin.WRITTEN


class ShardEncoder:
    """Writes shards with threads of this process. Threads may share one.

    Args:
        settings: How.
    """

    def __init__(self, settings: ShardEncoderSettings) -> None:
        self._settings = settings
        # Its threads start when they are needed.
        self._readers = ThreadPoolExecutor(
            max_workers=settings.read_ahead, thread_name_prefix="read"
        )
        self._encoders = ThreadPoolExecutor(
            max_workers=settings.threads, thread_name_prefix="encode"
        )

    def close(self) -> None:
        """Ends the threads."""
        self._encoders.shutdown(cancel_futures=True)
        self._readers.shutdown(cancel_futures=True)

    def write(self, work: ShardWork, *, watch: Callable[[Batches], Batches] = iter) -> ShardResult:
        """Writes a shard to staging.

        Args:
            work: The shard.
            watch: Gets the batches of its records on their way to the threads, and yields them.

        Raises:
            InputError: The storage cannot be read at all.
            OSError: Staging cannot be written; the worker is out of file descriptors or memory.
        """
        encoder = RecordEncoder(
            settings=self._settings.encoder, label_map=work.label_map, split=work.target.split
        )
        # Handing a record to a thread and back costs as much as encoding a small one.
        batches = batch_by_size(
            self._fetch_ahead(map(_record_decoder.decode, work.records)),
            size_bytes=_image_size,
            max_items=_BATCH_ITEMS,
            max_bytes=_BATCH_BYTES,
        )
        encoded = map_ahead(
            encoder.encode_batch,
            watch(batches),
            executor=self._encoders,
            size_bytes=_batch_size,
            max_items=max(1, self._settings.max_items_ahead // _BATCH_ITEMS),
            max_bytes=self._settings.max_bytes_ahead,
        )
        return write_shard(
            itertools.chain.from_iterable(encoded), target=work.target, origin=work.origin
        )

    def _fetch_ahead(self, records: Iterator[Record]) -> Iterator[FetchedRecord]:
        first = next(records, None)
        if first is None:
            return iter(())
        records = itertools.chain([first], records)
        if first.image is None or not storage_for(first.image.uri).is_remote:
            # The threads that encode read by themselves: a disk answers at once.
            return map(FetchedRecord, records)
        return map_ahead(
            fetch,
            records,
            executor=self._readers,
            size_bytes=_record_size,
            max_items=self._settings.read_ahead,
            max_bytes=self._settings.max_bytes_ahead,
        )


def _record_size(record: Record) -> int:
    return record.size_bytes


def _image_size(fetched: FetchedRecord) -> int:
    return fetched.record.size_bytes


def _batch_size(batch: Sequence[FetchedRecord]) -> int:
    return sum(map(_image_size, batch))
