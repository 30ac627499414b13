"""ReadAnnotations: what is said about the images."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeAlias

import apache_beam as beam
from apache_beam import pvalue
from apache_beam.pvalue import PCollection

from shardbeam.transforms.coders import register_coders
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import AnnotationEntry, Category, ListedFile, ListedImage
from shardbeam.transforms.formats.listed import read_listed_file
from shardbeam.transforms.formats.sources import Source
from shardbeam.transforms.global_window import in_global_window
from shardbeam.transforms.report_usage import report_usage
from shardbeam.transforms.storage.find import storage_for

register_coders()

_CATEGORIES = "categories"
_IMAGES = "images"
_FILES_AT_A_TIME = 32
_WAITING_FILES = 1024

_Entry: TypeAlias = tuple[tuple[str, str], AnnotationEntry]
# (source, which of its annotation files, where to begin, where to end); the last two are 0 where
# the file is read whole.
_Part: TypeAlias = tuple[Source, int, int, int]


class ReadResult(NamedTuple):
    """What `ReadAnnotations` gives.

    Attributes:
        entries: `((source, join), AnnotationEntry)` for all that is said about an image.
        categories: Each `Category` that a file declares.
        images: `((source, join), ListedImage)` for each image inside a container.
    """

    entries: PCollection[_Entry]
    categories: PCollection[Category]
    images: PCollection[tuple[tuple[str, str], ListedImage]]


@dataclasses.dataclass(eq=False, kw_only=True)
class ReadAnnotations(beam.PTransform[PCollection[ListedFile], ReadResult]):
    """Parses the annotation files that sources name, and those that were listed.

    A named file is read by one worker, unless its format reads it in parts; listed files, which
    are about an image or a container each, are read by all.

    Args:
        sources: The sources.

    Raises:
        InputError: (at run time) A named file or a container cannot be read, or is not what it
            should be.
    """

    sources: Sequence[Source]

    def expand(self, files: PCollection[ListedFile]) -> ReadResult:
        """Adds the step to a pipeline."""
        formats = [source.load_format() for source in self.sources]
        named = [
            (source, file_index, 0, 0)
            for source, source_format in zip(self.sources, formats, strict=True)
            for file_index in range(len(source_format.annotation_files()))
        ]
        parts = files.pipeline | "Files" >> beam.Create(named)
        if any(source_format.chunk_bytes for source_format in formats):
            parts = (
                parts
                | "SplitFiles" >> beam.FlatMap(_split_file).with_output_types(_Part)
                | "SpreadParts" >> beam.Reshuffle()
            )
        read = [_typed(parts | "Read" >> _with_outputs(_ReadFn()))]
        if any(source_format.lists_annotations for source_format in formats):
            by_name = {source.name: source for source in self.sources}
            spread = files | "SpreadFiles" >> beam.Reshuffle()
            read.append(_typed(spread | "ReadListed" >> _with_outputs(_ReadListedFn(by_name))))
        if len(read) == 1:
            return read[0]
        return ReadResult(
            entries=[part.entries for part in read] | "FlattenEntries" >> beam.Flatten(),
            categories=[part.categories for part in read] | "FlattenCategories" >> beam.Flatten(),
            images=[part.images for part in read] | "FlattenImages" >> beam.Flatten(),
        )


def _with_outputs(do_fn: beam.DoFn) -> Any:  # noqa: ANN401  # Beam does not export the type.
    return beam.ParDo(do_fn).with_outputs(_CATEGORIES, _IMAGES, main="entries")


def _typed(outputs: Any) -> ReadResult:  # noqa: ANN401  # As above.
    outputs.entries.element_type = _Entry
    outputs[_CATEGORIES].element_type = Category
    outputs[_IMAGES].element_type = tuple[tuple[str, str], ListedImage]
    return ReadResult(
        entries=outputs.entries, categories=outputs[_CATEGORIES], images=outputs[_IMAGES]
    )


def _split_file(part: _Part) -> Iterator[_Part]:
    source, file_index, _, _ = part
    source_format = source.load_format()
    if source_format.chunk_bytes is None:
        yield part
        return
    uri = source_format.annotation_files()[file_index]
    stored = storage_for(uri).stat(uri)
    if stored is None:
        raise InputError(uri=uri, problem="there is no such file")
    # An empty file is one part as well: its format says what is wrong with it.
    for begin in range(0, max(1, stored.size_bytes), source_format.chunk_bytes):
        end = min(begin + source_format.chunk_bytes, stored.size_bytes)
        yield source, file_index, begin, end


class _ReadFn(beam.DoFn):
    def process(self, part: _Part) -> Iterator[_Entry | pvalue.TaggedOutput[str, Any]]:
        source, file_index, begin, end = part
        source_format = source.load_format()
        uri = source_format.annotation_files()[file_index]
        storage = storage_for(uri)
        if source_format.chunk_bytes is None:
            items = source_format.read_annotations(storage=storage, file_index=file_index)
        else:
            items = source_format.read_chunk(
                storage=storage, file_index=file_index, begin=begin, end=end
            )
        yield from _outputs(items, source=source)
        report_usage()


class _ReadListedFn(beam.DoFn):
    """Reads listed files; those in object storage, which are small, many at a time."""

    def __init__(self, sources: dict[str, Source]) -> None:
        self._sources = sources

    def setup(self) -> None:
        # Its threads start when they are needed.
        self._executor = ThreadPoolExecutor(
            max_workers=_FILES_AT_A_TIME, thread_name_prefix="annotations"
        )

    def teardown(self) -> None:
        self._executor.shutdown(cancel_futures=True)

    def start_bundle(self) -> None:
        self._waiting: list[ListedFile] = []

    def process(self, file: ListedFile) -> Iterator[_Entry | pvalue.TaggedOutput[str, Any]]:
        if file.is_container or not storage_for(file.file.uri).is_remote:
            yield from self._read(file)
            return
        self._waiting.append(file)
        if len(self._waiting) == _WAITING_FILES:
            yield from self._read_waiting()

    def finish_bundle(self) -> Iterator[Any]:
        yield from map(in_global_window, self._read_waiting())
        report_usage()

    def _read_waiting(self) -> Iterator[_Entry | pvalue.TaggedOutput[str, Any]]:
        files, self._waiting = self._waiting, []
        for outputs in self._executor.map(lambda file: list(self._read(file)), files):
            yield from outputs

    def _read(self, file: ListedFile) -> Iterator[_Entry | pvalue.TaggedOutput[str, Any]]:
        source = self._sources[file.source]
        items = read_listed_file(file, source_format=source.load_format())
        return _outputs(items, source=source)


def _outputs(
    items: Iterator[AnnotationEntry | Category | ListedImage], *, source: Source
) -> Iterator[_Entry | pvalue.TaggedOutput[str, Any]]:
    for item in items:
        if isinstance(item, Category):
            yield pvalue.TaggedOutput(_CATEGORIES, item)
        elif isinstance(item, ListedImage):
            yield pvalue.TaggedOutput(_IMAGES, ((source.name, item.key), item))
        else:
            yield (source.name, item.key), item
