"""The lease that a build holds: where it lies, how it is got, and what its loss does."""

from __future__ import annotations

import hashlib
import logging
import signal
import threading
from collections.abc import Callable
from typing import TypeVar

from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions
from apache_beam.runners.runner import PipelineRunner

from shardbeam.configs.placeholders import FINGERPRINT, placeholders
from shardbeam.pipelines.flags import DATAFLOW_RUNNER
from shardbeam.pipelines.output_state import OutputError
from shardbeam.pipelines.plan import Plan
from shardbeam.pipelines.versions import name_output, versions_root
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.commit import LEASE_PATH
from shardbeam.transforms.dataset.lease import (
    FoundLease,
    JobAnswer,
    Lease,
    LeaseRecord,
    RemoteJob,
    check_free,
    new_record,
    read_lease,
    take_lease,
)
from shardbeam.transforms.dataset.lease_keeper import LeaseKeeper
from shardbeam.transforms.dataset.staging import explain_write_errors
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.find import storage_for

_log = logging.getLogger(__name__)

_LEASES_FOLDER = ".shardbeam-leases"
_NAME_DIGITS = 16

T = TypeVar("T")


def lease_uri(plan: Plan) -> str:
    """Names the lease of a plan's output: a place that is the same for every run of it.

    Where each run may have a folder of its own, it lies above all of them, and is that of the
    folders' name, whatever the plan; with `{fingerprint}` in it, where no two plans meet in one
    folder, it is the plan's own.
    """
    root = versions_root(plan)
    if root is None:
        return join_uri(name_output(plan), LEASE_PATH)
    if FINGERPRINT in placeholders(plan.output_template):
        return join_uri(root, _LEASES_FOLDER, f"{plan.digest}.json")
    name = hashlib.sha256(name_output(plan).encode()).hexdigest()[:_NAME_DIGITS]
    return join_uri(root, _LEASES_FOLDER, f"{name}.json")


def describe_run(
    plan: Plan, *, runner: PipelineRunner, options: PipelineOptions, ends_with_process: bool
) -> LeaseRecord:
    """Describes a run as the holder of its output's lease.

    Args:
        plan: What it builds.
        runner: By which runner.
        options: Beam's.
        ends_with_process: Whether nothing of it is left once this process has ended.
    """
    name = type(runner).__name__
    return new_record(
        plan=plan.digest,
        output=name_output(plan),
        runner=name,
        ends_with_process=ends_with_process,
        job=describe_job(options) if name == DATAFLOW_RUNNER else None,
    )


def describe_job(options: PipelineOptions, *, job_id: str = "") -> RemoteJob:
    """Describes the job on Dataflow that the options make; without an id before it has one."""
    google = options.view_as(GoogleCloudOptions)
    return RemoteJob(name=google.job_name, id=job_id, project=google.project, region=google.region)


def ask_for_job(job: RemoteJob, *, options: PipelineOptions) -> JobAnswer:
    """Asks Dataflow how a job stands."""
    # Imported here: its clients take a while, and most runs never ask.
    from shardbeam.pipelines.dataflow_jobs import ask_for_job

    return ask_for_job(job, options=options)


def take_output(
    uri: str,
    record: LeaseRecord,
    *,
    look: Callable[[], T],
    must_write: Callable[[T], bool],
    ask: Callable[[RemoteJob], JobAnswer],
) -> tuple[Lease | None, T]:
    """Looks at an output and takes its lease, so that no run comes in between.

    Nothing is written before both are done: not into a folder that is none of ours, nor where
    there is nothing to do.

    Args:
        uri: Where the lease lies.
        record: The holder.
        look: Looks at the output; writes nothing.
        must_write: Says whether anything has to be written, by what was seen.
        ask: Asks a job's service how it stands.

    Returns:
        The lease, and what was seen. No lease where nothing has to be written, or where the
        storage is none that could keep one.

    Raises:
        LeaseError: Another run holds it.
        OutputError: The output folder cannot be used.
        InputError: It cannot be written.
    """
    while True:
        found = _find_free(uri, output=record.output, ask=ask)
        seen = look()
        if found is None or not must_write(seen):
            return None, seen
        with explain_write_errors(record.output):
            lease = take_lease(found, record)
        if lease is not None:
            return lease, seen


def _find_free(
    uri: str, *, output: str, ask: Callable[[RemoteJob], JobAnswer]
) -> FoundLease | None:
    try:
        if not storage_for(uri).can_swap:
            _log.warning(
                "%s: this storage keeps no lease; let only one run at a time write there",
                output,
            )
            return None
        found = read_lease(uri)
    except InputError as error:
        raise OutputError(str(error)) from error
    check_free(found, ask=ask)
    return found


def keep_lease(lease: Lease | None) -> LeaseKeeper:
    """Keeps a lease, if there is one, while its context is entered; its loss ends the run."""
    return LeaseKeeper(lease, on_lost=_interrupt)


def _interrupt() -> None:
    # As Ctrl-C would: whatever the program waits for, it ends in order.
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, signal.SIGINT)
