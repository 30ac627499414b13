"""Joins listed images and annotation entries, one key at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from shardbeam.transforms.core.corrections import Corrections
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.labels import LabelSettings
from shardbeam.transforms.core.reasons import Correction, Exclusion, Reason
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    ImageAnnotations,
    ImageRef,
    ListedImage,
    ObjectAnnotation,
    Record,
    Reject,
    Value,
    decode_annotations,
    encode_annotations,
)
from shardbeam.transforms.core.sharding import NO_SPLIT, SplitAssignment
from shardbeam.transforms.formats.base import ATTACHED_FILE_INDEX, Format, Kind
from shardbeam.transforms.formats.key_file import KeyFile, image_groups, is_excluded
from shardbeam.transforms.formats.names import is_linked_folder, listing_exclusion, loosened
from shardbeam.transforms.storage.archives import is_archive, is_pattern
from shardbeam.transforms.storage.find import storage_for

# The ASCII characters that are the NFC form of another one, such as K of the Kelvin sign.
_COMPOSED = re.compile("[;K`]")
# Defects because of which a part of an image's annotations is missing or cannot be trusted.
_INCOMPLETE = frozenset(
    {Reason.ANNOTATION_MALFORMED, Reason.CHANGED_SINCE_LISTING, Reason.SIZE_MISMATCH}
)


class JoinSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The config's settings of the join.

    Attributes:
        splits: Finds the split of a key.
        labels: Finds the classes that are written.
        unannotated: Whether an image that no annotation file names is kept, dropped or rejected;
            `auto` leaves that to its format (`Format.UNANNOTATED`).
        example_per: Whether an image makes one Example, or one for each of its objects.
        exclude: The file of images to leave out.
        groups: The file of groups of images that stay in one split.
        limit: Largest number of images that each split keeps; None for all.
        ignores_sizes: Whether boxes are in pixels of the image, whatever size files give it.
    """

    splits: SplitAssignment
    labels: LabelSettings
    unannotated: Literal["auto", "keep", "drop", "reject"] = "auto"
    example_per: Literal["image", "annotation"] = "image"
    exclude: KeyFile | None = None
    groups: KeyFile | None = None
    limit: int | None = None
    ignores_sizes: bool = False

    def group_of(self, *, source: str, key: str) -> tuple[str, str]:
        """Returns the first image of an image's group, whose split it shares; perhaps itself."""
        image = source, key
        return image if self.groups is None else image_groups(self.groups).get(image, image)

    def classes_of(self, annotations: bytes) -> tuple[str, ...]:
        """Returns the written names of the classes of a record's labels and objects."""
        found = decode_annotations(annotations)
        return self._written((*found.labels, *(item.label for item in found.objects)))

    def shown_classes(self, annotations: bytes) -> tuple[str, ...]:
        """Returns the classes of labels, objects, regions and panoptic segments."""
        found = decode_annotations(annotations)
        items = (*found.objects, *found.stuff)
        segments = (segment.label for segment in found.segments)
        return self._written((*found.labels, *(item.label for item in items), *segments))

    def _written(self, labels: Iterable[str]) -> tuple[str, ...]:
        names = map(self.labels.written_name, dict.fromkeys(labels))
        return tuple(name for name in names if name)


def needs_join(source_format: Format, *, settings: JoinSettings) -> bool:
    """Whether all images of a source go through the join, even those with plain names (`is_plain`).

    Images with plain names skip it if nothing but the name annotates them and no name is listed
    twice: the source has no annotation files, and is one folder on disk, whose files are its
    images. Archives and object storage may hold a name twice, such as `a.jpg` and `./a.jpg`. Exact
    splits and samples need all keys before they choose.
    """
    roots = source_format.roots()
    return (
        settings.splits.exact
        or settings.limit is not None
        or source_format.lists_annotations
        or type(source_format).place is not Format.place
        or getattr(source_format, "match", "path") != "path"
        or len(roots) != 1
        or storage_for(roots[0]).is_remote
        or is_pattern(roots[0])
        or is_archive(roots[0])
        or bool(source_format.annotation_files())
    )


def is_plain(key: str) -> bool:
    """Whether no other name of a file is the same key in Unicode's NFC form."""
    return key.isascii() and not _COMPOSED.search(key)


class JoinedKey(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the join for one text.

    Attributes:
        split: The split of the image; `NO_SPLIT` where that is unknown.
        record: The image with its annotations, if it goes on.
        unannotated: Whether `record` has no annotations because nothing names the image.
        labels: Image-level classes that the image's name gives.
        excluded: The rule that leaves the image out, if there is one.
        rejects: Images and entries that cannot be used.
    """

    split: str
    record: Record | None = None
    unannotated: bool = False
    labels: tuple[str, ...] = ()
    excluded: Exclusion | None = None
    rejects: Sequence[Reject] = ()


class _Defect(NamedTuple):
    """A problem of an image or of its entries.

    Attributes:
        of_split: The split that the image cannot have, if only that is wrong; otherwise empty.
    """

    reason: Reason
    detail: str
    of_split: str = ""


class _Merged(NamedTuple):
    """The merged entries of one image.

    Attributes:
        split_problem: The problem of a split that the dataset does not have.
        usable: Whether an entry without a defect gives annotations or a split.
    """

    annotations: bytes | None
    split: str
    split_problem: str
    exclusion: Exclusion | None
    defects: list[_Defect]
    usable: bool

    def lost(self) -> _Defect | None:
        """Returns a defect because of which annotations of the image are missing, if there is one.

        An image that is written without its annotations would teach that nothing is there.
        """
        for defect in self.defects:
            if not defect.of_split and (self.annotations is None or defect.reason in _INCOMPLETE):
                return defect
        return None


_NOTHING_SAID = _Merged(
    annotations=None, split="", split_problem="", exclusion=None, defects=[], usable=False
)


def join_text(text: str, *, source_format: Format) -> str:
    """Returns the text that an image or an entry is joined by, as the format's key `match` says."""
    if Kind.ROWS in source_format.kinds:
        return text
    return loosened(text, getattr(source_format, "match", "path"))


def without_loose_masks(entries: Sequence[AnnotationEntry]) -> Sequence[AnnotationEntry]:
    """Leaves attached masks out if no other entry names their image."""
    is_named = any(entry.file_index != ATTACHED_FILE_INDEX for entry in entries)
    return entries if is_named else ()


def join_key(
    *,
    source: str,
    key: str,
    images: Iterable[ListedImage],
    entries: Collection[AnnotationEntry],
    source_format: Format,
    settings: JoinSettings,
) -> JoinedKey:
    """Joins the images and the entries that have the same text.

    Args:
        source: The source's name.
        key: The text: the image's key, unless the format joins by something else.
        images: The listed images, in any order. There are several only if the format joins by
            less than the name, or if names differ only in their Unicode normalization.
        entries: The entries of annotation files, in any order.
        source_format: The source's format, which may read annotations off the key.
        settings: The config's settings.
    """
    listed = sorted(images, key=lambda image: (image.key, image.image.uri, image.image.offset))
    if listed:
        first = listed[0].image.uri, listed[0].image.offset
        entries = [entry for entry in entries if entry.image in (None, first)]
    merged = _merge_entries(
        entries,
        source_format=source_format,
        has_splits=bool(settings.splits.predefined),
        ignores_sizes=settings.ignores_sizes,
    )
    image_key = listed[0].key if listed else key
    if settings.exclude is not None and is_excluded(settings.exclude, source=source, key=image_key):
        merged = merged._replace(exclusion=Exclusion.EXCLUDED_BY_FILE)
    group = settings.group_of(source=source, key=image_key)
    named_split = merged.split or (source_format.split_listed(image_key) if listed else "")
    case = _Case(
        source=source,
        key=image_key,
        listed=listed,
        entries=entries,
        merged=merged,
        group=group,
        split=settings.splits.split_of(
            source=source, key=image_key, predefined=named_split, group=group
        ),
        source_format=source_format,
        settings=settings,
    )
    if Kind.ROWS in source_format.kinds:
        return _join_row(case)
    return _join_listed(case) if listed else _join_missing(case)


class _Case(NamedTuple):
    """The images and entries that have the same text, and what follows from them.

    Attributes:
        key: The image's key; where no image is listed, its name in the entries.
        listed: The listed images, in order.
        entries: The entries of annotation files, in any order.
        merged: The merged entries.
        group: The image whose split this image shares.
        split: Its split; a stratified one is found later, when the classes are known.
    """

    source: str
    key: str
    listed: Sequence[ListedImage]
    entries: Collection[AnnotationEntry]
    merged: _Merged
    group: tuple[str, str]
    split: str
    source_format: Format
    settings: JoinSettings

    def reject(self, defect: _Defect, *, listed: bool, key: str = "") -> Reject:
        """Makes a reject of the image, or of the listed image with `key`."""
        is_split = defect.of_split in self.settings.splits.predefined
        return Reject(
            split=defect.of_split if is_split else self.split,
            source=self.source,
            key=key or self.key,
            stage="join",
            reason=defect.reason,
            detail=defect.detail,
            listed=listed,
        )

    def done(self, *rejects: Reject, excluded: Exclusion | None = None) -> JoinedKey:
        """Makes the result without a record."""
        return JoinedKey(split=self.split, rejects=rejects, excluded=excluded)

    def record(self, *, image: ImageRef | None, said: _Said, split: str) -> Record:
        """Makes the record of the image."""
        examples = 1
        if image is not None and self.settings.example_per == "annotation":
            examples = len(decode_annotations(said.annotations).objects)
        return Record(
            source=self.source,
            key=self.key,
            image=image,
            annotations=said.annotations,
            split=split,
            examples=examples,
        )


# Rows without images, which are inputs themselves.


def _join_row(case: _Case) -> JoinedKey:
    merged = case.merged
    if merged.exclusion is not None:
        return case.done(excluded=merged.exclusion)
    defects = merged.defects
    if merged.annotations is not None and case.split == NO_SPLIT:
        problem = merged.split_problem or "the row names no split of the dataset"
        defects = [_Defect(Reason.UNKNOWN_SPLIT, problem)]
    joined = case.done(
        *(case.reject(defect, listed=not index) for index, defect in enumerate(defects))
    )
    if merged.annotations is None or defects:
        return joined
    record = case.record(image=None, said=_Said(merged.annotations), split=case.split)
    return msgspec.structs.replace(joined, record=record)


# Images that annotation files name and that are not listed.


def _join_missing(case: _Case) -> JoinedKey:
    merged = case.merged
    if merged.exclusion is not None:
        return case.done()
    defects = merged.defects
    # A missing image in a list of splits matters only if the config uses these splits.
    if merged.annotations is not None or (merged.usable and case.settings.splits.predefined):
        missing = _Defect(Reason.MISSING_IMAGE, "annotated, but no such image is listed")
        defects = [missing, *defects]
    return case.done(*(case.reject(defect, listed=False) for defect in defects))


# Listed images.


class _Said(NamedTuple):
    """The annotations of a listed image, from files or else from its name.

    Attributes:
        labels: Image-level classes that the name gives.
        unannotated: Whether neither files nor the name annotate it.
    """

    annotations: bytes
    labels: tuple[str, ...] = ()
    unannotated: bool = False


# A rule excludes the image, rejects it, or returns None.
_Verdict: TypeAlias = Exclusion | _Defect | None


def _join_listed(case: _Case) -> JoinedKey:
    merged, settings = case.merged, case.settings
    if is_linked_folder(case.key):
        return case.done(excluded=listing_exclusion(case.key))
    ambiguity = _find_ambiguity(case)
    if ambiguity is not None:
        return case.done(
            *(case.reject(ambiguity, listed=True, key=image.key) for image in case.listed),
            *(case.reject(defect, listed=False) for defect in merged.defects),
        )
    lost = merged.lost() if merged.exclusion is None else None
    twice = _Defect(Reason.DUPLICATE_KEY, "another listed file has the same key")
    rejects = [
        *(case.reject(twice, listed=True) for _ in case.listed[1:]),
        *([case.reject(lost, listed=True)] if lost is not None else ()),
        *(case.reject(defect, listed=False) for defect in merged.defects if defect is not lost),
    ]
    if lost is not None or merged.exclusion is not None:
        return case.done(*rejects, excluded=merged.exclusion)
    said = _find_said(case)
    if not isinstance(said, _Said):
        return _decide(case, said, rejects=rejects)
    for rule in _RULES:
        verdict = rule(case, said)
        if verdict is not None:
            joined = _decide(case, verdict, rejects=rejects)
            return msgspec.structs.replace(joined, labels=said.labels)
    split = case.split
    if settings.splits.stratify:
        classes = settings.classes_of(said.annotations)
        split = settings.splits.split_of(
            source=case.source, key=case.key, classes=classes, group=case.group
        )
        rejects = [msgspec.structs.replace(each, split=split) for each in rejects]
    return JoinedKey(
        split=split,
        record=case.record(image=case.listed[0].image, said=said, split=split),
        unannotated=said.unannotated,
        labels=said.labels,
        rejects=rejects,
    )


def _decide(case: _Case, verdict: Exclusion | _Defect, *, rejects: Sequence[Reject]) -> JoinedKey:
    if isinstance(verdict, Exclusion):
        return case.done(*rejects, excluded=verdict)
    return case.done(*rejects, case.reject(verdict, listed=True))


def _find_ambiguity(case: _Case) -> _Defect | None:
    """Describes why it is unclear which image and which annotations belong together."""
    # A file names an image in two ways only if `match` joins by less than the name.
    named = {(entry.file_index, entry.key) for entry in case.entries}
    if case.listed[-1].key != case.key:
        names = dict.fromkeys(image.key for image in case.listed)
        detail = f"annotations name all of these alike: {', '.join(names)}"
    elif len(named) > len({index for index, _ in named}):
        names = dict.fromkeys(name for _, name in sorted(named))
        detail = f"annotations name several images that may be this: {', '.join(names)}"
    else:
        return None
    return _Defect(Reason.AMBIGUOUS_STEM, detail)


def _find_said(case: _Case) -> _Said | Exclusion | _Defect:
    """Finds the annotations of an image in the entries, or else in its name."""
    if case.merged.annotations is not None:
        return _Said(case.merged.annotations)
    try:
        found = case.source_format.annotate_listed(case.key)
    except RejectedError as error:
        return _Defect(error.reason, error.detail)
    if isinstance(found, Exclusion):
        return found
    if found is None:
        return _Said(encode_annotations(ImageAnnotations(image_id="")), unannotated=True)
    return _Said(encode_annotations(found), labels=found.labels)


def _judge_unannotated(case: _Case, said: _Said) -> _Verdict:
    """Excludes other files than images; keeps, drops or rejects images, as the config says."""
    if not said.unannotated:
        return None
    rule = case.settings.unannotated
    if rule == "auto":
        # An image in the list of a split is named, too.
        rule = "keep" if case.merged.usable else case.source_format.UNANNOTATED
    verdicts: dict[str, _Verdict] = {
        "drop": Exclusion.UNANNOTATED,
        "reject": _Defect(Reason.UNANNOTATED, "no annotation file names it"),
    }
    return listing_exclusion(case.key) or verdicts.get(rule)


def _judge_labels(case: _Case, said: _Said) -> _Verdict:
    """Excludes an image if all of its classes are excluded."""
    written = map(case.settings.labels.written_name, said.labels)
    if said.labels and all(name is None for name in written):
        return Exclusion.LABEL_EXCLUDED
    return None


def _judge_split(case: _Case, said: _Said) -> _Verdict:
    """Excludes an image without a split; rejects it if its split does not exist."""
    if case.split != NO_SPLIT:
        return None
    problem = case.merged.split_problem
    return _Defect(Reason.UNKNOWN_SPLIT, problem) if problem else Exclusion.IN_NO_SPLIT


def _judge_group(case: _Case, said: _Said) -> _Verdict:
    """Rejects an image without a group, if the config groups images."""
    splits = case.settings.splits
    if splits.matches(source=case.source, key=case.key):
        return None
    problem = f"group_by ({splits.group_by}) finds nothing in the key"
    return _Defect(Reason.GROUP_NOT_MATCHED, problem)


# The first rule that does not return None decides.
_RULES: Sequence[Callable[[_Case, _Said], _Verdict]] = (
    _judge_unannotated,
    _judge_labels,
    _judge_split,
    _judge_group,
)


def _merge_entries(
    entries: Collection[AnnotationEntry],
    *,
    source_format: Format,
    has_splits: bool,
    ignores_sizes: bool,
) -> _Merged:
    """Merges the entries of one image.

    Several annotation files may annotate an image, under one id. An entry with another id is of
    another image with the same file name, and becomes a defect.
    """
    if not entries:
        return _NOTHING_SAID
    # Annotation files of one image each are sorted by their names.
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
        if has_splits and entry.split and entry.split != split:
            detail = f"it is in split {split!r} already, and in {entry.split!r} as well"
            defects.append(_Defect(Reason.DUPLICATE_KEY, detail, of_split=entry.split))
        if entry.annotations:
            merged.append(entry.annotations)
    exclusion = next((entry.exclusion for entry in good if entry.exclusion is not None), None)
    if len(merged) > 1:
        parts = [*map(decode_annotations, merged)]
        sizes = _pixel_sizes(parts)
        if len(sizes) > 1 and not ignores_sizes:
            given = " and ".join(f"{width}x{height}" for width, height in sizes)
            detail = (
                f"annotation files give it the sizes {given}; correct them, or set "
                "image.annotated_size: ignore to take all boxes in pixels of the image"
            )
            defects.append(_Defect(Reason.SIZE_MISMATCH, detail))
        merged = [encode_annotations(source_format.reconcile(merge_annotations(parts)))]
    return _Merged(
        annotations=merged[0] if merged else None,
        # Entries that cannot be used are rejects of the split that they name.
        split=split or next((entry.split for entry in ordered if entry.split), ""),
        split_problem=next((entry.detail for entry in good if entry.split), ""),
        exclusion=exclusion,
        defects=defects,
        usable=bool(merged or split),
    )


def _pixel_sizes(parts: Iterable[ImageAnnotations]) -> list[tuple[int, int]]:
    """Returns the sizes that files give an image, where they annotate something in pixels."""
    annotated = (part for part in parts if (part.objects or part.stuff) and not part.normalized)
    sizes = dict.fromkeys((part.width, part.height) for part in annotated)
    return [size for size in sizes if min(size) > 0]


def merge_annotations(parts: Sequence[ImageAnnotations]) -> ImageAnnotations:
    """Merges the annotations of one image from several files.

    Objects with the same id, label and box are one object, because COCO's keypoint files repeat
    instances; a later file only adds what the earlier ones lack. The image's size is that of the
    first part with boxes or regions in pixels, if one of these has a size.
    """
    width, height = next(
        iter(_pixel_sizes(parts)),
        (
            next((part.width for part in parts if part.width), 0),
            next((part.height for part in parts if part.height), 0),
        ),
    )
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
        width=width,
        height=height,
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
    """Adds to an object what it lacks and `other` has."""
    return msgspec.structs.replace(
        known,
        segmentation=known.segmentation or other.segmentation,
        keypoints=known.keypoints or other.keypoints,
        attributes=known.attributes or other.attributes,
    )
