"""What a COCO instances file holds, parsed and grouped by image in little memory.

The format: https://cocodataset.org/#format-data (object detection).
"""

from __future__ import annotations

import dataclasses
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple

import msgspec

from transforms.errors import InputError
from transforms.formats.annotation_file import (
    decode_json,
    decode_json_part,
    read_annotation_file,
)
from transforms.reasons import Correction
from transforms.records import Category, ObjectAnnotation
from transforms.storage import Storage

# Crowd annotations have ids beyond int32.
_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_ImageId = _Int64 | str
_Pixels = (
    Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
    | Annotated[float, msgspec.Meta(ge=0, le=2**31 - 1, multiple_of=1)]
)
_Box = tuple[float, float, float, float]

_NOTHING = msgspec.Raw()
_NO_SEGMENTATION = re.compile(rb"(null|\[\s*\]|\{\s*\})?")


class CocoImage(msgspec.Struct, gc=False):
    """An entry of `images`, as it is there.

    Attributes:
        id: Its id.
        file_name: Its path relative to some root.
        width: Width in pixels.
        height: Height in pixels.
    """

    id: _ImageId
    file_name: str
    width: _Pixels | None = None
    height: _Pixels | None = None


class _Category(msgspec.Struct, gc=False):
    id: _Int64
    name: str


class _Document(msgspec.Struct):
    # Annotations stay text at first: decoded all at once, those of a file without segmentations
    # take over twice the file's size.
    images: list[CocoImage] | None = None
    annotations: list[msgspec.Raw] | None = None
    categories: list[_Category] | None = None


class _Annotation(msgspec.Struct, gc=False):
    image_id: _ImageId
    id: _Int64 | None = None
    category_id: _Int64 | None = None
    bbox: list[float] | None = None
    area: float | None = None
    iscrowd: bool | int | None = None


class _Segmentation(msgspec.Struct, gc=False):
    segmentation: msgspec.Raw = _NOTHING


class _Polygons(msgspec.Struct, gc=False):
    # A mapping is a run-length encoding.
    segmentation: list[list[float]] | dict[str, msgspec.Raw] | None = None


_document_decoder = msgspec.json.Decoder(_Document)
_sections_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_annotation_decoder = msgspec.json.Decoder(_Annotation)
_segmentation_decoder = msgspec.json.Decoder(_Segmentation)
_polygons_decoder = msgspec.json.Decoder(_Polygons)


class UnlistedImage(NamedTuple):
    """An image id that annotations name and `images` does not list.

    Attributes:
        first: Position in `annotations` of the first that names it.
        annotations: How many name it.
    """

    first: int
    annotations: int


class ObjectTable:
    """Annotated objects of many images, by column: 73 bytes each, and 300 as Python objects."""

    def __init__(self) -> None:
        self._images = array("q")
        self._annotation_ids = array("q")
        self._labels: list[str] = []
        self._boxes = array("d")
        self._areas = array("d")
        self._crowds = bytearray()
        self._segmentations: list[msgspec.Raw] = []

    def append(
        self,
        *,
        image: int,
        annotation_id: int,
        label: str,
        bbox: _Box,
        area: float,
        is_crowd: bool,
        segmentation: msgspec.Raw,
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
        """
        self._images.append(image)
        self._annotation_ids.append(annotation_id)
        self._labels.append(label)
        self._boxes.extend(bbox)
        self._areas.append(area)
        self._crowds.append(is_crowd)
        self._segmentations.append(segmentation)

    def by_image(self, images: int) -> Iterator[list[ObjectAnnotation]]:
        """Yields the objects of image 0, 1, … `images` - 1, each image's in order of addition."""
        rows = sorted(range(len(self._images)), key=self._images.__getitem__)
        end = 0
        for image in range(images):
            begin = end
            while end < len(rows) and self._images[rows[end]] == image:
                end += 1
            yield [self._row(row) for row in rows[begin:end]]

    def _row(self, row: int) -> ObjectAnnotation:
        xmin, ymin, xmax, ymax = self._boxes[4 * row : 4 * row + 4]
        return ObjectAnnotation(
            label=self._labels[row],
            bbox=(xmin, ymin, xmax, ymax),
            area=self._areas[row],
            is_crowd=bool(self._crowds[row]),
            annotation_id=self._annotation_ids[row],
            segmentation=_segmentation_text(self._segmentations[row]),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CocoFile:
    """A parsed COCO instances file.

    Images are identified by their position in `images`; image ids are compared as text.

    Attributes:
        images: The entries of `images`.
        positions: `{image id: position of the first entry with it}`.
        categories: The categories, each id once.
        annotation_counts: How many annotations each image has, unusable ones included.
        objects: The usable annotations.
        corrections: What was changed or left out, by image.
        unlisted: Image ids without an entry in `images`, in order of appearance.
    """

    images: Sequence[CocoImage]
    positions: Mapping[str, int]
    categories: Sequence[Category]
    annotation_counts: Sequence[int]
    objects: ObjectTable
    corrections: Mapping[int, Counter[str]]
    unlisted: Mapping[str, UnlistedImage]


def read_coco_file(uri: str, *, storage: Storage, keep_segmentation: bool) -> CocoFile:
    """Reads and parses a COCO instances file.

    At its peak this takes about twice the file's size in memory. With segmentations the result
    refers to the file's content, otherwise it is a small part of it.

    Args:
        uri: The file.
        storage: Reads it.
        keep_segmentation: Whether objects get their segmentation.

    Raises:
        InputError: The file cannot be read, is not JSON, has no `images`, `annotations` or
            `categories`, holds a value of a wrong type, gives two categories one id, or has
            annotations but no box at all.
    """
    images, annotations, categories = _read_sections(uri, storage=storage)
    names = _category_names(categories, uri=uri)
    positions: dict[str, int] = {}
    for position, image in enumerate(images):
        positions.setdefault(str(image.id), position)

    annotation_counts = [0] * len(images)
    objects = ObjectTable()
    corrections: defaultdict[int, Counter[str]] = defaultdict(Counter)
    unlisted: dict[str, UnlistedImage] = {}
    boxes = 0
    for index, text in enumerate(annotations):
        place = f"$.annotations[{index}]"
        annotation = decode_json_part(text, decoder=_annotation_decoder, uri=uri, place=place)
        bbox = _bbox(annotation.bbox, uri=uri, place=place)
        from_polygons = bbox is None
        if bbox is None:
            bbox = _bbox_of_polygons(text, uri=uri, place=place)
        boxes += bbox is not None

        image_id = str(annotation.image_id)
        owner = positions.get(image_id)
        if owner is None:
            first, count = unlisted.get(image_id, (index, 0))
            unlisted[image_id] = UnlistedImage(first=first, annotations=count + 1)
            continue
        annotation_counts[owner] += 1
        label = None if annotation.category_id is None else names.get(annotation.category_id)
        if label is None:
            corrections[owner][Correction.OBJECT_OF_UNKNOWN_CATEGORY_DROPPED.value] += 1
            continue
        if bbox is None:
            corrections[owner][Correction.OBJECT_WITHOUT_BOX_DROPPED.value] += 1
            continue
        if from_polygons:
            corrections[owner][Correction.BOX_FROM_POLYGONS.value] += 1
        objects.append(
            image=owner,
            annotation_id=annotation.id or 0,
            label=label,
            bbox=bbox,
            area=-1.0 if annotation.area is None else annotation.area,
            is_crowd=bool(annotation.iscrowd),
            segmentation=_segmentation_decoder.decode(text).segmentation
            if keep_segmentation
            else _NOTHING,
        )
    if annotations and not boxes:
        raise InputError(
            uri=uri,
            place="$.annotations",
            problem=f"none of the {len(annotations)} annotations has a bbox or polygons; is this "
            f"a file of COCO instances (and not of captions, labels or panoptic segments)?",
        )
    return CocoFile(
        images=images,
        positions=positions,
        categories=[
            Category(name=name, source_id=source_id, origin=uri)
            for source_id, name in names.items()
        ],
        annotation_counts=annotation_counts,
        objects=objects,
        corrections=corrections,
        unlisted=unlisted,
    )


def _read_sections(
    uri: str, *, storage: Storage
) -> tuple[list[CocoImage], list[msgspec.Raw], list[_Category]]:
    data = read_annotation_file(uri, storage=storage)
    document = decode_json(data, decoder=_document_decoder, uri=uri)
    if document.images is None or document.annotations is None or document.categories is None:
        sections = decode_json(data, decoder=_sections_decoder, uri=uri)
        missing = [name for name in _Document.__struct_fields__ if getattr(document, name) is None]
        raise InputError(
            uri=uri,
            place="$",
            problem=f"expected the sections images, annotations and categories of COCO instances; "
            f"missing: {', '.join(missing)}; found: {', '.join(sorted(sections)[:20]) or 'none'}",
        )
    return document.images, document.annotations, document.categories


def _category_names(categories: Sequence[_Category], *, uri: str) -> dict[int, str]:
    names: dict[int, str] = {}
    for index, category in enumerate(categories):
        name = names.setdefault(category.id, category.name)
        if name != category.name:
            raise InputError(
                uri=uri,
                place=f"$.categories[{index}].id",
                problem=f"{category.name!r} has id {category.id}, which is {name!r}'s",
            )
    return names


def _bbox(values: Sequence[float] | None, *, uri: str, place: str) -> _Box | None:
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


def _bbox_of_polygons(annotation: msgspec.Raw, *, uri: str, place: str) -> _Box | None:
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


def _segmentation_text(segmentation: msgspec.Raw) -> bytes:
    text = bytes(segmentation)
    return b"" if _NO_SEGMENTATION.fullmatch(text) else text
