"""Reads what the files beside shards say about these: a manifest, or names of classes."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

import msgspec

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.transforms.containers.base import container_names
from shardbeam.transforms.core.errors import InputError, unreadable
from shardbeam.transforms.core.labels import Skeletons
from shardbeam.transforms.examples.decode.feature_map import FeatureMap, read_class_names
from shardbeam.transforms.examples.features import FeatureSpec
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.find import storage_for

TFRECORD = "tfrecord"
MANIFEST, DATASET_INFO = "manifest.json", "dataset_info.json"
# A key that no other program's manifest has.
_OURS = b'"shardbeam"'


class ListedIndex(msgspec.Struct, frozen=True):
    """The index of a shard, as its dataset's manifest lists it (`storage.listed_files`)."""

    path: str
    size_bytes: int
    crc32c: str


class ListedShard(msgspec.Struct, frozen=True, kw_only=True):
    """A shard, as its dataset's manifest lists it.

    Attributes:
        split: Its split.
        container: Name of its container (`containers.base.find_container`).
        examples: How many Examples it holds.
        crc32c: Checksum of the whole file, 8 hex digits.
        index: Its index, if the manifest lists one.
    """

    split: str
    container: str = TFRECORD
    examples: int
    crc32c: str
    index: ListedIndex | None = None


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """What the files beside TFRecord files say about these.

    Attributes:
        feature_map: How their Examples are to be read.
        shards: `{name of a file: what the manifest says about it}`, if there is a manifest.
        features: The features of every Example, if there is a manifest.
    """

    feature_map: FeatureMap
    shards: Mapping[str, ListedShard] = {}
    features: tuple[FeatureSpec, ...] | None = None


class _Shard(msgspec.Struct, frozen=True):
    path: str
    examples: int
    crc32c: str


class _Shards(msgspec.Struct, frozen=True):
    shards: tuple[_Shard, ...]


class _Manifest(msgspec.Struct, frozen=True):
    """The fields of `dataset.manifest.Manifest` that are read here."""

    shardbeam: str
    config: dict[str, Any]
    features: tuple[FeatureSpec, ...]
    splits: Mapping[str, _Shards]
    files: tuple[ListedIndex, ...] = ()
    labels: Mapping[str, int] = {}
    skeletons: Skeletons = {}
    numbered_maps: bool = False


def read_layout(folder: str) -> Layout:
    """Reads a dataset's manifest, or else a file of class names, in the folder of TFRecord files.

    Raises:
        InputError: A file cannot be read, or the dataset is not committed.
    """
    uri = join_uri(folder, MANIFEST)
    storage = storage_for(uri)
    try:
        data = storage.read_small(uri, max_bytes=limits.METADATA_BYTES)
        committed = storage.stat(join_uri(folder, DATASET_INFO)) is not None
        manifest = JsonDecoder(_Manifest).decode(data)
    except FileNotFoundError:
        return Layout(feature_map=FeatureMap(class_names=read_class_names(folder)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if _OURS in data:
            problem = f"not a manifest of Shardbeam, or a damaged one: {error}"
            raise InputError(uri=uri, problem=problem) from error
        # Other programs write files with this name, too.
        return Layout(feature_map=FeatureMap(class_names=read_class_names(folder)))
    except OSError as error:
        raise unreadable(uri, error) from error
    if not committed:
        raise InputError(
            uri=folder, problem="the dataset is not committed: dataset_info.json is missing"
        )
    files = {file.path: file for file in manifest.files}
    output = manifest.config.get("output")
    container = output.get("container", TFRECORD) if isinstance(output, dict) else TFRECORD
    if container not in container_names():
        problem = f"names a container that this version does not know: {container!r}"
        raise InputError(uri=uri, problem=problem)
    return Layout(
        feature_map=FeatureMap.of_manifest(
            config=manifest.config,
            labels=manifest.labels,
            skeletons=manifest.skeletons,
            numbered_maps=manifest.numbered_maps,
        ),
        shards={
            posixpath.basename(shard.path): ListedShard(
                split=split,
                container=container,
                examples=shard.examples,
                crc32c=shard.crc32c,
                index=files.get(index_path(shard.path)),
            )
            for split, entry in manifest.splits.items()
            for shard in entry.shards
        },
        features=manifest.features,
    )


def index_path(shard_path: str) -> str:
    """Names a shard's index, as `dataset.index` does; both paths are below the dataset's folder."""
    return f"index/{shard_path}.parquet"


def how_to_convert(uri: str) -> str:
    """Says how to make TFRecord files of a shard's dataset."""
    folder = posixpath.dirname(uri) or "."
    return f"convert them: `shardbeam convert {folder} --container {TFRECORD} --output DIR`"
