"""An image with its annotations, from which the values of an Example are rendered."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from shardbeam.configs.schema import PanopticConfig
from shardbeam.transforms.core.corrections import Corrections
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.core.records import ImageAnnotations, MaskRole, ObjectAnnotation
from shardbeam.transforms.examples.boxes import (
    AnnotatedFrame,
    Box,
    Size,
    clip_box,
    orient_pixels,
    turn_between_frames,
)
from shardbeam.transforms.examples.features import MAX_FLOAT32, FeatureSpec
from shardbeam.transforms.examples.patches import Patch, resize_nearest
from shardbeam.transforms.examples.segmentation import draw_segmentation
from shardbeam.transforms.images.check import StoredImage

_Pixel = TypeVar("_Pixel", bound=np.generic)

# The most pixels of a mask file that is larger than its image; decoding it can take 1.9 GB.
_MAX_MASK_PIXELS = 1 << 26

# `{default key: values}`.
Values: TypeAlias = Mapping[str, Sequence[Any]]


class WrittenObject(NamedTuple):
    """An object that is written.

    Attributes:
        annotation: The source's annotation, in pixels of the annotated frame.
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
    position: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnnotatedImage:
    """An image with its annotations.

    Attributes:
        key: The image's key.
        annotations: The source's annotations of the image.
        image: The image as it is stored.
        sha256: Digest of the stored bytes, hex.
        frame: The frame that the annotations refer to.
        masks: The files that annotate the image, by the meaning of their pixels.
        label_map: The labels' written names and ids.
        panoptic: The settings of maps of segments.
        corrections: Counts everything that is changed or left out.
    """

    key: str
    annotations: ImageAnnotations
    image: StoredImage
    sha256: str
    frame: AnnotatedFrame
    masks: Mapping[MaskRole, bytes]
    label_map: LabelMap
    panoptic: PanopticConfig
    corrections: Corrections

    @property
    def size(self) -> Size:
        """Width and height of the image as it is stored in the Example."""
        return self.image.width, self.image.height

    @property
    def file_size(self) -> Size:
        """Width and height of the image as it is stored in its file."""
        return self.image.file_width, self.image.file_height

    @property
    def scaled_size(self) -> Size | None:
        """The annotated size, which mask files may have, too; None unless it is scaled."""
        width, height = self.frame.extent
        is_scaled = self.frame.correction is Correction.ANNOTATED_SIZE_SCALED
        return (width, height) if is_scaled and width * height <= _MAX_MASK_PIXELS else None

    @functools.cached_property
    def objects(self) -> Sequence[WrittenObject]:
        """The objects whose class is written and whose clipped box has an area.

        Their annotations are in pixels, even if the source gives fractions (`in_pixels`).
        """
        return list(self._written_objects())

    @functools.cached_property
    def labels(self) -> Mapping[str, tuple[int, float]]:
        """`{written name: (id, confidence)}` of the image's labels.

        Labels that are merged into one occur once, with the greatest confidence.
        """
        annotations = self.annotations
        confidences = annotations.label_confidences or (1.0,) * len(annotations.labels)
        labels: dict[str, tuple[int, float]] = {}
        for source_label, confidence in zip(annotations.labels, confidences, strict=True):
            found = self.label_map.lookup(source_label)
            if found is None:
                self.corrections.note(Correction.EXCLUDED_LABEL_DROPPED, source_label)
                continue
            label, label_id = found
            _, known = labels.get(label, (label_id, confidence))
            labels[label] = (label_id, max(known, confidence))
        return labels

    def turn_mask(self, pixels: npt.NDArray[_Pixel]) -> npt.NDArray[_Pixel]:
        """Turns a mask file's pixels, (height, width), like the image, before any resize.

        A mask of the annotated size is scaled to the image's size, to the nearest pixel.

        Raises:
            RejectedError: The mask has another size.
        """
        height, width = pixels.shape
        turn = turn_between_frames(
            (width, height),
            frame=self.frame,
            stored=self.file_size,
            orientation=self.image.orientation,
            upright=self.image.upright,
        )
        if turn is None:
            raise RejectedError(
                Reason.MASK_MISMATCH,
                f"the mask is {width}x{height}, the image {self.image.file_width}x"
                f"{self.image.file_height}",
            )
        turned = orient_pixels(pixels, orientation=turn)
        if (width, height) == self.frame.extent:
            return resize_nearest(turned, size=self.frame.written_size)
        return turned

    def in_pixels(self, items: Iterable[ObjectAnnotation]) -> Iterable[ObjectAnnotation]:
        """Returns objects with boxes, keypoints and areas in pixels of the frame.

        Segmentations stay as they are; `draw` scales them.
        """
        frame = self.frame
        if frame.extent == (frame.width, frame.height):
            return items
        return (_scaled(item, frame=frame) for item in items)

    def draw(self, item: ObjectAnnotation, *, unusable: Correction) -> Patch | None:
        """Draws the mask of an object from `in_pixels`, in the annotated frame.

        Args:
            item: The object.
            unusable: The correction to count if nothing can be drawn.

        Returns:
            The mask; None if it is empty.
        """
        try:
            return draw_segmentation(
                item.segmentation,
                frame=(self.frame.width, self.frame.height),
                extent=self.frame.extent,
                box=item.bbox,
                corrections=self.corrections,
            )
        except ValueError:
            self.corrections.note(unusable, item.label)
            return None

    def _written_objects(self) -> Iterator[WrittenObject]:
        frame = self.frame
        width, height = frame.written_size
        for position, item in enumerate(self.in_pixels(self.annotations.objects)):
            found = self.label_map.lookup(item.label)
            if found is None:
                is_background = item.label in self.label_map.background
                self.corrections.note(
                    Correction.OBJECT_OF_BACKGROUND_DROPPED
                    if is_background
                    else Correction.OBJECT_OF_EXCLUDED_LABEL_DROPPED,
                    item.label,
                )
                continue
            box = frame.place(item.bbox)
            placed = clip_box(box, width=width, height=height)
            if placed is None:
                self.corrections.note(Correction.BOX_WITHOUT_AREA_DROPPED, box)
                continue
            (xmin, ymin, xmax, ymax), clipped = placed
            if clipped:
                self.corrections.note(Correction.BOX_CLIPPED, box, placed[0])
            area = item.area if 0 <= item.area <= MAX_FLOAT32 else (xmax - xmin) * (ymax - ymin)
            label, label_id = found
            yield WrittenObject(
                annotation=item,
                label=label,
                label_id=label_id,
                box=(xmin / width, ymin / height, xmax / width, ymax / height),
                area=area * ((self.image.width * self.image.height) / (width * height)),
                position=position,
            )


class FeatureGroup(NamedTuple):
    """Keys that are written together.

    Attributes:
        specs: The default keys.
        values: Renders their values, except the image's own bytes, which are not copied.
        optional: More keys, written only if the config adds or renames them.
        by_object: Whether each object has its own Example; each key's value is then a list with
            the values of each object.
    """

    specs: tuple[FeatureSpec, ...]
    values: Callable[[AnnotatedImage], Values]
    optional: tuple[FeatureSpec, ...] = ()
    by_object: bool = False


def _scaled(item: ObjectAnnotation, *, frame: AnnotatedFrame) -> ObjectAnnotation:
    """Scales an object's coordinates from the frame's extent to its pixels."""
    sides, extent = (frame.width, frame.height), frame.extent

    def scale(value: float, *, axis: int) -> float:
        # In this order, a value on the border stays on the border.
        return value * sides[axis] / extent[axis]

    xmin, ymin, xmax, ymax = item.bbox
    area = item.area
    return msgspec.structs.replace(
        item,
        bbox=(scale(xmin, axis=0), scale(ymin, axis=1), scale(xmax, axis=0), scale(ymax, axis=1)),
        area=scale(scale(area, axis=0), axis=1) if area > 0 else area,
        keypoints=tuple(
            value if index % 3 == 2 else scale(value, axis=index % 3)
            for index, value in enumerate(item.keypoints)
        ),
    )
