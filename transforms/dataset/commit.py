"""The commit: a gate, a rename a file, and a finish that writes `dataset_info.json` last.

Each step can be repeated at any point, also by a run that is started again after a kill.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import google_crc32c
import msgspec

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import Reject
from shardbeam.transforms.core.sharding import HASH_BYTES, NO_SPLIT, shard_index
from shardbeam.transforms.dataset.census import Census
from shardbeam.transforms.dataset.manifest import Manifest, decode_manifest
from shardbeam.transforms.dataset.object_lease import LEASE_PATH
from shardbeam.transforms.dataset.outcome import (
    Outcome,
    Resumed,
    Reuse,
    SplitOutcome,
    Status,
    add_counts,
)
from shardbeam.transforms.dataset.shard_record import (
    RECORD_FILE,
    RECORDS_FOLDER,
    encode_record,
    record_path,
)
from shardbeam.transforms.dataset.shard_result import Origin, ShardResult, StagedFile
from shardbeam.transforms.dataset.staging import (
    STAGING_FOLDER,
    Staging,
    is_in_place,
    staged_commits,
)
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.find import storage_for

DATASET_INFO = "dataset_info.json"
MANIFEST = "manifest.json"
RUNS_FOLDER = "runs"
# No split can have this name.
_NO_SPLIT_FILE = "no-split"
# Whoever writes a file of rejects holds and sorts all that are in it.
_REJECTS_PER_FILE = 100_000
# A user may well have a `runs` folder, too.
RUN_FILE = re.compile(rf"{RUNS_FOLDER}/\d{{8}}T\d{{6}}\.\d{{6}}Z\.json")


class RefusedError(Exception):
    """The gate refused to commit; the run's outcome says why."""


class Move(msgspec.Struct, frozen=True, array_like=True):
    """What the commit does in one go.

    Attributes:
        file: The staged file that it moves into place.
        shard_key: Of which shard a record is kept; empty where the file stands for none.
    """

    file: StagedFile
    shard_key: str = ""


class RejectsFile(msgspec.Struct, frozen=True, array_like=True):
    """Rejects of one split, in staging: all of them, unless they are very many.

    Attributes:
        split: The split.
        file: The file.
        counts: `{reason: count}`.
        listed: How many of them are listed images.
    """

    split: str
    file: StagedFile
    counts: Mapping[str, int]
    listed: int


class RejectsPart(NamedTuple):
    """Which file a reject goes to: the key of a shuffle.

    Attributes:
        split: Its split.
        file_index: Which of the split's files of rejects.
        num_files: How many the split has.
    """

    split: str
    file_index: int = 0
    num_files: int = 1

    @property
    def file_name(self) -> str:
        """The file's name; numbered like a shard where there are several."""
        name = self.split or _NO_SPLIT_FILE
        if self.num_files > 1:
            name = f"{name}-{self.file_index:05d}-of-{self.num_files:05d}"
        return f"{name}.jsonl"


def assign_rejects_file(reject: Reject, *, counts: Mapping[str, int]) -> RejectsPart:
    """Finds the file of a reject, such that none grows with the dataset.

    Args:
        reject: The reject.
        counts: `{split: all its rejects}`.
    """
    num_files = max(1, math.ceil(counts[reject.split] / _REJECTS_PER_FILE))
    digest = hashlib.blake2b(msgspec.msgpack.encode(reject), digest_size=HASH_BYTES).digest()
    return RejectsPart(reject.split, shard_index(digest, num_shards=num_files), num_files)


def write_rejects(part: RejectsPart, rejects: Iterable[Reject], *, staging: Staging) -> RejectsFile:
    """Writes one file of rejects to staging: JSON Lines, sorted."""
    ordered = sorted(
        rejects,
        key=lambda reject: (
            reject.source,
            reject.key,
            reject.stage,
            reject.reason.value,
            reject.detail,
            reject.listed,
        ),
    )
    data = b"".join(msgspec.json.encode(reject) + b"\n" for reject in ordered)
    name = part.file_name
    storage_for(staging.root).replace(join_uri(staging.rejects_root, name), data)
    return RejectsFile(
        split=part.split,
        file=StagedFile(
            staged=join_uri("runs", staging.run_id, "rejects", name),
            destination=join_uri("rejects", name),
            size_bytes=len(data),
            crc32c=f"{google_crc32c.value(data):08x}",
        ),
        counts=dict(Counter(reject.reason.value for reject in ordered)),
        listed=sum(reject.listed for reject in ordered),
    )


def count_splits(
    *,
    splits: Sequence[str],
    census: Census,
    shards: Iterable[ShardResult],
    rejects: Iterable[RejectsFile],
) -> dict[str, SplitOutcome]:
    """Counts what became of everything, each number from the data of the step that knows it.

    Returns:
        The counts of each split, and under `NO_SPLIT` those of what belongs to none, if any.
    """
    written: dict[str, list[ShardResult]] = {split: [] for split in splits}
    for shard in shards:
        written[shard.split].append(shard)
    rejected = _count_rejects(rejects)
    listed = _listed_by_split(splits, census=census)
    counts = {}
    for split in dict.fromkeys([*splits, *listed, *census.splits, *rejected]):
        joined = census.splits.get(split, SplitOutcome())
        lost = rejected.get(split, _Rejected())
        results = written.get(split, [])
        counts[split] = SplitOutcome(
            listed=listed.get(split, 0),
            images=sum(shard.images for shard in results),
            examples=sum(shard.examples for shard in results),
            shards=len(results),
            num_bytes=sum(shard.data.size_bytes for shard in results),
            unannotated=joined.unannotated,
            rejected=lost.counts,
            unlisted=sum(lost.counts.values()) - lost.listed,
            excluded=add_counts(joined.excluded, *(shard.excluded for shard in results)),
            corrections=add_counts(*(shard.corrections for shard in results)),
        )
    return counts


class _Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """The rejects of one split: sums of what its `RejectsFile`s say."""

    counts: Mapping[str, int] = {}
    listed: int = 0


def _count_rejects(files: Iterable[RejectsFile]) -> dict[str, _Rejected]:
    rejected: dict[str, _Rejected] = {}
    for file in files:
        before = rejected.get(file.split, _Rejected())
        rejected[file.split] = _Rejected(
            counts=add_counts(before.counts, file.counts),
            listed=before.listed + file.listed,
        )
    return rejected


def _listed_by_split(splits: Sequence[str], *, census: Census) -> dict[str, int]:
    """Counts the inputs of each split: where only sources tell splits, by what was joined."""
    files = census.listing.files
    if set(files) - {NO_SPLIT}:
        return dict(files)
    counts = {split: census.splits.get(split, SplitOutcome()).listed for split in splits}
    if files:
        # What the listing has and the join has not would come to light here.
        if others := files[NO_SPLIT] - sum(counts.values()):
            counts[NO_SPLIT] = others
    elif NO_SPLIT in census.splits:
        # Rows of a table without images.
        counts[NO_SPLIT] = census.splits[NO_SPLIT].listed
    return counts


def count_reuse(previous: str, shards: Sequence[ShardResult]) -> Reuse | None:
    """Counts what was taken over from the previous version of the dataset.

    Args:
        previous: Its folder; empty where none was named.
        shards: All shards.
    """
    if not previous:
        return None
    copied = [shard for shard in shards if shard.origin is Origin.COPIED]
    return Reuse(
        previous=previous,
        copied_shards=len(copied),
        copied_images=sum(shard.images for shard in copied),
        unread_images=sum(shard.records for shard in copied),
        damaged_shards=sum(shard.origin is Origin.MENDED for shard in shards),
    )


def count_resumed(shards: Iterable[ShardResult]) -> Resumed:
    """Counts what was taken over from earlier runs that did not commit."""
    resumed = [shard for shard in shards if shard.resumed]
    return Resumed(
        shards=len(resumed),
        examples=sum(shard.examples for shard in resumed),
        images=sum(shard.images for shard in resumed),
    )


def judge(splits: Mapping[str, SplitOutcome], *, max_ratio: float, rejects_root: str) -> Outcome:
    """Decides whether a dataset may be committed.

    Args:
        splits: What became of everything.
        max_ratio: The greatest share of a split's inputs that may be rejected.
        rejects_root: Where the rejects files are.

    Returns:
        APPROVED; FAILED where the counts do not add up, or no examples are left of a split, which
        no reader could load; REFUSED where too much was rejected.
    """
    root = rejects_root if any(split.rejected for split in splits.values()) else ""
    lost = []
    over = []
    empty = []
    for name, split in splits.items():
        rejected = sum(split.rejected.values()) - split.unlisted
        excluded = sum(split.excluded.values())
        if split.listed != split.images + rejected + excluded:
            lost.append(
                f"split {name!r}: {split.listed} listed, but {split.images} written + "
                f"{rejected} rejected + {excluded} excluded"
            )
        if name == NO_SPLIT:
            continue
        if split.reject_ratio > max_ratio:
            over.append(
                f"split {name!r}: {sum(split.rejected.values())} of "
                f"{split.listed + split.unlisted} inputs rejected ({split.reject_ratio:.2%}); "
                f"rejects.max_ratio allows {max_ratio:.2%}"
            )
        if not split.examples:
            empty.append(f"split {name!r}")
    if lost:
        message = "the counts do not add up, nothing was committed: " + "; ".join(lost)
        return Outcome(status=Status.FAILED, splits=splits, message=message, rejects=root)
    if over:
        message = "too many rejects, nothing was committed: " + "; ".join(over)
        return Outcome(status=Status.REFUSED, splits=splits, message=message, rejects=root)
    if empty:
        message = f"no examples are left, nothing was committed: {'; '.join(empty)}"
        return Outcome(status=Status.FAILED, splits=splits, message=message, rejects=root)
    return Outcome(status=Status.APPROVED, splits=splits, rejects=root)


def prepare_output(
    files: Sequence[StagedFile],
    *,
    metadata: Sequence[str],
    staging: Staging,
    shard_keys: Collection[str] = (),
) -> None:
    """Makes the output ready for the moves: what an older commit left there goes.

    `dataset_info.json` goes first: from then on readers see no dataset until the finish. Only
    what a manifest of ours, or an unfinished commit of ours, lists is ever removed. The manifest
    itself stays until the finish replaces it: it tells whoever starts a run that was killed again
    that the output is ours.

    Args:
        files: What is going to be moved into the output.
        metadata: Paths of what the finish is going to write there.
        staging: The run's staging area.
        shard_keys: Keys of the shards among them: the records of all others go.

    Raises:
        InputError: A list of what may be removed is damaged; nothing was removed.
    """
    output = staging.output
    storage = storage_for(output)
    commits = staged_commits(output)
    manifest = read_manifest(output)
    storage.delete(join_uri(output, DATASET_INFO))
    old = {path for paths in commits.values() for path in paths}
    kept = {file.destination for file in files}
    # Before another plan's list goes: what lies in the output must be on a list at every moment.
    staging.write_commit({*kept, *metadata, *old})
    for plan, paths in commits.items():
        # The shards that another plan has finished stay: its next run goes on from them.
        if paths and plan != staging.plan:
            storage.delete(Staging(output=output, plan=plan, run_id="").commit_uri)
    if manifest is not None:
        old.update(manifest.paths())
    stale = set(_record_paths(output)).difference(map(record_path, shard_keys))
    storage.delete_many(
        join_uri(output, path) for path in sorted((old - kept - {MANIFEST}) | stale)
    )
    for folder in ("index", "rejects"):
        storage.prune(join_uri(output, folder))


def _record_paths(output: str) -> list[str]:
    """Lists the records of shards, of whichever run, that lie in the output."""
    records = storage_for(output).list(join_uri(output, RECORDS_FOLDER))
    paths = [f"{RECORDS_FOLDER}/{file.path}" for file in records]
    return [path for path in paths if RECORD_FILE.fullmatch(path)]


def move_into_place(file: StagedFile, *, staging: Staging) -> None:
    """Moves one staged file to where it belongs; done already is done.

    Raises:
        InputError: The file is neither in staging nor in place.
    """
    destination = join_uri(staging.output, file.destination)
    try:
        storage_for(destination).rename(staging.uri(file.staged), destination)
    except FileNotFoundError:
        if not is_in_place(file, output=staging.output):
            raise InputError(
                uri=destination,
                problem="its staged file is gone; was it deleted? Run the same command again",
            ) from None


def check_in_place(files: Sequence[StagedFile], *, staging: Staging) -> None:
    """Makes sure that all files are where they belong, before a reader is told so.

    They are compared by size, and by checksum where the storage keeps one.

    Raises:
        InputError: One is gone, or another: it was changed after it was moved.
    """
    storage = storage_for(staging.output)
    uris = [join_uri(staging.output, file.destination) for file in files]
    for file, uri, stored in zip(files, uris, storage.map_many(storage.stat, uris), strict=True):
        if (
            stored is None
            or stored.size_bytes != file.size_bytes
            or stored.crc32c not in ("", file.crc32c)
        ):
            raise InputError(
                uri=uri,
                problem="was changed while the dataset was committed; let nothing else write "
                "there, and run the same command again",
            )


def keep_record(shard_key: str, *, staging: Staging) -> None:
    """Keeps a shard's record in the dataset, for its next version; done already is done.

    Without its done-file, which only goes after the last move, there is nothing left to do.
    """
    shard = staging.read_shard(shard_key=shard_key)
    if shard is None:
        return
    record = encode_record(msgspec.structs.replace(shard, key=shard_key))
    if record is not None:
        staging.write_file(record_path(shard_key), record)
    else:
        # That of an earlier commit, which this one replaces.
        uri = join_uri(staging.output, record_path(shard_key))
        storage_for(uri).delete(uri)


def read_manifest(output: str) -> Manifest | None:
    """Returns the manifest of the dataset in `output`; None where there is none.

    Raises:
        InputError: It is not one of ours, or damaged.
    """
    uri = join_uri(output, MANIFEST)
    try:
        data = storage_for(output).read(uri)
    except FileNotFoundError:
        return None
    return decode_manifest(data, uri=uri)


def foreign_files(output: str) -> list[str]:
    """Finds what is in the output and is not ours: neither in a manifest nor in staging.

    Returns:
        Paths relative to `output`, sorted.
    """
    manifest = read_manifest(output)
    ours = {LEASE_PATH}
    if manifest is not None:
        ours.update(manifest.paths(), (MANIFEST, DATASET_INFO))
    for paths in staged_commits(output).values():
        ours.update(paths)
    return sorted(
        file.path
        for file in storage_for(output).list(output)
        if file.path not in ours
        and not file.path.startswith(f"{STAGING_FOLDER}/")
        and not RUN_FILE.fullmatch(file.path)
        and not RECORD_FILE.fullmatch(file.path)
    )
