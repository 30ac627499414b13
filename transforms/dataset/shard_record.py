"""What a dataset keeps about each of its shards, for a later version to find it unchanged.

`runs/.shards/<shard key>.json`, one file a shard, written when the shard is moved into place. They
lie below `runs/` because a key covers where the images lie, and all else in a dataset does not.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import Reject
from shardbeam.transforms.dataset.manifest import check_paths
from shardbeam.transforms.dataset.shard_result import ShardResult, StagedFile

RECORDS_FOLDER = "runs/.shards"
RECORD_FILE = re.compile(rf"{RECORDS_FOLDER}/([0-9a-f]{{64}})\.json")

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]
_Crc32c = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{8}\Z")]
_Sha256 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class FileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a dataset.

    Attributes:
        path: Its path below the dataset's folder.
        size_bytes: Its length.
        crc32c: Checksum of the whole file, 8 hex digits.
    """

    path: str
    size_bytes: _Count
    crc32c: _Crc32c


class ShardRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A committed shard: all that its `ShardResult` says, and nothing of the run that wrote it.

    Attributes:
        format: Counted up whenever older programs could not make sense of it: since 2 the files
            have no SHA-256.
        key: Its shard key.
        data: The TFRecord file.
        index: The Parquet file with a row an example.
        records: Records that went into it.
        examples: Examples in `data`.
        images: Images that `data` is made of.
        fingerprint: Sum of the fingerprints of its inputs, hex.
        inputs: Images that `fingerprint` covers.
        corrections: `{correction: count}`.
        excluded: `{rule: count}`.
        rejects: The records that could not be written.
    """

    format: Literal[1, 2] = 2
    key: _Sha256
    data: FileRecord
    index: FileRecord
    records: _Count
    examples: _Count
    images: _Count
    fingerprint: _Sha256
    inputs: _Count
    corrections: Mapping[str, _Count]
    excluded: Mapping[str, _Count]
    rejects: tuple[Reject, ...]


class _SealedRecord(msgspec.Struct, frozen=True):
    """A record as it is kept: damage to it must not pass for another count.

    Attributes:
        sha256: Digest of the record's text, hex.
        record: The record's text.
    """

    sha256: str
    record: msgspec.Raw


_decoder = msgspec.json.Decoder(ShardRecord)
_sealed_decoder = msgspec.json.Decoder(_SealedRecord)


def record_path(key: str) -> str:
    """Names the record of a shard, below the dataset's folder."""
    return f"{RECORDS_FOLDER}/{key}.json"


def encode_record(shard: ShardResult) -> bytes | None:
    """Renders the record of a shard.

    Args:
        shard: The shard, with its rejects.

    Returns:
        The file's content; None where the shard's key does not decide all of it, so that nothing
        may be built on it: the reading of an image has failed for a reason that may pass.
    """
    if shard.may_differ:
        return None
    record = ShardRecord(
        key=shard.key,
        data=_file_record(shard.data),
        index=_file_record(shard.index),
        records=shard.records,
        examples=shard.examples,
        images=shard.images,
        fingerprint=shard.fingerprint,
        inputs=shard.inputs,
        corrections=shard.corrections,
        excluded=shard.excluded,
        rejects=shard.rejects,
    )
    text = msgspec.json.encode(record, order="deterministic")
    sealed = _SealedRecord(hashlib.sha256(text).hexdigest(), msgspec.Raw(text))
    return msgspec.json.encode(sealed) + b"\n"


def _file_record(file: StagedFile) -> FileRecord:
    return FileRecord(
        path=file.destination,
        size_bytes=file.size_bytes,
        crc32c=file.crc32c,
    )


def decode_record(data: bytes, *, uri: str, key: str, split: str, records: int) -> ShardRecord:
    """Reads a record, and checks that it can be that of a shard.

    Args:
        data: The file's content.
        uri: Where it is, for the error message.
        key: The shard's key.
        split: The shard's split.
        records: How many records go into it.

    Raises:
        InputError: It is damaged, contradicts itself or the shard, or names a file outside the
            dataset's folder.
    """
    try:
        sealed = _sealed_decoder.decode(data)
        record = _decoder.decode(sealed.record)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(uri=uri, problem=f"not a shard's record: {error}") from error
    if hashlib.sha256(bytes(sealed.record)).hexdigest() != sealed.sha256:
        raise InputError(uri=uri, problem="damaged: its checksum is that of another record")
    if record.key != key:
        raise InputError(uri=uri, problem="the record of another shard")
    became = record.images + sum(record.excluded.values()) + len(record.rejects)
    # The gate would find it out, and end the run.
    if not record.records == became == records or not all(
        reject.split == split and reject.listed for reject in record.rejects
    ):
        raise InputError(uri=uri, problem="its counts do not add up to the shard's")
    check_paths((record.data.path, record.index.path), uri=uri)
    return record
