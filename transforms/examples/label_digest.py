"""Digests of what an image's labels say, by which contradictions are found."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from shardbeam.transforms.examples.boxes import Box

_DIGEST_BYTES = 8
# Boxes that are the same but for rounding, in pixels here and in fractions there, count as such.
_BOX_STEPS = 10_000

_encoder = msgspec.msgpack.Encoder()


def digest_labels(
    *, classes: Iterable[bytes], objects: Iterable[tuple[str, Box]], captions: Iterable[bytes]
) -> str:
    """Digests classes, objects and captions, in whatever order the source has them.

    Args:
        classes: Names of the image's classes.
        objects: Class and box of each object; the box in fractions of the image, of which a
            ten-thousandth counts.
        captions: Texts that describe the image.

    Returns:
        16 hex digits.
    """
    what = [
        sorted(classes),
        sorted((label, [round(side * _BOX_STEPS) for side in box]) for label, box in objects),
        sorted(captions),
    ]
    return _digest(what)


def digest_classes(classes: Collection[bytes]) -> str:
    """Digests the names of an image's classes, in whatever order the source has them.

    Returns:
        16 hex digits; none where there are no classes.
    """
    return _digest(sorted(classes)) if classes else ""


def _digest(what: list[Any]) -> str:
    return hashlib.blake2b(_encoder.encode(what), digest_size=_DIGEST_BYTES).hexdigest()
