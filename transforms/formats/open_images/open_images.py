"""Open Images: CSV files of boxes and of image-level labels, joined by image id.

The format: https://storage.googleapis.com/openimages/web/download_v7.html ("Data formats").
"""

from __future__ import annotations

import functools
import itertools
import operator
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from shardbeam.configs.keys import Location, named
from shardbeam.transforms.core.corrections import Corrections
from shardbeam.transforms.core.kinds import BoxReading
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    ObjectAnnotation,
    encode_annotations,
)
from shardbeam.transforms.core.text import counted
from shardbeam.transforms.examples.features import (
    ExtraFeature,
    FeatureKind,
    FeatureRole,
    value_list,
)
from shardbeam.transforms.formats.base import Format, Kind, Match, Place, Role
from shardbeam.transforms.formats.names import key_problem, listing_exclusion, normalize_key
from shardbeam.transforms.formats.open_images.rows import (
    ATTRIBUTES,
    CONFIDENCE,
    SIDES,
    NumberedRow,
    read_box,
    read_class_names,
    read_confidence,
    read_rows,
)
from shardbeam.transforms.formats.parsing.table_columns import CellError
from shardbeam.transforms.formats.recognition import Folder, Recognized, describe_missing, split_in
from shardbeam.transforms.storage.base import Storage
from shardbeam.transforms.storage.find import storage_for

_ABSENT_LABELS = "image/class/absent/label"
_ABSENT_TEXTS = "image/class/absent/text"

# The required columns of a file, and the optional ones.
_BOX_COLUMNS = (("ImageID", "LabelName", *SIDES), ("Confidence", *ATTRIBUTES))
_LABEL_COLUMNS = (("ImageID", "LabelName", "Confidence"), ())


class OpenImagesFormat(Format, frozen=True, kw_only=True):
    """Open Images.

    An image's id is its file's name without the extension. An image with a row that cannot be read
    is rejected: written without that row, it would teach that less is there.

    Attributes:
        images: Root folder of the images, named by their ids.
        boxes: CSV files of boxes.
        classes: The CSV file of class descriptions, which gives each class its name. A class's id
            is its position, counted from 1 if there are boxes and from 0 otherwise. Labels that
            the file does not name are left out and counted. Without the file, every label in the
            rows (`/m/…`) is a class.
        image_labels: CSV files of image-level labels.
    """

    SOME_OF = ("boxes", "image_labels")
    SUMMARY = "Open Images CSV: boxes and image-level labels"
    # Nobody has verified what the other images show.
    UNANNOTATED = "drop"
    chunk_bytes = 32 << 20
    # Corners in fractions.
    box_reading = BoxReading()

    images: Annotated[Location, named("root folder of the images", metavar="DIR")]
    boxes: Annotated[list[Location], named("CSV file of boxes")] = []
    classes: Annotated[Location, named("CSV file of class descriptions")] | None = None
    image_labels: Annotated[list[Location], named("CSV file of image-level labels")] = []
    match: Match = "path"

    def __post_init__(self) -> None:
        self.check_some()

    @classmethod
    def recognize(cls, folder: Folder) -> Recognized | None:
        """Recognizes CSV files by their columns, and class descriptions by their first line."""
        columns = {"boxes": {"ImageID", "LabelName", *SIDES}, "image_labels": {*_LABEL_COLUMNS[0]}}
        sources: dict[str, dict[str, Any]] = {}
        classes = []
        files = 0
        for path in folder.named(".csv"):
            lines = folder.head(path).decode("utf-8", "replace").splitlines()
            header = {cell.strip() for cell in lines[0].split(",")} if lines else set()
            if lines and (lines[0].startswith("/m/") or header == {"LabelName", "DisplayName"}):
                classes.append(path)
            key = next((key for key, needed in columns.items() if needed <= header), "")
            if not key:
                continue
            files += 1
            place = lines[0].split(",").index("ImageID")
            names = [line.split(",")[place] for line in lines[1:-1] or lines[1:] if "," in line]
            images = folder.find_images(names, near=path)
            if images is None:
                problem = describe_missing(path, names=names)
                return Recognized(what=counted(files, "CSV file"), problem=problem)
            source = sources.setdefault(split_in(path), {"images": folder.uri(images.folder)})
            if source["images"] != folder.uri(images.folder):
                problem = (
                    f"the images of {path} are in {folder.uri(images.folder)}, and those of "
                    f"others in {source['images']}"
                )
                return Recognized(what=counted(files, "CSV file"), problem=problem)
            source.setdefault(key, []).append(folder.uri(path))
        for source in sources.values():
            if len(classes) == 1:
                source["classes"] = folder.uri(classes[0])
        return Recognized(what=counted(files, "CSV file"), sources=sources) if files else None

    @functools.cached_property
    def kinds(self) -> frozenset[Kind]:
        """Objects if there are boxes, and labels if there are labels."""
        kinds = {Kind.DETECTION} if self.boxes else set()
        if self.image_labels:
            kinds |= {Kind.CLASSIFICATION, Kind.LABEL_CONFIDENCE}
        return frozenset(kinds)

    @functools.cached_property
    def _names(self) -> Mapping[str, str] | None:
        """`{label in the rows: class name}`."""
        if self.classes is None:
            return None
        return read_class_names(self.classes, storage=storage_for(self.classes))

    def resolve(self) -> OpenImagesFormat:
        """Reads the file of classes to find its errors before the run.

        Raises:
            InputError: The file cannot be read, or is not such a file.
        """
        _ = self._names
        return self

    def extra_features(self) -> Sequence[ExtraFeature]:
        """Declares attributes of boxes, and the labels that were verified to be absent."""
        features: list[ExtraFeature] = []
        if Kind.DETECTION in self.kinds:
            confidence = value_list(CONFIDENCE, FeatureKind.FLOAT)
            features.append(ExtraFeature(confidence, per_object=True, default=1.0))
            for key in ATTRIBUTES.values():
                features.append(ExtraFeature(value_list(key, FeatureKind.INT64), per_object=True))
        if Kind.CLASSIFICATION in self.kinds:
            labels = value_list(_ABSENT_LABELS, FeatureKind.INT64, FeatureRole.LABEL)
            texts = value_list(_ABSENT_TEXTS, FeatureKind.BYTES, FeatureRole.LABEL_TEXT)
            features += [ExtraFeature(labels), ExtraFeature(texts)]
        return features

    def place(self, path: str, *, root: int) -> Place:
        """Joins an image by its id."""
        key = normalize_key(path)
        # An excluded file must not have the same join key as the image beside it.
        if listing_exclusion(key) is not None:
            return Place(role=Role.IMAGE, key=key, join=key)
        stem = key.rpartition("/")[2].rpartition(".")[0]
        return Place(role=Role.IMAGE, key=key, join=stem)

    def annotation_files(self) -> Sequence[str]:
        """Returns the URIs of the files of boxes, of labels, and of classes."""
        return (*self.boxes, *self.image_labels, *([self.classes] if self.classes else []))

    def read_chunk(
        self, *, storage: Storage, file_index: int, begin: int, end: int
    ) -> Iterator[AnnotationEntry | Category]:
        """Parses a part of one CSV file.

        Yields:
            An entry for consecutive rows of one image, another with the defect
            `ANNOTATION_MALFORMED` if some of them are bad, and the categories: those of the
            classes file, or without one, the labels in this part.

        Raises:
            InputError: The file cannot be read, or lacks a column.
        """
        uri = self.annotation_files()[file_index]
        if self._names is not None and file_index == len(self.boxes) + len(self.image_labels):
            # The file of classes is small, and is read whole by `_names`.
            first = int(Kind.DETECTION in self.kinds)
            for source_id, name in enumerate(self._names.values(), first):
                if begin == 0:
                    yield Category(name=name, source_id=source_id, origin=uri)
            return
        is_boxes = file_index < len(self.boxes)
        columns = _BOX_COLUMNS if is_boxes else _LABEL_COLUMNS
        classes = _Classes(self._names)
        rows = read_rows(uri, storage=storage, columns=columns, begin=begin, end=end)
        for key, group in itertools.groupby(rows, key=operator.itemgetter(1)):
            yield from _read_image(
                key, group, is_boxes=is_boxes, classes=classes, uri=uri, file_index=file_index
            )
        if self._names is None:
            for label in sorted({label for label in classes.values() if label is not None}):
                yield Category(name=label, origin=uri)

    def reconcile(self, annotations: ImageAnnotations) -> ImageAnnotations:
        """Removes labels that another file or part verified to be absent."""
        absent = annotations.values.get(_ABSENT_LABELS, ())
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
    key: str,
    rows: Iterable[NumberedRow],
    *,
    is_boxes: bool,
    classes: _Classes,
    uri: str,
    file_index: int,
) -> Iterator[AnnotationEntry]:
    """Yields an entry for consecutive rows of one image, and another for bad rows among them."""
    objects: list[ObjectAnnotation] = []
    confidences: dict[str, float] = {}
    good = bad = 0
    corrections = Corrections()
    # The config names the file of classes, and with it the classes that are written.
    left_out = (
        Correction.OBJECT_OF_EXCLUDED_LABEL_DROPPED
        if is_boxes
        else Correction.EXCLUDED_LABEL_DROPPED
    )
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
            corrections.note(left_out, cells["LabelName"])
        elif is_boxes:
            objects.append(ObjectAnnotation(label=label, bbox=bbox, attributes=attributes))
        else:
            known = confidences.get(label, confidence)
            # A confidence of 0 means verified to be absent, which wins.
            confidences[label] = max(known, confidence) if known and confidence else 0.0
    if good:
        annotations = ImageAnnotations(
            image_id=key,
            labels=_present(confidences),
            objects=tuple(objects),
            corrections=corrections.counts(),
            changes=corrections.changes,
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
    return {_ABSENT_LABELS: absent, _ABSENT_TEXTS: absent} if absent else {}


class _Classes(dict[str, str | None]):
    """`{label: name of its class}` for labels in the rows; None where there is no such class.

    Without a file of classes, labels are the names.
    """

    def __init__(self, names: Mapping[str, str] | None) -> None:
        super().__init__()
        self._names = names

    def __missing__(self, label: str) -> str | None:
        text = unicodedata.normalize("NFC", label)
        if key_problem(text) is not None or text.splitlines() != [text]:
            raise CellError(f"LabelName: expected a label, got {text!a}")
        self[label] = text if self._names is None else self._names.get(text)
        return self[label]
