"""The files of rejects: JSON Lines, sorted, none of which grows with the dataset."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from shardbeam.configs.passwords import hide_passwords
from shardbeam.transforms.core.edges import REJECTS, Edges, encode_element
from shardbeam.transforms.core.records import Reject
from shardbeam.transforms.core.sharding import HASH_BYTES, shard_index
from shardbeam.transforms.dataset.files import DatasetFile, describe_data
from shardbeam.transforms.dataset.staging import Staging
from shardbeam.transforms.storage.find import storage_for

# No split can have this name.
_NO_SPLIT_FILE = "no-split"
# The worker that writes a file of rejects holds and sorts all that are in it.
_REJECTS_PER_FILE = 100_000
# Rejects of a split that a message names.
_NAMED = 3


class RejectsFile(msgspec.Struct, frozen=True, kw_only=True):
    """Rejects of one split, in staging: all of them, unless they are very many.

    Attributes:
        split: The split.
        staged: The folder below the plan's staging folder where the file is, at its path.
        file: The file.
        counts: `{reason: count}`.
        unlisted: How many of them are no listed images.
        first: The first of them.
        edges: What has arrived of them.
    """

    split: str
    staged: str
    file: DatasetFile
    counts: Mapping[str, int]
    unlisted: int
    first: tuple[Reject, ...] = ()
    edges: Edges = msgspec.field(default_factory=Edges)


def first_rejects(*rejects: Reject) -> tuple[Reject, ...]:
    """Returns the few that a message names, the same ones in whatever order they come."""
    return tuple(sorted(rejects, key=msgspec.structs.astuple)[:_NAMED])


def describe_rejects(counts: Mapping[str, int], *, first: Iterable[Reject]) -> str:
    """Describes rejects: how many there are of each reason, and the first of them."""
    by_reason = ", ".join(f"{count:,} {reason}" for reason, count in counts.items())
    named = ", ".join(
        f"{name_image(reject.source, reject.key)} ({reject.reason.value}: {reject.detail})"
        for reject in first
    )
    # Names may hold line ends; those of the message are its own.
    return r"\n".join(f"{by_reason}; the first: {named}".splitlines())


def name_image(source: str, key: str) -> str:
    """Names an image, and its source where it is one of several."""
    # The first of several sources has the name of its split, or is the only one.
    return f"{key} of {source}" if "/" in source else key


def rejects_path(reject: Reject, *, counts: Mapping[str, int]) -> str:
    """Names the file of a reject, numbered like a shard where its split has several.

    Args:
        reject: The reject.
        counts: `{split: all its rejects}`.
    """
    name = reject.split or _NO_SPLIT_FILE
    num_files = math.ceil(counts[reject.split] / _REJECTS_PER_FILE)
    if num_files > 1:
        digest = hashlib.blake2b(encode_element(reject), digest_size=HASH_BYTES).digest()
        name += f"-{shard_index(digest, num_shards=num_files):05d}-of-{num_files:05d}"
    return f"rejects/{name}.jsonl"


def rejects_pattern(splits: Iterable[str]) -> str:
    """Returns a regular expression for the names of all files of rejects that splits may have."""
    names = "|".join(map(re.escape, (*splits, _NO_SPLIT_FILE)))
    return rf"rejects/(?:{names})(?:-\d+-of-\d+)?\.jsonl"


def write_rejects(
    split: str, path: str, rejects: Iterable[Reject], *, staging: Staging
) -> RejectsFile:
    """Writes one file of rejects to staging.

    Args:
        split: Its split.
        path: Its path below the dataset's folder.
        rejects: What goes into it, in any order.
        staging: The run's staging area.
    """
    ordered = sorted(rejects, key=msgspec.structs.astuple)
    edges = Edges()
    for reject in ordered:
        edges.receive(REJECTS, encode_element(reject))
    lines = (hide_passwords(msgspec.json.encode(reject).decode()) for reject in ordered)
    data = "".join(f"{line}\n" for line in lines).encode()
    storage_for(staging.root).replace(staging.uri(staging.run_folder, path), data)
    return RejectsFile(
        split=split,
        staged=staging.run_folder,
        file=describe_data(path, data),
        counts=dict(Counter(reject.reason.value for reject in ordered)),
        unlisted=sum(not reject.listed for reject in ordered),
        first=tuple(ordered[:_NAMED]),
        edges=edges,
    )
