"""Draws thumbnails of rejected images that are found and can be decoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardbeam.readers.open.read_rejects import StoredReject
from shardbeam.readers.report.draw import decode_small
from shardbeam.readers.report.thumbnails import encode_jpeg, fit
from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.find import storage_for

_MAX_SIDE = 320
# The most rejects that are drawn, and the largest file that is read.
_DRAWN = 60
_MAX_FILE_BYTES = 64 << 20


def draw_rejects(rejects: Sequence[StoredReject], *, roots: Sequence[str]) -> dict[int, str]:
    """Draws the rejected images that can be found and decoded.

    It reads only below the roots that the caller names: paths in a dataset could lead anywhere.

    Args:
        rejects: The rejects.
        roots: Folders that the keys may be relative to.

    Returns:
        `{number of a reject: data URI of a JPEG file}`.
    """
    drawn: dict[int, str] = {}
    for number, reject in enumerate(rejects):
        if len(drawn) < _DRAWN and reject.listed:
            for data in _read(reject.key, roots=roots):
                try:
                    image, _ = decode_small(data, side=_MAX_SIDE)
                    drawn[number] = encode_jpeg(fit(image, max_side=_MAX_SIDE))
                    break
                except RejectedError:
                    continue
    return drawn


def _read(key: str, *, roots: Sequence[str]) -> Iterator[bytes]:
    """Yields the content of each file that a root has under a key."""
    if {"", ".", ".."} & set(key.split("/")) or "\0" in key:
        return
    for root in roots:
        uri = join_uri(root, key)
        try:
            file = storage_for(uri).stat(uri)
            if file is not None and file.size_bytes <= _MAX_FILE_BYTES:
                yield storage_for(uri).read(uri, size_bytes=file.size_bytes)
        except (OSError, InputError):
            continue
