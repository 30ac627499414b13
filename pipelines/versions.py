"""Versions of a dataset: which folder a run writes, which one is there already, and the latest."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import hashlib
import re
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from shardbeam.configs.load import ConfigError
from shardbeam.configs.placeholders import (
    DATE,
    FINGERPRINT,
    VERSION,
    fill_template,
    parse_template,
    placeholders,
)
from shardbeam.pipelines.output_state import OutputError, check_apart
from shardbeam.pipelines.plan import Plan
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.census import ListingSummary
from shardbeam.transforms.dataset.commit import DATASET_INFO
from shardbeam.transforms.dataset.dataset import RunRecord, read_runs
from shardbeam.transforms.dataset.pointer import read_pointer
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.find import storage_for

_PATTERNS = {VERSION: r"\d+\.\d+\.\d+", DATE: r"\d{8}", FINGERPRINT: r"[0-9a-f]{12}"}
_FINGERPRINT_DIGITS = 12


class Version(NamedTuple):
    """A committed version.

    Attributes:
        output: Its folder.
        run: The run that committed it.
    """

    output: str
    run: RunRecord


class Inputs:
    """What a plan reads, as far as it can be told without reading an image.

    Attributes:
        annotation_files: `(uri, size in bytes, version)` of each annotation file, and of each file
            that defines a format.
    """

    def __init__(
        self,
        *,
        plan: str,
        annotation_files: tuple[tuple[str, int, str], ...],
        list_images: Callable[[], ListingSummary],
    ) -> None:
        """Prepares, and lists nothing yet.

        Args:
            plan: The plan's digest.
            annotation_files: See above.
            list_images: Lists the images; called once, and only if that is needed.
        """
        self.annotation_files = annotation_files
        self._plan = plan
        self._list_images = list_images

    @functools.cached_property
    def _listing(self) -> str:
        return self._list_images().fingerprint

    @property
    def fingerprint(self) -> str:
        """Digests plan and inputs: all that `were_read_by` compares."""
        facts = msgspec.json.encode([self._plan, self.annotation_files, self._listing])
        return hashlib.sha256(facts).hexdigest()[:_FINGERPRINT_DIGITS]

    def were_read_by(self, run: RunRecord) -> bool:
        """Says whether a run had the same plan and inputs."""
        return (
            run.plan == self._plan
            and run.annotation_files == self.annotation_files
            and run.listing.fingerprint == self._listing
        )


def place_output(plan: Plan, *, inputs: Inputs, started: datetime.datetime) -> Plan:
    """Puts values in place of the placeholders in a plan's output.

    Args:
        plan: The plan.
        inputs: What it reads; listed only where `{fingerprint}` stands.
        started: When the run was started, UTC.
    """
    values = {VERSION: plan.dataset.version, DATE: run_date(started)}
    if FINGERPRINT in placeholders(plan.output_template):
        values[FINGERPRINT] = inputs.fingerprint
    return dataclasses.replace(plan, output=fill_template(plan.output_template, values))


def name_output(plan: Plan) -> str:
    """Names the output of all runs of a plan: `{date}` and `{fingerprint}` stand as they are."""
    values = {VERSION: plan.dataset.version, DATE: "{date}", FINGERPRINT: "{fingerprint}"}
    return fill_template(plan.output_template, values)


def versions_root(plan: Plan) -> str | None:
    """Names the folder that holds all versions of a plan's output.

    Returns:
        The part of the output's path before `{date}` or `{fingerprint}`; None where every run of
        the plan has the same folder.
    """
    parts = plan.output_template.split("/")
    for count, part in enumerate(parts):
        if placeholders(part) & {DATE, FINGERPRINT}:
            return fill_template("/".join(parts[:count]), {VERSION: plan.dataset.version})
    return None


def run_date(started: datetime.datetime) -> str:
    """Returns what `{date}` stands for: the UTC date of the run's start, `YYYYMMDD`.

    A run that was killed, and is started again on another day, has another folder, and does not
    find its finished shards. Whoever knows of the unfinished run can give its start here.
    """
    return f"{started.astimezone(datetime.timezone.utc):%Y%m%d}"


def check_versions(plan: Plan, *, if_changed: bool) -> None:
    """Checks what the config says about versions, before anything is asked of any storage.

    Raises:
        ConfigError: Nothing could tell which version `--if-changed` compares with.
        OutputError: The pointer would lie where readers or runs take it for something else.
    """
    if if_changed and not plan.latest and DATE in placeholders(plan.output_template):
        raise ConfigError(
            origin="config",
            path=("output", "latest"),
            problem="missing; with {date} in output.path, --if-changed finds the last version by "
            "this pointer; add it, or put {fingerprint} in place of {date}",
        )
    if not plan.latest:
        return
    if re.match(f"{_version_pattern(plan.output_template.rstrip('/'))}(/|$)", plan.latest):
        raise OutputError(
            f"{plan.latest}: output.latest lies within the folder of a version; choose another path"
        )
    if any(_matches(plan.latest, folder) for folder in _folders_above(plan.output_template)):
        raise OutputError(
            f"{plan.latest}: output.latest is a file, but output.path lies below it; choose "
            "another path"
        )
    check_apart(plan.latest, sources=plan.sources, key="output.latest")


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
    return folder if folder is not None and _matches(folder, plan.output_template) else None


def find_current(plan: Plan, *, inputs: Inputs, latest: str | None) -> Version | None:
    """Finds the version that has been built from these inputs.

    The run's own folder, and with `{date}` in its name also the one that the pointer names.

    Args:
        plan: The plan, placed.
        inputs: What it reads.
        latest: What the pointer names.
    """
    outputs = [plan.output]
    if latest is not None and DATE in placeholders(plan.output_template):
        outputs.insert(0, latest)
    for output in dict.fromkeys(outputs):
        if storage_for(output).stat(join_uri(output, DATASET_INFO)) is None:
            continue
        last = max(read_runs(output), key=lambda run: run.finished_at, default=None)
        if last is not None and inputs.were_read_by(last):
            return Version(output=output, run=last)
    return None


def check_replaceable(plan: Plan, *, overwrite: bool, if_changed: bool, latest: str | None) -> None:
    """Decides whether the committed dataset in a plan's output may be replaced.

    Args:
        plan: The plan, placed.
        overwrite: Whether that was asked for.
        if_changed: Whether it was found out that something has changed.
        latest: What the pointer names.

    Raises:
        OutputError: It may not.
    """
    has_fingerprint = FINGERPRINT in placeholders(plan.output_template)
    if not overwrite:
        changed = "; inputs or config have changed" if if_changed else ""
        fix = "choose another output.path"
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


def _folders_above(template: str) -> list[str]:
    parts = template.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _matches(path: str, template: str) -> bool:
    return re.fullmatch(_version_pattern(template), path) is not None


def _version_pattern(template: str) -> str:
    """Returns a regular expression for all that a path with placeholders may become."""
    return "".join(
        _PATTERNS[part.text] if part.is_placeholder else re.escape(part.text)
        for part in parse_template(template)
    )
