"""Makes configs that know all formats."""

from __future__ import annotations

import functools

from shardbeam.configs import load
from shardbeam.transforms.formats.base import find_format

make_config = functools.partial(load.make_config, find_format=find_format)
