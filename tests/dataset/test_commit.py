"""The commit's steps, each repeated and interrupted at will."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import google_crc32c
import msgspec
import pytest

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import Reject
from shardbeam.transforms.dataset import commit
from shardbeam.transforms.dataset.census import Census, ListingSummary
from shardbeam.transforms.dataset.commit import (
    RejectsFile,
    RejectsPart,
    assign_rejects_file,
    check_in_place,
    count_splits,
    foreign_files,
    judge,
    keep_record,
    move_into_place,
    prepare_output,
    write_rejects,
)
from shardbeam.transforms.dataset.manifest import FileEntry, InputEntry, Manifest, encode_manifest
from shardbeam.transforms.dataset.outcome import SplitOutcome, Status
from shardbeam.transforms.dataset.shard_result import ShardResult, StagedFile
from shardbeam.transforms.dataset.staging import Staging, shard_key


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging(output=str(tmp_path / "out"), plan="plan", run_id="run")


def stage(staging: Staging, name: str, data: bytes = b"data") -> StagedFile:
    path = Path(staging.uri(f"shards/key/{name}"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return StagedFile(
        staged=f"shards/key/{name}",
        destination=name,
        size_bytes=len(data),
        crc32c=f"{google_crc32c.value(data):08x}",
    )


def shard(staging: Staging, *, split: str = "train", examples: int = 3) -> ShardResult:
    return ShardResult(
        split=split,
        shard_index=0,
        num_shards=1,
        data=stage(staging, f"{split}.tfrecord"),
        index=stage(staging, f"{split}.parquet", b"index"),
        examples=examples,
        images=examples,
        fingerprint="0",
        inputs=examples,
        corrections={"box_clipped": 2},
    )


def reject(key: str, *, listed: bool = True, split: str = "train") -> Reject:
    return Reject(
        split=split,
        source="s",
        key=key,
        stage="encode",
        reason=Reason.TRUNCATED if listed else Reason.MISSING_IMAGE,
        detail="d",
        listed=listed,
    )


def manifest(*paths: str) -> bytes:
    return encode_manifest(
        Manifest(
            shardbeam="0",
            name="n",
            version="1.0.0",
            seed=0,
            config={},
            codecs={},
            inputs=InputEntry(images=0, fingerprint=""),
            labels={},
            features=(),
            splits={},
            files=tuple(FileEntry(path=path, size_bytes=0, crc32c="") for path in paths),
        )
    )


def tree(folder: str) -> list[str]:
    root = Path(folder)
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_rejects_are_written_sorted_whatever_their_order(staging: Staging) -> None:
    rejects = [reject("b"), reject("a"), reject("c", listed=False)]
    one = write_rejects(RejectsPart("train"), rejects, staging=staging)
    content = Path(staging.uri(one.file.staged)).read_bytes()
    assert write_rejects(RejectsPart("train"), reversed(rejects), staging=staging) == one
    assert [line.split(b'"key":"')[1][:1] for line in content.splitlines()] == [b"a", b"b", b"c"]
    assert one.counts == {"truncated": 2, "missing_image": 1}
    assert one.listed == 2
    assert one.file.destination == "rejects/train.jsonl"
    assert one.file.crc32c == f"{google_crc32c.value(content):08x}"


def test_no_file_of_rejects_grows_with_the_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "_REJECTS_PER_FILE", 100)
    # All of one image: what tells them apart is what is wrong with them.
    rejects = [msgspec.structs.replace(reject("a"), detail=f"row {row}") for row in range(1000)]
    for number, files in ((1, 1), (100, 1), (101, 2), (1000, 10)):
        counts = {"train": number, "test": 5}
        parts = [assign_rejects_file(each, counts=counts) for each in rejects[:number]]
        assert {(part.split, part.num_files) for part in parts} == {("train", files)}
        sizes = Counter(part.file_index for part in parts)
        assert set(sizes) == set(range(files))
        assert max(sizes.values()) < 150
    other = assign_rejects_file(reject("a", split="test"), counts={"train": 1000, "test": 5})
    assert other.file_name == "test.jsonl"
    assert RejectsPart("", 2, 30).file_name == "no-split-00002-of-00030.jsonl"


def test_several_files_of_rejects_add_up() -> None:
    file = StagedFile(staged="", destination="", size_bytes=0, crc32c="")
    parts = [
        RejectsFile(split="a", file=file, counts={"truncated": 2}, listed=2),
        RejectsFile(split="a", file=file, counts={"corrupt": 1, "truncated": 1}, listed=1),
        RejectsFile(split="b", file=file, counts={"truncated": 7}, listed=7),
    ]
    splits = count_splits(
        splits=["a", "b"],
        census=Census(listing=ListingSummary(files={"": 12}), splits={"a": SplitOutcome(listed=3)}),
        shards=[],
        rejects=parts,
    )
    assert splits["a"].rejected == {"corrupt": 1, "truncated": 3}
    assert splits["a"].unlisted == 1
    # As many as were joined: the listing knows no splits.
    assert (splits["a"].listed, splits[""].listed) == (3, 9)


def counts(staging: Staging, *, listed: int, examples: int = 3) -> dict[str, SplitOutcome]:
    rejects = write_rejects(
        RejectsPart("train"), [reject("a"), reject("b", listed=False)], staging=staging
    )
    return count_splits(
        splits=["train"],
        census=Census(
            listing=ListingSummary(files={"train": listed}),
            splits={"train": SplitOutcome(unannotated=1, excluded={"hidden_file": 2})},
        ),
        shards=[shard(staging, examples=examples)],
        rejects=[rejects],
    )


def test_counts_come_from_the_step_that_knows_them(staging: Staging) -> None:
    assert counts(staging, listed=6)["train"] == SplitOutcome(
        listed=6,
        examples=3,
        shards=1,
        num_bytes=4,
        unannotated=1,
        rejected={"missing_image": 1, "truncated": 1},
        unlisted=1,
        excluded={"hidden_file": 2},
        images=3,
        corrections={"box_clipped": 2},
    )


@pytest.mark.parametrize(
    ("listed", "examples", "max_ratio", "status"),
    [
        # 3 written + 1 rejected + 2 excluded; 2 of 7 inputs rejected.
        (6, 3, 0.3, Status.APPROVED),
        (6, 3, 2 / 7, Status.APPROVED),
        (6, 3, 0.28, Status.REFUSED),
        (7, 3, 1.0, Status.FAILED),
        (6, 2, 1.0, Status.FAILED),
    ],
)
def test_the_gate(
    staging: Staging, listed: int, examples: int, max_ratio: float, status: Status
) -> None:
    splits = counts(staging, listed=listed, examples=examples)
    outcome = judge(splits, max_ratio=max_ratio, rejects_root="/rejects")
    assert outcome.status is status
    assert ("split 'train'" in outcome.message) == (status is not Status.APPROVED)
    assert outcome.rejects == "/rejects"


def test_a_split_without_examples_is_not_committed() -> None:
    good = SplitOutcome(listed=1, examples=1, images=1)
    empty = SplitOutcome(listed=1, rejected={"truncated": 1})
    outcome = judge({"train": good, "test": empty}, max_ratio=1, rejects_root="/rejects")
    assert outcome.status is Status.FAILED
    assert outcome.message == "no examples are left, nothing was committed: split 'test'"


def test_moving_twice_is_moving_once(staging: Staging) -> None:
    file = stage(staging, "x")
    for _ in range(2):
        move_into_place(file, staging=staging)
    assert Path(staging.output, "x").read_bytes() == b"data"


def test_a_file_that_is_nowhere_or_another_is_an_error(staging: Staging) -> None:
    file = stage(staging, "x")
    Path(staging.uri(file.staged)).unlink()
    with pytest.raises(InputError, match="its staged file is gone"):
        move_into_place(file, staging=staging)
    Path(staging.output, "x").write_bytes(b"atad")
    with pytest.raises(InputError, match="its staged file is gone"):
        move_into_place(file, staging=staging)


def test_preparing_removes_what_the_old_manifest_lists_and_nothing_else(staging: Staging) -> None:
    output = Path(staging.output)
    new = stage(staging, "kept.tfrecord")
    for name in ("kept.tfrecord", "old.tfrecord", "index/old.parquet", "mine.txt", "runs/1.json"):
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        (output / name).write_bytes(b"old")
    (output / "dataset_info.json").write_bytes(b"{}")
    (output / "manifest.json").write_bytes(
        manifest("kept.tfrecord", "old.tfrecord", "index/old.parquet")
    )
    for _ in range(2):
        prepare_output([new], metadata=["manifest.json"], staging=staging)
        assert [path for path in tree(staging.output) if not path.startswith(".staging")] == [
            "kept.tfrecord",
            "manifest.json",
            "mine.txt",
            "runs/1.json",
        ]
    assert not (output / "index").exists()


def test_another_plans_unfinished_commit_is_undone_and_its_shards_are_kept(
    staging: Staging, caplog: pytest.LogCaptureFixture
) -> None:
    other = Staging(output=staging.output, plan="other", run_id="run")
    stage(other, "finished.tfrecord")
    other.write_commit(["half.tfrecord", "never.tfrecord"])
    Path(staging.output, "half.tfrecord").write_bytes(b"half")
    assert foreign_files(staging.output) == []
    new = stage(staging, "new.tfrecord")
    for _ in range(2):
        prepare_output([new], metadata=[], staging=staging)
        assert tree(staging.output) == [
            ".staging/other/shards/key/finished.tfrecord",
            ".staging/plan/commit.json",
            ".staging/plan/shards/key/new.tfrecord",
        ]
    staging.clear()
    assert tree(staging.output) == [".staging/other/shards/key/finished.tfrecord"]
    assert f"{staging.output}/.staging: holds the finished shards of a run with another" in (
        caplog.text
    )
    assert other.is_left()
    assert not staging.is_left()
    caplog.clear()
    other.clear()
    assert tree(staging.output) == []
    assert not caplog.text


def test_records_of_shards_that_go_go_too(staging: Staging) -> None:
    kept, gone = "a" * 64, "b" * 64
    output = Path(staging.output)
    records = output / "runs" / ".shards"
    records.mkdir(parents=True)
    for name in (f"{kept}.json", f"{gone}.json", "mine.json"):
        (records / name).write_bytes(b"old")
    assert foreign_files(staging.output) == ["runs/.shards/mine.json"]
    for _ in range(2):
        prepare_output([], metadata=[], staging=staging, shard_keys=[kept])
        assert {path.name for path in records.iterdir()} == {f"{kept}.json", "mine.json"}


@pytest.mark.parametrize("damaged", [".staging/other/commit.json", "manifest.json"])
def test_nothing_is_removed_by_a_list_that_is_damaged(damaged: str, staging: Staging) -> None:
    output = Path(staging.output)
    for name, data in {
        "dataset_info.json": b"{}",
        "manifest.json": manifest("old.tfrecord"),
        "old.tfrecord": b"old",
        damaged: b"[",
    }.items():
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        (output / name).write_bytes(data)
    before = tree(staging.output)
    with pytest.raises(InputError, match=damaged):
        prepare_output([], metadata=[], staging=staging)
    assert tree(staging.output) == before


@pytest.mark.parametrize("content", [None, b"dat", b"data and more"])
def test_a_file_that_was_changed_after_its_move_is_found(
    content: bytes | None, staging: Staging
) -> None:
    files = [stage(staging, name) for name in ("a", "b")]
    for file in files:
        move_into_place(file, staging=staging)
    check_in_place(files, staging=staging)
    path = Path(staging.output, "b")
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=f"{path}: was changed while the dataset was committed"):
        check_in_place(files, staging=staging)


def test_a_finished_shards_record_is_kept_however_often(staging: Staging) -> None:
    key = "a" * 64
    record = Path(staging.output, "runs", ".shards", f"{key}.json")
    # Staging is cleared: the commit is over, and the record where it belongs.
    keep_record(key, staging=staging)
    assert not record.exists()
    staging.finish_shard(msgspec.structs.replace(shard(staging), records=3), shard_key=key)
    for _ in range(2):
        keep_record(key, staging=staging)
        assert json.loads(record.read_bytes())["record"]["data"]["path"] == "train.tfrecord"


def test_nothing_is_kept_of_a_shard_that_might_come_out_otherwise(staging: Staging) -> None:
    key = "a" * 64
    record = Path(staging.output, "runs", ".shards", f"{key}.json")
    for reason, is_kept in (
        (Reason.TRUNCATED, True),
        (Reason.IMAGE_UNREADABLE, False),
        (Reason.TRUNCATED, True),
        (Reason.CHANGED_SINCE_LISTING, False),
        (Reason.MASK_UNREADABLE, False),
    ):
        rejects = (msgspec.structs.replace(reject("a"), reason=reason),)
        result = msgspec.structs.replace(shard(staging), rejects=rejects)
        staging.finish_shard(result, shard_key=key)
        keep_record(key, staging=staging)
        # An older one of the same key goes, too.
        assert record.exists() == is_kept


def test_this_plans_own_unfinished_commit_of_other_input_is_removed(staging: Staging) -> None:
    one, two = stage(staging, "0-of-1"), stage(staging, "0-of-2")
    prepare_output([one], metadata=[], staging=staging)
    move_into_place(one, staging=staging)
    prepare_output([two], metadata=[], staging=staging)
    move_into_place(two, staging=staging)
    staging.clear()
    assert tree(staging.output) == ["0-of-2"]


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "./x"])
def test_a_commit_list_that_leads_out_of_the_output_is_refused(staging: Staging, path: str) -> None:
    other = Staging(output=staging.output, plan="other", run_id="run")
    other.write_commit([path])
    with pytest.raises(InputError, match="not below the dataset"):
        prepare_output([], metadata=[], staging=staging)


def test_what_is_not_ours_is_foreign(staging: Staging) -> None:
    output = Path(staging.output)
    (output / "runs").mkdir(parents=True)
    for name in ("a.txt", "x.tfrecord", "runs/1.json", "runs/20260102T030405.678901Z.json"):
        (output / name).write_bytes(b"")
    assert foreign_files(staging.output) == ["a.txt", "runs/1.json", "x.tfrecord"]
    (output / "manifest.json").write_bytes(manifest("x.tfrecord"))
    assert foreign_files(staging.output) == ["a.txt", "runs/1.json"]


def test_a_finished_shard_is_found_in_staging_and_in_place(staging: Staging) -> None:
    result = shard(staging)
    assert staging.find_shard(shard_key="k") is None
    staging.finish_shard(result, shard_key="k")
    found = staging.find_shard(shard_key="k")
    assert found == msgspec.structs.replace(result, resumed=True, key="k")
    for file in (result.data, result.index):
        move_into_place(file, staging=staging)
    assert staging.find_shard(shard_key="k") == found
    Path(staging.output, result.data.destination).write_bytes(b"DATA")
    assert staging.find_shard(shard_key="k") is None


def test_a_finished_shard_whose_file_is_cut_off_is_written_again(staging: Staging) -> None:
    result = shard(staging)
    staging.finish_shard(result, shard_key="k")
    Path(staging.uri(result.data.staged)).write_bytes(b"dat")
    assert staging.find_shard(shard_key="k") is None


def test_a_shard_key_changes_with_all_that_decides_bytes() -> None:
    def key(
        settings_digest: str = "a",
        split: str = "train",
        shard_index: int = 0,
        num_shards: int = 2,
        records: tuple[bytes, ...] = (b"ab", b"c"),
    ) -> str:
        return shard_key(
            settings_digest=settings_digest,
            split=split,
            shard_index=shard_index,
            num_shards=num_shards,
            records=records,
        )

    keys = [
        key(),
        key(settings_digest="b"),
        key(split="test"),
        key(shard_index=1),
        key(num_shards=3),
        key(records=(b"a", b"bc")),
        key(records=(b"c", b"ab")),
        key(records=(b"ab",)),
    ]
    assert len(set(keys)) == len(keys)


def test_no_rejects_leave_no_rejects_folder_in_the_outcome() -> None:
    splits = {"train": SplitOutcome(listed=1, examples=1, images=1)}
    outcome = judge(splits, max_ratio=0, rejects_root="/rejects")
    assert (outcome.status, outcome.rejects) == (Status.APPROVED, "")


def test_rejects_file_counts_are_what_the_gate_takes() -> None:
    file = StagedFile(staged="", destination="", size_bytes=0, crc32c="")
    rejects = RejectsFile(split="b", file=file, counts={"truncated": 1}, listed=1)
    splits = count_splits(
        splits=["a", "b"],
        census=Census(listing=ListingSummary(files={"a": 0, "b": 1})),
        shards=[],
        rejects=[rejects],
    )
    assert splits["a"] == SplitOutcome()
    assert splits["b"].reject_ratio == 1.0
