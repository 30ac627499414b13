"""COCO instances: boxes, crowds and masks, in one JSON file for many images.

The format: https://cocodataset.org/#format-data (object detection).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from transforms.formats.base import Format, Kind
from transforms.formats.coco_file import CocoFile, CocoImage, read_coco_file
from transforms.formats.names import escape_key, key_problem, normalize_key
from transforms.reasons import Correction, Reason
from transforms.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    ObjectAnnotation,
    encode_annotations,
)
from transforms.storage import Storage


class CocoFormat(Format):
    """COCO instances.

    `file_name` is the image's key. Of images with one id the first keeps the id and its
    annotations, and the later ones are duplicates by id, whatever their `file_name`; of images
    with one `file_name` and several ids the first keeps the file. An annotation that repeats the
    id (or the lack of one), category and box of an earlier one is left out.

    Args:
        annotations: The JSON files.
        masks: Whether objects carry their segmentation.
    """

    kinds = frozenset({Kind.DETECTION})

    def __init__(self, *, annotations: Sequence[str], masks: bool = False) -> None:
        # A lone string is a sequence of strings as well.
        if isinstance(annotations, str) or not all(isinstance(uri, str) for uri in annotations):
            raise TypeError("annotations: expected a list of files")
        if not annotations:
            raise ValueError("annotations: expected at least one file")
        self._annotations = tuple(annotations)
        if masks:
            self.kinds = self.kinds | {Kind.INSTANCE_MASKS}
        self._masks = masks

    def annotation_files(self) -> Sequence[str]:
        """URIs of the JSON files."""
        return self._annotations

    def read_annotations(
        self, *, storage: Storage, file_index: int
    ) -> Iterator[AnnotationEntry | Category]:
        """Parses one JSON file; see the base class.

        Yields:
            The categories, an entry for each of `images`, and one with the defect
            `UNKNOWN_IMAGE_ID` for each image id that only annotations name.
        """
        uri = self._annotations[file_index]
        # Details end up in the dataset, which must not depend on where its input lies.
        name = uri.rpartition("/")[2]
        file = read_coco_file(uri, storage=storage, keep_segmentation=self._masks)
        yield from file.categories
        yield from _listed_entries(file, name=name, file_index=file_index)
        yield from _unlisted_entries(file, name=name, file_index=file_index)


def _listed_entries(file: CocoFile, *, name: str, file_index: int) -> Iterator[AnnotationEntry]:
    # {key: position of the image that keeps it}
    keys: dict[str, int] = {}
    objects_by_image = file.objects.by_image(len(file.images))
    for position, (image, objects) in enumerate(zip(file.images, objects_by_image, strict=True)):
        image_id = str(image.id)
        key = normalize_key(image.file_name)
        defect, detail = _defect(file, position=position, key=key, keys=keys)
        if defect is None:
            keys[key] = position
            corrections = file.corrections.get(position, Counter())
            annotations = encode_annotations(
                _image_annotations(image, objects=objects, corrections=corrections)
            )
        else:
            key = escape_key(key) or f"image_id={escape_key(image_id)}"
            annotations = b""
            detail = f"{name}: $.images[{position}]: {detail}"
        yield AnnotationEntry(
            key=key,
            annotations=annotations,
            file_index=file_index,
            position=position,
            image_id=image_id,
            defect=defect,
            detail=detail,
        )


def _defect(
    file: CocoFile, *, position: int, key: str, keys: dict[str, int]
) -> tuple[Reason | None, str]:
    image_id = str(file.images[position].id)
    unreadable = key_problem(key)
    if unreadable is not None:
        return Reason.UNREADABLE_NAME, f"file_name: {unreadable}"
    first = file.positions[image_id]
    if first != position:
        return (
            Reason.DUPLICATE_IMAGE_ID,
            f"image id {image_id} is $.images[{first}]'s, and its annotations with it",
        )
    if key in keys:
        return (
            Reason.DUPLICATE_KEY,
            f"image id {image_id} has the file_name of image id {file.images[keys[key]].id} "
            f"($.images[{keys[key]}]); its {file.annotation_counts[position]} annotations "
            f"are left out",
        )
    return None, ""


def _image_annotations(
    image: CocoImage, *, objects: Sequence[ObjectAnnotation], corrections: Counter[str]
) -> ImageAnnotations:
    unique: dict[tuple[object, ...], ObjectAnnotation] = {}
    for item in objects:
        unique.setdefault((item.annotation_id, item.label, item.bbox), item)
    repeats = len(objects) - len(unique)
    if repeats:
        corrections = corrections + Counter(
            {Correction.DUPLICATE_ANNOTATION_DROPPED.value: repeats}
        )
    return ImageAnnotations(
        image_id=str(image.id),
        width=int(image.width or 0),
        height=int(image.height or 0),
        objects=tuple(unique.values()),
        corrections=dict(sorted(corrections.items())),
    )


def _unlisted_entries(file: CocoFile, *, name: str, file_index: int) -> Iterator[AnnotationEntry]:
    for position, (image_id, unlisted) in enumerate(file.unlisted.items(), len(file.images)):
        yield AnnotationEntry(
            key=f"image_id={escape_key(image_id)}",
            annotations=b"",
            file_index=file_index,
            position=position,
            image_id=image_id,
            defect=Reason.UNKNOWN_IMAGE_ID,
            detail=f"{name}: $.annotations[{unlisted.first}]: `images` lists no image id "
            f"{image_id}, which {unlisted.annotations} annotations name",
        )
