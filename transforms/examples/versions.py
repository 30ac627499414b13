"""Versions of all libraries that decide a dataset's bytes."""

from __future__ import annotations

import importlib.metadata
import zlib

import pyarrow

from shardbeam.transforms.images.check import codec_versions


def library_versions() -> dict[str, str]:
    """Returns `{library: version}`: of what makes images, masks and index files."""
    return {
        **codec_versions(),
        "pyarrow": pyarrow.__version__,
        # Pillow has a zlib of its own.
        "python-zlib": zlib.ZLIB_RUNTIME_VERSION,
        "pycocotools": importlib.metadata.version("pycocotools"),
    }
