"""The interface of the layouts that a dataset can be exported in, and what they share.

These are names of images that stay in their folder, fit any disk and are unique, and ids of images.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import hashlib
import os
import posixpath
import re
import unicodedata
from collections.abc import Collection, Sequence
from typing import BinaryIO, ClassVar

import numpy as np

from shardbeam.readers.export.images import Classes, ExportImage, Losses
from shardbeam.transforms.formats.names import is_hidden, is_image_name
from shardbeam.transforms.images.header import FileFormat, claimed_format, usual_extension

# Begins the mark that one file of each export holds; the dataset's name follows.
MARK = "Shardbeam export"
# The mark is among the first bytes of that file.
_MARK_BYTES = 1000
# Most file systems allow 255 bytes; this leaves room for `~` and a number.
_MAX_NAME_BYTES = 240
# Linux allows 4,096 bytes, with the path of the output.
_MAX_PATH_BYTES = 1024
_DIGEST_DIGITS = 8
_NUMBER_DIGITS = 9
# Control characters, lone surrogates, and the separator of Windows.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\\\\\ud800-\udfff]")
# Part of a path that Windows refuses: some characters, a dot or a space at the end, and the names
# of devices, whatever follows their first dot. (learn.microsoft.com, "Naming Files, Paths, and
# Namespaces")
_WINDOWS = re.compile(
    r"""[<>:"|?*] | [. ](?=/|$) | (?:^|/)(?:con|prn|aux|nul|(?:com|lpt)[0-9¹²³])\ *(?=[./]|$)""",
    re.IGNORECASE | re.VERBOSE,
)
# {usual name of a split: all names that layouts use for it}
_SPLITS = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}
_IMAGES = "images"
# An integer as it is usually written; `007` would come back as another text.
_INTEGER = re.compile(r"0|[1-9][0-9]{0,17}")
# New numbers are sorted into the array once there are more than this, or than an eighth of all.
_MAX_RECENT = 1 << 16


@dataclasses.dataclass(eq=False, kw_only=True)
class Layout(abc.ABC):
    """Writes images and annotations into a new folder, one split after another.

    The folder is complete when `finish` has returned.

    Attributes:
        folder: The folder, which is empty at first.
        dataset: The dataset's path, for errors.
        mark: A text without quotes that begins with `MARK`; one of the files holds it.
        splits: Names of the splits, in order.
        classes: The dataset's classes; more may be added between two images.
        losses: Counts what the layout cannot hold.
        known_keys: Default names of the keys that the Examples have, as far as they are known.
        task: Which annotations of objects are written; None for the layout's default.
        NAME: Its name, for people.
        KEYS: Default keys of Examples that it can hold.
        TASKS: The tasks that it has a choice of.
        ENTRIES: The folders and files that it writes, the one with the mark last.
        MARKED: Folder of the file that holds the mark, and the end of the file's name.
    """

    NAME: ClassVar[str]
    KEYS: ClassVar[frozenset[str]]
    TASKS: ClassVar[tuple[str, ...]] = ()
    ENTRIES: ClassVar[tuple[str, ...]]
    MARKED: ClassVar[tuple[str, str]]

    folder: str
    dataset: str
    mark: str
    splits: Sequence[str]
    classes: Classes
    losses: Losses
    known_keys: Collection[str]
    task: str | None

    @classmethod
    def check(cls, keys: Collection[str], *, dataset: str, task: str | None) -> None:
        """Checks that the Examples of a dataset have the keys that the layout needs.

        Args:
            keys: Default names of their keys.
            dataset: The dataset's path, for errors.
            task: The task, as in the attributes.

        Raises:
            InputError: A key is missing.
        """
        del keys, dataset, task

    @property
    def keys(self) -> Collection[str]:
        """Default keys of Examples that it writes."""
        return self.KEYS

    @property
    def title(self) -> str:
        """Its name, and its task if it has one."""
        return self.NAME

    @abc.abstractmethod
    def begin(self, split: str) -> None:
        """Begins a split.

        Raises:
            OSError: A file cannot be written; the other methods raise it, too.
        """

    @abc.abstractmethod
    def add(self, image: ExportImage) -> int:
        """Writes an image of the split, and returns how many of its objects were written.

        Raises:
            InputError: It cannot be written in this layout.
        """

    @abc.abstractmethod
    def finish(self) -> None:
        """Writes what describes all splits.

        Raises:
            InputError: The dataset cannot be written in this layout.
        """

    @classmethod
    def wrote(cls, folder: str) -> bool:
        """Returns whether a folder is a finished export in this layout, and nothing else.

        Raises:
            OSError: It cannot be read.
        """
        names = {name for name in os.listdir(folder) if not name.startswith(".")}
        inside, extension = cls.MARKED
        marked = os.path.join(folder, inside)
        if not names <= {*cls.ENTRIES} or not os.path.isdir(marked):
            return False
        return any(
            name.endswith(extension) and _is_marked(os.path.join(marked, name))
            for name in os.listdir(marked)
        )

    def unique_name(
        self,
        key: str,
        *,
        image: ExportImage,
        names: UniqueNames,
        reserved: Collection[str] = (),
    ) -> str:
        """Returns a safe, unused path for an image, and counts it if it differs from the key.

        Args:
            key: The image's key, without the folders of the layout.
            image: The image.
            names: The paths that other images of the split have.
            reserved: See `safe_path`.
        """
        path = safe_path(key, image_format=image.format, number=image.number, reserved=reserved)
        name = names.take(path, number=image.number)
        return self._note_name(name, is_changed=name != key, given=image.key, what="images")

    def unique_folder(self, split: str, *, names: UniqueNames, around: int = 0) -> str:
        """Returns a safe, unused folder for a split, and counts it if it differs from the name.

        Args:
            split: The split.
            names: The names that other splits have, or that no split may have.
            around: See `safe_name`.
        """
        name = names.take(safe_name(split, around=around), number=self.splits.index(split) + 1)
        return self._note_name(name, is_changed=name != split, given=split, what="splits")

    def _note_name(self, name: str, *, is_changed: bool, given: str, what: str) -> str:
        if is_changed:
            self.losses.note(f"changed names of {what}", example=f"{given!r}: {name!r}")
        if is_refused_by_windows(name):
            self.losses.note(f"names of {what} that Windows refuses", example=repr(name))
        return name

    def create(self, path: str) -> BinaryIO:
        """Opens a new file for writing, and makes its folders.

        Args:
            path: Its path below the folder, `/`-separated.

        Raises:
            OSError: It cannot be created, or exists already.
        """
        full_path = os.path.join(self.folder, path)
        try:
            return open(full_path, "xb")
        except FileNotFoundError:
            # Never make `self.folder` again: a signal may just have removed it.
            folder = self.folder
            for part in path.split("/")[:-1]:
                folder = os.path.join(folder, part)
                with contextlib.suppress(FileExistsError):
                    os.mkdir(folder)
            return open(full_path, "xb")

    def write(self, path: str, data: bytes) -> None:
        """Writes a new file, like `create`."""
        with self.create(path) as file:
            file.write(data)


def _is_marked(path: str) -> bool:
    # Opening a pipe would wait forever.
    if os.path.islink(path) or not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return f"{MARK} (".encode() in file.read(_MARK_BYTES)


def split_names(split: str) -> Collection[str]:
    """Returns all names that layouts use for a split; only its own if it is not a usual one."""
    return next((names for names in _SPLITS.values() if split in names), (split,))


def safe_name(name: str, *, around: int = 0) -> str:
    """Makes a text the name of a file or folder: no separators, not hidden, at most 240 bytes.

    Args:
        name: The text.
        around: The bytes that names of files have before and after it.
    """
    name = _UNSAFE.sub("_", name.replace("/", "_"))
    return _shorten(f"_{name}" if not name or is_hidden(name) else name, room=around)


def is_refused_by_windows(path: str) -> bool:
    """Returns whether Windows cannot have a file of this name, or a folder that it lies in."""
    return _WINDOWS.search(path) is not None


def strip_layout(key: str, *, split: str) -> str:
    """Removes `images/<split>/` and `<split>/images/` from the beginning of an image's key.

    The export makes such folders itself, and keys of YOLO datasets begin with them.
    """
    first, _, rest = key.partition("/")
    second, _, below = rest.partition("/")
    named = split_names(split)
    if below and ((first == _IMAGES and second in named) or (first in named and second == _IMAGES)):
        return below
    return key


def safe_path(
    key: str, *, image_format: FileFormat, number: int, reserved: Collection[str] = ()
) -> str:
    """Returns a relative path for an image: its key, if that is safe.

    No part of it is hidden or leads out of the folder. Its extension is one of the image's format.
    No folder has the extension of an image, so that no folder takes the name of a file.

    Args:
        key: The image's key, which may hold anything.
        image_format: The format of the stored image.
        number: Number of its Example, for an image without a key.
        reserved: Names that no folder may have, in lower case, and extensions that none may have.
    """
    parts = [part for part in key.split("/") if part not in ("", ".")]
    *folders, name = map(safe_name, parts or [f"{number:0{_NUMBER_DIGITS}}"])
    folders = [
        _shorten(f"{folder}_")
        if is_image_name(folder)
        or not {folder.casefold(), posixpath.splitext(folder)[1].casefold()}.isdisjoint(reserved)
        else folder
        for folder in folders
    ]
    if claimed_format(name) is not image_format:
        stem = posixpath.splitext(name)[0] if is_image_name(name) else name
        name = _shorten(stem + usual_extension(image_format))
    path = "/".join([*folders, name])
    return path if len(path.encode()) <= _MAX_PATH_BYTES else _shorten(name, digest_of=key)


def _shorten(name: str, *, digest_of: str = "", room: int = 0) -> str:
    """Cuts a name that is too long, and adds a digest; with `digest_of`, it always adds one."""
    if len(name.encode()) <= _MAX_NAME_BYTES - room and not digest_of:
        return name
    stem, extension = posixpath.splitext(name)
    if not is_image_name(name):
        stem, extension = name, ""
    digest = hashlib.sha256((digest_of or name).encode(errors="replace")).hexdigest()
    ending = f"~{digest[:_DIGEST_DIGITS]}{extension}"
    kept = stem.encode()[: _MAX_NAME_BYTES - room - len(ending)].decode(errors="ignore")
    return f"{kept}{ending}"


class UniqueNames:
    """Gives the images of a folder unique names, even on disks that ignore case or Unicode forms.

    Args:
        by_stem: Whether names must differ without their extensions.
    """

    def __init__(self, *, by_stem: bool) -> None:
        self._by_stem = by_stem
        self._taken = NumberSet()

    def take(self, path: str, *, number: int) -> str:
        """Returns a path that no earlier image has: the given one if it is free.

        Args:
            path: The path.
            number: Number of the image's Example, which is added to a name that is taken.
        """
        stem, extension = posixpath.splitext(path)
        ending = ""
        while True:
            candidate = f"{stem}{ending}"
            compared = candidate if self._by_stem else f"{candidate}{extension}"
            if self._taken.add(_digest(_folded(compared))):
                return f"{candidate}{extension}"
            ending += f"~{number}"


def _folded(path: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", path).casefold())


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


class NumberSet:
    """A set of integers from 0 to 2^64 - 1 that takes about 8 bytes for each, not 100."""

    def __init__(self) -> None:
        self._sorted = np.empty(0, np.uint64)
        self._recent: set[int] = set()

    def add(self, number: int) -> bool:
        """Adds a number, and returns whether it is new."""
        place = int(np.searchsorted(self._sorted, np.uint64(number)))
        is_old = place < self._sorted.size and int(self._sorted[place]) == number
        if is_old or number in self._recent:
            return False
        self._recent.add(number)
        if len(self._recent) > max(_MAX_RECENT, self._sorted.size // 8):
            recent: Sequence[int] = list(self._recent)
            self._sorted = np.sort(np.append(self._sorted, np.array(recent, np.uint64)))
            self._recent.clear()
        return True


class ImageIds:
    """Gives each image of a COCO file an integer that no other image of its split has."""

    def __init__(self) -> None:
        self._used = NumberSet()
        self._last = 0

    def begin_split(self) -> None:
        """Begins another split, whose images may have the ids of the last one."""
        self._used = NumberSet()

    def give(self, own: str) -> int:
        """Returns an image's own id if it is an unused integer, or else the next free one."""
        if _INTEGER.fullmatch(own) and self._used.add(int(own)):
            return int(own)
        self._last += 1
        while not self._used.add(self._last):
            self._last += 1
        return self._last
