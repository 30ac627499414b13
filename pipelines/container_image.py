"""What a container image of workers must have in common with the program that submits to it."""

from __future__ import annotations

import platform
import re
from typing import NamedTuple

import apache_beam

from shardbeam.pipelines.flags import UsageError

_BEAM_IMAGE = re.compile(r"(?:^|/)beam_python(?P<python>3\.\d+)_sdk:(?P<beam>\d+\.\d+\.\d+)")


class Versions(NamedTuple):
    """What decides whether workers can read what is pickled here.

    Attributes:
        python: Python's major and minor version.
        beam: Beam's version.
    """

    python: str
    beam: str


def own_versions() -> Versions:
    """Returns those of this program."""
    major, minor, _ = platform.python_version_tuple()
    return Versions(python=f"{major}.{minor}", beam=apache_beam.__version__)


def check_image(image: str) -> None:
    """Refuses an image of Beam's own whose name tells of another Python or Beam.

    Other images are not looked into.

    Raises:
        UsageError: The versions differ.
    """
    named = _BEAM_IMAGE.search(image)
    own = own_versions()
    if named is not None and Versions(**named.groupdict()) != own:
        raise UsageError(
            f"--sdk_container_image: {image} has Python {named['python']} and Beam "
            f"{named['beam']}, and this program runs on Python {own.python} and Beam {own.beam}; "
            "they must be the same"
        )
