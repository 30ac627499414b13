"""Shardbeam turns image files and their annotations into sharded TFRecord datasets.

The command is `shardbeam`, or `python -m shardbeam`. Programs use these names
(docs/reference/python.md):

- `build`: builds a dataset and commits it
- `plan`: says what a build would write
- `BuildResult`: what `build` returns
- `PlanResult`: what `plan` returns
- `load_config`: reads a config file
- `open`: opens a dataset as a sequence of Examples
- `ExampleSequence`: what `open` returns
- `DetectionTarget`: the objects of an image in the sequence that its `detection` returns
- `class_names`: the names of a dataset's classes
- `load_dataset`: reads a dataset as a `tf.data.Dataset` (needs TensorFlow)
- `Record`: an image and its annotations
- `WriteToTFRecord`: the Beam transform that writes records to shards
- `Format`: the base class of a custom format
- `ShardbeamError`: the base class of the errors below
- `ConfigError`: a config cannot be used
- `FormatError`: a format cannot be found
- `UsageError`: a build cannot be done as asked
- `LeaseError`: another run writes to the output
- `InputError`: the input cannot be used
- `RunError`: a run failed
- `RefusedError`: nothing was committed, because of too many rejects or an unmet expectation

Each name is imported when it is first used, because importing Beam takes a second, and
TensorFlow seven.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardbeam.configs.load import ConfigError as ConfigError
    from shardbeam.configs.problem import ShardbeamError as ShardbeamError
    from shardbeam.pipelines.config_file import load_config as load_config
    from shardbeam.pipelines.failures import RunError as RunError
    from shardbeam.pipelines.failures import UsageError as UsageError
    from shardbeam.pipelines.library import build as build
    from shardbeam.pipelines.library import plan as plan
    from shardbeam.pipelines.result import BuildResult as BuildResult
    from shardbeam.pipelines.result import PlanResult as PlanResult
    from shardbeam.pipelines.result import RefusedError as RefusedError
    from shardbeam.readers.open.items import DetectionTarget as DetectionTarget
    from shardbeam.readers.open.sequence import ExampleSequence as ExampleSequence
    from shardbeam.readers.open.sequence import class_names as class_names
    from shardbeam.readers.open.sequence import open as open
    from shardbeam.readers.open.tf_data import load_dataset as load_dataset
    from shardbeam.transforms.core.errors import InputError as InputError
    from shardbeam.transforms.core.records import Record as Record
    from shardbeam.transforms.formats.base import Format as Format
    from shardbeam.transforms.formats.base import FormatError as FormatError
    from shardbeam.transforms.staging.lease import LeaseError as LeaseError
    from shardbeam.transforms.write_to_tfrecord import WriteToTFRecord as WriteToTFRecord

# Programs that want our warnings add a handler.
logging.getLogger(__name__).addHandler(logging.NullHandler())

_MODULES = {
    "BuildResult": "pipelines.result",
    "ConfigError": "configs.load",
    "DetectionTarget": "readers.open.items",
    "ExampleSequence": "readers.open.sequence",
    "Format": "transforms.formats.base",
    "FormatError": "transforms.formats.base",
    "InputError": "transforms.core.errors",
    "LeaseError": "transforms.staging.lease",
    "PlanResult": "pipelines.result",
    "Record": "transforms.core.records",
    "RefusedError": "pipelines.result",
    "RunError": "pipelines.failures",
    "ShardbeamError": "configs.problem",
    "UsageError": "pipelines.failures",
    "WriteToTFRecord": "transforms.write_to_tfrecord",
    "build": "pipelines.library",
    "class_names": "readers.open.sequence",
    "load_config": "pipelines.config_file",
    "load_dataset": "readers.open.tf_data",
    "open": "readers.open.sequence",
    "plan": "pipelines.library",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
