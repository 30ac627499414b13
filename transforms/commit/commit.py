"""The commit: a gate, moves, and a finish that writes `dataset_info.json` last.

Each step can be repeated at any point, also by a run that is started again after a kill. The moves
are in `moves`; `transforms.commit_dataset` makes Beam steps of all of them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from shardbeam.transforms.commit.expect import find_unmet
from shardbeam.transforms.commit.gate import (
    RunCounts,
    count_resumed,
    count_reuse,
    count_sources,
    decide,
    decide_by_duplicates,
    describe_void_maps,
    find_lost,
    name_classes,
)
from shardbeam.transforms.commit.moves import (
    CommitBatch,
    Move,
    check_all_moved,
    find_files,
    make_batches,
    prepare_output,
    read_seen,
)
from shardbeam.transforms.commit.notes import make_notes
from shardbeam.transforms.commit.pointer import write_pointer
from shardbeam.transforms.commit.repair import decide_repair
from shardbeam.transforms.commit.runs import RunSettings, encode_run, end_run
from shardbeam.transforms.commit.warnings import find_warnings
from shardbeam.transforms.core.counts import Count, lost_error
from shardbeam.transforms.core.labels import LabelMap, written_skeletons
from shardbeam.transforms.dataset.card import card_files
from shardbeam.transforms.dataset.collectors.statistics import CountedStatistics
from shardbeam.transforms.dataset.file_names import CARD, DATASET_INFO, MANIFEST, run_path
from shardbeam.transforms.dataset.findings import UNUSED_CLASS, KindFound, find_kinds
from shardbeam.transforms.dataset.index import index_path
from shardbeam.transforms.dataset.input_counts import InputCounts
from shardbeam.transforms.dataset.manifest import read_checksum
from shardbeam.transforms.dataset.metadata import DatasetSettings, metadata_files, metadata_paths
from shardbeam.transforms.dataset.outcome import Outcome, Status
from shardbeam.transforms.dataset.rejects import (
    CORRECTIONS_FOLDER,
    RejectsFile,
    corrections_path,
    encode_corrections,
    rejects_pattern,
)
from shardbeam.transforms.dataset.shard_result import ShardResult
from shardbeam.transforms.duplicates.duplicates import DUPLICATES, Duplicates
from shardbeam.transforms.staging.staging import OUTCOME, Staging, explain_write_errors
from shardbeam.transforms.storage.base import ChangedError, StoredFile, join_uri
from shardbeam.transforms.storage.find import storage_for


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


class _Written(RunCounts):
    """What a run has written, and what the gate and `finish` find out about it.

    Each of the two makes its own: Beam hands each step its side inputs separately, so `finish` may
    lack elements that the gate had.
    """

    @functools.cached_property
    def findings(self) -> list[KindFound]:
        """The findings in the dataset."""
        splits = self.dataset.splits
        return find_kinds(
            {name: self.statistics[name] for name in splits if name in self.statistics},
            classes=self.label_map.ids,
            corrections={name: split.corrections for name, split in self.splits.items()},
            similar=None if self.duplicates is None else self.duplicates.counts.findings,
            ignore=self.dataset.ignore,
        )

    @functools.cached_property
    def corrections(self) -> dict[str, bytes]:
        """The files of corrections: `{path: content}`."""
        return {
            corrections_path(split): encode_corrections(each.corrected)
            for split, each in self.counted.items()
            if each.corrected
        }

    @functools.cached_property
    def moves(self) -> list[Move]:
        """The moves that commit it."""
        moves = [
            *(Move(shard.staged, (shard.data, shard.index), shard.key) for shard in self.shards),
            *(Move(rejected.staged, (rejected.file,)) for rejected in self.rejects),
        ]
        if self.duplicates is not None and self.duplicates.file is not None:
            moves.append(Move(self.duplicates.staged, (self.duplicates.file,)))
        return moves

    def find_lost(self) -> list[str]:
        """Finds what the runner lost."""
        return find_lost(
            self.inputs,
            splits=self.dataset.splits,
            shards=self.shards,
            rejects=self.rejects,
            statistics=self.counted,
        )

    def describe(self, outcome: Outcome, *, run: RunSettings) -> Outcome:
        """Adds to an outcome what is said whether or not the run commits."""
        return msgspec.structs.replace(
            outcome,
            reuse=count_reuse(run.previous, self.shards),
            resumed=count_resumed(self.shards),
            sources=count_sources(self),
            notes=make_notes(self),
            # A warning names the classes that never occur.
            findings=tuple(each for each in self.findings if each.kind != UNUSED_CLASS),
            **name_classes(self.label_map),
        )


def gate(
    inputs: InputCounts,
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
    with explain_write_errors(staging.output):
        staging.check_mark()
    written = _Written(dataset, inputs, label_map, shards, rejects, statistics, duplicates)
    outcome = _decide(written, settings=settings)
    with explain_write_errors(staging.output):
        if written.corrections and outcome.status in (Status.REFUSED, Status.FAILED):
            # Corrections may explain the refusal. After a commit, `finish` writes them.
            for path, data in written.corrections.items():
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
            written.moves,
            metadata=metadata_paths(dataset),
            staging=staging,
            late=_late_names(dataset),
            # People may have added to it, and a repair gives the same dataset.
            keep=(CARD,) if settings.repairs else (),
        )
    return make_batches(written.moves, old)


def _decide(written: _Written, *, settings: CommitSettings) -> Outcome:
    """Decides whether a run may commit, and describes what it did."""
    dataset, staging = settings.dataset, settings.staging
    outcome = decide(
        written.splits,
        tolerance=written.tolerance,
        rejects_root=staging.uri(staging.run_folder, "rejects"),
        rejects=written.rejects,
        objects=dataset.objects,
        void=describe_void_maps(written),
        unmet=list(find_unmet(written, findings=written.findings)),
        lost_elements=written.find_lost(),
    )
    if written.duplicates is not None:
        outcome = decide_by_duplicates(
            outcome,
            written.duplicates,
            settings=dataset.duplicates,
            where=staging.uri(written.duplicates.staged, DUPLICATES),
        )
    if settings.repairs:
        outcome = decide_repair(
            outcome, written.shards, written.label_map, dataset=dataset, staging=staging
        )
    # These warnings are for a refused run; `finish` finds all warnings of a run that commits.
    outcome = msgspec.structs.replace(outcome, warnings=dataset.warnings)
    return written.describe(outcome, run=settings.run)


def finish(
    inputs: InputCounts,
    shards: Sequence[ShardResult],
    rejects: Sequence[RejectsFile],
    label_map: LabelMap,
    after: Iterable[Count],
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
    written = _Written(dataset, inputs, label_map, shards, rejects, statistics, duplicates)
    if lost := written.find_lost():
        raise lost_error(lost)
    check_all_moved(written.moves, after)
    counts = None if duplicates is None else duplicates.counts
    with explain_write_errors(staging.output):
        staging.check_mark()
        # The old dataset's files are gone. No folder may be removed while files move into it.
        for folder in ("index", "rejects", CORRECTIONS_FOLDER):
            storage_for(staging.output).prune(join_uri(staging.output, folder))
        files = metadata_files(
            dataset=dataset,
            splits=written.splits,
            shards=shards,
            moved=[file for move in written.moves for file in move.files],
            label_map=label_map,
            skeletons=written_skeletons(inputs.classes.categories.values(), label_map=label_map),
            statistics=written.statistics,
            card=card_files(
                dataset, shards=shards, label_map=label_map, statistics=written.statistics
            ),
            duplicates=counts,
            corrections=written.corrections,
        )
        outcome = Outcome(
            status=Status.COMMITTED,
            splits=written.splits,
            tolerated=written.tolerance.describe_tolerated(written.splits),
            warnings=find_warnings(written),
            rejects=join_uri(staging.output, "rejects") if rejects else "",
            corrections=(
                join_uri(staging.output, CORRECTIONS_FOLDER) if written.corrections else ""
            ),
            duplicates=counts,
        )
        record = end_run(
            run,
            plan=staging.plan,
            listing=inputs.listing,
            outcome=written.describe(outcome, run=run),
            unread=(file for shard in shards for file in shard.unread),
            manifest=read_checksum(files[MANIFEST]),
        )
        files[run_path(staging.run_id)] = encode_run(record)
        # Readers that see this file see a whole dataset.
        info = files.pop(DATASET_INFO)
        staged_info = staging.stage_file(DATASET_INFO, info)
        seen = find_files([*files, DATASET_INFO], output=staging.output)
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


def _late_names(dataset: DatasetSettings) -> re.Pattern[str]:
    """Matches files that a run of this dataset may have moved, whatever its shard count was."""
    shards = dataset.naming.pattern(dataset.splits)
    rejects = rejects_pattern(dataset.splits)
    return re.compile(f"{shards}|{index_path(shards)}|{rejects}|{re.escape(DUPLICATES)}")


def _publish(staged: str, data: bytes, *, seen: StoredFile | None, staging: Staging) -> None:
    """Moves `dataset_info.json` into place, unless this run has done so before."""
    storage = storage_for(staging.output)
    destination = join_uri(staging.output, DATASET_INFO)
    if seen is not None and read_seen(seen) == data:
        return
    try:
        # The gate has removed the old one.
        storage.rename(staged, destination, replaces=None)
    except FileNotFoundError as error:
        staging.check_lease()
        raise ChangedError(f"{staged} was deleted meanwhile") from error
