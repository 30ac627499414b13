"""Packages that only some uses need, and the command that installs them."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import re
import shlex
from types import ModuleType

_EXTRA = re.compile(r"(?P<requirement>[^;]+?)\s*;\s*extra\s*==\s*['\"](?P<extra>[\w-]+)['\"]")

_OLDEST_LIBHEIF = (1, 22)


def install_command(extra: str) -> str:
    """Returns the pip command that installs the packages of an extra.

    It names the packages themselves, because Shardbeam is on no package index. The versions are
    those of the package's own metadata.
    """
    name = extra.replace("_", "-")
    found = map(_EXTRA.fullmatch, importlib.metadata.requires("shardbeam") or ())
    needed = [match["requirement"] for match in found if match and match["extra"] == name]
    return f"pip install {shlex.join(needed)}"


@functools.cache
def import_heif() -> ModuleType | None:
    """Imports the library that decodes HEIC files.

    pi-heif is the same library without an encoder, and is no longer maintained.

    Returns:
        `pillow_heif` or else `pi_heif`; None if neither is installed with a libheif that compares
        the size in a file's header with that of its picture before it decodes the picture.
    """
    for name in ("pillow_heif", "pi_heif"):
        try:
            library = importlib.import_module(name)
        except ImportError:
            continue
        if tuple(map(int, library.libheif_version().split(".")[:2])) >= _OLDEST_LIBHEIF:
            return library
    return None
