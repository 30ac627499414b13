"""Joins listed images and annotation entries, one key at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
    MaskValues,
    ObjectAnnotation,
    Record,
    Reject,
    Segment,
    Value,
    decode_annotations,
    encode_annotations,
)
from shardbeam.transforms.core.sharding import NO_SPLIT, SplitAssignment
from shardbeam.transforms.formats.base import ATTACHED_FILE_INDEX, BESIDE_FILE_INDEX, Format, Kind
from shardbeam.transforms.formats.names import (
    foreign_name,
    is_linked_folder,
    listing_exclusion,
    normalize_for_match,
)
from shardbeam.transforms.formats.parsing.key_file import KeyFile, image_groups, is_excluded
from shardbeam.transforms.storage.archives.open import is_archive, is_pattern
from shardbeam.transforms.storage.find import storage_for

# The ASCII characters that are the NFC form of another one, such as K of the Kelvin sign.
_COMPOSED = re.compile("[;K`]")
# Defects because of which a part of an image's annotations is missing or cannot be trusted.
_INCOMPLETE = frozenset(
    {
        Reason.ANNOTATION_MALFORMED,
        Reason.CHANGED_SINCE_LISTING,
        Reason.DUPLICATE_IMAGE_ID,
        Reason.SIZE_MISMATCH,
    }
)

# Names that a detail gives.
_NAMED = 3


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
        masks: Whether a run is refused if no object can have a mask.
    """

    splits: SplitAssignment
    labels: LabelSettings
    unannotated: Literal["auto", "keep", "drop", "reject"] = "auto"
    example_per: Literal["image", "annotation"] = "image"
    exclude: KeyFile | None = None
    groups: KeyFile | None = None
    limit: int | None = None
    ignores_sizes: bool = False
    masks: bool = False

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
    return normalize_for_match(text, getattr(source_format, "match", "path"))


def without_loose(
    entries: Sequence[AnnotationEntry], *, is_listed: bool
) -> Sequence[AnnotationEntry]:
    """Drops files beside an image that is not listed, and attached masks without another entry."""
    if not is_listed:
        entries = [entry for entry in entries if entry.file_index != BESIDE_FILE_INDEX]
    is_named = any(entry.file_index != ATTACHED_FILE_INDEX for entry in entries)
    return entries if is_named else ()


def find_similar(
    text: str, texts: Mapping[str, tuple[Sequence[ListedImage], Sequence[AnnotationEntry]]]
) -> Sequence[str]:
    """Finds what a text may mean that differs in case alone from others.

    Args:
        text: The text.
        texts: `{text: its images and entries}`.

    Returns:
        For a text without images, the other images' names. For an image without entries, the names
        in entries for which no image is listed.
    """
    images, entries = texts[text]
    others = [each for other, each in texts.items() if other != text]
    if not images:
        return sorted({image.key for listed, _ in others for image in listed})
    if entries:
        return ()
    return sorted({entry.key for listed, named in others if not listed for entry in named})


def join_key(
    *,
    source: str,
    key: str,
    images: Iterable[ListedImage],
    entries: Collection[AnnotationEntry],
    source_format: Format,
    settings: JoinSettings,
    similar: Sequence[str] = (),
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
        similar: Names that differ in case alone, as `find_similar` returns them.
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
        similar=similar,
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
        similar: Names that differ in case alone.
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
    similar: Sequence[str]

    def describe_similar(self) -> str:
        """Describes how to join names that differ in case alone."""
        names = ", ".join(map(repr, self.similar[:_NAMED]))
        fix = "rename one of them"
        if getattr(self.source_format, "match", None) == "path":
            fix += ", or join them without regard to case: --match name (match: name)"
        return f"{names}, and they differ in case alone: {fix}"

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
        detail = "annotated, but no such image is listed"
        if case.similar:
            detail += f"; the listed one is {case.describe_similar()}"
        elif foreign := foreign_name(case.key):
            detail += f"; {foreign}"
        others = [defect for defect in defects if defect.of_split]
        if len(others) < len(defects):
            own = next(defect for defect in defects if not defect.of_split)
            detail += f"; besides, {own.detail}"
        defects = [_Defect(Reason.MISSING_IMAGE, detail), *others]
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
    problem = "no annotation file names it"
    if case.similar:
        # It is no negative: its annotations have its name in another case.
        rule = "reject" if rule == "keep" else rule
        problem += f"; the annotated name is {case.describe_similar()}"
    verdicts: dict[str, _Verdict] = {
        "drop": Exclusion.UNANNOTATED,
        "reject": _Defect(Reason.UNANNOTATED, problem),
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
    """Merges the entries of one image, which several annotation files may annotate."""
    if not entries:
        return _NOTHING_SAID
    # Annotation files of one image each are sorted by their names.
    ordered = sorted(
        entries,
        key=lambda each: (
            each.file_index,
            each.position,
            each.origin,
            each.image_id,
            each.detail,
        ),
    )
    defects = [_Defect(entry.defect, entry.detail) for entry in ordered if entry.defect is not None]
    good, copies, conflicts = _choose_entries([entry for entry in ordered if entry.defect is None])
    defects += conflicts
    split = next((entry.split for entry in good if entry.split), "")
    defects += _split_conflicts(good, split=split) if has_splits else ()
    annotations = [entry.annotations for entry in good if entry.annotations]
    if len(annotations) > 1 or (annotations and copies):
        parts = [*map(decode_annotations, annotations)]
        sizes = _pixel_sizes(parts)
        if len(sizes) > 1 and not ignores_sizes:
            detail = (
                f"annotation files give it the sizes {_name_sizes(sizes)}; correct them, or set "
                "image.annotated_size: ignore to take all boxes in pixels of the image"
            )
            defects.append(_Defect(Reason.SIZE_MISMATCH, detail))
        annotations = [_encode_merged(parts, copies=copies, source_format=source_format)]
    return _Merged(
        annotations=annotations[0] if annotations else None,
        # Entries that cannot be used are rejects of the split that they name.
        split=split or next((entry.split for entry in ordered if entry.split), ""),
        split_problem=next((entry.detail for entry in good if entry.split), ""),
        exclusion=next((entry.exclusion for entry in good if entry.exclusion is not None), None),
        defects=defects,
        usable=bool(annotations or split),
    )


def _encode_merged(
    parts: Sequence[ImageAnnotations], *, copies: Sequence[str], source_format: Format
) -> bytes:
    merged = parts[0]
    if len(parts) > 1:
        merged = source_format.reconcile(merge_annotations(parts))
    if copies:
        corrections = Corrections(merged.corrections, merged.changes)
        corrections.note(Correction.ENTRIES_MERGED, copies[1:], copies[0])
        merged = msgspec.structs.replace(
            merged, corrections=corrections.counts(), changes=corrections.changes
        )
    return encode_annotations(merged)


class _Chosen(NamedTuple):
    """The entries of one image that are used.

    Attributes:
        entries: These entries, in order.
        merged: The ids or the files that were made one, the first one first; empty where there was
            only one.
        conflicts: A defect for each entry that contradicts another one.
    """

    entries: Sequence[AnnotationEntry]
    merged: Sequence[str]
    conflicts: Sequence[_Defect]


def _choose_entries(entries: Sequence[AnnotationEntry]) -> _Chosen:
    """Chooses the entries that are used, where a source names an image or annotates it twice.

    Two files that each say all about an image are one if they say the same; if not, the first one
    counts. Entries with several ids are of one image if they give it the same size; if not, they
    are of several images with the same name, and nobody knows which of them is listed.
    """
    whole = [entry for entry in entries if entry.origin]
    others = [entry for entry in whole[1:] if entry.annotations != whole[0].annotations]
    conflicts = [
        _Defect(
            Reason.DUPLICATE_KEY,
            f"{entry.origin} annotates it, too, and differs from {whole[0].origin}, which counts",
        )
        for entry in others
    ]
    copies = [entry for entry in whole if entry not in others]
    # A copy may still put the image into another split.
    used = [
        msgspec.structs.replace(entry, annotations=b"") if entry in copies[1:] else entry
        for entry in entries
        if entry not in others
    ]
    ids = list(dict.fromkeys(entry.image_id for entry in used if entry.image_id))
    if len(ids) < 2:
        merged = [entry.origin for entry in copies] if len(copies) > 1 else []
        return _Chosen(used, merged, conflicts)
    named = [(entry.image_id, _annotated_size(entry)) for entry in used if entry.image_id]
    sizes = list(dict.fromkeys(size for _, size in named if min(size)))
    if len(sizes) < 2:
        return _Chosen(used, ids, conflicts)
    conflicts += [
        _Defect(
            Reason.DUPLICATE_KEY,
            f"image id {image_id} gives it the size {width}x{height}; image ids "
            f"{' and '.join(ids)} have the same file name, and the sizes {_name_sizes(sizes)}: "
            "give each image its own file name",
        )
        for image_id, (width, height) in named
    ]
    return _Chosen([entry for entry in used if not entry.image_id], [], conflicts)


def _split_conflicts(entries: Sequence[AnnotationEntry], *, split: str) -> Iterator[_Defect]:
    for entry in entries:
        if entry.split and entry.split != split:
            detail = f"it is in split {split!r} already, and in {entry.split!r} as well"
            yield _Defect(Reason.DUPLICATE_KEY, detail, of_split=entry.split)


def _annotated_size(entry: AnnotationEntry) -> tuple[int, int]:
    if not entry.annotations:
        return 0, 0
    annotations = decode_annotations(entry.annotations)
    return annotations.width, annotations.height


def _name_sizes(sizes: Iterable[tuple[int, int]]) -> str:
    return " and ".join(f"{width}x{height}" for width, height in sizes)


def _pixel_sizes(parts: Iterable[ImageAnnotations]) -> list[tuple[int, int]]:
    """Returns the sizes that files give an image, where they annotate something in pixels."""
    annotated = (part for part in parts if (part.objects or part.stuff) and not part.normalized)
    sizes = dict.fromkeys((part.width, part.height) for part in annotated)
    return [size for size in sizes if min(size) > 0]


def merge_annotations(parts: Sequence[ImageAnnotations]) -> ImageAnnotations:
    """Merges the annotations of one image from several files.

    Objects with the same id, label and box are one object, because COCO's keypoint files repeat
    instances; a later file only adds what the earlier ones lack. If a file gives the image another
    id, objects with the same label, box and outline are one object, too, whatever their ids, and
    nothing else that is equal is repeated. The image's size is that of the first part with boxes
    or regions in pixels, if one of these has a size.
    """
    width, height = next(
        iter(_pixel_sizes(parts)),
        (
            next((part.width for part in parts if part.width), 0),
            next((part.height for part in parts if part.height), 0),
        ),
    )
    image_id = next((part.image_id for part in parts if part.image_id), "")
    corrections = Corrections()
    confidences: dict[str, float] = {}
    merged = _MergedParts(corrections)
    for part in parts:
        corrections.include(part.corrections, part.changes)
        corrections.include_lost(part.lost)
        for label, confidence in zip(part.labels, part.label_confidences, strict=False):
            confidences[label] = max(confidence, confidences.get(label, confidence))
        merged.add(part, has_other_id=part.image_id not in ("", image_id))
    labels = tuple(dict.fromkeys(label for part in parts for label in part.labels))
    return ImageAnnotations(
        image_id=image_id,
        width=width,
        height=height,
        labels=labels,
        objects=tuple(merged.objects),
        corrections=dict(corrections),
        changes=corrections.changes,
        lost=corrections.lost,
        normalized=any(part.normalized for part in parts),
        label_confidences=tuple(confidences.get(label, 1.0) for label in labels)
        if confidences
        else (),
        captions=tuple(merged.captions),
        segments=tuple(merged.segments),
        masks={role: mask for part in reversed(parts) for role, mask in part.masks.items()},
        values={key: tuple(items) for key, items in merged.values.items()},
        stuff=tuple(merged.stuff),
        mask_values=next((part.mask_values for part in parts if part.masks), MaskValues()),
    )


class _MergedParts:
    """Objects, regions, segments, captions and values of one image, file by file.

    Args:
        corrections: Counts the repeated objects that are left out.
    """

    def __init__(self, corrections: Corrections) -> None:
        self.objects: list[ObjectAnnotation] = []
        self.stuff: list[ObjectAnnotation] = []
        self.segments: list[Segment] = []
        self.captions: list[str] = []
        self.values: dict[str, list[Value]] = {}
        self._corrections = corrections
        # {identity: position in `objects`}
        self._seen: dict[tuple[object, ...], int] = {}

    def add(self, part: ImageAnnotations, *, has_other_id: bool) -> None:
        """Adds a part; one with another image id adds nothing that is there already."""
        found: dict[tuple[object, ...], int] = {}
        for item in part.objects:
            identities = _identities(item, has_other_id=has_other_id)
            known = next((self._seen[each] for each in identities if each in self._seen), None)
            if known is not None:
                completed = _complete(self.objects[known], item)
                if completed == self.objects[known]:
                    what = item.annotation_id or item.label
                    self._corrections.note(Correction.DUPLICATE_ANNOTATION_DROPPED, what)
                self.objects[known] = completed
                continue
            for identity in _identities(item, has_other_id=True):
                found[identity] = len(self.objects)
            self.objects.append(item)
        self._seen.update(found)
        segment_ids = {segment.segment_id for segment in self.segments}
        outlines = {(item.label, item.bbox, item.segmentation) for item in self.stuff}
        self.stuff += [
            item
            for item in part.stuff
            if not has_other_id or (item.label, item.bbox, item.segmentation) not in outlines
        ]
        self.segments += [
            segment
            for segment in part.segments
            if not has_other_id or segment.segment_id not in segment_ids
        ]
        captions = frozenset(self.captions if has_other_id else ())
        self.captions += [caption for caption in part.captions if caption not in captions]
        for key, items in part.values.items():
            own = self.values.setdefault(key, [])
            own += [item for item in items if not has_other_id or item not in own]


def _identities(item: ObjectAnnotation, *, has_other_id: bool) -> list[tuple[object, ...]]:
    """Returns what is equal in two entries of one object; ids count within one numbering."""
    identities: list[tuple[object, ...]] = []
    if item.annotation_id:
        identities.append((item.annotation_id, item.label, item.bbox))
    if has_other_id:
        identities.append((item.label, item.bbox, item.segmentation))
    return identities


def _complete(known: ObjectAnnotation, other: ObjectAnnotation) -> ObjectAnnotation:
    """Adds to an object what it lacks and `other` has."""
    return msgspec.structs.replace(
        known,
        segmentation=known.segmentation or other.segmentation,
        keypoints=known.keypoints or other.keypoints,
        attributes=known.attributes or other.attributes,
    )
