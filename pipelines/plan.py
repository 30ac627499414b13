"""From a config to the settings of the transforms."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import os
from collections.abc import Mapping
from typing import Any

import msgspec

import configs.schema as schema
from configs.load import ConfigError
from transforms.examples.record_encoder import EncoderSettings
from transforms.examples.schema import example_schema
from transforms.formats.base import Kind
from transforms.images.settings import ImageSettings
from transforms.joining import JoinSettings
from transforms.labels import LabelSettings
from transforms.output.dataset import DatasetSettings
from transforms.output.versions import library_versions
from transforms.sharding import SplitAssignment
from transforms.sources import Source
from transforms.storage import join_uri

# The name of a config's only source, where splits are made by fractions.
_SINGLE_SOURCE = "source"
_BYTES_PER_MB = 1_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What to build, as the transforms take it.

    Attributes:
        sources: Where images and annotations come from.
        splits: Which split a key belongs to.
        labels: Which classes are written.
        objects: Whether there are labels of objects.
        join: Rules of the join.
        encoder: How a record becomes an Example.
        dataset: What concerns the dataset as a whole.
        output: The dataset's folder.
        file_path_prefix: Path of every shard up to its number, with `{split}`.
        num_shards: Shards of every split, or by split; 0 means by size.
        shard_size_bytes: Target size of a shard.
        digest: Names the plan: the same for the same config, whatever the output's path and
            the rejects that it tolerates.
    """

    sources: tuple[Source, ...]
    splits: SplitAssignment
    labels: LabelSettings
    objects: bool
    join: JoinSettings
    encoder: EncoderSettings
    dataset: DatasetSettings
    output: str
    file_path_prefix: str
    num_shards: int | Mapping[str, int]
    shard_size_bytes: int
    digest: str


def make_plan(config: schema.Config) -> Plan:
    """Makes the plan of a config.

    Raises:
        FormatError: A format is not known, or cannot be loaded.
        ConfigError: The features contradict each other, or a path cannot be used.
    """
    sources = _sources(config)
    splits = SplitAssignment(
        by_source={} if config.source else {split: split for split in config.splits},
        fractions=config.fractions,
        group_by=config.group_by,
        seed=config.seed,
    )
    kinds: frozenset[Kind] = frozenset().union(*(source.load_format().kinds for source in sources))
    labels = LabelSettings(
        include=None if config.labels.include is None else tuple(config.labels.include),
        exclude=tuple(config.labels.exclude),
        merge={new: tuple(old) for new, old in config.labels.merge.items()},
        ids=config.labels.ids,
        first_id=config.labels.first_id,
    )
    image = msgspec.structs.asdict(config.image)
    annotated_as = image.pop("annotated_as")
    output = absolute_path(config.output.path)
    try:
        features = example_schema(
            kinds=kinds,
            rename=config.features.rename,
            drop=config.features.drop,
            constants=config.features.constants,
        )
    except ValueError as error:
        raise ConfigError(origin="config", problem=str(error)) from error
    return Plan(
        sources=sources,
        splits=splits,
        labels=labels,
        objects=Kind.DETECTION in kinds,
        join=JoinSettings(
            splits=splits, labels=labels, keep_unannotated=config.unannotated == "keep"
        ),
        encoder=EncoderSettings(
            image=ImageSettings(**image),
            annotated_as=annotated_as,
            kinds=kinds,
            rename=config.features.rename,
            drop=tuple(config.features.drop),
            constants=config.features.constants,
        ),
        dataset=DatasetSettings(
            name=config.name,
            version=config.version,
            description=config.description,
            splits=splits.names,
            seed=config.seed,
            max_reject_ratio=config.rejects.max_ratio,
            schema=features,
            config=_portable_config(config),
            codecs=library_versions(),
            shardbeam=importlib.metadata.version("shardbeam"),
        ),
        output=output,
        file_path_prefix=join_uri(output, f"{config.name}-{{split}}.tfrecord"),
        num_shards=config.output.num_shards or 0,
        shard_size_bytes=round(config.output.shard_size_mb * _BYTES_PER_MB),
        digest=_plan_digest(config, sources=sources),
    )


def absolute_path(path: str) -> str:
    """Makes a local path absolute: workers may run in another folder.

    Raises:
        ConfigError: It is not valid Unicode, as Beam and the dataset's files need it.
    """
    if "://" not in path:
        path = os.path.abspath(os.path.expanduser(path))
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            origin="config", problem=f"{path}: the path is not valid UTF-8; rename it"
        ) from error
    return path


def _sources(config: schema.Config) -> tuple[Source, ...]:
    named = {_SINGLE_SOURCE: config.source} if config.source else config.splits
    return tuple(_source(name, source) for name, source in named.items() if source is not None)


def _source(name: str, source: schema.Source) -> Source:
    settings: dict[str, Any] = {}
    if isinstance(source, schema.CocoSource):
        settings = {"annotations": [absolute_path(path) for path in source.annotations]}
    elif isinstance(source, schema.ImageFolderSource):
        settings = {"classes": source.classes and absolute_path(source.classes)}
    elif isinstance(source, schema.CustomSource):
        settings = dict(source.options)
        if source.annotations:
            settings["annotations"] = [absolute_path(path) for path in source.annotations]
    path, separator, class_name = source.format.rpartition(".py:")
    return Source(
        name=name,
        images=absolute_path(source.images),
        format=f"{absolute_path(path)}.py:{class_name}" if separator else source.format,
        settings=settings,
    )


def _portable_config(config: schema.Config) -> dict[str, Any]:
    """The config as a manifest keeps it: what does not depend on where things lie."""
    raw: dict[str, Any] = msgspec.to_builtins(config)
    del raw["output"]["path"]
    for source in [*raw["splits"].values(), raw["source"]]:
        for root in ("images", "annotations", "classes"):
            if source is not None:
                source.pop(root, None)
    return raw


def _plan_digest(config: schema.Config, *, sources: tuple[Source, ...]) -> str:
    what = _portable_config(config)
    del what["rejects"]
    encoded = msgspec.msgpack.encode([what, sources], order="deterministic")
    return hashlib.sha256(encoded).hexdigest()[:16]
