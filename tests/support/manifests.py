"""Makes a manifest like the one that a finish writes, and other descriptions of shards."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from shardbeam.transforms.commit.gate import RunCounts
from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.dataset.card import card_files
from shardbeam.transforms.dataset.collectors.collect import COLLECTORS
from shardbeam.transforms.dataset.collectors.statistics import (
    Collected,
    CountedStatistics,
    Statistics,
)
from shardbeam.transforms.dataset.dataset_files import DatasetFile, ShardFile, describe_data
from shardbeam.transforms.dataset.file_names import MANIFEST
from shardbeam.transforms.dataset.index import IndexRow
from shardbeam.transforms.dataset.input_counts import InputCounts
from shardbeam.transforms.dataset.metadata import DatasetSettings, metadata_files
from shardbeam.transforms.dataset.outcome import SplitOutcome
from shardbeam.transforms.dataset.shard_names import FileNaming
from shardbeam.transforms.dataset.shard_result import ShardResult
from shardbeam.transforms.duplicates.duplicates import Duplicates
from shardbeam.transforms.examples.features import FeatureSpec
from tests.support.example_builders import make_label_map

SHA256 = "0123456789abcdef" * 4
# Tests replace the values that they are about.
INDEX_ROW = IndexRow(
    key="a.jpg",
    source="train",
    split="train",
    shard=0,
    offset=0,
    length=1,
    sha256=SHA256,
    width=1,
    height=1,
    format="jpeg",
    objects=0,
    crc32c=0,
    labels="0" * 16,
)


def make_dataset(
    *,
    features: Sequence[FeatureSpec] = (),
    naming: FileNaming = FileNaming(prefix="toy-{split}.tfrecord"),  # noqa: B008  # Frozen.
    config: Mapping[str, object] | None = None,
) -> DatasetSettings:
    """Settings of a dataset `toy` with a split `train`."""
    return DatasetSettings(
        name="toy",
        version="1.2.3",
        description="A “toy”.",
        splits=("train",),
        seed=-7,
        max_reject_ratio=0.5,
        features=tuple(features),
        config=config or {},
        codecs={"simplejpeg": "1.9", "pillow": "12.3"},
        shardbeam="0.2.0",
        naming=naming,
    )


def make_counts(
    inputs: InputCounts | None = None,
    *,
    dataset: DatasetSettings | None = None,
    label_map: LabelMap | None = None,
    statistics: Mapping[str, Statistics] | None = None,
    readings: Iterable[Mapping[str, Mapping[str, int]]] = (),
    splits: Mapping[str, SplitOutcome] | None = None,
    duplicates: Duplicates | None = None,
) -> RunCounts:
    """What a run has counted."""
    shard = make_shard_result(describe_data("a", b""))
    return RunCounts(
        dataset or make_dataset(),
        inputs or InputCounts(),
        label_map or LabelMap(ids={}, names={}),
        shards=[msgspec.structs.replace(shard, readings=each) for each in readings],
        counted={name: CountedStatistics(each) for name, each in (statistics or {}).items()},
        duplicates=duplicates,
        planned=splits or {},
    )


def make_shard_result(
    data: DatasetFile,
    index: DatasetFile | None = None,
    *,
    split: str = "train",
    shard_index: int = 0,
    num_shards: int = 1,
    examples: int = 3,
    key: str = SHA256,
    staged: str = "shards/key/1",
) -> ShardResult:
    """A shard whose images became an Example each."""
    return ShardResult(
        key=key,
        split=split,
        shard_index=shard_index,
        num_shards=num_shards,
        data=ShardFile(**msgspec.structs.asdict(data), examples=examples),
        index=index or describe_data(f"index/{data.path}.parquet", b"index"),
        records=examples,
        images=examples,
        objects=0,
        fingerprint=SHA256,
        inputs=examples,
        corrections={"box_clipped": 2},
        excluded={},
        collected={each.NAME: Collected(each.VERSION) for each in COLLECTORS},
        rejects=(),
        staged=staged,
    )


def make_files(
    *,
    shards: Sequence[ShardResult] = (),
    moved: Iterable[DatasetFile] = (),
    label_map: LabelMap | None = None,
    dataset: DatasetSettings | None = None,
) -> dict[str, bytes]:
    """The files that a finish writes, by their paths."""
    dataset, label_map = dataset or make_dataset(), label_map or make_label_map({})
    statistics = {"train": Statistics()}
    return metadata_files(
        dataset=dataset,
        splits={"train": SplitOutcome(listed=3, examples=2, rejected={"truncated": 1})},
        shards=shards,
        moved=[*moved, *(file for shard in shards for file in (shard.data, shard.index))],
        label_map=label_map,
        statistics=statistics,
        card=card_files(dataset, shards=shards, label_map=label_map, statistics=statistics),
        skeletons={},
    )


def make_manifest(*paths: str) -> bytes:
    """A manifest that lists files."""
    return make_files(moved=[describe_data(path, b"") for path in paths])[MANIFEST]


def list_again(folder: Path) -> None:
    """Lists the files of a dataset with the sizes and checksums that they have now."""
    path = folder / MANIFEST
    manifest = json.loads(path.read_bytes())
    for entry in manifest["files"]:
        file = folder / entry["path"]
        if file.exists():
            entry.update(msgspec.structs.asdict(describe_data(entry["path"], file.read_bytes())))
    path.write_text(json.dumps(manifest))
