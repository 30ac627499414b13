"""Recognizes tables of images and their labels, boxes or captions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from shardbeam.configs.problem import Problem
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.text import counted
from shardbeam.transforms.formats.parsing.table_columns import first_of
from shardbeam.transforms.formats.recognition import TABLE, Folder, Recognized, split_in
from shardbeam.transforms.formats.table.first_rows import FirstRows, image_name
from shardbeam.transforms.formats.table.keys import UndecidedTableError
from shardbeam.transforms.formats.table.layout import CAPTION_NAMES, find_image_column, is_named
from shardbeam.transforms.formats.table.table import FIRST_BYTES_OF_A_FILE, TableFormat
from shardbeam.transforms.storage.find import storage_for

# Columns of 0 and 1 that are certainly classes, if there is no other column.
_MIN_ONE_HOT = 3
# Kaggle's example of the table to hand in has a label for each image of the test, which means
# nothing.
_SUBMISSION = re.compile(r"(sample|example)[ _-]?submission[^/]*\Z", re.IGNORECASE)
# Tables of a folder that are opened.
_MAX_TABLES = 20


class _Found(NamedTuple):
    """A table that was recognized.

    Attributes:
        split: The split that its name says; empty where it says none, or its rows do.
        source: The keys that read it, as far as they are certain.
        problem: Which key is missing; empty if none is.
        notes: Warnings of the format.
        images: The first images that it names.
    """

    split: str
    source: dict[str, Any]
    problem: str = ""
    notes: tuple[str, ...] = ()
    images: frozenset[str] = frozenset()

    def is_alike(self, other: _Found) -> bool:
        """Whether another table is about the same images, and is read by the same keys."""
        keys = self.source | {"manifest": other.source["manifest"]}
        return keys == other.source and not self.images.isdisjoint(other.images)


class RecognizedTable(TableFormat, frozen=True, kw_only=True):
    """A table that `shardbeam init` recognizes by its columns and the images that it names."""

    @classmethod
    def recognize(cls, folder: Folder) -> Recognized | None:
        """Recognizes tables of images and their labels, boxes or captions."""
        return _recognize_tables(cls, folder)

    @classmethod
    def tables_in(cls, folder: Folder) -> list[str]:
        """Returns the files of a folder that may be tables of images."""
        return folder.named(*cls.extensions)

    @classmethod
    def guess_keys(cls, folder: Folder, *, path: str) -> Iterator[Mapping[str, Any]]:
        """Yields keys that `recognize` tries one after the other for a file."""
        yield {}


def _recognize_tables(table: type[RecognizedTable], folder: Folder) -> Recognized | None:
    """Recognizes tables of images and their labels, boxes or captions."""
    found: dict[str, _Found] = {}
    problem = ""
    undecided: Mapping[str, Mapping[str, Any]] = {}
    listed = table.tables_in(folder)
    submissions = [*filter(is_submission, listed)]
    files = [path for path in listed if path not in submissions]
    for path in files[:_MAX_TABLES]:
        for keys in table.guess_keys(folder, path=path):
            made = table(manifest=[folder.location(path)], image_root=[folder.location()], **keys)
            try:
                one = _recognize(made, path, folder=folder)
            except (InputError, Problem):
                continue
            if one is None:
                continue
            if one.problem:
                if not problem:
                    problem, undecided = one.problem, {"": one.source | dict(keys)}
                break
            one = one._replace(source=one.source | dict(keys))
            first = found.setdefault(one.split, one)
            if first is not one:
                both = f"{first.source['manifest'][0]} and {folder.uri(path)}"
                if not first.is_alike(one):
                    problem = f"{both} both name images and their classes"
                    return Recognized(what=f"{len(files)} tables", problem=problem, rank=TABLE)
                note = (
                    f"{both} are about the same images, and the first is read; to read the "
                    f"other one instead: manifest: [{folder.uri(path)}]"
                )
                found[one.split] = first._replace(notes=(*first.notes, note))
            break
    what = counted(len(found) or len(files), "table")
    if "" in found and len(found) > 1:
        problem = "some of the tables name a split and others do not"
        return Recognized(what=what, problem=problem, rank=TABLE)
    if not found:
        it = Recognized(what=what, problem=problem, sources=undecided, rank=TABLE)
        return it if problem else None
    notes = dict.fromkeys(note for one in found.values() for note in one.notes)
    notes |= {f"not read: {path}, whose labels are examples": None for path in submissions}
    sources = {split: one.source for split, one in found.items()}
    return Recognized(what=what, sources=sources, notes=tuple(notes), rank=TABLE)


def _recognize(table: TableFormat, path: str, *, folder: Folder) -> _Found | None:
    """Returns what is known of a table whose images are there; None for others."""
    (uri,) = table.manifest
    names, rows = table.first_rows(uri, storage=storage_for(uri), size_bytes=FIRST_BYTES_OF_A_FILE)
    first = FirstRows(names, rows, table.cells_are_text)
    cells = [*first.texts(find_image_column(table, first))]
    images = folder.find_images(map(image_name, cells), near=path)
    if images is None:
        return None
    source: dict[str, Any] = {
        "manifest": [folder.uri(path)],
        "image_root": [folder.uri(images.folder)],
    }
    if images.match != "path" and any(map(is_named, cells)):
        source["match"] = images.match
    table = msgspec.structs.replace(table, image_root=[folder.location(images.folder)])
    try:
        made = table.resolve()
    except UndecidedTableError as error:
        return _Found("", source, problem=f"{folder.uri(path)}: {error.problem}")
    layout = made.layout
    caption = "" if made.kinds else _lone_caption(layout.columns, first)
    if not (made.kinds or caption or len(layout.flags) > 1):
        return None
    certain: dict[str, Any] = {}
    if caption:
        certain["caption_column"] = caption
    if layout.separator:
        certain["label_separator"] = layout.separator
    if len(layout.flags) >= _MIN_ONE_HOT and set(layout.flags) == set(layout.columns):
        certain["one_hot"] = True
    if certain:
        made = msgspec.structs.replace(table, **certain).resolve()
    split = "" if layout.splits else split_in(path)
    images_named = frozenset(map(image_name, cells))
    return _Found(split, source | certain, "", tuple(made.warnings()), images_named)


def _lone_caption(columns: Iterable[str], first: FirstRows) -> str:
    """Finds the captions of a table with a row for each image; empty if there are none."""
    names = [*columns]
    sentences = [name for name in names if len(names) == 1 and first.holds_sentences(name)]
    return first_of(CAPTION_NAMES, names) or next(iter(sentences), "")


def is_submission(path: str) -> bool:
    """Whether a file is Kaggle's example of the table to hand in."""
    return _SUBMISSION.search(path) is not None
