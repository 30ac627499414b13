"""Lists a long prefix with many requests at a time.

A listing returns names in order, in pages of 1,000, and does not say how many follow or where they
end. So after each page, the rest of its range is split at a name guessed half-way to the end, as
long as more requests may be sent. A wrong guess costs one empty page; no guess loses or repeats a
name.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
import string
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

import msgspec

from shardbeam.transforms.storage.base import ListingPart

T = TypeVar("T")

# Characters of names that a guess takes into account.
_DIGITS = 12
# Names of a page that are examined.
_SAMPLES = 32
_DECIMAL = frozenset(string.digits)
_HEXADECIMAL = frozenset(string.hexdigits)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Page(Generic[T]):
    """A page of a listing.

    Attributes:
        items: The files on it, in order of their names.
        names: All names on it, also those that are not files.
        more: Whether its range may hold more names.
    """

    items: Sequence[T]
    names: Sequence[str]
    more: bool


def list_pages(
    read_page: Callable[[ListingPart], Page[T]],
    ranges: Iterable[ListingPart],
    *,
    prefix: str,
    threads: int,
    max_pages: int | None = None,
) -> Iterator[Page[T] | ListingPart]:
    """Yields the pages of ranges of names, in any order, then the ranges that are left.

    Args:
        read_page: Makes one request; called by several threads.
        ranges: The ranges to list.
        prefix: The beginning of all names.
        threads: The most requests at a time.
        max_pages: The number of pages to stop after; None to list everything.

    Yields:
        The pages; in the end the ranges that were not listed because of `max_pages`.

    Raises:
        Exception: Raised by `read_page`.
    """
    waiting = deque(ranges)
    running: dict[Future[Page[T]], ListingPart] = {}
    pages = 0
    with ThreadPoolExecutor(max_workers=threads, thread_name_prefix="list") as executor:
        while waiting or running:
            while waiting and len(running) < threads and (max_pages is None or pages < max_pages):
                part = waiting.popleft()
                running[executor.submit(read_page, part)] = part
                pages += 1
            if not running:
                break
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                part = running.pop(future)
                page = future.result()
                spare = threads - len(running) - len(waiting)
                waiting.extend(_rest(page, part, prefix=prefix, split=spare > 1))
                yield page
    yield from waiting


def _rest(page: Page[T], part: ListingPart, *, prefix: str, split: bool) -> Iterator[ListingPart]:
    if not page.more:
        return
    # A page can be empty although more follow; its whole range is left then.
    last = page.names[-1] if page.names else ""
    rest = msgspec.structs.replace(part, start=last, after_start=True) if last else part
    middle = find_middle(page.names, end=rest.end, prefix=prefix) if split and last else None
    if middle is None:
        yield rest
    else:
        yield msgspec.structs.replace(rest, end=middle)
        yield msgspec.structs.replace(part, start=middle, end=rest.end, after_start=False)


def find_middle(names: Sequence[str], *, end: str, prefix: str) -> str | None:
    """Guesses a name about half-way between the last of some names and an end.

    Args:
        names: Names in order, which show the characters used at each position.
        end: The end; the prefix's end where empty.
        prefix: The beginning of all names.

    Returns:
        A name greater than the last one and less than the end; None if there is no good guess.
    """
    last = names[-1]
    common = len(_common_prefix(last, end) if end else prefix)
    samples = [*names[:: len(names) // _SAMPLES + 1], last]
    seen = [
        {name[position] for name in samples if position < len(name)}
        for position in range(common, common + _DIGITS)
    ]
    # Neighbouring names share their first digits; later digits show the alphabet.
    hexadecimal = set().union(*filter(_is_hexadecimal, seen))
    alphabets = [
        _alphabet(characters | hexadecimal if characters <= _HEXADECIMAL else characters)
        for characters in seen
    ]
    low = _to_number(last[common:], alphabets)
    high = _to_number(end[common:], alphabets) if end else _size(alphabets)
    middle = last[:common] + _to_text((low + high) // 2, alphabets)
    return middle if last < middle and (not end or middle < end) else None


def _common_prefix(one: str, other: str) -> str:
    differing = (
        position
        for position, (left, right) in enumerate(zip(one, other, strict=False))
        if left != right
    )
    return one[: next(differing, min(len(one), len(other)))]


def _alphabet(seen: set[str]) -> str:
    """Completes the characters seen at one position: where there is a 3, there may be a 7."""
    complete = set(seen)
    for kind in (string.digits, string.ascii_lowercase, string.ascii_uppercase):
        letters = seen & set(kind)
        if letters:
            is_hexadecimal = letters <= set("abcdefABCDEF") and not seen.isdisjoint(string.digits)
            complete |= set(kind[:6] if is_hexadecimal else kind)
    return "".join(sorted(complete))


def _is_hexadecimal(seen: set[str]) -> bool:
    return seen <= _HEXADECIMAL and not seen.isdisjoint(string.digits) and not seen <= _DECIMAL


def _size(alphabets: Sequence[str]) -> int:
    return math.prod(len(alphabet) + 1 for alphabet in alphabets)


def _to_number(text: str, alphabets: Sequence[str]) -> int:
    """Reads a text as a number; each digit is a character's rank in its position's alphabet."""
    number = 0
    for position, alphabet in enumerate(alphabets):
        digit = bisect.bisect_right(alphabet, text[position]) if position < len(text) else 0
        number = number * (len(alphabet) + 1) + digit
    return number


def _to_text(number: int, alphabets: Sequence[str]) -> str:
    text = ""
    for alphabet in reversed(alphabets):
        number, digit = divmod(number, len(alphabet) + 1)
        # Digit 0 is the end of the text, which sorts before all characters.
        text = alphabet[digit - 1] + text if digit else ""
    return text
