"""The objects of an image, as they are written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.core.reasons import Correction
from shardbeam.transforms.core.records import ImageAnnotations, ObjectAnnotation
from shardbeam.transforms.examples.boxes import AnnotatedFrame, Box, clip_box
from shardbeam.transforms.examples.schema import MAX_FLOAT32
from shardbeam.transforms.images.check import StoredImage


class WrittenObject(NamedTuple):
    """An object that is written.

    Attributes:
        annotation: What the source says, in pixels of the annotated frame.
        label: The written name of its class.
        label_id: The id of its class.
        box: `(xmin, ymin, xmax, ymax)`, clipped, in fractions of the image.
        area: In pixels² of the stored image.
        position: Its place among all annotated objects of the image, from 0.
    """

    annotation: ObjectAnnotation
    label: str
    label_id: int
    box: Box
    area: float
    position: int = 0


def objects_in_pixels(
    annotations: ImageAnnotations, *, width: int, height: int
) -> Iterable[ObjectAnnotation]:
    """Gives the objects with boxes, keypoints and areas in pixels, whatever the source has.

    Segmentations stay as they are: `transforms.examples.masks` scales them once it has read them.

    Args:
        annotations: What the source says.
        width: Width of the annotated frame in pixels.
        height: Height of the annotated frame in pixels.
    """
    if not annotations.normalized:
        return annotations.objects
    return [_scaled(item, width=width, height=height) for item in annotations.objects]


def write_objects(
    objects: Iterable[ObjectAnnotation],
    *,
    frame: AnnotatedFrame,
    image: StoredImage,
    label_map: LabelMap,
    corrections: Counter[str],
) -> Iterator[WrittenObject]:
    """Yields the objects whose class is written and whose box has an area, each box clipped.

    Args:
        objects: The annotated objects, in pixels.
        frame: The frame that they refer to.
        image: The image as it is stored.
        label_map: The classes that are written.
        corrections: What is changed or left out is counted here.
    """
    width, height = frame.written_size
    area_scale = (image.width * image.height) / (width * height)
    for position, item in enumerate(objects):
        found = label_map.lookup(item.label)
        if found is None:
            corrections[Correction.OBJECT_OF_EXCLUDED_LABEL_DROPPED.value] += 1
            continue
        placed = clip_box(frame.place(item.bbox), width=width, height=height)
        if placed is None:
            corrections[Correction.BOX_WITHOUT_AREA_DROPPED.value] += 1
            continue
        (xmin, ymin, xmax, ymax), clipped = placed
        if clipped:
            corrections[Correction.BOX_CLIPPED.value] += 1
        area = item.area if 0 <= item.area <= MAX_FLOAT32 else (xmax - xmin) * (ymax - ymin)
        label, label_id = found
        yield WrittenObject(
            annotation=item,
            label=label,
            label_id=label_id,
            box=(xmin / width, ymin / height, xmax / width, ymax / height),
            area=area * area_scale,
            position=position,
        )


def _scaled(item: ObjectAnnotation, *, width: int, height: int) -> ObjectAnnotation:
    xmin, ymin, xmax, ymax = item.bbox
    scales = (width, height, 1.0)
    return msgspec.structs.replace(
        item,
        bbox=(xmin * width, ymin * height, xmax * width, ymax * height),
        area=item.area * width * height if item.area > 0 else item.area,
        keypoints=tuple(value * scales[index % 3] for index, value in enumerate(item.keypoints)),
    )
