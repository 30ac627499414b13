"""Taking a shard over from the previous version of a dataset, without reading its images."""

from __future__ import annotations

from shardbeam.transforms.containers.base import find_container
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.shard import Shard, ShardSettings, create_staged
from shardbeam.transforms.dataset.shard_record import ShardRecord, decode_record, record_path
from shardbeam.transforms.dataset.shard_result import Origin, ShardResult, StagedFile
from shardbeam.transforms.dataset.staging import Staging
from shardbeam.transforms.storage.base import ChangedError, join_uri
from shardbeam.transforms.storage.find import storage_for

# What is held of a file where it comes through this process.
_PART_BYTES = 8 << 20


def find_record(previous: str, *, shard: Shard) -> ShardRecord | None:
    """Looks for a shard in the previous version.

    Args:
        previous: Folder of a committed dataset.
        shard: The shard that is wanted.

    Returns:
        What is recorded there of a shard of the same bytes; None where there is none.

    Raises:
        InputError: The record is damaged, or cannot be read.
    """
    uri = join_uri(previous, record_path(shard.key))
    try:
        data = storage_for(uri).read(uri)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(uri=uri, problem=f"cannot be read: {error.strerror or error}") from error
    return decode_record(
        data, uri=uri, key=shard.key, split=shard.split, records=len(shard.records)
    )


def copy_shard(record: ShardRecord, *, shard: Shard, settings: ShardSettings) -> ShardResult:
    """Copies a shard of the previous version to staging, and marks it as finished.

    On the server where both lie in one that tells the checksum of what it has copied, otherwise
    by way of this process. The copy is what the record says, or there is none.

    Args:
        record: The shard in the previous version, `settings.previous`.
        shard: Which shard it becomes.
        settings: How shards are made.

    Raises:
        InputError: A file of it is gone, or is not what was recorded.
        OSError: It cannot be read, or staging cannot be written.
    """
    staging = settings.staging
    attempt = staging.new_attempt(shard_key=shard.key)
    copies = [
        (record.data, f"{attempt}{find_container(settings.container).suffix}", shard.file_name),
        (record.index, f"{attempt}.parquet", shard.index_name),
    ]
    data, index = (
        _copy_file(
            join_uri(settings.previous, file.path),
            copy=StagedFile(
                staged=staged,
                destination=destination,
                size_bytes=file.size_bytes,
                crc32c=file.crc32c,
            ),
            staging=staging,
        )
        for file, staged, destination in copies
    )
    result = ShardResult(
        split=shard.split,
        shard_index=shard.index,
        num_shards=shard.num_shards,
        data=data,
        index=index,
        examples=record.examples,
        fingerprint=record.fingerprint,
        inputs=record.inputs,
        corrections=record.corrections,
        rejects=record.rejects,
        images=record.images,
        excluded=record.excluded,
        key=shard.key,
        records=len(shard.records),
        origin=Origin.COPIED,
        run_id=staging.run_id,
    )
    staging.finish_shard(result, shard_key=shard.key)
    return result


def _copy_file(source: str, *, copy: StagedFile, staging: Staging) -> StagedFile:
    """Copies a file to where `copy` says, if it is what `copy` says.

    Raises:
        InputError: It is gone, or something else.
    """
    destination = staging.uri(copy.staged)
    try:
        if not _copied_on_server(source, destination, copy=copy):
            _copy_by_hand(source, copy=copy, staging=staging)
    except (FileNotFoundError, ChangedError) as error:
        raise InputError(uri=source, problem="is gone") from error
    return copy


def _copied_on_server(source: str, destination: str, *, copy: StagedFile) -> bool:
    storage = storage_for(destination)
    if storage_for(source) is not storage:
        return False
    stored = storage.copy(source, destination)
    if stored is None:
        return False
    if (stored.size_bytes, stored.crc32c) != (copy.size_bytes, copy.crc32c):
        storage.delete(destination)
        raise _is_another(source)
    return True


def _copy_by_hand(source: str, *, copy: StagedFile, staging: Staging) -> None:
    storage = storage_for(source)
    stored = storage.stat(source)
    if stored is None:
        raise FileNotFoundError(source)
    if stored.size_bytes != copy.size_bytes:
        raise _is_another(source)
    with create_staged(staging, path=copy.staged) as file:
        for offset in range(0, stored.size_bytes, _PART_BYTES):
            part = storage.read(
                source, offset=offset, size_bytes=_PART_BYTES, version=stored.version
            )
            file.write(part)
        # While an exception still undoes it.
        if (file.size_bytes, file.crc32c) != (copy.size_bytes, copy.crc32c):
            raise _is_another(source)


def _is_another(source: str) -> InputError:
    return InputError(uri=source, problem="is not what was committed: another size or checksum")
