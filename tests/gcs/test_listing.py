from __future__ import annotations

import bisect
import random
import threading
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.storage.base import ListingPart
from shardbeam.transforms.storage.gcs_listing import Page, find_middle, list_pages

PREFIX = "data/"
PAGE = 1000


class Bucket:
    """Names in order, given out as the storage does it: a page at a time."""

    def __init__(
        self, names: Sequence[str], *, page_size: int = PAGE, delay_s: float = 0.0
    ) -> None:
        self.delay_s = delay_s
        self.names = sorted(names)
        self.page_size = page_size
        self.pages = 0
        self.at_a_time = 0
        self.most_at_a_time = 0
        self._lock = threading.Lock()

    def read_page(self, part: ListingPart) -> Page[str]:
        with self._lock:
            self.pages += 1
            self.at_a_time += 1
            self.most_at_a_time = max(self.most_at_a_time, self.at_a_time)
        first = bisect.bisect_left(self.names, part.start)
        last = bisect.bisect_left(self.names, part.end) if part.end else None
        names = self.names[first:last]
        page = names[: self.page_size]
        # Long enough for others to begin.
        time.sleep(self.delay_s)
        with self._lock:
            self.at_a_time -= 1
        items = [name for name in page if not (part.after_start and name == part.start)]
        return Page(items=items, names=page, more=len(names) > len(page))

    def list(self, *, threads: int = 16, max_pages: int | None = None) -> list[str]:
        """Lists all, whatever is left over as well."""
        found: list[str] = []
        left = [ListingPart(PREFIX)]
        while left:
            ranges, left = left, []
            for listed in list_pages(
                self.read_page, ranges, prefix=PREFIX, threads=threads, max_pages=max_pages
            ):
                if isinstance(listed, ListingPart):
                    left.append(listed)
                else:
                    found += listed.items
        return found


NUMBERED = [f"{PREFIX}{number:012d}.jpg" for number in range(9, 591_000, 5)]
CLASSES = [
    f"{PREFIX}n{number:08d}/n{number:08d}_{image}.JPEG"
    for number in random.Random(0).sample(range(1_440_764, 15_075_141), 100)
    for image in range(1300)
]
HASHED = [f"{PREFIX}{random.Random(name).getrandbits(64):016x}.jpg" for name in range(100_000)]


@pytest.mark.parametrize("names", [NUMBERED, CLASSES, HASHED], ids=["numbers", "classes", "hashes"])
def test_a_long_listing_is_split_without_many_requests_more(names: list[str]) -> None:
    bucket = Bucket(names, delay_s=0.005)
    assert sorted(bucket.list()) == sorted(names)
    assert bucket.most_at_a_time > 8
    fewest = -(-len(names) // PAGE)
    assert bucket.pages <= 1.6 * fewest
    steps = Bucket(names)
    assert sorted(steps.list(threads=1)) == sorted(names)
    assert steps.pages <= fewest + 1


def test_a_listing_of_one_page_is_one_request() -> None:
    for count in (0, 1, PAGE):
        bucket = Bucket(NUMBERED[:count])
        assert bucket.list() == NUMBERED[:count]
        assert bucket.pages == 1


@pytest.mark.parametrize("names", [NUMBERED, CLASSES, HASHED], ids=["numbers", "classes", "hashes"])
def test_no_part_that_is_left_over_is_most_of_the_rest(names: list[str]) -> None:
    bucket = Bucket(names, page_size=30, delay_s=0.003)
    left = [
        part
        for part in list_pages(
            bucket.read_page, [ListingPart(PREFIX)], prefix=PREFIX, threads=16, max_pages=64
        )
        if isinstance(part, ListingPart)
    ]
    sizes = [
        sum(part.start <= name and (not part.end or name < part.end) for name in names)
        for part in left
    ]
    assert len(sizes) >= 16
    # A tenth to a fifth, where all is well.
    assert max(sizes) < 0.3 * len(names)


@given(
    names=st.sets(st.text(alphabet="aé/0_\U0001f600", max_size=6), max_size=60),
    page_size=st.integers(2, 9),
    threads=st.integers(1, 5),
    max_pages=st.none() | st.integers(1, 5),
)
def test_no_name_is_lost_or_found_twice(
    names: set[str], page_size: int, threads: int, max_pages: int | None
) -> None:
    bucket = Bucket([f"{PREFIX}{name}" for name in names], page_size=page_size)
    assert sorted(bucket.list(threads=threads, max_pages=max_pages)) == bucket.names


@given(st.lists(st.text(max_size=20), min_size=1), st.text(max_size=20))
def test_a_middle_lies_between(names: list[str], end: str) -> None:
    names = sorted(f"{PREFIX}{name}" for name in names)
    end = f"{PREFIX}{end}" if end else ""
    middle = find_middle(names, end=end, prefix=PREFIX)
    if middle is not None:
        assert names[-1] < middle
        assert not end or middle < end


def test_an_error_of_a_page_is_the_listings() -> None:
    def fail(part: ListingPart) -> Page[str]:
        raise KeyError(part)

    with pytest.raises(KeyError):
        list(list_pages(fail, [ListingPart(PREFIX)], prefix=PREFIX, threads=4))
