"""The sample of a split, in any order and merged from any parts, compared with brute force."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.core.sharding import SplitSample

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
    if len(set(first.values())) <= limit:
        # Every class is covered; images beyond that are the first in order.
        assert set(first.values()) <= chosen
        rest = chosen - set(first.values())
        others = sorted(set(images) - set(first.values()))
        assert sorted(rest) == others[: len(rest)]
    else:
        assert chosen <= set(first.values())


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        # This one is the first image of most classes.
        (1, {b"2"}),
        (2, {b"2", b"1"}),
        (3, {b"2", b"1", b"3"}),
        # All classes are covered: the first of the remaining images.
        (4, {b"2", b"1", b"3", b"0"}),
        (9, {b"2", b"1", b"3", b"0", b"4"}),
    ],
)
def test_classes_come_first(limit: int, expected: set[bytes]) -> None:
    images: list[tuple[bytes, set[str]]] = [
        (b"4", {"a"}),
        (b"3", {"d"}),
        (b"2", {"b", "c"}),
        (b"1", {"a"}),
        (b"0", set()),
    ]
    assert sample(images, limit=limit).chosen() == expected
