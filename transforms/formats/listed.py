"""Reading one listed annotation file or container."""

from __future__ import annotations

from collections.abc import Iterator

from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import AnnotationEntry, Category, ListedFile, ListedImage
from shardbeam.transforms.formats.base import Format
from shardbeam.transforms.storage.image_bytes import read_bytes


def read_listed_file(
    file: ListedFile, *, source_format: Format
) -> Iterator[AnnotationEntry | Category | ListedImage]:
    """Reads what was listed beside the images.

    Yields:
        What the format finds in it. An annotation file that cannot be read gives an entry with a
        defect, so that its image is rejected and the run goes on.

    Raises:
        InputError: A container cannot be read, or is not what it should be.
    """
    if file.is_container:
        yield from source_format.read_container(file.file, path=file.path, root=file.root)
        return
    try:
        data = read_bytes(file.file, unreadable=Reason.ANNOTATION_MALFORMED)
    except RejectedError as error:
        yield AnnotationEntry(
            key=file.join,
            defect=error.reason,
            detail=f"{file.path}: {error.detail}",
        )
        return
    try:
        yield from source_format.read_listed(data, path=file.path, root=file.root)
    except InputError as error:
        place = f"{error.place}: " if error.place else ""
        yield AnnotationEntry(
            key=file.join,
            defect=Reason.ANNOTATION_MALFORMED,
            detail=f"{file.path}: {place}{error.problem}",
        )
