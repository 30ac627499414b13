"""The output before a run: what is in its folder, and the lease to write there."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from shardbeam.configs.passwords import hide_passwords
from shardbeam.configs.placeholders import DATE, FINGERPRINT, placeholders
from shardbeam.pipelines.failures import RunError, UsageError, machine_error
from shardbeam.pipelines.overlap import check_outside_datasets
from shardbeam.pipelines.plan import Plan
from shardbeam.pipelines.versions import Inputs, matches_template, place_output
from shardbeam.transforms.commit.moves import foreign_files, staged_commits
from shardbeam.transforms.commit.pointer import read_pointer
from shardbeam.transforms.commit.runs import EDITED, RunRecord, read_last_run, was_edited
from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.core.map_ahead import map_many
from shardbeam.transforms.core.records import ImageRef
from shardbeam.transforms.core.text import counted
from shardbeam.transforms.dataset.file_names import DATASET_INFO, MANIFEST
from shardbeam.transforms.dataset.manifest import (
    Manifest,
    decode_manifest,
    formats_in,
    read_manifest,
)
from shardbeam.transforms.formats.join.sources import Source
from shardbeam.transforms.staging.lease import FolderLock, Lease
from shardbeam.transforms.staging.staging import Staging, explain_write_errors
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.base import dangling_link, is_uri, join_uri
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.image_bytes import read_bytes
from shardbeam.transforms.storage.listed_files import read_optional

_log = logging.getLogger(__name__)

_NAMED_FILES = 3
# Unread files that are probed at a time.
_FILES_AT_A_TIME = 16


class Output(NamedTuple):
    """What is in the output before a build.

    Attributes:
        plan: The plan; its output is now the folder to write, or that of the current version.
        current: The run that committed it, if there is nothing to build.
        left: Its staging, if that was left behind.
        is_pointer_stale: Whether the pointer names another version.
        message: Why there is nothing to build.
        replaces: The dataset there that the build replaces: its name, version and size.
        damage: What is wrong with the version that was built from the same inputs. It is repaired
            in place, and its undamaged shards are copied.
    """

    plan: Plan
    current: RunRecord | None = None
    left: Staging | None = None
    is_pointer_stale: bool = False
    message: str = "nothing to do: inputs and config are as they were"
    replaces: str = ""
    damage: Sequence[str] = ()

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
    damage: Sequence[str] = (),
    runner: str,
) -> tuple[Lease, Output]:
    """Looks at a plan's output and takes its lease, so that no other run comes in between.

    Nothing is written until the output is known to be usable, and nothing at all if there is
    nothing to do.

    Args:
        plan: The plan.
        inputs: Its inputs; listed only if needed.
        started: When the run was started, UTC.
        overwrite: Whether a committed dataset may be replaced.
        if_changed: Whether one that was built from the same inputs is left as it is.
        damage: What is wrong with that one; then it is repaired.
        runner: Name of the runner.

    Returns:
        The lease, held if anything has to be written, and what is in the output.

    Raises:
        LeaseError: Another run holds it.
        UsageError: The output folder cannot be used as asked.
        RunError: It cannot be read.
        InputError: It cannot be written, or the input cannot be listed.
    """
    plan = place_output(plan, inputs=inputs, started=started)
    lease = _find_lease(plan.output, plan=plan, runner=runner)
    try:
        while True:
            output = _look(
                plan, inputs=inputs, overwrite=overwrite, if_changed=if_changed, damage=damage
            )
            if not output.must_write:
                return lease, output
            if output.plan.output != lease.output:
                # The current version has another date.
                lease.release()
                lease = _find_lease(output.plan.output, plan=plan, runner=runner)
                continue
            with explain_write_errors(lease.output):
                if not lease.take():
                    continue
            if output.damage:
                _log.warning(
                    "%s: %s; the undamaged shards are kept, the others are built again",
                    lease.output,
                    _first_of(output.damage),
                )
            return lease, output
    except BaseException:
        lease.release()
        raise


def check_usable(plan: Plan, *, inputs: Inputs, overwrite: bool, if_changed: bool) -> str:
    """Looks at a plan's output without writing, and says why a build would refuse it.

    Args:
        plan: The plan, after `place_output`.
        inputs: Its inputs; listed only if needed.
        overwrite: Whether a committed dataset may be replaced.
        if_changed: Whether one that was built from the same inputs is left as it is.

    Returns:
        Why; empty if a build may write there.
    """
    try:
        found = _look(plan, inputs=inputs, overwrite=overwrite, if_changed=if_changed, damage=())
    except (UsageError, RunError) as error:
        return str(error)
    output = found.plan.output
    if is_uri(output) or not found.must_write:
        return ""
    above = Path(output)
    while not above.exists() and above != above.parent:
        above = above.parent
    if not os.access(above, os.W_OK | os.X_OK):
        return f"{output}: cannot be written: no permission to write in {above}"
    return ""


def _find_lease(output: str, *, plan: Plan, runner: str) -> Lease:
    with _explain_read_errors(output):
        if not is_uri(output):
            return FolderLock(output)
        if storage_for(output).can_swap:
            # Imported here: a folder has a lock.
            from shardbeam.transforms.staging.object_lease import ObjectLease

            return ObjectLease(output, plan=plan.digest, runner=runner)
    _log.warning("%s: this storage keeps no lease; let only one run at a time write there", output)
    return Lease(output)


def _look(
    plan: Plan, *, inputs: Inputs, overwrite: bool, if_changed: bool, damage: Sequence[str]
) -> Output:
    """Finds out, without writing, whether the output may and must be written.

    Raises:
        UsageError: It may not.
        InputError: The input cannot be listed.
    """
    latest = read_latest(plan)
    found = None
    if if_changed:
        found = _find_current(plan, inputs=inputs, latest=latest, damage=damage)
    if found is None and damage:
        raise UsageError(
            f"{plan.output}: not repaired: its images, annotations or config are not those that it "
            "was built from; to build from what is there now, run `shardbeam build` with "
            "--overwrite; --reuse with this folder copies the unchanged shards"
        )
    if found is not None:
        return found
    if plan.latest and latest is None:
        check_outside_datasets(plan.latest, name="output.latest", may_be_one=True)
    there = _read_committed(plan.output)
    if there is None:
        return Output(plan)
    if not overwrite:
        found = _find_uncleared(plan, there, latest=latest)
    if found is None:
        _check_replaceable(plan, there, overwrite=overwrite, if_changed=if_changed, latest=latest)
    return found or Output(plan, replaces=_describe(there))


def read_latest(plan: Plan) -> str | None:
    """Returns the version that the pointer names; None if there is none.

    A pointer to anything but a version of this plan's output is ignored.

    Raises:
        UsageError: The file is not a pointer.
    """
    if not plan.latest:
        return None
    try:
        folder = read_pointer(plan.latest)
    except InputError as error:
        raise UsageError(str(error)) from error
    return folder if folder is not None and matches_template(folder, plan.output_template) else None


def _find_current(
    plan: Plan, *, inputs: Inputs, latest: str | None, damage: Sequence[str]
) -> Output | None:
    """Finds the version that was built from the same inputs.

    It is in the run's folder or, if the path has `{date}`, in the one that the pointer names.
    """
    # Imported here: only --if-changed and a repair compare with what is there.
    from shardbeam.transforms.shards.missing_files import find_missing, list_files

    outputs = [plan.output]
    if latest is not None and DATE in placeholders(plan.output_template):
        outputs.insert(0, latest)
    for output in dict.fromkeys(outputs):
        with _explain_read_errors(output):
            uri = join_uri(output, MANIFEST)
            data = read_optional(uri, max_bytes=limits.METADATA_BYTES)
            if data is None:
                continue
            manifest = decode_manifest(data, uri=uri)
            is_edited = was_edited(data, manifest=manifest, output=output)
            last = read_last_run(output, manifest=None if is_edited else manifest)
        if last is None or not inputs.were_read_by(last):
            continue
        placed = dataclasses.replace(plan, output=output)
        with _explain_read_errors(output):
            listed = list_files(output)
        wrong = damage or [
            *([f"{MANIFEST}: {EDITED}"] if is_edited else []),
            *(str(each) for each in find_missing(manifest, listed=listed)),
        ]
        if not wrong:
            unread = _with_passwords(last.unread, sources=plan.sources)
            wrong = [f"{uri}: can be read now" for uri in _readable(unread)]
            if wrong and latest == output:
                # The pointer already names this version, and it is complete.
                if output == plan.output:
                    raise _refused_for_readers(plan, cause=f": {_first_of(wrong)}")
                continue
        if wrong:
            return Output(plan=placed, damage=wrong)
        staging = Staging(output=output, plan=plan.digest, run_id="")
        with _explain_read_errors(output):
            is_left = staging.is_left()
        return Output(
            plan=placed,
            current=last,
            left=staging if is_left else None,
            is_pointer_stale=bool(plan.latest) and latest != output,
        )
    return None


def _with_passwords(files: Iterable[ImageRef], *, sources: Iterable[Source]) -> list[ImageRef]:
    """Restores the passwords of roots, which the record of a run leaves out."""
    roots = [root for source in sources for root in source.format.roots()]
    hidden = {hide_passwords(root): root for root in roots}
    found = []
    for file in files:
        shown = next((each for each in hidden if file.uri.startswith(each)), "")
        uri = hidden.get(shown, "") + file.uri.removeprefix(shown)
        found.append(msgspec.structs.replace(file, uri=uri))
    return found


def _readable(files: Sequence[ImageRef]) -> Iterator[str]:
    """Probes files that could not be read, many at a time; yields those that can be read now."""
    for file, can_read in zip(
        files, map_many(_can_read, files, threads=_FILES_AT_A_TIME), strict=True
    ):
        if can_read:
            yield file.uri


def _can_read(file: ImageRef) -> bool:
    try:
        read_bytes(file)
    except RejectedError:
        return False
    return True


def _find_uncleared(plan: Plan, there: Manifest, *, latest: str | None) -> Output | None:
    """Finds a commit of this plan that was killed after `dataset_info.json` was written."""
    staging = Staging(output=plan.output, plan=plan.digest, run_id="")
    with _explain_read_errors(plan.output):
        last = read_last_run(plan.output, manifest=there) if staging.was_committed() else None
    if last is None or last.plan != plan.digest:
        return None
    return Output(
        plan=plan,
        current=last,
        left=staging,
        is_pointer_stale=bool(plan.latest) and latest != plan.output,
        message="an earlier run committed it and was killed before clearing up, which is done now",
    )


def _read_committed(output: str) -> Manifest | None:
    """Returns the manifest of the committed dataset of ours in `output`; None if there is none.

    Raises:
        UsageError: It holds other files, which must not be mixed with a dataset, it lies in a
            dataset, or it is not a folder.
    """
    with _explain_read_errors(output):
        manifest = read_manifest(output)
        if manifest is not None:
            # Fail before any work is done if a list of staged files is damaged.
            staged_commits(output)
            is_committed = storage_for(output).stat(join_uri(output, DATASET_INFO)) is not None
            return manifest if is_committed else None
        if link := dangling_link(output):
            raise UsageError(f"output.path: {link}; make that folder, or name another one")
        # What is there already may be repaired or replaced wherever it lies.
        check_outside_datasets(output, name="output.path", may_be_one=True)
        foreign = foreign_files(output)
    if foreign:
        raise UsageError(
            f"{output}: holds files that are not Shardbeam's ({_first_of(foreign)}); name a "
            "new folder as output.path, such as one inside of this one"
        )
    return None


def _first_of(items: Sequence[str]) -> str:
    more = f" and {len(items) - _NAMED_FILES} more" if len(items) > _NAMED_FILES else ""
    return ", ".join(items[:_NAMED_FILES]) + more


@contextlib.contextmanager
def _explain_read_errors(output: str) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise UsageError(str(error)) from error
    except NotADirectoryError as error:
        raise UsageError(f"{output}: cannot be a dataset's folder: {error.strerror}") from error
    except OSError as error:
        raise machine_error(error, path=output) from error


def _check_replaceable(
    plan: Plan, there: Manifest, *, overwrite: bool, if_changed: bool, latest: str | None
) -> None:
    """Refuses to replace the committed dataset in a plan's output, if it must not be."""
    if not overwrite:
        changed = "; inputs or config have changed" if if_changed else ""
        fix = "choose another output.path"
        has_fingerprint = FINGERPRINT in placeholders(plan.output_template)
        if plan.output != plan.output_template and not has_fingerprint:
            fix = "put {fingerprint} into output.path"
        raise UsageError(
            f"{plan.output}: holds a committed dataset already{changed}; add --overwrite to "
            f"replace it, or {fix}"
        )
    if latest == plan.output:
        raise _refused_for_readers(plan)
    old, new = formats_in(there.config), formats_in(plan.dataset.config)
    if there.name != plan.dataset.name and (old != new or not old):
        raise UsageError(
            f"{plan.output}: holds {_describe(there)} from {_list(old)}; --overwrite replaces it "
            f"only with a dataset of its name or its formats, not with {plan.dataset.name} from "
            f"{_list(new)}; choose another output.path, such as {plan.output.rstrip('/')}-"
            f"{plan.dataset.name}"
        )


def _describe(manifest: Manifest) -> str:
    """Describes a dataset in a few words: its name, version and size."""
    examples = sum(split.outcome.examples for split in manifest.splits.values())
    return f"{manifest.name} {manifest.version}, {counted(examples, 'example')}"


def _list(formats: Sequence[str]) -> str:
    return ", ".join(formats) or "other sources"


def _refused_for_readers(plan: Plan, *, cause: str = "") -> UsageError:
    fix = "choose another version"
    if FINGERPRINT not in placeholders(plan.output_template):
        fix = f"put {{fingerprint}} into output.path, or {fix}"
    return UsageError(
        f"{plan.output}{cause}: {plan.latest} leads readers here, and they would see half a "
        f"dataset while it is replaced; {fix}"
    )
