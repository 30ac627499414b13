"""Versions of all libraries that decide a dataset's bytes."""

from __future__ import annotations

import pyarrow

from transforms.images.check import codec_versions


def library_versions() -> dict[str, str]:
    """Returns `{library: version}`: the image codecs', and pyarrow's for the index files."""
    return {**codec_versions(), "pyarrow": pyarrow.__version__}
