"""Finds Examples by their keys, in a dataset's index, or else by reading all Examples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardbeam.configs.problem import did_you_mean
from shardbeam.readers.open.images import read_images
from shardbeam.readers.open.record_reader import load_shard_index
from shardbeam.readers.open.stored_dataset import StoredDataset, StoredSplit
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.examples.decode.feature_map import FeatureMap
from shardbeam.transforms.formats.names import normalize_for_match

# To suggest a key, a wrong key is compared with this many of the first keys, and with this many of
# the keys that differ from it only by folder, case or extension.
_COMPARED = 10_000


def find_key(
    key: str, *, dataset: StoredDataset, splits: Sequence[StoredSplit], feature_map: FeatureMap
) -> list[tuple[StoredSplit, int]]:
    """Finds the Examples of an image; there are several if each object has its own.

    Args:
        key: The image's key.
        dataset: The dataset.
        splits: The splits to search.
        feature_map: How its Examples are to be read.

    Returns:
        The split of each Example, and its number there, from 1.

    Raises:
        InputError: No Example has the key, or the dataset cannot be read.
    """
    found = []
    compared: list[str] = []
    alike: list[str] = []
    name = normalize_for_match(key, "name")
    for split in splits:
        for number, other in _read_keys(split, dataset=dataset, feature_map=feature_map):
            if other == key:
                found.append((split, number))
            elif not found:
                if len(compared) < _COMPARED:
                    compared.append(other)
                if len(alike) < _COMPARED and normalize_for_match(other, "name") == name:
                    alike.append(other)
    if not found:
        hint = did_you_mean(key, alike) or (f"; did you mean {alike[0]!r}?" if alike else "")
        hint = hint or did_you_mean(key, compared)
        raise InputError(uri=dataset.path, problem=f"no example with the key {key!r}{hint}")
    return found


def _read_keys(
    split: StoredSplit, *, dataset: StoredDataset, feature_map: FeatureMap
) -> Iterator[tuple[int, str]]:
    number = 1
    if feature_map.is_ours and dataset.features is not None:
        most = max(split.shard_examples, default=0)
        for shard in split.shards:
            table = load_shard_index(dataset, shard.path, columns=["key"], max_rows=most)
            for key in table["key"].to_pylist():
                yield number, key
                number += 1
    else:
        for picture in read_images(split, feature_map=feature_map, with_objects=False):
            yield picture.number, picture.key
