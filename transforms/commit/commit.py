"""The commit: a gate, moves, and a finish that writes `dataset_info.json` last.

Each step can be repeated at any point, also by a run that is started again after a kill.
`transforms.commit_dataset` makes Beam steps of them.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from shardbeam.transforms.commit.expect import find_unmet
from shardbeam.transforms.commit.gate import (
    count_resumed,
    count_reuse,
    count_sources,
    count_splits,
    describe_void_maps,
    find_lost,
    find_warnings,
    judge,
    judge_duplicates,
    make_notes,
    name_classes,
)
from shardbeam.transforms.commit.pointer import write_pointer
from shardbeam.transforms.commit.repair import find_differences, judge_repair
from shardbeam.transforms.commit.runs import RunSettings, encode_run, end_run
from shardbeam.transforms.core.edges import OLD_FILES, check_arrived, lost_error
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.labels import LabelMap, written_skeletons
from shardbeam.transforms.dataset.census import Census
from shardbeam.transforms.dataset.corrections import (
    CORRECTIONS_FOLDER,
    corrections_path,
    encode_corrections,
)
from shardbeam.transforms.dataset.files import DatasetFile, ShardResult
from shardbeam.transforms.dataset.findings import UNUSED_CLASS, KindFound, find_kinds
from shardbeam.transforms.dataset.index import index_path
from shardbeam.transforms.dataset.manifest import (
    CARD,
    DATASET_INFO,
    MANIFEST,
    RUN_FILE,
    read_manifest,
    run_path,
)
from shardbeam.transforms.dataset.metadata import DatasetSettings, metadata_files, metadata_paths
from shardbeam.transforms.dataset.outcome import Outcome, SplitOutcome, Status
from shardbeam.transforms.dataset.rejects import RejectsFile, rejects_pattern
from shardbeam.transforms.dataset.statistics import CountedStatistics, Statistics
from shardbeam.transforms.duplicates.duplicates import DUPLICATES, Duplicates
from shardbeam.transforms.shards.reuse import (
    RECORD_FILE,
    keep_record,
    record_path,
)
from shardbeam.transforms.staging.object_lease import LEASE_PATH
from shardbeam.transforms.staging.staging import (
    COMMIT_FILE,
    OUTCOME,
    STAGING_FOLDER,
    Staging,
    decode_commit,
    explain_write_errors,
    find_misplaced,
    staged_commits,
)
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.base import ChangedError, StoredFile, join_uri
from shardbeam.transforms.storage.find import storage_for

# A move has three files: a shard, its index and its record.
_MOVES_PER_BATCH = 64
_DELETES_PER_BATCH = 192

T = TypeVar("T")


class GateError(Exception):
    """The gate refused to commit; the run's outcome says why."""


class CommitSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The dataset to commit, and where it goes.

    Attributes:
        dataset: What the config says about the dataset.
        run: What is particular to this run.
        staging: Where its files wait; it also names the output.
        repairs: Whether this run repairs the dataset in the output; it then commits nothing that
            differs from that dataset.
    """

    dataset: DatasetSettings
    run: RunSettings
    staging: Staging
    repairs: bool = False


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
        deletes: Files to delete, in the versions that were listed: files of the old dataset, or
            files in staging after the commit.
        num_deletes: How many files all batches delete, which shows whether the runner lost some.
    """

    moves: tuple[Move, ...] = ()
    deletes: tuple[StoredFile, ...] = ()
    num_deletes: int = 0


def make_batches(moves: Sequence[Move], deletes: Sequence[StoredFile]) -> list[CommitBatch]:
    """Shares moves and deletions out to batches, which workers can process in any order."""
    number = math.ceil(max(len(moves) / _MOVES_PER_BATCH, len(deletes) / _DELETES_PER_BATCH))
    return [
        CommitBatch(tuple(moves[start::number]), tuple(deletes[start::number]), len(deletes))
        for start in range(number)
    ]


def gate(
    census: Census,
    shards: Sequence[ShardResult],
    rejects: Sequence[RejectsFile],
    label_map: LabelMap,
    *,
    settings: CommitSettings,
    statistics: Mapping[str, CountedStatistics],
    duplicates: Duplicates | None = None,
) -> list[CommitBatch]:
    """Judges what was written, records the outcome, and makes the output ready for the moves.

    Returns:
        The old files to delete, and the moves to make after all of these are deleted.

    Raises:
        GateError: The runner lost elements, the counts do not add up, too much was rejected, the
            dataset has duplicates that the config refuses, an expectation of the config is not
            met, or a repair would change the dataset.
        InputError: Another run has taken the output, or the output cannot be written.
    """
    dataset, staging = settings.dataset, settings.staging
    staging.check_mark()
    lost = find_lost(
        census,
        splits=dataset.splits,
        shards=shards,
        rejects=rejects,
        statistics=statistics.values(),
        duplicates=duplicates,
    )
    splits = count_splits(splits=dataset.splits, census=census, shards=shards, rejects=rejects)
    found = _find_kinds(
        splits, statistics, label_map=label_map, dataset=dataset, duplicates=duplicates
    )
    outcome = judge(
        splits,
        max_ratio=dataset.max_reject_ratio,
        rejects_root=staging.uri(staging.run_folder, "rejects"),
        rejects=rejects,
        objects=dataset.objects,
        void=describe_void_maps(
            _statistics(statistics), classes=label_map.ids, limit=dataset.config.get("limit")
        ),
        unmet=list(
            find_unmet(
                dataset.expect,
                outcomes=splits,
                statistics=_statistics(statistics),
                classes=label_map.ids,
                findings=found,
            )
        ),
        lost_elements=lost,
    )
    if duplicates is not None:
        outcome = judge_duplicates(
            outcome,
            duplicates,
            settings=dataset.duplicates,
            where=staging.uri(duplicates.staged, DUPLICATES),
        )
    if settings.repairs:
        differences = find_differences(shards, label_map, dataset=dataset, staging=staging)
        outcome = judge_repair(outcome, differences)
    outcome = msgspec.structs.replace(
        outcome,
        reuse=count_reuse(settings.run.previous, shards),
        resumed=count_resumed(shards),
        sources=count_sources(census, dataset=dataset),
        notes=make_notes(
            census, dataset=dataset, label_map=label_map, statistics=_statistics(statistics)
        ),
        # These are for a refused run; `finish` finds all warnings of a run that commits.
        warnings=dataset.warnings,
        findings=_leave_out_warned(found),
        **name_classes(label_map),
    )
    corrections = _corrections(statistics)
    moves = _plan_moves(shards, rejects, duplicates)
    with explain_write_errors(staging.output):
        if corrections and outcome.status in (Status.REFUSED, Status.FAILED):
            # Corrections may explain the refusal. After a commit, `finish` writes them.
            for path, data in corrections.items():
                uri = staging.uri(staging.run_folder, path)
                storage_for(uri).replace(uri, data)
            folder = staging.uri(staging.run_folder, CORRECTIONS_FOLDER)
            outcome = msgspec.structs.replace(outcome, corrections=folder)
        staging.write_state(OUTCOME, outcome)
        if outcome.status is Status.NOT_REPAIRED:
            # A shard's key does not depend on the images' content, so a later run would take these
            # shards over even after the old images are put back.
            staging.discard_shards()
        if outcome.status is not Status.APPROVED:
            staging.release_lease()
            raise GateError(outcome.message)
        old = prepare_output(
            moves,
            metadata=metadata_paths(dataset),
            staging=staging,
            late=_late_names(dataset),
            # People may have added to it, and a repair gives the same dataset.
            keep=(CARD,) if settings.repairs else (),
        )
    return make_batches(moves, old)


def _find_kinds(
    splits: Mapping[str, SplitOutcome],
    statistics: Mapping[str, CountedStatistics],
    *,
    label_map: LabelMap,
    dataset: DatasetSettings,
    duplicates: Duplicates | None,
) -> list[KindFound]:
    return find_kinds(
        {name: statistics[name].statistics for name in dataset.splits if name in statistics},
        classes=label_map.ids,
        corrections={name: split.corrections for name, split in splits.items()},
        same_pictures=None if duplicates is None else duplicates.counts.same_pictures,
        ignore=dataset.ignore,
    )


def _leave_out_warned(found: Iterable[KindFound]) -> tuple[KindFound, ...]:
    """Leaves out the classes that never occur, because a warning names them."""
    return tuple(each for each in found if each.kind != UNUSED_CLASS)


def delete_old(batch: CommitBatch, *, staging: Staging) -> int:
    """Deletes files of the old dataset; files that are gone already are skipped.

    Returns:
        The number of files.

    Raises:
        InputError: Another run has taken the output or written one of the files meanwhile, or the
            output cannot be written.
    """
    with explain_write_errors(staging.output):
        if batch.deletes:
            staging.check_mark()
            staging.check_lease()
            _delete(batch.deletes, output=staging.output)
    return len(batch.deletes)


def move(batch: CommitBatch, deleted: Iterable[int] = (), *, staging: Staging) -> int:
    """Moves staged files into the output; a move that was made before is skipped.

    Args:
        batch: The moves.
        deleted: What `delete_old` returned for each batch: no file moves before all are deleted.
        staging: The run's staging area.

    Returns:
        The number of moves.

    Raises:
        InputError: The runner lost a deletion, a file is neither in staging nor in place, another
            run has taken the output, or it cannot be written.
    """
    check_arrived(OLD_FILES, sent=batch.num_deletes, received=sum(deleted))
    storage = storage_for(staging.output)
    with explain_write_errors(staging.output):
        seen = _look([path for move in batch.moves for path in _paths(move)], output=staging.output)
        staging.check_lease()
        one = functools.partial(_move, seen=seen, staging=staging)
        return sum(1 for _ in storage.map_many(one, batch.moves))


def check_moved(batch: CommitBatch, moved: Iterable[int], *, staging: Staging) -> int:
    """Checks that files are still as they were moved.

    Args:
        batch: The moves.
        moved: What `move` returned for each batch: no file is checked before all have moved.
        staging: The run's staging area.

    Returns:
        The number of moves.

    Raises:
        InputError: A moved file is gone or was changed, or the output cannot be read.
    """
    del moved
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
    return len(batch.moves)


def finish(
    census: Census,
    shards: Sequence[ShardResult],
    rejects: Sequence[RejectsFile],
    label_map: LabelMap,
    after: Iterable[int],
    *,
    settings: CommitSettings,
    statistics: Mapping[str, CountedStatistics],
    duplicates: Duplicates | None = None,
) -> str:
    """Writes all files that are not moved, `dataset_info.json` last.

    It runs after all moves, because it takes what `check_moved` returns for them as `after`.

    Returns:
        The dataset's folder.

    Raises:
        InputError: The runner lost elements, another run has taken the output, or the output cannot
            be written.
    """
    dataset, run, staging = settings.dataset, settings.run, settings.staging
    moves = _plan_moves(shards, rejects, duplicates)
    moved = [file for move in moves for file in move.files]
    # The gate has checked its own copy of these. Beam hands each step its side inputs separately,
    # so this step may lack elements that the gate had.
    lost = find_lost(
        census,
        splits=dataset.splits,
        shards=shards,
        rejects=rejects,
        statistics=statistics.values(),
        duplicates=duplicates,
        moves=(len(moves), sum(after)),
    )
    if lost:
        raise lost_error(lost)
    counts = None if duplicates is None else duplicates.counts
    corrections = _corrections(statistics)
    splits = count_splits(splits=dataset.splits, census=census, shards=shards, rejects=rejects)
    with explain_write_errors(staging.output):
        staging.check_mark()
        # The old dataset's files are gone. No folder may be removed while files move into it.
        for folder in ("index", "rejects", CORRECTIONS_FOLDER):
            storage_for(staging.output).prune(join_uri(staging.output, folder))
        files = metadata_files(
            dataset=dataset,
            splits=splits,
            shards=shards,
            moved=moved,
            label_map=label_map,
            skeletons=written_skeletons(census.categories.values(), label_map=label_map),
            statistics=_statistics(statistics),
            duplicates=counts,
            corrections=corrections,
        )
        record = end_run(
            run,
            plan=staging.plan,
            listing=census.listing,
            outcome=Outcome(
                status=Status.COMMITTED,
                splits=splits,
                sources=count_sources(census, dataset=dataset),
                warnings=find_warnings(
                    census,
                    splits=splits,
                    label_map=label_map,
                    dataset=dataset,
                    statistics=_statistics(statistics),
                    duplicates=duplicates,
                    corrected=(line for each in statistics.values() for line in each.corrected),
                    readings=[shard.readings for shard in shards],
                ),
                notes=make_notes(
                    census, dataset=dataset, label_map=label_map, statistics=_statistics(statistics)
                ),
                findings=_leave_out_warned(
                    _find_kinds(
                        splits,
                        statistics,
                        label_map=label_map,
                        dataset=dataset,
                        duplicates=duplicates,
                    )
                ),
                **name_classes(label_map),
                rejects=join_uri(staging.output, "rejects") if rejects else "",
                corrections=(join_uri(staging.output, CORRECTIONS_FOLDER) if corrections else ""),
                reuse=count_reuse(run.previous, shards),
                resumed=count_resumed(shards),
                duplicates=counts,
            ),
            unread=(file for shard in shards for file in shard.unread),
        )
        files[run_path(staging.run_id)] = encode_run(record)
        # Readers that see this file see a whole dataset.
        info = files.pop(DATASET_INFO)
        staged_info = staging.stage_file(DATASET_INFO, info)
        seen = _look([*files, DATASET_INFO], output=staging.output)
        if settings.repairs and seen[CARD] is not None:
            del files[CARD]
        staging.check_lease()
        for path, data in files.items():
            staging.write_file(path, data, replaces=seen[path])
        _publish(staged_info, info, seen=seen[DATASET_INFO], staging=staging)
        # Not left to the command, which may not wait for the job.
        if run.latest:
            write_pointer(run.latest, folder=staging.output)
    return staging.output


def list_staging(done: object, *, staging: Staging) -> list[CommitBatch]:
    """Lists what is left in staging after a commit, except for the list of the commit.

    Args:
        done: The result of the commit, whose files are all in place.
        staging: The run's staging area.

    Raises:
        InputError: It cannot be listed.
    """
    del done
    with explain_write_errors(staging.output):
        left = storage_for(staging.root).list(staging.root)
        return make_batches((), [file for file in left if file.uri != staging.commit_uri])


def clear(batch: CommitBatch, *, staging: Staging) -> int:
    """Deletes files in staging; a file that was changed meanwhile is left to `end_commit`.

    Returns:
        The number of files.

    Raises:
        InputError: Another run has taken the output, or the output cannot be written.
    """
    with explain_write_errors(staging.output):
        staging.check_lease()
        storage_for(staging.root).delete_many(batch.deletes)
    return len(batch.deletes)


def end_commit(done: T, cleared: Iterable[int], *, staging: Staging) -> T:
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


def _statistics(counted: Mapping[str, CountedStatistics]) -> dict[str, Statistics]:
    return {split: each.statistics for split, each in counted.items()}


def _corrections(counted: Mapping[str, CountedStatistics]) -> dict[str, bytes]:
    """Renders the files of corrections: `{path: content}`."""
    return {
        corrections_path(split): encode_corrections(each.corrected)
        for split, each in counted.items()
        if each.corrected
    }


def _plan_moves(
    shards: Iterable[ShardResult], rejects: Iterable[RejectsFile], duplicates: Duplicates | None
) -> list[Move]:
    moves = [
        *(Move(shard.staged, (shard.data, shard.index), shard.key) for shard in shards),
        *(Move(rejected.staged, (rejected.file,)) for rejected in rejects),
    ]
    if duplicates is not None and duplicates.file is not None:
        moves.append(Move(duplicates.staged, (duplicates.file,)))
    return moves


def _late_names(dataset: DatasetSettings) -> re.Pattern[str]:
    """Matches files that a run of this dataset may have moved, whatever its shard count was."""
    shards = dataset.naming.pattern(dataset.splits)
    rejects = rejects_pattern(dataset.splits)
    return re.compile(f"{shards}|{index_path(shards)}|{rejects}|{re.escape(DUPLICATES)}")


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
        The files that `delete_old` has to delete before the moves.

    Raises:
        InputError: A list of files that may be deleted is damaged; nothing was deleted.
        ChangedError: Another run writes to the output.
        OSError: The output cannot be written.
    """
    output = staging.output
    found = _look_alone(staging)
    commits = {
        path: decode_commit(_read(file), uri=file.uri)
        for path, file in found.items()
        if COMMIT_FILE.fullmatch(path)
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


def _pick(paths: Iterable[str], found: Mapping[str, StoredFile]) -> list[StoredFile]:
    return [found[path] for path in sorted(paths) if path in found]


def _delete(files: Iterable[StoredFile], *, output: str) -> None:
    """Deletes files in the versions that were listed.

    Raises:
        ChangedError: Another run has written one of them meanwhile.
    """
    if not storage_for(output).delete_many(files):
        raise ChangedError("a file of the old dataset was changed meanwhile")


def _look(paths: Sequence[str], *, output: str) -> dict[str, StoredFile | None]:
    storage = storage_for(output)
    uris = [join_uri(output, path) for path in paths]
    return dict(zip(paths, storage.map_many(storage.stat, uris), strict=True))


def _paths(move: Move) -> list[str]:
    """Lists the paths that a move may write."""
    records = [record_path(move.shard_key)] if move.shard_key else []
    return [*(file.path for file in move.files), *records]


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
                staging.check_mark()
                raise InputError(
                    uri=destination,
                    problem="its staged file is gone; was it deleted? Run the same command again",
                ) from None
            # A run that lost its lease may be about to delete or replace the version that it saw.
            storage.renew(stored)
    if move.shard_key:
        keep_record(move.shard_key, replaces=seen[record_path(move.shard_key)], staging=staging)


def _publish(staged: str, data: bytes, *, seen: StoredFile | None, staging: Staging) -> None:
    """Moves `dataset_info.json` into place, unless this run has done so before."""
    storage = storage_for(staging.output)
    destination = join_uri(staging.output, DATASET_INFO)
    if seen is not None and _read(seen) == data:
        return
    try:
        # The gate has removed the old one.
        storage.rename(staged, destination, replaces=None)
    except FileNotFoundError as error:
        staging.check_lease()
        raise ChangedError(f"{staged} was deleted meanwhile") from error


def _read(file: StoredFile) -> bytes:
    """Reads the version of a small file that was seen."""
    storage = storage_for(file.uri)
    return storage.read_small(file.uri, max_bytes=limits.METADATA_BYTES, version=file.version)


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
