"""Reuse: the records that a dataset keeps of its shards, and how its next version copies shards.

A record, `runs/.shards/<shard key>.json`, is written when its shard is moved into place. A shard
with the same key is copied, and its images are not read. Records lie below `runs/` because a key
depends on where the images lie; nothing outside `runs/` does.
"""

from __future__ import annotations

import hashlib
import re
from typing import Literal

import msgspec

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.configs.passwords import hide_passwords
from shardbeam.transforms.core.errors import InputError, unreadable
from shardbeam.transforms.dataset.files import (
    DatasetFile,
    Origin,
    ShardResult,
    check_paths,
    convert_result,
)
from shardbeam.transforms.shards.writer import Shard, ShardSettings, create_file
from shardbeam.transforms.staging.staging import Staging
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.base import ChangedError, StoredFile, join_uri
from shardbeam.transforms.storage.find import storage_for

RECORDS_FOLDER = "runs/.shards"
RECORD_FILE = re.compile(rf"{RECORDS_FOLDER}/([0-9a-f]{{64}})\.json")

# Bytes that this process copies at a time.
_PART_BYTES = 8 << 20


class _SealedRecord(msgspec.Struct, frozen=True):
    """The content of a record's file; the digest shows whether the record is damaged.

    Attributes:
        sha256: Digest of the record's text, hex.
        record: The record's text: a `ShardResult` without the fields about the run that wrote it.
        format: Increased whenever older programs could not read the record any more.
    """

    sha256: str
    record: msgspec.Raw
    format: Literal[3, 4] = 4


def record_path(key: str) -> str:
    """Returns the path of a shard's record, below the dataset's folder."""
    return f"{RECORDS_FOLDER}/{key}.json"


def encode_record(shard: ShardResult) -> bytes:
    """Renders the record of a shard."""
    record = msgspec.structs.replace(
        shard, staged="", origin=Origin.WRITTEN, run_id="", resumed=False
    )
    text = hide_passwords(msgspec.json.encode(record, order="deterministic").decode()).encode()
    sealed = _SealedRecord(hashlib.sha256(text).hexdigest(), msgspec.Raw(text))
    return msgspec.json.encode(sealed) + b"\n"


def decode_record(data: bytes, *, uri: str, key: str, split: str, records: int) -> ShardResult:
    """Decodes a record, and checks that it fits a shard.

    Args:
        data: The file's content.
        uri: Where it is, for the error message.
        key: The shard's key.
        split: The shard's split.
        records: How many records go into it.

    Raises:
        InputError: The record is damaged, contradicts itself or the shard, or names a file outside
            the dataset's folder.
    """
    try:
        sealed = JsonDecoder(_SealedRecord).decode(data)
        record = convert_result(JsonDecoder().decode(sealed.record))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(uri=uri, problem=f"not a shard's record: {error}") from error
    if hashlib.sha256(bytes(sealed.record)).hexdigest() != sealed.sha256:
        raise InputError(uri=uri, problem="damaged: its checksum does not match")
    if record.key != key:
        raise InputError(uri=uri, problem="the record of another shard")
    became = record.images + sum(record.excluded.values()) + len(record.rejects)
    # Refuse other counts here: the gate would notice them and end the run.
    if not record.records == became == records or not all(
        reject.split == split and reject.listed for reject in record.rejects
    ):
        raise InputError(uri=uri, problem="its counts do not add up to the shard's")
    check_paths((record.data.path, record.index.path), uri=uri)
    return record


def keep_record(shard_key: str, *, replaces: StoredFile | None, staging: Staging) -> None:
    """Keeps a shard's record in the dataset for its next version, unless it was kept before.

    A shard that could come out differently (`may_differ`) must not be copied: its old record is
    deleted.

    Args:
        shard_key: The shard's key.
        replaces: The version of the record that was seen there; None if there was none.
        staging: The run's staging area.
    """
    shard = staging.read_shard(shard_key=shard_key)
    if shard is None:
        # The done-file is deleted only after the last move: the record was kept before.
        return
    if not shard.may_differ:
        staging.write_file(record_path(shard_key), encode_record(shard), replaces=replaces)
    elif replaces is not None:
        # An earlier commit, which this one replaces, left this record.
        storage_for(replaces.uri).delete(replaces.uri, version=replaces.version)


def find_record(previous: str, *, shard: Shard) -> ShardResult | None:
    """Looks for a shard in the previous version.

    Args:
        previous: Folder of a committed dataset.
        shard: The shard that is wanted.

    Returns:
        The record of a shard with the same key; None if there is none.

    Raises:
        InputError: The record is damaged, or cannot be read.
    """
    uri = join_uri(previous, record_path(shard.key))
    try:
        data = storage_for(uri).read_small(uri, max_bytes=limits.METADATA_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(uri, error) from error
    return decode_record(
        data, uri=uri, key=shard.key, split=shard.split, records=len(shard.records)
    )


def copy_shard(record: ShardResult, *, shard: Shard, settings: ShardSettings) -> ShardResult:
    """Copies a shard of the previous version to staging, and marks it as finished.

    The storage copies it by itself if both folders lie in the same storage and it reports checksums
    of copies; otherwise this process does. A copy that differs from the record is deleted.

    Args:
        record: The shard in the previous version, `settings.previous`.
        shard: Which shard it becomes.
        settings: How shards are made.

    Raises:
        InputError: A file of the shard is gone, or differs from the record.
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
