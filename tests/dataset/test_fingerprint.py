from __future__ import annotations

import hashlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.dataset.input_counts import add_fingerprints, fingerprint

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
IMAGES = st.lists(st.tuples(st.sampled_from(["train", "test"]), TEXT, st.integers(0, 2**40)))


def test_a_sum_of_digests() -> None:
    images = [("a", f"{number}.jpg", number) for number in range(20)]
    texts = [f"a\0{number}.jpg\0{number}" for number in range(20)]
    total = sum(int(hashlib.sha256(text.encode()).hexdigest(), 16) for text in texts)
    together = add_fingerprints(*(fingerprint(*image) for image in images))
    assert together == f"{total % 2**256:064x}"
    assert add_fingerprints() == "0" * 64


@given(IMAGES, st.integers(0, 10), st.randoms())
def test_neither_order_nor_division_matters(
    images: list[tuple[str, str, int]], cut: int, shuffle: random.Random
) -> None:
    all_of_them = [fingerprint(*image) for image in images]
    shuffled = shuffle.sample(all_of_them, len(images))
    parts = (add_fingerprints(*shuffled[:cut]), add_fingerprints(*shuffled[cut:]))
    assert add_fingerprints(*parts) == add_fingerprints(*all_of_them)


@pytest.mark.parametrize(
    "others", [[("b", "a", 1)], [("a", "b", 1)], [("a", "a", 2)], [("a", "a", 1)] * 2, []]
)
def test_every_element_and_all_of_it_matter(others: list[tuple[str, str, int]]) -> None:
    assert add_fingerprints(*(fingerprint(*image) for image in others)) != fingerprint("a", "a", 1)
