"""The moves of a commit: old files of the output are deleted, and staged ones moved into it.

Each step can be repeated at any point, also by a run that is started again after a kill.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.transforms.core.counts import Count, check_arrived, count_all, sum_counts
from shardbeam.transforms.core.errors import InputError, decoding
from shardbeam.transforms.dataset.dataset_files import DatasetFile, check_paths
from shardbeam.transforms.dataset.file_names import DATASET_INFO, MANIFEST, RUN_FILE, STAGING_FOLDER
from shardbeam.transforms.dataset.manifest import read_manifest
from shardbeam.transforms.shards.shard_records import RECORD_FILE, keep_record, record_path
from shardbeam.transforms.staging.lease import LEASE_PATH
from shardbeam.transforms.staging.staging import (
    COMMIT_LIST,
    Staging,
    explain_write_errors,
    find_misplaced,
)
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.base import ChangedError, StoredFile, join_uri
from shardbeam.transforms.storage.find import storage_for

# A move has three files: a shard, its index and its record.
_MOVES_PER_BATCH = 64
_DELETES_PER_BATCH = 192

# The list of a plan's commit, below the dataset's folder.
_COMMIT_FILE = re.compile(rf"{re.escape(STAGING_FOLDER)}/[^/]+/{re.escape(COMMIT_LIST)}")

T = TypeVar("T")


class Move(msgspec.Struct, frozen=True):
    """Files that are moved together: those of a shard, or one other file of the run.

    Attributes:
        staged: The folder, below the plan's staging folder, with the files under their final paths.
        files: The files.
        shard_key: The shard whose record is kept after the move; empty for other files.
    """

    staged: str
    files: tuple[DatasetFile, ...]
    shard_key: str = ""


class CommitBatch(msgspec.Struct, frozen=True):
    """The files that one worker moves and deletes at a time.

    Attributes:
        moves: The moves.
        deletes: Files of the old dataset, in the versions that were listed.
        all_deletes: The count of the files that all batches delete, so that a lost one is noticed.
    """

    moves: tuple[Move, ...] = ()
    deletes: tuple[StoredFile, ...] = ()
    all_deletes: Count = msgspec.field(default_factory=Count)


def make_batches(moves: Sequence[Move], deletes: Sequence[StoredFile]) -> list[CommitBatch]:
    """Shares moves and deletions out to batches, which workers can process in any order."""
    number = math.ceil(max(len(moves) / _MOVES_PER_BATCH, len(deletes) / _DELETES_PER_BATCH))
    count = _count_files(deletes)
    return [
        CommitBatch(tuple(moves[start::number]), tuple(deletes[start::number]), count)
        for start in range(number)
    ]


def _count_files(files: Iterable[StoredFile]) -> Count:
    return count_all(file.uri.encode() for file in files)


def count_moves(moves: Iterable[Move]) -> Count:
    """Counts moves by their first files."""
    return count_all(move.files[0].path.encode() for move in moves)


def check_all_moved(moves: Iterable[Move], moved: Iterable[Count]) -> None:
    """Compares the planned moves with those that were made.

    Raises:
        InputError: The runner lost a move.
    """
    check_arrived("moves", sent=count_moves(moves), received=sum_counts(moved))


def prepare_output(
    moves: Sequence[Move],
    *,
    metadata: Sequence[str],
    staging: Staging,
    late: re.Pattern[str] | None = None,
    keep: Collection[str] = (),
) -> list[StoredFile]:
    """Makes the output ready for the moves, and finds what an older commit left there.

    `dataset_info.json` is deleted, so that readers see no dataset until `finish` has run. Next to
    go are records of shards, and files that our manifest or an unfinished commit of ours lists.
    Where there is a lease, files named like a shard, an index or rejects go, too: a run that lost
    its lease may have moved them there after another run's commit. The manifest stays until
    `finish` replaces it, so that a run after a kill sees that the output is ours.

    Args:
        moves: What is going to be moved into the output.
        metadata: Paths of the files that `finish` is going to write there.
        staging: The run's staging area.
        late: Matches the names that files of this dataset have.
        keep: Files of the old dataset that stay.

    Returns:
        The files of the old dataset that `move` has to delete.

    Raises:
        InputError: A list of files that may be deleted is damaged; nothing was deleted.
        ChangedError: Another run writes to the output.
        OSError: The output cannot be written.
    """
    output = staging.output
    found = _look_alone(staging)
    commits = {
        path: _decode_commit(read_seen(file), uri=file.uri)
        for path, file in found.items()
        if _COMMIT_FILE.fullmatch(path)
    }
    manifest = read_manifest(output)
    old = {path for paths in commits.values() for path in paths}
    kept = {path for move in moves for path in _paths(move)}
    listed = {*old, *metadata, *(file.path for move in moves for file in move.files)}
    _delete(_pick([DATASET_INFO], found), output=output)
    # Write this list before deleting another plan's: each file in the output must be on a list at
    # every moment. Finished shards of another plan stay, because its next run can use them.
    own = staging.commit_uri.removeprefix(f"{output.rstrip('/')}/")
    staging.write_commit(listed, replaces=found.get(own))
    _delete(_pick(commits.keys() - {own}, found), output=output)
    if manifest is not None:
        old.update(manifest.paths())
    old.update(path for path in found if RECORD_FILE.fullmatch(path))
    if staging.lease is not None and late is not None:
        old.update(path for path in found if late.fullmatch(path))
    return _pick(old - kept - {MANIFEST, DATASET_INFO, *keep}, found)


def _look_alone(staging: Staging) -> dict[str, StoredFile]:
    """Lists the output after making sure that no run that lost its lease can publish there.

    Such a run may be about to rename its staged `dataset_info.json` into place. Deleting the staged
    file stops it; if the rename came first, the next listing shows its result.
    """
    storage = storage_for(staging.output)
    while True:
        found = {file.path: file for file in storage.list(staging.output)}
        staging.check_lease()
        scratch = [file for path, file in found.items() if staging.is_scratch_of_others(path)]
        if not scratch:
            return found
        storage.delete_many(scratch)


def move(batch: CommitBatch, *, staging: Staging) -> Count:
    """Deletes old files and moves staged ones into the output, unless that was done before.

    Args:
        batch: The files.
        staging: The run's staging area.

    Returns:
        The count of the old files.

    Raises:
        InputError: A staged file is neither in staging nor in place, another run has taken the
            output or written one of the old files meanwhile, or the output cannot be written.
    """
    storage = storage_for(staging.output)
    with explain_write_errors(staging.output):
        staging.check_mark()
        seen = find_files(
            [path for move in batch.moves for path in _paths(move)], output=staging.output
        )
        staging.check_lease()
        _delete(batch.deletes, output=staging.output)
        one = functools.partial(_move, seen=seen, staging=staging)
        for _ in storage.map_many(one, batch.moves):
            pass
    return _count_files(batch.deletes)


def _move(move: Move, *, seen: Mapping[str, StoredFile | None], staging: Staging) -> None:
    storage = storage_for(staging.output)
    for file in move.files:
        destination = join_uri(staging.output, file.path)
        old = seen[file.path]
        try:
            storage.rename(
                staging.uri(move.staged, file.path),
                destination,
                replaces=None if old is None else old.version,
            )
        except FileNotFoundError:
            stored = storage.stat(destination)
            if (
                stored is None
                or find_misplaced([file], output=staging.output, read=True) is not None
            ):
                raise InputError(
                    uri=destination,
                    problem="its staged file is gone; was it deleted? Run the same command again",
                ) from None
            # A run that lost its lease may be about to delete or replace the version that it saw.
            storage.renew(stored)
    if move.shard_key:
        keep_record(move.shard_key, replaces=seen[record_path(move.shard_key)], staging=staging)


def check_moved(batch: CommitBatch, deleted: Iterable[Count], *, staging: Staging) -> Count:
    """Checks that files are still as they were moved.

    Args:
        batch: The files.
        deleted: What `move` returned for each batch: no file is checked before all have moved.
        staging: The run's staging area.

    Returns:
        The count of the moves.

    Raises:
        InputError: The runner lost a deletion, a moved file is gone or was changed, or the output
            cannot be read.
    """
    check_arrived("files of the old dataset", sent=batch.all_deletes, received=sum_counts(deleted))
    files = [file for move in batch.moves for file in move.files]
    with explain_write_errors(staging.output):
        staging.check_mark()
        misplaced = find_misplaced(files, output=staging.output, read=False)
    if misplaced is not None:
        raise InputError(
            uri=misplaced,
            problem="was changed while the dataset was committed; let nothing else write "
            "there, and run the same command again",
        )
    return count_moves(batch.moves)


def clear(batch: CommitBatch, done: object, *, staging: Staging) -> None:
    """Deletes what is left in staging of the shards of a batch; `end_commit` deletes the rest.

    Args:
        batch: The batch.
        done: The result of the commit, whose files are all in place.
        staging: The run's staging area.

    Raises:
        InputError: Another run has taken the output, or the output cannot be written.
    """
    del done
    with explain_write_errors(staging.output):
        staging.check_lease()
        staging.forget_shards(move.shard_key for move in batch.moves if move.shard_key)


def end_commit(done: T, cleared: Iterable[None] = (), *, staging: Staging) -> T:
    """Removes the rest of staging and releases the lease, after all batches are cleared.

    Args:
        done: The result of the commit.
        cleared: What `clear` returned for each batch.
        staging: The run's staging area.

    Returns:
        `done`.

    Raises:
        InputError: Another run has taken the output, or the output cannot be written.
    """
    del cleared
    with explain_write_errors(staging.output):
        staging.clear()
    staging.release_lease()
    return done


def staged_commits(output: str) -> Mapping[str, list[str]]:
    """Finds the plans that have something staged under `output`.

    Returns:
        `{plan: paths that its commit may have created}`; no paths if the commit has not begun.

    Raises:
        InputError: A commit's list is damaged, or names a path outside the output.
    """
    storage = storage_for(output)
    commits: dict[str, list[str]] = {}
    for file in storage.list(join_uri(output, STAGING_FOLDER)):
        plan, _, name = file.path.partition("/")
        commits.setdefault(plan, [])
        if name == COMMIT_LIST:
            data = storage.read_small(file.uri, max_bytes=limits.METADATA_BYTES)
            commits[plan] = _decode_commit(data, uri=file.uri)
    return commits


def _decode_commit(data: bytes, *, uri: str) -> list[str]:
    """Reads the list of a commit.

    Raises:
        InputError: It is damaged, or names a path outside the output.
    """
    with decoding(uri, "the list of a commit"):
        paths = JsonDecoder(list[str]).decode(data)
    check_paths(paths, uri=uri)
    return paths


def foreign_files(output: str) -> list[str]:
    """Finds files in the output that are not ours: no list of ours names them.

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


def _paths(move: Move) -> list[str]:
    """Lists the paths that a move may write."""
    records = [record_path(move.shard_key)] if move.shard_key else []
    return [*(file.path for file in move.files), *records]


def _pick(paths: Iterable[str], found: Mapping[str, StoredFile]) -> list[StoredFile]:
    return [found[path] for path in sorted(paths) if path in found]


def _delete(files: Iterable[StoredFile], *, output: str) -> None:
    """Deletes files in the versions that were listed.

    Raises:
        ChangedError: Another run has written one of them meanwhile.
    """
    if not storage_for(output).delete_many(files):
        raise ChangedError("a file of the old dataset was changed meanwhile")


def find_files(paths: Sequence[str], *, output: str) -> dict[str, StoredFile | None]:
    """Finds files of the output by their paths; None for each that is not there."""
    storage = storage_for(output)
    uris = [join_uri(output, path) for path in paths]
    return dict(zip(paths, storage.map_many(storage.stat, uris), strict=True))


def read_seen(file: StoredFile) -> bytes:
    """Reads the version of a small file that was seen."""
    storage = storage_for(file.uri)
    return storage.read_small(file.uri, max_bytes=limits.METADATA_BYTES, version=file.version)
