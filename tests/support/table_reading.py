"""Reads tables as a build does: surveyed once, then in parts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardbeam.transforms.core.reasons import Exclusion
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    decode_annotations,
)
from shardbeam.transforms.formats.base import Place
from shardbeam.transforms.formats.table import TableFormat
from shardbeam.transforms.storage.local import LocalStorage
from tests.support.making import make_format


class ReadTable:
    """What a format finds in tables.

    Args:
        name: The format.
        files: `{file name: content}`.
        folder: Where to write them.
        chunk_bytes: How much is read at a time, where the format reads in parts.
        settings: The format's settings beside `manifest`.
    """

    def __init__(
        self,
        name: str,
        files: Mapping[str, str | bytes],
        *,
        folder: Path,
        chunk_bytes: int = 1 << 20,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        uris = []
        for file_name, content in files.items():
            path = folder / file_name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
            uris.append(str(path))
        given = {"manifest": uris, **(settings or {})}
        found = make_format(name, **given).resolve()
        assert isinstance(found, TableFormat)
        self.format = found
        self.entries: list[AnnotationEntry] = []
        self.categories: list[Category] = []
        for file_index, uri in enumerate(uris):
            size = Path(uri).stat().st_size
            if found.chunk_bytes is None:
                items = list(found.read_annotations(storage=LocalStorage(), file_index=file_index))
            else:
                items = [
                    item
                    for begin in range(0, max(1, size), chunk_bytes)
                    for item in found.read_chunk(
                        storage=LocalStorage(),
                        file_index=file_index,
                        begin=begin,
                        end=min(begin + chunk_bytes, size),
                    )
                ]
            for item in items:
                if isinstance(item, Category):
                    self.categories.append(item)
                else:
                    self.entries.append(item)

    def annotations(self) -> list[tuple[str, ImageAnnotations]]:
        """Key and annotations of the usable rows, in order."""
        return [
            (entry.key, decode_annotations(entry.annotations))
            for entry in self.entries
            if entry.defect is None and entry.exclusion is None
        ]

    def values(self) -> list[dict[str, Any]]:
        """The features of the usable rows: a lone value is not in a list."""
        rows = []
        repeated = {extra.spec.key: extra.spec.repeated for extra in self.format.extra_features()}
        for _, found in self.annotations():
            row: dict[str, Any] = {}
            for name, values in found.values.items():
                row[name] = list(values) if repeated[name] else values[0]
                assert repeated[name] or len(values) == 1
            rows.append(row)
        return rows

    def labels(self) -> dict[str, list[str]]:
        """The labels of the usable rows by key."""
        return {key: list(found.labels) for key, found in self.annotations()}

    def types(self) -> dict[str, str]:
        """The types of the columns that become features."""
        return dict(self.format._layout.columns)

    def defects(self) -> list[tuple[str, str, str]]:
        """Key, reason and detail of the rows that cannot be used."""
        return [
            (entry.key, entry.defect.value, entry.detail)
            for entry in self.entries
            if entry.defect is not None
        ]

    def exclusions(self) -> list[tuple[str, Exclusion]]:
        """Key and rule of the rows that are left out."""
        return [
            (entry.key, entry.exclusion) for entry in self.entries if entry.exclusion is not None
        ]

    def place(self, path: str, *, root: int = 0) -> Place:
        return self.format.place(path, root=root)
