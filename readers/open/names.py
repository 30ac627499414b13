"""The name of a dataset, and the mark with it in the files that commands write for people."""

from __future__ import annotations

import contextlib
import os
import posixpath
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.transforms.commit.pointer import pointed_folder
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.manifest import DATASET_INFO, MANIFEST
from shardbeam.transforms.storage.base import is_uri, join_uri
from shardbeam.transforms.storage.find import storage_for

# Only this much of a file is read; what is left of a larger one is not valid JSON.
_INFO_BYTES = 200_000_000


class _Named(msgspec.Struct, frozen=True):
    """The dataset's name in `dataset_info.json`, or in the config in `manifest.json`."""

    name: str = ""
    config: dict[str, Any] = {}


class Mark(NamedTuple):
    """What a file of ours says about itself.

    Attributes:
        kind: What it is.
        name: The dataset's name.
    """

    kind: str
    name: str

    @property
    def text(self) -> str:
        """The text that is in the file: ASCII without quotes."""
        return f"Shardbeam {self.kind} ({quote(self.name, safe='', errors='backslashreplace')})"


def dataset_name(path: str) -> str:
    """Returns the name of a dataset, or that of its file or folder if it has none.

    Args:
        path: A path as for `open_dataset`; it need not exist.
    """
    # Other code reports damaged files.
    with contextlib.suppress(InputError, OSError):
        file = storage_for(path).stat(path)
        path = (file and pointed_folder(file)) or path
    for name in (DATASET_INFO, MANIFEST):
        uri = join_uri(path, name)
        with contextlib.suppress(InputError, OSError, ValueError, RecursionError):
            # Only a regular file, because reading a pipe would never end.
            if storage_for(uri).stat(uri) is None:
                continue
            data = storage_for(uri).read(uri, size_bytes=_INFO_BYTES)
            said = JsonDecoder(_Named, strict=False).decode(data)
            if found := said.name or str(said.config.get("name", "")):
                return found
    if not is_uri(path):
        # `.` is a path, too.
        path = os.path.abspath(path)
    return posixpath.basename(path.rstrip("/"))
