"""Counts a finished shard again if another version of Shardbeam counted it.

The shard's key shows that this version would write the same bytes. Its statistics, its index and
the hashes of its pictures can be computed from its Examples and its old index, unless these lack
something that is counted.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import google_crc32c
import msgspec

from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.kinds import Kind
from shardbeam.transforms.core.memory import MemoryBudget
from shardbeam.transforms.core.reasons import Correction
from shardbeam.transforms.dataset.example_findings import Finding, find_in_picture
from shardbeam.transforms.dataset.files import DatasetFile, ShardResult, describe_data
from shardbeam.transforms.dataset.index import (
    INDEX_SCHEMA,
    IndexRow,
    fill_findings,
    has_other_digests,
    index_parquet,
    index_version,
    read_known_columns,
)
from shardbeam.transforms.dataset.statistics import (
    COUNTED_KINDS,
    STATISTICS_VERSION,
    StatisticsCounter,
)
from shardbeam.transforms.examples.decode.feature_map import Legend
from shardbeam.transforms.examples.encode.image_features import IMAGE
from shardbeam.transforms.examples.encode.label_digest import CLASS_IDS, LABEL_KEYS, digest_image
from shardbeam.transforms.examples.encode.schema import EncoderSettings, plan_features
from shardbeam.transforms.examples.features import CATEGORY_MAP, CLASS_MAP
from shardbeam.transforms.images.check import look_at_stored
from shardbeam.transforms.images.difference_hash import HASH_VERSION, Look
from shardbeam.transforms.shards.count import (
    CountedExample,
    CountTask,
    KnownPictures,
    count_examples,
)
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


def was_counted_otherwise(result: ShardResult) -> bool:
    """Returns whether another version, or an unknown one, counted or hashed what is in a shard."""
    return (result.statistics_version, result.hash_version, result.index_version) != (
        STATISTICS_VERSION,
        HASH_VERSION,
        index_version(),
    )


def check_countable(result: ShardResult, *, settings: EncoderSettings) -> None:
    """Checks, without reading them, that a shard's Examples hold all that is counted and hashed.

    Args:
        result: The shard.
        settings: How its Examples were made.

    Raises:
        NotCountableError: The config drops a key that the statistics count or the index digests,
            or the pictures; or each object has an Example, and labels were digested otherwise; or
            the hashed pictures are not those that are stored.
    """
    if not was_counted_otherwise(result):
        return
    plan = plan_features(settings)
    if has_other_digests(result.index_version):
        if settings.example_per == "annotation":
            raise NotCountableError(
                "digested the labels of an image in another way, and each of its objects has an "
                "Example"
            )
        if dropped := _dropped(settings, keys=LABEL_KEYS):
            raise NotCountableError(
                f"features.drop leaves out {', '.join(dropped)}, which the index digests"
            )
    if _is_hashed_otherwise(result, settings=settings):
        if IMAGE not in plan.defaults:
            raise NotCountableError(f"features.drop leaves out {IMAGE}, which is hashed")
        if settings.image.encoding == "jpeg" and not _CONVERSIONS.isdisjoint(result.corrections):
            raise NotCountableError(
                "some of its pictures were hashed before they were converted to JPEG"
            )
    if result.statistics_version == STATISTICS_VERSION:
        return
    if dropped := _dropped(settings, keys=COUNTED_KINDS):
        raise NotCountableError(
            f"features.drop leaves out {', '.join(dropped)}, which the statistics count"
        )


def _dropped(settings: EncoderSettings, *, keys: Collection[str]) -> list[str]:
    """Lists those of some default keys that the Examples would have, but the config drops."""
    plan = plan_features(settings)
    planned = {spec.key for group in plan.groups for spec in group.specs if spec.key in keys}
    return sorted(planned - plan.defaults.keys())


def recount(
    result: ShardResult, *, shard: Shard, settings: ShardSettings, memory: MemoryBudget
) -> ShardResult:
    """Counts a staged shard again, and records the new counts and hashes.

    Corrections, rejects and exclusions are kept, because the shard's key decides them.

    Args:
        result: The shard, in staging.
        shard: Which shard it is.
        settings: How shards are made.
        memory: The budget for decoding images.

    Returns:
        The shard, with the statistics, the hashes and the index of this version.

    Raises:
        NotCountableError: Its Examples and its index lack something that is counted.
        InputError: The shard cannot be read, or is damaged.
        OSError: Staging cannot be written.
    """
    check_countable(result, settings=settings.encoder)
    staging = settings.staging
    index_uri = _find(result.index, staged=result.staged, staging=staging).uri
    data = storage_for(index_uri).read_small(index_uri, max_bytes=limits.INDEX_BYTES)
    old_rows = read_known_columns(data, uri=index_uri, max_rows=result.examples)
    legend = _legend(shard, settings=settings.encoder)
    counter = StatisticsCounter(class_names=legend.map_names())
    look_at_picture = None
    if _is_hashed_otherwise(result, settings=settings.encoder):
        look_at_picture = functools.partial(
            look_at_stored, settings=settings.encoder.image, memory=memory
        )
    pictures = _Pictures(old_rows, look_at_picture=look_at_picture)
    shard_file = _find(result.data, staged=result.staged, staging=staging)
    examples = count_examples(
        CountTask(
            data=msgspec.structs.replace(shard_file, crc32c=result.data.crc32c),
            container=settings.container,
            split=shard.split,
        ),
        legend=legend,
        counter=counter,
        look=pictures.look,
        digest=digest_image if has_other_digests(result.index_version) else lambda _: "",
    )
    rows = list(
        _rows(
            old_rows,
            examples,
            shard=shard,
            pictures=pictures,
            has_classes=not _dropped(settings.encoder, keys=CLASS_IDS),
            has_maps=bool(legend.class_names) and not _MAPS.isdisjoint(settings.encoder.kinds),
        )
    )
    if len(rows) != len(old_rows) or len(rows) != result.examples:
        raise NotCountableError("its index does not fit its Examples")
    fill_findings(rows, counter.strongest_findings())
    if result.statistics_version != STATISTICS_VERSION:
        result = msgspec.structs.replace(
            result, statistics=counter.total(), statistics_version=STATISTICS_VERSION
        )
    if (result.hash_version, result.index_version) != (HASH_VERSION, index_version()):
        result = _write_index(result, rows=rows, staging=staging)
    staging.finish_shard(result)
    return result


def _is_hashed_otherwise(result: ShardResult, *, settings: EncoderSettings) -> bool:
    return result.hash_version != HASH_VERSION and settings.image.verify == "decode"


def _find(file: DatasetFile, *, staged: str, staging: Staging) -> StoredFile:
    """Finds a file of a finished shard: in staging, or where a killed commit moved it."""
    uri = staging.uri(staged, file.path)
    moved = join_uri(staging.output, file.path)
    storage = storage_for(uri)
    found = storage.stat(uri) or storage.stat(moved)
    if found is None:
        raise FileNotFoundError(uri)
    return found


def _legend(shard: Shard, *, settings: EncoderSettings) -> Legend:
    written = plan_features(settings).defaults
    # A default key may hold something else: a constant, or a renamed feature.
    keys = {key: written[key].key if key in written else "" for key in COUNTED_KINDS}
    if _dropped(settings, keys=(CATEGORY_MAP,)):
        # The pixels of the map that is left are no ids of classes.
        keys[CLASS_MAP] = ""
    return Legend(keys=keys, class_names=shard.label_map.map_names())


class _Pictures(KnownPictures):
    """Looks at the pictures of a shard's Examples again, one after another.

    Args:
        rows: The rows of the old index.
        look_at_picture: Looks at a stored picture (`look_at_stored`); None if what the old index
            says of it is kept.

    Attributes:
        hashes: `{column: value}` of the last picture, if it was looked at.
    """

    def __init__(
        self, rows: Iterable[Mapping[str, Any]], *, look_at_picture: Callable[..., Look] | None
    ) -> None:
        super().__init__(rows)
        self.hashes: Mapping[str, int | None] = {}
        self._look_at_picture = look_at_picture

    def findings(self, row: Mapping[str, Any], image: bytes) -> Sequence[Finding]:
        """Returns what is worth a look in the picture of a row.

        Raises:
            NotCountableError: The picture cannot be decoded.
        """
        if self._look_at_picture is None or not image:
            self.hashes = {}
            return super().findings(row, image)
        try:
            look = self._look_at_picture(image, image_format=row.get("format"))
        except RejectedError as error:
            raise NotCountableError(f"a stored picture cannot be hashed: {error}") from error
        self.hashes = {"dhash": look.dhash}
        return () if look.levels is None else find_in_picture(*look.levels)


def _rows(
    old_rows: Iterable[Mapping[str, Any]],
    examples: Iterable[CountedExample],
    *,
    shard: Shard,
    pictures: _Pictures,
    has_classes: bool,
    has_maps: bool,
) -> Iterator[IndexRow]:
    """Yields the rows of the new index, made of the old index and the Examples.

    Args:
        old_rows: The rows of the old index.
        examples: The Examples.
        shard: Their shard.
        pictures: What is seen of the Examples' pictures.
        has_classes: Whether the Examples hold the ids of all classes.
        has_maps: Whether they were made with maps whose values are ids of classes.

    Raises:
        NotCountableError: A column is in neither of them.
    """
    for old, example in zip(old_rows, examples):  # noqa: B905  # The caller compares the numbers.
        row = {
            **({"sha256": hashlib.sha256(example.image).hexdigest()} if example.image else {}),
            **old,
            "split": shard.split,
            "shard": shard.shard_index,
            "offset": example.place,
            "length": len(example.record),
            "crc32c": google_crc32c.value(example.record),
            "findings": {},
        }
        row.update(pictures.hashes)
        if example.labels:
            row["labels"] = example.labels
        if has_classes or not shard.label_map.ids:
            row["classes"] = example.classes if shard.label_map.ids else None
        # The config may have left the maps out.
        if example.map_classes is not None or not has_maps:
            row["map_classes"] = example.map_classes if has_maps else None
        missing = [name for name in INDEX_SCHEMA.names if name not in row]
        if missing:
            raise NotCountableError(f"its index lacks {', '.join(missing)}")
        yield IndexRow(**row)


def _write_index(result: ShardResult, *, rows: list[IndexRow], staging: Staging) -> ShardResult:
    """Replaces the index of a staged shard; if the run is killed now, the next one counts again."""
    data = index_parquet(rows)
    uri = staging.uri(result.staged, result.index.path)
    storage_for(uri).replace(uri, data)
    return msgspec.structs.replace(
        result,
        index=describe_data(result.index.path, data),
        index_version=index_version(),
        hash_version=HASH_VERSION,
    )
