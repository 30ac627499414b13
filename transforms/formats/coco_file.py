"""What a COCO file holds, parsed and grouped by image in little memory.

The format: https://cocodataset.org/#format-data (object detection, keypoint detection, image
captioning, stuff segmentation).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic

import msgspec

from shardbeam.transforms.core.reasons import Correction
from shardbeam.transforms.core.records import Category, ImageAnnotations, ObjectAnnotation
from shardbeam.transforms.formats.annotation_file import decode_json_part
from shardbeam.transforms.formats.coco_annotations import AnnotationReader, Wanted
from shardbeam.transforms.formats.coco_images import ImageT, ImageTable, UnusableImage
from shardbeam.transforms.formats.coco_sections import CocoCategory, category_names, read_sections
from shardbeam.transforms.formats.coco_tables import ObjectTable, TextTable
from shardbeam.transforms.storage.base import Storage

_names_decoder = msgspec.json.Decoder(list[str] | None)

# What COCO's files of test images hold: no annotations.
_IMAGE_INFO_SECTIONS = frozenset({"info", "licenses", "images", "categories"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class CocoFile(Generic[ImageT]):
    """A parsed COCO file.

    Attributes:
        table: The images.
        categories: The categories, each id once.
        names: `{category id: its name}`.
        objects: The usable objects.
        stuff: The usable regions of stuff.
        captions: The captions.
        labels: Names of classes of images.
        corrections: What was changed or left out, by image.
        malformed: Of images with an annotation that cannot be read: which, and why.
    """

    table: ImageTable[ImageT]
    categories: Sequence[Category]
    names: Mapping[int | None, str]
    objects: ObjectTable
    stuff: ObjectTable
    captions: TextTable
    labels: TextTable
    corrections: Mapping[int, Mapping[str, int]]
    malformed: Mapping[int, UnusableImage]

    def annotations(self) -> Iterator[ImageAnnotations | UnusableImage]:
        """Yields what is said about each image, in order."""
        count = len(self.table.images)
        for position, (image, objects, stuff, captions, labels) in enumerate(
            zip(
                self.table.images,
                self.objects.by_image(count),
                self.stuff.by_image(count),
                self.captions.by_image(count),
                self.labels.by_image(count),
                strict=True,
            )
        ):
            if position in self.malformed:
                yield self.malformed[position]
                continue
            unique = _without_repeats(objects)
            corrections = self.corrections.get(position, {})
            if len(unique) < len(objects):
                corrections = {
                    **corrections,
                    Correction.DUPLICATE_ANNOTATION_DROPPED.value: len(objects) - len(unique),
                }
            yield ImageAnnotations(
                image_id=str(image.id),
                width=int(image.width or 0),
                height=int(image.height or 0),
                labels=tuple(dict.fromkeys(labels)),
                objects=unique,
                corrections=dict(sorted(corrections.items())),
                captions=captions,
                stuff=stuff,
            )


def read_coco_file(
    uri: str, *, storage: Storage, wanted: Wanted, image_type: type[ImageT]
) -> CocoFile[ImageT]:
    """Reads and parses a COCO file.

    At its peak this takes about twice the file's size in memory. With segmentations the result
    refers to the file's content, otherwise it is a small part of it.

    Args:
        uri: The file.
        storage: Reads it.
        wanted: What to take from it.
        image_type: What an entry of `images` is: `CocoImage`, or more.

    Raises:
        InputError: The file cannot be read, is not JSON, lacks a section that it needs, holds a
            value of a wrong type in an image, a category or every annotation, gives two
            categories one id, or has annotations of other kinds only.
    """
    sections = read_sections(uri, storage=storage, image_type=image_type)
    if not set(sections.found) <= _IMAGE_INFO_SECTIONS:
        sections.require("annotations")
    names = category_names(sections.categories, uri=uri)
    table = ImageTable(sections.images)
    reader = AnnotationReader(uri=uri, wanted=wanted, names=names, table=table)
    for index, text in enumerate(sections.annotations):
        reader.add(text, index=index)
    if reader.needs_categories:
        sections.require("categories")
    reader.check(sections.annotations)
    return CocoFile(
        table=table,
        categories=list(
            _declare(sections.categories, wanted=wanted, counts=reader.keypoint_counts, uri=uri)
        ),
        names=names,
        objects=reader.objects,
        stuff=reader.stuff,
        captions=reader.captions,
        labels=reader.labels,
        corrections=reader.corrections,
        malformed=reader.malformed,
    )


def _declare(
    categories: Sequence[CocoCategory], *, wanted: Wanted, counts: Mapping[int, int], uri: str
) -> Iterator[Category]:
    """Yields what is to be known of the categories, each once; none where they are no matter.

    Args:
        categories: The file's categories.
        wanted: What is taken from the file.
        counts: `{category id: the most keypoints that an object has}`.
        uri: The file.

    Raises:
        InputError: Names of keypoints are no texts.
    """
    if not (wanted.objects or wanted.labels or wanted.stuff):
        return
    declared: set[int] = set()
    for index, category in enumerate(categories):
        if category.id in declared:
            continue
        declared.add(category.id)
        names: tuple[str, ...] = ()
        if wanted.keypoints:
            place = f"$.categories[{index}].keypoints"
            names = _keypoint_names(
                category, count=counts.get(category.id, 0), uri=uri, place=place
            )
        yield Category(
            name=category.name,
            source_id=category.id,
            origin=uri,
            keypoints=names,
            is_thing=not wanted.stuff,
        )


def _keypoint_names(category: CocoCategory, *, count: int, uri: str, place: str) -> tuple[str, ...]:
    """Names a category's keypoints, and numbers those without one of their own."""
    declared: list[str] = []
    if category.keypoints:
        declared = (
            decode_json_part(category.keypoints, decoder=_names_decoder, uri=uri, place=place) or []
        )
    names: list[str] = []
    for number in range(max(count, len(declared))):
        name = declared[number] if number < len(declared) else ""
        # A reader tells keypoints by their names.
        names.append(name if name and name not in names else f"keypoint_{number + 1}")
    return tuple(names)


def _without_repeats(objects: Sequence[ObjectAnnotation]) -> tuple[ObjectAnnotation, ...]:
    unique: dict[tuple[object, ...], ObjectAnnotation] = {}
    for item in objects:
        unique.setdefault((item.annotation_id, item.label, item.bbox), item)
    return tuple(unique.values())
