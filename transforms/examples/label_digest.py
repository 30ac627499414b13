"""An image's labels for its dataset's index: ids of its classes, and digests.

Digests show when equal images have different labels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from shardbeam.transforms.examples.boxes import Box

_DIGEST_BYTES = 8
# Sides of boxes are rounded to this many steps, so that rounding in the source does not matter.
_BOX_STEPS = 10_000

# The keys with the ids of an Example's classes.
CLASS_IDS = ("image/class/label", "image/object/class/label", "annotation/class/label")

_encoder = msgspec.msgpack.Encoder()


def list_class_ids(values: Mapping[str, Sequence[Any]]) -> tuple[int, ...]:
    """Lists the ids of the classes of an Example's objects and of its image, each once, in order.

    Args:
        values: `{default key: values}`.
    """
    return tuple(sorted({label for key in CLASS_IDS for label in values.get(key, ())}))


def digest_labels(
    *, classes: Iterable[bytes], objects: Iterable[tuple[str, Box]], captions: Iterable[bytes]
) -> str:
    """Digests classes, objects and captions, independent of their order.

    Args:
        classes: Names of the image's classes.
        objects: Class and box of each object; the box in fractions of the image, which are rounded
            to a ten-thousandth.
        captions: Texts that describe the image.

    Returns:
        16 hex digits.
    """
    boxes = [(label, [round(side * _BOX_STEPS) for side in box]) for label, box in objects]
    return _digest([sorted(classes), sorted(boxes), sorted(captions)])


def digest_classes(classes: Collection[bytes]) -> str:
    """Digests the names of an image's classes, independent of their order.

    Returns:
        16 hex digits; empty if there are no classes.
    """
    return _digest(sorted(classes)) if classes else ""


def _digest(what: list[Any]) -> str:
    return hashlib.blake2b(_encoder.encode(what), digest_size=_DIGEST_BYTES).hexdigest()
