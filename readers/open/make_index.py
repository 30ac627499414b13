"""Makes indexes of anyone's uncompressed TFRecord files, and plans the counting of datasets."""

from __future__ import annotations

import hashlib
import posixpath
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import google_crc32c

from shardbeam.readers.open.stored_dataset import StoredDataset, StoredSplit
from shardbeam.transforms.containers.base import find_container
from shardbeam.transforms.containers.tfrecord import OVERHEAD_BYTES
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.collectors.base import ShardFacts
from shardbeam.transforms.dataset.collectors.collect import RowsCollector, ShardCollectors
from shardbeam.transforms.dataset.collectors.objects import ObjectsCollector
from shardbeam.transforms.dataset.index import index_path
from shardbeam.transforms.examples.decode.feature_map import FeatureMap
from shardbeam.transforms.examples.encode.image_features import CLASS_IDS, IMAGE, list_class_ids
from shardbeam.transforms.examples.encode.maps import list_map_classes
from shardbeam.transforms.examples.example_pb2 import Example
from shardbeam.transforms.examples.features import feature_values
from shardbeam.transforms.images.read_header import recognize_image
from shardbeam.transforms.shards.count import CountTask, read_items
from shardbeam.transforms.storage.base import StoredFile, join_uri

# The objects of an Example are as many as the values of the first of these keys that it has.
_OBJECTS = (
    *("image/object/bbox/xmin", "image/object/class/label", "image/object/class/text"),
    "annotation/class/label",
)
_INT32 = range(-(1 << 31), 1 << 31)


def check_indexable(dataset: StoredDataset) -> list[StoredSplit]:
    """Returns the splits of a dataset if indexes can be made of all its shards.

    Raises:
        InputError: A split is incomplete, its shards are not TFRecord files, or two shards have
            the same name.
    """
    splits = [dataset.find_split(split.name) for split in dataset.splits]
    for split in splits:
        if split.container != "tfrecord":
            readers = find_container(split.container).readers
            raise InputError(
                uri=dataset.path,
                problem=f"only TFRecord files need an index, not {split.container}"
                + (f"; read these with {readers}" if readers else ""),
            )
    names = Counter(posixpath.basename(shard.uri) for split in splits for shard in split.shards)
    for name, count in names.items():
        if count > 1:
            raise InputError(uri=dataset.path, problem=f"{count} of its shards are named {name}")
    return splits


def index_shard(
    shard: StoredFile, *, split: str, shard_index: int, feature_map: FeatureMap
) -> tuple[dict[str, Sequence[Any]], int]:
    """Reads a TFRecord file to its end, and makes the columns of its index.

    Digests of labels and measures of images, which only a build makes, are left out. No image is
    decoded, so findings are those of boxes and masks.

    Args:
        shard: The file.
        split: Its split.
        shard_index: Its number within the split.
        feature_map: How its Examples are to be read.

    Returns:
        `{column: values}`, and the number of Examples.

    Raises:
        InputError: It cannot be read or is damaged, or a record is not an Example.
    """
    collectors = ShardCollectors(
        ShardFacts(split=split, shard=shard_index, map_names=feature_map.map_names()),
        kinds=(RowsCollector, ObjectsCollector),
    )
    classes: list[tuple[int, ...] | None] = []
    map_classes: list[tuple[int, ...] | None] = []
    task = CountTask(data=shard, container="tfrecord", split=split)
    for item, record, example in read_items(task, feature_map=feature_map):
        values = _Values(example, feature_map=feature_map)
        image = next((each for each in values.of(IMAGE) if isinstance(each, bytes)), b"")
        file_format, header = recognize_image(image) or (None, None)
        labels = {key: _integers(values.of(key)) for key in CLASS_IDS if values.has(key)}
        collectors.add(
            item._replace(
                key=values.text("image/filename") or values.text("image/source_id"),
                source=split,
                crc32c=google_crc32c.value(record),
                sha256=hashlib.sha256(image).hexdigest() if image else "",
                width=header.width if header else values.side("image/width"),
                height=header.height if header else values.side("image/height"),
                format=file_format.value if file_format else values.text("image/format"),
                objects=next((len(values.of(key)) for key in _OBJECTS if values.has(key)), 0),
            )
        )
        classes.append(list_class_ids(labels) if labels else None)
        map_classes.append(
            None
            if feature_map.numbered_maps
            else list_map_classes(item.values, names=feature_map.class_names)
        )
    columns, _ = collectors.finish()
    return {**columns, "classes": classes, "map_classes": map_classes}, collectors.examples


def render_idx(columns: Mapping[str, Sequence[int]]) -> bytes:
    """Renders the index that NVIDIA DALI and the package `tfrecord` read: a line for each record.

    A line is `<offset> <size>`: the first byte of the record and its length, with its frame. These
    are the bytes that `tfrecord2idx` writes (of DALI and of the package `tfrecord`).

    Args:
        columns: The columns of the index.
    """
    return b"".join(
        b"%d %d\n" % (offset, length + OVERHEAD_BYTES)
        for offset, length in zip(columns["offset"], columns["length"], strict=True)
    )


class _Values:
    """The values of an Example by default key."""

    def __init__(self, example: Example, *, feature_map: FeatureMap) -> None:
        self._features = example.features.feature
        self._keys = feature_map.keys

    def has(self, key: str) -> bool:
        return self._keys.get(key, key) in self._features

    def of(self, key: str) -> Sequence[Any]:
        if not self.has(key):
            return ()
        return feature_values(self._features[self._keys.get(key, key)])[1]

    def text(self, key: str) -> str:
        value = next(iter(self.of(key)), b"")
        return value.decode(errors="replace") if isinstance(value, bytes) else str(value)

    def side(self, key: str) -> int:
        value = next(iter(self.of(key)), 0)
        return value if isinstance(value, int) and value in _INT32 and value > 0 else 0


def _integers(values: Sequence[Any]) -> list[int]:
    """Returns the values that the index can hold as ids."""
    return [value for value in values if isinstance(value, int) and value in _INT32]


def plan_counts(dataset: StoredDataset) -> list[CountTask]:
    """Makes a task for each shard of a dataset.

    Raises:
        InputError: A split is incomplete.
    """
    in_folder = dataset.features is not None
    listed = dataset.listed_files if in_folder else {}
    return [
        CountTask(
            data=shard,
            container=split.container,
            split=split.name,
            index=join_uri(dataset.path, index_path(shard.path)) if in_folder else "",
            listed=listed.get(index_path(shard.path)),
        )
        for split in (dataset.find_split(each.name) for each in dataset.splits)
        for shard in split.shards
    ]
