"""Lists of the images of a split, an image a line."""

from __future__ import annotations

from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import AnnotationEntry
from shardbeam.transforms.formats.names import escape_key, key_problem


def split_entry(key: str, *, split: str, path: str, line: int, file_index: int) -> AnnotationEntry:
    """Says of the image in one line of a list that it is in the list's split.

    Args:
        key: What the image is joined by.
        split: The split.
        path: The list, for messages.
        line: Number of the line, from 1.
        file_index: Position of the list among the format's annotation files.
    """
    problem = key_problem(key)
    return AnnotationEntry(
        key=key if problem is None else escape_key(key) or f"{path}: line {line}",
        file_index=file_index,
        position=line,
        defect=None if problem is None else Reason.UNREADABLE_NAME,
        detail="" if problem is None else f"{path}: line {line}: {problem}",
        split=split,
    )
