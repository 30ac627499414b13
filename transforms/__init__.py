"""The Beam transforms, each in a file with its name, and folders of modules that import no Beam.

- `ListImages`: lists the files of the sources
- `ReadAnnotations`: reads the annotations of the images
- `TakeRecords`: takes the records that a program gives itself
- `JoinAnnotations`: joins images and annotations into records
- `WriteShards`: reads, checks, converts and encodes the images, and writes the shards
- `WriteToTFRecord`: writes a program's records to TFRecord files, with the arguments of Beam's
  transform of that name
- `FindDuplicates`: finds pictures that are in the dataset several times
- `CommitDataset`: moves the written files into place, or refuses the dataset
- `ReadShards`: reads shards completely, for `stats` and `verify`

Each name is imported when it is first used, so that the folders (`core`, `storage`, `containers`,
`images`, `examples`, `formats`, `dataset`) never pay for importing Beam. The transforms share the
code in `beam`.
"""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardbeam.transforms.commit_dataset import CommitDataset as CommitDataset
    from shardbeam.transforms.find_duplicates import FindDuplicates as FindDuplicates
    from shardbeam.transforms.join_annotations import JoinAnnotations as JoinAnnotations
    from shardbeam.transforms.list_images import ListImages as ListImages
    from shardbeam.transforms.read_annotations import ReadAnnotations as ReadAnnotations
    from shardbeam.transforms.read_shards import ReadShards as ReadShards
    from shardbeam.transforms.take_records import TakeRecords as TakeRecords
    from shardbeam.transforms.write_shards import WriteShards as WriteShards
    from shardbeam.transforms.write_to_tfrecord import WriteToTFRecord as WriteToTFRecord

__all__ = [
    *("CommitDataset", "FindDuplicates", "JoinAnnotations", "ListImages"),
    *("ReadAnnotations", "ReadShards", "TakeRecords", "WriteShards"),
    "WriteToTFRecord",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Each is in the module named like it: WriteToTFRecord in write_to_tfrecord.
    module = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return __all__
