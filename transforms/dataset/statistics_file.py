"""`statistics.json`: the statistics of each split of a dataset (docs/statistics.md)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.manifest import STATISTICS
from shardbeam.transforms.dataset.statistics import (
    BINS,
    STATISTICS_VERSION,
    Statistics,
)
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.find import storage_for


class _Version(msgspec.Struct, frozen=True):
    version: int


class _Splits(msgspec.Struct, frozen=True):
    splits: dict[str, Statistics]


def encode_statistics(splits: Mapping[str, Statistics]) -> bytes:
    """Renders `statistics.json`.

    Args:
        splits: `{split: what is in it}`.
    """
    document = {"version": STATISTICS_VERSION, "bins": BINS, "splits": splits}
    return msgspec.json.format(msgspec.json.encode(document, order="sorted"), indent=2) + b"\n"


def read_statistics(folder: str) -> dict[str, Statistics] | None:
    """Reads a dataset's `statistics.json`; None if there is none, or if its version differs.

    Args:
        folder: The dataset's folder.

    Raises:
        InputError: It cannot be read, or is damaged.
    """
    uri = join_uri(folder, STATISTICS)
    try:
        data = storage_for(uri).read_small(uri, max_bytes=limits.METADATA_BYTES)
        if msgspec.json.decode(data, type=_Version).version != STATISTICS_VERSION:
            return None
        return msgspec.json.decode(data, type=_Splits).splits
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(uri=uri, problem=f"cannot be read: {error.strerror or error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(uri=uri, problem=f"not the statistics of a dataset: {error}") from error
