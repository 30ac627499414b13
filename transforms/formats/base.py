"""The interface of dataset formats: parsing without Beam, wherever it runs."""

from __future__ import annotations

import enum
import functools
import hashlib
import importlib
import importlib.util
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import msgspec

from shardbeam.configs.decoding import MsgpackDecoder
from shardbeam.configs.keys import named
from shardbeam.configs.problem import ShardbeamError, did_you_mean
from shardbeam.configs.schema import Source
from shardbeam.transforms.core.box_formats import BoxReading
from shardbeam.transforms.core.kinds import Kind as Kind
from shardbeam.transforms.core.reasons import Exclusion
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    ImageRef,
    ListedImage,
    MaskRole,
    MaskValues,
)
from shardbeam.transforms.examples.features import ExtraFeature
from shardbeam.transforms.formats.names import normalize_key
from shardbeam.transforms.storage.base import Storage, nearest_path
from shardbeam.transforms.storage.find import storage_for

if TYPE_CHECKING:
    from shardbeam.transforms.formats.recognition import Folder, Recognized


# The key `match` of a format whose annotations name images by their paths.
Match = Annotated[
    Literal["path", "suffix", "name"],
    named("join images by whole path, by last folder and name (suffix), or by name alone"),
]


class Role(enum.Enum):
    """What a listed file is to a format.

    Attributes:
        IMAGE: An input, which is written, rejected or excluded in the end.
        ANNOTATION: Annotations of one image, read with `Format.read_listed`.
        BESIDE: Annotations of the image beside it, read with `Format.read_listed`. If no such image
            is listed, it is another file.
        MASK: An image whose pixels annotate another image.
        ATTACHED: A mask that belongs to an annotation file's entry: without such an entry, it
            annotates nothing.
        CONTAINER: A file that holds several images, read with `Format.read_container`.
        OTHER: Any other file that the format knows, such as a list of classes.
    """

    IMAGE = enum.auto()
    ANNOTATION = enum.auto()
    BESIDE = enum.auto()
    MASK = enum.auto()
    ATTACHED = enum.auto()
    CONTAINER = enum.auto()
    OTHER = enum.auto()


# Masks sort after the entries of annotation files, and those beside images after all others.
MASK_FILE_INDEX = 1 << 30
BESIDE_FILE_INDEX = MASK_FILE_INDEX - 1
ATTACHED_FILE_INDEX = MASK_FILE_INDEX + 1


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a listed file belongs.

    Attributes:
        key: The image's key; a mask has one if an image may have no other mask of its kind.
        join: The text that an image, its annotations and its masks have in common. Images with
            the same `join` and different keys are all rejected.
        mask: What the pixels of a mask mean.
        values: What the values of a map of classes mean.
        number: What only the name of this mask has, if an image may have several that are joined.
            These have the same `key`.
    """

    role: Role
    key: str = ""
    join: str = ""
    mask: MaskRole | None = None
    values: MaskValues = MaskValues()
    number: str = ""


class Format(Source, frozen=True, kw_only=True):
    """How one source of the config is read.

    The fields are the keys that the config may have beside `format`, each with its type, its
    default and, for the command's flags, its help (`shardbeam.configs.keys.named`). Keys that
    contradict each other are refused in `__post_init__`, by raising
    `shardbeam.configs.problem.Problem`. A field whose name begins with `_` is not a key.
    Some fields mean the same in all formats:

    - `match: Match = "path"` says how much of its name an image is joined by.
    - `_masks: bool = False` says whether objects carry their masks (`masks: png` in the config).
      If not, a format drops them, and counts them in `AnnotationEntry.outlines`
      (`annotation_file.drop_outlines`).
    - Other fields whose names begin with `_` keep what `resolve` finds out.

    Everything that a format knows is in its fields, so that workers can rebuild the format from
    them. A format sees annotation files and image names, never pixels, except those of the first
    maps in `resolve`.

    Attributes:
        SUMMARY: One line for `shardbeam formats`.
        UNANNOTATED: What `unannotated: auto` means for listed images that no annotation file and no
            list of a split names: whether they are written without annotations (`keep`), left
            out (`drop`) or rejected.
        ROOTS: The keys that name folders of images, archives, or patterns of archives.
        FILES: The keys that name annotation files.
        lists_annotations: Whether `place` may find annotations or containers: listed files that
            are read beside `annotation_files`.
        opens_archives: Whether an archive among the roots is read as a folder of images. If not,
            `place` gets the archive as one file.
        chunk_bytes: Size of the parts that an annotation file of lines is split into for several
            workers; None where one worker reads each annotation file whole.
    """

    SUMMARY: ClassVar[str] = ""
    UNANNOTATED: ClassVar[Literal["keep", "drop", "reject"]] = "keep"
    ROOTS: ClassVar[tuple[str, ...]] = ("images",)
    FILES: ClassVar[tuple[str, ...]] = ()

    opens_archives: ClassVar[bool] = True
    lists_annotations: ClassVar[bool] = False
    chunk_bytes: ClassVar[int | None] = None

    @property
    def kinds(self) -> frozenset[Kind]:
        """The groups of Example keys that the format fills. Every format sets this."""
        raise TypeError(f"{type(self).__name__} sets no `kinds`")

    @classmethod
    def recognize(cls, folder: Folder) -> Recognized | None:
        """Recognizes a dataset of this format in a folder; returns None where there is none.

        `shardbeam init` asks all formats. They look at names and at the beginnings of files.
        """
        return None

    @property
    def single_label(self) -> bool:
        """Whether every image has exactly one label.

        Readers then find a number in `image/class/label`, not a list. An image with more or none
        would be rejected.
        """
        return False

    @property
    def raw_images(self) -> bool:
        """Whether images are stored as bare pixels, which no image reader can decode."""
        return False

    @classmethod
    def predefines_splits(cls, keys: Mapping[str, object]) -> bool:
        """Whether a source with these keys has its own splits, if the command names none."""
        return cls.predefined_splits is not Format.predefined_splits

    @property
    def first_pixel(self) -> float | None:
        """The number of an image's first pixel, if all boxes must be in pixels.

        A build then refuses a source whose boxes are all fractions.
        """
        return None

    @property
    def box_reading(self) -> BoxReading | None:
        """How boxes are read, so that a build says if their numbers seem to mean something else.

        None if the format has no boxes, or refuses wrong numbers itself.
        """
        return None

    def roots(self) -> tuple[str, ...]:
        """Returns the folders of images, archives, and patterns of archives."""
        return self._given(self.ROOTS)

    def move_down(self, below: str) -> str:
        """Says how to go on if annotations name images of a folder below the root without it."""
        return f"move the root down: add /{below} to `{self.ROOTS[0]}`"

    def resolve(self) -> Format:
        """Finds out, once before the run, what workers need and the keys do not say.

        Returns:
            The format with what was found, such as the columns of a table.

        Raises:
            InputError: A file cannot be read.
            Problem: The files can be read in several ways, and no key says which one is right.
        """
        return self

    def warnings(self) -> Iterable[str]:
        """Returns warnings about what the format reads or guesses, one line each, at launch."""
        return ()

    def absent_classes(self) -> Iterable[str]:
        """Returns the declared classes that have no image; `warnings` names them."""
        return ()

    def declared_categories(self) -> Iterable[Category]:
        """Returns the classes that the keys declare, beside those that are read from files."""
        return ()

    def predefined_splits(self) -> Sequence[str]:
        """Returns the source's own splits, in order.

        They are used where the config has one source and no fractions.
        """
        return ()

    def extra_features(self) -> Sequence[ExtraFeature]:
        """Returns the features that the format adds to those of its kinds."""
        return ()

    def place(self, path: str, *, root: int) -> Place:
        """Decides what a listed file is.

        Args:
            path: Its path below the root, `/`-separated, as listed.
            root: Number of the source's root that it lies below.

        Returns:
            By default an image whose key is its normalized path. The join excludes and counts
            files whose names are not those of images.
        """
        key = normalize_key(path)
        return Place(role=Role.IMAGE, key=key, join=key)

    def annotation_files(self) -> Sequence[str]:
        """Returns the URIs of the files that `read_annotations` reads, in order."""
        return self._given(self.FILES)

    def read_annotations(
        self, *, storage: Storage, file_index: int
    ) -> Iterator[AnnotationEntry | Category | ListedImage]:
        """Parses the annotation file `annotation_files()[file_index]`.

        Yields:
            Every `Category` of the file, and an `AnnotationEntry` for each image that the file
            names, in any order. Entries that cannot be used carry a `defect`. If the file holds
            the images, too, each of them as a byte range.

        Raises:
            InputError: The file cannot be read, or has another form.
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
            begin: First byte of the part.
            end: The byte after its last. A line belongs to the part that holds its first byte.

        Yields:
            As for `read_annotations`. Positions are offsets in bytes, so that they do not depend
            on the parts.
        """
        raise TypeError(f"{type(self).__name__} reads whole annotation files")
        yield

    def read_listed(
        self, data: bytes, *, path: str, root: int
    ) -> Iterator[AnnotationEntry | Category]:
        """Parses the content of a listed annotation file (`Role.ANNOTATION`).

        Yields:
            As for `read_annotations`. A problem of one file is the defect of its entry, and the
            run goes on.
        """
        raise TypeError(f"{type(self).__name__} reads no listed annotation files")
        yield

    def read_container(
        self, file: ImageRef, *, path: str, root: int
    ) -> Iterator[ListedImage | AnnotationEntry | Category]:
        """Lists the content of a container (`Role.CONTAINER`).

        Yields:
            Each image, as a byte range, and the container's entry about it. Both are joined by
            their keys.

        Raises:
            InputError: The container cannot be read, or has another form.
        """
        raise TypeError(f"{type(self).__name__} reads no containers")
        yield

    def reconcile(self, annotations: ImageAnnotations) -> ImageAnnotations:
        """Resolves contradictions between entries of one image, which were merged in order."""
        return annotations

    def split_listed(self, key: str) -> str:
        """Finds the split of a listed image by its key, where no entry names one.

        Returns:
            One of `predefined_splits()`; empty where the key names no split.
        """
        return ""

    def _given(self, keys: Iterable[str]) -> tuple[str, ...]:
        given: list[str] = []
        for key in keys:
            value = getattr(self, key, None)
            given += [value] if isinstance(value, str) else value or []
        return tuple(given)

    def annotate_listed(self, key: str) -> ImageAnnotations | Exclusion | None:
        """Reads annotations off a listed image's key, where no entry has annotations.

        Returns:
            The annotations; or the rule that leaves the image out; or None where keys of this
            format say nothing.

        Raises:
            RejectedError: The key should give something, such as a class, and does not.
        """
        return None


# Finds a format by the name that a config gives it.

# {name: its class}, imported when it is needed.
_BUILT_IN = {
    "coco": "shardbeam.transforms.formats.coco.coco:CocoFormat",
    "lvis": "shardbeam.transforms.formats.coco.lvis:LvisFormat",
    "voc": "shardbeam.transforms.formats.voc.voc:VocFormat",
    "yolo": "shardbeam.transforms.formats.yolo.yolo:YoloFormat",
    "cvat": "shardbeam.transforms.formats.cvat.cvat:CvatFormat",
    "labelme": "shardbeam.transforms.formats.labelme:LabelMeFormat",
    "keras-txt": "shardbeam.transforms.formats.keras_txt:KerasTxtFormat",
    "via": "shardbeam.transforms.formats.via:ViaFormat",
    "label-studio": "shardbeam.transforms.formats.label_studio.label_studio:LabelStudioFormat",
    "open-images": "shardbeam.transforms.formats.open_images:OpenImagesFormat",
    "csv": "shardbeam.transforms.formats.table.csv:CsvFormat",
    "jsonl": "shardbeam.transforms.formats.table.jsonl:JsonLinesFormat",
    "parquet": "shardbeam.transforms.formats.table.parquet:ParquetFormat",
    "filename-label": "shardbeam.transforms.formats.image_folder:FilenameLabelFormat",
    "image-folder": "shardbeam.transforms.formats.image_folder:ImageFolderFormat",
    "masks": "shardbeam.transforms.formats.masks:MasksFormat",
    "images": "shardbeam.transforms.formats.image_folder:ImagesFormat",
    "cifar10": "shardbeam.transforms.formats.cifar:Cifar10Format",
    "cifar100": "shardbeam.transforms.formats.cifar:Cifar100Format",
    "idx": "shardbeam.transforms.formats.idx:IdxFormat",
    "webdataset": "shardbeam.transforms.formats.webdataset:WebDatasetFormat",
    "huggingface": "shardbeam.transforms.formats.huggingface.huggingface:HuggingFaceFormat",
    "tfrecord": "shardbeam.transforms.formats.tfrecord.tfrecord:TFRecordFormat",
}

# A custom format.
_OWN = re.compile(r"[^:]+:[^\W\d]\w*")

# Worker threads ask at the same time, and a module must not be seen half imported.
_lock = threading.RLock()


class FormatError(ShardbeamError, ValueError):
    """A format cannot be found."""

    exit_code = 2


def built_in_formats() -> dict[str, type[Format]]:
    """The classes of the built-in formats, by name."""
    return {name: find_format(name) for name in _BUILT_IN}


def is_format(name: str) -> bool:
    """Whether a text is the name of a built-in format, or looks like that of a custom format."""
    return name in _BUILT_IN or _OWN.fullmatch(name) is not None


def find_format(name: str) -> type[Format]:
    """Finds the class of a format.

    Args:
        name: A built-in format's name, or a custom subclass of `Format` as
            `package.module:Class` or `path/to/file.py:Class`.

    Raises:
        FormatError: There is no such format, or its module cannot be imported.
    """
    with _lock:
        return _load_class(_BUILT_IN.get(name, name))


def name_format(made: Format) -> str:
    """Returns the name that `find_format` takes: the one in the config, if there is one."""
    return made.format or f"{type(made).__module__}:{type(made).__qualname__}"


@functools.cache
def restore_format(name: str, keys: bytes) -> Format:
    """Makes a format in a worker, or returns the one made before of the same name and keys.

    Workers receive the name, and the keys as MessagePack: they could not unpickle an object whose
    class is in a user's file that they have not imported. So workers must be able to read that
    file, and its code runs in each of their processes.
    """
    return MsgpackDecoder(find_format(name)).decode(keys)


@functools.cache
def _load_class(name: str) -> type[Format]:
    module_name, colon, class_name = name.rpartition(":")
    if not colon:
        raise FormatError(
            f"unknown format {name!r}: expected {', '.join(_BUILT_IN)}, or a class of your own as "
            f"package.module:Class or path/to/file.py:Class{did_you_mean(name, known=_BUILT_IN)}"
        )
    try:
        if module_name.endswith(".py"):
            module = _import_file(os.path.abspath(module_name))
        else:
            module = importlib.import_module(module_name)
    except Exception as error:
        # A user's module may raise anything.
        raise FormatError(
            f"format {name!r}: {module_name} cannot be imported: {_in_words(error)}"
        ) from error
    format_class = getattr(module, class_name, None)
    if format_class is None:
        near = did_you_mean(class_name, known=_format_classes(module))
        raise FormatError(f"format {name!r}: {module_name} has no {class_name!r}{near}")
    if not (isinstance(format_class, type) and issubclass(format_class, Format)):
        raise FormatError(
            f"format {name!r}: {class_name} is not a subclass of {Format.__module__}.Format"
        )
    if format_class.kinds is Format.kinds:
        raise FormatError(f"format {name!r}: the class sets no `kinds`")
    return format_class


def _import_file(path: str) -> ModuleType:
    if not os.path.isfile(path):
        near = nearest_path(path, storage=storage_for(path))
        raise FileNotFoundError(f"there is no such file{near}")
    # This name cannot clash with that of another module.
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()
    module_name = f"_shardbeam_format_{digest[:16]}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ImportError("not a Python source file")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up while it runs.
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module


def _format_classes(module: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Format) and value is not Format
    ]


def _in_words(error: Exception) -> str:
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
