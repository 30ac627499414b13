"""What a COCO file says about many images, by column: little memory, no object an annotation."""

from __future__ import annotations

import itertools
import re
from array import array
from collections.abc import Iterator, Sequence

import msgspec

from shardbeam.transforms.core.records import ObjectAnnotation

Box = tuple[float, float, float, float]

NOTHING = msgspec.Raw()
_NO_SEGMENTATION = re.compile(rb"(null|\[\s*\]|\{\s*\})?")


class ObjectTable:
    """Annotated objects: 73 bytes each, and 300 as Python objects; keypoints aside."""

    def __init__(self) -> None:
        self._images = array("q")
        self._annotation_ids = array("q")
        self._labels: list[str] = []
        self._boxes = array("d")
        self._areas = array("d")
        self._crowds = bytearray()
        self._segmentations: list[msgspec.Raw] = []
        # {row: values}
        self._keypoints: dict[int, array[float]] = {}

    def append(
        self,
        *,
        image: int,
        annotation_id: int,
        label: str,
        bbox: Box,
        area: float,
        is_crowd: bool,
        segmentation: msgspec.Raw,
        keypoints: Sequence[float] = (),
    ) -> None:
        """Adds an object.

        Args:
            image: Its image's position.
            annotation_id: See `ObjectAnnotation`, as for all that follow.
            label: The category's name.
            bbox: `(xmin, ymin, xmax, ymax)` in pixels.
            area: In pixels².
            is_crowd: Whether it is a group.
            segmentation: JSON text, which keeps the whole text that it is a part of in memory.
            keypoints: `x, y, visibility` of each.
        """
        self._images.append(image)
        self._annotation_ids.append(annotation_id)
        self._labels.append(label)
        self._boxes.extend(bbox)
        self._areas.append(area)
        self._crowds.append(is_crowd)
        self._segmentations.append(segmentation)
        if keypoints:
            self._keypoints[len(self._images) - 1] = array("d", keypoints)

    def by_image(self, images: int) -> Iterator[tuple[ObjectAnnotation, ...]]:
        """Yields the objects of image 0, 1, … `images` - 1, each image's in order of addition."""
        if not self._images:
            return itertools.repeat((), images)
        return (
            tuple([self._row(row) for row in rows]) for rows in _rows_by_image(self._images, images)
        )

    def _row(self, row: int) -> ObjectAnnotation:
        xmin, ymin, xmax, ymax = self._boxes[4 * row : 4 * row + 4]
        return ObjectAnnotation(
            label=self._labels[row],
            bbox=(xmin, ymin, xmax, ymax),
            area=self._areas[row],
            is_crowd=bool(self._crowds[row]),
            annotation_id=self._annotation_ids[row],
            segmentation=segmentation_text(self._segmentations[row]),
            keypoints=tuple(self._keypoints.get(row, ())),
        )


class TextTable:
    """Texts that each belong to an image: captions, names of classes."""

    def __init__(self) -> None:
        self._images = array("q")
        self._texts: list[str] = []

    def append(self, *, image: int, text: str) -> None:
        """Adds a text to the image at a position."""
        self._images.append(image)
        self._texts.append(text)

    def by_image(self, images: int) -> Iterator[tuple[str, ...]]:
        """Yields the texts of image 0, 1, … `images` - 1, each image's in order of addition."""
        if not self._images:
            return itertools.repeat((), images)
        return (
            tuple([self._texts[row] for row in rows])
            for rows in _rows_by_image(self._images, images)
        )


def segmentation_text(segmentation: msgspec.Raw) -> bytes:
    """The JSON text of a segmentation; empty for one that says nothing."""
    text = bytes(segmentation)
    return b"" if _NO_SEGMENTATION.fullmatch(text) else text


def _rows_by_image(owners: Sequence[int], images: int) -> Iterator[Sequence[int]]:
    rows = sorted(range(len(owners)), key=owners.__getitem__)
    end = 0
    for image in range(images):
        begin = end
        while end < len(rows) and owners[rows[end]] == image:
            end += 1
        yield rows[begin:end]
