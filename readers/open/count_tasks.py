"""Plans the counting of a dataset's statistics from its shards."""

from __future__ import annotations

from shardbeam.readers.open.stored_dataset import StoredDataset
from shardbeam.transforms.dataset.index import index_path
from shardbeam.transforms.shards.count import CountTask
from shardbeam.transforms.storage.base import join_uri


def plan_counts(dataset: StoredDataset) -> list[CountTask]:
    """Makes a task for each shard of a dataset.

    Raises:
        InputError: A split is incomplete.
    """
    in_folder = dataset.features is not None
    listed = dataset.listed_files() if in_folder else {}
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
