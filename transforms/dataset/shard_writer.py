"""Writing one shard to staging."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

import msgspec

from shardbeam.transforms.containers.tfrecord import frame_digested
from shardbeam.transforms.core.records import Reject
from shardbeam.transforms.dataset.index import IndexRow, index_parquet
from shardbeam.transforms.dataset.manifest import Fingerprint
from shardbeam.transforms.dataset.outcome import ShardProgress
from shardbeam.transforms.dataset.shard_result import Origin, ShardResult
from shardbeam.transforms.dataset.staged_writer import create_staged
from shardbeam.transforms.dataset.staging import Staging
from shardbeam.transforms.examples.encode import EncodedExample
from shardbeam.transforms.examples.record_encoder import EncodedRecord
from shardbeam.transforms.storage.find import storage_for

_PROGRESS_INTERVAL_S = 1.0
# Each time is a request there.
_REMOTE_PROGRESS_INTERVAL_S = 10.0


class ShardTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Which shard is written, and where to.

    Attributes:
        staging: The run's staging area.
        shard_key: What decides the shard's bytes (`dataset.staging.shard_key`).
        split: Its split.
        shard_index: Which of the split's shards.
        num_shards: How many the split has.
        file_name: The committed file's name.
        records: How many records go into it.
    """

    staging: Staging
    shard_key: str
    split: str
    shard_index: int
    num_shards: int
    file_name: str
    records: int

    @property
    def index_name(self) -> str:
        """The path of its index below the dataset's folder."""
        return f"index/{self.file_name}.parquet"


def write_shard(
    records: Iterable[EncodedRecord], *, target: ShardTarget, origin: Origin = Origin.WRITTEN
) -> ShardResult:
    """Writes one attempt at a shard, its TFRecord file and its index, and marks it as finished.

    Args:
        records: The shard's records in their order, each used once and let go.
        target: Which shard, and where to.
        origin: Why its images are read.

    Raises:
        OSError: The staging area cannot be written; the attempt then leaves nothing behind
            that counts.
    """
    attempt = target.staging.new_attempt(shard_key=target.shard_key)
    rows: list[IndexRow] = []
    rejects: list[Reject] = []
    corrections: Counter[str] = Counter()
    excluded: Counter[str] = Counter()
    images = 0
    fingerprint = Fingerprint()
    progress = _Progress(target)
    with create_staged(target.staging, path=f"{attempt}.tfrecord") as file:
        for encoded in records:
            identity = encoded.record
            if encoded.content_sha256:
                fingerprint.add(
                    source=identity.source,
                    key=identity.key,
                    size_bytes=identity.size_bytes,
                    sha256=encoded.content_sha256,
                )
            if encoded.reject is not None:
                rejects.append(encoded.reject)
            if encoded.excluded is not None:
                excluded[encoded.excluded.value] += 1
            if encoded.encoded is not None:
                images += 1
                corrections.update(encoded.encoded.corrections)
                for example in encoded.encoded.examples:
                    rows.append(_index_row(encoded, example, target=target, offset=file.size_bytes))
                    header, footer = frame_digested(
                        size_bytes=example.size_bytes, crc32c=example.crc32c
                    )
                    file.write(header, *example.chunks, footer)
            progress.advance()
    with create_staged(target.staging, path=f"{attempt}.parquet") as index_file:
        index_file.write(index_parquet(rows))
    result = ShardResult(
        split=target.split,
        shard_index=target.shard_index,
        num_shards=target.num_shards,
        data=file.staged_file(destination=target.file_name),
        index=index_file.staged_file(destination=target.index_name),
        examples=len(rows),
        fingerprint=fingerprint.hex(),
        inputs=fingerprint.count,
        corrections=dict(corrections),
        rejects=tuple(rejects),
        images=images,
        excluded=dict(excluded),
        key=target.shard_key,
        records=target.records,
        origin=origin,
    )
    target.staging.finish_shard(result, shard_key=target.shard_key)
    progress.finish()
    return result


def _index_row(
    encoded: EncodedRecord, example: EncodedExample, *, target: ShardTarget, offset: int
) -> IndexRow:
    image = encoded.image
    return IndexRow(
        key=encoded.record.key,
        source=encoded.record.source,
        split=target.split,
        shard=target.shard_index,
        offset=offset,
        length=example.size_bytes,
        sha256=example.sha256,
        width=0 if image is None else image.width,
        height=0 if image is None else image.height,
        format="" if image is None else image.format,
        objects=example.objects,
    )


class _Progress:
    """Tells how far the shard is, at most once a second."""

    def __init__(self, target: ShardTarget) -> None:
        self._target = target
        self._examples = 0
        self._told_at_s = time.monotonic()
        self._interval_s = (
            _REMOTE_PROGRESS_INTERVAL_S
            if storage_for(target.staging.root).is_remote
            else _PROGRESS_INTERVAL_S
        )

    def advance(self) -> None:
        self._examples += 1
        now_s = time.monotonic()
        if now_s - self._told_at_s >= self._interval_s:
            self._told_at_s = now_s
            self._tell(finished=False)

    def finish(self) -> None:
        self._tell(finished=True)

    def _tell(self, *, finished: bool) -> None:
        self._target.staging.write_progress(
            ShardProgress(examples=self._examples, finished=finished),
            split=self._target.split,
            shard_index=self._target.shard_index,
        )
