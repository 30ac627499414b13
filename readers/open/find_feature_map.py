"""Finds out how the Examples of a dataset are to be read."""

from __future__ import annotations

from shardbeam.readers.open.stored_dataset import StoredDataset
from shardbeam.transforms.examples.decode.feature_map import Legend, read_class_names


def read_legend(dataset: StoredDataset) -> Legend:
    """Finds out how the Examples of a dataset are to be read.

    For a dataset of Shardbeam the manifest says so, even if `dataset` is just one of its shards.
    Other Examples are assumed to have the keys of the TF Object Detection API; names of classes
    come from a `label_map.pbtxt` beside them, or from a `labels.txt` (one name per line, from 0).

    Raises:
        InputError: The manifest of a dataset, or a file of names, cannot be read.
    """
    manifest = dataset.find_manifest()
    if manifest is None:
        return Legend(class_names=read_class_names(dataset.folder))
    return Legend.of_manifest(
        config=manifest.config,
        labels=manifest.labels,
        skeletons=manifest.skeletons,
        numbered_maps=manifest.numbered_maps,
    )
