"""The command `convert`: builds a dataset again, from its own Examples, in files of another kind.

Split, shard and order follow from seed, source and key, and the dataset's index gives the last two.
So every Example comes to the same place, and its bytes stay the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

from shardbeam.configs.load import make_config
from shardbeam.configs.schema import Config
from shardbeam.pipelines.cli.commands import ConvertArguments
from shardbeam.pipelines.cli.run import run_to_end
from shardbeam.pipelines.execute import Build
from shardbeam.pipelines.failures import UsageError
from shardbeam.pipelines.overlap import check_apart
from shardbeam.pipelines.own_folders import own_temporary_files, temporary_folder
from shardbeam.pipelines.plan import absolute_path
from shardbeam.pipelines.runners.options import make_options
from shardbeam.readers.open.record_reader import load_shard_index
from shardbeam.readers.open.stored_dataset import StoredDataset, open_dataset
from shardbeam.transforms.containers.base import find_container
from shardbeam.transforms.core.errors import DamagedError, InputError
from shardbeam.transforms.core.map_ahead import map_many
from shardbeam.transforms.dataset.file_names import DATASET_INFO
from shardbeam.transforms.dataset.index import index_path
from shardbeam.transforms.dataset.manifest import Manifest
from shardbeam.transforms.examples.encode.schema import EncoderSettings, plan_features
from shardbeam.transforms.formats.base import Format, find_format
from shardbeam.transforms.formats.join.sources import Source
from shardbeam.transforms.formats.tfrecord.tfrecord import TFRecordFormat
from shardbeam.transforms.storage.base import join_uri

_TFRECORD = "tfrecord"
_INDEXES_AT_A_TIME = 32
# What decided the splits, and what was left out; the Examples are there now.
_DECIDED = ("source", "fractions", "exact", "stratify", "group_by", "expect", "unannotated")


def run_convert(arguments: ConvertArguments) -> int:
    """Runs `convert`, with progress on stderr and a summary on stdout.

    Returns:
        The exit code.

    Raises:
        ShardbeamError: As `build` in `pipelines.library` raises it; or the dataset cannot be
            converted.
    """
    dataset, manifest = _open(arguments.path)
    check_apart(absolute_path(arguments.output), name="--output", inputs=[dataset.path])
    options = make_options(arguments.beam_options)
    with _unpacking(dataset, options=options) as folder:
        sources = _find_sources(dataset, manifest, unpack_into=folder)
        config = _make_config(
            manifest,
            dataset=dataset,
            formats=[source.format for source in sources],
            container=arguments.container,
            output=arguments.output,
        )
        build = Build(config=config, options=options, sources=sources)
        return run_to_end(build, arguments=arguments)


@contextlib.contextmanager
def _unpacking(dataset: StoredDataset, *, options: PipelineOptions) -> Iterator[str]:
    """Gives a folder for the Examples of a container that stores no image in one piece.

    Yields:
        The folder, which only programs on this machine can read; empty for other containers.

    Raises:
        UsageError: The options name a runner on other machines.
    """
    containers = {dataset.find_split(split.name).container for split in dataset.splits}
    packed = [name for name in containers if not find_container(name).stores_images]
    if not packed:
        yield ""
        return
    runner = options.view_as(StandardOptions).runner
    if runner not in (None, "DirectRunner"):
        raise UsageError(
            f"--runner={runner}: {packed[0]} files are unpacked on this machine first, which other "
            "machines cannot read; convert without --runner"
        )
    own_temporary_files()
    with temporary_folder() as folder:
        yield folder


def _open(path: str) -> tuple[StoredDataset, Manifest]:
    """Opens a dataset that can be converted.

    Raises:
        InputError: There is no dataset of Shardbeam, or it is incomplete.
    """
    dataset = open_dataset(path)
    manifest = dataset.manifest
    if manifest is None:
        raise InputError(
            uri=path,
            problem="no dataset of Shardbeam, so its splits and order are not known; "
            "`shardbeam build tfrecord` reads TFRecord files of other programs",
        )
    for split in dataset.splits:
        dataset.find_split(split.name)
    if any(spec.key == "image/panoptic/segment_id" for spec in manifest.features):
        raise InputError(
            uri=path,
            problem="holds panoptic maps, from which their segments cannot be read back; build it "
            "again from its sources, with output.container",
        )
    return dataset, manifest


def _find_sources(
    dataset: StoredDataset, manifest: Manifest, *, unpack_into: str
) -> tuple[Source, ...]:
    """Finds the sources that the dataset was built from, as its index names them.

    Raises:
        InputError: An index cannot be read, or does not fit the manifest.
    """
    shards = [shard for split in dataset.splits for shard in split.shards]
    examples = {shard.path: shard.examples for shard in manifest.shards()}
    if examples.keys() != {shard.path for shard in shards}:
        raise InputError(
            uri=join_uri(dataset.path, DATASET_INFO),
            problem="lists other shards than the manifest; check the dataset with `shardbeam "
            f"verify {dataset.path}`",
        )

    def read_sources(path: str) -> list[str]:
        table = load_shard_index(dataset, path, columns=["source"], max_rows=examples[path])
        if table.num_rows != examples[path]:
            problem = f"has {table.num_rows:,} rows for {examples[path]:,} Examples"
            raise DamagedError(uri=join_uri(dataset.path, index_path(path)), problem=problem)
        names: list[str] = table.column("source").unique().to_pylist()
        return names

    paths = [shard.path for shard in shards]
    files: dict[str, list[str]] = {}
    for shard, names in zip(
        shards, map_many(read_sources, paths, threads=_INDEXES_AT_A_TIME), strict=True
    ):
        for name in names:
            # Workers may run in another folder.
            files.setdefault(name, []).append(absolute_path(shard.uri))
    return tuple(
        Source(
            name,
            TFRecordFormat(
                format=_TFRECORD, tfrecords=files[name], _source=name, _unpack_into=unpack_into
            ).resolve(),
        )
        for name in sorted(files)
    )


def _make_config(
    manifest: Manifest,
    *,
    dataset: StoredDataset,
    formats: Sequence[Format],
    container: str,
    output: str,
) -> Config:
    """Makes the config that writes the same Examples into the same places.

    Raises:
        ConfigError: The manifest's config cannot be used.
    """
    raw = {key: value for key, value in manifest.config.items() if key not in _DECIDED}
    shards = {split.name: len(split.shards) for split in dataset.splits}
    lowest = min(manifest.labels.values(), default=1)
    return make_config(
        {
            **raw,
            "splits": list(shards),
            "limit": None,
            "seed": manifest.seed,
            # Images are stored already: nothing is converted, and nothing refused.
            "image": _section(raw, "image")
            | {"max_side": None, "resize": None, "orientation": "keep", "annotated_as": "stored"}
            | {"annotated_size": "ignore", "damaged": "keep", "wrong_extension": "keep"},
            # Classes have their written names and ids.
            "labels": {"ids": "source", "first_id": 0 if lowest == 0 else None},
            "features": _features(raw, formats=formats),
            "output": {
                "path": output,
                "container": container,
                "file_name": _section(raw, "output").get("file_name"),
                "num_shards": None if _section(raw, "output").get("file_name") else shards,
            },
            "rejects": {"max_ratio": 0},
        },
        origin=join_uri(dataset.path, "manifest.json"),
        find_format=find_format,
    )


def _section(raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = raw.get(name)
    return found if isinstance(found, dict) else {}


def _features(raw: Mapping[str, Any], *, formats: Sequence[Format]) -> dict[str, Any]:
    """Returns the settings of features; constants and added keys are carried over like any key."""
    extras = {extra.spec.key: extra for each in formats for extra in each.extra_features()}
    settings = EncoderSettings(
        kinds=frozenset().union(*(each.kinds for each in formats)),
        extras=tuple(extras.values()),
        example_per=raw.get("example_per", "image"),
    )
    known = plan_features(settings).defaults
    features = _section(raw, "features")
    return {
        "rename": {key: name for key, name in features.get("rename", {}).items() if key in known},
        "drop": [key for key in features.get("drop", []) if key in known],
    }
