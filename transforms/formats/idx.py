"""MNIST's idx files: gray images in one file, and their labels in another.

The format: https://yann.lecun.com/exdb/mnist/, "FILE FORMATS FOR THE MNIST DATABASE". A header of
big-endian numbers (the type and the number of dimensions, then the dimensions) is followed by a
byte for each value. EMNIST: https://www.nist.gov/itl/products-and-services/emnist-dataset.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple

import msgspec

from shardbeam.configs.keys import Location, named
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    Coding,
    ImageAnnotations,
    ImageRef,
    ListedImage,
    encode_annotations,
)
from shardbeam.transforms.core.text import counted
from shardbeam.transforms.formats.annotation_file import (
    decode_text,
    foreign_content,
    split_lines,
    with_defect,
)
from shardbeam.transforms.formats.base import Format, Kind, Place, Role
from shardbeam.transforms.formats.names import is_hidden, normalize_key
from shardbeam.transforms.formats.parsing.root_files import read_file, require_file
from shardbeam.transforms.formats.recognition import Folder, Recognized
from shardbeam.transforms.formats.yolo.data_file import parse_names
from shardbeam.transforms.storage.archives.open import list_root
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.buffered_reader import StorageReader
from shardbeam.transforms.storage.gzip_file import GZIP_MAGIC, read_head, read_unpacked

# The set, the split and what the file holds: `emnist-letters-train-images-idx3-ubyte.gz`.
_NAME = re.compile(
    r"(.*?)(train|t10k|test|val|validation)[-_.](images|labels)[-_.]idx([13])[-_.]ubyte(\.gz)?",
    re.IGNORECASE,
)
_ORDER = ("train", "validation", "test")
_SPLITS = {"train": "train", "t10k": "test", "test": "test"}
# The numbers of a header: unsigned bytes in one or three dimensions.
_LABELS, _IMAGES = 0x0801, 0x0803
# EMNIST: a label, and the codes of its characters.
_MAPPED = re.compile(r"([0-9]{1,3})\s+([0-9]{1,7})(\s+[0-9]{1,7})*")
# The beginning of a file, which holds the header, or shows what else the file is.
_HEAD_BYTES = 64
# Digits of an image's number, at least.
_DIGITS = 5


class _Header(NamedTuple):
    """The sizes of an idx file.

    Attributes:
        items: The number of images or labels.
        height: The height of each image; 1 for labels.
        width: The width of each image; 1 for labels.
        begin: The first byte behind the header.
    """

    items: int
    height: int
    width: int
    begin: int


class IdxFormat(Format, frozen=True, kw_only=True):
    """MNIST, Fashion-MNIST, EMNIST and others in idx files, as they are or compressed with gzip.

    Attributes:
        root: The folder of the files.
        subset: The beginning of the files' names, where the folder holds several sets.
        classes: The file of class names; by default EMNIST's mapping, otherwise classes have
            numbers.
        _sets: `{path of a file of images: (its split, its file of labels)}`; `resolve` finds them.
        _names: `(label, name of its class)`.
        _unread: Files that seem to be copies of others.
    """

    SUMMARY = "MNIST's idx files, raw or .gz"
    ROOTS = ("root",)
    kinds = frozenset({Kind.CLASSIFICATION})
    single_label = True
    lists_annotations = True

    root: Annotated[Location, named("folder of the idx files", metavar="DIR")]
    subset: (
        Annotated[str, named("beginning of the files' names, such as emnist-letters")] | None
    ) = None
    classes: Annotated[Location, named("file with a class name per line")] | None = None
    _sets: Mapping[str, tuple[str, ImageRef]] = {}
    _names: tuple[tuple[int, str], ...] = ()
    _unread: tuple[str, ...] = ()

    @classmethod
    def recognize(cls, folder: Folder) -> Recognized | None:
        """Recognizes files of images by their names and first bytes."""
        magic = (struct.pack(">I", _IMAGES), GZIP_MAGIC)
        images = [
            path
            for path in folder.files
            if (parts := _parts(path)) is not None
            and parts.kind == "images"
            and folder.head(path).startswith(magic)
        ]
        if not images:
            return None
        sources = {"": {"root": folder.above(images)}}
        return Recognized(what=counted(len(images), "idx file"), sources=sources)

    def resolve(self) -> IdxFormat:
        """Finds the files of images and labels below the root, and the names of the classes.

        Raises:
            InputError: There are none, or several sets, or a file cannot be used.
        """
        # {set: {split: {kind: its files}}}, and {set: file of its mapping}
        found: dict[str, dict[str, dict[str, list[tuple[str, ImageRef]]]]] = {}
        mappings: dict[str, tuple[str, ImageRef]] = {}
        for path, file in list_root(self.root):
            name = path.rpartition("/")[2]
            if name.endswith("-mapping.txt") and not is_hidden(path):
                mappings[name.removesuffix("-mapping.txt")] = path, file
            parts = _parts(path)
            if parts is not None and self.subset in (None, parts.of_set):
                kinds = found.setdefault(parts.of_set, {}).setdefault(parts.split, {})
                kinds.setdefault(parts.kind, []).append((path, file))
        if len(found) != 1:
            several = f"several sets: {', '.join(sorted(found))}; name one of them with `subset`"
            none = "no train-images-idx3-ubyte or t10k-images-idx3-ubyte here, or with .gz"
            raise InputError(uri=self.root, problem=several if found else none)
        ((of_set, splits),) = found.items()
        sets: dict[str, tuple[str, ImageRef]] = {}
        unread: list[str] = []
        labels: set[int] = set()
        for split, kinds in sorted(splits.items(), key=lambda item: _ORDER.index(item[0])):
            if len(kinds) < 2:
                path = next(iter(kinds.values()))[0][0]
                other = "labels" if "images" in kinds else "images"
                raise InputError(
                    uri=join_uri(self.root, path), problem=f"there are no {other} to it"
                )
            path, _ = self._choose(kinds["images"], unread=unread)
            labels_path, labels_file = self._choose(kinds["labels"], unread=unread)
            sets[path] = split, labels_file
            labels |= {*_read_labels(labels_file, place=labels_path)}
        names = self._find_names(mappings.get(of_set)) or {it: str(it) for it in sorted(labels)}
        return msgspec.structs.replace(
            self, _sets=sets, _names=tuple(names.items()), _unread=tuple(unread)
        )

    def _choose(
        self, files: list[tuple[str, ImageRef]], *, unread: list[str]
    ) -> tuple[str, ImageRef]:
        """Chooses one of several files with the same content: a raw one, the upper one first.

        Raises:
            InputError: Their lengths differ.
        """
        files = sorted(files, key=lambda each: (_is_packed(each[0]), each[0].count("/"), each[0]))
        path, first = files[0]
        for other, file in files[1:]:
            if _is_packed(other) == _is_packed(path) and file.size_bytes != first.size_bytes:
                problem = f"{path} and {other} differ in length: keep one of them in the folder"
                raise InputError(uri=self.root, problem=problem)
            if not _is_packed(other):
                unread.append(other)
        return files[0]

    def _find_names(self, mapping: tuple[str, ImageRef] | None) -> dict[int, str]:
        if self.classes is not None:
            return parse_names(read_file(require_file(self.classes)), uri=self.classes)
        if mapping is None:
            return {}
        path, file = mapping
        uri = join_uri(self.root, path)
        names: dict[int, str] = {}
        for number, line in enumerate(split_lines(decode_text(read_file(file), uri=uri)), 1):
            match = _MAPPED.fullmatch(line.strip())
            # Letters that look alike share a label, and the first one, in upper case, is its name.
            if match is not None and 32 < int(match[2]) < 127 and int(match[1]) not in names:
                names[int(match[1])] = chr(int(match[2]))
            elif line.strip():
                problem = "expected a label that is new, and the codes of its characters"
                raise InputError(uri=uri, place=f"line {number}", problem=problem)
        return names

    def warnings(self) -> Iterator[str]:
        """Names the copies of files that are not read."""
        for path in self._unread:
            yield f"not read: {path}, which has the name and length of a file above it"

    def predefined_splits(self) -> Sequence[str]:
        """Returns the splits whose files are there."""
        return [split for split, _ in self._sets.values()]

    def place(self, path: str, *, root: int) -> Place:
        """Treats files of images as containers, and ignores all other files."""
        return Place(role=Role.CONTAINER if path in self._sets else Role.OTHER)

    def read_container(
        self, file: ImageRef, *, path: str, root: int
    ) -> Iterator[ListedImage | AnnotationEntry | Category]:
        """Lists the images of a file, and declares all classes.

        Raises:
            InputError: The file of images or of labels cannot be read, has another length than its
                header announces, or another number of items than the other.
        """
        for label, name in self._names:
            yield Category(name=name, source_id=label, origin=self.classes or self.root)
        file, header = _read_header(file, _IMAGES, place=path)
        split, labels_file = self._sets[path]
        labels = _read_labels(labels_file, place=path)
        if len(labels) != header.items:
            raise InputError(
                uri=file.uri,
                place=path,
                problem=f"holds {header.items:,} images, but its labels are {len(labels):,}: the "
                "files are of different sets",
            )
        names = dict(self._names)
        size_bytes = header.height * header.width
        digits = max(_DIGITS, len(str(header.items - 1)))
        for index, label in enumerate(labels):
            key = f"{normalize_key(path).removesuffix('.gz')}/{index:0{digits}}"
            image = msgspec.structs.replace(
                file,
                size_bytes=size_bytes,
                offset=file.offset + header.begin + index * size_bytes,
                whole=False,
                coding=Coding.GRAY_GZIP if file.decoded_bytes else Coding.GRAY,
                width=header.width,
            )
            yield ListedImage(key=key, image=image)
            entry = AnnotationEntry(key=key, position=index, split=split, image_id=key)
            if label in names:
                annotations = ImageAnnotations(image_id=key, labels=(names[label],))
                yield msgspec.structs.replace(entry, annotations=encode_annotations(annotations))
                continue
            yield with_defect(entry, f"the label is {label}, which is none of {len(names)} classes")


class _Parts(NamedTuple):
    """What the name of an idx file says."""

    of_set: str
    split: str
    kind: str


def _parts(path: str) -> _Parts | None:
    match = None if is_hidden(path) else _NAME.fullmatch(path.rpartition("/")[2])
    if match is None or (match[3].lower() == "images") is not (match[4] == "3"):
        return None
    split = _SPLITS.get(match[2].lower(), "validation")
    return _Parts(match[1].rstrip("-_."), split, match[3].lower())


def _is_packed(path: str) -> bool:
    return path.lower().endswith(".gz")


def _read_labels(file: ImageRef, *, place: str) -> bytes:
    file, header = _read_header(file, _LABELS, place=place)
    if file.decoded_bytes:
        return read_unpacked(file, offset=header.begin, size_bytes=header.items)
    return StorageReader(file).read_at(header.begin, header.items)


def _read_header(file: ImageRef, magic: int, *, place: str) -> tuple[ImageRef, _Header]:
    """Reads the header of an idx file, and checks the file's length.

    Returns:
        The file, with the length of its content if it is compressed; and the sizes.
    """

    def error(problem: str) -> InputError:
        return InputError(uri=file.uri, place="" if file.whole else place, problem=problem)

    if file.header_bytes or file.problem:
        raise error(file.problem or "idx files inside a zip archive cannot be read; unpack it")
    dimensions = magic & 0xFF
    begin = 4 + 4 * dimensions
    head = StorageReader(file).read_at(0, _HEAD_BYTES)
    is_packed = head.startswith(GZIP_MAGIC)
    if is_packed and not file.whole:
        raise error("is compressed twice, in an archive: unpack the archive")
    head = read_head(file, size_bytes=_HEAD_BYTES) if is_packed else head
    if len(head) < begin or head[:4] != struct.pack(">I", magic):
        expected = f"expected an idx file of bytes in {dimensions} dimensions (magic {magic})"
        raise error(foreign_content(head) or f"{expected}, got {head[:4].hex() or 'nothing'}")
    count, height, width = (*struct.unpack(f">{dimensions}I", head[4:begin]), 1, 1)[:3]
    size_bytes = begin + count * height * width
    if not count * height * width:
        raise error(f"its header announces {count} items of {height} x {width}: nothing to read")
    if is_packed:
        file = msgspec.structs.replace(file, decoded_bytes=size_bytes)
        read_unpacked(file, offset=0, size_bytes=0)
    elif file.size_bytes != size_bytes:
        how = "is truncated" if file.size_bytes < size_bytes else "is longer than it says"
        raise error(
            f"its header announces {size_bytes:,} bytes, but it has {file.size_bytes:,}: the file "
            f"{how}, or its header is damaged; copy or make it again"
        )
    return file, _Header(count, height, width, begin)
