"""Finds what differs between two versions of a picture and its annotations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from shardbeam.readers.compare.object_changes import (
    ObjectChange,
    find_changed_objects,
    find_scaling,
    same_values,
)
from shardbeam.transforms.examples.decode.picture import Picture

# At most this many changed objects of a picture are listed.
_MOST_LISTED = 1_000
# Keys whose changes other fields of `ImageChange` report.
_IMAGE_KEYS = (
    *("image/encoded", "image/key/sha256", "image/format", "image/width", "image/height"),
)
_OBJECT_KEYS = ("image/object/", "annotation/")
_MAP_KEYS = ("image/segmentation/", "image/panoptic/")


class ImageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A stored image.

    Attributes:
        format: Its format.
        width: In pixels.
        height: In pixels.
        num_bytes: Length of its file.
    """

    format: str
    width: int
    height: int
    num_bytes: int


class ImageChange(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between two versions of a picture.

    Attributes:
        objects: The objects that differ; at most 1,000.
        more_objects: How many more objects differ.
        same_objects: How many objects are the same.
        objects_not_compared: How many objects there are, if they are too many to be compared.
        labels_removed: Labels of the image that only the old version has.
        labels_added: Labels of the image that only the new version has.
        captions_removed: Captions that only the old version has.
        captions_added: Captions that only the new version has.
        old_image: The old image, if the new one has other bytes.
        new_image: The new image, if it has other bytes.
        maps: Maps that differ: `class_map`, `instance_map`.
        keys_removed: Other keys that only the old Example has.
        keys_added: Other keys that only the new Example has.
        keys_changed: Other keys with different values.
    """

    objects: tuple[ObjectChange, ...] = ()
    more_objects: int = 0
    same_objects: int = 0
    objects_not_compared: int = 0
    labels_removed: tuple[str, ...] = ()
    labels_added: tuple[str, ...] = ()
    captions_removed: tuple[str, ...] = ()
    captions_added: tuple[str, ...] = ()
    old_image: ImageFacts | None = None
    new_image: ImageFacts | None = None
    maps: tuple[str, ...] = ()
    keys_removed: tuple[str, ...] = ()
    keys_added: tuple[str, ...] = ()
    keys_changed: tuple[str, ...] = ()


def compare_images(
    old: Picture,
    new: Picture,
    *,
    default_keys: Mapping[str, str] | None = None,
    most_objects: int | None = _MOST_LISTED,
) -> ImageChange:
    """Finds out what differs between two versions of a picture.

    Args:
        old: The old version.
        new: The new version.
        default_keys: `{key as written: default key}` where they differ.
        most_objects: At most this many objects that differ are listed; None for all.
    """
    scaling = find_scaling(old, new)
    changed, same = find_changed_objects(old.objects, new.objects, scaling=scaling)
    labels_removed, labels_added = _subtract(old.labels, new.labels)
    captions_removed, captions_added = _subtract(old.captions, new.captions)
    listed = changed[:most_objects]
    is_other_image = old.image != new.image
    maps = tuple(
        name for name in ("class_map", "instance_map") if getattr(old, name) != getattr(new, name)
    )
    # Other fields report the changes of these keys.
    explained = (
        *(_OBJECT_KEYS if changed else ()),
        *(("image/class/",) if labels_removed or labels_added else ()),
        *(("image/caption",) if captions_removed or captions_added else ()),
        *(_IMAGE_KEYS if is_other_image else ()),
        *(_MAP_KEYS if maps else ()),
        *(("image/filename", "image/source_id") if old.key != new.key else ()),
    )
    keys_removed, keys_added, keys_changed = _compare_keys(
        old.features, new.features, explained=explained, default_keys=default_keys or {}
    )
    return ImageChange(
        objects=tuple(listed),
        more_objects=len(changed) - len(listed),
        same_objects=same,
        labels_removed=labels_removed,
        labels_added=labels_added,
        captions_removed=captions_removed,
        captions_added=captions_added,
        old_image=_image_facts(old) if is_other_image else None,
        new_image=_image_facts(new) if is_other_image else None,
        maps=maps,
        keys_removed=keys_removed,
        keys_added=keys_added,
        keys_changed=keys_changed,
    )


def _compare_keys(
    old: Mapping[str, Sequence[Any]],
    new: Mapping[str, Sequence[Any]],
    *,
    explained: tuple[str, ...],
    default_keys: Mapping[str, str],
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Compares the keys of two Examples.

    Args:
        old: `{key: values}` of the old Example.
        new: `{key: values}` of the new Example.
        explained: Prefixes of the default keys that are left out.
        default_keys: `{key as written: default key}` where they differ.

    Returns:
        The keys that only the old Example has, those that only the new one has, and those whose
        values differ.
    """

    def list_keys(keys: Iterable[str]) -> tuple[str, ...]:
        return tuple(
            sorted(key for key in keys if not default_keys.get(key, key).startswith(explained))
        )

    changed = (key for key in old.keys() & new.keys() if not same_values(old[key], new[key]))
    return (
        list_keys(old.keys() - new.keys()),
        list_keys(new.keys() - old.keys()),
        list_keys(changed),
    )


def _image_facts(picture: Picture) -> ImageFacts:
    return ImageFacts(
        format=picture.format,
        width=picture.width,
        height=picture.height,
        num_bytes=len(picture.image),
    )


def _subtract(old: Iterable[str], new: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the texts that only the old version has, and those that only the new one has."""
    olds, news = Counter(old), Counter(new)
    return tuple((olds - news).elements()), tuple((news - olds).elements())
