"""Finds out how the Examples of a dataset are to be read."""

from __future__ import annotations

import posixpath

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.manifest import Manifest, read_manifest
from shardbeam.transforms.dataset.read.dataset import StoredDataset
from shardbeam.transforms.examples.legend import Legend, read_class_names
from shardbeam.transforms.storage.base import join_uri


def read_legend(dataset: StoredDataset) -> Legend:
    """Finds out how the Examples of a dataset are to be read.

    For a dataset of Shardbeam the manifest says so, even if `dataset` is just one of its shards.
    Other Examples are assumed to have the keys of the TF Object Detection API; names of classes
    come from a `label_map.pbtxt` beside them, or from a `labels.txt` (one name per line, from 0).

    Raises:
        InputError: The manifest of a dataset, or a file of names, cannot be read.
    """
    manifest = find_manifest(dataset)
    if manifest is None:
        return Legend(class_names=read_class_names(_root(dataset)))
    return Legend.of_manifest(
        config=manifest.config,
        labels=manifest.labels,
        skeletons=manifest.skeletons,
        numbered_maps=manifest.numbered_maps,
    )


def find_manifest(dataset: StoredDataset) -> Manifest | None:
    """Finds the manifest of a dataset, also if `dataset` is just one of its shards; None without.

    Raises:
        InputError: The manifest of a dataset is damaged.
    """
    if dataset.features is not None:
        return dataset.read_manifest()
    root = _root(dataset)
    try:
        manifest = read_manifest(root)
    except InputError:
        # This may be another program's `manifest.json`.
        return None
    if manifest is None:
        return None
    ours = {join_uri(root, shard.path) for shard in manifest.shards()}
    shards = (shard.uri for split in dataset.splits for shard in split.shards)
    return manifest if ours.issuperset(shards) else None


def _root(dataset: StoredDataset) -> str:
    is_file = any(
        shard.uri == dataset.path for split in dataset.splits for shard in split.shards[:1]
    )
    return (posixpath.dirname(dataset.path) or ".") if is_file else dataset.path
