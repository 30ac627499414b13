"""Copies a shard of a dataset's previous version; its images are not read."""

from __future__ import annotations

import msgspec

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.dataset_files import DatasetFile
from shardbeam.transforms.dataset.shard_result import Origin, ShardResult
from shardbeam.transforms.examples.encode.image_features import IMAGE
from shardbeam.transforms.shards.recount import shard_feature_map
from shardbeam.transforms.shards.verify_shard import CheckTask, find_contradiction
from shardbeam.transforms.shards.writer import Shard, ShardSettings, create_file
from shardbeam.transforms.storage.base import ChangedError, StoredFile, join_uri
from shardbeam.transforms.storage.find import storage_for

# Bytes that this process copies at a time.
_PART_BYTES = 8 << 20


def copy_shard(record: ShardResult, *, shard: Shard, settings: ShardSettings) -> ShardResult:
    """Copies a shard of the previous version to staging, and marks it as finished.

    The storage copies it by itself if both folders lie in the same storage and it reports checksums
    of copies; otherwise this process does. A copy that differs from the record, or contradicts its
    index, is deleted.

    Args:
        record: The shard in the previous version, `settings.previous`.
        shard: Which shard it becomes.
        settings: How shards are made.

    Raises:
        InputError: A file of the shard is gone, differs from the record or contradicts its index.
        OSError: A file cannot be read, or staging cannot be written.
    """
    staging = settings.staging
    staged = staging.new_attempt(shard_key=shard.key)
    data = msgspec.structs.replace(record.data, path=shard.file_name)
    index = msgspec.structs.replace(record.index, path=shard.index_path)
    for file, copy in ((record.data, data), (record.index, index)):
        source = join_uri(settings.previous, file.path)
        try:
            _copy_file(source, staging.uri(staged, copy.path), copy=copy)
        except (FileNotFoundError, ChangedError) as error:
            raise InputError(uri=source, problem="is gone") from error
    copies = [
        StoredFile(copy.path, staging.uri(staged, copy.path), copy.size_bytes, "")
        for copy in (data, index)
    ]
    contradiction = find_contradiction(
        CheckTask(
            data=copies[0],
            container=settings.container,
            split=shard.split,
            shard_index=shard.shard_index,
            examples=data.examples,
            crc32c=data.crc32c,
            index=copies[1],
            image_key=shard_feature_map(shard, settings=settings.encoder).keys.get(IMAGE, ""),
        )
    )
    if contradiction:
        for stored in copies:
            storage_for(stored.uri).delete(stored.uri)
        source = join_uri(settings.previous, record.data.path)
        raise InputError(uri=source, problem=f"contradicts its index: {contradiction}")
    result = msgspec.structs.replace(
        record, data=data, index=index, staged=staged, origin=Origin.COPIED, run_id=staging.run_id
    )
    staging.finish_shard(result)
    return result


def _copy_file(source: str, destination: str, *, copy: DatasetFile) -> None:
    """Copies a file, and checks that the copy has the size and checksum of `copy`.

    Raises:
        InputError: The size or checksum differs.
    """
    changed = InputError(uri=source, problem="changed after the commit: another size or checksum")
    storage = storage_for(source)
    if storage_for(destination) is storage:
        stored = storage.copy(source, destination)
        if stored is not None:
            if (stored.size_bytes, stored.crc32c) != (copy.size_bytes, copy.crc32c):
                storage.delete(destination)
                raise changed
            return
    stored = storage.stat(source)
    if stored is None:
        raise FileNotFoundError(source)
    if stored.size_bytes != copy.size_bytes:
        raise changed
    with create_file(destination) as file:
        for offset in range(0, stored.size_bytes, _PART_BYTES):
            file.write(
                storage.read(source, offset=offset, size_bytes=_PART_BYTES, version=stored.version)
            )
        # Inside the context, so that the exception removes the file.
        if (file.size_bytes, file.crc32c) != (copy.size_bytes, copy.crc32c):
            raise changed
