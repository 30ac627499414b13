"""`statistics.json`: the statistics of each split of a dataset (docs/reference/statistics.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.transforms.core.errors import InputError, decoding, reading
from shardbeam.transforms.dataset.collectors.base import STATISTICS_VERSION
from shardbeam.transforms.dataset.collectors.grids import read_grid
from shardbeam.transforms.dataset.collectors.statistics import (
    BINS,
    Statistics,
    keep_largest_grids,
)
from shardbeam.transforms.dataset.file_names import STATISTICS
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.listed_files import read_optional

# The greatest count, and a key that is a number.
_MOST = 2**63 - 1
_NUMBER = re.compile("[0-9]{1,18}")
# Characters of a name in an error.
_SHOWN = 100
_FIX = ": the dataset is damaged; check it with `shardbeam verify`"


class _Version(msgspec.Struct, frozen=True):
    version: int


class _Splits(msgspec.Struct, frozen=True):
    splits: dict[str, Statistics]


def encode_statistics(splits: Mapping[str, Statistics]) -> bytes:
    """Renders `statistics.json`, with the grids of the largest classes.

    Args:
        splits: `{split: what is in it}`.
    """
    document = {"version": STATISTICS_VERSION, "bins": BINS, "splits": keep_largest_grids(splits)}
    return msgspec.json.format(msgspec.json.encode(document, order="sorted"), indent=2) + b"\n"


def read_statistics(folder: str) -> dict[str, Statistics] | None:
    """Reads a dataset's `statistics.json`; None if there is none, or if its version differs.

    Entries that count nothing are left out, because there are none in a file that Shardbeam writes.

    Args:
        folder: The dataset's folder.

    Raises:
        InputError: It cannot be read, or is damaged.
    """
    uri = join_uri(folder, STATISTICS)
    with reading(uri), decoding(uri, "the statistics of a dataset", fix=_FIX):
        data = read_optional(uri, max_bytes=limits.METADATA_BYTES)
        if data is None or JsonDecoder(_Version).decode(data).version != STATISTICS_VERSION:
            return None
        splits = JsonDecoder(_Splits).decode(data).splits
    return {
        name: _check_split(split, place=_entry("$.splits", name), uri=uri)
        for name, split in splits.items()
    }


def _check_split(split: Statistics, *, place: str, uri: str) -> Statistics:
    for key in split.images_by_objects:
        if not _NUMBER.fullmatch(key):
            at = _entry(f"{place}.images_by_objects", key)
            raise _damaged(uri, at, "the key is not a number of objects")
    fields = msgspec.structs.asdict(split).items()
    return Statistics(
        **{name: _check_counts(each, place=f"{place}.{name}", uri=uri) for name, each in fields}
    )


def _check_counts(counts: Any, *, place: str, uri: str) -> Any:  # noqa: ANN401  # Nested as in the fields.
    """Checks a number, or all numbers of a tuple or a mapping, and leaves out zeros of a mapping.

    Raises:
        InputError: A number is too small or too large.
    """
    if isinstance(counts, dict):
        checked = {
            name: _check_counts(each, place=_entry(place, name), uri=uri)
            for name, each in counts.items()
        }
        return {name: each for name, each in checked.items() if each}
    if isinstance(counts, str):
        try:
            _check_counts(tuple(read_grid(counts)), place=place, uri=uri)
        except ValueError as error:
            raise _damaged(uri, place, str(error)) from error
        return counts
    if isinstance(counts, tuple):
        return tuple(_check_counts(each, place=place, uri=uri) for each in counts)
    if not 0 <= counts <= _MOST:
        raise _damaged(uri, place, f"the count is {'negative' if counts < 0 else 'too large'}")
    return counts


def _entry(place: str, name: str) -> str:
    return f"{place}[{name[:_SHOWN]!r}]"


def _damaged(uri: str, place: str, problem: str) -> InputError:
    return InputError(uri=uri, place=place, problem=problem + _FIX)
