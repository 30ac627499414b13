"""Finds shards: in a dataset's folder, in a folder of TFRecord files, or a single file."""

from __future__ import annotations

import contextlib
import functools
import os
import posixpath
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.configs.problem import did_you_mean
from shardbeam.transforms.commit.pointer import pointed_folder
from shardbeam.transforms.containers.base import find_container, find_tfds_container
from shardbeam.transforms.containers.tfrecord import (
    SHARD_NUMBER,
    TFRECORD_EXTENSION,
    is_tfrecord_name,
)
from shardbeam.transforms.core.errors import InputError, decoding, unreadable
from shardbeam.transforms.dataset.dataset_files import DatasetFile, check_paths
from shardbeam.transforms.dataset.file_names import DATASET_INFO, FEATURES, MANIFEST, STAGING_FOLDER
from shardbeam.transforms.dataset.manifest import Manifest, read_manifest
from shardbeam.transforms.examples.decode.class_names import read_class_names
from shardbeam.transforms.examples.decode.feature_map import FeatureMap
from shardbeam.transforms.formats.names import is_image_name
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.base import StoredFile, is_uri, join_uri, nearest_path
from shardbeam.transforms.storage.find import storage_for

# TFDS's default container, template for the names of shards, and number of digits.
_TFRECORD = "tfrecord"
_DEFAULT_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_MIN_DIGITS = 5
# Only this much of a file is read for its name; what is left of a larger one is not valid JSON.
_INFO_BYTES = 200_000_000
# Files that are inputs of a build, beside images.
_INPUTS = (".zip", ".csv", ".tsv", ".json", ".jsonl", ".xml", ".parquet", ".yaml", ".yml")


class StoredSplit(msgspec.Struct, frozen=True, kw_only=True):
    """A split in storage.

    Attributes:
        name: Its name.
        shards: Its files, in order.
        examples: How many Examples it holds, if the dataset says so.
        shard_examples: How many Examples each shard holds, if the dataset says so.
        missing: Name of the first missing shard; empty if none is missing.
        container: Name of the files' container (`containers.base.find_container`).
    """

    name: str
    shards: tuple[StoredFile, ...]
    examples: int | None = None
    missing: str = ""
    container: str = _TFRECORD
    shard_examples: tuple[int, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Length of its files."""
        return sum(shard.size_bytes for shard in self.shards)


class StoredDataset(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A dataset's folder, a folder of TFRecord files, or a single file.

    Attributes:
        path: Where it is.
        splits: Its splits.
        features: Its `features.json`, if there is one.
        version: Its version; empty if unknown, like the next two.
        description: A text for readers.
        citation: How to cite it.
    """

    path: str
    splits: tuple[StoredSplit, ...]
    features: StoredFile | None = None
    version: str = ""
    description: str = ""
    citation: str = ""

    @functools.cached_property
    def manifest(self) -> Manifest | None:
        """The manifest; None if there is none, or if this is not a dataset's folder.

        Raises:
            InputError: The manifest is damaged.
        """
        return None if self.features is None else read_manifest(self.path)

    @property
    def folder(self) -> str:
        """The folder of its files, also of a single file."""
        shards = (shard for split in self.splits for shard in split.shards[:1])
        is_file = any(shard.uri == self.path for shard in shards)
        return (posixpath.dirname(self.path) or ".") if is_file else self.path

    @functools.cached_property
    def manifest_of_shards(self) -> Manifest | None:
        """The manifest, also if this is just one of a dataset's shards; None without.

        Raises:
            InputError: The manifest of a dataset is damaged.
            OSError: It cannot be read.
        """
        if self.features is not None:
            return self.manifest
        try:
            manifest = read_manifest(self.folder)
        except InputError:
            # This may be another program's `manifest.json`.
            return None
        if manifest is None:
            return None
        ours = {join_uri(self.folder, shard.path) for shard in manifest.shards()}
        shards = (shard.uri for split in self.splits for shard in split.shards)
        return manifest if ours.issuperset(shards) else None

    @functools.cached_property
    def listed_files(self) -> Mapping[str, DatasetFile]:
        """The files that `manifest_of_shards` lists beside the shards, by path.

        Without a manifest nothing is listed.

        Raises:
            InputError: The manifest is damaged.
        """
        manifest = self.manifest
        if self.features is None:
            with contextlib.suppress(OSError):
                manifest = self.manifest_of_shards
        return {} if manifest is None else {file.path: file for file in manifest.files}

    def find_split(self, name: str | None, *, hint: str = "name one") -> StoredSplit:
        """Returns the split with this name, which has at least one shard and none missing.

        Args:
            name: The name; None for the only split.
            hint: What to do if there are several splits and no name.

        Raises:
            InputError: There is no such split, or it is incomplete.
        """
        splits = {split.name: split for split in self.splits}
        if name is None:
            if len(splits) > 1:
                raise InputError(
                    uri=self.path, problem=f"several splits ({', '.join(splits)}); {hint}"
                )
            name = next(iter(splits))
        if name not in splits:
            hint = did_you_mean(name, known=splits) or f"; there are: {', '.join(splits)}"
            raise InputError(uri=self.path, problem=f"no split {name!r}{hint}")
        split = splits[name]
        if split.missing or not split.shards:
            what = split.missing or "every shard"
            raise InputError(uri=self.path, problem=f"split {name!r}: {what} is missing")
        return split


def open_dataset(path: str) -> StoredDataset:
    """Finds out what lies at a path.

    Args:
        path: One of these:
            a folder with the `dataset_info.json` of Shardbeam or of TFDS;
            a folder without it that holds TFRecord files: those named
            `train-00000-of-00008.tfrecord` (or with the number after the extension) make one split
            `train`, and any other file is a split;
            a TFRecord file with any name;
            a pointer (`output.latest`), which stands for the folder that it names.

    Raises:
        InputError: The path is none of these, or its dataset is not committed.
    """
    try:
        return _open(path)
    except InputError:
        # Some are OSErrors as well; these name a file in the folder.
        raise
    except OSError as error:
        raise unreadable(path, error) from error


def read_feature_map(dataset: StoredDataset) -> FeatureMap:
    """Finds out how the Examples of a dataset are to be read.

    For a dataset of Shardbeam the manifest says so, even if `dataset` is just one of its shards.
    Other Examples are assumed to have the keys of the TF Object Detection API; names of classes
    come from a `label_map.pbtxt` beside them, or from a `labels.txt` (one name per line, from 0).

    Raises:
        InputError: The manifest of a dataset, or a file of names, cannot be read.
    """
    manifest = dataset.manifest_of_shards
    if manifest is None:
        return FeatureMap(class_names=read_class_names(dataset.folder))
    return FeatureMap.of_manifest(
        config=manifest.config,
        labels=manifest.labels,
        skeletons=manifest.skeletons,
        numbered_maps=manifest.numbered_maps,
    )


class _Named(msgspec.Struct, frozen=True):
    """The dataset's name in `dataset_info.json`, or in the config in `manifest.json`."""

    name: str = ""
    config: dict[str, Any] = {}


def dataset_name(path: str) -> str:
    """Returns the name of a dataset, or that of its file or folder if it has none.

    Args:
        path: A path as for `open_dataset`; it need not exist.
    """
    # Other code reports damaged files.
    with contextlib.suppress(InputError, OSError):
        file = storage_for(path).stat(path)
        path = (file and pointed_folder(file)) or path
    for name in (DATASET_INFO, MANIFEST):
        uri = join_uri(path, name)
        with contextlib.suppress(InputError, OSError, ValueError, RecursionError):
            # Only a regular file, because reading a pipe would never end.
            if storage_for(uri).stat(uri) is None:
                continue
            data = storage_for(uri).read(uri, size_bytes=_INFO_BYTES)
            said = JsonDecoder(_Named, strict=False).decode(data)
            if found := said.name or str(said.config.get("name", "")):
                return found
    if not is_uri(path):
        # `.` is a path, too.
        path = os.path.abspath(path)
    return posixpath.basename(path.rstrip("/"))


def _open(path: str) -> StoredDataset:
    file = storage_for(path).stat(path)
    if file is not None:
        folder = pointed_folder(file)
        if folder is not None:
            return _open_folder(folder)
        if _is_input(path):
            raise InputError(
                uri=path, problem=f"is a file of images or annotations{_as_input(path)}"
            )
        name = _split_name(posixpath.basename(path))
        return StoredDataset(path=path, splits=(StoredSplit(name=name, shards=(file,)),))
    return _open_folder(path)


def _is_input(path: str) -> bool:
    """Whether a file has the name of an image or of annotations."""
    is_ours = posixpath.basename(path) in (DATASET_INFO, FEATURES, MANIFEST)
    return not is_ours and (path.lower().endswith(_INPUTS) or is_image_name(path))


def _as_input(path: str) -> str:
    return (
        f": an input of a build, and no dataset; `shardbeam init {shlex.quote(path)}` writes a "
        "config for it"
    )


def _open_folder(path: str) -> StoredDataset:
    listed = {file.path: file for file in storage_for(path).list(path)}
    if DATASET_INFO in listed:
        info = _read_info(listed[DATASET_INFO].uri)
        return StoredDataset(
            path=path,
            splits=tuple(_find_splits(info, path=path, listed=listed)),
            features=listed.get(FEATURES),
            version=info.version,
            description=info.description,
            citation=info.citation,
        )
    if MANIFEST in listed or any(name.startswith(f"{STAGING_FOLDER}/") for name in listed):
        raise InputError(
            uri=path,
            problem=f"no committed dataset: {DATASET_INFO} is missing; a build is under way, was "
            "interrupted, or was refused; run it again to finish it, or to see why it was refused",
        )
    files = [file for name, file in listed.items() if _is_tfrecord(name)]
    if not files:
        problem = "nothing is there"
        if listed:
            problem = f"neither {DATASET_INFO} nor a file named *.tfrecord or *.record"
            if any(map(_is_input, listed)):
                problem += f", but images or annotations{_as_input(path)}"
        elif storage_for(path).is_folder(path):
            problem = "the folder is empty"
        elif sample := _find_sample(path):
            problem += f"; a sample of it (`limit`) lies beside it: {sample}"
        else:
            problem += nearest_path(path, storage=storage_for(path))
        raise InputError(uri=path, problem=problem)
    return StoredDataset(path=path, splits=tuple(_group_by_name(files, path=path)))


def _find_sample(path: str) -> str:
    """Finds the sample of a dataset that was built with `limit`; empty where there is none."""
    above, _, name = path.rstrip("/").rpartition("/")
    if not name or is_uri(path):
        return ""
    try:
        beside = sorted(storage_for(above or ".").names(above or "."))
    except (InputError, OSError):
        return ""
    found = (each.rstrip("/") for each in beside if each.startswith(f"{name}-limit-"))
    return next((f"{above}/{each}" if above else each for each in found), "")


class _Split(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    shard_lengths: list[Annotated[int, msgspec.Meta(ge=0)]] = []
    filepath_template: str = _DEFAULT_TEMPLATE


class _DatasetInfo(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of TFDS's proto `DatasetInfo` that are read; in JSON, int64s are strings."""

    name: str
    splits: list[_Split]
    file_format: str = _TFRECORD
    version: str = ""
    description: str = ""
    citation: str = ""


def _read_info(uri: str) -> _DatasetInfo:
    data = storage_for(uri).read_small(uri, max_bytes=limits.METADATA_BYTES)
    with decoding(uri, "the metadata of a dataset"):
        return JsonDecoder(_DatasetInfo, strict=False).decode(data)


def _find_splits(
    info: _DatasetInfo, *, path: str, listed: Mapping[str, StoredFile]
) -> Iterator[StoredSplit]:
    uri = listed[DATASET_INFO].uri
    if not info.splits:
        raise InputError(uri=uri, problem="the dataset has no splits")
    container = find_tfds_container(info.file_format)
    if container is None:
        raise InputError(uri=path, problem=f"its shards have the unknown format {info.file_format}")
    if not find_container(container).checks_records and MANIFEST in listed:
        listed = with_checksums(listed, manifest=read_manifest(path))
    for split in info.splits:
        names = list(_shard_names(split, info=info))
        check_paths(names, uri=uri)
        yield StoredSplit(
            name=split.name,
            shards=tuple(listed[name] for name in names if name in listed),
            examples=sum(split.shard_lengths),
            missing=next((name for name in names if name not in listed), ""),
            container=container,
            shard_examples=tuple(split.shard_lengths),
        )


def with_checksums(
    listed: Mapping[str, StoredFile], *, manifest: Manifest | None
) -> dict[str, StoredFile]:
    """Adds the manifest's checksums to the shards, after comparing their sizes.

    Raises:
        InputError: A shard has another size.
    """
    checked = dict(listed)
    for shard in manifest.shards() if manifest is not None else ():
        file = listed.get(shard.path)
        if file is not None:
            if file.size_bytes != shard.size_bytes:
                raise InputError(
                    uri=file.uri,
                    problem=f"has {file.size_bytes:,} bytes, but the manifest says "
                    f"{shard.size_bytes:,}; copy the dataset again, or build it again",
                )
            checked[shard.path] = msgspec.structs.replace(file, crc32c=shard.crc32c)
    return checked


def _shard_names(split: _Split, *, info: _DatasetInfo) -> Iterator[str]:
    """Names a split's shards as TFDS does (tensorflow_datasets/core/naming.py)."""
    num_shards = len(split.shard_lengths)
    digits = max(_MIN_DIGITS, len(str(num_shards)))
    count = f"{num_shards:0{digits}d}"
    for index in range(num_shards):
        number = f"{index:0{digits}d}"
        values = {
            "DATASET": info.name,
            "SPLIT": split.name,
            "FILEFORMAT": info.file_format,
            "SHARD_INDEX": number,
            "NUM_SHARDS": count,
            "SHARD_X_OF_Y": f"{number}-of-{count}",
        }
        name = split.filepath_template
        for variable, value in values.items():
            name = name.replace(f"{{{variable}}}", value)
        yield name


def _is_tfrecord(name: str) -> bool:
    """Returns whether a name is that of a TFRecord file directly in the folder."""
    return "/" not in name and not name.startswith(".") and is_tfrecord_name(name)


def _split_name(name: str) -> str:
    return TFRECORD_EXTENSION.sub("", SHARD_NUMBER.sub("", name, count=1))


def _group_by_name(files: Iterable[StoredFile], *, path: str) -> Iterator[StoredSplit]:
    groups: dict[str, list[StoredFile]] = {}
    for file in files:
        groups.setdefault(_split_name(file.path), []).append(file)
    for name, group in sorted(groups.items()):
        group.sort(key=lambda file: (_shard_index(file.path), file.path))
        patterns = sorted({SHARD_NUMBER.sub(r"-*-of-\2", file.path, count=1) for file in group})
        if len(patterns) > 1:
            raise InputError(
                uri=path,
                problem=f"{patterns[0]} and {patterns[1]} would both be the split {name!r}; "
                "move one of them, or read the files by their own paths",
            )
        yield StoredSplit(name=name, shards=tuple(group), missing=_first_missing(group))


def _shard_index(name: str) -> int:
    number = SHARD_NUMBER.search(name)
    return int(number[1]) if number else 0


def _first_missing(shards: Sequence[StoredFile]) -> str:
    """Returns the name of the first missing shard, following the names of the others."""
    example = shards[0].path
    number = SHARD_NUMBER.search(example)
    if number is None:
        return ""
    indexes = {_shard_index(shard.path) for shard in shards}
    for index in range(int(number[2])):
        if index not in indexes:
            missing = f"-{index:0{len(number[1])}d}-of-{number[2]}"
            return SHARD_NUMBER.sub(missing, example, count=1)
    return ""
