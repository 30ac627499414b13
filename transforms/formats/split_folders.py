"""Folders of images whose top folders may be splits: `train/`, `val/`, `test/`."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar

import msgspec

from shardbeam.configs.keys import Location, named
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.base import Format
from shardbeam.transforms.formats.names import is_hidden, is_image_name
from shardbeam.transforms.storage.archives import expand_root, is_archive, list_root
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.find import storage_for

# In the order of the splits.
_NAMES = ("train", "training", "val", "valid", "validation", "test", "testing")
# A root with more names is no folder of splits; of a split's folder so many are looked at.
_LOOK_AT = 1000


class SplitFolderFormat(Format, frozen=True, kw_only=True):
    """Images below one root, which is looked at before the run: are its top folders splits?

    Attributes:
        needs_classes: Whether a split's folder must hold folders.
        images: Root folder of the images.
        split_folders: Whether the top folders are splits; where None, their names say so.
        _splits: The top folders that are splits, as `resolve` found them.
    """

    needs_classes: ClassVar[bool] = False

    images: Annotated[Location, named("root folder of the images", metavar="DIR")]
    split_folders: Annotated[
        bool | None, named("whether the top folders are splits (default: by their names)")
    ] = None
    _splits: tuple[str, ...] = ()

    @classmethod
    def predefines_splits(cls, keys: Mapping[str, object]) -> bool:
        """Whether there are folders of splits; see the base class.

        Raises:
            InputError: The root cannot be listed.
        """
        asked = keys.get("split_folders")
        if asked is None:
            return bool(_look(os.path.expanduser(str(keys["images"])), by_name=True))
        return bool(asked)

    def resolve(self) -> Format:
        """Finds the top folders that are splits; see the base class.

        Raises:
            InputError: They hold images where folders of classes are expected, or the root cannot
                be listed.
        """
        if self.split_folders is False:
            return self
        found = _look(self.images, by_name=self.split_folders is None)
        if self.split_folders and not found:
            raise InputError(uri=self.images, problem="split_folders: there are no folders")
        splits = sorted(found, key=_order)
        flat = [f"{name}/" for name in splits if found[name] == {False}]
        if flat and self.needs_classes:
            raise InputError(
                uri=self.images,
                problem="the top folders are splits, not classes, and images lie directly in "
                f"{', '.join(flat)}: expected <split>/<class>/<image>; filename-label takes labels "
                "from names, a source a split in the config leaves one out, and --no-split-folders "
                "(split_folders: false) takes the folders for classes",
            )
        return msgspec.structs.replace(self, _splits=tuple(splits))

    def predefined_splits(self) -> Sequence[str]:
        """The top folders, where they are splits."""
        return self._splits

    def split_listed(self, key: str) -> str:
        """The top folder, where it is a split; see the base class."""
        folder = key.partition("/")[0]
        return folder if folder in self._splits else ""

    def below_split(self, key: str) -> str:
        """Gives an image's key without the folder of its split."""
        return key.partition("/")[2] if self.split_listed(key) else key


def _look(root: str, *, by_name: bool) -> dict[str, set[bool]]:
    """Looks at the two upper levels of a root.

    Only an archive whose top folders are named like splits is listed to its end.

    Returns:
        `{top folder: whether it holds folders, whether it holds images directly}` as a set of True
        and False; empty where the top folders are not splits.
    """
    found: dict[str, set[bool]] = {}
    for path in _upper_paths(root, limit=_LOOK_AT if by_name else None):
        folder, slash, below = path.partition("/")
        if not slash or is_hidden(folder):
            continue
        if by_name and folder.casefold() not in _NAMES:
            return {}
        if below and not is_hidden(below) and ("/" in below or is_image_name(below)):
            found.setdefault(folder, set()).add("/" in below)
    return found


def _upper_paths(root: str, *, limit: int | None) -> Iterator[str]:
    """Yields paths below a root, of folders with a slash behind; none if they are too many."""
    for uri in expand_root(root):
        if is_archive(uri):
            yield from (path for path, _ in list_root(uri))
            continue
        storage = storage_for(uri)
        names = list(itertools.islice(storage.names(uri), limit and limit + 1))
        if limit and len(names) > limit:
            continue
        yield from names
        for folder in (name for name in names if name.endswith("/")):
            for name in itertools.islice(storage.names(join_uri(uri, folder[:-1])), _LOOK_AT):
                yield folder + name
                if name.endswith("/"):
                    break


def _order(folder: str) -> tuple[int, str]:
    name = folder.casefold()
    return _NAMES.index(name) if name in _NAMES else len(_NAMES), folder
