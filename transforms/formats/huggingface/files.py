"""Finds the files of a dataset of the Hugging Face Hub, their splits, and the types of columns.

The forms: https://huggingface.co/docs/hub/datasets-manual-configuration (the YAML of README.md),
https://huggingface.co/docs/hub/datasets-file-names-and-splits, and `Dataset.save_to_disk`.
"""

from __future__ import annotations

import fnmatch
import glob
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.configs.problem import Problem
from shardbeam.configs.yaml_text import YamlError, parse_yaml
from shardbeam.transforms.core.errors import DECODING_ERRORS, InputError, reading
from shardbeam.transforms.formats.annotation_file import decode_text
from shardbeam.transforms.formats.names import is_hidden, is_image_name
from shardbeam.transforms.formats.numbered_files import check_complete
from shardbeam.transforms.formats.parsing.root_files import common_folder
from shardbeam.transforms.formats.recognition import split_in
from shardbeam.transforms.formats.split_folders import sort_splits
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.archives.open import is_archive_name
from shardbeam.transforms.storage.base import join_uri, nearest_path
from shardbeam.transforms.storage.find import expand_pattern, storage_for
from shardbeam.transforms.storage.listed_files import read_listed

_TABLES = {".csv": "csv", ".jsonl": "jsonl", ".parquet": "parquet_table"}
_METADATA = re.compile(r"(?:.*/)?metadata(\.csv|\.jsonl|\.parquet)\Z")
_README = re.compile(r"---[ \t]*\r?\n(.*?\n)---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
# `data/train-00000-of-00001-<hash>.parquet`, and the Hub's own `default/train/0000.parquet`.
_NUMBERED = re.compile(r"(?:.*/)?(\w[\w.]*)-\d{5}-of-\d{5}(?:-\w+)?\.(?:parquet|arrow)\Z")
_CONVERTED = re.compile(r"(?:([^/]+)/)?(?:partial-)?(\w[\w.]*)/\d{4}\.parquet\Z")
_PACKED = (
    "an archive, which this format does not list: unpack it, or name the .parquet, .arrow or "
    "metadata files in it"
)

_json_decoder = JsonDecoder(dict[str, Any])


class DataFile(msgspec.Struct, frozen=True):
    """A file with a row for each image.

    Attributes:
        uri: The file.
        path: Its path below the folder of the data, with which the keys of its images begin.
        split: Its split; empty if it has none.
        kind: Parquet or Arrow with images in its rows, or a table that names image files.
        named: Whether the user has named the file itself, and not a folder or a pattern.
    """

    uri: str
    path: str
    split: str
    kind: Literal["parquet", "arrow", "csv", "jsonl", "parquet_table"]
    named: bool = False

    @property
    def names_images(self) -> bool:
        """Whether it is a table that names image files (`imagefolder`)."""
        return self.kind not in ("parquet", "arrow")


class Found(NamedTuple):
    """The files of a dataset.

    Attributes:
        files: The files, in order of their splits.
        classes: `{column: names of its classes}`, as the files beside them say.
        images: The columns of images, as they say.
        folder: The folder of the data.
        map_classes: `{value: class}` of maps, as `id2label.json` says.
        rows: `{split: number of its rows}`, as the YAML of a README.md says.
    """

    files: Sequence[DataFile]
    classes: Mapping[str, Sequence[str]]
    images: Sequence[str]
    folder: str
    map_classes: Mapping[str, str] = {}
    rows: Mapping[str, int] = {}


class _Described:
    """What a description of features says: `{column: names}`, and which columns are images."""

    def __init__(self) -> None:
        self.classes: dict[str, Sequence[str]] = {}
        self.images: dict[str, None] = {}

    def add(self, node: Any, path: str, *, in_list: bool = False) -> None:  # noqa: ANN401
        """Adds a type as `Features.to_dict` writes it."""
        if isinstance(node, list):
            node = {"_type": "List", "feature": node[0] if node else None}
        if not isinstance(node, dict):
            return
        kind = node.get("_type")
        if kind == "Image" and not in_list:
            self.images[path] = None
        elif kind == "ClassLabel":
            self._add_classes(node.get("names"), path)
        elif isinstance(kind, str):
            self.add(node.get("feature"), path, in_list=True)
        else:
            for name, child in node.items():
                self.add(child, f"{path}.{name}", in_list=in_list)

    def add_yaml(self, node: Any, path: str, *, in_list: bool = False) -> None:  # noqa: ANN401
        """Adds a type as the YAML of a README.md has it."""
        if node == "image" and not in_list:
            self.images[path] = None
        elif isinstance(node, list):
            for each in node:
                if isinstance(each, dict) and isinstance(each.get("name"), str):
                    name = f"{path}.{each['name']}" if path else each["name"]
                    self.add_yaml(
                        {key: it for key, it in each.items() if key != "name"},
                        name,
                        in_list=in_list,
                    )
        elif isinstance(node, dict):
            if isinstance(known := node.get("class_label"), dict):
                names = known.get("names")
                self._add_classes([*names.values()] if isinstance(names, dict) else names, path)
            for key in ("dtype", "struct", "list", "sequence"):
                self.add_yaml(node.get(key), path, in_list=in_list or key in ("list", "sequence"))

    def _add_classes(self, names: object, path: str) -> None:
        if isinstance(names, list) and names:
            self.classes[path] = tuple(map(str, names))


def describe_features(features: object) -> tuple[dict[str, Sequence[str]], list[str]]:
    """Returns `{column: names of its classes}` and the columns of images.

    A column in a struct is `objects.category`; lists do not count.

    Args:
        features: `{column: type}` as `Features.to_dict` writes it, or a list as in a README.md.
    """
    found = _Described()
    if isinstance(features, list):
        found.add_yaml(features, "")
    elif isinstance(features, dict):
        for name, node in features.items():
            found.add(node, name)
    return found.classes, [*found.images]


def find_files(data: Sequence[str], *, config_name: str | None) -> Found:
    """Finds the files of a dataset.

    Args:
        data: Folders, files or patterns of files.
        config_name: The config to read, if there are several.

    Raises:
        InputError: There is none, a README.md names files that are not there, or a folder lacks one
            of a set of numbered files.
        Problem: There are several configs, and none is chosen.
    """
    files: list[DataFile] = []
    classes: dict[str, Sequence[str]] = {}
    images: list[str] = []
    map_classes: dict[str, str] = {}
    rows: dict[str, int] = {}
    matched = [(uri, pattern) for pattern in data for uri in expand_pattern(pattern)]
    folders = [uri if _is_folder(uri) else posixpath.dirname(uri) for uri, _ in matched]
    common = common_folder(folders)
    for (uri, pattern), folder in zip(matched, folders, strict=True):
        prefix = f"{folder}/".removeprefix(f"{common}/")
        if folder != uri:
            path = f"{prefix}{posixpath.basename(uri)}"
            file = _data_file(uri, path, split=_split_of(path))
            files.append(msgspec.structs.replace(file, named=uri == pattern))
            continue
        reader = _FolderReader(folder, prefix=prefix, config_name=config_name)
        files += reader.find()
        classes |= reader.classes
        images += reader.images
        map_classes |= reader.map_classes()
        rows |= reader.rows
    order = sort_splits(dict.fromkeys(file.split for file in files))
    files.sort(key=lambda file: (order.index(file.split), file.path))
    # Files of a split that are named beside a folder are not in its README.md.
    rows = rows if len(matched) == 1 else {}
    return Found(files, classes, images, common, map_classes, rows)


def _is_folder(uri: str) -> bool:
    storage = storage_for(uri)
    if storage.stat(uri) is not None:
        return False
    if next(storage.names(uri), None) is None:
        problem = f"there is no such file or folder{nearest_path(uri, storage=storage)}"
        raise InputError(uri=uri, problem=problem)
    return True


def _data_file(uri: str, path: str, *, split: str, has_images: bool = False) -> DataFile:
    extension = posixpath.splitext(path)[1].lower()
    named = _METADATA.fullmatch(path)
    if extension == ".arrow":
        return DataFile(uri, path, split, "arrow")
    if extension == ".parquet" and not (named and has_images):
        return DataFile(uri, path, split, "parquet")
    kind: Any = _TABLES.get(extension)
    if kind is None:
        problem = "expected .parquet, .arrow, or an imagefolder's metadata.csv or metadata.jsonl"
        raise InputError(uri=uri, problem=_PACKED if is_archive_name(uri) else problem)
    return DataFile(uri, path, split, kind)


def is_metadata(path: str) -> bool:
    """Whether a file is named like the table of an `imagefolder`."""
    return _METADATA.fullmatch(path) is not None


def _split_of(path: str) -> str:
    for pattern in (_NUMBERED, _CONVERTED):
        if match := pattern.fullmatch(path):
            return str(match[match.lastindex or 1])
    return split_in(path)


class _FolderReader:
    """Finds the files of a folder.

    Attributes:
        classes: As in `Found`.
        images: As in `Found`.
        rows: As in `Found`.
    """

    def __init__(self, folder: str, *, prefix: str, config_name: str | None) -> None:
        self.classes: dict[str, Sequence[str]] = {}
        self.images: list[str] = []
        self.rows: dict[str, int] = {}
        self._folder = folder
        self._prefix = prefix
        self._config_name = config_name
        with reading(folder):
            listed = storage_for(folder).list(folder)
            self._paths = sorted(it.path for it in listed if not is_hidden(it.path))

    def find(self) -> list[DataFile]:
        """Finds the files, and what the files beside them say about their columns."""
        if states := [it for it in self._paths if posixpath.basename(it) == "state.json"]:
            saved = [(path, split) for state in states for path, split in self._saved(state)]
            self._check_complete([path for path, _ in saved])
            return [self._file(path, split) for path, split in saved]
        tables = [path for path in self._paths if _METADATA.fullmatch(path)]
        rows = [path for path in self._paths if path.lower().endswith((".parquet", ".arrow"))]
        if "manifest.json" in self._paths:
            # A dataset of Shardbeam, which has other Parquet files, too.
            rows = [path for path in rows if "/" not in path and path != "duplicates.parquet"]
        if self._has_image_files() and tables:
            rows = tables
        if not rows:
            if packed := next(filter(is_archive_name, self._paths), ""):
                raise InputError(uri=join_uri(self._folder, packed), problem=_PACKED)
            held = f"it holds {self._paths[0]!r}" if self._paths else "it is empty"
            raise InputError(
                uri=self._folder,
                problem=f"no .parquet, no .arrow and no metadata.csv or .jsonl here, {held}; class "
                "folders of images are read by image-folder",
            )
        return [self._file(path, split) for path, split in self._splits(rows)]

    def map_classes(self) -> Mapping[str, str]:
        """Returns `{value: class}` of maps, as `id2label.json` says."""
        if "id2label.json" not in self._paths:
            return {}
        return {number: str(name) for number, name in self._json("id2label.json").items()}

    def _has_image_files(self) -> bool:
        return any(map(is_image_name, self._paths))

    def _file(self, path: str, split: str) -> DataFile:
        uri = join_uri(self._folder, path)
        has_images = self._has_image_files()
        return _data_file(uri, f"{self._prefix}{path}", split=split, has_images=has_images)

    def _check_complete(self, paths: Sequence[str], *, pattern: str = "**") -> None:
        """Checks that no numbered file is missing that a pattern of a README.md matches."""
        check_complete(
            paths,
            folder=self._folder,
            flag="--data",
            is_wanted=lambda path: bool(_match(pattern, [path])),
        )

    def _saved(self, state: str) -> Iterator[tuple[str, str]]:
        """Yields `(path, split)` of the files that `save_to_disk` has written for a split."""
        folder = posixpath.dirname(state)
        info = posixpath.join(folder, "dataset_info.json")
        if info in self._paths:
            self._describe(self._json(info).get("features"))
        listed = self._json(state).get("_data_files")
        for each in listed if isinstance(listed, list) else ():
            name = each.get("filename") if isinstance(each, dict) else None
            path = posixpath.join(folder, name) if isinstance(name, str) else ""
            if path not in self._paths:
                raise InputError(
                    uri=join_uri(self._folder, state),
                    problem=f"names {name!r}, which is not there; copy the whole folder again",
                )
            yield path, posixpath.basename(folder)

    def _json(self, path: str) -> dict[str, Any]:
        uri = join_uri(self._folder, path)
        try:
            return _json_decoder.decode(read_listed(uri, max_bytes=limits.METADATA_BYTES))
        except DECODING_ERRORS as error:
            raise InputError(uri=uri, problem=f"expected a JSON object: {error}") from error

    def _describe(self, features: object) -> None:
        classes, images = describe_features(features)
        self.classes |= classes
        self.images += images

    def _splits(self, rows: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yields `(path, split)` of the files of the chosen config."""
        readme = self._readme()
        configs = {
            str(each.get("config_name", "default")): each for each in _dicts(readme.get("configs"))
        }
        infos = {
            str(each.get("config_name", "default")): each
            for each in _dicts(readme.get("dataset_info"))
        }
        by_folder: dict[str, None] = {}
        if not configs:
            converted = [_CONVERTED.fullmatch(path) for path in rows]
            if all(converted):
                by_folder = {str(each[1] or ""): None for each in converted if each}
        first = next((name for name, each in configs.items() if each.get("default") is True), "")
        name = self._choose([*configs] or [*by_folder] or [*infos], first=first)
        info = infos.get(name, next(iter(infos.values()), {}))
        self._describe(info.get("features"))
        if name in infos:
            counts = {
                str(it.get("name")): it.get("num_examples") for it in _dicts(info.get("splits"))
            }
            self.rows = {split: rows for split, rows in counts.items() if isinstance(rows, int)}
        if not self.classes and "dataset_infos.json" in self._paths:
            known = self._json("dataset_infos.json")
            about = known.get(name, next(iter(known.values()), None))
            self._describe(about.get("features") if isinstance(about, dict) else None)
        chosen = configs.get(name, {})
        if "data_files" in chosen:
            yield from self._matching(rows, chosen, name=name)
            return
        below = f"{str(chosen.get('data_dir', '')).strip('./')}/".lstrip("/")
        if len(by_folder) > 1:
            below = f"{name}/"
        rows = [path for path in rows if path.startswith(below)]
        self._check_complete(rows)
        yield from ((path, _split_of(path)) for path in rows)

    def _choose(self, names: Sequence[str], *, first: str) -> str:
        if self._config_name is not None:
            if self._config_name not in names:
                there = ", ".join(filter(None, names)) or "none"
                problem = f"there is no config {self._config_name!r} in {self._folder}; there are: "
                raise Problem(("config_name",), problem + there)
            return self._config_name
        if first or len(names) < 2 or "default" in names:
            return first or ("default" if "default" in names else next(iter(names), ""))
        raise Problem(
            ("config_name",),
            f"missing: {self._folder} holds the configs {', '.join(names)}; name one of them "
            f"(--config-name {names[0]})",
        )

    def _matching(
        self, rows: Sequence[str], chosen: Mapping[str, Any], *, name: str
    ) -> Iterator[tuple[str, str]]:
        """Yields the files that the `data_files` of a config name, with their splits."""
        listed = chosen["data_files"]
        entries = [*_dicts(listed)] or [{"split": "train", "path": listed}]
        base = str(chosen.get("data_dir", ""))
        seen: dict[str, str] = {}
        for entry in entries:
            split = str(entry.get("split", "train"))
            given = entry.get("path")
            for pattern in given if isinstance(given, list) else [given]:
                wanted = posixpath.normpath(posixpath.join(base, str(pattern)))
                matched = _match(wanted, rows)
                if not matched:
                    raise InputError(
                        uri=join_uri(self._folder, "README.md"),
                        problem=f"config {name}: {split}: none of the files here matches "
                        f"{str(pattern)!r}; download them, or name files in data",
                    )
                if glob.has_magic(wanted):
                    self._check_complete(matched, pattern=wanted)
                for path in matched:
                    if seen.setdefault(path, split) != split:
                        raise InputError(
                            uri=join_uri(self._folder, "README.md"),
                            problem=f"config {name}: {path} is in the splits {seen[path]} and "
                            f"{split}",
                        )
        yield from seen.items()

    def _readme(self) -> Mapping[str, Any]:
        if "README.md" not in self._paths:
            return {}
        uri = join_uri(self._folder, "README.md")
        data = read_listed(uri, max_bytes=limits.METADATA_BYTES)
        match = _README.match(decode_text(data, uri=uri))
        if match is None:
            return {}
        try:
            found = parse_yaml(match[1])
        except YamlError as error:
            raise InputError(
                uri=uri, place="the YAML at its beginning", problem=str(error)
            ) from error
        return found if isinstance(found, dict) else {}


def _dicts(value: object) -> Iterator[dict[str, Any]]:
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, dict):
            yield each


def _match(pattern: str, paths: Iterable[str]) -> list[str]:
    """Returns the paths that a pattern of a README.md matches, in which `**` is any folders."""
    parts = pattern.split("/")
    return [path for path in paths if _matches(path.split("/"), parts)]


def _matches(path: Sequence[str], patterns: Sequence[str]) -> bool:
    # The numbers of patterns that the parts so far match.
    reached = _with_skipped({0}, patterns)
    for part in path:
        after = {
            number if patterns[number] == "**" else number + 1
            for number in reached
            if number < len(patterns) and fnmatch.fnmatchcase(part, patterns[number])
        }
        reached = _with_skipped(after, patterns)
    return len(patterns) in reached


def _with_skipped(reached: set[int], patterns: Sequence[str]) -> set[int]:
    """Adds what is reached if each `**` matches no more folders."""
    for number, pattern in enumerate(patterns):
        if number in reached and pattern == "**":
            reached.add(number + 1)
    return reached
