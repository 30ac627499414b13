"""Names of the files in a dataset's folder, and the manifest, which lists these files."""

from __future__ import annotations

import contextlib
import enum
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

import google_crc32c
import msgspec

from shardbeam.configs.decoding import JsonDecoder, convert_value
from shardbeam.transforms.core.counts import Counts
from shardbeam.transforms.core.errors import InputError, decoding
from shardbeam.transforms.core.labels import Skeletons
from shardbeam.transforms.core.reasons import PASSING_REASONS
from shardbeam.transforms.core.records import Corrected, ImageRef, Reject
from shardbeam.transforms.dataset.collectors.statistics import (
    Collected,
    Statistics,
    merge_statistics,
)
from shardbeam.transforms.dataset.outcome import DuplicateCounts, SplitOutcome
from shardbeam.transforms.examples.features import FeatureSpec
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.listed_files import read_optional

# Descriptions of a dataset's files and of its shards.
#
# The writer of a shard returns a `ShardResult`; the shard's done-file holds it, and the dataset
# keeps it for the next version. The manifest lists `DatasetFile`s.

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]
_Crc32c = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{8}\Z")]
_Sha256 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class DatasetFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a dataset.

    Attributes:
        path: Its path below the dataset's folder.
        size_bytes: Its length.
        crc32c: Checksum of the whole file, 8 hex digits.
    """

    path: str
    size_bytes: _Count
    crc32c: _Crc32c


class ShardFile(DatasetFile, frozen=True, kw_only=True):
    """A shard's file.

    Attributes:
        examples: Number of Examples in it.
    """

    examples: _Count


class ShardEntry(ShardFile, frozen=True, kw_only=True):
    """A shard's file in the manifest, which calls its length `num_bytes`.

    Attributes:
        size_bytes: Its length.
    """

    size_bytes: _Count = msgspec.field(name="num_bytes")


def describe_data(path: str, data: bytes) -> DatasetFile:
    """Describes a file by its path and content."""
    return DatasetFile(path=path, size_bytes=len(data), crc32c=f"{google_crc32c.value(data):08x}")


class Origin(str, enum.Enum):
    """Where a shard's bytes come from."""

    # Its images were read.
    WRITTEN = "written"
    # It was copied from the previous version of the dataset.
    COPIED = "copied"
    # It should have been copied, but was damaged or gone there: its images were read.
    DAMAGED = "damaged"


class RecordOutcomes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a shard's records, which their Examples do not show.

    Attributes:
        images: How many images have Examples; in a table without images, how many rows.
        fingerprint: Sum of the fingerprints (source, key, size, SHA-256) of the images read.
        inputs: How many images were read.
        corrections: `{correction: count}`.
        excluded: `{rule: count}` of the images that a rule excluded after they were read.
        rejects: The records that could not be written.
        corrected: The first corrections of each kind, by kind, source and key.
        readings: `{source: counts of its boxes}` by how their numbers may be read (`box_readings`),
            and of its maps' pixels by what 255 may mean.
        unread: The first files that could not be read; a later run may be able to read them.
        rejected_classes: Written names of the classes of the first few images that were rejected
            for one of `ALLOWED_REASONS`.
    """

    images: _Count
    fingerprint: _Sha256
    inputs: _Count
    corrections: Mapping[str, _Count]
    excluded: Mapping[str, _Count]
    rejects: tuple[Reject, ...]
    corrected: tuple[Corrected, ...] = ()
    readings: Mapping[str, Mapping[str, _Count]] = {}
    unread: tuple[ImageRef, ...] = ()
    rejected_classes: tuple[str, ...] = ()


class ShardResult(RecordOutcomes, frozen=True, kw_only=True, omit_defaults=True):
    """A shard that is written.

    Attributes:
        key: Its shard key, a digest of what decides its bytes (`staging.staging.shard_key`).
        split: Its split.
        shard_index: Its number among the split's shards, from 0.
        num_shards: How many shards the split has.
        data: The file with its Examples.
        index: The Parquet file with one row for each Example.
        records: How many records it accounts for, as Examples, rejects or exclusions.
        objects: How many objects are in `data`.
        collected: `{collector: what it has counted}`.
        libraries: `{library: version}` of the libraries that decide its bytes and rejects; the
            version of one that was not installed is empty.
        exchanged: `{source: whether it exchanges width and height}`, where this decides images.
        staged: The folder of the attempt that wrote it, below the plan's staging folder. It holds
            the shard's files until the commit; afterwards this is empty.
        origin: Where its bytes come from.
        run_id: The run that wrote or copied it.
        resumed: Whether an earlier run wrote it. In a run that copies from a previous version, a
            shard that an earlier run copied counts as copied, not as resumed.
        counts: The records that this run received, and the rejects that it sent on.
    """

    key: _Sha256
    split: str
    shard_index: _Count
    num_shards: _Count
    data: ShardFile
    index: DatasetFile
    records: _Count
    objects: _Count
    collected: Mapping[str, Collected] = {}
    libraries: Mapping[str, str] = {}
    exchanged: Mapping[str, bool] = {}
    staged: str = ""
    origin: Origin = Origin.WRITTEN
    run_id: str = ""
    resumed: bool = False
    counts: Counts = msgspec.field(default_factory=Counts)

    @property
    def examples(self) -> int:
        """Examples in `data`."""
        return self.data.examples

    @property
    def statistics(self) -> Statistics:
        """The statistics of `data`."""
        return merge_statistics(
            each.statistics for each in self.collected.values() if each.statistics is not None
        )

    @property
    def may_differ(self) -> bool:
        """Whether writing it again could give another result: some rejects are transient."""
        return any(reject.reason in PASSING_REASONS for reject in self.rejects)


def convert_result(fields: object) -> ShardResult:
    """Converts decoded fields to a shard's result, without what another version has counted.

    Raises:
        msgspec.ValidationError: The fields are not those of a result.
    """
    if isinstance(fields, dict) and isinstance(fields.get("collected"), dict):
        fields = {**fields, "collected": dict(_readable(fields["collected"]))}
    return convert_value(fields, ShardResult)


def _readable(collected: Mapping[str, object]) -> Iterator[tuple[str, Collected]]:
    for name, each in collected.items():
        # Another version may have other fields.
        with contextlib.suppress(msgspec.ValidationError):
            yield name, convert_value(each, Collected)


def check_paths(paths: Iterable[str], *, uri: str) -> None:
    """Checks a list of a dataset's files, which are deleted when the dataset is replaced.

    Args:
        paths: Paths below the dataset's folder.
        uri: Where the list is, for the error message.

    Raises:
        InputError: A path leads out of that folder.
    """
    for path in paths:
        if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
            raise InputError(uri=uri, problem=f"lists {path!r}, which is not below the dataset")


DATASET_INFO = "dataset_info.json"
STAGING_FOLDER = ".staging"
MANIFEST = "manifest.json"
FEATURES = "features.json"
STATISTICS = "statistics.json"
CROISSANT = "croissant.json"
# The data card; people may add to it.
CARD = "README.md"
RUNS_FOLDER = "runs"
# Strict, because a user may have a `runs` folder, too.
RUN_FILE = re.compile(rf"{RUNS_FOLDER}/\d{{8}}T\d{{6}}\.\d{{6}}Z\.json")


def run_path(run_id: str) -> str:
    """Returns the path of a run's record, below the dataset's folder."""
    return f"{RUNS_FOLDER}/{run_id}.json"


class SplitEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A split.

    Attributes:
        shards: Its shards, in order.
        outcome: What became of its inputs.
    """

    shards: tuple[ShardEntry, ...]
    outcome: SplitOutcome


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """The images that a dataset was built from.

    Attributes:
        images: How many were read.
        fingerprint: Sum of their fingerprints (`dataset.input_counts`).
    """

    images: int = 0
    fingerprint: str = ""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest as it is read; `dataset.metadata.metadata_files` writes it.

    Attributes:
        shardbeam: Version of Shardbeam.
        version: The dataset's version.
        seed: Key of the hash that decided split, shard and order.
        config: The config, without the roots of its input and output.
        features: The features of every Example.
        splits: What was written, by split.
        files: The dataset's files other than shards and the manifest itself.
        labels: `{class name: id}`.
        skeletons: Lines between keypoints, where the sources declare some.
        codecs: `{library: version}` of the libraries that decide bytes.
        inputs: The images that it was built from.
        duplicates: The numbers of duplicates; None if they were not looked for.
        checksum: Checksum of everything else in the file.
        numbered_maps: Whether values of maps are plain numbers instead of class ids.
    """

    shardbeam: str
    config: dict[str, Any]
    features: tuple[FeatureSpec, ...]
    splits: Mapping[str, SplitEntry]
    files: tuple[DatasetFile, ...]
    labels: Mapping[str, int] = {}
    skeletons: Skeletons = {}
    codecs: Mapping[str, str] = {}
    version: str = ""
    seed: int = 0
    inputs: Inputs = Inputs()
    duplicates: DuplicateCounts | None = None
    checksum: str = ""
    numbered_maps: bool = False

    @property
    def name(self) -> str:
        """The dataset's name."""
        return str(self.config.get("name", ""))

    @property
    def ignored_findings(self) -> frozenset[str]:
        """Kinds of findings that the config ignores."""
        findings = self.config.get("findings")
        ignored = findings.get("ignore") if isinstance(findings, dict) else None
        return frozenset(map(str, ignored if isinstance(ignored, list) else ()))

    def shards(self) -> Iterator[ShardEntry]:
        """Yields the shards of all splits."""
        for split in self.splits.values():
            yield from split.shards

    def paths(self) -> Iterator[str]:
        """Yields the paths, below the dataset's folder, of all shards and files it lists."""
        for file in (*self.shards(), *self.files):
            yield file.path


class _Sealed(msgspec.Struct, frozen=True):
    checksum: str


_decoder = JsonDecoder(Manifest)
_checksum_decoder = JsonDecoder(_Sealed)


def formats_in(config: Mapping[str, Any]) -> list[str]:
    """Returns the names of the formats in a config, as a manifest holds it, sorted."""
    splits = config.get("splits")
    sources = [config.get("source"), *(splits.values() if isinstance(splits, dict) else ())]
    flat = [each for group in sources for each in (group if isinstance(group, list) else [group])]
    names = (each.get("format") for each in flat if isinstance(each, dict))
    return sorted({str(name) for name in names if name})


def encode_manifest(document: Mapping[str, Any]) -> bytes:
    """Renders `manifest.json`: indented, with sorted keys and a checksum of everything else."""
    checksum = google_crc32c.value(msgspec.json.encode(document, order="sorted"))
    sealed = {**document, "checksum": f"{checksum:08x}"}
    return msgspec.json.format(msgspec.json.encode(sealed, order="sorted"), indent=2) + b"\n"


def was_changed(data: bytes) -> bool:
    """Returns whether a manifest with a checksum was changed after it was written."""
    document = JsonDecoder().decode(data)
    return document.pop("checksum", "") != "" and encode_manifest(document) != data


def read_checksum(data: bytes) -> str:
    """Returns the checksum that a manifest of ours holds, without decoding the rest."""
    return _checksum_decoder.decode(data).checksum


def read_manifest(output: str) -> Manifest | None:
    """Returns the manifest of the dataset in `output`; None where there is none.

    Raises:
        InputError: The manifest is not ours, is damaged, or lists a path outside `output`.
    """
    uri = join_uri(output, MANIFEST)
    data = read_optional(uri, max_bytes=limits.METADATA_BYTES)
    return None if data is None else decode_manifest(data, uri=uri)


def decode_manifest(data: bytes, *, uri: str) -> Manifest:
    """Decodes a manifest; see `read_manifest`."""
    fix = (
        "; if it was one, build the dataset again into a new folder: --reuse with this folder "
        "copies its undamaged shards"
    )
    with decoding(uri, "a manifest of Shardbeam", fix=fix):
        manifest = _decoder.decode(data)
    check_paths(manifest.paths(), uri=uri)
    return manifest
