"""Shardbeam: image files and their annotations in, training-ready sharded TFRecord datasets out.

The command is `shardbeam`, or `python -m shardbeam`. For programs there are, by name:

- `load_dataset`: reads a dataset as a `tf.data.Dataset` (needs the extra `tensorflow`)
- `load_config`: reads a config file
- `make_plan`: makes the plan of a config
- `build_dataset`: adds the graph that builds a plan's dataset to a Beam pipeline
- `WriteToTFRecord`: the Beam transform that writes records to shards
- `ShardSettings`: how it makes them
- `Format`: the base class of a format of one's own
- `InputError`: what input that cannot be used raises
- `ConfigError`: what a config that cannot be used raises

Each name is imported when it is first used, so that nobody waits for what they do not use: Beam
takes a second, TensorFlow seven.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardbeam.configs.load import ConfigError as ConfigError
    from shardbeam.pipelines.arguments import load_config as load_config
    from shardbeam.pipelines.build import build_dataset as build_dataset
    from shardbeam.pipelines.plan import make_plan as make_plan
    from shardbeam.pipelines.read import load_dataset as load_dataset
    from shardbeam.transforms.core.errors import InputError as InputError
    from shardbeam.transforms.dataset.shard import ShardSettings as ShardSettings
    from shardbeam.transforms.formats.base import Format as Format
    from shardbeam.transforms.write_to_tfrecord import WriteToTFRecord as WriteToTFRecord

_MODULES = {
    "ConfigError": "configs.load",
    "Format": "transforms.formats.base",
    "InputError": "transforms.core.errors",
    "ShardSettings": "transforms.dataset.shard",
    "WriteToTFRecord": "transforms.write_to_tfrecord",
    "build_dataset": "pipelines.build",
    "load_config": "pipelines.arguments",
    "load_dataset": "pipelines.read",
    "make_plan": "pipelines.plan",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
