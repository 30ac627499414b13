"""What must hold between the keys of a config, beyond each key's own type.

What only the formats know, such as the default Example keys, is checked where they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from shardbeam.configs.convert import Path, Problem
from shardbeam.configs.nearest import suggest
from shardbeam.configs.placeholders import TemplateError, check_output_template, placeholders
from shardbeam.configs.schema import (
    CocoSource,
    Config,
    LabelsConfig,
    OpenImagesSource,
    OutputConfig,
    Source,
    VocSource,
    YoloSource,
)

_FRACTIONS_TOLERANCE = 1e-6
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def check_config(config: Config) -> None:
    """Checks a config whose keys are each valid.

    Raises:
        Problem: The first contradiction found.
    """
    _check_splits(config)
    _check_sources(config)
    _check_group_by(config)
    _check_num_shards(config)
    _check_file_name(config)
    _check_locations(config.output)
    _check_labels(config.labels)


def _check_splits(config: Config) -> None:
    if config.splits and config.source is not None:
        raise Problem(("source",), "not together with splits; give one of them")
    if config.splits:
        if config.fractions:
            raise Problem(("fractions",), "only with source; splits names the splits already")
    elif config.source is None:
        raise Problem(("splits",), "missing; expected splits, or source")
    elif config.fractions:
        total = math.fsum(config.fractions.values())
        if abs(total - 1) > _FRACTIONS_TOLERANCE:
            raise Problem(("fractions",), f"expected a sum of 1, got {total}")
    for name, path in _split_paths(config):
        if name == "all":
            raise Problem(path, "TFDS reads `all` as all splits together; choose another name")


def _check_sources(config: Config) -> None:
    named = [(("splits", split), source) for split, source in config.splits.items()]
    for path, source in (*named, (("source",), config.source)):
        if isinstance(source, CocoSource):
            _require_one(source, ("annotations", "panoptic", "semantic_masks"), path=path)
            if (source.panoptic is None) != (source.panoptic_masks is None):
                missing = "panoptic" if source.panoptic is None else "panoptic_masks"
                raise Problem((*path, missing), "missing; the JSON file and the PNGs go together")
        elif isinstance(source, YoloSource):
            _require_one(source, ("root", "data"), path=path)
        elif isinstance(source, OpenImagesSource):
            _require_one(source, ("boxes", "image_labels"), path=path)
        if isinstance(source, VocSource | YoloSource) and source.splits is not None:
            _check_told_splits(source.splits, config=config, path=(*path, "splits"))


def _check_told_splits(splits: Sequence[str], *, config: Config, path: Path) -> None:
    if config.splits or config.fractions:
        names = "splits" if config.splits else "fractions"
        raise Problem(path, f"the config names the splits already, with {names}; take this out")
    if not splits or len(set(splits)) < len(splits):
        raise Problem(path, "expected names, each once")


def _require_one(source: Source, keys: Sequence[str], *, path: Path) -> None:
    if not any(getattr(source, key) for key in keys):
        raise Problem((*path, keys[0]), f"missing; {source.format} needs {' or '.join(keys)}")


def _split_paths(config: Config) -> Iterator[tuple[str, Path]]:
    for key, names in (("splits", config.splits), ("fractions", config.fractions)):
        for name in names:
            yield name, (key, name)


def _check_group_by(config: Config) -> None:
    if config.group_by is None:
        return
    if not config.fractions:
        raise Problem(("group_by",), "only together with fractions")
    try:
        re.compile(config.group_by)
    except (re.error, OverflowError, RecursionError) as error:
        raise Problem(("group_by",), f"expected a regular expression: {error}") from error


def _check_num_shards(config: Config) -> None:
    # A source without fractions tells its splits itself.
    if not isinstance(config.output.num_shards, dict) or not (config.splits or config.fractions):
        return
    names = [name for name, _ in _split_paths(config)]
    for name in config.output.num_shards:
        if name not in names:
            hint = suggest(name, names) or f"; the splits are {', '.join(names)}"
            raise Problem(("output", "num_shards", name), f"unknown split{hint}")


def _check_file_name(config: Config) -> None:
    output = config.output
    if output.file_name is None:
        return
    if output.num_shards not in (None, 1):
        raise Problem(("output", "file_name"), "one file a split; take output.num_shards out")
    if "{split}" not in output.file_name and len(list(_split_paths(config))) > 1:
        raise Problem(
            ("output", "file_name"),
            "several splits would be written to one file; put {split} into the name",
        )


def _check_locations(output: OutputConfig) -> None:
    try:
        check_output_template(output.path)
    except TemplateError as error:
        raise Problem(("output", "path"), str(error)) from error
    if output.latest is None:
        return
    try:
        names = sorted(placeholders(output.latest))
    except TemplateError as error:
        raise Problem(("output", "latest"), str(error)) from error
    if names:
        raise Problem(
            ("output", "latest"),
            f"no placeholder, got {{{names[0]}}}: the pointer stays where readers look for it",
        )
    for key, path in (("path", output.path), ("latest", output.latest)):
        if _CONTROL.search(path):
            raise Problem(
                ("output", key),
                "expected no control characters: output.latest is a file of one line",
            )


def _check_labels(labels: LabelsConfig) -> None:
    if labels.include == []:
        raise Problem(("labels", "include"), "expected names, got an empty list")
    merged: dict[str, str] = {}
    for new, olds in labels.merge.items():
        for old in olds:
            if merged.setdefault(old, new) != new:
                raise Problem(
                    ("labels", "merge", new), f"{old!r} is merged into {merged[old]!r} already"
                )
    # Both name what is written, so that a name merged away would silently match nothing.
    for key, names in (("include", labels.include or []), ("exclude", labels.exclude)):
        for index, name in enumerate(names):
            if name in merged and name not in labels.merge:
                raise Problem(
                    ("labels", key, index),
                    f"{name!r} is merged into {merged[name]!r}; name that instead",
                )
