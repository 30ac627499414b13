"""An image with its annotations, from which the values of an Example are rendered."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from shardbeam.configs.schema import PanopticConfig
from shardbeam.transforms.core.corrections import Corrections
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.labels import LabelMap, WrittenLabel
from shardbeam.transforms.core.reasons import LOST_LABELS, LOST_OBJECTS, Correction, Reason
from shardbeam.transforms.core.records import ImageAnnotations, ObjectAnnotation
from shardbeam.transforms.examples.features import MAX_FLOAT32, MIN_FLOAT32, FeatureSpec
from shardbeam.transforms.examples.geometry.box_readings import (
    BOXES,
    EXCHANGED,
    OUTSIDE,
    try_readings,
)
from shardbeam.transforms.examples.geometry.boxes import Box, Size, clip_box, overhang
from shardbeam.transforms.examples.geometry.frame import (
    BORDER_TOLERANCE_PX,
    AnnotatedFrame,
    turn_between_frames,
)
from shardbeam.transforms.examples.geometry.mask_crops import MaskCrop, resize_nearest
from shardbeam.transforms.examples.geometry.orientation import orient_pixels
from shardbeam.transforms.examples.geometry.segmentation import draw_segmentation
from shardbeam.transforms.images.check import StoredImage
from shardbeam.transforms.images.convert import Placement

_Pixel = TypeVar("_Pixel", bound=np.generic)

# The most pixels of a mask file that is larger than its image; decoding it can take 1.9 GB.
_MAX_MASK_PIXELS = 1 << 26

# `{default key: values}`.
Values: TypeAlias = Mapping[str, Sequence[Any]]


class WrittenObject(msgspec.Struct, frozen=True):
    """An object that is written.

    Attributes:
        annotation: The source's annotation.
        label: Its class as it is written.
        box: `(xmin, ymin, xmax, ymax)`, clipped, in fractions of the image.
        area: In pixels² of the stored image.
        position: Its place among all annotated objects of the image, from 0.
        placed_box: Its clipped box in pixels of the written frame, before any resize.
    """

    annotation: ObjectAnnotation
    label: WrittenLabel
    box: Box
    area: float
    position: int
    placed_box: Box


class AnnotatedImage(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """An image with its annotations.

    Attributes:
        key: The image's key.
        annotations: The source's annotations of the image.
        image: The image as it is stored.
        sha256: Digest of the stored bytes, hex.
        frame: The frame that the annotations refer to.
        masks: The files that annotate the image, by their keys in `annotations.masks`.
        label_map: The labels' written names and ids.
        panoptic: The settings of maps of segments.
        min_side_px: Objects with a narrower or lower box are left out.
        min_area_px: Objects whose box covers fewer square pixels are left out, too.
        corrections: Counts everything that is changed or left out.
        readings: Counts boxes that leave the image, what other readings of their numbers would do
            (`box_readings`), and pixels of maps that are 255 without an answer what it means.
    """

    key: str
    annotations: ImageAnnotations
    image: StoredImage
    sha256: str
    frame: AnnotatedFrame
    masks: Mapping[str, bytes]
    label_map: LabelMap
    panoptic: PanopticConfig
    min_side_px: float
    min_area_px: float
    corrections: Corrections
    readings: Counter[str]

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
        """The objects that are written, in the source's order.

        Each annotated object goes through these rules:

        1. Label: an object whose class is left out is dropped.
        2. Place: its box is scaled to pixels and turned like the image. Corners in the wrong order
           are exchanged if the box then lies in the image.
        3. Clip: a box that reaches over the border is clipped to the image, and an object whose box
           has no area there is dropped.
        4. Size: an object whose clipped box is smaller than the config's limits is dropped.
        5. Measure: an area that the source does not give, or that is 0 or too large as a 32-bit
           float, is that of the clipped box. A resize scales areas.
        6. Crop: a box that reaches over the border of a crop is cut, and its area gets smaller in
           the same ratio. An object whose box lies outside is dropped.
        """
        if not self.annotations.objects:
            # A row of a table without images has no size to divide by.
            return []
        frame = self.frame
        width, height = frame.written_size
        is_placed = frame.in_pixels and frame.orientation == 1
        area_scale = self._area_scale
        placement = self.image.placement
        has_limits = self.min_side_px > 0 or self.min_area_px > 0
        written = self.label_map.written
        objects = []
        boxes = outside = exchanged = 0
        for position, item in enumerate(self.annotations.objects):
            label = written.get(item.label)
            if label is None:
                self._note_left_out(item.label)
                continue
            boxes += 1
            box = item.bbox if is_placed else frame.place(item.bbox)
            clipped = clip_box(box, width=width, height=height)
            if clipped is None and (ordered := frame.exchange_corners(item.bbox)) is not None:
                box = frame.place(ordered)
                clipped = clip_box(box, width=width, height=height)
                if clipped is not None:
                    exchanged += 1
                    self.corrections.note(Correction.BOX_CORNERS_EXCHANGED, item.bbox, ordered)
                    item = msgspec.structs.replace(item, bbox=ordered)
            over = 0.0
            if clipped is not box:
                over = overhang(box, size=(width, height))
                outside += over > BORDER_TOLERANCE_PX
            if clipped is None:
                self.corrections.note(Correction.BOX_WITHOUT_AREA_DROPPED, box)
                continue
            xmin, ymin, xmax, ymax = clipped
            if has_limits and self._is_small(xmax - xmin, ymax - ymin):
                self.corrections.note(Correction.SMALL_OBJECT_DROPPED, clipped)
                continue
            if clipped is not box:
                # VOC tools that count from 0 are off by a whole pixel, which is no rounding.
                code = (
                    Correction.BOX_CLIPPED_SLIGHTLY
                    if over < BORDER_TOLERANCE_PX
                    else Correction.BOX_CLIPPED
                )
                self.corrections.note(code, box, clipped)
            area = item.area if is_placed else frame.scale_area(item.area)
            if not MIN_FLOAT32 <= area <= MAX_FLOAT32:
                area = (xmax - xmin) * (ymax - ymin)
            fractions = (xmin / width, ymin / height, xmax / width, ymax / height)
            if placement is not None:
                cut = self._crop(clipped, placement=placement)
                if cut is None:
                    continue
                fractions, share = cut
                area *= share
            area *= area_scale
            objects.append(WrittenObject(item, label, fractions, area, position, clipped))
        self.readings[BOXES] += boxes
        if outside or exchanged:
            self.readings.update({OUTSIDE: outside, EXCHANGED: exchanged})
            annotated = (item.bbox for item in self.annotations.objects if item.label in written)
            self.readings.update(try_readings(annotated, frame=frame))
        return objects

    @property
    def _area_scale(self) -> float:
        """By what a resize multiplies areas."""
        placement = self.image.placement
        (width, height), size = self.frame.written_size, self.size
        if placement is not None:
            (width, height), size = placement.crop_size, placement.target_size
        return (size[0] * size[1]) / (width * height)

    def _crop(self, box: Box, *, placement: Placement) -> tuple[Box, float] | None:
        """Cuts a box in pixels of the written frame like the image.

        Returns:
            The box in fractions of the stored image, and the share of its area that is left; None
            if none is.
        """
        xmin, ymin, xmax, ymax = box
        (left, top, _, _), (width, height) = placement.crop, placement.crop_size
        moved = xmin - left, ymin - top, xmax - left, ymax - top
        cut = clip_box(moved, width=width, height=height)
        if cut is None:
            self.corrections.note(Correction.OBJECT_OUTSIDE_CROP_DROPPED, box)
            return None
        if cut is not moved:
            cut_in_frame = cut[0] + left, cut[1] + top, cut[2] + left, cut[3] + top
            self.corrections.note(Correction.BOX_CUT_BY_CROP, box, cut_in_frame)
        first = placement.to_fractions(cut[0] + left, cut[1] + top)
        last = placement.to_fractions(cut[2] + left, cut[3] + top)
        share = (cut[2] - cut[0]) * (cut[3] - cut[1]) / ((xmax - xmin) * (ymax - ymin))
        return (*first, *last), share

    def _is_small(self, width: float, height: float) -> bool:
        """Whether the config leaves out objects with a box of this size in pixels."""
        return min(width, height) < self.min_side_px or width * height < self.min_area_px

    def _note_left_out(self, source_label: str) -> None:
        self.corrections.note(
            Correction.OBJECT_OF_BACKGROUND_DROPPED
            if source_label in self.label_map.background
            else Correction.OBJECT_OF_EXCLUDED_LABEL_DROPPED,
            source_label,
        )

    @functools.cached_property
    def labels(self) -> Mapping[bytes, tuple[int, float]]:
        """`{written name: (id, confidence)}` of the image's labels.

        Labels that are merged into one occur once, with the greatest confidence.
        """
        annotations = self.annotations
        confidences = annotations.label_confidences or (1.0,) * len(annotations.labels)
        labels: dict[bytes, tuple[int, float]] = {}
        for source_label, confidence in zip(annotations.labels, confidences, strict=True):
            label = self.label_map.written.get(source_label)
            if label is None:
                self.corrections.note(Correction.EXCLUDED_LABEL_DROPPED, source_label)
                continue
            _, known = labels.get(label.text, (label.id, confidence))
            labels[label.text] = (label.id, max(known, confidence))
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

    def resize_pixels(self, pixels: npt.NDArray[_Pixel], *, fill: int) -> npt.NDArray[_Pixel]:
        """Resizes pixels of the written frame, (height, width), like the image.

        Args:
            pixels: The pixels; each new one is the old one that is nearest.
            fill: The value of borders that are added.
        """
        placement = self.image.placement
        if placement is None:
            return resize_nearest(pixels, size=self.size)
        left, top, right, bottom = placement.crop
        part = resize_nearest(pixels[top:bottom, left:right], size=placement.target_size)
        whole = np.full((self.image.height, self.image.width), fill, pixels.dtype)
        left, top, right, bottom = placement.target
        whole[top:bottom, left:right] = part
        return whole

    def draw(self, item: ObjectAnnotation, *, unusable: Correction) -> MaskCrop | None:
        """Draws the mask of an annotated object in the annotated frame.

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
                box=self.frame.scale_box(item.bbox),
                corrections=self.corrections,
            )
        except ValueError:
            self.corrections.note(unusable, item.label)
            return None


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


def find_lost(subject: AnnotatedImage) -> dict[Correction, int]:
    """Counts what is lost of an image's annotations, if it would look as if it had none.

    Objects that the config leaves out are not lost, and neither are those of the background. Lost
    labels only count if nothing else is left.

    Returns:
        `{correction: count}`; empty if the image may be written.
    """
    if subject.objects:
        return {}
    annotations = subject.annotations
    found = {what: subject.corrections[what.value] for what in LOST_OBJECTS}
    found[Correction.OBJECT_WITHOUT_BOX_DROPPED] -= sum(
        sum(shapes.values())
        for label, shapes in annotations.lost.items()
        if label in subject.label_map.left_out
    )
    is_annotated_otherwise = (
        annotations.captions
        or annotations.masks
        or annotations.stuff
        or annotations.segments
        or annotations.values
        or subject.label_map.written.keys() & annotations.labels
    )
    if not is_annotated_otherwise:
        found |= {what: subject.corrections[what.value] for what in LOST_LABELS}
    return {what: count for what, count in sorted(found.items()) if count > 0}


def describe_lost(lost: Mapping[Correction, int], *, subject: AnnotatedImage) -> str:
    """Describes what is lost of an image's annotations, with examples."""
    kinds = []
    for what, count in lost.items():
        (before, _), *_ = subject.corrections.changes.get(what.value) or [(None, None)]
        example = "" if before is None else f" ({'such as ' * (count > 1)}{before})"
        kinds.append(f"{count:,} {what.value}{example}")
    return f"nothing is left of its annotations: {', '.join(kinds)}"


def boxes_in_pixels(annotations: ImageAnnotations) -> Iterator[Box] | None:
    """Returns the boxes that are given in pixels; None if nothing is annotated in pixels."""
    objects = (*annotations.objects, *annotations.stuff)
    if annotations.normalized or not (objects or annotations.masks):
        return None
    return (item.bbox for item in objects)
