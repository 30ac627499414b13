"""Matches of rows, compared with brute force over all pairs."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.duplicates import near_duplicates
from shardbeam.transforms.duplicates.near_duplicates import (
    Groups,
    count_partitions,
    group_rows,
    match_rows,
    pack_rows,
    split_places,
)


class Row(NamedTuple):
    """The compared values of an index's row."""

    sha256: str
    labels: str = "0" * 16
    dhash: int | None = None
    key: str = ""
    classes: str = ""
    crops: Sequence[int] | None = None


ONES, FAR = 2**64 - 1, 0x0F0F0F0F0F0F0F0F


def digest(number: int) -> str:
    return f"{number:016x}" + "0" * 48


def make_index(rows: Sequence[Row]) -> pa.Table:
    return pa.table(
        {
            "key": [row.key or f"{number}.jpg" for number, row in enumerate(rows)],
            "source": ["source"] * len(rows),
            "sha256": [row.sha256 for row in rows],
            "labels": [row.labels for row in rows],
            "classes_digest": [row.classes for row in rows],
            "dhash": pa.array([row.dhash for row in rows], pa.uint64()),
            "crop_hashes": pa.array([row.crops for row in rows], pa.list_(pa.uint64())),
        }
    )


def find(*shards: Sequence[Row], near: int = 3, partitions: int = 1) -> tuple[Groups, int]:
    """Finds the groups of some shards of one split, and how many hashes were crowded."""
    packed: dict[tuple[int, int], list[bytes]] = defaultdict(list)
    for number, rows in enumerate(shards):
        index = make_index(rows)
        for key, part in pack_rows(
            index, split=0, shard=number, partitions=partitions, near=near > 0
        ):
            packed[key].append(part)
    # The order of arrival must not matter.
    matches = [
        match_rows(space, reversed(parts), near=near) for (space, _), parts in packed.items()
    ]
    groups = group_rows(match.links for match in reversed(matches))
    return groups, sum(match.crowded for match in matches)


def named(groups: Groups) -> list[list[tuple[int, int]]]:
    """Names the rows of each group by shard and number."""
    _, shards, rows = split_places(groups.places)
    found: list[list[tuple[int, int]]] = [[] for _ in groups.equal]
    for group, shard, row in zip(groups.groups, shards, rows, strict=True):
        found[group].append((int(shard), int(row)))
    return found


def find_by_hand(rows: Sequence[Row], *, near: int) -> list[tuple[int, ...]]:
    """Compares each with each; merges what is alike until nothing is."""
    sets = [{number} for number in range(len(rows))]
    for one, other in itertools.combinations(range(len(rows)), 2):
        a, b = rows[one], rows[other]
        is_alike = a.sha256 == b.sha256
        if near and a.dhash is not None and b.dhash is not None:
            is_alike |= (a.dhash ^ b.dhash).bit_count() <= near
        if is_alike:
            merged = sets[one] | sets[other]
            for number in merged:
                sets[number] = merged
    return sorted({tuple(sorted(each)) for each in sets if len(each) > 1})


# Few digests, and hashes that differ in a few bits, so that much is alike.
ROWS = st.lists(
    st.builds(
        Row,
        st.integers(1, 6).map(digest),
        st.sampled_from(["a" * 16, "b" * 16]),
        st.none()
        | st.lists(st.integers(0, 63), max_size=5).map(
            lambda bits: 0x1234_5678_9ABC_DEF0 ^ sum({1 << bit for bit in bits})
        ),
        st.just(""),
        st.sampled_from(["", "c" * 16, "d" * 16]),
        crops=st.none(),
    ),
    max_size=25,
)


@given(ROWS, st.integers(0, 3), st.integers(1, 4), st.integers(1, 7))
def test_all_that_is_alike_is_found(rows: list[Row], near: int, partitions: int, size: int) -> None:
    shards = [rows[start : start + size] for start in range(0, len(rows), size)]
    groups, crowded = find(*shards, near=near, partitions=partitions)
    flat = [[shard * size + row for shard, row in group] for group in named(groups)]
    assert [tuple(group) for group in flat] == find_by_hand(rows, near=near)
    assert crowded == 0
    for number, group in enumerate(flat):
        members = [rows[index] for index in group]
        by_file = defaultdict(set)
        for member in members:
            by_file[member.sha256].add(member.labels)
        assert groups.equal[number] == (len(by_file) == 1)
        assert groups.contradicts[number] == any(len(labels) > 1 for labels in by_file.values())
        assert groups.near_contradicts[number] == any(
            one.sha256 != other.sha256 and one.classes != other.classes
            for one, other in itertools.combinations(members, 2)
        )
        of_group = groups.telling[groups.groups == number]
        differs = groups.near_contradicts[number] or groups.contradicts[number]
        assert of_group.any() or not differs


@pytest.mark.parametrize("bits", list(itertools.combinations(range(0, 64, 9), 3)))
def test_any_three_bits_may_differ(bits: tuple[int, ...]) -> None:
    other = sum(1 << bit for bit in bits)
    groups, _ = find([Row(digest(1), dhash=0), Row(digest(2), dhash=other)], partitions=3)
    assert named(groups) == [[(0, 0), (0, 1)]]
    groups, _ = find([Row(digest(1), dhash=0), Row(digest(2), dhash=other)], near=2)
    assert named(groups) == []


def test_rows_of_one_image_count_once_and_those_without_one_never() -> None:
    groups, _ = find(
        [
            Row(digest(1), key="a.jpg", dhash=7),
            Row(digest(1), key="a.jpg", dhash=7),
            Row(digest(1), key="b.jpg", dhash=7),
            Row(digest(1), key="b.jpg", dhash=7),
            Row("", key="row"),
            Row("", key="other row"),
        ]
    )
    assert named(groups) == [[(0, 0), (0, 2)]]
    assert groups.equal.all()


def test_where_all_agree_in_a_band_not_all_pairs_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(near_duplicates, "COMPARED", 5)
    # Far from each other, but for the last two; the first band of all is 0.
    free = [bit for bit in range(64) if not near_duplicates.BANDS[0] >> bit & 1]
    random = np.random.default_rng(0)
    hashes = [sum(1 << free[bit] for bit in random.permutation(48)[:20]) for _ in range(30)]
    rows = [Row(digest(number + 1), dhash=value) for number, value in enumerate(hashes)]
    rows.append(Row(digest(99), dhash=hashes[-1] ^ 1 << free[0]))
    groups, crowded = find(rows)
    assert named(groups) == [[(0, 29), (0, 30)]]
    assert crowded == 31


def test_a_place_holds_split_shard_and_row() -> None:
    index = make_index([Row(digest(1))] * 2)
    packed = [
        part
        for split, shard in ((0, 0), (65_535, 2**20 - 1))
        for _, part in pack_rows(index, split=split, shard=shard, partitions=1, near=False)
    ]
    groups = group_rows([match_rows(0, packed, near=0).links])
    assert [numbers.tolist() for numbers in split_places(groups.places)] == [
        [0, 0, 65_535, 65_535],
        [0, 0, 2**20 - 1, 2**20 - 1],
        [0, 1, 0, 1],
    ]


@pytest.mark.parametrize(
    ("records", "partitions"), [(0, 1), (1, 1), (50_000, 1), (50_001, 2), (10**6, 20)]
)
def test_partitions(records: int, partitions: int) -> None:
    assert count_partitions(records) == partitions


@pytest.mark.parametrize(
    ("rows", "cropped"),
    [
        # A whole picture is like a crop of another one.
        ([(0, [ONES, FAR]), (ONES ^ 7, None)], {1}),
        ([(ONES ^ 7, [FAR]), (0, [FAR, ONES])], {0}),
        ([(0, [ONES]), (ONES ^ 15, None)], set()),
        ([(0, [ONES]), (ONES, None), (ONES ^ 1, None), (ONES, None)], {1, 2, 3}),
        # The crops of two pictures are alike.
        ([(0, [ONES]), (FAR, [ONES])], set()),
        # A picture is like its own crop, and like that of one that it is nearly equal to.
        ([(0, [1, 0]), (2, [1]), (ONES, None)], set()),
        ([(None, [ONES]), (ONES, None)], set()),
    ],
)
def test_cropped_copies(rows: list[tuple[int | None, list[int] | None]], cropped: set[int]) -> None:
    index = [
        Row(digest(number), dhash=value, crops=crops, classes=f"{number:016x}")
        for number, (value, crops) in enumerate(rows)
    ]
    for partitions in (1, 2):
        groups, _ = find(index, partitions=partitions)
        places = split_places(groups.places)[2]
        assert set(places[groups.cropped].tolist()) == cropped
        if cropped:
            assert len(groups.equal) == 1
            assert not groups.equal[0]
            assert not groups.contradicts.any()
        # Those of nearly equal pictures count.
        assert groups.near_contradicts.any() == (len(rows) > 2)
    assert not find(index, near=0)[0].places.size
