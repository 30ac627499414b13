"""Reads the rejects and corrections of a committed dataset, or of a refused run."""

from __future__ import annotations

import io
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, TypeVar

import msgspec

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.transforms.commit.pointer import pointed_folder
from shardbeam.transforms.core.errors import InputError, decoding, reading
from shardbeam.transforms.core.records import Corrected
from shardbeam.transforms.dataset.file_names import DATASET_INFO, STAGING_FOLDER
from shardbeam.transforms.dataset.manifest import read_manifest
from shardbeam.transforms.dataset.outcome import Outcome, SplitOutcome
from shardbeam.transforms.staging.staging import OUTCOME
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.base import StoredFile, join_uri
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.listed_files import read_listed

T = TypeVar("T", bound=msgspec.Struct)

_LINES = re.compile(r"(?P<folder>(?:.*/)?)(?P<what>rejects|corrections)/[^/]+\.jsonl")
_IN_FOLDER = re.compile(r"[^/]+\.jsonl")


class StoredReject(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a file of rejects; a later version may have added its reason.

    Attributes:
        split: The split it would have been in; empty for none.
        source: Which input of the config it belongs to.
        key: The image's key, or what an annotation names instead of one.
        stage: Where it was rejected.
        reason: The reason's code.
        detail: The cause and the place in the source.
        listed: Whether the rejected input is a listed image.
    """

    split: str
    source: str
    key: str
    stage: str
    reason: str
    detail: str
    listed: bool


class FoundLines(NamedTuple):
    """Files of rejects, or of corrections.

    Attributes:
        folder: The folder of the dataset, of the run, or of the files.
        files: The files, in order.
    """

    folder: str
    files: Sequence[StoredFile]


def find_lines(path: str, *, what: Literal["rejects", "corrections"]) -> FoundLines:
    """Finds the files of rejects or of corrections of a dataset.

    Args:
        path: A dataset's folder, or a pointer to one; the output of refused runs, of which the
            last one is taken; or a folder of such files.
        what: Which files to find.

    Raises:
        InputError: There is no dataset, no run and no such file.
    """
    storage = storage_for(path)
    with reading(path):
        file = storage.stat(path)
        folder = (path if file is None else pointed_folder(file)) or ""
        listed = list(storage_for(folder).list(folder)) if folder else []
    in_staging: dict[str, list[StoredFile]] = {}
    committed = []
    for found in listed:
        match = _LINES.fullmatch(found.path)
        if match is None:
            if _IN_FOLDER.fullmatch(found.path):
                committed.append(found)
        elif match["folder"].startswith(f"{STAGING_FOLDER}/"):
            # Count runs that only have files of the other kind, too: one may be the last run.
            of_run = in_staging.setdefault(match["folder"], [])
            of_run += [found] if match["what"] == what else []
        elif not match["folder"] and match["what"] == what:
            committed.append(found)
    if any(found.path == DATASET_INFO for found in listed):
        files: Sequence[StoredFile] = [file for file in committed if "/" in file.path]
    elif in_staging:
        # A run's folder is named by the time of its start.
        last = max(in_staging, key=lambda name: (posixpath.basename(name.rstrip("/")), name))
        files = in_staging[last]
        folder = join_uri(folder, last.rstrip("/"))
    else:
        files = committed
        if not files:
            raise InputError(
                uri=path,
                problem="neither a dataset, nor the output of a run that was refused, nor a folder "
                f"of {what} files (*.jsonl)",
            )
    return FoundLines(folder, sorted(files, key=lambda file: file.path))


def count_corrections(folder: str) -> Mapping[str, SplitOutcome]:
    """Reads the counts of corrections: `{split: outcome}`; empty if they are not recorded.

    Args:
        folder: `FoundLines.folder`.

    Raises:
        InputError: The manifest is damaged.
    """
    manifest = read_manifest(folder)
    if manifest is not None:
        return {name: split.outcome for name, split in manifest.splits.items()}
    uri = join_uri(folder, OUTCOME)
    try:
        data = storage_for(uri).read_small(uri, max_bytes=limits.METADATA_BYTES)
        return JsonDecoder(Outcome).decode(data).splits
    except (OSError, msgspec.DecodeError):
        return {}


def spread(corrections: Iterable[Corrected], *, limit: int) -> list[Corrected]:
    """Chooses the first corrections of each kind in each split, and keeps their order."""
    seen: Counter[tuple[str, str]] = Counter()
    ranked = []
    for place, line in enumerate(corrections):
        seen[line.split, line.what] += 1
        ranked.append((seen[line.split, line.what], place, line))
    chosen = sorted(ranked, key=lambda each: each[:2])[:limit]
    return [line for _, _, line in sorted(chosen, key=lambda each: each[1])]


def read_lines(uri: str, kind: type[T]) -> Iterator[T]:
    """Yields the rejects (`StoredReject`) or corrections (`Corrected`) of a file.

    Raises:
        InputError: The file cannot be read, or a line is not of this kind.
    """
    decoder = JsonDecoder(kind)
    data = read_listed(uri, max_bytes=limits.REJECTS_BYTES, missing="is missing")
    what = "a correction" if kind is Corrected else "a reject"
    for number, line in enumerate(io.BytesIO(data), 1):
        with decoding(uri, what, place=f"line {number}"):
            yield decoder.decode(line)
