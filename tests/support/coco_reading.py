"""Reads COCO content from memory, for tests."""

from __future__ import annotations

import json
import tempfile
import tracemalloc
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

import pytest

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    decode_annotations,
)
from shardbeam.transforms.formats.base import Format
from shardbeam.transforms.formats.parsing.json_sections import TextOnDisk
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.base import Storage, StoredFile
from shardbeam.transforms.storage.disk_file import DiskFile
from shardbeam.transforms.storage.local import LocalStorage
from tests.support.making import make_format

URI = "data/instances.json"


class StoredBytes(LocalStorage):
    """A storage in which every file has the same content."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(
        self,
        uri: str,
        *,
        offset: int = 0,
        size_bytes: int | None = None,
        version: str | None = None,
    ) -> bytes:
        del uri, offset, size_bytes, version
        return self._data


class BytesOnDisk(StoredBytes):
    """The same, but the file is one that can be opened, whatever its name."""

    def stat(self, uri: str) -> StoredFile:
        return StoredFile(path=uri, uri=uri, size_bytes=len(self._data), version="1")

    def open_local(self, uri: str) -> BinaryIO:
        del uri
        file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # The reader closes it.
        file.write(self._data)
        return file

    def text(self) -> TextOnDisk:
        """The content, as a text on disk."""
        return TextOnDisk(DiskFile(self.open_local(URI), uri=URI))


class ParsedCoco(NamedTuple):
    """What `CocoFormat` or `LvisFormat` yields."""

    categories: list[Category]
    entries: list[AnnotationEntry]

    def images(self) -> dict[str, ImageAnnotations]:
        """Annotations of the usable images, by key."""
        return {
            entry.key: decode_annotations(entry.annotations)
            for entry in self.entries
            if entry.defect is None
        }

    def defects(self) -> list[AnnotationEntry]:
        """The entries that cannot be used."""
        return [entry for entry in self.entries if entry.defect is not None]


def read_coco(
    content: bytes | Mapping[str, Any],
    *,
    masks: bool = False,
    tasks: Sequence[str] | None = None,
    uri: str = URI,
) -> ParsedCoco:
    """Reads a COCO file's bytes, or a document that is written as JSON first."""
    source = make_format("coco", images="i", annotations=[uri], tasks=tasks, _masks=masks)
    return read_content(source, content)


def read_image(
    content: bytes | Mapping[str, Any], *, masks: bool = False, tasks: Sequence[str] | None = None
) -> ImageAnnotations:
    """Reads a COCO file's annotations of the image `a.jpg`."""
    return read_coco(content, masks=masks, tasks=tasks).images()["a.jpg"]


def read_content(
    source: Format, content: bytes | Mapping[str, Any], *, file_index: int = 0
) -> ParsedCoco:
    """Reads one file of a format, whatever its name, from memory.

    It is also read as a long file is, which stays on disk; the outcome must be the same.
    """
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    in_memory = _outcome(source, StoredBytes(data), file_index=file_index)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "WHOLE_ANNOTATION_BYTES", -1)
        on_disk = _outcome(source, BytesOnDisk(data), file_index=file_index)
    assert _comparable(on_disk) == _comparable(in_memory)
    if isinstance(in_memory, InputError):
        raise in_memory
    return in_memory


def _outcome(source: Format, storage: Storage, *, file_index: int) -> ParsedCoco | InputError:
    try:
        items = list(source.read_annotations(storage=storage, file_index=file_index))
    except InputError as error:
        return error
    return ParsedCoco(
        categories=[item for item in items if isinstance(item, Category)],
        entries=[item for item in items if isinstance(item, AnnotationEntry)],
    )


def _comparable(outcome: ParsedCoco | InputError) -> object:
    return str(outcome) if isinstance(outcome, InputError) else outcome


def document(
    *,
    images: list[dict[str, Any]] | None = None,
    annotations: list[dict[str, Any]] | None = None,
    categories: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Makes a COCO document, by default with one image, one object and one category."""
    return {
        "info": {},
        "images": [image()] if images is None else images,
        "annotations": [annotation()] if annotations is None else annotations,
        "categories": [{"id": 18, "name": "dog"}] if categories is None else categories,
    }


def image(**changes: object) -> dict[str, Any]:
    """An entry of `images`."""
    return {"id": 7, "file_name": "a.jpg", "width": 640, "height": 480} | changes


def annotation(**changes: object) -> dict[str, Any]:
    """Returns an entry of `annotations`; a key with the value `...` is left out."""
    entry = {
        "id": 1,
        "image_id": 7,
        "category_id": 18,
        "bbox": [10, 20.5, 30, 40],
        "area": 600.25,
        "iscrowd": 0,
        "segmentation": [[10, 20.5, 40, 20.5, 40, 60.5]],
    } | changes
    return {key: value for key, value in entry.items() if value is not ...}


def peak_bytes(source: Format) -> int:
    """Reads a source's first annotation file on disk, and returns the most memory that it takes."""
    tracemalloc.start()
    try:
        for _ in source.read_annotations(storage=LocalStorage(), file_index=0):
            pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return peak
