"""The interface of the layouts that a dataset can be exported in."""

from __future__ import annotations

import abc
import contextlib
import os
from collections.abc import Collection, Iterable
from typing import BinaryIO, ClassVar

from shardbeam.readers.export.images import Classes, ExportImage, Losses
from shardbeam.readers.export.names import UniqueNames, is_refused_by_windows, safe_name, safe_path

# Begins the mark that one file of each export holds; the dataset's name follows.
MARK = "Shardbeam export"
# The mark is among the first bytes of that file.
_MARK_BYTES = 1000


class Layout(abc.ABC):
    """Writes images and annotations into a new folder, one split after another.

    The folder is complete when `finish` has returned.

    Args:
        folder: The folder, which is empty.
        dataset: The dataset's path, for errors.
        mark: A text without quotes that begins with `MARK`; one of the files holds it.
        splits: Names of the splits, in order.
        classes: The dataset's classes; more may be added between two images.
        losses: Counts what the layout cannot hold.
        keys: Default names of the keys that the Examples have, as far as they are known.
        task: Which annotations of objects are written; None for the layout's default.

    Attributes:
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

    def __init__(
        self,
        folder: str,
        *,
        dataset: str,
        mark: str,
        splits: Iterable[str],
        classes: Classes,
        losses: Losses,
        keys: Collection[str],
        task: str | None,
    ) -> None:
        self.folder = folder
        self.dataset = dataset
        self.mark = mark
        self.splits = tuple(splits)
        self.classes = classes
        self.losses = losses
        self.known_keys = keys
        self.task = task

    @classmethod
    def check(cls, keys: Collection[str], *, dataset: str, task: str | None) -> None:
        """Checks that the Examples of a dataset have the keys that the layout needs.

        Args:
            keys: Default names of their keys.
            dataset: The dataset's path, for errors.
            task: As in the constructor.

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
        if name != key:
            self.losses.note("changed names of images", example=f"{image.key!r}: {name!r}")
        if is_refused_by_windows(name):
            self.losses.note("names of images that Windows refuses", example=repr(name))
        return name

    def unique_folder(self, split: str, *, names: UniqueNames, around: int = 0) -> str:
        """Returns a safe, unused folder for a split, and counts it if it differs from the name.

        Args:
            split: The split.
            names: The names that other splits have, or that no split may have.
            around: See `safe_name`.
        """
        name = names.take(safe_name(split, around=around), number=self.splits.index(split) + 1)
        if name != split:
            self.losses.note("changed names of splits", example=f"{split!r}: {name!r}")
        if is_refused_by_windows(name):
            self.losses.note("names of splits that Windows refuses", example=repr(name))
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
