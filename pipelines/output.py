"""The output folder before a run: where it is, what is in it, and the right to write there."""

from __future__ import annotations

import dataclasses
import datetime
import logging
from typing import NamedTuple

from shardbeam.configs.placeholders import DATE, FINGERPRINT, placeholders
from shardbeam.pipelines.plan import Plan
from shardbeam.pipelines.versions import Inputs, OutputError, check_apart, is_version, place_output
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.commit import DATASET_INFO, foreign_files, read_manifest
from shardbeam.transforms.dataset.dataset import RunRecord, read_runs
from shardbeam.transforms.dataset.folder_lock import FolderLock
from shardbeam.transforms.dataset.lease import Lease
from shardbeam.transforms.dataset.object_lease import ObjectLease
from shardbeam.transforms.dataset.pointer import read_pointer
from shardbeam.transforms.dataset.staging import Staging, explain_write_errors, staged_commits
from shardbeam.transforms.storage.base import is_uri, join_uri
from shardbeam.transforms.storage.find import storage_for

_log = logging.getLogger(__name__)

_NAMED_FILES = 3


class Output(NamedTuple):
    """What is in the output before a build.

    Attributes:
        plan: The plan, placed: its output is the folder to write, or the current version's.
        current: The run that committed it, if there is nothing to build.
        left: Its staging, if that is there all the same.
        is_pointer_stale: Whether the pointer names another version all the same.
        message: Why there is nothing to build.
    """

    plan: Plan
    current: RunRecord | None = None
    left: Staging | None = None
    is_pointer_stale: bool = False
    message: str = "nothing to do: inputs and config are as they were"

    @property
    def must_write(self) -> bool:
        """Whether anything has to be written."""
        return self.current is None or self.left is not None or self.is_pointer_stale


def hold_output(
    plan: Plan,
    *,
    inputs: Inputs,
    started: datetime.datetime,
    overwrite: bool,
    if_changed: bool,
    runner: str,
) -> tuple[Lease, Output]:
    """Looks at a plan's output and takes its lease, so that no other run comes in between.

    Nothing is written before the output was found fit to be written, and nothing at all where
    there is nothing to do.

    Args:
        plan: The plan.
        inputs: What it reads; listed only where that is needed.
        started: When the run was started, UTC.
        overwrite: Whether a committed dataset may be replaced.
        if_changed: Whether one that was built from the same inputs is left as it is.
        runner: Name of the runner.

    Returns:
        The lease, held if anything has to be written, and what was seen.

    Raises:
        LeaseError: Another run holds it.
        OutputError: The output folder cannot be used as asked.
        InputError: It cannot be written, or the input cannot be listed.
    """
    plan = place_output(plan, inputs=inputs, started=started)
    check_apart(plan.output, sources=plan.sources)
    lease = _find_lease(plan.output, plan=plan, runner=runner)
    try:
        while True:
            output = _look(plan, inputs=inputs, overwrite=overwrite, if_changed=if_changed)
            if not output.must_write:
                return lease, output
            if output.plan.output != lease.output:
                # The current version has another date.
                lease.release()
                lease = _find_lease(output.plan.output, plan=plan, runner=runner)
                continue
            with explain_write_errors(lease.output):
                if lease.take():
                    return lease, output
    except BaseException:
        lease.release()
        raise


def _find_lease(output: str, *, plan: Plan, runner: str) -> Lease:
    try:
        if not is_uri(output):
            return FolderLock(output)
        if storage_for(output).can_swap:
            return ObjectLease(output, plan=plan.digest, runner=runner)
    except InputError as error:
        raise OutputError(str(error)) from error
    except OSError as error:
        raise _not_a_folder(output, error) from error
    _log.warning("%s: this storage keeps no lease; let only one run at a time write there", output)
    return Lease(output)


def _look(plan: Plan, *, inputs: Inputs, overwrite: bool, if_changed: bool) -> Output:
    """Looks whether the output may be written, and has to be. Writes nothing.

    Raises:
        OutputError: It may not.
        InputError: The input cannot be listed.
    """
    latest = read_latest(plan)
    if if_changed:
        current = _find_current(plan, inputs=inputs, latest=latest)
        if current is not None:
            return current
    if _is_committed(plan.output):
        if not overwrite:
            committed = _find_uncleared(plan, latest=latest)
            if committed is not None:
                return committed
        _check_replaceable(plan, overwrite=overwrite, if_changed=if_changed, latest=latest)
    return Output(plan)


def read_latest(plan: Plan) -> str | None:
    """Returns the version that the pointer names; None where there is none.

    What is no version of this plan's output is not followed.

    Raises:
        OutputError: The file is no pointer.
    """
    if not plan.latest:
        return None
    try:
        folder = read_pointer(plan.latest)
    except InputError as error:
        raise OutputError(str(error)) from error
    return folder if folder is not None and is_version(folder, plan=plan) else None


def _find_current(plan: Plan, *, inputs: Inputs, latest: str | None) -> Output | None:
    """Finds the version that has been built from the same inputs.

    It is in the run's own folder, or with `{date}` in its name in the one that the pointer names.
    """
    outputs = [plan.output]
    if latest is not None and DATE in placeholders(plan.output_template):
        outputs.insert(0, latest)
    for output in dict.fromkeys(outputs):
        if storage_for(output).stat(join_uri(output, DATASET_INFO)) is None:
            continue
        last = _last_run(output)
        if last is not None and inputs.were_read_by(last):
            staging = Staging(output=output, plan=plan.digest, run_id="")
            return Output(
                plan=dataclasses.replace(plan, output=output),
                current=last,
                left=staging if staging.is_left() else None,
                is_pointer_stale=bool(plan.latest) and latest != output,
            )
    return None


def _find_uncleared(plan: Plan, *, latest: str | None) -> Output | None:
    """Finds a commit of this plan that was killed after `dataset_info.json` was written."""
    staging = Staging(output=plan.output, plan=plan.digest, run_id="")
    if not staging.was_committed():
        return None
    last = _last_run(plan.output)
    if last is None or last.plan != plan.digest:
        return None
    return Output(
        plan=plan,
        current=last,
        left=staging,
        is_pointer_stale=bool(plan.latest) and latest != plan.output,
        message="committed by a run that was killed before it had cleared up, which is done now",
    )


def _last_run(output: str) -> RunRecord | None:
    return max(read_runs(output), key=lambda run: run.finished_at, default=None)


def _is_committed(output: str) -> bool:
    """Says whether `output` holds a committed dataset of ours.

    Raises:
        OutputError: It holds something else, which must not be mixed with a dataset, or it
            is no folder.
    """
    try:
        if read_manifest(output) is not None:
            # A list that is damaged is found before any work is done.
            staged_commits(output)
            return storage_for(output).stat(join_uri(output, DATASET_INFO)) is not None
        foreign = foreign_files(output)
    except InputError as error:
        raise OutputError(str(error)) from error
    except OSError as error:
        raise _not_a_folder(output, error) from error
    if foreign:
        names = ", ".join(foreign[:_NAMED_FILES])
        more = f" and {len(foreign) - _NAMED_FILES} more" if len(foreign) > _NAMED_FILES else ""
        raise OutputError(
            f"{output}: holds files that are not Shardbeam's ({names}{more}); choose another "
            "output.path, or empty the folder"
        )
    return False


def _not_a_folder(output: str, error: OSError) -> OutputError:
    return OutputError(f"{output}: cannot be a dataset's folder: {error.strerror}")


def _check_replaceable(
    plan: Plan, *, overwrite: bool, if_changed: bool, latest: str | None
) -> None:
    """Decides whether the committed dataset in a plan's output may be replaced.

    Raises:
        OutputError: It may not.
    """
    if not overwrite:
        changed = "; inputs or config have changed" if if_changed else ""
        fix = "choose another output.path"
        has_fingerprint = FINGERPRINT in placeholders(plan.output_template)
        if plan.output != plan.output_template and not has_fingerprint:
            fix = "put {fingerprint} into output.path"
        raise OutputError(
            f"{plan.output}: holds a committed dataset already{changed}; add --overwrite to "
            f"replace it, or {fix}"
        )
    if latest == plan.output:
        raise OutputError(
            f"{plan.output}: readers are led here by {plan.latest}, and would see half a dataset "
            "while it is replaced; put {fingerprint} into output.path, or choose another version"
        )
