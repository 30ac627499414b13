"""Which folders may be classes by their names, and which are splits, kinds of files, or dates."""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from shardbeam.transforms.formats.names import FILE_FOLDERS, without_extension
from shardbeam.transforms.formats.recognition import split_in

# Two folders hold the same pictures if at least this share of the names in each are in both.
_SAME_NAMES = 0.9
_YEAR = r"(19[0-9]{2}|20[0-9]{2}|2100)"
_MONTH = r"(0?[1-9]|1[0-2])"
_DAY = r"(0?[1-9]|[12][0-9]|3[01])"
# `03`, `03-15`, `0315`, `03_March`, `March`: a month or a day below a year.
_BELOW_YEAR = re.compile(
    rf"({_MONTH}|{_DAY})([ ._-]*[a-z]{{3,9}}\.?)?|{_MONTH}[._-]{_DAY}|(0[1-9]|1[0-2])[0-3][0-9]"
    r"|(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*",
    re.ASCII | re.IGNORECASE,
)
_WHOLE_DATE = re.compile(
    rf"(?<![^\W_])({_YEAR}([._-]?){_MONTH}\3{_DAY}|{_DAY}([._-]){_MONTH}\7{_YEAR})"
    r"(?![^\W_])",
    re.ASCII,
)


class Siblings(NamedTuple):
    """Folders with images in one folder, of which at least two may be classes.

    Attributes:
        parent: The folder that holds them; empty for the root.
        classes: Those that may be classes, by name.
        others: The folders beside them that are named like splits, kinds of files, or dates.
    """

    parent: str
    classes: Sequence[str]
    others: Sequence[str] = ()


def is_no_class(folder: str) -> bool:
    """Whether a folder is named like a split or a folder of files; an empty name is the root's."""
    name = folder.casefold()
    return not name or name in FILE_FOLDERS or name == split_in(name)


def is_date(folder: str) -> bool:
    """Whether a folder's name holds a whole date, such as `2024-01-31` or `20240131 walk`."""
    return _WHOLE_DATE.search(folder) is not None


def find_siblings(paths: Iterable[str]) -> Siblings | None:
    """Finds the uppermost folder with two or more folders that may be classes.

    Args:
        paths: The images.

    Returns:
        The folders; None where no folder has two of them. A year with months or days below it, and
        what these hold, is no class.
    """
    below = folder_tree(paths)
    parents = [""]
    for parent in parents:
        inner = {name: posixpath.join(parent, name) for name in sorted(below.get(parent, ()))}
        years = {name for name, path in inner.items() if _is_year(name, below.get(path, ()))}
        others = {name for name in inner if is_no_class(name) or is_date(name)} | years
        classes = [name for name in inner if name not in others]
        if len(classes) > 1:
            return Siblings(parent, classes, sorted(others))
        parents += [path for name, path in inner.items() if name not in years]
    return None


def find_dates(paths: Iterable[str]) -> str:
    """Returns the first folder that is a date, as `2024/01` or `2024-01-31`; empty if none is."""
    below = folder_tree(paths)
    for parent in sorted(below):
        for name in sorted(below[parent]):
            path = posixpath.join(parent, name)
            if is_date(name):
                return path
            if _is_year(name, below.get(path, ())):
                return posixpath.join(path, min(below[path]))
    return ""


def _is_year(folder: str, below: Collection[str]) -> bool:
    return (
        re.fullmatch(_YEAR, folder, re.ASCII) is not None
        and bool(below)
        and all(map(_BELOW_YEAR.fullmatch, below))
    )


def folder_tree(paths: Iterable[str]) -> Mapping[str, Set[str]]:
    """Returns `{folder: the names of the folders in it}` of the folders with images."""
    below: defaultdict[str, set[str]] = defaultdict(set)
    for folder in {posixpath.dirname(path) for path in paths}:
        while folder:
            parent, name = posixpath.split(folder)
            below[parent].add(name)
            folder = parent
    return below


class Twins(NamedTuple):
    """Two folders, and nothing else, whose pictures have the same names.

    Attributes:
        first: The first folder, below `parent`.
        second: The second one.
        roots: `{split: the folder that holds both}`; the split is empty if no folder names one.
        pairs: `(picture in the first folder, picture in the second)`, by path.
    """

    first: str
    second: str
    roots: Mapping[str, str]
    pairs: Sequence[tuple[str, str]]


def find_twins(paths: Sequence[str]) -> Twins | None:
    """Finds two folders with the same names in them, which may lie in each folder of a split."""
    holding = {f"/{posixpath.dirname(path)}" for path in paths}
    parent = posixpath.commonpath([*holding]).strip("/")
    start = f"{parent}/" if parent else ""
    tops = {path.strip("/").removeprefix(start).partition("/")[0] for path in holding}
    in_splits = all(split_in(top) == top.casefold() for top in tops)
    if not in_splits and len(tops) != 2:
        return None
    # {(folder of the split, name of the folder): {name without extension: image}}
    named: defaultdict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for path in paths:
        inside = path.removeprefix(start)
        split, _, rest = inside.partition("/") if in_splits else ("", "", inside)
        folder, slash, name = rest.partition("/")
        if not slash:
            return None
        named[split, folder][without_extension(name)] = posixpath.join(parent, split, rest)
    folders = sorted({folder for _, folder in named})
    splits = sorted({split for split, _ in named})
    if len(folders) != 2 or len(named) != 2 * len(splits):
        return None
    pairs: list[tuple[str, str]] = []
    for split in splits:
        one, other = (named[split, folder] for folder in folders)
        common = sorted(one.keys() & other.keys())
        if len(common) < _SAME_NAMES * max(len(one), len(other)):
            return None
        pairs += [(one[name], other[name]) for name in common]
    roots = {split: posixpath.join(parent, split) for split in splits}
    return Twins(folders[0], folders[1], roots, pairs)
