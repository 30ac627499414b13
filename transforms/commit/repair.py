"""Compares a repair with the dataset that it repairs, before the commit.

A repair reads the sources again. Their names, sizes and times were found to be unchanged, but not
their content: a picture may have been replaced by another of the same size and time.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from shardbeam.transforms.commit.runs import was_edited
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.core.records import Reject
from shardbeam.transforms.dataset.dataset_files import DatasetFile, ShardEntry
from shardbeam.transforms.dataset.file_names import MANIFEST
from shardbeam.transforms.dataset.index import load_index
from shardbeam.transforms.dataset.manifest import Manifest, decode_manifest
from shardbeam.transforms.dataset.metadata import DatasetSettings
from shardbeam.transforms.dataset.outcome import Outcome, Status
from shardbeam.transforms.dataset.shard_result import ShardResult
from shardbeam.transforms.staging.staging import Staging
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.listed_files import read_listed

_NAMED_SHARDS = 10
_NAMED_IMAGES = 3
_COLUMNS = ("source", "key", "sha256", "length", "crc32c")

_ImageKey = tuple[str, str]
# SHA-256 of the picture, length and CRC-32C of each Example of an image.
_Rows = list[tuple[str, int, "int | None"]]


def decide_repair(
    outcome: Outcome,
    shards: Sequence[ShardResult],
    label_map: LabelMap,
    *,
    dataset: DatasetSettings,
    staging: Staging,
) -> Outcome:
    """Refuses a repair that would change the dataset, whatever the outcome is so far.

    Each shard must have the CRC-32C and the number of examples that the manifest gives it. If the
    manifest itself was changed, the shard is compared with the old index: the SHA-256 of each image
    and the CRC-32C of each Example.

    Args:
        outcome: The outcome so far.
        shards: All shards.
        label_map: The labels.
        dataset: The config, and the versions of this program and its libraries.
        staging: Where the shards wait; its output is the dataset.

    Raises:
        InputError: The manifest is gone or damaged, or cannot be read.
    """
    uri = join_uri(staging.output, MANIFEST)
    data = read_listed(uri, max_bytes=limits.METADATA_BYTES)
    manifest = decode_manifest(data, uri=uri)
    # A manifest that was changed says nothing that can be relied on.
    relied_on = None if was_edited(data, manifest=manifest, output=staging.output) else manifest
    found = list(_find_differences(shards, label_map, manifest=relied_on, staging=staging))
    if not found:
        return outcome
    more = len(found) - _NAMED_SHARDS
    lines = [
        "the repair would change the dataset, so nothing was changed",
        *found[:_NAMED_SHARDS],
        *([f"... and {more:,} more"] if more > 0 else []),
        _describe_cause(
            {"Shardbeam": manifest.shardbeam, **manifest.codecs},
            {"Shardbeam": dataset.shardbeam, **dataset.codecs},
        ),
        "put back the files that it was built from and run the same command again, or build a new "
        f"dataset: shardbeam build CONFIG --overwrite --reuse {staging.output}",
    ]
    return msgspec.structs.replace(
        outcome,
        status=Status.NOT_REPAIRED,
        message="\n".join([*lines, *filter(None, [outcome.message])]),
        # These files are not kept.
        rejects="",
        corrections="",
    )


def _find_differences(
    shards: Sequence[ShardResult],
    label_map: LabelMap,
    *,
    manifest: Manifest | None,
    staging: Staging,
) -> Iterator[str]:
    """Compares staged shards with the dataset that they are to repair: yields a line for each.

    Args:
        shards: All shards.
        label_map: The labels.
        manifest: The dataset's manifest; None if it was changed.
        staging: Where the shards wait.
    """
    ordered = sorted(shards, key=lambda shard: (shard.split, shard.shard_index))
    if manifest is None:
        for shard in ordered:
            if problem := _compare(shard, entry=None, index=None, staging=staging):
                yield f"{shard.data.path}: {problem}"
        return
    listed = {entry.path: entry for entry in manifest.shards()}
    files = {file.path: file for file in manifest.files}
    if manifest.labels != label_map.ids:
        yield "the classes differ from the manifest's"
    built = {shard.data.path for shard in shards}
    yield from (f"{path}: would be missing" for path in listed if path not in built)
    differing = 0
    for shard in ordered:
        path, entry = shard.data.path, listed.get(shard.data.path)
        if entry is None:
            yield f"{path}: would be a new shard"
        elif (entry.crc32c, entry.examples) != (shard.data.crc32c, shard.data.examples):
            # To name images, both indexes must be read: do this only for the first shards.
            differing += 1
            index = files.get(shard.index.path)
            named = differing <= _NAMED_SHARDS
            problem = _compare(shard, entry=entry, index=index, staging=staging) if named else ""
            yield f"{path}: {problem or 'differs'}"


def _compare(
    shard: ShardResult, *, entry: ShardEntry | None, index: DatasetFile | None, staging: Staging
) -> str:
    """Describes how a shard differs from that of the dataset; empty if it does not.

    Args:
        shard: The shard.
        entry: Its entry in the manifest, if the manifest can be relied on.
        index: The entry of its index, as well.
        staging: Where it waits.
    """
    path = shard.index.path
    moved = join_uri(staging.output, path)
    old = _read_examples([moved], listed=index)
    # A killed commit may have moved the new index already.
    new = _read_examples([staging.uri(shard.staged, path), moved], listed=shard.index)
    if entry is None and old is None:
        return "cannot be compared: the manifest was changed, and its index is gone or damaged"
    if entry is None and old == new:
        return ""
    parts = []
    if entry is not None and entry.examples != shard.data.examples:
        parts.append(f"{shard.data.examples:,} examples, but the manifest says {entry.examples:,}")
    if old is not None and new is not None:
        # A shard's result travels without its rejects.
        finished = staging.read_shard(shard_key=shard.key)
        rejects = finished.rejects if finished is not None else ()
        parts += _compare_images(old, new, rejects=rejects)
    return "; ".join(parts) or "other bytes"


def _compare_images(
    old: Mapping[_ImageKey, _Rows],
    new: Mapping[_ImageKey, _Rows],
    *,
    rejects: Iterable[Reject],
) -> Iterator[str]:
    """Names the images that differ, one text for each kind of change."""
    rejected = {(reject.source, reject.key): reject for reject in rejects}
    changes: dict[str, list[str]] = defaultdict(list)
    for image in {**old, **new}:
        before, after = old.get(image), new.get(image)
        if before == after:
            continue
        name = repr(image[1])
        if after is None:
            reject = rejected.get(image)
            cause = f"{reject.reason.value}: {reject.detail}" if reject else "left out"
            changes["no longer written"].append(f"{name} ({cause})")
        elif before is None:
            changes["not written then"].append(name)
        elif [sha256 for sha256, *_ in before] != [sha256 for sha256, *_ in after]:
            changes["another picture"].append(name)
        else:
            changes["the same picture with other labels or features"].append(name)
    for change, names in changes.items():
        more = len(names) - _NAMED_IMAGES
        rest = f" and {more:,} more" if more > 0 else ""
        yield f"{change}: {', '.join(names[:_NAMED_IMAGES])}{rest}"


def _read_examples(
    uris: Iterable[str], *, listed: DatasetFile | None
) -> dict[_ImageKey, _Rows] | None:
    """Reads the first index that exists and is not damaged; None if there is none."""
    for uri in uris:
        with contextlib.suppress(InputError):
            found: dict[_ImageKey, _Rows] = defaultdict(list)
            for row in load_index(uri, listed=listed, columns=_COLUMNS).to_pylist():
                example = (row["sha256"], row["length"], row.get("crc32c"))
                found[row["source"], row["key"]].append(example)
            return found
    return None


def _describe_cause(then: Mapping[str, str], now: Mapping[str, str]) -> str:
    others = [
        f"{name} {then.get(name, 'unknown')} (now {version})"
        for name, version in now.items()
        if then.get(name) != version
    ]
    if others:
        return f"it was built by other versions, which may be the cause: {', '.join(others)}"
    return (
        "all files have the same sizes and times as then: one was replaced by another of the same "
        "size and time, or could not be read then"
    )
