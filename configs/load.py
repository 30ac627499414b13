"""Reads a config: a YAML file, with single keys overridden from the command line."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any, NamedTuple, TypeAlias

from shardbeam.configs.convert import FormatFinder, convert
from shardbeam.configs.keys import kind_below, struct_in
from shardbeam.configs.passwords import hide_passwords
from shardbeam.configs.problem import Path, Problem, ShardbeamError, format_path
from shardbeam.configs.schema import Config
from shardbeam.configs.yaml_text import YamlError, parse_yaml

OVERRIDE_ORIGIN = "--set"
MAX_CONFIG_BYTES = 1_000_000


class ConfigError(ShardbeamError, ValueError):
    """A config cannot be used. The message is one line: origin, key and expected value.

    Attributes:
        origin: The file, or `--set` if an override is wrong.
        path: The key's path; empty if the error is about the whole config.
        problem: The expected value, the actual one, and the nearest known name.
    """

    exit_code = 2

    def __init__(self, *, origin: str, path: Path = (), problem: str) -> None:
        self.origin = origin
        self.path = path
        self.problem = problem
        parts = (origin, format_path(path), problem)
        super().__init__(hide_passwords(": ".join(filter(None, parts))))


class Override(NamedTuple):
    """A value that replaces that of a key.

    Attributes:
        path: The key's path; a number in it is a position in a list.
        value: Plain data.
    """

    path: tuple[str, ...]
    value: Any


# The text is that of `--set`: `path.to.key=value`, where the value is YAML, such as `3`, `[a, b]`
# or `{train: 4}`.
AnyOverride: TypeAlias = Override | str


def ready_configs() -> dict[str, FilePath]:
    """Returns the configs that are installed with the package: `{name: its file}`, sorted."""
    return {file.stem: file for file in sorted(FilePath(__file__).parent.glob("*.yaml"))}


def describe_ready_config(file: FilePath) -> str:
    """Returns a ready config's description, its first comment, in one line."""
    return file.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def parse_config(
    data: bytes, *, overrides: Sequence[AnyOverride] = (), origin: str, find_format: FormatFinder
) -> Config:
    """Makes a config from the YAML of a config file, with the arguments of `make_config`.

    Raises:
        ConfigError: The file is larger than `MAX_CONFIG_BYTES`, not YAML, or not a config.
    """
    if len(data) > MAX_CONFIG_BYTES:
        raise ConfigError(
            origin=origin, problem=f"larger than {MAX_CONFIG_BYTES // 10**6} MB; is this a config?"
        )
    try:
        raw = parse_yaml(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ConfigError(origin=origin, problem="expected text in UTF-8") from error
    except YamlError as error:
        raise ConfigError(origin=origin, problem=_describe_toml(data) or str(error)) from error
    if raw is None:
        raise ConfigError(origin=origin, problem="the file is empty")
    if not isinstance(raw, Mapping):
        raise ConfigError(
            origin=origin,
            problem=_describe_toml(data)
            or "expected a mapping at the top level, such as `name: coco`",
        )
    return make_config(raw, overrides=overrides, origin=origin, find_format=find_format)


def _describe_toml(data: bytes) -> str:
    """Says what to write for a file that is no YAML and looks like TOML or INI; or nothing."""
    is_toml = re.search(rb"(?m)^[ \t]*([A-Za-z_][\w.-]*[ \t]*=|\[[\w.]+\][ \t]*\r?$)", data)
    return 'this is TOML; a config is YAML: `name: coco`, not `name = "coco"`' if is_toml else ""


def make_config(
    raw: Mapping[str, Any],
    *,
    overrides: Sequence[AnyOverride] = (),
    origin: str,
    find_format: FormatFinder,
) -> Config:
    """Makes a config from plain data.

    Args:
        raw: The content of a config as plain data.
        overrides: Applied in order. Missing mappings are created.
        origin: The source of `raw`, for messages.
        find_format: Finds the classes of formats (`shardbeam.transforms.formats.base`).

    Raises:
        ConfigError: A key is unknown, missing or wrong, or keys contradict each other.
    """
    tree: object = raw
    overridden = []
    for override in overrides:
        path, value = _parse_override(override) if isinstance(override, str) else override
        tree = _replace(tree, path, value, kind=Config)
        overridden.append(_plain(path))
    try:
        return convert(tree, Config, find_format=find_format)
    except Problem as problem:
        place = _plain(map(str, problem.path))
        if any(path[: len(place)] == place[: len(path)] for path in overridden):
            origin = OVERRIDE_ORIGIN
        raise ConfigError(origin=origin, path=problem.path, problem=problem.text) from problem


def _parse_override(override: str) -> Override:
    dotted, equals, text = override.partition("=")
    path = tuple(dotted.strip().split("."))
    if not equals or not all(path):
        raise ConfigError(
            origin=OVERRIDE_ORIGIN, problem=f"expected path.to.key=value, got {override!r}"
        )
    try:
        return Override(path, parse_yaml(text))
    except YamlError as error:
        raise ConfigError(
            origin=OVERRIDE_ORIGIN, path=path, problem=f"{error}; quote the value"
        ) from error


def _plain(path: Iterable[str]) -> tuple[str, ...]:
    return tuple(part.replace("-", "_") for part in path)


def _replace(
    tree: object, path: tuple[str, ...], value: object, *, kind: object, depth: int = 0
) -> object:
    # Copy instead of changing in place: a YAML alias may share a value between two keys.
    if depth == len(path):
        return value
    key = path[depth]
    struct = struct_in(kind)
    if struct is not None and isinstance(tree, Mapping) and key not in tree:
        # The file may have the same key with `-` for `_`, or the other way round.
        alike = (word for word in tree if str(word).replace("-", "_") == key.replace("-", "_"))
        key = next(alike, key)
    replace = functools.partial(
        _replace, path=path, value=value, depth=depth + 1, kind=kind_below(kind, key)
    )
    if tree is None or isinstance(tree, Mapping):
        below = tree or {}
        return {**below, key: replace(below.get(key))}
    if isinstance(tree, list) and any(isinstance(item, Mapping) for item in tree):
        if key not in map(str, range(len(tree))):
            raise ConfigError(
                origin=OVERRIDE_ORIGIN,
                path=path,
                problem=f"{format_path(path[:depth])} is a list; a place in it is a number from 0 "
                f"to {len(tree) - 1}",
            )
        return [replace(item) if str(index) == key else item for index, item in enumerate(tree)]
    raise ConfigError(
        origin=OVERRIDE_ORIGIN,
        path=path,
        problem=f"{format_path(path[:depth])} holds no keys; set it as a whole",
    )
