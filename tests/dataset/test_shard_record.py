"""The record of a shard: what it keeps, and which ones are believed."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import Reject
from shardbeam.transforms.dataset.shard_record import (
    RECORD_FILE,
    ShardRecord,
    decode_record,
    encode_record,
    record_path,
)
from shardbeam.transforms.dataset.shard_result import ShardResult, StagedFile

KEY = "0123456789abcdef" * 4
REJECT = Reject(
    split="train",
    source="s",
    key="ü\n/../x.jpg",
    stage="encode",
    reason=Reason.TRUNCATED,
    detail="cut off",
    listed=True,
)


def staged(destination: str) -> StagedFile:
    return StagedFile(
        staged="shards/k/1",
        destination=destination,
        size_bytes=7,
        crc32c="00c0ffee",
    )


SHARD = ShardResult(
    split="train",
    shard_index=1,
    num_shards=2,
    data=staged("d-train.tfrecord-00001-of-00002"),
    index=staged("index/d-train.tfrecord-00001-of-00002.parquet"),
    examples=5,
    images=3,
    fingerprint="12" * 32,
    inputs=4,
    corrections={"box_clipped": 2},
    excluded={"no_objects": 1},
    rejects=(REJECT,),
    key=KEY,
    records=5,
)


def decode(data: bytes, *, records: int = 5) -> ShardRecord:
    return decode_record(data, uri="d/record.json", key=KEY, split="train", records=records)


def changed(**fields: Any) -> bytes:  # noqa: ANN401  # Whatever JSON holds.
    data = encode_record(SHARD)
    assert data is not None
    document = json.loads(data)["record"]
    for path, value in fields.items():
        *parents, name = path.split("__")
        place = document
        for parent in parents:
            place = place[parent]
        place[name] = value
    return seal(json.dumps(document))


def seal(text: str) -> bytes:
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f'{{"sha256": "{digest}", "record": {text}}}'.encode()


def test_a_record_says_all_of_a_shard_but_its_run() -> None:
    record = decode(changed())
    assert record.rejects == (REJECT,)
    for name in ("examples", "images", "fingerprint", "inputs", "corrections", "excluded"):
        assert getattr(record, name) == getattr(SHARD, name)
    assert (record.data.path, record.index.path) == (
        SHARD.data.destination,
        SHARD.index.destination,
    )
    data = encode_record(SHARD)
    assert data is not None
    assert b"shards/k" not in data


def test_its_name_is_its_key() -> None:
    found = RECORD_FILE.fullmatch(record_path(KEY))
    assert found is not None
    assert found[1] == KEY


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "not a shard's record"),
        (b"\xff\xfe", "not a shard's record"),
        (b"[" * 100_000, "not a shard's record"),
        (changed()[:-20], "not a shard's record"),
        (b"{}", "not a shard's record"),
        (seal("[]"), "not a shard's record"),
        (changed().replace(b'"examples": 5', b'"examples": 7'), "damaged: its checksum"),
        (changed(format=3), "not a shard's record"),
        (changed(key="0" * 64), "the record of another shard"),
        (changed(key="0"), "not a shard's record"),
        (changed(examples=-1), "not a shard's record"),
        (changed(inputs=1 << 60), "not a shard's record"),
        (changed(fingerprint="x"), "not a shard's record"),
        (changed(data__crc32c="00C0FFEE"), "not a shard's record"),
        (changed(data__size_bytes="7"), "not a shard's record"),
        (changed(data__crc32c="00c0ffee\n"), "not a shard's record"),
        (changed(rejects=[{"split": "train"}]), "not a shard's record"),
        (changed(images=4), "its counts do not add up"),
        (changed(records=6), "its counts do not add up"),
        (changed(images=2, excluded={"a": 2}, records=5, rejects=[]), "its counts do not add up"),
        (changed(data__path="../x"), "lists '../x', which is not below the dataset"),
        (changed(index__path="/etc/passwd"), "which is not below the dataset"),
        (changed(index__path="a/../../x"), "which is not below the dataset"),
        (changed(data__path=""), "which is not below the dataset"),
    ],
)
def test_what_is_not_believed(data: bytes, problem: str) -> None:
    with pytest.raises(InputError, match=r"^d/record\.json: ") as caught:
        decode(data)
    assert problem in str(caught.value)


def test_a_record_of_other_counts_than_the_shard_is_not_believed() -> None:
    with pytest.raises(InputError, match="its counts do not add up"):
        decode(changed(), records=6)


def test_rejects_of_another_split_are_not_believed() -> None:
    data = changed()
    with pytest.raises(InputError, match="its counts do not add up"):
        decode_record(data, uri="d", key=KEY, split="test", records=5)
