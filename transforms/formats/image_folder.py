"""Images below one folder: without labels, labelled by their folders, or by their names."""

from __future__ import annotations

import functools
import posixpath
import re
import shlex
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Annotated

import msgspec

from shardbeam.configs.keys import Location, named
from shardbeam.configs.patterns import compile_pattern
from shardbeam.configs.problem import Problem, did_you_mean
from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.core.labels import NAMED_CLASSES, list_classes
from shardbeam.transforms.core.reasons import Exclusion, Reason
from shardbeam.transforms.core.records import AnnotationEntry, Category, ImageAnnotations
from shardbeam.transforms.core.search import search
from shardbeam.transforms.core.text import counted
from shardbeam.transforms.examples.features import ExtraFeature
from shardbeam.transforms.formats.annotation_file import decode_text, read_annotation_file
from shardbeam.transforms.formats.base import Format, Kind
from shardbeam.transforms.formats.names import is_split_name, listing_exclusion
from shardbeam.transforms.formats.parsing.table_columns import ColumnType, column_feature
from shardbeam.transforms.formats.recognition import (
    FOLDERS,
    IMAGES,
    Folder,
    Recognized,
    by_split,
    split_in,
)
from shardbeam.transforms.formats.sibling_folders import (
    Siblings,
    find_dates,
    find_siblings,
    find_twins,
    folder_tree,
    is_no_class,
)
from shardbeam.transforms.formats.split_folders import SplitFolderFormat, sort_splits
from shardbeam.transforms.storage.archives.open import expand_root, is_archive, list_root
from shardbeam.transforms.storage.base import Storage, join_uri
from shardbeam.transforms.storage.find import storage_for

# A folder per class: `<class>/…/<image>`, inside folders of splits if there are any.

# Files that may annotate the images better than the names of folders do.
_ANNOTATIONS = (".json", ".jsonl", ".xml", ".csv", ".tsv", ".mat", ".tar", ".tfrecord")
# Hugging Face's list of splits says nothing about images.
_NO_ANNOTATIONS = "dataset_dict.json"
# If a larger share of the images is outside of the folders of classes, init asks.
_FEW_STRAYS = 0.1


class ImageFolderFormat(SplitFolderFormat, frozen=True, kw_only=True):
    """A folder per class.

    Attributes:
        classes: A UTF-8 text file with a class name on each line. A class's id is its position,
            from 0, and folders that are not in the file are left out. Without the file, all
            folders are classes, sorted by name.
    """

    SUMMARY = "a folder per class"
    FILES = ("classes",)
    kinds = frozenset({Kind.CLASSIFICATION})
    single_label = True
    needs_classes = True

    classes: (
        Annotated[Location, named("file with one class name per line; other folders are left out")]
        | None
    ) = None

    @classmethod
    def recognize(cls, folder: Folder) -> Recognized | None:
        """Recognizes two or more folders with images, unless other formats use their names.

        If stray images or one folder around all others are in the way, the problem says so.
        """
        if not folder.images:
            return None
        if zips := folder.in_zips():
            return _recognize_zips(folder, zips)
        if inside := folder.only_zip():
            return _recognize_zip(folder, inside)
        if recognized := _recognize_flat_splits(folder):
            return recognized
        made = cls(images=folder.location())
        problem = ""
        try:
            resolved = made.resolve()
            assert isinstance(resolved, ImageFolderFormat)
            made = resolved
        except (InputError, Problem) as error:
            problem = error.problem if isinstance(error, InputError) else error.text
        below = [made.below_split(path) for path in folder.images]
        siblings = find_siblings(below)
        if siblings is None:
            return None
        if siblings.parent:
            return _recognize_wrapped(folder, siblings)
        strays = [path for path in folder.images if "/" not in made.below_split(path)]
        notes = [*_describe_twins(folder)]
        what = f"{len(siblings.classes):,} folders of classes"
        # A few strays do not make it another kind of folder: each is a reject.
        if strays and (problem or len(strays) > _most_strays(folder.images)):
            return Recognized(
                what=what,
                problem=f"{counted(len(strays), 'image')} {'lies' if len(strays) == 1 else 'lie'} "
                f"outside of these, such as {strays[0]}: move each image into the folder of its "
                "class, or elsewhere",
                rank=FOLDERS,
            )
        if others := {*siblings.others, *_find_no_classes(below)}:
            problem = _ask(folder, classes=siblings.classes, others=sorted(others))
        elif not problem and (annotations := _may_say_more(folder)):
            problem = f"{annotations[0]} may say more than the names of the folders"
        return Recognized(
            what=what,
            problem=problem,
            sources={"": {"images": folder.uri("")}},
            notes=notes,
            rank=FOLDERS,
            asks=bool(others),
        )

    @functools.cached_property
    def _ids(self) -> Mapping[str, int] | None:
        if self.classes is None:
            return None
        return read_class_ids(self.classes, storage=storage_for(self.classes))

    def resolve(self) -> Format:
        """Finds the splits, and reads the file of classes to find its errors early.

        Raises:
            InputError: The root cannot be listed, or holds images where folders of classes are
                expected; the file of classes cannot be read, names no class, names one twice, or
                names none that has a folder.
        """
        resolved = super().resolve()
        assert isinstance(resolved, ImageFolderFormat)
        ids = resolved._ids or {}
        if ids and len(resolved.absent_classes()) == len(ids):
            raise InputError(uri=self.classes or "", problem=resolved._describe_absent())
        return resolved

    def absent_classes(self) -> Sequence[str]:
        """Names the classes of the file that have no folder."""
        return [name for name in self._ids or () if name not in self._class_folders]

    def warnings(self) -> Iterator[str]:
        """Warns of the classes that have no folder, and names folders with similar names."""
        if self.absent_classes():
            yield f"{self.classes}: {self._describe_absent()}"

    def _describe_absent(self) -> str:
        absent, ids = self.absent_classes(), self._ids or {}
        others = self._class_folders - ids.keys()
        hints = (did_you_mean(name, known=others).removeprefix("; ") for name in absent)
        named = [
            f"{name!r} ({hint})" if hint else repr(name)
            for name, hint in zip(absent[:NAMED_CLASSES], hints, strict=False)
        ]
        return (
            f"{len(absent):,} of {len(ids):,} classes have no folder: "
            f"{list_classes(named, number=len(absent))}"
        )

    @functools.cached_property
    def _class_folders(self) -> Set[str]:
        """The folders that may be classes; only names are listed."""
        folders: set[str] = set()
        for uri in expand_root(self.images):
            if is_archive(uri):
                below = (self.below_split(path).partition("/") for path, _ in list_root(uri))
                folders.update(folder for folder, slash, _ in below if slash)
                continue
            for root in [join_uri(uri, split) for split in self._splits] or [uri]:
                names = storage_for(root).names(root)
                folders.update(name[:-1] for name in names if name.endswith("/"))
        return {unicodedata.normalize("NFC", folder) for folder in folders}

    def read_annotations(
        self, *, storage: Storage, file_index: int
    ) -> Iterator[AnnotationEntry | Category]:
        """Declares the classes of the file; a class's id is its position."""
        for name, class_id in (self._ids or {}).items():
            yield Category(name=name, source_id=class_id, origin=self.classes or "")

    def annotate_listed(self, key: str) -> ImageAnnotations | Exclusion:
        """Reads an image's class off its folder.

        Raises:
            RejectedError: The image is in no folder.
        """
        exclusion = listing_exclusion(key)
        if exclusion is not None:
            return exclusion
        folder, slash, _ = self.below_split(key).partition("/")
        # Names in an archive may begin with a slash.
        if not folder or not slash:
            raise RejectedError(
                Reason.NO_CLASS_FOLDER, "the image is in no class folder: <class>/<image> expected"
            )
        if self._ids is not None and folder not in self._ids:
            return Exclusion.CLASS_NOT_LISTED
        return ImageAnnotations(image_id=key, labels=(folder,))


def read_class_ids(uri: str, *, storage: Storage) -> dict[str, int]:
    """Reads a file of classes: one name on each line, in the order of their ids.

    Blank lines and spaces around names are ignored.

    Args:
        uri: The file.
        storage: Reads it.

    Returns:
        `{name: id}`, ids counted from 0.

    Raises:
        InputError: The file cannot be read, is not UTF-8, holds no name, a name twice, or a name
            that no folder can have.
    """
    text = decode_text(read_annotation_file(uri, storage=storage), uri=uri)
    # {name: its line}
    lines: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        # Keys are in NFC, too.
        name = unicodedata.normalize("NFC", line.strip())
        if not name:
            continue
        problem = ""
        if name in lines:
            problem = f"{name!r} is on line {lines[name]} already"
        elif "/" in name or "\0" in name:
            problem = f"expected the name of a class folder, got {name!r}"
        if problem:
            raise InputError(uri=uri, place=f"line {number}", problem=problem)
        lines[name] = number
    if not lines:
        raise InputError(uri=uri, problem="the file names no classes")
    return {name: class_id for class_id, name in enumerate(lines)}


def _most_strays(images: Sequence[str]) -> float:
    """Returns how many images may lie outside of folders of classes before `init` asks."""
    return max(1, _FEW_STRAYS * len(images))


def _find_no_classes(paths: Iterable[str]) -> Set[str]:
    """Returns the names of folders, at any depth, that are splits or folders of files."""
    tree = folder_tree(paths)
    return {name for names in tree.values() for name in names if is_no_class(name)}


def _ask(folder: Folder, *, classes: Sequence[str], others: Sequence[str]) -> str:
    named = shlex.quote(folder.root)
    return (
        f"are {list_classes(classes)} classes? There are folders named {list_classes(others)}, "
        f"too; `shardbeam init {named} --format image-folder` reads folders of classes, "
        f"`shardbeam init {named} --format images` reads pictures without labels"
    )


def _recognize_flat_splits(folder: Folder) -> Recognized | None:
    """Recognizes splits with folders of classes, beside splits without: these have no labels."""
    tops: dict[str, list[str]] = {}
    for path in folder.images:
        top, _, inner = path.partition("/")
        tops.setdefault(top, []).append(inner)
    flat = [top for top, paths in tops.items() if not any("/" in path for path in paths)]
    classed = {top: paths for top, paths in tops.items() if top not in flat}
    below = [path for paths in classed.values() for path in paths]
    siblings = find_siblings(below)
    if (
        not flat
        or not all(map(is_split_name, tops))
        or siblings is None
        or siblings.parent
        or _find_no_classes(below)
        or sum("/" not in path for path in below) > _most_strays(below)
        or _may_say_more(folder)
    ):
        return None
    sources: dict[str, Mapping[str, object]] = {}
    for split in sort_splits(tops):
        images = {"images": folder.uri(split)}
        sources[split] = {"format": "images", **images} if split in flat else images
    return Recognized(
        what=f"{len(siblings.classes):,} folders of classes",
        sources=sources,
        notes=[
            f"{split}/ has no folders of classes: its images are written without labels"
            for split in sort_splits(flat)
        ],
        rank=FOLDERS,
    )


def _describe_twins(folder: Folder) -> Iterator[str]:
    """Names two folders of classes with the same pictures, which may be views of one thing."""
    if twins := find_twins(folder.images):
        one, other = twins.pairs[0]
        yield (
            f"{twins.first} and {twins.second} are read as classes, and have the same names, such "
            f"as {one} and {other}; if these belong together (stereo, depth, thumbnails), name one "
            "of the folders"
        )


def _may_say_more(folder: Folder) -> list[str]:
    """Returns files that may hold annotations."""
    files = folder.named(*_ANNOTATIONS)
    return [path for path in files if posixpath.basename(path) != _NO_ANNOTATIONS]


def _recognize_zip(folder: Folder, path: str) -> Recognized | None:
    """Recognizes folders of classes in the only zip of a folder."""
    recognized = ImageFolderFormat.recognize(Folder(folder.uri(path)))
    if recognized is not None and not recognized.problem:
        beside = [it for it in _may_say_more(folder) if folder.zip_of(it) != path]
        if beside:
            problem = f"{beside[0]} may say more than the names of the folders"
            return msgspec.structs.replace(recognized, problem=problem)
    return recognized


def _recognize_zips(folder: Folder, zips: Mapping[str, Sequence[str]]) -> Recognized | None:
    """Recognizes folders of classes in several zips, whose names may name splits."""
    sources: dict[str, Mapping[str, object]] = {}
    classes: set[str] = set()
    for split, names in by_split(zips).items():
        below = [path.split("/")[:-1] for name in names for path in zips[name]]
        root = [folder.pattern(names)]
        while len(tops := {"".join(parts[:1]) for parts in below}) == 1 and all(
            len(parts) > 1 for parts in below
        ):
            root += tops
            below = [parts[1:] for parts in below]
        if not root[0] or "" in tops:
            return None
        classes |= tops
        sources[split] = {"images": folder.uri("/".join(root))}
    if len(classes) < 2 or any(map(is_no_class, classes)):
        return None
    what = f"{len(zips):,} zips with {len(classes):,} folders of classes"
    problem = ""
    if others := _may_say_more(folder):
        problem = f"{others[0]} may say more than the names of the folders"
    return Recognized(what=what, problem=problem, sources=sources, rank=FOLDERS)


def _recognize_wrapped(folder: Folder, siblings: Siblings) -> Recognized | None:
    """Recognizes folders of classes inside one folder or archive; the problem names that."""
    inside = f"{siblings.parent}/"
    outside = [path for path in folder.images if not path.startswith(inside)]
    if len(outside) > _most_strays(folder.images) or any("/" in path for path in outside):
        return None
    if any(split_in(part) == part.casefold() for part in siblings.parent.split("/")):
        return None
    return Recognized(
        what=f"{len(siblings.classes):,} folders of images",
        problem=f"all are in {siblings.parent}: "
        f"`shardbeam init {folder.uri(siblings.parent)}` looks there",
        rank=FOLDERS,
    )


# Pictures without labels, in any folders.

_DESCRIPTION = re.compile(r"(.*/)?(readme|licen[cs]e)[^/]*", re.IGNORECASE | re.DOTALL)


class ImagesFormat(SplitFolderFormat, frozen=True, kw_only=True):
    """Pictures without labels."""

    SUMMARY = "pictures without labels, in any folders"
    kinds = frozenset[Kind]()

    @classmethod
    def recognize(cls, folder: Folder) -> Recognized | None:
        """Recognizes images if there is no other file, which might annotate them."""
        zips = {folder.zip_of(path) for path in folder.images}
        others = folder.files.keys() - {*folder.images}
        if len(zips) != 1 or not all(map(_DESCRIPTION.fullmatch, others)):
            return None
        problem = ""
        note = (
            "nothing labels them; if they have classes, put the images of each class into a "
            "folder, at least two"
        )
        if siblings := find_siblings(folder.images):
            above = siblings.parent
            while is_split_name(posixpath.basename(above)):
                # Beside it may lie other splits.
                above = posixpath.dirname(above)
            problem = (
                f"are {list_classes(siblings.classes)} (in {folder.uri(siblings.parent)}) classes? "
                f"`shardbeam init {shlex.quote(folder.uri(above))} --format image-folder` reads "
                "these, "
                f"`shardbeam init {shlex.quote(folder.root)} --format images` reads pictures "
                "without labels"
            )
        elif date := find_dates(folder.images):
            note = f"folders such as {date} are dates, and are not read as classes"
        return Recognized(
            what="pictures without labels",
            problem=problem,
            sources={"": {"images": folder.uri(zips.pop())}},
            notes=[note],
            rank=IMAGES,
        )


# The label in the file's name, found by a regular expression.

_LABEL = "label"
# The text between the last `_` of the name and its extension.
_AFTER_LAST_UNDERSCORE = r"_(?P<label>[^_/]+)\.[^._/]+$"


class FilenameLabelFormat(SplitFolderFormat, frozen=True, kw_only=True):
    """The label in the file's name.

    Attributes:
        pattern: A regular expression (Python's `re`) that is searched in the image's key. Its
            group `label` is the class. Each other named group becomes a text feature of that name,
            which is empty where the group takes no part in the match. By default the label is the
            text between the last `_` of the name and its extension.
    """

    SUMMARY = "the label in the file's name, found by a regular expression"
    single_label = True

    pattern: Annotated[
        str, named("regular expression whose group `label` is the label", metavar="REGEX")
    ] = _AFTER_LAST_UNDERSCORE

    def __post_init__(self) -> None:
        try:
            groups = self._all_groups
        except ValueError as error:
            raise Problem(("pattern",), f"expected a regular expression: {error}") from error
        if not groups:
            raise Problem(
                ("pattern",),
                "expected a named group, such as (?P<label>[a-z]+): its text is the class",
            )

    @functools.cached_property
    def _all_groups(self) -> Sequence[str]:
        return list(compile_pattern(self.pattern).groupindex)

    @property
    def kinds(self) -> frozenset[Kind]:
        """Labels, if the pattern has the group `label`."""
        return frozenset({Kind.CLASSIFICATION} if _LABEL in self._all_groups else ())

    def extra_features(self) -> Sequence[ExtraFeature]:
        """Declares a text for each other named group."""
        text = ColumnType("string")
        return [
            column_feature(name, text, per_object=False)
            for name in self._all_groups
            if name != _LABEL
        ]

    def annotate_listed(self, key: str) -> ImageAnnotations | Exclusion:
        """Reads an image's class off its name.

        Raises:
            RejectedError: The pattern finds no label in the name.
            InputError: The search takes too long.
        """
        exclusion = listing_exclusion(key)
        if exclusion is not None:
            return exclusion
        match = search(self.pattern, key, setting="pattern")
        groups = {} if match is None else match.groupdict(default="")
        label = groups.pop(_LABEL, None)
        if match is None or label == "":
            raise RejectedError(
                Reason.NAME_NOT_MATCHED,
                f"the pattern ({self.pattern}) finds no "
                f"{_LABEL if _LABEL in self._all_groups else 'match'} in the name",
            )
        return ImageAnnotations(
            image_id=key,
            labels=() if label is None else (label,),
            values={name: (text,) for name, text in groups.items()},
        )
