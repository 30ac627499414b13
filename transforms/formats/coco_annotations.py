"""The annotations of a COCO file, read one by one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Generic

import msgspec

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.examples.schema import MAX_FLOAT32
from shardbeam.transforms.formats.annotation_file import decode_json_part
from shardbeam.transforms.formats.coco_images import (
    ImageId,
    ImageT,
    ImageTable,
    Int64,
    UnusableImage,
)
from shardbeam.transforms.formats.coco_tables import (
    NOTHING,
    Box,
    ObjectTable,
    TextTable,
    segmentation_text,
)
from shardbeam.transforms.formats.coco_tasks import panoptic_file_error

_KEYPOINT_VALUES = 3
_VISIBILITIES = frozenset({0.0, 1.0, 2.0})


class _Annotation(msgspec.Struct, gc=False):
    image_id: ImageId
    id: Int64 | None = None
    category_id: Int64 | None = None
    bbox: list[float] | None = None
    area: float | None = None
    iscrowd: bool | int | None = None
    caption: str | None = None


class _KeypointAnnotation(_Annotation, gc=False):
    keypoints: list[float] | None = None


class _Owner(msgspec.Struct, gc=False):
    image_id: ImageId


class _Segmentation(msgspec.Struct, gc=False):
    segmentation: msgspec.Raw = NOTHING


class _Polygons(msgspec.Struct, gc=False):
    # A mapping is a run-length encoding.
    segmentation: list[list[float]] | dict[str, msgspec.Raw] | None = None


class _Panoptic(msgspec.Struct, gc=False):
    segments_info: msgspec.Raw = NOTHING


_owner_decoder = msgspec.json.Decoder(_Owner)
_segmentation_decoder = msgspec.json.Decoder(_Segmentation)
_polygons_decoder = msgspec.json.Decoder(_Polygons)
_panoptic_decoder = msgspec.json.Decoder(_Panoptic)


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be taken from a file's annotations.

    Attributes:
        objects: Those with a box are objects.
        segmentations: Objects get their segmentation.
        keypoints: Objects get their keypoints.
        captions: Captions.
        labels: Those with a category and nothing else are classes of the image.
        stuff: Those with a segmentation are stuff; then none is an object.
    """

    objects: bool = False
    segmentations: bool = False
    keypoints: bool = False
    captions: bool = False
    labels: bool = False
    stuff: bool = False


class AnnotationReader(Generic[ImageT]):
    """Reads annotations one by one, into tables.

    Attributes:
        needs_categories: Whether there was an annotation of an unknown category.
        keypoint_counts: `{category id: the most keypoints that an object of it has}`.
        objects: The usable objects.
        stuff: The usable regions of stuff.
        captions: The captions.
        labels: Names of classes of images.
        corrections: What was changed or left out, by image.
        malformed: Of images with an annotation that cannot be read: which, and why.
    """

    def __init__(
        self,
        *,
        uri: str,
        wanted: Wanted,
        names: Mapping[int | None, str],
        table: ImageTable[ImageT],
    ) -> None:
        self._uri = uri
        self._wanted = wanted
        self._names = names
        self._table = table
        what: type[_Annotation] = _KeypointAnnotation if wanted.keypoints else _Annotation
        self._decoder = msgspec.json.Decoder(what)
        self._known = 0
        self._first_error: InputError | None = None
        self.needs_categories = False
        self.keypoint_counts: dict[int, int] = {}
        self.objects = ObjectTable()
        self.stuff = ObjectTable()
        self.captions = TextTable()
        self.labels = TextTable()
        self.corrections: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self.malformed: dict[int, UnusableImage] = {}

    def add(self, text: msgspec.Raw, *, index: int) -> None:
        """Reads an annotation; one that cannot be read makes its image unusable.

        Raises:
            InputError: It is not even to be told which image that is.
        """
        place = f"$.annotations[{index}]"
        try:
            annotation = decode_json_part(text, decoder=self._decoder, uri=self._uri, place=place)
            bbox = _bbox(annotation.bbox, uri=self._uri, place=place)
            from_polygons = False
            if bbox is None and annotation.caption is None:
                bbox = _bbox_of_polygons(text, uri=self._uri, place=place)
                from_polygons = bbox is not None
        except InputError as error:
            self._add_malformed(text, index=index, error=error)
            return
        position = self._table.count_annotation(annotation.image_id, index)
        if annotation.caption is not None:
            self._known += 1
            if self._wanted.captions and position is not None:
                self.captions.append(image=position, text=annotation.caption)
            if bbox is None:
                return
        label = self._names.get(annotation.category_id)
        if self._wanted.stuff:
            self._add_stuff(annotation, text=text, label=label, bbox=bbox, position=position)
        elif self._wanted.labels and bbox is None and not self._segmentation(text):
            self._add_label(label, position=position)
        elif not self._wanted.objects:
            self._known += 1
        elif bbox is None or label is None or position is None:
            self._count_unusable(bbox=bbox, label=label, position=position)
        else:
            self._known += 1
            if from_polygons:
                self._correct(position, Correction.BOX_FROM_POLYGONS)
            keypoints: Sequence[float] = ()
            if self._wanted.keypoints:
                keypoints = self._keypoints(annotation, position=position)
            self.objects.append(
                image=position,
                annotation_id=annotation.id or 0,
                label=label,
                bbox=bbox,
                area=-1.0 if annotation.area is None else annotation.area,
                is_crowd=bool(annotation.iscrowd),
                segmentation=self._segmentation(text) if self._wanted.segmentations else NOTHING,
                keypoints=keypoints,
            )

    def check(self, annotations: Sequence[msgspec.Raw]) -> None:
        """Checks, at the end, that the file is one of the kinds that are read.

        Args:
            annotations: All of its annotations.

        Raises:
            InputError: None of them can be used.
        """
        if not annotations or self._known:
            return
        if self._first_error is not None:
            raise self._first_error
        first = decode_json_part(
            annotations[0], decoder=_panoptic_decoder, uri=self._uri, place="$.annotations[0]"
        )
        if first.segments_info:
            raise panoptic_file_error(self._uri)
        raise InputError(
            uri=self._uri,
            place="$.annotations",
            problem=f"none of the {len(annotations)} annotations has a bbox, polygons or a "
            "caption; is this a file of COCO instances, keypoints, captions or stuff?",
        )

    def _add_malformed(self, text: msgspec.Raw, *, index: int, error: InputError) -> None:
        owner = decode_json_part(
            text, decoder=_owner_decoder, uri=self._uri, place=f"$.annotations[{index}]"
        )
        position = self._table.count_annotation(owner.image_id, index)
        self._first_error = self._first_error or error
        if position is not None:
            unusable = UnusableImage(Reason.ANNOTATION_MALFORMED, f"{error.place}: {error.problem}")
            self.malformed.setdefault(position, unusable)

    def _count_unusable(self, *, bbox: Box | None, label: str | None, position: int | None) -> None:
        self.needs_categories |= label is None
        self._known += bbox is not None
        if position is None:
            return
        if label is None:
            self._correct(position, Correction.OBJECT_OF_UNKNOWN_CATEGORY_DROPPED)
        else:
            self._correct(position, Correction.OBJECT_WITHOUT_BOX_DROPPED)

    def _add_stuff(
        self,
        annotation: _Annotation,
        *,
        text: msgspec.Raw,
        label: str | None,
        bbox: Box | None,
        position: int | None,
    ) -> None:
        segmentation = self._segmentation(text)
        self.needs_categories |= label is None
        self._known += bool(segmentation)
        if position is None:
            return
        if label is None:
            self._correct(position, Correction.OBJECT_OF_UNKNOWN_CATEGORY_DROPPED)
        elif not segmentation:
            self._correct(position, Correction.REGION_UNUSABLE_DROPPED)
        else:
            self.stuff.append(
                image=position,
                annotation_id=annotation.id or 0,
                label=label,
                bbox=bbox or (0.0, 0.0, 0.0, 0.0),
                area=-1.0 if annotation.area is None else annotation.area,
                is_crowd=bool(annotation.iscrowd),
                segmentation=segmentation,
            )

    def _add_label(self, label: str | None, *, position: int | None) -> None:
        self.needs_categories |= label is None
        self._known += 1
        if position is None:
            return
        if label is None:
            self._correct(position, Correction.LABEL_OF_UNKNOWN_CATEGORY_DROPPED)
        else:
            self.labels.append(image=position, text=label)

    def _segmentation(self, text: msgspec.Raw) -> msgspec.Raw:
        """The text of an annotation's segmentation; empty for one that says nothing."""
        segmentation = decode_json_part(
            text, decoder=_segmentation_decoder, uri=self._uri, place="$.annotations"
        ).segmentation
        return segmentation if segmentation_text(segmentation) else NOTHING

    def _keypoints(self, annotation: _Annotation, *, position: int) -> Sequence[float]:
        values = annotation.keypoints if isinstance(annotation, _KeypointAnnotation) else None
        if not values or annotation.category_id is None:
            return ()
        if (
            len(values) % _KEYPOINT_VALUES
            or not _VISIBILITIES.issuperset(values[2::_KEYPOINT_VALUES])
            or max(values) > MAX_FLOAT32
            or min(values) < -MAX_FLOAT32
        ):
            self._correct(position, Correction.KEYPOINTS_MALFORMED_DROPPED)
            return ()
        count = len(values) // _KEYPOINT_VALUES
        known = self.keypoint_counts.get(annotation.category_id, 0)
        self.keypoint_counts[annotation.category_id] = max(known, count)
        return values

    def _correct(self, position: int, correction: Correction) -> None:
        self.corrections[position][correction.value] += 1


def _bbox(values: Sequence[float] | None, *, uri: str, place: str) -> Box | None:
    if not values:
        return None
    if len(values) != 4:
        raise InputError(
            uri=uri,
            place=f"{place}.bbox",
            problem=f"expected [x, y, width, height], got {len(values)} numbers",
        )
    x, y, width, height = values
    return x, y, x + width, y + height


def _bbox_of_polygons(annotation: msgspec.Raw, *, uri: str, place: str) -> Box | None:
    polygons = decode_json_part(
        annotation, decoder=_polygons_decoder, uri=uri, place=place
    ).segmentation
    if not isinstance(polygons, list):
        return None
    xs = [x for polygon in polygons for x in polygon[0::2]]
    ys = [y for polygon in polygons for y in polygon[1::2]]
    if not xs or not ys:
        return None
    return min(xs), min(ys), max(xs), max(ys)
