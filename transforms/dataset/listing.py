"""What a listing held: its counts by split, and a fingerprint to tell one listing from the next."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from shardbeam.transforms.core.records import ImageRef, ListedImage, Reject
from shardbeam.transforms.core.sharding import NO_SPLIT, SplitAssignment

_MODULUS = 1 << 256


class ListingSummary(msgspec.Struct, frozen=True):
    """A listing's counts and fingerprint: mergeable, in any order.

    Attributes:
        files: `{split: listed images}`.
        fingerprint: Sum over all listed files of the SHA-256 of URI, size and version, modulo
            2²⁵⁶, in hex. Of containers the files count, not the images in them.
    """

    files: Mapping[str, int]
    fingerprint: str


def fingerprint_image(image: ImageRef) -> int:
    """Digests where an image lies and which version of it was listed."""
    text = f"{image.uri}\0{image.offset}\0{image.size_bytes}\0{image.version}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")


def summarize_image(
    element: tuple[tuple[str, str], ListedImage], *, splits: SplitAssignment
) -> tuple[str, tuple[int, int]]:
    """Counts one listed image: `(split, (1, fingerprint))`."""
    split, (count, _) = summarize_member(element, splits=splits)
    return split, (count, fingerprint_image(element[1].image))


def summarize_member(
    element: tuple[tuple[str, str], ListedImage], *, splits: SplitAssignment
) -> tuple[str, tuple[int, int]]:
    """Counts one image of a container, whose file has the fingerprint."""
    (source, _), listed = element
    return splits.split_of(source=source, key=listed.key), (1, 0)


def summarize_other(file: ImageRef) -> tuple[str, tuple[int, int]]:
    """Digests a listed file that is no image."""
    return NO_SPLIT, (0, fingerprint_image(file))


def summarize_reject(reject: Reject) -> tuple[str, tuple[int, int]]:
    """Counts one file that was listed and rejected at once."""
    return reject.split, (1, 0)


def summarize_listing(by_split: Mapping[str, tuple[int, int]]) -> ListingSummary:
    """Puts the splits' sums, `(count, sum of fingerprints)`, together."""
    fingerprint = sum(digests for _, digests in by_split.values()) % _MODULUS
    return ListingSummary(
        files={split: count for split, (count, _) in sorted(by_split.items()) if count},
        fingerprint=f"{fingerprint:064x}",
    )
