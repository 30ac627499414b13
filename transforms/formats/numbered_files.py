"""Sets of numbered files, such as `train-00000-of-00002.parquet`, and which of them are missing.

A name says how many files there are, so that a folder which lacks one holds a part of a dataset.
TFDS, Beam, `datasets` and WebDataset write such names.
"""

from __future__ import annotations

import glob
import posixpath
import re
import shlex
from collections.abc import Callable, Iterable, Iterator

import msgspec

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.text import counted, escape
from shardbeam.transforms.storage.base import join_uri

# A name of the Hub has a digest behind its number, which differs from file to file.
_NUMBERED = re.compile(
    r"(?P<start>.*)-(?P<number>[0-9]{1,6})-of-(?P<total>[0-9]{1,6})"
    r"(?P<digest>-[0-9a-f]{6,})?(?P<end>[^/]*)",
    re.DOTALL,
)


class NumberedSet(msgspec.Struct, frozen=True):
    """The files of one set, of which some may be missing.

    Attributes:
        start: Their path up to the number, such as `data/train`.
        end: What follows the numbers, such as `.parquet`.
        total: How many files their names announce, as it is written: `00002`.
        numbers: The numbers of those that are there.
        digest: Whether a digest follows their numbers.
    """

    start: str
    end: str
    total: str
    numbers: set[int]
    digest: bool

    @property
    def pattern(self) -> str:
        """A pattern that matches the files that are there."""
        start, end = glob.escape(self.start), glob.escape(self.end)
        return f"{start}-*-of-{self.total}{'*' if self.digest else ''}{end}"

    def missing(self) -> Iterator[str]:
        """Yields the names of the files that are missing; `*` stands for an unknown digest."""
        total = int(self.total)
        # Some writers count from 1.
        first = int(total in self.numbers and 0 not in self.numbers)
        for number in range(first, total + first):
            if number not in self.numbers:
                digits = f"{number:0{len(self.total)}d}"
                digest = "-*" if self.digest else ""
                yield f"{self.start}-{digits}-of-{self.total}{digest}{self.end}"

    def __str__(self) -> str:
        name = posixpath.basename(self.start)
        # TFDS puts the extension before the number.
        name = name if self.end else posixpath.splitext(name)[0]
        return f"{len(self.numbers)} of {counted(int(self.total), 'file')} of {escape(name)}"


def check_complete(
    paths: Iterable[str],
    *,
    folder: str,
    flag: str,
    is_wanted: Callable[[str], bool] = lambda _: True,
) -> None:
    """Checks that a folder has all files of its numbered sets.

    Args:
        paths: The files that would be read, by their paths below the folder.
        folder: The folder.
        flag: The flag that names files in its place.
        is_wanted: Whether a missing file would be read.

    Raises:
        InputError: A file is missing.
    """
    for numbered in _incomplete(paths):
        name = next(filter(is_wanted, numbered.missing()), None)
        if name is not None:
            pattern = join_uri(glob.escape(folder), numbered.pattern)
            raise InputError(
                uri=folder,
                problem=f"{escape(name)} is missing: {numbered}; copy it here, or, to read only "
                f"what is there, name the files and not their folder: {flag} "
                f"{shlex.quote(pattern)}",
            )


def describe_incomplete(uris: Iterable[str]) -> Iterator[str]:
    """Yields a line for each set of numbered files that the user has named in part."""
    for numbered in _incomplete(uris):
        missing = posixpath.basename(next(numbered.missing()))
        yield f"{numbered}: {escape(missing)} is not among them"


def _incomplete(paths: Iterable[str]) -> Iterator[NumberedSet]:
    """Yields the sets of which a file is missing."""
    found: dict[tuple[str, str, str, bool], NumberedSet] = {}
    for path in paths:
        if match := _NUMBERED.fullmatch(path):
            digest = match["digest"] is not None
            key = match["start"], match["end"], match["total"], digest
            found.setdefault(key, NumberedSet(*key[:3], set(), digest)).numbers.add(
                int(match["number"])
            )
    yield from (numbered for numbered in found.values() if any(numbered.missing()))
