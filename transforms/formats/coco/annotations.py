"""COCO's annotations: boxes, masks, keypoints, captions and classes of images.

The format: https://cocodataset.org/#format-data (object detection, keypoint detection, image
captioning, stuff segmentation).
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.transforms.core.corrections import Corrections
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.kinds import BoxFormat, Kind
from shardbeam.transforms.core.reasons import Correction
from shardbeam.transforms.core.records import Category, ImageAnnotations, ObjectAnnotation
from shardbeam.transforms.examples.box_readings import CORNERS
from shardbeam.transforms.examples.features import MAX_FLOAT32
from shardbeam.transforms.examples.geometry.boxes import Box, box_around, turn_box
from shardbeam.transforms.examples.geometry.segmentation import find_outline_box, has_segmentation
from shardbeam.transforms.formats.annotation_file import (
    count_replaced,
    decode_json,
    lost_classes,
)
from shardbeam.transforms.formats.box_format import BoxUnits
from shardbeam.transforms.formats.coco.coco_file import (
    CocoAnnotation,
    CocoCategory,
    CocoFile,
    CocoImage,
    ImageT,
    T,
)

_NO_SEGMENTATION = re.compile(rb"(null|\[\s*\]|\{\s*\})?")
_KEYPOINT_VALUES = 3
_NUMBERS: Mapping[BoxFormat, str] = {
    "xywh": "[x, y, width, height]",
    "xyxy": "[xmin, ymin, xmax, ymax]",
    "cxcywh": "[x, y, width, height] from the centre",
    "yxyx": "[ymin, xmin, ymax, xmax]",
}
# An object that is kept: whether there is one, then its id, category, box, area, and `is_crowd`.
_KEPT = struct.Struct("=?qq5d?")
_VISIBILITIES = frozenset({0.0, 1.0, 2.0})


class _Attributes(msgspec.Struct):
    rotation: object = None


_annotation_decoder = JsonDecoder(CocoAnnotation)
_attributes_decoder = JsonDecoder(_Attributes)
_names_decoder = JsonDecoder(list[str] | None)
_pairs_decoder = JsonDecoder(list[tuple[int, int]] | None)
_numbers_decoder = JsonDecoder(list[float] | None)
# A mapping is a run-length encoding.
_polygons_decoder = JsonDecoder(list[list[float]] | dict[str, msgspec.Raw] | None, strict=False)


def panoptic_file_error(uri: str) -> InputError:
    """Makes the error for a file of panoptic segments that is given as `annotations`."""
    return InputError(
        uri=uri,
        place="$.annotations",
        problem="a file of panoptic segments: name it as `panoptic` (--panoptic FILE), and the "
        "folder of its PNGs as `panoptic_masks` (--panoptic-masks DIR)",
    )


class _Row(NamedTuple):
    """One entry of `annotations`.

    Attributes:
        text: Its text.
        item: The entry itself.
        label: The name of its category; None where the file declares no such category.
        bbox: Its box as `(xmin, ymin, xmax, ymax)`; None where it has none.
        computed: How and from what the box was computed; None where it is as given.
        keypoints: Its keypoints, where they are wanted.
        segmentation: Its segmentation as JSON; empty where it has none.
    """

    text: bytes
    item: CocoAnnotation
    label: str | None
    bbox: Box | None
    computed: tuple[Correction, object] | None
    keypoints: Sequence[float]
    segmentation: bytes

    def object(self, *, label: str, bbox: Box, keypoints: Sequence[float] = ()) -> ObjectAnnotation:
        """Makes an object, or a region of stuff."""
        return ObjectAnnotation(
            label=label,
            bbox=bbox,
            area=-1.0 if self.item.area is None else self.item.area,
            is_crowd=bool(self.item.iscrowd),
            annotation_id=self.item.id or 0,
            segmentation=self.segmentation,
            keypoints=tuple(keypoints),
        )


class _Found:
    """What the annotations of one image say."""

    def __init__(self) -> None:
        # {id, category and box: the object}
        self.objects: dict[tuple[object, ...], ObjectAnnotation] = {}
        self.stuff: list[ObjectAnnotation] = []
        self.captions: list[str] = []
        self.labels: dict[str, None] = {}
        self.corrections = Corrections()

    def annotations_of(self, image: CocoImage) -> ImageAnnotations:
        """Makes the annotations of the image from everything that was found."""
        return ImageAnnotations(
            image_id=str(image.id),
            width=int(image.width or 0),
            height=int(image.height or 0),
            labels=tuple(self.labels),
            objects=tuple(self.objects.values()),
            corrections=self.corrections.counts(),
            changes=self.corrections.changes,
            lost=self.corrections.lost,
            captions=tuple(self.captions),
            stuff=tuple(self.stuff),
        )


class AnnotationReader:
    """Reads the annotations of a file's images, and declares the file's categories.

    Args:
        file: The file.
        wanted: The kinds that are read. With `SEMANTIC`, annotations with a segmentation are
            regions of stuff, and none is an object.
        box_format: What the four numbers of `bbox` mean.
        box_units: The units of all coordinates and areas.

    Raises:
        InputError: The file has no `annotations`, and is not a file of test images either.
    """

    def __init__(
        self,
        file: CocoFile[ImageT],
        *,
        wanted: Collection[Kind],
        box_format: BoxFormat = "xywh",
        box_units: BoxUnits = "px",
    ) -> None:
        if not file.is_image_info:
            file.require("annotations")
        self._file = file
        self._wanted = wanted
        self._box_format = box_format
        self._corners = CORNERS[box_format]
        self._is_normalized = box_units == "fraction"
        # Number of annotations of a kind that is read.
        self._known = 0
        self._first_error: tuple[int, InputError] | None = None
        self._needs_categories = False
        self._lost: dict[str, dict[str, int]] = {}
        kinds = {Kind.DETECTION, Kind.SEMANTIC, Kind.INSTANCE_MASKS} & set(wanted)
        keeps = kinds == {Kind.DETECTION}
        # The ordinary objects, at the positions of their annotations.
        self._kept = bytearray(_KEPT.size * len(file.annotations) if keeps else 0)
        # {category id: the largest number of keypoints of its objects}
        self._keypoint_counts: dict[int | None, int] = {}

    def keep(self, first: int, items: Sequence[CocoAnnotation]) -> None:
        """Keeps the ordinary objects of a block of annotations, so that they are decoded once.

        An ordinary object has an id, a category, a box of four numbers and an area; no caption,
        no rotation, and no keypoints if these are wanted. Where masks or stuff are wanted, none is
        ordinary. `annotate` reads all other annotations from the file.

        Args:
            first: The position of the first annotation.
            items: The annotations.
        """
        if not self._kept:
            return
        reads_keypoints = Kind.KEYPOINTS in self._wanted
        for index, item in enumerate(items, first):
            if (
                not (reads_keypoints and item.keypoints)
                and item.bbox is not None
                and len(item.bbox) == 4
                and None not in (item.id, item.category_id, item.area)
                and item.caption is None
                and not (item.attributes and b'"rotation"' in bytes(item.attributes))
            ):
                values = item.id, item.category_id, *item.bbox, item.area, item.iscrowd
                _KEPT.pack_into(self._kept, index * _KEPT.size, True, *values)

    def annotate(self, image: CocoImage, rows: Sequence[int]) -> ImageAnnotations:
        """Reads the annotations of one image, given by their positions in the file.

        Raises:
            InputError: One of them is malformed; the others are read all the same.
        """
        found = _Found()
        first_error: InputError | None = None
        size = _KEPT.size
        # The first byte says whether one was kept.
        unkept = [at for at in rows if not self._kept[at * size]] if self._kept else rows
        read = dict(zip(unkept, self._file.read_rows(unkept), strict=True))
        for index in rows:
            if index not in read and self._add_kept(index, found):
                continue
            text, item = read.get(index) or next(self._file.read_rows([index]))
            try:
                row = self._read_row(index, text, item, image=image)
            except InputError as error:
                first_error = first_error or error
                if self._first_error is None or index < self._first_error[0]:
                    self._first_error = index, error
                continue
            self._add(row, found)
        if first_error is not None:
            raise first_error
        annotations = found.annotations_of(image)
        return _in_fractions(annotations) if self._is_normalized else annotations

    def _add_kept(self, index: int, found: _Found) -> bool:
        """Adds an object that was kept; returns False if a rule changes it."""
        _, annotation_id, category_id, x, y, width, height, area, is_crowd = _KEPT.unpack_from(
            self._kept, index * _KEPT.size
        )
        label, bbox = self._file.names.get(category_id), self._corners(x, y, width, height)
        identity = annotation_id, label, bbox
        if label is None or identity in found.objects:
            return False
        self._known += 1
        found.objects[identity] = ObjectAnnotation(
            label=label, bbox=bbox, area=area, is_crowd=is_crowd, annotation_id=annotation_id
        )
        return True

    def _read_row(
        self, index: int, text: bytes, item: CocoAnnotation | None, *, image: CocoImage
    ) -> _Row:
        if item is None:
            place = f"$.annotations[{index}]"
            item = self._decode_part(text, decoder=_annotation_decoder, place=place)
        bbox, box_from = self._bbox(item, index=index, image=image)
        computed: tuple[Correction, object] | None = None
        if box_from is not None:
            computed = box_from, None
        keypoints = self._keypoints(item, index=index)
        segmentation = bytes(item.segmentation)
        if _NO_SEGMENTATION.fullmatch(segmentation):
            segmentation = b""
        if item.bbox and bbox and not segmentation and (rotation := _rotation(item)):
            if self._is_normalized:
                raise InputError(
                    uri=self._file.uri,
                    place=f"$.annotations[{index}].attributes.rotation",
                    problem="a turned box in fractions; write turned boxes in pixels",
                )
            # CVAT gives the box before it is turned.
            corners = turn_box(bbox, angle=math.radians(rotation))
            computed = Correction.BOX_TURNED, (*bbox, rotation)
            bbox, segmentation = box_around(corners), msgspec.json.encode([corners])
        label = self._file.names.get(item.category_id)
        return _Row(text, item, label, bbox, computed, keypoints, segmentation)

    def _add(self, row: _Row, found: _Found) -> None:
        """Adds an annotation as a caption, a region, a class of the image, or an object."""
        is_caption = row.item.caption is not None
        if is_caption:
            self._add_caption(row, found)
        if is_caption and row.bbox is None:
            return
        if Kind.SEMANTIC in self._wanted:
            self._add_region(row, found)
        elif Kind.CLASSIFICATION in self._wanted and row.bbox is None and not row.segmentation:
            self._add_label(row, found)
        elif Kind.DETECTION in self._wanted:
            self._add_object(row, found)
        else:
            self._known += 1

    def _add_caption(self, row: _Row, found: _Found) -> None:
        self._known += 1
        if Kind.CAPTIONS in self._wanted:
            found.captions.append(row.item.caption or "")
            lone = count_replaced(row.text)
            found.corrections[Correction.LONE_SURROGATE_REPLACED.value] += lone

    def _add_region(self, row: _Row, found: _Found) -> None:
        self._known += bool(row.segmentation)
        if row.label is None:
            self._drop(Correction.REGION_OF_UNKNOWN_CLASS_VOID, row, found)
        elif not row.segmentation:
            found.corrections.note(Correction.REGION_UNUSABLE_DROPPED, row.label)
        else:
            found.stuff.append(row.object(label=row.label, bbox=row.bbox or (0.0, 0.0, 0.0, 0.0)))

    def _add_label(self, row: _Row, found: _Found) -> None:
        self._known += 1
        if row.label is None:
            self._drop(Correction.LABEL_OF_UNKNOWN_CATEGORY_DROPPED, row, found)
        else:
            found.labels[row.label] = None

    def _add_object(self, row: _Row, found: _Found) -> None:
        """Adds an object, unless it repeats the id, category and box of an earlier one."""
        self._known += row.bbox is not None
        identity = row.item.id or 0, row.label, row.bbox
        if row.label is None:
            self._drop(Correction.OBJECT_OF_UNKNOWN_CATEGORY_DROPPED, row, found)
        elif row.bbox is None:
            found.corrections.note_lost(row.label, "no bbox")
            self._lost.update(found.corrections.lost)
        elif identity in found.objects:
            found.corrections.note(Correction.DUPLICATE_ANNOTATION_DROPPED, row.item.id)
        else:
            keypoints = self._usable_keypoints(row, found)
            item = row.object(label=row.label, bbox=row.bbox, keypoints=keypoints)
            if Kind.INSTANCE_MASKS not in self._wanted:
                item = msgspec.structs.replace(item, segmentation=b"")
            found.objects[identity] = item

    def _usable_keypoints(self, row: _Row, found: _Found) -> Sequence[float]:
        """Returns the keypoints of an object that is kept; none where they are malformed."""
        keypoints = row.keypoints
        if row.computed is not None:
            correction, given = row.computed
            found.corrections.note(correction, given, row.bbox)
        if not _are_keypoints(keypoints):
            found.corrections.note(Correction.KEYPOINTS_MALFORMED_DROPPED, keypoints)
            keypoints = ()
        category_id = row.item.category_id
        most = max(self._keypoint_counts.get(category_id, 0), len(keypoints) // _KEYPOINT_VALUES)
        self._keypoint_counts[category_id] = most
        return keypoints

    def _drop(self, unknown: Correction, row: _Row, found: _Found) -> None:
        """Drops an annotation whose category the file does not declare."""
        self._needs_categories = True
        found.corrections.note(unknown, row.item.category_id)

    def categories(self) -> Iterator[Category]:
        """Declares the categories, after all images have been read.

        Yields:
            Each category once; none where no kind that is read has classes.

        Raises:
            InputError: No annotation is of a kind that is read, the categories are missing, or
                names of keypoints are not texts.
        """
        file = self._file
        if self._needs_categories:
            file.require("categories")
        if file.annotations and not self._known:
            if self._first_error is not None:
                raise self._first_error[1]
            if file.decode(0, decoder=_annotation_decoder).segments_info:
                raise panoptic_file_error(file.uri)
            raise InputError(
                uri=file.uri,
                place="$.annotations",
                problem=f"none of the {len(file.annotations)} annotations has a bbox, an "
                "outline, keypoints or a caption; is this a file of COCO instances, keypoints, "
                "captions or stuff?",
            )
        if not {Kind.DETECTION, Kind.CLASSIFICATION, Kind.SEMANTIC} & set(self._wanted):
            return
        for index, category in file.categories.items():
            yield Category(
                name=category.name,
                source_id=category.id,
                origin=file.uri,
                keypoints=self._keypoint_names(category, index=index),
                is_thing=Kind.SEMANTIC not in self._wanted,
                skeleton=self._skeleton(category),
                is_background=file.is_dummy(category),
            )
        yield from lost_classes(self._lost, origin=file.uri)

    def _bbox(
        self, item: CocoAnnotation, *, index: int, image: CocoImage
    ) -> tuple[Box | None, Correction | None]:
        """Returns `(xmin, ymin, xmax, ymax)`, and what that was computed from if it is not given.

        Without a box, it is that of the polygons or the run lengths, or else of the keypoints.
        """
        place = f"$.annotations[{index}]"
        if item.bbox:
            if len(item.bbox) != 4:
                raise InputError(
                    uri=self._file.uri,
                    place=f"{place}.bbox",
                    problem=f"expected {_NUMBERS[self._box_format]}, got {len(item.bbox)} numbers",
                )
            if not all(map(math.isfinite, item.bbox)):
                # Numbers that are written as texts can be NaN.
                raise InputError(
                    uri=self._file.uri, place=f"{place}.bbox", problem="expected finite numbers"
                )
            return self._corners(*item.bbox), None
        if item.caption is not None:
            return None, None
        size = int(image.width or 0), int(image.height or 0)
        try:
            if has_segmentation(item.segmentation) and (
                found := find_outline_box(
                    bytes(item.segmentation), size=size, normalized=self._is_normalized
                )
            ):
                return found
        except ValueError as error:
            place_of_part = f"{place}.segmentation"
            if bytes(item.segmentation).startswith(b'"'):
                raise InputError(
                    uri=self._file.uri, place=place_of_part, problem=str(error)
                ) from error
            # This raises an error that names the place, except for run lengths.
            self._decode_part(item.segmentation, decoder=_polygons_decoder, place=place_of_part)
        labelled: list[float] = []
        if item.keypoints:
            values = self._decode_keypoints(item, index=index)
            for x, y, visibility in zip(values[0::3], values[1::3], values[2::3], strict=False):
                labelled += (x, y) if visibility > 0 else ()
        if not labelled or not all(map(math.isfinite, labelled)):
            return None, None
        return box_around(labelled), Correction.BOX_FROM_KEYPOINTS

    def _keypoints(self, item: CocoAnnotation, *, index: int) -> Sequence[float]:
        if Kind.KEYPOINTS not in self._wanted or not item.keypoints:
            return ()
        return self._decode_keypoints(item, index=index)

    def _decode_keypoints(self, item: CocoAnnotation, *, index: int) -> Sequence[float]:
        place = f"$.annotations[{index}].keypoints"
        return self._decode_part(item.keypoints, decoder=_numbers_decoder, place=place) or ()

    def _keypoint_names(self, category: CocoCategory, *, index: int) -> tuple[str, ...]:
        """Names a category's keypoints; those without a unique name are numbered."""
        if Kind.KEYPOINTS not in self._wanted:
            return ()
        declared: list[str] = []
        if category.keypoints:
            place = f"$.categories[{index}].keypoints"
            declared = (
                self._decode_part(category.keypoints, decoder=_names_decoder, place=place) or []
            )
        names: list[str] = []
        for number in range(max(self._keypoint_counts.get(category.id, 0), len(declared))):
            name = declared[number] if number < len(declared) else ""
            # Readers find keypoints by their names, so each name is there once.
            names.append(name if name and name not in names else f"keypoint_{number + 1}")
        return tuple(names)

    def _skeleton(self, category: CocoCategory) -> tuple[tuple[int, int], ...]:
        """Reads which keypoints are joined by lines, for drawings only.

        COCO numbers keypoints from 1. If a 0 occurs, they are taken to be numbered from 0.
        """
        if Kind.KEYPOINTS not in self._wanted or not category.skeleton:
            return ()
        try:
            pairs = _pairs_decoder.decode(category.skeleton) or ()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return ()
        start = 0 if any(0 in pair for pair in pairs) else 1
        shifted = {(first - start, second - start) for first, second in pairs}
        return tuple(sorted(pair for pair in shifted if min(pair) >= 0))

    def _decode_part(self, part: bytes | msgspec.Raw, *, decoder: JsonDecoder[T], place: str) -> T:
        return decode_json(part, decoder=decoder, uri=self._file.uri, place=place)


def _rotation(item: CocoAnnotation) -> float:
    """Returns by how many degrees the box is turned clockwise around its centre, as CVAT has it."""
    if not item.attributes:
        return 0.0
    try:
        rotation = _attributes_decoder.decode(item.attributes).rotation
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0.0
    if isinstance(rotation, bool) or not isinstance(rotation, (int, float)):
        return 0.0
    return rotation % 360 if abs(rotation) <= MAX_FLOAT32 else 0.0


def _in_fractions(annotations: ImageAnnotations) -> ImageAnnotations:
    """Marks coordinates and areas as fractions; an area above 1 is none, and is left out."""
    objects = tuple(
        msgspec.structs.replace(item, area=-1.0) if item.area > 1 else item
        for item in annotations.objects
    )
    return msgspec.structs.replace(annotations, objects=objects, normalized=True)


def _are_keypoints(values: Sequence[float]) -> bool:
    return not values or (
        len(values) % _KEYPOINT_VALUES == 0
        and _VISIBILITIES.issuperset(values[2::_KEYPOINT_VALUES])
        and math.isfinite(sum(values))
        and max(values) <= MAX_FLOAT32
        and min(values) >= -MAX_FLOAT32
    )
