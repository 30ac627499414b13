"""Joining what is listed with what is annotated, one key at a time."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

from shardbeam.transforms.core.corrections import Corrections
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.labels import LabelSettings
from shardbeam.transforms.core.reasons import Correction, Exclusion, Reason
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    ImageAnnotations,
    ListedImage,
    ObjectAnnotation,
    Record,
    Reject,
    Value,
    decode_annotations,
    encode_annotations,
)
from shardbeam.transforms.core.sharding import NO_SPLIT, SplitAssignment
from shardbeam.transforms.formats.base import Format, Kind
from shardbeam.transforms.formats.key_file import KeyFile, image_groups, is_excluded
from shardbeam.transforms.formats.names import listing_exclusion, loosened

# Reasons for which a part of what a source says about an image cannot be read.
_INCOMPLETE = frozenset({Reason.ANNOTATION_MALFORMED, Reason.CHANGED_SINCE_LISTING})


class JoinSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the config says about the join.

    Attributes:
        splits: Which split a key belongs to.
        labels: Which classes are written.
        unannotated: What becomes of an image that no annotation file names.
        example_per: Whether an image makes one Example, or one for each of its objects.
        exclude: The file that names images to leave out.
        groups: The file of groups of images that stay in one split.
        limit: How many images of each split go on at most; all where None.
    """

    splits: SplitAssignment
    labels: LabelSettings
    unannotated: Literal["keep", "drop", "reject"] = "keep"
    example_per: Literal["image", "annotation"] = "image"
    exclude: KeyFile | None = None
    groups: KeyFile | None = None
    limit: int | None = None

    def group_of(self, *, source: str, key: str) -> tuple[str, str]:
        """The image whose split an image goes into, by the file of groups: perhaps itself."""
        image = source, key
        return image if self.groups is None else image_groups(self.groups).get(image, image)

    def classes_of(self, annotations: bytes) -> tuple[str, ...]:
        """The classes, as they are written, that a record's annotations name."""
        found = decode_annotations(annotations)
        return self._written((*found.labels, *(item.label for item in found.objects)))

    def shown_classes(self, annotations: bytes) -> tuple[str, ...]:
        """The same, and the classes of regions and panoptic segments."""
        found = decode_annotations(annotations)
        items = (*found.objects, *found.stuff)
        segments = (segment.label for segment in found.segments)
        return self._written((*found.labels, *(item.label for item in items), *segments))

    def _written(self, labels: Iterable[str]) -> tuple[str, ...]:
        names = map(self.labels.written_name, dict.fromkeys(labels))
        return tuple(name for name in names if name)


class JoinedKey(msgspec.Struct, frozen=True, kw_only=True):
    """What became of all that is joined by one text.

    Attributes:
        split: The split it belongs to; `NO_SPLIT` where there is no telling.
        record: The image with its annotations, if it goes on.
        unannotated: Whether `record` has no annotations because nothing names it.
        labels: Image-level classes that the image's name tells.
        excluded: The rule that leaves the image out, if one does.
        rejects: What cannot be used.
    """

    split: str
    record: Record | None = None
    unannotated: bool = False
    labels: tuple[str, ...] = ()
    excluded: Exclusion | None = None
    rejects: Sequence[Reject] = ()


class _Defect(NamedTuple):
    """What is wrong with what is said about an image; `of_split` where only its split is."""

    reason: Reason
    detail: str
    of_split: bool = False


class _Merged(NamedTuple):
    """What the entries of one image say together.

    Attributes:
        split_problem: What is wrong with the split, where the dataset has none of that name.
        usable: Whether an entry without a defect gives annotations or a split.
    """

    annotations: bytes | None
    split: str
    split_problem: str
    exclusion: Exclusion | None
    defects: list[_Defect]
    usable: bool

    def lost(self) -> _Defect | None:
        """The defect that leaves less than the source says about the image, if any does.

        Written without the annotations that it has, an image would teach that nothing is there.
        """
        for defect in self.defects:
            if not defect.of_split and (self.annotations is None or defect.reason in _INCOMPLETE):
                return defect
        return None


def join_text(text: str, *, source_format: Format) -> str:
    """What an image or an entry is joined by, as the key `match` of its format says."""
    if Kind.ROWS in source_format.kinds:
        return text
    return loosened(text, getattr(source_format, "match", "path"))


def join_key(
    *,
    source: str,
    key: str,
    images: Iterable[ListedImage],
    entries: Collection[AnnotationEntry],
    source_format: Format,
    settings: JoinSettings,
) -> JoinedKey:
    """Decides what becomes of all that is joined by one text.

    Args:
        source: The source's name.
        key: What they are joined by: the image's key, unless the format says otherwise.
        images: The listed images, in any order; more than one only if the format joins by less
            than the name, or names differ in nothing but their Unicode normalization.
        entries: What the annotation files say about it, in any order.
        source_format: The source's format, which may tell annotations from the key.
        settings: The config's rules.
    """
    listed = sorted(images, key=lambda image: (image.key, image.image.uri, image.image.offset))
    merged = _merge_entries(entries, source_format=source_format)
    image_key = listed[0].key if listed else key
    named_split = merged.split or (source_format.split_listed(image_key) if listed else "")
    if settings.exclude is not None and is_excluded(settings.exclude, source=source, key=image_key):
        merged = merged._replace(exclusion=Exclusion.EXCLUDED_BY_FILE)
    group = settings.group_of(source=source, key=image_key)
    split = settings.splits.split_of(
        source=source, key=image_key, predefined=named_split, group=group
    )
    rejects: list[Reject] = []

    made = functools.partial(Reject, split=split, source=source, stage="join")

    def reject(defect: _Defect, *, listed: bool, key: str = image_key) -> None:
        rejects.append(made(key=key, reason=defect.reason, detail=defect.detail, listed=listed))

    done = functools.partial(JoinedKey, split=split, rejects=rejects)
    if Kind.ROWS in source_format.kinds:
        # A row without an image is the input itself.
        if merged.exclusion is not None:
            return done(excluded=merged.exclusion)
        defects = merged.defects
        if merged.annotations is not None and split == NO_SPLIT:
            problem = merged.split_problem or "the row names no split of the dataset"
            defects = [_Defect(Reason.UNKNOWN_SPLIT, problem)]
        for index, defect in enumerate(defects):
            reject(defect, listed=not index)
        if merged.annotations is None or defects:
            return done()
        return done(
            record=Record(source, key, image=None, annotations=merged.annotations, split=split)
        )

    if not listed:
        if merged.exclusion is not None:
            return done()
        # A list of a split that the config does not use says nothing.
        if merged.annotations is not None or (merged.usable and settings.splits.predefined):
            reject(
                _Defect(Reason.MISSING_IMAGE, "annotated, but no such image is listed"),
                listed=False,
            )
        for defect in merged.defects:
            reject(defect, listed=False)
        return done()

    detail = ""
    # One annotation file has one name for an image, unless `match` takes several for the same.
    named = {(entry.file_index, entry.key) for entry in entries}
    if listed[-1].key != image_key:
        names = dict.fromkeys(image.key for image in listed)
        detail = f"annotations name all of these alike: {', '.join(names)}"
    elif len(named) > len({index for index, _ in named}):
        names = dict.fromkeys(name for _, name in sorted(named))
        detail = f"annotations name several images that may be this: {', '.join(names)}"
    if detail:
        ambiguous = _Defect(Reason.AMBIGUOUS_STEM, detail)
        for image in listed:
            reject(ambiguous, listed=True, key=image.key)
        for defect in merged.defects:
            reject(defect, listed=False)
        return done()

    for _ in listed[1:]:
        reject(_Defect(Reason.DUPLICATE_KEY, "another listed file has the same key"), listed=True)
    excluded = merged.exclusion
    lost = merged.lost() if excluded is None else None
    if lost is not None:
        reject(lost, listed=True)
    for defect in merged.defects:
        if defect is not lost:
            reject(defect, listed=False)
    if lost is not None:
        return done()

    annotations = merged.annotations
    unannotated = False
    labels: tuple[str, ...] = ()
    if excluded is None and annotations is None:
        try:
            said = source_format.annotate_listed(image_key)
        except RejectedError as error:
            reject(_Defect(error.reason, error.detail), listed=True)
            return done()
        if isinstance(said, Exclusion):
            excluded = said
        elif said is None:
            unannotated = True
            excluded = listing_exclusion(image_key)
            if excluded is None and settings.unannotated == "reject":
                reject(_Defect(Reason.UNANNOTATED, "no annotation file names it"), listed=True)
                return done()
            if excluded is None and settings.unannotated == "drop":
                excluded = Exclusion.UNANNOTATED
            annotations = encode_annotations(ImageAnnotations(image_id=""))
        else:
            labels = said.labels
            if labels and all(settings.labels.written_name(label) is None for label in labels):
                excluded = Exclusion.LABEL_EXCLUDED
            annotations = encode_annotations(said)
    if excluded is None and split == NO_SPLIT:
        if merged.split_problem:
            reject(_Defect(Reason.UNKNOWN_SPLIT, merged.split_problem), listed=True)
            return done()
        excluded = Exclusion.IN_NO_SPLIT
    if excluded is not None or annotations is None:
        return done(labels=labels, excluded=excluded)
    if not settings.splits.matches(source=source, key=image_key):
        pattern = settings.splits.group_by
        problem = f"group_by ({pattern}) finds nothing in the key"
        reject(_Defect(Reason.GROUP_NOT_MATCHED, problem), listed=True)
        return done(labels=labels)
    if settings.splits.stratify:
        split = settings.splits.split_of(
            source=source, key=image_key, classes=settings.classes_of(annotations), group=group
        )
        rejects = [msgspec.structs.replace(each, split=split) for each in rejects]
    examples = 1
    if settings.example_per == "annotation":
        examples = len(decode_annotations(annotations).objects)
    record = Record(
        source=source,
        key=image_key,
        image=listed[0].image,
        annotations=annotations,
        split=split,
        examples=examples,
    )
    return JoinedKey(
        split=split, record=record, unannotated=unannotated, labels=labels, rejects=rejects
    )


def _merge_entries(entries: Iterable[AnnotationEntry], *, source_format: Format) -> _Merged:
    """Merges what is said about one image.

    The same image may stand in several annotation files, under one id; an entry with another
    id is another image that claims the same file.
    """
    # Files that are about one image each have no order but that of their names.
    ordered = sorted(
        entries, key=lambda each: (each.file_index, each.position, each.image_id, each.detail)
    )
    good = [entry for entry in ordered if entry.defect is None]
    defects = [_Defect(entry.defect, entry.detail) for entry in ordered if entry.defect is not None]
    image_id = next((entry.image_id for entry in good if entry.image_id), "")
    split = next((entry.split for entry in good if entry.split), "")
    merged = []
    for entry in good:
        if entry.image_id and entry.image_id != image_id:
            detail = f"image id {entry.image_id} has the file name of image id {image_id}"
            defects.append(_Defect(Reason.DUPLICATE_KEY, detail))
            continue
        if entry.split and entry.split != split:
            detail = f"it is in split {split!r} already, and in {entry.split!r} as well"
            defects.append(_Defect(Reason.DUPLICATE_KEY, detail, of_split=True))
        if entry.annotations:
            merged.append(entry.annotations)
    exclusion = next((entry.exclusion for entry in good if entry.exclusion is not None), None)
    if len(merged) > 1:
        together = merge_annotations([*map(decode_annotations, merged)])
        merged = [encode_annotations(source_format.reconcile(together))]
    return _Merged(
        annotations=merged[0] if merged else None,
        # What cannot be used is a reject of the split that it would have been in.
        split=split or next((entry.split for entry in ordered if entry.split), ""),
        split_problem=next((entry.detail for entry in good if entry.split), ""),
        exclusion=exclusion,
        defects=defects,
        usable=bool(merged or split),
    )


def merge_annotations(parts: Sequence[ImageAnnotations]) -> ImageAnnotations:
    """Merges what several annotation files say about one image.

    An object that an earlier file gives with the same id, label and box is the same object:
    COCO's keypoint files repeat the instances of theirs. What only the later one tells of it is
    taken over.
    """
    corrections = Corrections()
    confidences: dict[str, float] = {}
    objects: list[ObjectAnnotation] = []
    # {identity: position in `objects`}
    seen: dict[tuple[object, ...], int] = {}
    for part in parts:
        corrections.include(part.corrections, part.changes)
        for label, confidence in zip(part.labels, part.label_confidences, strict=False):
            confidences[label] = max(confidence, confidences.get(label, confidence))
        identities: dict[tuple[object, ...], int] = {}
        for item in part.objects:
            identity = (item.annotation_id, item.label, item.bbox)
            if item.annotation_id and identity in seen:
                known = objects[seen[identity]]
                completed = _complete(known, item)
                if completed == known:
                    corrections.note(Correction.DUPLICATE_ANNOTATION_DROPPED, item.annotation_id)
                objects[seen[identity]] = completed
                continue
            identities[identity] = len(objects)
            objects.append(item)
        seen.update(identities)
    labels = tuple(dict.fromkeys(label for part in parts for label in part.labels))
    values: dict[str, list[Value]] = {}
    for part in parts:
        for key, items in part.values.items():
            values.setdefault(key, []).extend(items)
    return ImageAnnotations(
        image_id=next((part.image_id for part in parts if part.image_id), ""),
        width=next((part.width for part in parts if part.width), 0),
        height=next((part.height for part in parts if part.height), 0),
        labels=labels,
        objects=tuple(objects),
        corrections=dict(corrections),
        changes=corrections.changes,
        normalized=any(part.normalized for part in parts),
        label_confidences=tuple(confidences.get(label, 1.0) for label in labels)
        if confidences
        else (),
        captions=tuple(caption for part in parts for caption in part.captions),
        segments=tuple(segment for part in parts for segment in part.segments),
        masks={role: mask for part in reversed(parts) for role, mask in part.masks.items()},
        values={key: tuple(items) for key, items in values.items()},
        stuff=tuple(item for part in parts for item in part.stuff),
    )


def _complete(known: ObjectAnnotation, other: ObjectAnnotation) -> ObjectAnnotation:
    """An object with what it lacks and `other` has."""
    return msgspec.structs.replace(
        known,
        segmentation=known.segmentation or other.segmentation,
        keypoints=known.keypoints or other.keypoints,
        attributes=known.attributes or other.attributes,
    )
