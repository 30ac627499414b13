"""Counts a finished shard again if another version of Shardbeam counted it.

The shard's key shows that this version would write the same bytes. The collectors that have other
versions run over its Examples; the columns and counts of the others are kept. A shard whose
Examples and index lack something that is counted is written again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal

import google_crc32c
import msgspec

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.configs.passwords import hide_passwords
from shardbeam.transforms.core.errors import (
    InputError,
    RejectedError,
    decoding,
    reading,
)
from shardbeam.transforms.core.memory import MemoryBudget
from shardbeam.transforms.core.reasons import Correction
from shardbeam.transforms.core.records import Kind
from shardbeam.transforms.dataset.collectors.base import Values, first
from shardbeam.transforms.dataset.collectors.collect import (
    COLLECTORS,
    COUNTED_KINDS,
    LabelsCollector,
    MeasuresCollector,
    ShardCollectors,
    list_outdated,
)
from shardbeam.transforms.dataset.index import index_parquet, read_known_columns
from shardbeam.transforms.dataset.manifest import (
    DatasetFile,
    Origin,
    ShardResult,
    check_paths,
    convert_result,
    describe_data,
)
from shardbeam.transforms.examples.decode.feature_map import FeatureMap
from shardbeam.transforms.examples.encode.image_features import IMAGE, digest_image
from shardbeam.transforms.examples.encode.maps import PIXELS
from shardbeam.transforms.examples.encode.schema import EncoderSettings, plan_features
from shardbeam.transforms.examples.features import CATEGORY_MAP, CLASS_MAP
from shardbeam.transforms.images.check import measure_stored
from shardbeam.transforms.images.measures import MEASURES
from shardbeam.transforms.shards.count import (
    KEPT_COLUMNS,
    CountTask,
    known_measures,
    read_items,
)
from shardbeam.transforms.shards.verify_shard import CheckTask, find_contradiction
from shardbeam.transforms.shards.writer import Shard, ShardSettings, create_file
from shardbeam.transforms.staging.staging import Staging
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.base import ChangedError, StoredFile, join_uri
from shardbeam.transforms.storage.find import read_optional, storage_for

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
        feature_map=_feature_map(shard, settings=settings.encoder),
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


def _feature_map(shard: Shard, *, settings: EncoderSettings) -> FeatureMap:
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


# Reuse: the records that a dataset keeps of its shards, and how its next version copies shards.
#
# A record, `runs/.shards/<shard key>.json`, is written when its shard is moved into place. A shard
# with the same key is copied, and its images are not read. Records lie below `runs/` because a key
# depends on where the images lie; nothing outside `runs/` does.

RECORDS_FOLDER = "runs/.shards"
RECORD_FILE = re.compile(rf"{RECORDS_FOLDER}/([0-9a-f]{{64}})\.json")

# Bytes that this process copies at a time.
_PART_BYTES = 8 << 20


class _SealedRecord(msgspec.Struct, frozen=True):
    """The content of a record's file; the digest shows whether the record is damaged.

    Attributes:
        sha256: Digest of the record's text, hex.
        record: The record's text: a `ShardResult` without the fields about the run that wrote it.
        format: Increased whenever older programs could not read the record any more.
    """

    sha256: str
    record: msgspec.Raw
    format: Literal[3, 4] = 4


def record_path(key: str) -> str:
    """Returns the path of a shard's record, below the dataset's folder."""
    return f"{RECORDS_FOLDER}/{key}.json"


def encode_record(shard: ShardResult) -> bytes:
    """Renders the record of a shard."""
    record = msgspec.structs.replace(
        shard, staged="", origin=Origin.WRITTEN, run_id="", resumed=False
    )
    text = hide_passwords(msgspec.json.encode(record, order="deterministic").decode()).encode()
    sealed = _SealedRecord(hashlib.sha256(text).hexdigest(), msgspec.Raw(text))
    return msgspec.json.encode(sealed) + b"\n"


def decode_record(data: bytes, *, uri: str, key: str, split: str, records: int) -> ShardResult:
    """Decodes a record, and checks that it fits a shard.

    Args:
        data: The file's content.
        uri: Where it is, for the error message.
        key: The shard's key.
        split: The shard's split.
        records: How many records go into it.

    Raises:
        InputError: The record is damaged, contradicts itself or the shard, or names a file outside
            the dataset's folder.
    """
    with decoding(uri, "a shard's record"):
        sealed = JsonDecoder(_SealedRecord).decode(data)
        record = convert_result(JsonDecoder().decode(sealed.record))
    if hashlib.sha256(bytes(sealed.record)).hexdigest() != sealed.sha256:
        raise InputError(uri=uri, problem="damaged: its checksum does not match")
    if record.key != key:
        raise InputError(uri=uri, problem="the record of another shard")
    became = record.images + sum(record.excluded.values()) + len(record.rejects)
    # Refuse other counts here: the gate would notice them and end the run.
    if not record.records == became == records or not all(
        reject.split == split and reject.listed for reject in record.rejects
    ):
        raise InputError(uri=uri, problem="its counts do not add up to the shard's")
    check_paths((record.data.path, record.index.path), uri=uri)
    return record


def keep_record(shard_key: str, *, replaces: StoredFile | None, staging: Staging) -> None:
    """Keeps a shard's record in the dataset for its next version, unless it was kept before.

    A shard that could come out differently (`may_differ`) must not be copied: its old record is
    deleted.

    Args:
        shard_key: The shard's key.
        replaces: The version of the record that was seen there; None if there was none.
        staging: The run's staging area.
    """
    shard = staging.read_shard(shard_key=shard_key)
    if shard is None:
        # The done-file is deleted only after the last move: the record was kept before.
        return
    if not shard.may_differ:
        staging.write_file(record_path(shard_key), encode_record(shard), replaces=replaces)
    elif replaces is not None:
        # An earlier commit, which this one replaces, left this record.
        storage_for(replaces.uri).delete(replaces.uri, version=replaces.version)


def find_record(previous: str, *, shard: Shard) -> ShardResult | None:
    """Looks for a shard in the previous version.

    Args:
        previous: Folder of a committed dataset.
        shard: The shard that is wanted.

    Returns:
        The record of a shard with the same key; None if there is none.

    Raises:
        InputError: The record is damaged, or cannot be read.
    """
    uri = join_uri(previous, record_path(shard.key))
    with reading(uri):
        data = read_optional(uri, max_bytes=limits.METADATA_BYTES)
    if data is None:
        return None
    return decode_record(
        data, uri=uri, key=shard.key, split=shard.split, records=len(shard.records)
    )


def copy_shard(record: ShardResult, *, shard: Shard, settings: ShardSettings) -> ShardResult:
    """Copies a shard of the previous version to staging, and marks it as finished.

    The storage copies it by itself if both folders lie in the same storage and it reports checksums
    of copies; otherwise this process does. A copy that differs from the record, or contradicts its
    index, is deleted.

    Args:
        record: The shard in the previous version, `settings.previous`.
        shard: Which shard it becomes.
        settings: How shards are made.

    Raises:
        InputError: A file of the shard is gone, differs from the record or contradicts its index.
        OSError: A file cannot be read, or staging cannot be written.
    """
    staging = settings.staging
    staged = staging.new_attempt(shard_key=shard.key)
    data = msgspec.structs.replace(record.data, path=shard.file_name)
    index = msgspec.structs.replace(record.index, path=shard.index_path)
    for file, copy in ((record.data, data), (record.index, index)):
        source = join_uri(settings.previous, file.path)
        try:
            _copy_file(source, staging.uri(staged, copy.path), copy=copy)
        except (FileNotFoundError, ChangedError) as error:
            raise InputError(uri=source, problem="is gone") from error
    copies = [
        StoredFile(copy.path, staging.uri(staged, copy.path), copy.size_bytes, "")
        for copy in (data, index)
    ]
    contradiction = find_contradiction(
        CheckTask(
            data=copies[0],
            container=settings.container,
            split=shard.split,
            shard_index=shard.shard_index,
            examples=data.examples,
            crc32c=data.crc32c,
            index=copies[1],
            image_key=_feature_map(shard, settings=settings.encoder).keys.get(IMAGE, ""),
        )
    )
    if contradiction:
        for stored in copies:
            storage_for(stored.uri).delete(stored.uri)
        source = join_uri(settings.previous, record.data.path)
        raise InputError(uri=source, problem=f"contradicts its index: {contradiction}")
    result = msgspec.structs.replace(
        record, data=data, index=index, staged=staged, origin=Origin.COPIED, run_id=staging.run_id
    )
    staging.finish_shard(result)
    return result


def _copy_file(source: str, destination: str, *, copy: DatasetFile) -> None:
    """Copies a file, and checks that the copy has the size and checksum of `copy`.

    Raises:
        InputError: The size or checksum differs.
    """
    changed = InputError(uri=source, problem="changed after the commit: another size or checksum")
    storage = storage_for(source)
    if storage_for(destination) is storage:
        stored = storage.copy(source, destination)
        if stored is not None:
            if (stored.size_bytes, stored.crc32c) != (copy.size_bytes, copy.crc32c):
                storage.delete(destination)
                raise changed
            return
    stored = storage.stat(source)
    if stored is None:
        raise FileNotFoundError(source)
    if stored.size_bytes != copy.size_bytes:
        raise changed
    with create_file(destination) as file:
        for offset in range(0, stored.size_bytes, _PART_BYTES):
            file.write(
                storage.read(source, offset=offset, size_bytes=_PART_BYTES, version=stored.version)
            )
        # Inside the context, so that the exception removes the file.
        if (file.size_bytes, file.crc32c) != (copy.size_bytes, copy.crc32c):
            raise changed
