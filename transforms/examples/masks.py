"""Masks of objects: from polygons and RLE to one PNG an object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from transforms.examples.boxes import AnnotatedFrame
from transforms.examples.objects import WrittenObject
from transforms.images.check import StoredImage
from transforms.records import MaskRole


def instance_masks(
    objects: Sequence[WrittenObject],
    *,
    frame: AnnotatedFrame,
    image: StoredImage,
    normalized: bool,
    masks: Mapping[MaskRole, bytes],
    corrections: Counter[str],
) -> list[bytes]:
    """Renders a mask for each object: a PNG of the whole stored image, one channel, 0 and 1.

    Args:
        objects: The objects.
        frame: The frame that they refer to.
        image: The image as it is stored.
        normalized: Whether polygons are in fractions of the frame, not pixels.
        masks: The files that annotate the image, by what their pixels mean.
        corrections: What is changed or left out is counted here.

    Raises:
        RejectedError: A mask file cannot be used.
    """
    raise NotImplementedError
