"""Folders of images whose top folders may be splits: `train/`, `val/`, `test/`."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Annotated, Any, ClassVar, NamedTuple

import msgspec

from shardbeam.configs.keys import Location, named
from shardbeam.configs.problem import Problem
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.base import Format
from shardbeam.transforms.formats.names import SPLIT_NAMES, is_hidden, is_image_name, is_split_name
from shardbeam.transforms.storage.archives.open import expand_root, is_archive, list_root
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.find import storage_for

# A root with more names counts as one without splits; of a top folder, this many names are read.
_MOST_NAMES = 1000
# Folders that an error names.
_NAMED = 3


class TopFolderFormat(Format, frozen=True, kw_only=True):
    """A format whose top folders may be splits.

    Attributes:
        _splits: The top folders that are splits; `resolve` finds them.
        _mixed: The top folders, in words, if only some of them are named like splits.
    """

    _splits: tuple[str, ...] = ()
    _mixed: str = ""

    def predefined_splits(self) -> Sequence[str]:
        """Returns the folders that are splits.

        Raises:
            Problem: Some folders are named like splits and others are not.
        """
        if self._mixed:
            key = self.ROOTS[0]
            raise Problem(
                (key,),
                f"{getattr(self, key)} holds annotated images {self._mixed}: --split NAME puts all "
                "of them into one split, and `splits` of a config names a folder for each",
            )
        return self._splits

    def split_listed(self, key: str) -> str:
        """Returns the image's top folder, if it is a split."""
        top = top_folder(self.join_text(key))
        return top if top in self._splits else ""

    def join_text(self, key: str) -> str:
        """Returns the text that joins an image to its annotations; by default its key."""
        return key


class SplitFolderFormat(TopFolderFormat, frozen=True, kw_only=True):
    """Images below one root, whose top folders may be splits.

    `resolve` looks at them before the run. Folders without images do not count.

    Attributes:
        needs_classes: Whether a split's folder must hold folders.
        images: Root folder of the images.
        split_folders: Whether the top folders are splits; where None, their names decide.
    """

    needs_classes: ClassVar[bool] = False

    images: Annotated[Location, named("root folder of the images", metavar="DIR")]
    split_folders: Annotated[
        bool | None,
        named("treat the top folders as splits, or not (default: if they are named like splits)"),
    ] = None

    @classmethod
    def predefines_splits(cls, keys: Mapping[str, object]) -> bool:
        """Whether the root has folders of splits.

        Raises:
            InputError: The root cannot be listed.
        """
        asked = keys.get("split_folders")
        if asked is None:
            return _find_top_folders(
                os.path.expanduser(str(keys["images"])), by_name=True
            ).are_splits
        return bool(asked)

    def resolve(self) -> Format:
        """Finds the top folders that are splits.

        Raises:
            Problem: Some top folders are named like splits and others are not.
            InputError: Splits hold images where folders of classes are expected, or the root
                cannot be listed.
        """
        if self.split_folders is False:
            return self
        found = _find_top_folders(self.images, by_name=self.split_folders is None)
        if self.split_folders and not found.splits:
            raise InputError(uri=self.images, problem="split_folders: there are no folders")
        if found.is_mixed:
            raise Problem(
                ("split_folders",),
                f"{self.images} holds images {found.describe()}: --split-folders (split_folders: "
                "true) makes each of them a split, --no-split-folders (split_folders: false) makes "
                "none of them a split",
            )
        if not found.are_splits:
            return self
        splits = sort_splits(found.splits)
        flat = [f"{name}/" for name in splits if found.splits[name] == {False}]
        if flat and self.needs_classes:
            raise InputError(
                uri=self.images,
                problem="the top folders are splits, not classes, and images lie directly in "
                f"{', '.join(flat)}: expected <split>/<class>/<image>. If labels are in the names "
                "of files, use filename-label; to leave a split out, name a source for each of the "
                "others in splits; if the folders are classes, set --no-split-folders "
                "(split_folders: false)",
            )
        return msgspec.structs.replace(self, _splits=tuple(splits))

    def below_split(self, key: str) -> str:
        """Returns an image's key without the folder of its split."""
        return key.partition("/")[2] if self.split_listed(key) else key


class TopFolders(NamedTuple):
    """The top folders of a root that hold images.

    Attributes:
        splits: Folders that may be splits: `{name: set}`. The set holds True if the folder has
            folders, and False if images are directly in it.
        others: A few of the other folders.
    """

    splits: Mapping[str, Set[bool]]
    others: Sequence[str]

    @property
    def are_splits(self) -> bool:
        """Whether all folders are splits."""
        return bool(self.splits) and not self.others

    @property
    def is_mixed(self) -> bool:
        """Whether only some folders look like splits, and it is unclear whether they are.

        One class may be named `test`, but hardly two classes are named like splits.
        """
        return len(self.splits) > 1 and bool(self.others)

    def fields(self) -> dict[str, Any]:
        """Returns the fields of a `TopFolderFormat`."""
        return {
            "_splits": tuple(sort_splits(self.splits)) if self.are_splits else (),
            "_mixed": self.describe() if self.is_mixed else "",
        }

    def describe(self) -> str:
        """Names the folders in an error."""
        return (
            f"in folders named like splits ({', '.join(sort_splits(self.splits))}) and in others "
            f"({', '.join(self.others)})"
        )


def sort_tops(tops: Iterable[str]) -> TopFolders:
    """Sorts out the top folders with annotated images; an empty name is that of the root."""
    names = sorted(set(tops))
    return TopFolders(
        {top: frozenset() for top in names if is_split_name(top)},
        [top or "the root itself" for top in names if not is_split_name(top)],
    )


def top_folder(path: str) -> str:
    """Returns the top folder of a path; empty if there is none."""
    top, slash, _ = path.partition("/")
    return top if slash else ""


def sort_splits(folders: Iterable[str]) -> list[str]:
    """Sorts folders into the usual order of splits; other folders follow by name."""
    return sorted(folders, key=_order)


def _find_top_folders(root: str, *, by_name: bool) -> TopFolders:
    """Looks at the upper levels of a root, and deeper until it finds an image.

    An archive is listed to its end only if its first folder with images is named like a split:
    there may be many long archives of classes.
    """
    splits: dict[str, set[bool]] = {}
    others: dict[str, None] = {}
    for uri in expand_root(root):
        in_archive = is_archive(uri)
        for folder, holds_folder in (
            _folders_of_archive(uri) if in_archive else _folders_below(uri, by_name=by_name)
        ):
            if not by_name or is_split_name(folder):
                splits.setdefault(folder, set()).add(holds_folder)
                continue
            others[folder] = None
            if not splits or (len(others) == _NAMED and not in_archive):
                return TopFolders(splits, list(others))
    return TopFolders(splits, list(others)[:_NAMED])


def _folders_of_archive(uri: str) -> Iterator[tuple[str, bool]]:
    """Yields the top folder of each image, and whether the image is in a folder below it."""
    for path, _ in list_root(uri):
        folder, slash, below = path.partition("/")
        if slash and folder and is_image_name(path) and not is_hidden(path):
            yield folder, "/" in below


def _folders_below(uri: str, *, by_name: bool) -> Iterator[tuple[str, bool]]:
    """Like `_folders_of_archive`, but looks at few images; folders named like splits come first."""
    storage = storage_for(uri)
    limit = _MOST_NAMES if by_name else None
    names = list(itertools.islice(storage.names(uri), limit and limit + 1))
    folders = [name[:-1] for name in names if name.endswith("/") and not is_hidden(name)]
    if by_name and (len(names) > _MOST_NAMES or not any(map(is_split_name, folders))):
        return
    for folder in sorted(folders, key=lambda folder: (not is_split_name(folder), folder)):
        below = join_uri(uri, folder)
        found = set()
        for name in itertools.islice(storage.names(below), _MOST_NAMES):
            if not is_hidden(name) and (name.endswith("/") or is_image_name(name)):
                found.add(name.endswith("/"))
            if True in found:
                break
        # The folders in it may hold no image.
        if found == {True} and not any(
            is_image_name(path) and not is_hidden(path) for path, _ in list_root(below)
        ):
            continue
        for holds_folder in found:
            yield folder, holds_folder


def _order(folder: str) -> tuple[int, str]:
    name = folder.casefold()
    return SPLIT_NAMES.index(name) if name in SPLIT_NAMES else len(SPLIT_NAMES), folder
