"""What a listing held: its counts by split, and a fingerprint to tell one listing from the next."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import msgspec

from transforms.records import ImageRef, Reject
from transforms.sharding import SplitAssignment

_MODULUS = 1 << 256


class ListingSummary(msgspec.Struct, frozen=True):
    """A listing's counts and fingerprint: mergeable, in any order.

    Attributes:
        files: `{split: listed files}`.
        fingerprint: Sum over all files of the SHA-256 of URI, size and version, modulo 2²⁵⁶,
            in hex.
    """

    files: Mapping[str, int]
    fingerprint: str


def fingerprint_image(image: ImageRef) -> int:
    """Digests where an image lies and which version of it was listed."""
    text = f"{image.uri}\0{image.offset}\0{image.size_bytes}\0{image.version}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")


def summarize_image(
    element: tuple[tuple[str, str], ImageRef], *, splits: SplitAssignment
) -> tuple[str, tuple[int, int]]:
    """Counts one listed image: `(split, (1, fingerprint))`."""
    (source, key), image = element
    return splits.split_of(source=source, key=key), (1, fingerprint_image(image))


def summarize_reject(reject: Reject) -> tuple[str, tuple[int, int]]:
    """Counts one file that was listed and rejected at once."""
    return reject.split, (1, 0)


def add_images(images: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Adds counts and fingerprints up."""
    count = total = 0
    for number, fingerprint in images:
        count += number
        total += fingerprint
    return count, total % _MODULUS


def summarize_listing(by_split: Mapping[str, tuple[int, int]]) -> ListingSummary:
    """Puts the splits' sums together."""
    return ListingSummary(
        files={split: count for split, (count, _) in sorted(by_split.items())},
        fingerprint=f"{add_images(by_split.values())[1]:064x}",
    )
