"""Packages that only some uses need, and the command that installs them."""

from __future__ import annotations

import importlib.metadata
import re
import shlex

_EXTRA = re.compile(r"(?P<requirement>[^;]+?)\s*;\s*extra\s*==\s*['\"](?P<extra>[\w-]+)['\"]")


def install_command(extra: str) -> str:
    """Returns the pip command that installs the packages of an extra.

    It names the packages themselves, because Shardbeam is on no package index. The versions are
    those of the package's own metadata.
    """
    name = extra.replace("_", "-")
    found = map(_EXTRA.fullmatch, importlib.metadata.requires("shardbeam") or ())
    needed = [match["requirement"] for match in found if match and match["extra"] == name]
    return f"pip install {shlex.join(needed)}"
