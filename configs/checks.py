"""What must hold between the keys of a config, beyond each key's own type."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterator

from configs.convert import Path, Problem
from configs.nearest import suggest
from configs.schema import Config, FeaturesConfig, LabelsConfig, Source

_FRACTIONS_TOLERANCE = 1e-6
_INT64 = range(-(2**63), 2**63)


def check_config(config: Config) -> None:
    """Checks a config whose keys are each valid.

    Raises:
        Problem: The first contradiction found.
    """
    _check_splits(config)
    _check_group_by(config)
    _check_output(config)
    _check_labels(config.labels)
    _check_features(config.features)


def _check_splits(config: Config) -> None:
    if config.splits and config.source is not None:
        raise Problem(("source",), "not together with splits; give one of them")
    if config.splits:
        if config.fractions:
            raise Problem(("fractions",), "only with source; splits names the splits already")
    elif config.source is None:
        raise Problem(("splits",), "missing; expected splits, or source and fractions")
    elif not config.fractions:
        raise Problem(("fractions",), "missing; source needs fractions, such as {train: 1}")
    else:
        total = math.fsum(config.fractions.values())
        if abs(total - 1) > _FRACTIONS_TOLERANCE:
            raise Problem(("fractions",), f"expected a sum of 1, got {total:g}")
    for name, path in _split_paths(config):
        if name == "all":
            raise Problem(path, "TFDS reads `all` as all splits together; choose another name")


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
    except re.error as error:
        raise Problem(("group_by",), f"expected a regular expression: {error}") from error


def _check_output(config: Config) -> None:
    output = config.output
    if isinstance(output.num_shards, dict):
        names = [name for name, _ in _split_paths(config)]
        for name in output.num_shards:
            if name not in names:
                raise Problem(
                    ("output", "num_shards", name),
                    f"unknown split{suggest(name, names) or '; known: ' + ', '.join(names)}",
                )
    for path, source in _sources(config):
        if _is_below(output.path, source.images):
            where = ".".join((*path, "images"))
            raise Problem(
                ("output", "path"),
                f"lies inside {where}, so that the dataset would be listed as images",
            )


def _sources(config: Config) -> Iterator[tuple[tuple[str, ...], Source]]:
    for name, source in config.splits.items():
        yield ("splits", name), source
    if config.source is not None:
        yield ("source",), config.source


def _is_below(path: str, root: str) -> bool:
    path, root = (uri if "://" in uri else os.path.abspath(uri) for uri in (path, root))
    return f"{path.rstrip('/')}/".startswith(f"{root.rstrip('/')}/")


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
    for new in labels.merge:
        if merged.get(new, new) != new:
            raise Problem(
                ("labels", "merge", new),
                f"is itself merged into {merged[new]!r}; name that instead",
            )
    for key, names in (("include", labels.include or []), ("exclude", labels.exclude)):
        for index, name in enumerate(names):
            if merged.get(name, name) != name:
                raise Problem(
                    ("labels", key, index),
                    f"{name!r} is merged into {merged[name]!r}; name that instead",
                )
    for index, name in enumerate(labels.exclude):
        if name in (labels.include or []):
            raise Problem(("labels", "exclude", index), f"{name!r} is in labels.include, too")
    if labels.first_id is not None and labels.ids != "contiguous":
        raise Problem(("labels", "first_id"), "only with ids: contiguous")


def _check_features(features: FeaturesConfig) -> None:
    for old in features.rename:
        if old in features.drop:
            raise Problem(("features", "rename", old), "is in features.drop, too")
    written = Counter([*features.rename.values(), *features.constants])
    for old, new in features.rename.items():
        if not new:
            raise Problem(("features", "rename", old), "expected a key, got an empty text")
        if written[new] > 1:
            raise Problem(("features", "rename", old), f"{new!r} is written twice")
    for key, value in features.constants.items():
        if not key:
            raise Problem(("features", "constants", key), "expected a key, got an empty text")
        if not _is_constant(value):
            raise Problem(
                ("features", "constants", key),
                "expected a str, an int of 64 bits, a float, or a list of one of these",
            )


def _is_constant(value: object) -> bool:
    values = value if isinstance(value, list) else [value]
    # By type and not by isinstance: a bool is an int, and an Example has no booleans.
    kinds = {type(item) for item in values}
    if len(kinds) != 1 or not kinds <= {str, int, float}:
        return False
    return kinds != {int} or all(item in _INT64 for item in values)
