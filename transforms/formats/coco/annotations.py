"""COCO's annotations: boxes, masks, keypoints, captions and classes of images.

The format: https://cocodataset.org/#format-data (object detection, keypoint detection, image
captioning, stuff segmentation).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.transforms.core.box_formats import BoxFormat, BoxUnits
from shardbeam.transforms.core.corrections import Corrections
from shardbeam.transforms.core.errors import DECODING_ERRORS, InputError
from shardbeam.transforms.core.kinds import Kind
from shardbeam.transforms.core.reasons import Correction
from shardbeam.transforms.core.records import Category, ImageAnnotations, ObjectAnnotation
from shardbeam.transforms.examples.features import MAX_FLOAT32
from shardbeam.transforms.examples.geometry.box_readings import CORNERS
from shardbeam.transforms.examples.geometry.boxes import Box, box_around, turn_box
from shardbeam.transforms.examples.geometry.segmentation import (
    RECTANGLE_BYTES,
    SHORTEST_BYTES,
    find_outline_box,
    has_segmentation,
    is_outline,
)
from shardbeam.transforms.formats.annotation_file import (
    count_replaced,
    decode_json,
    lost_classes,
)
from shardbeam.transforms.formats.coco.coco_file import (
    CocoAnnotation,
    CocoCategory,
    CocoFile,
    CocoImage,
    ImageT,
    T,
)

# The box of a COCO annotation, which may have to be computed from its outline or keypoints.

_NUMBERS: Mapping[BoxFormat, str] = {
    "xywh": "[x, y, width, height]",
    "xyxy": "[xmin, ymin, xmax, ymax]",
    "cxcywh": "[x, y, width, height] from the centre",
    "yxyx": "[ymin, xmin, ymax, xmax]",
}


class _Attributes(msgspec.Struct):
    rotation: object = None


_attributes_decoder = JsonDecoder(_Attributes)
_numbers_decoder = JsonDecoder(list[float] | None)
# A mapping is a run-length encoding.
_polygons_decoder = JsonDecoder(list[list[float]] | dict[str, msgspec.Raw] | None, strict=False)


def find_rotation(item: CocoAnnotation) -> float:
    """Returns by how many degrees the box is turned clockwise around its centre, as CVAT has it."""
    if not item.attributes:
        return 0.0
    try:
        rotation = _attributes_decoder.decode(item.attributes).rotation
    except DECODING_ERRORS:
        return 0.0
    if isinstance(rotation, bool) or not isinstance(rotation, (int, float)):
        return 0.0
    return rotation % 360 if abs(rotation) <= MAX_FLOAT32 else 0.0


_NO_SEGMENTATION = re.compile(rb"(null|\[\s*\]|\{\s*\})?")
# An outline with a smaller share of its box is no upright rectangle.
_SMALLER = 0.9
_KEYPOINT_VALUES = 3
_VISIBILITIES = frozenset({0.0, 1.0, 2.0})


# Some tools write numbers as texts, or ids as `1.0`.
_annotation_decoder = JsonDecoder(CocoAnnotation, strict=False)
_names_decoder = JsonDecoder(list[str] | None)
_pairs_decoder = JsonDecoder(list[tuple[int, int]] | None)


def panoptic_file_error(uri: str) -> InputError:
    """Makes the error for a file of panoptic segments that is given as `annotations`."""
    return InputError(
        uri=uri,
        place="$.annotations",
        problem="a file of panoptic segments: name it as `panoptic` (--panoptic FILE), and the "
        "folder of its PNGs as `panoptic_masks` (--panoptic-masks DIR)",
    )


class _Row(msgspec.Struct, gc=False):
    """One entry of `annotations`.

    Attributes:
        text: Its text.
        item: The entry itself.
        label: The name of its category; None where the file declares no such category.
        bbox: Its box as `(xmin, ymin, xmax, ymax)`; None where it has none.
        computed: How and from what the box was computed; None where it is as given.
        keypoints: Its keypoints, where they are wanted.
        segmentation: Its segmentation as JSON; empty where it has none, or none is wanted.
    """

    text: bytes | msgspec.Raw
    item: CocoAnnotation
    label: str | None
    bbox: Box | None
    computed: tuple[Correction, object] | None
    keypoints: Sequence[float]
    segmentation: bytes

    def object(
        self, *, label: str, bbox: Box, segmentation: bytes, keypoints: Sequence[float] = ()
    ) -> ObjectAnnotation:
        """Makes an object, or a region of stuff."""
        return ObjectAnnotation(
            label=label,
            bbox=bbox,
            area=-1.0 if self.item.area is None else self.item.area,
            is_crowd=bool(self.item.iscrowd),
            annotation_id=self.item.id or 0,
            segmentation=segmentation,
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
        # How many objects have outlines that are not wanted.
        self.outlines = 0

    def annotations_of(self, image: CocoImage) -> ImageAnnotations:
        """Makes the annotations of the image from everything that was found."""
        return ImageAnnotations(
            image_id=str(image.id),
            width=int(image.width or 0),
            height=int(image.height or 0),
            labels=tuple(self.labels),
            objects=tuple(self.objects.values()),
            **self.corrections.fields(),
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
        # Looking up an enum takes longer than all else that is done for an annotation.
        self._reads_captions = Kind.CAPTIONS in wanted
        self._reads_keypoints = Kind.KEYPOINTS in wanted
        self._reads_labels = Kind.CLASSIFICATION in wanted
        self._reads_masks = Kind.INSTANCE_MASKS in wanted
        self._reads_objects = Kind.DETECTION in wanted
        self._reads_stuff = Kind.SEMANTIC in wanted
        self._reads_only_boxes = self._reads_objects and not (
            self._reads_keypoints or self._reads_masks or self._reads_stuff
        )
        self._reads_segmentations = self._reads_labels or self._reads_masks or self._reads_stuff
        self._is_normalized = box_units == "fraction"
        self._box_format: BoxFormat = box_format
        self._corners = CORNERS[box_format]
        # Number of annotations of a kind that is read.
        self._known = 0
        self._first_error: tuple[int, InputError] | None = None
        self._needs_categories = False
        self._lost: dict[str, dict[str, int]] = {}
        # {category id: the largest number of keypoints of its objects}
        self._keypoint_counts: dict[int | None, int] = {}

    def annotate(self, image: CocoImage, rows: Sequence[int]) -> tuple[ImageAnnotations, int]:
        """Reads the annotations of one image, given by their positions in the file.

        Returns:
            The annotations, and how many objects have outlines that are not wanted.

        Raises:
            InputError: One of them is malformed; the others are read all the same.
        """
        found = _Found()
        first_error: InputError | None = None
        texts, decode = self._file.annotations.texts(rows), _annotation_decoder.decode
        for index, text in zip(rows, texts, strict=True):
            try:
                try:
                    item = decode(text)
                except DECODING_ERRORS:
                    place = f"$.annotations[{index}]"
                    item = self._decode_part(text, decoder=_annotation_decoder, place=place)
                if not self._add_plain(item, found):
                    self._add(self._read_row(index, text, item, image=image), found)
            except InputError as error:
                first_error = first_error or error
                if self._first_error is None or index < self._first_error[0]:
                    self._first_error = index, error
        if first_error is not None:
            raise first_error
        annotations = found.annotations_of(image)
        if self._is_normalized:
            annotations = _in_fractions(annotations)
        return annotations, found.outlines

    def _add_plain(self, item: CocoAnnotation, found: _Found) -> bool:
        """Adds an object that has a box and that no rule changes; returns False for all else.

        Most annotations are such objects. `_read_row` and `_add` treat them in the same way, but
        take three times as long.
        """
        label, bbox = self._file.names.get(item.category_id), item.bbox
        if (
            not self._reads_only_boxes
            or label is None
            or bbox is None
            or len(bbox) != 4
            or not math.isfinite(sum(bbox))
            or item.caption is not None
            or item.attributes
        ):
            return False
        corners = self._corners(*bbox)
        identity = item.id or 0, label, corners
        if identity in found.objects:
            return False
        self._known += 1
        found.objects[identity] = ObjectAnnotation(
            label=label,
            bbox=corners,
            area=-1.0 if item.area is None else item.area,
            is_crowd=bool(item.iscrowd),
            annotation_id=item.id or 0,
        )
        size_bytes = len(item.segmentation)
        if size_bytes > RECTANGLE_BYTES or (
            size_bytes >= SHORTEST_BYTES and self._is_short_outline(item, corners)
        ):
            found.outlines += 1
        return True

    def _is_short_outline(self, item: CocoAnnotation, box: Box) -> bool:
        """Whether a short segmentation is an outline; its area mostly shows that, and is quick."""
        xmin, ymin, xmax, ymax = box
        area = item.area or 0.0
        is_smaller = 0.0 < area < _SMALLER * (xmax - xmin) * (ymax - ymin)
        return is_smaller or is_outline(bytes(item.segmentation))

    def _read_row(
        self,
        index: int,
        text: bytes | msgspec.Raw,
        item: CocoAnnotation,
        *,
        image: CocoImage,
    ) -> _Row:
        place = f"$.annotations[{index}]"
        bbox, box_from = self._read_box(item, place=place, image=image)
        computed: tuple[Correction, object] | None = None
        if box_from is not None:
            computed = box_from, None
        keypoints: Sequence[float] = ()
        if item.keypoints and self._reads_keypoints:
            keypoints = self._read_keypoints(item, place=place)
        segmentation = b""
        if self._reads_segmentations or item.attributes:
            segmentation = bytes(item.segmentation)
            if _NO_SEGMENTATION.fullmatch(segmentation):
                segmentation = b""
        rotation = find_rotation(item) if item.bbox and not segmentation else 0.0
        if bbox and rotation:
            if self._is_normalized:
                raise self._error(
                    f"{place}.attributes.rotation",
                    "a turned box in fractions; write turned boxes in pixels",
                )
            # CVAT gives the box before it is turned.
            corners = turn_box(bbox, angle=math.radians(rotation))
            computed = Correction.BOX_TURNED, (*bbox, rotation)
            bbox, segmentation = box_around(corners), msgspec.json.encode([corners])
        label = self._file.names.get(item.category_id)
        return _Row(text, item, label, bbox, computed, keypoints, segmentation)

    def _read_box(
        self, item: CocoAnnotation, *, place: str, image: CocoImage
    ) -> tuple[Box | None, Correction | None]:
        """Returns `(xmin, ymin, xmax, ymax)`, and what that was computed from if it is not given.

        Without a box, it is that of the polygons or the run lengths, or else of the keypoints.
        """
        if item.bbox:
            if len(item.bbox) != 4:
                numbers = f"expected {_NUMBERS[self._box_format]}, got {len(item.bbox)} numbers"
                raise self._error(f"{place}.bbox", numbers)
            if not all(map(math.isfinite, item.bbox)):
                # Numbers that are written as texts can be NaN.
                raise self._error(f"{place}.bbox", "expected finite numbers")
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
                raise self._error(place_of_part, str(error)) from error
            # This raises an error that names the place, except for run lengths.
            self._decode_part(item.segmentation, decoder=_polygons_decoder, place=place_of_part)
        labelled: list[float] = []
        if item.keypoints:
            values = self._read_keypoints(item, place=place)
            for x, y, visibility in zip(values[0::3], values[1::3], values[2::3], strict=False):
                labelled += (x, y) if visibility > 0 else ()
        if not labelled or not all(map(math.isfinite, labelled)):
            return None, None
        return box_around(labelled), Correction.BOX_FROM_KEYPOINTS

    def _read_keypoints(self, item: CocoAnnotation, *, place: str) -> Sequence[float]:
        """Returns `x, y, visibility` of each keypoint, as they are written."""
        place = f"{place}.keypoints"
        return self._decode_part(item.keypoints, decoder=_numbers_decoder, place=place) or ()

    def _add(self, row: _Row, found: _Found) -> None:
        """Adds an annotation as a caption, a region, a class of the image, or an object."""
        is_caption = row.item.caption is not None
        if is_caption:
            self._add_caption(row, found)
        if is_caption and row.bbox is None:
            return
        if self._reads_stuff:
            self._add_region(row, found)
        elif self._reads_labels and row.bbox is None and not row.segmentation:
            self._add_label(row, found)
        elif self._reads_objects:
            self._add_object(row, found)
        else:
            self._known += 1

    def _add_caption(self, row: _Row, found: _Found) -> None:
        self._known += 1
        if self._reads_captions:
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
            bbox = row.bbox or (0.0, 0.0, 0.0, 0.0)
            found.stuff.append(
                row.object(label=row.label, bbox=bbox, segmentation=row.segmentation)
            )

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
            if not self._reads_masks:
                found.outlines += is_outline(row.segmentation or bytes(row.item.segmentation))
            found.objects[identity] = row.object(
                label=row.label,
                bbox=row.bbox,
                keypoints=keypoints,
                segmentation=row.segmentation if self._reads_masks else b"",
            )

    def _usable_keypoints(self, row: _Row, found: _Found) -> Sequence[float]:
        """Returns the keypoints of an object that is kept; none where they are malformed."""
        keypoints = row.keypoints
        if row.computed is not None:
            correction, given = row.computed
            found.corrections.note(correction, given, row.bbox)
        if not keypoints:
            return ()
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
            raise self._error(
                "$.annotations",
                f"none of the {len(file.annotations)} annotations has a bbox, an outline, "
                "keypoints or a caption; is this a file of COCO instances, keypoints, captions or "
                "stuff?",
            )
        if not (self._reads_objects or self._reads_labels or self._reads_stuff):
            return
        for index, category in file.categories.items():
            yield Category(
                name=category.name,
                source_id=category.id,
                origin=file.uri,
                keypoints=self._keypoint_names(category, index=index),
                is_thing=not self._reads_stuff,
                skeleton=self._skeleton(category),
                is_background=file.is_dummy(category),
            )
        yield from lost_classes(self._lost, origin=file.uri)

    def _keypoint_names(self, category: CocoCategory, *, index: int) -> tuple[str, ...]:
        """Names a category's keypoints; those without a unique name are numbered."""
        if not self._reads_keypoints:
            return ()
        declared: list[str] = []
        if category.keypoints:
            place = f"$.categories[{index}].keypoints"
            declared = (
                self._decode_part(category.keypoints, decoder=_names_decoder, place=place) or []
            )
        names: list[str] = []
        taken = {""}
        for number in range(max(self._keypoint_counts.get(category.id, 0), len(declared))):
            name = declared[number] if number < len(declared) else ""
            # Readers find keypoints by their names, so each name is there once.
            names.append(f"keypoint_{number + 1}" if name in taken else name)
            taken.add(names[-1])
        return tuple(names)

    def _skeleton(self, category: CocoCategory) -> tuple[tuple[int, int], ...]:
        """Reads which keypoints are joined by lines, for drawings only.

        COCO numbers keypoints from 1. If a 0 occurs, they are taken to be numbered from 0.
        """
        if not self._reads_keypoints or not category.skeleton:
            return ()
        try:
            pairs = _pairs_decoder.decode(category.skeleton) or ()
        except DECODING_ERRORS:
            return ()
        start = 0 if any(0 in pair for pair in pairs) else 1
        shifted = {(first - start, second - start) for first, second in pairs}
        return tuple(sorted(pair for pair in shifted if min(pair) >= 0))

    def _error(self, place: str, problem: str) -> InputError:
        return InputError(uri=self._file.uri, place=place, problem=problem)

    def _decode_part(self, part: bytes | msgspec.Raw, *, decoder: JsonDecoder[T], place: str) -> T:
        return decode_json(part, decoder=decoder, uri=self._file.uri, place=place)


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
