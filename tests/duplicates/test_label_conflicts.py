"""Equal and nearly equal pictures whose objects contradict each other."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardbeam.transforms.dataset.findings import SAME_PICTURE, UNEQUAL_OBJECTS
from shardbeam.transforms.dataset.index import INDEX_SCHEMA, IndexRow
from shardbeam.transforms.duplicates import label_conflicts as module
from shardbeam.transforms.duplicates.label_conflicts import (
    ClassCounts,
    PictureRows,
    find_conflicts,
    read_rows,
)
from tests.support.manifests import INDEX_ROW

# A picture: its group, its hash, its classes with their numbers of objects.
Picture: TypeAlias = tuple[int, int, ClassCounts]


def conflicts(pictures: Sequence[Picture], *, near: int = 3) -> Mapping[str, list[int]]:
    groups, values, classes = zip(*pictures, strict=True) if pictures else ((), (), ())
    rows = PictureRows(np.array(values, np.uint64), classes)
    found = find_conflicts(np.array(groups, np.intp), rows, near=near)
    return {kind: strengths.tolist() for kind, strengths in found.items()}


def test_only_neighbours_in_large_groups_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMPARED", 2)
    both = ((1, 1), (3, 1))
    pictures = [(0, 0, ((3, 1),)), (0, 1, both), (0, 2, both), (0, 3, ((2, 1),))]
    assert conflicts(pictures)[SAME_PICTURE] == [0, 63, 63, 63]


def compare_pairs(
    pictures: Sequence[Picture], *, near: int, compared: int
) -> Mapping[str, list[int]]:
    """Compares one pair after another, each with the next ones in order."""
    rows = sorted({picture for picture in pictures if picture[2]})
    strengths = {kind: dict.fromkeys(pictures, 0) for kind in (SAME_PICTURE, UNEQUAL_OBJECTS)}
    for one, other in itertools.combinations(range(len(rows)), 2):
        (group, value, classes), (second, near_value, others) = rows[one], rows[other]
        distance = (value ^ near_value).bit_count()
        if group != second or distance > near or other - one > compared:
            continue
        kind, strength = SAME_PICTURE, 64 - distance
        if dict(classes).keys() & dict(others).keys():
            first, last = Counter(dict(classes)), Counter(dict(others))
            common, most = (first & last).total(), (first | last).total()
            kind, strength = UNEQUAL_OBJECTS, round((most - common) / max(1, most) * 1_000_000)
        for each in (rows[one], rows[other]):
            strengths[kind][each] = max(strengths[kind][each], strength)
    return {kind: [of[picture] for picture in pictures] for kind, of in strengths.items()}


# The class of an image as a whole has no objects.
KINDS: tuple[ClassCounts, ...] = (
    *((), ((1, 0),), ((1, 1),), ((1, 2),), ((2, 3),), ((3, 40),), ((10**9, 1),)),
    *(((1, 0), (2, 40)), ((1, 2), (2, 1)), ((2, 1), (900, 70_000)), ((1, 1), (2, 1), (3, 1))),
)


@settings(max_examples=300)
@given(
    pictures=st.lists(
        st.tuples(
            st.integers(0, 1),
            st.sampled_from([0, 1, 2, 7, 15, 2**63, 2**64 - 1]),
            st.sampled_from(KINDS),
        ),
        max_size=12,
    ),
    near=st.integers(0, 3),
    compared=st.sampled_from([1, 2, 3, 1000]),
    at_once=st.sampled_from([1, 2, 5, 64]),
)
# The table's sum is 257, which one byte does not hold.
@example([(0, 0, ((1, 40), (2, 45))), (0, 1, ((1, 40), (2, 45)))], 1, 1000, 64)
def test_against_comparing_every_pair(
    pictures: list[Picture], near: int, compared: int, at_once: int
) -> None:
    """Tables of any number of rows give the same, and so do numbers of any size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "COMPARED", compared)
        patch.setattr(module, "_FEWEST_ROWS", at_once)
        patch.setattr(module, "_MOST_ROWS", at_once)
        result = conflicts(pictures, near=near)
    assert result == compare_pairs(pictures, near=near, compared=compared)


def test_time_of_equal_files_with_different_objects() -> None:
    """It grows with their number, and not much faster than if their objects were the same, too."""
    numbers = np.random.default_rng(0).poisson([5, 3, 2, 1, 1, 0.5, 0.3, 0.1], (6000, 8)).tolist()
    frames = [tuple((c, n) for c, n in enumerate(frame, 1) if n) for frame in numbers]
    assert len(set(frames)) > 4000

    def seconds(classes: Sequence[ClassCounts]) -> float:
        begun_s = time.process_time()
        conflicts([(0, 7, counts) for counts in classes])
        return time.process_time() - begun_s

    same = [frames[0]] * len(frames)
    # Comparing pair by pair, with a sort of their classes, takes some 400 times as long.
    assert not all(seconds(frames) > 100 * seconds(same) for _ in range(3))


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
