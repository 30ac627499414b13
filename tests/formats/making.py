"""Makes formats as a build does."""

from __future__ import annotations

from typing import Any

import msgspec

from shardbeam.configs.convert import convert
from shardbeam.configs.schema import Source
from shardbeam.transforms.formats.base import Format
from shardbeam.transforms.formats.load import find_format


def make_format(name: str, **keys: Any) -> Format:  # noqa: ANN401  # Whatever a config holds.
    """Makes a format of the keys of a config, and of those (`_masks`) that the plan sets."""
    planned = {key: value for key, value in keys.items() if key.startswith("_")}
    given = {key: value for key, value in keys.items() if key not in planned and value is not None}
    made = convert({"format": name, **given}, Source, find_format=find_format)
    assert isinstance(made, Format)
    return msgspec.structs.replace(made, **planned)
