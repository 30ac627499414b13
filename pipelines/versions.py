"""Versions of a dataset: which folder a run writes, and what tells one version from the next."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import hashlib
import os
import re
from collections.abc import Callable, Iterable

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
from shardbeam.pipelines.plan import Plan
from shardbeam.transforms.dataset.census import ListingSummary
from shardbeam.transforms.dataset.dataset import RunRecord
from shardbeam.transforms.formats.sources import Source
from shardbeam.transforms.storage.base import is_uri

_PATTERNS = {VERSION: r"\d+\.\d+\.\d+", DATE: r"\d{8}", FINGERPRINT: r"[0-9a-f]{12}"}
_FINGERPRINT_DIGITS = 12


class OutputError(ValueError):
    """The output folder cannot be used as asked. The message is one line."""


class Inputs:
    """What a plan reads, as far as that can be told without reading an image.

    Args:
        plan: The plan's digest.
        annotation_files: `(uri, size in bytes, version)` of each annotation file, and of each file
            that defines a format.
        list_images: Lists the images; called once, and only if that is needed.
    """

    def __init__(
        self,
        *,
        plan: str,
        annotation_files: tuple[tuple[str, int, str], ...],
        list_images: Callable[[], ListingSummary],
    ) -> None:
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


def run_date(started: datetime.datetime) -> str:
    """Returns what `{date}` stands for: the UTC date of the run's start, `YYYYMMDD`.

    A run that was killed, and is started again on another day, has another folder, and does not
    find its finished shards.
    """
    return f"{started.astimezone(datetime.timezone.utc):%Y%m%d}"


def is_version(path: str, *, plan: Plan) -> bool:
    """Says whether a path can be what a plan's output is called in one of its runs."""
    return _matches(path, plan.output_template)


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
    parts = plan.output_template.split("/")
    if any(_matches(plan.latest, "/".join(parts[:count])) for count in range(1, len(parts))):
        raise OutputError(
            f"{plan.latest}: output.latest is a file, but output.path lies below it; choose "
            "another path"
        )
    check_apart(plan.latest, sources=plan.sources, key="output.latest")


def check_apart(path: str, *, sources: Iterable[Source], key: str = "output.path") -> None:
    """Refuses an output within an image root: a run would list what it writes.

    Args:
        path: What is written.
        sources: Where images are listed.
        key: The config's key that says the path.

    Raises:
        OutputError: It lies within one.
    """
    for root in (root for source in sources for root in source.format.roots()):
        if f"{_real_path(path)}/".startswith(f"{_real_path(root).rstrip('/')}/"):
            raise OutputError(
                f"{path}: lies within the images' folder {root}, whose listing would "
                f"hold what is written; choose another {key}"
            )


def _real_path(path: str) -> str:
    """Follows symbolic links on local disk, behind which one folder may lie within another."""
    return path if is_uri(path) else os.path.realpath(path)


def _matches(path: str, template: str) -> bool:
    return re.fullmatch(_version_pattern(template), path) is not None


def _version_pattern(template: str) -> str:
    """Returns a regular expression for all that a path with placeholders may become."""
    return "".join(
        _PATTERNS[part.text] if part.is_placeholder else re.escape(part.text)
        for part in parse_template(template)
    )
