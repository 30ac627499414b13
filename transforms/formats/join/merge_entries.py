"""Merges the annotation entries of one image into one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from shardbeam.transforms.core.corrections import Corrections
from shardbeam.transforms.core.reasons import Correction, Exclusion, Reason
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    ImageAnnotations,
    MaskValues,
    ObjectAnnotation,
    Segment,
    Value,
    decode_annotations,
    encode_annotations,
)
from shardbeam.transforms.formats.base import Format
from shardbeam.transforms.formats.join.sources import JoinSettings

# Defects because of which a part of an image's annotations is missing or cannot be trusted.
_INCOMPLETE = frozenset(
    {
        Reason.ANNOTATION_MALFORMED,
        Reason.CHANGED_SINCE_LISTING,
        Reason.DUPLICATE_IMAGE_ID,
        Reason.SIZE_MISMATCH,
    }
)

_Item = TypeVar("_Item")


class Defect(NamedTuple):
    """A problem of an image or of its entries.

    Attributes:
        of_split: The split that the image cannot have, if only that is wrong; otherwise empty.
    """

    reason: Reason
    detail: str
    of_split: str = ""


class MergedEntries(NamedTuple):
    """The merged entries of one image.

    Attributes:
        annotations: The merged annotations, encoded; None if no entry has any.
        outlines: How many of their objects have outlines that are not written.
        split: The split that an entry puts the image into; empty if none does.
        split_problem: The problem of a split that the dataset does not have.
        exclusion: The rule of the source that leaves the image out, if one does.
        defects: The problems of entries, and contradictions between them.
        usable: Whether an entry without a defect gives annotations or a split.
    """

    annotations: bytes | None
    outlines: int
    split: str
    split_problem: str
    exclusion: Exclusion | None
    defects: list[Defect]
    usable: bool

    def lost(self) -> Defect | None:
        """Returns a defect because of which annotations of the image are missing, if there is one.

        An image that is written without its annotations would teach that nothing is there.
        """
        for defect in self.defects:
            if not defect.of_split and (self.annotations is None or defect.reason in _INCOMPLETE):
                return defect
        return None


_NO_ENTRIES = MergedEntries(
    annotations=None,
    outlines=0,
    split="",
    split_problem="",
    exclusion=None,
    defects=[],
    usable=False,
)


def merge_entries(
    entries: Collection[AnnotationEntry], *, source_format: Format, settings: JoinSettings
) -> MergedEntries:
    """Merges the entries of one image, which several annotation files may annotate."""
    if not entries:
        return _NO_ENTRIES
    # Annotation files of one image each are sorted by their names.
    ordered = sorted(
        entries,
        key=lambda each: (
            each.file_index,
            each.position,
            each.origin,
            each.image_id,
            each.detail,
            # Several masks of one image differ in nothing else.
            each.annotations,
        ),
    )
    defects = [Defect(entry.defect, entry.detail) for entry in ordered if entry.defect is not None]
    good, copies, conflicts = _choose_entries([entry for entry in ordered if entry.defect is None])
    defects += conflicts
    split = next((entry.split for entry in good if entry.split), "")
    if settings.splits.predefined:
        defects += _split_conflicts(good, split=split)
    annotations = [entry.annotations for entry in good if entry.annotations]
    outlines = sum(entry.outlines for entry in good if entry.annotations)
    if len(annotations) > 1 or (annotations and copies):
        parts = [*map(decode_annotations, annotations)]
        if not settings.ignores_sizes:
            defects += _size_conflicts(parts)
        merged = _merge_parts(parts, copies=copies, source_format=source_format)
        annotations = [encode_annotations(merged)]
        # Objects that several files repeat are one object.
        outlines = min(outlines, len(merged.objects))
    return MergedEntries(
        annotations=annotations[0] if annotations else None,
        outlines=outlines,
        # Entries that cannot be used are rejects of the split that they name.
        split=split or next((entry.split for entry in ordered if entry.split), ""),
        split_problem=next((entry.detail for entry in good if entry.split), ""),
        exclusion=next((entry.exclusion for entry in good if entry.exclusion is not None), None),
        defects=defects,
        usable=bool(annotations or split),
    )


def _merge_parts(
    parts: Sequence[ImageAnnotations], *, copies: Sequence[str], source_format: Format
) -> ImageAnnotations:
    merged = parts[0]
    if len(parts) > 1:
        merged = source_format.reconcile(merge_annotations(parts))
    if copies:
        corrections = Corrections(merged.corrections, merged.changes, merged.lost)
        corrections.note(Correction.ENTRIES_MERGED, copies[1:], copies[0])
        merged = msgspec.structs.replace(merged, **corrections.fields())
    return merged


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
    conflicts: Sequence[Defect]


def _choose_entries(entries: Sequence[AnnotationEntry]) -> _Chosen:
    """Chooses the entries that are used, where a source names an image or annotates it twice.

    Entries with several ids are of one image if they give it the same size; if not, they are of
    several images with the same name, and nobody knows which of them is listed.
    """
    chosen = _choose_file(entries)
    ids = list(dict.fromkeys(entry.image_id for entry in chosen.entries if entry.image_id))
    if len(ids) < 2:
        return chosen
    named = [(entry.image_id, _annotated_size(entry)) for entry in chosen.entries if entry.image_id]
    sizes = list(dict.fromkeys(size for _, size in named if min(size)))
    if len(sizes) < 2:
        return chosen._replace(merged=ids)
    conflicts = [
        Defect(
            Reason.DUPLICATE_KEY,
            f"image id {image_id} gives it the size {width}x{height}; image ids "
            f"{' and '.join(ids)} have the same file name, and the sizes {_name_sizes(sizes)}: "
            "give each image its own file name",
        )
        for image_id, (width, height) in named
    ]
    without_id = [entry for entry in chosen.entries if not entry.image_id]
    return _Chosen(without_id, [], [*chosen.conflicts, *conflicts])


def _choose_file(entries: Sequence[AnnotationEntry]) -> _Chosen:
    """Chooses one of the files that each annotate the image completely.

    They are copies if they have equal annotations; if not, the first one counts.
    """
    whole = [entry for entry in entries if entry.origin]
    others = [entry for entry in whole[1:] if entry.annotations != whole[0].annotations]
    conflicts = [
        Defect(
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
    merged = [entry.origin for entry in copies] if len(copies) > 1 else []
    return _Chosen(used, merged, conflicts)


def _split_conflicts(entries: Sequence[AnnotationEntry], *, split: str) -> Iterator[Defect]:
    for entry in entries:
        if entry.split and entry.split != split:
            detail = f"it is in split {split!r} already, and in {entry.split!r} as well"
            yield Defect(Reason.DUPLICATE_KEY, detail, of_split=entry.split)


def _size_conflicts(parts: Sequence[ImageAnnotations]) -> Iterator[Defect]:
    sizes = _pixel_sizes(parts)
    if len(sizes) > 1:
        detail = (
            f"annotation files give it the sizes {_name_sizes(sizes)}; correct them, or set "
            "image.annotated_size: ignore to take all boxes in pixels of the image"
        )
        yield Defect(Reason.SIZE_MISMATCH, detail)


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
        **corrections.fields(),
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
        self.stuff += _unseen(part.stuff, self.stuff if has_other_id else (), identity=_outline)
        self.segments += _unseen(
            part.segments,
            self.segments if has_other_id else (),
            identity=lambda segment: segment.segment_id,
        )
        self.captions += _unseen(part.captions, self.captions if has_other_id else ())
        for key, items in part.values.items():
            own = self.values.setdefault(key, [])
            own += _unseen(items, own if has_other_id else ())


def _unseen(
    items: Iterable[_Item],
    known: Iterable[_Item],
    *,
    identity: Callable[[_Item], object] = lambda item: item,
) -> list[_Item]:
    """Returns the items that equal none of the known ones; they may equal each other."""
    seen = frozenset(map(identity, known))
    return [item for item in items if identity(item) not in seen]


def _identities(item: ObjectAnnotation, *, has_other_id: bool) -> list[tuple[object, ...]]:
    """Returns what is equal in two entries of one object; ids count within one numbering."""
    identities: list[tuple[object, ...]] = []
    if item.annotation_id:
        identities.append((item.annotation_id, item.label, item.bbox))
    if has_other_id:
        identities.append(_outline(item))
    return identities


def _outline(item: ObjectAnnotation) -> tuple[object, ...]:
    return item.label, item.bbox, item.segmentation


def _complete(known: ObjectAnnotation, other: ObjectAnnotation) -> ObjectAnnotation:
    """Adds to an object what it lacks and `other` has."""
    return msgspec.structs.replace(
        known,
        segmentation=known.segmentation or other.segmentation,
        keypoints=known.keypoints or other.keypoints,
        attributes=known.attributes or other.attributes,
    )
