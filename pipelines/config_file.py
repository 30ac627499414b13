"""Reads config files, from any storage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shardbeam.configs.load import MAX_CONFIG_BYTES, ConfigError, parse_config
from shardbeam.configs.schema import Config
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.load import find_format
from shardbeam.transforms.storage.find import storage_for


def load_config(path: str | Path, *, overrides: Sequence[str] = ()) -> Config:
    """Reads a config file.

    Relative paths in it stay as they are: they are relative to the current folder, as in any
    command, not to the folder of the file.

    Args:
        path: The YAML file, or its URI.
        overrides: `path.to.key=value` each, as for `make_config`.

    Raises:
        ConfigError: The file cannot be read, or is not a valid config.
    """
    origin = str(path)
    try:
        # A larger file is refused unread.
        data = storage_for(origin).read(origin, size_bytes=MAX_CONFIG_BYTES + 1)
    except (InputError, OSError) as error:
        problem = (
            error.problem if isinstance(error, InputError) else error.strerror or "no such file"
        )
        raise ConfigError(origin=origin, problem=f"cannot be read: {problem}") from error
    return parse_config(data, overrides=overrides, origin=origin, find_format=find_format)
