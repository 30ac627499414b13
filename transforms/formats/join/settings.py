"""The settings of the join, and the sources whose images need no join."""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import google_crc32c
import msgspec

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.labels import LabelSettings
from shardbeam.transforms.core.records import decode_annotations
from shardbeam.transforms.core.sharding import SplitAssignment
from shardbeam.transforms.formats.annotation_file import classes_in, explain_errors
from shardbeam.transforms.formats.base import Format
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.archives.open import is_archive, is_pattern
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.parquet import read_parquet

# Files that name images to leave out, or groups of images that belong together.
#
# Such a file is text with one key on each line, or a dataset's `duplicates.parquet`
# (`duplicates.duplicates`). Each worker reads the file, because it may be too long for the graph.

_PARQUET = b"PAR1"
_COLUMNS = {"source": str, "key": str, "group": int, "keep": bool}

# Rows that are decoded at a time.
_BATCH_ROWS = 1024

# The source and the key of an image. An empty source stands for any.
_Image = tuple[str, str]


class KeyFile(msgspec.Struct, frozen=True):
    """A file that names images, as it was when the run was launched.

    Attributes:
        uri: The file.
        crc32c: Checksum of its content.
    """

    uri: str
    crc32c: int


def find_key_file(uri: str) -> KeyFile:
    """Finds a file that names images.

    Raises:
        InputError: The file is missing or cannot be read.
    """
    return KeyFile(uri, google_crc32c.value(_read(uri)))


@functools.lru_cache(maxsize=4)
def excluded_images(file: KeyFile) -> frozenset[_Image]:
    """Reads the images to leave out.

    A text names them: each line is a key, or a source's name, a tab and a key. A list of duplicates
    marks the images to keep; all others are left out.

    Raises:
        InputError: The file has changed since the launch, or is neither text nor a list of
            duplicates.
    """
    data = _read_unchanged(file)
    if data.startswith(_PARQUET):
        rows = _decode_parquet(data, uri=file.uri)
        return frozenset((row["source"], row["key"]) for row in rows if not row["keep"])
    images = set()
    try:
        for line in io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", newline="\n"):
            source, tab, key = line.removesuffix("\n").removesuffix("\r").partition("\t")
            if source:
                images.add((source, key) if tab else ("", source))
            if len(images) > limits.KEY_FILE_ROWS:
                raise InputError(
                    uri=file.uri, problem=f"names more than {limits.KEY_FILE_ROWS:,} images"
                )
    except UnicodeDecodeError as error:
        raise InputError(
            uri=file.uri, problem=f"neither UTF-8 text nor a duplicates.parquet: {error}"
        ) from error
    return frozenset(images)


def is_excluded(file: KeyFile, *, source: str, key: str) -> bool:
    """Whether a file leaves an image out; see `excluded_images`."""
    images = excluded_images(file)
    return (source, key) in images or ("", key) in images


@functools.lru_cache(maxsize=4)
def image_groups(file: KeyFile) -> Mapping[_Image, _Image]:
    """Reads which images belong together: `{image: the first image of its group}`.

    Raises:
        InputError: The file has changed since the launch, or is not a list of duplicates.
    """
    first: dict[int, _Image] = {}
    groups = {}
    for row in _decode_parquet(_read_unchanged(file), uri=file.uri):
        image = row["source"], row["key"]
        groups[image] = first.setdefault(row["group"], image)
    return groups


def _read(uri: str) -> bytes:
    with explain_errors(uri):
        return storage_for(uri).read_small(uri, max_bytes=limits.KEY_FILE_BYTES)


def _read_unchanged(file: KeyFile) -> bytes:
    data = _read(file.uri)
    if google_crc32c.value(data) != file.crc32c:
        raise InputError(uri=file.uri, problem="the file has changed since the run was launched")
    return data


def _decode_parquet(data: bytes, *, uri: str) -> Iterator[Mapping[str, Any]]:
    table = read_parquet(data, uri=uri, columns=list(_COLUMNS), max_rows=limits.KEY_FILE_ROWS)
    for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
        for row in batch.to_pylist():
            for name, kind in _COLUMNS.items():
                if not isinstance(row.get(name), kind):
                    raise InputError(
                        uri=uri,
                        problem=f"expected {kind.__name__} in {name}, as in the duplicates.parquet "
                        "that a build writes",
                    )
            yield row


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
        return self._written(classes_in(decode_annotations(annotations)))

    def shown_classes(self, annotations: bytes) -> tuple[str, ...]:
        """Returns the classes of labels, objects, regions and panoptic segments."""
        found = decode_annotations(annotations)
        segments = (segment.label for segment in found.segments)
        return self._written((*classes_in(found), *(it.label for it in found.stuff), *segments))

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
