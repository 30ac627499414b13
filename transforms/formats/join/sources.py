"""A source of the config: how its files are listed and read, and travel to the join as bytes.

A CoGroupByKey of typed values costs nearly twice as much. The step that finds a value encodes it,
so that it is encoded once and counted as it is sent.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence
from typing import ClassVar, NamedTuple, TypeAlias

import msgspec

from shardbeam.configs.decoding import MsgpackDecoder
from shardbeam.transforms.core.counts import ENTRIES, IMAGES, MASKS
from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.core.labels import check_class_name
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    ImageRef,
    Kind,
    ListedFile,
    ListedImage,
    MaskRole,
    Reject,
    encode_annotations,
)
from shardbeam.transforms.core.sharding import SplitAssignment
from shardbeam.transforms.formats.annotation_file import defect_entry
from shardbeam.transforms.formats.base import (
    ATTACHED_FILE_INDEX,
    BESIDE_FILE_INDEX,
    MASK_FILE_INDEX,
    Format,
    Place,
    Role,
)
from shardbeam.transforms.formats.load import name_format, restore_format
from shardbeam.transforms.formats.names import (
    escape_key,
    is_encodable,
    is_linked_folder,
    normalize_for_match,
    normalize_key,
)
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.archives.open import begin_root, list_root_part, nothing_found
from shardbeam.transforms.storage.base import ListingPart, join_uri
from shardbeam.transforms.storage.image_bytes import read_bytes

# (source, number of its root, folder or archive)
Root: TypeAlias = tuple[str, int, str]
# (source, number of its annotation file, first byte, the byte after the last); the last two are 0
# where the file is read whole.
FilePart: TypeAlias = tuple[str, int, int, int]


class Source(msgspec.Struct, frozen=True):
    """A source of images and annotations.

    Workers receive it as the format's name and keys (`restore_format`).

    Attributes:
        name: The source's name in the config; with its key it identifies an image.
        format: How it is read.
    """

    name: str
    format: Format

    def __reduce__(self) -> tuple[object, ...]:
        """Prepares the source for workers."""
        return _restore, (self.name, name_format(self.format), msgspec.msgpack.encode(self.format))


def _restore(name: str, format_name: str, keys: bytes) -> Source:
    return Source(name, restore_format(format_name, keys))


class GivenRecords(Format, frozen=True, kw_only=True):
    """Records of images with labels and boxes. Nothing is listed, and no file is read."""

    ROOTS: ClassVar[tuple[str, ...]] = ()

    @property
    def kinds(self) -> frozenset[Kind]:
        """Labels and boxes; an image may have neither."""
        return frozenset({Kind.CLASSIFICATION, Kind.DETECTION})


# The source of records that a program makes.
GIVEN_SOURCE = Source("records", GivenRecords())


def list_roots(sources: Sequence[Source]) -> list[Root]:
    """Lists the roots of all sources, at which the listing begins."""
    return [
        (source.name, index, root)
        for source in sources
        for index, root in enumerate(source.format.roots())
    ]


def list_annotation_files(sources: Sequence[Source]) -> list[FilePart]:
    """Lists the annotation files of all sources, each as one part."""
    return [
        (source.name, index, 0, 0)
        for source in sources
        for index in range(len(source.format.annotation_files()))
    ]


class PlacedFile(NamedTuple):
    """A listed file, and its place in its source's format.

    Attributes:
        source: The source's name.
        root: Number of the source's root that the file is below.
        path: Its path below the root.
        place: What the file is to the format.
        file: The file.
    """

    source: str
    root: int
    path: str
    place: Place
    file: ImageRef

    def item(self) -> ListedImage | AnnotationEntry | ListedFile | None:
        """Returns an image, the entry of a mask, or a file to read; None for any other file."""
        place = self.place
        if place.role is Role.IMAGE:
            return ListedImage(key=place.key, image=self.file)
        if place.role in (Role.MASK, Role.ATTACHED) and place.mask is not None:
            masks = ImageAnnotations(
                image_id="", masks={place.mask: self.file}, mask_values=place.values
            )
            return AnnotationEntry(
                key=place.key or place.join,
                annotations=encode_annotations(masks),
                file_index=MASK_FILE_INDEX if place.role is Role.MASK else ATTACHED_FILE_INDEX,
                position=list(MaskRole).index(place.mask),
            )
        if place.role in (Role.ANNOTATION, Role.BESIDE, Role.CONTAINER):
            return ListedFile(
                source=self.source,
                path=self.path,
                root=self.root,
                file=self.file,
                join=place.join,
                is_container=place.role is Role.CONTAINER,
                is_beside=place.role is Role.BESIDE,
            )
        return None


def list_files(
    source: Source, where: str | ListingPart, *, root: int, splits: SplitAssignment
) -> Iterator[PlacedFile | Reject | ListingPart]:
    """Lists the files of a source below one root.

    Args:
        source: The source.
        where: The root, one of the archives of a pattern, or a part of a long listing.
        root: Number of the source's root that this belongs to.
        splits: Finds the split of a reject.

    Yields:
        Each file, a reject for each file whose name is not valid Unicode, and the parts of a long
        listing that are left for other calls.

    Raises:
        InputError: The root cannot be listed, or is empty.
    """
    own = frozenset(source.format.annotation_files())
    if isinstance(where, ListingPart):
        for path, file in list_root_part(where):
            yield _place(path, file, source=source, root=root, splits=splits, own=own)
        return
    empty = True
    for listed in begin_root(where, open_archives=source.format.opens_archives):
        empty = False
        if isinstance(listed, ListingPart):
            yield listed
        else:
            yield _place(*listed, source=source, root=root, splits=splits, own=own, within=where)
    if empty:
        raise nothing_found(where, whose="the images'")


def read_listed_file(
    file: ListedFile, *, source_format: Format
) -> Iterator[AnnotationEntry | Category | ListedImage]:
    """Reads a listed annotation file or container.

    Yields:
        Everything that the format finds in it. An annotation file that cannot be read gives an
        entry with a defect, so that its image is rejected and the run goes on.

    Raises:
        InputError: A container cannot be read, or has another form.
    """
    if file.is_container:
        yield from source_format.read_container(file.file, path=file.path, root=file.root)
        return
    for item in _read_annotations(file, source_format=source_format):
        if file.is_beside and isinstance(item, AnnotationEntry):
            item = msgspec.structs.replace(item, file_index=BESIDE_FILE_INDEX)
        yield item


def _read_annotations(
    file: ListedFile, *, source_format: Format
) -> Iterator[AnnotationEntry | Category | ListedImage]:
    split = source_format.split_listed(normalize_key(file.path))
    try:
        data = read_bytes(
            file.file,
            unreadable=Reason.ANNOTATION_MALFORMED,
            max_bytes=limits.IMAGE_ANNOTATION_BYTES,
        )
    except RejectedError as error:
        yield defect_entry(error, key=file.join, path=file.path, split=split)
        return
    try:
        for item in source_format.read_listed(data, path=file.path, root=file.root):
            if isinstance(item, Category):
                check_class_name(item.name, uri=file.path)
            yield item
    except InputError as error:
        yield defect_entry(error, key=file.join, path=file.path, split=split)


def _place(
    path: str,
    file: ImageRef,
    *,
    source: Source,
    root: int,
    splits: SplitAssignment,
    own: Collection[str],
    within: str = "",
) -> PlacedFile | Reject:
    """Finds what a listed file is.

    Args:
        path: Its path below its root.
        file: The file.
        source: Its source.
        root: Number of its root.
        splits: Finds the split of a reject.
        own: The source's annotation files, which are no inputs where they lie among the images.
        within: Its root, which may be an archive.
    """
    if not is_encodable(path):
        key = escape_key(path)
        return Reject(
            split=splits.split_of(source=source.name, key=key),
            source=source.name,
            key=key,
            stage="list",
            reason=Reason.UNREADABLE_NAME,
            detail="the file's name is not valid UTF-8; rename the file",
            listed=True,
        )
    if is_linked_folder(path):
        # Every format treats it as an image, so that the join counts it as excluded.
        place = Place(role=Role.IMAGE, key=path, join=path)
    else:
        place = source.format.place(path, root=root)
        uri = file.uri if file.whole else join_uri(within, path)
        if uri in own and place.role is Role.IMAGE:
            place = Place(role=Role.OTHER)
    return PlacedFile(source=source.name, root=root, path=path, place=place, file=file)


# First byte of a value: what it is, and whether the join key follows.
_SIDES = {IMAGES: 0, MASKS: 1, ENTRIES: 2}
_WHAT = {side: what for what, side in _SIDES.items()}
_HAS_KEY = 0x80
_LENGTH = struct.Struct("<I")

_encoder = msgspec.msgpack.Encoder(order="deterministic")
_image_decoder = MsgpackDecoder(ListedImage)
_entry_decoder = MsgpackDecoder(AnnotationEntry)


def find_join_key(name: str, *, source_format: Format) -> str:
    """Returns the part of a name that images and entries are joined by: the format's `match`."""
    if Kind.ROWS in source_format.kinds:
        return name
    return normalize_for_match(name, getattr(source_format, "match", "path"))


def encode_join_value(
    item: ListedImage | AnnotationEntry, *, name: str, what: str, source: Source
) -> tuple[bytes, bytes]:
    """Encodes an item for the join as `(source and join key, value)`.

    Join keys that differ in case alone meet in the join, which compares them: so the first part has
    the join key in lower case, and the value has the join key itself if that differs.

    Args:
        item: A listed image, or an entry about an image.
        name: What the item is joined by, before the format's `match` is applied.
        what: `IMAGES`, `MASKS` or `ENTRIES`.
        source: Its source.
    """
    key = find_join_key(name, source_format=source.format)
    folded = key.casefold()
    side, exact = _SIDES[what], b""
    if folded != key:
        encoded = key.encode()
        side, exact = side | _HAS_KEY, _LENGTH.pack(len(encoded)) + encoded
    value = bytes([side]) + exact + _encoder.encode(item)
    return f"{source.name}\0{folded}".encode(), value


def decode_join_key(key: bytes) -> tuple[str, str]:
    """Splits the key of a value into the source's name and the join key in lower case."""
    source, _, folded = key.decode().partition("\0")
    return source, folded


class JoinValue(NamedTuple):
    """A decoded value.

    Attributes:
        what: `IMAGES`, `MASKS` or `ENTRIES`.
        join_key: Its join key.
        item: A listed image, or an entry about an image.
    """

    what: str
    join_key: str
    item: ListedImage | AnnotationEntry


def decode_join_value(value: bytes, *, folded: str) -> JoinValue:
    """Decodes a value; `folded` is its join key in lower case."""
    what, join_key, start = _WHAT[value[0] & ~_HAS_KEY], folded, 1
    if value[0] & _HAS_KEY:
        (length,) = _LENGTH.unpack_from(value, 1)
        start = 1 + _LENGTH.size + length
        join_key = value[1 + _LENGTH.size : start].decode()
    payload = memoryview(value)[start:]
    item = (_image_decoder if what == IMAGES else _entry_decoder).decode(payload)
    return JoinValue(what, join_key, item)
