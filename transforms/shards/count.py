"""Counts statistics of existing shards: of a dataset, or of any TFRecord files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from shardbeam.transforms.containers.base import find_container, parse_example
from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.dataset.example_findings import PICTURE_KINDS, Finding, find_in_example
from shardbeam.transforms.dataset.files import DatasetFile
from shardbeam.transforms.dataset.index import load_index
from shardbeam.transforms.dataset.statistics import (
    COUNTED_KINDS,
    Statistics,
    StatisticsCounter,
    merge_statistics,
)
from shardbeam.transforms.examples.decode.feature_map import Legend
from shardbeam.transforms.examples.encode.image_features import IMAGE
from shardbeam.transforms.examples.encode.label_digest import list_class_ids
from shardbeam.transforms.examples.encode.maps import PIXELS, list_map_classes
from shardbeam.transforms.examples.example_pb2 import Example
from shardbeam.transforms.examples.features import CATEGORY_MAP, CLASS_MAP, feature_values
from shardbeam.transforms.images.mask_file import read_indices
from shardbeam.transforms.images.read_header import recognize_image
from shardbeam.transforms.storage.base import StoredFile

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


class CountedExample(NamedTuple):
    """An Example of a shard.

    Attributes:
        place: Where it is, like `IndexRow.offset`.
        record: The serialized Example.
        image: Its image; empty if it has none.
        classes: Ids of its classes (`list_class_ids`).
        map_classes: Ids of the classes of its map (`list_map_classes`).
        labels: Digest of its labels (`digest_image`); empty unless `count_examples` is to make it.
    """

    place: int
    record: bytes
    image: bytes
    classes: Sequence[int]
    map_classes: Sequence[int] | None
    labels: str = ""


def merge_counts(counted: Iterable[CountResult], *, splits: Sequence[str]) -> dict[str, Statistics]:
    """Adds up the statistics of shards, by split."""
    parts: dict[str, list[Statistics]] = {split: [] for split in splits}
    for shard in counted:
        parts[shard.split].append(shard.statistics)
    return {split: merge_statistics(of_split) for split, of_split in parts.items()}


def count_shard(shard: CountTask, *, legend: Legend) -> CountResult:
    """Reads a shard to its end, and counts what is in it.

    A read error is returned, not raised: Beam wraps what workers raise in pages of text.

    Args:
        shard: The shard.
        legend: How its Examples are to be read.
    """
    counter = StatisticsCounter(class_names=legend.map_names())
    try:
        pictures = KnownPictures(_read_known(shard))
        for _ in count_examples(shard, legend=legend, counter=counter, look=pictures.look):
            pass
    except InputError as error:
        return CountResult(shard.split, counter.total(), str(error))
    return CountResult(shard.split, counter.total())


class KnownPictures:
    """Gives what an index says about the pictures of a shard, one after another.

    Args:
        rows: The rows of the index; there may be fewer than the shard has Examples, or none.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self._rows = iter(rows)
        self._last: tuple[str, str] | None = None

    def look(self, image: bytes) -> tuple[bool, Sequence[Finding]]:
        """Looks at the picture of the next Example, as `look` of `count_examples`."""
        row: Mapping[str, Any] = next(self._rows, {})
        # Without a row, each Example counts as an image.
        name = (row["source"], row["key"]) if row else None
        is_first, self._last = name is None or name != self._last, name
        return is_first, self.findings(row, image)

    def findings(self, row: Mapping[str, Any], image: bytes) -> Sequence[Finding]:
        """Returns what is worth a look in the picture of a row."""
        del image
        known = ((each["kind"], each["strength"]) for each in row.get("findings") or ())
        return [Finding(kind, strength) for kind, strength in known if kind in PICTURE_KINDS]


def _read_known(shard: CountTask) -> list[dict[str, Any]]:
    """Reads what a shard's index says about pictures; nothing if there is no such index.

    Raises:
        InputError: It cannot be read, or is damaged.
    """
    if not shard.index:
        return []
    try:
        rows: list[dict[str, Any]] = load_index(
            shard.index, listed=shard.listed, columns=["source", "key", "findings"]
        ).to_pylist()
    except InputError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return []
        raise
    return rows


def count_examples(
    shard: CountTask,
    *,
    legend: Legend,
    counter: StatisticsCounter,
    look: Callable[[bytes], tuple[bool, Iterable[Finding]]] = lambda _: (True, ()),
    digest: Callable[[Mapping[str, Sequence[Any]]], str] = lambda _: "",
) -> Iterator[CountedExample]:
    """Reads a shard, and yields each of its Examples once it is counted.

    Args:
        shard: The shard.
        legend: How its Examples are to be read.
        counter: Counts them.
        look: Looks at the picture of each Example in turn: whether it is the first Example of its
            image, and the findings of the picture. Without it, no picture is decoded.
        digest: Digests the labels in the values of each Example; without it, they are not digested.

    Raises:
        InputError: It cannot be read to its end, or is damaged.
    """
    container = find_container(shard.container)
    for place, record in container.read(shard.data):
        words = container.describe_place(place)
        example = parse_example(record, uri=shard.data.uri, place=words)
        values = read_values(example, legend=legend)
        image = next(iter(values.get(IMAGE, ())), b"")
        is_first, seen = look(image)
        counter.add(
            values,
            num_bytes=len(record),
            image_bytes=len(image),
            of_picture=seen,
            is_first=is_first,
        )
        yield CountedExample(
            place,
            record,
            image,
            list_class_ids(values),
            list_map_classes(values, names=legend.map_names()),
            digest(values),
        )


def count_example(
    example: Example, *, num_bytes: int, legend: Legend
) -> tuple[Statistics, list[Finding]]:
    """Counts one Example, and finds what is worth a look in its objects.

    Args:
        example: The Example.
        num_bytes: Length of its record.
        legend: How it is to be read.
    """
    values = read_values(example, legend=legend)
    image = next(iter(values.get(IMAGE, ())), b"")
    counter = StatisticsCounter(class_names=legend.map_names())
    counter.add(values, num_bytes=num_bytes, image_bytes=len(image))
    return counter.total(), find_in_example(values)


def read_values(example: Example, *, legend: Legend) -> Mapping[str, list[Any]]:
    """Reads the values of an Example that statistics and findings need.

    Values that follow from others are added: names of classes, sizes of images, areas of masks.

    Args:
        example: The Example.
        legend: How it is to be read.

    Returns:
        `{default key: values}`.
    """
    stored = example.features.feature
    values: dict[str, list[Any]] = {}
    for key, expected in COUNTED_KINDS.items():
        written = legend.keys.get(key, key)
        if written in stored:
            kind, found = feature_values(stored[written])
            if kind is expected:
                values[key] = list(found)
    _add_derived(values, names=legend.class_names)
    return values


def _add_derived(values: dict[str, list[Any]], *, names: Mapping[int, str]) -> None:
    """Adds values that follow from others."""
    image = next(iter(values.get(IMAGE, ())), b"")
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
    size = _side(values, "image/width"), _side(values, "image/height")
    for key in _MASKS:
        if key in values:
            values[f"{key}/area"] = [
                sum(count for value, count in _count_pixels(mask, size=size) if value)
                for mask in values[key]
            ]
    # If an Example has both maps, the pixels of `CLASS_MAP` are no ids.
    maps = values.get(CATEGORY_MAP) or values.get(CLASS_MAP, [])
    values[PIXELS] = _count_pixels(maps[0], size=size) if maps else []


def _side(values: Mapping[str, Sequence[int]], key: str) -> int:
    return next(iter(values.get(key, ())), 0)


def _count_pixels(data: bytes, *, size: tuple[int, int]) -> list[tuple[int, int]]:
    """Counts the pixels of each value of a mask or map; empty if it does not fit its image."""
    try:
        counts = np.bincount(read_indices(data, size=size).ravel()).tolist()
    except RejectedError:
        return []
    return [(value, count) for value, count in enumerate(counts) if count]
