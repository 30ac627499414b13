"""Makes one shard: threads read, check and encode its images ahead of the thread that writes it.

write_shard       the caller's thread: takes the encoded records in order, and writes them
▲ EncodedRecord, at most 64 images or 64 MB under way
encode threads    check, convert and encode batches of 64 images or 1 MB
▲ FetchedRecord, at most 64 MB under way
read threads      read images from object storage; the encode threads read those on disk
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import ClassVar

import msgspec

from shardbeam.configs.decoding import MsgpackDecoder
from shardbeam.transforms.containers.base import ChecksummedFile, ExampleSchema, find_container
from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.core.map_ahead import batch_by_size, map_ahead
from shardbeam.transforms.core.memory import MemoryBudget, give_back_freed_memory
from shardbeam.transforms.core.records import Record, SizedImage
from shardbeam.transforms.core.resources import Resources
from shardbeam.transforms.dataset.collectors.base import Item, ShardFacts
from shardbeam.transforms.dataset.collectors.collect import ShardCollectors
from shardbeam.transforms.dataset.dataset_files import DatasetFile, ShardFile
from shardbeam.transforms.dataset.index import index_parquet, index_path
from shardbeam.transforms.dataset.outcome import WriteProgress
from shardbeam.transforms.dataset.shard_result import Origin, ShardResult
from shardbeam.transforms.examples.encode.encode import (
    NO_IMAGE,
    EncodedExample,
    EncodedRecord,
    FetchedRecord,
    RecordEncoder,
    encoding_digest,
    fetch,
)
from shardbeam.transforms.examples.encode.schema import EncoderSettings, plan_features
from shardbeam.transforms.examples.encode.size_fields import SizeFields
from shardbeam.transforms.shards.dependencies import find_versions
from shardbeam.transforms.shards.record_outcomes import OutcomesCounter
from shardbeam.transforms.staging.staging import Staging
from shardbeam.transforms.storage.base import WriteFailedError
from shardbeam.transforms.storage.find import storage_for

# Images of one shard that are read or encoded and not yet written.
_MAX_IMAGES_AHEAD = 64
_MAX_BYTES_AHEAD = 64_000_000
# Small images need the interpreter most of the time, so that several threads would wait for each
# other: one batch of them is all that is under way.
_BATCH_BYTES = _MAX_BYTES_AHEAD // _MAX_IMAGES_AHEAD
# A batch has waited for the disk if it took this many times the CPU time of the process.
_WAITING_RATIO = 4
# Shards of which this process holds images at a time: the next one begins while the last images of
# the one before are still encoded, written and synced.
SHARDS_HERE = 2
# Attempts at a shard, if its upload to object storage fails.
_MAX_ATTEMPTS = 3
_PROGRESS_INTERVAL_S = 1.0
# In object storage each progress report is a request.
_REMOTE_PROGRESS_INTERVAL_S = 10.0

_record_decoder = MsgpackDecoder(Record)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardSettings:
    """How the shards of a dataset are made.

    Attributes:
        splits: The splits' names.
        encoder: How a record becomes an Example.
        staging: Where the shards wait for the commit.
        container: The kind of file (`containers.base.find_container`).
        shard_size_bytes: Target size of a shard if the number of shards is not given.
        seed: Key of the hash that decides shard and order.
        resources: What each worker may use.
        previous: Folder of a committed dataset whose unchanged shards are copied instead of reading
            their images. A shard that is damaged there is written again.
        first_sizes: `{source: its first images}` that decide whether it exchanges width and height.
    """

    splits: Sequence[str]
    encoder: EncoderSettings
    staging: Staging
    container: str = "tfrecord"
    shard_size_bytes: int = 150_000_000
    seed: int = 0
    resources: Resources = dataclasses.field(default_factory=Resources)
    previous: str = ""
    first_sizes: Mapping[str, Sequence[SizedImage]] = dataclasses.field(default_factory=dict)

    def digest(self, *, label_map: LabelMap) -> str:
        """Digests what decides the bytes of every shard besides its records and libraries."""
        what = [
            encoding_digest(self.encoder, label_map=label_map),
            self.container,
        ]
        return hashlib.sha256(msgspec.msgpack.encode(what, order="deterministic")).hexdigest()


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """A shard to be made.

    Attributes:
        key: Its shard key, a digest of what decides its bytes (`dataset.shard_key`).
        split: Its split.
        shard_index: Its number among the split's shards, from 0.
        num_shards: How many shards the split has.
        file_name: The committed file's name.
        records: Its records in their order, each as `Record` in MessagePack.
        label_map: The labels' written names and ids.
        origin: The origin to record if its images are read.
    """

    key: str
    split: str
    shard_index: int
    num_shards: int
    file_name: str
    records: Sequence[bytes]
    label_map: LabelMap
    origin: Origin = Origin.WRITTEN

    @property
    def index_path(self) -> str:
        """The path of its index below the dataset's folder."""
        return index_path(self.file_name)

    def facts(self, settings: EncoderSettings) -> ShardFacts:
        """Returns what collectors have to know of it."""
        return ShardFacts(
            split=self.split,
            shard=self.shard_index,
            has_labels=bool(self.label_map.ids),
            map_names=self.label_map.map_names(),
            extras=tuple(extra.spec for extra in settings.extras),
        )


class _Shared:
    """The memory and threads of this process, which all its writers share.

    The settings of the first writer decide how much there is, until the last one is closed.

    Attributes:
        memory: The budget for decoding images.
        readers: The threads that read images from object storage.
        encoders: The threads that encode.
        threads: The number of encoders.
        read_ahead: The number of readers.
        shards: Held by each shard that is being written.
    """

    _lock: ClassVar = threading.Lock()
    _current: ClassVar[_Shared | None] = None

    def __init__(self, settings: ShardSettings, *, processes: int) -> None:
        share = settings.resources.share(processes=processes)
        self.memory = MemoryBudget(share.memory_bytes)
        self.threads, self.read_ahead = share.threads, share.read_ahead
        # Threads start when they are needed.
        self.readers = ThreadPoolExecutor(self.read_ahead, thread_name_prefix="read")
        self.encoders = ThreadPoolExecutor(self.threads, thread_name_prefix="encode")
        self.shards = threading.Semaphore(SHARDS_HERE)
        self._writers = 0

    @classmethod
    def join(cls, settings: ShardSettings, *, processes: int) -> _Shared:
        """Adds a writer."""
        with cls._lock:
            if cls._current is None:
                cls._current = cls(settings, processes=processes)
            cls._current._writers += 1
            return cls._current

    def leave(self) -> None:
        """Removes a writer; the last one ends the threads."""
        with self._lock:
            self._writers -= 1
            if self._writers:
                return
            _Shared._current = None
        self.encoders.shutdown(cancel_futures=True)
        self.readers.shutdown(cancel_futures=True)


class ShardWriter:
    """Writes shards with memory and threads that all writers of this process share.

    However many writers there are, no more than `SHARDS_HERE` shards hold images at a time; any
    others wait. A shard that is being written waits for no other shard, so each ends in time.

    Args:
        settings: How shards are made. The resources of the first writer hold for all writers of
            this process.
        processes: How many processes write shards on this machine.

    Attributes:
        size_fields: Decides whether sources exchange width and height.
    """

    def __init__(self, settings: ShardSettings, *, processes: int = 1) -> None:
        give_back_freed_memory()
        self._settings = settings
        self._shared = _Shared.join(settings, processes=processes)
        self.size_fields = SizeFields(settings.first_sizes)
        # How many batches the small images under way make.
        self._small_batches = 1
        self._is_closed = False

    @property
    def memory(self) -> MemoryBudget:
        """The budget for decoding images in this process."""
        return self._shared.memory

    def close(self) -> None:
        """Ends the threads, unless another writer uses them; a shard that is under way fails."""
        if not self._is_closed:
            self._is_closed = True
            self._shared.leave()

    def write(self, shard: Shard, *, handed_out: Callable[[], None] = lambda: None) -> ShardResult:
        """Writes a shard to staging.

        Args:
            shard: The shard.
            handed_out: Called when the last image of the shard has been handed to the threads.

        Raises:
            InputError: The storage cannot be read at all.
            OSError: Staging cannot be written; the worker is out of file descriptors or memory.
            CancelledError: The writer was closed.
        """
        with self._shared.shards:
            for _ in range(_MAX_ATTEMPTS - 1):
                with contextlib.suppress(WriteFailedError):
                    return write_shard(
                        self._encode(shard, handed_out), shard=shard, settings=self._settings
                    )
            return write_shard(
                self._encode(shard, handed_out), shard=shard, settings=self._settings
            )

    def _encode(self, shard: Shard, handed_out: Callable[[], None]) -> Iterator[EncodedRecord]:
        encoder = RecordEncoder(
            self._settings.encoder,
            label_map=shard.label_map,
            split=shard.split,
            memory=self.memory,
            size_fields=self.size_fields,
        )

        def share_of(item: Record | FetchedRecord) -> int:
            least = _BATCH_BYTES * self._small_batches // _MAX_IMAGES_AHEAD
            return max(item.most_bytes, least)

        def batches() -> Iterator[list[Record | FetchedRecord]]:
            for batch in batch_by_size(
                self._fetch(map(_record_decoder.decode, shard.records)),
                size_bytes=share_of,
                max_bytes=_BATCH_BYTES,
            ):
                if self._is_closed:
                    raise CancelledError
                yield batch
            handed_out()

        encoded = map_ahead(
            functools.partial(self._encode_batch, encoder=encoder),
            batches(),
            executor=self._shared.encoders,
            size_bytes=lambda batch: sum(max(item.most_bytes, _BATCH_BYTES) for item in batch),
            max_items=_MAX_IMAGES_AHEAD,
            max_bytes=_MAX_BYTES_AHEAD,
        )
        return itertools.chain.from_iterable(encoded)

    def _encode_batch(
        self, batch: Sequence[Record | FetchedRecord], *, encoder: RecordEncoder
    ) -> list[EncodedRecord]:
        begun_s, busy_s = time.monotonic(), time.process_time()
        encoded = [encoder.encode(item) for item in batch]
        elapsed_s, worked_s = time.monotonic() - begun_s, time.process_time() - busy_s
        # Threads that wait for a slow disk do not wait for each other.
        self._small_batches = self._shared.threads if elapsed_s > _WAITING_RATIO * worked_s else 1
        return encoded

    def _fetch(self, records: Iterator[Record]) -> Iterator[Record | FetchedRecord]:
        first = next(records, None)
        if first is None:
            return iter(())
        records = itertools.chain([first], records)
        if first.image is None or not storage_for(first.image.uri).is_remote:
            return records
        return map_ahead(
            functools.partial(fetch, settings=self._settings.encoder.image),
            records,
            executor=self._shared.readers,
            size_bytes=lambda record: record.most_bytes,
            max_items=self._shared.read_ahead,
            max_bytes=_MAX_BYTES_AHEAD,
        )


def write_shard(
    records: Iterable[EncodedRecord], *, shard: Shard, settings: ShardSettings
) -> ShardResult:
    """Writes one attempt at a shard, its container and its index, and marks it as finished.

    Args:
        records: The shard's records in their order; each is used once.
        shard: Which shard it is.
        settings: How shards are made.

    Raises:
        OSError: The staging area cannot be written; later runs ignore the files of such an
            attempt.
    """
    staging = settings.staging
    staged = staging.new_attempt(shard_key=shard.key)
    container = find_container(settings.container)
    collectors = ShardCollectors(shard.facts(settings.encoder))
    outcomes = OutcomesCounter(shard.split)
    progress = _Progress(shard, staging=staging)
    schema = ExampleSchema(
        features=plan_features(settings.encoder).schema(), label_map=shard.label_map
    )
    with (
        create_file(staging.uri(staged, shard.file_name)) as file,
        container.writer(file, schema=schema) as write,
    ):
        for encoded in records:
            outcomes.add(encoded)
            for example in encoded.examples:
                collectors.add(_make_item(encoded, example, place=write(example)))
            progress.advance()
    columns, collected = collectors.finish()
    with create_file(staging.uri(staged, shard.index_path)) as index:
        index.write(index_parquet(columns, rows=collectors.examples))
    result = ShardResult(
        **msgspec.structs.asdict(outcomes.total()),
        key=shard.key,
        split=shard.split,
        shard_index=shard.shard_index,
        num_shards=shard.num_shards,
        data=ShardFile(
            path=shard.file_name,
            size_bytes=file.size_bytes,
            crc32c=file.crc32c,
            examples=collectors.examples,
        ),
        index=DatasetFile(path=shard.index_path, size_bytes=index.size_bytes, crc32c=index.crc32c),
        records=len(shard.records),
        objects=sum(columns["objects"]),
        collected=collected,
        libraries=find_versions(outcomes.libraries, container=container),
        exchanged=dict(sorted(outcomes.exchanged.items())),
        staged=staged,
        origin=shard.origin,
        run_id=staging.run_id,
    )
    staging.finish_shard(result)
    finish_progress(shard, staging=staging)
    return result


@contextlib.contextmanager
def create_file(uri: str) -> Iterator[ChecksummedFile]:
    """Opens a new file; if the context ends with an exception, no file remains."""
    with storage_for(uri).create(uri) as file:
        yield ChecksummedFile(file)


def _make_item(encoded: EncodedRecord, example: EncodedExample, *, place: int) -> Item:
    image = encoded.image or NO_IMAGE
    return Item(
        key=encoded.record.key,
        source=encoded.record.source,
        is_first=example is encoded.examples[0],
        offset=place,
        length=example.size_bytes,
        crc32c=example.crc32c,
        sha256=example.sha256,
        image_bytes=len(image.data),
        width=image.width,
        height=image.height,
        format=image.format,
        objects=example.objects,
        values=example.values,
        known={"labels": example.labels, **image.measures},
    )


class _Progress:
    """Records how far the shard is, once a second at most, and less often in object storage."""

    def __init__(self, shard: Shard, *, staging: Staging) -> None:
        self._shard = shard
        self._staging = staging
        self._records = 0
        self._written_at_s = time.monotonic()
        remote = storage_for(staging.root).is_remote
        self._interval_s = _REMOTE_PROGRESS_INTERVAL_S if remote else _PROGRESS_INTERVAL_S

    def advance(self) -> None:
        self._records += 1
        now_s = time.monotonic()
        if now_s - self._written_at_s >= self._interval_s:
            self._written_at_s = now_s
            self._staging.write_progress(
                WriteProgress(examples=self._records, finished=False),
                shard_key=self._shard.key,
            )


def finish_progress(shard: Shard, *, staging: Staging, resumed: bool = False) -> None:
    """Records that a shard is done, perhaps by an earlier run."""
    staging.write_progress(
        WriteProgress(examples=len(shard.records), finished=True, resumed=resumed),
        shard_key=shard.key,
    )
