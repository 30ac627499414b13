"""The settings of a run, and its record in the dataset, `runs/<run>.json`."""

from __future__ import annotations

import contextlib
import datetime
import platform
from collections.abc import Iterable, Iterator

import msgspec

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.configs.passwords import hide_passwords
from shardbeam.transforms.core.records import ImageRef
from shardbeam.transforms.dataset.file_names import RUN_FILE, RUNS_FOLDER
from shardbeam.transforms.dataset.input_counts import ListingSummary
from shardbeam.transforms.dataset.manifest import Manifest, was_changed
from shardbeam.transforms.dataset.outcome import Outcome
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.find import storage_for


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one run that do not belong to the dataset.

    Attributes:
        started_at: When the run was started, UTC, ISO 8601.
        runner: Name of its runner.
        annotation_files: `(uri, size in bytes, version)` of each annotation file, and of each
            file that defines a format.
        latest: The pointer that names the dataset after the commit; empty if there is none.
        previous: Folder of the dataset whose unchanged shards are copied; empty for none.
    """

    started_at: str
    runner: str
    annotation_files: tuple[tuple[str, int, str], ...]
    latest: str = ""
    previous: str = ""


class RunRecord(RunSettings, frozen=True, kw_only=True):
    """The record of a committed run: everything that differs from run to run.

    Attributes:
        plan: Digest of the config.
        finished_at: When it committed.
        wall_time_s: Seconds since its start.
        host: Name of the machine that committed.
        python: Version of its Python.
        listing: What was listed, with the fingerprint of URIs, sizes and versions.
        outcome: What the run did.
        unread: Files that the run could not read, at most a hundred of each shard.
        manifest: Checksum of the manifest that it wrote; empty in records of older versions.
    """

    plan: str
    finished_at: str
    wall_time_s: float
    host: str
    python: str
    listing: ListingSummary
    outcome: Outcome
    unread: tuple[ImageRef, ...] = ()
    manifest: str = ""


def end_run(
    run: RunSettings,
    *,
    plan: str,
    listing: ListingSummary,
    outcome: Outcome,
    unread: Iterable[ImageRef],
    manifest: str,
) -> RunRecord:
    """Makes the record of a run that commits now, on this machine."""
    now = datetime.datetime.now(tz=datetime.timezone.utc)
    return RunRecord(
        **msgspec.structs.asdict(run),
        plan=plan,
        finished_at=now.isoformat(),
        wall_time_s=(now - datetime.datetime.fromisoformat(run.started_at)).total_seconds(),
        host=platform.node(),
        python=platform.python_version(),
        listing=listing,
        outcome=outcome,
        unread=tuple(unread),
        manifest=manifest,
    )


def encode_run(record: RunRecord) -> bytes:
    """Renders the record of a run, without the passwords of URIs."""
    text = hide_passwords(msgspec.json.encode(record).decode())
    return msgspec.json.format(text.encode()) + b"\n"


def read_runs(output: str) -> list[RunRecord]:
    """Returns the runs that committed to `output`, oldest first; skips those it cannot decode."""
    return list(_each_run(output))[::-1]


def _each_run(output: str) -> Iterator[RunRecord]:
    """Yields the runs that committed to `output`, newest first; skips those it cannot decode."""
    storage = storage_for(output)
    files = storage.list(join_uri(output, RUNS_FOLDER))
    for file in sorted(files, key=lambda file: file.path, reverse=True):
        if RUN_FILE.fullmatch(f"{RUNS_FOLDER}/{file.path}"):
            # Another version may have written it in another form.
            with contextlib.suppress(msgspec.DecodeError):
                data = storage.read_small(file.uri, max_bytes=limits.METADATA_BYTES)
                yield JsonDecoder(RunRecord).decode(data)


# What is wrong with a manifest that was edited.
EDITED = "was changed after it was written"


def was_edited(data: bytes, *, manifest: Manifest, output: str) -> bool:
    """Returns whether a manifest is not as a build has written it.

    Its checksum does not match, or no run of its dataset has written a manifest of this checksum.

    Args:
        data: The file.
        manifest: Its content.
        output: The dataset's folder.
    """
    if was_changed(data):
        return True
    has_runs = False
    for run in _each_run(output):
        has_runs = True
        # Records of older versions name no manifest.
        if run.manifest in ("", manifest.checksum):
            return False
    return has_runs


def read_last_run(output: str, *, manifest: Manifest | None) -> RunRecord | None:
    """Returns the run that committed the dataset in `output`, if any.

    Records of older versions name no manifest, and of these the latest is taken. Otherwise times
    do not decide, because a clock may go back between two runs.

    Args:
        output: The dataset's folder.
        manifest: Its manifest; None if it was edited: then times decide.
    """
    runs = read_runs(output)
    if manifest is None:
        return max(runs, key=lambda run: run.finished_at, default=None)
    named = [run for run in runs if run.manifest and run.manifest == manifest.checksum]
    unnamed = [run for run in runs if not run.manifest]
    return max(named or unnamed, key=lambda run: run.finished_at, default=None)
