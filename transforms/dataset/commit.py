"""The commit: a gate, moves, and a finish that writes `dataset_info.json` last.

Each step can be repeated at any point, also by a run that is started again after a kill. What
Beam has to do with it is in `transforms.commit_dataset`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import msgspec

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.core.read_ahead import map_many
from shardbeam.transforms.dataset.census import Census
from shardbeam.transforms.dataset.files import DatasetFile, ShardResult
from shardbeam.transforms.dataset.judge import count_resumed, count_reuse, count_splits, judge
from shardbeam.transforms.dataset.manifest import (
    DATASET_INFO,
    MANIFEST,
    RUN_FILE,
    read_manifest,
)
from shardbeam.transforms.dataset.metadata import DatasetSettings, metadata_files, metadata_paths
from shardbeam.transforms.dataset.object_lease import LEASE_PATH
from shardbeam.transforms.dataset.outcome import Outcome, Status
from shardbeam.transforms.dataset.pointer import write_pointer
from shardbeam.transforms.dataset.rejects import RejectsFile
from shardbeam.transforms.dataset.reuse import (
    RECORD_FILE,
    RECORDS_FOLDER,
    keep_record,
    record_path,
)
from shardbeam.transforms.dataset.runs import RunSettings, end_run, run_path
from shardbeam.transforms.dataset.staging import (
    OUTCOME,
    STAGING_FOLDER,
    Staging,
    explain_write_errors,
    find_misplaced,
    staged_commits,
)
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.find import storage_for

_MOVES_PER_BATCH = 64
_MOVES_AT_A_TIME = 16


class RefusedError(Exception):
    """The gate refused to commit; the run's outcome says why."""


class CommitSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is committed, and where.

    Attributes:
        dataset: What the config says about the dataset.
        run: What is particular to this run.
        staging: Where its files wait; it knows the output.
    """

    dataset: DatasetSettings
    run: RunSettings
    staging: Staging


class Move(msgspec.Struct, frozen=True):
    """Files that are moved in one go: those of a shard, or a file of rejects.

    Attributes:
        staged: The folder below the plan's staging folder where they are, at their paths.
        files: The files.
        shard_key: The shard whose record is kept then; empty where they are of none.
    """

    staged: str
    files: tuple[DatasetFile, ...]
    shard_key: str = ""


class MoveBatch(msgspec.Struct, frozen=True):
    """What one worker moves at a time."""

    moves: tuple[Move, ...]


def gate(
    census: Census,
    shards: Sequence[ShardResult],
    rejects: Sequence[RejectsFile],
    *,
    settings: CommitSettings,
) -> list[MoveBatch]:
    """Judges what was written, records the outcome, and makes the output ready for the moves.

    Returns:
        What is to be moved, in any order and in parallel.

    Raises:
        RefusedError: The counts do not add up, or too much was rejected.
        InputError: Another run has taken the output, or it cannot be written.
    """
    dataset, staging = settings.dataset, settings.staging
    # From here on two runs would be in each other's way.
    staging.check_lease()
    outcome = judge(
        count_splits(splits=dataset.splits, census=census, shards=shards, rejects=rejects),
        max_ratio=dataset.max_reject_ratio,
        rejects_root=staging.uri(staging.run_folder, "rejects"),
    )
    outcome = msgspec.structs.replace(
        outcome, reuse=count_reuse(settings.run.previous, shards), resumed=count_resumed(shards)
    )
    moves = _plan_moves(shards, rejects)
    with explain_write_errors(staging.output):
        staging.write_state(OUTCOME, outcome)
        if outcome.status is not Status.APPROVED:
            staging.release_lease()
            raise RefusedError(outcome.message)
        prepare_output(moves, metadata=metadata_paths(dataset), staging=staging)
    starts = range(0, len(moves), _MOVES_PER_BATCH)
    return [MoveBatch(tuple(moves[start : start + _MOVES_PER_BATCH])) for start in starts]


def move(batch: MoveBatch, *, staging: Staging) -> int:
    """Moves staged files to where they belong; done already is done.

    Returns:
        How many moves these were.

    Raises:
        InputError: A file is neither in staging nor in place, another run has taken the output,
            or it cannot be written.
    """
    staging.check_lease()
    with explain_write_errors(staging.output):
        one = functools.partial(_move, staging=staging)
        return sum(1 for _ in map_many(one, batch.moves, threads=_MOVES_AT_A_TIME))


def finish(
    census: Census,
    shards: Sequence[ShardResult],
    rejects: Sequence[RejectsFile],
    label_map: LabelMap,
    *,
    settings: CommitSettings,
) -> str:
    """Writes everything that is not moved, `dataset_info.json` last, and clears staging.

    Returns:
        The dataset's folder.

    Raises:
        InputError: A file that was moved is gone or another, another run has taken the output, or
            it cannot be written.
    """
    dataset, run, staging = settings.dataset, settings.run, settings.staging
    # A repetition must not come after what another run has begun meanwhile.
    staging.check_lease()
    moved = [file for move in _plan_moves(shards, rejects) for file in move.files]
    splits = count_splits(splits=dataset.splits, census=census, shards=shards, rejects=rejects)
    with explain_write_errors(staging.output):
        misplaced = find_misplaced(moved, output=staging.output, read=False)
        if misplaced is not None:
            raise InputError(
                uri=misplaced,
                problem="was changed while the dataset was committed; let nothing else write "
                "there, and run the same command again",
            )
        files = metadata_files(
            dataset=dataset, splits=splits, shards=shards, moved=moved, label_map=label_map
        )
        record = end_run(
            run,
            plan=staging.plan,
            listing=census.listing,
            outcome=Outcome(
                status=Status.COMMITTED,
                splits=splits,
                rejects=join_uri(staging.output, "rejects") if rejects else "",
                reuse=count_reuse(run.previous, shards),
                resumed=count_resumed(shards),
            ),
        )
        # Readers that see this file see a whole dataset.
        info = files.pop(DATASET_INFO)
        files[run_path(staging.run_id)] = msgspec.json.format(msgspec.json.encode(record)) + b"\n"
        for path, data in files.items():
            staging.write_file(path, data)
        # The gate has removed the old one: another is that of a run that came in between.
        staging.write_file(DATASET_INFO, info, new=True)
        # Here, and not in the command, which may not wait for the job.
        if run.latest:
            write_pointer(run.latest, folder=staging.output)
        staging.clear()
    staging.release_lease()
    return staging.output


def _plan_moves(shards: Iterable[ShardResult], rejects: Iterable[RejectsFile]) -> list[Move]:
    return [
        *(Move(shard.staged, (shard.data, shard.index), shard.key) for shard in shards),
        *(Move(rejected.staged, (rejected.file,)) for rejected in rejects),
    ]


def prepare_output(moves: Sequence[Move], *, metadata: Sequence[str], staging: Staging) -> None:
    """Makes the output ready for the moves: what an older commit left there goes.

    `dataset_info.json` goes first: from then on readers see no dataset until the finish. Only
    what a manifest of ours, or an unfinished commit of ours, lists is ever removed, and records
    of shards. The manifest itself stays until the finish replaces it: by it, a run that is started
    again after a kill knows that the output is ours.

    Args:
        moves: What is going to be moved into the output.
        metadata: Paths of what the finish is going to write there.
        staging: The run's staging area.

    Raises:
        InputError: A list of what may be removed is damaged; nothing was removed.
    """
    output = staging.output
    storage = storage_for(output)
    commits = staged_commits(output)
    manifest = read_manifest(output)
    storage.delete(join_uri(output, DATASET_INFO))
    old = {path for paths in commits.values() for path in paths}
    kept = {file.path for move in moves for file in move.files}
    # Before another plan's list goes: what lies in the output must be on a list at every moment.
    staging.write_commit({*kept, *metadata, *old})
    for plan, paths in commits.items():
        # The shards that another plan has finished stay: its next run goes on from them.
        if paths and plan != staging.plan:
            storage.delete(Staging(output=output, plan=plan, run_id="").commit_uri)
    if manifest is not None:
        old.update(manifest.paths())
    records = (
        f"{RECORDS_FOLDER}/{file.path}" for file in storage.list(join_uri(output, RECORDS_FOLDER))
    )
    old.update(path for path in records if RECORD_FILE.fullmatch(path))
    kept.update(record_path(move.shard_key) for move in moves if move.shard_key)
    storage.delete_many(join_uri(output, path) for path in sorted(old - kept - {MANIFEST}))
    for folder in ("index", "rejects"):
        storage.prune(join_uri(output, folder))


def _move(move: Move, *, staging: Staging) -> None:
    for file in move.files:
        destination = join_uri(staging.output, file.path)
        try:
            storage_for(destination).rename(staging.uri(move.staged, file.path), destination)
        except FileNotFoundError:
            if find_misplaced([file], output=staging.output, read=True) is not None:
                raise InputError(
                    uri=destination,
                    problem="its staged file is gone; was it deleted? Run the same command again",
                ) from None
    if move.shard_key:
        keep_record(move.shard_key, staging=staging)


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
