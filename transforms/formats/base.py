"""What a dataset format is: Beam-free parsing, told apart from where and how it runs."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import msgspec

from shardbeam.configs.keys import named
from shardbeam.configs.schema import Source
from shardbeam.transforms.core.kinds import Kind as Kind
from shardbeam.transforms.core.reasons import Exclusion
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    ImageRef,
    ListedImage,
    MaskRole,
)
from shardbeam.transforms.examples.features import ExtraFeature
from shardbeam.transforms.formats.names import normalize_key
from shardbeam.transforms.formats.recognition import Folder, Recognized
from shardbeam.transforms.storage.base import Storage

# The key `match` of a format whose annotations name images by their paths.
Match = Annotated[
    Literal["path", "suffix", "name"],
    named("join images by path, by last folder and name, or by name alone"),
]


class Role(enum.Enum):
    """What a listed file is to a format.

    Attributes:
        IMAGE: An input: it ends as written, rejected or excluded.
        ANNOTATION: Annotations of one image, read with `Format.read_listed`.
        MASK: An image whose pixels annotate another image.
        ATTACHED: A file that an annotation file names, attached by `Format.read_annotations`: it
            counts as input, and is nothing by itself.
        CONTAINER: A file that holds several images, read with `Format.read_container`.
        OTHER: A file that the format knows to be none of these, such as a list of classes.
    """

    IMAGE = enum.auto()
    ANNOTATION = enum.auto()
    MASK = enum.auto()
    ATTACHED = enum.auto()
    CONTAINER = enum.auto()
    OTHER = enum.auto()


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a listed file belongs.

    Attributes:
        key: Of an image: its key.
        join: Of an image, an annotation or a mask: what they have in common. Images with the
            same `join` and different keys are all rejected.
        mask: Of a mask: what its pixels mean.
    """

    role: Role
    key: str = ""
    join: str = ""
    mask: MaskRole | None = None


class Format(Source, frozen=True, kw_only=True):
    """How one source of the config is read.

    The fields are the keys that the config may have beside `format`, each with its type, its
    default and, for the command's flags, its help (`shardbeam.configs.keys.named`). Keys that
    contradict each other are refused in `__post_init__`, by raising
    `shardbeam.configs.problem.Problem`. A field whose name begins with `_` is no key.
    Some fields mean the same in all formats:

    - `match: Match = "path"`, where a format has it, says by how much of its name an image is
      joined.
    - `_masks: bool = False`, where a format has it, says whether objects carry their masks
      (`masks: png` in the config).
    - What `resolve` finds out is kept in such fields.

    All that a format knows follows from its fields, so that workers make it again from them. It
    sees annotation files and image names, never pixels.

    Attributes:
        SUMMARY: One line for `shardbeam formats`.
        UNANNOTATED: What `unannotated: auto` means for listed images that no annotation file and no
            list of a split names: whether they are written without annotations (`keep`), left
            out (`drop`) or rejected.
        ROOTS: The keys that name folders of images, archives, or patterns of archives.
        lists_annotations: Whether `place` may find annotations or containers: listed files that
            are read beside `annotation_files`.
        opens_archives: Whether an archive among its roots is a folder of images; otherwise it is
            a file, for `place` to say what it is.
        chunk_bytes: Where annotation files are tables of lines that can be read from the middle
            on: how much of one is read at a time, by several workers; None where it is read
            whole, by one.
    """

    SUMMARY: ClassVar[str] = ""
    UNANNOTATED: ClassVar[Literal["keep", "drop", "reject"]] = "keep"
    ROOTS: ClassVar[tuple[str, ...]] = ("images",)

    opens_archives: ClassVar[bool] = True
    lists_annotations: ClassVar[bool] = False
    chunk_bytes: ClassVar[int | None] = None

    @property
    def kinds(self) -> frozenset[Kind]:
        """The groups of Example keys that it fills; every format says which."""
        raise TypeError(f"{type(self).__name__} sets no `kinds`")

    @classmethod
    def recognize(cls, folder: Folder) -> Recognized | None:
        """Recognizes a dataset of its kind in a folder; None where there is none.

        `shardbeam init` asks all formats. It looks at names and at the beginnings of files.
        """
        return None

    @property
    def raw_images(self) -> bool:
        """Whether its images are stored as bare pixels, which no reader can decode."""
        return False

    @classmethod
    def predefines_splits(cls, keys: Mapping[str, object]) -> bool:
        """Whether a command that names no splits leaves them to the source of these keys."""
        return cls.predefined_splits is not Format.predefined_splits

    def roots(self) -> tuple[str, ...]:
        """Folders of images, archives, or patterns of archives; none for tables without images."""
        roots: list[str] = []
        for name in self.ROOTS:
            value = getattr(self, name, None)
            roots += [value] if isinstance(value, str) else value or []
        return tuple(roots)

    def resolve(self) -> Format:
        """Finds out what the keys leave open and workers need: once, before the run.

        Returns:
            The format with what was found, such as the columns of a table.

        Raises:
            InputError: A file that tells cannot be read.
            Problem: The keys leave open how the files are meant.
        """
        return self

    def warnings(self) -> Iterable[str]:
        """Says what may not be meant of what it reads or guesses, a line each, before the run."""
        return ()

    def absent_classes(self) -> Iterable[str]:
        """Classes that the source declares, of which `warnings` says that it has no image."""
        return ()

    def predefined_splits(self) -> Sequence[str]:
        """The source's own splits, in order, for a config with one source and no fractions."""
        return ()

    def extra_features(self) -> Sequence[ExtraFeature]:
        """The features that it adds to those of its kinds."""
        return ()

    def place(self, path: str, *, root: int) -> Place:
        """Says what a listed file is.

        Args:
            path: Its path below the root, `/`-separated, as listed.
            root: Which of the source's roots it lies below.

        Returns:
            By default an image whose key is its normalized path, whatever its name: those that
            are no images' are excluded, and counted, later.
        """
        key = normalize_key(path)
        return Place(role=Role.IMAGE, key=key, join=key)

    def annotation_files(self) -> Sequence[str]:
        """URIs of the files that `read_annotations` reads, in order."""
        return ()

    def read_annotations(
        self, *, storage: Storage, file_index: int
    ) -> Iterator[AnnotationEntry | Category]:
        """Parses the annotation file `annotation_files()[file_index]`.

        Yields:
            Every `Category` of the file, and an `AnnotationEntry` for each image that it
            names, in any order. Entries that cannot be used carry a `defect`.

        Raises:
            InputError: The file cannot be read or is not what it should be.
        """
        raise TypeError(f"{type(self).__name__} reads no annotation files")
        yield

    def read_chunk(
        self, *, storage: Storage, file_index: int, begin: int, end: int
    ) -> Iterator[AnnotationEntry | Category]:
        """Parses a part of one annotation file, where `chunk_bytes` is set.

        Args:
            storage: As for `read_annotations`.
            file_index: As for `read_annotations`.
            begin: Where the part begins, in bytes.
            end: Where it ends. A line belongs to the part that holds its first byte.

        Yields:
            As for `read_annotations`; positions are offsets in bytes, so that they follow from
            the file alone.
        """
        raise TypeError(f"{type(self).__name__} reads whole annotation files")
        yield

    def read_listed(
        self, data: bytes, *, path: str, root: int
    ) -> Iterator[AnnotationEntry | Category]:
        """Parses the content of a listed annotation file (`Role.ANNOTATION`).

        Yields:
            As for `read_annotations`. What is wrong with one file is the defect of its entry, and
            no reason to stop.
        """
        raise TypeError(f"{type(self).__name__} reads no listed annotation files")
        yield

    def read_container(
        self, file: ImageRef, *, path: str, root: int
    ) -> Iterator[ListedImage | AnnotationEntry | Category]:
        """Lists what a container holds (`Role.CONTAINER`).

        Yields:
            Each image, as a byte range, and what the container says about it. Their keys are
            what they are joined by.

        Raises:
            InputError: It cannot be read, or is not what it should be.
        """
        raise TypeError(f"{type(self).__name__} reads no containers")
        yield

    def reconcile(self, annotations: ImageAnnotations) -> ImageAnnotations:
        """Resolves contradictions in what several entries of one image say, in their order."""
        return annotations

    def split_listed(self, key: str) -> str:
        """Names the split that a listed image's key puts it into, where no entry does.

        Returns:
            One of `predefined_splits()`; empty where the key tells none.
        """
        return ""

    def annotate_listed(self, key: str) -> ImageAnnotations | Exclusion | None:
        """Says what a listed image's key tells about it, where no entry has annotations.

        Returns:
            The annotations; or the rule that leaves the image out; or None where the key tells
            nothing.

        Raises:
            RejectedError: The key should tell, and does not.
        """
        return None
