"""Reads a dataset's metadata: counts, rejects, corrections, provenance."""

from __future__ import annotations

import heapq
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from shardbeam.readers.open.find_findings import list_warnings
from shardbeam.readers.open.read_rejects import StoredReject, read_lines, spread
from shardbeam.readers.open.stored_dataset import StoredDataset, StoredSplit, dataset_name
from shardbeam.transforms.commit.runs import RunRecord, read_last_run
from shardbeam.transforms.core.reasons import correction_unit
from shardbeam.transforms.core.records import Corrected
from shardbeam.transforms.core.text import counted
from shardbeam.transforms.dataset.manifest import Manifest, formats_in
from shardbeam.transforms.dataset.outcome import DuplicateCounts, SplitOutcome
from shardbeam.transforms.storage.base import is_uri, join_uri

# The most rejects, and the most corrections, that are listed; all of them are counted.
LISTED_REJECTS = 200

_Line = TypeVar("_Line", bound=msgspec.Struct)


class Code(NamedTuple):
    """The counts of a reason, rule or correction.

    Attributes:
        code: The code of the reason, rule or correction.
        unit: What is counted.
        counts: `{split: count}`.
    """

    code: str
    unit: str
    counts: Mapping[str, int]

    @property
    def total(self) -> int:
        """The count of all splits."""
        return sum(self.counts.values())


class Facts(NamedTuple):
    """A dataset's metadata.

    Attributes:
        name: The dataset's name, or the name of its file or folder.
        title: The same; the name of its folder if the config names it only after its format.
        version: Its version; may be empty.
        description: A text for readers; may be empty.
        origin: What it was built from, by which version, and when; empty if unknown.
        splits: Its splits.
        outcomes: What became of the inputs of each split; empty if the dataset does not say so.
        rejects: How many inputs were rejected, by reason; the most frequent first.
        listed_rejects: The first of them.
        exclusions: How many inputs were left out by a rule, by rule.
        corrections: The counts of corrections, by correction.
        listed_corrections: The first corrections of each kind and split.
        provenance: `(name, value)` of each fact that decided its bytes.
        config: The config that it was built from, as indented JSON; empty if unknown.
        files: `(path, bytes, CRC-32C)` of its shards; empty if unknown.
        labels: `{class: id}` of the classes that it declares.
        duplicates: The numbers of duplicates; None if they were not looked for.
        warnings: What the build that committed it last has warned of.
    """

    name: str
    title: str
    version: str
    description: str
    splits: tuple[StoredSplit, ...]
    outcomes: Mapping[str, SplitOutcome] = {}
    rejects: tuple[Code, ...] = ()
    listed_rejects: tuple[StoredReject, ...] = ()
    exclusions: tuple[Code, ...] = ()
    corrections: tuple[Code, ...] = ()
    listed_corrections: tuple[Corrected, ...] = ()
    provenance: tuple[tuple[str, str], ...] = ()
    config: str = ""
    files: tuple[tuple[str, int, str], ...] = ()
    labels: Mapping[str, int] = {}
    origin: str = ""
    duplicates: DuplicateCounts | None = None
    warnings: tuple[str, ...] = ()


def read_facts(dataset: StoredDataset) -> Facts:
    """Reads a dataset's metadata.

    Raises:
        InputError: One of its files is damaged.
    """
    manifest = dataset.manifest
    name = dataset_name(dataset.path)
    facts = Facts(
        name=name,
        title=_title(dataset, name, config=manifest.config if manifest is not None else {}),
        version=dataset.version,
        description=dataset.description,
        splits=dataset.splits,
        provenance=(("Citation", dataset.citation),) if dataset.citation else (),
    )
    if manifest is None:
        return facts
    last_run = read_last_run(dataset.path, manifest=manifest)
    outcomes = {name: split.outcome for name, split in manifest.splits.items()}
    return facts._replace(
        origin=_origin(manifest, run=last_run),
        outcomes=outcomes,
        rejects=_codes({name: outcome.rejected for name, outcome in outcomes.items()}),
        listed_rejects=tuple(
            heapq.nsmallest(
                LISTED_REJECTS,
                _read_lines(dataset, manifest, folder="rejects", kind=StoredReject),
                key=msgspec.structs.astuple,
            )
        ),
        exclusions=_codes({name: outcome.excluded for name, outcome in outcomes.items()}),
        corrections=_codes(
            {name: outcome.corrections for name, outcome in outcomes.items()}, units=True
        ),
        listed_corrections=tuple(
            spread(
                _read_lines(dataset, manifest, folder="corrections", kind=Corrected),
                limit=LISTED_REJECTS,
            )
        ),
        provenance=(
            ("Shardbeam", manifest.shardbeam),
            ("Dataset version", manifest.version),
            ("Seed", str(manifest.seed)),
            ("Images read", f"{manifest.inputs.images:,}"),
            ("Fingerprint of the input", manifest.inputs.fingerprint),
            ("Checksum of the manifest", manifest.checksum),
            *((f"Version of {name}", value) for name, value in sorted(manifest.codecs.items())),
        ),
        config=json.dumps(manifest.config, indent=2, ensure_ascii=False, sort_keys=True),
        files=tuple((shard.path, shard.size_bytes, shard.crc32c) for shard in manifest.shards()),
        labels=manifest.labels,
        duplicates=manifest.duplicates,
        warnings=list_warnings(last_run),
    )


def _origin(manifest: Manifest, *, run: RunRecord | None) -> str:
    formats = ", ".join(formats_in(manifest.config))
    images = counted(manifest.inputs.images, "image")
    read = f"{images}{f' ({formats})' if formats else ''}"
    # 2026-11-27T10:15:58.123456+00:00; a copied dataset may lack the records of its runs.
    when = f" on {run.finished_at[:10]} at {run.finished_at[11:16]} UTC" if run is not None else ""
    return f"Built from {read} by Shardbeam {manifest.shardbeam}{when}"


def _title(dataset: StoredDataset, name: str, *, config: Mapping[str, Any]) -> str:
    """Returns the dataset's name, or its folder's if the name is just that of its format."""
    # The command line derives a dataset's name from its format like this.
    defaults = {each.rpartition(":")[2].replace("-", "_").lower() for each in formats_in(config)}
    if name not in defaults:
        return name
    folder = dataset.path if is_uri(dataset.path) else os.path.abspath(dataset.path)
    parts = [part for part in folder.split("/") if part]
    # Versions of a dataset are often folders of its folder.
    if len(parts) > 1 and parts[-1] == dataset.version:
        parts.pop()
    return parts[-1] if parts else name


def _codes(counts: Mapping[str, Mapping[str, int]], *, units: bool = False) -> tuple[Code, ...]:
    """Regroups `{split: {code: count}}` by code, the most frequent codes first."""
    totals: Counter[str] = Counter()
    for each in counts.values():
        totals.update(each)
    return tuple(
        Code(
            code=code,
            unit=correction_unit(code) if units else "images",
            counts={split: each[code] for split, each in counts.items() if each.get(code)},
        )
        for code, _ in sorted(totals.items(), key=lambda item: (-item[1], item[0]))
    )


def _read_lines(
    dataset: StoredDataset, manifest: Manifest, *, folder: str, kind: type[_Line]
) -> Iterator[_Line]:
    """Reads the rejects or the corrections that the manifest lists."""
    for file in manifest.files:
        if file.path.startswith(f"{folder}/"):
            yield from read_lines(join_uri(dataset.path, file.path), kind)
