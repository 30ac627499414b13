"""The report of duplicates, and the file that lists them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyarrow import parquet

from shardbeam.configs.schema import DuplicatesConfig
from shardbeam.transforms.commit.gate import decide_by_duplicates
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.dataset_files import describe_data
from shardbeam.transforms.dataset.index import IndexRow, index_path
from shardbeam.transforms.dataset.outcome import DuplicateCounts, Outcome, Status
from shardbeam.transforms.dataset.shard_result import ShardResult
from shardbeam.transforms.duplicates import duplicates as module
from shardbeam.transforms.duplicates.duplicates import (
    DUPLICATES,
    SCHEMA,
    Duplicates,
    pack_shard,
    report_duplicates,
)
from shardbeam.transforms.duplicates.near_duplicates import match_rows
from shardbeam.transforms.staging.staging import Staging
from tests.support.indexes import render_index
from tests.support.manifests import INDEX_ROW, make_shard_result

SPLITS = ("train", "validation")
# Hashes of pictures that are not alike.
HASHES = [0x0123456789ABCDEF, 0xFEDCBA9876543210, 0x0F0F33335555AAAA, None]


class Dataset:
    """Shards in staging, of which the indexes are there and nothing else."""

    def __init__(self, folder: Path) -> None:
        self.staging = Staging(output=str(folder), plan="plan", run_id="run")
        self.shards: list[ShardResult] = []

    def add(self, split: str, rows: Sequence[tuple[Any, ...]]) -> ShardResult:
        """Adds a shard of `(key, number of its file, labels, hash)`, and perhaps classes.

        These are the image's classes, and ids of the classes of its objects with their numbers.
        """
        index = sum(shard.split == split for shard in self.shards)
        path = index_path(f"{split}-{index}")
        file = Path(self.staging.uri("staged", path))
        file.parent.mkdir(parents=True, exist_ok=True)
        data = render_index([self._row(split, index, *row) for row in rows])
        file.write_bytes(data)
        shard = make_shard_result(
            describe_data(f"{split}-{index}", b""),
            describe_data(path, data),
            split=split,
            shard_index=index,
            examples=len(rows),
            staged="staged",
        )
        shard = msgspec.structs.replace(shard, objects=sum(len(row) > 5 for row in rows))
        self.shards.append(shard)
        return shard

    def _row(
        self,
        split: str,
        shard: int,
        key: str,
        file: int,
        labels: str,
        dhash: int | None,
        classes: str = "",
        ids: Sequence[int] = (),
        counts: Sequence[int] = (),
    ) -> IndexRow:
        return msgspec.structs.replace(
            INDEX_ROW,
            key=key,
            source=split,
            split=split,
            shard=shard,
            sha256=f"{file:064x}"[::-1],
            labels=labels * 16,
            dhash=dhash,
            classes_digest=classes * 16,
            classes=ids,
            objects=len(ids),
            class_objects=counts or [1] * len(ids),
        )

    def report(self, *, near: int = 3) -> Duplicates:
        packed: dict[tuple[int, int], list[bytes]] = {}
        for shard in self.shards:
            for key, rows in pack_shard(
                shard, splits=SPLITS, partitions=2, near=near > 0, staging=self.staging
            ):
                packed.setdefault(key, []).append(rows)
        return report_duplicates(
            self.shards,
            [match_rows(space, rows, near=near) for (space, _), rows in packed.items()],
            splits=SPLITS,
            near=near,
            staging=self.staging,
        )

    def rows(self, found: Duplicates, *columns: str) -> list[tuple[Any, ...]]:
        """Some columns of the file, in staging."""
        data = Path(self.staging.uri(found.staged, DUPLICATES)).read_bytes()
        table = parquet.read_table(io.BytesIO(data))
        assert table.schema == SCHEMA
        return [tuple(row[column] for column in columns) for row in table.to_pylist()]


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return Dataset(tmp_path)


def test_nothing_twice(dataset: Dataset) -> None:
    dataset.add("train", [("a", 1, "a", HASHES[0]), ("b", 2, "a", HASHES[1])])
    dataset.add("train", [])
    dataset.add("validation", [("c", 3, "a", None), ("d", 4, "a", None)])
    found = dataset.report()
    assert found == Duplicates(counts=DuplicateCounts(near=3))
    assert not Path(dataset.staging.uri(dataset.staging.run_folder)).exists()


def test_groups_leaks_and_contradictions(dataset: Dataset) -> None:
    dataset.add(
        "validation",
        [("v0", 3, "b", HASHES[2]), ("v1", 9, "a", HASHES[0]), ("v2\nx", 5, "a", None)],
    )
    dataset.add("train", [("t0", 1, "a", 0xFF), ("t1", 2, "a", 0xFF ^ 0b111 << 40)])
    dataset.add(
        "train",
        [("t2", 3, "a", HASHES[2]), ("t3", 4, "a", 0xFF ^ 0b11 << 50), ("t4", 5, "a", None)],
    )
    found = dataset.report()
    assert found.counts == DuplicateCounts(
        groups=3,
        images=7,
        equal=2,
        leaks=2,
        leaking={"train": 2, "validation": 2},
        contradictions=1,
        near=3,
    )
    columns = ("group", "split", "shard", "row", "source", "key", "keep", "distance")
    assert dataset.rows(found, *columns) == [
        (0, "train", 0, 0, "train", "t0", True, 0),
        (0, "train", 0, 1, "train", "t1", False, 3),
        (0, "train", 1, 1, "train", "t3", False, 2),
        (1, "train", 1, 0, "train", "t2", True, 0),
        (1, "validation", 0, 0, "validation", "v0", False, 0),
        (2, "train", 1, 2, "train", "t4", True, None),
        (2, "validation", 0, 2, "validation", "v2\nx", False, None),
    ]
    assert dataset.rows(found, "leak", "contradiction") == [
        *[(False, False)] * 3,
        *[(True, True)] * 2,
        *[(True, False)] * 2,
    ]
    assert found.leaks == ("t2 (train) and v0 (validation)", r"t4 (train) and v2\nx (validation)")
    assert found.contradictions == ("t2 (train) and v0 (validation)",)


def test_nearly_equal_pictures_of_other_objects_are_no_contradictions(dataset: Dataset) -> None:
    dataset.add("train", [("a", 1, "a", HASHES[0]), ("b", 2, "b", HASHES[0])])
    dataset.add("validation", [("c", 3, "c", HASHES[0])])
    found = dataset.report()
    assert found.counts == DuplicateCounts(
        groups=1, images=3, leaks=1, leaking={"train": 2, "validation": 1}, near=3
    )
    assert found.leaks == ("a (train) and, nearly the same, c (validation), and 1 more",)
    assert dataset.report(near=0).counts == DuplicateCounts()


@pytest.mark.parametrize(
    ("rows", "contradictions", "near_contradictions"),
    [
        # (key, file, labels, hash, classes)
        ([("a", 1, "a", 0xFF, "a"), ("b", 2, "b", 0xFE, "b")], (), ("a (train) and b (train)",)),
        ([("a", 1, "a", 0xFF, "a"), ("b", 2, "b", 0xFE, "a")], (), ()),
        # A picture of no class is not of the same class.
        ([("a", 1, "a", 0xFF, "a"), ("b", 2, "b", 0xFE, "")], (), ("a (train) and b (train)",)),
        ([("a", 1, "a", 0xFF, "a"), ("b", 1, "b", 0xFF, "b")], ("a (train) and b (train)",), ()),
        # By way of a third picture.
        (
            [("a", 1, "a", 0xFF, "a"), ("b", 2, "a", 0x1FC, "a"), ("c", 3, "c", 0x7F8, "c")],
            (),
            ("a (train) and c (train), and 1 more",),
        ),
        # The same file differs, and both are near a third one.
        (
            [("a", 1, "a", 0xFF, "a"), ("b", 1, "b", 0xFF, "b"), ("c", 2, "a", 0xFE, "a")],
            ("a (train) and b (train), and 1 more",),
            ("b (train) and c (train), and 1 more",),
        ),
    ],
)
def test_nearly_equal_pictures_of_other_classes(
    rows: list[tuple[Any, ...]],
    contradictions: tuple[str, ...],
    near_contradictions: tuple[str, ...],
    dataset: Dataset,
) -> None:
    dataset.add("train", rows)
    found = dataset.report()
    assert found.contradictions == contradictions
    assert found.near_contradictions == near_contradictions
    assert found.counts == DuplicateCounts(
        groups=1,
        images=len(rows),
        equal=int(not near_contradictions and bool(contradictions)),
        contradictions=len(contradictions),
        near_contradictions=len(near_contradictions),
        near=3,
    )
    flags = set(dataset.rows(found, "contradiction", "near_contradiction"))
    assert flags == {(bool(contradictions), bool(near_contradictions))}
    assert dataset.rows(found, "classes_digest") == [(row[4] * 16,) for row in rows]
    assert dataset.report(near=0).near_contradictions == ()


def test_of_a_large_group_those_that_contradict_are_listed(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_OF_GROUP", 3)
    rows = [(f"t{number}", 1, "a", 0xFF, "a") for number in range(9)]
    rows[6] = ("t6", 1, "b", 0xFF, "b")
    rows[8] = ("t8", 8, "c", 0xFE, "c")
    dataset.add("train", rows)
    found = dataset.report()
    assert dataset.rows(found, "key", "keep") == [("t0", True), ("t6", False), ("t8", False)]
    assert found.contradictions == ("t0 (train) and t6 (train), and 7 more",)
    assert found.near_contradictions == ("t0 (train) and t8 (train), and 7 more",)


def test_the_same_picture_with_other_objects(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = [("x", 9, "f", None), ("y", 9, "f", None)]
    dataset.add("train", [*usual, ("a", 1, "a", 0xFF, "", (1, 2)), ("b", 2, "b", 0xFE, "", (3,))])
    dataset.add("train", [("c", 3, "c", 0xFF, "", (2,)), ("d", 4, "d", HASHES[2], "", (4,))])
    dataset.add("validation", [("v", 4, "d", HASHES[2], "", (5,)), ("w", 5, "d", None, "", (6,))])
    found = dataset.report()
    assert found.counts.same_pictures == {"train": 4, "validation": 1}
    rows = [("a", 63), ("b", 63), ("c", 63), ("d", 64), ("v", 64)]
    columns = "key", "same_picture"
    assert dataset.rows(found, *columns) == [("x", None), ("y", None), *rows]
    assert dataset.report(near=0).counts.same_pictures == {"train": 1, "validation": 1}

    # If there is no room for all, these go before others.
    monkeypatch.setattr(module, "MOST_ROWS", 3)
    assert dataset.rows(dataset.report(), *columns) == rows[:3]


def test_the_same_picture_with_other_numbers_of_objects(dataset: Dataset) -> None:
    dataset.add("train", [("a", 1, "a", 0xFF, "", (1, 2), (18, 1)), ("b", 5, "b", None)])
    dataset.add("validation", [("c", 2, "b", 0xFE, "", (1, 2), (1, 18))])
    dataset.add("validation", [("d", 3, "b", 0xFE, "", (1, 2), (18, 2))])
    found = dataset.report()
    assert found.counts.unequal_objects == {"train": 1, "validation": 2}
    assert found.counts.same_pictures == {}
    columns = "key", "unequal_objects"
    # 17 of each class against 17 + 16: 33 of 36.
    assert dataset.rows(found, *columns) == [("a", 944_444), ("c", 944_444), ("d", 916_667)]


def test_the_same_file_is_named_before_one_that_is_nearly_the_same(dataset: Dataset) -> None:
    dataset.add("train", [("a", 1, "a", HASHES[0]), ("b", 2, "a", HASHES[0])])
    dataset.add("validation", [("c", 3, "a", HASHES[0]), ("d", 2, "a", HASHES[0])])
    assert dataset.report().leaks == ("b (train) and d (validation), and 2 more",)


def test_very_large_groups_are_cut_in_each_split(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_OF_GROUP", 2)
    dataset.add("train", [(f"t{number}", 1, "a", None) for number in range(9)])
    dataset.add("validation", [(f"v{number}", 1, "a", None) for number in range(4)])
    found = dataset.report()
    assert found.counts == DuplicateCounts(
        groups=1,
        images=13,
        equal=1,
        leaks=1,
        leaking={"train": 9, "validation": 4},
        near=3,
        unlisted=9,
    )
    assert dataset.rows(found, "key") == [("t0",), ("t1",), ("v0",), ("v1",)]


def test_of_very_many_groups_those_that_do_harm_are_listed(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_ROWS", 4)
    rows = [(f"t{number}", number // 2, "a", None) for number in range(8)]
    rows[5] = ("t5", 2, "b", None)
    dataset.add("train", rows)
    dataset.add("validation", [("v", 3, "a", None)])
    found = dataset.report()
    assert found.counts == DuplicateCounts(
        groups=4,
        images=9,
        equal=4,
        leaks=1,
        leaking={"train": 2, "validation": 1},
        contradictions=1,
        near=3,
        unlisted=5,
    )
    assert dataset.rows(found, "group", "key") == [(2, "t4"), (2, "t5"), (3, "t6"), (3, "t7")]
    assert found.contradictions == ("t4 (train) and t5 (train)",)


def test_an_index_that_is_in_place_already(dataset: Dataset) -> None:
    shard = dataset.add("train", [("a", 1, "a", None), ("b", 1, "a", None)])
    place = Path(dataset.staging.output) / shard.index.path
    place.parent.mkdir()
    Path(dataset.staging.uri("staged", shard.index.path)).rename(place)
    assert dataset.report().counts.groups == 1
    place.unlink()
    with pytest.raises(InputError, match="is gone; was it deleted"):
        dataset.report()


def test_an_index_that_another_run_has_replaced(dataset: Dataset) -> None:
    shard = dataset.add("train", [("a", 1, "a", HASHES[0]), ("b", 1, "a", HASHES[0])])
    staged = Path(dataset.staging.uri("staged", shard.index.path))
    place = Path(dataset.staging.output, shard.index.path)
    place.parent.mkdir()
    staged.rename(place)
    place.write_bytes(render_index([msgspec.structs.replace(INDEX_ROW, split="train", shard=0)]))

    with pytest.raises(InputError, match="is another file than this run has written"):
        dataset.report()


def test_the_file_is_the_same_in_whatever_order_shards_come(dataset: Dataset) -> None:
    dataset.add("train", [("a", 1, "a", HASHES[0]), ("b", 2, "b", HASHES[1])])
    dataset.add("train", [("c", 2, "b", HASHES[1]), ("d", 3, "b", HASHES[0])])
    found = dataset.report()
    dataset.shards.reverse()
    assert dataset.report() == found


# The gate

FOUND = Duplicates(
    counts=DuplicateCounts(
        groups=4, images=8, leaks=1, contradictions=2, near_contradictions=1, near=3
    ),
    leaks=("a (train) and b (test)",),
    contradictions=("c (train) and d (train)", "e (train) and f (train)"),
    near_contradictions=("g (train) and h (test)",),
)
LEAKS = "1 picture is in several splits, such as a (train) and b (test)"
CONTRADICTIONS = (
    "2 groups of equal files have different labels, such as c (train) and d (train); "
    "e (train) and f (train)"
)
NEAR_CONTRADICTIONS = (
    "1 group of nearly equal pictures has different classes, such as g (train) and h (test)"
)


def test_leaks_as_shares_of_the_smaller_splits() -> None:
    counts = DuplicateCounts(leaks=65, leaking={"test": 12, "train": 70, "validation": 65})
    images = {"train": 4000, "validation": 125, "test": 100}
    assert counts.describe_leaks(images) == (
        "52.0% of validation (65 of 125 pictures) and 12.0% of test (12 of 100 pictures) are in "
        "another split, too"
    )
    one = DuplicateCounts(leaks=1, leaking={"train": 1, "test": 1})
    assert one.describe_leaks(images) == "1.0% of test (1 of 100 pictures) is in another split, too"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (DuplicatesConfig(), []),
        (DuplicatesConfig(leaks="refuse"), [LEAKS]),
        (DuplicatesConfig(contradictions="refuse"), [CONTRADICTIONS]),
        (DuplicatesConfig(near_contradictions="refuse"), [NEAR_CONTRADICTIONS]),
        (
            DuplicatesConfig(leaks="refuse", contradictions="refuse"),
            [LEAKS, CONTRADICTIONS],
        ),
    ],
)
def test_what_must_not_be_is_refused(settings: DuplicatesConfig, named: list[str]) -> None:
    approved = Outcome(status=Status.APPROVED, splits={})
    outcome = decide_by_duplicates(approved, FOUND, settings=settings, where="/staged")
    assert outcome.duplicates == FOUND.counts
    assert outcome.status is (Status.REFUSED if named else Status.APPROVED)
    lines = outcome.message.splitlines()
    assert lines[1:-2] == named
    assert not named or lines[-2] == "all of them: /staged"
    for key in ("leaks", "contradictions", "near_contradictions"):
        refuses = getattr(settings, key) == "refuse"
        assert (f"--set duplicates.{key}=warn" in outcome.message) == refuses
    nothing = Duplicates(counts=DuplicateCounts(groups=1, images=2))
    assert decide_by_duplicates(approved, nothing, settings=settings, where="").status is (
        Status.APPROVED
    )


def test_what_was_decided_before_stays() -> None:
    failed = Outcome(status=Status.FAILED, splits={}, message="the counts")
    settings = DuplicatesConfig(leaks="refuse")
    outcome = decide_by_duplicates(failed, FOUND, settings=settings, where="")
    assert (outcome.status, outcome.message) == (Status.FAILED, "the counts")
