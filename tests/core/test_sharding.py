from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.core.counts import Count, count_all
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.sharding import (
    NO_SPLIT,
    Border,
    SplitAssignment,
    SplitCuts,
    SplitSample,
    bin_of,
    example_hash,
    find_borders,
    image_number,
    shard_count,
    shard_index,
    share_out,
)

KEYS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@given(KEYS, KEYS, st.integers())
def test_hash_depends_on_all_that_identifies_an_example(source: str, key: str, seed: int) -> None:
    one = example_hash(seed=seed, source=source, key=key)
    assert one == example_hash(seed=seed, source=source, key=key)
    assert one != example_hash(seed=seed + 1, source=source, key=key)
    assert one != example_hash(seed=seed, source=f"{source}x", key=key)
    assert one != example_hash(seed=seed, source=source, key=f"{key}x")
    assert one != example_hash(seed=seed, source=f"{source}{key[:1]}", key=key[1:]) or not key


@given(st.binary(min_size=16, max_size=16), st.integers(1, 200_000))
def test_shard_index_keeps_the_order_of_the_hashes(digest: bytes, num_shards: int) -> None:
    index = shard_index(digest, num_shards=num_shards)
    assert 0 <= index < num_shards
    following = min(int.from_bytes(digest, "big") + 1, 2**128 - 1).to_bytes(16, "big")
    assert shard_index(following, num_shards=num_shards) in (index, index + 1)


def test_shards_are_filled_evenly() -> None:
    counts = [0] * 8
    for number in range(8_000):
        digest = example_hash(seed=0, source="train", key=f"{number:06d}.jpg")
        counts[shard_index(digest, num_shards=8)] += 1
    # Binomial with mean 1,000 and standard deviation 30: five deviations to each side.
    assert min(counts) > 850
    assert max(counts) < 1150


@pytest.mark.parametrize(
    ("num_bytes", "num_examples", "expected"),
    [
        # ImageNet's train split: 137 GiB in 1,281,167 images.
        (147_102_630_912, 1_281_167, 981),
        # COCO train2017: 18 GB in 118,287 images.
        (19_000_000_000, 118_287, 127),
        (1, 1, 1),
        (0, 5, 1),
        (150_000_000, 10, 1),
        (150_000_001, 10, 2),
        # Never more shards than examples.
        (10**12, 3, 3),
    ],
)
def test_shard_count_at_real_sizes(num_bytes: int, num_examples: int, expected: int) -> None:
    count = shard_count(
        num_bytes=num_bytes, num_examples=num_examples, shard_size_bytes=150_000_000
    )
    assert count == expected


def test_named_splits_are_their_sources() -> None:
    splits = SplitAssignment(by_source={"train": "train", "val": "val"})
    assert splits.names == ("train", "val")
    assert splits.split_of(source="val", key="0001.jpg") == "val"


def test_fractions_are_kept_to() -> None:
    splits = SplitAssignment(by_source={}, fractions={"train": 0.8, "validation": 0.1, "test": 0.1})
    counts = dict.fromkeys(splits.names, 0)
    for number in range(10_000):
        counts[splits.split_of(source="s", key=f"{number}.jpg")] += 1
    assert counts["train"] == pytest.approx(8000, abs=200)
    assert counts["validation"] == pytest.approx(1000, abs=150)
    assert counts["test"] == pytest.approx(1000, abs=150)


@pytest.mark.parametrize(
    ("count", "fractions", "sizes"),
    [
        (100, (0.8, 0.2), [80, 20]),
        (100, (0.29, 0.71), [29, 71]),
        (10, (0.25, 0.25, 0.5), [3, 2, 5]),
        (3, (1 / 3, 1 / 3, 1 / 3), [1, 1, 1]),
        (1, (0.1, 0.9), [0, 1]),
        (0, (0.5, 0.5), [0, 0]),
        (5, (1.0,), [5]),
    ],
)
def test_numbers_are_shared_out(count: int, fractions: tuple[float, ...], sizes: list[int]) -> None:
    named = {f"s{index}": fraction for index, fraction in enumerate(fractions)}
    assert list(share_out(count, named, owed={}).values()) == sizes


def cut(
    splits: SplitAssignment, points: Mapping[str, Sequence[bytes]], images: Mapping[str, int]
) -> SplitCuts:
    """Finds where splits end as the steps of `JoinAnnotations` do."""
    bins: dict[str, dict[int, Count]] = {}
    for stratum, each in points.items():
        for point in each:
            bins.setdefault(stratum, {}).setdefault(bin_of(point), Count()).add(point)
    ranks = splits.rank_ends({stratum: len(points[stratum]) for stratum in bins})
    borders = {stratum: find_borders(each, ranks[stratum]) for stratum, each in bins.items()}
    ends = {(stratum, border.bin) for stratum in borders for border in borders[stratum]}
    kept = Counter(
        (stratum, point)
        for stratum, each in points.items()
        for point in each
        if (stratum, bin_of(point)) in ends
    )
    return splits.cut(kept, borders=borders, images=images)


def sort_and_cut(
    points: Mapping[str, Sequence[bytes]], fractions: Mapping[str, float]
) -> dict[str, tuple[int, ...]]:
    """Finds where splits end by sorting all points of each stratum."""
    ends = {}
    owed: dict[str, Fraction] = {}
    for stratum in sorted(points):
        ordered = [*sorted(points[stratum]), b"\xff" * 8]
        sizes = share_out(len(ordered) - 1, fractions, owed=owed)
        *ranks, _ = itertools.accumulate(sizes.values())
        ends[stratum] = tuple(int.from_bytes(ordered[rank], "big") for rank in ranks)
    return ends


@given(st.lists(st.binary(min_size=8, max_size=8), min_size=2))
def test_points_are_counted_in_4096_ranges_in_order(points: list[bytes]) -> None:
    """A worker holds the counts of all ranges in memory, however many points there are."""
    bins = [bin_of(point) for point in sorted(points)]
    assert bins == sorted(bins)
    assert (bin_of(bytes(8)), bin_of(b"\xff" * 8)) == (0, 4095)
    assert bin_of(b"\x80" + bytes(7)) == 2048


# Few bins, and few points in some of them: many are equal, some are all but equal.
POINTS = st.builds(
    lambda start, end: start + b"\x07" * 5 + end,
    st.sampled_from([b"\x00\x00", b"\x00\x0f", b"\x00\x10", b"\x80\x00", b"\xff\xff"]),
    st.sampled_from([b"\x00", b"\x01", b"\xff"]),
) | st.binary(min_size=8, max_size=8)
FRACTIONS = st.sampled_from(
    [(0.8, 0.2), (0.5, 0.25, 0.25), (0.1, 0.1, 0.8), (1.0,), (0.0001, 0.9998, 0.0001)]
)


@given(
    st.dictionaries(st.sampled_from("abcde"), st.lists(POINTS, min_size=1, max_size=40)), FRACTIONS
)
def test_splits_end_where_sorting_all_points_says(
    points: dict[str, list[bytes]], fractions: tuple[float, ...]
) -> None:
    named = {f"s{index}": fraction for index, fraction in enumerate(fractions)}
    splits = SplitAssignment(by_source={}, fractions=named, exact=True)
    assert cut(splits, points, {}).ends == sort_and_cut(points, named)


def test_a_point_that_a_runner_loses_is_noticed() -> None:
    splits = SplitAssignment(by_source={}, fractions={"a": 0.5, "b": 0.5}, exact=True)
    borders = {"": [Border(0, 1, count_all([bytes(8)] * 3))]}
    with pytest.raises(InputError, match="exact splits end: 3 were sent and 2 arrived"):
        splits.cut({("", bytes(8)): 2}, borders=borders, images={})


@given(
    st.lists(st.sampled_from(range(40)), max_size=80),
    st.sampled_from([(0.8, 0.2), (0.5, 0.25, 0.25), (0.1, 0.1, 0.8), (1.0,)]),
    st.booleans(),
)
def test_exact_splits(numbers: list[int], fractions: tuple[float, ...], grouped: bool) -> None:
    named = {f"s{index}": fraction for index, fraction in enumerate(fractions)}
    splits = SplitAssignment(
        by_source={}, fractions=named, exact=True, group_by="^(.*)_" if grouped else None
    )
    keys = [f"{number}_{index}" for index, number in enumerate(numbers)]
    assert {splits.split_of(source="s", key=key) for key in keys} <= {NO_SPLIT}
    points = [splits.point_of(source="s", key=key) for key in keys]

    done = msgspec.structs.replace(splits, cuts=cut(splits, {"": points}, {}))
    found = [done.split_of(source="s", key=key) for key in keys]

    sizes = share_out(len(keys), named, owed={})
    if not grouped:
        assert Counter(found) == Counter(sizes)
    ends = wanted = 0
    for split in named:
        ends, wanted = ends + found.count(split), wanted + sizes[split]
        assert 0 <= wanted - ends < max([1, *Counter(numbers).values()])
    assert (
        len({(number, split) for number, split in zip(numbers, found, strict=True)})
        == len(set(numbers))
        or not grouped
    )


@given(
    st.lists(st.integers(0, 30), max_size=40),
    st.sampled_from([(0.8, 0.2), (0.5, 0.25, 0.25), (0.1, 0.1, 0.8)]),
)
def test_strata_add_up_to_the_sizes_of_all(counts: list[int], fractions: tuple[float, ...]) -> None:
    named = {f"s{index}": fraction for index, fraction in enumerate(fractions)}
    owed: dict[str, Fraction] = {}
    shared = [share_out(count, named, owed=owed) for count in counts]
    for split, fraction in named.items():
        assert sum(sizes[split] for sizes in shared) < fraction * sum(counts) + 1
        for count, sizes in zip(counts, shared, strict=True):
            assert math.floor(fraction * count) <= sizes[split] < fraction * count + len(named)
    for count, sizes in zip(counts, shared, strict=True):
        assert sum(sizes.values()) == count


def test_a_group_never_falls_into_two_splits() -> None:
    splits = SplitAssignment(by_source={}, fractions={"a": 0.5, "b": 0.5}, group_by=r"^(video\d+)_")
    by_group: dict[str, set[str]] = {}
    for number in range(1000):
        group = f"video{number % 50}"
        split = splits.split_of(source="s", key=f"{group}_{number}.jpg")
        by_group.setdefault(group, set()).add(split)
    assert {len(found) for found in by_group.values()} == {1}
    assert {split for found in by_group.values() for split in found} == {"a", "b"}
    assert splits.matches(source="s", key="video3_1.jpg")
    assert not splits.matches(source="s", key="film3_1.jpg")


def test_split_and_shard_are_independent() -> None:
    """If both followed from one hash, a small split would fill only some shards."""
    splits = SplitAssignment(by_source={}, fractions={"train": 0.9, "test": 0.1})
    shards = set()
    for number in range(2_000):
        key = f"{number}.jpg"
        if splits.split_of(source="s", key=key) == "test":
            digest = example_hash(seed=0, source="s", key=key)
            shards.add(shard_index(digest, num_shards=10))
    assert shards == set(range(10))


def test_another_seed_splits_otherwise() -> None:
    fractions = {"a": 0.5, "b": 0.5}
    keys = [f"{number}.jpg" for number in range(100)]
    one, other = (
        [
            SplitAssignment(by_source={}, fractions=fractions, seed=seed).split_of(
                source="s", key=key
            )
            for key in keys
        ]
        for seed in (0, 1)
    )
    assert one != other


def test_the_split_of_a_key_stays_for_ever() -> None:
    """A later version that splits differently would move test images into the training split."""
    fractions = {"train": 0.6, "val": 0.2, "test": 0.2}
    splits = SplitAssignment(by_source={}, fractions=fractions, seed=3)
    exact = msgspec.structs.replace(splits, exact=True)
    keys = [f"{number}.jpg" for number in range(12)]
    points = [exact.point_of(source="s", key=key) for key in keys]
    exact = msgspec.structs.replace(exact, cuts=cut(exact, {"": points}, {}))

    found = [
        " ".join(each.split_of(source="s", key=key) for key in keys) for each in (splits, exact)
    ]
    assert found == [
        "test train test train val train train val val test train train",
        "val train test train val train train val train test train train",
    ]
    assert example_hash(seed=3, source="s", key="0.jpg").hex() == "ce8ecf777226d4ac5e8cc89c71b3f1d0"


def test_the_number_of_an_image_stays_for_ever() -> None:
    """Results of models name images by it."""
    assert image_number(source="train", key="a.jpg") == 5143789555249902204
    assert image_number(source="train", key="b/c.png") == 4393932625927646646


def test_the_largest_split_gets_what_fractions_leave() -> None:
    """Their sum may be a little less than 1: here it is far less."""
    splits = SplitAssignment(by_source={}, fractions={"a": 1e-9, "b": 2e-9, "c": 1e-9})
    assert {splits.split_of(source="s", key=f"{number}.jpg") for number in range(50)} == {"b"}


def test_a_source_s_own_splits() -> None:
    splits = SplitAssignment(by_source={"s": "train"}, predefined=("train", "val"))
    assert splits.names == ("train", "val")
    found = [splits.split_of(source="s", key="1.jpg", predefined=name) for name in ("val", "test")]
    assert found == ["val", NO_SPLIT]


def test_each_class_is_shared_out() -> None:
    """An image of several classes counts for the rarest; one of no known class for none."""
    images = {"cat": 10, "dog": 20, "rat": 10, "": 5}
    splits = SplitAssignment(
        by_source={}, fractions={"a": 0.8, "b": 0.2}, exact=True, stratify=True
    )
    keys = {name: [f"{name}{number}.jpg" for number in range(images[name])] for name in images}
    points = {name: [splits.point_of(source="s", key=key) for key in keys[name]] for name in keys}
    known = {name: count for name, count in images.items() if name}
    done = msgspec.structs.replace(splits, cuts=cut(splits, points, known))

    for name, classes in {
        "cat": ("dog", "rat", "cat"),
        "dog": ("dog", "horse"),
        "rat": ("rat",),
        "": ("horse",),
    }.items():
        found = Counter(done.split_of(source="s", key=key, classes=classes) for key in keys[name])
        assert found == {"a": 0.8 * images[name], "b": 0.2 * images[name]}


def test_an_example_goes_where_its_group_goes() -> None:
    splits = SplitAssignment(by_source={"v": "val"}, fractions={"a": 0.5, "b": 0.5}, grouped=True)
    keys = [f"{number}.jpg" for number in range(20)]
    alone = [splits.split_of(source="s", key=key, group=("s", key)) for key in keys]
    assert set(alone) == {"a", "b"}
    for key, split in zip(keys, alone, strict=True):
        assert splits.split_of(source="s", key="other.jpg", group=("s", key)) == split
    # Until the groups are known, there is no split but that of a source.
    assert splits.split_of(source="s", key="1.jpg") == NO_SPLIT
    assert splits.split_of(source="v", key="1.jpg") == "val"


@pytest.mark.parametrize("group_by", [r"^clip(?=_)", r"^clip(\d+x)?"])
def test_without_a_group_in_the_match_the_whole_match_is_it(group_by: str) -> None:
    splits = SplitAssignment(
        by_source={"v": "val"}, fractions={"a": 0.5, "b": 0.5}, group_by=group_by
    )
    found = {splits.split_of(source="s", key=f"clip_{number}.jpg") for number in range(100)}
    assert len(found) == 1
    assert splits.matches(source="v", key="film.jpg")


# The sample of a split, in any order and merged from any parts, compared with brute force


Images = dict[bytes, set[str]]


def sample(images: Sequence[tuple[bytes, set[str]]], *, limit: int) -> SplitSample:
    made = SplitSample(limit)
    for place, classes in images:
        made.add(place, classes)
    return made


images = st.dictionaries(st.binary(min_size=2, max_size=2), st.sets(st.sampled_from("abcdef")))


@given(images=images, limit=st.integers(1, 12), seed=st.randoms(use_true_random=False))
def test_parts_in_any_order_give_the_same(images: Images, limit: int, seed: random.Random) -> None:
    whole = sample(sorted(images.items()), limit=limit).chosen()
    shuffled = list(images.items())
    seed.shuffle(shuffled)
    cut = seed.randint(0, len(shuffled))
    merged = sample(shuffled[:cut], limit=limit)
    merged.merge(sample(shuffled[cut:], limit=limit))
    assert merged.chosen() == whole
    assert len(merged.places) <= 2 * limit


@given(number=st.integers(0, 100), limit=st.integers(1, 12))
def test_a_sample_of_a_long_split_stays_small(number: int, limit: int) -> None:
    """Workers hold it in memory, however many images the split has."""
    images = [(bytes([place]), {"a"}) for place in range(number)]
    assert len(sample(images, limit=limit).places) <= 2 * limit


@given(images=images, limit=st.integers(1, 12))
def test_against_brute_force(images: Images, limit: int) -> None:
    chosen = sample(list(images.items()), limit=limit).chosen()
    assert len(chosen) == min(limit, len(images))
    assert chosen <= set(images)
    first = {
        name: min(place for place in images if name in images[place])
        for name in set().union(*images.values())
    }
    # Those that are the first of most classes, then the first in order.
    counts = Counter(first.values())
    assert chosen == set(sorted(images, key=lambda place: (-counts[place], place))[:limit])
