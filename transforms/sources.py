"""A source of the config, as the transforms see it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from transforms.errors import InputError
from transforms.formats.base import Format
from transforms.formats.load import load_format
from transforms.formats.names import normalize_key
from transforms.reasons import Reason
from transforms.records import ImageRef, Reject
from transforms.sharding import SplitAssignment
from transforms.storage import StoredFile, storage_for

_WILDCARD = re.compile(r"[*?\[]")


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where images and annotations come from.

    Attributes:
        name: The source's name in the config; with its key it identifies an image.
        images: Root folder of the images.
        format: Name of the format (`transforms.formats.load`).
        settings: The format's settings.
    """

    name: str
    images: str
    format: str
    settings: Mapping[str, Any] = {}

    def load_format(self) -> Format:
        """Makes the source's format; the same one every time in a process."""
        return load_format(name=self.format, settings=self.settings)


def list_source(
    source: Source, *, splits: SplitAssignment
) -> Iterator[tuple[str, ImageRef] | Reject]:
    """Lists a source's files.

    Yields:
        `(key, image)` for each file, and a reject for each whose name is not valid Unicode.

    Raises:
        InputError: The root cannot be listed, or there is nothing below it.
    """
    storage = storage_for(source.images)
    empty = True
    for file in storage.list(source.images):
        empty = False
        try:
            file.path.encode()
        except UnicodeEncodeError:
            yield _unreadable_name(file, source=source, splits=splits)
            continue
        yield (
            normalize_key(file.path),
            ImageRef(uri=file.uri, size_bytes=file.size_bytes, version=file.version),
        )
    if empty:
        raise InputError(uri=source.images, problem="no files found; is this the images' folder?")


def _unreadable_name(file: StoredFile, *, source: Source, splits: SplitAssignment) -> Reject:
    key = file.path.encode("utf-8", "backslashreplace").decode()
    return Reject(
        split=splits.split_of(source=source.name, key=key),
        source=source.name,
        key=key,
        stage="list",
        reason=Reason.UNREADABLE_NAME,
        detail="the file's name is not valid UTF-8; rename the file",
        listed=True,
    )
