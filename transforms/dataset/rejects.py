"""The files of rejects and of corrections: sorted JSON Lines; many rejects make several files."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from shardbeam.configs.passwords import hide_passwords
from shardbeam.transforms.core.corrections import MOST_NAMED, Corrections
from shardbeam.transforms.core.counts import Count, count_all, encode_element
from shardbeam.transforms.core.reasons import ALLOWED_OF_A_KIND, ALLOWED_REASONS
from shardbeam.transforms.core.records import Corrected, Record, Reject
from shardbeam.transforms.core.sharding import HASH_BYTES, NO_SPLIT, shard_index
from shardbeam.transforms.core.text import escape
from shardbeam.transforms.dataset.collectors.statistics import first_corrections
from shardbeam.transforms.dataset.dataset_files import DatasetFile, describe_data
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.find import storage_for

# No split can have this name.
_NO_SPLIT_FILE = "no-split"
# One worker holds and sorts all rejects of a file.
_REJECTS_PER_FILE = 100_000
# Rejects of a split that a message names.
_NAMED = 3


class RejectsFile(msgspec.Struct, frozen=True, kw_only=True):
    """A staged file of one split's rejects; a split with many rejects has several such files.

    Attributes:
        split: The split.
        staged: The folder, below the plan's staging folder, with the file under its final path.
        file: The file.
        counts: `{reason: count}`.
        unlisted: How many of them are not listed images.
        first: The first of them.
        received: The count of the rejects.
        allowed: The first of those that the allowance may cover, of each kind.
        unwritten: `{source: images that were passed on to be encoded, and rejected}`.
    """

    split: str
    staged: str
    file: DatasetFile
    counts: Mapping[str, int]
    unlisted: int
    first: tuple[Reject, ...] = ()
    received: Count = msgspec.field(default_factory=Count)
    allowed: tuple[Reject, ...] = ()
    unwritten: Mapping[str, int] = {}


def first_rejects(*rejects: Reject) -> tuple[Reject, ...]:
    """Returns the few rejects that a message names; their order does not matter."""
    return tuple(sorted(rejects, key=msgspec.structs.astuple)[:_NAMED])


def describe_rejects(counts: Mapping[str, int], *, first: Iterable[Reject]) -> str:
    """Describes rejects: the count of each reason, and the first rejects."""
    by_reason = ", ".join(f"{count:,} {reason}" for reason, count in counts.items())
    named = ", ".join(
        f"{name_image(reject.source, reject.key)} ({reject.reason.value}: {reject.detail})"
        for reject in first
    )
    return escape(f"{by_reason}; the first: {named}")


def describe_split_rejects(
    split: str, counts: Mapping[str, int], *, first: Iterable[Reject]
) -> str:
    """Describes the rejects of a split, or of no split, on a line that names it."""
    where = f"split {split!r}" if split != NO_SPLIT else "no split"
    return f"{where}: {describe_rejects(counts, first=first)}"


def name_image(source: str, key: str) -> str:
    """Names an image, and its source unless that is the first or only one of its split."""
    # Only the second and later sources of a split have a slash in their name.
    return f"{key} of {source}" if "/" in source else key


def rejects_path(reject: Reject, *, counts: Mapping[str, int]) -> str:
    """Returns the path of a reject's file, numbered like a shard if its split has several files.

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
    """Returns a regular expression for the paths of all files of rejects of these splits."""
    names = "|".join(map(re.escape, (*splits, _NO_SPLIT_FILE)))
    return rf"rejects/(?:{names})(?:-\d+-of-\d+)?\.jsonl"


def write_rejects(
    split: str, path: str, rejects: Iterable[Reject], *, root: str, folder: str
) -> RejectsFile:
    """Writes one file of rejects to staging.

    Args:
        split: The file's split.
        path: The file's path below the dataset's folder.
        rejects: The rejects of the file, in any order.
        root: The plan's staging folder.
        folder: The run's folder in it.
    """
    ordered = sorted(rejects, key=msgspec.structs.astuple)
    lines = (hide_passwords(msgspec.json.encode(reject).decode()) for reject in ordered)
    data = "".join(f"{line}\n" for line in lines).encode()
    storage_for(root).replace(join_uri(root, folder, path), data)
    return RejectsFile(
        split=split,
        staged=folder,
        file=describe_data(path, data),
        counts=dict(Counter(reject.reason.value for reject in ordered)),
        unlisted=sum(not reject.listed for reject in ordered),
        first=tuple(ordered[:_NAMED]),
        received=count_all(map(encode_element, ordered)),
        allowed=tuple(
            reject
            for reasons in ALLOWED_REASONS.values()
            for reject in itertools.islice(
                (reject for reject in ordered if reject.reason in reasons), ALLOWED_OF_A_KIND
            )
        ),
        unwritten=dict(Counter(reject.source for reject in ordered if reject.stage == "encode")),
    )


CORRECTIONS_FOLDER = "corrections"


class CorrectionsCollector:
    """Collects the first corrections of each kind in a shard; images may come in any order."""

    def __init__(self, split: str) -> None:
        self._split = split
        self._lines: list[Corrected] = []
        self._room = 0

    def add(self, record: Record, corrections: Corrections) -> None:
        """Adds the corrections of an image."""
        if not corrections:
            return
        self._lines += self._lines_of(record, corrections)
        if len(self._lines) > self._room:
            self._lines = list(self.first())
            # Sort again only after the list has doubled, so that sorting stays cheap.
            self._room = 2 * len(self._lines) + MOST_NAMED

    def _lines_of(self, record: Record, corrections: Corrections) -> Iterator[Corrected]:
        for what, count in corrections.items():
            changes = corrections.changes.get(what, [])
            for number in range(min(count, MOST_NAMED)):
                before, after = changes[number] if number < len(changes) else (None, None)
                yield Corrected(
                    split=self._split,
                    source=record.source,
                    key=record.key,
                    what=what,
                    before=before,
                    after=after,
                )

    def first(self) -> tuple[Corrected, ...]:
        """Returns the first corrections of each kind."""
        return first_corrections(self._lines)


def corrections_path(split: str) -> str:
    """Names the file of a split's corrections, below the dataset's folder."""
    return f"{CORRECTIONS_FOLDER}/{split}.jsonl"


def encode_corrections(lines: Iterable[Corrected]) -> bytes:
    """Renders the file of a split's corrections."""
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
