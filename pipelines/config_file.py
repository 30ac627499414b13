"""Reads config files, from any storage."""

from __future__ import annotations

import glob
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from shardbeam.configs.load import MAX_CONFIG_BYTES, AnyOverride, ConfigError, parse_config
from shardbeam.configs.problem import Path as KeyPath
from shardbeam.configs.schema import Config
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.base import find_format
from shardbeam.transforms.storage.base import is_uri, nearest_path
from shardbeam.transforms.storage.find import storage_for


def load_config(path: str | Path, *, overrides: Sequence[AnyOverride] = ()) -> Config:
    """Reads a config file.

    Relative paths in it stay as they are: they are relative to the current folder, as in any
    command, not to the folder of the file.

    Args:
        path: The YAML file, or its URI.
        overrides: `path.to.key=value` each, as for `--set`; or paths and values. The last one of
            a key counts.

    Raises:
        ConfigError: The file cannot be read, or is not a valid config; or a path in it would only
            be there if it were relative to the folder of the file.
    """
    origin = str(path)
    try:
        # A larger file is refused unread.
        data = storage_for(origin).read(origin, size_bytes=MAX_CONFIG_BYTES + 1)
    except (InputError, OSError) as error:
        problem = (
            error.problem if isinstance(error, InputError) else error.strerror or "no such file"
        )
        if isinstance(error, FileNotFoundError):
            problem += nearest_path(origin, storage=storage_for(origin))
        raise ConfigError(origin=origin, problem=f"cannot be read: {problem}") from error
    config = parse_config(data, overrides=overrides, origin=origin, find_format=find_format)
    _check_beside(config, origin=origin)
    return config


def _check_beside(config: Config, *, origin: str) -> None:
    """Refuses a path that is missing here, and exists in the folder of the config.

    Raises:
        ConfigError: There is such a path; the message names the folder to change to.
    """
    folder, name = os.path.split(origin)
    if not folder or is_uri(origin):
        return
    places: list[tuple[KeyPath, str | None]] = [
        (("exclude",), config.exclude),
        (("group_by",), config.group_file),
        *config.locations(),
    ]
    for place, path in places:
        if path and _is_missing(path) and not _is_missing(os.path.join(folder, path)):
            raise ConfigError(
                origin=origin,
                path=place,
                problem=f"{path} is not in the current folder, to which paths are relative, "
                f"but beside the config: run `cd {shlex.quote(folder)}` first, and name the "
                f"config {name}",
            )


def _is_missing(path: str) -> bool:
    return not (is_uri(path) or os.path.exists(path) or glob.glob(path))
