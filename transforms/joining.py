"""Joining what is listed with what is annotated, one key at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from transforms.errors import RejectedError
from transforms.formats.base import Format
from transforms.formats.names import listing_exclusion
from transforms.labels import LabelSettings, written_name
from transforms.reasons import Correction, Exclusion, Reason
from transforms.records import (
    AnnotationEntry,
    ImageAnnotations,
    ImageRef,
    Record,
    Reject,
    decode_annotations,
    encode_annotations,
)
from transforms.sharding import SplitAssignment


class JoinSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the config says about the join.

    Attributes:
        splits: Which split a key belongs to.
        labels: Which classes are written.
        keep_unannotated: Whether an image that no annotation file names is written.
    """

    splits: SplitAssignment
    labels: LabelSettings
    keep_unannotated: bool = True


class JoinedKey(msgspec.Struct, frozen=True, kw_only=True):
    """What became of all that has one key.

    Attributes:
        split: The split it belongs to.
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
    rejects: tuple[Reject, ...] = ()


class _Defect(NamedTuple):
    reason: Reason
    detail: str


def join_key(
    *,
    source: str,
    key: str,
    images: Iterable[ImageRef],
    entries: Iterable[AnnotationEntry],
    source_format: Format,
    settings: JoinSettings,
) -> JoinedKey:
    """Decides what becomes of all that has one key.

    Args:
        source: The source's name.
        key: The key.
        images: Listed files with this key, in any order; more than one only if their names
            differ in nothing but their Unicode normalization.
        entries: What the annotation files say about the key, in any order.
        source_format: The source's format, which may tell annotations from the key.
        settings: The config's rules.
    """
    split = settings.splits.split_of(source=source, key=key)

    def reject(defect: _Defect, *, listed: bool) -> Reject:
        return Reject(
            split=split,
            source=source,
            key=key,
            stage="join",
            reason=defect.reason,
            detail=defect.detail,
            listed=listed,
        )

    refs = sorted(images, key=lambda image: image.uri)
    annotations, defects = _merge_entries(entries)
    if not refs:
        if annotations is not None:
            missing = _Defect(Reason.MISSING_IMAGE, "annotated, but no such image is listed")
            defects.insert(0, missing)
        return JoinedKey(
            split=split, rejects=tuple(reject(defect, listed=False) for defect in defects)
        )

    twin = _Defect(Reason.DUPLICATE_KEY, "another listed file has the same key")
    rejects = [reject(twin, listed=True) for _ in refs[1:]]
    unannotated = False
    labels: tuple[str, ...] = ()
    excluded = None
    if annotations is None and defects:
        # Written without the annotations that it has, it would teach that nothing is there.
        rejects.append(reject(defects.pop(0), listed=True))
    elif annotations is None:
        try:
            told = source_format.annotate_listed(key)
        except RejectedError as error:
            rejects.append(reject(_Defect(error.reason, error.detail), listed=True))
        else:
            if isinstance(told, Exclusion):
                excluded = told
            elif told is None:
                unannotated = True
                excluded = listing_exclusion(key)
                if excluded is None and not settings.keep_unannotated:
                    excluded = Exclusion.UNANNOTATED
                annotations = encode_annotations(ImageAnnotations(image_id=""))
            else:
                labels = told.labels
                if labels and not _any_label_written(labels, settings=settings.labels):
                    excluded = Exclusion.LABEL_EXCLUDED
                annotations = encode_annotations(told)
    rejects += [reject(defect, listed=False) for defect in defects]

    if excluded is not None or annotations is None:
        return JoinedKey(split=split, labels=labels, excluded=excluded, rejects=tuple(rejects))
    if not settings.splits.matches(source=source, key=key):
        ungrouped = _Defect(
            Reason.GROUP_NOT_MATCHED,
            f"group_by ({settings.splits.group_by}) finds nothing in the key",
        )
        return JoinedKey(
            split=split, labels=labels, rejects=(*rejects, reject(ungrouped, listed=True))
        )
    return JoinedKey(
        split=split,
        record=Record(source=source, key=key, image=refs[0], annotations=annotations),
        unannotated=unannotated,
        labels=labels,
        rejects=tuple(rejects),
    )


def _merge_entries(entries: Iterable[AnnotationEntry]) -> tuple[bytes | None, list[_Defect]]:
    """Merges one key's entries: the encoded annotations if any are usable, and the defects.

    The same image may stand in several annotation files, under one id; an entry with another
    id is another image that claims the same file.
    """
    ordered = sorted(entries, key=lambda entry: (entry.file_index, entry.position))
    good = [entry for entry in ordered if entry.defect is None]
    defects = [_Defect(entry.defect, entry.detail) for entry in ordered if entry.defect is not None]
    if not good:
        return None, defects
    first = good[0]
    merged = [entry for entry in good if entry.image_id == first.image_id]
    defects += [
        _Defect(
            Reason.DUPLICATE_KEY,
            f"image id {entry.image_id} has the file name of image id {first.image_id}",
        )
        for entry in good
        if entry.image_id != first.image_id
    ]
    if len(merged) == 1:
        return first.annotations, defects
    parts = [decode_annotations(entry.annotations) for entry in merged]
    return encode_annotations(merge_annotations(parts)), defects


def merge_annotations(parts: Sequence[ImageAnnotations]) -> ImageAnnotations:
    """Merges what several annotation files say about one image.

    An object that an earlier file gives with the same id, label and box is the same object:
    COCO's keypoint files repeat the instances of theirs.
    """
    corrections: Counter[str] = Counter()
    objects = []
    seen = set()
    for part in parts:
        corrections.update(part.corrections)
        identities = set()
        for item in part.objects:
            identity = (item.annotation_id, item.label, item.bbox)
            if item.annotation_id and identity in seen:
                corrections[Correction.DUPLICATE_ANNOTATION_DROPPED.value] += 1
                continue
            identities.add(identity)
            objects.append(item)
        seen |= identities
    return ImageAnnotations(
        image_id=parts[0].image_id,
        width=next((part.width for part in parts if part.width), 0),
        height=next((part.height for part in parts if part.height), 0),
        labels=tuple(dict.fromkeys(label for part in parts for label in part.labels)),
        objects=tuple(objects),
        corrections=dict(corrections),
    )


def _any_label_written(labels: Iterable[str], *, settings: LabelSettings) -> bool:
    return any(written_name(label, settings=settings) is not None for label in labels)
