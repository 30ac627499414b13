"""The record of a shard: its content, and the checks that it must pass."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import Reject
from shardbeam.transforms.dataset.dataset_files import describe_data
from shardbeam.transforms.dataset.shard_result import Origin, ShardResult
from shardbeam.transforms.shards.shard_records import (
    RECORD_FILE,
    decode_record,
    encode_record,
    keep_record,
    record_path,
)
from shardbeam.transforms.staging.staging import Staging
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.find import storage_for
from tests.support.manifests import make_shard_result

REJECT = Reject(
    split="train",
    source="s",
    key="ü\n/../x.jpg",
    stage="encode",
    reason=Reason.TRUNCATED,
    detail="cut off",
    listed=True,
)
SHARD = msgspec.structs.replace(
    make_shard_result(describe_data("d-train.tfrecord-00001-of-00002", b"data")),
    records=5,
    excluded={"no_objects": 1},
    rejects=(REJECT,),
)
KEY = SHARD.key


def decode(data: bytes, *, records: int = 5) -> ShardResult:
    return decode_record(data, uri="d/record.json", key=KEY, split="train", records=records)


def changed(**fields: Any) -> bytes:  # noqa: ANN401  # Whatever JSON holds.
    document = json.loads(encode_record(SHARD))["record"]
    for path, value in fields.items():
        *parents, name = path.split("__")
        place = document
        for parent in parents:
            place = place[parent]
        place[name] = value
    return seal(json.dumps(document))


def without(field: str) -> bytes:
    document = json.loads(encode_record(SHARD))["record"]
    del document[field]
    return seal(json.dumps(document))


def seal(text: str) -> bytes:
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f'{{"sha256": "{digest}", "record": {text}}}'.encode()


def test_a_record_says_all_of_a_shard_but_its_run() -> None:
    written = msgspec.structs.replace(SHARD, resumed=True, origin=Origin.COPIED, run_id="x")
    assert decode(encode_record(written)) == msgspec.structs.replace(SHARD, staged="")


def test_its_name_is_its_key() -> None:
    found = RECORD_FILE.fullmatch(record_path(KEY))
    assert found is not None
    assert found[1] == KEY


def test_counts_that_cannot_be_read_are_left_out() -> None:
    """Another version may have other fields: the shard is counted again."""
    decoded = decode(changed(collected__statistics={"version": "1", "statistics": {"images": "x"}}))
    assert decoded.collected.keys() == SHARD.collected.keys() - {"statistics"}


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "not a shard's record"),
        (b"\xff\xfe", "not a shard's record"),
        (b"[" * 100_000, "not a shard's record"),
        (changed()[:-20], "not a shard's record"),
        (b"{}", "not a shard's record"),
        (seal("[]"), "not a shard's record"),
        (changed().replace(b'"examples": 3', b'"examples": 7'), "damaged: its checksum"),
        (encode_record(SHARD).replace(b'"format":4', b'"format":5'), "not a shard's record"),
        (changed(key="0" * 64), "the record of another shard"),
        (changed(key="0"), "not a shard's record"),
        (changed(data__examples=-1), "not a shard's record"),
        (changed(inputs=1 << 60), "not a shard's record"),
        (changed(fingerprint="x"), "not a shard's record"),
        (changed(data__crc32c="00C0FFEE"), "not a shard's record"),
        (changed(data__size_bytes="7"), "not a shard's record"),
        (changed(data__crc32c="00c0ffee\n"), "not a shard's record"),
        (changed(rejects=[{"split": "train"}]), "not a shard's record"),
        (changed(collected=[]), "not a shard's record"),
        (without("corrections"), "not a shard's record"),
        (changed(images=4), "its counts do not add up"),
        (changed(records=6), "its counts do not add up"),
        (changed(images=2, excluded={"a": 2}, rejects=[]), "its counts do not add up"),
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


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging(output=str(tmp_path / "out"), plan="plan", run_id="run")


def keep(staging: Staging) -> None:
    uri = join_uri(staging.output, record_path(KEY))
    keep_record(KEY, replaces=storage_for(uri).stat(uri), staging=staging)


def test_a_finished_shards_record_is_kept_however_often(staging: Staging) -> None:
    record = Path(staging.output, record_path(KEY))
    # Staging is cleared: the commit is over, and the record where it belongs.
    keep(staging)
    assert not record.exists()
    staging.finish_shard(SHARD)
    for _ in range(2):
        keep(staging)
        assert record.read_bytes() == encode_record(SHARD)


def test_nothing_is_kept_of_a_shard_that_might_come_out_otherwise(staging: Staging) -> None:
    record = Path(staging.output, record_path(KEY))
    for reason, is_kept in (
        (Reason.TRUNCATED, True),
        (Reason.IMAGE_UNREADABLE, False),
        (Reason.TRUNCATED, True),
        (Reason.CHANGED_SINCE_LISTING, False),
        (Reason.MASK_UNREADABLE, False),
    ):
        reject = msgspec.structs.replace(REJECT, reason=reason)
        staging.finish_shard(msgspec.structs.replace(SHARD, rejects=(reject,)))
        keep(staging)
        # An older one of the same key goes, too.
        assert record.exists() == is_kept
