"""Listings of object storage: all names once, in few requests, many at a time."""

from __future__ import annotations

import bisect
import contextlib
import functools
import os
import random
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.storage import object_listing
from shardbeam.transforms.storage.base import ListingPart, StoredFile
from shardbeam.transforms.storage.gcs.storage import GcsStorage
from shardbeam.transforms.storage.object_listing import Page
from tests.support.listing_server import ListingServer, Names, make_page

ROOT = "gs://bucket/root"
PREFIX = "root/"
PAGE = 100
MEMORY_BYTES = 60_000_000


class Bucket(GcsStorage):
    """Names in order, listed as object storage does it: a page at a time.

    Args:
        names: Names of all objects in the bucket, in order.
        page_size: The most names on a page.
        change: Called before each request, with all names.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        page_size: int = PAGE,
        change: Callable[[Sequence[str]], Sequence[str]] = lambda names: names,
    ) -> None:
        self.all_names = names
        self.page_size = page_size
        self.change = change
        self.requests = 0
        self.lock = threading.Lock()

    def list_page(self, part: ListingPart, *, folder: str = "", deep: bool = True) -> Page:
        with self.lock:
            self.requests += 1
            self.all_names = names = self.change(self.all_names)
        start = f"{PREFIX}{part.start}" if part.start else PREFIX
        page = make_page(
            names,
            prefix=f"{PREFIX}{folder}",
            first=part.token or f"{start}\0",
            # Like S3, this names what is behind the end, too.
            end="",
            delimiter="" if deep else "/",
            size=self.page_size,
        )
        return Page(
            [make_file(name) for name in page.objects],
            [name.removeprefix(PREFIX) for name in page.folders],
            page.token,
        )

    def list_in_parts(self) -> list[str]:
        """Lists like several workers."""
        found = []
        pending: list[str | ListingPart] = [ROOT]
        while pending:
            where = pending.pop()
            listed = self.begin_listing(where) if isinstance(where, str) else self.list_part(where)
            for each in listed:
                if isinstance(each, ListingPart):
                    pending.append(each)
                else:
                    found.append(each.path)
        return found


def make_file(name: str) -> StoredFile:
    path = name.removeprefix(PREFIX)
    return StoredFile(path=path, uri=f"{ROOT}/{path}", size_bytes=1, version="1")


def paths(names: Sequence[str]) -> list[str]:
    """Returns what a listing of the root should find."""
    return [
        name.removeprefix(PREFIX)
        for name in names
        if name.startswith(PREFIX) and not name.endswith("/")
    ]


def numbered(number: int, *, folders: int = 0, above: str = "") -> list[str]:
    names = Names(number, folders=folders, above=above, root=PREFIX)
    return [names[index] for index in range(number)]


CLASSES = numbered(13_000, folders=100)
# {layout: (names, requests for each page that is full, the least requests at a time)}
LAYOUTS = {
    "flat": (numbered(11_800), 1.1, 1),
    "classes": (CLASSES, 1.4, 12),
    "many classes": (numbered(20_000, folders=200), 1.4, 12),
    "small classes": (numbered(10_000, folders=500), 1.4, 5),
    "deep": (numbered(10_000, folders=100, above="a/b/c/"), 1.4, 12),
    "ten": (numbered(10_000, folders=10), 1.6, 9),
    "ten images each": (numbered(10_000, folders=1000), 1.6, 3),
    "one image each": (numbered(5000, folders=5000), 1.3, 1),
    "files behind folders": (
        [*numbered(8000, folders=8, above="train/"), *numbered(4000, above="z")],
        1.6,
        8,
    ),
    "few files behind a folder": (
        [*numbered(750, above="train/"), *numbered(99, above="z")],
        2.0,
        1,
    ),
    "split folders": (
        [
            *numbered(1000, above="test/"),
            *numbered(8000, folders=80, above="train/"),
            *numbered(1000, above="val/"),
        ],
        1.6,
        12,
    ),
}


class InTurn:
    """Runs what is submitted in its order, one call each time the listing waits for a result.

    So what is under way does not depend on how busy the machine is.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads = 0
        self.most_at_a_time = 0
        self._pending: deque[tuple[Future[Any], Callable[[], object]]] = deque()
        monkeypatch.setattr(object_listing, "ThreadPoolExecutor", self._begin)
        monkeypatch.setattr(object_listing, "wait", self._wait)

    def submit(self, function: Callable[..., object], *args: object, **more: object) -> Future[Any]:
        future: Future[Any] = Future()
        self._pending.append((future, functools.partial(function, *args, **more)))
        self.most_at_a_time = max(self.most_at_a_time, len(self._pending))
        return future

    def _begin(
        self, *, max_workers: int, thread_name_prefix: str
    ) -> contextlib.AbstractContextManager[InTurn]:
        self.threads = max_workers
        return contextlib.nullcontext(self)

    def _wait(self, futures: set[Future[Any]], *, return_when: str) -> object:
        future, call = self._pending.popleft()
        future.set_result(call())
        return wait(futures, return_when=return_when)


@pytest.fixture
def in_turn(monkeypatch: pytest.MonkeyPatch) -> InTurn:
    return InTurn(monkeypatch)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_folders_are_listed_side_by_side_without_many_requests_more(
    layout: str, in_turn: InTurn
) -> None:
    names, most_requests, at_a_time = LAYOUTS[layout]
    bucket = Bucket(names)
    assert sorted(file.path for file in bucket.list(ROOT)) == paths(names)
    assert in_turn.threads >= in_turn.most_at_a_time >= at_a_time
    assert bucket.requests <= most_requests * len(names) / PAGE


def test_a_short_listing_is_one_request() -> None:
    for count in (0, 1, PAGE):
        bucket = Bucket(CLASSES[:count])
        assert [file.path for file in bucket.list(ROOT)] == paths(CLASSES[:count])
        assert bucket.requests == 1
    bucket = Bucket(CLASSES)
    assert next(bucket.list(ROOT)).path == paths(CLASSES)[0]
    assert bucket.requests == 1


@pytest.mark.usefixtures("in_turn")
@pytest.mark.parametrize("layout", ["classes", "many classes", "deep", "split folders"])
def test_no_part_that_is_left_to_others_is_most_of_the_rest(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, _, _ = LAYOUTS[layout]
    bucket = Bucket(names)
    monkeypatch.setattr(object_listing, "_FIRST_PAGES", 20)
    found = paths(names)
    sizes = [
        (bisect.bisect_left(found, each.end) if each.end else len(found))
        - bisect.bisect_right(found, each.start)
        for each in bucket.begin_listing(ROOT)
        if isinstance(each, ListingPart)
    ]
    assert len(sizes) >= 12
    assert max(sizes) < 0.3 * len(names)


def test_a_flat_folder_is_left_to_one_other_worker() -> None:
    names, _, _ = LAYOUTS["flat"]
    bucket = Bucket(names)
    assert len([each for each in bucket.begin_listing(ROOT) if isinstance(each, ListingPart)]) == 1
    assert sorted(bucket.list_in_parts()) == paths(names)


NAMES = st.sets(st.text(alphabet="aé/0_\U0001f600", max_size=6), max_size=60)


@given(names=NAMES, gone=NAMES, added=NAMES, page_size=st.integers(1, 9), pages=st.integers(1, 70))
def test_no_name_is_lost_or_found_twice_whatever_changes(
    names: set[str], gone: set[str], added: set[str], page_size: int, pages: int
) -> None:
    rng = random.Random(page_size)
    changes = [*((name, False) for name in sorted(gone)), *((name, True) for name in sorted(added))]
    rng.shuffle(changes)

    def change(names: Sequence[str]) -> Sequence[str]:
        changed = set(names)
        for name, is_added in [changes.pop() for _ in range(min(3, len(changes)))]:
            (changed.add if is_added else changed.discard)(f"{PREFIX}{name}")
        return sorted(changed)

    before = sorted(f"{PREFIX}{name}" for name in names)
    # Beside the root.
    bucket = Bucket([*before, f"{PREFIX[:-1]}2/a"], page_size=page_size, change=change)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(object_listing, "_FIRST_PAGES", pages)
        found = bucket.list_in_parts()
    assert len(found) == len(set(found))
    stayed = {f"{PREFIX}{name}" for name in names - gone - added}
    assert set(paths(sorted(stayed))) <= set(found)
    assert set(found) <= set(paths(sorted({f"{PREFIX}{name}" for name in names | added})))


class Unusual(Bucket):
    """Answers in ways that are allowed, but rare.

    Attributes:
        answer: Changes the answer to a request.
    """

    answer: Callable[[ListingPart, Page], Page]

    def list_page(self, part: ListingPart, *, folder: str = "", deep: bool = True) -> Page:
        return self.answer(part, super().list_page(part, folder=folder, deep=deep))


def test_a_page_may_be_empty_although_more_follow() -> None:
    bucket = Unusual(CLASSES[:50], page_size=10)

    def empty(part: ListingPart, page: Page) -> Page:
        if part.token or not page.files:
            return page
        return Page([], page.folders, f"{PREFIX}{page.files[0].path}")

    bucket.answer = empty
    assert sorted(bucket.list_in_parts()) == paths(CLASSES[:50])


def test_a_bucket_that_does_not_sort_is_listed_with_tokens() -> None:
    bucket = Unusual(CLASSES[:500], page_size=10)

    def shuffle(part: ListingPart, page: Page) -> Page:
        assert not part.start
        return page._replace(files=page.files[::-1])

    bucket.answer = shuffle
    assert sorted(bucket.list_in_parts()) == paths(CLASSES[:500])


def test_names_out_of_order_are_an_error_where_they_could_be_lost() -> None:
    bucket = Unusual(CLASSES[:500], page_size=10)
    bucket.answer = lambda part, page: page._replace(files=page.files[:: -1 if part.start else 1])
    with pytest.raises(InputError, match=r"gs://bucket/root: .* does not list names in order"):
        bucket.list_in_parts()
    # A server that does not know where to start would never end.
    bucket.answer = lambda part, page: Bucket(CLASSES).list_page(ListingPart(ROOT))
    with pytest.raises(InputError, match="does not list names in order"):
        bucket.list_in_parts()


def test_a_token_that_has_expired_is_named() -> None:
    bucket = Unusual([f"{PREFIX}{number}" for number in range(9)], page_size=3)

    def expire(part: ListingPart, page: Page) -> Page:
        if part.token:
            raise InputError(uri=ROOT, problem="400 Invalid argument")
        return page

    bucket.answer = expire
    with pytest.raises(InputError, match=r"400 Invalid argument .* token root/3; .* expired"):
        list(bucket.names(ROOT))
    # Other pages are requested by name.
    assert len(list(bucket.list(ROOT))) == 9


def test_an_error_of_a_page_is_the_listings() -> None:
    bucket = Unusual(CLASSES, page_size=10)

    def fail(part: ListingPart, page: Page) -> Page:
        if bucket.requests > 20:
            raise InputError(uri=ROOT, problem="refused")
        return page

    bucket.answer = fail
    with pytest.raises(InputError, match=r"gs://bucket/root: refused$"):
        list(bucket.list(ROOT))


# Prints the memory that listing takes beyond the imports.
_LIST = """
import sys
from shardbeam.transforms.storage.find import storage_for

def peak_bytes():
    # getrusage begins with the peak of the parent.
    status = open("/proc/self/status").read()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])

storage = storage_for(sys.argv[1])
before = peak_bytes()
assert sum(1 for _ in storage.list(sys.argv[1])) == int(sys.argv[2])
print(peak_bytes() - before)
"""


@pytest.mark.slow
# botocore takes three minutes to parse the times of change.
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_two_million_names_take_the_memory_of_some_pages(scheme: str) -> None:
    if scheme == "s3":
        pytest.importorskip("s3fs")
    number = 2_000_000
    with ListingServer(Names(number, folders=1000)) as server:
        found = subprocess.run(
            [sys.executable, "-c", _LIST, f"{scheme}://scale/objects", str(number)],
            env={**os.environ, **server.environment},
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            check=True,
        )
        assert server.requests <= 1.1 * number / 1000
    assert int(found.stdout) <= MEMORY_BYTES
