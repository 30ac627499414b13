"""CIFAR-10 and CIFAR-100, binary version: each image a byte range of a batch file.

The format: https://www.cs.toronto.edu/~kriz/cifar.html. A record is one label byte (CIFAR-100:
the superclass, then the class) and 3,072 pixel values.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

import msgspec

from shardbeam.configs.keys import Location, named
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.reasons import Reason
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
from shardbeam.transforms.examples.features import (
    ExtraFeature,
    FeatureKind,
    FeatureRole,
    FeatureSpec,
)
from shardbeam.transforms.formats.annotation_file import decode_text, split_lines
from shardbeam.transforms.formats.base import Format, Kind, Place, Role
from shardbeam.transforms.formats.names import is_hidden, normalize_key
from shardbeam.transforms.formats.root_files import read_file
from shardbeam.transforms.storage.archives import list_root
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.reader import StorageReader

if TYPE_CHECKING:
    from typing_extensions import Self

# The name's digits: as many as the largest published file needs.
_DIGITS = 5
_RECORDS_PER_READ = 1000


class _LabelByte(NamedTuple):
    """What one of a record's label bytes says.

    Attributes:
        name: What it is: names the feature, where it is not the label.
        names_file: The file with a class name a line.
        classes: How many classes there are, where that file is missing.
    """

    name: str
    names_file: str
    classes: int


class _CifarFormat(Format, frozen=True, kw_only=True):
    """What both have in common; each label byte is one of `label_bytes`.

    Attributes:
        root: The folder (or archive) of the batch files.
        pixels: Whether an image is stored as a PNG, or as its 3,072 values.
        _names: The classes' names for each label byte, as `resolve` finds them.
        _splits: The splits, as `resolve` finds them.
    """

    ROOTS = ("root",)
    kinds = frozenset({Kind.CLASSIFICATION})
    lists_annotations = True
    label_bytes: ClassVar[tuple[_LabelByte, ...]]
    # {split: names of its files}, in the splits' order
    split_files: ClassVar[Mapping[str, re.Pattern[str]]]
    expected: ClassVar[str]

    root: Annotated[Location, named("folder of the binary batches", metavar="DIR")]
    pixels: Annotated[Literal["png", "raw"], named("pixels")] = "png"
    _names: tuple[tuple[str, ...], ...] = ()
    _splits: tuple[str, ...] = ()

    @property
    def raw_images(self) -> bool:
        """Whether images are stored as their values."""
        return self.pixels == "raw"

    @property
    def _label(self) -> int:
        """Which label byte is the label."""
        return 0

    def resolve(self) -> Self:
        """Finds the class names and the splits, by the files below the root."""
        splits: set[str | None] = set()
        names: dict[str, list[str]] = {}
        for path, file in list_root(self.root):
            base_name = path.rpartition("/")[2]
            splits.add(self._split_of(path))
            for byte in self.label_bytes:
                if base_name == byte.names_file and byte.name not in names:
                    names[byte.name] = _read_names(file, uri=join_uri(self.root, path))
        if splits <= {None}:
            raise InputError(
                uri=self.root,
                problem=f"no {self.expected} here: expected the binary version (not the one for "
                "Python or Matlab)",
            )
        return msgspec.structs.replace(
            self,
            _names=tuple(
                tuple(names.get(byte.name) or map(str, range(byte.classes)))
                for byte in self.label_bytes
            ),
            _splits=tuple(split for split in self.split_files if split in splits),
        )

    def predefined_splits(self) -> Sequence[str]:
        """Those whose files are there."""
        return self._splits

    def extra_features(self) -> Sequence[ExtraFeature]:
        """Number and name of the class that the other label byte gives."""
        parts = (
            ("label", FeatureKind.INT64, FeatureRole.VALUE),
            ("text", FeatureKind.BYTES, FeatureRole.TEXT),
        )
        return tuple(
            ExtraFeature(FeatureSpec(f"image/class/{byte.name}/{part}", kind, False, role))
            for index, byte in enumerate(self.label_bytes)
            for part, kind, role in parts
            if index != self._label
        )

    def place(self, path: str, *, root: int) -> Place:
        """A batch file is a container, any other file none of the dataset's."""
        del root
        is_batch = self._split_of(path) is not None
        return Place(role=Role.CONTAINER if is_batch else Role.OTHER)

    def read_container(
        self, file: ImageRef, *, path: str, root: int
    ) -> Iterator[ListedImage | AnnotationEntry | Category]:
        """Lists the images of a batch file, and declares all classes."""
        del root
        # Imported here: it brings NumPy and Pillow, and help does without.
        from shardbeam.transforms.images.check import CIFAR_BYTES

        labels = len(self.label_bytes)
        record_bytes = labels + CIFAR_BYTES
        if file.header_bytes or file.problem:
            raise InputError(
                uri=file.uri,
                place=path,
                problem=file.problem or "batches cannot be read out of a zip archive; unpack it",
            )
        if not file.size_bytes or file.size_bytes % record_bytes:
            raise InputError(
                uri=file.uri,
                place=path if not file.whole else "",
                problem=f"expected records of {record_bytes} bytes, got {file.size_bytes} bytes: "
                "the file is truncated, or no batch of this dataset",
            )
        for class_id, class_name in enumerate(self._names[self._label]):
            yield Category(name=class_name, source_id=class_id, origin=self.root)
        coding = Coding.CIFAR_RAW if self.raw_images else Coding.CIFAR_PNG
        reader = StorageReader(file, block_bytes=_RECORDS_PER_READ * record_bytes)
        split = self._split_of(path) or ""
        name = normalize_key(path)
        for index in range(file.size_bytes // record_bytes):
            begin = index * record_bytes
            key = f"{name}/{index:0{_DIGITS}}"
            yield ListedImage(
                key=key,
                image=ImageRef(
                    uri=file.uri,
                    size_bytes=CIFAR_BYTES,
                    version=file.version,
                    offset=file.offset + begin + labels,
                    whole=False,
                    coding=coding,
                ),
            )
            yield self._entry(
                key, labels=reader.read_at(begin, labels), split=split, position=index
            )

    def _entry(self, key: str, *, labels: bytes, split: str, position: int) -> AnnotationEntry:
        label = ""
        values: dict[str, tuple[Value, ...]] = {}
        for index, byte in enumerate(self.label_bytes):
            known = self._names[index]
            if labels[index] >= len(known):
                return AnnotationEntry(
                    key=key,
                    position=position,
                    defect=Reason.ANNOTATION_MALFORMED,
                    detail=f"the {byte.name} label is {labels[index]}, of {len(known)} classes",
                    split=split,
                )
            name = known[labels[index]]
            if index == self._label:
                label = name
            else:
                values[f"image/class/{byte.name}/label"] = (labels[index],)
                values[f"image/class/{byte.name}/text"] = (name,)
        annotations = ImageAnnotations(image_id=key, labels=(label,), values=values)
        return AnnotationEntry(
            key=key,
            annotations=encode_annotations(annotations),
            position=position,
            image_id=key,
            split=split,
        )

    def _split_of(self, path: str) -> str | None:
        base_name = path.rpartition("/")[2]
        for split, pattern in self.split_files.items():
            if pattern.fullmatch(base_name) and not is_hidden(path):
                return split
        return None


class Cifar10Format(_CifarFormat, frozen=True, kw_only=True):
    """CIFAR-10: `data_batch_*.bin`, `test_batch.bin` and `batches.meta.txt`."""

    SUMMARY = "CIFAR-10 binary batches"
    label_bytes = (_LabelByte("class", "batches.meta.txt", 10),)
    split_files: ClassVar[Mapping[str, re.Pattern[str]]] = {
        "train": re.compile(r"data_batch_\d+\.bin"),
        "test": re.compile(r"test_batch\.bin"),
    }
    expected = "data_batch_1.bin ... or test_batch.bin of CIFAR-10"


class Cifar100Format(_CifarFormat, frozen=True, kw_only=True):
    """CIFAR-100: `train.bin`, `test.bin` and the files of class names.

    Attributes:
        coarse: Whether the 20 superclasses are the labels; otherwise the 100 classes are. The
            others become a feature.
    """

    SUMMARY = "CIFAR-100 binary files"
    label_bytes = (
        _LabelByte("coarse", "coarse_label_names.txt", 20),
        _LabelByte("fine", "fine_label_names.txt", 100),
    )
    split_files: ClassVar[Mapping[str, re.Pattern[str]]] = {
        "train": re.compile(r"train\.bin"),
        "test": re.compile(r"test\.bin"),
    }
    expected = "train.bin or test.bin of CIFAR-100"

    coarse: Annotated[bool, named("label images with the 20 superclasses")] = False

    @property
    def _label(self) -> int:
        return 0 if self.coarse else 1


def _read_names(file: ImageRef, *, uri: str) -> list[str]:
    """Reads class names, one a line; a file without any is as good as none."""
    names = [line.strip() for line in split_lines(decode_text(read_file(file), uri=uri))]
    names = [name for name in names if name]
    for name, count in Counter(names).items():
        if count > 1:
            raise InputError(uri=uri, problem=f"{name!r} is there {count} times")
    return names
