"""Counts statistics of existing shards: of a dataset, or of any TFRecord files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from shardbeam.transforms.containers.base import find_container, parse_example
from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.dataset.collectors.base import NO_ITEM, Item, ShardFacts, Values, first
from shardbeam.transforms.dataset.collectors.collect import (
    COUNTED_KINDS,
    COUNTING,
    MeasuresCollector,
    ShardCollectors,
)
from shardbeam.transforms.dataset.collectors.statistics import (
    OWN_KEYS,
    Statistics,
    keep_largest_grids,
    merge_statistics,
)
from shardbeam.transforms.dataset.dataset_files import DatasetFile
from shardbeam.transforms.dataset.example_findings import Finding, find_in_example
from shardbeam.transforms.dataset.index import load_index
from shardbeam.transforms.examples.decode.feature_map import FeatureMap
from shardbeam.transforms.examples.encode.image_features import IMAGE
from shardbeam.transforms.examples.encode.maps import PIXELS
from shardbeam.transforms.examples.example_pb2 import Example, Feature
from shardbeam.transforms.examples.features import (
    CATEGORY_MAP,
    CLASS_MAP,
    FeatureKind,
    feature_values,
)
from shardbeam.transforms.examples.geometry.mask_crops import MaskCrop, crop_mask
from shardbeam.transforms.images.mask_file import read_indices
from shardbeam.transforms.images.measures import PICTURE_KINDS
from shardbeam.transforms.images.read_header import recognize_image
from shardbeam.transforms.storage.base import StoredFile

# The columns of an index that its Examples do not show.
KEPT_COLUMNS = ("key", "source", "sha256", "width", "height", "format", "objects")
# Prefixes of the keys with names and ids of classes.
_CLASSES = ("image/class", "image/object/class", "annotation/class")
_MASKS = ("image/object/mask", "annotation/mask")


class CountTask(msgspec.Struct, frozen=True, kw_only=True):
    """A shard to be counted.

    Attributes:
        data: The shard.
        container: Name of its container (`find_container`).
        split: Its split.
        index: URI of its index, which holds the findings of its pictures; empty if it has none.
        listed: What the dataset's manifest says about the index.
    """

    data: StoredFile
    container: str
    split: str
    index: str = ""
    listed: DatasetFile | None = None


class CountResult(msgspec.Struct, frozen=True):
    """The statistics of a shard.

    Attributes:
        split: Its split.
        statistics: The statistics of its Examples; for a damaged shard, of those before the damage.
        problem: Why the shard could not be read to its end; empty if it could.
    """

    split: str
    statistics: Statistics
    problem: str = ""


def merge_counts(counted: Iterable[CountResult], *, splits: Sequence[str]) -> dict[str, Statistics]:
    """Adds up the statistics of shards, by split."""
    parts: dict[str, list[Statistics]] = {split: [] for split in splits}
    for shard in counted:
        parts[shard.split].append(shard.statistics)
    return keep_largest_grids({split: merge_statistics(each) for split, each in parts.items()})


def count_shard(shard: CountTask, *, feature_map: FeatureMap) -> CountResult:
    """Reads a shard to its end, and counts what is in it.

    A read error is returned, not raised: Beam wraps what workers raise in pages of text.

    Args:
        shard: The shard.
        feature_map: How its Examples are to be read.
    """
    collectors = ShardCollectors(ShardFacts(map_names=feature_map.map_names()), kinds=COUNTING)
    try:
        for item, _, _ in read_items(shard, feature_map=feature_map, rows=_read_rows(shard)):
            collectors.add(item)
    except InputError as error:
        return CountResult(shard.split, collectors.statistics(), str(error))
    return CountResult(shard.split, collectors.statistics())


def _read_rows(shard: CountTask) -> list[dict[str, Any]]:
    """Reads what a shard's index says about images; nothing if there is no such index.

    Raises:
        InputError: It cannot be read, or is damaged.
    """
    if not shard.index:
        return []
    try:
        rows: list[dict[str, Any]] = load_index(
            shard.index,
            listed=shard.listed,
            columns=["source", "key", "findings", *MeasuresCollector.COLUMNS],
        ).to_pylist()
    except InputError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return []
        raise
    return rows


def known_measures(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `{measure: value}` of the image of an index's row."""
    known = {name: row[name] for name in MeasuresCollector.COLUMNS if row.get(name) is not None}
    for finding in row.get("findings") or ():
        if finding["kind"] in PICTURE_KINDS:
            known[finding["kind"]] = finding["strength"]
    return known


def read_items(
    shard: CountTask,
    *,
    feature_map: FeatureMap,
    rows: Iterable[Mapping[str, Any]] = (),
    find_known: Callable[[Mapping[str, Any], Values], Mapping[str, Any]] = (
        lambda row, _: known_measures(row)
    ),
) -> Iterator[tuple[Item, bytes, Example]]:
    """Reads a shard, and yields each Example as collectors take it, its record and itself.

    Args:
        shard: The shard.
        feature_map: How its Examples are to be read.
        rows: The rows of its index; there may be fewer than the shard has Examples, or none.
            Without a row, each Example counts as an image.
        find_known: Returns `Item.known` of an Example, from its row and its values.

    Raises:
        InputError: It cannot be read to its end, or is damaged.
    """
    container = find_container(shard.container)
    following = iter(rows)
    last: tuple[str, str] | None = None
    for place, record in container.read(shard.data):
        words = container.describe_place(place)
        example = parse_example(record, uri=shard.data.uri, place=words)
        values = read_values(example, feature_map=feature_map)
        row: Mapping[str, Any] = next(following, {})
        name = (row["source"], row["key"]) if row else None
        item = NO_ITEM._replace(
            **{field: row[field] for field in KEPT_COLUMNS if field in row},
            is_first=name is None or name != last,
            offset=place,
            length=len(record),
            image_bytes=len(first(values.get(IMAGE), b"")),
            values=values,
            known=find_known(row, values),
        )
        last = name
        yield item, record, example


def count_example(
    example: Example, *, num_bytes: int, feature_map: FeatureMap
) -> tuple[Statistics, list[Finding]]:
    """Counts one Example, and finds odd objects.

    Args:
        example: The Example.
        num_bytes: Length of its record.
        feature_map: How it is to be read.
    """
    values = read_values(example, feature_map=feature_map)
    collectors = ShardCollectors(ShardFacts(map_names=feature_map.map_names()), kinds=COUNTING)
    collectors.add(
        NO_ITEM._replace(
            length=num_bytes, image_bytes=len(first(values.get(IMAGE), b"")), values=values
        )
    )
    return collectors.statistics(), find_in_example(values)


def read_values(example: Example, *, feature_map: FeatureMap) -> Mapping[str, list[Any]]:
    """Reads the values of an Example that statistics and findings need.

    Values that follow from others are added: names of classes, sizes of images, and the areas of
    masks and the boxes around them.

    Args:
        example: The Example.
        feature_map: How it is to be read.

    Returns:
        `{default key: values}`.
    """
    stored = example.features.feature
    values: dict[str, list[Any]] = {}
    for key, expected in COUNTED_KINDS.items():
        written = feature_map.keys.get(key, key)
        if written in stored:
            kind, found = feature_values(stored[written])
            if kind is expected:
                values[key] = list(found)
    values |= _read_texts(stored, feature_map=feature_map)
    _add_derived(values, names=feature_map.class_names)
    return values


def _read_texts(stored: Mapping[str, Feature], *, feature_map: FeatureMap) -> dict[str, list[Any]]:
    """Reads the lists of bytes under keys that a source adds."""
    defaults = {written: key for key, written in feature_map.keys.items()}
    texts = {}
    for written in stored:
        key = defaults.get(written, written)
        if not key.startswith(OWN_KEYS) and written not in feature_map.constants:
            kind, found = feature_values(stored[written])
            if kind is FeatureKind.BYTES:
                texts[key] = list(found)
    return texts


def _add_derived(values: dict[str, list[Any]], *, names: Mapping[int, str]) -> None:
    """Adds values that follow from others."""
    image = first(values.get(IMAGE), b"")
    for key in _CLASSES:
        labels = values.get(f"{key}/label", [])
        if labels and not values.get(f"{key}/text"):
            values[f"{key}/text"] = [names.get(label, str(label)).encode() for label in labels]
    has_size = values.get("image/width") and values.get("image/height")
    has_format = values.get("image/format")
    if image and not (has_size and has_format):
        image_format, header = recognize_image(image) or (None, None)
        if header is not None and not has_size:
            values["image/width"], values["image/height"] = [header.width], [header.height]
        if not has_format:
            values["image/format"] = [b"" if image_format is None else image_format.value.encode()]
    size = first(values.get("image/width"), 0), first(values.get("image/height"), 0)
    for key in _MASKS:
        if key in values:
            crops = [_read_mask(mask, size=size) for mask in values[key]]
            values[f"{key}/area"] = [
                0 if crop is None else int(np.count_nonzero(crop.pixels)) for crop in crops
            ]
            values[f"{key}/box"] = [(0, 0, 0, 0) if crop is None else crop.box for crop in crops]
    # If an Example has both maps, the pixels of `CLASS_MAP` are no ids.
    maps = values.get(CATEGORY_MAP) or values.get(CLASS_MAP, [])
    values[PIXELS] = _count_pixels(maps[0], size=size) if maps else []


def _read_mask(data: bytes, *, size: tuple[int, int]) -> MaskCrop | None:
    """Reads a mask; None if it is empty, or does not fit its image."""
    try:
        return crop_mask((read_indices(data, size=size) > 0).view(np.uint8))
    except RejectedError:
        return None


def _count_pixels(data: bytes, *, size: tuple[int, int]) -> list[tuple[int, int]]:
    """Counts the pixels of each value of a mask or map; empty if it does not fit its image."""
    try:
        counts = np.bincount(read_indices(data, size=size).ravel()).tolist()
    except RejectedError:
        return []
    return [(value, count) for value, count in enumerate(counts) if count]
