"""CIFAR-10 and CIFAR-100, binary version: each image is a byte range of a batch file.

The format: https://www.cs.toronto.edu/~kriz/cifar.html. A record is one label byte (CIFAR-100:
the superclass, then the class) and 3,072 pixel values.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

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
    Value,
    encode_annotations,
)
from shardbeam.transforms.core.text import counted
from shardbeam.transforms.examples.features import ExtraFeature
from shardbeam.transforms.formats.annotation_file import decode_text, split_lines, with_defect
from shardbeam.transforms.formats.base import Format, Kind, Place, Role
from shardbeam.transforms.formats.names import is_hidden, normalize_key
from shardbeam.transforms.formats.parsing.root_files import read_file
from shardbeam.transforms.formats.parsing.table_columns import ColumnType, column_feature
from shardbeam.transforms.formats.recognition import Folder, Recognized
from shardbeam.transforms.storage.archives.open import list_root
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.buffered_reader import StorageReader

# Digits of an image's number; the largest published file needs this many.
_DIGITS = 5
_RECORDS_PER_READ = 1000


class _CifarFormat(Format, frozen=True, kw_only=True):
    """CIFAR-10 or CIFAR-100.

    Attributes:
        label_bytes: `{name of a label byte: (file of its class names, number of classes where the
            file is missing)}`, in the order of the bytes.
        split_files: `{split: pattern of the names of its files}`, in the order of the splits.
        expected: The names of its files, for errors.
        pixels: Whether an image is stored as a PNG, or as its 3,072 values.
        _names: The class names of each label byte; `resolve` finds them.
        _splits: The splits; `resolve` finds them.
    """

    ROOTS = ("root",)
    kinds = frozenset({Kind.CLASSIFICATION})
    single_label = True
    lists_annotations = True
    label_bytes: ClassVar[Mapping[str, tuple[str, int]]]
    split_files: ClassVar[Mapping[str, str]]
    expected: ClassVar[str]

    root: Annotated[Location, named("folder of the binary batches", metavar="DIR")]
    pixels: Annotated[
        Literal["png", "raw"], named("write images as PNG, or as the raw values of the batch")
    ] = "png"
    _names: Mapping[str, tuple[str, ...]] = {}
    _splits: tuple[str, ...] = ()

    @classmethod
    def recognize(cls, folder: Folder) -> Recognized | None:
        """Recognizes batches by their names and lengths."""
        # Imported here, as in `read_container`.
        from shardbeam.transforms.images.check import CIFAR_BYTES

        record_bytes = len(cls.label_bytes) + CIFAR_BYTES
        made = cls(root=folder.location())
        batches = [
            path
            for path, file in folder.files.items()
            if made._split_of(path) and file.size_bytes and not file.size_bytes % record_bytes
        ]
        if not batches:
            return None
        sources = {"": {"root": folder.above(batches)}}
        return Recognized(what=counted(len(batches), "batch file"), sources=sources)

    @property
    def raw_images(self) -> bool:
        """Whether images are stored as their bare values."""
        return self.pixels == "raw"

    @property
    def _label(self) -> str:
        """The label byte that is the image's label."""
        return next(iter(self.label_bytes))

    def resolve(self) -> _CifarFormat:
        """Finds the class names and the splits by the files below the root.

        Raises:
            InputError: There is no batch file, or a file of class names cannot be used.
        """
        splits: set[str] = set()
        names: dict[str, Sequence[str]] = {}
        for path, file in list_root(self.root):
            splits.add(self._split_of(path))
            for byte, (names_file, _) in self.label_bytes.items():
                if path.rpartition("/")[2] == names_file and byte not in names:
                    names[byte] = _read_names(file, uri=join_uri(self.root, path))
        if splits <= {""}:
            raise InputError(
                uri=self.root,
                problem=f"no {self.expected} here: expected the binary version (not the one for "
                "Python or Matlab)",
            )
        return msgspec.structs.replace(
            self,
            _names={
                byte: tuple(names.get(byte) or map(str, range(classes)))
                for byte, (_, classes) in self.label_bytes.items()
            },
            _splits=tuple(split for split in self.split_files if split in splits),
        )

    def predefined_splits(self) -> Sequence[str]:
        """Returns the splits whose files are there."""
        return self._splits

    def extra_features(self) -> Sequence[ExtraFeature]:
        """Declares the number and the name of the other label byte's class."""
        types = {"label": ColumnType("int"), "text": ColumnType("string")}
        return [
            column_feature(f"image/class/{byte}/{part}", column, per_object=False)
            for byte in self.label_bytes
            for part, column in types.items()
            if byte != self._label
        ]

    def place(self, path: str, *, root: int) -> Place:
        """Treats batch files as containers, and ignores all other files."""
        return Place(role=Role.CONTAINER if self._split_of(path) else Role.OTHER)

    def read_container(
        self, file: ImageRef, *, path: str, root: int
    ) -> Iterator[ListedImage | AnnotationEntry | Category]:
        """Lists the images of a batch file, and declares all classes.

        Raises:
            InputError: The file's length is not a multiple of a record's, or it cannot be read.
        """
        # Imported here, because it imports NumPy and Pillow, which the help does not need.
        from shardbeam.transforms.images.check import CIFAR_BYTES

        labels = len(self.label_bytes)
        record_bytes = labels + CIFAR_BYTES
        if file.header_bytes or file.problem:
            raise InputError(
                uri=file.uri,
                place=path,
                problem=file.problem or "batches inside a zip archive cannot be read; unpack it",
            )
        if not file.size_bytes or file.size_bytes % record_bytes:
            raise InputError(
                uri=file.uri,
                place=path if not file.whole else "",
                problem=f"expected records of {record_bytes} bytes, got {file.size_bytes} bytes: "
                "the file is truncated, or not a batch of this dataset",
            )
        for class_id, class_name in enumerate(self._names[self._label]):
            yield Category(name=class_name, source_id=class_id, origin=self.root)
        coding = Coding.CIFAR_RAW if self.raw_images else Coding.CIFAR_PNG
        reader = StorageReader(file, block_bytes=_RECORDS_PER_READ * record_bytes)
        for index in range(file.size_bytes // record_bytes):
            begin = index * record_bytes
            key = f"{normalize_key(path)}/{index:0{_DIGITS}}"
            image = msgspec.structs.replace(
                file,
                size_bytes=CIFAR_BYTES,
                offset=file.offset + begin + labels,
                whole=False,
                coding=coding,
            )
            yield ListedImage(key=key, image=image)
            entry = AnnotationEntry(key=key, position=index, split=self._split_of(path))
            yield self._annotated(entry, reader.read_at(begin, labels))

    def _annotated(self, entry: AnnotationEntry, labels: bytes) -> AnnotationEntry:
        names = {}
        values: dict[str, tuple[Value, ...]] = {}
        for (byte, known), label in zip(self._names.items(), labels, strict=True):
            if label >= len(known):
                return with_defect(entry, f"the {byte} label is {label}, of {len(known)} classes")
            names[byte] = known[label]
            if byte != self._label:
                values[f"image/class/{byte}/label"] = (label,)
                values[f"image/class/{byte}/text"] = (known[label],)
        annotations = ImageAnnotations(
            image_id=entry.key, labels=(names[self._label],), values=values
        )
        return msgspec.structs.replace(
            entry, annotations=encode_annotations(annotations), image_id=entry.key
        )

    def _split_of(self, path: str) -> str:
        """Returns the split of a batch file; empty for any other file."""
        name = "" if is_hidden(path) else path.rpartition("/")[2]
        matching = (split for split, names in self.split_files.items() if re.fullmatch(names, name))
        return next(matching, "")


class Cifar10Format(_CifarFormat, frozen=True, kw_only=True):
    """CIFAR-10: `data_batch_*.bin`, `test_batch.bin` and `batches.meta.txt`."""

    SUMMARY = "CIFAR-10 binary batches"
    label_bytes: ClassVar[Mapping[str, tuple[str, int]]] = {"class": ("batches.meta.txt", 10)}
    split_files: ClassVar[Mapping[str, str]] = {
        "train": r"data_batch_\d+\.bin",
        "test": r"test_batch\.bin",
    }
    expected = "data_batch_1.bin ... or test_batch.bin of CIFAR-10"


class Cifar100Format(_CifarFormat, frozen=True, kw_only=True):
    """CIFAR-100: `train.bin`, `test.bin` and the files of class names.

    Attributes:
        coarse: Whether the 20 superclasses are the labels. Otherwise the 100 classes are. The
            other ones become a feature.
    """

    SUMMARY = "CIFAR-100 binary files"
    label_bytes: ClassVar[Mapping[str, tuple[str, int]]] = {
        "coarse": ("coarse_label_names.txt", 20),
        "fine": ("fine_label_names.txt", 100),
    }
    split_files: ClassVar[Mapping[str, str]] = {"train": r"train\.bin", "test": r"test\.bin"}
    expected = "train.bin or test.bin of CIFAR-100"

    coarse: Annotated[bool, named("label images with the 20 superclasses")] = False

    @property
    def _label(self) -> str:
        return "coarse" if self.coarse else "fine"


def _read_names(file: ImageRef, *, uri: str) -> list[str]:
    """Reads class names, one on each line.

    Raises:
        InputError: The file cannot be read, is not UTF-8, or holds a name twice.
    """
    names = [line.strip() for line in split_lines(decode_text(read_file(file), uri=uri))]
    names = [name for name in names if name]
    for name, count in Counter(names).items():
        if count > 1:
            raise InputError(uri=uri, problem=f"the name {name!r} occurs {count} times")
    return names
