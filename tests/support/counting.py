"""Counts the statistics of shards."""

from __future__ import annotations

from shardbeam.readers.open.make_index import plan_counts
from shardbeam.readers.open.stored_dataset import open_dataset, read_feature_map
from shardbeam.transforms.dataset.collectors.statistics import Statistics
from shardbeam.transforms.shards.count import count_shard, merge_counts


def count_dataset(folder: str) -> dict[str, Statistics]:
    """Reads the shards of a Shardbeam dataset in this thread, and counts their content."""
    dataset = open_dataset(folder)
    feature_map = read_feature_map(dataset)
    counted = (count_shard(shard, feature_map=feature_map) for shard in plan_counts(dataset))
    return merge_counts(counted, splits=[each.name for each in dataset.splits])
