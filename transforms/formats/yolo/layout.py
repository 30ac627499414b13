"""Finds YOLO's classes, splits and folders, once at launch.

A `data.yaml`, Darknet's `obj.data` or a file of names describes them. The formats:
https://docs.ultralytics.com/datasets/detect/#ultralytics-yolo-format and the section "How to train
(to detect your custom objects)" of Darknet's README. The result holds paths below the root, so that
workers do not have to search again.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from shardbeam.configs.load import MAX_CONFIG_BYTES
from shardbeam.configs.problem import did_you_mean
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import ImageRef
from shardbeam.transforms.formats.annotation_file import text_lines
from shardbeam.transforms.formats.names import is_hidden, is_image_name, normalize_key
from shardbeam.transforms.formats.parsing.root_files import (
    RootFiles,
    SplitList,
    path_parts,
    read_file,
    relative_path,
    require_file,
    resolve_path,
)
from shardbeam.transforms.formats.yolo.data_file import (
    YoloData,
    parse_data_yaml,
    parse_names,
    parse_obj_data,
)
from shardbeam.transforms.storage.base import join_uri

# Which files hold YOLO's labels, and which image a file of labels belongs to.

_IMAGE_FOLDERS = frozenset({"images", "image"})
_LABEL_FOLDERS = frozenset({"labels", "label", "annotations"})
# Replaces either of them in the text that joins images and labels.
LABELS = "labels"
# Text files that are never labels.
_KNOWN_TEXTS = frozenset(
    {
        *("classes.txt", "license.txt", "requirements.txt"),
        # Of Roboflow's export for Keras, which may lie in the same folders.
        *("_annotations.txt", "_classes.txt"),
    }
)


def join_of_image(key: str) -> str:
    """Returns the text that joins an image and its labels: the label file's path without `.txt`.

    As in YOLO, the last folder `images` is replaced by `labels`.

    Args:
        key: The image's path below the root.
    """
    stem = key.rpartition(".")[0] if is_image_name(key) else key
    return _swap(stem, (_IMAGE_FOLDERS, _LABEL_FOLDERS))


def join_of_labels(key: str) -> str:
    """Returns the text that joins a label file and its image (`join_of_image`)."""
    return _swap(key.rpartition(".")[0], (_LABEL_FOLDERS, _IMAGE_FOLDERS))


def _swap(path: str, names: Sequence[frozenset[str]]) -> str:
    *folders, name = path.split("/")
    for known in names:
        for index in reversed(range(len(folders))):
            if folders[index].casefold() in known:
                return "/".join([*folders[:index], LABELS, *folders[index + 1 :], name])
    return path


def labels_of_folder(folder: str) -> str:
    """Returns the folder with the labels of a folder's images."""
    return join_of_image(join_path(folder, "x")).rpartition("/")[0]


def in_label_folder(key: str) -> bool:
    """Whether a path is in a folder of labels."""
    return any(folder.casefold() in _LABEL_FOLDERS for folder in key.split("/")[:-1])


def join_path(*parts: str) -> str:
    """Joins the parts of a path, some of which may be empty."""
    return "/".join(part for part in parts if part)


def is_labels(key: str, *, beside: bool) -> bool:
    """Whether a file is a file of labels.

    Args:
        key: Its path below the root.
        beside: Whether labels are beside their images.
    """
    if is_hidden(key) or not key.lower().endswith(".txt"):
        return False
    name = key.rpartition("/")[2].casefold()
    is_known = name in _KNOWN_TEXTS or name.startswith("readme")
    return (beside or in_label_folder(key)) and not is_known


_DATA_FILES = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml", "obj.data")
_NAMES_FILES = (
    *("classes.txt", "obj.names", "_darknet.labels", "labels/classes.txt", "images/classes.txt"),
)
# Tools that draw boxes, and Roboflow's export for Darknet, write the names beside the labels of a
# split.
_SPLIT_NAMES_FILES = tuple(
    f"{folder.format(split)}/{name}"
    for split in ("train", "val", "valid", "validation", "test")
    for folder in ("{}", "{}/labels", "labels/{}", "images/{}")
    for name in ("classes.txt", "_darknet.labels")
)
# Darknet's files, which may also lie in a folder of their own, such as `cfg` or `data`.
_DARKNET_FILES = ("obj.data", "obj.names")
_ABSOLUTE = re.compile(r"[/\\]|[a-zA-Z]:|[a-zA-Z][a-zA-Z0-9+.-]*://")


# Names of folders of splits, inside `images/` or around it, if no file names the splits.
_SPLIT_FOLDERS = {
    "train": ("train",),
    "val": ("val", "valid", "validation"),
    "test": ("test",),
}

# Images of a list that are looked up; if none is found, the list is refused.
_LIST_SAMPLE = 5
# Folders that an error names.
_SHOWN_FOLDERS = 3


class ImageList(SplitList, frozen=True, kw_only=True):
    """A list of a split's images.

    Attributes:
        relative: How its relative paths are read: the folder below the root that they begin in, and
            the number of their leading parts to leave out.
        absolute: The same for absolute paths, which come from another machine.
    """

    relative: tuple[str, int] = ("", 0)
    absolute: tuple[str, int] = ("", 0)

    def image_path(self, name: str) -> str:
        """Returns the path below the root of an image that the list names."""
        prefix, strip = self.absolute if _ABSOLUTE.match(name) else self.relative
        return join_path(prefix, *_parts(name)[strip:])


class YoloLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The classes, splits and folders of a source. Paths are normalized and relative to the root.

    Attributes:
        names: `(class, name)` of all classes, in order.
        keypoints: Names of the keypoints of each class; empty where objects have none.
        point_values: Number of values of a keypoint: 2, or 3 with its visibility.
        files: URIs of the `data.yaml` or `obj.data`, and of the file of names.
        known: The files below the root that are neither images nor labels.
        splits: The splits, in order.
        folders: `{folder of images: split}`.
        lists: The lists of images.
        beside: Whether labels are beside their images, and not in folders of labels.
        problem: File, place and text of the error if the splits cannot be found; otherwise None.
    """

    names: tuple[tuple[int, str], ...] = ()
    keypoints: tuple[tuple[str, ...], ...] = ()
    point_values: int = 0
    files: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()
    folders: Mapping[str, str] = {}
    lists: tuple[ImageList, ...] = ()
    beside: bool = False
    problem: tuple[str, str, str] | None = None


def find_roots(paths: Iterable[str]) -> list[str]:
    """Returns the top folder and those with a file that names classes, upper ones first."""
    roots = {""}
    for path in paths:
        folder, _, name = path.rpartition("/")
        if name in (*_DATA_FILES, *_NAMES_FILES):
            roots.add(folder)
    return sorted(roots, key=lambda folder: (folder.count("/") + bool(folder), folder))


class LayoutFinder:
    """Finds the classes, splits and folders below a root.

    Args:
        root: The root.
        data: The `data` of the config, if it is set.
        labels_anywhere: Whether labels may be in folders of any name.

    Raises:
        InputError: A file cannot be read or has another form, no file names the classes, or there
            are no labels.
    """

    def __init__(self, root: str, *, data: str | None, labels_anywhere: bool = False) -> None:
        self._root = root
        self._labels_anywhere = labels_anywhere
        self._files = RootFiles(root)
        self._files.check()
        self._data_uri, file = self._data_file(data)
        # {URI: file} of the files that name the classes.
        self._named = {self._data_uri: file}
        folder = resolve_path(self._data_uri.rpartition("/")[0], "")
        # The folders that paths in the file may be relative to.
        self._bases = [folder, root]
        self._described = self._describe(read_file(file, max_bytes=MAX_CONFIG_BYTES))
        if self._described.path:
            self._bases.insert(0, resolve_path(folder, self._described.path.replace("\\", "/")))

    def find(self, splits: Sequence[str] | None) -> YoloLayout:
        """Finds the classes, the wanted splits (None stands for all) and the labels."""
        wanted: Sequence[str] = ()
        folders: list[tuple[str, str]] = []
        lists: list[ImageList] = []
        problem = None
        try:
            wanted, folders, lists = self._find_splits(splits)
        except InputError as error:
            # This matters only if the config leaves the splits to the source.
            problem = (error.uri, error.place, error.problem)
        named = [relative_path(uri, root=self._root) for uri in self._named]
        known = {normalize_key(path) for path in (*named, *(item.path for item in lists)) if path}
        return YoloLayout(
            names=tuple(sorted(self._described.names.items())),
            keypoints=tuple(names for _, names in sorted(self._described.keypoints.items())),
            point_values=self._described.point_values,
            files=tuple(file.uri for file in self._named.values()),
            known=tuple(sorted(known)),
            splits=tuple(wanted),
            folders={normalize_key(path): split for path, split in folders},
            lists=tuple(lists),
            beside=self._labels_beside([path for path, _ in folders], known=known),
            problem=problem,
        )

    def _find_splits(
        self, splits: Sequence[str] | None
    ) -> tuple[Sequence[str], list[tuple[str, str]], list[ImageList]]:
        """Finds the splits, `(folder, split)` of their folders, and their lists."""
        described = self._described.splits
        if not described:
            guessed = dict(self._guess_folders())
            wanted = _wanted(splits, known=guessed, uri=self._root)
            return wanted, [(guessed[split], split) for split in wanted], []
        wanted = _wanted(splits, known=described, uri=self._data_uri)
        folders, lists = [], []
        for split in wanted:
            for value in described[split]:
                if value.lower().endswith(".txt"):
                    path, file = self._find_file(value, key=split)
                    lists.append(self._sample_list(ImageList(split=split, path=path, file=file)))
                else:
                    folders.append((self._find_folder(value, key=split), split))
        _check_apart(folders, root=self._root)
        return wanted, folders, lists

    def _data_file(self, data: str | None) -> tuple[str, ImageRef]:
        if data is not None:
            path = relative_path(data, root=self._root)
            if path is not None and (file := self._files.find(path)) is not None:
                return data, file
            file = require_file(data)
            return file.uri, file
        for path in (*_DATA_FILES, *_NAMES_FILES):
            if (file := self._files.find(path)) is not None:
                if "/" in path:
                    self._names_beside_labels()
                return join_uri(self._root, path), file
        others = {
            path: file
            for path, file in self._files.walk()
            if path.lower().endswith((".yaml", ".yml")) and "/" not in path and not is_hidden(path)
        }
        if len(others) == 1:
            ((path, file),) = others.items()
            return join_uri(self._root, path), file
        if others:
            raise InputError(
                uri=self._root,
                problem=f"{', '.join(sorted(others))} may name the classes; name one with `data`",
            )
        for path, file in (self._names_beside_labels() or self._darknet_files()).items():
            return join_uri(self._root, path), file
        raise InputError(
            uri=self._root,
            problem=f"no file names the classes: looked for {', '.join(_DATA_FILES)} and "
            f"{', '.join(_NAMES_FILES)}, and classes.txt beside the labels of a split; write "
            "classes.txt, one name per line, or name the file with `data`",
        )

    def _names_beside_labels(self) -> dict[str, ImageRef]:
        """Finds the files of names in folders of labels and images.

        Raises:
            InputError: They do not name the same classes.
        """
        paths = [path for path in (*_NAMES_FILES, *_SPLIT_NAMES_FILES) if "/" in path]
        found = {path: file for path in paths if (file := self._files.find(path)) is not None}
        named = [
            parse_names(read_file(file), uri=join_uri(self._root, path))
            for path, file in found.items()
        ]
        for path, names in zip(found, named, strict=True):
            if names != named[0]:
                raise InputError(
                    uri=self._root,
                    problem=f"{next(iter(found))} and {path} name different classes, or name them "
                    "in another order, so that numbers mean different things: make the files "
                    "equal, or name one of them with `data`",
                )
        return found

    def _darknet_files(self) -> dict[str, ImageRef]:
        """Finds Darknet's files one folder down: `obj.data` before `obj.names`.

        Raises:
            InputError: There are several.
        """
        below = {path: file for path, file in self._files.walk() if path.count("/") == 1}
        for name in _DARKNET_FILES:
            found = {path: file for path, file in below.items() if path.endswith(f"/{name}")}
            if len(found) > 1:
                problem = f"{' and '.join(found)} may name the classes; name one with `data`"
                raise InputError(uri=self._root, problem=problem)
            if found:
                return found
        return {}

    def _describe(self, data: bytes) -> YoloData:
        uri = self._data_uri
        if uri.lower().endswith((".yaml", ".yml")):
            return parse_data_yaml(data, uri=uri)
        if not uri.lower().endswith(".data"):
            return YoloData(names=parse_names(data, uri=uri))
        described = parse_obj_data(data, uri=uri)
        path, file = self._find_file(described.names_file, key="names")
        uri = join_uri(self._root, path)
        self._named[uri] = file
        return msgspec.structs.replace(described, names=parse_names(read_file(file), uri=uri))

    def _find_file(self, value: str, *, key: str) -> tuple[str, ImageRef]:
        paths = self._candidates(value, key=key, least=1)
        return next((path, file) for path in paths if (file := self._files.find(path)))

    def _find_folder(self, value: str, *, key: str) -> str:
        return next(filter(self._files.holds, self._candidates(value, key=key, least=2)))

    def _sample_list(self, found: ImageList) -> ImageList:
        """Finds out from a list's first paths of each kind how they must be read."""
        uri = join_uri(self._root, found.path)
        bases = (relative_path(base, root=self._root) for base in self._bases)
        prefixes = [found.path.rpartition("/")[0], *(path for path in bases if path is not None)]
        kinds: dict[str, list[str]] = {}
        for _, name in text_lines(read_file(found.file), uri=uri):
            names = kinds.setdefault("absolute" if _ABSOLUTE.match(name) else "relative", [])
            if len(names) < _LIST_SAMPLE:
                names.append(name)
        read = {
            kind: base
            for kind, names in kinds.items()
            if (base := self._find_base(names, prefixes=prefixes)) is not None
        }
        if kinds and not read:
            first = [name for names in kinds.values() for name in names][:_LIST_SAMPLE]
            raise InputError(
                uri=uri,
                problem=f"none of the first images that it names is below the root: "
                f"{', '.join(map(repr, first))}",
            )
        return msgspec.structs.replace(found, **read)

    def _find_base(
        self, names: Iterable[str], *, prefixes: Iterable[str]
    ) -> tuple[str, int] | None:
        for name in names:
            parts = _parts(name)
            for strip in range(len(parts)):
                for prefix in dict.fromkeys(prefixes):
                    if self._files.find(join_path(prefix, *parts[strip:])) is not None:
                        return prefix, strip
        return None

    def _candidates(self, value: str, *, key: str, least: int) -> Iterator[str]:
        """Yields the paths below the root that a path in the file may mean, the likeliest first.

        Many files were written on another machine or for another working folder, so the path is
        also tried without its leading parts, until only `least` parts are left.

        Raises:
            InputError: The caller has taken none of them.
        """
        value = value.replace("\\", "/")
        parts = _parts(value)
        direct = (relative_path(resolve_path(base, value), root=self._root) for base in self._bases)
        inside = (
            "/".join(parts[start:]) for start in range(max(1, len(parts) - least + 1)) if parts
        )
        tried = dict.fromkeys([*(path for path in direct if path is not None), *inside])
        for path in list(tried):
            for name in _SPLIT_FOLDERS["val"]:
                renamed = [
                    name if part in _SPLIT_FOLDERS["val"] else part for part in path.split("/")
                ]
                tried["/".join(renamed)] = None
        yield from tried
        raise InputError(
            uri=self._data_uri,
            place=key,
            problem=f"{value!r} is not there: tried {', '.join(tried) or 'nothing'} below the "
            "root; correct the path, or name the root with `root` and the existing splits with "
            "`splits`",
        )

    def _guess_folders(self) -> Iterator[tuple[str, str]]:
        for split, names in _SPLIT_FOLDERS.items():
            for path in (path for name in names for path in (f"images/{name}", f"{name}/images")):
                if self._files.holds(path):
                    yield split, path
                    break

    def _labels_beside(self, folders: Sequence[str], *, known: Collection[str]) -> bool:
        """Finds out whether labels are beside their images; lists no more than necessary."""
        likely = dict.fromkeys(labels_of_folder(folder) for folder in folders)
        for folder in (*likely, LABELS):
            if in_label_folder(f"{folder}/x") and any(
                is_labels(path, beside=False) for path, _ in self._files.walk(folder)
            ):
                return False
        # Folders of text files, and folders of images.
        texts: dict[str, None] = {}
        images = set()
        for path, _ in self._files.walk():
            key = normalize_key(path)
            if key not in known and is_labels(key, beside=True):
                if is_labels(key, beside=False):
                    return False
                texts[key.rpartition("/")[0]] = None
            elif is_image_name(key) and not is_hidden(key):
                images.add(key.rpartition("/")[0])
        if images.isdisjoint(texts) and not (texts and self._labels_anywhere):
            elsewhere = ", ".join(folder or "." for folder in sorted(texts)[:_SHOWN_FOLDERS])
            raise InputError(
                uri=self._root,
                problem="no labels found: expected .txt files in labels/ beside images/, or each "
                f"beside its image{f'; text files are in {elsewhere}' if elsewhere else ''}",
            )
        return True


def _parts(path: str) -> list[str]:
    return path_parts(path.replace("\\", "/"))


def _wanted(
    splits: Sequence[str] | None, *, known: Mapping[str, object], uri: str
) -> Sequence[str]:
    for split in splits or ():
        if split not in known:
            raise InputError(
                uri=uri,
                problem=f"there is no split {split!r}{did_you_mean(split, known=known)}; found: "
                f"{', '.join(known) or 'none'}",
            )
    return list(dict.fromkeys(known if splits is None else splits))


def _check_apart(folders: Sequence[tuple[str, str]], *, root: str) -> None:
    for (path, split), (other_path, other) in itertools.permutations(folders, 2):
        if split != other and (not path or f"{other_path}/".startswith(f"{path}/")):
            raise InputError(
                uri=root,
                problem=f"{other} ({other_path or '.'}) lies within {split} ({path or '.'}): an "
                "image can be in one split only; name the splits to write with `splits`",
            )
