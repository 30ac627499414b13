"""Differences between two datasets by their indexes, in tables and against brute force."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from shardbeam.readers.compare import difference
from shardbeam.readers.compare.difference import (
    ChangeKind,
    Difference,
    SplitDifference,
    compare_datasets,
)
from shardbeam.readers.open.stored_dataset import open_dataset
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.index import IndexRow, index_path
from shardbeam.transforms.dataset.manifest import encode_manifest
from tests.support.indexes import render_index
from tests.support.manifests import INDEX_ROW
from tests.support.tfrecords import make_example, write_tfrecord

SPLITS = ("train", "validation")


class Row(NamedTuple):
    """An example, as short as a test needs it."""

    key: str
    split: str = "train"
    image: int = 0
    labels: int = 0
    other: int = 0


def write_dataset(
    folder: Path,
    rows: Iterable[Row],
    *,
    classes: Mapping[str, int] | None = None,
    splits: Sequence[str] = SPLITS,
    is_old: bool = False,
) -> str:
    """Writes what a comparison reads of a dataset: two shards of each split."""
    (folder / "index").mkdir(parents=True, exist_ok=True)
    by_split: dict[str, list[dict[str, object]]] = {}
    listed = list(rows)
    for split in splits:
        of_split = [row for row in listed if row.split == split]
        middle = len(of_split) // 2
        for number, part in enumerate((of_split[:middle], of_split[middle:])):
            path = f"d-{split}.tfrecord-{number:05}-of-00002"
            data = render_index([index_row(row) for row in part])
            target = folder / index_path(path)
            target.write_bytes(data)
            if is_old:
                parquet.write_table(parquet.read_table(target).select(range(11)), target)
            entry = {"path": path, "num_bytes": 0, "crc32c": "00000000", "examples": len(part)}
            by_split.setdefault(split, []).append(entry)
    manifest = {
        "shardbeam": "1",
        "config": {},
        "features": [],
        "files": [],
        "labels": classes or {},
        "splits": {
            **{split: {"outcome": {}, "shards": shards} for split, shards in by_split.items()},
            "": {"outcome": {}, "shards": []},
        },
    }
    (folder / "manifest.json").write_bytes(encode_manifest(manifest))
    (folder / "features.json").write_text("{}")
    info = {
        "name": "d",
        "splits": [{"name": split, "shardLengths": [0, 0]} for split in by_split],
    }
    (folder / "dataset_info.json").write_text(json.dumps(info))
    return str(folder)


def index_row(row: Row) -> IndexRow:
    record = repr((row.image, row.labels, row.other)).encode()
    return msgspec.structs.replace(
        INDEX_ROW,
        key=row.key,
        split=row.split,
        length=100 + row.image + row.labels + row.other,
        sha256=f"{row.image:064x}"[::-1],
        crc32c=zlib.crc32(record),
        labels=f"{row.labels:016x}",
    )


def compare(old: str, new: str, *, limit: int = 10) -> Difference:
    return compare_datasets(open_dataset(old), open_dataset(new), limit=limit).difference


ADDED, REMOVED, MOVED = ChangeKind.ADDED, ChangeKind.REMOVED, ChangeKind.MOVED
RENAMED = ChangeKind.RENAMED
IMAGE, LABELS, OTHER = ChangeKind.IMAGE, ChangeKind.LABELS, ChangeKind.OTHER
# Key, kinds, old and new split.
_Change = tuple[str, tuple[ChangeKind, ...], str, str]


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ([], [], []),
        ([Row("a"), Row("b")], [Row("b"), Row("a")], []),
        ([], [Row("a")], [("a", (ADDED,), "", "train")]),
        ([Row("a")], [], [("a", (REMOVED,), "train", "")]),
        ([Row("a")], [Row("a", image=1)], [("a", (IMAGE,), "train", "train")]),
        ([Row("a")], [Row("a", labels=1)], [("a", (LABELS,), "train", "train")]),
        ([Row("a")], [Row("a", other=1)], [("a", (OTHER,), "train", "train")]),
        (
            [Row("a")],
            [Row("a", "validation", image=1, labels=2)],
            [("a", (MOVED, IMAGE, LABELS), "train", "validation")],
        ),
        (
            [Row("a", image=1), Row("b"), Row("é\n")],
            [Row("b"), Row("c", image=2), Row("é\n", other=2)],
            [
                ("a", (REMOVED,), "train", ""),
                ("c", (ADDED,), "", "train"),
                ("é\n", (OTHER,), "train", "train"),
            ],
        ),
        # The same name in the folders of two splits.
        ([Row("a"), Row("a", "validation", 1)], [Row("a", "validation", 1), Row("a")], []),
        (
            [Row("a"), Row("a", "validation", 1)],
            [Row("a", "validation", 2), Row("a")],
            [("a", (IMAGE,), "validation", "validation")],
        ),
        (
            [Row("a"), Row("a", "validation", 1)],
            [Row("a")],
            [("a", (REMOVED,), "validation", "")],
        ),
        (
            [Row("a"), Row("a", "validation", 1)],
            [Row("a", image=1), Row("a", "validation")],
            [
                ("a", (MOVED,), "validation", "train"),
                ("a", (MOVED,), "train", "validation"),
            ],
        ),
        # Another key and the same image, whatever else is in the Example.
        (
            [Row("a", image=1), Row("b", image=2)],
            [Row("c", image=1, other=1), Row("d", "validation", 2, labels=1)],
            [
                ("c", (RENAMED,), "train", "train"),
                ("d", (RENAMED, MOVED, LABELS), "train", "validation"),
            ],
        ),
        # If two have the same image, the one with the same labels was renamed.
        (
            [Row("a", image=1), Row("b", image=1, labels=1)],
            [Row("c", image=1, labels=1)],
            [("a", (REMOVED,), "train", ""), ("c", (RENAMED,), "train", "train")],
        ),
        # A key that both datasets have was not renamed.
        (
            [Row("a", image=1)],
            [Row("a", image=2), Row("b", image=1)],
            [("b", (ADDED,), "", "train"), ("a", (IMAGE,), "train", "train")],
        ),
        # An Example for each of an image's objects, and one object more.
        (
            [Row("a", other=1), Row("a", other=2)],
            [Row("a", other=1), Row("a", other=3), Row("a", other=2)],
            [("a", (ADDED,), "", "train")],
        ),
    ],
)
def test_changes(tmp_path: Path, old: list[Row], new: list[Row], changes: list[_Change]) -> None:
    found = compare(write_dataset(tmp_path / "old", old), write_dataset(tmp_path / "new", new))
    assert [
        (change.key, change.kinds, change.old_split, change.new_split) for change in found.changes
    ] == changes
    assert found.is_empty == (not changes)
    total = {
        name: sum(getattr(split, name) for split in found.splits.values())
        for name in SplitDifference.__struct_fields__
    }
    assert (total["old"], total["new"]) == (len(old), len(new))
    kinds = [kind for _, of_change, _, _ in changes for kind in of_change]
    counted = (ADDED, REMOVED, RENAMED, IMAGE, LABELS, OTHER)
    assert [total[kind.value] for kind in counted] == [kinds.count(kind) for kind in counted]
    assert total["moved_in"] == total["moved_out"] == kinds.count(MOVED)
    assert total["unchanged"] == len(new) - sum(REMOVED not in each[1] for each in changes)


rows = st.builds(
    Row,
    key=st.sampled_from("abcdefgh"),
    split=st.sampled_from(SPLITS),
    image=st.integers(1, 2),
    labels=st.integers(0, 1),
    other=st.integers(0, 1),
)


@settings(max_examples=20)
@given(
    old=st.lists(rows, unique_by=lambda row: row.key),
    new=st.lists(rows, unique_by=lambda row: row.key),
)
def test_keys_that_are_there_once_against_brute_force(
    tmp_path_factory: pytest.TempPathFactory, old: list[Row], new: list[Row]
) -> None:
    folder = tmp_path_factory.getbasetemp() / "brute"
    found = compare(
        write_dataset(folder / "old", old), write_dataset(folder / "new", new), limit=100
    )
    olds, news = ({row.key: row for row in each} for each in (old, new))
    expected = set()
    for key in olds.keys() & news.keys():
        one, other = olds[key], news[key]
        kinds = [MOVED] * (one.split != other.split)
        kinds += [IMAGE] * (one.image != other.image)
        kinds += [LABELS] * (one.labels != other.labels)
        kinds += [OTHER] * (one[2:4] == other[2:4] and one.other != other.other)
        if kinds:
            expected.add((key, tuple(kinds), one.split, other.split))
    lone = {ADDED, REMOVED, RENAMED}
    assert expected == {
        (each.key, each.kinds, each.old_split, each.new_split)
        for each in found.changes
        if lone.isdisjoint(each.kinds)
    }
    # As many examples as possible count as renamed, not as removed and added.
    left = Counter(olds[key].image for key in olds.keys() - news.keys())
    come = Counter(news[key].image for key in news.keys() - olds.keys())
    renamed = [each for each in found.changes if RENAMED in each.kinds]
    assert len(renamed) == (left & come).total()
    for each in renamed:
        assert olds[each.old_key].image == news[each.key].image
        assert each.old_key not in news
        assert each.key not in olds
    assert sum(each.kinds == (REMOVED,) for each in found.changes) == (left - come).total()
    assert sum(each.kinds == (ADDED,) for each in found.changes) == (come - left).total()


@settings(max_examples=20)
@given(old=st.lists(rows), new=st.lists(rows))
def test_the_counts_add_up(
    tmp_path_factory: pytest.TempPathFactory, old: list[Row], new: list[Row]
) -> None:
    folder = tmp_path_factory.getbasetemp() / "sums"
    paths = write_dataset(folder / "old", old), write_dataset(folder / "new", new)
    found = compare(*paths)
    for name, split in found.splits.items():
        assert split.old == sum(row.split == name for row in old)
        assert split.new == sum(row.split == name for row in new)
        assert split.new - split.added - split.moved_in == (
            split.old - split.removed - split.moved_out
        )
    # In both directions the same.
    back = compare(*reversed(paths))
    for name, split in found.splits.items():
        assert (split.added, split.unchanged) == (
            back.splits[name].removed,
            back.splits[name].unchanged,
        )


def test_the_first_changes_of_each_kind_are_named(tmp_path: Path) -> None:
    old = [Row(f"{number:03}") for number in range(100)]
    new = [row._replace(image=1) for row in old[:60]]
    new += [Row(f"x{n}", image=2) for n in range(9)]
    found = compare(
        write_dataset(tmp_path / "old", old), write_dataset(tmp_path / "new", new), limit=2
    )
    assert [(change.key, change.kinds) for change in found.changes] == [
        *((key, (REMOVED,)) for key in ("060", "061")),
        *((key, (ADDED,)) for key in ("x0", "x1")),
        *((key, (IMAGE,)) for key in ("000", "001")),
    ]
    assert found.splits["train"].removed == 40


def test_classes_and_splits_that_only_one_has(tmp_path: Path) -> None:
    old = write_dataset(
        tmp_path / "old", [Row("a")], classes={"cat": 1, "dog": 2, "cow": 3}, splits=["train"]
    )
    new = write_dataset(
        tmp_path / "new",
        [Row("b", "test")],
        classes={"cat": 1, "cow": 2, "ant": 3},
        splits=["test"],
    )
    found = compare(old, new)
    assert found.classes == {"ant": (None, 3), "cow": (3, 2), "dog": (2, None)}
    assert [(name, split.old, split.new) for name, split in found.splits.items()] == [
        ("train", 1, 0),
        ("test", 0, 1),
    ]
    assert not found.is_empty


def test_datasets_of_older_versions_are_compared_by_length(tmp_path: Path) -> None:
    old = [Row("a"), Row("b"), Row("c")]
    new = [Row("a", labels=1), Row("b", image=1), Row("c")]
    paths = [write_dataset(tmp_path / "old", old, is_old=True)]
    paths += [write_dataset(tmp_path / name, new, is_old=name == "x") for name in ("x", "y")]
    for path in paths[1:]:
        found = compare(paths[0], path)
        assert [(change.key, change.kinds) for change in found.changes] == [
            ("a", (OTHER,)),
            ("b", (IMAGE,)),
        ]
        assert [note[:39] for note in found.notes] == [
            f"the index of {each} is of an older version"[:39] for each in paths[:1]
        ] * (1 + path.endswith("x"))


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    good = write_dataset(tmp_path / "good", [Row("a"), Row("b")])
    file = write_tfrecord(tmp_path / "a.tfrecord", make_example({"x": 1}))
    for pair in ((good, str(file)), (str(file), good)):
        with pytest.raises(InputError, match=r"a\.tfrecord: not a dataset of Shardbeam: w"):
            compare(*pair)
    index = tmp_path / "good" / index_path("d-train.tfrecord-00001-of-00002")
    for data, problem in (
        (render_index([]), "has 0 rows for 1 examples"),
        (index.read_bytes()[:-9], "not a Parquet file"),
        (None, "the index of a shard is missing"),
    ):
        index.unlink() if data is None else index.write_bytes(data)
        with pytest.raises(InputError, match=f"{index}: {problem}"):
            compare(good, good)


def test_images_that_differ_are_located(tmp_path: Path) -> None:
    old = [Row("b", other=1), Row("a"), Row("c"), Row("d"), Row("e"), Row("f", image=5)]
    new = [Row("b"), Row("a", image=1), Row("c", labels=1), Row("d"), Row("g", image=5, labels=2)]
    found = compare_datasets(
        *(
            open_dataset(write_dataset(tmp_path / name, rows))
            for name, rows in (("old", old), ("new", new))
        ),
        limit=1,
        images=3,
    )
    # Labels first, then images; in the order of the new dataset.
    assert [
        (
            image.change.key,
            image.change.old_key,
            image.change.kinds,
            [(place.key, place.shard[-14:-9], place.number) for place in image.old],
            [(place.key, place.shard[-14:-9], place.number) for place in image.new],
        )
        for image in found.images
    ] == [
        ("c", "", (LABELS,), [("c", "00000", 3)], [("c", "00001", 3)]),
        ("g", "f", (RENAMED, LABELS), [("f", "00001", 6)], [("g", "00001", 5)]),
        ("a", "", (IMAGE,), [("a", "00000", 2)], [("a", "00000", 2)]),
    ]
    assert found.difference.differing == 4


def test_all_examples_of_an_image_are_located_if_each_object_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = [Row("a", labels=1), Row("b", labels=1, other=1), Row("b", labels=1, other=2)]
    new = [Row("a", labels=1), Row("b", labels=2, other=2), Row("b", labels=2, other=3)]
    paths = []
    for name, rows in (("old", old), ("new", [*new, Row("b", "validation", labels=1)])):
        paths.append(write_dataset(tmp_path / name, rows))
        manifest = json.loads((tmp_path / name / "manifest.json").read_bytes())
        del manifest["checksum"]
        manifest["config"] = {"example_per": "annotation"}
        (tmp_path / name / "manifest.json").write_bytes(encode_manifest(manifest))
    found = compare_datasets(*map(open_dataset, paths), limit=1, images=9)
    (image,) = found.images
    assert found.difference.differing == 1
    assert image.change.kinds == (LABELS,)
    assert [place.number for place in image.old] == [place.number for place in image.new] == [2, 3]
    assert image.too_many == 0
    # Of too many, only a pair is located.
    monkeypatch.setattr(difference, "_MOST_EXAMPLES", 1)
    (image,) = compare_datasets(*map(open_dataset, paths), limit=1, images=9).images
    assert ([place.number for place in image.old], image.too_many) == ([2], 2)
    assert [place.number for place in image.new] == [2]
