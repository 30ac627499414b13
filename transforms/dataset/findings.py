"""The findings in a dataset, by its statistics: which kinds of findings, and how many.

A kind that many images share is usual in this dataset: a set of product photographs has boxes over
the whole image. It is listed below the others, so that the rare findings are not lost among the
many. A few kinds are hardly ever meant, however many images have them: they are never usual.
"""

from __future__ import annotations

import itertools
import re
import statistics as mean_values
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from shardbeam.transforms.core.labels import MAX_CLASS_NAME, list_classes
from shardbeam.transforms.core.reasons import Correction
from shardbeam.transforms.dataset.collectors.statistics import Statistics
from shardbeam.transforms.dataset.example_findings import (
    BOX_OFF_MASK,
    DUPLICATE_BOX,
    LARGE_BOX,
    MANY_OBJECTS,
    NO_OBJECTS,
    SAME_BOX,
    SPARSE_MASK,
    THIN_BOX,
    TINY_BOX,
    ObjectLimits,
    limit_objects,
)
from shardbeam.transforms.images.measures import (
    BRIGHT_PICTURE,
    DARK_PICTURE,
    LOW_CONTRAST,
)

# Kinds of images that are found when duplicates are looked for (`duplicates.label_conflicts`).
SAME_PICTURE = "same_picture"
UNEQUAL_OBJECTS = "unequal_objects"
OF_SIMILAR_PICTURES = (SAME_PICTURE, UNEQUAL_OBJECTS)
# Kinds of the dataset as a whole, which name classes and no images.
UNUSED_CLASS = "unused_class"
SIMILAR_NAMES = "similar_names"
RARE_CLASS = "rare_class"
UNEVEN_CLASSES = "uneven_classes"
MISSING_CLASS = "missing_class"
EMPTY_SPLIT = "empty_split"
CORRECTION = "correction"

# {kind: what is found}, in the order of `configs.schema.FindingKind`.
KINDS: Mapping[str, str] = {
    DUPLICATE_BOX: "boxes of one class that are nearly the same",
    SAME_BOX: "boxes of two classes that are nearly the same",
    LARGE_BOX: "a box over more than 90 % of the image",
    TINY_BOX: "a box of at most 16 square pixels",
    THIN_BOX: "a box more than 20 times as long as wide",
    SPARSE_MASK: "a mask that fills less than 2 % of its box",
    BOX_OFF_MASK: "a box that is not around its mask",
    MANY_OBJECTS: "far more objects than the split's other images",
    NO_OBJECTS: "no objects, where nearly all images have some",
    SAME_PICTURE: "the same picture as another one, or nearly, with objects of other classes",
    UNEQUAL_OBJECTS: "the same picture as another one, or nearly, with other numbers of objects",
    DARK_PICTURE: "a picture that is almost black",
    BRIGHT_PICTURE: "a picture that is almost white",
    LOW_CONTRAST: "a picture with hardly any contrast",
    UNUSED_CLASS: "classes that never occur",
    SIMILAR_NAMES: "classes whose names are nearly the same",
    RARE_CLASS: "classes that are rare",
    UNEVEN_CLASSES: "a class that is a thousand times as frequent as another one",
    MISSING_CLASS: "classes that a split lacks",
    EMPTY_SPLIT: "a split without annotations, where another one has some",
    CORRECTION: "corrections that changed annotations",
}
# Corrections of pictures, of what tools round, and those that the config asks for.
_HARMLESS = (
    Correction.BOX_CLIPPED_SLIGHTLY,
    Correction.WRONG_EXTENSION_KEPT,
    Correction.JPEG_DAMAGE_KEPT,
    Correction.JPEG_JUNK_KEPT,
    Correction.IMAGE_CONVERTED,
    Correction.IMAGE_RESIZED,
    Correction.ORIENTATION_APPLIED,
    Correction.EXCLUDED_LABEL_DROPPED,
    Correction.OBJECT_OF_EXCLUDED_LABEL_DROPPED,
    Correction.SMALL_OBJECT_DROPPED,
    Correction.OBJECT_OUTSIDE_CROP_DROPPED,
    Correction.BOX_CUT_BY_CROP,
    Correction.SEGMENT_OUTSIDE_CROP_DROPPED,
    Correction.REGION_OF_EXCLUDED_LABEL_VOID,
)

# A rare class has at most this fraction (1/50) of the objects, or images, of the median class.
RARE = 50
# Classes are uneven if one has at least this many times as many objects, or images, as another one.
_UNEVEN = 1_000
# By the share of annotated images in other splits, this many or more are expected in a split; by
# chance, it then has none once in twenty times.
_EXPECTED_IMAGES = 3
TRAIN = "train"

# A kind is usual if a greater share of a split's images has it, and more than just a few of them.
# It is usual for a class if as great a share of its objects has it, and there are enough to tell.
_USUAL_SHARE, _ENOUGH_OBJECTS = 0.2, 200
_FEW_IMAGES = 3
# If many images have one of these, many are wrong: objects that were exported twice, boxes that
# were clicked by accident, and masks that belong to another object.
_NEVER_USUAL = (DUPLICATE_BOX, TINY_BOX, SPARSE_MASK)
# The rarer of two similar names is probably a slip if its class has less than this share of the
# other's objects.
_SLIP_SHARE = 0.01


class KindFound(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of one kind in a split, or in the whole dataset.

    Attributes:
        kind: The kind's stable name.
        split: The split; empty if the finding is about the dataset as a whole. Of classes that a
            split lacks, it is that split.
        images: Images that have it; 0 for findings about classes.
        share: Their share of the split's images.
        usual: Whether it is usual here, because many images have it.
        objects: `{class: objects}` that have it, without classes in which it is usual. Two classes
            are joined by " + ".
        usual_classes: `{class: share of its objects}` of classes in which it is usual.
        text: A finding about classes in words; empty for others.
    """

    kind: str
    split: str = ""
    images: int = 0
    share: float = 0.0
    usual: bool = False
    objects: Mapping[str, int] = {}
    usual_classes: Mapping[str, float] = {}
    text: str = ""

    def describe(self) -> str:
        """Describes the finding in one line."""
        if self.text:
            return self.text
        line = f"{self.count}: {KINDS[self.kind]}"
        return f"{line} ({self.classes})" if self.classes else line

    @property
    def count(self) -> str:
        """How many images of the split have it."""
        images = "1 image" if self.images == 1 else f"{self.images:,} images"
        return f"{images} of {self.split} ({self.share:.2%})"

    @property
    def classes(self) -> str:
        """The classes whose objects have it, with their numbers of objects, the largest first."""
        most = sorted(self.objects.items(), key=lambda item: (-item[1], item[0]))
        usual = sorted(self.usual_classes.items(), key=lambda item: (-item[1], item[0]))
        counts = list_classes([f"{name}: {count:,}" for name, count in most])
        shares = list_classes([f"{name}: {share:.2%}" for name, share in usual])
        return "; ".join(filter(None, [counts, shares and f"usual for {shares}"]))


def find_kinds(
    splits: Mapping[str, Statistics],
    *,
    classes: Collection[str] = (),
    corrections: Mapping[str, Mapping[str, int]] | None = None,
    similar: Mapping[str, Mapping[str, int]] | None = None,
    ignore: Collection[str] = (),
) -> list[KindFound]:
    """Lists the findings by kind and split, the most notable first and the usual ones last.

    Args:
        splits: `{split: what is in it}`.
        classes: Names of the declared classes.
        corrections: `{split: {correction: count}}`.
        similar: `{kind: {split: images}}` of images that contradict a similar one
            (`DuplicateCounts.findings`).
        ignore: Kinds to leave out.
    """
    similar = similar or {}
    found = [
        *(
            each
            for name, split in splits.items()
            for each in _find_in_split(
                name,
                split,
                similar={kind: images[name] for kind, images in similar.items() if name in images},
            )
        ),
        *_find_in_classes(splits, classes=classes),
        *_find_empty_splits(splits),
        *_find_corrections(corrections or {}),
    ]
    order = list(KINDS)
    return sorted(
        # A later version may know more kinds.
        (each for each in found if each.kind in KINDS and each.kind not in ignore),
        key=lambda each: (each.usual, not each.images, order.index(each.kind)),
    )


def most_notable(found: Sequence[KindFound], *, number: int) -> list[KindFound]:
    """Returns a pair of classes that may be one, then the kinds that most images have.

    Usual kinds are left out.
    """
    similar = [each for each in found if each.kind == SIMILAR_NAMES]
    of_images = [each for each in found if each.images and not each.usual]
    return [*similar[:1], *sorted(of_images, key=lambda each: -each.images)][:number]


def limits_of(statistics: Statistics) -> ObjectLimits:
    """Decides which numbers of objects are findings in a split."""
    return limit_objects({int(key): count for key, count in statistics.images_by_objects.items()})


def _count_images(statistics: Statistics) -> Mapping[str, int]:
    """Counts the images of each kind of finding in a split."""
    limits = limits_of(statistics)
    counts = Counter(statistics.images_by_finding)
    for objects, images in statistics.images_by_objects.items():
        if (found := limits.finding(int(objects))) is not None:
            counts[found[0]] += images
    return counts


def _find_in_split(
    name: str, split: Statistics, *, similar: Mapping[str, int]
) -> Iterator[KindFound]:
    for kind, images in {**_count_images(split), **similar}.items():
        share = images / max(1, split.images)
        may_be_usual = kind not in _NEVER_USUAL
        objects, usual_classes = {}, {}
        for label, (count, of) in _count_objects(split, kind=kind).items():
            if may_be_usual and of >= _ENOUGH_OBJECTS and count > _USUAL_SHARE * of:
                usual_classes[label] = count / of
            else:
                objects[label] = count
        yield KindFound(
            kind=kind,
            split=name,
            images=images,
            share=share,
            usual=may_be_usual
            and (
                (images > _FEW_IMAGES and share > _USUAL_SHARE)
                or (bool(usual_classes) and not objects)
            ),
            objects=objects,
            usual_classes=usual_classes,
        )


def _count_objects(split: Statistics, *, kind: str) -> dict[str, tuple[int, int]]:
    """Returns `{class: (objects with this finding, objects)}`.

    For two classes, the objects are those of the smaller one.
    """
    of = split.objects_by_class
    if kind == SAME_BOX:
        return {
            f"{one} + {other}": (count, min(of.get(one, 0), of.get(other, 0)))
            for one, others in split.same_boxes.items()
            for other, count in others.items()
        }
    counts = split.objects_by_finding.get(kind, {})
    return {name: (count, of.get(name, 0)) for name, count in counts.items()}


def _find_in_classes(
    splits: Mapping[str, Statistics], *, classes: Collection[str]
) -> Iterator[KindFound]:
    counts: dict[str, int] = {}
    for split in splits.values():
        for name, count in (split.objects_by_class or split.images_by_class).items():
            counts[name] = counts.get(name, 0) + count
        for name in split.images_by_class:
            counts.setdefault(name, 0)
    unused = sorted(set(classes) - counts.keys())
    if unused:
        occur = (
            "1 class never occurs" if len(unused) == 1 else f"{len(unused):,} classes never occur"
        )
        yield KindFound(kind=UNUSED_CLASS, text=f"{occur}: {list_classes(unused)}")
    for one, other in _similar_names({**dict.fromkeys(classes, 0), **counts}):
        yield KindFound(kind=SIMILAR_NAMES, text=f"{one!r} and {other!r} may be one class")
    for line in find_rare_classes(splits):
        yield KindFound(kind=RARE_CLASS, text=line)
    found = {name: count for name, count in counts.items() if count}
    if found:
        most, least = max(found, key=found.__getitem__), min(found, key=found.__getitem__)
        if found[most] >= _UNEVEN * found[least]:
            what = (
                "objects" if any(split.objects_by_class for split in splits.values()) else "images"
            )
            yield KindFound(
                kind=UNEVEN_CLASSES,
                text=f"{most!r} has {found[most]:,} {what}, and {least!r} has {found[least]:,}",
            )
    for lacking, line in find_missing_classes(splits):
        yield KindFound(kind=MISSING_CLASS, split=lacking, text=line)


def _find_empty_splits(splits: Mapping[str, Statistics]) -> Iterator[KindFound]:
    """Finds splits without annotations, or without objects, where other splits have some."""
    what = "objects" if any(split.objects for split in splits.values()) else "annotations"
    annotated = {
        name: split.images
        - (split.images_by_objects.get("0", 0) if what == "objects" else split.unannotated)
        for name, split in splits.items()
    }
    for name, split in splits.items():
        others = sum(each.images for each in splits.values()) - split.images
        number = sum(annotated.values()) - annotated[name]
        if not annotated[name] and split.images * number >= _EXPECTED_IMAGES * max(1, others):
            yield KindFound(
                kind=EMPTY_SPLIT,
                split=name,
                text=f"none of the {split.images:,} images of {name!r} has {what}, and "
                f"{number:,} of the {others:,} images of other splits have some",
            )


def _similar_names(counts: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yields pairs of classes that may be one.

    Their names differ only in case, spaces, hyphens and underscores; or two characters of a rare
    name are exchanged.
    """
    by_form: dict[str, list[str]] = {}
    for name in sorted(counts):
        # The sign of a number counts: -1 and 1 are two classes.
        by_form.setdefault(re.sub(r"(?!^-\d)[\s_-]+", "", name.casefold()), []).append(name)
    for names in by_form.values():
        for other in names[1:]:
            yield names[0], other
    for name in sorted(counts):
        for slip in _slips(name):
            if slip in counts and counts[name] < _SLIP_SHARE * counts[slip]:
                yield slip, name


def _slips(name: str) -> Iterator[str]:
    """Yields a name with each pair of neighbours exchanged in turn; digits stay where they are."""
    if len(name) > MAX_CLASS_NAME:
        return
    for at, (one, other) in enumerate(itertools.pairwise(name)):
        if one != other and not (one.isdigit() or other.isdigit()):
            yield f"{name[:at]}{other}{one}{name[at + 2 :]}"


def find_missing_classes(splits: Mapping[str, Statistics]) -> list[tuple[str, str]]:
    """Describes classes that only one of two splits has.

    Splits are compared with `train`, or with the largest split if none has that name.

    Args:
        splits: `{split: what is in it}`.

    Returns:
        `(split that lacks classes, description)`, first what `train` lacks.
    """
    if not splits:
        return []
    largest = max(splits, key=lambda name: splits[name].examples)
    train = TRAIN if TRAIN in splits else largest
    known = splits[train].images_by_class.keys()
    lacking = []
    for name, split in splits.items():
        found = split.images_by_class.keys()
        # A split without any class has no annotations, as test splits often do.
        if name != train and found and known:
            lacking += [(train, name, found - known), (name, train, known - found)]
    return [
        (split, f"in {other!r} and not in {split!r}: {_name_classes(missing)}")
        for split, other, missing in sorted(lacking, key=lambda each: each[0] != train)
        if missing
    ]


def find_rare_classes(splits: Mapping[str, Statistics]) -> Iterator[str]:
    """Describes rare classes, one line for each split.

    A class is rare if it has at most a fiftieth of the median class's objects (or images, if the
    split has no objects).

    Args:
        splits: `{split: what is in it}`.
    """
    for name, split in splits.items():
        counts, what = split.objects_by_class, "objects"
        if not counts:
            counts, what = split.images_by_class, "images"
        median = mean_values.median(counts.values()) if counts else 0
        rare = [f"{label} ({count:,})" for label, count in counts.items() if count * RARE <= median]
        if rare:
            yield (
                f"rare in {name!r}, at most 1/{RARE} of the median class's {median:,.0f} {what}: "
                f"{_name_classes(rare)}"
            )


def _name_classes(names: Collection[str]) -> str:
    plural = "1 class" if len(names) == 1 else f"{len(names):,} classes"
    return f"{plural}: {list_classes(sorted(names))}"


def _find_corrections(corrections: Mapping[str, Mapping[str, int]]) -> Iterator[KindFound]:
    harmless = {each.value for each in _HARMLESS}
    for split, counts in corrections.items():
        for code, count in counts.items():
            if code not in harmless:
                yield KindFound(kind=CORRECTION, split=split, text=f"{count:,} {code} in {split}")
