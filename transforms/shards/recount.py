"""Counts a finished shard again if another version of Shardbeam counted it.

The shard's key shows that this version would write the same bytes. The collectors that have other
versions run over its Examples; the columns and counts of the others are kept. A shard whose
Examples and index lack something that is counted is written again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import google_crc32c
import msgspec

from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.kinds import Kind
from shardbeam.transforms.core.memory import MemoryBudget
from shardbeam.transforms.core.reasons import Correction
from shardbeam.transforms.dataset.collectors.base import Values, first
from shardbeam.transforms.dataset.collectors.collect import (
    COLLECTORS,
    COUNTED_KINDS,
    LabelsCollector,
    MeasuresCollector,
    ShardCollectors,
    list_outdated,
)
from shardbeam.transforms.dataset.dataset_files import DatasetFile, describe_data
from shardbeam.transforms.dataset.index import index_parquet, read_known_columns
from shardbeam.transforms.dataset.shard_result import ShardResult
from shardbeam.transforms.examples.decode.feature_map import FeatureMap
from shardbeam.transforms.examples.encode.image_features import IMAGE, digest_image
from shardbeam.transforms.examples.encode.maps import PIXELS
from shardbeam.transforms.examples.encode.schema import EncoderSettings, plan_features
from shardbeam.transforms.examples.features import CATEGORY_MAP, CLASS_MAP
from shardbeam.transforms.images.check import measure_stored
from shardbeam.transforms.images.measures import MEASURES
from shardbeam.transforms.shards.count import KEPT_COLUMNS, CountTask, known_measures, read_items
from shardbeam.transforms.shards.writer import Shard, ShardSettings
from shardbeam.transforms.staging.staging import Staging
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.base import StoredFile, join_uri
from shardbeam.transforms.storage.find import storage_for

# With one of these corrections, the stored picture differs from the file.
_CONVERSIONS = frozenset(
    {
        Correction.IMAGE_CONVERTED.value,
        Correction.IMAGE_RESIZED.value,
        Correction.ORIENTATION_APPLIED.value,
    }
)
_MAPS = frozenset({Kind.SEMANTIC, Kind.PANOPTIC})


class NotCountableError(Exception):
    """A shard lacks something that is counted: it has to be written again from its images."""


def check_countable(result: ShardResult, *, settings: EncoderSettings) -> None:
    """Checks, without reading them, that a shard's Examples hold all that is to be counted again.

    Args:
        result: The shard.
        settings: How its Examples were made.

    Raises:
        NotCountableError: The config drops a key that a collector reads, or something that it needs
            cannot be found out from the Examples.
    """
    outdated = list_outdated(result.collected)
    unknown = dict(_list_unknown(result, settings=settings))
    for each in outdated:
        if dropped := _dropped(settings, keys=each.KEYS):
            raise NotCountableError(
                f"features.drop leaves out {', '.join(dropped)}, which its {each.NAME} need"
            )
        for name in each.NEEDS:
            if name in unknown:
                raise NotCountableError(unknown[name])


def _list_unknown(result: ShardResult, *, settings: EncoderSettings) -> Iterator[tuple[str, str]]:
    """Yields each name in `Item.known` that the Examples do not show, and why they do not."""
    if settings.example_per == "annotation":
        yield "labels", "each of its objects has an Example, which lacks the image's other labels"
    if MeasuresCollector not in list_outdated(result.collected):
        return
    reason = ""
    if settings.image.verify == "decode":
        if IMAGE not in plan_features(settings).defaults:
            reason = f"features.drop leaves out {IMAGE}, which is measured"
        elif settings.image.encoding == "jpeg" and not _CONVERSIONS.isdisjoint(result.corrections):
            reason = "some of its images were measured before they were converted to JPEG"
    if reason:
        yield from ((each.name, reason) for each in MEASURES)


def _dropped(settings: EncoderSettings, *, keys: Collection[str]) -> list[str]:
    """Lists those of some default keys that the Examples would have, but the config drops."""
    plan = plan_features(settings)
    planned = {spec.key for group in plan.groups for spec in group.specs if spec.key in keys}
    return sorted(planned - plan.defaults.keys())


def recount(
    result: ShardResult, *, shard: Shard, settings: ShardSettings, memory: MemoryBudget
) -> ShardResult:
    """Counts a staged shard again, and records the new counts.

    The outcomes of its records are kept, because the shard's key decides them.

    Args:
        result: The shard, in staging.
        shard: Which shard it is.
        settings: How shards are made.
        memory: The budget for decoding images.

    Returns:
        The shard, with the counts and the index of this version.

    Raises:
        NotCountableError: Its Examples and its index lack something that is counted.
        InputError: The shard cannot be read, or is damaged.
        OSError: Staging cannot be written.
    """
    check_countable(result, settings=settings.encoder)
    staging = settings.staging
    outdated = list_outdated(result.collected)
    old = _read_old_index(result, staging=staging)
    kept = [name for each in COLLECTORS if each not in outdated for name in each.COLUMNS]
    needed = ("findings",) if MeasuresCollector not in outdated else ()
    for name in (*KEPT_COLUMNS, *kept, *needed):
        if name not in old:
            raise NotCountableError(f"its index lacks {name}")

    has_maps = bool(shard.label_map.map_names()) and not _MAPS.isdisjoint(settings.encoder.kinds)

    def find_known(row: Mapping[str, Any], values: Values) -> Mapping[str, Any]:
        known: dict[str, Any] = {}
        if LabelsCollector in outdated:
            known["labels"] = digest_image(values)
            if has_maps and not values.get(PIXELS):
                raise NotCountableError("its Examples lack a map, or its size")
        if MeasuresCollector not in outdated:
            known |= known_measures(row)
        elif settings.encoder.image.verify == "decode" and (image := first(values.get(IMAGE), b"")):
            known |= _measure(image, row=row, settings=settings.encoder, memory=memory)
        return known

    collectors = ShardCollectors(shard.facts(settings.encoder), kinds=outdated)
    file = _find(result.data, staged=result.staged, staging=staging)
    for item, record, _ in read_items(
        CountTask(
            data=msgspec.structs.replace(file, crc32c=result.data.crc32c),
            container=settings.container,
            split=shard.split,
        ),
        feature_map=shard_feature_map(shard, settings=settings.encoder),
        rows=(dict(zip(old, row, strict=True)) for row in zip(*old.values(), strict=True)),
        find_known=find_known,
    ):
        collectors.add(item._replace(crc32c=google_crc32c.value(record)))
    if not collectors.examples == len(old["key"]) == result.examples:
        raise NotCountableError("its index does not fit its Examples")
    columns, collected = collectors.finish()
    columns |= {name: old[name] for name in kept}
    data = index_parquet(columns, rows=result.examples)
    uri = staging.uri(result.staged, result.index.path)
    # If the run is killed now, the next one counts again.
    storage_for(uri).replace(uri, data)
    result = msgspec.structs.replace(
        result,
        index=describe_data(result.index.path, data),
        collected={**result.collected, **collected},
    )
    staging.finish_shard(result)
    return result


def _read_old_index(result: ShardResult, *, staging: Staging) -> dict[str, list[Any]]:
    uri = _find(result.index, staged=result.staged, staging=staging).uri
    data = storage_for(uri).read_small(uri, max_bytes=limits.INDEX_BYTES)
    return read_known_columns(data, uri=uri, max_rows=result.examples)


def _measure(
    image: bytes, *, row: Mapping[str, Any], settings: EncoderSettings, memory: MemoryBudget
) -> Mapping[str, Any]:
    try:
        return measure_stored(
            image, image_format=row["format"], settings=settings.image, memory=memory
        )
    except RejectedError as error:
        raise NotCountableError(f"a stored image cannot be measured: {error}") from error


def _find(file: DatasetFile, *, staged: str, staging: Staging) -> StoredFile:
    """Finds a file of a finished shard: in staging, or where a killed commit moved it."""
    uri = staging.uri(staged, file.path)
    moved = join_uri(staging.output, file.path)
    storage = storage_for(uri)
    found = storage.stat(uri) or storage.stat(moved)
    if found is None:
        raise FileNotFoundError(uri)
    return found


def shard_feature_map(shard: Shard, *, settings: EncoderSettings) -> FeatureMap:
    """Returns how the Examples of a shard are to be read."""
    written = plan_features(settings).defaults
    # A default key may hold something else: a constant, or a renamed feature.
    keys = dict.fromkeys(COUNTED_KINDS, "") | {key: spec.key for key, spec in written.items()}
    if _dropped(settings, keys=(CATEGORY_MAP,)):
        # The pixels of the map that is left are no ids of classes.
        keys[CLASS_MAP] = ""
    return FeatureMap(
        keys=keys,
        class_names=shard.label_map.map_names(),
        constants=frozenset(settings.constants),
    )
