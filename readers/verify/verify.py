"""Checks a dataset as a whole: names, sizes, small files, manifest and `dataset_info.json`."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping

import msgspec

from shardbeam.readers.open.stored_dataset import StoredDataset, open_dataset
from shardbeam.readers.open.stored_features import read_features
from shardbeam.transforms.commit.pointer import pointed_folder
from shardbeam.transforms.commit.runs import EDITED, was_edited
from shardbeam.transforms.containers.base import container_names
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.file_names import CARD, DATASET_INFO, FEATURES, MANIFEST
from shardbeam.transforms.dataset.index import index_path
from shardbeam.transforms.dataset.manifest import Manifest, decode_manifest, was_changed
from shardbeam.transforms.examples.features import FeatureRole, StoredFeature
from shardbeam.transforms.shards.missing_files import find_missing, list_files
from shardbeam.transforms.shards.verify_shard import CheckTask, Problem, find_change, read_parts
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.base import StoredFile
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.listed_files import read_listed

# A shard's number, and the extension after it.
_NUMBERED = re.compile(r"-\d+-of-\d+(\.\w+)$")
# Folders of a dataset in which only files of the dataset belong.
_OWN_FOLDERS = ("index/", "rejects/", "corrections/")


class Checks(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the quick checks of a dataset, and the shards that are left to check.

    Attributes:
        path: The dataset's folder, or its only file.
        problems: The problems found so far.
        shards: Those of its shards that exist.
        strays: The problems that no build can repair: files that do not belong to the dataset.
        is_ours: Whether it has a manifest.
    """

    path: str
    problems: tuple[Problem, ...]
    shards: tuple[CheckTask, ...]
    strays: tuple[Problem, ...] = ()
    is_ours: bool = False


def plan_checks(path: str) -> Checks:
    """Checks names, sizes and small files of a dataset, and plans the checks of its shards.

    Args:
        path: A path that `open_dataset` opens: a dataset of Shardbeam, or other TFRecord files, for
            which fewer checks are possible.

    Raises:
        InputError: There is no dataset at all.
    """
    file = storage_for(path).stat(path)
    folder = (file and pointed_folder(file)) or path
    listed = {} if folder == path and file else list_files(folder)
    if MANIFEST not in listed:
        return _plan_foreign(open_dataset(path), listed=listed)
    data = read_listed(listed[MANIFEST].uri, max_bytes=limits.METADATA_BYTES)
    try:
        manifest = decode_manifest(data, uri=listed[MANIFEST].uri)
    except InputError as error:
        problem = Problem(file=MANIFEST, problem=error.problem)
        return Checks(path=folder, problems=(problem,), shards=())
    problems = []
    # Manifests of older versions have no checksum; these pass.
    if was_changed(data):
        problems.append(Problem(file=MANIFEST, problem=f"{EDITED}: its checksum does not match"))
    elif was_edited(data, manifest=manifest, output=folder):
        problems.append(Problem(file=MANIFEST, problem=f"{EDITED}: no run has its checksum"))
    problems += find_missing(manifest, listed=listed)
    strays = _unlisted(manifest, listed=listed)
    problems += strays
    shards = tuple(_shard_checks(manifest, listed=listed))
    indexes = {shard.index.path for shard in shards if shard.index is not None}
    problems += _small_files(manifest, listed=listed, indexes=indexes)
    problems += _compare_splits(manifest, folder=folder, listed=listed)
    return Checks(
        path=folder, problems=tuple(problems), shards=shards, strays=tuple(strays), is_ours=True
    )


def _unlisted(manifest: Manifest, *, listed: Mapping[str, StoredFile]) -> list[Problem]:
    """Finds extra files that a reader could mistake for parts of the dataset; others do no harm."""
    known = set(manifest.paths())
    is_shard = re.compile("|".join(sorted(set(_shard_marks(manifest)))) or r"\b\B")
    return [
        Problem(
            file=path,
            problem="is not in the manifest: left by another run, or copied; move it elsewhere",
        )
        for path in listed
        if path not in known
        and (path.startswith(_OWN_FOLDERS) or is_shard.search(path))
        and not path.startswith(".")
    ]


def _shard_marks(manifest: Manifest) -> Iterator[str]:
    """Yields patterns for the parts of names that make a file look like one of the shards.

    That is the part after dataset and split, such as `.tfrecord`. An extension that other files
    have, too (`.tar`, `.parquet`), only counts after a shard's number.
    """
    for shard in manifest.shards():
        name = shard.path.rpartition("/")[2]
        numbered = _NUMBERED.search(name)
        if numbered:
            yield rf"-\d+-of-\d+{re.escape(numbered[1])}$"
        elif "." in name:
            yield re.escape(f".{name.split('.', 1)[1].split('-')[0]}")


def _small_files(
    manifest: Manifest, *, listed: Mapping[str, StoredFile], indexes: Container[str]
) -> list[Problem]:
    """Compares the checksums of small files, except indexes, which are read with their shards."""
    problems = []
    for entry in manifest.files:
        file = listed.get(entry.path)
        # A size mismatch was already reported.
        if file is None or file.size_bytes != entry.size_bytes or entry.path in indexes:
            continue
        if entry.path == CARD:
            # People may change it.
            continue
        if problem := find_change(read_parts(file), crc32c=entry.crc32c):
            problems.append(Problem(file=entry.path, problem=problem))
    return problems


def _compare_splits(
    manifest: Manifest, *, folder: str, listed: Mapping[str, StoredFile]
) -> list[Problem]:
    """Compares `dataset_info.json`, which readers use, with the manifest."""
    if DATASET_INFO not in listed:
        return []
    try:
        stored = {split.name: split for split in open_dataset(folder).splits}
    except InputError as error:
        # A shard whose size differs was reported before.
        is_its_own = error.uri == listed[DATASET_INFO].uri
        return [Problem(file=DATASET_INFO, problem=error.problem)] if is_its_own else []
    problems = []
    for name, split in manifest.splits.items():
        examples = sum(shard.examples for shard in split.shards)
        said = {"dataset_info.json": stored[name].examples if name in stored else 0}
        said["manifest.json's outcome"] = split.outcome.examples
        for where, count in said.items():
            if count != examples:
                problem = f"split {name!r}: its shards hold {examples:,} examples; {where} says "
                problems.append(Problem(file=MANIFEST, problem=f"{problem}{count:,}"))
    return problems


def _shard_checks(manifest: Manifest, *, listed: Mapping[str, StoredFile]) -> Iterator[CheckTask]:
    entries = {file.path: file for file in manifest.files}
    features: tuple[StoredFeature, ...] = ()
    if FEATURES in listed and FEATURES in entries:
        try:
            features = read_features(listed[FEATURES])
        except InputError:
            # The file's wrong checksum was reported before.
            features = ()
    image_key = next((spec.key for spec in manifest.features if spec.role is FeatureRole.IMAGE), "")
    container = _container(manifest)
    for name, split in manifest.splits.items():
        for number, shard in enumerate(split.shards):
            if shard.path not in listed:
                continue
            entry = entries.get(index_path(shard.path))
            index = listed.get(entry.path) if entry is not None else None
            if entry is not None and index is not None:
                # A size mismatch was already reported.
                crc32c = entry.crc32c if index.size_bytes == entry.size_bytes else ""
                index = msgspec.structs.replace(index, crc32c=crc32c)
            yield CheckTask(
                data=listed[shard.path],
                container=container,
                split=name,
                shard_index=number,
                examples=shard.examples,
                crc32c=shard.crc32c,
                index=index,
                features=features,
                image_key=image_key,
                damaged_images="keep" if _keeps_damage(manifest) else "reject",
            )


def _container(manifest: Manifest) -> str:
    """Returns the container; a name that the config could not produce means an edited manifest."""
    output = manifest.config.get("output")
    name = output.get("container") if isinstance(output, dict) else None
    return name if name in container_names() else "tfrecord"


def _keeps_damage(manifest: Manifest) -> bool:
    """Returns whether the config keeps JPEGs with damaged data."""
    image = manifest.config.get("image")
    return isinstance(image, dict) and image.get("damaged") == "keep"


def _plan_foreign(dataset: StoredDataset, *, listed: Mapping[str, StoredFile]) -> Checks:
    """Plans the checks of a dataset without a manifest: of TFDS, or other TFRecord files."""
    problems = [
        Problem(file=split.missing, problem="is missing")
        for split in dataset.splits
        if split.missing
    ]
    if any(path.startswith("index/") for path in listed):
        problems.append(Problem(file=MANIFEST, problem="is missing"))
    features: tuple[StoredFeature, ...] = ()
    if dataset.features is not None:
        try:
            features = read_features(dataset.features)
        except InputError as error:
            problem = f"the Examples were not compared with it: {error.problem}"
            problems.append(Problem(file=FEATURES, place=error.place, problem=problem))
    return Checks(
        path=dataset.path,
        problems=tuple(problems),
        shards=tuple(
            CheckTask(data=shard, container=split.container, split=split.name, features=features)
            for split in dataset.splits
            for shard in split.shards
        ),
    )
