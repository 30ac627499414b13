"""Finished shards are found by keys that change with everything that decides their bytes."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset import index
from shardbeam.transforms.dataset.collectors.collect import RowsCollector
from shardbeam.transforms.dataset.dataset_files import describe_data
from shardbeam.transforms.dataset.file_names import run_path
from shardbeam.transforms.dataset.shard_key import shard_key
from shardbeam.transforms.dataset.shard_result import Origin, ShardResult
from shardbeam.transforms.examples.encode import encode
from shardbeam.transforms.staging import staging as staging_module
from shardbeam.transforms.staging.staging import LAUNCHED, Staging
from tests.support.example_builders import make_label_map
from tests.support.manifests import SHA256, make_shard_result
from tests.support.shards import make_settings


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging(output=str(tmp_path / "out"), plan="plan", run_id="run")


@pytest.fixture
def shard(staging: Staging) -> ShardResult:
    """A finished shard."""
    result = make_shard_result(describe_data("train.tfrecord", b"data"))
    for file, data in ((result.data, b"data"), (result.index, b"index")):
        path = Path(staging.uri(result.staged, file.path))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    staging.finish_shard(result)
    return result


def test_a_finished_shard_is_found_in_staging_and_in_place(
    staging: Staging, shard: ShardResult
) -> None:
    assert staging.find_shard(shard_key="0" * 64) is None
    found = msgspec.structs.replace(shard, resumed=True)
    assert staging.find_shard(shard_key=SHA256) == found
    for file in (shard.data, shard.index):
        place = Path(staging.output, file.path)
        place.parent.mkdir(exist_ok=True)
        Path(staging.uri(shard.staged, file.path)).rename(place)
        assert staging.find_shard(shard_key=SHA256) == found
    Path(staging.output, shard.data.path).write_bytes(b"DATA")
    assert staging.find_shard(shard_key=SHA256) is None


def test_what_an_earlier_run_copied_is_resumed_by_a_run_that_copies_nothing(
    staging: Staging, shard: ShardResult
) -> None:
    copied = msgspec.structs.replace(shard, origin=Origin.COPIED, run_id="earlier")
    staging.finish_shard(copied)
    for previous, resumed in (("", True), ("previous", False)):
        found = staging.find_shard(shard_key=shard.key, previous=previous)
        assert found == msgspec.structs.replace(copied, resumed=resumed)
    staging.finish_shard(msgspec.structs.replace(copied, run_id=staging.run_id))
    found = staging.find_shard(shard_key=shard.key)
    assert found is not None
    assert not found.resumed


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("shards/key/1/train.tfrecord", b"dat"),
        ("shards/key/1/index/train.tfrecord.parquet", b""),
        # As another version of Shardbeam might have written it.
        (f"shards/{SHA256}/done", msgspec.msgpack.encode(["train", 0, 1])),
        (f"shards/{SHA256}/done", b""),
    ],
)
def test_a_finished_shard_that_is_damaged_is_written_again(
    path: str, data: bytes, staging: Staging, shard: ShardResult
) -> None:
    assert staging.find_shard(shard_key=shard.key) is not None
    Path(staging.uri(path)).write_bytes(data)
    assert staging.find_shard(shard_key=shard.key) is None


def test_how_a_shard_is_counted_is_not_in_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, label_map = make_settings(tmp_path), make_label_map({"cat": 1})
    before = settings.digest(label_map=label_map)
    monkeypatch.setattr(RowsCollector, "VERSION", "another")
    monkeypatch.setattr(index, "INDEX_SCHEMA", index.INDEX_SCHEMA.remove(0))
    # Libraries are recorded with the shard, as far as its images need them.
    monkeypatch.setattr(encode, "library_versions", lambda: {"pillow": "0"})
    assert settings.digest(label_map=label_map) == before
    monkeypatch.setattr(encode, "ENCODING_VERSION", 0)
    assert settings.digest(label_map=label_map) != before


def test_a_shard_key_changes_with_all_that_decides_bytes() -> None:
    same: dict[str, Any] = {
        "settings_digest": "a",
        "split": "train",
        "shard_index": 0,
        "num_shards": 2,
        "records": (b"ab", b"c"),
    }
    changes: list[dict[str, Any]] = [
        {},
        {"settings_digest": "b"},
        {"split": "test"},
        {"shard_index": 1},
        {"num_shards": 3},
        {"records": (b"a", b"bc")},
        {"records": (b"c", b"ab")},
        {"records": (b"ab",)},
    ]
    assert len({shard_key(**(same | change)) for change in changes}) == len(changes)


@pytest.mark.parametrize("seen", ["mark", "record", "nothing", "another run"])
def test_a_machine_that_sees_another_folder_is_named(
    seen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_module, "_MARK_WAIT_S", 0)
    output = tmp_path / "out"
    staging = Staging(output=str(output), plan="plan", run_id="run", mark=LAUNCHED)
    # The folder as this machine sees it.
    if seen == "mark":
        staging.write_mark()
    elif seen == "record":
        # The run has committed, and one of its last steps is repeated.
        (output / "runs").mkdir(parents=True)
        (output / run_path("run")).touch()
    elif seen == "another run":
        msgspec.structs.replace(staging, run_id="other").write_mark()
    if seen in ("mark", "record"):
        staging.check_mark()
    else:
        for _ in range(2):
            with pytest.raises(InputError, match=f"worker on host {socket.gethostname()} does not"):
                staging.check_mark()
        # A failure is not remembered.
        staging.write_mark()
        staging.check_mark()
    # Success is.
    staging.remove_mark()
    staging.check_mark()
    assert not any(output.rglob(LAUNCHED)) or seen == "another run"


@pytest.mark.parametrize(("output", "mark"), [("gs://bucket/out", LAUNCHED), ("/out", "")])
def test_a_bucket_has_no_mark(output: str, mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Any use of the storage would be an error.
    monkeypatch.setattr(staging_module, "storage_for", None)
    staging = Staging(output=output, plan="plan", run_id="run", mark=mark)
    staging.write_mark()
    staging.check_mark()
    staging.remove_mark()
