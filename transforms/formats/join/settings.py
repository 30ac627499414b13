"""The settings of the join, and the sources whose images need no join."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

import msgspec

from shardbeam.transforms.core.labels import LabelSettings
from shardbeam.transforms.core.records import decode_annotations
from shardbeam.transforms.core.sharding import SplitAssignment
from shardbeam.transforms.formats.base import Format
from shardbeam.transforms.formats.parsing.key_file import KeyFile, image_groups
from shardbeam.transforms.storage.archives.open import is_archive, is_pattern
from shardbeam.transforms.storage.find import storage_for

# The ASCII characters that are the NFC form of another one, such as K of the Kelvin sign.
_COMPOSED = re.compile("[;K`]")


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
