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
from shardbeam.readers.compare import pairs as pairs_module
from shardbeam.readers.compare.changes import ChangeKind, Difference, LabelChanges, SplitDifference
from shardbeam.readers.compare.difference import compare_datasets
from shardbeam.readers.open.stored_dataset import open_dataset
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.index import IndexRow, index_path
from shardbeam.transforms.dataset.manifest import encode_manifest
from shardbeam.transforms.duplicates.near_duplicates import BANDS
from tests.support.indexes import render_index
from tests.support.manifests import INDEX_ROW
from tests.support.screens import check_screen
from tests.support.tfrecords import make_example, write_tfrecord

SPLITS = ("train", "validation")


class Row(NamedTuple):
    """An example, as short as a test needs it."""

    key: str
    split: str = "train"
    image: int = 0
    labels: int = 0
    other: int = 0
    dhash: int | None = None
    size: tuple[int, int] = (40, 30)


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
        dhash=row.dhash,
        width=row.size[0],
        height=row.size[1],
    )


def trust_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets labels differ where their digests do, because there are no Examples to read."""
    differ = LabelChanges({}, {}, is_same=False, other_labels=True, other_values=True)
    monkeypatch.setattr(difference, "compare_labels", lambda images, **_: [differ] * len(images))


def compare(old: str, new: str, *, limit: int = 10) -> Difference:
    return compare_datasets(open_dataset(old), open_dataset(new), limit=limit).difference


ADDED, REMOVED, MOVED = ChangeKind.ADDED, ChangeKind.REMOVED, ChangeKind.MOVED
RENAMED = ChangeKind.RENAMED
IMAGE, LABELS, OTHER = ChangeKind.IMAGE, ChangeKind.LABELS, ChangeKind.OTHER

# {what has changed: the rows of both datasets}
SCENES: dict[str, tuple[list[Row], list[Row]]] = {
    "nothing": ([], []),
    "the order": ([Row("a"), Row("b")], [Row("b"), Row("a")]),
    "an image more": ([], [Row("a")]),
    "an image less": ([Row("a")], []),
    "an image's bytes": ([Row("a")], [Row("a", image=1)]),
    "its labels": ([Row("a")], [Row("a", labels=1)]),
    "other values": ([Row("a")], [Row("a", other=1)]),
    "its split, bytes and labels": ([Row("a")], [Row("a", "validation", image=1, labels=2)]),
    "one less, one more, one changed": (
        [Row("a", image=1), Row("b"), Row("é\n")],
        [Row("b"), Row("c", image=2), Row("é\n", other=2)],
    ),
    "nothing, with the same name in two splits": (
        [Row("a"), Row("a", "validation", 1)],
        [Row("a", "validation", 1), Row("a")],
    ),
    "one of two with the same name": (
        [Row("a"), Row("a", "validation", 1)],
        [Row("a", "validation", 2), Row("a")],
    ),
    "one less of two with the same name": ([Row("a"), Row("a", "validation", 1)], [Row("a")]),
    "the splits of two with the same name": (
        [Row("a"), Row("a", "validation", 1)],
        [Row("a", image=1), Row("a", "validation")],
    ),
    "the key, whatever else is in the Example": (
        [Row("a", image=1), Row("b", image=2)],
        [Row("c", image=1, other=1), Row("d", "validation", 2, labels=1)],
    ),
    "the key of one of two equal images: that with the same labels": (
        [Row("a", image=1), Row("b", image=1, labels=1)],
        [Row("c", image=1, labels=1)],
    ),
    "no key that both datasets have": (
        [Row("a", image=1)],
        [Row("a", image=2), Row("b", image=1)],
    ),
    "an object more, where each has an Example": (
        [Row("a", other=1), Row("a", other=2)],
        [Row("a", other=1), Row("a", other=3), Row("a", other=2)],
    ),
}


def test_changes(tmp_path: Path) -> None:
    shown = ""
    for number, (title, (old, new)) in enumerate(SCENES.items()):
        folder = tmp_path / str(number)
        found = compare(write_dataset(folder / "old", old), write_dataset(folder / "new", new))
        shown += f"--- {title}\n"
        for each in found.changes:
            what = ", ".join(each.kinds)
            shown += f"{each.key!r}: {what} ({each.old_split or '-'}, {each.new_split or '-'})\n"
        assert found.is_empty == (not found.changes)
        total = {
            name: sum(getattr(split, name) for split in found.splits.values())
            for name in SplitDifference.__struct_fields__
        }
        assert (total["old"], total["new"]) == (len(old), len(new))
        kinds = [kind for each in found.changes for kind in each.kinds]
        counted = (ADDED, REMOVED, RENAMED, IMAGE, LABELS, OTHER)
        assert [total[kind.value] for kind in counted] == [kinds.count(kind) for kind in counted]
        assert total["moved_in"] == total["moved_out"] == kinds.count(MOVED)
        changed = sum(REMOVED not in each.kinds for each in found.changes)
        assert total["unchanged"] == len(new) - changed
    check_screen("diff_changes", shown)


# Hashes that differ in many bits, and three bits.
_ONE, _TWO, _BITS = 0x0123456789ABCDEF, 0xFEDCBA9876543210, 0x8000000100000001


@pytest.mark.parametrize(
    ("old", "new", "matched", "ambiguous"),
    [
        ([Row("a", image=1, dhash=_ONE)], [Row("b", image=2, dhash=_ONE)], "ab", 0),
        # Resized, or turned upright, in another split, with other labels.
        (
            [Row("a", image=1, dhash=_ONE)],
            [Row("b", "validation", 2, 1, dhash=_ONE ^ _BITS, size=(15, 20))],
            "ab",
            0,
        ),
        ([Row("a", image=1, dhash=_ONE)], [Row("b", image=2, dhash=_ONE ^ _BITS ^ 2)], "", 0),
        ([Row("a", image=1, dhash=_ONE)], [Row("b", image=2, dhash=_ONE, size=(9, 9))], "", 1),
        ([Row("a", image=1)], [Row("b", image=2)], "", 0),
        ([Row("a", image=1, dhash=0)], [Row("b", image=2, dhash=0)], "ab", 0),
        # Two are as good, though one of them is nearer.
        (
            [Row("a", image=1, dhash=_ONE)],
            [Row("b", image=2, dhash=_ONE), Row("c", image=3, dhash=_ONE ^ 1)],
            "",
            1,
        ),
        (
            [Row("a", image=1, dhash=_ONE), Row("d", image=4, dhash=_ONE)],
            [Row("b", image=2, dhash=_ONE)],
            "",
            2,
        ),
        # An image that is in both datasets is near, too: a frame of the same video.
        (
            [Row("a", image=1, dhash=_ONE), Row("k", image=5, dhash=_ONE ^ 1)],
            [Row("b", image=2, dhash=_ONE), Row("k", image=5, dhash=_ONE ^ 1)],
            "",
            1,
        ),
        # An image that was removed, and is like one that is still there, has no other name.
        (
            [Row("a", image=1, dhash=_ONE), Row("k", image=5, dhash=_ONE)],
            [Row("b", image=2, dhash=_TWO), Row("k", image=5, dhash=_ONE)],
            "",
            0,
        ),
        # The same key, or the same bytes, come first.
        ([Row("a", image=1, dhash=_ONE)], [Row("a", image=2, dhash=_TWO)], "", 0),
        (
            [Row("a", image=1, dhash=_ONE), Row("c", image=3, dhash=_TWO)],
            [Row("b", image=1, dhash=_ONE), Row("d", image=4, dhash=_TWO)],
            "cd",
            0,
        ),
    ],
)
def test_images_that_were_renamed_and_encoded_again(
    tmp_path: Path, old: list[Row], new: list[Row], matched: str, ambiguous: int
) -> None:
    found = compare(write_dataset(tmp_path / "old", old), write_dataset(tmp_path / "new", new))
    pairs = [each for each in found.changes if ChangeKind.REENCODED in each.kinds]
    assert "".join(each.old_key + each.key for each in pairs) == matched
    assert not {RENAMED, IMAGE, OTHER} & {kind for each in pairs for kind in each.kinds}
    assert sum(split.reencoded for split in found.splits.values()) == len(pairs)
    assert found.notes == (
        ()
        if not ambiguous
        else (
            f"{ambiguous} removed image{'s' * (ambiguous > 1)} may be an added one, encoded again "
            "under another name: not matched, because several pictures are nearly the same",
        )
    )


@settings(max_examples=10)
@given(
    st.lists(st.integers(0, 7), max_size=12),
    st.lists(st.integers(0, 7), max_size=12),
    st.sampled_from([2, 100]),
)
def test_near_pictures_against_brute_force(
    tmp_path_factory: pytest.TempPathFactory, old: list[int], new: list[int], pairs: int
) -> None:
    # Neighbours are near each other; the others are not.
    hashes = [0b11 << 8 * (each // 2) << each % 2 for each in range(8)]
    hashes = [each * 0x0000000100000001 ^ 0xFF for each in hashes]
    olds = [Row(f"a{n}", image=1 + n, dhash=hashes[each]) for n, each in enumerate(old)]
    news = [Row(f"b{n}", image=101 + n, dhash=hashes[each]) for n, each in enumerate(new)]
    folder = tmp_path_factory.getbasetemp() / "near"
    paths = write_dataset(folder / "old", olds), write_dataset(folder / "new", news)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs_module, "_PAIRS", pairs)
        found = compare(*paths, limit=100)

    def near(one: Row, rows: Sequence[Row]) -> list[str]:
        return [row.key for row in rows if ((row.dhash or 0) ^ (one.dhash or 0)).bit_count() <= 3]

    expected = {
        (one.key, *near(one, news))
        for one in olds
        if len(near(one, news)) == 1
        and all(near(row, olds) == [one.key] for row in news if row.key in near(one, news))
    }
    assert expected == {
        (each.old_key, each.key) for each in found.changes if ChangeKind.REENCODED in each.kinds
    }


def test_too_many_pictures_are_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hash that agrees in a band with too many others is not matched at all."""
    old = [Row("a", image=1, dhash=_ONE)]
    # Four bits of one band differ, so that the other bands agree.
    bits = [1 << bit for bit in range(64) if BANDS[0] >> bit & 1]
    new = [Row(f"b{n}", image=2 + n, dhash=_ONE ^ sum(bits[4 * n : 4 * n + 4])) for n in range(3)]
    paths = (
        write_dataset(tmp_path / "old", old),
        write_dataset(tmp_path / "new", [*new, Row("c", image=9, dhash=_ONE)]),
    )
    for most, number in ((1000, 1), (1, 0)):
        monkeypatch.setattr(pairs_module, "COMPARED", most)
        assert sum(each.reencoded for each in compare(*paths).splits.values()) == number


rows = st.builds(
    Row,
    key=st.sampled_from("abcdefgh"),
    split=st.sampled_from(SPLITS),
    image=st.integers(1, 2),
    labels=st.integers(0, 1),
    other=st.integers(0, 1),
    dhash=st.none(),
    size=st.just((40, 30)),
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


def test_images_that_differ_are_located(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trust_digests(monkeypatch)
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
    trust_digests(monkeypatch)
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
