"""The content of a folder, by which formats recognize a dataset (`shardbeam init`)."""

from __future__ import annotations

import fnmatch
import functools
import glob
import itertools
import os
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.core.records import ImageRef
from shardbeam.transforms.core.text import show_name
from shardbeam.transforms.formats.annotation_file import read_part
from shardbeam.transforms.formats.names import (
    foreign_name,
    is_encodable,
    is_hidden,
    is_image_name,
    normalize_for_match,
    normalize_key,
)
from shardbeam.transforms.formats.parsing.root_files import common_folder
from shardbeam.transforms.storage.archives.open import list_root
from shardbeam.transforms.storage.base import is_uri, join_uri
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.image_bytes import read_bytes

# Bytes of a file that are read to find out what it is.
_HEAD_BYTES = 64 << 10
# Names in annotations that are looked up to find the folder of their images.
_NAMES = 50
# A member of an archive is read whole, so longer ones are not opened.
_MEMBER_BYTES = 16 << 20
# If one folder has less than this part of the images, the others may be in folders beside it.
_MOST_FOUND = 0.9
# Files of each folder that are opened, where there may be one for each image.
_FILES = 3
# A folder with more files of a kind may hold one for each image.
_FEW = 30
STORED, ANNOTATIONS, MASKS, TABLE, FOLDERS, IMAGES = range(6)
_DIGITS = re.compile(r"[0-9]+")
_BOM = b"\xef\xbb\xbf"
_SPLIT = re.compile(
    r"(?<![a-z])(trainval|train|training|val|valid|validation|minival|test|testing)(?![a-z])",
    re.IGNORECASE,
)


class Recognized(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset that a format recognizes.

    Attributes:
        what: A description, such as `2 annotation files`.
        sources: `{split: the keys of its source}`. The split is empty where the format itself
            finds the splits, if there are any.
        problem: Why a person must say how to read it; empty where that is certain.
        notes: What is not read, or may be meant otherwise, one line each.
        rank: Where several formats recognize one folder, the smallest rank wins: `STORED`, a
            dataset of Shardbeam, before `ANNOTATIONS`, `MASKS`, `TABLE`, `FOLDERS` and `IMAGES`.
        outlines: Whether the first objects have outlines, and not boxes alone. Of two formats about
            the same images, the one that says more is read.
        asks: Whether the problem is a question that another format does not answer: the pictures
            may be classes, or masks of each other.
    """

    what: str
    sources: Mapping[str, Mapping[str, object]] = {}
    problem: str = ""
    notes: Sequence[str] = ()
    rank: int = ANNOTATIONS
    outlines: bool = False
    asks: bool = False


class ImageFolder(NamedTuple):
    """The folder of the images that annotations name.

    Attributes:
        folder: The folder, relative to the root; empty for the root.
        match: The key `match` that joins the images to their annotations.
    """

    folder: str
    match: str


class DoubtError(Exception):
    """Why nobody but the user can say how files of a folder are read.

    Attributes:
        what: What they are.
    """

    def __init__(self, what: str, problem: str) -> None:
        self.what = what
        super().__init__(problem)


class Sources:
    """The sources of a config for annotation files that name images: one for each split.

    Attributes:
        by_split: `{split: its keys}`; the split is empty if no file names one.
    """

    def __init__(self, folder: Folder, *, what: str) -> None:
        self.by_split: dict[str, dict[str, Any]] = {}
        self._folder = folder
        self._what = what

    def find_images(self, path: str, names: Sequence[str], *others: Sequence[str]) -> ImageFolder:
        """Finds the folder of the images that a file names.

        Args:
            path: The file.
            names: The names.
            others: Other names of the same images, if there are none of the first ones.

        Raises:
            DoubtError: None of the images is there.
        """
        found = (self._folder.find_images(each, near=path) for each in (names, *others))
        images = next(filter(None, found), None)
        if images is None:
            raise self.doubt(describe_missing(path, names=names))
        return images

    def source_of(self, path: str, images: ImageFolder, *, split: str = "") -> dict[str, Any]:
        """Returns the source of a file's split, which has one folder of images.

        Raises:
            DoubtError: Another file of the split has images in another folder.
        """
        root = self._folder.uri(images.folder)
        source = self.by_split.setdefault(split, {"images": root})
        if source["images"] != root:
            raise self.doubt(
                f"the images of {path} are in {root}, and those of another file "
                f"{f'of split {split!r} ' if split else ''}in {source['images']}"
            )
        if images.match != "path":
            source["match"] = images.match
        return source

    def add(
        self, path: str, images: ImageFolder, *, split: str = "", key: str = "annotations"
    ) -> None:
        """Adds a file to a key of the source of its split; raises DoubtError as `source_of`."""
        source = self.source_of(path, images, split=split)
        source.setdefault(key, []).append(self._folder.uri(path))

    def doubt(self, problem: str) -> DoubtError:
        """Makes the error for a problem."""
        return DoubtError(self._what, problem)


class Folder:
    """A folder in which formats look for a dataset.

    Attributes:
        root: The folder, as it was given.
        files: `{path below the root: the file}`, by folder and name, without hidden files. A zip
            counts as a folder of its members.
        images: The paths of images.
        zips: The paths of zips that count as folders.
        first: The path of the file that the user has named, which comes before all others; or
            empty.
    """

    def __init__(self, root: str, *, first: str = "") -> None:
        """Lists a folder; raises InputError where that cannot be done."""
        self.root = root
        self.zips: dict[str, None] = {}
        self.first = first
        listed = sorted(_list_with_zips(root, zips=self.zips), key=_by_folder)
        self.files: dict[str, ImageRef] = {
            path: file
            for path, file in sorted(listed, key=lambda item: item[0] != first)
            if not is_hidden(path) and is_encodable(path)
        }
        self.images = [path for path in self.files if is_image_name(path)]

    def uri(self, path: str) -> str:
        """Returns a path as a config writes it."""
        if self.root == ".":
            return path or "."
        return join_uri(self.root, path) if path else self.root

    def location(self, path: str = "") -> str:
        """Returns the absolute path, or the URI, of a path below the root."""
        root = self.root if is_uri(self.root) else os.path.abspath(self.root)
        return join_uri(root, path) if path else root

    def dataset_name(self) -> str:
        """Returns a name of a dataset that is made from the folder's name."""
        base = posixpath.basename(self.location().rstrip("/"))
        base = re.sub(r"\.(zip|tar)$", "", base, flags=re.IGNORECASE)
        name = re.sub(r"[^a-zA-Z0-9]+", "_", base).strip("_").lower()
        return name if name[:1].isalpha() else f"dataset_{name}".rstrip("_")

    def named(self, *extensions: str) -> list[str]:
        """Returns the files with one of these extensions, in upper or lower case."""
        return [path for path in self.files if path.lower().endswith(extensions)]

    def few(self, *extensions: str) -> list[str]:
        """Returns the files that `named` finds, except in folders with one for each image."""
        groups = itertools.groupby(self.named(*extensions), posixpath.dirname)
        lists = (list(group) for _, group in groups)
        return [path for paths in lists if len(paths) <= _FEW for path in paths]

    def unreadable(self, path: str) -> str:
        """Says why a file cannot be read, such as a pipe or a link to nowhere; empty if it can."""
        file = self.files[path]
        try:
            if file.whole:
                read_part(file.uri, storage=storage_for(file.uri), size_bytes=1)
        except InputError as error:
            return error.problem
        return ""

    def head(self, path: str, *, size_bytes: int = _HEAD_BYTES) -> bytes:
        """Reads the beginning of a file; returns nothing where the file cannot be read."""
        file = self.files[path]
        try:
            if file.whole:
                data = read_part(file.uri, storage=storage_for(file.uri), size_bytes=size_bytes)
            else:
                data = read_bytes(file, max_bytes=_MEMBER_BYTES)[:size_bytes]
        except (InputError, RejectedError):
            return b""
        return data.removeprefix(_BOM)

    def alike(
        self, extension: str, *, are_alike: Callable[[Sequence[bytes]], bool]
    ) -> dict[str, list[str]]:
        """Returns the files with an extension, in folders where the first ones look right.

        Args:
            extension: The extension.
            are_alike: Decides it by the beginnings of a folder's first files that are not empty.

        Returns:
            `{folder: its files}`
        """
        folders: dict[str, list[str]] = {}
        for path in self.named(extension):
            folders.setdefault(posixpath.dirname(path), []).append(path)
        return {
            folder: paths
            for folder, paths in folders.items()
            if (heads := self._first_heads(paths)) and are_alike(heads)
        }

    def find_images(
        self, names: Iterable[str], *, near: str, besides: str | None = None
    ) -> ImageFolder | None:
        """Finds the folder of the images that annotations name; None where none of them is there.

        Args:
            names: The images' names in the annotations.
            near: The annotations' own path, which decides between several folders.
            besides: A folder to leave out.
        """
        # Where a list is sorted by class, and each class has a folder, the first names are alike.
        sample = [normalize_key(name) for name in _spread(names)]
        exact: Counter[str] = Counter()
        loose: Counter[str] = Counter()
        folders: list[list[str]] = []
        for name in sample:
            found: dict[str, None] = {}
            for path in self.named_like(name):
                if posixpath.dirname(path) == besides:
                    continue
                folder = self._with_parts(posixpath.dirname(path), near=near)
                found[folder] = None
                loose[folder] += 1
                if f"/{path}".endswith(f"/{name}"):
                    folder = path[: -len(name)].rstrip("/")
                    exact[self._with_parts(folder, near=near)] += 1
            if found:
                folders.append([*found])
        for votes, match in ((exact, "path"), (loose, "name")):
            if not votes:
                continue
            best = max(votes, key=lambda folder: (votes[folder], *_closeness(folder, near=near)))
            if votes[best] < _MOST_FOUND * len(folders):
                several = _in_several(folders, near=near)
                if several is not None:
                    return ImageFolder(several, "name")
            if 2 * votes[best] >= len(sample):
                return ImageFolder(best, match)
        return ImageFolder(common_folder([*loose]), "name") if loose else None

    def _first_heads(self, paths: Iterable[str]) -> list[bytes]:
        filled = (path for path in paths if self.files[path].size_bytes)
        return [self.head(path) for path in itertools.islice(filled, _FILES)]

    def named_like(self, name: str) -> Sequence[str]:
        """Returns the images with the name of another path, in any folder, case and format."""
        return self._by_name.get(normalize_for_match(name, "name"), ())

    def in_zips(self) -> dict[str, list[str]]:
        """Returns `{zip: the images in it}` if all images are in several zips; else nothing."""
        found: dict[str, list[str]] = {}
        for path in self.images:
            zipped = self.zip_of(path)
            if not zipped:
                return {}
            found.setdefault(zipped, []).append(path.removeprefix(f"{zipped}/"))
        return found if len(found) > 1 else {}

    def only_zip(self) -> str:
        """Returns the zip that holds all images; empty if there is none."""
        zips = {self.zip_of(path) for path in self.images}
        return zips.pop() if len(zips) == 1 else ""

    def pattern(self, zips: Sequence[str]) -> str:
        """Returns a pattern of some zips that no other zip matches; empty where there is none."""
        start = posixpath.commonprefix(zips)
        end = posixpath.commonprefix([path[len(start) :][::-1] for path in zips])[::-1]
        return _exact_pattern(zips, start=start, end=end, among=self.zips)

    def above(self, paths: Iterable[str]) -> str:
        """Returns the innermost folder that holds files, as a config writes it."""
        return self.uri(common_folder([*map(posixpath.dirname, paths)]))

    def shards_by_split(
        self, paths: Sequence[str], *, key: str, extension: str = ""
    ) -> dict[str, dict[str, list[str]]]:
        """Makes a source of the shards of each split, or of their folder if some name no split.

        Args:
            paths: The shards.
            key: The key of a source that names them.
            extension: The extension that a pattern of them ends with.

        Returns:
            `{split: source}`, with one pattern for a split's shards if it matches nothing else.
        """
        splits = by_split(paths)
        if "" in splits:
            return {"": {key: [self.above(paths)]}}
        sources = {}
        for split, own in splits.items():
            start = posixpath.commonprefix(own)
            pattern = _exact_pattern(own, start=start, end=extension, among=self.files)
            sources[split] = {key: [*map(self.uri, [pattern] if pattern else own)]}
        return sources

    def zip_of(self, path: str) -> str:
        """Returns the zip that a file is in; empty if it is in none that counts as a folder."""
        end = 0
        while (end := path.lower().find(".zip/", end)) >= 0:
            end += len(".zip")
            if path[:end] in self.zips:
                return path[:end]
        return ""

    def _with_parts(self, folder: str, *, near: str) -> str:
        """Returns a folder in a zip as one in all zips whose names differ from its in digits.

        Annotations in one of these zips are only about its images.
        """
        zipped = self.zip_of(f"{folder}/")
        name = _DIGITS.sub("0", zipped)
        parts = [each for each in self.zips if zipped and _DIGITS.sub("0", each) == name]
        inner = folder.removeprefix(zipped)
        is_in_all = self._folders.issuperset(part + inner for part in parts)
        is_about_one = self.zip_of(near) in parts
        pattern = self.pattern(parts) if is_in_all and parts and not is_about_one else ""
        return pattern + inner if pattern else folder

    @functools.cached_property
    def _folders(self) -> frozenset[str]:
        """The folders of images, and those above them."""
        found: set[str] = set()
        for path in self.images:
            folder = posixpath.dirname(path)
            while folder and folder not in found:
                found.add(folder)
                folder = posixpath.dirname(folder)
        return frozenset(found)

    @functools.cached_property
    def _by_name(self) -> Mapping[str, list[str]]:
        found: dict[str, list[str]] = {}
        for path in self.images:
            found.setdefault(normalize_for_match(path, "name"), []).append(path)
        return found


def _list_with_zips(root: str, *, zips: dict[str, None]) -> Iterator[tuple[str, ImageRef]]:
    """Lists a root; a zip in it counts as a folder of its members, and is added to `zips`."""
    for path, file in list_root(root):
        if not (path.lower().endswith(".zip") and file.whole):
            yield path, file
            continue
        try:
            members = list(list_root(file.uri))
        except InputError:
            yield path, file
            continue
        zips[path] = None
        yield from ((f"{path}/{member}", where) for member, where in members)


def _by_folder(item: tuple[str, ImageRef]) -> tuple[str, str]:
    folder, _, name = item[0].rpartition("/")
    return folder, name


def _exact_pattern(paths: Sequence[str], *, start: str, end: str, among: Iterable[str]) -> str:
    """Returns `start*end` if it matches only `paths` among files; empty if it matches others."""
    if len(paths) == 1:
        return paths[0]
    pattern, depth = f"{start}*{end}", start.count("/")
    # A wildcard matches no slash.
    matched = [
        path for path in among if path.count("/") == depth and fnmatch.fnmatchcase(path, pattern)
    ]
    is_plain = glob.escape(start + end) == start + end
    return pattern if is_plain and sorted(paths) == sorted(matched) else ""


def are_most(flags: Iterable[bool]) -> bool:
    """Whether more than half are true: one damaged file does not make another kind of folder."""
    counts = Counter(flags)
    return counts[True] > counts[False]


def _spread(names: Iterable[str]) -> Iterator[str]:
    """Yields some names, from the first one to the last."""
    every = [*names]
    some = min(len(every), _NAMES)
    return (every[place * len(every) // some] for place in range(some))


def _in_several(folders: Iterable[Sequence[str]], *, near: str) -> str | None:
    """Finds the folder above several folders that have the images that annotations name.

    Args:
        folders: For each name the folders that have an image of this name.
        near: The annotations' own path.

    Returns:
        The folder; None where an image in it is not the only one of its name, or is in another
        split than the annotations.
    """
    nearest = {max(each, key=lambda folder: _closeness(folder, near=near)) for each in folders}
    common = common_folder([*nearest])
    inside = f"{common}/" if common else ""
    is_clear = all(
        sum(folder == common or folder.startswith(inside) for folder in each) == 1
        for each in folders
    )
    same_split = all(split_in(folder) == split_in(near) for folder in nearest)
    return common if is_clear and same_split else None


def _closeness(folder: str, *, near: str) -> tuple[bool, bool, int, int, str]:
    is_beside = folder == posixpath.dirname(near)
    nearness = len(posixpath.commonpath([f"/{folder}", f"/{near}"]))
    return split_in(folder) == split_in(near), is_beside, nearness, -len(folder), folder


def split_in(path: str) -> str:
    """Finds the split that a path names, in the file's name or else in the innermost folder."""
    for part in reversed(path.split("/")):
        found = _SPLIT.findall(part)
        if found:
            return str(found[-1]).lower()
    return ""


def without_split(path: str) -> str:
    """Returns the name of a file without splits and digits: alike for all splits of a dataset."""
    return _DIGITS.sub("", _SPLIT.sub("", posixpath.basename(path))).lower()


def by_split(paths: Iterable[str]) -> dict[str, list[str]]:
    """Groups files by the splits that their paths name."""
    found: dict[str, list[str]] = {}
    for path in paths:
        found.setdefault(split_in(path), []).append(path)
    return found


def describe_missing(path: str, *, names: Sequence[str]) -> str:
    """Says that the images that a file names are not there, and why, if the names show it."""
    problem = f"none of the images that {path} names is there"
    if not names:
        return problem
    return "; ".join(filter(None, (f"{problem}: {show_name(names[0])}", foreign_name(names[0]))))
