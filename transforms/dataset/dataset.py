"""The dataset's own files: what the finish writes, `dataset_info.json` last."""

from __future__ import annotations

import contextlib
import datetime
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import google_crc32c
import msgspec

from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.dataset.census import ListingSummary
from shardbeam.transforms.dataset.commit import (
    DATASET_INFO,
    MANIFEST,
    RUN_FILE,
    RUNS_FOLDER,
    RejectsFile,
    count_resumed,
    count_reuse,
)
from shardbeam.transforms.dataset.label_files import label_map_pbtxt, labels_txt
from shardbeam.transforms.dataset.manifest import (
    FileEntry,
    Fingerprint,
    InputEntry,
    Manifest,
    ShardEntry,
    SplitEntry,
    encode_manifest,
)
from shardbeam.transforms.dataset.outcome import Outcome, SplitOutcome, Status
from shardbeam.transforms.dataset.shard_result import ShardResult
from shardbeam.transforms.dataset.staging import Staging
from shardbeam.transforms.dataset.tfds import (
    SplitSize,
    class_name_files,
    class_names_path,
    dataset_info_json,
    features_json,
)
from shardbeam.transforms.examples.features import FeatureRole, FeatureSpec
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.find import storage_for

FEATURES = "features.json"
LABEL_MAP = "label_map.pbtxt"
LABELS = "labels.txt"


class DatasetSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the config says about the dataset as a whole.

    Attributes:
        name: Its name.
        version: Its version, `x.y.z`.
        description: A text for people.
        splits: The splits' names, in the config's order.
        seed: Key of the hash that decided split, shard and order.
        max_reject_ratio: The greatest share of a split's inputs that may be rejected.
        schema: The keys of its Examples.
        config: The config as the manifest keeps it, without input and output roots.
        codecs: Versions of what decides the bytes.
        shardbeam: Shardbeam's version.
        file_name: Name of a split's only file, in which `{split}` may stand for the split;
            empty where a split has several, with numbers.
        file_format: TFDS's name of the shards' container.
    """

    name: str
    version: str
    description: str
    splits: tuple[str, ...]
    seed: int
    max_reject_ratio: float
    schema: tuple[FeatureSpec, ...]
    config: Mapping[str, Any]
    codecs: Mapping[str, str]
    shardbeam: str
    file_name: str = ""
    file_format: str = "tfrecord"


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is particular to one run.

    Attributes:
        started_at: When it was started, UTC, ISO 8601.
        runner: Name of its runner.
        annotation_files: `(uri, size in bytes, version)` of each annotation file, and of each
            file that defines a format.
        latest: The pointer that names the dataset once it is committed; empty where there is none.
        previous: Folder of the dataset whose unchanged shards are copied; empty for none.
    """

    started_at: str
    runner: str
    annotation_files: tuple[tuple[str, int, str], ...]
    latest: str = ""
    previous: str = ""


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`runs/<run>.json`: all that differs from run to run.

    Attributes:
        plan: Digest of the config.
        started_at: When it was started, UTC, ISO 8601.
        finished_at: When it committed.
        wall_time_s: Seconds between the two.
        runner: Name of its runner.
        host: Name of the machine that committed.
        python: Version of its Python.
        listing: What was listed, with the fingerprint of URIs, sizes and versions.
        annotation_files: `(uri, size in bytes, version)` of each annotation file, and of each
            file that defines a format.
        outcome: What the run did.
    """

    plan: str
    started_at: str
    finished_at: str
    wall_time_s: float
    runner: str
    host: str
    python: str
    listing: ListingSummary
    annotation_files: tuple[tuple[str, int, str], ...]
    outcome: Outcome


def metadata_paths(dataset: DatasetSettings) -> list[str]:
    """Lists the paths, below the dataset's folder, that `write_dataset_files` may create."""
    return [
        FEATURES,
        LABEL_MAP,
        LABELS,
        MANIFEST,
        DATASET_INFO,
        *(class_names_path(spec) for spec in dataset.schema if spec.role is FeatureRole.LABEL),
    ]


def write_dataset_files(
    *,
    dataset: DatasetSettings,
    run: RunSettings,
    staging: Staging,
    splits: Mapping[str, SplitOutcome],
    shards: Sequence[ShardResult],
    rejects: Sequence[RejectsFile],
    listing: ListingSummary,
    label_map: LabelMap,
) -> None:
    """Writes everything that is not moved into place; `dataset_info.json` last.

    Args:
        dataset: What the config says about the dataset.
        run: What is particular to this run.
        staging: The run's staging area, which knows the output.
        splits: What became of everything.
        shards: All shards, moved into place.
        rejects: All rejects files, moved into place.
        listing: What was listed.
        label_map: The labels.
    """
    ordered = sorted(shards, key=lambda shard: shard.shard_index)
    by_split = {
        split: [shard for shard in ordered if shard.split == split] for split in dataset.splits
    }
    written = {
        FEATURES: features_json(schema=dataset.schema, label_map=label_map),
        **class_name_files(schema=dataset.schema, label_map=label_map),
    }
    if label_map.ids:
        written[LABEL_MAP] = label_map_pbtxt(label_map)
        written[LABELS] = labels_txt(label_map)
    moved = [
        *(shard.index for shards in by_split.values() for shard in shards),
        *(file.file for file in rejects),
    ]
    files = [
        FileEntry(path=file.destination, size_bytes=file.size_bytes, crc32c=file.crc32c)
        for file in moved
    ] + [
        FileEntry(path=path, size_bytes=len(data), crc32c=f"{google_crc32c.value(data):08x}")
        for path, data in written.items()
    ]
    fingerprint = Fingerprint()
    for shard in shards:
        fingerprint.merge(Fingerprint.from_hex(shard.fingerprint, count=shard.inputs))
    manifest = Manifest(
        shardbeam=dataset.shardbeam,
        name=dataset.name,
        version=dataset.version,
        seed=dataset.seed,
        config=dict(dataset.config),
        codecs=dataset.codecs,
        inputs=InputEntry(images=fingerprint.count, fingerprint=fingerprint.hex()),
        labels=label_map.ids,
        features=dataset.schema,
        splits={
            split: SplitEntry(
                shards=tuple(_shard_entry(shard) for shard in by_split.get(split, [])),
                outcome=outcome,
            )
            for split, outcome in splits.items()
        },
        files=tuple(sorted(files, key=lambda file: file.path)),
    )
    outcome = Outcome(
        status=Status.COMMITTED,
        splits=splits,
        rejects=join_uri(staging.output, "rejects") if rejects else "",
        reuse=count_reuse(run.previous, shards),
        resumed=count_resumed(shards),
    )
    record = _run_record(run, plan=staging.plan, listing=listing, outcome=outcome)
    written[MANIFEST] = encode_manifest(manifest)
    written[run_path(staging.run_id)] = msgspec.json.format(msgspec.json.encode(record)) + b"\n"
    # Whoever sees this file sees a whole dataset.
    written[DATASET_INFO] = dataset_info_json(
        name=dataset.name,
        version=dataset.version,
        description=dataset.description,
        file_name=dataset.file_name,
        file_format=dataset.file_format,
        splits=[
            SplitSize(
                split=split,
                shard_lengths=[shard.examples for shard in by_split[split]],
                num_bytes=splits[split].num_bytes,
            )
            for split in dataset.splits
        ],
    )
    for path, data in written.items():
        # The gate has removed the old one: another is that of a run that came in between.
        staging.write_file(path, data, new=path == DATASET_INFO)


def run_path(run_id: str) -> str:
    """Names the file that describes a run, relative to the dataset's folder."""
    return f"{RUNS_FOLDER}/{run_id}.json"


def read_runs(output: str) -> list[RunRecord]:
    """Returns the runs that committed to `output`, oldest first, as far as they can be decoded."""
    storage = storage_for(output)
    runs = []
    for file in sorted(storage.list(join_uri(output, RUNS_FOLDER)), key=lambda file: file.path):
        if RUN_FILE.fullmatch(f"{RUNS_FOLDER}/{file.path}"):
            # One of another version may look different.
            with contextlib.suppress(msgspec.DecodeError):
                runs.append(msgspec.json.decode(storage.read(file.uri), type=RunRecord))
    return runs


def _shard_entry(shard: ShardResult) -> ShardEntry:
    return ShardEntry(
        path=shard.data.destination,
        examples=shard.examples,
        num_bytes=shard.data.size_bytes,
        crc32c=shard.data.crc32c,
    )


def _run_record(
    run: RunSettings,
    *,
    plan: str,
    listing: ListingSummary,
    outcome: Outcome,
) -> RunRecord:
    started = datetime.datetime.fromisoformat(run.started_at)
    finished = datetime.datetime.now(tz=datetime.timezone.utc)
    return RunRecord(
        plan=plan,
        started_at=run.started_at,
        finished_at=finished.isoformat(),
        wall_time_s=(finished - started).total_seconds(),
        runner=run.runner,
        host=platform.node(),
        python=platform.python_version(),
        listing=listing,
        annotation_files=run.annotation_files,
        outcome=outcome,
    )
