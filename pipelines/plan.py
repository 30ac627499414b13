"""Turns a config into the settings of the transforms."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import itertools
import os
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

import shardbeam.configs.schema as schema
from shardbeam.configs.decoding import convert_value
from shardbeam.configs.keys import keys_of
from shardbeam.configs.load import ConfigError
from shardbeam.configs.passwords import hide_in, hide_passwords
from shardbeam.configs.placeholders import fill_template
from shardbeam.configs.problem import Path, Problem
from shardbeam.configs.schema import Config, Name
from shardbeam.transforms.containers.base import find_container
from shardbeam.transforms.core.labels import LabelSettings
from shardbeam.transforms.core.sharding import SplitAssignment
from shardbeam.transforms.dataset.findings import OF_SIMILAR_PICTURES
from shardbeam.transforms.dataset.metadata import DatasetSettings
from shardbeam.transforms.dataset.shard_names import FileNaming
from shardbeam.transforms.examples.encode.encode import library_versions
from shardbeam.transforms.examples.encode.schema import EncoderSettings, plan_features
from shardbeam.transforms.examples.features import ExtraFeature
from shardbeam.transforms.formats.base import Format, Kind
from shardbeam.transforms.formats.join.sources import (
    GIVEN_SOURCE,
    JoinSettings,
    KeyFile,
    Source,
    excluded_images,
    find_key_file,
    image_groups,
)
from shardbeam.transforms.formats.numbered_files import describe_incomplete
from shardbeam.transforms.images.measures import PICTURE_KINDS
from shardbeam.transforms.storage.archives.open import expand_root
from shardbeam.transforms.storage.find import expand_pattern

# The split of all images if nothing names another one.
_DEFAULT_SPLIT = "train"
_BYTES_PER_MB = 1_000_000
# {key: its default} of sources' keys that are in a manifest only where they are set, so that the
# manifests of other datasets stay as they were before there were these keys.
_UNSET_NEW_KEYS: Mapping[str, object] = {
    "decimal": ".",
    "object_column": None,
    "one_hot_values": {},
}
_SET = object()
# The kinds of annotations that have objects, and those that have classes.
_OBJECTS = frozenset({Kind.DETECTION})
_CLASSES = frozenset({Kind.CLASSIFICATION, Kind.DETECTION, Kind.SEMANTIC, Kind.PANOPTIC})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What to build, as the transforms take it.

    Attributes:
        sources: Where images and annotations come from.
        objects: Whether there are labels of objects.
        inputs: Paths and URIs of all files and folders that are read.
        join: Rules of the join.
        encoder: How a record becomes an Example.
        dataset: What concerns the dataset as a whole.
        output: The dataset's folder; equal to the template until `output_folder` fills it in.
        output_template: The same, with placeholders.
        latest: The pointer to the version that was committed last; empty if there is none.
        num_shards: Shards of every split, or by split; 0 means by size.
        shard_size_bytes: Target size of a shard.
        digest: Digest of the config without the output's path, `rejects`, `duplicates` and
            `expect`.
    """

    sources: tuple[Source, ...]
    objects: bool
    inputs: tuple[str, ...]
    join: JoinSettings
    encoder: EncoderSettings
    dataset: DatasetSettings
    output: str
    output_template: str
    latest: str
    num_shards: int | Mapping[str, int]
    shard_size_bytes: int
    digest: str


def make_plan(config: schema.Config, *, sources: tuple[Source, ...] = ()) -> Plan:
    """Makes the plan of a config.

    Args:
        config: The config.
        sources: The sources, if the config names none: `GIVEN_SOURCE` if a program gives the
            records, or those of a dataset that is written again.

    Raises:
        FormatError: A format is not known, or cannot be loaded.
        ConfigError: The features contradict each other, or a path cannot be used.
        InputError: A pattern of annotation files matches none.
    """
    records = GIVEN_SOURCE in sources
    # Examples that are there already may have no masks.
    needs_masks = config.masks == "png" and (records or not sources)
    try:
        config.check_sources(records=bool(sources))
        sources = sources or _sources(config)
        splits = _assign_splits(config, sources=sources)
        config.check_file_name(splits.names)
        config.check_split_names(splits.names)
    except Problem as problem:
        raise _wrong(problem.text, *problem.path) from problem
    try:
        container = find_container(config.output.container)
        versions = container.versions()
    except (ValueError, ModuleNotFoundError) as error:
        raise _wrong(str(error), "output", "container") from error
    file_name = config.output.file_name
    last = container.number_before_suffix
    encoder = _encoder_settings(config, sources=sources)
    _check_kinds(config, encoder=encoder, needs_masks=needs_masks)
    _check_max_findings(config, encoder=encoder)
    output = _output(config)
    exclude = _key_file(config.exclude)
    groups = _key_file(config.group_file)
    if groups is not None:
        # Fail here, not during the run, if the file has no groups.
        image_groups(groups)
    # The pointer must not name a sample.
    latest = config.output.latest if config.limit is None else None
    try:
        plan = plan_features(encoder)
    except ValueError as error:
        raise _wrong(str(error)) from error
    return Plan(
        sources=sources,
        # In panoptic maps, 0 means no segment, so ids start at 1 as for objects. The counts show
        # whether records that a program gives have boxes.
        objects=not records and bool(encoder.kinds & {Kind.DETECTION, Kind.PANOPTIC}),
        inputs=tuple(dict.fromkeys(_inputs(config, sources=sources, files=(exclude, groups)))),
        join=JoinSettings(
            splits=splits,
            labels=LabelSettings(
                **msgspec.structs.asdict(config.labels),
                map_ids=_map_ids(encoder),
                map_ids_hint="; or set panoptic.bits: 16" if _map_ids(encoder) == (1, 255) else "",
            ),
            unannotated=config.unannotated,
            example_per=config.example_per,
            exclude=exclude,
            groups=groups,
            limit=config.limit,
            ignores_sizes=config.image.annotated_size == "ignore",
            # Masks that were written may all be empty, and a sample need not have any.
            masks=needs_masks and config.limit is None,
        ),
        encoder=encoder,
        dataset=DatasetSettings(
            name=config.name,
            version=config.version,
            description=hide_passwords(config.description),
            license=config.card.license,
            source=hide_passwords(config.card.source),
            splits=splits.names,
            seed=config.seed,
            max_reject_ratio=config.rejects.max_ratio,
            objects=not records and Kind.DETECTION in encoder.kinds and config.objects == "some",
            duplicates=_duplicates(config, encoder=encoder),
            excluded=0 if exclude is None else len(excluded_images(exclude)),
            # A sample need not contain what the whole dataset must contain.
            expect=config.expect if config.limit is None else schema.ExpectConfig(),
            ignore=tuple(config.findings.ignore),
            features=plan.schema(),
            config=hide_in(_portable_config(config)),
            codecs={**library_versions(), **versions},
            shardbeam=importlib.metadata.version("shardbeam"),
            naming=FileNaming(
                prefix=file_name or f"{config.name}-{{split}}{'' if last else container.suffix}",
                suffix=container.suffix if last and file_name is None else "",
                # Each split is one file without a number.
                template=None if file_name is None else "",
            ),
            container=config.output.container,
            sources=tuple(source.name for source in sources),
            warnings=tuple(
                dict.fromkeys(
                    (
                        *(line for source in sources for line in source.format.warnings()),
                        *describe_incomplete(_named_files(config, sources=sources)),
                    )
                )
            ),
            absent=tuple(name for source in sources for name in source.format.absent_classes()),
            file_per_image=any(source.format.lists_annotations for source in sources),
            box_readings={
                source.name: reading
                for source in sources
                if (reading := source.format.box_reading) is not None
            },
            classifies=Kind.CLASSIFICATION in encoder.kinds
            and not encoder.kinds & {Kind.DETECTION, Kind.PANOPTIC},
            has_images=Kind.ROWS not in encoder.kinds,
        ),
        output=output,
        output_template=output,
        latest="" if latest is None else absolute_path(fill_template(latest, {})),
        # In a sample, most of the whole dataset's shards would be empty.
        num_shards=(config.output.num_shards or 0) if config.limit is None else 0,
        shard_size_bytes=round(config.output.shard_size_mb * _BYTES_PER_MB),
        digest=_plan_digest(config, sources=sources, files=(exclude, groups)),
    )


def _wrong(problem: str, *path: str | int) -> ConfigError:
    return ConfigError(origin="config", path=path, problem=problem)


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
        raise _wrong(f"{path}: the path is not valid UTF-8; rename it") from error
    return path


def _output(config: schema.Config) -> str:
    """Returns the dataset's folder, or that of a sample beside it."""
    path = absolute_path(config.output.path)
    if config.limit is None:
        return path
    folder = path.rstrip("/")
    is_bucket = "/" not in folder.rpartition("://")[2]
    return f"{folder}{'/' if is_bucket else '-'}limit-{config.limit}"


def _assign_splits(config: Config, *, sources: Sequence[Source]) -> SplitAssignment:
    """Finds out which split an image belongs to: by its source, its format, or by fractions.

    Raises:
        Problem: A format's split cannot name one, or only some of the sources predefine splits.
    """
    predefined: tuple[str, ...] = ()
    by_source: dict[str, str] = {}
    if isinstance(config.splits, list):
        predefined = tuple(config.splits)
    elif sources == (GIVEN_SOURCE,) and not config.fractions:
        by_source = {GIVEN_SOURCE.name: _DEFAULT_SPLIT}
    elif config.source is None and not config.fractions:
        by_source = {source.name: source.name.partition("/")[0] for source in sources}
    elif not config.fractions:
        predefined = _predefined_splits(sources)
        if not predefined:
            by_source = {source.name: _DEFAULT_SPLIT for source in sources}
    for split in predefined:
        try:
            convert_value(split, Name)
        except msgspec.ValidationError as error:
            raise Problem(
                ("source",),
                f"{split!r} cannot name a split: expected a letter, then letters, digits and _",
            ) from error
    return SplitAssignment(
        by_source=by_source,
        fractions=config.fractions,
        group_by=None if config.group_file is not None else config.group_by,
        grouped=config.group_file is not None,
        seed=config.seed,
        predefined=predefined,
        exact=config.exact or config.stratify,
        stratify=config.stratify,
    )


def _predefined_splits(sources: Iterable[Source]) -> tuple[str, ...]:
    """Returns the splits that sources predefine, in order; either all of them do, or none does."""
    try:
        splits = {source.name: source.format.predefined_splits() for source in sources}
    except Problem as problem:
        raise Problem(("source", *problem.path), problem.text) from problem
    if any(splits.values()):
        for name, own in splits.items():
            if not own:
                others = ", ".join(dict.fromkeys(itertools.chain(*splits.values())))
                raise Problem(
                    ("source",),
                    f"{name!r} predefines no splits, and the others do ({others}); add "
                    "fractions, or name the sources of each split in splits",
                )
    return tuple(dict.fromkeys(itertools.chain(*splits.values())))


def _encoder_settings(config: schema.Config, *, sources: Sequence[Source]) -> EncoderSettings:
    formats = [source.format for source in sources]
    kinds: frozenset[Kind] = frozenset().union(*(known.kinds for known in formats))
    if Kind.ROWS in kinds and any(Kind.ROWS not in known.kinds for known in formats):
        raise _wrong("tables without images cannot be mixed with sources of images", "splits")
    extras: dict[str, ExtraFeature] = {}
    owners: dict[str, str] = {}
    for source in sources:
        for extra in source.format.extra_features():
            key = extra.spec.key
            owner = owners.setdefault(key, source.name)
            if extras.setdefault(key, extra) != extra:
                raise _wrong(
                    f"the sources {owner!r} ({_describe_extra(extras[key])}) and {source.name!r} "
                    f"({_describe_extra(extra)}) fill the key {key!r} with different kinds",
                    "splits",
                )
    return EncoderSettings(
        **msgspec.structs.asdict(config.features),
        kinds=kinds,
        extras=tuple(extras[key] for key in sorted(extras)),
        example_per=config.example_per,
        source_id=config.source_id,
        # The formats decide this, not the data. An image whose only class is left out is excluded.
        single_label=all(
            known.single_label and Kind.CLASSIFICATION in known.kinds for known in formats
        ),
        raw_images=any(known.raw_images for known in formats),
        image=config.image,
        panoptic=config.panoptic,
        objects_lost=config.objects_lost,
        min_side_px=config.labels.min_side_px,
        min_area_px=config.labels.min_area_px,
    )


def _describe_extra(extra: ExtraFeature) -> str:
    count = "an object" if extra.per_object else "an image"
    return f"{extra.spec.kind.value}{' list' if extra.spec.repeated else ''}, of {count}"


def _duplicates(config: schema.Config, *, encoder: EncoderSettings) -> schema.DuplicatesConfig:
    """Turns off what cannot be found: only decoded pictures have hashes, and tables have none."""
    if Kind.ROWS in encoder.kinds:
        return msgspec.structs.replace(config.duplicates, find="none")
    if config.image.verify != "decode":
        return msgspec.structs.replace(config.duplicates, near=0)
    return config.duplicates


def _check_kinds(config: schema.Config, *, encoder: EncoderSettings, needs_masks: bool) -> None:
    """Refuses settings that mean nothing to images and annotations of these kinds."""
    if config.stratify and not encoder.kinds & {Kind.CLASSIFICATION, Kind.DETECTION}:
        raise _wrong("there are no classes of images or objects to stratify by", "stratify")
    if needs_masks and Kind.INSTANCE_MASKS not in encoder.kinds:
        raise _wrong("no source gives objects with masks; without masks: --set masks=none", "masks")
    if config.image.resize is not None and encoder.raw_images:
        raise _wrong("raw images keep their 32 x 32 pixels; set pixels: png", "image", "resize")
    for section, keys, needed, what in (
        ("labels", ("min_side_px", "min_area_px"), _OBJECTS, "objects"),
        ("expect", ("min_images_per_class",), _CLASSES, "classes of images or objects"),
        ("expect", ("min_objects", "min_objects_per_class", "max_crowds"), _OBJECTS, "objects"),
    ):
        given = getattr(config, section)
        for key in keys:
            if getattr(given, key) != getattr(type(given)(), key) and not needed & encoder.kinds:
                raise _wrong(f"there are no {what}", section, key)


def _check_max_findings(config: schema.Config, *, encoder: EncoderSettings) -> None:
    """Refuses limits on kinds of findings that are not looked for: nothing would exceed them."""
    pictures = () if config.image.verify == "decode" else PICTURE_KINDS
    is_off = _duplicates(config, encoder=encoder).find == "none"
    similar = OF_SIMILAR_PICTURES if is_off else ()
    for kinds, needed in ((pictures, "image.verify: decode"), (similar, "duplicates.find: all")):
        for kind in sorted({*kinds} & {*(config.expect.max_findings or ())}):
            raise _wrong(f"it is found only with {needed}", "expect", "max_findings", kind)


def _map_ids(encoder: EncoderSettings) -> tuple[int, int] | None:
    """Returns the smallest and the greatest class id that maps can hold; None without maps."""
    if Kind.SEMANTIC in encoder.kinds:
        # Readers ignore 255.
        return 0, 254
    if Kind.PANOPTIC in encoder.kinds:
        return 1, 2**encoder.panoptic.bits - 1
    return None


def _sources(config: schema.Config) -> tuple[Source, ...]:
    fields = {"_masks": config.masks == "png", "_keeps_ids": config.labels.ids == "source"}
    sources = []
    for path, source in config.sources():
        try:
            resolved = _resolve_format(source, fields=fields)
        except Problem as problem:
            raise Problem((*path, *problem.path), problem.text) from problem
        sources.append(Source(_source_name(path), resolved))
    return tuple(sources)


def _source_name(path: Path) -> str:
    """Names a source by its split; from the second one of a list on, also by its position.

    Name and key decide which shard an image goes to. With these names, images keep their shards
    when another source is appended to the list.
    """
    if isinstance(path[-1], str):
        return path[-1]
    name, index = path[-2:]
    return f"{name}/{index}" if index else str(name)


def _resolve_format(source: schema.Source, *, fields: Mapping[str, bool]) -> Format:
    """Makes a source's paths absolute, expands its patterns, and resolves its format.

    Args:
        source: The source.
        fields: Values of other keys of the config, for formats that have a field for them.
    """
    assert isinstance(source, Format)
    known = source.__struct_fields__
    changes: dict[str, Any] = {name: value for name, value in fields.items() if name in known}
    for key in keys_of(type(source)).values():
        value = getattr(source, key.name)
        if not key.is_location or value is None:
            continue
        paths = [absolute_path(path) for path in ([value] if isinstance(value, str) else value)]
        if key.repeatable and key.name not in source.ROOTS:
            paths = [file for path in paths for file in expand_pattern(path)]
        changes[key.name] = paths if key.repeatable else paths[0]
    path, separator, class_name = source.format.rpartition(".py:")
    if separator:
        changes["format"] = f"{absolute_path(path)}.py:{class_name}"
    return msgspec.structs.replace(source, **changes).resolve()


def _key_file(path: str | None) -> KeyFile | None:
    return None if path is None else find_key_file(absolute_path(path))


def _named_files(config: schema.Config, *, sources: Iterable[Source]) -> Iterator[str]:
    """Yields the files of annotations and the archives that the sources of a config name.

    Those of `convert` are no part of the config: it reads no shards without Examples.
    """
    for source in sources if any(config.sources()) else ():
        yield from source.format.annotation_files()
        for root in source.format.roots():
            yield from expand_root(root)


def _inputs(
    config: schema.Config, *, sources: Iterable[Source], files: Iterable[KeyFile | None]
) -> Iterator[str]:
    """Yields what is read: the paths of the config, and the files that its folders stand for."""
    yield from (absolute_path(path) for _, path in config.locations())
    for resolved in sources:
        yield from resolved.format.roots()
        yield from resolved.format.annotation_files()
    yield from (file.uri for file in files if file is not None)


def _portable_config(config: schema.Config) -> dict[str, Any]:
    """Returns the config as the manifest stores it: without paths."""
    raw: Any = msgspec.to_builtins(config)
    del raw["output"]["path"], raw["output"]["latest"]
    del raw["exclude"]
    if config.rejects.max_ratio is None:
        # Manifests have always held this number.
        raw["rejects"]["max_ratio"] = schema.DEFAULT_MAX_RATIO
    if config.group_file is not None:
        raw["group_by"] = posixpath.basename(config.group_file)
    for path, source in config.sources():
        mapping = raw
        for part in path:
            mapping = mapping[part]
        keys = keys_of(type(source))
        for name in source.__struct_fields__:
            is_new_and_unset = mapping[name] == _UNSET_NEW_KEYS.get(name, _SET)
            if name not in keys or keys[name].is_location or is_new_and_unset:
                del mapping[name]
    return raw


def _plan_digest(
    config: schema.Config, *, sources: tuple[Source, ...], files: tuple[KeyFile | None, ...]
) -> str:
    what = _portable_config(config)
    # These keys change no file.
    del what["rejects"], what["duplicates"], what["findings"], what["expect"]
    named = [files] if any(files) else []
    encoded = msgspec.msgpack.encode([what, sources, *named], order="deterministic")
    return hashlib.sha256(encoded).hexdigest()[:16]
