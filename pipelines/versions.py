"""Which folder a build writes, by version, date and fingerprint, and which one `--reuse` names."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import hashlib
import logging
import re
from collections.abc import Callable, Collection, Iterator

import msgspec

from shardbeam.configs.load import ConfigError
from shardbeam.configs.passwords import hide_passwords
from shardbeam.configs.placeholders import (
    DATE,
    FINGERPRINT,
    VERSION,
    fill_template,
    parse_template,
    placeholders,
)
from shardbeam.pipelines.failures import UsageError, machine_error
from shardbeam.pipelines.overlap import check_apart
from shardbeam.pipelines.plan import Plan, absolute_path
from shardbeam.transforms.commit.pointer import pointed_folder
from shardbeam.transforms.commit.runs import RunRecord
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.file_names import DATASET_INFO, MANIFEST
from shardbeam.transforms.dataset.input_counts import ListingSummary
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.find import storage_for

_PATTERNS = {VERSION: r"\d+\.\d+\.\d+", DATE: r"\d{8}", FINGERPRINT: r"[0-9a-f]{12}"}
_FINGERPRINT_DIGITS = 12

_log = logging.getLogger(__name__)


class Inputs:
    """The inputs of a plan, as far as they are known without reading an image.

    Args:
        plan: The plan.
        list_images: Lists the images; called once, and only if that is needed.

    Attributes:
        annotation_files: `(uri, size in bytes, version)` of each annotation file, and of each file
            that defines a format.

    Raises:
        InputError: An annotation file cannot be found.
    """

    def __init__(self, plan: Plan, *, list_images: Callable[[], ListingSummary]) -> None:
        self.annotation_files = tuple(_stat_annotation_files(plan))
        self._plan = plan.digest
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
        """Whether a run had the same plan and inputs."""
        return (
            run.plan == self._plan
            and run.annotation_files == self.annotation_files
            and run.listing.fingerprint == self._listing
        )


def _stat_annotation_files(plan: Plan) -> Iterator[tuple[str, int, str]]:
    for source in plan.sources:
        path, own_format, _ = source.format.format.rpartition(".py:")
        formats = [f"{path}.py"] if own_format else []
        for uri in (*source.format.annotation_files(), *formats):
            stored = storage_for(uri).find(uri)
            # The same file with another password is the same file.
            yield hide_passwords(uri), stored.size_bytes, stored.version


def place_output(plan: Plan, *, inputs: Inputs, started: datetime.datetime) -> Plan:
    """Puts values in place of the placeholders in a plan's output.

    Args:
        plan: The plan.
        inputs: Its inputs; listed only if the output has `{fingerprint}`.
        started: When the run was started, UTC.

    Raises:
        UsageError: The output is an input, lies in one, or holds one.
    """
    values = {VERSION: plan.dataset.version, DATE: run_date(started)}
    if FINGERPRINT in placeholders(plan.output_template):
        values[FINGERPRINT] = inputs.fingerprint
    output = fill_template(plan.output_template, values)
    check_apart(output, name="output.path", inputs=plan.inputs)
    return dataclasses.replace(plan, output=output)


def run_date(started: datetime.datetime) -> str:
    """Returns what `{date}` stands for: the UTC date of the run's start, `YYYYMMDD`.

    A killed run that is started again on another day gets another folder, so it does not find its
    finished shards.
    """
    return f"{started.astimezone(datetime.timezone.utc):%Y%m%d}"


def check_versions(plan: Plan, *, if_changed: bool) -> None:
    """Checks the config's versions before any request to storage.

    Raises:
        ConfigError: `--if-changed` cannot know which version to compare with.
        UsageError: The pointer would lie where readers or runs expect something else.
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
    if hide_passwords(plan.output_template) != plan.output_template:
        raise UsageError(
            f"{plan.latest}: output.latest would show the password in output.path to its readers; "
            "leave the password out, and set it where fsspec looks for it "
            "(docs/internals/storage.md)"
        )
    if re.match(f"{_version_pattern(plan.output_template.rstrip('/'))}(/|$)", plan.latest):
        raise UsageError(
            f"{plan.latest}: output.latest lies within the folder of a version; choose another path"
        )
    parts = plan.output_template.split("/")
    if any(
        matches_template(plan.latest, "/".join(parts[:count])) for count in range(1, len(parts))
    ):
        raise UsageError(
            f"{plan.latest}: output.latest is a file, but output.path lies below it; choose "
            "another path"
        )
    check_apart(plan.latest, name="output.latest", inputs=plan.inputs)


def check_without_listing(plan: Plan, *, if_changed: bool) -> None:
    """Refuses options that need a listing before the build, if a program gives the records.

    Raises:
        UsageError: The build has such an option.
    """
    for asked, name in (
        (if_changed, "if_changed"),
        (FINGERPRINT in placeholders(plan.output_template), "{fingerprint} in output.path"),
    ):
        if asked:
            raise UsageError(f"{name}: not together with records, which only the build knows")


def matches_template(path: str, template: str) -> bool:
    """Whether a path is the template with values in place of its placeholders."""
    return re.fullmatch(_version_pattern(template), path) is not None


def _version_pattern(template: str) -> str:
    return "".join(
        _PATTERNS[part.text] if part.is_placeholder else re.escape(part.text)
        for part in parse_template(template)
    )


def find_previous(path: str, *, plan: Plan) -> str:
    """Finds the dataset that `--reuse` names, to copy its unchanged shards.

    Args:
        path: Its folder, or a file whose only line is the path of that folder. If the plan's own
            runs write it, it need not exist yet: the first run of a schedule is the same command as
            the later ones.
        plan: The plan, not placed yet.

    Returns:
        The dataset's folder; empty if there is none yet.

    Raises:
        UsageError: There is no committed dataset of ours, and the build would not write one.
        RunError: The storage cannot be read.
    """
    named = _normalized(path)
    try:
        if _is_dataset(named):
            return named
        pointed = _read_pointer(named)
        if pointed and _is_dataset(pointed):
            return pointed
    except InputError as error:
        raise UsageError(f"--reuse: {error}") from error
    except OSError as error:
        raise machine_error(error, path=f"--reuse: {path}") from error
    where = f"{pointed} (which {named} names)" if pointed else named
    if named not in map(_normalized, _own_paths(plan)):
        raise UsageError(
            f"--reuse: no committed dataset of Shardbeam's in {where}; name the folder of "
            "one, or leave --reuse out"
        )
    _log.warning("--reuse: no committed dataset in %s yet; all shards are written", where)
    return ""


def _own_paths(plan: Plan) -> Collection[str]:
    """Names the paths that a plan's runs write; `{date}` and `{fingerprint}` are not filled in."""
    values = {VERSION: plan.dataset.version, DATE: "{date}", FINGERPRINT: "{fingerprint}"}
    own = fill_template(plan.output_template, values)
    return (own, plan.latest) if plan.latest else (own,)


def _normalized(path: str) -> str:
    return absolute_path(path).rstrip("/") or "/"


def _is_dataset(folder: str) -> bool:
    """Whether a folder holds a dataset of ours: it looks for two files, and reads neither."""
    return all(
        storage_for(folder).stat(join_uri(folder, name)) is not None
        for name in (DATASET_INFO, MANIFEST)
    )


def _read_pointer(uri: str) -> str:
    """Reads the path that a pointer names; empty if `uri` is not a file.

    Raises:
        UsageError: It holds something else.
    """
    file = storage_for(uri).stat(uri)
    if file is None:
        return ""
    folder = pointed_folder(file)
    if folder is None:
        raise UsageError(
            f"--reuse: {uri}: expected a dataset's folder, or a pointer (one line with the "
            "absolute path or URI of such a folder)"
        )
    return folder.rstrip("/")
