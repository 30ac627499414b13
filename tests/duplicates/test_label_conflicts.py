"""Equal and nearly equal pictures whose objects contradict each other."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.dataset.findings import SAME_PICTURE, UNEQUAL_OBJECTS
from shardbeam.transforms.dataset.index import INDEX_SCHEMA, IndexRow
from shardbeam.transforms.duplicates import duplicates as module
from shardbeam.transforms.duplicates import near_duplicates
from shardbeam.transforms.duplicates.duplicates import (
    PictureRows,
    find_conflicts,
    read_rows,
)
from tests.support.manifests import INDEX_ROW


def find(*pictures: tuple[int, int, tuple[int, ...]], near: int = 3) -> list[int]:
    """Returns the strengths of pictures that are given as `(group, hash, classes of objects)`."""
    return conflicts(*pictures, near=near)[SAME_PICTURE]


def conflicts(
    *pictures: tuple[int, int, tuple[int, ...]], near: int = 3
) -> Mapping[str, list[int]]:
    groups, values, classes = zip(*pictures, strict=True) if pictures else ((), (), ())
    rows = PictureRows(
        np.array(values, np.uint64), [tuple(sorted(Counter(each).items())) for each in classes]
    )
    found = find_conflicts(np.array(groups, np.intp), rows, near=near)
    return {kind: strengths.tolist() for kind, strengths in found.items()}


def test_pictures_of_other_classes() -> None:
    assert find((0, 0xFF, (1,)), (0, 0xFE, (2, 3))) == [63, 63]
    assert find((0, 0xFF, (1,)), (0, 0xFF, (2,)), near=0) == [64, 64]


def test_one_class_in_common_is_enough() -> None:
    assert find((0, 0xFF, (1, 2)), (0, 0xFE, (2, 3))) == [0, 0]


def test_other_numbers_of_objects() -> None:
    found = conflicts((0, 1, (1,) * 18 + (2,)), (0, 1, (2,) * 18 + (1,)), (0, 3, (1, 1, 3)))
    # 34 of 36; 3 of 20, and 20 of 21 objects have no counterpart.
    assert found[UNEQUAL_OBJECTS] == [944_444, 952_381, 952_381]
    assert found[SAME_PICTURE] == [0, 0, 0]
    assert not any(conflicts((0, 1, (1, 2)), (0, 2, (2, 1)))[UNEQUAL_OBJECTS])


def test_pictures_without_objects_are_not_compared() -> None:
    assert find((0, 0xFF, ()), (0, 0xFF, (1,))) == [0, 0]
    assert find() == []


def test_only_pictures_that_are_near_each_other_are_compared() -> None:
    """The pictures between two that differ put them in one group."""
    assert find((0, 0b000, (1,)), (0, 0b111, (1, 2)), (0, 0b111111, (2,))) == [0, 0, 0]
    assert find((0, 0b000, (1,)), (0, 0b11, (1,)), (0, 0b1111, (2,))) == [0, 62, 62]
    assert find((0, 0, (1,)), (1, 0, (2,))) == [0, 0]


def test_one_wrong_label_among_many() -> None:
    assert find(*[(0, 5, (1,))] * 3, (0, 4, (2,))) == [63] * 4


def test_only_neighbours_in_large_groups_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_duplicates, "COMPARED", 2)
    pictures = [(0, 0, (3,)), (0, 1, (1, 3)), (0, 2, (1, 3)), (0, 3, (2,))]
    assert find(*pictures) == [0, 63, 63, 63]


def test_memory_is_limited_and_the_result_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = [(0, number, tuple(range(number % 5, 7))) for number in range(20)]
    expected = conflicts(*pictures, near=64)
    assert any(expected[UNEQUAL_OBJECTS])
    monkeypatch.setattr(module, "_BLOCK", 30)
    assert conflicts(*pictures, near=64) == expected


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from([0, 1, 2, 7, 15, 2**63, 2**64 - 1]),
            st.sampled_from(
                [(), (1,), (2,), (1, 2), (1, 1, 2), (1, 1, 1), (900,), (2, 900), (10**9,)]
            ),
        ),
        max_size=12,
    ),
    st.integers(0, 3),
)
def test_against_comparing_every_pair(
    pictures: list[tuple[int, int, tuple[int, ...]]], near: int
) -> None:
    same, unequal = ([0] * len(pictures) for _ in range(2))
    for one, other in itertools.permutations(range(len(pictures)), 2):
        (group, value, classes), (second, near_value, others) = pictures[one], pictures[other]
        distance = (value ^ near_value).bit_count()
        if not (group == second and distance <= near and classes and others):
            continue
        if set(classes) & set(others):
            fewer, more = Counter(classes) & Counter(others), Counter(classes) | Counter(others)
            unequal[one] = max(unequal[one], round((1 - fewer.total() / more.total()) * 1_000_000))
        else:
            same[one] = max(same[one], 64 - distance)
    assert conflicts(*pictures, near=near) == {SAME_PICTURE: same, UNEQUAL_OBJECTS: unequal}


def index(*rows: IndexRow) -> pa.Table:
    columns = {name: [getattr(row, name) for row in rows] for name in module.PICTURE_COLUMNS}
    schema = pa.schema([INDEX_SCHEMA.field(name) for name in module.PICTURE_COLUMNS])
    return pa.table(columns, schema=schema)


def row(key: str, *, classes: tuple[int, ...] | None, dhash: int | None = 7) -> IndexRow:
    objects = len(classes or ())
    return msgspec.structs.replace(
        INDEX_ROW,
        key=key,
        classes=classes,
        class_objects=classes and [2 * each for each in classes],
        objects=objects,
        dhash=dhash,
        sha256="f" * 64,
    )


def test_an_image_of_several_rows() -> None:
    """With an Example for each object, in a part of a table."""
    table = index(
        row("z", classes=(9,)),
        row("a", classes=(3,)),
        row("a", classes=(1,)),
        row("b", classes=(2,)),
        row("c", classes=(4,)),
        row("c", classes=(4,)),
    ).slice(1)
    found = read_rows(table, np.array([0, 2, 3]), near=3)
    assert found.classes == [((1, 2), (3, 6)), ((2, 4),), ((4, 16),)]
    assert found.values.tolist() == [7, 7, 7]


def test_classes_of_images_without_objects_do_not_count() -> None:
    """A label of the image is compared as a near contradiction."""
    labelled = msgspec.structs.replace(row("a", classes=(1,)), objects=0)
    table = index(labelled, row("b", classes=None), row("c", classes=(5,), dhash=None))
    found = read_rows(table, np.array([0, 1, 2]), near=3)
    assert found.classes == [(), (), ((5, 10),)]
    assert found.values.tolist() == [7, 7, 2**64 - 1]
    assert read_rows(table, np.array([0]), near=0).values.tolist() == [2**64 - 1]


def test_an_older_index() -> None:
    table = index(row("a", classes=(1,))).drop_columns(["class_objects"])
    assert read_rows(table, np.array([0]), near=3).classes == [((1, 0),)]
    table = table.drop_columns(["classes"])
    assert read_rows(table, np.array([0]), near=3).classes == [()]
