"""The differences between two datasets, and classes that got another name.

Such a class is found by the objects of images that are in both datasets. Only a class of the old
dataset that the new one lacks can have been renamed, and only to a class that the old one lacks.
Most of its objects must have the other class now, with the same box; none may have a third class
that is new as well, and none of that class may come from a third class that is gone. Whatever else
happens to classes is reported, and is no rename: two names that were exchanged, for example, look
the same as labels that were corrected.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from shardbeam.readers.compare.image_changes import ImageChange, compare_images
from shardbeam.readers.compare.object_changes import ADDED, BOX, CLASS, REMOVED
from shardbeam.transforms.core.text import counted, show_name
from shardbeam.transforms.examples.decode.picture import FeatureValues, Picture
from shardbeam.transforms.examples.encode.image_features import CLASS_IDS

ClassChangeKind: TypeAlias = Literal["renamed", "merged", "split", "other"]

_CLASS_CHANGES: Mapping[ClassChangeKind, str] = {
    "renamed": "class {old} was renamed to {new}",
    "merged": "class {old} was merged into {new}",
    "split": "class {old} was split, and a part of it is {new} now",
    "other": "some of class {old} is {new} now",
}
# The changes of objects that are changes of labels.
_OF_LABELS = {ADDED, REMOVED, CLASS, BOX}
# The default keys with names of classes.
_TEXTS = ("image/object/class/text", "image/class/text", "annotation/class/text")


class ChangeKind(str, enum.Enum):
    """How an example differs between two datasets.

    Attributes:
        ADDED: Only the new dataset has it.
        REMOVED: Only the old dataset has it.
        RENAMED: Its image has another key, and the same bytes.
        REENCODED: Its image has another key and other bytes, and shows the same picture, or nearly:
            it was renamed and encoded again, or resized.
        MOVED: It is in another split.
        IMAGE: Its stored image has other bytes.
        LABELS: Its classes, boxes or captions differ.
        CLASS_NAMES: Labels and all other values are the same, but for the names and ids of classes
            that were renamed.
        OTHER: Image and labels are the same, but something else in the Example differs, such as
            masks, areas or added keys; in older datasets, whose indexes have no labels, it may be
            labels.
    """

    ADDED = "added"
    REMOVED = "removed"
    RENAMED = "renamed"
    REENCODED = "reencoded"
    MOVED = "moved"
    IMAGE = "image"
    LABELS = "labels"
    CLASS_NAMES = "class_names"
    OTHER = "other"


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """An example that is not the same in two datasets.

    Attributes:
        key: Its image's key.
        kinds: How it differs.
        old_split: Its split in the old dataset; empty if it is not there.
        new_split: Its split in the new dataset; empty if it is not there.
        old_key: Its image's key in the old dataset, if it was renamed, or encoded again, too.
    """

    key: str
    kinds: tuple[ChangeKind, ...]
    old_split: str = ""
    new_split: str = ""
    old_key: str = ""


class SplitDifference(msgspec.Struct, kw_only=True):
    """The differences in a split, as numbers of examples.

    An example that has moved counts as changed in its new split, and so does one that was renamed
    or encoded again.

    Attributes:
        old: How many the old dataset has.
        new: How many the new one has.
        added: Examples that only the new one has.
        removed: Examples that only the old one has.
        renamed: Examples whose image has another key, and the same bytes.
        reencoded: Examples whose image has another key and other bytes, and the same picture.
        moved_in: Examples that were in another split before.
        moved_out: Examples that are in another split now.
        image: Examples whose image differs.
        labels: Examples whose labels differ.
        class_names: Examples in which only classes that were renamed differ, and perhaps the image.
        other: Examples in which only something else differs.
        unchanged: Unchanged Examples.
    """

    old: int = 0
    new: int = 0
    added: int = 0
    removed: int = 0
    renamed: int = 0
    reencoded: int = 0
    moved_in: int = 0
    moved_out: int = 0
    image: int = 0
    labels: int = 0
    class_names: int = 0
    other: int = 0
    unchanged: int = 0


class ClassChange(msgspec.Struct, frozen=True, kw_only=True):
    """Objects of one class that are of another class now.

    Attributes:
        old: Their class in the old dataset.
        new: Their class in the new one.
        kind: `renamed`; `merged` if the new dataset lacks the class, and the other one has objects
            of other classes, too; `split` if the new dataset lacks the class, and its objects are
            of several new classes; `other`, such as labels that were corrected.
        objects: How many objects there are; 0 if only images as a whole have these classes.
        images: In how many images they are.
    """

    old: str
    new: str
    kind: ClassChangeKind
    objects: int
    images: int

    def describe(self) -> str:
        """Describes the change in one line."""
        images = counted(self.images, "image")
        of = f"{counted(self.objects, 'object')} in {images}" if self.objects else images
        what = _CLASS_CHANGES[self.kind].format(old=show_name(self.old), new=show_name(self.new))
        return f"{what}: {of}"


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The differences between two datasets.

    Attributes:
        old: Folder of the old one.
        new: Folder of the new one.
        splits: `{split: what differs}` for the splits of both.
        moves: `{old split: {new split: examples}}` of examples that have moved.
        classes: `{class: (old id, new id)}` of classes whose ids differ; the id is None in a
            dataset that lacks the class.
        class_changes: Classes that were renamed, and objects that have another class, if the labels
            of images were compared; the most first.
        changes: The first examples of each kind of change, but `CLASS_NAMES`.
        differing: How many images are in both datasets with Examples that differ in more than
            names of classes.
        notes: What cannot be compared, one line each.
        unit: What `splits` counts: `image`, or `example` if each object has one.
        changed: How many of these are in both datasets and differ, as for `differing`, in more than
            key and encoding of the image.
    """

    old: str
    new: str
    splits: Mapping[str, SplitDifference]
    moves: Mapping[str, Mapping[str, int]] = {}
    classes: Mapping[str, tuple[int | None, int | None]] = {}
    class_changes: tuple[ClassChange, ...] = ()
    changes: tuple[Change, ...] = ()
    differing: int = 0
    notes: tuple[str, ...] = ()
    unit: str = "image"
    changed: int = 0

    @property
    def renames(self) -> Mapping[str, str]:
        """`{old class: new class}` of the classes that were renamed."""
        return list_renames(self.class_changes)

    @property
    def is_empty(self) -> bool:
        """Whether both have the same examples and classes."""
        return not self.classes and all(
            split.old == split.new == split.unchanged for split in self.splits.values()
        )


class LabelChanges(NamedTuple):
    """How the labels of an image differ.

    Attributes:
        classes: `{(old class, new class): objects}` of objects with another class; 0 objects for
            the class of the image as a whole.
        removed: Classes of objects, and of the image, that only the old version has.
        is_same: Whether labels are the same.
        other_labels: Whether labels differ in more than names of classes.
        other_values: Whether anything but the stored image differs in more than these names.
    """

    classes: Mapping[tuple[str, str], int]
    removed: Mapping[str, int]
    is_same: bool
    other_labels: bool
    other_values: bool


class ClassNames(NamedTuple):
    """The classes of two datasets.

    Attributes:
        old: `{class: id}` of the old dataset.
        new: `{class: id}` of the new one.
    """

    old: Mapping[str, int]
    new: Mapping[str, int]

    @property
    def may_have_renames(self) -> bool:
        """Whether each dataset has a class that the other one lacks."""
        return bool(self.old.keys() - self.new.keys() and self.new.keys() - self.old.keys())

    def may_be_renamed(self, old: str, new: str) -> bool:
        """Whether only the old dataset has the one class, and only the new one the other."""
        return old in self.old and old not in self.new and new in self.new and new not in self.old

    def rename(
        self, picture: Picture, renames: Mapping[str, str], *, default_keys: Mapping[str, str]
    ) -> Picture:
        """Returns a picture of the old dataset with other names, and their ids, for classes.

        Args:
            picture: The picture.
            renames: `{old class: new class}`.
            default_keys: As for `compare_images`.
        """
        ids = {self.old[old]: self.new[new] for old, new in renames.items()}
        texts = {old.encode(): new.encode() for old, new in renames.items()}
        by_key: dict[str, Mapping[Any, Any]] = dict.fromkeys(_TEXTS, texts)
        by_key.update(dict.fromkeys(CLASS_IDS, ids))
        features = {
            key: _replace(values, by_key.get(default_keys.get(key, key), {}))
            for key, values in picture.features.items()
        }
        return msgspec.structs.replace(
            picture,
            labels=tuple(renames.get(name, name) for name in picture.labels),
            label_ids=tuple(ids.get(each, each) for each in picture.label_ids),
            objects=tuple(
                msgspec.structs.replace(
                    each,
                    label=renames.get(each.label, each.label),
                    label_id=ids.get(each.label_id, each.label_id),
                )
                for each in picture.objects
            ),
            features=features,
        )


def _replace(values: FeatureValues, new: Mapping[Any, Any]) -> FeatureValues:
    return [new.get(each, each) for each in values] if new else values


def find_label_changes(
    old: Picture,
    new: Picture,
    *,
    names: ClassNames,
    default_keys: Mapping[str, str],
) -> LabelChanges:
    """Finds how the labels of an image differ, and whether it may be by names of classes alone.

    Args:
        old: The old version.
        new: The new version.
        names: The classes of both datasets.
        default_keys: As for `compare_images`.
    """
    what = compare_images(old, new, default_keys=default_keys, most_objects=None)
    classes, removed = _count_classes(what)
    renames = dict(classes.keys())
    rest = what
    if len(renames) == len(classes) and all(names.may_be_renamed(*pair) for pair in classes):
        rest = compare_images(
            names.rename(old, renames, default_keys=default_keys), new, default_keys=default_keys
        )
    return LabelChanges(
        classes,
        removed,
        is_same=not has_other_labels(what),
        other_labels=has_other_labels(rest),
        other_values=bool(
            rest.objects or rest.maps or rest.keys_removed or rest.keys_added or rest.keys_changed
        ),
    )


def has_other_labels(what: ImageChange) -> bool:
    """Whether classes, boxes or captions differ, or were not compared."""
    return bool(
        what.labels_removed
        or what.labels_added
        or what.captions_removed
        or what.captions_added
        or what.objects_not_compared
        or what.more_objects
        or any(not _OF_LABELS.isdisjoint(each.kinds) for each in what.objects)
    )


def _count_classes(what: ImageChange) -> tuple[Counter[tuple[str, str]], Counter[str]]:
    """Counts objects with another class, by both classes; and removed objects, by class."""
    classes: Counter[tuple[str, str]] = Counter()
    removed: Counter[str] = Counter()
    for each in what.objects:
        if CLASS in each.kinds:
            classes[each.old_class, each.new_class] += 1
        elif REMOVED in each.kinds:
            removed[each.old_class] += 1
    if len(what.labels_removed) == len(what.labels_added) == 1:
        classes[what.labels_removed[0], what.labels_added[0]] += 0
    else:
        removed.update(what.labels_removed)
    return classes, removed


def find_class_changes(found: Iterable[LabelChanges], *, names: ClassNames) -> list[ClassChange]:
    """Finds which classes were renamed, and which objects got another class; the most first.

    Args:
        found: How the labels of images differ.
        names: The classes of both datasets.
    """
    objects: Counter[tuple[str, str]] = Counter()
    images: Counter[tuple[str, str]] = Counter()
    removed: Counter[str] = Counter()
    for each in found:
        objects.update(each.classes)
        images.update(each.classes.keys())
        removed.update(each.removed)
    # Where only images have classes, there are no objects to be counted.
    counts = {pair: max(objects[pair], images[pair]) for pair in images}
    changes = [
        ClassChange(
            old=pair[0],
            new=pair[1],
            kind=_find_kind(*pair, counts=counts, removed=removed[pair[0]], names=names),
            objects=objects[pair],
            images=images[pair],
        )
        for pair in images
    ]
    return sorted(changes, key=lambda each: (-each.objects, -each.images, each.old, each.new))


def _find_kind(
    old: str,
    new: str,
    *,
    counts: Mapping[tuple[str, str], int],
    removed: int,
    names: ClassNames,
) -> ClassChangeKind:
    """Finds out what became of a class.

    Args:
        old: The class in the old dataset.
        new: The class that objects of it have now.
        counts: `{(old class, new class): objects}` of all objects with another class.
        removed: How many objects of the old class were removed.
        names: The classes of both datasets.
    """
    if old in names.new or old not in names.old:
        return "other"
    targets = {other: number for (one, other), number in counts.items() if one == old}
    origins = {one: number for (one, other), number in counts.items() if other == new}
    if sum(other not in names.old for other in targets) > 1:
        return "split"
    if new in names.old:
        # The objects that had this class before may all have another one now.
        return "other" if any(one == new for one, _ in counts) or len(targets) > 1 else "merged"
    if sum(one not in names.new for one in origins) > 1:
        return "merged"
    # A few labels may have been corrected, too.
    number = counts[old, new]
    others = max(sum(targets.values()), sum(origins.values())) - number
    return "renamed" if number > removed + others else "other"


def list_renames(changes: Sequence[ClassChange]) -> dict[str, str]:
    """Returns `{old class: new class}` of the classes that were renamed."""
    return {each.old: each.new for each in changes if each.kind == "renamed"}


def uses_class(picture: Picture, classes: Container[str]) -> bool:
    """Whether a picture, or an object in it, is of one of these classes."""
    return any(
        name in classes for name in (*picture.labels, *(each.label for each in picture.objects))
    )


def restore_names(what: ImageChange, renames: Mapping[str, str]) -> ImageChange:
    """Gives classes the names that they had, after a picture was compared by their new names."""
    old = {new: name for name, new in renames.items()}
    return msgspec.structs.replace(
        what,
        labels_removed=tuple(old.get(name, name) for name in what.labels_removed),
        objects=tuple(
            msgspec.structs.replace(each, old_class=old.get(each.old_class, each.old_class))
            for each in what.objects
        ),
    )
