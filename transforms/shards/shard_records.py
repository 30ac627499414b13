"""The records that a dataset keeps of its shards, for its next version.

A record, `runs/.shards/<shard key>.json`, is written when its shard is moved into place. A shard
with the same key is copied (`shards.reuse`). Records lie below `runs/` because a key depends on
where the images lie; nothing outside `runs/` does.
"""

from __future__ import annotations

import hashlib
import re
from typing import Literal

import msgspec

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.configs.passwords import hide_passwords
from shardbeam.transforms.core.errors import InputError, decoding, reading
from shardbeam.transforms.dataset.dataset_files import check_paths
from shardbeam.transforms.dataset.shard_result import Origin, ShardResult, convert_result
from shardbeam.transforms.shards.writer import Shard
from shardbeam.transforms.staging.staging import Staging
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.base import StoredFile, join_uri
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.listed_files import read_optional

RECORDS_FOLDER = "runs/.shards"
RECORD_FILE = re.compile(rf"{RECORDS_FOLDER}/([0-9a-f]{{64}})\.json")


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
    with decoding(uri, "a shard's record"):
        sealed = JsonDecoder(_SealedRecord).decode(data)
        record = convert_result(JsonDecoder().decode(sealed.record))
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
    with reading(uri):
        data = read_optional(uri, max_bytes=limits.METADATA_BYTES)
    if data is None:
        return None
    return decode_record(
        data, uri=uri, key=shard.key, split=shard.split, records=len(shard.records)
    )
