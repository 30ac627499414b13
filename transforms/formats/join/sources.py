"""A source of the config: how its files are listed and read, and travel to the join as bytes.

The settings of the join are here, too, and which sources need none.

A CoGroupByKey of typed values costs nearly twice as much. The step that finds a value encodes it,
so that it is encoded once and counted as it is sent.
"""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import google_crc32c
import msgspec

from shardbeam.configs.decoding import MsgpackDecoder
from shardbeam.transforms.core.counts import ENTRIES, IMAGES, MASKS
from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.core.kinds import Kind
from shardbeam.transforms.core.labels import LabelSettings, check_class_name
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    ImageRef,
    ListedFile,
    ListedImage,
    MaskRole,
    Reject,
    decode_annotations,
    encode_annotations,
    mask_key,
)
from shardbeam.transforms.core.sharding import SplitAssignment
from shardbeam.transforms.formats.annotation_file import classes_in, defect_entry, explain_errors
from shardbeam.transforms.formats.base import (
    ATTACHED_FILE_INDEX,
    BESIDE_FILE_INDEX,
    MASK_FILE_INDEX,
    Format,
    Place,
    Role,
    name_format,
    restore_format,
)
from shardbeam.transforms.formats.names import (
    escape_key,
    is_encodable,
    is_linked_folder,
    normalize_for_match,
    normalize_key,
)
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.archives.open import (
    begin_root,
    is_archive,
    is_pattern,
    list_root_part,
    nothing_found,
)
from shardbeam.transforms.storage.base import ListingPart, join_uri
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.image_bytes import read_bytes
from shardbeam.transforms.storage.parquet import read_parquet

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
                image_id="",
                masks={mask_key(place.mask, number=place.number): self.file},
                mask_values=place.values,
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


# A value begins with the place of what it is here.
_SIDES = (IMAGES, MASKS, ENTRIES)

_encoder = msgspec.msgpack.Encoder(order="deterministic")
_value_decoder = MsgpackDecoder(tuple[int, str, msgspec.Raw])
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
    value = _encoder.encode((_SIDES.index(what), "" if folded == key else key, item))
    return f"{source.name}\0{folded}".encode(), value


def decode_join_key(key: bytes) -> tuple[str, str]:
    """Splits the key of a value into the source's name and the join key in lower case."""
    source, _, folded = key.decode().partition("\0")
    return source, folded


def decode_join_value(
    value: bytes, *, folded: str
) -> tuple[str, str, ListedImage | AnnotationEntry]:
    """Decodes a value: what it is (`IMAGES`, `MASKS` or `ENTRIES`), its join key and its item.

    Args:
        value: The value.
        folded: Its join key in lower case.
    """
    side, exact, payload = _value_decoder.decode(value)
    item = (_entry_decoder if side else _image_decoder).decode(payload)
    return _SIDES[side], exact or folded, item


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
