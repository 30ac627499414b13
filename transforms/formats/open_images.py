"""Open Images: CSV files of boxes and of image-level labels, joined by image id.

The format: https://storage.googleapis.com/openimages/web/download_v7.html ("Data formats").
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated

import msgspec

from shardbeam.configs.keys import Location, named
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    ObjectAnnotation,
    encode_annotations,
)
from shardbeam.transforms.examples.features import (
    ExtraFeature,
    FeatureKind,
    FeatureRole,
    value_list,
)
from shardbeam.transforms.formats.base import Format, Kind, Place, Role
from shardbeam.transforms.formats.names import listing_exclusion, normalize_key
from shardbeam.transforms.formats.open_images_rows import (
    ABSENT_LABELS,
    ABSENT_TEXTS,
    ATTRIBUTES,
    BOX_COLUMNS,
    CONFIDENCE,
    LABEL_COLUMNS,
    Classes,
    Row,
    read_box,
    read_class_names,
    read_confidence,
    read_rows,
)
from shardbeam.transforms.formats.table_columns import CellError
from shardbeam.transforms.storage.base import Storage
from shardbeam.transforms.storage.find import storage_for


class OpenImagesFormat(Format, frozen=True, kw_only=True):
    """Open Images: an image's id is its file's name without the extension.

    Attributes:
        classes: The CSV file of class descriptions, which gives each class its name and its id:
            its position, counted from 1 where there are boxes and from 0 otherwise. Without it,
            every label that rows name is a class of that name (`/m/…`).
    """

    SUMMARY = "Open Images CSV: boxes and image-level labels"
    chunk_bytes = 32 << 20

    images: Annotated[Location, named("root folder of the images", metavar="DIR")]
    boxes: Annotated[list[Location], named("CSV file of boxes")] = []
    classes: Annotated[Location, named("file of class names")] | None = None
    image_labels: Annotated[list[Location], named("CSV file of image-level labels")] = []

    def __post_init__(self) -> None:
        self.check_some("boxes", "image_labels")

    @functools.cached_property
    def kinds(self) -> frozenset[Kind]:
        """Objects where there are boxes, labels where there are labels."""
        kinds = {Kind.DETECTION} if self.boxes else set()
        if self.image_labels:
            kinds |= {Kind.CLASSIFICATION, Kind.LABEL_CONFIDENCE}
        return frozenset(kinds)

    @functools.cached_property
    def _names(self) -> Mapping[str, str] | None:
        """`{label, as rows give it: class name}`."""
        if self.classes is None:
            return None
        return read_class_names(self.classes, storage=storage_for(self.classes))

    def resolve(self) -> OpenImagesFormat:
        """Reads the file of classes, so that a bad one is found before the run."""
        _ = self._names
        return self

    def extra_features(self) -> Sequence[ExtraFeature]:
        """Attributes of boxes, and the labels that were verified to be absent."""
        features: list[ExtraFeature] = []
        if Kind.DETECTION in self.kinds:
            confidence = value_list(CONFIDENCE, FeatureKind.FLOAT)
            features.append(ExtraFeature(confidence, per_object=True, default=1.0))
            for key in ATTRIBUTES.values():
                features.append(ExtraFeature(value_list(key, FeatureKind.INT64), per_object=True))
        if Kind.CLASSIFICATION in self.kinds:
            labels = value_list(ABSENT_LABELS, FeatureKind.INT64, FeatureRole.LABEL)
            texts = value_list(ABSENT_TEXTS, FeatureKind.BYTES, FeatureRole.LABEL_TEXT)
            features += [ExtraFeature(labels), ExtraFeature(texts)]
        return features

    def place(self, path: str, *, root: int) -> Place:
        """Joins an image by its id."""
        key = normalize_key(path)
        # What is left out anyway must not stand in the way of the image beside it.
        if listing_exclusion(key) is not None:
            return Place(role=Role.IMAGE, key=key, join=key)
        stem = key.rpartition("/")[2].rpartition(".")[0]
        return Place(role=Role.IMAGE, key=key, join=stem)

    def annotation_files(self) -> Sequence[str]:
        """URIs of the files of boxes, of those of labels, and of the classes file."""
        return (*self.boxes, *self.image_labels, *([self.classes] if self.classes else []))

    def read_chunk(
        self, *, storage: Storage, file_index: int, begin: int, end: int
    ) -> Iterator[AnnotationEntry | Category]:
        """Parses a part of one CSV file.

        Yields:
            An entry for each run of rows of one image, one with the defect
            `ANNOTATION_MALFORMED` for the bad ones among them, and the categories: those of the
            classes file, or, where there is none, those that the rows of this part name.
        """
        uri = self.annotation_files()[file_index]
        if self._names is not None and file_index == len(self.boxes) + len(self.image_labels):
            # It is small, and has been read whole.
            first = int(Kind.DETECTION in self.kinds)
            for source_id, name in enumerate(self._names.values(), first):
                if begin == 0:
                    yield Category(name=name, source_id=source_id, origin=uri)
            return
        is_boxes = file_index < len(self.boxes)
        columns = BOX_COLUMNS if is_boxes else LABEL_COLUMNS
        classes = Classes(self._names)
        rows = read_rows(uri, storage=storage, columns=columns, begin=begin, end=end)
        for key, group in itertools.groupby(rows, key=operator.itemgetter(1)):
            yield from _read_image(
                key, group, is_boxes=is_boxes, classes=classes, uri=uri, file_index=file_index
            )
        if self._names is None:
            for label in sorted({label for label in classes.values() if label is not None}):
                yield Category(name=label, origin=uri)

    def reconcile(self, annotations: ImageAnnotations) -> ImageAnnotations:
        """Takes labels out that another file or part verified to be absent."""
        absent = annotations.values.get(ABSENT_LABELS, ())
        if not absent:
            return annotations
        confidences = dict(zip(annotations.labels, annotations.label_confidences, strict=True))
        confidences |= {str(label): 0.0 for label in absent}
        return msgspec.structs.replace(
            annotations,
            labels=_present(confidences),
            label_confidences=tuple(confidences[label] for label in _present(confidences)),
            values=dict(annotations.values) | _absent_values(confidences),
        )


def _read_image(
    key: str, rows: Iterable[Row], *, is_boxes: bool, classes: Classes, uri: str, file_index: int
) -> Iterator[AnnotationEntry]:
    """Yields an entry for consecutive rows of one image, and one for the bad ones among them."""
    objects: list[ObjectAnnotation] = []
    confidences: dict[str, float] = {}
    dropped = good = bad = 0
    begin = first_bad = -1
    detail = ""
    for position, _, cells, problem in rows:
        begin = position if begin < 0 else begin
        try:
            if problem:
                raise CellError(problem)
            if is_boxes:
                bbox, attributes = read_box(cells)
            else:
                confidence = read_confidence(cells["Confidence"])
            label = classes[cells["LabelName"]]
        except CellError as error:
            if not bad:
                first_bad, detail = position, str(error)
            bad += 1
            continue
        good += 1
        if label is None:
            dropped += 1
        elif is_boxes:
            objects.append(ObjectAnnotation(label=label, bbox=bbox, attributes=attributes))
        else:
            known = confidences.get(label, confidence)
            # Verified to be absent is the last word.
            confidences[label] = max(known, confidence) if known and confidence else 0.0
    if good:
        correction = (
            Correction.OBJECT_OF_UNKNOWN_CATEGORY_DROPPED
            if is_boxes
            else Correction.LABEL_OF_UNKNOWN_CATEGORY_DROPPED
        )
        annotations = ImageAnnotations(
            image_id=key,
            labels=_present(confidences),
            objects=tuple(objects),
            corrections={correction.value: dropped} if dropped else {},
            normalized=True,
            label_confidences=tuple(filter(None, confidences.values())),
            values=_absent_values(confidences),
        )
        yield AnnotationEntry(
            key=key,
            annotations=encode_annotations(annotations),
            file_index=file_index,
            position=begin,
        )
    if bad:
        others = f", and {bad - 1} more rows" if bad > 1 else ""
        yield AnnotationEntry(
            key=key,
            file_index=file_index,
            position=first_bad,
            defect=Reason.ANNOTATION_MALFORMED,
            detail=f"{uri.rpartition('/')[2]}: byte {first_bad}: {detail}{others}",
        )


def _present(confidences: Mapping[str, float]) -> tuple[str, ...]:
    return tuple(label for label, confidence in confidences.items() if confidence)


def _absent_values(confidences: Mapping[str, float]) -> dict[str, tuple[str, ...]]:
    absent = tuple(label for label, confidence in confidences.items() if not confidence)
    return {ABSENT_LABELS: absent, ABSENT_TEXTS: absent} if absent else {}
