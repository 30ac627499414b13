"""Joins listed images and annotation entries, one join key at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Exclusion, Reason
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    ImageAnnotations,
    ImageRef,
    ListedImage,
    Record,
    Reject,
    decode_annotations,
    encode_annotations,
)
from shardbeam.transforms.core.sharding import NO_SPLIT
from shardbeam.transforms.formats.base import (
    ATTACHED_FILE_INDEX,
    BESIDE_FILE_INDEX,
    MASK_FILE_INDEX,
    Format,
    Kind,
)
from shardbeam.transforms.formats.join.merge_entries import Defect, MergedEntries, merge_entries
from shardbeam.transforms.formats.join.sources import JoinSettings, is_excluded
from shardbeam.transforms.formats.names import foreign_name, is_linked_folder, listing_exclusion

# Names that a detail gives.
_NAMED = 3


class JoinedKey(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the join for one join key.

    Attributes:
        split: The split of the image; `NO_SPLIT` where that is unknown.
        record: The image with its annotations, if it goes on.
        unannotated: Whether `record` has no annotations because nothing names the image.
        outlines: How many objects of `record` have outlines that are not written.
        labels: Image-level classes that the image's name gives.
        excluded: The rule that leaves the image out, if there is one.
        rejects: Images and entries that cannot be used.
    """

    split: str
    record: Record | None = None
    unannotated: bool = False
    outlines: int = 0
    labels: tuple[str, ...] = ()
    excluded: Exclusion | None = None
    rejects: Sequence[Reject] = ()


class FoundKey(NamedTuple):
    """The result for one join key, with its images and annotation entries.

    Attributes:
        key: The image's name, if it is not listed.
        listed: The number of its inputs.
    """

    joined: JoinedKey
    source: str
    key: str
    images: Sequence[ListedImage]
    entries: Sequence[AnnotationEntry]
    listed: int


def join_items(
    items: Iterable[tuple[str, ListedImage | AnnotationEntry]],
    *,
    source: str,
    source_format: Format,
    settings: JoinSettings,
) -> Iterator[FoundKey]:
    """Joins items whose join keys differ in case alone, one join key at a time.

    Args:
        items: `(join key, a listed image or an entry)`, in any order.
        source: As for `join_entries`.
        source_format: As for `join_entries`.
        settings: As for `join_entries`.
    """
    # {join key: its images and entries}
    found: dict[str, tuple[list[ListedImage], list[AnnotationEntry]]] = {}
    for join_key, item in items:
        images, entries = found.setdefault(join_key, ([], []))
        if isinstance(item, ListedImage):
            images.append(item)
        else:
            entries.append(item)
    for join_key, (images, named) in sorted(found.items()):
        used = _without_loose(named, is_listed=bool(images))
        # A missing image has the name that the annotations give it.
        key = min((entry.key for entry in used), default=join_key)
        joined = join_entries(
            source=source,
            key=key,
            images=images,
            entries=used,
            source_format=source_format,
            settings=settings,
            similar=_find_similar(join_key, found) if len(found) > 1 else (),
        )
        # In a table without images, the rows are the inputs.
        listed = 1 if Kind.ROWS in source_format.kinds else len(images)
        yield FoundKey(joined, source, key, images, used, listed)


def _without_loose(
    entries: Sequence[AnnotationEntry], *, is_listed: bool
) -> Sequence[AnnotationEntry]:
    """Drops files beside an image that is not listed, and attached masks without another entry."""
    if not is_listed:
        entries = [entry for entry in entries if entry.file_index != BESIDE_FILE_INDEX]
    is_named = any(entry.file_index != ATTACHED_FILE_INDEX for entry in entries)
    return entries if is_named else ()


def _find_similar(
    join_key: str, found: Mapping[str, tuple[Sequence[ListedImage], Sequence[AnnotationEntry]]]
) -> Sequence[str]:
    """Finds what a join key may mean that differs in case alone from others.

    Args:
        join_key: The join key.
        found: `{join key: its images and entries}`.

    Returns:
        For a join key without images, the other images' names. For an image without entries, the
        names in entries for which no image is listed.
    """
    images, entries = found[join_key]
    others = [each for other, each in found.items() if other != join_key]
    if not images:
        return sorted({image.key for listed, _ in others for image in listed})
    if entries:
        return ()
    return sorted({entry.key for listed, named in others if not listed for entry in named})


def join_entries(
    *,
    source: str,
    key: str,
    images: Iterable[ListedImage],
    entries: Collection[AnnotationEntry],
    source_format: Format,
    settings: JoinSettings,
    similar: Sequence[str] = (),
) -> JoinedKey:
    """Joins the images and the entries that have the same join key.

    Args:
        source: The source's name.
        key: The image's name, if it is not listed.
        images: The listed images, in any order. There are several only if the format joins by
            less than the name, or if names differ only in their Unicode normalization.
        entries: The entries of annotation files, in any order.
        source_format: The source's format, which may read annotations off the key.
        settings: The config's settings.
        similar: Names that differ in case alone, as in `join_items`.
    """
    listed = sorted(images, key=lambda image: (image.key, image.image.uri, image.image.offset))
    if listed:
        first = listed[0].image.uri, listed[0].image.offset
        entries = [entry for entry in entries if entry.image in (None, first)]
    merged = merge_entries(entries, source_format=source_format, settings=settings)
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
    """The images and entries that have the same join key, and what follows from them.

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
    merged: MergedEntries
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

    def reject(self, defect: Defect, *, listed: bool, key: str = "") -> Reject:
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

    def record(self, *, image: ImageRef | None, annotations: bytes, split: str) -> Record:
        """Makes the record of the image, or of the row."""
        examples = 1
        if image is not None and self.settings.example_per == "annotation":
            examples = len(decode_annotations(annotations).objects)
        return Record(
            source=self.source,
            key=self.key,
            image=image,
            annotations=annotations,
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
        defects = [Defect(Reason.UNKNOWN_SPLIT, problem)]
    if merged.annotations is None or defects:
        return case.done(
            *(case.reject(defect, listed=not index) for index, defect in enumerate(defects))
        )
    record = case.record(image=None, annotations=merged.annotations, split=case.split)
    return JoinedKey(split=case.split, record=record)


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
        defects = [Defect(Reason.MISSING_IMAGE, detail), *others]
    return case.done(*(case.reject(defect, listed=False) for defect in defects))


# Listed images.


class _Annotated(NamedTuple):
    """The annotations of a listed image, from files or else from its name.

    Attributes:
        labels: Image-level classes that the name gives.
        unannotated: Whether neither files nor the name annotate it.
    """

    annotations: bytes
    labels: tuple[str, ...] = ()
    unannotated: bool = False


# A rule excludes the image, rejects it, or returns None.
_Verdict: TypeAlias = Exclusion | Defect | None


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
    twice = Defect(Reason.DUPLICATE_KEY, "another listed file has the same key")
    rejects = [
        *(case.reject(twice, listed=True) for _ in case.listed[1:]),
        *([case.reject(lost, listed=True)] if lost is not None else ()),
        *(case.reject(defect, listed=False) for defect in merged.defects if defect is not lost),
    ]
    if lost is not None or merged.exclusion is not None:
        return case.done(*rejects, excluded=merged.exclusion)
    found = _find_annotations(case)
    if not isinstance(found, _Annotated):
        return _leave_out(case, found, rejects=rejects)
    verdict = (
        _check_annotated(case, found)
        or _check_labels(case, found)
        or _check_split(case)
        or _check_group(case)
    )
    if verdict is not None:
        return msgspec.structs.replace(
            _leave_out(case, verdict, rejects=rejects), labels=found.labels
        )
    split = case.split
    if settings.splits.stratify:
        classes = settings.classes_of(found.annotations)
        split = settings.splits.split_of(
            source=case.source, key=case.key, classes=classes, group=case.group
        )
        rejects = [msgspec.structs.replace(each, split=split) for each in rejects]
    return JoinedKey(
        split=split,
        record=case.record(image=case.listed[0].image, annotations=found.annotations, split=split),
        unannotated=found.unannotated,
        outlines=merged.outlines,
        labels=found.labels,
        rejects=rejects,
    )


def _leave_out(case: _Case, verdict: Exclusion | Defect, *, rejects: Sequence[Reject]) -> JoinedKey:
    if isinstance(verdict, Exclusion):
        return case.done(*rejects, excluded=verdict)
    return case.done(*rejects, case.reject(verdict, listed=True))


def _find_ambiguity(case: _Case) -> Defect | None:
    """Describes why it is unclear which image and which annotations belong together."""
    # A file names an image in two ways only if `match` joins by less than the name.
    named = {(entry.file_index, entry.key) for entry in case.entries}
    if case.listed[-1].key != case.key:
        names = dict.fromkeys(image.key for image in case.listed)
        detail = f"annotations name all of these alike: {', '.join(names)}"
    elif len(named) > len({index for index, _ in named}):
        names = dict.fromkeys(name for _, name in sorted(named))
        are_masks = all(index >= MASK_FILE_INDEX for index, _ in named)
        what = (
            "several masks fit it"
            if are_masks
            else "annotations name several images that may be this"
        )
        detail = f"{what}: {', '.join(names)}"
    else:
        return None
    return Defect(Reason.AMBIGUOUS_STEM, detail)


def _find_annotations(case: _Case) -> _Annotated | Exclusion | Defect:
    """Finds the annotations of an image in the entries, or else in its name."""
    if case.merged.annotations is not None:
        return _Annotated(case.merged.annotations)
    try:
        found = case.source_format.annotate_listed(case.key)
    except RejectedError as error:
        return Defect(error.reason, error.detail)
    if isinstance(found, Exclusion):
        return found
    if found is None:
        return _Annotated(encode_annotations(ImageAnnotations(image_id="")), unannotated=True)
    return _Annotated(encode_annotations(found), labels=found.labels)


def _check_annotated(case: _Case, found: _Annotated) -> _Verdict:
    """Excludes other files than images; keeps, drops or rejects images, as the config says."""
    if not found.unannotated:
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
        "reject": Defect(Reason.UNANNOTATED, problem),
    }
    return listing_exclusion(case.key) or verdicts.get(rule)


def _check_labels(case: _Case, found: _Annotated) -> _Verdict:
    """Excludes an image if all of its classes are excluded."""
    written = map(case.settings.labels.written_name, found.labels)
    if found.labels and all(name is None for name in written):
        return Exclusion.LABEL_EXCLUDED
    return None


def _check_split(case: _Case) -> _Verdict:
    """Excludes an image without a split; rejects it if its split does not exist."""
    if case.split != NO_SPLIT:
        return None
    problem = case.merged.split_problem
    return Defect(Reason.UNKNOWN_SPLIT, problem) if problem else Exclusion.IN_NO_SPLIT


def _check_group(case: _Case) -> _Verdict:
    """Rejects an image without a group, if the config groups images."""
    splits = case.settings.splits
    if splits.matches(source=case.source, key=case.key):
        return None
    problem = f"group_by ({splits.group_by}) finds nothing in the key"
    return Defect(Reason.GROUP_NOT_MATCHED, problem)
